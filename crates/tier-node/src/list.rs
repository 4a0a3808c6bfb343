//! Lists of operations: scattered bytes of one or several regions, all under way at the same time.

use crate::attempt::{Attempted, Flight, MAX_ATTEMPTED, list_outcome};
use crate::carriers::Carriers;
use crate::error::{ListError, OperationError, RequestError};
use crate::item::{Change, Item, Transfer};
use crate::lmr::Lmr;
use crate::node::Node;
use crate::operate::Turn;
use crate::path::{Deadline, Path};
use crate::paths::{Entered, Granted};
use crate::pool::Taken;
use crate::qos::Class;
use dunlin_fabric::{Atomics, Fabric, Host, Nanos, Work, nanos};
use dunlin_tier::process::MAX_HERE;
use dunlin_tier::process::list::{MAX_LISTED, MAX_LISTED_BYTES};
use dunlin_tier::{AccessError, Kind, NodeId, Operation, Priority};
use std::sync::Arc;
use std::time::Duration;

/// The result of an operation of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done {
    /// The bytes were read or written.
    Moved,
    /// The word was changed, or compared; this is its old value.
    Old(u64),
}

impl Done {
    /// Returns the old value of the word, for an atomic.
    pub fn old(self) -> Option<u64> {
        match self {
            Done::Moved => None,
            Done::Old(old) => Some(old),
        }
    }
}

/// The outcome of each operation of a list, in the order of the list. An operation with an error was not executed, or
/// may have been: [`OperationError::may_have_executed`].
pub type Outcomes = Vec<Result<Done, OperationError>>;

/// An operation of a list.
#[derive(Debug)]
struct Entry<'a, F: Fabric> {
    lmr: &'a Lmr<F>,
    offset: u64,
    transfer: Transfer<'a, F::Memory>,
    /// The outcome, once there is one.
    outcome: Option<Result<Done, OperationError>>,
}

/// A list of operations on regions of one node's handles, at most [`MAX_LISTED`] that move [`MAX_LISTED_BYTES`] bytes
/// (LITE has no lists).
///
/// [`run`](Operations::run) checks the rights and bounds of all operations before it posts any. The operations have no
/// order among each other, and nothing is atomic but each atomic: a read may see a write of the same list, or not.
///
/// ```no_run
/// # use dunlin_tier_node::{Lmr, ListError, Operations};
/// # fn run(index: &Lmr<dunlin_fabric_shm::ShmFabric>, log: &Lmr<dunlin_fabric_shm::ShmFabric>) -> Result<(), ListError> {
/// let (mut left, mut right) = ([0; 64], [0; 64]);
/// let outcomes = Operations::new()
///     .read(index, 0, &mut left)
///     .read(index, 4096, &mut right)
///     .write(log, 128, b"entry")
///     .fetch_add(log, 0, 1)
///     .run()?;
/// for outcome in outcomes {
///     println!("{outcome:?}");
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "a list does nothing until Operations::run"]
pub struct Operations<'a, F: Fabric> {
    entries: Vec<Entry<'a, F>>,
    time: Option<Nanos>,
    /// `None` for the least one of the handles.
    priority: Option<Priority>,
}

impl<F: Fabric> Default for Operations<'_, F> {
    fn default() -> Self {
        Operations { entries: Vec::new(), time: None, priority: None }
    }
}

impl<'a, F: Fabric> Operations<'a, F> {
    /// Makes an empty list.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a read of bytes at `offset`: [`Lmr::read`].
    pub fn read(self, lmr: &'a Lmr<F>, offset: u64, into: &'a mut [u8]) -> Self {
        self.add(lmr, offset, Transfer::Read(into))
    }

    /// Adds a write of bytes at `offset`: [`Lmr::write`].
    pub fn write(self, lmr: &'a Lmr<F>, offset: u64, from: &'a [u8]) -> Self {
        self.add(lmr, offset, Transfer::Write(from))
    }

    /// Adds an addition to the word at `offset`: [`Lmr::fetch_add`].
    pub fn fetch_add(self, lmr: &'a Lmr<F>, offset: u64, add: u64) -> Self {
        self.add(lmr, offset, Transfer::Change(Change::Add(add)))
    }

    /// Adds a swap of the word at `offset`: [`Lmr::compare_swap`].
    pub fn compare_swap(self, lmr: &'a Lmr<F>, offset: u64, expected: u64, swap: u64) -> Self {
        self.add(lmr, offset, Transfer::Change(Change::Swap { expected, swap }))
    }

    fn add(mut self, lmr: &'a Lmr<F>, offset: u64, transfer: Transfer<'a, F::Memory>) -> Self {
        self.entries.push(Entry { lmr, offset, transfer, outcome: None });
        self
    }

    /// Returns the number of operations.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns whether there are no operations.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Sets the time of the whole list, in place of [`TierConfig::timeout`](crate::TierConfig::timeout).
    pub fn within(self, time: Duration) -> Self {
        Operations { time: Some(nanos(time)), ..self }
    }

    /// Sets the priority of the whole list, in place of the least one of its regions' handles.
    pub fn with_priority(self, priority: Priority) -> Self {
        Operations { priority: Some(priority), ..self }
    }

    /// Runs the list. Blocks until all operations are complete, or until the deadline. The list runs with the least
    /// priority of its regions' handles, unless it has [its own](Operations::with_priority).
    ///
    /// # Errors
    /// The list is refused as a whole. Nothing of it was posted.
    pub fn run(mut self) -> Result<Outcomes, ListError> {
        check_list_size(self.entries.iter().map(|entry| entry.transfer.len() as u64))?;
        let Some(first) = self.entries.first() else { return Ok(Vec::new()) };
        let node = Arc::clone(&first.lmr.running.node);
        if let Some(place) =
            self.entries.iter().position(|entry| !Arc::ptr_eq(&node, &entry.lmr.running.node))
        {
            return Err(ListError::OtherTier { place });
        }
        let deadline = Deadline::new(&*node, self.time).map_err(ListError::NotBegun)?;
        let class = class_of(&self.entries, self.priority).map_err(ListError::NotBegun)?;
        node.run_list(&mut self.entries, class, deadline)?;
        Ok(self.outcomes())
    }
}

/// The most operations of a list that the worker runs.
const MAX_ATTEMPTED_LIST: usize = 64;

impl<F: Fabric> Operations<'_, F> {
    /// Runs the list without a wait, if it is a small one.
    pub(crate) fn attempt(mut self, carriers: &mut Carriers<F>) -> Attempted<F, Result<Outcomes, ListError>> {
        let Some(first) = self.entries.first() else { return Attempted::Done(Ok(Vec::new())) };
        let node = Arc::clone(&first.lmr.running.node);
        let by_device = node.fabric.capabilities().atomics.exist();
        let waits = |entry: &Entry<'_, F>| {
            entry.lmr.class.has_limit()
                || (entry.is_atomic() && !by_device)
                || !Arc::ptr_eq(&node, &entry.lmr.running.node)
        };
        if self.entries.len() > MAX_ATTEMPTED_LIST || self.entries.iter().any(waits) {
            return Attempted::Waits;
        }
        let bytes: u64 = self.entries.iter().map(|entry| entry.transfer.len() as u64).sum();
        if bytes > MAX_HERE.into() {
            return Attempted::Waits;
        }
        let mut deadline = match Deadline::new(&*node, self.time) {
            Ok(deadline) => deadline,
            Err(error) => return Attempted::Done(Err(ListError::NotBegun(error))),
        };
        let class = match class_of(&self.entries, self.priority) {
            Ok(Some(class)) => class,
            Ok(None) => return Attempted::Done(Ok(Vec::new())),
            Err(error) => return Attempted::Done(Err(ListError::NotBegun(error))),
        };
        let begun = match node.begin_list(&self.entries) {
            Ok(begun) => begun,
            Err(error) => return Attempted::Done(Err(error)),
        };
        let operations = self.entries.len() as u64;
        let mut pairs = self.entries.iter().zip(&begun);
        if !pairs.any(|(entry, operation)| node.needs_path(entry, operation)) {
            // Nothing is connected without a path.
            if node.run_begun(&mut self.entries, begun, None, &mut deadline).is_err() {
                return Attempted::Waits;
            }
            node.qos.count(class.priority, operations, bytes);
            return Attempted::Done(Ok(self.outcomes()));
        }
        if bytes > MAX_ATTEMPTED {
            node.end_list(begun);
            return Attempted::Waits;
        }
        let pairs = self.entries.iter_mut().zip(&begun);
        let items = pairs
            .map(|(entry, operation)| Item::new(&operation.layout, entry.offset, entry.transfer.reborrow()));
        let mut items: Vec<Item<'_, F::Memory>> = items.collect();
        let posted = carriers.post(&node, &class, bytes, &mut items, false, &mut deadline);
        if posted.is_some() {
            node.qos.count(class.priority, operations, bytes);
        }
        match posted {
            None => {
                drop(items);
                node.end_list(begun);
                Attempted::Waits
            }
            Some((posted, true)) => {
                let outcomes = items.iter_mut().map(list_outcome).collect();
                let uncertain: Vec<_> = items.into_iter().map(|item| item.uncertain).collect();
                posted.end(&node, carriers, true, begun.into_iter().zip(uncertain));
                Attempted::Done(Ok(outcomes))
            }
            Some((posted, false)) => {
                let items = posted.keep(items);
                Attempted::UnderWay(Flight::new(&node, posted, items, begun, deadline))
            }
        }
    }

    /// Returns the outcomes, which all operations have.
    fn outcomes(self) -> Outcomes {
        self.entries.into_iter().filter_map(|entry| entry.outcome).collect()
    }
}

/// Returns the class of a list, unless it is empty: that with the least priority of its regions, or with its own priority.
fn class_of<F: Fabric>(
    entries: &[Entry<'_, F>],
    own: Option<Priority>,
) -> Result<Option<Class>, OperationError> {
    let class = entries.iter().map(|entry| &entry.lmr.class).min_by_key(|class| class.priority);
    match (class, own) {
        (Some(class), Some(own)) if class.priority != own => Ok(Some(class.with_priority(own)?)),
        (class, _) => Ok(class.cloned()),
    }
}

/// Checks the number of operations and of bytes of a list.
pub fn check_list_size(lengths: impl ExactSizeIterator<Item = u64>) -> Result<(), ListError> {
    let count = lengths.len();
    if count > MAX_LISTED {
        return Err(ListError::TooMany { count });
    }
    let bytes = lengths.fold(0u64, u64::saturating_add);
    if bytes > MAX_LISTED_BYTES { Err(ListError::TooLong { bytes }) } else { Ok(()) }
}

impl<F: Fabric> Entry<'_, F> {
    fn is_atomic(&self) -> bool {
        self.transfer.kind() == Kind::Atomic
    }

    fn fail(&mut self, error: OperationError) {
        self.outcome.get_or_insert(Err(error));
    }
}

impl<F: Fabric> Node<F> {
    /// Checks all operations and counts them as in flight; or none, and returns the place of one that is refused.
    fn begin_list(&self, entries: &[Entry<'_, F>]) -> Result<Vec<Operation>, ListError> {
        self.fabric.host().charge(Work::ParseEntry, entries.len() as u32);
        let mut begun = Vec::with_capacity(entries.len());
        let mut state = self.state();
        for (place, Entry { lmr, offset, transfer, .. }) in entries.iter().enumerate() {
            let (kind, length) = (transfer.kind(), transfer.len() as u64);
            let checked = state.handles.begin(lmr.handle, kind, *offset, length).and_then(|operation| {
                let is_cut = kind == Kind::Atomic && operation.layout.word(*offset).is_none();
                begun.push(operation);
                if is_cut { Err(AccessError::Misaligned(*offset)) } else { Ok(()) }
            });
            if let Err(error) = checked {
                drop(state);
                self.end_list(begun);
                return Err(ListError::Refused { place, source: self.refused(lmr.handle, error) });
            }
        }
        Ok(begun)
    }

    fn end_list(&self, begun: Vec<Operation>) {
        begun.into_iter().for_each(|operation| self.end(operation));
    }

    /// Returns whether an operation needs a path.
    fn needs_path(&self, entry: &Entry<'_, F>, operation: &Operation) -> bool {
        match entry.is_atomic() {
            true if !self.fabric.capabilities().atomics.exist() => false,
            true if self.fabric.capabilities().atomics == Atomics::Device => true,
            _ => self.parts(entry, operation).any(|node| node != self.me),
        }
    }

    /// Returns the nodes of the parts of an operation.
    fn parts<'a>(
        &self,
        entry: &Entry<'_, F>,
        operation: &'a Operation,
    ) -> impl Iterator<Item = NodeId> + use<'a, F> {
        let length = entry.transfer.len() as u64;
        operation.layout.cut(entry.offset, length, u32::MAX).map(|cut| cut.node)
    }

    /// Runs a list, and sets the outcome of each operation.
    fn run_list(
        &self,
        entries: &mut [Entry<'_, F>],
        class: Option<Class>,
        mut deadline: Deadline,
    ) -> Result<(), ListError> {
        let host = self.fabric.host();
        if entries.iter().any(|entry| entry.lmr.class.has_limit()) {
            // The wait for a limit must not delay a free.
            self.end_list(self.begin_list(entries)?);
            for (place, entry) in entries.iter().enumerate() {
                let (class, bytes) = (&entry.lmr.class, entry.transfer.len() as u64);
                let admitted = self.qos.admit(host, class, bytes, deadline.left(host));
                admitted.map_err(|source| ListError::Refused { place, source })?;
            }
        }
        let Some(class) = class else { return Ok(()) };
        let (priority, bytes) =
            (class.priority, entries.iter().map(|entry| entry.transfer.len() as u64).sum());
        self.qos.count(priority, entries.len() as u64, bytes);
        let mut turn = Turn::default();
        let mut path = None;
        let ran = self.run_on_path((entries, &class, bytes), &mut deadline, &mut path, &mut turn);
        if let Some(path) = path {
            self.paths.give(path, priority, turn.trip);
        }
        if turn.has_begun {
            self.qos.end(priority);
        }
        ran
    }

    fn run_on_path(
        &self,
        (entries, class, bytes): (&mut [Entry<'_, F>], &Class, u64),
        deadline: &mut Deadline,
        path: &mut Option<Path<F>>,
        turn: &mut Turn,
    ) -> Result<(), ListError> {
        let host = self.fabric.host();
        loop {
            let begun = self.begin_list(entries)?;
            let needs_path =
                entries.iter().zip(&begun).any(|(entry, operation)| self.needs_path(entry, operation));
            if needs_path && path.is_none() {
                let Some(entered) = turn.enter(self, class, bytes) else {
                    self.end_list(begun);
                    host.sleep(turn.pause_until.min(deadline.until(host)));
                    continue;
                };
                if let Entered::Path(Granted { taken: Taken::Value(idle), is_timed }) = entered {
                    // The list goes on with its check: a thread that does not wait delays no free.
                    turn.is_timed |= is_timed;
                    *path = Some(idle);
                } else {
                    self.end_list(begun);
                    let taken = self.finish_taking(entered, class.priority, deadline.until(host));
                    let (taken, is_timed) = taken.map_err(|error| {
                        ListError::NotBegun(match error {
                            RequestError::Busy => OperationError::Busy,
                            error => OperationError::Resources(Box::new(error)),
                        })
                    })?;
                    turn.is_timed |= is_timed;
                    *path = Some(taken);
                    continue;
                }
            }
            turn.start(host, path.is_some());
            let Err(to) = self.run_begun(entries, begun, path.as_mut(), deadline) else {
                turn.stop(self, bytes);
                return Ok(());
            };
            self.connect_for_list(entries, path.as_mut(), to, deadline)?;
        }
    }

    /// Runs the operations without an outcome, all of which have begun.
    ///
    /// # Errors
    /// The path has no connection to this node. Nothing was executed, and no operation is in flight.
    fn run_begun(
        &self,
        entries: &mut [Entry<'_, F>],
        begun: Vec<Operation>,
        path: Option<&mut Path<F>>,
        deadline: &mut Deadline,
    ) -> Result<(), NodeId> {
        let by_device = self.fabric.capabilities().atomics.exist();
        let (mut places, mut items) = (Vec::with_capacity(entries.len()), Vec::with_capacity(entries.len()));
        for (place, (entry, operation)) in entries.iter_mut().zip(&begun).enumerate() {
            if entry.outcome.is_none() && (by_device || !entry.is_atomic()) {
                places.push(place);
                items.push(Item::new(&operation.layout, entry.offset, entry.transfer.reborrow()));
            }
        }
        let mut path = path;
        match &mut path {
            Some(path) => {
                if let Err(to) = path.run(self, &mut items, deadline) {
                    drop(items);
                    self.end_list(begun);
                    return Err(to);
                }
            }
            None => items.iter_mut().for_each(|item| item.copy_here(self)),
        }
        let ended: Vec<_> = items.into_iter().map(|item| (item.value, item.error, item.uncertain)).collect();
        let mut uncertain: Vec<_> = begun.iter().map(|_| None).collect();
        for (place, (value, error, nodes)) in places.into_iter().zip(ended) {
            let entry = &mut entries[place];
            let done = if entry.is_atomic() { Done::Old(value) } else { Done::Moved };
            entry.outcome = Some(error.map_or(Ok(done), Err));
            uncertain[place] = (!nodes.is_empty()).then_some(nodes);
        }
        for (entry, operation) in entries.iter_mut().zip(&begun) {
            if entry.outcome.is_none() {
                entry.outcome = Some(self.change_for_list(entry, operation, deadline).map(Done::Old));
            }
        }
        for (operation, nodes) in begun.into_iter().zip(uncertain) {
            match (&mut path, nodes) {
                (Some(path), Some(nodes)) => path.keep(self, operation, nodes),
                _ => self.end(operation),
            }
        }
        Ok(())
    }

    /// Has the storing node change a word, on a fabric without atomics.
    fn change_for_list(
        &self,
        entry: &Entry<'_, F>,
        operation: &Operation,
        deadline: &mut Deadline,
    ) -> Result<u64, OperationError> {
        let refused = || OperationError::Access(AccessError::Misaligned(entry.offset));
        let (Transfer::Change(change), Some(cut)) = (&entry.transfer, operation.layout.word(entry.offset))
        else {
            return Err(refused());
        };
        let until = deadline.until(self.fabric.host());
        self.change_by_call(&cut, entry.lmr.id, *change, until).map_err(OperationError::as_deadline)
    }

    /// Connects the path to a node. Without a connection, the operations at that node fail, and the others go on.
    fn connect_for_list(
        &self,
        entries: &mut [Entry<'_, F>],
        path: Option<&mut Path<F>>,
        to: NodeId,
        deadline: &mut Deadline,
    ) -> Result<(), ListError> {
        let host = self.fabric.host();
        let until = deadline.until(host);
        let connected = path.map_or(Ok(false), |path| path.connect(self, to, until));
        let mut failure = connected.err();
        if failure.is_some() {
            let begun = self.begin_list(entries)?;
            for (entry, operation) in entries.iter_mut().zip(&begun) {
                if self.needs_path(entry, operation) && self.parts(entry, operation).any(|node| node == to) {
                    let node = self.name_of(to);
                    entry.fail(match failure.take() {
                        Some(source) => self.no_path(to, source),
                        None => OperationError::Skipped { node },
                    });
                }
            }
            self.end_list(begun);
        }
        if host.now() >= until {
            for entry in entries.iter_mut() {
                entry.fail(OperationError::Deadline { node: None, may_have_executed: false });
            }
        }
        Ok(())
    }
}
