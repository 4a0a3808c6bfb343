//! HatKV: HatRPC's key-value service (section 4.4) on LMDB.
//!
//! What may come in: the store, its handler, what hints mean for the store. What never does: how calls travel.
//!
//! Hints tune both ends: the plans of calls, as for every service, and the store. `concurrency` becomes the number of
//! LMDB's reader slots. Reads of a batch share one read transaction, writes of a batch one write transaction.

mod handler;
mod store;

dunlin::include_service!("hatkv");

/// The service's IDL with its hints, for who wants to call it by others.
pub const IDL: &str = include_str!("../idl/hatkv.thrift");

pub use handler::Handler;
pub use store::{Durability, MAX_KEY, OpenError, Options, Store, StoreError};
