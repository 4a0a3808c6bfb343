//! The rule by which a busy wait on a real machine gives its core to other threads.
//!
//! A thread with a core of its own yields rarely: a yield without another runnable thread returns at once. A
//! yield that returns late shows that another thread has run, so threads compete for this core. From then on
//! the thread yields after few empty polls, until several yields in a row have returned at once.

use crate::{Host, Nanos, RealHost};
use std::sync::OnceLock;

/// The number of empty busy waits before the first yield, and between later ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Patience {
    before: u32,
    between: u32,
}

/// A core of its own: about 10 us, much longer than a peer on a core of its own takes.
const ALONE: Patience = Patience { before: 512, between: 256 };
/// Threads compete: the peer most likely waits for this core, and cannot answer earlier.
const CROWDED: Patience = Patience { before: 32, between: 8 };

/// A late yield counts as much as this many yields that returned at once.
const LATE_WEIGHT: u8 = 4;
/// The most evidence that is kept.
const MOST_EVIDENCE: u8 = 8;

/// Counts empty busy waits, and yields the core.
#[derive(Debug)]
pub struct Idle {
    empty: u32,
    patience: Patience,
    /// Above 0: other threads compete for the core. Late yields raise it, and others lower it.
    evidence: u8,
    /// A yield that took at most this many nanoseconds has run no other thread.
    at_once: Nanos,
}

/// Returns the longest duration of a yield that runs no other thread: two system calls, and some spare.
fn at_once() -> Nanos {
    static AT_ONCE: OnceLock<Nanos> = OnceLock::new();
    *AT_ONCE.get_or_init(|| {
        let shortest = (0..16).map(|_| {
            let begin = RealHost.now();
            // Always a system call, and does nothing.
            let _ = rustix::process::getpid();
            RealHost.now() - begin
        });
        2 * shortest.min().unwrap_or(0) + 300
    })
}

impl Default for Idle {
    fn default() -> Self {
        Idle::with(at_once())
    }
}

impl Idle {
    fn with(at_once: Nanos) -> Self {
        Idle { empty: 0, patience: ALONE, evidence: 0, at_once }
    }

    /// Creates a rule that never takes other threads into account.
    pub fn steadfast() -> Self {
        Idle::with(Nanos::MAX)
    }

    /// Restarts the count, after a poll that found work.
    #[inline]
    pub fn reset(&mut self) {
        self.empty = 0;
    }

    /// Counts one more empty busy wait, and yields the core if that is due.
    #[inline]
    pub fn wait(&mut self) {
        if self.is_long() {
            self.yield_core();
        }
    }

    /// Returns whether other threads compete for this thread's core.
    #[inline]
    pub fn is_crowded(&self) -> bool {
        self.evidence > 0
    }

    #[inline]
    fn is_long(&mut self) -> bool {
        self.empty += 1;
        if self.empty < self.patience.before {
            return false;
        }
        self.empty = self.patience.before - self.patience.between;
        true
    }

    #[cold]
    fn yield_core(&mut self) {
        let begin = RealHost.now();
        rustix::thread::sched_yield();
        self.yielded(RealHost.now() - begin);
    }

    /// Learns from the duration of a yield.
    fn yielded(&mut self, took: Nanos) {
        self.evidence = match took > self.at_once {
            true => (self.evidence + LATE_WEIGHT).min(MOST_EVIDENCE),
            false => self.evidence.saturating_sub(1),
        };
        let patience = if self.is_crowded() { CROWDED } else { ALONE };
        if patience != self.patience {
            self.patience = patience;
            self.empty = patience.before - patience.between;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUICK: Nanos = 1_000;

    fn next_yield(idle: &mut Idle) -> Option<u32> {
        (1..=2 * ALONE.before).find(|_| idle.is_long())
    }

    #[test]
    fn a_thread_with_a_core_of_its_own_yields_after_many_empty_waits() {
        let mut idle = Idle::with(QUICK);
        assert_eq!(next_yield(&mut idle), Some(ALONE.before));
        for _ in 0..10 {
            idle.yielded(400);
            assert_eq!(next_yield(&mut idle), Some(ALONE.between));
        }
        assert!(!idle.is_crowded());
        idle.reset();
        assert_eq!(next_yield(&mut idle), Some(ALONE.before));
    }

    #[test]
    fn a_late_yield_makes_the_next_ones_frequent_until_several_return_at_once() {
        let mut idle = Idle::with(QUICK);
        idle.yielded(400);
        idle.yielded(3_000);
        assert!(idle.is_crowded());
        assert_eq!(next_yield(&mut idle), Some(CROWDED.between));
        idle.reset();
        assert_eq!(next_yield(&mut idle), Some(CROWDED.before));
        let quick = (1..100).find(|_| {
            idle.yielded(400);
            !idle.is_crowded()
        });
        assert_eq!(quick, Some(u32::from(LATE_WEIGHT)));
        assert_eq!(next_yield(&mut idle), Some(ALONE.between));
    }

    #[test]
    fn a_steadfast_thread_sees_no_others() {
        let mut idle = Idle::steadfast();
        (0..100).for_each(|_| idle.yielded(50_000_000));
        assert!(!idle.is_crowded());
    }

    #[test]
    fn evidence_is_bounded() {
        let mut idle = Idle::with(QUICK);
        (0..100).for_each(|_| idle.yielded(50_000));
        (0..MOST_EVIDENCE).for_each(|_| idle.yielded(QUICK));
        assert!(!idle.is_crowded());
    }
}
