//! Runs of the memory tier: nodes whose threads share regions, which move and are freed, while nodes are killed and cut
//! off. The model knows the bytes that each read may return.

mod actor;
mod coordination;
mod coordinator;
mod meetings;
mod members;
mod model;
mod shared;
mod views;

pub(super) use coordination::{root as coordination_root, root_of_views as coordination_of_views_root};
pub(super) use members::root as members_root;

use super::book::CallLedger;
use super::draw::tier::{DrawnTier, TierAct, name};
use super::play::look_for_leaks;
use actor::{Actor, region_name};
use dunlin_fabric::{Fabric, Host, Nanos, Task, WithSources};
use dunlin_fabric_sim::{Random, Sim, SimKeeper};
use dunlin_tier::RecordError;
use dunlin_tier::message::Refusal;
use dunlin_tier_node::{JoinError, Lmr, MemorySource, RequestError, Rights, Tier};
use model::{Model, Who};
use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Distance between the operation numbers of two threads.
const APART: u64 = 1_000_000;
/// How long nodes and the director retry in calm what must succeed.
const PATIENCE: Nanos = 10_000_000_000;
/// The pause between two attempts, or two looks at the stage.
const PAUSE: Nanos = 200_000;

/// The pause between two looks at regions that were perhaps lost.
const LOOK_AGAIN: Nanos = 20_000_000;

/// The stage of the run, as all threads see it.
#[derive(Clone, Default)]
struct Stage {
    now: Arc<AtomicU64>,
    /// The nodes that have completed each stage.
    complete: Arc<[AtomicU64; 5]>,
    /// This life of a node is to leave.
    leaves: Arc<AtomicBool>,
}

/// Threads use regions.
const STORM: u64 = 0;
/// Threads end their last operations.
const QUIET: u64 = 1;
/// Nodes check all regions that must be there.
const CHECK: u64 = 2;
/// Their makers free them.
const FREE: u64 = 3;
/// Nodes look for memory that is left over.
const COUNT: u64 = 4;
/// Nodes end.
const OVER: u64 = 5;

impl Stage {
    /// Returns the stage as the next life of a node sees it.
    fn of_life(&self) -> Stage {
        Stage { leaves: Arc::default(), ..self.clone() }
    }

    fn is_storm(&self) -> bool {
        self.now.load(Ordering::Relaxed) == STORM && !self.has_left()
    }

    fn is_over(&self) -> bool {
        self.now.load(Ordering::Relaxed) == OVER || self.has_left()
    }

    fn has_left(&self) -> bool {
        self.leaves.load(Ordering::Relaxed)
    }

    /// Waits for a stage.
    fn wait(&self, sim: &Sim, stage: u64) {
        while self.now.load(Ordering::Relaxed) < stage {
            sim.host().sleep(sim.host().now() + PAUSE);
        }
    }

    fn complete(&self, stage: u64) {
        self.complete[stage as usize].fetch_add(1, Ordering::Relaxed);
    }
}

/// A node of the run, with the numbers of its operations.
struct NodeProcess {
    sim: Sim,
    task: Option<Task>,
    first: u64,
    stage: Stage,
}

/// Repeats an attempt until it succeeds, for [`PATIENCE`] at most.
fn retry<T, E>(sim: &Sim, mut attempt: impl FnMut() -> Result<T, E>) -> Result<T, E> {
    let host = sim.host();
    let until = host.now() + PATIENCE;
    loop {
        match attempt() {
            Err(_) if host.now() < until => host.sleep(host.now() + PAUSE),
            outcome => return outcome,
        }
    }
}

/// The part of a node's first thread.
struct NodePart {
    sim: Sim,
    drawn: DrawnTier,
    node: usize,
    model: Model,
    book: CallLedger,
    stage: Stage,
    first: u64,
    /// The keeper of the node's memory, if the run has keepers.
    keeper: Option<SimKeeper>,
    /// The free bytes of the node without regions, as its first life saw them.
    empty: Arc<AtomicU64>,
}

impl NodePart {
    fn violate(&self, what: String) {
        self.book.violate(format!("node {}: {what}", self.node));
    }

    /// Repeats an attempt until it succeeds.
    fn retry<T, E: Into<Box<dyn Error>>>(
        &self,
        what: &str,
        attempt: impl FnMut() -> Result<T, E>,
    ) -> Option<T> {
        match retry(&self.sim, attempt) {
            Ok(done) => Some(done),
            Err(error) => {
                self.violate(format!("{what} fails in calm: {}", WithSources(&*error.into())));
                None
            }
        }
    }

    fn play(self) {
        let tier = match self.begin() {
            Ok(tier) => tier,
            Err(error) => return self.violate(format!("it does not start: {}", WithSources(&error))),
        };
        let free = tier.free_memory() + tier.dirty_memory();
        let before = self.empty.fetch_max(free, Ordering::Relaxed).max(free);
        let actors = self.drawn.actors;
        let tasks: Vec<Task> = (0..actors)
            .filter_map(|actor| {
                let slot = self.node * actors + actor;
                let first = self.first + (actor as u64) * (APART / 16);
                let actor = Actor {
                    sim: self.sim.clone(),
                    tier: tier.clone(),
                    who: Who { node: self.node, slot },
                    drawn: self.drawn.clone(),
                    model: self.model.clone(),
                    book: self.book.clone(),
                    stage: self.stage.clone(),
                    random: Random::new(self.drawn.seed ^ first, 41),
                    next: first,
                };
                self.sim.host().spawn(&format!("actor-{slot}"), Box::new(move || actor.play())).ok()
            })
            .collect();
        tasks.into_iter().for_each(Task::join);
        self.stage.wait(&self.sim, QUIET);
        self.stage.complete(QUIET);
        self.stage.wait(&self.sim, CHECK);
        self.check_all(&tier);
        self.stage.complete(CHECK);
        self.stage.wait(&self.sim, FREE);
        self.free_all(&tier);
        self.stage.complete(FREE);
        self.stage.wait(&self.sim, COUNT);
        self.look_for_memory(&tier, before);
        self.stage.complete(COUNT);
        while !self.stage.is_over() {
            // Other nodes may still store them.
            self.free_found_again(&tier);
            self.sim.host().sleep(self.sim.host().now() + LOOK_AGAIN);
        }
    }

    /// Begins a life of the node.
    fn begin(&self) -> Result<Tier<Sim>, JoinError> {
        let mut config = self.drawn.config_of(self.node);
        let Some(keeper) = &self.keeper else { return Tier::within(&self.sim, config) };
        config.memory_source = Some(MemorySource::of(&self.sim));
        Tier::within_kept(&self.sim, config, Box::new(self.sim.kept_by(keeper)?))
    }

    /// Reads every region that must be there and that this node may read.
    fn check_all(&self, tier: &Tier<Sim>) {
        for (region, _) in self.model.all_that_must_be_there() {
            if !self.model.rights(region, self.node).contains(Rights::READ) {
                continue;
            }
            let mut bytes = Vec::new();
            let read = || -> Result<_, Box<dyn Error>> {
                // A handle may end with a revocation, or with a move, that began before the calm.
                let view = tier.map(region_name(region), Rights::READ)?;
                bytes = vec![0xee; view.len() as usize];
                let floors = self.model.begin_read(region, self.node, self.sim.time());
                view.read(0, &mut bytes)?;
                Ok(floors)
            };
            let Some(floors) = self.retry(&format!("to map and read region {region}"), read) else { return };
            let counter = bytes.first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
            let checked = self.model.check_read(region, &floors, 0, &bytes);
            if let Err(what) = checked.and_then(|()| self.model.check_counter(region, counter)) {
                self.violate(format!("in calm, {what}"));
            }
        }
    }

    /// Frees every region of this node.
    fn free_all(&self, tier: &Tier<Sim>) {
        for (region, creator) in self.model.all_that_must_be_there() {
            if creator != self.node {
                continue;
            }
            let what = format!("to map region {region} of its own");
            let Some(view) = self.retry(&what, || tier.map(region_name(region), Rights::ALL)) else { return };
            self.free(region, view);
        }
        // A free whose answer was lost may not have been executed.
        for (region, creator) in self.model.all_that_may_be_freed() {
            if creator != self.node {
                continue;
            }
            let map = || match tier.map(region_name(region), Rights::ALL) {
                Ok(view) => Ok(Some(view)),
                Err(RequestError::Refused { source: Refusal::Record(RecordError::NoSuch), .. }) => Ok(None),
                Err(error) => Err(error),
            };
            let what = format!("to map region {region}, which may be freed,");
            match self.retry(&what, map) {
                Some(Some(view)) => self.free(region, view),
                Some(None) => {}
                None => return,
            }
        }
    }

    /// Frees regions that were perhaps lost with a node, and are there: another node has the record, or the name again.
    fn free_found_again(&self, tier: &Tier<Sim>) {
        for region in self.model.all_doomed() {
            if let Ok(view) = tier.map(region_name(region), Rights::ALL) {
                // Tried again until the memory is free.
                let _ = view.free();
            }
        }
    }

    fn free(&self, region: usize, view: Lmr<Sim>) {
        self.model.begin_free(region, self.node);
        let freed = view.free();
        self.model.end_free(region, self.node, model::End::Done);
        if let Err(error) = freed {
            self.violate(format!("to free region {region} fails in calm: {}", WithSources(&error)));
        }
    }

    /// Checks that all memory is free.
    fn look_for_memory(&self, tier: &Tier<Sim>, before: u64) {
        self.retry("to take memory back", || {
            let left = before.saturating_sub(tier.free_memory() + tier.dirty_memory());
            if left == 0 {
                return Ok(());
            }
            self.free_found_again(tier);
            self.sim.host().sleep(self.sim.host().now() + LOOK_AGAIN);
            Err(format!("{left} bytes are left over"))
        });
    }
}

/// The steps of a run, and the nodes that have completed them.
struct Course<'a> {
    sim: &'a Sim,
    drawn: &'a DrawnTier,
    book: &'a CallLedger,
    stage: &'a Stage,
    /// The steps between the storm and the end.
    steps: &'a [u64],
    /// The keepers of the nodes' memory, if there are any.
    keepers: &'a [SimKeeper],
    /// Kills the directory, and begins the next one after a time.
    end_directory: &'a dyn Fn(Nanos),
    /// Notes that a disturbance lasts until a time, at least.
    disturbed: &'a dyn Fn(Nanos),
    /// Ends what the run has beside nodes.
    ended: &'a dyn Fn(),
    /// The memory that was registered before the run.
    registered: u64,
}

impl<'a> Course<'a> {
    /// A run without keepers and without a directory.
    fn new(
        sim: &'a Sim,
        drawn: &'a DrawnTier,
        book: &'a CallLedger,
        stage: &'a Stage,
        steps: &'a [u64],
    ) -> Self {
        let registered = sim.registered();
        Course {
            sim,
            drawn,
            book,
            stage,
            steps,
            keepers: &[],
            end_directory: &|_| (),
            disturbed: &|_| (),
            ended: &|| (),
            registered,
        }
    }

    fn with(self, keepers: &'a [SimKeeper]) -> Self {
        Course { keepers, ..self }
    }

    /// Directs a run: starts the nodes, disturbs them as it was drawn, and leads them through the steps in calm.
    ///
    /// `play` returns the part of a node's first thread, for a process, the number of the node, that of its first
    /// operation, and the stage. `killed` notes that a node was killed with its threads.
    fn direct(
        &self,
        play: impl Fn(Sim, usize, u64, Stage) -> Box<dyn FnOnce() + Send>,
        mut killed: impl FnMut(usize),
    ) {
        let Course { sim, drawn, book, stage, steps, keepers, end_directory, disturbed, ended, registered } =
            *self;
        let mut incarnations = 0;
        let mut start_node = |node: usize| {
            let process = sim.process_on(node);
            incarnations += 1;
            let first = incarnations * APART;
            let stage = stage.of_life();
            let part = play(process.clone(), node, first, stage.clone());
            let task = process.host().spawn(&name(node), part).ok();
            NodeProcess { sim: process, task, first, stage }
        };
        let mut nodes: Vec<NodeProcess> = (0..drawn.nodes).map(&mut start_node).collect();
        let start = sim.time();
        let sleep = |until: Nanos| sim.host().sleep(sim.host().now() + until.saturating_sub(sim.time()));
        let mut calm_from = start + drawn.lasts;
        for (at, act) in &drawn.acts {
            sleep(start + at);
            sim.tell(|| format!("the director: {act:?}"));
            disturbed(sim.time() + act.lasts());
            match *act {
                TierAct::Crash { node, back_after } => {
                    let gone = &mut nodes[node];
                    gone.sim.kill();
                    book.killed();
                    book.abandon(gone.first, gone.first + APART);
                    killed(node);
                    sleep(sim.time() + back_after);
                    // A killed thread may go on for an instant, until it next waits.
                    killed(node);
                    nodes[node] = start_node(node);
                }
                TierAct::CutOff { node, lasts } => {
                    sim.cut_off(node, lasts);
                    calm_from = calm_from.max(sim.time() + lasts);
                }
                TierAct::Leave { node, back_after } => {
                    let leaving = &mut nodes[node];
                    leaving.stage.leaves.store(true, Ordering::Relaxed);
                    leaving.task.take().into_iter().for_each(Task::join);
                    leaving.sim.kill();
                    book.abandon(leaving.first, leaving.first + APART);
                    sleep(sim.time() + back_after);
                    nodes[node] = start_node(node);
                }
                TierAct::EndDirectory { back_after } => end_directory(back_after),
            }
            disturbed(sim.time());
        }
        sleep(calm_from);
        sim.tell(|| "the director: calm".to_owned());
        for number in steps {
            stage.now.store(*number, Ordering::Relaxed);
            // Nodes wait for each other: none frees a region that another one still checks.
            let complete = || stage.complete[*number as usize].load(Ordering::Relaxed) == drawn.nodes as u64;
            let until = sim.time() + drawn.patience() + 2 * PATIENCE;
            while !complete() && sim.time() < until {
                sim.host().sleep(sim.host().now() + PAUSE);
            }
        }
        stage.now.store(OVER, Ordering::Relaxed);
        for node in &mut nodes {
            if let Some(task) = node.task.take() {
                task.join();
            }
        }
        drop(nodes);
        keepers.iter().for_each(SimKeeper::end);
        ended();
        look_for_leaks(sim, registered, book);
    }
}

/// Plays a drawn run of memory.
pub(super) fn root(sim: &Sim, drawn: &DrawnTier, book: &CallLedger) {
    let (model, stage) = (Model::default(), Stage::default());
    let count = if drawn.is_kept { drawn.nodes } else { 0 };
    let keepers: Vec<SimKeeper> = (0..count).map(|_| SimKeeper::new()).collect();
    let empty: Vec<Arc<AtomicU64>> = (0..drawn.nodes).map(|_| Arc::default()).collect();
    let play = |sim, node, first, stage| -> Box<dyn FnOnce() + Send> {
        let (drawn, model) = (drawn.clone(), model.clone());
        let (keeper, empty) = (keepers.get(node).cloned(), Arc::clone(&empty[node]));
        let book = book.clone();
        let part = NodePart { sim, drawn, node, model, book, stage, first, keeper, empty };
        Box::new(move || part.play())
    };
    let killed = |node: usize| {
        model.killed(node, node * drawn.actors..(node + 1) * drawn.actors, drawn.is_kept);
    };
    let steps = &[QUIET, CHECK, FREE, COUNT];
    Course::new(sim, drawn, book, &stage, steps).with(&keepers).direct(play, killed);
}
