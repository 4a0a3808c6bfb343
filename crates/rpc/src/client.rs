//! The client side of the engine: calls leave through lanes, one lane for each plan and worker of the server.
//!
//! `synchronous.rs` is a client with a connection of its own, for one thread. Threads and tasks that share connections
//! use the same engine (`share`).

mod answers;
pub(crate) mod batching;
mod closing;
pub mod config;
pub(crate) mod core;
mod credited;
pub(crate) mod establish;
mod fetched;
pub(crate) mod filling;
pub(crate) mod lane;
pub(crate) mod lanes;
pub(crate) mod memory;
mod open_batch;
mod own;
mod panicked;
pub(crate) mod patience;
mod request;
pub(crate) mod running;
pub(crate) mod slots;
pub(crate) mod synchronous;
pub(crate) mod within;

#[cfg(test)]
mod tests;

pub use self::batching::{BatchCalls, Batching};
pub use self::config::{ClientConfig, CreditRenewal};
pub use self::core::CallId;
pub use self::memory::RemoteRegion;
pub use self::running::{RunningPlan, RunsIn, WaitsAs};
