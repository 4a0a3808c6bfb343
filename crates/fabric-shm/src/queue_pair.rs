//! One queue pair: its send queue, its RECVs, and the order of their completions.
//!
//! One-sided work is executed when it is posted, so the send queue needs counters only, not entries: a list is
//! kept just for work that waits for the receiver's acknowledgement, and for what was posted behind it, whose
//! completions may not overtake.

use crate::completion_queue::{CompletionQueue, Ready};
use crate::doorbell::PeerDoorbell;
use crate::execute::{ImportCache, compare_swap, fetch_add};
use crate::fabric::{MAX_INLINE, MAX_MESSAGE};
use crate::frame::QueuePairName;
use crate::link::{Closed, LinkShared};
use crate::memory::ShmMemory;
use dunlin_fabric::{
    Buffer, Completion, CompletionStatus, Data, Opcode, Operation, PostError, QueuePairConfig, QueuePairId,
    QueuePairState, Transport, WorkId, WorkRequest,
};
use std::collections::VecDeque;
use std::sync::Arc;

/// A RECV.
#[derive(Debug)]
pub(crate) struct Receive {
    pub(crate) id: WorkId,
    pub(crate) buffer: Option<Buffer<ShmMemory>>,
}

/// What is known about a work request of the send queue once it was carried out.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) id: WorkId,
    pub(crate) sequence: u64,
    pub(crate) signaled: bool,
    pub(crate) opcode: Opcode,
    pub(crate) status: CompletionStatus,
    pub(crate) bytes: u32,
    pub(crate) value: u64,
    pub(crate) buffer: Option<Buffer<ShmMemory>>,
}

/// The connection of an RC or UC queue pair.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) link: Arc<LinkShared>,
    pub(crate) theirs: QueuePairName,
    pub(crate) doorbell: PeerDoorbell,
}

/// One queue pair.
#[derive(Debug)]
pub(crate) struct QueuePair {
    pub(crate) id: QueuePairId,
    pub(crate) config: QueuePairConfig,
    pub(crate) state: QueuePairState,
    pub(crate) connection: Option<Connection>,
    pub(crate) closed: Arc<Closed>,
    pub(crate) imports: ImportCache,
    pub(crate) receives: VecDeque<Receive>,
    /// The number of the last request posted; the first is 1.
    posted: u64,
    /// Up to here the send queue's slots are free again.
    reclaimed: u64,
}

impl QueuePair {
    pub(crate) fn new(id: QueuePairId, config: QueuePairConfig) -> Self {
        QueuePair {
            id,
            config,
            state: QueuePairState::Initialised,
            connection: None,
            closed: Arc::default(),
            imports: ImportCache::default(),
            receives: VecDeque::with_capacity(config.max_receive as usize),
            posted: 0,
            reclaimed: 0,
        }
    }

    /// Free slots of the send queue.
    #[inline]
    pub(crate) fn send_room(&self) -> u32 {
        self.config.max_send - (self.posted - self.reclaimed) as u32
    }

    /// The user has seen the completion of that request: it and all before it are done.
    #[inline]
    pub(crate) fn reclaim(&mut self, sequence: u64) {
        self.reclaimed = self.reclaimed.max(sequence);
    }

    /// Takes one request.
    #[inline]
    pub(crate) fn post(
        &mut self,
        queues: &mut [CompletionQueue],
        request: WorkRequest<'_, ShmMemory>,
    ) -> Result<(), PostError> {
        self.check(&request.operation)?;
        self.posted += 1;
        let (id, signaled) = (request.id, request.signaled);
        let Some(connection) = self.connection.as_ref().filter(|c| c.link.is_alive()) else {
            let outcome = self.outcome(id, Opcode::Write, CompletionStatus::TransportRetry);
            self.complete(queues, outcome);
            return Ok(());
        };
        let link = &connection.link;
        if let Operation::Write { data, key, offset, immediate: None } = &request.operation {
            let result = self.imports.write(link, *key, *offset, data);
            if result.is_ok() && !signaled {
                return Ok(());
            }
            // Nobody acknowledges on UC: what the target refuses is lost in silence.
            let lost = self.config.transport == Transport::UnreliableConnection;
            let status = if lost { CompletionStatus::Success } else { status_of(result) };
            let outcome = Outcome { signaled, ..self.outcome(id, Opcode::Write, status) };
            self.complete(queues, outcome);
            return Ok(());
        }
        self.execute(queues, request);
        Ok(())
    }

    fn outcome(&self, id: WorkId, opcode: Opcode, status: CompletionStatus) -> Outcome {
        let sequence = self.posted;
        Outcome { id, sequence, signaled: true, opcode, status, bytes: 0, value: 0, buffer: None }
    }

    fn execute(&mut self, queues: &mut [CompletionQueue], request: WorkRequest<'_, ShmMemory>) {
        let Some(connection) = &self.connection else { return };
        let link = &connection.link;
        let id = request.id;
        let outcome = match request.operation {
            Operation::Read { from, mut into } => {
                let result = match into.get_mut(..from.length as usize) {
                    Some(room) => self.imports.read(link, from.key, from.offset, room),
                    None => Err(CompletionStatus::LocalLength),
                };
                let outcome = self.outcome(id, Opcode::Read, status_of(result));
                Outcome { bytes: from.length, buffer: Some(into), ..outcome }
            }
            Operation::FetchAdd { key, offset, add } => {
                let result = self.imports.atomic(link, key, offset, fetch_add(add));
                let value = result.unwrap_or(0);
                Outcome { value, ..self.outcome(id, Opcode::FetchAdd, status_of(result)) }
            }
            Operation::CompareSwap { key, offset, expected, swap } => {
                let result = self.imports.atomic(link, key, offset, compare_swap(expected, swap));
                let value = result.unwrap_or(0);
                Outcome { value, ..self.outcome(id, Opcode::CompareSwap, status_of(result)) }
            }
            Operation::Write { .. } | Operation::Send { .. } => return,
        };
        self.complete(queues, outcome);
    }

    /// Whether the request may be posted at all.
    #[inline]
    fn check(&self, operation: &Operation<'_, ShmMemory>) -> Result<(), PostError> {
        match self.state {
            QueuePairState::Ready => {}
            QueuePairState::Initialised => return Err(PostError::NotConnected),
            QueuePairState::Error => return Err(PostError::QueuePairError),
        }
        if self.send_room() == 0 {
            return Err(PostError::QueueFull);
        }
        match operation {
            Operation::Write { .. } if self.config.transport == Transport::UnreliableDatagram => {
                Err(PostError::Transport("UD has SEND only"))
            }
            Operation::Write { data, .. } => check_data(data, MAX_MESSAGE),
            Operation::Send { .. } => Err(PostError::Transport("SEND needs a receiver's ring")),
            Operation::Read { .. } | Operation::FetchAdd { .. } | Operation::CompareSwap { .. }
                if self.config.transport != Transport::ReliableConnection =>
            {
                Err(PostError::Transport("READ and atomics need RC"))
            }
            Operation::Read { from, .. } if from.length > MAX_MESSAGE => {
                Err(PostError::Length { length: u64::from(from.length), limit: MAX_MESSAGE })
            }
            _ => Ok(()),
        }
    }

    fn complete(&mut self, queues: &mut [CompletionQueue], outcome: Outcome) {
        let failed = outcome.status != CompletionStatus::Success;
        if outcome.signaled || failed {
            let completion = Completion {
                id: outcome.id,
                status: outcome.status,
                opcode: outcome.opcode,
                bytes: outcome.bytes,
                immediate: None,
                value: outcome.value,
                queue_pair: self.id,
                buffer: outcome.buffer,
            };
            let queue = &mut queues[self.config.send_completions.0 as usize];
            queue.push(Ready { completion, sequence: outcome.sequence });
        }
        if failed {
            self.fail(queues);
        }
    }

    /// Into the error state: everything posted is flushed, and the peer's queue pair is told.
    pub(crate) fn fail(&mut self, queues: &mut [CompletionQueue]) {
        if self.state == QueuePairState::Error {
            return;
        }
        self.state = QueuePairState::Error;
        let queue = &mut queues[self.config.receive_completions.0 as usize];
        for receive in self.receives.drain(..) {
            let completion = Completion {
                id: receive.id,
                status: CompletionStatus::Flushed,
                opcode: Opcode::Receive,
                bytes: 0,
                immediate: None,
                value: 0,
                queue_pair: self.id,
                buffer: receive.buffer,
            };
            queue.push(Ready { completion, sequence: 0 });
        }
        if let Some(connection) = &self.connection {
            connection.link.tell_closed(connection.theirs);
        }
    }

    /// Looks whether the peer is gone.
    pub(crate) fn hear_news(&mut self, queues: &mut [CompletionQueue]) {
        let gone = self.closed.is_closed() || self.connection.as_ref().is_some_and(|c| !c.link.is_alive());
        if gone {
            self.fail(queues);
        }
    }
}

#[inline]
fn status_of<T>(result: Result<T, CompletionStatus>) -> CompletionStatus {
    result.err().unwrap_or(CompletionStatus::Success)
}

#[inline]
fn check_data(data: &Data<'_, ShmMemory>, limit: u32) -> Result<(), PostError> {
    let length = data.length();
    if matches!(data, Data::Inline(_)) && length > u64::from(MAX_INLINE) {
        return Err(PostError::Inline { length: length as usize, limit: MAX_INLINE });
    }
    if length > u64::from(limit) { Err(PostError::Length { length, limit }) } else { Ok(()) }
}
