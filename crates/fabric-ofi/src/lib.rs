//! Dunlin's fabric on libfabric, for hosts without RDMA: its provider `tcp`, or another with connected endpoints. libfabric is
//! opened at run time, so that this builds and runs everywhere; a machine without it gets an error that says what to install.
//!
//! What may come in: libfabric's ABI, and how the traits are done with it. What never does: what an RPC is, sockets of our own
//! (control connections are `fabric-control`'s), and any trust in what a peer has sent: it is bounded, checked, then used.
//!
//! ```text
//! fabric ─ listener ─ link        control: fabric-control, with what backend adds
//!    │                  └ grants: a key of the link stands for a registration under a key that nobody can guess (memory)
//!    ├── device ─ keeper          the provider, how connections are made, and progress while nobody asks for it
//!    └── domain ─ queue_pair      data: send (what is posted), header (what stands in front), attention (where it sleeps)
//!           └ handles             the objects of libfabric; library and sys: libfabric itself
//! ```
//!
//! A queue pair is a connected endpoint (`FI_EP_MSG`), not a reliable datagram one (`FI_EP_RDM`): that is what a reliable
//! connection is; who asks for one is known before it is accepted; a receiver without RECVs holds its sender up and no memory;
//! and on `tcp` libfabric makes the other kind of these by a layer of its own that costs many times as much.

mod attention;
mod backend;
mod config;
mod device;
mod domain;
mod endpoint;
mod fabric;
mod handles;
mod header;
mod keeper;
mod library;
mod memory;
mod queue_pair;
mod send;
// Fields that nobody reads are there for the layout.
#[allow(dead_code)]
mod sys;

pub use attention::OfiWaker;
pub use backend::OfiBackend;
pub use config::OfiConfig;
pub use device::OpenError;
pub use domain::OfiDomain;
pub use fabric::{OfiFabric, open_library};
pub use library::LibraryError;
pub use memory::{Grant, OfiMemory};

/// A control connection.
pub type OfiLink = dunlin_fabric_control::TcpLink<OfiBackend>;
/// Listens on a TCP port. Dropping it frees the port.
pub type OfiListener = dunlin_fabric_control::TcpControlListener<OfiBackend>;
type Control = dunlin_fabric_control::Control<OfiBackend>;
type LinkShared = dunlin_fabric_control::LinkShared<OfiBackend>;
