//! The queue pairs that the clones of an asynchronous client share: opened, divided, given up, broken, and replaced.

#![allow(missing_docs, clippy::disallowed_methods, clippy::disallowed_types)]

use crate::async_memory::wait;
use crate::common::*;
use crate::reconnecting::block_on;
use crate::strands::{BreakRule, Breaks, combined, connections, has_credits, limited};
use dunlin_fabric::interpose::Interposed;
use dunlin_fabric::{Address, Fabric, Host, QueuePairId, Scheme, Task};
use dunlin_fabric_sim::{Settings, Sim};
use dunlin_rpc::*;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Each request of a clone looks at the clock, and each look schedules.
const AT_ONCE: Duration = Duration::from_micros(1);

/// The last number that each worker has executed of each clone, and the executions of each call.
#[derive(Debug, Default)]
struct Executed {
    last: BTreeMap<(usize, u64), u64>,
    times: BTreeMap<u64, u32>,
    /// Calls that came after later ones of their clone.
    late: u32,
}

impl Executed {
    /// Checks that each call was executed once, in the order of its clone.
    fn check(&self) {
        assert!(self.times.values().all(|times| *times == 1));
        assert_eq!(self.late, 0);
    }
}

/// A call's clone, and its number among the clone's calls to its worker.
const fn numbered(clone: u64, call: u64) -> u64 {
    clone << 32 | call
}

/// Serves calls whose numbers grow at each worker, for each clone.
fn serve(
    fabric: &Sim,
    address: &Address,
    config: ServerConfig,
    executed: &Arc<Mutex<Executed>>,
) -> Server<Sim> {
    ServerBuilder::new(fabric)
        .config(config)
        .function(ECHO, FunctionMode::Worker)
        .serve(address, |worker| {
            let executed = Arc::clone(executed);
            Box::new(move |request: &Request<'_>, reply: &mut Reply<'_>| {
                let number = u64::from_le_bytes(*request.payload.first_chunk().unwrap());
                let mut executed = executed.lock().unwrap();
                *executed.times.entry(number).or_default() += 1;
                let last = executed.last.insert((worker.into(), number >> 32), number);
                executed.late += u32::from(last.is_some_and(|last| last > number));
                Ok(reply.write(request.payload)?)
            })
        })
        .unwrap()
}

/// Makes calls with `window` in flight until `over`, of sizes that change. Returns their outcomes by number.
fn call_until<F: Fabric>(
    client: &AsyncClient<F>,
    (clone, window): (u64, usize),
    over: &AtomicBool,
    mut wait: impl FnMut(Pin<&mut Call<F>>) -> Result<Vec<u8>, CallError>,
) -> BTreeMap<u64, Result<(), CallError>> {
    let (mut calls, mut open, mut ended) = (0u64, VecDeque::new(), BTreeMap::new());
    let mut end = |(number, payload, mut call): (u64, Vec<u8>, Pin<Box<Call<F>>>)| {
        let outcome = wait(call.as_mut()).map(|result| assert_eq!(result, payload));
        assert_eq!(ended.insert(number, outcome), None);
    };
    while !over.load(Ordering::Relaxed) {
        while open.len() < window {
            let number = numbered(clone, calls);
            let mut payload = number.to_le_bytes().to_vec();
            payload.resize(if (calls / 64 + clone) % 3 == 0 { 900 } else { 8 + calls as usize % 60 }, 7);
            let worker = calls as usize % client.workers().max(1);
            open.push_back((number, payload.clone(), Box::pin(client.call_on(worker, ECHO, &payload))));
            calls += 1;
        }
        end(open.pop_front().unwrap());
    }
    open.into_iter().for_each(&mut end);
    ended
}

/// Clones of a client in threads of their own that call until `over`.
fn start(
    fabric: &Sim,
    client: AsyncClient<Sim>,
    (first, clones): (u64, u64),
    window: usize,
    over: &Arc<AtomicBool>,
) -> Vec<Task> {
    let mut all: Vec<_> = (1..clones).map(|_| client.clone()).collect();
    all.push(client);
    (first..)
        .zip(all)
        .map(|(clone, client)| {
            let (fabric, over) = (fabric.clone(), Arc::clone(over));
            let host = fabric.host().clone();
            let body = move || {
                let wait = |call: Pin<&mut Call<Sim>>| block_on(&fabric, call).map(|result| result.to_vec());
                let ended = call_until(&client, (clone, window), &over, wait);
                assert!(ended.len() > 50, "{clone}: {}", ended.len());
                assert!(ended.values().all(Result::is_ok), "{ended:?}");
            };
            host.spawn(&format!("clone-{clone}"), Box::new(body)).unwrap()
        })
        .collect()
}

/// Sleeps until something is so, in virtual time.
fn sleep_until(fabric: &Sim, what: &str, is_so: impl Fn() -> bool) {
    let host = fabric.host();
    let until = host.now() + 2_000_000_000;
    while !is_so() {
        assert!(host.now() < until, "{what}");
        host.sleep(host.now() + 20_000);
    }
}

#[test]
fn clones_share_as_many_queue_pairs_as_are_granted() {
    // At most as many as are granted, as the client is set to, and as there are clones.
    for (seed, (limit, workers, most, expected)) in
        [(256, 1, 64, 4), (3, 1, 64, 3), (6, 2, 64, 3), (256, 2, 2, 2), (1, 2, 64, 1), (256, 1, 1, 1)]
            .into_iter()
            .enumerate()
    {
        for plan in [combined(), combined().completion(CompletionMode::Event, CompletionMode::Event)] {
            let settings = Settings { preemption: 20, ..Settings::default() };
            Sim::run_with(settings, seed as u64, move |fabric| {
                let address = Address::new(Scheme::Sim, "granted").unwrap();
                let executed = Arc::<Mutex<Executed>>::default();
                let server = serve(&fabric, &address, limited(limit, workers), &executed);
                let hub = AsyncHub::new(&fabric).unwrap();
                let config = ClientConfig {
                    max_queue_pairs: most,
                    thread_scheduling: Some(AT_ONCE),
                    ..with_plan(plan)
                };
                let first = AsyncClient::connect(&hub, &address, config).unwrap();
                let over = Arc::new(AtomicBool::new(false));
                let tasks = start(&fabric, first.clone(), (0, 4), 3, &over);
                sleep_until(&fabric, "the queue pairs are opened", || server.clients().len() >= expected);
                for _ in 0..200 {
                    fabric.host().sleep(fabric.host().now() + 20_000);
                    let lanes = server.clients().iter().filter(|client| client.lanes > 0).count();
                    assert!(lanes <= expected, "{lanes} of {expected}");
                }
                over.store(true, Ordering::Relaxed);
                tasks.into_iter().for_each(Task::join);
                sleep_until(&fabric, "the queue pairs of dropped clones are closed", || {
                    server.clients().len() == 1
                });
                assert_eq!(*block_on(&fabric, first.call(ECHO, &[0xff; 8])).unwrap(), [0xff; 8]);
                executed.lock().unwrap().check();
                drop((first, hub));
                server.shutdown(Duration::from_secs(1));
            })
            .unwrap_or_else(|error| panic!("{limit} {workers} {most} {:?}: {error}", plan.client));
        }
    }
}

/// Clones have strands under the policy that combines; under each other one they share a connection, whose lead is the lock.
#[test]
fn the_policy_says_how_many_connections_clones_have() {
    for sharing in Sharing::ALL {
        let settings = Settings { preemption: 20, ..Settings::default() };
        Sim::run_with(settings, 3, move |fabric| {
            let address = Address::new(Scheme::Sim, "policies").unwrap();
            let executed = Arc::<Mutex<Executed>>::default();
            let server = serve(&fabric, &address, ServerConfig::default(), &executed);
            let hub = AsyncHub::new(&fabric).unwrap();
            let plan = Plan { sharing, ..combined() };
            let config = ClientConfig { thread_scheduling: Some(AT_ONCE), ..with_plan(plan) };
            let client = AsyncClient::connect(&hub, &address, config).unwrap();
            let over = Arc::new(AtomicBool::new(false));
            let tasks = start(&fabric, client, (0, 3), 4, &over);
            let strands = if sharing == Sharing::Combined { 3 } else { 1 };
            sleep_until(&fabric, "all clones call", || {
                let calls = executed.lock().unwrap().times.len();
                calls > 3000 && server.clients().len() == strands
            });
            over.store(true, Ordering::Relaxed);
            tasks.into_iter().for_each(Task::join);
            assert!((1..=strands).contains(&server.clients().len()));
            executed.lock().unwrap().check();
            drop(hub);
            server.shutdown(Duration::from_secs(1));
        })
        .unwrap_or_else(|error| panic!("{}: {error}", sharing.name()));
    }
}

/// A program that clones the client for each call opens no queue pairs by it.
#[test]
fn a_clone_for_each_call_stays_on_the_first_queue_pair() {
    let (fabric, address) = (fabric(), unique("short"));
    let server = crate::strands::serve(&fabric, &address, ServerConfig::default());
    let hub = AsyncHub::new(&fabric).unwrap();
    let client = AsyncClient::connect(&hub, &address, with_plan(combined())).unwrap();
    bounded(move || {
        for call in 0..3000u64 {
            let clones = [client.clone(), client.clone()];
            for clone in clones {
                assert_eq!(*wait(clone.call(ECHO, &call.to_le_bytes())).unwrap(), call.to_le_bytes());
            }
        }
        assert_eq!(server.clients().len(), 1);
        // More clones than there are places share them.
        let many: Vec<_> = (0..600).map(|_| client.clone()).collect();
        for clone in &many {
            assert_eq!(*wait(clone.call(ECHO, b"shared")).unwrap(), *b"shared");
        }
        drop((many, client, hub));
        server.shutdown(Duration::from_secs(1));
    });
}

/// Two clients of four clones each at a server that keeps four queue pairs: the second one takes part of the first one's
/// away, whose clones move with calls in flight.
fn two_clients_divide(
    seed: u64,
    window: usize,
    config: ClientConfig,
    is_divided: impl Fn(Vec<usize>) -> bool + Send + 'static,
) {
    let settings = Settings { preemption: 20, ..Settings::default() };
    Sim::run_with(settings, seed, move |fabric| {
        let address = Address::new(Scheme::Sim, "divided").unwrap();
        let executed = Arc::<Mutex<Executed>>::default();
        let server = serve(&fabric, &address, limited(4, 1), &executed);
        let hub = AsyncHub::new(&fabric).unwrap();
        let over = Arc::new(AtomicBool::new(false));
        let connect = || AsyncClient::connect(&hub, &address, config.clone()).unwrap();
        let mut tasks = start(&fabric, connect(), (0, 4), window, &over);
        sleep_until(&fabric, "the first client has all", || server.clients().len() == 4);
        tasks.extend(start(&fabric, connect(), (4, 4), window, &over));
        sleep_until(&fabric, "the second client has a part", || {
            is_divided(connections(&server).into_values().collect())
        });
        over.store(true, Ordering::Relaxed);
        tasks.into_iter().for_each(Task::join);
        executed.lock().unwrap().check();
        drop(hub);
        server.shutdown(Duration::from_secs(1));
    })
    .unwrap_or_else(|error| panic!("{seed} {window}: {error}"));
}

#[test]
fn two_clients_divide_the_queue_pairs_of_a_server_among_their_clones() {
    for (seed, window, credits) in [(0, 2, 32), (1, 8, 32), (2, 8, 8)] {
        let config = ClientConfig { credits, thread_scheduling: Some(AT_ONCE), ..with_plan(combined()) };
        two_clients_divide(seed, window, config, |connections| connections == [2, 2]);
    }
}

/// Whatever the halves of the protocol, clones move and lose nothing.
#[test]
fn every_protocol_moves_its_clones() {
    let capabilities = Settings::default().capabilities;
    for protocol in PROTOCOLS {
        let plan = Plan { sharing: Sharing::Combined, ..protocol.plan(CompletionMode::Adaptive) };
        if plan.check(&capabilities).is_ok() && has_credits(protocol) {
            println!("{}", protocol.name);
            let config = ClientConfig { credits: 8, thread_scheduling: Some(AT_ONCE), ..with_plan(plan) };
            // With few calls in flight, one and three may stay so: the utilisation follows the queue pairs.
            two_clients_divide(7, 4, config, |parts| parts.len() == 2 && parts.iter().sum::<usize>() == 4);
        }
    }
}

/// A post on one queue pair finds it broken.
#[derive(Clone, Debug, Default)]
struct BreakOne {
    /// The queue pairs that have posted, in the order of their first posts.
    posting: Arc<Mutex<Vec<QueuePairId>>>,
    /// The number of the queue pair to break; 0 for none.
    breaks: Arc<AtomicU64>,
}

impl BreakRule for BreakOne {
    fn is_broken(&self, queue_pair: QueuePairId) -> bool {
        let mut posting = self.posting.lock().unwrap();
        let known = posting.iter().position(|known| *known == queue_pair);
        let number = known.unwrap_or_else(|| {
            posting.push(queue_pair);
            posting.len() - 1
        });
        let number = number as u64 + 1;
        self.breaks.compare_exchange(number, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

/// The calls on a queue pair that breaks end once, with the right certainty. Its clone goes on over another one at once,
/// and the others notice nothing.
#[test]
fn a_queue_pair_of_three_that_breaks_harms_no_other_clone() {
    let total = Arc::new(AtomicU64::new(0));
    for (seed, broken) in (0..6).flat_map(|seed| (1..=3).map(move |broken| (seed, broken))) {
        let total = Arc::clone(&total);
        let settings = Settings { preemption: 20, ..Settings::default() };
        Sim::run_with(settings, seed, move |sim| {
            let address = Address::new(Scheme::Sim, "breaks").unwrap();
            let executed = Arc::<Mutex<Executed>>::default();
            let server = serve(&sim, &address, ServerConfig::default(), &executed);
            let hooks = BreakOne::default();
            let breaks = Arc::clone(&hooks.breaks);
            let fabric = Interposed::with_hooks(sim.clone(), Breaks(hooks));
            let hub = AsyncHub::new(&fabric).unwrap();
            let config = ClientConfig { thread_scheduling: Some(AT_ONCE), ..with_plan(combined()) };
            let client = AsyncClient::connect(&hub, &address, config).unwrap();
            let (over, outcomes) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(BTreeMap::new())));
            let clones = [client.clone(), client.clone(), client];
            let tasks: Vec<_> = (0u64..)
                .zip(clones)
                .map(|(clone, client)| {
                    let (sim, over, outcomes) = (sim.clone(), Arc::clone(&over), Arc::clone(&outcomes));
                    let host = sim.host().clone();
                    let body = move || {
                        let ended = call_until(&client, (clone, 4), &over, |call| {
                            block_on(&sim, call).map(|result| result.to_vec())
                        });
                        outcomes.lock().unwrap().extend(ended);
                    };
                    host.spawn(&format!("clone-{clone}"), Box::new(body)).unwrap()
                })
                .collect();
            sleep_until(&sim, "each clone has a queue pair", || server.clients().len() == 3);
            sim.host().sleep(sim.host().now() + 300_000);
            breaks.store(broken, Ordering::Relaxed);
            sleep_until(&sim, "the queue pair has broken", || breaks.load(Ordering::Relaxed) == 0);
            sleep_until(&sim, "another one is opened in its place", || {
                server.clients().iter().filter(|client| client.lanes > 0).count() == 3
            });
            over.store(true, Ordering::Relaxed);
            tasks.into_iter().for_each(Task::join);
            let (executed, outcomes) = (executed.lock().unwrap(), outcomes.lock().unwrap());
            let mut failed = BTreeSet::new();
            for (number, outcome) in &*outcomes {
                let times = executed.times.get(number).copied().unwrap_or_default();
                match outcome {
                    Ok(()) => assert_eq!(times, 1),
                    Err(error) => {
                        failed.insert(number >> 32);
                        let most = u32::from(error.certainty() == Certainty::MaybeExecuted);
                        assert!(times <= most, "{error}: {times} times");
                    }
                }
            }
            assert!(failed.len() <= 1, "{failed:?}");
            total.fetch_add(failed.len() as u64, Ordering::Relaxed);
            drop(hub);
            server.shutdown(Duration::from_secs(1));
        })
        .unwrap_or_else(|error| panic!("{seed} {broken}: {error}"));
    }
    assert!(total.load(Ordering::Relaxed) > 8, "{total:?} of 18 runs had calls under way");
}

/// The server is replaced by another one. All clones go on there, and share several queue pairs again.
#[test]
fn clones_follow_a_server_that_drains() {
    for seed in 0..4 {
        let settings = Settings { preemption: 20, ..Settings::default() };
        Sim::run_with(settings, seed, move |fabric| {
            let address = Address::new(Scheme::Sim, "drains").unwrap();
            let executed = Arc::<Mutex<Executed>>::default();
            let server = serve(&fabric, &address, ServerConfig::default(), &executed);
            let hub = AsyncHub::new(&fabric).unwrap();
            let config = ClientConfig {
                thread_scheduling: Some(AT_ONCE),
                wait_for_ready: Duration::from_secs(2),
                ..with_plan(combined())
            };
            let client = AsyncClient::connect(&hub, &address, config).unwrap();
            let over = Arc::new(AtomicBool::new(false));
            let (refused, failed) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
            let clones = [client.clone(), client.clone(), client];
            let tasks: Vec<_> = (0u64..)
                .zip(clones)
                .map(|(clone, client)| {
                    let (fabric, over, executed) = (fabric.clone(), Arc::clone(&over), Arc::clone(&executed));
                    let (refused, failed) = (Arc::clone(&refused), Arc::clone(&failed));
                    let host = fabric.host().clone();
                    let body = move || {
                        let ended = call_until(&client, (clone, 3), &over, |call| {
                            block_on(&fabric, call).map(|result| result.to_vec())
                        });
                        for (number, outcome) in ended {
                            let times = executed.lock().unwrap().times.get(&number).copied();
                            match outcome {
                                Ok(()) => assert_eq!(times, Some(1)),
                                Err(CallError::NotExecuted(_)) => {
                                    assert_eq!(times, None);
                                    refused.fetch_add(1, Ordering::Relaxed);
                                }
                                Err(_) => _ = failed.fetch_add(1, Ordering::Relaxed),
                            }
                        }
                    };
                    host.spawn(&format!("clone-{clone}"), Box::new(body)).unwrap()
                })
                .collect();
            sleep_until(&fabric, "each clone has a queue pair", || server.clients().len() == 3);
            server.shutdown(Duration::from_secs(1));
            let server = serve(&fabric, &address, ServerConfig::default(), &executed);
            sleep_until(&fabric, "each clone has a queue pair again", || server.clients().len() == 3);
            over.store(true, Ordering::Relaxed);
            tasks.into_iter().for_each(Task::join);
            assert_eq!(failed.load(Ordering::Relaxed), 0, "a drained server says what it has not executed");
            drop(hub);
            server.shutdown(Duration::from_secs(1));
        })
        .unwrap_or_else(|error| panic!("{seed}: {error}"));
    }
}
