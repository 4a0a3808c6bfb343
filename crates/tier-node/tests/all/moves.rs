//! Regions that move from node to node: bytes, handles, memory, and nodes that die meanwhile.

use crate::cluster::{assert_absent, assert_access, config, in_virtual_time, on_shared_memory};
use dunlin_fabric::{Fabric, Host, Scheme, Signal, Site};
use dunlin_fabric_sim::{MachineSettings, Settings, Sim};
use dunlin_tier::RecordError;
use dunlin_tier::message::Refusal;
use dunlin_tier_node::{AccessError, Lmr, OperationError, RequestError, Rights, Spec, Tier, TierConfig};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

#[track_caller]
fn assert_refused(moved: Result<(), RequestError>, refusal: impl Into<Refusal>) {
    match moved {
        Err(RequestError::Refused { source, .. }) => assert_eq!(source, refusal.into()),
        other => panic!("not refused: {other:?}"),
    }
}

/// Repeats an attempt until it succeeds: virtual time passes meanwhile, too.
#[track_caller]
fn wait<F: Fabric>(tier: &Tier<F>, what: &str, mut is: impl FnMut() -> bool) {
    for _ in 0..20_000 {
        if is() {
            return;
        }
        let host = tier.fabric().host();
        host.sleep(host.now() + 500_000);
    }
    panic!("no end of waiting: {what}");
}

fn bytes_of<F: Fabric>(region: &Lmr<F>) -> Vec<u8> {
    let mut bytes = vec![0; region.len() as usize];
    region.read(0, &mut bytes).unwrap();
    bytes
}

fn regions_move<F: Fabric>(tiers: &[Tier<F>; 3]) {
    let [alice, bob, carol] = tiers;
    let memory = alice.memory();
    let all_is_free = |tier: &Tier<F>| tier.free_memory() + tier.dirty_memory() == memory;
    // Locks and barriers of the nodes use some memory: none of them is used here.
    let before = tiers.each_ref().map(|tier| tier.free_memory() + tier.dirty_memory());
    let length = 30_000;
    let mut model: Vec<u8> = (0..length).map(|at| (at * 7) as u8).collect();
    let rights = Rights::READ.with(Rights::WRITE);
    let spec = Spec::on("bob").named("m").grant("bob", rights).grant("carol", rights);
    let mut region = alice.malloc(length as u64, spec).unwrap();
    region.write(0, &model).unwrap();
    for (round, to) in (0..).zip([2usize, 0, 1, 0, 2, 1]) {
        let views = [bob, carol].map(|tier| tier.map("m", rights).unwrap());
        let word = round * 8;
        views[0].write(word, &[0; 8]).unwrap();
        // Without atomics of the fabric, the processor of the storing node adds.
        let host = alice.fabric().host();
        host.sleep(host.now() + 1_000_000);
        views[1].fetch_add(word, 3).unwrap();
        views[0].fetch_add(word, 4).unwrap();
        model[word as usize..][..8].copy_from_slice(&7u64.to_le_bytes());
        region.move_to(["alice", "bob", "carol"][to]).unwrap();
        // Every handle says so, also that of the mover.
        for handle in views.iter().chain([&region]) {
            assert_access(handle.read(0, &mut [0; 8]), AccessError::Moved);
            assert_access(handle.fetch_add(0, 1), AccessError::Moved);
            assert_eq!(handle.len(), length as u64);
        }
        let next = alice.map("m", Rights::ALL).unwrap();
        assert!(bytes_of(&next) == model, "round {round}");
        assert!(bytes_of(&carol.map("m", Rights::READ).unwrap()) == model, "round {round}");
        // Where it is already, it stays, and its handles with it.
        next.move_to(["alice", "bob", "carol"][to]).unwrap();
        next.memset(1000, 10, round as u8).unwrap();
        model[1000..1010].fill(round as u8);
        alice.memcpy(next.at(5000), next.at(0), 100).unwrap();
        model.copy_within(..100, 5000);
        region = next;
        for (at, tier) in tiers.iter().enumerate() {
            let used = if at == to { 32_768 } else { 0 };
            let has = || before[at] - (tier.free_memory() + tier.dirty_memory()) == used;
            wait(tier, "the memory that the region left", has);
        }
    }

    // A region that cannot move stays, and its handles work.
    let weak = bob.map("m", rights).unwrap();
    let denied = AccessError::Denied { needs: Rights::MASTER, has: rights };
    assert!(matches!(weak.move_to("alice"), Err(RequestError::Access(error)) if error == denied));
    assert!(matches!(region.move_to("dave"), Err(RequestError::NoNode(node)) if node == "dave"));
    let full = alice.malloc(alice.free_memory(), Spec::here()).unwrap();
    assert_refused(region.move_to("alice"), Refusal::OutOfMemory { wanted: length as u64 });
    assert_refused(full.move_to("bob"), RecordError::NoName);
    full.free().unwrap();
    assert!(bytes_of(&weak) == model);

    // A region of several nodes becomes one of one node.
    let spread = alice.malloc(90_000, Spec::spread(["alice", "carol", "bob"]).named("s")).unwrap();
    let bytes: Vec<u8> = (0..90_000).map(|at| (at * 11) as u8).collect();
    spread.write(0, &bytes).unwrap();
    spread.move_to("carol").unwrap();
    assert_access(spread.write(0, b"x"), AccessError::Moved);
    let moved = alice.map("s", Rights::ALL).unwrap();
    assert!(bytes_of(&moved) == bytes);
    // A handle of the old place frees the region.
    spread.free().unwrap();
    assert_access(moved.read(0, &mut [0; 8]), AccessError::Gone);
    assert_absent(alice.map("s", Rights::READ));
    region.free().unwrap();
    assert_absent(bob.map("m", Rights::READ));
    for tier in tiers {
        wait(tier, "all memory", || all_is_free(tier));
    }
}

#[test]
fn regions_move_on_shared_memory() {
    on_shared_memory(regions_move);
}

#[test]
fn regions_move_in_virtual_time() {
    for (seed, atomics) in [(1, true), (2, false), (3, true)] {
        in_virtual_time(seed, atomics, regions_move);
    }
}

/// Threads of three nodes write, each its own word, while the region moves on and on. No acknowledged write is lost.
fn no_write_is_lost<F: Fabric>(tiers: &[Tier<F>; 3], rounds: usize) {
    static RUNS: AtomicU64 = AtomicU64::new(0);
    let name = format!("hot/{}", RUNS.fetch_add(1, Ordering::Relaxed));
    let spec = Spec::here().named(&name).grant_anyone(Rights::ALL);
    let first = tiers[0].malloc(20_000, spec).unwrap();
    let (over, mut tasks) = (std::sync::Arc::new(AtomicBool::new(false)), Vec::new());
    let acknowledged = std::sync::Arc::new([const { AtomicU64::new(0) }; 3]);
    for (at, tier) in tiers.iter().enumerate() {
        let (tier, name, over) = (tier.clone(), name.clone(), std::sync::Arc::clone(&over));
        let acknowledged = std::sync::Arc::clone(&acknowledged);
        tasks.push(crate::cluster::spawn(&tiers[at], move || {
            let mut view = tier.map(&name, Rights::WRITE).unwrap();
            let mut number = 1u64;
            while !over.load(Ordering::Acquire) {
                match view.write(8 * at as u64, &number.to_le_bytes()) {
                    Ok(()) => {
                        acknowledged[at].store(number, Ordering::Release);
                        number += 1;
                    }
                    Err(OperationError::Access(AccessError::Moved)) => {
                        view = tier.map(&name, Rights::READ.with(Rights::WRITE)).unwrap();
                        // The next write would hide one that was lost.
                        let mut found = [0; 8];
                        match view.read(8 * at as u64, &mut found) {
                            Ok(()) => assert_eq!(u64::from_le_bytes(found), number - 1, "writer {at}"),
                            Err(OperationError::Access(AccessError::Moved)) => {}
                            Err(error) => panic!("{error:?}"),
                        }
                    }
                    Err(error) => panic!("{error:?}"),
                }
                tier.fabric().host().checkpoint(Site::BeforePost);
            }
        }));
    }
    drop(first);
    for round in 0..rounds {
        let region = tiers[0].map(&name, Rights::ALL).unwrap();
        let before: Vec<u64> = acknowledged.iter().map(|one| one.load(Ordering::Acquire)).collect();
        region.move_to(["bob", "carol", "alice"][round % 3]).unwrap();
        let region = tiers[0].map(&name, Rights::ALL).unwrap();
        for (at, before) in before.into_iter().enumerate() {
            let found = region.fetch_add(8 * at as u64, 0).unwrap();
            assert!(found >= before, "round {round}, writer {at}: {found}, and {before} was acknowledged");
            wait(&tiers[0], "the writer", || acknowledged[at].load(Ordering::Acquire) > found);
        }
    }
    over.store(true, Ordering::Release);
    tasks.into_iter().for_each(dunlin_fabric::Task::join);
    let region = tiers[0].map(&name, Rights::ALL).unwrap();
    for (at, last) in acknowledged.iter().enumerate() {
        wait(&tiers[0], "the last word", || {
            region.fetch_add(8 * at as u64, 0).unwrap() == last.load(Ordering::Acquire)
        });
    }
    region.free().unwrap();
}

#[test]
fn no_write_is_lost_on_shared_memory() {
    on_shared_memory(|tiers| no_write_is_lost(tiers, 30));
}

#[test]
fn no_write_is_lost_in_virtual_time() {
    for seed in 0..6 {
        in_virtual_time(seed, true, |tiers| no_write_is_lost(tiers, 6));
    }
}

/// The node that stores the region, the one that gets it or one that uses it is killed at any time of a move. The region
/// has its old place or its new one, with all bytes; it is gone only if that node was killed.
#[test]
fn a_node_that_is_killed_under_a_move_leaves_one_copy() {
    let (mut moved, mut stayed) = (0, 0);
    for seed in 0..36u64 {
        let is_moved = std::sync::Arc::new(AtomicBool::new(false));
        let told = std::sync::Arc::clone(&is_moved);
        let settings = Settings { machines: vec![MachineSettings::default(); 4], ..Settings::default() };
        Sim::run_with(settings, seed, move |sim| {
            const NAMES: [&str; 4] = ["alice", "bob", "carol", "dave"];
            let processes = [0, 1, 2, 3].map(|machine| sim.process_on(machine));
            let settings_of = |at: usize| {
                let (timeout, stop_timeout) = (Duration::from_secs(2), Duration::from_millis(20));
                let common = config(Scheme::Sim, "k", &NAMES, NAMES[at]);
                TierConfig { memory: 1 << 16, piece: 4096, timeout, stop_timeout, ..common }
            };
            let host = sim.host();
            let alice = Tier::within(&processes[0], settings_of(0)).unwrap();
            // A name that no killed node keeps.
            let mut names = (0..).map(|number| format!("k/{number}"));
            let name = names.find(|name| alice.home(name).unwrap() == "alice").unwrap();
            // The nodes of other processes belong to those.
            let ready = host.signal();
            for (at, process) in processes.iter().enumerate().skip(1) {
                let (process, raised, name) = (process.clone(), ready.clone(), name.clone());
                let settings = settings_of(at);
                let body = move || {
                    let tier = Tier::within(&process, settings).unwrap();
                    raised.raise();
                    let mut view = None;
                    loop {
                        let host = process.host();
                        host.sleep(host.now() + 3000);
                        // Dave uses the region.
                        match (&view, at) {
                            (None, 3) => view = tier.map(&name, Rights::READ).ok(),
                            (Some(one), 3) if one.read(0, &mut [0; 5000]).is_err() => view = None,
                            _ => {}
                        }
                    }
                };
                drop(processes[at].host().spawn("node", Box::new(body)).unwrap());
            }
            for count in 0..3 {
                ready.wait(count, u64::MAX);
            }
            let spec = Spec::on("bob").named(&name).grant_anyone(Rights::READ);
            let region = alice.malloc(40_000, spec).unwrap();
            let bytes: Vec<u8> = (0..40_000).map(|at| (at * 13) as u8).collect();
            region.write(0, &bytes).unwrap();
            let killed = 1 + (seed % 3) as usize;
            let (victim, when) = (processes[killed].clone(), host.now() + 150_000 * (1 + seed / 3));
            let killer = host.clone();
            let kill = move || {
                killer.sleep(when);
                victim.kill();
            };
            let kills = host.spawn("killer", Box::new(kill)).unwrap();
            let outcome = region.move_to("carol");
            kills.join();
            told.store(outcome.is_ok(), Ordering::Relaxed);
            // One place has all bytes, unless that node was killed.
            let place = if outcome.is_ok() { 2 } else { 1 };
            let view = alice.map(&name, Rights::READ);
            let mut found = vec![0; bytes.len()];
            match view.map(|view| view.read(0, &mut found)) {
                Ok(Ok(())) => assert!(found == bytes, "seed {seed}: {outcome:?}"),
                other => assert_eq!(place, killed, "seed {seed}: {outcome:?}, {other:?}"),
            }
            // The run ends with its last thread.
            processes[1..].iter().for_each(Sim::kill);
            if killed == 3 {
                outcome.unwrap_or_else(|error| panic!("seed {seed}: {error:?}"));
            }
        })
        .unwrap();
        let count = if is_moved.load(Ordering::Relaxed) { &mut moved } else { &mut stayed };
        *count += 1;
    }
    assert!(moved > 3 && stayed > 3, "{moved} moved, {stayed} stayed");
}
