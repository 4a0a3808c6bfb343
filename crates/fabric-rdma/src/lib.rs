//! Dunlin's fabric on RDMA verbs: InfiniBand, RoCE, iWARP, and software devices where there is no NIC.
//! libibverbs is opened at run time, so this crate builds and runs everywhere. On a machine without
//! libibverbs, an error names the package to install.
//!
//! This crate may hold devices, the verbs ABI, and the implementation of the fabric traits on them. It knows
//! nothing of RPC. Data from a peer's control connection is never trusted: it is bounded and checked before
//! use.
//!
//! ```text
//! fabric ─ listener ─ link        control: fabric-control, with the additions of backend
//!    │                  └ grants: a link's key stands for (remote key, address) of a registration (memory)
//!    └── domain ─ queue_pair      data: send (outgoing requests), status (completions), attention (sleeping)
//!           └ handles ─ device    the objects of verbs; library and sys: libibverbs itself
//! ```
//!
//! This fabric adds two things to verbs. Work requests with a key that the peer has not granted on the link
//! go to a *trap*, a key with no memory at the address used, so they fail at the target as in verbs. And when
//! one end of a connection breaks or is destroyed, the link notifies the other.

mod backend;
mod concluded;
mod config;
mod connect;
mod device;
mod domain;
mod domain_waiter;
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
// Some fields are never read; they exist for the layout.
#[allow(dead_code)]
mod sys;

pub use backend::RdmaBackend;
pub use config::{RdmaConfig, SettingError};
pub use device::{DeviceChoice, OpenError};
pub use domain::RdmaDomain;
pub use domain_waiter::RdmaWaker;
pub use fabric::{RdmaFabric, device_names, open_library};
pub use library::LibraryError;
pub use memory::{RdmaMemory, Registration};

/// A control connection.
pub type RdmaLink = dunlin_fabric_control::TcpLink<RdmaBackend>;
/// Listens on a TCP port. Dropping it frees the port.
pub type RdmaListener = dunlin_fabric_control::TcpControlListener<RdmaBackend>;
type Control = dunlin_fabric_control::Control<RdmaBackend>;
type QueuePairBinding = dunlin_fabric_control::QueuePairBinding<RdmaBackend>;
