//! The membership of the nodes: views, and the node's side of the protocol by which nodes learn of each other (LITE, SOSP
//! 2017, section 3.3). The directory's side is in [`directory`], the messages are in [`message`].
//!
//! ```text
//! node                                          directory
//!   Join { name, addresses, life, seen } ────────> a new view with this node, in the name of its epoch
//!   Beat { node, incarnation, epoch } ───────────> renews the lease; the next view, if there is one
//!        <────────────────────── ReportView    a directory that has restarted asks for the node's view
//!        <──────────────────────────── Gone    this life was declared dead: join again
//!   Leave { node, incarnation } ─────────────────> the next view is without it
//! ```
//!
//! An epoch is a counter and the number of the directory's life that made it, in this order. So two lives of a directory
//! never make one epoch, although neither remembers the other, and no two nodes disagree on the members of an epoch.
//! There is no consensus: the directory is one process, and all that it knows can be had again from the nodes.

mod admission;
pub mod directory;
#[cfg(test)]
mod explore;
#[cfg(test)]
mod explore_shared;
pub mod message;
pub mod shared;

use crate::name::{Name, home};
use crate::place::NodeId;
use message::{MemberRefusal, MemberReply, MemberRequest};
use std::fmt;
use std::sync::Arc;

/// The most nodes of a view.
pub const MAX_MEMBERS: usize = 1024;

/// The number of a view. Later views have greater ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch {
    /// Counts views.
    pub number: u64,
    /// A random number of the directory's life that made the view. Tells apart views that two lives have counted alike.
    pub directory: u64,
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.number)
    }
}

/// The state of a node in a view.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MemberState {
    /// The node renews its lease.
    Alive,
    /// The node did not renew its lease in time. It may live, and joins again then.
    Dead,
    /// The node has left.
    Left,
}

impl fmt::Display for MemberState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            MemberState::Alive => "alive",
            MemberState::Dead => "dead",
            MemberState::Left => "left",
        })
    }
}

/// The name and the addresses that a node gives itself, and a random number of its life.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    /// The name: 1 to 255 bytes.
    pub name: String,
    /// The address of its service, as text of at most 255 bytes.
    pub calls: String,
    /// The address at which it accepts paths.
    pub memory: String,
    /// A random number of this life of the node.
    pub life: u64,
}

/// A node of a view.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Member {
    /// Its number. A name keeps its number.
    pub node: NodeId,
    /// Its name and addresses.
    pub identity: Identity,
    /// The epoch of the view with which this life joined. A life that was declared dead and joins again gets another.
    pub incarnation: Epoch,
    /// Its state.
    pub state: MemberState,
}

/// The nodes of the cluster at some time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct View {
    /// Its number.
    pub epoch: Epoch,
    /// All nodes that ever joined, by number.
    pub members: Vec<Member>,
}

impl View {
    /// Makes the view of a list of nodes that never changes: all are alive for ever.
    pub fn fixed(nodes: impl IntoIterator<Item = Identity>) -> View {
        let member = |(number, identity)| Member {
            node: NodeId(number),
            identity,
            incarnation: Epoch::default(),
            state: MemberState::Alive,
        };
        View { epoch: Epoch::default(), members: (0..).zip(nodes).map(member).collect() }
    }

    /// Returns a node by its number.
    pub fn member(&self, node: NodeId) -> Option<&Member> {
        let at = self.members.binary_search_by_key(&node, |member| member.node).ok()?;
        self.members.get(at)
    }

    fn member_mut(&mut self, node: NodeId) -> Option<&mut Member> {
        let at = self.members.binary_search_by_key(&node, |member| member.node).ok()?;
        self.members.get_mut(at)
    }

    /// Returns a node by its name.
    pub fn named(&self, name: &str) -> Option<&Member> {
        self.members.iter().find(|member| member.identity.name == name)
    }

    /// Returns the nodes that are alive.
    pub fn alive(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(|member| member.state == MemberState::Alive)
    }

    /// Returns the nodes that are alive and joined with the earliest of their views.
    ///
    /// Locks live at these: a node that joins takes no lock away from an owner that lives.
    pub fn founders(&self) -> impl Iterator<Item = &Member> {
        let first = self.alive().map(|member| member.incarnation).min();
        self.alive().filter(move |member| Some(member.incarnation) == first)
    }

    /// Returns the node that keeps a name: its home among those that are alive.
    pub fn home(&self, name: &Name) -> Option<NodeId> {
        home(name, self.alive().map(|member| member.node))
    }

    /// Returns the node that owns the lock and the barrier of a name: its home among the founders.
    pub fn lock_home(&self, name: &Name) -> Option<NodeId> {
        home(name, self.founders().map(|member| member.node))
    }
}

/// An effect of an answer of the directory on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MembershipEvent {
    /// There is no other view.
    Unchanged,
    /// The next view. This node is alive in it.
    View(Arc<View>),
    /// This life of the node was declared dead, and it joins again with the next request. Until then no other node accepts
    /// its operations.
    DeclaredDead(Arc<View>),
    /// The directory cannot answer yet: ask again.
    Wait,
    /// The directory refuses this node.
    Refused(MemberRefusal),
    /// The answer does not fit the request, or would take the node back: it is ignored.
    Ignored,
}

/// The node's side: a function of the directory's answers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Standing {
    identity: Identity,
    /// The number that this life of the node has, from its first view on.
    number: Option<NodeId>,
    /// The node's number and incarnation; `None` unless it has joined.
    joined: Option<(NodeId, Epoch)>,
    view: Arc<View>,
    /// The directory has asked for the view.
    must_report: bool,
}

impl Standing {
    /// Makes the state of a node that has not joined.
    pub fn new(identity: Identity) -> Standing {
        Standing { identity, number: None, joined: None, view: Arc::default(), must_report: false }
    }

    /// Returns the number and the incarnation of the node, while it is a member.
    pub fn joined(&self) -> Option<(NodeId, Epoch)> {
        self.joined
    }

    /// Returns the last view.
    pub fn view(&self) -> &Arc<View> {
        &self.view
    }

    /// Returns the request to send now. Requests may be sent as often as the sender likes.
    pub fn request(&self) -> MemberRequest {
        match self.joined {
            None => {
                let (identity, number) = (self.identity.clone(), self.number);
                MemberRequest::Join { identity, seen: self.view.epoch, number }
            }
            Some((node, incarnation)) if self.must_report => {
                let (life, view) = (self.identity.life, View::clone(&self.view));
                MemberRequest::Report { node, incarnation, life, view }
            }
            Some((node, incarnation)) => MemberRequest::Beat { node, incarnation, epoch: self.view.epoch },
        }
    }

    /// Returns the request by which the node leaves, if it has joined.
    pub fn leave(&self) -> Option<MemberRequest> {
        self.joined.map(|(node, incarnation)| MemberRequest::Leave { node, incarnation })
    }

    /// Takes the answer to the last request.
    pub fn take(&mut self, reply: MemberReply) -> MembershipEvent {
        match reply {
            MemberReply::Current => {
                self.must_report = false;
                MembershipEvent::Unchanged
            }
            MemberReply::ReportView if self.joined.is_some() => {
                self.must_report = true;
                MembershipEvent::Wait
            }
            MemberReply::Wait => {
                self.must_report = false;
                MembershipEvent::Wait
            }
            MemberReply::Gone if self.joined.is_some() => {
                (self.joined, self.must_report) = (None, false);
                MembershipEvent::DeclaredDead(Arc::clone(&self.view))
            }
            MemberReply::Refused(refusal) => MembershipEvent::Refused(refusal),
            MemberReply::View(view) => self.take_view(view),
            MemberReply::ReportView | MemberReply::Gone => MembershipEvent::Ignored,
        }
    }

    fn take_view(&mut self, view: View) -> MembershipEvent {
        self.must_report = false;
        // An answer of an earlier life of the directory may come late.
        if view.epoch <= self.view.epoch {
            return MembershipEvent::Ignored;
        }
        let own = view.named(&self.identity.name);
        let own =
            own.filter(|own| own.identity.life == self.identity.life && own.state == MemberState::Alive);
        let own = own.map(|own| (own.node, own.incarnation));
        match (self.joined, own) {
            (None, None) => MembershipEvent::Ignored,
            // This life of the node is in the view, but as of a time before it was declared dead.
            (None, Some((_, incarnation))) if incarnation <= self.view.epoch => MembershipEvent::Ignored,
            (Some(before), own) if own != Some(before) => {
                self.joined = None;
                self.view = Arc::new(view);
                MembershipEvent::DeclaredDead(Arc::clone(&self.view))
            }
            (_, own) => {
                self.joined = own;
                self.number = self.number.or(own.map(|(node, _)| node));
                self.view = Arc::new(view);
                MembershipEvent::View(Arc::clone(&self.view))
            }
        }
    }
}
