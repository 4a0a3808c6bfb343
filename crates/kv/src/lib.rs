//! The key-value store used for measurements: Jakiro of RF-RPC section 5.1, and the wire format of its
//! service.
//!
//! This crate stores and finds bytes by key within a hard memory limit, and turns request payloads into
//! operations on the store. It contains partitions and their memory, the payload encodings, and baselines for
//! comparison. It contains no message framing. Except for the baselines in [`bypass`], whose clients READ
//! over connections of their own, it contains no connections, threads, clocks or I/O: the thread that runs a
//! partition owns it, and `dispatch` processes requests without the engine. `unsafe` code is only in
//! `memory`: hints to the processor and the system that do not change contents.
//!
//! ```
//! use dunlin_kv::{Partition, partition_of};
//!
//! let mut partition = Partition::new(1 << 20)?;
//! partition.put(b"user0001", b"a value")?;
//! assert_eq!(partition.get(b"user0001"), Some(&b"a value"[..]));
//! assert_eq!(partition_of(b"user0001", 1), 0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod bucket;
pub mod bypass;
pub mod client;
pub mod dispatch;
mod error;
mod hash;
mod heap;
mod memory;
mod page_map;
mod partition;
pub mod protocol;
pub mod service;
mod size_class;

pub use client::{KvClient, KvError};
pub use error::{PartitionError, PutError};
pub use hash::{KeyHash, partition_of};
pub use partition::{MAX_KEY_LENGTH, MAX_VALUE_LENGTH, Partition, PartitionConfig, PutOutcome, Stats};
pub use service::{KvService, SERVICE, SharedKvService};
