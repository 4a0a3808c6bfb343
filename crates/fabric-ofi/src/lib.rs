//! Dunlin's fabric on libfabric, for hosts without RDMA: its provider `tcp`, or another with connected endpoints or reliable datagrams. libfabric is
//! opened at run time, so that this builds and runs everywhere; a machine without it gets an error that says what to install.
//!
//! What may come in: libfabric's ABI, and how the traits are done with it. What never does: what an RPC is, sockets of our own
//! (control connections are `fabric-control`'s), and any trust in what a peer has sent: it is bounded, checked, then used.
//!
//! ```text
//! fabric ─ listener ─ link        control: fabric-control, with what backend adds
//!    │                  └ grants: a key of the link stands for a registration under a key that nobody can guess (memory)
//!    ├── device ─ keeper, reach  the provider, what it is like (features), how connections are made, progress while nobody asks
//!    └── domain ─ queue_pair      data: send (what is posted; order, what has to wait), header (what stands in front), arrival
//!           │                     and receives (what comes), connect (how the ends meet), attention (where it sleeps)
//!           │     └ datagram      what a queue pair has beside an endpoint that is no connection; flow: how much may be sent
//!           └ handles             the objects of libfabric; library and sys: libfabric itself
//! ```
//!
//! A queue pair is a connected endpoint (`FI_EP_MSG`) where the provider has those: that is what a reliable connection is; who
//! asks for one is known before it is accepted; and a receiver without RECVs holds its sender up and no memory. Else (EFA,
//! Slingshot, `tcp;ofi_rxm`) it is an endpoint for reliable datagrams (`FI_EP_RDM`) of its own, with credits of ours.

mod arrival;
mod attention;
mod backend;
mod config;
mod connect;
mod datagram;
mod device;
mod domain;
mod endpoint;
mod fabric;
mod features;
mod flow;
mod handles;
mod header;
mod keeper;
mod library;
mod memory;
mod order;
mod places;
mod queue_pair;
mod reach;
mod receives;
mod send;
mod shared;
#[cfg(feature = "testing")]
mod stranger;
// Fields that nobody reads are there for the layout.
#[allow(dead_code)]
mod sys;

pub use attention::OfiWaker;
pub use backend::OfiBackend;
pub use config::OfiConfig;
pub use device::OpenError;
pub use domain::OfiDomain;
pub use fabric::{OfiFabric, open_library, providers};
pub use features::{EndpointKind, Without};
pub use library::LibraryError;
pub use memory::{Grant, OfiMemory};

/// A control connection.
pub type OfiLink = dunlin_fabric_control::TcpLink<OfiBackend>;
/// Listens on a TCP port. Dropping it frees the port.
pub type OfiListener = dunlin_fabric_control::TcpControlListener<OfiBackend>;
type Control = dunlin_fabric_control::Control<OfiBackend>;
type Bond = dunlin_fabric_control::Bond<OfiBackend>;
