//! Call ids: (generation, slot). The generation grows with each use of the slot, so that the server
//! recognizes a repeated call id, and the client an answer that no call waits for.

/// Bits of a call id that hold the slot.
pub(crate) const SLOT_BITS: u32 = 12;
const GENERATION_MASK: u32 = (1 << (32 - SLOT_BITS)) - 1;

/// Splits a call id into slot and generation.
#[inline]
pub(crate) const fn split_call(call: u32) -> (usize, u32) {
    ((call & ((1 << SLOT_BITS) - 1)) as usize, call >> SLOT_BITS)
}

/// Returns whether `next` is a later generation than `last`, within half of the number space.
#[inline]
pub(crate) const fn is_newer(next: u32, last: u32) -> bool {
    let ahead = next.wrapping_sub(last) & GENERATION_MASK;
    ahead != 0 && ahead < 1 << (31 - SLOT_BITS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generations_wrap() {
        assert!(is_newer(1, 0) && is_newer(0, GENERATION_MASK) && !is_newer(0, 0) && !is_newer(0, 1));
    }
}
