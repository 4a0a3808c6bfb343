//! A function of a load: its frequency, its payloads, and the server's work for it.

use super::{Board, FIRST_FUNCTION};
use crate::memory::{Ahead, Lines};
use crate::random_values::{Sizes, Times};
use dunlin_fabric::{Fabric, Host, Nanos};
use dunlin_fabric_sim::{Random, Sim};
use dunlin_rpc::{Plan, Reply, Request, Service, Status};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A change of a function at some time.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// Time since calls began, in nanoseconds.
    pub after: Nanos,
    /// Handler time besides the engine's.
    pub service: Times,
    /// Result payloads.
    pub results: Sizes,
}

/// A function that clients call.
#[derive(Clone, Debug)]
pub struct Function {
    /// Share of all calls, relative to the other functions' weights.
    pub weight: u32,
    /// Plan of its calls.
    pub plan: Plan,
    /// Request payloads.
    pub requests: Sizes,
    /// Result payloads.
    pub results: Sizes,
    /// Handler time besides the engine's.
    pub service: Times,
    /// The part of that time spent on memory accesses, which calls of a batch overlap.
    pub lines: Lines,
    /// Later changes of handler time and results, in the order of time.
    pub steps: Vec<Step>,
    /// Additional time under the lock that all functions share, like LMDB's single writer. Waiting handlers
    /// sleep, and acquire the lock in the order of their requests.
    pub exclusive: Times,
}

impl Function {
    /// Creates a function whose handler takes no time.
    #[must_use]
    pub fn new(plan: Plan, requests: Sizes, results: Sizes) -> Self {
        let none = Times::Fixed(0);
        let (steps, lines) = (Vec::new(), Lines::default());
        Function { weight: 1, plan, requests, results, service: none, lines, steps, exclusive: none }
    }

    /// Returns the largest result at any time.
    pub(super) fn largest_result(&self) -> u32 {
        let later = self.steps.iter().map(|step| step.results.largest());
        later.fold(self.results.largest(), u32::max)
    }

    /// Returns handler time and results at a time since calls began.
    fn now(&self, since: Nanos) -> (Times, Sizes) {
        let step = self.steps.iter().rev().find(|step| step.after <= since);
        step.map_or((self.service, self.results), |step| (step.service, step.results))
    }
}

/// All functions of a load, as one worker serves them.
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
    /// Spends the time of one handler invocation.
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

/// Returns the index of a function in its load.
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

/// The result of the calls of one function or of all. Times are virtual.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FunctionOutcome {
    /// Answered calls that were measured.
    pub calls: u64,
    /// Mean latency of calls, in nanoseconds.
    pub mean_ns: f64,
    /// Latency quantile at 15%.
    pub p15_ns: Nanos,
    /// Median latency.
    pub p50_ns: Nanos,
    /// Latency quantile at 95%.
    pub p95_ns: Nanos,
    /// Latency quantile at 99%.
    pub p99_ns: Nanos,
    /// Largest latency.
    pub max_ns: Nanos,
}

/// A lock, represented by the time at which it is free. One task runs at a time, so there is no race.
#[derive(Debug, Default)]
pub(super) struct Exclusive(AtomicU64);

impl Exclusive {
    /// Acquires the lock for `time` nanoseconds; returns when the period begins.
    fn take(&self, now: Nanos, time: Nanos) -> Nanos {
        let begin = self.0.load(Ordering::Relaxed).max(now);
        self.0.store(begin + time, Ordering::Relaxed);
        begin
    }
}
