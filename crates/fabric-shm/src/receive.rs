//! The receiving side: from an inbound ring into posted RECVs and their completions.

use crate::completion_queue::{CompletionQueue, Ready};
use crate::inbound::{ACKNOWLEDGE, Consumer, FIRST, IMMEDIATE, LAST, Record, WRITE};
use crate::memory::ShmMemory;
use dunlin_fabric::{Buffer, Completion, CompletionStatus, Opcode, QueuePairId, Transport, WorkId};
use std::collections::VecDeque;

/// The maximum number of records in one pass. Bounds the time that records without completions can take.
const RECORDS_AT_ONCE: usize = 256;

/// A posted RECV.
#[derive(Debug)]
pub(crate) struct Receive {
    /// The user's id.
    pub(crate) id: WorkId,
    /// The buffer for the message.
    pub(crate) buffer: Option<Buffer<ShmMemory>>,
}

/// RECVs for several queue pairs.
#[derive(Debug)]
pub(crate) struct SharedReceiveQueue {
    pub(crate) receives: VecDeque<Receive>,
    pub(crate) depth: usize,
}

impl SharedReceiveQueue {
    pub(crate) fn new(depth: u32) -> Self {
        let depth = depth as usize;
        SharedReceiveQueue { receives: VecDeque::with_capacity(depth), depth }
    }
}

/// A message of which some records have arrived.
#[derive(Debug)]
pub(crate) struct Partial {
    /// The RECV for it; `None` if the message is discarded (unreliable transports only).
    receive: Option<Receive>,
    total: usize,
    got: usize,
}

impl Partial {
    /// Returns the RECV that it had taken.
    pub(crate) fn into_receive(self) -> Option<Receive> {
        self.receive
    }
}

/// The result of receiving from a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Drained {
    /// The ring is empty.
    Empty,
    /// There may be more.
    More,
    /// A message waits for a RECV; the value is whether that is new.
    NotReady(bool),
    /// The queue pair cannot continue: the peer violated the protocol or has given up, or its message was too
    /// long.
    Broken,
}

/// The state that one pass over a ring needs.
pub(crate) struct Receiver<'a> {
    pub(crate) queue_pair: QueuePairId,
    pub(crate) transport: Transport,
    pub(crate) consumer: &'a mut Consumer,
    pub(crate) partial: &'a mut Option<Partial>,
    pub(crate) receives: &'a mut VecDeque<Receive>,
    pub(crate) queue: &'a mut CompletionQueue,
}

enum Step {
    /// Continue with the next record.
    Next,
    Stop(Drained),
}

impl Receiver<'_> {
    /// Receives up to `budget` messages; returns the result and whether the producer waits for an
    /// acknowledgement.
    #[inline]
    pub(crate) fn drain(&mut self, budget: usize) -> (Drained, bool) {
        if !self.consumer.has_record() {
            return (Drained::Empty, false);
        }
        self.take(budget)
    }

    fn take(&mut self, budget: usize) -> (Drained, bool) {
        let mut acknowledge = false;
        let end = self.queue.room().min(budget);
        let mut completed = 0;
        for _ in 0..RECORDS_AT_ONCE {
            if completed >= end {
                return (Drained::More, acknowledge);
            }
            let record = match self.consumer.peek() {
                Ok(Some(record)) => record,
                Ok(None) => return (Drained::Empty, acknowledge),
                Err(_) => return (self.refuse(), acknowledge),
            };
            let before = self.queue.room();
            match self.record(&record) {
                Step::Next => self.consumer.advance(&record),
                Step::Stop(how) => return (how, acknowledge),
            }
            completed += before - self.queue.room();
            acknowledge |= record.flags & ACKNOWLEDGE != 0;
        }
        (Drained::More, acknowledge)
    }

    /// Stops receiving from this ring for good.
    fn refuse(&mut self) -> Drained {
        self.consumer.say_failed();
        Drained::Broken
    }

    fn record(&mut self, record: &Record) -> Step {
        let reliable = self.transport == Transport::ReliableConnection;
        if record.flags & FIRST == 0 {
            return self.later_record(record, reliable);
        }
        if let Some(cut) = self.partial.take() {
            if reliable {
                return Step::Stop(self.refuse());
            }
            // The rest of that message was lost, so the next message takes its RECV.
            if let Some(receive) = cut.into_receive() {
                self.receives.push_front(receive);
            }
        }
        let last = record.flags & LAST != 0;
        if self.receives.is_empty() {
            if reliable {
                return Step::Stop(Drained::NotReady(self.consumer.say_not_ready()));
            }
            if !last {
                *self.partial =
                    Some(Partial { receive: None, total: record.immediate as usize, got: record.length });
            }
            return Step::Next;
        }
        if reliable && !self.consumer.say_ready() {
            return Step::Stop(Drained::Broken);
        }
        if record.flags & WRITE != 0 {
            return self.written(record);
        }
        let total = if last { record.length } else { record.immediate as usize };
        let Some(mut receive) = self.receives.pop_front() else { return Step::Next };
        let room = receive.buffer.as_ref().map_or(0, |b| b.len());
        if total > room || record.length > total {
            self.complete(receive, CompletionStatus::LocalLength, Opcode::Receive, 0, None);
            // A datagram that is too long is a single error; on a connection, the connection ends, as in
            // verbs.
            return match self.transport {
                Transport::UnreliableDatagram => Step::Next,
                _ => Step::Stop(self.refuse()),
            };
        }
        if let Some(buffer) = &mut receive.buffer {
            self.consumer.copy(record, &mut buffer[..record.length]);
        }
        if last {
            let immediate = (record.flags & IMMEDIATE != 0).then_some(record.immediate);
            self.complete(receive, CompletionStatus::Success, Opcode::Receive, total as u32, immediate);
        } else {
            *self.partial = Some(Partial { receive: Some(receive), total, got: record.length });
        }
        Step::Next
    }

    fn later_record(&mut self, record: &Record, reliable: bool) -> Step {
        let Some(mut partial) = self.partial.take() else {
            return if reliable { Step::Stop(self.refuse()) } else { Step::Next };
        };
        let from = partial.got;
        partial.got += record.length;
        let last = record.flags & LAST != 0;
        if partial.got > partial.total || (last && partial.got != partial.total) {
            *self.partial = Some(partial);
            return Step::Stop(self.refuse());
        }
        let buffer = partial.receive.as_mut().and_then(|r| r.buffer.as_mut());
        if let Some(room) = buffer.and_then(|b| b.get_mut(from..from + record.length)) {
            self.consumer.copy(record, room);
        }
        if !last {
            *self.partial = Some(partial);
        } else if let Some(receive) = partial.receive {
            let immediate = (record.flags & IMMEDIATE != 0).then_some(record.immediate);
            let bytes = partial.total as u32;
            self.complete(receive, CompletionStatus::Success, Opcode::Receive, bytes, immediate);
        }
        Step::Next
    }

    /// Processes the notice of a WRITE_WITH_IMM.
    fn written(&mut self, record: &Record) -> Step {
        if record.length != 4 || record.flags & LAST == 0 {
            return Step::Stop(self.refuse());
        }
        let mut bytes = [0; 4];
        self.consumer.copy(record, &mut bytes);
        if let Some(receive) = self.receives.pop_front() {
            let (bytes, immediate) = (u32::from_le_bytes(bytes), Some(record.immediate));
            let opcode = Opcode::ReceiveWriteImmediate;
            self.complete(receive, CompletionStatus::Success, opcode, bytes, immediate);
        }
        Step::Next
    }

    fn complete(
        &mut self,
        receive: Receive,
        status: CompletionStatus,
        opcode: Opcode,
        bytes: u32,
        immediate: Option<u32>,
    ) {
        self.queue.push(Ready {
            completion: received(self.queue_pair, receive, status, opcode, bytes, immediate),
            sequence: 0,
        });
    }
}

/// Returns the completion of a RECV.
pub(crate) fn received(
    queue_pair: QueuePairId,
    receive: Receive,
    status: CompletionStatus,
    opcode: Opcode,
    bytes: u32,
    immediate: Option<u32>,
) -> Completion<ShmMemory> {
    let Receive { id, buffer } = receive;
    Completion { id, status, opcode, bytes, immediate, value: 0, queue_pair, buffer }
}
