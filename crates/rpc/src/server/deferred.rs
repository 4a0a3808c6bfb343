//! Deferred calls, answered later by the pool's threads or by an application that pulls. Both get an owned
//! request, whose [`Deferred`] puts the answer into the worker's inbox.

use super::dispatch::Call;
use crate::error::{CallError, Cause, HANDLER_RAN, MAYBE_RAN};
use crate::plan::SMALL_LIMIT;
use crate::server::inbox::{Command, Inbox};
use crate::service::{NEVER, Request, left};
use dunlin_fabric::{Clock, Fabric, Nanos};
use dunlin_wire::{ApplicationCode, Status};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// A request that its worker has handed to another thread.
#[derive(Debug)]
pub struct Incoming<F: Fabric> {
    /// The function id.
    pub function: u16,
    /// The payload.
    pub payload: Vec<u8>,
    /// The session of the caller.
    pub session: u64,
    /// On the server's clock; [`NEVER`] without a deadline.
    deadline: Nanos,
    clock: Clock,
    deferred: Deferred<F>,
}

impl<F: Fabric> Incoming<F> {
    pub(crate) fn new(
        function: u16,
        payload: Vec<u8>,
        session: u64,
        (deadline, clock): (Nanos, Clock),
        deferred: Deferred<F>,
    ) -> Self {
        Incoming { function, payload, session, deadline, clock, deferred }
    }

    /// Returns the time left until the call's deadline: zero if it has passed, `None` without a deadline.
    /// Reads the clock.
    pub fn time_left(&self) -> Option<Duration> {
        left(self.deadline, &self.clock)
    }

    /// Returns the deadline on the server's clock in nanoseconds, and that clock; `None` without a deadline.
    pub fn deadline(&self) -> Option<(Nanos, &Clock)> {
        (self.deadline != NEVER).then_some((self.deadline, &self.clock))
    }

    /// The request as a handler sees it.
    pub(crate) fn request(&self) -> Request<'_> {
        let Incoming { function, payload, session, deadline, clock, .. } = self;
        Request { function: *function, payload, session: *session, deadline: *deadline, clock }
    }

    /// Returns whether the deadline has passed. Reads the clock if there is one.
    pub(super) fn is_over(&self) -> bool {
        self.deadline != NEVER && self.deadline <= self.clock.now()
    }

    /// Records that the execution begins. If the call is dropped without an answer afterwards, its caller
    /// learns that it was executed ([`Cause::HandlerPanicked`](crate::Cause::HandlerPanicked)); before, that
    /// it may have been ([`Cause::Dropped`](crate::Cause::Dropped)).
    pub fn begin(&mut self) {
        self.deferred.began = true;
    }

    /// Answers the call with a result. Does not block.
    pub fn reply(mut self, payload: Vec<u8>) {
        self.deferred.finish(Status::Ok, payload);
    }

    /// Answers the call with an error. For the caller, [`Status::TooLarge`] means that the call was executed
    /// and that its result is too large, and any other error that it was not executed. Does not block.
    pub fn refuse(mut self, status: Status) {
        self.deferred.finish(status, Vec::new());
    }

    /// Answers the call with an error of the application, whose payload is truncated to the size of a small
    /// result. Does not block.
    pub fn fail(mut self, code: ApplicationCode, mut payload: Vec<u8>) {
        payload.truncate(SMALL_LIMIT as usize);
        self.deferred.finish(Status::Application(code), payload);
    }

    /// Answers the call as another one ended, with the certainty of that, for an application that hands calls on. The
    /// causes of this server's own connections become [`Status::Unreachable`]. Does not block.
    pub fn relay(self, outcome: Result<Vec<u8>, CallError>) {
        let (status, payload) = match outcome {
            Ok(result) => (Status::Ok, result),
            Err(CallError::Application { code, payload }) => match ApplicationCode::new(code) {
                Some(code) => return self.fail(code, payload),
                None => (Status::HandlerPanicked, HANDLER_RAN.to_vec()),
            },
            Err(CallError::Executed(Cause::ResultTooLarge | Cause::OutOfMemory)) => {
                (Status::TooLarge, HANDLER_RAN.to_vec())
            }
            Err(CallError::Executed(Cause::DeadlineExceeded)) => {
                (Status::DeadlineExceeded, HANDLER_RAN.to_vec())
            }
            Err(CallError::Executed(_)) => (Status::HandlerPanicked, HANDLER_RAN.to_vec()),
            Err(CallError::MaybeExecuted(Cause::DeadlineExceeded)) => {
                (Status::DeadlineExceeded, MAYBE_RAN.to_vec())
            }
            Err(CallError::MaybeExecuted(_)) => (Status::HandlerPanicked, Vec::new()),
            // With this status the caller would take the call for executed.
            Err(CallError::NotExecuted(Cause::Refused(Status::TooLarge))) => (Status::Malformed, Vec::new()),
            Err(CallError::NotExecuted(Cause::Refused(status))) => (status, Vec::new()),
            Err(CallError::NotExecuted(Cause::DeadlineExceeded)) => (Status::DeadlineExceeded, Vec::new()),
            Err(CallError::NotExecuted(Cause::Draining)) => (Status::Draining, Vec::new()),
            Err(CallError::NotExecuted(Cause::WindowFull | Cause::OutOfMemory)) => {
                (Status::Overloaded, Vec::new())
            }
            Err(CallError::NotExecuted(_)) => (Status::Unreachable, Vec::new()),
        };
        self.finish(status, payload);
    }

    /// Drops the request without an answer: the call is answered by other means.
    pub(crate) fn forget(mut self) {
        self.deferred.inbox = None;
    }

    pub(crate) fn finish(mut self, status: Status, payload: Vec<u8>) {
        self.deferred.finish(status, payload);
    }
}

/// Takes deferred calls on the thread of the worker that received them, for applications that hand calls on, as a node
/// of the memory tier does (LITE section 5.1): [`ServerBuilder::taken_by`](crate::ServerBuilder::taken_by).
pub trait Taker<F: Fabric>: Send + Sync + 'static {
    /// Takes a call, to answer it at any later time from any thread. Must not block: every other call on the worker
    /// would wait. The caller of a call that is dropped learns that it may have been executed.
    fn take(&self, call: Incoming<F>);
}

/// The takers of a server.
pub(crate) struct Takers<F: Fabric> {
    /// By function id.
    pub(crate) declared: BTreeMap<u16, Arc<dyn Taker<F>>>,
    /// Of the functions that the application does not declare.
    pub(crate) others: Option<Arc<dyn Taker<F>>>,
}

impl<F: Fabric> Default for Takers<F> {
    fn default() -> Self {
        Takers { declared: BTreeMap::new(), others: None }
    }
}

impl<F: Fabric> Takers<F> {
    /// Returns the taker of a pulled function, if it has one.
    pub(crate) fn of(&self, function: u16) -> Option<&Arc<dyn Taker<F>>> {
        self.declared.get(&function).or(self.others.as_ref())
    }
}

impl<F: Fabric> std::fmt::Debug for Takers<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Takers").field("others", &self.others.is_some()).finish_non_exhaustive()
    }
}

/// The obligation to answer one call. If it is dropped without an answer, the caller gets
/// [`Status::HandlerPanicked`]: with [`HANDLER_RAN`] if the application had begun to execute the call, else
/// without a payload, as the server does not know.
#[derive(Debug)]
pub(crate) struct Deferred<F: Fabric> {
    inbox: Option<Arc<Inbox<F>>>,
    lane: u16,
    serial: u32,
    call: ReplyTo,
    /// The application has begun to execute the call.
    began: bool,
}

/// The parts of a call that its answer repeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReplyTo {
    pub(crate) call: u32,
    /// The slot of the caller's thread.
    pub(crate) thread: u16,
}

impl Call {
    /// Returns the parts that an answer repeats.
    pub(super) fn reply_to(&self) -> ReplyTo {
        ReplyTo { call: self.call, thread: self.thread }
    }
}

impl<F: Fabric> Deferred<F> {
    pub(crate) fn new(inbox: Arc<Inbox<F>>, lane: u16, serial: u32, call: ReplyTo) -> Self {
        Deferred { inbox: Some(inbox), lane, serial, call, began: false }
    }

    fn finish(&mut self, status: Status, payload: Vec<u8>) {
        if let Some(inbox) = self.inbox.take() {
            inbox.push(Command::Answer {
                lane: self.lane,
                serial: self.serial,
                call: self.call,
                status,
                payload,
            });
        }
    }
}

impl<F: Fabric> Drop for Deferred<F> {
    fn drop(&mut self) {
        let payload = if self.began { HANDLER_RAN.to_vec() } else { Vec::new() };
        self.finish(Status::HandlerPanicked, payload);
    }
}
