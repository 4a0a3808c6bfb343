//! How a sender fills buffers that the peer has READ. Plain stores have to wait for the peer's core to give each line up, unless
//! it has dropped them meanwhile; that takes 2 ns a line or 30, as the cores lie and as many other bytes went by. Stores past the
//! caches wait for nobody, but what was stored so has to be READ from memory. So who fills looks at the clock when the first
//! piece is there: where plain stores take several times as long the rest goes past the caches, and so do the next payloads, until plain
//! stores are tried again. That takes two payloads: what went past the caches is in none, so that the first ones to it are slow wherever the
//! peer is; one payload brings its lines back, and the first piece of the next tells. Nothing has to be found out before.
//!
//! What cores do is alike for many lanes, and changes for all of them when a host moves virtual processors. So a lane that has found
//! plain stores to be quick again says so, and the others look at their next payload. Each finds out for itself all the same: peers may be near and far.
//!
//! Buffers that were READ lately and those that were not are two things, each with a finding of its own. Who has only the former and
//! finds them slow has more of them filled by turns (`tune/turns.rs`).

use super::turns::Past;
use dunlin_fabric::Nanos;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// What the lanes of a process tell each other.
#[derive(Debug, Default)]
pub(crate) struct News {
    /// How often plain stores became quick for one of them.
    count: AtomicU32,
    /// Lanes so far.
    lanes: AtomicU32,
}

/// Finds out for a lane how its large payloads are filled.
#[derive(Debug)]
pub(crate) struct FillTuner {
    news: Arc<News>,
    /// How many of these it has heard.
    heard: u32,
    /// Which lane it is: they try at different times.
    number: u32,
    /// What a line takes past the caches, in sixteenths of a nanosecond.
    streamed: u32,
    /// Of buffers that were READ lately, and long ago.
    ways: [Way; 2],
}

/// How buffers of one past are filled.
#[derive(Clone, Copy, Debug)]
struct Way {
    streams: bool,
    /// Payloads until plain stores are tried again.
    left: u8,
    /// How many these were the last time, or about.
    patience: u8,
    /// The last payload was filled by plain stores in spite of that, so that the next one tells what they take.
    warmed: bool,
}

/// What a line takes past the caches before that was measured.
const STREAMED: u32 = 3 * 16;
const LONGEST_PATIENCE: u8 = 128;
/// Who has waited for so long has found something out, and not only been delayed.
const PATIENT: u8 = 8;

impl FillTuner {
    /// For one more lane.
    pub(crate) fn new(news: Arc<News>) -> Self {
        let heard = news.count.load(Ordering::Relaxed);
        let number = news.lanes.fetch_add(1, Ordering::Relaxed);
        let way = Way { streams: false, left: 1, patience: 1, warmed: false };
        let ways = [way; 2];
        FillTuner { news, heard, number, streamed: STREAMED, ways }
    }

    fn way(&mut self, past: Past) -> Option<&mut Way> {
        match past {
            Past::New => None,
            Past::Lately => Some(&mut self.ways[0]),
            Past::LongAgo => Some(&mut self.ways[1]),
        }
    }

    /// Whether a payload begins past the caches, in a buffer of such a past.
    pub(crate) fn begin(&mut self, past: Past) -> bool {
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

    /// The first bytes of a payload took so long. Says whether the rest of it goes past the caches.
    pub(crate) fn began(&mut self, past: Past, streamed: bool, bytes: usize, took: Nanos) -> bool {
        let line = u32::try_from(took.saturating_mul(64 * 16) / bytes.max(1) as u64).unwrap_or(u32::MAX);
        let (before, number) = (self.streamed, self.number);
        let Some(way) = self.way(past) else { return streamed };
        if streamed {
            // A delay by others is no property of it.
            self.streamed = line.min(before.saturating_add(before / 8)).max(before / 2).max(1);
            return true;
        }
        if way.streams && !std::mem::replace(&mut way.warmed, true) {
            return false;
        }
        way.warmed = false;
        // What comes past the caches is READ from memory: so plain stores have to be much slower, and what is about the same makes
        // nothing flap.
        let limit = if way.streams { before / 2 * 5 } else { before.saturating_mul(7) / 2 };
        let slow = line > limit;
        let patient = way.streams && way.patience >= PATIENT;
        way.patience = match way.streams && slow {
            true => way.patience.saturating_mul(2).min(LONGEST_PATIENCE),
            // It may have been but a delay by others.
            false => 1,
        };
        way.left = way.patience - (number % (u32::from(way.patience) / 4 + 1)) as u8;
        way.streams = slow;
        if patient && !slow {
            self.heard = self.news.count.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        }
        slow
    }

    /// Whether plain stores to what was READ lately are slow, so that more buffers may help.
    pub(crate) fn is_slow_lately(&self) -> bool {
        self.ways[0].streams
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: usize = 64 * 512;

    /// Fills so often where a line takes `plain` or `streamed` nanoseconds; answers how many of the last hundred ended past the caches,
    /// and how many began by slower stores than need be.
    fn run(tuner: &mut FillTuner, past: Past, fills: usize, plain: u64, streamed: u64) -> (usize, usize) {
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
        for past in [Past::Lately, Past::LongAgo] {
            for (plain, streamed, past_the_caches) in
                [(30, 3, true), (12, 3, true), (6, 3, false), (2, 3, false), (30, 29, false)]
            {
                let (late, worse) = run(&mut FillTuner::new(Arc::default()), past, 1000, plain, streamed);
                assert_eq!(late > 90, past_the_caches, "{plain} {streamed} {late}");
                assert!(late == 0 || late >= 98, "a piece shows it, and the rest goes so: {late}");
                // Trying costs a payload, and a piece of the next, in a hundred.
                assert!(plain == 6 || streamed > 3 || worse <= 32, "{plain} {streamed} {worse}");
            }
        }
    }

    #[test]
    fn buffers_of_either_past_have_their_own_way() {
        let mut tuner = FillTuner::new(Arc::default());
        for _ in 0..10 {
            run(&mut tuner, Past::Lately, 100, 12, 3);
            run(&mut tuner, Past::LongAgo, 100, 2, 3);
        }
        assert!(tuner.is_slow_lately());
        assert!(run(&mut tuner, Past::Lately, 100, 12, 3).0 >= 98);
        assert_eq!(run(&mut tuner, Past::LongAgo, 100, 2, 3).0, 0);
        // What nobody has READ says nothing.
        assert!(!tuner.begin(Past::New) && !tuner.began(Past::New, false, BYTES, Nanos::MAX));
        assert_eq!(run(&mut tuner, Past::LongAgo, 100, 2, 3).0, 0);
    }

    /// Plain stores to what went past the caches are slow once, near too: who was delayed once finds back.
    #[test]
    fn lines_come_back_to_the_caches_before_they_are_judged() {
        let mut tuner = FillTuner::new(Arc::default());
        tuner.began(Past::LongAgo, false, BYTES, 100_000);
        let mut past_the_caches = true;
        let mut late = 0;
        for _ in 0..100 {
            let streams = tuner.begin(Past::LongAgo);
            let line = match (streams, past_the_caches) {
                (true, _) => 3,
                (false, true) => 9,
                (false, false) => 2,
            };
            past_the_caches = tuner.began(Past::LongAgo, streams, BYTES, line * 512);
            late += usize::from(past_the_caches);
        }
        assert!(late <= 2, "{late}");
    }

    /// Cores may come to lie otherwise, and one delay is no reason to go another way for long.
    #[test]
    fn changes_are_seen_soon() {
        let mut tuner = FillTuner::new(Arc::default());
        for _ in 0..3 {
            let (late, worse) = run(&mut tuner, Past::LongAgo, 1000, 30, 3);
            assert!(late >= 98 && worse <= 32, "{late} {worse}");
            let (late, worse) = run(&mut tuner, Past::LongAgo, 1000, 2, 3);
            assert!(late == 0 && worse <= 128, "{late} {worse}");
            tuner.began(Past::LongAgo, false, BYTES, 100_000);
            assert!(run(&mut tuner, Past::LongAgo, 100, 2, 3).1 <= 1);
        }
    }

    /// Who has found out tells the others.
    #[test]
    fn many_lanes_see_changes_as_soon_as_one_does() {
        let news: Arc<News> = Arc::default();
        let mut lanes: Vec<FillTuner> = (0..16).map(|_| FillTuner::new(Arc::clone(&news))).collect();
        let mut round = |plain| {
            let each = lanes.iter_mut().map(|lane| run(lane, Past::LongAgo, 1, plain, 3).1);
            each.sum::<usize>()
        };
        assert!((0..1000).map(|_| round(30)).sum::<usize>() <= 32 * 16);
        let worse: usize = (0..1000).map(|_| round(2)).sum();
        assert!(worse <= 32 * 16, "{worse}");
        assert_eq!(news.count.load(Ordering::Relaxed), 1, "it is said once");
    }

    /// As in virtual time, where filling takes none, and where it takes for ever.
    #[test]
    fn any_time_is_borne() {
        let mut tuner = FillTuner::new(Arc::default());
        run(&mut tuner, Past::Lately, 300, 0, 0);
        assert!(!tuner.is_slow_lately());
        for (fill, took) in [0, Nanos::MAX, 1, 0].into_iter().cycle().take(5000).enumerate() {
            let past = [Past::New, Past::Lately, Past::LongAgo][fill % 5 % 3];
            let streams = tuner.begin(past);
            tuner.began(past, streams, fill % 3, took);
        }
    }
}
