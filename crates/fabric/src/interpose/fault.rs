//! Injects failures into a fabric by a plan and a seed, of the kinds that real fabrics have.
//!
//! The fields of [`FaultPlan`] document the effect of each fault on the caller. Injected failures keep the
//! semantics of verbs: the hooks post work that really fails in the wrapped fabric. The queue pair thus goes
//! into the error state on both sides, all other requests are flushed with their buffers returned, and later
//! posts are refused. Only the status that the caller sees comes from the plan.
//!
//! Runs are repeatable. Every domain and every link has its own generator, seeded by the plan's seed and its
//! number in the order of creation. [`When::Nth`] counts the eligible occasions in that domain or link (for
//! registrations and dials: in the fabric). If threads create domains in a varying order, runs differ.

use super::{DomainHooks, Hooks, Interposed, LinkHooks};
use crate::{
    Access, Address, AnyMemory, AnyWaker, Armed, Buffer, Completion, CompletionQueueId, CompletionStatus,
    CreateError, Data, DialError, Fabric, Link, LinkError, ListError, Memory, Nanos, Opcode, Operation,
    PostError, QueuePairConfig, QueuePairId, QueuePairState, ReceiveTarget, RegionKey, RegisterError,
    ThreadDomain, Transport, Wake, WorkId, WorkRequest, check_list,
};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The occasions, among those eligible for a fault, at which it is injected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum When {
    /// Never.
    #[default]
    Never,
    /// At one occasion, counted from 1.
    Nth(u64),
    /// At every n-th occasion; 1 means each, 0 none.
    Every(u64),
    /// At random, with this probability in millionths.
    PerMillion(u32),
}

/// An injected error completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompletionFault {
    /// Eligible: work requests posted to RC queue pairs (zero-length READs excepted).
    pub when: When,
    /// The status that the caller sees; neither success nor flushed.
    pub status: CompletionStatus,
}

/// A delay of completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delay {
    /// Eligible: the completions of a domain.
    pub when: When,
    /// The delay, in polls of the completion queue. Later completions of the queue wait behind the delayed
    /// one.
    pub polls: u32,
}

/// The faults to inject, and when. The default injects none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultPlan {
    /// The seed of the random generators.
    pub seed: u64,
    /// The work request is not executed. It completes in order with the given status, and the queue pair goes
    /// into the error state. RC only: UC and UD have no such errors.
    pub completion_error: Option<CompletionFault>,
    /// A post is refused with [`PostError::QueueFull`] though there is room, and has no effect. A retry may
    /// succeed.
    pub post_error: When,
    /// A post to an RC queue pair is refused with [`PostError::QueuePairError`] and has no effect; the queue
    /// pair is in the error state from here on. Earlier requests complete or are flushed, as on a device that
    /// fails between two work requests. A SEND that waits for a RECV delays that.
    pub queue_pair_error: When,
    /// A message of a UC or UD queue pair is lost: it completes with success, in order, and never arrives.
    pub drop: When,
    /// Completions are delayed, in the same order. Event waits do not sleep while completions are held back.
    pub delay: Option<Delay>,
    /// Registering memory fails with [`RegisterError::OutOfMemory`].
    pub register_failure: When,
    /// A dial fails at once with [`DialError::TimedOut`].
    pub dial_failure: When,
    /// The link is closed instead of sending or returning a message, as if the peer had died. Queue pairs on
    /// it go into the error state.
    pub link_death: When,
}

/// The number of times each fault was injected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultCounts {
    /// Work requests replaced by error completions.
    pub completion_errors: u64,
    /// Posts refused as if the queue were full.
    pub post_errors: u64,
    /// Queue pairs put into the error state by a post.
    pub queue_pair_errors: u64,
    /// Lost messages.
    pub dropped: u64,
    /// Delayed completions.
    pub delayed: u64,
    /// Failed registrations.
    pub register_failures: u64,
    /// Failed dials.
    pub dial_failures: u64,
    /// Closed links.
    pub link_deaths: u64,
}

/// A fabric with faults injected by a plan.
pub type Fault<F> = Interposed<F, FaultHooks>;

impl<F: Fabric> Interposed<F, FaultHooks> {
    /// Wraps `fabric` and injects faults by the plan from now on. RC faults need a fabric that allows one
    /// inline byte.
    ///
    /// # Panics
    /// If the status of the plan's error completion is success or flushed.
    pub fn new(fabric: F, plan: FaultPlan) -> Self {
        if let Some(fault) = plan.completion_error {
            assert!(
                !matches!(fault.status, CompletionStatus::Success | CompletionStatus::Flushed),
                "an injected error completion is neither success nor flushed"
            );
        }
        let rolls = Mutex::new((Dice::new(plan.seed, 0), Dice::new(plan.seed, 1)));
        let shared =
            Shared { plan, rolls, next: AtomicU64::new(2), injected: [const { AtomicU64::new(0) }; COUNTED] };
        Interposed::with_hooks(fabric, FaultHooks(Arc::new(shared)))
    }

    /// Returns the number of faults injected so far.
    pub fn injected(&self) -> FaultCounts {
        let count = |kind: Kind| self.hooks().0.injected[kind as usize].load(Ordering::Relaxed);
        FaultCounts {
            completion_errors: count(Kind::CompletionError),
            post_errors: count(Kind::PostError),
            queue_pair_errors: count(Kind::QueuePairError),
            dropped: count(Kind::Drop),
            delayed: count(Kind::Delay),
            register_failures: count(Kind::Register),
            dial_failures: count(Kind::Dial),
            link_deaths: count(Kind::LinkDeath),
        }
    }
}

#[derive(Clone, Copy)]
enum Kind {
    CompletionError,
    PostError,
    QueuePairError,
    Drop,
    Delay,
    Register,
    Dial,
    LinkDeath,
}
const COUNTED: usize = Kind::LinkDeath as usize + 1;

/// Decides at each occasion whether a fault is injected.
#[derive(Clone, Debug)]
struct Dice {
    state: u64,
    occasions: [u64; COUNTED],
}

impl Dice {
    fn new(seed: u64, stream: u64) -> Self {
        Dice { state: seed ^ stream.wrapping_mul(0xd134_2543_de82_ef95), occasions: [0; COUNTED] }
    }

    /// SplitMix64 (Steele, Lea, Flood 2014).
    fn draw(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn roll(&mut self, kind: Kind, when: When) -> bool {
        let occasion = &mut self.occasions[kind as usize];
        *occasion += 1;
        match when {
            When::Never => false,
            When::Nth(n) => *occasion == n,
            When::Every(n) => n != 0 && occasion.is_multiple_of(n),
            When::PerMillion(chance) => self.draw() % 1_000_000 < u64::from(chance),
        }
    }
}

#[derive(Debug)]
struct Shared {
    plan: FaultPlan,
    /// One for registrations, one for dials.
    rolls: Mutex<(Dice, Dice)>,
    next: AtomicU64,
    injected: [AtomicU64; COUNTED],
}

impl Shared {
    /// Refuses a registration, if its turn has come.
    fn roll_registration(&self, length: u64) -> Result<(), RegisterError> {
        let mut rolls = self.rolls.lock().unwrap_or_else(PoisonError::into_inner);
        if !rolls.0.roll(Kind::Register, self.plan.register_failure) {
            return Ok(());
        }
        self.injected(Kind::Register);
        let source = std::io::Error::new(std::io::ErrorKind::OutOfMemory, "injected fault");
        Err(RegisterError::OutOfMemory { length, source })
    }

    fn injected(&self, kind: Kind) {
        self.injected[kind as usize].fetch_add(1, Ordering::Relaxed);
    }

    fn dice(&self) -> Dice {
        Dice::new(self.plan.seed, self.next.fetch_add(1, Ordering::Relaxed))
    }
}

/// The hooks of [`Fault`] around a fabric.
#[derive(Clone, Debug)]
pub struct FaultHooks(Arc<Shared>);

impl<F: Fabric> Hooks<F> for FaultHooks {
    type Domain = FaultDomain<F::Memory>;
    type Link = FaultLink;

    fn domain_hooks(&self) -> Self::Domain {
        FaultDomain {
            dice: self.0.dice(),
            shared: Arc::clone(&self.0),
            queue_pairs: BTreeMap::new(),
            queues: BTreeMap::new(),
            taken: Vec::new(),
        }
    }

    fn link_hooks(&self) -> FaultLink {
        FaultLink { dice: Arc::new(Mutex::new(self.0.dice())), shared: Arc::clone(&self.0) }
    }

    fn register(&self, inner: &F, length: u64, access: Access) -> Result<F::Memory, RegisterError> {
        self.0.roll_registration(length)?;
        inner.register(length, access)
    }

    fn adopt(&self, inner: &F, memory: AnyMemory) -> Result<F::Memory, RegisterError> {
        self.0.roll_registration(memory.length() as u64)?;
        inner.adopt(memory)
    }

    fn dial(&self, inner: &F, address: &Address, until: Nanos) -> Result<F::Link, DialError> {
        let mut rolls = self.0.rolls.lock().unwrap_or_else(PoisonError::into_inner);
        if rolls.1.roll(Kind::Dial, self.0.plan.dial_failure) {
            self.0.injected(Kind::Dial);
            return Err(DialError::TimedOut { address: address.clone(), after: Duration::ZERO });
        }
        drop(rolls);
        inner.dial(address, until)
    }
}

/// The hooks of [`Fault`] around a link.
#[derive(Clone, Debug)]
pub struct FaultLink {
    dice: Arc<Mutex<Dice>>,
    shared: Arc<Shared>,
}

impl FaultLink {
    fn message<L: Link>(&self, inner: &L) -> Result<(), LinkError> {
        let mut dice = self.dice.lock().unwrap_or_else(PoisonError::into_inner);
        if dice.roll(Kind::LinkDeath, self.shared.plan.link_death) {
            self.shared.injected(Kind::LinkDeath);
            inner.close();
            return Err(LinkError::PeerGone("injected fault".into()));
        }
        Ok(())
    }
}

impl<L: Link> LinkHooks<L> for FaultLink {
    fn send(&self, inner: &L, message: &[u8]) -> Result<(), LinkError> {
        self.message(inner)?;
        inner.send(message)
    }

    fn receive(&self, inner: &L, until: Nanos) -> Result<Vec<u8>, LinkError> {
        let message = inner.receive(until)?;
        self.message(inner)?;
        Ok(message)
    }

    fn try_receive(&self, inner: &L) -> Result<Option<Vec<u8>>, LinkError> {
        let message = inner.try_receive()?;
        if message.is_some() {
            self.message(inner)?;
        }
        Ok(message)
    }
}

/// No back-end issues this key, so work that names it fails.
const BAD_KEY: RegionKey = RegionKey(u64::MAX);
/// The id of the request that breaks a queue pair. Its completion is hidden, and callers must not use this
/// id.
pub const POISON: WorkId = WorkId(0xfa17_fa17_fa17_fa17);

/// The success completion of a lost message that is still to be reported.
#[derive(Debug)]
struct Lost {
    /// Reported after this number of completions of the queue pair's own signaled requests.
    after: u64,
    id: WorkId,
    opcode: Opcode,
}

#[derive(Debug)]
struct QueuePairFaults {
    transport: Transport,
    send_completions: CompletionQueueId,
    /// The failed request whose completion is to be rewritten: id, opcode, status.
    failing: Option<(WorkId, Opcode, CompletionStatus)>,
    /// This interposer has put the queue pair into the error state.
    broken: bool,
    /// The request that breaks the queue pair is still to be posted.
    poison_owed: bool,
    /// UC and UD: the number of signaled requests posted to the wrapped fabric, and of those completed.
    signaled: u64,
    completed: u64,
    lost: VecDeque<Lost>,
    /// The next request must be signaled in the wrapped fabric: a signaled request that was lost cannot free
    /// the send queue's slots.
    signal_owed: bool,
    /// Ids of requests that only this interposer signaled, in order.
    hidden: VecDeque<WorkId>,
}

#[derive(Debug)]
struct QueueFaults<M: Memory> {
    polls: u64,
    /// Delayed completions, each with the poll from which it may be reported.
    held: VecDeque<(u64, Completion<M>)>,
}

impl<M: Memory> Default for QueueFaults<M> {
    fn default() -> Self {
        QueueFaults { polls: 0, held: VecDeque::new() }
    }
}

/// The hooks of [`Fault`] around a domain.
#[derive(Debug)]
pub struct FaultDomain<M: Memory> {
    dice: Dice,
    shared: Arc<Shared>,
    queue_pairs: BTreeMap<QueuePairId, QueuePairFaults>,
    queues: BTreeMap<CompletionQueueId, QueueFaults<M>>,
    taken: Vec<Completion<M>>,
}

fn opcode<M: Memory>(operation: &Operation<'_, M>) -> Opcode {
    match operation {
        Operation::Send { .. } => Opcode::Send,
        Operation::Write { .. } => Opcode::Write,
        Operation::Read { .. } | Operation::ReadInto { .. } => Opcode::Read,
        Operation::FetchAdd { .. } => Opcode::FetchAdd,
        Operation::CompareSwap { .. } => Opcode::CompareSwap,
    }
}

/// Returns an operation that every RC target refuses.
fn poison<'a, M: Memory>() -> Operation<'a, M> {
    Operation::Write { data: Data::Inline(&[b"x"]), key: BAD_KEY, offset: 0, immediate: None }
}

/// Changes an operation so that it fails at the target. It keeps the buffers that the completion must return.
fn failing<M: Memory>(operation: Operation<'_, M>) -> Operation<'_, M> {
    match operation {
        Operation::Read { mut from, into } => {
            from.key = BAD_KEY;
            Operation::Read { from, into }
        }
        Operation::ReadInto { mut from, into } => {
            from.key = BAD_KEY;
            Operation::ReadInto { from, into }
        }
        Operation::FetchAdd { offset, add, .. } => Operation::FetchAdd { key: BAD_KEY, offset, add },
        Operation::CompareSwap { offset, expected, swap, .. } => {
            Operation::CompareSwap { key: BAD_KEY, offset, expected, swap }
        }
        Operation::Send { .. } | Operation::Write { .. } => poison(),
    }
}

impl<M: Memory> FaultDomain<M> {
    fn pay_poison<D: ThreadDomain<Memory = M>>(&mut self, inner: &mut D) {
        for (id, queue_pair) in self.queue_pairs.iter_mut().filter(|(_, q)| q.poison_owed) {
            let request = WorkRequest { id: POISON, operation: poison(), signaled: false };
            // If the queue is full, the request is posted later; a queue pair already in error no longer
            // needs it.
            queue_pair.poison_owed = inner.post(*id, request) == Err(PostError::QueueFull);
        }
    }

    /// Reports a completion of the wrapped fabric to the caller, or hides it.
    fn show(&mut self, queue: CompletionQueueId, mut completion: Completion<M>) {
        let Some(queue_pair) = self.queue_pairs.get_mut(&completion.queue_pair) else {
            return self.hold(queue, completion);
        };
        let receive = matches!(completion.opcode, Opcode::Receive | Opcode::ReceiveWriteImmediate);
        if receive {
            return self.hold(queue, completion);
        }
        if queue_pair.broken && completion.id == POISON {
            return;
        }
        if completion.status != CompletionStatus::Success
            && completion.status != CompletionStatus::Flushed
            && let Some((id, opcode, status)) = queue_pair.failing
            && id == completion.id
        {
            (completion.opcode, completion.status) = (opcode, status);
            queue_pair.failing = None;
        }
        let failed = completion.status != CompletionStatus::Success;
        queue_pair.completed += 1;
        let hide = queue_pair.hidden.front() == Some(&completion.id);
        if hide {
            queue_pair.hidden.pop_front();
        }
        let due = if failed { u64::MAX } else { queue_pair.completed };
        let id = completion.queue_pair;
        if !hide || failed {
            self.hold(queue, completion);
        }
        self.pay_lost(id, due);
    }

    /// Reports the success completions of lost messages that are due.
    fn pay_lost(&mut self, id: QueuePairId, completed: u64) {
        while let Some(queue_pair) = self.queue_pairs.get_mut(&id)
            && queue_pair.lost.front().is_some_and(|lost| lost.after <= completed)
            && let Some(lost) = queue_pair.lost.pop_front()
        {
            let queue = queue_pair.send_completions;
            let completion = Completion {
                id: lost.id,
                status: CompletionStatus::Success,
                opcode: lost.opcode,
                bytes: 0,
                immediate: None,
                value: 0,
                queue_pair: id,
                buffer: None,
            };
            self.hold(queue, completion);
        }
    }

    fn hold(&mut self, queue: CompletionQueueId, completion: Completion<M>) {
        let mut from = 0;
        let queue = self.queues.entry(queue).or_default();
        if let Some(delay) = self.shared.plan.delay
            && self.dice.roll(Kind::Delay, delay.when)
        {
            self.shared.injected(Kind::Delay);
            from = queue.polls + u64::from(delay.polls);
        }
        queue.held.push_back((from, completion));
    }

    /// Drops a message of an unreliable queue pair.
    fn lose(&mut self, id: QueuePairId, request: &WorkRequest<'_, M>) {
        self.shared.injected(Kind::Drop);
        let Some(queue_pair) = self.queue_pairs.get_mut(&id) else { return };
        if !request.signaled {
            return;
        }
        queue_pair.signal_owed = true;
        let lost = Lost { after: queue_pair.signaled, id: request.id, opcode: opcode(&request.operation) };
        queue_pair.lost.push_back(lost);
        let completed = queue_pair.completed;
        self.pay_lost(id, completed);
    }

    fn post_unreliable<D: ThreadDomain<Memory = M>>(
        &mut self,
        inner: &mut D,
        id: QueuePairId,
        mut request: WorkRequest<'_, M>,
    ) -> Result<(), PostError> {
        let Some(queue_pair) = self.queue_pairs.get_mut(&id) else { return inner.post(id, request) };
        // Only a message that the wrapped fabric would accept can be lost; any other must be refused.
        let sends = matches!(request.operation, Operation::Send { .. } | Operation::Write { .. });
        let takes = inner.state(id) == Some(QueuePairState::Ready) && inner.send_room(id) > 0;
        if sends && takes && self.dice.roll(Kind::Drop, self.shared.plan.drop) {
            self.lose(id, &request);
            return Ok(());
        }
        let (work, asked) = (request.id, request.signaled);
        request.signaled |= queue_pair.signal_owed;
        let signaled = request.signaled;
        inner.post(id, request)?;
        queue_pair.signaled += signaled as u64;
        if signaled {
            queue_pair.signal_owed = false;
        }
        if signaled && !asked {
            queue_pair.hidden.push_back(work);
        }
        Ok(())
    }

    /// Refuses a post if the plan decides so.
    fn refuse<D: ThreadDomain<Memory = M>>(&mut self, inner: &D, id: QueuePairId) -> Result<(), PostError> {
        if self.queue_pairs.get(&id).is_some_and(|queue_pair| !queue_pair.broken)
            && inner.state(id) == Some(QueuePairState::Ready)
            && self.dice.roll(Kind::PostError, self.shared.plan.post_error)
        {
            self.shared.injected(Kind::PostError);
            return Err(PostError::QueueFull);
        }
        Ok(())
    }

    fn post_one<D: ThreadDomain<Memory = M>>(
        &mut self,
        inner: &mut D,
        id: QueuePairId,
        request: WorkRequest<'_, M>,
    ) -> Result<(), PostError> {
        match self.queue_pairs.get(&id).map(|queue_pair| queue_pair.transport) {
            None => inner.post(id, request),
            Some(Transport::ReliableConnection) => self.post_reliable(inner, id, request),
            Some(_) => self.post_unreliable(inner, id, request),
        }
    }

    fn post_reliable<D: ThreadDomain<Memory = M>>(
        &mut self,
        inner: &mut D,
        id: QueuePairId,
        mut request: WorkRequest<'_, M>,
    ) -> Result<(), PostError> {
        let plan = self.shared.plan;
        let Some(queue_pair) = self.queue_pairs.get_mut(&id) else { return inner.post(id, request) };
        if queue_pair.broken {
            return Err(PostError::QueuePairError);
        }
        let ready = inner.state(id) == Some(QueuePairState::Ready);
        if ready && self.dice.roll(Kind::QueuePairError, plan.queue_pair_error) {
            self.shared.injected(Kind::QueuePairError);
            (queue_pair.broken, queue_pair.poison_owed) = (true, true);
            self.pay_poison(inner);
            return Err(PostError::QueuePairError);
        }
        let empty = matches!(
            &request.operation,
            Operation::Read { from, .. } | Operation::ReadInto { from, .. } if from.length == 0
        );
        if let Some(fault) = plan.completion_error
            && ready
            && !empty
            && inner.send_room(id) > 0
            && queue_pair.failing.is_none()
            && self.dice.roll(Kind::CompletionError, fault.when)
        {
            self.shared.injected(Kind::CompletionError);
            queue_pair.failing = Some((request.id, opcode(&request.operation), fault.status));
            request.operation = failing(request.operation);
            return inner.post(id, request).inspect_err(|_| queue_pair.failing = None);
        }
        inner.post(id, request)
    }
}

impl<D: ThreadDomain> DomainHooks<D> for FaultDomain<D::Memory> {
    fn create_queue_pair(
        &mut self,
        inner: &mut D,
        config: &QueuePairConfig,
    ) -> Result<QueuePairId, CreateError> {
        let id = inner.create_queue_pair(config)?;
        let faults = QueuePairFaults {
            transport: config.transport,
            send_completions: config.send_completions,
            failing: None,
            broken: false,
            poison_owed: false,
            signaled: 0,
            completed: 0,
            lost: VecDeque::new(),
            signal_owed: false,
            hidden: VecDeque::new(),
        };
        self.queue_pairs.insert(id, faults);
        Ok(id)
    }

    fn destroy_queue_pair(&mut self, inner: &mut D, queue_pair: QueuePairId) -> Result<(), CreateError> {
        inner.destroy_queue_pair(queue_pair)?;
        self.queue_pairs.remove(&queue_pair);
        for queue in self.queues.values_mut() {
            queue.held.retain(|(_, completion)| completion.queue_pair != queue_pair);
        }
        Ok(())
    }

    fn state(&self, inner: &D, queue_pair: QueuePairId) -> Option<QueuePairState> {
        match self.queue_pairs.get(&queue_pair) {
            Some(faults) if faults.broken => Some(QueuePairState::Error),
            _ => inner.state(queue_pair),
        }
    }

    fn post(
        &mut self,
        inner: &mut D,
        id: QueuePairId,
        request: WorkRequest<'_, D::Memory>,
    ) -> Result<(), PostError> {
        self.refuse(inner, id)?;
        self.post_one(inner, id, request)
    }

    /// Faults hit the requests of a list one by one, except a refusal, which concerns the whole list.
    fn post_list(
        &mut self,
        inner: &mut D,
        id: QueuePairId,
        requests: &mut [Option<WorkRequest<'_, D::Memory>>],
    ) -> Result<(), ListError> {
        self.refuse(inner, id)?;
        check_list(requests, self.state(inner, id), || inner.send_room(id))?;
        for (posted, request) in requests.iter_mut().filter_map(Option::take).enumerate() {
            self.post_one(inner, id, request).map_err(|error| ListError { posted, error })?;
        }
        Ok(())
    }

    fn post_receive(
        &mut self,
        inner: &mut D,
        target: ReceiveTarget,
        id: WorkId,
        buffer: Option<Buffer<D::Memory>>,
    ) -> Result<(), PostError> {
        if let ReceiveTarget::QueuePair(queue_pair) = target
            && self.queue_pairs.get(&queue_pair).is_some_and(|faults| faults.broken)
        {
            return Err(PostError::QueuePairError);
        }
        inner.post_receive(target, id, buffer)
    }

    fn poll(
        &mut self,
        inner: &mut D,
        queue: CompletionQueueId,
        into: &mut Vec<Completion<D::Memory>>,
        limit: usize,
    ) -> usize {
        self.pay_poison(inner);
        let mut taken = std::mem::take(&mut self.taken);
        inner.poll(queue, &mut taken, limit);
        self.queues.entry(queue).or_default().polls += 1;
        for completion in taken.drain(..) {
            self.show(queue, completion);
        }
        self.taken = taken;
        let queue = self.queues.entry(queue).or_default();
        let mut given = 0;
        while given < limit
            && queue.held.front().is_some_and(|(from, _)| *from <= queue.polls)
            && let Some((_, completion)) = queue.held.pop_front()
        {
            into.push(completion);
            given += 1;
        }
        given
    }

    fn wait(&mut self, inner: &mut D, armed: Armed, until: Nanos) -> Wake {
        let owed = self.queue_pairs.values().any(|faults| faults.poison_owed);
        if owed || self.queues.values().any(|queue| !queue.held.is_empty()) {
            inner.disarm(armed);
            return Wake::Arrived;
        }
        inner.wait(armed, until)
    }

    fn arm_other(&mut self, inner: &mut D, other: &AnyWaker) -> Nanos {
        let until = inner.arm_other(other);
        // Completions that are held back come with polls, and without events.
        let owed = self.queue_pairs.values().any(|faults| faults.poison_owed);
        if owed || self.shared.plan.delay.is_some() { 0 } else { until }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rolls(seed: u64, when: When) -> Vec<bool> {
        let mut dice = Dice::new(seed, 3);
        (0..1000).map(|_| dice.roll(Kind::Drop, when)).collect()
    }

    #[test]
    fn the_seed_alone_decides() {
        let when = When::PerMillion(100_000);
        assert_eq!(rolls(7, when), rolls(7, when));
        assert_ne!(rolls(7, when), rolls(8, when));
        let hits = rolls(7, when).iter().filter(|hit| **hit).count();
        assert!((50..200).contains(&hits), "{hits} of 1000 at one in ten");
    }

    #[test]
    fn counted_occasions_are_exact() {
        let hits = |when| -> Vec<usize> {
            rolls(1, when).iter().enumerate().filter_map(|(at, hit)| hit.then_some(at + 1)).take(3).collect()
        };
        assert_eq!(hits(When::Nth(5)), [5]);
        assert_eq!(hits(When::Every(4)), [4, 8, 12]);
        assert!(hits(When::Every(0)).is_empty() && hits(When::Never).is_empty());
    }
}
