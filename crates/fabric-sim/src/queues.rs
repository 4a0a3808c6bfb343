//! What a domain owns: completion queues, queue pairs, shared receive queues. Data and its small rules only;
//! what moves between queue pairs is the business of `network`.

use crate::link::Held;
use crate::memory::SimMemory;
use crate::scheduler::Waiter;
use crate::timing::{Message, Place};
use dunlin_fabric::{
    Buffer, Completion, CompletionStatus, Gather, Nanos, Opcode, QueuePairConfig, QueuePairId,
    QueuePairState, RegionKey, RemoteSlice, WaitMode, WorkId,
};
use dunlin_rnic_model::Touch;
use std::collections::VecDeque;

/// Names one side of a link: 0 dialled, 1 accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LinkSide {
    pub(crate) link: u32,
    pub(crate) side: usize,
}

/// A domain.
pub(crate) struct DomainState {
    pub(crate) process: u32,
    /// Counts everything that arrived; what `arm` remembers for a busy wait.
    pub(crate) arrivals: u64,
    /// Counts what ends a wait in event mode.
    pub(crate) event_arrivals: u64,
    pub(crate) waiting: Option<(Waiter, WaitMode)>,
    pub(crate) completion_queues: Vec<CompletionQueue>,
    pub(crate) shared_receives: Vec<ReceiveQueue>,
    /// The numbers of its queue pairs.
    pub(crate) queue_pairs: Vec<u32>,
    pub(crate) address_handles: Vec<AddressHandle>,
    /// The names of watched memory that was written since somebody asked, each once.
    pub(crate) active: Vec<u32>,
    /// By name: whether it stands in `active`.
    pub(crate) is_active: Vec<bool>,
}

impl DomainState {
    pub(crate) fn of(process: u32) -> Self {
        DomainState {
            process,
            arrivals: 0,
            event_arrivals: 0,
            waiting: None,
            completion_queues: Vec::new(),
            shared_receives: Vec::new(),
            queue_pairs: Vec::new(),
            address_handles: Vec::new(),
            active: Vec::new(),
            is_active: Vec::new(),
        }
    }

    /// A region has this name from now on. It may have been written before.
    pub(crate) fn may_be_active(&mut self, name: u32) {
        if self.is_active.len() <= name as usize {
            self.is_active.resize(name as usize + 1, false);
        }
        self.note_active(name);
    }

    /// Notes that a watched region was written.
    #[inline]
    pub(crate) fn note_active(&mut self, name: u32) {
        if let Some(noted) = self.is_active.get_mut(name as usize)
            && !std::mem::replace(noted, true)
        {
            self.active.push(name);
        }
    }
}

/// Where a datagram goes, and from which queue pair it may.
#[derive(Clone, Copy)]
pub(crate) struct AddressHandle {
    pub(crate) from: QueuePairId,
    pub(crate) to: u32,
}

pub(crate) struct CompletionQueue {
    pub(crate) depth: u32,
    pub(crate) events: bool,
    pub(crate) entries: VecDeque<Entry>,
}

/// A completion, and what taking it frees in the send queue: its own slot, and those of the unsignaled
/// requests before it.
pub(crate) struct Entry {
    pub(crate) completion: Completion<SimMemory>,
    pub(crate) retires: u32,
    pub(crate) held: Vec<Gather<SimMemory>>,
}

pub(crate) struct ReceiveQueue {
    pub(crate) depth: u32,
    pub(crate) posted: VecDeque<PostedReceive>,
}

pub(crate) struct PostedReceive {
    pub(crate) id: WorkId,
    pub(crate) buffer: Option<Buffer<SimMemory>>,
}

/// A work request that has been posted and has not come to its end.
pub(crate) struct InFlight {
    pub(crate) serial: u64,
    pub(crate) id: WorkId,
    pub(crate) opcode: Opcode,
    pub(crate) signaled: bool,
    /// Bytes of its payload, or of what it READs.
    pub(crate) bytes: u32,
    /// The initiator's buffer, for the timing.
    pub(crate) local: Touch,
    /// The buffers that the data came from.
    pub(crate) held: Option<Box<Gather<SimMemory>>>,
    /// Where a READ goes.
    pub(crate) into: Option<Buffer<SimMemory>>,
}

pub(crate) struct QueuePair {
    pub(crate) domain: u32,
    /// The NIC that it is on.
    pub(crate) place: Place,
    pub(crate) config: QueuePairConfig,
    pub(crate) state: QueuePairState,
    /// The link that it is connected over, and our side of it.
    pub(crate) link: Option<LinkSide>,
    pub(crate) remote: Option<u32>,
    /// In flight, oldest first. Unsignaled ones stay until a later one has its completion.
    pub(crate) sends: VecDeque<InFlight>,
    /// Slots of the send queue taken: until the completion that covers them is polled.
    pub(crate) occupied: u32,
    /// Done without a completion since the last one, and the buffers of those.
    pub(crate) unretired: u32,
    pub(crate) unretired_held: Vec<Gather<SimMemory>>,
    pub(crate) next_serial: u64,
    /// The latest request that its target has carried out.
    pub(crate) carried_out: u64,
    /// When the latest packet of ours arrives, and the latest of our completions: both keep order.
    pub(crate) last_arrival: Nanos,
    pub(crate) last_done: Nanos,
    /// Ends of requests that came before those of earlier ones.
    pub(crate) early: Vec<(u64, Outcome)>,
    /// A request failed on our side: later ones do not leave.
    pub(crate) stopped: bool,
    pub(crate) receives: ReceiveQueue,
    /// Packets that arrived and have not been carried out, oldest first.
    pub(crate) inbound: VecDeque<u32>,
    /// When what was carried out last is visible in memory; the next packet waits for it.
    pub(crate) ready_at: Nanos,
    /// When the latest WRITE or completion of a RECV on it is visible (rates, model).
    pub(crate) last_landing: Nanos,
    /// The peer's stream broke off: what still arrives is dropped.
    pub(crate) refusing: bool,
}

impl QueuePair {
    pub(crate) fn new(domain: u32, place: Place, config: QueuePairConfig, state: QueuePairState) -> Self {
        QueuePair {
            domain,
            place,
            config,
            state,
            link: None,
            remote: None,
            sends: VecDeque::new(),
            occupied: 0,
            unretired: 0,
            unretired_held: Vec::new(),
            next_serial: 1,
            carried_out: 0,
            last_arrival: 0,
            last_done: 0,
            early: Vec::new(),
            stopped: false,
            receives: ReceiveQueue { depth: config.max_receive, posted: VecDeque::new() },
            inbound: VecDeque::new(),
            ready_at: 0,
            last_landing: 0,
            refusing: false,
        }
    }

    /// A request in flight, by its serial number.
    #[inline]
    pub(crate) fn in_flight(&self, serial: u64) -> Option<&InFlight> {
        let first = self.sends.front()?.serial;
        self.sends.get(serial.checked_sub(first)? as usize)
    }

    /// Takes requests that are done without a completion off the queue: unsignaled ones before `serial`.
    #[inline]
    pub(crate) fn retire_before(&mut self, serial: u64) {
        while let Some(oldest) = self.sends.front_mut()
            && oldest.serial < serial
            && !oldest.signaled
        {
            if let Some(held) = oldest.held.take() {
                self.unretired_held.push(*held);
            }
            self.unretired += 1;
            self.sends.pop_front();
        }
    }

    /// Takes the oldest request off the queue; its slot and buffers come back with the next completion.
    #[inline]
    pub(crate) fn retire_oldest(&mut self) -> Option<InFlight> {
        let mut request = self.sends.pop_front()?;
        self.unretired += 1;
        if let Some(held) = request.held.take() {
            self.unretired_held.push(*held);
        }
        Some(request)
    }
}

/// What travels from one queue pair to another, and what lies in wait to become visible.
#[derive(Default)]
pub(crate) struct Packet {
    pub(crate) from: u32,
    pub(crate) to: u32,
    pub(crate) serial: u64,
    pub(crate) action: Action,
    /// Its payload; the room is used again.
    pub(crate) bytes: Vec<u8>,
    /// What the timing needs to know of it.
    pub(crate) message: Message,
    pub(crate) signaled: bool,
    /// Where its bytes go, once it was carried out.
    pub(crate) target: Option<Held>,
    pub(crate) offset: usize,
    /// It found no RECV, and its retries are being counted.
    pub(crate) retrying: bool,
}

/// What the responder has to do.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum Action {
    #[default]
    Nothing,
    Send {
        immediate: Option<u32>,
    },
    Write {
        key: RegionKey,
        offset: u64,
        immediate: Option<u32>,
    },
    Read {
        from: RemoteSlice,
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

    /// Whether it is no more than a success.
    pub(crate) fn is_plain(&self) -> bool {
        self.status == CompletionStatus::Success && self.value == 0 && self.read.is_empty()
    }
}
