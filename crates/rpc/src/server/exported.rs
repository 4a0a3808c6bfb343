//! Large results, built in registered memory of their lane.

use super::telling::Telling;
use crate::path::pieces::{Filling, PIECE};
use crate::path::rendezvous::Pool;
use crate::service::LargeReply;
use dunlin_fabric::{Buffer, Fabric};

/// Large results of a worker, in registered memory of the lane.
pub(super) struct Exported<'a, F: Fabric> {
    pub(super) fabric: &'a F,
    pub(super) pool: &'a mut Pool<F>,
    pub(super) buffer: Option<Buffer<F::Memory>>,
    /// Sends progress messages while a result is filled, if the lane allows them.
    pub(super) telling: Option<Telling<'a, F>>,
}

impl<F: Fabric> LargeReply for Exported<'_, F> {
    fn resize(&mut self, length: usize) -> bool {
        if self.telling.as_ref().is_some_and(Telling::is_announced) {
            return self.bytes().len() == length;
        }
        if self.buffer.as_mut().is_some_and(|buffer| buffer.set_length(length)) {
            return true;
        }
        let Ok(mut larger) = self.pool.reserve(self.fabric, length) else { return false };
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
            self.buffer = self.pool.reserve_to_fill(self.fabric, length).ok();
            return self.buffer.is_some();
        }
        self.resize(length)
    }

    fn fill(&mut self, length: usize) -> Option<(&mut [u8], Option<&mut dyn Filling>)> {
        if self.telling.is_none() || self.buffer.is_some() || length <= PIECE {
            return self.resize_to_fill(length).then(|| (self.bytes(), None));
        }
        let telling = self.telling.as_mut()?;
        let slow_lately = telling.tuner.is_slow_lately();
        let (buffer, past) = self.pool.reserve_in_turn(self.fabric, length, slow_lately).ok()?;
        telling.begin(self.pool.descriptor(&buffer), past);
        Some((self.buffer.insert(buffer), Some(telling)))
    }
}
