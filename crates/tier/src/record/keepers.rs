//! Records that several nodes keep: those of a region's masters (LITE section 4.1: several masters, so that the allocator
//! is neither a bottleneck nor a single point of failure). The first keeper that lives orders the changes, and has all
//! others take each one over; any of them maps the region. The paper does not say how masters agree.
//!
//! ```text
//! first keeper: change, version + 1 ── Keep(version) ──> other keeper ── Record ──> first keeper
//!                                    <── its mappers ──  has taken the record over
//! ```
//!
//! Each keeper lists the nodes that have mapped the region at it, and tells the first one when a free, a move or a
//! revocation begins. The list of a keeper that is lost is unknown: any node may have mapped the region there.
//!
//! `docs/internals/tier-records.md` has the rules; `explore.rs` breaks each of them.

#[cfg(test)]
mod explore;

use super::kept::{decode_record, encode_record};
use super::{Directory, Lease, Record, RecordError, Slot};
use crate::message::Malformed;
use crate::place::{LmrId, NodeId};
use std::collections::{BTreeMap, BTreeSet};

/// The most nodes that keep one record.
pub const MAX_KEEPERS: usize = 4;
/// The changes of one term. A record has fewer.
const TERM: u64 = 1 << 32;
/// The part of a term that is the number of the node which began it: no two nodes begin one.
const NODE: u64 = 1 << 16;

/// The way in which a node stands to a record that others keep, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// As they do: it maps the region, and the first keeper changes it.
    Settled,
    /// It has become the first keeper, or has ceased to be one, and the others have to hear of that.
    Changes,
    /// Others may have taken it for dead.
    Doubted,
    /// It was told to become a keeper, and has not asked the others whether it is: what told it may be older than the end of
    /// the region.
    New,
}

/// The effect of another keeper's version of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// This node has it.
    Has,
    /// This node has an older one, or none: take the record over.
    Older,
    /// This node has lost the record.
    Lost,
    /// As far as this node knows, that node orders the changes.
    Elsewhere(NodeId),
}

/// Returns the first version of the next term, which a node begins.
fn next_term(version: u64, node: NodeId) -> u64 {
    ((version / TERM / NODE + 1) * NODE + u64::from(node.0)) * TERM
}

/// The nodes that keep a record, in the order in which they order its changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Keepers {
    nodes: [NodeId; MAX_KEEPERS],
    count: u8,
}

impl Keepers {
    /// Makes a list of one node.
    pub fn new(first: NodeId) -> Keepers {
        Keepers { nodes: [first, NodeId(0), NodeId(0), NodeId(0)], count: 1 }
    }

    /// Returns the nodes in their order.
    pub fn iter(&self) -> impl Iterator<Item = NodeId> + Clone + '_ {
        self.nodes[..usize::from(self.count)].iter().copied()
    }

    /// Returns the number of nodes.
    pub fn count(&self) -> usize {
        usize::from(self.count)
    }

    /// Returns the first node.
    pub fn first(&self) -> NodeId {
        self.nodes[0]
    }

    /// Returns whether a node is in the list.
    pub fn contains(&self, node: NodeId) -> bool {
        self.iter().any(|one| one == node)
    }

    /// Adds a node at the end; returns `false` if it is there, or there is no room.
    pub fn add(&mut self, node: NodeId) -> bool {
        let at = usize::from(self.count);
        if at == MAX_KEEPERS || self.contains(node) {
            return false;
        }
        self.nodes[at] = node;
        self.count += 1;
        true
    }

    /// Removes a node, unless it is the only one; returns whether it was removed.
    fn remove(&mut self, node: NodeId) -> bool {
        if !self.contains(node) || self.count == 1 {
            return false;
        }
        let rest: Vec<NodeId> = self.iter().filter(|one| *one != node).collect();
        *self = Keepers::new(rest[0]);
        rest[1..].iter().for_each(|one| assert!(self.add(*one), "there is room for what was there"));
        true
    }
}

/// The place of a region by the ids that other nodes have given out: those of records that this node keeps for them.
#[derive(Clone, Debug, Default)]
pub(super) struct Shared {
    pub(super) index: BTreeMap<LmrId, u32>,
    /// Slots of records with several keepers.
    pub(super) slots: BTreeSet<u32>,
}

impl Directory {
    /// Returns the nodes that keep a region's record, this one among them, by any of its ids, also while it is freed.
    pub fn keepers(&self, id: LmrId) -> Option<Keepers> {
        self.seen(id).map(|record| record.keepers)
    }

    /// Returns the region's first id, and the version of its record, by any of its ids, also while it is freed.
    pub fn version(&self, id: LmrId) -> Option<(LmrId, u64)> {
        self.seen(id).map(|record| (record.id, record.version))
    }

    /// Returns the nodes that have mapped a region at this one.
    pub fn mappers(&self, id: LmrId) -> Vec<NodeId> {
        self.seen(id).map(|record| record.mappers.keys().copied().collect()).unwrap_or_default()
    }

    fn seen(&self, id: LmrId) -> Option<&Record> {
        self.slots[self.place_of_record(id)?].record.as_ref()
    }

    /// Adds a keeper to the record of a region with a name, which this node orders; returns `false` if it is one, or if
    /// there are [`MAX_KEEPERS`]. The node has the record once it has heard of it.
    pub fn add_keeper(&mut self, id: LmrId, node: NodeId) -> Result<bool, RecordError> {
        let record = self.live(id)?;
        if !record.named {
            return Err(RecordError::NoName);
        }
        if record.moving {
            return Err(RecordError::Moving);
        }
        if !record.keepers.add(node) {
            return Ok(false);
        }
        record.version += 1;
        self.note_shared(id);
        Ok(true)
    }

    /// Hears from `from` that a record has a version. `is_later` says that `from` has a later view of the nodes, so that it
    /// may order the changes although this node does not know it; `is_new`, that this node has become a keeper.
    pub fn hear(&self, id: LmrId, version: u64, from: NodeId, [is_later, is_new]: [bool; 2]) -> Heard {
        match self.seen(id) {
            // Also from one that has handed it over, and has not heard the first answer.
            Some(own) if own.version == version => Heard::Has,
            Some(own) if own.version > version || (own.keepers.first() != from && !is_later) => {
                Heard::Elsewhere(own.keepers.first())
            }
            Some(_) => Heard::Older,
            None if is_new => Heard::Older,
            None => Heard::Lost,
        }
    }

    /// Returns the record for another keeper: see [`adopt`](Directory::adopt).
    pub fn record_for(&self, id: LmrId) -> Option<Vec<u8>> {
        self.seen(id).map(|record| encode_record(record, false))
    }

    /// Takes over the record of another keeper: in place of this node's, or as a [new](Standing::New) one. Its mappers stay
    /// those of this node. An older record changes nothing.
    ///
    /// # Errors
    /// The bytes are not a record of this region with this node among its keepers, or there is no room.
    pub fn adopt(&mut self, id: LmrId, bytes: &[u8], now: u64) -> Result<(), AdoptError> {
        let new = decode_record(bytes)?;
        if new.id != id || !new.keepers.contains(self.node) || !new.named {
            return Err(AdoptError::Malformed);
        }
        let slot = match self.place(id) {
            Some(slot) => slot as u32,
            None => {
                // An own id that has no record any more: it was handed to another node, and comes back.
                let LmrId { slot, .. } = self.reserve()?;
                self.slots[slot as usize].is_copy = true;
                slot
            }
        };
        let place = &mut self.slots[slot as usize];
        if place.record.as_ref().is_some_and(|own| own.version >= new.version) {
            return Ok(());
        }
        let (own_mappers, lost, standing) = match place.record.take() {
            Some(own) => {
                self.leases.replace(own.id, own.lease, None);
                self.shared.index.remove(&own.memory);
                let standing = if own.standing == Standing::New { Standing::New } else { Standing::Settled };
                (own.mappers, own.mappers_lost, standing)
            }
            None => (BTreeMap::new(), false, Standing::New),
        };
        // The lease is that of the node that orders the changes.
        let is_first = new.keepers.first() == self.node;
        let lease =
            new.lease.map(|lease| if is_first { lease.from(now) } else { Lease { end: u64::MAX, ..lease } });
        if is_first {
            self.leases.replace(id, None, lease);
        }
        let memory = new.memory;
        let mappers_lost = new.mappers_lost || lost;
        let record = Record { mappers: own_mappers, mappers_lost, lease, standing, ..new };
        self.slots[slot as usize].record = Some(record);
        self.index_copy(slot, [id, memory]);
        self.changes.note(slot);
        self.note_shared(id);
        Ok(())
    }

    /// Finds ids of other nodes, and of earlier times of this one, at a slot.
    pub(super) fn index_copy(&mut self, slot: u32, ids: [LmrId; 2]) {
        for id in ids {
            let is_own = self.slots.get(id.slot as usize).is_some_and(|place: &Slot| {
                id.node == self.node && place.reserved && !place.is_copy && place.generation == id.generation
            });
            if !is_own {
                self.shared.index.insert(id, slot);
            }
        }
    }

    fn note_shared(&mut self, id: LmrId) {
        let place = self.place_of_record(id);
        let Some(slot) = place else { return };
        let count = self.slots[slot].record.as_ref().map_or(0, |record| record.keepers.count());
        if count > 1 {
            self.shared.slots.insert(slot as u32);
        } else {
            self.shared.slots.remove(&(slot as u32));
        }
    }

    /// Nodes have ended, with the records that they kept. Returns the regions whose changes this node orders: the other
    /// keepers have to hear of it ([`settle`](Directory::settle)). Leases of regions that it takes over begin at `now`.
    pub fn lose(&mut self, gone: &BTreeSet<NodeId>, now: u64) -> Vec<LmrId> {
        let slots: Vec<u32> = self.shared.slots.iter().copied().collect();
        slots.into_iter().filter_map(|slot| self.lose_of(slot, gone, now)).collect()
    }

    /// Returns whether the record of a region is gone, or its free has begun.
    pub fn has_ended(&self, id: LmrId) -> bool {
        let record = self.place_of_record(id).and_then(|place| self.slots[place].record.as_ref());
        record.is_none_or(|record| record.ending)
    }

    /// Returns the keeper that orders the changes of a record, if that is another node and has begun a free or a move.
    pub fn changed_by(&self, id: LmrId) -> Option<NodeId> {
        let record = self.place_of_record(id).and_then(|place| self.slots[place].record.as_ref())?;
        let first = record.keepers.first();
        (first != self.node && (record.moving || record.ending)).then_some(first)
    }

    /// As [`lose`](Directory::lose), for the record of one region.
    pub fn lose_keeper(&mut self, id: LmrId, gone: NodeId, now: u64) -> Option<LmrId> {
        let slot = self.place_of_record(id)?;
        self.lose_of(slot as u32, &BTreeSet::from([gone]), now)
    }

    fn lose_of(&mut self, slot: u32, gone: &BTreeSet<NodeId>, now: u64) -> Option<LmrId> {
        let me = self.node;
        let record = self.slots[slot as usize].record.as_mut()?;
        // Whoever may have been dead cannot tell who was first meanwhile, and a new keeper perhaps is none.
        if matches!(record.standing, Standing::Doubted | Standing::New) {
            return None;
        }
        let was_first = record.keepers.first() == me;
        let mut is_changed = false;
        for node in gone.iter().filter(|node| **node != me) {
            is_changed |= record.keepers.remove(*node);
        }
        if !is_changed {
            return None;
        }
        record.mappers_lost = true;
        let id = record.id;
        let is_first = record.keepers.first() == me;
        let takes_over = is_first && !was_first;
        if takes_over {
            // Whatever the last one told others counts no more.
            record.version = next_term(record.version, me);
            record.standing = Standing::Changes;
            // A move that the last one had begun is given up: the bytes are where the record says.
            record.moving = false;
        } else if is_first {
            record.version += 1;
        }
        let (old, new) = (record.lease, record.lease.map(|lease| lease.from(now)));
        if takes_over {
            record.lease = new;
            self.leases.replace(id, old, new);
        }
        self.changes.note(slot);
        self.note_shared(id);
        is_first.then_some(id)
    }

    /// Returns the other nodes that store a region, and the id that owns its memory there.
    pub fn stores(&self, id: LmrId) -> Option<(LmrId, Vec<NodeId>)> {
        let record = self.seen(id)?;
        let others = record.layout.nodes().iter().copied().filter(|node| *node != self.node).collect();
        Some((record.memory, others))
    }

    /// Returns the standing of this node to a record.
    pub fn standing(&self, id: LmrId) -> Option<Standing> {
        self.seen(id).map(|record| record.standing)
    }

    /// All other keepers have the record in this version: this node maps and changes it again, or forgets it if it is a
    /// keeper no more. Returns whether a free had begun, which it has to end.
    pub fn settle(&mut self, id: LmrId, version: u64) -> bool {
        let me = self.node;
        let Some(record) = self.any(id) else { return false };
        if record.standing != Standing::Changes || record.version != version {
            return false;
        }
        if !record.keepers.contains(me) {
            self.forget(id);
            return false;
        }
        record.standing = Standing::Settled;
        // The last handle may have been closed meanwhile.
        record.ending |= record.is_unused(me);
        record.ending
    }

    /// Others may have taken this life of the node for ended: another node may order its records by now, and stores may have
    /// taken memory back. Nobody maps or changes a record with another keeper or another store until these
    /// [have said](Directory::agree) so. Returns them.
    pub fn doubt(&mut self) -> Vec<LmrId> {
        let me = self.node;
        let elsewhere = |record: &&Record| {
            let is_away = record.layout.nodes().iter().any(|node| *node != me);
            // The free of a record by itself goes on as it has begun.
            let goes_on = record.is_target || record.ending;
            record.keepers.count() > 1 || (!goes_on && (record.moving || is_away))
        };
        let records = self.slots.iter().filter_map(|slot| slot.record.as_ref()).filter(elsewhere);
        let doubted: Vec<LmrId> = records.map(|record| record.id).collect();
        doubted.iter().for_each(|id| self.doubt_record(*id));
        doubted
    }

    /// As [`doubt`](Directory::doubt), for one region: another node orders its changes, it seems.
    pub fn doubt_of(&mut self, id: LmrId) {
        let me = self.node;
        // Also if this node has handed the record over.
        if self.keepers(id).is_some_and(|keepers| keepers.iter().any(|keeper| keeper != me)) {
            self.doubt_record(id);
        }
    }

    fn doubt_record(&mut self, id: LmrId) {
        let me = self.node;
        if let Some(record) = self.any(id).filter(|record| record.standing != Standing::New) {
            record.standing = Standing::Doubted;
            // A move of this node is given up, whatever its places are by now: all others hear of them. That of another node
            // goes on, and this one has its old places.
            if record.moving && record.keepers.first() == me {
                record.moving = false;
                record.version += 1;
            }
        }
    }

    /// Another keeper has this record of a region. Returns whether this node is still a keeper for it: otherwise it has
    /// forgotten the record, perhaps while it asked.
    ///
    /// # Errors
    /// As [`adopt`](Directory::adopt).
    pub fn agree(&mut self, id: LmrId, theirs: &[u8], now: u64) -> Result<bool, AdoptError> {
        let new = decode_record(theirs)?;
        if new.id != id {
            return Err(AdoptError::Malformed);
        }
        if self.seen(id).is_none() {
            return Ok(false);
        }
        if !new.keepers.contains(self.node) {
            self.forget(id);
            return Ok(false);
        }
        self.adopt(id, theirs, now)?;
        // Until all others have said so.
        self.doubt_of(id);
        Ok(true)
    }

    /// All other keepers agree. Returns whether this node orders the changes: then they have to hear of the record as it is
    /// here before anybody maps it.
    pub fn agreed(&mut self, id: LmrId) -> bool {
        let me = self.node;
        let asked = |record: &&mut Record| matches!(record.standing, Standing::Doubted | Standing::New);
        let Some(record) = self.any(id).filter(asked) else { return false };
        let is_first = record.keepers.first() == me;
        record.standing = if is_first { Standing::Changes } else { Standing::Settled };
        is_first
    }

    /// Returns whether a region ends with this node: no other one keeps its record, or it is being made here.
    pub fn ends_here(&self, id: LmrId) -> bool {
        let shared = |record: &Record| record.keepers.count() > 1;
        self.place(id).is_some() && !self.seen(id).is_some_and(shared)
    }

    /// Returns regions with a name whose changes this node orders: at most `most`, and the number of all.
    pub fn ordered(&self, most: usize) -> (Vec<LmrId>, u64) {
        let records = self.slots.iter().filter_map(|slot| slot.record.as_ref());
        let is_ordered =
            |record: &&Record| record.named && !record.ending && record.keepers.first() == self.node;
        let all = records.filter(is_ordered).map(|record| record.id);
        (all.clone().take(most).collect(), all.count() as u64)
    }

    /// Another keeper has said that it has no record of a region, or is dead, or a store has taken the memory back; this node
    /// asked when its record had this version. Forgets the record, and returns whether it did: a node that has heard of a
    /// change meanwhile asks again, since the other one may have handed the record over.
    pub fn lost_as_of(&mut self, id: LmrId, asked: u64) -> bool {
        let is_asked = |record: &&mut Record| {
            record.version == asked && matches!(record.standing, Standing::Doubted | Standing::New)
        };
        if self.any(id).filter(is_asked).is_none() {
            return false;
        }
        self.forget(id);
        true
    }

    /// Hands the record over to the next keeper: this node leaves. Once the others have heard of it, the record
    /// [is forgotten](Directory::settle) here. Returns `false` without another keeper.
    pub fn hand_over(&mut self, id: LmrId) -> Result<bool, RecordError> {
        let me = self.node;
        let record = self.live(id)?;
        if record.moving {
            return Err(RecordError::Moving);
        }
        if !record.keepers.remove(me) {
            return Ok(false);
        }
        record.version = next_term(record.version, me);
        (record.mappers_lost, record.standing) = (true, Standing::Changes);
        let (id, old) = (record.id, record.lease);
        self.leases.replace(id, old, None);
        Ok(true)
    }
}

/// The reason why a record of another keeper is not taken over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AdoptError {
    /// The bytes are not the record.
    Malformed,
    /// There is no room.
    Full,
}

impl From<Malformed> for AdoptError {
    fn from(_: Malformed) -> Self {
        AdoptError::Malformed
    }
}

impl From<RecordError> for AdoptError {
    fn from(_: RecordError) -> Self {
        AdoptError::Full
    }
}
