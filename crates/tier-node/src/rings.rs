//! Payloads of calls in rings (LITE section 5.1): the calling node writes a long request into its ring at the serving node,
//! by a path, as any operation on memory. The message of the call says where it lies. The receiver copies it from there
//! into its buffer. A long result is put into the same range, and the calling node reads it into the caller's buffer.

use crate::attempt::Attempted;
use crate::buffer::Lent;
use crate::calling::{CallRequest, CallRoom};
use crate::carriers::Carriers;
use crate::error::{OperationError, RequestError};
use crate::item::{Item, Transfer};
use crate::node::{Node, State};
use crate::operate::Target;
use crate::path::Stop;
use crate::qos::Class;
use dunlin_fabric::{Fabric, Host, Nanos, Region, Work};
use dunlin_tier::call::MAX_CALL;
use dunlin_tier::message::{Refusal, Reply, Request};
use dunlin_tier::ring::LONGEST_PART;
use dunlin_tier::{Handle, Kind, Layout, LmrId, NodeId, Rights, Ring, RingPlace, RingRange};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Payloads of fewer bytes travel in the message: it has them as soon as the serving node hears of them.
pub(crate) const FROM: usize = 4097;
/// The part of a node's memory that the rings of all nodes there may have.
const SHARE: u64 = 8;
/// The time for which a node that has refused a part is not asked for another one, and for which one that has not answered
/// in the time of a call is not, in nanoseconds.
const ASK_AGAIN: Nanos = 1_000_000_000;
pub(crate) const TRY_AGAIN: Nanos = 10_000_000;
/// The time for a message at the node's end, connecting included, in nanoseconds.
const AT_END: Nanos = 100_000_000;
/// The share of one long result in the length that is expected of the next one, 1 / `RESULTS`, if it is shorter.
const RESULTS: usize = 16;
/// The longest payload of a call of a process that is moved at once where the initiator copies: to hand it to another
/// thread takes longer.
const AT_ONCE: u64 = 64 << 10;
/// Bytes that are copied with the lock held.
const COPY_AT_ONCE: usize = 64 << 10;

/// The use of the ring that a node has at another one: [`Tier::ring`](crate::Tier::ring).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingUse {
    /// The bytes of memory that it has at the other node.
    pub length: u64,
    /// Requests and results that have gone through it.
    pub payloads: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Long requests that found no range, and travelled in messages.
    pub in_messages: u64,
}

/// A part of a ring: a region of the calling node, in one piece.
#[derive(Clone, Copy, Debug)]
struct Part {
    id: LmrId,
    handle: Handle,
    extent: u16,
    offset: u64,
}

#[derive(Debug, Default)]
struct ToNode {
    ring: Ring<Part>,
    /// The length of long results, a little over that of the last ones, in bytes: calls with long buffers take a range for
    /// the next ones. 0 if no result was long.
    long_result: usize,
    /// Requests and results that went through the ring, and their bytes.
    payloads: u64,
    bytes: u64,
    in_messages: u64,
}

/// The rings of a node, by the nodes that it calls.
#[derive(Debug)]
pub(crate) struct Rings(Vec<Mutex<ToNode>>);

impl Rings {
    pub(crate) fn new(nodes: usize) -> Self {
        Rings((0..nodes).map(|_| Mutex::default()).collect())
    }

    fn to(&self, node: NodeId) -> MutexGuard<'_, ToNode> {
        self.0[usize::from(node.0)].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes the length of a result.
    pub(crate) fn note_result(&self, node: NodeId, length: usize) {
        if length >= FROM {
            let long = &mut self.to(node).long_result;
            let length = length.next_power_of_two();
            *long = if length > *long { length } else { *long - (*long - length) / RESULTS };
        }
    }

    /// Returns the bytes of the ring that a call takes for its result: about the length of the last long results, and at
    /// most `room`, the memory of the caller. 0 if no result was long, or the room is short.
    pub(crate) fn room_for(&self, node: NodeId, room: usize) -> usize {
        if room < FROM {
            return 0;
        }
        let room = room.min(self.to(node).long_result);
        if room < FROM { 0 } else { room }
    }

    /// A long request travels in its message.
    pub(crate) fn count_message(&self, node: NodeId) {
        self.to(node).in_messages += 1;
    }

    /// Returns the use of the ring to a node.
    pub(crate) fn used(&self, node: NodeId) -> RingUse {
        let to = self.to(node);
        let ToNode { payloads, bytes, in_messages, .. } = *to;
        RingUse { length: to.ring.length(), payloads, bytes, in_messages }
    }

    fn count(&self, node: NodeId, bytes: usize) {
        let mut to = self.to(node);
        to.payloads += 1;
        to.bytes += bytes as u64;
    }
}

/// A call's range of a ring.
#[derive(Debug)]
#[must_use = "a range is left when its call has ended"]
pub(crate) struct Placed {
    to: NodeId,
    range: RingRange,
    part: Part,
    /// The range as the serving node knows it.
    pub(crate) place: RingPlace,
}

impl Placed {
    /// The range has the request, if it is long, and room for a long result.
    fn new(to: NodeId, (range, part): (RingRange, Part), request: Option<u32>, room: usize) -> Placed {
        let room = if room >= FROM { room.min(range.length as usize) } else { 0 };
        let (owner, extent, offset) = (part.id, part.extent, part.offset + range.offset);
        let place = RingPlace { owner, extent, offset, request, room: room as u32 };
        Placed { to, range, part, place }
    }
}

impl<F: Fabric> Node<F> {
    /// Takes a range of the ring to a node for a call, if its request or its result is long, and writes a long request there.
    /// `None` if the payloads travel in messages: they are short, or there is no room in the ring. `room` is the longest
    /// result that the caller takes. Blocks until the request is written, or until `until`.
    pub(crate) fn place_call(
        &self,
        to: NodeId,
        class: &Class,
        request: &mut CallRequest<'_, F>,
        room: usize,
        until: Nanos,
    ) -> Option<Placed> {
        let length = request.bytes().len();
        let placed = self.take_call_range(to, length, room, until)?;
        let write = |placed: &Placed| match request {
            CallRequest::Bytes(bytes) => self.write_range(placed, class, (0, Transfer::Write(bytes)), until),
            CallRequest::Buffer(buffer, range) => {
                let loan = buffer.lend(self, range.clone())?;
                self.write_range(placed, class, (0, Transfer::WriteFrom(loan.range().clone())), until)
            }
        };
        self.write_request(placed, write)
    }

    /// As [`place_call`](Node::place_call), with the request in a buffer of a process.
    pub(crate) fn place_lent(
        &self,
        to: NodeId,
        class: &Class,
        request: &Lent<F>,
        room: usize,
        until: Nanos,
    ) -> Option<Placed> {
        let placed = self.take_call_range(to, request.length(), room, until)?;
        self.write_request(placed, |placed| {
            let mut parts = request.parts();
            parts.try_for_each(|(at, part)| {
                self.write_range(placed, class, (at, Transfer::WriteFrom(part)), until)
            })
        })
    }

    /// Takes a range for a call with a request of `length` bytes, if it needs one.
    fn take_call_range(&self, to: NodeId, length: usize, room: usize, until: Nanos) -> Option<Placed> {
        let goes = length >= FROM;
        let comes = room >= FROM && self.rings.to(to).long_result > 0;
        let room = room.min(MAX_CALL as usize);
        let taken = match (goes, comes) {
            (false, false) => return None,
            (true, false) => self.take_range(to, length, until),
            (goes, true) => {
                let both = self.take_range(to, length.max(room), until);
                both.or_else(|| if goes { self.take_range(to, length, until) } else { None })
            }
        };
        if taken.is_none() && goes {
            self.rings.count_message(to);
        }
        Some(Placed::new(to, taken?, goes.then_some(length as u32), room))
    }

    /// Writes a long request into its range. Without success it travels in its message.
    fn write_request(
        &self,
        placed: Placed,
        write: impl FnOnce(&Placed) -> Result<(), OperationError>,
    ) -> Option<Placed> {
        let Some(length) = placed.place.request else { return Some(placed) };
        let to = placed.to;
        match write(&placed) {
            Ok(()) => {
                self.rings.count(to, length as usize);
                Some(placed)
            }
            Err(error) => {
                tracing::debug!(target: "dunlin::tier", node = self.name_of(to), %error, "a request travels in its message");
                // A late WRITE may change the range still.
                self.leave_range(placed, false);
                self.rings.count_message(to);
                None
            }
        }
    }

    /// As [`place_call`](Node::place_call), for a long request, if nothing has to be waited for. Does not block.
    pub(crate) fn place_at_once(
        &self,
        to: NodeId,
        class: &Class,
        request: Transfer<'_, F::Memory>,
        room: usize,
    ) -> Option<Placed> {
        let length = request.len();
        if !self.may_move_at_once(length) {
            return None;
        }
        let taken = {
            let ring = &mut self.rings.to(to).ring;
            ring.take(length.max(room) as u64).or_else(|| ring.take(length as u64))?
        };
        let placed = Placed::new(to, taken, Some(length as u32), room);
        let moved = self.move_at_once(&placed, class, request);
        if let Some(Ok(())) = moved {
            self.rings.count(to, length);
            return Some(placed);
        }
        self.leave_range(placed, moved.is_none());
        None
    }

    /// Reads a result that the serving node has put into a call's range, if nothing has to be waited for; else `None`.
    /// Does not block.
    pub(crate) fn read_at_once(
        &self,
        placed: &Placed,
        class: &Class,
        into: Transfer<'_, F::Memory>,
    ) -> Option<Result<(), OperationError>> {
        let length = into.len();
        if !self.may_move_at_once(length) {
            return None;
        }
        let moved = self.move_at_once(placed, class, into)?;
        if moved.is_ok() {
            self.note_read(placed, length);
        }
        Some(moved)
    }

    /// Elsewhere a request is under way when it is posted.
    fn may_move_at_once(&self, length: usize) -> bool {
        self.fabric.capabilities().initiator_copies && length as u64 <= AT_ONCE
    }

    fn move_at_once(
        &self,
        Placed { range, part, .. }: &Placed,
        class: &Class,
        transfer: Transfer<'_, F::Memory>,
    ) -> Option<Result<(), OperationError>> {
        let (class, mut carriers) = (class.clone().without_limit(), Carriers::new());
        let target = Target { at_once: AT_ONCE, ..Target::new(part.handle, &class) };
        match self.attempt(&mut carriers, target, part.id, range.offset, transfer) {
            Attempted::Done(outcome) => Some(outcome.map(drop)),
            Attempted::Waits => None,
            Attempted::UnderWay(flight) => {
                flight.abandon(self, &mut carriers);
                Some(Err(OperationError::Busy))
            }
        }
    }

    /// Takes a range for a result of at most `room` bytes of a short request. Without one, also returns the length of the
    /// part by which the ring is to [grow](Node::grow_ring). Does not block.
    pub(crate) fn take_room(&self, to: NodeId, room: usize) -> Result<Placed, Option<u64>> {
        let mut peer = self.rings.to(to);
        match peer.ring.take(room as u64) {
            Some(taken) => {
                drop(peer);
                Ok(Placed::new(to, taken, None, room))
            }
            None => Err(peer.ring.grow(room as u64, self.fabric.host().now())),
        }
    }

    /// Takes a range of the ring. A ring without a free range of that length grows first.
    fn take_range(&self, to: NodeId, length: usize, until: Nanos) -> Option<(RingRange, Part)> {
        let length = length as u64;
        let wanted = {
            let mut peer = self.rings.to(to);
            match peer.ring.take(length) {
                Some(taken) => return Some(taken),
                None => peer.ring.grow(length, self.fabric.host().now())?,
            }
        };
        self.grow_ring(to, (wanted, length), until);
        self.rings.to(to).ring.take(length)
    }

    /// Adds a part to a ring that has begun to grow: of `wanted` bytes, and at least `least`. Blocks until `until` at most.
    pub(crate) fn grow_ring(&self, to: NodeId, (wanted, least): (u64, u64), until: Nanos) {
        match self.make_part(to, (wanted, least), until) {
            Ok(part) => self.rings.to(to).ring.grown(Ok(part)),
            Err(error) => {
                let is_refused = matches!(error, RequestError::Refused { .. });
                self.keep_ring(to, if is_refused { ASK_AGAIN } else { TRY_AGAIN });
                tracing::debug!(target: "dunlin::tier", node = self.name_of(to), %error, "the ring for calls stays as it is");
            }
        }
    }

    /// Ends the growth of a ring without a part: it does not grow again soon.
    pub(crate) fn keep_ring(&self, to: NodeId, pause: Nanos) {
        let not_before = self.fabric.host().now().saturating_add(pause);
        self.rings.to(to).ring.grown(Err(not_before));
    }

    /// Makes a part of a ring, a region at another node; returns it with its length: at most `wanted` and at least `least`
    /// bytes.
    fn make_part(
        &self,
        to: NodeId,
        (wanted, least): (u64, u64),
        until: Nanos,
    ) -> Result<(Part, u64), RequestError> {
        let refused = |source: Refusal| RequestError::Refused { node: self.config.node.clone(), source };
        // As for any region: a store that is lost from here on is noticed.
        self.know(&[to], until)?;
        let id = self.state().directory.reserve().map_err(|error| refused(error.into()))?;
        let ticket = match self.state().handles.begin_map() {
            Ok(ticket) => ticket,
            Err(error) => {
                self.state().directory.forget(id);
                return Err(error.into());
            }
        };
        let made = match self.demand(to, Request::Ring { owner: id, length: wanted, least }, until) {
            Ok(Reply::Allocated(layout)) if is_part(&layout, to, least..=wanted) => Ok(layout),
            Ok(_) => Err(self.misfit(to)),
            Err(error) => Err(error),
        };
        let finished = match made {
            Ok(layout) => {
                let (piece, length) = (layout.pieces()[0], layout.length());
                let mut state = self.state();
                state.directory.create(id, None, layout.clone(), self.principal.clone(), self.me);
                let mapped = state.handles.finish_map(ticket, id, (&self.principal, Rights::ALL), layout);
                mapped
                    .map(|handle| (Part { id, handle, extent: piece.extent, offset: piece.offset }, length))
                    .map_err(RequestError::from)
            }
            Err(error) => {
                self.state().handles.abandon_map(ticket);
                if matches!(error, RequestError::Refused { .. }) {
                    self.state().directory.forget(id);
                    return Err(error);
                }
                Err(error)
            }
        };
        finished.inspect_err(|_| self.undo(id, &[to], until))
    }

    /// Writes bytes of a request at an offset in its range. Blocks until `until` at most.
    fn write_range(
        &self,
        Placed { to, range, part, .. }: &Placed,
        class: &Class,
        (at, mut transfer): (u64, Transfer<'_, F::Memory>),
        until: Nanos,
    ) -> Result<(), OperationError> {
        // The call counts its bytes.
        let class = class.clone().without_limit();
        let time = until.saturating_sub(self.fabric.host().now());
        let target = Target { time: Some(time), ..Target::new(part.handle, &class) };
        let offset = range.offset + at;
        let bytes = (offset, transfer.len() as u64);
        self.operate(target, Kind::Write, bytes, |path, layout, deadline| match path {
            Some(path) => path.put(self, layout, (offset, transfer.reborrow()), deadline).map(Some),
            None if *to != self.me => Ok(None),
            None => {
                let mut item = Item::new(layout, offset, transfer.reborrow());
                item.copy_here(self);
                item.error.map_or(Ok(Some(())), |error| Err(Stop::failed(error)))
            }
        })
    }

    /// Reads a result of `length` bytes that the serving node has put into a call's range. Blocks until `until` at most.
    pub(crate) fn read_range(
        &self,
        placed: &Placed,
        class: &Class,
        (into, length): (&mut CallRoom<'_, F>, usize),
        until: Nanos,
    ) -> Result<(), OperationError> {
        let loan;
        let transfer = match into {
            CallRoom::Nothing => return Ok(()),
            CallRoom::Bytes(bytes) => Transfer::Read(&mut bytes[..length]),
            CallRoom::Buffer(buffer, range) => {
                loan = buffer.lend(self, range.start..range.start + length)?;
                Transfer::ReadInto(loan.range().clone())
            }
        };
        self.read_part(placed, class, (0, transfer), until)?;
        self.note_read(placed, length);
        Ok(())
    }

    /// As [`read_range`](Node::read_range), into a buffer of a process.
    pub(crate) fn read_lent(
        &self,
        placed: &Placed,
        class: &Class,
        (into, length): (&Lent<F>, usize),
        until: Nanos,
    ) -> Result<(), OperationError> {
        for (at, part) in into.front(length) {
            self.read_part(placed, class, (at as u64, Transfer::ReadInto(part)), until)?;
        }
        self.note_read(placed, length);
        Ok(())
    }

    fn read_part(
        &self,
        Placed { range, part, .. }: &Placed,
        class: &Class,
        (at, transfer): (u64, Transfer<'_, F::Memory>),
        until: Nanos,
    ) -> Result<(), OperationError> {
        let class = class.clone().without_limit();
        let time = until.saturating_sub(self.fabric.host().now());
        let target = Target { time: Some(time), ..Target::new(part.handle, &class) };
        self.transfer(target, range.offset + at, transfer)
    }

    /// A result was read out of the ring.
    fn note_read(&self, Placed { to, .. }: &Placed, length: usize) {
        self.rings.note_result(*to, length);
        self.rings.count(*to, length);
    }

    /// Leaves the range of a call that has ended. `is_certain` says that the serving node does not use it any more.
    pub(crate) fn leave_range(&self, Placed { to, range, .. }: Placed, is_certain: bool) {
        let ring = &mut self.rings.to(to).ring;
        let back = if is_certain { ring.give(range) } else { ring.lose(range) };
        if let Some(part) = back {
            self.unmap(part.handle);
        }
    }

    /// Gives the memory of all rings back, at the end of the node: nobody calls any more.
    pub(crate) fn end_rings(&self) {
        for peer in 0..self.rings.0.len() as u16 {
            let to = NodeId(peer);
            let parts = self.rings.to(to).ring.give_up();
            if to == self.me || self.roster.dead_in(to).is_some() {
                continue;
            }
            for part in parts {
                let until = self.fabric.host().now().saturating_add(AT_END);
                if let Err(error) = self.ask(to, Request::Release { owner: part.id }, until) {
                    tracing::debug!(target: "dunlin::tier", node = self.name_of(to), %error, "a node keeps memory of a ring");
                    break;
                }
            }
        }
    }

    /// Allocates a part of another node's ring, in one piece of at most `length` bytes and at least `least`.
    pub(crate) fn allocate_part(&self, owner: LmrId, length: u64, least: u64) -> Result<Layout, Refusal> {
        let full = Refusal::OutOfMemory { wanted: least };
        let length = {
            let mut state = self.state();
            let room = (self.arena.length() / SHARE).saturating_sub(state.rings.values().sum());
            let most = length.min(room).min(LONGEST_PART);
            let length = most.checked_ilog2().map_or(0, |bits| 1 << bits);
            if length == 0 || length < least || state.rings.contains_key(&owner) {
                return Err(full);
            }
            state.rings.insert(owner, length);
            length
        };
        let made = self.allocate(None, owner, length, length as u32);
        made.inspect_err(|_| _ = self.state().rings.remove(&owner))
    }
}

/// Returns whether memory that a node has given is one piece there.
fn is_part(layout: &Layout, to: NodeId, lengths: std::ops::RangeInclusive<u64>) -> bool {
    layout.pieces().len() == 1 && layout.nodes() == [to] && lengths.contains(&layout.length())
}

/// A range of another node's ring in the memory of this one.
#[derive(Debug)]
pub(crate) struct RingMemory<F: Fabric> {
    node: Weak<Node<F>>,
    place: RingPlace,
}

impl<F: Fabric> Clone for RingMemory<F> {
    fn clone(&self) -> Self {
        RingMemory { node: Weak::clone(&self.node), place: self.place }
    }
}

impl<F: Fabric> RingMemory<F> {
    pub(crate) fn new(node: &Arc<Node<F>>, place: RingPlace) -> Self {
        RingMemory { node: Arc::downgrade(node), place }
    }

    /// Returns the longest result that may be put here, in bytes.
    pub(crate) fn room(&self) -> usize {
        self.place.room as usize
    }

    fn owns(&self, state: &State, at: u64, length: u64) -> bool {
        let RingPlace { owner, extent, offset, .. } = self.place;
        offset.checked_add(at).is_some_and(|offset| state.space.owns(owner, extent, offset, length))
    }

    /// Returns whether the caller has the memory of a request of this length.
    pub(crate) fn holds(&self, length: usize) -> bool {
        self.node.upgrade().is_some_and(|node| self.owns(&node.state(), 0, length as u64))
    }

    /// Copies the request out; returns `false` if the memory is not the caller's any more.
    pub(crate) fn copy_out(&self, into: &mut [u8]) -> bool {
        self.take_out(into.len(), |memory, start| memory.copy_out(start, into))
    }

    /// As [`copy_out`](RingMemory::copy_out), into the front of a buffer of a process.
    pub(crate) fn copy_out_to(&self, into: &Lent<F>, length: usize) -> bool {
        self.take_out(length, |memory, start| {
            into.front(length).for_each(|(at, part)| memory.copy_out_range(start + at, &part));
        })
    }

    /// Has bytes of the request copied. Without the lock: the id of a region is never used again, so memory that belongs to
    /// it afterwards did so all the time.
    fn take_out(&self, length: usize, copy: impl FnOnce(&Region<F::Memory>, usize)) -> bool {
        let Some(node) = self.node.upgrade() else { return false };
        let (place, bytes) = (self.place, length as u64);
        let Some((memory, start)) = node.arena.range(place.extent, place.offset, bytes) else { return false };
        if !self.owns(&node.state(), 0, bytes) {
            return false;
        }
        copy(memory, start);
        node.fabric.host().charge(Work::CopyBytes, length as u32);
        self.owns(&node.state(), 0, bytes)
    }

    /// Copies a result in; returns `false` if the memory is not the caller's any more.
    pub(crate) fn copy_in(&self, from: &[u8]) -> bool {
        self.put_at(0, from.len(), |memory, start, part| memory.copy_in(start, &from[part]))
    }

    /// As [`copy_in`](RingMemory::copy_in), from a buffer of a process.
    pub(crate) fn copy_in_from(&self, from: &Lent<F>) -> bool {
        from.parts().all(|(at, range)| {
            self.put_at(at as usize, range.length(), |memory, start, part| {
                if let Some(part) = range.part(part.start, part.len()) {
                    memory.copy_in_range(start, &part);
                }
            })
        })
    }

    /// Has bytes of a result copied to an offset. Each part is copied with the lock held, so a late result changes no byte of
    /// another region.
    fn put_at(
        &self,
        at: usize,
        length: usize,
        mut copy: impl FnMut(&Region<F::Memory>, usize, Range<usize>),
    ) -> bool {
        let Some(node) = self.node.upgrade() else { return false };
        let end = at.checked_add(length).filter(|end| *end <= self.room());
        let place = end.and_then(|end| node.arena.range(self.place.extent, self.place.offset, end as u64));
        let Some((memory, start)) = place else { return false };
        for from in (0..length).step_by(COPY_AT_ONCE) {
            let part = from..length.min(from + COPY_AT_ONCE);
            let state = node.state();
            if !self.owns(&state, (at + from) as u64, part.len() as u64) {
                return false;
            }
            copy(memory, start + at + from, part);
        }
        node.fabric.host().charge(Work::CopyBytes, length as u32);
        true
    }
}
