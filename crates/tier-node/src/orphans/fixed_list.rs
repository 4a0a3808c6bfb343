//! Orphans in a fixed list, which does not say which nodes live. A node that does not answer may know the region, so all
//! nodes of the list have to say that they do not.
//!
//! A node whose process has another number than before has lost its regions, unless a keeper has them. The nodes are asked
//! twice. The second time they stop the regions that they do not know: the answer of a keeper that has ended since may be
//! under way to one of them. Connections of earlier lives of a node end before the memory is used again.
//!
//! Such a node has lost the names of others' regions, too, and hears them again from the nodes of the records.

use super::{AGAIN, Orphans, Search, Which};
use crate::node::Node;
use dunlin_fabric::{Fabric, Host, Nanos};
use dunlin_tier::message::IDS_AT_ONCE;
use dunlin_tier::{Epoch, LmrId, NodeId};
use std::collections::BTreeSet;

/// A home hears its names twice: a claim that was under way the first time has ended the second time.
const TELLS: u8 = 2;

impl Orphans {
    /// Notes homes of names of this node's records.
    pub(crate) fn homes(&mut self, homes: BTreeSet<NodeId>) {
        self.homes.extend(homes);
    }

    /// Searches; returns the time of the next search.
    pub(super) fn look_in_list<F: Fabric>(&mut self, node: &Node<F>, now: Nanos, after: Nanos) -> Nanos {
        if !self.knows_homes {
            self.homes.append(&mut homes_of_names(node));
            self.knows_homes = true;
        }
        self.notice_lives(node);
        let search = self.search_list(node, now, after);
        self.end_nameless(node);
        let next = now.saturating_add(after);
        self.due = match search {
            // Nodes end at any time.
            Search::Done => self.next_end(now, after).min(next),
            Search::Later => next,
            Search::Unfinished => now.saturating_add(AGAIN),
        };
        if !matches!(search, Search::Unfinished) {
            node.fencing.forget_lives();
        }
        self.due
    }

    /// Asks the nodes that have memory here, and the homes of names, for the numbers of their processes. A home that has
    /// begun again hears its names.
    fn notice_lives<F: Fabric>(&mut self, node: &Node<F>) {
        let current = node.roster.get();
        for other in node.roster.others(node.me) {
            let is_home = self.homes.contains(&other);
            if !is_home && !node.state().space.lends_to(other) {
                continue;
            }
            let asked = (Epoch::default(), Which::default());
            let Some(life) = node.ask_known(other, asked, &mut BTreeSet::new()) else { continue };
            let (last, looks) = self.lives.get(&other).copied().unwrap_or_default();
            let looks = if last == life { looks + 1 } else { 1 };
            if looks > TELLS || is_home && !node.report_names_to(&current, other) {
                continue;
            }
            self.lives.insert(other, (life, looks));
            if last != life {
                self.ended.insert(other, node.fabric.host().now());
            }
        }
    }

    fn search_list<F: Fabric>(&mut self, node: &Node<F>, now: Nanos, after: Nanos) -> Search {
        let gone = self.gone(now, after);
        let all: Vec<NodeId> = node.roster.get().view.members.iter().map(|member| member.node).collect();
        let (mut last, mut is_complete) = (None, true);
        loop {
            let found = node.state().space.lent_regions(|id| gone.contains(&id.node), last, IDS_AT_ONCE);
            let Some((end, _)) = found.last() else { break };
            last = Some(*end);
            let Some(mut unknown) = unknown_to_makers(node, found.into_iter().map(|(id, _)| id)) else {
                return Search::Later;
            };
            let lost = unknown.len();
            for stops in [false, true] {
                for member in &all {
                    if unknown.is_empty() {
                        break;
                    }
                    let asked = (Epoch::default(), Which { by_handle: false, stops });
                    let Some(life) = node.ask_known(*member, asked, &mut unknown) else {
                        return Search::Later;
                    };
                    // This node's own operations need no connection, and end with it.
                    if stops && *member != node.me && !node.fencing.end_other_lives(*member, life) {
                        return Search::Unfinished;
                    }
                }
            }
            // Another keeper has the others, or a node has a handle on them.
            is_complete &= unknown.len() == lost;
            node.take_back(&unknown, Epoch::default());
        }
        if is_complete && self.ended.len() == gone.len() { Search::Done } else { Search::Later }
    }
}

/// Returns the homes of the names of a node's records: an earlier life may have given them.
fn homes_of_names<F: Fabric>(node: &Node<F>) -> BTreeSet<NodeId> {
    let (mut homes, mut from) = (BTreeSet::new(), Some(0));
    while let Some(at) = from {
        let (names, next) = node.state().directory.names(at, |_| true);
        homes.extend(names.iter().filter_map(|(name, _)| node.roster.home(name)));
        from = next;
    }
    homes
}

/// Returns the regions that the nodes which made them do not know. A region of the present life of its node is not lost.
/// `None` if one of these nodes does not answer.
fn unknown_to_makers<F: Fabric>(node: &Node<F>, ids: impl Iterator<Item = LmrId>) -> Option<BTreeSet<LmrId>> {
    let (mut unknown, mut of_node) = (BTreeSet::new(), BTreeSet::new());
    let mut ids = ids.peekable();
    while let Some(id) = ids.next() {
        of_node.insert(id);
        // They come in the order of the nodes.
        if ids.peek().is_none_or(|next| next.node != id.node) {
            node.ask_known(id.node, (Epoch::default(), Which::default()), &mut of_node)?;
            unknown.append(&mut of_node);
        }
    }
    Some(unknown)
}
