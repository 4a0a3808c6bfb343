//! PageRank by the graph engine of the memory tier: nodes in one process each, on machines of their own, and the same
//! engine over sockets.

mod faults;
mod sockets;

use self::faults::FaultingSpace;
use self::sockets::{Network, SocketTier};
use crate::measured_run::{CourseError, MeasuredRun, cluster, cost_as, not_zero, thread};
use crate::stream::{self, Stream};
use dunlin_app_graph::{
    Edges, GraphError, Job, Outcome, PageRank, Rank, Watch, run, run_in_memory, run_shared, shared_pages,
};
use dunlin_app_memory::MemoryConfig;
use dunlin_fabric::{Fabric, Host, Nanos, Scheme, WithSources};
use dunlin_fabric_sim::Sim;
use dunlin_rnic_model::{Busy, Parameter, Prices, Profile, Sockets};
use dunlin_tier_node::{AnyTier, Peer, Tier, TierConfig};
use std::sync::Arc;
use std::time::Duration;

/// The way of the engine's messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Regions of the memory tier.
    Tier,
    /// Loads and stores of a memory that the nodes share over the tier. Pages are fetched in lists before they are loaded.
    SharedMemory,
    /// The same, with a fault and a READ of its own for each page that is loaded, as LITE-DSM has them.
    Faults,
    /// Messages over sockets.
    Sockets,
}

/// A job of PageRank over an R-MAT graph.
#[derive(Clone, Debug)]
pub struct GraphLoad {
    /// Profile of all machines.
    pub profile: String,
    /// Number of nodes, each on a machine of its own.
    pub nodes: usize,
    /// Threads of a node.
    pub threads: usize,
    /// The graph has `2^scale` vertices.
    pub scale: u32,
    /// Edges for each vertex.
    pub each: u32,
    /// The largest change of a rank that is not passed on.
    pub tolerance: f64,
    /// The way of the engine's messages.
    pub way: Way,
    /// Whether the work at edges and vertices takes time.
    pub works: bool,
    /// A stream of low priority at the same nodes, for messages over the tier; there is a further node then, to which it
    /// writes, too.
    pub beside: Option<Stream>,
}

/// The times of a job.
#[derive(Clone, Copy, Debug, Default)]
pub struct GraphTimes {
    /// The longest time of all steps of a node, in nanoseconds.
    pub stepping: Nanos,
    /// The number of steps.
    pub steps: u32,
    /// Requests of all NICs, from the beginning to the end of the job.
    pub requests: u64,
    /// The sum of the times for which the links from all NICs were busy, in nanoseconds.
    pub links: Nanos,
    /// The longest of these times.
    pub busiest: Nanos,
}

const LIMIT: Nanos = 600_000_000_000;
/// Tasks of a node beside its threads, at most.
const TASKS: usize = 64;
/// Misses of a core that are in flight at the same time: the line fill buffers of the E5-2620.
const MISSES: f64 = 10.0;
/// Lines of a vertex that are not in the caches: its bounds, sum and data.
const VERTEX_LINES: f64 = 2.0;

/// Charges the work of a program to the thread that does it.
struct Working {
    sim: Sim,
    line: f64,
}

impl Watch for Working {
    fn worked(&self, edges: u64, vertices: u64) {
        let lines = edges as f64 + VERTEX_LINES * vertices as f64;
        self.sim.host().work((lines * self.line) as Nanos);
    }
}

impl GraphLoad {
    /// Returns a load of four nodes with four threads each.
    pub fn of(profile: &str) -> GraphLoad {
        GraphLoad {
            profile: profile.to_owned(),
            nodes: 4,
            threads: 4,
            scale: 14,
            each: 16,
            tolerance: 1e-3,
            way: Way::Tier,
            works: true,
            beside: None,
        }
    }

    /// Runs the job.
    ///
    /// # Errors
    /// Returns an error for an impossible load, or if the run does not end normally.
    pub fn run(&self, seed: u64) -> Result<GraphTimes, CourseError> {
        not_zero([
            ("the number of nodes", self.nodes as u64),
            ("the number of threads", self.threads as u64),
        ])?;
        let machines = self.nodes + usize::from(self.beside.is_some());
        let threads = self.beside.map_or(0, |stream| stream.threads) + self.threads;
        let mut settings = cluster(machines, machines * (threads + TASKS), LIMIT);
        let profile = Profile::built_in(&self.profile)?;
        // A random read of memory for each edge and for each line of a vertex, many at the same time.
        let line = if self.works { profile.number(Parameter::MemoryLatency) / MISSES } else { 0.0 };
        let sockets = Sockets::of(&profile);
        let fault = profile.number(Parameter::PageFault) as Nanos;
        let between = Prices::of(&profile).verbs().benchmark_loop_ns as Nanos;
        cost_as(&mut settings, profile, 1);
        settings.slack = 0;
        let load = self.clone();
        let play = move |sim: &Sim, course: &Arc<MeasuredRun<GraphTimes>>| {
            let names: Vec<String> = (0..machines).map(|node| format!("node-{node}")).collect();
            let peers: Vec<Peer> = names
                .iter()
                .map(|name| Peer::named(Scheme::Sim, name).map_err(thread))
                .collect::<Result<_, _>>()?;
            let sims: Vec<Sim> = (0..machines).map(|machine| sim.process_on(machine)).collect();
            let edges = Arc::new(Edges::rmat(load.scale, load.each, seed).map_err(thread)?);
            let pages = shared_pages::<PageRank>(load.nodes as u16, edges.vertices());
            let tiers = || {
                let memory = match load.way {
                    // A node has its part of the pages, and a word for each.
                    Way::SharedMemory | Way::Faults => (u64::from(pages) * 8192).next_power_of_two(),
                    Way::Tier | Way::Sockets => load.job(0).memory::<PageRank>(edges.vertices()),
                };
                let memory = memory + load.beside.map_or(0, |_| stream::MEMORY);
                let start = |(sim, name): (&Sim, &String)| {
                    let paths = load.threads as u16;
                    let mut config = TierConfig { memory, paths, ..TierConfig::new(peers.clone(), name) };
                    if let Some(stream) = load.beside {
                        config.qos.policy = stream.policy;
                    }
                    Tier::within(sim, config).map_err(thread)
                };
                sims.iter().zip(&names).map(start).collect::<Result<Vec<_>, _>>()
            };
            match load.way {
                Way::Tier => {
                    let tiers = tiers()?;
                    let nodes: Vec<_> = sims.iter().cloned().zip(tiers.iter().cloned()).collect();
                    let beside = load.beside.map(|stream| stream.start(&nodes, load.nodes, between, course));
                    let high = tiers.iter().map(Stream::application).collect::<Result<_, _>>()?;
                    load.play(run, high, &sims, line, &edges, course)?;
                    beside.transpose()?.into_iter().for_each(stream::Running::end);
                }
                Way::SharedMemory => {
                    let in_memory = |tier: &Tier<Sim>, job: &Job, edges, program, watch| {
                        run_in_memory(tier, None, job, edges, program, watch)
                    };
                    load.play(in_memory, tiers()?, &sims, line, &edges, course)?;
                }
                Way::Faults => {
                    let faulting = move |tier: &Tier<Sim>, job: &Job, edges, program, watch| {
                        let config = MemoryConfig::new(job.name.clone(), pages, job.members, job.member);
                        let config = MemoryConfig { patience: job.patience, ..config };
                        let space = FaultingSpace::open(tier, &config, fault);
                        let space = Arc::new(
                            space.map_err(|source| GraphError::Shared { what: "the opening", source })?,
                        );
                        run_shared(tier.fabric().host(), &space, job, edges, program, watch)
                    };
                    load.play(faulting, tiers()?, &sims, line, &edges, course)?;
                }
                Way::Sockets => {
                    let network = Network::new(&sims, sockets);
                    let tiers = (0..load.nodes).map(|node| SocketTier::new(&network, &sims[node], node));
                    load.play(run, tiers.collect(), &sims, line, &edges, course)?;
                }
            }
            let mut times = course.gathered();
            for counters in (0..machines).filter_map(|machine| sim.nic_counters(machine, 0)) {
                times.requests += counters.requests_out;
                let named = Busy::PARTS.iter().zip(counters.busy.0);
                let link = named.filter(|(part, _)| **part == "link out").map(|(_, busy)| busy / 1000).sum();
                (times.links, times.busiest) = (times.links + link, times.busiest.max(link));
            }
            Ok(())
        };
        Ok(MeasuredRun::run(settings, seed, play)?.0)
    }

    fn job(&self, member: usize) -> Job {
        Job {
            members: self.nodes as u16,
            member: member as u16,
            threads: self.threads as u16,
            patience: Duration::from_secs(300),
            collects: false,
            ..Job::new("rank")
        }
    }

    fn play<T: AnyTier>(
        &self,
        engine: impl Fn(&T, &Job, Arc<Edges>, PageRank, Arc<dyn Watch>) -> Result<Outcome<Rank>, GraphError>
        + Clone
        + Send
        + 'static,
        tiers: Vec<T>,
        sims: &[Sim],
        line: f64,
        edges: &Arc<Edges>,
        course: &Arc<MeasuredRun<GraphTimes>>,
    ) -> Result<(), CourseError> {
        let mut tasks = Vec::new();
        for (member, (tier, sim)) in tiers.iter().cloned().zip(sims).take(self.nodes).enumerate() {
            let (job, edges, of_task) = (self.job(member), Arc::clone(edges), Arc::clone(course));
            let (program, watch) =
                (PageRank { tolerance: self.tolerance }, Arc::new(Working { sim: sim.clone(), line }));
            let engine = engine.clone();
            let body = move || {
                let result = engine(&tier, &job, edges, program, watch);
                of_task.ended(result.map_err(|error| thread(WithSources(&error))).map(|outcome| {
                    let mut times = of_task.gathered();
                    times.stepping = times.stepping.max(outcome.stepping.as_nanos() as Nanos);
                    times.steps = outcome.steps;
                }));
            };
            tasks.push(sim.host().spawn("member", Box::new(body)).map_err(thread)?);
        }
        tasks.into_iter().for_each(dunlin_fabric::Task::join);
        Ok(())
    }
}
