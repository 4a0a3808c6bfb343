//! The objects of a domain: completion queues, queue pairs, shared receive queues. Holds data and local rules
//! only; traffic between queue pairs belongs to `network`.

use crate::links::{Held, LinkSide};
use crate::memory::{Line, SimMemory};
use crate::tasks::Waiter;
use crate::timing::{Message, Place};
use dunlin_fabric::{
    AddressHandles, Buffer, Completion, CompletionStatus, Gather, Nanos, Opcode, QueuePairConfig,
    QueuePairState, RegionKey, RegionRange, RemoteSlice, Transport, WaitMode, WorkId,
};
use dunlin_rnic_model::Touch;
use std::collections::VecDeque;

/// Memory that the domain's waiting task will touch, for prefetching.
#[derive(Clone, Copy, Default)]
pub(crate) struct Touched([usize; Touched::MOST]);

impl Touched {
    const MOST: usize = 6;
    const LINE: usize = 64;

    /// Stores as many ranges as fit.
    pub(crate) fn of(memory: &[(*const u8, usize)]) -> Self {
        let mut touched = Touched::default();
        for (place, (start, length)) in touched.0.iter_mut().zip(memory) {
            let first = start.addr() & !(Self::LINE - 1);
            // Packed into one word: the address of the first line, and the number of lines in the low bits.
            *place = first | (start.addr() + length - first).div_ceil(Self::LINE).min(Self::LINE - 1);
        }
        touched
    }

    /// Returns the addresses of the lines.
    #[inline]
    pub(crate) fn lines(&self) -> impl Iterator<Item = *const u8> {
        let ranges = self.0.iter().map(|place| (place & !(Self::LINE - 1), place % Self::LINE));
        ranges.flat_map(|(first, count)| {
            (0..count).map(move |line| std::ptr::without_provenance(first + line * Self::LINE))
        })
    }
}

/// A domain. Every wait and arrival touches only the first cache line; the prefetch list lies in the next.
#[repr(C, align(64))]
pub(crate) struct DomainState {
    /// Counts all arrivals; `arm` records it for a busy wait.
    pub(crate) arrivals: u64,
    /// Counts the arrivals that end a wait in event mode.
    pub(crate) event_arrivals: u64,
    pub(crate) waiting: Option<(Waiter, WaitMode)>,
    /// The domain whose thread the next event wakes.
    pub(crate) other: Option<u32>,
    pub(crate) process: u32,
    /// Its queue pairs reach processes of the same machine, without a NIC.
    pub(crate) is_within: bool,
    pub(crate) touched: Touched,
    pub(crate) completion_queues: Vec<CompletionQueue>,
    pub(crate) shared_receives: Vec<ReceiveQueue>,
    /// Numbers of its queue pairs.
    pub(crate) queue_pairs: Vec<u32>,
    /// Number of its broken queue pairs.
    pub(crate) broken: u32,
    /// Maps address handles to target queue pairs. Slots of destroyed handles are reused.
    pub(crate) address_handles: AddressHandles<u32>,
    /// Names of watched memory written since the last query, each once.
    pub(crate) active: Vec<u32>,
    /// By name: whether it is listed in `active`.
    pub(crate) is_active: Vec<bool>,
}

impl DomainState {
    pub(crate) fn of(process: u32, is_within: bool) -> Self {
        DomainState {
            arrivals: 0,
            event_arrivals: 0,
            waiting: None,
            other: None,
            process,
            is_within,
            touched: Touched::default(),
            completion_queues: Vec::new(),
            shared_receives: Vec::new(),
            queue_pairs: Vec::new(),
            broken: 0,
            address_handles: AddressHandles::default(),
            active: Vec::new(),
            is_active: Vec::new(),
        }
    }

    /// Registers a name for a region, and marks it active since it may have been written before.
    pub(crate) fn may_be_active(&mut self, name: u32) {
        if self.is_active.len() <= name as usize {
            self.is_active.resize(name as usize + 1, false);
        }
        self.note_active(name);
    }

    /// Marks a watched region as written.
    #[inline]
    pub(crate) fn note_active(&mut self, name: u32) {
        if let Some(noted) = self.is_active.get_mut(name as usize)
            && !std::mem::replace(noted, true)
        {
            self.active.push(name);
        }
    }
}

pub(crate) struct CompletionQueue {
    pub(crate) depth: u32,
    pub(crate) events: bool,
    pub(crate) entries: VecDeque<Entry>,
}

/// A completion, and the send-queue resources that polling it frees: its own slot, and those of the
/// unsignaled requests before it.
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

/// A posted work request that has not ended.
pub(crate) struct InFlight {
    pub(crate) serial: u64,
    pub(crate) id: WorkId,
    pub(crate) opcode: Opcode,
    pub(crate) signaled: bool,
    /// Bytes of the payload, or of the data that it READs.
    pub(crate) bytes: u32,
    /// The initiator's buffer, for the timing model.
    pub(crate) local: Touch,
    pub(crate) kept: Option<Box<Kept>>,
}

/// Memory of the initiator that a work request holds until it is done.
pub(crate) enum Kept {
    /// Sources of the data.
    Data(Gather<SimMemory>),
    /// Source of the data in a region.
    #[expect(dead_code, reason = "kept until the request is done")]
    Region(RegionRange<SimMemory>),
    /// Destination of a READ.
    Into(Buffer<SimMemory>),
    /// Destination of a READ in a region.
    IntoRegion(RegionRange<SimMemory>),
}

impl Default for InFlight {
    fn default() -> Self {
        InFlight {
            serial: 0,
            id: WorkId(0),
            opcode: Opcode::Write,
            signaled: false,
            bytes: 0,
            local: Touch::default(),
            kept: None,
        }
    }
}

impl InFlight {
    /// Returns the destination buffer of a READ.
    pub(crate) fn into_buffer(self) -> Option<Buffer<SimMemory>> {
        match *self.kept? {
            Kept::Into(buffer) => Some(buffer),
            Kept::Data(_) | Kept::Region(_) | Kept::IntoRegion(_) => None,
        }
    }
}

/// Requests in flight, oldest first. The oldest, usually the only one, is stored inline, even after its
/// completion.
#[repr(C)]
#[derive(Default)]
pub(crate) struct Sends {
    count: u32,
    first: InFlight,
    rest: VecDeque<InFlight>,
}

impl Sends {
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.count as usize
    }

    #[inline]
    pub(crate) fn front(&self) -> Option<&InFlight> {
        (self.count > 0).then_some(&self.first)
    }

    /// Returns the request `behind` places after the oldest.
    #[inline]
    fn get(&self, behind: usize) -> Option<&InFlight> {
        match behind {
            0 => self.front(),
            _ => self.rest.get(behind - 1),
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &InFlight> {
        self.front().into_iter().chain(&self.rest)
    }

    #[inline(always)]
    pub(crate) fn push_back(&mut self, request: InFlight) {
        self.count += 1;
        if self.count > 1 || self.first.kept.is_some() {
            return self.push_behind(request);
        }
        self.first = request;
    }

    #[inline(never)]
    fn push_behind(&mut self, request: InFlight) {
        if self.count > 1 {
            self.rest.push_back(request);
        } else {
            self.first = request;
        }
    }

    /// Removes the oldest request and returns the buffers that it held. The queue must not be empty.
    #[inline(always)]
    fn drop_front(&mut self) -> Option<Box<Kept>> {
        let kept = self.first.kept.take();
        self.count -= 1;
        if self.count > 0 {
            self.next_is_first();
        }
        kept
    }

    #[inline(never)]
    fn next_is_first(&mut self) {
        self.first = self.rest.pop_front().unwrap_or_default();
    }

    fn pop_front(&mut self) -> Option<InFlight> {
        if self.count == 0 {
            return None;
        }
        self.count -= 1;
        let next = self.rest.pop_front().unwrap_or_default();
        Some(std::mem::replace(&mut self.first, next))
    }
}

/// A queue pair. A message touches three of its cache lines at either end.
#[repr(C, align(64))]
pub(crate) struct QueuePair {
    pub(crate) domain: u32,
    /// Capacity of the send queue.
    pub(crate) max_send: u32,
    /// The NIC of the queue pair.
    pub(crate) place: Place,
    pub(crate) state: QueuePairState,
    pub(crate) transport: Transport,
    /// A request failed locally; later ones do not leave.
    pub(crate) stopped: bool,
    /// The peer's stream has broken off; packets that still arrive are dropped.
    pub(crate) refusing: bool,
    /// Occupied slots of the send queue; a slot is free once the completion that covers it is polled.
    pub(crate) occupied: u32,
    pub(crate) remote: Option<u32>,
    pub(crate) next_serial: u64,
    /// Arrival time of the latest packet sent; later packets do not overtake it.
    pub(crate) last_arrival: Nanos,
    /// Serial number of the latest request that the target has executed.
    pub(crate) carried_out: u64,
    /// Time at which the latest inbound WRITE or RECV completion is visible (fixed and model timing).
    pub(crate) last_landing: Nanos,
    /// Time at which the last executed packet is visible in memory; the next packet waits for it.
    pub(crate) ready_at: Nanos,
    /// The connecting link, and this end's side of it.
    pub(crate) link: Option<LinkSide>,
    /// Requests done without a completion since the last completion.
    pub(crate) unretired: u32,
    /// Arrived packets that have not been executed, oldest first.
    pub(crate) inbound: VecDeque<u32>,
    /// Requests in flight, oldest first. Unsignaled ones remain until a later one completes.
    pub(crate) sends: Sends,
    pub(crate) last_done: Nanos,
    /// Buffers of the requests done without a completion.
    pub(crate) unretired_held: Vec<Gather<SimMemory>>,
    /// Outcomes that arrived before those of earlier requests.
    pub(crate) early: Vec<(u64, Outcome)>,
    pub(crate) receives: ReceiveQueue,
    pub(crate) config: QueuePairConfig,
}

impl QueuePair {
    pub(crate) fn new(domain: u32, place: Place, config: QueuePairConfig, state: QueuePairState) -> Self {
        QueuePair {
            domain,
            max_send: config.max_send,
            place,
            state,
            transport: config.transport,
            stopped: false,
            refusing: false,
            occupied: 0,
            remote: None,
            next_serial: 1,
            last_arrival: 0,
            carried_out: 0,
            last_landing: 0,
            ready_at: 0,
            link: None,
            unretired: 0,
            inbound: VecDeque::new(),
            sends: Sends::default(),
            last_done: 0,
            unretired_held: Vec::new(),
            early: Vec::new(),
            receives: ReceiveQueue { depth: config.max_receive, posted: VecDeque::new() },
            config,
        }
    }

    /// Returns whether a packet that arrives now can be executed at once.
    #[inline(always)]
    pub(crate) fn is_next(&self, now: Nanos) -> bool {
        self.inbound.is_empty() && self.ready_at <= now && !self.refusing
    }

    /// Returns a request in flight by its serial number.
    #[inline]
    pub(crate) fn in_flight(&self, serial: u64) -> Option<&InFlight> {
        let first = self.sends.front()?.serial;
        self.sends.get(serial.checked_sub(first)? as usize)
    }

    /// Removes unsignaled requests before `serial`, which are done without a completion.
    #[inline(always)]
    pub(crate) fn retire_before(&mut self, serial: u64) {
        while let Some(oldest) = self.sends.front()
            && oldest.serial < serial
            && !oldest.signaled
        {
            self.unretired += 1;
            if let Some(kept) = self.sends.drop_front() {
                self.hold(*kept);
            }
        }
    }

    /// Removes the oldest request; its slot and buffers return with the next completion.
    pub(crate) fn retire_oldest(&mut self) -> Option<InFlight> {
        let mut request = self.sends.pop_front()?;
        self.unretired += 1;
        if matches!(request.kept.as_deref(), Some(Kept::Data(_)))
            && let Some(kept) = request.kept.take()
        {
            self.hold(*kept);
        }
        Some(request)
    }

    /// Holds the buffers of a finished request until the next completion.
    #[inline(never)]
    fn hold(&mut self, kept: Kept) {
        if let Kept::Data(held) = kept {
            self.unretired_held.push(held);
        }
    }
}

/// A message between two queue pairs, or a piece of one that will become visible later.
///
/// Thousands may be in flight at once, so the descriptor fills the first cache line, and a short payload ends
/// within the second.
#[repr(C, align(64))]
pub(crate) struct Packet {
    pub(crate) from: u32,
    pub(crate) to: u32,
    pub(crate) serial: u64,
    pub(crate) action: Action,
    /// Destination of the bytes, once the packet has been executed.
    pub(crate) target: Option<Held>,
    pub(crate) signaled: bool,
    /// The packet found no RECV, and its retries are running.
    pub(crate) retrying: bool,
    /// Bytes of the payload in `short`, or [`LONG`].
    length: u8,
    short: Line,
    /// A longer payload; the allocation is reused.
    long: Vec<u8>,
    /// The description that the timing model needs.
    pub(crate) message: Message,
}

/// Longest payload stored inline, in bytes: one line.
const SHORT: usize = size_of::<Line>();
/// Marks a longer payload.
const LONG: u8 = u8::MAX;

impl Default for Packet {
    fn default() -> Self {
        Packet {
            from: 0,
            to: 0,
            serial: 0,
            action: Action::Nothing,
            target: None,
            signaled: false,
            retrying: false,
            length: 0,
            short: Line::default(),
            long: Vec::new(),
            message: Message::default(),
        }
    }
}

/// The payload taken from a packet.
pub(crate) enum Payload {
    Short(Line, u8),
    Long(Vec<u8>),
}

impl std::ops::Deref for Payload {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match self {
            Payload::Short(bytes, length) => &bytes.0[..(*length as usize).min(SHORT)],
            Payload::Long(bytes) => bytes,
        }
    }
}

impl Packet {
    /// Returns the payload.
    #[inline]
    pub(crate) fn payload(&self) -> &[u8] {
        match self.length {
            LONG => &self.long,
            length => &self.short.0[..(length as usize).min(SHORT)],
        }
    }

    /// Starts a new payload.
    #[inline]
    pub(crate) fn clear_payload(&mut self) {
        self.length = 0;
    }

    /// Sets the payload to one line.
    #[inline(always)]
    pub(crate) fn set_line(&mut self, line: &[u8; SHORT]) {
        self.short.copy(line);
        self.length = SHORT as u8;
    }

    /// Appends to the payload.
    #[inline]
    pub(crate) fn add_to_payload(&mut self, bytes: &[u8]) {
        let length = self.length as usize;
        if let Some(place) = self.short.0.get_mut(length..length + bytes.len()) {
            place.copy_from_slice(bytes);
            self.length += bytes.len() as u8;
            return;
        }
        if self.length != LONG {
            self.long.clear();
            self.long.extend_from_slice(&self.short.0[..length]);
            self.length = LONG;
        }
        self.long.extend_from_slice(bytes);
    }

    /// Sets the payload to the bytes of a range.
    pub(crate) fn set_region(&mut self, range: &RegionRange<SimMemory>) {
        let length = range.length();
        if let Some(place) = self.short.0.get_mut(..length) {
            range.copy_out(0, place);
            self.length = length as u8;
            return;
        }
        self.long.clear();
        self.long.resize(length, 0);
        range.copy_out(0, &mut self.long);
        self.length = LONG;
    }

    /// Takes the payload out; return it with [`give_payload`](Packet::give_payload).
    #[inline]
    pub(crate) fn take_payload(&mut self) -> Payload {
        match self.length {
            LONG => Payload::Long(std::mem::take(&mut self.long)),
            length => Payload::Short(self.short, length),
        }
    }

    /// Returns a taken payload, so that its allocation is reused.
    #[inline]
    pub(crate) fn give_payload(&mut self, payload: Payload) {
        if let Payload::Long(bytes) = payload {
            self.long = bytes;
        }
    }

    /// Returns the bytes of the payload, or of the answer's data.
    #[inline]
    pub(crate) fn bytes(&self) -> u32 {
        match self.action {
            Action::Read { from } => from.length,
            Action::FetchAdd { .. } | Action::CompareSwap { .. } => 8,
            Action::Nothing | Action::Send { .. } | Action::Write { .. } => self.payload().len() as u32,
        }
    }
}

/// The action of the responder.
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

/// The result of a work request, in transit to the initiator.
pub(crate) struct Outcome {
    pub(crate) status: CompletionStatus,
    pub(crate) value: u64,
    pub(crate) read: Vec<u8>,
}

impl Outcome {
    pub(crate) fn of(status: CompletionStatus) -> Self {
        Outcome { status, value: 0, read: Vec::new() }
    }

    /// Returns whether the outcome is a success without data.
    pub(crate) fn is_plain(&self) -> bool {
        self.status == CompletionStatus::Success && self.value == 0 && self.read.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::{offset_of, size_of};

    /// Checks the cache-line layout that the types promise.
    #[test]
    fn what_is_touched_together_lies_together() {
        assert!(offset_of!(DomainState, touched) <= 64);
        assert!(offset_of!(DomainState, completion_queues) <= 128);
        assert!(offset_of!(QueuePair, inbound) < 128);
        assert!(offset_of!(QueuePair, sends) + offset_of!(Sends, rest) <= 192);
        assert!(offset_of!(Packet, short) + SHORT <= 128);
        assert_eq!(size_of::<Option<crate::links::Grant>>(), 32);
    }

    #[test]
    fn a_payload_is_what_was_put_into_it() {
        let mut packet = Packet::default();
        for length in [0, 1, 63, 64, 65, 300, 64, 8] {
            let bytes: Vec<u8> = (0..length).map(|at| at as u8).collect();
            packet.clear_payload();
            bytes.chunks(40).for_each(|part| packet.add_to_payload(part));
            assert_eq!(packet.payload(), bytes);
            let taken = packet.take_payload();
            assert_eq!(&*taken, bytes);
            packet.give_payload(taken);
        }
    }
}
