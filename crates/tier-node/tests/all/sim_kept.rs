//! A node in virtual time whose memory a keeper holds: it is killed at any time, and its next life goes on.

use crate::cluster::config;
use dunlin_fabric::{Fabric, Host, Scheme};
use dunlin_fabric_sim::{MachineSettings, Random, Settings, Sim, SimKeeper};
use dunlin_tier_node::{JoinError, MemorySource, Rights, Spec, Tier, TierConfig};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const NAMES: [&str; 2] = ["alice", "bob"];
/// Bytes that one write covers: several requests and pieces.
const LENGTH: usize = 20_000;
/// The word that has the number of the last acknowledged write, behind the bytes.
const WORD: u64 = 20_032;
const BYTES: u64 = WORD + 8;

fn settings_of(sim: &Sim, node: &str) -> TierConfig {
    let mut config = config(Scheme::Sim, "kept", &NAMES, node);
    (config.piece, config.timeout) = (8192, Duration::from_millis(50));
    config.memory_source = Some(MemorySource::of(sim));
    config
}

/// Starts a life of bob on its machine.
fn life(sim: &Sim, keeper: &SimKeeper) -> (Sim, Tier<Sim>) {
    let process = sim.process_on(1);
    let kept = process.kept_by(keeper).unwrap();
    let settings = settings_of(&process, "bob");
    let tier = Tier::within_kept(&process, settings, Box::new(kept)).unwrap();
    (process, tier)
}

/// Writes all bytes of bob's region with the next number, and then the number, again and again. A write that fails is made
/// again: it is the same bytes.
fn write_on_and_on(sim: &Sim, alice: &Tier<Sim>, ends: &AtomicU64) {
    let region = alice.map("kept", Rights::READ.with(Rights::WRITE)).unwrap();
    let host = sim.host();
    let again = |mut attempt: Box<dyn FnMut() -> bool + '_>| {
        while !attempt() {
            host.sleep(host.now() + 10_000);
        }
    };
    for number in 1u64.. {
        if ends.load(Ordering::Relaxed) != 0 {
            return;
        }
        let bytes = vec![number as u8; LENGTH];
        again(Box::new(|| region.write(0, &bytes).is_ok()));
        again(Box::new(|| region.write(WORD, &number.to_le_bytes()).is_ok()));
    }
}

#[test]
fn handles_of_another_node_outlive_kills_at_any_time() {
    const KILLS: u64 = 6;
    for seed in 0..6 {
        let settings = Settings { machines: vec![MachineSettings::default(); 2], ..Settings::default() };
        Sim::run_with(settings, seed, move |sim| {
            let (keeper, mut random) = (SimKeeper::new(), Random::new(seed, 7));
            let (mut process, mut bob) = life(&sim, &keeper);
            let near = sim.process_on(0);
            let alice = Tier::within(&near, settings_of(&near, "alice")).unwrap();
            let region = alice.malloc(BYTES, Spec::on("bob").named("kept")).unwrap();
            let mut canary = bob.malloc(3000, Spec::here().named("canary")).unwrap();
            canary.write(0, &[0xa5; 3000]).unwrap();
            let (used, ends) = (bob.free_memory(), Arc::new(AtomicU64::new(0)));
            let writer = {
                let (sim, alice, ends) = (near.clone(), alice.clone(), Arc::clone(&ends));
                near.host().spawn("writer", Box::new(move || write_on_and_on(&sim, &alice, &ends))).unwrap()
            };
            let host = sim.host();
            let mut last = 0;
            for kill in 0..KILLS {
                host.sleep(host.now() + random.below(400_000));
                process.kill();
                drop((bob, canary));
                host.sleep(host.now() + random.below(2_000_000));
                (process, bob) = life(&sim, &keeper);
                // The handle of before, without another map.
                let mut word = [0; 8];
                while region.read(WORD, &mut word).is_err() {
                    host.sleep(host.now() + 10_000);
                }
                let now = u64::from_le_bytes(word);
                assert!(
                    now >= last,
                    "seed {seed}, kill {kill}: an acknowledged write is lost: {last}, then {now}"
                );
                last = now;
                let mut bytes = [0; 3000];
                let mapped = bob.map("canary", Rights::ALL).unwrap();
                mapped.read(0, &mut bytes).unwrap();
                assert_eq!(bytes, [0xa5; 3000], "seed {seed}, kill {kill}");
                assert_eq!(bob.free_memory(), used, "seed {seed}, kill {kill}");
                canary = mapped;
            }
            ends.store(1, Ordering::Relaxed);
            writer.join();
            let mut bytes = vec![0; LENGTH];
            region.read(0, &mut bytes).unwrap();
            assert!(bytes.iter().all(|byte| *byte == bytes[0]), "seed {seed}: the last write is whole");
            assert!(last > 3, "seed {seed}: {last} writes");
            drop(canary);
            region.free().unwrap();
        })
        .unwrap();
    }
}

/// A keeper serves one living process; one without the memory of this node refuses.
#[test]
fn a_keeper_serves_one_life_at_a_time() {
    let settings = Settings { machines: vec![MachineSettings::default(); 2], ..Settings::default() };
    Sim::run_with(settings, 1, |sim| {
        let keeper = SimKeeper::new();
        let (process, bob) = life(&sim, &keeper);
        assert!(sim.process_on(1).kept_by(&keeper).is_err(), "bob lives");
        process.kill();
        drop(bob);
        let stranger = sim.process_on(0);
        let kept = stranger.kept_by(&keeper).unwrap();
        let other = Tier::within_kept(&stranger, settings_of(&stranger, "alice"), Box::new(kept));
        assert!(matches!(other, Err(JoinError::Kept { what: "the node", .. })), "{other:?}");
        drop(other);
        drop(life(&sim, &keeper));
    })
    .unwrap();
}

/// In a fixed list any keeper of a record maps; changes wait for the first one, which nobody declares dead.
#[test]
fn another_keeper_maps_while_the_first_one_is_away() {
    let settings = Settings { machines: vec![MachineSettings::default(); 2], ..Settings::default() };
    Sim::run_with(settings, 1, |sim| {
        let keeper = SimKeeper::new();
        let (process, bob) = life(&sim, &keeper);
        let near = sim.process_on(0);
        let alice = Tier::within(&near, settings_of(&near, "alice")).unwrap();
        // The home of the name has to be there, too.
        let name =
            ["a", "b", "c", "d"].into_iter().find(|name| alice.home(name).unwrap() == "alice").unwrap();
        let free = alice.free_memory();
        let made = bob.malloc(100, Spec::on("alice").named(name).grant_anyone(Rights::ALL)).unwrap();
        made.write(0, b"bytes").unwrap();
        let records = alice.regions();
        let master = alice.map(name, Rights::ALL).unwrap();
        assert_eq!(alice.regions(), records + 1, "alice keeps the record, too");
        process.kill();
        drop((bob, made));
        let mapped = alice.map(name, Rights::READ).unwrap();
        let mut bytes = [0; 5];
        mapped.read(0, &mut bytes).unwrap();
        assert_eq!(&bytes, b"bytes");
        let refused = master.grant("eve", Rights::READ).unwrap_err();
        assert!(!refused.may_have_executed(), "{refused:?}");
        let (_process, bob) = life(&sim, &keeper);
        master.grant("eve", Rights::READ).unwrap();
        bob.map(name, Rights::ALL).unwrap().free().unwrap();
        assert!(alice.map(name, Rights::READ).is_err() && mapped.read(0, &mut bytes).is_err());
        drop((master, mapped));
        let host = sim.host();
        host.sleep(host.now() + 1_000_000_000);
        assert_eq!((alice.free_memory(), alice.regions()), (free, records));
    })
    .unwrap();
}

#[test]
fn the_next_life_begins_leases_anew() {
    let settings = Settings { machines: vec![MachineSettings::default(); 2], ..Settings::default() };
    Sim::run_with(settings, 1, move |sim| {
        let (keeper, host) = (SimKeeper::new(), sim.host());
        let wait = |seconds: u64| host.sleep(host.now() + seconds * 1_000_000_000);
        let near = sim.process_on(0);
        let _alice = Tier::within(&near, settings_of(&near, "alice")).unwrap();
        let (process, bob) = life(&sim, &keeper);
        let lease = Duration::from_secs(60);
        let region = bob.malloc(100, Spec::here().named("leased").leased(lease)).unwrap();
        let unleased = bob.malloc(100, Spec::here().named("other").leased(lease)).unwrap();
        unleased.lease(None).unwrap();
        wait(50);
        process.kill();
        drop((region, unleased, bob));
        let (_process, bob) = life(&sim, &keeper);
        let is_there = |name: &str| bob.map(name, Rights::READ).is_ok();
        wait(50);
        assert!(is_there("leased") && is_there("other"));
        wait(11);
        assert!(!is_there("leased") && is_there("other"));
    })
    .unwrap();
}
