//! The values of hints, their words and units.

use crate::key::Key;
use crate::nearest::nearest;
use dunlin_rpc::{CompletionMode, Lease, PROTOCOLS, Plan, Protocol};
use std::fmt;
use thiserror::Error;

/// The largest value of `concurrency`.
pub const MAX_CONCURRENCY: u32 = 1_000_000;
/// The largest `payload_size` in bytes: 4 GiB.
pub const MAX_PAYLOAD: u64 = 1 << 32;
/// The largest `process_time` in nanoseconds: one hour.
const MAX_PROCESS_TIME: u64 = 3_600_000_000_000;
/// The processing time in nanoseconds from which work counts as long. From 7 us on, fetching results has no
/// advantage over replies in RF-RPC (its section 4.4.3, figure 9).
pub const LONG_FROM: u64 = 7_000;

/// The optimization goal (HatRPC figure 6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PerfGoal {
    /// Minimize the time of one call.
    Latency,
    /// Maximize the calls per second of all clients together.
    Throughput,
    /// Minimize memory and processor time.
    ResUtil,
}

/// The NUMA binding of threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Numa {
    /// Bind to the NIC's node while its cores suffice for all clients (HatRPC section 3.2).
    On,
    /// Do not bind.
    Off,
    /// Bind to this node.
    Node(u16),
}

/// The transport of the calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Transport {
    /// The fabric, with remote memory access.
    #[default]
    Rdma,
    /// Stock Thrift over TCP.
    Tcp,
}

/// The priority of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Priority {
    /// Normal priority.
    High,
    /// Yields to other functions: its side never busy-polls.
    Low,
}

/// The server's processing time of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProcessTime {
    /// Shorter than [`LONG_FROM`].
    Short,
    /// [`LONG_FROM`] or longer.
    Long,
    /// This number of nanoseconds.
    Nanos(u64),
}

impl ProcessTime {
    /// Returns whether it is [`LONG_FROM`] or longer.
    pub const fn is_long(self) -> bool {
        match self {
            ProcessTime::Short => false,
            ProcessTime::Long => true,
            ProcessTime::Nanos(nanos) => nanos >= LONG_FROM,
        }
    }
}

/// How the threads of a client share connections, and how long a connection keeps the server's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sharing {
    /// Each thread has a connection of its own.
    Dedicated,
    /// Threads share connections, and one thread sends the calls of all in one message (FLOCK section 4).
    Combined,
    /// Each thread has a connection of its own, whose memory at the server belongs to it for a time slice
    /// (ScaleRPC section 3). [`Plan::check`](dunlin_rpc::Plan::check) says whether this version has it.
    Grouped,
    /// Threads share a connection as with [`Combined`](Sharing::Combined), whose memory at the server belongs to it for
    /// a time slice.
    CombinedGrouped,
    /// The processes of a host share the connections of their node of the memory tier (LITE section 6.1): the client has
    /// a `node:` address, and each thread a connection of its own to the node of its host.
    Tier,
}

impl Sharing {
    /// Returns the value that describes a plan; `None` for a policy that is a baseline and no value of the hint.
    pub const fn of(plan: &Plan) -> Option<Sharing> {
        match (plan.sharing, plan.lease) {
            (dunlin_rpc::Sharing::Dedicated, Lease::Forever) => Some(Sharing::Dedicated),
            (dunlin_rpc::Sharing::Combined, Lease::Forever) => Some(Sharing::Combined),
            (dunlin_rpc::Sharing::Dedicated, Lease::Slice) => Some(Sharing::Grouped),
            (dunlin_rpc::Sharing::Combined, Lease::Slice) => Some(Sharing::CombinedGrouped),
            _ => None,
        }
    }

    /// Returns whether threads share a connection.
    pub(crate) const fn is_combined(self) -> bool {
        matches!(self, Sharing::Combined | Sharing::CombinedGrouped)
    }

    /// Returns the value with the same lease whose threads share a connection.
    pub(crate) const fn combined(self) -> Sharing {
        match self {
            Sharing::Dedicated | Sharing::Combined => Sharing::Combined,
            Sharing::Grouped | Sharing::CombinedGrouped => Sharing::CombinedGrouped,
            Sharing::Tier => Sharing::Tier,
        }
    }

    /// Returns the value with the same policy whose connections take turns.
    pub(crate) const fn grouped(self) -> Sharing {
        match self {
            Sharing::Dedicated | Sharing::Grouped => Sharing::Grouped,
            Sharing::Combined | Sharing::CombinedGrouped => Sharing::CombinedGrouped,
            Sharing::Tier => Sharing::Tier,
        }
    }

    /// Returns a plan with this sharing, and otherwise as it is.
    #[must_use]
    pub const fn on(self, plan: Plan) -> Plan {
        let (sharing, lease) = match self {
            Sharing::Dedicated | Sharing::Tier => (dunlin_rpc::Sharing::Dedicated, Lease::Forever),
            Sharing::Combined => (dunlin_rpc::Sharing::Combined, Lease::Forever),
            Sharing::Grouped => (dunlin_rpc::Sharing::Dedicated, Lease::Slice),
            Sharing::CombinedGrouped => (dunlin_rpc::Sharing::Combined, Lease::Slice),
        };
        plan.shared(sharing, lease)
    }
}

/// The value of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Value {
    /// A value of [`Key::PerfGoal`].
    PerfGoal(PerfGoal),
    /// A value of [`Key::Concurrency`]: a number of clients.
    Concurrency(u32),
    /// A value of [`Key::PayloadSize`] in bytes.
    PayloadSize(u64),
    /// A value of [`Key::Polling`].
    Polling(CompletionMode),
    /// A value of [`Key::Numa`].
    Numa(Numa),
    /// A value of [`Key::Transport`].
    Transport(Transport),
    /// A value of [`Key::Priority`].
    Priority(Priority),
    /// A value of [`Key::ProcessTime`].
    ProcessTime(ProcessTime),
    /// A value of [`Key::Protocol`]: the protocol's name in the table.
    Protocol(&'static str),
    /// A value of [`Key::Sharing`].
    Sharing(Sharing),
}

/// The error of parsing a value.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ValueError {
    /// The word is not a value of the key.
    #[error("'{word}' is not a value of {key}, which takes {}", key.values())]
    Unknown {
        /// The key.
        key: Key,
        /// The word.
        word: String,
        /// The nearest valid word.
        nearest: Option<&'static str>,
    },
    /// The number is out of bounds.
    #[error("{word} is out of bounds for {key}: it is from {least} to {most}")]
    OutOfBounds {
        /// The key.
        key: Key,
        /// The word.
        word: String,
        /// The lower bound, in its IDL notation.
        least: &'static str,
        /// The upper bound, in its IDL notation.
        most: &'static str,
    },
}

impl ValueError {
    /// Returns the valid word that was probably meant.
    pub fn nearest(&self) -> Option<&'static str> {
        match self {
            ValueError::Unknown { nearest, .. } => *nearest,
            ValueError::OutOfBounds { .. } => None,
        }
    }
}

const GOALS: &[(&str, Value)] = &[
    ("latency", Value::PerfGoal(PerfGoal::Latency)),
    ("throughput", Value::PerfGoal(PerfGoal::Throughput)),
    ("res_util", Value::PerfGoal(PerfGoal::ResUtil)),
];
const POLLINGS: &[(&str, Value)] = &[
    ("busy", Value::Polling(CompletionMode::Busy)),
    ("event", Value::Polling(CompletionMode::Event)),
    ("adaptive", Value::Polling(CompletionMode::Adaptive)),
];
const NUMAS: &[(&str, Value)] = &[("on", Value::Numa(Numa::On)), ("off", Value::Numa(Numa::Off))];
const TRANSPORTS: &[(&str, Value)] =
    &[("rdma", Value::Transport(Transport::Rdma)), ("tcp", Value::Transport(Transport::Tcp))];
const PRIORITIES: &[(&str, Value)] =
    &[("high", Value::Priority(Priority::High)), ("low", Value::Priority(Priority::Low))];
const PROCESS_TIMES: &[(&str, Value)] =
    &[("short", Value::ProcessTime(ProcessTime::Short)), ("long", Value::ProcessTime(ProcessTime::Long))];
const SHARINGS: &[(&str, Value)] = &[
    ("dedicated", Value::Sharing(Sharing::Dedicated)),
    ("combined", Value::Sharing(Sharing::Combined)),
    ("grouped", Value::Sharing(Sharing::Grouped)),
    ("combined_grouped", Value::Sharing(Sharing::CombinedGrouped)),
    ("tier", Value::Sharing(Sharing::Tier)),
];

/// Short names of protocols. `eager` occurs in HatRPC's IDL files; the papers use the others.
const PROTOCOL_ALIASES: &[(&str, &str)] =
    &[("eager", "Eager-SendRecv"), ("rfp", "Remote-fetch"), ("hybrid", "Hybrid-EagerRNDV")];

/// Returns the names of all protocols.
pub fn protocol_names() -> impl Iterator<Item = &'static str> {
    PROTOCOLS.iter().map(|protocol| protocol.name)
}

/// Finds a protocol by name, ignoring case, `-` and `_` (`direct_write_imm` is `Direct-WriteIMM`).
fn protocol(word: &str) -> Option<&'static Protocol> {
    let plain = |text: &str| text.to_ascii_lowercase().replace(['-', '_'], "");
    let word = plain(word);
    let name = PROTOCOL_ALIASES.iter().find(|(alias, _)| *alias == word).map(|(_, name)| *name);
    PROTOCOLS.iter().find(|protocol| plain(protocol.name) == plain(name.unwrap_or(&word)))
}

/// Returns the name of the protocol that a misspelt or shortened name most likely means.
pub fn nearest_protocol(word: &str) -> Option<&'static str> {
    let known = protocol(word).map(|protocol| protocol.name);
    known.or_else(|| nearest(word, protocol_names())).or_else(|| {
        let aliases = PROTOCOL_ALIASES.iter().map(|(alias, _)| *alias);
        nearest(word, aliases).and_then(protocol).map(|protocol| protocol.name)
    })
}

impl Value {
    /// Parses a word as the value of a key.
    pub fn parse(key: Key, word: &str) -> Result<Value, ValueError> {
        let words = match key {
            Key::PerfGoal => GOALS,
            Key::Polling => POLLINGS,
            Key::Numa => NUMAS,
            Key::Transport => TRANSPORTS,
            Key::Priority => PRIORITIES,
            Key::ProcessTime => PROCESS_TIMES,
            Key::Sharing => SHARINGS,
            Key::Concurrency | Key::PayloadSize | Key::Protocol => &[],
        };
        if let Some((_, value)) = words.iter().find(|(name, _)| *name == word) {
            return Ok(*value);
        }
        let unknown = |nearest| ValueError::Unknown { key, word: word.to_owned(), nearest };
        match key {
            Key::PerfGoal | Key::Polling | Key::Transport | Key::Priority | Key::Sharing => {
                Err(unknown(nearest(word, words.iter().map(|(name, _)| *name))))
            }
            Key::Concurrency => {
                number(key, word, &[("", 1)], (1, "1"), (u64::from(MAX_CONCURRENCY), "1000000"))
                    .map(|clients| Value::Concurrency(clients as u32))
            }
            Key::PayloadSize => {
                number(key, word, SIZES, (1, "1"), (MAX_PAYLOAD, "4GB")).map(Value::PayloadSize)
            }
            Key::Numa => number(key, word, &[("", 1)], (0, "0"), (1023, "1023"))
                .map(|node| Value::Numa(Numa::Node(node as u16)))
                .map_err(|error| error.or_nearest(words)),
            Key::ProcessTime => number(key, word, TIMES, (1, "1ns"), (MAX_PROCESS_TIME, "3600s"))
                .map(|nanos| Value::ProcessTime(ProcessTime::Nanos(nanos)))
                .map_err(|error| error.or_nearest(words)),
            Key::Protocol => match protocol(word) {
                Some(protocol) => Ok(Value::Protocol(protocol.name)),
                None => Err(unknown(nearest_protocol(word))),
            },
        }
    }

    /// Returns the key of the value.
    pub const fn key(&self) -> Key {
        match self {
            Value::PerfGoal(_) => Key::PerfGoal,
            Value::Concurrency(_) => Key::Concurrency,
            Value::PayloadSize(_) => Key::PayloadSize,
            Value::Polling(_) => Key::Polling,
            Value::Numa(_) => Key::Numa,
            Value::Transport(_) => Key::Transport,
            Value::Priority(_) => Key::Priority,
            Value::ProcessTime(_) => Key::ProcessTime,
            Value::Protocol(_) => Key::Protocol,
            Value::Sharing(_) => Key::Sharing,
        }
    }
}

impl ValueError {
    fn or_nearest(self, words: &[(&'static str, Value)]) -> Self {
        match self {
            ValueError::Unknown { key, word, .. } => {
                let nearest = nearest(&word, words.iter().map(|(name, _)| *name));
                ValueError::Unknown { key, word, nearest }
            }
            other => other,
        }
    }
}

/// Units of size, in any case. A KB has 1024 bytes, as in HatRPC (section 4.4).
const SIZES: &[(&str, u64)] = &[
    ("", 1),
    ("b", 1),
    ("k", 1 << 10),
    ("kb", 1 << 10),
    ("kib", 1 << 10),
    ("m", 1 << 20),
    ("mb", 1 << 20),
    ("mib", 1 << 20),
    ("g", 1 << 30),
    ("gb", 1 << 30),
    ("gib", 1 << 30),
];

/// Units of time in nanoseconds. A time requires a unit.
const TIMES: &[(&str, u64)] = &[("ns", 1), ("us", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000)];

/// Parses a whole number with a unit, within bounds that are given with their IDL notation.
fn number(
    key: Key,
    word: &str,
    units: &[(&str, u64)],
    least: (u64, &'static str),
    most: (u64, &'static str),
) -> Result<u64, ValueError> {
    let digits = word.find(|c: char| !c.is_ascii_digit()).unwrap_or(word.len());
    let unit = word[digits..].to_ascii_lowercase();
    let factor = units.iter().find(|(name, _)| *name == unit).map(|(_, factor)| *factor);
    let (Some(factor), true) = (factor, digits > 0) else {
        return Err(ValueError::Unknown { key, word: word.to_owned(), nearest: None });
    };
    // A sequence of digits fails to parse only if it is too long.
    let number = word[..digits].parse::<u64>().ok().and_then(|number| number.checked_mul(factor));
    match number {
        Some(number) if (least.0..=most.0).contains(&number) => Ok(number),
        _ => Err(ValueError::OutOfBounds { key, word: word.to_owned(), least: least.1, most: most.1 }),
    }
}

/// Writes a number with the largest unit that leaves it whole.
fn with_unit(f: &mut fmt::Formatter<'_>, number: u64, units: &[(&str, u64)]) -> fmt::Result {
    match units.iter().find(|(_, factor)| number != 0 && number.is_multiple_of(*factor)) {
        Some((unit, factor)) => write!(f, "{}{unit}", number / factor),
        None => write!(f, "{number}"),
    }
}

/// Displays the value in its IDL notation, which [`Value::parse`] accepts.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Concurrency(clients) => write!(f, "{clients}"),
            Value::PayloadSize(bytes) => {
                with_unit(f, *bytes, &[("GB", 1 << 30), ("MB", 1 << 20), ("KB", 1 << 10)])
            }
            Value::Numa(Numa::Node(node)) => write!(f, "{node}"),
            Value::ProcessTime(ProcessTime::Nanos(nanos)) => {
                with_unit(f, *nanos, &[("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1_000), ("ns", 1)])
            }
            Value::Protocol(name) => f.write_str(name),
            value => {
                let lists = [GOALS, POLLINGS, NUMAS, TRANSPORTS, PRIORITIES, PROCESS_TIMES, SHARINGS];
                let mut words = lists.into_iter().flatten();
                f.write_str(words.find(|(_, other)| other == value).map_or("", |(word, _)| word))
            }
        }
    }
}
