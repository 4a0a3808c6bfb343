//! The pseudorandom generator of a run.

/// SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014): small, and
/// good enough to vary timings.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Creates an independent stream for each (seed, stream).
    pub fn new(seed: u64, stream: u64) -> Self {
        let mut mixer = Random(seed ^ stream.wrapping_mul(0xd1b5_4a32_d192_ed03));
        Random(mixer.next())
    }

    /// Returns 64 random bits.
    #[allow(clippy::should_implement_trait, reason = "there is always a next")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number in `0..bound`; 0 for a bound of 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// Returns true with probability 1/`n`.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}
