//! Large payloads that the receiver does not READ: write rendezvous, and eager transfer in fragments. Each
//! end of a lane has both parts: [`TransferQueue`] for outgoing payloads and [`InboundTransfers`] for incoming ones.
//!
//! | | announced by | then | over when |
//! |---|---|---|---|
//! | write rendezvous | the call or answer, flagged, with the length | `ClearToSend` names an area, a WRITE fills it | `Written` arrives |
//! | eager | the same | `Fragment`s follow, in order | all bytes have arrived |
//!
//! A payload is copied to private memory before it is used, and has the announced length, whatever the peer
//! does afterwards.

use super::rendezvous::{Exhausted, Pool};
use super::tx::{Tx, TxError};
use super::write_targets::{WriteTarget, WriteTargets};
use super::{Violation, tx};
use crate::path::Cx;
use dunlin_fabric::{Buffer, Fabric, Host, RegionKey, Work};
use dunlin_numbered::numbered;
use dunlin_wire::{Descriptor, Header, Kind};
use std::collections::VecDeque;

/// The largest and default [`rendezvous_above`](crate::Plan::rendezvous_above): HatRPC's threshold of 4 KiB (section
/// 4.3).
pub const SMALL_LIMIT: u32 = 4096;

/// How payloads of more than [`Plan::rendezvous_above`](crate::Plan::rendezvous_above) bytes travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum LargePayload {
    /// Read rendezvous: the payload stays in the sender's memory, and the receiver READs it into private
    /// memory. One copy.
    Read = 1,
    /// Write rendezvous: the sender announces the length, the receiver answers with a place, and the sender
    /// WRITEs the payload there and notifies the receiver.
    ///
    /// The receiver copies the payload out of memory that the peer can write before it uses it. A request
    /// leaves only while its client makes progress, because the client has to process the server's reply.
    Write = 2,
    /// Eager: messages of at most [`SMALL_LIMIT`] bytes each, as for small payloads, copied at both ends.
    Eager = 3,
    /// Read rendezvous in pieces: announced when the first piece is ready, so that the receiver READs it
    /// while the sender fills the next one.
    Pipelined = 4,
}

numbered!(LargePayload: u8 {
    Read = "rendezvous_read",
    Write = "rendezvous_write",
    Eager = "eager",
    Pipelined = "rendezvous_pieces",
});

impl LargePayload {
    /// Whether the receiver READs the payload from the sender's memory.
    pub(crate) const fn is_read(self) -> bool {
        matches!(self, LargePayload::Read | LargePayload::Pipelined)
    }
}

/// The most payload bytes in one fragment: the size of HatRPC's slots (section 4.3).
const FRAGMENT: usize = SMALL_LIMIT as usize;

/// Messages and WRITEs of large payloads that one [`TransferQueue::run`] posts at most.
const STEPS_AT_ONCE: usize = 2;

/// A message or payload that is posted as soon as there is room.
#[derive(Debug)]
enum PendingTransfer<F: Fabric> {
    /// Sends the peer the place to WRITE a payload to.
    Clear { call: u32, to: Descriptor },
    /// WRITEs a payload to `to`, then sends `Written`.
    Write { call: u32, payload: Option<Buffer<F::Memory>>, to: Descriptor },
    /// Sends the peer the number of bytes of a payload that it may READ.
    Filled { call: u32, bytes: u32 },
    /// Sends a payload in fragments; the first `sent` bytes are posted.
    Fragments { call: u32, payload: Buffer<F::Memory>, sent: usize },
}

/// The queue of messages and payloads that an end of a lane still has to post, in order.
#[derive(Debug)]
pub(crate) struct TransferQueue<F: Fabric> {
    queue: VecDeque<PendingTransfer<F>>,
    /// The last attempt to post the first entry found no room.
    stuck: bool,
}

impl<F: Fabric> TransferQueue<F> {
    /// Creates an empty queue, with capacity for a window if the lane's large payloads need one.
    pub(crate) fn new(large: LargePayload, window: u16) -> Self {
        let capacity = if large == LargePayload::Read { 0 } else { 2 * window as usize };
        TransferQueue { queue: VecDeque::with_capacity(capacity), stuck: false }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Returns whether the queue waits for room.
    #[inline]
    pub(crate) fn is_stuck(&self) -> bool {
        self.stuck
    }

    #[inline]
    pub(crate) fn count(&self) -> usize {
        self.queue.len()
    }

    /// Queues a `ClearToSend` with the place to WRITE a payload to.
    pub(crate) fn clear(&mut self, call: u32, to: Descriptor) {
        self.queue.push_back(PendingTransfer::Clear { call, to });
    }

    /// Queues a `Filled` with the number of filled bytes; 0 gives a request up.
    pub(crate) fn filled(&mut self, call: u32, bytes: u32) {
        self.queue.push_back(PendingTransfer::Filled { call, bytes });
    }

    /// Queues the WRITE of a payload to the place that the peer named. Fails if the place has another length
    /// than the payload.
    pub(crate) fn write(
        &mut self,
        call: u32,
        payload: Buffer<F::Memory>,
        place: &[u8],
    ) -> Result<(), Violation> {
        let to = Descriptor::decode(place, payload.len() as u64)?;
        if to.length != payload.len() as u64 {
            return Err(Violation::Transfer("a place of another length than the payload"));
        }
        self.queue.push_back(PendingTransfer::Write { call, payload: Some(payload), to });
        Ok(())
    }

    /// Queues a payload to be sent in fragments.
    pub(crate) fn send(&mut self, call: u32, payload: Buffer<F::Memory>) {
        self.queue.push_back(PendingTransfer::Fragments { call, payload, sent: 0 });
    }

    /// Posts entries while there is room, at most [`STEPS_AT_ONCE`] so that other lanes are not delayed.
    /// Returns whether it posted any. The messages carry `head`.
    pub(crate) fn run(&mut self, cx: &mut Cx<'_, F>, tx: &mut Tx<F>, head: u32) -> Result<bool, TxError> {
        self.stuck = false;
        for step in 0..STEPS_AT_ONCE {
            let Some(errand) = self.queue.front_mut() else { return Ok(step > 0) };
            match errand.step(cx, tx, head) {
                Ok(true) => drop(self.queue.pop_front()),
                Ok(false) => {}
                Err(TxError::Full) => {
                    self.stuck = true;
                    return Ok(step > 0);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}

impl<F: Fabric> PendingTransfer<F> {
    /// Posts one message or WRITE; returns whether it was the entry's last.
    fn step(&mut self, cx: &mut Cx<'_, F>, tx: &mut Tx<F>, head: u32) -> Result<bool, tx::TxError> {
        let header = |kind, call| Header { call, head, ..Header::new(kind) };
        match self {
            PendingTransfer::Clear { call, to } => {
                tx.single(cx, &header(Kind::ClearToSend, *call), &to.encode())?;
                Ok(true)
            }
            PendingTransfer::Filled { call, bytes } => {
                tx.single(cx, &Header { time: *bytes, ..header(Kind::Filled, *call) }, &[])?;
                Ok(true)
            }
            PendingTransfer::Write { payload, to, .. } if payload.is_some() => {
                tx.end.write_payload(cx, payload, to)?;
                Ok(false)
            }
            PendingTransfer::Write { call, .. } => {
                tx.single(cx, &header(Kind::Written, *call), &[])?;
                Ok(true)
            }
            PendingTransfer::Fragments { call, payload, sent } => {
                let rest = payload.get(*sent..).unwrap_or_default();
                let fragment = rest.get(..FRAGMENT).unwrap_or(rest);
                tx.fragment(cx, &header(Kind::Fragment, *call), fragment)?;
                *sent += fragment.len();
                Ok(*sent >= payload.len())
            }
        }
    }
}

/// The destination of an announced payload.
#[derive(Debug)]
enum Place<F: Fabric> {
    /// The peer WRITEs the payload to this area.
    WriteTarget(WriteTarget<F>),
    /// Fragments are assembled here; the number is the bytes received.
    Private(Buffer<F::Memory>, usize),
    /// Fragments are discarded; the number is the bytes still to come.
    Nowhere(usize),
}

/// Announced large payloads that are not complete.
#[derive(Debug)]
pub(crate) struct InboundTransfers<F: Fabric> {
    areas: WriteTargets<F>,
    places: Vec<(u32, Place<F>)>,
    limit: usize,
}

/// The effect of a message about a large payload.
#[derive(Debug)]
pub(crate) enum Arrived<F: Fabric> {
    /// More is to come.
    Part,
    /// The payload is complete and in private memory.
    Whole(Buffer<F::Memory>),
    /// The payload is complete, but there was no private memory for it.
    Lost,
    /// The last byte of a discarded payload has arrived.
    Nothing,
}

impl<F: Fabric> InboundTransfers<F> {
    /// Returns the keys of the memory that the peer WRITEs to, for the end of their grants with the lane.
    pub(crate) fn keys(&self) -> impl Iterator<Item = RegionKey> {
        self.areas.keys()
    }

    /// Creates the table for a lane with window `window`; its areas take at most `memory` bytes.
    pub(crate) fn new(link: F::Link, large: LargePayload, memory: u64, window: u16) -> Self {
        let limit = if large == LargePayload::Read { 0 } else { 2 * window as usize + 64 };
        InboundTransfers { areas: WriteTargets::new(link, memory), places: Vec::with_capacity(limit), limit }
    }

    /// Returns whether the payload of `call` is still to come.
    pub(crate) fn expects(&self, call: u32) -> bool {
        self.places.iter().any(|(expected, _)| *expected == call)
    }

    fn put(&mut self, call: u32, place: Place<F>) -> Result<(), Violation> {
        if self.places.len() >= self.limit || self.expects(call) {
            return Err(Violation::Transfer("more large payloads than the window allows are announced"));
        }
        self.places.push((call, place));
        Ok(())
    }

    /// Reserves an area for an announced payload that the peer will WRITE, and returns its descriptor;
    /// [`Exhausted`] if there is no memory.
    pub(crate) fn clear(
        &mut self,
        fabric: &F,
        call: u32,
        length: usize,
    ) -> Result<Result<Descriptor, Exhausted>, Violation> {
        let Ok(area) = self.areas.reserve(fabric, length) else { return Ok(Err(Exhausted)) };
        let descriptor = area.descriptor();
        self.put(call, Place::WriteTarget(area))?;
        Ok(Ok(descriptor))
    }

    /// Registers an announced payload that comes in fragments. They are assembled in `into`, or discarded if
    /// it is `None`.
    pub(crate) fn collect(
        &mut self,
        call: u32,
        length: usize,
        into: Option<Buffer<F::Memory>>,
    ) -> Result<(), Violation> {
        if length == 0 {
            return Err(Violation::Transfer("a large payload of no bytes"));
        }
        self.put(call, into.map_or(Place::Nowhere(length), |buffer| Place::Private(buffer, 0)))
    }

    /// Processes a [`Kind::Written`] or [`Kind::Fragment`] message.
    pub(crate) fn take(
        &mut self,
        fabric: &F,
        private: &mut Pool<F>,
        header: &Header,
        body: &[u8],
    ) -> Result<Arrived<F>, Violation> {
        let call = header.call;
        let found = self.places.iter().position(|(expected, _)| *expected == call);
        let Some(at) = found else { return Err(Violation::Call(call)) };
        let (_, place) = &mut self.places[at];
        let arrived = match (place, header.kind) {
            (Place::WriteTarget(_), Kind::Written) => {
                let (_, Place::WriteTarget(area)) = self.places.swap_remove(at) else {
                    return Ok(Arrived::Lost);
                };
                let copied = private.reserve(fabric, area.length()).map(|mut buffer| {
                    fabric.host().charge(Work::CopyBytes, area.length() as u32);
                    area.copy_out(&mut buffer);
                    buffer
                });
                self.areas.give_back(area);
                return Ok(copied.map_or(Arrived::Lost, Arrived::Whole));
            }
            (Place::Private(buffer, filled), Kind::Fragment) => {
                let Some(room) = buffer.get_mut(*filled..*filled + body.len()) else {
                    return Err(Violation::Transfer("more bytes of a large payload than announced"));
                };
                fabric.host().charge(Work::CopyBytes, body.len() as u32);
                room.copy_from_slice(body);
                *filled += body.len();
                *filled == buffer.len()
            }
            (Place::Nowhere(left), Kind::Fragment) => {
                *left = left
                    .checked_sub(body.len())
                    .ok_or(Violation::Transfer("more bytes of a large payload than announced"))?;
                *left == 0
            }
            _ => return Err(Violation::Kind(header.kind)),
        };
        if !arrived {
            return Ok(Arrived::Part);
        }
        match self.places.swap_remove(at).1 {
            Place::Private(buffer, _) => Ok(Arrived::Whole(buffer)),
            Place::WriteTarget(_) | Place::Nowhere(_) => Ok(Arrived::Nothing),
        }
    }
}
