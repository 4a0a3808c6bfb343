//! Where a domain's thread waits: for its completion queue, whose descriptor also tells of whatever the provider has to do, and
//! for those who call it. Where there is no descriptor (datagrams), it naps and looks.

use crate::handles::CompletionQueue;
use crate::keeper::Attendance;
use dunlin_fabric::{Armed, Host, Nanos, RealHost, WaitMode, Wake, Waker};
use dunlin_fabric_control::News;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::fd::OwnedFd;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// The longest sleep: nothing relies on it, but no bug of a provider hangs us.
const LONGEST: Nanos = 200_000_000;

/// The first nap, of a thread that waits where nothing tells it of completions; each that is in vain is followed by one twice as
/// long, up to the longest.
const FIRST_NAP: Nanos = 20_000;
const LONGEST_NAP: Nanos = 1_000_000;

/// What a domain shares with those who wake it.
#[derive(Debug)]
pub(crate) struct Attention {
    /// There from the first queue pair on.
    queue: OnceLock<Arc<CompletionQueue>>,
    pub(crate) attendance: Attendance,
    call: OwnedFd,
    news: AtomicU64,
    /// Of the next nap, in nanoseconds.
    nap: AtomicU64,
}

/// How a sleep ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rest {
    /// Somebody called.
    Called,
    /// The provider has something to do, of which something may be for us.
    Progress,
    /// The time is over.
    TimedOut,
}

impl Attention {
    pub(crate) fn new() -> io::Result<Arc<Self>> {
        let call = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let nap = AtomicU64::new(FIRST_NAP);
        Ok(Arc::new(Attention {
            queue: OnceLock::new(),
            attendance: Attendance::default(),
            call,
            news: AtomicU64::new(0),
            nap,
        }))
    }

    /// Where endpoints complete, if there is a queue pair yet.
    #[inline]
    pub(crate) fn queue(&self) -> Option<&Arc<CompletionQueue>> {
        self.queue.get()
    }

    /// The same for who needs it.
    pub(crate) fn open_queue(&self) -> io::Result<&Arc<CompletionQueue>> {
        self.queue().ok_or_else(|| io::Error::other("there is no queue to complete to yet"))
    }

    /// The same, made by that if there is none.
    pub(crate) fn queue_or(
        &self,
        make: impl FnOnce() -> io::Result<CompletionQueue>,
    ) -> io::Result<&Arc<CompletionQueue>> {
        if let Some(queue) = self.queue.get() {
            return Ok(queue);
        }
        // Only the domain's thread comes here.
        let queue = self.queue.get_or_init({
            let queue = Arc::new(make()?);
            || queue
        });
        // Who sleeps there did not know of it.
        self.wake();
        Ok(queue)
    }

    /// Ends the current or next sleep.
    pub(crate) fn wake(&self) {
        // Full only after 2^64 calls that nobody heard: then the sleep ends as well.
        let _ = rustix::io::write(&self.call, &1u64.to_ne_bytes());
    }

    /// How often there was news.
    #[inline]
    pub(crate) fn news(&self) -> u64 {
        self.news.load(Ordering::Acquire)
    }

    /// Something has come: naps are short again.
    #[inline]
    pub(crate) fn has_come(&self) {
        if self.nap.load(Ordering::Relaxed) != FIRST_NAP {
            self.nap.store(FIRST_NAP, Ordering::Relaxed);
        }
    }

    /// Sleeps until then at most. Whoever sleeps here makes progress when it is woken, so the keeper need not.
    pub(crate) fn rest(&self, until: Nanos) -> Rest {
        let left = until.saturating_sub(RealHost.now()).min(LONGEST);
        let Some(queue) = self.queue() else { return self.rest_alone(left) };
        let Some(descriptor) = queue.descriptor() else { return self.nap(left) };
        let may_sleep = queue.may_sleep();
        let timeout = Timespec { tv_sec: 0, tv_nsec: if may_sleep { left as _ } else { 0 } };
        let mut descriptors =
            [PollFd::new(&self.call, PollFlags::IN), PollFd::from_borrowed_fd(descriptor, PollFlags::IN)];
        self.attendance.falls_asleep();
        let polled = rustix::event::poll(&mut descriptors, Some(&timeout));
        self.attendance.is_awake();
        let (called, progress) = (!descriptors[0].revents().is_empty(), !descriptors[1].revents().is_empty());
        match polled {
            Ok(0) if may_sleep || left == 0 => Rest::TimedOut,
            Ok(0) => Rest::Progress,
            Ok(_) if called => {
                // Another waiter may have taken it; then there is nothing to take.
                let _ = rustix::io::read(&self.call, &mut [0; 8]);
                Rest::Called
            }
            Ok(_) if progress => Rest::Progress,
            // Interrupted: look again.
            _ => Rest::Called,
        }
    }

    /// Sleeps a little, and then there may be something to do.
    fn nap(&self, left: Nanos) -> Rest {
        let nap = self.nap.load(Ordering::Relaxed);
        self.nap.store((nap * 2).min(LONGEST_NAP), Ordering::Relaxed);
        match self.rest_alone(left.min(nap)) {
            Rest::TimedOut if left > nap => Rest::Progress,
            other => other,
        }
    }

    /// Sleeps where only a call is heard.
    fn rest_alone(&self, left: Nanos) -> Rest {
        let timeout = Timespec { tv_sec: 0, tv_nsec: left as _ };
        let mut descriptors = [PollFd::new(&self.call, PollFlags::IN)];
        match rustix::event::poll(&mut descriptors, Some(&timeout)) {
            Ok(0) => Rest::TimedOut,
            Ok(_) => {
                let _ = rustix::io::read(&self.call, &mut [0; 8]);
                Rest::Called
            }
            _ => Rest::Called,
        }
    }
}

impl News for Attention {
    fn tell_news(&self) {
        self.news.fetch_add(1, Ordering::AcqRel);
        self.wake();
    }
}

/// Ends a domain's wait.
#[derive(Clone, Debug)]
pub struct OfiWaker(pub(crate) Arc<Attention>);

impl Waker for OfiWaker {
    fn wake(&self) {
        self.0.wake();
    }

    fn wait(&self, armed: Armed, until: Nanos) -> Wake {
        if armed.mode == WaitMode::Busy {
            return Wake::Arrived;
        }
        loop {
            // Without the domain nothing can be taken, but progress can be made.
            if self.0.queue().is_some_and(|queue| queue.progress()) {
                return Wake::Arrived;
            }
            match self.0.rest(until) {
                Rest::Called => return Wake::Arrived,
                Rest::TimedOut => return Wake::TimedOut,
                Rest::Progress => {}
            }
        }
    }
}
