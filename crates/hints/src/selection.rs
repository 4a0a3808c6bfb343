//! What a selection depends on, and what comes of it.

use crate::hints::Place;
use crate::key::{Key, Side};
use crate::value::Transport;
use dunlin_fabric::Capabilities;
use dunlin_rpc::Plan;
use std::fmt;

/// Payloads of at most this many bytes are small (HatRPC section 4.3).
pub const SMALL: u64 = 4096;

/// What a selection depends on besides the hints.
#[derive(Clone, Copy, Debug)]
pub struct Environment<'a> {
    /// What the fabric can do.
    pub capabilities: &'a Capabilities,
    /// Cores of the NUMA node that the server's NIC is at.
    pub node_cores: u32,
    /// Cores of the server's machine.
    pub cores: u32,
    /// NUMA nodes of the machine.
    pub nodes: u32,
    /// Clients that call at the same time, where that is known better than by the hint `concurrency`.
    pub clients: Option<u32>,
    /// The largest small payload, in bytes.
    pub small: u64,
}

impl<'a> Environment<'a> {
    /// A machine of one NUMA node with these cores; clients as hinted, [`SMALL`] as usual.
    pub const fn new(capabilities: &'a Capabilities, cores: u32) -> Self {
        Environment { capabilities, node_cores: cores, cores, nodes: 1, clients: None, small: SMALL }
    }
}

/// How many clients there are for the server's cores (HatRPC section 3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Subscription {
    /// At most as many as cores of the NIC's NUMA node.
    Under,
    /// More than that, and at most as many as cores of the machine.
    Full,
    /// More than cores of the machine.
    Over,
}

impl Subscription {
    /// Of this many clients on a machine.
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

/// What a reason is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Subject {
    /// What carries the calls.
    Transport,
    /// The protocol, or the half by which requests travel.
    Request,
    /// The half by which responses travel.
    Response,
    /// How a side waits.
    Polling(Side),
    /// Where a side's threads are bound.
    Numa(Side),
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Subject::Transport => f.write_str("transport"),
            Subject::Request => f.write_str("request"),
            Subject::Response => f.write_str("response"),
            Subject::Polling(side) => write!(f, "{side} polling"),
            Subject::Numa(side) => write!(f, "{side} numa"),
        }
    }
}

/// A hint that had a say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Because {
    /// Whose hint.
    pub side: Side,
    /// Its key.
    pub key: Key,
    /// Where it stands, if that is known.
    pub place: Option<Place>,
}

/// Why a part of a selection is as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason {
    /// The part.
    pub subject: Subject,
    /// The reason, in words.
    pub text: String,
    /// The hints that had a say, the deciding one first; empty if none had.
    pub hints: Vec<Because>,
}

impl Reason {
    /// Where the deciding hint stands, if there is one and that is known.
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

/// Where a side's threads are to be bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NumaBinding {
    /// To the node that the NIC is at.
    NicNode,
    /// To this node.
    Node(u16),
}

/// What was chosen for a function, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection {
    /// What carries the calls.
    pub transport: Transport,
    /// The plan, which the fabric can run; `None` if TCP carries the calls.
    pub plan: Option<Plan>,
    /// The protocol whose halves the plan has, or `None` if they are of two protocols.
    pub protocol: Option<&'static str>,
    /// Where the client's threads are to be bound.
    pub client_binding: Option<NumaBinding>,
    /// Where the server's threads are to be bound.
    pub server_binding: Option<NumaBinding>,
    /// How many clients there are for the cores.
    pub subscription: Subscription,
    /// Why, in the order of what it is about, later reasons overruling earlier ones.
    pub reasons: Vec<Reason>,
}

impl Selection {
    /// The reasons about a part.
    pub fn reasons_for(&self, subject: Subject) -> impl Iterator<Item = &Reason> {
        self.reasons.iter().filter(move |reason| reason.subject == subject)
    }
}
