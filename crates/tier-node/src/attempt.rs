//! Operations without a wait, for the worker of a node (section 6.1: one to four threads post for all processes). The
//! worker posts an operation if nothing has to be waited for, and looks for its completions in its turns.

use crate::error::OperationError;
use crate::item::{Item, Transfer};
use crate::list::{Done, Outcomes};
use crate::node::Node;
use crate::operate::{Target, Turn};
use crate::path::{Deadline, Path};
use crate::qos::Class;
use dunlin_fabric::{Fabric, Host, Memory, Nanos, Work};
use dunlin_tier::process::MAX_HERE;
use dunlin_tier::{AccessError, Kind, Layout, LmrId, NodeId, Operation, Priority};
use std::collections::BTreeSet;

/// The most bytes of operations that the worker posts to other nodes: copying them takes less than a microsecond. The time of longer
/// ones is that of their bytes, and not that of a hand-over to another thread.
pub(crate) const MAX_ATTEMPTED: u64 = 8 << 10;

/// The outcome of an attempt.
#[derive(Debug)]
pub(crate) enum Attempted<F: Fabric, T> {
    /// The operation has ended.
    Done(T),
    /// Parts of it are under way.
    UnderWay(Box<Flight<F>>),
    /// It would have to wait: for a connection, a path, its turn, its limit, or for more completions than a path takes at
    /// a time. Nothing of it was done.
    Waits,
}

/// A path in use by operations for which no thread waits.
#[derive(Debug)]
pub(crate) struct Posted<F: Fabric> {
    path: Path<F>,
    turn: Turn,
    priority: Priority,
    bytes: u64,
    /// The place of the first operation that is not posted yet.
    next: usize,
}

impl<F: Fabric> Posted<F> {
    /// Makes the operations independent of their caller's memory.
    pub(crate) fn keep<'a>(
        &self,
        items: impl IntoIterator<Item = Item<'a, F::Memory>>,
    ) -> Vec<Item<'static, F::Memory>> {
        items.into_iter().enumerate().map(|(place, item)| item.keep(place < self.next)).collect()
    }

    /// Gives the path back.
    fn release(self, node: &Node<F>) {
        node.paths.give(self.path, self.priority, self.turn.trip);
        node.qos.end(self.priority);
    }

    /// Ends the operations, and gives the path back. An operation that may still be under way at nodes stays in flight
    /// until the path has connected to them again.
    pub(crate) fn end(
        mut self,
        node: &Node<F>,
        is_timed: bool,
        ended: impl IntoIterator<Item = (Operation, BTreeSet<NodeId>)>,
    ) {
        if is_timed {
            self.turn.stop(node, self.bytes);
        }
        for (operation, uncertain) in ended {
            match uncertain.is_empty() {
                true => node.end(operation),
                false => self.path.keep(node, operation, uncertain),
            }
        }
        self.release(node);
    }
}

/// Operations that are under way, and for which no thread waits.
#[derive(Debug)]
pub(crate) struct Flight<F: Fabric> {
    posted: Posted<F>,
    items: Vec<Item<'static, F::Memory>>,
    /// One for each item, or one for all of them.
    operations: Vec<Operation>,
    deadline: Deadline,
    until: Nanos,
}

impl<F: Fabric> Flight<F> {
    /// Goes on with operations that were posted as far as it was possible without a wait.
    pub(crate) fn new(
        node: &Node<F>,
        posted: Posted<F>,
        items: Vec<Item<'static, F::Memory>>,
        operations: impl IntoIterator<Item = Operation>,
        mut deadline: Deadline,
    ) -> Box<Self> {
        let until = deadline.until(node.fabric.host());
        Box::new(Flight { posted, items, operations: operations.into_iter().collect(), deadline, until })
    }

    /// Returns the deadline.
    pub(crate) fn until(&self) -> Nanos {
        self.until
    }

    /// Takes the completions that are there; returns whether all parts are over.
    pub(crate) fn advance(&mut self, node: &Node<F>, now: Nanos) -> bool {
        let Flight { posted, items, operations, deadline, until } = self;
        let is_over = posted.path.advance(node, items, now >= *until);
        if posted.next == items.len() {
            return is_over;
        }
        // The rest of a list has to be posted still; there is an operation for each item.
        let mut placed: Vec<Item<'_, F::Memory>> = std::mem::take(items);
        for (item, operation) in placed.iter_mut().zip(&*operations).skip(posted.next) {
            item.place(&operation.layout);
        }
        let is_over = posted.path.post(node, &mut placed, &mut posted.next, false, deadline);
        *items = posted.keep(placed);
        is_over
    }

    /// Ends an operation whose parts are over. Returns its outcome, and the bytes that it read.
    pub(crate) fn end_one(self, node: &Node<F>) -> (Result<u64, OperationError>, Vec<u8>) {
        let Flight { posted, mut items, operations, .. } = self;
        let bytes = items.first_mut().map(|item| item.transfer.take_kept()).unwrap_or_default();
        let (outcome, uncertain) = merge(items);
        let uncertain = std::iter::once(uncertain).chain(std::iter::repeat_with(BTreeSet::new));
        posted.end(node, outcome.is_ok(), operations.into_iter().zip(uncertain));
        (outcome, bytes)
    }

    /// Ends a list whose parts are over. Returns the bytes of its reads, and the outcomes.
    pub(crate) fn end_list(self, node: &Node<F>) -> (Vec<u8>, Outcomes) {
        let Flight { posted, items, operations, .. } = self;
        let (mut bytes, mut outcomes) = (Vec::new(), Vec::with_capacity(items.len()));
        let mut uncertain = Vec::with_capacity(items.len());
        for mut item in items {
            bytes.append(&mut item.transfer.take_kept());
            let (outcome, nodes) = list_outcome(item);
            outcomes.push(outcome);
            uncertain.push(nodes);
        }
        posted.end(node, true, operations.into_iter().zip(uncertain));
        (bytes, outcomes)
    }

    /// Gives up the parts that are under way: they may be executed.
    pub(crate) fn abandon(mut self, node: &Node<F>) {
        self.advance(node, Nanos::MAX);
        if self.operations.len() == self.items.len() {
            drop(self.end_list(node));
        } else {
            drop(self.end_one(node));
        }
    }
}

/// Returns the outcome of an operation with several parts in sequence.
fn merge<'a, M: Memory>(
    items: impl IntoIterator<Item = Item<'a, M>>,
) -> (Result<u64, OperationError>, BTreeSet<NodeId>) {
    let (mut outcome, mut uncertain) = (Ok(0), BTreeSet::new());
    for mut item in items {
        uncertain.append(&mut item.uncertain);
        if outcome.is_ok() {
            outcome = item.error.map_or(Ok(item.value), Err);
        }
    }
    (outcome, uncertain)
}

/// Returns the outcome of an operation of a list.
pub(crate) fn list_outcome<M: Memory>(item: Item<'_, M>) -> (Result<Done, OperationError>, BTreeSet<NodeId>) {
    let done = match item.transfer.kind() {
        Kind::Atomic => Done::Old(item.value),
        Kind::Read | Kind::Write => Done::Moved,
    };
    (item.error.map_or(Ok(done), Err), item.uncertain)
}

/// The outcome of an attempt with an operation that is in flight.
#[expect(clippy::large_enum_variant, reason = "most operations are posted, and a box would be an allocation")]
enum Begun<F: Fabric> {
    Done(Result<u64, OperationError>),
    /// Posted; and whether all parts are over.
    Posted(Posted<F>, bool),
    Waits,
}

impl<F: Fabric> Node<F> {
    /// Posts operations that may go now; `None` if they would wait. Also returns whether all were posted, and all parts are
    /// over.
    pub(crate) fn post(
        &self,
        class: &Class,
        bytes: u64,
        items: &mut [Item<'_, F::Memory>],
        is_sequence: bool,
        deadline: &mut Deadline,
    ) -> Option<(Posted<F>, bool)> {
        let host = self.fabric.host();
        let (path, turn) = Turn::take(self, class, bytes)?;
        let mut posted = Posted { path, turn, priority: class.priority, bytes, next: 0 };
        if !posted.path.is_ready(self, items, is_sequence) || !self.qos.try_admit(host, class, bytes) {
            posted.release(self);
            return None;
        }
        posted.turn.start(host, true);
        let is_over = posted.path.post(self, items, &mut posted.next, is_sequence, deadline);
        Some((posted, is_over))
    }

    /// Reads, writes or changes bytes of a region without a wait.
    pub(crate) fn attempt(
        &self,
        target: Target<'_>,
        owner: LmrId,
        offset: u64,
        transfer: Transfer<'_, F::Memory>,
    ) -> Attempted<F, Result<u64, OperationError>> {
        let (kind, length) = (transfer.kind(), transfer.len() as u64);
        self.attempt_sequence(target, owner, kind, (offset, length), [(offset, transfer)])
    }

    /// Writes bytes, and then a word, without a wait.
    pub(crate) fn attempt_notify(
        &self,
        target: Target<'_>,
        owner: LmrId,
        (offset, bytes): (u64, &[u8]),
        (word_offset, word): (u64, &[u8; 8]),
    ) -> Attempted<F, Result<u64, OperationError>> {
        let parts = [(offset, Transfer::Write(bytes)), (word_offset, Transfer::Write(word))];
        self.attempt_sequence(target, owner, Kind::Write, (offset, bytes.len() as u64), parts)
    }

    fn attempt_sequence<const N: usize>(
        &self,
        target: Target<'_>,
        owner: LmrId,
        kind: Kind,
        (offset, length): (u64, u64),
        parts: [(u64, Transfer<'_, F::Memory>); N],
    ) -> Attempted<F, Result<u64, OperationError>> {
        if length > MAX_HERE.into() {
            return Attempted::Waits;
        }
        let host = self.fabric.host();
        let mut deadline = match Deadline::new(self, target.time) {
            Ok(deadline) => deadline,
            Err(error) => return Attempted::Done(Err(error)),
        };
        host.charge(Work::ParseEntry, 1);
        let begun = self.state().handles.begin(target.handle, kind, offset, length);
        let operation = match begun {
            Ok(operation) => operation,
            Err(error) => return Attempted::Done(Err(self.refused(target.handle, error))),
        };
        let mut items = parts.map(|(offset, transfer)| Item::new(&operation.layout, offset, transfer));
        let begun =
            self.attempt_begun(target.class, owner, length, &operation.layout, &mut items, &mut deadline);
        match begun {
            Begun::Done(outcome) => {
                drop(items);
                self.end(operation);
                Attempted::Done(outcome)
            }
            Begun::Waits => {
                drop(items);
                self.end(operation);
                Attempted::Waits
            }
            Begun::Posted(posted, true) => {
                let (outcome, uncertain) = merge(items);
                posted.end(self, outcome.is_ok(), [(operation, uncertain)]);
                Attempted::Done(outcome)
            }
            Begun::Posted(posted, false) => {
                let items = posted.keep(items);
                Attempted::UnderWay(Flight::new(self, posted, items, [operation], deadline))
            }
        }
    }

    fn attempt_begun(
        &self,
        class: &Class,
        owner: LmrId,
        length: u64,
        layout: &Layout,
        items: &mut [Item<'_, F::Memory>],
        deadline: &mut Deadline,
    ) -> Begun<F> {
        let (host, capabilities) = (self.fabric.host(), self.fabric.capabilities());
        if let [item] = items
            && let Transfer::Change(change) = item.transfer
        {
            let Some(cut) = layout.word(item.offset()) else {
                return Begun::Done(Err(AccessError::Misaligned(item.offset()).into()));
            };
            if !capabilities.atomics.exist() {
                if cut.node != self.me || !self.qos.try_admit(host, class, length) {
                    return Begun::Waits;
                }
                self.qos.count(class.priority, 1, length);
                return Begun::Done(self.change_by_call(&cut, owner, change, deadline.until(host)));
            }
        }
        if items.iter().all(|item| !item.needs_path(self)) {
            if !self.qos.try_admit(host, class, length) {
                return Begun::Waits;
            }
            self.qos.count(class.priority, 1, length);
            // An atomic is one item.
            let mut value = 0;
            for item in items {
                item.copy_here(self);
                if let Some(error) = item.error.take() {
                    return Begun::Done(Err(error));
                }
                value = item.value;
            }
            return Begun::Done(Ok(value));
        }
        if length > MAX_ATTEMPTED {
            return Begun::Waits;
        }
        let is_sequence = items.len() > 1;
        // The order of several WRITEs is that of one queue pair, if the fabric keeps it.
        if is_sequence && !(capabilities.in_order_write && self.is_on_one_other(items)) {
            return Begun::Waits;
        }
        match self.post(class, length, items, is_sequence, deadline) {
            Some((posted, is_over)) => {
                self.qos.count(class.priority, 1, length);
                Begun::Posted(posted, is_over)
            }
            None => Begun::Waits,
        }
    }

    /// Returns whether all bytes are on one other node.
    fn is_on_one_other(&self, items: &[Item<'_, F::Memory>]) -> bool {
        let mut nodes = items.iter().flat_map(Item::nodes);
        let first = nodes.next();
        first.is_some_and(|first| first != self.me && nodes.all(|node| node == first))
    }
}
