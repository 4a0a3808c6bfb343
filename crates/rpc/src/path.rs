//! Paths: how one message gets from one end of a lane to the other. A lane has two directions, and a direction
//! is a [`Tx`] at one end and an [`Rx`] at the other, both of the same half:
//!
//! | half | sender | receiver | file |
//! |---|---|---|---|
//! | `send` | SEND | takes it out of a RECV's buffer | `path/{tx,rx}.rs` |
//! | `write` | WRITE into the receiver's ring | polls the ring | `path/{tx,rx}.rs` |
//! | `write_imm` | WRITE_WITH_IMM into the receiver's ring | a completion, then the ring | `path/{tx,rx}.rs` |
//! | `write_send` | WRITE into the receiver's ring, then a SEND of nothing | a completion, then the ring | `path/{tx,rx}.rs` |
//! | `write_send_chained` | the same as a list | a completion, then the ring | `path/{tx,rx}.rs` |
//! | `fetch` | leaves it in a ring of its own | READs that ring until it is there | `path/fetch.rs` |
//! | `fetch_or_write`, `fetch_or_write_imm` | as `fetch` or as `write`, `write_imm`, as each request asks | both | `path/hybrid.rs` |
//! | `datagram` | SEND of a datagram | takes it out of a RECV's buffer, in any order | `path/datagram.rs` |
//! | `write_unreliable` | WRITE over UC into the receiver's ring | polls the ring | `path/lossy_ring.rs` |
//!
//! The last two may lose a message: the client sends again, the server answers again (`path/again.rs`).
//!
//! Large payloads travel beside them: READ by who gets them (`path/rendezvous.rs`), while they are
//! being filled (`path/pieces.rs`), WRITTEN or sent in fragments (`path/large.rs`, `path/areas.rs`). Every half carries the same bytes (`dunlin_wire`),
//! so that what is above never asks which half it is.

pub(crate) mod again;
mod areas;
mod awaited;
pub(crate) mod call_id;
pub(crate) mod datagram;
pub(crate) mod fetch;
pub(crate) mod hybrid;
pub(crate) mod large;
pub(crate) mod lossy_ring;
pub(crate) mod pieces;
pub(crate) mod rendezvous;
pub(crate) mod route;
pub(crate) mod rx;
mod staging;
pub(crate) mod tx;

pub(crate) use rx::{Incoming, Next, Rx, RxSource, Scratch, scratch};
pub(crate) use tx::{Tx, TxError, TxHalf};

use dunlin_wire::{Kind, LINE, Reject};
use thiserror::Error;

/// Bytes at the start of every inbound region before its ring: the line that holds the control word.
pub(crate) const CONTROL_BYTES: usize = LINE;

/// The immediate data of a report of a head; that of a message is the sender's number of its lane. Whoever gets it
/// has only to be awake: it looks at its control word when it looks for room.
pub(crate) const HEAD_IMMEDIATE: u32 = u32::MAX;

/// What a message counts for where messages are counted so that lanes take turns: its lines, so that who sends many short ones has as much of a
/// turn as who sends few long ones. One that says that a large payload was written, that is copied, is a turn of its own.
#[inline]
pub(crate) const fn turn_cost(kind: u8, total: usize) -> usize {
    let lines = total.div_ceil(LINE);
    match lines {
        _ if kind == Kind::Written as u8 => usize::MAX,
        0..MOST_LINES => lines,
        _ => MOST_LINES,
    }
}

/// No message counts for more lines: two of the longest are a turn, so that the fragments of a large payload go on.
const MOST_LINES: usize = 16;

/// The longest message: a batch of this many bytes, or a small payload with its lines around it.
pub(crate) const MAX_MESSAGE: usize = 8192;

/// A peer did what no correct peer does. The lane is closed, nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(crate) enum Violation {
    /// Its bytes are not a message.
    #[error("a message cannot be understood: {0}")]
    Message(#[from] Reject),
    /// It claims to have consumed what was never sent.
    #[error("the peer claims to have consumed what was not sent")]
    Head,
    /// A message of a kind that this side never gets, or at the wrong time.
    #[error("a message of kind {0:?} does not belong here")]
    Kind(dunlin_wire::Kind),
    /// A call that this side did not make, or outside the window.
    #[error("call {0:#x} is not one of this connection's")]
    Call(u32),
    /// The queue pair is in error. No fault of the peer's, but its end is most likely.
    #[error("the queue pair is in error")]
    Broken,
    /// A completion with an error.
    #[error("a transfer failed: {0}")]
    Transfer(&'static str),
}
