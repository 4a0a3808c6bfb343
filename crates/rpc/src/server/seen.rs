//! The last call seen in each slot of a lane, so that no call id is executed twice, and a bound of the time when it was
//! taken.
//!
//! A slot takes three bytes: the generation (20 bits), and a step of the lane's own scale of time (4 bits). The scale
//! has 15 steps that begin at a base. When they are used up, the base moves on, and the width of a step follows the
//! shortest time for which slots are in use, so that a bound is exact to a quarter of that time, or to 16 us if that is
//! more. A slot that is used twice within a step makes steps shorter at once. Step 0 says that nothing is known any
//! more. Bounds are never too late: a server begins no call after its deadline.

use crate::path::call_id::SLOT_BITS;

/// The generation is in the low bits of a cell.
const GENERATION_BITS: u32 = 32 - SLOT_BITS;
/// The number of steps.
const STEPS: u32 = 15;
/// The steps behind the time at which the scale is set.
const BEHIND: u32 = 8;
/// The logarithm of the shortest step, in units of 1024 ns: setting the scale looks at all slots.
const SHORTEST: u32 = 4;
/// The logarithm of the longest step.
const LONGEST: u32 = 26;

/// The base, the logarithm of a step, and that of the shortest use of a slot since the scale was set.
const HEAD_BYTES: usize = 6;
/// No use is known.
const NO_USE: u8 = u32::BITS as u8;
const CELL_BYTES: usize = 3;
/// The place of a step in the last byte of a cell.
const STEP_SHIFT: u32 = GENERATION_BITS - 8 * (CELL_BYTES as u32 - 1);
/// The bytes of a block of cells, which a processor changes without a branch.
const BLOCK: usize = 16 * CELL_BYTES;

/// The last call of each slot. Times are in units of 1024 ns and wrap.
#[derive(Debug)]
pub(super) struct Seen(Box<[u8]>);

/// The state of a scale.
#[derive(Clone, Copy)]
struct Scale {
    base: u32,
    step: u32,
}

impl Scale {
    /// Returns how long before `now` a step begins.
    fn age(self, step: u32, now: u32) -> Option<u32> {
        let from_base = step.checked_sub(1)? << self.step;
        Some(now.wrapping_sub(self.base.wrapping_add(from_base)))
    }
}

impl Seen {
    /// Makes the slots of a window, in which no call was seen.
    pub(super) fn new(window: u16, now: u32) -> Self {
        let mut bytes = vec![0; HEAD_BYTES + CELL_BYTES * usize::from(window)];
        bytes[..4].copy_from_slice(&now.to_le_bytes());
        (bytes[4], bytes[5]) = (SHORTEST as u8, NO_USE);
        // Step 1, which begins at the base.
        bytes[HEAD_BYTES..].as_chunks_mut().0.fill(cell(0, 1));
        Seen(bytes.into())
    }

    /// Returns the number of slots.
    pub(super) fn window(&self) -> usize {
        (self.0.len() - HEAD_BYTES) / CELL_BYTES
    }

    /// Returns the bytes that it takes.
    pub(super) fn bytes(&self) -> usize {
        self.0.len()
    }

    /// Returns the place of the first slots, for a prefetch.
    pub(super) fn place(&self) -> *const u8 {
        self.0.as_ptr()
    }

    #[inline(always)]
    fn cells(&mut self) -> &mut [[u8; CELL_BYTES]] {
        self.0[HEAD_BYTES..].as_chunks_mut().0
    }

    /// Returns the last call of a slot, for [`take`](Seen::take).
    #[inline(always)]
    pub(super) fn last(&self, slot: usize) -> Option<Last> {
        let [low, middle, high] = *self.0[HEAD_BYTES..].as_chunks().0.get(slot)?;
        Some(Last(u32::from_le_bytes([low, middle, high, 0])))
    }

    fn scale(&self) -> Scale {
        let base = self.0.first_chunk().map_or(0, |base| u32::from_le_bytes(*base));
        Scale { base, step: self.0[4].into() }
    }

    /// Takes a newer call in a slot, whose last one was `last`. Returns how long before `now` that one was taken at the
    /// latest; `u32::MAX` if it is not known.
    #[inline(always)]
    pub(super) fn take(&mut self, slot: usize, last: Last, generation: u32, now: u32) -> u32 {
        let scale = self.scale();
        let age = scale.age(last.step(), now).unwrap_or(u32::MAX);
        let passed = now.wrapping_sub(scale.base) >> scale.step;
        let bits = (u32::BITS - age.leading_zeros()) as u8;
        self.0[5] = self.0[5].min(bits);
        let is_coarse = passed + 1 == last.step() && scale.step > SHORTEST;
        let step = if passed < STEPS && !is_coarse { passed + 1 } else { self.set_scale(now, is_coarse) };
        if let Some(cell_of) = self.cells().get_mut(slot) {
            *cell_of = cell(generation, step);
        }
        age
    }

    /// Sets the scale so that it goes on after a time, with much shorter steps if they are too coarse. Returns the step of
    /// this time.
    #[cold]
    fn set_scale(&mut self, now: u32, is_coarse: bool) -> u32 {
        let before = self.scale();
        let of = |time: u32| (u32::BITS - time.leading_zeros()).saturating_sub(BEHIND.ilog2());
        let wanted = match std::mem::replace(&mut self.0[5], NO_USE) {
            _ if is_coarse => before.step.saturating_sub(BEHIND.ilog2()),
            // Calls that were taken since the base keep their times.
            NO_USE => of(now.wrapping_sub(before.base)).max(before.step + 1),
            bits => u32::from(bits).saturating_sub(BEHIND.ilog2()),
        };
        let step = wanted.clamp(SHORTEST, LONGEST);
        if step == before.step {
            return self.move_base(before, now);
        }
        let behind = BEHIND << step;
        self.0[..4].copy_from_slice(&now.wrapping_sub(behind).to_le_bytes());
        self.0[4] = step as u8;
        // All slots with the same step get the same one.
        let moved: [u32; STEPS as usize + 1] = std::array::from_fn(|last| {
            let known = before.age(last as u32, now).and_then(|age| behind.checked_sub(age));
            known.map_or(0, |from_base| 1 + (from_base >> step)) << GENERATION_BITS
        });
        for cell_of in self.cells() {
            let [low, middle, high] = *cell_of;
            let last = Last(u32::from_le_bytes([low, middle, high, 0]));
            let step = moved[(last.step() & STEPS) as usize];
            [cell_of[0], cell_of[1], cell_of[2], _] = (last.generation() | step).to_le_bytes();
        }
        1 + BEHIND
    }

    /// Moves the base by whole steps, so that all steps keep their times. Returns the step of this time.
    fn move_base(&mut self, Scale { base, step }: Scale, now: u32) -> u32 {
        /// The bits of steps in a block of cells.
        const IS_STEP: [u8; BLOCK] = {
            let (mut mask, mut at) = ([0; BLOCK], CELL_BYTES - 1);
            while at < BLOCK {
                mask[at] = (STEPS as u8) << STEP_SHIFT;
                at += CELL_BYTES;
            }
            mask
        };
        let by = (now.wrapping_sub(base) >> step).saturating_sub(BEHIND);
        self.0[..4].copy_from_slice(&base.wrapping_add(by << step).to_le_bytes());
        let by = (by.min(STEPS) as u8) << STEP_SHIFT;
        // A step that begins before the base becomes 0. Other bytes have no bits of steps, and stay.
        let move_one = |byte: &mut u8, mask: u8| *byte = *byte & !mask | (*byte & mask).saturating_sub(by);
        let (blocks, rest) = self.0[HEAD_BYTES..].as_chunks_mut::<BLOCK>();
        for block in blocks {
            block.iter_mut().zip(IS_STEP).for_each(|(byte, mask)| move_one(byte, mask));
        }
        rest.iter_mut().zip(IS_STEP).for_each(|(byte, mask)| move_one(byte, mask));
        1 + BEHIND
    }
}

/// The last call of a slot.
#[derive(Clone, Copy, Debug)]
pub(super) struct Last(u32);

impl Last {
    #[inline(always)]
    pub(super) const fn generation(self) -> u32 {
        self.0 & ((1 << GENERATION_BITS) - 1)
    }

    #[inline(always)]
    const fn step(self) -> u32 {
        self.0 >> GENERATION_BITS
    }
}

#[inline(always)]
const fn cell(generation: u32, step: u32) -> [u8; CELL_BYTES] {
    let [low, middle, high, _] = (generation | step << GENERATION_BITS).to_le_bytes();
    [low, middle, high]
}

const _: () = assert!(STEPS < 1 << (8 * CELL_BYTES as u32 - GENERATION_BITS), "a step fits its bits");
const _: () = assert!(BEHIND + 1 < STEPS, "the scale begins before its end");

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Takes a call, and compares with the exact time of the last one.
    fn take(seen: &mut Seen, exact: &mut [(u32, u32)], slot: usize, now: u32) -> (u32, u32) {
        let last = seen.last(slot).unwrap();
        assert_eq!(last.generation(), exact[slot].0);
        let generation = exact[slot].0.wrapping_add(1) & ((1 << GENERATION_BITS) - 1);
        let age = seen.take(slot, last, generation, now);
        let real = now.wrapping_sub(exact[slot].1);
        exact[slot] = (generation, now);
        (age, real)
    }

    proptest! {
        /// No bound is ever too late, whatever the times and slots, and no generation is lost.
        #[test]
        fn bounds_are_never_too_late(
            start in any::<u32>(),
            calls in prop::collection::vec((0usize..8, 0u32..24, any::<u16>()), 1..400),
        ) {
            let mut seen = Seen::new(8, start);
            let (mut exact, mut now, mut passed) = ([(0, start); 8], start, 0u32);
            for (slot, bits, pause) in calls {
                let pause = u32::from(pause) & ((1 << bits) - 1);
                // An hour later times wrap, here as elsewhere.
                let Some(all) = passed.checked_add(pause).filter(|all| *all < 1 << 31) else { break };
                (now, passed) = (now.wrapping_add(pause), all);
                let (age, real) = take(&mut seen, &mut exact, slot, now);
                prop_assert!(age >= real, "{} {}", age, real);
            }
        }

        /// Where slots are in use for similar times, bounds become exact to a quarter of that time, whatever was before:
        /// also after a long pause.
        #[test]
        fn bounds_follow_the_time_of_calls(
            start in any::<u32>(),
            phases in prop::collection::vec((1usize..=8, 0u32..20, 0u32..27), 1..6),
        ) {
            let mut seen = Seen::new(8, start);
            let (mut exact, mut now) = ([(0, start); 8], start);
            for (in_use, every, pause) in phases {
                now = now.wrapping_add(1 << pause);
                for call in 0..1000 {
                    now = now.wrapping_add(1 << every);
                    let (age, real) = take(&mut seen, &mut exact, call % in_use, now);
                    if call >= 500 {
                        prop_assert!(age - real <= (real / 4).max(1 << SHORTEST), "{} {}", age, real);
                    }
                }
            }
        }
    }

    #[test]
    fn a_long_pause_is_as_exact_as_others() {
        let mut seen = Seen::new(1, 7);
        let mut exact = [(0, 7)];
        for pause in [1, 1_000_000, 1, 50_000, 1 << 30, 3] {
            let now = exact[0].1 + pause;
            let (age, real) = take(&mut seen, &mut exact, 0, now);
            assert!(age >= real && age - real <= (real / 4).max(1 << 30), "{pause}: {age} {real}");
        }
        assert_eq!((seen.window(), seen.bytes()), (1, 9));
        assert!(seen.last(1).is_none());
        assert_eq!(Seen::new(64, 0).bytes(), 198);
    }
}
