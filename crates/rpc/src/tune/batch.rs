//! How many calls travel together (RF-RPC section 4.2, equation 3).
//!
//! The caller says how late an answer may be and how many may be later. Each batch that was in time makes the next ones a little longer,
//! each late one makes them shorter, by so much more that both balance where the tolerated share is late. That is equation 3 call by
//! call: one step up or down is many small ones. Three things differ from the paper:
//!
//! * It has no share between a tenth of what is tolerated and all of it at which a size stays. Where latency varies, a size at which half a
//!   percent of the calls is late does far less than one at which four percent are.
//! * Steps grow while nothing but in time, or nothing but late, is heard, so that a change of the world is followed in some dozens of batches,
//!   and halve with each late batch that follows timely ones, down to a fiftieth of the size.
//! * The size travels with each batch, as its count, and not in a field of its own that says what the next will be: a server answers what came
//!   together together, and so uses its client's size with the first batch that has it.
//!
//! More calls are not always more: one that takes another READ, or another message for its result, can make a batch half as long again. So it
//! is kept what batches of each size took, and where a smaller one does more, that is what batches get; one of some dozens tells whether this
//! is still so.
//!
//! Shorter batches are not always earlier. Calls that are in flight wait for each other by their number alone, and the less they
//! travel together the longer they do. So where most are late, shrinking has to be worth it: if half of the size makes calls no earlier,
//! the tuner goes the other way, as far as that does, and stays where they are earliest if nothing keeps the limit.

use dunlin_fabric::Nanos;
use std::ops::RangeInclusive;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};

/// The sizes of a batch that are tried (section 4.2: the best ones lie among these).
const SIZES: RangeInclusive<u16> = 1..=128;
/// The largest size with its part of the next.
const LARGEST: f64 = *SIZES.end() as f64 + 0.99;
/// The part of the tolerated share that is aimed at: what is left is for chance.
const AIM: f64 = 0.86;
/// Who tolerates nothing has so many late: without any, nothing tells that the limit is near.
const LEAST_AIM: f64 = 0.005;
/// A late batch makes the next shorter by this part of their size, less the tolerated share of that, and by half of it at most.
const GAIN: RangeInclusive<f64> = 0.02..=4.0;
const MOST_SHRUNK: f64 = 0.5;
/// Steps grow after so many times the batches in a row that were in time, of which one would be late at the share that is aimed at, and as
/// many round trips as these...
const LONG_RUN: f64 = 3.0;
/// ...and with each late one after so many round trips.
const LATE_RUN: f64 = 2.0;
/// Batches that are looked at together to tell whether most calls are late, and while sizes are tried.
const SHORT_ROUND: u32 = 8;
const ROUND: u32 = 16;
/// A round takes at least so many round trips, however many batches are under way.
const ROUND_TRIPS: f64 = 2.0;
/// More late ones are most.
const MOST: f64 = 0.5;
/// Rounds until shorter batches are tried again where nothing keeps the limit, at first and at most.
const PATIENCE: RangeInclusive<u16> = 1..=64;
/// Calls are earlier if their latency falls below this part of what it was.
const EARLIER: f64 = 0.97;
/// Where several batches are under way, longer ones are tried up to one with which calls take so many times as long as the earliest: what a
/// message of a line more costs, and who else sends longer ones, may make calls later at first.
const MUCH_LATER: f64 = 2.0;
/// Several batches are under way if one is this part of a round trip, or less.
const SEVERAL: f64 = 0.5;
/// The world has changed if latency leaves these bounds while a size is held.
const SAME: RangeInclusive<f64> = 0.7..=1.4;

/// A call more may take another READ, so a size may do less than a smaller one: of those down to its half the one that does most is taken
/// if it does so many times as much. Sizes below `FEW` have to be worth it themselves: a call more is much there.
const SMALLER_DOES: f64 = 1.05;
const FEW_DO: f64 = 0.9;
const FEW: u16 = 4;
/// One batch of so many goes the other way, so that both stay known.
const OTHER_WAY: u32 = 32;
/// What is known of a size is of so many batches, and nothing is known of it before these many.
const KNOWN_BY: u16 = 32;
const KNOWN_FROM: u16 = 16;
const KNOWN_SIZES: usize = *SIZES.end() as usize + 1;

/// What is known of a size: how long calls took there in the mean, in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Tried {
    size: f64,
    latency: f64,
}

/// What the tuner is doing.
#[derive(Clone, Copy, Debug)]
enum Search {
    /// Each batch moves the size.
    Tracking,
    /// The same, but most calls were late, here.
    Falling(Tried),
    /// Nothing has kept the limit for long; shorter ones are tried, from here.
    Shorter(Tried),
    /// Shorter ones were no earlier, or there are none; longer ones are tried: the earliest so far, and how long the last ones were.
    Longer { best: Tried, tried: f64 },
    /// Nothing keeps the limit, and here calls are earliest: for so many rounds.
    Held { at: Tried, rounds: u16 },
}

/// Batches of a round: how many, the round trips that they took, calls, late calls, and the time that all calls took.
#[derive(Clone, Copy, Debug, Default)]
struct Round {
    batches: u32,
    trips: f64,
    calls: u64,
    late: u64,
    taken: f64,
}

impl Round {
    fn is_over(&self, batches: u32) -> bool {
        self.batches >= batches && self.trips >= ROUND_TRIPS
    }

    fn late_share(&self) -> f64 {
        self.late as f64 / self.calls.max(1) as f64
    }

    /// Whether several batches were under way at once.
    fn several(&self) -> bool {
        self.trips <= SEVERAL * f64::from(self.batches)
    }

    fn tried(&self) -> Tried {
        let size = self.calls as f64 / f64::from(self.batches.max(1));
        Tried { size: size.clamp(1.0, LARGEST), latency: self.taken / self.calls.max(1) as f64 }
    }
}

/// What came of a batch.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Answered {
    /// Its calls.
    pub(crate) calls: u16,
    /// Those that were late.
    pub(crate) late: u16,
    /// What all of them took together, in nanoseconds.
    pub(crate) taken: Nanos,
}

/// Chooses the size of batches.
#[derive(Clone, Debug)]
pub(crate) struct BatchTuner {
    tolerance: f64,
    /// The share of late calls that is aimed at.
    aim: f64,
    /// The size, with its part of the next.
    size: f64,
    gain: f64,
    /// Batches in a row that were in time, their round trips, and round trips that were late.
    timely: f64,
    timely_trips: f64,
    late_trips: f64,
    search: Search,
    patience: u16,
    /// The size that batches are to have.
    offered: u16,
    /// Batches answered.
    batches: u32,
    /// Of those of each size how many, and the nanoseconds that one call takes a client, those under way together.
    known: [(u16, f32); KNOWN_SIZES],
    /// When a size was tried last. What was opened before does not count, and then what was opened before the first batch of
    /// the new size was answered: it still waits for those of the old one.
    changed: Nanos,
    settling: bool,
    round: Round,
}

impl BatchTuner {
    /// Starts with batches of one. `tolerance` is the share of calls that may be late; what is no share counts as the nearest one.
    pub(crate) fn new(tolerance: f64) -> Self {
        let tolerance = if tolerance.is_nan() { 0.0 } else { tolerance.clamp(0.0, 1.0) };
        BatchTuner {
            tolerance,
            // Nobody can be later than all.
            aim: (tolerance * (AIM + (1.0 - AIM) * tolerance)).max(LEAST_AIM),
            size: f64::from(*SIZES.start()),
            gain: *GAIN.end(),
            timely: 0.0,
            timely_trips: 0.0,
            late_trips: 0.0,
            search: Search::Tracking,
            patience: *PATIENCE.start(),
            offered: *SIZES.start(),
            batches: 0,
            known: [(0, 0.0); KNOWN_SIZES],
            changed: 0,
            settling: false,
            round: Round::default(),
        }
    }

    /// How many calls a batch may have.
    #[inline]
    pub(crate) fn size(&self) -> u16 {
        self.offered
    }

    /// Whether sizes are tried, and no batch moves them by itself.
    fn is_trying(&self) -> bool {
        !matches!(self.search, Search::Tracking | Search::Falling(_))
    }

    /// A batch that was opened at `opened` is answered now, one of so many that were under way.
    pub(crate) fn answered(&mut self, opened: Nanos, now: Nanos, batch: Answered, under_way: u32) {
        self.take(opened, now, batch, under_way);
        self.offered = self.offer();
    }

    /// The size, or a smaller one that does more. At most 64 numbers are compared, for as many calls.
    fn offer(&self) -> u16 {
        let size = self.size as u16;
        if self.is_trying() {
            return size;
        }
        let known =
            |size: u16| self.known.get(usize::from(size)).filter(|of| of.0 >= KNOWN_FROM).map(|of| of.1);
        let smaller = (size / 2).max(*SIZES.start())..size;
        let best = smaller.filter_map(|size| Some((size, known(size)?))).min_by(|a, b| a.1.total_cmp(&b.1));
        let (Some((smaller, takes)), Some(whole)) = (best, known(size)) else { return size };
        let enough = if size < FEW { FEW_DO } else { SMALLER_DOES };
        let does_more = f64::from(takes) * enough < whole.into();
        if does_more != self.batches.is_multiple_of(OTHER_WAY) { smaller } else { size }
    }

    fn take(&mut self, opened: Nanos, now: Nanos, batch: Answered, under_way: u32) {
        if self.is_trying() && (opened < self.changed || self.settling) {
            if opened >= self.changed {
                (self.changed, self.settling) = (now, false);
            }
            return;
        }
        let calls = u64::from(batch.calls.max(1));
        // What is under way at once says one thing, and a batch that is not full less than one that is.
        let trips = 1.0 / f64::from(under_way.max(1));
        self.batches = self.batches.wrapping_add(1);
        if let Some((known, mean)) = self.known.get_mut(calls as usize) {
            *known = (*known + 1).min(KNOWN_BY);
            let taken = now.saturating_sub(opened) as f64 * trips / calls as f64;
            *mean += (taken as f32 - *mean) / f32::from(*known);
        }
        if !self.is_trying() {
            let late = f64::from(batch.late) / calls as f64;
            self.track(late.min(1.0), trips, calls as f64 / self.size);
        }
        let round = &mut self.round;
        round.batches = round.batches.saturating_add(1);
        round.trips += trips;
        round.calls = round.calls.saturating_add(calls);
        round.late = round.late.saturating_add(batch.late.into());
        round.taken += batch.taken as f64;
        let enough = if self.is_trying() { ROUND } else { SHORT_ROUND };
        if self.round.is_over(enough) {
            let round = std::mem::take(&mut self.round);
            let before = self.size as u16;
            self.judge(round.late_share(), round.tried(), round.several());
            if self.is_trying() && self.size as u16 != before {
                (self.changed, self.settling) = (now, true);
            }
        }
    }

    /// A batch of which this share was late, and that had this part of the calls that it may have, moves the size.
    fn track(&mut self, late: f64, trips: f64, filled: f64) {
        if late > 0.0 {
            let first = self.timely > 0.0;
            (self.timely, self.timely_trips, self.late_trips) = (0.0, 0.0, self.late_trips + trips);
            if self.late_trips > LATE_RUN {
                self.gain *= 1.0 + trips;
            } else if first {
                self.gain *= 0.5;
            }
        } else {
            self.late_trips = 0.0;
            // Longer ones than are ever filled make no difference, until one day they do.
            if filled * 2.0 < 1.0 {
                return;
            }
            self.timely += 1.0;
            self.timely_trips += trips;
            if self.timely * self.aim > LONG_RUN && self.timely_trips > LONG_RUN {
                self.gain *= 2.0;
                self.timely -= 1.0 / self.aim;
                self.timely_trips -= 1.0;
            }
        }
        self.gain = self.gain.clamp(*GAIN.start(), *GAIN.end());
        let step = (self.gain * (self.aim - late)).max(-MOST_SHRUNK);
        self.size *= 1.0 + step * trips * filled.min(1.0);
        self.size = self.size.clamp(f64::from(*SIZES.start()), LARGEST);
    }

    /// A round has ended, in which several batches were under way at once or not.
    fn judge(&mut self, late: f64, here: Tried, several: bool) {
        let smallest = self.size as u16 == *SIZES.start();
        match self.search {
            Search::Tracking if late > MOST => self.search = Search::Falling(here),
            Search::Tracking => {}
            Search::Falling(_) if late <= MOST => self.search = Search::Tracking,
            Search::Falling(from) => {
                let earlier = here.latency < EARLIER * from.latency;
                if smallest && (earlier || here.size >= from.size) {
                    self.lengthen(here);
                } else if here.size * 2.0 <= from.size || smallest {
                    if earlier { self.search = Search::Falling(here) } else { self.lengthen(from) }
                }
            }
            Search::Shorter(_) | Search::Longer { .. } | Search::Held { .. } if late <= self.tolerance => {
                (self.search, self.patience) = (Search::Tracking, *PATIENCE.start());
                (self.gain, self.timely, self.timely_trips, self.late_trips) = (*GAIN.start(), 0.0, 0.0, 0.0);
            }
            Search::Shorter(from) if here.latency < EARLIER * from.latency => self.shorten(here),
            Search::Shorter(from) => self.lengthen(from),
            Search::Longer { best, .. } if here.latency < EARLIER * best.latency => self.lengthen(here),
            Search::Longer { best, tried } if several && here.latency < MUCH_LATER * best.latency => {
                self.lengthen_beyond(best, tried);
            }
            Search::Longer { best, .. } => self.hold(best),
            Search::Held { at, rounds } => {
                let same = SAME.contains(&(here.latency / at.latency.max(1.0)));
                if rounds > 1 && same {
                    self.search = Search::Held { at, rounds: rounds - 1 };
                } else {
                    self.patience =
                        if same { (self.patience * 2).min(*PATIENCE.end()) } else { *PATIENCE.start() };
                    self.shorten(here);
                }
            }
        }
        self.size = self.size.clamp(f64::from(*SIZES.start()), LARGEST);
    }

    /// Tries batches of half the size, or longer ones if there are none.
    fn shorten(&mut self, from: Tried) {
        if from.size < 2.0 {
            return self.lengthen(from);
        }
        self.search = Search::Shorter(from);
        self.size = (from.size / 2.0).floor();
    }

    /// Tries batches that are longer than these, or stays if there are none.
    fn lengthen(&mut self, from: Tried) {
        self.lengthen_beyond(from, from.size);
    }

    /// Tries batches of half as much again as these, or stays with the best if there are none.
    fn lengthen_beyond(&mut self, best: Tried, tried: f64) {
        if tried >= f64::from(*SIZES.end()) {
            return self.hold(best);
        }
        self.size = (tried.floor() + (tried / 2.0).floor().max(1.0)).min(LARGEST);
        self.search = Search::Longer { best, tried: self.size };
    }

    fn hold(&mut self, at: Tried) {
        self.search = Search::Held { at, rounds: self.patience };
        self.size = at.size.round();
    }
}

/// The size of batches of all lanes of a client, of whatever thread: who opens a batch loads it, and who had one answered moves it, unless
/// another is at it.
#[derive(Debug)]
pub(crate) struct BatchSize {
    limit: Nanos,
    size: AtomicU16,
    under_way: AtomicU32,
    tuner: Mutex<BatchTuner>,
}

impl BatchSize {
    /// As [`BatchTuner::new`]; what is answered after more than `limit` nanoseconds is late.
    pub(crate) fn new(limit: Nanos, tolerance: f64) -> Self {
        let tuner = BatchTuner::new(tolerance);
        let size = AtomicU16::new(tuner.size());
        BatchSize { limit, size, under_way: AtomicU32::new(0), tuner: Mutex::new(tuner) }
    }

    /// How many calls a batch may have now.
    #[inline]
    pub(crate) fn get(&self) -> u16 {
        self.size.load(Ordering::Relaxed)
    }

    /// How late a call may be answered, in nanoseconds.
    #[inline]
    pub(crate) fn limit(&self) -> Nanos {
        self.limit
    }

    /// A batch was sent.
    #[inline]
    pub(crate) fn sent(&self) {
        self.under_way.fetch_add(1, Ordering::Relaxed);
    }

    /// All calls of a batch that was sent were answered.
    pub(crate) fn answered(&self, opened: Nanos, now: Nanos, batch: Answered) {
        let under_way = self.under_way.fetch_sub(1, Ordering::Relaxed);
        // Nobody waits: of two at once one is not heard.
        if let Ok(mut tuner) = self.tuner.try_lock() {
            tuner.answered(opened, now, batch, under_way);
            self.size.store(tuner.size(), Ordering::Relaxed);
        }
    }

    /// So many batches that were sent are not answered any more.
    pub(crate) fn lost(&self, batches: usize) {
        self.under_way.fetch_sub(batches as u32, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A tuner and its limit, as [`BatchSize`] has them.
    struct Limited {
        tuner: BatchTuner,
        limit: Nanos,
    }

    impl Limited {
        fn new(limit: Nanos, tolerance: f64) -> Self {
            Limited { tuner: BatchTuner::new(tolerance), limit }
        }

        fn size(&self) -> u16 {
            self.tuner.size()
        }

        /// A batch that begins when the one before was answered.
        fn answer(&mut self, latency: Nanos, calls: u16) {
            let opened = self.tuner.changed;
            let late = if latency > self.limit { calls } else { 0 };
            let batch = Answered { calls, late, taken: latency.saturating_mul(calls.into()) };
            self.tuner.answered(opened, opened.saturating_add(latency), batch, 1);
        }

        /// Plays batches whose latency goes by their size.
        fn play(&mut self, batches: u32, latency: impl Fn(u16) -> Nanos) {
            for _ in 0..batches {
                let size = self.size();
                self.answer(latency(size), size);
            }
        }
    }

    #[test]
    fn it_finds_the_largest_size_that_keeps_the_limit_and_follows_it() {
        let mut tuner = Limited::new(20_000, 0.05);
        tuner.play(400, |size| 5_000 + 300 * u64::from(size));
        // 50 calls take 20 us.
        assert!((47..=51).contains(&tuner.size()), "{}", tuner.size());
        tuner.play(200, |size| 5_000 + 1000 * u64::from(size));
        assert!((13..=16).contains(&tuner.size()), "{}", tuner.size());
        tuner.play(500, |_| 1_000);
        assert_eq!(tuner.size(), *SIZES.end());
        // Downwards it takes a dozen batches.
        tuner.play(16, |size| 5_000 + 1000 * u64::from(size));
        assert!(tuner.size() <= 16, "{}", tuner.size());
    }

    /// Latencies that vary by chance: one of twenty takes twice as long, as if by the way, and others differ by a third. The size is that
    /// at which the tolerated share is late, and not the one at which nothing is.
    #[test]
    fn where_latency_varies_the_tolerance_is_used() {
        let mut tuner = Limited::new(30_000, 0.05);
        let (mut calls, mut late, mut state) = (0, 0, 1u64);
        for batch in 0..8000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let chance = 1.0 + (state >> 40) as f64 / f64::from(1 << 24) / 3.0;
            let size = tuner.size();
            let latency = ((5_000.0 + 300.0 * f64::from(size)) * chance) as Nanos;
            if batch > 500 {
                calls += u64::from(size);
                late += if latency > tuner.limit { u64::from(size) } else { 0 };
            }
            tuner.answer(latency, size);
        }
        // With 61 calls one of twenty is late.
        let (mean, share) = (calls as f64 / 7499.0, late as f64 / calls as f64);
        assert!((57.0..=62.0).contains(&mean) && (0.03..=0.05).contains(&share), "{mean} {share}");
    }

    #[test]
    fn a_limit_that_nothing_keeps_means_batches_of_one() {
        let mut tuner = Limited::new(10, 0.05);
        for _ in 0..50 {
            tuner.play(30, |size| 1_000 + 100 * u64::from(size));
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
        let mut tuner = Limited::new(10_000, 0.05);
        let sizes: Vec<u16> = (0..100)
            .map(|_| {
                tuner.play(32, in_flight);
                tuner.size()
            })
            .collect();
        // 84 are the most that keep it, and 15 the fewest.
        assert!(sizes[12..].iter().all(|size| (15..=100).contains(size)), "{sizes:?}");
        assert!((78..=85).contains(&tuner.size()), "{sizes:?}");
        // From above, too, and where the world becomes such.
        let mut tuner = Limited::new(10_000, 0.05);
        tuner.play(1000, |_| 100);
        assert_eq!(tuner.size(), *SIZES.end());
        tuner.play(1000, in_flight);
        assert!((78..=85).contains(&tuner.size()), "{}", tuner.size());
    }

    #[test]
    fn where_nothing_keeps_the_limit_calls_are_as_early_as_can_be() {
        for start in [100, 1_000_000] {
            let mut tuner = Limited::new(5_000, 0.05);
            tuner.play(1000, |_| start);
            let mut latencies = 0;
            for _ in 0..200 {
                tuner.play(32, in_flight);
                latencies += in_flight(tuner.size());
            }
            // Within a sixth of the earliest in the mean, what trying costs included.
            assert!(latencies / 200 < 8_400, "{}", latencies / 200);
            // And a limit that can be kept then is.
            tuner.play(1000, |_| 1_000);
            assert!(tuner.size() > 100, "{}", tuner.size());
        }
    }

    /// A server that takes so many lines of each client by turns, of which others send long messages: who has 128 calls in flight waits for the
    /// longer the less of them travel together, but for single ones, of which it takes several at a time. So two are later than one, and only
    /// many are earlier.
    #[test]
    fn longer_batches_are_tried_beyond_those_that_are_no_earlier() {
        let latency = |size: u16| if size == 1 { 190_000 } else { 70_000 + 600_000 / Nanos::from(size) };
        for limit in [120_000, 180_000, 189_000] {
            let mut tuner = BatchTuner::new(0.05);
            let mut now = 0;
            for batch in 0..30_000u32 {
                let calls = tuner.size();
                // One of ten takes a little longer.
                let taken = latency(calls) + if batch.is_multiple_of(10) { 4_000 } else { 0 };
                let opened = now;
                let under_way = u32::from(128 / calls).max(1);
                now += taken / Nanos::from(under_way);
                let late = if taken > limit { calls } else { 0 };
                let answered = Answered { calls, late, taken: taken * Nanos::from(calls) };
                tuner.answered(opened, opened + taken, answered, under_way);
            }
            assert!(tuner.size() > 16, "{} within {limit}", tuner.size());
        }
    }

    #[test]
    fn who_stands_at_the_edge_is_rarely_late() {
        let mut tuner = Limited::new(20_000, 0.05);
        tuner.play(1000, |size| 400 * u64::from(size));
        let (mut late, mut all) = (0, 0);
        for _ in 0..5000 {
            let size = u64::from(tuner.size());
            all += size;
            late += if 400 * size > 20_000 { size } else { 0 };
            tuner.answer(400 * size, size as u16);
        }
        assert!(late * 20 <= all, "{late} of {all}");
        assert!(all > 48 * 5000, "{all}");
    }

    #[test]
    fn sizes_that_are_never_reached_are_not_asked_for() {
        let mut tuner = Limited::new(20_000, 0.05);
        for _ in 0..32_000 {
            let calls = 3.min(tuner.size());
            tuner.answer(100, calls);
        }
        assert!((3..=7).contains(&tuner.size()), "{}", tuner.size());
    }

    /// Two results that take another READ, and three that take no more.
    #[test]
    fn a_call_more_has_to_be_worth_it() {
        let latency = |size: u16| if size == 1 { 3_500 } else { 6_000 + 1000 * u64::from(size) };
        for (limit, sizes) in [(8_500, 1.0..1.2), (20_000, 13.0..14.1)] {
            let mut tuner = Limited::new(limit, 0.05);
            tuner.play(2000, latency);
            let mut all = 0;
            for _ in 0..320 {
                all += u32::from(tuner.size());
                tuner.play(1, latency);
            }
            assert!(sizes.contains(&(f64::from(all) / 320.0)), "{all}");
        }
    }

    /// Results of which 29 go into one message: with 30 the last one comes with a second message, late, and the batch takes half as long again.
    #[test]
    fn a_message_more_has_to_be_worth_it() {
        let mut tuner = BatchTuner::new(0.05);
        let (mut calls, mut now) = (0, 0);
        for batch in 0..8000 {
            let size = Nanos::from(tuner.size());
            let (opened, beyond) = (now, size.saturating_sub(29));
            let first = 6_000 + 450 * (size - beyond);
            let second = if beyond > 0 { 9_000 + 450 * beyond } else { 0 };
            now += first + second;
            let late = if first + second > 24_000 { beyond as u16 } else { 0 };
            let answered = Answered { calls: size as u16, late, taken: size * first + beyond * second };
            tuner.answered(opened, now, answered, 1);
            if batch >= 4000 {
                calls += size;
            }
        }
        let mean = calls as f64 / 4000.0;
        assert!((27.0..30.0).contains(&mean), "{mean}");
    }

    #[test]
    fn nobody_may_be_late_or_everybody_may() {
        let mut none = Limited::new(100, -3.0);
        none.play(2000, |size| if size > 4 { 200 } else { 50 });
        assert!((3..=5).contains(&none.size()), "{}", none.size());
        let mut all = Limited::new(100, f64::INFINITY);
        all.play(2000, |size| if size > 4 { 200 } else { 50 });
        assert!(all.size() >= 4);
        let mut nonsense = Limited::new(0, f64::NAN);
        nonsense.play(300, |_| 1 << 40);
        assert!(nonsense.size() <= 2);
    }

    /// A batch that says that it had no calls does not make half of one a size.
    #[test]
    fn no_batch_is_offered_no_calls() {
        let mut tuner = BatchTuner::new(0.05);
        for calls in [0, 1, 0, 1] {
            for number in 0..100 {
                tuner.answered(number, number + 10, Answered { calls, late: calls, taken: 10 }, 1);
                assert!(SIZES.contains(&tuner.size()));
            }
        }
    }

    /// Lanes of several threads have one size, and what a lane that ends had under way is forgotten.
    #[test]
    fn lanes_share_it() {
        let size = BatchSize::new(1000, 0.05);
        let batch = |latency: Nanos| Answered {
            calls: size.get(),
            late: if latency > size.limit() { size.get() } else { 0 },
            taken: latency * Nanos::from(size.get()),
        };
        for round in 0..2000 {
            (0..4).for_each(|_| size.sent());
            (0..4).for_each(|_| size.answered(round * 100, round * 100 + 50, batch(50)));
        }
        assert_eq!(size.get(), *SIZES.end());
        (0..3).for_each(|_| size.sent());
        size.lost(3);
        assert_eq!(size.under_way.load(Ordering::Relaxed), 0);
    }

    proptest! {
        /// Whatever it was fed before, it finds the largest size that keeps the limit.
        #[test]
        fn it_recovers_from_anything(
            batches in prop::collection::vec((any::<[u64; 3]>(), any::<[u16; 2]>(), any::<u32>()), 0..3000),
            fixed in 0u64..10_000, per_call in 1u64..2_000,
        ) {
            let mut tuner = Limited::new(20_000, 0.05);
            for ([opened, now, taken], [calls, late], under_way) in batches {
                tuner.tuner.answered(opened, now, Answered { calls, late, taken }, under_way);
                prop_assert!(SIZES.contains(&tuner.size()));
            }
            // A clock that says no more when this was.
            tuner.tuner.changed = 0; tuner.tuner.settling = false;
            tuner.play(6000, |size| fixed + per_call * u64::from(size));
            let best = ((20_000 - fixed) / per_call).clamp(1, 128) as i64;
            let size = i64::from(tuner.size());
            prop_assert!((size - best).abs() <= 1 + best / 10, "{size}, not {best}");
        }
    }
}
