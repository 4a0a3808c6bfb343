//! A path: the means to read and write regions on all nodes. A thread takes a path for one operation, posts the parts,
//! waits until all are complete, and gives the path back. A list of operations is posted in the same way. The worker
//! takes a path for several operations at a time, of any processes: the flights.

use crate::connection::Connection;
use crate::error::{ConnectError, OperationError, RequestError};
use crate::item::{Change, Item, Transfer};
use crate::node::Node;
use crate::posts::{End, MAX_INLINE, Part, Posts, ROOM};
use dunlin_fabric::{
    Access, AnyWaker, Arena, CompletionQueueId, Data, Fabric, Host, Link, Nanos, Operation, PostError,
    RemoteSlice, ThreadDomain, WaitMode, Wake, WithSources, Work, nanos,
};
use dunlin_tier::qos::Flow;
use dunlin_tier::{Cut, Layout, NodeId, Priority};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

/// The control connections of all paths, by path and node, where views change: a node that dies loses them.
pub(crate) type PathLinks<F> = Arc<Mutex<BTreeMap<(u16, NodeId), <F as Fabric>::Link>>>;

/// Polls between two reads of the clock.
const POLLS_AT_ONCE: u32 = 64;

/// The most parts of one operation that are under way, and the most of one list.
const DEPTH: usize = 8;
const LIST_DEPTH: usize = 2 * DEPTH;

/// The length from which a write from a staging buffer has a short first part, in bytes: the rest is copied while that
/// part is under way.
const SPLIT: usize = 16 << 10;
/// The share of the first part. Copying is several times as fast as the network.
const FIRST_PART: usize = 8;

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
    /// Begins the time of an operation: its own, which counts from now on, or that of the settings.
    pub(crate) fn new<F: Fabric>(node: &Node<F>, own: Option<Nanos>) -> Result<Deadline, OperationError> {
        match own {
            None => Ok(Deadline { timeout: nanos(node.config.timeout), until: None }),
            Some(0) => Err(OperationError::Deadline { node: None, may_have_executed: false }),
            Some(timeout) => {
                let until = node.fabric.host().now().saturating_add(timeout);
                Ok(Deadline { timeout, until: Some(until) })
            }
        }
    }

    pub(crate) fn until(&mut self, host: &impl Host) -> Nanos {
        *self.until.get_or_insert_with(|| host.now().saturating_add(self.timeout))
    }

    /// Returns the longest wait until the deadline: all of the time, unless the deadline was needed before.
    pub(crate) fn left(&self, host: &impl Host) -> Nanos {
        self.until.map_or(self.timeout, |until| until.saturating_sub(host.now()))
    }
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
    /// Its completions wake the worker.
    is_armed: bool,
    staging: Arena<F::Memory>,
    max_inline: usize,
    step: u32,
    peers: Vec<Option<Connection<F>>>,
    links: PathLinks<F>,
    unfinished: Vec<Unfinished>,
    posts: Posts<F>,
    /// The number of flights so far.
    flights: u64,
    /// The current flight: an operation, or a list.
    flight: u64,
    /// Its requests that are not over.
    in_flight: usize,
    /// Its requests wait for a doorbell that is rung for several.
    is_list: bool,
    /// Its deadline has passed.
    is_late: bool,
}

impl<F: Fabric> Path<F> {
    pub(crate) fn new(node: &Node<F>, number: u16) -> Result<Self, RequestError> {
        let fabric = node.fabric.clone();
        let mut domain = fabric.domain()?;
        let capabilities = fabric.capabilities();
        // With events the worker sleeps while operations are under way.
        let events = capabilities.events && capabilities.wakes_others;
        let completions = domain.create_completion_queue(4 * ROOM as u32, events)?;
        let step = node.config.step.min(capabilities.max_message);
        let bytes = (LIST_DEPTH as u64 * u64::from(step.next_power_of_two())).max(64 << 10);
        let memory = fabric.register(bytes, Access::LOCAL)?;
        let Ok(staging) = Arena::new(memory) else { return Err(RequestError::Busy) };
        Ok(Path {
            number,
            domain,
            completions,
            is_armed: false,
            staging,
            max_inline: capabilities.max_inline as usize,
            step,
            peers: (0..node.roster.max_nodes).map(|_| None).collect(),
            links: Arc::clone(&node.path_links),
            unfinished: Vec::new(),
            posts: Posts::new(completions),
            flights: 0,
            flight: 0,
            in_flight: 0,
            is_list: false,
            is_late: false,
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
        let (ends, before) = ((self.number, to), node.roster.get().incarnation(to));
        let (connection, known) = Connection::open(node, &mut self.domain, self.completions, ends, until)?;
        let changed = {
            let mut state = node.state();
            if node.roster.is_dynamic {
                if node.roster.get().incarnation(to) != before {
                    drop(state);
                    connection.close(&mut self.domain);
                    return Err(ConnectError::Ended);
                }
                // With the lock held: the next view finds it.
                let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
                links.insert(ends, connection.link.clone());
            }
            let state = &mut *state;
            let before = state.known[usize::from(to.0)];
            let changed = before != Some(known);
            if before.is_some() && changed {
                // That node ended meanwhile, or fenced this one: its old memory is out of reach for good.
                let lost = state.handles.lose(to);
                tracing::warn!(target: "dunlin::tier", node = %to, lost, "regions are gone with their node, or by its fence");
            }
            state.know(to, Some(known));
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

    /// Connects again to the nodes where parts of operations may still be under way: these operations then end. Blocks until
    /// `until` at most.
    fn settle(&mut self, node: &Node<F>, until: Nanos) {
        let nodes: BTreeSet<NodeId> = self.unfinished.iter().flat_map(|one| &one.nodes).copied().collect();
        for to in nodes {
            if let Err(error) = self.connect(node, to, until) {
                let error = WithSources(&error);
                tracing::debug!(target: "dunlin::tier", node = %to, %error, "operations there have not ended yet");
            }
        }
    }

    fn disconnect(&mut self, from: NodeId) {
        if let Some(connection) = self.peers.get_mut(usize::from(from.0)).and_then(Option::take) {
            connection.close(&mut self.domain);
            let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
            let link = links.remove(&(self.number, from));
            drop(links);
            drop(link);
        }
    }

    /// Keeps an operation as in flight until the path has connected to `nodes` again: only then does nothing that was
    /// posted arrive there any more.
    ///
    /// Where the initiator copies, this thread does, and has given the connections up: nothing is under way.
    pub(crate) fn keep(
        &mut self,
        node: &Node<F>,
        operation: dunlin_tier::Operation,
        nodes: BTreeSet<NodeId>,
    ) {
        if self.fabric.capabilities().initiator_copies {
            return node.end(operation);
        }
        self.unfinished.push(Unfinished { operation, nodes });
    }

    /// Runs one operation. Blocks until all of its parts are complete, or until the deadline.
    pub(crate) fn run_one(
        &mut self,
        node: &Node<F>,
        mut item: Item<'_, F::Memory>,
        deadline: &mut Deadline,
    ) -> Result<u64, Stop> {
        self.run(node, std::slice::from_mut(&mut item), deadline).map_err(Stop::Connect)?;
        item.finish()
    }

    /// Runs operations, in no order among each other, except those that have an error. Blocks until all parts are
    /// complete, or until the deadline. Each operation gets its own outcome.
    ///
    /// # Errors
    /// There is no connection to this node. Nothing was posted.
    pub(crate) fn run(
        &mut self,
        node: &Node<F>,
        items: &mut [Item<'_, F::Memory>],
        deadline: &mut Deadline,
    ) -> Result<(), NodeId> {
        self.begin(items.len() > 1);
        items.iter_mut().try_for_each(|item| self.check(node, item))?;
        for place in 0..items.len() {
            self.post_item(node, items, place, deadline);
            if self.posts.waiting() >= DEPTH {
                self.ring();
            }
        }
        self.drain(node, items, deadline);
        Ok(())
    }

    /// Writes bytes, and then a word: no reader sees the word and not the bytes.
    pub(crate) fn notify(
        &mut self,
        node: &Node<F>,
        layout: &Layout,
        (offset, bytes): (u64, &[u8]),
        (word_offset, word): (u64, &[u8; 8]),
        deadline: &mut Deadline,
    ) -> Result<(), Stop> {
        self.begin(false);
        let mut items = [
            Item::new(layout, offset, Transfer::Write(bytes)),
            Item::new(layout, word_offset, Transfer::Write(word)),
        ];
        items.iter_mut().try_for_each(|item| self.check(node, item)).map_err(Stop::Connect)?;
        let exists = items.iter().all(|item| item.error.is_none());
        if exists {
            self.post_item(node, &mut items, 0, deadline);
            let target = layout.word(word_offset).map(|cut| cut.node);
            let one_queue = items[0].cuts(u32::MAX).all(|cut| Some(cut.node) == target);
            if !(one_queue && self.fabric.capabilities().in_order_write) {
                self.drain(node, &mut items, deadline);
                if items[0].error.is_none() {
                    items[0].error = self.place_all(node, layout, (offset, bytes.len()), deadline);
                }
            }
            if items[0].error.is_none() {
                // An error of the word is that of an operation of which the bytes were written.
                items[1].is_begun = true;
                self.post_item(node, &mut items, 1, deadline);
            }
            self.drain(node, &mut items, deadline);
        }
        let [mut data, mut word] = items;
        data.uncertain.append(&mut word.uncertain);
        data.error = data.error.or(word.error);
        data.finish().map(drop)
    }

    /// Writes bytes on one node, whose processor sees them when this returns: a READ comes after the WRITEs of its queue pair,
    /// so they are placed when it is complete.
    pub(crate) fn put(
        &mut self,
        node: &Node<F>,
        layout: &Layout,
        (offset, transfer): (u64, Transfer<'_, F::Memory>),
        deadline: &mut Deadline,
    ) -> Result<(), Stop> {
        self.begin(false);
        let mut byte = [0];
        let mut items =
            [Item::new(layout, offset, transfer), Item::new(layout, offset, Transfer::Read(&mut byte))];
        items.iter_mut().try_for_each(|item| self.check(node, item)).map_err(Stop::Connect)?;
        self.post_item(node, &mut items, 0, deadline);
        // The thread itself has copied where the initiator does.
        if !self.fabric.capabilities().initiator_copies {
            if !self.fabric.capabilities().in_order_write {
                self.drain(node, &mut items, deadline);
            }
            if items[0].error.is_none() {
                self.post_item(node, &mut items, 1, deadline);
            }
        }
        self.drain(node, &mut items, deadline);
        let [mut data, mut byte] = items;
        data.uncertain.append(&mut byte.uncertain);
        data.error = data.error.or(byte.error);
        data.finish().map(drop)
    }

    /// Reads a byte of each node's part, on the queue pairs that wrote it: a READ comes after the WRITEs before it, so
    /// they are placed then, which their completions do not say.
    fn place_all(
        &mut self,
        node: &Node<F>,
        layout: &Layout,
        (offset, length): (u64, usize),
        deadline: &mut Deadline,
    ) -> Option<OperationError> {
        let mut byte = [0];
        let mut nodes = BTreeSet::from([node.me]);
        for cut in layout.cut(offset, length as u64, u32::MAX) {
            if !nodes.insert(cut.node) {
                continue;
            }
            let mut item = Item::new(layout, offset + cut.at, Transfer::Read(&mut byte));
            // The bytes were written, whatever becomes of the READ.
            item.is_begun = true;
            let items = std::slice::from_mut(&mut item);
            self.post_item(node, items, 0, deadline);
            self.drain(node, items, deadline);
            if item.error.is_some() {
                return item.error;
            }
        }
        None
    }

    /// Begins a flight that [`post`](Path::post) posts. Checks connections and places, and that the parts of each
    /// operation, or of a whole sequence, may be under way at the same time; returns the flight if all of it is so.
    pub(crate) fn ready(
        &mut self,
        node: &Node<F>,
        items: &mut [Item<'_, F::Memory>],
        is_sequence: bool,
    ) -> Option<u64> {
        let parts = items.iter().map(|item| item.cuts(self.step).count());
        let most = if is_sequence { parts.sum() } else { parts.max().unwrap_or(0) };
        if most > DEPTH.min(self.posts.room()) {
            return None;
        }
        self.begin(true);
        let is_ready = items.iter_mut().all(|item| self.check(node, item).is_ok() && item.error.is_none());
        is_ready.then_some(self.flight)
    }

    /// Goes on with a flight.
    pub(crate) fn select(&mut self, flight: u64) {
        (self.flight, self.in_flight) = (flight, self.posts.of_flight(flight));
        (self.is_list, self.is_late) = (!self.fabric.capabilities().initiator_copies, false);
    }

    /// Posts operations of the current flight from `next` on, as many as may be under way. Returns whether all of them
    /// were posted, and all parts are over. In a sequence, an operation is posted only if those before it were. Does not
    /// wait. Requests wait for [`ring`](Path::ring), except where the initiator copies.
    pub(crate) fn post(
        &mut self,
        node: &Node<F>,
        items: &mut [Item<'_, F::Memory>],
        next: &mut usize,
        is_sequence: bool,
        deadline: &mut Deadline,
    ) -> bool {
        while *next < items.len() {
            if is_sequence && *next > 0 {
                if items[..*next].iter().any(|item| item.error.is_some()) {
                    *next = items.len();
                    break;
                }
                items[*next].is_begun = true;
            }
            let parts = items[*next].cuts(self.step).count();
            if !self.has_room(parts) {
                self.take_completions(node, items);
                if !self.has_room(parts) {
                    break;
                }
            }
            self.post_item(node, items, *next, deadline);
            *next += 1;
        }
        if !self.is_list {
            self.poll();
            self.advance(node, items, false);
        }
        self.in_flight == 0 && *next == items.len()
    }

    fn has_room(&self, parts: usize) -> bool {
        self.in_flight + parts <= self.depth() && parts <= self.posts.room()
    }

    fn depth(&self) -> usize {
        if self.is_list { LIST_DEPTH } else { DEPTH }
    }

    /// Takes the completions that are there, of all flights.
    pub(crate) fn poll(&mut self) {
        self.posts.poll(&self.fabric, &mut self.domain);
    }

    /// Has the next completion, or the end of a connection, wake the worker; see [`ThreadDomain::arm_other`].
    pub(crate) fn arm(&mut self, worker: &AnyWaker) -> Nanos {
        self.is_armed = true;
        self.domain.arm_other(worker)
    }

    /// Ends the effect of [`arm`](Path::arm): another thread gets the path.
    pub(crate) fn disarm(&mut self) {
        if std::mem::take(&mut self.is_armed) {
            self.domain.disarm_other();
        }
    }

    /// Returns the parts of the current flight that are not over.
    pub(crate) fn under_way(&self) -> impl Iterator<Item = Part> {
        self.posts.under_way(self.flight)
    }

    /// Returns how many more requests there is room for.
    pub(crate) fn room(&self) -> usize {
        self.posts.room()
    }

    pub(crate) fn number(&self) -> u16 {
        self.number
    }

    /// Ends what is over of the current flight, and gives up connections that ended, or all of it if it is late. Returns
    /// whether all parts are over. Does not wait.
    pub(crate) fn advance(
        &mut self,
        node: &Node<F>,
        items: &mut [Item<'_, F::Memory>],
        is_late: bool,
    ) -> bool {
        self.apply(node, items);
        self.is_late |= is_late;
        self.give_up_lost(node, items);
        self.in_flight == 0
    }

    fn begin(&mut self, is_list: bool) {
        self.flights += 1;
        (self.flight, self.in_flight) = (self.flights, 0);
        (self.is_list, self.is_late) = (is_list && !self.fabric.capabilities().initiator_copies, false);
    }

    /// Posts the requests that wait, with one doorbell for each node.
    pub(crate) fn ring(&mut self) {
        let Path { fabric, domain, posts, peers, .. } = self;
        let queue_pair_to = |to: NodeId| {
            let connection = peers.get(usize::from(to.0)).and_then(Option::as_ref);
            connection.map(|connection| connection.queue_pair)
        };
        let mut broken = Vec::new();
        while let Some((to, posted)) = posts.ring(fabric, domain, queue_pair_to) {
            if posted.is_err() {
                broken.push(to);
            }
        }
        broken.into_iter().for_each(|to| self.give_up(to));
    }

    fn is_connected(&self, to: NodeId) -> bool {
        matches!(self.peers.get(usize::from(to.0)), Some(Some(connection)) if connection.link.is_alive())
    }

    /// Checks that there are connections for all parts of an operation, and that their places exist: a wrong record must
    /// not break a connection that others use.
    fn check(&self, node: &Node<F>, item: &mut Item<'_, F::Memory>) -> Result<(), NodeId> {
        for cut in item.cuts(u32::MAX) {
            let exists = if item.is_here(node, cut.node) {
                node.arena.range(cut.extent, cut.offset, cut.length.into()).is_some()
            } else {
                let connection = self.peers.get(usize::from(cut.node.0)).and_then(Option::as_ref);
                match connection.filter(|connection| connection.link.is_alive()) {
                    Some(connection) => connection.place(cut.extent, cut.offset, cut.length).is_some(),
                    None => return Err(cut.node),
                }
            };
            if !exists {
                item.fail(OperationError::Place { node: node.name_of(cut.node) });
            }
        }
        Ok(())
    }

    /// Posts all parts of an operation that has no error, and copies those on this node. Waits for room.
    fn post_item(
        &mut self,
        node: &Node<F>,
        items: &mut [Item<'_, F::Memory>],
        place: usize,
        deadline: &mut Deadline,
    ) {
        let mut longest = match &items[place].transfer {
            Transfer::Write(from) if from.len() >= SPLIT => {
                let first = (from.len() / FIRST_PART).next_multiple_of(4096);
                u32::try_from(first).map_or(self.step, |first| first.min(self.step))
            }
            Transfer::Change(_) => 8,
            _ => self.step,
        };
        for mut cut in items[place].cuts(self.step.max(longest)) {
            if items[place].error.is_some() {
                return;
            }
            let item = &mut items[place];
            if item.is_here(node, cut.node) {
                item.is_begun = true;
                item.copy_part(node, &cut);
                continue;
            }
            while cut.length > 0 {
                let part = Cut { length: cut.length.min(longest), ..cut };
                longest = self.step;
                while self.in_flight >= self.depth() {
                    self.reap(node, items, deadline);
                }
                if items[place].error.is_some() {
                    return;
                }
                self.post_part(node, items, place, &part);
                cut.length -= part.length;
                cut.offset += u64::from(part.length);
                cut.at += u64::from(part.length);
            }
        }
    }

    /// Waits for all parts in flight, also after a failure: parts that are not known to be over count as uncertain.
    fn drain(&mut self, node: &Node<F>, items: &mut [Item<'_, F::Memory>], deadline: &mut Deadline) {
        while self.in_flight > 0 {
            self.reap(node, items, deadline);
        }
    }

    fn post_part(&mut self, node: &Node<F>, items: &mut [Item<'_, F::Memory>], place: usize, cut: &Cut) {
        let item = &mut items[place];
        let connection = self.peers.get(usize::from(cut.node.0)).and_then(Option::as_ref);
        let Some(connection) = connection.filter(|_| !self.is_late) else {
            // The connection was given up meanwhile.
            let (name, may_have_executed) = (node.name_of(cut.node), item.is_begun);
            return item.fail(match self.is_late {
                true => {
                    OperationError::Deadline { node: may_have_executed.then_some(name), may_have_executed }
                }
                false if may_have_executed => OperationError::Unanswered { node: name },
                false => OperationError::Skipped { node: name },
            });
        };
        let Some((key, offset)) = connection.place(cut.extent, cut.offset, cut.length) else {
            // `check` has found the place, so the node has another life with less memory.
            return item.fail(OperationError::Place { node: node.name_of(cut.node) });
        };
        let (at, length) = (cut.at as usize, cut.length as usize);
        let (queue_pair, part) =
            (connection.queue_pair, Part { flight: self.flight, node: cut.node, item: place, at, length });
        let max_inline = if self.is_list { self.max_inline.min(MAX_INLINE) } else { self.max_inline };
        let operation = match &item.transfer {
            Transfer::Write(_) | Transfer::Put(_) if length <= max_inline => {
                let bytes = &item.transfer.outgoing()[at..at + length];
                let posted = match self.is_list {
                    true => self.posts.hold_inline(part, bytes, (key, offset)),
                    false => {
                        let data = Data::Inline(&[bytes]);
                        let write = Operation::Write { data, key, offset, immediate: None };
                        self.posts.post(&self.fabric, &mut self.domain, queue_pair, part, write)
                    }
                };
                return self.posted(node, items, &part, posted);
            }
            Transfer::Write(_) | Transfer::Put(_) => {
                let from = item.transfer.outgoing();
                // As many parts fit the staging memory as may be in flight.
                let Ok(mut buffer) = self.staging.reserve(length) else { return no_part(node, item, cut) };
                buffer.copy_from_slice(&from[at..at + length]);
                self.fabric.host().charge(Work::CopyBytes, cut.length);
                Operation::Write { data: Data::Buffer(buffer), key, offset, immediate: None }
            }
            Transfer::ReadInto(range) => {
                let Some(into) = range.part(at, length) else { return no_part(node, item, cut) };
                Operation::ReadInto { from: RemoteSlice { key, offset, length: cut.length }, into }
            }
            Transfer::WriteFrom(range) => {
                let Some(from) = range.part(at, length) else { return no_part(node, item, cut) };
                Operation::Write { data: Data::Region(from), key, offset, immediate: None }
            }
            Transfer::Read(_) | Transfer::Keep(_) => {
                let Ok(into) = self.staging.reserve(length) else { return no_part(node, item, cut) };
                Operation::Read { from: RemoteSlice { key, offset, length: cut.length }, into }
            }
            Transfer::Change(Change::Add(add)) => Operation::FetchAdd { key, offset, add: *add },
            Transfer::Change(Change::Swap { expected, swap }) => {
                Operation::CompareSwap { key, offset, expected: *expected, swap: *swap }
            }
        };
        let posted = match self.is_list {
            true => self.posts.hold(part, operation),
            false => self.posts.post(&self.fabric, &mut self.domain, queue_pair, part, operation),
        };
        self.posted(node, items, &part, posted);
    }

    fn posted(
        &mut self,
        node: &Node<F>,
        items: &mut [Item<'_, F::Memory>],
        part: &Part,
        posted: Result<(), PostError>,
    ) {
        let item = &mut items[part.item];
        match posted {
            Ok(()) => {
                self.in_flight += 1;
                item.is_begun = true;
            }
            Err(source) => {
                item.fail(OperationError::Post { node: node.name_of(part.node), source });
                self.give_up(part.node);
                self.apply(node, items);
            }
        }
    }

    /// Gives up a connection: its parts in flight are uncertain.
    fn give_up(&mut self, peer: NodeId) {
        self.posts.lose(peer);
        self.disconnect(peer);
    }

    /// Gives up the connections that ended, or all with parts of the flight if it is late; returns whether there was one.
    fn give_up_lost(&mut self, node: &Node<F>, items: &mut [Item<'_, F::Memory>]) -> bool {
        let mut gave_up = false;
        let (flight, is_late) = (self.flight, self.is_late);
        while let Some(peer) = self.posts.find(|of, to| (is_late && of == flight) || !self.is_connected(to)) {
            self.give_up(peer);
            gave_up = true;
        }
        if gave_up {
            self.apply(node, items);
        }
        gave_up
    }

    /// Waits for at least one completion, or gives up all connections with parts in flight.
    fn reap(&mut self, node: &Node<F>, items: &mut [Item<'_, F::Memory>], deadline: &mut Deadline) {
        let mut polls = 0u32;
        self.ring();
        loop {
            if self.take_completions(node, items) {
                return;
            }
            let armed = self.domain.arm(WaitMode::Busy);
            if self.take_completions(node, items) {
                self.domain.disarm(armed);
                return;
            }
            let until = deadline.until(self.fabric.host());
            polls += 1;
            self.is_late |= polls.is_multiple_of(POLLS_AT_ONCE) && self.fabric.host().now() >= until;
            if self.give_up_lost(node, items) {
                self.domain.disarm(armed);
                return;
            }
            if self.domain.wait(armed, until) == Wake::TimedOut {
                // The next empty poll counts as late.
                polls = POLLS_AT_ONCE - 1;
            }
        }
    }

    /// Takes the completions that are there; returns whether one was of these operations.
    fn take_completions(&mut self, node: &Node<F>, items: &mut [Item<'_, F::Memory>]) -> bool {
        self.poll();
        self.apply(node, items)
    }

    /// Ends the parts of the current flight that are over; returns whether there was one.
    fn apply(&mut self, node: &Node<F>, items: &mut [Item<'_, F::Memory>]) -> bool {
        let mut any = false;
        while let Some((part, end)) = self.posts.take(self.flight) {
            any = true;
            self.in_flight -= 1;
            let Part { item, node: peer, at, length, .. } = part;
            let item = &mut items[item];
            match end {
                End::Done(value, buffer) => {
                    item.value = value;
                    if let (Some(into), Some(buffer)) = (item.transfer.incoming(), buffer)
                        && let Some(into) = into.get_mut(at..at + length)
                        && buffer.len() >= length
                    {
                        into.copy_from_slice(&buffer[..length]);
                        self.fabric.host().charge(Work::CopyBytes, length as u32);
                    }
                }
                End::Refused(source) => item.fail(OperationError::Post { node: node.name_of(peer), source }),
                End::Failed(status) => {
                    item.uncertain.insert(peer);
                    item.fail(OperationError::Failed { node: node.name_of(peer), status });
                    self.give_up(peer);
                }
                End::Lost => {
                    item.uncertain.insert(peer);
                    let name = node.name_of(peer);
                    let dead = node.roster.dead_in(peer).filter(|_| !self.is_late);
                    item.fail(match (self.is_late, dead) {
                        (true, _) => OperationError::Deadline { node: Some(name), may_have_executed: true },
                        (false, Some(epoch)) => {
                            OperationError::Dead { node: name, epoch, may_have_executed: true }
                        }
                        (false, None) => OperationError::Unanswered { node: name },
                    });
                }
            }
        }
        any
    }
}

/// No memory for a part.
fn no_part<F: Fabric>(node: &Node<F>, item: &mut Item<'_, F::Memory>, cut: &Cut) {
    item.fail(OperationError::Post { node: node.name_of(cut.node), source: PostError::QueueFull });
}

impl<F: Fabric> Drop for Path<F> {
    fn drop(&mut self) {
        for peer in 0..self.peers.len() as u16 {
            self.disconnect(NodeId(peer));
        }
    }
}

impl<F: Fabric> Node<F> {
    /// Ends the operations whose parts may still be under way, on paths that no thread uses: a region that ends or moves waits
    /// for them. Blocks until `until` at most.
    pub(crate) fn settle_paths(&self, until: Nanos) {
        for priority in [Priority::High, Priority::Low] {
            let flow = Flow { priority, ..self.class.flow() };
            for number in 0..self.config.paths {
                let found =
                    self.paths.take_idle(flow, |path| path.number == number && !path.unfinished.is_empty());
                if let Some(mut path) = found {
                    path.settle(self, until);
                    self.paths.give(path, priority, None);
                }
            }
        }
    }
}
