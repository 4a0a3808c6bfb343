//! Completions: the entries of a completion queue, the status codes of verbs, and the effect of each.

use crate::arena::Buffer;
use crate::memory::Memory;
use crate::work::{QueuePairId, WorkId};

/// The kind of work request that a completion ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opcode {
    /// A SEND that this side posted.
    Send,
    /// A WRITE that this side posted, with or without immediate data.
    Write,
    /// A READ that this side posted.
    Read,
    /// A FETCH_ADD that this side posted; [`Completion::value`] holds the old value.
    FetchAdd,
    /// A CMP_SWAP that this side posted; [`Completion::value`] holds the old value.
    CompareSwap,
    /// A RECV that a peer's SEND has filled.
    Receive,
    /// A RECV that a peer's WRITE_WITH_IMM has consumed; the data is not in its buffer.
    ReceiveWriteImmediate,
}

/// The outcome of a work request: the status codes of verbs (`ibv_wc_status`), named by their meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompletionStatus {
    /// The request succeeded. For a WRITE: the data is placed, though the remote processor may not see it
    /// yet.
    Success,
    /// The message is longer than the RECV's buffer (at the receiver) or than the fabric allows.
    LocalLength,
    /// The local buffer does not permit this operation.
    LocalProtection,
    /// At the target, the key is wrong, the range is out of bounds, or the permission is missing.
    RemoteAccess,
    /// The target cannot do this operation on this transport or at this alignment.
    RemoteInvalidRequest,
    /// The target's RECV was too short, or its queue pair failed while it received the message.
    RemoteOperation,
    /// The target had no RECV posted for longer than the retries last.
    ReceiverNotReady,
    /// The target does not answer: its process, host or link is gone.
    TransportRetry,
    /// The queue pair entered the error state before the request completed.
    Flushed,
}

/// The scope of an error, from the smallest to the largest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Broke {
    /// Nothing.
    Nothing,
    /// Only this operation; the queue pair stays usable (unreliable transports only).
    Operation,
    /// The queue pair: all its other requests are flushed. A new queue pair can be made.
    QueuePair,
    /// The peer is gone.
    Peer,
    /// The device is gone.
    Device,
}

impl CompletionStatus {
    /// Returns the scope of this status on a connected transport.
    pub const fn broke(self) -> Broke {
        match self {
            CompletionStatus::Success => Broke::Nothing,
            CompletionStatus::TransportRetry => Broke::Peer,
            _ => Broke::QueuePair,
        }
    }

    /// Returns whether the target may have seen any effect of the work request.
    ///
    /// A flushed request may have left before the queue pair failed, so it counts as possibly executed: verbs
    /// gives no stronger promise.
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

    /// Returns a short text for messages.
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

/// One completion. A successful unsignaled work request makes no completion; a failed or flushed one always
/// does.
#[derive(Debug)]
pub struct Completion<M: Memory> {
    /// The id that the caller gave when it posted the work request.
    pub id: WorkId,
    /// The outcome. If it is not success, only `id`, `queue_pair` and `buffer` are meaningful.
    pub status: CompletionStatus,
    /// The kind of work request.
    pub opcode: Opcode,
    /// The number of bytes received or read.
    pub bytes: u32,
    /// The sender's immediate data.
    pub immediate: Option<u32>,
    /// The old value of an atomic.
    pub value: u64,
    /// The queue pair of the work request.
    pub queue_pair: QueuePairId,
    /// The posted buffer, returned to the caller (READ and RECV); `None` after a READ into a region.
    pub buffer: Option<Buffer<M>>,
}
