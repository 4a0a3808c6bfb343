//! The reactor: the control thread of a fabric. It sleeps in `epoll` over all control sockets and serves their owners:
//! listeners, greetings and links. A peer's death arrives as a hang-up of its socket. No call of the data path waits
//! for this thread.

use crate::backend::lock;
use dunlin_fabric::{Host, Nanos, RealHost};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// The interval at which overdue greetings are checked, in nanoseconds, while there are any.
const TICK: Nanos = 250_000_000;
const SECOND: Nanos = 1_000_000_000;

const WAKE: u64 = 0;

/// Events of a socket that is read.
pub const READ: EventFlags = EventFlags::IN.union(EventFlags::RDHUP);
/// Events of a socket whose peer is gone.
pub const ENDED: EventFlags = EventFlags::HUP.union(EventFlags::RDHUP).union(EventFlags::ERR);

/// The owner of a control socket. The reactor's thread calls all methods.
pub trait Watched: Debug + Send + Sync {
    /// Handles events of the socket. `number` is the owner's; `buffer` is the reactor's, of any content.
    fn serve(self: Arc<Self>, reactor: &Arc<Reactor>, number: u64, flags: EventFlags, buffer: &mut [u8]);

    /// Returns the time at which the reactor calls [`expire`](Watched::expire). It does not change.
    fn deadline(&self) -> Option<Nanos> {
        None
    }

    /// Handles the deadline's passing.
    fn expire(&self, _reactor: &Reactor, _number: u64) {}

    /// Handles the loss of this side's device.
    fn lose_device(&self, _reason: &str) {}

    /// Handles the end of the reactor.
    fn end(&self, _reason: &str) {}
}

/// Work of the control thread beside its sockets. The thread calls all methods.
pub trait Chores: Debug + Send + Sync {
    /// Returns the latest time of the next [`work`](Chores::work), or `None` if there is no work. The reactor asks
    /// whenever it has served sockets or was woken.
    fn due(&self) -> Option<Nanos> {
        None
    }

    /// Does the work that is due.
    fn work(&self, _reactor: &Reactor) {}

    /// Handles the end of the reactor, before the owners of sockets.
    fn end(&self) {}
}

/// Ends the sleep of a reactor, from any thread.
#[derive(Debug)]
pub struct Waker(OwnedFd);

impl Waker {
    /// Makes a waker.
    pub fn new() -> io::Result<Arc<Self>> {
        Ok(Arc::new(Waker(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)))
    }

    /// Ends the present sleep, or the next. Returns whether that succeeded. Does not block.
    pub fn wake(&self) -> bool {
        let called = rustix::io::write(&self.0, &1u64.to_ne_bytes());
        if let Err(error) = &called {
            tracing::warn!(%error, "the control thread cannot be woken");
        }
        called.is_ok()
    }

    fn reset(&self) {
        // Fails if the descriptor was reset before.
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }
}

/// State shared by the control thread and the handles.
#[derive(Debug)]
pub struct Reactor {
    epoll: OwnedFd,
    waker: Arc<Waker>,
    chores: Arc<dyn Chores>,
    numbers: AtomicU64,
    stopped: AtomicBool,
    entries: Mutex<BTreeMap<u64, Arc<dyn Watched>>>,
    /// The number of entries with deadlines.
    timed: AtomicUsize,
}

/// Keeps the control thread running. Dropping it stops the thread and does not wait for it.
#[derive(Debug)]
pub struct ReactorHandle(Arc<Reactor>);

impl ReactorHandle {
    /// Returns the reactor.
    pub fn reactor(&self) -> &Arc<Reactor> {
        &self.0
    }
}

impl Drop for ReactorHandle {
    fn drop(&mut self) {
        self.0.stopped.store(true, Ordering::Release);
        self.0.waker.wake();
    }
}

impl Reactor {
    /// Starts a control thread of this name. Owners of sockets get a buffer of `buffer` bytes.
    pub fn start(
        thread: &'static str,
        waker: Arc<Waker>,
        chores: Arc<dyn Chores>,
        buffer: usize,
    ) -> io::Result<ReactorHandle> {
        let reactor = Arc::new(Reactor {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            waker,
            chores,
            numbers: AtomicU64::new(WAKE + 1),
            stopped: AtomicBool::new(false),
            entries: Mutex::default(),
            timed: AtomicUsize::new(0),
        });
        epoll::add(&reactor.epoll, &reactor.waker.0, EventData::new_u64(WAKE), EventFlags::IN)?;
        let running = Arc::clone(&reactor);
        RealHost.spawn(thread, Box::new(move || running.run(buffer)))?;
        Ok(ReactorHandle(reactor))
    }

    fn entries(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<dyn Watched>>> {
        lock(&self.entries)
    }

    /// Returns a number that no other owner at this reactor has.
    pub fn next_number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns the number of owners with deadlines.
    pub fn timed(&self) -> usize {
        self.timed.load(Ordering::Relaxed)
    }

    /// Starts to watch a socket for its owner, which has this number. The control thread adds owners with deadlines: it
    /// does not see one that another thread adds before its next event.
    pub fn add(
        &self,
        number: u64,
        socket: impl AsFd,
        flags: EventFlags,
        owner: Arc<dyn Watched>,
    ) -> io::Result<()> {
        if owner.deadline().is_some() {
            self.timed.fetch_add(1, Ordering::Relaxed);
        }
        // The first event may come before this function returns.
        self.entries().insert(number, owner);
        let added = epoll::add(&self.epoll, socket, EventData::new_u64(number), flags);
        added.inspect_err(|_| self.forget(number)).map_err(io::Error::from)
    }

    /// Changes the events for which a socket is watched. Its end is detected in any case.
    pub fn set_events(&self, number: u64, socket: impl AsFd, flags: EventFlags) {
        if let Err(error) = epoll::modify(&self.epoll, socket, EventData::new_u64(number), flags) {
            // Fails if the socket is not watched yet, or no longer.
            tracing::debug!(%error, "a control socket is not watched");
        }
    }

    /// Stops to watch a socket. Does nothing for a socket that is not watched: the control thread may have removed it.
    pub fn remove(&self, number: u64, socket: impl AsFd) {
        let _ = epoll::delete(&self.epoll, socket);
        self.forget(number);
    }

    fn forget(&self, number: u64) {
        let owner = self.entries().remove(&number);
        if owner.is_some_and(|owner| owner.deadline().is_some()) {
            self.timed.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Tells all owners that this side's device is unusable.
    pub fn lose_device(&self, reason: &str) {
        // The map is not locked meanwhile: an owner may remove itself.
        let owners: Vec<Arc<dyn Watched>> = self.entries().values().cloned().collect();
        owners.iter().for_each(|owner| owner.lose_device(reason));
    }

    fn run(self: Arc<Self>, buffer: usize) {
        let mut events: Vec<epoll::Event> = Vec::with_capacity(64);
        let mut buffer = vec![0; buffer];
        let mut next_tick = None;
        while !self.stopped.load(Ordering::Acquire) {
            let due = self.chores.due();
            next_tick = (self.timed() > 0).then(|| next_tick.unwrap_or_else(|| RealHost.now() + TICK));
            let until = due.into_iter().chain(next_tick).min();
            let timeout = until.map(|until| {
                let left = until.saturating_sub(RealHost.now());
                Timespec { tv_sec: (left / SECOND) as _, tv_nsec: (left % SECOND) as _ }
            });
            events.clear();
            let spare = rustix::buffer::spare_capacity(&mut events);
            match epoll::wait(&self.epoll, spare, timeout.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => {
                    tracing::error!(%error, "the control thread cannot wait for its sockets and ends");
                    break;
                }
            }
            for event in &events {
                match event.data.u64() {
                    WAKE => self.waker.reset(),
                    number => self.serve(number, event.flags, &mut buffer),
                }
            }
            if due.is_some_and(|due| RealHost.now() >= due) {
                self.chores.work(&self);
            }
            if next_tick.is_some_and(|tick| RealHost.now() >= tick) {
                next_tick = None;
                self.expire_overdue();
            }
        }
        self.chores.end();
        let entries = std::mem::take(&mut *self.entries());
        for owner in entries.into_values() {
            owner.end("the fabric was closed");
        }
    }

    fn serve(self: &Arc<Self>, number: u64, flags: EventFlags, buffer: &mut [u8]) {
        // The map is not locked while an owner serves its socket: serving may add and remove entries.
        let owner = self.entries().get(&number).map(Arc::clone);
        if let Some(owner) = owner {
            owner.serve(self, number, flags, buffer);
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
            owner.expire(self, number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::unix;
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::time::Duration;

    /// The longest wait for an event that comes at once, also on a machine that is busy.
    const HANG: Duration = Duration::from_secs(60);

    /// Reports what the reactor does with it.
    #[derive(Debug)]
    struct Reporter {
        says: Mutex<Sender<&'static str>>,
        socket: OwnedFd,
        deadline: Option<Nanos>,
    }

    impl Reporter {
        fn new(socket: OwnedFd, deadline: Option<Nanos>) -> (Arc<Self>, Receiver<&'static str>) {
            let (says, heard) = channel();
            (Arc::new(Reporter { says: Mutex::new(says), socket, deadline }), heard)
        }

        fn say(&self, word: &'static str) {
            // The test may have ended.
            let _ = lock(&self.says).send(word);
        }
    }

    impl Watched for Reporter {
        fn serve(self: Arc<Self>, reactor: &Arc<Reactor>, number: u64, flags: EventFlags, buffer: &mut [u8]) {
            let received = unix::receive(self.socket.as_fd(), buffer);
            let gone = flags.intersects(ENDED) || !matches!(received, Ok(unix::Received::Frame { .. }));
            if gone {
                reactor.remove(number, &self.socket);
            }
            self.say(if gone { "gone" } else { "read" });
        }
        fn deadline(&self) -> Option<Nanos> {
            self.deadline
        }
        fn expire(&self, reactor: &Reactor, number: u64) {
            reactor.remove(number, &self.socket);
            self.say("overdue");
        }
        fn lose_device(&self, reason: &str) {
            assert_eq!(reason, "unplugged");
            self.say("device");
        }
        fn end(&self, _: &str) {
            self.say("end");
        }
    }

    /// Work that is due once.
    #[derive(Debug)]
    struct Once {
        due: Mutex<Option<Nanos>>,
        ended: AtomicBool,
    }

    impl Chores for Once {
        fn due(&self) -> Option<Nanos> {
            *lock(&self.due)
        }
        fn work(&self, reactor: &Reactor) {
            *lock(&self.due) = None;
            reactor.lose_device("unplugged");
        }
        fn end(&self) {
            self.ended.store(true, Ordering::Release);
        }
    }

    fn start() -> (ReactorHandle, Arc<Waker>, Arc<Once>) {
        let chores = Arc::new(Once { due: Mutex::default(), ended: AtomicBool::new(false) });
        let waker = Waker::new().unwrap();
        let handle =
            Reactor::start("reactor-test", Arc::clone(&waker), Arc::clone(&chores) as _, 64).unwrap();
        (handle, waker, chores)
    }

    #[test]
    fn owners_hear_of_frames_the_peers_end_the_device_and_the_reactors_end() {
        let (handle, waker, chores) = start();
        let reactor = handle.reactor();
        let ((ours, theirs), (left, _stays)) = (unix::pair().unwrap(), unix::pair().unwrap());
        let (leaver, leavers) = Reporter::new(ours, None);
        let (stayer, stayers) = Reporter::new(left, None);
        reactor.add(reactor.next_number(), &leaver.socket, READ, leaver.clone()).unwrap();
        reactor.add(reactor.next_number(), &stayer.socket, READ, stayer.clone()).unwrap();
        unix::send(theirs.as_fd(), b"word", b"", None).unwrap();
        assert_eq!(leavers.recv_timeout(HANG), Ok("read"));
        drop(theirs);
        assert_eq!(leavers.recv_timeout(HANG), Ok("gone"));

        *lock(&chores.due) = Some(RealHost.now() + 1_000_000);
        assert!(waker.wake());
        assert_eq!(stayers.recv_timeout(HANG), Ok("device"));

        drop(handle);
        assert_eq!(stayers.recv_timeout(HANG), Ok("end"));
        assert!(chores.ended.load(Ordering::Acquire), "chores end before the owners");
        assert!(leavers.try_recv().is_err(), "an owner that was removed hears nothing");
    }

    #[test]
    fn only_owners_with_deadlines_are_counted_and_expire() {
        let (handle, _waker, _chores) = start();
        let reactor = handle.reactor();
        let ((ours, _theirs), (left, _stays)) = (unix::pair().unwrap(), unix::pair().unwrap());
        let (late, heard) = Reporter::new(ours, Some(RealHost.now()));
        let (plain, _) = Reporter::new(left, None);
        reactor.add(reactor.next_number(), &plain.socket, READ, plain.clone()).unwrap();
        assert_eq!(reactor.timed(), 0);
        // The thread that sleeps without a time limit begins to count it when an event wakes it.
        reactor.add(reactor.next_number(), &late.socket, READ, late.clone()).unwrap();
        reactor.waker.wake();
        assert_eq!(heard.recv_timeout(HANG), Ok("overdue"));
        assert_eq!(reactor.timed(), 0);
    }

    #[test]
    fn a_socket_that_cannot_be_watched_leaves_no_owner() {
        let (handle, _waker, _chores) = start();
        let reactor = handle.reactor();
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        let (ours, _theirs) = unix::pair().unwrap();
        let (owner, _heard) = Reporter::new(ours, Some(0));
        // The system watches no file of a disk.
        assert!(reactor.add(reactor.next_number(), &file, READ, owner.clone()).is_err());
        assert_eq!((reactor.timed(), Arc::strong_count(&owner)), (0, 1));
    }
}
