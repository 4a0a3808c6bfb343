//! A thread domain: the completion queues, queue pairs and shared receive queues of one thread, and its
//! waits.

use crate::completion_queue::CompletionQueue;
use crate::datagram::{AddressHandle, Hub};
use crate::doorbell::{DomainWaiter, EVENTS, HINTS, PeerDoorbell};
use crate::endpoint::{Address, NO_RING};
use crate::frame::QueuePairName;
use crate::inbound::{Consumer, Producer};
use crate::io::Io;
use crate::limits::{MAX_QUEUE_DEPTH, MAX_QUEUE_PAIRS};
use crate::link::{DatagramTarget, ShmLink};
use crate::memory::ShmMemory;
use crate::queue_pair::{Connection, Inbound, QueuePair};
use crate::receive::{Receive, SharedReceiveQueue};
use dunlin_fabric::idle::Idle;
use dunlin_fabric::queue_pair_table::slot_of;
use dunlin_fabric::{
    Access, AddressHandleId, AddressHandles, AnyWaker, Armed, Buffer, Completion, CompletionQueueId,
    CompletionStatus, CreateError, Crowding, Endpoint, GrantError, InlineLine, InlineWrite, Nanos, PostError,
    QueuePairConfig, QueuePairId, QueuePairState, QueuePairTable, ReceiveTarget, Region,
    SharedReceiveQueueId, ThreadDomain, Transport, WaitMode, Wake, Waker, WorkId, WorkRequest,
};
use std::sync::{Arc, Weak};

/// Ends a domain's wait.
#[derive(Clone, Debug)]
pub struct ShmWaker(Arc<DomainWaiter>);

impl Waker for ShmWaker {
    fn wake(&self) {
        self.0.wake();
    }

    fn wait(&self, armed: Armed, until: Nanos) -> Wake {
        if armed.mode == WaitMode::Busy {
            return Wake::Arrived;
        }
        let wake = self.0.rest(until);
        self.0.end_writes(armed.mode);
        wake
    }
}

/// One thread's part of the data path; see [`ThreadDomain`].
///
/// A completion queue that overflows loses completions, and the next poll breaks the queue pairs that feed it
/// (verbs: IBV_EVENT_CQ_ERR). Make it as deep as all queues that feed it together.
#[derive(Debug)]
pub struct ShmDomain {
    number: u32,
    attention: Arc<DomainWaiter>,
    hub: Arc<Hub>,
    news_seen: u64,
    idle: Idle,
    events: bool,
    queues: Vec<CompletionQueue>,
    shared: Vec<SharedReceiveQueue>,
    queue_pairs: QueuePairTable<QueuePair>,
    handles: AddressHandles<AddressHandle>,
    live: usize,
    hints: Option<Hints>,
    _io: Arc<Io>,
}

/// The state for domains with many queue pairs. A poll then drives only three kinds of queue pairs: those
/// that peers have hinted at, those of this side that wait for acknowledgements, and a few others in
/// rotation, since a peer can clear another peer's hint.
///
/// Before each sleep, one slice of the queue pairs is driven without hints. All of them are, if a peer
/// belongs to another user or a peer rang without a hint.
#[derive(Debug, Default)]
struct Hints {
    /// By slot: hinted at, and not found empty since.
    hinted: Vec<u64>,
    /// Slots of queue pairs that wait for acknowledgements.
    unacknowledged: Vec<u16>,
    /// Nothing that a peer would have rung for was found since the last sleep.
    in_vain: bool,
}

/// Drives one queue pair; returns whether there may be more to receive.
#[inline]
fn drive(
    queue_pair: &mut QueuePair,
    number: usize,
    queues: &mut [CompletionQueue],
    shared: &mut [SharedReceiveQueue],
    budget: usize,
) -> bool {
    queue_pair.poll_sends(queues);
    if queue_pair.config.receive_completions.0 as usize != number {
        return false;
    }
    match queue_pair.config.transport {
        Transport::UnreliableDatagram => queue_pair.drive_datagrams(queues, shared, budget),
        _ => queue_pair.drive_receive(queues, shared, budget),
    }
}

impl ShmDomain {
    pub(crate) fn new(number: u32, io: Arc<Io>) -> Result<Self, CreateError> {
        let attention = DomainWaiter::new(io.watchdog())?;
        Ok(ShmDomain {
            number,
            hub: Hub::new(&attention),
            attention,
            news_seen: 0,
            idle: if io.config().gives_way { Idle::default() } else { Idle::steadfast() },
            events: false,
            queues: Vec::new(),
            shared: Vec::new(),
            queue_pairs: QueuePairTable::default(),
            handles: AddressHandles::default(),
            live: 0,
            hints: None,
            _io: io,
        })
    }

    fn queue_pair(&self, id: QueuePairId) -> Option<&QueuePair> {
        self.queue_pairs.find(id)
    }

    fn queue_pair_mut(&mut self, id: QueuePairId) -> Result<&mut QueuePair, CreateError> {
        self.queue_pairs.find_mut(id).ok_or(CreateError::NoSuch("queue pair"))
    }

    fn name_of(&self, id: QueuePairId) -> QueuePairName {
        QueuePairName { domain: self.number, queue_pair: id.0 }
    }

    fn set_flags(&self) {
        let events = if self.events { EVENTS } else { 0 };
        let hints = if self.hints.is_some() { HINTS } else { 0 };
        self.attention.set_flags(events | hints);
    }

    #[cold]
    fn hear_news(&mut self, seen: u64) {
        let mut heard = true;
        for queue_pair in self.queue_pairs.iter_mut().flatten() {
            if queue_pair.config.transport == Transport::UnreliableDatagram {
                queue_pair.update_datagrams(&self.hub);
            }
            heard &= queue_pair.hear_news(&mut self.queues, &mut self.shared);
        }
        // A full completion queue delayed some work, which a later poll repeats.
        if heard {
            self.news_seen = seen;
        }
    }

    #[cold]
    fn fail_feeders(&mut self, queue: usize) {
        for at in 0..self.queues[queue].feeders.len() {
            let slot = usize::from(self.queues[queue].feeders[at]);
            if let Some(queue_pair) = &mut self.queue_pairs[slot] {
                queue_pair.fail(&mut self.queues, CompletionStatus::Flushed);
            }
        }
    }

    /// Drives the queue pairs that feed a completion queue until it has `limit` completions.
    #[inline]
    fn progress(&mut self, number: usize, limit: usize) {
        if self.hints.is_some() {
            return self.progress_by_hints(number, limit);
        }
        let count = self.queues[number].feeders.len();
        for step in 0..count {
            let mut at = self.queues[number].first_feeder + step;
            if at >= count {
                at -= count;
            }
            let slot = usize::from(self.queues[number].feeders[at]);
            if let Some(queue_pair) = &mut self.queue_pairs[slot] {
                let budget = limit - self.queues[number].ready().min(limit);
                drive(queue_pair, number, &mut self.queues, &mut self.shared, budget);
            }
            if self.queues[number].ready() >= limit {
                // The next poll starts with another queue pair, so that a busy peer does not starve the
                // others.
                self.queues[number].first_feeder = if at + 1 == count { 0 } else { at + 1 };
                return;
            }
        }
    }

    #[inline(never)]
    fn progress_by_hints(&mut self, number: usize, limit: usize) {
        let Some(mut hints) = self.hints.take() else { return };
        if self.queues[number].receives {
            self.follow_hints(&mut hints, number, limit);
        }
        let (queue_pairs, queues) = (&mut self.queue_pairs, &mut self.queues);
        hints.unacknowledged.retain(|slot| {
            let Some(queue_pair) = &mut queue_pairs[usize::from(*slot)] else { return false };
            queue_pair.drive_sends(queues);
            queue_pair.listed = queue_pair.send.wants_acknowledgement();
            queue_pair.listed
        });
        self.hints = Some(hints);
    }

    /// Receives on the queue pairs with hints, and on some others.
    fn follow_hints(&mut self, hints: &mut Hints, number: usize, limit: usize) {
        hints.hinted.resize(self.queue_pairs.len().div_ceil(64), 0);
        for word in 0..hints.hinted.len() {
            let mut bits = hints.hinted[word] | self.attention.take_hints(word);
            hints.hinted[word] = bits;
            hints.in_vain &= bits == 0;
            while bits != 0 {
                let bit = bits.trailing_zeros() as usize;
                bits &= bits - 1;
                if self.look_at(word * 64 + bit, number, limit) == Some(false) {
                    hints.hinted[word] &= !(1 << bit);
                }
            }
        }
        let turns = std::mem::take(&mut self.queues[number].turns).max(TURNS).min(self.queue_pairs.len());
        for _ in 0..turns {
            let slot = self.queues[number].next_in_turn % self.queue_pairs.len().max(1);
            self.queues[number].next_in_turn = slot + 1;
            if self.look_at(slot, number, limit) == Some(true) {
                hints.hinted[slot / 64] |= 1 << (slot % 64);
            }
        }
    }

    /// Before the last poll: sets the number of queue pairs that it drives without a hint.
    #[cold]
    fn take_turns(&mut self) {
        let Some(hints) = &mut self.hints else { return };
        let all = self.queue_pairs.len();
        let turns = if hints.in_vain || self.attention.is_distrusted() { all } else { all.div_ceil(SLICES) };
        // Cleared when something is found, or when the sleep was not ended by a ring.
        hints.in_vain = true;
        self.queues.iter_mut().for_each(|queue| queue.turns = turns);
    }

    /// Returns whether there may be more to receive; `None` if another completion queue's poll does that.
    fn look_at(&mut self, slot: usize, number: usize, limit: usize) -> Option<bool> {
        let Some(Some(queue_pair)) = self.queue_pairs.get_mut(slot) else { return Some(false) };
        if queue_pair.config.receive_completions.0 as usize != number {
            return (queue_pair.state != QueuePairState::Ready).then_some(false);
        }
        let budget = limit - self.queues[number].ready().min(limit);
        Some(drive(queue_pair, number, &mut self.queues, &mut self.shared, budget))
    }

    #[cold]
    fn start_hints(&mut self) {
        let waiting = self.queue_pairs.iter_mut().enumerate();
        let unacknowledged = waiting
            .filter_map(|(slot, queue_pair)| {
                let queue_pair = queue_pair.as_mut()?;
                queue_pair.listed = queue_pair.send.wants_acknowledgement();
                queue_pair.listed.then_some(slot as u16)
            })
            .collect();
        self.hints = Some(Hints { unacknowledged, in_vain: true, ..Hints::default() });
        self.set_flags();
    }
}

/// Up to this number of queue pairs, a poll drives every one.
const WITHOUT_HINTS: usize = 32;
/// With hints, the number of queue pairs that a poll drives in rotation.
const TURNS: usize = 4;
/// With hints, the number of sleeps within which every queue pair is driven once.
const SLICES: usize = 16;

const PAGE: u64 = 4096;

/// Returns the peer's ring and doorbell, to which this side writes.
fn outlet(link: &ShmLink, address: Address) -> Result<(Producer, PeerDoorbell), CreateError> {
    let granted = |key, what| link.shared().import_internal(key).ok_or(CreateError::Endpoint(what));
    let slot = (address.name.queue_pair & 0xffff) as u16;
    let ring = granted(address.ring, "its ring was not granted on this link")?;
    let producer = Producer::new(ring, link.shared().secrets().theirs)
        .ok_or(CreateError::Endpoint("what it calls its ring is none"))?;
    let doorbell = granted(address.doorbell, "its doorbell was not granted on this link")?;
    let doorbell = PeerDoorbell::new(doorbell, slot)
        .ok_or(CreateError::Endpoint("what it calls its doorbell is none"))?;
    Ok((producer, doorbell))
}

impl ShmDomain {
    /// Posts a line that cannot be written at once.
    #[cold]
    fn post_line_slowly(&mut self, queue_pair: QueuePairId, line: InlineLine<'_>) -> Result<(), PostError> {
        let InlineLine { id, line, key, offset, ahead: _ } = line;
        let parts: &[&[u8]] = &[line];
        let write = InlineWrite { id, parts, key, offset, immediate: None, signaled: false, ahead: 0 };
        self.post(queue_pair, write.into())
    }
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
        // Several queue pairs with full queues may feed one completion queue.
        CreateError::check_limit("the completion queue's depth", depth, MAX_QUEUE_DEPTH * 64)?;
        self.queues.push(CompletionQueue::new(depth.max(1), events));
        self.events |= events;
        self.set_flags();
        Ok(CompletionQueueId(self.queues.len() as u32 - 1))
    }

    fn create_shared_receive_queue(&mut self, depth: u32) -> Result<SharedReceiveQueueId, CreateError> {
        CreateError::check_limit("the shared receive queue's depth", depth, MAX_QUEUE_DEPTH)?;
        self.shared.push(SharedReceiveQueue::new(depth));
        Ok(SharedReceiveQueueId(self.shared.len() as u32 - 1))
    }

    fn create_queue_pair(&mut self, config: &QueuePairConfig) -> Result<QueuePairId, CreateError> {
        CreateError::check_limit("max_send", config.max_send, MAX_QUEUE_DEPTH)?;
        CreateError::check_limit("max_receive", config.max_receive, MAX_QUEUE_DEPTH)?;
        for queue in [config.send_completions, config.receive_completions] {
            if queue.0 as usize >= self.queues.len() {
                return Err(CreateError::NoSuch("completion queue"));
            }
        }
        if config.shared_receive.is_some_and(|s| s.0 as usize >= self.shared.len()) {
            return Err(CreateError::NoSuch("shared receive queue"));
        }
        let id = self.queue_pairs.reserve(MAX_QUEUE_PAIRS)?;
        let slot = slot_of(id) as u16;
        for queue in [config.send_completions, config.receive_completions] {
            let feeders = &mut self.queues[queue.0 as usize].feeders;
            if !feeders.contains(&slot) {
                feeders.push(slot);
            }
        }
        self.queues[config.receive_completions.0 as usize].receives = true;
        if config.transport == Transport::UnreliableDatagram {
            self.hub.open(id, config.inbound_bytes);
        }
        self.queue_pairs.insert(QueuePair::new(id, *config));
        self.live += 1;
        if self.live > WITHOUT_HINTS && self.hints.is_none() {
            self.start_hints();
        }
        Ok(id)
    }

    fn endpoint(&mut self, queue_pair: QueuePairId, link: &ShmLink) -> Result<Endpoint, CreateError> {
        let name = self.name_of(queue_pair);
        let hub = Arc::clone(&self.hub);
        let queue_pair = self.queue_pair_mut(queue_pair)?;
        let transport = queue_pair.config.transport;
        let link = link.shared();
        if transport == Transport::UnreliableDatagram {
            let target: Weak<dyn DatagramTarget> = Arc::downgrade(&hub) as _;
            link.offer_datagrams(self.number, target);
            // The first address handle made from this endpoint then need not wait for this side's control
            // thread.
            let made = hub.make_ring(link, name.queue_pair);
            let (ring, doorbell) = made.unwrap_or((NO_RING, NO_RING));
            return Ok(Address { transport, name, ring, doorbell }.encode());
        }
        let doorbell = hub.doorbell(link, true)?;
        if queue_pair.inbound.is_none() {
            let length = u64::from(queue_pair.config.inbound_bytes.max(1)).next_multiple_of(PAGE);
            let memory = Arc::new(ShmMemory::new(length, Access::WRITE)?);
            let ring = link.grant_internal(&memory, Access::WRITE, true)?;
            // No other peer gets this ring, so its descriptor is closed: thousands of them would add up.
            memory.close_descriptor();
            let consumer = Consumer::new(memory, link.secrets().ours, ring.0)
                .ok_or(CreateError::State("the inbound ring is too small"))?;
            queue_pair.inbound = Some(Inbound { link: Arc::clone(link), ring, consumer, unasked: false });
        }
        match &queue_pair.inbound {
            Some(inbound) if Arc::ptr_eq(&inbound.link, link) => {
                Ok(Address { transport, name, ring: inbound.ring, doorbell }.encode())
            }
            _ => Err(CreateError::State("the queue pair's endpoint was made for another link")),
        }
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
        if queue_pair.config.transport == Transport::UnreliableDatagram {
            return Err(CreateError::State("a datagram queue pair takes address handles, not a connection"));
        }
        if queue_pair.state != QueuePairState::Initialised {
            return Err(CreateError::State("the queue pair is connected already"));
        }
        if queue_pair.inbound.as_ref().is_none_or(|i| !Arc::ptr_eq(&i.link, link.shared())) {
            return Err(CreateError::State("make this queue pair's endpoint for the same link first"));
        }
        if address.transport != queue_pair.config.transport {
            return Err(CreateError::Endpoint("it is of another transport"));
        }
        let (producer, doorbell) = outlet(link, address)?;
        let connection =
            Connection { link: Arc::clone(link.shared()), theirs: address.name, doorbell, producer };
        queue_pair.connection = Some(connection);
        queue_pair.state = QueuePairState::Ready;
        link.shared().attach(name, &queue_pair.closed, &attention);
        // The hints of earlier messages may have been cleared while the queue pair was not connected.
        attention.hint(slot_of(queue_pair.id) as u16);
        Ok(())
    }

    fn create_address_handle(
        &mut self,
        queue_pair: QueuePairId,
        link: &ShmLink,
        remote: &Endpoint,
    ) -> Result<AddressHandleId, CreateError> {
        if self.queue_pair_mut(queue_pair)?.config.transport != Transport::UnreliableDatagram {
            return Err(CreateError::State("only datagram queue pairs take address handles"));
        }
        let address = Address::decode(remote)?;
        if address.transport != Transport::UnreliableDatagram {
            return Err(CreateError::Endpoint("it is not of a datagram queue pair"));
        }
        let (ring, doorbell) = if address.ring != NO_RING && link.shared().take_ring(address.ring) {
            (address.ring, address.doorbell)
        } else {
            let granted = link.shared().ask_for_datagrams(address.name).map_err(GrantError::from)?;
            granted.ok_or(CreateError::Endpoint("its queue pair is gone, or has too many senders"))?
        };
        let (producer, doorbell) = outlet(link, Address { ring, doorbell, ..address })?;
        let handle = AddressHandle { link: Arc::clone(link.shared()), producer, doorbell };
        Ok(self.handles.insert(queue_pair, handle))
    }

    fn destroy_address_handle(&mut self, handle: AddressHandleId) -> Result<(), CreateError> {
        self.handles.remove(handle)
    }

    fn destroy_queue_pair(&mut self, id: QueuePairId) -> Result<(), CreateError> {
        let mut queue_pair = self.queue_pairs.remove(id).ok_or(CreateError::NoSuch("queue pair"))?;
        queue_pair.send.clear();
        queue_pair.receives.clear();
        queue_pair.partial = None;
        queue_pair.fail(&mut self.queues, CompletionStatus::Flushed);
        if let Some(connection) = &queue_pair.connection {
            connection.link.detach(self.name_of(id));
        }
        if let Some(inbound) = &queue_pair.inbound {
            inbound.link.revoke(inbound.ring, false);
        }
        self.hub.close(id);
        queue_pair.datagrams.end();
        self.handles.remove_all(id);
        let slot = slot_of(id) as u16;
        for queue in &mut self.queues {
            queue.forget(id, slot);
        }
        if let Some(hints) = &mut self.hints {
            hints.unacknowledged.retain(|s| *s != slot);
        }
        self.live -= 1;
        Ok(())
    }

    fn state(&self, queue_pair: QueuePairId) -> Option<QueuePairState> {
        self.queue_pair(queue_pair).map(|q| q.state)
    }

    fn send_room(&self, queue_pair: QueuePairId) -> u32 {
        self.queue_pair(queue_pair).map_or(0, |q| q.send.room())
    }

    #[inline]
    fn post(
        &mut self,
        queue_pair: QueuePairId,
        request: WorkRequest<'_, ShmMemory>,
    ) -> Result<(), PostError> {
        self.idle.reset();
        let found = self.queue_pairs.find_mut(queue_pair).ok_or(PostError::NoSuch("queue pair"))?;
        if found.config.transport == Transport::UnreliableDatagram {
            return found.post_datagram(&mut self.queues, &mut self.handles, &request);
        }
        found.post(&mut self.queues, request)?;
        if let Some(hints) = &mut self.hints
            && !found.listed
            && found.send.wants_acknowledgement()
        {
            found.listed = true;
            hints.unacknowledged.push(slot_of(queue_pair) as u16);
        }
        Ok(())
    }

    #[inline]
    fn post_line(&mut self, queue_pair: QueuePairId, line: InlineLine<'_>) -> Result<(), PostError> {
        self.idle.reset();
        if let Some(Some(found)) = self.queue_pairs.get_mut(slot_of(queue_pair))
            && found.id == queue_pair
            && found.line_at_once(&line)
        {
            return Ok(());
        }
        self.post_line_slowly(queue_pair, line)
    }

    #[inline]
    fn will_post(&self, queue_pair: QueuePairId) {
        if let Some(slot) = self.queue_pairs.get(slot_of(queue_pair)) {
            QueuePair::warm(slot);
        }
    }

    #[inline]
    fn post_write(&mut self, queue_pair: QueuePairId, write: InlineWrite<'_>) -> Result<(), PostError> {
        self.idle.reset();
        if let Some(Some(found)) = self.queue_pairs.get_mut(slot_of(queue_pair))
            && found.id == queue_pair
            && found.write_at_once(&write)
        {
            return Ok(());
        }
        self.post(queue_pair, write.into())
    }

    fn post_receive(
        &mut self,
        target: ReceiveTarget,
        id: WorkId,
        buffer: Option<Buffer<ShmMemory>>,
    ) -> Result<(), PostError> {
        match target {
            ReceiveTarget::QueuePair(queue_pair) => {
                let found = self.queue_pairs.find_mut(queue_pair).ok_or(PostError::NoSuch("queue pair"))?;
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
        let Some(queue) = self.queues.get(number) else { return 0 };
        if queue.ready() < limit {
            self.progress(number, limit);
        }
        if self.queues[number].has_overflowed() {
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
                    queue_pair.send.reclaim(ready.sequence);
                }
            }
            into.push(ready.completion);
            given += 1;
        }
        if given > 0 {
            self.idle.reset();
            if let Some(hints) = &mut self.hints {
                hints.in_vain = false;
            }
        }
        given
    }

    fn arm(&mut self, mode: WaitMode) -> Armed {
        if mode.sleeps() {
            self.attention.arm(mode);
            if self.hints.is_some() {
                self.take_turns();
            }
        }
        Armed { mode, token: 0 }
    }

    fn disarm(&mut self, armed: Armed) {
        if armed.mode.sleeps() {
            self.attention.disarm();
            self.attention.end_writes(armed.mode);
        }
    }

    fn wait(&mut self, armed: Armed, until: Nanos) -> Wake {
        if armed.mode == WaitMode::Busy {
            self.idle.wait();
            return Wake::Arrived;
        }
        let arrived = self.attention.news_seen() != self.news_seen
            || self.queues.iter().any(|q| (q.events || armed.mode == WaitMode::Write) && q.ready() > 0);
        let wake = self.attention.rest(if arrived { 0 } else { until });
        self.attention.end_writes(armed.mode);
        self.idle.slept();
        if let Some(hints) = &mut self.hints {
            hints.in_vain = wake == Wake::Arrived;
        }
        if arrived { Wake::Arrived } else { wake }
    }

    fn arm_other(&mut self, other: &AnyWaker) -> Nanos {
        self.attention.other().arm(other);
        // One-sided requests complete as they are posted.
        if self.attention.news_seen() != self.news_seen
            || self.queues.iter().any(|queue| queue.events && queue.ready() > 0)
        {
            self.attention.other().wake();
        }
        Nanos::MAX
    }

    fn disarm_other(&mut self) {
        self.attention.other().disarm();
    }

    fn waker(&self) -> ShmWaker {
        ShmWaker(Arc::clone(&self.attention))
    }

    #[inline]
    fn crowding(&self) -> Crowding {
        self.idle.crowding()
    }

    fn gives_way(&self) -> bool {
        self.idle.gives_way()
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
