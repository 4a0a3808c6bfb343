//! The view of a node, as its threads read it.

use crate::config::Peer;
use crate::membership::{MembershipError, Own};
use dunlin_tier::membership::View;
use dunlin_tier::{Epoch, Member, MemberState, Name, NodeId};
use std::sync::{Arc, PoisonError, RwLock};

/// A view whose addresses are parsed.
#[derive(Debug)]
pub(crate) struct Current {
    pub(crate) view: Arc<View>,
    /// By the number of the node.
    peers: Vec<Option<Arc<Peer>>>,
    /// `None` after this node was declared dead, until it is a member again.
    pub(crate) own: Option<Own>,
}

impl Current {
    pub(crate) fn new(view: Arc<View>, own: Option<Own>, max_nodes: u16) -> Result<Current, MembershipError> {
        let mut peers = Vec::new();
        for Member { node, identity, .. } in &view.members {
            if node.0 >= max_nodes {
                return Err(MembershipError::Room { number: *node, max_nodes });
            }
            let wrong = |source| MembershipError::Address { name: identity.name.clone(), source };
            let calls = identity.calls.parse().map_err(wrong)?;
            let memory = identity.memory.parse().map_err(wrong)?;
            peers.resize(usize::from(node.0), None);
            peers.push(Some(Arc::new(Peer { name: identity.name.clone(), calls, memory })));
        }
        Ok(Current { view, peers, own })
    }

    pub(crate) fn peer(&self, node: NodeId) -> Option<&Arc<Peer>> {
        self.peers.get(usize::from(node.0))?.as_ref()
    }

    /// Returns the incarnation of a node that is alive.
    pub(crate) fn incarnation(&self, node: NodeId) -> Option<Epoch> {
        let alive = |member: &&Member| member.state == MemberState::Alive;
        self.view.member(node).filter(alive).map(|member| member.incarnation)
    }

    /// Returns whether a path of a node may connect, or stay connected: its life was not declared dead. A life that joined
    /// with a later view than this one is not known yet.
    pub(crate) fn admits(&self, node: NodeId, incarnation: Epoch) -> bool {
        incarnation > self.view.epoch || self.incarnation(node) == Some(incarnation)
    }
}

/// The present view.
#[derive(Debug)]
pub(crate) struct Roster {
    current: RwLock<Arc<Current>>,
    /// The most nodes.
    pub(crate) max_nodes: u16,
    /// Views change.
    pub(crate) is_dynamic: bool,
}

impl Roster {
    pub(crate) fn new(current: Current, max_nodes: u16, is_dynamic: bool) -> Roster {
        Roster { current: RwLock::new(Arc::new(current)), max_nodes, is_dynamic }
    }

    /// Returns the present view.
    pub(crate) fn get(&self) -> Arc<Current> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Replaces the view; returns the last one. Nobody waits with the lock held.
    pub(crate) fn replace(&self, next: Arc<Current>) -> Arc<Current> {
        std::mem::replace(&mut *self.current.write().unwrap_or_else(PoisonError::into_inner), next)
    }

    /// Returns the number of the view in which a node is dead or has left; `None` if it is alive, or not known yet.
    pub(crate) fn dead_in(&self, node: NodeId) -> Option<u64> {
        if !self.is_dynamic {
            return None;
        }
        let current = self.get();
        let ended = |member: &Member| member.state != MemberState::Alive;
        current.view.member(node).is_some_and(ended).then_some(current.view.epoch.number)
    }

    /// Returns the number of the node of a name.
    pub(crate) fn number_of(&self, name: &str) -> Option<NodeId> {
        self.get().view.named(name).map(|member| member.node)
    }

    /// Returns the nodes that are alive, except one.
    pub(crate) fn others(&self, me: NodeId) -> Vec<NodeId> {
        self.get().view.alive().map(|member| member.node).filter(|node| *node != me).collect()
    }

    pub(crate) fn home(&self, name: &Name) -> Option<NodeId> {
        self.get().view.home(name)
    }

    pub(crate) fn lock_home(&self, name: &Name) -> Option<NodeId> {
        self.get().view.lock_home(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dunlin_tier::membership::Identity;

    fn view(members: &[(u16, u64, MemberState)]) -> Arc<View> {
        let epoch = |number| Epoch { number, directory: 1 };
        let member = |(node, joined, state): &(u16, u64, MemberState)| Member {
            node: NodeId(*node),
            identity: Identity {
                name: format!("n{node}"),
                calls: format!("shm:c{node}"),
                memory: format!("shm:m{node}"),
                life: 1,
            },
            incarnation: epoch(*joined),
            state: *state,
        };
        Arc::new(View { epoch: epoch(9), members: members.iter().map(member).collect() })
    }

    #[test]
    fn a_dead_life_is_not_admitted_and_one_of_a_later_view_is() {
        let view = view(&[(0, 1, MemberState::Alive), (3, 4, MemberState::Dead)]);
        let roster = Roster::new(Current::new(view, None, 8).unwrap(), 8, true);
        let epoch = |number| Epoch { number, directory: 1 };
        let admits = |node, joined| roster.get().admits(NodeId(node), epoch(joined));
        assert!(admits(0, 1) && !admits(0, 2) && !admits(3, 4) && admits(3, 10) && !admits(5, 9));
        let dead = [0, 3, 5].map(|node| roster.dead_in(NodeId(node)));
        assert_eq!(dead, [None, Some(9), None], "a node of a later view is not known yet");
        assert_eq!((roster.number_of("n3"), roster.others(NodeId(7))), (Some(NodeId(3)), vec![NodeId(0)]));
        assert!(roster.get().peer(NodeId(1)).is_none());
        assert_eq!(roster.get().peer(NodeId(3)).unwrap().calls.to_string(), "shm:c3");
    }

    #[test]
    fn a_view_that_does_not_fit_is_refused() {
        let big = view(&[(8, 1, MemberState::Alive)]);
        assert!(matches!(Current::new(big, None, 8), Err(MembershipError::Room { .. })));
        let mut bad = View::clone(&view(&[(0, 1, MemberState::Alive)]));
        bad.members[0].identity.calls = "nowhere".into();
        assert!(matches!(Current::new(Arc::new(bad), None, 8), Err(MembershipError::Address { .. })));
    }
}
