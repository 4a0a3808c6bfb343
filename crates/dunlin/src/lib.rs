//! What users depend on: RPC over remote memory.
//!
//! This room names the parts that an application needs. An address picks the back-end when the program runs: `shm:NAME` is
//! shared memory between processes of one host, `rdma:HOST:PORT` RDMA verbs, `auto:HOST:PORT` the first of these that client
//! and server can both use. What may come in: re-exports, shorthands, documentation. What never does: mechanism.
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
//! Typed clients and servers take every address through [`Fabrics`], `tcp:HOST:PORT` (stock Thrift) among them, to which `auto:` comes in
//! the end. Who gives them one fabric instead saves a branch in each call; [`on_fabric!`] compiles a block for each fabric and runs the one
//! that the address has chosen:
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
};
#[cfg(feature = "ofi")]
pub use dunlin_fabric_ofi::{OfiConfig, OfiFabric, OpenError as OfiError};
pub use dunlin_fabric_rdma::{DeviceChoice, OpenError as RdmaError, RdmaConfig, RdmaFabric, SettingError};
pub use dunlin_fabric_shm::{AllowPolicy, ShmConfig, ShmFabric};
#[cfg(feature = "thrift")]
pub use dunlin_hints as hints;
pub use dunlin_rpc::{
    ApplicationCode, BackoffConfig, BatchCalls, Batching, CallError, CallId, Cause, Certainty, ClientConfig,
    CompletionMode, ConnectError, Counters, FetchChoice, Filling, FirstRead, FunctionMode, FunctionTuning,
    Illegal, LargePayload, PROTOCOLS, Plan, PoolService, Protocol, Reply, ReplyTooLarge, Request,
    RequestHalf, ResponseHalf, SMALL_LIMIT, ServeError, ServerConfig, Service, Sharing, Status, Tuning, Way,
    messages, tune::table::FetchTable,
};
#[cfg(feature = "thrift")]
pub use dunlin_thrift as thrift;
pub use dunlin_transport::{
    AsyncClient, AsyncHubs, AsyncResponse, Call, Choose, ChosenFabric, Client, Fabrics, FabricsConfig,
    FillingRequest, Incoming, LargeRequest, ResolveError, Resolved, Response, Server, ServerBuilder,
    SeveralServers, TableError, Tables, TablesFrom, Worker, on_fabric,
};
#[cfg(feature = "thrift")]
pub use dunlin_transport::{TypedAsyncClient, TypedCall, TypedClient, TypedServer};
use std::io;

/// The engine itself, for one fabric each: for programs that are generic over the fabric, as with [`on_fabric!`].
pub mod engine {
    pub use dunlin_rpc::{
        AsyncClient, AsyncHub, AsyncResponse, Call, Client, FillingRequest, Incoming, LargeRequest, Response,
        Server, ServerBuilder, Worker,
    };
}

/// The fabric of typed clients for which none is named: shared memory.
pub type DefaultFabric = ShmFabric;

/// What typed asynchronous clients of one fabric share.
pub type AsyncHub<F = DefaultFabric> = dunlin_rpc::AsyncHub<F>;

/// Takes in what the build script generated of `NAME.thrift` by `dunlin_idl_build::compile`: `include_service!("NAME");`
#[cfg(feature = "thrift")]
#[macro_export]
macro_rules! include_service {
    ($name:literal) => {
        include!(concat!(env!("OUT_DIR"), "/", $name, ".rs"));
    };
}

/// Shared memory with its defaults: one for a process is enough. It takes addresses of `shm:` only; [`Fabrics`] takes all.
/// What was measured of this machine is looked for in the user's tables ([`Tables::of_user`]).
pub fn fabric() -> io::Result<DefaultFabric> {
    Fabrics::default().shm()
}
