//! Servers that stop and return, in virtual time: asynchronous clients under load, connection attempts that
//! fail at each step, and the back-off between them.

#![allow(missing_docs, clippy::disallowed_types)]

use dunlin_fabric::interpose::{DomainHooks, Hooks, Interposed, LinkHooks};
use dunlin_fabric::{
    Address, CreateError, DialError, Endpoint, Fabric, Host, Link, LinkError, Nanos, QueuePairConfig,
    QueuePairId, Scheme, Signal, ThreadDomain,
};
use dunlin_fabric_sim::{Settings, Sim, SimSignal};
use dunlin_rpc::*;
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

/// Runs of each plan, unless `DUNLIN_RPC_SEEDS` says otherwise.
const SEEDS: u64 = 2;
pub(crate) const ECHO: u16 = 1;
const POOLED: u16 = 2;
pub(crate) const MICROSECOND: Nanos = 1000;
pub(crate) const MILLISECOND: Nanos = 1_000_000;

pub(crate) fn address() -> Address {
    Address::new(Scheme::Sim, "again").unwrap()
}

struct Raise(SimSignal);

impl Wake for Raise {
    fn wake(self: Arc<Self>) {
        self.0.raise();
    }
}

/// Polls only after a wake-up.
pub(crate) fn block_on<T>(fabric: &Sim, future: impl Future<Output = T>) -> T {
    let signal = fabric.host().signal();
    let waker = Waker::from(Arc::new(Raise(signal.clone())));
    let mut future = pin!(future);
    loop {
        let seen = signal.seen();
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return value;
        }
        assert!(signal.wait(seen, Nanos::MAX), "woken");
        // A future that wakes itself takes some time per poll.
        fabric.host().sleep(fabric.host().now() + 2 * MICROSECOND);
    }
}

/// The number of executions of each call, by the call's number.
pub(crate) type Executed = Arc<Mutex<BTreeMap<u64, u32>>>;

fn number_of(payload: &[u8]) -> u64 {
    payload.first_chunk().map_or(u64::MAX, |number| u64::from_le_bytes(*number))
}

pub(crate) fn serve(fabric: &Sim, executed: &Executed) -> Server<Sim> {
    let execute = |executed: &Executed, payload: &[u8]| {
        *executed.lock().unwrap().entry(number_of(payload)).or_default() += 1;
    };
    let (pool_executed, host) = (Arc::clone(executed), fabric.host().clone());
    ServerBuilder::new(fabric)
        .function(ECHO, FunctionMode::Worker)
        .function(POOLED, FunctionMode::Pool)
        .pool(move |request: &Request<'_>, reply: &mut Reply<'_>| {
            host.sleep(host.now() + 20 * MICROSECOND);
            execute(&pool_executed, request.payload);
            Ok(reply.write(request.payload)?)
        })
        .serve(&address(), |_| {
            let executed = Arc::clone(executed);
            Box::new(move |request: &Request<'_>, reply: &mut Reply<'_>| {
                execute(&executed, request.payload);
                Ok(reply.write(request.payload)?)
            })
        })
        .unwrap()
}

/// Counts of calls by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Ends {
    ok: u64,
    maybe: u64,
    not: u64,
}

impl Ends {
    fn add(&mut self, other: Ends) {
        self.ok += other.ok;
        self.maybe += other.maybe;
        self.not += other.not;
    }
}

/// Makes calls until `wanted` of them have succeeded. A call that was certainly not executed is retried under
/// a new number.
fn caller(
    fabric: &Sim,
    mut call: impl FnMut(u16, &[u8]) -> Result<Vec<u8>, CallError>,
    (first, wanted): (u64, u64),
    executed: &Executed,
) -> Ends {
    let host = fabric.host();
    let mut ends = Ends::default();
    for number in first.. {
        if ends.ok == wanted {
            return ends;
        }
        let mut payload = number.to_le_bytes().to_vec();
        payload.resize([8, 500, 9000][number as usize % 3], number as u8);
        let function = if number % 4 == 0 { POOLED } else { ECHO };
        let ended = call(function, &payload);
        let times = executed.lock().unwrap().get(&number).copied().unwrap_or(0);
        match ended {
            Ok(response) => {
                assert_eq!(response, payload);
                assert_eq!(times, 1, "call {number} was answered");
                ends.ok += 1;
            }
            Err(CallError::MaybeExecuted(_)) => {
                assert!(times <= 1, "call {number} was executed {times} times");
                ends.maybe += 1;
            }
            Err(CallError::Executed(cause)) => {
                assert_eq!(times, 1, "call {number} was executed, as its caller was told: {cause:?}");
                ends.maybe += 1;
            }
            Err(CallError::NotExecuted(cause)) => {
                assert_eq!(times, 0, "call {number} was executed, and its caller told {cause:?}");
                ends.not += 1;
                host.sleep(host.now() + 50 * MICROSECOND);
            }
            Err(error) => panic!("{error}"),
        }
    }
    ends
}

/// Many tasks share a client while `server` acts on the server. Returns the outcomes of their calls.
fn under_load(
    seed: u64,
    plan: Plan,
    server: impl FnOnce(&Sim, Server<Sim>, &Executed) -> Server<Sim> + Send + 'static,
) -> Ends {
    const TASKS: u64 = 10;
    const WANTED: u64 = 150;
    let total = Arc::new(Mutex::new(Ends::default()));
    let sum = Arc::clone(&total);
    let settings = Settings { limit: 10_000_000_000, ..Settings::default() };
    let run = Sim::run_with(settings, seed, move |fabric| {
        let executed = Executed::default();
        let first = serve(&fabric, &executed);
        let hub = AsyncHub::new(&fabric).unwrap();
        let config = ClientConfig { window: 6, timeout: Duration::MAX, ..ClientConfig::with_plan(plan) };
        let client = AsyncClient::connect(&hub, &address(), config).unwrap();
        drop(hub);
        let tasks: Vec<_> = (0..TASKS)
            .map(|task| {
                let (fabric, client, executed) = (fabric.clone(), client.clone(), Arc::clone(&executed));
                let (host, sum) = (fabric.host().clone(), Arc::clone(&sum));
                let body = move || {
                    let call = |function, payload: &[u8]| {
                        block_on(&fabric, client.call(function, payload)).map(|response| response.to_vec())
                    };
                    let ends = caller(&fabric, call, ((task + 1) << 32, WANTED), &executed);
                    sum.lock().unwrap().add(ends);
                };
                host.spawn(&format!("task-{task}"), Box::new(body)).unwrap()
            })
            .collect();
        drop(client);
        let last = server(&fabric, first, &executed);
        tasks.into_iter().for_each(dunlin_fabric::Task::join);
        last.shutdown(Duration::from_secs(1));
    });
    run.unwrap_or_else(|error| {
        panic!("{:?}/{:?} {}, seed {seed}: {error}", plan.request, plan.response, plan.client)
    });
    let ends = *total.lock().unwrap();
    assert_eq!(ends.ok, TASKS * WANTED);
    ends
}

fn plans() -> Vec<Plan> {
    let capabilities = Settings::default().capabilities;
    let mut plans = Vec::new();
    for protocol in PROTOCOLS {
        for mode in [CompletionMode::Busy, CompletionMode::Event, CompletionMode::Adaptive] {
            plans.extend(Some(protocol.plan(mode)).filter(|plan| plan.check(&capabilities).is_ok()));
        }
    }
    plans
}

/// Runs every plan under load with several seeds, while the server is ended by `end` and restarted three
/// times. Returns the outcomes of all calls.
fn over_plans(end: fn(&Sim, Server<Sim>)) -> Ends {
    let mut all = Ends::default();
    let seeds = std::env::var("DUNLIN_RPC_SEEDS").map_or(SEEDS, |seeds| seeds.parse().expect("a number"));
    for (number, plan) in plans().into_iter().enumerate() {
        for seed in 0..seeds {
            let ends = under_load(seed * 100 + number as u64, plan, move |fabric, mut server, executed| {
                let host = fabric.host();
                for _ in 0..3 {
                    host.sleep(host.now() + 100 * MICROSECOND + host.random() % (200 * MICROSECOND));
                    end(fabric, server);
                    server = serve(fabric, executed);
                }
                server
            });
            all.add(ends);
        }
    }
    all
}

#[test]
fn an_asynchronous_client_under_load_comes_back_to_a_server_that_was_cut_off() {
    let all = over_plans(|fabric, server| {
        let host = fabric.host();
        drop(server);
        host.sleep(host.now() + host.random() % (3 * MILLISECOND));
    });
    // The test is meaningful only if calls were in flight when the server stopped, and others came too late.
    assert!(all.maybe > 100 && all.not > 100, "{all:?}");
}

#[test]
fn a_server_that_drains_leaves_no_asynchronous_call_in_doubt() {
    let all = over_plans(|_, server| server.shutdown(Duration::from_secs(1)));
    assert!(all.maybe == 0 && all.not > 100, "{all:?}");
}

/// As [`under_load`], with threads of a combined client, while the server drains and comes back three times.
fn threads_under_load(seed: u64, mode: CompletionMode, max_queue_pairs: u16) -> Ends {
    const THREADS: u64 = 6;
    const WANTED: u64 = 150;
    let total = Arc::new(Mutex::new(Ends::default()));
    let sum = Arc::clone(&total);
    let settings = Settings { limit: 10_000_000_000, preemption: 20, ..Settings::default() };
    let run = Sim::run_with(settings, seed, move |fabric| {
        let executed = Executed::default();
        let mut server = serve(&fabric, &executed);
        let plan = Protocol::by_name("Direct-WriteIMM").unwrap().plan(mode);
        let plan = Plan { sharing: Sharing::Combined, ..plan };
        let timeout = Duration::MAX;
        let config = ClientConfig { window: 6, timeout, max_queue_pairs, ..ClientConfig::with_plan(plan) };
        let first = Client::connect(&fabric, &address(), config).unwrap();
        let host = fabric.host().clone();
        let tasks: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (fabric, mut client, executed) =
                    (fabric.clone(), first.another().unwrap(), Arc::clone(&executed));
                let sum = Arc::clone(&sum);
                let body = move || {
                    let call = |function, payload: &[u8]| {
                        client.call(function, payload).map(|result| result.to_vec())
                    };
                    let ends = caller(&fabric, call, ((thread + 1) << 32, WANTED), &executed);
                    sum.lock().unwrap().add(ends);
                };
                host.spawn(&format!("thread-{thread}"), Box::new(body)).unwrap()
            })
            .collect();
        drop(first);
        for _ in 0..3 {
            host.sleep(host.now() + 100 * MICROSECOND + host.random() % (200 * MICROSECOND));
            server.shutdown(Duration::from_secs(1));
            server = serve(&fabric, &executed);
        }
        tasks.into_iter().for_each(dunlin_fabric::Task::join);
        server.shutdown(Duration::from_secs(1));
    });
    run.unwrap_or_else(|error| panic!("{mode} {max_queue_pairs}, seed {seed}: {error}"));
    let ends = *total.lock().unwrap();
    assert_eq!(ends.ok, THREADS * WANTED);
    ends
}

#[test]
fn a_server_that_drains_leaves_no_call_of_a_combined_client_in_doubt() {
    let mut all = Ends::default();
    for seed in 0..SEEDS {
        for mode in [CompletionMode::Busy, CompletionMode::Event, CompletionMode::Adaptive] {
            [1, 3].into_iter().for_each(|strands| all.add(threads_under_load(seed, mode, strands)));
        }
    }
    assert!(all.maybe == 0 && all.not > 100, "{all:?}");
}

/// The steps of connecting, each of which can fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Greet,
    Prepare,
    Negotiate,
    Complete,
}

#[derive(Debug, Default)]
pub(crate) struct Tries {
    failing: Option<Step>,
    pub(crate) dialled: Vec<Nanos>,
    queue_pairs: i64,
    links: i64,
}

/// Hooks that make one step fail, and record the times of the attempts.
#[derive(Clone, Debug, Default)]
pub(crate) struct FailStep(pub(crate) Arc<Mutex<Tries>>);

impl FailStep {
    fn fails(&self, step: Step) -> bool {
        self.0.lock().unwrap().failing == Some(step)
    }
}

/// A link that counts the messages received on it.
#[derive(Clone, Debug)]
pub(crate) struct FailLink {
    shared: FailStep,
    received: Arc<Mutex<u32>>,
    _counted: Arc<CountedLink>,
}

#[derive(Debug)]
struct CountedLink(FailStep);

impl Drop for CountedLink {
    fn drop(&mut self) {
        self.0.0.lock().unwrap().links -= 1;
    }
}

impl<F: Fabric> Hooks<F> for FailStep {
    type Domain = FailStep;
    type Link = FailLink;

    fn domain_hooks(&self) -> FailStep {
        self.clone()
    }

    fn link_hooks(&self) -> FailLink {
        self.0.lock().unwrap().links += 1;
        FailLink {
            shared: self.clone(),
            received: Arc::default(),
            _counted: Arc::new(CountedLink(self.clone())),
        }
    }

    fn dial(&self, inner: &F, address: &Address, until: Nanos) -> Result<F::Link, DialError> {
        self.0.lock().unwrap().dialled.push(inner.host().now());
        if self.fails(Step::Greet) {
            return Err(DialError::TimedOut {
                address: address.clone(),
                after: std::time::Duration::from_secs(1),
            });
        }
        inner.dial(address, until)
    }
}

impl<L: Link> LinkHooks<L> for FailLink {
    fn receive(&self, inner: &L, until: Nanos) -> Result<Vec<u8>, LinkError> {
        let message = inner.receive(until)?;
        let mut received = self.received.lock().unwrap();
        *received += 1;
        // The first message is the reply to the hello, the second concerns the lane.
        if *received == 2 && self.shared.fails(Step::Negotiate) {
            return Err(LinkError::TimedOut);
        }
        Ok(message)
    }
}

impl<D: ThreadDomain> DomainHooks<D> for FailStep {
    fn create_queue_pair(
        &mut self,
        inner: &mut D,
        config: &QueuePairConfig,
    ) -> Result<QueuePairId, CreateError> {
        if self.fails(Step::Prepare) {
            return Err(CreateError::State("as asked"));
        }
        let made = inner.create_queue_pair(config);
        self.0.lock().unwrap().queue_pairs += made.is_ok() as i64;
        made
    }

    fn destroy_queue_pair(&mut self, inner: &mut D, queue_pair: QueuePairId) -> Result<(), CreateError> {
        self.0.lock().unwrap().queue_pairs -= 1;
        inner.destroy_queue_pair(queue_pair)
    }

    fn connect(
        &mut self,
        inner: &mut D,
        queue_pair: QueuePairId,
        link: &D::Link,
        remote: &Endpoint,
    ) -> Result<(), CreateError> {
        if self.fails(Step::Complete) {
            return Err(CreateError::State("as asked"));
        }
        inner.connect(queue_pair, link, remote)
    }
}

pub(crate) type Failing = Interposed<Sim, FailStep>;

/// Either kind of client behind one interface.
enum Either {
    Synchronous(Box<Client<Failing>>),
    Asynchronous(AsyncClient<Failing>),
}

impl Either {
    fn call(&mut self, fabric: &Sim) -> Result<(), CallError> {
        match self {
            Either::Synchronous(client) => client.call(ECHO, &[0; 8]).map(|_| ()),
            Either::Asynchronous(client) => block_on(fabric, client.call(ECHO, &[0; 8])).map(|_| ()),
        }
    }
}

const FIRST: Nanos = 200 * MICROSECOND;
const LONGEST: Nanos = 5 * MILLISECOND;
/// The time between two calls, longer than an attempt takes.
const BETWEEN: Nanos = 50 * MICROSECOND;
const SLACK: Nanos = 2 * BETWEEN;

/// Stops the server and makes `DIALS` attempts fail at `step` (`None`: because there is no server), then
/// restarts it. Returns the times of the attempts.
fn failing_dials(seed: u64, step: Option<Step>, asynchronous: bool) -> Vec<Nanos> {
    const DIALS: usize = 12;
    let times = Arc::new(Mutex::new(Vec::new()));
    let out = Arc::clone(&times);
    let run = Sim::run(seed, move |sim| {
        let executed = Executed::default();
        let hooks = FailStep::default();
        let tries = Arc::clone(&hooks.0);
        let fabric = Interposed::with_hooks(sim.clone(), hooks);
        let host = sim.host().clone();
        let server = serve(&sim, &executed);
        let config = ClientConfig {
            backoff: BackoffConfig {
                first: Duration::from_nanos(FIRST),
                longest: Duration::from_nanos(LONGEST),
            },
            timeout: Duration::MAX,
            connect_timeout: Duration::from_nanos(SLACK),
            ..ClientConfig::default()
        };
        let mut client = if asynchronous {
            let hub = AsyncHub::new(&fabric).unwrap();
            Either::Asynchronous(AsyncClient::connect(&hub, &address(), config).unwrap())
        } else {
            Either::Synchronous(Box::new(Client::connect(&fabric, &address(), config).unwrap()))
        };
        client.call(&sim).unwrap();
        drop(server);
        let mut server = step.map(|_| serve(&sim, &executed));
        {
            let mut tries = tries.lock().unwrap();
            tries.dialled.clear();
            tries.failing = step;
        }
        // The connection is lost. The client may learn that from a call in flight.
        while tries.lock().unwrap().dialled.len() < DIALS {
            let error = client.call(&sim).unwrap_err();
            let gone = [Cause::Disconnected, Cause::ConnectionLost, Cause::Draining];
            assert!(error.cause().is_some_and(|cause| gone.contains(&cause)), "{error}");
            host.sleep(host.now() + BETWEEN);
        }
        tries.lock().unwrap().failing = None;
        let server = server.take().unwrap_or_else(|| serve(&sim, &executed));
        let back = host.now();
        while let Err(error) = client.call(&sim) {
            assert_eq!(error.certainty(), Certainty::NotExecuted);
            host.sleep(host.now() + BETWEEN);
        }
        // Failed attempts leave nothing behind on either side.
        host.sleep(host.now() + MILLISECOND);
        let tries = tries.lock().unwrap();
        assert!(host.now() - back <= LONGEST + SLACK + MILLISECOND, "it came back late");
        assert_eq!((tries.queue_pairs, tries.links), (1, 1), "{step:?}");
        assert_eq!(server.connections(), 1, "{step:?}");
        out.lock().unwrap().clone_from(&tries.dialled);
        drop(tries);
        drop(client);
        server.shutdown(Duration::from_secs(1));
    });
    run.unwrap_or_else(|error| panic!("{step:?}, seed {seed}: {error}"));
    let times = times.lock().unwrap();
    times[..DIALS].to_vec()
}

/// Half of each wait is random: each wait lies within its bounds, and no two clients reconnect at the same
/// times.
fn assert_backs_off(step: Option<Step>, asynchronous: bool) {
    let dials = failing_dials(1, step, asynchronous);
    for (failures, pair) in dials.windows(2).enumerate() {
        let (wait, longest) = (pair[1] - pair[0], FIRST.saturating_mul(1 << failures).min(LONGEST));
        assert!(
            wait >= longest / 2 && wait <= longest + 2 * SLACK,
            "{step:?}: {wait} ns after {} failures, at most {longest} ns",
            failures + 1
        );
    }
    assert_eq!(dials, failing_dials(1, step, asynchronous), "{step:?}: chance comes from the host alone");
    let other = failing_dials(2, step, asynchronous);
    let waits =
        |dials: &[Nanos]| -> Vec<_> { dials.windows(2).map(|pair| (pair[1] - pair[0]) / SLACK).collect() };
    assert_ne!(waits(&dials), waits(&other), "{step:?}: no jitter");
}

const STEPS: [Option<Step>; 5] =
    [None, Some(Step::Greet), Some(Step::Prepare), Some(Step::Negotiate), Some(Step::Complete)];

#[test]
fn dials_that_fail_at_any_step_back_off_and_leave_nothing_behind() {
    STEPS.into_iter().for_each(|step| assert_backs_off(step, false));
}

#[test]
fn asynchronous_dials_that_fail_at_any_step_back_off_and_leave_nothing_behind() {
    STEPS.into_iter().for_each(|step| assert_backs_off(step, true));
}
