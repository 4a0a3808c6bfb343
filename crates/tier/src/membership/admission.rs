//! Changes of a view: a node joins. For whoever makes views: the [directory](super::directory), or the nodes themselves by
//! the transactions of a [shared store](super::shared).

use super::message::MemberRefusal;
use super::{Epoch, Identity, Member, MemberState, View};
use crate::place::NodeId;

impl View {
    /// Takes a node into a view that becomes that of `epoch`. `number` is the number that this life of the node has had.
    /// Returns its number.
    ///
    /// # Errors
    /// The refusal for the node. The view is unchanged.
    pub(super) fn admit(
        &mut self,
        identity: Identity,
        number: Option<NodeId>,
        epoch: Epoch,
        max_nodes: u16,
    ) -> Result<NodeId, MemberRefusal> {
        if identity.name.is_empty() {
            return Err(MemberRefusal::NoName);
        }
        let alive = |one: &&Member| one.state == MemberState::Alive && one.identity.name != identity.name;
        let addresses = [&identity.calls, &identity.memory];
        for other in self.members.iter().filter(alive) {
            let taken = [&other.identity.calls, &other.identity.memory];
            if let Some(address) = addresses.into_iter().find(|address| taken.contains(address)) {
                let (name, address) = (other.identity.name.clone(), address.clone());
                return Err(MemberRefusal::Address { name, address });
            }
        }
        if let Some(member) = self.members.iter_mut().find(|one| one.identity.name == identity.name) {
            let other = &member.identity;
            // An address has one owner: a life with the same ones has replaced the last one.
            let replaces = (&other.calls, &other.memory) == (&identity.calls, &identity.memory);
            if member.state == MemberState::Alive && other.life != identity.life && !replaces {
                let (name, address) = (identity.name, other.calls.clone());
                return Err(MemberRefusal::Taken { name, address });
            }
            // A node cannot change its number.
            if let Some(number) = number.filter(|number| *number != member.node) {
                return Err(MemberRefusal::Number(number));
            }
            (member.identity, member.incarnation, member.state) = (identity, epoch, MemberState::Alive);
            return Ok(member.node);
        }
        let node = self.number_for(number, max_nodes)?;
        let place = self.members.partition_point(|member| member.node < node);
        self.members.insert(place, Member { node, identity, incarnation: epoch, state: MemberState::Alive });
        Ok(node)
    }

    /// Returns a number for a name without one: the number that the node had in views that are lost, or the next number.
    fn number_for(&self, wanted: Option<NodeId>, max_nodes: u16) -> Result<NodeId, MemberRefusal> {
        let is_free = |node: &NodeId| node.0 < max_nodes && self.member(*node).is_none();
        if let Some(wanted) = wanted {
            return Some(wanted).filter(is_free).ok_or(MemberRefusal::Number(wanted));
        }
        let next = NodeId(self.members.last().map_or(0, |last| last.node.0.saturating_add(1)));
        let mut free = std::iter::once(next).chain((0..max_nodes).map(NodeId));
        free.find(is_free).ok_or(MemberRefusal::Full(max_nodes))
    }
}
