//! The client of one thread. It drives the engine itself, so a busy call takes no lock and involves no other
//! thread.

mod held;
mod memory;
mod ready;
mod shared;

use super::config::ClientConfig;
use super::core::{CallId, Core};
use super::establish::{greet, negotiate};
use super::filling::FillingRequest;
use super::lane::SubmitError;
use super::lanes::Lanes;
use super::memory::{Attached, RegionNames};
use super::running::{RunningPlan, numbered};
use super::slots::Sink;
use super::within::{Time, Within};
use crate::connect::backoff::Backoff;
use crate::error::{CallError, Cause, ConnectError};
use crate::path::half::hybrid::Tuning;
use crate::plan::{Occupancy, ServerConnections};
use crate::tune::Tuners;
use crate::wait::Waiter;
use dunlin_fabric::{
    Address, Buffer, Capabilities, Fabric, Host, Nanos, Site, ThreadDomain, WaitMode, Wake, nanos,
};
use std::ops::{Deref, DerefMut};
use std::time::Duration;

/// A client for one thread at a time: `Send`, but not shared. [`another`](Client::another) makes one for
/// another thread.
///
/// A call that finds its connection lost reconnects first, if the back-off allows it. That blocks for at most
/// [`ClientConfig::connect_timeout`]. With [`ClientConfig::wait_for_ready`] the call waits for the connection.
// The fields that every call touches come first; those that only connecting needs are boxed, to keep a client
// small.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Client<F: Fabric> {
    core: Core<F>,
    lanes: Lanes,
    waiter: Waiter,
    earliest: Nanos,
    /// A batch found no room. Any wake-up may mean that there is room now.
    held_back: bool,
    /// The lanes' health was not checked since the last sleep.
    unchecked: bool,
    /// The lanes batch by themselves.
    batches: bool,
    /// [`ClientConfig::timeout`]; 0 for none.
    timeout: Nanos,
    next_worker: usize,
    /// Broken lanes whose results were not collected yet.
    old: Vec<u16>,
    session: u64,
    server_connections: ServerConnections,
    target: Box<Target>,
}

/// The server that a client is connected to, and the settings.
#[derive(Debug)]
struct Target {
    address: Address,
    config: ClientConfig,
    backoff: Backoff,
    /// The last attempt to connect was refused with [`ConnectError::NoQueuePair`].
    has_no_queue_pair: bool,
    /// The regions of the server that the client uses, and their keys on its connection.
    regions: RegionNames,
    attached: Vec<Option<Attached>>,
    /// The tuners shared by all connections, including reconnected ones and those of other threads.
    tuners: Tuners,
    /// The threads and cores of the server's host when the client connected, if the server stated them.
    occupancy: Option<Occupancy>,
}

/// Connects clients of one server with the same settings and tuners.
#[derive(Clone, Debug)]
pub(crate) struct Connector<F: Fabric> {
    fabric: F,
    address: Address,
    config: ClientConfig,
    tuners: Tuners,
    regions: RegionNames,
}

impl<F: Fabric> Connector<F> {
    /// Connects a client. Blocks as [`Client::connect`] does.
    pub(crate) fn connect(&self) -> Result<Client<F>, ConnectError> {
        self.connect_as(self.config.clone())
    }

    fn connect_as(&self, config: ClientConfig) -> Result<Client<F>, ConnectError> {
        Client::connect_with(&self.fabric, &self.address, config, (self.tuners.clone(), self.regions.clone()))
    }

    /// As [`connect`](Connector::connect), even if the settings are [lazy](ClientConfig::lazy).
    pub(crate) fn connect_now(&self) -> Result<Client<F>, ConnectError> {
        self.connect_as(ClientConfig { lazy: false, ..self.config.clone() })
    }
}

/// A result, borrowed from the client. Dropping it frees the call's slot.
#[derive(Debug)]
pub(crate) struct Response<'a, F: Fabric> {
    core: &'a mut Core<F>,
    id: CallId,
}

impl<F: Fabric> Deref for Response<'_, F> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // A response exists only for a call with a result, and the borrowed core cannot change.
        self.core.outcome(self.id).unwrap_or_default()
    }
}

impl<F: Fabric> Drop for Response<'_, F> {
    #[inline]
    fn drop(&mut self) {
        self.core.forget(self.id);
    }
}

/// A sink that passes results to a closure.
struct Hand<G> {
    each: G,
    count: usize,
    /// The call whose result was passed last.
    last: Option<CallId>,
}

impl<G: FnMut(CallId, Result<&[u8], CallError>)> Sink for Hand<G> {
    #[inline]
    fn offer(&mut self, lane: u16, call: u32, payload: &[u8]) -> bool {
        let id = CallId { lane, call };
        self.last = Some(id);
        (self.each)(id, Ok(payload));
        self.count += 1;
        true
    }
}

/// Results that are passed to a closure as they arrive. If the closure panics, the rest of the message is lost: the call
/// that it was given is over, and the lanes break, so that all others end.
struct Handing<'a, F: Fabric, G> {
    core: &'a mut Core<F>,
    hand: Hand<G>,
    is_done: bool,
}

impl<F: Fabric, G: FnMut(CallId, Result<&[u8], CallError>)> Handing<'_, F, G> {
    #[inline(always)]
    fn hand_out(mut self) -> usize {
        self.core.progress_into(&mut self.hand);
        self.is_done = true;
        self.hand.count
    }
}

impl<F: Fabric, G> Drop for Handing<'_, F, G> {
    #[inline]
    fn drop(&mut self) {
        if !self.is_done {
            self.core.closure_has_panicked(self.hand.last);
        }
    }
}

/// A large request that is built in the memory from which the server will READ it: no copy on the client.
#[derive(Debug)]
pub(crate) struct LargeRequest<F: Fabric> {
    buffer: Buffer<F::Memory>,
    lane: u16,
}

impl<F: Fabric> Deref for LargeRequest<F> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.buffer
    }
}

impl<F: Fabric> DerefMut for LargeRequest<F> {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.buffer
    }
}

impl<F: Fabric> Client<F> {
    /// Connects to all workers of a server. Blocks for at most [`ClientConfig::connect_timeout`]; with
    /// [`ClientConfig::lazy`] it does not connect yet and does not block.
    pub(crate) fn connect(fabric: &F, address: &Address, config: ClientConfig) -> Result<Self, ConnectError> {
        config.check()?;
        let config = config.resolved(fabric);
        let tuners = config.tuners(fabric);
        Self::connect_with(fabric, address, config, (tuners, RegionNames::default()))
    }

    /// As [`connect`](Client::connect), with checked settings and tuners that other clients may share.
    fn connect_with(
        fabric: &F,
        address: &Address,
        config: ClientConfig,
        (tuners, regions): (Tuners, RegionNames),
    ) -> Result<Self, ConnectError> {
        config.check_plans(fabric.capabilities())?;
        let core = Core::new(fabric, config.mode())?;
        let mut client = Client {
            core,
            lanes: Lanes::new(&config),
            old: Vec::new(),
            waiter: Waiter::new(config.mode(), nanos(config.spin)),
            earliest: Nanos::MAX,
            held_back: false,
            unchecked: false,
            batches: config.batching.is_some(),
            timeout: config.call_nanos(),
            session: 0,
            server_connections: ServerConnections::default(),
            next_worker: 0,
            target: Box::new(Target {
                address: address.clone(),
                backoff: Backoff::new(config.backoff),
                has_no_queue_pair: false,
                regions,
                attached: Vec::new(),
                config,
                tuners,
                occupancy: None,
            }),
        };
        if !client.target.config.lazy {
            let until = fabric.host().now().saturating_add(nanos(client.target.config.connect_timeout));
            client.establish(until)?;
        }
        Ok(client)
    }

    /// Connects another client to the same server with the same settings, for another thread. It has
    /// connections of its own. If results are fetched or written back, both clients share their tuning (see
    /// [`tuning`](Client::tuning)).
    pub(crate) fn another(&self) -> Result<Self, ConnectError> {
        self.connector().connect()
    }

    /// Returns the means to connect further clients as [`another`](Client::another) does.
    pub(crate) fn connector(&self) -> Connector<F> {
        Connector {
            fabric: self.core.fabric.clone(),
            address: self.target.address.clone(),
            config: self.target.config.clone(),
            tuners: self.target.tuners.clone(),
            regions: self.target.regions.clone(),
        }
    }

    fn establish(&mut self, until: Nanos) -> Result<(), ConnectError> {
        let fabric = self.core.fabric.clone();
        let greeting = greet(&fabric, &self.target.address, &self.target.config, until)?;
        let prepared = self.core.prepare(&greeting, &self.target.config, &self.target.tuners)?;
        let ready = match negotiate(&greeting, &prepared, until) {
            Ok(ready) => ready,
            Err(error) => {
                self.core.discard(prepared);
                return Err(error);
            }
        };
        let Target { config, tuners, .. } = &*self.target;
        let indices = self.core.install(&greeting, config, prepared, &ready, tuners)?;
        self.lanes.set(indices, self.target.config.plans().len());
        self.session = greeting.reply.session;
        self.server_connections = greeting.connections();
        self.target.occupancy = greeting.occupancy();
        Ok(())
    }

    /// Returns the number of workers that this client has lanes to; 0 without a connection.
    pub(crate) fn workers(&self) -> usize {
        self.lanes.workers()
    }

    /// Returns the session id of the current connection, as in the server's logs.
    pub(crate) fn session(&self) -> u64 {
        self.session
    }

    /// Returns what the server said of its connections.
    pub(crate) fn server_connections(&self) -> ServerConnections {
        self.server_connections
    }

    /// Returns how the calls of a function run: the protocol, how both sides wait, and the reasons. The client
    /// does not know where the function runs.
    pub(crate) fn plan_of(&self, function: u16) -> RunningPlan {
        self.plan_of_as(function, &numbered)
    }

    /// As [`plan_of`](Client::plan_of), with names for functions, for layers that have them.
    pub(crate) fn plan_of_as(&self, function: u16, name: &dyn Fn(u16) -> String) -> RunningPlan {
        let Target { config, tuners, .. } = &*self.target;
        let transport = self.core.fabric.capabilities().name;
        config.running(function, transport, tuners, name, false, self.target.occupancy)
    }

    /// Returns the settings.
    pub(crate) fn config(&self) -> &ClientConfig {
        &self.target.config
    }

    /// Returns the fabric's capabilities.
    pub(crate) fn capabilities(&self) -> &Capabilities {
        self.core.fabric.capabilities()
    }

    /// Returns how many more calls `worker` accepts now, for functions without a plan of their own.
    pub(crate) fn room(&mut self, worker: usize) -> usize {
        let lane = self.lanes.of(worker, u16::MAX);
        lane.and_then(|lane| self.core.lane(lane)).map_or(0, |lane| lane.slots.room())
    }

    /// Returns the number of calls sent and not answered.
    pub(crate) fn in_flight(&self) -> usize {
        self.core.in_flight()
    }

    /// Returns a view whose call has this time.
    #[inline]
    pub(crate) fn at(&mut self, time: Time) -> Within<'_, F> {
        Within { client: self, time }
    }

    /// Returns the default time of a call.
    #[inline]
    pub(crate) fn usual_time(&self) -> Time {
        Time { nanos: self.timeout, is_own: false }
    }

    /// Adds a call to the open batch; reconnects first if the connection is lost.
    #[inline(never)]
    pub(super) fn push(&mut self, to: (usize, u16), payload: &[u8], time: Time) -> Result<CallId, CallError> {
        if time.is_over() {
            return Err(CallError::NotExecuted(Cause::DeadlineExceeded));
        }
        let pushed = match self.lanes.of(to.0, to.1) {
            Some(index) => match self.core.usable_lane(index) {
                Ok((mut cx, lane)) => {
                    let pushed = lane.push_here(&mut cx, to.1.into(), payload, time);
                    self.core.used_lane(index, pushed)
                }
                Err(error) => Err(error),
            },
            None => Err(SubmitError::Broken),
        };
        match pushed {
            Ok(id) => Ok(id),
            Err(error) => {
                self.retry_after_reconnect(to, time, error, |client, time| client.try_push(to, payload, time))
            }
        }
    }

    #[inline(never)]
    pub(super) fn try_push(
        &mut self,
        (worker, function): (usize, u16),
        payload: &[u8],
        time: Time,
    ) -> Result<CallId, SubmitError> {
        let Some(index) = self.lanes.of(worker, function) else { return Err(SubmitError::Broken) };
        self.core.with_lane(index, |cx, lane| lane.push(cx, function, payload, time))
    }

    /// Sends the open batches.
    ///
    /// # Errors
    /// [`Cause::WindowFull`] while a ring is full: make progress and flush again.
    #[inline]
    pub(crate) fn flush(&mut self) -> Result<(), CallError> {
        let mut result = Ok(());
        for at in 0..self.lanes.all().len() {
            let flushed = self.core.flush(self.lanes.all()[at]).map(|()| CallId { lane: 0, call: 0 });
            // A broken lane has already failed each of its calls.
            if let Err(SubmitError::Full) = flushed {
                result = Err(CallError::NotExecuted(Cause::WindowFull));
            }
        }
        result
    }

    /// As [`flush`](Client::flush), but waits for room for at most [`ClientConfig::timeout`].
    pub(crate) fn flush_waiting(&mut self) -> Result<(), CallError> {
        let mut until = None;
        loop {
            match self.flush() {
                Err(CallError::NotExecuted(Cause::WindowFull)) => {}
                done => return done,
            }
            let now = self.core.fabric.host().now();
            let timeout = self.timeout;
            let limit = if timeout == 0 { Nanos::MAX } else { now.saturating_add(timeout) };
            let until = *until.get_or_insert(limit);
            if now >= until {
                return Err(CallError::NotExecuted(Cause::DeadlineExceeded));
            }
            self.waiter.reset();
            self.poll_until(until, |core| core.has_done());
        }
    }

    /// As [`large_request`](Client::large_request), with the plan of `function`.
    pub(crate) fn large_request_for(
        &mut self,
        worker: usize,
        function: u16,
        length: usize,
    ) -> Result<LargeRequest<F>, CallError> {
        self.ensure_connected_for(worker, function, self.usual_time())?;
        let Some(index) = self.lanes.of(worker, function) else {
            return Err(CallError::NotExecuted(Cause::Disconnected));
        };
        let mut got = None;
        let reserved = self.core.with_lane(index, |cx, lane| {
            got = Some(lane.request_buffer(cx.fabric, length)?);
            Ok(0)
        });
        self.map_submit_error(reserved)?;
        match got {
            Some(buffer) => Ok(LargeRequest { buffer, lane: index }),
            None => Err(CallError::NotExecuted(Cause::OutOfMemory)),
        }
    }

    pub(super) fn try_submit_large(
        &mut self,
        function: u16,
        request: LargeRequest<F>,
        time: Time,
    ) -> Result<CallId, CallError> {
        let submitted = self.core.with_lane(request.lane, |cx, lane| {
            lane.submit_buffer(cx, function, request.buffer, time.nanos).map_err(|(error, _)| error)
        });
        self.map_submit_error(submitted)
    }

    pub(super) fn begin_filling(
        &mut self,
        (worker, function): (usize, u16),
        length: usize,
        time: Time,
    ) -> Result<FillingRequest<'_, F>, CallError> {
        self.ensure_connected_for(worker, function, time)?;
        let Some(index) = self.lanes.of(worker, function) else {
            return Err(CallError::NotExecuted(Cause::Disconnected));
        };
        let mut got = None;
        let begun = self.core.with_lane(index, |cx, lane| {
            got = Some(lane.begin_filling(cx.fabric, function, length, time.nanos)?);
            Ok(0)
        });
        self.map_submit_error(begun)?;
        match got {
            Some(begun) => Ok(FillingRequest::new(&mut self.core, index, begun)),
            None => Err(CallError::NotExecuted(Cause::OutOfMemory)),
        }
    }

    /// Allocates memory for messages to `worker`, as [`large_request_for`](Client::large_request_for).
    pub(crate) fn message_memory(
        &mut self,
        worker: usize,
        function: u16,
        length: usize,
    ) -> Result<Buffer<F::Memory>, CallError> {
        self.large_request_for(worker, function, length).map(|request| request.buffer)
    }

    /// Submits the first `length` bytes of a buffer, and waits for room. A large payload leaves with the
    /// buffer's memory ([`ClientLane::submit_message`](super::lane::ClientLane::submit_message)).
    pub(crate) fn submit_message(
        &mut self,
        worker: usize,
        function: u16,
        (buffer, length): (&mut Buffer<F::Memory>, usize),
        time: Option<Duration>,
    ) -> Result<CallId, CallError> {
        let time = time.map_or_else(|| self.usual_time(), Time::own);
        let submit = |client: &mut Self, time: Time| match client.lanes.of(worker, function) {
            Some(lane) => client.core.with_lane(lane, |cx, lane| {
                lane.submit_message(cx, function, (&mut *buffer, length), time.nanos)
            }),
            None => Err(SubmitError::Broken),
        };
        self.submit_waiting((worker, function), time, submit)
    }

    /// Returns the current tuning of each lane whose results are fetched or written back; empty for other
    /// plans.
    pub(crate) fn tuning(&self) -> Vec<Tuning> {
        self.core.tuning(self.lanes.all())
    }

    /// Returns the current largest batch, in calls, of each lane; empty without [`ClientConfig::batching`].
    pub(crate) fn batch_calls(&self) -> impl Iterator<Item = u16> + '_ {
        self.core.batch_calls(self.lanes.all())
    }

    /// Processes everything that has arrived, and returns the number of messages and completions. Does not
    /// block.
    #[inline]
    pub(crate) fn progress(&mut self) -> usize {
        self.core.progress()
    }

    /// Processes everything that has arrived, and passes each finished call with its outcome to `each`.
    /// Returns the number of calls. Does not block.
    ///
    /// The call is over afterwards, and its id is invalid. Calls come in no particular order: a failure may
    /// follow results that arrived later. With many calls in flight, this costs less than
    /// [`progress`](Client::progress), [`outcome`](Client::outcome) and [`forget`](Client::forget), because
    /// each result is passed straight from the receive buffer.
    #[inline]
    pub(crate) fn collect(&mut self, mut each: impl FnMut(CallId, Result<&[u8], CallError>)) -> usize {
        let hand = Hand { each: &mut each, count: 0, last: None };
        let count = Handing { core: &mut self.core, hand, is_done: false }.hand_out();
        if self.core.has_done() {
            return count + self.collect_kept(&mut each);
        }
        count
    }

    /// Passes on the calls whose outcome lies in their slot.
    #[inline(never)]
    fn collect_kept(&mut self, each: &mut impl FnMut(CallId, Result<&[u8], CallError>)) -> usize {
        let mut count = 0;
        while let Some(id) = self.core.next_done() {
            // The call is over, also if the closure panics.
            let kept = Response { core: &mut self.core, id };
            each(id, kept.core.outcome(id));
            count += 1;
        }
        count
    }

    /// Returns the next finished call, in no particular order between workers, or `None`.
    #[inline]
    pub(crate) fn next_done(&mut self) -> Option<CallId> {
        self.core.next_done()
    }

    /// Returns whether a call has its outcome.
    #[inline]
    pub(crate) fn is_done(&mut self, id: CallId) -> bool {
        self.core.is_done(id)
    }

    /// Returns the outcome of a finished call. It stays available until [`forget`](Client::forget).
    #[inline]
    pub(crate) fn outcome(&self, id: CallId) -> Result<&[u8], CallError> {
        self.core.outcome(id)
    }

    /// Releases a call. The slot of a finished call is free at once. An unfinished call is cancelled on the
    /// client, although the server may still execute it, and its slot is free after the late answer.
    #[inline]
    pub(crate) fn forget(&mut self, id: CallId) {
        self.core.forget(id);
    }

    /// Waits until a call has its outcome. A call that was `just_sent` cannot be answered yet, so the first
    /// poll is left to the wait itself.
    #[inline]
    pub(crate) fn wait_until_done(&mut self, id: CallId, just_sent: bool) {
        self.waiter.reset();
        let is_so = |core: &mut Core<F>| core.is_done(id);
        if just_sent {
            self.idle(Nanos::MAX, is_so);
        }
        while !self.core.is_done(id) {
            self.poll_until(Nanos::MAX, is_so);
        }
    }

    /// Returns the result of a finished call, or releases the call and returns its error.
    #[inline]
    pub(crate) fn response(&mut self, id: CallId) -> Result<Response<'_, F>, CallError> {
        // The usual result is looked up once, by its reader.
        let is_usual = self.core.lane(id.lane).is_some_and(|lane| lane.slots.has_plain_result(id.call));
        if !is_usual && let Err(error) = self.core.outcome(id).map(drop) {
            self.core.forget(id);
            return Err(error);
        }
        Ok(Response { core: &mut self.core, id })
    }

    /// Waits until some call is finished, and returns its id; `None` if no call is in flight.
    #[inline]
    pub(crate) fn wait_any(&mut self) -> Option<CallId> {
        // A new wait starts with a clock check: calls sent since the last one have deadlines too.
        self.waiter.reset();
        loop {
            if let Some(id) = self.core.next_done() {
                return Some(id);
            }
            if self.core.in_flight() == 0 {
                return None;
            }
            // The lane that this waits for may break between two polls.
            self.poll_until(Nanos::MAX, |core| core.has_done() || core.in_flight() == 0);
        }
    }

    /// Makes progress. If there was none, waits a moment as the plan says, until `until` at most, unless
    /// `is_so` holds.
    #[inline]
    fn poll_until(&mut self, until: Nanos, is_so: impl Fn(&mut Core<F>) -> bool) {
        if self.core.progress() > 0 {
            self.waiter.reset();
            return;
        }
        self.idle(until, is_so);
    }

    fn idle(&mut self, limit: Nanos, is_so: impl Fn(&mut Core<F>) -> bool) {
        let due = self.waiter.clock_is_due() || self.held_back;
        // Reading the clock is a noticeable part of a call's cost, so it is read only before a wait.
        let now = due.then(|| self.before_waiting());
        let core = &self.core;
        let host = core.fabric.host();
        let (mut mode, until) =
            self.waiter.next(core.sleep(), || core.domain.crowding(), || now.unwrap_or_else(|| host.now()));
        if mode.sleeps() && self.core.is_fetching() {
            mode = WaitMode::Busy;
        }
        // If the spin ends here, a batch that found no room before may find some now.
        if mode.sleeps() && now.is_none() {
            self.before_waiting();
        }
        let armed = self.core.domain.arm(mode);
        if mode.sleeps() && std::mem::take(&mut self.unchecked) {
            self.core.check_soon();
        }
        if self.core.progress() > 0 || is_so(&mut self.core) {
            self.core.domain.disarm(armed);
            self.waiter.reset();
            return;
        }
        if self.core.has_read_to_post() {
            return self.core.domain.disarm(armed);
        }
        self.core.fabric.host().checkpoint(Site::BeforeSleep);
        let (fetch, others) =
            (self.core.fetch_due(), until.min(self.earliest).min(limit).min(self.core.batch_due()));
        let wake = self.core.domain.wait(armed, fetch.min(others));
        self.core.warm();
        // The wake-up most likely means an answer: only poll, without the infrequent checks. The news of a broken lane may
        // have come with it: the checks are made before the next sleep, which nothing else would end.
        self.unchecked |= mode.sleeps();
        if (mode.sleeps() || wake != Wake::Arrived) && self.core.progress() == 0 && others <= fetch {
            self.unchecked = false;
            self.core.progress_after_sleep();
        }
    }

    /// Ends calls past their deadline and sends the open batches, because a caller may wait for one of their
    /// calls. Returns the current time.
    fn before_waiting(&mut self) -> Nanos {
        let now = self.core.fabric.host().now();
        self.earliest = self.core.expire(now);
        self.held_back = self.core.flush_all();
        now
    }

    pub(crate) fn take_turn(&mut self) -> usize {
        self.next_worker = if self.next_worker + 1 < self.lanes.workers() { self.next_worker + 1 } else { 0 };
        self.next_worker
    }

    /// Submits a call; reconnects first if the connection is lost.
    #[inline(never)]
    pub(super) fn submit(
        &mut self,
        to: (usize, u16),
        payload: &[u8],
        time: Time,
    ) -> Result<CallId, CallError> {
        if time.is_over() {
            return Err(CallError::NotExecuted(Cause::DeadlineExceeded));
        }
        match self.try_submit(to, payload, time) {
            Ok(id) => Ok(id),
            Err(error) => self.retry_after_reconnect(to, time, error, |client, time| {
                client.try_submit_apart(to, payload, time)
            }),
        }
    }

    #[inline(always)]
    pub(crate) fn try_submit(
        &mut self,
        (worker, function): (usize, u16),
        payload: &[u8],
        time: Time,
    ) -> Result<CallId, SubmitError> {
        let Some(index) = self.lanes.of(worker, function) else { return Err(SubmitError::Broken) };
        let (mut cx, lane) = self.core.usable_lane(index)?;
        let submitted = lane.submit(&mut cx, function, payload, time.nanos);
        self.core.used_lane(index, submitted)
    }

    /// As [`try_submit`](Client::try_submit), for attempts that are not the first.
    #[inline(never)]
    fn try_submit_apart(
        &mut self,
        to: (usize, u16),
        payload: &[u8],
        time: Time,
    ) -> Result<CallId, SubmitError> {
        self.try_submit(to, payload, time)
    }

    /// Submits, and waits for room for at most the call's time.
    #[inline]
    pub(super) fn submit_waiting(
        &mut self,
        to: (usize, u16),
        time: Time,
        mut submit: impl FnMut(&mut Self, Time) -> Result<CallId, SubmitError>,
    ) -> Result<CallId, CallError> {
        if time.is_over() {
            return Err(CallError::NotExecuted(Cause::DeadlineExceeded));
        }
        match submit(self, time) {
            Ok(id) => Ok(id),
            Err(SubmitError::Full | SubmitError::Call(CallError::NotExecuted(Cause::WindowFull))) => {
                self.submit_blocking(to, time, submit)
            }
            Err(error) => self.retry_after_reconnect(to, time, error, submit),
        }
    }

    #[cold]
    fn submit_blocking(
        &mut self,
        (worker, function): (usize, u16),
        time: Time,
        mut submit: impl FnMut(&mut Self, Time) -> Result<CallId, SubmitError>,
    ) -> Result<CallId, CallError> {
        let until = time.ends(self.core.fabric.host().now());
        loop {
            let lane = self.lanes.of(worker, function);
            self.poll_until(until, |core| lane.is_none_or(|lane| !core.is_usable(lane)));
            let left = time.left(until, self.core.fabric.host().now());
            if left.is_over() {
                return Err(CallError::NotExecuted(Cause::DeadlineExceeded));
            }
            match submit(self, left) {
                Err(SubmitError::Full) => {}
                Err(SubmitError::Call(CallError::NotExecuted(Cause::WindowFull)))
                    if self.core.in_flight() > 0 => {}
                Err(SubmitError::Broken) if !self.target.config.wait_for_ready.is_zero() => {
                    return self.retry_after_reconnect((worker, function), left, SubmitError::Broken, submit);
                }
                done => return self.map_submit_error(done),
            }
        }
    }

    #[inline]
    fn map_submit_error(&mut self, submitted: Result<CallId, SubmitError>) -> Result<CallId, CallError> {
        match submitted {
            Ok(id) => Ok(id),
            Err(SubmitError::Full) => Err(CallError::NotExecuted(Cause::WindowFull)),
            Err(SubmitError::Call(error)) => Err(error),
            Err(SubmitError::Broken) => Err(CallError::NotExecuted(Cause::Disconnected)),
        }
    }
}

impl<F: Fabric> Drop for Client<F> {
    fn drop(&mut self) {
        self.core.close();
    }
}
