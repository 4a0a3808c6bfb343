//! FaRM's table on the server: hopscotch hashing. A key lies in one of the first slots from its home on, its
//! neighbourhood. A slot is one line; it holds the value if there is room, and otherwise the place of the
//! value's lines. The few items for which no slot can be freed lie in an overflow behind all slots (FaRM
//! chains blocks for them), and the slots of their homes say so.

use super::lines::{self, ROOM, lines_for};
use super::space::{Block, LINE, Space};
use super::{HEADER_BYTES, Kind, Shape, Table, TableError, below, check, hash_of};
use dunlin_fabric::{Memory, Region};

/// Bytes in front of a slot's key: length of the key (1), kind (1), whether items with this home lie in the
/// overflow (1), unused (1), length of the value (4).
pub(super) const SLOT_HEADER: usize = 8;
/// Bytes behind the key of a value outside the slot: its offset (8) and its version (4).
pub(super) const NAME_BYTES: usize = 12;
/// The longest key.
pub(super) const LONGEST_KEY: usize = ROOM - SLOT_HEADER - NAME_BYTES;
/// Kind of a slot without an item.
pub(super) const EMPTY: u8 = 0;
/// Kind of a slot that holds its value.
pub(super) const INLINE: u8 = 1;
/// Kind of a slot whose value lies outside it.
pub(super) const ELSEWHERE: u8 = 2;
/// Slots of the overflow.
pub(super) const OVERFLOW: usize = 60;
/// Most slots searched for a free one.
const SEARCHED: usize = 4096;

#[derive(Clone, Copy, Debug)]
struct Taken {
    hash: u64,
    block: Option<Block>,
}

/// One partition's table.
#[derive(Debug)]
pub(super) struct Hopscotch<M: Memory> {
    index: Region<M>,
    data: Region<M>,
    /// By slot: homes, then the slots that only the neighbourhoods of the last homes reach, then the
    /// overflow.
    taken: Vec<Option<Taken>>,
    /// By home: its items in the overflow.
    overflowed: Vec<u8>,
    homes: usize,
    neighbourhood: usize,
    space: Space,
    moves: u64,
    /// The last version assigned. Each content has its own version, so that a reader detects a value whose
    /// memory was reused.
    version: u32,
    items: usize,
}

impl<M: Memory> Hopscotch<M> {
    /// Returns the bytes of the index for `homes` homes.
    pub(super) fn index_bytes(homes: u64, neighbourhood: u32) -> u64 {
        HEADER_BYTES + (homes + u64::from(neighbourhood) - 1 + OVERFLOW as u64) * LINE as u64
    }

    /// Creates an empty table in zeroed memory.
    pub(super) fn new(index: Region<M>, data: Region<M>, neighbourhood: u32) -> Self {
        let slots = (index.length() - HEADER_BYTES as usize) / LINE;
        let neighbourhood = neighbourhood as usize;
        let space = Space::new(data.length() as u64);
        let homes = slots + 1 - neighbourhood - OVERFLOW;
        Hopscotch {
            index,
            data,
            taken: vec![None; slots],
            overflowed: vec![0; homes],
            homes,
            neighbourhood,
            space,
            moves: 0,
            version: 0,
            items: 0,
        }
    }

    pub(super) fn shape(&self) -> Shape {
        Shape {
            kind: Kind::Farm,
            places: self.homes as u64,
            neighbourhood: self.neighbourhood as u32,
            index_bytes: self.index.length() as u64,
            data_bytes: self.data.length() as u64,
        }
    }

    fn home(&self, hash: u64) -> usize {
        below(hash, self.homes as u64) as usize
    }

    fn next_version(&mut self) -> u32 {
        // Version 0 marks memory that was never written.
        self.version = match self.version.wrapping_add(2) {
            0 => 2,
            version => version,
        };
        self.version
    }

    /// Writes an item, or an empty slot; the slot's overflow flag stays correct.
    fn write_slot(&mut self, slot: usize, taken: Option<Taken>, mut content: [u8; ROOM]) {
        content[2] = u8::from(self.overflowed.get(slot).is_some_and(|items| *items > 0));
        let version = self.next_version();
        lines::write(&self.index, HEADER_BYTES as usize + slot * LINE, 1, version, &content);
        self.taken[slot] = taken;
    }

    /// Returns the first slot of the overflow.
    fn overflow(&self) -> usize {
        self.taken.len() - OVERFLOW
    }

    /// Counts an item of a home in the overflow, or removes it. The item must be in the overflow before its
    /// home's slot says so.
    fn count_overflow(&mut self, home: usize, more: bool) {
        let items = &mut self.overflowed[home];
        *items = if more { *items + 1 } else { items.saturating_sub(1) };
        self.write_slot(home, self.taken[home], self.content(home));
    }

    fn content(&self, slot: usize) -> [u8; ROOM] {
        let line = self.index.line_out(HEADER_BYTES as usize + slot * LINE);
        let mut content = [0; ROOM];
        content.copy_from_slice(&line[4..LINE - 4]);
        content
    }

    fn find(&self, hash: u64, key: &[u8]) -> Option<usize> {
        let home = self.home(hash);
        let beyond = if self.overflowed[home] > 0 { self.overflow()..self.taken.len() } else { 0..0 };
        (home..home + self.neighbourhood).chain(beyond).find(|slot| {
            self.taken[*slot].is_some_and(|taken| taken.hash == hash) && {
                let content = self.content(*slot);
                &content[SLOT_HEADER..SLOT_HEADER + usize::from(content[0])] == key
            }
        })
    }

    /// Frees a slot in the neighbourhood of a home: finds a free slot nearby and brings it nearer by moving
    /// items to it. Items only move forward, and are written to the new slot before they are removed from the
    /// old one.
    fn make_free(&mut self, home: usize) -> Option<usize> {
        let end = self.overflow().min(home + SEARCHED);
        let mut free = (home..end).find(|slot| self.taken[*slot].is_none())?;
        if free < home + self.neighbourhood {
            return Some(free);
        }
        self.moves += 1;
        self.index.store(0, self.moves);
        let mut moved = Some(free);
        while free >= home + self.neighbourhood {
            let movable = (free + 1 - self.neighbourhood..free).find(|slot| {
                self.taken[*slot].is_some_and(|taken| free < self.home(taken.hash) + self.neighbourhood)
            });
            let Some(slot) = movable else {
                moved = None;
                break;
            };
            self.write_slot(free, self.taken[slot], self.content(slot));
            self.write_slot(slot, None, [0; ROOM]);
            free = slot;
            moved = Some(free);
        }
        self.moves += 1;
        self.index.store(0, self.moves);
        moved
    }
}

impl<M: Memory> Table for Hopscotch<M> {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<bool, TableError> {
        check(key, LONGEST_KEY, value)?;
        let hash = hash_of(key);
        let mut content = [0; ROOM];
        content[0] = key.len() as u8;
        content[4..8].copy_from_slice(&(value.len() as u32).to_le_bytes());
        let behind = SLOT_HEADER + key.len();
        content[SLOT_HEADER..behind].copy_from_slice(key);
        let mut block = None;
        if value.len() <= ROOM - behind {
            content[1] = INLINE;
            content[behind..behind + value.len()].copy_from_slice(value);
        } else {
            content[1] = ELSEWHERE;
            let lines = lines_for(value.len());
            let length = lines * LINE;
            let taken = self.space.take(length).ok_or(TableError::OutOfMemory { length })?;
            let version = self.next_version();
            lines::write(&self.data, taken.offset as usize, lines, version, value);
            content[behind..behind + 8].copy_from_slice(&taken.offset.to_le_bytes());
            content[behind + 8..behind + NAME_BYTES].copy_from_slice(&version.to_le_bytes());
            block = Some(taken);
        }
        let found = self.find(hash, key);
        let home = self.home(hash);
        let free_beyond =
            |table: &Self| (table.overflow()..table.taken.len()).find(|slot| table.taken[*slot].is_none());
        let place = found.or_else(|| self.make_free(home)).or_else(|| free_beyond(self));
        let Some(place) = place else {
            block.into_iter().for_each(|block| self.space.give(block));
            return Err(TableError::Full);
        };
        let before = self.taken[place];
        self.write_slot(place, Some(Taken { hash, block }), content);
        if found.is_none() && place >= self.overflow() {
            self.count_overflow(home, true);
        }
        match before {
            Some(before) => before.block.into_iter().for_each(|block| self.space.give(block)),
            None => self.items += 1,
        }
        Ok(found.is_some())
    }

    fn delete(&mut self, key: &[u8]) -> bool {
        let Some(place) = self.find(hash_of(key), key) else { return false };
        let before = self.taken[place];
        self.write_slot(place, None, [0; ROOM]);
        if place >= self.overflow() {
            self.count_overflow(self.home(hash_of(key)), false);
        }
        before.and_then(|before| before.block).into_iter().for_each(|block| self.space.give(block));
        self.items -= 1;
        true
    }

    fn get(&self, key: &[u8], value: &mut Vec<u8>) -> bool {
        let Some(place) = self.find(hash_of(key), key) else { return false };
        let content = self.content(place);
        let length = super::number32_at(&content, 4) as usize;
        let behind = SLOT_HEADER + key.len();
        value.clear();
        if content[1] == INLINE {
            value.extend_from_slice(&content[behind..behind + length]);
            return true;
        }
        let mut read = vec![0; lines_for(length) * LINE];
        self.data.copy_out(super::number_at(&content, behind) as usize, &mut read);
        // The owner alone writes these lines.
        lines::check(&read, value);
        value.truncate(length);
        true
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.items
    }
}
