//! Locks and barriers as the threads of this node and the processes of its host take them (LITE, SOSP 2017, section
//! 7.2). They share one membership at each owner: among them a lock goes from hand to hand, and only the first and the
//! last of them touch its word. A waiter is a thread, which is woken, or a [`Claim`], which is answered.

mod claims;

pub(crate) use self::claims::{Claim, Hold, Meets};

use crate::cleaner;
use crate::error::{OperationError, RequestError};
use crate::forward::Link;
use crate::item::Change;
use crate::lock_owner::offset;
use crate::node::{Node, SignalOf};
use crate::operate::Target;
use crate::seats::Use;
use crate::tier::Tier;
use dunlin_fabric::{Fabric, Host, Nanos, Signal, nanos};
use dunlin_rpc::{CallError, Cause};
use dunlin_tier::lock::message::{LOCK_CALL, LockMessage, LockRefusal, LockReply, LockRequest};
use dunlin_tier::lock::{Member, Waiter, Word};
use dunlin_tier::message::Refusal;
use dunlin_tier::{AccessError, Handle, Keepers, LmrId, Name, NameError, NodeId, Rights};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use thiserror::Error;

/// The most names of locks that a node remembers while none of its threads and processes uses them.
const MAX_IDLE: usize = 4096;
/// How often one node hands a lock over among its threads and processes, before other nodes have their turn.
const HAND_OVERS: u32 = 16;
/// Swaps of a word that is free each time and changes all the same, before a thread queues at the owner.
const ATTEMPTS: u32 = 4;
/// Bits of a fence number that count hand-overs.
const FENCE_SHIFT: u32 = 8;

/// The reason why a lock was not taken, or a barrier not passed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LockError {
    /// The name is invalid.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The time is over. The lock is not held.
    #[error("the time for a lock or barrier of {node} is over, and others still have it, or are not there")]
    Deadline {
        /// The owner's name.
        node: String,
    },
    /// The owner refuses. The lock is not held.
    #[error("{node} refuses")]
    Refused {
        /// The owner's name.
        node: String,
        /// The reason.
        source: LockRefusal,
    },
    /// The owner cannot be asked. The lock is not held, or is given back as soon as the owner answers.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The lock's word cannot be changed. The lock is not held, or is given back as soon as its owner answers.
    #[error("the word of a lock cannot be changed")]
    Word(#[from] OperationError),
    /// As many threads, or processes, of this node as may wait for one owner's locks do so already.
    #[error("too many threads or processes of this node wait for locks of {node}: use fewer, or more names")]
    Busy {
        /// The owner's name.
        node: String,
    },
    /// The lock was given back before, or was never this process's. Only a process that is attached to a node gets this.
    #[error("this process does not have the lock: the node of this host has taken it back")]
    NotHeld,
}

/// This node's membership at an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Joined {
    node: NodeId,
    /// The owner's incarnation.
    owner: u64,
    member: Member,
    words: LmrId,
    /// The mapping of the words, made by the first thread. Processes need none.
    handle: Option<Handle>,
}

/// A lock that this node has.
#[derive(Clone, Copy, Debug)]
struct Held {
    joined: Joined,
    lock: u16,
    word: Word,
    /// Hand-overs within this node since the grant.
    handed: u32,
    poisoned: bool,
}

/// A waiter of a lock, in the order of arrival.
#[derive(Debug)]
struct Turn<F: Fabric> {
    number: u64,
    /// A waiter that is answered; `None` for a thread, which is woken.
    claim: Option<Arc<dyn Claim<F>>>,
}

/// The state of a lock at this node.
#[derive(Debug)]
struct Threads<F: Fabric> {
    /// The waiters; the first one waits for the owner, or for the one that has the lock.
    queue: VecDeque<Turn<F>>,
    next: u64,
    /// A thread or a process has the lock, or tries to get it from the owner.
    taken: bool,
    /// A thread gives the lock to waiters that are no threads: [`Node::advance`].
    is_advancing: bool,
    /// The lock is the node's, and the next waiter's.
    kept: Option<Held>,
    /// Its number at an owner, and the word as last seen.
    place: Option<(Joined, u16, Word)>,
    /// A call that was given up, and of which the owner has not heard, and the owner's life.
    owed: Option<(u64, Waiter)>,
    /// The number of a claim for which a call waits at the owner, and that call.
    asking: Option<(u64, Joined, LockRequest)>,
}

/// A lock, as this node shares it.
#[derive(Debug)]
pub(crate) struct Shared<F: Fabric> {
    name: Name,
    threads: Mutex<Threads<F>>,
    changed: SignalOf<F>,
}

impl<F: Fabric> Shared<F> {
    fn new(name: &Name, host: &F::Host) -> Self {
        let threads = Threads {
            queue: VecDeque::new(),
            next: 0,
            taken: false,
            is_advancing: false,
            kept: None,
            place: None,
            owed: None,
            asking: None,
        };
        Shared { name: name.clone(), threads: Mutex::new(threads), changed: host.signal() }
    }

    fn threads(&self) -> MutexGuard<'_, Threads<F>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a waiter.
    fn append(&self, claim: Option<Arc<dyn Claim<F>>>) -> u64 {
        let mut threads = self.threads();
        let number = threads.next;
        threads.next += 1;
        threads.queue.push_back(Turn { number, claim });
        number
    }
}

/// The locks that threads and processes of this node use, and its memberships.
#[derive(Debug)]
pub(crate) struct Locks<F: Fabric> {
    shared: Mutex<BTreeMap<Name, Arc<Shared<F>>>>,
    joined: Mutex<Vec<Option<Joined>>>,
    calls: AtomicU64,
    /// For each owner, the calls of processes that wait there.
    waiting: Vec<AtomicU32>,
}

impl<F: Fabric> Locks<F> {
    pub(crate) fn new(nodes: usize) -> Self {
        let waiting = (0..nodes).map(|_| AtomicU32::new(0)).collect();
        let joined = Mutex::new(vec![None; nodes]);
        Locks { shared: Mutex::default(), joined, calls: AtomicU64::new(1), waiting }
    }

    fn joined(&self) -> MutexGuard<'_, Vec<Option<Joined>>> {
        self.joined.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a number that no other call of this node has.
    pub(crate) fn number(&self) -> u64 {
        self.calls.fetch_add(1, Ordering::Relaxed)
    }

    fn of(&self, name: &Name, host: &F::Host) -> Arc<Shared<F>> {
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = shared.get(name) {
            return Arc::clone(known);
        }
        if shared.len() >= MAX_IDLE {
            // Whoever uses a lock has it by a clone. A lock that is forgotten is found again by its name.
            shared.retain(|_, one| Arc::strong_count(one) > 1 || one.threads().owed.is_some());
        }
        let made = Arc::new(Shared::new(name, host));
        shared.insert(name.clone(), Arc::clone(&made));
        made
    }
}

/// A lock that the calling thread has. Dropping it gives the lock back, and blocks for a swap of a word at most, if
/// nobody waits, else for a call to the owner.
#[derive(Debug)]
#[must_use = "the lock is given back at once"]
pub struct Guard<F: Fabric> {
    node: Arc<Node<F>>,
    shared: Arc<Shared<F>>,
    held: Option<Held>,
}

impl Held {
    fn fence(&self) -> u64 {
        self.word.fence() << FENCE_SHIFT | u64::from(self.handed)
    }
}

impl<F: Fabric> Guard<F> {
    /// Returns the number of the grant: each grant of a lock has a larger one than those before it, as long as the owner
    /// lives. Storage that keeps the largest number that it has seen can refuse what a dead holder still has under way.
    pub fn fence(&self) -> u64 {
        self.held.map_or(0, |held| held.fence())
    }

    /// Returns whether the last holder died with the lock, as a process or with its node: what the lock protects may be half changed.
    pub fn is_poisoned(&self) -> bool {
        self.held.is_some_and(|held| held.poisoned)
    }

    /// Gives the lock back.
    ///
    /// # Errors
    /// The owner cannot be reached, or has restarted: the lock is not held any more, and another node may have got it
    /// before.
    pub fn unlock(mut self) -> Result<(), LockError> {
        self.held.take().map_or(Ok(()), |held| self.node.give_back(&self.shared, held))
    }
}

impl<F: Fabric> Drop for Guard<F> {
    fn drop(&mut self) {
        if let Some(held) = self.held.take()
            && let Err(error) = self.node.give_back(&self.shared, held)
        {
            tracing::warn!(target: "dunlin::tier", %error, "a lock could not be given back in time");
        }
    }
}

impl<F: Fabric> Node<F> {
    /// Takes a lock.
    pub(crate) fn lock(self: &Arc<Self>, name: &Name, until: Nanos) -> Result<Guard<F>, LockError> {
        let shared = self.locks.of(name, self.fabric.host());
        if !self.queue_up(&shared, until) {
            return Err(LockError::Deadline { node: self.name_of(self.lock_home_of(name)) });
        }
        match self.get(&shared, name, Some(until)) {
            Ok(held) => Ok(Guard { node: Arc::clone(self), shared, held }),
            Err(error) => {
                self.step_back(&shared);
                Err(error)
            }
        }
    }

    /// Takes a lock that no thread and no node has.
    pub(crate) fn try_lock(self: &Arc<Self>, name: &Name) -> Result<Option<Guard<F>>, LockError> {
        let shared = self.locks.of(name, self.fabric.host());
        {
            let mut threads = shared.threads();
            if threads.taken || !threads.queue.is_empty() {
                return Ok(None);
            }
            threads.taken = true;
        }
        match self.get(&shared, name, None) {
            Ok(Some(held)) => Ok(Some(Guard { node: Arc::clone(self), shared, held: Some(held) })),
            Ok(None) => {
                self.step_back(&shared);
                Ok(None)
            }
            Err(error) => {
                self.step_back(&shared);
                Err(error)
            }
        }
    }

    /// Waits for the turn of this thread among the waiters of the node; `false` if the time is over.
    fn queue_up(self: &Arc<Self>, shared: &Arc<Shared<F>>, until: Nanos) -> bool {
        let own = shared.append(None);
        loop {
            let seen = shared.changed.seen();
            {
                let mut threads = shared.threads();
                if !threads.taken && threads.queue.front().is_some_and(|turn| turn.number == own) {
                    threads.queue.pop_front();
                    threads.taken = true;
                    return true;
                }
                if self.fabric.host().now() >= until || self.is_over() {
                    threads.queue.retain(|turn| turn.number != own);
                    drop(threads);
                    // A lock that was kept for this thread goes to the next waiter, or back.
                    self.advance(shared);
                    return false;
                }
            }
            shared.changed.wait(seen, until);
        }
    }

    /// Lets the next waiter of the node try.
    fn step_back(self: &Arc<Self>, shared: &Arc<Shared<F>>) {
        shared.threads().taken = false;
        self.advance(shared);
    }

    /// Gets a lock for this node, or takes over one that it has. Without `until` it does not wait for a holder.
    fn get(&self, shared: &Shared<F>, name: &Name, until: Option<Nanos>) -> Result<Option<Held>, LockError> {
        // A lock of an owner that is dead has ended with it.
        let home = self.lock_home_of(name);
        if let Some(held) = shared.threads().kept.take().filter(|held| held.joined.node == home) {
            return Ok(Some(held));
        }
        let limit = until.unwrap_or_else(|| self.until());
        let mut again = true;
        loop {
            let got = self.place(shared, name, limit).and_then(|place| self.compete(shared, place, until));
            match got {
                // The owner has restarted: this node joins its next life, once.
                Err(error) if again && is_stale(&error) => {
                    again = false;
                    shared.threads().place = None;
                    self.forget(self.lock_home_of(name));
                }
                Err(error) if is_elsewhere(&error) && self.await_view(limit) => {}
                other => return other,
            }
        }
    }

    /// Finds the lock at its owner.
    fn place(&self, shared: &Shared<F>, name: &Name, until: Nanos) -> Result<(Joined, u16, Word), LockError> {
        let (home, epoch) = self.lock_owner_of(name);
        let is_known = |(joined, ..): &(Joined, u16, Word)| joined.handle.is_some() && joined.node == home;
        if let Some(place) = shared.threads().place.filter(is_known) {
            return Ok(place);
        }
        let joined = self.join(home, until)?;
        let open = LockRequest::Open { name: name.clone(), epoch };
        let LockReply::Opened(lock) = self.ask_owner(&joined, open, until)? else {
            return Err(self.misfit(joined.node).into());
        };
        let place = (joined, lock, Word::default());
        shared.threads().place = Some(place);
        Ok(place)
    }

    /// Takes the lock's word, or waits for it at the owner.
    fn compete(
        &self,
        shared: &Shared<F>,
        (joined, lock, known): (Joined, u16, Word),
        until: Option<Nanos>,
    ) -> Result<Option<Held>, LockError> {
        let limit = until.unwrap_or_else(|| self.until());
        let owed = shared.threads().owed;
        if let Some((owner, waiter)) = owed {
            // The owner must not find a new call of this node before it has heard of the end of the last one. Its next
            // life knows of no call.
            if owner == joined.owner {
                self.ask_owner(&joined, LockRequest::Abandon { lock, waiter }, limit)?;
            }
            shared.threads().owed = None;
        }
        let Some(words) = joined.handle else {
            return Err(OperationError::Access(AccessError::NoHandle).into());
        };
        let held = |word, poisoned| Some(Held { joined, lock, word, handed: 0, poisoned });
        let mut guess = known.if_free();
        for _ in 0..ATTEMPTS {
            let Some(taken) = guess.taken_by(joined.member) else { break };
            let change = Change::Swap { expected: guess.bits(), swap: taken.bits() };
            let old =
                match self.change_word(Target::new(words, &self.class), joined.words, offset(lock), change) {
                    Ok(old) => Word::from_bits(old),
                    Err(error) => {
                        if error.may_have_executed() {
                            // It may land as late as that.
                            let late = self.until().saturating_add(nanos(self.config.timeout));
                            self.leave(
                                &joined,
                                LockRequest::Unlock { lock, word: taken, poisoned: false },
                                late,
                            );
                        }
                        return Err(error.into());
                    }
                };
            if old == guess {
                return Ok(held(taken, guess.is_poisoned()));
            }
            if old.holder() == Some(joined.member) {
                // No thread of this node has the lock: an earlier swap has landed late, or the owner has not heard yet.
                self.ask_owner(&joined, LockRequest::Unlock { lock, word: old, poisoned: false }, limit)?;
            }
            // Whether it is free by now is another question.
            guess = if old.holder() == Some(joined.member) { old.if_free() } else { old };
            shared.threads().place = Some((joined, lock, old));
        }
        let Some(until) = until else { return Ok(None) };
        let waiter = Waiter { member: joined.member, call: self.locks.number() };
        match self.wait_at_owner(&joined, LockRequest::Reserve { lock, waiter, waits: true }, until) {
            Ok(LockReply::Granted { word, poisoned }) if word.holder() == Some(joined.member) => {
                Ok(held(word, poisoned))
            }
            Ok(_) => Err(self.misfit(joined.node).into()),
            Err((error, certain)) => {
                if !certain {
                    shared.threads().owed = Some((joined.owner, waiter));
                    self.leave(&joined, LockRequest::Abandon { lock, waiter }, 0);
                }
                Err(error)
            }
        }
    }

    /// Gives a lock to the next waiter of this node; `false` without a waiter, or if other nodes
    /// have their turn.
    fn hand_over(self: &Arc<Self>, shared: &Arc<Shared<F>>, held: Held, poisoned: bool) -> bool {
        {
            let mut threads = shared.threads();
            if threads.queue.is_empty() || held.handed >= HAND_OVERS {
                return false;
            }
            threads.kept = Some(Held { handed: held.handed + 1, poisoned, ..held });
            threads.taken = false;
        }
        self.advance(shared);
        true
    }

    /// Gives a lock to the next waiter of this node, or back.
    fn give_back(self: &Arc<Self>, shared: &Arc<Shared<F>>, held: Held) -> Result<(), LockError> {
        if self.hand_over(shared, held, false) {
            return Ok(());
        }
        let result = self.release(shared, held);
        self.step_back(shared);
        result
    }

    fn release(&self, shared: &Shared<F>, held: Held) -> Result<(), LockError> {
        let Held { joined, lock, word, .. } = held;
        if let (Some(free), Some(words)) = (word.given_back(), joined.handle) {
            let change = Change::Swap { expected: word.bits(), swap: free.bits() };
            match self.change_word(Target::new(words, &self.class), joined.words, offset(lock), change) {
                Ok(old) if old == word.bits() => {
                    shared.threads().place = Some((joined, lock, free));
                    return Ok(());
                }
                // Somebody waits, or it failed in an uncertain way: the owner decides.
                Ok(_) => {}
                Err(error) => {
                    tracing::debug!(target: "dunlin::tier", %error, "a lock is given back by its owner");
                }
            }
        }
        let unlock = LockRequest::Unlock { lock, word, poisoned: false };
        match self.ask_owner(&joined, unlock.clone(), self.until()) {
            Ok(_) => Ok(()),
            Err(error) => {
                self.leave(&joined, unlock, 0);
                Err(error)
            }
        }
    }

    /// Waits at a barrier.
    pub(crate) fn meet(&self, name: &Name, members: u16, until: Nanos) -> Result<(), LockError> {
        let mut again = true;
        loop {
            let (home, epoch) = self.lock_owner_of(name);
            let joined = self.join(home, until)?;
            let (member, call) = (joined.member, self.locks.number());
            let meet = LockRequest::Meet { name: name.clone(), members, member, call, epoch };
            match self.wait_at_owner(&joined, meet, until) {
                Ok(LockReply::Done) => return Ok(()),
                Ok(_) => return Err(self.misfit(home).into()),
                Err((error, _)) if again && is_stale(&error) => {
                    again = false;
                    self.forget(home);
                }
                Err((error, _)) if is_elsewhere(&error) && self.await_view(until) => {}
                Err((error, _)) => return Err(error),
            }
        }
    }

    pub(crate) fn forget(&self, owner: NodeId) {
        let joined = self.locks.joined()[usize::from(owner.0)].take();
        if let Some(handle) = joined.and_then(|joined| joined.handle) {
            self.unmap(handle);
        }
    }

    /// Joins an owner and maps its words, unless this node has.
    fn join(&self, owner: NodeId, until: Nanos) -> Result<Joined, LockError> {
        let known = self.locks.joined()[usize::from(owner.0)];
        if let Some(joined) = known.filter(|joined| joined.handle.is_some()) {
            return Ok(joined);
        }
        // Also if this node has joined: that may have been another life of the owner.
        let join = LockRequest::Join { node: self.me, incarnation: self.incarnation };
        let reply = self.call_owner(owner, LockMessage { owner: 0, request: join }, until)?;
        let LockReply::Joined { member, owner: life, words } = reply else {
            return Err(self.misfit(owner).into());
        };
        let rights = Rights::READ.with(Rights::WRITE);
        let (handle, ..) = self.map((words, &Keepers::new(words.node)), &self.principal, rights, until)?;
        let joined = Joined { node: owner, owner: life, member, words, handle: Some(handle) };
        let mut all = self.locks.joined();
        let place = &mut all[usize::from(owner.0)];
        match *place {
            // Another thread was faster.
            Some(first) if first.owner == life && first.handle.is_some() => {
                drop(all);
                self.unmap(handle);
                Ok(first)
            }
            _ => {
                let last = place.replace(joined).and_then(|last| last.handle);
                drop(all);
                last.into_iter().for_each(|handle| self.unmap(handle));
                Ok(joined)
            }
        }
    }

    /// Sends a request to an owner, which answers it at once.
    fn ask_owner(&self, joined: &Joined, request: LockRequest, until: Nanos) -> Result<LockReply, LockError> {
        self.call_owner(joined.node, LockMessage { owner: joined.owner, request }, until)
    }

    fn call_owner(&self, owner: NodeId, message: LockMessage, until: Nanos) -> Result<LockReply, LockError> {
        let reply = self.send(owner, LOCK_CALL, &message.encode(), until)?;
        self.understood(owner, &reply)
    }

    /// Sends a request that the owner answers when its time has come. The error says whether the owner has certainly
    /// not kept the request.
    fn wait_at_owner(
        &self,
        joined: &Joined,
        request: LockRequest,
        until: Nanos,
    ) -> Result<LockReply, (LockError, bool)> {
        let to = joined.node;
        let message = LockMessage { owner: joined.owner, request }.encode();
        if self.roster.is_dynamic && to != self.me {
            let reply = self.exchange((to, Link::Waits), LOCK_CALL, &message, until);
            return match reply {
                Ok(reply) => self.outcome(to, Ok(reply)),
                Err(RequestError::Call { source, .. }) => self.outcome(to, Err(source)),
                Err(error) => {
                    let certain = !error.may_have_executed();
                    Err((error.into(), certain))
                }
            };
        }
        let waits = self.call_in_seat((to, Use::Waits), (LOCK_CALL, &message), (0, until), <[u8]>::to_vec);
        let outcome = waits.map_err(|error| match error {
            // Another thread has connected all the time.
            RequestError::Busy if self.fabric.host().now() >= until => {
                (LockError::Deadline { node: self.name_of(to) }, true)
            }
            RequestError::Busy => (LockError::Busy { node: self.name_of(to) }, true),
            error => (error.into(), true),
        })?;
        self.outcome(to, outcome)
    }

    /// Reads the outcome of a call to an owner, for [`wait_at_owner`](Node::wait_at_owner).
    fn outcome(
        &self,
        owner: NodeId,
        outcome: Result<Vec<u8>, CallError>,
    ) -> Result<LockReply, (LockError, bool)> {
        let node = || self.name_of(owner);
        match outcome {
            Ok(reply) => self.understood(owner, &reply).map_err(|error| {
                let kept = matches!(error, LockError::Request(_));
                (error, !kept)
            }),
            Err(source) => {
                let certain = source.was_executed() == Some(false);
                let error = match source {
                    CallError::NotExecuted(Cause::DeadlineExceeded)
                    | CallError::MaybeExecuted(Cause::DeadlineExceeded) => {
                        LockError::Deadline { node: node() }
                    }
                    source => self.call_failed(owner, source).into(),
                };
                Err((error, certain))
            }
        }
    }

    fn understood(&self, owner: NodeId, reply: &[u8]) -> Result<LockReply, LockError> {
        match LockReply::parse(reply) {
            Ok(LockReply::Refused(source)) => Err(LockError::Refused { node: self.name_of(owner), source }),
            Ok(reply) => Ok(reply),
            Err(_) => Err(self.misfit(owner).into()),
        }
    }

    /// Has the cleaner tell an owner something.
    fn leave(&self, joined: &Joined, request: LockRequest, repeat_until: Nanos) {
        let message = LockMessage { owner: joined.owner, request };
        self.todo().owners.push(cleaner::Word { owner: joined.node, message, repeat_until });
        self.cleaner.raise();
    }

    /// Tells an owner what a thread of this node could not tell it in time; returns whether the owner has heard it, or
    /// has no use for it.
    pub(crate) fn tell_owner(&self, owner: NodeId, message: &LockMessage, until: Nanos) -> bool {
        match self.call_owner(owner, message.clone(), until) {
            // The locks of a dead owner have ended with it.
            Ok(_) | Err(LockError::Refused { .. } | LockError::Request(RequestError::Dead { .. })) => true,
            Err(error) => {
                tracing::debug!(target: "dunlin::tier", %error, "the owner of a lock does not answer");
                false
            }
        }
    }
}

/// Locks and barriers (section 7.2).
impl<F: Fabric> Tier<F> {
    fn lock_name(&self, name: impl AsRef<[u8]>) -> Result<Name, LockError> {
        self.open_name(name).map_err(|error| match error {
            RequestError::Name(error) => LockError::Name(error),
            error => LockError::Request(error),
        })
    }

    /// Takes the lock of a name, which every node of the cluster knows by this name. Waits until
    /// [`TierConfig::timeout`](crate::TierConfig::timeout)
    /// at most, behind those that asked before. The lock is given back when the guard is dropped.
    ///
    /// # Errors
    /// [`LockError::Deadline`] if the time is over; the lock is not held then. [`RequestError::OtherOwner`] if the name
    /// belongs to another principal. [`Guard::is_poisoned`] is no error.
    pub fn lock(&self, name: impl AsRef<[u8]>) -> Result<Guard<F>, LockError> {
        self.node().lock(&self.lock_name(name)?, self.node().until())
    }

    /// As [`lock`](Tier::lock), and waits for at most `time`.
    pub fn lock_within(&self, name: impl AsRef<[u8]>, time: Duration) -> Result<Guard<F>, LockError> {
        let until = self.node().fabric.host().now().saturating_add(nanos(time));
        self.node().lock(&self.lock_name(name)?, until)
    }

    /// Takes a lock if it is free; `None` if another thread or node has it. Waits for no holder.
    pub fn try_lock(&self, name: impl AsRef<[u8]>) -> Result<Option<Guard<F>>, LockError> {
        self.node().try_lock(&self.lock_name(name)?)
    }

    /// Waits at the barrier of a name until as many callers as `members` wait there, on any nodes; then all go on, and
    /// the barrier can be used again. Waits until [`TierConfig::timeout`](crate::TierConfig::timeout) at
    /// most.
    ///
    /// # Errors
    /// [`LockError::Deadline`] if the time is over: the others still wait for as many callers. The owner may have counted this
    /// one if a message was under way when the time ended; so it may if it cannot be reached any more.
    /// [`LockRefusal::Members`](dunlin_tier::lock::message::LockRefusal::Members) if callers name different numbers, and
    /// [`LockRefusal::Died`](dunlin_tier::lock::message::LockRefusal::Died) for all if the node of one dies.
    pub fn barrier(&self, name: impl AsRef<[u8]>, members: u16) -> Result<(), LockError> {
        self.node().meet(&self.lock_name(name)?, members, self.node().until())
    }

    /// As [`barrier`](Tier::barrier), and waits for at most `time`.
    pub fn barrier_within(
        &self,
        name: impl AsRef<[u8]>,
        members: u16,
        time: Duration,
    ) -> Result<(), LockError> {
        let until = self.node().fabric.host().now().saturating_add(nanos(time));
        self.node().meet(&self.lock_name(name)?, members, until)
    }
}

/// Returns whether an error says that the owner is in another life than the one that this node has joined.
fn is_stale(error: &LockError) -> bool {
    match error {
        LockError::Refused { source: LockRefusal::Unknown, .. }
        | LockError::Word(OperationError::Access(_)) => true,
        // Without atomics of the fabric the owner changes the word, and knows no such region in its next life.
        LockError::Word(OperationError::Request(error)) => {
            matches!(**error, RequestError::Refused { source: Refusal::NoPlace, .. })
        }
        _ => false,
    }
}

/// Returns whether an error says that the view of this node, or that of the owner, is old.
fn is_elsewhere(error: &LockError) -> bool {
    matches!(error, LockError::Refused { source: LockRefusal::NotOwner, .. })
}
