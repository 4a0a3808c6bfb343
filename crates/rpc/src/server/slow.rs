//! Finds handlers that keep a worker from its other calls. A worker times few of its calls, so that the others
//! read no clock: the first call after a wait, and one of about 64 under constant load. It times each call of a
//! [`FunctionMode::WorkerThenPool`](crate::FunctionMode::WorkerThenPool) function, until the function leaves to the pool.

use super::dispatch::{Call, Dispatcher};
use super::lane::ServerLane;
use crate::path::{Cx, Violation};
use crate::service::FunctionMode;
use dunlin_fabric::{Fabric, Host, Nanos};
use dunlin_wire::BatchState;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A handler that keeps a worker for longer is reported once, by
/// [`Service::on_slow`](crate::Service::on_slow).
pub const SLOW_HANDLER: Duration = Duration::from_millis(1);

/// Counts down to the next call that is timed.
#[derive(Debug)]
pub(super) struct Sampling {
    left: u32,
    /// State of the random gaps: with fixed ones, calls that take turns could hide.
    random: u32,
}

impl Sampling {
    pub(super) const fn new() -> Self {
        Sampling { left: 1, random: 1 }
    }

    /// Times the next call: the worker has waited, so the clock costs nobody.
    pub(super) fn time_next(&mut self) {
        self.left = 1;
    }

    /// Returns whether to time this call.
    #[inline]
    pub(super) fn is_due(&mut self) -> bool {
        self.left -= 1;
        self.left == 0 && self.next_gap()
    }

    #[cold]
    fn next_gap(&mut self) -> bool {
        self.random = self.random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        self.left = 32 + (self.random >> 26);
        true
    }
}

/// A set of functions that only grows. All workers share it.
#[derive(Debug)]
pub(crate) struct FunctionSet(Box<[AtomicBool]>);

impl FunctionSet {
    pub(crate) fn new(functions: usize) -> Self {
        FunctionSet((0..functions).map(|_| AtomicBool::new(false)).collect())
    }

    /// Adds a function. Returns whether the set did not contain it.
    fn add(&self, function: u16) -> bool {
        self.0.get(usize::from(function)).is_some_and(|is_in| !is_in.swap(true, Ordering::Relaxed))
    }

    fn contains(&self, function: u16) -> bool {
        self.0.get(usize::from(function)).is_some_and(|is_in| is_in.load(Ordering::Relaxed))
    }
}

impl<F: Fabric> Dispatcher<F> {
    /// Reports the handler of a call that began at `began` if it was slow, once for each function.
    #[cold]
    pub(super) fn timed(&mut self, host: &F::Host, function: u16, began: Nanos) {
        let took = Duration::from_nanos(host.glance().saturating_sub(began));
        if took > SLOW_HANDLER && !self.may_leave(function) && self.shared.slow.add(function) {
            let service = &mut self.service;
            // The worker outlives a panic of the service here, as in a call.
            let _ = catch_unwind(AssertUnwindSafe(|| service.on_slow(function, took)));
        }
    }

    /// Returns whether a function leaves to the pool when a run has overrun a slice.
    fn may_leave(&self, function: u16) -> bool {
        self.shared.has_pool && self.mode(function) == Some(FunctionMode::WorkerThenPool)
    }

    /// Executes a call of a [`FunctionMode::WorkerThenPool`] function, unless the function has left to the pool. Returns
    /// `false` then. A run that overruns the default slice is the last one on this worker.
    pub(super) fn execute_unless_left(
        &mut self,
        cx: &mut Cx<'_, F>,
        lane: &mut ServerLane<F>,
        call: Call,
        payload: &[u8],
        batch: Option<&mut BatchState>,
    ) -> Result<bool, Violation> {
        let function = call.function;
        if self.shared.long.contains(function) {
            return Ok(false);
        }
        let began = cx.fabric.host().glance();
        let executed = self.execute(cx, lane, call, payload, batch);
        if !self.may_leave(function) {
            self.timed(cx.fabric.host(), function, began);
            return executed.map(|()| true);
        }
        let took = cx.fabric.host().glance().saturating_sub(began);
        if took > self.shared.turns.default_slice() && self.shared.long.add(function) {
            tracing::info!(target: "dunlin::server", function, took, "a function overran a slice: the pool runs it from now on");
        }
        executed.map(|()| true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn about_one_of_64_calls_is_timed() {
        let mut sampling = Sampling::new();
        assert!(sampling.is_due(), "the first one");
        let mut gaps = Vec::new();
        let mut gap = 0;
        for _ in 0..64_000 {
            gap += 1;
            if sampling.is_due() {
                gaps.push(std::mem::take(&mut gap));
            }
        }
        assert!(gaps.iter().all(|gap| (32..96).contains(gap)), "{gaps:?}");
        assert!((900..1100).contains(&gaps.len()), "{} of 64 000", gaps.len());
        sampling.time_next();
        assert!(sampling.is_due() && !sampling.is_due());
    }

    #[test]
    fn a_set_takes_a_function_once() {
        let set = FunctionSet::new(2);
        assert_eq!([0, 0, 7].map(|function| set.add(function)), [true, false, false]);
        assert_eq!([0, 1, 7].map(|function| set.contains(function)), [true, false, false]);
    }
}
