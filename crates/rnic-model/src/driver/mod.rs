//! A driver of raw verbs: threads in closed loops on an event heap, like raw-verb benchmarks. It makes the
//! same calls to [`Network`](crate::Network) as the simulator, so the calibration carries over; a test of
//! `scenario` compares the two.
//!
//! A connection keeps order as a queue pair does: a later request arrives later and completes later. This
//! matters after a cache miss of the NIC: the requests queued behind the miss arrive with it and find the
//! context loaded.

mod run;

pub use run::{Outcome, run};

use crate::network::Cluster;
use crate::request::{Opcode, Transport};

/// One end of a connection, as its thread sees it.
#[derive(Clone, Copy, Debug)]
pub struct Connection {
    /// Number of the local queue pair on its NIC.
    pub queue_pair: u32,
    /// The host at the other end.
    pub peer: u32,
    /// Number of the remote queue pair on its NIC.
    pub peer_queue_pair: u32,
}

/// A thread that posts work requests.
#[derive(Clone, Debug)]
pub struct Thread {
    /// Its host.
    pub host: u32,
    /// Its connections.
    pub connections: Vec<Connection>,
    /// Local region for the data of READs and WRITEs.
    pub region: u32,
    /// Target addresses of its work requests.
    pub remote: Places,
}

/// The order in which a thread uses its connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pick {
    /// Uniformly random.
    Random,
    /// Round-robin.
    InTurn,
}

/// The target addresses of work requests.
#[derive(Clone, Copy, Debug)]
pub enum Places {
    /// Anywhere in one region of `bytes` bytes. The region's number is that of the thread modulo `regions`,
    /// so thread n accesses the region of thread n on another host.
    Anywhere {
        /// Number of the first region.
        first: u32,
        /// Regions per host.
        regions: u32,
        /// Bytes per region.
        bytes: u64,
    },
    /// A sequence of message blocks, one after the other, with each message at the end of its block.
    Blocks {
        /// Region of the blocks.
        region: u32,
        /// Offset of the first block.
        offset: u64,
        /// Blocks per connection of the thread; the blocks of a connection are contiguous.
        each: u32,
        /// Bytes per block.
        block_bytes: u64,
    },
    /// Anywhere in one of many regions, chosen at random.
    Regions {
        /// Number of regions.
        count: u32,
        /// Bytes per region.
        bytes: u64,
    },
}

/// Which work requests are signaled, and how the thread observes completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signaling {
    /// All; the thread polls for the oldest of its window before it posts another.
    All,
    /// One in this number per queue pair; the thread polls for it before it posts the last of the group.
    /// READs are observed through their data, oldest first. WRITEs and SENDs have no other limit.
    OneIn(u32),
}

/// A raw-verbs test.
#[derive(Clone, Debug)]
pub struct Test<'a> {
    /// The cluster.
    pub cluster: Cluster<'a>,
    /// The posting threads.
    pub threads: Vec<Thread>,
    /// Operation of all work requests.
    pub opcode: Opcode,
    /// Transport of the queue pairs.
    pub transport: Transport,
    /// Payload in bytes.
    pub bytes: u32,
    /// Whether payloads are inline in the work requests.
    pub inline: bool,
    /// Outstanding work requests per thread.
    pub window: u32,
    /// Signaling.
    pub signaling: Signaling,
    /// Order of connections.
    pub pick: Pick,
    /// Work requests before the measurement, to warm the caches.
    pub warm_up: u64,
    /// Measured work requests.
    pub measured: u64,
}

/// A test that cannot be run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TestError {
    /// The cluster is invalid.
    #[error(transparent)]
    Cluster(#[from] crate::network::ClusterError),
    /// A quantity is zero.
    #[error("{what} must be at least 1")]
    Nothing {
        /// Name of the quantity.
        what: &'static str,
    },
    /// [`Signaling::OneIn`] with 0 or 1.
    #[error("signaling one work request in 0 or 1 means nothing; say that all are signaled")]
    Signaling,
    /// The transport lacks the operation.
    #[error("{opcode:?} does not exist on {transport:?}")]
    Transport {
        /// The operation.
        opcode: Opcode,
        /// The transport.
        transport: Transport,
    },
    /// A thread's host, or the peer of one of its connections, is not in the cluster.
    #[error("thread {thread} names host {host}, but the cluster has {hosts} hosts")]
    NoSuchHost {
        /// Index of the thread.
        thread: usize,
        /// The missing host.
        host: u32,
        /// Number of hosts.
        hosts: usize,
    },
}

impl Test<'_> {
    fn check(&self) -> Result<(), TestError> {
        let nothing = |what| Err(TestError::Nothing { what });
        if self.threads.is_empty() {
            return nothing("the number of threads");
        }
        if self.window == 0 {
            return nothing("the window");
        }
        if self.measured == 0 {
            return nothing("the number of measured work requests");
        }
        if matches!(self.signaling, Signaling::OneIn(0 | 1)) {
            return Err(TestError::Signaling);
        }
        let (opcode, transport) = (self.opcode, self.transport);
        let legal = match transport {
            Transport::ReliableConnection => true,
            Transport::UnreliableConnection => !opcode.answers_with_data(),
            Transport::UnreliableDatagram => opcode == Opcode::Send,
        };
        if !legal {
            return Err(TestError::Transport { opcode, transport });
        }
        let hosts = self.cluster.hosts.len();
        for (number, thread) in self.threads.iter().enumerate() {
            if thread.connections.is_empty() {
                return nothing("the number of connections of each thread");
            }
            let named = thread.connections.iter().map(|connection| connection.peer).chain([thread.host]);
            if let Some(host) = named.into_iter().find(|host| *host as usize >= hosts) {
                return Err(TestError::NoSuchHost { thread: number, host, hosts });
            }
        }
        Ok(())
    }
}
