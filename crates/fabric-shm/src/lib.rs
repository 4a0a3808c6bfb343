//! Dunlin's fabric between processes of one host: peers map each other's registered memory. A one-sided operation
//! is done by the initiator's own processor, and the target's does nothing; a two-sided one goes through a ring
//! that its receiver owns.
//!
//! What may come in: mappings, Unix sockets, futexes, and how the verbs are done with them. What never does: what
//! an RPC is, and any trust in what a peer has written: it is read once, checked, then used.

mod completion_queue;
mod datagram;
mod domain;
mod doorbell;
mod endpoint;
mod execute;
mod fabric;
mod frame;
mod inbound;
mod io;
mod link;
mod listener;
mod memory;
mod queue_pair;
mod receive;
mod send;
mod socket;

pub use domain::{ShmDomain, ShmWaker};
pub use fabric::{AllowPolicy, ShmConfig, ShmFabric};
pub use link::ShmLink;
pub use listener::ShmListener;
pub use memory::ShmMemory;
