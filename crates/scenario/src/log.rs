//! Threads that commit to a global log in the memory tier: nodes in one process each, on machines of their own.

use crate::measured_run::{
    Counted, CourseError, MeasuredRun, Phase, cluster, cost_as, not_zero, record, spawn_at, thread,
};
use crate::stream::{self, Stream};
use crate::tier::Extra;
use dunlin_app_log::{Cleaner, LogConfig, LogError, Writer, create};
use dunlin_fabric::{Fabric, Host, Nanos, Scheme, Signal, Task, WithSources};
use dunlin_fabric_sim::Sim;
use dunlin_rnic_model::{Parameter, Prices, Profile};
use dunlin_tier_node::{Calls, Peer, ReceiveError, Spec, Tier, TierConfig};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The way of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// The log in the memory tier: a FETCH_ADD and a WRITE.
    OneSided,
    /// Two calls, one after the other, each of which writes the transaction to a replica of the log in the memory of a
    /// node: the first node gives the position, and the second one has its copy. Nobody cleans.
    Calls,
}

/// A load of commits. The first node stores the log, and all nodes commit to it.
#[derive(Clone, Debug)]
pub struct LogLoad {
    /// Profile of all machines.
    pub profile: String,
    /// Number of nodes, each on a machine of its own.
    pub nodes: usize,
    /// Threads of a node, each with a writer.
    pub threads: usize,
    /// Paths of a node (K).
    pub paths: u16,
    /// The way of a commit.
    pub way: Way,
    /// A stream of low priority at the same nodes; there is a further node then, to which it writes, too.
    pub beside: Option<Stream>,
    /// Entries of a transaction.
    pub entries: u32,
    /// Bytes of an entry.
    pub entry: u32,
    /// Whether the last node cleans the log, which is short then; otherwise the log has room for all commits.
    pub cleaner: bool,
    /// Time of the calling processor for each operation of the tier that the nodes' code does not account for.
    pub extra: Extra,
    /// Commits of all threads before the measurement.
    pub warm_up: u64,
    /// Measured commits of all threads.
    pub measured: u64,
}

const LIMIT: Nanos = 60_000_000_000;
/// Tasks of a node beside its committing threads, at most.
const TASKS: usize = 64;
const LOG: &str = "log";
/// Bytes of a transaction and of an entry beside the application's.
const OVERHEAD: [u64; 2] = [32, 4];
/// Bytes of a log that is cleaned.
const CLEANED: u64 = 1 << 20;
/// The pause of the cleaner when there is nothing to clean.
const PAUSE: Nanos = 5_000;
/// The nodes that have a replica, of a log that is written by calls.
const REPLICAS: usize = 2;
/// The time after which a thread that receives looks whether the run is over.
const LOOK_EVERY: Duration = Duration::from_millis(1);
/// Operations of the tier in a commit.
const OPERATIONS: u64 = 2;

impl LogLoad {
    /// Returns a load of two nodes with one thread each, which commit transactions of one entry of 16 bytes.
    pub fn of(profile: &str) -> LogLoad {
        LogLoad {
            profile: profile.to_owned(),
            nodes: 2,
            threads: 1,
            paths: 4,
            way: Way::OneSided,
            beside: None,
            entries: 1,
            entry: 16,
            cleaner: false,
            extra: Extra::None,
            warm_up: 1_000,
            measured: 10_000,
        }
    }

    /// Runs the load; returns the measured commits with their times.
    ///
    /// # Errors
    /// Returns an error for an impossible load, or if the run does not end normally.
    pub fn run(&self, seed: u64) -> Result<Counted, CourseError> {
        not_zero([
            ("the number of threads", self.threads as u64),
            ("the number of paths", self.paths.into()),
            ("the number of entries", self.entries.into()),
            ("the number of measured commits", self.measured),
            ("the number of other nodes", self.nodes.saturating_sub(1) as u64),
        ])?;
        let machines = self.nodes + usize::from(self.beside.is_some());
        let threads = self.beside.map_or(0, |stream| stream.threads) + 2 * self.threads;
        let mut settings = cluster(machines, machines * (threads + TASKS), LIMIT);
        let profile = Profile::built_in(&self.profile)?;
        let pauses = Pauses {
            commit: self.extra_ns(&profile)
                + self.own_work_ns(&profile)
                + Prices::of(&profile).verbs().benchmark_loop_ns as Nanos,
            stored: bytes_ns(&profile, self.extent()),
        };
        cost_as(&mut settings, profile, 1);
        // Requests of several threads reach a NIC in order.
        settings.slack = 0;
        let load = self.clone();
        let play = move |sim: &Sim, course: &Arc<MeasuredRun<Counted>>| load.play(sim, pauses, course);
        Ok(MeasuredRun::run(settings, seed, play)?.0)
    }

    /// Returns the extra time of a commit.
    fn extra_ns(&self, profile: &Profile) -> Nanos {
        let number = |parameter| profile.number(parameter);
        let nanoseconds = match self.extra {
            Extra::None | Extra::HandleLines => 0.0,
            Extra::Kernel => number(Parameter::Indirection),
            Extra::User => number(Parameter::Indirection) + number(Parameter::Crossings),
        };
        OPERATIONS * nanoseconds as Nanos
    }

    /// Returns the application's own time of a commit: its entries are copied into the writer's buffer, and the checksum
    /// reads the transaction once.
    fn own_work_ns(&self, profile: &Profile) -> Nanos {
        let entries = u64::from(self.entries) * u64::from(self.entry);
        match self.way {
            Way::OneSided => bytes_ns(profile, entries + self.extent()),
            Way::Calls => bytes_ns(profile, entries),
        }
    }

    /// Returns the bytes of the log that a transaction takes.
    fn extent(&self) -> u64 {
        (OVERHEAD[0] + u64::from(self.entries) * (OVERHEAD[1] + u64::from(self.entry))).next_multiple_of(64)
    }

    fn config(&self, node: &str) -> LogConfig {
        let commits = self.warm_up + self.measured + (self.nodes * self.threads) as u64;
        let capacity = if self.cleaner { CLEANED.max(self.extent()) } else { commits * self.extent() };
        LogConfig {
            capacity,
            longest: Some(self.extent()),
            writers: (self.nodes * self.threads) as u32,
            place: Spec::on(node),
            ..LogConfig::default()
        }
    }

    fn play(&self, sim: &Sim, pauses: Pauses, course: &Arc<MeasuredRun<Counted>>) -> Result<(), CourseError> {
        let pause = pauses.commit;
        let machines = self.nodes + usize::from(self.beside.is_some());
        let names: Vec<String> = (0..machines).map(|node| format!("node-{node}")).collect();
        let peers: Vec<Peer> = names
            .iter()
            .map(|name| Peer::named(Scheme::Sim, name).map_err(thread))
            .collect::<Result<_, _>>()?;
        let config = self.config(&names[0]);
        let mut nodes: Vec<(Sim, Tier<Sim>)> = Vec::new();
        for (machine, name) in names.iter().enumerate() {
            let sim = sim.process_on(machine);
            // Blocks of a node are powers of two: room for the log and its metadata.
            let memory = if machine == 0 { 4 * config.capacity.next_power_of_two() } else { 0 };
            let memory = memory.max(1 << 20) + self.beside.map_or(0, |_| stream::MEMORY);
            let mut settings =
                TierConfig { memory, paths: self.paths, ..TierConfig::new(peers.clone(), name) };
            if let Some(stream) = self.beside {
                settings.qos.policy = stream.policy;
            }
            let tier = Tier::within(&sim, settings).map_err(thread)?;
            nodes.push((sim, tier));
        }
        if self.way == Way::Calls {
            return self.by_calls(sim, &nodes, pauses, course);
        }
        create(&nodes[0].1, LOG, &config).map_err(failed)?;
        let beside = self.beside.map(|stream| stream.start(&nodes, self.nodes, pause, course)).transpose()?;
        let written = Arc::new(AtomicBool::new(false));
        let cleaning = if self.cleaner { nodes.last() } else { None };
        let cleaning = cleaning.map(|(sim, tier)| {
            let (own, tier, written, course) =
                (sim.clone(), tier.clone(), Arc::clone(&written), Arc::clone(course));
            let body = move || course.ended(clean(&own, &tier, pauses.stored, &written));
            sim.host().spawn("cleaning", Box::new(body)).map_err(thread)
        });
        let cleaning = cleaning.transpose()?;
        let start = sim.host().signal();
        let mut tasks: Vec<Task> = Vec::new();
        for (sim, tier) in nodes.iter().take(self.nodes) {
            let tier = Stream::application(tier)?;
            for _ in 0..self.threads {
                let writer = Writer::open(&tier, LOG).map_err(failed)?;
                let (load, own, of_thread) = (self.clone(), sim.clone(), Arc::clone(course));
                let body = move || load.commit(&own, writer, pause, &of_thread);
                tasks.push(spawn_at(sim, &start, course, body)?);
            }
        }
        start.raise();
        tasks.into_iter().for_each(Task::join);
        written.store(true, Ordering::Relaxed);
        beside.into_iter().for_each(stream::Running::end);
        cleaning.into_iter().for_each(Task::join);
        Ok(())
    }

    /// Plays commits by calls.
    fn by_calls(
        &self,
        sim: &Sim,
        nodes: &[(Sim, Tier<Sim>)],
        pauses: Pauses,
        course: &Arc<MeasuredRun<Counted>>,
    ) -> Result<(), CourseError> {
        let extent = self.extent() as usize;
        let mut receiving = Vec::new();
        for (number, (sim, tier)) in nodes[..REPLICAS].iter().enumerate() {
            let replica =
                Replica { is_first: number == 0, tail: 0, ring: vec![0; CLEANED as usize / extent * extent] };
            let replica = Arc::new(Mutex::new(replica));
            let calls = Arc::new(tier.register(LOG, 0).map_err(thread)?);
            // As many as have a call under way.
            for _ in 0..self.threads * self.nodes {
                let (own, calls, replica) = (sim.clone(), Arc::clone(&calls), Arc::clone(&replica));
                let course = Arc::clone(course);
                let body =
                    move || course.ended(replicate(&own, &calls, &replica, (extent, pauses.stored), &course));
                receiving.push(sim.host().spawn("receiving", Box::new(body)).map_err(thread)?);
            }
        }
        let start = sim.host().signal();
        let mut tasks: Vec<Task> = Vec::new();
        for (sim, tier) in nodes {
            for _ in 0..self.threads {
                let (load, own, tier, of_thread) =
                    (self.clone(), sim.clone(), tier.clone(), Arc::clone(course));
                let body = move || load.call(&own, &tier, pauses.commit, &of_thread);
                tasks.push(spawn_at(sim, &start, course, body)?);
            }
        }
        start.raise();
        tasks.into_iter().for_each(Task::join);
        course.end();
        receiving.into_iter().for_each(Task::join);
        Ok(())
    }

    /// Commits by calls until all threads together have committed enough.
    fn call(
        &self,
        sim: &Sim,
        tier: &Tier<Sim>,
        pause: Nanos,
        course: &MeasuredRun<Counted>,
    ) -> Result<(), CourseError> {
        let mut transaction = vec![7; self.extent() as usize];
        loop {
            let since = sim.time();
            sim.host().work(pause);
            for node in 0..REPLICAS {
                if course.phase() == Phase::Over {
                    return Ok(());
                }
                let mut position = [0; 8];
                match tier.call(&format!("node-{node}"), LOG, 0, &transaction, &mut position) {
                    // The second replica stores the transaction at the position that the first one gave.
                    Ok(_) => transaction[..8].copy_from_slice(&position),
                    // Its server has ended.
                    Err(_) if course.phase() == Phase::Over => return Ok(()),
                    Err(error) => return Err(thread(WithSources(&error))),
                }
            }
            sim.host().work(0);
            if record(course, (self.warm_up, self.measured), since, sim.time()) {
                return Ok(());
            }
        }
    }

    /// Commits until all threads together have committed enough.
    fn commit(
        &self,
        sim: &Sim,
        mut writer: Writer<Tier<Sim>>,
        pause: Nanos,
        course: &MeasuredRun<Counted>,
    ) -> Result<(), CourseError> {
        let entry = vec![7; self.entry as usize];
        loop {
            let since = sim.time();
            sim.host().work(pause);
            if course.phase() == Phase::Over {
                return Ok(());
            }
            for _ in 0..self.entries {
                writer.append(&entry).map_err(failed)?;
            }
            writer.commit().map_err(failed)?;
            sim.host().work(0);
            if record(course, (self.warm_up, self.measured), since, sim.time()) {
                return Ok(());
            }
        }
    }
}

/// Returns the time for this number of bytes; a checksum reads a byte in the time of its copy.
fn bytes_ns(profile: &Profile, bytes: u64) -> Nanos {
    (bytes as f64 * profile.number(Parameter::PriceCopyByte)) as Nanos
}

/// Processor time of the application, in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Pauses {
    /// In each commit.
    commit: Nanos,
    /// For each transaction that the cleaner checks, or a replica stores.
    stored: Nanos,
}

/// A copy of a log that is written by calls.
struct Replica {
    /// It gives the positions.
    is_first: bool,
    tail: u64,
    ring: Vec<u8>,
}

impl Replica {
    /// Stores a transaction, whose first bytes are its position unless this replica gives it; returns the position.
    fn store(&mut self, transaction: &[u8]) -> u64 {
        let position = match transaction.first_chunk() {
            Some(position) if !self.is_first => u64::from_le_bytes(*position),
            _ => self.tail,
        };
        self.tail = position.saturating_add(transaction.len() as u64);
        let place = (position % self.ring.len() as u64) as usize;
        if let Some(place) = self.ring.get_mut(place..place + transaction.len()) {
            place.copy_from_slice(transaction);
        }
        position
    }
}

/// Receives transactions, stores them, and answers with their positions, until the run is over.
fn replicate(
    sim: &Sim,
    calls: &Calls<Sim>,
    replica: &Mutex<Replica>,
    (extent, each): (usize, Nanos),
    course: &MeasuredRun<Counted>,
) -> Result<(), CourseError> {
    let mut buffer = vec![0; extent];
    while course.phase() != Phase::Over {
        match calls.receive_within(&mut buffer, LOOK_EVERY) {
            Ok(request) => {
                let position = replica.lock().unwrap_or_else(PoisonError::into_inner).store(&buffer);
                sim.host().work(each);
                request.reply(&position.to_le_bytes());
            }
            Err(ReceiveError::NoCall) => {}
            Err(error) => return Err(thread(error)),
        }
    }
    Ok(())
}

fn failed(error: LogError) -> CourseError {
    thread(WithSources(&error))
}

/// Cleans the log until all writers have ended. A transaction takes `each` nanoseconds of the cleaner's own.
fn clean(sim: &Sim, tier: &Tier<Sim>, each: Nanos, written: &AtomicBool) -> Result<(), CourseError> {
    let mut cleaner = Cleaner::open(tier, LOG).map_err(failed)?;
    while !written.load(Ordering::Relaxed) {
        let cleaned = cleaner.clean(|_| ControlFlow::Continue(())).map_err(failed)?;
        sim.host().work(cleaned.transactions * each);
        if cleaned.transactions == 0 {
            let host = sim.host();
            host.sleep(host.now() + PAUSE);
        }
    }
    Ok(())
}
