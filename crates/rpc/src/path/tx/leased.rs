//! The sending end of a lane under leases: WRITEs into a zone, and announcements of requests that the server READs.

use super::{Tx, TxError, TxHalf};
use crate::grouped::Mark;
use crate::path::staged::{Kept, WORD_AT};
use crate::path::{Cx, MAX_MESSAGE, Violation, route};
use dunlin_fabric::{Fabric, InlineWrite, Operation, RegionKey, ThreadDomain};
use dunlin_wire::{Kind, LINE};

impl<F: Fabric> Tx<F> {
    /// Keeps a message, and writes or announces it. A message that is kept counts as sent: without room in the send
    /// queue, [`go_on`](Tx::go_on) writes it later.
    pub(super) fn put_staged(
        &mut self,
        cx: &mut Cx<'_, F>,
        parts: &[&[u8]],
        total: usize,
        at: usize,
    ) -> Result<(), TxError> {
        let (sequence, head) = (self.sequence, self.ring.head());
        // A `Skip` leaves the rest of the ring empty, and counts whole.
        let rest = self.ring.to_end();
        let skips = parts.first().is_some_and(|line| line.first() == Some(&(Kind::Skip as u8)));
        let lines = if skips { rest } else { (total / LINE) as u64 };
        let end = self.ring.tail() + lines;
        let TxHalf::Staged(staged) = &mut self.half else { return Err(TxError::Broken) };
        staged.taken(head);
        staged.keep(parts, total, at, (sequence, end));
        match self.go_on(cx) {
            Ok(()) | Err(TxError::Full) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Returns whether messages or words of a lane under leases wait for room in the send queue.
    #[inline]
    pub(crate) fn is_behind(&self) -> bool {
        matches!(&self.half, TxHalf::Staged(staged) if staged.is_behind())
    }

    /// Returns the key of the memory that the server READs, on a lane under leases.
    pub(crate) fn staged_key(&self) -> Option<RegionKey> {
        match &self.half {
            TxHalf::Staged(staged) => Some(staged.granted),
            _ => None,
        }
    }

    /// Writes the messages and the word that wait, as far as there is room.
    pub(crate) fn go_on(&mut self, cx: &mut Cx<'_, F>) -> Result<(), TxError> {
        loop {
            let TxHalf::Staged(staged) = &self.half else { return Ok(()) };
            let Some((kept, zone)) = staged.next() else { break };
            let to = (staged.pool, zone + kept.at as u64);
            if kept.bytes == LINE {
                self.copy_into_zone(cx, &kept, to, &mut [0; LINE])?;
            } else {
                self.copy_long_into_zone(cx, &kept, to)?;
            }
            if let TxHalf::Staged(staged) = &mut self.half {
                staged.wrote();
            }
        }
        let TxHalf::Staged(staged) = &self.half else { return Ok(()) };
        if let Some(word) = staged.word() {
            let to = (staged.line, WORD_AT);
            self.write_word(cx, to, word.to_wire(), None)?;
            if let TxHalf::Staged(staged) = &mut self.half {
                staged.wrote_word();
            }
        }
        Ok(())
    }

    /// Copies a message of several lines into the zone. Not inlined, to keep the stack frame of short ones small.
    #[inline(never)]
    fn copy_long_into_zone(
        &mut self,
        cx: &mut Cx<'_, F>,
        kept: &Kept,
        to: (RegionKey, u64),
    ) -> Result<(), TxError> {
        self.copy_into_zone(cx, kept, to, &mut [0; MAX_MESSAGE])
    }

    fn copy_into_zone(
        &mut self,
        cx: &mut Cx<'_, F>,
        kept: &Kept,
        to: (RegionKey, u64),
        message: &mut [u8],
    ) -> Result<(), TxError> {
        let TxHalf::Staged(staged) = &self.half else { return Err(TxError::Broken) };
        staged.copy(kept, self.tags.tags(self.epoch, kept.sequence), message);
        self.write_into(cx, &[&message[..kept.bytes]], to)
    }

    /// WRITEs a message without a notice.
    fn write_into(
        &mut self,
        cx: &mut Cx<'_, F>,
        parts: &[&[u8]],
        (key, offset): (RegionKey, u64),
    ) -> Result<(), TxError> {
        let total = parts.iter().map(|part| part.len()).sum();
        if total > self.max_inline {
            let data = self.data(cx.fabric, parts, total)?;
            return self.post_one(cx, Operation::Write { data, key, offset, immediate: None }, true);
        }
        let signaled = self.next_is_signaled(cx.fabric);
        let id = route::outgoing(self.lane);
        let write = InlineWrite { id, parts, key, offset, immediate: None, signaled, ahead: 0 };
        let posted = cx.domain.post_write(self.queue_pair, write);
        self.posted(posted, signaled)
    }

    /// Takes the mark of an answer, whose head was taken before: a lease begins or ends.
    #[inline(never)]
    pub(crate) fn on_mark(&mut self, cx: &mut Cx<'_, F>, mark: Mark) -> Result<(), Violation> {
        let head = self.ring.head();
        let TxHalf::Staged(staged) = &mut self.half else { return Err(Violation::Lease) };
        staged.taken(head);
        self.epoch = staged.on_mark(mark).map_err(|_| Violation::Lease)?;
        self.next_tag = self.tags.first(self.epoch, self.sequence);
        match self.go_on(cx) {
            Ok(()) | Err(TxError::Full) => Ok(()),
            Err(TxError::Broken) => Err(Violation::Broken),
        }
    }
}
