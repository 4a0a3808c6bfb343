//! Regions of other nodes as this process sees them: mapping, and operations on handles.

use crate::attempt::MAX_ATTEMPTED;
use crate::error::{ConnectError, OperationError, RequestError};
use crate::item::{Change, Item, Transfer};
use crate::node::{Node, State};
use crate::path::{Deadline, Path, Stop};
use crate::paths::{Entered, Granted, Trip};
use crate::pool::Taken;
use crate::qos::Class;
use dunlin_fabric::{Fabric, Host, Nanos, Work};
use dunlin_tier::message::{Refusal, Reply, Request};
use dunlin_tier::{
    AccessError, Cut, Handle, Keepers, Kind, Layout, LmrId, Mapping, NodeId, Principal, Priority,
    RecordError, Rights, TableError,
};

/// The pause before a region that moves is mapped again, in nanoseconds.
const MOVED_SOON: Nanos = 200_000;
/// Bytes that a copy between regions moves at a time.
const COPY_AT_ONCE: u32 = 64 << 10;

impl<F: Fabric> Node<F> {
    /// Waits for the path of an entry until `until` at most, and makes the path if it was never made. Also returns whether
    /// the time of the operation is of use.
    pub(crate) fn finish_taking(
        &self,
        entered: Entered<Box<Path<F>>, F::Host>,
        priority: Priority,
        until: Nanos,
    ) -> Result<(Box<Path<F>>, bool), RequestError> {
        let granted = match entered {
            Entered::Path(granted) => granted,
            Entered::Wait(seat) => {
                self.paths.wait(self.fabric.host(), seat, until).ok_or(RequestError::Busy)?
            }
            Entered::Closed => return Err(RequestError::Busy),
        };
        let path = match granted.taken {
            Taken::Value(path) => path,
            Taken::Make(number) => Path::new(self, number as u16)
                .map(Box::new)
                .inspect_err(|_| self.paths.failed(number, priority))?,
        };
        Ok((path, granted.is_timed))
    }

    /// Connects a path to nodes; returns whether one of them is new, or has restarted or fenced this node.
    pub(crate) fn know(&self, nodes: &[NodeId], until: Nanos) -> Result<bool, RequestError> {
        if nodes.iter().all(|other| *other == self.me) {
            return Ok(false);
        }
        nodes.iter().for_each(|other| self.await_known(*other, until));
        let Class { priority, .. } = self.class;
        let entered = self.paths.enter(self.fabric.host(), self.class.flow(), 0);
        let (mut path, _) = self.finish_taking(entered, priority, until)?;
        let mut changed = false;
        for other in nodes.iter().filter(|other| **other != self.me) {
            match path.connect(self, *other, until) {
                Ok(new) => changed |= new,
                Err(source) => {
                    self.paths.give(path, priority, None);
                    let node = self.name_of(*other);
                    return Err(match source {
                        ConnectError::Dead(epoch) => {
                            RequestError::Dead { node, epoch, may_have_executed: false }
                        }
                        source => RequestError::Path { node, source },
                    });
                }
            }
        }
        self.paths.give(path, priority, None);
        Ok(changed)
    }

    /// Maps a region for a principal, with exactly these rights; returns the handle, the region's id now and its length.
    /// Waits while it moves. `keepers` are nodes that keep its record, as far as they are known.
    pub(crate) fn map(
        &self,
        (id, keepers): (LmrId, &Keepers),
        principal: &Principal,
        rights: Rights,
        until: Nanos,
    ) -> Result<(Handle, LmrId, u64), RequestError> {
        loop {
            // Before the request: a free that overtakes the answer is noticed.
            let ticket = self.state().handles.begin_map()?;
            match self.ask_to_map((id, keepers), principal, rights, until) {
                Ok((Mapping { layout, id, .. }, false)) => {
                    let length = layout.length();
                    let finished = {
                        let mut state = self.state();
                        let is_there = self.has_memories(&state, &layout);
                        let finished = state.handles.finish_map(ticket, id, (principal, rights), layout);
                        if let (Ok(handle), false) = (&finished, is_there) {
                            // Its store has restarted: the place belongs to others. A master frees the region by the handle.
                            state.handles.lose_one(*handle);
                        }
                        finished
                    };
                    match finished {
                        Ok(handle) => return Ok((handle, id, length)),
                        Err(error) => {
                            self.report_unmapped(id);
                            // A region that was freed, and did not move, is absent the next time.
                            let repeats = matches!(error, TableError::Interrupted | TableError::Freed);
                            if !repeats || self.fabric.host().now() >= until {
                                return Err(error.into());
                            }
                        }
                    }
                }
                // The answer may be older than the connection: a fence in between would not be noticed.
                Ok((_, true)) => {
                    self.state().handles.abandon_map(ticket);
                    self.report_unmapped(id);
                }
                Err(error) => {
                    self.state().handles.abandon_map(ticket);
                    let host = self.fabric.host();
                    let now = host.now();
                    match error {
                        RequestError::Refused {
                            source: Refusal::Record(RecordError::Moving | RecordError::Unsettled),
                            ..
                        } if now < until => {
                            host.sleep(now.saturating_add(MOVED_SOON).min(until));
                        }
                        error => return Err(error),
                    }
                }
            }
        }
    }

    /// Returns whether the memories of a layout are those of its nodes now, as far as this node knows them.
    fn has_memories(&self, state: &State, layout: &Layout) -> bool {
        layout.memories().iter().all(|(node, memory)| match *node == self.me {
            true => *memory == self.lineage.memory,
            false => {
                let known = state.known.get(usize::from(node.0)).copied().flatten();
                known.is_none_or(|known| known.incarnation == *memory)
            }
        })
    }

    /// Asks a keeper of the record; returns its answer, and whether it has to be asked again.
    fn ask_to_map(
        &self,
        (id, keepers): (LmrId, &Keepers),
        principal: &Principal,
        wanted: Rights,
        until: Nanos,
    ) -> Result<(Mapping, bool), RequestError> {
        let request = Request::Map { id, wanted, mapper: self.me, principal: principal.clone() };
        let (node, reply) = self.ask_to_map_at(id, keepers, &request, until)?;
        let Reply::Mapped(mapping) = reply else { return Err(self.misfit(node)) };
        let known = if mapping.rights == wanted {
            self.know(&mapping.layout.nodes(), until)
        } else {
            Err(self.misfit(node))
        };
        let again = known.inspect_err(|_| self.report_unmapped(id))?;
        Ok((mapping, again))
    }

    /// Changes the aligned word at `offset` by an atomic, and returns its old value.
    pub(crate) fn change_word(
        &self,
        target: Target<'_>,
        owner: LmrId,
        offset: u64,
        change: Change,
    ) -> Result<u64, OperationError> {
        let by_device = self.fabric.capabilities().atomics.exist();
        self.operate(target, Kind::Atomic, (offset, 8), |path, layout, deadline| {
            let Some(cut) = layout.word(offset) else {
                return Err(Stop::failed(AccessError::Misaligned(offset)));
            };
            let mut item = Item::new(layout, offset, Transfer::Change(change));
            match path {
                Some(path) => path.run_one(self, item, deadline).map(Some),
                None if by_device && item.needs_path(self) => Ok(None),
                None if by_device => {
                    item.copy_here(self);
                    item.finish().map(Some)
                }
                None => {
                    let until = deadline.until(self.fabric.host());
                    self.change_by_call(&cut, owner, change, until).map(Some).map_err(Stop::failed)
                }
            }
        })
    }

    /// Has the storing node change a word. It checks the owner, so a late request finds a freed region.
    pub(crate) fn change_by_call(
        &self,
        cut: &Cut,
        owner: LmrId,
        change: Change,
        until: Nanos,
    ) -> Result<u64, OperationError> {
        let (extent, offset) = (cut.extent, cut.offset);
        let request = match change {
            Change::Add(add) => Request::FetchAdd { owner, extent, offset, add },
            Change::Swap { expected, swap } => Request::CompareSwap { owner, extent, offset, expected, swap },
        };
        match self.demand(cut.node, request, until).map_err(Box::new)? {
            Reply::Old(value) => Ok(value),
            _ => Err(Box::new(self.misfit(cut.node)).into()),
        }
    }

    /// Unmaps a handle; the cleaner tells the record's node.
    pub(crate) fn unmap(&self, handle: Handle) {
        let closed = self.state().handles.unmap(handle);
        if let Ok(Some(id)) = closed {
            self.report_unmapped(id);
        }
    }

    /// Returns the error of an operation that the handle table refuses. A region that is gone with a dead node names it.
    pub(crate) fn refused(&self, handle: Handle, error: AccessError) -> OperationError {
        if error != AccessError::Gone || !self.roster.is_dynamic {
            return error.into();
        }
        let stores = self.state().handles.lost(handle).map(Layout::nodes).unwrap_or_default();
        let dead = stores.into_iter().find_map(|node| self.roster.dead_in(node).map(|epoch| (node, epoch)));
        match dead {
            Some((node, epoch)) => {
                OperationError::Dead { node: self.name_of(node), epoch, may_have_executed: false }
            }
            None => error.into(),
        }
    }

    /// Returns the error of an operation that has no path to a node.
    pub(crate) fn no_path(&self, to: NodeId, source: ConnectError) -> OperationError {
        let node = self.name_of(to);
        match source {
            ConnectError::Dead(epoch) => OperationError::Dead { node, epoch, may_have_executed: false },
            source => OperationError::Path { node, source },
        }
    }

    /// Copies bytes of a region that this node stores to another region, at the request of any node (section 7.1). This
    /// node maps the target like any mapper, so a free of the target waits for the copy.
    pub(crate) fn copy(&self, request: &Copy<'_>) -> Result<(), Refusal> {
        let until = self.until();
        let owns = |at: u64, length: u64| self.state().space.owns(request.owner, request.extent, at, length);
        let place = self.arena.range(request.extent, request.offset, request.length.into());
        let Some((memory, start)) = place.filter(|_| owns(request.offset, request.length.into())) else {
            return Err(Refusal::NoPlace);
        };
        let (target, ..) = self
            .map((request.to, &Keepers::new(request.to.node)), request.whose.0, Rights::WRITE, until)
            .map_err(|error| match error {
                RequestError::Refused { source, .. } => source,
                _ => Refusal::Target,
            })?;
        // The node of the caller has counted the bytes.
        let class = self.qos.class(self.fabric.host(), request.whose.0).without_limit();
        let class = class.at_most(request.whose.1);
        let mut bytes = vec![0; request.length.min(COPY_AT_ONCE) as usize];
        let parts = request.length.div_ceil(COPY_AT_ONCE);
        let copied = (0..parts).try_for_each(|part| {
            let part = if request.backwards { parts - 1 - part } else { part };
            let at = part * COPY_AT_ONCE;
            let bytes = &mut bytes[..(request.length - at).min(COPY_AT_ONCE) as usize];
            let from = request.offset + u64::from(at);
            {
                // With the lock held, the block is not taken back meanwhile.
                let state = self.state();
                if !state.space.owns(request.owner, request.extent, from, bytes.len() as u64) {
                    return Err(Refusal::NoPlace);
                }
                memory.copy_out(start + at as usize, bytes);
            }
            let to = request.target.checked_add(at.into()).ok_or(Refusal::Target)?;
            let written = self.transfer(Target::new(target, &class), to, Transfer::Write(bytes));
            written.map_err(|error| {
                tracing::warn!(target: "dunlin::tier", %error, "a copy between regions failed");
                Refusal::Target
            })
        });
        self.unmap(target);
        copied
    }

    /// Reads or writes bytes of a region: a part of an operation, or all of it. Bytes on this node are copied by the calling
    /// thread.
    pub(crate) fn transfer_part(
        &self,
        target: Target<'_>,
        offset: u64,
        mut transfer: Transfer<'_, F::Memory>,
    ) -> Result<(), OperationError> {
        let (length, kind) = (transfer.len() as u64, transfer.kind());
        self.operate(target, kind, (offset, length), |path, layout, deadline| {
            let mut item = Item::new(layout, offset, transfer.reborrow());
            let Some(path) = path else {
                // All of it is on this node: no request, and no path.
                if layout.cut(offset, length, u32::MAX).any(|cut| cut.node != self.me) {
                    return Ok(None);
                }
                item.copy_here(self);
                return item.error.map_or(Ok(Some(())), |error| Err(Stop::failed(error)));
            };
            path.run_one(self, item, deadline).map(|_| Some(()))
        })
    }

    /// Reads or writes bytes of a region by the calling thread; returns `false`, and does nothing, if they are not all
    /// on this node.
    pub(crate) fn transfer_here(
        &self,
        target: Target<'_>,
        offset: u64,
        transfer: Transfer<'_, F::Memory>,
    ) -> Result<bool, OperationError> {
        let (length, kind) = (transfer.len() as u64, transfer.kind());
        let begun = self.state().handles.begin(target.handle, kind, offset, length);
        let operation = begun.map_err(|error| self.refused(target.handle, error))?;
        let here = operation.layout.cut(offset, length, u32::MAX).all(|cut| cut.node == self.me);
        let copied = match here {
            true => self.qos.admit_now(self.fabric.host(), target.class, length).and_then(|()| {
                self.qos.count(target.class.priority, 1, length);
                let mut item = Item::new(&operation.layout, offset, transfer);
                item.copy_here(self);
                item.error.map_or(Ok(()), Err)
            }),
            false => Ok(()),
        };
        self.end(operation);
        copied.map(|()| here)
    }

    /// Checks an operation and runs it: first without a path; if that gives `None`, with one.
    pub(crate) fn operate<T>(
        &self,
        Target { handle, class, time, is_part, .. }: Target<'_>,
        kind: Kind,
        (offset, length): (u64, u64),
        mut run: impl FnMut(Option<&mut Path<F>>, &Layout, &mut Deadline) -> Result<Option<T>, Stop>,
    ) -> Result<T, OperationError> {
        let (node, host) = (self, self.fabric.host());
        let mut deadline = Deadline::new(node, time)?;
        if !is_part {
            node.qos.admit(host, class, length, deadline.left(host))?;
            node.qos.count(class.priority, 1, length);
        }
        let mut path: Option<Box<Path<F>>> = None;
        let mut turn = Turn::default();
        let result = loop {
            // The check of a handle is as much work as that of an entry of a message.
            host.charge(Work::ParseEntry, 1);
            let begun = node.state().handles.begin(handle, kind, offset, length);
            let operation = match begun {
                Ok(operation) => operation,
                Err(error) => break Err(node.refused(handle, error)),
            };
            turn.start(host, path.is_some());
            let mut outcome = run(path.as_deref_mut(), &operation.layout, &mut deadline);
            let mut entered = None;
            if matches!(outcome, Ok(None)) {
                entered = turn.enter(node, class, length);
                if let Some(Entered::Path(Granted { taken: Taken::Value(_), .. })) = &entered
                    && let Some(Entered::Path(Granted { taken: Taken::Value(idle), is_timed })) =
                        entered.take()
                {
                    // The operation goes on with its check: a thread that does not wait delays no free.
                    turn.is_timed |= is_timed;
                    turn.start(host, true);
                    outcome = run(Some(path.insert(idle)), &operation.layout, &mut deadline);
                }
            }
            match outcome {
                Ok(Some(value)) => {
                    node.end(operation);
                    turn.stop(node, length);
                    break Ok(value);
                }
                Ok(None) => {
                    node.end(operation);
                    let Some(entered) = entered else {
                        host.sleep(turn.pause_until.min(deadline.until(host)));
                        continue;
                    };
                    match node.finish_taking(entered, class.priority, deadline.until(host)) {
                        Ok((made, is_timed)) => {
                            path = Some(made);
                            turn.is_timed |= is_timed;
                        }
                        Err(RequestError::Busy) => break Err(OperationError::Busy),
                        Err(error) => break Err(OperationError::Resources(Box::new(error))),
                    }
                }
                Err(Stop::Connect(to)) => {
                    node.end(operation);
                    let until = deadline.until(host);
                    let connected = path.as_mut().map(|path| path.connect(node, to, until));
                    if let Some(Err(source)) = connected {
                        break Err(node.no_path(to, source));
                    }
                    if host.now() >= until {
                        break Err(OperationError::Deadline { node: None, may_have_executed: false });
                    }
                }
                Err(Stop::Failed { error, uncertain }) => {
                    match &mut path {
                        Some(path) if !uncertain.is_empty() => path.keep(self, operation, uncertain),
                        _ => node.end(operation),
                    }
                    break Err(error);
                }
            }
        };
        if let Some(path) = path {
            node.paths.give(path, class.priority, turn.trip);
        }
        if turn.has_begun {
            node.qos.end(class.priority);
        }
        result
    }
}

/// A handle, and whose operation it is that uses it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target<'a> {
    pub(crate) handle: Handle,
    pub(crate) class: &'a Class,
    /// The time of the operation in nanoseconds, if it has one of its own.
    pub(crate) time: Option<Nanos>,
    /// The operation is a part of one that was admitted and counted.
    pub(crate) is_part: bool,
    /// The most bytes of an attempt on other nodes.
    pub(crate) at_once: u64,
}

impl<'a> Target<'a> {
    pub(crate) fn new(handle: Handle, class: &'a Class) -> Target<'a> {
        Target { handle, class, time: None, is_part: false, at_once: MAX_ATTEMPTED }
    }
}

/// An operation's wait for a path, and its time on it.
#[derive(Debug, Default)]
pub(crate) struct Turn {
    pub(crate) has_begun: bool,
    /// The end of its pause.
    pub(crate) pause_until: Nanos,
    pub(crate) is_timed: bool,
    since: Option<Nanos>,
    pub(crate) trip: Option<Trip>,
}

impl Turn {
    /// Asks for a path; `None` if the operation pauses first.
    pub(crate) fn enter<F: Fabric>(
        &mut self,
        node: &Node<F>,
        class: &Class,
        length: u64,
    ) -> Option<Entered<Box<Path<F>>, F::Host>> {
        let host = node.fabric.host();
        if !std::mem::replace(&mut self.has_begun, true) {
            self.is_timed = node.qos.wants_trip(class.priority);
            let pause = node.qos.begin(class.priority);
            if pause > 0 {
                self.pause_until = host.now().saturating_add(pause);
                return None;
            }
        }
        Some(node.paths.enter(host, class.flow(), length))
    }

    /// Takes a path that is free for an operation which may use it now; `None` if the operation would wait.
    pub(crate) fn take<F: Fabric>(node: &Node<F>, class: &Class, bytes: u64) -> Option<(Box<Path<F>>, Turn)> {
        let priority = class.priority;
        let pause = node.qos.begin(priority);
        let taken = if pause == 0 { node.paths.try_enter(class.flow(), bytes) } else { None };
        let Some((path, is_timed)) = taken else {
            node.qos.end(priority);
            return None;
        };
        let is_timed = is_timed || node.qos.wants_trip(priority);
        Some((path, Turn { has_begun: true, is_timed, ..Turn::default() }))
    }

    /// Begins an operation on a path that another one has; `None` if it would wait, or others do.
    pub(crate) fn join<F: Fabric>(node: &Node<F>, class: &Class) -> Option<Turn> {
        let priority = class.priority;
        if node.qos.begin(priority) > 0 || !node.paths.join(priority) {
            node.qos.end(priority);
            return None;
        }
        let is_timed = node.qos.wants_trip(priority);
        Some(Turn { has_begun: true, is_timed, ..Turn::default() })
    }

    /// The operation runs on a path.
    pub(crate) fn start<H: Host>(&mut self, host: &H, has_path: bool) {
        if has_path && self.is_timed {
            self.since = Some(host.now());
        }
    }

    /// The operation is complete.
    pub(crate) fn stop<F: Fabric>(&mut self, node: &Node<F>, length: u64) {
        if let Some(since) = self.since {
            let now = node.fabric.host().now();
            let time = now.saturating_sub(since);
            node.qos.note(now, length, time);
            self.trip = Some(Trip::new(now, length, time));
        }
    }
}

/// A copy from a region that this node stores.
#[derive(Debug)]
pub(crate) struct Copy<'a> {
    pub(crate) owner: LmrId,
    pub(crate) extent: u16,
    pub(crate) offset: u64,
    pub(crate) length: u32,
    pub(crate) to: LmrId,
    pub(crate) target: u64,
    pub(crate) backwards: bool,
    /// The principal, and the priority of its operation.
    pub(crate) whose: (&'a Principal, Priority),
}
