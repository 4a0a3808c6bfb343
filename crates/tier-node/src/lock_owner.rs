//! The owner of locks and barriers (LITE, SOSP 2017, section 7.2): one thread of a node, which queues the calls that
//! wait and answers each when its turn has come.

use crate::error::RequestError;
use crate::item::Change;
use crate::node::Node;
use crate::operate::Target;
use dunlin_fabric::{Fabric, Host, Nanos};
use dunlin_rpc::{Incoming, Puller, Status};
use dunlin_tier::lock::message::{LockMessage, LockRefusal, LockReply, LockRequest, MAX_LOCKS, MAX_MEETING};
use dunlin_tier::lock::{Event, Grant, Member, Queue, Waiter, Word};
use dunlin_tier::{Epoch, Grantee, Handle, Keepers, LmrId, Name, NodeId, Rights};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// The pause between two looks for dead holders while somebody waits, in nanoseconds. A member without a connection in
/// two looks counts as dead: a connection that broke is made again by the member's next call.
const LOOK_EVERY: Nanos = 100_000_000;
/// Callers that left a barrier before their calls came, the last ones: such a call comes soon or never.
const MAX_LEFT: usize = 1024;
/// Attempts to swap a word whose swap failed in an uncertain way.
const ATTEMPTS: u32 = 3;

/// The region with the words of all locks.
#[derive(Debug)]
struct Words {
    id: LmrId,
    handle: Handle,
}

/// A lock's waiters, and their calls.
#[derive(Debug)]
struct Lock<F: Fabric> {
    queue: Queue,
    calls: Vec<(Waiter, Incoming<F>)>,
    /// The word, as long as it is marked: only the owner changes it then.
    marked: Option<Word>,
}

/// A caller that waits at a barrier.
#[derive(Debug)]
struct Caller<F: Fabric> {
    member: Member,
    /// The member's number for the call.
    call: u64,
    incoming: Incoming<F>,
}

/// The callers that wait at a barrier.
#[derive(Debug)]
struct Meeting<F: Fabric> {
    members: u16,
    present: Vec<Caller<F>>,
}

/// The state of the thread.
#[derive(Debug)]
pub(crate) struct Owner<F: Fabric> {
    node: Arc<Node<F>>,
    puller: Puller<F>,
    /// The incarnation of this node in its view, and the number of the owner's life, which members know.
    joined: Option<Epoch>,
    life: u64,
    words: Option<Words>,
    /// The lives of nodes that have joined; a member's number is its place, counted from 1.
    members: Vec<(NodeId, u64)>,
    names: BTreeMap<Name, u16>,
    locks: Vec<Lock<F>>,
    meetings: BTreeMap<Name, Meeting<F>>,
    /// Callers of barriers that left before their calls came, and whether they died.
    left: VecDeque<(Member, u64, bool)>,
    /// Members without a connection at the last look.
    suspects: BTreeSet<Member>,
}

impl<F: Fabric> Owner<F> {
    pub(crate) fn new(node: &Arc<Node<F>>, puller: Puller<F>) -> Self {
        Owner {
            node: Arc::clone(node),
            puller,
            joined: None,
            life: node.incarnation,
            words: None,
            members: Vec::new(),
            names: BTreeMap::new(),
            locks: Vec::new(),
            meetings: BTreeMap::new(),
            left: VecDeque::new(),
            suspects: BTreeSet::new(),
        }
    }

    /// Runs until the node ends.
    pub(crate) fn run(mut self) {
        // The next look, if anybody waits then: callers whose times are short find a dead holder together.
        let mut look = 0;
        while !self.node.is_over() {
            let now = self.node.fabric.host().now();
            let is_waited_for = self.is_waited_for();
            if is_waited_for && now >= look {
                self.look_for_the_dead();
                look = now.saturating_add(LOOK_EVERY);
            }
            let until = if is_waited_for { look } else { Nanos::MAX };
            if let Some(incoming) = self.puller.receive(until) {
                self.take(incoming);
            }
        }
    }

    fn is_waited_for(&self) -> bool {
        !self.meetings.is_empty() || self.locks.iter().any(|lock| !lock.calls.is_empty())
    }

    fn take(&mut self, mut incoming: Incoming<F>) {
        incoming.begin();
        let answer = match LockMessage::parse(&incoming.payload) {
            Ok(message) => self.answer(message, incoming),
            Err(_) => Err((LockRefusal::Malformed, incoming)),
        };
        if let Err((refusal, incoming)) = answer {
            incoming.reply(LockReply::Refused(refusal).encode());
        }
    }

    /// Answers a request, or keeps its call until it can be answered.
    fn answer(
        &mut self,
        LockMessage { owner, request }: LockMessage,
        incoming: Incoming<F>,
    ) -> Result<(), (LockRefusal, Incoming<F>)> {
        self.begin_again();
        let is_first = matches!(request, LockRequest::Join { .. });
        let member = match &request {
            LockRequest::Reserve { waiter, .. } | LockRequest::Abandon { waiter, .. } => Some(waiter.member),
            LockRequest::Meet { member, .. } | LockRequest::Leave { member, .. } => Some(*member),
            _ => None,
        };
        let lock = match &request {
            LockRequest::Reserve { lock, .. }
            | LockRequest::Abandon { lock, .. }
            | LockRequest::Unlock { lock, .. } => Some(*lock),
            _ => None,
        };
        let unknown = !is_first && owner != self.life
            || member.is_some_and(|member| self.life(member).is_none())
            || lock.is_some_and(|lock| usize::from(lock) >= self.locks.len());
        if unknown {
            return Err((LockRefusal::Unknown, incoming));
        }
        let answer = match request {
            LockRequest::Join { node, incarnation } => self.join(node, incarnation),
            LockRequest::Open { name, epoch } => {
                self.check_owner(&name, epoch).and_then(|()| self.open(name)).map(LockReply::Opened)
            }
            LockRequest::Reserve { lock, waiter, waits: true } => {
                return self.reserve(lock, waiter, incoming);
            }
            LockRequest::Reserve { lock, waiter, waits: false } => {
                let granted = self.change(lock, Event::Try(waiter));
                granted.map(|grant| grant.map_or(LockReply::Done, LockReply::from))
            }
            LockRequest::Unlock { lock, word, poisoned } => {
                let event = if poisoned { Event::Poison(word) } else { Event::Unlock(word) };
                self.carry_out(lock, event).map(|()| LockReply::Done)
            }
            LockRequest::Abandon { lock, waiter } => {
                let calls = &mut self.locks[usize::from(lock)].calls;
                for (_, given_up) in calls.extract_if(.., |(other, _)| *other == waiter) {
                    given_up.refuse(Status::DeadlineExceeded);
                }
                self.carry_out(lock, Event::Abandon(waiter)).map(|()| LockReply::Done)
            }
            LockRequest::Meet { name, members, member, call, epoch } => {
                if let Err(refusal) = self.check_owner(&name, epoch) {
                    return Err((refusal, incoming));
                }
                return self.meet(name, members, Caller { member, call, incoming });
            }
            LockRequest::Leave { name, member, call, died } => {
                self.leave(&name, (member, call), died);
                Ok(LockReply::Done)
            }
        };
        match answer {
            Ok(reply) => {
                incoming.reply(reply.encode());
                Ok(())
            }
            Err(refusal) => Err((refusal, incoming)),
        }
    }

    /// Ends all locks and barriers if this node was declared dead and has joined again: members believe that their locks
    /// have ended with it.
    fn begin_again(&mut self) {
        if !self.node.roster.is_dynamic {
            return;
        }
        let own = self.node.roster.get().own.as_ref().map(|own| own.incarnation);
        let Some(incarnation) = own.filter(|own| self.joined != Some(*own)) else { return };
        if self.joined.replace(incarnation).is_some() {
            let calls = self.locks.drain(..).flat_map(|lock| lock.calls).map(|(_, incoming)| incoming);
            let callers =
                std::mem::take(&mut self.meetings).into_values().flat_map(|meeting| meeting.present);
            for incoming in calls.chain(callers.map(|caller| caller.incoming)) {
                incoming.reply(LockReply::Refused(LockRefusal::Unknown).encode());
            }
            self.members.clear();
            self.names.clear();
            self.left.clear();
            self.suspects.clear();
            // The memory of the old words stays as long as the node: members may have swaps under way.
            self.words = None;
        }
        // A number that no earlier one of this life has.
        let salt = incarnation.number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.life = self.node.incarnation.wrapping_add(salt);
    }

    fn life(&self, member: Member) -> Option<(NodeId, u64)> {
        self.members.get(usize::from(member.number()) - 1).copied()
    }

    fn join(&mut self, node: NodeId, incarnation: u64) -> Result<LockReply, LockRefusal> {
        if self.words.is_none() {
            self.words = Some(self.make_words()?);
        }
        let Some(Words { id: words, .. }) = self.words else { return Err(LockRefusal::OutOfMemory) };
        let known = self.members.iter().position(|life| *life == (node, incarnation));
        let place = known.unwrap_or(self.members.len());
        let number = u16::try_from(place + 1).ok().and_then(Member::new).ok_or(LockRefusal::Full)?;
        if known.is_none() {
            self.members.push((node, incarnation));
        }
        Ok(LockReply::Joined { member: number, owner: self.life, words })
    }

    /// Makes the region with the words of all locks. Its id is told to members only, and it has no name.
    fn make_words(&self) -> Result<Words, LockRefusal> {
        let node = &self.node;
        let failed = |error: RequestError| {
            tracing::warn!(target: "dunlin::tier", %error, "no memory for the words of locks");
            LockRefusal::OutOfMemory
        };
        let id = node.make_internal(8 * u64::from(MAX_LOCKS)).map_err(failed)?;
        let rights = Rights::READ.with(Rights::WRITE);
        let granted = node.state().directory.grant(id, &node.principal, Grantee::Anyone, rights);
        granted.map_err(|_| LockRefusal::OutOfMemory)?;
        let (handle, ..) =
            node.map((id, &Keepers::new(id.node)), &node.principal, rights, node.until()).map_err(failed)?;
        Ok(Words { id, handle })
    }

    /// Refuses a name that this node does not own by its own view, or that a member takes for its own by a later one: this
    /// node may have lost the lock and got it back meanwhile, and another owner may have granted it with greater fence
    /// numbers.
    fn check_owner(&self, name: &Name, epoch: Epoch) -> Result<(), LockRefusal> {
        if !self.node.roster.is_dynamic {
            return Ok(());
        }
        let current = self.node.roster.get();
        let is_late = current.view.epoch < epoch;
        if is_late {
            self.node.ask_for_view();
        }
        match current.view.lock_home(name) == Some(self.node.me) && !is_late {
            true => Ok(()),
            false => Err(LockRefusal::NotOwner),
        }
    }

    fn open(&mut self, name: Name) -> Result<u16, LockRefusal> {
        if let Some(lock) = self.names.get(&name) {
            return Ok(*lock);
        }
        let lock = u16::try_from(self.locks.len()).ok().filter(|lock| *lock < MAX_LOCKS);
        let lock = lock.ok_or(LockRefusal::Full)?;
        self.start_word(lock)?;
        self.names.insert(name, lock);
        self.locks.push(Lock { queue: Queue::default(), calls: Vec::new(), marked: None });
        Ok(lock)
    }

    /// Lets the fence numbers of a new lock begin above those that an owner before may have given.
    fn start_word(&self, lock: u16) -> Result<(), LockRefusal> {
        if !self.node.roster.is_dynamic {
            return Ok(());
        }
        let view = self.node.roster.get().view.epoch.number;
        let Some(Words { id, handle }) = self.words else { return Err(LockRefusal::Unknown) };
        let change = Change::Swap { expected: Word::default().bits(), swap: Word::starting(view).bits() };
        let target = Target::new(handle, &self.node.class);
        match self.node.change_word(target, id, offset(lock), change) {
            Ok(_) => Ok(()),
            Err(error) => {
                tracing::warn!(target: "dunlin::tier", %error, "the word of a lock cannot be changed");
                Err(LockRefusal::Memory)
            }
        }
    }

    fn reserve(
        &mut self,
        lock: u16,
        waiter: Waiter,
        incoming: Incoming<F>,
    ) -> Result<(), (LockRefusal, Incoming<F>)> {
        let calls = &mut self.locks[usize::from(lock)].calls;
        // Of two calls of a member one counts.
        calls.retain(|(other, _)| other.member != waiter.member);
        calls.push((waiter, incoming));
        let carried_out = self.carry_out(lock, Event::Reserve(waiter));
        let Lock { queue, calls, .. } = &mut self.locks[usize::from(lock)];
        if carried_out.is_ok() && queue.waiting().any(|other| other == waiter) {
            return Ok(());
        }
        let place = calls.iter().position(|(other, _)| *other == waiter);
        match (place.map(|place| calls.swap_remove(place).1), carried_out) {
            (Some(incoming), Err(refusal)) => Err((refusal, incoming)),
            // It was given up before it came. A thread has gone, and a node that lives waits for the answer.
            (Some(incoming), Ok(())) => {
                incoming.refuse(Status::DeadlineExceeded);
                Ok(())
            }
            (None, _) => Ok(()),
        }
    }

    /// Changes a lock, and answers the call that it is given to. A waiter whose time is over gives it on.
    fn carry_out(&mut self, lock: u16, mut event: Event) -> Result<(), LockRefusal> {
        loop {
            let Some(grant) = self.change(lock, event)? else { return Ok(()) };
            let calls = &mut self.locks[usize::from(lock)].calls;
            if let Some(place) = calls.iter().position(|(waiter, _)| *waiter == grant.waiter) {
                let (_, incoming) = calls.swap_remove(place);
                if incoming.time_left() != Some(Duration::ZERO) {
                    incoming.reply(LockReply::from(grant).encode());
                    return Ok(());
                }
                incoming.refuse(Status::DeadlineExceeded);
            }
            event = Event::Abandon(grant.waiter);
        }
    }

    /// Swaps the word and changes the queue. All changes of words are atomics of the device, as those of members are.
    fn change(&mut self, lock: u16, event: Event) -> Result<Option<Grant>, LockRefusal> {
        let failed = |error| {
            tracing::warn!(target: "dunlin::tier", %error, "the word of a lock cannot be changed");
            LockRefusal::Memory
        };
        let marked = self.locks[usize::from(lock)].marked;
        let (mut word, mut attempts) = (marked.map_or_else(|| self.word(lock), Ok)?, 0);
        let Lock { queue, marked, .. } = &mut self.locks[usize::from(lock)];
        let Some(Words { id, handle }) = self.words else { return Err(LockRefusal::Unknown) };
        loop {
            let plan = queue.plan(word, event);
            let Some(swap) = plan.swap else { return Ok(queue.apply(plan)) };
            let change = Change::Swap { expected: word.bits(), swap: swap.bits() };
            let now = match self.node.change_word(
                Target::new(handle, &self.node.class),
                id,
                offset(lock),
                change,
            ) {
                Ok(old) if old == word.bits() => {
                    *marked = Some(swap).filter(|word| word.has_waiters());
                    return Ok(queue.apply(plan));
                }
                Ok(old) => Word::from_bits(old),
                Err(_) if attempts < ATTEMPTS => {
                    attempts += 1;
                    read(&self.node, handle, id, lock).map_err(failed)?
                }
                Err(error) => return Err(failed(error)),
            };
            if attempts > 0 && now == swap {
                // The uncertain swap was executed.
                *marked = Some(swap).filter(|word| word.has_waiters());
                return Ok(queue.apply(plan));
            }
            *marked = None;
            word = now;
        }
    }

    fn word(&self, lock: u16) -> Result<Word, LockRefusal> {
        let Some(Words { id, handle }) = self.words else { return Err(LockRefusal::Unknown) };
        read(&self.node, handle, id, lock).map_err(|error| {
            tracing::warn!(target: "dunlin::tier", %error, "the word of a lock cannot be read");
            LockRefusal::Memory
        })
    }

    fn meet(
        &mut self,
        name: Name,
        members: u16,
        caller: Caller<F>,
    ) -> Result<(), (LockRefusal, Incoming<F>)> {
        if !(1..=MAX_MEETING).contains(&members) {
            return Err((LockRefusal::Members { wanted: members, present: 0 }, caller.incoming));
        }
        let has_left =
            |(member, call, _): &(Member, u64, bool)| (*member, *call) == (caller.member, caller.call);
        if let Some((_, _, died)) = self.left.iter().position(has_left).and_then(|at| self.left.remove(at)) {
            if died {
                self.end_meeting(&name, caller.member);
            }
            caller.incoming.refuse(Status::DeadlineExceeded);
            return Ok(());
        }
        let meeting =
            self.meetings.entry(name.clone()).or_insert_with(|| Meeting { members, present: Vec::new() });
        leave(&mut meeting.present);
        if meeting.present.is_empty() {
            meeting.members = members;
        }
        if meeting.members != members {
            return Err((
                LockRefusal::Members { wanted: members, present: meeting.members },
                caller.incoming,
            ));
        }
        meeting.present.push(caller);
        if meeting.present.len() >= usize::from(members) {
            let all = self.meetings.remove(&name).map(|meeting| meeting.present);
            for caller in all.unwrap_or_default() {
                caller.incoming.reply(LockReply::Done.encode());
            }
        }
        Ok(())
    }

    /// Forgets a caller of a barrier, whose death ends the barrier for all.
    fn leave(&mut self, name: &Name, (member, call): (Member, u64), died: bool) {
        let present = self.meetings.get_mut(name).map(|meeting| &mut meeting.present);
        let is_it = |caller: &Caller<F>| (caller.member, caller.call) == (member, call);
        let place = present.as_ref().and_then(|present| present.iter().position(is_it));
        match (present, place) {
            (Some(present), Some(place)) => {
                present.remove(place).incoming.refuse(Status::DeadlineExceeded);
                if died {
                    self.end_meeting(name, member);
                } else if present.is_empty() {
                    self.meetings.remove(name);
                }
            }
            _ => {
                self.left.push_back((member, call, died));
                if self.left.len() > MAX_LEFT {
                    self.left.pop_front();
                }
            }
        }
    }

    /// Ends a barrier for all its callers, since one of a member has died.
    fn end_meeting(&mut self, name: &Name, member: Member) {
        let node = self.life(member).map_or(self.node.me, |(node, _)| node);
        let present = self.meetings.remove(name).map(|meeting| meeting.present);
        for caller in present.unwrap_or_default() {
            caller.incoming.reply(LockReply::Refused(LockRefusal::Died(node)).encode());
        }
    }

    /// Passes on the locks of holders that have died, and ends the barriers at which a caller has died.
    fn look_for_the_dead(&mut self) {
        let alive: BTreeSet<u64> =
            self.puller.clients().into_iter().filter_map(|client| client.client).collect();
        let mut missing = BTreeSet::new();
        for lock in 0..self.locks.len() as u16 {
            if self.locks[usize::from(lock)].calls.is_empty() {
                continue;
            }
            let Ok(Some(holder)) = self.word(lock).map(Word::holder) else { continue };
            if self.life(holder).is_some_and(|(_, life)| alive.contains(&life)) {
                continue;
            }
            missing.insert(holder);
            if self.suspects.contains(&holder) {
                let node = self.life(holder).map(|(node, _)| self.node.name_of(node)).unwrap_or_default();
                tracing::warn!(target: "dunlin::tier", node, lock, "the holder of a lock has died");
                // An error was logged; the next look tries again.
                let _ = self.carry_out(lock, Event::Dead(holder));
            }
        }
        let mut ended = Vec::new();
        for (name, meeting) in &mut self.meetings {
            leave(&mut meeting.present);
            for Caller { member, .. } in &meeting.present {
                let life = self.members.get(usize::from(member.number()) - 1);
                if life.is_some_and(|(_, life)| alive.contains(life)) {
                    continue;
                }
                missing.insert(*member);
                if self.suspects.contains(member) {
                    ended.push((name.clone(), *member));
                    break;
                }
            }
        }
        for (name, member) in ended {
            self.end_meeting(&name, member);
        }
        self.meetings.retain(|_, meeting| !meeting.present.is_empty());
        self.suspects = missing;
    }
}

/// Takes callers whose time is over away from a barrier.
fn leave<F: Fabric>(present: &mut Vec<Caller<F>>) {
    let is_over = |caller: &mut Caller<F>| caller.incoming.time_left() == Some(Duration::ZERO);
    for caller in present.extract_if(.., is_over) {
        caller.incoming.refuse(Status::DeadlineExceeded);
    }
}

/// The place of a lock's word in the region of words, in bytes.
pub(crate) fn offset(lock: u16) -> u64 {
    8 * u64::from(lock)
}

/// Reads a word as the device sees it.
fn read<F: Fabric>(
    node: &Node<F>,
    handle: Handle,
    id: LmrId,
    lock: u16,
) -> Result<Word, crate::OperationError> {
    node.change_word(Target::new(handle, &node.class), id, offset(lock), Change::Add(0)).map(Word::from_bits)
}
