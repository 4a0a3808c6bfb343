//! Runs of membership: nodes whose views come from a directory call each other, read each other's regions, and share
//! [regions whose records several of them keep](super::shared), while they join, leave, die and are cut off, and while the
//! directory ends and begins again.

use super::coordinator::{SERVICE, Servant, call_by_book};
use super::shared::SharedRegions;
use super::views::{Views, sees_all};
use super::{APART, CHECK, Course, FREE, OVER, Stage, retry};
use crate::book::CallLedger;
use crate::draw::members::DrawnMembers;
use crate::draw::tier::name;
use dunlin_fabric::{Fabric, Host, Nanos, Task, WithSources};
use dunlin_fabric_sim::{Random, Sim};
use dunlin_tier::RecordError;
use dunlin_tier::message::Refusal;
use dunlin_tier_node::{DirectoryServer, RequestError, Rights, Spec, Tier};
use std::cell::RefCell;
use std::error::Error;

/// The pause between two looks at the view.
const LOOK: Nanos = 1_000_000;

/// The name of the region that a life of a node makes.
fn region_of(life: u64) -> String {
    format!("life/{life}")
}

/// The part of a life of a node.
#[derive(Clone)]
struct Part {
    sim: Sim,
    drawn: DrawnMembers,
    node: usize,
    views: Views,
    shared: SharedRegions,
    book: CallLedger,
    stage: Stage,
    /// The number of the first operation, and of the life.
    first: u64,
}

impl Part {
    fn violate(&self, what: String) {
        self.sim.tell(|| format!("life {}: {what}", self.first));
        self.book.violate(format!("node {}: {what}", self.node));
    }

    fn sees(&self, tier: &Tier<Sim>) {
        let view = tier.view();
        match self.views.sees(self.first, &view) {
            Ok(false) => {}
            Ok(true) => self.sim.tell(|| format!("life {} of node {} has {view:?}", self.first, self.node)),
            Err(what) => self.violate(what),
        }
    }

    /// Repeats an attempt until it succeeds.
    fn retry<T, E: Into<Box<dyn Error>>>(
        &self,
        what: &str,
        attempt: impl FnMut() -> Result<T, E>,
    ) -> Option<T> {
        let done = retry(&self.sim, attempt).map_err(Into::into);
        done.inspect_err(|error| self.violate(format!("{what} fails in calm: {}", WithSources(&**error))))
            .ok()
    }

    fn play(self) {
        // Without a directory, or with one that takes the last life for alive, it waits.
        let begin = || Tier::within(&self.sim, self.drawn.config_of(self.node));
        let Some(tier) = self.retry("to join", begin) else { return };
        let served = || tier.register(SERVICE.0, SERVICE.1);
        let Some(calls) = self.retry("to serve", served) else { return };
        let spec = Spec::here().named(region_of(self.first)).grant_anyone(Rights::READ);
        let made = || match self.views.is_stuck_with(&tier) {
            true => Ok(None),
            false => tier.malloc(64, spec.clone()).map(Some),
        };
        let Some(made) = self.retry("to make its region", made) else { return };
        let Some(region) = made else {
            for step in [CHECK, FREE] {
                self.stage.wait(&self.sim, step);
                self.stage.complete(step);
            }
            return self.stage.wait(&self.sim, OVER);
        };
        if let Err(error) = region.write(0, &self.first.to_le_bytes()) {
            return self.violate(format!("it cannot write its own bytes: {error}"));
        }
        self.views.serves(self.node, self.first);
        let free = tier.free_memory() + tier.dirty_memory();
        let random = |number: u64| Random::new(self.drawn.tier.seed ^ (self.first + number), 46);
        let (sim, book, stage) = (self.sim.clone(), self.book.clone(), self.stage.clone());
        let servant = Servant { sim, calls, book, stage, random: random(0) };
        let servant = self.sim.host().spawn("servant", Box::new(move || servant.play())).ok();
        let actors: Vec<Task> = (0..self.drawn.tier.actors as u64)
            .filter_map(|number| {
                let (part, tier, random) = (self.clone(), tier.clone(), random(1 + number));
                let body = Box::new(move || part.act(&tier, random, number));
                self.sim.host().spawn(&format!("member-{number}"), body).ok()
            })
            .collect();
        while self.stage.is_storm() {
            self.sees(&tier);
            self.sim.host().sleep(self.sim.host().now() + LOOK);
        }
        actors.into_iter().for_each(Task::join);
        if self.stage.has_left() {
            self.views.gone(self.node);
        } else {
            self.stage.wait(&self.sim, CHECK);
            self.check_all(&tier);
            self.stage.complete(CHECK);
            self.stage.wait(&self.sim, FREE);
            self.look_for_memory(&tier, free);
            // Nothing has changed since all nodes saw all others.
            self.sees(&tier);
            let last = self.views.last();
            if last != Some(tier.view().epoch) && !self.views.is_stuck() {
                self.violate(format!(
                    "its view is that of {:?}, and the last is of {last:?}",
                    tier.view().epoch
                ));
            }
            self.stage.complete(FREE);
            self.stage.wait(&self.sim, OVER);
        }
        servant.into_iter().for_each(Task::join);
        drop(region);
    }

    /// Checks that all memory is free but that of the own region, also that of regions whose nodes have died.
    fn look_for_memory(&self, tier: &Tier<Sim>, before: u64) {
        if self.views.is_stuck() {
            return;
        }
        self.retry("to take memory back", || match tier.free_memory() + tier.dirty_memory() {
            now if now >= before => Ok(()),
            now => Err(format!("{} bytes are left over", before - now)),
        });
    }

    /// Calls nodes, and reads their regions, until the stage changes.
    fn act(&self, tier: &Tier<Sim>, mut random: Random, number: u64) {
        let mut next = self.first + (1 + number) * (APART / 16);
        while self.stage.is_storm() {
            let to = random.below(self.drawn.tier.nodes as u64) as usize;
            if random.one_in(3) {
                let done = self.shared.act(tier, &mut random, self.drawn.tier.nodes);
                done.into_iter().for_each(|what| self.violate(what));
                self.sim.host().sleep(self.sim.host().now() + random.below(self.drawn.tier.think));
                continue;
            }
            let begun = self.sim.time();
            if random.one_in(2) {
                if let Ok(Err(what)) = call_by_book(tier, &self.book, to, next) {
                    self.violate(what);
                }
                next += 1;
            } else if let Err(Some(wrong)) = self.read(tier, to) {
                // The node may be gone, or the way to it; its bytes are right if they are there.
                self.violate(wrong);
            }
            let took = self.sim.time() - begun;
            if took > self.drawn.tier.patience() {
                self.violate(format!("an operation with node {to} took {took} ns"));
            }
            self.sim.host().sleep(self.sim.host().now() + random.below(self.drawn.tier.think));
        }
    }

    /// Reads the region of the life of a node that serves. The error is a violation, or `None` where none is there to
    /// read.
    fn read(&self, tier: &Tier<Sim>, of: usize) -> Result<(), Option<String>> {
        let life = self.views.life_of(of).ok_or(None)?;
        self.sees(tier);
        let known = self.views.known_to_all(&name(of));
        let view = tier.map(region_of(life), Rights::READ).map_err(|error| {
            // A home that does not know all names says so. A node that was declared dead has lost its names until all nodes
            // know that it is back.
            let is_absent =
                matches!(error, RequestError::Refused { source: Refusal::Record(RecordError::NoSuch), .. });
            if !is_absent || known.is_none() {
                return None;
            }
            self.sim.host().sleep(self.sim.host().now() + 5 * LOOK);
            self.sees(tier);
            let lives = self.views.life_of(of) == Some(life) && self.views.known_to_all(&name(of)) == known;
            lives.then(|| format!("life {life} of node {of} serves, and its region is absent"))
        })?;
        let mut word = [0; 8];
        view.read(0, &mut word).map_err(|_| None)?;
        match u64::from_le_bytes(word) == life {
            true => Ok(()),
            false => Err(Some(format!("the region of life {life} has the word {word:?}"))),
        }
    }

    /// Sees all nodes alive, calls each, and reads the region of each by its name.
    fn check_all(&self, tier: &Tier<Sim>) {
        let nodes = self.drawn.tier.nodes;
        self.retry("to see all nodes", || {
            self.sees(tier);
            if self.views.is_stuck_with(tier) { Ok(()) } else { sees_all(tier, nodes) }
        });
        if self.views.is_stuck() {
            return;
        }
        self.retry("to free what is shared", || self.shared.check(tier));
        let mut number = self.first + APART - 1000;
        for to in 0..nodes {
            let answered = self.retry(&format!("to call node {to}"), || {
                number += 1;
                call_by_book(tier, &self.book, to, number)
            });
            if let Some(Err(what)) = answered {
                self.violate(what);
            }
            self.retry(&format!("to read the region of node {to}"), || {
                self.read(tier, to).map_err(|wrong| wrong.unwrap_or_else(|| "it is not there".to_owned()))
            });
        }
    }
}

/// Plays a drawn run.
pub(crate) fn root(sim: &Sim, drawn: &DrawnMembers, book: &CallLedger) {
    let (stage, views, shared) = (Stage::default(), Views::default(), SharedRegions::default());
    let play = |sim, node, first, stage| -> Box<dyn FnOnce() + Send> {
        let (drawn, views, shared, book) = (drawn.clone(), views.clone(), shared.clone(), book.clone());
        let part = Part { sim, drawn, node, views, shared, book, stage, first };
        Box::new(move || part.play())
    };
    let course = Course::new(sim, &drawn.tier, book, &stage, &[CHECK, FREE]);
    direct(course, drawn, play, |node| views.gone(node));
}

/// Directs a run with a directory.
pub(super) fn direct(
    course: Course<'_>,
    drawn: &DrawnMembers,
    play: impl Fn(Sim, usize, u64, Stage) -> Box<dyn FnOnce() + Send>,
    killed: impl FnMut(usize),
) {
    let Course { sim, book, .. } = course;
    let begin = || {
        let process = sim.process_on(drawn.tier.nodes);
        let address = drawn.tier.config.directory.clone();
        let served =
            address.map(|address| DirectoryServer::serve(&process, &address, drawn.directory.clone()));
        if let Some(Err(error)) = &served {
            book.violate(format!("the directory does not begin: {}", WithSources(error)));
        }
        (process, served.and_then(Result::ok))
    };
    let directory = RefCell::new(Some(begin()));
    let end_directory = |back_after: Nanos| {
        if let Some((process, server)) = directory.borrow_mut().take() {
            process.kill();
            // Nothing of a killed process runs any more.
            let _ = std::mem::ManuallyDrop::new(server);
            book.killed();
        }
        sim.host().sleep(sim.host().now() + back_after);
        *directory.borrow_mut() = Some(begin());
    };
    let ended = || drop(directory.borrow_mut().take());
    Course { end_directory: &end_directory, ended: &ended, ..course }.direct(play, killed);
}
