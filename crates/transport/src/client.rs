//! The client of one thread, on whichever fabric its address names.

use crate::fabrics::{Choose, ChosenFabric};
use dunlin_fabric::{Address, ChosenTransport, DialError};
#[cfg(feature = "ofi")]
use dunlin_fabric_ofi::OfiFabric;
use dunlin_fabric_rdma::RdmaFabric;
use dunlin_fabric_shm::ShmFabric;
use dunlin_rpc::{CallError, CallId, ClientConfig, ConnectError, Filling, Tuning};
use std::ops::{Deref, DerefMut};

/// A client. `Send`, not shared: one thread at a time; [`another`](Client::another) makes one for another thread. Its methods
/// are those of the engine's client, [`dunlin_rpc::Client`], whose documentation has the details.
#[derive(Debug)]
pub struct Client {
    on: On,
    transport: ChosenTransport,
}

/// The engine's client, on each fabric.
#[derive(Debug)]
enum On {
    Shm(dunlin_rpc::Client<ShmFabric>),
    Rdma(dunlin_rpc::Client<RdmaFabric>),
    #[cfg(feature = "ofi")]
    Ofi(dunlin_rpc::Client<OfiFabric>),
}

/// A result, borrowed from the client; dropping it makes room for the next call.
#[derive(Debug)]
pub enum Response<'a> {
    /// On shared memory.
    Shm(dunlin_rpc::Response<'a, ShmFabric>),
    /// On RDMA.
    Rdma(dunlin_rpc::Response<'a, RdmaFabric>),
    /// On libfabric.
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

/// A large request being built where the server will READ it.
#[derive(Debug)]
pub enum LargeRequest {
    /// On shared memory.
    Shm(dunlin_rpc::LargeRequest<ShmFabric>),
    /// On RDMA.
    Rdma(dunlin_rpc::LargeRequest<RdmaFabric>),
    /// On libfabric.
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

/// A large request that is being filled, and may leave meanwhile. If it is dropped before its
/// [`submit`](FillingRequest::submit), or that failed, there was no call, or the server has been told that there is none.
#[derive(Debug)]
pub enum FillingRequest<'a> {
    /// On shared memory.
    Shm(dunlin_rpc::FillingRequest<'a, ShmFabric>),
    /// On RDMA.
    Rdma(dunlin_rpc::FillingRequest<'a, RdmaFabric>),
    /// On libfabric.
    #[cfg(feature = "ofi")]
    Ofi(dunlin_rpc::FillingRequest<'a, OfiFabric>),
}

impl FillingRequest<'_> {
    /// Where to put the payload, and whom to tell how far it is. What is in it is undefined.
    pub fn parts(&mut self) -> (&mut [u8], &mut dyn Filling) {
        each!(Self, self, request => request.parts())
    }

    /// All of it is there: sends the call, unless it has left already.
    ///
    /// # Errors
    /// Always "not executed".
    pub fn submit(self) -> Result<CallId, CallError> {
        each!(Self, self, request => request.submit())
    }
}

impl Client {
    /// Connects to all workers of a server, by the fabric that the address names or, of one of `auto:`, the first that works. Blocks for
    /// at most the configured time, and while the fabric is opened.
    ///
    /// # Errors
    /// Where no fabric works, an address of `auto:` is [`Unavailable`](dunlin_fabric::Unavailable) with a
    /// [`ResolveError`](crate::ResolveError) in it that says of each why not. Calls by number never go by TCP; typed services do.
    pub fn connect(
        fabrics: &impl Choose,
        address: &Address,
        config: ClientConfig,
    ) -> Result<Self, ConnectError> {
        let resolved = fabrics.resolve(address).map_err(DialError::from)?;
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

    /// Another client of the same server with the same settings, with connections of its own, for another thread.
    pub fn another(&self) -> Result<Self, ConnectError> {
        let on = each_into!(On, &self.on, On, client => client.another()?);
        Ok(Client { on, transport: self.transport.clone() })
    }

    /// The transport that the calls take, and why it is that.
    pub fn transport(&self) -> &ChosenTransport {
        &self.transport
    }

    /// Workers of the server that this client has lanes to.
    pub fn workers(&self) -> usize {
        each!(On, &self.on, client => client.workers())
    }

    /// The session of the current connection, as the server's logs call it.
    pub fn session(&self) -> u64 {
        each!(On, &self.on, client => client.session())
    }

    /// The settings.
    pub fn config(&self) -> &ClientConfig {
        each!(On, &self.on, client => client.config())
    }

    /// How many more calls `worker` takes now, of functions without a plan of their own.
    pub fn room(&mut self, worker: usize) -> usize {
        each!(On, &mut self.on, client => client.room(worker))
    }

    /// What is chosen now on each connection to a worker whose results are fetched or written back; empty for other plans.
    pub fn tuning(&self) -> Vec<Tuning> {
        each!(On, &self.on, client => client.tuning())
    }

    /// How many calls a batch has at most now, on each connection to a worker; empty without
    /// [`ClientConfig::batching`](dunlin_rpc::ClientConfig::batching).
    pub fn batch_calls(&self) -> Vec<u16> {
        each!(On, &self.on, client => client.batch_calls().collect())
    }

    /// Calls sent and not answered yet.
    pub fn in_flight(&self) -> usize {
        each!(On, &self.on, client => client.in_flight())
    }

    /// Makes a call and waits for the result. Without a worker in mind; they take turns.
    #[inline(always)]
    pub fn call(&mut self, function: u16, payload: &[u8]) -> Result<Response<'_>, CallError> {
        Ok(each_into!(On, &mut self.on, Response, client => client.call(function, payload)?))
    }

    /// As [`call`](Client::call), on one worker: the one that owns what the call is about.
    #[inline(always)]
    pub fn call_on(
        &mut self,
        worker: usize,
        function: u16,
        payload: &[u8],
    ) -> Result<Response<'_>, CallError> {
        Ok(each_into!(On, &mut self.on, Response, client => client.call_on(worker, function, payload)?))
    }

    /// Submits a call as a message of its own; does not wait for room or for the result.
    ///
    /// # Errors
    /// Always "not executed"; [`Cause::WindowFull`](dunlin_rpc::Cause::WindowFull) asks to collect results first.
    #[inline(always)]
    pub fn submit_on(&mut self, worker: usize, function: u16, payload: &[u8]) -> Result<CallId, CallError> {
        each!(On, &mut self.on, client => client.submit_on(worker, function, payload))
    }

    /// As [`submit_on`](Client::submit_on), but waits for room, as long as a call may take.
    #[inline(always)]
    pub fn submit_waiting_on(
        &mut self,
        worker: usize,
        function: u16,
        payload: &[u8],
    ) -> Result<CallId, CallError> {
        each!(On, &mut self.on, client => client.submit_waiting_on(worker, function, payload))
    }

    /// Adds a call to the batch of a worker, which goes out when it is full, or with [`flush`](Client::flush).
    #[inline(always)]
    pub fn push_on(&mut self, worker: usize, function: u16, payload: &[u8]) -> Result<CallId, CallError> {
        each!(On, &mut self.on, client => client.push_on(worker, function, payload))
    }

    /// As [`push_on`](Client::push_on), but waits for room, as long as a call may take.
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
    /// [`Cause::WindowFull`](dunlin_rpc::Cause::WindowFull) while a ring is full: make progress and flush again.
    #[inline(always)]
    pub fn flush(&mut self) -> Result<(), CallError> {
        each!(On, &mut self.on, client => client.flush())
    }

    /// As [`flush`](Client::flush), but waits for room, as long as a call may take.
    pub fn flush_waiting(&mut self) -> Result<(), CallError> {
        each!(On, &mut self.on, client => client.flush_waiting())
    }

    /// A buffer for a request of `length` bytes to `worker`, to be filled and given to
    /// [`submit_large`](Client::submit_large). What is in it is undefined.
    pub fn large_request(&mut self, worker: usize, length: usize) -> Result<LargeRequest, CallError> {
        Ok(each_into!(On, &mut self.on, LargeRequest, client => client.large_request(worker, length)?))
    }

    /// As [`large_request`](Client::large_request), by the plan of `function`.
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
    /// A buffer of another client on another fabric is [`Cause::Closed`](dunlin_rpc::Cause::Closed): not executed.
    pub fn submit_large(&mut self, function: u16, request: LargeRequest) -> Result<CallId, CallError> {
        match (&mut self.on, request) {
            (On::Shm(client), LargeRequest::Shm(request)) => client.submit_large(function, request),
            (On::Rdma(client), LargeRequest::Rdma(request)) => client.submit_large(function, request),
            #[cfg(feature = "ofi")]
            (On::Ofi(client), LargeRequest::Ofi(request)) => client.submit_large(function, request),
            _ => Err(CallError::NotExecuted(dunlin_rpc::Cause::Closed)),
        }
    }

    /// A request of `length` bytes to `worker` that may leave while it is being filled, if the plan of `function` has large
    /// payloads travel in pieces ([`LargePayload::Pieces`](dunlin_rpc::LargePayload::Pieces)).
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

    /// Looks for results once; how many calls are done now.
    #[inline(always)]
    pub fn progress(&mut self) -> usize {
        each!(On, &mut self.on, client => client.progress())
    }

    /// Looks for results once and shows each where it arrived; how many there were.
    #[inline(always)]
    pub fn collect(&mut self, each: impl FnMut(CallId, Result<&[u8], CallError>)) -> usize {
        each!(On, &mut self.on, client => client.collect(each))
    }

    /// A call that is done and was not asked for yet.
    #[inline(always)]
    pub fn next_done(&mut self) -> Option<CallId> {
        each!(On, &mut self.on, client => client.next_done())
    }

    /// Whether a call is done.
    #[inline(always)]
    pub fn is_done(&mut self, id: CallId) -> bool {
        each!(On, &mut self.on, client => client.is_done(id))
    }

    /// What became of a call that is done.
    #[inline(always)]
    pub fn outcome(&self, id: CallId) -> Result<&[u8], CallError> {
        each!(On, &self.on, client => client.outcome(id))
    }

    /// Lets a call's result go, or gives the call up.
    #[inline(always)]
    pub fn forget(&mut self, id: CallId) {
        each!(On, &mut self.on, client => client.forget(id));
    }

    /// Waits for a call's result.
    #[inline(always)]
    pub fn wait(&mut self, id: CallId) -> Result<Response<'_>, CallError> {
        Ok(each_into!(On, &mut self.on, Response, client => client.wait(id)?))
    }

    /// Waits until some call is done; `None` if none is in flight.
    #[inline(always)]
    pub fn wait_any(&mut self) -> Option<CallId> {
        each!(On, &mut self.on, client => client.wait_any())
    }

    /// Ends the connections, telling the server.
    pub fn close(self) {
        each!(On, self.on, client => client.close());
    }
}
