//! Requests of the user who runs the node.

use super::registry::{Process, Registry};
use crate::error::RequestError;
use dunlin_fabric::Fabric;
use dunlin_tier::message::{Reply, Request};
use dunlin_tier::process::operator::{MAX_HELD_NAMES, MAX_LENT, OperatorRequest};
use dunlin_tier::process::{Holdings, Lent, LentRegion, Problem};
use dunlin_tier::{LmrId, Name};
use std::sync::atomic::Ordering;

impl<F: Fabric, P: Fabric> Registry<F, P> {
    /// Answers a request that only an operator may make.
    pub(super) fn operate_node(
        &self,
        process: &Process<F, P>,
        request: OperatorRequest,
    ) -> Result<Vec<u8>, Problem> {
        if process.peer.user.is_none_or(|user| !self.config.operators.contains(&user)) {
            return Err(Problem::NotOperator);
        }
        match request {
            OperatorRequest::Leave { force } => Ok(self.leave(force).encode()),
            OperatorRequest::FreeNamed { name } => self.free_named(&name),
            OperatorRequest::Lent { after } => Ok(self.lent(after).encode()),
            OperatorRequest::Held => Ok(self.held().encode()),
            OperatorRequest::MoveAway { id, to } => self.move_away(id, &to),
        }
    }

    fn leave(&self, force: bool) -> Holdings {
        let mut held = self.held();
        held.leaves = force || (held.named == 0 && held.bytes == 0);
        if held.leaves {
            self.leaves.store(true, Ordering::Relaxed);
        }
        held
    }

    fn held(&self) -> Holdings {
        let (names, named) = self.tier.named_regions(MAX_HELD_NAMES);
        Holdings { leaves: false, names, named, bytes: self.tier.lent_memory() }
    }

    /// Frees a region that was made at this node, in the name of the node.
    fn free_named(&self, name: &Name) -> Result<Vec<u8>, Problem> {
        let node = self.tier.node();
        let request = |_| Request::Lookup { name: name.clone() };
        let id = match node.ask_home(name, request, node.until())? {
            (_, Reply::Found(id)) => id,
            (home, _) => return Err(node.misfit(home).into()),
        };
        if id.node != node.me {
            return Err(Problem::MadeAt(node.name_of(id.node)));
        }
        let refused =
            |source| Problem::from(RequestError::Refused { node: self.tier.name().to_owned(), source });
        node.clear_holders(id, None).map_err(refused)?;
        node.free(id, None).map_err(refused)?;
        Ok(Vec::new())
    }

    fn lent(&self, after: Option<LmrId>) -> Lent {
        let node = self.tier.node();
        let found = node.state().space.lent_regions(node.me, after, MAX_LENT);
        let more = found.len() == MAX_LENT;
        let region = |(id, bytes): (LmrId, u64)| LentRegion { id, bytes, node: node.name_of(id.node) };
        Lent { regions: found.into_iter().map(region).collect(), more }
    }

    /// Has the node that keeps a region's record move the region away from this node's memory.
    fn move_away(&self, id: LmrId, to: &str) -> Result<Vec<u8>, Problem> {
        let node = self.tier.node();
        let number = node.roster.number_of(to).ok_or_else(|| Problem::NoNode(to.to_owned()))?;
        let request = Request::MoveAway { id, from: node.me, to: number };
        node.demand(id.node, request, node.until())?;
        Ok(Vec::new())
    }
}
