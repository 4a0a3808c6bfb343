//! The choice of stores for buffers that the peer has READ: plain stores, or stores past the caches.
//!
//! A plain store waits until the peer's core gives the line up, unless that core has dropped it meanwhile;
//! the cost depends on the distance of the cores and on the bytes that passed through the caches. A store
//! past the caches waits for nobody, but the peer must then READ the line from memory.
//!
//! So the sender takes the time of the first piece of each payload. If plain stores take several times as
//! long, it stores the rest past the caches, and the next payloads too, until it tries plain stores again. A
//! trial takes two payloads: lines that were stored past the caches are in no cache, so the first plain
//! stores to them are slow in any case. One payload brings the lines back, and the first piece of the next
//! one gives the measurement. No calibration is needed in advance.
//!
//! The distance of cores is alike for many lanes, and changes for all of them when a host moves virtual
//! processors. So a lane that finds plain stores fast again notifies the other lanes, which try them with
//! their next payload. Each lane still decides for itself, since peers may be near or far.
//!
//! Buffers that were READ recently and buffers that were READ long ago have separate state. A lane that has
//! only the former, and finds them slow, gets more buffers to rotate through (`tune/buffer_rotation.rs`).

use super::buffer_rotation::Residency;
use dunlin_fabric::Nanos;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Notifications between the lanes of a process.
#[derive(Debug, Default)]
pub(crate) struct FillReports {
    /// Number of times that plain stores became fast for a lane.
    count: AtomicU32,
    /// Lanes so far.
    lanes: AtomicU32,
}

/// Chooses the stores for a lane's large payloads.
#[derive(Debug)]
pub(crate) struct StorePolicyTuner {
    news: Arc<FillReports>,
    /// The value of `news.count` that this lane has seen.
    heard: u32,
    /// The lane's number: lanes start trials at different times.
    number: u32,
    /// Time of a line stored past the caches, in sixteenths of a nanosecond.
    streamed: u32,
    /// For buffers that were READ recently, and long ago.
    ways: [PolicyRecord; 2],
}

/// The choice for buffers of one history.
#[derive(Clone, Copy, Debug)]
struct PolicyRecord {
    streams: bool,
    /// Payloads until the next trial of plain stores.
    left: u8,
    /// The number of payloads before that trial, approximately.
    patience: u8,
    /// The last payload was filled with plain stores as the first half of a trial: the next one gives the
    /// measurement.
    warmed: bool,
}

/// Assumed time of a line stored past the caches, before it is measured.
const STREAMED: u32 = 3 * 16;
const LONGEST_PATIENCE: u8 = 128;
/// From this number on the result was stable, and not caused by a single delay.
const PATIENT: u8 = 8;

impl StorePolicyTuner {
    /// Creates the state of one more lane.
    pub(crate) fn new(news: Arc<FillReports>) -> Self {
        let heard = news.count.load(Ordering::Relaxed);
        let number = news.lanes.fetch_add(1, Ordering::Relaxed);
        let way = PolicyRecord { streams: false, left: 1, patience: 1, warmed: false };
        let ways = [way; 2];
        StorePolicyTuner { news, heard, number, streamed: STREAMED, ways }
    }

    fn way(&mut self, past: Residency) -> Option<&mut PolicyRecord> {
        match past {
            Residency::New => None,
            Residency::Lately => Some(&mut self.ways[0]),
            Residency::LongAgo => Some(&mut self.ways[1]),
        }
    }

    /// Returns whether a payload in a buffer of this history begins with stores past the caches.
    pub(crate) fn begin(&mut self, past: Residency) -> bool {
        let news = self.news.count.load(Ordering::Relaxed);
        if self.heard != news {
            self.heard = news;
            self.ways
                .iter_mut()
                .for_each(|way| (way.left, way.patience) = (0, way.patience.min(PATIENT - 1)));
        }
        let Some(way) = self.way(past) else { return false };
        let streams = way.streams && way.left > 0;
        way.left = way.left.saturating_sub(1);
        streams
    }

    /// Takes the time of a payload's first bytes. Returns whether the rest is stored past the caches.
    pub(crate) fn began(&mut self, past: Residency, streamed: bool, bytes: usize, took: Nanos) -> bool {
        let line = u32::try_from(took.saturating_mul(64 * 16) / bytes.max(1) as u64).unwrap_or(u32::MAX);
        let (before, number) = (self.streamed, self.number);
        let Some(way) = self.way(past) else { return streamed };
        if streamed {
            // Bounds the effect of a delay that other work causes.
            self.streamed = line.min(before.saturating_add(before / 8)).max(before / 2).max(1);
            return true;
        }
        if way.streams && !std::mem::replace(&mut way.warmed, true) {
            return false;
        }
        way.warmed = false;
        // Lines stored past the caches are READ from memory, so plain stores must be much slower to lose. The
        // two limits are apart, so that the choice does not oscillate.
        let limit = if way.streams { before / 2 * 5 } else { before.saturating_mul(7) / 2 };
        let slow = line > limit;
        let patient = way.streams && way.patience >= PATIENT;
        way.patience = match way.streams && slow {
            true => way.patience.saturating_mul(2).min(LONGEST_PATIENCE),
            // A single delay may have caused it.
            false => 1,
        };
        way.left = way.patience - (number % (u32::from(way.patience) / 4 + 1)) as u8;
        way.streams = slow;
        if patient && !slow {
            self.heard = self.news.count.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        }
        slow
    }

    /// Returns whether plain stores to recently READ buffers are slow, so that more buffers may help.
    pub(crate) fn is_slow_lately(&self) -> bool {
        self.ways[0].streams
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: usize = 64 * 512;

    /// Fills `fills` payloads where a line takes `plain` or `streamed` nanoseconds. Returns how many of the
    /// last hundred ended past the caches, and how many began with the slower kind of stores.
    fn run(
        tuner: &mut StorePolicyTuner,
        past: Residency,
        fills: usize,
        plain: u64,
        streamed: u64,
    ) -> (usize, usize) {
        let (mut late, mut worse) = (0, 0);
        for fill in 0..fills {
            let streams = tuner.begin(past);
            let line = if streams { streamed } else { plain };
            let rest = tuner.began(past, streams, BYTES, line * 512);
            late += usize::from(rest && fill + 100 >= fills);
            worse += usize::from(line > plain.min(streamed));
        }
        (late, worse)
    }

    #[test]
    fn what_is_slower_goes_past_the_caches() {
        for past in [Residency::Lately, Residency::LongAgo] {
            for (plain, streamed, past_the_caches) in
                [(30, 3, true), (12, 3, true), (6, 3, false), (2, 3, false), (30, 29, false)]
            {
                let (late, worse) =
                    run(&mut StorePolicyTuner::new(Arc::default()), past, 1000, plain, streamed);
                assert_eq!(late > 90, past_the_caches, "{plain} {streamed} {late}");
                assert!(late == 0 || late >= 98, "a piece shows it, and the rest goes so: {late}");
                // A trial costs a payload, and a piece of the next one, in a hundred.
                assert!(plain == 6 || streamed > 3 || worse <= 32, "{plain} {streamed} {worse}");
            }
        }
    }

    #[test]
    fn buffers_of_either_past_have_their_own_way() {
        let mut tuner = StorePolicyTuner::new(Arc::default());
        for _ in 0..10 {
            run(&mut tuner, Residency::Lately, 100, 12, 3);
            run(&mut tuner, Residency::LongAgo, 100, 2, 3);
        }
        assert!(tuner.is_slow_lately());
        assert!(run(&mut tuner, Residency::Lately, 100, 12, 3).0 >= 98);
        assert_eq!(run(&mut tuner, Residency::LongAgo, 100, 2, 3).0, 0);
        // Buffers that no peer has READ give no measurement.
        assert!(!tuner.begin(Residency::New) && !tuner.began(Residency::New, false, BYTES, Nanos::MAX));
        assert_eq!(run(&mut tuner, Residency::LongAgo, 100, 2, 3).0, 0);
    }

    /// Plain stores to lines stored past the caches are slow once, even for near peers: a lane that was
    /// delayed once returns to plain stores.
    #[test]
    fn lines_come_back_to_the_caches_before_they_are_judged() {
        let mut tuner = StorePolicyTuner::new(Arc::default());
        tuner.began(Residency::LongAgo, false, BYTES, 100_000);
        let mut past_the_caches = true;
        let mut late = 0;
        for _ in 0..100 {
            let streams = tuner.begin(Residency::LongAgo);
            let line = match (streams, past_the_caches) {
                (true, _) => 3,
                (false, true) => 9,
                (false, false) => 2,
            };
            past_the_caches = tuner.began(Residency::LongAgo, streams, BYTES, line * 512);
            late += usize::from(past_the_caches);
        }
        assert!(late <= 2, "{late}");
    }

    /// Distances of cores may change, and a single delay does not change the choice for long.
    #[test]
    fn changes_are_seen_soon() {
        let mut tuner = StorePolicyTuner::new(Arc::default());
        for _ in 0..3 {
            let (late, worse) = run(&mut tuner, Residency::LongAgo, 1000, 30, 3);
            assert!(late >= 98 && worse <= 32, "{late} {worse}");
            let (late, worse) = run(&mut tuner, Residency::LongAgo, 1000, 2, 3);
            assert!(late == 0 && worse <= 128, "{late} {worse}");
            tuner.began(Residency::LongAgo, false, BYTES, 100_000);
            assert!(run(&mut tuner, Residency::LongAgo, 100, 2, 3).1 <= 1);
        }
    }

    /// A lane that detects the change notifies the others.
    #[test]
    fn many_lanes_see_changes_as_soon_as_one_does() {
        let news: Arc<FillReports> = Arc::default();
        let mut lanes: Vec<StorePolicyTuner> =
            (0..16).map(|_| StorePolicyTuner::new(Arc::clone(&news))).collect();
        let mut round = |plain| {
            let each = lanes.iter_mut().map(|lane| run(lane, Residency::LongAgo, 1, plain, 3).1);
            each.sum::<usize>()
        };
        assert!((0..1000).map(|_| round(30)).sum::<usize>() <= 32 * 16);
        let worse: usize = (0..1000).map(|_| round(2)).sum();
        assert!(worse <= 32 * 16, "{worse}");
        assert_eq!(news.count.load(Ordering::Relaxed), 1, "it is said once");
    }

    /// As in virtual time, where filling takes no time, and with the longest time.
    #[test]
    fn any_time_is_borne() {
        let mut tuner = StorePolicyTuner::new(Arc::default());
        run(&mut tuner, Residency::Lately, 300, 0, 0);
        assert!(!tuner.is_slow_lately());
        for (fill, took) in [0, Nanos::MAX, 1, 0].into_iter().cycle().take(5000).enumerate() {
            let past = [Residency::New, Residency::Lately, Residency::LongAgo][fill % 5 % 3];
            let streams = tuner.begin(past);
            tuner.began(past, streams, fill % 3, took);
        }
    }
}
