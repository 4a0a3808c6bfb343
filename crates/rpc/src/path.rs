//! Message paths between the two ends of a lane.
//!
//! A lane has two directions. A direction is a [`Tx`] at one end and an [`Rx`] at the other end, both of the same half
//! of a protocol. `path/half.rs` lists the halves; each mechanism is a file of `path/half/`.
//!
//! Large payloads travel outside the messages, by one of several methods. `path/large.rs` lists them; each is a file of
//! `path/large/`. All halves and all methods carry the same bytes (`dunlin_wire`), so the layers above do not depend on
//! them.

mod awaited;
pub(crate) mod beside;
pub(crate) mod call_id;
pub(crate) mod credits;
pub(crate) mod grants;
pub(crate) mod half;
pub(crate) mod large;
pub(crate) mod listed;
pub(crate) mod local_ring;
pub(crate) mod posting;
pub(crate) mod prefetch;
pub(crate) mod retransmit;
pub(crate) mod route;
pub(crate) mod rx;
pub(crate) mod sending;
mod staging;
pub(crate) mod tx;
pub(crate) mod unconnected;

pub(crate) use rx::{Incoming, Next, Rx, Scratch, scratch};
pub(crate) use tx::{Tx, TxError};

use dunlin_fabric::Fabric;
use dunlin_wire::{Kind, LINE, Reject};
use thiserror::Error;

/// The means with which an end of a lane acts: the fabric, and the domain of the thread that drives the lane.
pub(crate) struct Cx<'a, F: Fabric> {
    pub(crate) fabric: &'a F,
    pub(crate) domain: &'a mut F::Domain,
}

impl<'a, F: Fabric> Cx<'a, F> {
    /// Puts the two together.
    #[inline(always)]
    pub(crate) const fn of(fabric: &'a F, domain: &'a mut F::Domain) -> Self {
        Cx { fabric, domain }
    }
}

/// Bytes at the start of every inbound region before its ring: the line that holds the control word.
pub(crate) const CONTROL_BYTES: usize = LINE;

/// The immediate data of a head report; the immediate data of a message is the sender's lane number. A head
/// report only has to wake the receiver, which reads its control word whenever it needs room.
pub(crate) const HEAD_IMMEDIATE: u32 = u32::MAX;

/// Returns the cost of a message in a lane's turn, in lines, so that a lane with many short messages gets the
/// same share as a lane with few long ones. A `Written` message ends the turn, because its large payload is
/// copied.
#[inline]
pub(crate) const fn turn_cost(kind: u8, total: usize) -> usize {
    let lines = total.div_ceil(LINE);
    match lines {
        _ if kind == Kind::Written as u8 => usize::MAX,
        0..MOST_LINES => lines,
        _ => MOST_LINES,
    }
}

/// The largest cost of a message: a turn has room for two of the longest messages, so that the fragments of a
/// large payload proceed.
const MOST_LINES: usize = 16;

/// The longest message, in bytes: a full batch, or a small payload with its header and tag lines.
pub(crate) const MAX_MESSAGE: usize = 8192;

/// A protocol violation by the peer, or a failure of its transfers. Only the lane is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(crate) enum Violation {
    /// The bytes are not a valid message.
    #[error("a message cannot be understood")]
    Message(#[from] Reject),
    /// The peer claims to have consumed messages that were never sent.
    #[error("the peer claims to have consumed what was not sent")]
    Head,
    /// The message is of a kind that this side never receives, or not at this time.
    #[error("a message of kind {0:?} does not belong here")]
    Kind(dunlin_wire::Kind),
    /// This side did not make the call, or the call is outside the window.
    #[error("call {0:#x} is not one of this connection's")]
    Call(u32),
    /// An answer names another thread than that of its call.
    #[error("an answer names thread {0}, which did not make the call")]
    Thread(u16),
    /// The peer lies about a lease: it begins, ends or is announced at the wrong time.
    #[error("a lease begins, ends or is used at the wrong time")]
    Lease,
    /// The queue pair is in error, most likely because the peer has ended.
    #[error("the queue pair is in error")]
    Broken,
    /// The peer sent more calls than it has credits for.
    #[error("the peer sent calls that it has no credits for")]
    Overdrawn(#[from] credits::Overdrawn),
    /// The peer asked for credits against the rules.
    #[error("the peer asked for credits that it has no right to")]
    WrongAsk(#[from] credits::WrongAsk),
    /// A completion reported an error.
    #[error("a transfer failed: {0}")]
    Transfer(&'static str),
}
