//! Large results, built in registered memory of their lane.

use super::pipelined_reply::PipelinedReply;
use super::transfers::LaneTransfers;
use crate::path::large::{EarlyPayload, PayloadWriter, Pool};
use crate::service::LargeReply;
use dunlin_fabric::{Buffer, Fabric};

/// Large results of a worker, in registered memory of the lane.
pub(super) struct Exported<'a, F: Fabric> {
    fabric: &'a F,
    transfers: &'a mut LaneTransfers<F>,
    pub(super) buffer: Option<Buffer<F::Memory>>,
    /// Sends progress messages while a result is filled, if the lane allows them.
    pub(super) pipelined: Option<PipelinedReply<'a, F>>,
}

impl<'a, F: Fabric> Exported<'a, F> {
    /// Returns a result that has no memory yet.
    #[inline(always)]
    pub(super) fn new(fabric: &'a F, transfers: &'a mut LaneTransfers<F>) -> Self {
        Exported { fabric, transfers, buffer: None, pipelined: None }
    }

    fn pool(&mut self) -> &mut Pool<F> {
        &mut self.transfers.make().exports
    }
}

impl<F: Fabric> LargeReply for Exported<'_, F> {
    fn resize(&mut self, length: usize) -> bool {
        if self.pipelined.as_ref().is_some_and(PipelinedReply::is_announced) {
            return self.bytes().len() == length;
        }
        if self.buffer.as_mut().is_some_and(|buffer| buffer.set_length(length)) {
            return true;
        }
        let fabric = self.fabric;
        let Ok(mut larger) = self.pool().reserve(fabric, length) else { return false };
        if let Some(old) = &self.buffer {
            larger[..old.len()].copy_from_slice(old);
        }
        self.buffer = Some(larger);
        true
    }

    fn bytes(&mut self) -> &mut [u8] {
        self.buffer.as_deref_mut().unwrap_or_default()
    }

    fn resize_to_fill(&mut self, length: usize) -> bool {
        if self.buffer.is_none() {
            let fabric = self.fabric;
            self.buffer = self.pool().reserve_to_fill(fabric, length).ok();
            return self.buffer.is_some();
        }
        self.resize(length)
    }

    fn fill(&mut self, length: usize) -> Option<(&mut [u8], Option<&mut dyn PayloadWriter>)> {
        if self.pipelined.is_none() || self.buffer.is_some() || !self.transfers.leave_early(length) {
            return self.resize_to_fill(length).then(|| (self.bytes(), None));
        }
        let pipelined = self.pipelined.as_mut()?;
        let (buffer, payload) =
            EarlyPayload::reserve(&mut self.transfers.make().exports, self.fabric, length).ok()?;
        pipelined.told.payload = payload;
        Some((self.buffer.insert(buffer), Some(pipelined)))
    }
}
