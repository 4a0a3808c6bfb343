//! Read rendezvous in pieces: a large payload is announced when its first piece is there, so that the receiver READs a piece
//! while the sender fills the next. The descriptor is that of the whole, and says of itself that the first [`PIECE`] bytes can be
//! READ; `Filled` messages say how much can be since. What is no longer than a piece goes as by plain read rendezvous.
//!
//! | | announced by | then | over when |
//! |---|---|---|---|
//! | in pieces | the call or answer, flagged, with the descriptor | `Filled` with more and more bytes, READs of what is new | all of it was READ, or it was given up |
//!
//! A client gives a request up by a `Filled` of 0. A server gives a result up by answering once more, with what became of the call instead.
//!
//! [`Pulls`] is the receiver's part. It READs no byte that it was not told of, keeps to the length that was announced, and has
//! one READ of a payload under way at a time, of all that is new. The sender's part is [`Filling`], which whoever encodes reports
//! to; how memory is filled that the peer has READ before, `tune/fill.rs` finds out.

use super::{Violation, route};
use crate::client::lane::post_read;
use dunlin_fabric::{Buffer, Fabric, QueuePairId, copy};
use dunlin_wire::Descriptor;

/// How many bytes of a payload are there when it is announced, and how often its sender tells of more.
pub const PIECE: usize = 32 << 10;

/// Who fills a large payload reports to this how far it is. It must be filled from its beginning.
pub trait Filling {
    /// The first so many bytes are as they will stay, and may be sent.
    fn filled(&mut self, bytes: usize);

    /// Copies into the payload, in the way that leads to the peer soonest. Of the longer of both the rest counts for nothing.
    fn copy(&self, to: &mut [u8], from: &[u8]);
}

impl dyn Filling + '_ {
    /// Copies `from` to the beginning of `place`, of whose payload `before` bytes are there already, and reports each piece.
    pub fn put(&mut self, before: usize, place: &mut [u8], from: &[u8]) {
        let mut done = 0;
        while done < from.len() {
            // Pieces end where they would if all of the payload were copied so.
            let piece = (PIECE - (before + done) % PIECE).min(from.len() - done);
            self.copy(&mut place[done..done + piece], &from[done..done + piece]);
            done += piece;
            self.filled(before + done);
        }
    }
}

/// Copies as was chosen.
pub(crate) fn copy_into(streams: bool, to: &mut [u8], from: &[u8]) {
    if streams {
        return copy::stream(to, from);
    }
    let length = to.len().min(from.len());
    to[..length].copy_from_slice(&from[..length]);
}

/// A payload that is being READ.
#[derive(Debug)]
struct Pull<F: Fabric> {
    call: u32,
    from: Descriptor,
    /// Bytes that the peer has filled.
    filled: usize,
    /// Bytes that were READ, or are being.
    read: usize,
    /// Where they go; `None` while a READ is under way.
    into: Option<Buffer<F::Memory>>,
    /// The peer has said that there will be no more.
    over: bool,
}

/// Payloads that are being READ in pieces.
#[derive(Debug)]
pub(crate) struct Pulls<F: Fabric> {
    list: Vec<Pull<F>>,
    limit: usize,
}

/// What became of a payload.
#[derive(Debug)]
pub(crate) enum Pulled<F: Fabric> {
    /// It is none of those in pieces.
    Whole(Buffer<F::Memory>),
    /// There is more to come.
    Part,
    /// There will be no more of it.
    Over,
}

impl<F: Fabric> Pulls<F> {
    /// Of a lane with that window.
    pub(crate) fn new(window: u16) -> Self {
        Pulls { list: Vec::new(), limit: 2 * window as usize + 64 }
    }

    /// Whether the payload of a call is being READ.
    pub(crate) fn expects(&self, call: u32) -> bool {
        self.list.iter().any(|pull| pull.call == call)
    }

    /// READs what is there of a payload that was announced; `into` has its length.
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
        self.list.push(Pull { call, from, filled, read: 0, into: Some(into), over: false });
        self.go_on(domain, (queue_pair, lane), self.list.len() - 1)
    }

    /// READs what is new of a payload, if there is something and nothing under way.
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

    /// The peer has filled so many bytes of a payload. One that is not known was refused, and its peer did not know that yet.
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

    /// The peer has given up a payload. Says whether that is the end of it: if a READ is under way, that is when it comes back. Nothing
    /// of one that is not known.
    pub(crate) fn give_up(&mut self, call: u32) -> bool {
        let Some(index) = self.list.iter().position(|pull| pull.call == call) else { return false };
        self.list[index].over = true;
        let idle = self.list[index].into.is_some();
        if idle {
            self.list.swap_remove(index);
        }
        idle
    }

    /// A READ has come back.
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
