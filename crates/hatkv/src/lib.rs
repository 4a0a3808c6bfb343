//! HatKV: HatRPC's key-value service (section 4.4) on LMDB.
//!
//! What may come in: the store, its handler, what hints mean for the store. What never does: how calls travel.
//!
//! Hints tune both ends: the plans of calls, as for every service, and the store ([`Tuning::hinted`]): LMDB's reader slots, whether
//! the writes of several clients are committed together, and whether they wait for the disk. Reads of a batch share one read
//! transaction, writes of a batch one write transaction.

mod group;
mod handler;
mod store;
mod tuning;

dunlin::include_service!("hatkv");

/// The service's IDL with its hints, for who wants to call it by others.
pub const IDL: &str = include_str!("../idl/hatkv.thrift");

pub use handler::{Handler, TunedProcessor};
pub use store::{Commit, Durability, MAX_KEY, OpenError, Options, Store, StoreError};
pub use tuning::Tuning;
