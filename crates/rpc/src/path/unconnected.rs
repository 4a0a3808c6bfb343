//! Queue pairs without a connection (UD), which all lanes of a thread may share: each message is a datagram, whose
//! immediate data names the receiver's lane and the message.

use super::MAX_MESSAGE;
use dunlin_fabric::Capabilities;
use dunlin_wire::{BODY_OFFSET, ENTRY_META_BYTES, LINE, TAG_BYTES};

/// The datagram size that the table's protocols assume: InfiniBand's largest MTU (FaSST section 3.3).
pub(crate) const MTU: u32 = 4096;

/// Returns the largest small payload of a message in a datagram of `datagram` bytes, also as the only entry of a batch.
pub(crate) const fn payload(datagram: u32) -> u32 {
    let lines = datagram / LINE as u32 * LINE as u32;
    lines.saturating_sub((BODY_OFFSET + ENTRY_META_BYTES + TAG_BYTES) as u32)
}

/// Bytes from one sender that may be in flight or wait for a RECV, where the back-end keeps them in memory: a
/// window of 64 messages of medium length. Any excess is lost.
pub(crate) const INBOUND_BYTES: u32 = 128 * 1024;

/// Returns the longest message that fits a datagram, in bytes.
pub(crate) fn max_message(capabilities: &Capabilities) -> usize {
    (capabilities.max_datagram as usize / LINE * LINE).min(MAX_MESSAGE)
}

/// Returns the bytes of a RECV for a datagram: a power of two, as arenas allocate them.
pub(crate) fn receive_bytes(capabilities: &Capabilities) -> usize {
    (max_message(capabilities) + capabilities.datagram_headroom as usize).next_power_of_two()
}

/// Returns the immediate data of a datagram: the receiver's lane number and the low 16 bits of the sequence
/// number.
pub(crate) const fn immediate(lane: u16, sequence: u64) -> u32 {
    (lane as u32) << 16 | (sequence & 0xffff) as u32
}

/// Returns the receiver's lane number from the immediate data of a datagram. The number is unverified.
pub(crate) const fn lane_of(immediate: u32) -> u16 {
    (immediate >> 16) as u16
}

/// Returns the sequence number nearest to `next` whose low 16 bits are those of `immediate`.
pub(crate) const fn sequence_near(next: u64, immediate: u32) -> u64 {
    const SPAN: u64 = 1 << 16;
    let same = next & !(SPAN - 1) | (immediate & 0xffff) as u64;
    if same + SPAN / 2 < next {
        same + SPAN
    } else if same > next + SPAN / 2 && same >= SPAN {
        same - SPAN
    } else {
        same
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// The low 16 bits restore the sequence number of any message that is at most half of their range
        /// away.
        #[test]
        fn sequences_come_back(next in 0u64..1 << 40, off in -32_000i64..32_000, lane: u16) {
            let sequence = next.saturating_add_signed(off);
            let immediate = immediate(lane, sequence);
            prop_assert_eq!(sequence_near(next, immediate), sequence);
            prop_assert_eq!(lane_of(immediate), lane);
        }

        /// Hostile immediate data yields a nearby number and has no other effect.
        #[test]
        fn any_immediate_is_some_sequence(next: u32, immediate: u32) {
            let next = u64::from(next);
            let sequence = sequence_near(next, immediate);
            prop_assert_eq!(sequence as u16, immediate as u16);
            prop_assert!(sequence.abs_diff(next) <= 1 << 16);
        }
    }
}
