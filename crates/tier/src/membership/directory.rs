//! The directory: the one process that makes views. It keeps nothing on a disk. After a restart it gathers the views of
//! the nodes first, and makes the next one from the greatest.

use super::message::{MemberRefusal, MemberReply, MemberRequest};
use super::{Epoch, Identity, MAX_MEMBERS, Member, MemberState, View};
use crate::place::NodeId;
use std::collections::BTreeMap;
use thiserror::Error;

/// The settings of a directory. Times are in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Terms {
    /// A node that does not report itself for as long is declared dead.
    pub lease: u64,
    /// The time after the start in which the directory hears the views of nodes, and makes none. As long as the lease at
    /// least: no node misses a directory that restarts within it.
    pub gather: u64,
    /// The most names of nodes.
    pub max_nodes: u16,
}

/// The clock of the directory jumped, or the directory did not run, or no node could reach it. All leases begin again: the
/// silence says nothing about a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "the directory heard of no node for {nanos} ns by its clock ({}): all leases begin again",
    if *.backwards { "backwards" } else { "forwards" }
)]
pub struct ClockJump {
    /// The length of the jump in nanoseconds.
    pub nanos: u64,
    /// Whether the clock went back.
    pub backwards: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Stage {
    /// The nodes that have reported, with their incarnations.
    Gathering(BTreeMap<NodeId, Epoch>),
    Ruling,
}

/// A node that asked to join, and the number that it has already.
type Waiting = (Identity, Option<NodeId>);

/// The directory's state. Every method is a function of its inputs; times are those of the directory's own clock.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Directory {
    /// A random number of this life of the directory.
    pub(super) life: u64,
    terms: Terms,
    pub(super) view: View,
    /// The greatest epoch that any node has spoken of.
    seen: Epoch,
    stage: Stage,
    begun: Option<u64>,
    /// The time at which each node that is alive reported itself last.
    renewed_at: BTreeMap<NodeId, u64>,
    /// Nodes that asked to join while the directory gathers, by name.
    waiting: BTreeMap<String, Waiting>,
    /// The time of the last tick.
    last: Option<u64>,
}

impl Directory {
    /// Makes a directory that knows nothing. `life` is a random number.
    pub fn new(life: u64, terms: Terms) -> Directory {
        let terms = Terms { max_nodes: terms.max_nodes.clamp(1, MAX_MEMBERS as u16), ..terms };
        Directory {
            life,
            terms,
            view: View::default(),
            seen: Epoch::default(),
            stage: Stage::Gathering(BTreeMap::new()),
            begun: None,
            renewed_at: BTreeMap::new(),
            waiting: BTreeMap::new(),
            last: None,
        }
    }

    /// Returns the last view.
    pub fn view(&self) -> &View {
        &self.view
    }

    /// Returns whether the directory still gathers views, and makes none.
    pub fn is_gathering(&self) -> bool {
        matches!(self.stage, Stage::Gathering(_))
    }

    /// Lets time pass: ends the gathering, and declares nodes dead whose leases have ended. Call it before each request.
    ///
    /// # Errors
    /// The time since the last call is longer than half of a lease, or negative. All leases begin again.
    pub fn tick(&mut self, now: u64) -> Result<(), ClockJump> {
        let begun = *self.begun.get_or_insert(now);
        let last = self.last.replace(now).unwrap_or(now);
        let (backwards, nanos) = (now < last, now.abs_diff(last));
        if backwards || nanos > self.terms.lease / 2 {
            if backwards {
                self.begun = Some(now);
            }
            self.renewed_at.values_mut().for_each(|renewed_at| *renewed_at = now);
            return Err(ClockJump { nanos, backwards });
        }
        match &self.stage {
            Stage::Gathering(reported) => {
                let all = self.view.alive().all(|one| reported.get(&one.node) == Some(&one.incarnation));
                let has_members = !self.view.members.is_empty();
                if now.saturating_sub(begun) >= self.terms.gather || (has_members && all) {
                    self.rule(now);
                }
            }
            Stage::Ruling => {
                let late =
                    |(_, renewed_at): &(&NodeId, &u64)| now.saturating_sub(**renewed_at) > self.terms.lease;
                let silent: Vec<NodeId> =
                    self.renewed_at.iter().filter(late).map(|(node, _)| *node).collect();
                self.expire(&silent);
            }
        }
        Ok(())
    }

    /// Declares nodes dead, in one view.
    pub(crate) fn expire(&mut self, silent: &[NodeId]) {
        let mut any = false;
        for node in silent {
            if self.renewed_at.remove(node).is_some()
                && let Some(member) = self.view.member_mut(*node)
            {
                member.state = MemberState::Dead;
                any = true;
            }
        }
        if any {
            self.issue();
        }
    }

    /// Ends the gathering: nodes that have not reported are declared dead, and those that wait join, in one view.
    pub(crate) fn rule(&mut self, now: u64) {
        let Stage::Gathering(reported) = std::mem::replace(&mut self.stage, Stage::Ruling) else { return };
        let mut changed = false;
        for member in self.view.members.iter_mut().filter(|one| one.state == MemberState::Alive) {
            if reported.get(&member.node) == Some(&member.incarnation) {
                self.renewed_at.insert(member.node, now);
            } else {
                member.state = MemberState::Dead;
                changed = true;
            }
        }
        let epoch = self.next();
        // Nodes that want their numbers back come first.
        let mut waiting: Vec<Waiting> = std::mem::take(&mut self.waiting).into_values().collect();
        waiting.sort_by_key(|(_, number)| number.is_none());
        for (identity, number) in waiting {
            changed |= self.admit(identity, number, epoch, now).is_ok();
        }
        if changed || self.seen > self.view.epoch {
            self.issue();
        }
    }

    fn next(&self) -> Epoch {
        let number = self.seen.max(self.view.epoch).number;
        Epoch { number: number.saturating_add(1), directory: self.life }
    }

    fn issue(&mut self) {
        self.view.epoch = self.next();
        self.seen = self.view.epoch;
    }

    /// Takes a node into the view that has this epoch, and is not issued yet.
    fn admit(
        &mut self,
        identity: Identity,
        number: Option<NodeId>,
        epoch: Epoch,
        now: u64,
    ) -> Result<(), MemberRefusal> {
        let node = self.view.admit(identity, number, epoch, self.terms.max_nodes)?;
        self.renewed_at.insert(node, now);
        Ok(())
    }

    /// Answers a request.
    pub fn answer(&mut self, request: MemberRequest, now: u64) -> MemberReply {
        match request {
            MemberRequest::Join { identity, seen, number } => self.join(identity, number, seen, now),
            MemberRequest::Beat { node, incarnation, epoch } => {
                self.seen = self.seen.max(epoch);
                self.renew(node, incarnation, epoch, now)
            }
            MemberRequest::Report { node, incarnation, life, view } => {
                let epoch = view.epoch;
                self.seen = self.seen.max(epoch);
                let own = view.member(node).filter(|own| own.state == MemberState::Alive);
                if own.is_none_or(|own| (own.incarnation, own.identity.life) != (incarnation, life)) {
                    return MemberReply::Gone;
                }
                if let Stage::Gathering(reported) = &mut self.stage {
                    if view.epoch > self.view.epoch && view.members.len() <= usize::from(self.terms.max_nodes)
                    {
                        self.view = view;
                    }
                    reported.insert(node, incarnation);
                    return MemberReply::Wait;
                }
                self.renew(node, incarnation, epoch, now)
            }
            MemberRequest::Leave { node, incarnation } => {
                let leaves =
                    |one: &&mut Member| one.incarnation == incarnation && one.state == MemberState::Alive;
                match (&self.stage, self.view.member_mut(node).filter(leaves)) {
                    (Stage::Gathering(_), _) => MemberReply::Wait,
                    (Stage::Ruling, None) => MemberReply::Current,
                    (Stage::Ruling, Some(member)) => {
                        member.state = MemberState::Left;
                        self.renewed_at.remove(&node);
                        self.issue();
                        MemberReply::Current
                    }
                }
            }
        }
    }

    fn renew(&mut self, node: NodeId, incarnation: Epoch, epoch: Epoch, now: u64) -> MemberReply {
        if let Stage::Gathering(reported) = &self.stage {
            return if reported.get(&node) == Some(&incarnation) {
                MemberReply::Wait
            } else {
                MemberReply::ReportView
            };
        }
        let lives = |one: &&Member| one.incarnation == incarnation && one.state == MemberState::Alive;
        if self.view.member(node).filter(lives).is_none() {
            return MemberReply::Gone;
        }
        self.renewed_at.insert(node, now);
        if self.seen > self.view.epoch {
            // A node has a view of an earlier life of the directory, that no other node has reported.
            self.issue();
        }
        if epoch == self.view.epoch { MemberReply::Current } else { MemberReply::View(self.view.clone()) }
    }

    fn join(&mut self, identity: Identity, number: Option<NodeId>, seen: Epoch, now: u64) -> MemberReply {
        self.seen = self.seen.max(seen);
        if identity.name.is_empty() {
            return MemberReply::Refused(MemberRefusal::NoName);
        }
        if self.is_gathering() {
            let is_known = self.waiting.contains_key(&identity.name);
            if !is_known && self.waiting.len() >= usize::from(self.terms.max_nodes) {
                return MemberReply::Refused(MemberRefusal::Full(self.terms.max_nodes));
            }
            // Of two nodes with one name, the first counts: the other one is refused when the gathering has ended.
            self.waiting.entry(identity.name.clone()).or_insert((identity, number));
            return MemberReply::Wait;
        }
        let member = self.view.named(&identity.name);
        let is_member = member.is_some_and(|one| {
            // A node that knows of its membership, and joins, has learned that it was declared dead.
            let knows = one.incarnation <= seen;
            one.state == MemberState::Alive && one.identity.life == identity.life && !knows
        });
        if is_member {
            // The answer to an earlier request was lost.
            if let Some(node) = member.map(|one| one.node) {
                self.renewed_at.insert(node, now);
            }
            if self.seen > self.view.epoch {
                self.issue();
            }
            return MemberReply::View(self.view.clone());
        }
        let epoch = self.next();
        match self.admit(identity, number, epoch, now) {
            Ok(()) => {
                self.issue();
                MemberReply::View(self.view.clone())
            }
            Err(refusal) => MemberReply::Refused(refusal),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::membership::{MembershipEvent, Standing};

    const TERMS: Terms = Terms { lease: 100, gather: 100, max_nodes: 4 };

    fn identity(name: &str, life: u64) -> Identity {
        let (calls, memory) = (format!("shm:{name}"), format!("shm:{name}-memory"));
        Identity { name: name.into(), calls, memory, life }
    }

    fn ask(directory: &mut Directory, node: &mut Standing, now: u64) -> MembershipEvent {
        let _ = directory.tick(now);
        node.take(directory.answer(node.request(), now))
    }

    fn started(names: &[&str]) -> (Directory, Vec<Standing>, u64) {
        let mut directory = Directory::new(7, TERMS);
        let mut nodes: Vec<Standing> = names.iter().map(|name| Standing::new(identity(name, 1))).collect();
        let mut now = 1000;
        while nodes.iter().any(|node| node.view().alive().count() < names.len()) {
            now += 10;
            nodes.iter_mut().for_each(|node| drop(ask(&mut directory, node, now)));
        }
        (directory, nodes, now)
    }

    fn states(view: &View) -> Vec<(String, MemberState)> {
        view.members.iter().map(|one| (one.identity.name.clone(), one.state)).collect()
    }

    use MemberState::{Alive, Dead, Left};

    #[test]
    fn nodes_that_start_together_join_with_one_view() {
        let (directory, nodes, now) = started(&["a", "b", "c"]);
        assert!(now >= 1100, "the directory gathers first");
        assert_eq!(directory.view().epoch.number, 1);
        assert!(nodes.iter().all(|node| **node.view() == *directory.view()));
        assert_eq!(directory.view().founders().count(), 3);
    }

    #[test]
    fn a_silent_node_is_declared_dead_and_joins_again_with_a_higher_incarnation() {
        let (mut directory, mut nodes, mut now) = started(&["a", "b"]);
        let before = nodes[0].joined().unwrap();
        for _ in 0..12 {
            now += 10;
            ask(&mut directory, &mut nodes[1], now);
        }
        assert_eq!(states(nodes[1].view()), [("a".into(), Dead), ("b".into(), Alive)]);
        assert_eq!(nodes[1].view().epoch.number, 2);
        assert!(matches!(ask(&mut directory, &mut nodes[0], now), MembershipEvent::DeclaredDead(_)));
        assert!(nodes[0].joined().is_none());
        assert!(matches!(ask(&mut directory, &mut nodes[0], now), MembershipEvent::View(_)));
        let (node, incarnation) = nodes[0].joined().unwrap();
        assert!(node == before.0 && incarnation > before.1);
        // Locks stay with the node that lived.
        assert_eq!(nodes[0].view().founders().map(|one| one.node).collect::<Vec<_>>(), [NodeId(1)]);
    }

    #[test]
    fn a_second_node_of_one_name_is_refused_while_the_first_lives() {
        let (mut directory, mut nodes, mut now) = started(&["a", "b"]);
        let mut other =
            Standing::new(Identity { calls: "shm:x".into(), memory: "shm:y".into(), ..identity("a", 2) });
        let taken = MemberRefusal::Taken { name: "a".into(), address: "shm:a".into() };
        assert_eq!(ask(&mut directory, &mut other, now), MembershipEvent::Refused(taken));
        let mut thief = Standing::new(Identity { name: "c".into(), ..identity("b", 3) });
        assert!(matches!(
            ask(&mut directory, &mut thief, now),
            MembershipEvent::Refused(MemberRefusal::Address { .. })
        ));
        // The next life at the same addresses has replaced the first one.
        let mut next = Standing::new(identity("a", 2));
        assert!(matches!(ask(&mut directory, &mut next, now), MembershipEvent::View(_)));
        assert!(matches!(ask(&mut directory, &mut nodes[0], now), MembershipEvent::DeclaredDead(_)));
        for _ in 0..12 {
            now += 10;
            ask(&mut directory, &mut nodes[1], now);
        }
        assert!(
            matches!(ask(&mut directory, &mut other, now), MembershipEvent::View(_)),
            "its lease has ended"
        );
    }

    #[test]
    fn a_node_that_leaves_is_gone_with_the_next_view() {
        let (mut directory, mut nodes, now) = started(&["a", "b"]);
        assert_eq!(directory.answer(nodes[0].leave().unwrap(), now), MemberReply::Current);
        assert!(matches!(ask(&mut directory, &mut nodes[1], now), MembershipEvent::View(_)));
        assert_eq!(states(nodes[1].view()), [("a".into(), Left), ("b".into(), Alive)]);
        assert_eq!(directory.answer(nodes[0].leave().unwrap(), now), MemberReply::Current);
        assert_eq!(directory.view().epoch.number, 2, "a repetition has no effect");
    }

    #[test]
    fn a_restarted_directory_learns_all_from_the_nodes() {
        let (mut directory, mut nodes, mut now) = started(&["a", "b", "c"]);
        ask(&mut directory, &mut nodes[0], now);
        let (before, last) = (directory.view().clone(), now);
        let mut next = Directory::new(3, TERMS);
        let mut fourth = Standing::new(identity("d", 4));
        assert_eq!(ask(&mut next, &mut fourth, now), MembershipEvent::Wait);
        for round in 0..2 {
            now += 10;
            for node in &mut nodes {
                let event = ask(&mut next, node, now);
                assert_eq!(event, MembershipEvent::Wait, "round {round}");
            }
        }
        now += 10;
        assert!(matches!(ask(&mut next, &mut nodes[1], now), MembershipEvent::View(_)));
        assert!(now - last < TERMS.gather, "all have reported");
        assert_eq!(states(next.view())[..3], states(&before));
        assert_eq!(states(next.view())[3], ("d".into(), Alive));
        assert_eq!(next.view().epoch.number, before.epoch.number + 1);
        assert_eq!(nodes[1].joined().unwrap().1, before.epoch, "members keep their incarnations");
    }

    #[test]
    fn a_view_that_only_one_node_had_is_never_made_again() {
        let (mut directory, mut nodes, mut now) = started(&["a", "b"]);
        // A third node joins, and the directory ends before the others know of it.
        let mut third = Standing::new(identity("c", 1));
        assert!(matches!(ask(&mut directory, &mut third, now), MembershipEvent::View(_)));
        let lost = third.view().epoch;
        let mut next = Directory::new(3, TERMS);
        let _ = next.tick(now);
        for _ in 0..11 {
            now += 10;
            nodes.iter_mut().for_each(|node| drop(ask(&mut next, node, now)));
        }
        assert!(!next.is_gathering());
        assert_eq!(ask(&mut next, &mut third, now), MembershipEvent::DeclaredDead(Arc::clone(third.view())));
        assert!(matches!(ask(&mut next, &mut third, now), MembershipEvent::View(_)));
        assert!(third.view().epoch.number > lost.number);
        ask(&mut next, &mut nodes[0], now);
        assert_eq!(nodes[0].view(), third.view());
    }

    #[test]
    fn a_clock_that_jumps_kills_nobody() {
        let (mut directory, mut nodes, now) = started(&["a", "b"]);
        let jump = ClockJump { nanos: 5000, backwards: false };
        assert_eq!(directory.tick(now + 5000), Err(jump));
        assert_eq!(directory.tick(now + 5010), Ok(()));
        assert_eq!(directory.tick(now), Err(ClockJump { nanos: 5010, backwards: true }));
        assert_eq!(ask(&mut directory, &mut nodes[0], now + 10), MembershipEvent::Unchanged);
        for step in 1..12 {
            ask(&mut directory, &mut nodes[0], now + 10 * step);
        }
        assert_eq!(nodes[0].view().alive().count(), 1, "leases end as before");
    }

    #[test]
    fn names_are_bounded_and_those_of_dead_nodes_stay_theirs() {
        let (mut directory, _, now) = started(&["a", "b", "c", "d"]);
        let mut fifth = Standing::new(identity("e", 1));
        assert_eq!(ask(&mut directory, &mut fifth, now), MembershipEvent::Refused(MemberRefusal::Full(4)));
        let mut unnamed = Standing::new(identity("", 1));
        assert_eq!(ask(&mut directory, &mut unnamed, now), MembershipEvent::Refused(MemberRefusal::NoName));
    }

    use std::sync::Arc;
}
