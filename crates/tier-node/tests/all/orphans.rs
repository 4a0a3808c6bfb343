//! Memory of regions whose keepers have all ended goes back to its store, and no sooner than nobody uses it.

use crate::membership::{NAMES, alive, leak, run, wait};
use dunlin_fabric::{Fabric, Host, Nanos};
use dunlin_fabric_sim::Sim;
use dunlin_tier_node::{Rights, Spec, Tier};

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
