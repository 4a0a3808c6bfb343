//! The synchronous client on the fabric that its address selects.

use crate::attempts::{Attempts, Missing};
use crate::fabrics::{ChosenFabric, FabricSelector, Fabrics};
use crate::resolve::{PATIENCE, Resolved, unconnected};
use dunlin_fabric::{Address, ChosenTransport, DialError, IntoAddress, Scheme};
#[cfg(feature = "ofi")]
use dunlin_fabric_ofi::OfiFabric;
use dunlin_fabric_rdma::RdmaFabric;
use dunlin_fabric_shm::ShmFabric;
use dunlin_rpc::{CallError, CallId, Cause, ClientConfig, ConnectError, PayloadWriter, RunningPlan, Tuning};
use std::ops::{Deref, DerefMut};
use std::time::Duration;

/// A synchronous client.
///
/// It is `Send` but not shared: one thread uses it at a time, and [`another`](Client::another) creates one
/// for another thread. Its methods are those of the engine's client; [`dunlin_rpc::Client`] documents them in
/// detail.
#[derive(Debug)]
pub struct Client {
    pub(crate) on: AnyClient,
    transport: ChosenTransport,
}

/// The engine's client on each fabric.
#[derive(Debug)]
pub(crate) enum AnyClient {
    Shm(dunlin_rpc::Client<ShmFabric>),
    Rdma(dunlin_rpc::Client<RdmaFabric>),
    #[cfg(feature = "ofi")]
    Ofi(dunlin_rpc::Client<OfiFabric>),
    Later(Box<Later>),
}

/// A lazy client of an `auto:` address until its first call, which asks the server for its fabrics.
#[derive(Debug)]
pub(crate) struct Later {
    fabrics: Fabrics,
    config: ClientConfig,
    attempts: Attempts,
}

impl Later {
    fn new(fabrics: &Fabrics, address: Address, config: ClientConfig) -> Self {
        let attempts = Attempts::new(address, &config);
        Later { fabrics: fabrics.clone(), config, attempts }
    }
}

/// The error of a call that a client without a fabric cannot have made.
const GONE: CallError = CallError::MaybeExecuted(Cause::Closed);

/// The error of a call without a connection.
pub(crate) const UNCONNECTED: CallError = CallError::NotExecuted(Cause::Disconnected);

/// Returns the error of a call for which no connection was made. The log has the reason.
fn missing(missing: Missing<ConnectError>) -> CallError {
    match missing {
        Missing::Cause(cause) => CallError::NotExecuted(cause),
        Missing::Refused(_) => UNCONNECTED,
    }
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
    pub fn parts(&mut self) -> (&mut [u8], &mut dyn PayloadWriter) {
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
    /// TCP; typed services do. A [lazy](ClientConfig::lazy) client of an `auto:` address asks the server for
    /// its fabrics within the first call.
    pub fn connect_with(
        fabrics: &impl FabricSelector,
        address: impl IntoAddress,
        config: ClientConfig,
    ) -> Result<Self, ConnectError> {
        let address = address.into_address()?;
        match fabrics.all() {
            Some(fabrics) if config.lazy && address.scheme() == Scheme::Auto => {
                config.check()?;
                let transport = unconnected(&address);
                Ok(Client { on: AnyClient::Later(Box::new(Later::new(fabrics, address, config))), transport })
            }
            _ => {
                let resolved = fabrics.resolve(&address).map_err(DialError::from)?;
                Client::connect_to(fabrics, resolved, config)
            }
        }
    }

    fn connect_to(
        fabrics: &impl FabricSelector,
        resolved: Resolved,
        config: ClientConfig,
    ) -> Result<Self, ConnectError> {
        let (to, config) = (&resolved.address, resolved.settle(config));
        let chosen = fabrics.choose(to).map_err(DialError::from)?;
        let name = chosen.capabilities().name;
        let on = match chosen {
            ChosenFabric::Shm(fabric) => AnyClient::Shm(dunlin_rpc::Client::connect(&fabric, to, config)?),
            ChosenFabric::Rdma(fabric) => AnyClient::Rdma(dunlin_rpc::Client::connect(&fabric, to, config)?),
            #[cfg(feature = "ofi")]
            ChosenFabric::Ofi(fabric) => AnyClient::Ofi(dunlin_rpc::Client::connect(&fabric, to, config)?),
        };
        Ok(Client { on, transport: resolved.transport(name) })
    }

    /// Resolves the `auto:` address of a lazy client, in at most this time. The client that this makes is
    /// lazy, too, and connects within the same call.
    fn resolve_now(later: &Later, most: Duration) -> Result<Self, ConnectError> {
        let Later { fabrics, config, attempts } = later;
        let resolved = fabrics.resolve_within(&attempts.address, most.min(PATIENCE));
        Client::connect_to(fabrics, resolved.map_err(DialError::from)?, config.clone())
    }

    /// Gives a lazy client of an `auto:` address its fabric for a call of this time. Returns the time that is
    /// left.
    #[cold]
    fn resolve_for(&mut self, time: Option<Duration>) -> Result<Option<Duration>, CallError> {
        let AnyClient::Later(later) = &mut self.on else { return Ok(time) };
        let mut attempts = later.attempts.clone();
        let made = attempts.for_call(time, |most| Client::resolve_now(later, most));
        later.attempts = attempts;
        let (client, left) = made.map_err(missing)?;
        *self = client;
        Ok(left)
    }

    #[inline(always)]
    pub(crate) fn resolved(&mut self) -> Result<(), CallError> {
        if let AnyClient::Later(_) = &self.on { self.resolve_for(None).map(drop) } else { Ok(()) }
    }

    /// Creates another client of the same server with the same settings and its own connections, for another
    /// thread.
    pub fn another(&self) -> Result<Self, ConnectError> {
        let on = each_into_or!(AnyClient, &self.on, AnyClient, client => client.another()?, AnyClient::Later(later) => {
            let Later { fabrics, config, attempts } = &**later;
            AnyClient::Later(Box::new(Later::new(fabrics, attempts.address.clone(), config.clone())))
        });
        Ok(Client { on, transport: self.transport.clone() })
    }

    /// Returns the transport of the calls, and the reason why it was chosen. Its name is `auto` until a lazy
    /// client of an `auto:` address knows it.
    pub fn transport(&self) -> &ChosenTransport {
        &self.transport
    }

    /// Returns how the calls of a function run: the protocol, how both sides wait, the transport, and the
    /// reasons.
    pub fn plan_of(&self, function: u16) -> RunningPlan {
        let mut running = each_or!(AnyClient, &self.on, client => client.plan_of(function), AnyClient::Later(_) => {
            RunningPlan::unknown(format!("function {function}"), self.transport.name)
        });
        running.reasons.insert(0, format!("transport: {}", self.transport.why));
        running
    }

    /// Waits until the client is connected, for at most `at_most`, and connects with back-off meanwhile;
    /// [`dunlin_rpc::Client::wait_ready`] has the details. Blocks.
    pub fn wait_ready(&mut self, at_most: Duration) -> Result<(), CallError> {
        let until = std::time::Instant::now() + at_most.min(Duration::from_secs(1 << 32));
        if let AnyClient::Later(later) = &mut self.on {
            let mut attempts = later.attempts.clone();
            let made = attempts.for_ready(at_most, |most| Client::resolve_now(later, most));
            later.attempts = attempts;
            *self = made.map_err(missing)?;
        }
        let left = until.saturating_duration_since(std::time::Instant::now());
        each_or!(AnyClient, &mut self.on, client => client.wait_ready(left), AnyClient::Later(_) => Err(UNCONNECTED))
    }

    /// Returns the number of server workers to which this client has lanes.
    pub fn workers(&self) -> usize {
        each_or!(AnyClient, &self.on, client => client.workers(), AnyClient::Later(_) => 0)
    }

    /// Returns the session number of the current connection, as the server logs it.
    pub fn session(&self) -> u64 {
        each_or!(AnyClient, &self.on, client => client.session(), AnyClient::Later(_) => 0)
    }

    /// Returns the settings.
    pub fn config(&self) -> &ClientConfig {
        each_or!(AnyClient, &self.on, client => client.config(), AnyClient::Later(later) => &later.config)
    }

    /// Returns how many more calls `worker` accepts now, for functions without a plan of their own.
    pub fn room(&mut self, worker: usize) -> usize {
        each_or!(AnyClient, &mut self.on, client => client.room(worker), AnyClient::Later(_) => 0)
    }

    /// Returns the current tuning of each connection to a worker, for plans that fetch results or have them
    /// written back; empty for other plans.
    pub fn tuning(&self) -> Vec<Tuning> {
        each_or!(AnyClient, &self.on, client => client.tuning(), AnyClient::Later(_) => Vec::new())
    }

    /// Returns the current maximum batch size in calls of each connection to a worker; empty without
    /// [`ClientConfig::batching`](dunlin_rpc::ClientConfig::batching).
    pub fn batch_calls(&self) -> Vec<u16> {
        each_or!(AnyClient, &self.on, client => client.batch_calls(), AnyClient::Later(_) => Vec::new())
    }

    /// Returns the number of calls that were sent and not yet answered.
    pub fn in_flight(&self) -> usize {
        each_or!(AnyClient, &self.on, client => client.in_flight(), AnyClient::Later(_) => 0)
    }

    /// Returns a view of this client whose next call has a time of its own, in place of
    /// [`ClientConfig::timeout`]; see [`dunlin_rpc::Client::within`].
    #[inline(always)]
    pub fn within(&mut self, time: Duration) -> Within<'_> {
        let left = match &self.on {
            AnyClient::Later(_) => self.resolve_for(Some(time)),
            _ => Ok(Some(time)),
        };
        match left {
            Ok(left) => {
                let time = left.unwrap_or(time);
                each_into_or!(AnyClient, &mut self.on, Within, client => client.within(time), AnyClient::Later(_) => Within::Unconnected(UNCONNECTED))
            }
            Err(error) => Within::Unconnected(error),
        }
    }

    /// Returns the view for calls with the time of the settings. It writes each method once for all fabrics.
    #[inline(always)]
    fn usually(&mut self) -> Within<'_> {
        if let Err(error) = self.resolved() {
            return Within::Unconnected(error);
        }
        each_into_or!(AnyClient, &mut self.on, Within, client => client.within_or_default(None), AnyClient::Later(_) => Within::Unconnected(UNCONNECTED))
    }

    /// Makes a call and waits for its result. Workers are used round-robin.
    #[inline(always)]
    pub fn call(&mut self, function: u16, payload: &[u8]) -> Result<Response<'_>, CallError> {
        self.usually().call(function, payload)
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
        self.usually().call_on(worker, function, payload)
    }

    /// Submits a call as a separate message, without waiting for room or for the result.
    ///
    /// # Errors
    /// The call was not executed; [`Cause::WindowFull`](dunlin_rpc::Cause::WindowFull) means that results
    /// must be collected first.
    #[inline(always)]
    pub fn submit_on(&mut self, worker: usize, function: u16, payload: &[u8]) -> Result<CallId, CallError> {
        self.usually().submit_on(worker, function, payload)
    }

    /// Like [`submit_on`](Client::submit_on), but waits for room, at most for the call timeout.
    #[inline(always)]
    pub fn submit_waiting_on(
        &mut self,
        worker: usize,
        function: u16,
        payload: &[u8],
    ) -> Result<CallId, CallError> {
        self.usually().submit_waiting_on(worker, function, payload)
    }

    /// Adds a call to a worker's batch, which is sent when it is full or on [`flush`](Client::flush).
    #[inline(always)]
    pub fn push_on(&mut self, worker: usize, function: u16, payload: &[u8]) -> Result<CallId, CallError> {
        self.usually().push_on(worker, function, payload)
    }

    /// Like [`push_on`](Client::push_on), but waits for room, at most for the call timeout.
    #[inline(always)]
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
    /// [`Cause::WindowFull`](dunlin_rpc::Cause::WindowFull) while a ring is full: make progress and flush
    /// again.
    #[inline(always)]
    pub fn flush(&mut self) -> Result<(), CallError> {
        each_or!(AnyClient, &mut self.on, client => client.flush(), AnyClient::Later(_) => Ok(()))
    }

    /// Like [`flush`](Client::flush), but waits for room, at most for the call timeout.
    pub fn flush_waiting(&mut self) -> Result<(), CallError> {
        each_or!(AnyClient, &mut self.on, client => client.flush_waiting(), AnyClient::Later(_) => Ok(()))
    }

    /// Returns a buffer for a request of `length` bytes to `worker`, to be filled and passed to
    /// [`submit_large`](Client::submit_large). Its content is undefined.
    pub fn large_request(&mut self, worker: usize, length: usize) -> Result<LargeRequest, CallError> {
        self.resolved()?;
        Ok(
            each_into_or!(AnyClient, &mut self.on, LargeRequest, client => client.large_request(worker, length)?, AnyClient::Later(_) => return Err(UNCONNECTED)),
        )
    }

    /// Like [`large_request`](Client::large_request), with the plan of `function`.
    pub fn large_request_for(
        &mut self,
        worker: usize,
        function: u16,
        length: usize,
    ) -> Result<LargeRequest, CallError> {
        self.resolved()?;
        Ok(
            each_into_or!(AnyClient, &mut self.on, LargeRequest, client => client.large_request_for(worker, function, length)?, AnyClient::Later(_) => return Err(UNCONNECTED)),
        )
    }

    /// Submits a call whose payload is in a buffer of this client.
    ///
    /// # Errors
    /// A buffer of a client on another fabric causes [`Cause::Closed`](dunlin_rpc::Cause::Closed): not
    /// executed.
    pub fn submit_large(&mut self, function: u16, request: LargeRequest) -> Result<CallId, CallError> {
        match &self.on {
            // A client without a fabric has no buffers.
            AnyClient::Later(_) => Err(CallError::NotExecuted(Cause::Closed)),
            _ => self.usually().submit_large(function, request),
        }
    }

    /// Returns a request of `length` bytes to `worker` that is sent in pieces while it is filled, if the plan
    /// of `function` has [`LargePayload::Pipelined`](dunlin_rpc::LargePayload::Pipelined).
    pub fn filling_request_for(
        &mut self,
        worker: usize,
        function: u16,
        length: usize,
    ) -> Result<FillingRequest<'_>, CallError> {
        self.usually().filling_request_for(worker, function, length)
    }

    /// Polls once for results. Returns the number of calls that are now complete.
    #[inline(always)]
    pub fn progress(&mut self) -> usize {
        each_or!(AnyClient, &mut self.on, client => client.progress(), AnyClient::Later(_) => 0)
    }

    /// Polls once for results and passes each to `each` straight from the receive buffer. Returns their
    /// number.
    #[inline(always)]
    pub fn collect(&mut self, each: impl FnMut(CallId, Result<&[u8], CallError>)) -> usize {
        each_or!(AnyClient, &mut self.on, client => client.collect(each), AnyClient::Later(_) => 0)
    }

    /// Returns a completed call that was not returned before.
    #[inline(always)]
    pub fn next_done(&mut self) -> Option<CallId> {
        each_or!(AnyClient, &mut self.on, client => client.next_done(), AnyClient::Later(_) => None)
    }

    /// Returns whether a call is complete.
    #[inline(always)]
    pub fn is_done(&mut self, id: CallId) -> bool {
        each_or!(AnyClient, &mut self.on, client => client.is_done(id), AnyClient::Later(_) => false)
    }

    /// Returns the outcome of a completed call.
    #[inline(always)]
    pub fn outcome(&self, id: CallId) -> Result<&[u8], CallError> {
        each_or!(AnyClient, &self.on, client => client.outcome(id), AnyClient::Later(_) => Err(GONE))
    }

    /// Discards a call's result, or abandons the call.
    #[inline(always)]
    pub fn forget(&mut self, id: CallId) {
        each_or!(AnyClient, &mut self.on, client => client.forget(id), AnyClient::Later(_) => ());
    }

    /// Waits for a call's result.
    #[inline(always)]
    pub fn wait(&mut self, id: CallId) -> Result<Response<'_>, CallError> {
        Ok(
            each_into_or!(AnyClient, &mut self.on, Response, client => client.wait(id)?, AnyClient::Later(_) => return Err(GONE)),
        )
    }

    /// Waits until any call is complete; returns `None` if none is in flight.
    #[inline(always)]
    pub fn wait_any(&mut self) -> Option<CallId> {
        each_or!(AnyClient, &mut self.on, client => client.wait_any(), AnyClient::Later(_) => None)
    }

    /// Closes the connections and notifies the server.
    pub fn close(self) {
        each_or!(AnyClient, self.on, client => client.close(), AnyClient::Later(_) => ());
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
    /// A lazy client of an `auto:` address that could not be given its fabric. Each method returns the error.
    Unconnected(CallError),
}

impl<'a> Within<'a> {
    /// As [`Client::call`].
    #[inline(always)]
    pub fn call(self, function: u16, payload: &[u8]) -> Result<Response<'a>, CallError> {
        Ok(
            each_into_or!(Self, self, Response, client => client.call(function, payload)?, Self::Unconnected(error) => return Err(error)),
        )
    }

    /// As [`Client::call_on`].
    #[inline(always)]
    pub fn call_on(self, worker: usize, function: u16, payload: &[u8]) -> Result<Response<'a>, CallError> {
        Ok(
            each_into_or!(Self, self, Response, client => client.call_on(worker, function, payload)?, Self::Unconnected(error) => return Err(error)),
        )
    }

    /// As [`Client::submit_on`].
    #[inline(always)]
    pub fn submit_on(self, worker: usize, function: u16, payload: &[u8]) -> Result<CallId, CallError> {
        each_or!(Self, self, client => client.submit_on(worker, function, payload), Self::Unconnected(error) => Err(error))
    }

    /// As [`Client::submit_waiting_on`]; waits for at most the time of the call.
    #[inline(always)]
    pub fn submit_waiting_on(
        self,
        worker: usize,
        function: u16,
        payload: &[u8],
    ) -> Result<CallId, CallError> {
        each_or!(Self, self, client => client.submit_waiting_on(worker, function, payload), Self::Unconnected(error) => Err(error))
    }

    /// As [`Client::push_on`]. The time runs from here on, and each call of a batch has its own.
    #[inline(always)]
    pub fn push_on(self, worker: usize, function: u16, payload: &[u8]) -> Result<CallId, CallError> {
        each_or!(Self, self, client => client.push_on(worker, function, payload), Self::Unconnected(error) => Err(error))
    }

    /// As [`Client::push_waiting_on`]; waits for at most the time of the call.
    #[inline(always)]
    pub fn push_waiting_on(self, worker: usize, function: u16, payload: &[u8]) -> Result<CallId, CallError> {
        each_or!(Self, self, client => client.push_waiting_on(worker, function, payload), Self::Unconnected(error) => Err(error))
    }

    /// As [`Client::submit_large`].
    pub fn submit_large(self, function: u16, request: LargeRequest) -> Result<CallId, CallError> {
        match (self, request) {
            (Within::Shm(client), LargeRequest::Shm(request)) => client.submit_large(function, request),
            (Within::Rdma(client), LargeRequest::Rdma(request)) => client.submit_large(function, request),
            #[cfg(feature = "ofi")]
            (Within::Ofi(client), LargeRequest::Ofi(request)) => client.submit_large(function, request),
            (Within::Unconnected(error), _) => Err(error),
            _ => Err(CallError::NotExecuted(Cause::Closed)),
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
            each_into_or!(Self, self, FillingRequest, client => client.filling_request_for(worker, function, length)?, Self::Unconnected(error) => return Err(error)),
        )
    }
}
