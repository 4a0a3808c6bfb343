//! Asynchronous clients on whichever fabric their address names.

use crate::fabrics::{ChosenFabric, Fabrics};
use dunlin_fabric::{Address, DialError};
#[cfg(feature = "ofi")]
use dunlin_fabric_ofi::OfiFabric;
use dunlin_fabric_rdma::RdmaFabric;
use dunlin_fabric_shm::ShmFabric;
use dunlin_rpc::{CallError, ClientConfig, ConnectError};
use std::ops::Deref;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

#[derive(Debug)]
struct Hubs {
    fabrics: Fabrics,
    shm: Mutex<Option<dunlin_rpc::AsyncHub<ShmFabric>>>,
    rdma: Mutex<Option<dunlin_rpc::AsyncHub<RdmaFabric>>>,
    /// By provider.
    #[cfg(feature = "ofi")]
    ofi: Mutex<std::collections::BTreeMap<String, dunlin_rpc::AsyncHub<OfiFabric>>>,
}

/// What all asynchronous clients of a process share: the engine's hub of each fabric that a client has used. Clones are the
/// same hubs.
#[derive(Clone, Debug)]
pub struct AsyncHubs(Arc<Hubs>);

impl AsyncHubs {
    /// No hub yet. One such for a process is enough.
    pub fn new(fabrics: &Fabrics) -> Self {
        AsyncHubs(Arc::new(Hubs {
            fabrics: fabrics.clone(),
            shm: Mutex::new(None),
            rdma: Mutex::new(None),
            #[cfg(feature = "ofi")]
            ofi: Mutex::default(),
        }))
    }
}

/// The hub in its place, made by the first client.
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

/// An asynchronous client. Clones share the connection; all methods may be called from any thread.
#[derive(Clone, Debug)]
pub enum AsyncClient {
    /// On shared memory.
    Shm(dunlin_rpc::AsyncClient<ShmFabric>),
    /// On RDMA.
    Rdma(dunlin_rpc::AsyncClient<RdmaFabric>),
    /// On libfabric.
    #[cfg(feature = "ofi")]
    Ofi(dunlin_rpc::AsyncClient<OfiFabric>),
}

impl AsyncClient {
    /// Connects to all workers of a server, by the fabric that the address names. Blocks for at most the configured time, and
    /// while the fabric is opened: call it before the executor runs, or where blocking is allowed.
    pub fn connect(hubs: &AsyncHubs, address: &Address, config: ClientConfig) -> Result<Self, ConnectError> {
        let hubs = &*hubs.0;
        let address = &hubs.fabrics.resolve(address).map_err(DialError::from)?.address;
        Ok(match hubs.fabrics.choose(address).map_err(DialError::from)? {
            ChosenFabric::Shm(fabric) => {
                let hub = made(&hubs.shm, || dunlin_rpc::AsyncHub::new(&fabric))?;
                AsyncClient::Shm(dunlin_rpc::AsyncClient::connect(&hub, address, config)?)
            }
            ChosenFabric::Rdma(fabric) => {
                let hub = made(&hubs.rdma, || dunlin_rpc::AsyncHub::new(&fabric))?;
                AsyncClient::Rdma(dunlin_rpc::AsyncClient::connect(&hub, address, config)?)
            }
            #[cfg(feature = "ofi")]
            ChosenFabric::Ofi(fabric) => {
                let hub = {
                    let mut known = hubs.ofi.lock().unwrap_or_else(PoisonError::into_inner);
                    match known.get(fabric.provider()) {
                        Some(hub) => hub.clone(),
                        None => {
                            let hub = dunlin_rpc::AsyncHub::new(&fabric)?;
                            known.insert(fabric.provider().to_owned(), hub.clone());
                            hub
                        }
                    }
                };
                AsyncClient::Ofi(dunlin_rpc::AsyncClient::connect(&hub, address, config)?)
            }
        })
    }

    /// Workers of the server that this client has lanes to.
    pub fn workers(&self) -> usize {
        each!(self, client => client.workers())
    }

    /// The transport that the calls take, as [`Capabilities::name`](dunlin_fabric::Capabilities::name) has it.
    pub fn transport(&self) -> &'static str {
        match self {
            AsyncClient::Shm(_) => "shm",
            AsyncClient::Rdma(_) => "rdma",
            #[cfg(feature = "ofi")]
            AsyncClient::Ofi(_) => "ofi",
        }
    }

    /// Makes a call on any worker. It is sent at once if there is room, without waiting for the first poll; dropping the
    /// future gives the call up.
    pub fn call(&self, function: u16, payload: &[u8]) -> Call {
        each_into!(self, Call, client => client.call(function, payload))
    }

    /// As [`call`](AsyncClient::call), on one worker.
    pub fn call_on(&self, worker: usize, function: u16, payload: &[u8]) -> Call {
        each_into!(self, Call, client => client.call_on(worker, function, payload))
    }
}

/// A call under way. Dropping it gives the call up here; the server may still execute it.
#[derive(Debug)]
#[must_use = "a call that is dropped is given up"]
pub enum Call {
    /// On shared memory.
    Shm(dunlin_rpc::Call<ShmFabric>),
    /// On RDMA.
    Rdma(dunlin_rpc::Call<RdmaFabric>),
    /// On libfabric.
    #[cfg(feature = "ofi")]
    Ofi(dunlin_rpc::Call<OfiFabric>),
}

impl Call {
    /// Leaves the call to itself: nobody waits for its answer.
    ///
    /// # Errors
    /// It was not sent, [`Cause::WindowFull`](dunlin_rpc::Cause::WindowFull) if there was no room: not executed.
    pub fn leave(self) -> Result<(), CallError> {
        each!(self, call => call.leave())
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

/// The result of an asynchronous call. Its memory goes back to the hub when it is dropped.
#[derive(Debug)]
pub enum AsyncResponse {
    /// On shared memory.
    Shm(dunlin_rpc::AsyncResponse<ShmFabric>),
    /// On RDMA.
    Rdma(dunlin_rpc::AsyncResponse<RdmaFabric>),
    /// On libfabric.
    #[cfg(feature = "ofi")]
    Ofi(dunlin_rpc::AsyncResponse<OfiFabric>),
}

impl Deref for AsyncResponse {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        each!(self, response => response)
    }
}
