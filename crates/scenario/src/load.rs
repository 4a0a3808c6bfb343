//! Thousands of clients on one server: closed loop (a call follows its answer after a think time) or open
//! loop (calls arrive by their own schedule), on a cluster of any shape.

mod error;
mod function;
mod granted;
mod handles;
mod latencies;
mod pace;
mod player;
mod posts;
mod signaled;

pub use dunlin_rpc::Sharing;
pub use error::LoadError;
use function::Handler;
pub use function::{Function, FunctionOutcome, Step};
pub use granted::Granted;
pub(crate) use latencies::Latencies;
pub use pace::{Extent, Pace};
use player::{Player, Table};
use posts::Posts;
use signaled::Signaled;

use crate::measured_run::{cluster, cost_as};
use crate::memory::{Ahead, Core};
use crate::random_values::{Sizes, Skew, Times};
use crate::rates::modelled_rates;
use dunlin_fabric::interpose::{Count, Interposed};
use dunlin_fabric::{Address, Fabric, Host, Nanos, Scheme, Signal, Task};
use dunlin_fabric_sim::{FixedTiming, NicCounters, Random, Settings, Sim, TimingSettings};
use dunlin_rnic_model::{Profile, ProfileError};
use dunlin_rpc::{
    BatchCalls, Batching, CompletionMode, CreditRenewal, FetchChoice, FirstRead, FunctionMode, GroupCounters,
    PROTOCOLS, Plan, QueuePairUse, RequestPool, ResponseHalf, ServeError, ServerBuilder, ServerConfig,
};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The network of a load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Network {
    /// Fixed rates: 600 ns one-way latency, 20 ns per message.
    Rates,
    /// The hardware model, with one of its profiles for all hosts.
    Modelled(String),
}

impl Network {
    /// Returns a network by name: `rates`, or the model with the profile of that name.
    ///
    /// # Errors
    /// Returns an error for an unknown profile, with the nearest name.
    pub fn by_name(name: &str) -> Result<Network, ProfileError> {
        if name == Network::Rates.name() {
            return Ok(Network::Rates);
        }
        Profile::built_in(name).map(|_| Network::Modelled(name.to_owned()))
    }

    /// Returns the name used in reports.
    pub fn name(&self) -> &str {
        match self {
            Network::Rates => "rates",
            Network::Modelled(profile) => profile,
        }
    }
}

/// The connections of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Connections {
    /// To one worker.
    One,
    /// To each worker; each call goes to a random one, as in a store whose workers each own a part of the keys.
    EachWorker,
}

/// How the work requests of clients reach the fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Posting {
    /// As the engine posts them.
    Engine,
    /// As the engine posts them, and counted ([`LoadOutcome::posted`]).
    Counted,
    /// All are signaled, and the client waits for each completion before any other work; also counted.
    Signaled,
}

/// The groups of a server's clients whose lease is a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grouping {
    /// Clients of a group.
    pub size: u16,
    /// Time for which a group is served, in nanoseconds.
    pub slice: Nanos,
    /// Whether busier clients are grouped together.
    pub by_priority: bool,
}

impl Grouping {
    /// The settings of ScaleRPC section 3.6.1.
    pub const PAPER: Grouping = Grouping { size: 40, slice: 100_000, by_priority: true };
}

/// A load of clients on one server.
#[derive(Clone, Debug)]
pub struct Load {
    /// The network.
    pub network: Network,
    /// Number of client hosts.
    pub client_hosts: usize,
    /// NICs per host.
    pub nics: u16,
    /// Cores of the server; `None` for one per thread.
    pub server_cores: Option<u32>,
    /// Cores of each client host; `None` for one per thread.
    pub client_cores: Option<u32>,
    /// How long a thread spins on its core while others wait for one, in nanoseconds; `None` for until the
    /// end of its quantum.
    pub spin_patience: Option<Nanos>,
    /// Worker threads of the server.
    pub workers: u16,
    /// Client threads.
    pub clients: usize,
    /// Connections of all client threads together; `None` for one for each thread. The threads of a host share
    /// its connections evenly, as [`Plan::sharing`] of the first function says.
    pub handles: Option<usize>,
    /// The most calls in one message of a combined connection.
    pub most_together: u16,
    /// The length from which on requests that meet others leave from memory of their threads
    /// ([`ClientConfig::own_memory_from`](dunlin_rpc::ClientConfig::own_memory_from)).
    pub own_memory_from: u32,
    /// The most queue pairs of a combined connection to its worker. With one, the load says which threads share.
    pub queue_pairs: u16,
    /// How a combined connection assigns its threads to queue pairs
    /// ([`ClientConfig::thread_scheduling`](dunlin_rpc::ClientConfig::thread_scheduling)).
    pub thread_scheduling: Option<Duration>,
    /// How a combined connection asks for more credits.
    pub credit_renewal: CreditRenewal,
    /// Connections of each client.
    pub connections: Connections,
    /// When calls are made.
    pub pace: Pace,
    /// How much is played.
    pub extent: Extent,
    /// Functions that are called; each call picks one at random by weight.
    pub functions: Vec<Function>,
    /// Each thread calls one function only. Functions are dealt to threads in turns, by weight.
    pub function_of_thread: bool,
    /// Zipfian skew over workers, of clients or (with connections to each worker) of calls. `None`
    /// distributes clients round-robin and calls uniformly.
    pub worker_skew: Option<f64>,
    /// With connections to each worker: number of keys and Zipfian skew. Workers own keys by hash, and each
    /// call or batch goes to the owner of its key.
    pub key_skew: Option<(u64, f64)>,
    /// The groups of clients whose lease is a slice.
    pub groups: Grouping,
    /// The blocks of one region for the requests of all clients, in bytes; `None` for a region for each client.
    pub request_blocks: Option<u32>,
    /// Whether the fabric supports inline payloads, up to the profile's limit.
    pub inline: bool,
    /// How clients post.
    pub posting: Posting,
    /// How clients choose R and F if their results are fetched or written back.
    pub fetch_choice: FetchChoice,
    /// When such clients send the first READ for a result.
    pub first_read: FirstRead,
    /// Width of the stretches of [`LoadOutcome::timeline`] in nanoseconds; 0 for no timeline.
    pub timeline: Nanos,
    /// Whether server threads signal each of their work requests and wait for its completion.
    pub server_waits: bool,
    /// Bytes of each ring.
    pub ring_bytes: u32,
    /// Virtual time, connecting included, after which the run is aborted. A load that does not come to its
    /// end is an error, not a hang.
    pub limit: Nanos,
}

/// The result of a load. Times are virtual.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LoadOutcome {
    /// All calls together.
    pub all: FunctionOutcome,
    /// The calls of each function.
    pub functions: Vec<FunctionOutcome>,
    /// Measured time in nanoseconds: from the first call to the last answer, or the requested time.
    pub time_ns: Nanos,
    /// Latency curve: pairs of percent of calls and latency in nanoseconds.
    pub percentiles: Vec<(f64, Nanos)>,
    /// Calls answered by each worker during the measurement.
    pub by_worker: Vec<u64>,
    /// Work requests that clients posted for measured calls, if counted. With small calls and written requests
    /// this is the number of messages, and of the few reports of heads.
    pub posted: u64,
    /// Doorbells that clients rang for measured calls, if counted.
    pub rung: u64,
    /// Work requests that the server posted for measured calls, if counted.
    pub answered: u64,
    /// Doorbells that the server rang for measured calls, if counted.
    pub answers_rung: u64,
    /// Counters of the server's first NIC during the measurement; zeros without a model.
    pub nic: NicCounters,
    /// Processor time of all hosts during the measurement, in nanoseconds: work and spinning of all their threads.
    pub processor_ns: Nanos,
    /// Counters of the server's leases during the measurement.
    pub groups: GroupCounters,
    /// The queue pairs that the server granted, during a measurement of a given time.
    pub granted: Granted,
    /// Bytes of the server's lanes at the end of the measurement, with all clients connected.
    pub server_bytes: u64,
    /// Events of the simulator from the first call on.
    pub events: u64,
    /// Task switches from the first call on.
    pub switches: u64,
    /// Results of `probe` at the first call and after the last answer, with all clients connected.
    pub probes: [u64; 4],
    /// Calls answered in each stretch of [`Load::timeline`] since calls began, measured or not.
    pub timeline: Vec<u64>,
    /// A hash over all events.
    pub trace_hash: u64,
}

impl LoadOutcome {
    /// Returns the calls per second of virtual time.
    pub fn throughput(&self) -> f64 {
        self.rate(&self.all)
    }

    /// Returns the calls per message of clients: the degree of combining. 0 if messages are not counted.
    pub fn degree(&self) -> f64 {
        if self.posted == 0 { 0.0 } else { self.all.calls as f64 / self.posted as f64 }
    }

    /// Returns one function's calls per second of virtual time.
    pub fn rate(&self, function: &FunctionOutcome) -> f64 {
        function.calls as f64 * 1e9 / self.time_ns.max(1) as f64
    }
}

/// A server of a load.
struct Served {
    /// Returns the counters of its leases.
    groups: Box<dyn Fn() -> GroupCounters>,
    /// Returns its clients' use of queue pairs.
    uses: Box<dyn Fn() -> Vec<QueuePairUse>>,
    /// Returns the bytes of its lanes.
    lane_bytes: Box<dyn Fn() -> u64>,
    /// Stops it, when the other closures are gone.
    end: Box<dyn FnOnce()>,
}

/// The state that all tasks of a run share.
#[derive(Clone)]
struct Board {
    /// By function.
    latencies: Arc<Vec<Latencies>>,
    error: Arc<Mutex<Option<LoadError>>>,
    connected: Arc<AtomicU64>,
    done: Arc<AtomicU64>,
    /// Whether answers are measured.
    counting: Arc<AtomicBool>,
    /// No more calls are made.
    over: Arc<AtomicBool>,
    /// When calls began.
    began: Arc<AtomicU64>,
    /// Width of the timeline's stretches; 0 for none.
    stretch: Nanos,
    timeline: Arc<Vec<AtomicU64>>,
    /// Calls answered by each worker.
    by_worker: Arc<Vec<AtomicU64>>,
}

impl Board {
    fn new([functions, workers]: [usize; 2], counting: bool, (stretch, stretches): (Nanos, usize)) -> Self {
        Board {
            latencies: Arc::new((0..functions).map(|_| Latencies::new()).collect()),
            error: Arc::default(),
            connected: Arc::default(),
            done: Arc::default(),
            counting: Arc::new(AtomicBool::new(counting)),
            over: Arc::default(),
            began: Arc::default(),
            stretch,
            timeline: Arc::new((0..stretches).map(|_| AtomicU64::new(0)).collect()),
            by_worker: Arc::new((0..workers).map(|_| AtomicU64::new(0)).collect()),
        }
    }

    /// Returns the time since calls began.
    fn since(&self, now: Nanos) -> Nanos {
        now.saturating_sub(self.began.load(Ordering::Relaxed))
    }

    /// Records an answered call in the timeline, measured or not.
    fn note(&self, now: Nanos) {
        if self.stretch > 0
            && let Some(count) = self.timeline.get((self.since(now) / self.stretch) as usize)
        {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Records a call answered by a worker. One task runs at a time, so plain loads and stores lose nothing.
    fn served(&self, worker: u16) {
        if self.counting.load(Ordering::Relaxed)
            && let Some(count) = self.by_worker.get(usize::from(worker))
        {
            count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        }
    }

    fn error(&self) -> MutexGuard<'_, Option<LoadError>> {
        self.error.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fail(&self, error: LoadError) {
        self.error().get_or_insert(error);
    }
}

/// The id of a load's first function; the others follow.
const FIRST_FUNCTION: u16 = 1;
/// Calls in flight per client in open loop.
const OPEN_WINDOW: u16 = 256;
/// Most calls of a tuned batch (RF-RPC section 4.2).
const TUNED_WINDOW: u16 = 128;
/// Most calls in flight of a connection.
const MOST_WINDOW: u16 = 1024;
/// Bytes at which a tuned batch is flushed early: enough for 128 small calls. With a lower limit the rest of
/// such a batch would follow in a separate message.
const TUNED_BYTES: u32 = 8192;
/// Most stretches of a timeline.
const MOST_STRETCHES: usize = 1 << 20;
/// Most connections of one server's NIC.
const MOST_QUEUE_PAIRS: usize = 60_000;
/// Default limit of virtual time.
const LIMIT: Nanos = 3_600_000_000_000;

impl Load {
    /// Creates the load that measures the simulator itself: synchronous calls of 32 bytes, `write` in both directions.
    pub fn bench(clients: usize, calls: u64, network: Network) -> Load {
        let plan = PROTOCOLS[0].plan(CompletionMode::Busy);
        Load {
            network,
            client_hosts: clients.div_ceil(40).clamp(1, 100),
            nics: 1,
            server_cores: None,
            client_cores: None,
            spin_patience: None,
            workers: 4,
            clients,
            handles: None,
            most_together: 64,
            own_memory_from: dunlin_rpc::ClientConfig::default().own_memory_from,
            queue_pairs: 1,
            thread_scheduling: None,
            credit_renewal: CreditRenewal::default(),
            connections: Connections::One,
            pace: Pace::Closed { window: 1, think: Times::Fixed(0) },
            extent: Extent::Calls(calls),
            functions: vec![Function::new(plan, Sizes::Fixed(32), Sizes::Fixed(32))],
            function_of_thread: false,
            worker_skew: None,
            key_skew: None,
            groups: Grouping::PAPER,
            request_blocks: None,
            inline: true,
            posting: Posting::Engine,
            fetch_choice: FetchChoice::Enumerated,
            first_read: FirstRead::AtOnce,
            timeline: 0,
            server_waits: false,
            ring_bytes: 16 * 1024,
            limit: LIMIT,
        }
    }

    fn settings(&self) -> Result<Settings, LoadError> {
        for (what, number) in [
            ("the number of client hosts", self.client_hosts as u64),
            ("the number of NICs", self.nics.into()),
            ("the number of clients", self.clients as u64),
            ("the weight of all functions", self.functions.iter().map(|one| u64::from(one.weight)).sum()),
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
        let handles = self.checked_handles()?;
        let queue_pairs = match self.connections {
            Connections::One => handles * usize::from(self.queue_pairs),
            Connections::EachWorker => handles * usize::from(self.workers),
        };
        if queue_pairs > MOST_QUEUE_PAIRS {
            let limit = MOST_QUEUE_PAIRS;
            return Err(LoadError::QueuePairs { clients: self.clients, queue_pairs, limit });
        }
        let threads = self.clients + 1024 + usize::from(self.workers);
        let mut settings = cluster(self.client_hosts + 1, threads, self.limit);
        for (number, machine) in settings.machines.iter_mut().enumerate() {
            machine.cores = if number == 0 { self.server_cores } else { self.client_cores };
        }
        if self.sharing() != Sharing::Dedicated {
            // Threads meet at a lock only if none runs ahead of another.
            settings.slack = 0;
        }
        match &self.network {
            Network::Rates => {
                let rates = FixedTiming { latency: 600, message: 20, byte_picoseconds: 80 };
                settings.timing = TimingSettings::Fixed(rates);
            }
            Network::Modelled(name) => {
                // The clients choose by the rates of their own NIC, as if measured on this cluster.
                if self.functions.iter().any(|function| function.plan.response == ResponseHalf::FetchOrWrite)
                {
                    settings.rates = Some(modelled_rates(name)?);
                }
                cost_as(&mut settings, Profile::built_in(name)?, self.nics);
            }
        }
        if let Some(patience) = self.spin_patience {
            settings.prices.spin_patience = patience;
        }
        if !self.inline {
            settings.capabilities.max_inline = 0;
        }
        Ok(settings)
    }

    /// Returns the largest payload of a kind, at least 4096 bytes.
    fn largest(&self, of: fn(&Function) -> u32) -> u64 {
        let largest = self.functions.iter().map(of).max();
        u64::from(largest.unwrap_or(0)).max(4096)
    }

    fn largest_request(&self) -> u64 {
        self.largest(|function| function.requests.largest())
    }

    /// Returns the most calls in flight of a connection.
    fn window(&self) -> u16 {
        let window = self.window_of_thread();
        window
            .saturating_mul(self.most_threads().min(usize::from(MOST_WINDOW)) as u16)
            .min(MOST_WINDOW.max(window))
    }

    /// Returns the most calls in flight of a thread.
    fn window_of_thread(&self) -> u16 {
        match self.pace {
            Pace::Closed { window, .. } => window.max(1),
            Pace::Batches { size } | Pace::Posted { size, .. } => size.max(1),
            Pace::TunedBatches { .. } => TUNED_WINDOW,
            Pace::Pushed { window, .. } => window.max(1),
            Pace::Scheduled { .. } => 1,
            Pace::Open { .. } => OPEN_WINDOW,
        }
    }

    /// Returns the registered memory for large payloads per direction of a lane: four times the bytes that
    /// can be in flight. A larger default arena per client would be mostly unused with thousands of clients.
    fn large_memory(&self) -> u64 {
        let window = self.window();
        let payload = self.largest_request().max(self.largest(Function::largest_result));
        4 * payload * u64::from(window)
    }

    /// Returns when the engine flushes batches, if it does.
    fn batching(&self) -> Option<Batching> {
        match self.pace {
            Pace::TunedBatches { limit, tolerance, rule } => {
                let calls = BatchCalls::WithinLatency { limit: Duration::from_nanos(limit), tolerance };
                Some(Batching { calls, rule, bytes: TUNED_BYTES, ..Batching::default() })
            }
            Pace::Pushed { batching, .. } => Some(batching),
            _ => None,
        }
    }

    /// Returns the plan of each function by its id.
    fn plans(&self) -> BTreeMap<u16, Plan> {
        (FIRST_FUNCTION..).zip(self.functions.iter().map(|function| function.plan)).collect()
    }

    /// Chooses the function of a call. With a single function it draws no random number.
    fn choose(&self, random: &mut Random) -> usize {
        if self.functions.len() == 1 {
            return 0;
        }
        self.function_at(random.below(self.weight()))
    }

    /// Returns the weight of all functions together.
    fn weight(&self) -> u64 {
        self.functions.iter().map(|one| u64::from(one.weight)).sum::<u64>().max(1)
    }

    /// Returns the function with a place among the weights of all.
    fn function_at(&self, mut drawn: u64) -> usize {
        self.functions
            .iter()
            .position(|one| {
                let hit = drawn < u64::from(one.weight);
                drawn = drawn.wrapping_sub(u64::from(one.weight));
                hit
            })
            .unwrap_or(0)
    }

    /// Returns the core model of the server.
    fn core(&self) -> Result<Core, LoadError> {
        match &self.network {
            Network::Rates => Ok(Core::PLAIN),
            Network::Modelled(name) => Ok(Core::of(&Profile::built_in(name)?)),
        }
    }

    /// Runs the load. Calls `probe` for two numbers (such as time and memory) when all clients are connected
    /// and when all calls are answered.
    ///
    /// # Errors
    /// Returns an error for an impossible load, or if the run does not end normally.
    pub fn run(&self, seed: u64, probe: fn() -> [u64; 2]) -> Result<LoadOutcome, LoadError> {
        let (settings, core) = (self.settings()?, self.core()?);
        let stretches = match self.extent {
            Extent::Time { warm_up, measured } if self.timeline > 0 => (warm_up + measured) / self.timeline,
            _ => 0,
        };
        let timeline = (self.timeline, (stretches as usize).min(MOST_STRETCHES));
        let sizes = [self.functions.len(), usize::from(self.workers)];
        let board = Board::new(sizes, matches!(self.extent, Extent::Calls(_)), timeline);
        let found = Arc::new(Mutex::new(LoadOutcome::default()));
        let (load, played, told) = (self.clone(), board.clone(), Arc::clone(&found));
        let report = Sim::run_with(settings, seed, move |sim| {
            let outcome = load.play(&sim, (seed, core), &played, probe);
            *told.lock().unwrap_or_else(PoisonError::into_inner) = outcome;
        })?;
        if let Some(error) = board.error().take() {
            return Err(error);
        }
        let mut outcome = found.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let all = Latencies::new();
        board.latencies.iter().for_each(|one| all.add(one));
        outcome.all = all.outcome();
        outcome.percentiles = all.percentiles();
        outcome.by_worker = board.by_worker.iter().map(|count| count.load(Ordering::Relaxed)).collect();
        outcome.functions = board.latencies.iter().map(Latencies::outcome).collect();
        outcome.timeline = board.timeline.iter().map(|count| count.load(Ordering::Relaxed)).collect();
        outcome.trace_hash = report.trace_hash;
        Ok(outcome)
    }

    /// Starts the server on `fabric`.
    fn serve<F: Fabric>(
        &self,
        fabric: &F,
        sim: &Sim,
        (address, core): (&Address, Core),
        seed: u64,
        board: &Board,
    ) -> Result<Served, ServeError> {
        let defaults = ServerConfig::default();
        let server_config = ServerConfig {
            workers: self.workers,
            // The load says how many queue pairs there are.
            max_active_queue_pairs: match self.queue_pairs {
                1 => defaults.max_active_queue_pairs,
                _ => u32::MAX,
            },
            window: 1024,
            max_ring_bytes: self.ring_bytes,
            max_connections: self.clients as u32 + 1,
            max_payload: self.largest_request(),
            max_response: self.largest(Function::largest_result),
            large_memory: self.large_memory(),
            group_size: Some(self.groups.size),
            group_slice: Some(Duration::from_nanos(self.groups.slice)),
            group_priorities: self.groups.by_priority,
            request_pool: self
                .request_blocks
                .map(|block| RequestPool { rings: u16::try_from(self.clients).unwrap_or(u16::MAX), block }),
            ..defaults
        };
        let mut builder = ServerBuilder::new(fabric).config(server_config);
        for id in (FIRST_FUNCTION..).take(self.functions.len()) {
            builder = builder.function(id, FunctionMode::Worker);
        }
        let (functions, lock) = (Arc::new(self.functions.clone()), Arc::new(function::Exclusive::default()));
        let server = builder.serve(address, |worker| {
            Box::new(Handler {
                worker,
                sim: sim.clone(),
                functions: Arc::clone(&functions),
                lock: Arc::clone(&lock),
                board: board.clone(),
                random: Random::new(seed, 100 + u64::from(worker)),
                ahead: Ahead::new(core),
            })
        })?;
        let server = Arc::new(server);
        let (counted, measured, used) = (Arc::clone(&server), Arc::clone(&server), Arc::clone(&server));
        let end = move || {
            if let Some(server) = Arc::into_inner(server) {
                server.shutdown(Duration::from_secs(1));
            }
        };
        Ok(Served {
            groups: Box::new(move || counted.group_counters()),
            uses: Box::new(move || used.queue_pair_use()),
            lane_bytes: Box::new(move || measured.lane_bytes()),
            end: Box::new(end),
        })
    }

    fn play(
        &self,
        sim: &Sim,
        (seed, core): (u64, Core),
        board: &Board,
        probe: fn() -> [u64; 2],
    ) -> LoadOutcome {
        let mut outcome = LoadOutcome::default();
        let Ok(address) = Address::new(Scheme::Sim, "load") else { return outcome };
        let server = Count::new(sim.clone());
        let served = match (self.server_waits, self.posting) {
            (false, Posting::Engine) => self.serve(sim, sim, (&address, core), seed, board),
            (false, _) => self.serve(&server, sim, (&address, core), seed, board),
            (true, _) => {
                let signaled = Interposed::with_hooks(sim.clone(), Signaled);
                self.serve(&signaled, sim, (&address, core), seed, board)
            }
        };
        let served = match served {
            Ok(served) => served,
            Err(error) => {
                board.fail(error.into());
                return outcome;
            }
        };
        let (start, news, stop) = (sim.host().signal(), sim.host().signal(), sim.host().signal());
        let hosts: Vec<Sim> = (0..self.client_hosts).map(|host| sim.process_on(1 + host)).collect();
        let counted: Vec<Count<Sim>> = hosts.iter().cloned().map(Count::new).collect();
        let posted = || Posts::of(&counted, &server);
        let nic = || sim.nic_counters(0, 0).unwrap_or_default();
        let processors = || (0..=self.client_hosts).map(|host| sim.processor_time(host)).sum::<Nanos>();
        let skew = self.worker_skew.map(|theta| Skew::zipfian(self.workers.into(), theta));
        let per_call = self.connections == Connections::EachWorker;
        let owners = self.key_skew.map(|(keys, theta)| Skew::of_keys(keys, theta, self.workers.into()));
        let chosen = || owners.or_else(|| skew.clone()).unwrap_or(Skew::Uniform(self.workers.into()));
        let calls_to = per_call.then(chosen);
        let mut random = Random::new(seed, 50);
        let payload = vec![7; self.largest_request() as usize];
        let table = Arc::new(Table { load: self.clone(), board: board.clone(), payload });
        let mut tasks: Vec<Task> = Vec::new();
        let mut first = 0;
        for (number, threads) in self.threads_of_handles().into_iter().enumerate() {
            let worker = match &skew {
                _ if per_call => None,
                Some(skew) => Some(skew.next(&mut random) as u16),
                None => Some((number % usize::from(self.workers.max(1))) as u16),
            };
            let place = number % hosts.len();
            let players = (first..first + threads).map(|number| Player {
                sim: hosts[place].clone(),
                random: Random::new(seed, 1000 + number as u64),
                table: Arc::clone(&table),
                calls_to: calls_to.clone(),
                left: self.share_of(number),
                function: self.function_of_thread.then(|| self.function_at(number as u64 % self.weight())),
            });
            let players: Vec<Player> = players.collect();
            first += threads;
            let host = hosts[place].host().clone();
            let signals = [start.clone(), news.clone(), stop.clone()];
            let (address, counted) = (address.clone(), counted[place].clone());
            let (sim, posting) = (hosts[place].clone(), self.posting);
            let body = move || match posting {
                Posting::Engine => player::play_all(players, &sim, &address, worker, &signals),
                Posting::Counted => player::play_all(players, &counted, &address, worker, &signals),
                Posting::Signaled => {
                    let signaled = Interposed::with_hooks(counted, Signaled);
                    player::play_all(players, &signaled, &address, worker, &signals);
                }
            };
            tasks.extend(host.spawn("client", Box::new(body)).ok());
        }
        let all = |count: &AtomicU64| {
            loop {
                let seen = news.seen();
                if count.load(Ordering::Relaxed) >= first as u64 {
                    return;
                }
                news.wait(seen, Nanos::MAX);
            }
        };
        all(&board.connected);
        let (mut began, events, switches, probed) = (sim.time(), sim.events(), sim.switches(), probe());
        let (mut before, mut counts) = (posted(), (nic(), (served.groups)()));
        let mut processor = processors();
        board.began.store(sim.host().now(), Ordering::Relaxed);
        start.raise();
        if let Extent::Time { warm_up, measured } = self.extent {
            let host = sim.host();
            host.sleep(host.now() + warm_up);
            board.counting.store(true, Ordering::Relaxed);
            began = sim.time();
            (before, counts) = (posted(), (nic(), (served.groups)()));
            processor = processors();
            let uses = (served.uses)();
            host.sleep(host.now() + measured);
            board.counting.store(false, Ordering::Relaxed);
            outcome.time_ns = sim.time() - began;
            outcome.processor_ns = processors().saturating_sub(processor);
            posted().since(before).tell(&mut outcome);
            outcome.granted = Granted::between(&uses, &(served.uses)(), outcome.time_ns);
            (outcome.nic, outcome.groups) = (nic().since(counts.0), (served.groups)().since(counts.1));
            board.over.store(true, Ordering::Relaxed);
        }
        all(&board.done);
        let last = probe();
        if matches!(self.extent, Extent::Calls(_)) {
            outcome.time_ns = sim.time() - began;
            outcome.processor_ns = processors().saturating_sub(processor);
            posted().since(before).tell(&mut outcome);
            (outcome.nic, outcome.groups) = (nic().since(counts.0), (served.groups)().since(counts.1));
        }
        outcome.events = sim.events() - events;
        outcome.switches = sim.switches() - switches;
        outcome.server_bytes = (served.lane_bytes)();
        outcome.probes = [probed[0], probed[1], last[0], last[1]];
        stop.raise();
        tasks.into_iter().for_each(Task::join);
        drop((served.groups, served.uses, served.lane_bytes));
        (served.end)();
        outcome
    }
}
