//! Views without a directory: a record of a store with transactions (etcd), which the nodes change themselves.
//!
//! The store has the view, and for each node that is alive a key that ends with the node's lease. The node that sees
//! first that a key is gone writes the next view, in a transaction on the view that it read and on the key that is
//! missing. So the views of a store follow each other, and of two nodes that change one view one reads again.
//!
//! ```text
//! node                                          store
//!   read ────────────────────────────────────>  view, keys of nodes
//!   if the view is still that one, and the keys of those that are declared dead are as they were:
//!     write the next view, and the own key if this node joins ─>
//! ```
//!
//! A store that was set back to an earlier state has an earlier view. A node never goes back: the next view counts on
//! from the greatest epoch that its writer has seen, and the writer's life stands in the epoch.

use super::message::{MemberReply, MemberRequest};
use super::{Epoch, Member, MemberState, View};
use crate::place::NodeId;
use std::collections::BTreeMap;

/// The content of the store: the view, and the life in the key of each node that has one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Stored {
    /// The view; none was ever written if it has no members.
    pub view: View,
    /// The life of each node with a key, by its name.
    pub present: BTreeMap<String, u64>,
}

/// The next step of a node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// The view stays. The answer is for [`Standing::take`](super::Standing::take).
    Answer(MemberReply),
    /// The node has to write this view in a transaction, with its key if it joins, and to take it as the answer.
    Write {
        /// The next view.
        view: View,
        /// The names of the nodes that it declares dead: their keys have to be missing still, or unchanged.
        missing: Vec<String>,
        /// The node joins: its key is written with the view.
        joins: bool,
    },
}

/// Returns the step of a node with the request `request` ([`Standing::request`](super::Standing::request)) and the
/// life `life`. A pure function of the content of the store.
pub fn step(stored: &Stored, request: &MemberRequest, life: u64, max_nodes: u16) -> Step {
    let (own, seen) = match request {
        MemberRequest::Join { seen, .. } => (None, *seen),
        MemberRequest::Beat { node, epoch, .. } => (Some(*node), *epoch),
        MemberRequest::Report { node, view, .. } => (Some(*node), view.epoch),
        MemberRequest::Leave { node, .. } => (Some(*node), Epoch::default()),
    };
    let mut view = stored.view.clone();
    let next = Epoch { number: seen.max(view.epoch).number.saturating_add(1), directory: life };
    let missing = bury(&mut view, &stored.present, own);
    let mut is_changed = !missing.is_empty();
    let mut joins = false;
    match request {
        MemberRequest::Join { identity, seen, number } => {
            let member = stored.view.named(&identity.name);
            // The transaction that made this life a member succeeded, and its answer was lost. A life that knows of its
            // membership, and joins, has learned that it was declared dead.
            let is_member = member.is_some_and(|one| {
                let is_own = one.identity.life == identity.life && one.state == MemberState::Alive;
                is_own && one.incarnation > *seen && !missing.contains(&identity.name)
            });
            if !is_member {
                if let Err(refusal) = view.admit(identity.clone(), *number, next, max_nodes) {
                    return Step::Answer(MemberReply::Refused(refusal));
                }
                (joins, is_changed) = (true, true);
            }
        }
        MemberRequest::Beat { node, incarnation, .. } | MemberRequest::Report { node, incarnation, .. } => {
            if alive(&stored.view, *node, *incarnation).is_none() {
                return Step::Answer(MemberReply::Gone);
            }
        }
        MemberRequest::Leave { node, incarnation } => {
            if alive(&stored.view, *node, *incarnation).is_none() {
                return Step::Answer(MemberReply::Current);
            }
            if let Some(member) = view.member_mut(*node) {
                (member.state, is_changed) = (MemberState::Left, true);
            }
        }
    }
    if is_changed || seen > stored.view.epoch {
        view.epoch = next;
        // A node that joins in the place of a life whose key is missing writes that key itself.
        return Step::Write { view, missing, joins };
    }
    Step::Answer(if seen == view.epoch { MemberReply::Current } else { MemberReply::View(view) })
}

/// Declares all nodes dead whose keys are missing, or are those of another life; not `own`, which writes its key again.
/// Returns their names.
fn bury(view: &mut View, present: &BTreeMap<String, u64>, own: Option<NodeId>) -> Vec<String> {
    let mut missing = Vec::new();
    for member in &mut view.members {
        let has_key = present.get(&member.identity.name) == Some(&member.identity.life);
        if member.state == MemberState::Alive && !has_key && Some(member.node) != own {
            member.state = MemberState::Dead;
            missing.push(member.identity.name.clone());
        }
    }
    missing
}

fn alive(view: &View, node: NodeId, incarnation: Epoch) -> Option<&Member> {
    view.member(node).filter(|one| one.incarnation == incarnation && one.state == MemberState::Alive)
}

/// Returns the bytes of a view as the store keeps it.
pub fn encode(view: &View) -> Vec<u8> {
    MemberReply::View(view.clone()).encode()
}

/// Reads the view that the store keeps.
///
/// # Errors
/// The bytes are no view.
pub fn parse(bytes: &[u8]) -> Result<View, crate::message::Malformed> {
    match MemberReply::parse(bytes)? {
        MemberReply::View(view) => Ok(view),
        _ => Err(crate::message::Malformed),
    }
}
