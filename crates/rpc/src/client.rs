//! The client side of the engine: calls leave through lanes, one lane for each plan and worker of the server.
//!
//! [`Client`](crate::Client) belongs to one thread and polls for its own results. [`AsyncClient`] is shared by
//! the tasks of any executor. Both are thin layers over the same engine.

mod answers;
pub(crate) mod asynchronous;
pub(crate) mod batching;
mod closing;
pub mod config;
pub(crate) mod core;
mod credited;
pub(crate) mod establish;
mod fetched;
pub(crate) mod filling;
pub(crate) mod lane;
mod lanes;
pub(crate) mod memory;
mod own;
mod panicked;
pub(crate) mod patience;
mod request;
mod running;
pub(crate) mod slots;
pub(crate) mod synchronous;
pub(crate) mod within;

#[cfg(test)]
mod tests;

pub use self::asynchronous::{
    AsyncClient, AsyncHub, AsyncResponse, AsyncWithin, Attach, Call, MemoryCall, Ready,
};
pub use self::batching::{BatchCalls, Batching};
pub use self::config::{ClientConfig, CreditRenewal};
pub use self::core::CallId;
pub use self::memory::RemoteRegion;
pub use self::running::{RunningPlan, RunsIn, WaitsAs};
