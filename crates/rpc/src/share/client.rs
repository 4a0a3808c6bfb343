//! The client of one thread, under any policy.

use super::calls::Calls;
use super::{Dedicated, Policy, each};
use crate::client::filling::FillingRequest as OwnFilling;
use crate::client::synchronous::{LargeRequest as OwnLarge, Response as OwnResponse};
use crate::client::within::Time;
use crate::client::{CallId, ClientConfig, RunningPlan};
use crate::error::{CallError, Cause, ConnectError};
use crate::path::half::hybrid::Tuning;
use crate::path::large::PayloadWriter;
use crate::plan::ServerConnections;
use dunlin_fabric::{Address, Buffer, Capabilities, Fabric};
use std::ops::{Deref, DerefMut};
use std::time::Duration;

/// A client for one thread at a time: `Send`, but not shared. [`another`](Client::another) makes one for
/// another thread: with a connection of its own, or at the same connection, as
/// [`Plan::sharing`](crate::Plan::sharing) says.
///
/// A call that finds its connection lost reconnects first, if the back-off allows it. That blocks for at most
/// [`ClientConfig::connect_timeout`]. With [`ClientConfig::wait_for_ready`] the call waits for the connection.
#[derive(Debug)]
pub struct Client<F: Fabric> {
    pub(super) policy: Policy<F>,
    /// Reused for operations on memory.
    pub(super) memory_payload: Vec<u8>,
}

/// A result, borrowed from the client. Dropping it frees the call's slot.
#[derive(Debug)]
pub struct Response<'a, F: Fabric>(Holder<'a, F>);

#[derive(Debug)]
enum Holder<'a, F: Fabric> {
    Own(OwnResponse<'a, F>),
    Shared(Ended<'a>),
}

/// A call that has ended, which is over when this is dropped.
#[derive(Debug)]
struct Ended<'a> {
    calls: &'a mut Calls,
    id: CallId,
}

impl Ended<'_> {
    fn outcome(&self) -> Result<&[u8], CallError> {
        self.calls.outcome(self.id)
    }
}

impl Drop for Ended<'_> {
    #[inline]
    fn drop(&mut self) {
        self.calls.forget(self.id);
    }
}

impl<F: Fabric> Deref for Response<'_, F> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match &self.0 {
            Holder::Own(response) => response,
            // A response exists only for a call with a result, and the borrowed table cannot change.
            Holder::Shared(ended) => ended.outcome().unwrap_or_default(),
        }
    }
}

fn shared_response<F: Fabric>(calls: &mut Calls, id: CallId) -> Result<Response<'_, F>, CallError> {
    let ended = Ended { calls, id };
    ended.outcome()?;
    Ok(Response(Holder::Shared(ended)))
}

/// A large request that is built in the memory from which the server will READ it: no copy on the client. On a
/// shared connection it is copied once, by the thread that leads.
#[derive(Debug)]
pub struct LargeRequest<F: Fabric>(Large<F>);

#[derive(Debug)]
enum Large<F: Fabric> {
    Own(OwnLarge<F>),
    Shared { bytes: Vec<u8>, worker: usize },
}

impl<F: Fabric> Deref for LargeRequest<F> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Large::Own(request) => request,
            Large::Shared { bytes, .. } => bytes,
        }
    }
}

impl<F: Fabric> DerefMut for LargeRequest<F> {
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.0 {
            Large::Own(request) => request,
            Large::Shared { bytes, .. } => bytes,
        }
    }
}

/// A large request that is being filled, and may be sent in the meantime. If it is dropped before
/// [`submit`](FillingRequest::submit), or if that fails, either no call was made or the server is told to
/// discard it. On a shared connection it is sent when it is complete.
#[derive(Debug)]
pub struct FillingRequest<'a, F: Fabric>(Filled<'a, F>);

#[derive(Debug)]
enum Filled<'a, F: Fabric> {
    Own(OwnFilling<'a, F>),
    Shared { bytes: Vec<u8>, sink: Unsent, to: (usize, u16), time: Time, client: &'a mut Client<F> },
}

/// The sink of a request that is sent when it is complete.
#[derive(Debug)]
struct Unsent;

impl PayloadWriter for Unsent {
    fn filled(&mut self, _: usize) {}

    fn copy(&self, to: &mut [u8], from: &[u8]) {
        to.copy_from_slice(&from[..to.len()]);
    }
}

impl<F: Fabric> FillingRequest<'_, F> {
    /// Returns the buffer to fill, whose content is undefined, and the sink to which the caller reports its
    /// progress.
    pub fn parts(&mut self) -> (&mut [u8], &mut dyn PayloadWriter) {
        match &mut self.0 {
            Filled::Own(request) => request.parts(),
            Filled::Shared { bytes, sink, .. } => (bytes, sink),
        }
    }

    /// Completes the request: sends the call, or the last progress report if it was already announced.
    ///
    /// # Errors
    /// Always "not executed".
    pub fn submit(self) -> Result<CallId, CallError> {
        match self.0 {
            Filled::Own(request) => request.submit(),
            Filled::Shared { bytes, to: (worker, function), time, client, .. } => {
                Within { client, time }.submit_on(worker, function, &bytes)
            }
        }
    }
}

impl<F: Fabric> Client<F> {
    /// Connects to all workers of a server. Blocks for at most [`ClientConfig::connect_timeout`]; with
    /// [`ClientConfig::lazy`] it does not connect yet and does not block.
    pub fn connect(fabric: &F, address: &Address, config: ClientConfig) -> Result<Self, ConnectError> {
        let client = Dedicated::connect(fabric, address, config)?;
        Ok(Client { policy: Policy::of(client)?, memory_payload: Vec::new() })
    }

    /// Makes a client for another thread, with the same settings: with a connection of its own under
    /// [`Sharing::Dedicated`](crate::Sharing::Dedicated), else a seat at the same connection. If results are
    /// fetched or written back, all of them share their tuning (see [`tuning`](Client::tuning)).
    ///
    /// # Errors
    /// A connection of its own cannot be made, or all 256 seats of the shared one are taken.
    pub fn another(&self) -> Result<Self, ConnectError> {
        Ok(Client { policy: self.policy.another()?, memory_payload: Vec::new() })
    }

    /// Returns the number of workers that this client has lanes to; 0 without a connection.
    #[inline]
    pub fn workers(&self) -> usize {
        each!(&self.policy, own => own.workers(), seat => seat.strand().workers())
    }

    /// Returns the session id of the current connection, as in the server's logs.
    pub fn session(&self) -> u64 {
        each!(&self.policy, own => own.session(), seat => seat.with_lead(|core| core.client.session()))
    }

    /// Returns the connections of the server, as it said when this client connected.
    pub fn server_connections(&self) -> ServerConnections {
        each!(
            &self.policy,
            own => own.server_connections(),
            seat => seat.with_lead(|core| core.client.server_connections())
        )
    }

    /// Returns how the calls of a function run: the protocol, how both sides wait, and the reasons. The client
    /// does not know where the function runs.
    pub fn plan_of(&self, function: u16) -> RunningPlan {
        each!(&self.policy, own => own.plan_of(function), seat => seat.with_lead(|core| core.client.plan_of(function)))
    }

    /// As [`plan_of`](Client::plan_of), with names for functions, for layers that have them.
    pub fn plan_of_as(&self, function: u16, name: &dyn Fn(u16) -> String) -> RunningPlan {
        each!(
            &self.policy,
            own => own.plan_of_as(function, name),
            seat => seat.with_lead(|core| core.client.plan_of_as(function, name))
        )
    }

    /// Returns the settings.
    #[inline]
    pub fn config(&self) -> &ClientConfig {
        each!(&self.policy, own => own.config(), seat => seat.config())
    }

    /// Returns the fabric's capabilities.
    #[inline]
    pub fn capabilities(&self) -> &Capabilities {
        each!(&self.policy, own => own.capabilities(), seat => seat.strand().fabric.capabilities())
    }

    /// Returns how many more calls `worker` accepts now, for functions without a plan of their own. On a shared
    /// connection it is the room of this client, for all workers together.
    #[inline]
    pub fn room(&mut self, worker: usize) -> usize {
        each!(&mut self.policy, own => own.room(worker), seat => seat.calls().room())
    }

    /// Returns the number of calls sent and not answered.
    #[inline]
    pub fn in_flight(&self) -> usize {
        each!(&self.policy, own => own.in_flight(), seat => seat.calls().in_flight())
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

    #[inline]
    fn usually(&mut self) -> Within<'_, F> {
        let time = each!(&self.policy, own => own.usual_time(), seat => seat.usual_time());
        Within { client: self, time }
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

    /// Makes the calls of a closure, whose requests leave together where they travel over UC or UD: in a list with one
    /// doorbell for each connection, when the closure ends or looks for answers. Other requests leave at once.
    pub fn post_together<T>(&mut self, calls: impl FnOnce(&mut Self) -> T) -> T {
        let holding = each!(&mut self.policy, own => Some(own.hold()), _seat => None);
        let done = calls(self);
        if let Some(holding) = holding {
            each!(&mut self.policy, own => own.release(holding), _seat => ());
        }
        done
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

    /// Sends the open batches.
    ///
    /// # Errors
    /// [`Cause::WindowFull`] while a ring is full: make progress and flush again.
    #[inline]
    pub fn flush(&mut self) -> Result<(), CallError> {
        each!(&mut self.policy, own => own.flush(), seat => {
            seat.progress();
            Ok(())
        })
    }

    /// As [`flush`](Client::flush), but waits for room for at most [`ClientConfig::timeout`].
    pub fn flush_waiting(&mut self) -> Result<(), CallError> {
        each!(&mut self.policy, own => own.flush_waiting(), seat => {
            seat.progress();
            Ok(())
        })
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
        Ok(LargeRequest(each!(
            &mut self.policy,
            own => Large::Own(own.large_request_for(worker, function, length)?),
            _seat => Large::Shared { bytes: vec![0; length], worker }
        )))
    }

    /// Submits a call with the payload of a large request.
    pub fn submit_large(&mut self, function: u16, request: LargeRequest<F>) -> Result<CallId, CallError> {
        self.usually().submit_large(function, request)
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

    /// Returns the current tuning of each lane whose results are fetched or written back; empty for other
    /// plans.
    pub fn tuning(&self) -> Vec<Tuning> {
        each!(&self.policy, own => own.tuning(), seat => seat.with_lead(|core| core.client.tuning()))
    }

    /// Returns the current largest batch, in calls, of each lane; empty without [`ClientConfig::batching`].
    pub fn batch_calls(&self) -> Vec<u16> {
        each!(
            &self.policy,
            own => own.batch_calls().collect(),
            seat => seat.with_lead(|core| core.client.batch_calls().collect())
        )
    }

    /// Processes everything that has arrived, and returns the number of messages and completions. Does not
    /// block.
    #[inline]
    pub fn progress(&mut self) -> usize {
        each!(&mut self.policy, own => own.progress(), seat => seat.progress())
    }

    /// Processes everything that has arrived, and passes each finished call with its outcome to `each`.
    /// Returns the number of calls. Does not block.
    ///
    /// The call is over afterwards, and its id is invalid. Calls come in no particular order: a failure may
    /// follow results that arrived later. With many calls in flight, this costs less than
    /// [`progress`](Client::progress), [`outcome`](Client::outcome) and [`forget`](Client::forget), because
    /// each result is passed straight from the receive buffer.
    ///
    /// If `each` panics, the call that it was given is over. On a connection of this client alone, the connection ends too,
    /// since the rest of the message is lost: other calls under way end with
    /// [`Cause::ConnectionLost`](crate::Cause::ConnectionLost).
    #[inline]
    pub fn collect(&mut self, mut each: impl FnMut(CallId, Result<&[u8], CallError>)) -> usize {
        each!(&mut self.policy, own => own.collect(each), seat => {
            seat.progress();
            let (calls, mut count) = (seat.calls_mut(), 0);
            while let Some(id) = calls.next_done() {
                // The call is over, also if the closure panics.
                each(id, Ended { calls, id }.outcome());
                count += 1;
            }
            count
        })
    }

    /// Returns the next finished call, in no particular order between workers, or `None`.
    #[inline]
    pub fn next_done(&mut self) -> Option<CallId> {
        each!(&mut self.policy, own => own.next_done(), seat => seat.calls_mut().next_done())
    }

    /// Returns whether a call has its outcome.
    #[inline]
    pub fn is_done(&mut self, id: CallId) -> bool {
        each!(&mut self.policy, own => own.is_done(id), seat => seat.calls().is_done(id))
    }

    /// Returns the outcome of a finished call. It stays available until [`forget`](Client::forget).
    #[inline]
    pub fn outcome(&self, id: CallId) -> Result<&[u8], CallError> {
        each!(&self.policy, own => own.outcome(id), seat => seat.calls().outcome(id))
    }

    /// Releases a call. The slot of a finished call is free at once. An unfinished call is cancelled on the
    /// client, although the server may still execute it, and its slot is free after the late answer.
    #[inline]
    pub fn forget(&mut self, id: CallId) {
        each!(&mut self.policy, own => own.forget(id), seat => seat.forget(id))
    }

    /// Waits until a call has its outcome. A call that was `just_sent` cannot be answered yet.
    #[inline]
    pub(crate) fn wait_until_done(&mut self, id: CallId, just_sent: bool) {
        each!(&mut self.policy, own => own.wait_until_done(id, just_sent), seat => seat.wait_until_done(id));
    }

    /// Waits for a call and returns its result.
    #[inline]
    pub fn wait(&mut self, id: CallId) -> Result<Response<'_, F>, CallError> {
        self.wait_until_done(id, false);
        self.response(id)
    }

    /// Returns the result of a finished call, or releases the call and returns its error.
    #[inline]
    fn response(&mut self, id: CallId) -> Result<Response<'_, F>, CallError> {
        each!(
            &mut self.policy,
            own => own.response(id).map(|response| Response(Holder::Own(response))),
            seat => shared_response(seat.calls_mut(), id)
        )
    }

    /// Waits until some call is finished, and returns its id; `None` if no call is in flight.
    #[inline]
    pub fn wait_any(&mut self) -> Option<CallId> {
        each!(&mut self.policy, own => own.wait_any(), seat => seat.wait_any())
    }

    /// Closes the client. Calls in flight fail. A shared connection closes with its last client.
    pub fn close(self) {
        drop(self);
    }

    /// Waits until the client is connected, for at most `at_most`, and connects with back-off meanwhile.
    /// Returns at once if it is connected. Blocks. The log (target `dunlin::client`) has the reason of the
    /// first failed attempt.
    ///
    /// # Errors
    /// [`Cause::Disconnected`]: there is no connection yet. Later calls connect as before.
    pub fn wait_ready(&mut self, at_most: Duration) -> Result<(), CallError> {
        each!(
            &mut self.policy,
            own => own.wait_ready(at_most),
            seat => seat.with_lead(|core| core.client.wait_ready(at_most))
        )
    }

    /// Makes sure that the client has lanes, as a call would, for callers that must know the number of workers
    /// before they choose one. Returns at once if it has. Blocks as a call does.
    pub fn ensure_connected(&mut self) -> Result<(), CallError> {
        each!(
            &mut self.policy,
            own => own.ensure_connected(),
            seat => seat.with_lead(|core| core.client.ensure_connected())
        )
    }

    /// Allocates memory for messages to `worker`, as [`large_request_for`](Client::large_request_for).
    pub(crate) fn message_memory(
        &mut self,
        worker: usize,
        function: u16,
        length: usize,
    ) -> Result<Buffer<F::Memory>, CallError> {
        each!(
            &mut self.policy,
            own => own.message_memory(worker, function, length),
            seat => seat.with_lead(|core| core.client.message_memory(worker, function, length))
        )
    }

    /// Submits the first `length` bytes of a buffer, and waits for room. A shared connection copies them: another thread
    /// may send them, later.
    pub(crate) fn submit_message(
        &mut self,
        worker: usize,
        function: u16,
        message: (&mut Buffer<F::Memory>, usize),
        time: Option<Duration>,
    ) -> Result<CallId, CallError> {
        each!(
            &mut self.policy,
            own => own.submit_message(worker, function, message, time),
            seat => {
                let time = time.map_or_else(|| seat.usual_time(), Time::own);
                seat.submit_waiting((worker, function), &message.0[..message.1], time)
            }
        )
    }
}

/// A view of a [`Client`] for one call with a time of its own; see [`Client::within`]. Its methods are those
/// of the client.
#[derive(Debug)]
#[must_use = "the time is that of the call made with it"]
pub struct Within<'a, F: Fabric> {
    client: &'a mut Client<F>,
    time: Time,
}

impl<'a, F: Fabric> Within<'a, F> {
    /// As [`Client::call`].
    #[inline]
    pub fn call(self, function: u16, payload: &[u8]) -> Result<Response<'a, F>, CallError> {
        let worker = each!(&mut self.client.policy, own => own.take_turn(), seat => seat.next_worker());
        self.call_on(worker, function, payload)
    }

    /// As [`Client::call_on`].
    #[inline]
    pub fn call_on(self, worker: usize, function: u16, payload: &[u8]) -> Result<Response<'a, F>, CallError> {
        let Within { client, time } = self;
        each!(
            &mut client.policy,
            own => {
                let response = own.at(time).call_on(worker, function, payload)?;
                Ok(Response(Holder::Own(response)))
            },
            seat => {
                let id = seat.submit_waiting((worker, function), payload, time)?;
                seat.wait_until_done(id);
                shared_response(seat.calls_mut(), id)
            }
        )
    }

    /// As [`Client::submit_on`].
    #[inline(always)]
    pub fn submit_on(self, worker: usize, function: u16, payload: &[u8]) -> Result<CallId, CallError> {
        each!(
            &mut self.client.policy,
            own => own.at(self.time).submit_on(worker, function, payload),
            seat => seat.try_submit((worker, function), payload, self.time)
        )
    }

    /// As [`Client::submit_waiting_on`]; waits for at most the time of the call.
    #[inline]
    pub fn submit_waiting_on(
        self,
        worker: usize,
        function: u16,
        payload: &[u8],
    ) -> Result<CallId, CallError> {
        each!(
            &mut self.client.policy,
            own => own.at(self.time).submit_waiting_on(worker, function, payload),
            seat => seat.submit_waiting((worker, function), payload, self.time)
        )
    }

    /// As [`Client::push_on`]. The time runs from here on, and each call of a batch has its own. On a shared
    /// connection the call is sent at once, with those that other threads make at the same time.
    #[inline(always)]
    pub fn push_on(self, worker: usize, function: u16, payload: &[u8]) -> Result<CallId, CallError> {
        each!(
            &mut self.client.policy,
            own => own.at(self.time).push_on(worker, function, payload),
            seat => seat.try_submit((worker, function), payload, self.time)
        )
    }

    /// As [`Client::push_waiting_on`]; waits for at most the time of the call.
    #[inline]
    pub fn push_waiting_on(self, worker: usize, function: u16, payload: &[u8]) -> Result<CallId, CallError> {
        each!(
            &mut self.client.policy,
            own => own.at(self.time).push_waiting_on(worker, function, payload),
            seat => seat.submit_waiting((worker, function), payload, self.time)
        )
    }

    /// As [`Client::submit_large`].
    pub fn submit_large(self, function: u16, request: LargeRequest<F>) -> Result<CallId, CallError> {
        let Within { client, time } = self;
        match (&mut client.policy, request.0) {
            (Policy::Dedicated(own), Large::Own(request)) => own.at(time).submit_large(function, request),
            (_, Large::Shared { bytes, worker }) => {
                Within { client, time }.submit_on(worker, function, &bytes)
            }
            // The request is another client's.
            (_, Large::Own(_)) => Err(CallError::NotExecuted(Cause::Closed)),
        }
    }

    /// As [`Client::filling_request_for`]. The time begins when the first bytes are sent.
    pub fn filling_request_for(
        self,
        worker: usize,
        function: u16,
        length: usize,
    ) -> Result<FillingRequest<'a, F>, CallError> {
        let Within { client, time } = self;
        if time.is_over() {
            return Err(CallError::NotExecuted(Cause::DeadlineExceeded));
        }
        if !matches!(client.policy, Policy::Dedicated(_)) {
            let filled =
                Filled::Shared { bytes: vec![0; length], sink: Unsent, to: (worker, function), time, client };
            return Ok(FillingRequest(filled));
        }
        match &mut client.policy {
            Policy::Dedicated(own) => {
                let request = own.at(time).filling_request_for(worker, function, length)?;
                Ok(FillingRequest(Filled::Own(request)))
            }
            _ => Err(CallError::NotExecuted(Cause::Closed)),
        }
    }
}
