//! The keys of hints, and the two sides of a call.

use crate::nearest::nearest;
use std::fmt;

/// The key of a hint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// The optimization goal: `latency`, `throughput` or `res_util`.
    PerfGoal,
    /// The number of clients that call concurrently.
    Concurrency,
    /// The payload size in bytes: of requests for a client, of responses for a server.
    PayloadSize,
    /// The completion mode of a side: `busy`, `event` or `adaptive`.
    Polling,
    /// The NUMA binding of threads: `on`, `off` or a node.
    Numa,
    /// The transport of the calls: `rdma` or `tcp`.
    Transport,
    /// The priority of the function: `high` or `low`.
    Priority,
    /// The server's processing time of a call: `short`, `long` or a duration.
    ProcessTime,
    /// A protocol by name: a row of [`PROTOCOLS`](dunlin_rpc::PROTOCOLS).
    Protocol,
    /// How the client's threads share connections: `dedicated`, `combined`, `grouped`, `combined_grouped` or `tier`.
    Sharing,
}

impl Key {
    /// All keys.
    pub const ALL: [Key; 10] = [
        Key::PerfGoal,
        Key::Concurrency,
        Key::PayloadSize,
        Key::Polling,
        Key::Numa,
        Key::Transport,
        Key::Priority,
        Key::ProcessTime,
        Key::Protocol,
        Key::Sharing,
    ];

    /// Alternative key names that occur in HatRPC's own IDL files.
    const ALIASES: [(&'static str, Key); 2] = [("perf_pref", Key::Polling), ("proto", Key::Protocol)];

    /// Returns the key's name in IDL files.
    pub const fn name(self) -> &'static str {
        match self {
            Key::PerfGoal => "perf_goal",
            Key::Concurrency => "concurrency",
            Key::PayloadSize => "payload_size",
            Key::Polling => "polling",
            Key::Numa => "numa",
            Key::Transport => "transport",
            Key::Priority => "priority",
            Key::ProcessTime => "process_time",
            Key::Protocol => "protocol",
            Key::Sharing => "sharing",
        }
    }

    /// Returns the alternative names of the key.
    pub fn aliases(self) -> impl Iterator<Item = &'static str> {
        Key::ALIASES.into_iter().filter_map(move |(alias, key)| (key == self).then_some(alias))
    }

    /// Returns the key with exactly this name or alias.
    pub fn by_name(name: &str) -> Option<Key> {
        Key::ALL
            .into_iter()
            .find(|key| key.name() == name)
            .or_else(|| Key::ALIASES.into_iter().find_map(|(alias, key)| (alias == name).then_some(key)))
    }

    /// Returns the name or alias nearest to a misspelt one, if any is near.
    pub fn nearest_name(name: &str) -> Option<&'static str> {
        let names = Key::ALL.into_iter().map(Key::name);
        nearest(name, names.chain(Key::ALIASES.into_iter().map(|(alias, _)| alias)))
    }

    /// Returns a description of the key's values for a message.
    pub const fn values(self) -> &'static str {
        match self {
            Key::PerfGoal => "latency, throughput or res_util",
            Key::Concurrency => "a number of clients from 1 to 1000000",
            Key::PayloadSize => "a number of bytes as 512, 1KB or 2MB",
            Key::Polling => "busy, event or adaptive",
            Key::Numa => "on, off or the number of a node",
            Key::Transport => "rdma or tcp",
            Key::Priority => "high or low",
            Key::ProcessTime => "short, long or a time as 10us or 1ms",
            Key::Protocol => "the name of a protocol ('dunlin protocols' lists them)",
            Key::Sharing => "dedicated, combined, grouped, combined_grouped or tier",
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A side of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Side {
    /// The caller.
    Client,
    /// The service.
    Server,
}

impl Side {
    /// Both sides.
    pub const BOTH: [Side; 2] = [Side::Client, Side::Server];

    /// Returns the side's name.
    pub const fn name(self) -> &'static str {
        match self {
            Side::Client => "client",
            Side::Server => "server",
        }
    }

    /// Returns the other side.
    pub const fn other(self) -> Side {
        match self {
            Side::Client => Side::Server,
            Side::Server => Side::Client,
        }
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
