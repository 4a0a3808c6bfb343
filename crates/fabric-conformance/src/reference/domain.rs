//! The data path of the reference fabric.

use super::state::{
    Destination, DomainId, DomainState, Pair, PairState, Queue, ReceiveQueue, Sent, What, World,
};
use super::{LinkEnd, ReferenceLink};
use dunlin_fabric::memory::HeapMemory;
use dunlin_fabric::{
    AddressHandleId, AnyWaker, Armed, Buffer, Capabilities, Completion, CompletionQueueId, CompletionStatus,
    CreateError, Data, Endpoint, Host, Nanos, Operation, PostError, QueuePairConfig, QueuePairId,
    QueuePairState, RealHost, ReceiveTarget, Region, SharedReceiveQueueId, ThreadDomain, Transport, WaitMode,
    Wake, Waker, WorkId, WorkRequest,
};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// A domain of the reference fabric.
#[derive(Debug)]
pub struct ReferenceDomain {
    world: Arc<World>,
    id: DomainId,
    capabilities: Capabilities,
}

/// Ends a wait of a [`ReferenceDomain`].
#[derive(Clone, Debug)]
pub struct ReferenceWaker {
    world: Arc<World>,
    id: DomainId,
}

impl Waker for ReferenceWaker {
    fn wait(&self, armed: Armed, until: Nanos) -> Wake {
        if armed.mode == WaitMode::Busy {
            std::thread::yield_now();
            return if RealHost.now() < until { Wake::Arrived } else { Wake::TimedOut };
        }
        let until = until.min(RealHost.now() + 10_000_000);
        loop {
            let state = self.world.lock();
            if state.domains[&self.id].events != armed.token {
                return Wake::Arrived;
            }
            let seen = state.version;
            drop(state);
            if !self.world.wait(seen, until) {
                return Wake::TimedOut;
            }
        }
    }

    fn wake(&self) {
        let mut state = self.world.lock();
        state.version += 1;
        if let Some(domain) = state.domains.get_mut(&self.id) {
            domain.events += 1;
        }
        self.world.changed.notify_all();
    }
}

impl Drop for ReferenceDomain {
    fn drop(&mut self) {
        let pairs: Vec<_> = self.world.lock().domains[&self.id].pairs.keys().copied().collect();
        for pair in pairs {
            let _ = self.destroy_queue_pair(pair);
        }
        self.world.lock().domains.remove(&self.id);
    }
}

impl ReferenceDomain {
    pub(super) fn new(world: &Arc<World>, capabilities: &Capabilities) -> Self {
        let mut state = world.lock();
        state.next += 1;
        let id = DomainId(state.next);
        state.domains.insert(id, DomainState::default());
        drop(state);
        ReferenceDomain { world: Arc::clone(world), id, capabilities: capabilities.clone() }
    }

    /// Decodes an endpoint; only the format of [`endpoint`](ThreadDomain::endpoint) is accepted.
    fn remote(&self, endpoint: &Endpoint) -> Result<Pair, CreateError> {
        let bad = CreateError::Endpoint("not one of this fabric");
        let Some((domain, pair)) = endpoint.0.split_first_chunk::<8>() else { return Err(bad) };
        let Ok(pair) = <[u8; 4]>::try_from(pair) else { return Err(bad) };
        Ok((DomainId(u64::from_le_bytes(*domain)), QueuePairId(u32::from_le_bytes(pair))))
    }

    fn check(
        &self,
        config: &QueuePairConfig,
        request: &WorkRequest<'_, HeapMemory>,
    ) -> Result<(), PostError> {
        use PostError::Transport as Wrong;
        let capabilities = &self.capabilities;
        let transport = config.transport;
        let datagram = transport == Transport::UnreliableDatagram;
        let reliable = transport == Transport::ReliableConnection;
        let limit = if datagram { capabilities.max_datagram } else { capabilities.max_message };
        let data = match &request.operation {
            Operation::Send { data, to, .. } => {
                if to.is_some() != datagram {
                    return Err(Wrong("an address handle is for datagrams, and they need one"));
                }
                Some(data)
            }
            Operation::Write { .. } if datagram => return Err(Wrong("WRITE on UD")),
            Operation::Write { data, .. } => Some(data),
            _ if !reliable => return Err(Wrong("READs and atomics need RC")),
            Operation::Read { from, .. } | Operation::ReadInto { from, .. } if from.length > limit => {
                return Err(PostError::Length { length: u64::from(from.length), limit });
            }
            _ => None,
        };
        let Some(data) = data else { return Ok(()) };
        let length = data.length();
        if let Data::Inline(_) = data
            && length > u64::from(capabilities.max_inline)
        {
            return Err(PostError::Inline { length: length as usize, limit: capabilities.max_inline });
        }
        if length > u64::from(limit) {
            return Err(PostError::Length { length, limit });
        }
        Ok(())
    }
}

fn copied(data: &Data<'_, HeapMemory>) -> Vec<u8> {
    match data {
        Data::Inline(parts) => parts.concat(),
        Data::Buffer(buffer) => buffer.to_vec(),
        Data::Gather(gather) => gather.iter().flat_map(|buffer| buffer.iter().copied()).collect(),
        Data::Region(range) => {
            let mut bytes = vec![0; range.length()];
            range.copy_out(0, &mut bytes);
            bytes
        }
    }
}

impl ThreadDomain for ReferenceDomain {
    type Memory = HeapMemory;
    type Link = ReferenceLink;
    type Waker = ReferenceWaker;

    fn create_completion_queue(&mut self, _: u32, events: bool) -> Result<CompletionQueueId, CreateError> {
        let mut state = self.world.lock();
        let Some(domain) = state.domains.get_mut(&self.id) else { return Err(CreateError::NoSuch("domain")) };
        domain.next += 1;
        let id = CompletionQueueId(domain.next);
        domain.queues.insert(id, Queue { events, ready: VecDeque::new() });
        Ok(id)
    }

    fn create_shared_receive_queue(&mut self, depth: u32) -> Result<SharedReceiveQueueId, CreateError> {
        let mut state = self.world.lock();
        let Some(domain) = state.domains.get_mut(&self.id) else { return Err(CreateError::NoSuch("domain")) };
        domain.next += 1;
        let id = SharedReceiveQueueId(domain.next);
        domain.shared.insert(id, ReceiveQueue { depth, posted: VecDeque::new() });
        Ok(id)
    }

    fn create_queue_pair(&mut self, config: &QueuePairConfig) -> Result<QueuePairId, CreateError> {
        let limit = self.capabilities.max_queue_depth;
        for (what, depth) in [("max_send", config.max_send), ("max_receive", config.max_receive)] {
            if depth > limit {
                return Err(CreateError::Limit { what, value: u64::from(depth), limit: u64::from(limit) });
            }
        }
        let mut state = self.world.lock();
        let Some(domain) = state.domains.get_mut(&self.id) else { return Err(CreateError::NoSuch("domain")) };
        for queue in [config.send_completions, config.receive_completions] {
            if !domain.queues.contains_key(&queue) {
                return Err(CreateError::NoSuch("completion queue"));
            }
        }
        if config.shared_receive.is_some_and(|shared| !domain.shared.contains_key(&shared)) {
            return Err(CreateError::NoSuch("shared receive queue"));
        }
        domain.next += 1;
        let id = QueuePairId(domain.next);
        let datagram = config.transport == Transport::UnreliableDatagram;
        let pair = PairState {
            config: *config,
            state: if datagram { QueuePairState::Ready } else { QueuePairState::Initialised },
            link: None,
            remote: None,
            sends: VecDeque::new(),
            posted: 0,
            freed: 0,
            receives: ReceiveQueue { depth: config.max_receive, posted: VecDeque::new() },
            gives_up: None,
            handles: BTreeMap::new(),
        };
        domain.pairs.insert(id, pair);
        Ok(id)
    }

    fn endpoint(&mut self, queue_pair: QueuePairId, _: &ReferenceLink) -> Result<Endpoint, CreateError> {
        let mut bytes = self.id.0.to_le_bytes().to_vec();
        bytes.extend(queue_pair.0.to_le_bytes());
        match self.world.lock().pair((self.id, queue_pair)) {
            Some(_) => Ok(Endpoint(bytes)),
            None => Err(CreateError::NoSuch("queue pair")),
        }
    }

    fn connect(
        &mut self,
        queue_pair: QueuePairId,
        link: &ReferenceLink,
        remote: &Endpoint,
    ) -> Result<(), CreateError> {
        let remote = self.remote(remote)?;
        let LinkEnd { link, side, alive, .. } = &*link.0;
        let mut state = self.world.lock();
        let Some(pair) = state.pair((self.id, queue_pair)) else {
            return Err(CreateError::NoSuch("queue pair"));
        };
        if pair.state != QueuePairState::Initialised {
            return Err(CreateError::State("the queue pair is connected already, or in error"));
        }
        (pair.link, pair.remote) = (Some((*link, *side)), Some(remote));
        pair.state = QueuePairState::Ready;
        let gone = !alive.load(std::sync::atomic::Ordering::Acquire);
        let gone = gone || state.pair(remote).is_none_or(|remote| remote.state == QueuePairState::Error);
        if gone {
            state.break_pair((self.id, queue_pair), None);
        }
        state.run(remote);
        self.world.changed.notify_all();
        Ok(())
    }

    fn create_address_handle(
        &mut self,
        queue_pair: QueuePairId,
        _: &ReferenceLink,
        remote: &Endpoint,
    ) -> Result<AddressHandleId, CreateError> {
        let remote = self.remote(remote)?;
        let mut state = self.world.lock();
        let Some(domain) = state.domains.get_mut(&self.id) else { return Err(CreateError::NoSuch("domain")) };
        domain.next += 1;
        let id = domain.next;
        let Some(pair) = domain.pairs.get_mut(&queue_pair) else {
            return Err(CreateError::NoSuch("queue pair"));
        };
        if pair.config.transport != Transport::UnreliableDatagram {
            return Err(CreateError::State("only datagram queue pairs use address handles"));
        }
        pair.handles.insert(id, remote);
        Ok(AddressHandleId(id))
    }

    fn destroy_address_handle(&mut self, handle: AddressHandleId) -> Result<(), CreateError> {
        let mut state = self.world.lock();
        let Some(domain) = state.domains.get_mut(&self.id) else { return Err(CreateError::NoSuch("domain")) };
        let removed = domain.pairs.values_mut().find_map(|pair| pair.handles.remove(&handle.0));
        removed.map(drop).ok_or(CreateError::NoSuch("address handle"))
    }

    fn destroy_queue_pair(&mut self, queue_pair: QueuePairId) -> Result<(), CreateError> {
        let mut state = self.world.lock();
        let removed = state.domains.get_mut(&self.id).and_then(|domain| domain.pairs.remove(&queue_pair));
        let Some(pair) = removed else { return Err(CreateError::NoSuch("queue pair")) };
        if let Some(domain) = state.domains.get_mut(&self.id) {
            for queue in domain.queues.values_mut() {
                queue.ready.retain(|(completion, _)| completion.queue_pair != queue_pair);
            }
        }
        if let Some(remote) = pair.remote {
            state.break_pair(remote, Some(CompletionStatus::TransportRetry));
        }
        self.world.changed.notify_all();
        Ok(())
    }

    fn state(&self, queue_pair: QueuePairId) -> Option<QueuePairState> {
        self.world.lock().pair((self.id, queue_pair)).map(|pair| pair.state)
    }

    fn send_room(&self, queue_pair: QueuePairId) -> u32 {
        let mut state = self.world.lock();
        state
            .pair((self.id, queue_pair))
            .map_or(0, |pair| pair.config.max_send - (pair.posted - pair.freed) as u32)
    }

    fn post(
        &mut self,
        queue_pair: QueuePairId,
        request: WorkRequest<'_, HeapMemory>,
    ) -> Result<(), PostError> {
        let mut state = self.world.lock();
        let Some(pair) = state.pair((self.id, queue_pair)) else {
            return Err(PostError::NoSuch("queue pair"));
        };
        match pair.state {
            QueuePairState::Error => return Err(PostError::QueuePairError),
            QueuePairState::Initialised => return Err(PostError::NotConnected),
            QueuePairState::Ready => {}
        }
        self.check(&pair.config, &request)?;
        if pair.posted - pair.freed >= u64::from(pair.config.max_send) {
            return Err(PostError::QueueFull);
        }
        let what = match request.operation {
            Operation::Send { data, immediate, to } => {
                if to.is_some_and(|to| !pair.handles.contains_key(&to.0)) {
                    return Err(PostError::NoSuch("address handle"));
                }
                What::Send { data: copied(&data), immediate, to: to.map(|to| to.0) }
            }
            Operation::Write { data, key, offset, immediate } => {
                What::Write { data: copied(&data), key, offset, immediate }
            }
            Operation::Read { from, into } => What::Read {
                key: from.key,
                offset: from.offset,
                length: from.length,
                into: Destination::Buffer(into),
            },
            Operation::ReadInto { from, into } => What::Read {
                key: from.key,
                offset: from.offset,
                length: from.length,
                into: Destination::Region(into),
            },
            Operation::FetchAdd { key, offset, add } => What::FetchAdd { key, offset, add },
            Operation::CompareSwap { key, offset, expected, swap } => {
                What::CompareSwap { key, offset, expected, swap }
            }
        };
        pair.posted += 1;
        let sent = Sent { id: request.id, signaled: request.signaled, sequence: pair.posted, what };
        pair.sends.push_back(sent);
        state.run((self.id, queue_pair));
        self.world.changed.notify_all();
        Ok(())
    }

    fn post_receive(
        &mut self,
        target: ReceiveTarget,
        id: WorkId,
        buffer: Option<Buffer<HeapMemory>>,
    ) -> Result<(), PostError> {
        let mut state = self.world.lock();
        let Some(domain) = state.domains.get_mut(&self.id) else { return Err(PostError::NoSuch("domain")) };
        let queue = match target {
            ReceiveTarget::QueuePair(pair) => {
                let Some(pair) = domain.pairs.get_mut(&pair) else {
                    return Err(PostError::NoSuch("queue pair"));
                };
                if pair.state == QueuePairState::Error {
                    return Err(PostError::QueuePairError);
                }
                Some(&mut pair.receives)
            }
            ReceiveTarget::Shared(shared) => domain.shared.get_mut(&shared),
        };
        let Some(queue) = queue else { return Err(PostError::NoSuch("shared receive queue")) };
        if queue.posted.len() >= queue.depth as usize {
            return Err(PostError::QueueFull);
        }
        queue.posted.push_back((id, buffer));
        // Senders that wait for this RECV continue.
        let remotes: Vec<Pair> = domain.pairs.values().filter_map(|pair| pair.remote).collect();
        for remote in remotes {
            state.run(remote);
        }
        self.world.changed.notify_all();
        Ok(())
    }

    fn poll(
        &mut self,
        queue: CompletionQueueId,
        into: &mut Vec<Completion<HeapMemory>>,
        limit: usize,
    ) -> usize {
        let mut state = self.world.lock();
        let Some(domain) = state.domains.get_mut(&self.id) else { return 0 };
        // Senders that wait for a RECV check their time limit.
        let waiting: Vec<_> =
            domain.pairs.iter().filter(|(_, pair)| pair.gives_up.is_some()).map(|(id, _)| *id).collect();
        for id in waiting {
            state.run((self.id, id));
        }
        let Some(domain) = state.domains.get_mut(&self.id) else { return 0 };
        let Some(queue) = domain.queues.get_mut(&queue) else { return 0 };
        let mut given = 0;
        while given < limit
            && let Some((completion, frees)) = queue.ready.pop_front()
        {
            if let (Some(frees), Some(pair)) = (frees, domain.pairs.get_mut(&completion.queue_pair)) {
                pair.freed = pair.freed.max(frees);
            }
            into.push(completion);
            given += 1;
        }
        self.world.changed.notify_all();
        given
    }

    fn arm(&mut self, mode: WaitMode) -> Armed {
        Armed { mode, token: self.world.lock().domains[&self.id].events }
    }

    fn disarm(&mut self, _: Armed) {}

    fn wait(&mut self, armed: Armed, until: Nanos) -> Wake {
        self.waker().wait(armed, until)
    }

    fn arm_other(&mut self, other: &AnyWaker) -> Nanos {
        let mut state = self.world.lock();
        if let Some(domain) = state.domains.get_mut(&self.id) {
            domain.other.arm(other);
            if domain.queues.values().any(|queue| queue.events && !queue.ready.is_empty()) {
                domain.wake_other();
            }
        }
        Nanos::MAX
    }

    fn disarm_other(&mut self) {
        if let Some(domain) = self.world.lock().domains.get_mut(&self.id) {
            domain.other.disarm();
        }
    }

    fn waker(&self) -> ReferenceWaker {
        ReferenceWaker { world: Arc::clone(&self.world), id: self.id }
    }

    fn watch(&mut self, _: &Region<HeapMemory>) {}

    fn unwatch(&mut self, _: &Region<HeapMemory>) {}
}
