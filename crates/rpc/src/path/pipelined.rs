//! Read rendezvous in pieces: the sender announces a large payload once its first piece is filled, and the
//! receiver READs one piece while the sender fills the next.
//!
//! The descriptor covers the whole payload; at first only [`PIECE`] bytes may be READ. `Filled` messages
//! raise that number. A payload of at most one piece uses plain read rendezvous.
//!
//! | | announced by | then | over when |
//! |---|---|---|---|
//! | in pieces | the call or answer, flagged, with the descriptor | `Filled` messages with growing lengths, READs of the new bytes | all bytes were READ, or the sender gave up |
//!
//! A client gives up a request with a `Filled` of 0. A server gives up a result with a second answer that
//! carries the call's outcome.
//!
//! [`PipelinedReads`] is the receiver's part. It READs only bytes that were announced as filled, keeps to the
//! announced length, and has at most one READ per payload in flight, for all new bytes. The sender's part is
//! [`PayloadWriter`], to which the encoder reports its progress. The fabric chooses how to store to memory that the peer
//! has READ before.

use super::posting::post_read;
use super::{Violation, route};
use dunlin_fabric::{Buffer, Fabric, QueuePairId};
use dunlin_wire::Descriptor;

/// Bytes that are filled when a payload is announced, and the step between progress messages.
pub const PIECE: usize = 32 << 10;

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

/// A payload that is being READ.
#[derive(Debug)]
struct PipelinedRead<F: Fabric> {
    call: u32,
    from: Descriptor,
    /// Bytes that the peer has filled.
    filled: usize,
    /// Bytes that were READ or are being READ.
    read: usize,
    /// The destination; `None` while a READ is in flight.
    into: Option<Buffer<F::Memory>>,
    /// The peer has given the payload up.
    over: bool,
}

/// Payloads that are being READ in pieces.
#[derive(Debug)]
pub(crate) struct PipelinedReads<F: Fabric> {
    list: Vec<PipelinedRead<F>>,
    limit: usize,
}

/// The state of a payload after a READ.
#[derive(Debug)]
pub(crate) enum Pulled<F: Fabric> {
    /// The whole payload is here, or the payload does not travel in pieces.
    Whole(Buffer<F::Memory>),
    /// More pieces are to come.
    Part,
    /// The peer has given the payload up.
    Over,
}

impl<F: Fabric> PipelinedReads<F> {
    /// Creates the table for a lane with window `window`.
    pub(crate) fn new(window: u16) -> Self {
        PipelinedReads { list: Vec::new(), limit: 2 * window as usize + 64 }
    }

    /// Returns whether the payload of `call` is being READ.
    pub(crate) fn expects(&self, call: u32) -> bool {
        self.list.iter().any(|pull| pull.call == call)
    }

    /// READs the filled part of an announced payload; `into` has the length of the whole payload.
    pub(crate) fn begin(
        &mut self,
        domain: &mut F::Domain,
        (queue_pair, lane): (QueuePairId, u16),
        call: u32,
        from: Descriptor,
        into: Buffer<F::Memory>,
    ) -> Result<(), Violation> {
        if self.list.len() >= self.limit || self.expects(call) {
            return Err(Violation::Transfer("more large payloads than the window allows are announced"));
        }
        let filled = PIECE.min(into.len());
        self.list.push(PipelinedRead { call, from, filled, read: 0, into: Some(into), over: false });
        self.go_on(domain, (queue_pair, lane), self.list.len() - 1)
    }

    /// READs the new bytes of a payload, if there are any and no READ is in flight.
    fn go_on(
        &mut self,
        domain: &mut F::Domain,
        at: (QueuePairId, u16),
        index: usize,
    ) -> Result<(), Violation> {
        let Some(pull) = self.list.get_mut(index).filter(|pull| pull.read < pull.filled && !pull.over) else {
            return Ok(());
        };
        let Some(mut into) = pull.into.take() else { return Ok(()) };
        let length = pull.filled - pull.read;
        if !into.set_window(pull.read, length) {
            return Err(Violation::Transfer("a piece that is no part of its payload"));
        }
        let offset = pull.from.offset + pull.read as u64;
        let piece = Descriptor { offset, length: length as u64, ..pull.from };
        pull.read = pull.filled;
        post_read::<F>(domain, at.0, route::rendezvous(at.1, pull.call), &piece, into)
    }

    /// Records that the peer has filled `bytes` bytes of a payload. Ignores an unknown call: its payload was
    /// refused, and the peer does not know yet.
    pub(crate) fn filled(
        &mut self,
        domain: &mut F::Domain,
        at: (QueuePairId, u16),
        call: u32,
        bytes: u32,
    ) -> Result<(), Violation> {
        let Some(index) = self.list.iter().position(|pull| pull.call == call) else { return Ok(()) };
        let pull = &mut self.list[index];
        let bytes = bytes as usize;
        if pull.over || bytes <= pull.filled || bytes as u64 > pull.from.length {
            return Err(Violation::Transfer("a payload is filled as it cannot be"));
        }
        pull.filled = bytes;
        self.go_on(domain, at, index)
    }

    /// Records that the peer has given a payload up. Returns true if no READ is in flight, so that the
    /// payload is released now; otherwise [`arrived`](PipelinedReads::arrived) releases it. Returns false for an
    /// unknown call.
    pub(crate) fn give_up(&mut self, call: u32) -> bool {
        let Some(index) = self.list.iter().position(|pull| pull.call == call) else { return false };
        self.list[index].over = true;
        let idle = self.list[index].into.is_some();
        if idle {
            self.list.swap_remove(index);
        }
        idle
    }

    /// Takes the completion of a READ and starts the next one.
    pub(crate) fn arrived(
        &mut self,
        domain: &mut F::Domain,
        at: (QueuePairId, u16),
        call: u32,
        mut buffer: Buffer<F::Memory>,
    ) -> Result<Pulled<F>, Violation> {
        let Some(index) = self.list.iter().position(|pull| pull.call == call) else {
            return Ok(Pulled::Whole(buffer));
        };
        let pull = &mut self.list[index];
        if pull.over {
            self.list.swap_remove(index);
            return Ok(Pulled::Over);
        }
        let whole = pull.from.length as usize;
        if pull.read == whole {
            self.list.swap_remove(index);
            buffer.set_window(0, whole);
            return Ok(Pulled::Whole(buffer));
        }
        pull.into = Some(buffer);
        self.go_on(domain, at, index).map(|()| Pulled::Part)
    }
}
