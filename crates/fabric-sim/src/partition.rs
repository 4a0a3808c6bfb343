//! Partitions: messages between a machine that is cut off and the others wait for the end of the cut.

use crate::links::LinkSide;
use crate::queues::QueuePair;
use crate::state::{Rare, State};
use dunlin_fabric::{Nanos, Transport};

/// The time after which a reliable queue pair gives up a message that does not arrive, in nanoseconds: of the order of an
/// RNIC's retries with short timeouts.
pub const RETRIES_LAST: Nanos = 4_000_000;

impl State {
    /// Returns the end of the cut between two machines; 0 for none.
    pub(crate) fn cut_between(&self, one: u32, other: u32) -> Nanos {
        if !self.has_cuts || one == other {
            return 0;
        }
        let until = |machine: u32| self.machines.get(machine as usize).map_or(0, |machine| machine.cut_until);
        let end = until(one).max(until(other));
        if end > self.now() { end } else { 0 }
    }

    /// Returns the end of the cut between a queue pair and its remote one; 0 for none.
    pub(crate) fn cut_of(&self, queue_pair: u32, remote: u32) -> Nanos {
        let machine = |number| self.network.queue_pairs.get(number).map(|pair| pair.place.machine);
        match (machine(queue_pair), machine(remote)) {
            (Some(one), Some(other)) => self.cut_between(one, other),
            _ => 0,
        }
    }

    /// Returns the arrival of an answer at a queue pair whose time the model has computed. One that a cut holds up arrives
    /// after it.
    #[inline]
    pub(crate) fn past_cut(&mut self, to: u32, answer: Option<Nanos>) -> Option<Nanos> {
        if !self.has_cuts {
            return answer;
        }
        let (at, end) = (answer?, self.cut_of_connected(to));
        if end == 0 {
            return answer;
        }
        self.give_up_behind_cut(to, end);
        Some(end + at.saturating_sub(self.now()))
    }

    /// Returns the end of the cut between a reliable queue pair and the one that it is connected with; 0 for none.
    pub(crate) fn cut_of_connected(&self, queue_pair: u32) -> Nanos {
        let reliable = |pair: &&QueuePair| pair.transport == Transport::ReliableConnection;
        let pair = self.network.queue_pairs.get(queue_pair).filter(reliable);
        let remote = pair.and_then(|pair| pair.remote);
        remote.map_or(0, |remote| self.cut_of(queue_pair, remote))
    }

    /// Returns the end of the cut between the two sides of a link; 0 for none.
    pub(crate) fn cut_of_link(&self, at: LinkSide) -> Nanos {
        let process = |side| self.network.links.side(LinkSide { side, ..at }).map(|side| side.process);
        match (process(0), process(1)) {
            (Some(one), Some(other)) => self.cut_of_processes(one, other),
            _ => 0,
        }
    }

    /// Returns the end of the cut between the machines of two processes; 0 for none.
    pub(crate) fn cut_of_processes(&self, one: u32, other: u32) -> Nanos {
        let machine =
            |process: u32| self.processes.get(process as usize).map_or(0, |process| process.machine);
        self.cut_between(machine(one), machine(other))
    }

    /// Has a reliable queue pair give up if the cut that holds its message up lasts for too long.
    pub(crate) fn give_up_behind_cut(&mut self, queue_pair: u32, end: Nanos) {
        let over = self.now() + RETRIES_LAST;
        if end > over {
            self.schedule(over, Rare::Break { at: queue_pair });
        }
    }
}
