//! Control connections over TCP: what fabrics between hosts (`fabric-rdma`, `fabric-ofi`) have in common. One thread for each
//! fabric sleeps over all control sockets; a link carries messages, grants of memory, the end of queue pairs and the news of
//! the peer's death.
//!
//! What may come in: sockets, frames, pages to register, and what links do whatever is below. What never does: devices, queue pairs, keys of a
//! device (a [`Backend`] makes them), what an RPC is, and any trust in what a peer has sent: it is bounded, checked, then used.

mod backend;
mod bond;
mod frame;
mod io;
mod link;
mod listener;
mod mapping;
mod socket;

pub use backend::{Backend, Flag, Greeting, Heard, Limits, News, Place, lock};
pub use bond::Bond;
pub use io::{Control, GreetError, Io};
pub use link::{LinkShared, RemoteRegion, TcpLink};
pub use listener::TcpControlListener;
pub use mapping::Mapping;
