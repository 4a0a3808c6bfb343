//! Rights that are taken away: handles, writes under way, and nodes that do not answer.

use crate::cluster::{
    NAMES, assert_absent, assert_access, config, in_virtual_time, on_shared_memory, spawn, start,
};
use dunlin_fabric::{Fabric, Host, Scheme, Signal, Site};
use dunlin_fabric_sim::{Faults, MachineSettings, Settings, Sim};
use dunlin_tier::message::Refusal;
use dunlin_tier::{GrantError, RecordError};
use dunlin_tier_node::{AccessError, Lmr, OperationError, RequestError, Rights, Spec, Tier, TierConfig};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const BOTH: Rights = Rights::READ.with(Rights::WRITE);

#[track_caller]
fn assert_refused<T: std::fmt::Debug>(result: Result<T, RequestError>, refusal: impl Into<Refusal>) {
    match result {
        Err(RequestError::Refused { source, .. }) => assert_eq!(source, refusal.into()),
        other => panic!("not refused: {other:?}"),
    }
}

fn word_of<F: Fabric>(region: &Lmr<F>, offset: u64) -> u64 {
    let mut word = [0; 8];
    region.read(offset, &mut word).unwrap();
    u64::from_le_bytes(word)
}

fn rights_end<F: Fabric>(tiers: &[Tier<F>; 3]) {
    let [alice, bob, carol] = tiers;
    let spec =
        Spec::spread(["bob", "carol", "alice"]).named("r").grant("bob", BOTH).grant_anyone(Rights::READ);
    let region = alice.malloc(30_000, spec).unwrap();
    let (writer, reader) = (bob.map("r", BOTH).unwrap(), bob.map("r", Rights::READ).unwrap());
    let other = carol.map("r", Rights::READ).unwrap();
    writer.write(0, &[1; 30_000]).unwrap();

    // Handles with the right end; the others of the principal, and those of other principals, go on.
    assert_eq!(region.revoke("bob", Rights::WRITE).unwrap(), Rights::READ);
    let mut bytes = [0; 8];
    assert_access(writer.write(0, b"x"), AccessError::Revoked);
    assert_access(writer.read(0, &mut bytes), AccessError::Revoked);
    assert_access(writer.fetch_add(0, 1), AccessError::Revoked);
    assert_access(writer.memset(0, 8, 1), AccessError::Revoked);
    assert_eq!(writer.rights(), Err(AccessError::Revoked));
    let own = bob.malloc(100, Spec::here()).unwrap();
    assert_access(bob.memcpy(writer.at(0), own.at(0), 8), AccessError::Revoked);
    assert_access(bob.memcpy(own.at(0), writer.at(0), 8), AccessError::Revoked);
    for view in [&reader, &other, &region] {
        view.read(29_992, &mut bytes).unwrap();
        assert_eq!(bytes, [1; 8]);
    }
    let (wanted, has) = (BOTH, Rights::READ);
    assert_refused(bob.map("r", BOTH), RecordError::Denied { wanted, has });
    drop(writer);

    // A revoked right can be granted again. A revocation can be repeated, and takes rights that nobody has.
    assert_eq!(region.revoke("bob", Rights::WRITE).unwrap(), Rights::READ);
    assert_eq!(region.revoke("nobody", Rights::ALL).unwrap(), Rights::READ);
    region.grant("bob", Rights::WRITE.with(Rights::MASTER)).unwrap();
    let writer = bob.map("r", Rights::WRITE).unwrap();
    writer.write(0, b"again").unwrap();
    let second = bob.map("r", Rights::MASTER).unwrap();

    // Those of anyone: bob has one of his own.
    assert_eq!(region.revoke_anyone(Rights::ALL).unwrap(), Rights::NONE);
    assert_access(other.read(0, &mut bytes), AccessError::Revoked);
    reader.read(0, &mut bytes).unwrap();
    writer.write(0, b"goes on").unwrap();
    assert_absent(carol.map("r", Rights::READ));

    // Any master revokes, also the rights of the maker, and its own.
    let (needs, has) = (Rights::MASTER, Rights::WRITE);
    let denied = writer.revoke("alice", Rights::READ).unwrap_err();
    assert!(matches!(denied, RequestError::Access(error) if error == AccessError::Denied { needs, has }));
    assert_eq!(second.revoke("alice", Rights::READ).unwrap(), Rights::WRITE.with(Rights::MASTER));
    assert_access(region.write(0, b"x"), AccessError::Revoked);
    let refused = region.revoke("bob", Rights::ALL).unwrap_err();
    assert!(matches!(refused, RequestError::Access(AccessError::Revoked)), "{refused:?}");
    let region = alice.map("r", Rights::WRITE.with(Rights::MASTER)).unwrap();
    assert_eq!(second.revoke("bob", Rights::MASTER).unwrap(), BOTH);
    assert!(matches!(second.free(), Err(RequestError::Access(AccessError::Revoked))));
    assert_refused(region.revoke("alice", Rights::ALL), RecordError::from(GrantError::LastMaster));
    region.write(0, b"a refused revocation changes nothing").unwrap();
    assert!(matches!(region.revoke("", Rights::ALL), Err(RequestError::Principal(_))));
    region.free().unwrap();
    assert_access(writer.write(0, b"x"), AccessError::Gone);
}

#[test]
fn rights_end_on_shared_memory() {
    on_shared_memory(rights_end);
}

#[test]
fn rights_end_in_virtual_time() {
    for (seed, atomics) in [(1, true), (2, false), (3, true)] {
        in_virtual_time(seed, atomics, rights_end);
    }
}

/// Threads of two nodes write until the right of one of them is revoked. From then on its word stays as it is, and the
/// other thread goes on.
fn no_write_lands_after_a_revocation<F: Fabric>(tiers: &[Tier<F>; 3], rounds: u64) {
    let alice = &tiers[0];
    let host = alice.fabric().host();
    for round in 0..rounds {
        let store = NAMES[round as usize % 3];
        let spec = Spec::on(store).named("w").grant("bob", BOTH).grant("carol", BOTH);
        let region = alice.malloc(20_000, spec).unwrap();
        let counts = Arc::new([const { AtomicU64::new(0) }; 2]);
        let tasks = [1, 2].map(|at: usize| {
            let (tier, counts) = (tiers[at].clone(), Arc::clone(&counts));
            spawn(&tiers[at], move || {
                let view = tier.map("w", Rights::WRITE).unwrap();
                let mut bytes = [0; 600];
                for number in 1u64.. {
                    bytes[..8].copy_from_slice(&number.to_le_bytes());
                    match view.write(1000 * at as u64, &bytes) {
                        Ok(()) => counts[at - 1].store(number, Ordering::Release),
                        Err(OperationError::Access(AccessError::Revoked)) if at == 1 => return,
                        Err(OperationError::Access(AccessError::Gone)) if at == 2 => return,
                        Err(error) => panic!("round {round}, writer {at}: {error:?}"),
                    }
                    tier.fabric().host().checkpoint(Site::BeforePost);
                }
            })
        });
        let wait_for = |at: usize, more: u64| {
            let before = counts[at].load(Ordering::Acquire);
            while counts[at].load(Ordering::Acquire) < before + more {
                host.sleep(host.now() + 20_000);
            }
        };
        [0, 1].into_iter().for_each(|at| wait_for(at, 5));
        assert_eq!(region.revoke("bob", Rights::WRITE).unwrap(), Rights::READ);
        let word = word_of(&region, 1000);
        assert!(word >= counts[0].load(Ordering::Acquire), "round {round}: an acknowledged write is there");
        for _ in 0..20 {
            wait_for(1, 1);
            assert_eq!(word_of(&region, 1000), word, "round {round}");
        }
        region.free().unwrap();
        tasks.into_iter().for_each(dunlin_fabric::Task::join);
    }
}

#[test]
fn no_write_lands_after_a_revocation_on_shared_memory() {
    on_shared_memory(|tiers| no_write_lands_after_a_revocation(tiers, 12));
}

#[test]
fn no_write_lands_after_a_revocation_in_virtual_time() {
    for seed in 0..6 {
        in_virtual_time(seed, seed % 2 == 0, |tiers| no_write_lands_after_a_revocation(tiers, 3));
    }
}

/// Carol's node is killed, or cut off from all others, while it writes. The nodes that store the bytes fence it, and
/// the revocation ends. When carol is back, her handle is of no use.
#[test]
fn a_node_that_does_not_answer_is_fenced() {
    for seed in 0..16u64 {
        let settings = Settings { machines: vec![MachineSettings::default(); 3], ..Settings::default() };
        Sim::run_with(settings, seed, move |sim| {
            let processes = [0, 1, 2].map(|machine| sim.process_on(machine));
            let settings_of = |name: &str| {
                let timeout = Duration::from_secs(5);
                TierConfig { timeout, ..config(Scheme::Sim, "f", &NAMES, name) }
            };
            let host = sim.host();
            let alice = Tier::within(&processes[0], settings_of("alice")).unwrap();
            let bob = Tier::within(&processes[1], settings_of("bob")).unwrap();
            let store = ["alice", "bob"][seed as usize % 2];
            // A name that carol does not keep.
            let mut names = (0..).map(|number| format!("f/{number}"));
            let name = names.find(|name| alice.home(name).unwrap() == "alice").unwrap();
            let spec = Spec::on(store).named(&name).grant_anyone(BOTH);
            let (process, ready) = (processes[2].clone(), host.signal());
            let (raised, carols, settings) = (ready.clone(), name.clone(), settings_of("carol"));
            let is_killed = seed % 4 < 2;
            let body = move || {
                let carol = Tier::within(&process, settings).unwrap();
                raised.raise();
                raised.wait(1, u64::MAX);
                let view = carol.map(&carols, Rights::WRITE).unwrap();
                raised.raise();
                let own = process.host();
                let error = loop {
                    match view.write(0, &own.now().to_le_bytes().repeat(400)) {
                        Ok(()) => own.checkpoint(Site::BeforePost),
                        Err(OperationError::Access(error)) => break error,
                        // The connection is down: the operation is tried again.
                        Err(_) => own.sleep(own.now() + 100_000),
                    }
                };
                assert!(matches!(error, AccessError::Gone | AccessError::Revoked), "{error:?}");
                assert_absent(carol.map(&carols, Rights::WRITE));
                raised.raise();
            };
            drop(processes[2].host().spawn("carol", Box::new(body)).unwrap());
            ready.wait(0, u64::MAX);
            let region = alice.malloc(20_000, spec).unwrap();
            let view = bob.map(&name, BOTH).unwrap();
            ready.raise();
            ready.wait(2, u64::MAX);
            host.sleep(host.now() + 1000 * (1 + seed * 37));
            match is_killed {
                true => processes[2].kill(),
                false => sim.cut_off(2, 4_000_000_000),
            }
            region.grant("bob", BOTH).unwrap();
            assert_eq!(region.revoke_anyone(Rights::WRITE.with(Rights::READ)).unwrap(), Rights::NONE);
            let bytes = |region: &Lmr<Sim>| {
                let mut bytes = vec![0; 3200];
                region.read(0, &mut bytes).unwrap();
                bytes
            };
            let found = bytes(&region);
            for _ in 0..200 {
                host.sleep(host.now() + 40_000_000);
                assert!(bytes(&region) == found, "seed {seed}: a write landed after the revocation");
            }
            view.write(4000, b"still here").unwrap();
            if !is_killed {
                ready.wait(3, u64::MAX);
            }
            region.free().unwrap();
            processes[2].kill();
        })
        .unwrap();
    }
}

/// Others may map a region, write it and take rights away as soon as it has its name, before its maker has heard of that.
#[test]
fn a_region_that_others_use_already_is_not_made_again() {
    let early = Arc::new(AtomicU64::new(0));
    for seed in 0..60 {
        let mut settings = Settings { machines: vec![MachineSettings::default(); 3], ..Settings::default() };
        settings.faults = Faults { delay: 3, delay_by: 300_000, ..Faults::default() };
        let early = Arc::clone(&early);
        Sim::run_with(settings, seed, move |sim| {
            let [alice, bob, _carol] =
                [0, 1, 2].map(|at| start(&sim.process_on(at), Scheme::Sim, "l", NAMES[at]));
            let name = (0..)
                .map(|number| format!("r{number}"))
                .find(|name| alice.home(name).unwrap() == "bob")
                .unwrap();
            let (tier, user, time) = (alice.clone(), name.clone(), sim.clone());
            let used_at = Arc::new(AtomicU64::new(0));
            let used = Arc::clone(&used_at);
            let task = spawn(&alice, move || {
                let view = loop {
                    match tier.map(&user, Rights::ALL) {
                        Ok(view) => break view,
                        Err(_) => time.host().sleep(time.host().now() + 1000),
                    }
                };
                view.write(0, &[7; 8]).unwrap();
                used.store(time.time(), Ordering::Relaxed);
                view.revoke("bob", Rights::WRITE).unwrap();
            });
            let spec = Spec::here().named(&name).grant("bob", BOTH);
            let region = alice.malloc(64, spec).unwrap();
            let made_at = sim.time();
            task.join();
            early.fetch_add(u64::from(used_at.load(Ordering::Relaxed) < made_at), Ordering::Relaxed);
            assert_eq!(word_of(&alice.map(&name, Rights::READ).unwrap(), 0), u64::from_le_bytes([7; 8]));
            drop((region, bob));
        })
        .unwrap();
    }
    assert!(early.load(Ordering::Relaxed) > 0, "{early:?}");
}
