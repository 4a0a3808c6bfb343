//! `bench threads`: threads of one process that share a connection, by policy of sharing (FLOCK figures 9 and
//! 10 on shared memory), and on clones of one asynchronous client.

mod futures;

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use dunlin_fabric_shm::ShmFabric;
use dunlin_report::statistics::{Latency, median};
use dunlin_report::{Row, rounded};
use dunlin_rpc::{
    AsyncClient, AsyncHub, CallId, Client, ClientConfig, CompletionMode, Plan, Protocol, Sharing,
};

use self::futures::FuturesUser;
use super::flow::{difference, full, stamp};
use super::peer::{Drive, ECHO, ServiceKind};
use super::session::{Served, Session};
use super::{Findings, MeasureError, progress_bar, protocol_by_name};

/// Length of a slice, several of the kernel's time slices.
const SLICE: Duration = Duration::from_millis(40);

/// The parameters of the measurement.
#[derive(Clone, Debug)]
pub struct ThreadsOptions {
    /// Size of request and response in bytes.
    pub size: usize,
    /// Numbers of threads.
    pub threads: Vec<usize>,
    /// Numbers of calls that each thread has in flight.
    pub in_flight: Vec<usize>,
    /// The protocol.
    pub protocol: String,
    /// How client and server wait.
    pub mode: CompletionMode,
    /// Slices of each policy, taken in turn; `None` gives 15.
    pub rounds: Option<usize>,
}

impl Default for ThreadsOptions {
    fn default() -> Self {
        ThreadsOptions {
            size: 32,
            threads: vec![1, 2, 4, 8],
            in_flight: vec![1, 8],
            protocol: "Direct-WriteIMM".to_owned(),
            mode: CompletionMode::Adaptive,
            rounds: None,
        }
    }
}

impl ThreadsOptions {
    fn check(&self) -> Result<&'static Protocol, MeasureError> {
        let wrong = |text: String| Err(MeasureError::BadArgument(text));
        if self.size > 4096 {
            return wrong(format!("threads are measured with up to 4096 bytes, not {}", self.size));
        }
        if let Some(threads) = self.threads.iter().find(|threads| !(1..=256).contains(*threads)) {
            return wrong(format!("1 to 256 threads can share a connection, not {threads}"));
        }
        if let Some(calls) = self.in_flight.iter().find(|calls| !(1..=64).contains(*calls)) {
            return wrong(format!("1 to 64 calls in flight are measured, not {calls}"));
        }
        protocol_by_name(&self.protocol)
    }
}

/// The policies, the one with a connection for each thread first, each with the most queue pairs to the worker.
fn policies() -> Vec<(&'static str, Sharing, u16)> {
    let most = |policy| if matches!(policy, Sharing::Dedicated | Sharing::Combined) { 64 } else { 1 };
    let all = Sharing::ALL.into_iter().map(|policy| (policy.name(), policy, most(policy)));
    all.chain([("combined on one", Sharing::Combined, 1)]).collect()
}

/// The name of the subject whose threads share one asynchronous client.
const ASYNCHRONOUS: &str = "asynchronous";

/// Measures each number of threads and of calls in flight under each policy and with an asynchronous client, in alternating slices of one server.
/// Rows have `sharing`, `threads`, `in_flight`, `throughput_ops` (the median of the slices) and the latency of
/// a call. Blocks for about two seconds per row.
///
/// # Errors
/// Any failure.
pub fn threads(session: &mut Session, options: &ThreadsOptions) -> Result<Findings, MeasureError> {
    let protocol = options.check()?;
    let rounds = options.rounds.unwrap_or(15);
    let (mut findings, policies) = (Findings::default(), policies());
    let progress =
        progress_bar(options.threads.len() * options.in_flight.len() * rounds * (policies.len() + 1));
    for &in_flight in &options.in_flight {
        for &threads in &options.threads {
            let served = session.serve(ServiceKind::Bytes, Drive::Thread)?;
            let mut subjects = Vec::new();
            for &(name, sharing, max_queue_pairs) in &policies {
                let plan = Plan { sharing, ..protocol.plan(options.mode) };
                let config = ClientConfig { window: 64, max_queue_pairs, ..ClientConfig::with_plan(plan) };
                let users = connect(session, &served, &config, (threads, in_flight), options.size)?;
                let users = users.into_iter().map(User::Blocking).collect();
                subjects.push(Subject { name, users, rates: Vec::new(), latency: Latency::new() });
            }
            let config = ClientConfig { window: 64, ..ClientConfig::with_plan(protocol.plan(options.mode)) };
            let users = connect_futures(session, &served, &config, (threads, in_flight), options.size)?;
            let (rates, latency) = (Vec::new(), Latency::new());
            subjects.push(Subject { name: ASYNCHRONOUS, users, rates, latency });
            for _ in 0..rounds {
                for subject in &mut subjects {
                    session.while_serving(&served, |_, _| subject.slice())?;
                    progress.inc(1);
                }
            }
            for subject in &mut subjects {
                if subject.users.iter().any(User::was_wrong) {
                    return Err(MeasureError::WrongData(format!("sharing = {}", subject.name)));
                }
                let latency = &subject.latency;
                findings.rows.push(
                    Row::new()
                        .with("sharing", subject.name)
                        .with("threads", threads)
                        .with("in_flight", in_flight)
                        .with("throughput_ops", median(subject.rates.iter().copied()).map(f64::round))
                        .with("p50_ns", rounded(latency.p50_ns()))
                        .with("p99_ns", rounded(latency.p99_ns()))
                        .with("p999_ns", rounded(latency.p999_ns()))
                        .with("max_ns", rounded(latency.max_ns()))
                        .with("samples", latency.samples()),
                );
            }
            let users = subjects.into_iter().flat_map(|subject| subject.users).collect();
            session.disconnect::<User>(&served, users)?;
        }
    }
    progress.finish_and_clear();
    Ok(findings)
}

fn connect(
    session: &mut Session,
    served: &Served,
    config: &ClientConfig,
    (threads, in_flight): (usize, usize),
    size: usize,
) -> Result<Vec<BlockingUser>, MeasureError> {
    let first = session.connect(served, config)?;
    session.while_serving(served, |_, _| {
        let mut users = Vec::with_capacity(threads);
        for _ in 1..threads {
            let client = first.another().map_err(|source| MeasureError::Connect {
                protocol: format!("{:?}", config.plan.map(|plan| plan.sharing)),
                source,
            })?;
            users.push(BlockingUser::new(client, in_flight, size));
        }
        users.push(BlockingUser::new(first, in_flight, size));
        Ok(users)
    })
}

fn connect_futures(
    session: &mut Session,
    served: &Served,
    config: &ClientConfig,
    (threads, in_flight): (usize, usize),
    size: usize,
) -> Result<Vec<User>, MeasureError> {
    session.while_serving(served, |fabric, address| {
        let client =
            AsyncHub::new(fabric).and_then(|hub| AsyncClient::connect(&hub, address, config.clone()));
        let client =
            client.map_err(|source| MeasureError::Connect { protocol: ASYNCHRONOUS.to_owned(), source })?;
        let user = |client| User::Futures(FuturesUser::new(client, in_flight, size));
        Ok(vec![client; threads].into_iter().map(user).collect())
    })
}

/// The threads of one policy.
struct Subject {
    name: &'static str,
    users: Vec<User>,
    rates: Vec<f64>,
    latency: Latency,
}

impl Subject {
    /// Lets all threads make calls for the length of a slice.
    fn slice(&mut self) -> Result<(), MeasureError> {
        let (over, ready) = (AtomicBool::new(false), Barrier::new(self.users.len() + 1));
        let (calls, elapsed) = std::thread::scope(|scope| {
            let threads: Vec<_> = self
                .users
                .iter_mut()
                .map(|user| {
                    let (over, ready) = (&over, &ready);
                    scope.spawn(move || {
                        ready.wait();
                        user.run(over)
                    })
                })
                .collect();
            ready.wait();
            let start = Instant::now();
            std::thread::sleep(SLICE);
            over.store(true, Ordering::Relaxed);
            let elapsed = start.elapsed();
            let mut calls = 0;
            for thread in threads {
                let ended = thread.join().unwrap_or_else(|_| Err("a client's thread panicked".to_owned()));
                calls += ended.map_err(|reason| MeasureError::TypedCall {
                    protocol: format!("sharing = {}", self.name),
                    reason,
                })?;
            }
            Ok::<_, MeasureError>((calls, elapsed))
        })?;
        self.rates.push(calls as f64 / elapsed.as_secs_f64());
        for user in &mut self.users {
            self.latency.merge(&std::mem::replace(user.latency(), Latency::new()));
        }
        Ok(())
    }
}

/// A thread that makes calls.
#[allow(clippy::large_enum_variant)] // There are 256 at most.
enum User {
    Blocking(BlockingUser),
    Futures(FuturesUser),
}

impl User {
    fn run(&mut self, over: &AtomicBool) -> Result<u64, String> {
        match self {
            User::Blocking(user) => user.run(over),
            User::Futures(user) => user.run(over),
        }
    }

    fn latency(&mut self) -> &mut Latency {
        match self {
            User::Blocking(user) => &mut user.latency,
            User::Futures(user) => &mut user.latency,
        }
    }

    fn was_wrong(&self) -> bool {
        match self {
            User::Blocking(user) => user.wrong != 0,
            User::Futures(user) => user.wrong != 0,
        }
    }
}

/// A thread with some calls in flight, which waits for any of them.
struct BlockingUser {
    client: Client<ShmFabric>,
    in_flight: usize,
    payload: Vec<u8>,
    sent: u64,
    /// The sequence number and the start of each call in flight, by the index of its id.
    open: Vec<(u64, Instant)>,
    latency: Latency,
    /// Nonzero once a response was wrong.
    wrong: u64,
}

impl BlockingUser {
    fn new(client: Client<ShmFabric>, in_flight: usize, size: usize) -> Self {
        let (payload, latency) = (vec![0; size], Latency::new());
        BlockingUser { client, in_flight, payload, sent: 0, open: Vec::new(), latency, wrong: 0 }
    }

    fn run(&mut self, over: &AtomicBool) -> Result<u64, String> {
        let mut calls = 0;
        while !over.load(Ordering::Relaxed) {
            while self.client.in_flight() < self.in_flight {
                self.submit()?;
            }
            calls += self.take()?;
        }
        while self.client.in_flight() > 0 {
            self.take()?;
        }
        Ok(calls)
    }

    fn submit(&mut self) -> Result<(), String> {
        stamp(&mut self.payload, self.sent);
        let start = Instant::now();
        match self.client.submit_waiting_on(0, ECHO, &self.payload) {
            Ok(call) => {
                if self.open.len() <= call.index() {
                    self.open.resize(call.index() + 1, (u64::MAX, start));
                }
                self.open[call.index()] = (self.sent, start);
                self.sent += 1;
                Ok(())
            }
            Err(error) => full(error),
        }
    }

    /// Waits for a call, and takes all that have ended.
    fn take(&mut self) -> Result<u64, String> {
        let mut next: Option<CallId> = self.client.wait_any();
        let mut calls = 0;
        while let Some(call) = next {
            let (sequence, start) =
                self.open.get(call.index()).copied().unwrap_or((u64::MAX, Instant::now()));
            self.latency.record(start.elapsed().as_nanos() as u64);
            let answer = self.client.outcome(call).map_err(|error| error.to_string())?;
            self.wrong |= difference(answer, self.payload.len(), sequence);
            self.client.forget(call);
            calls += 1;
            next = self.client.next_done();
        }
        Ok(calls)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_out_of_range_are_refused() {
        assert!(ThreadsOptions::default().check().is_ok());
        for wrong in [
            ThreadsOptions { size: 4097, ..Default::default() },
            ThreadsOptions { threads: vec![0], ..Default::default() },
            ThreadsOptions { threads: vec![257], ..Default::default() },
            ThreadsOptions { in_flight: vec![65], ..Default::default() },
            ThreadsOptions { protocol: "none".to_owned(), ..Default::default() },
        ] {
            assert!(matches!(wrong.check(), Err(MeasureError::BadArgument(_))), "{wrong:?}");
        }
    }
}
