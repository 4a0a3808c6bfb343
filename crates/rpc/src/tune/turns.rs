//! Which buffer a large payload is filled in, of those that the peer has READ. What a core's caches hold of one is gone once as many other
//! bytes went by; so the best is one that was filled that many bytes ago, and of several the one of them that was filled last:
//! the others are not needed. Bytes are counted for all lanes of a process together. So one lane alone goes round among many buffers,
//! and where many lanes fill one after the other, each of which has one, that is as good, and more would only push each other out of the
//! cache that all cores share.
//!
//! A buffer more costs as much as some payloads in memory that is touched for the first time, on either end. So
//! there is one more after as many payloads as that, as long as all have lately been READ and such are slow to fill.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What became of a buffer before it is filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Past {
    /// The peer has never READ it, as far as is known.
    New,
    /// The peer has READ it, and may have its lines.
    Lately,
    /// So much went by since that it hardly has.
    LongAgo,
}

/// After so many bytes a core has dropped what it has READ. (The caches of a core have 1 or 2 MiB, and what it READs, it also writes elsewhere.
/// One to four lanes gain more with half as much again, but eight of 128 KiB, which come round after 1 MiB by themselves, then lose to plain
/// rendezvous, whether they have buffers beyond those that they need or not.)
pub(crate) const GONE: u64 = 1 << 20;
/// What a buffer costs that is touched for the first time, in payloads that are filled too soon.
const DEAR: u8 = 4;
/// Bytes of buffers that all lanes of a process may have beyond those that they cannot do without: as much as a cache that cores share has.
const MOST_MORE: u64 = 32 << 20;

/// What all lanes of a process that fill large payloads count together.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    filled: AtomicU64,
    /// Bytes of buffers beyond those that are needed.
    more: AtomicU64,
}

/// The turns of a lane's buffers.
#[derive(Debug)]
pub(crate) struct Turns {
    traffic: Arc<Traffic>,
    /// Payloads that were filled too soon since the last buffer came.
    soon: u8,
    /// Bytes of buffers beyond those that the lane cannot do without.
    more: u64,
}

/// Which buffer is next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// That one of those that were named.
    Of(usize, Past),
    /// One more.
    More,
}

impl Turns {
    pub(crate) fn new(traffic: Arc<Traffic>) -> Self {
        Turns { traffic, soon: 0, more: 0 }
    }

    /// So many bytes will be filled; answers how many were before.
    pub(crate) fn fill(&self, bytes: usize) -> u64 {
        self.traffic.filled.fetch_add(bytes as u64, Ordering::Relaxed)
    }

    /// Whose turn it is, of free buffers that were given out when so many bytes had been filled, the longest unused first, if now
    /// there are `now`. Where it helps there is one more of as many bytes as `more` says, if it has one.
    pub(crate) fn next(
        &mut self,
        now: u64,
        free: &[u64],
        helps: bool,
        more: impl FnOnce() -> Option<usize>,
    ) -> Turn {
        let gone = |then: &u64| now.saturating_sub(*then) >= GONE;
        if let Some(last) = free.iter().rposition(gone) {
            return Turn::Of(last, Past::LongAgo);
        }
        self.soon = self.soon.saturating_add(1);
        if free.is_empty() {
            return Turn::More;
        }
        if helps
            && self.soon >= DEAR
            && let Some(bytes) = more()
            && self.take(bytes as u64)
        {
            self.soon = 0;
            return Turn::More;
        }
        Turn::Of(0, Past::Lately)
    }

    fn take(&mut self, bytes: u64) -> bool {
        let before = self.traffic.more.fetch_add(bytes, Ordering::Relaxed);
        if before.saturating_add(bytes) > MOST_MORE {
            self.traffic.more.fetch_sub(bytes, Ordering::Relaxed);
            return false;
        }
        self.more += bytes;
        true
    }

    /// All but what the lane needs was given up.
    pub(crate) fn give_up(&mut self) {
        self.traffic.more.fetch_sub(std::mem::take(&mut self.more), Ordering::Relaxed);
    }
}

impl Drop for Turns {
    fn drop(&mut self) {
        self.give_up();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: usize = 128 << 10;
    /// Buffers of a lane alone.
    const ENOUGH: usize = GONE as usize / BYTES;

    /// A lane with buffers that are free whenever it fills; each is when it was filled last.
    struct Lane(Turns, Vec<u64>);

    impl Lane {
        fn of(traffic: &Arc<Traffic>) -> Self {
            Lane(Turns::new(Arc::clone(traffic)), Vec::new())
        }

        fn fill(&mut self, more: bool) -> Past {
            let now = self.0.fill(BYTES);
            let past = match self.0.next(now, &self.1, more, || Some(BYTES)) {
                Turn::Of(place, past) => {
                    self.1.remove(place);
                    past
                }
                Turn::More => Past::New,
            };
            self.1.push(now);
            past
        }
    }

    #[test]
    fn one_lane_goes_round_among_as_many_as_it_takes() {
        let mut lane = Lane::of(&Arc::default());
        let pasts: Vec<Past> = (0..1000).map(|_| lane.fill(true)).collect();
        assert_eq!(lane.1.len(), ENOUGH);
        let last = pasts.iter().rposition(|past| *past != Past::LongAgo).unwrap();
        assert_eq!(last, (ENOUGH - 1) * usize::from(DEAR) - 1, "{pasts:?}");
        // Where what was READ lately is not slow one is enough.
        let mut lane = Lane::of(&Arc::default());
        assert!((0..100).skip(1).all(|_| lane.fill(false) != Past::LongAgo) && lane.1.len() == 1);
    }

    #[test]
    fn many_lanes_have_one_each() {
        let traffic = Arc::default();
        let mut lanes: Vec<Lane> = (0..16).map(|_| Lane::of(&traffic)).collect();
        for _ in 0..100 {
            lanes.iter_mut().for_each(|lane| _ = lane.fill(true));
        }
        assert!(lanes.iter().all(|lane| lane.1.len() == 1));
        assert!(lanes.iter_mut().all(|lane| lane.fill(true) == Past::LongAgo));
        // Those that are left alone need more, and then no longer.
        for _ in 0..1000 {
            lanes[..4].iter_mut().for_each(|lane| _ = lane.fill(true));
        }
        assert!(lanes[..4].iter().map(|lane| lane.1.len()).sum::<usize>() <= 16);
    }

    #[test]
    fn memory_is_bounded_for_all_together_and_given_back() {
        let traffic: Arc<Traffic> = Arc::default();
        let mut lanes: Vec<Lane> = (0..64).map(|_| Lane::of(&traffic)).collect();
        for lane in &mut lanes {
            (0..200).for_each(|_| _ = lane.fill(true));
        }
        let buffers: usize = lanes.iter().map(|lane| lane.1.len()).sum();
        assert_eq!((buffers - 64) * BYTES, MOST_MORE as usize);
        lanes.truncate(10);
        assert_eq!(traffic.more.load(Ordering::Relaxed), (10 * (ENOUGH - 1) * BYTES) as u64);
        lanes[0].0.give_up();
        assert_eq!(traffic.more.load(Ordering::Relaxed), (9 * (ENOUGH - 1) * BYTES) as u64);
    }

    #[test]
    fn any_count_is_borne() {
        let traffic: Arc<Traffic> = Arc::default();
        traffic.filled.store(u64::MAX - 10, Ordering::Relaxed);
        let mut turns = Turns::new(traffic);
        let now = turns.fill(100);
        assert_eq!(turns.next(now, &[0, now], true, || Some(usize::MAX)), Turn::Of(0, Past::LongAgo));
        for _ in 0..20 {
            let now = turns.fill(1);
            assert_eq!(turns.next(now, &[u64::MAX], true, || Some(usize::MAX)), Turn::Of(0, Past::Lately));
        }
    }
}
