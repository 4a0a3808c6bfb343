//! What a domain owns: completion queues, queue pairs, shared receive queues. Data and its small rules only;
//! what moves between queue pairs is the business of `network`.

use crate::scheduler::Waiter;
use dunlin_fabric::memory::HeapMemory;
use dunlin_fabric::{
    Buffer, Completion, CompletionStatus, Gather, Nanos, Opcode, QueuePairConfig, QueuePairId,
    QueuePairState, RegionKey, RemoteSlice, WaitMode, WorkId,
};
use std::collections::{BTreeMap, VecDeque};

/// Names a queue pair in the whole run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct QueuePairRef {
    pub(crate) domain: u32,
    pub(crate) number: u32,
}

/// Names one side of a link: 0 dialled, 1 accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LinkSide {
    pub(crate) link: u32,
    pub(crate) side: usize,
}

/// A domain.
#[derive(Default)]
pub(crate) struct DomainState {
    /// Counts everything that arrived; what `arm` remembers for a busy wait.
    pub(crate) arrivals: u64,
    /// Counts what ends a wait in event mode.
    pub(crate) event_arrivals: u64,
    pub(crate) waiting: Option<(Waiter, WaitMode)>,
    pub(crate) completion_queues: Vec<CompletionQueue>,
    pub(crate) shared_receives: Vec<ReceiveQueue>,
    pub(crate) queue_pairs: BTreeMap<u32, QueuePair>,
    pub(crate) next_queue_pair: u32,
    pub(crate) address_handles: Vec<AddressHandle>,
}

/// Where a datagram goes, and from which queue pair it may.
#[derive(Clone, Copy)]
pub(crate) struct AddressHandle {
    pub(crate) from: QueuePairId,
    pub(crate) to: QueuePairRef,
}

pub(crate) struct CompletionQueue {
    pub(crate) depth: u32,
    pub(crate) events: bool,
    pub(crate) entries: VecDeque<Entry>,
}

/// A completion, and what taking it frees in the send queue: its own slot, and those of the unsignaled
/// requests before it.
pub(crate) struct Entry {
    pub(crate) completion: Completion<HeapMemory>,
    pub(crate) retires: u32,
    pub(crate) held: Vec<Gather<HeapMemory>>,
}

pub(crate) struct ReceiveQueue {
    pub(crate) depth: u32,
    pub(crate) posted: VecDeque<PostedReceive>,
}

pub(crate) struct PostedReceive {
    pub(crate) id: WorkId,
    pub(crate) buffer: Option<Buffer<HeapMemory>>,
}

/// A work request that has been posted and has not come to its end.
pub(crate) struct InFlight {
    pub(crate) serial: u64,
    pub(crate) id: WorkId,
    pub(crate) opcode: Opcode,
    pub(crate) signaled: bool,
    /// The buffers that the data came from.
    pub(crate) held: Gather<HeapMemory>,
    /// Where a READ goes.
    pub(crate) into: Option<Buffer<HeapMemory>>,
}

pub(crate) struct QueuePair {
    pub(crate) config: QueuePairConfig,
    pub(crate) state: QueuePairState,
    /// The link that it is connected over, and our side of it.
    pub(crate) link: Option<LinkSide>,
    pub(crate) remote: Option<QueuePairRef>,
    /// In flight, oldest first.
    pub(crate) sends: VecDeque<InFlight>,
    /// Slots of the send queue taken: until the completion that covers them is polled.
    pub(crate) occupied: u32,
    /// Done without a completion since the last one, and the buffers of those.
    pub(crate) unretired: u32,
    pub(crate) unretired_held: Vec<Gather<HeapMemory>>,
    pub(crate) next_serial: u64,
    /// When the latest packet of ours arrives, and the latest of our completions: both keep order.
    pub(crate) last_arrival: Nanos,
    pub(crate) last_done: Nanos,
    /// A request failed on our side: later ones do not leave.
    pub(crate) stopped: bool,
    pub(crate) receives: ReceiveQueue,
    /// Packets that arrived and have not been carried out, oldest first.
    pub(crate) inbound: VecDeque<Packet>,
    /// When what was carried out last is visible in memory; the next packet waits for it.
    pub(crate) ready_at: Nanos,
    /// The peer's stream broke off: what still arrives is dropped.
    pub(crate) refusing: bool,
}

impl QueuePair {
    pub(crate) fn new(config: QueuePairConfig, state: QueuePairState) -> Self {
        QueuePair {
            config,
            state,
            link: None,
            remote: None,
            sends: VecDeque::new(),
            occupied: 0,
            unretired: 0,
            unretired_held: Vec::new(),
            next_serial: 0,
            last_arrival: 0,
            last_done: 0,
            stopped: false,
            receives: ReceiveQueue { depth: config.max_receive, posted: VecDeque::new() },
            inbound: VecDeque::new(),
            ready_at: 0,
            refusing: false,
        }
    }
}

/// What travels from one queue pair to another.
pub(crate) struct Packet {
    pub(crate) from: QueuePairRef,
    pub(crate) serial: u64,
    pub(crate) action: Action,
    /// It found no RECV, and its retries are being counted.
    pub(crate) retrying: bool,
}

/// What the responder has to do.
pub(crate) enum Action {
    Send { bytes: Vec<u8>, immediate: Option<u32> },
    Write { bytes: Vec<u8>, key: RegionKey, offset: u64, immediate: Option<u32> },
    Read { from: RemoteSlice },
    FetchAdd { key: RegionKey, offset: u64, add: u64 },
    CompareSwap { key: RegionKey, offset: u64, expected: u64, swap: u64 },
}

/// How a work request ended, on its way back to the initiator.
pub(crate) struct Outcome {
    pub(crate) status: CompletionStatus,
    pub(crate) value: u64,
    pub(crate) read: Vec<u8>,
}

impl Outcome {
    pub(crate) fn of(status: CompletionStatus) -> Self {
        Outcome { status, value: 0, read: Vec::new() }
    }
}
