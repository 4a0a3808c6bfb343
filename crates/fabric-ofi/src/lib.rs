//! Dunlin's fabric on libfabric, for hosts without RDMA: its provider `tcp`, or another provider with
//! connected endpoints or reliable datagrams. libfabric is opened at run time, so this crate builds and runs
//! everywhere. On a machine without libfabric, an error names the package to install.
//!
//! This crate may hold libfabric's ABI and the implementation of the fabric traits on it. It knows nothing of
//! RPC and opens no sockets (control connections belong to `fabric-control`). Data from a peer is never
//! trusted: it is bounded and checked before use.
//!
//! ```text
//! fabric ─ listener ─ link       control: fabric-control, with the additions of backend
//!    │                  └ grants: a link's key stands for a registration under a secret key (memory)
//!    ├── device ─ keeper, reach  the provider, its features, connections, progress while no thread polls
//!    └── domain ─ queue_pair     data: send (outgoing requests; order: those that must wait), header,
//!           │                    arrival, receives (incoming messages), connect, attention (sleeping)
//!           │     └ datagram     the additional state of a queue pair without a connection; flow: credits
//!           └ handles            the objects of libfabric; library and sys: libfabric itself
//! ```
//!
//! A queue pair is a connected endpoint (`FI_EP_MSG`) if the provider has those. That is a reliable
//! connection: the requester is identified before the connection is accepted, and a receiver without RECVs
//! delays its sender without using memory. Otherwise (EFA, Slingshot, `tcp;ofi_rxm`) it is its own endpoint
//! for reliable datagrams (`FI_EP_RDM`), with Dunlin's own credits.

mod arrival;
mod backend;
mod config;
mod connect;
mod datagram;
mod device;
mod domain;
mod domain_waiter;
mod endpoint;
mod fabric;
mod features;
mod flow;
mod handles;
mod header;
mod library;
mod memory;
mod order;
mod places;
mod progress_thread;
mod queue_pair;
mod reach;
mod receives;
mod send;
mod shared;
#[cfg(feature = "testing")]
mod stranger;
// Some fields are never read; they exist for the layout.
#[allow(dead_code)]
mod sys;

pub use backend::OfiBackend;
pub use config::OfiConfig;
pub use device::OpenError;
pub use domain::OfiDomain;
pub use domain_waiter::OfiWaker;
pub use fabric::{OfiFabric, open_library, providers};
pub use features::{EndpointKind, Without};
pub use library::LibraryError;
pub use memory::{Grant, OfiMemory};

/// A control connection.
pub type OfiLink = dunlin_fabric_control::TcpLink<OfiBackend>;
/// Listens on a TCP port. Dropping it frees the port.
pub type OfiListener = dunlin_fabric_control::TcpControlListener<OfiBackend>;
type Control = dunlin_fabric_control::Control<OfiBackend>;
type QueuePairBinding = dunlin_fabric_control::QueuePairBinding<OfiBackend>;
