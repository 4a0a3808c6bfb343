//! The paths on which the worker of a node has operations under way (LITE section 6.1: one to four threads post for all
//! processes, over K queue pairs to each node). Operations of one priority share a path as long as nobody waits for one.

use crate::item::Item;
use crate::node::Node;
use crate::operate::Turn;
use crate::path::{Deadline, Path};
use crate::posts::ROOM;
use crate::qos::Class;
use dunlin_fabric::{AnyWaker, Fabric, Nanos};
use dunlin_tier::{Operation, Priority};
use std::collections::BTreeSet;

/// Requests on a path from which on further operations wait for the doorbell of the worker's turn. With fewer under way the
/// device has time, and a request that waits only comes late: eight threads that each wait for their operation do a
/// quarter less if all of their requests wait (docs/results/predicted-lite.md).
const GATHER_FROM: usize = 8;

/// An operation, or a list, on a path.
#[derive(Debug)]
pub(crate) struct Posted {
    path: u16,
    pub(crate) flight: u64,
    turn: Turn,
    priority: Priority,
    bytes: u64,
    /// The place of the first operation that is not posted yet.
    pub(crate) next: usize,
}

#[derive(Debug)]
struct Carrier<F: Fabric> {
    path: Box<Path<F>>,
    priority: Priority,
    flights: usize,
}

/// The paths that the worker has taken.
#[derive(Debug)]
pub(crate) struct Carriers<F: Fabric>(Vec<Carrier<F>>);

impl<F: Fabric> Carriers<F> {
    pub(crate) fn new() -> Self {
        Carriers(Vec::new())
    }

    /// Posts operations that may go now; `None` if they would wait. Also returns whether all were posted, and all parts are
    /// over. Requests to other nodes may wait for [`ring`](Carriers::ring).
    pub(crate) fn post(
        &mut self,
        node: &Node<F>,
        class: &Class,
        bytes: u64,
        items: &mut [Item<'_, F::Memory>],
        is_sequence: bool,
        deadline: &mut Deadline,
    ) -> Option<(Posted, bool)> {
        let (path, flight, turn) = match self.join(node, class, items, is_sequence) {
            Some(joined) => joined,
            None => self.begin(node, class, bytes, items, is_sequence)?,
        };
        let mut posted = Posted { path, flight, turn, priority: class.priority, bytes, next: 0 };
        let host = node.fabric.host();
        if !node.qos.try_admit(host, class, bytes) {
            posted.end(node, self, false, []);
            return None;
        }
        posted.turn.start(host, true);
        let path = self.path(&posted)?;
        let is_quiet = path.room() > ROOM - GATHER_FROM;
        let is_over = path.post(node, items, &mut posted.next, is_sequence, deadline);
        if is_quiet {
            path.ring();
        }
        Some((posted, is_over))
    }

    /// Adds a flight to a path that the worker has.
    fn join(
        &mut self,
        node: &Node<F>,
        class: &Class,
        items: &mut [Item<'_, F::Memory>],
        is_sequence: bool,
    ) -> Option<(u16, u64, Turn)> {
        let priority = class.priority;
        for carrier in self.0.iter_mut().filter(|carrier| carrier.priority == priority) {
            let Some(flight) = carrier.path.ready(node, items, is_sequence) else { continue };
            let turn = Turn::join(node, class)?;
            carrier.flights += 1;
            return Some((carrier.path.number(), flight, turn));
        }
        None
    }

    /// Takes another path.
    fn begin(
        &mut self,
        node: &Node<F>,
        class: &Class,
        bytes: u64,
        items: &mut [Item<'_, F::Memory>],
        is_sequence: bool,
    ) -> Option<(u16, u64, Turn)> {
        let (mut path, turn) = Turn::take(node, class, bytes)?;
        let (number, priority) = (path.number(), class.priority);
        let Some(flight) = path.ready(node, items, is_sequence) else {
            node.paths.give(path, priority, None);
            node.qos.end(priority);
            return None;
        };
        self.0.push(Carrier { path, priority, flights: 1 });
        Some((number, flight, turn))
    }

    /// Returns the path of a flight, which is then its current one.
    pub(crate) fn path(&mut self, posted: &Posted) -> Option<&mut Path<F>> {
        let carrier = self.0.iter_mut().find(|carrier| carrier.path.number() == posted.path)?;
        carrier.path.select(posted.flight);
        Some(&mut carrier.path)
    }

    /// Posts the requests that wait, with one doorbell for each path and node.
    pub(crate) fn ring(&mut self) {
        self.0.iter_mut().for_each(|carrier| carrier.path.ring());
    }

    /// Takes the completions that are there.
    pub(crate) fn poll(&mut self) {
        self.0.iter_mut().for_each(|carrier| carrier.path.poll());
    }

    /// Has the next completion wake the worker, if the fabric can do that. Returns the time at which the worker has to
    /// poll in any case: at once if it cannot. [`poll`](Carriers::poll) afterwards.
    pub(crate) fn arm(&mut self, worker: &AnyWaker) -> Nanos {
        self.0.iter_mut().map(|carrier| carrier.path.arm(worker)).min().unwrap_or(Nanos::MAX)
    }
}

impl Posted {
    /// Makes the operations independent of their caller's memory.
    pub(crate) fn keep<'a, M: dunlin_fabric::Memory>(
        &self,
        items: impl IntoIterator<Item = Item<'a, M>>,
    ) -> Vec<Item<'static, M>> {
        items.into_iter().enumerate().map(|(place, item)| item.keep(place < self.next)).collect()
    }

    /// Ends the operations; the last of a path gives it back. An operation that may still be under way at nodes stays in
    /// flight until the path has connected to them again.
    pub(crate) fn end<F: Fabric>(
        mut self,
        node: &Node<F>,
        carriers: &mut Carriers<F>,
        is_timed: bool,
        ended: impl IntoIterator<Item = (Operation, BTreeSet<dunlin_tier::NodeId>)>,
    ) {
        if is_timed {
            self.turn.stop(node, self.bytes);
        }
        let place = carriers.0.iter().position(|carrier| carrier.path.number() == self.path);
        for (operation, uncertain) in ended {
            match place {
                Some(place) if !uncertain.is_empty() => {
                    carriers.0[place].path.keep(node, operation, uncertain);
                }
                _ => node.end(operation),
            }
        }
        if let Some(place) = place {
            carriers.0[place].flights -= 1;
            match carriers.0[place].flights {
                0 => {
                    let mut path = carriers.0.swap_remove(place).path;
                    path.disarm();
                    node.paths.give(path, self.priority, self.turn.trip);
                }
                _ => node.paths.part(self.priority, self.turn.trip),
            }
        }
        node.qos.end(self.priority);
    }
}
