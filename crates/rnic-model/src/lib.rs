//! The cost and cache model of RNICs and clusters: the time of a work request through processor, PCIe, NIC,
//! link and switch, and its evictions from the NIC's caches and the hosts' last-level caches.
//!
//! This crate holds arithmetic on profiles and state; profiles and curves as data files with their sources;
//! and a raw-verbs driver for calibration, sweeps and the papers' raw-verb figures. Threads, clocks, file
//! access (callers pass texts), machine-dependent random seeds and any knowledge of RPCs stay outside.
//!
//! ```text
//! profile ── costs ── network ──┬── fabric-sim (the engine, in virtual time)
//!                               └── driver ── sweep, figures, calibration
//! ```
//!
//! The same inputs give the same bytes on every machine: state is in whole picoseconds, caches have no random
//! seed, and floating-point numbers are only added, multiplied and divided.

mod cache;
pub mod calibrate;
mod costs;
pub mod driver;
pub mod figure;
mod network;
mod prices;
pub mod profile;
pub mod rates;
mod request;
mod station;
pub mod sweep;

pub use network::{Arrived, Busy, Cluster, ClusterError, Counters, HostShape, Network, Posted};
pub use prices::{Prices, Sockets, Verbs};
pub use profile::{Kind, Parameter, Profile, ProfileError, Value, nearest};
pub use request::{Linked, Opcode, Pages, Request, Touch, Transport};
