//! Settings of a node, and the list of nodes.

use crate::arena::{self, MemorySource, Progress};
use crate::error::JoinError;
use crate::path_count::{PathCount, PathReason, paths_on};
use crate::qos::QosConfig;
use dunlin_fabric::{Address, AddressError, Fabric, Scheme};
use dunlin_tier::membership::Identity;
use std::time::Duration;

/// A node in the list of nodes. All nodes have the same list in the same order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The name by which applications choose the node.
    pub name: String,
    /// The address of its service.
    pub calls: Address,
    /// The address at which it accepts the paths of other nodes.
    pub memory: Address,
}

impl Peer {
    /// Makes a node with addresses that follow from its name: `SCHEME:tier-NAME` and `SCHEME:tier-NAME-memory`. For
    /// schemes whose addresses are names: shared memory and the simulator.
    pub fn named(scheme: Scheme, name: &str) -> Result<Peer, AddressError> {
        let calls = Address::new(scheme, &format!("tier-{name}"))?;
        let memory = Address::new(scheme, &format!("tier-{name}-memory"))?;
        Ok(Peer { name: name.to_owned(), calls, memory })
    }

    /// Returns the name and addresses of this node as views have them. `life` is a random number of this life of the
    /// node.
    pub fn identity(&self, life: u64) -> Identity {
        let (calls, memory) = (self.calls.to_string(), self.memory.to_string());
        Identity { name: self.name.clone(), calls, memory, life }
    }
}

/// Settings of a node.
#[derive(Clone, Debug)]
pub struct TierConfig {
    /// All nodes of the cluster; at most 1024. With a [directory](TierConfig::directory), this node at least.
    pub nodes: Vec<Peer>,
    /// The name of this node in the list.
    pub node: String,
    /// The address of the directory from which this node learns of the others. Default: none, the list is all of them.
    pub directory: Option<Address>,
    /// The time between two reports of this node to the directory: at most a third of the lease that the directory gives.
    /// Default: 100 ms.
    pub beat: Duration,
    /// The most nodes that a directory may tell of, 1 to 1024. Default: 64.
    pub max_nodes: u16,
    /// The principal of this process. Other nodes believe it: nodes trust each other. Default: `anonymous`.
    pub principal: String,
    /// The memory of this node for regions, in bytes. Default: 64 MiB.
    pub memory: u64,
    /// The length of an extent, in bytes: a power of two. An extent of shared memory is a file of its own, which processes
    /// can map; a length that huge pages divide gets huge pages if enough are reserved. Default: a 32nd of the memory, but
    /// at least 2 MiB and a piece; on an RNIC without a `memory_source` the whole memory.
    pub extent: Option<u64>,
    /// The maker of the memory, if it is not the fabric of the node. A node on an RNIC whose memory is that of
    /// `fabric-shm` can be kept by a keeper, and lets processes map regions. Default: none.
    pub memory_source: Option<MemorySource>,
    /// Gives the whole memory pages when the node starts, by all cores. Otherwise the first access to a page does.
    /// Default: false.
    pub prefault: bool,
    /// Hears how far that is. Default: none.
    pub progress: Option<Progress>,
    /// The most bytes of the regions that one principal has made at this node. Default: no limit but the memory.
    pub quota: u64,
    /// The longest piece of a region, in bytes, a multiple of 64. Default: 4 MiB.
    pub piece: u32,
    /// The longest one-sided operation, in bytes; longer ones are cut. Default: 256 KiB.
    pub step: u32,
    /// The paths of this node: the number of threads that have operations under way at the same time. Each path
    /// has one queue pair to each node that it uses (K in section 6.1: 1 to 4). Default: 0, by the device
    /// ([`Tier::path_count`](crate::Tier::path_count) says how many, and why).
    pub paths: u16,
    /// The threads that take requests and calls of other nodes, 1 to 64 (section 6.1: one to four). Default: 1.
    pub workers: u16,
    /// The rule by which principals and priorities share the paths, and limits of principals. Default: shares of
    /// equal weight, high priority, no limits.
    pub qos: QosConfig,
    /// The token that all nodes of the cluster know. Default: empty.
    pub token: Vec<u8>,
    /// The time of an operation or a request, connecting included. Default: 5 s.
    pub timeout: Duration,
    /// The time after which a node that has died takes regions with it whose records it alone kept. Other nodes then take
    /// back the memory of those that nobody has mapped. With a directory or etcd, a node that was taken for dead for longer
    /// gives them up itself. In a fixed list, it is also the time between two looks at the other nodes, and memory goes back
    /// only when all of them answer. At least [`timeout`](TierConfig::timeout). Default: 60 s.
    pub orphan_after: Duration,
    /// The time that a node has to stop and drain when a region is freed; it is fenced afterwards. Default: 500 ms.
    pub stop_timeout: Duration,
}

impl TierConfig {
    /// Returns default settings for the node `node` of a list.
    pub fn new(nodes: Vec<Peer>, node: &str) -> TierConfig {
        TierConfig {
            nodes,
            node: node.to_owned(),
            directory: None,
            beat: Duration::from_millis(100),
            max_nodes: 64,
            principal: "anonymous".to_owned(),
            memory: 64 << 20,
            extent: None,
            memory_source: None,
            prefault: false,
            progress: None,
            quota: u64::MAX,
            piece: 4 << 20,
            step: 256 << 10,
            paths: 0,
            workers: 1,
            qos: QosConfig::default(),
            token: Vec::new(),
            timeout: Duration::from_secs(5),
            orphan_after: Duration::from_secs(60),
            stop_timeout: Duration::from_millis(500),
        }
    }

    /// Returns this node.
    pub(crate) fn own(&self) -> Result<&Peer, JoinError> {
        let own = self.nodes.iter().find(|peer| peer.name == self.node);
        own.ok_or_else(|| JoinError::NotListed(self.node.clone()))
    }

    /// Checks the settings, and sets the number of paths if they leave it open. `changes` says whether nodes come and go.
    /// Returns the reason for the number.
    pub(crate) fn settle<F: Fabric>(&mut self, fabric: &F, changes: bool) -> Result<PathReason, JoinError> {
        self.check()?;
        let most = if changes { self.max_nodes } else { self.nodes.len() as u16 };
        let PathCount { count, reason } = paths_on(fabric, self.paths, (most.saturating_sub(1), changes));
        self.paths = count;
        self.qos.check(count)?;
        Ok(reason)
    }

    /// Checks the settings.
    pub(crate) fn check(&self) -> Result<(), JoinError> {
        let out = |what, value, must| Err(JoinError::Setting { what, value, must });
        if self.nodes.is_empty() || self.nodes.len() > 1024 {
            return out("the number of nodes", self.nodes.len() as u64, "1 to 1024");
        }
        for (at, peer) in self.nodes.iter().enumerate() {
            if self.nodes[..at].iter().any(|earlier| earlier.name == peer.name) {
                return Err(JoinError::TwoNodes(peer.name.clone()));
            }
        }
        if self.max_nodes == 0 || self.max_nodes > 1024 {
            return out("max_nodes", self.max_nodes.into(), "1 to 1024");
        }
        if self.beat.is_zero() {
            return out("beat", 0, "more than no time");
        }
        if self.memory < 4096 {
            return out("memory", self.memory, "at least 4096 bytes");
        }
        if self.piece < 4096 || !self.piece.is_multiple_of(64) || self.piece > dunlin_tier::cut::MAX_PIECE {
            return out("piece", self.piece.into(), "a multiple of 64 from 4096 bytes to 1 GiB");
        }
        arena::check(self)?;
        if !(64..=1 << 20).contains(&self.step) {
            return out("step", self.step.into(), "64 bytes to 1 MiB");
        }
        if self.paths > 64 {
            return out("paths", self.paths.into(), "1 to 64, or 0 for the number that suits the device");
        }
        if self.workers == 0 || self.workers > 64 {
            return out("workers", self.workers.into(), "1 to 64");
        }
        if self.token.len() > 255 {
            return out("the length of the token", self.token.len() as u64, "at most 255 bytes");
        }
        self.own().map(drop)
    }
}
