//! Completions: what a completion queue yields, the status codes of verbs, and what each says about the work.

use crate::arena::Buffer;
use crate::memory::Memory;
use crate::work::{QueuePairId, WorkId};

/// What kind of work request a completion ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opcode {
    /// A SEND of ours.
    Send,
    /// A WRITE of ours, with or without immediate.
    Write,
    /// A READ of ours.
    Read,
    /// A FETCH_ADD of ours; the old value is in [`Completion::value`].
    FetchAdd,
    /// A CMP_SWAP of ours; the old value is in [`Completion::value`].
    CompareSwap,
    /// A RECV of ours that a SEND has filled.
    Receive,
    /// A RECV of ours that a WRITE_WITH_IMM has consumed; the data is not in its buffer.
    ReceiveWriteImmediate,
}

/// How a work request ended; the codes of verbs (`ibv_wc_status`), by their meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompletionStatus {
    /// Done. For a WRITE: placed, though the remote processor may not see it yet.
    Success,
    /// The message is longer than the RECV's buffer (at the receiver), or than the fabric allows.
    LocalLength,
    /// The local buffer may not be used for this.
    LocalProtection,
    /// The key is wrong, the range is out of bounds, or the permission is missing at the target.
    RemoteAccess,
    /// The target cannot do this operation on this transport or at this alignment.
    RemoteInvalidRequest,
    /// The target's RECV was too short, or its queue pair failed while it took the message.
    RemoteOperation,
    /// The target had no RECV posted for longer than the retries allow.
    ReceiverNotReady,
    /// The target does not answer: its process, host or link is gone.
    TransportRetry,
    /// The queue pair was in the error state before this was done.
    Flushed,
}

/// What an error broke, from the smallest to the largest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Broke {
    /// Nothing.
    Nothing,
    /// This operation alone; the queue pair goes on (only unreliable transports have this).
    Operation,
    /// The queue pair: everything else on it is flushed; a new one can be made.
    QueuePair,
    /// The peer is gone.
    Peer,
    /// The device is gone.
    Device,
}

impl CompletionStatus {
    /// What this status broke, on a connected transport.
    pub const fn broke(self) -> Broke {
        match self {
            CompletionStatus::Success => Broke::Nothing,
            CompletionStatus::TransportRetry => Broke::Peer,
            _ => Broke::QueuePair,
        }
    }

    /// Whether the target may have seen any effect of the work request.
    ///
    /// A flushed request was accepted but may have left before the queue pair failed, so it counts as maybe:
    /// verbs gives no stronger promise.
    pub const fn may_have_executed(self) -> bool {
        match self {
            CompletionStatus::Success
            | CompletionStatus::Flushed
            | CompletionStatus::TransportRetry
            | CompletionStatus::RemoteOperation => true,
            CompletionStatus::LocalLength
            | CompletionStatus::LocalProtection
            | CompletionStatus::RemoteAccess
            | CompletionStatus::RemoteInvalidRequest
            | CompletionStatus::ReceiverNotReady => false,
        }
    }

    /// Short text for messages.
    pub const fn describe(self) -> &'static str {
        match self {
            CompletionStatus::Success => "success",
            CompletionStatus::LocalLength => "local length error",
            CompletionStatus::LocalProtection => "local protection error",
            CompletionStatus::RemoteAccess => {
                "remote access error: wrong key, out of bounds or no permission"
            }
            CompletionStatus::RemoteInvalidRequest => "remote invalid request",
            CompletionStatus::RemoteOperation => "remote operation error",
            CompletionStatus::ReceiverNotReady => "receiver not ready, retries exceeded",
            CompletionStatus::TransportRetry => "the peer does not answer",
            CompletionStatus::Flushed => "flushed, the queue pair is in error",
        }
    }
}

/// One completion. Unsignaled work requests that succeed make none; failed and flushed ones always do.
#[derive(Debug)]
pub struct Completion<M: Memory> {
    /// The id that was given when the work was posted.
    pub id: WorkId,
    /// How it ended. Where this is not success only `id`, `queue_pair` and `buffer` have a meaning.
    pub status: CompletionStatus,
    /// What it was.
    pub opcode: Opcode,
    /// Bytes received or read.
    pub bytes: u32,
    /// Immediate data of the sender.
    pub immediate: Option<u32>,
    /// The old value of an atomic.
    pub value: u64,
    /// The queue pair that it belongs to.
    pub queue_pair: QueuePairId,
    /// The buffer that was posted, given back: READ and RECV.
    pub buffer: Option<Buffer<M>>,
}
