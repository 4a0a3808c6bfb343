//! The end of single lanes of a client, while their connection and its other lanes go on.

use super::core::Core;
use super::lane::ClientLane;
use crate::error::Cause;
use crate::path::grants::end_grants;
use dunlin_fabric::{Fabric, Link, RegionKey};
use dunlin_wire::handshake::Record;

/// A lane that is being closed.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClosingLane {
    pub(super) index: u16,
    /// The server was asked to close its end.
    asked: bool,
    /// Queue pairs and grants are released.
    released: bool,
}

impl<F: Fabric> Core<F> {
    /// Closes one lane; the others of its connection go on. No effect on a lane that is broken or closed already.
    ///
    /// The lane takes no more calls. When all its calls have ended, the server is asked to give its end back;
    /// then the lane's queue pairs, memory and grants are released. The lane is removed, and its index free for
    /// another one, when its results were collected too. Never blocks: [`progress`](Core::progress) advances it.
    #[cfg_attr(not(test), expect(dead_code, reason = "lanes that threads share are closed one by one"))]
    pub(crate) fn close_lane(&mut self, index: u16) {
        if !self.is_usable(index) {
            return;
        }
        if let Some(lane) = self.lane(index) {
            (lane.draining, lane.closing) = (true, true);
        }
        self.closing.push(ClosingLane { index, asked: false, released: false });
        self.advance_closing();
    }

    /// Advances the lanes that are being closed. Returns the number of those that are not removed yet.
    #[cold]
    pub(crate) fn advance_closing(&mut self) -> usize {
        let mut closing = std::mem::take(&mut self.closing);
        closing.retain_mut(|closing| !self.closed(closing));
        closing.append(&mut self.closing);
        self.closing = closing;
        self.closing.len()
    }

    /// Advances one lane. Returns whether it is removed.
    fn closed(&mut self, closing: &mut ClosingLane) -> bool {
        let index = closing.index;
        // An open batch that found no room before.
        let _ = self.flush(index);
        let Some(lane) = self.lane(index) else { return true };
        if !closing.asked && lane.broken.is_none() && lane.is_idle() {
            closing.asked = true;
            // The end of the connection is noticed below.
            if let Ok(record) = (Record::CloseLane { lane: lane.number }).encode() {
                let _ = lane.link.send(&record);
            }
        }
        if closing.asked && !closing.released {
            self.read_control(index);
        }
        let Some(lane) = self.lane(index) else { return true };
        // The server's end may be gone before its record arrives.
        let over = match closing.asked {
            true => lane.taken.is_some() || !lane.link.is_alive(),
            false => lane.broken.is_some(),
        };
        if over && !closing.released {
            let (link, keys) = (lane.link.clone(), lane.granted_keys());
            self.break_lane(index, Cause::Closed);
            end_grants(self.fabric.host(), &link, keys);
            closing.released = true;
        }
        if !closing.released || !self.is_spent(index) {
            return false;
        }
        self.remove(index);
        true
    }
}

impl<F: Fabric> ClientLane<F> {
    /// Returns whether no call is in flight, and the server has every message that it waits for.
    fn is_idle(&self) -> bool {
        self.slots.in_flight() == 0
            && self.batch.is_empty()
            && self.reading == 0
            && self.releases.is_empty()
            && self.pending_transfers.is_empty()
    }

    /// Returns the keys of all memory that the server may access.
    fn granted_keys(&self) -> Vec<RegionKey> {
        let keys = self.exports.keys().chain(self.inbound.keys());
        std::iter::once(self.granted).chain(self.tx.staged_key()).chain(keys).collect()
    }
}

#[cfg(test)]
mod tests;
