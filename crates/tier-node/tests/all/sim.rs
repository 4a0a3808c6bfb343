//! Nodes on machines of their own in virtual time.

use crate::cluster::{
    assert_absent, assert_access, config, copies_are_those_of_memory, regions_are_shared,
    spread_regions_do_what_memory_does,
};
use dunlin_fabric::{Atomics, Capabilities, Fabric, Host, Scheme};
use dunlin_fabric_sim::{MachineSettings, RunReport, Settings, Sim};
use dunlin_tier_node::{AccessError, Rights, Spec, Tier, TierConfig};
use std::time::Duration;

const NAMES: [&str; 3] = ["alice", "bob", "carol"];

fn settings(capabilities: Option<Capabilities>) -> Settings {
    let mut settings = Settings { machines: vec![MachineSettings::default(); 3], ..Settings::default() };
    if let Some(capabilities) = capabilities {
        settings.capabilities = capabilities;
    }
    settings
}

fn start(sim: &Sim, name: &str, change: impl Fn(&mut TierConfig)) -> Tier<Sim> {
    let mut config = config(Scheme::Sim, "t", &NAMES, name);
    change(&mut config);
    Tier::within(sim, config).unwrap()
}

/// Runs `body` with three nodes on three machines.
fn run(
    seed: u64,
    settings: Settings,
    change: impl Fn(&mut TierConfig) + Send + 'static,
    body: impl FnOnce([&Tier<Sim>; 3], &dyn Fn()) + Send + 'static,
) -> RunReport {
    Sim::run_with(settings, seed, move |sim| {
        let processes = [0, 1, 2].map(|machine| sim.process_on(machine));
        let tiers = [0, 1, 2].map(|at| start(&processes[at], NAMES[at], &change));
        let host = sim.host();
        body([&tiers[0], &tiers[1], &tiers[2]], &|| host.sleep(host.now() + 1000));
    })
    .unwrap()
}

#[test]
fn regions_are_shared_in_virtual_time_and_runs_replay_from_their_seed() {
    let once = |seed| run(seed, settings(None), |_| {}, regions_are_shared);
    assert_eq!(once(1), once(1));
    assert_ne!(once(1).trace_hash, once(2).trace_hash);
}

#[test]
fn spread_regions() {
    for seed in 0..4 {
        let small = |config: &mut TierConfig| (config.piece, config.step) = (4096, 1000);
        run(seed, settings(None), small, |tiers, pause| spread_regions_do_what_memory_does(tiers, 60, pause));
    }
}

#[test]
fn copies() {
    let large = |config: &mut TierConfig| config.piece = 65_536;
    let body = |tiers: [&Tier<Sim>; 3], pause: &dyn Fn()| {
        // Long enough for every completed WRITE to be seen by the storing node.
        let long = || (0..100).for_each(|_| pause());
        copies_are_those_of_memory(tiers, 3, &long);
    };
    run(5, settings(None), large, body);
}

/// Without atomics, the node that has the word changes it.
#[test]
fn a_fabric_without_atomics_does_them_by_call() {
    let capabilities = Capabilities { atomics: Atomics::None, ..Settings::default().capabilities };
    run(3, settings(Some(capabilities)), |_| {}, regions_are_shared);
}

/// A mapper's process is killed at any time; the free ends, the memory is zeroed and used again, and the other mapper
/// keeps nothing.
#[test]
fn a_free_ends_although_a_mapper_was_killed() {
    for seed in 0..12 {
        Sim::run_with(settings(None), seed, move |sim| {
            let processes = [0, 1, 2].map(|machine| sim.process_on(machine));
            let quick = |config: &mut TierConfig| {
                config.memory = 1 << 16;
                config.timeout = Duration::from_secs(2);
                config.stop_timeout = Duration::from_millis(20);
            };
            let alice = start(&processes[0], "alice", quick);
            let bob = start(&processes[1], "bob", quick);
            let spec = Spec::here().named("x").grant_anyone(Rights::WRITE);
            let region = alice.malloc(1 << 16, spec).unwrap();
            let view = bob.map("x", Rights::WRITE).unwrap();
            let third = processes[2].clone();
            let ready = sim.host().signal();
            let writing = ready.clone();
            // Carol's node and its thread belong to the process that is killed.
            let _killed = processes[2].host().spawn(
                "carol",
                Box::new(move || {
                    use dunlin_fabric::Signal;
                    let carol = start(&third, "carol", quick);
                    let view = carol.map("x", Rights::WRITE).unwrap();
                    writing.raise();
                    while view.write(0, &[0xff; 3000]).is_ok() {
                        third.host().checkpoint(dunlin_fabric::Site::BeforePost);
                    }
                }),
            );
            use dunlin_fabric::Signal;
            ready.wait(0, u64::MAX);
            let host = sim.host();
            host.sleep(host.now() + 1000 * (1 + seed * 37));
            processes[2].kill();
            view.write(0, b"still here").unwrap();
            region.free().unwrap();
            assert_access(view.write(0, b"x"), AccessError::Gone);
            let next = alice.malloc(1 << 16, Spec::here()).unwrap();
            let mut found = vec![1; 1 << 16];
            for _ in 0..10 {
                next.read(0, &mut found).unwrap();
                assert!(found.iter().all(|byte| *byte == 0));
                host.sleep(host.now() + 100_000);
            }
        })
        .unwrap();
    }
}

/// A node restarts without its memory. A record at another node still has a place there, which belongs to others by now: it is
/// not touched, and the region can be freed.
#[test]
fn a_place_in_the_memory_of_a_restarted_node_is_gone() {
    use dunlin_fabric::Signal;
    for seed in 0..6 {
        Sim::run_with(settings(None), seed, move |sim| {
            let host = sim.host();
            let alice = start(&sim.process_on(0), "alice", |_| {});
            let carol = start(&sim.process_on(2), "carol", |_| {});
            // Bob's node belongs to the process that is killed. It looks at a region of its own for ever.
            let bob_lives = || {
                let (process, ready) = (sim.process_on(1), host.signal());
                let (own, raised) = (process.clone(), ready.clone());
                let body = move || {
                    let bob = start(&own, "bob", |_| {});
                    let region = bob.malloc(200_000, Spec::here()).unwrap();
                    raised.raise();
                    let mut found = vec![1; 200_000];
                    loop {
                        region.read(0, &mut found).unwrap();
                        assert!(found.iter().all(|byte| *byte == 0), "another region was written");
                        own.host().sleep(own.host().now() + 50_000);
                    }
                };
                drop(process.host().spawn("bob", Box::new(body)).unwrap());
                ready.wait(0, u64::MAX);
                process
            };
            let first = bob_lives();
            let name = (0..).map(|number| format!("x/{number}"));
            let name = name.into_iter().find(|name| alice.home(name).unwrap() == "alice").unwrap();
            let spec = || Spec::on("bob").named(&name).grant_anyone(Rights::ALL);
            let region = alice.malloc(30_000, spec()).unwrap();
            region.write(0, &[0xff; 3000]).unwrap();
            carol.map(&name, Rights::WRITE).unwrap().write(3000, &[0xff; 3000]).unwrap();
            first.kill();
            let second = bob_lives();
            for tier in [&alice, &carol] {
                let view = tier.map(&name, Rights::ALL).unwrap();
                assert_access(view.write(0, &[0xff; 30_000]), AccessError::Gone);
                assert_access(view.read(0, &mut [0; 8]), AccessError::Gone);
                assert_access(view.fetch_add(0, 1), AccessError::Gone);
            }
            host.sleep(host.now() + 1_000_000);
            carol.map(&name, Rights::ALL).unwrap().free().unwrap();
            assert_absent(alice.map(&name, Rights::READ));
            let next = alice.malloc(30_000, spec()).unwrap();
            next.write(0, &[0xff; 3000]).unwrap();
            next.free().unwrap();
            second.kill();
        })
        .unwrap();
    }
}
