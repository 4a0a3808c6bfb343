//! The simulated [`ThreadDomain`]: verbs' post-time checks, polling and waiting.

use crate::events::Event;
use crate::link::SimLink;
use crate::links::LinkSide;
use crate::memory::{NAMELESS, SimMemory};
use crate::queues::{CompletionQueue, DomainState, Entry, PostedReceive, QueuePair, ReceiveQueue, Touched};
use crate::shared::{Guard, Shared};
use crate::state::State;
use crate::tasks::Reason;
use crate::timing::Place;
use dunlin_fabric::{
    AddressHandleId, AnyWaker, Armed, Buffer, Completion, CompletionQueueId, CreateError, Endpoint,
    InlineLine, InlineWrite, ListError, Nanos, PostError, QueuePairConfig, QueuePairId, QueuePairState,
    ReceiveTarget, Region, SharedReceiveQueueId, ThreadDomain, Transport, WaitMode, Wake, Waker, Work,
    WorkId, WorkRequest,
};
use dunlin_rnic_model::Linked;
use std::collections::VecDeque;
use std::sync::Arc;

/// A domain of a simulated fabric, used by one task at a time.
#[derive(Debug)]
pub struct SimDomain {
    shared: Arc<Shared>,
    id: u32,
    process: u32,
    woken_at: Nanos,
}

/// A waker that ends the wait of a [`SimDomain`].
#[derive(Clone, Debug)]
pub struct SimWaker {
    shared: Arc<Shared>,
    domain: u32,
}

/// Longest busy wait of a domain with a broken queue pair, in nanoseconds. A busy wait stands for repeated
/// polls, and one of these would find a queue pair that broke without a completion.
const LOOKS_OVER: Nanos = 10_000;

/// Waits until something arrives for a domain, or until `until`.
fn wait(shared: &Shared, id: u32, armed: Armed, until: Nanos) -> Wake {
    let mut state = shared.enter_at(|prices| prices.look);
    let event = armed.mode.sleeps();
    let only_events = armed.mode == WaitMode::Event;
    let arrived = if event { Wake::Arrived } else { Wake::Rested };
    let Some(domain) = state.domain(id) else { return Wake::TimedOut };
    if armed.token != if only_events { domain.event_arrivals } else { domain.arrivals } {
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
    let (mut state, wake) = shared.park_here(state, waiter, until, true);
    if let Some(domain) = state.domain(id) {
        domain.waiting = None;
    }
    if wake == Wake::Arrived { arrived } else { wake }
}

impl Waker for SimWaker {
    fn wait(&self, armed: Armed, until: Nanos) -> Wake {
        wait(&self.shared, self.domain, armed, until)
    }

    fn nudge(&self) {
        if let Some(mut state) = self.shared.try_lock() {
            let price = state.settings.prices.look;
            state.charge(price);
            state.notify(self.domain, false);
        }
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
    pub(crate) fn new(shared: &Arc<Shared>, process: u32, is_within: bool) -> Result<Self, CreateError> {
        let mut state = shared.system_call();
        if !state.processes[process as usize].alive || state.over() {
            return Err(over());
        }
        let id = state.network.domains.push(DomainState::of(process, is_within));
        let woken_at = state.clock_of(process);
        Ok(SimDomain { shared: Arc::clone(shared), id, process, woken_at })
    }

    /// Decodes the peer's endpoint, which must have been created on the other side of this link.
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

    /// Posts a line that the fast path cannot take as an ordinary WRITE, which returns the precise error.
    #[cold]
    #[inline(never)]
    fn refuse_line(&mut self, queue_pair: QueuePairId, line: InlineLine<'_>) -> Result<(), PostError> {
        let InlineLine { id, line, key, offset, .. } = line;
        let parts: &[&[u8]] = &[line];
        let write = InlineWrite { id, parts, key, offset, immediate: None, signaled: false, ahead: 0 };
        self.post_write(queue_pair, write)
    }
}

/// Returns a queue pair if it belongs to this domain.
#[inline]
fn own(state: &mut State, domain: u32, number: QueuePairId) -> Option<&mut QueuePair> {
    state.queue_pair(number.0).filter(|found| found.domain == domain)
}

impl Drop for SimDomain {
    fn drop(&mut self) {
        let Some(mut state) = self.shared.try_lock() else { return };
        state.destroy_domain(self.id);
    }
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
        let (process, is_within) = (domain.process, domain.is_within);
        let ready = config.transport == Transport::UnreliableDatagram;
        let start = if ready { QueuePairState::Ready } else { QueuePairState::Initialised };
        let number = state.network.queue_pairs.count();
        let machine = state.processes[process as usize].machine;
        let nics = state.settings.nics_of(machine);
        let nic = Place { machine, nic: number % u32::from(nics) };
        let place = if is_within { Place::within(machine) } else { nic };
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
        let mut state = self.pass(|prices| prices.post);
        let sender = state.sender(self.id, queue_pair)?;
        state.find_room(sender, 1)?;
        state.post_one(self.id, sender, request, Linked::Alone)
    }

    fn post_list(
        &mut self,
        queue_pair: QueuePairId,
        requests: &mut [Option<WorkRequest<'_, SimMemory>>],
    ) -> Result<(), ListError> {
        let length = requests.iter().flatten().count();
        let mut state = self.pass(|prices| prices.post * length as u64);
        let sender = state.sender(self.id, queue_pair)?;
        state.find_room(sender, length as u32)?;
        for (posted, request) in requests.iter_mut().filter_map(Option::take).enumerate() {
            let linked = match (length, posted) {
                (1, _) => Linked::Alone,
                (_, 0) => Linked::First,
                _ => Linked::Next,
            };
            let done = state.post_one(self.id, sender, request, linked);
            done.map_err(|error| ListError { posted, error })?;
        }
        Ok(())
    }

    fn post_line(&mut self, queue_pair: QueuePairId, line: InlineLine<'_>) -> Result<(), PostError> {
        let state = self.shared.lock();
        let Some((to, has_room)) = state.takes_line(self.id, queue_pair, line.line.len()) else {
            drop(state);
            return self.refuse_line(queue_pair, line);
        };
        let price = state.settings.prices.post;
        let mut state = self.shared.pass_on(state, price);
        if has_room { state.post_line(queue_pair, to, line) } else { Err(PostError::QueueFull) }
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
                // A packet can wait for a RECV only while none is posted.
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
            // The sender retries after its own timer.
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
        let token = domain.map_or(0, |d| if mode == WaitMode::Event { d.event_arrivals } else { d.arrivals });
        Armed { mode, token }
    }

    fn disarm(&mut self, _armed: Armed) {}

    fn wait(&mut self, armed: Armed, until: Nanos) -> Wake {
        let wake = wait(&self.shared, self.id, armed, until);
        self.woken_at = self.shared.lock().clock_of(self.process);
        wake
    }

    fn arm_other(&mut self, other: &AnyWaker) -> Nanos {
        let mut state = self.pass(|prices| prices.look);
        // A thread of another run, or of none, cannot wait in this one.
        let other = other.of::<SimWaker>().filter(|other| Arc::ptr_eq(&other.shared, &self.shared));
        let Some(other) = other.map(|other| other.domain) else { return 0 };
        let price = state.settings.prices.system_call;
        let Some(domain) = state.domain(self.id) else { return 0 };
        if domain.other == Some(other) {
            return Nanos::MAX;
        }
        // The completions that the caller has not taken are events, too.
        if domain.completion_queues.iter().any(|queue| queue.events && !queue.entries.is_empty()) {
            domain.other = None;
            state.notify(other, true);
        } else {
            domain.other = Some(other);
        }
        state.charge(price * 1000);
        Nanos::MAX
    }

    fn disarm_other(&mut self) {
        if let Some(domain) = self.pass(|prices| prices.look).domain(self.id) {
            domain.other = None;
        }
    }

    fn woken_at(&self) -> Option<Nanos> {
        Some(self.woken_at)
    }

    fn will_touch(&mut self, memory: &[(*const u8, usize)]) {
        // Not `lock`: clients may be dropped after the run has ended.
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
        // Charges the polls that the hint saves: on real memory each region would cost one.
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
