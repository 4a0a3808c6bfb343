//! The choice of a buffer for a large payload, among those that the peer has READ.
//!
//! A core's caches have dropped a buffer once enough other bytes have passed through them. So the best buffer
//! was filled that many bytes ago, and of several such buffers the most recently filled one: the others are
//! not needed. The bytes of all lanes of a process count together. A single lane thus rotates through many
//! buffers. Many lanes that fill alternately do as well with one buffer each, and more buffers would only
//! displace each other in the shared cache.
//!
//! A new buffer costs as much as some payloads, since both ends touch its memory for the first time. So a
//! buffer is added only after that many payloads, while all buffers were READ recently and such buffers are
//! slow to fill.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The history of a buffer before it is filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Residency {
    /// The peer has never READ it, as far as is known.
    New,
    /// The peer has READ it recently and may have its lines.
    Lately,
    /// So many bytes have passed since that the peer's caches have most likely dropped it.
    LongAgo,
}

/// Bytes after which a core has dropped a buffer that it has READ. A core's caches have 1 or 2 MiB, and the
/// core also writes elsewhere the bytes that it READs.
pub(crate) const EVICTED_AFTER: u64 = 1 << 20;
/// The cost of a new buffer, in payloads filled in recently READ buffers.
const COST_OF_NEW: u8 = 4;
/// Bytes of additional buffers, beyond the necessary ones, for all lanes of a process: the size of a shared
/// cache.
const MOST_MORE: u64 = 32 << 20;

/// Byte counts of all lanes of a process that fill large payloads.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    filled: AtomicU64,
    /// Bytes of additional buffers.
    more: AtomicU64,
}

/// The buffer rotation of a lane.
#[derive(Debug)]
pub(crate) struct BufferRotation {
    traffic: Arc<Traffic>,
    /// Payloads filled in recently READ buffers since the last new buffer.
    soon: u8,
    /// Bytes of this lane's additional buffers.
    more: u64,
}

/// The next buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rotation {
    /// The free buffer at this index.
    Of(usize, Residency),
    /// A new buffer.
    More,
}

impl BufferRotation {
    pub(crate) fn new(traffic: Arc<Traffic>) -> Self {
        BufferRotation { traffic, soon: 0, more: 0 }
    }

    /// Counts `bytes` to be filled; returns the count before.
    pub(crate) fn fill(&self, bytes: usize) -> u64 {
        self.traffic.filled.fetch_add(bytes as u64, Ordering::Relaxed)
    }

    /// Chooses a buffer. `free` lists the byte counts at which the free buffers were handed out, the longest
    /// unused first; `now` is the current count. If `helps`, it may choose a new buffer, whose bytes `more`
    /// returns if there is memory for one.
    pub(crate) fn next(
        &mut self,
        now: u64,
        free: &[u64],
        helps: bool,
        more: impl FnOnce() -> Option<usize>,
    ) -> Rotation {
        let gone = |then: &u64| now.saturating_sub(*then) >= EVICTED_AFTER;
        if let Some(last) = free.iter().rposition(gone) {
            return Rotation::Of(last, Residency::LongAgo);
        }
        self.soon = self.soon.saturating_add(1);
        if free.is_empty() {
            return Rotation::More;
        }
        if helps
            && self.soon >= COST_OF_NEW
            && let Some(bytes) = more()
            && self.take(bytes as u64)
        {
            self.soon = 0;
            return Rotation::More;
        }
        Rotation::Of(0, Residency::Lately)
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

    /// Gives up the lane's additional buffers.
    pub(crate) fn give_up(&mut self) {
        self.traffic.more.fetch_sub(std::mem::take(&mut self.more), Ordering::Relaxed);
    }
}

impl Drop for BufferRotation {
    fn drop(&mut self) {
        self.give_up();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: usize = 128 << 10;
    /// Buffers that a single lane needs.
    const ENOUGH: usize = EVICTED_AFTER as usize / BYTES;

    /// A lane whose buffers are all free when it fills; each number is the byte count at which a buffer was
    /// filled.
    struct Lane(BufferRotation, Vec<u64>);

    impl Lane {
        fn of(traffic: &Arc<Traffic>) -> Self {
            Lane(BufferRotation::new(Arc::clone(traffic)), Vec::new())
        }

        fn fill(&mut self, more: bool) -> Residency {
            let now = self.0.fill(BYTES);
            let past = match self.0.next(now, &self.1, more, || Some(BYTES)) {
                Rotation::Of(place, past) => {
                    self.1.remove(place);
                    past
                }
                Rotation::More => Residency::New,
            };
            self.1.push(now);
            past
        }
    }

    #[test]
    fn one_lane_goes_round_among_as_many_as_it_takes() {
        let mut lane = Lane::of(&Arc::default());
        let pasts: Vec<Residency> = (0..1000).map(|_| lane.fill(true)).collect();
        assert_eq!(lane.1.len(), ENOUGH);
        let last = pasts.iter().rposition(|past| *past != Residency::LongAgo).unwrap();
        assert_eq!(last, (ENOUGH - 1) * usize::from(COST_OF_NEW) - 1, "{pasts:?}");
        // One buffer suffices where recently READ buffers are not slow.
        let mut lane = Lane::of(&Arc::default());
        assert!((0..100).skip(1).all(|_| lane.fill(false) != Residency::LongAgo) && lane.1.len() == 1);
    }

    #[test]
    fn many_lanes_have_one_each() {
        let traffic = Arc::default();
        let mut lanes: Vec<Lane> = (0..16).map(|_| Lane::of(&traffic)).collect();
        for _ in 0..100 {
            lanes.iter_mut().for_each(|lane| _ = lane.fill(true));
        }
        assert!(lanes.iter().all(|lane| lane.1.len() == 1));
        assert!(lanes.iter_mut().all(|lane| lane.fill(true) == Residency::LongAgo));
        // The remaining lanes need more buffers, but only for a while.
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
        let mut turns = BufferRotation::new(traffic);
        let now = turns.fill(100);
        assert_eq!(
            turns.next(now, &[0, now], true, || Some(usize::MAX)),
            Rotation::Of(0, Residency::LongAgo)
        );
        for _ in 0..20 {
            let now = turns.fill(1);
            assert_eq!(
                turns.next(now, &[u64::MAX], true, || Some(usize::MAX)),
                Rotation::Of(0, Residency::Lately)
            );
        }
    }
}
