//! Copies between regions, cut into requests.

use crate::lmr::Lmr;
use crate::tier::Tier;
use crate::within::{Within, after, nothing, parts};
use dunlin_fabric::Fabric;
use dunlin_tier::process::{COPY, MAX_CHANGED, ProcessRequest};
use dunlin_tier::{AccessError, Rights};
use dunlin_tier_node::{OperationError, Position};
use std::sync::Arc;
use std::time::Duration;

impl<P: Fabric> Lmr<P> {
    /// Returns a position in the region, for [`Tier::memcpy`].
    pub fn at(&self, offset: u64) -> Position<'_, Lmr<P>> {
        Position { lmr: self, offset }
    }

    /// Returns whether a copy from `offset` to a position runs backwards, for ranges that may overlap.
    pub(crate) fn overlaps_behind(&self, offset: u64, to: Position<'_, Lmr<P>>) -> bool {
        self.opened.region == to.lmr.opened.region && to.offset > offset
    }
}

impl<P: Fabric> Tier<P> {
    /// Copies `length` bytes from a position in a region to one in another region, or in the same one (`LT_memcpy`,
    /// `LT_memmove`). The arguments have the order of those of C. The nodes that store the source write the bytes to the
    /// target (section 7.1), so they do not pass through this process. Ranges of one region may overlap: the target has
    /// the bytes that the source had before.
    ///
    /// More than 4 MiB are several requests. Blocks until [`AttachConfig::timeout`](crate::AttachConfig::timeout) at most.
    ///
    /// # Errors
    /// The source needs READ, and the target WRITE. A region of another attachment is refused with
    /// [`AccessError::NoHandle`]. With [`OperationError::may_have_executed`], any of the bytes may have been copied.
    pub fn memcpy(
        &self,
        to: Position<'_, Lmr<P>>,
        from: Position<'_, Lmr<P>>,
        length: u64,
    ) -> Result<(), OperationError> {
        self.copy(from.lmr.usually(), from.offset, to, length)
    }

    /// As [`memcpy`](Tier::memcpy), with a time of its own: as [`Lmr::within`].
    ///
    /// # Errors
    /// As [`memcpy`](Tier::memcpy), and [`OperationError::Deadline`] once the time is over.
    pub fn memcpy_within(
        &self,
        time: Duration,
        to: Position<'_, Lmr<P>>,
        from: Position<'_, Lmr<P>>,
        length: u64,
    ) -> Result<(), OperationError> {
        self.copy(from.lmr.within(time), from.offset, to, length)
    }

    fn copy(
        &self,
        from: Within<'_, P>,
        offset: u64,
        to: Position<'_, Lmr<P>>,
        length: u64,
    ) -> Result<(), OperationError> {
        self.check_own(to.lmr)?;
        self.check_own(from.lmr)?;
        from.copy(offset, length, to)
    }

    /// Checks that a handle is one of this attachment's.
    pub(crate) fn check_own(&self, lmr: &Lmr<P>) -> Result<(), AccessError> {
        if Arc::ptr_eq(&lmr.attachment, self.attachment()) { Ok(()) } else { Err(AccessError::NoHandle) }
    }
}

impl<P: Fabric> Within<'_, P> {
    /// Copies bytes of the region to another one of the same attachment, or to itself.
    pub(crate) fn copy(
        &self,
        offset: u64,
        length: u64,
        position: Position<'_, Lmr<P>>,
    ) -> Result<(), OperationError> {
        let Position { lmr: to, offset: target } = position;
        self.lmr.check(Rights::READ, offset, length)?;
        to.check(Rights::WRITE, target, length)?;
        let until = self.begin()?;
        let copy = |(at, part): (u64, u32), done: u64| {
            let (handle, to) = (self.lmr.opened.handle, to.opened.handle);
            let request =
                ProcessRequest::Copy { handle, offset: offset + at, length: part, to, target: target + at };
            let copied = self.lmr.attachment.call_until(COPY, &request, until, nothing);
            copied.map(|()| done + u64::from(part)).map_err(|failed| after(done, failed))
        };
        let backwards = self.lmr.overlaps_behind(offset, position);
        let mut cuts = parts(length, MAX_CHANGED);
        let copied = if backwards {
            cuts.rev().try_fold(0, |done, part| copy(part, done))
        } else {
            cuts.try_fold(0, |done, part| copy(part, done))
        };
        copied.map(drop)
    }
}
