//! The hints of a side, and those of a function with the places where they came from.

use crate::key::{Key, Side};
use crate::value::{Numa, PerfGoal, Priority, ProcessTime, Transport, Value};
use dunlin_rpc::CompletionMode;
use std::borrow::Cow;
use std::fmt;

/// What is hinted to one side; `None` where nothing is. Constant-constructible.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Hints {
    /// What is to be optimized.
    pub perf_goal: Option<PerfGoal>,
    /// Clients that call at the same time.
    pub concurrency: Option<u32>,
    /// Bytes of the payload that this side sends: a client's requests, a server's responses.
    pub payload_size: Option<u64>,
    /// How this side waits.
    pub polling: Option<CompletionMode>,
    /// Whether this side's threads are bound to a NUMA node.
    pub numa: Option<Numa>,
    /// What carries the calls.
    pub transport: Option<Transport>,
    /// Whether the function gives way to others.
    pub priority: Option<Priority>,
    /// How long the server works on a call.
    pub process_time: Option<ProcessTime>,
    /// The name of a row of [`PROTOCOLS`](dunlin_rpc::PROTOCOLS).
    pub protocol: Option<&'static str>,
}

/// A builder's step for each key.
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
    };

    steps! {
        /// The same with this goal.
        perf_goal: PerfGoal,
        /// The same with this many clients.
        concurrency: u32,
        /// The same with payloads of this many bytes.
        payload_size: u64,
        /// The same with this way to wait.
        polling: CompletionMode,
        /// The same with this binding.
        numa: Numa,
        /// The same with this transport.
        transport: Transport,
        /// The same with this priority.
        priority: Priority,
        /// The same with this time of work on the server.
        process_time: ProcessTime,
        /// The same with this protocol.
        protocol: &'static str,
    }

    /// The value of a key.
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
        }
    }

    /// Sets the value of its key.
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
        }
    }

    /// All values that are set.
    pub fn values(&self) -> impl Iterator<Item = Value> + '_ {
        Key::ALL.into_iter().filter_map(|key| self.get(key))
    }
}

/// A place in a file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// The file's path, as the user gave it.
    pub file: Cow<'static, str>,
    /// The line, from 1.
    pub line: u32,
    /// The column in characters, from 1.
    pub column: u32,
}

impl Place {
    /// A place in a file whose path is constant.
    pub const fn new(file: &'static str, line: u32, column: u32) -> Place {
        Place { file: Cow::Borrowed(file), line, column }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.file, self.line, self.column)
    }
}

/// How near to the function a hint was said; the nearer wins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// On a service that the function's service extends, this many steps away.
    Extended(u16),
    /// On the service.
    Service,
    /// On the function.
    Function,
}

impl Level {
    /// How near it is: higher is nearer.
    pub const fn nearness(self) -> u32 {
        match self {
            Level::Function => 1 << 17,
            Level::Service => 1 << 16,
            Level::Extended(steps) => (1 << 16) - 1 - steps as u32,
        }
    }
}

/// Where one side's value of a key came from.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Origin {
    /// Whose hint it became.
    pub side: Side,
    /// The key.
    pub key: Key,
    /// How near to the function it was said.
    pub level: Level,
    /// Where the key stands.
    pub place: Place,
}

impl Origin {
    /// An origin, for generated code.
    pub const fn new(side: Side, key: Key, level: Level, place: Place) -> Origin {
        Origin { side, key, level, place }
    }
}

/// The hints of a function, resolved: one set for each side. Constant-constructible, so that generated code holds
/// them in a `static`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FunctionHints {
    /// The function's name.
    pub name: Cow<'static, str>,
    /// Whether the caller expects no answer.
    pub oneway: bool,
    /// What is hinted to the client.
    pub client: Hints,
    /// What is hinted to the server.
    pub server: Hints,
    /// Where the values came from; may be empty, then reasons and errors name no places.
    pub origins: Cow<'static, [Origin]>,
}

impl FunctionHints {
    /// A function without hints.
    pub const fn new(name: &'static str) -> FunctionHints {
        FunctionHints {
            name: Cow::Borrowed(name),
            oneway: false,
            client: Hints::NONE,
            server: Hints::NONE,
            origins: Cow::Borrowed(&[]),
        }
    }

    /// The same, as a function whose caller expects no answer.
    #[must_use]
    pub const fn oneway(mut self) -> FunctionHints {
        self.oneway = true;
        self
    }

    /// The same with these hints to the client.
    #[must_use]
    pub const fn client(mut self, hints: Hints) -> FunctionHints {
        self.client = hints;
        self
    }

    /// The same with these hints to the server.
    #[must_use]
    pub const fn server(mut self, hints: Hints) -> FunctionHints {
        self.server = hints;
        self
    }

    /// The same with these hints to both sides.
    #[must_use]
    pub const fn both(self, hints: Hints) -> FunctionHints {
        self.client(hints).server(hints)
    }

    /// The hints of a side.
    pub const fn side(&self, side: Side) -> &Hints {
        match side {
            Side::Client => &self.client,
            Side::Server => &self.server,
        }
    }

    /// Where a side's value of a key came from, if that is known.
    pub fn origin(&self, side: Side, key: Key) -> Option<&Origin> {
        self.origins.iter().find(|origin| origin.side == side && origin.key == key)
    }

    /// Where a side's value of a key stands, if that is known.
    pub fn place(&self, side: Side, key: Key) -> Option<&Place> {
        self.origin(side, key).map(|origin| &origin.place)
    }
}
