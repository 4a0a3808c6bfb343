//! A case of the suite: its name, what the fabric needs to have for it, and what each role does.

use crate::context::Context;
use crate::failure::Verdict;
use dunlin_fabric::{Capabilities, Fabric, Transport};
use std::fmt;

/// Who does what: the first role listens for the control connection, the second dials.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Listens.
    First,
    /// Dials; in two processes, the child.
    Second,
}

impl Role {
    /// The other one.
    pub fn other(self) -> Role {
        if self == Role::First { Role::Second } else { Role::First }
    }

    /// As text, for command lines.
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
    /// Immediate data.
    Immediate,
    /// Inline data of 64 bytes.
    Inline,
    /// Completions that tell what became of a request at its target.
    Acknowledged,
    /// Placement in address order.
    InOrderWrite,
    /// READs that show lines whole.
    WholeLineReads,
    /// Shared receive queues.
    SharedReceiveQueue,
    /// Completion queues to sleep on.
    Events,
    /// So many queue pairs in a domain.
    QueuePairs(u32),
    /// A longest message short enough to be exceeded in a test (1 GiB).
    BoundedMessage,
}

impl Need {
    /// Whether a fabric has it.
    pub fn met(self, capabilities: &Capabilities) -> bool {
        match self {
            Need::Transport(transport) => capabilities.transports.contains(transport),
            Need::Atomics => capabilities.atomics,
            Need::Immediate => capabilities.immediate,
            Need::Inline => capabilities.max_inline >= 64,
            Need::Acknowledged => capabilities.acknowledged,
            Need::InOrderWrite => capabilities.in_order_write,
            Need::WholeLineReads => capabilities.whole_line_reads,
            Need::SharedReceiveQueue => capabilities.shared_receive_queue,
            Need::Events => capabilities.events,
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
            Need::Immediate => f.write_str("immediate"),
            Need::Inline => f.write_str("max_inline of at least 64"),
            Need::Acknowledged => f.write_str("acknowledged"),
            Need::InOrderWrite => f.write_str("in_order_write"),
            Need::WholeLineReads => f.write_str("whole_line_reads"),
            Need::SharedReceiveQueue => f.write_str("shared_receive_queue"),
            Need::Events => f.write_str("events"),
            Need::QueuePairs(count) => write!(f, "max_queue_pairs of at least {count}"),
            Need::BoundedMessage => f.write_str("max_message of at most 1 GiB"),
        }
    }
}

/// What a role does.
pub type Body<F> = fn(&mut Context<F>, Role) -> Verdict;

/// One case.
#[derive(Debug)]
pub struct Case<F: Fabric> {
    /// Its name, unique in the suite.
    pub name: &'static str,
    /// What the fabric needs to have.
    pub needs: &'static [Need],
    /// 1: the first role alone, without a link; 2: both, over a link.
    pub roles: u8,
    /// The second role dies in it: by SIGKILL where it has a process of its own.
    pub second_dies: bool,
    /// What the roles do.
    pub body: Body<F>,
}

impl<F: Fabric> Clone for Case<F> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<F: Fabric> Copy for Case<F> {}

impl<F: Fabric> Case<F> {
    /// A case with two roles.
    pub const fn pair(name: &'static str, needs: &'static [Need], body: Body<F>) -> Self {
        Case { name, needs, roles: 2, second_dies: false, body }
    }

    /// A case with one role.
    pub const fn single(name: &'static str, needs: &'static [Need], body: Body<F>) -> Self {
        Case { name, needs, roles: 1, second_dies: false, body }
    }

    /// A case whose second role dies.
    pub const fn deadly(name: &'static str, needs: &'static [Need], body: Body<F>) -> Self {
        Case { name, needs, roles: 2, second_dies: true, body }
    }

    /// What the fabric lacks for this case, if anything.
    pub fn lacks(&self, capabilities: &Capabilities) -> Option<Need> {
        self.needs.iter().copied().find(|need| !need.met(capabilities))
    }
}
