//! Read rendezvous in pieces: the sender announces a large payload once its first piece is filled, and the
//! receiver READs one piece while the sender fills the next.
//!
//! The descriptor covers the whole payload; at first only [`PIECE`] bytes may be READ. `Filled` messages
//! raise that number. A payload of at most one piece uses plain read rendezvous.
//!
//! A client gives up a request with a `Filled` of 0. A server gives up a result with a second answer that
//! carries the call's outcome.
//!
//! [`PipelinedReads`] is the receiver's part. It READs only bytes that were announced as filled, keeps to the
//! announced length, and has at most one READ per payload in flight, for all new bytes. The sender's part is
//! [`PayloadWriter`], to which the encoder reports its progress, and [`EarlyPayload`]. The fabric chooses how to store to
//! memory that the peer has READ before.

use super::expected::Expected;
use super::method::PendingTransfer;
use super::pool::{Exhausted, Filling, Pool};
use super::queue::header;
use super::read::Reads;
use super::{
    Begun, Facts, Inbound, Inward, Messages, Method, Moved, Payload, Pending, Received, Receiver, Sender,
    TransferQueue,
};
use crate::path::posting::post_read;
use crate::path::tx::{Tx, TxError};
use crate::path::{Cx, Violation, route};
use dunlin_fabric::{Fabric, PayloadFilling, QueuePairId, copy_plainly};
use dunlin_wire::{Descriptor, Header, Kind};

/// Bytes that are filled when a payload is announced, and the step between progress messages.
pub const PIECE: usize = 32 << 10;

pub(super) struct Pipelined;

impl Method for Pipelined {
    const NAME: &'static str = "rendezvous_pieces";
    const NUMBER: u8 = 4;
    const FACTS: Facts = Facts { moved: Moved::Read, messages: Messages::Many, early_above: Some(PIECE) };
}

impl<F: Fabric> Sender<F> for Pipelined {
    fn receiver(&self, _link: F::Link, _memory: u64, window: u16) -> Inbound<F> {
        Inbound::Pipelined(PipelinedReads { expected: Expected::new(window) })
    }

    fn announced(&self, queue: &mut TransferQueue<F>, call: u32, payload: Payload<F>) -> Option<Payload<F>> {
        if payload.len() > PIECE {
            queue.filled(call, payload.len() as u32);
        }
        Some(payload)
    }
}

/// A message with the number of filled bytes of a payload.
#[derive(Debug)]
pub(crate) struct Filled {
    call: u32,
    bytes: u32,
}

impl<F: Fabric> PendingTransfer<F> for Filled {
    fn step(&mut self, cx: &mut Cx<'_, F>, tx: &mut Tx<F>, head: u32) -> Result<bool, TxError> {
        tx.single(cx, &Header { time: self.bytes, ..header(Kind::Filled, self.call, head) }, &[])?;
        Ok(true)
    }
}

impl<F: Fabric> TransferQueue<F> {
    /// Queues a `Filled` with the number of filled bytes; 0 gives a request up.
    pub(crate) fn filled(&mut self, call: u32, bytes: u32) {
        self.push(Pending::Pipelined(Filled { call, bytes }));
    }
}

/// Receives the progress of the code that fills a large payload. The payload must be filled from its
/// beginning.
pub trait PayloadWriter {
    /// Reports that the first `bytes` bytes are final and may be sent.
    fn filled(&mut self, bytes: usize);

    /// Copies into the payload, with the kind of store that is fastest for the peer's READs. Copies as many
    /// bytes as the shorter slice has.
    fn copy(&self, to: &mut [u8], from: &[u8]);
}

impl dyn PayloadWriter + '_ {
    /// Copies `from` to the beginning of `place` and reports each piece. `before` is the number of payload
    /// bytes already filled before `place`.
    pub fn put(&mut self, before: usize, place: &mut [u8], from: &[u8]) {
        let mut done = 0;
        while done < from.len() {
            // Pieces end at multiples of PIECE in the whole payload.
            let piece = (PIECE - (before + done) % PIECE).min(from.len() - done);
            self.copy(&mut place[done..done + piece], &from[done..done + piece]);
            done += piece;
            self.filled(before + done);
        }
    }
}

/// A payload that its sender fills, and the peer's knowledge of it.
#[derive(Debug)]
pub(crate) struct EarlyPayload<F: Fabric> {
    /// The place from which the peer READs; `None` if the payload leaves only when it is complete.
    from: Option<Descriptor>,
    /// The fabric's state of the payload, likewise.
    filling: Option<Filling<F>>,
    /// Bytes announced as filled; 0 before the announcement.
    told: usize,
}

impl<F: Fabric> EarlyPayload<F> {
    /// A payload that leaves only when it is complete.
    pub(crate) const COMPLETE: Self = EarlyPayload { from: None, filling: None, told: 0 };

    /// Reserves a buffer of `exports` for a payload that leaves while it is filled.
    pub(crate) fn reserve(
        exports: &mut Pool<F>,
        fabric: &F,
        length: usize,
    ) -> Result<(Payload<F>, Self), Exhausted> {
        let (buffer, filling) = exports.reserve_in_pieces(fabric, length)?;
        let from = exports.descriptor(&buffer);
        Ok((buffer, EarlyPayload { from, filling: Some(filling), told: 0 }))
    }

    /// Records that the first `bytes` bytes are filled. Returns the announcement of the payload if it may be sent.
    pub(crate) fn filled(&mut self, bytes: usize) -> Option<Descriptor> {
        let from = self.from.filter(|_| bytes >= PIECE)?;
        if let Some(filling) = &mut self.filling {
            filling.began(bytes.min(from.length as usize));
        }
        Some(from)
    }

    /// Returns whether the announcement was sent.
    pub(crate) fn is_announced(&self) -> bool {
        self.told > 0
    }

    /// Records that the announcement was sent.
    pub(crate) fn announced(&mut self) {
        self.told = PIECE;
    }

    /// Sends a report that the first `bytes` bytes are filled, if there is a piece more than at the last one. Never the
    /// last report, after which the payload cannot be given up.
    pub(crate) fn report(
        &mut self,
        cx: &mut Cx<'_, F>,
        tx: &mut Tx<F>,
        (call, head): (u32, u32),
        bytes: usize,
    ) -> Result<(), TxError> {
        if bytes >= self.told + PIECE && self.from.is_some_and(|from| (bytes as u64) < from.length) {
            Filled { call, bytes: bytes as u32 }.step(cx, tx, head)?;
            self.told = bytes;
        }
        Ok(())
    }

    /// Copies into the payload as many bytes as the shorter slice has.
    pub(crate) fn copy(&self, to: &mut [u8], from: &[u8]) {
        match &self.filling {
            Some(filling) => filling.copy(to, from),
            None => copy_plainly(to, from),
        }
    }

    /// Ends the payload, whether it is complete or given up. `exports` is the pool of its buffer.
    pub(crate) fn end(&mut self, exports: &mut Pool<F>) {
        exports.filled(self.filling.take());
    }
}

/// A payload that is being READ.
#[derive(Debug)]
struct PipelinedRead<F: Fabric> {
    from: Descriptor,
    /// Bytes that the peer has filled.
    filled: usize,
    /// Bytes that were READ or are being READ.
    read: usize,
    /// The destination; `None` while a READ is in flight.
    into: Option<Payload<F>>,
    /// The peer has given the payload up.
    over: bool,
}

impl<F: Fabric> PipelinedRead<F> {
    /// READs the new bytes, if there are any and no READ is in flight.
    fn go_on(
        &mut self,
        domain: &mut F::Domain,
        (queue_pair, lane): (QueuePairId, u16),
        call: u32,
    ) -> Result<(), Violation> {
        if self.read >= self.filled || self.over {
            return Ok(());
        }
        let Some(mut into) = self.into.take() else { return Ok(()) };
        let length = self.filled - self.read;
        if !into.set_window(self.read, length) {
            return Err(Violation::Transfer("a piece that is no part of its payload"));
        }
        let offset = self.from.offset + self.read as u64;
        let piece = Descriptor { offset, length: length as u64, ..self.from };
        self.read = self.filled;
        post_read::<F>(domain, queue_pair, route::rendezvous(lane, call), &piece, into)
    }
}

/// The receiving end: payloads that are being READ in pieces.
#[derive(Debug)]
pub(crate) struct PipelinedReads<F: Fabric> {
    expected: Expected<PipelinedRead<F>>,
}

impl<F: Fabric> Receiver<F> for PipelinedReads<F> {
    fn expects(&self, call: u32) -> bool {
        self.expected.contains(call)
    }

    fn begin(&mut self, end: &mut Inward<'_, F>, from: Descriptor, wanted: bool) -> Result<Begun, Violation> {
        let length = from.length as usize;
        if !wanted || length <= PIECE {
            return Reads.begin(end, from, wanted);
        }
        let Some(into) = end.reserve(length) else { return Ok(Begun::Refused) };
        let read = PipelinedRead { from, filled: PIECE, read: 0, into: Some(into), over: false };
        self.expected.put(end.call, read)?.go_on(end.cx.domain, end.at, end.call)?;
        Ok(Begun::Reading { whole: false })
    }

    /// Ignores an unknown call: its payload was refused, and the peer does not know yet.
    fn on_message(
        &mut self,
        end: &mut Inward<'_, F>,
        header: &Header,
        _body: &[u8],
    ) -> Result<Received<F>, Violation> {
        if header.kind != Kind::Filled {
            return Err(Violation::Kind(header.kind));
        }
        let bytes = header.time as usize;
        if bytes == 0 {
            return Ok(Received::GivenUp);
        }
        let Some(read) = self.expected.get(header.call) else { return Ok(Received::Part) };
        if read.over || bytes <= read.filled || bytes as u64 > read.from.length {
            return Err(Violation::Transfer("a payload is filled as it cannot be"));
        }
        read.filled = bytes;
        read.go_on(end.cx.domain, end.at, header.call)?;
        Ok(Received::Part)
    }

    fn on_read(
        &mut self,
        domain: &mut F::Domain,
        at: (QueuePairId, u16),
        call: u32,
        mut buffer: Payload<F>,
    ) -> Result<Received<F>, Violation> {
        let Some(read) = self.expected.get(call) else { return Ok(Received::Whole(buffer)) };
        let whole = read.from.length as usize;
        if !read.over && read.read < whole {
            read.into = Some(buffer);
            return read.go_on(domain, at, call).map(|()| Received::Part);
        }
        let is_over = read.over;
        self.expected.remove(call);
        if is_over {
            return Ok(Received::GivenUp);
        }
        buffer.set_window(0, whole);
        Ok(Received::Whole(buffer))
    }

    fn give_up(&mut self, call: u32) -> bool {
        let Some(read) = self.expected.get(call) else { return false };
        read.over = true;
        let is_idle = read.into.is_some();
        if is_idle {
            self.expected.remove(call);
        }
        is_idle
    }
}
