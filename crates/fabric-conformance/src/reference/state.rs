//! The state shared by all objects, and the execution of work requests.

use dunlin_fabric::memory::HeapMemory;
use dunlin_fabric::{
    Access, Address, Buffer, Completion, CompletionQueueId, CompletionStatus, Host, Memory, Nanos, Opcode,
    OtherDomain, QueuePairConfig, QueuePairId, QueuePairState, RealHost, RegionKey, RegionRange, RnrRetry,
    SharedReceiveQueueId, Subscription, Transport, WorkId, copy,
};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

type RealSignal = <RealHost as Host>::Signal;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LinkId(u64);
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct DomainId(pub(super) u64);
/// A queue pair, by its domain and its number there.
pub(super) type Pair = (DomainId, QueuePairId);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Dialled,
    Accepted,
}

impl Side {
    pub(super) fn other(self) -> Side {
        if self == Side::Dialled { Side::Accepted } else { Side::Dialled }
    }
}

#[derive(Debug, Default)]
pub(super) struct World {
    state: Mutex<State>,
    pub(super) changed: Condvar,
}

impl World {
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn version(&self) -> u64 {
        self.lock().version
    }

    /// Waits for any change; returns `false` at the deadline.
    pub(super) fn wait(&self, seen: u64, until: Nanos) -> bool {
        let mut state = self.lock();
        while state.version == seen {
            let left = until.saturating_sub(RealHost.now());
            if left == 0 {
                return false;
            }
            let left = Duration::from_nanos(left.min(10_000_000));
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }
}

#[derive(Debug, Default)]
pub(super) struct State {
    /// Increases with each change that a thread may wait for.
    pub(super) version: u64,
    pub(super) next: u64,
    pub(super) listeners: BTreeMap<Address, Listening>,
    pub(super) links: BTreeMap<LinkId, LinkState>,
    pub(super) domains: BTreeMap<DomainId, DomainState>,
}

#[derive(Debug, Default)]
pub(super) struct Listening {
    pub(super) waiting: VecDeque<LinkId>,
    pub(super) signal: Option<RealSignal>,
}

#[derive(Debug)]
pub(super) struct LinkState {
    pub(super) alive: Arc<AtomicBool>,
    /// Indexed by [`Side`].
    pub(super) ends: [LinkSide; 2],
}

#[derive(Debug, Default)]
pub(super) struct LinkSide {
    pub(super) inbox: VecDeque<Vec<u8>>,
    pub(super) subscription: Option<Subscription<RealSignal>>,
    /// The grants of this side.
    pub(super) grants: BTreeMap<RegionKey, (Arc<HeapMemory>, Access)>,
}

#[derive(Debug, Default)]
pub(super) struct DomainState {
    pub(super) queues: BTreeMap<CompletionQueueId, Queue>,
    pub(super) shared: BTreeMap<SharedReceiveQueueId, ReceiveQueue>,
    pub(super) pairs: BTreeMap<QueuePairId, PairState>,
    /// The number of completions in queues with events, and of calls of the waker.
    pub(super) events: u64,
    pub(super) next: u32,
    /// The domain whose thread the next event wakes.
    pub(super) other: OtherDomain,
}

impl DomainState {
    /// Wakes the other domain's thread. A thread of its own does that, since the waker may need the world's lock.
    pub(super) fn wake_other(&self) {
        if let Some(other) = self.other.take() {
            std::thread::spawn(move || other.wake());
        }
    }
}

#[derive(Debug)]
pub(super) struct Queue {
    pub(super) events: bool,
    /// Each completion, with the number of the last send request whose slot polling it frees.
    pub(super) ready: VecDeque<(Completion<HeapMemory>, Option<u64>)>,
}

#[derive(Debug, Default)]
pub(super) struct ReceiveQueue {
    pub(super) depth: u32,
    pub(super) posted: VecDeque<(WorkId, Option<Buffer<HeapMemory>>)>,
}

#[derive(Debug)]
pub(super) struct PairState {
    pub(super) config: QueuePairConfig,
    pub(super) state: QueuePairState,
    pub(super) link: Option<(LinkId, Side)>,
    pub(super) remote: Option<Pair>,
    pub(super) sends: VecDeque<Sent>,
    /// The number of requests ever posted, and below, of those whose slots are free again.
    pub(super) posted: u64,
    pub(super) freed: u64,
    pub(super) receives: ReceiveQueue,
    /// The time at which the head of the send queue gives up waiting for a RECV.
    pub(super) gives_up: Option<Nanos>,
    /// The destinations of datagrams.
    pub(super) handles: BTreeMap<u32, Pair>,
}

#[derive(Debug)]
pub(super) struct Sent {
    pub(super) id: WorkId,
    pub(super) signaled: bool,
    pub(super) sequence: u64,
    pub(super) what: What,
}

/// The destination of a READ.
#[derive(Debug)]
pub(super) enum Destination {
    Buffer(Buffer<HeapMemory>),
    Region(RegionRange<HeapMemory>),
}

impl Destination {
    /// Returns the address of the first `length` bytes, if there are so many.
    fn room(&mut self, length: usize) -> Option<*mut u8> {
        match self {
            Destination::Buffer(buffer) => buffer.get_mut(..length).map(<[u8]>::as_mut_ptr),
            Destination::Region(range) => (length <= range.length()).then(|| range.start()),
        }
    }
}

/// An operation with a copy of its data: no buffer is in flight for longer than the lock is held.
#[derive(Debug)]
pub(super) enum What {
    Send { data: Vec<u8>, immediate: Option<u32>, to: Option<u32> },
    Write { data: Vec<u8>, key: RegionKey, offset: u64, immediate: Option<u32> },
    Read { key: RegionKey, offset: u64, length: u32, into: Destination },
    FetchAdd { key: RegionKey, offset: u64, add: u64 },
    CompareSwap { key: RegionKey, offset: u64, expected: u64, swap: u64 },
}

impl What {
    fn opcode(&self) -> Opcode {
        match self {
            What::Send { .. } => Opcode::Send,
            What::Write { .. } => Opcode::Write,
            What::Read { .. } => Opcode::Read,
            What::FetchAdd { .. } => Opcode::FetchAdd,
            What::CompareSwap { .. } => Opcode::CompareSwap,
        }
    }

    /// Returns the buffer that the completion returns.
    fn into_buffer(self) -> Option<Buffer<HeapMemory>> {
        match self {
            What::Read { into: Destination::Buffer(buffer), .. } => Some(buffer),
            _ => None,
        }
    }

    fn always_completes(&self) -> bool {
        matches!(self, What::Read { .. } | What::FetchAdd { .. } | What::CompareSwap { .. })
    }
}

/// The result of executing the head of a send queue.
enum Outcome {
    Done { bytes: u32, value: u64 },
    Failed(CompletionStatus),
    Waits,
}

const DONE: Outcome = Outcome::Done { bytes: 0, value: 0 };

impl State {
    pub(super) fn new_link(&mut self) -> LinkId {
        self.next += 1;
        self.version += 1;
        let id = LinkId(self.next);
        let alive = Arc::new(AtomicBool::new(true));
        self.links.insert(id, LinkState { alive, ends: Default::default() });
        id
    }

    pub(super) fn link(&mut self, id: LinkId) -> &mut LinkState {
        self.links.get_mut(&id).expect("links are kept for good")
    }

    pub(super) fn pair(&mut self, (domain, id): Pair) -> Option<&mut PairState> {
        self.domains.get_mut(&domain)?.pairs.get_mut(&id)
    }

    pub(super) fn close(&mut self, id: LinkId) {
        self.version += 1;
        let link = self.link(id);
        if !link.alive.swap(false, Ordering::AcqRel) {
            return;
        }
        for end in &mut link.ends {
            end.grants.clear();
            if let Some(subscription) = &end.subscription {
                subscription.raise();
            }
        }
        let on_it: Vec<Pair> = self
            .domains
            .iter()
            .flat_map(|(domain, state)| state.pairs.iter().map(|(pair, state)| ((*domain, *pair), state)))
            .filter(|(_, state)| state.link.is_some_and(|(link, _)| link == id))
            .map(|(pair, _)| pair)
            .collect();
        for pair in on_it {
            self.break_pair(pair, Some(CompletionStatus::TransportRetry));
        }
    }

    pub(super) fn complete(
        &mut self,
        domain: DomainId,
        queue: CompletionQueueId,
        completion: Completion<HeapMemory>,
        frees: Option<u64>,
    ) {
        self.version += 1;
        let Some(domain) = self.domains.get_mut(&domain) else { return };
        let Some(queue) = domain.queues.get_mut(&queue) else { return };
        queue.ready.push_back((completion, frees));
        domain.events += queue.events as u64;
        if queue.events {
            domain.wake_other();
        }
    }

    /// Puts a queue pair and its peer into the error state. The head of the send queue ends with `status`, if
    /// given; all other requests are flushed.
    pub(super) fn break_pair(&mut self, pair: Pair, mut status: Option<CompletionStatus>) {
        self.version += 1;
        let Some(state) = self.pair(pair) else { return };
        if state.state == QueuePairState::Error {
            return;
        }
        if let Some(domain) = self.domains.get(&pair.0) {
            domain.wake_other();
        }
        let Some(state) = self.pair(pair) else { return };
        state.state = QueuePairState::Error;
        let config = state.config;
        let sends = std::mem::take(&mut state.sends);
        let receives = std::mem::take(&mut state.receives.posted);
        let remote = state.remote;
        for sent in sends {
            let opcode = sent.what.opcode();
            let status = status.take().unwrap_or(CompletionStatus::Flushed);
            let buffer = sent.what.into_buffer();
            let completion = Completion { buffer, ..plain(sent.id, status, opcode, pair.1) };
            self.complete(pair.0, config.send_completions, completion, Some(sent.sequence));
        }
        for (id, buffer) in receives {
            let completion =
                Completion { buffer, ..plain(id, CompletionStatus::Flushed, Opcode::Receive, pair.1) };
            self.complete(pair.0, config.receive_completions, completion, None);
        }
        if let Some(remote) = remote
            && self.pair(remote).is_some_and(|state| state.remote == Some(pair))
        {
            self.break_pair(remote, None);
        }
    }

    /// Executes the requests at the head of a send queue, as far as possible.
    pub(super) fn run(&mut self, pair: Pair) {
        while let Some(state) = self.pair(pair)
            && state.state == QueuePairState::Ready
            && let Some(mut sent) = state.sends.pop_front()
        {
            let (config, link, remote) = (state.config, state.link, state.remote);
            let reliable = config.transport == Transport::ReliableConnection;
            let target = match &sent.what {
                What::Send { to: Some(handle), .. } => state.handles.get(handle).copied(),
                _ => remote,
            };
            let outcome = match target {
                // Only this side is connected: waits for the peer.
                Some(target)
                    if config.transport != Transport::UnreliableDatagram
                        && self.pair(target).is_some_and(|t| t.state == QueuePairState::Initialised) =>
                {
                    Outcome::Waits
                }
                Some(target) => self.execute(&mut sent.what, link, target),
                None => Outcome::Failed(CompletionStatus::TransportRetry),
            };
            let outcome = match outcome {
                Outcome::Failed(_) if !reliable => DONE,
                Outcome::Waits if config.transport == Transport::UnreliableDatagram => DONE,
                Outcome::Waits if !reliable && target.is_some_and(|t| self.is_ready(t)) => DONE,
                other => other,
            };
            let Some(state) = self.pair(pair) else { return };
            match outcome {
                Outcome::Waits => {
                    state.sends.push_front(sent);
                    let now = RealHost.now();
                    match (state.gives_up, config.rnr_retry) {
                        (None, RnrRetry::Count(tries)) => {
                            state.gives_up = Some(now + u64::from(tries) * config.rnr_timer);
                        }
                        (Some(then), _) if then <= now => {
                            self.break_pair(pair, Some(CompletionStatus::ReceiverNotReady));
                        }
                        _ => {}
                    }
                    return;
                }
                Outcome::Done { bytes, value } => {
                    state.gives_up = None;
                    if sent.signaled || sent.what.always_completes() {
                        let opcode = sent.what.opcode();
                        let buffer = sent.what.into_buffer();
                        let plain = plain(sent.id, CompletionStatus::Success, opcode, pair.1);
                        let completion = Completion { bytes, value, buffer, ..plain };
                        self.complete(pair.0, config.send_completions, completion, Some(sent.sequence));
                    }
                }
                Outcome::Failed(status) => {
                    state.sends.push_front(sent);
                    self.break_pair(pair, Some(status));
                    return;
                }
            }
        }
    }

    fn is_ready(&mut self, pair: Pair) -> bool {
        self.pair(pair).is_some_and(|state| state.state == QueuePairState::Ready)
    }

    fn execute(&mut self, what: &mut What, link: Option<(LinkId, Side)>, target: Pair) -> Outcome {
        if self.pair(target).is_none_or(|state| state.state == QueuePairState::Error) {
            return Outcome::Failed(CompletionStatus::TransportRetry);
        }
        let access = CompletionStatus::RemoteAccess;
        match what {
            What::Send { data, immediate, .. } => self.deliver(target, data, *immediate, Opcode::Receive),
            What::Write { data, key, offset, immediate } => {
                if !data.is_empty() {
                    let Some(memory) = self.granted(link, *key, *offset, data.len() as u64, Access::WRITE)
                    else {
                        return Outcome::Failed(access);
                    };
                    // SAFETY: `granted` has checked that the range is in bounds of registered memory.
                    unsafe { copy::to_peer(data.as_ptr(), at(&memory, *offset), data.len()) };
                }
                match immediate {
                    Some(_) => {
                        let length = data.len() as u32;
                        match self.deliver(target, &[], *immediate, Opcode::ReceiveWriteImmediate) {
                            Outcome::Done { .. } => self.patch_length(target, length),
                            other => other,
                        }
                    }
                    None => DONE,
                }
            }
            What::Read { key, offset, length, into } => {
                let length = *length as usize;
                if length > 0 {
                    let Some(memory) = self.granted(link, *key, *offset, length as u64, Access::READ) else {
                        return Outcome::Failed(access);
                    };
                    let Some(into) = into.room(length) else {
                        return Outcome::Failed(CompletionStatus::LocalLength);
                    };
                    // SAFETY: `granted` has checked that the range is in bounds of registered memory, and `room`
                    // that the destination is long enough.
                    unsafe { copy::from_peer(at(&memory, *offset), into, length) };
                }
                Outcome::Done { bytes: length as u32, value: 0 }
            }
            What::FetchAdd { key, offset, add } => {
                let add = *add;
                self.atomic(link, *key, *offset, |word| word.fetch_add(add, Ordering::AcqRel))
            }
            What::CompareSwap { key, offset, expected, swap } => {
                let (expected, swap) = (*expected, *swap);
                self.atomic(link, *key, *offset, |word| {
                    word.compare_exchange(expected, swap, Ordering::AcqRel, Ordering::Acquire)
                        .unwrap_or_else(|found| found)
                })
            }
        }
    }

    fn atomic(
        &mut self,
        link: Option<(LinkId, Side)>,
        key: RegionKey,
        offset: u64,
        change: impl FnOnce(&AtomicU64) -> u64,
    ) -> Outcome {
        if !offset.is_multiple_of(8) {
            return Outcome::Failed(CompletionStatus::RemoteInvalidRequest);
        }
        let Some(memory) = self.granted(link, key, offset, 8, Access::ATOMIC) else {
            return Outcome::Failed(CompletionStatus::RemoteAccess);
        };
        // SAFETY: `granted` has checked that the range is in bounds of registered memory, and it is aligned.
        let word = unsafe { AtomicU64::from_ptr(at(&memory, offset).cast()) };
        Outcome::Done { bytes: 8, value: change(word) }
    }

    fn granted(
        &mut self,
        link: Option<(LinkId, Side)>,
        key: RegionKey,
        offset: u64,
        length: u64,
        access: Access,
    ) -> Option<Arc<HeapMemory>> {
        let (link, side) = link?;
        let (memory, allowed) = self.link(link).ends[side.other() as usize].grants.get(&key)?;
        let fits = offset.checked_add(length).is_some_and(|end| end <= memory.length() as u64);
        (fits && allowed.contains(access)).then(|| Arc::clone(memory))
    }

    /// Fills a RECV of the target.
    fn deliver(&mut self, target: Pair, data: &[u8], immediate: Option<u32>, opcode: Opcode) -> Outcome {
        let Some(domain) = self.domains.get_mut(&target.0) else { return Outcome::Waits };
        let Some(state) = domain.pairs.get_mut(&target.1) else { return Outcome::Waits };
        let config = state.config;
        let receives = match config.shared_receive {
            Some(shared) => domain.shared.get_mut(&shared),
            None => Some(&mut state.receives),
        };
        let Some((id, mut buffer)) = receives.and_then(|receives| receives.posted.pop_front()) else {
            return Outcome::Waits;
        };
        let room = buffer.as_mut().map_or(&mut [][..], |buffer| &mut buffer[..]);
        let Some(room) = room.get_mut(..data.len()) else {
            let status = CompletionStatus::LocalLength;
            let completion = Completion { buffer, ..plain(id, status, opcode, target.1) };
            self.complete(target.0, config.receive_completions, completion, None);
            // This breaks the sender's queue pair, and with it this one.
            return Outcome::Failed(CompletionStatus::RemoteOperation);
        };
        room.copy_from_slice(data);
        let bytes = data.len() as u32;
        let completion =
            Completion { bytes, immediate, buffer, ..plain(id, CompletionStatus::Success, opcode, target.1) };
        self.complete(target.0, config.receive_completions, completion, None);
        DONE
    }

    /// Sets the number of bytes written in a WRITE_WITH_IMM's completion at the target.
    fn patch_length(&mut self, target: Pair, length: u32) -> Outcome {
        if let Some(domain) = self.domains.get_mut(&target.0)
            && let Some(state) = domain.pairs.get(&target.1)
            && let Some(queue) = domain.queues.get_mut(&state.config.receive_completions)
            && let Some((completion, _)) = queue.ready.back_mut()
        {
            completion.bytes = length;
        }
        DONE
    }
}

fn at(memory: &HeapMemory, offset: u64) -> *mut u8 {
    memory.base().as_ptr().wrapping_add(offset as usize)
}

pub(super) fn plain(
    id: WorkId,
    status: CompletionStatus,
    opcode: Opcode,
    queue_pair: QueuePairId,
) -> Completion<HeapMemory> {
    Completion { id, status, opcode, bytes: 0, immediate: None, value: 0, queue_pair, buffer: None }
}
