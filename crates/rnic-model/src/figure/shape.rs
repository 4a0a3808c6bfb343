//! Cluster shapes of the papers' raw-verb tests. The server is host 0.

use crate::driver::{Connection, Places, Thread};
use crate::network::Cluster;
use crate::profile::Profile;

/// Message blocks of a client at the server.
#[derive(Clone, Copy, Debug)]
pub(super) struct Blocks {
    pub(super) each: u32,
    pub(super) bytes: u64,
}

/// Which host posts to which.
#[derive(Clone, Copy, Debug)]
pub(super) enum Shape {
    /// Clients post to the server: `connections` over the threads of `hosts` hosts, each thread with at least
    /// one.
    InBound { hosts: u32, threads_per_host: u32, connections: u32, blocks: Option<Blocks> },
    /// Threads of the server post to peers on `hosts` hosts: each to all peers, or each to its share.
    OutBound { hosts: u32, peers: u32, threads: u32, all: bool },
    /// Threads of the server send datagrams, each from one queue pair to its share of the peers.
    Datagrams { hosts: u32, peers: u32, threads: u32 },
    /// Threads of the server write into regions of one other host.
    Regions { threads: u32, regions: u32, bytes: u64 },
}

/// Bytes of the buffer of a thread or client, where the paper does not state them.
const BUFFER: u64 = 1 << 16;
/// First number of the regions for local buffers.
const LOCAL: u32 = 1 << 20;

/// Returns a thread of the server that posts over these connections, if there are any.
fn server_thread(connections: Vec<Connection>) -> Option<Thread> {
    let remote = Places::Anywhere { first: 0, regions: 1, bytes: BUFFER };
    (!connections.is_empty()).then_some(Thread { host: 0, connections, region: LOCAL, remote })
}

impl Shape {
    pub(super) fn build(self, profile: &Profile) -> (Cluster<'_>, Vec<Thread>) {
        let hosts = match self {
            Shape::InBound { hosts, .. } | Shape::OutBound { hosts, .. } | Shape::Datagrams { hosts, .. } => {
                hosts
            }
            Shape::Regions { .. } => 1,
        };
        (Cluster::uniform(profile, hosts as usize + 1), self.threads())
    }

    fn threads(self) -> Vec<Thread> {
        match self {
            Shape::InBound { hosts, threads_per_host, connections, blocks } => {
                let count = (hosts * threads_per_host).min(connections);
                let share = |thread: u32| thread * connections / count;
                (0..count)
                    .map(|thread| {
                        let (first, end) = (share(thread), share(thread + 1));
                        Thread {
                            host: 1 + thread % hosts,
                            connections: (first..end)
                                .map(|number| Connection {
                                    queue_pair: number,
                                    peer: 0,
                                    peer_queue_pair: number,
                                })
                                .collect(),
                            region: LOCAL + thread,
                            remote: match blocks {
                                None => Places::Anywhere { first: 0, regions: 1, bytes: BUFFER },
                                Some(Blocks { each, bytes }) => Places::Blocks {
                                    region: 0,
                                    offset: u64::from(first) * u64::from(each) * bytes,
                                    each,
                                    block_bytes: bytes,
                                },
                            },
                        }
                    })
                    .collect()
            }
            Shape::OutBound { hosts, peers, threads, all } => (0..threads)
                .filter_map(|thread| {
                    let mine = |peer: &u32| all || peer % threads == thread;
                    let connections: Vec<Connection> = (0..peers)
                        .filter(mine)
                        .map(|peer| {
                            let number = if all { thread * peers + peer } else { peer };
                            Connection { queue_pair: number, peer: 1 + peer % hosts, peer_queue_pair: number }
                        })
                        .collect();
                    server_thread(connections)
                })
                .collect(),
            Shape::Datagrams { hosts, peers, threads } => (0..threads)
                .filter_map(|thread| {
                    let connections: Vec<Connection> = (0..peers)
                        .filter(|peer| peer % threads == thread)
                        .map(|peer| Connection {
                            queue_pair: thread,
                            peer: 1 + peer % hosts,
                            peer_queue_pair: peer / hosts,
                        })
                        .collect();
                    server_thread(connections)
                })
                .collect(),
            Shape::Regions { threads, regions, bytes } => (0..threads)
                .map(|thread| Thread {
                    host: 0,
                    connections: vec![Connection { queue_pair: thread, peer: 1, peer_queue_pair: thread }],
                    region: LOCAL,
                    remote: Places::Regions { count: regions, bytes },
                })
                .collect(),
        }
    }
}
