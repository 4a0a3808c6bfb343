//! Finds handlers that keep a worker from its other calls. A worker times few of its calls, so that the others
//! read no clock: the first call after a wait, and one of about 64 under constant load.

use super::dispatch::Dispatcher;
use dunlin_fabric::{Fabric, Host, Nanos};
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

/// By function id: whether it was reported. All workers share it.
#[derive(Debug)]
pub(crate) struct Reported(Box<[AtomicBool]>);

impl Reported {
    pub(crate) fn new(functions: usize) -> Self {
        Reported((0..functions).map(|_| AtomicBool::new(false)).collect())
    }

    /// Marks a function as reported. Returns whether it was not before.
    fn first(&self, function: u16) -> bool {
        self.0.get(usize::from(function)).is_some_and(|reported| !reported.swap(true, Ordering::Relaxed))
    }
}

impl<F: Fabric> Dispatcher<F> {
    /// Reports the handler of a call that began at `began` if it was slow, once for each function.
    #[cold]
    pub(super) fn timed(&mut self, function: u16, began: Nanos) {
        let took = Duration::from_nanos(self.fabric.host().glance().saturating_sub(began));
        if took > SLOW_HANDLER && self.shared.slow.first(function) {
            let service = &mut self.service;
            // The worker outlives a panic of the service here, as in a call.
            let _ = catch_unwind(AssertUnwindSafe(|| service.on_slow(function, took)));
        }
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
    fn a_function_is_reported_once() {
        let reported = Reported::new(2);
        assert_eq!(
            [0, 1, 0, 1, 7].map(|function| reported.first(function)),
            [true, true, false, false, false]
        );
    }
}
