//! A thread domain: the completion queues, queue pairs and shared receive queues of one thread, and its
//! waits.

use crate::concluded::{abandoned, concluded, received};
use crate::connect;
use crate::device::Device;
use crate::domain_waiter::{DomainWaiter, RdmaWaker};
use crate::endpoint::QueuePairAddress;
use crate::events::Object;
use crate::handles::{self, QueuePairParts, ReceiveRequest};
use crate::manager::Manager;
use crate::memory::RdmaMemory;
use crate::queue_pair::{QueuePair, Receive};
use crate::send::{Destination, LongList, MAX_PARTS, Means};
use crate::sys;
use crate::{Control, RdmaLink};
use dunlin_fabric::idle::Idle;
use dunlin_fabric::queue_pair_table::slot_of;
use dunlin_fabric::{
    Access, AddressHandleId, AddressHandles, AnyWaker, Arena, Armed, Buffer, Capabilities, Completion,
    CompletionQueueId, CompletionStatus, CreateError, Endpoint, Host, InlineWrite, ListError, Nanos,
    PostError, QueuePairConfig, QueuePairId, QueuePairState, QueuePairTable, REQUEST_OWNER, RealHost,
    ReceiveTarget, Region, RequestKind, SharedReceiveQueueId, ThreadDomain, Transport, WaitMode, Wake,
    WorkRequest, parse_request_name, request_name,
};
use dunlin_fabric_control::Flag;
use rustix::event::epoll::EventFlags;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

/// The number of completions taken from the NIC at once.
const BATCH: usize = 32;
/// The size of the memory for old values of atomics in flight: one line each.
const RESULTS: u64 = 4096 * 64;
/// The longest sleep while a broken queue pair waits to be flushed, in nanoseconds.
const FLUSH_SLEEP: Nanos = 10_000_000;
/// The events of a channel for which the control thread watches it: the next one, once.
const CHANNEL_EVENT: EventFlags = EventFlags::IN.union(EventFlags::ONESHOT);

/// A completion queue, and whether the channel will report its next completion.
#[derive(Debug)]
struct Queue {
    handle: handles::CompletionQueue,
    events: bool,
    armed: bool,
    broken: Arc<Flag>,
}

/// A shared receive queue. RECVs are stored by place, since those of several queue pairs complete in any
/// order.
#[derive(Debug)]
struct Shared {
    handle: handles::SharedReceiveQueue,
    broken: Arc<Flag>,
    posted: Vec<Option<Receive>>,
    free: Vec<u32>,
}

/// One thread's part of the data path; see [`ThreadDomain`].
///
/// A completion queue must be as deep as all queues that feed it together: a NIC breaks the queue pairs that
/// feed an overflowing queue.
#[derive(Debug)]
pub struct RdmaDomain {
    device: Arc<Device>,
    capabilities: Arc<Capabilities>,
    news_seen: u64,
    /// The time at which this side must complete the remaining requests of a broken queue pair.
    flush_at: Nanos,
    idle: Idle,
    /// For peers' work requests with wrong keys; see [`QueuePairAddress::trap_key`].
    trap_key: u32,
    batch: Box<[sys::WorkCompletion; BATCH]>,
    scratch: Vec<u8>,
    long: LongList,
    results: Option<Arena<RdmaMemory>>,
    /// By device number, with which the completion of a shared RECV names its queue pair.
    by_number: BTreeMap<u32, u16>,
    // Fields are dropped in order: users before the objects that they need.
    queue_pairs: QueuePairTable<QueuePair>,
    destinations: AddressHandles<Destination>,
    shared: Vec<Shared>,
    queues: Vec<Queue>,
    attention: Arc<DomainWaiter>,
    control: Arc<Control>,
    /// The number under which the control thread watches the channel.
    watched: Option<u64>,
}

impl RdmaDomain {
    pub(crate) fn new(
        capabilities: Arc<Capabilities>,
        trap_key: u32,
        control: Arc<Control>,
    ) -> Result<Self, CreateError> {
        let device = Arc::clone(&control.backend().device);
        let attention = DomainWaiter::new(&device).map_err(CreateError::system("a completion channel"))?;
        Ok(RdmaDomain {
            device,
            capabilities,
            attention,
            news_seen: 0,
            flush_at: Nanos::MAX,
            idle: Idle::default(),
            trap_key,
            batch: Box::default(),
            scratch: Vec::new(),
            long: LongList::default(),
            results: None,
            by_number: BTreeMap::new(),
            queue_pairs: QueuePairTable::default(),
            destinations: AddressHandles::default(),
            shared: Vec::new(),
            queues: Vec::new(),
            control,
            watched: None,
        })
    }

    fn queue_pair_mut(&mut self, id: QueuePairId) -> Result<&mut QueuePair, CreateError> {
        self.queue_pairs.find_mut(id).ok_or(CreateError::NoSuch("queue pair"))
    }

    fn queue_pair(&self, id: QueuePairId) -> Option<&QueuePair> {
        self.queue_pairs.find(id)
    }

    fn new_handle(&self, config: &QueuePairConfig) -> Result<handles::QueuePair, CreateError> {
        let queue = |id: CompletionQueueId| {
            self.queues.get(id.0 as usize).map(|q| &q.handle).ok_or(CreateError::NoSuch("completion queue"))
        };
        let shared = config.shared_receive.map(|id| {
            self.shared
                .get(id.0 as usize)
                .map(|s| &s.handle)
                .ok_or(CreateError::NoSuch("shared receive queue"))
        });
        let parts = QueuePairParts {
            transport: sys::transport(config.transport),
            send_completions: queue(config.send_completions)?,
            receive_completions: queue(config.receive_completions)?,
            shared_receive: shared.transpose()?,
            capacity: sys::QueuePairCapacity {
                max_send_wr: config.max_send.max(1),
                max_receive_wr: config.max_receive.max(1),
                max_send_sge: MAX_PARTS as u32,
                max_receive_sge: 1,
                max_inline: self.capabilities.max_inline,
            },
        };
        handles::QueuePair::new(&self.device, parts).map_err(CreateError::system("a queue pair"))
    }

    /// Moves a queue pair to the state in which it accepts RECVs; a datagram queue pair to ready-to-send.
    fn initialise(&self, queue_pair: &mut QueuePair) -> io::Result<()> {
        let datagram = queue_pair.config.transport == Transport::UnreliableDatagram;
        let (psn, qkey) = (queue_pair.psn, queue_pair.qkey);
        let Some(handle) = &mut queue_pair.handle else { return Ok(()) };
        let start = sys::QueuePairAttributes {
            state: sys::STATE_INIT,
            port: self.device.port.number,
            qkey,
            // The keys restrict the access to each region.
            access: (sys::ACCESS_REMOTE_READ
                | sys::ACCESS_REMOTE_WRITE
                | if self.capabilities.atomics.exist() { sys::ACCESS_REMOTE_ATOMIC } else { 0 })
                as u32,
            ..Default::default()
        };
        let kind = if datagram { sys::SET_QKEY } else { sys::SET_ACCESS };
        let place = if self.device.is_iwarp { 0 } else { sys::SET_PARTITION | sys::SET_PORT };
        handle.modify(start, sys::SET_STATE | place | kind)?;
        if datagram {
            let ready = |state| sys::QueuePairAttributes { state, send_psn: psn, ..Default::default() };
            handle.modify(ready(sys::STATE_READY_TO_RECEIVE), sys::SET_STATE)?;
            handle.modify(ready(sys::STATE_READY_TO_SEND), sys::SET_STATE | sys::SET_SEND_PSN)?;
            queue_pair.state = QueuePairState::Ready;
        }
        Ok(())
    }

    /// Processes notifications: a link or the other end of a queue pair has ended, or a device object is
    /// broken.
    fn hear_news(&mut self, news: u64) {
        self.news_seen = news;
        let (queues, shared) = (&self.queues, &self.shared);
        for queue_pair in self.queue_pairs.iter_mut().flatten() {
            let QueuePairConfig { send_completions, receive_completions, shared_receive, .. } =
                &queue_pair.config;
            let queue_is_broken = [send_completions, receive_completions]
                .iter()
                .any(|id| queues.get(id.0 as usize).is_some_and(|queue| queue.broken.is_raised()));
            let shared_is_broken = shared_receive
                .and_then(|id| shared.get(id.0 as usize))
                .is_some_and(|shared| shared.broken.is_raised());
            let orphan = queue_pair.is_connected_kind() && queue_pair.bond.is_orphan();
            queue_pair.look_for_peer();
            if orphan || queue_is_broken || shared_is_broken || queue_pair.broken.is_raised() {
                queue_pair.fail();
            }
            self.flush_at = self.flush_at.min(queue_pair.flush_at.unwrap_or(Nanos::MAX));
        }
    }

    /// Completes requests in this queue that the device should have flushed but did not, after all
    /// completions of the queue were taken. Needed for Soft-iWARP: when its connection ends, it flushes the
    /// posted requests before this side knows, and ignores requests that are posted later.
    fn flush(
        &mut self,
        queue: CompletionQueueId,
        into: &mut Vec<Completion<RdmaMemory>>,
        limit: usize,
    ) -> usize {
        let (now, before) = (RealHost.now(), into.len());
        if now < self.flush_at {
            return 0;
        }
        self.flush_at = Nanos::MAX;
        for slot in 0..self.queue_pairs.len() {
            let Some(queue_pair) = &mut self.queue_pairs[slot] else { continue };
            let Some(flush_at) = queue_pair.flush_at else { continue };
            let is_due = now >= flush_at && queue_pair.is_emptied(queue, now - flush_at);
            if is_due && queue_pair.owes() {
                // From here on the device accesses no buffer of the queue pair.
                self.release(slot);
            }
            let Some(queue_pair) = &mut self.queue_pairs[slot] else { continue };
            while is_due
                && into.len() - before < limit
                && let Some(completion) = abandoned(queue_pair, queue)
            {
                into.push(completion);
            }
            if !is_due || queue_pair.owes() {
                self.flush_at = self.flush_at.min(flush_at);
            } else {
                queue_pair.flush_at = None;
            }
        }
        into.len() - before
    }

    /// Destroys a queue pair at the device, and removes its number from all tables.
    fn release(&mut self, slot: usize) {
        let Some(queue_pair) = self.queue_pairs.get_mut(slot).and_then(Option::as_mut) else { return };
        let name = queue_pair.name();
        let Some(handle) = queue_pair.handle.take() else { return };
        let number = handle.number();
        queue_pair.bond.detach(name);
        self.by_number.remove(&number);
        // Before the device can reuse the number.
        if let Some(manager) = &self.control.backend().manager {
            manager.forget(number);
        }
        self.device.health.forget(Object::QueuePair(number));
    }

    /// Converts a completion of the NIC; returns `None` if its queue pair does not exist any more, or none is
    /// to be reported.
    fn conclude(&mut self, raw: &sys::WorkCompletion) -> Option<Completion<RdmaMemory>> {
        let (kind, owner, number) = parse_request_name(raw.id)?;
        let slot = match kind {
            RequestKind::Shared => self.by_number.get(&raw.queue_pair).map(|slot| usize::from(*slot)),
            RequestKind::Send | RequestKind::Receive => Some(slot_of(QueuePairId(owner))),
            RequestKind::Credit => None,
        };
        let queue_pair = slot.and_then(|slot| self.queue_pairs.get_mut(slot)).and_then(Option::as_mut);
        let receive = match kind {
            RequestKind::Shared => {
                // Taken in any case, since the RECV is consumed.
                let shared = self.shared.get_mut(owner as usize)?;
                let receive = shared.posted.get_mut(number as usize)?.take()?;
                shared.free.push(number);
                Some(receive)
            }
            RequestKind::Send | RequestKind::Receive | RequestKind::Credit => None,
        };
        let queue_pair =
            queue_pair.filter(|q| kind == RequestKind::Shared || q.id.0 & REQUEST_OWNER == owner)?;
        let mut completion = match kind {
            RequestKind::Send => {
                if raw.status == sys::STATUS_SUCCESS && queue_pair.sends.is_unsignaled(number) {
                    // Signaled only because of its buffer. Its place becomes free with the next signaled
                    // request.
                    return None;
                }
                concluded(queue_pair.id, queue_pair.sends.complete(number)?, raw)
            }
            RequestKind::Receive => received(queue_pair.id, queue_pair.receives.complete(number)?, raw),
            RequestKind::Shared => received(queue_pair.id, receive?, raw),
            RequestKind::Credit => return None,
        };
        completion.queue_pair = queue_pair.id;
        if completion.status != CompletionStatus::Success {
            queue_pair.fail();
            self.flush_at = self.flush_at.min(queue_pair.flush_at.unwrap_or(Nanos::MAX));
        }
        Some(completion)
    }

    /// Has the channel report the next completion of each queue with events.
    fn request_notifications(&mut self) {
        if self.attention.take_has_events() {
            self.take_events();
        }
        for queue in self.queues.iter_mut().filter(|queue| queue.events && !queue.armed) {
            match queue.handle.request_notification() {
                Ok(()) => queue.armed = true,
                // The sleep is bounded, and the next one tries again.
                Err(error) => tracing::warn!(%error, "a completion queue cannot be armed"),
            }
        }
    }

    /// Has the control thread wake the other domain at the next event of the channel.
    fn watch_channel(&mut self) -> io::Result<()> {
        let (reactor, channel) = (self.control.reactor(), self.attention.channel().descriptor());
        match self.watched {
            Some(number) => {
                reactor.set_events(number, channel, CHANNEL_EVENT);
                Ok(())
            }
            None => {
                let number = reactor.next_number();
                let waiter = Arc::clone(&self.attention);
                reactor.add(number, channel, CHANNEL_EVENT, waiter)?;
                self.watched = Some(number);
                Ok(())
            }
        }
    }

    /// Returns the time by which a thread that sleeps has to poll, as a broken queue pair may be flushed then.
    fn poll_by(&self) -> Nanos {
        match self.flush_at {
            Nanos::MAX => Nanos::MAX,
            // A caller that does not poll all queues must not stay awake because of an unflushed one.
            at => at.max(RealHost.now() + FLUSH_SLEEP),
        }
    }

    /// Takes the channel's events. The queues of these events are no longer armed.
    fn take_events(&mut self) {
        while let Some(number) = self.attention.channel().next_event() {
            if let Some(queue) = self.queues.get_mut(number) {
                queue.armed = false;
                queue.handle.count_event();
            }
        }
    }

    /// Posts on a queue pair.
    #[inline]
    fn post_by<E: From<PostError>>(
        &mut self,
        queue_pair: QueuePairId,
        post: impl FnOnce(&mut QueuePair, Means<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        self.idle.reset();
        let found = self.queue_pairs.find_mut(queue_pair).ok_or(PostError::NoSuch("queue pair"))?;
        let means = Means {
            capabilities: &self.capabilities,
            destinations: &self.destinations,
            results: self.results.as_ref(),
            // A completion ends all earlier requests, but without the fence Soft-iWARP would complete later
            // requests before a READ.
            flags: if self.device.is_iwarp { sys::SEND_FENCE } else { 0 },
            is_soft_iwarp: self.device.attributes.is_soft_iwarp,
            scratch: &mut self.scratch,
            long: &mut self.long,
            device: &self.device,
        };
        post(found, means).inspect_err(|_| {
            self.flush_at = self.flush_at.min(found.flush_at.unwrap_or(Nanos::MAX));
        })
    }
}

impl ThreadDomain for RdmaDomain {
    type Memory = RdmaMemory;
    type Link = RdmaLink;
    type Waker = RdmaWaker;

    fn create_completion_queue(
        &mut self,
        depth: u32,
        events: bool,
    ) -> Result<CompletionQueueId, CreateError> {
        CreateError::check_limit(
            "the completion queue's depth",
            depth,
            self.device.attributes.max_completions,
        )?;
        let number = self.queues.len();
        let channel = events.then(|| self.attention.channel());
        let handle = handles::CompletionQueue::new(&self.device, depth.max(1), channel, number)
            .map_err(CreateError::system("a completion queue"))?;
        let broken = Arc::default();
        self.device.health.watch(handle.object(), &broken, &self.attention);
        self.queues.push(Queue { handle, events, armed: false, broken });
        Ok(CompletionQueueId(number as u32))
    }

    fn create_shared_receive_queue(&mut self, depth: u32) -> Result<SharedReceiveQueueId, CreateError> {
        if !self.capabilities.shared_receive_queue {
            return Err(CreateError::Unsupported("shared receive queues"));
        }
        let limit = self.capabilities.max_queue_depth.min(self.device.attributes.max_shared_receives);
        CreateError::check_limit("the shared receive queue's depth", depth, limit)?;
        let handle = handles::SharedReceiveQueue::new(&self.device, depth.max(1))
            .map_err(CreateError::system("a shared receive queue"))?;
        let posted = (0..depth).map(|_| None).collect();
        let broken = Arc::default();
        self.device.health.watch(handle.object(), &broken, &self.attention);
        self.shared.push(Shared { handle, broken, posted, free: (0..depth).rev().collect() });
        Ok(SharedReceiveQueueId(self.shared.len() as u32 - 1))
    }

    fn create_queue_pair(&mut self, config: &QueuePairConfig) -> Result<QueuePairId, CreateError> {
        CreateError::check_limit("max_send", config.max_send, self.capabilities.max_queue_depth)?;
        CreateError::check_limit("max_receive", config.max_receive, self.capabilities.max_queue_depth)?;
        if !self.capabilities.transports.contains(config.transport) {
            return Err(CreateError::Unsupported("queue pairs of that transport"));
        }
        let most = self.capabilities.max_queue_pairs;
        if self.capabilities.atomics.exist()
            && config.transport == Transport::ReliableConnection
            && self.results.is_none()
        {
            let memory = RdmaMemory::new(&self.device, RESULTS, Access::LOCAL)?;
            let arena = Arena::new(memory).map_err(|_| CreateError::State("no arena for atomics"))?;
            self.results = Some(arena);
        }
        let handle = self.new_handle(config)?;
        self.long.reserve(config.max_send);
        let id = self.queue_pairs.reserve(most)?;
        let mut queue_pair = QueuePair::new(id, *config, handle, RealHost.random());
        if let Err(error) = self.initialise(&mut queue_pair) {
            self.queue_pairs.cancel(id);
            return Err(CreateError::system("a queue pair")(error));
        }
        let object = Object::QueuePair(queue_pair.number());
        self.device.health.watch(object, &queue_pair.broken, &self.attention);
        self.by_number.insert(queue_pair.number(), slot_of(id) as u16);
        self.queue_pairs.insert(queue_pair);
        Ok(id)
    }

    fn endpoint(&mut self, queue_pair: QueuePairId, link: &RdmaLink) -> Result<Endpoint, CreateError> {
        let (attention, trap_key) = (Arc::clone(&self.attention), self.trap_key);
        let (device, control) = (Arc::clone(&self.device), Arc::clone(&self.control));
        let queue_pair = self.queue_pair_mut(queue_pair)?;
        if queue_pair.handle.is_none() {
            return Err(CreateError::State("the queue pair is broken"));
        }
        if queue_pair.is_connected_kind() {
            let name = queue_pair.name();
            queue_pair.bond.bind(link.shared(), name, &attention)?;
        }
        let from = device.port.gid_for(link.shared().local_address());
        let (gid, lid) =
            control.backend().manager.as_ref().map_or((from.gid, device.port.lid), Manager::place);
        let address = QueuePairAddress {
            transport: queue_pair.config.transport,
            number: queue_pair.number(),
            psn: queue_pair.psn,
            qkey: queue_pair.qkey,
            mtu: device.port.mtu as u8,
            responder_resources: device.attributes.responder_resources,
            link: from.link,
            lid,
            gid,
            trap_key,
        };
        if let Some(manager) = &control.backend().manager
            && !link.shared().has_dialled()
            && queue_pair.awaited.is_none()
        {
            let terms = connect::terms(&device, queue_pair);
            queue_pair.awaited =
                Some(manager.await_peer(&address, terms, link.shared(), &queue_pair.broken, &attention));
        }
        Ok(address.encode())
    }

    fn connect(
        &mut self,
        queue_pair: QueuePairId,
        link: &RdmaLink,
        remote: &Endpoint,
    ) -> Result<(), CreateError> {
        let address = QueuePairAddress::decode(remote)?;
        let (device, control) = (Arc::clone(&self.device), Arc::clone(&self.control));
        let attention = Arc::clone(&self.attention);
        let queue_pair = self.queue_pair_mut(queue_pair)?;
        if !queue_pair.is_connected_kind() {
            return Err(CreateError::State("a datagram queue pair takes address handles, not a connection"));
        }
        if queue_pair.state != QueuePairState::Initialised {
            return Err(CreateError::State("the queue pair is connected already"));
        }
        queue_pair.bond.check(link.shared())?;
        if address.transport != queue_pair.config.transport {
            return Err(CreateError::Endpoint("it is of another transport"));
        }
        let met = match &control.backend().manager {
            Some(manager) => connect::meet((&device, &attention), manager, queue_pair, link, &address),
            None => {
                let from = device.port.gid_for(link.shared().local_address());
                connect::join(&device, &control.backend().config, queue_pair, from, &address)
            }
        };
        if met.is_ok() {
            queue_pair.meet(&address);
        }
        // The other end may have ended before, or this end broke while connecting. The next poll checks for
        // that.
        self.news_seen = self.news_seen.wrapping_sub(1);
        met
    }

    fn create_address_handle(
        &mut self,
        queue_pair: QueuePairId,
        link: &RdmaLink,
        remote: &Endpoint,
    ) -> Result<AddressHandleId, CreateError> {
        if self.queue_pair_mut(queue_pair)?.is_connected_kind() {
            return Err(CreateError::State("only datagram queue pairs take address handles"));
        }
        let address = QueuePairAddress::decode(remote)?;
        if address.transport != Transport::UnreliableDatagram {
            return Err(CreateError::Endpoint("it is not of a datagram queue pair"));
        }
        if address.mtu < self.device.port.mtu as u8 {
            return Err(CreateError::Endpoint(
                "its port takes shorter datagrams than ours sends: set the same MTU",
            ));
        }
        let from = self.device.port.gid_for(link.shared().local_address());
        let route = address.route(&self.device.port, from)?;
        let handle = handles::AddressHandle::new(&self.device, route)
            .map_err(CreateError::system("an address handle"))?;
        let destination = Destination { handle, number: address.number, qkey: address.qkey };
        Ok(self.destinations.insert(queue_pair, destination))
    }

    fn destroy_address_handle(&mut self, handle: AddressHandleId) -> Result<(), CreateError> {
        self.destinations.remove(handle)
    }

    fn destroy_queue_pair(&mut self, id: QueuePairId) -> Result<(), CreateError> {
        let queue_pair = self.queue_pair_mut(id)?;
        if queue_pair.state != QueuePairState::Error {
            queue_pair.bond.tell_closed();
        }
        self.release(slot_of(id));
        drop(self.queue_pairs.remove(id));
        self.destinations.remove_all(id);
        Ok(())
    }

    fn state(&self, queue_pair: QueuePairId) -> Option<QueuePairState> {
        self.queue_pair(queue_pair).map(|q| q.state)
    }

    fn send_room(&self, queue_pair: QueuePairId) -> u32 {
        self.queue_pair(queue_pair).map_or(0, |q| q.sends.room() as u32)
    }

    #[inline]
    fn post(
        &mut self,
        queue_pair: QueuePairId,
        request: WorkRequest<'_, RdmaMemory>,
    ) -> Result<(), PostError> {
        self.post_by(queue_pair, |found, means| found.post(request, means))
    }

    #[inline]
    fn post_list(
        &mut self,
        queue_pair: QueuePairId,
        requests: &mut [Option<WorkRequest<'_, RdmaMemory>>],
    ) -> Result<(), ListError> {
        self.post_by(queue_pair, |found, means| found.post_list(requests, means))
    }

    #[inline]
    fn post_write(&mut self, queue_pair: QueuePairId, write: InlineWrite<'_>) -> Result<(), PostError> {
        self.post_by(queue_pair, |found, means| found.post_write(write, means))
    }

    fn post_receive(
        &mut self,
        target: ReceiveTarget,
        id: dunlin_fabric::WorkId,
        buffer: Option<Buffer<RdmaMemory>>,
    ) -> Result<(), PostError> {
        let receive = Receive { id, buffer };
        // Soft-iWARP rejects RECVs without parts.
        let memory = receive.memory().or(self.device.is_iwarp.then(sys::ScatterGather::default));
        match target {
            ReceiveTarget::QueuePair(id) => {
                let found = self.queue_pairs.find_mut(id).ok_or(PostError::NoSuch("queue pair"))?;
                if found.state == QueuePairState::Error {
                    return Err(PostError::QueuePairError);
                }
                if found.receives.is_full() {
                    return Err(PostError::QueueFull);
                }
                let request = ReceiveRequest {
                    id: request_name(RequestKind::Receive, id.0, found.receives.next()),
                    memory,
                };
                let Some(handle) = &mut found.handle else { return Err(PostError::QueuePairError) };
                // SAFETY: the buffer is exclusive, and `receives` holds it until the completion of this RECV
                // or until the handle is gone.
                if let Err(error) = unsafe { handle.post_receive(request) } {
                    tracing::warn!(%error, "a queue pair takes no RECV");
                    return Err(PostError::QueueFull);
                }
                found.receives.push(receive);
            }
            ReceiveTarget::Shared(shared) => {
                let queue = self
                    .shared
                    .get_mut(shared.0 as usize)
                    .ok_or(PostError::NoSuch("shared receive queue"))?;
                let place = *queue.free.last().ok_or(PostError::QueueFull)?;
                let request =
                    ReceiveRequest { id: request_name(RequestKind::Shared, shared.0, place), memory };
                // SAFETY: the buffer is exclusive, and `posted` holds it until the completion of this RECV or
                // until the handle is gone, which is dropped first.
                if let Err(error) = unsafe { queue.handle.post(request) } {
                    tracing::warn!(%error, "a shared receive queue takes no RECV");
                    return Err(PostError::QueueFull);
                }
                queue.free.pop();
                queue.posted[place as usize] = Some(receive);
            }
        }
        Ok(())
    }

    fn poll(
        &mut self,
        queue: CompletionQueueId,
        into: &mut Vec<Completion<RdmaMemory>>,
        limit: usize,
    ) -> usize {
        let news = self.attention.news();
        if news != self.news_seen {
            self.hear_news(news);
        }
        let mut given = 0;
        while given < limit {
            let Some(found) = self.queues.get_mut(queue.0 as usize) else { return 0 };
            let room = BATCH.min(limit - given);
            let count = found.handle.poll(&mut self.batch[..room]);
            for at in 0..count {
                let raw = self.batch[at];
                if let Some(completion) = self.conclude(&raw) {
                    into.push(completion);
                    given += 1;
                }
            }
            if count < room {
                if self.flush_at != Nanos::MAX {
                    given += self.flush(queue, into, limit - given);
                }
                break;
            }
        }
        if given > 0 {
            self.idle.reset();
        }
        given
    }

    fn arm(&mut self, mode: WaitMode) -> Armed {
        if mode.sleeps() {
            self.request_notifications();
        }
        Armed { mode, token: 0 }
    }

    fn disarm(&mut self, _armed: Armed) {
        // An armed notification cannot be cancelled; at worst one sleep ends early.
    }

    fn wait(&mut self, armed: Armed, until: Nanos) -> Wake {
        if armed.mode == WaitMode::Busy {
            self.idle.wait();
            return Wake::Arrived;
        }
        let until = match self.attention.news() == self.news_seen {
            true => until.min(self.poll_by()),
            false => 0,
        };
        self.attention.rest(until)
    }

    fn arm_other(&mut self, other: &AnyWaker) -> Nanos {
        if !self.attention.other().arm(other) {
            return self.poll_by();
        }
        self.request_notifications();
        if let Err(error) = self.watch_channel() {
            tracing::warn!(%error, "the control thread cannot watch a completion channel");
            return 0;
        }
        if self.attention.news() != self.news_seen {
            self.attention.other().wake();
        }
        self.poll_by()
    }

    fn disarm_other(&mut self) {
        self.attention.other().disarm();
    }

    fn waker(&self) -> RdmaWaker {
        RdmaWaker(Arc::clone(&self.attention))
    }

    fn watch(&mut self, _region: &Region<RdmaMemory>) {}

    fn unwatch(&mut self, _region: &Region<RdmaMemory>) {}
}

impl Drop for RdmaDomain {
    fn drop(&mut self) {
        self.attention.other().disarm();
        if let Some(number) = self.watched {
            self.control.reactor().remove(number, self.attention.channel().descriptor());
        }
        for slot in 0..self.queue_pairs.len() {
            if let Some(id) = self.queue_pairs[slot].as_ref().map(|q| q.id)
                && let Err(error) = self.destroy_queue_pair(id)
            {
                tracing::error!(%error, "a queue pair cannot be destroyed with its domain");
            }
        }
        self.queues.iter().for_each(|queue| self.device.health.forget(queue.handle.object()));
        self.shared.iter().for_each(|shared| self.device.health.forget(shared.handle.object()));
    }
}
