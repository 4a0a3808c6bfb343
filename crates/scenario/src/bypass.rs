//! A store whose clients READ its tables, on a simulated cluster: GETs by one READ after the other, PUTs by RPC, in closed loop.

use dunlin_fabric::{Address, Fabric, Host, Nanos, Scheme, Signal, Task};
use dunlin_fabric_sim::{
    MachineSettings, ModelTiming, Prices, Random, RunError, Settings, Sim, TimingSettings,
};
use dunlin_kv::bypass::{BypassClient, BypassConfig, BypassServer, Kind, ReadCounts};
use dunlin_rnic_model::{Parameter, Profile, ProfileError};
use dunlin_rpc::{ClientConfig, Plan, ServerConfig};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use thiserror::Error;

/// A load of GETs and PUTs on tables that clients READ.
#[derive(Clone, Debug)]
pub struct Bypass {
    /// The profile of all hosts.
    pub profile: String,
    /// The data structure.
    pub kind: Kind,
    /// Client hosts.
    pub client_hosts: usize,
    /// Clients, each a thread that makes one operation after the other.
    pub clients: usize,
    /// Threads of the server, which only PUTs concern.
    pub threads: u16,
    /// By what PUTs travel.
    pub puts: Plan,
    /// Keys of 16 bytes, all there from the beginning; each operation takes one by even chance.
    pub items: u64,
    /// Bytes of a value.
    pub value_bytes: usize,
    /// GETs of a hundred operations; the others are PUTs.
    pub gets_percent: u32,
    /// From the start until it counts, in nanoseconds.
    pub warm_up: Nanos,
    /// For how long it counts.
    pub measured: Nanos,
    /// The virtual time after which the run is given up.
    pub limit: Nanos,
}

/// What it came to.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BypassOutcome {
    /// Operations done.
    pub operations: u64,
    /// For how long they counted, in nanoseconds.
    pub time_ns: Nanos,
    /// Their mean latency.
    pub mean_ns: f64,
    /// READs of a GET, on average.
    pub reads_per_get: f64,
    /// Times that a GET read again what was being written, on average.
    pub retries_per_get: f64,
    /// A hash over all events.
    pub trace_hash: u64,
}

/// Why it did not come to its end.
#[derive(Debug, Error)]
pub enum BypassError {
    /// It describes nothing that could run.
    #[error("{what} cannot be {value}")]
    Nothing {
        /// What.
        what: &'static str,
        /// Its value.
        value: u64,
    },
    /// No such profile, or a bad one.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// The run did not end as it should.
    #[error(transparent)]
    Run(#[from] RunError),
    /// A client or the server could not go on.
    #[error("a simulated thread cannot go on: {0}")]
    Thread(String),
}

fn thread(error: impl std::fmt::Display) -> BypassError {
    BypassError::Thread(error.to_string())
}

#[derive(Default)]
struct Shared {
    operations: u64,
    latencies: u128,
    counts: ReadCounts,
    error: Option<BypassError>,
}

/// What all threads of a run share. One of them runs at a time, so nobody ever waits for the lock.
#[derive(Clone, Default)]
struct Board {
    shared: Arc<Mutex<Shared>>,
    connected: Arc<AtomicU64>,
    phase: Arc<AtomicU64>,
}

const COUNTING: u64 = 1;
const OVER: u64 = 2;

impl Board {
    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn phase(&self) -> u64 {
        self.phase.load(Ordering::Relaxed)
    }

    fn ended(&self, result: Result<(), BypassError>) {
        if let Err(error) = result {
            self.lock().error.get_or_insert(error);
            self.phase.store(OVER, Ordering::Relaxed);
        }
    }
}

const KEY_BYTES: usize = 16;
const FOREVER: Nanos = Nanos::MAX;

fn key_of(number: u64) -> [u8; KEY_BYTES] {
    let mut key = [0; KEY_BYTES];
    key[..8].copy_from_slice(&(number ^ number >> 31).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
    key[8..].copy_from_slice(&number.to_le_bytes());
    key
}

impl Bypass {
    fn check(&self) -> Result<(), BypassError> {
        let wrong = |what, value: u64| Err(BypassError::Nothing { what, value });
        for (what, value) in [
            ("the number of client hosts", self.client_hosts as u64),
            ("the number of clients", self.clients as u64),
            ("the number of server threads", self.threads.into()),
            ("the number of items", self.items),
            ("the measured time", self.measured),
        ] {
            if value == 0 {
                return wrong(what, 0);
            }
        }
        if self.gets_percent > 100 {
            return wrong("the share of GETs", self.gets_percent.into());
        }
        Ok(())
    }

    /// Runs it.
    ///
    /// # Errors
    /// A load of which nothing could come, and a run that did not end well.
    pub fn run(&self, seed: u64) -> Result<BypassOutcome, BypassError> {
        self.check()?;
        let profile = Arc::new(Profile::built_in(&self.profile)?);
        let hosts = self.client_hosts + 1;
        let defaults = Settings::default();
        let mut settings = Settings {
            machines: vec![MachineSettings::default(); hosts],
            limit: defaults.start.saturating_add(self.limit),
            max_tasks: self.clients + usize::from(self.threads) + 64,
            run_ahead: 10_000_000_000,
            spurious: 0,
            preemption: 0,
            slack: 300,
            prices: Prices::of(&profile),
            ..defaults
        };
        settings.capabilities.max_inline = profile.number(Parameter::InlineLimit) as u32;
        let machines = vec![(Arc::clone(&profile), 1); hosts];
        settings.timing = TimingSettings::Model(ModelTiming { machines, switch_ns: None, control_ns: 5_000 });
        let board = Board::default();
        let (load, played) = (self.clone(), board.clone());
        let report = Sim::run_with(settings, seed, move |sim| {
            let result = load.play(&sim, seed, &played);
            played.ended(result);
        })?;
        let mut shared = board.lock();
        if let Some(error) = shared.error.take() {
            return Err(error);
        }
        Ok(BypassOutcome {
            operations: shared.operations,
            time_ns: self.measured,
            mean_ns: shared.latencies as f64 / shared.operations.max(1) as f64,
            reads_per_get: shared.counts.reads_per_get(),
            retries_per_get: shared.counts.retries as f64 / shared.counts.gets.max(1) as f64,
            trace_hash: report.trace_hash,
        })
    }

    fn play(&self, sim: &Sim, seed: u64, board: &Board) -> Result<(), BypassError> {
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
        let tasks: Vec<Task> = (0..self.clients)
            .filter_map(|number| {
                let player = Player {
                    sim: hosts[number % hosts.len()].clone(),
                    random: Random::new(seed, 1000 + number as u64),
                    load: self.clone(),
                    board: board.clone(),
                    number: number as u64,
                };
                let (addresses, host) = (addresses.clone(), player.sim.host().clone());
                let (news, start, stop, board) = (news.clone(), start.clone(), stop.clone(), board.clone());
                let body = move || {
                    let played = player.play(&addresses, &start, || {
                        board.connected.fetch_add(1, Ordering::Relaxed);
                        news.raise();
                    });
                    // Who goes early would have others wait for what its end costs.
                    let client = match played {
                        Ok(client) => Some(client),
                        Err(error) => {
                            board.ended(Err(error));
                            news.raise();
                            None
                        }
                    };
                    stop.wait(0, FOREVER);
                    drop(client);
                };
                host.spawn("client", Box::new(body)).ok()
            })
            .collect();
        loop {
            let seen = news.seen();
            if board.connected.load(Ordering::Relaxed) >= tasks.len() as u64 || board.phase() == OVER {
                break;
            }
            news.wait(seen, FOREVER);
        }
        start.raise();
        let host = sim.host();
        host.sleep(host.now() + self.warm_up);
        board.phase.fetch_max(COUNTING, Ordering::Relaxed);
        host.sleep(host.now() + self.measured);
        board.phase.store(OVER, Ordering::Relaxed);
        // Operations that are under way end.
        host.sleep(host.now() + 1_000_000);
        stop.raise();
        tasks.into_iter().for_each(Task::join);
        server.shutdown(1_000_000_000);
        Ok(())
    }
}

/// One client.
struct Player {
    sim: Sim,
    random: Random,
    load: Bypass,
    board: Board,
    number: u64,
}

impl Player {
    /// Connects, stores its share of the items, and then makes operations until all is over.
    fn play(
        mut self,
        [puts, reads]: &[Address; 2],
        start: &impl Signal,
        connected: impl FnOnce(),
    ) -> Result<BypassClient<Sim>, BypassError> {
        let config = ClientConfig {
            timeout: 0,
            connect_timeout: FOREVER / 8,
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
        while self.board.phase() != OVER {
            if before.is_none() && self.board.phase() == COUNTING {
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
            if before.is_some() && self.board.phase() == COUNTING {
                operations += 1;
                latencies += u128::from(self.sim.time() - since);
            }
        }
        let (before, after) = (before.unwrap_or_default(), client.counts());
        let mut shared = self.board.lock();
        shared.operations += operations;
        shared.latencies += latencies;
        shared.counts.gets += after.gets - before.gets;
        shared.counts.reads += after.reads - before.reads;
        shared.counts.retries += after.retries - before.retries;
        drop(shared);
        Ok(client)
    }
}
