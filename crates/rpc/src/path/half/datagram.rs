//! `datagram` (FaSST; HERD's answers): each message is one datagram, which may be lost, duplicated or
//! reordered.
//!
//! A message's tag proves that the lane's peer made it, and depends on the message's sequence number; the
//! immediate data carries the low 16 bits of that number. The receiver drops and counts every datagram that
//! does not check, since anybody may send to a datagram queue pair. `path/retransmit.rs` retransmits lost
//! messages.
//!
//! # Golden counts
//!
//! Requests, doorbells, RECVs and completions of 1 024 calls, of 32 bytes unless said. As with SENDs, except that
//! the server signals one post in 64 of all its clients together.
//!
//! ```text
//! FaSST, client: posted_send 1024, posted_signaled 16, posted_inline 1024, doorbells 1024, posted_receive 1024,
//!   bytes_posted 65536, bytes_received 65536, completed_send 16, completed_receive 1024
//! FaSST, server: posted_send 1024, posted_signaled 16, posted_inline 1024, doorbells 1024, posted_receive 1024,
//!   bytes_posted 65536, bytes_received 65536, completed_send 16, completed_receive 1024
//! FaSST, 8 KiB, client: posted_send 2048, posted_read 1024, posted_signaled 1056, posted_inline 2048, doorbells
//!   3072, posted_receive 1024, bytes_posted 8519680, bytes_received 65536, completed_send 32, completed_read 1024,
//!   completed_receive 1024
//! FaSST, 8 KiB, server: posted_send 1024, posted_read 1024, posted_signaled 1040, posted_inline 1024, doorbells
//!   2048, posted_receive 2048, bytes_posted 8454144, bytes_received 131072, completed_send 16, completed_read
//!   1024, completed_receive 2048
//! FaSST, 8 together, client: posted_send 1024, posted_signaled 16, posted_inline 1024, doorbells 128,
//!   posted_receive 1024, bytes_posted 65536, bytes_received 65536, completed_send 16, completed_receive 1024
//! FaSST, 8 together, server: posted_send 1024, posted_signaled 16, posted_inline 1024, doorbells 128,
//!   posted_receive 1024, bytes_posted 65536, bytes_received 65536, completed_send 16, completed_receive 1024
//! ```

use super::protocol::Protocol;
use super::{
    Ends, Facts, Half, Made, MakeError, Mechanism, Message, Notice, Place, RequestHalf, ResponseHalf, Sender,
    TxHalf,
};
use crate::path::large::LargePayload;
use crate::path::rx::RxSource;
use crate::path::sending::Sending;
use crate::path::tx::TxError;
use crate::path::{Cx, MAX_MESSAGE, route, rx};
use dunlin_fabric::{
    AddressHandleId, Buffer, Capabilities, Fabric, Host, Operation, ThreadDomain, Transport, Work,
    WorkRequest,
};
use dunlin_wire::{BODY_OFFSET, ENTRY_META_BYTES, LINE, TAG_BYTES, TagKey};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// The half.
pub(super) struct Datagram;

impl Half for Datagram {
    const NAME: &'static str = "datagram";
    const REQUEST: u8 = 6;
    const RESPONSE: u8 = 9;
    const FACTS: Facts =
        Facts { place: Place::Receive, notice: Notice::Polled, transport: Transport::UnreliableDatagram };
}

/// The mechanism.
pub(crate) struct Carrier;

impl Mechanism for Carrier {
    const PROTOCOLS: &'static [Protocol] = &[Protocol::row(
        "FaSST",
        (RequestHalf::Datagram, ResponseHalf::Datagram),
        "FaSST: datagrams both ways, sent again if lost",
    )
    .large(LargePayload::Read, payload(MTU))];

    fn sender<F: Fabric>(_: Facts, ends: &mut Ends<'_, F>) -> Result<Made<F>, MakeError> {
        let end = ends.datagrams.clone().ok_or(NO_QUEUE_PAIR)?;
        let to = ends.cx.domain.create_address_handle(end.queue_pair, ends.link, end.peer)?;
        Ok(Made {
            half: TxHalf::Datagram(Outlet { to, lane: end.place, unsignaled: end.unsignaled }),
            queue_pair: end.queue_pair,
            max_send: end.max_send,
            max_message: max_message(ends.cx.fabric.capabilities()),
        })
    }

    fn receiver<F: Fabric>(_: Facts, ends: &mut Ends<'_, F>) -> Result<RxSource<F>, MakeError> {
        let end = ends.datagrams.as_ref().ok_or(NO_QUEUE_PAIR)?;
        let datagrams = Datagrams::new(ends.cx.fabric.capabilities(), end.waiting);
        Ok(RxSource::Datagrams(Box::new(datagrams)))
    }
}

const NO_QUEUE_PAIR: MakeError = MakeError::Missing("there is no queue pair for datagrams");

/// The datagram size that the table's protocols assume: InfiniBand's largest MTU (FaSST section 3.3).
pub(crate) const MTU: u32 = 4096;

/// Returns the largest payload of a datagram of `datagram` bytes, also as the only entry of a batch.
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

/// The destination of a lane's datagrams.
#[derive(Debug)]
pub(crate) struct Outlet {
    to: AddressHandleId,
    /// The receiver's lane number.
    lane: u16,
    /// Work requests since the last signaled one, of all lanes that share the queue pair: only a signaled
    /// completion frees places of the send queue. Only the thread that owns the queue pair uses the counter.
    unsignaled: Arc<AtomicU32>,
}

impl<F: Fabric> Sender<F> for Outlet {
    #[inline(never)]
    fn put(&mut self, end: &mut Sending<F>, cx: &mut Cx<'_, F>, message: Message<'_>) -> Result<(), TxError> {
        let data = end.data(cx.fabric, message.parts, message.total)?;
        cx.fabric.host().charge(Work::PostWork, 1);
        let signaled = self.next_is_signaled(end.signal_every);
        let immediate = Some(immediate(self.lane, end.sequence));
        let operation = Operation::Send { data, immediate, to: Some(self.to) };
        let request = WorkRequest { id: route::outgoing(end.lane), operation, signaled };
        end.post_or_list(cx.domain, request)?;
        self.posted(signaled);
        end.posted_shared(signaled);
        Ok(())
    }

    fn gathers(&self) -> bool {
        true
    }

    fn address_handle(&self) -> Option<AddressHandleId> {
        Some(self.to)
    }
}

impl Outlet {
    /// Returns whether the next datagram must be signaled if one in `every` is.
    fn next_is_signaled(&self, every: u32) -> bool {
        self.unsignaled.load(Ordering::Relaxed) + 1 >= every
    }

    /// Counts a posted datagram.
    fn posted(&self, signaled: bool) {
        let unsignaled = if signaled { 0 } else { self.unsignaled.load(Ordering::Relaxed) + 1 };
        self.unsignaled.store(unsignaled, Ordering::Relaxed);
    }
}

/// Verified datagrams of a lane that are not processed yet. They stay in the RECVs' buffers.
#[derive(Debug)]
pub(crate) struct Datagrams<F: Fabric> {
    waiting: VecDeque<(Buffer<F::Memory>, Range<usize>)>,
    limit: usize,
    /// Bytes before the message in a RECV's buffer.
    headroom: usize,
}

impl<F: Fabric> Datagrams<F> {
    /// Creates the queue; it holds at most `limit` datagrams and refuses more.
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

    /// Takes a received datagram if it is a valid message of the peer, and returns its sequence number;
    /// otherwise gives the buffer back as the error. `next` is the sequence number expected if no message was
    /// lost.
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

    #[test]
    fn one_in_so_many_is_signaled_whoever_sends() {
        let shared = Arc::new(AtomicU32::new(0));
        let outlets = [1, 2].map(|lane| Outlet {
            to: AddressHandleId(lane),
            lane: lane as u16,
            unsignaled: Arc::clone(&shared),
        });
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
