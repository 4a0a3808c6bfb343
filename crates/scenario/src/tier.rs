//! Threads that use the memory tier: of the processes that the nodes are in, or of processes that attach to the node of
//! their machine. Each node has a machine of its own.

use crate::measured_run::{
    Counted, CourseError, MeasuredRun, Phase, cluster, cost_as, not_zero, record, spawn_at, thread,
};
use dunlin_fabric::{Address, Fabric, Host, Nanos, Scheme, Signal, Task, Work};
use dunlin_fabric_sim::{Pages, Random, Sim, SimSignal};
use dunlin_rnic_model::{Parameter, Prices, Profile};
use dunlin_rpc::plan::Plan;
use dunlin_tier_client::AttachConfig;
use dunlin_tier_node::{
    AnyGuard, AnyLmr, AnyTier, Guard, Lmr, Peer, ProcessConfig, ProcessLimits, ProcessServer, Rights, Spec,
    Tier, TierConfig,
};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The operation that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// `write` at a random place of a random region of another node.
    Write,
    /// `malloc` of a region on the own node.
    Malloc,
    /// `map` of a region on the own node.
    Map,
    /// `free` of a region on the own node.
    Free,
    /// `malloc` of a region on another node.
    MallocThere,
    /// `memset` of a region on another node.
    Set,
    /// `write` of the value to all bytes of a region on another node.
    SetByWrite,
    /// `memcpy` from another node to a third.
    Copy,
    /// `memcpy` between two regions of another node.
    CopyThere,
    /// `memmove` within a region of another node, by half of the length.
    Move,
    /// Taking a free lock of the last node.
    Lock,
    /// Taking and giving back one lock of the last node, by all threads.
    Contend,
}

/// The process of the threads that use a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Process {
    /// The node is in it.
    OfNode,
    /// It attaches to the node of its machine, within which processors copy.
    Attached,
}

/// Time of an operation beside what the nodes' code and the network account for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extra {
    /// None.
    None,
    /// The wait for the two lines of a handle, where the handles fill more than the core's cache.
    HandleLines,
    /// The costs that LITE's paper states for calls in the kernel: mapping and checks.
    Kernel,
    /// The costs that LITE's paper states for calls from user space: mapping and checks, and crossings.
    User,
}

/// Bytes of a handle's entry in the table, and of its list of pieces.
const HANDLE_BYTES: u64 = 128;
/// A core's second-level cache, in bytes.
const CORE_CACHE: u64 = 256 << 10;
/// The last-level cache, in bytes: of the E5-2620.
const LAST_CACHE: u64 = 15 << 20;

/// Waits of a thread, in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Pauses {
    /// In each operation.
    extra: Nanos,
    /// Between two operations.
    between: Nanos,
}

/// A load of the memory tier.
#[derive(Clone, Debug)]
pub struct TierLoad {
    /// Profile of all machines.
    pub profile: String,
    /// Number of nodes, each on a machine of its own.
    pub nodes: usize,
    /// Nodes whose threads operate; each uses the memory of all others.
    pub active: usize,
    /// Threads of a process.
    pub threads: usize,
    /// Paths of a node (K).
    pub paths: u16,
    /// Regions that a process has on each other node.
    pub regions: u32,
    /// Bytes of a region.
    pub region_bytes: u64,
    /// Longest piece of a region, in bytes.
    pub piece: u32,
    /// Longest request to a NIC, in bytes; 0 for the tier's default.
    pub step: u32,
    /// Pages of all registered memory.
    pub pages: Pages,
    /// The operation; all but WRITE are of one thread, on regions of `bytes` bytes.
    pub act: Act,
    /// The processes of the threads that write.
    pub process: Process,
    /// Processes of an active node, each with as many threads and regions; more than one attach to it.
    pub processes: usize,
    /// Threads of another attached process of each active node that write all the time, without being measured, and the
    /// bytes of their operations.
    pub beside: (usize, u32),
    /// Bytes of an operation.
    pub bytes: u32,
    /// Time of the calling processor for each operation that the nodes' code does not account for.
    pub extra: Extra,
    /// Operations of all threads before the measurement.
    pub warm_up: u64,
    /// Measured operations of all threads.
    pub measured: u64,
}

/// Virtual time after which a run is aborted, in nanoseconds.
const LIMIT: Nanos = 600_000_000_000;
/// Tasks of a node beside its loading threads, at most.
const TASKS: usize = 64;
/// Tasks of a process beside its loading threads, at most.
const TASKS_OF_PROCESS: usize = 8;
/// Least memory of a node, in bytes.
const LEAST_MEMORY: u64 = 1 << 20;

impl TierLoad {
    /// Returns a load of one thread that writes 64 bytes to one region of 1 MiB on another node.
    pub fn of(profile: &str) -> TierLoad {
        TierLoad {
            profile: profile.to_owned(),
            nodes: 2,
            active: 1,
            threads: 1,
            paths: 1,
            regions: 1,
            region_bytes: 1 << 20,
            piece: 4 << 20,
            step: 0,
            pages: Pages::Bytes(2 << 20),
            act: Act::Write,
            process: Process::OfNode,
            processes: 1,
            beside: (0, 0),
            bytes: 64,
            extra: Extra::None,
            warm_up: 200,
            measured: 3_000,
        }
    }

    /// Runs the load; returns the measured operations with their times.
    ///
    /// # Errors
    /// Returns an error for an impossible load, or if the run does not end normally.
    pub fn run(&self, seed: u64) -> Result<Counted, CourseError> {
        not_zero([
            ("the number of active nodes", self.active as u64),
            ("the number of threads", self.threads as u64),
            ("the number of processes", self.processes as u64),
            ("the number of paths", self.paths.into()),
            ("the number of regions", self.regions.into()),
            ("the length of an operation", self.bytes.into()),
            ("the number of measured operations", self.measured),
            ("the number of other nodes", self.nodes.saturating_sub(1) as u64),
            ("the room of a region", self.region_bytes.saturating_sub(u64::from(self.bytes) - 1)),
        ])?;
        let threads = self.processes * (self.threads + TASKS_OF_PROCESS) + self.beside.0 + TASKS;
        let mut settings = cluster(self.nodes, self.nodes * threads, LIMIT);
        let profile = Profile::built_in(&self.profile)?;
        let pauses = Pauses {
            extra: self.extra_ns(&profile),
            between: Prices::of(&profile).verbs().benchmark_loop_ns as Nanos,
        };
        cost_as(&mut settings, profile, 1);
        // Requests of several threads reach a NIC in order.
        settings.slack = 0;
        let load = self.clone();
        let play =
            move |sim: &Sim, course: &Arc<MeasuredRun<Counted>>| load.play(sim, (seed, pauses), course);
        Ok(MeasuredRun::run(settings, seed, play)?.0)
    }

    /// Returns the extra time of an operation.
    fn extra_ns(&self, profile: &Profile) -> Nanos {
        let number = |parameter| profile.number(parameter);
        let handles = u64::from(self.regions) * (self.nodes as u64 - 1) * HANDLE_BYTES;
        let line = Prices::of(profile).work_ns(Work::PollHit);
        let nanoseconds = match self.extra {
            Extra::HandleLines if handles > LAST_CACHE => 2.0 * (line + number(Parameter::MemoryLatency)),
            Extra::HandleLines if handles > CORE_CACHE => 2.0 * line,
            Extra::None | Extra::HandleLines => 0.0,
            Extra::Kernel => number(Parameter::Indirection),
            Extra::User => number(Parameter::Indirection) + number(Parameter::Crossings),
        };
        nanoseconds as Nanos
    }

    /// Returns the memory of each node that holds everything.
    fn memory(&self) -> u64 {
        let bytes = match self.act {
            Act::Write => {
                let regions = u64::from(self.regions) * self.active as u64;
                let beside = self.unmeasured().map_or(0, |beside| beside.region_bytes);
                (self.region_bytes * self.processes as u64 + beside) * regions
            }
            Act::Malloc | Act::Map | Act::Free | Act::MallocThere => {
                u64::from(self.bytes).next_power_of_two() * (self.warm_up + self.measured)
            }
            Act::Set | Act::SetByWrite | Act::Copy => self.bytes.into(),
            Act::Lock | Act::Contend => LEAST_MEMORY,
            Act::CopyThere | Act::Move => 2 * u64::from(self.bytes),
        };
        bytes.max(LEAST_MEMORY).next_power_of_two()
    }

    /// Returns the load of the process of each active node that is not measured, if there is one.
    fn unmeasured(&self) -> Option<TierLoad> {
        let (threads, bytes) = self.beside;
        let region_bytes = self.region_bytes.max(2 * u64::from(bytes));
        (threads > 0).then(|| TierLoad { threads, bytes, region_bytes, ..self.clone() })
    }

    fn play(
        &self,
        sim: &Sim,
        (seed, pauses): (u64, Pauses),
        course: &Arc<MeasuredRun<Counted>>,
    ) -> Result<(), CourseError> {
        let names: Vec<String> = (0..self.nodes).map(|node| format!("node-{node}")).collect();
        let peers: Vec<Peer> = names
            .iter()
            .map(|name| Peer::named(Scheme::Sim, name).map_err(thread))
            .collect::<Result<_, _>>()?;
        let mut nodes: Vec<(Sim, Tier<Sim>)> = Vec::new();
        for (machine, name) in names.iter().enumerate() {
            let sim = sim.process_on(machine).with_pages(self.pages);
            let mut config = TierConfig::new(peers.clone(), name);
            (config.memory, config.piece, config.paths) = (self.memory(), self.piece, self.paths);
            if self.step > 0 {
                config.step = self.step;
            }
            let tier = Tier::within(&sim, config).map_err(thread)?;
            nodes.push((sim, tier));
        }
        if !matches!(self.act, Act::Write | Act::Contend) {
            let (sim, tier) = nodes[0].clone();
            let (load, course) = (self.clone(), Arc::clone(course));
            let body = move || course.ended(load.act_in_turn(&sim, &tier, (pauses.extra, &course)));
            nodes[0].0.host().spawn("acting", Box::new(body)).map_err(thread)?.join();
            return Ok(());
        }
        let start = sim.host().signal();
        let (mut tasks, mut served): (Vec<Task>, Vec<ProcessServer<Sim>>) = (Vec::new(), Vec::new());
        for (node, (sim, tier)) in nodes.iter().enumerate().take(self.active) {
            let lock = last_ones(tier)?;
            let place = |process| Placed {
                node,
                process,
                names: &names,
                lock: lock.clone(),
                seed,
                pauses,
                course,
                start: &start,
            };
            match self.process {
                Process::OfNode => self.spawn_writers(sim, tier, &place(0), &mut tasks)?,
                Process::Attached => {
                    let address = Address::new(Scheme::Sim, "attach").map_err(thread)?;
                    served.push(self.serve(&sim.within_machine(), tier, &address)?);
                    let loads = vec![self.clone(); self.processes].into_iter().chain(self.unmeasured());
                    for (number, load) in loads.enumerate() {
                        let process = sim.process_on(node);
                        // The plan of the published figures.
                        let plan = Some(Plan::default());
                        let config = AttachConfig { plan, ..AttachConfig::new(address.clone()) };
                        let attached =
                            dunlin_tier_client::Tier::attach_with(&process.within_machine(), config);
                        let attached = attached.map_err(thread)?;
                        load.spawn_writers(&process, &attached, &place(number), &mut tasks)?;
                    }
                }
            }
        }
        start.raise();
        tasks.into_iter().for_each(Task::join);
        Ok(())
    }

    /// Serves the processes of a node's machine.
    fn serve(
        &self,
        within: &Sim,
        tier: &Tier<Sim>,
        address: &Address,
    ) -> Result<ProcessServer<Sim>, CourseError> {
        // Simulated processes have no ids, so those of a machine share the limits of one.
        let threads = self.processes * self.threads + self.beside.0;
        let operations = ProcessLimits::default().operations.max(threads as u16);
        let handles = self.regions * (self.nodes as u32 - 1) * (self.processes as u32 + 1);
        let handles = handles.max(ProcessLimits::default().handles);
        let connections = threads + self.processes + usize::from(self.beside.0 > 0);
        let connections = ProcessLimits::default().connections.max(connections as u16);
        let limits = ProcessLimits { operations, handles, connections, ..ProcessLimits::default() };
        let users = BTreeMap::from([(0, "all".to_owned())]);
        let config = ProcessConfig { users, limits, ..ProcessConfig::new(address.clone()) };
        ProcessServer::serve(within, tier, config).map_err(thread)
    }

    /// Starts the threads of one process.
    fn spawn_writers<T: AnyTier>(
        &self,
        sim: &Sim,
        tier: &T,
        place: &Placed<'_>,
        tasks: &mut Vec<Task>,
    ) -> Result<(), CourseError> {
        let regions = match self.act {
            Act::Write => self.regions(tier, place)?,
            _ => Vec::new(),
        };
        let regions = Arc::new(regions);
        let first = match place.process < self.processes {
            true => 1000 + (place.node * self.processes + place.process) * self.threads,
            false => UNMEASURED + place.node * self.threads,
        };
        for number in 0..self.threads {
            let writer = Writer {
                load: self.clone(),
                sim: sim.clone(),
                tier: tier.clone(),
                lock: place.lock.clone(),
                random: Random::new(place.seed, (first + number) as u64),
                is_measured: place.process < self.processes,
                regions: Arc::clone(&regions),
                pause: place.pauses.extra + place.pauses.between,
                course: Arc::clone(place.course),
            };
            tasks.push(spawn_at(sim, place.start, place.course, move || writer.write_on_and_on())?);
        }
        Ok(())
    }

    /// Makes a node's regions on all others. They have names, so they end with their nodes and are not zeroed.
    fn regions<T: AnyTier>(&self, tier: &T, place: &Placed<'_>) -> Result<Vec<T::Lmr>, CourseError> {
        let (node, names) = (place.node, place.names);
        // Different for each process.
        let user = node + place.process * names.len();
        let mut regions = Vec::with_capacity(self.regions as usize * (names.len() - 1));
        for number in 0..self.regions {
            for (_, other) in names.iter().enumerate().filter(|(other, _)| *other != node) {
                let spec = Spec::on(other).named(format!("{user}/{other}/{number}"));
                regions.push(tier.malloc(self.region_bytes, spec).map_err(thread)?);
            }
        }
        Ok(regions)
    }

    /// Carrier out operations other than WRITE, one after the other.
    fn act_in_turn(
        &self,
        sim: &Sim,
        tier: &Tier<Sim>,
        (extra, course): (Nanos, &MeasuredRun<Counted>),
    ) -> Result<(), CourseError> {
        let (bytes, rounds) = (u64::from(self.bytes), self.warm_up + self.measured);
        let there = |name: &str| Spec::on("node-1").named(name);
        let here = |number: u64| Spec::here().named(format!("own/{number}"));
        let mut kept: Vec<Lmr<Sim>> = Vec::new();
        let mut freed: Vec<Lmr<Sim>> = Vec::new();
        match self.act {
            Act::Write | Act::Malloc | Act::MallocThere | Act::Lock | Act::Contend => {}
            Act::Map => kept.push(tier.malloc(bytes, here(0)).map_err(thread)?),
            Act::Free => {
                for number in 0..rounds {
                    freed.push(tier.malloc(bytes, here(number)).map_err(thread)?);
                }
            }
            Act::Set | Act::SetByWrite => kept.push(tier.malloc(bytes, there("one")).map_err(thread)?),
            Act::Copy | Act::CopyThere => {
                let other = if self.act == Act::Copy { "node-2" } else { "node-1" };
                kept.push(tier.malloc(bytes, there("one")).map_err(thread)?);
                kept.push(tier.malloc(bytes, Spec::on(other).named("other")).map_err(thread)?);
            }
            Act::Move => kept.push(tier.malloc(2 * bytes, there("one")).map_err(thread)?),
        }
        let lock = last_ones(tier)?;
        let mut guards = Vec::new();
        let value = vec![7; if self.act == Act::SetByWrite { self.bytes as usize } else { 0 }];
        for round in 0..rounds {
            let since = sim.time();
            sim.host().work(extra);
            match self.act {
                Act::Write | Act::Contend => {}
                Act::Lock => guards.push(tier.lock(&lock).map_err(thread)?),
                Act::Malloc => kept.push(tier.malloc(bytes, here(round)).map_err(thread)?),
                Act::MallocThere => {
                    kept.push(tier.malloc(bytes, there(&format!("there/{round}"))).map_err(thread)?);
                }
                Act::Map => kept.push(tier.map("own/0", Rights::WRITE).map_err(thread)?),
                Act::Free => {
                    if let Some(region) = freed.pop() {
                        region.free().map_err(thread)?;
                    }
                }
                Act::Set => kept[0].memset(0, bytes, 7).map_err(thread)?,
                Act::SetByWrite => kept[0].write(0, &value).map_err(thread)?,
                Act::Copy | Act::CopyThere => {
                    tier.memcpy(kept[1].at(0), kept[0].at(0), bytes).map_err(thread)?;
                }
                Act::Move => tier.memcpy(kept[0].at(bytes / 2), kept[0].at(0), bytes).map_err(thread)?,
            }
            // Time that has been charged passes.
            sim.host().work(0);
            record(course, (self.warm_up, self.measured), since, sim.time());
            guards.drain(..).try_for_each(Guard::unlock).map_err(thread)?;
        }
        Ok(())
    }
}

/// Returns the name of a lock that the last node owns.
fn last_ones(tier: &Tier<Sim>) -> Result<String, CourseError> {
    let last = tier.nodes().last().unwrap_or_default();
    for number in 0..=u16::MAX {
        let name = format!("lock/{number}");
        if tier.lock_home(&name).map_err(thread)? == last {
            return Ok(name);
        }
    }
    Ok(String::new())
}

/// The first random sequence of threads that are not measured.
const UNMEASURED: usize = 1 << 20;

/// The place of a process in the run.
struct Placed<'a> {
    node: usize,
    /// Its number among those of the node. Those from [`TierLoad::processes`] on are not measured.
    process: usize,
    /// The names of all nodes.
    names: &'a [String],
    /// The name of the contended lock.
    lock: String,
    seed: u64,
    pauses: Pauses,
    course: &'a Arc<MeasuredRun<Counted>>,
    start: &'a SimSignal,
}

/// A thread that writes.
struct Writer<T: AnyTier> {
    load: TierLoad,
    sim: Sim,
    tier: T,
    /// The name of the contended lock.
    lock: String,
    random: Random,
    is_measured: bool,
    regions: Arc<Vec<T::Lmr>>,
    /// Processor time between two operations, in nanoseconds.
    pause: Nanos,
    course: Arc<MeasuredRun<Counted>>,
}

impl<T: AnyTier> Writer<T> {
    /// Writes until all threads together have written enough.
    fn write_on_and_on(mut self) -> Result<(), CourseError> {
        let bytes = vec![7; self.load.bytes as usize];
        let room = self.load.region_bytes - u64::from(self.load.bytes) + 1;
        loop {
            let since = self.sim.time();
            self.sim.host().work(self.pause);
            if self.course.phase() == Phase::Over {
                return Ok(());
            }
            if self.load.act == Act::Contend {
                self.tier.lock(self.lock.as_bytes()).and_then(AnyGuard::unlock).map_err(thread)?;
            } else {
                let region = self.random.below(self.regions.len() as u64) as usize;
                let offset = self.random.below(room);
                self.regions[region].write(offset, &bytes).map_err(thread)?;
            }
            self.sim.host().work(0);
            if !self.is_measured {
                continue;
            }
            if record(&self.course, (self.load.warm_up, self.load.measured), since, self.sim.time()) {
                return Ok(());
            }
        }
    }
}
