//! A call id is (generation, slot). The generation grows each time a slot is used, so the server can tell a call id that comes twice,
//! and the client an answer that nobody waits for.

/// Bits of a call id that name the slot.
pub(crate) const SLOT_BITS: u32 = 12;
const GENERATION_MASK: u32 = (1 << (32 - SLOT_BITS)) - 1;

/// The slot and generation of a call id.
#[inline]
pub(crate) const fn split_call(call: u32) -> (usize, u32) {
    ((call & ((1 << SLOT_BITS) - 1)) as usize, call >> SLOT_BITS)
}

/// Whether `next` is a later generation than `last`, within half of the number space.
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
