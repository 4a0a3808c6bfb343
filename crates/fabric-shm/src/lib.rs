//! Dunlin's fabric between processes of one host: peers map each other's registered memory. The initiator's
//! own processor executes a one-sided operation, without work at the target. A two-sided operation goes
//! through a ring that its receiver owns.
//!
//! This crate may hold mappings, links over Unix sockets, futexes, and the implementation of verbs on them. It knows
//! nothing of RPC. Data from a peer is never trusted: it is read once, checked, then used.
//!
//! ```text
//! fabric ─ accept ─ link       control: the reactor's thread sleeps over all sockets (io, frame)
//!    └── domain ─┬ send, send_queue, execute    outgoing requests of a queue_pair
//!          │     ├ receive, inbound             incoming messages, through a ring of the receiver
//!          │     └ datagram_path, datagram
//!          └ doorbell           wake-ups by peers (watchdog: a bound if a peer has tampered with it;
//!                               barrier: orders a sleeper's last poll after its peers' stores)
//! ```
//!
//! Two ends in one process:
//!
//! ```
//! use dunlin_fabric::*;
//! use dunlin_fabric_shm::{ShmConfig, ShmFabric};
//!
//! let fabric = ShmFabric::new(ShmConfig::default())?;
//! let address: Address = format!("shm:example-{}", std::process::id()).parse()?;
//! let soon = fabric.host().now() + 1_000_000_000;
//! let listener = fabric.listen(&address)?;
//! let (near, far) = (fabric.dial(&address, soon)?, listener.accept(soon)?);
//!
//! // The far side grants the near side WRITE access to a region, which the key names.
//! let region = Region::new(fabric.register(4096, Access::WRITE)?);
//! let key = far.grant(region.memory(), Access::WRITE)?;
//!
//! let mut domains = [fabric.domain()?, fabric.domain()?];
//! let mut queue_pairs = Vec::new();
//! for (domain, link) in domains.iter_mut().zip([&near, &far]) {
//!     let queue = domain.create_completion_queue(128, false)?;
//!     let queue_pair = domain.create_queue_pair(&QueuePairConfig::reliable(queue, queue))?;
//!     link.send(&domain.endpoint(queue_pair, link)?.0)?;
//!     queue_pairs.push(queue_pair);
//! }
//! for ((domain, link), queue_pair) in domains.iter_mut().zip([&near, &far]).zip(&queue_pairs) {
//!     domain.connect(*queue_pair, link, &Endpoint(link.receive(soon)?))?;
//! }
//!
//! let data = Data::Inline(&[b"hello"]);
//! let operation = Operation::Write { data, key, offset: 0, immediate: None };
//! domains[0].post(queue_pairs[0], WorkRequest { id: WorkId(1), operation, signaled: false })?;
//! let mut seen = [0; 5];
//! region.copy_out(0, &mut seen);
//! assert_eq!(&seen, b"hello");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod accept;
mod adjacent;
mod barrier;
mod buffer_rotation;
mod completion_queue;
mod config;
mod datagram;
mod datagram_path;
mod device;
mod domain;
mod doorbell;
mod endpoint;
mod execute;
mod fabric;
mod frame;
mod inbound;
mod io;
mod keeper;
mod large_read;
mod limits;
mod link;
mod memory;
mod payloads;
mod process;
mod queue_pair;
mod receive;
mod send;
mod send_queue;
mod store_policy;
mod watchdog;

#[cfg(test)]
mod hostile;

pub use config::{AllowPolicy, ShmConfig};
pub use domain::{ShmDomain, ShmWaker};
pub use fabric::{ShmFabric, ShmListener};
pub use keeper::{KEEPER_VERSION, KeeperEvent, KeeperServer, ShmKeeper};
pub use link::ShmLink;
pub use memory::{ShmMemory, ShmView};
pub use payloads::{ShmFilling, ShmPayloads};
