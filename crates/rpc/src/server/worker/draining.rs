//! The end of a worker.

use super::Worker;
use dunlin_fabric::{Fabric, Host, Link, Nanos};
use dunlin_wire::handshake::{Drained, Record};

/// A draining worker ends after this time without messages, in nanoseconds.
const DRAIN_QUIET: Nanos = 20_000_000;

impl<F: Fabric> Worker<F> {
    /// Ends a draining worker when its lanes are quiet or the time is up, and reports the last message taken
    /// on each lane.
    pub(super) fn drain(&mut self, until: Nanos, handled: usize) {
        let now = self.fabric.host().now();
        if handled > 0 {
            self.last_message = now;
        }
        let quiet =
            self.lanes.iter().flatten().all(|lane| lane.is_quiet()) && now >= self.last_message + DRAIN_QUIET;
        if !quiet && now < until {
            return;
        }
        for index in 0..self.lanes.len() {
            let Some(lane) = &mut self.lanes[index] else { continue };
            let mark = Record::Drained(Drained { lane: lane.number(), taken: lane.rx.sequence() });
            if let Ok(mark) = mark.encode() {
                let _ = lane.link().send(&mark);
            }
        }
        for index in 0..self.lanes.len() {
            self.remove(index as u16);
        }
        self.ended = true;
    }
}
