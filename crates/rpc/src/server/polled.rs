//! Calls that a worker starts, and ends in later turns: for a service that waits for something else than its worker's
//! messages, as a node of the memory tier waits for one-sided operations (LITE section 6.1).
//!
//! A worker has one domain and sleeps on that one only. So it polls the service in its turns as long as the service
//! keeps calls, and the service bounds its sleeps. The service may have domains of its own wake the worker
//! ([`ThreadDomain::arm_other`](dunlin_fabric::ThreadDomain::arm_other)).

use super::deferred::{Deferred, Incoming, ReplyTo};
use super::dispatch::{Call, Dispatcher};
use super::exported::Exported;
use super::inbox::Inbox;
use super::lane::{ServerLane, answer_meta};
use crate::error::failure;
use crate::path::Cx;
use crate::path::Violation;
use crate::service::{Reply, Request, Service};
use dunlin_fabric::{AnyWaker, Clock, Fabric, Host, Nanos, Site, WaitMode, Waker, Work};
use dunlin_wire::{BatchState, Flags, Status};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// The longest pause between two polls of a service that is [`PollAgain::Busy`], in nanoseconds. Only a simulator, whose
/// busy waits take time, pauses.
const POLL_EVERY: Nanos = 20;

/// The outcome of [`PolledService::start`].
#[derive(Debug)]
pub enum Started {
    /// The call is answered, as by [`Service::call`].
    Answered(Result<(), Status>),
    /// The call was [kept](Later::keep).
    Kept,
    /// The call has to wait for something: a thread of the pool runs it. Nothing of it was done.
    Left,
}

/// The time at which a service wants to be polled again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PollAgain {
    /// The service keeps no call.
    Never,
    /// In the next turn: the worker does not sleep.
    Busy,
    /// At this time on the host's clock at the latest. The worker may sleep until then.
    Until(Nanos),
}

/// A service of one worker for functions declared [`FunctionMode::Polled`](crate::FunctionMode::Polled):
/// [`ServerBuilder::polled`](crate::ServerBuilder::polled). Only that worker calls it. It must not block: every other
/// call on the worker would wait.
pub trait PolledService<F: Fabric>: Send {
    /// Answers a call at once, keeps it, or leaves it to the pool. A panic is handled like one in
    /// [`Service::call`].
    fn start(&mut self, request: &Request<'_>, reply: &mut Reply<'_>, later: Later<'_, F>) -> Started;

    /// Makes progress with the calls that it keeps, and answers those that have ended. Called in each turn of the worker
    /// while there are any. `worker` ends the worker's waits, and is the same in each call.
    fn poll(&mut self, worker: &AnyWaker) -> PollAgain;
}

/// The means to answer a call in a later turn.
#[derive(Debug)]
pub struct Later<'a, F: Fabric> {
    pub(super) inbox: &'a Arc<Inbox<F>>,
    pub(super) lane: u16,
    pub(super) serial: u32,
    pub(super) call: ReplyTo,
    pub(super) deadline: Nanos,
    pub(super) is_kept: &'a mut bool,
}

impl<F: Fabric> Later<'_, F> {
    /// Keeps the call: return [`Started::Kept`], and answer by the returned call, from any thread. Its payload is empty,
    /// since the service has seen it. The reply of [`start`](PolledService::start) is discarded.
    pub fn keep(self, request: &Request<'_>) -> Incoming<F> {
        *self.is_kept = true;
        let deferred = Deferred::new(Arc::clone(self.inbox), self.lane, self.serial, self.call);
        let at = (self.deadline, Clock::clone(request.clock));
        Incoming::new(request.function, Vec::new(), request.session, at, deferred)
    }
}

/// The services of a worker.
pub(crate) type Services<F> = (Box<dyn Service>, Option<Box<dyn PolledService<F>>>);

/// The polled service of a worker.
pub(super) struct Polled<F: Fabric> {
    pub(super) service: Option<Box<dyn PolledService<F>>>,
    next: PollAgain,
    worker: AnyWaker,
}

impl<F: Fabric> Polled<F> {
    pub(super) fn new(service: Option<Box<dyn PolledService<F>>>, worker: impl Waker) -> Self {
        Polled { service, next: PollAgain::Never, worker: AnyWaker::new(worker) }
    }

    /// Returns whether the service keeps calls.
    #[inline]
    pub(super) fn keeps(&self) -> bool {
        self.next != PollAgain::Never
    }

    /// The service has kept a call.
    pub(super) fn kept(&mut self) {
        self.next = PollAgain::Busy;
    }

    fn poll(&mut self) {
        let Some(service) = &mut self.service else { return };
        let polled = catch_unwind(AssertUnwindSafe(|| service.poll(&self.worker)));
        self.next = polled.unwrap_or_else(|_| {
            tracing::error!(target: "dunlin::server", "a service panicked while it was polled; its calls are dropped");
            self.service = None;
            PollAgain::Never
        });
    }

    /// Bounds a wait of the worker.
    #[cold]
    pub(super) fn bound(
        &self,
        (mode, until): (WaitMode, Nanos),
        now: impl Fn() -> Nanos,
    ) -> (WaitMode, Nanos) {
        match self.next {
            PollAgain::Never => (mode, until),
            PollAgain::Busy => (WaitMode::Busy, until.min(now() + POLL_EVERY)),
            PollAgain::Until(at) => (mode, until.min(at)),
        }
    }
}

impl<F: Fabric> Dispatcher<F> {
    /// Polls the service. Its answers wake nobody: the worker looks into its inbox afterwards.
    #[cold]
    pub(super) fn poll_service(&mut self) {
        let polled = &mut self.polled;
        self.inbox.looking(|| polled.poll());
    }

    /// Has the polled service start a call; returns whether the service answered or keeps it.
    #[inline(never)]
    pub(super) fn start(
        &mut self,
        cx: &mut Cx<'_, F>,
        lane: &mut ServerLane<F>,
        call: Call,
        payload: &[u8],
        batch: Option<&mut BatchState>,
    ) -> Result<bool, Violation> {
        let Some(service) = &mut self.polled.service else { return Ok(false) };
        cx.fabric.host().charge(Work::Dispatch, 1);
        cx.fabric.host().checkpoint(Site::BeforeDispatch);
        let Call { function, deadline, .. } = call;
        let request = Request { function, payload, session: lane.session(), deadline, clock: &self.now };
        let mut is_kept = false;
        let later = Later {
            inbox: &self.inbox,
            lane: lane.index,
            serial: lane.serial(),
            call: call.reply_to(),
            deadline,
            is_kept: &mut is_kept,
        };
        let small_limit = (lane.plan.rendezvous_above as usize).min(self.reply.len());
        let mut large = Exported::new(cx.fabric, &mut lane.transfers);
        let mut reply = Reply {
            small: &mut self.reply,
            length: 0,
            small_limit,
            limit: self.shared.config.max_response as usize,
            large: &mut large,
        };
        let timed = self.sampling.is_due().then(|| cx.fabric.host().glance());
        let started = catch_unwind(AssertUnwindSafe(|| service.start(&request, &mut reply, later)));
        self.clock.ran(function);
        if is_kept {
            // The answer comes through the inbox, also that of a call that is dropped in a panic.
            lane.in_service += 1;
            self.polled.kept();
            return Ok(true);
        }
        let outcome = match started {
            // The pool, if there is one, answers it.
            Ok(Started::Left) => return Ok(false),
            Ok(Started::Answered(outcome)) => outcome.map_err(Some),
            // A call that nobody keeps is dropped.
            Ok(Started::Kept) => Err(Some(Status::HandlerPanicked)),
            Err(_) => Err(None),
        };
        let length = if outcome.is_ok() { reply.length } else { reply.shorten() };
        let buffer = large.buffer;
        if let Some(began) = timed {
            self.timed(cx.fabric.host(), function, began);
        }
        let (status, length) = match outcome {
            Ok(()) if length > small_limit => {
                return self.export(cx, lane, call, buffer, batch).map(|()| true);
            }
            Ok(()) => (Status::Ok, length),
            Err(failed) => match failure(failed, length) {
                Ok(answer) => answer,
                Err(status) => {
                    return self.refuse_executed(cx, lane, call, status, batch).map(|()| true);
                }
            },
        };
        let meta = answer_meta(call.call, call.thread, status, Flags::NONE);
        self.out.put_answer(cx, lane, meta, &self.reply[..length], batch).map(|()| true)
    }
}
