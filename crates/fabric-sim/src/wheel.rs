//! A two-level timing wheel: one bucket per nanosecond for the near future, so that nothing is sorted, and
//! coarse buckets of about a microsecond beyond. Values move from coarse to fine buckets shortly before they
//! are due.
//!
//! The wheel of Varghese and Lauck (SOSP 1987, scheme 7), except that time jumps to the next occupied bucket
//! through a bitmap.

use dunlin_fabric::Nanos;

/// Buckets of one nanosecond: the time of a message in a cluster without queueing. Few enough for the
/// first-level cache.
const FINE: usize = 4096;
/// Nanoseconds of a coarse bucket.
const WIDTH: Nanos = 1024;
/// Coarse buckets: together the time of a message with queueing.
const COARSE: usize = 1024;
/// The end of a bucket's list.
const NONE: u32 = u32::MAX;

/// Range of the wheel ahead of its present time, in nanoseconds.
pub(crate) const SPAN: Nanos = COARSE as Nanos * WIDTH;

/// One level: the value added last to each bucket, and a bitmap of occupied buckets.
#[derive(Debug)]
struct Level<const BUCKETS: usize> {
    last: Box<[u32]>,
    occupied: Box<[u64]>,
}

impl<const BUCKETS: usize> Level<BUCKETS> {
    fn new() -> Self {
        Level { last: vec![NONE; BUCKETS].into(), occupied: vec![0; BUCKETS / 64].into() }
    }

    /// Returns the distance to the first occupied bucket at or after `from`, within one revolution.
    #[inline(always)]
    fn distance(&self, from: usize) -> Option<usize> {
        let start = from % BUCKETS;
        let (word, bit) = (start / 64, start % 64);
        // The next 64 buckets as one word, so that the branch is well predicted.
        let behind = self.occupied[(word + 1) % (BUCKETS / 64)] << (63 - bit) << 1;
        match self.occupied[word] >> bit | behind {
            0 => self.long_distance(start),
            bits => Some(bits.trailing_zeros() as usize),
        }
    }

    #[inline(never)]
    fn long_distance(&self, start: usize) -> Option<usize> {
        let words = BUCKETS / 64;
        // The first word is checked again at the end, for its buckets before the start.
        (1..=words).find_map(|step| {
            let word = (start / 64 + step) % words;
            let bits = self.occupied[word];
            let slot = word * 64 + bits.trailing_zeros() as usize;
            (bits != 0).then(|| (slot + BUCKETS - start) % BUCKETS)
        })
    }

    /// Adds a value to a bucket; returns the value added before it.
    #[inline(always)]
    fn put(&mut self, bucket: usize, place: u32) -> u32 {
        let slot = bucket % BUCKETS;
        self.occupied[slot / 64] |= 1 << (slot % 64);
        std::mem::replace(&mut self.last[slot], place)
    }

    /// Empties a bucket; returns the value added last.
    #[inline(always)]
    fn take(&mut self, bucket: usize) -> u32 {
        let slot = bucket % BUCKETS;
        self.occupied[slot / 64] &= !(1 << (slot % 64));
        std::mem::replace(&mut self.last[slot], NONE)
    }
}

/// Values by their time, less than [`SPAN`] ahead of the wheel's present time. Values of one time come out in
/// the order of insertion.
#[derive(Debug)]
pub(crate) struct Wheel<T> {
    fine: Level<FINE>,
    coarse: Level<COARSE>,
    /// Values before this time are in `fine`, all others in `coarse`.
    reach: Nanos,
    /// When the wheel reaches this time, more values move to `fine`.
    moves_on: Nanos,
    /// The values of all buckets, each with the index of the value added before it to its bucket. Places are
    /// reused last in, first out, so they stay in the caches.
    values: Vec<(T, u32)>,
    free: u32,
    count: usize,
}

impl<T> Default for Wheel<T> {
    fn default() -> Self {
        let (fine, coarse) = (Level::new(), Level::new());
        Wheel { fine, coarse, reach: 0, moves_on: 0, values: Vec::new(), free: NONE, count: 0 }
    }
}

impl<T: Copy> Wheel<T> {
    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Adds a value at a time that the wheel has not passed.
    #[inline(always)]
    pub(crate) fn push(&mut self, at: Nanos, value: T) {
        let place = self.free;
        match self.values.get_mut(place as usize) {
            Some((free, next)) => {
                self.free = *next;
                *free = value;
                self.link(at, place);
            }
            None => self.grow(at, value),
        }
        self.count += 1;
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self, at: Nanos, value: T) {
        self.values.push((value, NONE));
        self.link(at, self.values.len() as u32 - 1);
    }

    /// Links a place into its bucket.
    #[inline(always)]
    fn link(&mut self, at: Nanos, place: u32) {
        let before = match at < self.reach {
            true => self.fine.put(at as usize, place),
            false => self.coarse.put((at / WIDTH) as usize, place),
        };
        self.values[place as usize].1 = before;
    }

    /// Advances the wheel to a time; it must hold no earlier value. `at` returns a value's time.
    #[inline(always)]
    pub(crate) fn pass(&mut self, now: Nanos, at: impl Fn(&T) -> Nanos) {
        if now >= self.moves_on {
            self.move_on(now, at);
        }
    }

    /// Extends the fine buckets as far as possible.
    #[cold]
    #[inline(never)]
    fn move_on(&mut self, now: Nanos, at: impl Fn(&T) -> Nanos) {
        let reach = now.saturating_add(FINE as Nanos) / WIDTH * WIDTH;
        self.moves_on = reach + WIDTH - FINE as Nanos;
        let from = std::mem::replace(&mut self.reach, reach) / WIDTH;
        let mut bucket = from;
        while let Some(distance) = self.coarse.distance(bucket as usize)
            && bucket + (distance as Nanos) < reach / WIDTH
        {
            bucket += distance as Nanos;
            self.move_to_fine(bucket, &at);
        }
    }

    /// Moves a coarse bucket's values to fine buckets, in the order of insertion.
    fn move_to_fine(&mut self, bucket: Nanos, at: impl Fn(&T) -> Nanos) {
        let (mut place, mut first) = (self.coarse.take(bucket as usize), NONE);
        while place != NONE {
            let before = std::mem::replace(&mut self.values[place as usize].1, first);
            (first, place) = (place, before);
        }
        while first != NONE {
            let (value, next) = &self.values[first as usize];
            let (time, next) = (at(value), *next);
            self.link(time, first);
            first = next;
        }
    }

    /// Moves the values of the next occupied time to the end of a list and returns that time; `None` if the
    /// wheel is empty. The wheel's present time is `now`.
    #[inline(always)]
    pub(crate) fn pop_into(
        &mut self,
        now: Nanos,
        values: &mut Vec<T>,
        at: impl Fn(&T) -> Nanos,
    ) -> Option<Nanos> {
        if self.count == 0 {
            return None;
        }
        let next = match self.fine.distance(now as usize) {
            Some(distance) => now + distance as Nanos,
            None => self.next_coarse(&at)?,
        };
        let last = self.fine.take(next as usize);
        let before = self.take_into(last, values);
        if before != NONE {
            self.take_all_into(before, values);
        }
        self.pass(next + 1, at);
        Some(next)
    }

    /// Returns the next time when the fine buckets are empty, after moving values into them.
    #[cold]
    #[inline(never)]
    fn next_coarse(&mut self, at: impl Fn(&T) -> Nanos) -> Option<Nanos> {
        let from = self.reach / WIDTH;
        let start = (from + self.coarse.distance(from as usize)? as Nanos) * WIDTH;
        self.move_on(start, at);
        Some(start + self.fine.distance(start as usize)? as Nanos)
    }

    /// Moves a value out; returns the value added to its bucket before it.
    #[inline(always)]
    fn take_into(&mut self, place: u32, values: &mut Vec<T>) -> u32 {
        let Some(found) = self.values.get_mut(place as usize) else { return NONE };
        values.push(found.0);
        self.count -= 1;
        let before = std::mem::replace(&mut found.1, self.free);
        self.free = place;
        before
    }

    /// Moves the rest of a bucket out, and puts all its values in the order of insertion.
    #[inline(never)]
    fn take_all_into(&mut self, mut place: u32, values: &mut Vec<T>) {
        let last = values.len() - 1;
        while place != NONE {
            place = self.take_into(place, values);
        }
        values[last..].reverse();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    /// Ordered by time and then by insertion at all distances: adjacent, in the next coarse bucket, one
    /// revolution of the fine buckets later, at the end of the range.
    #[test]
    fn values_come_by_time_and_then_in_the_order_in_which_they_were_put_in() {
        let mut wheel = Wheel::default();
        let mut random = Random::new(1, 1);
        let spans = [1, 3, WIDTH, FINE as Nanos, 2 * FINE as Nanos, 100_000, SPAN];
        let (mut expected, mut now, mut number) = (std::collections::BTreeSet::new(), 0, 0u32);
        let mut got = Vec::new();
        for round in 0..60_000 {
            // The wheel drains completely in every other phase, and stays idle then.
            if round % 6000 < 3000 || round % 3 == 0 {
                let span = spans[random.below(spans.len() as u64) as usize];
                let at = now + random.below(span);
                wheel.push(at, (at, number));
                expected.insert((at, number));
                number += 1;
            }
            if round % 6000 >= 3000 || round % 3 == 0 {
                got.clear();
                let next = wheel.pop_into(now, &mut got, |value| value.0);
                assert_eq!(next, expected.first().map(|value| value.0));
                for value in &got {
                    assert_eq!(expected.pop_first().as_ref(), Some(value));
                }
                assert_eq!(wheel.is_empty(), expected.is_empty());
                if let Some(next) = next {
                    assert!(expected.first().is_none_or(|value| value.0 > next));
                    now = next + 1;
                } else {
                    now += random.below(10 * SPAN);
                    wheel.pass(now, |value| value.0);
                }
            }
        }
        assert!(number > 20_000);
    }
}
