//! A small pseudo-random generator: xoshiro256++ (Blackman and Vigna, 2019), seeded by SplitMix64. Its
//! sequence never changes between versions, so that a workload is a function of its seed. Not for secrets.

/// A deterministic generator. Cheap to copy; each thread should have its own.
#[derive(Clone, Debug)]
pub struct Random {
    state: [u64; 4],
}

impl Random {
    /// Creates a generator; every seed is suitable.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut seed = seed;
        Self { state: std::array::from_fn(|_| split_mix(&mut seed)) }
    }

    /// Returns the next 64 bits.
    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        let state = &mut self.state;
        let result = state[0].wrapping_add(state[3]).rotate_left(23).wrapping_add(state[0]);
        let shifted = state[1] << 17;
        state[2] ^= state[0];
        state[3] ^= state[1];
        state[1] ^= state[2];
        state[0] ^= state[3];
        state[2] ^= shifted;
        state[3] = state[3].rotate_left(45);
        result
    }

    /// Returns a number below `bound`, or 0 if `bound` is 0. Uniform up to a bias under 2^-64 times `bound`
    /// (Lemire's multiplication).
    #[inline]
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// Returns a number in [0, 1), uniform over multiples of 2^-53.
    #[inline]
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// Fills a buffer with random bytes.
    pub fn fill(&mut self, buffer: &mut [u8]) {
        for piece in buffer.chunks_mut(8) {
            let bytes = self.next_u64().to_le_bytes();
            piece.copy_from_slice(&bytes[..piece.len()]);
        }
    }
}

fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn split_mix_gives_its_published_sequence() {
        let mut state = 1_234_567;
        let found: Vec<u64> = (0..3).map(|_| split_mix(&mut state)).collect();
        assert_eq!(found, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
    }

    #[test]
    fn xoshiro_gives_its_published_sequence() {
        // The first outputs for the state 1, 2, 3, 4, from the reference implementation's test vectors.
        let mut random = Random { state: [1, 2, 3, 4] };
        let found: Vec<u64> = (0..4).map(|_| random.next_u64()).collect();
        assert_eq!(found, [41_943_041, 58_720_359, 3_588_806_011_781_223, 3_591_011_842_654_386]);
    }

    #[test]
    fn below_and_unit_are_uniform() {
        let mut random = Random::new(7);
        let mut counts = [0u32; 10];
        let mut sum = 0.0;
        for _ in 0..100_000 {
            counts[random.below(10) as usize] += 1;
            let value = random.unit();
            assert!((0.0..1.0).contains(&value));
            sum += value;
        }
        // Chi-square with 9 degrees of freedom: 27.9 is the 99.9th percentile.
        let chi: f64 = counts.iter().map(|count| (f64::from(*count) - 10_000.0).powi(2) / 10_000.0).sum();
        assert!(chi < 27.9, "{chi}");
        assert!((sum / 100_000.0 - 0.5).abs() < 0.005);
        assert_eq!(random.below(0), 0);
        assert_eq!(random.below(1), 0);
    }

    #[test]
    fn seeds_differ_and_repeat() {
        let sequence = |seed| -> Vec<u64> {
            let mut random = Random::new(seed);
            (0..8).map(|_| random.next_u64()).collect()
        };
        assert_eq!(sequence(3), sequence(3));
        assert_ne!(sequence(3), sequence(4));
        let mut bytes = [0; 11];
        Random::new(3).fill(&mut bytes);
        assert_eq!(bytes[..8], sequence(3)[0].to_le_bytes());
        assert_ne!(bytes[8..], [0; 3]);
    }
}
