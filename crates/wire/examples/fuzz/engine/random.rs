//! A small seeded generator (SplitMix64): good enough to choose inputs, and deterministic on every
//! platform.

pub(super) struct Random(u64);

impl Random {
    /// Returns the generator of one input; it is independent of all other inputs of the seed.
    pub(super) fn for_input(seed: u64, index: u64) -> Random {
        let mut start = Random(seed.wrapping_mul(0xd134_2543_de82_ef95).wrapping_add(index));
        Random(start.next() ^ seed.rotate_left(32))
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `bound`, which must not be 0. The bias is too small to matter to a fuzzer.
    pub(super) fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.next()) * bound as u128) >> 64) as usize
    }

    pub(super) fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }

    pub(super) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    pub(super) fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let word = self.next().to_le_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
    }
}
