//! A case of the suite: its name, the capabilities that it needs, and the actions of each role.

use crate::context::Context;
use crate::failure::Verdict;
use dunlin_fabric::{Atomics, Capabilities, Fabric, Transport};
use std::fmt;

/// The role of one side of a case. The first role listens for the control connection, the second dials.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The side that listens.
    First,
    /// The side that dials; in two processes, the child.
    Second,
}

impl Role {
    /// Returns the other role.
    pub fn other(self) -> Role {
        if self == Role::First { Role::Second } else { Role::First }
    }

    /// Returns the role as text, for command lines.
    pub fn as_str(self) -> &'static str {
        if self == Role::First { "first" } else { "second" }
    }
}

/// A capability without which a case does not apply to a fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// A transport.
    Transport(Transport),
    /// FETCH_ADD and CMP_SWAP.
    Atomics,
    /// Atomics that are atomic with those of the target's processors.
    ProcessorAtomics,
    /// Immediate data.
    Immediate,
    /// Inline data of 64 bytes.
    Inline,
    /// Completions that report the outcome at the target.
    Acknowledged,
    /// Placement of WRITEs in address order.
    InOrderWrite,
    /// READs that return whole lines.
    WholeLineReads,
    /// Shared receive queues.
    SharedReceiveQueue,
    /// Completion queues that a thread can sleep on.
    Events,
    /// Sleeps that a peer's plain WRITE ends.
    WriteWakes,
    /// Events of a domain that wake the thread of another domain.
    WakesOthers,
    /// Registration of memory that another fabric made.
    Adopts,
    /// This number of queue pairs in one domain.
    QueuePairs(u32),
    /// A limit for messages that is low enough (1 GiB) for a test to exceed it.
    BoundedMessage,
}

impl Need {
    /// Returns whether a fabric has the capability.
    pub fn met(self, capabilities: &Capabilities) -> bool {
        match self {
            Need::Transport(transport) => capabilities.transports.contains(transport),
            Need::Atomics => capabilities.atomics.exist(),
            Need::ProcessorAtomics => capabilities.atomics == Atomics::Processors,
            Need::Immediate => capabilities.immediate,
            Need::Inline => capabilities.max_inline >= 64,
            Need::Acknowledged => capabilities.acknowledged,
            Need::InOrderWrite => capabilities.in_order_write,
            Need::WholeLineReads => capabilities.cache_line_atomic_reads,
            Need::SharedReceiveQueue => capabilities.shared_receive_queue,
            Need::Events => capabilities.events,
            Need::WriteWakes => capabilities.write_wakes,
            Need::WakesOthers => capabilities.wakes_others,
            Need::Adopts => capabilities.adopts,
            Need::QueuePairs(count) => capabilities.max_queue_pairs >= count,
            Need::BoundedMessage => capabilities.max_message <= 1 << 30,
        }
    }
}

impl fmt::Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Need::Transport(Transport::ReliableConnection) => f.write_str("transports: RC"),
            Need::Transport(Transport::UnreliableConnection) => f.write_str("transports: UC"),
            Need::Transport(Transport::UnreliableDatagram) => f.write_str("transports: UD"),
            Need::Atomics => f.write_str("atomics"),
            Need::ProcessorAtomics => f.write_str("atomics of processors"),
            Need::Immediate => f.write_str("immediate"),
            Need::Inline => f.write_str("max_inline of at least 64"),
            Need::Acknowledged => f.write_str("acknowledged"),
            Need::InOrderWrite => f.write_str("in_order_write"),
            Need::WholeLineReads => f.write_str("cache_line_atomic_reads"),
            Need::SharedReceiveQueue => f.write_str("shared_receive_queue"),
            Need::Events => f.write_str("events"),
            Need::WriteWakes => f.write_str("write_wakes"),
            Need::WakesOthers => f.write_str("wakes_others"),
            Need::Adopts => f.write_str("adopts"),
            Need::QueuePairs(count) => write!(f, "max_queue_pairs of at least {count}"),
            Need::BoundedMessage => f.write_str("max_message of at most 1 GiB"),
        }
    }
}

/// The actions of a role.
pub type Body<F> = fn(&mut Context<F>, Role) -> Verdict;

/// One case.
#[derive(Debug)]
pub struct Case<F: Fabric> {
    /// Its name, unique in the suite.
    pub name: &'static str,
    /// The capabilities that it needs.
    pub needs: &'static [Need],
    /// The number of roles. 1: the first role alone, without a link; 2: both roles, over a link.
    pub roles: u8,
    /// Whether the second role dies: by SIGKILL if it has its own process.
    pub second_dies: bool,
    /// The actions of the roles.
    pub body: Body<F>,
}

impl<F: Fabric> Clone for Case<F> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<F: Fabric> Copy for Case<F> {}

impl<F: Fabric> Case<F> {
    /// Makes a case with two roles.
    pub const fn pair(name: &'static str, needs: &'static [Need], body: Body<F>) -> Self {
        Case { name, needs, roles: 2, second_dies: false, body }
    }

    /// Makes a case with one role.
    pub const fn single(name: &'static str, needs: &'static [Need], body: Body<F>) -> Self {
        Case { name, needs, roles: 1, second_dies: false, body }
    }

    /// Makes a case whose second role dies.
    pub const fn deadly(name: &'static str, needs: &'static [Need], body: Body<F>) -> Self {
        Case { name, needs, roles: 2, second_dies: true, body }
    }

    /// Returns the capability that the fabric lacks for this case, if any.
    pub fn lacks(&self, capabilities: &Capabilities) -> Option<Need> {
        self.needs.iter().copied().find(|need| !need.met(capabilities))
    }
}
