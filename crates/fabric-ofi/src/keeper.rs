//! Progress while nobody asks for it. With libfabric, what peers do to our memory is done by whichever thread of ours makes
//! progress, and version 1.17 has `tcp` do it for each completion queue by itself. Threads that poll or sleep at their domain
//! do; for domains of which nobody does, because all compute or wait for something else, this thread does instead. It also
//! hears of connections that are asked for and of those that have ended.

use crate::attention::Attention;
use crate::device::Device;
use crate::handles::CompletionQueue;
use dunlin_fabric::{Host, RealHost};
use dunlin_fabric_control::lock;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::fd::OwnedFd;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

/// How often the thread looks whether somebody has made progress since, in nanoseconds.
const TICK: u64 = 1_000_000;
/// The same while somebody sleeps at a domain, who makes progress as soon as there is something to do.
const SLOW_TICK: u64 = 50_000_000;
/// The longest sleep on the provider's descriptor.
const LONGEST: u64 = 100_000_000;

/// What tells the thread whether it is needed.
#[derive(Debug)]
pub(crate) struct Keeper {
    call: OwnedFd,
    stopped: AtomicBool,
    domains: Mutex<Vec<Weak<Attention>>>,
    /// Endpoints that are open, or expected.
    endpoints: AtomicU32,
    /// Those of them that are not connected yet.
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

    /// It is connected, or never will be.
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

impl Keeper {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Keeper {
            call: rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            stopped: AtomicBool::new(false),
            domains: Mutex::default(),
            endpoints: AtomicU32::new(0),
            unmet: AtomicU32::new(0),
        })
    }

    fn call(&self) {
        // Full only after 2^64 calls that were not heard.
        let _ = rustix::io::write(&self.call, &1u64.to_ne_bytes());
    }

    /// Looks after a domain from now on, as long as it is there.
    pub(crate) fn look_after(&self, attention: &Arc<Attention>) {
        let mut domains = lock(&self.domains);
        domains.retain(|domain| domain.strong_count() > 0);
        domains.push(Arc::downgrade(attention));
    }

    /// Whether somebody waits for a connection.
    #[inline]
    pub(crate) fn has_unmet(&self) -> bool {
        self.unmet.load(Ordering::Relaxed) > 0
    }

    /// Starts the thread for a device. It ends when the value that is given back is dropped.
    pub(crate) fn start(device: &Arc<Device>) -> io::Result<Arc<Running>> {
        let weak = Arc::downgrade(device);
        RealHost.spawn("dunlin-ofi-keeper", Box::new(move || run(&weak)))?;
        Ok(Arc::new(Running(Arc::clone(device))))
    }
}

/// Keeps the thread running.
#[derive(Debug)]
pub(crate) struct Running(Arc<Device>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.keeper.stopped.store(true, Ordering::Release);
        self.0.keeper.call();
    }
}

/// How a domain is attended to by its own thread; the keeper asks it.
#[derive(Debug, Default)]
pub(crate) struct Attendance {
    /// How often progress was made: by one thread at a time.
    polls: AtomicU64,
    /// That count when the keeper looked last.
    seen: AtomicU64,
    sleepers: AtomicU32,
}

impl Attendance {
    /// The domain's thread has made progress.
    #[inline]
    pub(crate) fn has_polled(&self) {
        // One thread counts, so that no locked instruction is needed.
        self.polls.store(self.polls.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// A thread sleeps there, and makes progress when there is something to do.
    pub(crate) fn falls_asleep(&self) {
        self.sleepers.fetch_add(1, Ordering::AcqRel);
    }

    /// It does not any more.
    pub(crate) fn is_awake(&self) {
        self.sleepers.fetch_sub(1, Ordering::AcqRel);
    }

    /// Whether somebody sleeps there.
    fn has_sleeper(&self) -> bool {
        self.sleepers.load(Ordering::Acquire) > 0
    }

    /// Whether progress was made since the last question.
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
        let domains: Vec<Arc<Attention>> = lock(&keeper.domains).iter().filter_map(Weak::upgrade).collect();
        // Soon again where somebody is at work, who may stop at any time.
        let mut is_soon = keeper.has_unmet();
        let mut alone = Vec::new();
        for domain in domains {
            if domain.attendance.was_polled() {
                is_soon = true;
            } else if !domain.attendance.has_sleeper()
                && let Some(queue) = domain.queue()
            {
                // With completions that nobody has taken its descriptor would not let us sleep.
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

/// Sleeps for so many nanoseconds at most, or until called, or until the provider has something to do where nobody looks.
fn sleep(keeper: &Keeper, alone: &[Arc<CompletionQueue>], longest: Option<u64>) {
    let timeout = longest.map(|longest| Timespec { tv_sec: 0, tv_nsec: longest as _ });
    let call = PollFd::new(&keeper.call, PollFlags::IN);
    let others = alone.iter().filter_map(|queue| queue.descriptor());
    let others = others.map(|descriptor| PollFd::from_borrowed_fd(descriptor, PollFlags::IN));
    let mut descriptors: Vec<PollFd<'_>> = std::iter::once(call).chain(others).collect();
    // Interrupted, it looks again.
    let _ = rustix::event::poll(&mut descriptors, timeout.as_ref());
    if !descriptors[0].revents().is_empty() {
        let _ = rustix::io::read(&keeper.call, &mut [0; 8]);
    }
}
