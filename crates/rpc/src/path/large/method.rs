//! The parts of the file of a method: its facts, its sending end, and its receiving end.

use super::write_targets::WriteTargets;
use super::{Facts, Inbound, Pool, TransferQueue};
use crate::path::{Cx, TxError, Violation, tx::Tx};
use dunlin_fabric::{Buffer, Fabric, QueuePairId};
use dunlin_wire::{Descriptor, Header, Kind};

/// The memory of a payload.
pub(crate) type Payload<F> = Buffer<<F as Fabric>::Memory>;

/// A method by which large payloads travel.
pub(super) trait Method {
    /// The name in documents, hints and logs.
    const NAME: &'static str;
    /// The number on the wire.
    const NUMBER: u8;
    const FACTS: Facts;
}

/// The sending end of a method. Its state is that of the queue.
pub(crate) trait Sender<F: Fabric> {
    /// Makes the receiving end of a lane with window `window`. Memory that the peer writes to is granted to the peer of
    /// `link` and takes at most `memory` bytes.
    fn receiver(&self, link: F::Link, memory: u64, window: u16) -> Inbound<F>;

    /// Queues that which follows the announcement of a complete payload. Returns the payload if the sender keeps it.
    fn announced(&self, queue: &mut TransferQueue<F>, call: u32, payload: Payload<F>) -> Option<Payload<F>> {
        let _ = (queue, call);
        Some(payload)
    }

    /// Queues the transfer of a payload to the place that the peer named in a `ClearToSend`.
    fn place_named(
        &self,
        queue: &mut TransferQueue<F>,
        call: u32,
        payload: Payload<F>,
        place: &[u8],
    ) -> Result<(), Violation> {
        let _ = (queue, call, payload, place);
        Err(Violation::Kind(Kind::ClearToSend))
    }
}

/// A message or a payload that is posted as soon as there is room.
pub(super) trait PendingTransfer<F: Fabric> {
    /// Posts one message or WRITE; returns whether it was the last one. Messages carry `head`.
    fn step(&mut self, cx: &mut Cx<'_, F>, tx: &mut Tx<F>, head: u32) -> Result<bool, TxError>;
}

/// The means of the end of a lane that receives the payload of `call`.
pub(crate) struct Inward<'a, F: Fabric> {
    pub(crate) cx: Cx<'a, F>,
    pub(crate) call: u32,
    /// The queue pair and the number of the lane.
    pub(crate) at: (QueuePairId, u16),
    /// The private memory for payloads.
    pub(crate) private: &'a mut Pool<F>,
    pub(crate) queue: &'a mut TransferQueue<F>,
}

impl<F: Fabric> Inward<'_, F> {
    /// Reserves private memory for a payload, if there is any.
    pub(super) fn reserve(&mut self, length: usize) -> Option<Payload<F>> {
        self.private.reserve(self.cx.fabric, length).ok()
    }
}

/// The beginning of the transfer of an announced payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Begun {
    /// The payload comes by messages of the peer.
    Arriving,
    /// READs are in flight; `whole` if the payload is complete and one READ takes it.
    Reading { whole: bool },
    /// The payload will not be here: nobody wants it, or there is no memory for it.
    Refused,
}

/// The effect of a message about a large payload, or of the completion of a READ.
#[derive(Debug)]
pub(crate) enum Received<F: Fabric> {
    /// More is to come.
    Part,
    /// The payload is complete and in private memory.
    Whole(Payload<F>),
    /// The payload is complete, but there was no private memory for it.
    Lost,
    /// The last byte of a discarded payload has arrived.
    Nothing,
    /// The peer gives the payload up.
    GivenUp,
}

/// The receiving end of a method: the state of announced payloads that are not complete.
pub(crate) trait Receiver<F: Fabric> {
    /// Returns whether the payload of `call` is still to come.
    fn expects(&self, call: u32) -> bool {
        let _ = call;
        false
    }

    /// Begins the transfer of an announced payload. One that is not `wanted` is discarded.
    fn begin(&mut self, end: &mut Inward<'_, F>, from: Descriptor, wanted: bool) -> Result<Begun, Violation>;

    /// Processes a message about a payload: `Filled`, `Written` or `Fragment`.
    fn on_message(
        &mut self,
        end: &mut Inward<'_, F>,
        header: &Header,
        body: &[u8],
    ) -> Result<Received<F>, Violation> {
        let _ = (end, body);
        Err(Violation::Kind(header.kind))
    }

    /// Takes the completion of a READ, and starts the next one.
    fn on_read(
        &mut self,
        domain: &mut F::Domain,
        at: (QueuePairId, u16),
        call: u32,
        buffer: Payload<F>,
    ) -> Result<Received<F>, Violation> {
        let _ = (domain, at, call);
        Ok(Received::Whole(buffer))
    }

    /// Records that the peer has given a payload up. Returns true if no READ is in flight, so that the payload is
    /// released now; otherwise [`on_read`](Receiver::on_read) returns [`Received::GivenUp`]. Returns false for an unknown
    /// call.
    fn give_up(&mut self, call: u32) -> bool {
        let _ = call;
        false
    }

    /// Returns the memory that the peer writes to.
    fn targets(&self) -> Option<&WriteTargets<F>> {
        None
    }
}
