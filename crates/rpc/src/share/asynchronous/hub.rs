//! The hub: the engine of all asynchronous clients behind the lead, and the tickets of their calls.
//!
//! A thread that makes or polls a call takes the lead if it is free, and makes progress for all. Otherwise it leaves
//! its call as a ticket (`combine/tickets/pool.rs`) and goes on: whoever leads sends the call, writes its result
//! into the ticket, and wakes its task. Nobody waits for the lead to make or poll a call. Connecting, closing and
//! questions about the tuning do. `lead.rs` has the guard of the lead.

use super::route::{Lane, Route, To};
use super::strands::{
    CloneRoute, Clones, Members, NO_CLONE, Strands, ended, is_of_lane, queue_of_clone, queue_of_lane,
};
use super::ticket::{Tickets, prepare};
use crate::client::core::{CallId, Core};
use crate::client::lane::SubmitError;
use crate::client::memory::is_memory;
use crate::client::slots::Sink;
use crate::combine::lead::{Lead, Led, Look, SignalOf, Waiters, Watch};
use crate::combine::lines::{HANDED_OVER, lines_of};
use crate::combine::tickets::{Delivery, Leader, Pool, Side, TicketId};
use crate::error::{CallError, Cause, ConnectError};
use crate::plan::CompletionMode;
use dunlin_fabric::{Buffer, Fabric, Host, Nanos, Signal, Task, ThreadDomain, WaitMode, Waker as _, Work};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

/// The slabs of tickets of a hub: 65 536 calls that are neither answered nor given up.
const SLABS: u16 = 1024;
/// The most calls that a leader sends in one round.
const MOST_AT_ONCE: usize = 64;
/// No ticket is under way at this index.
const NOTHING: u64 = u64::MAX;

/// The state that threads without the lead see: the list of tickets, and the wake thread's sleep.
pub(super) struct Gate<F: Fabric> {
    tickets: Arc<Tickets<F>>,
    /// A task asks the leader whether its connection is usable, or a connection has to be closed.
    pub(super) asked: AtomicBool,
    pub(super) doorbell: <F::Domain as ThreadDomain>::Waker,
    pub(super) signal: <F::Host as Host>::Signal,
    /// The wake thread sleeps on the signal because there is nothing to wait for.
    pub(super) parked: AtomicBool,
    /// The latest time at which the wake thread wakes up; 0 while it is awake, because it looks again before it sleeps.
    pub(super) sleeps_until: AtomicU64,
    /// The arrivals that wake it then, by [`number`]. A lane that is opened later may need others.
    pub(super) sleeps_for: AtomicU8,
    /// The latest deadline of the calls so far.
    pub(super) latest_due: AtomicU64,
    pub(super) started: AtomicBool,
    pub(super) stopping: AtomicBool,
    /// The wake thread is running wakers, and so any code that tasks run in them.
    pub(super) waking: AtomicBool,
}

/// A number for a mode of waiting.
pub(super) const fn number(mode: WaitMode) -> u8 {
    match mode {
        WaitMode::Busy => 0,
        WaitMode::Event => 1,
        WaitMode::Write => 2,
    }
}

impl<F: Fabric> Gate<F> {
    /// Wakes the wake thread, if it sleeps until after `due`.
    #[inline]
    pub(super) fn ring_before(&self, due: Nanos) {
        if self.parked.load(Ordering::Relaxed) {
            if self.parked.swap(false, Ordering::Relaxed) {
                self.signal.raise();
            }
        } else if due < self.sleeps_until.load(Ordering::Relaxed) {
            // Once is enough: the thread is awake from now on.
            if self.sleeps_until.swap(0, Ordering::Relaxed) > 0 {
                self.doorbell.wake();
            }
        }
    }

    /// Wakes the wake thread if the engine has work before it wakes up by itself.
    #[inline]
    pub(super) fn tend(&self, core: &Core<F>) {
        let until = self.sleeps_until.load(Ordering::Relaxed);
        if until == 0 {
            return;
        }
        let due = core.batches_due().min(core.fetch_due());
        let other = self.sleeps_for.load(Ordering::Relaxed) != number(core.sleep().mode);
        if due < until || other {
            self.ring_before(0);
        }
    }
}

impl<F: Fabric> Watch for Gate<F> {
    #[inline]
    fn look(&self) -> Look {
        let has_work = !self.tickets.is_empty() || self.asked.load(Ordering::Relaxed);
        if has_work { Look::Calls } else { Look::Nothing }
    }

    fn wake(&self) {
        self.ring_before(0);
    }
}

/// A connection, or strands, that the leader has to close.
pub(super) enum Dropped {
    /// A connection that nobody has any more, by number.
    Connection(u32),
    /// The strands of a client that are not active any more.
    Strands(Arc<Strands>),
}

/// Shared by the clients of a hub and its wake thread.
pub(super) struct Inner<F: Fabric> {
    pub(super) fabric: F,
    pub(super) tickets: Arc<Tickets<F>>,
    pub(super) lead: Lead<Engine<F>, Waiters<SignalOf<F>, Gate<F>>>,
    pub(super) thread: Mutex<Option<Task>>,
    /// Tasks that wait for a connection, by number, with the time at which they have to try again or give up. Locked
    /// for a few instructions, and only while there is no connection.
    unready: Mutex<BTreeMap<u64, (Nanos, Waker)>>,
    /// The connections and strands for the leader to close. Locked for a few instructions.
    pub(super) dropped: Mutex<Vec<Dropped>>,
    pub(super) clones: Arc<Clones>,
    next_number: AtomicU64,
}

impl<F: Fabric> fmt::Debug for Inner<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inner").field("tickets", &self.tickets).finish_non_exhaustive()
    }
}

impl<F: Fabric> Inner<F> {
    pub(super) fn new(fabric: &F) -> Result<Self, ConnectError> {
        let core = Core::new(fabric, CompletionMode::Event)?;
        let tickets = Arc::new(Pool::new(SLABS));
        let gate = Gate {
            tickets: Arc::clone(&tickets),
            asked: AtomicBool::new(false),
            doorbell: core.domain.waker(),
            signal: fabric.host().signal(),
            parked: AtomicBool::new(false),
            sleeps_until: AtomicU64::new(0),
            sleeps_for: AtomicU8::new(number(WaitMode::Busy)),
            latest_due: AtomicU64::new(0),
            started: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
            waking: AtomicBool::new(false),
        };
        // The pool is new, so nobody has its leader.
        let clones = Arc::new(Clones::default());
        let Some(leader) = tickets.leader() else { unreachable!("a list without calls has no leader") };
        let engine = Engine {
            core,
            leader,
            tickets: Arc::clone(&tickets),
            under_way: Vec::new(),
            own: NOTHING,
            payload: Vec::new(),
            woken: Vec::new(),
            routes: Vec::new(),
            clones: Arc::clone(&clones),
            members: Members::new(),
            retiring: Vec::new(),
            last: u32::MAX,
            held_back: false,
            lost_lane: false,
        };
        Ok(Inner {
            fabric: fabric.clone(),
            tickets,
            lead: Lead::new(engine, Waiters::new(fabric.host().signal(), gate), 0),
            thread: Mutex::new(None),
            unready: Mutex::new(BTreeMap::new()),
            dropped: Mutex::new(Vec::new()),
            clones,
            next_number: AtomicU64::new(1),
        })
    }

    #[inline]
    pub(super) fn gate(&self) -> &Gate<F> {
        self.lead.watch().inner()
    }

    pub(super) fn unready(&self) -> MutexGuard<'_, BTreeMap<u64, (Nanos, Waker)>> {
        self.unready.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a new key for a task that waits for a connection.
    pub(super) fn next_number(&self) -> u64 {
        self.next_number.fetch_add(1, Ordering::Relaxed)
    }

    /// Leaves a prepared or returned call to whoever leads. The caller then tries to take the lead.
    #[inline]
    pub(super) fn push(&self, ticket: TicketId) {
        self.tickets.push(ticket);
        self.fabric.host().charge(Work::TakeLine, 1);
    }

    /// Leaves a connection or strands to whoever leads, or leads for it. Never waits for the lead.
    pub(super) fn close(&self, dropped: Dropped) {
        self.dropped.lock().unwrap_or_else(PoisonError::into_inner).push(dropped);
        self.ask();
        // It is closed as this lead, or that of the thread which has it, is given back.
        drop(self.try_lead());
    }

    /// Asks whoever leads to check and to close connections, and to wake the tasks that wait for one.
    pub(super) fn ask(&self) {
        self.gate().asked.store(true, Ordering::Relaxed);
    }
}

/// The state behind the lead.
pub(super) struct Engine<F: Fabric> {
    pub(super) core: Core<F>,
    pub(super) leader: Leader,
    pub(super) tickets: Arc<Tickets<F>>,
    /// The tickets of calls under way, by the index of the call's id.
    under_way: Vec<u64>,
    /// The last call that a thread that led made itself: nobody has the ticket if the thread panicked meanwhile.
    own: u64,
    payload: Vec<u8>,
    /// The wakers of calls that have ended, to be run without the lead.
    pub(super) woken: Vec<Waker>,
    /// The connections of the hub, by number.
    pub(super) routes: Vec<Option<Route>>,
    /// The clones that share queue pairs, and those of them that a leader has met.
    pub(super) clones: Arc<Clones>,
    pub(super) members: Members,
    /// The thread that led last, on a host that says so.
    last: u32,
    /// Lanes that were taken out of use and still have calls, with their routes.
    pub(super) retiring: Vec<(u32, u16)>,
    /// An open batch found no room.
    held_back: bool,
    /// A lane is gone, and calls that are held for it have to go elsewhere.
    lost_lane: bool,
}

impl<F: Fabric> Led for Engine<F> {
    /// Calls that are held for room wait for an arrival.
    fn has_backlog(&self) -> bool {
        !self.woken.is_empty() || self.has_unsent()
    }
}

/// The fate of an attempt to send a call.
enum Attempt {
    Sent(CallId),
    /// The call is held in this queue: its lane has no room, calls that came before are held for it, or its clone has to
    /// move first.
    Held(usize, Side),
    /// There is no connection.
    Unconnected,
    Failed(CallError),
}

/// The result of a call of the thread that leads.
pub(super) enum Submitted {
    /// It is sent, or waits for room.
    Ticket(TicketId),
    /// There is no connection.
    Unconnected,
    Failed(CallError),
}

/// The fate of a ticket that a leader has taken up.
#[derive(PartialEq, Eq)]
enum Step {
    /// It is sent, or has ended.
    Begun,
    /// It waits in this queue.
    Held(usize),
}

const fn side(first: bool) -> Side {
    if first { Side::Front } else { Side::Back }
}

/// Delivers results into the tickets of their calls.
struct Deliver<'a, F: Fabric> {
    tickets: &'a Tickets<F>,
    leader: &'a mut Leader,
    members: &'a mut Members,
    under_way: &'a mut [u64],
    woken: &'a mut Vec<Waker>,
    /// The thread that leads, on a host that says so.
    by: Option<u32>,
}

impl<F: Fabric> Deliver<'_, F> {
    #[inline]
    fn ticket(&mut self, id: CallId) -> Option<TicketId> {
        let ticket = std::mem::replace(self.under_way.get_mut(id.index())?, NOTHING);
        if ticket == NOTHING {
            return None;
        }
        let ticket = TicketId::from_bits(ticket);
        ended(self.members, self.tickets, ticket);
        Some(ticket)
    }

    #[inline]
    fn finish(&mut self, ticket: TicketId, outcome: Result<&[u8], CallError>) -> Delivery {
        if let Some(thread) = self.by
            && let Some(extra) = self.tickets.extra(ticket)
        {
            extra.ended_by.store(thread, Ordering::Relaxed);
        }
        let delivery = self.leader.finish(ticket, outcome);
        if delivery == Delivery::Delivered {
            self.woken.extend(self.tickets.take_waker(ticket));
        }
        delivery
    }

    #[cold]
    fn finish_large(&mut self, ticket: TicketId, buffer: Buffer<F::Memory>) {
        let tickets = self.tickets;
        let Some(extra) = tickets.extra(ticket).filter(|_| self.leader.is_wanted(ticket)) else {
            self.finish(ticket, Ok(&[]));
            return;
        };
        extra.set_large(Some(buffer));
        if self.finish(ticket, Ok(&[])) != Delivery::Delivered {
            // Nobody but this leader ends the next call of the ticket.
            extra.set_large(None);
        }
    }
}

impl<F: Fabric> Sink for Deliver<'_, F> {
    #[inline]
    fn offer(&mut self, lane: u16, call: u32, payload: &[u8]) -> bool {
        if let Some(ticket) = self.ticket(CallId { lane, call }) {
            self.finish(ticket, Ok(payload));
        }
        true
    }
}

impl<F: Fabric> Engine<F> {
    /// Notes the thread that leads. Where another one led last, the lines of the hub move to its core.
    #[inline]
    pub(super) fn led_by(&mut self, host: &F::Host) {
        if let Some(thread) = host.thread()
            && std::mem::replace(&mut self.last, thread) != thread
        {
            host.charge(Work::TakeLine, HANDED_OVER);
        }
    }

    /// Takes the calls that threads have left off the list.
    #[inline]
    fn collect(&mut self) {
        if self.leader.collect() > 0 {
            self.core.fabric.host().charge(Work::TakeLine, 1);
        }
    }

    /// Returns whether calls were collected that no lane holds.
    fn has_unsent(&self) -> bool {
        !self.leader.is_next(usize::MAX)
    }

    /// Returns whether calls wait for room.
    pub(super) fn has_waiting(&self) -> bool {
        self.leader.waiting() > 0
    }

    /// Sends what waits, processes what has arrived, and delivers results. Returns the number of messages and
    /// completions. Never blocks.
    #[inline]
    pub(super) fn work(&mut self) -> usize {
        self.send();
        let events = self.progress();
        // Answers have made room, or a lane has broken.
        self.send();
        if !self.retiring.is_empty() {
            self.end_retiring();
        }
        events
    }

    #[inline]
    fn progress(&mut self) -> usize {
        if self.held_back {
            self.held_back = self.core.flush_all();
        }
        let by = self.core.fabric.host().thread();
        let Engine { core, leader, members, tickets, under_way, woken, .. } = self;
        let events = core.progress_into(&mut Deliver { tickets, leader, members, under_way, woken, by });
        self.deliver();
        events
    }

    /// Delivers the outcomes of calls that have ended otherwise than by a plain result.
    pub(super) fn deliver(&mut self) {
        let by = self.core.fabric.host().thread();
        let Engine { core, leader, members, tickets, under_way, woken, .. } = self;
        let mut deliver = Deliver { tickets, leader, members, under_way, woken, by };
        while let Some(id) = core.next_done() {
            if let Some(ticket) = deliver.ticket(id) {
                match core.take_large(id) {
                    Some(buffer) => deliver.finish_large(ticket, buffer),
                    None => _ = deliver.finish(ticket, core.outcome(id)),
                }
            }
            core.forget(id);
        }
    }

    /// As [`work`](Engine::work) after a sleep, including the infrequent checks.
    pub(super) fn work_after_sleep(&mut self) -> usize {
        self.core.check_soon();
        self.work()
    }

    /// Ends calls whose deadline is before `now`. Returns the earliest deadline of the others.
    pub(super) fn expire(&mut self, now: Nanos) -> Nanos {
        let next = self.core.expire(now);
        self.deliver();
        next
    }

    /// As [`expire`](Engine::expire), but only once in some polls: for callers that poll in a loop.
    pub(super) fn expire_now_and_then(&mut self) {
        self.core.expire_now_and_then();
        self.deliver();
    }

    #[inline]
    fn note(&mut self, id: CallId, ticket: TicketId, clone: u32) {
        if self.under_way.len() <= id.index() {
            self.under_way.resize(id.index() + 1, NOTHING);
        }
        self.under_way[id.index()] = ticket.bits();
        if let Some(extra) = self.tickets.extra(ticket) {
            extra.call.store(id.bits(), Ordering::Relaxed);
            if !self.members.is_empty() {
                extra.clone.store(clone, Ordering::Relaxed);
            }
        }
    }

    /// Sends a call on the lane of its worker, or on the first one with room. One that comes from a queue is the first of
    /// it. `alone` says that the call becomes a message of its own.
    #[inline]
    fn attempt(
        &mut self,
        to: &To,
        function: u16,
        payload: &[u8],
        (mut from, alone): (Option<usize>, bool),
    ) -> Attempt {
        let time = match to.left(|| self.core.fabric.host().now()) {
            time if time.is_over() => {
                return Attempt::Failed(CallError::NotExecuted(Cause::DeadlineExceeded));
            }
            time => time,
        };
        let (mut full, clone) = (None, to.clone_number());
        loop {
            let number = match clone {
                NO_CLONE => to.connection(),
                clone => match self.route_of_clone(clone, from) {
                    CloneRoute::Strand(route) => route,
                    CloneRoute::Queue(queue) => return Attempt::Held(queue, side(from == Some(queue))),
                    CloneRoute::Unconnected => return Attempt::Unconnected,
                },
            };
            let Engine { core, routes, .. } = self;
            let Some(Some(route)) = routes.get_mut(number as usize) else { return Attempt::Unconnected };
            let lane = match route.lane(core, to.worker(), function) {
                Lane::At(lane) if clone == NO_CLONE || !self.is_declined(lane) => lane,
                Lane::NoSuchWorker => return Attempt::Failed(CallError::NotExecuted(Cause::NoSuchWorker)),
                found => match (self.retire_strand(number), found) {
                    (true, _) => {
                        // The calls that were held for the strand wait for their clones now, and this one came before.
                        from = from.map(|_| queue_of_clone(clone));
                        full = None;
                        continue;
                    }
                    (false, Lane::At(lane)) => lane,
                    (false, _) => return Attempt::Unconnected,
                },
            };
            let first = from.is_some_and(is_of_lane);
            let Engine { core, leader, routes, .. } = self;
            let submitted = if !first && leader.holds(queue_of_lane(lane)) {
                Err(SubmitError::Full)
            } else if is_memory(function) {
                let Some(Some(route)) = routes.get(number as usize) else { return Attempt::Unconnected };
                route.post_memory((core, lane), (function, payload), (time, alone))
            } else {
                core.with_lane(lane, |cx, lane| match lane.batching {
                    None if alone => lane.submit(cx, function, payload, time.nanos),
                    None => lane.push(cx, function, payload, time),
                    // The batch is shared with the calls of other threads until the messages in flight are answered.
                    Some(_) => {
                        let call = lane.push(cx, function, payload, time)?;
                        // The call exists from here on. An error of the lane reaches it as its outcome.
                        let _ = lane.flush_alone(cx);
                        Ok(call)
                    }
                })
            };
            match submitted {
                Ok(id) => {
                    if clone != NO_CLONE {
                        self.sent_by(clone, (function, payload));
                    }
                    return Attempt::Sent(id);
                }
                Err(SubmitError::Full | SubmitError::Call(CallError::NotExecuted(Cause::WindowFull))) => {
                    let (tried, held) = full.unwrap_or((0, lane));
                    // A call to any worker tries each.
                    if to.worker().is_some() || tried + 1 >= self.workers(number) {
                        return Attempt::Held(queue_of_lane(held), side(first));
                    }
                    full = Some((tried + 1, held));
                }
                Err(SubmitError::Call(error)) => return Attempt::Failed(error),
                Err(SubmitError::Broken) => return Attempt::Unconnected,
            }
        }
    }

    /// Makes a call of the thread that leads, straight from its payload if there is room.
    #[inline]
    pub(super) fn submit(&mut self, to: &To, function: u16, payload: &[u8]) -> Submitted {
        self.collect();
        if self.has_unsent() {
            self.send();
        }
        let Some(ticket) = self.tickets.begin() else {
            return Submitted::Failed(CallError::NotExecuted(Cause::WindowFull));
        };
        self.own = ticket.bits();
        let attempt = match self.has_unsent() {
            true => Attempt::Held(0, Side::Back),
            false => self.attempt(to, function, payload, (None, true)),
        };
        if let Attempt::Sent(id) = attempt {
            self.note(id, ticket, to.clone_number());
            return Submitted::Ticket(ticket);
        }
        self.tickets.undo(ticket);
        match attempt {
            Attempt::Unconnected => Submitted::Unconnected,
            Attempt::Failed(error) => Submitted::Failed(error),
            Attempt::Sent(_) | Attempt::Held(..) => {
                // The call's time runs while it waits for room.
                to.begin(to.time().ends(self.core.fabric.host().now()));
                match prepare(&self.tickets, to, function, payload) {
                    Ok(ticket) => {
                        self.tickets.push_to_own(ticket, &mut self.leader);
                        self.send();
                        Submitted::Ticket(ticket)
                    }
                    Err(error) => Submitted::Failed(error),
                }
            }
        }
    }

    /// Makes a call that its owner has prepared.
    pub(super) fn submit_prepared(&mut self, ticket: TicketId) {
        self.tickets.push_to_own(ticket, &mut self.leader);
    }

    /// Sends the calls that threads have left: first those that were held for a lane without room.
    #[inline]
    pub(super) fn send(&mut self) {
        self.collect();
        if self.leader.waiting() > 0 {
            self.send_waiting();
        }
    }

    fn send_waiting(&mut self) {
        let alone = self.leader.waiting() == 1;
        let has_room = std::mem::take(&mut self.lost_lane) || self.core.has_room();
        let mut begun = 0;
        for queue in self.leader.queues() {
            if queue.is_some() && !has_room {
                continue;
            }
            while begun < MOST_AT_ONCE
                && let Some(ticket) = self.leader.begin(queue)
            {
                match self.send_one(ticket, queue, alone) {
                    Step::Begun => begun += 1,
                    Step::Held(at) if queue == Some(at) || queue.is_some_and(is_of_lane) => break,
                    Step::Held(_) => {}
                }
            }
        }
        if !alone {
            self.held_back = self.core.flush_all();
        }
    }

    fn send_one(&mut self, ticket: TicketId, from: Option<usize>, alone: bool) -> Step {
        let mut payload = std::mem::take(&mut self.payload);
        let function = self.leader.read(ticket, |entry| {
            payload.clear();
            payload.extend_from_slice(entry.payload);
            entry.function
        });
        let tickets = Arc::clone(&self.tickets);
        let attempt = match (function, tickets.extra(ticket)) {
            (Some(function), Some(extra)) => {
                let host = self.core.fabric.host();
                if extra.to.is_of_other(host.thread()) {
                    host.charge(Work::TakeLine, lines_of(payload.len()));
                }
                Some((self.attempt(&extra.to, function, &payload, (from, alone)), extra.to.clone_number()))
            }
            _ => None,
        };
        self.payload = payload;
        let by = self.core.fabric.host().thread();
        let Engine { leader, members, tickets, under_way, woken, .. } = self;
        match attempt {
            None => {}
            Some((Attempt::Sent(id), clone)) => self.note(id, ticket, clone),
            Some((Attempt::Held(queue, side), _)) => {
                leader.hold(ticket, queue, side);
                return Step::Held(queue);
            }
            Some((Attempt::Unconnected, _)) => {
                let is_returned = leader.return_begun(ticket);
                woken.extend(is_returned.then(|| tickets.take_waker(ticket)).flatten());
            }
            Some((Attempt::Failed(error), _)) => {
                _ = Deliver { tickets, leader, members, under_way, woken, by }.finish(ticket, Err(error));
            }
        }
        Step::Begun
    }

    /// Gives up a sent call whose owner has abandoned its ticket.
    pub(super) fn cancel(&mut self, ticket: TicketId) {
        let Some(extra) = self.tickets.extra(ticket) else { return };
        let call = CallId::from_bits(extra.call.load(Ordering::Relaxed));
        if let Some(place) = self.under_way.get_mut(call.index())
            && *place == ticket.bits()
        {
            *place = NOTHING;
            ended(&mut self.members, &self.tickets, ticket);
            self.core.forget(call);
            self.leader.finish(ticket, Ok(&[]));
        }
        self.send();
    }

    /// Ends all calls that a leader has taken, since that leader panicked: those that were sent, and the one that may
    /// have been. The connections count as broken, and calls that wait go over new ones.
    #[cold]
    pub(super) fn mend(&mut self) {
        self.core.abandon_lanes();
        (self.held_back, self.lost_lane) = (false, true);
        self.forget_sent();
        let by = self.core.fabric.host().thread();
        let Engine { leader, members, tickets, under_way, woken, own, .. } = self;
        let own = std::mem::replace(own, NOTHING);
        if own != NOTHING && !under_way.contains(&own) {
            let own = TicketId::from_bits(own);
            if leader.is_wanted(own) {
                tickets.withdraw(own);
            }
        }
        under_way.clear();
        let mut deliver = Deliver { tickets, leader, members, under_way, woken, by };
        for ticket in tickets.taken() {
            deliver.finish(ticket, Err(CallError::MaybeExecuted(Cause::ConnectionLost)));
        }
    }

    /// Returns the number of workers that a connection has lanes to.
    fn workers(&self, number: u32) -> usize {
        self.routes.get(number as usize).and_then(Option::as_ref).map_or(0, Route::workers)
    }

    /// Returns the lanes of a connection.
    pub(super) fn lanes(&self, number: u32) -> &[u16] {
        match self.routes.get(number as usize) {
            Some(Some(route)) => route.lanes.all(),
            _ => &[],
        }
    }

    /// Returns whether a connection accepts calls.
    pub(super) fn is_connected(&mut self, number: u32) -> bool {
        let Engine { core, routes, .. } = self;
        routes
            .get(number as usize)
            .is_some_and(|route| route.as_ref().is_some_and(|route| route.is_usable(core)))
    }

    /// Ends a lane that a new one replaces, if it has no calls. Returns whether it is gone.
    pub(super) fn retire_lane(&mut self, lane: u16) -> bool {
        self.core.retire(lane);
        self.deliver();
        let is_spent = self.core.is_spent(lane);
        if is_spent {
            self.core.remove(lane);
            self.lost_lane = true;
        }
        is_spent
    }

    /// Ends a connection and its calls.
    pub(super) fn remove_route(&mut self, number: u32) {
        let route = self.routes.get_mut(number as usize).and_then(Option::take);
        let mut lanes = route.map(|mut route| route.lanes.take()).unwrap_or_default();
        lanes.extend(self.retiring.extract_if(.., |(of, _)| *of == number).map(|(_, lane)| lane));
        lanes.into_iter().for_each(|lane| self.remove_lane(lane));
    }

    /// Ends a lane and its calls.
    fn remove_lane(&mut self, lane: u16) {
        self.core.break_lane(lane, Cause::Closed);
        self.deliver();
        self.core.remove(lane);
        self.lost_lane = true;
    }
}

impl<F: Fabric> Inner<F> {
    /// Makes sure that the wake thread runs, and wakes up by `due` at the latest. The caller has stored what the thread
    /// has to see before, with a sequentially consistent fence in between; the thread executes one after it has said
    /// until when it sleeps, and then looks.
    pub(super) fn employ(self: &Arc<Self>, due: Nanos) {
        let gate = self.gate();
        if due > gate.latest_due.load(Ordering::Relaxed) {
            gate.latest_due.fetch_max(due, Ordering::Relaxed);
        }
        gate.ring_before(due);
        if !gate.started.load(Ordering::Relaxed) {
            self.start_wake_thread();
        }
    }
}
