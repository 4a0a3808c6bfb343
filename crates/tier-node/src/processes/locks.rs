//! Locks and barriers of processes (section 7.2). A process is no member at an owner: its node is, and hands locks to its
//! processes as to its threads. All of it runs on the worker that received a request, or on a thread that brings an
//! answer, and nothing waits: a waiter is a call that is answered when the lock is the process's.
//!
//! | event | effect |
//! |---|---|
//! | the grant comes after the process has given up | it goes to the next waiter |
//! | the process does not know the outcome of a call | GIVE_UP names the call: it leaves the queue, or gives the lock back |
//! | GIVE_UP overtakes its call | the call is refused when it comes |
//! | the connection of a call for a lock ends | the call leaves the queue |
//! | the process ends | its calls leave the queues, barriers end for all, its locks are poisoned |

use super::registry::{Locking, Process, Registry};
use crate::locks::{Claim, Hold, LockError, Meets};
use dunlin_fabric::{Fabric, Host, Nanos, nanos};
use dunlin_rpc::{ApplicationCode, Incoming, Status, Taker};
use dunlin_tier::process::lock::{Granted, LockingRequest};
use dunlin_tier::process::{Problem, REFUSED};
use dunlin_tier::{Name, Slots};
use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Requests that were given up before they came, the last ones: such a request comes soon or never.
const MAX_GIVEN_UP: usize = 256;

/// A call of a process that waits for a lock or at a barrier.
#[derive(Debug)]
struct Waiting<P: Fabric> {
    /// The number of the claim, or of the caller, at the node.
    number: u64,
    name: Name,
    is_barrier: bool,
    call: Incoming<P>,
}

impl<P: Fabric> Waiting<P> {
    fn is_over(&self) -> bool {
        self.call.time_left() == Some(Duration::ZERO)
    }
}

/// The state of a lock or barrier of a process.
#[derive(Debug)]
enum State<F: Fabric, P: Fabric> {
    Waits(Waiting<P>),
    Has(Hold<F>),
}

/// A lock or barrier of a process.
#[derive(Debug)]
struct Entry<F: Fabric, P: Fabric> {
    /// The process's number for its request.
    ticket: u64,
    state: State<F, P>,
    _counted: Locking,
}

/// The locks and barriers that a process has or waits for.
#[derive(Debug)]
pub(super) struct LockTable<F: Fabric, P: Fabric> {
    entries: Slots<Entry<F, P>>,
    given_up: VecDeque<u64>,
}

impl<F: Fabric, P: Fabric> LockTable<F, P> {
    pub(super) fn new(limit: u32, first_generation: u32) -> Self {
        LockTable { entries: Slots::new(limit, first_generation), given_up: VecDeque::new() }
    }

    /// Removes the call of an entry that waits.
    fn take_waiting(&mut self, entry: u64) -> Option<Waiting<P>> {
        if !matches!(self.entries.get(entry)?.state, State::Waits(_)) {
            return None;
        }
        match self.entries.remove(entry)?.state {
            State::Waits(waiting) => Some(waiting),
            State::Has(_) => None,
        }
    }

    /// Removes the lock of an entry that has one.
    fn take_held(&mut self, entry: u64) -> Option<Hold<F>> {
        if !matches!(self.entries.get(entry)?.state, State::Has(_)) {
            return None;
        }
        match self.entries.remove(entry)?.state {
            State::Has(hold) => Some(hold),
            State::Waits(_) => None,
        }
    }

    /// Records a request that is given up before it came.
    fn forget(&mut self, ticket: u64) {
        self.given_up.push_back(ticket);
        if self.given_up.len() > MAX_GIVEN_UP {
            self.given_up.pop_front();
        }
    }

    /// Returns whether a request was given up before it came.
    fn was_given_up(&mut self, ticket: u64) -> bool {
        let found = self.given_up.iter().position(|other| *other == ticket);
        found.and_then(|place| self.given_up.remove(place)).is_some()
    }
}

/// Ends locks and barriers of a process whose connection has ended: the calls of that connection that wait for locks, or
/// all if the process has ended.
pub(super) fn end_locks<F: Fabric, P: Fabric>(process: &Process<F, P>, session: Option<u64>) {
    let of_session = |entry: &Entry<F, P>| match &entry.state {
        // A caller of a barrier stays until the process gives up, or ends: it is not known yet which.
        State::Waits(waiting) => !waiting.is_barrier && session == Some(waiting.call.session),
        State::Has(_) => false,
    };
    let ended = {
        let mut table = process.locks();
        match session {
            Some(_) => table.entries.remove_all_where(of_session),
            None => table.entries.take_all(),
        }
    };
    for entry in ended {
        match entry.state {
            State::Waits(waiting) => withdraw(process, waiting, session.is_none(), || ()),
            // The next holder hears that this one has died.
            State::Has(hold) => drop(hold),
        }
    }
}

/// Has a call leave the queue of its lock, or its barrier, and runs `done` then.
fn withdraw<F: Fabric, P: Fabric>(
    process: &Process<F, P>,
    waiting: Waiting<P>,
    died: bool,
    done: impl FnOnce() + Send + 'static,
) {
    let node = process.tier.node();
    let Waiting { number, name, is_barrier, call } = waiting;
    call.refuse(Status::DeadlineExceeded);
    if is_barrier {
        node.leave_meeting(&name, number, died, done);
    } else {
        node.unclaim(&name, number);
        done();
    }
}

fn fail<P: Fabric>(call: Incoming<P>, problem: &Problem) {
    match ApplicationCode::new(REFUSED) {
        Some(code) => call.fail(code, problem.encode()),
        None => call.refuse(Status::Malformed),
    }
}

/// The waiter of an entry, as the node knows it.
#[derive(Debug)]
struct Waiter<F: Fabric, P: Fabric> {
    process: Weak<Process<F, P>>,
    entry: u64,
    number: u64,
    until: Nanos,
}

impl<F: Fabric, P: Fabric> Waiter<F, P> {
    fn waits(&self) -> bool {
        let is_waiting = |process: Arc<Process<F, P>>| match process.locks().entries.get(self.entry) {
            Some(Entry { state: State::Waits(waiting), .. }) => !waiting.is_over(),
            _ => false,
        };
        self.process.upgrade().is_some_and(is_waiting)
    }

    fn answer(&self, outcome: Result<(), LockError>) {
        let Some(process) = self.process.upgrade() else { return };
        let waiting = process.locks().take_waiting(self.entry);
        if let Some(Waiting { call, .. }) = waiting {
            match outcome {
                Ok(()) => call.reply(Vec::new()),
                Err(error) => fail(call, &error.into()),
            }
        }
    }
}

impl<F: Fabric, P: Fabric> Claim<F> for Waiter<F, P> {
    fn number(&self) -> u64 {
        self.number
    }

    fn until(&self) -> Nanos {
        self.until
    }

    fn is_over(&self) -> bool {
        !self.waits()
    }

    fn grant(&self, hold: Hold<F>) -> Result<(), Hold<F>> {
        let Some(process) = self.process.upgrade() else { return Err(hold) };
        let mut table = process.locks();
        let Some(entry) = table.entries.get_mut(self.entry) else { return Err(hold) };
        if !matches!(&entry.state, State::Waits(waiting) if !waiting.is_over()) {
            return Err(hold);
        }
        let (fence, poisoned) = (hold.fence(), hold.is_poisoned());
        if let State::Waits(waiting) = std::mem::replace(&mut entry.state, State::Has(hold)) {
            // With the lock held, so that the end of the process comes before or after.
            waiting.call.reply(Granted { guard: self.entry, fence, poisoned }.encode());
        }
        Ok(())
    }

    fn end(&self, outcome: Result<(), LockError>) {
        self.answer(outcome);
    }
}

impl<F: Fabric, P: Fabric> Meets for Waiter<F, P> {
    fn number(&self) -> u64 {
        self.number
    }

    fn until(&self) -> Nanos {
        self.until
    }

    fn is_over(&self) -> bool {
        !self.waits()
    }

    fn end(&self, outcome: Result<(), LockError>) {
        self.answer(outcome);
    }
}

/// The part of the worker's service for locks and barriers.
pub(super) struct LockDesk<F: Fabric, P: Fabric>(pub(super) Arc<Registry<F, P>>);

impl<F: Fabric, P: Fabric> LockDesk<F, P> {
    /// Counts another lock or barrier of a process. Calls whose time is over make room.
    fn count(&self, process: &Process<F, P>) -> Result<Locking, Problem> {
        let limit = self.0.config.limits.locks;
        if let Some(counted) = process.locking(limit) {
            return Ok(counted);
        }
        let is_over =
            |entry: &Entry<F, P>| matches!(&entry.state, State::Waits(waiting) if waiting.is_over());
        let over = process.locks().entries.remove_all_where(is_over);
        for entry in over {
            if let State::Waits(waiting) = entry.state {
                withdraw(process, waiting, false, || ());
            }
        }
        process.locking(limit).ok_or(Problem::Locks(limit))
    }

    /// Enters a call that waits. Returns nothing if it was answered.
    fn enter(
        &self,
        process: &Arc<Process<F, P>>,
        (ticket, name, is_barrier): (u64, &Name, bool),
        call: Incoming<P>,
    ) -> Option<Arc<Waiter<F, P>>> {
        let _counted = match self.count(process) {
            Ok(counted) => counted,
            Err(problem) => {
                fail(call, &problem);
                return None;
            }
        };
        let node = process.tier.node();
        let time = call.time_left().unwrap_or(node.config.timeout);
        let until = node.fabric.host().now().saturating_add(nanos(time));
        let number = node.locks.number();
        let mut table = process.locks();
        if table.was_given_up(ticket) {
            call.refuse(Status::DeadlineExceeded);
            return None;
        }
        let waiting = Waiting { number, name: name.clone(), is_barrier, call };
        match table.entries.insert(Entry { ticket, state: State::Waits(waiting), _counted }) {
            Ok(entry) => Some(Arc::new(Waiter { process: Arc::downgrade(process), entry, number, until })),
            Err(refused) => {
                drop(table);
                if let State::Waits(waiting) = refused.state {
                    fail(waiting.call, &Problem::Locks(self.0.config.limits.locks));
                }
                None
            }
        }
    }

    fn lock(
        &self,
        process: &Arc<Process<F, P>>,
        call: Incoming<P>,
        (ticket, name): (u64, &Name),
        waits: bool,
    ) {
        let Some(waiter) = self.enter(process, (ticket, name, false), call) else { return };
        let (node, number) = (process.tier.node(), waiter.number);
        if !waits {
            return node.try_claim(name, waiter);
        }
        node.claim(name, Arc::clone(&waiter) as _);
        // The process may have given up meanwhile, before there was a claim.
        if !waiter.waits() {
            node.unclaim(name, number);
        }
    }

    fn unlock(process: &Process<F, P>, call: Incoming<P>, guard: u64) {
        let held = process.locks().take_held(guard);
        match held {
            Some(hold) => hold.give_back(Box::new(move |result| match result {
                Ok(()) => call.reply(Vec::new()),
                Err(error) => fail(call, &error.into()),
            })),
            None => fail(call, &Problem::NotHeld),
        }
    }

    /// Ends a request whose outcome the process does not know.
    fn give_up(process: &Process<F, P>, call: Incoming<P>, ticket: u64, name: &Name) {
        let node = process.tier.node();
        let owner = node.name_of(node.lock_home_of(name)).into_bytes();
        let mut table = process.locks();
        let mut found = table.entries.remove_all_where(|entry| entry.ticket == ticket);
        if found.is_empty() {
            table.forget(ticket);
        }
        drop(table);
        match found.pop().map(|entry| entry.state) {
            Some(State::Has(hold)) => hold.give_back_unseen(Box::new(move |_| call.reply(owner))),
            Some(State::Waits(waiting)) => withdraw(process, waiting, false, move || call.reply(owner)),
            None => call.reply(owner),
        }
    }
}

impl<F: Fabric, P: Fabric> Taker<P> for LockDesk<F, P> {
    fn take(&self, call: Incoming<P>) {
        let process = match self.0.process(call.session) {
            Ok(process) => process,
            Err(problem) => return fail(call, &problem),
        };
        let Ok(request) = LockingRequest::parse(call.function, &call.payload) else {
            return fail(call, &Problem::Malformed);
        };
        if let LockingRequest::Lock { name, .. } | LockingRequest::Barrier { name, .. } = &request
            && !name.is_open_to(process.tier.caller())
        {
            return fail(call, &Problem::OtherOwner(name.clone()));
        }
        self.0.answered.fetch_add(1, Ordering::Relaxed);
        match request {
            LockingRequest::Lock { ticket, name, waits } => {
                self.lock(&process, call, (ticket, &name), waits);
            }
            LockingRequest::Unlock { guard } => Self::unlock(&process, call, guard),
            LockingRequest::Barrier { ticket, name, members } => {
                if let Some(waiter) = self.enter(&process, (ticket, &name, true), call) {
                    process.tier.node().meet_for(&name, members, waiter);
                }
            }
            LockingRequest::GiveUp { ticket, name } => Self::give_up(&process, call, ticket, &name),
            LockingRequest::Home { name } => {
                let node = process.tier.node();
                call.reply(node.name_of(node.lock_home_of(&name)).into_bytes());
            }
        }
    }
}
