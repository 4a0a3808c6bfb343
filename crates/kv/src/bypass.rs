//! Server-bypass baselines: clients GET with their own READs of the server's data structures, without the
//! server's processors. RF-RPC compares itself with them (section 2.3, figure 4(b), section 6).
//!
//! * [`Kind::Pilaf`] (Mitchell et al., ATC 2013): a cuckoo table with three places for a key, whose entries
//!   and values carry CRC64 checksums. A GET reads an entry and then its record, place by place (`pilaf.rs`,
//!   `cuckoo.rs`).
//! * [`Kind::Farm`] (Dragojevic et al., NSDI 2014): a hopscotch table. A GET reads a whole neighbourhood of
//!   slots at once, including small values, and every cache line has a version (`farm.rs`, `hopscotch.rs`,
//!   `lines.rs`).
//!
//! Only GETs bypass the server. PUT and DELETE go to the server by RPC; each of its workers owns one
//! partition and alone writes it. The bytes of a READ are untrusted: a concurrent PUT may have torn them, or
//! a hostile server may have written them. So a GET checks them by checksum or version, bounds each length
//! and offset by the handshake's values, and gives up at its deadline if it reads no consistent bytes.
//!
//! The protocols `Pilaf` and `FaRM` of the engine's table are different: they are RPCs with as many READs as
//! these systems post, as in HatRPC figure 3, whose requests a server executes.

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

/// The data structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Three places for a key; entries and values with checksums.
    Pilaf = 1,
    /// A neighbourhood of slots; lines with versions.
    Farm = 2,
}

dunlin_numbered::numbered!(Kind: u8 { Pilaf = "Pilaf-style", Farm = "FaRM-style" });

/// The parameters that locate an item in a table of either kind. Not secret: clients get them in the
/// handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) kind: Kind,
    /// Places of the table.
    pub(crate) places: u64,
    /// Slots of a neighbourhood; 3 for a cuckoo table.
    pub(crate) neighbourhood: u32,
    /// Bytes of the index.
    pub(crate) index_bytes: u64,
    /// Bytes of the data memory.
    pub(crate) data_bytes: u64,
}

/// The reason why a table could not store an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TableError {
    /// The key is empty or too long for the table.
    #[error("the key has {length} bytes, and this table takes 1 to {limit}")]
    Key {
        /// The key's length.
        length: usize,
        /// The longest key of this table.
        limit: usize,
    },
    /// The value is too long.
    #[error("the value has {length} bytes; values have at most {MAX_VALUE_LENGTH}")]
    Value {
        /// The value's length.
        length: usize,
    },
    /// No place can be freed for the key.
    #[error("the table is too full for this key: make it larger")]
    Full,
    /// No memory for the value.
    #[error("there is no memory left for a value of {length} bytes: make the table's memory larger")]
    OutOfMemory {
        /// The bytes that the value needs.
        length: usize,
    },
}

/// A table, for its only owner.
pub(crate) trait Table: Send {
    /// Stores a value; returns whether the key was there before.
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<bool, TableError>;
    /// Removes a key; returns whether it was there.
    fn delete(&mut self, key: &[u8]) -> bool;
    /// Copies the value of a key for clients that GET by RPC; returns whether the key is there.
    fn get(&self, key: &[u8], value: &mut Vec<u8>) -> bool;
    /// Returns the number of items.
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

/// Bytes in front of each index, which hold the count of moves. The count is odd while an item moves from one
/// place to another: a reader that finds a key in none of its places, with the same even count before and
/// after, knows that the key was absent.
pub(crate) const HEADER_BYTES: u64 = 64;

/// Returns the hash that determines all places of a key. It differs from the store's hash, which selects the
/// partition.
fn hash_of(key: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64_with_seed(key, 0x6479_7061_7373)
}

/// Maps a hash uniformly to a number below `count`.
fn below(hash: u64, count: u64) -> u64 {
    ((u128::from(hash) * u128::from(count)) >> 64) as u64
}

/// Reads a little-endian number of 8 bytes at `at`; returns 0 beyond the end.
fn number_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|eight| eight.first_chunk()).map_or(0, |eight| u64::from_le_bytes(*eight))
}

/// Reads a number of 4 bytes, like [`number_at`].
fn number32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|four| four.first_chunk()).map_or(0, |four| u32::from_le_bytes(*four))
}
