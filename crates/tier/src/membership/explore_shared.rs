//! All runs of three nodes at a store with transactions: every order of readings and transactions, a lost answer, leases
//! that end at any time, and a node that ends and starts again.

#![allow(clippy::disallowed_types)]

use super::message::MemberReply;
use super::shared::{Step, Stored, step};
use super::{Epoch, Identity, MemberState, Standing, View};
use std::collections::{BTreeMap, HashSet};

const NODES: usize = 3;
const MAX_NODES: u16 = 4;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Node {
    standing: Standing,
    life: u64,
    /// The content of the store as it was read, with its revisions.
    read: Option<Store>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Store {
    stored: Stored,
    view_revision: u8,
    key_revisions: BTreeMap<String, u8>,
    revision: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    store: Store,
    nodes: Vec<Node>,
    expiries: u8,
    lost: u8,
    restarts: u8,
}

#[derive(Clone, Copy, Debug)]
enum Action {
    Read(usize),
    /// The transaction of the node, and whether it hears the answer.
    Commit(usize, bool),
    Expire(usize),
    Restart(usize),
}

/// Mistakes that the exploration has to find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mistake {
    None,
    /// The transaction does not ask whether the view is still the one that was read.
    ViewUnchecked,
    /// It does not ask whether the keys are still as they were read.
    KeysUnchecked,
}

fn name(at: usize) -> String {
    ["a", "b", "c"][at].to_owned()
}

fn node(at: usize, life: u64) -> Node {
    let identity = Identity { name: name(at), calls: format!("x:{at}"), memory: format!("y:{at}"), life };
    Node { standing: Standing::new(identity), life, read: None }
}

impl Store {
    fn key_revision(&self, name: &str) -> u8 {
        self.key_revisions.get(name).copied().unwrap_or(0)
    }

    fn put_key(&mut self, name: &str, life: u64) {
        self.stored.present.insert(name.to_owned(), life);
        self.key_revisions.insert(name.to_owned(), self.revision);
    }

    fn drop_key(&mut self, name: &str) {
        self.stored.present.remove(name);
        self.key_revisions.remove(name);
        self.revision += 1;
    }
}

impl World {
    fn new() -> World {
        let nodes = (0..NODES).map(|at| node(at, at as u64 + 1)).collect();
        World { store: Store::default(), nodes, expiries: 0, lost: 0, restarts: 0 }
    }

    fn actions(&self) -> Vec<Action> {
        let mut actions = Vec::new();
        for (at, one) in self.nodes.iter().enumerate() {
            if one.read.is_none() {
                actions.push(Action::Read(at));
            } else {
                actions.push(Action::Commit(at, true));
                actions.extend((self.lost == 0).then_some(Action::Commit(at, false)));
            }
            if self.expiries < 2 && self.store.stored.present.contains_key(&name(at)) {
                actions.push(Action::Expire(at));
            }
        }
        actions.extend((self.restarts == 0).then_some(Action::Restart(0)));
        actions
    }

    /// Returns an error if two views have one epoch, or an epoch falls.
    fn act(&mut self, action: Action, mistake: Mistake) -> Result<(), String> {
        match action {
            Action::Read(at) => self.nodes[at].read = Some(self.store.clone()),
            Action::Expire(at) => {
                self.expiries += 1;
                self.store.drop_key(&name(at));
            }
            Action::Restart(at) => {
                self.restarts += 1;
                self.nodes[at] = node(at, 10);
            }
            Action::Commit(at, is_heard) => {
                self.lost += u8::from(!is_heard);
                if let Some(reply) = self.commit(at, mistake)?
                    && is_heard
                {
                    let standing = &mut self.nodes[at].standing;
                    let before = standing.view().epoch;
                    standing.take(reply);
                    if standing.view().epoch < before {
                        return Err(format!("node {at} went back"));
                    }
                }
            }
        }
        for (at, one) in self.nodes.iter().enumerate() {
            for other in &self.nodes[..at] {
                let (ours, theirs) = (one.standing.view(), other.standing.view());
                if ours.epoch == theirs.epoch && ours != theirs {
                    return Err(format!("two views have the epoch {:?}", ours.epoch));
                }
            }
        }
        Ok(())
    }

    /// Makes the next step of a node, by its last reading. Returns the answer, or `None` if the store has changed since.
    fn commit(&mut self, at: usize, mistake: Mistake) -> Result<Option<MemberReply>, String> {
        let Some(read) = self.nodes[at].read.take() else { return Ok(None) };
        let (request, life) = (self.nodes[at].standing.request(), self.nodes[at].life);
        let is_view_unchanged =
            mistake == Mistake::ViewUnchecked || read.view_revision == self.store.view_revision;
        let is_key_unchanged = |store: &Store, name: &str| {
            mistake == Mistake::KeysUnchecked || read.key_revision(name) == store.key_revision(name)
        };
        match step(&read.stored, &request, life, MAX_NODES) {
            Step::Answer(reply) => {
                let lives = matches!(reply, MemberReply::Current | MemberReply::View(_));
                if lives && read.stored.present.get(&name(at)) != Some(&life) {
                    if !is_view_unchanged || !is_key_unchanged(&self.store, &name(at)) {
                        return Ok(None);
                    }
                    self.store.revision += 1;
                    self.store.put_key(&name(at), life);
                }
                Ok(Some(reply))
            }
            Step::Write { view, missing, joins } => {
                if !is_view_unchanged || !missing.iter().all(|name| is_key_unchanged(&self.store, name)) {
                    return Ok(None);
                }
                if view.epoch <= self.store.stored.view.epoch {
                    return Err(format!("{:?} follows {:?}", view.epoch, self.store.stored.view.epoch));
                }
                for name in &missing {
                    let dead = view.named(name).filter(|one| one.state == MemberState::Dead);
                    let key = self.store.stored.present.get(name);
                    if dead.is_some_and(|one| key == Some(&one.identity.life)) {
                        return Err(format!("{name} is declared dead, and has a key"));
                    }
                }
                self.store.revision += 1;
                self.store.view_revision = self.store.revision;
                self.store.stored.view = view.clone();
                if joins {
                    self.store.put_key(&name(at), life);
                }
                Ok(Some(MemberReply::View(view)))
            }
        }
    }

    /// Returns an error unless all nodes soon have one view, in which they are alive, if nothing else fails.
    fn settle(&self, mistake: Mistake) -> Result<(), String> {
        let mut world = self.clone();
        for _ in 0..8 {
            for at in 0..NODES {
                if world.nodes[at].read.is_none() {
                    world.act(Action::Read(at), mistake)?;
                }
                world.act(Action::Commit(at, true), mistake)?;
            }
        }
        let view: &View = world.nodes[0].standing.view();
        let has_all = |(at, one): (usize, &Node)| {
            let key = world.store.stored.present.get(&name(at));
            one.standing.joined().is_some() && **one.standing.view() == *view && key == Some(&one.life)
        };
        let all = world.nodes.iter().enumerate().all(has_all);
        if all && view.alive().count() == NODES && view.epoch > Epoch::default() {
            return Ok(());
        }
        Err(format!("the nodes do not agree: {view:?}"))
    }
}

/// Runs everything up to `depth` steps. Returns the number of states, or the first run that breaks a rule.
fn explore(depth: usize, mistake: Mistake) -> Result<usize, String> {
    let (mut seen, mut edge) = (HashSet::new(), vec![(World::new(), Vec::new())]);
    for _ in 0..depth {
        let mut next = Vec::new();
        for (world, run) in edge {
            for action in world.actions() {
                let (mut world, mut run): (World, Vec<Action>) = (world.clone(), run.clone());
                run.push(action);
                let checked = world.act(action, mistake).and_then(|()| world.settle(mistake));
                checked.map_err(|error| format!("{error}: {run:?}"))?;
                if seen.insert(world.clone()) {
                    next.push((world, run));
                }
            }
        }
        edge = next;
    }
    Ok(seen.len())
}

#[test]
fn no_run_makes_two_views_of_one_epoch_and_all_nodes_agree_in_the_end() {
    let depth = if cfg!(feature = "long-exploration") { 10 } else { 8 };
    let states = explore(depth, Mistake::None).unwrap();
    assert!(states > 10_000, "{states}");
}

#[test]
fn each_condition_of_the_transactions_is_needed() {
    for mistake in [Mistake::ViewUnchecked, Mistake::KeysUnchecked] {
        explore(8, mistake).expect_err(&format!("{mistake:?} is found"));
    }
}
