//! Selection of the fabric by address: `shm:NAME` for shared memory, `rdma:HOST:PORT` for RDMA verbs,
//! `ofi:PROVIDER:HOST:PORT` for libfabric (feature `ofi`), and `auto:HOST:PORT` for a fabric that both client
//! and server can use, chosen at run time. Typed services (feature `thrift`) also accept `tcp:HOST:PORT`,
//! stock Thrift; at an `auto:` address they use it if no fabric works. `node:SERVICE` is a service that the nodes of the
//! memory tier reach.
//!
//! This crate opens fabrics and provides clients and servers that work on any of them. It never holds code
//! that the engine or a back-end needs, and it never overrides a choice that the user has made.
//!
//! The engine is compiled separately for each fabric, so that no code between a call and a work request
//! branches on the fabric. The fabric is selected once for a whole program by [`on_fabric!`], whose body is
//! compiled for each fabric, or per call by [`Client`] and related types. These are enums over the engine's
//! types and cost one predictable branch.
#![forbid(unsafe_code)]

/// Evaluates the same expression on any variant of `$kind`.
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

/// Evaluates the same expression on any variant of `$from`, and wraps the result in the same variant of
/// `$into`.
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

/// As `each!`, with another value for the remaining variants.
macro_rules! each_or {
    ($kind:ident, $value:expr, $inner:pat => $body:expr, $rest:pat => $else:expr) => {
        match $value {
            $kind::Shm($inner) => $body,
            $kind::Rdma($inner) => $body,
            #[cfg(feature = "ofi")]
            $kind::Ofi($inner) => $body,
            $rest => $else,
        }
    };
}

/// As `each_into!`, with another value for the remaining variants.
macro_rules! each_into_or {
    ($from:ident, $value:expr, $into:ident, $inner:pat => $body:expr, $rest:pat => $else:expr) => {
        match $value {
            $from::Shm($inner) => $into::Shm($body),
            $from::Rdma($inner) => $into::Rdma($body),
            #[cfg(feature = "ofi")]
            $from::Ofi($inner) => $into::Ofi($body),
            $rest => $else,
        }
    };
}

mod agreed;
mod announcement;
mod asynchronous;
mod attempts;
mod client;
mod connecting;
mod fabrics;
mod later;
mod memory;
mod messages;
mod multi_fabric;
mod node;
mod resolve;
mod server;
mod signals;
mod tables;
mod teller;
#[cfg(feature = "thrift")]
mod typed;
#[cfg(feature = "thrift")]
mod typed_server;

pub use agreed::{AgreeError, AgreedFabric, beside, is_on_this_host};
pub use asynchronous::{AsyncClient, AsyncResponse, AsyncWithin, Call, UnconnectedCall};
pub use client::{Client, FillingRequest, LargeRequest, Response, Within};
pub use connecting::Connecting;
pub use dunlin_fabric::{ChosenTransport, IntoAddress, PassedOver};
pub use fabrics::{ChosenFabric, FabricSelector, Fabrics, FabricsConfig, GlobalInUse, TablesFrom};
pub use messages::{MessageBuffer, MessageClient, MessageServer};
pub use multi_fabric::SeveralServers;
pub use node::NodeServer;
pub use resolve::{ResolveError, Resolved};
pub use server::{Incoming, Server, ServerBuilder, Worker};
pub use tables::{TableError, Tables};
#[cfg(feature = "thrift")]
pub use typed::{TypedAsyncClient, TypedCall, TypedClient};
#[cfg(feature = "thrift")]
pub use typed_server::{TypedAsyncServer, TypedServer, serve, serve_async};
