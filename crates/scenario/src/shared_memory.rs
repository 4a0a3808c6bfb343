//! Pages that the nodes of the memory tier share: nodes in one process each, on machines of their own, with a member of a
//! shared memory on each.

use crate::measured_run::{
    Counted, CourseError, MeasuredRun, Phase, cluster, cost_as, not_zero, record, spawn_at, thread,
};
use dunlin_app_memory::{Memory, MemoryConfig, MemoryError, PAGE, Push, Told};
use dunlin_fabric::{Fabric, Host, Nanos, Scheme, Signal, Task, WithSources};
use dunlin_fabric_sim::Sim;
use dunlin_rnic_model::{Parameter, Prices, Profile};
use dunlin_tier_node::{Peer, Tier, TierConfig};
use std::sync::{Arc, Mutex};

/// The operation of the first member that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// Reading a page without a copy, each by chance.
    ReadByChance,
    /// Reading a page without a copy, one after the other.
    ReadInSequence,
    /// Reading all pages in lists; the time is that of a page.
    Prefetch,
    /// Acquiring pages.
    Acquire,
    /// Releasing pages that were written.
    Release,
}

/// Times that the code of the memory does not account for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// None: a program calls `read` and `write`.
    Explicit,
    /// A fault for each page that is read, and LITE's mapping and checks for each step: one for a read or an acquisition,
    /// three for a release.
    Faults,
}

/// A load of one member, whose pages others have copies of.
#[derive(Clone, Debug)]
pub struct MemoryLoad {
    /// Profile of all machines.
    pub profile: String,
    /// Number of members, each on a machine of its own.
    pub members: u16,
    /// The measured operation.
    pub act: Act,
    /// Times beside those of the code.
    pub form: Form,
    /// Pages of the memory.
    pub pages: u32,
    /// Pages of an acquisition.
    pub acquired: u32,
    /// Bytes that are written to each of them.
    pub written: usize,
    /// Other members that have copies of the pages before each release.
    pub readers: usize,
    /// The members that hear of a release.
    pub told: Told,
    /// The bytes that a release pushes.
    pub push: Push,
    /// Operations before the measurement.
    pub warm_up: u64,
    /// Measured operations.
    pub measured: u64,
}

const LIMIT: Nanos = 60_000_000_000;
/// Tasks of a node, at most.
const TASKS: usize = 64;
const PAGE_BYTES: u64 = PAGE as u64;

type Opened = Result<Memory<Tier<Sim>>, MemoryError>;
type Members = Vec<Memory<Tier<Sim>>>;

impl MemoryLoad {
    /// Returns a load of four members, the first of which reads pages by chance.
    pub fn of(profile: &str) -> MemoryLoad {
        MemoryLoad {
            profile: profile.to_owned(),
            members: 4,
            act: Act::ReadByChance,
            form: Form::Explicit,
            pages: 1024,
            acquired: 10,
            written: PAGE,
            readers: 0,
            told: Told::All,
            push: Push::Whole,
            warm_up: 100,
            measured: 1_000,
        }
    }

    /// Runs the load; returns the measured operations with their times.
    ///
    /// # Errors
    /// Returns an error for an impossible load, or if the run does not end normally.
    pub fn run(&self, seed: u64) -> Result<Counted, CourseError> {
        not_zero([
            ("the number of members", self.members.into()),
            ("the number of acquired pages", self.acquired.into()),
            ("the number of measured operations", self.measured),
        ])?;
        let members = usize::from(self.members);
        let mut settings = cluster(members, members * TASKS + 1, LIMIT);
        let profile = Profile::built_in(&self.profile)?;
        let number = |parameter| profile.number(parameter) as Nanos;
        let (fault, step) = match self.form {
            Form::Explicit => (0, 0),
            Form::Faults => (number(Parameter::PageFault), number(Parameter::Indirection)),
        };
        let between = Prices::of(&profile).verbs().benchmark_loop_ns as Nanos;
        cost_as(&mut settings, profile, 1);
        settings.slack = 0;
        let load = self.clone();
        let play = move |sim: &Sim, course: &Arc<MeasuredRun<Counted>>| {
            load.play(sim, [fault, step, between], course)
        };
        Ok(MeasuredRun::run(settings, seed, play)?.0)
    }

    fn config(&self, member: u16) -> MemoryConfig {
        let (told, push) = (self.told, self.push);
        MemoryConfig { told, push, ..MemoryConfig::new("memory", self.pages, self.members, member) }
    }

    fn play(
        &self,
        sim: &Sim,
        prices: [Nanos; 3],
        course: &Arc<MeasuredRun<Counted>>,
    ) -> Result<(), CourseError> {
        let names: Vec<String> = (0..self.members).map(|node| format!("node-{node}")).collect();
        let peers = names.iter().map(|name| Peer::named(Scheme::Sim, name).map_err(thread));
        let peers: Vec<Peer> = peers.collect::<Result<_, _>>()?;
        let place: Arc<Mutex<Vec<Opened>>> = Arc::default();
        let mut sims = Vec::new();
        let mut opening = Vec::new();
        let memory = (4 * u64::from(self.pages) * PAGE_BYTES / u64::from(self.members)).next_power_of_two();
        for (machine, name) in names.iter().enumerate() {
            let own = sim.process_on(machine);
            let config = TierConfig { memory: memory.max(1 << 20), ..TierConfig::new(peers.clone(), name) };
            let tier = Tier::within(&own, config).map_err(thread)?;
            let (config, place) = (self.config(machine as u16), Arc::clone(&place));
            let open = move || {
                let opened = Memory::open(&tier, &config);
                place.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(opened);
            };
            opening.push(own.host().spawn("opening", Box::new(open)).map_err(thread)?);
            sims.push(own);
        }
        opening.into_iter().for_each(Task::join);
        let opened = std::mem::take(&mut *place.lock().unwrap_or_else(std::sync::PoisonError::into_inner));
        let mut members: Members = opened.into_iter().collect::<Result<_, _>>().map_err(failed)?;
        members.sort_by_key(|memory| memory.config().member);
        let start = sim.host().signal();
        let (load, own, of_thread) = (self.clone(), sims[0].clone(), Arc::clone(course));
        let body = move || load.measure(&own, &members, prices, &of_thread);
        let task = spawn_at(sim, &start, course, body)?;
        start.raise();
        task.join();
        Ok(())
    }

    fn measure(
        &self,
        sim: &Sim,
        members: &Members,
        prices: [Nanos; 3],
        course: &MeasuredRun<Counted>,
    ) -> Result<(), CourseError> {
        match self.act {
            Act::Acquire | Act::Release => self.write(sim, members, prices, course),
            _ => self.read(sim, &members[0], prices, course),
        }
    }

    /// Reads pages until enough were read.
    fn read(
        &self,
        sim: &Sim,
        memory: &Memory<Tier<Sim>>,
        [fault, step, between]: [Nanos; 3],
        course: &MeasuredRun<Counted>,
    ) -> Result<(), CourseError> {
        let (mut draw, mut at, mut page) = (1u64, 0u64, [0; PAGE]);
        let pages = u64::from(self.pages);
        while course.phase() != Phase::Over {
            if self.act == Act::Prefetch {
                let since = sim.time();
                sim.host().work(between + step);
                memory.prefetch(0..memory.size()).map_err(failed)?;
                sim.host().work(pages * fault);
                let each = (sim.time() - since) / pages;
                for _ in 0..pages {
                    record(course, (self.warm_up, self.measured), since, since + each);
                }
                memory.forget(0..memory.size()).map_err(failed)?;
                continue;
            }
            draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            at = if self.act == Act::ReadByChance { (draw >> 33) % pages } else { (at + 1) % pages };
            let range = at * PAGE_BYTES..(at + 1) * PAGE_BYTES;
            memory.forget(range.clone()).map_err(failed)?;
            let since = sim.time();
            sim.host().work(between + fault + step);
            memory.read(range.start, &mut page).map_err(failed)?;
            sim.host().work(0);
            record(course, (self.warm_up, self.measured), since, sim.time());
        }
        Ok(())
    }

    /// Acquires, writes and releases pages until enough was measured.
    fn write(
        &self,
        sim: &Sim,
        members: &Members,
        [_, step, between]: [Nanos; 3],
        course: &MeasuredRun<Counted>,
    ) -> Result<(), CourseError> {
        let Some((memory, others)) = members.split_first() else { return Ok(()) };
        let range = 0..u64::from(self.acquired) * PAGE_BYTES;
        memory.prefetch(range.clone()).map_err(failed)?;
        let mut round = 0u8;
        while course.phase() != Phase::Over {
            for reader in others.iter().take(self.readers) {
                reader.prefetch(range.clone()).map_err(failed)?;
            }
            let begun = sim.time();
            sim.host().work(between + step);
            let mut acquired = memory.acquire(range.clone()).map_err(failed)?;
            sim.host().work(0);
            let has = sim.time();
            round = round.wrapping_add(1);
            for page in 0..u64::from(self.acquired) {
                memory.write(page * PAGE_BYTES, &vec![round; self.written]).map_err(failed)?;
            }
            sim.host().work(0);
            let written = sim.time();
            sim.host().work(between + 3 * step);
            acquired.release().map_err(failed)?;
            sim.host().work(0);
            let (since, now) = if self.act == Act::Acquire { (begun, has) } else { (written, sim.time()) };
            record(course, (self.warm_up, self.measured), since, now);
        }
        Ok(())
    }
}

fn failed(error: MemoryError) -> CourseError {
    thread(WithSources(&error))
}
