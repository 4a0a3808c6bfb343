//! Message processing of a worker: check a message, hand it to the service, the pool or the application, send
//! the answer.

use super::clock::WorkerClock;
use super::deferred::{Deferred, Incoming, ReplyTo};
use super::exported::Exported;
use super::inbox::Inbox;
use super::lane::{LossyLane, ServerLane, answer_meta};
use super::open;
use super::polled::Polled;
use super::pulled_calls::Held;
use super::slow::Sampling;
use super::worker::Shared;
use crate::error::HANDLER_RAN;
use crate::path::large::{Begun, Pool, Received};
use crate::path::retransmit::Repeated;
use crate::path::{
    Cx, Incoming as IncomingMessage, MAX_MESSAGE, Next, Scratch, TxError, Violation, turn_cost,
};
use crate::plan::SMALL_LIMIT;
use crate::service::{FunctionMode, LargeReply, NEVER, Service};
use dunlin_fabric::{Clock, Fabric, Host, Nanos, Work};
use dunlin_wire::{BatchState, Descriptor, Entry, EntryMeta, Flags, Header, Kind, LINE, Message, Status};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Lines taken from a lane before the next lane is served.
const BUDGET: usize = 32;

/// The state that dispatching needs in addition to the lane.
pub(super) struct Dispatcher<F: Fabric> {
    pub(super) shared: Arc<Shared<F>>,
    pub(super) inbox: Arc<Inbox<F>>,
    pub(super) service: Box<dyn Service>,
    /// Number of prefetch passes for which the service sees a batch.
    pub(super) passes: usize,
    /// Buffer for small results.
    pub(super) reply: Vec<u8>,
    /// Buffers into which large requests are READ.
    pub(super) imports: Pool<F>,
    pub(super) out: Out,
    pub(super) clock: WorkerClock,
    /// The host's clock, for handlers.
    pub(super) now: Clock,
    /// Calls held for the thread that runs the worker, if it takes calls itself.
    pub(super) held: Option<Box<Held>>,
    pub(super) polled: Polled<F>,
    pub(super) sampling: Sampling,
}

/// Output state of a worker.
pub(super) struct Out {
    /// Buffer in which batches of answers are built.
    pub(super) staging: Vec<u8>,
    pub(super) draining: bool,
}

impl Out {
    #[inline]
    pub(super) fn put_answer<F: Fabric>(
        &mut self,
        cx: &mut Cx<'_, F>,
        lane: &mut ServerLane<F>,
        meta: EntryMeta,
        payload: &[u8],
        batch: Option<&mut BatchState>,
    ) -> Result<(), Violation> {
        lane.keep(meta, payload);
        self.put_again(cx, lane, meta, payload, batch)
    }

    /// Sends an answer that is kept already; otherwise like [`put_answer`](Out::put_answer).
    #[inline]
    fn put_again<F: Fabric>(
        &mut self,
        cx: &mut Cx<'_, F>,
        lane: &mut ServerLane<F>,
        meta: EntryMeta,
        payload: &[u8],
        batch: Option<&mut BatchState>,
    ) -> Result<(), Violation> {
        let Some(batch) = batch else {
            return lane.answer(cx, meta, payload, self.draining).map_err(broken);
        };
        if !batch.fits(payload.len(), lane.max_answer()) {
            self.end_batch(cx, lane, std::mem::take(batch))?;
        }
        batch
            .push(&mut self.staging[..lane.max_answer()], &meta, payload)
            .map_err(|_| Violation::Transfer("an answer is longer than a message"))
    }

    #[inline]
    fn end_batch<F: Fabric>(
        &mut self,
        cx: &mut Cx<'_, F>,
        lane: &mut ServerLane<F>,
        batch: BatchState,
    ) -> Result<(), Violation> {
        if batch.is_empty() {
            return Ok(());
        }
        lane.answer_batch(cx, batch, &mut self.staging, self.draining).map_err(broken)
    }
}

/// The properties of a call that dispatching needs, without its payload.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    pub(crate) call: u32,
    pub(crate) function: u16,
    pub(crate) thread: u16,
    /// When it must have begun, on the server's clock; [`NEVER`] without a deadline.
    pub(crate) deadline: Nanos,
}

impl<F: Fabric> Dispatcher<F> {
    /// Takes the messages of one lane and answers them. Returns the number of messages, plus one if large
    /// results made progress.
    #[inline]
    pub(super) fn serve(
        &mut self,
        cx: &mut Cx<'_, F>,
        lane: &mut ServerLane<F>,
        scratch: &mut Scratch,
    ) -> Result<usize, Violation> {
        let mut messages = 0;
        let mut left = BUDGET;
        // The answers of all messages that wait on a lane whose threads combine: one message (FLOCK section 4.3).
        let mut gathered = BatchState::new();
        let (mut consumed, mut went_on, mut drained) = (false, false, false);
        while left > 0 {
            if lane.has_pending() {
                if self.send_pending(cx, lane)? {
                    went_on = true;
                    left = left.saturating_sub(2);
                }
                if lane.is_blocked() {
                    break;
                }
            }
            match lane.rx.next_line(cx.fabric, scratch, Kind::Request)? {
                Next::Nothing => {
                    drained = true;
                    break;
                }
                Next::Short(request) => {
                    messages += 1;
                    left = left.saturating_sub(turn_cost(Kind::Request as u8, LINE));
                    cx.fabric.host().charge(Work::ParseMessage, 1);
                    lane.on_header(cx.fabric, &request.header())?;
                    if lane.gathers() && (!gathered.is_empty() || lane.rx.is_waiting()) {
                        self.on_entry(cx, lane, &request.entry(), Some(&mut gathered))?;
                    } else {
                        self.on_request(cx, lane, &request.entry(), None)?;
                    }
                    continue;
                }
                Next::Line(line) => {
                    messages += 1;
                    left = left.saturating_sub(turn_cost(line[0], LINE));
                    self.on_message(cx, lane, line, &mut gathered)?;
                    continue;
                }
                // It may be just a skip.
                Next::Other => consumed = true,
            }
            let Some(incoming) = lane.rx.poll(cx.fabric, scratch)? else {
                drained = true;
                break;
            };
            messages += 1;
            left = left.saturating_sub(incoming.turn_cost(scratch));
            match incoming {
                IncomingMessage::Scratch(total) => {
                    self.on_message(cx, lane, &scratch[..total], &mut gathered)?;
                }
                IncomingMessage::Buffer(buffer, range) => {
                    let result = self.on_message(cx, lane, &buffer[range], &mut gathered);
                    open::repost_shared::<F>(cx.domain, lane.receives, Some(buffer));
                    result?;
                }
            }
        }
        self.out.end_batch(cx, lane, gathered)?;
        let mut is_listed = lane.tx.end.has_listed();
        if is_listed {
            lane.tx.post_held(cx).map_err(broken)?;
            is_listed = lane.tx.end.has_listed();
        }
        lane.more = left == 0 || lane.has_pending() || is_listed;
        if drained && self.clock.is_needed() {
            self.clock.catch_up(cx.fabric.host());
        }
        lane.was_served(drained, &self.clock);
        if lane.more && lane.is_blocked() {
            let (limit, receives) = (lane.waiting_limit(), lane.receives);
            lane.rx.release(limit, |buffer| open::repost_shared::<F>(cx.domain, receives, Some(buffer)))?;
        }
        if lane.is_credited() {
            lane.send_credits(cx).map_err(broken)?;
        }
        if (messages > 0 || consumed) && lane.rx.head_overdue() {
            let head = lane.rx.head();
            if lane.tx.end.report_head(cx, (lane.client_key(), 0), head).is_ok() {
                lane.rx.told();
            }
        }
        Ok(messages + usize::from(went_on))
    }

    /// Sends waiting answers; returns whether large results made progress.
    #[inline(never)]
    pub(super) fn send_pending(
        &mut self,
        cx: &mut Cx<'_, F>,
        lane: &mut ServerLane<F>,
    ) -> Result<bool, Violation> {
        lane.send_waiting(cx, self.out.draining).map_err(broken)
    }

    #[inline(never)]
    pub(super) fn on_message(
        &mut self,
        cx: &mut Cx<'_, F>,
        lane: &mut ServerLane<F>,
        bytes: &[u8],
        gathered: &mut BatchState,
    ) -> Result<(), Violation> {
        cx.fabric.host().charge(Work::ParseMessage, 1);
        let message = Message::parse(bytes, MAX_MESSAGE)?;
        let header = *message.header();
        lane.on_header(cx.fabric, &header)?;
        match header.kind {
            Kind::Request => {
                for entry in message.entries() {
                    let joins = lane.gathers() && (!gathered.is_empty() || lane.rx.is_waiting());
                    self.on_entry(cx, lane, &entry, joins.then_some(&mut *gathered))?;
                }
                Ok(())
            }
            Kind::RequestBatch => {
                if self.passes > 0 {
                    self.prepare(&message);
                }
                for entry in message.entries() {
                    self.on_request(cx, lane, &entry, Some(&mut *gathered))?;
                }
                if lane.gathers() {
                    return Ok(());
                }
                self.out.end_batch(cx, lane, std::mem::take(gathered))
            }
            Kind::Release => {
                lane.transfers.release(message.released());
                Ok(())
            }
            Kind::Credit => Ok(()),
            Kind::ClearToSend => Self::on_place(lane, header.call, message.body()),
            Kind::Filled | Kind::Written | Kind::Fragment => {
                self.on_transfer(cx, lane, &header, message.body())
            }
            kind => Err(Violation::Kind(kind)),
        }
    }

    /// Queues the transfer of a large result to the place that the client names.
    #[inline(never)]
    fn on_place(lane: &mut ServerLane<F>, call: u32, place: &[u8]) -> Result<(), Violation> {
        let result = lane.transfers.take_exported(call).ok_or(Violation::Call(call))?;
        let queue = &mut lane.transfers.make().pending_transfers;
        lane.plan.large.sender().place_named(queue, call, result, place)
    }

    /// As [`on_request`](Dispatcher::on_request), for requests that are no line of their own, or whose answers join
    /// others.
    #[inline(never)]
    fn on_entry(
        &mut self,
        cx: &mut Cx<'_, F>,
        lane: &mut ServerLane<F>,
        entry: &Entry<'_>,
        batch: Option<&mut BatchState>,
    ) -> Result<(), Violation> {
        self.on_request(cx, lane, entry, batch)
    }

    /// Inlined like everything that a short call needs.
    #[inline(always)]
    fn on_request(
        &mut self,
        cx: &mut Cx<'_, F>,
        lane: &mut ServerLane<F>,
        entry: &Entry<'_>,
        batch: Option<&mut BatchState>,
    ) -> Result<(), Violation> {
        cx.fabric.host().charge(Work::ParseEntry, 1);
        let (function, thread) = (entry.function_or_status, entry.thread);
        let mut call = Call { call: entry.call, function, thread, deadline: NEVER };
        if !lane.admit(entry.call, entry.function_or_status, self.clock.last())? {
            return self.on_repeated(cx, lane, Call { ..call }, batch);
        }
        if entry.time != 0 {
            if !self.clock.is_needed() {
                let now = self.clock.first_deadline(cx.fabric.host());
                lane.arrives_after(now, now);
            }
            call.deadline = lane.deadline(entry.time, self.clock.last());
        }
        if !entry.flags.contains(Flags::RENDEZVOUS) {
            return self.dispatch_here(cx, lane, call, entry.payload, batch);
        }
        let entry = *entry;
        self.on_descriptor(cx, lane, &entry, Call { ..call }, batch)
    }

    /// Handles a call that came before: it is not executed again. On lossy paths the client gets the same
    /// answer again.
    #[cold]
    fn on_repeated(
        &mut self,
        cx: &mut Cx<'_, F>,
        lane: &mut ServerLane<F>,
        call: Call,
        batch: Option<&mut BatchState>,
    ) -> Result<(), Violation> {
        let Some(LossyLane { replies, .. }) = lane.lossy.as_deref_mut() else {
            return self.refuse(cx, lane, call, Status::DuplicateCall, batch);
        };
        match replies.repeated(call.call) {
            Repeated::Reply(meta, payload) => {
                let put = self.out.put_again(cx, lane, meta, &payload, batch);
                if let Some(lossy) = &mut lane.lossy {
                    lossy.replies.give_back(call.call, payload);
                }
                put
            }
            Repeated::Working => {
                // So that the client does not consider the server silent. The message may be dropped if there
                // is no room.
                let header = Header { head: lane.rx.head(), ..Header::new(Kind::Credit) };
                match lane.tx.single(cx, &header, &[]) {
                    Ok(()) | Err(TxError::Full) => Ok(()),
                    Err(error) => Err(broken(error)),
                }
            }
            Repeated::Old => Ok(()),
        }
    }

    /// Processes a message about a large request; serves the request once it is complete.
    #[inline(never)]
    fn on_transfer(
        &mut self,
        cx: &mut Cx<'_, F>,
        lane: &mut ServerLane<F>,
        header: &Header,
        body: &[u8],
    ) -> Result<(), Violation> {
        let at = (lane.queue_pair, lane.index);
        let (inbound, mut end) = lane.transfers.inward(cx, at, &mut self.imports, header.call);
        let arrived = inbound.on_message(&mut end, header, body)?;
        match arrived {
            Received::Part | Received::Nothing => return Ok(()),
            Received::GivenUp if inbound.give_up(header.call) => {
                return self.on_given_up(cx, lane, header.call);
            }
            Received::GivenUp => return Ok(()),
            Received::Whole(_) | Received::Lost => {}
        }
        let arriving = &mut lane.transfers.make().arriving;
        let at = arriving.iter().position(|arriving| arriving.call == header.call);
        let Some(at) = at else { return Err(Violation::Call(header.call)) };
        let call = arriving.swap_remove(at);
        self.clock.time_passed();
        match arrived {
            Received::Whole(payload) => self.dispatch(cx, lane, call, &payload, None),
            _ => self.refuse(cx, lane, call, Status::Overloaded, None),
        }
    }

    /// Starts the transfer of a large request, which is served once it is complete.
    #[inline(never)]
    fn on_descriptor(
        &mut self,
        cx: &mut Cx<'_, F>,
        lane: &mut ServerLane<F>,
        entry: &Entry<'_>,
        call: Call,
        batch: Option<&mut BatchState>,
    ) -> Result<(), Violation> {
        let Ok(descriptor) = Descriptor::decode(entry.payload, self.shared.config.max_payload) else {
            return self.refuse(cx, lane, call, Status::TooLarge, batch);
        };
        let is_known = self.mode(call.function).is_some();
        let at = (lane.queue_pair, lane.index);
        let (inbound, mut end) = lane.transfers.inward(cx, at, &mut self.imports, call.call);
        match inbound.begin(&mut end, descriptor, is_known)? {
            Begun::Arriving => lane.transfers.make().arriving.push(call),
            Begun::Reading { .. } => lane.transfers.keep_reading(call),
            Begun::Refused => {
                let status = if is_known { Status::Overloaded } else { Status::UnknownFunction };
                return self.refuse(cx, lane, call, status, batch);
            }
        }
        Ok(())
    }

    /// Ends a call whose announced request the client has given up. The client waits for no answer.
    #[cold]
    pub(super) fn on_given_up(
        &mut self,
        cx: &mut Cx<'_, F>,
        lane: &mut ServerLane<F>,
        call: u32,
    ) -> Result<(), Violation> {
        let Some(call) = lane.transfers.take_reading(call) else { return Ok(()) };
        self.refuse(cx, lane, call, Status::Malformed, None)
    }

    /// Shows the service the requests of a batch. A panic there is handled like one in a call, and only loses
    /// a prefetch.
    fn prepare(&mut self, message: &Message<'_>) {
        let (service, passes) = (&mut self.service, self.passes);
        let shown = catch_unwind(AssertUnwindSafe(|| {
            for pass in 0..passes {
                for entry in message.entries().filter(|entry| !entry.flags.contains(Flags::RENDEZVOUS)) {
                    service.prepare(pass, entry.function_or_status, entry.payload);
                }
            }
        }));
        if shown.is_err() {
            tracing::warn!(target: "dunlin::server", "a service panicked while it prepared for a batch");
        }
    }

    #[inline]
    pub(super) fn mode(&self, function: u16) -> Option<FunctionMode> {
        self.shared.functions.get(function as usize).copied().flatten()
    }

    /// Hands a complete request in private memory to its function.
    #[inline(never)]
    pub(super) fn dispatch(
        &mut self,
        cx: &mut Cx<'_, F>,
        lane: &mut ServerLane<F>,
        call: Call,
        payload: &[u8],
        batch: Option<&mut BatchState>,
    ) -> Result<(), Violation> {
        self.dispatch_here(cx, lane, call, payload, batch)
    }

    /// As [`dispatch`](Dispatcher::dispatch); inlined.
    #[inline(always)]
    fn dispatch_here(
        &mut self,
        cx: &mut Cx<'_, F>,
        lane: &mut ServerLane<F>,
        call: Call,
        payload: &[u8],
        batch: Option<&mut BatchState>,
    ) -> Result<(), Violation> {
        if self.clock.is_past(cx.fabric.host(), call.deadline) {
            return self.refuse(cx, lane, Call { ..call }, Status::DeadlineExceeded, batch);
        }
        match self.mode(call.function) {
            Some(FunctionMode::Worker) => self.execute(cx, lane, call, payload, batch),
            None => self.refuse(cx, lane, Call { ..call }, Status::UnknownFunction, batch),
            Some(mode) => self.defer(cx, lane, Call { ..call }, payload, mode, batch),
        }
    }

    /// Answers that a call was executed and has no result: the handler panicked, the result exceeds the
    /// limit, or there is no memory for it.
    #[cold]
    pub(super) fn refuse_executed(
        &mut self,
        cx: &mut Cx<'_, F>,
        lane: &mut ServerLane<F>,
        call: Call,
        status: Status,
        batch: Option<&mut BatchState>,
    ) -> Result<(), Violation> {
        let meta = answer_meta(call.call, call.thread, status, Flags::NONE);
        self.out.put_answer(cx, lane, meta, HANDLER_RAN, batch)
    }

    #[cold]
    fn refuse(
        &mut self,
        cx: &mut Cx<'_, F>,
        lane: &mut ServerLane<F>,
        call: Call,
        status: Status,
        batch: Option<&mut BatchState>,
    ) -> Result<(), Violation> {
        let meta = answer_meta(call.call, call.thread, status, Flags::NONE);
        self.out.put_answer(cx, lane, meta, &[], batch)
    }

    /// Queues a request for the pool, or for the application that pulls; or has the polled service start it, or executes
    /// it if its function may leave to the pool and has not.
    #[inline(never)]
    fn defer(
        &mut self,
        cx: &mut Cx<'_, F>,
        lane: &mut ServerLane<F>,
        call: Call,
        payload: &[u8],
        mode: FunctionMode,
        mut batch: Option<&mut BatchState>,
    ) -> Result<(), Violation> {
        if mode == FunctionMode::WorkerThenPool
            && self.execute_unless_left(cx, lane, call, payload, batch.as_deref_mut())?
        {
            return Ok(());
        }
        if mode == FunctionMode::Polled && self.start(cx, lane, call, payload, batch.as_deref_mut())? {
            return Ok(());
        }
        if mode == FunctionMode::Pull && self.hold(cx.fabric, lane, call, payload) {
            return Ok(());
        }
        self.clock.ran(call.function);
        let deferred = Deferred::new(Arc::clone(&self.inbox), lane.index, lane.serial(), call.reply_to());
        let (payload, clock) = (payload.to_vec(), self.now.clone());
        let incoming =
            Incoming::new(call.function, payload, lane.session(), (call.deadline, clock), deferred);
        if mode == FunctionMode::Pull
            && let Some(taker) = self.shared.takers.of(call.function)
        {
            lane.in_service += 1;
            // The answer comes through the inbox, also that of a call that is dropped in a panic.
            if catch_unwind(AssertUnwindSafe(|| taker.take(incoming))).is_err() {
                tracing::error!(target: "dunlin::server", function = call.function, "a taker of calls panicked");
            }
            return Ok(());
        }
        let waiting = if mode == FunctionMode::Pull { &self.shared.pulled } else { &self.shared.pool };
        match waiting.push(incoming) {
            Ok(()) => {
                lane.in_service += 1;
                Ok(())
            }
            Err(refused) => {
                let status = if waiting.is_closed() { Status::Draining } else { Status::Overloaded };
                refused.forget();
                self.refuse(cx, lane, call, status, batch)
            }
        }
    }

    /// Returns the longest single-message answer of a call that did not run on this worker, in bytes.
    pub(super) fn small_limit(&self, lane: &ServerLane<F>) -> usize {
        (lane.plan.rendezvous_above as usize).min(SMALL_LIMIT as usize)
    }

    /// Answers in one message.
    pub(super) fn answer_small(
        &mut self,
        cx: &mut Cx<'_, F>,
        lane: &mut ServerLane<F>,
        call: Call,
        status: Status,
        payload: &[u8],
    ) -> Result<(), Violation> {
        let meta = answer_meta(call.call, call.thread, status, Flags::NONE);
        self.out.put_answer(cx, lane, meta, payload, None)
    }

    /// Answers a call that ran elsewhere.
    pub(super) fn answer_owned(
        &mut self,
        cx: &mut Cx<'_, F>,
        lane: &mut ServerLane<F>,
        ReplyTo { call, thread }: ReplyTo,
        status: Status,
        payload: &[u8],
    ) -> Result<(), Violation> {
        let call = Call { call, function: 0, thread, deadline: NEVER };
        let panicked = status == Status::HandlerPanicked && !payload.is_empty();
        if panicked || status == Status::TooLarge {
            return self.refuse_executed(cx, lane, call, status, None);
        }
        if payload.len() <= self.small_limit(lane) {
            return self.answer_small(cx, lane, call, status, payload);
        }
        if status != Status::Ok {
            return self.refuse(cx, lane, call, status, None);
        }
        let mut large = Exported::new(cx.fabric, &mut lane.transfers);
        if large.resize(payload.len()) {
            large.bytes().copy_from_slice(payload);
        }
        let buffer = large.buffer.take();
        self.export(cx, lane, call, buffer, None)
    }
}

pub(super) fn broken(_: TxError) -> Violation {
    Violation::Broken
}
