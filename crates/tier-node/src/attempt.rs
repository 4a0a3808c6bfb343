//! Operations without a wait, for the worker of a node (section 6.1: one to four threads post for all processes). The
//! worker posts an operation if nothing has to be waited for, and looks for its completions in its turns. Its
//! [`Carriers`](crate::carriers::Carriers) are the paths that these operations share.

use crate::carriers::{Carriers, Posted};
use crate::error::OperationError;
use crate::item::{Item, Transfer};
use crate::list::{Done, Outcomes};
use crate::node::Node;
use crate::operate::Target;
use crate::path::Deadline;
use crate::posts::Part;
use dunlin_fabric::{Fabric, Host, Memory, Nanos, Work};
use dunlin_tier::process::MAX_HERE;
use dunlin_tier::{AccessError, Kind, Layout, LmrId, NodeId, Operation};
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

/// Operations that are under way, and for which no thread waits.
#[derive(Debug)]
pub(crate) struct Flight<F: Fabric> {
    posted: Posted,
    items: Vec<Item<'static, F::Memory>>,
    /// One for each item, or one for all of them.
    operations: Vec<Operation>,
    deadline: Deadline,
    until: Nanos,
    /// The caller has its answer.
    is_answered: bool,
}

impl<F: Fabric> Flight<F> {
    /// Goes on with operations that were posted as far as it was possible without a wait.
    pub(crate) fn new(
        node: &Node<F>,
        posted: Posted,
        items: Vec<Item<'static, F::Memory>>,
        operations: impl IntoIterator<Item = Operation>,
        mut deadline: Deadline,
    ) -> Box<Self> {
        let until = deadline.until(node.fabric.host());
        let operations = operations.into_iter().collect();
        Box::new(Flight { posted, items, operations, deadline, until, is_answered: false })
    }

    /// Returns the deadline of the answer; once the caller has that, the deadline of the requests under way.
    pub(crate) fn until(&self) -> Nanos {
        self.until
    }

    /// Ends parts that have completions, and posts further operations of a list; returns whether all parts are over. Gives
    /// up the connections whose requests have no completion by the second deadline.
    pub(crate) fn advance(&mut self, node: &Node<F>, carriers: &mut Carriers<F>, now: Nanos) -> bool {
        let Flight { posted, items, operations, deadline, until, is_answered } = self;
        let Some(path) = carriers.path(posted) else { return true };
        let is_over = path.advance(node, items, *is_answered && now >= *until);
        if posted.next == items.len() {
            return is_over;
        }
        // The rest of a list has to be posted still; there is an operation for each item.
        let mut placed: Vec<Item<'_, F::Memory>> = std::mem::take(items);
        for (item, operation) in placed.iter_mut().zip(&*operations).skip(posted.next) {
            item.place(&operation.layout);
        }
        let is_over = path.post(node, &mut placed, &mut posted.next, false, deadline);
        *items = posted.keep(placed);
        is_over
    }

    /// Ends the operations for their caller, whose deadline has passed. Parts that are under way have `time` more: others
    /// share their connections.
    pub(crate) fn expire(&mut self, node: &Node<F>, carriers: &mut Carriers<F>, time: Nanos) {
        let Flight { posted, items, until, is_answered, .. } = self;
        if let Some(path) = carriers.path(posted) {
            for Part { item, node: to, .. } in path.under_way() {
                let node = Some(node.name_of(to));
                items[item].fail(OperationError::Deadline { node, may_have_executed: true });
            }
        }
        for item in items.iter_mut().skip(posted.next) {
            item.fail(OperationError::Deadline { node: None, may_have_executed: item.is_begun });
        }
        posted.next = items.len();
        (*until, *is_answered) = (until.saturating_add(time), true);
    }

    /// Returns whether the caller has its answer.
    pub(crate) fn is_answered(&self) -> bool {
        self.is_answered
    }

    /// Returns the outcome of an operation that has ended for its caller, and the bytes that it read.
    pub(crate) fn outcome(&mut self) -> (Result<u64, OperationError>, Vec<u8>) {
        let bytes = self.items.first_mut().map(|item| item.transfer.take_kept()).unwrap_or_default();
        let value = self.items.first().map_or(0, |item| item.value);
        let error = self.items.iter_mut().find_map(|item| item.error.take());
        (error.map_or(Ok(value), Err), bytes)
    }

    /// Returns the bytes of a list's reads, and its outcomes, after it has ended for its caller.
    pub(crate) fn outcomes(&mut self) -> (Vec<u8>, Outcomes) {
        let mut bytes = Vec::new();
        let outcomes = self.items.iter_mut().map(|item| {
            bytes.append(&mut item.transfer.take_kept());
            list_outcome(item)
        });
        let outcomes = outcomes.collect();
        (bytes, outcomes)
    }

    /// Ends operations whose parts are over.
    pub(crate) fn end(self, node: &Node<F>, carriers: &mut Carriers<F>) {
        let Flight { posted, items, operations, is_answered, .. } = self;
        let mut uncertain: Vec<BTreeSet<NodeId>> = items.into_iter().map(|item| item.uncertain).collect();
        if operations.len() < uncertain.len() {
            uncertain = vec![uncertain.into_iter().flatten().collect()];
        }
        let is_timed = !is_answered && uncertain.iter().all(BTreeSet::is_empty);
        posted.end(node, carriers, is_timed, operations.into_iter().zip(uncertain));
    }

    /// Gives up the parts that are under way: they may be executed.
    pub(crate) fn abandon(mut self, node: &Node<F>, carriers: &mut Carriers<F>) {
        let now = node.fabric.host().now();
        self.expire(node, carriers, 0);
        self.until = now;
        self.advance(node, carriers, now);
        self.end(node, carriers);
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
pub(crate) fn list_outcome<M: Memory>(item: &mut Item<'_, M>) -> Result<Done, OperationError> {
    let done = match item.transfer.kind() {
        Kind::Atomic => Done::Old(item.value),
        Kind::Read | Kind::Write => Done::Moved,
    };
    item.error.take().map_or(Ok(done), Err)
}

/// The outcome of an attempt with an operation that is in flight.
enum Begun {
    Done(Result<u64, OperationError>),
    /// Posted; and whether all parts are over.
    Posted(Posted, bool),
    Waits,
}

impl<F: Fabric> Node<F> {
    /// Reads, writes or changes bytes of a region without a wait.
    pub(crate) fn attempt(
        &self,
        carriers: &mut Carriers<F>,
        target: Target<'_>,
        owner: LmrId,
        offset: u64,
        transfer: Transfer<'_, F::Memory>,
    ) -> Attempted<F, Result<u64, OperationError>> {
        let (kind, length) = (transfer.kind(), transfer.len() as u64);
        self.attempt_sequence(carriers, target, owner, kind, (offset, length), [(offset, transfer)])
    }

    /// Writes bytes, and then a word, without a wait.
    pub(crate) fn attempt_notify(
        &self,
        carriers: &mut Carriers<F>,
        target: Target<'_>,
        owner: LmrId,
        (offset, bytes): (u64, &[u8]),
        (word_offset, word): (u64, &[u8; 8]),
    ) -> Attempted<F, Result<u64, OperationError>> {
        let parts = [(offset, Transfer::Write(bytes)), (word_offset, Transfer::Write(word))];
        self.attempt_sequence(carriers, target, owner, Kind::Write, (offset, bytes.len() as u64), parts)
    }

    fn attempt_sequence<const N: usize>(
        &self,
        carriers: &mut Carriers<F>,
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
        let what = (target, owner, length);
        let begun = self.attempt_begun(carriers, what, &operation.layout, &mut items, &mut deadline);
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
                posted.end(self, carriers, outcome.is_ok(), [(operation, uncertain)]);
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
        carriers: &mut Carriers<F>,
        (target, owner, length): (Target<'_>, LmrId, u64),
        layout: &Layout,
        items: &mut [Item<'_, F::Memory>],
        deadline: &mut Deadline,
    ) -> Begun {
        let (host, capabilities, class) = (self.fabric.host(), self.fabric.capabilities(), target.class);
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
        if length > target.at_once {
            return Begun::Waits;
        }
        let is_sequence = items.len() > 1;
        // The order of several WRITEs is that of one queue pair, if the fabric keeps it.
        if is_sequence && !(capabilities.in_order_write && self.is_on_one_other(items)) {
            return Begun::Waits;
        }
        match carriers.post(self, class, length, items, is_sequence, deadline) {
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
