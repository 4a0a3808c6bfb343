//! The waits of a domain's thread: for its completion queue, whose descriptor also reports pending work of
//! the provider, and for wakers. Without a descriptor (datagrams), the thread takes short naps and polls.

use crate::handles::CompletionQueue;
use crate::progress_thread::Attendance;
use dunlin_fabric::{Armed, Host, Nanos, RealHost, WaitMode, Wake, Waker};
use dunlin_fabric_control::LinkEvents;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::fd::OwnedFd;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// The longest sleep, in nanoseconds. Nothing relies on it; it bounds the harm of a provider's bug.
const LONGEST: Nanos = 200_000_000;

/// The first nap of a thread without notice of completions, in nanoseconds. After each empty poll the nap
/// doubles, up to the longest.
const FIRST_NAP: Nanos = 20_000;
const LONGEST_NAP: Nanos = 1_000_000;
/// The longest sleep while connections are being made, in nanoseconds.
pub(crate) const CONNECTING_SLEEP: Nanos = 10_000_000;

/// The state that a domain shares with its wakers.
#[derive(Debug)]
pub(crate) struct DomainWaiter {
    /// Set from the first queue pair on.
    queue: OnceLock<Arc<CompletionQueue>>,
    pub(crate) attendance: Attendance,
    call: OwnedFd,
    news: AtomicU64,
    /// The length of the next nap, in nanoseconds.
    nap: AtomicU64,
}

/// The reason why a sleep ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rest {
    /// A waker.
    Called,
    /// The provider has work to do, some of which may concern this domain.
    Progress,
    /// The deadline passed.
    TimedOut,
}

impl DomainWaiter {
    pub(crate) fn new() -> io::Result<Arc<Self>> {
        let call = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let nap = AtomicU64::new(FIRST_NAP);
        Ok(Arc::new(DomainWaiter {
            queue: OnceLock::new(),
            attendance: Attendance::default(),
            call,
            news: AtomicU64::new(0),
            nap,
        }))
    }

    /// Returns the queue in which endpoints complete, if there is a queue pair yet.
    #[inline]
    pub(crate) fn queue(&self) -> Option<&Arc<CompletionQueue>> {
        self.queue.get()
    }

    /// Returns the queue, or an error if it does not exist yet.
    pub(crate) fn open_queue(&self) -> io::Result<&Arc<CompletionQueue>> {
        self.queue().ok_or_else(|| io::Error::other("there is no queue to complete to yet"))
    }

    /// Returns the queue; creates it with `make` if it does not exist yet.
    pub(crate) fn queue_or(
        &self,
        make: impl FnOnce() -> io::Result<CompletionQueue>,
    ) -> io::Result<&Arc<CompletionQueue>> {
        if let Some(queue) = self.queue.get() {
            return Ok(queue);
        }
        // Only the domain's thread calls this.
        let queue = self.queue.get_or_init({
            let queue = Arc::new(make()?);
            || queue
        });
        // Threads that already sleep do not know of the queue.
        self.wake();
        Ok(queue)
    }

    /// Ends the current or next sleep.
    pub(crate) fn wake(&self) {
        // The counter can only be full after 2^64 unread calls; the sleep ends in that case too.
        let _ = rustix::io::write(&self.call, &1u64.to_ne_bytes());
    }

    /// Returns the number of events so far.
    #[inline]
    pub(crate) fn news(&self) -> u64 {
        self.news.load(Ordering::Acquire)
    }

    /// Makes naps short again, because something has arrived.
    #[inline]
    pub(crate) fn has_come(&self) {
        if self.nap.load(Ordering::Relaxed) != FIRST_NAP {
            self.nap.store(FIRST_NAP, Ordering::Relaxed);
        }
    }

    /// Sleeps no longer than `until`. A thread that sleeps here makes progress when it wakes, so the keeper
    /// need not.
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
                // Another waiter may have read it; then the read fails.
                let _ = rustix::io::read(&self.call, &mut [0; 8]);
                Rest::Called
            }
            Ok(_) if progress => Rest::Progress,
            // Interrupted: the caller polls again.
            _ => Rest::Called,
        }
    }

    /// Naps, after which the provider may have work to do.
    fn nap(&self, left: Nanos) -> Rest {
        let nap = self.nap.load(Ordering::Relaxed);
        self.nap.store((nap * 2).min(LONGEST_NAP), Ordering::Relaxed);
        match self.rest_alone(left.min(nap)) {
            Rest::TimedOut if left > nap => Rest::Progress,
            other => other,
        }
    }

    /// Sleeps until a waker or for `left` nanoseconds.
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

impl LinkEvents for DomainWaiter {
    fn tell_news(&self) {
        self.news.fetch_add(1, Ordering::AcqRel);
        self.wake();
    }
}

/// Ends a domain's wait.
#[derive(Clone, Debug)]
pub struct OfiWaker(pub(crate) Arc<DomainWaiter>);

impl Waker for OfiWaker {
    fn wake(&self) {
        self.0.wake();
    }

    fn wait(&self, armed: Armed, until: Nanos) -> Wake {
        if armed.mode == WaitMode::Busy {
            return Wake::Arrived;
        }
        let soon = RealHost.now().saturating_add(CONNECTING_SLEEP);
        let is_short = armed.token != 0 && soon < until;
        loop {
            // Without the domain no completion can be taken, but the provider can make progress.
            if self.0.queue().is_some_and(|queue| queue.progress()) {
                return Wake::Arrived;
            }
            match self.0.rest(if is_short { soon } else { until }) {
                Rest::TimedOut if !is_short => return Wake::TimedOut,
                Rest::Progress if !is_short => {}
                Rest::Called | Rest::TimedOut | Rest::Progress => return Wake::Arrived,
            }
        }
    }
}
