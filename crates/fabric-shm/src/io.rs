//! The control thread: one for each fabric, which sleeps in `epoll` over all control sockets and serves their
//! owners: listeners, greetings (`accept`) and links (`link`). It reads control messages and descriptors, and
//! detects a peer's death, which the kernel reports as a hang-up as soon as the process is gone. No call of the
//! data path waits for it.

use crate::config::ShmConfig;
use crate::frame::READ_BUFFER;
use crate::watchdog::Watchdog;
use dunlin_fabric::{Host, RealHost};
use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The interval at which overdue greetings are checked, in nanoseconds, while there are any.
const TICK: u64 = 250_000_000;

const WAKE: u64 = 0;

/// Events of a socket that is read.
pub(crate) const READ: EventFlags = EventFlags::IN.union(EventFlags::RDHUP);

/// The owner of a control socket.
pub(crate) trait Watched: Send + Sync + std::fmt::Debug {
    /// Handles events of the socket, in the control thread. `number` is the owner's; `buffer` has room for a
    /// frame and one byte more.
    fn serve(self: Arc<Self>, number: u64, flags: EventFlags, buffer: &mut [u8]);

    /// Returns the time at which the control thread calls [`expire`](Watched::expire).
    fn deadline(&self) -> Option<u64> {
        None
    }

    /// Handles the deadline's passing.
    fn expire(&self, _number: u64) {}

    /// Handles the end of the control thread.
    fn end(&self, _reason: &str) {}
}

/// State shared by the control thread and the handles.
#[derive(Debug)]
pub(crate) struct Io {
    epoll: OwnedFd,
    watchdog: Arc<Watchdog>,
    config: ShmConfig,
    numbers: AtomicU64,
    stopped: AtomicBool,
    entries: Mutex<BTreeMap<u64, Arc<dyn Watched>>>,
    /// The number of entries with deadlines. Only the control thread changes it.
    timed: AtomicUsize,
}

/// Keeps the control thread running; dropping the last handle stops it.
#[derive(Debug)]
pub(crate) struct IoHandle(Arc<Io>);

impl IoHandle {
    pub(crate) fn start(config: ShmConfig) -> io::Result<Arc<Self>> {
        let io = Arc::new(Io {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            watchdog: Watchdog::new()?,
            config,
            numbers: AtomicU64::new(WAKE + 1),
            stopped: AtomicBool::new(false),
            entries: Mutex::default(),
            timed: AtomicUsize::new(0),
        });
        epoll::add(&io.epoll, io.watchdog.descriptor(), EventData::new_u64(WAKE), EventFlags::IN)?;
        let thread = Arc::clone(&io);
        RealHost.spawn("dunlin-shm-control", Box::new(move || thread.run()))?;
        Ok(Arc::new(IoHandle(io)))
    }

    pub(crate) fn io(&self) -> &Arc<Io> {
        &self.0
    }
}

impl Drop for IoHandle {
    fn drop(&mut self) {
        self.0.stopped.store(true, Ordering::Release);
        self.0.watchdog.call();
    }
}

impl Io {
    fn entries(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<dyn Watched>>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a number that no other link or listener of this fabric has.
    pub(crate) fn next_number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn watchdog(&self) -> &Arc<Watchdog> {
        &self.watchdog
    }

    pub(crate) fn config(&self) -> &ShmConfig {
        &self.config
    }

    /// Returns the number of owners with deadlines.
    pub(crate) fn timed(&self) -> usize {
        self.timed.load(Ordering::Relaxed)
    }

    /// Starts to watch a socket for its owner, which has this number.
    pub(crate) fn add(
        &self,
        number: u64,
        socket: &OwnedFd,
        flags: EventFlags,
        owner: Arc<dyn Watched>,
    ) -> io::Result<()> {
        epoll::add(&self.epoll, socket, EventData::new_u64(number), flags)?;
        if owner.deadline().is_some() {
            self.timed.fetch_add(1, Ordering::Relaxed);
        }
        self.entries().insert(number, owner);
        Ok(())
    }

    /// Changes the events for which a socket is watched. Its end is detected in any case.
    pub(crate) fn set_events(&self, number: u64, socket: &OwnedFd, flags: EventFlags) {
        if let Err(error) = epoll::modify(&self.epoll, socket, EventData::new_u64(number), flags) {
            // A link that has just ended is no longer watched.
            tracing::debug!(%error, "a control socket is not watched");
        }
    }

    /// Stops to watch a socket. Does nothing for a socket that is not watched: the control thread may have
    /// removed it.
    pub(crate) fn remove(&self, number: u64, socket: &OwnedFd) {
        let _ = epoll::delete(&self.epoll, socket);
        let owner = self.entries().remove(&number);
        if owner.is_some_and(|owner| owner.deadline().is_some()) {
            self.timed.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn run(&self) {
        let mut events: Vec<epoll::Event> = Vec::with_capacity(64);
        let mut buffer = vec![0; READ_BUFFER];
        let mut next_tick = u64::MAX;
        let mut next_watch = u64::MAX;
        while !self.stopped.load(Ordering::Acquire) {
            let timed = self.timed() > 0;
            if !timed {
                next_tick = u64::MAX;
            } else if next_tick == u64::MAX {
                next_tick = RealHost.now() + TICK;
            }
            let watch = self.watchdog.period();
            next_watch = watch.map_or(u64::MAX, |period| next_watch.min(RealHost.now() + period));
            let tick = watch.unwrap_or(TICK).min(if timed { TICK } else { u64::MAX });
            let timeout = Timespec { tv_sec: 0, tv_nsec: tick as _ };
            events.clear();
            let spare = rustix::buffer::spare_capacity(&mut events);
            match epoll::wait(&self.epoll, spare, (timed || watch.is_some()).then_some(&timeout)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => {
                    tracing::error!(%error, "the control thread cannot wait for its sockets and ends");
                    break;
                }
            }
            for event in &events {
                if event.data.u64() == WAKE {
                    self.watchdog.heard();
                    continue;
                }
                self.handle(event.data.u64(), event.flags, &mut buffer);
            }
            if next_watch != u64::MAX && RealHost.now() >= next_watch {
                next_watch = u64::MAX;
                self.watchdog.tick();
            }
            if next_tick != u64::MAX && RealHost.now() >= next_tick {
                next_tick = u64::MAX;
                self.expire_overdue();
            }
        }
        self.watchdog.end();
        let entries = std::mem::take(&mut *self.entries());
        for owner in entries.into_values() {
            owner.end("the fabric was closed");
        }
    }

    fn handle(&self, number: u64, flags: EventFlags, buffer: &mut [u8]) {
        // The map is not locked while an owner serves its socket: serving may add and remove entries.
        let owner = self.entries().get(&number).map(Arc::clone);
        if let Some(owner) = owner {
            owner.serve(number, flags, buffer);
        }
    }

    fn expire_overdue(&self) {
        let now = RealHost.now();
        let is_overdue = |owner: &Arc<dyn Watched>| owner.deadline().is_some_and(|deadline| deadline <= now);
        let overdue: Vec<(u64, Arc<dyn Watched>)> = self
            .entries()
            .iter()
            .filter(|(_, owner)| is_overdue(owner))
            .map(|(number, owner)| (*number, Arc::clone(owner)))
            .collect();
        for (number, owner) in overdue {
            owner.expire(number);
        }
    }
}
