//! WRITEs into a zone, and announcements of requests that the server READs.

use super::{Kept, Staged, WORD_AT};
use crate::path::half::{Message, Notice, Sender};
use crate::path::sending::Sending;
use crate::path::tx::TxError;
use crate::path::{Cx, MAX_MESSAGE, route};
use dunlin_fabric::{Fabric, InlineWrite, Operation, RegionKey, ThreadDomain};
use dunlin_wire::{Kind, LINE};

impl<F: Fabric> Sender<F> for Box<Staged<F>> {
    /// Keeps a message, and writes or announces it. A message that is kept counts as sent: without room in the send
    /// queue, [`go_on`](Staged::go_on) writes it later.
    #[inline(never)]
    fn put(&mut self, end: &mut Sending<F>, cx: &mut Cx<'_, F>, message: Message<'_>) -> Result<(), TxError> {
        let Message { parts, total, .. } = message;
        // A `Skip` leaves the rest of the ring empty, and counts whole.
        let rest = end.ring.to_end();
        let skips = parts.first().is_some_and(|line| line.first() == Some(&(Kind::Skip as u8)));
        let lines = if skips { rest } else { (total / LINE) as u64 };
        self.taken(end.ring.head());
        let until = end.ring.tail() + lines;
        self.keep(message, (end.sequence, until));
        match self.go_on(end, cx) {
            Ok(()) | Err(TxError::Full) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

impl<F: Fabric> Staged<F> {
    /// Writes the messages and the word that wait, as far as there is room.
    pub(crate) fn go_on(&mut self, end: &mut Sending<F>, cx: &mut Cx<'_, F>) -> Result<(), TxError> {
        while let Some((kept, zone)) = self.next() {
            let to = (self.pool, zone + kept.at as u64);
            if kept.bytes == LINE {
                self.copy_into_zone(end, cx, &kept, to, &mut [0; LINE])?;
            } else {
                self.copy_long_into_zone(end, cx, &kept, to)?;
            }
            self.wrote();
        }
        if let Some(word) = self.word() {
            // A server that sleeps is woken without a message to take from a zone.
            let (key, at) = self.line;
            end.notify_word(cx, (key, at + WORD_AT), word.to_wire())?;
            self.wrote_word();
        }
        Ok(())
    }

    /// Copies a message of several lines into the zone. Not inlined, to keep the stack frame of short ones small.
    #[inline(never)]
    fn copy_long_into_zone(
        &self,
        end: &mut Sending<F>,
        cx: &mut Cx<'_, F>,
        kept: &Kept,
        to: (RegionKey, u64),
    ) -> Result<(), TxError> {
        self.copy_into_zone(end, cx, kept, to, &mut [0; MAX_MESSAGE])
    }

    fn copy_into_zone(
        &self,
        end: &mut Sending<F>,
        cx: &mut Cx<'_, F>,
        kept: &Kept,
        (key, offset): (RegionKey, u64),
        message: &mut [u8],
    ) -> Result<(), TxError> {
        self.copy(kept, end.tags.tags(end.epoch, kept.sequence), message);
        let parts: &[&[u8]] = &[&message[..kept.bytes]];
        let immediate = (self.notice == Notice::Immediate && kept.notify).then_some(end.lane as u32);
        if kept.bytes > end.max_inline as usize {
            let data = end.data(cx.fabric, parts, kept.bytes)?;
            return end.post_one(cx, Operation::Write { data, key, offset, immediate }, true);
        }
        let signaled = end.next_is_signaled(cx.fabric);
        let id = route::outgoing(end.lane);
        let write = InlineWrite { id, parts, key, offset, immediate, signaled, ahead: 0 };
        let posted = cx.domain.post_write(end.queue_pair, write);
        end.posted(posted, signaled)
    }
}
