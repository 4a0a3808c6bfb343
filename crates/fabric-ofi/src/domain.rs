//! A thread domain: the completion queues, queue pairs and shared receive queues of one thread, and its
//! waits.
//!
//! The provider has one completion queue for the domain. The user's completion queues are lists that are
//! filled from it, in the order in which requests of each queue pair were posted.

use crate::arrival::{Verdict, received, status};
use crate::device::Device;
use crate::domain_waiter::{CONNECTING_SLEEP, DomainWaiter, OfiWaker, Rest};
use crate::handles::{BATCH, CompletionQueue, Entry, SharedReceives};
use crate::memory::OfiMemory;
use crate::progress_thread::Running;
use crate::queue_pair::QueuePair;
use crate::receives::Receives;
use crate::shared::Shared;
use crate::{Control, OfiLink};
use dunlin_fabric::idle::Idle;
use dunlin_fabric::queue_pair_table::slot_of;
use dunlin_fabric::{
    AddressHandleId, Armed, Buffer, Capabilities, Completion, CompletionQueueId, CreateError, Endpoint, Host,
    Nanos, PostError, QueuePairConfig, QueuePairId, QueuePairState, QueuePairTable, REQUEST_OWNER, RealHost,
    ReceiveTarget, Region, RequestKind, SharedReceiveQueueId, ThreadDomain, WaitMode, Wake, WorkId,
    WorkRequest, parse_request_name,
};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::Arc;

/// The maximum depth of a completion queue.
const MAX_COMPLETIONS: u32 = 1 << 20;
/// The initial number of entries of the provider's queue, which grows by itself.
const PROVIDER_COMPLETIONS: usize = 1024;
/// The number of polls between two checks of connections that are being made.
const CONNECTING_EVERY: u32 = 16;

/// A completion queue of the user.
#[derive(Debug)]
struct Queue {
    events: bool,
    ready: VecDeque<Completion<OfiMemory>>,
}

/// One thread's part of the data path; see [`ThreadDomain`].
#[derive(Debug)]
pub struct OfiDomain {
    // Fields are dropped in order: users before the objects that they need.
    pub(crate) queue_pairs: QueuePairTable<QueuePair>,
    shared: Vec<Shared>,
    /// By device-wide number, with which the message of a shared RECV names its queue pair.
    by_number: BTreeMap<u32, u16>,
    queues: Vec<Queue>,
    /// Slots of queue pairs with requests to give to the provider.
    pending: Vec<u16>,
    /// Slots of broken queue pairs, which are flushed after all earlier completions were taken.
    failing: Vec<u16>,
    /// The number of queue pairs that wait for their other end.
    pub(crate) connecting: u32,
    looks: u32,
    pub(crate) news_seen: u64,
    idle: Idle,
    capabilities: Arc<Capabilities>,
    pub(crate) attention: Arc<DomainWaiter>,
    pub(crate) device: Arc<Device>,
    _control: Arc<Control>,
    _running: Arc<Running>,
}

impl OfiDomain {
    pub(crate) fn new(
        capabilities: Arc<Capabilities>,
        device: Arc<Device>,
        control: Arc<Control>,
        running: Arc<Running>,
    ) -> Result<Self, CreateError> {
        let attention = DomainWaiter::new().map_err(CreateError::system("an eventfd"))?;
        device.keeper.look_after(&attention);
        Ok(OfiDomain {
            queue_pairs: QueuePairTable::default(),
            shared: Vec::new(),
            by_number: BTreeMap::new(),
            queues: Vec::new(),
            pending: Vec::new(),
            failing: Vec::new(),
            connecting: 0,
            looks: 0,
            news_seen: 0,
            idle: Idle::default(),
            capabilities,
            attention,
            device,
            _control: control,
            _running: running,
        })
    }

    pub(crate) fn queue_pair_mut(&mut self, id: QueuePairId) -> Result<&mut QueuePair, CreateError> {
        self.queue_pairs.find_mut(id).ok_or(CreateError::NoSuch("queue pair"))
    }

    pub(crate) fn queue_pair(&self, id: QueuePairId) -> Option<&QueuePair> {
        self.queue_pairs.find(id)
    }

    /// Returns the shared receives of a queue pair.
    pub(crate) fn shared_by(&self, config: &QueuePairConfig) -> Option<Arc<SharedReceives>> {
        let shared = self.shared.get(config.shared_receive?.0 as usize)?;
        Some(Arc::clone(&shared.handle))
    }

    /// Records that the other end of a queue pair is there.
    pub(crate) fn meet(&mut self, slot: usize) {
        let Some(queue_pair) = self.queue_pairs.get_mut(slot).and_then(Option::as_mut) else { return };
        if !std::mem::replace(&mut queue_pair.met, true) {
            self.connecting -= 1;
            if let Some(kept) = &mut queue_pair.kept {
                kept.meet();
            }
        }
    }

    /// Returns whether sleeps are short: something waits for the provider, which does not say when.
    fn is_short(&self) -> bool {
        self.connecting > 0 || !self.pending.is_empty()
    }

    /// Gives a queue pair's waiting requests to the provider, and lists it if some still wait.
    #[inline]
    pub(crate) fn drive(&mut self, slot: usize) {
        let Some(queue_pair) = self.queue_pairs.get_mut(slot).and_then(Option::as_mut) else { return };
        match queue_pair.drive() {
            Ok(false) => {}
            Ok(true) => {
                if !std::mem::replace(&mut queue_pair.is_pending, true) {
                    self.pending.push(slot as u16);
                }
            }
            Err(error) => {
                tracing::warn!(%error, "a queue pair takes no work requests");
                self.fail(slot);
            }
        }
        self.emit(slot);
    }

    /// Moves a queue pair's ended requests into completion queues.
    #[inline]
    fn emit(&mut self, slot: usize) {
        let Some(queue_pair) = self.queue_pairs.get_mut(slot).and_then(Option::as_mut) else { return };
        let (sends, receives) =
            (queue_pair.config.send_completions.0 as usize, queue_pair.config.receive_completions.0 as usize);
        while let Some(completion) = queue_pair.take_sent() {
            if let Some(queue) = self.queues.get_mut(sends) {
                queue.ready.push_back(completion);
            }
        }
        while let Some(completion) = queue_pair.take_received() {
            if let Some(queue) = self.queues.get_mut(receives) {
                queue.ready.push_back(completion);
            }
        }
    }

    /// Breaks a queue pair, because it or its other end has failed. Closes its endpoint, notifies the other
    /// end, and schedules the flush of all posted requests.
    pub(crate) fn fail(&mut self, slot: usize) {
        let Some(queue_pair) = self.queue_pairs.get_mut(slot).and_then(Option::as_mut) else { return };
        if queue_pair.state == QueuePairState::Error {
            return;
        }
        queue_pair.state = QueuePairState::Error;
        queue_pair.bond.tell_closed();
        self.close(slot);
        self.failing.push(slot as u16);
    }

    /// Closes a queue pair's endpoint and gives up its connection.
    fn close(&mut self, slot: usize) {
        let Some(queue_pair) = self.queue_pairs.get_mut(slot).and_then(Option::as_mut) else { return };
        if let Some(open) = queue_pair.open.take() {
            if queue_pair.features.is_connected() {
                self.device.forget(open.endpoint.name());
            }
            drop(open.endpoint);
            self.device.retired.closed(open.number);
        }
        queue_pair.datagram = None;
        queue_pair.awaited = None;
        if queue_pair.kept.take().is_some() && !std::mem::replace(&mut queue_pair.met, true) {
            self.connecting -= 1;
        }
        queue_pair.bond.detach(queue_pair.number.into());
    }

    /// Processes events of links, connections and the other ends of queue pairs.
    fn hear_news(&mut self) {
        self.news_seen = self.attention.news();
        let now = if self.connecting > 0 { RealHost.now() } else { 0 };
        for slot in 0..self.queue_pairs.len() {
            let Some(queue_pair) = &self.queue_pairs[slot] else { continue };
            if queue_pair.state != QueuePairState::Ready {
                if queue_pair.state == QueuePairState::Initialised && queue_pair.is_orphan() {
                    self.fail(slot);
                }
                continue;
            }
            if queue_pair.is_orphan() || (!queue_pair.met && now >= queue_pair.meet_by) {
                self.fail(slot);
                continue;
            }
            if queue_pair.met {
                continue;
            }
            if queue_pair.awaited.as_ref().is_some_and(|awaited| awaited.failed.is_raised()) {
                self.fail(slot);
                continue;
            }
            if queue_pair.open.is_none()
                && let Some(open) = queue_pair.awaited.as_ref().and_then(|awaited| awaited.take())
                && let Some(queue_pair) = self.queue_pairs.get_mut(slot).and_then(Option::as_mut)
            {
                queue_pair.open = Some(open);
                self.drive(slot);
            }
            // Nothing may be sent before libfabric reports the connection: version 1.17 would send it before
            // its own reply.
            let open = self.queue_pair_at(slot).and_then(|queue_pair| queue_pair.open.as_ref());
            if open.is_some_and(|open| open.connection.connected.is_raised()) {
                self.meet(slot);
                self.drive(slot);
            }
        }
    }

    fn queue_pair_at(&self, slot: usize) -> Option<&QueuePair> {
        self.queue_pairs.get(slot)?.as_ref()
    }

    /// Takes the provider's completions, and gives it waiting requests.
    fn progress(&mut self) {
        self.attention.attendance.has_polled();
        if self.connecting > 0 {
            self.looks = self.looks.wrapping_add(1);
            if self.looks.is_multiple_of(CONNECTING_EVERY) {
                self.device.hear();
                self.hear_news();
            }
        }
        if self.attention.news() != self.news_seen {
            self.hear_news();
        }
        loop {
            self.take_completions();
            let failing = std::mem::take(&mut self.failing);
            for slot in &failing {
                if let Some(queue_pair) =
                    self.queue_pairs.get_mut(usize::from(*slot)).and_then(Option::as_mut)
                {
                    queue_pair.flush();
                }
                self.emit(usize::from(*slot));
            }
            if self.pending.is_empty() {
                break;
            }
            for slot in std::mem::take(&mut self.pending) {
                if let Some(queue_pair) = self.queue_pairs.get_mut(usize::from(slot)).and_then(Option::as_mut)
                {
                    queue_pair.is_pending = false;
                }
                self.drive(usize::from(slot));
            }
            if self.failing.is_empty() {
                break;
            }
        }
    }

    #[inline]
    fn take_completions(&mut self) {
        let mut batch = [Entry { context: 0, length: 0, error: 0 }; BATCH];
        loop {
            let count = self.attention.queue().map_or(0, |queue| queue.read(&mut batch));
            for entry in &batch[..count] {
                self.conclude(entry);
            }
            // A single error entry does not mean that no entry follows.
            if count == 0 || (count < BATCH && batch[0].error == 0) {
                return;
            }
        }
    }

    /// Processes one completion entry of the provider.
    #[inline]
    fn conclude(&mut self, entry: &Entry) {
        let Some((kind, owner, number)) = parse_request_name(entry.context) else { return };
        if kind == RequestKind::Shared {
            return self.conclude_shared(entry, owner, number);
        }
        let slot = slot_of(QueuePairId(owner));
        let Some(queue_pair) = self.queue_pairs.get_mut(slot).and_then(Option::as_mut) else { return };
        if queue_pair.id.0 & REQUEST_OWNER != owner {
            return;
        }
        let (failed, drives) = match kind {
            RequestKind::Send => {
                let failed = (entry.error != 0).then(|| status(entry.error, false));
                queue_pair.sends.complete(number, failed);
                (failed.is_some(), false)
            }
            RequestKind::Credit => {
                let Some(datagram) = &mut queue_pair.datagram else { return };
                datagram.told();
                (entry.error != 0, datagram.owes().is_some())
            }
            RequestKind::Receive | RequestKind::Shared => match queue_pair.receive(entry, number) {
                Verdict::Ours => {
                    let owes = queue_pair.datagram.as_ref().is_some_and(|datagram| datagram.owes().is_some());
                    (false, owes)
                }
                Verdict::Stray => {
                    self.device.has_stray();
                    (false, true)
                }
                Verdict::Broken => (true, false),
            },
        };
        if failed {
            self.fail(slot);
        } else if drives && queue_pair.state == QueuePairState::Ready && !queue_pair.is_pending {
            return self.drive(slot);
        }
        self.emit(slot);
    }

    /// Processes the completion of a shared RECV, whose message names its queue pair.
    fn conclude_shared(&mut self, entry: &Entry, owner: u32, place: u32) {
        let Some(shared) = self.shared.get_mut(owner as usize) else { return };
        let mut slot = None;
        let how = if entry.error != 0 {
            Err("its connection ended")
        } else {
            // SAFETY: the RECV has completed.
            let header = unsafe { shared.receives.header(place) };
            let (queue_pairs, by_number) = (&self.queue_pairs, &self.by_number);
            received(&header, entry.length, |header| {
                slot = by_number.get(&header.number).copied().filter(|slot| {
                    queue_pairs.get(usize::from(*slot)).and_then(Option::as_ref).is_some_and(|queue_pair| {
                        queue_pair.secret == header.secret
                            && queue_pair.config.shared_receive.is_some_and(|id| id.0 == owner)
                    })
                });
                slot.is_some()
            })
        };
        let (Ok((_, how)), Some(slot)) = (how, slot) else {
            // The queue pair of the message is gone or broken, so the RECV is posted again.
            shared.receives.post_again(place);
            return shared.drive(owner);
        };
        // SAFETY: the RECV has completed.
        let Some(receive) = (unsafe { shared.receives.take(place, how.carried()) }) else { return };
        shared.drive(owner);
        let Some(queue_pair) = self.queue_pairs.get(usize::from(slot)).and_then(Option::as_ref) else {
            return;
        };
        let completion = receive.concluded(queue_pair.id, how);
        if let Some(queue) = self.queues.get_mut(queue_pair.config.receive_completions.0 as usize) {
            queue.ready.push_back(completion);
        }
    }

    /// Creates the provider's queue if it does not exist. A descriptor to sleep on makes each round trip over
    /// `tcp` slower (`epoll` instead of `poll`), so the queue has one only if the domain has an event queue
    /// by then. A domain that creates its first event queue later naps instead.
    fn open_queue(&self) -> io::Result<()> {
        let sleeps = self.queues.iter().any(|queue| queue.events);
        let has_descriptor = sleeps && self.device.features.is_connected();
        let make = || CompletionQueue::new(&self.device.domain, PROVIDER_COMPLETIONS, has_descriptor);
        self.attention.queue_or(make).map(|_| ())
    }

    fn has_events(&self) -> bool {
        self.queues.iter().any(|queue| queue.events && !queue.ready.is_empty())
    }
}

impl ThreadDomain for OfiDomain {
    type Memory = OfiMemory;
    type Link = OfiLink;
    type Waker = OfiWaker;

    fn create_completion_queue(
        &mut self,
        depth: u32,
        events: bool,
    ) -> Result<CompletionQueueId, CreateError> {
        CreateError::check_limit("the completion queue's depth", depth, MAX_COMPLETIONS)?;
        self.queues.push(Queue { events, ready: VecDeque::with_capacity(depth as usize) });
        Ok(CompletionQueueId(self.queues.len() as u32 - 1))
    }

    fn create_shared_receive_queue(&mut self, depth: u32) -> Result<SharedReceiveQueueId, CreateError> {
        if !self.capabilities.shared_receive_queue {
            return Err(CreateError::Unsupported("shared receive queues"));
        }
        CreateError::check_limit(
            "the shared receive queue's depth",
            depth,
            self.capabilities.max_queue_depth,
        )?;
        let depth = depth.max(1);
        let handle = SharedReceives::new(&self.device.domain, &self.device.info)
            .map_err(CreateError::system("a shared receive context"))?;
        let parts = self.device.features.receive_parts;
        let receives = Receives::new(depth, parts).map_err(CreateError::system("memory"))?;
        self.shared.push(Shared { handle, receives });
        Ok(SharedReceiveQueueId(self.shared.len() as u32 - 1))
    }

    fn create_queue_pair(&mut self, config: &QueuePairConfig) -> Result<QueuePairId, CreateError> {
        CreateError::check_limit("max_send", config.max_send, self.capabilities.max_queue_depth)?;
        CreateError::check_limit("max_receive", config.max_receive, self.capabilities.max_queue_depth)?;
        if !self.capabilities.transports.contains(config.transport) {
            return Err(CreateError::Unsupported("queue pairs of that transport"));
        }
        for queue in [config.send_completions, config.receive_completions] {
            self.queues.get(queue.0 as usize).ok_or(CreateError::NoSuch("completion queue"))?;
        }
        if let Some(shared) = config.shared_receive {
            self.shared.get(shared.0 as usize).ok_or(CreateError::NoSuch("shared receive queue"))?;
        }
        self.open_queue().map_err(CreateError::system("a completion queue"))?;
        let most = self.capabilities.max_queue_pairs;
        let id = self.queue_pairs.reserve(most)?;
        let number = self.device.next_number();
        let (identity, features) = ((number, RealHost.random()), &self.device.features);
        let made = QueuePair::new(id, *config, identity, self.capabilities.max_inline, features);
        match made {
            Ok(queue_pair) => self.queue_pairs.insert(queue_pair),
            Err(error) => {
                self.queue_pairs.cancel(id);
                return Err(CreateError::system("a queue pair's memory")(error));
            }
        }
        self.by_number.insert(number, slot_of(id) as u16);
        Ok(id)
    }

    fn endpoint(&mut self, queue_pair: QueuePairId, link: &OfiLink) -> Result<Endpoint, CreateError> {
        self.make_endpoint(queue_pair, link)
    }

    fn connect(
        &mut self,
        queue_pair: QueuePairId,
        link: &OfiLink,
        remote: &Endpoint,
    ) -> Result<(), CreateError> {
        self.connect_to(queue_pair, link, remote)
    }

    fn create_address_handle(
        &mut self,
        queue_pair: QueuePairId,
        _link: &OfiLink,
        _remote: &Endpoint,
    ) -> Result<AddressHandleId, CreateError> {
        self.queue_pair_mut(queue_pair)?;
        Err(CreateError::State("only datagram queue pairs take address handles"))
    }

    fn destroy_address_handle(&mut self, _handle: AddressHandleId) -> Result<(), CreateError> {
        Err(CreateError::NoSuch("address handle"))
    }

    fn destroy_queue_pair(&mut self, id: QueuePairId) -> Result<(), CreateError> {
        let queue_pair = self.queue_pair_mut(id)?;
        let number = queue_pair.number;
        if queue_pair.state != QueuePairState::Error {
            queue_pair.bond.tell_closed();
        }
        self.close(slot_of(id));
        self.by_number.remove(&number);
        drop(self.queue_pairs.remove(id));
        self.pending.retain(|slot| usize::from(*slot) != slot_of(id));
        self.failing.retain(|slot| usize::from(*slot) != slot_of(id));
        // Completions of the queue pair are dropped with it.
        for queue in &mut self.queues {
            queue.ready.retain(|completion| completion.queue_pair != id);
        }
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
        request: WorkRequest<'_, OfiMemory>,
    ) -> Result<(), PostError> {
        self.idle.reset();
        let found = self.queue_pairs.find_mut(queue_pair).ok_or(PostError::NoSuch("queue pair"))?;
        if request.operation.local_region().is_some_and(|r| !r.region().memory().is_of(&self.device)) {
            return Err(PostError::ForeignRegion);
        }
        found.post(request, &self.capabilities)?;
        if !found.is_pending {
            self.drive(slot_of(queue_pair));
        }
        Ok(())
    }

    fn post_receive(
        &mut self,
        target: ReceiveTarget,
        id: WorkId,
        buffer: Option<Buffer<OfiMemory>>,
    ) -> Result<(), PostError> {
        match target {
            ReceiveTarget::QueuePair(target) => {
                let found = self.queue_pairs.find_mut(target).ok_or(PostError::NoSuch("queue pair"))?;
                if found.state == QueuePairState::Error {
                    return Err(PostError::QueuePairError);
                }
                if !found.receives.push(id, buffer) {
                    return Err(PostError::QueueFull);
                }
                if !found.is_pending {
                    self.drive(slot_of(target));
                }
            }
            ReceiveTarget::Shared(target) => {
                let queue = self
                    .shared
                    .get_mut(target.0 as usize)
                    .ok_or(PostError::NoSuch("shared receive queue"))?;
                if !queue.receives.push(id, buffer) {
                    return Err(PostError::QueueFull);
                }
                queue.drive(target.0);
            }
        }
        Ok(())
    }

    fn poll(
        &mut self,
        queue: CompletionQueueId,
        into: &mut Vec<Completion<OfiMemory>>,
        limit: usize,
    ) -> usize {
        let at = queue.0 as usize;
        // Polling the provider is a system call, so it is skipped if an earlier poll has already filled this
        // queue.
        if self.queues.get(at).is_none_or(|queue| queue.ready.is_empty()) {
            self.progress();
        }
        let Some(queue) = self.queues.get_mut(at) else { return 0 };
        let count = queue.ready.len().min(limit);
        into.extend(queue.ready.drain(..count));
        if count > 0 {
            self.idle.reset();
            self.attention.has_come();
        }
        count
    }

    fn arm(&mut self, mode: WaitMode) -> Armed {
        // A waker's thread cannot give requests to the provider: it comes back soon for those that it has not taken.
        Armed { mode, token: self.is_short().into() }
    }

    fn disarm(&mut self, _armed: Armed) {}

    fn wait(&mut self, armed: Armed, until: Nanos) -> Wake {
        if armed.mode == WaitMode::Busy {
            self.idle.wait();
            return Wake::Arrived;
        }
        loop {
            self.progress();
            if self.has_events() {
                return Wake::Arrived;
            }
            let soon = RealHost.now().saturating_add(CONNECTING_SLEEP);
            let is_short = self.is_short() && soon < until;
            match self.attention.rest(if is_short { soon } else { until }) {
                Rest::Called => return Wake::Arrived,
                Rest::TimedOut if !is_short => return Wake::TimedOut,
                Rest::TimedOut | Rest::Progress => {}
            }
        }
    }

    fn waker(&self) -> OfiWaker {
        OfiWaker(Arc::clone(&self.attention))
    }

    fn watch(&mut self, _region: &Region<OfiMemory>) {}

    fn unwatch(&mut self, _region: &Region<OfiMemory>) {}
}

impl Drop for OfiDomain {
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
