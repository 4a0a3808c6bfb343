//! A store whose clients READ its tables, on a simulated cluster: GETs by successive READs, PUTs by RPC, in a
//! closed loop.

use crate::measured_run::{CourseError, FOREVER, MeasuredRun, Phase, cluster, cost_as, not_zero, thread};
use dunlin_fabric::{Address, Fabric, Host, Nanos, Scheme, Signal, Task};
use dunlin_fabric_sim::{Random, Sim};
use dunlin_kv::bypass::{BypassClient, BypassConfig, BypassServer, Kind, ReadCounts};
use dunlin_rnic_model::Profile;
use dunlin_rpc::{ClientConfig, Plan, ServerConfig};
use std::sync::Arc;
use std::time::Duration;

/// A load of GETs and PUTs on tables that clients READ.
#[derive(Clone, Debug)]
pub struct Bypass {
    /// Profile of all hosts.
    pub profile: String,
    /// The data structure.
    pub kind: Kind,
    /// Number of client hosts.
    pub client_hosts: usize,
    /// Number of clients, each a thread with one operation at a time.
    pub clients: usize,
    /// Threads of the server, which serve PUTs only.
    pub threads: u16,
    /// Plan of the PUTs.
    pub puts: Plan,
    /// Number of 16-byte keys, all stored before the measurement; each operation picks one uniformly.
    pub items: u64,
    /// Bytes of a value.
    pub value_bytes: usize,
    /// Percentage of GETs; the other operations are PUTs.
    pub gets_percent: u32,
    /// Time from the start to the measurement, in nanoseconds.
    pub warm_up: Nanos,
    /// Measured time, in nanoseconds.
    pub measured: Nanos,
    /// Virtual time after which the run is aborted, in nanoseconds.
    pub limit: Nanos,
}

/// The result of a bypass load.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BypassOutcome {
    /// Completed operations.
    pub operations: u64,
    /// Measured time, in nanoseconds.
    pub time_ns: Nanos,
    /// Mean latency of the operations, in nanoseconds.
    pub mean_ns: f64,
    /// Mean number of READs per GET.
    pub reads_per_get: f64,
    /// Mean number of retries per GET because of a concurrent write.
    pub retries_per_get: f64,
    /// A hash over all events.
    pub trace_hash: u64,
}

/// Totals over all clients during the measurement.
#[derive(Debug, Default)]
struct Done {
    operations: u64,
    latencies: u128,
    counts: ReadCounts,
}

const KEY_BYTES: usize = 16;

fn key_of(number: u64) -> [u8; KEY_BYTES] {
    let mut key = [0; KEY_BYTES];
    key[..8].copy_from_slice(&(number ^ number >> 31).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
    key[8..].copy_from_slice(&number.to_le_bytes());
    key
}

impl Bypass {
    fn check(&self) -> Result<(), CourseError> {
        not_zero([
            ("the number of client hosts", self.client_hosts as u64),
            ("the number of clients", self.clients as u64),
            ("the number of server threads", self.threads.into()),
            ("the number of items", self.items),
            ("the measured time", self.measured),
        ])?;
        if self.gets_percent > 100 {
            let (what, value) = ("the share of GETs", self.gets_percent.into());
            return Err(CourseError::Nothing { what, value });
        }
        Ok(())
    }

    /// Runs the load.
    ///
    /// # Errors
    /// Returns an error for an impossible load, or if the run does not end normally.
    pub fn run(&self, seed: u64) -> Result<BypassOutcome, CourseError> {
        self.check()?;
        let threads = self.clients + usize::from(self.threads) + 64;
        let mut settings = cluster(self.client_hosts + 1, threads, self.limit);
        cost_as(&mut settings, Profile::built_in(&self.profile)?, 1);
        let load = self.clone();
        let play = move |sim: &Sim, course: &Arc<MeasuredRun<Done>>| load.play(sim, seed, course);
        let (done, trace_hash) = MeasuredRun::run(settings, seed, play)?;
        Ok(BypassOutcome {
            operations: done.operations,
            time_ns: self.measured,
            mean_ns: done.latencies as f64 / done.operations.max(1) as f64,
            reads_per_get: done.counts.reads_per_get(),
            retries_per_get: done.counts.retries as f64 / done.counts.gets.max(1) as f64,
            trace_hash,
        })
    }

    fn play(&self, sim: &Sim, seed: u64, course: &Arc<MeasuredRun<Done>>) -> Result<(), CourseError> {
        let addresses = [
            Address::new(Scheme::Sim, "puts").map_err(thread)?,
            Address::new(Scheme::Sim, "reads").map_err(thread)?,
        ];
        let engine = ServerConfig {
            workers: self.threads,
            max_connections: self.clients as u32 + 1,
            ..ServerConfig::default()
        };
        let tables = BypassConfig::for_items(self.kind, self.items, KEY_BYTES + self.value_bytes);
        let [puts, reads] = &addresses;
        let server = BypassServer::serve(sim, [puts, reads], tables, engine).map_err(thread)?;
        let hosts: Vec<Sim> = (0..self.client_hosts).map(|host| sim.process_on(1 + host)).collect();
        let (news, start, stop) = (sim.host().signal(), sim.host().signal(), sim.host().signal());
        let tasks = (0..self.clients)
            .map(|number| {
                let player = Player {
                    sim: hosts[number % hosts.len()].clone(),
                    random: Random::new(seed, 1000 + number as u64),
                    load: self.clone(),
                    course: Arc::clone(course),
                    number: number as u64,
                };
                let (addresses, host) = (addresses.clone(), player.sim.host().clone());
                let (news, start, stop) = (news.clone(), start.clone(), stop.clone());
                let course = Arc::clone(course);
                let body = move || {
                    let played = player.play(&addresses, &start, || {
                        course.is_ready();
                        news.raise();
                    });
                    // Clients are kept until the end: an early disconnect would delay the others.
                    let client = match played {
                        Ok(client) => Some(client),
                        Err(error) => {
                            course.ended(Err(error));
                            news.raise();
                            None
                        }
                    };
                    stop.wait(0, FOREVER);
                    drop(client);
                };
                host.spawn("client", Box::new(body)).map_err(thread)
            })
            .collect::<Result<Vec<Task>, _>>()?;
        loop {
            let seen = news.seen();
            if course.may_begin(tasks.len()) {
                break;
            }
            news.wait(seen, FOREVER);
        }
        start.raise();
        let host = sim.host();
        host.sleep(host.now() + self.warm_up);
        course.count();
        host.sleep(host.now() + self.measured);
        course.end();
        // Wait for operations in flight.
        host.sleep(host.now() + 1_000_000);
        stop.raise();
        tasks.into_iter().for_each(Task::join);
        server.shutdown(Duration::from_secs(1));
        Ok(())
    }
}

/// One client.
struct Player {
    sim: Sim,
    random: Random,
    load: Bypass,
    course: Arc<MeasuredRun<Done>>,
    number: u64,
}

impl Player {
    /// Connects, stores its share of the items, and performs operations until the end of the run.
    fn play(
        mut self,
        [puts, reads]: &[Address; 2],
        start: &impl Signal,
        connected: impl FnOnce(),
    ) -> Result<BypassClient<Sim>, CourseError> {
        let config = ClientConfig {
            timeout: Duration::MAX,
            connect_timeout: Duration::from_nanos(FOREVER / 8),
            ..ClientConfig::with_plan(self.load.puts)
        };
        let mut client = BypassClient::connect(&self.sim, [puts, reads], config).map_err(thread)?;
        let mut value = vec![7; self.load.value_bytes];
        let mut number = self.number;
        while number < self.load.items {
            client.put(&key_of(number), &value).map_err(thread)?;
            number += self.load.clients as u64;
        }
        connected();
        start.wait(0, FOREVER);
        let (mut before, mut operations, mut latencies) = (None, 0, 0);
        let mut got = Vec::with_capacity(self.load.value_bytes);
        while self.course.phase() != Phase::Over {
            if before.is_none() && self.course.phase() == Phase::Counting {
                before = Some(client.counts());
            }
            let key = key_of(self.random.below(self.load.items));
            let since = self.sim.time();
            if self.random.below(100) < u64::from(self.load.gets_percent) {
                if !client.get(&key, &mut got).map_err(thread)? || got.len() != value.len() {
                    return Err(thread("an item that was stored is not there"));
                }
            } else {
                value.fill(operations as u8);
                client.put(&key, &value).map_err(thread)?;
            }
            if before.is_some() && self.course.phase() == Phase::Counting {
                operations += 1;
                latencies += u128::from(self.sim.time() - since);
            }
        }
        let (before, after) = (before.unwrap_or_default(), client.counts());
        let mut done = self.course.gathered();
        done.operations += operations;
        done.latencies += latencies;
        done.counts.gets += after.gets - before.gets;
        done.counts.reads += after.reads - before.reads;
        done.counts.retries += after.retries - before.retries;
        drop(done);
        Ok(client)
    }
}
