//! Threads that share their machine's connection to a server: what they call while other calls are under way goes together in one
//! message.

use dunlin_fabric::{Address, Fabric, Host, Nanos, Scheme, Signal, Task};
use dunlin_fabric_sim::{
    MachineSettings, ModelTiming, Prices, Random, RunError, Settings, Sim, TimingSettings,
};
use dunlin_rnic_model::{Parameter, Profile, ProfileError};
use dunlin_rpc::{
    AsyncClient, AsyncHub, BatchCalls, Batching, Call, ClientConfig, FunctionMode, Plan, Reply, Request,
    ServerBuilder, ServerConfig,
};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use thiserror::Error;

/// A load of threads that share connections.
#[derive(Clone, Debug)]
pub struct Shared {
    /// The profile of all hosts.
    pub profile: String,
    /// Client hosts, each with one connection.
    pub client_hosts: usize,
    /// Threads of a client host.
    pub threads_per_host: usize,
    /// Calls that a thread has in flight, each to a thread of the server by even chance.
    pub window: usize,
    /// Threads of the server.
    pub workers: u16,
    /// How calls travel; its client is busy.
    pub plan: Plan,
    /// The most calls of a message; 1 sends each by itself.
    pub together: u16,
    /// What a call takes on the server beside the engine, in nanoseconds.
    pub service: Nanos,
    /// Bytes of a request and of its result.
    pub bytes: [usize; 2],
    /// From the start until it counts, in nanoseconds.
    pub warm_up: Nanos,
    /// For how long it counts.
    pub measured: Nanos,
    /// The virtual time after which the run is given up.
    pub limit: Nanos,
}

/// What it came to.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SharedOutcome {
    /// Calls answered.
    pub calls: u64,
    /// For how long they counted, in nanoseconds.
    pub time_ns: Nanos,
    /// Their mean latency.
    pub mean_ns: f64,
    /// A hash over all events.
    pub trace_hash: u64,
}

/// Why it did not come to its end.
#[derive(Debug, Error)]
pub enum SharedError {
    /// It describes nothing that could run.
    #[error("{what} is 0: a load needs at least one")]
    Nothing {
        /// What there is none of.
        what: &'static str,
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

fn thread(error: impl std::fmt::Display) -> SharedError {
    SharedError::Thread(error.to_string())
}

const CALLED: u16 = 1;
const COUNTING: u64 = 1;
const OVER: u64 = 2;
const FOREVER: Nanos = Nanos::MAX;
/// From one look at a call that is not done to the next.
const LOOK_EVERY: Nanos = 200;

/// What all threads of a run share. One of them runs at a time, so nobody ever waits for the lock.
#[derive(Clone, Default)]
struct Board {
    phase: Arc<AtomicU64>,
    calls: Arc<AtomicU64>,
    latencies: Arc<AtomicU64>,
    error: Arc<Mutex<Option<SharedError>>>,
}

impl Board {
    fn phase(&self) -> u64 {
        self.phase.load(Ordering::Relaxed)
    }

    fn ended(&self, result: Result<(), SharedError>) {
        if let Err(error) = result {
            self.error.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
            self.phase.store(OVER, Ordering::Relaxed);
        }
    }
}

impl Shared {
    /// Runs it.
    ///
    /// # Errors
    /// A load of which nothing could come, and a run that did not end well.
    pub fn run(&self, seed: u64) -> Result<SharedOutcome, SharedError> {
        for (what, value) in [
            ("the number of client hosts", self.client_hosts as u64),
            ("the number of threads", self.threads_per_host as u64),
            ("the window", self.window as u64),
            ("the number of server threads", self.workers.into()),
            ("the measured time", self.measured),
        ] {
            if value == 0 {
                return Err(SharedError::Nothing { what });
            }
        }
        let profile = Arc::new(Profile::built_in(&self.profile)?);
        let hosts = self.client_hosts + 1;
        let defaults = Settings::default();
        let mut settings = Settings {
            machines: vec![MachineSettings::default(); hosts],
            limit: defaults.start.saturating_add(self.limit),
            max_tasks: self.client_hosts * (self.threads_per_host + 2) + usize::from(self.workers) + 64,
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
        if let Some(error) = board.error.lock().unwrap_or_else(PoisonError::into_inner).take() {
            return Err(error);
        }
        let calls = board.calls.load(Ordering::Relaxed);
        Ok(SharedOutcome {
            calls,
            time_ns: self.measured,
            mean_ns: board.latencies.load(Ordering::Relaxed) as f64 / calls.max(1) as f64,
            trace_hash: report.trace_hash,
        })
    }

    fn play(&self, sim: &Sim, seed: u64, board: &Board) -> Result<(), SharedError> {
        let address = Address::new(Scheme::Sim, "shared").map_err(thread)?;
        let in_flight = (self.threads_per_host * self.window).clamp(1, 1024) as u16;
        let config = ServerConfig { workers: self.workers, window: in_flight, ..ServerConfig::default() };
        let (host, service, result) = (sim.host().clone(), self.service, self.bytes[1]);
        let server = ServerBuilder::new(sim)
            .config(config)
            .function(CALLED, FunctionMode::Worker)
            .serve(&address, |_| {
                let host = host.clone();
                Box::new(move |_: &Request<'_>, reply: &mut Reply<'_>| {
                    host.work(service);
                    reply.reserve(result)?;
                    Ok(())
                })
            })
            .map_err(thread)?;
        let batching = (self.together > 1)
            .then(|| Batching { calls: BatchCalls::Fixed(self.together), ..Batching::default() });
        let mut tasks: Vec<Task> = Vec::new();
        let start = sim.host().signal();
        for machine in 0..self.client_hosts {
            let sim = sim.process_on(1 + machine);
            let config = ClientConfig {
                window: in_flight,
                timeout: 0,
                connect_timeout: FOREVER / 8,
                batching,
                ..ClientConfig::with_plan(self.plan)
            };
            let hub = AsyncHub::new(&sim).map_err(thread)?;
            let client = AsyncClient::connect(&hub, &address, config).map_err(thread)?;
            for number in 0..self.threads_per_host {
                let player = Player {
                    sim: sim.clone(),
                    client: client.clone(),
                    random: Random::new(seed, 1000 + (machine * self.threads_per_host + number) as u64),
                    load: self.clone(),
                    board: board.clone(),
                };
                let (board, start) = (board.clone(), start.clone());
                let body = move || {
                    start.wait(0, FOREVER);
                    board.ended(player.play());
                };
                tasks.push(sim.host().spawn("sharing", Box::new(body)).map_err(thread)?);
            }
        }
        start.raise();
        let host = sim.host();
        host.sleep(host.now() + self.warm_up);
        board.phase.fetch_max(COUNTING, Ordering::Relaxed);
        host.sleep(host.now() + self.measured);
        board.phase.store(OVER, Ordering::Relaxed);
        tasks.into_iter().for_each(Task::join);
        server.shutdown(1_000_000_000);
        Ok(())
    }
}

/// One thread.
struct Player {
    sim: Sim,
    client: AsyncClient<Sim>,
    random: Random,
    load: Shared,
    board: Board,
}

impl Player {
    /// Calls on and on, looking at the oldest call; who is done waits until it is the oldest.
    fn play(mut self) -> Result<(), SharedError> {
        let request = vec![7; self.load.bytes[0]];
        let workers = u64::from(self.load.workers);
        let mut context = Context::from_waker(Waker::noop());
        let mut open: VecDeque<(Call<Sim>, Nanos)> = VecDeque::with_capacity(self.load.window);
        while self.board.phase() != OVER {
            while open.len() < self.load.window {
                let since = self.sim.time();
                let worker = self.random.below(workers) as usize;
                open.push_back((self.client.call_on(worker, CALLED, &request), since));
            }
            let Some((call, since)) = open.front_mut() else { continue };
            match Pin::new(call).poll(&mut context) {
                Poll::Ready(result) => {
                    result.map_err(thread)?;
                    if self.board.phase() == COUNTING {
                        self.board.calls.fetch_add(1, Ordering::Relaxed);
                        self.board.latencies.fetch_add(self.sim.time() - *since, Ordering::Relaxed);
                    }
                    open.pop_front();
                }
                Poll::Pending => self.sim.host().sleep(self.sim.host().now() + LOOK_EVERY),
            }
        }
        Ok(())
    }
}
