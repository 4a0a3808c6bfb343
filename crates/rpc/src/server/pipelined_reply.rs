//! Progress messages to a client about a large result while the handler fills it.

use super::dispatch::Call;
use crate::path::pipelined::{PIECE, PayloadWriter, copy_into};
use crate::path::{Cx, Tx, TxError};
use crate::tune::buffer_rotation::Residency;
use crate::tune::store_policy::StorePolicyTuner;
use dunlin_fabric::{Fabric, Host, Nanos};
use dunlin_wire::{Descriptor, Flags, Header, Kind, Status};

/// Sends the answer as soon as its first piece is filled, then progress messages. A message that finds no
/// room is left to a later one.
pub(super) struct PipelinedReply<'a, F: Fabric> {
    pub(super) cx: Cx<'a, F>,
    pub(super) tx: &'a mut Tx<F>,
    pub(super) tuner: &'a mut Option<Box<StorePolicyTuner>>,
    /// The head that the messages carry.
    pub(super) head: u32,
    pub(super) flags: Flags,
    pub(super) call: Call,
    /// The place from which the client READs the result, once the handler fills it.
    pub(super) from: Option<Descriptor>,
    /// The history of its buffer.
    pub(super) past: Residency,
    /// Time at which the buffer was reserved, until the first piece is filled.
    pub(super) began: Option<Nanos>,
    pub(super) told: Told,
}

/// The client's knowledge of a large result.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Told {
    /// Bytes announced as filled; 0 if the answer is not sent yet.
    pub(super) bytes: usize,
    streams: bool,
    /// The lane is broken: no more messages can be sent.
    pub(super) broken: bool,
}

impl<F: Fabric> PipelinedReply<'_, F> {
    /// Starts a result that the client can READ from `from`, in a buffer with the given history.
    pub(super) fn begin(&mut self, from: Option<Descriptor>, past: Residency) {
        (self.from, self.past) = (from, past);
        let shared = || Box::new(StorePolicyTuner::new(self.cx.fabric.shared()));
        self.told.streams = self.tuner.get_or_insert_with(shared).begin(past);
        self.began = (past != Residency::New).then(|| self.cx.fabric.host().now());
    }

    /// Returns whether plain stores to recently READ buffers are slow, so that more buffers may help.
    pub(super) fn is_slow_lately(&self) -> bool {
        self.tuner.as_ref().is_some_and(|tuner| tuner.is_slow_lately())
    }

    /// Returns whether the answer was sent.
    pub(super) fn is_announced(&self) -> bool {
        self.told.bytes > 0
    }

    /// Ends the result; returns what the client was sent, if anything.
    pub(super) fn end(self) -> Option<Told> {
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
        if let Some(began) = self.began.take() {
            let took = self.cx.fabric.host().now().saturating_sub(began);
            if let Some(tuner) = self.tuner {
                self.told.streams = tuner.began(self.past, self.told.streams, bytes, took);
            }
        }
        self.told.broken = matches!(self.tell(from, bytes), Err(TxError::Broken));
    }

    fn copy(&self, to: &mut [u8], from: &[u8]) {
        copy_into(self.told.streams, to, from);
    }
}
