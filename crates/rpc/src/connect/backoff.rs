//! Exponential back-off with jitter: a state machine that decides when to reconnect. The caller supplies the
//! time.

use dunlin_fabric::{Nanos, nanos};
use std::time::Duration;

/// The bounds of the back-off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackoffConfig {
    /// The wait after the first failure. Default: 1 ms.
    pub first: Duration,
    /// The longest wait. Default: 1 s.
    pub longest: Duration,
}

impl Default for BackoffConfig {
    fn default() -> Self {
        BackoffConfig { first: Duration::from_millis(1), longest: Duration::from_secs(1) }
    }
}

/// The back-off state of one connection.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    first: Nanos,
    longest: Nanos,
    failures: u32,
    not_before: Nanos,
}

impl Backoff {
    /// Creates a state without failures.
    pub fn new(config: BackoffConfig) -> Self {
        Backoff { first: nanos(config.first), longest: nanos(config.longest), failures: 0, not_before: 0 }
    }

    /// Returns the time before which no attempt may be made, in nanoseconds.
    pub const fn not_before(&self) -> Nanos {
        self.not_before
    }

    /// Returns whether an attempt may be made now.
    pub const fn is_due(&self, now: Nanos) -> bool {
        now >= self.not_before
    }

    /// Records a failed attempt. The wait doubles with each failure up to the longest one. A random part of
    /// up to half of it is taken off, so that the clients of a restarted server do not reconnect all at once.
    pub fn failed(&mut self, now: Nanos, random: u64) {
        let wait = self.first.saturating_mul(1 << self.failures.min(32)).min(self.longest).max(1);
        self.failures += 1;
        self.not_before = now.saturating_add(wait / 2 + random % (wait / 2 + 1));
    }

    /// Resets the state after a successful connection.
    pub fn succeeded(&mut self) {
        (self.failures, self.not_before) = (0, 0);
    }

    /// Returns the number of failed attempts since the last connection.
    pub const fn failures(&self) -> u32 {
        self.failures
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn waits_double_up_to_the_longest_and_start_again() {
        let mut backoff = Backoff::new(BackoffConfig {
            first: Duration::from_nanos(100),
            longest: Duration::from_nanos(1000),
        });
        assert!(backoff.is_due(0));
        let mut waits = Vec::new();
        for _ in 0..6 {
            backoff.failed(0, u64::MAX / 2 * 2);
            waits.push(backoff.not_before());
        }
        assert!(
            waits[0] >= 50 && waits[0] <= 100 && waits[1] > 100 - 1 && waits[5] <= 1000 && waits[5] >= 500
        );
        assert!(!backoff.is_due(waits[5] - 1) && backoff.is_due(waits[5]));
        backoff.succeeded();
        assert!(backoff.is_due(0) && backoff.failures() == 0);
    }

    proptest! {
        #[test]
        fn a_wait_is_bounded(first in 0u64..1 << 50, longest in 0u64..1 << 50, tries in 1usize..80, now: u64, random: u64) {
            let mut backoff = Backoff::new(BackoffConfig { first: Duration::from_nanos(first), longest: Duration::from_nanos(longest) });
            for _ in 0..tries {
                backoff.failed(now, random);
                prop_assert!(backoff.not_before() >= now);
                prop_assert!(backoff.not_before() - now <= longest.max(1));
            }
        }
    }
}
