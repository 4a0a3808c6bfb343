//! The end of single lanes, while the connection and its other lanes go on.

use super::Worker;
use crate::path::grants::end_grants;
use crate::server::lane::ServerLane;
use dunlin_fabric::{Fabric, Host, Link, Nanos, QueuePairState, RegionKey, ThreadDomain};
use dunlin_wire::handshake::{Drained, Record, RefusalCode};

/// A lane that answers after its client closed it ends after this time without work, in nanoseconds: its last
/// answers then have arrived.
const QUIET: Nanos = 20_000_000;
/// A lane ends after this time at the latest, in nanoseconds. Calls that are not answered then are dropped.
const PATIENCE: Nanos = 1_000_000_000;
/// Lanes whose state is checked at once.
const HEALTH_AT_ONCE: usize = 256;

/// A lane that its client has closed.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClosingLane {
    index: u16,
    /// The lane's serial number.
    serial: u32,
    /// When the lane ends at the latest.
    until: Nanos,
    /// The lane does not end before this time; 0 as long as it has had no work since its client closed it.
    busy_until: Nanos,
}

impl<F: Fabric> Worker<F> {
    /// Begins to close a lane at its client's request. The lane serves the messages that have arrived, and ends
    /// when it has no work left.
    pub(super) fn begin_closing(&mut self, session: u64, number: u16, link: &F::Link) {
        let mut lanes = self.lanes.iter().flatten();
        let Some(lane) = lanes.find(|lane| lane.session() == session && lane.number() == number) else {
            // It broke, or it could not be opened.
            let text = "the lane has ended already";
            return super::open::refuse_with(link, number, RefusalCode::UNKNOWN_LANE, text);
        };
        let until = self.fabric.host().now().saturating_add(PATIENCE);
        self.closing.push(ClosingLane { index: lane.index, serial: lane.serial(), until, busy_until: 0 });
        self.ending = true;
    }

    /// Advances the end of lanes, and of a worker that drains. Returns the number of messages of the round, of
    /// which `handled` were taken before.
    #[cold]
    pub(super) fn end_lanes(&mut self, handled: usize) -> usize {
        let handled = handled + self.close_lanes();
        if let Some(until) = self.drain_until {
            self.drain(until, handled);
        }
        self.ending = self.drain_until.is_some() || !self.closing.is_empty();
        handled
    }

    /// Serves the lanes that are being closed, and ends those without work. Returns the number of messages.
    fn close_lanes(&mut self) -> usize {
        if self.closing.is_empty() {
            return 0;
        }
        // Messages that arrive as completions are taken before a lane counts as quiet.
        let mut handled = self.poll(self.receive_completions);
        let mut closing = std::mem::take(&mut self.closing);
        closing.retain_mut(|closing| {
            let index = usize::from(closing.index);
            if self.lanes[index].as_ref().is_none_or(|lane| lane.serial() != closing.serial) {
                return false;
            }
            let served = self.serve_lane(index);
            handled += served;
            let Some(lane) = self.lanes[index].as_ref().filter(|lane| lane.serial() == closing.serial) else {
                return false;
            };
            let now = self.fabric.host().now();
            let busy = served > 0 || lane.more || !lane.is_quiet() || lane.transfers.are_exported();
            if busy {
                closing.busy_until = now.saturating_add(QUIET);
            }
            if now < closing.until && (busy || now < closing.busy_until) {
                return true;
            }
            self.end_closed(closing.index);
            false
        });
        closing.append(&mut self.closing);
        self.closing = closing;
        handled
    }

    /// Ends a lane that its client has closed, and reports the last message taken.
    fn end_closed(&mut self, index: u16) {
        let Some(Some(lane)) = self.lanes.get(usize::from(index)) else { return };
        let (link, number, taken) = (lane.link().clone(), lane.number(), lane.rx.sequence());
        tracing::debug!(target: "dunlin::server", worker = self.number, lane = index, session = lane.session(), "a lane is closed by its client");
        self.give_back(index);
        if let Ok(mark) = Record::Drained(Drained { lane: number, taken }).encode()
            && link.send(&mark).is_err()
        {
            link.close();
        }
    }

    /// Removes lanes that broke without a completion; checks a bounded number of lanes at a time.
    pub(super) fn check_health(&mut self) {
        let ready = |queue_pair| self.domain.state(queue_pair) == Some(QueuePairState::Ready);
        if self.unconnected.as_ref().is_some_and(|pair| !ready(pair.queue_pair)) {
            self.unconnected_broke();
        }
        let lanes = self.lanes.len();
        for _ in 0..lanes.min(HEALTH_AT_ONCE) {
            self.checked = (self.checked + 1) % lanes;
            let index = self.checked;
            let Some(lane) = &self.lanes[index] else { continue };
            let ready = |queue_pair| self.domain.state(queue_pair) == Some(QueuePairState::Ready);
            if !ready(lane.queue_pair) || !lane.beside().is_none_or(ready) {
                self.give_back(index as u16);
            }
        }
    }

    /// Removes a lane whose connection goes on, and ends the grants of its memory.
    pub(super) fn give_back(&mut self, index: u16) {
        let Some(Some(lane)) = self.lanes.get(usize::from(index)) else { return };
        let (link, keys) = (lane.link().clone(), lane.granted_keys());
        self.remove(index);
        end_grants(self.fabric.host(), &link, keys);
    }
}

impl<F: Fabric> ServerLane<F> {
    /// Returns the keys of all memory that the client may access.
    fn granted_keys(&self) -> Vec<RegionKey> {
        let mut keys: Vec<RegionKey> = self.granted().collect();
        keys.extend(self.transfers.keys());
        keys
    }
}
