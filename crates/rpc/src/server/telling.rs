//! What a client hears of a large result while the handler fills it.

use super::dispatch::Call;
use crate::path::pieces::{Filling, PIECE, copy_into};
use crate::path::{Tx, TxError};
use crate::tune::fill::FillTuner;
use crate::tune::turns::Past;
use dunlin_fabric::{Fabric, Host, Nanos};
use dunlin_wire::{Descriptor, Flags, Header, Kind, Status};

/// Sends the answer as soon as its first piece is there, and then tells of more. What finds no room is told later.
pub(super) struct Telling<'a, F: Fabric> {
    pub(super) fabric: &'a F,
    pub(super) domain: &'a mut F::Domain,
    pub(super) tx: &'a mut Tx<F>,
    pub(super) tuner: &'a mut FillTuner,
    /// What the messages carry along.
    pub(super) head: u32,
    pub(super) flags: Flags,
    pub(super) call: Call,
    /// Where the client READs it, once it is being filled.
    pub(super) from: Option<Descriptor>,
    /// What became of its buffer before.
    pub(super) past: Past,
    /// When that was had, until the first piece is there.
    pub(super) began: Option<Nanos>,
    pub(super) told: Told,
}

/// What a client was told.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Told {
    /// How many bytes there are; none, if the answer has not left.
    pub(super) bytes: usize,
    streams: bool,
    /// It cannot be told any more.
    pub(super) broken: bool,
}

impl<F: Fabric> Telling<'_, F> {
    /// A result will be filled that the client can READ there, in memory of such a past.
    pub(super) fn begin(&mut self, from: Option<Descriptor>, past: Past) {
        (self.from, self.past) = (from, past);
        self.told.streams = self.tuner.begin(past);
        self.began = (past != Past::New).then(|| self.fabric.host().now());
    }

    /// Whether the answer has left.
    pub(super) fn is_announced(&self) -> bool {
        self.told.bytes > 0
    }

    /// Nothing more is filled: what the client knows, if it knows something.
    pub(super) fn end(self) -> Option<Told> {
        let told = self.told;
        (told.bytes > 0 || told.broken).then_some(told)
    }

    fn tell(&mut self, from: Descriptor, bytes: usize) -> Result<(), TxError> {
        let Telling { call, head, .. } = *self;
        if self.told.bytes == 0 {
            let header = Header {
                code: Status::Ok.to_wire(),
                flags: self.flags,
                call: call.call,
                thread: call.thread,
                head,
                ..Header::new(Kind::Response)
            };
            self.tx.single(self.fabric, self.domain, &header, &from.encode())?;
            self.told.bytes = PIECE;
        }
        // That it is all there is told last, since it cannot be given up then.
        if bytes >= self.told.bytes + PIECE && (bytes as u64) < from.length {
            let header = Header { call: call.call, time: bytes as u32, head, ..Header::new(Kind::Filled) };
            self.tx.single(self.fabric, self.domain, &header, &[])?;
            self.told.bytes = bytes;
        }
        Ok(())
    }
}

impl<F: Fabric> Filling for Telling<'_, F> {
    fn filled(&mut self, bytes: usize) {
        let Some(from) = self.from.filter(|_| bytes >= PIECE && !self.told.broken) else { return };
        let bytes = bytes.min(from.length as usize);
        if let Some(began) = self.began.take() {
            let took = self.fabric.host().now().saturating_sub(began);
            self.told.streams = self.tuner.began(self.past, self.told.streams, bytes, took);
        }
        self.told.broken = matches!(self.tell(from, bytes), Err(TxError::Broken));
    }

    fn copy(&self, to: &mut [u8], from: &[u8]) {
        copy_into(self.told.streams, to, from);
    }
}
