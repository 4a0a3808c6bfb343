//! The parts of a mechanism's file: its halves, its carrier, the sending end and the receiving end.

use super::fetch::Fetcher;
use super::protocol::Protocol;
use super::{Ends, Facts, Made, MakeError, ResponseHalf, RxHalf, TxHalf};
use crate::mailbox::RingReader;
use crate::path::local_ring::LocalRing;
use crate::path::rx::{Scratch, Taken};
use crate::path::sending::Sending;
use crate::path::tx::TxError;
use crate::path::{Cx, Violation};
use dunlin_fabric::{AddressHandleId, Buffer, Data, Fabric, Operation, RegionKey};
use dunlin_wire::{TagKey, Tags};

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
    const PROTOCOLS: &'static [Protocol] = &[];

    /// Makes the sending end.
    fn sender<F: Fabric>(facts: Facts, ends: &mut Ends<'_, F>) -> Result<Made<F>, MakeError>;

    /// Makes the receiving end. A ring is polled by default.
    fn receiver<F: Fabric>(facts: Facts, ends: &mut Ends<'_, F>) -> Result<RxHalf<F>, MakeError> {
        let _ = facts;
        ends.local_ring().map(RxHalf::Ring)
    }

    /// Makes the sending end of the second path, which fetched results take, if there are two.
    fn fetched_sender<F: Fabric>(ends: &mut Ends<'_, F>) -> Result<Option<TxHalf<F>>, MakeError> {
        let _ = ends;
        Ok(None)
    }

    /// Makes the receiving end of that path.
    fn fetched_receiver<F: Fabric>(ends: &mut Ends<'_, F>) -> Result<Option<RxHalf<F>>, MakeError> {
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

/// A message in the buffer of a completed RECV.
#[derive(Debug)]
pub(crate) struct Arrived<F: Fabric> {
    pub(crate) buffer: Buffer<F::Memory>,
    pub(crate) bytes: u32,
    pub(crate) immediate: Option<u32>,
}

/// The material of the tags of a direction: its key, the epoch, and the sequence number of the next message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Keys {
    pub(crate) tags: TagKey,
    pub(crate) epoch: u32,
    pub(crate) next: u64,
}

/// The receiving end of a half: its own state. [`Rx`](crate::path::Rx) holds what all halves have.
pub(crate) trait Receiver<F: Fabric> {
    /// Returns whether a message may be waiting; `first` is the first tag of the next one.
    fn is_waiting(&self, first: u64) -> bool;

    /// Takes the next message of any kind, if it is complete.
    fn take(&mut self, expected: Tags, scratch: &mut Scratch) -> Result<Taken<F>, Violation>;

    /// Returns the ring in local memory, if peers write messages into one.
    #[inline(always)]
    fn ring(&self) -> Option<&LocalRing<F>> {
        None
    }

    /// Returns that ring to be changed.
    #[inline(always)]
    fn ring_mut(&mut self) -> Option<&mut LocalRing<F>> {
        None
    }

    /// Returns the end that READs messages, if this is one.
    #[inline]
    fn fetcher(&self) -> Option<&Fetcher<F>> {
        None
    }

    /// Returns that end to be changed.
    #[inline]
    fn fetcher_mut(&mut self) -> Option<&mut Fetcher<F>> {
        None
    }

    /// Returns the reading end of the ring that holds the messages, wherever it lies.
    #[inline]
    fn reader(&self) -> Option<&RingReader> {
        None
    }

    /// Returns that end to be changed.
    #[inline]
    fn reader_mut(&mut self) -> Option<&mut RingReader> {
        None
    }

    /// Queues the message of a completed RECV, and returns its sequence number if messages come in any order. Gives
    /// back the buffer of a message that is not the peer's, or finds no room.
    fn deliver(&mut self, arrived: Arrived<F>, keys: Keys) -> Result<Option<u64>, Buffer<F::Memory>> {
        let _ = keys;
        Err(arrived.buffer)
    }

    /// Queues a copy of the message of a completed RECV. Fails if `limit` messages are queued.
    fn deliver_copy(&mut self, message: &[u8], limit: usize) -> Result<(), Violation> {
        let _ = (message, limit);
        Ok(())
    }

    /// Passes the buffers of RECVs that hold queued messages to `repost`. Fails if more than `limit` messages are
    /// queued.
    fn release(&mut self, limit: usize, repost: impl FnMut(Buffer<F::Memory>)) -> Result<(), Violation> {
        let _ = (limit, repost);
        Ok(())
    }
}
