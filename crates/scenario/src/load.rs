//! Clients by the thousand on one server: closed loop (a call follows its answer after a think time) or open loop (calls
//! come when they come), on a cluster of any shape.

use crate::random_values::{Sizes, Skew, Times};
use dunlin_fabric::{Address, Fabric, Host, Nanos, Scheme, Signal, Task};
use dunlin_fabric_sim::{
    FixedTiming, MachineSettings, ModelTiming, Prices, Random, RunError, Settings, Sim, TimingSettings,
};
use dunlin_rnic_model::{Parameter, Profile, ProfileError};
use dunlin_rpc::{
    CallError, Cause, Client, ClientConfig, CompletionMode, ConnectError, FunctionMode, PROTOCOLS, Plan,
    Reply, Request, ServeError, ServerBuilder, ServerConfig,
};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use thiserror::Error;

/// What the network is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Network {
    /// Fixed rates: 600 ns one way, 20 ns a message.
    Rates,
    /// The model, with one of its profiles for all hosts.
    Modelled(String),
}

impl Network {
    /// Its name in reports.
    pub fn name(&self) -> &str {
        match self {
            Network::Rates => "rates",
            Network::Modelled(profile) => profile,
        }
    }
}

/// When a client makes its next call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pace {
    /// So many calls in flight; each answer makes the next call, after a think time.
    Closed {
        /// Calls in flight.
        window: u16,
        /// Time between an answer and the next call; for a window of one only.
        think: Times,
    },
    /// One after each gap, whatever is in flight; latency counts from when a call was due.
    Open {
        /// Time between calls.
        gaps: Times,
    },
}

/// How much of a load is played.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// So many calls of all clients together, each client its share; all of them count.
    Calls(u64),
    /// Every client calls on and on; what ends within `measured` after `warm_up` counts. So nobody is idle while others
    /// end their share.
    Time {
        /// From the start until calls count.
        warm_up: Nanos,
        /// For how long they count.
        measured: Nanos,
    },
}

/// Whom a client is connected to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Connections {
    /// To one worker.
    One,
    /// To each worker; each call goes to one by chance, as to a store whose workers own a part of the keys each.
    EachWorker,
}

/// A load.
#[derive(Clone, Debug)]
pub struct Load {
    /// The network.
    pub network: Network,
    /// Client hosts.
    pub client_hosts: usize,
    /// NICs of each host.
    pub nics: u16,
    /// Cores of the server, and of each client host; `None` for one each thread.
    pub server_cores: Option<u32>,
    /// As above.
    pub client_cores: Option<u32>,
    /// Worker threads of the server.
    pub workers: u16,
    /// The plan of all calls.
    pub plan: Plan,
    /// Client threads.
    pub clients: usize,
    /// Whom each is connected to.
    pub connections: Connections,
    /// When calls are made.
    pub pace: Pace,
    /// How much is played.
    pub extent: Extent,
    /// Request payloads.
    pub requests: Sizes,
    /// Result payloads.
    pub results: Sizes,
    /// What the handler takes beside the engine.
    pub service: Times,
    /// Skew over workers, of clients or (with connections to each) of calls; without it clients are dealt out in turn, and
    /// calls by even chance.
    pub worker_skew: Option<f64>,
    /// Bytes of each ring.
    pub ring_bytes: u32,
    /// The virtual time, connecting included, after which the run is given up: a load that does not come to its end is an
    /// error and no hang.
    pub limit: Nanos,
}

/// Why a load was not run to its end.
#[derive(Debug, Error)]
pub enum LoadError {
    /// The load describes nothing that could run.
    #[error("{what} is 0: a load needs at least one")]
    Nothing {
        /// What there is none of.
        what: &'static str,
    },
    /// No such profile, or a bad one.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// More connections than the cluster can hold.
    #[error("{clients} clients make {queue_pairs} queue pairs at the server's NIC, which holds {limit}")]
    QueuePairs {
        /// Clients asked for.
        clients: usize,
        /// Their connections.
        queue_pairs: usize,
        /// The most there can be.
        limit: usize,
    },
    /// The run did not end as it should.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The server did not start.
    #[error("the simulated server: {0}")]
    Serve(#[from] ServeError),
    /// A client could not connect.
    #[error("a simulated client: {0}")]
    Connect(#[from] ConnectError),
    /// A call failed.
    #[error("a simulated call failed: {0}")]
    Call(CallError),
}

/// What a load came to. Times are virtual.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LoadOutcome {
    /// Calls answered, of those that count.
    pub calls: u64,
    /// For how long calls counted: from the first call to the last answer, or the time asked for.
    pub time_ns: Nanos,
    /// Latency of calls.
    pub mean_ns: f64,
    /// As above.
    pub p50_ns: Nanos,
    /// As above.
    pub p99_ns: Nanos,
    /// As above.
    pub max_ns: Nanos,
    /// Events of the simulator from the first call on.
    pub events: u64,
    /// Times that a task was given the processor, from the first call on.
    pub switches: u64,
    /// What `probe` said at the first call and after the last answer, everything still connected.
    pub probes: [u64; 4],
    /// A hash over all events.
    pub trace_hash: u64,
}

impl LoadOutcome {
    /// Calls per second of virtual time.
    pub fn throughput(&self) -> f64 {
        self.calls as f64 * 1e9 / self.time_ns.max(1) as f64
    }
}

/// Latencies in buckets an eighth of a power of two wide.
///
/// One task of a run runs at a time, so plain loads and stores of the shared numbers lose nothing, and a locked
/// instruction for each call would make its cache misses wait for one another.
struct Latencies {
    buckets: Vec<AtomicU64>,
    sum: AtomicU64,
    max: AtomicU64,
}

impl Latencies {
    fn new() -> Self {
        Latencies {
            buckets: (0..64 * 16).map(|_| AtomicU64::new(0)).collect(),
            sum: AtomicU64::new(0),
            max: AtomicU64::new(0),
        }
    }

    fn bucket(value: Nanos) -> usize {
        let power = 63 - (value | 16).leading_zeros() as usize;
        power * 16 + ((value >> (power - 4)) & 15) as usize
    }

    fn record(&self, value: Nanos) {
        let bucket = &self.buckets[Latencies::bucket(value)];
        bucket.store(bucket.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        self.sum.store(self.sum.load(Ordering::Relaxed) + value, Ordering::Relaxed);
        if value > self.max() {
            self.max.store(value, Ordering::Relaxed);
        }
    }

    fn max(&self) -> Nanos {
        self.max.load(Ordering::Relaxed)
    }

    /// Latencies recorded.
    fn count(&self) -> u64 {
        self.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed)).sum()
    }

    fn quantile(&self, share: f64) -> Nanos {
        let mut left = (self.count() as f64 * share) as u64;
        for (bucket, count) in self.buckets.iter().enumerate() {
            let count = count.load(Ordering::Relaxed);
            if count > left {
                let (power, step) = (bucket / 16, bucket % 16);
                return (16 + step as u64) << power.saturating_sub(4);
            }
            left -= count;
        }
        self.max()
    }
}

/// What all tasks of a run share.
#[derive(Clone)]
struct Board {
    latencies: Arc<Latencies>,
    error: Arc<Mutex<Option<LoadError>>>,
    connected: Arc<AtomicU64>,
    done: Arc<AtomicU64>,
    /// Whether what is answered counts.
    counting: Arc<AtomicBool>,
    /// No more calls are made.
    over: Arc<AtomicBool>,
}

impl Board {
    fn new(counting: bool) -> Self {
        Board {
            latencies: Arc::new(Latencies::new()),
            error: Arc::default(),
            connected: Arc::default(),
            done: Arc::default(),
            counting: Arc::new(AtomicBool::new(counting)),
            over: Arc::default(),
        }
    }

    fn error(&self) -> MutexGuard<'_, Option<LoadError>> {
        self.error.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fail(&self, error: LoadError) {
        self.error().get_or_insert(error);
    }
}

const FUNCTION: u16 = 1;
/// Connections that one server's NIC can have.
const MOST_QUEUE_PAIRS: usize = 60_000;
/// The virtual time within which a load has to end where nothing else is said.
const LIMIT: Nanos = 3_600_000_000_000;

impl Load {
    /// The load by which the simulator itself is measured: synchronous calls of 32 bytes, `write` both ways.
    pub fn bench(clients: usize, calls: u64, network: Network) -> Load {
        let plan = PROTOCOLS[0].plan(CompletionMode::Busy);
        Load {
            network,
            client_hosts: clients.div_ceil(40).clamp(1, 100),
            nics: 1,
            server_cores: None,
            client_cores: None,
            workers: 4,
            plan,
            clients,
            connections: Connections::One,
            pace: Pace::Closed { window: 1, think: Times::Fixed(0) },
            extent: Extent::Calls(calls),
            requests: Sizes::Fixed(32),
            results: Sizes::Fixed(32),
            service: Times::Fixed(0),
            worker_skew: None,
            ring_bytes: 16 * 1024,
            limit: LIMIT,
        }
    }

    fn settings(&self) -> Result<Settings, LoadError> {
        for (what, number) in [
            ("the number of client hosts", self.client_hosts as u64),
            ("the number of NICs", self.nics.into()),
            ("the number of clients", self.clients as u64),
            ("the limit of virtual time", self.limit),
            match self.extent {
                Extent::Calls(calls) => ("the number of calls", calls),
                Extent::Time { measured, .. } => ("the measured time", measured),
            },
        ] {
            if number == 0 {
                return Err(LoadError::Nothing { what });
            }
        }
        let queue_pairs = match self.connections {
            Connections::One => self.clients,
            Connections::EachWorker => self.clients * usize::from(self.workers),
        };
        if queue_pairs > MOST_QUEUE_PAIRS {
            let limit = MOST_QUEUE_PAIRS;
            return Err(LoadError::QueuePairs { clients: self.clients, queue_pairs, limit });
        }
        let hosts = self.client_hosts + 1;
        let mut settings = Settings::default();
        let machine = |cores| MachineSettings { cores, ..MachineSettings::default() };
        settings.machines = vec![machine(self.client_cores); hosts];
        settings.machines[0] = machine(self.server_cores);
        settings.limit = settings.start.saturating_add(self.limit);
        settings.max_tasks = self.clients + 1024 + usize::from(self.workers);
        // The end of all clients at once is told to all workers in one go: hundreds of milliseconds with 512 of each.
        settings.run_ahead = 10_000_000_000;
        settings.spurious = 0;
        settings.preemption = 0;
        settings.slack = 300;
        match &self.network {
            Network::Rates => {
                let rates = FixedTiming { latency: 600, message: 20, byte_picoseconds: 80 };
                settings.timing = TimingSettings::Fixed(rates);
            }
            Network::Modelled(name) => {
                let profile = Arc::new(Profile::built_in(name)?);
                settings.prices = Prices::of(&profile);
                settings.capabilities.max_inline = profile.number(Parameter::InlineLimit) as u32;
                let machines = vec![(profile, self.nics); hosts];
                let control_ns = 5_000;
                settings.timing =
                    TimingSettings::Model(ModelTiming { machines, switch_ns: None, control_ns });
            }
        }
        Ok(settings)
    }

    /// Runs the load. `probe` is asked for two numbers (time and memory, say) when all are connected and when all calls
    /// are answered.
    ///
    /// # Errors
    /// A load of which nothing could come, and a run that did not end well.
    pub fn run(&self, seed: u64, probe: fn() -> [u64; 2]) -> Result<LoadOutcome, LoadError> {
        let settings = self.settings()?;
        let board = Board::new(matches!(self.extent, Extent::Calls(_)));
        let found = Arc::new(Mutex::new(LoadOutcome::default()));
        let (load, played, told) = (self.clone(), board.clone(), Arc::clone(&found));
        let report = Sim::run_with(settings, seed, move |sim| {
            let outcome = load.play(&sim, seed, &played, probe);
            *told.lock().unwrap_or_else(PoisonError::into_inner) = outcome;
        })?;
        if let Some(error) = board.error().take() {
            return Err(error);
        }
        let mut outcome = found.lock().unwrap_or_else(PoisonError::into_inner).clone();
        outcome.calls = board.latencies.count();
        outcome.mean_ns = board.latencies.sum.load(Ordering::Relaxed) as f64 / outcome.calls.max(1) as f64;
        outcome.p50_ns = board.latencies.quantile(0.5);
        outcome.p99_ns = board.latencies.quantile(0.99);
        outcome.max_ns = board.latencies.max();
        outcome.trace_hash = report.trace_hash;
        Ok(outcome)
    }

    fn play(&self, sim: &Sim, seed: u64, board: &Board, probe: fn() -> [u64; 2]) -> LoadOutcome {
        let mut outcome = LoadOutcome::default();
        let server_config = ServerConfig {
            workers: self.workers,
            window: 1024,
            max_ring_bytes: self.ring_bytes,
            max_connections: self.clients as u32 + 1,
            max_payload: u64::from(self.requests.largest()).max(4096),
            max_response: u64::from(self.results.largest()).max(4096),
            ..ServerConfig::default()
        };
        let Ok(address) = Address::new(Scheme::Sim, "load") else { return outcome };
        let service_host = sim.host().clone();
        let (service, results) = (self.service, self.results);
        let server = ServerBuilder::new(sim)
            .config(server_config)
            .function(FUNCTION, FunctionMode::Worker)
            .serve(&address, |worker| {
                let host = service_host.clone();
                let mut random = Random::new(seed, 100 + u64::from(worker));
                Box::new(move |_: &Request<'_>, reply: &mut Reply<'_>| {
                    let time = service.next(&mut random);
                    if time > 0 {
                        host.work(time);
                    }
                    reply.reserve(results.next(&mut random) as usize)?;
                    Ok(())
                })
            });
        let server = match server {
            Ok(server) => server,
            Err(error) => {
                board.fail(error.into());
                return outcome;
            }
        };
        let (start, news, stop) = (sim.host().signal(), sim.host().signal(), sim.host().signal());
        let hosts: Vec<Sim> = (0..self.client_hosts).map(|host| sim.process_on(1 + host)).collect();
        let skew = self.worker_skew.map(|theta| Skew::zipfian(self.workers.into(), theta));
        let per_call = self.connections == Connections::EachWorker;
        let calls_to = per_call.then(|| skew.clone().unwrap_or(Skew::Uniform(self.workers.into())));
        let mut random = Random::new(seed, 50);
        let tasks: Vec<Task> = (0..self.clients)
            .filter_map(|number| {
                let worker = match &skew {
                    _ if per_call => None,
                    Some(skew) => Some(skew.next(&mut random) as u16),
                    None => Some((number % usize::from(self.workers.max(1))) as u16),
                };
                let share = match self.extent {
                    Extent::Calls(calls) => {
                        let rest = calls % self.clients as u64;
                        calls / self.clients as u64 + u64::from((number as u64) < rest)
                    }
                    Extent::Time { .. } => u64::MAX,
                };
                let player = Player {
                    sim: hosts[number % hosts.len()].clone(),
                    random: Random::new(seed, 1000 + number as u64),
                    load: self.clone(),
                    board: board.clone(),
                    calls_to: calls_to.clone(),
                    left: share,
                };
                let host = player.sim.host().clone();
                let (address, start, news, stop) =
                    (address.clone(), start.clone(), news.clone(), stop.clone());
                let body = move || player.play(&address, worker, &start, &news, &stop);
                host.spawn("client", Box::new(body)).ok()
            })
            .collect();
        let all = |count: &AtomicU64| {
            loop {
                let seen = news.seen();
                if count.load(Ordering::Relaxed) >= tasks.len() as u64 {
                    return;
                }
                news.wait(seen, Nanos::MAX);
            }
        };
        all(&board.connected);
        let (mut began, events, switches, first) = (sim.time(), sim.events(), sim.switches(), probe());
        start.raise();
        if let Extent::Time { warm_up, measured } = self.extent {
            let host = sim.host();
            host.sleep(host.now() + warm_up);
            board.counting.store(true, Ordering::Relaxed);
            began = sim.time();
            host.sleep(host.now() + measured);
            board.counting.store(false, Ordering::Relaxed);
            outcome.time_ns = sim.time() - began;
            board.over.store(true, Ordering::Relaxed);
        }
        all(&board.done);
        let last = probe();
        if matches!(self.extent, Extent::Calls(_)) {
            outcome.time_ns = sim.time() - began;
        }
        outcome.events = sim.events() - events;
        outcome.switches = sim.switches() - switches;
        outcome.probes = [first[0], first[1], last[0], last[1]];
        stop.raise();
        tasks.into_iter().for_each(Task::join);
        server.shutdown(1_000_000_000);
        outcome
    }
}

/// One client.
struct Player {
    sim: Sim,
    random: Random,
    load: Load,
    board: Board,
    /// Which worker a call goes to, if not always to the one.
    calls_to: Option<Skew>,
    /// Calls to make.
    left: u64,
}

impl Player {
    fn play<S: Signal>(mut self, address: &Address, worker: Option<u16>, start: &S, news: &S, stop: &S) {
        let window = match self.load.pace {
            Pace::Closed { window, .. } => window.max(1),
            Pace::Open { .. } => 256,
        };
        let config = ClientConfig {
            window,
            ring_bytes: self.load.ring_bytes,
            timeout: 0,
            connect_timeout: Nanos::MAX / 8,
            max_response: u64::from(self.load.results.largest()).max(4096),
            worker,
            ..ClientConfig::with_plan(self.load.plan)
        };
        let client = Client::connect(&self.sim, address, config);
        self.board.connected.fetch_add(1, Ordering::Relaxed);
        news.raise();
        match client {
            Ok(mut client) => {
                start.wait(0, Nanos::MAX);
                if let Err(error) = self.call_all(&mut client) {
                    self.board.fail(LoadError::Call(error));
                }
                self.board.done.fetch_add(1, Ordering::Relaxed);
                news.raise();
                stop.wait(0, Nanos::MAX);
            }
            Err(error) => {
                self.board.fail(error.into());
                self.board.done.fetch_add(1, Ordering::Relaxed);
                news.raise();
            }
        }
    }

    fn answered(&self, since: Nanos) {
        if self.board.counting.load(Ordering::Relaxed) {
            self.board.latencies.record(self.sim.time().saturating_sub(since));
        }
    }

    /// Whether there is another call to make.
    fn wants(&self) -> bool {
        self.left > 0 && !self.board.over.load(Ordering::Relaxed)
    }

    /// Worker and payload size of the next call, which is made.
    fn next(&mut self) -> (usize, usize) {
        self.left -= 1;
        let worker = match &self.calls_to {
            Some(skew) => skew.next(&mut self.random) as usize,
            None => 0,
        };
        (worker, self.load.requests.next(&mut self.random) as usize)
    }

    fn call_all(&mut self, client: &mut Client<Sim>) -> Result<(), CallError> {
        let payload = vec![7u8; self.load.requests.largest() as usize];
        let host = self.sim.host().clone();
        match self.load.pace {
            Pace::Closed { window: 0 | 1, think } => {
                while self.wants() {
                    let (worker, size) = self.next();
                    let since = self.sim.time();
                    drop(client.call_on(worker, FUNCTION, &payload[..size])?);
                    self.answered(since);
                    let think = think.next(&mut self.random);
                    if think > 0 {
                        host.sleep(host.now() + think);
                    }
                }
            }
            Pace::Closed { window, .. } => {
                let mut open = VecDeque::new();
                let mut refused = None;
                while refused.is_some() || self.wants() || !open.is_empty() {
                    let next = match refused.take() {
                        None if self.wants() && open.len() < usize::from(window) => Some(self.next()),
                        other => other,
                    };
                    if let Some((worker, size)) = next {
                        match client.submit_on(worker, FUNCTION, &payload[..size]) {
                            Ok(id) => {
                                open.push_back((id, self.sim.time()));
                                continue;
                            }
                            Err(CallError::NotExecuted(Cause::WindowFull)) if !open.is_empty() => {
                                refused = next;
                            }
                            Err(error) => return Err(error),
                        }
                    }
                    if let Some((id, since)) = open.pop_front() {
                        drop(client.wait(id)?);
                        self.answered(since);
                    }
                }
            }
            Pace::Open { gaps } => {
                let mut due = self.sim.time();
                let mut open = VecDeque::new();
                while self.wants() {
                    due += gaps.next(&mut self.random);
                    // Until then answers are taken; a sleep of the whole gap would leave them lying.
                    while self.sim.time() < due {
                        client.progress();
                        self.take_done(client, &mut open)?;
                        let left = due.saturating_sub(self.sim.time());
                        host.sleep(host.now() + left.min(1_000));
                    }
                    let (worker, size) = self.next();
                    loop {
                        match client.submit_on(worker, FUNCTION, &payload[..size]) {
                            Ok(id) => break open.push_back((id, due)),
                            Err(CallError::NotExecuted(Cause::WindowFull)) => {
                                let Some((id, since)) = open.pop_front() else { continue };
                                drop(client.wait(id)?);
                                self.answered(since);
                            }
                            Err(error) => return Err(error),
                        }
                    }
                }
                while let Some((id, since)) = open.pop_front() {
                    drop(client.wait(id)?);
                    self.answered(since);
                }
            }
        }
        Ok(())
    }

    fn take_done(
        &self,
        client: &mut Client<Sim>,
        open: &mut VecDeque<(dunlin_rpc::CallId, Nanos)>,
    ) -> Result<(), CallError> {
        while let Some(&(id, since)) = open.front() {
            if !client.is_done(id) {
                break;
            }
            open.pop_front();
            drop(client.wait(id)?);
            self.answered(since);
        }
        Ok(())
    }
}
