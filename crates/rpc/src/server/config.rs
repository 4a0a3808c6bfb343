//! Server settings.

use crate::error::ServeError;
use crate::grouped::schedule::Settings;
use crate::limits::{BLOCK_BYTES, MAX_WINDOW};
use crate::tune::grouping::{GroupDefaults, MAX_GROUP};
use dunlin_fabric::{Rates, nanos};
use std::time::Duration;

/// Settings of a server. The defaults fit most uses.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Worker threads, each with its own lanes and its own part of the service. Default: 1.
    pub workers: u16,
    /// Threads of the pool; started only if a pool service is set. Default: 2.
    pub pool_threads: u16,
    /// Cores to which worker and pool threads are bound, such as those of one NUMA node; empty for no
    /// binding, the default. Workers that the application runs on its own threads are not bound.
    pub cores: Vec<u32>,
    /// Most calls that wait for the pool, and most that wait to be pulled. The server refuses more as
    /// overloaded. Default: 1024.
    pub max_waiting: u32,
    /// The largest request accepted, in bytes. Default: 64 MiB.
    pub max_payload: u64,
    /// The largest result, in bytes. Default: 64 MiB.
    pub max_response: u64,
    /// The most calls in flight on a lane. Default: 256.
    pub window: u16,
    /// The largest ring for a client, in bytes. Default: 64 KiB.
    pub max_ring_bytes: u32,
    /// The most connections at the same time. Default: 10 000.
    pub max_connections: u32,
    /// The most queue pairs that clients use whose threads share them by combining, all clients and workers
    /// together: `MAX_AQP` of FLOCK section 5.1. The server divides them by use; each client keeps at least one to
    /// each worker, even beyond the limit. Default: 256, the number up to which the paper's NIC keeps its speed.
    pub max_active_queue_pairs: u32,
    /// The time between two divisions of these queue pairs. The paper gives none. A client reports its use once in half
    /// of [`ClientConfig::credits`](crate::ClientConfig::credits) calls; in a shorter time it may report nothing, and
    /// threads move more often. Default: 1 ms.
    pub activity_interval: Duration,
    /// The divisions that pass over a queue pair that has become inactive, before it can be active again. The paper gives
    /// no rule. One keeps a client whose share swings by one from moving the same threads each time. Default: 1.
    pub activity_rest: u32,
    /// Registered memory of each worker for large requests, in bytes. Default: 256 MiB.
    pub large_memory: u64,
    /// Registered memory of each lane for large results, in bytes. Default: 256 MiB.
    pub large_response_memory: u64,
    /// The service's name. The server refuses clients that ask for another name; empty accepts any name.
    /// Default: empty. A typed server has the name of its service.
    pub service: String,
    /// Further names under which clients may ask for the service, such as those of services that it extends.
    /// Without effect if `service` is empty. Default: none.
    pub other_names: Vec<String>,
    /// The token that clients must present; empty for none, the default.
    pub token: Vec<u8>,
    /// Time for which an adaptive wait spins before it sleeps, and a thread that waits for calls of the pool or pulls.
    /// Default: 20 µs.
    pub spin: Duration,
    /// Time limit for a client's hello message. Default: 5 s.
    pub hello_timeout: Duration,
    /// The number of clients that are served together, among those whose plan has the lease `slice`, 1 to 80. `None`, the
    /// default: what the device's rates by connections give, or 40 if they are not known
    /// ([`GroupDefaults::of`](crate::tune::grouping::GroupDefaults::of)). The priority scheduler
    /// makes groups of busier clients smaller.
    pub group_size: Option<u16>,
    /// The time for which a group of such clients is served, if there are several groups, 1 µs to 1 s. `None`, the default:
    /// what the device's rates by connections give, or 100 µs if they are not known. The server then lengthens it, to 8
    /// times that at most, by the requests that it counts ([`GroupCounters::early`](crate::GroupCounters::early)), unless
    /// several servers share the schedule. A slice that is set stays.
    pub group_slice: Option<Duration>,
    /// Whether busier clients are grouped together, in smaller groups with longer slices (ScaleRPC section 3.2).
    /// Without it groups keep their members and their slices: the paper's Static mode. Default: `true`.
    pub group_priorities: bool,
    /// One region for the request rings of all lanes, in blocks, in the place of a region for each ring. Default: none.
    pub request_pool: Option<RequestPool>,
    /// The time that received calls have to be answered when a signal ends the server
    /// (`dunlin::Server::run_until_signal`). Default: 5 s.
    pub shutdown_timeout: Duration,
}

/// The most bytes of a pool: places in it have 32 bits.
const MOST_POOLED: u64 = u32::MAX as u64;

/// The request rings of a worker's lanes in one region: a message pool whose zones belong to a lane until it closes,
/// as RawWrite's of ScaleRPC and HERD's request region. A NIC keeps few regions in its cache. Lanes by turns have pools
/// of their own.
///
/// The lanes of one user of this host, or of all other hosts, share a region: on shared memory they can read each
/// other's requests. A worker that has such a pool looks at the rings of all its lanes, since no fabric tells which
/// part of a region was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestPool {
    /// Rings of each pool, each of [`ServerConfig::max_ring_bytes`]. A lane that finds none free is refused.
    pub rings: u16,
    /// Bytes of a block, a power of two from 64 to 4096: each message takes whole blocks. 4096 is ScaleRPC's.
    pub block: u32,
}

impl RequestPool {
    /// Returns the bytes of a pool of rings of `ring` bytes.
    pub(crate) fn bytes(self, ring: u32) -> u64 {
        u64::from(self.rings) * u64::from(ring)
    }
}

impl Default for ServerConfig {
    fn default() -> Self {
        ServerConfig {
            workers: 1,
            pool_threads: 2,
            cores: Vec::new(),
            max_waiting: 1024,
            max_payload: 64 << 20,
            max_response: 64 << 20,
            window: 256,
            max_ring_bytes: 64 * 1024,
            max_connections: 10_000,
            max_active_queue_pairs: 256,
            activity_interval: Duration::from_millis(1),
            activity_rest: 1,
            large_memory: 256 << 20,
            large_response_memory: 256 << 20,
            service: String::new(),
            other_names: Vec::new(),
            token: Vec::new(),
            spin: Duration::from_micros(20),
            hello_timeout: Duration::from_secs(5),
            shutdown_timeout: Duration::from_secs(5),
            group_size: None,
            group_slice: None,
            group_priorities: true,
            request_pool: None,
        }
    }
}

impl ServerConfig {
    /// Returns whether a client that asks for this service may connect.
    pub(crate) fn serves(&self, name: &str) -> bool {
        let any = name.is_empty() || self.service.is_empty();
        any || self.service == name || self.other_names.iter().any(|other| other == name)
    }

    /// Returns the settings of the groups on a device with these rates.
    pub(crate) fn groups(&self, rates: Option<&Rates>) -> Settings {
        let defaults = GroupDefaults::of(rates);
        Settings {
            size: self.group_size.unwrap_or(defaults.size).into(),
            slice: nanos(self.group_slice.unwrap_or(defaults.slice)),
            by_priority: self.group_priorities,
        }
    }

    pub(crate) fn check(&self) -> Result<(), ServeError> {
        let out = |what, value: u64, must| Err(ServeError::Setting { what, value, must });
        if self.workers == 0 || self.workers > 1024 {
            return out("workers", self.workers.into(), "1 to 1024");
        }
        if self.window == 0 || self.window > MAX_WINDOW {
            return out("window", self.window.into(), "1 to 1024 calls");
        }
        if self.max_ring_bytes < 16 * 1024
            || self.max_ring_bytes > 1 << 20
            || !self.max_ring_bytes.is_power_of_two()
        {
            return out("max_ring_bytes", self.max_ring_bytes.into(), "a power of two from 16 KiB to 1 MiB");
        }
        if self.max_active_queue_pairs == 0 {
            return out("max_active_queue_pairs", 0, "at least 1");
        }
        if self.activity_interval < Duration::from_micros(1) {
            return out("activity_interval", nanos(self.activity_interval), "at least 1 us");
        }
        if self.max_payload > u32::MAX as u64 || self.max_response > u32::MAX as u64 {
            return out(
                "max_payload or max_response",
                self.max_payload.max(self.max_response),
                "under 4 GiB",
            );
        }
        if let Some(size) = self.group_size.filter(|size| *size == 0 || *size > MAX_GROUP) {
            return out("group_size", size.into(), "1 to 80 clients");
        }
        let slices = Duration::from_micros(1)..=Duration::from_secs(1);
        if let Some(slice) = self.group_slice.filter(|slice| !slices.contains(slice)) {
            return out("group_slice", nanos(slice), "1 us to 1 s");
        }
        if let Some(pool) = self.request_pool {
            if pool.rings == 0 || pool.bytes(self.max_ring_bytes) > MOST_POOLED {
                return out("request_pool.rings", pool.rings.into(), "at least 1, and all rings under 4 GiB");
            }
            if !BLOCK_BYTES.contains(&pool.block) || !pool.block.is_power_of_two() {
                return out("request_pool.block", pool.block.into(), "a power of two from 64 bytes to 4 KiB");
            }
        }
        if self.pool_threads == 0 || self.pool_threads > 1024 {
            return out("pool_threads", self.pool_threads.into(), "1 to 1024");
        }
        Ok(())
    }
}
