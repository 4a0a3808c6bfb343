//! The cleaner: one thread of a node that zeroes released memory, tells other nodes of closed handles, ends frees that
//! take long, and begins those of regions whose leases have run out.

use crate::error::RequestError;
use crate::free::Free;
use crate::node::Node;
use crate::orphans::Orphans;
use dunlin_fabric::{Fabric, Host, Nanos, Signal};
use dunlin_tier::lock::message::LockMessage;
use dunlin_tier::message::{Reply, Request};
use dunlin_tier::{Epoch, LmrId, NodeId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The pause between two attempts to end a free, or to tell an owner something, in nanoseconds.
const TRY_EVERY: Nanos = 100_000_000;
/// The time of one attempt to end a free, in nanoseconds.
const ATTEMPT: Nanos = 5_000_000;
/// The time that an owner has to hear a message, connecting included, in nanoseconds.
const TELL: Nanos = 200_000_000;

/// The work that is left to the cleaner.
#[derive(Debug, Default)]
pub(crate) struct Todo {
    /// Regions of which one handle each was closed.
    pub(crate) unmapped: Vec<LmrId>,
    pub(crate) frees: Vec<Free>,
    /// Memory that is of no use, by the id that owns it, with the nodes that may have allocated some: of an earlier life, or
    /// of a region that could not be made.
    pub(crate) left: Vec<(LmrId, BTreeSet<NodeId>)>,
    /// Regions whose records other nodes keep, too, and do not know as they are here.
    pub(crate) records: BTreeSet<LmrId>,
    /// Messages to the owners of locks.
    pub(crate) owners: Vec<Word>,
    /// Nodes of which a life has ended.
    pub(crate) ended: BTreeSet<NodeId>,
    /// In a fixed list, nodes that have names of regions whose records this node keeps.
    pub(crate) homes: BTreeSet<NodeId>,
    /// Regions whose names others have, each with the view in which its home said so.
    pub(crate) nameless: BTreeMap<LmrId, Epoch>,
    /// A region waits for operations of this node, of which some may be on paths that nobody uses.
    pub(crate) settles_paths: bool,
}

/// A message to the owner of a lock that a thread could not deliver, or whose effect may come late.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Word {
    pub(crate) owner: NodeId,
    pub(crate) message: LockMessage,
    /// It is repeated until then, whether the owner has heard it or not; in nanoseconds, 0 for once.
    pub(crate) repeat_until: Nanos,
}

/// The most leases that end at a time.
const LEASES_AT_ONCE: usize = 64;

/// The most messages to owners that wait, and the most closed handles. Each lock has two at most, unless its owner is gone.
const MAX_WORDS: usize = 4096;

/// Adds messages that are not there yet.
fn add(words: &mut Vec<Word>, more: Vec<Word>) {
    for word in more {
        let same = |other: &Word| other.owner == word.owner && other.message == word.message;
        if let Some(place) = words.iter().position(same) {
            words[place].repeat_until = words[place].repeat_until.max(word.repeat_until);
        } else if words.len() < MAX_WORDS {
            words.push(word);
        } else {
            tracing::warn!(target: "dunlin::tier", "too many locks of owners that do not answer");
        }
    }
}

/// Tells owners of locks what they have to hear.
fn tell_owners<F: Fabric>(node: &Node<F>, words: &mut Vec<Word>) {
    let host = node.fabric.host();
    let mut silent: Option<NodeId> = None;
    words.retain(|word| {
        if node.is_over() || silent == Some(word.owner) {
            return true;
        }
        let heard = node.tell_owner(word.owner, &word.message, host.now().saturating_add(TELL));
        if !heard {
            silent = Some(word.owner);
        }
        !heard || host.now() < word.repeat_until
    });
}

/// Tells the nodes of records of closed handles. One that is away hears of them later. One that may have heard does not hear
/// again, since that would count twice: it keeps this node on its list of mappers. Nothing depends on that but the free of
/// the region, which asks this node (see [`Directory::unmap`](dunlin_tier::Directory::unmap)).
fn report_unmapped<F: Fabric>(node: &Node<F>, untold: &mut Vec<LmrId>) {
    let host = node.fabric.host();
    let mut away: Option<NodeId> = None;
    untold.retain(|id| {
        if node.is_over() || away == Some(id.node) {
            return true;
        }
        let until = host.now().saturating_add(TELL);
        match node.ask(id.node, Request::Unmap { id: *id, mapper: node.me }, until) {
            Ok(_) | Err(RequestError::Refused { .. } | RequestError::Dead { .. }) => false,
            Err(error) if error.may_have_executed() => {
                tracing::debug!(target: "dunlin::tier", %error, "a closed handle was perhaps not reported");
                false
            }
            Err(_) => {
                away = Some(id.node);
                true
            }
        }
    });
    if untold.len() > MAX_WORDS {
        tracing::warn!(target: "dunlin::tier", "too many closed handles of nodes that do not answer");
        untold.drain(..untold.len() - MAX_WORDS);
    }
}

/// Has nodes release memory that is of no use; returns whether all have.
fn release_left<F: Fabric>(node: &Node<F>, id: LmrId, stores: &mut BTreeSet<NodeId>) -> bool {
    let host = node.fabric.host();
    stores.retain(|store| {
        if node.is_over() {
            return true;
        }
        if node.roster.dead_in(*store).is_some() {
            return false;
        }
        let released = node.ask(*store, Request::Release { owner: id }, host.now().saturating_add(TELL));
        !matches!(released, Ok(Reply::Done))
    });
    if stores.is_empty() {
        node.state().directory.forget_left(id);
    }
    stores.is_empty()
}

/// Brings records and their other keepers together; keeps those whose keepers do not answer.
fn settle_records<F: Fabric>(node: &Node<F>, records: &mut BTreeMap<LmrId, Nanos>) {
    // A node that is away costs each round one wait, however many records it keeps.
    let mut silent = BTreeSet::new();
    records.retain(|id, since| {
        let keepers = node.state().directory.keepers(*id);
        let waits = keepers.is_some_and(|keepers| keepers.iter().any(|keeper| silent.contains(&keeper)));
        node.is_over()
            || waits
            || node.settle_record(*id, *since).inspect_err(|node| _ = silent.insert(*node)).is_err()
    });
}

/// Begins to free regions whose leases have run out; returns the time to look again.
fn end_leases<F: Fabric>(node: &Node<F>) -> Nanos {
    let now = node.fabric.host().now();
    let overdue: Vec<LmrId> = node.state().directory.overdue(now).take(LEASES_AT_ONCE).collect();
    overdue.into_iter().for_each(|id| node.free_overdue(id));
    match node.state().directory.next_lease_end() {
        None => Nanos::MAX,
        // Those that are in use are looked at again.
        Some(end) if end <= now => now.saturating_add(TRY_EVERY),
        Some(end) => end,
    }
}

/// Runs until the node ends.
pub(crate) fn run<F: Fabric>(node: &Arc<Node<F>>) {
    let host = node.fabric.host();
    let (mut frees, mut words): (Vec<Free>, Vec<Word>) = Default::default();
    let mut untold: Vec<LmrId> = Vec::new();
    let mut left_over: Vec<(LmrId, BTreeSet<NodeId>)> = Vec::new();
    // Each with the time since when it is here.
    let mut untold_records: BTreeMap<LmrId, Nanos> = BTreeMap::new();
    let mut orphans = Orphans::new();
    while !node.is_over() {
        let seen = node.cleaner.seen();
        let todo = std::mem::take(&mut *node.todo());
        let Todo { unmapped, frees: more, left, records, owners, ended, homes, nameless, settles_paths } =
            todo;
        if settles_paths {
            node.settle_paths(host.now().saturating_add(ATTEMPT));
        }
        frees.extend(more);
        left_over.extend(left);
        let now = host.now();
        records.into_iter().for_each(|id| {
            untold_records.entry(id).or_insert(now);
        });
        settle_records(node, &mut untold_records);
        add(&mut words, owners);
        untold.extend(unmapped);
        report_unmapped(node, &mut untold);
        frees.retain_mut(|free| {
            let until = host.now().saturating_add(ATTEMPT);
            !node.is_over() && !node.drive(free, until)
        });
        left_over.retain_mut(|(id, stores)| node.is_over() || !release_left(node, *id, stores));
        tell_owners(node, &mut words);
        let leases = end_leases(node);
        orphans.ended(ended, now, node.orphan_time());
        orphans.nameless(nameless, now);
        orphans.homes(homes);
        let searches = orphans.look(node);
        let settles = node.state().settle(host.now());
        while !node.is_over() && node.clean_one() {}
        let is_done = frees.is_empty() && words.is_empty() && left_over.is_empty();
        let retry = if is_done && untold.is_empty() && untold_records.is_empty() {
            Nanos::MAX
        } else {
            host.now().saturating_add(TRY_EVERY)
        };
        let until = settles.unwrap_or(Nanos::MAX).min(retry).min(leases).min(searches);
        node.cleaner.wait(seen, until);
    }
}
