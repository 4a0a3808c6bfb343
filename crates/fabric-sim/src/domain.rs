//! The face of a domain: checks what verbs checks when something is posted, and waits.

use crate::link::SimLink;
use crate::memory::Target;
use crate::network::{NetworkEvent, Watcher};
use crate::queues::{
    Action, AddressHandle, CompletionQueue, DomainState, InFlight, LinkSide, Outcome, PostedReceive,
    QueuePair, QueuePairRef, ReceiveQueue,
};
use crate::scheduler::{Reason, Shared, State};
use dunlin_fabric::memory::HeapMemory;
use dunlin_fabric::{
    AddressHandleId, Armed, Buffer, Completion, CompletionQueueId, CompletionStatus, CreateError, Data,
    Endpoint, Gather, Nanos, Opcode, Operation, PostError, QueuePairConfig, QueuePairId, QueuePairState,
    ReceiveTarget, Region, SharedReceiveQueueId, ThreadDomain, Transport, WaitMode, Wake, Waker, WorkId,
    WorkRequest,
};
use std::collections::VecDeque;
use std::sync::Arc;

/// What it costs to post, to poll, and to look whether a wait is needed, in nanoseconds.
const POST: Nanos = 30;
const POLL: Nanos = 10;
const LOOK: Nanos = 5;
/// What it costs to make something, or to wake another thread.
const SYSTEM_CALL: Nanos = 1_000;

/// A domain of a sim fabric: belongs to one task at a time.
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

impl Waker for SimWaker {
    fn wait(&self, armed: Armed, until: Nanos) -> Wake {
        let mut state = self.shared.enter(LOOK);
        let event = armed.mode == WaitMode::Event;
        let Some(domain) = state.network.domains.get(&self.domain) else { return Wake::TimedOut };
        if armed.token != if event { domain.event_arrivals } else { domain.arrivals } {
            return Wake::Arrived;
        }
        if state.stopping() || state.now() >= until {
            return Wake::TimedOut;
        }
        let waiter = state.stay(Reason::Arrivals { domain: self.domain, event });
        if let Some(domain) = state.network.domains.get_mut(&self.domain) {
            domain.waiting = Some((waiter, armed.mode));
        }
        let (mut state, wake) = self.shared.park(state, waiter, until, true);
        if let Some(domain) = state.network.domains.get_mut(&self.domain) {
            domain.waiting = None;
        }
        wake
    }

    fn wake(&self) {
        self.shared.pass(SYSTEM_CALL).notify(self.domain, true);
    }
}

impl SimDomain {
    pub(crate) fn new(shared: &Arc<Shared>) -> Self {
        let mut state = shared.pass(SYSTEM_CALL);
        let id = state.network.next_domain;
        state.network.next_domain += 1;
        state.network.domains.insert(id, DomainState::default());
        SimDomain { shared: Arc::clone(shared), id }
    }

    fn at(&self, queue_pair: QueuePairId) -> QueuePairRef {
        QueuePairRef { domain: self.id, number: queue_pair.0 }
    }

    /// Reads the peer's endpoint, which must have been made on the other side of this link.
    fn resolve(
        &self,
        state: &mut State,
        link: &SimLink,
        remote: &Endpoint,
    ) -> Result<QueuePairRef, CreateError> {
        if !link.is_of(&self.shared) {
            return Err(CreateError::State("the link belongs to another fabric"));
        }
        let wrong = CreateError::Endpoint;
        let bytes: &[u8; 16] =
            remote.0.as_slice().try_into().map_err(|_| wrong("it is not 16 bytes long"))?;
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let LinkSide { link, side } = link.at();
        if word(0) != link || word(4) != 1 - side as u32 {
            return Err(wrong("it was not made at the other end of this link"));
        }
        let at = QueuePairRef { domain: word(8), number: word(12) };
        match state.queue_pair(at) {
            Some(_) => Ok(at),
            None => Err(wrong("its queue pair does not exist any more")),
        }
    }

    fn limit(what: &'static str, value: u64, limit: u64) -> Result<(), CreateError> {
        if value > limit { Err(CreateError::Limit { what, value, limit }) } else { Ok(()) }
    }
}

impl Drop for SimDomain {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        let numbers: Vec<u32> = match state.network.domains.get(&self.id) {
            Some(domain) => domain.queue_pairs.keys().copied().collect(),
            None => return,
        };
        for number in numbers {
            state.destroy(QueuePairRef { domain: self.id, number });
        }
        let id = self.id;
        state.network.watchers.retain(|_, watchers| {
            watchers.retain(|w| w.domain != id);
            !watchers.is_empty()
        });
        let gone = state.network.domains.remove(&id);
        drop(state);
        drop(gone);
    }
}

/// The bytes as the RNIC would gather them, and the buffers, to be held until the completion. They are the queue
/// pair's until then, so their bytes are the same now as when they leave.
fn gather(data: Data<'_, HeapMemory>) -> (Vec<u8>, Gather<HeapMemory>) {
    match data {
        Data::Inline(parts) => (parts.concat(), Gather::default()),
        Data::Buffer(buffer) => {
            let bytes = buffer.to_vec();
            let mut one = Gather::default();
            let room = one.push(buffer).is_ok();
            debug_assert!(room, "an empty gather list takes a buffer");
            (bytes, one)
        }
        Data::Gather(list) => (list.iter().flat_map(|part| part.iter().copied()).collect(), list),
    }
}

impl ThreadDomain for SimDomain {
    type Memory = HeapMemory;
    type Link = SimLink;
    type Waker = SimWaker;

    fn create_completion_queue(
        &mut self,
        depth: u32,
        events: bool,
    ) -> Result<CompletionQueueId, CreateError> {
        let mut state = self.shared.pass(SYSTEM_CALL);
        let capabilities = &state.settings.capabilities;
        if events && !capabilities.events {
            return Err(CreateError::Unsupported("completion events"));
        }
        let Some(domain) = state.network.domains.get_mut(&self.id) else { return Err(over()) };
        domain.completion_queues.push(CompletionQueue { depth, events, entries: VecDeque::new() });
        Ok(CompletionQueueId(domain.completion_queues.len() as u32 - 1))
    }

    fn create_shared_receive_queue(&mut self, depth: u32) -> Result<SharedReceiveQueueId, CreateError> {
        let mut state = self.shared.pass(SYSTEM_CALL);
        let capabilities = &state.settings.capabilities;
        if !capabilities.shared_receive_queue {
            return Err(CreateError::Unsupported("shared receive queues"));
        }
        Self::limit(
            "the depth of a shared receive queue",
            depth.into(),
            capabilities.max_queue_depth.into(),
        )?;
        let Some(domain) = state.network.domains.get_mut(&self.id) else { return Err(over()) };
        domain.shared_receives.push(ReceiveQueue { depth, posted: VecDeque::new() });
        Ok(SharedReceiveQueueId(domain.shared_receives.len() as u32 - 1))
    }

    fn create_queue_pair(&mut self, config: &QueuePairConfig) -> Result<QueuePairId, CreateError> {
        let mut state = self.shared.pass(SYSTEM_CALL);
        let capabilities = &state.settings.capabilities;
        if !capabilities.transports.contains(config.transport) {
            return Err(CreateError::Unsupported("such transport"));
        }
        let depth = u64::from(capabilities.max_queue_depth);
        Self::limit("the depth of the send queue", config.max_send.into(), depth)?;
        Self::limit("the depth of the receive queue", config.max_receive.into(), depth)?;
        let most = u64::from(capabilities.max_queue_pairs);
        let Some(domain) = state.network.domains.get_mut(&self.id) else { return Err(over()) };
        Self::limit("the number of queue pairs", domain.queue_pairs.len() as u64 + 1, most)?;
        let queues = domain.completion_queues.len() as u32;
        if config.send_completions.0 >= queues || config.receive_completions.0 >= queues {
            return Err(CreateError::NoSuch("completion queue"));
        }
        if config.shared_receive.is_some_and(|s| s.0 as usize >= domain.shared_receives.len()) {
            return Err(CreateError::NoSuch("shared receive queue"));
        }
        let ready = config.transport == Transport::UnreliableDatagram;
        let start = if ready { QueuePairState::Ready } else { QueuePairState::Initialised };
        let number = domain.next_queue_pair;
        domain.next_queue_pair += 1;
        domain.queue_pairs.insert(number, QueuePair::new(*config, start));
        Ok(QueuePairId(number))
    }

    fn endpoint(&mut self, queue_pair: QueuePairId, link: &SimLink) -> Result<Endpoint, CreateError> {
        let mut state = self.shared.pass(SYSTEM_CALL);
        if !link.is_of(&self.shared) {
            return Err(CreateError::State("the link belongs to another fabric"));
        }
        state.queue_pair(self.at(queue_pair)).ok_or(CreateError::NoSuch("queue pair"))?;
        let LinkSide { link, side } = link.at();
        let words = [link, side as u32, self.id, queue_pair.0];
        Ok(Endpoint(words.iter().flat_map(|word| word.to_le_bytes()).collect()))
    }

    fn connect(
        &mut self,
        queue_pair: QueuePairId,
        link: &SimLink,
        remote: &Endpoint,
    ) -> Result<(), CreateError> {
        let mut state = self.shared.pass(SYSTEM_CALL);
        let at = self.at(queue_pair);
        let ours = state.queue_pair(at).ok_or(CreateError::NoSuch("queue pair"))?;
        let transport = ours.config.transport;
        if transport == Transport::UnreliableDatagram {
            return Err(CreateError::State("a datagram queue pair is not connected: make address handles"));
        }
        if ours.state != QueuePairState::Initialised {
            return Err(CreateError::State("the queue pair was connected before"));
        }
        let remote = self.resolve(&mut state, link, remote)?;
        if state.queue_pair(remote).is_none_or(|q| q.config.transport != transport) {
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
        state.schedule(now, NetworkEvent::Serve { at });
        Ok(())
    }

    fn create_address_handle(
        &mut self,
        queue_pair: QueuePairId,
        link: &SimLink,
        remote: &Endpoint,
    ) -> Result<AddressHandleId, CreateError> {
        let mut state = self.shared.pass(SYSTEM_CALL);
        let to = self.resolve(&mut state, link, remote)?;
        for end in [self.at(queue_pair), to] {
            let found = state.queue_pair(end).ok_or(CreateError::NoSuch("queue pair"))?;
            if found.config.transport != Transport::UnreliableDatagram {
                return Err(CreateError::State("address handles are for datagram queue pairs"));
            }
        }
        let Some(domain) = state.network.domains.get_mut(&self.id) else { return Err(over()) };
        domain.address_handles.push(AddressHandle { from: queue_pair, to });
        Ok(AddressHandleId(domain.address_handles.len() as u32 - 1))
    }

    fn destroy_queue_pair(&mut self, queue_pair: QueuePairId) -> Result<(), CreateError> {
        let mut state = self.shared.pass(SYSTEM_CALL);
        if state.destroy(self.at(queue_pair)) { Ok(()) } else { Err(CreateError::NoSuch("queue pair")) }
    }

    fn state(&self, queue_pair: QueuePairId) -> Option<QueuePairState> {
        self.shared.pass(LOOK).queue_pair(self.at(queue_pair)).map(|q| q.state)
    }

    fn send_room(&self, queue_pair: QueuePairId) -> u32 {
        let mut state = self.shared.pass(LOOK);
        state.queue_pair(self.at(queue_pair)).map_or(0, |q| q.config.max_send - q.occupied)
    }

    fn post(
        &mut self,
        queue_pair: QueuePairId,
        request: WorkRequest<'_, HeapMemory>,
    ) -> Result<(), PostError> {
        let mut state = self.shared.pass(POST);
        let at = self.at(queue_pair);
        let sender = state.queue_pair(at).ok_or(PostError::NoSuch("queue pair"))?;
        match sender.state {
            QueuePairState::Initialised => return Err(PostError::NotConnected),
            QueuePairState::Error => return Err(PostError::QueuePairError),
            QueuePairState::Ready => {}
        }
        let (transport, remote) = (sender.config.transport, sender.remote);
        let full = sender.occupied >= sender.config.max_send;
        let to = state.admit(self.id, queue_pair, transport, remote, &request.operation)?;
        if full {
            return Err(PostError::QueueFull);
        }
        let mut into = None;
        let mut held = Gather::default();
        let mut local_error = false;
        let (opcode, action) = match request.operation {
            Operation::Send { data, immediate, .. } => {
                let (bytes, parts) = gather(data);
                held = parts;
                (Opcode::Send, Action::Send { bytes, immediate })
            }
            Operation::Write { data, key, offset, immediate } => {
                let (bytes, parts) = gather(data);
                held = parts;
                (Opcode::Write, Action::Write { bytes, key, offset, immediate })
            }
            Operation::Read { from, into: buffer } => {
                local_error = buffer.len() < from.length as usize;
                into = Some(buffer);
                (Opcode::Read, Action::Read { from })
            }
            Operation::FetchAdd { key, offset, add } => {
                (Opcode::FetchAdd, Action::FetchAdd { key, offset, add })
            }
            Operation::CompareSwap { key, offset, expected, swap } => {
                (Opcode::CompareSwap, Action::CompareSwap { key, offset, expected, swap })
            }
        };
        // Who READs or changes atomically wants to know the value.
        let signaled = request.signaled || !matches!(opcode, Opcode::Send | Opcode::Write);
        let now = state.now();
        let Some(sender) = state.queue_pair(at) else { return Err(PostError::NoSuch("queue pair")) };
        let serial = sender.next_serial;
        sender.next_serial += 1;
        sender.occupied += 1;
        sender.sends.push_back(InFlight { serial, id: request.id, opcode, signaled, held, into });
        if local_error {
            sender.stopped = true;
            state.done_at(at, serial, now + 100, Outcome::of(CompletionStatus::LocalProtection));
        } else if !sender.stopped {
            state.transmit(at, to, serial, action);
        }
        Ok(())
    }

    fn post_receive(
        &mut self,
        target: ReceiveTarget,
        id: WorkId,
        buffer: Option<Buffer<HeapMemory>>,
    ) -> Result<(), PostError> {
        let mut state = self.shared.pass(POST);
        let Some(domain) = state.network.domains.get_mut(&self.id) else {
            return Err(PostError::NoSuch("domain: the run is over"));
        };
        let (queue, stalled) = match target {
            ReceiveTarget::QueuePair(number) => {
                let found = domain.queue_pairs.get_mut(&number.0).ok_or(PostError::NoSuch("queue pair"))?;
                if found.state == QueuePairState::Error {
                    return Err(PostError::QueuePairError);
                }
                let stalled = if found.inbound.is_empty() { Vec::new() } else { vec![number.0] };
                (&mut found.receives, stalled)
            }
            ReceiveTarget::Shared(shared) => {
                let users = domain.queue_pairs.iter();
                let stalled = users
                    .filter(|(_, q)| q.config.shared_receive == Some(shared) && !q.inbound.is_empty())
                    .map(|(number, _)| *number)
                    .collect();
                let found = domain.shared_receives.get_mut(shared.0 as usize);
                (found.ok_or(PostError::NoSuch("shared receive queue"))?, stalled)
            }
        };
        if queue.posted.len() >= queue.depth as usize {
            return Err(PostError::QueueFull);
        }
        queue.posted.push_back(PostedReceive { id, buffer });
        for number in stalled {
            // The sender tries again after a time of its own.
            let when = state.now() + 200 + state.chance.below(2_000);
            state.schedule(when, NetworkEvent::Serve { at: QueuePairRef { domain: self.id, number } });
        }
        Ok(())
    }

    fn poll(
        &mut self,
        queue: CompletionQueueId,
        into: &mut Vec<Completion<HeapMemory>>,
        limit: usize,
    ) -> usize {
        let mut state = self.shared.pass(POLL);
        let mut freed = Vec::new();
        let Some(domain) = state.network.domains.get_mut(&self.id) else { return 0 };
        let Some(entries) = domain.completion_queues.get_mut(queue.0 as usize).map(|q| &mut q.entries) else {
            return 0;
        };
        let count = limit.min(entries.len());
        for entry in entries.drain(..count) {
            if let Some(queue_pair) = domain.queue_pairs.get_mut(&entry.completion.queue_pair.0) {
                queue_pair.occupied -= entry.retires;
            }
            freed.push(entry.held);
            into.push(entry.completion);
        }
        count
    }

    fn arm(&mut self, mode: WaitMode) -> Armed {
        let state = self.shared.pass(LOOK);
        let domain = state.network.domains.get(&self.id);
        let token = domain.map_or(0, |d| if mode == WaitMode::Busy { d.arrivals } else { d.event_arrivals });
        Armed { mode, token }
    }

    fn disarm(&mut self, _armed: Armed) {}

    fn wait(&mut self, armed: Armed, until: Nanos) -> Wake {
        self.waker().wait(armed, until)
    }

    fn waker(&self) -> SimWaker {
        SimWaker { shared: Arc::clone(&self.shared), domain: self.id }
    }

    fn watch(&mut self, region: &Region<HeapMemory>) {
        let memory = Target::new(region.memory());
        let mut state = self.shared.pass(LOOK);
        let watchers = state.network.watchers.entry(memory.address()).or_default();
        watchers.push(Watcher { domain: self.id, _memory: memory });
    }

    fn unwatch(&mut self, region: &Region<HeapMemory>) {
        let address = Target::new(region.memory()).address();
        let mut state = self.shared.pass(LOOK);
        if let Some(watchers) = state.network.watchers.get_mut(&address) {
            if let Some(place) = watchers.iter().position(|w| w.domain == self.id) {
                watchers.remove(place);
            }
            if watchers.is_empty() {
                state.network.watchers.remove(&address);
            }
        }
    }
}

fn over() -> CreateError {
    CreateError::State("the run is over")
}

impl State {
    /// Refuses what verbs refuses when it is posted; says where the request goes.
    fn admit(
        &self,
        domain: u32,
        queue_pair: QueuePairId,
        transport: Transport,
        remote: Option<QueuePairRef>,
        operation: &Operation<'_, HeapMemory>,
    ) -> Result<QueuePairRef, PostError> {
        let capabilities = &self.settings.capabilities;
        let datagram = transport == Transport::UnreliableDatagram;
        let (data, immediate) = match operation {
            Operation::Send { data, immediate, .. } => (Some(data), immediate),
            Operation::Write { data, immediate, .. } => {
                if datagram {
                    return Err(PostError::Transport("datagram queue pairs only SEND"));
                }
                (Some(data), immediate)
            }
            Operation::Read { .. } if transport != Transport::ReliableConnection => {
                return Err(PostError::Transport("READ needs RC"));
            }
            Operation::Read { from, .. } => {
                if from.length > capabilities.max_message {
                    return Err(PostError::Length {
                        length: from.length.into(),
                        limit: capabilities.max_message,
                    });
                }
                (None, &None)
            }
            Operation::FetchAdd { .. } | Operation::CompareSwap { .. } => {
                if transport != Transport::ReliableConnection || !capabilities.atomics {
                    return Err(PostError::Transport("atomics need RC, on a fabric that has them"));
                }
                (None, &None)
            }
        };
        if immediate.is_some() && !capabilities.immediate {
            return Err(PostError::Transport("this fabric has no immediate data"));
        }
        if let Some(data) = data {
            let (length, limit) =
                (data.length(), if datagram { capabilities.max_datagram } else { capabilities.max_message });
            if matches!(data, Data::Inline(_)) && length > u64::from(capabilities.max_inline) {
                return Err(PostError::Inline { length: length as usize, limit: capabilities.max_inline });
            }
            if length > u64::from(limit) {
                return Err(PostError::Length { length, limit });
            }
        }
        match operation {
            Operation::Send { to: Some(handle), .. } if datagram => {
                let handles = self.network.domains.get(&domain).map(|d| &d.address_handles);
                let found = handles.and_then(|h| h.get(handle.0 as usize)).filter(|h| h.from == queue_pair);
                found.map(|h| h.to).ok_or(PostError::NoSuch("address handle"))
            }
            Operation::Send { to: None, .. } if datagram => {
                Err(PostError::Transport("a datagram needs an address handle"))
            }
            Operation::Send { to: Some(_), .. } => {
                Err(PostError::Transport("an address handle is for datagram queue pairs only"))
            }
            _ => remote.ok_or(PostError::NotConnected),
        }
    }
}
