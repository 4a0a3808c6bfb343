//! Blocks in a ledger, and their recovery by the next life of the node.

use super::{Block, Buddy, Space, UNIT};
use crate::codec::{Reader, Writer};
use crate::ledger::Entries;
use crate::message::Malformed;
use crate::place::{LmrId, NodeId};

const USED: u8 = 0;
const DIRTY: u8 = 1;

impl Buddy {
    /// Takes a block that is free, wherever it lies; returns `false` if a part of it is not.
    fn take_at(&mut self, unit: u64, order: usize) -> bool {
        let around = |order: &usize| self.free[*order].contains(&(unit >> order << order));
        let Some(from) = (order..self.free.len()).find(around) else { return false };
        self.free[from].remove(&(unit >> from << from));
        for split in (order..from).rev() {
            // The half that does not have the block stays free.
            self.free[split].insert((unit >> split << split) ^ (1 << split));
        }
        true
    }
}

impl Space {
    /// The entries of blocks, and those of the users of extents, begin with these bytes in a ledger.
    pub const TABLES: [u8; 2] = [b'B', b'T'];

    /// Reports changes from here on ([`report`](Space::report)).
    pub fn watch(&mut self) {
        self.changes.watch();
        self.tenants.watch();
    }

    /// Reports the blocks and the users of extents that have changed since the last report.
    pub fn report(&mut self, entries: &mut impl Entries) {
        let [blocks, tenants] = Space::TABLES;
        for (extent, offset) in self.changes.take() {
            let key = Writer::new(blocks).u16(extent).u64(offset).bytes();
            match self.blocks.get(&(extent, offset)) {
                Some((order, Some(owner))) => {
                    entries.put(&key, &Writer::new(USED).u8(*order).id(*owner).bytes())
                }
                Some((order, None)) => entries.put(&key, &[DIRTY, *order]),
                None => entries.remove(&key),
            }
        }
        for extent in self.tenants.take() {
            let key = Writer::new(tenants).u16(extent).bytes();
            match self.tenant(extent) {
                Some(tenant) => entries.put(&key, tenant.as_str().as_bytes()),
                None => entries.remove(&key),
            }
        }
    }

    /// Adds an entry of an earlier life, whose extents were added before. `table` is one of [`TABLES`](Space::TABLES).
    ///
    /// # Errors
    /// The entry is not one that [`report`](Space::report) makes, or it lies outside of the extents, or on another one.
    pub fn recover(&mut self, table: u8, key: &[u8], value: &[u8]) -> Result<(), Malformed> {
        let mut reader = Reader::new(key);
        let number = reader.u16()?;
        let extent = self.extents.get_mut(usize::from(number)).ok_or(Malformed)?;
        if table == Space::TABLES[1] {
            reader.end(())?;
            let text = std::str::from_utf8(value).map_err(|_| Malformed)?;
            extent.tenant = Some(crate::rights::Principal::new(text).map_err(|_| Malformed)?);
            return Ok(());
        }
        let offset = reader.u64()?;
        reader.end(())?;
        let mut reader = Reader::new(value);
        let (kind, order) = (reader.u8()?, reader.u8()?);
        let unit = offset / UNIT;
        let is_block = usize::from(order) < extent.buddy.free.len()
            && offset.is_multiple_of(UNIT)
            && unit.is_multiple_of(1 << order);
        if !is_block || !extent.buddy.take_at(unit, order.into()) {
            return Err(Malformed);
        }
        let block = Block { extent: number, offset, length: UNIT << order };
        extent.free -= block.length;
        self.free_bytes -= block.length;
        match kind {
            USED => {
                let owner = reader.id()?;
                self.used.insert((owner, number, offset), order);
                self.blocks.insert((number, offset), (order, Some(owner)));
            }
            DIRTY => {
                self.blocks.insert((number, offset), (order, None));
                self.dirty.push_back(block);
                self.dirty_bytes += block.length;
            }
            _ => return Err(Malformed),
        }
        reader.end(())
    }

    /// Releases the blocks of regions of this node whose ids name nothing any more: memory that a region had left by a
    /// move, and that was not taken back when the region itself was forgotten.
    pub fn release_unknown(&mut self, node: NodeId, mut exists: impl FnMut(LmrId) -> bool) {
        let mut owners: Vec<LmrId> = self.used.keys().map(|(owner, ..)| *owner).collect();
        owners.dedup();
        owners.retain(|owner| owner.node == node && !exists(*owner));
        owners.into_iter().for_each(|owner| {
            self.release(owner);
        });
    }

    /// Ends the tenancies of extents that nobody has: without blocks, and without processes that
    /// [hold](Space::hold) them.
    pub fn end_recovery(&mut self) {
        (0..self.extents.len() as u16).for_each(|extent| self.end_tenancy(extent));
    }
}

#[cfg(test)]
mod tests;
