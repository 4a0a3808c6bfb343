//! Halves of calls: how messages travel in one direction of a lane. A half is a type with its number and name on the
//! wire, its [`Facts`], and a mechanism, which makes the two ends:
//!
//! | half | sender | receiver | file |
//! |---|---|---|---|
//! | `write` | WRITE into the receiver's ring | polls the ring | `ring.rs` |
//! | `write_imm` | WRITE_WITH_IMM into the receiver's ring | a completion, then the ring | `ring.rs` |
//! | `write_send` | WRITE into the receiver's ring, then an empty SEND | a completion, then the ring | `ring.rs` |
//! | `write_send_chained` | the same, posted as a list | a completion, then the ring | `ring.rs` |
//! | `fetch`, `fetch_indexed`, `fetch_indexed_twice` | stores the message in a ring in its own memory | READs that ring until the message is there | `fetch.rs` |
//! | `fetch_or_write`, `fetch_or_write_imm` | `fetch`, or `write` / `write_imm`: each request says which | both | `hybrid.rs` |
//! | `send` | SEND | takes the message from a RECV's buffer | `send.rs` |
//! | `datagram` | SEND of a datagram | takes the message from a RECV's buffer, in any order | `datagram.rs` |
//! | `write_unreliable` | WRITE over UC into the receiver's ring | polls the ring | `lossy_ring.rs` |
//!
//! A lane whose lease ends carries `write` and `write_imm` requests in two ways, with a zone and without one:
//! `staged.rs`. A lossy half
//! only says so: `path/retransmit.rs` retransmits requests and answers.
//!
//! `list.rs` names all of them once. Enums, numbers, names, dispatch and the table of protocols follow from it. Each
//! file ends its first comment with the golden counts of its protocols, which the test `golden_counts` compares.

pub(crate) mod datagram;
pub(crate) mod fetch;
pub(crate) mod hybrid;
mod list;
pub(crate) mod lossy_ring;
pub(crate) mod protocol;
pub(crate) mod ring;
pub(crate) mod send;
pub(crate) mod staged;

pub(crate) use self::list::TxHalf;
pub use self::list::{PROTOCOLS, RequestHalf, ResponseHalf};

use super::rx::RxSource;
use super::sending::Sending;
use super::tx::TxError;
use super::{Cx, MAX_MESSAGE};
use crate::mailbox::RingReader;
use dunlin_fabric::{
    AddressHandleId, ArenaError, Capabilities, CreateError, Data, Endpoint, Fabric, Operation, QueuePairId,
    Region, RegionKey, RegisterError, Transport,
};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use thiserror::Error;

/// Where the receiver finds a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// In the buffer of a RECV.
    Receive,
    /// In a ring in its own memory.
    Ring,
    /// In a ring in the sender's memory, which it READs after `metadata` READs of metadata.
    Published { metadata: u8 },
    /// In the sender's ring without metadata or in its own, as the client asks with each request.
    Either,
}

/// How the receiver is notified of a WRITE into its ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Notice {
    /// Not at all: the receiver polls the ring.
    Polled,
    /// By immediate data of the WRITE.
    Immediate,
    /// By an empty SEND after the WRITE.
    Send,
    /// By an empty SEND linked to the WRITE.
    LinkedSend,
}

/// The properties of a half, from which the legality of plans, the memory to grant, and the depths of queues follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Facts {
    pub(crate) place: Place,
    /// For messages in the receiver's ring.
    pub(crate) notice: Notice,
    /// The transport of messages. Messages may be lost except over a reliable connection.
    pub(crate) transport: Transport,
}

impl Facts {
    /// Messages in `place` over a reliable connection.
    const fn reliable(place: Place, notice: Notice) -> Facts {
        Facts { place, notice, transport: Transport::ReliableConnection }
    }

    /// Returns whether the receiver has a ring that peers write into.
    pub(crate) const fn has_ring(&self) -> bool {
        matches!(self.place, Place::Ring | Place::Either)
    }

    /// Returns whether the receiver READs messages, or may.
    pub(crate) const fn is_fetched(&self) -> bool {
        matches!(self.place, Place::Published { .. } | Place::Either)
    }

    /// Returns whether the receiver READs all messages.
    pub(crate) const fn is_only_fetched(&self) -> bool {
        matches!(self.place, Place::Published { .. })
    }

    /// Returns whether each message is fetched or written, as the client asks.
    pub(crate) const fn is_hybrid(&self) -> bool {
        matches!(self.place, Place::Either)
    }

    /// Returns whether the receiver finds messages only by polling memory.
    pub(crate) const fn is_polled(&self) -> bool {
        self.is_only_fetched() || (self.has_ring() && matches!(self.notice, Notice::Polled))
    }

    /// Returns whether messages may be lost.
    pub(crate) const fn is_lossy(&self) -> bool {
        !matches!(self.transport, Transport::ReliableConnection)
    }

    /// Returns whether messages are datagrams.
    pub(crate) const fn is_datagram(&self) -> bool {
        matches!(self.transport, Transport::UnreliableDatagram)
    }

    /// Returns whether messages are SENDs over the reliable connection.
    pub(crate) const fn is_sent(&self) -> bool {
        matches!(self.place, Place::Receive) && !self.is_lossy()
    }

    /// Returns whether each message is a WRITE and a SEND that announces it.
    pub(crate) const fn is_announced(&self) -> bool {
        self.has_ring() && matches!(self.notice, Notice::Send | Notice::LinkedSend)
    }

    /// Returns whether messages carry immediate data: that of a datagram names its lane and its message.
    pub(crate) const fn has_immediate(&self) -> bool {
        self.is_datagram() || (self.has_ring() && matches!(self.notice, Notice::Immediate))
    }

    /// Returns whether a sender without room has to be notified when there is some.
    pub(crate) const fn needs_credit_update(&self) -> bool {
        !matches!(self.place, Place::Receive)
    }

    /// Returns whether each message consumes a RECV.
    pub(crate) const fn takes_receives(&self) -> bool {
        matches!(self.place, Place::Receive) || self.is_announced() || self.has_immediate()
    }

    /// Returns whether the receiver takes only messages that it was notified of. Needed where the bytes of a WRITE may
    /// be placed in any order, and where the SEND behind a WRITE may find no room.
    pub(crate) const fn gated_by_completion(&self, capabilities: &Capabilities) -> bool {
        self.is_announced() || (self.has_ring() && self.has_immediate() && !capabilities.in_order_write)
    }

    /// Returns the number of RECVs that a receiver posts on the reliable connection: one for each message in flight,
    /// and some spare.
    ///
    /// RECVs without buffers are cheap, so there is one more for each call: the message of a call may be followed by a
    /// report that wakes the receiver. With buffers the spare ones take the reports, of which there are at most four
    /// for each round of the ring. A sender that finds no RECV waits until one is posted.
    pub(crate) const fn receives(&self, window: u16) -> u32 {
        match self.takes_receives() {
            false => 0,
            true if self.has_ring() => 3 * window as u32 + 16,
            // For head reports only.
            true if self.is_datagram() => 8,
            true => window as u32 + 8,
        }
    }

    /// Returns the bytes that may wait for RECVs on the reliable connection: whole messages if they come by SEND.
    pub(crate) const fn inbound_bytes(&self) -> u32 {
        match self.takes_receives() {
            true if self.is_sent() => 4 * MAX_MESSAGE as u32,
            true if self.has_ring() => 16 * 1024,
            _ => 4096,
        }
    }

    /// Returns the bytes of the memory that the receiver READs, for a ring of `ring_bytes`.
    pub(crate) const fn published_bytes(&self, ring_bytes: u32) -> Option<u64> {
        match self.place {
            Place::Published { metadata } => Some(ring_bytes as u64 * (1 + metadata as u64)),
            Place::Either => Some(ring_bytes as u64),
            Place::Receive | Place::Ring => None,
        }
    }
}

/// A half of a call.
pub(crate) trait Half {
    /// The name in documents, hints and logs.
    const NAME: &'static str;
    /// The number on the wire as a half of requests.
    const REQUEST: u8 = 0;
    /// The number on the wire as a half of responses.
    const RESPONSE: u8 = 0;
    const FACTS: Facts;
    /// For a half whose results may be fetched: the half that writes all of them.
    const WRITTEN_BACK: Option<ResponseHalf> = None;
}

/// A mechanism that carries messages: it makes both ends of its halves.
pub(crate) trait Mechanism {
    /// The protocols that the mechanism adds to the table.
    const PROTOCOLS: &'static [protocol::Protocol] = &[];

    /// Makes the sending end.
    fn sender<F: Fabric>(facts: Facts, ends: &mut Ends<'_, F>) -> Result<Made<F>, MakeError>;

    /// Makes the receiving end. A ring is polled by default.
    fn receiver<F: Fabric>(facts: Facts, ends: &mut Ends<'_, F>) -> Result<RxSource<F>, MakeError> {
        let _ = facts;
        ends.ring_source()
    }

    /// Makes the sending end of the second path, which fetched results take, if there are two.
    fn fetched_sender<F: Fabric>(ends: &mut Ends<'_, F>) -> Result<Option<TxHalf<F>>, MakeError> {
        let _ = ends;
        Ok(None)
    }

    /// Makes the receiving end of that path.
    fn fetched_receiver<F: Fabric>(ends: &mut Ends<'_, F>) -> Result<Option<RxSource<F>>, MakeError> {
        let _ = ends;
        Ok(None)
    }
}

/// A message to be put at its place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Message<'a> {
    pub(crate) parts: &'a [&'a [u8]],
    pub(crate) total: usize,
    /// Offset in the ring.
    pub(crate) at: usize,
    /// `false` for a `Skip` that has no notification of its own.
    pub(crate) notify: bool,
}

/// The requests of a message: the message itself, and that which announces it.
pub(crate) type Requests<'a, M> = (Operation<'a, M>, Option<Operation<'a, M>>);

/// The sending end of a half: its own state. [`Sending`] holds what all halves have.
pub(crate) trait Sender<F: Fabric> {
    /// Puts a message at its place.
    fn put(&mut self, end: &mut Sending<F>, cx: &mut Cx<'_, F>, message: Message<'_>) -> Result<(), TxError>;

    /// Returns the peer's ring and its offset if a message of one line is one plain WRITE.
    #[inline(always)]
    fn plain_ring(&self) -> Option<(RegionKey, u64)> {
        None
    }

    /// Returns the most bytes of inline data with which a message can wait in a list; `None` if messages do not leave
    /// under one doorbell with others.
    fn listed_inline(&self, notify: bool) -> Option<usize> {
        let _ = notify;
        None
    }

    /// Returns whether messages that are held wait in a list that [`put`](Sender::put) fills.
    fn gathers(&self) -> bool {
        false
    }

    /// Returns the requests of a message that waits in a list.
    fn requests<'a>(
        &self,
        end: &Sending<F>,
        data: Data<'a, F::Memory>,
        at: usize,
        notify: bool,
    ) -> Requests<'a, F::Memory> {
        let _ = (end, at, notify);
        (Operation::Send { data, immediate: None, to: None }, None)
    }

    /// Writes messages that may have been lost once more, as far as there is room; returns whether there were any.
    fn rewrite(&mut self, end: &mut Sending<F>, cx: &mut Cx<'_, F>) -> Result<bool, TxError> {
        let _ = (end, cx);
        Ok(false)
    }

    /// Returns the address handle for datagrams.
    fn address_handle(&self) -> Option<AddressHandleId> {
        None
    }

    /// Returns the bytes of the local memory that the peer READs.
    fn published_bytes(&self) -> usize {
        0
    }
}

/// The material of which halves make the ends of a lane, alike for client and server.
pub(crate) struct Ends<'a, F: Fabric> {
    pub(crate) cx: Cx<'a, F>,
    pub(crate) link: &'a F::Link,
    /// The number of the lane at this side.
    pub(crate) lane: u16,
    /// The most calls in flight.
    pub(crate) window: u16,
    /// The queue pair of the reliable connection.
    pub(crate) queue_pair: QueuePairId,
    /// That of the unreliable connection, if there is one.
    pub(crate) unreliable: Option<QueuePairId>,
    pub(crate) datagrams: Option<DatagramEnd<'a>>,
    /// The most requests in the send queue of `queue_pair`.
    pub(crate) max_send: u32,
    /// The ring of the messages to be sent, in the peer's memory, and its offset there.
    pub(crate) to: (RegionKey, u64),
    /// Bytes of that ring, or of the local one that the peer READs.
    pub(crate) ring_bytes: u32,
    /// The local memory that the peer READs.
    pub(crate) published: Option<Region<F::Memory>>,
    /// The ring that the server READs, and its grant, on a client's lane under leases.
    pub(crate) staged: Option<(Region<F::Memory>, RegionKey)>,
    /// The region of the peer's control line, and the line's offset there.
    pub(crate) control: (RegionKey, usize),
    /// The second region that the peer granted: its published ring, or its pool.
    pub(crate) second: RegionKey,
    /// The local ring of the messages to be received: its memory, its offset there, and its reader.
    pub(crate) from: Option<(Region<F::Memory>, u32, RingReader)>,
}

/// The queue pair for datagrams, and where the peer takes them.
#[derive(Clone)]
pub(crate) struct DatagramEnd<'a> {
    pub(crate) queue_pair: QueuePairId,
    /// Requests since the last signaled one, of all lanes that share the queue pair.
    pub(crate) unsignaled: Arc<AtomicU32>,
    pub(crate) max_send: u32,
    /// The peer's endpoint.
    pub(crate) peer: &'a Endpoint,
    /// The number of the lane at the peer.
    pub(crate) place: u16,
    /// The most datagrams that wait to be processed.
    pub(crate) waiting: usize,
}

impl<F: Fabric> Ends<'_, F> {
    /// The receiving end of a ring in local memory.
    fn ring_source(&mut self) -> Result<RxSource<F>, MakeError> {
        let (region, base, reader) =
            self.from.take().ok_or(MakeError::Missing("there is no ring to receive in"))?;
        Ok(RxSource::Ring { region, base, reader })
    }

    /// A sending end on the reliable connection.
    fn on_connection(&self, half: TxHalf<F>) -> Made<F> {
        Made { half, queue_pair: self.queue_pair, max_send: self.max_send, max_message: MAX_MESSAGE }
    }
}

/// A sending end that was made.
pub(crate) struct Made<F: Fabric> {
    pub(crate) half: TxHalf<F>,
    /// The queue pair for messages.
    pub(crate) queue_pair: QueuePairId,
    /// The most requests in its send queue.
    pub(crate) max_send: u32,
    /// Bytes of the longest message.
    pub(crate) max_message: usize,
}

/// The reason why an end of a lane cannot be made.
#[derive(Debug, Error)]
pub(crate) enum MakeError {
    #[error(transparent)]
    Create(#[from] CreateError),
    #[error(transparent)]
    Register(#[from] RegisterError),
    #[error(transparent)]
    Arena(#[from] ArenaError),
    /// The peer or the plan left out what the half needs.
    #[error("{0}")]
    Missing(&'static str),
}
