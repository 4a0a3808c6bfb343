//! Sorted runs in regions: a header with the place of each partition, then entries in ascending order of keys.

use crate::cluster::Bytes;
use crate::error::MapReduceError;
use crate::message::Piece;
use crate::program::Program;
use dunlin_tier_node::OperationError;
use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, HashMap};
use xxhash_rust::xxh3::{Xxh3DefaultBuilder, xxh3_64};

/// The first bytes of a piece.
const MAGIC: u64 = u64::from_le_bytes(*b"dunlinMR");
/// The most partitions of a job.
pub(crate) const MAX_PARTITIONS: u32 = 4096;
/// The longest key and value together, in bytes.
pub(crate) const MAX_ENTRY: usize = 16 << 20;
/// The bytes of an entry beside its key and value: the lengths of both.
const LENGTHS: usize = 8;
/// The bytes that are read at once, for each run of a merge.
const CHUNK: usize = 256 << 10;
/// The memory of all runs that a reducer reads at the same time.
const CHUNKS: usize = 64 << 20;
/// The part of a table's memory beside keys and values, for each entry.
const ENTRY_COST: usize = 96;

fn header_length(partitions: u32) -> u64 {
    24 + 16 * u64::from(partitions)
}

/// Returns the partition of a key.
fn partition(key: &[u8], partitions: u32) -> u32 {
    // The tables hash the same key with the low bits.
    ((xxh3_64(key) >> 32) % u64::from(partitions)) as u32
}

fn put_entry(out: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    out.extend_from_slice(&(key.len() as u32).to_le_bytes());
    out.extend_from_slice(&(value.len() as u32).to_le_bytes());
    out.extend_from_slice(key);
    out.extend_from_slice(value);
}

/// The results of a worker's map tasks, combined by key.
#[derive(Debug)]
pub(crate) struct Table {
    by_partition: Vec<HashMap<Box<[u8]>, Vec<u8>, Xxh3DefaultBuilder>>,
    /// The memory in use, about.
    pub(crate) bytes: usize,
    /// An entry was longer than the limit.
    pub(crate) too_long: bool,
}

impl Table {
    pub(crate) fn new(partitions: u32) -> Table {
        Table {
            by_partition: (0..partitions).map(|_| HashMap::default()).collect(),
            bytes: 0,
            too_long: false,
        }
    }

    pub(crate) fn add(&mut self, program: &impl Program, key: &[u8], value: &[u8]) {
        if key.len() + value.len() > MAX_ENTRY {
            self.too_long = true;
            return;
        }
        let partitions = self.by_partition.len() as u32;
        let table = &mut self.by_partition[partition(key, partitions) as usize];
        match table.get_mut(key) {
            Some(held) => {
                let before = held.len();
                program.combine(key, held, value);
                self.bytes = self.bytes.saturating_add(held.len()).saturating_sub(before);
                self.too_long |= key.len() + held.len() > MAX_ENTRY;
            }
            None => {
                self.bytes += key.len() + value.len() + ENTRY_COST;
                table.insert(key.into(), value.to_vec());
            }
        }
    }

    /// Encodes all entries as a piece, sorted, and empties the table.
    pub(crate) fn take(&mut self, agreement: u64) -> Vec<u8> {
        let partitions = self.by_partition.len() as u32;
        let mut body = Vec::new();
        let mut places = Vec::with_capacity(self.by_partition.len());
        for table in &mut self.by_partition {
            let mut entries: Vec<_> = table.drain().collect();
            entries.sort_unstable_by(|one, other| one.0.cmp(&other.0));
            let begin = body.len();
            entries.iter().for_each(|(key, value)| put_entry(&mut body, key, value));
            places.push((header_length(partitions) + begin as u64, (body.len() - begin) as u64));
        }
        self.bytes = 0;
        let mut piece = header(agreement, &places);
        piece.append(&mut body);
        piece
    }
}

fn header(agreement: u64, places: &[(u64, u64)]) -> Vec<u8> {
    let mut out = Vec::with_capacity(header_length(places.len() as u32) as usize);
    for word in [MAGIC, agreement, places.len() as u64] {
        out.extend_from_slice(&word.to_le_bytes());
    }
    for (at, length) in places {
        out.extend_from_slice(&at.to_le_bytes());
        out.extend_from_slice(&length.to_le_bytes());
    }
    out
}

/// The entries of one partition of a piece, in order. The bytes are those of another worker: every length is checked.
#[derive(Debug)]
pub(crate) struct Run<B> {
    piece: Piece,
    bytes: B,
    /// The part of the region that is not read yet.
    at: u64,
    end: u64,
    chunk: usize,
    buffer: Vec<u8>,
    /// The part of the buffer that is not consumed.
    from: usize,
    /// The key of the entry before.
    last: Vec<u8>,
    has_last: bool,
    /// The bytes of the partition.
    pub(crate) length: u64,
}

/// The place of an entry in the buffer of its run.
#[derive(Clone, Copy, Debug)]
struct Place {
    key: usize,
    value: usize,
    end: usize,
}

impl<B: Bytes> Run<B> {
    /// Opens the run of a partition.
    pub(crate) fn open(
        piece: Piece,
        bytes: B,
        (partition, partitions): (u32, u32),
        agreement: u64,
        chunk: usize,
    ) -> Result<Self, MapReduceError> {
        let damaged = |what: &str| MapReduceError::damaged(piece, what);
        let length = bytes.len();
        let mut head = vec![0; header_length(partitions) as usize];
        if length < head.len() as u64 {
            return Err(damaged("it is shorter than its header"));
        }
        bytes.read(0, &mut head).map_err(|source| MapReduceError::Read { piece, source: source.into() })?;
        let word =
            |at: usize| head[8 * at..8 * at + 8].try_into().map(u64::from_le_bytes).unwrap_or_default();
        if word(0) != MAGIC || word(1) != agreement || word(2) != u64::from(partitions) {
            return Err(damaged("it is not of this job"));
        }
        let (at, run) = (word(3 + 2 * partition as usize), word(4 + 2 * partition as usize));
        let end = at.checked_add(run).filter(|end| *end <= length && at >= head.len() as u64);
        let end = end.ok_or_else(|| damaged("a partition lies outside"))?;
        let (buffer, last) = (Vec::new(), Vec::new());
        Ok(Run { piece, bytes, at, end, chunk, buffer, from: 0, last, has_last: false, length: run })
    }

    /// Reads until `wanted` bytes are in the buffer.
    fn fill(&mut self, wanted: usize) -> Result<(), MapReduceError> {
        if self.buffer.len() - self.from >= wanted {
            return Ok(());
        }
        self.buffer.drain(..self.from);
        self.from = 0;
        let held = self.buffer.len();
        let left = self.end - self.at;
        let more = left.min((wanted - held).max(self.chunk) as u64) as usize;
        if held + more < wanted {
            return Err(MapReduceError::damaged(self.piece, "an entry is cut short"));
        }
        self.buffer.resize(held + more, 0);
        let read = self.bytes.read(self.at, &mut self.buffer[held..]);
        read.map_err(|source| MapReduceError::Read { piece: self.piece, source: source.into() })?;
        self.at += more as u64;
        Ok(())
    }

    /// Moves to the next entry; returns whether there is one.
    fn next(&mut self) -> Result<Option<Place>, MapReduceError> {
        if self.from == self.buffer.len() && self.at == self.end {
            return Ok(None);
        }
        self.fill(LENGTHS)?;
        let length = |at: usize| {
            let bytes = &self.buffer[self.from + at..self.from + at + 4];
            bytes.try_into().map_or(usize::MAX, |bytes| u32::from_le_bytes(bytes) as usize)
        };
        let (key, value) = (length(0), length(4));
        if key.saturating_add(value) > MAX_ENTRY {
            return Err(MapReduceError::damaged(self.piece, "an entry is too long"));
        }
        self.fill(LENGTHS + key + value)?;
        let begin = self.from + LENGTHS;
        let place = Place { key: begin, value: begin + key, end: begin + key + value };
        let bytes = &self.buffer[place.key..place.value];
        if self.has_last && self.last.as_slice() >= bytes {
            return Err(MapReduceError::damaged(self.piece, "its keys are not in order"));
        }
        self.last.clear();
        self.last.extend_from_slice(bytes);
        self.has_last = true;
        self.from = place.end;
        Ok(Some(place))
    }

    /// Passes all entries to `each`, until it returns `false`.
    pub(crate) fn for_each(
        mut self,
        mut each: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), MapReduceError> {
        while let Some(place) = self.next()? {
            if !each(&self.buffer[place.key..place.value], &self.buffer[place.value..place.end]) {
                break;
            }
        }
        Ok(())
    }
}

/// Returns the bytes that each of several runs reads at once.
pub(crate) fn chunk(runs: usize) -> usize {
    (CHUNKS / runs.max(1)).clamp(4 << 10, CHUNK)
}

/// Reduces a partition: combines the values of each key over all runs, and encodes the results as a piece.
pub(crate) fn reduce<B: Bytes>(
    program: &impl Program,
    runs: &mut [Run<B>],
    agreement: u64,
) -> Result<Vec<u8>, MapReduceError> {
    let mut heap = BinaryHeap::with_capacity(runs.len());
    let mut places = vec![None; runs.len()];
    for (number, run) in runs.iter_mut().enumerate() {
        places[number] = run.next()?;
        if places[number].is_some() {
            heap.push(Reverse((run.last.clone(), number)));
        }
    }
    let mut piece = header(agreement, &[(0, 0)]);
    let begin = piece.len();
    let mut result = |key: &[u8], value: Vec<u8>| match program.reduce(key, value) {
        Some(value) if key.len() + value.len() > MAX_ENTRY => Err(MapReduceError::TooLong),
        Some(value) => {
            put_entry(&mut piece, key, &value);
            Ok(())
        }
        None => Ok(()),
    };
    let mut held: Option<(Vec<u8>, Vec<u8>)> = None;
    while let Some(Reverse((mut key, number))) = heap.pop() {
        let run = &mut runs[number];
        let place = places[number].take().unwrap_or(Place { key: 0, value: 0, end: 0 });
        let value = &run.buffer[place.value..place.end];
        match &mut held {
            Some((same, sum)) if *same == key => program.combine(&key, sum, value),
            _ => {
                if let Some((key, value)) = held.replace((key.clone(), value.to_vec())) {
                    result(&key, value)?;
                }
            }
        }
        places[number] = run.next()?;
        if places[number].is_some() {
            key.clone_from(&run.last);
            heap.push(Reverse((key, number)));
        }
    }
    if let Some((key, value)) = held {
        result(&key, value)?;
    }
    let length = (piece.len() - begin) as u64;
    piece[24..32].copy_from_slice(&(begin as u64).to_le_bytes());
    piece[32..40].copy_from_slice(&length.to_le_bytes());
    Ok(piece)
}

pub(crate) fn written(source: OperationError) -> MapReduceError {
    MapReduceError::Write(source.into())
}

/// Merges two outputs with different keys into a piece whose length is known before. Uses two chunks of memory and one for
/// the result, whatever the lengths.
pub(crate) fn merge<B: Bytes, O: Bytes>(
    [mut one, mut other]: [Run<B>; 2],
    agreement: u64,
    create: impl FnOnce(u64) -> Result<O, MapReduceError>,
) -> Result<O, MapReduceError> {
    let length = one.length.saturating_add(other.length);
    let mut pending = header(agreement, &[(header_length(1), length)]);
    let out = create(header_length(1).saturating_add(length))?;
    let mut at = 0;
    let (mut left, mut right) = (one.next()?, other.next()?);
    loop {
        let from_left = match (left, right) {
            (None, None) => break,
            (Some(_), None) => true,
            (None, Some(_)) => false,
            (Some(_), Some(_)) => match one.last.cmp(&other.last) {
                Ordering::Less => true,
                Ordering::Greater => false,
                Ordering::Equal => {
                    return Err(MapReduceError::damaged(other.piece, "a key is in two partitions"));
                }
            },
        };
        let (run, place) = if from_left { (&mut one, &mut left) } else { (&mut other, &mut right) };
        if let Some(Place { key, value, end }) = *place {
            put_entry(&mut pending, &run.buffer[key..value], &run.buffer[value..end]);
        }
        *place = run.next()?;
        if pending.len() >= CHUNK {
            out.write(at, &pending).map_err(written)?;
            at += pending.len() as u64;
            pending.clear();
        }
    }
    out.write(at, &pending).map_err(written)?;
    Ok(out)
}

#[cfg(test)]
mod tests;
