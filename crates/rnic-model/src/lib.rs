//! The cost and cache model of RNICs and clusters: how long a work request takes through processor, PCIe, NIC, link
//! and switch, and what it displaces in the NIC's caches and the hosts' last-level caches.
//!
//! What may come in: arithmetic on profiles and state; profiles and curves as data files with their sources; a driver of
//! raw verbs on this arithmetic, for calibration, sweeps and the raw-verb figures of papers. What never does: threads,
//! clocks, files (texts are handed in), random seeds of the machine, and anything that knows what an RPC is.
//!
//! ```text
//! profile ── costs ── network ──┬── fabric-sim (the engine, in virtual time)
//!                               └── driver ── sweep, figures, calibration
//! ```
//!
//! The same inputs give the same bytes on every machine: state is in whole picoseconds, caches have no random seed, and
//! floating-point numbers are only added, multiplied and divided.

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

pub use network::{Arrived, Cluster, ClusterError, Counters, HostShape, Network, Posted};
pub use prices::{Prices, Sockets, Verbs};
pub use profile::{Kind, Parameter, Profile, ProfileError, Value, nearest};
pub use request::{Linked, Opcode, Request, Touch, Transport};
