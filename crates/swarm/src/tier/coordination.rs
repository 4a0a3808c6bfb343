//! Runs of the coordination of nodes: threads that call services of other nodes, take locks and meet at barriers, while
//! nodes are killed and cut off. The nodes are those of a fixed list, or have views of a directory.

use super::coordinator::{BARRIERS, Coordinator, LOCKS, SERVICE, Servant, Times, call_by_book, lock_name};
use super::meetings::{Granted, Meetings, Owner, Thread};
use super::views::{Views, sees_all};
use super::{APART, CHECK, Course, OVER, Stage, members, retry};
use crate::book::CallLedger;
use crate::draw::members::DrawnMembers;
use crate::draw::tier::DrawnTier;
use dunlin_fabric::{Fabric, Host, Nanos, Task, WithSources};
use dunlin_fabric_sim::{Random, Sim};
use dunlin_tier_node::{JoinError, LockError, Tier, TierConfig};

/// The time after which a node that has begun is not new to others any more.
const SETTLES: Nanos = 50_000_000;
/// The time after which the consequences of a disturbance are over, beside a death and a view: dead holders of locks are
/// found.
const FOUND: Nanos = 300_000_000;
/// The longest time with a lock in runs with a fixed list, and the longest one at a barrier.
const FIXED_TIMES: Times = Times { holds: 40_000, meets: 2_000_000 };

/// The part of a node's first thread.
struct Part {
    sim: Sim,
    drawn: DrawnTier,
    config: TierConfig,
    node: usize,
    times: Times,
    meetings: Meetings,
    views: Views,
    book: CallLedger,
    stage: Stage,
    first: u64,
}

impl Part {
    fn violate(&self, what: String) {
        self.book.violate(format!("node {}: {what}", self.node));
    }

    fn begin(&self) -> Result<Tier<Sim>, JoinError> {
        let begin = || Tier::within(&self.sim, self.config.clone());
        // Without a directory, or with one that takes the last life for alive, a node waits.
        if self.is_dynamic() { retry(&self.sim, begin) } else { begin() }
    }

    fn is_dynamic(&self) -> bool {
        self.config.directory.is_some()
    }

    fn play(self) {
        let tier = match self.begin() {
            Ok(tier) => tier,
            Err(error) => return self.violate(format!("it does not start: {}", WithSources(&error))),
        };
        let calls = match tier.register(SERVICE.0, SERVICE.1) {
            Ok(calls) => calls,
            Err(error) => return self.violate(format!("it does not serve: {}", WithSources(&error))),
        };
        self.meetings.begins(self.node, self.first);
        self.meetings.disturbed(self.sim.time() + SETTLES);
        // The one of the service, and those that call.
        let random = |number: u64| Random::new(self.drawn.seed ^ (self.first + number), 43);
        let (sim, book, stage) = (self.sim.clone(), self.book.clone(), self.stage.clone());
        let servant = Servant { sim, calls, book, stage, random: random(0) };
        let servant = self.sim.host().spawn("servant", Box::new(move || servant.play())).ok();
        let tasks: Vec<Task> = (0..=self.drawn.actors)
            .filter_map(|number| {
                let coordinator = Coordinator {
                    sim: self.sim.clone(),
                    tier: tier.clone(),
                    thread: self.thread(number),
                    drawn: self.drawn.clone(),
                    meetings: self.meetings.clone(),
                    book: self.book.clone(),
                    stage: self.stage.clone(),
                    random: random(1 + number as u64),
                    next: self.first + number as u64 * (APART / 16),
                    times: self.times,
                };
                let body = Box::new(move || coordinator.play());
                self.sim.host().spawn(&format!("coordinator-{number}"), body).ok()
            })
            .collect();
        tasks.into_iter().for_each(Task::join);
        if !self.stage.has_left() {
            self.stage.wait(&self.sim, CHECK);
            self.check_all(&tier);
            self.stage.complete(CHECK);
            self.stage.wait(&self.sim, OVER);
        }
        servant.into_iter().for_each(Task::join);
    }

    /// Sees all nodes, calls each, takes all locks, and meets all nodes.
    fn check_all(&self, tier: &Tier<Sim>) {
        if self.is_dynamic() {
            self.retry(tier, "to see all nodes", || sees_all(tier, self.drawn.nodes));
        }
        let mut number = self.first + APART - 1000;
        for to in 0..self.drawn.nodes {
            let what = format!("to call node {to}");
            let answered = self.retry(tier, &what, || {
                number += 1;
                call_by_book(tier, &self.book, to, number).map_err(|error| WithSources(&error).to_string())
            });
            if let Some(Err(what)) = answered {
                self.violate(what);
            }
        }
        (0..LOCKS).for_each(|lock| self.check_lock(tier, lock));
        let members = self.drawn.nodes as u16;
        let meet = || match tier.barrier("calm", members) {
            // All that came are told so, and come again.
            Err(LockError::Refused { .. }) | Ok(()) => Ok(()),
            Err(error) => Err(WithSources(&error).to_string()),
        };
        self.retry(tier, "to meet all nodes", meet);
    }

    /// Takes a lock. Threads of other nodes may wait for it still.
    fn check_lock(&self, tier: &Tier<Sim>, lock: usize) {
        let (thread, meetings) = (self.thread(self.drawn.actors + 1), &self.meetings);
        let owner = || Owner::of(lock, tier, &self.drawn, meetings);
        let take = || {
            let (asked, asked_of) = (self.sim.time(), owner());
            meetings.asks(lock, thread, true, asked);
            let taken = tier.lock(lock_name(lock));
            let seen = self.sim.time();
            let guard = taken.map_err(|error| {
                meetings.goes_without(lock, thread, seen);
                WithSources(&error).to_string()
            })?;
            let (fence, is_poisoned, owner) = (guard.fence(), guard.is_poisoned(), asked_of.until(owner()));
            let checked = meetings.granted(lock, Granted { thread, asked, seen, fence, is_poisoned, owner });
            checked.unwrap_or_else(|what| self.violate(what));
            Ok(guard)
        };
        let Some(guard) = self.retry(tier, &format!("to take lock {lock}"), take) else { return };
        meetings.gives_back(lock, thread, self.sim.time());
        if let Err(error) = guard.unlock() {
            self.violate(format!("in calm lock {lock} is not given back: {}", WithSources(&error)));
        }
        meetings.gave_back(lock, thread, self.sim.time());
    }

    fn thread(&self, number: usize) -> Thread {
        Thread { node: self.node, life: self.first, number }
    }

    /// Repeats an attempt until it succeeds. Without result if a node stays outside.
    fn retry<T>(
        &self,
        tier: &Tier<Sim>,
        what: &str,
        mut attempt: impl FnMut() -> Result<T, String>,
    ) -> Option<T> {
        let done = retry(&self.sim, || {
            if self.is_dynamic() && self.views.is_stuck_with(tier) {
                return Ok(None);
            }
            attempt().map(Some)
        });
        done.inspect_err(|error| self.violate(format!("{what} fails in calm: {error}"))).ok().flatten()
    }
}

/// Plays a drawn run with a fixed list of nodes.
pub(crate) fn root(sim: &Sim, drawn: &DrawnTier, book: &CallLedger) {
    let stage = Stage::default();
    let meetings = Meetings::new(drawn.nodes, LOCKS, BARRIERS, drawn.is_undisturbed());
    let play = |sim, node, first, stage| -> Box<dyn FnOnce() + Send> {
        let (drawn, config, meetings) = (drawn.clone(), drawn.config_of(node), meetings.clone());
        let (times, views, book) = (FIXED_TIMES, Views::default(), book.clone());
        let part = Part { sim, drawn, config, node, times, meetings, views, book, stage, first };
        Box::new(move || part.play())
    };
    let killed = |node| meetings.killed(node, sim.time());
    Course::new(sim, drawn, book, &stage, &[CHECK]).direct(play, killed);
}

/// Plays a drawn run of nodes whose views come from a directory.
pub(crate) fn root_of_views(sim: &Sim, members: &DrawnMembers, book: &CallLedger) {
    let (stage, views, drawn) = (Stage::default(), Views::default(), &members.tier);
    let meetings = Meetings::of_views(drawn.nodes, LOCKS, BARRIERS);
    let times = Times { holds: drawn.think / 4, meets: 16 * drawn.think };
    let play = |sim, node, first, stage| -> Box<dyn FnOnce() + Send> {
        let (drawn, config, meetings) = (drawn.clone(), members.config_of(node), meetings.clone());
        let (views, book) = (views.clone(), book.clone());
        let part = Part { sim, drawn, config, node, times, meetings, views, book, stage, first };
        Box::new(move || part.play())
    };
    let settles = members.settles() + FOUND;
    let disturbed = |until: Nanos| meetings.disturbed(until.saturating_add(settles));
    let course = Course::new(sim, drawn, book, &stage, &[CHECK]);
    let course = Course { disturbed: &disturbed, ..course };
    members::direct(course, members, play, |node| meetings.killed(node, sim.time()));
}
