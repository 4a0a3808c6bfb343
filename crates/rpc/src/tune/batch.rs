//! Choice of the batch size (RF-RPC section 4.2, equation 3).
//!
//! The caller gives a latency limit and the share of calls that may exceed it. Each batch in time makes the
//! next batches a little longer; each late batch makes them shorter, by so much more that both balance at the
//! tolerated share. This is equation 3 in small steps, one per batch. Three properties differ from the paper:
//!
//! * The paper keeps a size while the late share lies between a tenth of the tolerated share and all of it.
//!   This tuner has no such range: where latency varies, a size with half a percent of late calls has far
//!   less throughput than one with four percent.
//! * Steps grow while all batches are in time, or all are late, so that the size follows a change of the
//!   workload within some dozens of batches. They halve with each late batch that follows timely ones, down
//!   to a fiftieth of the size.
//! * The size has no field in the protocol: the count of a batch implies it. A server answers the calls of a
//!   message in one message, so it uses the client's new size at once.
//!
//! Longer batches do not always have more throughput: one more call that takes another READ, or another
//! message for its result, can make a batch half as long again. So the tuner keeps the time of batches of
//! each size. If a smaller size has more throughput, batches get that size, and one in some dozens tests
//! whether this is still true.
//!
//! Shorter batches do not always have lower latency: calls in flight wait for each other, and shorter batches
//! mean more messages. So if most calls are late, shrinking must pay: if half of the size does not lower
//! latency, the tuner tries longer batches as far as that helps, and stays at the lowest latency if no size
//! keeps the limit.

use super::batch_steps::BatchSteps;
use dunlin_fabric::Nanos;
use std::ops::RangeInclusive;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};

/// The rule by which the size of batches follows their latency.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BatchRule {
    /// Batches in time and late ones balance, in steps that grow and shrink.
    #[default]
    Balanced,
    /// One call more or fewer, and rest in between: RF-RPC's equation 3.
    Steps,
}

/// The range of batch sizes (section 4.2: the best ones lie in it).
pub(crate) const SIZES: RangeInclusive<u16> = 1..=128;
/// The largest size with its fraction.
const LARGEST: f64 = *SIZES.end() as f64 + 0.99;
/// The aim as a part of the tolerated share; the rest allows for chance.
const AIM: f64 = 0.86;
/// The least aim: without any late calls the tuner could not detect the limit.
const LEAST_AIM: f64 = 0.005;
/// The gain: a batch changes the size by the factor `1 + gain * (aim - late share)`, and shrinks it by at most
/// `MOST_SHRUNK`.
const GAIN: RangeInclusive<f64> = 0.02..=4.0;
const MOST_SHRUNK: f64 = 0.5;
/// Steps grow once a row of timely batches is so long that this many of them would be late at the aimed share,
/// and has taken this many round trips...
const LONG_RUN: f64 = 3.0;
/// ...and with each late batch after this many round trips.
const LATE_RUN: f64 = 2.0;
/// Batches in a round of observations: to detect that most calls are late, and while sizes are tried.
const SHORT_ROUND: u32 = 8;
const ROUND: u32 = 16;
/// A round takes at least this many round trips, however many batches are in flight.
const ROUND_TRIPS: f64 = 2.0;
/// A late share above this counts as most calls.
const MOST: f64 = 0.5;
/// Rounds before shorter batches are tried again if no size keeps the limit: at first, and at most.
const PATIENCE: RangeInclusive<u16> = 1..=64;
/// Latency counts as lower below this part of the earlier one.
const EARLIER: f64 = 0.97;
/// With several batches in flight, longer batches are tried up to this multiple of the lowest latency: an
/// additional line per message, or long messages of other clients, may raise latency at first.
const MUCH_LATER: f64 = 2.0;
/// Several batches are in flight if one takes at most this part of a round trip.
const SEVERAL: f64 = 0.5;
/// While a size is held, a latency ratio outside these bounds means that the workload has changed.
const SAME: RangeInclusive<f64> = 0.7..=1.4;

/// A size may have less throughput than a smaller one, because one more call may take another READ. The best
/// size from half of it on is taken if its throughput is higher by this factor. Sizes below `FEW` must pay
/// for themselves: one more call is a large share there.
const SMALLER_DOES: f64 = 1.05;
const FEW_DO: f64 = 0.9;
const FEW: u16 = 4;
/// One batch in this many uses the other size, so that both stay measured.
const OTHER_WAY: u32 = 32;
/// Averaging window of a size in batches, and batches before its average is used.
const KNOWN_BY: u16 = 32;
const KNOWN_FROM: u16 = 16;
/// An average is forgotten once a batch takes less than this part of it: the workload has changed, or a clock jumped.
const STALE: f32 = 1.0 / 64.0;
const KNOWN_SIZES: usize = *SIZES.end() as usize + 1;

/// A size and its mean latency in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Tried {
    size: f64,
    latency: f64,
}

/// The state of the search.
#[derive(Clone, Copy, Debug)]
enum Search {
    /// Each batch changes the size.
    Tracking,
    /// Like `Tracking`, but most calls were late at the given point.
    Falling(Tried),
    /// No size has kept the limit for long: tries shorter batches, starting from the given point.
    Shorter(Tried),
    /// Shorter batches did not lower latency, or there are no shorter ones: tries longer batches. `best` has
    /// the lowest latency so far; `tried` is the last size.
    Longer { best: Tried, tried: f64 },
    /// No size keeps the limit; `at` has the lowest latency. Held for this many rounds.
    Held { at: Tried, rounds: u16 },
}

/// The batches of a round: their number, round trips, calls, late calls, and the summed latency of all calls.
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

    /// Returns whether several batches were in flight at once.
    fn several(&self) -> bool {
        self.trips <= SEVERAL * f64::from(self.batches)
    }

    fn tried(&self) -> Tried {
        let size = self.calls as f64 / f64::from(self.batches.max(1));
        Tried { size: size.clamp(1.0, LARGEST), latency: self.taken / self.calls.max(1) as f64 }
    }
}

/// The outcome of a batch.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Answered {
    /// Calls in the batch.
    pub(crate) calls: u16,
    /// Late calls.
    pub(crate) late: u16,
    /// Summed latency of its calls, in nanoseconds.
    pub(crate) taken: Nanos,
}

/// Chooses the batch size.
#[derive(Clone, Debug)]
pub(crate) struct BatchTuner {
    tolerance: f64,
    /// The share of late calls that is aimed at.
    aim: f64,
    /// The size with its fraction.
    size: f64,
    gain: f64,
    /// Consecutive timely batches, their round trips, and consecutive late round trips.
    timely: f64,
    timely_trips: f64,
    late_trips: f64,
    search: Search,
    patience: u16,
    /// The size for the next batches.
    offered: u16,
    /// Answered batches.
    batches: u32,
    /// By size: the number of batches (bounded), and the mean nanoseconds per call, divided by the batches in
    /// flight.
    known: [(u16, f32); KNOWN_SIZES],
    /// Time at which a size was tried last. Batches opened earlier do not count, nor do those opened before
    /// the first batch of the new size was answered (`settling`): they still wait for batches of the old
    /// size.
    changed: Nanos,
    settling: bool,
    round: Round,
}

impl BatchTuner {
    /// Creates a tuner that starts with batches of one. `tolerance` is the share of calls that may be late;
    /// values outside 0 to 1 are clamped.
    pub(crate) fn new(tolerance: f64) -> Self {
        let tolerance = if tolerance.is_nan() { 0.0 } else { tolerance.clamp(0.0, 1.0) };
        BatchTuner {
            tolerance,
            // A share above 1 cannot be reached.
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

    /// Returns the largest number of calls for the next batch.
    #[inline]
    pub(crate) fn size(&self) -> u16 {
        self.offered
    }

    /// Returns whether the search tries sizes, so that single batches do not change them.
    fn is_trying(&self) -> bool {
        !matches!(self.search, Search::Tracking | Search::Falling(_))
    }

    /// Takes the outcome of a batch opened at `opened` and answered at `now`, one of `under_way` batches in
    /// flight.
    pub(crate) fn answered(&mut self, opened: Nanos, now: Nanos, batch: Answered, under_way: u32) {
        self.take(opened, now, batch, under_way);
        self.offered = self.offer();
    }

    /// Returns the size, or a smaller one with more throughput. Compares at most 64 numbers, once for each
    /// batch.
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
        // All batches in flight together count as one observation, and a batch that is not full counts less.
        let trips = 1.0 / f64::from(under_way.max(1));
        self.batches = self.batches.wrapping_add(1);
        if let Some((known, mean)) = self.known.get_mut(calls as usize) {
            let taken = (now.saturating_sub(opened) as f64 * trips / calls as f64) as f32;
            if taken < *mean * STALE {
                *known = 0;
            }
            *known = (*known + 1).min(KNOWN_BY);
            *mean += (taken - *mean) / f32::from(*known);
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

    /// Changes the size after a batch with this late share; `filled` is its part of the allowed calls.
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
            // A larger size has no effect if batches are never filled to it.
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

    /// Judges a finished round; `several` tells whether several batches were in flight.
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

    /// Tries batches of half the size, or longer ones if the size is below 2.
    fn shorten(&mut self, from: Tried) {
        if from.size < 2.0 {
            return self.lengthen(from);
        }
        self.search = Search::Shorter(from);
        self.size = (from.size / 2.0).floor();
    }

    /// Tries longer batches than `from`, or stays if `from` has the largest size.
    fn lengthen(&mut self, from: Tried) {
        self.lengthen_beyond(from, from.size);
    }

    /// Tries batches that are half as long again as `tried`, or stays with the best if `tried` is the largest
    /// size.
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

/// The batch size of all lanes of a client, shared by threads. A thread that opens a batch loads it; a thread
/// whose batch was answered updates it, unless another thread is updating it.
#[derive(Debug)]
pub(crate) struct BatchSize {
    limit: Nanos,
    size: AtomicU16,
    under_way: AtomicU32,
    tuner: Mutex<Tuner>,
}

/// The tuner of a rule.
#[derive(Debug)]
enum Tuner {
    Balanced(Box<BatchTuner>),
    Steps(BatchSteps),
}

impl BatchSize {
    /// Creates the size as [`BatchTuner::new`] does; calls answered after more than `limit` nanoseconds are
    /// late.
    pub(crate) fn new(limit: Nanos, tolerance: f64, rule: BatchRule) -> Self {
        let tuner = match rule {
            BatchRule::Balanced => Tuner::Balanced(Box::new(BatchTuner::new(tolerance))),
            BatchRule::Steps => Tuner::Steps(BatchSteps::new(tolerance)),
        };
        let size = AtomicU16::new(*SIZES.start());
        BatchSize { limit, size, under_way: AtomicU32::new(0), tuner: Mutex::new(tuner) }
    }

    /// Returns the largest number of calls for a batch now.
    #[inline]
    pub(crate) fn get(&self) -> u16 {
        self.size.load(Ordering::Relaxed)
    }

    /// Returns the latency limit in nanoseconds.
    #[inline]
    pub(crate) fn limit(&self) -> Nanos {
        self.limit
    }

    /// Counts a batch that was sent.
    #[inline]
    pub(crate) fn sent(&self) {
        self.under_way.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes the outcome of a batch whose calls are all answered.
    pub(crate) fn answered(&self, opened: Nanos, now: Nanos, batch: Answered) {
        let under_way = self.under_way.fetch_sub(1, Ordering::Relaxed);
        // No thread blocks: of two concurrent outcomes one is dropped.
        if let Ok(mut tuner) = self.tuner.try_lock() {
            let size = match &mut *tuner {
                Tuner::Balanced(tuner) => {
                    tuner.answered(opened, now, batch, under_way);
                    tuner.size()
                }
                Tuner::Steps(steps) => {
                    steps.answered(opened, now, batch);
                    steps.size()
                }
            };
            self.size.store(size, Ordering::Relaxed);
        }
    }

    /// Removes batches that were sent and will not be answered.
    pub(crate) fn lost(&self, batches: usize) {
        self.under_way.fetch_sub(batches as u32, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A tuner and its limit, as in [`BatchSize`].
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

        /// Plays a batch that begins when the previous one was answered.
        fn answer(&mut self, latency: Nanos, calls: u16) {
            let opened = self.tuner.changed;
            let late = if latency > self.limit { calls } else { 0 };
            let batch = Answered { calls, late, taken: latency.saturating_mul(calls.into()) };
            self.tuner.answered(opened, opened.saturating_add(latency), batch, 1);
        }

        /// Plays batches whose latency depends on their size.
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
        // The size shrinks within a dozen batches.
        tuner.play(16, |size| 5_000 + 1000 * u64::from(size));
        assert!(tuner.size() <= 16, "{}", tuner.size());
    }

    /// Latency varies randomly by up to a third: the tuner finds the size at which the tolerated share is
    /// late, not the one at which no call is late.
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
        // With 61 calls one call of twenty is late.
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

    /// Latency with 128 calls in flight: 1 us for each message, and 100 ns for each call in the same message.
    /// The lowest latency, 7.2 us, has 36 calls in a message.
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
        // The largest size within the limit is 84, the smallest 15.
        assert!(sizes[12..].iter().all(|size| (15..=100).contains(size)), "{sizes:?}");
        assert!((78..=85).contains(&tuner.size()), "{sizes:?}");
        // Also from above, and after a change of the workload.
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
            // The mean is within a sixth of the lowest latency, including the cost of trials.
            assert!(latencies / 200 < 8_400, "{}", latencies / 200);
            // A limit that becomes feasible is kept.
            tuner.play(1000, |_| 1_000);
            assert!(tuner.size() > 100, "{}", tuner.size());
        }
    }

    /// The server serves a fixed number of lines of each client in rotation, and others send long messages.
    /// With 128 calls in flight, fewer calls per message mean more latency, except for single calls, of which
    /// it takes several at a time. So two per message are later than one, and only many are earlier.
    #[test]
    fn longer_batches_are_tried_beyond_those_that_are_no_earlier() {
        let latency = |size: u16| if size == 1 { 190_000 } else { 70_000 + 600_000 / Nanos::from(size) };
        for limit in [120_000, 180_000, 189_000] {
            let mut tuner = BatchTuner::new(0.05);
            let mut now = 0;
            for batch in 0..30_000u32 {
                let calls = tuner.size();
                // One batch of ten takes a little longer.
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

    /// With two calls the results take another READ; a third call takes no more.
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

    /// One message holds 29 results: with 30 the last one arrives late, with a second message, and the batch
    /// takes half as long again.
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

    /// A batch that claims to have no calls must not make a size of one half.
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

    /// Lanes of several threads share one size, and the batches of a lane that ends are forgotten.
    #[test]
    fn lanes_share_it() {
        let size = BatchSize::new(1000, 0.05, BatchRule::default());
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

    /// A clock that jumps makes batches of some sizes seem to take centuries. Batches of these sizes count again at once.
    #[test]
    fn a_time_that_cannot_be_is_forgotten() {
        for jumped in SIZES {
            let mut tuner = Limited::new(20_000, 0.05);
            for _ in 0..KNOWN_FROM {
                let batch = Answered { calls: jumped, late: 0, taken: 10_000 };
                tuner.tuner.answered(0, Nanos::MAX, batch, 1);
            }
            (tuner.tuner.changed, tuner.tuner.settling) = (0, false);
            tuner.play(3000, |size| 9_297 + 1_888 * u64::from(size));
            for _ in 0..200 {
                tuner.play(1, |size| 9_297 + 1_888 * u64::from(size));
                assert!((4..=6).contains(&tuner.size()), "{} after a jump at {jumped}", tuner.size());
            }
        }
    }

    proptest! {
        /// After any input it finds the largest size that keeps the limit.
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
            // The clock restarts from 0.
            tuner.tuner.changed = 0; tuner.tuner.settling = false;
            tuner.play(6000, |size| fixed + per_call * u64::from(size));
            let best = ((20_000 - fixed) / per_call).clamp(1, 128) as i64;
            let size = i64::from(tuner.size());
            prop_assert!((size - best).abs() <= 1 + best / 10, "{size}, not {best}");
        }
    }
}
