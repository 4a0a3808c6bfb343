//! Progress messages to a client about a large result while the handler fills it.

use super::dispatch::Call;
use crate::path::large::{EarlyPayload, PayloadWriter};
use crate::path::{Cx, Tx, TxError};
use dunlin_fabric::Fabric;
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
    pub(super) told: Told<F>,
}

/// The client's knowledge of a large result.
#[derive(Debug)]
pub(super) struct Told<F: Fabric> {
    pub(super) payload: EarlyPayload<F>,
    /// The lane is broken: no more messages can be sent.
    pub(super) broken: bool,
}

impl<F: Fabric> Told<F> {
    /// Of a result that the handler does not fill yet.
    pub(super) const NOTHING: Self = Told { payload: EarlyPayload::COMPLETE, broken: false };
}

impl<F: Fabric> PipelinedReply<'_, F> {
    /// Returns whether the answer was sent.
    pub(super) fn is_announced(&self) -> bool {
        self.told.payload.is_announced()
    }

    /// Ends the result; returns what the client was sent, if anything.
    pub(super) fn end(self) -> Option<Told<F>> {
        let told = self.told;
        (told.payload.is_announced() || told.broken).then_some(told)
    }

    fn tell(&mut self, from: Descriptor, bytes: usize) -> Result<(), TxError> {
        let PipelinedReply { call, head, .. } = *self;
        if !self.is_announced() {
            let header = Header {
                code: Status::Ok.to_wire(),
                flags: self.flags,
                call: call.call,
                thread: call.thread,
                head,
                ..Header::new(Kind::Response)
            };
            self.tx.single(&mut self.cx, &header, &from.encode())?;
            self.told.payload.announced();
        }
        self.told.payload.report(&mut self.cx, self.tx, (call.call, head), bytes)
    }
}

impl<F: Fabric> PayloadWriter for PipelinedReply<'_, F> {
    fn filled(&mut self, bytes: usize) {
        if self.told.broken {
            return;
        }
        let Some(from) = self.told.payload.filled(bytes) else { return };
        self.told.broken = matches!(self.tell(from, bytes), Err(TxError::Broken));
    }

    fn copy(&self, to: &mut [u8], from: &[u8]) {
        self.told.payload.copy(to, from);
    }
}
