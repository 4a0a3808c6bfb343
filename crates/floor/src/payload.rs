//! The cheap work on payload bytes that floor and subject share, so that a ratio compares transports and
//! not loops.

/// Step between adjacent words of a filled buffer. Odd, so that no two words of a buffer are equal.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
/// Number of independent sums in [`sum_bytes`]; the compiler maps them to vector registers.
const LANES: usize = 8;

/// Fills `buffer` with a pattern that depends on `seed` and position. Vectorised; never inlined, so that
/// all callers run the same machine code.
#[inline(never)]
pub fn fill_bytes(buffer: &mut [u8], seed: u64) {
    let (words, tail) = buffer.as_chunks_mut::<8>();
    let count = words.len() as u64;
    let mut value = word_at(seed, 0);
    for word in words {
        *word = value.to_le_bytes();
        value = value.wrapping_add(STEP);
    }
    tail.copy_from_slice(&word_at(seed, count).to_le_bytes()[..tail.len()]);
}

/// Reads every byte of `buffer`: returns the wrapping sum of its little-endian 64-bit words, the last one
/// zero-padded. Vectorised; never inlined.
#[inline(never)]
#[must_use]
pub fn sum_bytes(buffer: &[u8]) -> u64 {
    let mut lanes = [0u64; LANES];
    let mut blocks = buffer.chunks_exact(LANES * 8);
    for block in &mut blocks {
        for (word, lane) in block.chunks_exact(8).zip(&mut lanes) {
            *lane = lane.wrapping_add(little_endian(word));
        }
    }
    let mut sum = lanes.into_iter().fold(0, u64::wrapping_add);
    for piece in blocks.remainder().chunks(8) {
        sum = sum.wrapping_add(little_endian(piece));
    }
    sum
}

/// Computes the [`sum_bytes`] of a buffer of `length` bytes filled with `seed`, without such a buffer.
#[must_use]
pub fn expected_sum(length: usize, seed: u64) -> u64 {
    let words = (length / 8) as u64;
    let pairs = if words.is_multiple_of(2) {
        (words / 2).wrapping_mul(words.wrapping_sub(1))
    } else {
        words.wrapping_mul(words / 2)
    };
    let whole = words.wrapping_mul(word_at(seed, 0)).wrapping_add(STEP.wrapping_mul(pairs));
    let tail = &word_at(seed, words).to_le_bytes()[..length % 8];
    whole.wrapping_add(little_endian(tail))
}

/// Returns the fill seed of the server's answer. It depends on every request byte, so the answer proves
/// their arrival.
#[must_use]
pub fn answer_seed(request_sum: u64) -> u64 {
    request_sum.rotate_left(17) ^ STEP
}

/// Computes the [`sum_bytes`] of the answer to a request of `length` bytes filled with `seed`, if the
/// server answers with the same number of bytes, filled with [`answer_seed`] of the request's sum.
#[must_use]
pub fn expected_answer_sum(length: usize, seed: u64) -> u64 {
    expected_sum(length, answer_seed(expected_sum(length, seed)))
}

fn word_at(seed: u64, index: u64) -> u64 {
    // The seed is mixed, so that consecutive seeds do not produce shifted copies of one buffer.
    let mut mixed = seed.wrapping_add(1).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed ^= mixed >> 29;
    mixed.wrapping_add(index.wrapping_mul(STEP))
}

#[inline(always)]
fn little_endian(bytes: &[u8]) -> u64 {
    match bytes.try_into() {
        Ok(word) => u64::from_le_bytes(word),
        Err(_) => bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)),
    }
}

/// A zeroed, page-aligned private buffer, as in the bare C floors.
pub struct PageBuffer {
    bytes: Vec<u8>,
    start: usize,
    length: usize,
}

impl PageBuffer {
    /// Creates a buffer of `length` bytes and touches every page.
    #[must_use]
    pub fn new(length: usize) -> Self {
        let mut bytes = vec![1; length + 4096];
        bytes.fill(0);
        let start = bytes.as_ptr().align_offset(4096).min(4096);
        Self { bytes, start, length }
    }

    /// Returns the bytes.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.length]
    }

    /// Returns the bytes for writing.
    #[must_use]
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.length]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_closed_form_is_the_sum_of_what_was_filled() {
        for length in (0..200).chain([4096, 65_536, 65_537, 1 << 20]) {
            let mut buffer = vec![0xaa; length];
            for seed in [0, 1, 77, u64::MAX] {
                fill_bytes(&mut buffer, seed);
                assert_eq!(sum_bytes(&buffer), expected_sum(length, seed), "length {length}, seed {seed}");
            }
        }
    }

    #[test]
    fn every_byte_counts() {
        let mut buffer = vec![0; 300];
        fill_bytes(&mut buffer, 5);
        let sum = sum_bytes(&buffer);
        for index in 0..buffer.len() {
            buffer[index] ^= 0x40;
            assert_ne!(sum_bytes(&buffer), sum, "byte {index}");
            buffer[index] ^= 0x40;
        }
        assert_eq!(sum_bytes(&buffer), sum);
    }

    #[test]
    fn every_byte_is_written_and_changes_with_the_seed() {
        for length in [1, 8, 63, 64, 65, 4096] {
            // A byte with the same value under every seed was not written.
            let mut untouched: Vec<bool> = vec![true; length];
            let mut buffer = vec![0; length];
            for seed in 0..64 {
                buffer.fill(0x5a);
                fill_bytes(&mut buffer, seed);
                untouched.iter_mut().zip(&buffer).for_each(|(flag, byte)| *flag &= *byte == 0x5a);
            }
            assert!(!untouched.contains(&true), "length {length}");
        }
        let (mut one, mut two) = ([0; 64], [0; 64]);
        fill_bytes(&mut one, 1);
        fill_bytes(&mut two, 2);
        assert_ne!(one, two);
    }

    #[test]
    fn page_buffers_start_on_a_page() {
        let mut buffer = PageBuffer::new(100);
        assert_eq!(buffer.as_mut_slice().as_ptr() as usize % 4096, 0);
        assert_eq!(buffer.as_slice().len(), 100);
    }
}
