//! Requests of the user who runs the node.

use super::registry::{Process, Registry};
use crate::error::RequestError;
use dunlin_fabric::Fabric;
use dunlin_tier::message::{Refusal, Reply, Request};
use dunlin_tier::process::operator::{HandedOver, MAX_HELD_NAMES, MAX_LENT, OperatorRequest};
use dunlin_tier::process::{Holdings, Lent, LentRegion, Problem};
use dunlin_tier::{LmrId, Name};
use std::sync::atomic::Ordering;

/// The records that one request hands over. Each takes two messages at least.
const HANDED_AT_ONCE: usize = 64;

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
            OperatorRequest::HandOver { to } => Ok(self.hand_over(&to)?.encode()),
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
        let (id, keepers) = match node.ask_home(name, request, node.until())? {
            (_, Reply::Found(id, keepers)) => (id, keepers),
            (home, _) => return Err(node.misfit(home).into()),
        };
        if node.state().directory.keepers(id).is_none() {
            return Err(Problem::MadeAt(node.name_of(keepers.first())));
        }
        let refused =
            |source| Problem::from(RequestError::Refused { node: self.tier.name().to_owned(), source });
        node.check_orders(id).map_err(|source| match source {
            Refusal::Elsewhere(first) => Problem::MadeAt(node.name_of(first)),
            source => refused(source),
        })?;
        node.clear_holders(id, None).map_err(refused)?;
        node.free(id, None).map_err(refused)?;
        Ok(Vec::new())
    }

    fn lent(&self, after: Option<LmrId>) -> Lent {
        let node = self.tier.node();
        let found = {
            let state = node.state();
            let is_lent = |owner| !state.directory.ends_here(owner);
            state.space.lent_regions(is_lent, after, MAX_LENT)
        };
        let more = found.len() == MAX_LENT;
        let region = |(id, bytes): (LmrId, u64)| LentRegion { id, bytes, node: node.name_of(id.node) };
        Lent { regions: found.into_iter().map(region).collect(), more }
    }

    /// Hands some of the records that this node orders to another node. Those that cannot be handed over now stay.
    fn hand_over(&self, to: &str) -> Result<HandedOver, Problem> {
        let node = self.tier.node();
        let number = node.roster.number_of(to).filter(|number| *number != node.me);
        let number = number.ok_or_else(|| Problem::NoNode(to.to_owned()))?;
        let (ids, _) = node.state().directory.ordered(HANDED_AT_ONCE);
        let mut records = 0;
        for id in ids {
            match node.hand_record_over(id, number) {
                Ok(()) => records += 1,
                Err(error) => {
                    tracing::info!(target: "dunlin::tier", %error, "a record stays at this node");
                }
            }
        }
        let left = node.state().directory.ordered(0).1;
        Ok(HandedOver { records, left })
    }

    /// Has the node that keeps a region's record move the region away from this node's memory.
    fn move_away(&self, id: LmrId, to: &str) -> Result<Vec<u8>, Problem> {
        let node = self.tier.node();
        let number = node.roster.number_of(to).ok_or_else(|| Problem::NoNode(to.to_owned()))?;
        let request = Request::MoveAway { id, from: node.me, to: number };
        node.ask_record(id, &request, node.until())?;
        Ok(Vec::new())
    }
}
