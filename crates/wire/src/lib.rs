//! The message layout and the handshake records of Dunlin.
//!
//! This crate encodes and decodes bytes, and does nothing else. Its inputs are bytes in *private* memory
//! (the caller has copied them out of any memory that a peer can still write), lengths, limits and keys. It
//! has no access to sockets, memory regions, clocks, threads or random sources, and no `unsafe`. Every
//! function is total: for any input it returns a value or an error. It never panics, reads out of bounds,
//! or allocates a size that a peer controls. The message path ([`header`], [`single`], [`batch`],
//! [`message`], [`tag`]) does not allocate at all; the [`handshake`], which runs once per connection,
//! allocates within small bounds.
//!
//! # The layout
//!
//! All numbers are little-endian. A message is a whole number of 64-byte lines. The first line is
//!
//! | bytes | content |
//! |---|---|
//! | 0..24 | [`Header`] |
//! | 24..56 | payload of a message whose payload has at most 32 bytes, else zero |
//! | 56..64 | first tag |
//!
//! Longer messages continue from byte 64 with the payload, or with the entries of a batch. The last 8 bytes
//! of their last line hold a second tag, whose value differs from the first. All padding must be zero and
//! is checked, so that every message has exactly one encoding and a sender cannot leak stale memory
//! unnoticed.
//!
//! One layout serves both FLOCK's coalescing across threads (SOSP'21, section 4) and RF-RPC's batching over
//! time (TPDS, section 4): a batch is a list of entries, each with its own call and thread.
#![forbid(unsafe_code)]
// `no_std` lets the compiler enforce the crate's rules: no clock, thread or I/O, and no allocator except in
// `handshake`.
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

// The fuzzer's engine is shared with the example, so it refers to this crate by its external name.
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

pub use batch::{BatchBuilder, BatchState, EntryMeta, MAX_ENTRY_TIME};
pub use bytes::copy as copy_bytes;
pub use error::{BuildError, Reject};
pub use header::{Flags, Header, Kind, TIME_OVER};
pub use message::{Entries, Entry, FirstLine, Message, ShortMessage, parse_line, parse_short};
pub use rendezvous::Descriptor;
pub use single::{Line, SingleLayout, Tail, encode_line, message_bytes, message_lines, set_line_tag};
pub use status::{ApplicationCode, Status};
pub use tag::{Direction, TagKey, Tags};

/// Bytes in a line (one cache line): the unit of message layout and of ring positions.
pub const LINE: usize = 64;
/// Bytes of an encoded [`Header`].
pub const HEADER_BYTES: usize = 24;
/// Largest payload that fits in the first line, in bytes.
pub const INLINE_PAYLOAD: usize = 32;
/// Bytes of a tag.
pub const TAG_BYTES: usize = 8;
/// Offset of the first tag in the first line.
pub const TAG_OFFSET: usize = LINE - TAG_BYTES;
/// Offset of the payload, or of the entries, in a message of several lines.
pub const BODY_OFFSET: usize = LINE;
/// Bytes of metadata before each payload of a batch.
pub const ENTRY_META_BYTES: usize = 16;
/// Alignment, in bytes, of each entry of a batch.
pub const ENTRY_ALIGN: usize = 8;
