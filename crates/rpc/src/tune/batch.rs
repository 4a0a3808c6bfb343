//! How many calls travel together (RF-RPC section 4.2, equation 3).
//!
//! The caller says how late an answer may be and how many may be later; the share of late ones in the last batches decides whether
//! the next batches are longer, shorter, or as they were. Three things differ from the paper's equation, which moves by one each time:
//!
//! * Steps in a row into the same direction grow, so that a change of the world is followed in a few dozen rounds.
//! * A size that was too late is not tried again at once, but after twice as many rounds each time: who stands at the edge would
//!   else be too late in every second round.
//! * Shorter batches are not always earlier. Calls that are in flight wait for each other by their number alone, and the less they
//!   travel together the longer they do. So where too many are late, a step down has to be worth it: if it makes calls no earlier, the
//!   tuner goes the other way, as far as that does, and stays where they are earliest if nothing keeps the limit.

use dunlin_fabric::Nanos;
use std::ops::RangeInclusive;

/// The sizes of a batch that are tried (section 4.2: the best ones lie among these).
pub(crate) const SIZES: RangeInclusive<u16> = 1..=128;
/// Batches that are looked at together: with so many, one late one in a twentieth of the calls can be told from none.
const ROUND: u32 = 32;
/// So many are enough where too many are late already.
const SHORT_ROUND: u32 = 8;
/// Less than this part of the tolerated share has to be late for longer batches (equation 3).
const LONGER_BELOW: f64 = 0.1;
/// Steps in a row after which the next is twice as long.
const STEPS: u8 = 4;
/// Rounds until a size that was too late is tried again, at first and at most.
const PATIENCE: RangeInclusive<u16> = 4..=32;
/// Calls are earlier if their latency falls below this part of what it was.
const EARLIER: f64 = 0.97;
/// The world has changed if latency leaves these bounds while a size is held.
const SAME: RangeInclusive<f64> = 0.7..=1.4;

/// What is known of a size: how long calls took there in the mean, in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Tried {
    size: u16,
    latency: f64,
}

/// What the tuner is doing.
#[derive(Clone, Copy, Debug)]
enum Search {
    /// The limit was kept in the last round, or nothing is known yet.
    Kept,
    /// Too late; shorter batches are tried, from here.
    Shorter(Tried),
    /// Shorter ones were no earlier; longer ones are tried, from here.
    Longer(Tried),
    /// Nothing keeps the limit, and here calls are earliest: for so many rounds.
    Held { at: Tried, rounds: u16 },
}

/// Chooses the size of batches.
#[derive(Clone, Debug)]
pub(crate) struct BatchTuner {
    limit: Nanos,
    tolerance: f64,
    size: u16,
    search: Search,
    /// The next step, and how many of that length have been made.
    step: u16,
    steps: u8,
    /// A size that was too late, rounds until it is tried again, and how many those were the last time.
    too_late: u16,
    wait: u16,
    patience: u16,
    /// When the size has changed last. What was opened before does not count, and then what was opened before the first batch of
    /// the new size was answered: it still waits for those of the old one.
    changed: Nanos,
    settling: bool,
    /// Of this round: batches, calls, late calls, and the time that all calls took.
    batches: u32,
    calls: u64,
    late: u64,
    taken: f64,
}

impl BatchTuner {
    /// Starts with batches of one. `tolerance` is the share of calls that may be later than `limit`; what is no share counts as the
    /// nearest one.
    pub(crate) fn new(limit: Nanos, tolerance: f64) -> Self {
        let tolerance = if tolerance.is_nan() { 0.0 } else { tolerance.clamp(0.0, 1.0) };
        BatchTuner {
            limit,
            tolerance,
            size: *SIZES.start(),
            search: Search::Kept,
            step: 1,
            steps: 0,
            too_late: u16::MAX,
            wait: 0,
            patience: *PATIENCE.start(),
            changed: 0,
            settling: false,
            batches: 0,
            calls: 0,
            late: 0,
            taken: 0.0,
        }
    }

    /// How many calls a batch may have.
    #[inline]
    pub(crate) fn size(&self) -> u16 {
        self.size
    }

    /// A batch of so many calls that was opened at `opened` was answered now.
    pub(crate) fn answered(&mut self, opened: Nanos, now: Nanos, calls: u16) {
        if opened < self.changed {
            return;
        }
        if self.settling {
            (self.changed, self.settling) = (now, false);
            return;
        }
        let before = self.size;
        self.take(now.saturating_sub(opened), calls);
        if self.size != before {
            (self.changed, self.settling) = (now, true);
        }
    }

    fn take(&mut self, latency: Nanos, calls: u16) {
        self.batches += 1;
        self.calls += u64::from(calls);
        self.taken += latency as f64 * f64::from(calls);
        if latency > self.limit {
            self.late += u64::from(calls);
        }
        // Once too many are late it does not matter how the rest will be: who is far too late gets out of it quickly.
        let rest = u64::from(ROUND - self.batches) * u64::from(self.size);
        let share = self.late as f64 / (self.calls + rest).max(1) as f64;
        let short = matches!(self.search, Search::Kept) && share > self.tolerance;
        if self.batches < ROUND && (self.batches < SHORT_ROUND || !short) {
            return;
        }
        let latency = self.taken / self.calls.max(1) as f64;
        // Longer ones than are ever filled make no difference, until one day they do.
        let filled = self.calls * 2 >= u64::from(self.batches) * u64::from(self.size);
        (self.batches, self.calls, self.late, self.taken) = (0, 0, 0, 0.0);
        if share > self.tolerance {
            self.is_late(latency);
        } else {
            self.is_kept(share, filled);
        }
    }

    /// A round kept the limit.
    fn is_kept(&mut self, share: f64, filled: bool) {
        if !matches!(self.search, Search::Kept) {
            (self.search, self.patience) = (Search::Kept, *PATIENCE.start());
            self.step_anew();
        }
        if self.size >= self.too_late {
            (self.too_late, self.patience) = (u16::MAX, *PATIENCE.start());
        }
        if share > LONGER_BELOW * self.tolerance || !filled {
            return self.step_anew();
        }
        if self.size.saturating_add(self.step) >= self.too_late {
            self.wait = self.wait.saturating_sub(1);
            self.step = self.step.min((self.too_late - self.size).max(1));
            if self.wait > 0 && self.size + self.step >= self.too_late {
                self.step = self.too_late - self.size - 1;
            }
            if self.step == 0 {
                return self.step_anew();
            }
        }
        self.go(true);
    }

    /// Too many calls of a round were too late.
    fn is_late(&mut self, latency: f64) {
        let here = Tried { size: self.size, latency };
        match self.search {
            Search::Kept => {
                if self.too_late == self.size {
                    self.patience = (self.patience * 2).min(*PATIENCE.end());
                }
                (self.too_late, self.wait) = (self.size, self.patience);
                self.step_anew();
                self.shorten(here);
            }
            Search::Shorter(from) if self.is_near(from) => self.shorten(from),
            Search::Shorter(from) if latency < EARLIER * from.latency => self.shorten(here),
            Search::Shorter(from) => {
                self.size = from.size;
                self.step_anew();
                self.lengthen(from);
            }
            Search::Longer(from) if self.is_near(from) && self.size < *SIZES.end() => self.lengthen(from),
            Search::Longer(from) if latency < EARLIER * from.latency => self.lengthen(here),
            Search::Longer(from) => {
                self.size = from.size;
                self.hold(from);
            }
            Search::Held { at, rounds } => {
                let same = SAME.contains(&(latency / at.latency.max(1.0)));
                if rounds > 1 && same {
                    self.search = Search::Held { at, rounds: rounds - 1 };
                } else {
                    self.patience =
                        if same { (self.patience * 2).min(*PATIENCE.end()) } else { *PATIENCE.start() };
                    self.step_anew();
                    self.shorten(here);
                }
            }
        }
    }

    /// Whether a size is too near to another to tell them apart.
    fn is_near(&self, from: Tried) -> bool {
        self.size.abs_diff(from.size) < (from.size / 4).max(1)
    }

    /// Tries shorter batches, or longer ones if there are none.
    fn shorten(&mut self, from: Tried) {
        self.search = Search::Shorter(from);
        if self.size > *SIZES.start() {
            self.go(false);
        } else {
            self.step_anew();
            self.lengthen(from);
        }
    }

    /// Tries longer batches, or stays if there are none.
    fn lengthen(&mut self, from: Tried) {
        self.search = Search::Longer(from);
        if self.size < *SIZES.end() { self.go(true) } else { self.hold(from) }
    }

    fn hold(&mut self, at: Tried) {
        self.search = Search::Held { at, rounds: self.patience };
        self.step_anew();
    }

    fn step_anew(&mut self) {
        (self.step, self.steps) = (1, 0);
    }

    /// One step, of which the next may be longer.
    fn go(&mut self, longer: bool) {
        let size =
            if longer { self.size.saturating_add(self.step) } else { self.size.saturating_sub(self.step) };
        self.size = size.clamp(*SIZES.start(), *SIZES.end());
        self.steps += 1;
        // While a search is on, each step has to tell something.
        if self.steps >= STEPS || !matches!(self.search, Search::Kept) {
            (self.step, self.steps) = ((self.step * 2).min((self.size / 4).max(1)), 0);
        }
    }
}
#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A batch that begins when the one before was answered.
    fn answer(tuner: &mut BatchTuner, latency: Nanos, calls: u16) {
        let opened = tuner.changed;
        tuner.answered(opened, opened.saturating_add(latency), calls);
    }

    /// Plays batches whose latency grows with their size, by `rounds` of what the tuner looks at together.
    fn play(tuner: &mut BatchTuner, rounds: u32, latency: impl Fn(u16) -> Nanos) {
        for _ in 0..rounds * (ROUND + 1) {
            let size = tuner.size();
            answer(tuner, latency(size), size);
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
        for _ in 0..50 {
            play(&mut tuner, 1, |_| 1_000);
            assert!(tuner.size() <= 2);
        }
    }

    /// 128 calls in flight, of which those that do not travel together wait for each other: 1 us for each message, and 100 ns for
    /// each call of one's own. Calls are earliest with 36 in a message, after 7.2 us.
    fn in_flight(size: u16) -> Nanos {
        128_000 / u64::from(size) + 100 * u64::from(size)
    }

    #[test]
    fn a_limit_that_only_longer_batches_keep_is_found() {
        let mut tuner = BatchTuner::new(10_000, 0.05);
        let sizes: Vec<u16> = (0..100)
            .map(|_| {
                play(&mut tuner, 1, in_flight);
                tuner.size()
            })
            .collect();
        // 84 are the most that keep it, and 15 the fewest.
        assert!(sizes[12..].iter().all(|size| (15..=100).contains(size)), "{sizes:?}");
        assert!((80..=85).contains(&tuner.size()), "{sizes:?}");
        // From above, too, and where the world becomes such.
        let mut tuner = BatchTuner::new(10_000, 0.05);
        play(&mut tuner, 100, |_| 100);
        assert_eq!(tuner.size(), *SIZES.end());
        play(&mut tuner, 100, in_flight);
        assert!((80..=85).contains(&tuner.size()), "{}", tuner.size());
    }

    #[test]
    fn where_nothing_keeps_the_limit_calls_are_as_early_as_can_be() {
        for start in [100, 1_000_000] {
            let mut tuner = BatchTuner::new(5_000, 0.05);
            play(&mut tuner, 100, |_| start);
            let mut latencies = 0;
            for _ in 0..200 {
                play(&mut tuner, 1, in_flight);
                latencies += in_flight(tuner.size());
            }
            // Within a sixth of the earliest in the mean, what trying costs included.
            assert!(latencies / 200 < 8_400, "{}", latencies / 200);
            // And a limit that can be kept then is.
            play(&mut tuner, 60, |_| 1_000);
            assert!(tuner.size() > 100, "{}", tuner.size());
        }
    }

    #[test]
    fn who_stands_at_the_edge_is_rarely_late() {
        let mut tuner = BatchTuner::new(20_000, 0.05);
        play(&mut tuner, 100, |size| 400 * u64::from(size));
        let (mut late, mut all) = (0, 0);
        for _ in 0..200 * ROUND {
            let size = u64::from(tuner.size());
            all += size;
            late += if 400 * size > 20_000 { size } else { 0 };
            answer(&mut tuner, 400 * size, size as u16);
        }
        assert!(late * 20 <= all, "{late} of {all}");
        assert!(tuner.size() >= 45);
    }

    #[test]
    fn sizes_that_are_never_reached_are_not_asked_for() {
        let mut tuner = BatchTuner::new(20_000, 0.05);
        for _ in 0..1000 * ROUND {
            let calls = 3.min(tuner.size());
            answer(&mut tuner, 100, calls);
        }
        assert!((3..=7).contains(&tuner.size()), "{}", tuner.size());
    }

    #[test]
    fn nobody_may_be_late_or_everybody_may() {
        let mut none = BatchTuner::new(100, -3.0);
        play(&mut none, 10, |size| if size > 4 { 200 } else { 50 });
        assert!((3..=5).contains(&none.size()));
        let mut all = BatchTuner::new(100, f64::INFINITY);
        play(&mut all, 300, |size| if size > 4 { 200 } else { 50 });
        assert!(all.size() >= 4);
        let mut nonsense = BatchTuner::new(0, f64::NAN);
        play(&mut nonsense, 10, |_| 1 << 40);
        assert!(nonsense.size() <= 2);
    }

    proptest! {
        #[test]
        fn sizes_stay_within_bounds(latencies in prop::collection::vec(any::<u64>(), 0..10_000), limit in any::<u64>()) {
            let mut tuner = BatchTuner::new(limit, 0.05);
            for latency in latencies {
                let before = tuner.size();
                answer(&mut tuner, latency, before);
                prop_assert!(SIZES.contains(&tuner.size()));
            }
        }

        /// Whatever it was fed before, it finds the largest size that keeps the limit.
        #[test]
        fn it_recovers_from_anything(
            latencies in prop::collection::vec((any::<u64>(), any::<u64>(), any::<u16>()), 0..3000), fixed in 0u64..10_000, per_call in 1u64..2_000,
        ) {
            let mut tuner = BatchTuner::new(20_000, 0.05);
            for (opened, now, calls) in latencies {
                tuner.answered(opened, now, calls);
                prop_assert!(SIZES.contains(&tuner.size()));
            }
            // A clock that says no more when this was.
            tuner.changed = 0; tuner.settling = false;
            play(&mut tuner, 300, |size| fixed + per_call * u64::from(size));
            let best = ((20_000 - fixed) / per_call).clamp(1, 128) as i64;
            let size = i64::from(tuner.size());
            prop_assert!((size - best).abs() <= 1 + best / 10, "{size}, not {best}");
        }
    }
}
