//! Requests of separate calls that leave under one doorbell, as FaSST and HERD post them.

use super::{Core, HEALTH_EVERY};
use crate::error::Cause;
use crate::path::Cx;
use dunlin_fabric::Fabric;

/// Requests are held.
#[derive(Debug)]
pub(crate) struct Holding {
    /// The number of the last poll.
    ticks: u32,
}

impl<F: Fabric> Core<F> {
    /// Holds the requests of further calls on the lanes that can post several together: until
    /// [`release`](Core::release), or until the client looks for answers.
    pub(crate) fn hold(&mut self) -> Holding {
        let before = Holding { ticks: self.ticks };
        for index in 0..self.lanes.len() {
            if let Some(lane) = self.lanes[index].as_mut().filter(|lane| lane.tx.gathers()) {
                lane.tx.hold(true);
                // The next look for answers includes the infrequent checks, which post what is held.
                self.check_soon();
            }
        }
        before
    }

    /// Posts the requests that are held.
    pub(crate) fn release(&mut self, before: Holding) {
        if self.ticks.wrapping_add(1).is_multiple_of(HEALTH_EVERY) {
            // Nobody has looked.
            self.ticks = before.ticks;
        }
        self.post_held();
    }

    /// Posts the requests that were held, and those that found no room then.
    pub(super) fn post_held(&mut self) {
        for index in 0..self.lanes.len() {
            let Some(lane) = self.lanes[index].as_mut().filter(|lane| lane.tx.gathers()) else { continue };
            let mut cx = Cx { fabric: &self.fabric, domain: &mut self.domain };
            if lane.tx.post_held(&mut cx).is_err() {
                self.break_lane(index as u16, Cause::ConnectionLost);
            }
        }
    }
}
