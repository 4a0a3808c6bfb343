//! The message layout and the handshake records of Dunlin.
//!
//! This room turns values into bytes and bytes into values, and nothing else. What may come in: bytes in *private*
//! memory (the caller has copied them away from anything that a peer can still write), lengths, limits, keys. What
//! never comes in: sockets, regions, clocks, threads, random sources, `unsafe`. Every function is total: whatever bytes
//! arrive, the answer is a value or a reason, never a panic, an out-of-bounds read or an allocation that a peer chose
//! the size of. The message path ([`header`], [`single`], [`batch`], [`message`], [`tag`]) does not allocate at all;
//! the handshake ([`handshake`]), which runs once for a connection, does, within small bounds.
//!
//! # The layout
//!
//! All numbers are little-endian. A message is a whole number of 64-byte lines. The first line is
//!
//! | bytes | what |
//! |---|---|
//! | 0..24 | [`Header`] |
//! | 24..56 | payload of a message whose payload has at most 32 bytes, else zero |
//! | 56..64 | first tag |
//!
//! Longer messages continue with the payload, or with the entries of a batch, from byte 64, and end, in the last 8
//! bytes of their last line, with a second tag whose value differs from the first. All padding is zero and is checked,
//! so that one message has exactly one encoding and a sender cannot leak stale memory unnoticed.
//!
//! One layout serves FLOCK's coalescing across threads (SOSP'21, section 4) and RF-RPC's batching across time (TPDS,
//! section 4): a batch is entries, each with its own call and thread.
#![forbid(unsafe_code)]
// No clock, no thread, no I/O, and an allocator in `handshake` alone: the compiler holds this room to its word.
#![cfg_attr(not(test), no_std)]
#![cfg_attr(
    not(test),
    deny(
        clippy::indexing_slicing,
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::unreachable
    )
)]

// The fuzzer's engine, which is also the example's, names this crate from outside.
#[cfg(test)]
extern crate self as dunlin_wire;

pub mod batch;
mod bytes;
pub mod error;
pub mod handshake;
pub mod header;
pub mod message;
#[cfg(test)]
mod planted_bugs;
pub mod rendezvous;
pub mod single;
pub mod status;
pub mod tag;

pub use batch::{BatchBuilder, BatchState, EntryMeta};
pub use bytes::copy as copy_bytes;
pub use error::{BuildError, Reject};
pub use header::{Flags, Header, Kind};
pub use message::{Entries, Entry, FirstLine, Message, parse_line};
pub use rendezvous::Descriptor;
pub use single::{SingleLayout, Tail, encode_line, message_bytes, message_lines, set_line_tag, write_line};
pub use status::{ApplicationCode, Status};
pub use tag::{Direction, TagKey, Tags};

/// Bytes in a line, the unit in which messages are laid out and rings are counted: one cache line.
pub const LINE: usize = 64;
/// Bytes of the encoded [`Header`] at the start of a message.
pub const HEADER_BYTES: usize = 24;
/// Largest payload, in bytes, that travels in the first line.
pub const INLINE_PAYLOAD: usize = 32;
/// Bytes of a tag.
pub const TAG_BYTES: usize = 8;
/// Where the first tag lies in the first line.
pub const TAG_OFFSET: usize = LINE - TAG_BYTES;
/// Where the payload, or the entries, of a message of several lines begin.
pub const BODY_OFFSET: usize = LINE;
/// Bytes of metadata before each payload of a batch.
pub const ENTRY_META_BYTES: usize = 16;
/// Alignment, in bytes, of each entry of a batch.
pub const ENTRY_ALIGN: usize = 8;
