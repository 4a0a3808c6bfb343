//! Dunlin's fabric on RDMA verbs: InfiniBand, RoCE, and Soft-RoCE where there is no NIC. libibverbs is opened at run time,
//! so that this builds and runs everywhere; a machine without it gets an error that says what to install.
//!
//! What may come in: devices, the verbs ABI, and how the traits are done with them. What never does: what
//! an RPC is, and any trust in what a peer has sent over the control connection: it is bounded, checked, then used.
//!
//! ```text
//! fabric ─ listener ─ link        control: fabric-control, with what backend adds
//!    │                  └ grants: a key of the link stands for (remote key, address) of a registration (memory)
//!    └── domain ─ queue_pair      data: send (what is posted), status (what completes), attention (where it sleeps)
//!           └ handles ─ device    the objects of verbs; library and sys: libibverbs itself
//! ```
//!
//! What verbs leaves to its users and this fabric does: work requests with a key that the peer has not granted on the link
//! go to a *trap*, memory at whose address nothing is, so that they fail at the target as verbs has it; and when one end
//! of a connection breaks or goes, the link tells the other.

mod attention;
mod backend;
mod concluded;
mod config;
mod connect;
mod device;
mod domain;
mod early;
mod endpoint;
mod events;
mod fabric;
mod handles;
mod library;
mod manager;
mod memory;
mod port;
mod queue_pair;
mod send;
mod status;
// Fields that nobody reads are there for the layout.
#[allow(dead_code)]
mod sys;

pub use attention::RdmaWaker;
pub use backend::RdmaBackend;
pub use config::{RdmaConfig, SettingError};
pub use device::{DeviceChoice, OpenError};
pub use domain::RdmaDomain;
pub use fabric::{RdmaFabric, device_names, open_library};
pub use library::LibraryError;
pub use memory::{RdmaMemory, Registration};

/// A control connection.
pub type RdmaLink = dunlin_fabric_control::TcpLink<RdmaBackend>;
/// Listens on a TCP port. Dropping it frees the port.
pub type RdmaListener = dunlin_fabric_control::TcpControlListener<RdmaBackend>;
type Control = dunlin_fabric_control::Control<RdmaBackend>;
type Bond = dunlin_fabric_control::Bond<RdmaBackend>;
