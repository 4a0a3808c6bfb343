//! HatKV: HatRPC's key-value service (section 4.4) on LMDB.
//!
//! This crate holds the store, its handler, and the effect of hints on the store. It never holds code that
//! transports calls.
//!
//! Hints tune both the plans of calls, as in every service, and the store ([`Tuning::hinted`]): the number of
//! LMDB's reader slots, group commit of concurrent writes, and durability. The reads of a batch share one
//! read transaction, and its writes one write transaction.

mod group;
mod handler;
mod store;
mod tuning;

dunlin::include_service!("hatkv");

/// The service's IDL with its hints, for clients with other hints or in other languages.
pub const IDL: &str = include_str!("../idl/hatkv.thrift");

pub use handler::{Handler, TunedProcessor};
pub use store::{Commit, Durability, MAX_KEY, OpenError, Options, Store, StoreError};
pub use tuning::Tuning;
