//! What users depend on: RPC over remote memory.
//!
//! This room names the parts that an application needs, with the back-end already chosen: shared memory, for now.
//! What may come in: re-exports, shorthands, documentation. What never does: mechanism.
//!
//! ```
//! use dunlin::{Client, ClientConfig, FunctionMode, Reply, Request, ServerBuilder};
//!
//! let fabric = dunlin::fabric()?;
//! let address = format!("shm:doc-{}", std::process::id()).parse()?;
//! let server = ServerBuilder::new(&fabric).function(1, FunctionMode::Worker).serve(&address, |_worker| {
//!     Box::new(|request: &Request<'_>, reply: &mut Reply<'_>| {
//!         reply.write(b"hello ")?;
//!         reply.write(request.payload)?;
//!         Ok(())
//!     })
//! })?;
//! let mut client = Client::connect(&fabric, &address, ClientConfig::default())?;
//! assert_eq!(&*client.call(1, b"world")?, b"hello world");
//! drop(client);
//! server.shutdown(1_000_000_000);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub use dunlin_fabric::{
    Address, AddressError, BindError, Capabilities, DialError, Fabric, ListenError, Nanos, Scheme, Topology,
    Unavailable,
};
pub use dunlin_fabric_rdma::{DeviceChoice, OpenError as RdmaError, RdmaConfig, RdmaFabric};
pub use dunlin_fabric_shm::{AllowPolicy, ShmConfig, ShmFabric};
#[cfg(feature = "thrift")]
pub use dunlin_hints as hints;
pub use dunlin_rpc::{
    ApplicationCode, BackoffConfig, CallError, CallId, Cause, Certainty, ClientConfig, CompletionMode,
    ConnectError, Counters, FunctionMode, Illegal, LargePayload, PROTOCOLS, Plan, PoolService, Protocol,
    Reply, ReplyTooLarge, Request, RequestHalf, ResponseHalf, SMALL_LIMIT, ServeError, ServerConfig, Service,
    Sharing, Status,
};
#[cfg(feature = "thrift")]
pub use dunlin_thrift as thrift;
pub use dunlin_transport::{ChosenFabric, Fabrics, FabricsConfig, on_fabric};
use std::io;

/// The engine itself, for one fabric each: for programs that are generic over the fabric, as with [`on_fabric!`].
pub mod engine {
    pub use dunlin_rpc::{
        AsyncClient, AsyncHub, AsyncResponse, Call, Client, Incoming, LargeRequest, Response, Server,
        ServerBuilder, Worker,
    };
}

/// The fabric of this build.
pub type DefaultFabric = ShmFabric;
/// A client on [`DefaultFabric`].
pub type Client = dunlin_rpc::Client<DefaultFabric>;
/// A server on [`DefaultFabric`].
pub type Server = dunlin_rpc::Server<DefaultFabric>;
/// Describes a server on [`DefaultFabric`].
pub type ServerBuilder = dunlin_rpc::ServerBuilder<DefaultFabric>;
/// A worker run by the application's own thread.
pub type Worker = dunlin_rpc::Worker<DefaultFabric>;
/// A call taken off its worker.
pub type Incoming = dunlin_rpc::Incoming<DefaultFabric>;

/// An asynchronous hub on [`DefaultFabric`].
pub type AsyncHub<F = DefaultFabric> = dunlin_rpc::AsyncHub<F>;

/// Takes in what the build script generated of `NAME.thrift` by `dunlin_idl_build::compile`: `include_service!("NAME");`
#[cfg(feature = "thrift")]
#[macro_export]
macro_rules! include_service {
    ($name:literal) => {
        include!(concat!(env!("OUT_DIR"), "/", $name, ".rs"));
    };
}

/// Starts the fabric with its defaults: one for a process is enough.
pub fn fabric() -> io::Result<DefaultFabric> {
    ShmFabric::new(ShmConfig::default())
}
