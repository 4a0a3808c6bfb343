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

/// The two ends of a call: the function that it is for, and the thread that makes it. A function alone stands for
/// a call of thread slot 0, the slot of all clients whose threads share no lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CallEnds {
    pub(crate) function: u16,
    /// The slot of the thread among those that share the lane. The answer repeats it.
    pub(crate) thread: u16,
}

impl From<u16> for CallEnds {
    #[inline(always)]
    fn from(function: u16) -> Self {
        CallEnds { function, thread: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generations_wrap() {
        assert!(is_newer(1, 0) && is_newer(0, GENERATION_MASK) && !is_newer(0, 0) && !is_newer(0, 1));
    }
}
