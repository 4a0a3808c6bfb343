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
    Arrived, Ends, Facts, Half, Keys, Made, MakeError, Mechanism, Message, Notice, Place, Receiver,
    RequestHalf, ResponseHalf, RxHalf, Sender, TxHalf,
};
use crate::path::large::LargePayload;
use crate::path::rx::{self, Incoming, Scratch, Taken};
use crate::path::sending::Sending;
use crate::path::tx::TxError;
use crate::path::unconnected::{MTU, immediate, max_message, payload, sequence_near};
use crate::path::{Cx, Violation, route};
use dunlin_fabric::{
    AddressHandleId, Buffer, Capabilities, Fabric, Host, Operation, ThreadDomain, Transport, Work,
    WorkRequest,
};
use dunlin_wire::Tags;
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

    fn sender<F: Fabric>(facts: Facts, ends: &mut Ends<'_, F>) -> Result<Made<F>, MakeError> {
        let end = ends.beside(facts.transport)?.clone();
        let to = ends.cx.domain.create_address_handle(end.queue_pair, ends.link, end.peer)?;
        Ok(Made {
            half: TxHalf::Datagram(Outlet { to, lane: end.place, unsignaled: end.unsignaled }),
            queue_pair: end.queue_pair,
            max_send: end.max_send,
            max_message: max_message(ends.cx.fabric.capabilities()),
        })
    }

    fn receiver<F: Fabric>(facts: Facts, ends: &mut Ends<'_, F>) -> Result<RxHalf<F>, MakeError> {
        let waiting = ends.beside(facts.transport)?.waiting;
        let datagrams = Datagrams::new(ends.cx.fabric.capabilities(), waiting);
        Ok(RxHalf::Datagrams(Box::new(datagrams)))
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
}

impl<F: Fabric> Receiver<F> for Box<Datagrams<F>> {
    #[inline]
    fn is_waiting(&self, _: u64) -> bool {
        !self.waiting.is_empty()
    }

    fn take(&mut self, _: Tags, _: &mut Scratch) -> Result<Taken<F>, Violation> {
        Ok(match self.waiting.pop_front() {
            Some((buffer, range)) => Taken::Counted(Incoming::Buffer(buffer, range)),
            None => Taken::Nothing,
        })
    }

    fn deliver(&mut self, arrived: Arrived<F>, keys: Keys) -> Result<Option<u64>, Buffer<F::Memory>> {
        let Arrived { mut buffer, bytes, immediate } = arrived;
        let range = self.headroom..bytes as usize;
        let Some(immediate) = immediate else { return Err(buffer) };
        if self.waiting.len() >= self.limit || !buffer.set_length(range.end) {
            return Err(buffer);
        }
        let sequence = sequence_near(keys.next, immediate);
        let whole = buffer.get(range.clone()).is_some_and(|message| {
            let tags = keys.tags.tags(keys.epoch, sequence);
            rx::check(message, tags).is_ok_and(|total| total == message.len())
        });
        if !whole {
            return Err(buffer);
        }
        self.waiting.push_back((buffer, range));
        Ok(Some(sequence))
    }

    /// Drops the datagrams: they count as lost, and the peer retransmits them.
    fn release(&mut self, _: usize, repost: impl FnMut(Buffer<F::Memory>)) -> Result<(), Violation> {
        self.waiting.drain(..).map(|(buffer, _)| buffer).for_each(repost);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
