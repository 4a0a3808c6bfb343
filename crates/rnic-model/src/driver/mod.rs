//! A driver of raw verbs: threads in closed loops on an event heap, the way raw-verb benchmarks are written. It makes
//! the same calls of [`Network`](crate::Network) as the simulator, so what is calibrated with it holds there; a test of
//! `scenario` compares them.
//!
//! A connection keeps its order, as a queue pair does: what is posted later arrives later, and its end is seen later. That counts
//! where the NIC fetches what its caches miss: what waited behind a miss arrives with it, and finds the context there.

mod run;

pub use run::{Outcome, run};

use crate::network::Cluster;
use crate::request::{Opcode, Transport};

/// One end of a connection, as the thread that uses it sees it.
#[derive(Clone, Copy, Debug)]
pub struct Connection {
    /// The number of our queue pair on our NIC.
    pub queue_pair: u32,
    /// The host at the other end.
    pub peer: u32,
    /// The number of the queue pair at the other end on its NIC.
    pub peer_queue_pair: u32,
}

/// A thread that posts work requests.
#[derive(Clone, Debug)]
pub struct Thread {
    /// Its host.
    pub host: u32,
    /// Its connections.
    pub connections: Vec<Connection>,
    /// The region that it READs into and WRITEs from.
    pub region: u32,
    /// Where at the target it reads and writes.
    pub remote: Places,
}

/// Which connection a thread takes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pick {
    /// Any, at random.
    Random,
    /// One after the other.
    InTurn,
}

/// Where in the target's memory work requests go.
#[derive(Clone, Copy, Debug)]
pub enum Places {
    /// Anywhere in a region of so many bytes: that of the thread's number among so many regions, which is to say that of
    /// the thread of the same number on another host.
    Anywhere {
        /// The number of the first region.
        first: u32,
        /// How many regions a host has.
        regions: u32,
        /// A region's size.
        bytes: u64,
    },
    /// In a row of message blocks, one after the other, each message at the end of its block.
    Blocks {
        /// The region that the blocks lie in.
        region: u32,
        /// The offset of the first.
        offset: u64,
        /// How many the thread has for each of its connections; those of a connection lie together.
        each: u32,
        /// Size of a block.
        block_bytes: u64,
    },
    /// In one of many regions, at random, anywhere in it.
    Regions {
        /// How many.
        count: u32,
        /// Size of each.
        bytes: u64,
    },
}

/// Which work requests are signaled, and how their end is noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signaling {
    /// All of them; the thread polls for the oldest of its window before it posts another.
    All,
    /// One in so many of each queue pair, which is polled for before the last of as many is posted. READs are noticed
    /// by their data, oldest first; WRITEs and SENDs have no other limit.
    OneIn(u32),
}

/// A raw-verbs test.
#[derive(Clone, Debug)]
pub struct Test<'a> {
    /// The cluster.
    pub cluster: Cluster<'a>,
    /// The threads that post.
    pub threads: Vec<Thread>,
    /// What they post.
    pub opcode: Opcode,
    /// On what.
    pub transport: Transport,
    /// Payload.
    pub bytes: u32,
    /// Payloads stand in the work requests.
    pub inline: bool,
    /// Work requests that a thread has outstanding.
    pub window: u32,
    /// Signaling.
    pub signaling: Signaling,
    /// Order of connections.
    pub pick: Pick,
    /// Work requests until the caches are warm.
    pub warm_up: u64,
    /// Work requests that are measured.
    pub measured: u64,
}

/// What cannot be run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TestError {
    /// The cluster cannot be.
    #[error(transparent)]
    Cluster(#[from] crate::network::ClusterError),
    /// Nothing to do.
    #[error("{what} must be at least 1")]
    Nothing {
        /// What is zero.
        what: &'static str,
    },
    /// One in none or one.
    #[error("signaling one work request in 0 or 1 means nothing; say that all are signaled")]
    Signaling,
    /// A transport that does not have the operation.
    #[error("{opcode:?} does not exist on {transport:?}")]
    Transport {
        /// The operation.
        opcode: Opcode,
        /// The transport.
        transport: Transport,
    },
    /// A thread of a host, or a connection to one, that the cluster does not have.
    #[error("thread {thread} names host {host}, but the cluster has {hosts} hosts")]
    NoSuchHost {
        /// The thread.
        thread: usize,
        /// The host it names.
        host: u32,
        /// Hosts there are.
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
