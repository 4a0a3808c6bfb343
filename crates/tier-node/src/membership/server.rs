//! The directory as a service: the state machine of [`dunlin_tier::membership::directory`], whose time passes with the
//! requests of the nodes. It has no thread of its own beside that of the engine, and writes nothing to a disk.

use dunlin_fabric::{Address, Fabric, Host, Nanos, nanos};
use dunlin_rpc::{FunctionMode, Reply, Request, ServeError, Server, ServerBuilder, ServerConfig, Status};
use dunlin_tier::membership::View;
use dunlin_tier::membership::directory::{Directory, Terms};
use dunlin_tier::membership::message::{DIRECTORY_SERVICE, MAX_MESSAGE, MEMBER_CALL, MemberRequest};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Settings of a directory.
#[derive(Clone, Debug)]
pub struct DirectoryConfig {
    /// A node that does not report itself for as long is declared dead. At least three times the period of the nodes
    /// ([`TierConfig::beat`](crate::TierConfig::beat)). Default: 500 ms.
    pub lease: Duration,
    /// The time after the start in which the directory hears the views of the nodes, and makes none. Default: 600 ms.
    pub gather: Duration,
    /// The most names of nodes, 1 to 1024. Default: 64.
    pub max_nodes: u16,
    /// The token that all nodes of the cluster know. Default: empty.
    pub token: Vec<u8>,
}

impl Default for DirectoryConfig {
    fn default() -> Self {
        DirectoryConfig {
            lease: Duration::from_millis(500),
            gather: Duration::from_millis(600),
            max_nodes: 64,
            token: Vec::new(),
        }
    }
}

/// A running directory. Ends when it is dropped; it may be started again at any time, also by another process.
#[derive(Debug)]
pub struct DirectoryServer<F: Fabric> {
    // Ends the engine's threads.
    _server: Server<F>,
    directory: Arc<Mutex<Directory>>,
}

impl<F: Fabric> DirectoryServer<F> {
    /// Starts a directory.
    pub fn serve(fabric: &F, address: &Address, config: DirectoryConfig) -> Result<Self, ServeError> {
        let DirectoryConfig { lease, gather, max_nodes, token } = config;
        let terms = Terms { lease: nanos(lease), gather: nanos(gather.max(lease)), max_nodes };
        let directory = Arc::new(Mutex::new(Directory::new(fabric.host().random(), terms)));
        let settings = ServerConfig {
            max_payload: MAX_MESSAGE as u64,
            max_response: MAX_MESSAGE as u64,
            large_response_memory: 2 * MAX_MESSAGE as u64,
            service: DIRECTORY_SERVICE.to_owned(),
            token,
            ..ServerConfig::default()
        };
        let builder = ServerBuilder::new(fabric).config(settings).function(MEMBER_CALL, FunctionMode::Worker);
        let server = builder.serve(address, |_| {
            let (directory, host) = (Arc::clone(&directory), fabric.host().clone());
            Box::new(move |request: &Request<'_>, reply: &mut Reply<'_>| {
                let answer = answer(&directory, request.payload, host.now())?;
                Ok(reply.write(&answer)?)
            })
        })?;
        Ok(DirectoryServer { _server: server, directory })
    }

    /// Returns the last view.
    pub fn view(&self) -> View {
        self.directory.lock().unwrap_or_else(PoisonError::into_inner).view().clone()
    }
}

fn answer(directory: &Mutex<Directory>, request: &[u8], now: Nanos) -> Result<Vec<u8>, Status> {
    let request = MemberRequest::parse(request).map_err(|_| Status::Malformed)?;
    let mut directory = directory.lock().unwrap_or_else(PoisonError::into_inner);
    let before = directory.view().epoch;
    if let Err(jump) = directory.tick(now) {
        tracing::warn!(target: "dunlin::tier", %jump, "leases begin again");
    }
    let answer = directory.answer(request, now);
    let view = directory.view();
    if view.epoch != before {
        let alive: Vec<&str> = view.alive().map(|one| one.identity.name.as_str()).collect();
        tracing::info!(target: "dunlin::tier", epoch = %view.epoch, alive = alive.join(", "), "a new view");
    }
    Ok(answer.encode())
}
