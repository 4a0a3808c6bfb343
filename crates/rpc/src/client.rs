//! The client: calls go out through the lanes of a connection, one lane for each worker of the server
//! and each plan.
//!
//! [`Client`] belongs to one thread and waits for itself; [`AsyncClient`] is shared by tasks of any executor. Both
//! are shells around the same engine.

mod answers;
pub(crate) mod asynchronous;
pub(crate) mod batching;
pub mod config;
pub(crate) mod core;
mod fetched;
mod filling;
mod hub_lock;
pub(crate) mod lane;
mod lanes;
pub(crate) mod slots;
pub(crate) mod synchronous;

pub use self::asynchronous::{AsyncClient, AsyncHub, AsyncResponse, Call};
pub use self::batching::{BatchCalls, Batching};
pub use self::config::ClientConfig;
pub use self::core::CallId;
pub use self::filling::FillingRequest;
pub use self::synchronous::{Client, LargeRequest, Response};
