//! The ledger of a node: its state as entries, in memory that outlives the node's process.
//!
//! A keeper process holds the memory ([`LedgerMemory`]). The node writes each change before it answers, so the next
//! life knows all that anybody was told. The next life refuses a ledger in which any committed bit has changed.
//!
//! ```text
//! 0        magic, version
//! 16       selector: the number of the commit that counts, and its check, in one word
//! 64, 128  heads, used in turns: number, area, length, chain, check
//! 4096     area 0: batches of changes        area 1: the same; one is in use
//! ```
//!
//! A commit appends a batch to the area in use, writes the head that is not in use, and stores the selector. The process
//! may end between any two stores: the selector names the state before or after. When an area has grown to several times
//! its entries, all entries are written into the other one.

mod bytes;

pub use bytes::LedgerMemory;
use bytes::{Head, SELECTOR, START, VOID, selector_of};
use std::collections::BTreeMap;
use thiserror::Error;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The version of the ledger.
pub const LEDGER_VERSION: u32 = 5;
const MAGIC: [u8; 8] = *b"dunlinLG";

/// An area is replaced when it has grown beyond this, in bytes, and beyond four times its entries.
const SMALL: u64 = 1 << 20;
/// The most bytes of one batch when all entries are written.
const BATCH: usize = 1 << 20;
/// The length of a value that stands for "removed".
const REMOVED: u32 = u32::MAX;

/// The reason why a ledger is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum LedgerError {
    /// The memory has no ledger.
    #[error("the memory of the keeper has no ledger")]
    Foreign,
    /// Another version wrote the ledger.
    #[error(
        "the ledger has version {theirs}, and this node reads version {ours}: run the release that wrote it"
    )]
    Version {
        /// The version of this node.
        ours: u32,
        /// The version of the ledger.
        theirs: u32,
    },
    /// The checks of the ledger do not match its bytes.
    #[error("the ledger is damaged: {0}")]
    Damaged(&'static str),
    /// The ledger had no room for a change, and ended.
    #[error("the ledger had no room for the records of the node")]
    Full,
    /// The memory is shorter than a ledger.
    #[error("a ledger has at least {least} bytes, and this memory has {length}")]
    Short {
        /// The least length in bytes.
        least: u64,
        /// The length of the memory.
        length: u64,
    },
}

/// The receiver of changes.
pub trait Entries {
    /// Sets an entry.
    fn put(&mut self, key: &[u8], value: &[u8]);
    /// Removes an entry, if there is one.
    fn remove(&mut self, key: &[u8]);
}

/// Keys that have changed since they were last reported; none are noted unless they are watched.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Changes<K>(Option<Vec<K>>);

impl<K> Default for Changes<K> {
    fn default() -> Self {
        Changes(None)
    }
}

impl<K: Ord> Changes<K> {
    /// From here on, keys are noted.
    pub(crate) fn watch(&mut self) {
        self.0.get_or_insert_default();
    }

    #[inline]
    pub(crate) fn note(&mut self, key: K) {
        if let Some(changed) = &mut self.0 {
            changed.push(key);
        }
    }

    /// Returns the keys, each once.
    #[inline]
    pub(crate) fn take(&mut self) -> Vec<K> {
        match &mut self.0 {
            Some(changed) if !changed.is_empty() => {
                let mut changed = std::mem::take(changed);
                changed.sort_unstable();
                changed.dedup();
                changed
            }
            _ => Vec::new(),
        }
    }
}

/// A ledger that is written.
#[derive(Debug)]
pub struct Ledger<M> {
    memory: M,
    entries: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The bytes of all entries in an area.
    live: u64,
    head: Head,
    /// Changes that are not committed.
    pending: Vec<u8>,
}

fn bytes_of(key: &[u8], value: &[u8]) -> u64 {
    (6 + key.len() + value.len()) as u64
}

fn encode(into: &mut Vec<u8>, key: &[u8], value: Option<&[u8]>) {
    let length = value.map_or(REMOVED, |value| value.len() as u32);
    into.extend_from_slice(&(key.len() as u16).to_le_bytes());
    into.extend_from_slice(&length.to_le_bytes());
    into.extend_from_slice(key);
    into.extend_from_slice(value.unwrap_or_default());
}

/// Reads one change.
fn decode<'a>(batch: &mut &'a [u8]) -> Option<(&'a [u8], Option<&'a [u8]>)> {
    let (head, rest) = batch.split_first_chunk::<6>()?;
    let key_length = u16::from_le_bytes([head[0], head[1]]);
    let length = u32::from_le_bytes([head[2], head[3], head[4], head[5]]);
    let (key, rest) = rest.split_at_checked(key_length.into())?;
    if length == REMOVED {
        *batch = rest;
        return Some((key, None));
    }
    let (value, rest) = rest.split_at_checked(length as usize)?;
    *batch = rest;
    Some((key, Some(value)))
}

impl<M: LedgerMemory> Ledger<M> {
    /// Writes an empty ledger into memory without one.
    ///
    /// # Errors
    /// The memory is too short.
    pub fn begin(memory: M) -> Result<Self, LedgerError> {
        bytes::area_length(&memory)?;
        memory.write(0, &MAGIC);
        memory.write(8, &LEDGER_VERSION.to_le_bytes());
        memory.store(SELECTOR, 0);
        Ok(Ledger { memory, entries: BTreeMap::new(), live: 0, head: Head::default(), pending: Vec::new() })
    }

    /// Reads the ledger of an earlier life; `None` if that life has committed nothing.
    ///
    /// # Errors
    /// Anything in it is not as it was written.
    pub fn open(memory: M) -> Result<Option<Self>, LedgerError> {
        let area_length = bytes::area_length(&memory)?;
        let mut start = [0; 12];
        memory.read(0, &mut start);
        let selector = memory.load(SELECTOR);
        if start == [0; 12] && selector == 0 {
            return Ok(None);
        }
        if start[..8] != MAGIC {
            return Err(LedgerError::Foreign);
        }
        let theirs = u32::from_le_bytes([start[8], start[9], start[10], start[11]]);
        if theirs != LEDGER_VERSION {
            return Err(LedgerError::Version { ours: LEDGER_VERSION, theirs });
        }
        if selector == 0 {
            return Ok(None);
        }
        if selector == VOID {
            return Err(LedgerError::Full);
        }
        let head = Head::read(&memory, selector)?;
        if head.area > 1 || head.length > area_length {
            return Err(LedgerError::Damaged("its head"));
        }
        let mut area = vec![0; head.length as usize];
        memory.read(START + head.area * area_length, &mut area);
        let (mut rest, mut chain) = (&area[..], 0);
        let mut ledger =
            Ledger { memory, entries: BTreeMap::new(), live: 0, head: Head::default(), pending: Vec::new() };
        while !rest.is_empty() {
            let damaged = LedgerError::Damaged("a batch of changes");
            let (length, after) = rest.split_first_chunk::<4>().ok_or(damaged)?;
            let (mut batch, after) =
                after.split_at_checked(u32::from_le_bytes(*length) as usize).ok_or(damaged)?;
            chain = xxh3_64_with_seed(batch, chain);
            while !batch.is_empty() {
                match decode(&mut batch).ok_or(damaged)? {
                    (key, Some(value)) => drop(ledger.set(key, value)),
                    (key, None) => drop(ledger.unset(key)),
                }
            }
            rest = after;
        }
        if chain != head.chain {
            return Err(LedgerError::Damaged("the check of its changes"));
        }
        ledger.head = head;
        Ok(Some(ledger))
    }

    fn set(&mut self, key: &[u8], value: &[u8]) -> bool {
        if self.entries.get(key).is_some_and(|old| old == value) {
            return false;
        }
        self.live += bytes_of(key, value);
        if let Some(old) = self.entries.insert(key.to_vec(), value.to_vec()) {
            self.live -= bytes_of(key, &old);
        }
        true
    }

    fn unset(&mut self, key: &[u8]) -> bool {
        let old = self.entries.remove(key);
        self.live -= old.as_ref().map_or(0, |old| bytes_of(key, old));
        old.is_some()
    }

    /// Returns whether there is an entry with this key.
    pub fn has(&self, key: &[u8]) -> bool {
        self.entries.contains_key(key)
    }

    /// Returns the entries whose keys begin with `table`, in the order of their keys, without that byte.
    pub fn table(&self, table: u8) -> impl Iterator<Item = (&[u8], &[u8])> {
        let all = self.entries.range(vec![table]..).take_while(move |(key, _)| key.first() == Some(&table));
        all.map(|(key, value)| (&key[1..], &value[..]))
    }

    /// Writes all changes since the last commit. Afterwards the next life reads them.
    ///
    /// # Errors
    /// The memory has no room for the entries: the ledger has ended, and the next life hears so.
    pub fn commit(&mut self) -> Result<(), LedgerError> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let area_length = bytes::area_length(&self.memory)?;
        let pending = std::mem::take(&mut self.pending);
        let Head { number, area, length, chain } = self.head;
        let grown = length + 4 + pending.len() as u64;
        self.head = if number > 0 && grown <= area_length.min(SMALL.max(4 * self.live)) {
            let chain = self.append(START + area * area_length + length, &pending, chain);
            Head { number: number + 1, area, length: grown, chain }
        } else {
            self.rewrite(number + 1, (area + 1) % 2, area_length)?
        };
        self.pending = pending;
        self.pending.clear();
        self.head.write(&self.memory);
        self.memory.store(SELECTOR, selector_of(self.head.number));
        Ok(())
    }

    /// Writes a batch; returns the next chain.
    fn append(&self, at: u64, batch: &[u8], chain: u64) -> u64 {
        self.memory.write(at, &(batch.len() as u32).to_le_bytes());
        self.memory.write(at + 4, batch);
        xxh3_64_with_seed(batch, chain)
    }

    /// Writes all entries into an area that is not in use.
    fn rewrite(&self, number: u64, area: u64, area_length: u64) -> Result<Head, LedgerError> {
        let (mut length, mut chain, mut batch) = (0, 0, Vec::new());
        let mut entries = self.entries.iter().peekable();
        while let Some((key, value)) = entries.next() {
            encode(&mut batch, key, Some(value));
            if batch.len() < BATCH && entries.peek().is_some() {
                continue;
            }
            if length + 4 + batch.len() as u64 > area_length {
                self.memory.store(SELECTOR, VOID);
                return Err(LedgerError::Full);
            }
            chain = self.append(START + area * area_length + length, &batch, chain);
            length += 4 + batch.len() as u64;
            batch.clear();
        }
        Ok(Head { number, area, length, chain })
    }
}

impl<M: LedgerMemory> Entries for Ledger<M> {
    fn put(&mut self, key: &[u8], value: &[u8]) {
        if self.set(key, value) {
            encode(&mut self.pending, key, Some(value));
        }
    }

    fn remove(&mut self, key: &[u8]) {
        if self.unset(key) {
            encode(&mut self.pending, key, None);
        }
    }
}

#[cfg(test)]
mod explore;
#[cfg(test)]
mod tests;
