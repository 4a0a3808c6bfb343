//! The index: buckets of eight slots, one 64-byte line each, with strict LRU order per bucket.
//!
//! A line has sixteen 32-bit words: 0..4 hold eight 16-bit tags (0 means empty), 4..12 hold eight locations,
//! 12 holds the recency order, and 13..16 are unused. So a lookup reads one line, whichever slot holds the
//! key.

use crate::heap::Location;
use crate::memory;

/// Slots of one bucket (RF-RPC section 5.1).
pub(crate) const SLOTS: usize = 8;
/// Bytes of one bucket: one cache line.
pub(crate) const BUCKET_BYTES: usize = WORDS * 4;

const WORDS: usize = 16;
const FIRST_LOCATION: usize = 4;
const ORDER: usize = 12;
/// Slot numbers from the most recently used (low nibble) to the least. Stored orders are XORed with it, so
/// that untouched memory (zeroes) is a valid order.
const INITIAL_ORDER: u32 = 0x7654_3210;
const LANES: u64 = 0x0001_0001_0001_0001;

type Line = [u32; WORDS];

/// Slots of one bucket that carry a given tag.
#[derive(Clone, Copy, Default)]
pub(crate) struct SlotSet(u64);

impl Iterator for SlotSet {
    type Item = usize;

    #[inline]
    fn next(&mut self) -> Option<usize> {
        if self.0 == 0 {
            return None;
        }
        let bit = self.0.trailing_zeros() as usize;
        self.0 &= self.0 - 1;
        // Lanes 0..4 are at bits 0, 16, 32, 48 and lanes 4..8 one bit higher.
        Some((bit >> 4) | ((bit & 1) << 2))
    }
}

/// All buckets of a partition.
pub(crate) struct Buckets {
    words: Vec<u32>,
    /// Index of the first word that starts a cache line.
    start: usize,
    count: u32,
}

impl Buckets {
    /// Returns the words to allocate for `count` buckets, with room for alignment to a cache line.
    pub(crate) fn words_for(count: u32) -> usize {
        count as usize * WORDS + WORDS
    }

    /// Creates buckets in zeroed memory of `words_for(count)` words.
    pub(crate) fn new(words: Vec<u32>, count: u32) -> Self {
        assert_eq!(words.len(), Self::words_for(count));
        let misaligned = words.as_ptr().addr() % BUCKET_BYTES;
        let start = (BUCKET_BYTES - misaligned) % BUCKET_BYTES / 4;
        Self { words, start, count }
    }

    #[inline]
    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    #[inline]
    fn line(&self, bucket: usize) -> &Line {
        &self.words[self.start..].as_chunks::<WORDS>().0[bucket]
    }

    #[inline]
    fn line_mut(&mut self, bucket: usize) -> &mut Line {
        &mut self.words[self.start..].as_chunks_mut::<WORDS>().0[bucket]
    }

    /// Prefetches a bucket.
    #[inline]
    pub(crate) fn prefetch(&self, bucket: usize) {
        memory::prefetch(self.line(bucket));
    }

    /// Returns the slots of `bucket` that carry `tag`; tag 0 gives the empty ones.
    #[inline]
    pub(crate) fn matching(&self, bucket: usize, tag: u16) -> SlotSet {
        let line = self.line(bucket);
        let low = u64::from(line[0]) | u64::from(line[1]) << 32;
        let high = u64::from(line[2]) | u64::from(line[3]) << 32;
        let wanted = u64::from(tag) * LANES;
        SlotSet(equal_lanes(low ^ wanted) | equal_lanes(high ^ wanted) << 1)
    }

    /// Returns the location of the item in an occupied slot.
    #[inline]
    pub(crate) fn location(&self, bucket: usize, slot: usize) -> Location {
        Location(self.line(bucket)[FIRST_LOCATION + slot % SLOTS])
    }

    /// Fills a slot. Does not change the recency order.
    pub(crate) fn set(&mut self, bucket: usize, slot: usize, tag: u16, location: Location) {
        let line = self.line_mut(bucket);
        let shift = (slot % 2) * 16;
        let word = &mut line[slot / 2];
        *word = (*word & !(0xffff << shift)) | u32::from(tag) << shift;
        line[FIRST_LOCATION + slot] = location.0;
    }

    /// Empties a slot.
    pub(crate) fn clear(&mut self, bucket: usize, slot: usize) {
        self.set(bucket, slot, 0, Location(0));
    }

    /// Returns the occupied slot that points to `location`.
    pub(crate) fn slot_at(&self, bucket: usize, location: Location, tag: u16) -> Option<usize> {
        self.matching(bucket, tag).find(|&slot| self.location(bucket, slot) == location)
    }

    /// Makes a slot the most recently used of its bucket.
    #[inline]
    pub(crate) fn touch(&mut self, bucket: usize, slot: usize) {
        let line = self.line_mut(bucket);
        let order = line[ORDER] ^ INITIAL_ORDER;
        let touched = move_to_front(order, slot as u32);
        if touched != order {
            line[ORDER] = touched ^ INITIAL_ORDER;
        }
    }

    /// Returns the least recently used slot of a bucket.
    pub(crate) fn least_recent(&self, bucket: usize) -> usize {
        ((self.line(bucket)[ORDER] ^ INITIAL_ORDER) >> 28) as usize
    }
}

/// Returns bits 0, 16, 32 and 48 set for each 16-bit lane of `word` that is zero. Exact: no carry crosses a
/// lane.
#[inline]
fn equal_lanes(word: u64) -> u64 {
    const LOW: u64 = 0x7fff * LANES;
    (!(((word & LOW) + LOW) | word | LOW)) >> 15
}

/// Moves `slot` to the low nibble of the permutation `order`, and more recent slots up by one nibble.
#[inline]
fn move_to_front(order: u32, slot: u32) -> u32 {
    let difference = order ^ (slot * 0x1111_1111);
    // The lowest zero nibble; borrows change only nibbles above it.
    let place = (difference.wrapping_sub(0x1111_1111) & !difference & 0x8888_8888).trailing_zeros() / 4;
    let upto_place = (0xffff_ffff_u64 >> (28 - 4 * place.min(7))) as u32;
    (order & !upto_place) | ((order << 4) & upto_place) | slot
}

#[cfg(test)]
mod tests {
    use super::*;

    fn buckets(count: u32) -> Buckets {
        Buckets::new(vec![0; Buckets::words_for(count)], count)
    }

    #[test]
    fn lines_start_on_cache_lines() {
        let buckets = buckets(3);
        for bucket in 0..3 {
            assert_eq!(buckets.line(bucket).as_ptr().addr() % BUCKET_BYTES, 0);
        }
    }

    #[test]
    fn tags_match_exactly_their_slots() {
        let mut buckets = buckets(2);
        assert_eq!(buckets.matching(1, 0).count(), SLOTS);
        // Neighbouring tags that a carry or a borrow between lanes would confuse.
        for (slot, tag) in [1, 2, 0x8000, 0x8001, 0xffff, 1, 0x7fff, 1].into_iter().enumerate() {
            buckets.set(1, slot, tag, Location(slot as u32 + 10));
        }
        let found = |tag| {
            let mut slots: Vec<_> = buckets.matching(1, tag).collect();
            slots.sort_unstable();
            slots
        };
        assert_eq!(found(1), [0, 5, 7]);
        assert_eq!(found(2), [1]);
        assert_eq!(found(0x8000), [2]);
        assert_eq!(found(0x8001), [3]);
        assert_eq!(found(0xffff), [4]);
        assert_eq!(found(0x7fff), [6]);
        assert!(found(0).is_empty());
        assert_eq!(buckets.location(1, 5), Location(15));
        assert_eq!(buckets.slot_at(1, Location(17), 1), Some(7));
        assert_eq!(buckets.slot_at(1, Location(17), 2), None);
        assert_eq!(buckets.matching(0, 0).count(), SLOTS, "the other bucket is as it was");
    }

    #[test]
    fn order_is_strict_lru() {
        let mut buckets = buckets(1);
        let mut model: Vec<usize> = (0..SLOTS).collect();
        let mut random = 12345u32;
        for _ in 0..10_000 {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let slot = (random >> 24) as usize % SLOTS;
            buckets.touch(0, slot);
            model.retain(|&other| other != slot);
            model.insert(0, slot);
            assert_eq!(buckets.least_recent(0), model[SLOTS - 1]);
        }
    }
}
