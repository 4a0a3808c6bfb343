//! The engine: paths, lanes, client, server, connections.
//!
//! What may come in: everything between an application's call and a fabric's work request that does not depend on
//! the back-end. What never does: sockets, devices, shared memory, clocks, threads and random sources of its own
//! (they are the fabric's and its `Host`'s), and anything that knows what a payload means. The same code runs on
//! shared memory, on RNICs and in the simulator.
//!
//! The way of one call: [`Client::submit_on`] takes a slot (`client/slots.rs`), builds a line (`dunlin_wire`) and
//! posts it (`path/tx.rs`); the worker finds it (`path/rx.rs`), checks and dispatches it (`server/worker.rs`), and
//! answers the same way back.
#![forbid(unsafe_code)]

pub mod client;
mod connect;
pub mod error;
mod mailbox;
pub mod messages;
mod path;
pub mod plan;
pub mod server;
pub mod service;
pub mod tune;
mod wait;

pub use client::{
    AsyncClient, AsyncHub, AsyncResponse, BatchCalls, Batching, Call, CallId, Client, ClientConfig,
    FillingRequest, LargeRequest, Response,
};
pub use connect::backoff::{Backoff, BackoffConfig};
pub use dunlin_wire::{ApplicationCode, Status};
pub use error::{CallError, Cause, Certainty, ConnectError, ServeError};
pub use path::hybrid::{FunctionTuning, Tuning};
pub use path::pieces::{Filling, PIECE};
pub use plan::{
    CompletionMode, Illegal, LargePayload, PROTOCOLS, Plan, Protocol, RequestHalf, ResponseHalf, SMALL_LIMIT,
    Sharing,
};
pub use server::{Counters, Incoming, Server, ServerBuilder, ServerConfig, Worker};
pub use service::{FunctionMode, PoolService, Reply, ReplyTooLarge, Request, Service};
pub use tune::{shared::FetchChoice, wait::FirstRead, way::Way};
