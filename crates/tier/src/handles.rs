//! The handles (lh) of one process: rights, bounds and places, checked on the accessing node before anything is
//! posted (section 4.1). No other process and no other node can use a handle.
//!
//! The table also holds the mapper's half of the protocol that frees a region: after [`HandleTable::stop`] no operation
//! begins, and the region is drained when all operations have ended. [`HandleTable::restrict`] does the same to the
//! handles of principals that have lost a right.

use crate::access::{AccessError, Kind};
use crate::cut::Layout;
use crate::ledger::Changes;
use crate::place::{LmrId, NodeId};
use crate::rights::{Grants, Principal, Rights};
use std::collections::BTreeMap;
use thiserror::Error;

mod kept;

/// A handle: a slot of a process's table and the slot's generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Handle(u64);

impl Handle {
    fn new(slot: u32, generation: u32) -> Handle {
        Handle(u64::from(generation) << 32 | u64::from(slot))
    }

    /// Returns the handle as a number, for messages.
    pub const fn number(self) -> u64 {
        self.0
    }

    /// Makes a handle from a number that may be forged or stale; the table checks it at each use.
    pub const fn from_number(number: u64) -> Handle {
        Handle(number)
    }

    const fn slot(self) -> usize {
        (self.0 & 0xffff_ffff) as usize
    }

    const fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

/// The most handles of one table.
pub const MAX_HANDLES: usize = 1 << 20;
/// The most map requests of one table that wait for their answers.
pub const MAX_PENDING_MAPS: usize = 4096;

/// The reason why a region cannot be mapped into a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TableError {
    /// The table is full.
    #[error("this process has {MAX_HANDLES} handles: unmap some")]
    Full,
    /// Too many map requests wait for their answers.
    #[error("{MAX_PENDING_MAPS} map requests wait for their answers: wait for some")]
    TooManyPending,
    /// The region was freed while the answer to the map request was under way.
    #[error("the region was freed while it was being mapped")]
    Freed,
    /// A node ended, or fenced this one, or a right to the region was revoked, while the answer was under way: the
    /// answer may be older than that.
    #[error("a node was lost, or a right revoked, while the region was being mapped: map it again")]
    Interrupted,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum State {
    /// No handle; the slot is on the free list.
    Free,
    /// Operations may begin.
    Live,
    /// The region was freed, or its memory is gone.
    Gone,
    /// The region has another place.
    Moved,
    /// Its principal has lost a right that the handle has.
    Revoked,
    /// Unmapped; operations are still in flight.
    Closing,
}

impl State {
    /// Returns whether there is a handle that is not unmapped.
    const fn is_open(self) -> bool {
        matches!(self, State::Live | State::Gone | State::Moved | State::Revoked)
    }
}

/// A handle's metadata.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Entry {
    layout: Option<Layout>,
    length: u64,
    id: LmrId,
    generation: u32,
    in_flight: u32,
    rights: Rights,
    state: State,
}

// One line a handle: a process may have a million.
const _: () = assert!(size_of::<Entry>() <= 64);

/// A permit to post one operation. It counts as in flight until [`HandleTable::end`].
#[derive(Debug)]
#[must_use = "an operation is in flight until HandleTable::end"]
pub struct Operation {
    pub(crate) handle: Handle,
    /// The places of the region's bytes.
    pub layout: Layout,
}

/// A map request that waits for its answer.
#[derive(Debug)]
#[must_use = "a map request is pending until HandleTable::finish_map"]
pub struct MapTicket {
    /// [`HandleTable::losses`] when the request was sent.
    losses: u64,
    /// The number of the request.
    number: u64,
}

#[cfg(test)]
impl MapTicket {
    /// Makes the ticket of a request that a model counts as pending: a state of a model is cloned, and tickets are
    /// not.
    pub(crate) fn for_model((losses, number): (u64, u64)) -> MapTicket {
        MapTicket { losses, number }
    }

    pub(crate) fn of_model(&self) -> (u64, u64) {
        (self.losses, self.number)
    }
}

/// The handles of one process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct HandleTable {
    entries: Vec<Entry>,
    free: Vec<u32>,
    pending_maps: usize,
    /// The number of the last map request.
    maps: u64,
    /// Regions that were stopped while map requests were pending, and the last of these. Emptied when none is pending.
    stopped: BTreeMap<LmrId, u64>,
    /// Regions whose grants became fewer while map requests were pending, likewise.
    restricted: BTreeMap<LmrId, u64>,
    /// The slots in use, by region, and the principal of each.
    slots: BTreeMap<(LmrId, u32), Principal>,
    /// The number of calls of [`lose`](HandleTable::lose).
    losses: u64,
    /// Slots whose entries in a ledger may be older.
    changes: Changes<u32>,
}

impl HandleTable {
    /// Makes an empty table.
    pub fn new() -> HandleTable {
        HandleTable::default()
    }

    /// Returns the number of handles that are not unmapped.
    pub fn len(&self) -> usize {
        self.entries.iter().filter(|entry| entry.state.is_open()).count()
    }

    /// Returns whether the table has no handles.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Begins a map request. Call before the request is sent: a free that overtakes the answer is then noticed.
    pub fn begin_map(&mut self) -> Result<MapTicket, TableError> {
        if self.pending_maps >= MAX_PENDING_MAPS {
            return Err(TableError::TooManyPending);
        }
        self.pending_maps += 1;
        self.maps += 1;
        Ok(MapTicket { losses: self.losses, number: self.maps })
    }

    /// Ends a map request that was refused, or whose answer did not arrive.
    pub fn abandon_map(&mut self, ticket: MapTicket) {
        // The ticket ends with its request.
        drop(ticket);
        self.pending_maps -= 1;
        if self.pending_maps == 0 {
            self.stopped.clear();
            self.restricted.clear();
        }
    }

    /// Ends the map request of a principal with its answer; returns a new handle, also for a region that is mapped
    /// already.
    pub fn finish_map(
        &mut self,
        ticket: MapTicket,
        id: LmrId,
        (principal, rights): (&Principal, Rights),
        layout: Layout,
    ) -> Result<Handle, TableError> {
        // A later request was answered after a move was given up.
        let is_older = |than: &BTreeMap<LmrId, u64>| than.get(&id).is_some_and(|last| ticket.number <= *last);
        let (stopped, restricted) = (is_older(&self.stopped), is_older(&self.restricted));
        let interrupted = restricted || ticket.losses != self.losses;
        self.abandon_map(ticket);
        if stopped {
            return Err(TableError::Freed);
        }
        if interrupted {
            return Err(TableError::Interrupted);
        }
        let (length, in_flight, state) = (layout.length(), 0, State::Live);
        if let Some(slot) = self.free.pop() {
            let entry = &mut self.entries[slot as usize];
            let generation = entry.generation;
            *entry = Entry { layout: Some(layout), length, id, generation, in_flight, rights, state };
            self.slots.insert((id, slot), principal.clone());
            self.changes.note(slot);
            return Ok(Handle::new(slot, generation));
        }
        if self.entries.len() >= MAX_HANDLES {
            return Err(TableError::Full);
        }
        let slot = self.entries.len() as u32;
        // Generations begin at 1, so no handle is 0.
        let generation = 1;
        self.entries.push(Entry { layout: Some(layout), length, id, generation, in_flight, rights, state });
        self.slots.insert((id, slot), principal.clone());
        self.changes.note(slot);
        Ok(Handle::new(slot, generation))
    }

    fn entry(&self, handle: Handle) -> Option<&Entry> {
        let entry = self.entries.get(handle.slot())?;
        let valid = entry.generation == handle.generation() && entry.state.is_open();
        valid.then_some(entry)
    }

    /// Returns the region, the rights and the length of a handle.
    ///
    /// # Errors
    /// The table has no such handle, or a right of it was revoked.
    pub fn describe(&self, handle: Handle) -> Result<(LmrId, Rights, u64), AccessError> {
        let entry = self.entry(handle).ok_or(AccessError::NoHandle)?;
        if entry.state == State::Revoked {
            return Err(AccessError::Revoked);
        }
        Ok((entry.id, entry.rights, entry.length))
    }

    /// Returns the places that the bytes of a region had that was [lost](HandleTable::lose) with one of its nodes.
    pub fn lost(&self, handle: Handle) -> Option<&Layout> {
        self.entry(handle).filter(|entry| entry.state == State::Gone)?.layout.as_ref()
    }

    /// Checks an operation of `kind` on `length` bytes at `offset`, and counts it as in flight.
    #[inline]
    pub fn begin(
        &mut self,
        handle: Handle,
        kind: Kind,
        offset: u64,
        length: u64,
    ) -> Result<Operation, AccessError> {
        let Some(entry) = self.entries.get_mut(handle.slot()) else { return Err(AccessError::NoHandle) };
        if entry.generation != handle.generation() {
            return Err(AccessError::NoHandle);
        }
        let layout = match (entry.state, &entry.layout) {
            (State::Live, Some(layout)) => layout,
            (State::Gone, _) => return Err(AccessError::Gone),
            (State::Moved, _) => return Err(AccessError::Moved),
            (State::Revoked, _) => return Err(AccessError::Revoked),
            _ => return Err(AccessError::NoHandle),
        };
        if !entry.rights.contains(kind.needs()) {
            return Err(AccessError::Denied { needs: kind.needs(), has: entry.rights });
        }
        if offset > entry.length || length > entry.length - offset {
            return Err(AccessError::OutOfBounds { offset, length, size: entry.length });
        }
        if kind == Kind::Atomic && !offset.is_multiple_of(8) {
            return Err(AccessError::Misaligned(offset));
        }
        let layout = layout.clone();
        entry.in_flight = entry.in_flight.checked_add(1).ok_or(AccessError::TooManyOperations)?;
        Ok(Operation { handle, layout })
    }

    /// Ends an operation: nothing of it is in flight any more. Returns the region if that closed an unmapped
    /// handle: the record's node must then be told of one unmapping.
    #[inline]
    pub fn end(&mut self, operation: Operation) -> Option<LmrId> {
        let slot = operation.handle.slot();
        let entry = self.entries.get_mut(slot)?;
        entry.in_flight = entry.in_flight.saturating_sub(1);
        (entry.state == State::Closing && entry.in_flight == 0).then(|| self.release(slot))
    }

    /// Unmaps a handle. Operations in flight end as usual. Returns the region if the handle is closed now; with
    /// operations in flight, the last [`end`](HandleTable::end) returns it.
    pub fn unmap(&mut self, handle: Handle) -> Result<Option<LmrId>, AccessError> {
        self.entry(handle).ok_or(AccessError::NoHandle)?;
        let slot = handle.slot();
        let entry = &mut self.entries[slot];
        entry.state = State::Closing;
        self.changes.note(slot as u32);
        Ok((entry.in_flight == 0).then(|| self.release(slot)))
    }

    fn release(&mut self, slot: usize) -> LmrId {
        let entry = &mut self.entries[slot];
        let id = entry.id;
        entry.state = State::Free;
        entry.layout = None;
        // A slot whose generations are used up is not used again.
        if let Some(next) = entry.generation.checked_add(1) {
            entry.generation = next;
            self.free.push(slot as u32);
        }
        self.slots.remove(&(id, slot as u32));
        self.changes.note(slot as u32);
        id
    }

    /// Stops a region that is being freed, or that moves: no operation on it by this id begins any more, also if the
    /// answer to a map request is still under way. Returns whether it is drained; otherwise ask again. May be repeated.
    pub fn stop(&mut self, id: LmrId, moves: bool) -> bool {
        if self.pending_maps > 0 {
            self.stopped.insert(id, self.maps);
        }
        let mut drained = true;
        for (_, slot) in self.slots.range((id, 0)..=(id, u32::MAX)).map(|(slot, _)| slot) {
            let entry = &mut self.entries[*slot as usize];
            if entry.state == State::Live {
                entry.state = if moves { State::Moved } else { State::Gone };
                entry.layout = None;
                self.changes.note(*slot);
            }
            drained &= entry.in_flight == 0;
        }
        drained
    }

    /// Returns whether there is a handle on a region, also one that is unmapped and has operations in flight.
    pub fn has(&self, id: LmrId) -> bool {
        self.slots.range((id, 0)..=(id, u32::MAX)).next().is_some()
    }

    /// Ends the handles of a region by which a principal could do more than its grants permit: no operation on them
    /// begins any more, and answers to map requests that are under way do not count. Returns those handles of which
    /// operations are in flight still: without any, the region is drained of them. May be repeated.
    pub fn restrict(&mut self, id: LmrId, grants: &Grants) -> Vec<Handle> {
        if self.pending_maps > 0 {
            self.restricted.insert(id, self.maps);
        }
        let mut in_flight = Vec::new();
        for ((_, slot), principal) in self.slots.range((id, 0)..=(id, u32::MAX)) {
            let entry = &mut self.entries[*slot as usize];
            if grants.of(principal).contains(entry.rights) {
                continue;
            }
            if entry.state == State::Live {
                entry.state = State::Revoked;
                entry.layout = None;
                self.changes.note(*slot);
            }
            if entry.in_flight > 0 {
                in_flight.push(Handle::new(*slot, entry.generation));
            }
        }
        in_flight
    }

    /// Marks one handle as gone: the memory of its region is not there any more. The handle can be unmapped, and the
    /// region freed by it.
    pub fn lose_one(&mut self, handle: Handle) {
        if self.entry(handle).is_some_and(|entry| entry.state == State::Live)
            && let Some(entry) = self.entries.get_mut(handle.slot())
        {
            entry.state = State::Gone;
            self.changes.note(handle.slot() as u32);
        }
    }

    /// Marks all regions with a piece at `node` as gone: the node ended, or it fenced this node. Returns their
    /// number. Map requests that are pending are interrupted: their answers may be older.
    pub fn lose(&mut self, node: NodeId) -> usize {
        self.losses += 1;
        let mut lost = 0;
        let live = self.entries.iter_mut().zip(0u32..).filter(|(entry, _)| entry.state == State::Live);
        for (entry, slot) in live {
            let stored = |layout: &Layout| layout.pieces().iter().any(|piece| piece.node == node);
            if entry.layout.as_ref().is_some_and(stored) {
                // The layout stays: an error names the node.
                entry.state = State::Gone;
                self.changes.note(slot);
                lost += 1;
            }
        }
        lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::Piece;
    use proptest::prelude::*;

    fn id(slot: u32) -> LmrId {
        LmrId { node: NodeId(1), slot, generation: 1 }
    }

    fn layout(node: u16, length: u32) -> Layout {
        Layout::new(vec![Piece { node: NodeId(node), extent: 0, length, offset: 0 }]).unwrap()
    }

    fn principal(name: &str) -> Principal {
        Principal::new(name).unwrap()
    }

    fn map_for(table: &mut HandleTable, name: &str, rights: Rights) -> Handle {
        let ticket = table.begin_map().unwrap();
        table.finish_map(ticket, id(1), (&principal(name), rights), layout(2, 64)).unwrap()
    }

    fn map(table: &mut HandleTable, slot: u32, rights: Rights, length: u32) -> Handle {
        let ticket = table.begin_map().unwrap();
        table.finish_map(ticket, id(slot), (&principal("p"), rights), layout(2, length)).unwrap()
    }

    #[test]
    fn a_revoked_right_ends_the_handles_of_its_principal() {
        let mut table = HandleTable::new();
        let (alice, bob) = (principal("alice"), principal("bob"));
        let mut grants = Grants::of_creator(alice.clone());
        let to = |principal: &Principal| crate::rights::Grantee::Principal(principal.clone());
        grants.grant(&alice, to(&bob), Rights::READ).unwrap();
        let own = map_for(&mut table, "alice", Rights::ALL);
        let (writer, reader) =
            (map_for(&mut table, "bob", Rights::ALL), map_for(&mut table, "bob", Rights::READ));
        let elsewhere = map(&mut table, 2, Rights::ALL, 64);
        let closing = map_for(&mut table, "bob", Rights::WRITE);
        let operations = [writer, closing].map(|handle| table.begin(handle, Kind::Write, 0, 8).unwrap());
        assert_eq!(table.unmap(closing), Ok(None));
        assert_eq!(table.restrict(id(1), &grants), [writer, closing], "an unmapped handle is in use still");
        assert_eq!(table.begin(writer, Kind::Read, 0, 8).unwrap_err(), AccessError::Revoked);
        assert_eq!(table.describe(writer), Err(AccessError::Revoked));
        for handle in [own, reader, elsewhere] {
            let operation = table.begin(handle, Kind::Read, 0, 8).unwrap();
            assert_eq!(table.restrict(id(1), &grants), [writer, closing], "others go on");
            table.end(operation);
        }
        assert_eq!(operations.map(|operation| table.end(operation)), [None, Some(id(1))]);
        assert_eq!(table.restrict(id(1), &grants), []);
        assert_eq!(table.unmap(writer), Ok(Some(id(1))));
    }

    #[test]
    fn a_restriction_that_overtakes_the_answer_to_a_map_request_counts() {
        let mut table = HandleTable::new();
        let grants = Grants::of_creator(principal("alice"));
        let ticket = table.begin_map().unwrap();
        // Another request is pending all the time.
        let _other = table.begin_map().unwrap();
        assert_eq!(table.restrict(id(1), &grants), []);
        let bob = principal("bob");
        let answer = table.finish_map(ticket, id(1), (&bob, Rights::READ), layout(2, 64));
        assert_eq!(answer, Err(TableError::Interrupted));
        let ticket = table.begin_map().unwrap();
        assert!(
            table.finish_map(ticket, id(1), (&bob, Rights::READ), layout(2, 64)).is_ok(),
            "a later one counts"
        );
    }

    #[test]
    fn each_mapping_is_a_new_handle_and_old_ones_are_refused() {
        let mut table = HandleTable::new();
        let first = map(&mut table, 1, Rights::READ, 100);
        let second = map(&mut table, 1, Rights::ALL, 100);
        assert_ne!(first, second);
        assert_eq!(table.describe(first), Ok((id(1), Rights::READ, 100)));
        assert_eq!(table.unmap(first), Ok(Some(id(1))));
        assert_eq!(table.unmap(first), Err(AccessError::NoHandle));
        let third = map(&mut table, 1, Rights::READ, 100);
        assert_eq!(third.slot(), first.slot(), "the slot is used again");
        assert!(matches!(table.begin(first, Kind::Read, 0, 1), Err(AccessError::NoHandle)));
        assert_eq!(table.unmap(third), Ok(Some(id(1))));
        assert_eq!(table.unmap(second), Ok(Some(id(1))));
        assert!(table.is_empty());
    }

    #[test]
    fn rights_are_needed_one_by_one() {
        let mut table = HandleTable::new();
        for bits in 0..8 {
            let rights = Rights::from_bits(bits).unwrap();
            let handle = map(&mut table, bits.into(), rights, 64);
            for kind in [Kind::Read, Kind::Write, Kind::Atomic] {
                let allowed = if kind == Kind::Read { bits & 1 != 0 } else { bits & 2 != 0 };
                match table.begin(handle, kind, 0, 8) {
                    Ok(operation) => {
                        assert!(allowed, "{kind:?} with {rights}");
                        assert_eq!(table.end(operation), None);
                    }
                    Err(error) => {
                        assert!(!allowed, "{kind:?} with {rights}");
                        assert_eq!(error, AccessError::Denied { needs: kind.needs(), has: rights });
                    }
                }
            }
        }
    }

    #[test]
    fn a_stop_concerns_map_requests_of_before() {
        let mut table = HandleTable::new();
        let principal = Principal::new("user").unwrap();
        let (first, last) = (table.begin_map().unwrap(), table.begin_map().unwrap());
        assert!(table.stop(id(1), true));
        let later = table.begin_map().unwrap();
        let mut finish = |ticket| table.finish_map(ticket, id(1), (&principal, Rights::READ), layout(1, 64));
        assert!(finish(later).is_ok(), "the move was given up");
        assert_eq!([first, last].map(finish), [Err(TableError::Freed); 2]);
        let next = table.begin_map().unwrap();
        assert!(table.finish_map(next, id(1), (&principal, Rights::READ), layout(1, 64)).is_ok());
    }

    #[test]
    fn a_stopped_region_drains_and_stays_gone() {
        let mut table = HandleTable::new();
        let (one, other) = (map(&mut table, 1, Rights::ALL, 64), map(&mut table, 2, Rights::ALL, 64));
        let operation = table.begin(one, Kind::Write, 0, 64).unwrap();
        assert!(!table.stop(id(1), false) && !table.stop(id(1), false));
        assert!(matches!(table.begin(one, Kind::Write, 0, 64), Err(AccessError::Gone)));
        let unrelated = table.begin(other, Kind::Write, 0, 64).unwrap();
        assert_eq!(table.end(operation), None);
        assert!(table.stop(id(1), false), "operations on other regions do not count");
        assert_eq!(table.end(unrelated), None);
        assert_eq!(table.unmap(one), Ok(Some(id(1))));
    }

    #[test]
    fn an_unmapped_handle_with_an_operation_in_flight_is_not_drained() {
        let mut table = HandleTable::new();
        let handle = map(&mut table, 1, Rights::ALL, 64);
        let operation = table.begin(handle, Kind::Read, 0, 8).unwrap();
        assert_eq!(table.unmap(handle), Ok(None));
        assert!(!table.stop(id(1), false));
        assert!(matches!(table.begin(handle, Kind::Read, 0, 8), Err(AccessError::NoHandle)));
        assert_eq!(table.end(operation), Some(id(1)));
        assert!(table.stop(id(1), false));
    }

    #[test]
    fn a_free_that_overtakes_the_answer_to_a_map_request_is_noticed() {
        let mut table = HandleTable::new();
        let (first, second) = (table.begin_map().unwrap(), table.begin_map().unwrap());
        assert!(table.stop(id(1), false));
        assert_eq!(
            table.finish_map(first, id(1), (&principal("p"), Rights::ALL), layout(2, 64)),
            Err(TableError::Freed)
        );
        assert!(table.finish_map(second, id(2), (&principal("p"), Rights::ALL), layout(2, 64)).is_ok());
        assert!(table.stopped.is_empty(), "no request is pending, so nothing needs to be remembered");
    }

    #[test]
    fn a_lost_node_takes_its_regions_with_it() {
        let mut table = HandleTable::new();
        let ticket = table.begin_map().unwrap();
        let elsewhere =
            table.finish_map(ticket, id(5), (&principal("p"), Rights::ALL), layout(3, 64)).unwrap();
        let here = map(&mut table, 1, Rights::ALL, 64);
        assert_eq!(table.lose(NodeId(2)), 1);
        assert!(matches!(table.begin(here, Kind::Read, 0, 1), Err(AccessError::Gone)));
        assert!(table.begin(elsewhere, Kind::Read, 0, 1).is_ok());
    }

    #[test]
    fn a_lost_node_interrupts_pending_map_requests() {
        let mut table = HandleTable::new();
        let ticket = table.begin_map().unwrap();
        assert_eq!(table.lose(NodeId(2)), 0);
        let interrupted = table.finish_map(ticket, id(1), (&principal("p"), Rights::ALL), layout(2, 64));
        assert_eq!(interrupted, Err(TableError::Interrupted));
        assert!(table.is_empty());
        map(&mut table, 1, Rights::ALL, 64);
    }

    #[test]
    fn a_handle_of_a_region_that_moves_says_so() {
        let mut table = HandleTable::new();
        let handle = map(&mut table, 1, Rights::ALL, 64);
        let operation = table.begin(handle, Kind::Write, 0, 8).unwrap();
        assert!(!table.stop(id(1), true));
        assert_eq!(table.begin(handle, Kind::Read, 0, 8).unwrap_err(), AccessError::Moved);
        assert_eq!(table.describe(handle).unwrap().0, id(1));
        table.end(operation);
        assert!(table.stop(id(1), true) && table.len() == 1);
        assert_eq!(table.unmap(handle), Ok(Some(id(1))));
    }

    #[test]
    fn pending_maps_are_bounded() {
        let mut table = HandleTable::new();
        let tickets: Vec<_> = (0..MAX_PENDING_MAPS).map(|_| table.begin_map().unwrap()).collect();
        assert!(matches!(table.begin_map(), Err(TableError::TooManyPending)));
        tickets.into_iter().for_each(|ticket| table.abandon_map(ticket));
        assert!(table.begin_map().is_ok());
    }

    proptest! {
        /// The check against the definition, with numbers near the ends of their ranges.
        #[test]
        fn bounds_are_exact(length in 1u32..5000, offset in edge(), count in edge()) {
            let mut table = HandleTable::new();
            let handle = map(&mut table, 1, Rights::ALL, length);
            let inside = u128::from(offset) + u128::from(count) <= u128::from(length);
            match table.begin(handle, Kind::Write, offset, count) {
                Ok(operation) => {
                    prop_assert!(inside);
                    let _ = table.end(operation);
                }
                Err(error) => {
                    prop_assert!(!inside);
                    prop_assert_eq!(error, AccessError::OutOfBounds { offset, length: count, size: length.into() });
                }
            }
            let atomic = table.begin(handle, Kind::Atomic, offset, 8);
            prop_assert_eq!(atomic.is_ok(), offset % 8 == 0 && u128::from(offset) + 8 <= u128::from(length));
        }

        /// No number is a handle unless the table gave it out and it is not unmapped.
        #[test]
        fn forged_numbers_are_refused(number in any::<u64>(), slot in 0u64..6, generation in 0u64..4) {
            let mut table = HandleTable::new();
            let mut live = Vec::new();
            for slot in 0..4 {
                live.push(map(&mut table, slot, Rights::ALL, 64));
            }
            let gone = live.remove(1);
            let _ = table.unmap(gone);
            for number in [number, generation << 32 | slot] {
                let handle = Handle::from_number(number);
                let found = table.begin(handle, Kind::Read, 0, 1).is_ok();
                prop_assert_eq!(found, live.contains(&handle));
            }
        }
    }

    fn edge() -> impl Strategy<Value = u64> {
        prop_oneof![0u64..6000, (u64::MAX - 6000)..=u64::MAX, any::<u64>()]
    }
}
