//! Posting: from a work request to the send queue and onto the wire.

use crate::events::Event;
use crate::memory::SimMemory;
use crate::queues::{Action, InFlight, Kept, Outcome, Packet};
use crate::state::{Network, Rare, State};
use crate::timing::{Message, Place, Posted, model_opcode};
use dunlin_fabric::{
    CompletionStatus, Data, Gather, InlineLine, Nanos, Opcode, Operation, PostError, QueuePairId,
    QueuePairState, RegionRange, Transport, WorkId, WorkRequest,
};
use dunlin_rnic_model::{Linked, Request, Touch};

/// The state of a queue pair that posting needs.
#[derive(Clone, Copy)]
pub(crate) struct Sender {
    at: u32,
    transport: Transport,
    remote: Option<u32>,
    /// Free slots of the send queue.
    room: u32,
}

/// A work request without the parts that its packet holds.
struct Posting {
    id: WorkId,
    opcode: Opcode,
    signaled: bool,
    linked: Linked,
    /// The initiator's buffer; `None` for inline data.
    local: Option<Touch>,
    /// Offset at the target.
    offset: u64,
    /// Bytes of the payload, or of the answer's data.
    bytes: u32,
    kept: Option<Box<Kept>>,
    /// The buffer is too short for the result.
    local_error: bool,
}

impl Default for Posting {
    #[inline(always)]
    fn default() -> Self {
        Posting {
            id: WorkId(0),
            opcode: Opcode::Write,
            signaled: false,
            linked: Linked::Alone,
            local: None,
            offset: 0,
            bytes: 0,
            kept: None,
            local_error: false,
        }
    }
}

impl State {
    /// Returns the sending state of a domain's queue pair, if it accepts posts.
    #[inline]
    pub(crate) fn sender(&self, domain: u32, queue_pair: QueuePairId) -> Result<Sender, PostError> {
        let found = self.network.queue_pairs.get(queue_pair.0).filter(|found| found.domain == domain);
        let sender = found.ok_or(PostError::NoSuch("queue pair"))?;
        match sender.state {
            QueuePairState::Initialised => return Err(PostError::NotConnected),
            QueuePairState::Error => return Err(PostError::QueuePairError),
            QueuePairState::Ready => {}
        }
        Ok(Sender {
            at: queue_pair.0,
            transport: sender.transport,
            remote: sender.remote,
            room: sender.max_send.saturating_sub(sender.occupied),
        })
    }

    /// Checks for `wanted` free slots in the send queue; may also refuse at random if that fault is enabled.
    #[inline]
    pub(crate) fn find_room(&mut self, sender: Sender, wanted: u32) -> Result<(), PostError> {
        let refusal = self.settings.faults.refusal;
        if sender.room < wanted || (refusal != 0 && self.is_refused(sender.at, refusal)) {
            return Err(PostError::QueueFull);
        }
        Ok(())
    }

    #[cold]
    fn is_refused(&mut self, at: u32, refusal: u64) -> bool {
        // As with a full queue, refuse only while a request is in flight whose completion will announce free
        // room.
        let busy = self.queue_pair(at).is_some_and(|q| q.sends.iter().any(|sent| sent.signaled));
        busy && self.breaks(refusal)
    }

    /// Accepts one request for a ready queue pair with room.
    #[inline]
    pub(crate) fn post_one(
        &mut self,
        domain: u32,
        sender: Sender,
        request: WorkRequest<'_, SimMemory>,
        linked: Linked,
    ) -> Result<(), PostError> {
        let queue_pair = QueuePairId(sender.at);
        let to = self.admit(domain, queue_pair, sender.transport, sender.remote, &request.operation)?;
        let (packet, place) = self.network.packets.take();
        place.clear_payload();
        let mut posting =
            Posting { id: request.id, signaled: request.signaled, linked, ..Posting::default() };
        posting.opcode = match request.operation {
            Operation::Send { data, immediate, .. } => {
                posting.kept = gather(data, place, &mut posting.local);
                place.action = Action::Send { immediate };
                Opcode::Send
            }
            Operation::Write { data, key, offset, immediate } => {
                posting.kept = gather(data, place, &mut posting.local);
                posting.offset = offset;
                place.action = Action::Write { key, offset, immediate };
                Opcode::Write
            }
            Operation::Read { from, into: buffer } => {
                posting.local_error = buffer.len() < from.length as usize;
                posting.local = Some(Touch { region: buffer.memory().number(), offset: buffer.offset() });
                posting.offset = from.offset;
                posting.kept = Some(Box::new(Kept::Into(buffer)));
                place.action = Action::Read { from };
                Opcode::Read
            }
            Operation::ReadInto { from, into: range } => {
                posting.local_error = range.length() < from.length as usize;
                posting.local = Some(touch_of(&range));
                posting.offset = from.offset;
                posting.kept = Some(Box::new(Kept::IntoRegion(range)));
                place.action = Action::Read { from };
                Opcode::Read
            }
            Operation::FetchAdd { key, offset, add } => {
                place.action = Action::FetchAdd { key, offset, add };
                Opcode::FetchAdd
            }
            Operation::CompareSwap { key, offset, expected, swap } => {
                place.action = Action::CompareSwap { key, offset, expected, swap };
                Opcode::CompareSwap
            }
        };
        posting.bytes = place.bytes();
        // A READ or atomic always needs a completion to return its value.
        posting.signaled |= !matches!(posting.opcode, Opcode::Send | Opcode::Write);
        self.leave(sender.at, to, packet, posting);
        Ok(())
    }

    /// Returns the target of a line posted to a domain's queue pair, and whether the send queue has room.
    /// `None` means that the line must be posted as an ordinary WRITE, which returns the precise error.
    #[inline(always)]
    pub(crate) fn takes_line(
        &self,
        domain: u32,
        queue_pair: QueuePairId,
        bytes: usize,
    ) -> Option<(u32, bool)> {
        let capabilities = &self.settings.capabilities;
        if bytes > capabilities.max_inline.min(capabilities.max_message) as usize {
            return None;
        }
        let sender = self.network.queue_pairs.get(queue_pair.0)?;
        let good = sender.domain == domain && sender.state == QueuePairState::Ready;
        let to = sender.remote.filter(|_| good)?;
        Some((to, sender.occupied < sender.max_send))
    }

    /// Accepts a line; the send queue must have room.
    #[inline(always)]
    pub(crate) fn post_line(
        &mut self,
        queue_pair: QueuePairId,
        to: u32,
        line: InlineLine<'_>,
    ) -> Result<(), PostError> {
        let InlineLine { id, line, key, offset, .. } = line;
        let refusal = self.settings.faults.refusal;
        if refusal != 0 && self.is_refused(queue_pair.0, refusal) {
            return Err(PostError::QueueFull);
        }
        let (packet, place) = self.network.packets.take();
        place.set_line(line);
        place.action = Action::Write { key, offset, immediate: None };
        self.leave(
            queue_pair.0,
            to,
            packet,
            Posting { id, offset, bytes: line.len() as u32, ..Posting::default() },
        );
        Ok(())
    }

    /// Adds a request to the send queue and sends its packet after earlier ones of the queue pair.
    #[inline(always)]
    fn leave(&mut self, at: u32, to: u32, packet: u32, posting: Posting) {
        let Posting { id, opcode, signaled, linked, local, offset, bytes, kept, local_error } = posting;
        let inline = local.is_none();
        let local = local.unwrap_or_default();
        if self.timing.is_modelled() {
            let request = Request {
                initiator: at,
                target: to,
                opcode: model_opcode(opcode, false),
                transport: Transport::ReliableConnection,
                bytes,
                inline,
                signaled,
                linked,
                local,
                remote: Touch { offset, ..Touch::default() },
            };
            describe(&mut self.network, packet, request);
        }
        if self.settings.history.is_some() {
            self.tell_posted(at, to, packet);
        }
        let now = self.now();
        let Network { queue_pairs, packets, .. } = &mut self.network;
        let place = &mut packets[packet];
        let Some(sender) = queue_pairs.get_mut(at) else { return self.give_packets([packet]) };
        let serial = sender.next_serial;
        sender.next_serial += 1;
        sender.occupied += 1;
        sender.sends.push_back(InFlight { serial, id, opcode, signaled, bytes, local, kept });
        (place.from, place.to, place.serial, place.signaled) = (at, to, serial, signaled);
        place.retrying = false;
        if local_error | sender.stopped {
            return self.stay_behind(at, packet, serial, local_error);
        }
        let carries = matches!(opcode, Opcode::Send | Opcode::Write);
        let carried = (sender.place.machine, if carries { bytes } else { 0 });
        let message = || place.message;
        let posted = self.timing.post(&mut self.chance, now, carried, message);
        let faults = &self.settings.faults;
        let disturbed = faults.delay != 0 || faults.queue_pair_error != 0 || self.has_cuts;
        if disturbed || sender.transport != Transport::ReliableConnection {
            return self.transmit_otherwise(at, packet, now, posted);
        }
        sender.last_arrival = sender.last_arrival.max(posted.arrives);
        let arrives = sender.last_arrival;
        self.charge(posted.processor);
        self.put(arrives, Event::Arrive { packet });
    }

    /// Discards the packet of a request that failed locally, or that follows such a request.
    #[cold]
    #[inline(never)]
    fn stay_behind(&mut self, at: u32, packet: u32, serial: u64, local_error: bool) {
        self.give_packets([packet]);
        let now = self.now();
        let Some(sender) = self.queue_pair(at) else { return };
        if local_error && !std::mem::replace(&mut sender.stopped, true) {
            self.done_at(at, serial, now + 100, Outcome::of(CompletionStatus::LocalProtection));
        }
    }

    #[cold]
    #[inline(never)]
    fn tell_posted(&self, at: u32, to: u32, packet: u32) {
        let serial = self.network.queue_pairs.get(at).map_or(0, |sender| sender.next_serial);
        self.tell(|state| {
            let Packet { action, .. } = &state.network.packets[packet];
            let length = state.network.packets[packet].payload().len();
            format!("queue pair {at} to {to}: request {serial}, {length} bytes, {action:?}")
        });
    }

    /// The end of [`leave`](State::leave) for runs with faults or without acknowledgements.
    #[inline(never)]
    fn transmit_otherwise(&mut self, from: u32, packet: u32, now: Nanos, posted: Posted) {
        self.charge(posted.processor);
        let faults = &self.settings.faults;
        let (delay, delay_by, breaks) = (faults.delay, faults.delay_by, faults.queue_pair_error);
        let held_up = if self.breaks(delay) { self.chance.below(delay_by + 1) } else { 0 };
        if self.breaks(breaks) {
            let at = now + self.chance.below(2_000);
            self.schedule(at, Rare::Break { at: from });
        }
        let Packet { to, serial, signaled, .. } = self.network.packets[packet];
        let cut_until = self.cut_of(from, to);
        let Some(sender) = self.queue_pair(from) else { return self.give_packets([packet]) };
        let leaves = posted.arrives + held_up;
        // A message that a cut holds up takes its usual time after the end of the cut.
        let arrives = if cut_until > 0 { leaves.saturating_sub(now) + cut_until } else { leaves };
        sender.last_arrival = sender.last_arrival.max(arrives);
        let (at, transport) = (sender.last_arrival, sender.transport);
        if transport != Transport::ReliableConnection {
            // Unreliable transports complete a request once it has left.
            sender.carried_out = serial;
            if signaled && self.timing.is_modelled() {
                // As with an answered request, the completion occupies the NIC.
                self.put(posted.left, Event::Acknowledged { queue_pair: from, serial });
            } else if signaled {
                self.done_at(from, serial, posted.left, Outcome::of(CompletionStatus::Success));
            }
            let loss = self.settings.faults.loss;
            if cut_until > 0 || self.breaks(loss) {
                self.tell(|_| format!("message {serial} of queue pair {from} is lost"));
                return self.give_packets([packet]);
            }
        } else if cut_until > 0 {
            self.give_up_behind_cut(from, cut_until);
        }
        self.put(at, Event::Arrive { packet });
    }
}

/// Stores in a packet the description that the model needs; the transport is that of its queue pair.
#[inline(never)]
fn describe(network: &mut Network, packet: u32, request: Request) {
    let Network { queue_pairs, packets, .. } = network;
    let (from, transport) = match queue_pairs.get(request.initiator) {
        Some(sender) => (sender.place, sender.transport),
        None => (Place::default(), request.transport),
    };
    let to = queue_pairs.get(request.target).map_or(Place::default(), |target| target.place);
    let place = &mut packets[packet];
    let with_immediate = matches!(place.action, Action::Write { immediate: Some(_), .. });
    let opcode = if with_immediate { dunlin_rnic_model::Opcode::WriteImmediate } else { request.opcode };
    place.message = Message { from, to, request: Request { opcode, transport, ..request } };
}

/// Returns the range for the timing model.
fn touch_of(range: &RegionRange<SimMemory>) -> Touch {
    Touch { region: range.region().memory().number(), offset: range.offset() }
}

/// Gathers the bytes as the RNIC would, and returns the memory to hold until the completion. The queue pair
/// owns buffers until then, so their bytes cannot change before the packet leaves. Those of a region can, and a
/// real RNIC may gather them later.
fn gather(data: Data<'_, SimMemory>, packet: &mut Packet, local: &mut Option<Touch>) -> Option<Box<Kept>> {
    let first = match &data {
        Data::Inline(_) | Data::Region(_) => None,
        Data::Buffer(buffer) => Some(buffer),
        Data::Gather(list) => list.iter().next(),
    };
    *local = first.map(|buffer| Touch { region: buffer.memory().number(), offset: buffer.offset() });
    match data {
        Data::Inline(parts) => {
            parts.iter().for_each(|part| packet.add_to_payload(part));
            None
        }
        Data::Buffer(buffer) => {
            packet.add_to_payload(&buffer);
            let mut one = Gather::default();
            let room = one.push(buffer).is_ok();
            debug_assert!(room, "an empty gather list takes a buffer");
            Some(Box::new(Kept::Data(one)))
        }
        Data::Gather(list) => {
            list.iter().for_each(|part| packet.add_to_payload(part));
            Some(Box::new(Kept::Data(list)))
        }
        Data::Region(range) => {
            *local = Some(touch_of(&range));
            packet.set_region(&range);
            Some(Box::new(Kept::Region(range)))
        }
    }
}
