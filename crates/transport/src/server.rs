//! Servers on whichever fabric their address names.

use crate::fabrics::{Choose, ChosenFabric};
use dunlin_fabric::{Address, Fabric, ListenError, Nanos};
use dunlin_fabric_rdma::RdmaFabric;
use dunlin_fabric_shm::ShmFabric;
use dunlin_rpc::{Counters, FunctionMode, PoolService, ServeError, ServerConfig, Service, Status};
use std::sync::Arc;

/// Describes a server before it starts.
pub struct ServerBuilder {
    fabrics: Box<dyn Choose>,
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
        ServerBuilder { fabrics: Box::new(fabrics.clone()), config, functions, pool: None }
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
    pub fn serve(
        self,
        address: &Address,
        service: impl FnMut(u16) -> Box<dyn Service>,
    ) -> Result<Server, ServeError> {
        Ok(match self.fabrics.choose(address).map_err(ListenError::from)? {
            ChosenFabric::Shm(fabric) => Server::Shm(self.on(&fabric).serve(address, service)?),
            ChosenFabric::Rdma(fabric) => Server::Rdma(self.on(&fabric).serve(address, service)?),
        })
    }

    /// As [`serve`](ServerBuilder::serve), but the caller runs the workers, on threads of its own.
    pub fn serve_with(
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
        })
    }
}

/// A running server. Dropping it ends it at once; [`shutdown`](Server::shutdown) is the gentle way.
#[derive(Debug)]
pub enum Server {
    /// On shared memory.
    Shm(dunlin_rpc::Server<ShmFabric>),
    /// On RDMA.
    Rdma(dunlin_rpc::Server<RdmaFabric>),
}

impl Server {
    /// The address that clients dial: with a port of 0, the one that the system has chosen.
    pub fn address(&self) -> &Address {
        each!(self, server => server.address())
    }

    /// Connections now.
    pub fn connections(&self) -> usize {
        each!(self, server => server.connections())
    }

    /// What has become of connections so far.
    pub fn counters(&self) -> Counters {
        each!(self, server => server.counters())
    }

    /// The next call of a function declared [`FunctionMode::Pull`]; blocks until then at most. Any number of threads may
    /// pull.
    pub fn receive(&self, until: Nanos) -> Option<Incoming> {
        match self {
            Server::Shm(server) => server.receive(until).map(|call| Incoming::of(call, Deferred::Shm)),
            Server::Rdma(server) => server.receive(until).map(|call| Incoming::of(call, Deferred::Rdma)),
        }
    }

    /// Ends the server gently: clients are told, what was received is answered, and after `timeout` nanoseconds at most the
    /// rest is cut off. Blocks.
    pub fn shutdown(self, timeout: Nanos) {
        each!(self, server => server.shutdown(timeout));
    }
}

/// A worker run by the application's own thread.
#[derive(Debug)]
pub enum Worker {
    /// On shared memory.
    Shm(dunlin_rpc::Worker<ShmFabric>),
    /// On RDMA.
    Rdma(dunlin_rpc::Worker<RdmaFabric>),
}

impl Worker {
    /// Its number, from 0 on.
    pub fn number(&self) -> u16 {
        each!(self, worker => worker.number())
    }

    /// Serves until the server ends.
    pub fn run(self) {
        each!(self, worker => worker.run());
    }

    /// Makes progress, and waits until then at most if there is nothing to do; how much was done.
    pub fn step(&mut self, until: Nanos) -> usize {
        each!(self, worker => worker.step(until))
    }

    /// Whether the server has ended it.
    pub fn is_ended(&self) -> bool {
        each!(self, worker => worker.is_ended())
    }

    /// Makes progress without waiting; how much was done.
    pub fn progress(&mut self) -> usize {
        each!(self, worker => worker.progress())
    }
}

#[derive(Debug)]
enum Deferred {
    Shm(dunlin_rpc::Incoming<ShmFabric>),
    Rdma(dunlin_rpc::Incoming<RdmaFabric>),
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
        }
    }

    /// Answers with an error.
    pub fn refuse(self, status: Status) {
        match self.deferred {
            Deferred::Shm(call) => call.refuse(status),
            Deferred::Rdma(call) => call.refuse(status),
        }
    }
}
