//! Dunlin: RPC over remote memory access.
//!
//! This crate is the public interface. It holds re-exports, shorthands and documentation, and never any
//! mechanism. An address selects the back-end at run time: `shm:NAME` is shared memory between processes of
//! one host, `rdma:HOST:PORT` is RDMA verbs, and `auto:HOST:PORT` is the first of these that client and
//! server can both use.
//!
//! ```
//! use dunlin::{Client, ClientConfig, Fabrics, FunctionMode, Reply, Request, ServerBuilder};
//!
//! let fabrics = Fabrics::default();
//! let address = format!("shm:doc-{}", std::process::id()).parse()?;
//! let server = ServerBuilder::new(&fabrics).function(1, FunctionMode::Worker).serve(&address, |_worker| {
//!     Box::new(|request: &Request<'_>, reply: &mut Reply<'_>| {
//!         reply.write(b"hello ")?;
//!         reply.write(request.payload)?;
//!         Ok(())
//!     })
//! })?;
//! let mut client = Client::connect(&fabrics, &address, ClientConfig::default())?;
//! assert_eq!(&*client.call(1, b"world")?, b"hello world");
//! drop(client);
//! server.shutdown(1_000_000_000);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Typed clients and servers accept all addresses through [`Fabrics`]: also `tcp:HOST:PORT` (stock Thrift),
//! which `auto:` takes last. With a single fabric instead, each call saves a branch. [`on_fabric!`] compiles
//! a block for each fabric and runs the one that the address selects:
//!
//! ```no_run
//! use dunlin::{Fabrics, on_fabric};
//!
//! fn call<F: dunlin::Fabric>(fabric: &F, address: &dunlin::Address) {
//!     // EchoClient::connect(fabric, address, ClientOptions::default()) and so on
//! }
//! let address = "rdma:node-7:7000".parse()?;
//! on_fabric!(&Fabrics::default().choose(&address)?, fabric => call(fabric, &address));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub use dunlin_fabric::{
    Address, AddressError, BadRates, BindError, Capabilities, ChosenTransport, DeviceIdentity, DialError,
    Fabric, ListenError, Nanos, PassedOver, RateRow, Rates, RatesSource, Scheme, Topology, Unavailable,
    WithSources,
};
#[cfg(feature = "ofi")]
pub use dunlin_fabric_ofi::{OfiConfig, OfiFabric, OpenError as OfiError};
pub use dunlin_fabric_rdma::{DeviceChoice, OpenError as RdmaError, RdmaConfig, RdmaFabric, SettingError};
pub use dunlin_fabric_shm::{AllowPolicy, ShmConfig, ShmFabric};
#[cfg(feature = "thrift")]
pub use dunlin_hints as hints;
pub use dunlin_rpc::{
    ApplicationCode, BackoffConfig, BatchCalls, Batching, CallError, CallId, Cause, Certainty, ClientConfig,
    CompletionMode, ConnectError, ConnectedClient, Counters, FetchChoice, Filling, FirstRead, FunctionMode,
    FunctionTuning, Illegal, LargePayload, Lease, PROTOCOLS, Plan, PoolService, Protocol, Reply,
    ReplyTooLarge, Request, RequestHalf, ResponseHalf, RunningPlan, RunsIn, SLOW_HANDLER, SMALL_LIMIT,
    ServeError, ServerConfig, Service, Sharing, Status, Tuning, WaitsAs, Way, messages,
    tune::table::FetchTable,
};
#[cfg(feature = "thrift")]
pub use dunlin_thrift as thrift;
pub use dunlin_transport::{
    AsyncClient, AsyncHubs, AsyncResponse, AsyncWithin, Call, Choose, ChosenFabric, Client, Fabrics,
    FabricsConfig, FillingRequest, Incoming, LargeRequest, ResolveError, Resolved, Response, Server,
    ServerBuilder, SeveralServers, TableError, Tables, TablesFrom, Within, Worker, on_fabric,
};
#[cfg(feature = "thrift")]
pub use dunlin_transport::{TypedAsyncClient, TypedAsyncServer, TypedCall, TypedClient, TypedServer};
use std::io;

/// The engine's types, generic over the fabric: for programs that use [`on_fabric!`] or a single fabric.
pub mod engine {
    pub use dunlin_rpc::{
        AsyncClient, AsyncHub, AsyncResponse, AsyncWithin, Call, Client, FillingRequest, Incoming,
        LargeRequest, Response, Server, ServerBuilder, Within, Worker,
    };
}

/// The default fabric of typed clients: shared memory.
pub type DefaultFabric = ShmFabric;

/// The resources that typed asynchronous clients of one fabric share.
pub type AsyncHub<F = DefaultFabric> = dunlin_rpc::AsyncHub<F>;

/// Includes the code that `dunlin_idl_build::compile` generated from `NAME.thrift` in the build script:
/// `include_service!("NAME");`
#[cfg(feature = "thrift")]
#[macro_export]
macro_rules! include_service {
    ($name:literal) => {
        include!(concat!(env!("OUT_DIR"), "/", $name, ".rs"));
    };
}

/// Returns shared memory with default settings; one per process is enough.
///
/// It accepts only `shm:` addresses, while [`Fabrics`] accepts all. Measured rates of this machine are read
/// from the user's tables ([`Tables::of_user`]).
pub fn fabric() -> io::Result<DefaultFabric> {
    Fabrics::default().shm()
}
