//! Runs of the coordination of nodes: threads that call services of other nodes, take locks and meet at barriers, while
//! nodes are killed and cut off.

use super::coordinator::{BARRIERS, Coordinator, LOCKS, SERVICE, Servant, call_by_book, lock_name};
use super::meetings::{Meetings, Thread};
use super::{APART, CHECK, Course, OVER, Stage, retry};
use crate::book::CallLedger;
use crate::draw::tier::DrawnTier;
use dunlin_fabric::{Fabric, Host, Task, WithSources};
use dunlin_fabric_sim::{Random, Sim};
use dunlin_tier_node::{LockError, Tier};

/// The part of a node's first thread.
struct Part {
    sim: Sim,
    drawn: DrawnTier,
    node: usize,
    meetings: Meetings,
    book: CallLedger,
    stage: Stage,
    first: u64,
}

impl Part {
    fn violate(&self, what: String) {
        self.book.violate(format!("node {}: {what}", self.node));
    }

    fn play(self) {
        let tier = match Tier::within(&self.sim, self.drawn.config_of(self.node)) {
            Ok(tier) => tier,
            Err(error) => return self.violate(format!("it does not start: {}", WithSources(&error))),
        };
        let calls = match tier.register(SERVICE.0, SERVICE.1) {
            Ok(calls) => calls,
            Err(error) => return self.violate(format!("it does not serve: {}", WithSources(&error))),
        };
        self.meetings.begins(self.node, self.first);
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
                    thread: Thread { node: self.node, life: self.first, number },
                    drawn: self.drawn.clone(),
                    meetings: self.meetings.clone(),
                    book: self.book.clone(),
                    stage: self.stage.clone(),
                    random: random(1 + number as u64),
                    next: self.first + number as u64 * (APART / 16),
                };
                let body = Box::new(move || coordinator.play());
                self.sim.host().spawn(&format!("coordinator-{number}"), body).ok()
            })
            .collect();
        tasks.into_iter().for_each(Task::join);
        self.stage.wait(&self.sim, CHECK);
        self.check_all(&tier);
        self.stage.complete(CHECK);
        self.stage.wait(&self.sim, OVER);
        servant.into_iter().for_each(Task::join);
    }

    /// Calls all nodes, takes all locks, and meets all nodes.
    fn check_all(&self, tier: &Tier<Sim>) {
        let mut number = self.first + APART - 1000;
        for to in 0..self.drawn.nodes {
            let what = format!("to call node {to}");
            let answered = self.retry(&what, || {
                number += 1;
                call_by_book(tier, &self.book, to, number)
            });
            if let Some(Err(what)) = answered {
                self.violate(what);
            }
        }
        for lock in 0..LOCKS {
            let taken = self.retry(&format!("to take lock {lock}"), || tier.lock(lock_name(lock)));
            if let Some(Err(error)) = taken.map(|guard| guard.unlock()) {
                self.violate(format!("in calm lock {lock} is not given back: {}", WithSources(&error)));
            }
        }
        let members = self.drawn.nodes as u16;
        let meet = || match tier.barrier("calm", members) {
            // All that came are told so, and come again.
            Err(LockError::Refused { .. }) | Ok(()) => Ok(()),
            Err(error) => Err(error),
        };
        self.retry("to meet all nodes", meet);
    }

    /// Repeats an attempt until it succeeds.
    fn retry<T, E: std::error::Error>(&self, what: &str, attempt: impl FnMut() -> Result<T, E>) -> Option<T> {
        let done = retry(&self.sim, attempt);
        done.inspect_err(|error| self.violate(format!("{what} fails in calm: {}", WithSources(error)))).ok()
    }
}

/// Plays a drawn run.
pub(crate) fn root(sim: &Sim, drawn: &DrawnTier, book: &CallLedger) {
    let stage = Stage::default();
    let meetings = Meetings::new(drawn.nodes, LOCKS, BARRIERS, drawn.is_undisturbed());
    let play = |sim, node, first, stage| -> Box<dyn FnOnce() + Send> {
        let (drawn, meetings) = (drawn.clone(), meetings.clone());
        let part = Part { sim, drawn, node, meetings, book: book.clone(), stage, first };
        Box::new(move || part.play())
    };
    let killed = |node| meetings.killed(node, sim.time());
    Course::new(sim, drawn, book, &stage, &[CHECK]).direct(play, killed);
}
