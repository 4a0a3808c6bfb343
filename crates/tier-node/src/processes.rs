//! The node of a host for the processes of that host (section 3.3): they attach over shared memory as clients of the
//! engine, and share the node's queue pairs, its arena and its records.
//!
//! ```text
//! worker        ATTACH, and READ and WRITE of bytes on this node     never waits
//!               READ, WRITE, atomics, lists, READ_INTO, WRITE_FROM: short, and without wait at once, or in a later turn
//!               REGISTER, RECEIVE, REPLY, INVOKE                     answered later
//!               LOCK, UNLOCK, BARRIER, GIVE_UP, LOCK_HOME            answered later
//! pool          the others of these                                  may wait for other nodes
//! attendants    MALLOC, MAP, FREE, MEMSET, COPY, ...                 wait for other nodes
//! ```

mod answer;
mod buffers;
mod direct;
mod gateway;
mod kept;
mod locks;
mod operator;
mod registry;
mod service;
mod turns;

use self::answer::{Pooled, Working, attend};
use self::gateway::Gateway;
use self::locks::LockDesk;
use self::registry::{Counters, Registry};
use self::service::Desk;
use self::turns::Turns;
use crate::error::JoinError;
use crate::forward::Board;
use crate::node::SignalOf;
use crate::tier::Tier;
use crate::tokens::PrincipalTokens;
use dunlin_fabric::{Address, Fabric, Host, ListenError, Signal, Task};
use dunlin_rpc::{FunctionMode, Server, ServerBuilder, ServerConfig};
use dunlin_tier::call::{MAX_CALL, MAX_HEAD};
use dunlin_tier::process::lock::{BARRIER, GIVE_UP, LOCK, LOCK_HOME, UNLOCK};
use dunlin_tier::process::operator::{FREE_NAMED, HAND_OVER, HELD, LEAVE, LENT, MOVE_AWAY};
use dunlin_tier::process::service::{
    INVOKE, PING, RECEIVE, REGISTER, REGISTER_SERVER, REPLY, SERVERS, WITHDRAW,
};
use dunlin_tier::process::{
    ATTACH, BUFFER, COMPARE_SWAP, COPY, DIRECT, FETCH_ADD, FREE, GRANT, LEASE, LET_GO, LIST, MALLOC, MAP,
    MEMSET, MOVE, PUBLISH, READ, READ_HERE, READ_INTO, REVOKE, RUN, Ran, SERVICE, STATUS, UNMAP, WRITE,
    WRITE_FROM, WRITE_HERE, WRITE_NOTIFY, direct_name,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The longest request and the longest answer: those of a call to a service, with their heads.
const MAX_PAYLOAD: u64 = MAX_CALL as u64 + MAX_HEAD as u64;
/// Registered memory for long requests of all processes.
const LARGE_MEMORY: u64 = 16 << 20;

/// The most that a node gives one process: one user and process id, as the kernel reports them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessLimits {
    /// Handles. Default: 4096.
    pub handles: u32,
    /// Requests that are served at the same time. Default: 4, half of [`ProcessConfig::threads`].
    pub operations: u16,
    /// Connections. Default: 64.
    pub connections: u16,
    /// Registered functions of services. Default: 64.
    pub services: u16,
    /// Calls to services that are under way. Default: 256.
    pub calls: u32,
    /// Locks and barriers that it has or waits for. Default: 256.
    pub locks: u32,
    /// Buffers. Default: 64.
    pub buffers: u16,
    /// Bytes of its buffers. Default: 256 MiB. Each process with buffers takes whole extents of the node's memory.
    pub buffer_bytes: u64,
}

impl Default for ProcessLimits {
    fn default() -> Self {
        ProcessLimits {
            handles: 4096,
            operations: 4,
            connections: 64,
            services: 64,
            calls: 256,
            locks: 256,
            buffers: 64,
            buffer_bytes: 256 << 20,
        }
    }
}

/// Settings of the service for processes.
#[derive(Clone, Debug)]
pub struct ProcessConfig {
    /// The address at which processes attach.
    pub address: Address,
    /// The most that each process gets.
    pub limits: ProcessLimits,
    /// The users whose processes may have the node leave. Default: none.
    pub operators: Vec<u32>,
    /// The principals of users, by user id. A user that is not listed is `user-ID`. Default: none.
    pub users: BTreeMap<u32, String>,
    /// The principals of tokens. A process that presents a token acts for its principal, whichever user it belongs to, and
    /// is refused if the token is none of these. Default: none.
    pub tokens: PrincipalTokens,
    /// Threads for operations on bytes that may wait for other nodes, and the same number again for other requests.
    /// Default: 8.
    pub threads: u16,
    /// Threads that serve the processes: each takes their requests, runs short operations and hands calls on. A connection of
    /// a process leads to all of them. Default: 1.
    pub workers: u16,
}

impl ProcessConfig {
    /// Returns default settings.
    pub fn new(address: Address) -> ProcessConfig {
        let (limits, operators) = (ProcessLimits::default(), Vec::new());
        let (users, tokens) = (BTreeMap::new(), PrincipalTokens::default());
        ProcessConfig { address, limits, operators, users, tokens, threads: 8, workers: 1 }
    }
}

/// The service of a node for the processes of its host, and its gateway for calls of any service (`node:SERVICE`).
/// Dropping it ends both; the processes' handles are closed.
#[derive(Debug)]
pub struct ProcessServer<P: Fabric> {
    server: Option<Server<P>>,
    /// Takes calls of any service.
    gateway: Option<Server<P>>,
    board: Arc<Board<P>>,
    attendants: Vec<Task>,
    /// Gives processes memory to map.
    direct: Option<(Task, SignalOf<P>, Arc<AtomicBool>)>,
    counters: Arc<Counters>,
    leaves: Arc<AtomicBool>,
}

impl<P: Fabric> ProcessServer<P> {
    /// Returns whether a process of an [operator](ProcessConfig::operators) has asked the node to leave: the program that
    /// runs the node is to end it.
    pub fn is_to_leave(&self) -> bool {
        self.leaves.load(Ordering::Relaxed)
    }

    /// Returns the places where operations on bytes have run.
    pub fn counts(&self) -> Ran {
        self.counters.ran()
    }

    /// Serves processes over `fabric`, whose links must know the user of a process: shared memory. The node may be on
    /// another fabric.
    pub fn serve<F: Fabric>(fabric: &P, tier: &Tier<F>, config: ProcessConfig) -> Result<Self, JoinError> {
        let settings = ServerConfig {
            pool_threads: config.threads,
            workers: config.workers,
            max_payload: MAX_PAYLOAD,
            max_response: MAX_PAYLOAD,
            large_memory: LARGE_MEMORY,
            large_response_memory: LARGE_MEMORY,
            max_connections: 4096,
            service: SERVICE.to_owned(),
            ..ServerConfig::default()
        };
        for principal in config.users.values() {
            tier.acting_for(principal)?;
        }
        let (address, threads) = (config.address.clone(), config.threads);
        let registry = Arc::new(Registry::new(fabric, tier.clone(), config));
        registry.recover();
        let mut builder = ServerBuilder::new(fabric).config(settings).observe(Arc::clone(&registry) as _);
        for function in [RECEIVE, REPLY, INVOKE] {
            builder = builder.taken_by(function, Arc::new(Desk(Arc::clone(&registry))));
        }
        for function in [LOCK, UNLOCK, BARRIER, GIVE_UP, LOCK_HOME] {
            builder = builder.taken_by(function, Arc::new(LockDesk(Arc::clone(&registry))));
        }
        for function in [ATTACH, READ_HERE, WRITE_HERE, REGISTER, REGISTER_SERVER, WITHDRAW, PING] {
            builder = builder.function(function, FunctionMode::Worker);
        }
        for function in [READ, WRITE, FETCH_ADD, COMPARE_SWAP, RUN, WRITE_NOTIFY, READ_INTO, WRITE_FROM] {
            builder = builder.function(function, FunctionMode::Polled);
        }
        for function in [
            MEMSET, COPY, MALLOC, PUBLISH, MOVE, MAP, UNMAP, FREE, GRANT, REVOKE, LEASE, STATUS, LIST,
            SERVERS, LEAVE, DIRECT, LET_GO, BUFFER, FREE_NAMED, LENT, MOVE_AWAY, HELD, HAND_OVER,
        ] {
            builder = builder.function(function, FunctionMode::Pull);
        }
        let polled = Arc::clone(&registry);
        let server = builder
            .polled(move |_| Box::new(Turns::new(Arc::clone(&polled))))
            .pool(Pooled(Arc::clone(&registry)))
            .serve(&address, |_| Box::new(Working::new(Arc::clone(&registry))))?;
        let (board, counters) = (Arc::clone(&registry.board), Arc::clone(&registry.counters));
        let leaves = Arc::clone(&registry.leaves);
        let mut processes = ProcessServer {
            server: Some(server),
            gateway: None,
            board,
            attendants: Vec::new(),
            direct: None,
            counters,
            leaves,
        };
        processes.gateway = Some(Gateway::serve(fabric, &registry, &address)?);
        // Elsewhere a process cannot map memory of the node.
        if fabric.capabilities().initiator_copies {
            let own = Address::new(address.scheme(), &direct_name(address.name()));
            let listener = fabric.listen(&own.map_err(ListenError::from)?)?;
            let (signal, over) = (fabric.host().signal(), Arc::new(AtomicBool::new(false)));
            let (registry, fabric) = (Arc::clone(&registry), fabric.clone());
            let (woken, ends) = (signal.clone(), Arc::clone(&over));
            let host = fabric.host().clone();
            let body = Box::new(move || registry.serve_direct(&fabric, &listener, &woken, &ends));
            processes.direct = Some((host.spawn("tier-direct", body)?, signal, over));
        }
        for number in 0..threads {
            let Some(puller) = processes.server.as_ref().map(Server::puller) else { break };
            let registry = Arc::clone(&registry);
            let body = Box::new(move || attend(&registry, &puller));
            processes.attendants.push(fabric.host().spawn(&format!("tier-attend-{number}"), body)?);
        }
        Ok(processes)
    }
}

impl<P: Fabric> Drop for ProcessServer<P> {
    fn drop(&mut self) {
        drop(self.gateway.take());
        if let Some((task, signal, over)) = self.direct.take() {
            over.store(true, Ordering::Release);
            signal.raise();
            task.join();
        }
        self.board.close();
        // Ends the queue of the attendants, too.
        drop(self.server.take());
        self.attendants.drain(..).for_each(Task::join);
    }
}
