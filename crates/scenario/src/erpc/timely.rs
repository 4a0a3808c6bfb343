//! Timely as eRPC uses it (eRPC, NSDI'19, section 5.2; `src/cc/timely.h` of its public source): a rate for each
//! session from the round-trip times of its requests. A pure state machine.
//!
//! All constants are those of that file, except the largest rate, which is the link's.

use dunlin_fabric::Nanos;

/// Weight of a new sample in the moving average of differences.
const WEIGHT: f64 = 0.02;
/// Round-trip time of an idle network, in microseconds.
const IDLE_US: f64 = 2.0;
/// Round-trip time below which a session is uncongested, in microseconds.
pub(super) const LOW_US: f64 = 50.0;
/// Round-trip time above which the rate falls whatever the trend is, in microseconds.
const HIGH_US: f64 = 1000.0;
/// Factor of a multiplicative decrease.
const DECREASE: f64 = 0.8;
/// Consecutive falling samples from which the rate rises faster.
const FALLING: u32 = 5;
/// Smallest rate, and step of an additive increase, in bytes per second.
const LEAST: f64 = 5e6;
const STEP: f64 = 5e6;

/// The congestion control of one session.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Timely {
    /// Current rate in bytes per second.
    rate: f64,
    most: f64,
    previous_us: f64,
    average_difference_us: f64,
    falling: u32,
    updated: Nanos,
    /// Time at which the last paced packet may leave.
    leaves: Nanos,
}

impl Timely {
    /// Creates a session that sends at the link's rate, in bytes per second.
    pub(super) fn new(link: f64) -> Self {
        Timely {
            rate: link,
            most: link,
            previous_us: 0.0,
            average_difference_us: 0.0,
            falling: 0,
            updated: 0,
            leaves: 0,
        }
    }

    /// Returns whether packets leave without pacing: the session has the link's rate.
    pub(super) fn is_uncongested(&self) -> bool {
        self.rate >= self.most
    }

    /// Takes the round-trip time of an answer. Returns whether the rate was computed: not for an uncongested
    /// session with a small round-trip time (eRPC section 5.2.2, Timely bypass).
    pub(super) fn sample(&mut self, round_trip: Nanos, now: Nanos) -> bool {
        let sample = round_trip as f64 / 1e3;
        if self.is_uncongested() && sample <= LOW_US {
            return false;
        }
        if self.previous_us == 0.0 {
            self.previous_us = sample;
        }
        let difference = sample - self.previous_us;
        self.falling = if difference < 0.0 { self.falling + 1 } else { 0 };
        self.average_difference_us = (1.0 - WEIGHT) * self.average_difference_us + WEIGHT * difference;
        let gradient = self.average_difference_us / IDLE_US;
        let elapsed = (now.saturating_sub(self.updated) as f64 / (IDLE_US * 1e3)).min(1.0);
        let rate = if sample < LOW_US {
            self.rate + STEP * elapsed
        } else if sample > HIGH_US {
            self.rate * (1.0 - elapsed * DECREASE * (1.0 - HIGH_US / sample))
        } else if gradient <= 0.0 {
            let steps = if self.falling >= FALLING { 5.0 } else { 1.0 };
            self.rate + steps * STEP * elapsed
        } else {
            self.rate * (1.0 - elapsed * DECREASE * gradient)
        };
        (self.previous_us, self.updated) = (sample, now);
        self.rate = rate.max(self.rate * 0.5).min(self.most).max(LEAST);
        true
    }

    /// Returns when a packet of `bytes` may leave, and counts it.
    pub(super) fn leaves(&mut self, bytes: u32, now: Nanos) -> Nanos {
        let gap = (f64::from(bytes) / self.rate * 1e9) as Nanos;
        self.leaves = (self.leaves + gap).max(now);
        self.leaves
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LINK: f64 = 12.5e9;

    #[test]
    fn small_round_trips_leave_the_rate_alone() {
        let mut timely = Timely::new(LINK);
        for now in 1..100 {
            assert!(!timely.sample(50_000 - now, now * 10_000));
        }
        assert_eq!(timely, Timely::new(LINK));
    }

    #[test]
    fn growing_round_trips_lower_the_rate_and_falling_ones_raise_it() {
        let mut timely = Timely::new(LINK);
        for now in 1..200 {
            assert!(timely.sample(60_000 + now * 5_000, now * 10_000));
        }
        let low = timely.rate;
        assert!(low < LINK / 2.0 && !timely.is_uncongested(), "{timely:?}");
        for now in 200..400 {
            timely.sample(20_000, now * 10_000);
        }
        assert!(timely.rate > low + 150.0 * STEP, "{timely:?}");
    }

    #[test]
    fn paced_packets_keep_their_distance() {
        let mut timely = Timely { rate: 1e9, ..Timely::new(LINK) };
        let times: Vec<Nanos> = (0..4).map(|_| timely.leaves(100, 1_000)).collect();
        assert_eq!(times, [1_000, 1_100, 1_200, 1_300]);
        assert_eq!(timely.leaves(100, 9_000), 9_000);
    }

    proptest! {
        /// Whatever the samples are, the rate stays between its limits and falls by at most half at a time.
        #[test]
        fn the_rate_stays_between_its_limits(samples in proptest::collection::vec((0u64..5_000_000, 0u64..50_000), 1..200)) {
            let (mut timely, mut now) = (Timely::new(LINK), 0);
            for (sample, gap) in samples {
                now += gap;
                let before = timely.rate;
                timely.sample(sample, now);
                prop_assert!((LEAST..=LINK).contains(&timely.rate));
                prop_assert!(timely.rate >= before * 0.5 - 1.0);
            }
        }
    }
}
