//! Threads that share their machine's connection to a server: calls made while others are in flight are
//! combined into one message.

use crate::measured_run::{CourseError, FOREVER, MeasuredRun, Phase, cluster, cost_as, not_zero, thread};
use crate::memory::{Ahead, Core, Lines};
use dunlin_fabric::{Address, Fabric, Host, Nanos, Scheme, Signal, Task};
use dunlin_fabric_sim::{Random, Sim};
use dunlin_rnic_model::Profile;
use dunlin_rpc::tune::grouping::GroupDefaults;
use dunlin_rpc::{
    AsyncClient, AsyncHub, BatchCalls, Batching, Call, ClientConfig, FetchChoice, FirstRead, FunctionMode,
    Plan, Reply, Request, ServerBuilder, ServerConfig, Service, Status,
};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// A load of threads that share connections.
#[derive(Clone, Debug)]
pub struct Shared {
    /// Profile of all hosts.
    pub profile: String,
    /// Client hosts, each with one connection.
    pub client_hosts: usize,
    /// Threads per client host.
    pub threads_per_host: usize,
    /// Calls in flight per thread, each to a uniformly random thread of the server.
    pub window: usize,
    /// Threads of the server.
    pub workers: u16,
    /// Plan of the calls; its client is busy.
    pub plan: Plan,
    /// Most calls per message; 1 sends each call separately.
    pub together: u16,
    /// Memory accesses of a call on the server, which calls of a message overlap.
    pub lines: Lines,
    /// Bytes of a request and of its result.
    pub bytes: [usize; 2],
    /// Time from the start to the measurement, in nanoseconds.
    pub warm_up: Nanos,
    /// Measured time, in nanoseconds.
    pub measured: Nanos,
    /// Virtual time after which the run is aborted, in nanoseconds.
    pub limit: Nanos,
}

/// The result of a load with shared connections.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SharedOutcome {
    /// Answered calls.
    pub calls: u64,
    /// Measured time, in nanoseconds.
    pub time_ns: Nanos,
    /// Mean latency of the calls, in nanoseconds.
    pub mean_ns: f64,
    /// A hash over all events.
    pub trace_hash: u64,
}

const CALLED: u16 = 1;
/// Time between two polls of a call that is not done, in nanoseconds.
const LOOK_EVERY: Nanos = 200;

/// Totals over all threads during the measurement.
#[derive(Debug, Default)]
struct Done {
    calls: u64,
    latencies: Nanos,
}

impl Shared {
    /// Runs the load.
    ///
    /// # Errors
    /// Returns an error for an impossible load, or if the run does not end normally.
    pub fn run(&self, seed: u64) -> Result<SharedOutcome, CourseError> {
        not_zero([
            ("the number of client hosts", self.client_hosts as u64),
            ("the number of threads", self.threads_per_host as u64),
            ("the window", self.window as u64),
            ("the number of server threads", self.workers.into()),
            ("the measured time", self.measured),
        ])?;
        let threads = self.client_hosts * (self.threads_per_host + 2) + usize::from(self.workers) + 64;
        let mut settings = cluster(self.client_hosts + 1, threads, self.limit);
        // Threads meet at a lead for less time than the slack.
        settings.slack = 0;
        let profile = Profile::built_in(&self.profile)?;
        let core = Core::of(&profile);
        cost_as(&mut settings, profile, 1);
        let load = self.clone();
        let play = move |sim: &Sim, course: &Arc<MeasuredRun<Done>>| load.play(sim, (seed, core), course);
        let (Done { calls, latencies }, trace_hash) = MeasuredRun::run(settings, seed, play)?;
        let mean_ns = latencies as f64 / calls.max(1) as f64;
        Ok(SharedOutcome { calls, time_ns: self.measured, mean_ns, trace_hash })
    }

    fn play(
        &self,
        sim: &Sim,
        (seed, core): (u64, Core),
        course: &Arc<MeasuredRun<Done>>,
    ) -> Result<(), CourseError> {
        let address = Address::new(Scheme::Sim, "shared").map_err(thread)?;
        let in_flight = (self.threads_per_host * self.window).clamp(1, 1024) as u16;
        let config = ServerConfig {
            workers: self.workers,
            window: in_flight,
            group_size: Some(GroupDefaults::PAPER.size),
            group_slice: Some(GroupDefaults::PAPER.slice),
            ..ServerConfig::default()
        };
        let server = ServerBuilder::new(sim)
            .config(config)
            .function(CALLED, FunctionMode::Worker)
            .serve(&address, |_| {
                let (sim, ahead) = (sim.clone(), Ahead::new(core));
                Box::new(Handler { sim, lines: self.lines, result: self.bytes[1], ahead })
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
                timeout: Duration::MAX,
                connect_timeout: Duration::from_nanos(FOREVER / 8),
                batching,
                // As in the paper: by enumeration, with repeated fetching.
                fetch_choice: FetchChoice::Enumerated,
                first_read: FirstRead::AtOnce,
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
                    course: Arc::clone(course),
                };
                let (course, start) = (Arc::clone(course), start.clone());
                let body = move || {
                    start.wait(0, FOREVER);
                    course.ended(player.play());
                };
                tasks.push(sim.host().spawn("sharing", Box::new(body)).map_err(thread)?);
            }
        }
        start.raise();
        let host = sim.host();
        host.sleep(host.now() + self.warm_up);
        course.count();
        host.sleep(host.now() + self.measured);
        course.end();
        tasks.into_iter().for_each(Task::join);
        server.shutdown(Duration::from_secs(1));
        Ok(())
    }
}

/// The called function, as one worker serves it.
struct Handler {
    sim: Sim,
    lines: Lines,
    result: usize,
    ahead: Ahead,
}

impl Service for Handler {
    fn passes(&self) -> usize {
        self.lines.number as usize
    }

    fn prepare(&mut self, pass: usize, _function: u16, _payload: &[u8]) {
        self.ahead.ask(&self.sim, pass, self.lines);
    }

    fn call(&mut self, _request: &Request<'_>, reply: &mut Reply<'_>) -> Result<(), Status> {
        self.sim.host().work(self.ahead.wait(&self.sim, self.lines));
        reply.reserve(self.result)?;
        Ok(())
    }
}

/// One thread.
struct Player {
    sim: Sim,
    client: AsyncClient<Sim>,
    random: Random,
    load: Shared,
    course: Arc<MeasuredRun<Done>>,
}

impl Player {
    /// Makes calls continuously and polls the oldest one; a later call that is done waits until it is the
    /// oldest.
    fn play(mut self) -> Result<(), CourseError> {
        let request = vec![7; self.load.bytes[0]];
        let workers = u64::from(self.load.workers);
        let mut context = Context::from_waker(Waker::noop());
        let mut open: VecDeque<(Call<Sim>, Nanos)> = VecDeque::with_capacity(self.load.window);
        while self.course.phase() != Phase::Over {
            while open.len() < self.load.window {
                let since = self.sim.time();
                let worker = self.random.below(workers) as usize;
                open.push_back((self.client.call_on(worker, CALLED, &request), since));
            }
            let Some((call, since)) = open.front_mut() else { continue };
            match Pin::new(call).poll(&mut context) {
                Poll::Ready(result) => {
                    result.map_err(thread)?;
                    if self.course.phase() == Phase::Counting {
                        let mut done = self.course.gathered();
                        done.calls += 1;
                        done.latencies += self.sim.time() - *since;
                    }
                    open.pop_front();
                }
                Poll::Pending => self.sim.host().sleep(self.sim.host().now() + LOOK_EVERY),
            }
        }
        Ok(())
    }
}
