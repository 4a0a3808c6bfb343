//! Memory of regions whose keepers have all ended goes back to its store, and no sooner than nobody uses it.

use crate::cluster;
use crate::membership::{NAMES, alive, leak, run, wait};
use dunlin_fabric::{Fabric, Host, Nanos, Scheme};
use dunlin_fabric_sim::{MachineSettings, Settings, Sim};
use dunlin_tier_node::{Rights, Spec, Tier};
use std::sync::Arc;

const SECOND: Nanos = 1_000_000_000;
/// More than `TierConfig::orphan_after`.
const LONG: Nanos = 62 * SECOND;

fn used(tier: &Tier<Sim>) -> u64 {
    (1 << 18) - tier.free_memory()
}

#[test]
fn a_store_takes_back_the_memory_of_a_region_when_its_keeper_is_dead_and_its_last_handle_closed() {
    run(1, &NAMES, |sim, processes, mut tiers, _directory| {
        let [alice, bob, carol] = [0, 1, 2].map(|at| tiers[at].clone());
        let before = used(&carol);
        let made = ["a", "b"].map(|name| {
            let spec = Spec::on("carol").named(name).grant_anyone(Rights::READ.with(Rights::WRITE));
            alice.malloc(1000, spec).unwrap()
        });
        let mapped = bob.map("b", Rights::READ.with(Rights::WRITE)).unwrap();
        processes[0].kill();
        leak((tiers.remove(0), alice, made));
        wait(sim, "the next view", || (alive(&bob).len() == 3).then_some(()));
        assert!(used(&carol) >= before + 2048, "its node may come back");
        sim.host().sleep(sim.time() + LONG);
        assert_eq!(used(&carol), before + 1024, "nobody knows one of them");
        mapped.write(0, b"bytes").unwrap();
        let mut bytes = [0; 5];
        mapped.read(0, &mut bytes).unwrap();
        assert_eq!(&bytes, b"bytes");
        drop(mapped);
        sim.host().sleep(sim.time() + LONG);
        assert_eq!(used(&carol), before);
    });
}

/// A node that was cut off for long has given its regions up; one that comes back sooner has them.
#[test]
fn a_node_that_comes_back_asks_for_its_memory() {
    for (cut, comes_late) in [(2 * SECOND, false), (LONG + 4 * SECOND, true)] {
        run(2, &NAMES[..3], move |sim, _processes, tiers, _directory| {
            let [alice, bob, carol] = [0, 1, 2].map(|at| tiers[at].clone());
            let before = used(&carol);
            let spec = Spec::on("carol").named("r").grant_anyone(Rights::ALL);
            let made = alice.malloc(1000, spec).unwrap();
            made.write(0, b"first").unwrap();
            sim.cut_off(0, cut);
            wait(sim, "its death", || (alive(&bob).len() == 2).then_some(()));
            sim.host().sleep(sim.time() + cut - SECOND);
            if comes_late {
                assert_eq!(used(&carol), before);
                // The memory is another region's.
                let next = bob.malloc(1000, Spec::on("carol").named("r")).unwrap();
                next.write(0, b"other").unwrap();
            }
            wait(sim, "its return", || (alive(&bob).len() == 3).then_some(()));
            sim.host().sleep(sim.time() + SECOND);
            let mut bytes = [0; 5];
            if comes_late {
                assert!(made.read(0, &mut bytes).is_err() && made.write(0, b"wrong").is_err());
                alice.map("r", Rights::READ).unwrap().read(0, &mut bytes).unwrap();
                assert_eq!(&bytes, b"other");
                assert_eq!(alice.named_regions(9).1, 0);
            } else {
                bob.map("r", Rights::READ).unwrap().read(0, &mut bytes).unwrap();
                assert_eq!(&bytes, b"first");
                alice.map("r", Rights::ALL).unwrap().free().unwrap();
                wait(sim, "its memory", || (used(&carol) == before).then_some(()));
            }
        });
    }
}

/// Starts a life of a node of a fixed list, in a process of its own.
pub(crate) fn life(sim: &Sim, machine: usize) -> (Sim, Tier<Sim>) {
    let process = sim.process_on(machine);
    let name = cluster::NAMES[machine];
    let mut config = cluster::config(Scheme::Sim, "o", &cluster::NAMES, name);
    (config.memory, config.orphan_after) = (32 << 20, config.timeout);
    let tier = Tier::within(&process, config).unwrap();
    (process, tier)
}

pub(crate) fn in_a_list(seed: u64, body: impl FnOnce(&Sim) + Send + 'static) {
    let settings = Settings { machines: vec![MachineSettings::default(); 3], ..Settings::default() };
    Sim::run_with(settings, seed, move |sim| body(&sim)).unwrap();
}

pub(crate) fn unused(tier: &Tier<Sim>) -> u64 {
    tier.free_memory() + tier.dirty_memory()
}

#[test]
fn in_a_list_a_store_asks_all_nodes_before_it_takes_memory_back() {
    in_a_list(1, |sim| {
        let (alices, alice) = life(sim, 0);
        let [(bobs, bob), (_carols, carol)] = [1, 2].map(|at| life(sim, at));
        let before = unused(&carol);
        let spec = |name: &str| Spec::on("carol").named(name).grant_anyone(Rights::READ.with(Rights::WRITE));
        let made = ["a", "b"].map(|name| alice.malloc(1000, spec(name)).unwrap());
        let mapped = bob.map("b", Rights::READ.with(Rights::WRITE)).unwrap();
        sim.host().sleep(sim.time() + LONG);
        alices.kill();
        leak((alice, made));
        sim.host().sleep(sim.time() + 4 * LONG);
        assert_eq!(before - unused(&carol), 2048, "a node that does not answer may know them");
        let (_alices, alice) = life(sim, 0);
        let own = alice.malloc(1000, spec("a")).unwrap();
        own.write(0, b"own").unwrap();
        sim.host().sleep(sim.time() + 3 * LONG);
        assert_eq!(before - unused(&carol), 2048, "the own one of the next life, and the one that bob has");
        mapped.write(0, b"bytes").unwrap();
        drop(mapped);
        sim.host().sleep(sim.time() + 3 * LONG);
        assert_eq!(before - unused(&carol), 1024);
        let mut bytes = [0; 3];
        own.read(0, &mut bytes).unwrap();
        assert_eq!(&bytes, b"own");
        // A region of a node that only its user's life had: bob's next life does not know it.
        let other = alice.malloc(1000, spec("c")).unwrap();
        let mapped = bob.map("c", Rights::READ).unwrap();
        sim.host().sleep(sim.time() + 2 * LONG);
        bobs.kill();
        leak((bob, mapped));
        let (_bobs, _bob) = life(sim, 1);
        sim.host().sleep(sim.time() + 3 * LONG);
        assert_eq!(before - unused(&carol), 2048);
        drop((own, other));
        let freed = ["a", "c"].map(|name| alice.map(name, Rights::ALL).unwrap().free());
        assert!(freed.iter().all(Result::is_ok));
        wait(sim, "its memory", || (unused(&carol) == before).then_some(()));
    });
}

#[test]
fn in_a_list_the_ring_of_a_life_that_has_ended_goes_back() {
    in_a_list(2, |sim| {
        let (alices, alice) = life(sim, 0);
        let [(_bobs, bob), (_carols, _carol)] = [1, 2].map(|at| life(sim, at));
        let calls = Arc::new(bob.register("s", 1).unwrap());
        let served = Arc::clone(&calls);
        let serve = move || {
            let mut buffer = vec![0; 20_000];
            for _ in 0..2 {
                let request = served.receive(&mut buffer).unwrap();
                let length = request.len();
                request.reply(&buffer[..length]);
            }
        };
        let server = cluster::spawn(&bob, serve);
        let before = unused(&bob);
        let call = |alice: &Tier<Sim>| {
            let mut answer = vec![0; 20_000];
            assert_eq!(alice.call("bob", "s", 1, &[7; 20_000], &mut answer).unwrap(), 20_000);
        };
        call(&alice);
        let ring = before - unused(&bob);
        assert!(ring > 0);
        alices.kill();
        leak(alice);
        let (_alices, alice) = life(sim, 0);
        call(&alice);
        assert_eq!(before - unused(&bob), 2 * ring);
        sim.host().sleep(sim.time() + 3 * LONG);
        assert_eq!(before - unused(&bob), ring, "that of the present life");
        server.join();
    });
}
