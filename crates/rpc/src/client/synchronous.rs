//! The client of one thread. It drives the engine itself, so a busy call takes no lock and involves no other
//! thread.

mod ready;

use super::config::ClientConfig;
use super::core::{CallId, Core};
use super::filling::FillingRequest;
use super::lane::SubmitError;
use super::lanes::Lanes;
use super::running::{RunningPlan, numbered};
use super::slots::Sink;
use super::within::{Time, Within};
use crate::connect::backoff::Backoff;
use crate::connect::establish::{greet, negotiate};
use crate::error::{CallError, Cause, ConnectError};
use crate::path::hybrid::Tuning;
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
pub struct Client<F: Fabric> {
    core: Core<F>,
    lanes: Lanes,
    waiter: Waiter,
    earliest: Nanos,
    /// A batch found no room. Any wake-up may mean that there is room now.
    held_back: bool,
    /// [`ClientConfig::timeout`]; 0 for none.
    timeout: Nanos,
    next_worker: usize,
    /// Broken lanes whose results were not collected yet.
    old: Vec<u16>,
    session: u64,
    target: Box<Target>,
}

/// The server that a client is connected to, and the settings.
#[derive(Debug)]
struct Target {
    address: Address,
    config: ClientConfig,
    backoff: Backoff,
    /// The tuners shared by all connections, including reconnected ones and those of other threads.
    tuners: Tuners,
}

/// A result, borrowed from the client. Dropping it frees the call's slot.
#[derive(Debug)]
pub struct Response<'a, F: Fabric> {
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
}

impl<G: FnMut(CallId, Result<&[u8], CallError>)> Sink for Hand<G> {
    #[inline]
    fn offer(&mut self, lane: u16, call: u32, payload: &[u8]) -> bool {
        (self.each)(CallId { lane, call }, Ok(payload));
        self.count += 1;
        true
    }
}

/// A large request that is built in the memory from which the server will READ it: no copy on the client.
#[derive(Debug)]
pub struct LargeRequest<F: Fabric> {
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
    pub fn connect(fabric: &F, address: &Address, config: ClientConfig) -> Result<Self, ConnectError> {
        config.check()?;
        let config = config.settled(fabric.capabilities());
        let tuners = config.tuners(fabric);
        Self::connect_with(fabric, address, config, tuners)
    }

    /// As [`connect`](Client::connect), with checked settings and tuners that other clients may share.
    fn connect_with(
        fabric: &F,
        address: &Address,
        config: ClientConfig,
        tuners: Tuners,
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
            timeout: config.call_nanos(),
            session: 0,
            next_worker: 0,
            target: Box::new(Target {
                address: address.clone(),
                backoff: Backoff::new(config.backoff),
                config,
                tuners,
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
    pub fn another(&self) -> Result<Self, ConnectError> {
        let (config, tuners) = (self.target.config.clone(), self.target.tuners.clone());
        Client::connect_with(&self.core.fabric, &self.target.address, config, tuners)
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
        Ok(())
    }

    /// Returns the number of workers that this client has lanes to; 0 without a connection.
    pub fn workers(&self) -> usize {
        self.lanes.workers()
    }

    /// Returns the session id of the current connection, as in the server's logs.
    pub fn session(&self) -> u64 {
        self.session
    }

    /// Returns how the calls of a function run: the protocol, how both sides wait, and the reasons. The client
    /// does not know where the function runs.
    pub fn plan_of(&self, function: u16) -> RunningPlan {
        self.plan_of_as(function, &numbered)
    }

    /// As [`plan_of`](Client::plan_of), with names for functions, for layers that have them.
    pub fn plan_of_as(&self, function: u16, name: &dyn Fn(u16) -> String) -> RunningPlan {
        let Target { config, tuners, .. } = &*self.target;
        config.running(function, self.core.fabric.capabilities().name, tuners, name, false)
    }

    /// Returns the settings.
    pub fn config(&self) -> &ClientConfig {
        &self.target.config
    }

    /// Returns the fabric's capabilities.
    pub fn capabilities(&self) -> &Capabilities {
        self.core.fabric.capabilities()
    }

    /// Returns how many more calls `worker` accepts now, for functions without a plan of their own.
    pub fn room(&mut self, worker: usize) -> usize {
        let lane = self.lanes.of(worker, u16::MAX);
        lane.and_then(|lane| self.core.lane(lane)).map_or(0, |lane| lane.slots.room())
    }

    /// Returns the number of calls sent and not answered.
    pub fn in_flight(&self) -> usize {
        self.core.in_flight()
    }

    /// Returns a view of this client whose next call has a time of its own, in place of
    /// [`ClientConfig::timeout`].
    ///
    /// The call ends with [`Cause::DeadlineExceeded`] when the time has passed, and the server does not begin
    /// it later. The time includes the wait for room, and of a call in a batch the wait for the batch. With a
    /// time of zero nothing is sent. A call that has to reconnect first may take 100 ms longer.
    ///
    /// ```
    /// # use dunlin_rpc::{CallError, Client};
    /// # use std::time::Duration;
    /// # fn example<F: dunlin_fabric::Fabric>(client: &mut Client<F>) -> Result<(), CallError> {
    /// let answer = client.within(Duration::from_millis(5)).call(1, b"question")?;
    /// # Ok(drop(answer))
    /// # }
    /// ```
    #[inline]
    pub fn within(&mut self, time: Duration) -> Within<'_, F> {
        Within { client: self, time: Time::own(time) }
    }

    /// As [`within`](Client::within), or with the time of the settings otherwise.
    #[inline]
    pub fn within_or_default(&mut self, time: Option<Duration>) -> Within<'_, F> {
        match time {
            Some(time) => self.within(time),
            None => self.usually(),
        }
    }

    /// Returns a view whose call has the default time.
    #[inline]
    fn usually(&mut self) -> Within<'_, F> {
        let time = self.usual_time();
        Within { client: self, time }
    }

    /// Returns the default time of a call.
    #[inline]
    fn usual_time(&self) -> Time {
        Time { nanos: self.timeout, is_own: false }
    }

    /// Makes a call and waits for the result. Workers are chosen round-robin.
    #[inline]
    pub fn call(&mut self, function: u16, payload: &[u8]) -> Result<Response<'_, F>, CallError> {
        self.usually().call(function, payload)
    }

    /// As [`call`](Client::call), on the given worker: the one that owns the call's data.
    #[inline]
    pub fn call_on(
        &mut self,
        worker: usize,
        function: u16,
        payload: &[u8],
    ) -> Result<Response<'_, F>, CallError> {
        self.usually().call_on(worker, function, payload)
    }

    /// Submits a call as a message of its own, without waiting for room or for the result.
    ///
    /// # Errors
    /// Always "not executed". After [`Cause::WindowFull`], collect results and submit again.
    #[inline]
    pub fn submit_on(&mut self, worker: usize, function: u16, payload: &[u8]) -> Result<CallId, CallError> {
        self.usually().submit_on(worker, function, payload)
    }

    /// As [`submit_on`](Client::submit_on), but waits for room for at most [`ClientConfig::timeout`]. For
    /// callers without uncollected results.
    #[inline]
    pub fn submit_waiting_on(
        &mut self,
        worker: usize,
        function: u16,
        payload: &[u8],
    ) -> Result<CallId, CallError> {
        self.usually().submit_waiting_on(worker, function, payload)
    }

    /// Adds a call to the open batch of a worker, which is sent when it is full or by
    /// [`flush`](Client::flush).
    #[inline]
    pub fn push_on(&mut self, worker: usize, function: u16, payload: &[u8]) -> Result<CallId, CallError> {
        self.usually().push_on(worker, function, payload)
    }

    /// As [`push_on`](Client::push_on), but waits for room for at most [`ClientConfig::timeout`]. Fails with
    /// [`Cause::WindowFull`] if uncollected results occupy the whole window, since waiting would make no
    /// room.
    #[inline]
    pub fn push_waiting_on(
        &mut self,
        worker: usize,
        function: u16,
        payload: &[u8],
    ) -> Result<CallId, CallError> {
        self.usually().push_waiting_on(worker, function, payload)
    }

    #[inline]
    pub(super) fn try_push(
        &mut self,
        (worker, function): (usize, u16),
        payload: &[u8],
        time: Time,
    ) -> Result<CallId, SubmitError> {
        match self.lanes.of(worker, function) {
            Some(lane) => self
                .core
                .with_lane(lane, |fabric, domain, lane| lane.push(fabric, domain, function, payload, time)),
            None => Err(SubmitError::Broken),
        }
    }

    /// Sends the open batches.
    ///
    /// # Errors
    /// [`Cause::WindowFull`] while a ring is full: make progress and flush again.
    #[inline]
    pub fn flush(&mut self) -> Result<(), CallError> {
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
    pub fn flush_waiting(&mut self) -> Result<(), CallError> {
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
            self.step(until, |core| core.has_done());
        }
    }

    /// Allocates the buffer of a request of `length` bytes to `worker`, to be filled and passed to
    /// [`submit_large`](Client::submit_large). Its content is undefined.
    ///
    /// Worthwhile above [`Plan::rendezvous_above`](crate::Plan::rendezvous_above) bytes. The request uses the
    /// client's default plan for any function; see [`large_request_for`](Client::large_request_for).
    pub fn large_request(&mut self, worker: usize, length: usize) -> Result<LargeRequest<F>, CallError> {
        self.large_request_for(worker, u16::MAX, length)
    }

    /// As [`large_request`](Client::large_request), with the plan of `function`.
    pub fn large_request_for(
        &mut self,
        worker: usize,
        function: u16,
        length: usize,
    ) -> Result<LargeRequest<F>, CallError> {
        self.ensure(worker, function, self.usual_time())?;
        let Some(index) = self.lanes.of(worker, function) else {
            return Err(CallError::NotExecuted(Cause::Disconnected));
        };
        let mut got = None;
        let reserved = self.core.with_lane(index, |fabric, _, lane| {
            got = Some(lane.request_buffer(fabric, length)?);
            Ok(0)
        });
        self.settle(reserved)?;
        match got {
            Some(buffer) => Ok(LargeRequest { buffer, lane: index }),
            None => Err(CallError::NotExecuted(Cause::OutOfMemory)),
        }
    }

    /// Submits a call with the payload of a large request.
    pub fn submit_large(&mut self, function: u16, request: LargeRequest<F>) -> Result<CallId, CallError> {
        self.usually().submit_large(function, request)
    }

    pub(super) fn try_submit_large(
        &mut self,
        function: u16,
        request: LargeRequest<F>,
        time: Time,
    ) -> Result<CallId, CallError> {
        let submitted = self.core.with_lane(request.lane, |fabric, domain, lane| {
            lane.submit_buffer(fabric, domain, function, request.buffer, time.nanos)
                .map_err(|(error, _)| error)
        });
        self.settle(submitted)
    }

    /// Allocates a request of `length` bytes to `worker` that may be sent while it is being filled, if the
    /// plan of `function` sends large payloads in pieces.
    pub fn filling_request_for(
        &mut self,
        worker: usize,
        function: u16,
        length: usize,
    ) -> Result<FillingRequest<'_, F>, CallError> {
        self.usually().filling_request_for(worker, function, length)
    }

    pub(super) fn begin_filling(
        &mut self,
        (worker, function): (usize, u16),
        length: usize,
        time: Time,
    ) -> Result<FillingRequest<'_, F>, CallError> {
        self.ensure(worker, function, time)?;
        let Some(index) = self.lanes.of(worker, function) else {
            return Err(CallError::NotExecuted(Cause::Disconnected));
        };
        let mut got = None;
        let begun = self.core.with_lane(index, |fabric, _, lane| {
            got = Some(lane.begin_filling(fabric, function, length, time.nanos)?);
            Ok(0)
        });
        self.settle(begun)?;
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
            Some(lane) => client.core.with_lane(lane, |fabric, domain, lane| {
                lane.submit_message(fabric, domain, function, (&mut *buffer, length), time.nanos)
            }),
            None => Err(SubmitError::Broken),
        };
        self.submit_waiting((worker, function), time, submit)
    }

    /// Returns the current tuning of each lane whose results are fetched or written back; empty for other
    /// plans.
    pub fn tuning(&self) -> Vec<Tuning> {
        self.core.tuning(self.lanes.all())
    }

    /// Returns the current largest batch, in calls, of each lane; empty without [`ClientConfig::batching`].
    pub fn batch_calls(&self) -> impl Iterator<Item = u16> + '_ {
        self.core.batch_calls(self.lanes.all())
    }

    /// Processes everything that has arrived, and returns the number of messages and completions. Does not
    /// block.
    #[inline]
    pub fn progress(&mut self) -> usize {
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
    pub fn collect(&mut self, mut each: impl FnMut(CallId, Result<&[u8], CallError>)) -> usize {
        let kept = self.collect_kept(&mut each);
        let mut hand = Hand { each, count: 0 };
        self.core.progress_into(&mut hand);
        let Hand { mut each, count } = hand;
        kept + count + self.collect_kept(&mut each)
    }

    /// Passes on the calls whose outcome lies in their slot.
    #[inline]
    fn collect_kept(&mut self, each: &mut impl FnMut(CallId, Result<&[u8], CallError>)) -> usize {
        let mut count = 0;
        while let Some(id) = self.core.next_done() {
            each(id, self.core.outcome(id));
            self.core.forget(id);
            count += 1;
        }
        count
    }

    /// Returns the next finished call, in no particular order between workers, or `None`.
    #[inline]
    pub fn next_done(&mut self) -> Option<CallId> {
        self.core.next_done()
    }

    /// Returns whether a call has its outcome.
    #[inline]
    pub fn is_done(&mut self, id: CallId) -> bool {
        self.core.is_done(id)
    }

    /// Returns the outcome of a finished call. It stays available until [`forget`](Client::forget).
    #[inline]
    pub fn outcome(&self, id: CallId) -> Result<&[u8], CallError> {
        self.core.outcome(id)
    }

    /// Releases a call. The slot of a finished call is free at once. An unfinished call is cancelled on the
    /// client, although the server may still execute it, and its slot is free after the late answer.
    #[inline]
    pub fn forget(&mut self, id: CallId) {
        self.core.forget(id);
    }

    /// Waits until a call has its outcome. A call that was `just_sent` cannot be answered yet, so the first
    /// poll is left to the wait itself.
    #[inline]
    pub(crate) fn wait_until_done(&mut self, id: CallId, mut just_sent: bool) {
        self.waiter.reset();
        let is_so = |core: &mut Core<F>| core.is_done(id);
        while !self.core.is_done(id) {
            match std::mem::take(&mut just_sent) {
                true => self.idle(Nanos::MAX, is_so),
                false => self.step(Nanos::MAX, is_so),
            }
        }
    }

    /// Waits for a call and returns its result.
    #[inline]
    pub fn wait(&mut self, id: CallId) -> Result<Response<'_, F>, CallError> {
        self.wait_until_done(id, false);
        self.response(id)
    }

    /// Returns the result of a finished call, or releases the call and returns its error.
    #[inline]
    pub(super) fn response(&mut self, id: CallId) -> Result<Response<'_, F>, CallError> {
        match self.core.outcome(id) {
            Ok(_) => Ok(Response { core: &mut self.core, id }),
            Err(error) => {
                self.core.forget(id);
                Err(error)
            }
        }
    }

    /// Waits until some call is finished, and returns its id; `None` if no call is in flight.
    #[inline]
    pub fn wait_any(&mut self) -> Option<CallId> {
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
            self.step(Nanos::MAX, |core| core.has_done() || core.in_flight() == 0);
        }
    }

    /// Makes progress. If there was none, waits a moment as the plan says, until `until` at most, unless
    /// `is_so` holds.
    #[inline]
    fn step(&mut self, until: Nanos, is_so: impl Fn(&mut Core<F>) -> bool) {
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
        if self.core.progress() > 0 || is_so(&mut self.core) {
            self.core.domain.disarm(armed);
            self.waiter.reset();
            return;
        }
        self.core.fabric.host().checkpoint(Site::BeforeSleep);
        let (fetch, others) =
            (self.core.fetch_due(), until.min(self.earliest).min(limit).min(self.core.batch_due()));
        let wake = self.core.domain.wait(armed, fetch.min(others));
        self.core.warm();
        // The wake-up most likely means an answer: only poll, without the infrequent checks.
        if (mode.sleeps() || wake != Wake::Arrived) && self.core.progress() == 0 && others <= fetch {
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

    pub(super) fn take_turn(&mut self) -> usize {
        self.next_worker = if self.next_worker + 1 < self.lanes.workers() { self.next_worker + 1 } else { 0 };
        self.next_worker
    }

    #[inline]
    pub(super) fn try_submit(
        &mut self,
        (worker, function): (usize, u16),
        payload: &[u8],
        time: Time,
    ) -> Result<CallId, SubmitError> {
        match self.lanes.of(worker, function) {
            Some(lane) => self.core.with_lane(lane, |fabric, domain, lane| {
                lane.submit(fabric, domain, function, payload, time.nanos)
            }),
            None => Err(SubmitError::Broken),
        }
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
                self.submit_slowly(to, time, submit)
            }
            Err(error) => self.once_more(to, time, error, submit),
        }
    }

    #[cold]
    fn submit_slowly(
        &mut self,
        (worker, function): (usize, u16),
        time: Time,
        mut submit: impl FnMut(&mut Self, Time) -> Result<CallId, SubmitError>,
    ) -> Result<CallId, CallError> {
        let until = time.ends(self.core.fabric.host().now());
        loop {
            let lane = self.lanes.of(worker, function);
            self.step(until, |core| lane.is_none_or(|lane| !core.is_usable(lane)));
            let left = time.left(until, self.core.fabric.host().now());
            if left.is_over() {
                return Err(CallError::NotExecuted(Cause::DeadlineExceeded));
            }
            match submit(self, left) {
                Err(SubmitError::Full) => {}
                Err(SubmitError::Call(CallError::NotExecuted(Cause::WindowFull)))
                    if self.core.in_flight() > 0 => {}
                Err(SubmitError::Broken) if !self.target.config.wait_for_ready.is_zero() => {
                    return self.once_more((worker, function), left, SubmitError::Broken, submit);
                }
                done => return self.settle(done),
            }
        }
    }

    #[inline]
    fn settle(&mut self, submitted: Result<CallId, SubmitError>) -> Result<CallId, CallError> {
        match submitted {
            Ok(id) => Ok(id),
            Err(SubmitError::Full) => Err(CallError::NotExecuted(Cause::WindowFull)),
            Err(SubmitError::Call(error)) => Err(error),
            Err(SubmitError::Broken) => Err(CallError::NotExecuted(Cause::Disconnected)),
        }
    }

    /// Closes the connection. Calls in flight fail.
    pub fn close(mut self) {
        self.core.close();
    }
}

impl<F: Fabric> Drop for Client<F> {
    fn drop(&mut self) {
        self.core.close();
    }
}
