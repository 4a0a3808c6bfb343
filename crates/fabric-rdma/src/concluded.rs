//! Converts completions of the NIC into completions for the user.

use crate::memory::RdmaMemory;
use crate::queue_pair::{Held, QueuePair, Receive, Sent};
use crate::status::{immediate, receive_opcode, status};
use crate::sys;
use dunlin_fabric::{Completion, CompletionQueueId, CompletionStatus, Opcode, QueuePairId};

/// Returns the completion of a send request that has ended.
pub(crate) fn concluded(
    queue_pair: QueuePairId,
    (sent, held): (Sent, Option<Held>),
    raw: &sys::WorkCompletion,
) -> Completion<RdmaMemory> {
    let status = match status(raw.status, sent.opcode) {
        CompletionStatus::RemoteAccess if sent.misaligned => CompletionStatus::RemoteInvalidRequest,
        other => other,
    };
    let mut value = 0;
    let buffer = match held {
        Some(Held::Destination(buffer)) => Some(buffer),
        Some(Held::One(result)) if matches!(sent.opcode, Opcode::FetchAdd | Opcode::CompareSwap) => {
            value = result.first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes));
            None
        }
        None | Some(Held::One(_) | Held::Several(_) | Held::Region(_)) => None,
    };
    let Sent { id, opcode, bytes, .. } = sent;
    Completion { id, status, opcode, bytes, immediate: None, value, queue_pair, buffer }
}

/// Returns the next completion in `queue` that a broken queue pair still has to report.
pub(crate) fn abandoned(
    queue_pair: &mut QueuePair,
    queue: CompletionQueueId,
) -> Option<Completion<RdmaMemory>> {
    let flushed = sys::WorkCompletion { status: sys::STATUS_FLUSHED, ..Default::default() };
    if queue_pair.config.send_completions == queue
        && let Some(request) = queue_pair.sends.abandon()
    {
        return Some(concluded(queue_pair.id, request, &flushed));
    }
    let receive = (queue_pair.config.receive_completions == queue).then(|| queue_pair.receives.abandon());
    Some(received(queue_pair.id, receive.flatten()?, &flushed))
}

/// Returns the completion of a RECV that has ended.
pub(crate) fn received(
    queue_pair: QueuePairId,
    receive: Receive,
    raw: &sys::WorkCompletion,
) -> Completion<RdmaMemory> {
    let opcode = receive_opcode(raw);
    let Receive { id, buffer } = receive;
    Completion {
        id,
        status: status(raw.status, opcode),
        opcode,
        bytes: raw.length,
        immediate: immediate(raw),
        value: 0,
        queue_pair,
        buffer,
    }
}
