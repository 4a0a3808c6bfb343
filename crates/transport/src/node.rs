//! `node:SERVICE`: a service that the nodes of the memory tier reach (LITE section 5.1). A client connects to the node of
//! its host, as to a server; a server listens on shared memory, and makes itself known to the node of its host.

use crate::resolve::Resolved;
use crate::server::Server;
use dunlin_fabric::{Address, AddressError, ListenError, Scheme, Unavailable, WithSources};
use dunlin_fabric_shm::ShmFabric;
use dunlin_rpc::ServeError;
use dunlin_tier_client::{
    Announced, AttachConfig, NODE_VARIABLE, RequestError, Tier, default_address, default_token,
    gateway_address,
};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// The pause between two looks whether the node knows a server still.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// The time of a request to the node of this host.
const PATIENCE: Duration = Duration::from_secs(5);

fn unavailable(
    address: &Address,
    source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
) -> Unavailable {
    Unavailable { address: address.clone(), source: source.into() }
}

/// Returns the address at which the node of this host takes calls, and the service to ask for there.
pub(crate) fn resolve(address: &Address) -> Result<Resolved, Unavailable> {
    let gateway = default_address().and_then(|node| gateway_address(&node));
    let gateway = gateway.map_err(|error: AddressError| {
        unavailable(address, format!("{NODE_VARIABLE} is not the address of a node: {error}"))
    })?;
    let token = default_token().map_err(|error| unavailable(address, error))?;
    Ok(Resolved {
        address: gateway,
        why: format!("the node of this host has the way to {}", address.name()),
        passed_over: Vec::new(),
        service: address.name().to_owned(),
        token,
    })
}

/// A server that the node of this host knows.
#[derive(Debug)]
pub struct NodeServer {
    /// Ends first, so that the node sends no further call.
    announcing: Announcing,
    server: Server,
    address: Address,
}

impl NodeServer {
    pub(crate) fn server(&self) -> &Server {
        &self.server
    }

    /// Returns the address by which clients of any node reach it.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Makes it unknown to the node, and returns the server.
    pub(crate) fn into_server(self) -> Server {
        drop(self.announcing);
        self.server
    }

    /// Starts a server by `start` at an address of its own on shared memory, and makes it known to the node of this host
    /// by the name in `address`. A thread makes it known again when the node has restarted.
    pub(crate) fn start<E: From<ServeError>>(
        fabric: &ShmFabric,
        address: &Address,
        start: impl FnOnce(&Address) -> Result<Server, E>,
    ) -> Result<Self, E> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let failed = |source: Box<dyn std::error::Error + Send + Sync>| {
            E::from(ServeError::Listen(ListenError::Unavailable(unavailable(address, source))))
        };
        if address.name().contains('@') {
            return Err(failed("a server is known at the node of its own host: leave @NODE out".into()));
        }
        let name = format!("dunlin-served-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let own = Address::new(Scheme::Shm, &name).map_err(|error| failed(error.into()))?;
        let server = start(&own)?;
        let known = announce(fabric, address.name(), &own).map_err(|error| failed(error.into()))?;
        let announcing =
            Announcing::start(fabric, address.name(), own, known).map_err(|error| failed(error.into()))?;
        Ok(NodeServer { announcing, server, address: address.clone() })
    }
}

fn announce(fabric: &ShmFabric, service: &str, own: &Address) -> Result<Announced, String> {
    let node = default_address().map_err(|error| WithSources(&error).to_string())?;
    let config = AttachConfig { timeout: PATIENCE, ..AttachConfig::new(node) };
    let tier = Tier::attach_with(fabric, config).map_err(|error| WithSources(&error).to_string())?;
    tier.announce(service, own).map_err(|error: RequestError| WithSources(&error).to_string())
}

/// The thread that keeps a server known.
#[derive(Debug)]
struct Announcing {
    ends: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl Announcing {
    fn start(fabric: &ShmFabric, service: &str, own: Address, known: Announced) -> std::io::Result<Self> {
        let ends = Arc::new((Mutex::new(false), Condvar::new()));
        let (end, fabric, service) = (Arc::clone(&ends), fabric.clone(), service.to_owned());
        let thread = std::thread::Builder::new().name("dunlin-announce".to_owned()).spawn(move || {
            let mut known = Some(known);
            while !wait(&end) {
                if known.as_ref().is_some_and(|known| known.check(PATIENCE).is_ok()) {
                    continue;
                }
                if known.take().is_some() {
                    tracing::warn!(target: "dunlin::transport", service, "the node of this host has ended; the server will be made known to the next one");
                }
                known = announce(&fabric, &service, &own)
                    .inspect(|_| tracing::info!(target: "dunlin::transport", service, "known to the node again"))
                    .ok();
            }
        })?;
        Ok(Announcing { ends, thread: Some(thread) })
    }
}

/// Waits for the next look; returns whether the server ends.
fn wait((ends, told): &(Mutex<bool>, Condvar)) -> bool {
    let ends = ends.lock().unwrap_or_else(PoisonError::into_inner);
    let waited = told.wait_timeout_while(ends, LOOK_EVERY, |ends| !*ends);
    *waited.unwrap_or_else(PoisonError::into_inner).0
}

impl Drop for Announcing {
    fn drop(&mut self) {
        let (ends, told) = &*self.ends;
        *ends.lock().unwrap_or_else(PoisonError::into_inner) = true;
        told.notify_all();
        if let Some(thread) = self.thread.take() {
            // The thread drops what the node knows.
            let _ = thread.join();
        }
    }
}
