//! A thread that panics while it leads the others of its connection, in virtual time: before and after each post, and each
//! look for completions.

#![allow(missing_docs, clippy::disallowed_methods, clippy::disallowed_types)]

use crate::common::*;
use crate::reconnecting::block_on;
use dunlin_fabric::interpose::{DomainHooks, Hooks, Interposed, LinkHooks};
use dunlin_fabric::{
    Address, Completion, CompletionQueueId, Fabric, Host, Link, ListError, PostError, QueuePairId, Scheme,
    Task, ThreadDomain, WorkRequest,
};
use dunlin_fabric_sim::{Settings, Sim};
use dunlin_rpc::*;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const THREADS: u64 = 4;
const CALLS: u64 = 12;

/// Hooks that panic at one step of a domain, counted from the moment at which they are set.
#[derive(Clone, Debug, Default)]
struct PanicAt {
    /// The step is done, and its outcome is lost.
    after: bool,
    steps: Arc<AtomicI64>,
    has_panicked: Arc<AtomicBool>,
}

impl PanicAt {
    fn around<T>(&self, work: impl FnOnce() -> T) -> T {
        if !self.after {
            self.step();
        }
        let outcome = work();
        if self.after {
            self.step();
        }
        outcome
    }

    fn step(&self) {
        if self.steps.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.has_panicked.store(true, Ordering::Relaxed);
            // Without the message of a panic, which the test makes hundreds of times.
            resume_unwind(Box::new("as asked"));
        }
    }
}

impl<F: Fabric> Hooks<F> for PanicAt {
    type Domain = PanicAt;
    type Link = PanicAt;

    fn domain_hooks(&self) -> PanicAt {
        self.clone()
    }

    fn link_hooks(&self) -> PanicAt {
        self.clone()
    }
}

impl<L: Link> LinkHooks<L> for PanicAt {}

impl<D: ThreadDomain> DomainHooks<D> for PanicAt {
    fn post(
        &mut self,
        inner: &mut D,
        queue_pair: QueuePairId,
        request: WorkRequest<'_, D::Memory>,
    ) -> Result<(), PostError> {
        self.around(|| inner.post(queue_pair, request))
    }

    fn post_list(
        &mut self,
        inner: &mut D,
        queue_pair: QueuePairId,
        requests: &mut [Option<WorkRequest<'_, D::Memory>>],
    ) -> Result<(), ListError> {
        self.around(|| inner.post_list(queue_pair, requests))
    }

    fn poll(
        &mut self,
        inner: &mut D,
        queue: CompletionQueueId,
        into: &mut Vec<Completion<D::Memory>>,
        limit: usize,
    ) -> usize {
        self.around(|| inner.poll(queue, into, limit))
    }
}

/// The outcome of each call, by its number; `None` for the call of the thread that panicked.
type Outcomes = BTreeMap<u64, Option<Result<(), CallError>>>;

/// A server that counts the executions of each call by its number.
fn serve(sim: &Sim, address: &Address, executed: &Arc<Mutex<BTreeMap<u64, u32>>>) -> Server<Sim> {
    ServerBuilder::new(sim)
        .function(ECHO, FunctionMode::Worker)
        .serve(address, |_| {
            let executed = Arc::clone(executed);
            Box::new(move |request: &Request<'_>, reply: &mut Reply<'_>| {
                let number = u64::from_le_bytes(*request.payload.first_chunk().unwrap());
                *executed.lock().unwrap().entry(number).or_default() += 1;
                Ok(reply.write(request.payload)?)
            })
        })
        .unwrap()
}

/// Checks that each call has ended once and with the right certainty, and that only those under way have failed.
fn check(executed: &BTreeMap<u64, u32>, outcomes: &Outcomes) {
    assert_eq!(outcomes.len() as u64, THREADS * CALLS, "each call ends");
    let mut panics = 0;
    for (number, outcome) in outcomes {
        let times = executed.get(number).copied().unwrap_or_default();
        match outcome {
            None => panics += 1,
            Some(Ok(())) => assert_eq!(times, 1, "call {number}"),
            Some(Err(CallError::NotExecuted(_))) => assert_eq!(times, 0, "call {number}"),
            Some(Err(_)) => assert!(times <= 1, "call {number} was executed {times} times"),
        }
    }
    assert!(panics <= 1, "{panics} calls");
    let failed = outcomes.values().filter(|outcome| matches!(outcome, Some(Err(_)))).count();
    assert!(failed <= THREADS as usize, "{failed} calls have failed");
}

/// Returns the payload of a call.
fn payload(number: u64) -> Vec<u8> {
    let mut payload = number.to_le_bytes().to_vec();
    payload.resize([8, 100, 600][number as usize % 3], 7);
    payload
}

/// Runs threads of a handle, the leader of which panics at a step. Returns whether it did.
fn play(plan: Plan, seed: u64, (step, after): (i64, bool)) -> bool {
    let hooks = PanicAt { after, ..PanicAt::default() };
    let (has_panicked, name) =
        (Arc::clone(&hooks.has_panicked), format!("{plan:?}, {seed}, step {step}, after it: {after}"));
    let settings = Settings { preemption: 20, ..Settings::default() };
    let run = Sim::run_with(settings, seed, move |sim| {
        let executed = Arc::new(Mutex::new(BTreeMap::<u64, u32>::new()));
        let address = Address::new(Scheme::Sim, "panics").unwrap();
        let server = serve(&sim, &address, &executed);
        let fabric = Interposed::with_hooks(sim.clone(), hooks.clone());
        let config = ClientConfig { max_queue_pairs: 1, own_memory_from: 500, ..with_plan(plan) };
        let mut first = Client::connect(&fabric, &address, config).unwrap();
        let (host, outcomes) = (sim.host().clone(), Arc::new(Mutex::new(Outcomes::new())));
        let begin = host.now();
        let clients: Vec<_> = (0..THREADS).map(|_| first.another().unwrap()).collect();
        hooks.steps.store(step, Ordering::Relaxed);
        let tasks: Vec<_> = (0..THREADS)
            .zip(clients)
            .map(|(thread, mut client)| {
                let outcomes = Arc::clone(&outcomes);
                let body = move || {
                    for number in thread * CALLS..(thread + 1) * CALLS {
                        let payload = payload(number);
                        let outcome = catch_unwind(AssertUnwindSafe(|| {
                            client.call(ECHO, &payload).map(|result| assert_eq!(*result, *payload))
                        }));
                        let earlier = outcomes.lock().unwrap().insert(number, outcome.ok());
                        assert_eq!(earlier, None);
                    }
                };
                host.spawn(&format!("thread-{thread}"), Box::new(body)).unwrap()
            })
            .collect();
        tasks.into_iter().for_each(Task::join);
        hooks.steps.store(0, Ordering::Relaxed);
        // Nobody has waited for a deadline.
        let took = Duration::from_nanos(host.now() - begin);
        assert!(took < Duration::from_secs(1), "{took:?}");
        assert_eq!(*first.call(ECHO, &u64::MAX.to_le_bytes()).unwrap(), u64::MAX.to_le_bytes());
        drop(first);
        server.shutdown(Duration::from_secs(1));
        check(&executed.lock().unwrap(), &outcomes.lock().unwrap());
    });
    run.unwrap_or_else(|error| panic!("{name}: {error}"));
    has_panicked.load(Ordering::Relaxed)
}

/// As [`play`], with tasks of a hub, each on a thread of its own. The thread that panics may be the hub's.
fn play_tasks(plan: Plan, seed: u64, (step, after): (i64, bool)) -> bool {
    let hooks = PanicAt { after, ..PanicAt::default() };
    let (has_panicked, name) =
        (Arc::clone(&hooks.has_panicked), format!("tasks, {plan:?}, {seed}, step {step}, after it: {after}"));
    let settings = Settings { preemption: 20, ..Settings::default() };
    let run = Sim::run_with(settings, seed, move |sim| {
        let executed = Arc::new(Mutex::new(BTreeMap::<u64, u32>::new()));
        let address = Address::new(Scheme::Sim, "panics").unwrap();
        let server = serve(&sim, &address, &executed);
        let fabric = Interposed::with_hooks(sim.clone(), hooks.clone());
        let hub = AsyncHub::new(&fabric).unwrap();
        let config = ClientConfig {
            wait_for_ready: Duration::from_secs(20),
            timeout: Duration::from_secs(30),
            ..with_plan(plan)
        };
        let client = AsyncClient::connect(&hub, &address, config).unwrap();
        let (host, outcomes) = (sim.host().clone(), Arc::new(Mutex::new(Outcomes::new())));
        let begin = host.now();
        hooks.steps.store(step, Ordering::Relaxed);
        let tasks: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (sim, client, outcomes) = (sim.clone(), client.clone(), Arc::clone(&outcomes));
                let body = move || {
                    for number in thread * CALLS..(thread + 1) * CALLS {
                        let payload = payload(number);
                        let outcome = catch_unwind(AssertUnwindSafe(|| {
                            let result = block_on(&sim, client.call(ECHO, &payload));
                            result.map(|result| assert_eq!(*result, *payload))
                        }));
                        let earlier = outcomes.lock().unwrap().insert(number, outcome.ok());
                        assert_eq!(earlier, None);
                    }
                };
                host.spawn(&format!("task-{thread}"), Box::new(body)).unwrap()
            })
            .collect();
        tasks.into_iter().for_each(Task::join);
        hooks.steps.store(0, Ordering::Relaxed);
        // Nobody has waited for a deadline.
        let took = Duration::from_nanos(host.now() - begin);
        assert!(took < Duration::from_secs(1), "{took:?}");
        let last = block_on(&sim, client.call(ECHO, &u64::MAX.to_le_bytes())).unwrap();
        assert_eq!(*last, u64::MAX.to_le_bytes());
        drop((last, client, hub));
        server.shutdown(Duration::from_secs(1));
        check(&executed.lock().unwrap(), &outcomes.lock().unwrap());
    });
    run.unwrap_or_else(|error| panic!("{name}: {error}"));
    has_panicked.load(Ordering::Relaxed)
}

#[test]
fn a_leader_that_panics_harms_no_other_thread() {
    Sharing::shared().for_each(|sharing| play_all(sharing, 30, play));
}

#[test]
fn a_task_that_panics_while_it_leads_harms_no_other_task() {
    play_all(Sharing::Dedicated, 30, play_tasks);
}

/// Collects eight calls, of which six are one batch, with a closure that panics at one result. Returns whether it did.
fn play_collect(plan: Plan, seed: u64, at: usize) -> bool {
    const ALL: u64 = 8;
    let (panicked, name) = (Arc::new(AtomicBool::new(false)), format!("{plan:?}, {seed}, result {at}"));
    let has_panicked = Arc::clone(&panicked);
    let run = Sim::run(seed, move |sim| {
        let executed = Arc::new(Mutex::new(BTreeMap::<u64, u32>::new()));
        let address = Address::new(Scheme::Sim, "panics").unwrap();
        let server = serve(&sim, &address, &executed);
        let mut client = Client::connect(&sim, &address, with_plan(plan)).unwrap();
        let host = sim.host().clone();
        let begin = host.now();
        let calls: BTreeMap<CallId, u64> = (0..ALL)
            .map(|number| match number {
                0 | 7 => (client.submit_on(0, ECHO, &payload(number)).unwrap(), number),
                _ => (client.push_on(0, ECHO, &payload(number)).unwrap(), number),
            })
            .collect();
        client.flush().unwrap();
        let (mut ended, mut seen) = (BTreeMap::new(), 0);
        while ended.len() < calls.len() {
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                client.collect(|id, result| {
                    let right = result.map(|bytes| assert_eq!(bytes, payload(calls[&id])));
                    let earlier = ended.insert(calls[&id], right);
                    seen += 1;
                    if earlier.is_some() || seen == at {
                        resume_unwind(Box::new(earlier.is_some()));
                    }
                })
            }));
            if let Err(twice) = outcome {
                assert_eq!(
                    twice.downcast_ref(),
                    Some(&false),
                    "a call has ended twice, or with another result"
                );
                panicked.store(true, Ordering::Relaxed);
            }
            host.sleep(host.now() + 1_000);
            let took = Duration::from_nanos(host.now() - begin);
            assert!(took < Duration::from_secs(1), "{ended:?} after {took:?}");
        }
        assert_eq!(client.in_flight(), 0);
        assert_eq!(*client.call(ECHO, &ALL.to_le_bytes()).unwrap(), ALL.to_le_bytes());
        drop(client);
        server.shutdown(Duration::from_secs(1));
        let executed = executed.lock().unwrap();
        for (number, outcome) in &ended {
            let times = executed.get(number).copied().unwrap_or_default();
            assert!(
                times == 1 || (outcome.is_err() && times == 0),
                "call {number}: {outcome:?}, {times} times"
            );
        }
    });
    run.unwrap_or_else(|error| panic!("{name}: {error}"));
    has_panicked.load(Ordering::Relaxed)
}

/// The user's code runs between the messages of a batch. Its panic loses none of the others for ever.
#[test]
fn a_closure_that_panics_in_collect_lets_every_call_end() {
    let plans = ["Server-reply", "Direct-WriteIMM", "Eager-SendRecv", "Remote-fetch", "FaSST"].map(|name| {
        let plan = Protocol::by_name(name).unwrap().plan(CompletionMode::Busy);
        (name, plan)
    });
    let shared = Sharing::shared().map(|sharing| {
        let plan = Protocol::by_name("Server-reply").unwrap().plan(CompletionMode::Busy);
        (sharing.name(), Plan { sharing, ..plan })
    });
    for (seed, (name, plan)) in plans.into_iter().chain(shared).enumerate() {
        let panics = (1..=8).filter(|at| play_collect(plan, seed as u64, *at)).count();
        assert_eq!(panics, 8, "{name}");
    }
}

fn play_all(sharing: Sharing, least: usize, play: fn(Plan, u64, (i64, bool)) -> bool) {
    for (seed, name) in ["Server-reply", "Direct-WriteIMM", "Eager-SendRecv"].into_iter().enumerate() {
        for mode in [CompletionMode::Busy, CompletionMode::Event] {
            let plan = Protocol::by_name(name).unwrap().plan(mode);
            let plan = Plan { sharing, ..plan };
            if plan.check(&Settings::default().capabilities).is_err() {
                continue;
            }
            for after in [false, true] {
                let reached = (1..150).filter(|step| play(plan, seed as u64, (*step, after))).count();
                assert!(reached > least, "{name} {mode}, after: {after}: {reached} panics");
            }
        }
    }
}
