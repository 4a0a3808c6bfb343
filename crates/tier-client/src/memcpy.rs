//! Copies between regions, cut into requests.

use crate::lmr::Lmr;
use crate::tier::Tier;
use crate::within::{Within, after, nothing, parts};
use dunlin_fabric::Fabric;
use dunlin_tier::process::{COPY, MAX_CHANGED, ProcessRequest};
use dunlin_tier::{AccessError, Rights};
use dunlin_tier_node::{OperationError, Position};
use std::sync::Arc;

dunlin_tier_node::memcpy_methods!(
    Tier,
    Lmr,
    Within,
    Fabric,
    "More than 4 MiB are several requests. Blocks until [`AttachConfig::timeout`](crate::AttachConfig::timeout) at most."
);

impl<P: Fabric> Lmr<P> {
    /// Returns whether a copy from `offset` to a position runs backwards, for ranges that may overlap.
    pub(crate) fn overlaps_behind(&self, offset: u64, to: Position<'_, Lmr<P>>) -> bool {
        self.opened.region == to.lmr.opened.region && to.offset > offset
    }
}

impl<P: Fabric> Tier<P> {
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
