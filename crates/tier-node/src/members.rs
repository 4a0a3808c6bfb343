//! The effect of views on a node: a thread that renews the node's membership, and a thread that tells the homes of names
//! about the names of this node's records.

use crate::error::RequestError;
use crate::membership::{Membership, MembershipError, Own};
use crate::node::{Node, State};
use crate::roster::Current;
use dunlin_fabric::{Fabric, Host, Link, Nanos, Signal, WithSources, nanos};
use dunlin_tier::membership::{MembershipEvent, View};
use dunlin_tier::message::{Refusal, Reply, Request};
use dunlin_tier::{Epoch, LmrId, MemberState, Name, NodeId};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

/// The most time beyond that of a request in which a directory hears other nodes before it takes one, in nanoseconds.
const GATHERING: Nanos = 60_000_000_000;
/// The pause between two attempts to join, in nanoseconds.
const JOIN_AGAIN: Nanos = 20_000_000;
/// The time for one message to the home of names, connecting included, in nanoseconds.
const REPORT: Nanos = 200_000_000;
/// The pause before homes that have not taken the names get them again, in nanoseconds.
const REPORT_AGAIN: Nanos = 5_000_000;
/// The pause before a request to the home of a name is repeated, in nanoseconds.
pub(crate) const ASK_AGAIN: Nanos = 1_000_000;
/// The time for one request to the home of a name while nodes may die, in nanoseconds.
const ATTEMPT: Nanos = 500_000_000;
/// The part of a beat after which a node reports itself again at the soonest, because another node has another view.
const HASTE: Nanos = 20;
/// The time that a node which ends has to say so, in nanoseconds.
const LEAVE: Nanos = 200_000_000;

/// Makes this node a member, or says why not by `until`. A directory that hears the other nodes first is waited for.
pub(crate) fn join<H: Host>(
    host: &H,
    membership: &mut dyn Membership,
    until: Nanos,
) -> Result<(Arc<View>, Own), MembershipError> {
    let mut refused = None;
    loop {
        let now = host.now();
        let (failed, until) = match membership.renew(until.max(now.saturating_add(ATTEMPT))) {
            Ok(MembershipEvent::Refused(refusal)) => {
                refused = Some(refusal.clone());
                (refusal.into(), until)
            }
            Ok(_) => (MembershipError::Waiting, until.saturating_add(GATHERING)),
            Err(error) => (error, until),
        };
        if let Some(own) = membership.own() {
            return Ok((membership.view(), own));
        }
        let again = host.now().saturating_add(JOIN_AGAIN);
        if again >= until {
            // A refusal says more than an answer that came late.
            return Err(refused.map_or(failed, MembershipError::from));
        }
        host.sleep(again);
    }
}

/// Renews the membership until the node ends.
pub(crate) fn run<F: Fabric>(node: &Arc<Node<F>>, mut membership: Box<dyn Membership>) {
    let Some(period) = membership.period().map(nanos) else { return };
    let host = node.fabric.host();
    let (mut next, mut soonest) = (host.now(), host.now());
    while !node.is_over() {
        let seen = node.members.seen();
        if node.is_other_view.swap(false, Ordering::AcqRel) {
            next = next.min(soonest);
        }
        let now = host.now();
        if now >= next {
            next = now.saturating_add(period);
            soonest = now.saturating_add(period / HASTE);
            let renewed = membership.renew(now.saturating_add(5 * period));
            let taken = renewed.and_then(|event| match event {
                MembershipEvent::View(view) => node.take_view(view, membership.own()),
                MembershipEvent::DeclaredDead(view) => {
                    tracing::warn!(target: "dunlin::tier", "this node was declared dead, and joins again");
                    // It joins again at once.
                    next = now;
                    node.take_view(view, None)
                }
                MembershipEvent::Refused(refusal) => Err(refusal.into()),
                MembershipEvent::Unchanged | MembershipEvent::Wait | MembershipEvent::Ignored => Ok(()),
            });
            note(node, taken);
            continue;
        }
        node.members.wait(seen, next);
    }
    let left = membership.leave(host.now().saturating_add(LEAVE));
    if let Err(error) = left {
        tracing::debug!(target: "dunlin::tier", error = %WithSources(&error), "the directory has not heard of the end");
    }
}

/// Remembers the trouble with the membership, and logs it when it changes.
fn note<F: Fabric>(node: &Node<F>, taken: Result<(), MembershipError>) {
    let text = taken.err().map(|error| WithSources(&error).to_string()).unwrap_or_default();
    let mut trouble = node.trouble.lock().unwrap_or_else(PoisonError::into_inner);
    if *trouble == text {
        return;
    }
    if text.is_empty() {
        tracing::info!(target: "dunlin::tier", "the membership is renewed again");
    } else {
        tracing::warn!(target: "dunlin::tier", error = text, "views stand still; calls and memory go on");
    }
    *trouble = text;
}

impl<F: Fabric> Node<F> {
    /// Goes on with another view, or with none in which this node is a member.
    fn take_view(&self, view: Arc<View>, own: Option<Own>) -> Result<(), MembershipError> {
        let next = Arc::new(Current::new(view, own, self.roster.max_nodes)?);
        let now = self.fabric.host().now();
        let (gone, is_same, changed) = {
            // With the lock held, no connection to a node is made known that the view has ended.
            let mut state = self.state();
            let last = self.roster.replace(Arc::clone(&next));
            // A life of this node that was declared dead has no connection any more.
            let is_same = last.own == next.own;
            let members = last.view.alive().map(|one| (one.node, one.incarnation));
            let ended = members.filter(|(node, incarnation)| {
                *node != self.me && !(is_same && next.incarnation(*node) == Some(*incarnation))
            });
            let gone: BTreeSet<NodeId> = ended.map(|(node, _)| node).collect();
            let state: &mut State = &mut state;
            for node in &gone {
                state.handles.lose(*node);
                state.know(*node, None);
            }
            state.names.begin(next.view.alive().map(|member| member.node));
            // Others order the changes of a node that was declared dead.
            let changed = match is_same {
                true => state.directory.lose(&gone, now),
                false => state.directory.doubt(),
            };
            (gone, is_same, changed)
        };
        let shown = |node: &NodeId| self.name_of(*node);
        let (epoch, ended) = (next.view.epoch, gone.iter().map(shown).collect::<Vec<_>>().join(", "));
        tracing::info!(target: "dunlin::tier", %epoch, ended, "the view has changed");
        // Operations that are under way end, and so do those of the lives that have ended.
        let cut: Vec<F::Link> = {
            let mut links = self.path_links.lock().unwrap_or_else(PoisonError::into_inner);
            links.extract_if(.., |(_, to), _| gone.contains(to)).map(|(_, link)| link).collect()
        };
        cut.iter().for_each(Link::close);
        self.fencing.signal.raise();
        for node in &gone {
            self.board.end(*node);
            self.drop_clients(*node);
            self.forget(*node);
        }
        if !is_same {
            // The locks of this node have ended for others, and so they have for itself.
            self.forget(self.me);
        }
        self.rehoming.raise();
        self.todo().ended.extend(gone.iter().copied().chain((!is_same).then_some(self.me)));
        self.settle_later(changed);
        Ok(())
    }

    /// Drops the idle connections to the service of a node.
    fn drop_clients(&self, node: NodeId) {
        let at = usize::from(node.0);
        self.seats[at].drain();
        // Dropping a client waits, so no lock is held meanwhile.
        let unused = std::mem::take(&mut self.links.lock().unwrap_or_else(PoisonError::into_inner)[at]);
        drop(unused);
    }

    /// Has the membership renewed soon: this node or another one has an older view.
    pub(crate) fn ask_for_view(&self) {
        self.is_other_view.store(true, Ordering::Release);
        self.members.raise();
    }

    /// Waits for a view that knows a node, that another one has named, until `until` at most.
    pub(crate) fn await_known(&self, node: NodeId, until: Nanos) {
        let host = self.fabric.host();
        while self.roster.is_dynamic
            && node.0 < self.roster.max_nodes
            && self.roster.get().peer(node).is_none()
        {
            let again = host.now().saturating_add(ASK_AGAIN);
            if again >= until || self.is_over() {
                return;
            }
            self.ask_for_view();
            host.sleep(again);
        }
    }

    /// Waits before a request is repeated that met a dead node; `false` if nodes never die, or the time is over.
    pub(crate) fn may_repeat(&self, error: &RequestError, until: Nanos) -> bool {
        matches!(error, RequestError::Dead { .. }) && self.await_view(until)
    }

    /// Waits a little for the next view; `false` if views never change, or the time is over.
    pub(crate) fn await_view(&self, until: Nanos) -> bool {
        let host = self.fabric.host();
        let again = host.now().saturating_add(ASK_AGAIN);
        if !self.roster.is_dynamic || again >= until {
            return false;
        }
        self.ask_for_view();
        host.sleep(again);
        !self.is_over()
    }

    /// Answers a message of a node that tells a home of names.
    pub(crate) fn rehome(
        &self,
        node: NodeId,
        epoch: Epoch,
        names: Vec<(Name, LmrId)>,
        is_last: bool,
    ) -> Reply {
        let mut state = self.state();
        if epoch != self.roster.get().view.epoch {
            drop(state);
            self.ask_for_view();
            return Reply::Flag(false);
        }
        let mut lost = Vec::new();
        for (name, id) in names {
            if !state.names.restore(name.clone(), id, node) {
                tracing::warn!(target: "dunlin::tier", %name, "a region loses its name: another one has it");
                lost.push(id);
            }
        }
        if is_last {
            state.names.restored_by(node);
        }
        if lost.is_empty() { Reply::Flag(true) } else { Reply::Known(lost) }
    }

    /// Refuses a request about a name unless this node is its home and has heard all names.
    pub(crate) fn check_home(&self, state: &State, name: &Name, is_known: bool) -> Result<(), Refusal> {
        if !self.roster.is_dynamic {
            return Ok(());
        }
        let current = self.roster.get();
        let is_home = current.view.home(name) == Some(self.me);
        if is_home && (is_known || state.names.is_whole()) {
            return Ok(());
        }
        Err(Refusal::Rehoming { epoch: current.view.epoch.number })
    }

    /// Notes the home of a name of one of this node's records: in a fixed list, no view says that it has begun again.
    pub(crate) fn note_home(&self, name: &Name) {
        if !self.roster.is_dynamic
            && let Some(home) = self.roster.home(name).filter(|home| *home != self.me)
        {
            self.todo().homes.insert(home);
        }
    }

    /// Tells a home the names of this node's records that it keeps in a view; returns whether it has taken all of them.
    pub(crate) fn report_names_to(&self, current: &Current, home: NodeId) -> bool {
        let epoch = current.view.epoch;
        let mut from = Some(0);
        while let Some(at) = from {
            let kept_there = |name: &Name| current.view.home(name) == Some(home);
            let (names, next) = self.state().directory.names(at, kept_there);
            let request = Request::Rehome { node: self.me, epoch, names, is_last: next.is_none() };
            let reported = self.ask(home, request, self.fabric.host().now().saturating_add(REPORT));
            match reported {
                Ok(Reply::Flag(true)) => {}
                Ok(Reply::Known(lost)) => {
                    self.todo().nameless.extend(lost.into_iter().map(|id| (id, epoch)));
                    self.cleaner.raise();
                }
                Ok(_) => {
                    self.ask_for_view();
                    return false;
                }
                Err(_) => return false,
            }
            from = next;
        }
        true
    }

    /// Asks the home of a name; returns the home and its answer. While nodes may die, it asks again until the name has a
    /// home that answers, or until `until`. `request` gets the epoch of the view that says so, and makes one that may be
    /// executed twice.
    pub(crate) fn ask_home(
        &self,
        name: &Name,
        mut request: impl FnMut(Epoch) -> Request,
        until: Nanos,
    ) -> Result<(NodeId, Reply), RequestError> {
        let host = self.fabric.host();
        loop {
            let view = Arc::clone(&self.roster.get().view);
            let home = view.home(name).unwrap_or(self.me);
            if !self.roster.is_dynamic {
                return self.demand(home, request(view.epoch), until).map(|reply| (home, reply));
            }
            let attempt = host.now().saturating_add(ATTEMPT).min(until);
            let error = match self.demand(home, request(view.epoch), attempt) {
                Ok(reply) => return Ok((home, reply)),
                Err(error) => error,
            };
            let changes = matches!(
                error,
                RequestError::Refused { source: Refusal::Rehoming { .. }, .. }
                    | RequestError::Dead { .. }
                    | RequestError::Connect { .. }
                    | RequestError::Call { .. }
            );
            let again = host.now().saturating_add(ASK_AGAIN);
            if !changes || again >= until || self.is_over() {
                return Err(error);
            }
            host.sleep(again);
        }
    }
}

/// Tells homes of names, whenever the view has changed, until the node ends.
pub(crate) fn report_names<F: Fabric>(node: &Arc<Node<F>>) {
    let host = node.fabric.host();
    let (mut epoch, mut unreported) = (None, Vec::new());
    while !node.is_over() {
        let seen = node.rehoming.seen();
        let current = node.roster.get();
        if epoch != Some(current.view.epoch) {
            epoch = Some(current.view.epoch);
            let alive = |one: &&dunlin_tier::Member| one.state == MemberState::Alive;
            unreported = current.view.members.iter().filter(alive).map(|one| one.node).collect::<Vec<_>>();
        }
        if current.own.is_some() {
            unreported.retain(|home| node.is_over() || !node.report_names_to(&current, *home));
        }
        let until = if unreported.is_empty() { Nanos::MAX } else { host.now().saturating_add(REPORT_AGAIN) };
        node.rehoming.wait(seen, until);
    }
}
