//! Threads that WRITE over queue pairs of their own, each waiting for its completion: what the memory tier is compared
//! with, on the same simulator.

use crate::measured_run::{
    Counted, CourseError, MeasuredRun, Phase, cluster, cost_as, not_zero, record, spawn_at, thread,
};
use crate::raw_verbs::{Links, links, wait_for_one};
use dunlin_fabric::{
    Access, Arena, Completion, CompletionQueueId, Data, Fabric, Host, Link, Nanos, Operation,
    QueuePairConfig, QueuePairId, Region, RegionKey, Signal, Task, ThreadDomain, WorkId, WorkRequest,
};
use dunlin_fabric_sim::{Random, Sim, SimDomain, SimMemory};
use dunlin_rnic_model::{Parameter, Prices, Profile};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A load of WRITEs.
#[derive(Clone, Debug)]
pub struct NativeWrites {
    /// Profile of all hosts.
    pub profile: String,
    /// Number of hosts.
    pub hosts: usize,
    /// Hosts whose threads write; each to all others, over a queue pair for each thread, peer and direction.
    pub active: usize,
    /// Threads of an active host.
    pub threads: usize,
    /// Regions of a host that others write to.
    pub regions: u32,
    /// Bytes of a region.
    pub region_bytes: u64,
    /// Bytes of a WRITE, inline if they fit.
    pub bytes: u32,
    /// WRITEs of all threads before the measurement.
    pub warm_up: u64,
    /// Measured WRITEs of all threads.
    pub measured: u64,
}

/// Virtual time after which a run is aborted, in nanoseconds.
const LIMIT: Nanos = 60_000_000_000;
/// Bytes of a thread's own memory.
const BUFFER: u64 = 1 << 18;

impl NativeWrites {
    /// Returns a load of one thread that writes 64 bytes to one region of 1 MiB.
    pub fn of(profile: &str) -> NativeWrites {
        NativeWrites {
            profile: profile.to_owned(),
            hosts: 2,
            active: 1,
            threads: 1,
            regions: 1,
            region_bytes: 1 << 20,
            bytes: 64,
            warm_up: 200,
            measured: 3_000,
        }
    }

    /// Runs the load; returns the measured WRITEs with their times.
    ///
    /// # Errors
    /// Returns an error for an impossible load, or if the run does not end normally.
    pub fn run(&self, seed: u64) -> Result<Counted, CourseError> {
        not_zero([
            ("the number of active hosts", self.active as u64),
            ("the number of other hosts", self.hosts.saturating_sub(1) as u64),
            ("the number of threads", self.threads as u64),
            ("the number of regions", self.regions.into()),
            ("the length of a WRITE", self.bytes.into()),
            ("the number of measured WRITEs", self.measured),
            ("the room of a region", self.region_bytes.saturating_sub(u64::from(self.bytes) - 1)),
        ])?;
        let mut settings = cluster(self.hosts, self.hosts * self.threads + 16, LIMIT);
        let profile = Profile::built_in(&self.profile)?;
        let loop_ns = Prices::of(&profile).verbs().benchmark_loop_ns as Nanos;
        let inline = self.bytes <= profile.number(Parameter::InlineLimit) as u32;
        cost_as(&mut settings, profile, 1);
        // Requests of several threads reach a NIC in order.
        settings.slack = 0;
        let load = self.clone();
        let play = move |sim: &Sim, course: &Arc<MeasuredRun<Counted>>| {
            load.play(sim, (seed, loop_ns, inline), course)
        };
        Ok(MeasuredRun::run(settings, seed, play)?.0)
    }

    fn play(
        &self,
        sim: &Sim,
        (seed, loop_ns, inline): (u64, Nanos, bool),
        course: &Arc<MeasuredRun<Counted>>,
    ) -> Result<(), CourseError> {
        let hosts: Vec<Sim> = (0..self.hosts).map(|host| sim.process_on(host)).collect();
        let links = links(&hosts)?;
        let mut targets = hosts.iter().map(|host| self.target(host)).collect::<Result<Vec<_>, _>>()?;
        let mut keys: BTreeMap<(u32, u32), Arc<Vec<RegionKey>>> = BTreeMap::new();
        for (&(owner, writer), link) in &links {
            if (writer as usize) < self.active {
                let grant = |region: &Region<SimMemory>| link.grant(region.memory(), Access::WRITE);
                let granted: Result<_, _> = targets[owner as usize].regions.iter().map(grant).collect();
                keys.insert((writer, owner), Arc::new(granted.map_err(thread)?));
            }
        }
        let start = sim.host().signal();
        let mut tasks: Vec<Task> = Vec::new();
        for (host, sim) in hosts.iter().enumerate().take(self.active) {
            for number in 0..self.threads {
                let ends = (host as u32, &links, &keys);
                let writer = Writer {
                    load: self.clone(),
                    sim: sim.clone(),
                    random: Random::new(seed, 1000 + (host * self.threads + number) as u64),
                    ways: Vec::new(),
                    domain: sim.domain().map_err(thread)?,
                    arena: self.buffers(sim)?,
                    inline: if inline { vec![7; self.bytes as usize] } else { Vec::new() },
                    found: Vec::new(),
                    loop_ns,
                    course: Arc::clone(course),
                };
                let writer = writer.connected(ends, &mut targets)?;
                tasks.push(spawn_at(sim, &start, course, move || writer.write_on_and_on())?);
            }
        }
        start.raise();
        tasks.into_iter().for_each(Task::join);
        Ok(())
    }

    /// Makes the regions of a host that others write to, and the domain of its passive queue pairs.
    fn target(&self, sim: &Sim) -> Result<Target, CourseError> {
        let mut domain = sim.domain().map_err(thread)?;
        let completions = domain.create_completion_queue(16, false).map_err(thread)?;
        let region = |_| sim.register(self.region_bytes, Access::WRITE).map(Region::new).map_err(thread);
        let regions = (0..self.regions).map(region).collect::<Result<_, _>>()?;
        Ok(Target { domain, completions, regions })
    }

    /// Makes a thread's own memory.
    fn buffers(&self, sim: &Sim) -> Result<Arena<SimMemory>, CourseError> {
        let bytes = BUFFER.max(4 * u64::from(self.bytes.next_power_of_two()));
        Arena::new(sim.register(bytes, Access::LOCAL).map_err(thread)?).map_err(thread)
    }
}

/// The regions of a host that others write to, and the passive queue pairs' domain.
struct Target {
    domain: SimDomain,
    completions: CompletionQueueId,
    regions: Vec<Region<SimMemory>>,
}

/// A thread's queue pair to a host.
struct Way {
    pair: QueuePairId,
    completions: CompletionQueueId,
    keys: Arc<Vec<RegionKey>>,
}

/// The numbers of a host, its links, and the keys that others gave it.
type Ends<'a> = (u32, &'a Links, &'a BTreeMap<(u32, u32), Arc<Vec<RegionKey>>>);

/// A thread that writes.
struct Writer {
    load: NativeWrites,
    sim: Sim,
    random: Random,
    ways: Vec<Way>,
    domain: SimDomain,
    arena: Arena<SimMemory>,
    /// The bytes of an inline WRITE; empty if they come from the arena.
    inline: Vec<u8>,
    found: Vec<Completion<SimMemory>>,
    loop_ns: Nanos,
    course: Arc<MeasuredRun<Counted>>,
}

impl Writer {
    /// Connects the thread with all hosts whose keys its host has.
    fn connected(
        mut self,
        (host, links, keys): Ends<'_>,
        targets: &mut [Target],
    ) -> Result<Self, CourseError> {
        for (&(_, peer), keys) in keys.iter().filter(|((writer, _), _)| *writer == host) {
            let (ours, theirs) = (&links[&(host, peer)], &links[&(peer, host)]);
            let completions = self.domain.create_completion_queue(2, false).map_err(thread)?;
            let config =
                QueuePairConfig { max_send: 2, ..QueuePairConfig::reliable(completions, completions) };
            let pair = self.domain.create_queue_pair(&config).map_err(thread)?;
            let target = &mut targets[peer as usize];
            let config = QueuePairConfig::reliable(target.completions, target.completions);
            let passive = target.domain.create_queue_pair(&config).map_err(thread)?;
            let endpoint = target.domain.endpoint(passive, theirs).map_err(thread)?;
            self.domain.connect(pair, ours, &endpoint).map_err(thread)?;
            let endpoint = self.domain.endpoint(pair, ours).map_err(thread)?;
            target.domain.connect(passive, theirs, &endpoint).map_err(thread)?;
            self.ways.push(Way { pair, completions, keys: Arc::clone(keys) });
        }
        Ok(self)
    }

    /// Writes until all threads together have written enough.
    fn write_on_and_on(mut self) -> Result<(), CourseError> {
        let bytes = self.load.bytes as usize;
        let room = self.load.region_bytes - bytes as u64 + 1;
        let course = Arc::clone(&self.course);
        loop {
            let since = self.sim.time();
            self.sim.host().work(self.loop_ns);
            if course.phase() == Phase::Over {
                return Ok(());
            }
            let way = &self.ways[self.random.below(self.ways.len() as u64) as usize];
            let key = way.keys[self.random.below(way.keys.len() as u64) as usize];
            let offset = self.random.below(room);
            let parts = [self.inline.as_slice()];
            let data = match self.inline.is_empty() {
                false => Data::Inline(&parts),
                true => Data::Buffer(self.arena.reserve(bytes).map_err(thread)?),
            };
            let operation = Operation::Write { data, key, offset, immediate: None };
            let request = WorkRequest { id: WorkId(0), operation, signaled: true };
            self.domain.post(way.pair, request).map_err(thread)?;
            wait_for_one(&mut self.domain, way.completions, &mut self.found)?;
            self.sim.host().work(0);
            if record(&course, (self.load.warm_up, self.load.measured), since, self.sim.time()) {
                return Ok(());
            }
        }
    }
}
