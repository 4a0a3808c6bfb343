//! Asynchronous clients on the fabric that their address selects.

use crate::attempts::Missing;
use crate::connecting::Connecting;
use crate::fabrics::{ChosenFabric, Fabrics};
use crate::later::{Later, Ready};
use crate::resolve::unconnected;
use dunlin_fabric::{ChosenTransport, DialError, IntoAddress, Scheme};
#[cfg(feature = "ofi")]
use dunlin_fabric_ofi::OfiFabric;
use dunlin_fabric_rdma::RdmaFabric;
use dunlin_fabric_shm::ShmFabric;
use dunlin_rpc::{
    CallError, Cause, ClientConfig, ConnectError, MemoryError, RemoteRegion, RunningPlan, Tuning,
};
use std::ops::Deref;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

/// The hubs of the asynchronous clients on these fabrics: one for each fabric in use. The first client creates
/// it.
#[derive(Debug, Default)]
pub(crate) struct Hubs {
    shm: Mutex<Option<dunlin_rpc::AsyncHub<ShmFabric>>>,
    rdma: Mutex<Option<dunlin_rpc::AsyncHub<RdmaFabric>>>,
    /// By provider.
    #[cfg(feature = "ofi")]
    ofi: Mutex<std::collections::BTreeMap<String, dunlin_rpc::AsyncHub<OfiFabric>>>,
}

impl Hubs {
    pub(crate) fn shm(&self, fabric: &ShmFabric) -> Result<dunlin_rpc::AsyncHub<ShmFabric>, ConnectError> {
        made(&self.shm, || dunlin_rpc::AsyncHub::new(fabric))
    }

    pub(crate) fn rdma(&self, fabric: &RdmaFabric) -> Result<dunlin_rpc::AsyncHub<RdmaFabric>, ConnectError> {
        made(&self.rdma, || dunlin_rpc::AsyncHub::new(fabric))
    }

    #[cfg(feature = "ofi")]
    pub(crate) fn ofi(&self, fabric: &OfiFabric) -> Result<dunlin_rpc::AsyncHub<OfiFabric>, ConnectError> {
        let mut known = self.ofi.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(hub) = known.get(fabric.provider()) {
            return Ok(hub.clone());
        }
        let hub = dunlin_rpc::AsyncHub::new(fabric)?;
        known.insert(fabric.provider().to_owned(), hub.clone());
        Ok(hub)
    }
}

/// Returns the hub in `place`. The first client creates it.
fn made<H: Clone>(
    place: &Mutex<Option<H>>,
    make: impl FnOnce() -> Result<H, ConnectError>,
) -> Result<H, ConnectError> {
    let mut place = place.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(hub) = &*place {
        return Ok(hub.clone());
    }
    let hub = make()?;
    *place = Some(hub.clone());
    Ok(hub)
}

/// An asynchronous client. Clones share the connection. All methods may be called from any thread.
#[derive(Clone, Debug)]
pub struct AsyncClient {
    on: AnyClient,
    transport: Arc<ChosenTransport>,
}

/// The engine's client on each fabric.
#[derive(Clone, Debug)]
enum AnyClient {
    Shm(dunlin_rpc::AsyncClient<ShmFabric>),
    Rdma(dunlin_rpc::AsyncClient<RdmaFabric>),
    #[cfg(feature = "ofi")]
    Ofi(dunlin_rpc::AsyncClient<OfiFabric>),
    /// A lazy client of an `auto:` address.
    Later(Later<AsyncClient, ConnectError>),
}

/// Returns the error of a call for which no connection was made. The log has the reason.
fn missing<E>(missing: Missing<E>) -> CallError {
    CallError::NotExecuted(match missing {
        Missing::Cause(cause) => cause,
        Missing::Refused(_) => Cause::Disconnected,
    })
}

impl AsyncClient {
    /// Connects to all workers of a server, with the fabrics of this process ([`Fabrics::global`]) and default
    /// settings; [`connect_with`](AsyncClient::connect_with) has the details.
    pub fn connect(address: impl IntoAddress) -> Result<Self, ConnectError> {
        AsyncClient::connect_with(Fabrics::global(), address, ClientConfig::default())
    }

    /// Connects to all workers of a server, on the fabric that the address names or, for an `auto:` address,
    /// on the first one that works. Clients with the same `fabrics` share a hub for each fabric: one set of
    /// queues, and one thread that wakes tasks.
    ///
    /// Blocks for at most the configured time, and while the fabric is opened: call it before the executor
    /// starts, or where blocking is allowed; elsewhere take
    /// [`connect_async_with`](AsyncClient::connect_async_with). Errors are those of
    /// [`Client::connect_with`](crate::Client::connect_with). A [lazy](ClientConfig::lazy) client of an `auto:`
    /// address asks the server for its fabrics when a call needs it, on a thread of its own.
    pub fn connect_with(
        fabrics: &Fabrics,
        address: impl IntoAddress,
        config: ClientConfig,
    ) -> Result<Self, ConnectError> {
        let (address, hubs) = (address.into_address()?, fabrics.hubs());
        if config.lazy && address.scheme() == Scheme::Auto {
            config.check()?;
            let transport = Arc::new(unconnected(&address));
            let (fabrics, to, eager) =
                (fabrics.clone(), address.clone(), ClientConfig { lazy: false, ..config.clone() });
            let connect = move || AsyncClient::connect_with(&fabrics, to.clone(), eager.clone());
            return Ok(AsyncClient {
                on: AnyClient::Later(Later::new(address, &config, connect)),
                transport,
            });
        }
        let resolved = fabrics.resolve(&address).map_err(DialError::from)?;
        let (to, config) = (&resolved.address, resolved.settle(config));
        let chosen = fabrics.choose(to).map_err(DialError::from)?;
        let name = chosen.capabilities().name;
        let on = match chosen {
            ChosenFabric::Shm(fabric) => {
                AnyClient::Shm(dunlin_rpc::AsyncClient::connect(&hubs.shm(&fabric)?, to, config)?)
            }
            ChosenFabric::Rdma(fabric) => {
                AnyClient::Rdma(dunlin_rpc::AsyncClient::connect(&hubs.rdma(&fabric)?, to, config)?)
            }
            #[cfg(feature = "ofi")]
            ChosenFabric::Ofi(fabric) => {
                AnyClient::Ofi(dunlin_rpc::AsyncClient::connect(&hubs.ofi(&fabric)?, to, config)?)
            }
        };
        Ok(AsyncClient { on, transport: Arc::new(resolved.transport(name)) })
    }

    /// As [`connect`](AsyncClient::connect), without blocking: returns a future, for any executor.
    pub fn connect_async(address: impl IntoAddress) -> Connecting<Self, ConnectError> {
        AsyncClient::connect_async_with(Fabrics::global(), address, ClientConfig::default())
    }

    /// As [`connect_with`](AsyncClient::connect_with), without blocking: the connect runs on a thread of its
    /// own. Dropping the future gives it up.
    pub fn connect_async_with(
        fabrics: &Fabrics,
        address: impl IntoAddress,
        config: ClientConfig,
    ) -> Connecting<Self, ConnectError> {
        let address = address.into_address();
        fabrics.connecting(move |fabrics| AsyncClient::connect_with(fabrics, address?, config))
    }

    /// Returns how the calls of a function run: the protocol, how both sides wait, the transport, and the
    /// reasons.
    pub fn plan_of(&self, function: u16) -> RunningPlan {
        let mut running = each_or!(AnyClient, &self.on, client => client.plan_of(function), AnyClient::Later(later) => {
            return match later.made() {
                Some(client) => client.plan_of(function),
                None => RunningPlan::unknown(format!("function {function}"), self.transport.name),
            };
        });
        running.reasons.insert(0, format!("transport: {}", self.transport.why));
        running
    }

    /// Waits until the client is connected, for at most `at_most`, and connects with back-off meanwhile;
    /// [`dunlin_rpc::AsyncClient::wait_ready`] has the details.
    pub async fn wait_ready(&self, at_most: Duration) -> Result<(), CallError> {
        each_or!(AnyClient, &self.on, client => client.wait_ready(at_most).await, AnyClient::Later(later) => {
            let began = std::time::Instant::now();
            later.for_ready(at_most).await.map_err(missing)?;
            let left = at_most.saturating_sub(began.elapsed());
            let made = later.made().ok_or(CallError::NotExecuted(Cause::Disconnected))?;
            each_or!(AnyClient, &made.on, client => client.wait_ready(left).await, AnyClient::Later(_) => {
                Err(CallError::NotExecuted(Cause::Disconnected))
            })
        })
    }

    /// Returns the number of server workers to which this client has lanes.
    pub fn workers(&self) -> usize {
        each_or!(AnyClient, &self.on, client => client.workers(), AnyClient::Later(later) => later.made().map_or(0, AsyncClient::workers))
    }

    /// Returns the transport of the calls, and the reason why it was chosen. Its name is `auto` until a lazy
    /// client of an `auto:` address knows it.
    pub fn transport(&self) -> &ChosenTransport {
        match &self.on {
            AnyClient::Later(later) => later.made().map_or(&self.transport, AsyncClient::transport),
            _ => &self.transport,
        }
    }

    /// Returns the current tuning of each connection to a worker, for plans that fetch results or have them
    /// written back; empty for other plans.
    pub fn tuning(&self) -> Vec<Tuning> {
        each_or!(AnyClient, &self.on, client => client.tuning(), AnyClient::Later(later) => later.made().map_or_else(Vec::new, AsyncClient::tuning))
    }

    /// Returns the current maximum batch size in calls of each connection to a worker; empty without
    /// [`ClientConfig::batching`].
    pub fn batch_calls(&self) -> Vec<u16> {
        each_or!(AnyClient, &self.on, client => client.batch_calls(), AnyClient::Later(later) => later.made().map_or_else(Vec::new, AsyncClient::batch_calls))
    }

    /// Returns a view of this client for calls with a time of their own, in place of
    /// [`ClientConfig::timeout`]; see [`dunlin_rpc::Client::within`].
    pub fn within(&self, time: Duration) -> AsyncWithin<'_> {
        self.within_or_default(Some(time))
    }

    fn within_or_default(&self, time: Option<Duration>) -> AsyncWithin<'_> {
        AsyncWithin(
            each_into_or!(AnyClient, &self.on, WithinOn, client => client.within_or_default(time), AnyClient::Later(later) => WithinOn::Later(later, time)),
        )
    }

    /// Makes a call on any worker. It is sent immediately if there is room, before the first poll. Dropping
    /// the future abandons the call.
    pub fn call(&self, function: u16, payload: &[u8]) -> Call {
        self.within_or_default(None).call(function, payload)
    }

    /// Makes a call on the given worker. See [`call`](AsyncClient::call).
    pub fn call_on(&self, worker: usize, function: u16, payload: &[u8]) -> Call {
        self.within_or_default(None).call_on(worker, function, payload)
    }
}

/// The error of an operation on memory of a client that has no connection yet.
const UNCONNECTED: MemoryError = MemoryError::Call(CallError::NotExecuted(Cause::Disconnected));

/// Operations on memory that the server exposes. They begin when their futures are polled, and a future that is dropped
/// gives its operation up.
impl AsyncClient {
    /// Attaches a region that the server exposes by name; see [`dunlin_rpc::AsyncClient::attach`].
    pub async fn attach(&self, name: &str) -> Result<RemoteRegion, MemoryError> {
        if let AnyClient::Later(later) = &self.on {
            later.for_call(None).await.map_err(missing)?;
        }
        each_or!(AnyClient, self.made(), client => client.attach(name).await, AnyClient::Later(_) => Err(UNCONNECTED))
    }

    /// READs `length` bytes of a region; see [`dunlin_rpc::AsyncClient::read`].
    pub async fn read(
        &self,
        region: &RemoteRegion,
        offset: u64,
        length: usize,
    ) -> Result<AsyncResponse, MemoryError> {
        let response = each_into_or!(
            AnyClient,
            self.made(),
            AsyncResponse,
            client => client.read(region, offset, length).await?,
            AnyClient::Later(_) => return Err(UNCONNECTED)
        );
        Ok(response)
    }

    /// WRITEs bytes to a region; see [`dunlin_rpc::AsyncClient::write`].
    pub async fn write(&self, region: &RemoteRegion, offset: u64, data: &[u8]) -> Result<(), MemoryError> {
        each_or!(AnyClient, self.made(), client => client.write(region, offset, data).await, AnyClient::Later(_) => Err(UNCONNECTED))
    }

    /// Adds to 8 aligned bytes of a region, and returns their old value; see [`dunlin_rpc::AsyncClient::fetch_add`].
    pub async fn fetch_add(&self, region: &RemoteRegion, offset: u64, add: u64) -> Result<u64, MemoryError> {
        each_or!(AnyClient, self.made(), client => client.fetch_add(region, offset, add).await, AnyClient::Later(_) => Err(UNCONNECTED))
    }

    /// Sets 8 aligned bytes of a region if they are as expected, and returns their old value; see
    /// [`dunlin_rpc::AsyncClient::compare_swap`].
    pub async fn compare_swap(
        &self,
        region: &RemoteRegion,
        offset: u64,
        expected: u64,
        swap: u64,
    ) -> Result<u64, MemoryError> {
        each_or!(AnyClient, self.made(), client => client.compare_swap(region, offset, expected, swap).await, AnyClient::Later(_) => Err(UNCONNECTED))
    }

    /// The client on its fabric, of a lazy one that has connected.
    fn made(&self) -> &AnyClient {
        match &self.on {
            AnyClient::Later(later) => later.made().map_or(&self.on, |made| &made.on),
            on => on,
        }
    }
}

/// A view of an [`AsyncClient`] for calls with a time of their own; see [`AsyncClient::within`].
#[derive(Clone, Copy, Debug)]
pub struct AsyncWithin<'a>(WithinOn<'a>);

#[derive(Clone, Copy, Debug)]
enum WithinOn<'a> {
    Shm(dunlin_rpc::AsyncWithin<'a, ShmFabric>),
    Rdma(dunlin_rpc::AsyncWithin<'a, RdmaFabric>),
    #[cfg(feature = "ofi")]
    Ofi(dunlin_rpc::AsyncWithin<'a, OfiFabric>),
    Later(&'a Later<AsyncClient, ConnectError>, Option<Duration>),
}

impl AsyncWithin<'_> {
    /// As [`AsyncClient::call`].
    pub fn call(&self, function: u16, payload: &[u8]) -> Call {
        each_into_or!(WithinOn, &self.0, Call, client => client.call(function, payload), WithinOn::Later(later, time) => {
            Call::later(later, (*time, None, function), payload)
        })
    }

    /// As [`AsyncClient::call_on`].
    pub fn call_on(&self, worker: usize, function: u16, payload: &[u8]) -> Call {
        each_into_or!(WithinOn, &self.0, Call, client => client.call_on(worker, function, payload), WithinOn::Later(later, time) => {
            Call::later(later, (*time, Some(worker), function), payload)
        })
    }

    /// Makes a call on a worker, or on any.
    fn call_any(&self, worker: Option<usize>, function: u16, payload: &[u8]) -> Call {
        match worker {
            Some(worker) => self.call_on(worker, function, payload),
            None => self.call(function, payload),
        }
    }
}

/// A call in progress. Dropping it abandons the call; the server may still execute it.
#[derive(Debug)]
#[must_use = "a call that is dropped is given up"]
pub enum Call {
    /// A call on shared memory.
    Shm(dunlin_rpc::Call<ShmFabric>),
    /// A call on RDMA.
    Rdma(dunlin_rpc::Call<RdmaFabric>),
    /// A call on libfabric.
    #[cfg(feature = "ofi")]
    Ofi(dunlin_rpc::Call<OfiFabric>),
    /// A call of a lazy client that has not connected yet.
    Unconnected(Box<UnconnectedCall>),
}

/// A call that waits for the connection of a lazy client.
#[derive(Debug)]
pub struct UnconnectedCall {
    ready: Ready<AsyncClient, ConnectError>,
    worker: Option<usize>,
    function: u16,
    payload: Vec<u8>,
}

impl UnconnectedCall {
    /// Makes the call on the client that has connected.
    fn begin(&self) -> Option<Call> {
        let (client, left) = (self.ready.made()?, self.ready.left());
        Some(client.within_or_default(left).call_any(self.worker, self.function, &self.payload))
    }
}

impl Call {
    /// Makes a call with its time, worker and function, on a client that may have connected.
    fn later(
        later: &Later<AsyncClient, ConnectError>,
        (time, worker, function): (Option<Duration>, Option<usize>, u16),
        payload: &[u8],
    ) -> Call {
        if let Some(client) = later.made() {
            return client.within_or_default(time).call_any(worker, function, payload);
        }
        let (ready, payload) = (later.for_call(time), payload.to_vec());
        Call::Unconnected(Box::new(UnconnectedCall { ready, worker, function, payload }))
    }

    /// Detaches the call: its answer is discarded.
    ///
    /// # Errors
    /// The call was not sent and thus not executed: [`Cause::WindowFull`](dunlin_rpc::Cause::WindowFull) if
    /// there was no room.
    pub fn leave(self) -> Result<(), CallError> {
        each_or!(Self, self, call => call.leave(), Call::Unconnected(call) => match call.begin() {
            Some(call) => call.leave(),
            None => Err(CallError::NotExecuted(Cause::Disconnected)),
        })
    }
}

impl Future for Call {
    type Output = Result<AsyncResponse, CallError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        if let Call::Unconnected(call) = this {
            let connected = std::task::ready!(Pin::new(&mut call.ready).poll(context));
            let begun = connected.map_err(missing).map(|()| call.begin());
            match begun {
                Ok(Some(call)) => *this = call,
                Ok(None) => return Poll::Ready(Err(CallError::NotExecuted(Cause::Disconnected))),
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        match this {
            Call::Shm(call) => Pin::new(call).poll(context).map_ok(AsyncResponse::Shm),
            Call::Rdma(call) => Pin::new(call).poll(context).map_ok(AsyncResponse::Rdma),
            #[cfg(feature = "ofi")]
            Call::Ofi(call) => Pin::new(call).poll(context).map_ok(AsyncResponse::Ofi),
            // A client that has connected makes no such call.
            Call::Unconnected(_) => Poll::Ready(Err(CallError::NotExecuted(Cause::Disconnected))),
        }
    }
}

/// The result of an asynchronous call. Dropping it returns its memory to the hub.
#[derive(Debug)]
pub enum AsyncResponse {
    /// A result on shared memory.
    Shm(dunlin_rpc::AsyncResponse<ShmFabric>),
    /// A result on RDMA.
    Rdma(dunlin_rpc::AsyncResponse<RdmaFabric>),
    /// A result on libfabric.
    #[cfg(feature = "ofi")]
    Ofi(dunlin_rpc::AsyncResponse<OfiFabric>),
}

impl Deref for AsyncResponse {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        each!(Self, self, response => response)
    }
}
