//! Server-bypass: GETs by the client's own READs of the server's data structures, the server's processors doing nothing. The
//! baselines that RF-RPC compares itself with (section 2.3, figure 4(b), section 6).
//!
//! * [`Kind::Pilaf`] (Mitchell et al., ATC 2013): a cuckoo table with three places for a key, whose entries and values check
//!   themselves by CRC64. A GET reads an entry and what it names, place by place (`pilaf.rs`, `cuckoo.rs`).
//! * [`Kind::Farm`] (Dragojevic et al., NSDI 2014): a hopscotch table. A GET reads a whole neighbourhood of slots at once, with the
//!   values in them if they are small, and every cache line has a version (`farm.rs`, `hopscotch.rs`, `lines.rs`).
//!
//! Both only READ. PUT and DELETE go to the server by RPC; each of its workers owns one partition and is the only one to write it. What
//! a READ brings is hostile: it may be torn by a PUT that is under way, or written by a server that means ill. So it is checked by
//! checksum or version, each length and offset in it is bounded by what the handshake said, and a GET that finds no peace gives up
//! at its deadline.
//!
//! The protocols `Pilaf` and `FaRM` of the engine's table are something else: RPCs that post as many READs as these systems do,
//! as HatRPC figure 3 has them, whose requests a server executes.

mod connection;
mod cuckoo;
mod farm;
mod hopscotch;
mod lines;
mod pilaf;
mod server;
mod space;
#[cfg(test)]
mod tests;

pub use connection::{ConnectError, ReadError};
pub use server::{BypassClient, BypassConfig, BypassServeError, BypassServer, GetError, ReadCounts};

use crate::partition::{MAX_KEY_LENGTH, MAX_VALUE_LENGTH};
use thiserror::Error;

/// Which data structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Three places for a key, entries and values with checksums.
    Pilaf = 1,
    /// A neighbourhood of slots, lines with versions.
    Farm = 2,
}

impl Kind {
    /// Both.
    pub const ALL: [Kind; 2] = [Kind::Pilaf, Kind::Farm];

    fn from_number(number: u8) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| *kind as u8 == number)
    }

    /// As it stands in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Pilaf => "Pilaf-style",
            Kind::Farm => "FaRM-style",
        }
    }
}

/// What a table needs of a place for an item, in both kinds. Nothing of it is secret, and clients get it by the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) kind: Kind,
    /// Places of the table.
    pub(crate) places: u64,
    /// Slots of a neighbourhood; 3 for a cuckoo table.
    pub(crate) neighbourhood: u32,
    /// Bytes of the index and of the data behind it.
    pub(crate) index_bytes: u64,
    /// As above.
    pub(crate) data_bytes: u64,
}

/// The table has no place for an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum TableError {
    /// The key is empty or too long for the table.
    #[error("the key has {length} bytes, and this table takes 1 to {limit}")]
    Key {
        /// The key's length.
        length: usize,
        /// The longest.
        limit: usize,
    },
    /// The value is too long.
    #[error("the value has {length} bytes; values have at most {MAX_VALUE_LENGTH}")]
    Value {
        /// The value's length.
        length: usize,
    },
    /// No place can be made free for the key.
    #[error("the table is too full for this key: make it larger")]
    Full,
    /// No memory for the value.
    #[error("there is no memory left for a value of {length} bytes: make the table's memory larger")]
    OutOfMemory {
        /// What it needs.
        length: usize,
    },
}

/// A table as its one owner has it.
pub(crate) trait Table: Send {
    /// Stores a value; says whether there was one before.
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<bool, TableError>;
    /// Removes a key; says whether it was there.
    fn delete(&mut self, key: &[u8]) -> bool;
    /// The value of a key, for those that ask by RPC.
    fn get(&self, key: &[u8], value: &mut Vec<u8>) -> bool;
    /// Items stored.
    #[cfg(test)]
    fn len(&self) -> usize;
}

fn check(key: &[u8], longest: usize, value: &[u8]) -> Result<(), TableError> {
    let limit = longest.min(MAX_KEY_LENGTH);
    if key.is_empty() || key.len() > limit {
        return Err(TableError::Key { length: key.len(), limit });
    }
    if value.len() > MAX_VALUE_LENGTH {
        return Err(TableError::Value { length: value.len() });
    }
    Ok(())
}

/// Bytes in front of each index: the count of moves. It is odd while an item moves from one place to another: who finds a key in
/// none of its places, and the same even count before and after, knows that it was in none.
pub(crate) const HEADER_BYTES: u64 = 64;

/// The hash by which all places of a key are found. Not the store's that chooses a partition.
fn hash_of(key: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64_with_seed(key, 0x6479_7061_7373)
}

/// A number below `count` from a hash, evenly.
fn below(hash: u64, count: u64) -> u64 {
    ((u128::from(hash) * u128::from(count)) >> 64) as u64
}

/// The little-endian number of 8 bytes at that place; 0 beyond the end.
fn number_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|eight| eight.first_chunk()).map_or(0, |eight| u64::from_le_bytes(*eight))
}

/// As [`number_at`], of 4 bytes.
fn number32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|four| four.first_chunk()).map_or(0, |four| u32::from_le_bytes(*four))
}
