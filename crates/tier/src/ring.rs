//! The ring of a pair of nodes (section 5.1): memory at one node into which another one writes the payloads of its calls,
//! and from which it reads their results.
//!
//! The calling node owns all of it, and gives ranges to its calls. A range is free again when its call has ended with an
//! answer: the answer says that the serving node uses the range no more. After an end that leaves this open, the whole
//! part of the ring is given up, and goes back when no other call uses it. A part is a region without a name, which no
//! node reuses before the serving node has it back.

use std::ops::Range;

/// The length of a ring's first part, in bytes. Each further one doubles the ring.
pub const FIRST_PART: u64 = 1 << 20;
/// The longest ring, in bytes.
pub const LONGEST_RING: u64 = 16 << 20;
/// The longest part, in bytes.
pub const LONGEST_PART: u64 = 4 << 20;
/// Ranges begin and end at multiples of this, in bytes.
const UNIT: u64 = 4096;

/// The range of a call.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a range is given back or lost"]
pub struct RingRange {
    part: u32,
    /// The offset in its part, in bytes.
    pub offset: u64,
    /// The length in bytes: at least what was asked for.
    pub length: u64,
}

#[derive(Debug)]
struct Part<T> {
    number: u32,
    place: T,
    length: u64,
    /// The ranges in use, in their order.
    used: Vec<Range<u64>>,
    /// The serving node may still use a range that no call has: no call gets one any more.
    is_given_up: bool,
}

/// The calling node's view of a ring, whose parts are at places of type `T`.
#[derive(Debug)]
pub struct Ring<T> {
    parts: Vec<Part<T>>,
    /// The number of the next part.
    next: u32,
    is_growing: bool,
    /// The ring does not grow before this time, in nanoseconds.
    not_before: u64,
}

impl<T> Default for Ring<T> {
    fn default() -> Self {
        Ring { parts: Vec::new(), next: 0, is_growing: false, not_before: 0 }
    }
}

impl<T: Copy> Ring<T> {
    /// Returns the bytes of all parts.
    pub fn length(&self) -> u64 {
        self.parts.iter().map(|part| part.length).sum()
    }

    /// Takes a range of at least `length` bytes with its part's place; `None` without one that is free.
    pub fn take(&mut self, length: u64) -> Option<(RingRange, T)> {
        let length = length.max(1).checked_next_multiple_of(UNIT)?;
        for part in self.parts.iter_mut().filter(|part| !part.is_given_up) {
            let mut offset = 0;
            let at = part.used.iter().position(|used| {
                let fits = used.start - offset >= length;
                if !fits {
                    offset = used.end;
                }
                fits
            });
            if part.length.saturating_sub(offset) >= length {
                let at = at.unwrap_or(part.used.len());
                part.used.insert(at, offset..offset + length);
                return Some((RingRange { part: part.number, offset, length }, part.place));
            }
        }
        None
    }

    /// Begins to grow for a call that found no range of `length` bytes. Returns the length of the part to ask the serving
    /// node for: at most the longer of the ring's length and twice the needed length. Returns `None` if the ring has its
    /// greatest length, if it is growing, or if the serving node has refused a part a short time ago. The caller
    /// [ends](Ring::grown) the growth.
    pub fn grow(&mut self, length: u64, now: u64) -> Option<u64> {
        let needed = length.max(1).checked_next_power_of_two()?;
        let has = self.length();
        let wanted = needed.max(has.min(LONGEST_PART)).max(FIRST_PART);
        if self.is_growing || now < self.not_before || wanted > LONGEST_PART || has + wanted > LONGEST_RING {
            return None;
        }
        self.is_growing = true;
        Some(wanted)
    }

    /// Ends a growth: with a part's place and length, or until `not_before` without one.
    pub fn grown(&mut self, part: Result<(T, u64), u64>) {
        self.is_growing = false;
        match part {
            Ok((place, length)) => {
                let (number, used) = (self.next, Vec::new());
                self.next = self.next.wrapping_add(1);
                self.parts.push(Part { number, place, length, used, is_given_up: false });
            }
            Err(not_before) => self.not_before = not_before,
        }
    }

    /// Gives a range back that the serving node does not use any more. Returns the place of its part if that was given up
    /// and nobody uses it: it goes back.
    pub fn give(&mut self, range: RingRange) -> Option<T> {
        self.end(&range, false)
    }

    /// Gives a range up that the serving node may still use, and its part with it. Returns the part's place if no other call
    /// uses it: it goes back.
    pub fn lose(&mut self, range: RingRange) -> Option<T> {
        self.end(&range, true)
    }

    fn end(&mut self, range: &RingRange, is_lost: bool) -> Option<T> {
        let at = self.parts.iter().position(|part| part.number == range.part)?;
        let part = &mut self.parts[at];
        part.used.retain(|used| used.start != range.offset);
        part.is_given_up |= is_lost;
        let goes = part.is_given_up && part.used.is_empty();
        goes.then(|| self.parts.swap_remove(at).place)
    }

    /// Gives all parts up; returns the places of those that nobody uses.
    pub fn give_up(&mut self) -> Vec<T> {
        self.parts.iter_mut().for_each(|part| part.is_given_up = true);
        self.parts.extract_if(.., |part| part.used.is_empty()).map(|part| part.place).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ring(lengths: &[u64]) -> Ring<char> {
        let mut ring = Ring::default();
        for (place, length) in ('a'..).zip(lengths) {
            ring.grown(Ok((place, *length)));
        }
        ring
    }

    #[test]
    fn a_ring_doubles_up_to_its_limit() {
        let mut ring = Ring::default();
        let mut lengths = Vec::new();
        while let Some(length) = ring.grow(10, 0) {
            assert_eq!(ring.grow(10, 0), None, "one growth at a time");
            ring.grown(Ok(((), length)));
            lengths.push(length >> 20);
        }
        assert_eq!(lengths, [1, 1, 2, 4, 4, 4]);
        assert_eq!(ring.length(), LONGEST_RING);
    }

    #[test]
    fn a_long_payload_has_a_part_of_its_length_at_once() {
        let mut ring: Ring<()> = Ring::default();
        assert_eq!(ring.grow(3 << 20, 0), Some(4 << 20));
        ring.grown(Err(100));
        assert_eq!(ring.grow(10, 99), None, "it was refused a short time ago");
        assert_eq!(ring.grow(LONGEST_PART + 1, 100), None);
        assert_eq!(ring.grow(10, 100), Some(FIRST_PART));
    }

    #[test]
    fn a_part_that_a_peer_may_use_goes_back_after_its_last_call() {
        let mut ring = ring(&[16 << 10, 16 << 10]);
        let (first, place) = ring.take(8 << 10).unwrap();
        assert_eq!((place, first.offset), ('a', 0));
        let (second, _) = ring.take(4097).unwrap();
        assert_eq!((second.offset, second.length), (8 << 10, 8 << 10));
        let (third, place) = ring.take(1).unwrap();
        assert_eq!(place, 'b', "the first part is full");
        assert_eq!(ring.lose(first), None, "the second call is under way there");
        let (fourth, place) = ring.take(4096).unwrap();
        assert_eq!(place, 'b', "no call gets a range of a part that was given up");
        assert_eq!(ring.give(second), Some('a'));
        assert_eq!((ring.give(third), ring.give_up()), (None, vec![]));
        assert_eq!(ring.give(fourth), Some('b'));
        assert_eq!(ring.length(), 0);
    }

    proptest! {
        /// Against a model of every unit: ranges do not overlap, lie in their parts, and a part goes back once, without a
        /// range in use.
        #[test]
        fn ranges_are_those_of_a_model(
            lengths in prop::collection::vec(1u64..20, 1..4),
            steps in prop::collection::vec((0u8..12, 1u64..9, any::<prop::sample::Index>()), 1..120),
        ) {
            let bytes: Vec<u64> = lengths.iter().map(|units| units * UNIT).collect();
            let mut ring = ring(&bytes);
            let mut there: Vec<char> = ('a'..).take(lengths.len()).collect();
            let mut given_up: Vec<char> = Vec::new();
            let mut used: Vec<(RingRange, char)> = Vec::new();
            for (kind, units, which) in steps {
                if kind < 8 {
                    let length = units * UNIT - u64::from(kind);
                    let free = |place: &char| {
                        let size = bytes[*place as usize - 'a' as usize] / UNIT;
                        let taken = |unit: u64| used.iter().any(|(range, of)| {
                            of == place && (range.offset..range.offset + range.length).contains(&(unit * UNIT))
                        });
                        (0..size).any(|from| from + units <= size && (from..from + units).all(|unit| !taken(unit)))
                    };
                    let fits = there.iter().any(|place| !given_up.contains(place) && free(place));
                    let taken = ring.take(length);
                    prop_assert_eq!(taken.is_some(), fits);
                    let Some((range, place)) = taken else { continue };
                    prop_assert!(there.contains(&place) && !given_up.contains(&place));
                    prop_assert!(range.length >= length);
                    prop_assert!(range.offset + range.length <= bytes[place as usize - 'a' as usize]);
                    for (other, of) in &used {
                        let apart = other.offset + other.length <= range.offset
                            || range.offset + range.length <= other.offset;
                        prop_assert!(*of != place || apart, "{:?} and {:?}", other, range);
                    }
                    used.push((range, place));
                } else if !used.is_empty() {
                    let (range, place) = used.swap_remove(which.index(used.len()));
                    let is_last = used.iter().all(|(_, of)| *of != place);
                    let back = if kind == 8 {
                        given_up.push(place);
                        ring.lose(range)
                    } else {
                        ring.give(range)
                    };
                    let goes = is_last && given_up.contains(&place);
                    prop_assert_eq!(back, goes.then_some(place));
                    there.retain(|one| !goes || *one != place);
                }
            }
            let length: u64 = there.iter().map(|place| bytes[*place as usize - 'a' as usize]).sum();
            prop_assert_eq!(ring.length(), length);
        }
    }
}
