//! Reads and writes fixed fields of byte arrays without any path that can panic.

/// Reads the little-endian `u64` at `OFFSET`. The offset is checked at compile time.
#[inline(always)]
pub(crate) fn u64_at<const OFFSET: usize, const N: usize>(bytes: &[u8; N]) -> u64 {
    u64::from_le_bytes(get::<OFFSET, 8, N>(bytes))
}

/// Copies `LENGTH` bytes out of `bytes` from `OFFSET`. The range is checked at compile time.
#[inline(always)]
#[allow(clippy::indexing_slicing)] // the constant assertion makes every index valid
pub(crate) fn get<const OFFSET: usize, const LENGTH: usize, const N: usize>(bytes: &[u8; N]) -> [u8; LENGTH] {
    const { assert!(OFFSET + LENGTH <= N) };
    let mut out = [0; LENGTH];
    out.copy_from_slice(&bytes[OFFSET..OFFSET + LENGTH]);
    out
}

/// Writes `value` at `OFFSET`. The range is checked at compile time.
#[inline(always)]
#[allow(clippy::indexing_slicing)] // the constant assertion makes every index valid
pub(crate) fn put<const OFFSET: usize, const LENGTH: usize, const N: usize>(
    bytes: &mut [u8; N],
    value: [u8; LENGTH],
) {
    const { assert!(OFFSET + LENGTH <= N) };
    bytes[OFFSET..OFFSET + LENGTH].copy_from_slice(&value);
}

/// Returns whether all of `bytes` are zero. The constant length lets the compiler use wide operations.
#[inline]
pub(crate) fn all_zero<const N: usize>(bytes: &[u8; N]) -> bool {
    bytes.iter().fold(0, |seen, byte| seen | byte) == 0
}

/// Returns whether all bytes of `area` after the first `length` are zero. `area` must be a whole number of
/// words, and is read in words: padding is at most one line, and a byte loop or a call would dominate the
/// cost of a small message.
#[inline]
pub(crate) fn padding_is_zero(area: &[u8], length: usize) -> bool {
    if area.len() == length {
        return true;
    }
    let (words, _) = area.as_chunks::<8>();
    let Some(words) = words.get(length / 8..) else { return false };
    let Some((first, rest)) = words.split_first() else { return true };
    let first = u64::from_le_bytes(*first) >> (length % 8 * 8);
    rest.iter().fold(first, |seen, word| seen | u64::from_le_bytes(*word)) == 0
}

/// Zeroes all bytes of `area` after the first `length`. `area` must be a whole number of words.
#[inline]
pub(crate) fn clear_padding(area: &mut [u8], length: usize) {
    if area.len() == length {
        return;
    }
    let (words, _) = area.as_chunks_mut::<8>();
    let Some((first, rest)) = words.get_mut(length / 8..).and_then(|words| words.split_first_mut()) else {
        return;
    };
    *first = (u64::from_le_bytes(*first) & !(u64::MAX << (length % 8 * 8))).to_le_bytes();
    for word in rest {
        *word = [0; 8];
    }
}

/// Copies `from` to the beginning of `to`. Copies nothing if `to` is shorter. Short payloads are the common
/// case: two overlapping moves cost less than a call of the general copy routine.
#[inline]
pub fn copy(to: &mut [u8], from: &[u8]) {
    #[inline(always)]
    fn ends<const N: usize>(to: &mut [u8], from: &[u8]) {
        if let (Some(first), Some(last)) = (from.first_chunk::<N>(), from.last_chunk::<N>()) {
            if let Some(place) = to.first_chunk_mut::<N>() {
                *place = *first;
            }
            if let Some(place) = to.last_chunk_mut::<N>() {
                *place = *last;
            }
        }
    }
    let Some(to) = to.get_mut(..from.len()) else { return };
    match from.len() {
        16..=32 => ends::<16>(to, from),
        8..16 => ends::<8>(to, from),
        _ => to.copy_from_slice(from),
    }
}

/// Returns a `payload` of at most 32 bytes as four words padded with zeros, or `None` if it is longer.
/// Overlapping loads replace a copy of variable length, so that a line is assembled in registers and
/// written once.
#[inline(always)]
pub(crate) fn inline_words(payload: &[u8]) -> Option<[u64; 4]> {
    if let Ok(whole) = <&[u8; 32]>::try_from(payload) {
        return Some([
            u64_at::<0, 32>(whole),
            u64_at::<8, 32>(whole),
            u64_at::<16, 32>(whole),
            u64_at::<24, 32>(whole),
        ]);
    }
    shorter_words(payload)
}

#[inline(never)]
fn shorter_words(payload: &[u8]) -> Option<[u64; 4]> {
    let length = payload.len();
    let (low, high) = if let (Some(first), Some(last)) = (payload.first_chunk(), payload.last_chunk()) {
        if length > 32 {
            return None;
        }
        // For 16 to 31 bytes: the part of the last 16 bytes that the first 16 do not contain.
        let rest = u128::from_le_bytes(*last).checked_shr(8 * (32 - length) as u32).unwrap_or(0);
        (u128::from_le_bytes(*first), rest)
    } else if let (Some(first), Some(last)) = (payload.first_chunk(), payload.last_chunk()) {
        let rest = u64::from_le_bytes(*last).checked_shr(8 * (16 - length) as u32).unwrap_or(0);
        (u128::from(u64::from_le_bytes(*first)) | u128::from(rest) << 64, 0)
    } else if let (Some(first), Some(last)) = (payload.first_chunk(), payload.last_chunk()) {
        let rest = u64::from(u32::from_le_bytes(*last)) >> (8 * (8 - length)) << 32;
        ((u64::from(u32::from_le_bytes(*first)) | rest).into(), 0)
    } else {
        (payload.iter().rev().fold(0, |sum, byte| sum << 8 | u128::from(*byte)), 0)
    };
    Some([low as u64, (low >> 64) as u64, high as u64, (high >> 64) as u64])
}

/// Returns eight words as a line.
#[inline(always)]
pub(crate) fn of_words(words: [u64; 8]) -> [u8; 64] {
    let mut line = [0; 64];
    for (chunk, word) in line.as_chunks_mut::<8>().0.iter_mut().zip(words) {
        *chunk = word.to_le_bytes();
    }
    line
}

/// Rounds `length` up to a multiple of 8. A `u64` result cannot overflow.
#[inline]
pub(crate) const fn pad_to_8(length: u32) -> u64 {
    (length as u64 + 7) & !7
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_little_endian_and_in_place() {
        let mut bytes = [0u8; 12];
        put::<3, 8, 12>(&mut bytes, 0x0102_0304_0506_0708_u64.to_le_bytes());
        assert_eq!(bytes, [0, 0, 0, 8, 7, 6, 5, 4, 3, 2, 1, 0]);
        assert_eq!(u64_at::<3, 12>(&bytes), 0x0102_0304_0506_0708);
        assert_eq!(get::<3, 2, 12>(&bytes), [8, 7]);
    }

    #[test]
    fn padding_rounds_up() {
        assert_eq!([0, 1, 7, 8, 9].map(pad_to_8), [0, 8, 8, 8, 16]);
        assert_eq!(pad_to_8(u32::MAX), 1 << 32);
    }

    #[test]
    fn zero_means_every_byte() {
        assert!(all_zero(&[0; 32]));
        for place in 0..32 {
            let mut bytes = [0; 32];
            bytes[place] = 0x80;
            assert!(!all_zero(&bytes));
        }
    }

    #[test]
    fn padding_is_what_follows_the_length() {
        for size in [0, 8, 16, 64] {
            for length in 0..=size {
                let mut area = vec![0xee; size];
                clear_padding(&mut area, length);
                assert!(area[..length].iter().all(|byte| *byte == 0xee));
                assert!(area[length..].iter().all(|byte| *byte == 0));
                assert!(padding_is_zero(&area, length));
                for place in length..size {
                    area[place] = 0x80;
                    assert!(!padding_is_zero(&area, length), "byte {place} after {length}");
                    area[place] = 0;
                }
            }
            assert!(!padding_is_zero(&vec![0; size], size + 8));
        }
    }

    #[test]
    fn copies_of_every_length_are_whole_and_no_more() {
        for length in 0..=100 {
            let from: Vec<u8> = (1..=length).collect();
            let mut to = [0xee; 128];
            copy(&mut to, &from);
            assert_eq!(to[..from.len()], from);
            assert!(to[from.len()..].iter().all(|byte| *byte == 0xee), "{length}");
        }
        let mut short = [0xee; 4];
        copy(&mut short, &[1; 5]);
        assert_eq!(short, [0xee; 4]);
    }

    #[test]
    fn payloads_of_every_length_become_words() {
        for length in 0..=32 {
            let payload: Vec<u8> = (0..length).map(|byte| 0x80 | byte).collect();
            let words = inline_words(&payload).unwrap();
            let mut expected = [0; 32];
            expected[..payload.len()].copy_from_slice(&payload);
            let line = of_words([words[0], words[1], words[2], words[3], 0, 0, 0, 0]);
            assert_eq!(line[..32], expected, "{length}");
        }
        for length in [33, 40, 64, 1000] {
            assert_eq!(inline_words(&vec![0; length]), None);
        }
    }
}
