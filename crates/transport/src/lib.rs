//! Which fabric an address means: `shm:NAME` shared memory, `rdma:HOST:PORT` RDMA verbs,
//! `ofi:PROVIDER:HOST:PORT` libfabric (feature `ofi`), `auto:HOST:PORT` the one that client
//! and server can both use, chosen when the program runs.
//!
//! What may come in: opening fabrics, and clients and servers that are one of several kinds. What never does: anything
//! that the engine or a back-end would need, and any choice that the user has made already.
//!
//! The engine is compiled for each fabric by itself, so that nothing between a call and a work request asks which fabric
//! it is. That is decided once: for a whole program by [`on_fabric!`], whose body is compiled for each fabric; or for each
//! call by [`Client`] and its like, which are enums over the engine's own types: one branch that is always the same.
#![forbid(unsafe_code)]

/// Does the same with whatever variant it is.
macro_rules! each {
    ($value:expr, $inner:pat => $body:expr) => {
        match $value {
            Self::Shm($inner) => $body,
            Self::Rdma($inner) => $body,
            #[cfg(feature = "ofi")]
            Self::Ofi($inner) => $body,
        }
    };
}

/// Does the same with whatever variant it is, and makes the same variant of the outcome.
macro_rules! each_into {
    ($value:expr, $kind:ident, $inner:pat => $body:expr) => {
        match $value {
            Self::Shm($inner) => $kind::Shm($body),
            Self::Rdma($inner) => $kind::Rdma($body),
            #[cfg(feature = "ofi")]
            Self::Ofi($inner) => $kind::Ofi($body),
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

pub use asynchronous::{AsyncClient, AsyncHubs, AsyncResponse, Call};
pub use client::{Client, LargeRequest, Response};
pub use fabrics::{Choose, ChosenFabric, Fabrics, FabricsConfig, TablesFrom};
pub use resolve::{PassedOver, ResolveError, Resolved};
pub use server::{Incoming, Server, ServerBuilder, Worker};
pub use several::SeveralServers;
pub use tables::{TableError, Tables};
