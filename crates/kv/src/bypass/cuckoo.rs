//! Pilaf's table on the server: cuckoo hashing with three places for a key. An entry points to a record (key
//! and value) and has two checksums, one of the record and one of itself.

use super::space::{Block, Space};
use super::{HEADER_BYTES, Kind, Shape, Table, TableError, below, check, hash_of};
use crate::partition::{MAX_KEY_LENGTH, MAX_VALUE_LENGTH};
use crc::{CRC_64_XZ, Crc, Table as Slices};
use dunlin_fabric::{Memory, Region};
use std::collections::VecDeque;

/// Bytes of an entry.
pub(super) const ENTRY_BYTES: usize = 32;
/// Places that a key may have.
pub(super) const WAYS: usize = 3;
/// The longest record: a key and a value.
pub(super) const LONGEST_RECORD: usize = MAX_KEY_LENGTH + MAX_VALUE_LENGTH;
/// Most places searched for a free one when all places of a key are taken. A table that is three quarters
/// full needs a few.
const SEARCHED: usize = 4096;

static CRC64: Crc<u64, Slices<16>> = Crc::<u64, Slices<16>>::new(&CRC_64_XZ);

/// Returns the checksum of an entry or record.
pub(super) fn checksum(bytes: &[u8]) -> u64 {
    CRC64.checksum(bytes)
}

/// Returns the places of a key, in search order.
pub(super) fn places_of(hash: u64, places: u64) -> [u64; WAYS] {
    // Odd numbers without a pattern, so that the products' high bits are nearly independent.
    let mixed = |odd: u64| {
        let product = u128::from(hash ^ odd) * u128::from(odd);
        (product as u64) ^ (product >> 64) as u64
    };
    [0x9e37_79b9_7f4a_7c15, 0xd6e8_feb8_6659_fd93, 0xa076_1d64_78bd_642f]
        .map(|odd| below(mixed(odd).wrapping_mul(0xe703_7ed1_a0b4_28db), places))
}

/// The content of an entry. On the wire: offset (8 bytes), length of the record (4), length of the key (1),
/// taken flag (1), unused (2), checksum of the record (8), checksum of all the preceding (8). An entry that
/// was never taken is zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) offset: u64,
    pub(super) length: u32,
    pub(super) key_length: u8,
    pub(super) checksum: u64,
}

impl Entry {
    /// Encodes an entry, or an empty place.
    pub(super) fn encode(entry: Option<Entry>) -> [u8; ENTRY_BYTES] {
        let mut bytes = [0; ENTRY_BYTES];
        if let Some(entry) = entry {
            bytes[..8].copy_from_slice(&entry.offset.to_le_bytes());
            bytes[8..12].copy_from_slice(&entry.length.to_le_bytes());
            bytes[12] = entry.key_length;
            bytes[13] = 1;
            bytes[16..24].copy_from_slice(&entry.checksum.to_le_bytes());
        }
        let own = checksum(&bytes[..24]);
        bytes[24..].copy_from_slice(&own.to_le_bytes());
        bytes
    }
}

/// The server's private copy of a place.
#[derive(Clone, Copy, Debug)]
struct Taken {
    hash: u64,
    entry: Entry,
    block: Block,
}

/// One partition's table.
#[derive(Debug)]
pub(super) struct Cuckoo<M: Memory> {
    index: Region<M>,
    data: Region<M>,
    taken: Vec<Option<Taken>>,
    space: Space,
    moves: u64,
    items: usize,
    record: Vec<u8>,
}

impl<M: Memory> Cuckoo<M> {
    /// Returns the bytes of the index for `places` places.
    pub(super) fn index_bytes(places: u64) -> u64 {
        HEADER_BYTES + places * ENTRY_BYTES as u64
    }

    /// Creates an empty table in zeroed memory.
    pub(super) fn new(index: Region<M>, data: Region<M>) -> Self {
        let places = (index.length() - HEADER_BYTES as usize) / ENTRY_BYTES;
        let space = Space::new(data.length() as u64);
        let taken = vec![None; places];
        Cuckoo { index, data, taken, space, moves: 0, items: 0, record: Vec::new() }
    }

    pub(super) fn shape(&self) -> Shape {
        Shape {
            kind: Kind::Pilaf,
            places: self.taken.len() as u64,
            neighbourhood: WAYS as u32,
            index_bytes: self.index.length() as u64,
            data_bytes: self.data.length() as u64,
        }
    }

    fn set(&mut self, place: usize, taken: Option<Taken>) {
        let bytes = Entry::encode(taken.map(|taken| taken.entry));
        self.index.copy_in(HEADER_BYTES as usize + place * ENTRY_BYTES, &bytes);
        self.taken[place] = taken;
    }

    fn key_is(&self, taken: &Taken, key: &[u8]) -> bool {
        let mut stored = [0; MAX_KEY_LENGTH];
        let stored = &mut stored[..usize::from(taken.entry.key_length)];
        self.data.copy_out(taken.entry.offset as usize, stored);
        stored == key
    }

    fn find(&self, hash: u64, key: &[u8]) -> Option<(usize, Taken)> {
        places_of(hash, self.taken.len() as u64).into_iter().find_map(|place| {
            let taken = self.taken[place as usize].filter(|taken| taken.hash == hash)?;
            self.key_is(&taken, key).then_some((place as usize, taken))
        })
    }

    /// Finds the shortest chain of moves that frees one of the places `starts`, as places from the free one
    /// back to the start.
    fn way_to_free(&self, starts: [u64; WAYS]) -> Option<Vec<usize>> {
        let mut seen: Vec<(usize, usize)> =
            starts.iter().map(|start| (*start as usize, usize::MAX)).collect();
        let mut queue: VecDeque<usize> = (0..seen.len()).collect();
        while let Some(at) = queue.pop_front() {
            let (place, _) = seen[at];
            let Some(taken) = self.taken[place] else {
                let mut way = vec![place];
                let mut from = seen[at].1;
                while from != usize::MAX {
                    way.push(seen[from].0);
                    from = seen[from].1;
                }
                return Some(way);
            };
            for next in places_of(taken.hash, self.taken.len() as u64) {
                let known = seen.iter().take(64).any(|(place, _)| *place == next as usize)
                    || way_has(&seen, at, next as usize);
                if seen.len() < SEARCHED && !known {
                    seen.push((next as usize, at));
                    queue.push_back(seen.len() - 1);
                }
            }
        }
        None
    }

    /// Frees one of the places by moving items one at a time, the last first. Each item is written to its new
    /// place before its old one is overwritten, so that it can always be found at one of them.
    fn make_free(&mut self, starts: [u64; WAYS]) -> Option<usize> {
        let way = self.way_to_free(starts)?;
        if let [_, _, ..] = way[..] {
            self.moves += 1;
            self.index.store(0, self.moves);
            for pair in way.windows(2) {
                self.set(pair[0], self.taken[pair[1]]);
            }
            if let Some(first) = way.last() {
                self.set(*first, None);
            }
            self.moves += 1;
            self.index.store(0, self.moves);
        }
        way.last().copied()
    }
}

/// Returns whether a place lies on the chain to another.
fn way_has(seen: &[(usize, usize)], mut at: usize, place: usize) -> bool {
    while at != usize::MAX {
        if seen[at].0 == place {
            return true;
        }
        at = seen[at].1;
    }
    false
}

impl<M: Memory> Table for Cuckoo<M> {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<bool, TableError> {
        check(key, MAX_KEY_LENGTH, value)?;
        let hash = hash_of(key);
        let found = self.find(hash, key);
        let length = key.len() + value.len();
        let block = self.space.take(length).ok_or(TableError::OutOfMemory { length })?;
        let place = match found {
            Some((place, _)) => place,
            None => match self.make_free(places_of(hash, self.taken.len() as u64)) {
                Some(place) => place,
                None => {
                    self.space.give(block);
                    return Err(TableError::Full);
                }
            },
        };
        self.record.clear();
        self.record.extend_from_slice(key);
        self.record.extend_from_slice(value);
        // Write the record before the entry that points to it.
        self.data.copy_in(block.offset as usize, &self.record);
        let entry = Entry {
            offset: block.offset,
            length: length as u32,
            key_length: key.len() as u8,
            checksum: checksum(&self.record),
        };
        self.set(place, Some(Taken { hash, entry, block }));
        match found {
            Some((_, before)) => self.space.give(before.block),
            None => self.items += 1,
        }
        Ok(found.is_some())
    }

    fn delete(&mut self, key: &[u8]) -> bool {
        let Some((place, taken)) = self.find(hash_of(key), key) else { return false };
        self.set(place, None);
        self.space.give(taken.block);
        self.items -= 1;
        true
    }

    fn get(&self, key: &[u8], value: &mut Vec<u8>) -> bool {
        let Some((_, taken)) = self.find(hash_of(key), key) else { return false };
        let (start, length) = (usize::from(taken.entry.key_length), taken.entry.length as usize);
        value.resize(length - start, 0);
        self.data.copy_out(taken.entry.offset as usize + start, value);
        true
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.items
    }
}
