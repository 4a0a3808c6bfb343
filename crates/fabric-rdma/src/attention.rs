//! Where a domain's thread waits: for events of its completion queues, and for those who call it.

use crate::device::Device;
use crate::handles::Channel;
use dunlin_fabric::{Armed, Host, Nanos, RealHost, WaitMode, Wake, Waker};
use dunlin_fabric_control::News;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::fd::OwnedFd;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The longest sleep: nothing relies on it, but no bug of a driver hangs us.
const LONGEST: Nanos = 200_000_000;

/// What a domain shares with those who wake it.
#[derive(Debug)]
pub(crate) struct Attention {
    channel: Channel,
    call: OwnedFd,
    news: AtomicU64,
    /// The channel was seen readable, and its events have not been taken since.
    has_events: AtomicBool,
}

impl Attention {
    pub(crate) fn new(device: &Arc<Device>) -> io::Result<Arc<Self>> {
        let call = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let channel = Channel::new(device)?;
        Ok(Arc::new(Attention { channel, call, news: AtomicU64::new(0), has_events: AtomicBool::new(false) }))
    }

    /// For making completion queues.
    pub(crate) fn channel(&self) -> &Channel {
        &self.channel
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

    /// Whether events are to be taken from the channel.
    pub(crate) fn take_has_events(&self) -> bool {
        self.has_events.swap(false, Ordering::AcqRel)
    }

    /// Sleeps until something is over, or until then at most; says whether it is over. Who is to be told of it tells news.
    pub(crate) fn rest_unless(&self, is_over: impl Fn() -> bool, until: Nanos) -> bool {
        while !is_over() {
            if RealHost.now() >= until {
                return false;
            }
            self.rest(until);
        }
        // What has ended a sleep of ours may have been meant for another.
        self.wake();
        true
    }

    /// Sleeps until then at most.
    pub(crate) fn rest(&self, until: Nanos) -> Wake {
        let left = until.saturating_sub(RealHost.now()).min(LONGEST);
        let timeout = Timespec { tv_sec: 0, tv_nsec: left as _ };
        let channel = self.channel.descriptor();
        let mut descriptors =
            [PollFd::new(&self.call, PollFlags::IN), PollFd::from_borrowed_fd(channel, PollFlags::IN)];
        match rustix::event::poll(&mut descriptors, Some(&timeout)) {
            Ok(0) => return Wake::TimedOut,
            Ok(_) => {}
            // Interrupted: look again.
            Err(_) => return Wake::Arrived,
        }
        if !descriptors[0].revents().is_empty() {
            // Another waiter may have taken it; then there is nothing to take.
            let _ = rustix::io::read(&self.call, &mut [0; 8]);
        }
        if !descriptors[1].revents().is_empty() {
            self.has_events.store(true, Ordering::Release);
        }
        Wake::Arrived
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
pub struct RdmaWaker(pub(crate) Arc<Attention>);

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
