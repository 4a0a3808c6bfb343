//! Plays a row of a sweep in the simulator: the closed loop of `rnic-model`'s driver on the queue pairs,
//! memory and threads of a simulated cluster. A calibration by the driver is valid only if both agree.
//!
//! One difference is deliberate. A fabric returns a READ's buffer with its completion, so all READs are
//! signaled here, even where the test leaves most of them unsignaled and observes their data.

use crate::measured_run::{CourseError, FOREVER, MeasuredRun, cluster, cost_as, thread};
use dunlin_fabric::{
    Access, Address, Arena, Completion, CompletionQueueId, CompletionStatus, Data, Endpoint, Fabric, Host,
    Link, Listener, Nanos, Operation, QueuePairConfig, QueuePairId, Region, RegionKey, RemoteSlice, Scheme,
    Signal, ThreadDomain, WaitMode, WorkId, WorkRequest,
};
use dunlin_fabric_sim::{Random, Sim, SimDomain, SimLink, SimMemory};
use dunlin_rnic_model::driver::{Connection, Signaling, Test};
use dunlin_rnic_model::sweep::{BUFFER, Effort, Row};
use dunlin_rnic_model::{Opcode, Prices, Profile};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Bytes between two buffers of a window.
const APART: usize = 4096;
/// Factor by which a test runs longer than in the driver: threads that wake up together stay in step for
/// longer.
const LONGER: u64 = 3;
/// Virtual time after which a run is aborted, in nanoseconds.
const LIMIT: Nanos = 60_000_000_000;

/// Returns the rate of a row in million operations per second and machine, on a simulated cluster of the
/// profile.
///
/// # Errors
/// Returns an error for a row that a fabric cannot run, or if the run does not end normally.
pub fn mops(row: &Row, profile: &Profile, seed: u64) -> Result<f64, CourseError> {
    let Test { threads, warm_up, measured, .. } = row.test(profile, Effort::Full);
    let mut settings = cluster(row.machines as usize, threads.len() + 16, LIMIT);
    cost_as(&mut settings, profile.clone(), 1);
    // Threads are scheduled exactly: with slack, requests would reach a NIC out of time order, and the later
    // ones would wait for the earlier.
    settings.slack = 0;
    let (warm_up, measured) = (warm_up * LONGER, measured * LONGER);
    let connections = threads.into_iter().map(|thread| (thread.host, thread.connections)).collect();
    let loop_ns = Prices::of(profile).verbs().benchmark_loop_ns as Nanos;
    let play = Play { row: row.clone(), connections, warm_up, measured, loop_ns };
    let play = move |sim: &Sim, course: &Arc<MeasuredRun<Posted>>| play.root(sim, seed, course);
    let (posted, _) = MeasuredRun::run(settings, seed, play)?;
    let time = posted.ended.saturating_sub(posted.began).max(1);
    Ok(measured as f64 * 1e3 / time as f64 / f64::from(row.machines))
}

/// The posts of all threads.
#[derive(Debug, Default)]
struct Posted {
    count: u64,
    /// Start and end of the measurement.
    began: Nanos,
    ended: Nanos,
    /// Ends of finished threads: their queue pairs remain until all threads have finished.
    ends: Vec<End>,
}

struct Play {
    row: Row,
    /// Host and connections of each thread.
    connections: Vec<(u32, Vec<Connection>)>,
    warm_up: u64,
    measured: u64,
    loop_ns: Nanos,
}

/// One connection of a thread.
#[derive(Debug)]
struct Way {
    pair: QueuePairId,
    completions: CompletionQueueId,
    /// Memory of the thread with the same number at the other end.
    key: RegionKey,
    posted: u32,
    /// Whether a signaled request has not been polled, where not all are signaled.
    pending: bool,
}

/// The resources of a thread.
#[derive(Debug)]
struct End {
    domain: SimDomain,
    ways: Vec<Way>,
    /// Local memory for the data of WRITEs and READs.
    arena: Arena<SimMemory>,
    /// Memory that its peers WRITE; they READ from the arena.
    target: Option<Region<SimMemory>>,
}

impl End {
    fn target(&self) -> &Arc<SimMemory> {
        self.target.as_ref().map_or(self.arena.memory(), Region::memory)
    }

    /// Creates a queue pair with its own completion queue.
    fn queue_pair(&mut self, row: &Row) -> Result<(QueuePairId, CompletionQueueId), CourseError> {
        let depth = match row.signaling {
            Signaling::OneIn(every) if row.opcode != Opcode::Read => 2 * every,
            _ => row.window + 1,
        };
        let completions = self.domain.create_completion_queue(depth, false).map_err(thread)?;
        let config = QueuePairConfig {
            transport: row.transport,
            max_send: depth,
            ..QueuePairConfig::reliable(completions, completions)
        };
        Ok((self.domain.create_queue_pair(&config).map_err(thread)?, completions))
    }
}

impl Play {
    fn root(&self, sim: &Sim, seed: u64, course: &Arc<MeasuredRun<Posted>>) -> Result<(), CourseError> {
        let hosts: Vec<Sim> = (0..self.row.machines).map(|host| sim.process_on(host as usize)).collect();
        let links = links(&hosts)?;
        let mut ends = Vec::with_capacity(self.connections.len());
        for (host, connections) in &self.connections {
            ends.push(self.end(&hosts[*host as usize], connections)?);
        }
        self.connect(&mut ends, &links)?;
        let start = sim.host().signal();
        let mut tasks = Vec::with_capacity(ends.len());
        for (number, end) in ends.into_iter().enumerate() {
            let poster = Poster {
                sim: hosts[self.connections[number].0 as usize].clone(),
                random: Random::new(seed, 1000 + number as u64),
                row: self.row.clone(),
                course: Arc::clone(course),
                end,
                window: VecDeque::new(),
                found: Vec::new(),
            };
            let (host, start, course) = (poster.sim.host().clone(), start.clone(), Arc::clone(course));
            let counts = (self.warm_up, self.warm_up + self.measured, self.loop_ns);
            let body = move || {
                start.wait(0, FOREVER);
                course.ended(poster.post_on_and_on(counts));
            };
            tasks.push(host.spawn("poster", Box::new(body)).map_err(thread)?);
        }
        start.raise();
        tasks.into_iter().for_each(dunlin_fabric::Task::join);
        let ends = std::mem::take(&mut course.gathered().ends);
        drop(ends);
        Ok(())
    }

    /// Creates the resources of a thread, without its peers' keys.
    fn end(&self, sim: &Sim, connections: &[Connection]) -> Result<End, CourseError> {
        let row = &self.row;
        let under_way = match row.signaling {
            Signaling::OneIn(every) if row.opcode != Opcode::Read => every * 2 * connections.len() as u32,
            _ => row.window,
        };
        let apart = (row.bytes as usize).next_power_of_two().max(APART);
        let whole = (apart as u64 * (u64::from(under_way) + 1)).max(BUFFER);
        let reads = row.opcode == Opcode::Read;
        let memory = sim.register(whole, if reads { Access::READ } else { Access::LOCAL }).map_err(thread)?;
        let target = match reads {
            true => None,
            false => Some(Region::new(sim.register(BUFFER, Access::WRITE).map_err(thread)?)),
        };
        let arena = Arena::with_unit(memory, apart).map_err(thread)?;
        let mut end = End { domain: sim.domain().map_err(thread)?, ways: Vec::new(), arena, target };
        for _ in connections {
            let (pair, completions) = end.queue_pair(row)?;
            end.ways.push(Way { pair, completions, key: RegionKey(0), posted: 0, pending: false });
        }
        Ok(end)
    }

    /// Connects each queue pair with its intended peer. Where several share an intended peer, each gets its
    /// own.
    fn connect(&self, ends: &mut [End], links: &Links) -> Result<(), CourseError> {
        let (row, threads) = (&self.row, self.row.threads as usize);
        let access = if row.opcode == Opcode::Read { Access::READ } else { Access::WRITE };
        let mut keys: BTreeMap<(usize, u32), RegionKey> = BTreeMap::new();
        for number in 0..ends.len() {
            let (host, connections) = &self.connections[number];
            for (index, connection) in connections.iter().enumerate() {
                let there = connection.peer as usize * threads + number % threads;
                let (ours, theirs) = (&links[&(*host, connection.peer)], &links[&(connection.peer, *host)]);
                let meant = self.connections[there].1.iter().position(|back| {
                    back.queue_pair == connection.peer_queue_pair
                        && (back.peer, back.peer_queue_pair) == (*host, connection.queue_pair)
                });
                let pair = ends[number].ways[index].pair;
                let (remote, alone) = match meant {
                    Some(back) => (ends[there].ways[back].pair, false),
                    None => (ends[there].queue_pair(row)?.0, true),
                };
                let endpoint = ends[there].domain.endpoint(remote, theirs).map_err(thread)?;
                ends[number].domain.connect(pair, ours, &endpoint).map_err(thread)?;
                if alone {
                    let endpoint: Endpoint = ends[number].domain.endpoint(pair, ours).map_err(thread)?;
                    ends[there].domain.connect(remote, theirs, &endpoint).map_err(thread)?;
                }
                let key = match keys.get(&(there, *host)) {
                    Some(key) => *key,
                    None => theirs.grant(ends[there].target(), access).map_err(thread)?,
                };
                keys.insert((there, *host), key);
                ends[number].ways[index].key = key;
            }
        }
        Ok(())
    }
}

/// The link between each two hosts, by its own host and the other.
pub(crate) type Links = BTreeMap<(u32, u32), SimLink>;

/// Connects each two hosts.
pub(crate) fn links(hosts: &[Sim]) -> Result<Links, CourseError> {
    let mut links = Links::new();
    for (number, host) in (0u32..).zip(hosts) {
        let address = Address::new(Scheme::Sim, &format!("raw-verbs-{number}")).map_err(thread)?;
        let listener = host.listen(&address).map_err(thread)?;
        for (other, dialler) in (0u32..).zip(hosts).take(number as usize) {
            let link = dialler.dial(&address, FOREVER).map_err(thread)?;
            links.insert((other, number), link);
            links.insert((number, other), listener.accept(FOREVER).map_err(thread)?);
        }
    }
    Ok(links)
}

/// A thread that posts.
struct Poster {
    sim: Sim,
    random: Random,
    row: Row,
    course: Arc<MeasuredRun<Posted>>,
    end: End,
    /// The connections of outstanding requests, oldest first.
    window: VecDeque<usize>,
    found: Vec<Completion<SimMemory>>,
}

impl Poster {
    /// Posts until all threads together have posted `to` requests; the measurement starts at `from`.
    fn post_on_and_on(mut self, (from, to, loop_ns): (u64, u64, Nanos)) -> Result<(), CourseError> {
        let reads = self.row.opcode == Opcode::Read;
        let host = self.sim.host().clone();
        let course = Arc::clone(&self.course);
        loop {
            host.work(loop_ns);
            if course.phase() == crate::measured_run::Phase::Over {
                break;
            }
            let signaling = if reads { Signaling::All } else { self.row.signaling };
            if signaling == Signaling::All
                && self.window.len() >= self.row.window as usize
                && let Some(oldest) = self.window.pop_front()
            {
                self.look_for_one(oldest)?;
            }
            let choice = self.random.below(self.end.ways.len() as u64) as usize;
            let way = &mut self.end.ways[choice];
            let mut signaled = true;
            if let Signaling::OneIn(every) = signaling {
                let place = way.posted % every;
                signaled = place == 0;
                if place == every - 1 && std::mem::take(&mut way.pending) {
                    self.look_for_one(choice)?;
                }
                self.end.ways[choice].pending |= signaled;
            } else {
                self.window.push_back(choice);
            }
            self.post(choice, signaled)?;
            let mut posted = course.gathered();
            posted.count += 1;
            if posted.count == from {
                posted.began = self.sim.time();
            }
            if posted.count >= to {
                posted.ended = self.sim.time();
                course.end();
                break;
            }
        }
        course.gathered().ends.push(self.end);
        Ok(())
    }

    fn post(&mut self, choice: usize, signaled: bool) -> Result<(), CourseError> {
        let bytes = self.row.bytes as usize;
        let way = &mut self.end.ways[choice];
        way.posted += 1;
        let (pair, key) = (way.pair, way.key);
        let offset = self.random.below(BUFFER.saturating_sub(bytes as u64).max(1));
        let inline = vec![0; if self.row.inline { bytes } else { 0 }];
        let parts: &[&[u8]] = &[&inline];
        let operation = match (self.row.opcode, self.row.inline) {
            (Opcode::Read, _) => Operation::Read {
                from: RemoteSlice { key, offset, length: self.row.bytes },
                into: self.end.arena.reserve(bytes).map_err(thread)?,
            },
            (_, true) => Operation::Write { data: Data::Inline(parts), key, offset, immediate: None },
            (_, false) => {
                let data = Data::Buffer(self.end.arena.reserve(bytes).map_err(thread)?);
                Operation::Write { data, key, offset, immediate: None }
            }
        };
        let request = WorkRequest { id: WorkId(0), operation, signaled };
        self.end.domain.post(pair, request).map_err(thread)
    }

    /// Polls until one more request of a connection is done.
    fn look_for_one(&mut self, way: usize) -> Result<(), CourseError> {
        wait_for_one(&mut self.end.domain, self.end.ways[way].completions, &mut self.found)
    }
}

/// Polls a completion queue until one more request is done.
pub(crate) fn wait_for_one(
    domain: &mut SimDomain,
    queue: CompletionQueueId,
    found: &mut Vec<Completion<SimMemory>>,
) -> Result<(), CourseError> {
    loop {
        let armed = domain.arm(WaitMode::Busy);
        if domain.poll(queue, found, 1) > 0 {
            domain.disarm(armed);
            break;
        }
        domain.wait(armed, FOREVER);
    }
    match found.drain(..).find(|completion| completion.status != CompletionStatus::Success) {
        Some(completion) => Err(thread(format!("a request ended with {:?}", completion.status))),
        None => Ok(()),
    }
}
