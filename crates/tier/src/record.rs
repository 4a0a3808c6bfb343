//! The records that a node keeps of regions.

use crate::cut::Layout;
use crate::ledger::Changes;
use crate::name::Name;
use crate::place::{LmrId, NodeId};
use crate::retire::Retirement;
use crate::rights::{GrantError, Grantee, Grants, Principal, Rights};
use std::collections::BTreeMap;
use thiserror::Error;

mod kept;
pub use kept::Recovered;

/// The most records, and the most names, of one node.
pub const MAX_RECORDS: usize = 10_000_000;

/// The reason why a request about a region is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RecordError {
    /// There is no such region, or the principal has no right to it. The two are deliberately the same.
    #[error("there is no such region, or this principal has no right to it")]
    NoSuch,
    /// The principal has some rights, but not all that it asked for.
    #[error("{wanted} was asked for, and the principal has {has}: ask for less, or ask a master for a grant")]
    Denied {
        /// The rights asked for.
        wanted: Rights,
        /// The principal's rights.
        has: Rights,
    },
    /// A grant is refused.
    #[error(transparent)]
    Grant(#[from] GrantError),
    /// The name belongs to another region.
    #[error("the name is taken: free the region that has it, or choose another")]
    Taken,
    /// The region has a name already.
    #[error("the region has a name already: a region is published once")]
    Named,
    /// The region is being moved to another node.
    #[error("the region is being moved to another node: try again")]
    Moving,
    /// A region without a name cannot be moved: its handles could not be made again.
    #[error("the region has no name: publish it, then move it")]
    NoName,
    /// The node keeps as many records or names as it can.
    #[error("the node keeps {MAX_RECORDS} records or names already: free some regions")]
    Full,
    /// The principal's regions have as many bytes as the node allows.
    #[error(
        "the regions of this principal have {has} bytes with this one, and the node allows {quota}: free some"
    )]
    Quota {
        /// The bytes of its regions with the new one.
        has: u64,
        /// The most bytes.
        quota: u64,
    },
}

/// A region in a [`Listing`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its name.
    pub name: Name,
    /// Its length in bytes.
    pub length: u64,
    /// The rights of the principal that asked.
    pub rights: Rights,
}

/// A part of the list of a node's regions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// Regions with a name, in no particular order.
    pub regions: Vec<Listed>,
    /// The place to go on at; `None` at the end.
    pub next: Option<u32>,
}

/// The most regions of one listing.
const LISTED_AT_ONCE: usize = 128;
/// The most records that one listing looks at.
const RECORDS_AT_ONCE: usize = 4096;
/// The most names in one message to their home.
pub const NAMES_AT_ONCE: usize = 256;

/// The answer to a map request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// The rights given: exactly those asked for.
    pub rights: Rights,
    /// The places of the region's bytes.
    pub layout: Layout,
    /// The region's id since its last move, which owns the blocks: that of its handles.
    pub id: LmrId,
}

/// A free that has begun.
#[derive(Clone, Debug)]
pub struct Ending {
    /// The id to forget at the end.
    pub id: LmrId,
    /// The id that owns the blocks.
    pub memory: LmrId,
    /// The machine to drive.
    pub machine: Retirement,
    /// The name that its home has to forget.
    pub name: Option<Name>,
}

/// A move that has begun.
#[derive(Clone, Debug)]
pub struct Leaving {
    /// The id that owns the blocks which the region leaves.
    pub memory: LmrId,
    /// The places that it leaves.
    pub layout: Layout,
    /// The machine to drive. It holds the memory.
    pub machine: Retirement,
}

#[derive(Clone, Debug)]
struct Record {
    /// The region's first id: that of this slot.
    id: LmrId,
    /// The id that owns its blocks: a new one with each move.
    memory: LmrId,
    /// A move has begun: nobody maps the region until it has ended.
    moving: bool,
    name: Option<Name>,
    layout: Layout,
    grants: Grants,
    /// The nodes that mapped the region, with the number of their handles.
    mappers: BTreeMap<NodeId, u32>,
    /// A free has begun: the region is as good as absent.
    ending: bool,
    /// The home of the name has given it to the region.
    named: bool,
    /// The memory to which another region moves: of no use by itself.
    is_target: bool,
}

#[derive(Clone, Debug)]
struct Slot {
    generation: u64,
    record: Option<Record>,
    /// The id is given out: the slot is not on the free list.
    reserved: bool,
    /// The region that has this id since a move, by its first id: its slot may belong to another one by now.
    alias: Option<LmrId>,
    /// The principal whose quota the region counts against, and its bytes.
    charged: Option<(Principal, u64)>,
}

/// The records of the regions whose masters are attached to this node.
#[derive(Clone, Debug)]
pub struct Directory {
    node: NodeId,
    slots: Vec<Slot>,
    free: Vec<u32>,
    first_generation: u64,
    /// The bytes of the regions of each principal that has any.
    charges: BTreeMap<Principal, u64>,
    /// Slots whose entries in a ledger may be older.
    changes: Changes<u32>,
}

impl Directory {
    /// Makes an empty directory. `first_generation` should be random, so that ids of the node's earlier lives name
    /// nothing.
    pub fn new(node: NodeId, first_generation: u64) -> Directory {
        Directory {
            node,
            slots: Vec::new(),
            free: Vec::new(),
            first_generation: first_generation >> 1,
            charges: BTreeMap::new(),
            changes: Changes::default(),
        }
    }

    /// Reserves the id of a new region, which owns the blocks that are allocated for it.
    pub fn reserve(&mut self) -> Result<LmrId, RecordError> {
        if let Some(slot) = self.free.pop() {
            let place = &mut self.slots[slot as usize];
            place.reserved = true;
            self.changes.note(slot);
            return Ok(LmrId { node: self.node, slot, generation: place.generation });
        }
        if self.slots.len() >= MAX_RECORDS {
            return Err(RecordError::Full);
        }
        let (slot, generation) = (self.slots.len() as u32, self.first_generation);
        self.slots.push(Slot { generation, record: None, reserved: true, alias: None, charged: None });
        self.changes.note(slot);
        Ok(LmrId { node: self.node, slot, generation })
    }

    /// Counts a reserved id against the quota of a principal, until the id is forgotten. Refused if the principal's
    /// regions would have more than `quota` bytes.
    pub fn charge(
        &mut self,
        id: LmrId,
        principal: &Principal,
        bytes: u64,
        quota: u64,
    ) -> Result<(), RecordError> {
        let has = self.charged(principal).saturating_add(bytes);
        if has > quota {
            return Err(RecordError::Quota { has, quota });
        }
        let Some(slot) = self.slot(id).filter(|slot| slot.charged.is_none()) else {
            return Err(RecordError::NoSuch);
        };
        slot.charged = Some((principal.clone(), bytes));
        self.charges.insert(principal.clone(), has);
        Ok(())
    }

    /// Returns the bytes of a principal's regions.
    pub fn charged(&self, principal: &Principal) -> u64 {
        self.charges.get(principal).copied().unwrap_or_default()
    }

    /// Lists regions with a name to which a principal has a right. `from` is 0, or the end of the last listing.
    pub fn list(&self, principal: &Principal, from: u32) -> Listing {
        let mut listing = Listing::default();
        for (at, slot) in self.slots.iter().enumerate().skip(from as usize) {
            if listing.regions.len() == LISTED_AT_ONCE || at - from as usize == RECORDS_AT_ONCE {
                listing.next = Some(at as u32);
                break;
            }
            let Some(record) = slot.record.as_ref().filter(|record| !record.ending) else { continue };
            let rights = record.grants.of(principal);
            if let Some(name) = record.name.clone().filter(|_| rights != Rights::NONE) {
                listing.regions.push(Listed { name, length: record.layout.length(), rights });
            }
        }
        listing
    }

    /// Fills a reserved id. `creator` becomes the master, and its node `mapper` counts as having mapped the region
    /// once.
    pub fn create(
        &mut self,
        id: LmrId,
        name: Option<Name>,
        layout: Layout,
        creator: Principal,
        mapper: NodeId,
    ) {
        if let Some(slot) = self.slot(id).filter(|slot| slot.record.is_none()) {
            let (grants, mappers) = (Grants::of_creator(creator), BTreeMap::from([(mapper, 1)]));
            let (memory, moving, ending, named, is_target) = (id, false, false, false, false);
            slot.record =
                Some(Record { id, memory, moving, name, layout, grants, mappers, ending, named, is_target });
        }
    }

    /// Notes that a region without a name is where another one moves to: the next life of the node frees it.
    pub fn set_target(&mut self, id: LmrId) {
        if let Ok(record) = self.live(id) {
            record.is_target = true;
        }
    }

    /// Notes that the home of a region's name has given it to the region.
    pub fn named(&mut self, id: LmrId) {
        if let Ok(record) = self.live(id) {
            record.named = true;
        }
    }

    /// Returns regions with their names, for which `wanted` holds: at most [`NAMES_AT_ONCE`]. `from` is 0, or the place to
    /// go on at, which is `None` at the end.
    pub fn names(&self, from: u32, wanted: impl Fn(&Name) -> bool) -> (Vec<(Name, LmrId)>, Option<u32>) {
        let mut found = Vec::new();
        for (at, slot) in self.slots.iter().enumerate().skip(from as usize) {
            if found.len() == NAMES_AT_ONCE || at - from as usize == RECORDS_AT_ONCE {
                return (found, Some(at as u32));
            }
            let record = slot.record.as_ref().filter(|record| record.named && !record.ending);
            if let Some(name) = record.and_then(|record| record.name.clone()).filter(&wanted) {
                let id = LmrId { node: self.node, slot: at as u32, generation: slot.generation };
                found.push((name, id));
            }
        }
        (found, None)
    }

    /// Returns the slot of an id. It counts as changed.
    fn slot(&mut self, id: LmrId) -> Option<&mut Slot> {
        let slot = self.slots.get_mut(id.slot as usize)?;
        let found = id.node == self.node && slot.reserved && slot.generation == id.generation;
        found.then(|| {
            self.changes.note(id.slot);
            slot
        })
    }

    /// Returns the record of a region by any of its ids.
    fn live(&mut self, id: LmrId) -> Result<&mut Record, RecordError> {
        let slot = self.slot(id).ok_or(RecordError::NoSuch)?;
        let first = slot.alias.unwrap_or(id);
        let record = self.slot(first).and_then(|slot| slot.record.as_mut());
        record.filter(|record| !record.ending).ok_or(RecordError::NoSuch)
    }

    /// Returns whether an id is reserved or has a record.
    pub fn exists(&mut self, id: LmrId) -> bool {
        self.slot(id).is_some()
    }

    /// Returns the names of regions that are not being freed: the first `most`, and the number of all.
    pub fn first_names(&self, most: usize) -> (Vec<Name>, u64) {
        let records = self.slots.iter().filter_map(|slot| slot.record.as_ref());
        let all = records.filter(|record| !record.ending).filter_map(|record| record.name.as_ref());
        (all.clone().take(most).cloned().collect(), all.count() as u64)
    }

    /// Returns the number of ids in use, without a look at each: one for each region, also while it is made or freed,
    /// and another one for a region that has moved.
    pub fn used(&self) -> u64 {
        (self.slots.len() - self.free.len()) as u64
    }

    /// Returns the number of records.
    pub fn len(&self) -> usize {
        self.slots.iter().filter(|slot| slot.record.is_some()).count()
    }

    /// Returns whether there are no records.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Maps a region for a principal attached to `mapper`. The mapper is listed before the answer leaves, so no free
    /// can miss it. A region without a right for the principal looks like an absent one.
    pub fn map(
        &mut self,
        id: LmrId,
        principal: &Principal,
        wanted: Rights,
        mapper: NodeId,
    ) -> Result<Mapping, RecordError> {
        let record = self.live(id)?;
        let has = record.grants.of(principal);
        if has == Rights::NONE {
            return Err(RecordError::NoSuch);
        }
        if !has.contains(wanted) {
            return Err(RecordError::Denied { wanted, has });
        }
        if record.moving {
            return Err(RecordError::Moving);
        }
        *record.mappers.entry(mapper).or_insert(0) += 1;
        Ok(Mapping { rights: wanted, layout: record.layout.clone(), id: record.memory })
    }

    /// Notes that `mapper` closed one handle. Returns `true` if that was the last handle of a region without a name:
    /// it must be freed.
    pub fn unmap(&mut self, id: LmrId, mapper: NodeId) -> bool {
        let Ok(record) = self.live(id) else { return false };
        if let Some(count) = record.mappers.get_mut(&mapper) {
            *count -= 1;
            if *count == 0 {
                record.mappers.remove(&mapper);
            }
        }
        record.name.is_none() && record.mappers.is_empty()
    }

    /// Grants rights in the name of `by`.
    pub fn grant(
        &mut self,
        id: LmrId,
        by: &Principal,
        to: Grantee,
        rights: Rights,
    ) -> Result<(), RecordError> {
        let record = self.live(id)?;
        if record.grants.of(by) == Rights::NONE {
            return Err(RecordError::NoSuch);
        }
        Ok(record.grants.grant(by, to, rights)?)
    }

    /// Gives a region without a name its name, and grants, in the name of `by`, a master. Returns the grants that it had,
    /// for [`unpublish`](Directory::unpublish); `None`, and nothing is changed, if its pieces are not on `stores` in turns.
    /// No store stands for any.
    pub fn publish(
        &mut self,
        id: LmrId,
        by: &Principal,
        stores: &[NodeId],
        name: &Name,
        grants: &[(Grantee, Rights)],
    ) -> Result<Option<Grants>, RecordError> {
        let record = self.live(id)?;
        record.check_master(by)?;
        if record.name.is_some() {
            return Err(RecordError::Named);
        }
        let mut granted = record.grants.clone();
        for (to, rights) in grants {
            granted.grant(by, to.clone(), *rights)?;
        }
        let pieces = record.layout.pieces().iter();
        // Without nodes, no piece is anywhere else.
        if !stores.is_empty() && pieces.zip(stores.iter().cycle()).any(|(piece, store)| piece.node != *store)
        {
            return Ok(None);
        }
        record.name = Some(name.clone());
        Ok(Some(std::mem::replace(&mut record.grants, granted)))
    }

    /// Takes back a [`publish`](Directory::publish) whose name no home has given.
    pub fn unpublish(&mut self, id: LmrId, grants: Grants) {
        if let Ok(record) = self.live(id) {
            (record.name, record.named, record.grants) = (None, false, grants);
        }
    }

    /// Returns the id that owns a region's memory, the nodes that have mapped it, and those that store it, in the name of
    /// `by`, a master.
    pub fn users(
        &mut self,
        id: LmrId,
        by: &Principal,
    ) -> Result<(LmrId, Vec<NodeId>, Vec<NodeId>), RecordError> {
        let record = self.live(id)?;
        record.check_master(by)?;
        Ok((record.memory, record.mappers.keys().copied().collect(), record.layout.nodes()))
    }

    /// Begins to free a region: from here on it looks absent. `by` must be a master; `None` frees in the name of the
    /// node, for a region whose last handle is closed.
    pub fn begin_free(&mut self, id: LmrId, by: Option<&Principal>) -> Result<Ending, RecordError> {
        let record = self.live(id)?;
        if let Some(by) = by {
            record.check_master(by)?;
        }
        if record.moving {
            return Err(RecordError::Moving);
        }
        record.ending = true;
        let machine = Retirement::new(record.mappers.keys().copied(), record.layout.nodes());
        Ok(Ending { id: record.id, memory: record.memory, machine, name: record.name.clone() })
    }

    /// Begins to move a region with a name, in the name of `by`, a master. From here on nobody maps or frees it, until
    /// [`finish_move`](Directory::finish_move) or [`abandon_move`](Directory::abandon_move).
    pub fn begin_move(&mut self, id: LmrId, by: &Principal) -> Result<Leaving, RecordError> {
        let record = self.live(id)?;
        record.check_master(by)?;
        if record.name.is_none() {
            return Err(RecordError::NoName);
        }
        if std::mem::replace(&mut record.moving, true) {
            return Err(RecordError::Moving);
        }
        let machine = Retirement::held(record.mappers.keys().copied(), record.layout.nodes());
        Ok(Leaving { memory: record.memory, layout: record.layout.clone(), machine })
    }

    /// Ends a move: in one step, the region has the places of the record `to`, which has no name and ends, and its id.
    /// The handles of `to` then count as handles of the region, except that of its creator at this node.
    pub fn finish_move(&mut self, id: LmrId, to: LmrId) -> Result<(), RecordError> {
        let new = self.slot(to).and_then(|slot| slot.record.take()).ok_or(RecordError::NoSuch)?;
        let me = self.node;
        let record = self.live(id)?;
        (record.layout, record.memory, record.moving) = (new.layout, to, false);
        for (mapper, count) in new.mappers {
            let count = count - u32::from(mapper == me);
            if count > 0 {
                *record.mappers.entry(mapper).or_insert(0) += count;
            }
        }
        let first = record.id;
        if let Some(slot) = self.slot(to) {
            slot.alias = Some(first);
        }
        Ok(())
    }

    /// Gives a move up: the region stays where it is.
    pub fn abandon_move(&mut self, id: LmrId) {
        if let Ok(record) = self.live(id) {
            record.moving = false;
        }
    }

    /// Forgets the id of memory that a region has left, and that is free again. The first id stays that of the region.
    pub fn forget_memory(&mut self, memory: LmrId) {
        if self.slot(memory).is_some_and(|slot| slot.alias.is_some()) {
            self.forget(memory);
        }
    }

    /// Forgets a region whose memory is free again, or an id whose region could not be made.
    pub fn forget(&mut self, id: LmrId) {
        let Some(slot) = self.slot(id) else { return };
        let record = slot.record.take();
        slot.reserved = false;
        slot.alias = None;
        slot.generation += 1;
        let charged = slot.charged.take();
        self.free.push(id.slot);
        if let Some((principal, bytes)) = charged
            && let Some(total) = self.charges.get_mut(&principal)
        {
            *total -= bytes;
            if *total == 0 {
                self.charges.remove(&principal);
            }
        }
        if let Some(memory) = record.map(|record| record.memory).filter(|memory| *memory != id) {
            self.forget(memory);
        }
    }
}

impl Record {
    /// Checks that a principal is a master. Without a right it learns nothing.
    fn check_master(&self, by: &Principal) -> Result<(), RecordError> {
        match self.grants.of(by) {
            Rights::NONE => Err(RecordError::NoSuch),
            has if !has.contains(Rights::MASTER) => Err(RecordError::Denied { wanted: Rights::MASTER, has }),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::Piece;
    use crate::rights::MAX_GRANTS;

    const ME: NodeId = NodeId(4);

    fn principal(name: &str) -> Principal {
        Principal::new(name).unwrap()
    }

    fn layout() -> Layout {
        Layout::new(vec![Piece { node: NodeId(1), extent: 0, length: 64, offset: 0 }]).unwrap()
    }

    fn made(directory: &mut Directory, name: Option<&str>) -> LmrId {
        let id = directory.reserve().unwrap();
        let name = name.map(|name| Name::new(name).unwrap());
        directory.create(id, name, layout(), principal("alice"), ME);
        id
    }

    #[test]
    fn a_region_without_a_right_looks_absent() {
        let mut directory = Directory::new(ME, 9);
        let id = made(&mut directory, Some("a/b"));
        let (alice, bob) = (principal("alice"), principal("bob"));
        let absent = LmrId { slot: 7, ..id };
        for wanted in [Rights::NONE, Rights::READ, Rights::ALL] {
            let refused = directory.map(id, &bob, wanted, NodeId(2));
            assert_eq!(refused, directory.map(absent, &bob, wanted, NodeId(2)));
            assert_eq!(refused, Err(RecordError::NoSuch));
        }
        let to_bob = Grantee::Principal(bob.clone());
        assert_eq!(directory.grant(id, &bob, to_bob.clone(), Rights::READ), Err(RecordError::NoSuch));
        assert!(matches!(directory.begin_free(id, Some(&bob)), Err(RecordError::NoSuch)));
        directory.grant(id, &alice, to_bob, Rights::READ).unwrap();
        let denied = RecordError::Denied { wanted: Rights::WRITE, has: Rights::READ };
        assert_eq!(directory.map(id, &bob, Rights::WRITE, NodeId(2)), Err(denied));
        let mapping = directory.map(id, &bob, Rights::READ, NodeId(2)).unwrap();
        assert_eq!((mapping.rights, mapping.layout), (Rights::READ, layout()));
        let denied = RecordError::Denied { wanted: Rights::MASTER, has: Rights::READ };
        assert_eq!(directory.begin_free(id, Some(&bob)).unwrap_err(), denied);
    }

    #[test]
    fn a_region_that_is_freed_looks_absent_at_once_and_its_id_is_not_used_again() {
        let mut directory = Directory::new(ME, 9);
        let id = made(&mut directory, Some("a/b"));
        let alice = principal("alice");
        directory.map(id, &alice, Rights::READ, NodeId(2)).unwrap();
        let Ending { machine: retirement, name, .. } = directory.begin_free(id, Some(&alice)).unwrap();
        assert_eq!(name, Some(Name::new("a/b").unwrap()));
        assert_eq!(retirement.mappers().collect::<Vec<_>>(), [NodeId(2), ME]);
        assert_eq!(directory.map(id, &alice, Rights::READ, NodeId(2)), Err(RecordError::NoSuch));
        assert!(matches!(directory.begin_free(id, Some(&alice)), Err(RecordError::NoSuch)));
        assert!(directory.exists(id));
        directory.forget(id);
        directory.forget(id);
        assert!(!directory.exists(id) && directory.is_empty());
        let next = made(&mut directory, None);
        assert_eq!((next.slot, next.generation), (id.slot, id.generation + 1));
        assert_eq!(directory.map(id, &alice, Rights::READ, NodeId(2)), Err(RecordError::NoSuch));
        assert_eq!(directory.len(), 1);
    }

    #[test]
    fn names_that_their_homes_have_given_are_told_in_parts() {
        let mut directory = Directory::new(ME, 9);
        let count = NAMES_AT_ONCE as u32 + 3;
        let ids: Vec<LmrId> =
            (0..count).map(|number| made(&mut directory, Some(&format!("n/{number}")))).collect();
        made(&mut directory, None);
        assert_eq!(directory.names(0, |_| true), (Vec::new(), None), "no home has given them");
        ids.iter().for_each(|id| directory.named(*id));
        directory.begin_free(ids[1], None).unwrap();
        let (mut told, next) = directory.names(0, |name| name.as_bytes() != b"n/2");
        assert_eq!((told.len(), next), (NAMES_AT_ONCE, Some(count - 1)));
        let (rest, next) = directory.names(count - 1, |_| true);
        assert_eq!(next, None);
        told.extend(rest);
        let expected = ids.iter().filter(|id| ![1, 2].contains(&id.slot)).copied();
        assert_eq!(told.iter().map(|(_, id)| *id).collect::<Vec<_>>(), expected.collect::<Vec<_>>());
    }

    #[test]
    fn a_region_without_a_name_ends_with_its_last_handle() {
        let mut directory = Directory::new(ME, 9);
        let id = made(&mut directory, None);
        directory.map(id, &principal("alice"), Rights::READ, NodeId(2)).unwrap();
        directory.map(id, &principal("alice"), Rights::READ, NodeId(2)).unwrap();
        assert!(!directory.unmap(id, NodeId(2)));
        assert!(!directory.unmap(id, NodeId(3)), "a node that never mapped it");
        assert!(!directory.unmap(id, ME));
        assert!(directory.unmap(id, NodeId(2)));
        let named = made(&mut directory, Some("x"));
        assert!(!directory.unmap(named, ME));
    }

    #[test]
    fn a_move_changes_the_places_in_one_step_and_every_id_names_the_region() {
        let mut directory = Directory::new(ME, 9);
        let (alice, bob) = (principal("alice"), principal("bob"));
        let unnamed = made(&mut directory, None);
        assert!(matches!(directory.begin_move(unnamed, &alice), Err(RecordError::NoName)));
        let id = made(&mut directory, Some("a"));
        assert!(matches!(directory.begin_move(id, &bob), Err(RecordError::NoSuch)));
        directory.grant(id, &alice, Grantee::Principal(bob.clone()), Rights::READ).unwrap();
        assert!(matches!(directory.begin_move(id, &bob), Err(RecordError::Denied { .. })));
        let before = directory.map(id, &bob, Rights::READ, NodeId(2)).unwrap();
        assert_eq!(before.id, id);

        let leaving = directory.begin_move(id, &alice).unwrap();
        assert_eq!((leaving.memory, &leaving.layout), (id, &layout()));
        assert_eq!(leaving.machine.mappers().collect::<Vec<_>>(), [NodeId(2), ME]);
        assert_eq!(directory.map(id, &bob, Rights::READ, NodeId(2)), Err(RecordError::Moving));
        assert!(matches!(directory.begin_free(id, Some(&alice)), Err(RecordError::Moving)));
        assert!(matches!(directory.begin_move(id, &alice), Err(RecordError::Moving)));
        directory.abandon_move(id);
        assert_eq!(directory.map(id, &bob, Rights::READ, NodeId(2)), Ok(before));

        let mut last = id;
        for node in 5..8 {
            directory.begin_move(last, &alice).unwrap();
            let to = directory.reserve().unwrap();
            let piece = Piece { node: NodeId(node), extent: 0, length: 64, offset: 0 };
            let places = Layout::new(vec![piece]).unwrap();
            directory.create(to, None, places.clone(), alice.clone(), ME);
            directory.finish_move(last, to).unwrap();
            for number in [id, to] {
                let after = directory.map(number, &bob, Rights::READ, NodeId(3)).unwrap();
                assert_eq!((after.id, after.layout), (to, places.clone()));
            }
            directory.forget_memory(last);
            assert_eq!(directory.exists(last), last == id, "the first id stays");
            last = to;
        }
        assert!(!directory.unmap(last, NodeId(3)) && !directory.unmap(id, NodeId(3)));
        let ending = directory.begin_free(last, Some(&alice)).unwrap();
        assert_eq!((ending.id, ending.memory, ending.machine.waits_for().len()), (id, last, 3));
        directory.forget(ending.id);
        assert!(!directory.exists(id) && !directory.exists(last));
        directory.forget(unnamed);
        assert!(directory.is_empty());
    }

    /// The memory that a region has left is released late. Its id names nothing once the region is gone, whoever has the
    /// region's slot then.
    #[test]
    fn an_old_id_does_not_name_the_next_region_of_the_slot() {
        let mut directory = Directory::new(ME, 9);
        let alice = principal("alice");
        let id = made(&mut directory, Some("a"));
        let mut places = Vec::new();
        for _ in 0..2 {
            directory.begin_move(id, &alice).unwrap();
            let to = directory.reserve().unwrap();
            directory.create(to, None, layout(), alice.clone(), ME);
            directory.finish_move(id, to).unwrap();
            places.push(to);
        }
        // No node has released the memory of the first move yet.
        let old = places[0];
        assert!(directory.exists(old) && directory.map(old, &alice, Rights::READ, NodeId(2)).is_ok());
        let ending = directory.begin_free(id, Some(&alice)).unwrap();
        directory.forget(ending.id);
        let next = loop {
            let next = made(&mut directory, Some("b"));
            if next.slot == id.slot {
                break next;
            }
        };
        assert_eq!(directory.map(old, &alice, Rights::READ, NodeId(2)), Err(RecordError::NoSuch));
        assert!(!directory.unmap(old, ME) && directory.begin_free(old, None).is_err());
        assert!(directory.map(next, &alice, Rights::READ, NodeId(2)).is_ok());
        directory.forget_memory(old);
        assert!(!directory.exists(old) && directory.exists(next));
    }

    #[test]
    fn a_region_gets_a_name_once_and_only_from_a_master() {
        let mut directory = Directory::new(ME, 9);
        let (alice, bob) = (principal("alice"), principal("bob"));
        let id = made(&mut directory, None);
        let name = Name::new("a/b").unwrap();
        let to_bob = [(Grantee::Principal(bob.clone()), Rights::READ)];
        let publish = |directory: &mut Directory, by, stores: &[NodeId], grants: &[_]| {
            directory.publish(id, by, stores, &name, grants)
        };
        assert_eq!(publish(&mut directory, &bob, &[], &[]), Err(RecordError::NoSuch));
        directory.grant(id, &alice, to_bob[0].0.clone(), Rights::READ).unwrap();
        let denied = RecordError::Denied { wanted: Rights::MASTER, has: Rights::READ };
        assert_eq!(publish(&mut directory, &bob, &[], &[]), Err(denied));
        let grants = |directory: &mut Directory| directory.live(id).unwrap().grants.clone();
        let before = grants(&mut directory);
        // The bytes are elsewhere, or the grants are too many: nothing changes.
        let nodes = layout().nodes();
        let other = [NodeId(77), nodes[0]];
        for stores in [&other[..1], &other] {
            assert_eq!(publish(&mut directory, &alice, stores, &to_bob), Ok(None));
        }
        let grantee = |number| Grantee::Principal(principal(&format!("p{number}")));
        let many: Vec<_> = (0..MAX_GRANTS).map(|number| (grantee(number), Rights::READ)).collect();
        let too_many = RecordError::Grant(GrantError::TooMany);
        assert_eq!(publish(&mut directory, &alice, &nodes, &many), Err(too_many));
        assert_eq!((grants(&mut directory), directory.first_names(9).1), (before.clone(), 0));

        let all = [(Grantee::Anyone, Rights::WRITE)];
        assert_eq!(publish(&mut directory, &alice, &nodes, &all), Ok(Some(before.clone())));
        assert_eq!(publish(&mut directory, &alice, &[], &[]), Err(RecordError::Named));
        assert_eq!(directory.first_names(9), (vec![name.clone()], 1));
        directory.map(id, &bob, Rights::WRITE, NodeId(2)).unwrap();
        directory.unpublish(id, before.clone());
        assert_eq!((grants(&mut directory), directory.first_names(9).1), (before, 0));
        directory.begin_free(id, None).unwrap();
        assert_eq!(publish(&mut directory, &alice, &[], &[]), Err(RecordError::NoSuch));
    }

    #[test]
    fn a_quota_counts_until_the_region_is_forgotten() {
        let mut directory = Directory::new(ME, 9);
        let (alice, bob) = (principal("alice"), principal("bob"));
        let (first, second) = (directory.reserve().unwrap(), directory.reserve().unwrap());
        directory.charge(first, &alice, 60, 100).unwrap();
        let over = RecordError::Quota { has: 101, quota: 100 };
        assert_eq!(directory.charge(second, &alice, 41, 100), Err(over));
        let most = RecordError::Quota { has: u64::MAX, quota: 100 };
        assert_eq!(directory.charge(second, &alice, u64::MAX, 100), Err(most));
        directory.charge(second, &bob, 100, 100).unwrap();
        directory.forget(first);
        directory.forget(first);
        assert_eq!((directory.charged(&alice), directory.charged(&bob)), (0, 100));
        assert_eq!(directory.charge(first, &alice, 1, 100), Err(RecordError::NoSuch), "the id is forgotten");
    }

    #[test]
    fn a_list_has_what_the_principal_may_use_in_parts() {
        let mut directory = Directory::new(ME, 9);
        for number in 0..300 {
            made(&mut directory, Some(&format!("a/{number}")));
        }
        made(&mut directory, None);
        let (mut from, mut found) = (Some(0), Vec::new());
        while let Some(at) = from {
            let part = directory.list(&principal("alice"), at);
            assert!(part.regions.len() <= LISTED_AT_ONCE);
            found.extend(part.regions);
            from = part.next;
        }
        assert_eq!(found.len(), 300);
        assert!(found.iter().all(|listed| listed.rights == Rights::ALL && listed.length == 64));
        assert_eq!(directory.list(&principal("bob"), 0), Listing::default());
        assert_eq!(directory.list(&principal("alice"), u32::MAX), Listing::default());
    }
}
