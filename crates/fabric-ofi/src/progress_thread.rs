//! The keeper thread, which makes progress when no other thread does.
//!
//! With libfabric, the target's threads execute the operations of peers when they make progress; `tcp` of
//! version 1.17 does so separately for each completion queue. Threads that poll or sleep at their domain make
//! progress. For domains whose threads compute or wait for something else, the keeper does. It also processes
//! connection requests and ended connections.

use crate::device::Device;
use crate::domain_waiter::DomainWaiter;
use crate::handles::CompletionQueue;
use dunlin_fabric::{Host, RealHost};
use dunlin_fabric_control::lock;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::fd::OwnedFd;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

/// The interval at which the keeper checks whether other threads have made progress, in nanoseconds.
const TICK: u64 = 1_000_000;
/// The same while a thread sleeps at a domain, since it makes progress as soon as there is work.
const SLOW_TICK: u64 = 50_000_000;
/// The longest sleep on the provider's descriptor, in nanoseconds.
const LONGEST: u64 = 100_000_000;

/// The state from which the keeper knows whether it is needed.
#[derive(Debug)]
pub(crate) struct ProgressThread {
    call: OwnedFd,
    stopped: AtomicBool,
    domains: Mutex<Vec<Weak<DomainWaiter>>>,
    /// The number of endpoints that are open or expected.
    endpoints: AtomicU32,
    /// The number of those that are not connected yet.
    unmet: AtomicU32,
}

/// One endpoint that is open or expected, and whether it is connected.
#[derive(Debug)]
pub(crate) struct Kept {
    device: Arc<Device>,
    met: bool,
}

impl Kept {
    pub(crate) fn new(device: &Arc<Device>) -> Self {
        let keeper = &device.keeper;
        keeper.endpoints.fetch_add(1, Ordering::AcqRel);
        keeper.unmet.fetch_add(1, Ordering::AcqRel);
        keeper.call();
        Kept { device: Arc::clone(device), met: false }
    }

    /// Records that the endpoint is connected, or never will be.
    pub(crate) fn meet(&mut self) {
        if !std::mem::replace(&mut self.met, true) {
            self.device.keeper.unmet.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.meet();
        self.device.keeper.endpoints.fetch_sub(1, Ordering::AcqRel);
    }
}

impl ProgressThread {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(ProgressThread {
            call: rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            stopped: AtomicBool::new(false),
            domains: Mutex::default(),
            endpoints: AtomicU32::new(0),
            unmet: AtomicU32::new(0),
        })
    }

    fn call(&self) {
        // The counter can only be full after 2^64 unread calls.
        let _ = rustix::io::write(&self.call, &1u64.to_ne_bytes());
    }

    /// Watches a domain for as long as it exists.
    pub(crate) fn look_after(&self, attention: &Arc<DomainWaiter>) {
        let mut domains = lock(&self.domains);
        domains.retain(|domain| domain.strong_count() > 0);
        domains.push(Arc::downgrade(attention));
    }

    /// Returns whether a queue pair waits for its connection.
    #[inline]
    pub(crate) fn has_unmet(&self) -> bool {
        self.unmet.load(Ordering::Relaxed) > 0
    }

    /// Starts the keeper for a device. The thread ends when the returned value is dropped.
    pub(crate) fn start(device: &Arc<Device>) -> io::Result<Arc<Running>> {
        let weak = Arc::downgrade(device);
        RealHost.spawn("dunlin-ofi-keeper", Box::new(move || run(&weak)))?;
        Ok(Arc::new(Running(Arc::clone(device))))
    }
}

/// Keeps the keeper running.
#[derive(Debug)]
pub(crate) struct Running(Arc<Device>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.keeper.stopped.store(true, Ordering::Release);
        self.0.keeper.call();
    }
}

/// Records how a domain's own thread makes progress, for the keeper.
#[derive(Debug, Default)]
pub(crate) struct Attendance {
    /// The number of times that progress was made, by one thread at a time.
    polls: AtomicU64,
    /// The value of `polls` at the keeper's last check.
    seen: AtomicU64,
    sleepers: AtomicU32,
}

impl Attendance {
    /// Records that the domain's thread has made progress.
    #[inline]
    pub(crate) fn has_polled(&self) {
        // Only one thread counts, so no locked instruction is needed.
        self.polls.store(self.polls.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// Records that a thread sleeps at the domain; it makes progress when there is work.
    pub(crate) fn falls_asleep(&self) {
        self.sleepers.fetch_add(1, Ordering::AcqRel);
    }

    /// Records that the thread is awake.
    pub(crate) fn is_awake(&self) {
        self.sleepers.fetch_sub(1, Ordering::AcqRel);
    }

    /// Returns whether a thread sleeps at the domain.
    fn has_sleeper(&self) -> bool {
        self.sleepers.load(Ordering::Acquire) > 0
    }

    /// Returns whether progress was made since the last call.
    fn was_polled(&self) -> bool {
        let polls = self.polls.load(Ordering::Relaxed);
        self.seen.swap(polls, Ordering::Relaxed) != polls
    }
}

fn run(device: &Weak<Device>) {
    while let Some(device) = device.upgrade() {
        let keeper = &device.keeper;
        if keeper.stopped.load(Ordering::Acquire) {
            return;
        }
        if keeper.endpoints.load(Ordering::Acquire) == 0 {
            sleep(keeper, &[], None);
            continue;
        }
        device.hear();
        let domains: Vec<Arc<DomainWaiter>> =
            lock(&keeper.domains).iter().filter_map(Weak::upgrade).collect();
        // Check again soon if a thread makes progress now, since it may stop at any time.
        let mut is_soon = keeper.has_unmet();
        let mut alone = Vec::new();
        for domain in domains {
            if domain.attendance.was_polled() {
                is_soon = true;
            } else if !domain.attendance.has_sleeper()
                && let Some(queue) = domain.queue()
            {
                // With untaken completions, the queue's descriptor would prevent the keeper from sleeping.
                if queue.progress() {
                    is_soon = true;
                } else {
                    alone.push(Arc::clone(queue));
                }
            }
        }
        let longest = match (is_soon, alone.is_empty()) {
            (true, _) => TICK,
            (false, true) => SLOW_TICK,
            (false, false) => LONGEST,
        };
        let without_descriptor = alone.iter().any(|queue| queue.descriptor().is_none());
        let longest = if without_descriptor { longest.min(TICK) } else { longest };
        let may_sleep = alone.iter().all(|queue| queue.may_sleep());
        sleep(keeper, &alone, Some(if may_sleep { longest } else { 0 }));
    }
}

/// Sleeps for at most `longest` nanoseconds, or until a call, or until the provider has work on a queue
/// without a thread.
fn sleep(keeper: &ProgressThread, alone: &[Arc<CompletionQueue>], longest: Option<u64>) {
    let timeout = longest.map(|longest| Timespec { tv_sec: 0, tv_nsec: longest as _ });
    let call = PollFd::new(&keeper.call, PollFlags::IN);
    let others = alone.iter().filter_map(|queue| queue.descriptor());
    let others = others.map(|descriptor| PollFd::from_borrowed_fd(descriptor, PollFlags::IN));
    let mut descriptors: Vec<PollFd<'_>> = std::iter::once(call).chain(others).collect();
    // If interrupted, the caller checks again.
    let _ = rustix::event::poll(&mut descriptors, timeout.as_ref());
    if !descriptors[0].revents().is_empty() {
        let _ = rustix::io::read(&keeper.call, &mut [0; 8]);
    }
}
