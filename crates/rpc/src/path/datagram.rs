//! Datagrams (FaSST; HERD's answers): one message each, at most a datagram long, that arrives, is lost, comes twice or in
//! another order. Its tag says that the peer of the lane made it, and depends on its sequence, of which the immediate data
//! carries as much as is needed to tell it. What does not fit is dropped and counted: anybody may send to a datagram queue
//! pair. What was lost is sent again by `path/again.rs`.

use super::{MAX_MESSAGE, rx};
use dunlin_fabric::{AddressHandleId, Buffer, Capabilities, Fabric};
use dunlin_wire::{LINE, TagKey};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Bytes that may be on their way to us from one sender and not in a RECV, where a back-end keeps them in memory: a window of
/// 64 messages that are not the longest. What is over that is lost.
pub(crate) const INBOUND_BYTES: u32 = 128 * 1024;

/// The longest message that travels as a datagram.
pub(crate) fn max_message(capabilities: &Capabilities) -> usize {
    (capabilities.max_datagram as usize / LINE * LINE).min(MAX_MESSAGE)
}

/// Bytes of a RECV for a datagram: a power of two, as arenas hand them out.
pub(crate) fn receive_bytes(capabilities: &Capabilities) -> usize {
    (max_message(capabilities) + capabilities.datagram_headroom as usize).next_power_of_two()
}

/// The immediate data of a datagram: the receiver's number of the lane, and the end of the message's sequence.
pub(crate) const fn immediate(lane: u16, sequence: u64) -> u32 {
    (lane as u32) << 16 | (sequence & 0xffff) as u32
}

/// The receiver's number of the lane that a datagram claims to be for.
pub(crate) const fn lane_of(immediate: u32) -> u16 {
    (immediate >> 16) as u16
}

/// The sequence that ends so and is nearest to `next`.
const fn sequence_near(next: u64, immediate: u32) -> u64 {
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

/// Where the datagrams of a lane go.
#[derive(Debug)]
pub(crate) struct Outlet {
    to: AddressHandleId,
    /// The receiver's number of the lane.
    lane: u16,
    /// Work requests since the last signaled one, of all lanes that send by the queue pair: slots of its queue come back only
    /// with a signaled completion. Only the thread that owns the queue pair uses it.
    unsignaled: Arc<AtomicU32>,
}

impl Outlet {
    pub(crate) fn new(to: AddressHandleId, lane: u16, unsignaled: Arc<AtomicU32>) -> Self {
        Outlet { to, lane, unsignaled }
    }

    pub(crate) fn to(&self) -> AddressHandleId {
        self.to
    }

    pub(crate) fn immediate(&self, sequence: u64) -> u32 {
        immediate(self.lane, sequence)
    }

    /// Whether the next one is to be signaled, if one in `every` is.
    pub(crate) fn next_is_signaled(&self, every: u32) -> bool {
        self.unsignaled.load(Ordering::Relaxed) + 1 >= every
    }

    /// One was posted.
    pub(crate) fn posted(&self, signaled: bool) {
        let unsignaled = if signaled { 0 } else { self.unsignaled.load(Ordering::Relaxed) + 1 };
        self.unsignaled.store(unsignaled, Ordering::Relaxed);
    }
}

/// Datagrams of a lane that are good and were not looked at yet. They lie in the RECVs' buffers.
#[derive(Debug)]
pub(crate) struct Datagrams<F: Fabric> {
    waiting: VecDeque<(Buffer<F::Memory>, Range<usize>)>,
    limit: usize,
    /// Bytes before the message in a RECV's buffer.
    headroom: usize,
}

impl<F: Fabric> Datagrams<F> {
    /// At most `limit` are kept, and others dropped.
    pub(crate) fn new(capabilities: &Capabilities, limit: usize) -> Self {
        let headroom = capabilities.datagram_headroom as usize;
        Datagrams { waiting: VecDeque::with_capacity(limit), limit, headroom }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(crate) fn pop(&mut self) -> Option<(Buffer<F::Memory>, Range<usize>)> {
        self.waiting.pop_front()
    }

    /// Takes what a RECV has brought, if it is a message of the peer's; answers its sequence. `next` is the sequence that is
    /// expected if nothing was lost. What is not taken comes back.
    pub(crate) fn take(
        &mut self,
        mut buffer: Buffer<F::Memory>,
        bytes: u32,
        immediate: Option<u32>,
        (tags, epoch, next): (TagKey, u32, u64),
    ) -> Result<u64, Buffer<F::Memory>> {
        let range = self.headroom..bytes as usize;
        let Some(immediate) = immediate else { return Err(buffer) };
        if self.waiting.len() >= self.limit || !buffer.set_length(range.end) {
            return Err(buffer);
        }
        let sequence = sequence_near(next, immediate);
        let whole = buffer.get(range.clone()).is_some_and(|message| {
            rx::check(message, tags.tags(epoch, sequence)).is_ok_and(|total| total == message.len())
        });
        if !whole {
            return Err(buffer);
        }
        self.waiting.push_back((buffer, range));
        Ok(sequence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Whatever is lost, doubled or late within half of what the immediate data can tell: the sequence comes back.
        #[test]
        fn sequences_come_back(next in 0u64..1 << 40, off in -32_000i64..32_000, lane: u16) {
            let sequence = next.saturating_add_signed(off);
            let immediate = immediate(lane, sequence);
            prop_assert_eq!(sequence_near(next, immediate), sequence);
            prop_assert_eq!(lane_of(immediate), lane);
        }

        /// What a hostile peer says leads to a number, and no further.
        #[test]
        fn any_immediate_is_some_sequence(next: u32, immediate: u32) {
            let next = u64::from(next);
            let sequence = sequence_near(next, immediate);
            prop_assert_eq!(sequence as u16, immediate as u16);
            prop_assert!(sequence.abs_diff(next) <= 1 << 16);
        }
    }

    #[test]
    fn one_in_so_many_is_signaled_whoever_sends() {
        let shared = Arc::new(AtomicU32::new(0));
        let outlets = [1, 2].map(|lane| Outlet::new(AddressHandleId(lane), lane as u16, Arc::clone(&shared)));
        let signaled: Vec<bool> = (0..12)
            .map(|number| {
                let outlet = &outlets[number % 2];
                let signaled = outlet.next_is_signaled(4);
                outlet.posted(signaled);
                signaled
            })
            .collect();
        assert_eq!(signaled, [false, false, false, true].repeat(3));
    }
}
