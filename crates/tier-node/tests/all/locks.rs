//! Locks and barriers, on shared memory and in virtual time.

use crate::cluster::{NAMES, in_virtual_time, on_shared_memory, spawn, start, tag};
use dunlin_fabric::{Address, Fabric, Host, Nanos, Scheme, Signal, Task};
use dunlin_fabric_shm::{ShmConfig, ShmFabric};
use dunlin_fabric_sim::{MachineSettings, Settings, Sim};
use dunlin_rpc::{Client, ClientConfig};
use dunlin_tier::lock::message::{LOCK_CALL, LockMessage, LockRefusal, LockReply, LockRequest};
use dunlin_tier::lock::{Member, Waiter, Word};
use dunlin_tier::{Epoch, Name, NodeId, home};
use dunlin_tier_node::{LockError, Rights, Spec, Tier};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const MILLISECOND: Nanos = 1_000_000;

/// Returns a name whose home is the node with this number.
fn name_at(node: u16) -> String {
    let at = |number: &u32| {
        let name = Name::new(format!("name/{number}")).unwrap();
        home(&name, (0..3).map(NodeId)) == Some(NodeId(node))
    };
    format!("name/{}", (0..).find(at).unwrap())
}

/// Threads of all nodes count in a word that only the lock protects. Returns the fence numbers in the order of the
/// grants.
fn count<F: Fabric>(tiers: &[Tier<F>; 3], threads: u64, rounds: u64) {
    let name = name_at(1);
    let spec = Spec::on("carol").named("counter").grant_anyone(Rights::READ.with(Rights::WRITE));
    let _counter = tiers[0].malloc(8, spec).unwrap();
    let fences = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = Vec::new();
    for tier in tiers {
        for _ in 0..threads {
            let (own, name, fences) = (tier.clone(), name.clone(), Arc::clone(&fences));
            tasks.push(spawn(tier, move || {
                let view = own.map("counter", Rights::READ.with(Rights::WRITE)).unwrap();
                for _ in 0..rounds {
                    let guard = own.lock(&name).unwrap();
                    assert!(!guard.is_poisoned());
                    let mut word = [0; 8];
                    view.read(0, &mut word).unwrap();
                    let next = u64::from_le_bytes(word) + 1;
                    view.write(0, &next.to_le_bytes()).unwrap();
                    fences.lock().unwrap().push(guard.fence());
                }
            }));
        }
    }
    tasks.into_iter().for_each(Task::join);
    let fences = fences.lock().unwrap();
    assert!(fences.is_sorted_by(|one, next| one < next), "{fences:?}");
    let view = tiers[1].map("counter", Rights::READ).unwrap();
    let mut word = [0; 8];
    view.read(0, &mut word).unwrap();
    assert_eq!(u64::from_le_bytes(word), 3 * threads * rounds);
    assert_eq!(fences.len() as u64, 3 * threads * rounds);
}

#[test]
fn one_thread_at_a_time_has_the_lock() {
    on_shared_memory(|tiers| count(tiers, 3, 200));
}

#[test]
fn one_thread_at_a_time_has_the_lock_in_virtual_time() {
    for seed in 0..6 {
        in_virtual_time(seed, seed % 2 == 0, |tiers| count(tiers, 2, 25));
    }
}

#[test]
fn a_lock_that_is_held_is_waited_for_in_order() {
    in_virtual_time(1, true, |tiers| {
        let (name, order) = (name_at(0), Arc::new(Mutex::new(Vec::new())));
        let guard = tiers[2].lock(&name).unwrap();
        assert!(tiers[2].try_lock(&name).unwrap().is_none() && tiers[1].try_lock(&name).unwrap().is_none());
        let late = tiers[1].lock_within(&name, Duration::from_millis(3));
        assert!(matches!(late, Err(LockError::Deadline { .. })), "{late:?}");
        let late = tiers[2].lock_within(&name, Duration::from_millis(3));
        assert!(matches!(late, Err(LockError::Deadline { .. })), "{late:?}");
        let host = tiers[0].fabric().host().clone();
        let mut tasks = Vec::new();
        for (number, tier) in [0, 1].into_iter().zip([&tiers[1], &tiers[0]]) {
            let (own, name, order) = (tier.clone(), name.clone(), Arc::clone(&order));
            tasks.push(spawn(tier, move || {
                let guard = own.lock(&name).unwrap();
                order.lock().unwrap().push(number);
                guard.unlock().unwrap();
            }));
            host.sleep(host.now() + MILLISECOND);
        }
        assert!(order.lock().unwrap().is_empty());
        guard.unlock().unwrap();
        tasks.into_iter().for_each(Task::join);
        assert_eq!(*order.lock().unwrap(), [0, 1]);
        assert!(tiers[0].try_lock(&name).unwrap().is_some());
        assert!(tiers[1].try_lock(&name).unwrap().is_some());
    });
}

/// Nodes get a lock in the order in which they asked its owner for it. A node that has it hands it over to its own waiters
/// before, 16 times at most.
#[test]
fn nodes_get_a_lock_in_the_order_of_their_first_waiters() {
    let order_of = |waiters: &'static [usize], holder: usize| {
        let order = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&order);
        in_virtual_time(4, true, move |tiers| {
            let (name, host) = (name_at(0), tiers[0].fabric().host().clone());
            let guard = tiers[holder].lock(&name).unwrap();
            let mut tasks = Vec::new();
            for node in waiters {
                let (own, name, order) = (tiers[*node].clone(), name.clone(), Arc::clone(&order));
                tasks.push(spawn(&tiers[*node], move || {
                    let guard = own.lock(&name).unwrap();
                    order.lock().unwrap().push(*node);
                    assert!(guard.fence() & 0xff <= 16, "{}", guard.fence());
                    guard.unlock().unwrap();
                }));
                host.sleep(host.now() + MILLISECOND);
            }
            assert!(order.lock().unwrap().is_empty());
            guard.unlock().unwrap();
            tasks.into_iter().for_each(Task::join);
        });
        Arc::into_inner(seen).unwrap().into_inner().unwrap()
    };
    // The holder's node keeps it for its own waiter; the second waiter of bob follows the first.
    assert_eq!(order_of(&[1, 0, 2, 1], 2), [2, 1, 1, 0]);
    assert_eq!(order_of(&[0, 1, 0], 2), [0, 0, 1]);
    let many = [&[1; 20][..], &[0], &[1]].concat();
    let many: &'static [usize] = Vec::leak(many);
    let expected = [&[1; 17][..], &[0], &[1; 4]].concat();
    assert_eq!(order_of(many, 2), expected);
}

/// A lock is not taken twice, by the same thread either, and a barrier waits for as many as it says.
#[test]
fn a_lock_taken_twice_and_a_barrier_for_more_than_there_are_end_at_the_deadline() {
    in_virtual_time(6, true, |tiers| {
        let (name, short) = (name_at(1), Duration::from_millis(3));
        let guard = tiers[0].lock(&name).unwrap();
        let again = tiers[0].lock_within(&name, short);
        assert!(matches!(again, Err(LockError::Deadline { .. })), "{again:?}");
        assert!(tiers[0].try_lock(&name).unwrap().is_none());
        guard.unlock().unwrap();
        tiers[0].lock_within(&name, short).unwrap().unlock().unwrap();

        let name = name_at(0);
        let meet = |members, time| {
            let outcomes = Arc::new(Mutex::new(Vec::new()));
            let tasks: Vec<Task> = tiers[..2]
                .iter()
                .map(|tier| {
                    let (own, name, outcomes) = (tier.clone(), name.clone(), Arc::clone(&outcomes));
                    spawn(tier, move || {
                        let met = own.barrier_within(&name, members, time);
                        outcomes.lock().unwrap().push(met);
                    })
                })
                .collect();
            tasks.into_iter().for_each(Task::join);
            Arc::into_inner(outcomes).unwrap().into_inner().unwrap()
        };
        let late = meet(3, short);
        assert!(late.iter().all(|met| matches!(met, Err(LockError::Deadline { .. }))), "{late:?}");
        // The owner looks for callers whose time is over when the next one comes.
        let met = meet(2, Duration::from_secs(1));
        assert!(met.len() == 2 && met.iter().all(Result::is_ok), "{met:?}");
    });
}

/// The turn of a waiter whose time is over goes to the next one.
#[test]
fn who_gives_up_leaves_the_queue() {
    for seed in 0..20 {
        in_virtual_time(seed, true, move |tiers| {
            let (name, host) = (name_at(0), tiers[0].fabric().host().clone());
            let mut tasks = Vec::new();
            for (number, tier) in tiers.iter().cycle().take(9).enumerate() {
                let (own, name) = (tier.clone(), name.clone());
                tasks.push(spawn(tier, move || {
                    for round in 0..10 {
                        let time = 20_000 + 7_919 * ((number as u64 + round + seed) % 11);
                        match own.lock_within(&name, Duration::from_nanos(time)) {
                            Ok(guard) => {
                                let host = own.fabric().host();
                                host.sleep(host.now() + 15_000);
                                guard.unlock().unwrap();
                            }
                            Err(LockError::Deadline { .. }) => {}
                            // A path or a connection could not be had in the time.
                            Err(LockError::Request(_) | LockError::Word(_)) => {}
                            Err(error) => panic!("{error}"),
                        }
                    }
                }));
            }
            tasks.into_iter().for_each(Task::join);
            host.sleep(host.now() + 1000 * MILLISECOND);
            for tier in tiers {
                assert!(tier.try_lock(&name).unwrap().is_some(), "the lock is lost");
            }
        });
    }
}

#[test]
fn the_locks_of_an_owner_end_with_it() {
    let tag = tag();
    let fabric = || ShmFabric::new(ShmConfig::default()).unwrap();
    let [alice, bob, carol] = NAMES.map(|name| start(&fabric(), Scheme::Shm, &tag, name));
    let name = name_at(0);
    let held = carol.lock(&name).unwrap();
    drop(alice);
    let gone = bob.lock_within(&name, Duration::from_millis(200));
    assert!(matches!(gone, Err(LockError::Request(_))), "{gone:?}");
    let _alice = start(&fabric(), Scheme::Shm, &tag, "alice");
    // The next life of the owner knows of no holder.
    let guard = bob.lock(&name).unwrap();
    let lost = held.unlock();
    assert!(lost.is_err(), "{lost:?}");
    assert!(carol.try_lock(&name).unwrap().is_none(), "the late unlock frees nobody else's lock");
    guard.unlock().unwrap();
    assert!(carol.try_lock(&name).unwrap().is_some());
}

/// A node that remembers a lock of an owner's earlier life joins the next one, with and without atomics of the fabric.
#[test]
fn the_next_life_of_an_owner_grants_its_locks() {
    for atomics in [false, true] {
        let mut settings = Settings { machines: vec![MachineSettings::default(); 3], ..Settings::default() };
        settings.capabilities.atomics = dunlin_fabric::Atomics::of_device(atomics);
        Sim::run_with(settings, 1, |sim| {
            let alice = start(&sim.process_on(0), Scheme::Sim, "l", "alice");
            let name = name_at(1);
            let ready = sim.host().signal();
            let life = || {
                let (bob, raised) = (sim.process_on(1), ready.clone());
                let process = bob.clone();
                let lives = move || {
                    let _tier = start(&process, Scheme::Sim, "l", "bob");
                    raised.raise();
                    process.host().sleep(Nanos::MAX);
                };
                drop(bob.host().spawn("bob", Box::new(lives)).unwrap());
                bob
            };
            let first = life();
            ready.wait(0, Nanos::MAX);
            alice.lock(&name).unwrap().unlock().unwrap();
            first.kill();
            let second = life();
            ready.wait(1, Nanos::MAX);
            // The first attempt may find out that the connection is broken.
            let guard = alice.lock(&name).or_else(|_| alice.lock(&name)).unwrap();
            assert!(!guard.is_poisoned());
            guard.unlock().unwrap();
            second.kill();
        })
        .unwrap();
    }
}

fn meet<F: Fabric>(tiers: &[Tier<F>; 3], rounds: u64) {
    let (name, passed) = (name_at(2), Arc::new(AtomicU64::new(0)));
    let mut tasks = Vec::new();
    for tier in tiers.iter().chain(tiers) {
        let (own, name, passed) = (tier.clone(), name.clone(), Arc::clone(&passed));
        tasks.push(spawn(tier, move || {
            for round in 0..rounds {
                assert!(
                    passed.fetch_add(1, Ordering::SeqCst) >= 6 * round,
                    "the others have passed the last one"
                );
                own.barrier(&name, 6).unwrap();
                assert!(passed.load(Ordering::SeqCst) >= 6 * (round + 1), "nobody passes early");
            }
        }));
    }
    tasks.into_iter().for_each(Task::join);
}

#[test]
fn barriers_let_all_pass_together() {
    on_shared_memory(|tiers| meet(tiers, 50));
    in_virtual_time(1, true, |tiers| meet(tiers, 20));
}

#[test]
fn callers_of_a_barrier_agree_on_their_number() {
    in_virtual_time(1, true, |[alice, bob, carol]| {
        let (name, host) = (name_at(0), alice.fabric().host());
        let time = Duration::from_millis(5);
        for members in [0, 5000] {
            let refused = alice.barrier(&name, members);
            let Err(LockError::Refused { source, .. }) = refused else { panic!("{refused:?}") };
            assert_eq!(source, LockRefusal::Members { wanted: members, present: 0 });
        }
        let late = alice.barrier_within(&name, 2, time);
        assert!(matches!(late, Err(LockError::Deadline { .. })), "{late:?}");
        let meet = |tier: &Tier<Sim>| {
            let (own, name) = (tier.clone(), name.clone());
            spawn(tier, move || own.barrier(&name, 3).unwrap())
        };
        let first = meet(alice);
        host.sleep(host.now() + 5 * MILLISECOND);
        let (other, number) = (bob.barrier(&name, 2), LockRefusal::Members { wanted: 2, present: 3 });
        assert!(matches!(&other, Err(LockError::Refused { source, .. }) if *source == number), "{other:?}");
        bob.barrier_within(&name, 3, time).unwrap_err();
        let second = meet(bob);
        carol.barrier(&name, 3).unwrap();
        [first, second].into_iter().for_each(Task::join);
        alice.barrier(&name, 1).unwrap();
    });
}

/// Runs alice and bob, and a process with carol's node that is killed after some time. `carol` runs in that process,
/// and `body` after its death.
fn with_a_death(
    (seed, after): (u64, Nanos),
    carol: impl Fn(&Tier<Sim>) + Send + Sync + 'static,
    before: impl Fn(&Tier<Sim>) -> Option<Task> + Send + 'static,
    body: impl FnOnce(&Tier<Sim>, &Tier<Sim>) + Send + 'static,
) {
    let settings = Settings { machines: vec![MachineSettings::default(); 3], ..Settings::default() };
    Sim::run_with(settings, seed, move |sim| {
        let processes = [0, 1, 2].map(|machine| sim.process_on(machine));
        let [alice, bob] = [0, 1].map(|at| start(&processes[at], Scheme::Sim, "d", NAMES[at]));
        let (third, ready) = (processes[2].clone(), sim.host().signal());
        let running = ready.clone();
        let lives = move || {
            let tier = start(&third, Scheme::Sim, "d", "carol");
            running.raise();
            carol(&tier);
        };
        let _killed = processes[2].host().spawn("carol", Box::new(lives));
        ready.wait(0, Nanos::MAX);
        let task = before(&bob);
        let host = sim.host();
        host.sleep(host.now() + after);
        processes[2].kill();
        body(&alice, &bob);
        task.into_iter().for_each(Task::join);
    })
    .unwrap();
}

/// Runs alice and bob after the death of carol, which had a lock of alice.
fn with_a_dead_holder(body: impl FnOnce(&str, &Tier<Sim>, &Tier<Sim>) + Send + 'static) {
    let name = name_at(0);
    let of_carol = name.clone();
    let hold = move |carol: &Tier<Sim>| {
        let _guard = carol.lock(&of_carol).unwrap();
        let host = carol.fabric().host();
        host.sleep(host.now() + 10_000 * MILLISECOND);
    };
    let body = move |alice: &Tier<Sim>, bob: &Tier<Sim>| body(&name, alice, bob);
    with_a_death((1, 5 * MILLISECOND), hold, |_| None, body);
}

#[test]
fn a_dead_holders_lock_is_poisoned() {
    with_a_dead_holder(|name, alice, bob| {
        let guard = bob.lock(name).unwrap();
        assert!(guard.is_poisoned());
        let fence = guard.fence();
        guard.unlock().unwrap();
        let guard = alice.lock(name).unwrap();
        assert!(!guard.is_poisoned() && guard.fence() > fence, "once only");
    });
}

/// No wait lasts until the owner has looked for the holder twice.
#[test]
fn callers_with_little_time_find_a_dead_holder_together() {
    with_a_dead_holder(|name, _, bob| {
        let host = bob.fabric().host();
        let found = (0..40).find_map(|_| {
            let taken = bob.lock_within(name, Duration::from_millis(20));
            host.sleep(host.now() + MILLISECOND);
            taken.ok()
        });
        assert!(found.unwrap().is_poisoned());
    });
}

/// A node dies at any time, with or without the lock, while others take it all the time. The lock goes on.
#[test]
fn a_lock_goes_on_whenever_a_node_dies() {
    for seed in 0..24 {
        let name = name_at(0);
        let (of_carol, of_bob) = (name.clone(), name.clone());
        let inside = Arc::new(AtomicU64::new(0));
        let (carols, bobs) = (Arc::clone(&inside), Arc::clone(&inside));
        let hold = |tier: &Tier<Sim>, name: &str| {
            let host = tier.fabric().host();
            let guard = tier.lock(name).unwrap();
            host.sleep(host.now() + 3_000);
            guard
        };
        with_a_death(
            (seed, 20_000 + 11_000 * seed),
            move |carol| {
                loop {
                    let guard = hold(carol, &of_carol);
                    carols.store(guard.fence(), Ordering::SeqCst);
                    guard.unlock().unwrap();
                }
            },
            move |bob| {
                let (own, name, last) = (bob.clone(), of_bob.clone(), Arc::clone(&bobs));
                Some(spawn(bob, move || {
                    let mut poisoned = 0;
                    for _ in 0..40 {
                        let guard = hold(&own, &name);
                        assert!(last.swap(guard.fence(), Ordering::SeqCst) < guard.fence());
                        poisoned += u64::from(guard.is_poisoned());
                        guard.unlock().unwrap();
                    }
                    assert!(poisoned <= 1, "one death");
                }))
            },
            move |alice, _| {
                for _ in 0..20 {
                    let guard = hold(alice, &name);
                    assert!(inside.swap(guard.fence(), Ordering::SeqCst) < guard.fence());
                }
            },
        );
    }
}

#[test]
fn a_barrier_ends_for_all_if_a_caller_dies() {
    let name = name_at(0);
    let (of_carol, of_bob, of_alice) = (name.clone(), name.clone(), name);
    with_a_death(
        (1, 50 * MILLISECOND),
        move |carol| drop(carol.barrier(&of_carol, 3)),
        move |bob| {
            let (own, name) = (bob.clone(), of_bob.clone());
            Some(spawn(bob, move || {
                let ended = own.barrier(&name, 3);
                let Err(LockError::Refused { source, .. }) = ended else { panic!("{ended:?}") };
                assert_eq!(source, LockRefusal::Died(NodeId(2)));
            }))
        },
        move |alice, bob| {
            let host = alice.fabric().host();
            host.sleep(host.now() + 500 * MILLISECOND);
            // The next callers meet as if nothing had been.
            let (own, name) = (bob.clone(), of_alice.clone());
            let other = spawn(bob, move || own.barrier(&name, 2).unwrap());
            alice.barrier(&of_alice, 2).unwrap();
            other.join();
        },
    );
}

/// Whoever speaks to an owner and is no node of the list, or of another life, changes nothing.
#[test]
fn owners_bound_what_they_are_told() {
    let tag = tag();
    let fabric = ShmFabric::new(ShmConfig::default()).unwrap();
    let [alice, bob, _carol] =
        NAMES.map(|name| start(&ShmFabric::new(ShmConfig::default()).unwrap(), Scheme::Shm, &tag, name));
    let name = name_at(0);
    let held = bob.lock(&name).unwrap();
    let address = Address::new(Scheme::Shm, &format!("tier-{tag}-alice")).unwrap();
    let mut client = Client::connect(&fabric, &address, ClientConfig::default()).unwrap();
    let mut ask = |owner: u64, request: LockRequest| {
        let answer = client.call(LOCK_CALL, &LockMessage { owner, request }.encode()).unwrap();
        LockReply::parse(&answer).unwrap()
    };
    let join = LockRequest::Join { node: NodeId(2), incarnation: 7 };
    let LockReply::Joined { member, owner, .. } = ask(0, join.clone()) else { panic!() };
    assert!(matches!(ask(0, join), LockReply::Joined { member: again, .. } if again == member));
    let unknown = LockReply::Refused(LockRefusal::Unknown);
    let waiter = Waiter { member: Member::new(999).unwrap(), call: 1 };
    let own = Waiter { member, call: 1 };
    assert_eq!(ask(owner, LockRequest::Reserve { lock: 0, waiter, waits: true }), unknown);
    assert_eq!(ask(owner + 1, LockRequest::Reserve { lock: 0, waiter: own, waits: true }), unknown);
    assert_eq!(ask(owner, LockRequest::Abandon { lock: 77, waiter: own }), unknown);
    // Unlocks without a grant, and of another's lock under another fence number.
    for word in [0, 1, u64::MAX, 2 | 1 << 40] {
        let word = Word::from_bits(word);
        assert_eq!(
            ask(owner, LockRequest::Unlock { lock: 0, word, poisoned: word.bits().is_multiple_of(2) }),
            LockReply::Done
        );
    }
    assert!(alice.try_lock(&name).unwrap().is_none(), "the lock is still bob's");
    let mut opened = 0;
    let full = loop {
        let name = Name::new(format!("many/{opened}")).unwrap();
        match ask(owner, LockRequest::Open { name, epoch: Epoch::default() }) {
            LockReply::Opened(_) => opened += 1,
            other => break other,
        }
    };
    assert_eq!((opened, full), (1023, LockReply::Refused(LockRefusal::Full)));
    for bytes in [&b""[..], &[0; 9], &[3; 40], &[255; 300]] {
        let answer = client.call(LOCK_CALL, bytes).unwrap();
        assert_eq!(LockReply::parse(&answer), Ok(LockReply::Refused(LockRefusal::Malformed)));
    }
    held.unlock().unwrap();
    assert!(alice.try_lock(&name).unwrap().is_some());
}
