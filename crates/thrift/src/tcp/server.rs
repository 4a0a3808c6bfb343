//! The server: its threads, how it begins and how it ends.

use super::answer::Service;
use super::event_loop::{EventLoop, Mailbox};
use crate::error::ServeError;
use crate::server::Processor;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Settings of a server.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Threads, at least one. Each has its own connections and calls the handler itself, so a handler that waits keeps the
    /// other connections of its thread waiting. As many as the machine has cores, and at most 8, unless set.
    pub threads: usize,
    /// Connections at a time; others are closed at once. 1024 unless set.
    pub max_connections: usize,
    /// Bytes of a message, coming or going. 64 MiB unless set. Its memory is taken as its bytes come.
    pub message_limit: usize,
    /// Bytes of answers that may wait for a client to read them; until then no more of its calls are read or executed. The
    /// last answer may exceed it. 1 MiB unless set.
    pub output_limit: usize,
    /// How long a connection may be without a call. 10 minutes unless set.
    pub idle_timeout: Duration,
    /// How long a client may take for a message, or to read an answer, or for 64 KiB of one that is longer.
    /// 60 seconds unless set.
    pub stall_timeout: Duration,
}

impl Default for ServerOptions {
    fn default() -> Self {
        ServerOptions {
            threads: thread::available_parallelism().map_or(1, usize::from).min(8),
            max_connections: 1024,
            message_limit: 64 << 20,
            output_limit: 1 << 20,
            idle_timeout: Duration::from_secs(600),
            stall_timeout: Duration::from_secs(60),
        }
    }
}

/// What a server is doing.
pub(super) const RUNNING: u8 = 0;
/// It answers what has come, and ends.
pub(super) const DRAINING: u8 = 1;
/// It ends.
pub(super) const STOPPING: u8 = 2;

/// What the threads of a server share.
#[derive(Debug)]
pub(super) struct Shared<P> {
    pub(super) service: Service<P>,
    pub(super) options: ServerOptions,
    pub(super) listener: TcpListener,
    pub(super) mailboxes: Box<[Mailbox]>,
    pub(super) connections: AtomicUsize,
    pub(super) sessions: AtomicU64,
    phase: AtomicU8,
    drain_until: Mutex<Option<Instant>>,
    /// Threads that have not ended.
    running: Mutex<usize>,
    ended: Condvar,
}

impl<P> Shared<P> {
    pub(super) fn phase(&self) -> u8 {
        self.phase.load(Ordering::Acquire)
    }

    pub(super) fn drain_until(&self) -> Option<Instant> {
        *self.drain_until.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self, phase: u8) {
        self.phase.fetch_max(phase, Ordering::AcqRel);
        // Nobody connects to a server that ends, even if it takes its time. It can only fail if it was done before.
        let _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
        self.mailboxes.iter().for_each(Mailbox::ring);
    }
}

/// Says that a thread has ended, however it did.
struct Running<P>(Arc<Shared<P>>);

impl<P> Drop for Running<P> {
    fn drop(&mut self) {
        *self.0.running.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        self.0.ended.notify_all();
    }
}

/// A running server of a processor for stock Thrift clients; dropping it ends it.
///
/// Calls of one connection are executed one after the other and answered in order, also if the client sends them without
/// waiting. A handler that panics fails its call, and nothing else.
///
/// Dropping it closes all connections, and waits for handlers that are running; [`shutdown`](Server::shutdown) is gentler.
#[derive(Debug)]
pub struct Server<P: Processor> {
    shared: Arc<Shared<P>>,
    threads: Vec<JoinHandle<()>>,
    address: SocketAddr,
}

impl<P: Processor> Server<P> {
    /// Serves `processor` at `address` (`host:port`; port 0 for any).
    pub fn bind(address: &str, processor: Arc<P>, options: ServerOptions) -> Result<Self, ServeError> {
        Self::try_bind(address, processor, options)
            .map_err(|error| ServeError::Tcp { address: address.to_owned(), error })
    }

    fn try_bind(address: &str, processor: Arc<P>, options: ServerOptions) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let count = options.threads.max(1);
        let mailboxes = (0..count).map(|_| Mailbox::new()).collect::<io::Result<_>>()?;
        let shared = Arc::new(Shared {
            service: Service::new(processor, options.message_limit.min(i32::MAX as usize)),
            options,
            listener,
            mailboxes,
            connections: AtomicUsize::new(0),
            // The upper half of all numbers: the engine's sessions count from 0.
            sessions: AtomicU64::new(1 << 63),
            phase: AtomicU8::new(RUNNING),
            drain_until: Mutex::new(None),
            running: Mutex::new(0),
            ended: Condvar::new(),
        });
        let mut server = Server { shared: Arc::clone(&shared), threads: Vec::with_capacity(count), address };
        for number in 0..count {
            let event_loop = EventLoop::new(Arc::clone(&shared), number)?;
            *shared.running.lock().unwrap_or_else(PoisonError::into_inner) += 1;
            let running = Running(Arc::clone(&shared));
            let thread = thread::Builder::new().name(format!("dunlin-tcp-{number}")).spawn(move || {
                // Ends after the loop with its connections has.
                let _running = running;
                event_loop.run();
            })?;
            server.threads.push(thread);
        }
        Ok(server)
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Open connections.
    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::Relaxed)
    }

    /// Ends the server gently: it accepts no more connections, answers the calls that have arrived (of each connection
    /// no more than 256 KiB that it had not read yet), and closes.
    /// Blocks until that is done or `timeout` is over. Returns whether it was done; if not, connections are closed as
    /// they are, and threads whose handler still runs end when it returns.
    pub fn shutdown(mut self, timeout: Duration) -> bool {
        let until = Instant::now() + timeout;
        *self.shared.drain_until.lock().unwrap_or_else(PoisonError::into_inner) = Some(until);
        self.shared.enter(DRAINING);
        let done = self.wait(until);
        self.shared.enter(STOPPING);
        // Loops that wait for clients end at once now; those in a handler are not waited for.
        let threads = std::mem::take(&mut self.threads);
        if done {
            threads.into_iter().for_each(join);
        }
        done
    }

    fn wait(&self, until: Instant) -> bool {
        let mut running = self.shared.running.lock().unwrap_or_else(PoisonError::into_inner);
        while *running > 0 {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            running = self.shared.ended.wait_timeout(running, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }
}

impl<P: Processor> Drop for Server<P> {
    fn drop(&mut self) {
        self.shared.enter(STOPPING);
        self.threads.drain(..).for_each(join);
    }
}

fn join(thread: JoinHandle<()>) {
    // A handler may own the server that calls it.
    if thread.thread().id() != thread::current().id() && thread.join().is_err() {
        tracing::error!("a thread of the TCP server has panicked");
    }
}
