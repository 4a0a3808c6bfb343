//! A path: one thread's means to read and write regions on all nodes. A thread takes a path for one operation, posts
//! the parts, waits until all are complete, and gives the path back.

use crate::connection::{Connection, DEPTH};
use crate::error::{ConnectError, OperationError, RequestError};
use crate::node::Node;
use dunlin_fabric::Work;
use dunlin_fabric::{
    Access, Arena, Completion, CompletionQueueId, CompletionStatus, Data, Fabric, Host, Link, Nanos,
    Operation, PostError, RemoteSlice, ThreadDomain, WaitMode, Wake, WorkId, WorkRequest, nanos,
};
use dunlin_tier::{Cut, Layout, NodeId};
use std::collections::BTreeSet;

/// Polls between two reads of the clock.
const POLLS_AT_ONCE: u32 = 64;

/// The length from which a write from a staging buffer has a short first part, in bytes: the rest is copied while that
/// part is under way.
const SPLIT: usize = 16 << 10;
/// The share of the first part. Copying is several times as fast as the network.
const FIRST_PART: usize = 8;

/// The caller's side of an operation.
pub(crate) enum Transfer<'a> {
    Read(&'a mut [u8]),
    Write(&'a [u8]),
}

impl Transfer<'_> {
    pub(crate) fn len(&self) -> usize {
        match self {
            Transfer::Read(into) => into.len(),
            Transfer::Write(from) => from.len(),
        }
    }
}

/// A change of a word.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Change {
    Add(u64),
    Swap { expected: u64, swap: u64 },
}

/// The reason why a path stops.
pub(crate) enum Stop {
    /// There is no connection to this node: connect, and begin again with the check of the handle.
    Connect(NodeId),
    /// The operation failed. Operations at `uncertain` may still be under way.
    Failed { error: OperationError, uncertain: BTreeSet<NodeId> },
}

impl Stop {
    /// A failure after which nothing is under way on a path.
    pub(crate) fn failed(error: impl Into<OperationError>) -> Stop {
        Stop::Failed { error: error.into(), uncertain: BTreeSet::new() }
    }
}

/// A deadline whose time is read when it is first needed: most operations end before.
#[derive(Debug)]
pub(crate) struct Deadline {
    timeout: Nanos,
    until: Option<Nanos>,
}

impl Deadline {
    pub(crate) fn of<F: Fabric>(node: &Node<F>) -> Deadline {
        Deadline { timeout: nanos(node.config.timeout), until: None }
    }

    pub(crate) fn until(&mut self, host: &impl Host) -> Nanos {
        *self.until.get_or_insert_with(|| host.now().saturating_add(self.timeout))
    }
}

/// A part that is in flight.
#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    busy: bool,
    peer: u16,
    /// The position in the caller's buffer, and the length.
    at: usize,
    length: usize,
}

/// An operation of which parts may still be under way at these nodes.
#[derive(Debug)]
struct Unfinished {
    operation: dunlin_tier::Operation,
    nodes: BTreeSet<NodeId>,
}

#[derive(Debug)]
pub(crate) struct Path<F: Fabric> {
    number: u16,
    fabric: F,
    domain: F::Domain,
    completions: CompletionQueueId,
    staging: Arena<F::Memory>,
    max_inline: usize,
    step: u32,
    peers: Vec<Option<Connection<F>>>,
    unfinished: Vec<Unfinished>,
    found: Vec<Completion<F::Memory>>,
    slots: [Slot; DEPTH],
    in_flight: usize,
    /// The number of the current operation, so that completions of earlier ones are recognized.
    serial: u64,
    /// The old value of the last atomic.
    value: u64,
    failure: Option<OperationError>,
    uncertain: BTreeSet<NodeId>,
}

impl<F: Fabric> Path<F> {
    pub(crate) fn new(node: &Node<F>, number: u16) -> Result<Self, RequestError> {
        let fabric = node.fabric.clone();
        let mut domain = fabric.domain()?;
        let completions = domain.create_completion_queue(4 * DEPTH as u32, false)?;
        let capabilities = fabric.capabilities();
        let step = node.config.step.min(capabilities.max_message);
        let bytes = (DEPTH as u64 * u64::from(step.next_power_of_two())).max(64 << 10);
        let memory = fabric.register(bytes, Access::LOCAL)?;
        let Ok(staging) = Arena::new(memory) else { return Err(RequestError::Busy) };
        Ok(Path {
            number,
            domain,
            completions,
            staging,
            max_inline: capabilities.max_inline as usize,
            step,
            peers: node.config.nodes.iter().map(|_| None).collect(),
            unfinished: Vec::new(),
            found: Vec::with_capacity(2 * DEPTH),
            slots: [Slot::default(); DEPTH],
            in_flight: 0,
            serial: 0,
            value: 0,
            failure: None,
            uncertain: BTreeSet::new(),
            fabric,
        })
    }

    /// Connects to a node unless there is a connection. Returns whether this node's knowledge of that node is new: a
    /// region must not be mapped by an answer that is older. Blocks until `until` at most.
    pub(crate) fn connect(&mut self, node: &Node<F>, to: NodeId, until: Nanos) -> Result<bool, ConnectError> {
        if let Some(Some(connection)) = self.peers.get(usize::from(to.0))
            && connection.link.is_alive()
        {
            return Ok(false);
        }
        self.disconnect(to);
        let ends = (self.number, to);
        let (connection, known) = Connection::open(node, &mut self.domain, self.completions, ends, until)?;
        let changed = {
            let mut state = node.state();
            let state = &mut *state;
            let changed = state.known[usize::from(to.0)] != Some(known);
            if state.known[usize::from(to.0)].replace(known).is_some_and(|before| before != known) {
                // That node ended meanwhile, or fenced this one: its old memory is out of reach for good.
                let lost = state.handles.lose(to);
                tracing::warn!(target: "dunlin::tier", node = %to, lost, "regions are gone with their node, or by its fence");
            }
            changed
        };
        for unfinished in &mut self.unfinished {
            unfinished.nodes.remove(&to);
        }
        while let Some(at) = self.unfinished.iter().position(|one| one.nodes.is_empty()) {
            node.end(self.unfinished.swap_remove(at).operation);
        }
        self.peers[usize::from(to.0)] = Some(connection);
        Ok(changed)
    }

    fn disconnect(&mut self, from: NodeId) {
        if let Some(connection) = self.peers.get_mut(usize::from(from.0)).and_then(Option::take) {
            connection.close(&mut self.domain);
        }
    }

    /// Keeps an operation as in flight until the path has connected to `nodes` again: only then does nothing that was
    /// posted arrive there any more.
    pub(crate) fn keep(&mut self, operation: dunlin_tier::Operation, nodes: BTreeSet<NodeId>) {
        self.unfinished.push(Unfinished { operation, nodes });
    }

    /// Reads or writes bytes at `offset` of a region; the caller has checked the range. Blocks until all parts are
    /// complete, or until the deadline.
    pub(crate) fn transfer(
        &mut self,
        node: &Node<F>,
        layout: &Layout,
        offset: u64,
        transfer: &mut Transfer<'_>,
        deadline: &mut Deadline,
    ) -> Result<(), Stop> {
        self.begin();
        let length = transfer.len() as u64;
        let mut missing = None;
        let mut longest = match transfer {
            Transfer::Write(from) if from.len() >= SPLIT => {
                let first = (from.len() / FIRST_PART).next_multiple_of(4096);
                u32::try_from(first).map_or(self.step, |first| first.min(self.step))
            }
            _ => self.step,
        };
        for cut in layout.cut(offset, length, self.step) {
            if cut.node == node.me {
                if !copy_local(node, &cut, transfer) {
                    self.failure = Some(OperationError::Place { node: node.name_of(cut.node) });
                }
            } else if !self.is_connected(cut.node) {
                missing = Some(cut.node);
            } else {
                let mut cut = cut;
                while cut.length > 0 && self.failure.is_none() {
                    let part = Cut { length: cut.length.min(longest), ..cut };
                    longest = self.step;
                    while self.in_flight == DEPTH && self.failure.is_none() {
                        self.reap(node, transfer, deadline);
                    }
                    if self.failure.is_none() {
                        self.post_part(node, &part, transfer);
                    }
                    cut.length -= part.length;
                    cut.offset += u64::from(part.length);
                    cut.at += u64::from(part.length);
                }
            }
            if missing.is_some() || self.failure.is_some() {
                break;
            }
        }
        self.finish(node, transfer, deadline)?;
        // The caller begins again: a part that is done twice by one synchronous operation does no harm.
        missing.map_or(Ok(()), |missing| Err(Stop::Connect(missing)))
    }

    /// Changes a word by an atomic of the device, also on this node: atomics of a device are not atomic with those of
    /// processors.
    pub(crate) fn atomic(
        &mut self,
        node: &Node<F>,
        cut: &Cut,
        change: Change,
        deadline: &mut Deadline,
    ) -> Result<u64, Stop> {
        self.begin();
        let Some(Some(connection)) = self.peers.get(usize::from(cut.node.0)) else {
            return Err(Stop::Connect(cut.node));
        };
        if !connection.link.is_alive() {
            return Err(Stop::Connect(cut.node));
        }
        let (key, offset) = (connection.key, cut.offset);
        let operation = match change {
            Change::Add(add) => Operation::FetchAdd { key, offset, add },
            Change::Swap { expected, swap } => Operation::CompareSwap { key, offset, expected, swap },
        };
        let slot = Slot { busy: true, peer: cut.node.0, at: 0, length: 0 };
        self.post(node, slot, operation);
        self.finish(node, &mut Transfer::Write(&[]), deadline)?;
        Ok(self.value)
    }

    fn begin(&mut self) {
        self.serial += 1;
        self.in_flight = 0;
        self.slots = [Slot::default(); DEPTH];
        self.failure = None;
        self.uncertain.clear();
    }

    fn is_connected(&self, to: NodeId) -> bool {
        matches!(self.peers.get(usize::from(to.0)), Some(Some(connection)) if connection.link.is_alive())
    }

    /// Waits for all parts in flight, also after a failure: what is not known to be over counts as uncertain.
    fn finish(
        &mut self,
        node: &Node<F>,
        transfer: &mut Transfer<'_>,
        deadline: &mut Deadline,
    ) -> Result<(), Stop> {
        while self.in_flight > 0 {
            self.reap(node, transfer, deadline);
        }
        match self.failure.take() {
            None => Ok(()),
            Some(error) => Err(Stop::Failed { error, uncertain: std::mem::take(&mut self.uncertain) }),
        }
    }

    fn post_part(&mut self, node: &Node<F>, cut: &Cut, transfer: &Transfer<'_>) {
        let Some(Some(connection)) = self.peers.get(usize::from(cut.node.0)) else { return };
        let (at, length, key) = (cut.at as usize, cut.length as usize, connection.key);
        if cut.extent != 0
            || cut.offset > connection.length
            || u64::from(cut.length) > connection.length - cut.offset
        {
            // A wrong record must not break the connection that others use.
            self.failure = Some(OperationError::Place { node: node.name_of(cut.node) });
            return;
        }
        let slot = Slot { busy: true, peer: cut.node.0, at, length };
        let offset = cut.offset;
        match transfer {
            Transfer::Write(from) if length <= self.max_inline => {
                let parts = [&from[at..at + length]];
                let data = Data::Inline(&parts);
                self.post(node, slot, Operation::Write { data, key, offset, immediate: None });
            }
            Transfer::Write(from) => {
                // As many parts fit the staging memory as may be in flight.
                let Ok(mut buffer) = self.staging.reserve(length) else { return self.no_staging(node, cut) };
                buffer.copy_from_slice(&from[at..at + length]);
                self.fabric.host().charge(Work::CopyBytes, cut.length);
                let data = Data::Buffer(buffer);
                self.post(node, slot, Operation::Write { data, key, offset, immediate: None });
            }
            Transfer::Read(_) => {
                let Ok(into) = self.staging.reserve(length) else { return self.no_staging(node, cut) };
                let from = RemoteSlice { key, offset, length: cut.length };
                self.post(node, slot, Operation::Read { from, into });
            }
        }
    }

    fn no_staging(&mut self, node: &Node<F>, cut: &Cut) {
        let (node, source) = (node.name_of(cut.node), PostError::QueueFull);
        self.failure = Some(OperationError::Post { node, source });
    }

    fn post(&mut self, node: &Node<F>, slot: Slot, operation: Operation<'_, F::Memory>) {
        let Some(free) = self.slots.iter().position(|slot| !slot.busy) else { return };
        let Some(Some(connection)) = self.peers.get(usize::from(slot.peer)) else { return };
        let id = WorkId(self.serial << 8 | free as u64);
        self.fabric.host().charge(Work::PostWork, 1);
        match self.domain.post(connection.queue_pair, WorkRequest { id, operation, signaled: true }) {
            Ok(()) => {
                self.slots[free] = slot;
                self.in_flight += 1;
            }
            Err(source) => {
                let peer = NodeId(slot.peer);
                self.failure.get_or_insert(OperationError::Post { node: node.name_of(peer), source });
                self.give_up(peer);
            }
        }
    }

    /// Gives up a connection: its parts in flight are uncertain.
    fn give_up(&mut self, peer: NodeId) {
        for slot in self.slots.iter_mut().filter(|slot| slot.busy && slot.peer == peer.0) {
            slot.busy = false;
            self.in_flight -= 1;
            self.uncertain.insert(peer);
        }
        self.disconnect(peer);
    }

    /// Waits for at least one completion, or gives up all connections with parts in flight.
    fn reap(&mut self, node: &Node<F>, transfer: &mut Transfer<'_>, deadline: &mut Deadline) {
        let mut polls = 0u32;
        loop {
            if self.take_completions(node, transfer) {
                return;
            }
            let armed = self.domain.arm(WaitMode::Busy);
            if self.take_completions(node, transfer) {
                self.domain.disarm(armed);
                return;
            }
            let until = deadline.until(self.fabric.host());
            polls += 1;
            let late = polls.is_multiple_of(POLLS_AT_ONCE) && self.fabric.host().now() >= until;
            let mut gave_up = false;
            for number in 0..DEPTH {
                let Slot { busy, peer, .. } = self.slots[number];
                let peer = NodeId(peer);
                if busy && (late || !self.is_connected(peer)) {
                    self.failure
                        .get_or_insert_with(|| OperationError::Unanswered { node: node.name_of(peer) });
                    self.give_up(peer);
                    gave_up = true;
                }
            }
            if gave_up {
                self.domain.disarm(armed);
                return;
            }
            if self.domain.wait(armed, until) == Wake::TimedOut {
                // The next empty poll counts as late.
                polls = POLLS_AT_ONCE - 1;
            }
        }
    }

    /// Takes the completions that are there; returns whether one was of this operation.
    fn take_completions(&mut self, node: &Node<F>, transfer: &mut Transfer<'_>) -> bool {
        let mut found = std::mem::take(&mut self.found);
        let mut any = false;
        if self.domain.poll(self.completions, &mut found, 2 * DEPTH) > 0 {
            for completion in found.drain(..) {
                any |= self.take_completion(node, completion, transfer);
            }
        }
        self.found = found;
        any
    }

    fn take_completion(
        &mut self,
        node: &Node<F>,
        completion: Completion<F::Memory>,
        transfer: &mut Transfer<'_>,
    ) -> bool {
        let number = (completion.id.0 & 0xff) as usize;
        if completion.id.0 >> 8 != self.serial {
            return false;
        }
        let Some(slot) = self.slots.get_mut(number).filter(|slot| slot.busy) else { return false };
        let Slot { at, length, peer, .. } = *slot;
        self.fabric.host().charge(Work::PollCompletion, 1);
        if completion.status != CompletionStatus::Success {
            let status = completion.status;
            let error = OperationError::Failed { node: node.name_of(NodeId(peer)), status };
            self.failure.get_or_insert(error);
            self.give_up(NodeId(peer));
            return true;
        }
        slot.busy = false;
        self.in_flight -= 1;
        self.value = completion.value;
        if let (Transfer::Read(into), Some(buffer)) = (transfer, completion.buffer)
            && buffer.len() >= length
        {
            into[at..at + length].copy_from_slice(&buffer[..length]);
            self.fabric.host().charge(Work::CopyBytes, length as u32);
        }
        true
    }
}

impl<F: Fabric> Drop for Path<F> {
    fn drop(&mut self) {
        for peer in 0..self.peers.len() as u16 {
            self.disconnect(NodeId(peer));
        }
    }
}

/// Copies a part that lies on this node; returns `false` if its place does not exist.
pub(crate) fn copy_local<F: Fabric>(node: &Node<F>, cut: &Cut, transfer: &mut Transfer<'_>) -> bool {
    if !node.has(cut.extent, cut.offset, cut.length.into()) {
        return false;
    }
    let (at, length, offset) = (cut.at as usize, cut.length as usize, cut.offset as usize);
    match transfer {
        Transfer::Read(into) => node.arena.copy_out(offset, &mut into[at..at + length]),
        Transfer::Write(from) => node.arena.copy_in(offset, &from[at..at + length]),
    }
    node.fabric.host().charge(Work::CopyBytes, cut.length);
    true
}
