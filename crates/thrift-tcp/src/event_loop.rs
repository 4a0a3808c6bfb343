//! A thread of the server with its connections.

use crate::incoming::STEP;
use crate::peer::{End, Peer};
use crate::server::{DRAINING, RUNNING, STOPPING, Shared};
use dunlin_thrift_core::Processor;
use rustix::buffer::spare_capacity;
use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Event tokens other than connections, whose tokens count from 0.
const LISTENER: u64 = u64::MAX;
const BELL: u64 = u64::MAX - 1;
const TIMER: u64 = u64::MAX - 2;

/// The number of events taken at a time.
const EVENTS: usize = 64;
/// The number of connections accepted at a time.
const ACCEPTS: usize = 16;

/// The channel through which other threads reach a thread.
#[derive(Debug)]
pub(crate) struct Mailbox {
    bell: OwnedFd,
    accepted: Mutex<Vec<(TcpStream, SocketAddr)>>,
    /// The number of connections that the thread owns or will own.
    connections: AtomicUsize,
}

impl Mailbox {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Mailbox {
            bell: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            accepted: Mutex::default(),
            connections: AtomicUsize::new(0),
        })
    }

    /// Wakes the thread.
    pub(crate) fn ring(&self) {
        // Fails only if a wake-up is already pending.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }
}

pub(crate) struct EventLoop<P> {
    shared: Arc<Shared<P>>,
    number: usize,
    epoll: OwnedFd,
    timer: OwnedFd,
    peers: Vec<Option<Peer>>,
    free: Vec<usize>,
    /// A receive buffer shared by all connections.
    scratch: Vec<u8>,
    /// Whether the listener is in the epoll set.
    listening: bool,
}

impl<P: Processor> EventLoop<P> {
    pub(crate) fn new(shared: Arc<Shared<P>>, number: usize) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let mailbox = &shared.mailboxes[number];
        epoll::add(&epoll, &mailbox.bell, epoll::EventData::new_u64(BELL), epoll::EventFlags::IN)?;
        // A periodic timer, so that waiting for events needs no timeout.
        let timer =
            timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
        let shortest = shared.options.idle_timeout.min(shared.options.stall_timeout);
        let tick = (shortest / 4).clamp(Duration::from_millis(5), Duration::from_secs(1));
        let tick = Timespec { tv_sec: tick.as_secs() as _, tv_nsec: tick.subsec_nanos().into() };
        let tick = Itimerspec { it_interval: tick, it_value: tick };
        timerfd_settime(&timer, TimerfdTimerFlags::empty(), &tick)?;
        epoll::add(&epoll, &timer, epoll::EventData::new_u64(TIMER), epoll::EventFlags::IN)?;
        let mut this = EventLoop {
            shared,
            number,
            epoll,
            timer,
            peers: Vec::new(),
            free: Vec::new(),
            scratch: Vec::with_capacity(STEP),
            listening: false,
        };
        this.listen()?;
        Ok(this)
    }

    fn listen(&mut self) -> io::Result<()> {
        // Wakes only one of the waiting threads.
        let flags = epoll::EventFlags::IN | epoll::EventFlags::EXCLUSIVE;
        epoll::add(&self.epoll, &self.shared.listener, epoll::EventData::new_u64(LISTENER), flags)?;
        self.listening = true;
        Ok(())
    }

    fn stop_listening(&mut self) {
        if std::mem::take(&mut self.listening)
            && let Err(error) = epoll::delete(&self.epoll, &self.shared.listener)
        {
            tracing::error!("the listener cannot be taken out of an epoll set: {error}");
        }
    }

    pub(crate) fn run(mut self) {
        let mut events = Vec::with_capacity(EVENTS);
        let mut draining = false;
        loop {
            let until = if draining { self.shared.drain_until() } else { None };
            let left = until.map(|until| {
                let left = until.saturating_duration_since(Instant::now());
                Timespec { tv_sec: left.as_secs() as _, tv_nsec: left.subsec_nanos().into() }
            });
            match epoll::wait(&self.epoll, spare_capacity(&mut events), left.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => {
                    tracing::error!("a thread of the TCP server ends, as it cannot wait for events: {error}");
                    return;
                }
            }
            let now = Instant::now();
            for event in events.drain(..) {
                match event.data.u64() {
                    LISTENER => self.accept(now),
                    BELL => self.collect(now),
                    TIMER => self.tick(now),
                    number => self.turn(number as usize, event.flags, now),
                }
            }
            match self.shared.phase() {
                RUNNING => {}
                DRAINING => {
                    if !draining {
                        draining = true;
                        self.drain(now);
                    }
                    let late = until.is_some_and(|until| now >= until);
                    if late || self.peers.len() == self.free.len() {
                        return;
                    }
                }
                STOPPING.. => return,
            }
        }
    }

    /// Accepts connections and gives each to the thread with the fewest connections.
    fn accept(&mut self, now: Instant) {
        if self.shared.phase() != RUNNING {
            return self.stop_listening();
        }
        for _ in 0..ACCEPTS {
            let (stream, address) = match self.shared.listener.accept() {
                Ok(accepted) => accepted,
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock => return,
                    ErrorKind::ConnectionAborted | ErrorKind::Interrupted => continue,
                    _ => {
                        tracing::error!("no connection can be accepted, trying again soon: {error}");
                        self.stop_listening();
                        return;
                    }
                },
            };
            let most = self.shared.options.max_connections;
            if self.shared.connections.fetch_add(1, Ordering::Relaxed) >= most {
                self.shared.connections.fetch_sub(1, Ordering::Relaxed);
                tracing::warn!(
                    "the connection of {address} is refused: {most} are open, max_connections allows no more"
                );
                continue;
            }
            let mailboxes = &self.shared.mailboxes;
            let load = |number: &usize| mailboxes[*number].connections.load(Ordering::Relaxed);
            let others = (0..mailboxes.len()).filter(|number| *number != self.number);
            let number = std::iter::once(self.number).chain(others).min_by_key(load).unwrap_or(self.number);
            mailboxes[number].connections.fetch_add(1, Ordering::Relaxed);
            if number == self.number {
                self.adopt(stream, address, now);
            } else {
                let mut accepted = mailboxes[number].accepted.lock().unwrap_or_else(PoisonError::into_inner);
                accepted.push((stream, address));
                drop(accepted);
                mailboxes[number].ring();
            }
        }
    }

    /// Takes the connections that other threads have accepted for this one.
    fn collect(&mut self, now: Instant) {
        let mailbox = &self.shared.mailboxes[self.number];
        // Fails only after a spurious event.
        let _ = rustix::io::read(&mailbox.bell, &mut [0; 8]);
        let accepted = std::mem::take(&mut *mailbox.accepted.lock().unwrap_or_else(PoisonError::into_inner));
        for (stream, address) in accepted {
            self.adopt(stream, address, now);
        }
    }

    fn adopt(&mut self, stream: TcpStream, address: SocketAddr, now: Instant) {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.peers.push(None);
            self.peers.len() - 1
        });
        let session = self.shared.sessions.fetch_add(1, Ordering::Relaxed);
        let mut peer = Peer::new(stream, address, session, now);
        let added =
            peer.stream.set_nonblocking(true).and_then(|()| peer.stream.set_nodelay(true)).and_then(|()| {
                peer.interest = epoll::EventFlags::IN;
                let data = epoll::EventData::new_u64(slot as u64);
                Ok(epoll::add(&self.epoll, &peer.stream, data, peer.interest)?)
            });
        self.peers[slot] = Some(peer);
        if let Err(error) = added {
            self.close(slot, End::Failed(error));
        }
    }

    fn close(&mut self, slot: usize, end: End) {
        let Some(peer) = self.peers[slot].take() else { return };
        if let End::Failed(error) = end {
            tracing::debug!("the connection of {} broke: {error}", peer.address);
        }
        // Closing the socket removes it from the epoll set.
        drop(peer);
        self.free.push(slot);
        self.shared.connections.fetch_sub(1, Ordering::Relaxed);
        self.shared.mailboxes[self.number].connections.fetch_sub(1, Ordering::Relaxed);
    }

    /// Handles a connection's events and updates its epoll interest.
    fn turn(&mut self, slot: usize, events: epoll::EventFlags, now: Instant) {
        let Shared { service, options, .. } = &*self.shared;
        // The event may belong to a connection that has ended since.
        let Some(peer) = self.peers.get_mut(slot).and_then(Option::as_mut) else { return };
        let turned = peer.turn(events, service, options, &mut self.scratch, now);
        self.settle(slot, turned);
    }

    fn settle(&mut self, slot: usize, turned: Result<(), End>) {
        let Some(peer) = &mut self.peers[slot] else { return };
        let settled = turned.and_then(|()| {
            let wants = peer.wants(&self.shared.options);
            if wants != peer.interest {
                let data = epoll::EventData::new_u64(slot as u64);
                epoll::modify(self.epoll.as_fd(), &peer.stream, data, wants).map_err(io::Error::from)?;
                peer.interest = wants;
            }
            Ok(())
        });
        if let Err(end) = settled {
            self.close(slot, end);
        }
    }

    /// Closes overdue connections and frees unused memory.
    fn tick(&mut self, now: Instant) {
        // Fails only if this tick was read together with another one.
        let _ = rustix::io::read(&self.timer, &mut [0; 8]);
        for slot in 0..self.peers.len() {
            let Some(peer) = &mut self.peers[slot] else { continue };
            if peer.overdue(&self.shared.options, now) {
                tracing::debug!("the connection of {} ends: nothing came of it for too long", peer.address);
                self.close(slot, End::Done);
            } else {
                peer.shrink();
            }
        }
        if !self.listening
            && self.shared.phase() == RUNNING
            && let Err(error) = self.listen()
        {
            tracing::error!("the listener cannot be put into an epoll set: {error}");
        }
    }

    /// Processes the bytes that have arrived, and stops receiving.
    fn drain(&mut self, now: Instant) {
        self.stop_listening();
        self.collect(now);
        for slot in 0..self.peers.len() {
            let Shared { service, options, .. } = &*self.shared;
            let Some(peer) = &mut self.peers[slot] else { continue };
            let turned = peer.drain(service, options, &mut self.scratch, now);
            self.settle(slot, turned);
        }
    }
}

impl<P> Drop for EventLoop<P> {
    fn drop(&mut self) {
        let open = self.peers.iter().flatten().count();
        self.shared.connections.fetch_sub(open, Ordering::Relaxed);
    }
}
