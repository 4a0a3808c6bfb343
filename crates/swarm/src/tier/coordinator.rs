//! A thread of a node that calls other nodes, takes locks and meets others at barriers, and checks each by the model.

use super::Stage;
use super::meetings::{Granted, Meetings, Owner, Thread};
use crate::book::{CallLedger, End, answer_to, number_of, request};
use crate::draw::tier::{DrawnTier, name};
use dunlin_fabric::{Fabric, Host, Nanos, WithSources};
use dunlin_fabric_sim::{Random, Sim};
use dunlin_tier_node::{Calls, LockError, RequestError, Tier};
use std::time::Duration;

/// The service of each node, and its function.
pub(super) const SERVICE: (&[u8], u16) = (b"swarm", 7);
/// Locks of a run.
pub(super) const LOCKS: usize = 3;
/// Barriers of a run. Each has one member more than the one before, and the first one two.
pub(super) const BARRIERS: usize = 2;
/// The longest request, and the longest answer, in bytes.
pub(super) const MAX_BYTES: usize = 6000;
/// How long a server waits for a call at a time.
const RECEIVE: Duration = Duration::from_millis(1);

/// Returns the name of a lock.
pub(super) fn lock_name(lock: usize) -> String {
    format!("lock/{lock}")
}

impl Owner {
    /// Returns the owner of a lock, as a node knows it.
    pub(super) fn of(lock: usize, tier: &Tier<Sim>, drawn: &DrawnTier, meetings: &Meetings) -> Owner {
        if drawn.config.directory.is_some() {
            let epoch = tier.view().epoch;
            meetings.sees(epoch);
            return Owner::OfView { asked: epoch, granted: epoch };
        }
        let owner = tier.lock_home(lock_name(lock)).ok();
        let number = (0..drawn.nodes).find(|node| owner.as_deref() == Some(&name(*node)));
        Owner::Node(number.unwrap_or_default())
    }

    /// Returns the owner of a lock that a thread asked for when it knew this one, and had when it knew `granted`.
    pub(super) fn until(self, granted: Owner) -> Owner {
        match (self, granted) {
            (Owner::OfView { asked, .. }, Owner::OfView { granted, .. }) => Owner::OfView { asked, granted },
            (_, granted) => granted,
        }
    }
}

/// A thread of a node that receives calls, until the end.
pub(super) struct Servant {
    pub(super) sim: Sim,
    pub(super) calls: Calls<Sim>,
    pub(super) book: CallLedger,
    pub(super) stage: Stage,
    pub(super) random: Random,
}

impl Servant {
    pub(super) fn play(mut self) {
        let mut buffer = vec![0; MAX_BYTES];
        while !self.stage.is_over() {
            let Ok(received) = self.calls.receive_within(&mut buffer, RECEIVE) else { continue };
            let bytes = &buffer[..received.len()];
            match number_of(bytes) {
                Ok(number) => self.book.executed(number, self.sim.time()),
                Err(what) => self.book.violate(what),
            }
            let host = self.sim.host();
            if self.random.one_in(4) {
                host.sleep(host.now() + self.random.below(50_000));
            }
            if self.stage.is_storm() && self.random.one_in(16) {
                // The caller hears that the call may have been executed.
                drop(received);
            } else {
                received.reply(&answer_to(bytes));
            }
        }
    }
}

pub(super) struct Coordinator {
    pub(super) sim: Sim,
    pub(super) tier: Tier<Sim>,
    pub(super) thread: Thread,
    pub(super) drawn: DrawnTier,
    pub(super) meetings: Meetings,
    pub(super) book: CallLedger,
    pub(super) stage: Stage,
    pub(super) random: Random,
    /// The number of the next operation.
    pub(super) next: u64,
    pub(super) times: Times,
}

/// The longest times of a thread with a lock, and of its waits at a barrier.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    pub(super) holds: Nanos,
    pub(super) meets: Nanos,
}

impl Coordinator {
    fn violate(&self, what: String) {
        self.book.violate(format!("{:?}: {what}", self.thread));
    }

    fn check(&self, checked: Result<(), String>) {
        if let Err(what) = checked {
            self.violate(what);
        }
    }

    fn begin(&mut self, what: impl FnOnce() -> String) -> (u64, Nanos) {
        let number = self.next;
        self.next += 1;
        self.book.sent(number);
        self.sim.tell(|| format!("operation {number}: {}", what()));
        (number, self.sim.time())
    }

    /// Ends an operation: it ends once, in time, and without disturbance only for a usual reason.
    fn end(&self, (number, begun): (u64, Nanos), end: End, error: Option<(String, bool)>) {
        let took = self.sim.time() - begun;
        self.sim.tell(|| format!("operation {number} ends: {end:?} {error:?}"));
        self.book.ended(number, end);
        if took > self.drawn.patience() {
            self.violate(format!("operation {number} took {took} ns"));
        }
        if let Some((error, false)) = error
            && self.drawn.is_undisturbed()
        {
            self.violate(format!("operation {number} failed, and nothing disturbs it: {error}"));
        }
    }

    /// Ends an operation that only this thread carries out.
    fn end_own(&self, begun: (u64, Nanos), outcome: Result<(), (String, bool)>) {
        match outcome {
            Ok(()) => {
                self.book.executed(begun.0, self.sim.time());
                self.end(begun, End::Answered, None);
            }
            Err(error) => self.end(begun, End::Not, Some(error)),
        }
    }

    fn sleep(&mut self, most: Nanos) {
        let host = self.sim.host();
        host.sleep(host.now() + self.random.below(most));
    }

    /// Acts until the stage changes.
    pub(super) fn play(mut self) {
        while self.stage.is_storm() {
            match self.random.below(8) {
                0..=2 => self.call(),
                3..=6 => self.lock(),
                _ => self.meet(),
            }
            let think = if self.random.one_in(4) { 1 } else { self.drawn.think };
            self.sleep(think);
        }
    }

    fn call(&mut self) {
        let to = self.random.below(self.drawn.nodes as u64) as usize;
        let bytes = if self.random.one_in(8) { self.random.below(5000) } else { self.random.below(64) };
        let time = self.random.one_in(8).then(|| 20_000 + self.random.below(300_000));
        let begun = self.begin(|| format!("call n{to} with {bytes} bytes within {time:?}"));
        let outcome = call(&self.tier, to, request(begun.0, bytes as usize), time);
        match outcome {
            Ok(checked) => {
                self.check(checked);
                self.end(begun, End::Answered, None);
            }
            Err(error) => {
                let end = if error.may_have_executed() { End::Maybe } else { End::Not };
                // A server may drop a request, and a node that starts has no service yet.
                let is_usual = time.is_some() || end == End::Maybe || is_unserved(&error);
                self.end(begun, end, Some((WithSources(&error).to_string(), is_usual)));
            }
        }
    }

    fn lock(&mut self) {
        let (lock, thread) = (self.random.below(LOCKS as u64) as usize, self.thread);
        let is_tried = self.random.one_in(8);
        let time = self.random.one_in(8).then(|| 10_000 + self.random.below(200_000));
        let owner = Owner::of(lock, &self.tier, &self.drawn, &self.meetings);
        let begun = self.begin(|| format!("lock {lock} (tried: {is_tried}) within {time:?}"));
        self.meetings.asks(lock, thread, is_tried || time.is_some(), begun.1);
        let got = match time {
            _ if is_tried => self.tier.try_lock(lock_name(lock)),
            Some(time) => self.tier.lock_within(lock_name(lock), Duration::from_nanos(time)).map(Some),
            None => self.tier.lock(lock_name(lock)).map(Some),
        };
        let guard = match got {
            Ok(Some(guard)) => guard,
            Ok(None) => {
                self.meetings.goes_without(lock, thread, self.sim.time());
                return self.end_own(begun, Err(("it is held".to_owned(), true)));
            }
            Err(error) => {
                self.meetings.goes_without(lock, thread, self.sim.time());
                let is_usual =
                    time.is_some() && matches!(error, LockError::Deadline { .. } | LockError::Request(_));
                return self.end_own(begun, Err((WithSources(&error).to_string(), is_usual)));
            }
        };
        let owner = owner.until(Owner::of(lock, &self.tier, &self.drawn, &self.meetings));
        let (fence, is_poisoned, seen) = (guard.fence(), guard.is_poisoned(), self.sim.time());
        let granted = Granted { thread, asked: begun.1, seen, fence, is_poisoned, owner };
        self.check(self.meetings.granted(lock, granted));
        self.sim.tell(|| format!("operation {}: {granted:?}", begun.0));
        if self.random.one_in(2) {
            self.sleep(self.times.holds);
        }
        self.meetings.gives_back(lock, thread, self.sim.time());
        let unlocked = guard.unlock().map_err(|error| (WithSources(&error).to_string(), false));
        self.meetings.gave_back(lock, thread, self.sim.time());
        self.end_own(begun, unlocked);
    }

    fn meet(&mut self) {
        let barrier = self.random.below(BARRIERS as u64) as usize;
        let (members, time) = (2 + barrier as u16, 100_000 + self.random.below(self.times.meets));
        let begun = self.begin(|| format!("barrier {barrier} of {members} within {time}"));
        let visit = self.meetings.comes(barrier, begun.1);
        let met = self.tier.barrier_within(format!("barrier/{barrier}"), members, Duration::from_nanos(time));
        let now = self.sim.time();
        match met {
            Ok(()) => {
                self.check(self.meetings.passes(barrier, visit, members, now));
                self.end_own(begun, Ok(()));
            }
            Err(error) => {
                self.meetings.gives_up(barrier, visit, now);
                let is_usual = matches!(error, LockError::Deadline { .. } | LockError::Request(_));
                self.end_own(begun, Err((WithSources(&error).to_string(), is_usual)));
            }
        }
    }
}

/// Returns whether nobody serves the function that was called.
fn is_unserved(error: &RequestError) -> bool {
    let RequestError::Call { source, .. } = error else { return false };
    matches!(
        source,
        dunlin_rpc::CallError::NotExecuted(dunlin_rpc::Cause::Refused(dunlin_rpc::Status::UnknownFunction))
    )
}

/// Calls a node with a short request, and enters the call in the book.
pub(super) fn call_by_book(
    tier: &Tier<Sim>,
    book: &CallLedger,
    to: usize,
    number: u64,
) -> Result<Result<(), String>, RequestError> {
    book.sent(number);
    let outcome = call(tier, to, request(number, 8), None);
    let end = match &outcome {
        Ok(_) => End::Answered,
        Err(error) if error.may_have_executed() => End::Maybe,
        Err(_) => End::Not,
    };
    book.ended(number, end);
    outcome
}

/// Calls a node, in `time` if it has one of its own, and checks the bytes of the answer.
pub(super) fn call(
    tier: &Tier<Sim>,
    to: usize,
    request: Vec<u8>,
    time: Option<Nanos>,
) -> Result<Result<(), String>, RequestError> {
    let (to, (service, function)) = (name(to), SERVICE);
    let mut answer = vec![0; MAX_BYTES];
    let length = match time {
        Some(time) => {
            let time = Duration::from_nanos(time);
            tier.call_within(time, (&to, service, function), &request, &mut answer)?
        }
        None => tier.call(&to, service, function, &request, &mut answer)?,
    };
    if answer[..length] == answer_to(&request) {
        return Ok(Ok(()));
    }
    Ok(Err(format!("the answer of {length} bytes to a request of {} is wrong", request.len())))
}
