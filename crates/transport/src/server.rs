//! Servers on the fabric that their address selects.

use crate::fabrics::{ChosenFabric, FabricSelector, Fabrics};
use crate::multi_fabric::{Place, SeveralServers, reason};
use crate::node::NodeServer;
use crate::signals::wait_for_signal;
use dunlin_fabric::{Address, Fabric, IntoAddress, ListenError, Scheme, Unavailable};
#[cfg(feature = "ofi")]
use dunlin_fabric_ofi::OfiFabric;
use dunlin_fabric_rdma::RdmaFabric;
use dunlin_fabric_shm::ShmFabric;
use dunlin_rpc::{
    ConnectedClient, Counters, Deployment, FunctionMode, PoolService, ServeError, ServerConfig, Service,
    Status,
};
use std::sync::Arc;
use std::time::Duration;

/// A builder of servers.
#[derive(Clone)]
pub struct ServerBuilder {
    /// `None` for those of the process.
    fabrics: Option<Arc<dyn FabricSelector>>,
    config: ServerConfig,
    functions: Vec<(u16, FunctionMode)>,
    pool: Option<Arc<dyn PoolService>>,
    deployment: Option<Deployment>,
}

impl std::fmt::Debug for ServerBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServerBuilder")
            .field("config", &self.config)
            .field("functions", &self.functions)
            .finish_non_exhaustive()
    }
}

impl Default for ServerBuilder {
    fn default() -> Self {
        ServerBuilder::new()
    }
}

impl ServerBuilder {
    /// Creates a builder with the fabrics of this process ([`Fabrics::global`]), default settings and no
    /// functions.
    pub fn new() -> Self {
        ServerBuilder {
            fabrics: None,
            config: ServerConfig::default(),
            functions: Vec::new(),
            pool: None,
            deployment: None,
        }
    }

    /// Replaces the fabrics: by another [`Fabrics`], or by a single fabric, which takes only its own
    /// addresses.
    #[must_use]
    pub fn fabrics(mut self, fabrics: &(impl FabricSelector + Clone)) -> Self {
        self.fabrics = Some(Arc::new(fabrics.clone()));
        self
    }

    fn choose(&self, address: &Address) -> Result<ChosenFabric, ListenError> {
        let chosen = match &self.fabrics {
            Some(fabrics) => fabrics.choose(address),
            None => Fabrics::global().choose(address),
        };
        Ok(chosen?)
    }

    /// Returns shared memory, for the server of a `node:` address.
    fn shm(&self, address: &Address) -> Result<ShmFabric, ListenError> {
        match &self.fabrics {
            Some(fabrics) => shm_of(&**fabrics, address),
            None => shm_of(Fabrics::global(), address),
        }
    }

    /// Replaces the settings.
    #[must_use]
    pub fn config(mut self, config: ServerConfig) -> Self {
        self.config = config;
        self
    }

    /// Declares a function and the threads that execute it. Calls of undeclared functions are refused.
    #[must_use]
    pub fn function(mut self, id: u16, mode: FunctionMode) -> Self {
        self.functions.push((id, mode));
        self
    }

    /// Sets the service that the pool threads run.
    #[must_use]
    pub fn pool(mut self, service: impl PoolService) -> Self {
        self.pool = Some(Arc::new(service));
        self
    }

    /// Makes the server one of a deployment whose servers share one schedule of groups and slices (ScaleRPC section
    /// 4.2). The addresses of its servers are those of one fabric: at an `auto:` or a `node:` address, starting the server
    /// fails.
    #[must_use]
    pub fn deployment(mut self, deployment: Deployment) -> Self {
        self.deployment = Some(deployment);
        self
    }

    /// Refuses a deployment where the server has several fabrics, or an address that its node chooses.
    fn refuse_deployment(&self, address: &Address) -> Result<(), ServeError> {
        if self.deployment.is_none() {
            return Ok(());
        }
        let source = "a deployment's servers are on one fabric: name it, shm:NAME or rdma:HOST:PORT";
        Err(ListenError::Unavailable(Unavailable { address: address.clone(), source: source.into() }).into())
    }

    /// Converts to the engine's builder for one fabric.
    fn on<F: Fabric>(self, fabric: &F) -> dunlin_rpc::ServerBuilder<F> {
        let described = dunlin_rpc::ServerBuilder::new(fabric).config(self.config);
        let described =
            self.functions.into_iter().fold(described, |described, (id, mode)| described.function(id, mode));
        let described = match self.pool {
            Some(pool) => described.pool_shared(pool),
            None => described,
        };
        match self.deployment {
            Some(deployment) => described.deployment(deployment),
            None => described,
        }
    }

    /// Starts the server: listens, and runs each worker on its own thread with the service created for it.
    ///
    /// At an `auto:` address, the server uses all fabrics usable on this host and needs at least one. Each
    /// fabric gets the configured number of workers, and numbering continues from one fabric to the next. A
    /// client reaches only the workers of its fabric, so the services of all workers must be interchangeable.
    /// Pull functions are not supported there.
    pub fn serve(
        self,
        address: impl IntoAddress,
        mut service: impl FnMut(u16) -> Box<dyn Service>,
    ) -> Result<Server, ServeError> {
        let address = &address.into_address().map_err(ListenError::from)?;
        match address.scheme() {
            Scheme::Auto => {}
            Scheme::Node => {
                self.refuse_deployment(address)?;
                return through_node(&self.shm(address)?, address, |own| self.serve_one(own, service));
            }
            _ => return self.serve_one(address, service),
        }
        let several = self.several(address, |builder, address, made| {
            let service = |_| service(made.next());
            Ok((builder.serve_one(address, service)?, ()))
        })?;
        Ok(several.0)
    }

    /// Starts servers on several fabrics, each with `start`.
    fn several<T>(
        self,
        address: &Address,
        mut start: impl FnMut(ServerBuilder, &Address, &mut Numbers) -> Result<(Server, T), ServeError>,
    ) -> Result<(Server, Vec<T>), ServeError> {
        self.refuse_deployment(address)?;
        // The engine of each fabric would refuse it, as a reason to pass the fabric over.
        self.functions.iter().try_for_each(|(id, _)| dunlin_rpc::server::check_function(*id))?;
        if self.functions.iter().any(|(_, mode)| *mode == FunctionMode::Pull) {
            let source =
                "functions are pulled from a server of one fabric: name it, shm:NAME or rdma:HOST:PORT";
            let unavailable = Unavailable { address: address.clone(), source: source.into() };
            return Err(ListenError::Unavailable(unavailable).into());
        }
        let mut numbers = Numbers(0);
        let tcp = Err("it serves calls without a typed service, which have no form there".to_owned());
        let started = SeveralServers::start(Place::bind(address)?, tcp, |address| {
            let before = numbers.0;
            start(self.clone(), address, &mut numbers).map_err(|error| {
                // A server that failed to start has no workers, so their numbers are reused.
                numbers.0 = before;
                reason(&error)
            })
        });
        started.map(|(servers, others)| (Server::Several(Box::new(servers)), others))
    }

    fn serve_one(
        self,
        address: &Address,
        service: impl FnMut(u16) -> Box<dyn Service>,
    ) -> Result<Server, ServeError> {
        Ok(match self.choose(address)? {
            ChosenFabric::Shm(fabric) => Server::Shm(self.on(&fabric).serve(address, service)?),
            ChosenFabric::Rdma(fabric) => Server::Rdma(self.on(&fabric).serve(address, service)?),
            #[cfg(feature = "ofi")]
            ChosenFabric::Ofi(fabric) => Server::Ofi(self.on(&fabric).serve(address, service)?),
        })
    }

    /// Like [`serve`](ServerBuilder::serve), but returns the workers, to be run on the caller's threads.
    pub fn serve_with(
        self,
        address: impl IntoAddress,
        mut service: impl FnMut(u16) -> Box<dyn Service>,
    ) -> Result<(Server, Vec<Worker>), ServeError> {
        let address = &address.into_address().map_err(ListenError::from)?;
        match address.scheme() {
            Scheme::Auto => {}
            Scheme::Node => {
                self.refuse_deployment(address)?;
                let mut made = Vec::new();
                let server = through_node(&self.shm(address)?, address, |own| {
                    let (server, workers) = self.serve_one_with(own, service)?;
                    made = workers;
                    Ok::<_, ServeError>(server)
                })?;
                return Ok((server, made));
            }
            _ => return self.serve_one_with(address, service),
        }
        let (server, workers) = self.several(address, |builder, address, made| {
            builder.serve_one_with(address, |_| service(made.next()))
        })?;
        Ok((server, workers.into_iter().flatten().collect()))
    }

    fn serve_one_with(
        self,
        address: &Address,
        service: impl FnMut(u16) -> Box<dyn Service>,
    ) -> Result<(Server, Vec<Worker>), ServeError> {
        Ok(match self.choose(address)? {
            ChosenFabric::Shm(fabric) => {
                let (server, workers) = self.on(&fabric).serve_with(address, service)?;
                (Server::Shm(server), workers.into_iter().map(Worker::Shm).collect())
            }
            ChosenFabric::Rdma(fabric) => {
                let (server, workers) = self.on(&fabric).serve_with(address, service)?;
                (Server::Rdma(server), workers.into_iter().map(Worker::Rdma).collect())
            }
            #[cfg(feature = "ofi")]
            ChosenFabric::Ofi(fabric) => {
                let (server, workers) = self.on(&fabric).serve_with(address, service)?;
                (Server::Ofi(server), workers.into_iter().map(Worker::Ofi).collect())
            }
        })
    }
}

/// Returns shared memory, for the server of a `node:` address.
pub(crate) fn shm_of(fabrics: &dyn FabricSelector, address: &Address) -> Result<ShmFabric, ListenError> {
    match fabrics.all() {
        Some(fabrics) => {
            fabrics.allow(address)?;
            let failed =
                |error: std::io::Error| Unavailable { address: address.clone(), source: error.into() };
            Ok(fabrics.shm().map_err(failed)?)
        }
        // Names the reason.
        None => match fabrics.choose(address)? {
            ChosenFabric::Shm(fabric) => Ok(fabric),
            _ => Err(ListenError::Unavailable(Unavailable {
                address: address.clone(),
                source: "it needs shared memory".into(),
            })),
        },
    }
}

/// Starts a server that the node of this host knows.
pub(crate) fn through_node<E: From<ServeError>>(
    fabric: &ShmFabric,
    address: &Address,
    start: impl FnOnce(&Address) -> Result<Server, E>,
) -> Result<Server, E> {
    Ok(Server::Node(Box::new(NodeServer::start(fabric, address, start)?)))
}

/// Worker numbers, counted across the fabrics.
struct Numbers(u16);

impl Numbers {
    fn next(&mut self) -> u16 {
        let next = self.0;
        self.0 = next.saturating_add(1);
        next
    }
}

/// A running server. Dropping it stops it immediately; [`shutdown`](Server::shutdown) stops it gracefully.
#[derive(Debug)]
pub enum Server {
    /// A server on shared memory.
    Shm(dunlin_rpc::Server<ShmFabric>),
    /// A server on RDMA.
    Rdma(dunlin_rpc::Server<RdmaFabric>),
    /// A server on libfabric.
    #[cfg(feature = "ofi")]
    Ofi(dunlin_rpc::Server<OfiFabric>),
    /// Servers on several fabrics, at an `auto:` address.
    Several(Box<SeveralServers>),
    /// A server that the node of this host knows, at a `node:` address.
    Node(Box<NodeServer>),
}

impl Server {
    /// Returns the address to which clients connect. A port of 0 is replaced by the assigned port.
    pub fn address(&self) -> &Address {
        match self {
            Server::Shm(server) => server.address(),
            Server::Rdma(server) => server.address(),
            #[cfg(feature = "ofi")]
            Server::Ofi(server) => server.address(),
            Server::Several(servers) => servers.address(),
            Server::Node(node) => node.address(),
        }
    }

    /// Returns the number of open connections.
    pub fn connections(&self) -> usize {
        match self {
            Server::Shm(server) => server.connections(),
            Server::Rdma(server) => server.connections(),
            #[cfg(feature = "ofi")]
            Server::Ofi(server) => server.connections(),
            Server::Several(servers) => servers.servers().iter().map(Server::connections).sum(),
            Server::Node(node) => node.server().connections(),
        }
    }

    /// Returns the connection counters.
    pub fn counters(&self) -> Counters {
        match self {
            Server::Shm(server) => server.counters(),
            Server::Rdma(server) => server.counters(),
            #[cfg(feature = "ofi")]
            Server::Ofi(server) => server.counters(),
            Server::Several(servers) => {
                let all = servers.servers().iter().map(Server::counters);
                all.fold(Counters::default(), |sum, of| Counters {
                    accepted: sum.accepted + of.accepted,
                    refused: sum.refused + of.refused,
                    lanes: sum.lanes + of.lanes,
                    stray_datagrams: sum.stray_datagrams + of.stray_datagrams,
                })
            }
            Server::Node(node) => node.server().counters(),
        }
    }

    /// Returns whether the groups that are served are those of the server's
    /// [`deployment`](ServerBuilder::deployment). A server that hears nothing of the others for long serves its own.
    pub fn follows_deployment(&self) -> bool {
        match self {
            Server::Shm(server) => server.running_slice().is_common,
            Server::Rdma(server) => server.running_slice().is_common,
            #[cfg(feature = "ofi")]
            Server::Ofi(server) => server.running_slice().is_common,
            // They have no deployment.
            Server::Several(_) | Server::Node(_) => false,
        }
    }

    /// Returns the current connections with the names that the clients gave themselves.
    pub fn clients(&self) -> Vec<ConnectedClient> {
        match self {
            Server::Shm(server) => server.clients(),
            Server::Rdma(server) => server.clients(),
            #[cfg(feature = "ofi")]
            Server::Ofi(server) => server.clients(),
            Server::Several(servers) => servers.servers().iter().flat_map(Server::clients).collect(),
            Server::Node(node) => node.server().clients(),
        }
    }

    /// Returns the next call of a function declared as [`FunctionMode::Pull`].
    ///
    /// Blocks for at most `at_most` ([`Duration::MAX`] for ever), or until the server ends. Any number of
    /// threads may call it. Always `None` on several fabrics, which do not support such functions.
    pub fn receive(&self, at_most: Duration) -> Option<Incoming> {
        match self {
            Server::Shm(server) => server.receive(at_most).map(|call| Incoming::of(call, Deferred::Shm)),
            Server::Rdma(server) => server.receive(at_most).map(|call| Incoming::of(call, Deferred::Rdma)),
            #[cfg(feature = "ofi")]
            Server::Ofi(server) => server.receive(at_most).map(|call| Incoming::of(call, Deferred::Ofi)),
            Server::Several(_) => None,
            Server::Node(node) => node.server().receive(at_most),
        }
    }

    /// Returns the settings: those of the first server, on several fabrics.
    pub(crate) fn config(&self) -> Option<&ServerConfig> {
        match self {
            Server::Shm(server) => Some(server.config()),
            Server::Rdma(server) => Some(server.config()),
            #[cfg(feature = "ofi")]
            Server::Ofi(server) => Some(server.config()),
            Server::Several(servers) => servers.servers().first()?.config(),
            Server::Node(node) => node.server().config(),
        }
    }

    /// Serves until the process gets SIGINT (Ctrl-C) or SIGTERM, and then stops the server gracefully within
    /// [`ServerConfig::shutdown_timeout`]. A second signal ends the process at once. Blocks.
    ///
    /// It handles these signals for the rest of the process. A program with signal handlers of its own calls
    /// [`shutdown`](Server::shutdown).
    ///
    /// # Errors
    /// The signals cannot be handled. The server is stopped at once.
    pub fn run_until_signal(self) -> std::io::Result<()> {
        wait_for_signal()?;
        let timeout = self.config().map_or(Duration::ZERO, |config| config.shutdown_timeout);
        self.shutdown(timeout);
        Ok(())
    }

    /// Stops the server gracefully: notifies the clients and answers the received calls. After at most
    /// `timeout` it closes the remaining connections. Blocks.
    pub fn shutdown(self, timeout: Duration) {
        match self {
            Server::Shm(server) => server.shutdown(timeout),
            Server::Rdma(server) => server.shutdown(timeout),
            #[cfg(feature = "ofi")]
            Server::Ofi(server) => server.shutdown(timeout),
            Server::Several(servers) => std::thread::scope(|scope| {
                for server in servers.into_servers() {
                    scope.spawn(move || server.shutdown(timeout));
                }
            }),
            Server::Node(node) => node.into_server().shutdown(timeout),
        }
    }
}

/// A worker run by a thread of the application.
#[derive(Debug)]
pub enum Worker {
    /// A worker on shared memory.
    Shm(dunlin_rpc::Worker<ShmFabric>),
    /// A worker on RDMA.
    Rdma(dunlin_rpc::Worker<RdmaFabric>),
    /// A worker on libfabric.
    #[cfg(feature = "ofi")]
    Ofi(dunlin_rpc::Worker<OfiFabric>),
}

impl Worker {
    /// Returns the worker's number, counted from 0.
    pub fn number(&self) -> u16 {
        each!(Self, self, worker => worker.number())
    }

    /// Serves until the server stops.
    pub fn run(self) {
        each!(Self, self, worker => worker.run());
    }

    /// Makes progress. If there is no work, waits for some, for at most `at_most`. Returns the amount of work
    /// done.
    pub fn step(&mut self, at_most: Duration) -> usize {
        each!(Self, self, worker => worker.step(at_most))
    }

    /// Returns whether the server has stopped the worker.
    pub fn is_ended(&self) -> bool {
        each!(Self, self, worker => worker.is_ended())
    }

    /// Makes progress without waiting. Returns the amount of work done.
    pub fn progress(&mut self) -> usize {
        each!(Self, self, worker => worker.progress())
    }
}

#[derive(Debug)]
enum Deferred {
    Shm(dunlin_rpc::Incoming<ShmFabric>),
    Rdma(dunlin_rpc::Incoming<RdmaFabric>),
    #[cfg(feature = "ofi")]
    Ofi(dunlin_rpc::Incoming<OfiFabric>),
}

/// A deferred call, taken from its worker. If it is dropped without an answer, the caller gets a handler
/// failure.
#[derive(Debug)]
pub struct Incoming {
    /// The function id.
    pub function: u16,
    /// The payload.
    pub payload: Vec<u8>,
    /// The caller's session.
    pub session: u64,
    deferred: Deferred,
}

impl Incoming {
    fn of<F: Fabric>(
        mut call: dunlin_rpc::Incoming<F>,
        keep: impl FnOnce(dunlin_rpc::Incoming<F>) -> Deferred,
    ) -> Self {
        Incoming {
            function: call.function,
            payload: std::mem::take(&mut call.payload),
            session: call.session,
            deferred: keep(call),
        }
    }

    /// Returns the time left until the call's deadline: zero if it has passed, `None` without a deadline.
    /// Reads the clock.
    pub fn time_left(&self) -> Option<Duration> {
        each!(Deferred, &self.deferred, call => call.time_left())
    }

    /// Answers with a result.
    pub fn reply(self, payload: Vec<u8>) {
        match self.deferred {
            Deferred::Shm(call) => call.reply(payload),
            Deferred::Rdma(call) => call.reply(payload),
            #[cfg(feature = "ofi")]
            Deferred::Ofi(call) => call.reply(payload),
        }
    }

    /// Answers with an error.
    pub fn refuse(self, status: Status) {
        match self.deferred {
            Deferred::Shm(call) => call.refuse(status),
            Deferred::Rdma(call) => call.refuse(status),
            #[cfg(feature = "ofi")]
            Deferred::Ofi(call) => call.refuse(status),
        }
    }
}
