//! The records that a node keeps of regions.

use crate::cut::Layout;
use crate::ledger::Changes;
use crate::name::Name;
use crate::place::{LmrId, NodeId};
use crate::retire::Retirement;
use crate::rights::{GrantError, Grantee, Grants, Principal, Rights};
use std::collections::BTreeMap;
use thiserror::Error;

pub mod keepers;
mod kept;
mod lease;
#[cfg(test)]
mod tests;

pub use keepers::{AdoptError, Heard, Keepers, MAX_KEEPERS, Standing};
pub use kept::Recovered;

use keepers::Shared;
use lease::{Lease, Leases};

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
    /// Nodes that keep the record have changed, and agree on it.
    #[error("the nodes that keep the record of the region have changed, and agree on it: try again")]
    Unsettled,
    /// A region without a name cannot be moved, since its handles could not be made again, and has no lease.
    #[error("the region has no name: publish it first; a region without one ends with its last handle")]
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ending {
    /// The id to forget at the end.
    pub id: LmrId,
    /// The id that owns the blocks.
    pub memory: LmrId,
    /// The machine to drive.
    pub machine: Retirement,
    /// The name that its home has to forget.
    pub name: Option<Name>,
    /// The other nodes that keep the record.
    pub keepers: Vec<NodeId>,
    /// Any node may have mapped the region.
    pub by_any: bool,
}

/// Rights of a region that were taken away, and by which nodes may have operations under way.
#[derive(Clone, Debug)]
pub struct Revoking {
    /// The id that owns the blocks.
    pub memory: LmrId,
    /// The machine to drive until it [is harmless](Retirement::is_harmless). It holds the memory.
    pub machine: Retirement,
    /// The grants that are left.
    pub grants: Grants,
    /// The rights that the principal has left.
    pub left: Rights,
    /// The nodes that store the region.
    pub stores: Vec<NodeId>,
    /// Any node may have mapped the region.
    pub by_any: bool,
}

/// A move that has begun.
#[derive(Clone, Debug)]
pub struct Leaving {
    /// The region's first id, by which the move ends: another one may be forgotten meanwhile.
    pub id: LmrId,
    /// The id that owns the blocks which the region leaves.
    pub memory: LmrId,
    /// The places that it leaves.
    pub layout: Layout,
    /// The machine to drive. It holds the memory.
    pub machine: Retirement,
    /// Any node may have mapped the region.
    pub by_any: bool,
}

#[derive(Clone, Debug)]
struct Record {
    /// The region's first id: that of this slot, unless another node gave it out.
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
    lease: Option<Lease>,
    /// The nodes that keep the record. This one is among them.
    keepers: Keepers,
    /// Greater with each change.
    version: u64,
    /// A keeper was lost with its list of mappers: any node may have mapped the region.
    mappers_lost: bool,
    standing: Standing,
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
    /// The slot has the record of a region whose id another node has given out, or an earlier use of this slot.
    is_copy: bool,
}

/// The records of the regions whose masters are attached to this node: those that were made here, and those of other
/// nodes that [several nodes keep](keepers).
#[derive(Clone, Debug)]
pub struct Directory {
    node: NodeId,
    slots: Vec<Slot>,
    free: Vec<u32>,
    first_generation: u64,
    /// The bytes of the regions of each principal that has any.
    charges: BTreeMap<Principal, u64>,
    leases: Leases,
    shared: Shared,
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
            leases: Leases::default(),
            shared: Shared::default(),
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
        self.slots.push(Slot {
            generation,
            record: None,
            reserved: true,
            alias: None,
            charged: None,
            is_copy: false,
        });
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

    /// Lists regions with a name to which a principal has a right, and whose changes this node orders: no region is in
    /// the lists of two nodes. `from` is 0, or the end of the last listing.
    pub fn list(&self, principal: &Principal, from: u32) -> Listing {
        let mut listing = Listing::default();
        for (at, slot) in self.slots.iter().enumerate().skip(from as usize) {
            if listing.regions.len() == LISTED_AT_ONCE || at - from as usize == RECORDS_AT_ONCE {
                listing.next = Some(at as u32);
                break;
            }
            let ordered = |record: &&Record| !record.ending && record.keepers.first() == self.node;
            let Some(record) = slot.record.as_ref().filter(ordered) else { continue };
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
        let keepers = Keepers::new(self.node);
        if let Some(slot) = self.slot(id).filter(|slot| slot.record.is_none()) {
            let (grants, mappers) = (Grants::of_creator(creator), BTreeMap::from([(mapper, 1)]));
            slot.record = Some(Record {
                id,
                memory: id,
                moving: false,
                name,
                layout,
                grants,
                mappers,
                ending: false,
                named: false,
                is_target: false,
                lease: None,
                keepers,
                version: 0,
                mappers_lost: false,
                standing: Standing::Settled,
            });
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
                found.extend(slot.record.as_ref().map(|record| (name, record.id)));
            }
        }
        (found, None)
    }

    /// Returns the place of an id that this node has given out, or of a record that it keeps for others.
    fn place(&self, id: LmrId) -> Option<usize> {
        let slot = self.slots.get(id.slot as usize).filter(|slot| {
            id.node == self.node && slot.reserved && !slot.is_copy && slot.generation == id.generation
        });
        match slot {
            Some(_) => Some(id.slot as usize),
            None => self.shared.index.get(&id).map(|slot| *slot as usize),
        }
    }

    /// Returns the place of the record of a region by any of its ids.
    fn place_of_record(&self, id: LmrId) -> Option<usize> {
        let place = self.place(id)?;
        match self.slots[place].alias {
            Some(first) => self.place(first),
            None => Some(place),
        }
    }

    /// Returns the slot of an id. It counts as changed.
    fn slot(&mut self, id: LmrId) -> Option<&mut Slot> {
        let place = self.place(id)?;
        self.changes.note(place as u32);
        self.slots.get_mut(place)
    }

    /// Returns the record of a region by any of its ids, whatever happens to it.
    fn any(&mut self, id: LmrId) -> Option<&mut Record> {
        let place = self.place_of_record(id)?;
        self.changes.note(place as u32);
        self.slots.get_mut(place)?.record.as_mut()
    }

    /// Returns the record of a region by any of its ids.
    fn live(&mut self, id: LmrId) -> Result<&mut Record, RecordError> {
        let record = self.any(id).filter(|record| !record.ending).ok_or(RecordError::NoSuch)?;
        if record.standing == Standing::Settled { Ok(record) } else { Err(RecordError::Unsettled) }
    }

    /// Returns whether an id is reserved or has a record. The id of memory to which a region has moved, or that it has left,
    /// ends with the region.
    pub fn exists(&self, id: LmrId) -> bool {
        let alias = self.place(id).map(|place| self.slots[place].alias);
        alias.is_some_and(|first| first.is_none_or(|first| self.place(first).is_some()))
    }

    /// Forgets the id of memory that no region has: another node has given up the move to it, and the region has ended.
    pub fn forget_gone(&mut self, memory: LmrId) {
        if self.place(memory).is_some() && !self.exists(memory) {
            self.forget(memory);
        }
    }

    /// Returns the names of regions that no other node keeps, and that are not being freed: the first `most`, and the
    /// number of all.
    pub fn first_names(&self, most: usize) -> (Vec<Name>, u64) {
        let records = self.slots.iter().filter_map(|slot| slot.record.as_ref());
        let all = records
            .filter(|record| !record.ending && record.keepers.count() == 1)
            .filter_map(|record| record.name.as_ref());
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

    /// Notes that `mapper` closed one handle. Returns `true` if this node has no handle of a region without a name any
    /// more: it must be freed.
    ///
    /// The counts of other nodes may be too high: a report that may have been heard is not repeated, and a node that is
    /// killed while it maps reports nothing. So they decide nothing. Without a name, another node has a region mapped only
    /// while it copies for the holder of a handle at this node; the free stops or fences it, as every mapper.
    pub fn unmap(&mut self, id: LmrId, mapper: NodeId) -> bool {
        let me = self.node;
        let Some(record) = self.any(id).filter(|record| !record.ending) else { return false };
        if record.keepers.count() == 1
            && let Some(count) = record.mappers.get_mut(&mapper)
        {
            *count -= 1;
            if *count == 0 {
                record.mappers.remove(&mapper);
            }
        }
        record.standing == Standing::Settled && record.is_unused(me)
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
        record.grants.grant(by, to, rights)?;
        record.version += 1;
        Ok(())
    }

    /// Takes rights away in the name of `by`, a master: from here on nobody maps the region with them.
    pub fn begin_revoke(
        &mut self,
        id: LmrId,
        by: &Principal,
        from: &Grantee,
        rights: Rights,
    ) -> Result<Revoking, RecordError> {
        let me = self.node;
        let record = self.live(id)?;
        record.check_master(by)?;
        let left = record.grants.revoke(by, from, rights)?;
        record.version += 1;
        let (memory, stores, grants) = (record.memory, record.layout.nodes(), record.grants.clone());
        let machine = Retirement::held(record.mappers.keys().copied(), stores.iter().copied());
        let (machine, by_any) = (machine.among(record.others(me)), record.mappers_lost);
        Ok(Revoking { memory, machine, grants, left, stores, by_any })
    }

    /// Gives a region without a name its name, and grants, in the name of `by`, a master. Returns the grants that it
    /// had, for [`unpublish`](Directory::unpublish); `None`, and nothing is changed, if its pieces are not on `stores`
    /// in turns. No store stands for any.
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
            let id = record.id;
            self.end_lease(id);
        }
    }

    /// Returns the id that owns a region's memory, the nodes that have mapped it as far as this one knows, and those that
    /// store it, in the name of `by`, a master, or in that of the node.
    pub fn users(
        &mut self,
        id: LmrId,
        by: Option<&Principal>,
    ) -> Result<(LmrId, Vec<NodeId>, Vec<NodeId>), RecordError> {
        let record = self.live(id)?;
        by.map_or(Ok(()), |by| record.check_master(by))?;
        let (mut mappers, stores): (Vec<NodeId>, _) =
            (record.mappers.keys().copied().collect(), record.layout.nodes());
        // It may have mapped the region at another keeper.
        if record.keepers.count() > 1 || record.mappers_lost {
            mappers.extend(stores.iter());
        }
        Ok((record.memory, mappers, stores))
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
        record.version += 1;
        self.resume_free(id).ok_or(RecordError::NoSuch)
    }

    /// Goes on with a free that has begun, perhaps at another node that kept the record.
    pub fn resume_free(&mut self, id: LmrId) -> Option<Ending> {
        let me = self.node;
        let record = self.any(id).filter(|record| record.ending)?;
        let (keepers, by_any) = (record.others(me), record.mappers_lost);
        let machine = Retirement::new(record.mappers.keys().copied(), record.layout.nodes());
        let machine = machine.among(keepers.iter().copied());
        let (id, memory, name) = (record.id, record.memory, record.name.clone());
        self.end_lease(id);
        Some(Ending { id, memory, machine, name, keepers, by_any })
    }

    /// Begins to move a region with a name, in the name of `by`, a master, or in that of the node. From here on nobody
    /// maps or frees it, until [`finish_move`](Directory::finish_move) or [`abandon_move`](Directory::abandon_move) by
    /// the id that is returned.
    pub fn begin_move(&mut self, id: LmrId, by: Option<&Principal>) -> Result<Leaving, RecordError> {
        let me = self.node;
        let record = self.live(id)?;
        by.map_or(Ok(()), |by| record.check_master(by))?;
        if record.name.is_none() {
            return Err(RecordError::NoName);
        }
        if std::mem::replace(&mut record.moving, true) {
            return Err(RecordError::Moving);
        }
        record.version += 1;
        let machine = Retirement::held(record.mappers.keys().copied(), record.layout.nodes());
        let (machine, by_any) = (machine.among(record.others(me)), record.mappers_lost);
        Ok(Leaving { id: record.id, memory: record.memory, layout: record.layout.clone(), machine, by_any })
    }

    /// Ends a move: in one step, the region has the places of the record `to`, which has no name and ends, and its id.
    /// The handles of `to` then count as handles of the region, except that of its creator at this node. A region that
    /// other nodes keep, too, is mapped again when they have [heard of it](Directory::end_move): returns whether that is
    /// so.
    pub fn finish_move(&mut self, id: LmrId, to: LmrId) -> Result<bool, RecordError> {
        // Another node may have given the move up.
        if !self.live(id)?.moving {
            return Err(RecordError::Unsettled);
        }
        let new = self.slot(to).and_then(|slot| slot.record.take()).ok_or(RecordError::NoSuch)?;
        let me = self.node;
        let record = self.live(id)?;
        let is_shared = record.keepers.count() > 1;
        (record.layout, record.memory, record.moving) = (new.layout, to, is_shared);
        record.version += 1;
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
        Ok(is_shared)
    }

    /// Other keepers know the places of a region that has moved: it is mapped again.
    pub fn end_move(&mut self, id: LmrId) {
        self.abandon_move(id);
    }

    /// Gives a move up: the region stays where it is.
    pub fn abandon_move(&mut self, id: LmrId) {
        if let Some(record) = self.any(id).filter(|record| record.moving) {
            record.moving = false;
            record.version += 1;
        }
    }

    /// Forgets the id of memory that a region has left, and that is free again. The first id stays that of the region.
    pub fn forget_memory(&mut self, memory: LmrId) {
        if self.slot(memory).is_some_and(|slot| slot.alias.is_some()) {
            self.forget(memory);
        } else if self.any(memory).is_some_and(|record| record.id != memory && record.memory != memory) {
            self.shared.index.remove(&memory);
        }
    }

    /// Forgets a region whose memory is free again, or that others keep, or an id whose region could not be made.
    pub fn forget(&mut self, id: LmrId) {
        self.end_lease(id);
        let Some(place) = self.place(id) else { return };
        let number = place as u32;
        self.changes.note(number);
        let slot = &mut self.slots[place];
        let is_copy = slot.is_copy;
        let record = slot.record.take();
        let charged = slot.charged.take();
        let next = slot.generation + 1;
        *slot = Slot {
            generation: next,
            record: None,
            reserved: false,
            alias: None,
            charged: None,
            is_copy: false,
        };
        self.free.push(number);
        self.shared.slots.remove(&number);
        if let Some((principal, bytes)) = charged
            && let Some(total) = self.charges.get_mut(&principal)
        {
            *total -= bytes;
            if *total == 0 {
                self.charges.remove(&principal);
            }
        }
        let Some(record) = record else { return };
        if is_copy {
            // Also the id of memory that the region has left.
            self.shared.index.retain(|_, slot| *slot != number);
        }
        if record.memory != id {
            self.forget(record.memory);
        }
    }
}

impl Record {
    /// Returns the other nodes that keep the record.
    fn others(&self, me: NodeId) -> Vec<NodeId> {
        self.keepers.iter().filter(|node| *node != me).collect()
    }

    /// Returns whether nobody can use the region any more: it has no name, and its own node has no handle.
    fn is_unused(&self, me: NodeId) -> bool {
        self.name.is_none() && !self.mappers.contains_key(&me)
    }

    /// Checks that a principal is a master. Without a right it learns nothing.
    fn check_master(&self, by: &Principal) -> Result<(), RecordError> {
        match self.grants.of(by) {
            Rights::NONE => Err(RecordError::NoSuch),
            has if !has.contains(Rights::MASTER) => Err(RecordError::Denied { wanted: Rights::MASTER, has }),
            _ => Ok(()),
        }
    }
}
