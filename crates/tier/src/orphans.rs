//! The search of a store for memory of regions that no node of a fixed list knows any more. A list does not say which
//! nodes live, so all of them have to say that they do not know a region: a node that does not answer may know it.
//!
//! Nodes are asked twice. The second time they [stop](crate::HandleTable::stop) the regions that they do not know, since
//! the answer of a keeper that has ended may still be under way to one of them. Then the connections of their earlier lives
//! end: such a life may have begun operations.

use crate::place::{LmrId, NodeId};
use std::collections::BTreeSet;

#[cfg(test)]
mod explore;

/// A question of the search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Question {
    /// To a node: which of these regions does it know, and what is the number of its process? It stops the others if that is
    /// wanted. The answer goes to [`OrphanSearch::known`].
    Known {
        /// The node.
        node: NodeId,
        /// The node stops regions that it does not know.
        stops: bool,
        /// The regions.
        ids: Vec<LmrId>,
    },
    /// To the store itself: have all connections of other lives of a node ended? The answer goes to
    /// [`OrphanSearch::ended`].
    OtherLives {
        /// The node.
        node: NodeId,
        /// The number of the process that lives.
        life: u64,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Round {
    /// The nodes that made the regions: those of their present lives are not lost.
    Makers,
    /// All nodes.
    All,
    /// All nodes, which stop what they do not know.
    Stop,
}

/// A search.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OrphanSearch {
    nodes: Vec<NodeId>,
    /// Regions that nobody who was asked knows.
    unknown: BTreeSet<LmrId>,
    round: Round,
    /// The place of the node that is asked.
    at: usize,
    /// The life of that node which has answered, in the last round.
    life: Option<u64>,
    is_complete: bool,
    is_over: bool,
}

impl OrphanSearch {
    /// Begins a search among the nodes of a list, this one included, for regions of which it has memory.
    pub fn new(ids: impl IntoIterator<Item = LmrId>, nodes: Vec<NodeId>) -> OrphanSearch {
        let unknown: BTreeSet<LmrId> = ids.into_iter().collect();
        let is_over = unknown.is_empty() || nodes.is_empty();
        let (round, at, life, is_complete) = (Round::Makers, 0, None, true);
        let mut search = OrphanSearch { nodes, unknown, round, at, life, is_complete, is_over };
        search.pass_by();
        search
    }

    /// Returns the present question; `None` at the end.
    pub fn question(&self) -> Option<Question> {
        let node = *self.nodes.get(self.at).filter(|_| !self.is_over)?;
        if let Some(life) = self.life {
            return Some(Question::OtherLives { node, life });
        }
        let is_asked = |id: &&LmrId| self.round != Round::Makers || id.node == node;
        let ids = self.unknown.iter().filter(is_asked).copied().collect();
        Some(Question::Known { node, stops: self.round == Round::Stop, ids })
    }

    /// A node has answered [`Question::Known`]: it knows these regions, and its process has this number.
    pub fn known(&mut self, life: u64, ids: &[LmrId]) {
        let before = self.unknown.len();
        ids.iter().for_each(|id| _ = self.unknown.remove(id));
        if self.round != Round::Makers && self.unknown.len() < before {
            self.is_complete = false;
        }
        if self.round == Round::Stop {
            self.life = Some(life);
        } else {
            self.go_on();
        }
    }

    /// The connections of other lives of a node have ended: [`Question::OtherLives`].
    pub fn ended(&mut self) {
        self.life = None;
        self.go_on();
    }

    fn go_on(&mut self) {
        self.at += 1;
        // Nobody is asked about nothing.
        self.is_over |= self.unknown.is_empty();
        self.pass_by();
    }

    /// Passes by nodes that are not asked, and begins the next round behind the last node.
    fn pass_by(&mut self) {
        while let (Round::Makers, Some(node)) = (self.round, self.nodes.get(self.at)) {
            if self.unknown.iter().any(|id| id.node == *node) {
                return;
            }
            self.at += 1;
        }
        if self.at == self.nodes.len() {
            self.at = 0;
            match self.round {
                Round::Makers => self.round = Round::All,
                Round::All => self.round = Round::Stop,
                Round::Stop => self.is_over = true,
            }
        }
    }

    /// Returns the regions that no node knows, when there is no question any more: their memory can be used again.
    pub fn orphans(&self) -> Option<&BTreeSet<LmrId>> {
        self.is_over.then_some(&self.unknown)
    }

    /// Returns whether every region is an orphan, or known to the node that made it. Others may be orphans later.
    pub fn is_complete(&self) -> bool {
        self.is_complete
    }
}
