//! Progress messages to a client about a large result while the handler fills it.

use super::dispatch::Call;
use crate::path::pipelined::{PIECE, PayloadWriter};
use crate::path::rendezvous::Filling;
use crate::path::{Cx, Tx, TxError};
use dunlin_fabric::{Fabric, PayloadFilling, copy_plainly};
use dunlin_wire::{Descriptor, Flags, Header, Kind, Status};

/// Sends the answer as soon as its first piece is filled, then progress messages. A message that finds no
/// room is left to a later one.
pub(super) struct PipelinedReply<'a, F: Fabric> {
    pub(super) cx: Cx<'a, F>,
    pub(super) tx: &'a mut Tx<F>,
    /// The head that the messages carry.
    pub(super) head: u32,
    pub(super) flags: Flags,
    pub(super) call: Call,
    /// The place from which the client READs the result, once the handler fills it.
    pub(super) from: Option<Descriptor>,
    pub(super) told: Told<F>,
}

/// The client's knowledge of a large result.
#[derive(Debug)]
pub(super) struct Told<F: Fabric> {
    /// Bytes announced as filled; 0 if the answer is not sent yet.
    pub(super) bytes: usize,
    /// The lane is broken: no more messages can be sent.
    pub(super) broken: bool,
    /// The fabric's state of the result, once the handler fills it.
    pub(super) filling: Option<Filling<F>>,
}

impl<F: Fabric> Default for Told<F> {
    fn default() -> Self {
        Told { bytes: 0, broken: false, filling: None }
    }
}

impl<F: Fabric> PipelinedReply<'_, F> {
    /// Starts a result that the client can READ from `from`.
    pub(super) fn begin(&mut self, from: Option<Descriptor>, filling: Filling<F>) {
        (self.from, self.told.filling) = (from, Some(filling));
    }

    /// Returns whether the answer was sent.
    pub(super) fn is_announced(&self) -> bool {
        self.told.bytes > 0
    }

    /// Ends the result; returns what the client was sent, if anything.
    pub(super) fn end(self) -> Option<Told<F>> {
        let told = self.told;
        (told.bytes > 0 || told.broken).then_some(told)
    }

    fn tell(&mut self, from: Descriptor, bytes: usize) -> Result<(), TxError> {
        let PipelinedReply { call, head, .. } = *self;
        if self.told.bytes == 0 {
            let header = Header {
                code: Status::Ok.to_wire(),
                flags: self.flags,
                call: call.call,
                thread: call.thread,
                head,
                ..Header::new(Kind::Response)
            };
            self.tx.single(&mut self.cx, &header, &from.encode())?;
            self.told.bytes = PIECE;
        }
        // The last `Filled`, for the whole result, is sent elsewhere: after it the result cannot be given up.
        if bytes >= self.told.bytes + PIECE && (bytes as u64) < from.length {
            let header = Header { call: call.call, time: bytes as u32, head, ..Header::new(Kind::Filled) };
            self.tx.single(&mut self.cx, &header, &[])?;
            self.told.bytes = bytes;
        }
        Ok(())
    }
}

impl<F: Fabric> PayloadWriter for PipelinedReply<'_, F> {
    fn filled(&mut self, bytes: usize) {
        let Some(from) = self.from.filter(|_| bytes >= PIECE && !self.told.broken) else { return };
        let bytes = bytes.min(from.length as usize);
        if let Some(filling) = &mut self.told.filling {
            filling.began(bytes);
        }
        self.told.broken = matches!(self.tell(from, bytes), Err(TxError::Broken));
    }

    fn copy(&self, to: &mut [u8], from: &[u8]) {
        match &self.told.filling {
            Some(filling) => filling.copy(to, from),
            None => copy_plainly(to, from),
        }
    }
}
