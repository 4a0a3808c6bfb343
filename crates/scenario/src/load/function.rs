//! A function of a load: how often it is called, with what, and what the server does for it.

use super::{Board, FIRST_FUNCTION};
use crate::memory::{Ahead, Lines};
use crate::random_values::{Sizes, Times};
use dunlin_fabric::{Fabric, Host, Nanos};
use dunlin_fabric_sim::{Random, Sim};
use dunlin_rpc::{Plan, Reply, Request, Service, Status};
use std::sync::Arc;
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
    /// What of that it waits for memory. Calls of a batch do so together.
    pub lines: Lines,
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
        let (steps, lines) = (Vec::new(), Lines::default());
        Function { weight: 1, plan, requests, results, service: none, lines, steps, exclusive: none }
    }

    /// The largest result that it ever gives.
    pub(super) fn largest_result(&self) -> u32 {
        let later = self.steps.iter().map(|step| step.results.largest());
        later.fold(self.results.largest(), u32::max)
    }

    /// What the handler takes and gives so long after calls began.
    fn now(&self, since: Nanos) -> (Times, Sizes) {
        let step = self.steps.iter().rev().find(|step| step.after <= since);
        step.map_or((self.service, self.results), |step| (step.service, step.results))
    }
}

/// All functions of a load, as one worker has them.
pub(super) struct Handler {
    pub(super) worker: u16,
    pub(super) sim: Sim,
    pub(super) functions: Arc<Vec<Function>>,
    pub(super) lock: Arc<Exclusive>,
    pub(super) board: Board,
    pub(super) random: Random,
    pub(super) ahead: Ahead,
}

impl Handler {
    /// Does what the handler does.
    fn work(&mut self, service: Times, lines: Lines, exclusive: Times) {
        let host = self.sim.host();
        let alone = lines.one_by_one();
        let waited = self.ahead.wait(&self.sim, lines);
        let time = service.next(&mut self.random);
        let time = if waited == alone { time } else { time.saturating_sub(alone) + waited };
        if time > 0 {
            host.work(time);
        }
        let time = exclusive.next(&mut self.random);
        if time > 0 {
            let begin = self.lock.take(host.now(), time);
            if begin > host.now() {
                host.sleep(begin);
            }
            host.work(time);
        }
    }
}

/// The place of a function in its load.
fn place(function: u16) -> usize {
    usize::from(function.wrapping_sub(FIRST_FUNCTION))
}

impl Service for Handler {
    fn passes(&self) -> usize {
        self.functions.iter().map(|function| function.lines.number as usize).max().unwrap_or(0)
    }

    fn prepare(&mut self, pass: usize, function: u16, _payload: &[u8]) {
        if let Some(function) = self.functions.get(place(function)) {
            self.ahead.ask(&self.sim, pass, function.lines);
        }
    }

    fn call(&mut self, request: &Request<'_>, reply: &mut Reply<'_>) -> Result<(), Status> {
        let Some(function) = self.functions.get(place(request.function)) else { return Ok(()) };
        let (service, results) = function.now(self.board.since(self.sim.host().now()));
        let (lines, exclusive) = (function.lines, function.exclusive);
        self.work(service, lines, exclusive);
        reply.reserve(results.next(&mut self.random) as usize)?;
        self.board.served(self.worker);
        Ok(())
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
