//! All runs of a directory and three nodes, one of which joins, with one restart of a node, one of the directory, two nodes
//! declared dead at any time, and one answer lost. Answers arrive late, also those of an earlier life of the directory.

#![allow(clippy::disallowed_types)]

use super::directory::{Directory, Terms};
use super::message::{MemberRefusal, MemberReply, MemberRequest};
use super::{Epoch, Identity, MemberState, MembershipEvent, Standing, View};
use crate::place::NodeId;
use std::collections::{BTreeMap, HashSet};

const NODES: usize = 3;
const TERMS: Terms = Terms { lease: 1, gather: 1, max_nodes: 8 };

/// A deviation from the protocol. Exploration must find a run that is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    None,
    /// The lives of the directory have one number.
    SameDirectory,
    /// Nodes do not say which epoch they have seen.
    SeenForgotten,
    /// A node does not learn that it was declared dead.
    DeathNotTold,
    /// A node that joins again keeps its incarnation.
    IncarnationKept,
    /// A node that joins again does not say which number it has.
    NumberForgotten,
}

const BUGS: [Bug; 5] =
    [Bug::SameDirectory, Bug::SeenForgotten, Bug::DeathNotTold, Bug::IncarnationKept, Bug::NumberForgotten];

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Run {
    directory: Directory,
    nodes: Vec<Standing>,
    /// Answers on their way.
    answers: Vec<Option<MemberReply>>,
    lives: u64,
    /// All views that anybody had.
    views: BTreeMap<Epoch, View>,
    /// The last incarnation of each node.
    incarnations: Vec<Epoch>,
    node_restarts: u8,
    directory_restarts: u8,
    deaths: u8,
    losses: u8,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Ask(usize),
    Deliver(usize),
    Lose(usize),
    Expire(u16),
    Rule,
    RestartDirectory,
    RestartNode(usize),
}

fn fresh(index: usize, life: u64) -> Standing {
    let name = ["a", "b", "c"][index].to_owned();
    let (calls, memory) = (format!("{name}1"), format!("{name}2"));
    Standing::new(Identity { name, calls, memory, life })
}

impl Run {
    /// Two nodes are members; the third one has not joined.
    fn new() -> Run {
        let mut run = Run {
            directory: Directory::new(5, TERMS),
            nodes: (0..NODES).map(|index| fresh(index, index as u64 + 1)).collect(),
            answers: vec![None; NODES],
            lives: 10,
            views: BTreeMap::new(),
            incarnations: vec![Epoch::default(); NODES],
            node_restarts: 1,
            directory_restarts: 1,
            deaths: 2,
            losses: 1,
        };
        for step in [Step::Ask(0), Step::Ask(1), Step::Deliver(0), Step::Deliver(1), Step::Rule] {
            run.take(step, Bug::None).unwrap();
        }
        for node in [0, 1] {
            run.take(Step::Ask(node), Bug::None).unwrap();
            run.take(Step::Deliver(node), Bug::None).unwrap();
        }
        assert_eq!(run.nodes[1].view().alive().count(), 2);
        run
    }

    fn steps(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        for node in 0..NODES {
            match self.answers[node] {
                None => steps.push(Step::Ask(node)),
                Some(_) => {
                    steps.push(Step::Deliver(node));
                    if self.losses > 0 {
                        steps.push(Step::Lose(node));
                    }
                }
            }
            if self.node_restarts > 0 {
                steps.push(Step::RestartNode(node));
            }
        }
        if self.directory.is_gathering() {
            steps.push(Step::Rule);
        } else if self.deaths > 0 {
            steps.extend(self.directory.view().alive().map(|member| Step::Expire(member.node.0)));
        }
        if self.directory_restarts > 0 {
            steps.push(Step::RestartDirectory);
        }
        steps
    }

    fn restart_node(&mut self, node: usize) {
        self.lives += 1;
        self.nodes[node] = fresh(node, self.lives);
        self.answers[node] = None;
    }

    fn ask(&mut self, node: usize, bug: Bug) {
        let mut request = self.nodes[node].request();
        match &mut request {
            MemberRequest::Join { seen: epoch, .. } | MemberRequest::Beat { epoch, .. }
                if bug == Bug::SeenForgotten =>
            {
                *epoch = Epoch::default();
            }
            MemberRequest::Join { number, .. } if bug == Bug::NumberForgotten => *number = None,
            _ => {}
        }
        let joins = matches!(request, MemberRequest::Join { .. });
        let mut answer = self.directory.answer(request, 0);
        if let (MemberReply::View(view), true, true) = (&mut answer, joins, bug == Bug::IncarnationKept)
            && let Some(number) = self.nodes[node].number
        {
            let kept = self.incarnations[node];
            for one in [view, &mut self.directory.view] {
                one.member_mut(number).into_iter().for_each(|member| member.incarnation = kept);
            }
        }
        if bug != Bug::DeathNotTold || answer != MemberReply::Gone {
            self.answers[node] = Some(answer);
        }
    }

    fn deliver(&mut self, node: usize) -> Result<Option<MembershipEvent>, String> {
        let Some(answer) = self.answers[node].take() else { return Ok(None) };
        let standing = &mut self.nodes[node];
        let (before, number) = (standing.view.epoch, standing.number);
        let event = standing.take(answer);
        if standing.view.epoch < before {
            return Err(format!("node {node} went from {before:?} back to {:?}", standing.view.epoch));
        }
        let Some((own, incarnation)) = standing.joined else { return Ok(Some(event)) };
        if number.is_some_and(|number| number != own) {
            return Err(format!("node {node} was {number:?} and is {own:?}"));
        }
        let member = standing.view.member(own);
        if member.is_none_or(|one| (one.incarnation, one.state) != (incarnation, MemberState::Alive)) {
            return Err(format!("node {node} is not alive in its own view"));
        }
        self.incarnations[node] = incarnation;
        Ok(Some(event))
    }

    fn take(&mut self, step: Step, bug: Bug) -> Result<(), String> {
        match step {
            Step::Ask(node) => self.ask(node, bug),
            Step::Deliver(node) => {
                let standing = &self.nodes[node];
                let (was_out, is_first, last) =
                    (standing.joined.is_none(), standing.number.is_none(), self.incarnations[node]);
                self.deliver(node)?;
                let now = self.nodes[node].joined.map(|(_, now)| now).filter(|_| was_out);
                // A directory to which nobody has reported the last life cannot know what is greater.
                if now.is_some_and(|now| now == last || now < last && !is_first) {
                    return Err(format!("node {node} joined as {now:?} after {last:?}"));
                }
            }
            Step::Lose(node) => {
                self.losses -= 1;
                self.answers[node] = None;
            }
            Step::Expire(node) => {
                self.deaths -= 1;
                self.directory.expire(&[NodeId(node)]);
            }
            Step::Rule => self.directory.rule(0),
            Step::RestartDirectory => {
                self.directory_restarts -= 1;
                let before = self.directory.life;
                // Its number may be smaller or greater than that of the last life: both orders occur.
                let life = if bug == Bug::SameDirectory { before } else { [2, 9][self.lives as usize % 2] };
                self.directory = Directory::new(life, TERMS);
            }
            Step::RestartNode(node) => {
                self.node_restarts -= 1;
                self.restart_node(node);
            }
        }
        self.check_views()
    }

    /// One epoch has one view, whoever has it.
    fn check_views(&mut self) -> Result<(), String> {
        let answers = self.answers.iter().filter_map(|answer| match answer {
            Some(MemberReply::View(view)) => Some(view),
            _ => None,
        });
        let nodes = self.nodes.iter().map(|node| &*node.view);
        let all: Vec<View> = answers
            .chain(nodes)
            .chain([self.directory.view()])
            .filter(|one| one.epoch != Epoch::default())
            .cloned()
            .collect();
        for view in all {
            let first = self.views.entry(view.epoch).or_insert_with(|| view.clone());
            if *first != view {
                return Err(format!("{:?} has two views: {first:?} and {view:?}", view.epoch));
            }
        }
        Ok(())
    }

    /// Without further faults, all nodes soon have one view in which they are alive.
    fn settles(&self, bug: Bug) -> Result<(), String> {
        let mut run = self.clone();
        let greatest = run.nodes.iter().map(|node| node.view.epoch).max();
        for round in 0..12 {
            for node in 0..NODES {
                for _ in 0..2 {
                    if run.answers[node].is_none() {
                        run.ask(node, bug);
                    }
                    if let Some(MembershipEvent::Refused(MemberRefusal::Number(_))) = run.deliver(node)? {
                        // It has to start again.
                        run.restart_node(node);
                    }
                }
            }
            if round == 1 && run.directory.is_gathering() {
                run.directory.rule(0);
            }
            run.check_views()?;
        }
        let view = run.directory.view();
        for (index, node) in run.nodes.iter().enumerate() {
            if *node.view.as_ref() != *view || node.joined.is_none() {
                return Err(format!("node {index} does not come back: {node:?}, the view is {view:?}"));
            }
        }
        if view.alive().count() != NODES || Some(view.epoch) < greatest {
            return Err(format!("the last view is {view:?}"));
        }
        Ok(())
    }
}

/// Explores all runs of at most `depth` steps; returns the number of states, or a run that is wrong.
fn explore(bug: Bug, depth: usize) -> Result<usize, (Vec<Step>, String)> {
    // Depth by depth, so the first run that is wrong is a shortest one.
    let mut seen = HashSet::from([Run::new()]);
    let mut last: Vec<(Run, Vec<Step>)> = vec![(Run::new(), Vec::new())];
    for _ in 0..depth {
        let mut next = Vec::new();
        for (run, path) in last {
            for step in run.steps() {
                let mut after = run.clone();
                let path = || path.iter().copied().chain([step]).collect::<Vec<Step>>();
                let taken = after.take(step, bug);
                taken.map_err(|error| (path(), error))?;
                if seen.insert(after.clone()) {
                    after.settles(bug).map_err(|error| (path(), error))?;
                    next.push((after, path()));
                }
            }
        }
        last = next;
    }
    Ok(seen.len())
}

#[test]
fn no_epoch_has_two_views_and_all_nodes_come_back() {
    match explore(Bug::None, 7) {
        Ok(states) => assert!(states > 10_000, "{states} states"),
        Err((path, error)) => panic!("{error}\nafter {path:#?}"),
    }
}

/// More steps, which take some minutes.
#[cfg(feature = "long-exploration")]
#[test]
fn longer_runs() {
    if let Err((path, error)) = explore(Bug::None, 9) {
        panic!("{error}\nafter {path:#?}");
    }
}

#[test]
fn each_deviation_is_found() {
    for bug in BUGS {
        assert!(explore(bug, 6).is_err(), "{bug:?} is not found");
    }
}
