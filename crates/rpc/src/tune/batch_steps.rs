//! The batch size by equation 3 of RF-RPC (section 4.2), as the paper states it: one call more or fewer, by the share of
//! late calls.
//!
//! The paper does not say over which calls the share is taken. Here it is as many calls of the present size as show a
//! tenth of the tolerated share by one late call.

use super::batch::{Answered, SIZES};
use dunlin_fabric::Nanos;

/// The lower bound of the share of late calls is this part of the tolerated share (equation 3): a tenth.
const FEW_LATE: f64 = 10.0;
/// The least share that is told from none, so that a round ends.
const LEAST_SHARE: f64 = 1.0 / 4096.0;

/// Chooses the batch size by equation 3.
#[derive(Clone, Debug)]
pub(crate) struct BatchSteps {
    tolerance: f64,
    size: u16,
    /// When the size was changed last: batches opened earlier have another size.
    changed: Nanos,
    /// Calls of this size, and late ones.
    calls: u64,
    late: u64,
}

impl BatchSteps {
    /// Creates a tuner that starts with batches of one. `tolerance` is a share from 0 to 1.
    pub(crate) fn new(tolerance: f64) -> Self {
        BatchSteps { tolerance, size: *SIZES.start(), changed: 0, calls: 0, late: 0 }
    }

    /// Returns the largest number of calls for the next batch.
    pub(crate) fn size(&self) -> u16 {
        self.size
    }

    /// Takes the outcome of a batch opened at `opened` and answered at `now`.
    pub(crate) fn answered(&mut self, opened: Nanos, now: Nanos, batch: Answered) {
        if opened < self.changed {
            return;
        }
        self.calls += u64::from(batch.calls);
        self.late += u64::from(batch.late);
        let few = (self.tolerance / FEW_LATE).max(LEAST_SHARE);
        if (self.calls as f64) < 1.0 / few {
            return;
        }
        let late = self.late as f64 / self.calls as f64;
        let size = if late > self.tolerance {
            self.size - 1
        } else if late < few {
            self.size + 1
        } else {
            self.size
        };
        (self.calls, self.late) = (0, 0);
        let size = size.clamp(*SIZES.start(), *SIZES.end());
        if size != self.size {
            (self.size, self.changed) = (size, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Plays batches whose calls take `latency` nanoseconds by their size, against a limit of 20 us.
    fn play(steps: &mut BatchSteps, batches: u32, latency: impl Fn(u16) -> Nanos) {
        for _ in 0..batches {
            let (calls, opened) = (steps.size(), steps.changed);
            let taken = latency(calls);
            let late = if taken > 20_000 { calls } else { 0 };
            steps.answered(opened, opened + taken, Answered { calls, late, taken: taken * u64::from(calls) });
        }
    }

    #[test]
    fn the_size_grows_by_one_as_long_as_few_calls_are_late() {
        let mut steps = BatchSteps::new(0.05);
        // 200 calls show half a percent by one late call.
        play(&mut steps, 199, |_| 5_000);
        assert_eq!(steps.size(), 1);
        play(&mut steps, 1, |_| 5_000);
        assert_eq!(steps.size(), 2);
        play(&mut steps, 100, |_| 5_000);
        assert_eq!(steps.size(), 3);
        play(&mut steps, 10_000, |_| 5_000);
        assert_eq!(steps.size(), *SIZES.end());
        play(&mut steps, 10_000, |_| 50_000);
        assert_eq!(steps.size(), *SIZES.start());
    }

    #[test]
    fn the_size_stays_at_the_limit_and_between_the_bounds() {
        let mut steps = BatchSteps::new(0.05);
        play(&mut steps, 10_000, |size| 5_000 + 300 * u64::from(size));
        assert!((50..=51).contains(&steps.size()), "{}", steps.size());
        let mut steps = BatchSteps::new(0.05);
        for (late, size) in [(0, 2), (1, 2), (10, 2), (11, 1), (11, 1)] {
            steps.answered(steps.changed, steps.changed, Answered { calls: 200, late, taken: 0 });
            assert_eq!(steps.size(), size, "{late} of 200 are late");
        }
    }

    #[test]
    fn batches_of_an_earlier_size_do_not_count() {
        let mut steps = BatchSteps::new(0.05);
        steps.answered(0, 100, Answered { calls: 200, late: 0, taken: 0 });
        assert_eq!((steps.size(), steps.changed), (2, 100));
        for _ in 0..100 {
            steps.answered(99, 200, Answered { calls: 200, late: 200, taken: 0 });
        }
        assert_eq!(steps.size(), 2);
    }

    /// A tolerance of none ends its rounds too.
    #[test]
    fn any_tolerance_is_borne() {
        for tolerance in [0.0, 1.0] {
            let mut steps = BatchSteps::new(tolerance);
            play(&mut steps, 100_000, |_| 5_000);
            assert_eq!(steps.size(), *SIZES.end());
        }
    }
}
