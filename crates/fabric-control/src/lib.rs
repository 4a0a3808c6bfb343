//! Control connections of fabrics: over TCP between hosts (`fabric-rdma`, `fabric-ofi`), over a Unix socket within one
//! (`fabric-shm`). One thread for each fabric, the [`Reactor`], sleeps over all control sockets. A link carries messages,
//! grants of memory, the end of queue pairs, and notice of the peer's death.
//!
//! This crate may hold the reactor, listeners, sockets, and, for TCP, frames, pages to register, and the behaviour of
//! links that does not depend on the fabric. It never holds devices, queue pairs or a device's keys (a [`Backend`] makes
//! those), and knows nothing of RPC. Data from a peer is never trusted: it is bounded and checked before use.

mod backend;
mod control;
mod dialling;
mod frame;
mod greeting;
mod link;
mod listener;
mod mapping;
mod queue_pair_binding;
mod reactor;
mod tcp;
#[cfg(test)]
mod tests;
pub mod unix;
mod waiting;

pub use backend::{Backend, Flag, Greeting, Heard, Limits, LinkEvents, Place, lock};
pub use control::Control;
pub use dialling::TcpControlListener;
pub use link::{LinkShared, RemoteRegion, TcpLink};
pub use listener::{ControlListener, ListenerShared};
pub use mapping::Mapping;
pub use queue_pair_binding::QueuePairBinding;
pub use reactor::{Chores, ENDED, READ, Reactor, ReactorHandle, Waker, Watched};
pub use waiting::wait;
