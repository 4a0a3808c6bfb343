//! The state of a client after a panic of a thread that led it, or of a closure of its user.

use super::core::{CallId, Core};
use crate::error::Cause;
use dunlin_fabric::Fabric;

impl<F: Fabric> Core<F> {
    /// Ends all lanes as if their connections had broken: a panic may have left one between two states. Their calls are
    /// forgotten, and the caller ends them.
    #[cold]
    pub(crate) fn abandon_lanes(&mut self) {
        for index in self.lane_indices() {
            if let Some(lane) = self.lane(index) {
                lane.slots.clear();
            }
        }
        self.break_lanes();
    }

    /// Ends all lanes as if their connections had broken, after a panic of the closure that was given the result of
    /// `last`: the rest of the message with that result is lost.
    #[cold]
    pub(super) fn closure_has_panicked(&mut self, last: Option<CallId>) {
        last.into_iter().for_each(|id| self.forget(id));
        self.break_lanes();
    }

    fn break_lanes(&mut self) {
        self.lane_indices().for_each(|index| self.break_lane(index, Cause::ConnectionLost));
    }
}
