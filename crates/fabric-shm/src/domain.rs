//! A thread domain: the completion queues, queue pairs and shared receive queues of one thread, and where it waits.

use crate::completion_queue::CompletionQueue;
use crate::doorbell::{Attention, EVENTS, PeerDoorbell};
use crate::endpoint::Address;
use crate::fabric::{MAX_QUEUE_DEPTH, MAX_QUEUE_PAIRS};
use crate::frame::QueuePairName;
use crate::io::IoHandle;
use crate::link::{LinkShared, ShmLink};
use crate::memory::ShmMemory;
use crate::queue_pair::{Connection, QueuePair, Receive};
use dunlin_fabric::{
    Access, AddressHandleId, Armed, Buffer, Completion, CompletionQueueId, CreateError, Endpoint, Host,
    Nanos, PostError, QueuePairConfig, QueuePairId, QueuePairState, RealHost, ReceiveTarget, Region,
    RegionKey, SharedReceiveQueueId, ThreadDomain, Transport, WaitMode, Wake, Waker, WorkId, WorkRequest,
};
use std::collections::VecDeque;
use std::sync::Arc;

/// The longest sleep: a doorbell that a peer has tampered with costs no more than this.
const LONGEST_SLEEP: u64 = 10_000_000;

/// RECVs for several queue pairs.
#[derive(Debug)]
struct SharedReceiveQueue {
    receives: VecDeque<Receive>,
    depth: usize,
}

/// Ends a domain's wait.
#[derive(Clone, Debug)]
pub struct ShmWaker(Arc<Attention>);

impl Waker for ShmWaker {
    fn wake(&self) {
        self.0.wake();
    }
}

/// What one thread owns of the data path; see [`ThreadDomain`].
#[derive(Debug)]
pub struct ShmDomain {
    number: u32,
    attention: Arc<Attention>,
    news_seen: u64,
    queues: Vec<CompletionQueue>,
    shared: Vec<SharedReceiveQueue>,
    queue_pairs: Vec<Option<QueuePair>>,
    /// By slot: how often it was used, the upper half of the next number given out.
    generations: Vec<u16>,
    free: VecDeque<u16>,
    /// The doorbell's name on each link that it was granted on.
    doorbells: Vec<(u64, RegionKey)>,
    _io: Arc<IoHandle>,
}

const fn slot_of(id: QueuePairId) -> usize {
    (id.0 & 0xffff) as usize
}

impl ShmDomain {
    pub(crate) fn new(number: u32, io: Arc<IoHandle>) -> Result<Self, CreateError> {
        Ok(ShmDomain {
            number,
            attention: Attention::new()?,
            news_seen: 0,
            queues: Vec::new(),
            shared: Vec::new(),
            queue_pairs: Vec::new(),
            generations: Vec::new(),
            free: VecDeque::new(),
            doorbells: Vec::new(),
            _io: io,
        })
    }

    fn queue_pair(&self, id: QueuePairId) -> Option<&QueuePair> {
        self.queue_pairs.get(slot_of(id))?.as_ref().filter(|q| q.id == id)
    }

    fn queue_pair_mut(&mut self, id: QueuePairId) -> Result<&mut QueuePair, CreateError> {
        let found = self.queue_pairs.get_mut(slot_of(id)).and_then(Option::as_mut);
        found.filter(|q| q.id == id).ok_or(CreateError::NoSuch("queue pair"))
    }

    fn name_of(&self, id: QueuePairId) -> QueuePairName {
        QueuePairName { domain: self.number, queue_pair: id.0 }
    }

    fn grant_doorbell(&mut self, link: &LinkShared) -> Result<RegionKey, CreateError> {
        if let Some((_, key)) = self.doorbells.iter().find(|(number, _)| *number == link.number()) {
            return Ok(*key);
        }
        let key = link.grant(self.attention.memory(), Access::READ.with(Access::WRITE))?;
        self.doorbells.push((link.number(), key));
        Ok(key)
    }

    #[cold]
    fn hear_news(&mut self, seen: u64) {
        self.news_seen = seen;
        for queue_pair in self.queue_pairs.iter_mut().flatten() {
            queue_pair.hear_news(&mut self.queues);
        }
    }

    #[cold]
    fn fail_feeders(&mut self, queue: usize) {
        for at in 0..self.queues[queue].feeders.len() {
            let slot = usize::from(self.queues[queue].feeders[at]);
            if let Some(queue_pair) = &mut self.queue_pairs[slot] {
                queue_pair.fail(&mut self.queues);
            }
        }
    }
}

fn limited(what: &'static str, value: u32, limit: u32) -> Result<(), CreateError> {
    if value > limit {
        return Err(CreateError::Limit { what, value: value.into(), limit: limit.into() });
    }
    Ok(())
}

impl ThreadDomain for ShmDomain {
    type Memory = ShmMemory;
    type Link = ShmLink;
    type Waker = ShmWaker;

    fn create_completion_queue(
        &mut self,
        depth: u32,
        events: bool,
    ) -> Result<CompletionQueueId, CreateError> {
        // Several queue pairs with full queues may feed one.
        limited("the completion queue's depth", depth, MAX_QUEUE_DEPTH * 64)?;
        self.queues.push(CompletionQueue::new(depth.max(1), events));
        if events {
            self.attention.set_flags(EVENTS);
        }
        Ok(CompletionQueueId(self.queues.len() as u32 - 1))
    }

    fn create_shared_receive_queue(&mut self, depth: u32) -> Result<SharedReceiveQueueId, CreateError> {
        limited("the shared receive queue's depth", depth, MAX_QUEUE_DEPTH)?;
        let depth = depth as usize;
        self.shared.push(SharedReceiveQueue { receives: VecDeque::with_capacity(depth), depth });
        Ok(SharedReceiveQueueId(self.shared.len() as u32 - 1))
    }

    fn create_queue_pair(&mut self, config: &QueuePairConfig) -> Result<QueuePairId, CreateError> {
        limited("max_send", config.max_send, MAX_QUEUE_DEPTH)?;
        limited("max_receive", config.max_receive, MAX_QUEUE_DEPTH)?;
        for queue in [config.send_completions, config.receive_completions] {
            if queue.0 as usize >= self.queues.len() {
                return Err(CreateError::NoSuch("completion queue"));
            }
        }
        if config.shared_receive.is_some_and(|s| s.0 as usize >= self.shared.len()) {
            return Err(CreateError::NoSuch("shared receive queue"));
        }
        // The slot that was free for the longest time, so that numbers come again as late as can be.
        let slot = if self.queue_pairs.len() < MAX_QUEUE_PAIRS as usize && self.free.len() < 64 {
            self.queue_pairs.push(None);
            self.generations.push(0);
            (self.queue_pairs.len() - 1) as u16
        } else {
            self.free.pop_front().ok_or(CreateError::Limit {
                what: "the number of queue pairs",
                value: u64::from(MAX_QUEUE_PAIRS) + 1,
                limit: MAX_QUEUE_PAIRS.into(),
            })?
        };
        let id = QueuePairId(u32::from(self.generations[usize::from(slot)]) << 16 | u32::from(slot));
        for queue in [config.send_completions, config.receive_completions] {
            let feeders = &mut self.queues[queue.0 as usize].feeders;
            if !feeders.contains(&slot) {
                feeders.push(slot);
            }
        }
        self.queue_pairs[usize::from(slot)] = Some(QueuePair::new(id, *config));
        Ok(id)
    }

    fn endpoint(&mut self, queue_pair: QueuePairId, link: &ShmLink) -> Result<Endpoint, CreateError> {
        let doorbell = self.grant_doorbell(link.shared())?;
        let name = self.name_of(queue_pair);
        let queue_pair = self.queue_pair_mut(queue_pair)?;
        let transport = queue_pair.config.transport;
        Ok(Address { transport, name, ring: RegionKey(0), doorbell }.encode())
    }

    fn connect(
        &mut self,
        queue_pair: QueuePairId,
        link: &ShmLink,
        remote: &Endpoint,
    ) -> Result<(), CreateError> {
        let address = Address::decode(remote)?;
        let (name, attention) = (self.name_of(queue_pair), Arc::clone(&self.attention));
        let queue_pair = self.queue_pair_mut(queue_pair)?;
        if queue_pair.state != QueuePairState::Initialised {
            return Err(CreateError::State("the queue pair is connected already"));
        }
        if queue_pair.config.transport == Transport::UnreliableDatagram {
            return Err(CreateError::State("a datagram queue pair takes address handles, not a connection"));
        }
        if address.transport != queue_pair.config.transport {
            return Err(CreateError::Endpoint("it is of another transport"));
        }
        let link = link.shared();
        let doorbell = link
            .import(address.doorbell)
            .and_then(|import| PeerDoorbell::new(import, (address.name.queue_pair & 0xffff) as u16))
            .ok_or(CreateError::Endpoint("its doorbell was not granted on this link"))?;
        let closed = Arc::clone(&queue_pair.closed);
        queue_pair.connection = Some(Connection { link: Arc::clone(link), theirs: address.name, doorbell });
        queue_pair.state = QueuePairState::Ready;
        link.attach(name, &closed, &attention);
        Ok(())
    }

    fn create_address_handle(
        &mut self,
        queue_pair: QueuePairId,
        _link: &ShmLink,
        remote: &Endpoint,
    ) -> Result<AddressHandleId, CreateError> {
        self.queue_pair_mut(queue_pair)?;
        Address::decode(remote)?;
        Err(CreateError::Unsupported("datagram"))
    }

    fn destroy_queue_pair(&mut self, id: QueuePairId) -> Result<(), CreateError> {
        self.queue_pair_mut(id)?;
        let Some(mut queue_pair) = self.queue_pairs[slot_of(id)].take() else { return Ok(()) };
        queue_pair.receives.clear();
        queue_pair.fail(&mut self.queues);
        if let Some(connection) = &queue_pair.connection {
            connection.link.detach(self.name_of(id));
        }
        let slot = slot_of(id) as u16;
        for queue in &mut self.queues {
            queue.feeders.retain(|s| *s != slot);
            queue.forget(id);
        }
        let generation = &mut self.generations[slot_of(id)];
        *generation = generation.wrapping_add(1);
        self.free.push_back(slot);
        Ok(())
    }

    fn state(&self, queue_pair: QueuePairId) -> Option<QueuePairState> {
        self.queue_pair(queue_pair).map(|q| q.state)
    }

    fn send_room(&self, queue_pair: QueuePairId) -> u32 {
        self.queue_pair(queue_pair).map_or(0, QueuePair::send_room)
    }

    #[inline]
    fn post(
        &mut self,
        queue_pair: QueuePairId,
        request: WorkRequest<'_, ShmMemory>,
    ) -> Result<(), PostError> {
        let found = self.queue_pairs.get_mut(slot_of(queue_pair)).and_then(Option::as_mut);
        let found = found.filter(|q| q.id == queue_pair).ok_or(PostError::NoSuch("queue pair"))?;
        found.post(&mut self.queues, request)
    }

    fn post_receive(
        &mut self,
        target: ReceiveTarget,
        id: WorkId,
        buffer: Option<Buffer<ShmMemory>>,
    ) -> Result<(), PostError> {
        match target {
            ReceiveTarget::QueuePair(queue_pair) => {
                let found = self.queue_pairs.get_mut(slot_of(queue_pair)).and_then(Option::as_mut);
                let found = found.filter(|q| q.id == queue_pair).ok_or(PostError::NoSuch("queue pair"))?;
                if found.state == QueuePairState::Error {
                    return Err(PostError::QueuePairError);
                }
                if found.receives.len() >= found.config.max_receive as usize {
                    return Err(PostError::QueueFull);
                }
                found.receives.push_back(Receive { id, buffer });
            }
            ReceiveTarget::Shared(shared) => {
                let queue = self
                    .shared
                    .get_mut(shared.0 as usize)
                    .ok_or(PostError::NoSuch("shared receive queue"))?;
                if queue.receives.len() >= queue.depth {
                    return Err(PostError::QueueFull);
                }
                queue.receives.push_back(Receive { id, buffer });
            }
        }
        Ok(())
    }

    fn poll(
        &mut self,
        queue: CompletionQueueId,
        into: &mut Vec<Completion<ShmMemory>>,
        limit: usize,
    ) -> usize {
        let news = self.attention.news_seen();
        if news != self.news_seen {
            self.hear_news(news);
        }
        let number = queue.0 as usize;
        let Some(queue) = self.queues.get_mut(number) else { return 0 };
        if queue.has_overflowed() {
            self.fail_feeders(number);
        }
        let mut given = 0;
        while given < limit {
            let Some(ready) = self.queues[number].pop() else { break };
            if ready.sequence != 0 {
                let slot = slot_of(ready.completion.queue_pair);
                if let Some(Some(queue_pair)) = self.queue_pairs.get_mut(slot)
                    && queue_pair.id == ready.completion.queue_pair
                {
                    queue_pair.reclaim(ready.sequence);
                }
            }
            into.push(ready.completion);
            given += 1;
        }
        given
    }

    fn arm(&mut self, mode: WaitMode) -> Armed {
        if mode == WaitMode::Event {
            self.attention.arm();
        }
        Armed { mode, token: 0 }
    }

    fn disarm(&mut self, armed: Armed) {
        if armed.mode == WaitMode::Event {
            self.attention.disarm();
        }
    }

    fn wait(&mut self, armed: Armed, until: Nanos) -> Wake {
        if armed.mode == WaitMode::Busy {
            return Wake::Arrived;
        }
        let arrived = self.attention.take_woken()
            || self.attention.news_seen() != self.news_seen
            || self.queues.iter().any(|q| q.events && q.has_ready());
        let wake = if arrived {
            Wake::Arrived
        } else {
            let left = until.saturating_sub(RealHost.now()).min(LONGEST_SLEEP);
            if left > 0 && self.attention.sleep(left) { Wake::Arrived } else { Wake::TimedOut }
        };
        self.attention.disarm();
        self.attention.take_woken();
        wake
    }

    fn waker(&self) -> ShmWaker {
        ShmWaker(Arc::clone(&self.attention))
    }

    fn watch(&mut self, _region: &Region<ShmMemory>) {}

    fn unwatch(&mut self, _region: &Region<ShmMemory>) {}
}

impl Drop for ShmDomain {
    fn drop(&mut self) {
        for slot in 0..self.queue_pairs.len() {
            if let Some(id) = self.queue_pairs[slot].as_ref().map(|q| q.id)
                && let Err(error) = self.destroy_queue_pair(id)
            {
                tracing::error!(%error, "a queue pair cannot be destroyed with its domain");
            }
        }
    }
}
