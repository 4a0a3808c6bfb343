//! Which strands of a handle are active, and which of them each thread uses.

use crate::limits::{MAX_SEATS, MAX_STRANDS};
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};

/// The strand number of a thread without a strand.
const NOWHERE: u16 = u16::MAX;

/// The strands and threads of a handle by number. Read by all threads and rarely written. A number that is out of
/// range has no effect.
#[derive(Debug)]
pub(crate) struct Places {
    /// One bit for each active strand, of at most [`MAX_STRANDS`].
    active: AtomicU64,
    /// Changes when threads may have to move.
    epoch: AtomicU64,
    /// The strand of each thread.
    assigned: Box<[AtomicU16]>,
}

impl Places {
    /// Creates the places of a handle without strands.
    pub(crate) fn new() -> Self {
        let assigned = (0..MAX_SEATS).map(|_| AtomicU16::new(NOWHERE)).collect();
        Places { active: AtomicU64::new(0), epoch: AtomicU64::new(0), assigned }
    }

    /// Returns a number that changes when a thread may have to move.
    #[inline]
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// Tells the threads that one of them may have to move.
    pub(crate) fn changed(&self) {
        self.epoch.fetch_add(1, Ordering::Release);
    }

    /// Makes a strand active.
    pub(crate) fn activate(&self, strand: u16) {
        if strand < MAX_STRANDS {
            self.active.fetch_or(1 << strand, Ordering::Relaxed);
        }
    }

    /// Ends the use of an active strand, unless it is the last one. Returns whether it did.
    pub(crate) fn retire(&self, strand: u16) -> bool {
        let bit = if strand < MAX_STRANDS { 1 << strand } else { 0 };
        let others = |active: u64| (active & bit != 0 && active & !bit != 0).then_some(active & !bit);
        self.active.fetch_update(Ordering::Relaxed, Ordering::Relaxed, others).is_ok()
    }

    /// Ends the use of strands without threads, as long as there are more strands than threads.
    pub(crate) fn retire_empty(&self, threads: usize) {
        let on = self.threads();
        let spare = self.active().count().saturating_sub(threads);
        let empty = self.active().filter(|strand| on[usize::from(*strand)] == 0);
        for strand in empty.take(spare) {
            self.retire(strand);
        }
    }

    /// Returns whether a strand is active.
    pub(crate) fn is_active(&self, strand: u16) -> bool {
        strand < MAX_STRANDS && self.active.load(Ordering::Relaxed) & 1 << strand != 0
    }

    /// Returns the active strands, in order.
    pub(crate) fn active(&self) -> impl Iterator<Item = u16> + use<> {
        let active = self.active.load(Ordering::Relaxed);
        (0..MAX_STRANDS).filter(move |strand| active & 1 << strand != 0)
    }

    /// Returns the strand that a thread is assigned to, active or not.
    #[inline]
    pub(crate) fn assigned(&self, seat: u16) -> Option<u16> {
        let strand = self.assigned.get(usize::from(seat))?.load(Ordering::Relaxed);
        (strand != NOWHERE).then_some(strand)
    }

    /// Assigns a thread to a strand, or to none. The thread moves when its calls on the old one have ended.
    pub(crate) fn assign(&self, seat: u16, strand: Option<u16>) {
        if let Some(place) = self.assigned.get(usize::from(seat)) {
            place.store(strand.unwrap_or(NOWHERE), Ordering::Relaxed);
        }
    }

    /// Returns the active strand with the fewest threads assigned to it; the lowest of several.
    pub(crate) fn emptiest(&self) -> Option<u16> {
        let threads = self.threads();
        self.active().min_by_key(|strand| threads[usize::from(*strand)])
    }

    /// Returns the number of threads assigned to each strand.
    pub(crate) fn threads(&self) -> [u16; MAX_STRANDS as usize] {
        let mut threads = [0; MAX_STRANDS as usize];
        for seat in 0..MAX_SEATS {
            if let Some(count) = self.assigned(seat).and_then(|strand| threads.get_mut(usize::from(strand))) {
                *count += 1;
            }
        }
        threads
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_active_strand_stays() {
        let places = Places::new();
        assert!(!places.retire(0) && places.emptiest().is_none());
        places.activate(0);
        places.activate(63);
        places.activate(64);
        assert_eq!(places.active().collect::<Vec<_>>(), [0, 63]);
        assert!(places.retire(0) && !places.retire(0) && !places.retire(63) && !places.retire(64));
        assert!(places.is_active(63) && !places.is_active(0) && !places.is_active(64));
    }

    #[test]
    fn threads_are_counted_by_their_assignment() {
        let places = Places::new();
        (0..3).for_each(|strand| places.activate(strand));
        for (seat, strand) in [(0, 0), (1, 1), (2, 0), (3, 2), (255, 2), (256, 2)] {
            places.assign(seat, Some(strand));
        }
        assert_eq!(places.threads()[..4], [2, 1, 2, 0]);
        assert_eq!((places.emptiest(), places.assigned(255), places.assigned(256)), (Some(1), Some(2), None));
        places.assign(3, None);
        places.assign(255, None);
        assert_eq!(places.emptiest(), Some(2));
        places.retire_empty(3);
        assert!(places.is_active(2), "three threads may have three");
        places.retire_empty(2);
        assert_eq!(places.active().collect::<Vec<_>>(), [0, 1]);
    }
}
