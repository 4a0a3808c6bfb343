//! The verbs vocabulary as types and traits: queue pairs, completion queues, registered memory, work
//! requests, completions, capabilities and errors, in the standard terms of RDMA programming. Also [`Host`],
//! the engine's only access to time, threads and randomness.
//!
//! This crate may hold vocabulary, helpers that every back-end shares (the copy out of memory that a peer can
//! write, the allocator of registered buffers), interposers that wrap any fabric, and the `Host` of a real
//! machine. It never holds sockets, devices or mappings, and nothing in it knows about RPC.
//!
//! ```text
//! Fabric ── Listener ── Link            control connection: messages, grants of memory, liveness
//!    │                    │
//!    └── ThreadDomain ────┴─ queue pair  data path: post, poll; owned by one thread at a time
//! ```

pub mod address;
pub mod address_handles;
pub mod any_memory;
mod any_waker;
pub mod arena;
pub mod capabilities;
pub mod chosen;
pub mod completion;
pub mod copy;
pub mod dialling;
pub mod door;
pub mod error;
pub mod host;
pub mod idle;
pub mod inbox;
pub mod interpose;
pub mod keeper;
pub mod local_buffer;
pub mod memory;
pub mod nic;
pub mod payload;
pub mod queue_pair_table;
pub mod rates;
pub mod ready_list;
pub mod region_range;
pub mod request_names;
pub mod verbs;
mod with_sources;
pub mod work;

pub use address::{Address, AddressError, IntoAddress, MAX_NAME, Scheme};
pub use address_handles::AddressHandles;
pub use any_memory::AnyMemory;
pub use any_waker::{AnyWaker, OtherDomain};
pub use arena::{Arena, ArenaError, Buffer};
pub use capabilities::{Atomics, Capabilities, TransportSet};
pub use chosen::{ChosenTransport, PassedOver};
pub use completion::{Broke, Completion, CompletionStatus, Opcode};
pub use error::{
    AcceptError, CreateError, DialError, GrantError, LinkError, ListError, ListenError, PostError,
    RangeError, RegisterError, Unavailable,
};
pub use host::{
    BindError, Clock, Host, Nanos, Parker, RealHost, Signal, Site, Task, Topology, Unparker, Work, end_of,
    nanos,
};
pub use interpose::{Count, Fault, FaultPlan, Trace};
pub use keeper::{KeeperError, MemoryKeeper};
pub use local_buffer::{Loan, LocalBuffer};
pub use memory::{Access, Memory, Region, RegionLine};
pub use nic::Nic;
pub use payload::{
    BufferSource, PayloadBuffers, PayloadFilling, PlainFilling, PlainPayloads, Prefetch, Pressure,
    copy_plainly,
};
pub use queue_pair_table::QueuePairTable;
pub use rates::{
    BadRates, CONNECTION_BYTES, ConnectionRow, DeviceIdentity, KnownRates, RateRow, Rates, RatesBook,
    RatesSource,
};
pub use ready_list::{Mark, ReadyList, Subscription};
pub use region_range::RegionRange;
pub use request_names::{REQUEST_OWNER, RequestKind, parse_request_name, request_name};
pub use verbs::{Armed, Crowding, Fabric, Link, Listener, PeerIdentity, ThreadDomain, WaitMode, Wake, Waker};
pub use with_sources::WithSources;
pub use work::{
    AddressHandleId, CompletionQueueId, Data, Endpoint, Gather, InlineLine, InlineWrite, Operation,
    QueuePairConfig, QueuePairId, QueuePairState, ReceiveTarget, RegionKey, RemoteSlice, RnrRetry,
    SharedReceiveQueueId, Transport, WorkId, WorkRequest, check_list,
};
