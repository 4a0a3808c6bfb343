//! Operations on bytes that the worker runs itself: it posts what may go at once, looks for completions in its turns, and
//! leaves the rest to the pool.

use super::answer::{Refused, list_of, listed, put, space};
use super::registry::{Process, Registry, Serving};
use crate::attempt::{Attempted, Flight, MAX_ATTEMPTED};
use crate::buffer::{Lent, Place};
use crate::carriers::Carriers;
use crate::error::OperationError;
use crate::item::{Change, Transfer};
use dunlin_fabric::{AnyWaker, Fabric, Host, Nanos, nanos};
use dunlin_rpc::{Incoming, Later, PollAgain, PolledService, Reply, Request, Started};
use dunlin_tier::Kind;
use dunlin_tier::process::list::ListedOperation;
use dunlin_tier::process::{Problem, ProcessRequest};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The time for which the worker polls without sleeps for an operation that is under way: some round trips of a network.
const SPIN: Nanos = 20_000;
/// Without completions that wake the worker: the longest pause between two polls for an operation that takes long.
const LONGEST_PAUSE: Nanos = 1_000_000;
/// Pauses are this share of the time that the operation has taken, so that it seems to take little longer than it does.
const PAUSE_SHARE: Nanos = 4;

/// The form of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Nothing,
    /// The bytes that were read.
    Bytes,
    /// The old value of a word.
    Word,
    List,
}

/// The outcome of an attempt.
enum Tried<F: Fabric> {
    /// The reply is written, or the request is refused.
    Done(Result<(), Refused>),
    UnderWay(Box<Flight<F>>, Form, Uses<F>),
    Waits,
}

/// The things that an operation uses until all of its parts are over.
struct Uses<F: Fabric> {
    /// It counts against the limit of the process.
    _serving: Serving,
    /// The memory of the process's buffer.
    _buffer: Option<Lent<F>>,
}

/// An operation that is under way for a process.
struct Kept<F: Fabric, P: Fabric> {
    // Dropped before the memory that it uses.
    flight: Box<Flight<F>>,
    form: Form,
    /// `None` once it is answered.
    call: Option<Incoming<P>>,
    since: Nanos,
    _uses: Uses<F>,
}

/// The operations of the worker.
pub(super) struct Turns<F: Fabric, P: Fabric> {
    registry: Arc<Registry<F, P>>,
    carriers: Carriers<F>,
    /// Their requests have room on the paths, so the number of paths bounds them.
    kept: Vec<Kept<F, P>>,
}

impl<F: Fabric, P: Fabric> Turns<F, P> {
    pub(super) fn new(registry: Arc<Registry<F, P>>) -> Self {
        Turns { registry, carriers: Carriers::new(), kept: Vec::new() }
    }

    fn now(&self) -> Nanos {
        self.registry.tier.fabric().host().now()
    }

    /// Ends what has completed, and what is late.
    fn advance(&mut self, now: Nanos) {
        let Turns { registry, carriers, kept } = self;
        let node = registry.tier.node();
        carriers.poll();
        let mut at = 0;
        while let Some(Kept { flight, form, call, .. }) = kept.get_mut(at) {
            let is_over = flight.advance(node, carriers, now);
            if !is_over && !flight.is_answered() && now >= flight.until() {
                flight.expire(node, carriers, nanos(node.config.timeout));
            }
            if (is_over || flight.is_answered())
                && let Some(call) = call.take()
            {
                registry.deliver(call, answer(flight, *form));
            }
            if is_over {
                let Kept { flight, _uses: uses, .. } = kept.swap_remove(at);
                flight.end(node, carriers);
                drop(uses);
            } else {
                at += 1;
            }
        }
        carriers.ring();
    }

    /// Returns the end of the next nap, on a fabric whose completions do not wake the worker.
    fn nap(&self, now: Nanos) -> Nanos {
        let pauses = self.kept.iter().map(|kept| (kept.age(now) / PAUSE_SHARE).min(LONGEST_PAUSE));
        now.saturating_add(pauses.min().unwrap_or(LONGEST_PAUSE))
    }
}

impl<F: Fabric, P: Fabric> Kept<F, P> {
    fn age(&self, now: Nanos) -> Nanos {
        now.saturating_sub(self.since)
    }
}

impl<F: Fabric, P: Fabric> PolledService<P> for Turns<F, P> {
    fn start(&mut self, request: &Request<'_>, reply: &mut Reply<'_>, later: Later<'_, P>) -> Started {
        let counters = &self.registry.counters;
        let tried = self.registry.attempt(&mut self.carriers, request, reply);
        match tried.unwrap_or_else(|refused| Tried::Done(Err(refused))) {
            Tried::Done(outcome) => {
                counters.at_once.fetch_add(1, Ordering::Relaxed);
                Started::Answered(self.registry.finish(outcome, reply))
            }
            Tried::UnderWay(flight, form, uses) => {
                counters.later.fetch_add(1, Ordering::Relaxed);
                let (call, since) = (Some(later.keep(request)), self.now());
                self.kept.push(Kept { flight, form, call, since, _uses: uses });
                Started::Kept
            }
            Tried::Waits => Started::Left,
        }
    }

    fn poll(&mut self, worker: &AnyWaker) -> PollAgain {
        let now = self.now();
        self.advance(now);
        if self.kept.is_empty() {
            return PollAgain::Never;
        }
        if self.kept.iter().any(|kept| kept.age(now) < SPIN) {
            return PollAgain::Busy;
        }
        let wakes = self.registry.tier.fabric().capabilities().wakes_others;
        let armed = if wakes { self.carriers.arm(worker) } else { self.nap(now) };
        if wakes {
            // Completions that came before the arming.
            self.advance(now);
        }
        match self.kept.iter().map(|kept| kept.flight.until()).min() {
            None => PollAgain::Never,
            Some(until) => PollAgain::Until(until.min(armed)),
        }
    }
}

impl<F: Fabric, P: Fabric> Drop for Turns<F, P> {
    fn drop(&mut self) {
        let Turns { registry, carriers, kept } = self;
        // The callers learn that the operations may have been executed.
        kept.drain(..).for_each(|kept| kept.flight.abandon(registry.tier.node(), carriers));
    }
}

/// Returns the answer of an operation that has ended for its caller.
fn answer<F: Fabric>(flight: &mut Flight<F>, form: Form) -> Result<Vec<u8>, Refused> {
    if form == Form::List {
        let (bytes, outcomes) = flight.outcomes();
        return Ok(listed(bytes, outcomes));
    }
    let (outcome, bytes) = flight.outcome();
    let value = outcome?;
    Ok(match form {
        Form::Word => value.to_le_bytes().to_vec(),
        Form::Bytes => bytes,
        Form::Nothing | Form::List => Vec::new(),
    })
}

impl<F: Fabric, P: Fabric> Registry<F, P> {
    /// Runs an operation on bytes as far as nothing has to be waited for.
    fn attempt(
        &self,
        carriers: &mut Carriers<F>,
        request: &Request<'_>,
        reply: &mut Reply<'_>,
    ) -> Result<Tried<F>, Refused> {
        let process = self.process(request.session)?;
        let serving = process.serving(self.config.limits.operations)?;
        let parsed =
            ProcessRequest::parse(request.function, request.payload).map_err(|_| Problem::Malformed)?;
        let (time, bytes) = (self.time(request.time_left()), parsed.moves());
        let tried = self.attempt_parsed(carriers, (&process, serving), parsed, time, reply);
        // The pool counts what is left to it.
        if !matches!(tried, Ok(Tried::Waits)) {
            process.count(bytes);
        }
        tried
    }

    fn attempt_parsed(
        &self,
        carriers: &mut Carriers<F>,
        (process, serving): (&Process<F, P>, Serving),
        parsed: ProcessRequest<'_>,
        time: Duration,
        reply: &mut Reply<'_>,
    ) -> Result<Tried<F>, Refused> {
        let mut buffer = None;
        let (attempted, form) = match parsed {
            ProcessRequest::Read { length, .. }
            | ProcessRequest::ReadInto { length, .. }
            | ProcessRequest::WriteFrom { length, .. }
                if u64::from(length) > MAX_ATTEMPTED =>
            {
                return Ok(Tried::Waits);
            }
            ProcessRequest::ReadInto { priority, handle, offset, length, buffer: of, at } => {
                let (region, lent) = (process.region(handle)?, lent(process, (of, at, length), Kind::Write)?);
                let Some(range) = lent.only_part() else { return Ok(Tried::Waits) };
                buffer = Some(lent);
                let region = region.within(time).with_priority(priority)?;
                (region.attempt(carriers, offset, Transfer::ReadInto(range)), Form::Nothing)
            }
            ProcessRequest::WriteFrom { priority, handle, offset, length, buffer: of, at } => {
                let (region, lent) = (process.region(handle)?, lent(process, (of, at, length), Kind::Read)?);
                let Some(range) = lent.only_part() else { return Ok(Tried::Waits) };
                buffer = Some(lent);
                let region = region.within(time).with_priority(priority)?;
                (region.attempt(carriers, offset, Transfer::WriteFrom(range)), Form::Nothing)
            }
            ProcessRequest::Read { priority, handle, offset, length } => {
                let into = Transfer::Read(space(reply, length)?);
                let region = process.region(handle)?;
                (region.within(time).with_priority(priority)?.attempt(carriers, offset, into), Form::Bytes)
            }
            ProcessRequest::Write { priority, handle, offset, bytes } => {
                let (region, from) = (process.region(handle)?, Transfer::Write(bytes));
                (region.within(time).with_priority(priority)?.attempt(carriers, offset, from), Form::Nothing)
            }
            ProcessRequest::FetchAdd { priority, handle, offset, add } => {
                let (region, change) = (process.region(handle)?, Transfer::Change(Change::Add(add)));
                (region.within(time).with_priority(priority)?.attempt(carriers, offset, change), Form::Word)
            }
            ProcessRequest::CompareSwap { priority, handle, offset, expected, swap } => {
                let change = Transfer::Change(Change::Swap { expected, swap });
                let region = process.region(handle)?;
                (region.within(time).with_priority(priority)?.attempt(carriers, offset, change), Form::Word)
            }
            ProcessRequest::WriteNotify { priority, handle, offset, word_offset, value, bytes } => {
                let region = process.region(handle)?;
                let region = region.within(time).with_priority(priority)?;
                (region.attempt_notify(carriers, offset, bytes, word_offset, value), Form::Nothing)
            }
            ProcessRequest::Run { operations, .. }
                if !operations.iter().all(ListedOperation::carries_bytes) =>
            {
                return Ok(Tried::Waits);
            }
            ProcessRequest::Run { priority, operations } => {
                let list = (&operations[..], priority);
                let attempted = list_of(process, list, time, |list, _| list.attempt(carriers))?;
                let (bytes, attempted) = attempted;
                return Ok(match attempted {
                    Attempted::Done(outcomes) => Tried::Done(
                        outcomes
                            .map_err(super::answer::list_problem)
                            .map_err(Refused::from)
                            .and_then(|outcomes| put(reply, &listed(bytes, outcomes))),
                    ),
                    Attempted::UnderWay(flight) => {
                        let uses = Uses { _serving: serving, _buffer: None };
                        Tried::UnderWay(flight, Form::List, uses)
                    }
                    Attempted::Waits => Tried::Waits,
                });
            }
            _ => return Err(Problem::Malformed.into()),
        };
        Ok(match attempted {
            Attempted::Done(outcome) => Tried::Done(written(outcome, form, reply)),
            Attempted::UnderWay(flight) => {
                Tried::UnderWay(flight, form, Uses { _serving: serving, _buffer: buffer })
            }
            Attempted::Waits => Tried::Waits,
        })
    }
}

/// Begins an operation on a place in a buffer, of the kind of the buffer's side.
fn lent<F: Fabric, P: Fabric>(
    process: &Process<F, P>,
    (buffer, at, length): (u64, u64, u32),
    kind: Kind,
) -> Result<Lent<F>, Refused> {
    let buffer = process.region(buffer)?;
    Ok(Place { region: &buffer, tenant: &process.buffers.tenant, at, length }.lend(kind)?)
}

/// Completes the reply to an operation that has ended.
fn written(outcome: Result<u64, OperationError>, form: Form, reply: &mut Reply<'_>) -> Result<(), Refused> {
    let value = outcome?;
    if form == Form::Word { put(reply, &value.to_le_bytes()) } else { Ok(()) }
}
