//! Reading and writing fixed fields of byte arrays, without a way to panic.

/// Reads the little-endian `u64` at `OFFSET`; the place is checked when this is compiled.
#[inline(always)]
pub(crate) fn u64_at<const OFFSET: usize, const N: usize>(bytes: &[u8; N]) -> u64 {
    u64::from_le_bytes(get::<OFFSET, 8, N>(bytes))
}

/// Copies `LENGTH` bytes out of `bytes` from `OFFSET`; the place is checked when this is compiled.
#[inline(always)]
#[allow(clippy::indexing_slicing)] // the constant assertion makes every index valid
pub(crate) fn get<const OFFSET: usize, const LENGTH: usize, const N: usize>(bytes: &[u8; N]) -> [u8; LENGTH] {
    const { assert!(OFFSET + LENGTH <= N) };
    let mut out = [0; LENGTH];
    out.copy_from_slice(&bytes[OFFSET..OFFSET + LENGTH]);
    out
}

/// Borrows `LENGTH` bytes of `bytes` from `OFFSET`; the place is checked when this is compiled.
#[inline(always)]
#[allow(clippy::indexing_slicing)] // the constant assertion makes every index valid
pub(crate) fn get_ref<const OFFSET: usize, const LENGTH: usize, const N: usize>(bytes: &[u8; N]) -> &[u8] {
    const { assert!(OFFSET + LENGTH <= N) };
    &bytes[OFFSET..OFFSET + LENGTH]
}

/// Writes `value` at `OFFSET`; the place is checked when this is compiled.
#[inline(always)]
#[allow(clippy::indexing_slicing)] // the constant assertion makes every index valid
pub(crate) fn put<const OFFSET: usize, const LENGTH: usize, const N: usize>(
    bytes: &mut [u8; N],
    value: [u8; LENGTH],
) {
    const { assert!(OFFSET + LENGTH <= N) };
    bytes[OFFSET..OFFSET + LENGTH].copy_from_slice(&value);
}

/// Whether all of `bytes` are zero. Reads every byte, so that it compiles to wide operations.
#[inline]
pub(crate) fn all_zero(bytes: &[u8]) -> bool {
    bytes.iter().fold(0, |seen, byte| seen | byte) == 0
}

/// `length` rounded up to a multiple of 8; the widths leave no way to overflow.
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
        assert!(all_zero(&[]));
        assert!(all_zero(&[0; 63]));
        for place in 0..63 {
            let mut bytes = [0; 63];
            bytes[place] = 0x80;
            assert!(!all_zero(&bytes));
        }
    }
}
