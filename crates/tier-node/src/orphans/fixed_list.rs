//! Orphans in a fixed list, which does not say which nodes live: the search is [`OrphanSearch`]. It begins when the process of
//! a node has another number than before. Such a node has lost its regions, unless a keeper has them.
//!
//! It has lost the names of others' regions, too, and hears them again from the nodes of the records.

use super::{AGAIN, Orphans, Search, Which};
use crate::node::Node;
use dunlin_fabric::{Fabric, Host, Nanos};
use dunlin_tier::message::IDS_AT_ONCE;
use dunlin_tier::{Epoch, NodeId, OrphanSearch, Question};
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
            let Some((life, _)) = node.ask_known(other, asked, Vec::new()) else { continue };
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
            let mut search = OrphanSearch::new(found.into_iter().map(|(id, _)| id), all.clone());
            while let Some(question) = search.question() {
                match question {
                    Question::Known { node: to, stops, ids } => {
                        let which = Which { by_handle: false, stops };
                        match node.ask_known(to, (Epoch::default(), which), ids) {
                            Some((life, known)) => search.known(life, &known),
                            None => return Search::Later,
                        }
                    }
                    // This node's own operations need no connection, and end with it.
                    Question::OtherLives { node: of, life } => {
                        if of != node.me && !node.fencing.end_other_lives(of, life) {
                            return Search::Unfinished;
                        }
                        search.ended();
                    }
                }
            }
            is_complete &= search.is_complete();
            if let Some(orphans) = search.orphans() {
                node.take_back(orphans, Epoch::default());
            }
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
