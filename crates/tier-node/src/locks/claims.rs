//! Waiters that are no threads: a claim is answered when the lock is its own, or when all have met. All that is done for
//! it are asynchronous calls to the owner of the lock, so nothing here blocks, and no thread waits.
//!
//! A claim never touches the word of a lock: the owner swaps it. The word of a free lock would save the owner's
//! processor, but an atomic keeps a thread until it completes.

use super::{Held, Joined, LockError, Shared, Turn, is_elsewhere, is_stale};
use crate::forward::{Link, WINDOW};
use crate::members::ASK_AGAIN;
use crate::node::Node;
use dunlin_fabric::{Fabric, Host, Nanos, Signal};
use dunlin_tier::lock::message::{LOCK_CALL, LockMessage, LockReply, LockRequest};
use dunlin_tier::lock::{Waiter, Word};
use dunlin_tier::{Name, NodeId};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The most requests to an owner on behalf of one claim: its node may join, open and abandon, twice.
const MAX_STEPS: u8 = 12;

/// The time that the owner of a barrier has to hear that a caller leaves, before that is left to the cleaner.
const LEAVING: Duration = Duration::from_millis(200);

/// Takes the outcome of giving a lock back. Must not block.
pub(crate) type Returned = Box<dyn FnOnce(Result<(), LockError>) + Send>;

/// A waiter for a lock that is no thread. No method may block.
pub(crate) trait Claim<F: Fabric>: std::fmt::Debug + Send + Sync {
    /// Returns the number of the claim, which no other claim at this node has.
    fn number(&self) -> u64;

    /// Returns the end of its time, on the host's clock.
    fn until(&self) -> Nanos;

    /// Returns whether nobody waits any more.
    fn is_over(&self) -> bool;

    /// Gives the lock to the waiter; gives it back if nobody waits any more. The claim is ended then.
    fn grant(&self, hold: Hold<F>) -> Result<(), Hold<F>>;

    /// Ends the wait without the lock. It is not free if that is no error.
    fn end(&self, outcome: Result<(), LockError>);
}

/// A caller of a barrier that is no thread. No method may block.
pub(crate) trait Meets: std::fmt::Debug + Send + Sync {
    /// Returns the number of the call, which no other call of this node has.
    fn number(&self) -> u64;

    /// Returns the end of its time, on the host's clock.
    fn until(&self) -> Nanos;

    /// Returns whether nobody waits any more.
    fn is_over(&self) -> bool;

    /// Ends the wait: all have met, or will not.
    fn end(&self, outcome: Result<(), LockError>);
}

/// A lock that was given to a claim. If it is dropped, its holder has died with it.
#[derive(Debug)]
pub(crate) struct Hold<F: Fabric> {
    node: Arc<Node<F>>,
    shared: Arc<Shared<F>>,
    held: Option<Held>,
}

impl<F: Fabric> Hold<F> {
    pub(crate) fn fence(&self) -> u64 {
        self.held.map_or(0, |held| held.fence())
    }

    pub(crate) fn is_poisoned(&self) -> bool {
        self.held.is_some_and(|held| held.poisoned)
    }

    /// Gives the lock to the next waiter of this node, or back to the owner.
    pub(crate) fn give_back(mut self, done: Returned) {
        if let Some(held) = self.held.take() {
            self.node.return_claimed(&self.shared, held, false, done);
        }
    }

    /// Gives back a lock of whose grant nobody has heard.
    pub(crate) fn give_back_unseen(mut self, done: Returned) {
        if let Some(held) = self.held.take() {
            self.node.return_claimed(&self.shared, held, held.poisoned, done);
        }
    }
}

impl<F: Fabric> Drop for Hold<F> {
    fn drop(&mut self) {
        if let Some(held) = self.held.take() {
            self.node.return_claimed(&self.shared, held, true, Box::new(drop));
        }
    }
}

/// The next step for a lock that nobody has.
enum Step<F: Fabric> {
    /// Nobody waits, or a thread does, which takes its turn itself.
    Nothing,
    /// The lock was kept for a waiter that has left.
    Release(Held),
    /// A claim's turn.
    Claim(Arc<dyn Claim<F>>, Option<Held>),
}

impl<F: Fabric> Shared<F> {
    /// Decides the next step. After [`Step::Nothing`], others may advance the lock.
    fn step(&self) -> Step<F> {
        let mut threads = self.threads();
        if !threads.taken {
            match threads.queue.front() {
                None => {
                    if let Some(held) = threads.kept.take() {
                        threads.taken = true;
                        return Step::Release(held);
                    }
                }
                Some(Turn { claim: Some(claim), .. }) => {
                    let claim = Arc::clone(claim);
                    threads.queue.pop_front();
                    threads.taken = true;
                    return Step::Claim(claim, threads.kept.take());
                }
                Some(Turn { claim: None, .. }) => {}
            }
        }
        threads.is_advancing = false;
        Step::Nothing
    }

    /// Keeps a lock for the next waiter.
    fn keep(&self, held: Option<Held>) {
        let mut threads = self.threads();
        (threads.kept, threads.taken) = (held, false);
    }
}

impl<F: Fabric> Node<F> {
    /// Takes a lock for a claim, or queues it.
    pub(crate) fn claim(self: &Arc<Self>, name: &Name, claim: Arc<dyn Claim<F>>) {
        let shared = self.locks.of(name, self.fabric.host());
        shared.append(Some(claim));
        self.advance(&shared);
    }

    /// Takes a lock for a claim if no thread, no process and no node has it.
    pub(crate) fn try_claim(self: &Arc<Self>, name: &Name, claim: Arc<dyn Claim<F>>) {
        let shared = self.locks.of(name, self.fabric.host());
        let kept = {
            let mut threads = shared.threads();
            if threads.taken || !threads.queue.is_empty() {
                drop(threads);
                return claim.end(Ok(()));
            }
            threads.taken = true;
            threads.kept.take()
        };
        match kept {
            Some(held) => {
                self.hand(&shared, &*claim, held);
                self.advance(&shared);
            }
            None => Acquire::begin(self, &shared, claim, false),
        }
    }

    /// Takes a claim out of the queue of a lock, at this node and at the owner.
    pub(crate) fn unclaim(self: &Arc<Self>, name: &Name, number: u64) {
        let shared = {
            let all = self.locks.shared.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            all.get(name).map(Arc::clone)
        };
        if let Some(shared) = shared {
            let is_it = |turn: &Turn<F>| turn.claim.as_ref().is_some_and(|claim| claim.number() == number);
            let asking = {
                let mut threads = shared.threads();
                threads.queue.retain(|turn| !is_it(turn));
                // Without another waiter, this node has no use for the lock.
                let is_alone = threads.queue.is_empty();
                threads.asking.clone().filter(|(own, ..)| is_alone && *own == number)
            };
            if let Some((_, joined, abandon)) = asking {
                // If it fails, the call at the owner ends at its deadline.
                self.tell((&joined, Link::Owner), abandon, self.config.timeout, drop);
            }
            self.advance(&shared);
        }
    }

    /// Gives a lock that nobody has to the next waiter. Does not block. One thread at a time does so, since a step may
    /// end at once and ask for the next one.
    pub(super) fn advance(self: &Arc<Self>, shared: &Arc<Shared<F>>) {
        if std::mem::replace(&mut shared.threads().is_advancing, true) {
            return;
        }
        loop {
            match shared.step() {
                Step::Nothing => break,
                Step::Release(held) => self.release_claimed(shared, held, held.poisoned, Box::new(drop)),
                Step::Claim(claim, kept) if claim.is_over() => {
                    claim.end(Err(self.late(&shared.name)));
                    shared.keep(kept);
                }
                Step::Claim(claim, Some(held)) => self.hand(shared, &*claim, held),
                Step::Claim(claim, None) => Acquire::begin(self, shared, claim, true),
            }
        }
        shared.changed.raise();
    }

    /// Hands a lock to a claim, or keeps it for the next waiter.
    fn hand(self: &Arc<Self>, shared: &Arc<Shared<F>>, claim: &dyn Claim<F>, held: Held) {
        let (node, own) = (Arc::clone(self), Arc::clone(shared));
        if let Err(mut hold) = claim.grant(Hold { node, shared: own, held: Some(held) }) {
            claim.end(Err(self.late(&shared.name)));
            shared.keep(hold.held.take());
        }
    }

    /// Has the next view come soon if an error says that this one is old. Returns the time at which to ask the owner again;
    /// `None` for another error, or too late.
    fn view_comes(&self, error: &LockError, until: Nanos) -> Option<Nanos> {
        if !is_elsewhere(error) {
            return None;
        }
        self.ask_for_view();
        let again = self.fabric.host().now().saturating_add(ASK_AGAIN);
        (again < until && self.delays.has_room()).then_some(again)
    }

    fn late(&self, name: &Name) -> LockError {
        LockError::Deadline { node: self.name_of(self.lock_home_of(name)) }
    }

    /// Gives a lock that a claim had to the next waiter of this node, or back.
    fn return_claimed(self: &Arc<Self>, shared: &Arc<Shared<F>>, held: Held, poisoned: bool, done: Returned) {
        if self.hand_over(shared, held, poisoned) {
            done(Ok(()));
        } else {
            self.release_claimed(shared, held, poisoned, done);
        }
    }

    /// Gives a lock back to its owner, and lets the next waiter of this node try.
    fn release_claimed(
        self: &Arc<Self>,
        shared: &Arc<Shared<F>>,
        held: Held,
        poisoned: bool,
        done: Returned,
    ) {
        let Held { joined, lock, word, .. } = held;
        let unlock = LockRequest::Unlock { lock, word, poisoned };
        let (node, own, again) = (Arc::clone(self), Arc::clone(shared), unlock.clone());
        self.tell((&joined, Link::Owner), unlock, self.config.timeout, move |answer| {
            let result = match answer {
                Ok(_) => Ok(()),
                Err((error, _)) => {
                    node.leave(&joined, again, 0);
                    Err(error)
                }
            };
            node.step_back(&own);
            done(result);
        });
    }

    /// Sends a request to an owner that this node has joined, and has `done` take the answer.
    fn tell(
        self: &Arc<Self>,
        (joined, link): (&Joined, Link),
        request: LockRequest,
        time: Duration,
        done: impl FnOnce(Result<LockReply, (LockError, bool)>) + Send + 'static,
    ) {
        self.tell_life((joined.node, link), LockMessage { owner: joined.owner, request }, time, done);
    }

    fn tell_life(
        self: &Arc<Self>,
        (to, link): (NodeId, Link),
        message: LockMessage,
        time: Duration,
        done: impl FnOnce(Result<LockReply, (LockError, bool)>) + Send + 'static,
    ) {
        let node = Arc::clone(self);
        let waits = link == Link::Waits;
        if waits {
            let waiting = &self.locks.waiting[usize::from(to.0)];
            if waiting.fetch_add(1, Ordering::Relaxed) >= u32::from(WINDOW) {
                waiting.fetch_sub(1, Ordering::Relaxed);
                return done(Err((LockError::Busy { node: self.name_of(to) }, true)));
            }
        }
        let answered = move |outcome| {
            if waits {
                node.locks.waiting[usize::from(to.0)].fetch_sub(1, Ordering::Relaxed);
            }
            done(node.outcome(to, outcome));
        };
        self.forward((to, link), LOCK_CALL, &message.encode(), time, Box::new(answered));
    }

    fn left(&self, until: Nanos) -> Duration {
        Duration::from_nanos(until.saturating_sub(self.fabric.host().now()))
    }

    /// Records a membership, unless this node has a mapping of the same life.
    fn enter(&self, owner: NodeId, reply: LockReply) -> Result<Joined, LockError> {
        let LockReply::Joined { member, owner: life, words } = reply else {
            return Err(self.misfit(owner).into());
        };
        let joined = Joined { node: owner, owner: life, member, words, handle: None };
        let mut all = self.locks.joined();
        let place = &mut all[usize::from(owner.0)];
        if let Some(known) = place.filter(|known| known.owner == life) {
            return Ok(known);
        }
        let last = place.replace(joined).and_then(|last| last.handle);
        drop(all);
        last.into_iter().for_each(|handle| self.unmap(handle));
        Ok(joined)
    }

    /// Waits at a barrier for a caller that is no thread.
    pub(crate) fn meet_for(self: &Arc<Self>, name: &Name, members: u16, caller: Arc<dyn Meets>) {
        Meet { node: Arc::clone(self), name: name.clone(), members, caller, again: true }.go();
    }

    /// Tells the owner of a barrier that a caller does not wait any more. `done` runs when it has heard, or does not
    /// answer soon.
    pub(crate) fn leave_meeting(
        self: &Arc<Self>,
        name: &Name,
        call: u64,
        died: bool,
        done: impl FnOnce() + Send + 'static,
    ) {
        // Without a membership the owner has no call.
        let joined = self.locks.joined()[usize::from(self.lock_home_of(name).0)];
        let Some(joined) = joined else { return done() };
        let leave = LockRequest::Leave { name: name.clone(), member: joined.member, call, died };
        let (node, again) = (Arc::clone(self), leave.clone());
        self.tell((&joined, Link::Owner), leave, LEAVING, move |answer| {
            if answer.is_err() {
                node.leave(&joined, again, 0);
            }
            done();
        });
    }
}

/// A claim on its way to the owner of a lock.
struct Acquire<F: Fabric> {
    node: Arc<Node<F>>,
    shared: Arc<Shared<F>>,
    claim: Arc<dyn Claim<F>>,
    waits: bool,
    /// A new membership may be made, once.
    again: bool,
    steps: u8,
}

impl<F: Fabric> Acquire<F> {
    fn begin(node: &Arc<Node<F>>, shared: &Arc<Shared<F>>, claim: Arc<dyn Claim<F>>, waits: bool) {
        let (node, shared) = (Arc::clone(node), Arc::clone(shared));
        Acquire { node, shared, claim, waits, again: true, steps: 0 }.go();
    }

    /// Makes the next request to the owner.
    fn go(mut self) {
        self.steps += 1;
        if self.claim.is_over() || self.steps > MAX_STEPS || self.node.is_over() {
            let late = self.node.late(&self.shared.name);
            return self.end(Err(late));
        }
        let (home, epoch) = self.node.lock_owner_of(&self.shared.name);
        let place = self.shared.threads().place.filter(|(joined, ..)| joined.node == home);
        let joined = self.node.locks.joined()[usize::from(home.0)];
        match (place, joined) {
            (Some((joined, lock, _)), _) => self.reserve(joined, lock),
            (None, Some(joined)) => {
                let open = LockRequest::Open { name: self.shared.name.clone(), epoch };
                self.ask((&joined, Link::Owner), open, move |this, answer| match answer {
                    Ok(LockReply::Opened(lock)) => {
                        this.shared.threads().place = Some((joined, lock, Word::default()));
                        this.go();
                    }
                    other => this.fail(other, home),
                });
            }
            (None, None) => {
                let Node { me, incarnation, .. } = *self.node;
                let request = LockRequest::Join { node: me, incarnation };
                let (node, left) = (Arc::clone(&self.node), self.node.left(self.claim.until()));
                let message = LockMessage { owner: 0, request };
                node.tell_life((home, Link::Owner), message, left, move |answer| {
                    let entered =
                        answer.and_then(|reply| self.node.enter(home, reply).map_err(|error| (error, true)));
                    match entered {
                        Ok(_) => self.go(),
                        Err((error, _)) => self.end(Err(error)),
                    }
                });
            }
        }
    }

    fn ask(
        self,
        to: (&Joined, Link),
        request: LockRequest,
        then: impl FnOnce(Self, Result<LockReply, (LockError, bool)>) + Send + 'static,
    ) {
        let node = Arc::clone(&self.node);
        let left = node.left(self.claim.until());
        node.tell(to, request, left, move |answer| then(self, answer));
    }

    fn reserve(self, joined: Joined, lock: u16) {
        let owed = self.shared.threads().owed;
        if let Some((owner, waiter)) = owed {
            if owner == joined.owner {
                // The owner must not find a new call before it has heard of the end of the last one.
                let abandon = LockRequest::Abandon { lock, waiter };
                return self.ask((&joined, Link::Owner), abandon, move |this, answer| match answer {
                    Ok(LockReply::Done) => {
                        this.shared.threads().owed = None;
                        this.go();
                    }
                    other => this.fail(other, joined.node),
                });
            }
            self.shared.threads().owed = None;
        }
        let (waits, call) = (self.waits, self.node.locks.number());
        let waiter = Waiter { member: joined.member, call };
        let link = if waits { Link::Waits } else { Link::Owner };
        let (reserve, abandon) =
            (LockRequest::Reserve { lock, waiter, waits }, LockRequest::Abandon { lock, waiter });
        self.shared.threads().asking = Some((self.claim.number(), joined, abandon.clone()));
        self.ask((&joined, link), reserve, move |this, answer| match answer {
            Ok(LockReply::Granted { word, poisoned }) if word.holder() == Some(joined.member) => {
                this.shared.threads().asking = None;
                this.shared.threads().place = Some((joined, lock, word));
                let held = Held { joined, lock, word, handed: 0, poisoned };
                this.node.hand(&this.shared, &*this.claim, held);
                this.node.advance(&this.shared);
            }
            Ok(LockReply::Done) if !waits => this.end(Ok(())),
            Err((error, false)) => {
                this.shared.threads().owed = Some((joined.owner, waiter));
                this.node.leave(&joined, abandon, 0);
                this.end(Err(error));
            }
            other => this.fail(other, joined.node),
        });
    }

    /// Joins the next life of the owner, once, or ends the claim.
    fn fail(mut self, answer: Result<LockReply, (LockError, bool)>, owner: NodeId) {
        self.shared.threads().asking = None;
        match answer {
            Err((error, _)) if self.again && is_stale(&error) => {
                self.again = false;
                self.shared.threads().place = None;
                self.node.forget(owner);
                self.go();
            }
            Err((error, _)) => match self.node.view_comes(&error, self.claim.until()) {
                Some(again) => {
                    // The steps are those of the next view.
                    self.steps = 0;
                    let node = Arc::clone(&self.node);
                    node.delays.at(node.fabric.host(), again, Box::new(move || self.go()));
                }
                None => self.end(Err(error)),
            },
            Ok(_) => {
                let misfit = self.node.misfit(owner).into();
                self.end(Err(misfit));
            }
        }
    }

    fn end(self, outcome: Result<(), LockError>) {
        self.shared.threads().asking = None;
        // A caller that hears of the end may try the lock at once.
        self.node.step_back(&self.shared);
        self.claim.end(outcome);
    }
}

/// A caller on its way to the owner of a barrier.
struct Meet<F: Fabric> {
    node: Arc<Node<F>>,
    name: Name,
    members: u16,
    caller: Arc<dyn Meets>,
    again: bool,
}

impl<F: Fabric> Meet<F> {
    fn go(mut self) {
        if self.caller.is_over() {
            return self.caller.end(Err(self.node.late(&self.name)));
        }
        let (home, epoch) = self.node.lock_owner_of(&self.name);
        let (node, left) = (Arc::clone(&self.node), self.node.left(self.caller.until()));
        let joined = self.node.locks.joined()[usize::from(home.0)];
        let Some(joined) = joined else {
            let request = LockRequest::Join { node: node.me, incarnation: node.incarnation };
            let message = LockMessage { owner: 0, request };
            return node.tell_life((home, Link::Owner), message, left, move |answer| {
                let entered =
                    answer.and_then(|reply| self.node.enter(home, reply).map_err(|error| (error, true)));
                match entered {
                    Ok(_) => self.go(),
                    Err((error, _)) => self.caller.end(Err(error)),
                }
            });
        };
        let (name, members, call) = (self.name.clone(), self.members, self.caller.number());
        let meet = LockRequest::Meet { name, members, member: joined.member, call, epoch };
        node.tell((&joined, Link::Waits), meet, left, move |answer| match answer {
            Ok(LockReply::Done) => self.caller.end(Ok(())),
            Ok(_) => self.caller.end(Err(self.node.misfit(home).into())),
            Err((error, _)) if self.again && is_stale(&error) => {
                self.again = false;
                self.node.forget(home);
                self.go();
            }
            Err((error, _)) => match self.node.view_comes(&error, self.caller.until()) {
                Some(again) => {
                    let node = Arc::clone(&self.node);
                    node.delays.at(node.fabric.host(), again, Box::new(move || self.go()));
                }
                None => self.caller.end(Err(error)),
            },
        });
    }
}

#[cfg(test)]
mod tests;
