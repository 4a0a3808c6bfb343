//! The keys of hints, and the sides that they can be for.

use crate::nearest::nearest;
use std::fmt;

/// What a hint is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// What is to be optimized: `latency`, `throughput` or `res_util`.
    PerfGoal,
    /// How many clients call at the same time.
    Concurrency,
    /// Bytes of a payload: a client's are those of requests, a server's those of responses.
    PayloadSize,
    /// How a side waits: `busy`, `event` or `adaptive`.
    Polling,
    /// Whether threads are bound to a NUMA node: `on`, `off` or a node.
    Numa,
    /// What carries the calls: `rdma` or `tcp`.
    Transport,
    /// Whether the function gives way to others: `high` or `low`.
    Priority,
    /// How long the server works on a call: `short`, `long` or a duration.
    ProcessTime,
    /// A protocol by name: a row of [`PROTOCOLS`](dunlin_rpc::PROTOCOLS).
    Protocol,
}

impl Key {
    /// All keys.
    pub const ALL: [Key; 9] = [
        Key::PerfGoal,
        Key::Concurrency,
        Key::PayloadSize,
        Key::Polling,
        Key::Numa,
        Key::Transport,
        Key::Priority,
        Key::ProcessTime,
        Key::Protocol,
    ];

    /// The other names of keys that occur in HatRPC's own IDL files.
    const ALIASES: [(&'static str, Key); 2] = [("perf_pref", Key::Polling), ("proto", Key::Protocol)];

    /// Its name in IDL files.
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
        }
    }

    /// The key of this name or alias, in just this spelling.
    pub fn by_name(name: &str) -> Option<Key> {
        Key::ALL
            .into_iter()
            .find(|key| key.name() == name)
            .or_else(|| Key::ALIASES.into_iter().find_map(|(alias, key)| (alias == name).then_some(key)))
    }

    /// The name or alias that a misspelt one is nearest to, if it is near to any.
    pub fn nearest_name(name: &str) -> Option<&'static str> {
        let names = Key::ALL.into_iter().map(Key::name);
        nearest(name, names.chain(Key::ALIASES.into_iter().map(|(alias, _)| alias)))
    }

    /// What values it takes, in words for a message.
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
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A side of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Side {
    /// Who calls.
    Client,
    /// Who answers.
    Server,
}

impl Side {
    /// Both sides.
    pub const BOTH: [Side; 2] = [Side::Client, Side::Server];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Side::Client => "client",
            Side::Server => "server",
        }
    }

    /// The other side.
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
