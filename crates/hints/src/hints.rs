//! The hints of a side, and those of a function with their locations.

use crate::key::{Key, Side};
use crate::value::{Numa, PerfGoal, Priority, ProcessTime, Sharing, Transport, Value};
use dunlin_rpc::CompletionMode;
use std::borrow::Cow;
use std::fmt;

/// The hints of one side; `None` for keys without a hint. Can be constructed in constants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Hints {
    /// The optimization goal.
    pub perf_goal: Option<PerfGoal>,
    /// The number of clients that call concurrently.
    pub concurrency: Option<u32>,
    /// The payload size in bytes that this side sends: a client's requests, a server's responses.
    pub payload_size: Option<u64>,
    /// The completion mode of this side.
    pub polling: Option<CompletionMode>,
    /// The NUMA binding of this side's threads.
    pub numa: Option<Numa>,
    /// The transport.
    pub transport: Option<Transport>,
    /// The priority of the function.
    pub priority: Option<Priority>,
    /// The server's processing time of a call.
    pub process_time: Option<ProcessTime>,
    /// The name of a row of [`PROTOCOLS`](dunlin_rpc::PROTOCOLS).
    pub protocol: Option<&'static str>,
    /// How the client's threads share connections. Only the client's value counts.
    pub sharing: Option<Sharing>,
}

/// Defines a builder method for each key.
macro_rules! steps {
    ($($(#[$documentation:meta])* $name:ident: $type:ty),* $(,)?) => {
        $($(#[$documentation])*
        #[must_use]
        pub const fn $name(self, $name: $type) -> Hints {
            Hints { $name: Some($name), ..self }
        })*
    };
}

impl Hints {
    /// No hints.
    pub const NONE: Hints = Hints {
        perf_goal: None,
        concurrency: None,
        payload_size: None,
        polling: None,
        numa: None,
        transport: None,
        priority: None,
        process_time: None,
        protocol: None,
        sharing: None,
    };

    steps! {
        /// Sets the optimization goal.
        perf_goal: PerfGoal,
        /// Sets the number of concurrent clients.
        concurrency: u32,
        /// Sets the payload size in bytes.
        payload_size: u64,
        /// Sets the completion mode.
        polling: CompletionMode,
        /// Sets the NUMA binding.
        numa: Numa,
        /// Sets the transport.
        transport: Transport,
        /// Sets the priority.
        priority: Priority,
        /// Sets the server's processing time.
        process_time: ProcessTime,
        /// Sets the protocol by name.
        protocol: &'static str,
        /// Sets how the client's threads share connections.
        sharing: Sharing,
    }

    /// Returns the value of a key.
    pub fn get(&self, key: Key) -> Option<Value> {
        match key {
            Key::PerfGoal => self.perf_goal.map(Value::PerfGoal),
            Key::Concurrency => self.concurrency.map(Value::Concurrency),
            Key::PayloadSize => self.payload_size.map(Value::PayloadSize),
            Key::Polling => self.polling.map(Value::Polling),
            Key::Numa => self.numa.map(Value::Numa),
            Key::Transport => self.transport.map(Value::Transport),
            Key::Priority => self.priority.map(Value::Priority),
            Key::ProcessTime => self.process_time.map(Value::ProcessTime),
            Key::Protocol => self.protocol.map(Value::Protocol),
            Key::Sharing => self.sharing.map(Value::Sharing),
        }
    }

    /// Sets the value for its key.
    pub fn set(&mut self, value: Value) {
        match value {
            Value::PerfGoal(value) => self.perf_goal = Some(value),
            Value::Concurrency(value) => self.concurrency = Some(value),
            Value::PayloadSize(value) => self.payload_size = Some(value),
            Value::Polling(value) => self.polling = Some(value),
            Value::Numa(value) => self.numa = Some(value),
            Value::Transport(value) => self.transport = Some(value),
            Value::Priority(value) => self.priority = Some(value),
            Value::ProcessTime(value) => self.process_time = Some(value),
            Value::Protocol(value) => self.protocol = Some(value),
            Value::Sharing(value) => self.sharing = Some(value),
        }
    }

    /// Returns an iterator over the values that are set.
    pub fn values(&self) -> impl Iterator<Item = Value> + '_ {
        Key::ALL.into_iter().filter_map(|key| self.get(key))
    }
}

/// A location in a file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// The file's path, as given by the user.
    pub file: Cow<'static, str>,
    /// The line, counted from 1.
    pub line: u32,
    /// The column in characters, counted from 1.
    pub column: u32,
}

impl Place {
    /// Creates a location in a file with a constant path.
    pub const fn new(file: &'static str, line: u32, column: u32) -> Place {
        Place { file: Cow::Borrowed(file), line, column }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.file, self.line, self.column)
    }
}

/// The level at which a hint was given. Nearer levels override others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// A service that the function's service extends, this many steps away.
    Extended(u16),
    /// The function's service.
    Service,
    /// The function.
    Function,
}

impl Level {
    /// Returns the precedence of the level. A higher number overrides a lower one.
    pub const fn nearness(self) -> u32 {
        match self {
            Level::Function => 1 << 17,
            Level::Service => 1 << 16,
            Level::Extended(steps) => (1 << 16) - 1 - steps as u32,
        }
    }
}

/// The origin of one side's value of a key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Origin {
    /// The side.
    pub side: Side,
    /// The key.
    pub key: Key,
    /// The level at which the hint was given.
    pub level: Level,
    /// The location of the key.
    pub place: Place,
}

impl Origin {
    /// Creates an origin; used by generated code.
    pub const fn new(side: Side, key: Key, level: Level, place: Place) -> Origin {
        Origin { side, key, level, place }
    }
}

/// The resolved hints of a function, one set per side. Generated code constructs them in a `static`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FunctionHints {
    /// The function's name.
    pub name: Cow<'static, str>,
    /// Whether the function is oneway.
    pub oneway: bool,
    /// The client's hints.
    pub client: Hints,
    /// The server's hints.
    pub server: Hints,
    /// The origins of the values. May be empty; reasons and errors then have no locations.
    pub origins: Cow<'static, [Origin]>,
}

impl FunctionHints {
    /// Creates a function without hints.
    pub const fn new(name: &'static str) -> FunctionHints {
        FunctionHints {
            name: Cow::Borrowed(name),
            oneway: false,
            client: Hints::NONE,
            server: Hints::NONE,
            origins: Cow::Borrowed(&[]),
        }
    }

    /// Marks the function as oneway.
    #[must_use]
    pub const fn oneway(mut self) -> FunctionHints {
        self.oneway = true;
        self
    }

    /// Sets the client's hints.
    #[must_use]
    pub const fn client(mut self, hints: Hints) -> FunctionHints {
        self.client = hints;
        self
    }

    /// Sets the server's hints.
    #[must_use]
    pub const fn server(mut self, hints: Hints) -> FunctionHints {
        self.server = hints;
        self
    }

    /// Sets the hints of both sides.
    #[must_use]
    pub const fn both(self, hints: Hints) -> FunctionHints {
        self.client(hints).server(hints)
    }

    /// Returns the hints of a side.
    pub const fn side(&self, side: Side) -> &Hints {
        match side {
            Side::Client => &self.client,
            Side::Server => &self.server,
        }
    }

    /// Returns the origin of a side's value of a key, if it is known.
    pub fn origin(&self, side: Side, key: Key) -> Option<&Origin> {
        self.origins.iter().find(|origin| origin.side == side && origin.key == key)
    }

    /// Returns the location of a side's value of a key, if it is known.
    pub fn place(&self, side: Side, key: Key) -> Option<&Place> {
        self.origin(side, key).map(|origin| &origin.place)
    }
}
