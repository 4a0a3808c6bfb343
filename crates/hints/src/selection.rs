//! The inputs of a selection besides the hints, and its result.

use crate::hints::Place;
use crate::key::{Key, Side};
use crate::value::Transport;
use dunlin_fabric::Capabilities;
use dunlin_rpc::{Plan, ServerConnections};
use std::fmt;

/// The largest small payload in bytes (HatRPC section 4.3).
pub const SMALL: u64 = 4096;

/// The number of queue pairs that a server keeps active by default: `max_active_queue_pairs` of
/// [`ServerConfig`](dunlin_rpc::ServerConfig), which is `MAX_AQP` of FLOCK section 5.1.
pub const ACTIVE_QUEUE_PAIRS: u32 = 256;

/// The inputs of a selection besides the hints.
#[derive(Clone, Copy, Debug)]
pub struct Environment<'a> {
    /// The fabric's capabilities.
    pub capabilities: &'a Capabilities,
    /// The number of cores of the NUMA node to which the server's NIC is attached.
    pub node_cores: u32,
    /// The number of cores of the server's machine.
    pub cores: u32,
    /// The number of NUMA nodes of the machine.
    pub nodes: u32,
    /// The number of clients that call concurrently. Overrides the hint `concurrency`.
    pub clients: Option<u32>,
    /// The number of the server's workers, if it is known. Workers wait adaptively if they and the clients on
    /// the same host outnumber the cores ([`Occupancy`](dunlin_rpc::Occupancy)).
    pub workers: Option<u32>,
    /// The largest small payload, in bytes.
    pub small: u64,
    /// The queue pairs of each client: one to each worker that it uses.
    pub queue_pairs_each: u32,
    /// The connections of the server, as far as they are known: a server says them in the handshake. Without its number
    /// of active queue pairs, [`ACTIVE_QUEUE_PAIRS`] holds. Without the hint `sharing`, threads share connections if
    /// the clients have more queue pairs, and connections take turns if the open ones have.
    pub connections: ServerConnections,
    /// Whether the client's address is `node:`, if it is known: the client connects to the node of its host, as the hint
    /// `sharing = tier` asks for.
    pub through_node: Option<bool>,
}

impl<'a> Environment<'a> {
    /// Creates the environment of a machine with these cores in one NUMA node, with clients as hinted
    /// that have one queue pair each, and [`SMALL`].
    pub const fn new(capabilities: &'a Capabilities, cores: u32) -> Self {
        Environment {
            capabilities,
            node_cores: cores,
            cores,
            nodes: 1,
            clients: None,
            workers: None,
            small: SMALL,
            queue_pairs_each: 1,
            connections: ServerConnections { open: None, active_queue_pairs: None },
            through_node: None,
        }
    }
}

/// The ratio of clients to the server's cores (HatRPC section 3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Subscription {
    /// At most as many clients as cores of the NIC's NUMA node.
    Under,
    /// More than that, and at most as many clients as cores of the machine.
    Full,
    /// More clients than cores of the machine.
    Over,
}

impl Subscription {
    /// Returns the subscription of a machine with this number of clients.
    pub const fn of(clients: u32, environment: &Environment<'_>) -> Subscription {
        if clients <= environment.node_cores {
            Subscription::Under
        } else if clients <= environment.cores {
            Subscription::Full
        } else {
            Subscription::Over
        }
    }
}

impl fmt::Display for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Subscription::Under => "under-subscribed",
            Subscription::Full => "fully subscribed",
            Subscription::Over => "over-subscribed",
        })
    }
}

/// The part of a selection that a reason explains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Subject {
    /// The transport.
    Transport,
    /// The protocol, or its request half.
    Request,
    /// The response half.
    Response,
    /// The completion mode of a side.
    Polling(Side),
    /// The NUMA binding of a side's threads.
    Numa(Side),
    /// How the client's threads share connections.
    Sharing,
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Subject::Transport => f.write_str("transport"),
            Subject::Request => f.write_str("request"),
            Subject::Response => f.write_str("response"),
            Subject::Polling(side) => write!(f, "{side} polling"),
            Subject::Numa(side) => write!(f, "{side} numa"),
            Subject::Sharing => f.write_str("sharing"),
        }
    }
}

/// A hint that influenced a selection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Because {
    /// The side of the hint.
    pub side: Side,
    /// The key.
    pub key: Key,
    /// The location of the hint, if it is known.
    pub place: Option<Place>,
}

/// The reason for a part of a selection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason {
    /// The part.
    pub subject: Subject,
    /// The reason as text.
    pub text: String,
    /// The hints that influenced it, the deciding one first; may be empty.
    pub hints: Vec<Because>,
}

impl Reason {
    /// Returns the location of the deciding hint, if it is known.
    pub fn place(&self) -> Option<&Place> {
        self.hints.first().and_then(|because| because.place.as_ref())
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.subject, self.text)?;
        let mut places = self.hints.iter().filter_map(|because| because.place.as_ref());
        let Some(first) = places.next() else { return Ok(()) };
        write!(f, " ({first}")?;
        for place in places {
            if place.file == first.file {
                write!(f, ", {}:{}", place.line, place.column)?;
            } else {
                write!(f, ", {place}")?;
            }
        }
        f.write_str(")")
    }
}

/// The NUMA binding of a side's threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NumaBinding {
    /// The node of the NIC.
    NicNode,
    /// This node.
    Node(u16),
}

/// The selection for a function, with its reasons.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection {
    /// The transport.
    pub transport: Transport,
    /// The plan, which the fabric can run; `None` for TCP.
    pub plan: Option<Plan>,
    /// The protocol with the plan's halves; `None` if the halves come from two protocols.
    pub protocol: Option<&'static str>,
    /// The NUMA binding of the client's threads.
    pub client_binding: Option<NumaBinding>,
    /// The NUMA binding of the server's threads.
    pub server_binding: Option<NumaBinding>,
    /// The ratio of clients to cores.
    pub subscription: Subscription,
    /// The reasons, in the order of their subjects. Later reasons override earlier ones.
    pub reasons: Vec<Reason>,
}

impl Selection {
    /// Returns the reasons for a part.
    pub fn reasons_for(&self, subject: Subject) -> impl Iterator<Item = &Reason> {
        self.reasons.iter().filter(move |reason| reason.subject == subject)
    }
}
