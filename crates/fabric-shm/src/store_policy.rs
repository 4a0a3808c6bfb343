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
//! only the former, and finds them slow, gets more buffers to rotate through (`buffer_rotation.rs`).

use crate::buffer_rotation::Residency;
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
    reports: Arc<FillReports>,
    /// The value of `reports.count` that this lane has seen.
    seen: u32,
    /// The lane's number: lanes start trials at different times.
    number: u32,
    /// Time of a line stored past the caches, in sixteenths of a nanosecond.
    streamed: u32,
    /// For buffers that were READ recently, and long ago.
    records: [PolicyRecord; 2],
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

/// A payload that is being filled.
#[derive(Debug)]
pub(crate) struct Started {
    /// The history of the buffer.
    pub(crate) past: Residency,
    /// Whether the next bytes are stored past the caches.
    pub(crate) streams: bool,
    shows: Shows,
    /// Time of a line of the first bytes, in sixteenths of a nanosecond, once they are filled.
    line: Option<u32>,
}

/// The conclusion from the time of a payload's first bytes.
#[derive(Clone, Copy, Debug)]
enum Shows {
    /// None: no peer has READ the buffer, or its lines are brought back to the caches first.
    Nothing,
    /// The time of stores past the caches.
    Streaming,
    /// Plain stores are slow if a line takes longer than this.
    Plain { limit: u32 },
}

/// Assumed time of a line stored past the caches, before it is measured.
const STREAMED: u32 = 3 * 16;
const LONGEST_PATIENCE: u8 = 128;
/// From this number on the result was stable, and not caused by a single delay.
const PATIENT: u8 = 8;

impl Started {
    /// Takes the time of the payload's first bytes, which decides how the rest is stored.
    pub(crate) fn took(&mut self, bytes: usize, took: Nanos) {
        let line = u32::try_from(took.saturating_mul(64 * 16) / bytes.max(1) as u64).unwrap_or(u32::MAX);
        self.line = Some(line);
        if let Shows::Plain { limit } = self.shows {
            self.streams = line > limit;
        }
    }
}

impl StorePolicyTuner {
    /// Creates the state of one more lane.
    pub(crate) fn new(reports: Arc<FillReports>) -> Self {
        let seen = reports.count.load(Ordering::Relaxed);
        let number = reports.lanes.fetch_add(1, Ordering::Relaxed);
        let record = PolicyRecord { streams: false, left: 1, patience: 1, warmed: false };
        StorePolicyTuner { reports, seen, number, streamed: STREAMED, records: [record; 2] }
    }

    fn record(&mut self, past: Residency) -> Option<&mut PolicyRecord> {
        match past {
            Residency::New => None,
            Residency::Lately => Some(&mut self.records[0]),
            Residency::LongAgo => Some(&mut self.records[1]),
        }
    }

    /// Starts a payload in a buffer of this history.
    pub(crate) fn begin(&mut self, past: Residency) -> Started {
        let count = self.reports.count.load(Ordering::Relaxed);
        if self.seen != count {
            self.seen = count;
            let records = self.records.iter_mut();
            records.for_each(|record| {
                (record.left, record.patience) = (0, record.patience.min(PATIENT - 1));
            });
        }
        let streams = self.record(past).is_some_and(|record| {
            let streams = record.streams && record.left > 0;
            record.left = record.left.saturating_sub(1);
            streams
        });
        self.start(past, streams)
    }

    fn start(&mut self, past: Residency, streams: bool) -> Started {
        let streamed = self.streamed;
        let shows = match self.record(past) {
            Some(_) if streams => Shows::Streaming,
            // Lines stored past the caches are READ from memory, so plain stores must be much slower to lose. The
            // two limits are apart, so that the choice does not oscillate.
            Some(record) if !record.streams => Shows::Plain { limit: streamed.saturating_mul(7) / 2 },
            Some(record) if record.warmed => Shows::Plain { limit: (streamed / 2).saturating_mul(5) },
            _ => Shows::Nothing,
        };
        Started { past, streams, shows, line: None }
    }

    /// Takes a payload back.
    pub(crate) fn end(&mut self, started: Started) {
        let (before, number) = (self.streamed, self.number);
        let Started { past, streams: slow, shows, line: Some(line) } = started else { return };
        let Some(record) = self.record(past) else { return };
        match shows {
            Shows::Nothing => return record.warmed = true,
            Shows::Streaming => {
                // Bounds the effect of a delay that other work causes.
                self.streamed = line.min(before.saturating_add(before / 8)).max(before / 2).max(1);
                return;
            }
            Shows::Plain { .. } => record.warmed = false,
        }
        let patient = record.streams && record.patience >= PATIENT;
        record.patience = match record.streams && slow {
            true => record.patience.saturating_mul(2).min(LONGEST_PATIENCE),
            // A single delay may have caused it.
            false => 1,
        };
        record.left = record.patience - (number % (u32::from(record.patience) / 4 + 1)) as u8;
        record.streams = slow;
        if patient && !slow {
            self.seen = self.reports.count.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        }
    }

    /// Returns whether plain stores to recently READ buffers are slow, so that more buffers may help.
    pub(crate) fn is_slow_lately(&self) -> bool {
        self.records[0].streams
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: usize = 64 * 512;

    /// Fills a payload whose first bytes take this long. Returns whether the rest is stored past the caches.
    fn fill(tuner: &mut StorePolicyTuner, mut started: Started, bytes: usize, took: Nanos) -> bool {
        started.took(bytes, took);
        let streams = started.streams;
        tuner.end(started);
        streams
    }

    /// Fills a payload by plain stores, which something else delays.
    fn delay(tuner: &mut StorePolicyTuner) {
        let started = tuner.start(Residency::LongAgo, false);
        fill(tuner, started, BYTES, 100_000);
    }

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
        for number in 0..fills {
            let started = tuner.begin(past);
            let line = if started.streams { streamed } else { plain };
            let rest = fill(tuner, started, BYTES, line * 512);
            late += usize::from(rest && number + 100 >= fills);
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
        let started = tuner.begin(Residency::New);
        assert!(!fill(&mut tuner, started, BYTES, Nanos::MAX));
        assert_eq!(run(&mut tuner, Residency::LongAgo, 100, 2, 3).0, 0);
    }

    /// Plain stores to lines stored past the caches are slow once, even for near peers: a lane that was
    /// delayed once returns to plain stores.
    #[test]
    fn lines_come_back_to_the_caches_before_they_are_judged() {
        let mut tuner = StorePolicyTuner::new(Arc::default());
        delay(&mut tuner);
        let mut past_the_caches = true;
        let mut late = 0;
        for _ in 0..100 {
            let started = tuner.begin(Residency::LongAgo);
            let line = match (started.streams, past_the_caches) {
                (true, _) => 3,
                (false, true) => 9,
                (false, false) => 2,
            };
            past_the_caches = fill(&mut tuner, started, BYTES, line * 512);
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
            delay(&mut tuner);
            assert!(run(&mut tuner, Residency::LongAgo, 100, 2, 3).1 <= 1);
        }
    }

    /// A lane that detects the change notifies the others.
    #[test]
    fn many_lanes_see_changes_as_soon_as_one_does() {
        let reports: Arc<FillReports> = Arc::default();
        let mut lanes: Vec<StorePolicyTuner> =
            (0..16).map(|_| StorePolicyTuner::new(Arc::clone(&reports))).collect();
        let mut round = |plain| {
            let each = lanes.iter_mut().map(|lane| run(lane, Residency::LongAgo, 1, plain, 3).1);
            each.sum::<usize>()
        };
        assert!((0..1000).map(|_| round(30)).sum::<usize>() <= 32 * 16);
        let worse: usize = (0..1000).map(|_| round(2)).sum();
        assert!(worse <= 32 * 16, "{worse}");
        assert_eq!(reports.count.load(Ordering::Relaxed), 1, "it is said once");
    }

    /// As in virtual time, where filling takes no time, and with the longest time.
    #[test]
    fn any_time_is_borne() {
        let mut tuner = StorePolicyTuner::new(Arc::default());
        run(&mut tuner, Residency::Lately, 300, 0, 0);
        assert!(!tuner.is_slow_lately());
        for (number, took) in [0, Nanos::MAX, 1, 0].into_iter().cycle().take(5000).enumerate() {
            let past = [Residency::New, Residency::Lately, Residency::LongAgo][number % 5 % 3];
            let started = tuner.begin(past);
            fill(&mut tuner, started, number % 3, took);
        }
    }
}
