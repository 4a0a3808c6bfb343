//! Servers on whichever fabric their address names.

use crate::fabrics::{Choose, ChosenFabric};
use crate::several::{Place, SeveralServers, reason};
use dunlin_fabric::{Address, Fabric, ListenError, Nanos, Scheme, Unavailable};
#[cfg(feature = "ofi")]
use dunlin_fabric_ofi::OfiFabric;
use dunlin_fabric_rdma::RdmaFabric;
use dunlin_fabric_shm::ShmFabric;
use dunlin_rpc::{Counters, FunctionMode, PoolService, ServeError, ServerConfig, Service, Status};
use std::sync::Arc;

/// Describes a server before it starts.
#[derive(Clone)]
pub struct ServerBuilder {
    fabrics: Arc<dyn Choose>,
    config: ServerConfig,
    functions: Vec<(u16, FunctionMode)>,
    pool: Option<Arc<dyn PoolService>>,
}

impl std::fmt::Debug for ServerBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServerBuilder")
            .field("config", &self.config)
            .field("functions", &self.functions)
            .finish_non_exhaustive()
    }
}

impl ServerBuilder {
    /// A server with default settings and no functions.
    pub fn new(fabrics: &(impl Choose + Clone)) -> Self {
        let (config, functions) = (ServerConfig::default(), Vec::new());
        ServerBuilder { fabrics: Arc::new(fabrics.clone()), config, functions, pool: None }
    }

    /// Sets the settings.
    #[must_use]
    pub fn config(mut self, config: ServerConfig) -> Self {
        self.config = config;
        self
    }

    /// Declares a function and where it runs. What is not declared is refused as unknown.
    #[must_use]
    pub fn function(mut self, id: u16, mode: FunctionMode) -> Self {
        self.functions.push((id, mode));
        self
    }

    /// Sets what the threads of the pool run.
    #[must_use]
    pub fn pool(mut self, service: impl PoolService) -> Self {
        self.pool = Some(Arc::new(service));
        self
    }

    /// The engine's description on one fabric.
    fn on<F: Fabric>(self, fabric: &F) -> dunlin_rpc::ServerBuilder<F> {
        let described = dunlin_rpc::ServerBuilder::new(fabric).config(self.config);
        let described =
            self.functions.into_iter().fold(described, |described, (id, mode)| described.function(id, mode));
        match self.pool {
            Some(pool) => described.pool_shared(pool),
            None => described,
        }
    }

    /// Starts the server: listens, and runs each worker on a thread of its own with the service made for it.
    ///
    /// At an address of `auto:` it is on all fabrics that can be used here, as long as there is one, with as many workers on
    /// each as the settings say, numbered on from one fabric to the next. A client reaches the workers of its fabric, so
    /// services of different workers have to be as good as each other there. Functions cannot be pulled.
    pub fn serve(
        self,
        address: &Address,
        mut service: impl FnMut(u16) -> Box<dyn Service>,
    ) -> Result<Server, ServeError> {
        if address.scheme() != Scheme::Auto {
            return self.serve_one(address, service);
        }
        let several = self.several(address, |builder, address, made| {
            let service = |_| service(made.next());
            Ok((builder.serve_one(address, service)?, ()))
        })?;
        Ok(several.0)
    }

    /// Servers on several fabrics, each started by `start`.
    fn several<T>(
        self,
        address: &Address,
        mut start: impl FnMut(ServerBuilder, &Address, &mut Numbers) -> Result<(Server, T), ServeError>,
    ) -> Result<(Server, Vec<T>), ServeError> {
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
                // What has no server has no workers either, whoever was asked for.
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
        Ok(match self.fabrics.choose(address).map_err(ListenError::from)? {
            ChosenFabric::Shm(fabric) => Server::Shm(self.on(&fabric).serve(address, service)?),
            ChosenFabric::Rdma(fabric) => Server::Rdma(self.on(&fabric).serve(address, service)?),
            #[cfg(feature = "ofi")]
            ChosenFabric::Ofi(fabric) => Server::Ofi(self.on(&fabric).serve(address, service)?),
        })
    }

    /// As [`serve`](ServerBuilder::serve), but the caller runs the workers, on threads of its own.
    pub fn serve_with(
        self,
        address: &Address,
        mut service: impl FnMut(u16) -> Box<dyn Service>,
    ) -> Result<(Server, Vec<Worker>), ServeError> {
        if address.scheme() != Scheme::Auto {
            return self.serve_one_with(address, service);
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
        Ok(match self.fabrics.choose(address).map_err(ListenError::from)? {
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

/// The workers' numbers, on from one fabric to the next.
struct Numbers(u16);

impl Numbers {
    fn next(&mut self) -> u16 {
        let next = self.0;
        self.0 = next.saturating_add(1);
        next
    }
}

/// A running server. Dropping it ends it at once; [`shutdown`](Server::shutdown) is the gentle way.
#[derive(Debug)]
pub enum Server {
    /// On shared memory.
    Shm(dunlin_rpc::Server<ShmFabric>),
    /// On RDMA.
    Rdma(dunlin_rpc::Server<RdmaFabric>),
    /// On libfabric.
    #[cfg(feature = "ofi")]
    Ofi(dunlin_rpc::Server<OfiFabric>),
    /// On several fabrics, at an address of `auto:`.
    Several(Box<SeveralServers>),
}

impl Server {
    /// The address that clients dial: with a port of 0, the one that the system has chosen.
    pub fn address(&self) -> &Address {
        match self {
            Server::Shm(server) => server.address(),
            Server::Rdma(server) => server.address(),
            #[cfg(feature = "ofi")]
            Server::Ofi(server) => server.address(),
            Server::Several(servers) => servers.address(),
        }
    }

    /// Connections now.
    pub fn connections(&self) -> usize {
        match self {
            Server::Shm(server) => server.connections(),
            Server::Rdma(server) => server.connections(),
            #[cfg(feature = "ofi")]
            Server::Ofi(server) => server.connections(),
            Server::Several(servers) => servers.servers().iter().map(Server::connections).sum(),
        }
    }

    /// What has become of connections so far.
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
        }
    }

    /// The next call of a function declared [`FunctionMode::Pull`]; blocks until then at most. Any number of threads may
    /// pull. On several fabrics there are no such functions.
    pub fn receive(&self, until: Nanos) -> Option<Incoming> {
        match self {
            Server::Shm(server) => server.receive(until).map(|call| Incoming::of(call, Deferred::Shm)),
            Server::Rdma(server) => server.receive(until).map(|call| Incoming::of(call, Deferred::Rdma)),
            #[cfg(feature = "ofi")]
            Server::Ofi(server) => server.receive(until).map(|call| Incoming::of(call, Deferred::Ofi)),
            Server::Several(_) => None,
        }
    }

    /// Ends the server gently: clients are told, what was received is answered, and after `timeout` nanoseconds at most the
    /// rest is cut off. Blocks.
    pub fn shutdown(self, timeout: Nanos) {
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
        }
    }
}

/// A worker run by the application's own thread.
#[derive(Debug)]
pub enum Worker {
    /// On shared memory.
    Shm(dunlin_rpc::Worker<ShmFabric>),
    /// On RDMA.
    Rdma(dunlin_rpc::Worker<RdmaFabric>),
    /// On libfabric.
    #[cfg(feature = "ofi")]
    Ofi(dunlin_rpc::Worker<OfiFabric>),
}

impl Worker {
    /// Its number, from 0 on.
    pub fn number(&self) -> u16 {
        each!(Self, self, worker => worker.number())
    }

    /// Serves until the server ends.
    pub fn run(self) {
        each!(Self, self, worker => worker.run());
    }

    /// Makes progress, and waits until then at most if there is nothing to do; how much was done.
    pub fn step(&mut self, until: Nanos) -> usize {
        each!(Self, self, worker => worker.step(until))
    }

    /// Whether the server has ended it.
    pub fn is_ended(&self) -> bool {
        each!(Self, self, worker => worker.is_ended())
    }

    /// Makes progress without waiting; how much was done.
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

/// A call taken off its worker. Dropped without an answer it answers that the handler failed.
#[derive(Debug)]
pub struct Incoming {
    /// The function id.
    pub function: u16,
    /// The payload.
    pub payload: Vec<u8>,
    /// When the call's deadline is, on the server's clock; `None` for no deadline.
    pub deadline: Option<Nanos>,
    /// The session of the caller.
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
            deadline: call.deadline,
            session: call.session,
            deferred: keep(call),
        }
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
