//! The synchronous client on the fabric that its address selects.

use crate::fabrics::{Choose, ChosenFabric, Fabrics, not_lazy};
use dunlin_fabric::{ChosenTransport, DialError, IntoAddress};
#[cfg(feature = "ofi")]
use dunlin_fabric_ofi::OfiFabric;
use dunlin_fabric_rdma::RdmaFabric;
use dunlin_fabric_shm::ShmFabric;
use dunlin_rpc::{CallError, CallId, ClientConfig, ConnectError, Filling, RunningPlan, Tuning};
use std::ops::{Deref, DerefMut};
use std::time::Duration;

/// A synchronous client.
///
/// It is `Send` but not shared: one thread uses it at a time, and [`another`](Client::another) creates one
/// for another thread. Its methods are those of the engine's client; [`dunlin_rpc::Client`] documents them in
/// detail.
#[derive(Debug)]
pub struct Client {
    pub(crate) on: On,
    transport: ChosenTransport,
}

/// The engine's client on each fabric.
#[derive(Debug)]
pub(crate) enum On {
    Shm(dunlin_rpc::Client<ShmFabric>),
    Rdma(dunlin_rpc::Client<RdmaFabric>),
    #[cfg(feature = "ofi")]
    Ofi(dunlin_rpc::Client<OfiFabric>),
}

/// A result, borrowed from the client. Dropping it makes room for the next call.
#[derive(Debug)]
pub enum Response<'a> {
    /// A result on shared memory.
    Shm(dunlin_rpc::Response<'a, ShmFabric>),
    /// A result on RDMA.
    Rdma(dunlin_rpc::Response<'a, RdmaFabric>),
    /// A result on libfabric.
    #[cfg(feature = "ofi")]
    Ofi(dunlin_rpc::Response<'a, OfiFabric>),
}

impl Deref for Response<'_> {
    type Target = [u8];

    #[inline(always)]
    fn deref(&self) -> &[u8] {
        each!(Self, self, response => response)
    }
}

/// A large request, built in the memory from which the server READs it.
#[derive(Debug)]
pub enum LargeRequest {
    /// A request on shared memory.
    Shm(dunlin_rpc::LargeRequest<ShmFabric>),
    /// A request on RDMA.
    Rdma(dunlin_rpc::LargeRequest<RdmaFabric>),
    /// A request on libfabric.
    #[cfg(feature = "ofi")]
    Ofi(dunlin_rpc::LargeRequest<OfiFabric>),
}

impl Deref for LargeRequest {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        each!(Self, self, request => request)
    }
}

impl DerefMut for LargeRequest {
    fn deref_mut(&mut self) -> &mut [u8] {
        each!(Self, self, request => request)
    }
}

/// A large request that may be sent in pieces while it is filled.
///
/// If it is dropped before [`submit`](FillingRequest::submit), or if that fails, the call does not take
/// place; the server is notified if pieces were sent.
#[derive(Debug)]
pub enum FillingRequest<'a> {
    /// A request on shared memory.
    Shm(dunlin_rpc::FillingRequest<'a, ShmFabric>),
    /// A request on RDMA.
    Rdma(dunlin_rpc::FillingRequest<'a, RdmaFabric>),
    /// A request on libfabric.
    #[cfg(feature = "ofi")]
    Ofi(dunlin_rpc::FillingRequest<'a, OfiFabric>),
}

impl FillingRequest<'_> {
    /// Returns the payload buffer, whose content is undefined, and the observer to notify of progress.
    pub fn parts(&mut self) -> (&mut [u8], &mut dyn Filling) {
        each!(Self, self, request => request.parts())
    }

    /// Completes the request and sends the call, unless it has already been sent.
    ///
    /// # Errors
    /// The call was not executed.
    pub fn submit(self) -> Result<CallId, CallError> {
        each!(Self, self, request => request.submit())
    }
}

impl Client {
    /// Connects to all workers of a server, with the fabrics of this process ([`Fabrics::global`]) and default
    /// settings; [`connect_with`](Client::connect_with) has the details.
    pub fn connect(address: impl IntoAddress) -> Result<Self, ConnectError> {
        Client::connect_with(Fabrics::global(), address, ClientConfig::default())
    }

    /// Connects to all workers of a server, on the fabric that the address names or, for an `auto:` address,
    /// on the first one that works. Blocks for at most the configured time, and while the fabric is opened.
    /// `fabrics` is [`Fabrics`], or a single fabric, which takes only its own addresses.
    ///
    /// # Errors
    /// If no fabric works, an `auto:` address is [`Unavailable`](dunlin_fabric::Unavailable) with a
    /// [`ResolveError`](crate::ResolveError) that gives the reason for each fabric. Calls by number never use
    /// TCP; typed services do. [`ClientConfig::lazy`] is refused at an `auto:` address.
    pub fn connect_with(
        fabrics: &impl Choose,
        address: impl IntoAddress,
        config: ClientConfig,
    ) -> Result<Self, ConnectError> {
        let address = address.into_address()?;
        not_lazy(&address, &config)?;
        let resolved = fabrics.resolve(&address).map_err(DialError::from)?;
        let to = &resolved.address;
        let chosen = fabrics.choose(to).map_err(DialError::from)?;
        let name = chosen.capabilities().name;
        let on = match chosen {
            ChosenFabric::Shm(fabric) => On::Shm(dunlin_rpc::Client::connect(&fabric, to, config)?),
            ChosenFabric::Rdma(fabric) => On::Rdma(dunlin_rpc::Client::connect(&fabric, to, config)?),
            #[cfg(feature = "ofi")]
            ChosenFabric::Ofi(fabric) => On::Ofi(dunlin_rpc::Client::connect(&fabric, to, config)?),
        };
        Ok(Client { on, transport: resolved.transport(name) })
    }

    /// Creates another client of the same server with the same settings and its own connections, for another
    /// thread.
    pub fn another(&self) -> Result<Self, ConnectError> {
        let on = each_into!(On, &self.on, On, client => client.another()?);
        Ok(Client { on, transport: self.transport.clone() })
    }

    /// Returns the transport of the calls, and the reason why it was chosen.
    pub fn transport(&self) -> &ChosenTransport {
        &self.transport
    }

    /// Returns how the calls of a function run: the protocol, how both sides wait, the transport, and the
    /// reasons.
    pub fn plan_of(&self, function: u16) -> RunningPlan {
        let mut running = each!(On, &self.on, client => client.plan_of(function));
        running.reasons.insert(0, format!("transport: {}", self.transport.why));
        running
    }

    /// Waits until the client is connected, for at most `at_most`, and connects with back-off meanwhile;
    /// [`dunlin_rpc::Client::wait_ready`] has the details. Blocks.
    pub fn wait_ready(&mut self, at_most: Duration) -> Result<(), CallError> {
        each!(On, &mut self.on, client => client.wait_ready(at_most))
    }

    /// Returns the number of server workers to which this client has lanes.
    pub fn workers(&self) -> usize {
        each!(On, &self.on, client => client.workers())
    }

    /// Returns the session number of the current connection, as the server logs it.
    pub fn session(&self) -> u64 {
        each!(On, &self.on, client => client.session())
    }

    /// Returns the settings.
    pub fn config(&self) -> &ClientConfig {
        each!(On, &self.on, client => client.config())
    }

    /// Returns how many more calls `worker` accepts now, for functions without a plan of their own.
    pub fn room(&mut self, worker: usize) -> usize {
        each!(On, &mut self.on, client => client.room(worker))
    }

    /// Returns the current tuning of each connection to a worker, for plans that fetch results or have them
    /// written back; empty for other plans.
    pub fn tuning(&self) -> Vec<Tuning> {
        each!(On, &self.on, client => client.tuning())
    }

    /// Returns the current maximum batch size in calls of each connection to a worker; empty without
    /// [`ClientConfig::batching`](dunlin_rpc::ClientConfig::batching).
    pub fn batch_calls(&self) -> Vec<u16> {
        each!(On, &self.on, client => client.batch_calls())
    }

    /// Returns the number of calls that were sent and not yet answered.
    pub fn in_flight(&self) -> usize {
        each!(On, &self.on, client => client.in_flight())
    }

    /// Returns a view of this client whose next call has a time of its own, in place of
    /// [`ClientConfig::timeout`]; see [`dunlin_rpc::Client::within`].
    #[inline(always)]
    pub fn within(&mut self, time: Duration) -> Within<'_> {
        each_into!(On, &mut self.on, Within, client => client.within(time))
    }

    /// Makes a call and waits for its result. Workers are used round-robin.
    #[inline(always)]
    pub fn call(&mut self, function: u16, payload: &[u8]) -> Result<Response<'_>, CallError> {
        Ok(each_into!(On, &mut self.on, Response, client => client.call(function, payload)?))
    }

    /// Makes a call on the given worker, for calls that must reach a specific worker. See
    /// [`call`](Client::call).
    #[inline(always)]
    pub fn call_on(
        &mut self,
        worker: usize,
        function: u16,
        payload: &[u8],
    ) -> Result<Response<'_>, CallError> {
        Ok(each_into!(On, &mut self.on, Response, client => client.call_on(worker, function, payload)?))
    }

    /// Submits a call as a separate message, without waiting for room or for the result.
    ///
    /// # Errors
    /// The call was not executed; [`Cause::WindowFull`](dunlin_rpc::Cause::WindowFull) means that results
    /// must be collected first.
    #[inline(always)]
    pub fn submit_on(&mut self, worker: usize, function: u16, payload: &[u8]) -> Result<CallId, CallError> {
        each!(On, &mut self.on, client => client.submit_on(worker, function, payload))
    }

    /// Like [`submit_on`](Client::submit_on), but waits for room, at most for the call timeout.
    #[inline(always)]
    pub fn submit_waiting_on(
        &mut self,
        worker: usize,
        function: u16,
        payload: &[u8],
    ) -> Result<CallId, CallError> {
        each!(On, &mut self.on, client => client.submit_waiting_on(worker, function, payload))
    }

    /// Adds a call to a worker's batch, which is sent when it is full or on [`flush`](Client::flush).
    #[inline(always)]
    pub fn push_on(&mut self, worker: usize, function: u16, payload: &[u8]) -> Result<CallId, CallError> {
        each!(On, &mut self.on, client => client.push_on(worker, function, payload))
    }

    /// Like [`push_on`](Client::push_on), but waits for room, at most for the call timeout.
    #[inline(always)]
    pub fn push_waiting_on(
        &mut self,
        worker: usize,
        function: u16,
        payload: &[u8],
    ) -> Result<CallId, CallError> {
        each!(On, &mut self.on, client => client.push_waiting_on(worker, function, payload))
    }

    /// Sends the open batches.
    ///
    /// # Errors
    /// [`Cause::WindowFull`](dunlin_rpc::Cause::WindowFull) while a ring is full: make progress and flush
    /// again.
    #[inline(always)]
    pub fn flush(&mut self) -> Result<(), CallError> {
        each!(On, &mut self.on, client => client.flush())
    }

    /// Like [`flush`](Client::flush), but waits for room, at most for the call timeout.
    pub fn flush_waiting(&mut self) -> Result<(), CallError> {
        each!(On, &mut self.on, client => client.flush_waiting())
    }

    /// Returns a buffer for a request of `length` bytes to `worker`, to be filled and passed to
    /// [`submit_large`](Client::submit_large). Its content is undefined.
    pub fn large_request(&mut self, worker: usize, length: usize) -> Result<LargeRequest, CallError> {
        Ok(each_into!(On, &mut self.on, LargeRequest, client => client.large_request(worker, length)?))
    }

    /// Like [`large_request`](Client::large_request), with the plan of `function`.
    pub fn large_request_for(
        &mut self,
        worker: usize,
        function: u16,
        length: usize,
    ) -> Result<LargeRequest, CallError> {
        Ok(
            each_into!(On, &mut self.on, LargeRequest, client => client.large_request_for(worker, function, length)?),
        )
    }

    /// Submits a call whose payload is in a buffer of this client.
    ///
    /// # Errors
    /// A buffer of a client on another fabric causes [`Cause::Closed`](dunlin_rpc::Cause::Closed): not
    /// executed.
    pub fn submit_large(&mut self, function: u16, request: LargeRequest) -> Result<CallId, CallError> {
        each_into!(On, &mut self.on, Within, client => client.within_or_default(None))
            .submit_large(function, request)
    }

    /// Returns a request of `length` bytes to `worker` that is sent in pieces while it is filled, if the plan
    /// of `function` has [`LargePayload::Pieces`](dunlin_rpc::LargePayload::Pieces).
    pub fn filling_request_for(
        &mut self,
        worker: usize,
        function: u16,
        length: usize,
    ) -> Result<FillingRequest<'_>, CallError> {
        Ok(
            each_into!(On, &mut self.on, FillingRequest, client => client.filling_request_for(worker, function, length)?),
        )
    }

    /// Polls once for results. Returns the number of calls that are now complete.
    #[inline(always)]
    pub fn progress(&mut self) -> usize {
        each!(On, &mut self.on, client => client.progress())
    }

    /// Polls once for results and passes each to `each` straight from the receive buffer. Returns their
    /// number.
    #[inline(always)]
    pub fn collect(&mut self, each: impl FnMut(CallId, Result<&[u8], CallError>)) -> usize {
        each!(On, &mut self.on, client => client.collect(each))
    }

    /// Returns a completed call that was not returned before.
    #[inline(always)]
    pub fn next_done(&mut self) -> Option<CallId> {
        each!(On, &mut self.on, client => client.next_done())
    }

    /// Returns whether a call is complete.
    #[inline(always)]
    pub fn is_done(&mut self, id: CallId) -> bool {
        each!(On, &mut self.on, client => client.is_done(id))
    }

    /// Returns the outcome of a completed call.
    #[inline(always)]
    pub fn outcome(&self, id: CallId) -> Result<&[u8], CallError> {
        each!(On, &self.on, client => client.outcome(id))
    }

    /// Discards a call's result, or abandons the call.
    #[inline(always)]
    pub fn forget(&mut self, id: CallId) {
        each!(On, &mut self.on, client => client.forget(id));
    }

    /// Waits for a call's result.
    #[inline(always)]
    pub fn wait(&mut self, id: CallId) -> Result<Response<'_>, CallError> {
        Ok(each_into!(On, &mut self.on, Response, client => client.wait(id)?))
    }

    /// Waits until any call is complete; returns `None` if none is in flight.
    #[inline(always)]
    pub fn wait_any(&mut self) -> Option<CallId> {
        each!(On, &mut self.on, client => client.wait_any())
    }

    /// Closes the connections and notifies the server.
    pub fn close(self) {
        each!(On, self.on, client => client.close());
    }
}

/// A view of a [`Client`] for one call with a time of its own; see [`Client::within`]. Its methods are those
/// of the client.
#[derive(Debug)]
#[must_use = "the time is that of the call made with it"]
pub enum Within<'a> {
    /// A client on shared memory.
    Shm(dunlin_rpc::Within<'a, ShmFabric>),
    /// A client on RDMA.
    Rdma(dunlin_rpc::Within<'a, RdmaFabric>),
    /// A client on libfabric.
    #[cfg(feature = "ofi")]
    Ofi(dunlin_rpc::Within<'a, OfiFabric>),
}

impl<'a> Within<'a> {
    /// As [`Client::call`].
    #[inline(always)]
    pub fn call(self, function: u16, payload: &[u8]) -> Result<Response<'a>, CallError> {
        Ok(each_into!(Self, self, Response, client => client.call(function, payload)?))
    }

    /// As [`Client::call_on`].
    #[inline(always)]
    pub fn call_on(self, worker: usize, function: u16, payload: &[u8]) -> Result<Response<'a>, CallError> {
        Ok(each_into!(Self, self, Response, client => client.call_on(worker, function, payload)?))
    }

    /// As [`Client::submit_on`].
    #[inline(always)]
    pub fn submit_on(self, worker: usize, function: u16, payload: &[u8]) -> Result<CallId, CallError> {
        each!(Self, self, client => client.submit_on(worker, function, payload))
    }

    /// As [`Client::submit_waiting_on`]; waits for at most the time of the call.
    #[inline(always)]
    pub fn submit_waiting_on(
        self,
        worker: usize,
        function: u16,
        payload: &[u8],
    ) -> Result<CallId, CallError> {
        each!(Self, self, client => client.submit_waiting_on(worker, function, payload))
    }

    /// As [`Client::push_on`]. The time runs from here on, and each call of a batch has its own.
    #[inline(always)]
    pub fn push_on(self, worker: usize, function: u16, payload: &[u8]) -> Result<CallId, CallError> {
        each!(Self, self, client => client.push_on(worker, function, payload))
    }

    /// As [`Client::push_waiting_on`]; waits for at most the time of the call.
    #[inline(always)]
    pub fn push_waiting_on(self, worker: usize, function: u16, payload: &[u8]) -> Result<CallId, CallError> {
        each!(Self, self, client => client.push_waiting_on(worker, function, payload))
    }

    /// As [`Client::submit_large`].
    pub fn submit_large(self, function: u16, request: LargeRequest) -> Result<CallId, CallError> {
        match (self, request) {
            (Within::Shm(client), LargeRequest::Shm(request)) => client.submit_large(function, request),
            (Within::Rdma(client), LargeRequest::Rdma(request)) => client.submit_large(function, request),
            #[cfg(feature = "ofi")]
            (Within::Ofi(client), LargeRequest::Ofi(request)) => client.submit_large(function, request),
            _ => Err(CallError::NotExecuted(dunlin_rpc::Cause::Closed)),
        }
    }

    /// As [`Client::filling_request_for`]. The time begins when the first bytes are sent.
    pub fn filling_request_for(
        self,
        worker: usize,
        function: u16,
        length: usize,
    ) -> Result<FillingRequest<'a>, CallError> {
        Ok(
            each_into!(Self, self, FillingRequest, client => client.filling_request_for(worker, function, length)?),
        )
    }
}
