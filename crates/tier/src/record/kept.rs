//! Records in a ledger, and their recovery by the next life of the node.

use super::{Directory, Ending, Lease, MAX_RECORDS, Record, Slot, Standing};
use crate::codec::{Reader, Writer};
use crate::ledger::Entries;
use crate::message::Malformed;
use crate::place::{LmrId, NodeId};
use std::collections::BTreeMap;

const RESERVED: u8 = 1;
const HAS_RECORD: u8 = 2;
const IS_ALIAS: u8 = 4;
const IS_CHARGED: u8 = 8;
const IS_COPY: u8 = 16;
const MOVING: u8 = 1;
const ENDING: u8 = 2;
const NAMED: u8 = 4;
const HAS_NAME: u8 = 8;
const IS_TARGET: u8 = 16;
const HAS_LEASE: u8 = 32;
const MAPPERS_LOST: u8 = 64;
const IS_NEW: u8 = 128;

/// The work that the records of an earlier life leave.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Frees that have begun: they were under way, or nobody has their regions. Entries say so again at once, since the
    /// next life may end before it frees anything.
    pub frees: Vec<Ending>,
    /// Ids of memory that may be allocated at any node and is of no use: release it, then
    /// [`forget`](Directory::forget_left) the id.
    pub left: Vec<LmrId>,
    /// Regions whose records other nodes keep, too: one of them may order the changes by now. Nobody maps or changes them
    /// until these [have said](Directory::agree) so.
    pub doubted: Vec<LmrId>,
}

impl Directory {
    /// The entries of records begin with this byte in a ledger.
    pub const TABLE: u8 = b'D';

    /// Reports changes from here on ([`report`](Directory::report)).
    pub fn watch(&mut self) {
        self.changes.watch();
    }

    /// Reports the records that have changed since the last report.
    pub fn report(&mut self, entries: &mut impl Entries) {
        for slot in self.changes.take() {
            let key = Writer::new(Directory::TABLE).u32(slot.swap_bytes()).bytes();
            entries.put(&key, &encode(&self.slots[slot as usize]));
        }
    }

    /// Adds a slot of an earlier life. Slots come in their order.
    ///
    /// # Errors
    /// The entry is not one that [`report`](Directory::report) makes.
    pub fn recover(&mut self, key: &[u8], value: &[u8]) -> Result<(), Malformed> {
        let mut reader = Reader::new(key);
        let number = reader.u32()?.swap_bytes();
        reader.end(())?;
        if number as usize != self.slots.len() || self.slots.len() >= MAX_RECORDS {
            return Err(Malformed);
        }
        let slot = decode(LmrId { node: self.node, slot: number, generation: 0 }, value)?;
        if let Some((principal, bytes)) = &slot.charged {
            let total = self.charges.entry(principal.clone()).or_default();
            *total = total.checked_add(*bytes).ok_or(Malformed)?;
        }
        if !slot.reserved {
            self.free.push(number);
        }
        let (is_copy, ids) = (slot.is_copy, slot.record.as_ref().map(|record| [record.id, record.memory]));
        let is_shared = slot.record.as_ref().is_some_and(|record| record.keepers.count() > 1);
        self.slots.push(slot);
        if is_shared {
            self.shared.slots.insert(number);
        }
        if let (true, Some(ids)) = (is_copy, ids) {
            self.shared.index.extend(ids.map(|id| (id, number)));
        }
        Ok(())
    }

    /// Ends what was under way when the earlier life ended. `own` are the regions of this node's handles, once for each
    /// handle. Leases begin [later](Directory::begin_leases).
    pub fn end_recovery(&mut self, own: impl IntoIterator<Item = LmrId>) -> Recovered {
        let mut counts: BTreeMap<LmrId, u32> = BTreeMap::new();
        for id in own {
            if let Some(record) = self.any(id) {
                *counts.entry(record.id).or_default() += 1;
            }
        }
        let (mut recovered, mut frees) = (Recovered::default(), Vec::new());
        for number in 0..self.slots.len() {
            let slot = &self.slots[number];
            let id = LmrId { node: self.node, slot: number as u32, generation: slot.generation };
            let (is_reserved, alias) = (slot.reserved, slot.alias);
            let memory = match alias {
                // The memory that a region has, or had before its last move. The region may be gone.
                Some(region) => {
                    let slot = self.place(region).map(|at| &self.slots[at]);
                    slot.and_then(|slot| slot.record.as_ref()).map(|record| record.memory)
                }
                None => slot.record.as_ref().map(|record| record.memory),
            };
            let is_copy = slot.is_copy;
            if is_reserved && memory != Some(id) && !is_copy {
                recovered.left.push(id);
            }
            let me = self.node;
            let Some(record) = self.slots[number].record.as_mut() else { continue };
            let id = record.id;
            let is_shared = record.keepers.count() > 1;
            if is_shared {
                if record.standing != Standing::New {
                    record.standing = Standing::Doubted;
                }
                recovered.doubted.push(id);
            }
            // That of another node goes on, and this one has its old places.
            if record.moving && record.keepers.first() == me {
                record.moving = false;
                record.version += 1;
            }
            match counts.get(&id) {
                Some(count) => record.mappers.insert(me, *count),
                None => record.mappers.remove(&me),
            };
            // Nobody was told that the region has its name.
            if !record.named {
                (record.name, record.lease) = (None, None);
            }
            let is_unused = record.is_target || record.is_unused(me);
            // A free goes on when the others have agreed.
            if is_shared {
                self.changes.note(number as u32);
                continue;
            }
            if std::mem::take(&mut record.ending) || is_unused {
                frees.push(id);
            }
            self.changes.note(number as u32);
        }
        recovered.frees = frees.into_iter().filter_map(|id| self.begin_free(id, None).ok()).collect();
        recovered
    }

    /// Forgets an id of [`Recovered::left`]. That of a region which has moved stays with the region.
    pub fn forget_left(&mut self, id: LmrId) {
        if self.slot(id).is_some_and(|slot| slot.record.is_none()) {
            self.forget(id);
        }
    }
}

fn encode(slot: &Slot) -> Vec<u8> {
    let Slot { generation, record, reserved, alias, charged, is_copy } = slot;
    let flag = |is_set: bool, bit: u8| if is_set { bit } else { 0 };
    let flags = flag(*reserved, RESERVED)
        | flag(record.is_some(), HAS_RECORD)
        | flag(alias.is_some(), IS_ALIAS)
        | flag(charged.is_some(), IS_CHARGED)
        | flag(*is_copy, IS_COPY);
    let mut writer = Writer::new(flags).u64(*generation);
    if let Some(alias) = alias {
        writer = writer.id(*alias);
    }
    if let Some((principal, bytes)) = charged {
        writer = writer.text(principal.as_str().as_bytes()).u64(*bytes);
    }
    let mut bytes = writer.bytes();
    if let Some(record) = record {
        bytes.extend(encode_record(record, true));
    }
    bytes
}

/// Encodes a record for the next life of this node, or for another one, which has mappers of its own.
pub(super) fn encode_record(record: &Record, with_mappers: bool) -> Vec<u8> {
    let flag = |is_set: bool, bit: u8| if is_set { bit } else { 0 };
    let flags = flag(record.moving, MOVING)
        | flag(record.ending, ENDING)
        | flag(record.named, NAMED)
        | flag(record.name.is_some(), HAS_NAME)
        | flag(record.is_target, IS_TARGET)
        | flag(record.lease.is_some(), HAS_LEASE)
        | flag(record.mappers_lost, MAPPERS_LOST)
        | flag(with_mappers && record.standing == Standing::New, IS_NEW);
    let writer = Writer::new(flags).id(record.id).id(record.memory).u64(record.version);
    let mut writer = writer.keepers(&record.keepers).layout(&record.layout);
    if let Some(name) = &record.name {
        writer = writer.text(name.as_bytes());
    }
    writer = writer.grants(&record.grants);
    let mappers = record.mappers.iter().filter(|_| with_mappers);
    writer = writer.u32(mappers.clone().count() as u32);
    for (mapper, count) in mappers {
        writer = writer.u16(mapper.0).u32(*count);
    }
    if let Some(lease) = &record.lease {
        writer = writer.u64(lease.length);
    }
    writer.bytes()
}

fn decode(id: LmrId, value: &[u8]) -> Result<Slot, Malformed> {
    let mut reader = Reader::new(value);
    let (flags, generation) = (reader.u8()?, reader.u64()?);
    let alias = if flags & IS_ALIAS != 0 { Some(reader.id()?) } else { None };
    let charged = if flags & IS_CHARGED != 0 { Some((reader.principal()?, reader.u64()?)) } else { None };
    let (reserved, is_copy) = (flags & RESERVED != 0, flags & IS_COPY != 0);
    let mut slot = Slot { generation, record: None, reserved, alias, charged, is_copy };
    if flags & HAS_RECORD == 0 {
        return reader.end(slot);
    }
    let record = decode_record(reader.0)?;
    if !is_copy && record.id != (LmrId { generation, ..id }) {
        return Err(Malformed);
    }
    slot.record = Some(record);
    Ok(slot)
}

/// Parses the record of [`encode_record`].
pub(super) fn decode_record(bytes: &[u8]) -> Result<Record, Malformed> {
    let mut reader = Reader::new(bytes);
    let (flags, id, memory, version) = (reader.u8()?, reader.id()?, reader.id()?, reader.u64()?);
    let keepers = reader.keepers()?;
    let layout = reader.layout()?;
    let name = if flags & HAS_NAME != 0 { Some(reader.name()?) } else { None };
    let grants = reader.grants()?;
    let mut mappers = BTreeMap::new();
    for _ in 0..reader.u32()? {
        mappers.insert(NodeId(reader.u16()?), reader.u32()?);
    }
    let (moving, ending, named) = (flags & MOVING != 0, flags & ENDING != 0, flags & NAMED != 0);
    let (is_target, mappers_lost) = (flags & IS_TARGET != 0, flags & MAPPERS_LOST != 0);
    // It begins when all is recovered.
    let begin = |length| Lease { length, end: u64::MAX };
    let lease = if flags & HAS_LEASE != 0 { Some(begin(reader.u64()?)) } else { None };
    let standing = if flags & IS_NEW != 0 { Standing::New } else { Standing::Settled };
    reader.end(Record {
        id,
        memory,
        moving,
        name,
        layout,
        grants,
        mappers,
        ending,
        named,
        is_target,
        lease,
        keepers,
        version,
        mappers_lost,
        standing,
    })
}

#[cfg(test)]
mod tests;
