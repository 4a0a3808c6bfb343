//! Dunlin: RPC over remote memory access.
//!
//! This crate is the public interface. It holds re-exports, the error type of `main` ([`Report`]) and documentation, and
//! never any mechanism. The root has the items that every program needs; the modules have the rest:
//!
//! | module | content |
//! |---|---|
//! | [`client`], [`server`] | further types of clients and servers |
//! | [`errors`] | all errors but [`CallError`] |
//! | [`fabric`] | single fabrics and their settings, the transport in use |
//! | [`plan`] | plans and protocols |
//! | [`tune`] | batching, back-off, the choice between fetching and writing back, measured rates |
//! | [`rfp`] | RF-RPC's own calls: messages without functions |
//! | [`raw`] | the engine, generic over a fabric |
//! | `tier` | named memory regions on every node; this process is a node (feature `tier`) |
//! | `tier_client` | the same for a process that attaches to the node of its host (feature `tier`) |
//! | `thrift`, `hints` | typed services (feature `thrift`) |
//!
//! An address selects the back-end at run time: `shm:NAME` is shared memory between processes of one host,
//! `rdma:HOST:PORT` is RDMA verbs, and `auto:HOST:PORT` is the first of these that client and server can both
//! use. Typed services also take `tcp:HOST:PORT`, stock Thrift, which `auto:` takes last.
//!
//! ```
//! use dunlin::{Client, FunctionMode, Reply, Request, ServerBuilder};
//! use std::time::Duration;
//!
//! let address = format!("shm:doc-{}", std::process::id());
//! let server = ServerBuilder::new().function(1, FunctionMode::Worker).serve(&address, |_worker| {
//!     Box::new(|request: &Request<'_>, reply: &mut Reply<'_>| {
//!         reply.write(b"hello ")?;
//!         reply.write(request.payload)?;
//!         Ok(())
//!     })
//! })?;
//! let mut client = Client::connect(&address)?;
//! assert_eq!(&*client.call(1, b"world")?, b"hello world");
//! drop(client);
//! server.shutdown(Duration::from_secs(1));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Each short form has a long one with fabrics and settings: `connect` and `connect_with`, `serve` and
//! `serve_with`. The short forms use the fabrics of the process ([`Fabrics::global`]), which a program
//! with settings of its own sets once ([`Fabrics::make_global`]).
//!
//! With a single fabric in place of all, each call saves a branch. [`on_fabric!`] compiles a block for each
//! fabric and runs the one that the address selects:
//!
//! ```no_run
//! use dunlin::fabric::Fabric;
//! use dunlin::{Address, Fabrics, on_fabric};
//!
//! fn call<F: Fabric>(fabric: &F, address: &Address) {
//!     // EchoClient::connect_with(fabric, address, ClientOptions::default()) and so on
//! }
//! let address = "rdma:node-7:7000".parse()?;
//! on_fabric!(&Fabrics::global().choose(&address)?, fabric => call(fabric, &address));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod report;

pub use self::report::Report;
pub use dunlin_fabric::Address;
#[cfg(feature = "thrift")]
pub use dunlin_hints as hints;
pub use dunlin_rpc::{
    CallError, Cause, Certainty, ClientConfig, FunctionMode, Reply, Request, ServerConfig, Service, Status,
};
#[cfg(feature = "thrift")]
pub use dunlin_thrift as thrift;
#[cfg(feature = "thrift")]
pub use dunlin_thrift::{ClientOptions, Context, ServerOptions, serve_with};
#[cfg(feature = "tier")]
pub use dunlin_tier_client as tier_client;
#[cfg(feature = "tier")]
pub use dunlin_tier_node as tier;
#[cfg(feature = "thrift")]
pub use dunlin_transport::serve;
pub use dunlin_transport::{AsyncClient, Client, Fabrics, Server, ServerBuilder, on_fabric};

/// Further types of clients: results, calls in flight, large requests.
pub mod client {
    pub use dunlin_rpc::{CallId, PayloadWriter, RemoteRegion};
    pub use dunlin_transport::{
        AsyncResponse, AsyncWithin, Call, Connecting, FillingRequest, LargeRequest, Response, Within,
    };
    #[cfg(feature = "thrift")]
    pub use dunlin_transport::{TypedAsyncClient, TypedCall, TypedClient};
}

/// Further types of servers: workers on threads of the program, pulled calls, servers on several fabrics.
pub mod server {
    pub use dunlin_rpc::{ApplicationCode, Counters, Deployment, PoolService, SLOW_HANDLER};
    pub use dunlin_transport::{Incoming, SeveralServers, Worker};
    #[cfg(feature = "thrift")]
    pub use dunlin_transport::{TypedAsyncServer, TypedServer, serve_async};
}

/// All errors but [`CallError`].
pub mod errors {
    pub use dunlin_fabric::{
        AddressError, BadRates, BindError, DialError, ListenError, Unavailable, WithSources,
    };
    #[cfg(feature = "ofi")]
    pub use dunlin_fabric_ofi::OpenError as OfiError;
    pub use dunlin_fabric_rdma::{OpenError as RdmaError, SettingError};
    pub use dunlin_rpc::{ConnectError, MemoryError, PlanError, ReplyTooLarge, ServeError};
    pub use dunlin_transport::{GlobalInUse, ResolveError, TableError};
}

/// Single fabrics and their settings, and the transport that an address selects.
pub mod fabric {
    pub use dunlin_fabric::{
        Access, Atomics, Capabilities, ChosenTransport, DeviceIdentity, Fabric, IntoAddress, KeeperError,
        MemoryKeeper, Nanos, PassedOver, Region, Scheme, Topology,
    };
    #[cfg(feature = "ofi")]
    pub use dunlin_fabric_ofi::{OfiConfig, OfiFabric};
    pub use dunlin_fabric_rdma::{DeviceChoice, RdmaConfig, RdmaFabric};
    pub use dunlin_fabric_shm::{
        AllowPolicy, KeeperEvent, KeeperServer, ShmConfig, ShmFabric, ShmKeeper, ShmMemory,
    };
    pub use dunlin_transport::{
        AgreeError, AgreedFabric, ChosenFabric, FabricSelector, FabricsConfig, Resolved, beside,
        is_on_this_host,
    };

    /// Returns the shared memory of this process, which takes only `shm:` addresses.
    pub fn shm() -> std::io::Result<ShmFabric> {
        crate::Fabrics::global().shm()
    }
}

/// Plans: the protocol of each function's calls.
pub mod plan {
    pub use dunlin_rpc::{
        CompletionMode, LargePayload, Lease, PROTOCOLS, Plan, Protocol, RequestHalf, ResponseHalf,
        RunningPlan, RunsIn, SMALL_LIMIT, ServerConnections, Sharing, WaitsAs,
    };
}

/// Batching, back-off, the choice between fetching and writing back, and the measured rates for it.
pub mod tune {
    pub use dunlin_fabric::{ConnectionRow, RateRow, Rates, RatesSource};
    pub use dunlin_rpc::{
        BackoffConfig, BatchCalls, BatchRule, Batching, FetchChoice, FirstRead, FunctionTuning, ResponseMode,
        Tuning, tune::grouping::GroupDefaults, tune::table::FetchTable,
    };
    pub use dunlin_transport::{Tables, TablesFrom};
}

/// RF-RPC's own calls (its table 2): messages without functions, for programs with their own dispatch and
/// serialization. [`raw::messages`] documents them.
pub mod rfp {
    pub use dunlin_rpc::messages::{BufferError, ClientId, ReceiveError, SendError};
    pub use dunlin_transport::{MessageBuffer, MessageClient, MessageServer};
}

/// The engine, generic over the fabric: for programs that use [`on_fabric!`] or a single fabric.
pub mod raw {
    pub use dunlin_rpc::{
        AsyncClient, AsyncHub, AsyncResponse, AsyncWithin, Call, Client, FillingRequest, Incoming,
        LargeRequest, Response, Server, ServerBuilder, Within, Worker, messages,
    };
}

/// Includes the code that `dunlin_idl_build::compile` generated from `NAME.thrift` in the build script:
/// `include_service!("NAME");`
#[cfg(feature = "thrift")]
#[macro_export]
macro_rules! include_service {
    ($name:literal) => {
        include!(concat!(env!("OUT_DIR"), "/", $name, ".rs"));
    };
}
