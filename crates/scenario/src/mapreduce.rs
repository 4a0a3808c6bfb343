//! Word counts by the MapReduce of the memory tier: nodes in one process each, on machines of their own, and the same
//! engine on threads of one process.

use crate::measured_run::{CourseError, MeasuredRun, cluster, cost_as, not_zero, thread};
use dunlin_app_mapreduce::{
    Input, Job, MapReduceError, Master, Outcome, Phase, Split, Watch, WordCount, run_alone, work_for,
};
use dunlin_fabric::{Fabric, Host, Nanos, Scheme, WithSources};
use dunlin_fabric_sim::Sim;
use dunlin_rnic_model::{Parameter, Profile};
use dunlin_tier_node::{Peer, Tier, TierConfig};
use std::sync::Arc;
use std::time::Duration;

/// Where a job runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// On nodes of the memory tier.
    Tier,
    /// On threads of one process, each with an index of its own.
    Alone,
    /// The same, with the price of one index for all threads.
    OneIndex,
}

/// A job that counts words.
#[derive(Clone, Debug)]
pub struct MapReduceLoad {
    /// Profile of all machines.
    pub profile: String,
    /// Where the job runs.
    pub place: Place,
    /// Number of nodes, each on a machine of its own.
    pub nodes: usize,
    /// Threads of all nodes together.
    pub threads: usize,
    /// Map tasks.
    pub splits: u32,
    /// Words of a map task.
    pub words: u32,
    /// Different words.
    pub different: u32,
    /// Partitions of the keys.
    pub partitions: u32,
}

/// The times of a job's phases in nanoseconds: map, reduce, merge.
#[derive(Clone, Copy, Debug, Default)]
pub struct MapReduceTimes {
    /// The phases.
    pub phases: [Nanos; 3],
}

const LIMIT: Nanos = 600_000_000_000;
/// Tasks of a node beside its threads, at most.
const TASKS: usize = 64;
/// Bytes of a word with the blank behind it, and of an entry of a sorted run: lengths, word, count.
const WORD: u64 = 8;
const ENTRY: u64 = 8 + WORD + 8;

/// Words by chance: the Nth is about N times rarer than the first.
struct Words {
    splits: u32,
    words: u32,
    different: u32,
}

impl Input for Words {
    fn splits(&self) -> u32 {
        self.splits
    }

    fn read(
        &self,
        split: u32,
        buffer: &mut Vec<u8>,
        map: &mut dyn FnMut(Split<'_>),
    ) -> Result<(), MapReduceError> {
        buffer.clear();
        let mut state = u64::from(split).wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(1);
        for _ in 0..self.words {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let chance = (state >> 11) as f64 / (1u64 << 53) as f64;
            let number = f64::from(self.different).powf(chance) as u32;
            buffer.extend_from_slice(format!("{number:07x} ").as_bytes());
        }
        map(Split { source: "words", offset: 0, bytes: buffer });
        Ok(())
    }

    fn fingerprint(&self) -> String {
        format!("{} {} {}", self.splits, self.words, self.different)
    }
}

/// Charges the work of tasks to the thread that does it.
#[derive(Clone)]
struct Working {
    sim: Sim,
    /// Nanoseconds of a byte of the input, and of a byte of sorted runs.
    mapped: f64,
    read: f64,
}

impl Watch for Working {
    fn worked(&self, phase: Phase, bytes: u64) {
        let price = if phase == Phase::Map { self.mapped } else { self.read };
        self.sim.host().work((bytes as f64 * price) as Nanos);
    }
}

impl MapReduceLoad {
    /// Returns a load of eight threads on two nodes.
    pub fn of(profile: &str) -> MapReduceLoad {
        MapReduceLoad {
            profile: profile.to_owned(),
            place: Place::Tier,
            nodes: 2,
            threads: 8,
            splits: 64,
            words: 16_384,
            different: 100_000,
            partitions: 8,
        }
    }

    /// Runs the job.
    ///
    /// # Errors
    /// Returns an error for an impossible load, or if the run does not end normally.
    pub fn run(&self, seed: u64) -> Result<MapReduceTimes, CourseError> {
        not_zero([
            ("the number of nodes", self.nodes as u64),
            ("the number of threads", self.threads as u64),
        ])?;
        let mut settings = cluster(self.nodes, self.nodes * TASKS + self.threads, LIMIT);
        let profile = Profile::built_in(&self.profile)?;
        // A word is looked up in a table that is larger than the caches, and so is an entry that is read, compared and
        // written.
        let memory = profile.number(Parameter::MemoryLatency);
        let others = match self.place {
            Place::OneIndex => (self.threads - 1) as f64 / self.threads as f64,
            Place::Tier | Place::Alone => 0.0,
        };
        let taken = others * profile.number(Parameter::PriceTakeLine);
        let prices = ((memory + taken) / WORD as f64, memory / ENTRY as f64);
        cost_as(&mut settings, profile, 1);
        settings.slack = 0;
        let load = self.clone();
        let play = move |sim: &Sim, course: &Arc<MeasuredRun<MapReduceTimes>>| {
            let outcome = match load.place {
                Place::Tier => load.on_nodes(sim, prices)?,
                Place::Alone | Place::OneIndex => {
                    let host = sim.host();
                    let watch = Arc::new(load.working(sim, prices));
                    let threads = load.threads as u16;
                    run_alone(host, &load.job(), WordCount, load.words(), threads, watch, |_, _| true)
                        .map_err(|error| thread(WithSources(&error)))?
                }
            };
            let phases = [outcome.mapping, outcome.reducing, outcome.merging];
            course.gathered().phases = phases.map(|time| time.as_nanos() as Nanos);
            Ok(())
        };
        Ok(MeasuredRun::run(settings, seed, play)?.0)
    }

    fn job(&self) -> Job {
        Job { partitions: self.partitions, lease: Duration::from_secs(100), ..Job::new("words") }
    }

    fn words(&self) -> Words {
        Words { splits: self.splits, words: self.words, different: self.different }
    }

    fn working(&self, sim: &Sim, (mapped, read): (f64, f64)) -> Working {
        Working { sim: sim.clone(), mapped, read }
    }

    fn on_nodes(&self, sim: &Sim, prices: (f64, f64)) -> Result<Outcome, CourseError> {
        let names: Vec<String> = (0..self.nodes).map(|node| format!("node-{node}")).collect();
        let peers = names.iter().map(|name| Peer::named(Scheme::Sim, name).map_err(thread));
        let peers: Vec<Peer> = peers.collect::<Result<_, _>>()?;
        let threads = (self.threads / self.nodes).max(1) as u16;
        let sims: Vec<Sim> = (0..self.nodes).map(|machine| sim.process_on(machine)).collect();
        let start = |(sim, name): (&Sim, &String)| {
            let config =
                TierConfig { memory: 64 << 20, paths: threads, ..TierConfig::new(peers.clone(), name) };
            Tier::within(sim, config).map_err(thread)
        };
        let tiers: Vec<Tier<Sim>> = sims.iter().zip(&names).map(start).collect::<Result<_, _>>()?;
        let job = self.job();
        let master = Master::start(&tiers[0], &job, &WordCount, &self.words(), Arc::new(()));
        let master = master.map_err(|error| thread(WithSources(&error)))?;
        let mut tasks = Vec::new();
        for (tier, sim) in tiers.iter().cloned().zip(&sims) {
            let (job, words, watch) = (job.clone(), self.words(), Arc::new(self.working(sim, prices)));
            // The master tells of failures.
            let body = move || drop(work_for(&tier, &job, WordCount, words, threads, watch));
            tasks.push(sim.host().spawn("workers", Box::new(body)).map_err(thread)?);
        }
        let outcome = master.finish(|_, _| true);
        tasks.into_iter().for_each(dunlin_fabric::Task::join);
        outcome.map_err(|error| thread(WithSources(&error)))
    }
}
