//! The key-value store that the framework is measured with: Jakiro of RF-RPC section 5.1, and the wire format of
//! its service.
//!
//! This room is for storing and finding bytes by key within a hard memory limit, and for turning request
//! payloads into operations on the store. What may come in: partitions, their memory, the payload encodings,
//! baselines measured against them. What never does: message framing, and, but for the baselines in [`bypass`], whose clients
//! READ by a connection of their own, connections, threads, clocks or I/O; a
//! partition is owned by whoever runs it, and `dispatch` is as far as a request goes without the engine. `unsafe` is in
//! `memory` only: advice to the processor and the system, which changes no contents.
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
pub use service::{KvService, SharedKvService};
