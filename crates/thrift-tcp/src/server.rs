//! The server: its threads, startup and shutdown.

use crate::answer::Service;
use crate::event_loop::{EventLoop, Mailbox};
use dunlin_thrift_core::{Processor, ServeError};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Settings of a TCP server.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// The number of threads, at least one. Each thread owns its connections and calls the handler itself, so
    /// a handler that blocks delays the thread's other connections. By default the number of cores, at most
    /// 8.
    pub threads: usize,
    /// The maximum number of open connections; further ones are closed immediately. Default: 1024.
    pub max_connections: usize,
    /// The maximum size of a received or sent message in bytes. Default: 64 MiB. Memory grows as bytes
    /// arrive.
    pub message_limit: usize,
    /// The number of bytes of pending answers per connection above which the server stops reading and
    /// executing the client's calls. The last answer may exceed it. Default: 1 MiB.
    pub output_limit: usize,
    /// The maximum time that a connection may be without a call. Default: 10 minutes.
    pub idle_timeout: Duration,
    /// The maximum time in which a client must send a message, read an answer, or transfer 64 KiB of a longer
    /// one. Default: 60 seconds.
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

/// Phase of a server: it runs normally.
pub(crate) const RUNNING: u8 = 0;
/// Phase of a server: it answers the received calls and then stops.
pub(crate) const DRAINING: u8 = 1;
/// Phase of a server: it stops.
pub(crate) const STOPPING: u8 = 2;

/// State shared by the threads of a server.
#[derive(Debug)]
pub(crate) struct Shared<P> {
    pub(crate) service: Service<P>,
    pub(crate) options: ServerOptions,
    pub(crate) listener: TcpListener,
    pub(crate) mailboxes: Box<[Mailbox]>,
    pub(crate) connections: AtomicUsize,
    pub(crate) sessions: AtomicU64,
    phase: AtomicU8,
    drain_until: Mutex<Option<Instant>>,
    /// The number of threads that have not ended.
    running: Mutex<usize>,
    ended: Condvar,
}

impl<P> Shared<P> {
    pub(crate) fn phase(&self) -> u8 {
        self.phase.load(Ordering::Acquire)
    }

    pub(crate) fn drain_until(&self) -> Option<Instant> {
        *self.drain_until.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self, phase: u8) {
        self.phase.fetch_max(phase, Ordering::AcqRel);
        // Refuses new connections to a server that is stopping. Fails only if it was already done.
        let _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
        self.mailboxes.iter().for_each(Mailbox::ring);
    }
}

/// Decrements the number of running threads on drop, also when a thread panics.
struct Running<P>(Arc<Shared<P>>);

impl<P> Drop for Running<P> {
    fn drop(&mut self) {
        *self.0.running.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        self.0.ended.notify_all();
    }
}

/// A running server of a processor for stock Thrift clients.
///
/// Calls of one connection are executed one after another and answered in order, even if the client pipelines
/// them. A panic in a handler fails only its call.
///
/// Dropping the server closes all connections and waits for running handlers. [`shutdown`](Server::shutdown)
/// stops it gracefully.
#[derive(Debug)]
pub struct Server<P: Processor> {
    shared: Arc<Shared<P>>,
    threads: Vec<JoinHandle<()>>,
    address: SocketAddr,
}

impl<P: Processor> Server<P> {
    /// Serves `processor` at `address` (`host:port`; port 0 picks a free port).
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
            service: Service::new(
                processor,
                options.message_limit.min(i32::MAX as usize),
                address.to_string(),
            ),
            options,
            listener,
            mailboxes,
            connections: AtomicUsize::new(0),
            // TCP sessions use the upper half of the number range; the engine's sessions count from 0.
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
                // Dropped after the loop and its connections.
                let _running = running;
                event_loop.run();
            })?;
            server.threads.push(thread);
        }
        Ok(server)
    }

    /// Returns the address on which the server listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the number of open connections.
    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::Relaxed)
    }

    /// Stops the server gracefully: it accepts no more connections, answers the calls that have arrived
    /// (reading at most 256 KiB more from each connection), and closes.
    ///
    /// Blocks until that is done or `timeout` has passed, and returns whether it was done. If not, the
    /// connections are closed immediately, and threads with a running handler end when it returns.
    pub fn shutdown(mut self, timeout: Duration) -> bool {
        let until = Instant::now() + timeout;
        *self.shared.drain_until.lock().unwrap_or_else(PoisonError::into_inner) = Some(until);
        self.shared.enter(DRAINING);
        let done = self.wait(until);
        self.shared.enter(STOPPING);
        // Loops that wait for clients now end immediately. Threads inside a handler are not joined.
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
