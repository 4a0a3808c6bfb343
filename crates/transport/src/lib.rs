//! Which fabric an address means: `shm:NAME` shared memory, `rdma:HOST:PORT` RDMA verbs,
//! `ofi:PROVIDER:HOST:PORT` libfabric (feature `ofi`), `auto:HOST:PORT` the one that client
//! and server can both use, chosen when the program runs. Typed services (feature `thrift`) also take `tcp:HOST:PORT`, stock
//! Thrift, and go by it where `auto:` finds no fabric.
//!
//! What may come in: opening fabrics, and clients and servers that are one of several kinds. What never does: anything
//! that the engine or a back-end would need, and any choice that the user has made already.
//!
//! The engine is compiled for each fabric by itself, so that nothing between a call and a work request asks which fabric
//! it is. That is decided once: for a whole program by [`on_fabric!`], whose body is compiled for each fabric; or for each
//! call by [`Client`] and its like, which are enums over the engine's own types: one branch that is always the same.
#![forbid(unsafe_code)]

/// Does the same with whatever variant of `$kind` it is.
macro_rules! each {
    ($kind:ident, $value:expr, $inner:pat => $body:expr) => {
        match $value {
            $kind::Shm($inner) => $body,
            $kind::Rdma($inner) => $body,
            #[cfg(feature = "ofi")]
            $kind::Ofi($inner) => $body,
        }
    };
}

/// Does the same with whatever variant of `$from` it is, and makes the same variant of `$into` of the outcome.
macro_rules! each_into {
    ($from:ident, $value:expr, $into:ident, $inner:pat => $body:expr) => {
        match $value {
            $from::Shm($inner) => $into::Shm($body),
            $from::Rdma($inner) => $into::Rdma($body),
            #[cfg(feature = "ofi")]
            $from::Ofi($inner) => $into::Ofi($body),
        }
    };
}

mod announcement;
mod asynchronous;
mod client;
mod fabrics;
mod resolve;
mod server;
mod several;
mod tables;
#[cfg(feature = "thrift")]
mod typed;
#[cfg(feature = "thrift")]
mod typed_server;

pub use asynchronous::{AsyncClient, AsyncHubs, AsyncResponse, Call};
pub use client::{Client, FillingRequest, LargeRequest, Response};
pub use dunlin_fabric::{ChosenTransport, PassedOver};
pub use fabrics::{Choose, ChosenFabric, Fabrics, FabricsConfig, TablesFrom};
pub use resolve::{ResolveError, Resolved};
pub use server::{Incoming, Server, ServerBuilder, Worker};
pub use several::SeveralServers;
pub use tables::{TableError, Tables};
#[cfg(feature = "thrift")]
pub use typed::{TypedAsyncClient, TypedCall, TypedClient};
#[cfg(feature = "thrift")]
pub use typed_server::TypedServer;
