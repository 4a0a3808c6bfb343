//! The waits of a domain's thread: for events of its completion queues, and for wakers.

use crate::device::Device;
use crate::handles::Channel;
use dunlin_fabric::{Armed, Host, Nanos, OtherDomain, RealHost, WaitMode, Wake, Waker};
use dunlin_fabric_control::{LinkEvents, Reactor, Watched};
use rustix::event::epoll::EventFlags;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::fd::OwnedFd;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The longest sleep, in nanoseconds. Nothing relies on it; it bounds the harm of a driver's bug.
const LONGEST: Nanos = 200_000_000;

/// The state that a domain shares with its wakers.
#[derive(Debug)]
pub(crate) struct DomainWaiter {
    channel: Channel,
    call: OwnedFd,
    news: AtomicU64,
    /// Whether the channel was found readable and its events have not been taken since.
    has_events: AtomicBool,
    other: OtherDomain,
}

impl DomainWaiter {
    pub(crate) fn new(device: &Arc<Device>) -> io::Result<Arc<Self>> {
        let call = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let channel = Channel::new(device)?;
        Ok(Arc::new(DomainWaiter {
            channel,
            call,
            news: AtomicU64::new(0),
            has_events: AtomicBool::new(false),
            other: OtherDomain::default(),
        }))
    }

    /// Returns the channel, for creating completion queues.
    pub(crate) fn channel(&self) -> &Channel {
        &self.channel
    }

    /// Ends the current or next sleep.
    pub(crate) fn wake(&self) {
        // The counter can only be full after 2^64 unread calls; the sleep ends in that case too.
        let _ = rustix::io::write(&self.call, &1u64.to_ne_bytes());
    }

    /// Returns the domain whose thread the next event wakes.
    pub(crate) fn other(&self) -> &OtherDomain {
        &self.other
    }

    /// Returns the number of notifications so far.
    #[inline]
    pub(crate) fn news(&self) -> u64 {
        self.news.load(Ordering::Acquire)
    }

    /// Returns, and resets, whether events are to be taken from the channel.
    pub(crate) fn take_has_events(&self) -> bool {
        self.has_events.swap(false, Ordering::AcqRel)
    }

    /// Sleeps until `is_over` returns true, or until `until`; returns whether it did. Code that makes the
    /// condition true must notify this value.
    pub(crate) fn rest_unless(&self, is_over: impl Fn() -> bool, until: Nanos) -> bool {
        while !is_over() {
            if RealHost.now() >= until {
                return false;
            }
            self.rest(until);
        }
        // This sleep may have consumed a wake-up meant for another thread.
        self.wake();
        true
    }

    /// Sleeps no longer than `until`.
    pub(crate) fn rest(&self, until: Nanos) -> Wake {
        let left = until.saturating_sub(RealHost.now()).min(LONGEST);
        let timeout = Timespec { tv_sec: 0, tv_nsec: left as _ };
        let channel = self.channel.descriptor();
        let mut descriptors =
            [PollFd::new(&self.call, PollFlags::IN), PollFd::from_borrowed_fd(channel, PollFlags::IN)];
        match rustix::event::poll(&mut descriptors, Some(&timeout)) {
            Ok(0) => return Wake::TimedOut,
            Ok(_) => {}
            // Interrupted: the caller polls again.
            Err(_) => return Wake::Arrived,
        }
        if !descriptors[0].revents().is_empty() {
            // Another waiter may have read it; then the read fails.
            let _ = rustix::io::read(&self.call, &mut [0; 8]);
        }
        if !descriptors[1].revents().is_empty() {
            self.has_events.store(true, Ordering::Release);
        }
        Wake::Arrived
    }
}

impl LinkEvents for DomainWaiter {
    fn tell_news(&self) {
        self.news.fetch_add(1, Ordering::AcqRel);
        self.wake();
        self.other.wake();
    }
}

/// The control thread watches the channel of a domain whose events wake the thread of another one.
impl Watched for DomainWaiter {
    fn serve(self: Arc<Self>, _: &Arc<Reactor>, _: u64, _: EventFlags, _: &mut [u8]) {
        self.has_events.store(true, Ordering::Release);
        self.other.wake();
    }
}

/// Ends a domain's wait.
#[derive(Clone, Debug)]
pub struct RdmaWaker(pub(crate) Arc<DomainWaiter>);

impl Waker for RdmaWaker {
    fn wake(&self) {
        self.0.wake();
    }

    fn wait(&self, armed: Armed, until: Nanos) -> Wake {
        if armed.mode == WaitMode::Busy {
            return Wake::Arrived;
        }
        self.0.rest(until)
    }
}
