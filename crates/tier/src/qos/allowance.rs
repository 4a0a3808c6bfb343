//! Limits of a principal: token buckets that fill with time.

use super::Limit;

/// The time in which an unused limit collects: a principal that was idle may do at once as much as its limit permits in
/// this time, in nanoseconds.
pub const BURST: u64 = 10_000_000;

const PICOSECONDS: u128 = 1_000_000_000_000;

/// A limited quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// Operations a second.
    Operations,
    /// Bytes a second.
    Bytes,
}

impl Measure {
    /// Returns the name of the unit.
    pub const fn name(self) -> &'static str {
        match self {
            Measure::Operations => "operations",
            Measure::Bytes => "bytes",
        }
    }
}

/// A limit is exceeded beyond the permitted wait. Nothing was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exceeded {
    /// The quantity.
    pub measure: Measure,
    /// Its limit a second.
    pub limit: u64,
    /// The time until the same operation would be admitted at once, in nanoseconds.
    pub wait: u64,
}

/// A token bucket, as the time at which it is full again.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    rate: u64,
    /// In picoseconds, so that rounding does not add up: 1 byte at 10 GB/s takes 100 ps.
    full_at: u128,
}

impl Bucket {
    /// Returns the time until the bucket is no longer in debt, in nanoseconds.
    fn wait(&self, now: u64) -> u64 {
        let admitted = (u128::from(now) + u128::from(BURST)) * 1000;
        u64::try_from(self.full_at.saturating_sub(admitted).div_ceil(1000)).unwrap_or(u64::MAX)
    }

    fn take(&mut self, now: u64, count: u64) {
        let now = u128::from(now) * 1000;
        let time = u128::from(count) * PICOSECONDS / u128::from(self.rate.max(1));
        self.full_at = self.full_at.max(now) + time;
    }
}

/// The allowance of one principal: operations and bytes a second.
///
/// An operation is admitted when the bucket is not in debt, whatever its length, and may bring it into debt. So a long
/// operation is never refused for ever, and over any time a principal gets no more than its rate, what [`BURST`]
/// collects, and one operation.
#[derive(Clone, Copy, Debug)]
pub struct Allowance {
    operations: Option<Bucket>,
    bytes: Option<Bucket>,
}

impl Allowance {
    /// Makes a full allowance; `None` without a limit.
    pub fn new(limit: Limit) -> Option<Allowance> {
        let bucket = |rate| (rate != u64::MAX).then_some(Bucket { rate, full_at: 0 });
        let (operations, bytes) = (bucket(limit.operations), bucket(limit.bytes));
        (operations.is_some() || bytes.is_some()).then_some(Allowance { operations, bytes })
    }

    /// Takes one operation of `bytes` bytes. Returns the time that the operation has to wait before it begins, at most
    /// `patience`. Times are in nanoseconds.
    pub fn take(&mut self, now: u64, bytes: u64, patience: u64) -> Result<u64, Exceeded> {
        let measures = [(Measure::Operations, &self.operations), (Measure::Bytes, &self.bytes)];
        let mut longest = 0;
        for (measure, bucket) in measures {
            let Some(bucket) = bucket else { continue };
            let wait = bucket.wait(now);
            if wait > patience {
                return Err(Exceeded { measure, limit: bucket.rate, wait });
            }
            longest = longest.max(wait);
        }
        if let Some(bucket) = &mut self.operations {
            bucket.take(now, 1);
        }
        if let Some(bucket) = &mut self.bytes {
            bucket.take(now, bytes);
        }
        Ok(longest)
    }

    /// Returns whether nothing of the allowance is used at `now`, so that it may be forgotten.
    pub fn is_full(&self, now: u64) -> bool {
        let full = |bucket: &Option<Bucket>| bucket.is_none_or(|one| one.full_at <= u128::from(now) * 1000);
        full(&self.operations) && full(&self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn a_limit_admits_a_burst_then_its_rate_then_refuses() {
        let mut allowance = Allowance::new(Limit { operations: 1000, ..Limit::NONE }).unwrap();
        // The burst is ten operations, and the one that empties the bucket.
        for _ in 0..11 {
            assert_eq!(allowance.take(SECOND, 1 << 30, 0), Ok(0));
        }
        let refused = Exceeded { measure: Measure::Operations, limit: 1000, wait: 1_000_000 };
        assert_eq!(allowance.take(SECOND, 0, 999_999), Err(refused));
        assert_eq!(allowance.take(SECOND, 0, 1_000_000), Ok(1_000_000));
        assert_eq!(allowance.take(SECOND, 0, 2_000_000), Ok(2_000_000));
        assert!(!allowance.is_full(SECOND + 12_999_999));
        assert!(allowance.is_full(SECOND + 13_000_000));
    }

    #[test]
    fn both_limits_hold_and_a_refusal_takes_nothing() {
        let mut allowance = Allowance::new(Limit { operations: 1_000_000, bytes: 1000 }).unwrap();
        // An operation longer than the burst is admitted once.
        assert_eq!(allowance.take(0, 1_000_000, 0), Ok(0));
        let before = allowance;
        let refused = allowance.take(0, 1, SECOND).unwrap_err();
        assert_eq!((refused.measure, refused.wait), (Measure::Bytes, 1000 * SECOND - BURST));
        assert_eq!(format!("{allowance:?}"), format!("{before:?}"));
        assert!(Allowance::new(Limit::NONE).is_none());
    }

    proptest! {
        /// Over any time, the admitted operations fit the rate, the burst and one operation.
        #[test]
        fn the_rate_holds(
            rate in 1u64..2_000_000,
            steps in prop::collection::vec((0u64..3_000_000, 0u64..5000), 1..200),
            patience in 0u64..20_000_000,
        ) {
            let mut allowance = Allowance::new(Limit { bytes: rate, ..Limit::NONE }).unwrap();
            let mut now = 0;
            let mut begun: Vec<(u64, u64)> = Vec::new();
            for (pause, bytes) in steps {
                now += pause;
                match allowance.take(now, bytes, patience) {
                    Ok(wait) => {
                        prop_assert!(wait <= patience);
                        begun.push((now + wait, bytes));
                    }
                    Err(exceeded) => prop_assert!(exceeded.wait > patience),
                }
            }
            for first in 0..begun.len() {
                let mut sum = 0u128;
                for (at, bytes) in &begun[first..] {
                    let time = u128::from(at - begun[first].0 + BURST);
                    prop_assert!(sum <= u128::from(rate) * time / u128::from(SECOND) + 5000);
                    sum += u128::from(*bytes);
                }
            }
        }
    }
}
