//! The face of a domain: checks what verbs checks when something is posted, and waits.

use crate::events::Event;
use crate::link::SimLink;
use crate::memory::{NAMELESS, SimMemory};
use crate::network::Network;
use crate::queues::{
    Action, CompletionQueue, DomainState, Entry, InFlight, LinkSide, Outcome, Packet, PostedReceive,
    QueuePair, ReceiveQueue, Touched,
};
use crate::scheduler::{Reason, State};
use crate::shared::{Guard, Shared};
use crate::timing::{Message, Place, model_opcode};
use dunlin_fabric::{
    AddressHandleId, Armed, Buffer, Completion, CompletionQueueId, CompletionStatus, CreateError, Data,
    Endpoint, Gather, InlineLine, InlineWrite, Nanos, Opcode, Operation, PostError, QueuePairConfig,
    QueuePairId, QueuePairState, ReceiveTarget, Region, SharedReceiveQueueId, ThreadDomain, Transport,
    WaitMode, Wake, Waker, Work, WorkId, WorkRequest,
};
use dunlin_rnic_model::{Linked, Request, Touch};
use std::collections::VecDeque;
use std::sync::Arc;

/// A domain of a simulated fabric: belongs to one task at a time.
#[derive(Debug)]
pub struct SimDomain {
    shared: Arc<Shared>,
    id: u32,
}

/// Ends a wait of a [`SimDomain`].
#[derive(Clone, Debug)]
pub struct SimWaker {
    shared: Arc<Shared>,
    domain: u32,
}

/// A busy wait stands for many looks. Who has a broken queue pair and would find it with one of these, since it gives no completion or
/// was not looked for when that came, gets to it after so many nanoseconds.
const LOOKS_OVER: Nanos = 10_000;

/// Waits until something concerns a domain.
fn wait(shared: &Shared, id: u32, armed: Armed, until: Nanos) -> Wake {
    let mut state = shared.enter_at(|prices| prices.look);
    let event = armed.mode == WaitMode::Event;
    let arrived = if event { Wake::Arrived } else { Wake::Rested };
    let Some(domain) = state.domain(id) else { return Wake::TimedOut };
    if armed.token != if event { domain.event_arrivals } else { domain.arrivals } {
        return arrived;
    }
    let (process, broken) = (domain.process, domain.broken > 0);
    let until = state.time_of(process, until);
    let until = if broken && !event { until.min(state.now() + LOOKS_OVER) } else { until };
    if state.over() || state.now() >= until {
        return Wake::TimedOut;
    }
    let waiter = state.stay(Reason::Arrivals { domain: id, event });
    if let Some(domain) = state.domain(id) {
        domain.waiting = Some((waiter, armed.mode));
    }
    let (mut state, wake) = shared.park(state, waiter, until, true);
    if let Some(domain) = state.domain(id) {
        domain.waiting = None;
    }
    if wake == Wake::Arrived { arrived } else { wake }
}

impl Waker for SimWaker {
    fn wait(&self, armed: Armed, until: Nanos) -> Wake {
        wait(&self.shared, self.domain, armed, until)
    }

    fn wake(&self) {
        if let Some(mut state) = self.shared.try_lock() {
            let price = state.settings.prices.system_call;
            state.charge(price * 1000);
            state.notify(self.domain, true);
        }
    }
}

impl SimDomain {
    pub(crate) fn new(shared: &Arc<Shared>, process: u32) -> Result<Self, CreateError> {
        let mut state = shared.system_call();
        if !state.processes[process as usize].alive || state.over() {
            return Err(over());
        }
        let id = state.network.domains.push(DomainState::of(process));
        Ok(SimDomain { shared: Arc::clone(shared), id })
    }

    /// Reads the peer's endpoint, which must have been made on the other side of this link.
    fn resolve(&self, state: &mut State, link: &SimLink, remote: &Endpoint) -> Result<u32, CreateError> {
        if !link.is_of(&self.shared) {
            return Err(CreateError::State("the link belongs to another fabric"));
        }
        let wrong = CreateError::Endpoint;
        let bytes: &[u8; 16] =
            remote.0.as_slice().try_into().map_err(|_| wrong("it is not 16 bytes long"))?;
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let LinkSide { link, side } = link.at();
        if word(0) != link || word(4) != 1 - side {
            return Err(wrong("it was not made at the other end of this link"));
        }
        match state.queue_pair(word(12)) {
            Some(found) if found.domain == word(8) => Ok(word(12)),
            _ => Err(wrong("its queue pair does not exist any more")),
        }
    }

    fn limit(what: &'static str, value: u64, limit: u64) -> Result<(), CreateError> {
        if value > limit { Err(CreateError::Limit { what, value, limit }) } else { Ok(()) }
    }

    fn pass(&self, price: impl Fn(&crate::settings::Prices) -> u64) -> Guard<'_> {
        self.shared.pass_at(price)
    }

    /// Posts a line that cannot be posted as such: as any WRITE, which tells why.
    #[cold]
    #[inline(never)]
    fn refuse_line(&mut self, queue_pair: QueuePairId, line: InlineLine<'_>) -> Result<(), PostError> {
        let InlineLine { id, line, key, offset, .. } = line;
        let parts: &[&[u8]] = &[line];
        let write = InlineWrite { id, parts, key, offset, immediate: None, signaled: false, ahead: 0 };
        self.post_write(queue_pair, write)
    }
}

/// A queue pair, if it is this domain's.
#[inline]
fn own(state: &mut State, domain: u32, number: QueuePairId) -> Option<&mut QueuePair> {
    state.queue_pair(number.0).filter(|found| found.domain == domain)
}

/// What a queue pair is like that something is posted to.
#[derive(Clone, Copy)]
struct Sender {
    at: u32,
    place: Place,
    transport: Transport,
    remote: Option<u32>,
    /// What the send queue has room for.
    room: usize,
}

impl Sender {
    #[inline]
    fn of(state: &mut State, domain: u32, queue_pair: QueuePairId) -> Result<Self, PostError> {
        let sender = own(state, domain, queue_pair).ok_or(PostError::NoSuch("queue pair"))?;
        match sender.state {
            QueuePairState::Initialised => return Err(PostError::NotConnected),
            QueuePairState::Error => return Err(PostError::QueuePairError),
            QueuePairState::Ready => {}
        }
        Ok(Sender {
            at: queue_pair.0,
            place: sender.place,
            transport: sender.transport,
            remote: sender.remote,
            room: sender.max_send.saturating_sub(sender.occupied) as usize,
        })
    }

    /// Refuses what the send queue has no room for, and now and then something else, if that is a fault of the run.
    #[inline]
    fn find_room(&self, state: &mut State, wanted: usize) -> Result<(), PostError> {
        let refusal = state.settings.faults.refusal;
        if self.room < wanted || (refusal != 0 && self.is_refused(state, refusal)) {
            return Err(PostError::QueueFull);
        }
        Ok(())
    }

    #[cold]
    fn is_refused(&self, state: &mut State, refusal: u64) -> bool {
        // As when the queue is full: something is under way whose completion tells that there is room again.
        let busy = state.queue_pair(self.at).is_some_and(|q| q.sends.iter().any(|sent| sent.signaled));
        busy && state.breaks(refusal)
    }
}

/// A work request, but for what stands in its packet.
struct Posting {
    id: WorkId,
    opcode: Opcode,
    signaled: bool,
    linked: Linked,
    /// The initiator's buffer; `None` for inline data.
    local: Option<Touch>,
    /// The offset at the target.
    offset: u64,
    held: Option<Box<Gather<SimMemory>>>,
    into: Option<Box<Buffer<SimMemory>>>,
    /// The buffer is too short for what it is to take.
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
            held: None,
            into: None,
            local_error: false,
        }
    }
}

impl Posting {
    /// Puts it into the send queue, and its packet on the wire.
    #[inline(always)]
    fn leave(self, state: &mut State, sender: Sender, to: u32, packet: u32) {
        let Posting { id, opcode, signaled, linked, local, offset, held, into, local_error } = self;
        let Sender { at, place: from, transport, .. } = sender;
        let now = state.now();
        let network = &mut state.network;
        let place = &mut network.packets[packet];
        let length = place.bytes();
        let Some(queue_pair) = network.queue_pairs.get_mut(at) else { return state.give_packets([packet]) };
        let serial = queue_pair.next_serial;
        queue_pair.next_serial += 1;
        queue_pair.occupied += 1;
        let stopped = queue_pair.stopped;
        queue_pair.stopped |= local_error;
        let inline = local.is_none();
        let local = local.unwrap_or_default();
        let request = InFlight { serial, id, opcode, signaled, bytes: length, local, held, into };
        queue_pair.sends.push_back(request);
        (place.from, place.to, place.serial, place.signaled) = (at, to, serial, signaled);
        place.retrying = false;
        if local_error || stopped {
            state.give_packets([packet]);
        } else {
            if state.timing.is_modelled() {
                let request = Request {
                    initiator: at,
                    target: to,
                    opcode: model_opcode(opcode, false),
                    transport,
                    bytes: length,
                    inline,
                    signaled,
                    linked,
                    local,
                    remote: Touch { offset, ..Touch::default() },
                };
                describe(network, packet, from, request);
            }
            let carries = matches!(opcode, Opcode::Send | Opcode::Write);
            state.transmit(at, packet, if carries { length } else { 0 });
        }
        if local_error && !stopped {
            state.done_at(at, serial, now + 100, Outcome::of(CompletionStatus::LocalProtection));
        }
    }
}

/// Puts into a packet what a model needs to know of it.
#[inline(never)]
fn describe(network: &mut Network, packet: u32, from: Place, request: Request) {
    let place = &mut network.packets[packet];
    let with_immediate = matches!(place.action, Action::Write { immediate: Some(_), .. });
    let to = network.queue_pairs.get(request.target).map_or(Place::default(), |q| q.place);
    let opcode = if with_immediate { dunlin_rnic_model::Opcode::WriteImmediate } else { request.opcode };
    place.message = Message { from, to, request: Request { opcode, ..request } };
}

impl Drop for SimDomain {
    fn drop(&mut self) {
        let Some(mut state) = self.shared.try_lock() else { return };
        state.destroy_domain(self.id);
    }
}

/// Gathers the bytes as the RNIC would, and gives the buffers, to be held until the completion. They are the queue
/// pair's until then, so their bytes are the same now as when they leave.
fn gather(
    data: Data<'_, SimMemory>,
    packet: &mut Packet,
    local: &mut Option<Touch>,
) -> Option<Box<Gather<SimMemory>>> {
    let first = match &data {
        Data::Inline(_) => None,
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
            Some(Box::new(one))
        }
        Data::Gather(list) => {
            list.iter().for_each(|part| packet.add_to_payload(part));
            Some(Box::new(list))
        }
    }
}

/// Takes one request of a queue pair that is ready and has room.
#[inline]
fn post_one(
    state: &mut State,
    domain: u32,
    sender: Sender,
    request: WorkRequest<'_, SimMemory>,
    linked: Linked,
) -> Result<(), PostError> {
    let queue_pair = QueuePairId(sender.at);
    let to = state.admit(domain, queue_pair, sender.transport, sender.remote, &request.operation)?;
    let (packet, place) = state.network.packets.take();
    place.clear_payload();
    let mut posting = Posting { id: request.id, signaled: request.signaled, linked, ..Posting::default() };
    posting.opcode = match request.operation {
        Operation::Send { data, immediate, .. } => {
            posting.held = gather(data, place, &mut posting.local);
            place.action = Action::Send { immediate };
            Opcode::Send
        }
        Operation::Write { data, key, offset, immediate } => {
            posting.held = gather(data, place, &mut posting.local);
            posting.offset = offset;
            place.action = Action::Write { key, offset, immediate };
            Opcode::Write
        }
        Operation::Read { from, into: buffer } => {
            posting.local_error = buffer.len() < from.length as usize;
            posting.local = Some(Touch { region: buffer.memory().number(), offset: buffer.offset() });
            posting.offset = from.offset;
            posting.into = Some(Box::new(buffer));
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
    // Who READs or changes atomically wants to know the value.
    posting.signaled |= !matches!(posting.opcode, Opcode::Send | Opcode::Write);
    posting.leave(state, sender, to, packet);
    Ok(())
}

impl ThreadDomain for SimDomain {
    type Memory = SimMemory;
    type Link = SimLink;
    type Waker = SimWaker;

    fn create_completion_queue(
        &mut self,
        depth: u32,
        events: bool,
    ) -> Result<CompletionQueueId, CreateError> {
        let mut state = self.shared.system_call();
        let capabilities = &state.settings.capabilities;
        if events && !capabilities.events {
            return Err(CreateError::Unsupported("completion events"));
        }
        let Some(domain) = state.domain(self.id) else { return Err(over()) };
        domain.completion_queues.push(CompletionQueue { depth, events, entries: VecDeque::new() });
        Ok(CompletionQueueId(domain.completion_queues.len() as u32 - 1))
    }

    fn create_shared_receive_queue(&mut self, depth: u32) -> Result<SharedReceiveQueueId, CreateError> {
        let mut state = self.shared.system_call();
        let capabilities = &state.settings.capabilities;
        if !capabilities.shared_receive_queue {
            return Err(CreateError::Unsupported("shared receive queues"));
        }
        Self::limit(
            "the depth of a shared receive queue",
            depth.into(),
            capabilities.max_queue_depth.into(),
        )?;
        let Some(domain) = state.domain(self.id) else { return Err(over()) };
        domain.shared_receives.push(ReceiveQueue { depth, posted: VecDeque::new() });
        Ok(SharedReceiveQueueId(domain.shared_receives.len() as u32 - 1))
    }

    fn create_queue_pair(&mut self, config: &QueuePairConfig) -> Result<QueuePairId, CreateError> {
        let mut state = self.shared.system_call();
        let capabilities = &state.settings.capabilities;
        if !capabilities.transports.contains(config.transport) {
            return Err(CreateError::Unsupported("such transport"));
        }
        let depth = u64::from(capabilities.max_queue_depth);
        Self::limit("the depth of the send queue", config.max_send.into(), depth)?;
        Self::limit("the depth of the receive queue", config.max_receive.into(), depth)?;
        let most = u64::from(capabilities.max_queue_pairs);
        let Some(domain) = state.domain(self.id) else { return Err(over()) };
        Self::limit("the number of queue pairs", domain.queue_pairs.len() as u64 + 1, most)?;
        let queues = domain.completion_queues.len() as u32;
        if config.send_completions.0 >= queues || config.receive_completions.0 >= queues {
            return Err(CreateError::NoSuch("completion queue"));
        }
        if config.shared_receive.is_some_and(|s| s.0 as usize >= domain.shared_receives.len()) {
            return Err(CreateError::NoSuch("shared receive queue"));
        }
        let process = domain.process;
        let ready = config.transport == Transport::UnreliableDatagram;
        let start = if ready { QueuePairState::Ready } else { QueuePairState::Initialised };
        let number = state.network.queue_pairs.count();
        let machine = state.processes[process as usize].machine;
        let nics = state.settings.nics_of(machine);
        let place = Place { machine, nic: number % u32::from(nics) };
        let queue_pair = QueuePair::new(self.id, place, *config, start);
        state.network.queue_pairs.push(queue_pair);
        if let Some(domain) = state.domain(self.id) {
            domain.queue_pairs.push(number);
        }
        Ok(QueuePairId(number))
    }

    fn endpoint(&mut self, queue_pair: QueuePairId, link: &SimLink) -> Result<Endpoint, CreateError> {
        let mut state = self.shared.system_call();
        if !link.is_of(&self.shared) {
            return Err(CreateError::State("the link belongs to another fabric"));
        }
        own(&mut state, self.id, queue_pair).ok_or(CreateError::NoSuch("queue pair"))?;
        let LinkSide { link, side } = link.at();
        let words = [link, side, self.id, queue_pair.0];
        Ok(Endpoint(words.iter().flat_map(|word| word.to_le_bytes()).collect()))
    }

    fn connect(
        &mut self,
        queue_pair: QueuePairId,
        link: &SimLink,
        remote: &Endpoint,
    ) -> Result<(), CreateError> {
        let mut state = self.shared.system_call();
        let at = queue_pair.0;
        let ours = own(&mut state, self.id, queue_pair).ok_or(CreateError::NoSuch("queue pair"))?;
        let transport = ours.transport;
        if transport == Transport::UnreliableDatagram {
            return Err(CreateError::State("a datagram queue pair is not connected: make address handles"));
        }
        if ours.state != QueuePairState::Initialised {
            return Err(CreateError::State("the queue pair was connected before"));
        }
        let remote = self.resolve(&mut state, link, remote)?;
        if state.queue_pair(remote).is_none_or(|q| q.transport != transport) {
            return Err(CreateError::Endpoint("its queue pair has another transport"));
        }
        if !state.connected_over(link.at(), at) {
            return Err(CreateError::State("the link is closed"));
        }
        if let Some(ours) = state.queue_pair(at) {
            ours.state = QueuePairState::Ready;
            ours.link = Some(link.at());
            ours.remote = Some(remote);
        }
        let now = state.now();
        state.put(now, Event::Serve { queue_pair: at });
        Ok(())
    }

    fn create_address_handle(
        &mut self,
        queue_pair: QueuePairId,
        link: &SimLink,
        remote: &Endpoint,
    ) -> Result<AddressHandleId, CreateError> {
        let mut state = self.shared.system_call();
        let to = self.resolve(&mut state, link, remote)?;
        own(&mut state, self.id, queue_pair).ok_or(CreateError::NoSuch("queue pair"))?;
        for end in [queue_pair.0, to] {
            let found = state.queue_pair(end).ok_or(CreateError::NoSuch("queue pair"))?;
            if found.transport != Transport::UnreliableDatagram {
                return Err(CreateError::State("address handles are for datagram queue pairs"));
            }
        }
        let Some(domain) = state.domain(self.id) else { return Err(over()) };
        Ok(domain.address_handles.insert(queue_pair, to))
    }

    fn destroy_address_handle(&mut self, handle: AddressHandleId) -> Result<(), CreateError> {
        let mut state = self.shared.system_call();
        let Some(domain) = state.domain(self.id) else { return Err(over()) };
        domain.address_handles.remove(handle)
    }

    fn destroy_queue_pair(&mut self, queue_pair: QueuePairId) -> Result<(), CreateError> {
        let mut state = self.shared.system_call();
        own(&mut state, self.id, queue_pair).ok_or(CreateError::NoSuch("queue pair"))?;
        state.destroy(queue_pair.0);
        Ok(())
    }

    fn state(&self, queue_pair: QueuePairId) -> Option<QueuePairState> {
        own(&mut self.pass(|prices| prices.look), self.id, queue_pair).map(|q| q.state)
    }

    fn send_room(&self, queue_pair: QueuePairId) -> u32 {
        let mut state = self.pass(|prices| prices.look);
        own(&mut state, self.id, queue_pair).map_or(0, |q| q.max_send - q.occupied)
    }

    fn post(
        &mut self,
        queue_pair: QueuePairId,
        request: WorkRequest<'_, SimMemory>,
    ) -> Result<(), PostError> {
        self.post_linked(queue_pair, [request])
    }

    fn post_linked<const N: usize>(
        &mut self,
        queue_pair: QueuePairId,
        requests: [WorkRequest<'_, SimMemory>; N],
    ) -> Result<(), PostError> {
        let mut state = self.pass(|prices| prices.post * N as u64);
        let sender = Sender::of(&mut state, self.id, queue_pair)?;
        sender.find_room(&mut state, N)?;
        for (place, request) in requests.into_iter().enumerate() {
            let linked = match (N, place) {
                (1, _) => Linked::Alone,
                (_, 0) => Linked::First,
                _ => Linked::Next,
            };
            post_one(&mut state, self.id, sender, request, linked)?;
        }
        Ok(())
    }

    fn post_line(&mut self, queue_pair: QueuePairId, line: InlineLine<'_>) -> Result<(), PostError> {
        let mut state = self.shared.lock();
        let capabilities = &state.settings.capabilities;
        let most = capabilities.max_inline.min(capabilities.max_message);
        let fits = line.line.len() <= most as usize;
        let sender = Sender::of(&mut state, self.id, queue_pair).ok().filter(|_| fits);
        let Some((sender, to)) = sender.and_then(|sender| Some((sender, sender.remote?))) else {
            drop(state);
            return self.refuse_line(queue_pair, line);
        };
        let InlineLine { id, line, key, offset, .. } = line;
        let price = state.settings.prices.post;
        let mut state = self.shared.pass_on(state, price);
        sender.find_room(&mut state, 1)?;
        let (packet, place) = state.network.packets.take();
        place.set_line(line);
        place.action = Action::Write { key, offset, immediate: None };
        Posting { id, offset, ..Posting::default() }.leave(&mut state, sender, to, packet);
        Ok(())
    }

    fn will_post(&self, queue_pair: QueuePairId) {
        self.shared.lock().network.warm_queue_pair(queue_pair.0);
    }

    fn post_receive(
        &mut self,
        target: ReceiveTarget,
        id: WorkId,
        buffer: Option<Buffer<SimMemory>>,
    ) -> Result<(), PostError> {
        let mut state = self.pass(|prices| prices.post_receive);
        if state.domain(self.id).is_none() {
            return Err(PostError::NoSuch("domain: the run is over"));
        }
        let mut stalled = Vec::new();
        let queue = match target {
            ReceiveTarget::QueuePair(number) => {
                let found = own(&mut state, self.id, number).ok_or(PostError::NoSuch("queue pair"))?;
                if found.state == QueuePairState::Error {
                    return Err(PostError::QueuePairError);
                }
                if !found.inbound.is_empty() {
                    stalled.push(number.0);
                }
                &mut found.receives
            }
            ReceiveTarget::Shared(shared) => {
                let network = &mut state.network;
                let domain = network.domains.get_mut(self.id);
                let domain = domain.ok_or(PostError::NoSuch("domain"))?;
                let queue = domain.shared_receives.get_mut(shared.0 as usize);
                let queue = queue.ok_or(PostError::NoSuch("shared receive queue"))?;
                // Somebody can wait for a RECV only while there is none.
                if queue.posted.is_empty() {
                    let users = domain.queue_pairs.iter().copied().filter(|number| {
                        network
                            .queue_pairs
                            .get(*number)
                            .is_some_and(|q| q.config.shared_receive == Some(shared) && !q.inbound.is_empty())
                    });
                    stalled.extend(users);
                }
                queue
            }
        };
        if queue.posted.len() >= queue.depth as usize {
            return Err(PostError::QueueFull);
        }
        queue.posted.push_back(PostedReceive { id, buffer });
        for number in stalled {
            // The sender tries again after a time of its own.
            let when = state.now() + 200 + state.chance.below(2_000);
            state.put(when, Event::Serve { queue_pair: number });
        }
        Ok(())
    }

    fn poll(
        &mut self,
        queue: CompletionQueueId,
        into: &mut Vec<Completion<SimMemory>>,
        limit: usize,
    ) -> usize {
        let mut state = self.pass(|_| 0);
        let State { network, settings, .. } = &mut *state;
        let Some(domain) = network.domains.get_mut(self.id) else { return 0 };
        let Some(entries) = domain.completion_queues.get_mut(queue.0 as usize).map(|q| &mut q.entries) else {
            return 0;
        };
        let count = limit.min(entries.len());
        let prices = &settings.prices;
        let price = if count == 0 { prices.poll } else { prices.poll_found * count as u64 };
        for entry in entries.drain(..count) {
            let Entry { completion, retires, held } = entry;
            let number = completion.queue_pair.0;
            if let Some(queue_pair) = network.queue_pairs.get_mut(number) {
                queue_pair.occupied -= retires;
            }
            drop(held);
            into.push(completion);
        }
        state.charge(price);
        count
    }

    fn arm(&mut self, mode: WaitMode) -> Armed {
        let mut state = self.pass(|prices| prices.look);
        let domain = state.domain(self.id);
        let token = domain.map_or(0, |d| if mode == WaitMode::Busy { d.arrivals } else { d.event_arrivals });
        Armed { mode, token }
    }

    fn disarm(&mut self, _armed: Armed) {}

    fn wait(&mut self, armed: Armed, until: Nanos) -> Wake {
        wait(&self.shared, self.id, armed, until)
    }

    fn will_touch(&mut self, memory: &[(*const u8, usize)]) {
        // Not `lock`: clients may be dropped when the run is over.
        if let Some(mut state) = self.shared.try_lock()
            && let Some(domain) = state.domain(self.id)
        {
            domain.touched = Touched::of(memory);
        }
    }

    fn waker(&self) -> SimWaker {
        SimWaker { shared: Arc::clone(&self.shared), domain: self.id }
    }

    fn watch(&mut self, region: &Region<SimMemory>) {
        region.memory().watch(self.id, NAMELESS);
    }

    fn watch_as(&mut self, region: &Region<SimMemory>, name: u32) {
        region.memory().watch(self.id, name);
        if let Some(domain) = self.shared.lock().domain(self.id) {
            domain.may_be_active(name);
        }
    }

    fn take_activity(&mut self, into: &mut Vec<u32>) -> bool {
        let mut state = self.shared.lock();
        let Some(domain) = state.domain(self.id) else { return true };
        let looks = domain.is_active.len() as u64;
        for name in domain.active.drain(..) {
            domain.is_active[name as usize] = false;
            into.push(name);
        }
        // What the hint saves us, real memory would have cost: a look at each of them.
        let price = state.settings.prices.work[Work::PollMiss as usize];
        state.charge(price * looks);
        true
    }

    fn unwatch(&mut self, region: &Region<SimMemory>) {
        region.memory().unwatch(self.id);
    }
}

fn over() -> CreateError {
    CreateError::State("the run is over")
}
