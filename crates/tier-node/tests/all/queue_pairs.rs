//! The queue pairs of a pair of nodes (LITE section 6.1): their number does not depend on the threads that use them.

use crate::cluster::{config, spawn, tag};
use crate::queue_pair_count::Count;
use dunlin_fabric::interpose::Interposed;
use dunlin_fabric::{Fabric, Host, Scheme, Signal, Task};
use dunlin_fabric_shm::{ShmConfig, ShmFabric};
use dunlin_fabric_sim::{MachineSettings, Settings, Sim};
use dunlin_tier_node::{Spec, Tier, TierConfig};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

const PATHS: u16 = 2;
/// Those of calls of services, of requests, and of waits for locks, which share them.
const CALLS: u32 = 4;
const THREADS: usize = 24;

/// Threads of alice operate on bob's memory, call services of bob, make requests to it, and wait for locks there, all at
/// the same time. `made` counts bob's ends.
fn queue_pairs_do_not_grow_with_threads<F: Fabric>(alice: &Tier<F>, bob: &Tier<F>, made: &Count) -> u32 {
    let calls = Arc::new(bob.register("s", 1).unwrap());
    let servers: Vec<Task> = (0..THREADS)
        .map(|_| {
            let calls = Arc::clone(&calls);
            let serve = move || {
                let mut buffer = vec![0; 20_000];
                loop {
                    let request = calls.receive(&mut buffer).unwrap();
                    match request.len() {
                        0 => return request.reply(&[]),
                        length => request.reply(&buffer[..length]),
                    }
                }
            };
            spawn(bob, serve)
        })
        .collect();
    let names = (0..).map(|number| format!("lock-{number}"));
    let names: Vec<String> =
        names.filter(|name| alice.lock_home(name).unwrap() == "bob").take(THREADS).collect();
    let before = made.get();
    let held: Vec<_> = names.iter().map(|name| bob.lock(name).unwrap()).collect();
    let own = made.get() - before;
    let (region, ready) =
        (Arc::new(alice.malloc(1 << 16, Spec::on("bob")).unwrap()), alice.fabric().host().signal());
    let started = Arc::new(AtomicU32::new(0));
    let users: Vec<Task> = names
        .into_iter()
        .map(|name| {
            let (tier, region, ready, started) =
                (alice.clone(), Arc::clone(&region), ready.clone(), Arc::clone(&started));
            let mut body = move |round: usize| {
                let mut answer = [0; 20_000];
                for length in [8, 9000] {
                    region.write(64 * round as u64, &[1; 64]).unwrap();
                    assert_eq!(tier.call("bob", "s", 1, &vec![1; length], &mut answer).unwrap(), length);
                    drop(tier.malloc(64, Spec::on("bob")).unwrap());
                }
                if round == 20 {
                    started.fetch_add(1, Ordering::Relaxed);
                    ready.raise();
                    drop(tier.lock_within(&name, Duration::from_secs(60)).unwrap());
                }
            };
            spawn(alice, move || (0..40).for_each(&mut body))
        })
        .collect();
    let host = bob.fabric().host();
    while started.load(Ordering::Relaxed) < THREADS as u32 {
        ready.wait(ready.seen(), host.now() + 1_000_000);
    }
    // All of them wait at their owner.
    host.sleep(host.now() + 20_000_000);
    drop(held);
    users.into_iter().for_each(Task::join);
    let made = made.get() - own;
    servers.iter().for_each(|_| assert_eq!(alice.call("bob", "s", 1, &[], &mut []).unwrap(), 0));
    servers.into_iter().for_each(Task::join);
    made
}

fn start<F: Fabric>(fabric: &F, scheme: Scheme, tag: &str, name: &str) -> Tier<F> {
    let config =
        TierConfig { paths: PATHS, memory: 16 << 20, ..config(scheme, tag, &["alice", "bob"], name) };
    Tier::within(fabric, config).unwrap()
}

#[test]
fn queue_pairs_do_not_grow_with_threads_on_shared_memory() {
    let (tag, made) = (tag(), Count::default());
    let fabric = |hooks| Interposed::with_hooks(ShmFabric::new(ShmConfig::default()).unwrap(), hooks);
    let bob = start(&fabric(made.clone()), Scheme::Shm, &tag, "bob");
    let alice = start(&fabric(Count::default()), Scheme::Shm, &tag, "alice");
    let made = queue_pairs_do_not_grow_with_threads(&alice, &bob, &made);
    assert!(made <= u32::from(PATHS) + CALLS, "{made} queue pairs");
}

#[test]
fn queue_pairs_do_not_grow_with_threads_in_virtual_time() {
    for seed in 0..3 {
        let settings = Settings { machines: vec![MachineSettings::default(); 2], ..Settings::default() };
        Sim::run_with(settings, seed, move |sim| {
            let made = Count::default();
            let fabric = |at, hooks| Interposed::with_hooks(sim.process_on(at), hooks);
            let bob = start(&fabric(1, made.clone()), Scheme::Sim, "q", "bob");
            let alice = start(&fabric(0, Count::default()), Scheme::Sim, "q", "alice");
            let made = queue_pairs_do_not_grow_with_threads(&alice, &bob, &made);
            assert!((3..=u32::from(PATHS) + CALLS).contains(&made), "{made} queue pairs");
        })
        .unwrap();
    }
}
