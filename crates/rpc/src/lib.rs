//! The RPC engine: paths, lanes, client, server, connections.
//!
//! This crate holds everything between an application's call and a fabric's work request that does not depend
//! on the back-end. The same code runs on shared memory, on RNICs and in the simulator. It opens no sockets
//! or devices, maps no shared memory, and has no clock, threads or random source of its own: those come from
//! the fabric and its `Host`. It never interprets payloads.
//!
//! Path of a call: [`Client::submit_on`] takes a slot (`client/slots.rs`), builds a line (`dunlin_wire`) and
//! posts it (`path/tx.rs`). The worker finds the line (`path/rx.rs`), checks and dispatches it
//! (`server/worker.rs`), and sends the answer through the same layers in the other direction.
#![forbid(unsafe_code)]

pub mod client;
mod combine;
mod connect;
mod deployment;
pub mod error;
mod grouped;
mod limits;
mod mailbox;
pub mod messages;
mod path;
pub mod plan;
pub mod server;
pub mod service;
mod share;
pub mod tune;
mod wait;

pub use client::{
    BatchCalls, Batching, CallId, ClientConfig, CreditRenewal, RemoteRegion, RunningPlan, RunsIn, WaitsAs,
};
pub use connect::backoff::{Backoff, BackoffConfig};
pub use dunlin_wire::handshake::Token;
pub use dunlin_wire::{ApplicationCode, Status};
pub use error::{CallError, Cause, Certainty, ConnectError, MemoryError, ServeError};
pub use path::half::hybrid::{FunctionTuning, Tuning};
pub use path::large::{PIECE, PayloadWriter};
pub use plan::{
    CompletionMode, LargePayload, Lease, Occupancy, PROTOCOLS, Plan, PlanError, Protocol, RequestHalf,
    ResponseHalf, SMALL_LIMIT, ServerConnections, Sharing,
};
pub use server::{
    ConnectedClient, Counters, Deployment, GroupCounters, Incoming, Later, PollAgain, PolledService, Puller,
    QueuePairUse, RequestPool, RunningSlice, SLOW_HANDLER, Server, ServerBuilder, ServerConfig, Started,
    Taker, Worker,
};
pub use service::{
    ConnectionObserver, FunctionMode, NotAdmitted, PoolService, Reply, ReplyTooLarge, Request, Service,
};
pub use share::{
    AsyncClient, AsyncHub, AsyncResponse, AsyncWithin, Attach, Call, Client, FillingRequest, LargeRequest,
    MemoryCall, Ready, Response, Within,
};
pub use tune::{batch::BatchRule, response_mode::ResponseMode, shared::FetchChoice, wait::FirstRead};
