//! Memory of regions that nobody knows any more: all keepers of their records have ended, and no node has a handle. LITE does
//! not say what becomes of such memory. A store asks all nodes that live, and takes it back; in a
//! [fixed list](fixed_list), which does not say which nodes live, it asks all of them.
//!
//! A keeper that was only taken for dead comes back, and asks the stores about its records before anybody maps them
//! ([`agree_on`](crate::keepers)): a view with that keeper and a release of its memory exclude each other.

mod fixed_list;

use crate::node::{Node, SETTLE};
use dunlin_fabric::{Fabric, Host, Nanos, nanos};
use dunlin_tier::message::{IDS_AT_ONCE, Refusal, Reply, Request};
use dunlin_tier::{Epoch, LmrId, MemberState, NodeId, Standing};
use std::collections::{BTreeMap, BTreeSet};

/// The time that a node has to say which regions it knows, in nanoseconds.
const ASK: Nanos = 200_000_000;
/// The pause before an unfinished search goes on, in nanoseconds.
const AGAIN: Nanos = 100_000_000;

/// The search for such memory. One thread has it.
#[derive(Debug)]
pub(crate) struct Orphans {
    /// Nodes of which a life has ended, and the time of that: this one, too, since others may have freed its regions.
    ended: BTreeMap<NodeId, Nanos>,
    /// The id of the fences of nodes that are dead in a view, while a search is under way.
    fence: Option<(LmrId, Epoch)>,
    /// Regions of this node's records that have lost their names to others, each with the view that said so: two nodes gave
    /// one name away while they did not hear of each other. Such a region ends with its last handle.
    nameless: BTreeMap<LmrId, Epoch>,
    /// In a fixed list, the last known processes of nodes that have memory here or are homes: the number of each, and the
    /// searches that have met it, up to two.
    lives: BTreeMap<NodeId, (u64, u8)>,
    /// In a fixed list, the homes of names of this node's records.
    homes: BTreeSet<NodeId>,
    /// They include those of records of an earlier life.
    knows_homes: bool,
    /// The time of the next search.
    due: Nanos,
}

/// The question to a node: [`Request::Known`].
#[derive(Clone, Copy, Debug, Default)]
struct Which {
    by_handle: bool,
    stops: bool,
}

/// The outcome of a search.
enum Search {
    /// No memory is left of a node that has ended for so long.
    Done,
    /// Some is known to others, or the nodes have not ended for so long.
    Later,
    /// A node did not answer, or has another view.
    Unfinished,
}

impl Orphans {
    pub(crate) fn new() -> Self {
        Orphans {
            ended: BTreeMap::new(),
            fence: None,
            nameless: BTreeMap::new(),
            lives: BTreeMap::new(),
            homes: BTreeSet::new(),
            knows_homes: false,
            due: Nanos::MAX,
        }
    }

    /// Notes that lives of nodes have ended.
    pub(crate) fn ended(&mut self, nodes: impl IntoIterator<Item = NodeId>, now: Nanos, after: Nanos) {
        for node in nodes {
            self.ended.insert(node, now);
            self.due = self.due.min(now.saturating_add(after));
        }
    }

    /// Notes that regions have lost their names.
    pub(crate) fn nameless(&mut self, ids: BTreeMap<LmrId, Epoch>, now: Nanos) {
        if !ids.is_empty() {
            self.nameless.extend(ids);
            self.due = self.due.min(now.saturating_add(AGAIN));
        }
    }

    /// Searches when the time has come; returns the time of the next search.
    pub(crate) fn look<F: Fabric>(&mut self, node: &Node<F>) -> Nanos {
        let (now, after) = (node.fabric.host().now(), node.orphan_time());
        if !node.roster.is_dynamic && self.due == Nanos::MAX {
            self.due = now.saturating_add(after);
        }
        if now < self.due {
            return self.due;
        }
        if !node.roster.is_dynamic {
            return self.look_in_list(node, now, after);
        }
        let search = self.search(node, now, after);
        if !matches!(search, Search::Unfinished) {
            self.end_fence(node);
        }
        let waits = !self.end_nameless(node);
        let due = match search {
            Search::Done => self.next_end(now, after),
            Search::Later => now.saturating_add(after),
            Search::Unfinished => now.saturating_add(AGAIN),
        };
        self.due = if waits { due.min(now.saturating_add(after)) } else { due };
        self.due
    }

    /// Frees regions without names of which nobody has a handle; returns whether none is left.
    fn end_nameless<F: Fabric>(&mut self, node: &Node<F>) -> bool {
        let current = node.roster.get();
        let epoch = current.view.epoch;
        // With the next view, a region may have its name again, or have lost it again.
        self.nameless.retain(|_, of| *of >= epoch);
        let first: Vec<LmrId> = self.nameless.keys().copied().take(IDS_AT_ONCE).collect();
        let mut unused: BTreeSet<LmrId> = first.iter().copied().collect();
        for member in current.view.alive() {
            if unused.is_empty() {
                break;
            }
            let which = Which { by_handle: true, stops: false };
            if !node.leave_unknown(member.node, (epoch, which), &mut unused) {
                return false;
            }
        }
        for id in unused {
            let known = {
                let directory = &node.state().directory;
                directory.keepers(id).zip(directory.standing(id))
            };
            match known {
                Some((keepers, standing)) if keepers.first() == node.me => {
                    // A record that is not settled is looked at again.
                    if standing == Standing::Settled {
                        self.nameless.remove(&id);
                        node.free_unused(id);
                    }
                }
                // Another keeper orders the changes, and hears of the lost name, too; or the region has ended.
                _ => _ = self.nameless.remove(&id),
            }
        }
        self.nameless.is_empty()
    }

    fn search<F: Fabric>(&mut self, node: &Node<F>, now: Nanos, after: Nanos) -> Search {
        let current = node.roster.get();
        if current.own.is_none() {
            return Search::Unfinished;
        }
        let epoch = current.view.epoch;
        let gone = self.gone(now, after);
        let (mut last, mut known_to_others) = (None, false);
        loop {
            let found = node.state().space.lent_regions(|id| gone.contains(&id.node), last, IDS_AT_ONCE);
            let Some((end, _)) = found.last() else { break };
            last = Some(*end);
            // Nothing of a dead node arrives any more.
            let Some(fence) = self.fence_in(node, epoch) else { return Search::Later };
            let dead = current.view.members.iter().filter(|member| member.state != MemberState::Alive);
            let mut fenced = true;
            for member in dead {
                fenced &= node.fencing.ask(member.node, fence);
            }
            if !fenced {
                return Search::Unfinished;
            }
            let mut unknown: BTreeSet<LmrId> = found.into_iter().map(|(id, _)| id).collect();
            let asked = unknown.len();
            for member in current.view.alive() {
                if !node.leave_unknown(member.node, (epoch, Which::default()), &mut unknown) {
                    return Search::Unfinished;
                }
                if unknown.is_empty() {
                    break;
                }
            }
            known_to_others |= unknown.len() < asked;
            if !node.take_back(&unknown, epoch) {
                return Search::Unfinished;
            }
        }
        if known_to_others || self.ended.len() > gone.len() { Search::Later } else { Search::Done }
    }

    /// Returns the nodes of which a life has ended for so long.
    fn gone(&self, now: Nanos, after: Nanos) -> BTreeSet<NodeId> {
        let is_old = |(of, ended): (&NodeId, &Nanos)| (now.saturating_sub(*ended) >= after).then_some(*of);
        self.ended.iter().filter_map(is_old).collect()
    }

    /// Returns the time of the next search after one that has found nothing more to take back.
    fn next_end(&mut self, now: Nanos, after: Nanos) -> Nanos {
        self.ended.retain(|_, ended| now.saturating_sub(*ended) < after);
        self.ended.values().min().map_or(Nanos::MAX, |ended| ended.saturating_add(after))
    }

    /// Returns the id of the fences in a view; `None` without room for one.
    fn fence_in<F: Fabric>(&mut self, node: &Node<F>, epoch: Epoch) -> Option<LmrId> {
        if self.fence.is_some_and(|(_, of)| of != epoch) {
            self.end_fence(node);
        }
        if self.fence.is_none() {
            let made = node.state().directory.reserve().ok()?;
            self.fence = Some((made, epoch));
        }
        self.fence.map(|(fence, _)| fence)
    }

    fn end_fence<F: Fabric>(&mut self, node: &Node<F>) {
        if let Some((fence, _)) = self.fence.take() {
            node.fencing.forget(fence);
            node.state().directory.forget(fence);
        }
    }
}

impl<F: Fabric> Node<F> {
    /// Returns the time after which a node that has ended is taken to be gone for good. An allocation for a region that is
    /// being made is no longer under way then.
    pub(crate) fn orphan_time(&self) -> Nanos {
        nanos(self.config.orphan_after).max(nanos(self.config.timeout))
    }

    /// Takes the memory of regions back that no node of a view knows; `false` if the view has changed.
    fn take_back(&self, ids: &BTreeSet<LmrId>, epoch: Epoch) -> bool {
        let due = self.fabric.host().now().saturating_add(SETTLE);
        let mut state = self.state();
        // Nodes that come back ask with a later view.
        if self.roster.get().view.epoch != epoch {
            return false;
        }
        for id in ids {
            tracing::warn!(target: "dunlin::tier", node = %id.node, slot = id.slot, "memory of a region that no node knows is taken back");
            state.settle_later(due, *id);
            state.directory.forget_gone(*id);
        }
        drop(state);
        ids.iter().for_each(|id| self.fencing.forget(*id));
        true
    }

    /// Asks a node which of these regions it knows; returns the number of its process, and those. `None` if it does not say.
    fn ask_known(
        &self,
        to: NodeId,
        (epoch, Which { by_handle, stops }): (Epoch, Which),
        ids: Vec<LmrId>,
    ) -> Option<(u64, Vec<LmrId>)> {
        let until = self.fabric.host().now().saturating_add(ASK);
        match self.ask(to, Request::Known { epoch, by_handle, stops, ids }, until) {
            Ok(Reply::KnownIn { life, ids }) => Some((life, ids)),
            _ => None,
        }
    }

    /// Asks a node as [`ask_known`](Node::ask_known), and leaves the regions that it does not know; `false` if it does not
    /// say.
    fn leave_unknown(&self, to: NodeId, asked: (Epoch, Which), ids: &mut BTreeSet<LmrId>) -> bool {
        let Some((_, known)) = self.ask_known(to, asked, ids.iter().copied().collect()) else { return false };
        known.iter().for_each(|id| _ = ids.remove(id));
        true
    }

    /// Answers a store: the regions that this node knows.
    pub(crate) fn known(
        &self,
        epoch: Epoch,
        [by_handle, stops]: [bool; 2],
        ids: &[LmrId],
    ) -> Result<Reply, Refusal> {
        let mut state = self.state();
        let own = self.roster.get().view.epoch;
        if epoch != own {
            drop(state);
            self.ask_for_view();
            return Err(Refusal::Rehoming { epoch: own.number });
        }
        let knows = |id: &LmrId| state.handles.has(*id) || (!by_handle && state.directory.exists(*id));
        let (known, unknown): (Vec<LmrId>, Vec<LmrId>) = ids.iter().copied().partition(knows);
        // An operation may be under way on a path that no thread uses again, and a lost keeper may have begun a change: neither
        // ends by itself, and both keep the region known.
        let in_flight = known.iter().any(|id| !state.directory.exists(*id));
        if stops {
            unknown.into_iter().for_each(|id| _ = state.handles.stop(id, false));
        }
        drop(state);
        if in_flight {
            self.settle_paths_soon();
        }
        known.iter().for_each(|id| self.ask_for_its_end(*id));
        Ok(Reply::KnownIn { life: self.incarnation, ids: known })
    }

    /// Answers a keeper that has come back: whether this node has memory of a region, and keeps it.
    pub(crate) fn has_memory_of(&self, epoch: Epoch, owner: LmrId) -> Result<Reply, Refusal> {
        let state = self.state();
        let own = self.roster.get().view.epoch;
        if epoch > own {
            drop(state);
            self.ask_for_view();
            return Err(Refusal::Rehoming { epoch: own.number });
        }
        let settles = state.settling.iter().any(|(_, settling)| *settling == owner);
        Ok(Reply::Flag(state.space.has(owner) && !settles))
    }
}
