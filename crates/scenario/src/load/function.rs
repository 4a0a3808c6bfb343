//! A function of a load: how often it is called, with what, and what the server does for it.

use crate::random_values::{Sizes, Times};
use dunlin_fabric::{Host, Nanos};
use dunlin_fabric_sim::{Random, SimHost};
use dunlin_rpc::Plan;
use std::sync::atomic::{AtomicU64, Ordering};

/// What a function is like from some time on.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// So long after calls began.
    pub after: Nanos,
    /// What the handler takes beside the engine.
    pub service: Times,
    /// Result payloads.
    pub results: Sizes,
}

/// A function that clients call.
#[derive(Clone, Debug)]
pub struct Function {
    /// Its part of all calls, relative to that of the others.
    pub weight: u32,
    /// The plan of its calls.
    pub plan: Plan,
    /// Request payloads.
    pub requests: Sizes,
    /// Result payloads.
    pub results: Sizes,
    /// What the handler takes beside the engine.
    pub service: Times,
    /// From then on, in the order of time, the handler takes other times and gives other results.
    pub steps: Vec<Step>,
    /// What it takes beyond that with the lock that all functions share, as the one writer of an LMDB. Who waits for it
    /// sleeps, and gets it in the order of asking.
    pub exclusive: Times,
}

impl Function {
    /// A function whose handler takes no time.
    #[must_use]
    pub fn new(plan: Plan, requests: Sizes, results: Sizes) -> Self {
        let none = Times::Fixed(0);
        let steps = Vec::new();
        Function { weight: 1, plan, requests, results, service: none, steps, exclusive: none }
    }

    /// The largest result that it ever gives.
    pub(super) fn largest_result(&self) -> u32 {
        let later = self.steps.iter().map(|step| step.results.largest());
        later.fold(self.results.largest(), u32::max)
    }

    /// Does what the handler does, on the calling thread of the server. The size of the result.
    pub(super) fn work(&self, host: &SimHost, lock: &Exclusive, since: Nanos, random: &mut Random) -> usize {
        let (service, results) = self.now(since);
        let time = service.next(random);
        if time > 0 {
            host.work(time);
        }
        let time = self.exclusive.next(random);
        if time > 0 {
            let begin = lock.take(host.now(), time);
            if begin > host.now() {
                host.sleep(begin);
            }
            host.work(time);
        }
        results.next(random) as usize
    }

    /// What the handler takes and gives so long after calls began.
    fn now(&self, since: Nanos) -> (Times, Sizes) {
        let step = self.steps.iter().rev().find(|step| step.after <= since);
        step.map_or((self.service, self.results), |step| (step.service, step.results))
    }
}

/// What calls of a function, or of all, came to. Times are virtual.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FunctionOutcome {
    /// Calls answered, of those that count.
    pub calls: u64,
    /// Latency of calls.
    pub mean_ns: f64,
    /// As above.
    pub p15_ns: Nanos,
    /// As above.
    pub p50_ns: Nanos,
    /// As above.
    pub p95_ns: Nanos,
    /// As above.
    pub p99_ns: Nanos,
    /// As above.
    pub max_ns: Nanos,
}

/// A lock as the time when it is free. One task of a run runs at a time, so nobody comes between.
#[derive(Debug, Default)]
pub(super) struct Exclusive(AtomicU64);

impl Exclusive {
    /// Takes it for so long: from when on.
    fn take(&self, now: Nanos, time: Nanos) -> Nanos {
        let begin = self.0.load(Ordering::Relaxed).max(now);
        self.0.store(begin + time, Ordering::Relaxed);
        begin
    }
}
