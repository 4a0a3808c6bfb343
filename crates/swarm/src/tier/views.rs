//! The model of membership: one view an epoch, and views that only become newer.

use crate::draw::tier::name;
use dunlin_fabric_sim::Sim;
use dunlin_tier::membership::MemberState;
use dunlin_tier::{Epoch, View};
use dunlin_tier_node::Tier;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

#[derive(Debug, Default)]
struct State {
    views: BTreeMap<Epoch, Arc<View>>,
    /// The last epoch that each life of a node has seen.
    seen: BTreeMap<u64, Epoch>,
    /// The life of each node that serves now.
    lives: BTreeMap<usize, u64>,
    /// A node has to be started again by its operator.
    is_stuck: bool,
}

impl State {
    fn last(&self) -> Option<Epoch> {
        self.lives.values().filter_map(|life| self.seen.get(life)).max().copied()
    }
}

/// The model of a run. Clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct Views(Arc<Mutex<State>>);

impl Views {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A life of a node serves, and has made its region.
    pub(super) fn serves(&self, node: usize, life: u64) {
        self.state().lives.insert(node, life);
    }

    /// A node is gone.
    pub(super) fn gone(&self, node: usize) {
        self.state().lives.remove(&node);
    }

    /// Returns the life of a node that serves.
    pub(super) fn life_of(&self, node: usize) -> Option<u64> {
        self.state().lives.get(&node).copied()
    }

    /// A life of a node has a view; returns whether it is new to it.
    pub(super) fn sees(&self, life: u64, view: &Arc<View>) -> Result<bool, String> {
        let mut state = self.state();
        let last = state.seen.get(&life).copied();
        if last > Some(view.epoch) {
            return Err(format!("life {life} sees the view of {:?} after that of {last:?}", view.epoch));
        }
        state.seen.insert(life, view.epoch);
        if let Some(other) = state.views.get(&view.epoch) {
            if other == view {
                return Ok(last != Some(view.epoch));
            }
            return Err(format!("two views of one epoch: {other:?} and {view:?}"));
        }
        let alive: Vec<&str> = view.alive().map(|member| member.identity.name.as_str()).collect();
        if alive.iter().collect::<BTreeSet<_>>().len() < alive.len() {
            return Err(format!("a name is alive twice: {view:?}"));
        }
        state.views.insert(view.epoch, Arc::clone(view));
        Ok(true)
    }

    /// Returns the incarnation of a node that is alive in the views of all nodes that serve, if it is the same in all.
    pub(super) fn known_to_all(&self, name: &str) -> Option<Epoch> {
        let state = self.state();
        let incarnation_in = |life: &u64| {
            let member = state.views.get(state.seen.get(life)?)?.named(name)?;
            (member.state == MemberState::Alive).then_some(member.incarnation)
        };
        let mut all = state.lives.values().map(incarnation_in);
        let first = all.next().flatten()?;
        all.all(|other| other == Some(first)).then_some(first)
    }

    /// Returns whether a node, this one or another, stays outside until its operator starts it again: it has lost its number
    /// to another one, by a directory that heard of neither.
    pub(super) fn is_stuck_with(&self, tier: &Tier<Sim>) -> bool {
        if tier.trouble().is_some_and(|trouble| trouble.contains("start this node again")) {
            self.state().is_stuck = true;
        }
        self.is_stuck()
    }

    pub(super) fn is_stuck(&self) -> bool {
        self.state().is_stuck
    }

    /// Returns the newest epoch that a node which serves has seen. Views that all have taken with them do not count.
    pub(super) fn last(&self) -> Option<Epoch> {
        self.state().last()
    }
}

/// Returns an error unless a node sees all nodes of a run alive.
pub(super) fn sees_all(tier: &Tier<Sim>, nodes: usize) -> Result<(), String> {
    let mut alive: Vec<String> = tier.nodes().collect();
    alive.sort_unstable();
    let all: Vec<String> = (0..nodes).map(name).collect();
    if alive == all { Ok(()) } else { Err(format!("{alive:?} are alive")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dunlin_tier::membership::Identity;

    fn view(number: u64, names: &[&str]) -> Arc<View> {
        let identity = |name: &&str| Identity {
            name: (*name).to_owned(),
            calls: String::new(),
            memory: String::new(),
            life: 1,
        };
        let epoch = Epoch { number, directory: 1 };
        Arc::new(View { epoch, ..View::fixed(names.iter().map(identity)) })
    }

    #[test]
    fn views_that_differ_or_go_back_are_found() {
        let views = Views::default();
        views.sees(1, &view(5, &["a", "b"])).unwrap();
        views.sees(2, &view(5, &["a", "b"])).unwrap();
        views.sees(1, &view(5, &["a", "b"])).unwrap();
        assert!(views.sees(3, &view(5, &["a"])).is_err());
        views.sees(1, &view(6, &["a"])).unwrap();
        assert!(views.sees(1, &view(5, &["a", "b"])).is_err());
        assert!(views.sees(4, &view(7, &["a", "a"])).is_err());
        (1..4).for_each(|life| views.serves(life as usize, life));
        assert_eq!(views.last().map(|epoch| epoch.number), Some(6));
        views.gone(1);
        assert_eq!(views.last().map(|epoch| epoch.number), Some(5));
    }
}
