//! Asynchronous clients on the fabric that their address selects.

use crate::connecting::Connecting;
use crate::fabrics::{ChosenFabric, Fabrics, not_lazy};
use dunlin_fabric::{ChosenTransport, DialError, IntoAddress};
#[cfg(feature = "ofi")]
use dunlin_fabric_ofi::OfiFabric;
use dunlin_fabric_rdma::RdmaFabric;
use dunlin_fabric_shm::ShmFabric;
use dunlin_rpc::{CallError, ClientConfig, ConnectError, RunningPlan, Tuning};
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
    on: On,
    transport: Arc<ChosenTransport>,
}

/// The engine's client on each fabric.
#[derive(Clone, Debug)]
enum On {
    Shm(dunlin_rpc::AsyncClient<ShmFabric>),
    Rdma(dunlin_rpc::AsyncClient<RdmaFabric>),
    #[cfg(feature = "ofi")]
    Ofi(dunlin_rpc::AsyncClient<OfiFabric>),
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
    /// [`Client::connect_with`](crate::Client::connect_with).
    pub fn connect_with(
        fabrics: &Fabrics,
        address: impl IntoAddress,
        config: ClientConfig,
    ) -> Result<Self, ConnectError> {
        let (address, hubs) = (address.into_address()?, fabrics.hubs());
        not_lazy(&address, &config)?;
        let resolved = fabrics.resolve(&address).map_err(DialError::from)?;
        let to = &resolved.address;
        let chosen = fabrics.choose(to).map_err(DialError::from)?;
        let name = chosen.capabilities().name;
        let on = match chosen {
            ChosenFabric::Shm(fabric) => {
                On::Shm(dunlin_rpc::AsyncClient::connect(&hubs.shm(&fabric)?, to, config)?)
            }
            ChosenFabric::Rdma(fabric) => {
                On::Rdma(dunlin_rpc::AsyncClient::connect(&hubs.rdma(&fabric)?, to, config)?)
            }
            #[cfg(feature = "ofi")]
            ChosenFabric::Ofi(fabric) => {
                On::Ofi(dunlin_rpc::AsyncClient::connect(&hubs.ofi(&fabric)?, to, config)?)
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
        let mut running = each!(On, &self.on, client => client.plan_of(function));
        running.reasons.insert(0, format!("transport: {}", self.transport.why));
        running
    }

    /// Waits until the client is connected, for at most `at_most`, and connects with back-off meanwhile;
    /// [`dunlin_rpc::AsyncClient::wait_ready`] has the details.
    pub async fn wait_ready(&self, at_most: Duration) -> Result<(), CallError> {
        each!(On, &self.on, client => client.wait_ready(at_most).await)
    }

    /// Returns the number of server workers to which this client has lanes.
    pub fn workers(&self) -> usize {
        each!(On, &self.on, client => client.workers())
    }

    /// Returns the transport of the calls, and the reason why it was chosen.
    pub fn transport(&self) -> &ChosenTransport {
        &self.transport
    }

    /// Returns the current tuning of each connection to a worker, for plans that fetch results or have them
    /// written back; empty for other plans.
    pub fn tuning(&self) -> Vec<Tuning> {
        each!(On, &self.on, client => client.tuning())
    }

    /// Returns the current maximum batch size in calls of each connection to a worker; empty without
    /// [`ClientConfig::batching`].
    pub fn batch_calls(&self) -> Vec<u16> {
        each!(On, &self.on, client => client.batch_calls())
    }

    /// Returns a view of this client for calls with a time of their own, in place of
    /// [`ClientConfig::timeout`]; see [`dunlin_rpc::Client::within`].
    pub fn within(&self, time: Duration) -> AsyncWithin<'_> {
        AsyncWithin(each_into!(On, &self.on, WithinOn, client => client.within(time)))
    }

    /// Makes a call on any worker. It is sent immediately if there is room, before the first poll. Dropping
    /// the future abandons the call.
    pub fn call(&self, function: u16, payload: &[u8]) -> Call {
        each_into!(On, &self.on, Call, client => client.call(function, payload))
    }

    /// Makes a call on the given worker. See [`call`](AsyncClient::call).
    pub fn call_on(&self, worker: usize, function: u16, payload: &[u8]) -> Call {
        each_into!(On, &self.on, Call, client => client.call_on(worker, function, payload))
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
}

impl AsyncWithin<'_> {
    /// As [`AsyncClient::call`].
    pub fn call(&self, function: u16, payload: &[u8]) -> Call {
        each_into!(WithinOn, &self.0, Call, client => client.call(function, payload))
    }

    /// As [`AsyncClient::call_on`].
    pub fn call_on(&self, worker: usize, function: u16, payload: &[u8]) -> Call {
        each_into!(WithinOn, &self.0, Call, client => client.call_on(worker, function, payload))
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
}

impl Call {
    /// Detaches the call: its answer is discarded.
    ///
    /// # Errors
    /// The call was not sent and thus not executed: [`Cause::WindowFull`](dunlin_rpc::Cause::WindowFull) if
    /// there was no room.
    pub fn leave(self) -> Result<(), CallError> {
        each!(Self, self, call => call.leave())
    }
}

impl Future for Call {
    type Output = Result<AsyncResponse, CallError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.get_mut() {
            Call::Shm(call) => Pin::new(call).poll(context).map_ok(AsyncResponse::Shm),
            Call::Rdma(call) => Pin::new(call).poll(context).map_ok(AsyncResponse::Rdma),
            #[cfg(feature = "ofi")]
            Call::Ofi(call) => Pin::new(call).poll(context).map_ok(AsyncResponse::Ofi),
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
