//! How many calls travel together (RF-RPC section 4.2, equation 3).
//!
//! The caller says how late an answer may be and how many may be later; the share of late ones in the last batches decides whether
//! the next batches are one call longer, one shorter, or as they were.

use dunlin_fabric::Nanos;

/// The sizes of a batch that are tried (section 4.2: the best ones lie among these).
pub(crate) const SIZES: std::ops::RangeInclusive<u16> = 1..=128;
/// Batches that are looked at together: with so many, one late one in a twentieth of the calls can be told from none.
const LOOKED_AT: u32 = 32;
/// Less than this part of the tolerated share has to be late for longer batches (equation 3).
const LONGER_BELOW: f64 = 0.1;

/// Chooses the size of batches.
#[derive(Clone, Debug)]
pub(crate) struct BatchTuner {
    limit: Nanos,
    tolerance: f64,
    size: u16,
    batches: u32,
    calls: u64,
    late: u64,
}

impl BatchTuner {
    /// Starts with batches of one. `tolerance` is the share of calls that may be later than `limit`; what is no share counts as the
    /// nearest one.
    pub(crate) fn new(limit: Nanos, tolerance: f64) -> Self {
        let tolerance = if tolerance.is_nan() { 0.0 } else { tolerance.clamp(0.0, 1.0) };
        BatchTuner { limit, tolerance, size: *SIZES.start(), batches: 0, calls: 0, late: 0 }
    }

    /// How many calls a batch may have.
    #[inline]
    pub(crate) fn size(&self) -> u16 {
        self.size
    }

    /// A batch of so many calls was answered after `latency`.
    pub(crate) fn answered(&mut self, latency: Nanos, calls: u16) {
        self.batches += 1;
        self.calls += u64::from(calls);
        if latency > self.limit {
            self.late += u64::from(calls);
        }
        // Once too many are late it does not matter how the rest will be: who is far too late gets out of it quickly.
        let rest = u64::from(LOOKED_AT - self.batches) * u64::from(self.size);
        let share = self.late as f64 / (self.calls + rest).max(1) as f64;
        if self.batches < LOOKED_AT && share <= self.tolerance {
            return;
        }
        if share > self.tolerance {
            self.size = (self.size - 1).max(*SIZES.start());
        } else if share <= LONGER_BELOW * self.tolerance {
            self.size = (self.size + 1).min(*SIZES.end());
        }
        (self.batches, self.calls, self.late) = (0, 0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Plays batches whose latency grows with their size, by `rounds` of what the tuner looks at together.
    fn play(tuner: &mut BatchTuner, rounds: u32, latency: impl Fn(u16) -> Nanos) {
        for _ in 0..rounds * LOOKED_AT {
            tuner.answered(latency(tuner.size()), tuner.size());
        }
    }

    #[test]
    fn it_finds_the_largest_size_that_keeps_the_limit_and_follows_it() {
        let mut tuner = BatchTuner::new(20_000, 0.05);
        play(&mut tuner, 200, |size| 5_000 + 300 * u64::from(size));
        // 50 calls take 20 us.
        assert!((49..=51).contains(&tuner.size()), "{}", tuner.size());
        play(&mut tuner, 200, |size| 5_000 + 1000 * u64::from(size));
        assert!((14..=16).contains(&tuner.size()), "{}", tuner.size());
        play(&mut tuner, 200, |_| 1_000);
        assert_eq!(tuner.size(), *SIZES.end());
    }

    #[test]
    fn a_limit_that_nothing_keeps_means_batches_of_one() {
        let mut tuner = BatchTuner::new(10, 0.05);
        play(&mut tuner, 50, |_| 1_000);
        assert_eq!(tuner.size(), 1);
    }

    #[test]
    fn nobody_may_be_late_or_everybody_may() {
        let mut none = BatchTuner::new(100, -3.0);
        play(&mut none, 10, |size| if size > 4 { 200 } else { 50 });
        assert!((4..=5).contains(&none.size()));
        let mut all = BatchTuner::new(100, f64::INFINITY);
        play(&mut all, 300, |size| if size > 4 { 200 } else { 50 });
        assert!(all.size() >= 4);
        let mut nonsense = BatchTuner::new(0, f64::NAN);
        play(&mut nonsense, 10, |_| u64::MAX);
        assert_eq!(nonsense.size(), 1);
    }

    proptest! {
        #[test]
        fn sizes_stay_within_bounds(latencies in prop::collection::vec(any::<u64>(), 0..10_000), limit in any::<u64>()) {
            let mut tuner = BatchTuner::new(limit, 0.05);
            for latency in latencies {
                let before = tuner.size();
                tuner.answered(latency, before);
                prop_assert!(SIZES.contains(&tuner.size()));
                prop_assert!(tuner.size().abs_diff(before) <= 1);
            }
        }
    }
}
