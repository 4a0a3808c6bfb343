//! Lists of operations: scattered bytes of one or several regions, all under way at the same time.

use crate::attempt::{Attempted, Flight, MAX_ATTEMPTED, list_outcome};
use crate::buffer::{Buffer, range_within};
use crate::carriers::Carriers;
use crate::error::{BufferError, ListError, OperationError, RequestError};
use crate::item::{Change, Item, Transfer};
use crate::lmr::Lmr;
use crate::memcpy::{Position, check_target};
use crate::node::Node;
use crate::operate::Turn;
use crate::path::{Deadline, Path};
use crate::paths::{Entered, Granted};
use crate::pool::Taken;
use crate::qos::Class;
use crate::within::Within;
use dunlin_fabric::{Atomics, Fabric, Host, Loan, Nanos, Work, nanos};
use dunlin_tier::process::MAX_HERE;
use dunlin_tier::process::list::{MAX_LISTED, MAX_LISTED_BYTES};
use dunlin_tier::{AccessError, Kind, NodeId, Operation, Priority};
use std::ops::RangeBounds;
use std::sync::Arc;
use std::time::Duration;

/// The result of an operation of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done {
    /// The bytes were read, written, set or copied.
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

/// The caller's side of an operation of a list.
#[derive(Debug)]
enum Action<'a, F: Fabric> {
    Move(Transfer<'a, F::Memory>),
    /// Sets bytes to a value, by a command.
    Set {
        length: u64,
        value: u8,
    },
    /// Copies bytes to a position, by a command.
    Copy {
        length: u64,
        to: Position<'a, Lmr<F>>,
    },
}

impl<F: Fabric> Action<'_, F> {
    fn len(&self) -> u64 {
        match self {
            Action::Move(transfer) => transfer.len() as u64,
            Action::Set { length, .. } | Action::Copy { length, .. } => *length,
        }
    }

    fn kind(&self) -> Kind {
        match self {
            Action::Move(transfer) => transfer.kind(),
            Action::Set { .. } => Kind::Write,
            Action::Copy { .. } => Kind::Read,
        }
    }

    /// Returns the caller's side of an operation that is no command.
    fn transfer(&mut self) -> Option<Transfer<'_, F::Memory>> {
        if let Action::Move(transfer) = self { Some(transfer.reborrow()) } else { None }
    }
}

/// An operation of a list.
#[derive(Debug)]
struct Entry<'a, F: Fabric> {
    lmr: &'a Lmr<F>,
    offset: u64,
    action: Action<'a, F>,
    /// The outcome, once there is one.
    outcome: Option<Result<Done, OperationError>>,
}

/// A list of operations on regions of one node's handles, at most [`MAX_LISTED`] that move, set and copy
/// [`MAX_LISTED_BYTES`] bytes (LITE has no lists).
///
/// [`run`](Operations::run) checks the rights and bounds of all operations before it begins any. Reads, writes and atomics
/// have no order among each other, and nothing is atomic but each atomic: a read may see a write of the same list, or not.
/// `memset` and `memcpy` are commands to the nodes that store the bytes: they follow when the others are complete, one after
/// the other, in the order of the list.
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
    // Dropped before the loans: no range is left then that a device does not have.
    entries: Vec<Entry<'a, F>>,
    /// Buffers that the device reads and writes in place.
    loans: Vec<Loan<'a, F::Memory>>,
    /// The first operation that cannot be one, and why.
    wrong: Option<(usize, OperationError)>,
    time: Option<Nanos>,
    /// `None` for the least one of the handles.
    priority: Option<Priority>,
}

impl<F: Fabric> Default for Operations<'_, F> {
    fn default() -> Self {
        Operations { entries: Vec::new(), loans: Vec::new(), wrong: None, time: None, priority: None }
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

    /// Adds a setting of `length` bytes at `offset`: [`Lmr::memset`].
    pub fn memset(self, lmr: &'a Lmr<F>, offset: u64, length: u64, value: u8) -> Self {
        self.add_action(lmr, offset, Action::Set { length, value })
    }

    /// Adds a copy of `length` bytes: [`Tier::memcpy`](crate::Tier::memcpy).
    pub fn memcpy(self, to: Position<'a, Lmr<F>>, from: Position<'a, Lmr<F>>, length: u64) -> Self {
        self.add_action(from.lmr, from.offset, Action::Copy { length, to })
    }

    fn in_place(
        mut self,
        buffer: &'a mut Buffer<F>,
        parts: impl IntoIterator<Item = (&'a Lmr<F>, u64, impl RangeBounds<usize>)>,
        is_write: bool,
    ) -> Self {
        let transfer = if is_write { Transfer::WriteFrom } else { Transfer::ReadInto };
        let size = buffer.len();
        let mut parts = parts.into_iter().peekable();
        let Some((first, ..)) = parts.peek() else { return self };
        let place = self.entries.len();
        let loan = match buffer.lend(&first.running.node, ..) {
            Ok(loan) => loan,
            Err(error) => {
                self.wrong.get_or_insert((place, error.into()));
                return self;
            }
        };
        for (lmr, offset, range) in parts {
            let place = self.entries.len();
            let part = range_within(&range, size).map(|(start, length)| loan.range().part(start, length));
            match part {
                Ok(Some(part)) => self = self.add(lmr, offset, transfer(part)),
                Ok(None) => {
                    let outside = BufferError::Outside { start: 0, end: size, size };
                    self.wrong.get_or_insert((place, outside.into()));
                }
                Err(error) => {
                    self.wrong.get_or_insert((place, error.into()));
                }
            }
        }
        self.loans.push(loan);
        self
    }

    pub(crate) fn add(self, lmr: &'a Lmr<F>, offset: u64, transfer: Transfer<'a, F::Memory>) -> Self {
        self.add_action(lmr, offset, Action::Move(transfer))
    }

    fn add_action(mut self, lmr: &'a Lmr<F>, offset: u64, action: Action<'a, F>) -> Self {
        self.entries.push(Entry { lmr, offset, action, outcome: None });
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
    pub fn run(self) -> Result<Outcomes, ListError> {
        check_list_size(self.entries.iter().map(|entry| entry.action.len()))?;
        self.run_bounded()
    }

    /// As [`run`](Operations::run), for a list whose size is bounded already.
    pub(crate) fn run_bounded(mut self) -> Result<Outcomes, ListError> {
        if let Some((place, source)) = self.wrong.take() {
            return Err(ListError::Refused { place, source });
        }
        let Some(first) = self.entries.first() else { return Ok(Vec::new()) };
        let node = Arc::clone(&first.lmr.running.node);
        let is_own = |lmr: &Lmr<F>| Arc::ptr_eq(&node, &lmr.running.node);
        let of_other = |entry: &Entry<'_, F>| match &entry.action {
            Action::Copy { to, .. } => !is_own(entry.lmr) || !is_own(to.lmr),
            _ => !is_own(entry.lmr),
        };
        if let Some(place) = self.entries.iter().position(of_other) {
            return Err(ListError::OtherTier { place });
        }
        let deadline = Deadline::new(&*node, self.time).map_err(ListError::NotBegun)?;
        let class = class_of(&self.entries, self.priority).map_err(ListError::NotBegun)?;
        node.run_list(&mut self.entries, class, deadline)?;
        Ok(self.outcomes())
    }
}

/// Makes the methods that add operations with buffers to lists, by `Operations::in_place`.
#[doc(hidden)]
#[macro_export]
macro_rules! in_place_lists {
    ($a:lifetime, [$($generics:tt)*] $operations:ty, $lmr:ty, $buffer:ty) => {
        impl<$a, $($generics)*> $operations {
            /// Adds a read of bytes at `offset` into a range of a buffer, in place: [`Lmr::read_into`]. A buffer or a
            /// range that cannot be used refuses the list.
            pub fn read_into(
                self,
                lmr: &$a $lmr,
                offset: u64,
                into: &$a mut $buffer,
                range: impl std::ops::RangeBounds<usize>,
            ) -> Self {
                let range = (range.start_bound().cloned(), range.end_bound().cloned());
                self.in_place(into, [(lmr, offset, range)], false)
            }

            /// Adds a write of the bytes of a range of a buffer at `offset`, in place: [`Lmr::write_from`]. A buffer or a
            /// range that cannot be used refuses the list.
            pub fn write_from(
                self,
                lmr: &$a $lmr,
                offset: u64,
                from: &$a mut $buffer,
                range: impl std::ops::RangeBounds<usize>,
            ) -> Self {
                let range = (range.start_bound().cloned(), range.end_bound().cloned());
                self.in_place(from, [(lmr, offset, range)], true)
            }

            /// Adds a read for each range of a buffer: the bytes at an offset of a region, into that range. As
            /// [`read_into`](Operations::read_into). Bytes of ranges that overlap are those of one of the reads.
            pub fn read_into_each(
                self,
                into: &$a mut $buffer,
                reads: impl IntoIterator<Item = (&$a $lmr, u64, std::ops::Range<usize>)>,
            ) -> Self {
                self.in_place(into, reads, false)
            }

            /// Adds a write for each range of a buffer: its bytes, to an offset of a region. As
            /// [`write_from`](Operations::write_from).
            pub fn write_from_each(
                self,
                from: &$a mut $buffer,
                writes: impl IntoIterator<Item = (&$a $lmr, u64, std::ops::Range<usize>)>,
            ) -> Self {
                self.in_place(from, writes, true)
            }
        }
    };
}

in_place_lists!('a, [F: Fabric] Operations<'a, F>, Lmr<F>, Buffer<F>);

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
                || entry.is_command()
                || (entry.is_atomic() && !by_device)
                || !Arc::ptr_eq(&node, &entry.lmr.running.node)
        };
        if self.entries.len() > MAX_ATTEMPTED_LIST || self.entries.iter().any(waits) {
            return Attempted::Waits;
        }
        let bytes: u64 = self.entries.iter().map(|entry| entry.action.len()).sum();
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
        let items = pairs.filter_map(|(entry, operation)| {
            Some(Item::new(&operation.layout, entry.offset, entry.action.transfer()?))
        });
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
        self.action.kind() == Kind::Atomic
    }

    /// Returns whether nodes that store the bytes carry it out, by a command.
    fn is_command(&self) -> bool {
        !matches!(self.action, Action::Move(_))
    }

    fn fail(&mut self, error: OperationError) {
        self.outcome.get_or_insert(Err(error));
    }

    /// Carries out a command.
    fn command(&self, priority: Priority, time: Nanos) -> Result<(), OperationError> {
        let within = Within { lmr: self.lmr, time: Some(time), class: None }.with_priority(priority)?;
        match &self.action {
            Action::Set { length, value } => within.memset(self.offset, *length, *value),
            Action::Copy { length, to } => within.copy(self.offset, *length, *to),
            Action::Move(_) => Ok(()),
        }
    }
}

impl<F: Fabric> Node<F> {
    /// Checks all operations and counts them as in flight; or none, and returns the place of one that is refused.
    fn begin_list(&self, entries: &[Entry<'_, F>]) -> Result<Vec<Operation>, ListError> {
        self.fabric.host().charge(Work::ParseEntry, entries.len() as u32);
        let mut begun = Vec::with_capacity(entries.len());
        let mut state = self.state();
        for (place, Entry { lmr, offset, action, .. }) in entries.iter().enumerate() {
            let (kind, length) = (action.kind(), action.len());
            let checked = state.handles.begin(lmr.handle, kind, *offset, length).and_then(|operation| {
                let is_cut = kind == Kind::Atomic && operation.layout.word(*offset).is_none();
                begun.push(operation);
                if is_cut { Err(AccessError::Misaligned(*offset)) } else { Ok(()) }
            });
            let checked = checked.map_err(|error| (lmr.handle, error)).and_then(|()| match action {
                Action::Copy { length, to } => {
                    let target = to.lmr.handle;
                    check_target(&state.handles, *to, *length).map(drop).map_err(|error| (target, error))
                }
                _ => Ok(()),
            });
            if let Err((handle, error)) = checked {
                drop(state);
                self.end_list(begun);
                return Err(ListError::Refused { place, source: self.refused(handle, error) });
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
            _ if entry.is_command() => false,
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
        let length = entry.action.len();
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
            // A command counts when it begins.
            for (place, entry) in entries.iter().enumerate().filter(|(_, entry)| !entry.is_command()) {
                let (class, bytes) = (&entry.lmr.class, entry.action.len());
                let admitted = self.qos.admit(host, class, bytes, deadline.left(host));
                admitted.map_err(|source| ListError::Refused { place, source })?;
            }
        }
        let Some(class) = class else { return Ok(()) };
        let priority = class.priority;
        let moved = entries.iter().filter(|entry| !entry.is_command()).map(|entry| entry.action.len());
        let (operations, bytes) = moved.fold((0, 0), |(count, bytes), length| (count + 1, bytes + length));
        self.qos.count(priority, operations, bytes);
        let mut turn = Turn::default();
        let mut path = None;
        let ran = self.run_on_path((entries, &class, bytes), &mut deadline, &mut path, &mut turn);
        if let Some(path) = path {
            self.paths.give(path, priority, turn.trip);
        }
        if turn.has_begun {
            self.qos.end(priority);
        }
        ran?;
        // Without the path: a node that copies needs one of its own, and may wait for a node that waits for this one.
        for entry in entries.iter_mut().filter(|entry| entry.is_command()) {
            if entry.outcome.is_none() {
                let time = deadline.left(host);
                entry.outcome = Some(entry.command(priority, time).map(|()| Done::Moved));
            }
        }
        Ok(())
    }

    fn run_on_path(
        &self,
        (entries, class, bytes): (&mut [Entry<'_, F>], &Class, u64),
        deadline: &mut Deadline,
        path: &mut Option<Box<Path<F>>>,
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
            let Err(to) = self.run_begun(entries, begun, path.as_deref_mut(), deadline) else {
                turn.stop(self, bytes);
                return Ok(());
            };
            self.connect_for_list(entries, path.as_deref_mut(), to, deadline)?;
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
            let by_call = entry.is_atomic() && !by_device;
            if entry.outcome.is_none()
                && !by_call
                && let Some(transfer) = entry.action.transfer()
            {
                places.push(place);
                items.push(Item::new(&operation.layout, entry.offset, transfer));
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
            if entry.outcome.is_none() && !entry.is_command() {
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
        let (Action::Move(Transfer::Change(change)), Some(cut)) =
            (&entry.action, operation.layout.word(entry.offset))
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
