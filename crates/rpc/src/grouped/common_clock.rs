//! The common clock of several servers: an estimate of the difference to a time server's clock, from the four time
//! stamps of exchanges (ScaleRPC section 4.2, figure 14), as a pure state machine.
//!
//! | case | the paper | here |
//! |---|---|---|
//! | the estimate | the last exchange | a line through the last [`SAMPLES`] exchanges; quick ones count most |
//! | drift | not stated | the slope of the line, which also holds while nothing is heard |
//! | impossible stamps | not stated | refused, as are differences that no clock could have reached since the last exchange |
//!
//! An exchange that waited somewhere is wrong by half of its wait at most. Exchanges without a wait have the shortest
//! round trips, so the weight of an exchange falls with the square of its excess over the shortest one.

use dunlin_fabric::Nanos;
use std::collections::VecDeque;

/// Exchanges that the estimate uses.
pub(crate) const SAMPLES: usize = 32;
/// The largest difference in rate of two clocks that are in order.
const MOST_DRIFT: f64 = 1e-3;
/// The longest round trip of an exchange that is used, in nanoseconds.
const LATE: Nanos = 10_000_000;
/// The largest error of an estimate beside drift, in nanoseconds.
const MOST_ERROR: u64 = 1_000_000;
/// The excess of a round trip at which an exchange counts a quarter of the quickest one, in nanoseconds.
const EXCESS: f64 = 1_000.0;
/// The time over which drift is measured at least, in nanoseconds.
const LEAST_SPAN: f64 = 5e6;

/// The time stamps of an exchange: T1 and T4 on the clock of the server that asks, T2 and T3 on the common clock of the
/// time server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exchange {
    /// T1: the request leaves.
    pub(crate) asked: Nanos,
    /// T2: the request is taken.
    pub(crate) taken: Nanos,
    /// T3: the answer leaves.
    pub(crate) answered: Nanos,
    /// T4: the answer is heard.
    pub(crate) heard: Nanos,
}

impl Exchange {
    /// Returns the time on the way, as far as the stamps are right.
    pub(crate) fn round_trip(&self) -> Nanos {
        let (whole, theirs) = (self.heard.wrapping_sub(self.asked), self.answered.wrapping_sub(self.taken));
        whole.saturating_sub(theirs)
    }
}

/// The fate of an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Used,
    /// It took too long to say anything about the time.
    Late,
    /// No clock in order gives such stamps.
    Lie,
}

/// An exchange that is used.
#[derive(Clone, Copy, Debug)]
struct Sample {
    at: Nanos,
    offset: i64,
    round_trip: u64,
}

/// The estimated difference of the common clock to one's own.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Estimate {
    /// The own time from which drift counts.
    at: Nanos,
    offset: i64,
    drift: f64,
}

impl Estimate {
    /// One's own clock is the common one.
    pub(crate) const OWN: Estimate = Estimate { at: 0, offset: 0, drift: 0.0 };

    fn offset(&self, own: Nanos) -> i64 {
        let passed = own.wrapping_sub(self.at) as i64;
        self.offset.wrapping_add((passed as f64 * self.drift) as i64)
    }

    /// Converts a time of the own clock to common time, which wraps.
    pub(crate) fn common(&self, own: Nanos) -> Nanos {
        own.wrapping_add(self.offset(own) as u64)
    }

    /// Converts a common time to the own clock.
    pub(crate) fn own(&self, common: Nanos) -> Nanos {
        let about = common.wrapping_sub(self.offset as u64);
        let passed = about.wrapping_sub(self.at) as i64;
        about.wrapping_sub((passed as f64 * (self.drift / (1.0 + self.drift))) as i64 as u64)
    }
}

/// Makes an estimate of exchanges with one time server.
#[derive(Clone, Debug)]
pub(crate) struct ClockFilter {
    samples: VecDeque<Sample>,
    estimate: Estimate,
}

impl ClockFilter {
    pub(crate) fn new() -> Self {
        ClockFilter { samples: VecDeque::with_capacity(SAMPLES), estimate: Estimate::OWN }
    }

    pub(crate) fn estimate(&self) -> Estimate {
        self.estimate
    }

    /// Returns whether enough exchanges agree.
    pub(crate) fn is_settled(&self) -> bool {
        self.samples.len() == SAMPLES
    }

    /// Forgets the exchanges with a time server. The estimate holds until the first exchange with another one.
    pub(crate) fn change_server(&mut self) {
        self.samples.clear();
    }

    /// Uses an exchange, if it says anything.
    pub(crate) fn on_exchange(&mut self, exchange: Exchange) -> Verdict {
        let Exchange { asked, taken, answered, heard } = exchange;
        let (whole, theirs) = (heard.wrapping_sub(asked) as i64, answered.wrapping_sub(taken) as i64);
        if theirs < 0 || theirs > whole {
            return Verdict::Lie;
        }
        let round_trip = (whole - theirs) as u64;
        let (there, back) = (taken.wrapping_sub(asked) as i64, answered.wrapping_sub(heard) as i64);
        let offset = there.wrapping_add(back.wrapping_sub(there) / 2);
        let at = asked.wrapping_add(heard.wrapping_sub(asked) / 2);
        if let Some(last) = self.samples.back() {
            let apart = offset.wrapping_sub(self.estimate.offset(at)).unsigned_abs();
            let passed = (at.wrapping_sub(last.at) as i64).unsigned_abs();
            if apart > MOST_ERROR + round_trip / 2 + (passed as f64 * MOST_DRIFT) as u64 {
                return Verdict::Lie;
            }
        }
        if round_trip > LATE {
            return Verdict::Late;
        }
        if self.samples.len() == SAMPLES {
            self.samples.pop_front();
        }
        self.samples.push_back(Sample { at, offset, round_trip });
        self.fit();
        Verdict::Used
    }

    /// Fits the line. Large numbers are taken off first: a difference of a century has more digits than a float.
    fn fit(&mut self) {
        let Some(last) = self.samples.back().copied() else { return };
        let least = self.samples.iter().map(|sample| sample.round_trip).min().unwrap_or(0);
        let points = self.samples.iter().map(|sample| {
            let excess = (sample.round_trip - least) as f64 / EXCESS;
            let weight = 1.0 / ((1.0 + excess) * (1.0 + excess));
            let x = sample.at.wrapping_sub(last.at) as i64 as f64;
            (weight, x, sample.offset.wrapping_sub(last.offset) as f64)
        });
        let (mut all, mut mean_x, mut mean_y) = (0.0, 0.0, 0.0);
        for (weight, x, y) in points.clone() {
            (all, mean_x, mean_y) = (all + weight, mean_x + weight * x, mean_y + weight * y);
        }
        (mean_x, mean_y) = (mean_x / all, mean_y / all);
        let (mut square, mut product) = (0.0, 0.0);
        for (weight, x, y) in points {
            square += weight * (x - mean_x) * (x - mean_x);
            product += weight * (x - mean_x) * (y - mean_y);
        }
        let span = self.samples.front().map_or(0, |first| last.at.wrapping_sub(first.at));
        // The drift of the estimate before is a better one than that of a short time.
        let drift = match square > 0.0 && span as f64 >= LEAST_SPAN {
            true => (product / square).clamp(-MOST_DRIFT, MOST_DRIFT),
            false => self.estimate.drift,
        };
        let offset = last.offset.wrapping_add((mean_y - drift * mean_x) as i64);
        self.estimate = Estimate { at: last.at, offset, drift };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLISECOND: Nanos = 1_000_000;
    /// A century and a second, in nanoseconds.
    const OFFSETS: [i64; 4] = [0, 1_000_000_000, -1_000_000_000, 3_155_760_000_000_000_000];

    struct Random(u64);

    impl Random {
        fn below(&mut self, limit: u64) -> u64 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 33) % limit.max(1)
        }
    }

    /// A time server whose clock is ahead by `offset`, and drifts by `millionths` against one's own.
    struct World {
        random: Random,
        offset: i64,
        millionths: i64,
    }

    impl World {
        fn theirs(&self, own: Nanos) -> Nanos {
            let drifted = own as i64 / 1_000_000 * self.millionths;
            own.wrapping_add(self.offset as u64).wrapping_add(drifted as u64)
        }

        /// An exchange of which each part waits for up to `wait`, and that ends at about `own`.
        fn exchange(&mut self, own: Nanos, wait: u64) -> Exchange {
            let (there, back) = (1_000 + self.random.below(wait), 1_000 + self.random.below(wait));
            let served = self.random.below(3_000);
            let taken = own + there;
            let (answered, heard) = (taken + served, taken + served + back);
            Exchange { asked: own, taken: self.theirs(taken), answered: self.theirs(answered), heard }
        }

        /// The quickest of four exchanges, as a server makes them.
        fn round(&mut self, own: Nanos, wait: u64) -> Exchange {
            let four: Vec<_> = (0..4).map(|number| self.exchange(own + number * 30_000, wait)).collect();
            four.into_iter().min_by_key(Exchange::round_trip).unwrap()
        }

        fn error(&self, filter: &ClockFilter, own: Nanos) -> u64 {
            (filter.estimate().common(own).wrapping_sub(self.theirs(own)) as i64).unsigned_abs()
        }
    }

    fn settled(world: &mut World, wait: u64) -> (ClockFilter, Nanos) {
        let (mut filter, mut now) = (ClockFilter::new(), 10_000_000_000);
        for number in 0..4 * SAMPLES as u64 {
            assert_eq!(filter.on_exchange(world.round(now, wait)), Verdict::Used);
            now += if number < SAMPLES as u64 { MILLISECOND } else { 100 * MILLISECOND };
        }
        assert!(filter.is_settled());
        (filter, now)
    }

    #[test]
    fn clocks_agree_within_two_microseconds() {
        for seed in 0..50 {
            for offset in OFFSETS {
                for millionths in [0, 200, -200, 400] {
                    let mut world = World { random: Random(seed), offset, millionths };
                    let (filter, now) = settled(&mut world, 10_000);
                    // A second of silence costs little.
                    for (after, most) in [(0, 2_000), (100, 2_000), (1_000, 3_000)] {
                        let error = world.error(&filter, now + after * MILLISECOND);
                        assert!(error < most, "{seed} {offset} {millionths}: {error} ns after {after} ms");
                    }
                    let common = filter.estimate().common(now);
                    assert!(filter.estimate().own(common).abs_diff(now) < 3);
                }
            }
        }
    }

    #[test]
    fn impossible_stamps_are_refused() {
        for seed in 0..20 {
            for offset in OFFSETS {
                let mut world = World { random: Random(seed), offset, millionths: 200 };
                let (mut filter, mut now) = settled(&mut world, 5_000);
                let before = filter.estimate();
                let honest = world.exchange(now, 5_000);
                for by in [2 * MILLISECOND as i64, -1_000_000_000, 3_155_760_000_000_000_000, i64::MIN] {
                    let by = by as u64;
                    let (taken, answered) = (honest.taken.wrapping_add(by), honest.answered.wrapping_add(by));
                    for lie in [
                        Exchange { taken, answered, ..honest },
                        Exchange { taken, ..honest },
                        Exchange { answered, ..honest },
                    ] {
                        assert_eq!(filter.on_exchange(lie), Verdict::Lie, "{lie:?}");
                    }
                }
                assert_eq!(filter.estimate(), before);
                let late = Exchange { heard: honest.heard + 50 * MILLISECOND, ..honest };
                assert_eq!(filter.on_exchange(late), Verdict::Late);
                assert_eq!(filter.estimate(), before);
                now += MILLISECOND;
                assert_eq!(filter.on_exchange(world.exchange(now, 5_000)), Verdict::Used);
            }
        }
    }

    /// Another time server may have another time; the drift is kept until its own is known.
    #[test]
    fn another_server_is_followed_at_once() {
        let mut world = World { random: Random(1), offset: 5, millionths: 200 };
        let (mut filter, now) = settled(&mut world, 2_000);
        let mut other = World { offset: -1_000_000_000, ..world };
        filter.change_server();
        assert_eq!(filter.on_exchange(other.exchange(now, 100)), Verdict::Used);
        assert!(other.error(&filter, now) < 200);
        assert!(other.error(&filter, now + 100 * MILLISECOND) < 1_000, "200 millionths make 20 us");
    }
}
