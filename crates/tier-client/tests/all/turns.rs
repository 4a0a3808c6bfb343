//! Operations that the node's worker runs itself, on shared memory and in virtual time, where completions take time.

use crate::common::{attach, config, serve, tag};
use dunlin_fabric::{Address, Atomics, Count, Fabric, Host, Nanos, Scheme, Task};
use dunlin_fabric_sim::{MachineSettings, RETRIES_LAST, Settings, Sim};
use dunlin_tier_client::{
    AccessError, AttachConfig, ListError, Lmr, OperationError, Operations, Rights, Spec, Tier,
};
use dunlin_tier_node::{Limit, Peer, ProcessConfig, ProcessLimits, ProcessServer, Ran, Share, TierConfig};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub(crate) const NODES: [&str; 2] = ["one", "two"];

/// Every operation that the worker may run, on one region; returns how many there were.
fn all_operations<P: Fabric>(region: &Lmr<P>, rounds: u64) -> u64 {
    let mut bytes = [0; 4000];
    for round in 0..rounds {
        let filler = [round as u8 + 1; 4000];
        region.write(8192, &filler).unwrap();
        region.read(8192, &mut bytes).unwrap();
        assert_eq!(bytes, filler);
        assert_eq!(region.fetch_add(0, 3).unwrap(), 4 * round);
        assert_eq!(region.compare_swap(0, 4 * round + 3, 4 * round + 4).unwrap(), 4 * round + 3);
        assert_eq!(region.compare_swap(0, 1, 7).unwrap(), 4 * round + 4);
        region.write_notify(4096, &filler[..100], 8, round).unwrap();
        let mut word = [0; 8];
        let list = Operations::new().read(region, 4096, &mut bytes[..100]).read(region, 8, &mut word);
        let outcomes = list.fetch_add(region, 16, 1).write(region, 24, &[1; 8]).run().unwrap();
        assert_eq!(outcomes[2].as_ref().unwrap().old(), Some(round));
        assert!(outcomes.iter().all(Result::is_ok));
        assert_eq!((&bytes[..100], u64::from_le_bytes(word)), (&filler[..100], round));
    }
    7 * rounds
}

fn since(now: Ran, before: Ran) -> Ran {
    Ran {
        at_once: now.at_once - before.at_once,
        later: now.later - before.later,
        pool: now.pool - before.pool,
    }
}

/// A list of more operations than a path has under way at a time.
fn long_list<P: Fabric>(region: &Lmr<P>, atomics: bool) {
    let texts: Vec<[u8; 100]> = (0..20).map(|at| [at as u8 + 1; 100]).collect();
    let mut list = Operations::new();
    for (at, text) in (0..).zip(&texts) {
        list = list.write(region, 20_000 + 100 * at, text);
        list = if atomics { list.fetch_add(region, 16_384 + 8 * at, at) } else { list };
    }
    assert!(list.run().unwrap().iter().all(Result::is_ok));
    let mut found = vec![[0; 100]; 20];
    let mut list = Operations::new();
    for (at, place) in (0..).zip(&mut found) {
        list = list.read(region, 20_000 + 100 * at, place);
        list = if atomics { list.fetch_add(region, 16_384 + 8 * at, 0) } else { list };
    }
    let outcomes = list.run().unwrap();
    let old: Vec<u64> = outcomes.into_iter().filter_map(|outcome| outcome.unwrap().old()).collect();
    assert_eq!(old, (0..if atomics { 20 } else { 0 }).collect::<Vec<u64>>());
    assert_eq!(found, texts);
}

/// Once there are connections, no operation is handed to another thread, on bytes of any node.
#[test]
fn short_operations_on_shared_memory_stay_on_the_worker() {
    let tag = tag("turns");
    let nodes = NODES.map(|name| serve(config(&tag, &NODES, name), &tag, |_| {}));
    let app = attach(&nodes[0].address);
    for store in NODES {
        let region = app.malloc(1 << 20, Spec::on(store)).unwrap();
        // Connects, and tells the library where the bytes are.
        region.write(8192, &[0; 8]).unwrap();
        region.fetch_add(16, 0).unwrap();
        let before = nodes[0].processes.counts();
        let mut operations = all_operations(&region, 50);
        let counts = since(nodes[0].processes.counts(), before);
        if store == "one" {
            // Reads and writes of bytes of the own node are not counted: the library knows that they are.
            operations -= 2 * 50;
        }
        assert_eq!(counts, Ran { at_once: operations, later: 0, pool: 0 }, "{store}");
        // Long ones go to the pool.
        long_list(&region, true);
        assert_eq!(since(nodes[0].processes.counts(), before).pool, 0, "{store}");
        region.compare_swap(0, 0, 0).unwrap();
        region.write_notify(0, &[0; 9000], 16_384, 1).unwrap();
        assert_eq!(since(nodes[0].processes.counts(), before).pool, u64::from(store == "two"), "{store}");
        region.free().unwrap();
    }
}

#[test]
fn a_refusal_of_the_worker_is_that_of_the_pool() {
    let tag = tag("turns-refuse");
    let nodes = NODES.map(|name| serve(config(&tag, &NODES, name), &tag, |_| {}));
    let app = attach(&nodes[0].address);
    let region = app.malloc(4096, Spec::on("two").named("narrow").grant_anyone(Rights::READ)).unwrap();
    region.fetch_add(0, 1).unwrap();
    let denied = AccessError::Denied { needs: Rights::WRITE, has: Rights::READ };
    let view = app.map("narrow", Rights::READ).unwrap();
    let before = nodes[0].processes.counts();
    let refused = [
        (region.fetch_add(12, 1).unwrap_err(), AccessError::Misaligned(12)),
        (
            region.fetch_add(4096, 1).unwrap_err(),
            AccessError::OutOfBounds { offset: 4096, length: 8, size: 4096 },
        ),
        (view.compare_swap(0, 1, 1).unwrap_err(), denied),
        (region.write_notify(0, b"x", 4, 1).unwrap_err(), AccessError::Misaligned(4)),
    ];
    for (error, expected) in refused {
        assert!(matches!(error, OperationError::Access(found) if found == expected), "{error}");
    }
    let list = Operations::new().fetch_add(&region, 0, 1).fetch_add(&view, 0, 1).run();
    let Err(ListError::Refused { place: 1, source }) = list else { panic!("{list:?}") };
    assert!(matches!(source, OperationError::Access(found) if found == denied), "{source}");
    assert!(region.within(Duration::ZERO).fetch_add(0, 1).unwrap_err().is_deadline());
    assert_eq!(region.fetch_add(0, 0).unwrap(), 1, "nothing was done");
    assert_eq!(since(nodes[0].processes.counts(), before).pool, 0);
    region.free().unwrap();
    let gone = view.fetch_add(0, 1).unwrap_err();
    assert!(matches!(gone, OperationError::Access(AccessError::Gone)), "{gone}");
}

/// A node of a run, with its service for processes.
pub(crate) struct Node<F: Fabric = Sim, P: Fabric = Sim> {
    pub(crate) address: Address,
    pub(crate) processes: ProcessServer<P>,
    pub(crate) tier: dunlin_tier_node::Tier<F>,
}

pub(crate) fn node(fabric: &Sim, name: &str, change: impl Fn(&mut TierConfig)) -> Node {
    node_on(fabric, fabric, name, change)
}

/// A node whose memory is on `fabric`, and which serves processes on `near`.
pub(crate) fn node_on<F: Fabric, P: Fabric>(
    fabric: &F,
    near: &P,
    name: &str,
    change: impl Fn(&mut TierConfig),
) -> Node<F, P> {
    let peers = NODES.map(|name| Peer::named(Scheme::Sim, name).unwrap());
    let mut config = TierConfig::new(peers.into(), name);
    config.memory = 1 << 20;
    change(&mut config);
    let tier = dunlin_tier_node::Tier::within(fabric, config).unwrap();
    let address = Address::new(Scheme::Sim, &format!("{name}-attach")).unwrap();
    // The limits of a process are those of a machine here, whose processes have no ids.
    let limits = ProcessLimits { operations: 64, ..ProcessLimits::default() };
    let users = BTreeMap::from([(0, "all".to_owned())]);
    let config = ProcessConfig { users, limits, ..ProcessConfig::new(address.clone()) };
    Node { processes: ProcessServer::serve(near, &tier, config).unwrap(), address, tier }
}

pub(crate) fn app<P: Fabric>(fabric: &Sim, node: &Node<Sim, P>) -> Tier<Sim> {
    Tier::attach_with(fabric, AttachConfig::new(node.address.clone())).unwrap()
}

fn two_machines(atomics: bool) -> Settings {
    let mut settings = Settings { machines: vec![MachineSettings::default(); 2], ..Settings::default() };
    settings.capabilities.atomics = Atomics::of_device(atomics);
    settings
}

/// Runs `body` with the root's fabric and the processes of two nodes on machines of their own.
pub(crate) fn in_virtual_time(seed: u64, atomics: bool, body: impl FnOnce(Sim, [Sim; 2]) + Send + 'static) {
    Sim::run_with(two_machines(atomics), seed, move |sim| {
        let nodes = [0, 1].map(|machine| sim.process_on(machine));
        body(sim, nodes);
    })
    .unwrap();
}

pub(crate) fn spawn(fabric: &Sim, body: impl FnOnce() + Send + 'static) -> Task {
    fabric.host().spawn("app", Box::new(body)).unwrap()
}

#[test]
fn operations_whose_completions_take_time_are_answered_in_later_turns() {
    for (seed, atomics) in [(1, true), (2, true), (3, false)] {
        in_virtual_time(seed, atomics, move |sim, fabrics| {
            let nodes = [0, 1].map(|at| node(&fabrics[at], NODES[at], |_| {}));
            let app = app(&sim.process_on(0), &nodes[0]);
            for store in NODES {
                let region = app.malloc(1 << 16, Spec::on(store)).unwrap();
                region.write(8192, &[0; 8]).unwrap();
                region.fetch_add(16, 0).unwrap();
                let before = nodes[0].processes.counts();
                let operations = all_operations(&region, 10);
                let counts = since(nodes[0].processes.counts(), before);
                let expected = match (store, atomics) {
                    // Reads and writes by the worker's other functions; write_notify is a copy.
                    ("one", true) => Ran { at_once: 10, later: operations - 30, pool: 0 },
                    // The lists have atomics, which are calls.
                    ("one", false) => Ran { at_once: operations - 30, later: 0, pool: 10 },
                    (_, true) => Ran { at_once: 0, later: operations, pool: 0 },
                    (_, false) => Ran { at_once: 0, later: 30, pool: operations - 30 },
                };
                assert_eq!(counts, expected, "{store} {atomics}");
                let before = nodes[0].processes.counts();
                long_list(&region, atomics);
                let counts = since(nodes[0].processes.counts(), before);
                let (at_once, later) = if store == "two" || atomics { (0, 2) } else { (2, 0) };
                assert_eq!(counts, Ran { at_once, later, pool: 0 }, "{store} {atomics}");
                region.free().unwrap();
            }
        });
    }
}

/// An operation is not slower than twice what it takes the node itself, and the engine's round trip.
#[test]
fn an_operation_costs_a_round_trip_to_the_node_and_one_of_the_network() {
    in_virtual_time(7, true, |sim, fabrics| {
        let nodes = [0, 1].map(|at| node(&fabrics[at], NODES[at], |_| {}));
        let app = app(&sim.process_on(0), &nodes[0]);
        let host = sim.host();
        let time = |operation: &dyn Fn()| {
            let begin = host.now();
            (0..100).for_each(|_| operation());
            (host.now() - begin) / 100
        };
        let (near, far) =
            (app.malloc(4096, Spec::here()).unwrap(), app.malloc(4096, Spec::on("two")).unwrap());
        let own = nodes[0].tier.malloc(4096, Spec::on("two")).unwrap();
        far.write(0, &[1; 64]).unwrap();
        own.write(0, &[1; 64]).unwrap();
        let engine = time(&|| near.write(0, &[1; 64]).unwrap());
        let network = time(&|| own.write(0, &[1; 64]).unwrap());
        let both = time(&|| far.write(0, &[1; 64]).unwrap());
        assert!(both < 2 * (engine + network), "{engine} + {network} ns, and together {both} ns");
    });
}

/// An operation beyond the limit of its principal waits in the pool, and counts once.
#[test]
fn operations_beyond_a_limit_wait_in_the_pool() {
    in_virtual_time(3, true, |sim, fabrics| {
        let limited = |config: &mut TierConfig| {
            let limit = Limit { operations: 10_000, ..Limit::default() };
            config.qos.everyone = Share { limit, ..Share::default() };
        };
        let node = node(&fabrics[0], "one", limited);
        let app = app(&sim.process_on(0), &node);
        let region = app.malloc(4096, Spec::here()).unwrap();
        let begin = sim.host().now();
        for round in 0..400 {
            assert_eq!(region.fetch_add(0, 1).unwrap(), round);
        }
        let time = sim.host().now() - begin;
        // 10 ms of unused time had collected.
        assert!((29_000_000..35_000_000).contains(&time), "{time} ns");
        let Ran { at_once, later, pool } = node.processes.counts();
        assert_eq!((at_once, later + pool), (0, 400));
        assert!(later >= 90 && pool >= 200, "{later} {pool}");
    });
}

/// Several processes change one word; two paths and the pool behind them carry all of it, each once.
#[test]
fn processes_share_paths_and_the_pool_in_virtual_time() {
    for seed in 0..6 {
        in_virtual_time(seed, true, |sim, fabrics| {
            let nodes = [0, 1].map(|at| node(&fabrics[at], NODES[at], |_| {}));
            let first = app(&sim.process_on(0), &nodes[0]);
            let region = first.malloc(4096, Spec::on("two").named("word")).unwrap();
            region.fetch_add(8, 0).unwrap();
            let tasks: Vec<Task> = (0..5)
                .map(|number| {
                    let fabric = sim.process_on(0);
                    let app = app(&fabric, &nodes[0]);
                    spawn(&sim, move || {
                        let region = app.map("word", Rights::ALL).unwrap();
                        let mut last = None;
                        for round in 0..30 {
                            let old = region.fetch_add(0, 1).unwrap();
                            assert!(last < Some(old), "one after the other");
                            last = Some(old);
                            let own = [number * 40 + round; 100];
                            let mut found = [0; 100];
                            region.write(100 * (1 + u64::from(number)), &own).unwrap();
                            region.read(100 * (1 + u64::from(number)), &mut found).unwrap();
                            assert_eq!(found, own);
                        }
                    })
                })
                .collect();
            tasks.into_iter().for_each(Task::join);
            assert_eq!(region.fetch_add(0, 0).unwrap(), 150);
            let counts = nodes[0].processes.counts();
            assert!(counts.later > 100 && counts.at_once == 0, "{counts:?}");
        });
    }
}

/// The node whose bytes are used dies at any time: each operation ends once, an error says that it may have been
/// executed unless it was not posted, and the worker goes on with the bytes of its own node.
#[test]
fn a_peer_that_dies_ends_operations_that_are_under_way() {
    let seen = Arc::new(Mutex::new(BTreeMap::new()));
    for seed in 0..24 {
        let seen = Arc::clone(&seen);
        in_virtual_time(seed, true, move |sim, fabrics| {
            let quick = |config: &mut TierConfig| config.timeout = Duration::from_millis(50);
            let here = node(&fabrics[0], "one", quick);
            let there = node(&fabrics[1], "two", quick);
            let app = app(&sim.process_on(0), &here);
            let (near, far) =
                (app.malloc(64, Spec::here()).unwrap(), app.malloc(64, Spec::on("two")).unwrap());
            near.fetch_add(0, 0).unwrap();
            far.fetch_add(0, 0).unwrap();
            let victim = fabrics[1].clone();
            let killer = {
                let host = sim.host().clone();
                spawn(&sim, move || {
                    host.sleep(host.now() + 2000 + seed * 613);
                    victim.kill();
                })
            };
            let (mut expected, mut kinds) = (0, [0; 2]);
            let error = loop {
                match far.fetch_add(0, 1) {
                    Ok(old) => assert_eq!(old, expected),
                    Err(error) => break error,
                }
                expected += 1;
            };
            kinds[usize::from(error.may_have_executed())] += 1;
            killer.join();
            // Without a connection, nothing is executed.
            let later = far.fetch_add(0, 1).unwrap_err();
            assert!(!later.may_have_executed(), "{later}");
            for round in 0..10 {
                assert_eq!(near.fetch_add(0, 1).unwrap(), round);
            }
            assert!(here.processes.counts().later >= expected);
            *seen.lock().unwrap().entry(kinds).or_insert(0) += 1;
            drop(there);
        });
    }
    let seen = seen.lock().unwrap();
    assert!(seen.get(&[0, 1]).is_some_and(|count| *count >= 5), "errors under way: {seen:?}");
}

/// A node does not answer until the NIC gives its connection up. The worker sleeps meanwhile, and requests for bytes of its
/// own node wake it. On a fabric whose events wake no other domain it naps, the more often the longer it lasts.
#[test]
fn the_worker_sleeps_while_a_peer_does_not_answer() {
    const REQUESTS: u64 = 4;
    for (seed, wakes) in (0..8).map(|seed| (seed, seed % 2 == 0)) {
        let mut settings = two_machines(true);
        settings.capabilities.wakes_others = wakes;
        Sim::run_with(settings, seed, move |sim| {
            let fabrics = [0, 1].map(|machine| sim.process_on(machine));
            let counted = Count::new(fabrics[0].clone());
            let here = node_on(&fabrics[0], &counted, NODES[0], |_| {});
            let _there = node(&fabrics[1], NODES[1], |_| {});
            let app = app(&sim.process_on(0), &here);
            let (near, far) =
                (app.malloc(64, Spec::here()).unwrap(), app.malloc(64, Spec::on("two")).unwrap());
            assert_eq!((near.fetch_add(0, 0).unwrap(), far.fetch_add(0, 1).unwrap()), (0, 0));
            let host = sim.host().clone();
            let before = counted.counts();
            sim.cut_off(1, 1_000_000_000);
            let began = host.now();
            let own = host.clone();
            let asks = spawn(&sim, move || {
                for round in 0..REQUESTS {
                    own.sleep(own.now() + RETRIES_LAST / 8);
                    assert_eq!(near.fetch_add(0, 1).unwrap(), round);
                }
            });
            let error = far.fetch_add(0, 1).unwrap_err();
            asks.join();
            assert!(error.may_have_executed(), "{error}");
            assert!(host.now() >= began + RETRIES_LAST, "the operation was under way for all of the time");
            let sleeps = (counted.counts() - before).waits_event;
            // Around each request and the operation, once to three times.
            let few = 3 * (REQUESTS + 1);
            assert!(if wakes { sleeps <= few } else { sleeps >= few * 3 / 2 }, "{wakes}: {sleeps} sleeps");
        })
        .unwrap();
    }
}

/// A process dies while its operation is under way. A free waits for the operation, the memory is zeroed and used again,
/// and no late operation changes it.
#[test]
fn a_free_waits_for_the_operation_of_a_process_that_died() {
    for seed in 0..12 {
        in_virtual_time(seed, true, move |sim, fabrics| {
            let nodes = [0, 1].map(|at| node(&fabrics[at], NODES[at], |config| config.memory = 1 << 16));
            let keeps = app(&sim.process_on(0), &nodes[0]);
            let region = keeps.malloc(1 << 16, Spec::on("two").named("all")).unwrap();
            region.write(0, &[0; 8]).unwrap();
            let fabric = sim.process_on(0);
            let writer = app(&fabric, &nodes[0]);
            let _killed = fabric
                .host()
                .spawn(
                    "writer",
                    Box::new(move || {
                        let view = writer.map("all", Rights::ALL).unwrap();
                        for round in 0u64.. {
                            if view.write(round % 8 * 4096, &[0xff; 4096]).is_err() {
                                return;
                            }
                        }
                    }),
                )
                .unwrap();
            let host = sim.host();
            host.sleep(host.now() + 60_000 + seed * 1371);
            fabric.kill();
            region.free().unwrap();
            let next = keeps.malloc(1 << 16, Spec::on("two")).unwrap();
            let mut found = vec![1; 1 << 16];
            for _ in 0..5 {
                next.read(0, &mut found).unwrap();
                assert!(found.iter().all(|byte| *byte == 0), "a late write");
                host.sleep(host.now() + 50_000);
            }
        });
    }
}

/// Operations with less time than the network takes: the outcome says whether they may have been executed, and the word
/// confirms it. Others go on.
#[test]
fn an_operation_under_way_ends_at_its_deadline() {
    for seed in 0..8 {
        in_virtual_time(seed, true, move |sim, fabrics| {
            let nodes = [0, 1].map(|at| node(&fabrics[at], NODES[at], |_| {}));
            let app = app(&sim.process_on(0), &nodes[0]);
            let region = app.malloc(64, Spec::on("two")).unwrap();
            region.fetch_add(8, 1).unwrap();
            let (mut done, mut maybe): (u64, u64) = (0, 0);
            for round in 0..60 {
                let time = Duration::from_nanos(300 + 97 * round);
                match region.within(time).fetch_add(0, 1) {
                    Ok(old) => {
                        assert!((done..=done + maybe).contains(&old), "{old}, {done} and {maybe}");
                        done += 1;
                    }
                    Err(error) => {
                        // Or there was too little time for a new connection.
                        assert!(error.is_deadline() || !error.may_have_executed(), "{error}");
                        maybe += u64::from(error.may_have_executed());
                    }
                }
                if round % 7 == 0 {
                    let now = region.fetch_add(0, 0).unwrap();
                    assert!((done..=done + maybe).contains(&now), "{now}, {done} and {maybe}");
                }
            }
            let now = region.fetch_add(0, 0).unwrap();
            assert!((done..=done + maybe).contains(&now), "{now}, {done} and {maybe}");
            region.free().unwrap();
        });
    }
}

/// A write that ended at its deadline may still be on its way. A free waits until it cannot arrive any more.
#[test]
fn a_free_waits_for_writes_that_ended_at_their_deadline() {
    for seed in 0..12 {
        in_virtual_time(seed, true, move |sim, fabrics| {
            let nodes = [0, 1].map(|at| node(&fabrics[at], NODES[at], |config| config.memory = 1 << 16));
            let app = app(&sim.process_on(0), &nodes[0]);
            let host = sim.host();
            for round in 0..10 {
                let region = app.malloc(1 << 16, Spec::on("two")).unwrap();
                region.write(0, &[1; 8]).unwrap();
                let time = Duration::from_nanos(400 + 151 * round);
                let _ = region.within(time).write(4096, &[0xff; 8000]);
                region.free().unwrap();
                let next = app.malloc(1 << 16, Spec::on("two")).unwrap();
                let mut found = vec![1; 1 << 16];
                for _ in 0..3 {
                    next.read(0, &mut found).unwrap();
                    assert!(found.iter().all(|byte| *byte == 0), "a late write");
                    host.sleep(host.now() + 5000);
                }
                next.free().unwrap();
            }
        });
    }
}

/// Lists that end at their deadline with a part posted, a part complete and a part not posted: each word has changed as
/// the outcomes say.
#[test]
fn a_list_under_way_ends_at_its_deadline() {
    const WORDS: usize = 24;
    let certainties = Arc::new(Mutex::new([0; 3]));
    for seed in 0..8 {
        let certainties = Arc::clone(&certainties);
        in_virtual_time(seed, true, move |sim, fabrics| {
            let nodes = [0, 1].map(|at| node(&fabrics[at], NODES[at], |_| {}));
            let app = app(&sim.process_on(0), &nodes[0]);
            let region = app.malloc(1024, Spec::on("two")).unwrap();
            let (mut least, mut most) = ([0; WORDS], [0; WORDS]);
            for round in 0..40 {
                // The path connects again after a connection was given up.
                region.fetch_add(1016, 1).unwrap();
                let list =
                    (0..WORDS as u64).fold(Operations::new(), |list, at| list.fetch_add(&region, 8 * at, 1));
                let outcomes = match list.within(Duration::from_nanos(1000 + 311 * round)).run() {
                    Ok(outcomes) => outcomes,
                    // Nothing of the list was executed.
                    Err(ListError::NotBegun(_)) => continue,
                    Err(error) => panic!("{error}"),
                };
                for (at, outcome) in outcomes.into_iter().enumerate() {
                    let is_certain = outcome.is_ok();
                    let may_be = outcome.err().is_none_or(|error| error.may_have_executed());
                    least[at] += u64::from(is_certain);
                    most[at] += u64::from(may_be);
                    certainties.lock().unwrap()[usize::from(is_certain) + usize::from(may_be)] += 1;
                }
            }
            region.fetch_add(1016, 1).unwrap();
            for at in 0..WORDS {
                let word = region.fetch_add(8 * at as u64, 0).unwrap();
                assert!(
                    (least[at]..=most[at]).contains(&word),
                    "{at}: {word}, {} to {}",
                    least[at],
                    most[at]
                );
            }
        });
    }
    let certainties = certainties.lock().unwrap();
    assert!(certainties.iter().all(|count| *count > 50), "{certainties:?}");
}

/// As above, and the node with the words dies.
#[test]
fn a_list_under_way_ends_with_its_peer() {
    let certainties = Arc::new(Mutex::new([0; 3]));
    for seed in 0..16 {
        let certainties = Arc::clone(&certainties);
        in_virtual_time(seed, true, move |sim, fabrics| {
            let [here, there] = [0, 1].map(|at| node(&fabrics[at], NODES[at], |_| {}));
            let app = app(&sim.process_on(0), &here);
            let region = app.malloc(1024, Spec::on("two")).unwrap();
            region.fetch_add(0, 0).unwrap();
            let (victim, host) = (fabrics[1].clone(), sim.host().clone());
            let killer = spawn(&sim, move || {
                host.sleep(host.now() + 3000 + seed * 1117);
                victim.kill();
            });
            loop {
                let list = (0..24).fold(Operations::new(), |list, at| list.fetch_add(&region, 8 * at, 1));
                let outcomes = list.run().unwrap();
                let is_over = outcomes.iter().any(Result::is_err);
                for outcome in outcomes {
                    let (is_certain, error) = (outcome.is_ok(), outcome.err());
                    let may_be = error.is_none_or(|error| error.may_have_executed());
                    certainties.lock().unwrap()[usize::from(is_certain) + usize::from(may_be)] += 1;
                }
                if is_over {
                    break;
                }
            }
            killer.join();
            drop(there);
        });
    }
    let certainties = certainties.lock().unwrap();
    assert!(certainties.iter().all(|count| *count > 20), "{certainties:?}");
}

/// The service for processes ends while operations are under way: the node goes on, and a free does not hang.
#[test]
fn the_service_ends_with_operations_under_way() {
    for seed in 0..8 {
        in_virtual_time(seed, true, move |sim, fabrics| {
            let [here, there] = [0, 1].map(|at| node(&fabrics[at], NODES[at], |_| {}));
            let app = app(&sim.process_on(0), &here);
            let region = app.malloc(4096, Spec::on("two").named("left").grant_anyone(Rights::ALL)).unwrap();
            region.write(0, &[1; 64]).unwrap();
            let Node { processes, tier, .. } = here;
            let task = spawn(&sim, move || while region.write(0, &[2; 2000]).is_ok() {});
            let host = sim.host();
            host.sleep(host.now() + 5000 + seed * 377);
            drop(processes);
            task.join();
            let view = tier.map("left", Rights::ALL).unwrap();
            view.write(0, &[3; 64]).unwrap();
            view.free().unwrap();
            let next = tier.malloc(4096, Spec::on("two")).unwrap();
            next.write(0, &[4; 4096]).unwrap();
            drop(there);
        });
    }
}

/// The times of a run are those of its seed.
#[test]
fn runs_replay_from_their_seed() {
    let once = |seed| {
        let times = Arc::new(Mutex::new(Vec::<Nanos>::new()));
        let own = Arc::clone(&times);
        in_virtual_time(seed, true, move |sim, fabrics| {
            let nodes = [0, 1].map(|at| node(&fabrics[at], NODES[at], |_| {}));
            let app = app(&sim.process_on(0), &nodes[0]);
            let region = app.malloc(1 << 16, Spec::on("two")).unwrap();
            for round in 0..20 {
                region.write(round, &[1; 64]).unwrap();
                own.lock().unwrap().push(sim.host().now());
            }
        });
        std::mem::take(&mut *times.lock().unwrap())
    };
    assert_eq!(once(1), once(1));
    assert_ne!(once(1), once(2));
}
