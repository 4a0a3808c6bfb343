//! Credits of the worker's lanes between messages: redistributions, and grants to clients that are silent.

use super::Worker;
use crate::path::Cx;
use dunlin_fabric::Fabric;

impl<F: Fabric> Worker<F> {
    /// Redistributes the active queue pairs at the end of an interval. Sends credits on lanes whose queue pair has
    /// become active again, because their clients do not ask. The infrequent checks call this.
    #[inline]
    pub(super) fn look_at_activity(&mut self) {
        let activity = &self.dispatcher.shared.activity;
        activity.look(self.dispatcher.clock.last());
        let activations = activity.activations();
        if activations != self.activations {
            self.activations = activations;
            self.grant_again();
        }
    }

    #[cold]
    fn grant_again(&mut self) {
        for index in 0..self.lanes.len() {
            let Some(lane) = &mut self.lanes[index] else { continue };
            if !lane.credits.as_mut().is_some_and(|credits| credits.look_again()) {
                continue;
            }
            if lane.send_credits(&mut Cx::of(&self.fabric, &mut self.domain)).is_err() {
                self.remove(index as u16);
            }
        }
    }
}
