//! The send queue of a queue pair: counters, results that wait for the receiver's acknowledgement, and deferred
//! requests. The work on it is in `send`.

use crate::completion_queue::Ready;
use crate::execute::Source;
use crate::memory::ShmMemory;
use dunlin_fabric::{
    Buffer, Completion, CompletionStatus, Data, Gather, Opcode, QueuePairId, RegionKey, RegionRange,
    RemoteSlice, WorkId,
};
use std::collections::VecDeque;
use std::mem::offset_of;

/// Polls between two checks of acknowledgements that no request waits for.
const QUIET_POLLS: u32 = 64;

/// Identifies a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ticket {
    pub(crate) id: WorkId,
    pub(crate) sequence: u64,
    pub(crate) signaled: bool,
}

/// The result of a request, which may still have to wait for earlier ones.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) ticket: Ticket,
    pub(crate) opcode: Opcode,
    pub(crate) status: CompletionStatus,
    pub(crate) bytes: u32,
    pub(crate) value: u64,
    pub(crate) buffer: Option<Buffer<ShmMemory>>,
    /// The request is complete when the receiver has taken this number of lines.
    pub(crate) end: u64,
}

impl Outcome {
    pub(crate) fn new(ticket: Ticket, opcode: Opcode, status: CompletionStatus) -> Self {
        Outcome { ticket, opcode, status, bytes: 0, value: 0, buffer: None, end: 0 }
    }

    pub(crate) fn into_ready(self, queue_pair: QueuePairId, status: CompletionStatus) -> Ready {
        let completion = Completion {
            id: self.ticket.id,
            status,
            opcode: self.opcode,
            bytes: self.bytes,
            immediate: None,
            value: self.value,
            queue_pair,
            buffer: self.buffer,
        };
        Ready { completion, sequence: self.ticket.sequence }
    }
}

/// The data of a deferred message.
#[derive(Debug)]
pub(crate) enum Owned {
    Staged(Vec<u8>),
    Buffer(Buffer<ShmMemory>),
    Gather(Gather<ShmMemory>),
    Region(RegionRange<ShmMemory>),
}

impl Owned {
    pub(crate) fn source(&self) -> Source<'_> {
        match self {
            Owned::Staged(bytes) => Source::One(bytes),
            Owned::Buffer(buffer) => Source::One(buffer),
            Owned::Gather(gather) => Source::Gather(gather),
            Owned::Region(range) => Source::Region(range),
        }
    }
}

/// A deferred operation.
#[derive(Debug)]
pub(crate) enum Deferred {
    Send {
        data: Owned,
        immediate: Option<u32>,
    },
    Write {
        data: Owned,
        key: RegionKey,
        offset: u64,
        immediate: Option<u32>,
    },
    /// A WRITE_WITH_IMM whose data is written, but not its notice.
    Notice {
        bytes: u32,
        immediate: u32,
    },
    Read {
        from: RemoteSlice,
        into: Buffer<ShmMemory>,
    },
    ReadInto {
        from: RemoteSlice,
        into: RegionRange<ShmMemory>,
    },
    FetchAdd {
        key: RegionKey,
        offset: u64,
        add: u64,
    },
    CompareSwap {
        key: RegionKey,
        offset: u64,
        expected: u64,
        swap: u64,
    },
}

impl Deferred {
    pub(crate) const fn opcode(&self) -> Opcode {
        match self {
            Deferred::Send { .. } => Opcode::Send,
            Deferred::Write { .. } | Deferred::Notice { .. } => Opcode::Write,
            Deferred::Read { .. } | Deferred::ReadInto { .. } => Opcode::Read,
            Deferred::FetchAdd { .. } => Opcode::FetchAdd,
            Deferred::CompareSwap { .. } => Opcode::CompareSwap,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) ticket: Ticket,
    /// Bytes of the message that are already in the ring.
    pub(crate) sent: usize,
    pub(crate) what: Deferred,
}

/// The send queue.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct SendQueue {
    /// The number of the last request posted; the first is 1.
    pub(crate) posted: u64,
    /// The number of the last request whose slot is free again.
    pub(crate) reclaimed: u64,
    pub(crate) depth: u32,
    /// New requests cannot execute at once: some are deferred, or an earlier one has failed.
    pub(crate) blocked: bool,
    /// A request in `unfinished` has failed: none after it executes.
    pub(crate) doomed: bool,
    /// The time since which the receiver has not been ready. The compiler marks a free slot of the table of queue pairs in
    /// its tag, which each request reads for that.
    pub(crate) not_ready_since: Option<u64>,
    /// The number of signaled requests in `unfinished`.
    pub(crate) awaited: usize,
    pub(crate) unfinished: VecDeque<Outcome>,
    pub(crate) deferred: VecDeque<Waiting>,
    /// Memory of staged messages, for reuse.
    pub(crate) spare: Vec<Vec<u8>>,
    pub(crate) quiet: u32,
}

impl SendQueue {
    /// The bytes that a request touches that executes at once.
    pub(crate) const HOT: usize = offset_of!(SendQueue, awaited);

    pub(crate) fn new(depth: u32) -> Self {
        SendQueue {
            depth,
            posted: 0,
            reclaimed: 0,
            blocked: false,
            doomed: false,
            not_ready_since: None,
            awaited: 0,
            unfinished: VecDeque::with_capacity(depth as usize),
            deferred: VecDeque::new(),
            spare: Vec::new(),
            quiet: 0,
        }
    }

    /// Returns the number of free slots.
    #[inline]
    pub(crate) fn room(&self) -> u32 {
        self.depth - (self.posted - self.reclaimed) as u32
    }

    /// Frees the slots up to this request, whose completion the user has seen.
    #[inline]
    pub(crate) fn reclaim(&mut self, sequence: u64) {
        self.reclaimed = self.reclaimed.max(sequence);
    }

    /// Returns whether a poll must check the receiver's progress.
    #[inline]
    pub(crate) fn wants_acknowledgement(&self) -> bool {
        self.awaited > 0 || self.blocked || self.unfinished.len() * 2 > self.depth as usize
    }

    /// Returns whether a poll should check the receiver's progress, at intervals even if no request waits for
    /// it.
    #[inline]
    pub(crate) fn is_due(&mut self) -> bool {
        if self.wants_acknowledgement() {
            return true;
        }
        if self.unfinished.is_empty() {
            return false;
        }
        self.quiet = (self.quiet + 1) % QUIET_POLLS;
        self.quiet == 0
    }

    /// Drops all requests without completions.
    pub(crate) fn clear(&mut self) {
        self.unfinished.clear();
        self.deferred.clear();
    }

    pub(crate) fn stage(&mut self, data: Data<'_, ShmMemory>) -> Owned {
        match data {
            Data::Inline(parts) => {
                let mut bytes = self.spare.pop().unwrap_or_default();
                bytes.clear();
                parts.iter().for_each(|part| bytes.extend_from_slice(part));
                Owned::Staged(bytes)
            }
            Data::Buffer(buffer) => Owned::Buffer(buffer),
            Data::Gather(gather) => Owned::Gather(gather),
            Data::Region(range) => Owned::Region(range),
        }
    }

    pub(crate) fn unstage(&mut self, data: Owned) {
        if let Owned::Staged(bytes) = data {
            self.spare.push(bytes);
        }
    }

    pub(crate) fn defer(&mut self, waiting: Waiting) {
        if self.deferred.capacity() == 0 {
            self.deferred.reserve_exact(self.depth as usize);
            // For short messages deferred behind long ones, so that a steady load allocates nothing.
            self.spare.extend((0..4).map(|_| Vec::with_capacity(256)));
        }
        self.blocked = true;
        self.deferred.push_back(waiting);
    }
}
