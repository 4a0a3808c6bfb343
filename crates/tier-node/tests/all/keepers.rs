//! Several nodes keep a record, and its first keeper dies or is cut off.

use crate::cluster::assert_absent;
use crate::membership::{NAMES, alive, leak, run, wait};
use crate::orphans::{in_a_list, life, unused};
use dunlin_fabric::{Fabric, Host, Nanos};
use dunlin_fabric_sim::{Faults, MachineSettings, Settings, Sim};
use dunlin_tier::message::Refusal;
use dunlin_tier_node::{Lmr, RequestError, Rights, Spec, Tier};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// More than the time in which a death is known to all.
const SETTLED: Nanos = 1_500_000_000;

/// Bytes of the memory of a node that are in use by regions, those included that are freed and not zeroed yet.
fn used(tier: &Tier<Sim>) -> u64 {
    (1 << 18) - tier.free_memory()
}

fn read(region: &Lmr<Sim>) -> Vec<u8> {
    let mut bytes = vec![0; 5];
    region.read(0, &mut bytes).unwrap();
    bytes
}

/// Maps a name as soon as it can be mapped.
fn map(sim: &Sim, tier: &Tier<Sim>, name: &str, rights: Rights) -> Lmr<Sim> {
    wait(sim, "a region", || tier.map(name, rights).ok())
}

#[test]
fn a_region_outlives_the_node_that_made_it_if_another_master_has_mapped_it() {
    for seed in 0..4 {
        run(seed, &NAMES, |sim, processes, mut tiers, _directory| {
            let [alice, bob, carol, dave] = [0, 1, 2, 3].map(|at| tiers[at].clone());
            let before = used(&carol);
            let grants = Spec::on("carol").grant_anyone(Rights::READ);
            let region = alice.malloc(100, grants.clone().named("both")).unwrap();
            let alone = alice.malloc(100, grants.named("alone")).unwrap();
            region.write(0, b"first").unwrap();
            let records = bob.regions();
            let master = bob.map("both", Rights::ALL).unwrap();
            assert_eq!(bob.regions(), records + 1, "the record is at bob, too");
            assert_eq!(alice.named_regions(9).1, 1, "the other region ends with alice");
            // A handle that is made at the first keeper, one at the second, and one that shows no master.
            let mapped = [&alice, &bob, &dave].map(|tier| tier.map("both", Rights::READ).unwrap());
            assert_eq!(mapped.each_ref().map(read), [b"first"; 3]);

            processes[0].kill();
            let [first, others @ ..] = mapped;
            leak((tiers.remove(0), alice, region, alone, first));
            wait(sim, "the next view", || (alive(&dave).len() == 3).then_some(()));
            assert_eq!(others.each_ref().map(read), [b"first"; 2], "handles go on");
            let again = map(sim, &dave, "both", Rights::READ);
            assert_absent(dave.map("alone", Rights::READ));
            // Its changes have another order now, for all handles.
            master.grant("eve", Rights::WRITE).unwrap();
            wait(sim, "a change through a handle", || again.rights().ok());
            master.revoke("eve", Rights::WRITE).unwrap();
            master.move_to("bob").unwrap();
            let moved = map(sim, &dave, "both", Rights::ALL);
            assert_eq!(read(&moved), b"first");
            moved.write(0, b"final").unwrap();
            // Node dave keeps the record, too. Node bob, which orders its changes, dies.
            processes[1].kill();
            let [at_bob, _at_dave] = others;
            leak((tiers.remove(0), bob, master, at_bob));
            wait(sim, "the next view", || (alive(&dave).len() == 2).then_some(()));
            assert!(dave.map("both", Rights::READ).is_err(), "its bytes were at bob");
            moved.free().unwrap();
            wait(sim, "its end", || {
                matches!(
                    dave.map("both", Rights::READ),
                    Err(RequestError::Refused {
                        source: Refusal::Record(dunlin_tier::RecordError::NoSuch),
                        ..
                    })
                )
                .then_some(())
            });
            dave.malloc(100, Spec::on("carol").named("both")).unwrap();
            // The node of the other region may come back.
            assert!(used(&carol) > before);
        });
    }
}

/// The first keeper is killed at any time under a change: the change is made or not, everywhere, and the region lives on.
#[test]
fn a_change_whose_node_dies_is_made_or_not() {
    let made = Arc::new([const { AtomicU64::new(0) }; 2]);
    for seed in 0..24 {
        let counts = Arc::clone(&made);
        run(seed, &NAMES, move |sim, processes, mut tiers, _directory| {
            let [alice, bob, carol, dave] = [0, 1, 2, 3].map(|at| tiers[at].clone());
            let free = used(&carol);
            let spec = Spec::on("carol").named("r").grant("reader", Rights::READ);
            let region = alice.malloc(20_000, spec).unwrap();
            region.write(0, b"bytes").unwrap();
            let masters = [&bob, &dave].map(|tier| tier.map("r", Rights::ALL).unwrap());
            let ends = Arc::new(AtomicBool::new(false));
            let changer = {
                let ends = Arc::clone(&ends);
                let body = move || {
                    match seed % 4 {
                        0 => drop(region.free()),
                        1 => drop(region.revoke("reader", Rights::READ)),
                        2 => drop(region.move_to("bob")),
                        _ => drop(region.grant("writer", Rights::WRITE)),
                    }
                    ends.store(true, Ordering::Relaxed);
                };
                processes[0].host().spawn("changer", Box::new(body)).unwrap()
            };
            sim.host().sleep(sim.time() + 300 * (seed / 4) * (seed / 4) * 20);
            processes[0].kill();
            leak((tiers.remove(0), alice, changer));
            sim.host().sleep(sim.time() + SETTLED);
            let [master, other] = masters;
            if seed % 4 == 0 && bob.map("r", Rights::READ).is_err() {
                counts[1].fetch_add(1, Ordering::Relaxed);
                assert_absent(dave.map("r", Rights::READ));
                assert!(master.read(0, &mut [0]).is_err() && other.read(0, &mut [0]).is_err());
            } else {
                counts[0].fetch_add(1, Ordering::Relaxed);
                let mapped = [&bob, &dave].map(|tier| tier.map("r", Rights::ALL).unwrap());
                assert_eq!(mapped.each_ref().map(read), [b"bytes"; 2], "seed {seed}");
                mapped[0].write(0, b"other").unwrap();
                // Memory may lag behind the completion.
                wait(sim, "one place", || (read(&mapped[1]) == b"other").then_some(()));
                mapped[1].grant("eve", Rights::READ).unwrap();
                mapped[1].revoke("reader", Rights::READ).unwrap();
                let [first, _second] = mapped;
                first.free().unwrap();
            }
            drop((master, other));
            wait(sim, "memory that is taken back", || (used(&carol) == free).then_some(()));
        });
    }
    let [lived, freed] = [&made[0], &made[1]].map(|count| count.load(Ordering::Relaxed));
    assert!(lived > 6 && freed > 1, "{lived} {freed}");
}

/// A first keeper that is declared dead and lives forgets a record that another node has changed since.
#[test]
fn a_first_keeper_that_comes_back_has_no_say() {
    for seed in 0..4 {
        run(seed, &NAMES[..3], move |sim, processes, tiers, _directory| {
            let [alice, bob, carol] = [0, 1, 2].map(|at| tiers[at].clone());
            let region = alice.malloc(100, Spec::on("carol").named("r")).unwrap();
            let kept = alice.malloc(100, Spec::on("carol").named("own")).unwrap();
            region.write(0, b"first").unwrap();
            let master = bob.map("r", Rights::ALL).unwrap();
            let records = alice.regions();
            sim.cut_off(0, 900_000_000);
            wait(sim, "its death", || (alive(&bob).len() == 2).then_some(()));
            wait(sim, "a change", || master.grant("eve", Rights::READ).ok());
            if seed % 2 == 0 {
                // The region ends, and its memory is another one's.
                master.free().unwrap();
                let next = bob.malloc(100, Spec::on("carol").named("r")).unwrap();
                next.write(0, b"other").unwrap();
            }
            wait(sim, "its next incarnation", || (alive(&bob).len() == 3).then_some(()));
            wait(sim, "its own record only", || (alice.regions() == records - 1).then_some(()));
            assert!(region.grant("mallory", Rights::READ).is_err() || seed % 2 == 1);
            let found = map(sim, &alice, "r", Rights::READ);
            let expected: &[u8] = if seed % 2 == 0 { b"other" } else { b"first" };
            assert_eq!(read(&found), expected);
            kept.grant("eve", Rights::READ).unwrap();
            let _ = (&processes, &carol);
        });
    }
}

/// All nodes are declared dead at once, and join again: nobody has taken anything over.
#[test]
fn records_whose_keepers_all_come_back_are_kept() {
    run(7, &NAMES[..3], |sim, processes, tiers, directory| {
        let [alice, bob, carol] = [0, 1, 2].map(|at| tiers[at].clone());
        let region = alice.malloc(100, Spec::on("carol").named("r")).unwrap();
        region.write(0, b"first").unwrap();
        let master = bob.map("r", Rights::ALL).unwrap();
        sim.cut_off(0, 900_000_000);
        sim.cut_off(1, 900_000_000);
        wait(sim, "two deaths", || (alive(&carol).len() == 1).then_some(()));
        wait(sim, "their return", || (alive(&carol).len() == 3).then_some(()));
        let found = map(sim, &carol, "r", Rights::ALL);
        assert_eq!(read(&found), b"first");
        wait(sim, "a change", || master.grant("eve", Rights::READ).ok());
        found.free().unwrap();
        assert_absent(alice.map("r", Rights::READ));
        let _ = (processes, directory, region);
    });
}

/// In a fixed list, the first keeper is killed at any time under a move, and has no memory afterwards: the other one finds
/// out, maps the region again, and all memory of the move goes back.
#[test]
fn a_move_whose_node_loses_the_record_ends_in_a_list() {
    for after in (0..60).map(|step| 3_000 * step) {
        in_a_list(after, move |sim| {
            let (alices, alice) = life(sim, 0);
            let [(_bobs, bob), (_carols, carol)] = [1, 2].map(|at| life(sim, at));
            let free = [&bob, &carol].map(unused);
            let spec = Spec::on("carol").named("r").grant_anyone(Rights::ALL);
            let region = alice.malloc(20_000, spec).unwrap();
            region.write(0, b"bytes").unwrap();
            let master = bob.map("r", Rights::ALL).unwrap();
            let mover = alices.host().spawn("mover", Box::new(move || drop(region.move_to("bob")))).unwrap();
            sim.host().sleep(sim.time() + after);
            alices.kill();
            leak((alice, mover));
            let (_alices, _alice) = life(sim, 0);
            // The home of the name may have been the node that was killed.
            let mapped = wait(sim, "the region", || {
                sim.host().sleep(sim.time() + 1_000_000_000);
                bob.map("r", Rights::ALL).ok()
            });
            assert_eq!(read(&mapped), b"bytes");
            mapped.free().unwrap();
            drop(master);
            sim.host().sleep(sim.time() + 200_000_000_000);
            assert_eq!([&bob, &carol].map(unused), free, "killed after {after} ns");
        });
    }
}

/// The cleaner may have freed the region before the other keeper has heard of the lease.
#[test]
fn a_lease_of_no_time_is_given_where_several_nodes_keep_the_record() {
    for seed in 60..160 {
        let machines = vec![MachineSettings::default(); 3];
        let faults = Faults { stall: 100, stall_by: 200_000, until: u64::MAX, ..Faults::default() };
        let settings = Settings { machines, preemption: 4, faults, ..Settings::default() };
        Sim::run_with(settings, seed, move |sim| {
            let tiers = [0, 1, 2].map(|machine| life(&sim, machine));
            let [(_, alice), (_, bob), _] = &tiers;
            for name in ["a", "b", "c"] {
                let spec = Spec::on("bob").named(name).grant_anyone(Rights::ALL);
                let region = alice.malloc(100, spec).unwrap();
                let master = bob.map(name, Rights::ALL).unwrap();
                master.lease(Some(Duration::ZERO)).unwrap_or_else(|error| panic!("seed {seed}: {error:?}"));
                wait(&sim, "the end", || bob.map(name, Rights::READ).is_err().then_some(()));
                drop((region, master));
            }
        })
        .unwrap();
    }
}
