//! Control connections over TCP, shared by the fabrics between hosts (`fabric-rdma`, `fabric-ofi`). One
//! thread for each fabric sleeps over all control sockets. A link carries messages, grants of memory, the end
//! of queue pairs, and notice of the peer's death.
//!
//! This crate may hold sockets, frames, pages to register, and the behaviour of links that does not depend on
//! the fabric. It never holds devices, queue pairs or a device's keys (a [`Backend`] makes those), and knows
//! nothing of RPC. Data from a peer is never trusted: it is bounded and checked before use.

mod backend;
mod frame;
mod io;
mod link;
mod listener;
mod mapping;
mod queue_pair_binding;
mod socket;
#[cfg(test)]
mod tests;

pub use backend::{Backend, Flag, Greeting, Heard, Limits, LinkEvents, Place, lock};
pub use io::{Control, GreetError, Io};
pub use link::{LinkShared, RemoteRegion, TcpLink};
pub use listener::TcpControlListener;
pub use mapping::Mapping;
pub use queue_pair_binding::QueuePairBinding;
