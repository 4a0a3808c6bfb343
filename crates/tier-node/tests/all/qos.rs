//! Priorities, shares and limits: threads of one node that use the memory of another.

use crate::cluster::config;
use dunlin_fabric::{Fabric, Host, Nanos, Scheme, Task};
use dunlin_fabric_shm::{ShmConfig, ShmFabric};
use dunlin_fabric_sim::{MachineSettings, RunReport, Settings, Sim};
use dunlin_tier_node::{
    EachCall, JoinError, Limit, Lmr, OperationError, PathCount, PathReason, Policy, Priority, QosConfig,
    QosError, RequestError, Rights, Share, Spec, Tier, TierConfig,
};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const NAMES: [&str; 2] = ["alice", "bob"];
const POLICIES: [Policy; 4] = [Policy::Arrival, Policy::Reserved { low: 1 }, Policy::Paced, Policy::Shares];
const MILLISECOND: Nanos = 1_000_000;

/// Runs `body` with alice's node, and with bob's on another machine.
fn run(
    seed: u64,
    change: impl Fn(&mut TierConfig) + Send + 'static,
    body: impl FnOnce(&Sim, &Tier<Sim>) + Send + 'static,
) -> RunReport {
    let settings = Settings { machines: vec![MachineSettings::default(); 2], ..Settings::default() };
    Sim::run_with(settings, seed, move |sim| {
        let start = |machine: usize| {
            let mut config = config(Scheme::Sim, "qos", &NAMES, NAMES[machine]);
            change(&mut config);
            let sim = sim.process_on(machine);
            (Tier::within(&sim, config).unwrap(), sim)
        };
        let [(alice, machine), (_bob, _)] = [0, 1].map(start);
        body(&machine, &alice);
    })
    .unwrap()
}

/// Has each of the regions written by as many threads, for some time; returns the operations of each region's threads.
fn compete(sim: &Sim, regions: Vec<(Lmr<Sim>, usize)>, bytes: usize, time: Nanos) -> Vec<u64> {
    let write = move |region: &Lmr<Sim>| region.write(0, &vec![1; bytes]).unwrap();
    compete_by(sim, regions, time, write)
}

/// As [`compete`], by another operation.
fn compete_by(
    sim: &Sim,
    regions: Vec<(Lmr<Sim>, usize)>,
    time: Nanos,
    operate: impl Fn(&Lmr<Sim>) + Clone + Send + 'static,
) -> Vec<u64> {
    let done: Arc<Vec<AtomicU64>> = Arc::new(regions.iter().map(|_| AtomicU64::new(0)).collect());
    let until = sim.host().now() + time;
    let mut tasks: Vec<Task> = Vec::new();
    for (at, (region, threads)) in regions.into_iter().enumerate() {
        let region = Arc::new(region);
        for _ in 0..threads {
            let (host, region, done) = (sim.host().clone(), Arc::clone(&region), Arc::clone(&done));
            let operate = operate.clone();
            let body = move || {
                while host.now() < until {
                    operate(&region);
                    done[at].fetch_add(1, Ordering::Relaxed);
                }
            };
            tasks.push(sim.host().spawn("writing", Box::new(body)).unwrap());
        }
    }
    tasks.into_iter().for_each(Task::join);
    done.iter().map(|done| done.load(Ordering::Relaxed)).collect()
}

fn on_bob(tier: &Tier<Sim>, priority: Priority) -> Lmr<Sim> {
    tier.with_priority(priority).unwrap().malloc(1 << 16, Spec::on("bob")).unwrap()
}

#[test]
fn operations_of_all_priorities_end_and_runs_replay() {
    for policy in POLICIES {
        let once = |seed| {
            let change = move |config: &mut TierConfig| config.qos.policy = policy;
            run(seed, change, |sim, alice| {
                let regions = [Priority::High, Priority::Low].map(|priority| (on_bob(alice, priority), 6));
                let done = compete(sim, regions.into(), 3000, MILLISECOND);
                assert!(done.iter().all(|done| *done > 10), "{done:?}");
            })
        };
        assert_eq!(once(1), once(1));
        for seed in 2..6 {
            once(seed);
        }
    }
}

#[test]
fn high_priority_is_ahead_under_every_policy_but_arrival() {
    for (policy, least) in [
        (Policy::Arrival, 0.7),
        (Policy::Reserved { low: 1 }, 2.0),
        (Policy::Paced, 3.0),
        (Policy::Shares, 10.0),
    ] {
        let change = move |config: &mut TierConfig| (config.qos.policy, config.paths) = (policy, 4);
        run(7, change, move |sim, alice| {
            let regions = [Priority::High, Priority::Low].map(|priority| (on_bob(alice, priority), 12));
            let done = compete(sim, regions.into(), 4096, 4 * MILLISECOND);
            let factor = done[0] as f64 / done[1] as f64;
            assert!(factor > least, "{policy:?}: {done:?}");
            assert!(policy != Policy::Arrival || factor < 1.4, "{done:?}");
        });
    }
}

/// `memset` and `memcpy` are commands to the node that stores the bytes. They take their turns with operations, and with
/// each other.
#[test]
fn commands_of_high_priority_are_ahead_under_every_policy_but_arrival() {
    for (policy, least) in POLICIES.into_iter().zip([0.7, 2.0, 3.0, 5.0]) {
        let change = move |config: &mut TierConfig| (config.qos.policy, config.paths) = (policy, 4);
        run(7, change, move |sim, alice| {
            let regions =
                || [Priority::High, Priority::Low].map(|priority| (on_bob(alice, priority), 12)).into();
            let ahead = |what: &str, done: Vec<u64>| {
                let factor = done[0] as f64 / done[1] as f64;
                println!("{policy:?}: {what}: {done:?}");
                assert!(factor > least, "{policy:?}: {what}: {done:?}");
                assert!(policy != Policy::Arrival || factor < 1.4, "{what}: {done:?}");
            };
            let set = |region: &Lmr<Sim>| region.memset(0, 4096, 5).unwrap();
            ahead("memset", compete_by(sim, regions(), 4 * MILLISECOND, set));
            let own = alice.clone();
            let copy = move |region: &Lmr<Sim>| own.memcpy(region.at(0), region.at(8192), 4096).unwrap();
            ahead("memcpy", compete_by(sim, regions(), 4 * MILLISECOND, copy.clone()));
            if policy == Policy::Paced {
                let mixed = move |region: &Lmr<Sim>| match region.priority() {
                    Priority::High => region.write(0, &[1; 4096]).unwrap(),
                    Priority::Low => copy(region),
                };
                let done = compete_by(sim, regions(), 4 * MILLISECOND, mixed);
                // Two or more writes are always under way, so each copy pauses for 112 us.
                assert!(done[1] <= 12 * (1 + 4 * MILLISECOND / 112_000), "memcpy beside write: {done:?}");
            }
        });
    }
}

/// Has threads serve a function of the node until `body` returns; returns the calls that were executed.
fn serving(sim: &Sim, tier: &Tier<Sim>, threads: usize, body: impl FnOnce()) -> u64 {
    let calls = Arc::new(tier.register("echo", 1).unwrap());
    let (is_over, executed) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let tasks: Vec<Task> = (0..threads)
        .map(|_| {
            let (calls, is_over, executed) =
                (Arc::clone(&calls), Arc::clone(&is_over), Arc::clone(&executed));
            let serve = move || {
                let mut buffer = [0; 64];
                while is_over.load(Ordering::Relaxed) == 0 {
                    let Ok(request) = calls.receive_within(&mut buffer, Duration::from_millis(1)) else {
                        continue;
                    };
                    executed.fetch_add(1, Ordering::Relaxed);
                    request.reply(b"done");
                }
            };
            sim.host().spawn("serving", Box::new(serve)).unwrap()
        })
        .collect();
    body();
    is_over.store(1, Ordering::Relaxed);
    tasks.into_iter().for_each(Task::join);
    executed.load(Ordering::Relaxed)
}

/// A stream of calls of low priority beside one of high priority: it pauses at the node that sends, as often as two calls
/// of high priority or more are under way.
#[test]
fn calls_of_low_priority_pause_beside_calls_of_high_priority() {
    for policy in [Policy::Arrival, Policy::Paced] {
        let change = move |config: &mut TierConfig| config.qos.policy = policy;
        run(7, change, move |sim, alice| {
            let time = 4 * MILLISECOND;
            let own = alice.clone();
            serving(sim, alice, 6, move || {
                let call = move |region: &Lmr<Sim>| {
                    let tier = own.with_priority(region.priority()).unwrap();
                    assert_eq!(tier.call("alice", "echo", 1, b"x", &mut [0; 4]).unwrap(), 4);
                };
                let regions =
                    |high| vec![(on_bob(alice, Priority::High), high), (on_bob(alice, Priority::Low), 3)];
                let alone = compete_by(sim, regions(0), time, call.clone())[1];
                let beside = compete_by(sim, regions(6), time, call);
                let most = 3 * (1 + time / 112_000);
                assert!(alone > 2 * most, "{policy:?}: without high priority there are no pauses: {alone}");
                match policy {
                    Policy::Paced => {
                        assert!(beside[1] <= most && beside[0] > 10 * beside[1], "{beside:?}");
                    }
                    _ => assert!(beside[1] > most, "{beside:?}"),
                }
            });
        });
    }
}

/// Calls count against the limit of their principal at the node that sends: the thread waits for it, or hears of it.
#[test]
fn a_limit_holds_for_calls() {
    let limit = Limit { operations: 1000, ..Limit::NONE };
    let change = move |config: &mut TierConfig| {
        config.qos.principals = [("carol".to_owned(), Share { limit, ..Share::default() })].into();
        config.qos.patience = Duration::from_millis(3);
    };
    run(5, change, |sim, alice| {
        let (carol, host) = (alice.acting_for("carol").unwrap(), sim.host().clone());
        let done = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&done);
        let executed = serving(sim, alice, 8, || {
            carol.call("alice", "echo", 1, b"x", &mut [0; 4]).unwrap();
            host.sleep(host.now() + 20 * MILLISECOND);
            let began = host.now();
            (0..51).for_each(|_| _ = carol.call("alice", "echo", 1, b"x", &mut [0; 4]).unwrap());
            let time = host.now() - began;
            assert!((40 * MILLISECOND..41 * MILLISECOND).contains(&time), "{time}");
            let refused = Arc::new(AtomicU64::new(0));
            let tasks: Vec<Task> = (0..8)
                .map(|_| {
                    let (carol, done, refused) = (carol.clone(), Arc::clone(&done), Arc::clone(&refused));
                    let body = move || {
                        for _ in 0..5 {
                            match carol.call("alice", "echo", 1, b"x", &mut [0; 4]) {
                                Ok(_) => done.fetch_add(1, Ordering::Relaxed),
                                Err(
                                    error @ RequestError::OverLimit {
                                        limit: 1000, what: "operations", ..
                                    },
                                ) => {
                                    assert!(!error.may_have_executed());
                                    refused.fetch_add(1, Ordering::Relaxed)
                                }
                                Err(other) => panic!("{other}"),
                            };
                        }
                    };
                    host.spawn("calling", Box::new(body)).unwrap()
                })
                .collect();
            tasks.into_iter().for_each(Task::join);
            let (done, refused) = (done.load(Ordering::Relaxed), refused.load(Ordering::Relaxed));
            assert!(refused > 0 && done + refused == 40, "{done} {refused}");
            let each = EachCall { node: "alice", service: b"echo", function: 1, request: b"x" };
            let outcome = carol.call_each(Duration::from_secs(1), &[each; 20]);
            assert!(matches!(outcome, Err(RequestError::OverLimit { .. })), "{outcome:?}");
            // Other principals are free.
            let began = host.now();
            (0..50).for_each(|_| _ = alice.call("alice", "echo", 1, b"x", &mut [0; 4]).unwrap());
            assert!(host.now() - began < 10 * MILLISECOND);
        });
        assert_eq!(
            executed,
            1 + 51 + counted.load(Ordering::Relaxed) + 50,
            "nothing that was refused is executed"
        );
    });
}

#[test]
fn principals_share_by_weight_and_one_alone_has_all() {
    let weight = |weight| Share { weight, ..Share::default() };
    let change = move |config: &mut TierConfig| {
        config.qos.principals = [("alice".to_owned(), weight(3)), ("carol".to_owned(), weight(1))].into();
    };
    run(3, change, |sim, alice| {
        let carol = alice.acting_for("carol").unwrap();
        let region = |tier: &Tier<Sim>| (on_bob(tier, Priority::High), 8);
        let both = compete(sim, vec![region(alice), region(&carol)], 4096, 4 * MILLISECOND);
        let factor = both[0] as f64 / both[1] as f64;
        assert!((2.5..3.6).contains(&factor), "{both:?}");
        let alone = compete(sim, vec![region(&carol)], 4096, 4 * MILLISECOND);
        assert!(alone[0] * 10 > (both[0] + both[1]) * 9, "{alone:?} {both:?}");
    });
}

/// The handles of one region and one principal differ in priority.
#[test]
fn a_handle_has_the_priority_of_its_tier_until_it_is_set() {
    let low = Share { priority: Priority::Low, ..Share::default() };
    let change = move |config: &mut TierConfig| {
        config.qos.principals = [("backup".to_owned(), low)].into();
    };
    run(1, change, |_, alice| {
        assert_eq!(alice.priority(), Priority::High);
        let region = alice.malloc(4096, Spec::on("bob").named("x").grant_anyone(Rights::READ)).unwrap();
        let mut view = alice.with_priority(Priority::Low).unwrap().map("x", Rights::ALL).unwrap();
        assert_eq!((region.priority(), view.priority()), (Priority::High, Priority::Low));
        view.set_priority(Priority::High).unwrap();
        assert_eq!(view.priority(), Priority::High);
        // A principal whose share has low priority keeps it.
        let backup = alice.acting_for("backup").unwrap();
        let mut view = backup.map("x", Rights::READ).unwrap();
        let refused = QosError::Priority { principal: "backup".to_owned() };
        assert_eq!(view.priority(), Priority::Low);
        assert_eq!(view.set_priority(Priority::High), Err(refused.clone()));
        assert_eq!(backup.with_priority(Priority::High).err(), Some(refused));
        view.read(0, &mut [0; 8]).unwrap();
    });
}

/// One thread is slowed down to the limit of its principal; operations of many threads are refused, and nothing of them
/// is done. Other principals are free, and the node's own work is.
#[test]
fn a_limit_slows_down_and_then_refuses() {
    let limit = Limit { operations: 1000, ..Limit::NONE };
    let change = move |config: &mut TierConfig| {
        config.qos.principals = [("carol".to_owned(), Share { limit, ..Share::default() })].into();
        config.qos.patience = Duration::from_millis(3);
    };
    run(5, change, |sim, alice| {
        let carol = alice.acting_for("carol").unwrap();
        let host = sim.host();
        for place in ["alice", "bob"] {
            let region = carol.malloc(4096, Spec::on(place)).unwrap();
            // The burst is 10 ms.
            host.sleep(host.now() + 20 * MILLISECOND);
            let began = host.now();
            (0..51).for_each(|_| region.write(0, b"x").unwrap());
            let time = host.now() - began;
            assert!((40 * MILLISECOND..41 * MILLISECOND).contains(&time), "{place}: {time}");
        }
        let shared = Arc::new(carol.malloc(4096, Spec::on("bob")).unwrap());
        let outcomes = Arc::new(Mutex::new((0, 0)));
        let mut tasks = Vec::new();
        for _ in 0..8 {
            let (shared, outcomes) = (Arc::clone(&shared), Arc::clone(&outcomes));
            let body = move || {
                for _ in 0..5 {
                    let result = shared.fetch_add(0, 1);
                    let mut outcomes = outcomes.lock().unwrap();
                    match result {
                        Ok(_) => outcomes.0 += 1,
                        Err(error @ OperationError::Limit { limit: 1000, what: "operations", .. }) => {
                            assert!(!error.may_have_executed());
                            outcomes.1 += 1;
                        }
                        Err(other) => panic!("{other}"),
                    }
                }
            };
            tasks.push(host.spawn("adding", Box::new(body)).unwrap());
        }
        tasks.into_iter().for_each(Task::join);
        let (done, refused) = *outcomes.lock().unwrap();
        assert!(refused > 0 && done + refused == 40, "{done} {refused}");
        // Nothing is counted that was refused.
        let view = alice.malloc(4096, Spec::on("bob")).unwrap();
        let began = host.now();
        (0..100).for_each(|_| view.write(0, b"x").unwrap());
        assert!(host.now() - began < 10 * MILLISECOND);
        host.sleep(host.now() + 20 * MILLISECOND);
        assert_eq!(shared.fetch_add(0, 0).unwrap(), done);
        // Locks are the node's own work.
        (0..50).for_each(|_| carol.lock("x").unwrap().unlock().unwrap());
    });
}

/// A worker must not wait: bytes of the own node are copied at once or refused.
#[test]
fn bytes_of_the_own_node_are_limited_without_waiting() {
    let limit = Limit { bytes: 1_000_000, ..Limit::NONE };
    let change = move |config: &mut TierConfig| {
        config.qos.everyone.limit = limit;
        config.qos.patience = Duration::from_millis(5);
    };
    run(5, change, |sim, alice| {
        let region = alice.malloc(1 << 16, Spec::here()).unwrap();
        let began = sim.host().now();
        let mut copied = 0;
        let refused = loop {
            match region.read_here(0, &mut [0; 1000]) {
                Ok(here) => assert!(here),
                Err(refused) => break refused,
            }
            copied += 1;
        };
        assert!(sim.host().now() - began < MILLISECOND);
        assert_eq!(copied, 16);
        match refused {
            OperationError::Limit { principal, what: "bytes", retry_after, .. } => {
                assert_eq!(principal, "alice");
                assert!(retry_after > Duration::from_millis(5), "{retry_after:?}");
            }
            other => panic!("{other}"),
        }
    });
}

/// Limits hold for a principal that comes back, as long as its allowance is not full again.
#[test]
fn a_principal_that_comes_back_has_no_new_allowance() {
    let limit = Limit { operations: 100, ..Limit::NONE };
    let change = move |config: &mut TierConfig| {
        config.qos.principals = [("carol".to_owned(), Share { limit, ..Share::default() })].into();
        config.qos.patience = Duration::ZERO;
    };
    run(5, change, |sim, alice| {
        let use_up = |alice: &Tier<Sim>| {
            let region = alice.acting_for("carol").unwrap().malloc(64, Spec::here()).unwrap();
            let done = (0..10).filter(|_| region.write(0, b"x").is_ok()).count();
            // Accounts are looked through when a new one is made.
            alice.acting_for("nobody").unwrap();
            done
        };
        assert_eq!((use_up(alice), use_up(alice)), (2, 0));
        sim.host().sleep(sim.host().now() + 30 * MILLISECOND);
        assert_eq!(use_up(alice), 2);
    });
}

#[test]
fn settings_without_a_meaning_are_refused() {
    run(
        1,
        |_| {},
        |sim, _| {
            let start = |qos: QosConfig| {
                let mut config = config(Scheme::Sim, "refused", &NAMES, "alice");
                (config.qos, config.paths) = (qos, 2);
                match Tier::within(sim, config) {
                    Err(JoinError::Qos(error)) => error,
                    other => panic!("{other:?}"),
                }
            };
            let with = |share: Share| QosConfig {
                principals: [("x".to_owned(), share)].into(),
                ..QosConfig::default()
            };
            let principal = || "x".to_owned();
            let weight = QosError::Weight { principal: principal(), weight: 0 };
            assert_eq!(start(with(Share { weight: 0, ..Share::default() })), weight);
            let limit = Limit { operations: 0, ..Limit::NONE };
            let refused = QosError::Limit { principal: principal(), what: "operations" };
            assert_eq!(start(with(Share { limit, ..Share::default() })), refused);
            let policy = Policy::Reserved { low: 2 };
            assert_eq!(
                start(QosConfig { policy, ..QosConfig::default() }),
                QosError::Paths { low: 2, paths: 2 }
            );
            // The number of paths by the device is checked like a given one.
            let mut settings = config(Scheme::Sim, "refused", &NAMES, "alice");
            settings.qos = QosConfig { policy, ..QosConfig::default() };
            match Tier::within(sim, settings) {
                Err(JoinError::Qos(QosError::Paths { low: 2, paths: 2 })) => {}
                other => panic!("{other:?}"),
            }
            let tier = Tier::within(sim, config(Scheme::Sim, "default", &NAMES, "alice")).unwrap();
            assert_eq!(tier.path_count(), PathCount { count: 2, reason: PathReason::Unknown });
        },
    );
}

/// An operation has its own priority, else that of its handle.
#[test]
fn an_operation_may_have_another_priority_than_its_handle() {
    let low = Share { priority: Priority::Low, ..Share::default() };
    let change = move |config: &mut TierConfig| {
        config.qos.principals.insert("backup".to_owned(), low);
    };
    run(9, change, |_, alice| {
        let mut region = on_bob(alice, Priority::High);
        let mut expected = [0, 0];
        let mut counts = |priority: Priority, more: u64| {
            expected[priority as usize] += more;
            let counted = [Priority::Low, Priority::High].map(|one| alice.operations(one).operations);
            assert_eq!(counted, expected, "{priority:?}");
        };
        region.write(0, &[1; 8]).unwrap();
        counts(Priority::High, 1);
        let view = region.with_priority(Priority::Low).unwrap();
        view.write(0, &[2; 8]).unwrap();
        view.fetch_add(8, 1).unwrap();
        view.write_notify(0, &[3; 8], 16, 1).unwrap();
        counts(Priority::Low, 3);
        region
            .within(Duration::from_secs(1))
            .with_priority(Priority::Low)
            .unwrap()
            .read(0, &mut [0; 8])
            .unwrap();
        counts(Priority::Low, 1);
        let list = || dunlin_tier_node::Operations::new().write(&region, 0, &[4; 8]).fetch_add(&region, 8, 1);
        list().run().unwrap();
        counts(Priority::High, 2);
        list().with_priority(Priority::Low).run().unwrap();
        counts(Priority::Low, 2);
        region.set_priority(Priority::Low).unwrap();
        region.with_priority(Priority::High).unwrap().write(0, &[5; 8]).unwrap();
        counts(Priority::High, 1);
        let backup = alice.acting_for("backup").unwrap();
        let own = backup.malloc(4096, Spec::on("bob")).unwrap();
        let refused = QosError::Priority { principal: "backup".to_owned() };
        assert_eq!(own.with_priority(Priority::High).err(), Some(refused.clone()));
        let list =
            dunlin_tier_node::Operations::new().write(&own, 0, b"x").with_priority(Priority::High).run();
        assert!(
            matches!(&list, Err(dunlin_tier_node::ListError::NotBegun(OperationError::Qos(error))) if *error == refused),
            "{list:?}"
        );
        counts(Priority::High, 0);
    });
}

/// Real threads of both priorities add to words of another node over two paths.
#[test]
fn threads_of_all_priorities_add_up_on_shared_memory() {
    for (number, policy) in POLICIES.into_iter().enumerate() {
        let tag = format!("qos-{}-{number}", std::process::id());
        let start = |name| {
            let mut config = config(Scheme::Shm, &tag, &NAMES, name);
            config.qos.policy = policy;
            Tier::within(&ShmFabric::new(ShmConfig::default()).unwrap(), config).unwrap()
        };
        let (alice, _bob) = (start("alice"), start("bob"));
        let region = alice.malloc(4096, Spec::on("bob").named("words")).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let alice = &alice;
                scope.spawn(move || {
                    let priority = if thread % 2 == 0 { Priority::Low } else { Priority::High };
                    let view = alice.with_priority(priority).unwrap().map("words", Rights::ALL).unwrap();
                    for round in 0..250 {
                        view.fetch_add(8 * (round % 4), 1).unwrap();
                        view.write(1024 + 128 * thread, &[7; 100]).unwrap();
                    }
                });
            }
        });
        let sum: u64 = (0..4).map(|word| region.fetch_add(8 * word, 0).unwrap()).sum();
        assert_eq!(sum, 2000, "{policy:?}");
    }
}
