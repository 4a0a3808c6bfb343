//! The sending end of a lane under leases, as its owner drives it.

use super::{Tx, TxError};
use crate::grouped::Mark;
use crate::path::half::TxHalf;
use crate::path::{Cx, Violation};
use dunlin_fabric::{Fabric, RegionKey};
#[cfg(test)]
use dunlin_fabric::{InlineWrite, Region, ThreadDomain};

impl<F: Fabric> Tx<F> {
    /// Returns whether messages or words of a lane under leases wait for room in the send queue.
    #[inline]
    pub(crate) fn is_behind(&self) -> bool {
        matches!(&self.half, TxHalf::Staged(staged) if staged.is_behind())
    }

    /// Lets the requests that the server is not known to have taken be written into the zone again, during a lease. Each
    /// has the same bytes and the same place as before, which the server does not give to another request until it has
    /// reported that one as taken.
    #[cold]
    pub(crate) fn write_again(&mut self) {
        if let TxHalf::Staged(staged) = &mut self.half {
            staged.write_again();
        }
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
        match &mut self.half {
            TxHalf::Staged(staged) => staged.go_on(&mut self.end, cx),
            _ => Ok(()),
        }
    }

    /// Returns the ring that the server READs, the key of its pool, and the zone's offset in the pool during a lease.
    #[cfg(test)]
    pub(crate) fn leased_memory(&self) -> (Region<F::Memory>, RegionKey, Option<u64>) {
        let TxHalf::Staged(staged) = &self.half else { panic!("the lane has no leases") };
        staged.memory()
    }

    /// Writes the word again, whether or not it has changed.
    #[cfg(test)]
    pub(crate) fn announce_again(&mut self, cx: &mut Cx<'_, F>) -> Result<(), TxError> {
        if let TxHalf::Staged(staged) = &mut self.half {
            staged.repeat_word();
        }
        self.go_on(cx)
    }

    /// WRITEs bytes to any place: a client that breaks the rules.
    #[cfg(test)]
    pub(crate) fn write_anywhere(
        &mut self,
        cx: &mut Cx<'_, F>,
        (key, offset): (RegionKey, u64),
        bytes: &[u8],
    ) -> Result<(), TxError> {
        let id = crate::path::route::outgoing(self.end.lane);
        let parts: &[&[u8]] = &[bytes];
        let write = InlineWrite { id, parts, key, offset, immediate: None, signaled: true, ahead: 0 };
        let posted = cx.domain.post_write(self.end.queue_pair, write);
        self.end.posted(posted, true)
    }

    /// Takes the mark of an answer, whose head was taken before: a lease begins or ends.
    #[inline(never)]
    pub(crate) fn on_mark(&mut self, cx: &mut Cx<'_, F>, mark: Mark) -> Result<(), Violation> {
        let TxHalf::Staged(staged) = &mut self.half else { return Err(Violation::Lease) };
        let end = &mut self.end;
        staged.taken(end.ring.head());
        end.epoch = staged.on_mark(mark).map_err(|_| Violation::Lease)?;
        end.next_tag = end.tags.first(end.epoch, end.sequence);
        match staged.go_on(end, cx) {
            Ok(()) | Err(TxError::Full) => Ok(()),
            Err(TxError::Broken) => Err(Violation::Broken),
        }
    }
}
