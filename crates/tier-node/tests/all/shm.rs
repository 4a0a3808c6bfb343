//! Nodes on shared memory, each with a fabric of its own, as in processes of their own.

use crate::cluster::{
    assert_absent, assert_access, config, copies_are_those_of_memory, regions_are_shared,
    spread_regions_do_what_memory_does,
};
use dunlin_fabric::Scheme;
use dunlin_fabric_shm::{ShmConfig, ShmFabric};
use dunlin_tier_node::{AccessError, RequestError, Rights, Spec, Tier, TierConfig};
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const NAMES: [&str; 3] = ["alice", "bob", "carol"];

/// Starts three nodes; `change` changes their settings.
fn cluster(change: impl Fn(&mut TierConfig)) -> [Tier<ShmFabric>; 3] {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let tag = format!("{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    NAMES.map(|name| {
        let mut config = config(Scheme::Shm, &tag, &NAMES, name);
        change(&mut config);
        Tier::within(&ShmFabric::new(ShmConfig::default()).unwrap(), config).unwrap()
    })
}

#[test]
fn regions_are_shared_between_nodes() {
    let [alice, bob, carol] = &cluster(|_| {});
    regions_are_shared([alice, bob, carol], &std::thread::yield_now);
}

#[test]
fn spread_regions() {
    let [alice, bob, carol] = &cluster(|config| (config.piece, config.step) = (4096, 1000));
    spread_regions_do_what_memory_does([alice, bob, carol], 400, &std::thread::yield_now);
}

#[test]
fn copies() {
    let [alice, bob, carol] = &cluster(|config| config.piece = 4096);
    copies_are_those_of_memory([alice, bob, carol], 8, &std::thread::yield_now);
}

/// Threads of two nodes write until the region is freed under them. The memory is given out again at once, and nobody
/// writes into it.
#[test]
fn a_free_under_writers_stops_them_before_the_memory_is_used_again() {
    let [alice, bob, carol] = &cluster(|config| config.memory = 1 << 16);
    for round in 0..20 {
        let spec = Spec::on("alice").named("hot").grant_anyone(Rights::WRITE);
        let region = alice.malloc(1 << 16, spec).unwrap();
        let (begun, mapped) = (AtomicU64::new(0), Barrier::new(5));
        std::thread::scope(|scope| {
            for tier in [bob, bob, carol, carol] {
                let (begun, mapped) = (&begun, &mapped);
                scope.spawn(move || {
                    let view = tier.map("hot", Rights::WRITE).unwrap();
                    mapped.wait();
                    let bytes = [0xff; 5000];
                    for number in 0u64.. {
                        if let Err(error) = view.write(number * 4999 % (60_000), &bytes) {
                            assert_access::<()>(Err(error), AccessError::Gone);
                            return;
                        }
                        begun.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            mapped.wait();
            while begun.load(Ordering::Relaxed) < 20 {
                std::thread::yield_now();
            }
            region.free().unwrap();
            // All the memory there is.
            let next = alice.malloc(1 << 16, Spec::here()).unwrap();
            let mut found = vec![1; 1 << 16];
            for _ in 0..20 {
                next.read(0, &mut found).unwrap();
                assert!(found.iter().all(|byte| *byte == 0), "round {round}");
                std::thread::yield_now();
            }
        });
        // The unnamed region ended with its handle; the keeper takes its memory back.
        wait_for(|| alice.free_memory() == 1 << 16);
    }
}

#[track_caller]
fn wait_for(mut condition: impl FnMut() -> bool) {
    for _ in 0..10_000 {
        if condition() {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("it does not become true");
}

#[test]
fn no_operation_changes_a_neighbour() {
    let [alice, bob, _] = &cluster(|config| config.step = 100);
    let regions: Vec<_> = (0..9).map(|_| bob.malloc(700, Spec::on("alice")).unwrap()).collect();
    for (number, region) in regions.iter().enumerate() {
        region.write(0, &[number as u8; 700]).unwrap();
    }
    for region in regions.iter().skip(1).step_by(2) {
        for (offset, length) in
            [(0, 701), (700, 1), (701, 0), (u64::MAX, 2), (u64::MAX - 3, 8), (1, usize::MAX >> 44)]
        {
            let bytes = vec![0xee; length];
            let error = AccessError::OutOfBounds { offset, length: length as u64, size: 700 };
            assert_access(region.write(offset, &bytes), error);
            assert_access(region.memset(offset, length as u64, 0xee), error);
        }
        for offset in [696, 704, u64::MAX - 7] {
            let error = AccessError::OutOfBounds { offset, length: 8, size: 700 };
            assert_access(region.fetch_add(offset, 1), error);
        }
        region.write(0, &[0xcc; 700]).unwrap();
        region.memset(0, 700, 0xdd).unwrap();
        region.fetch_add(688, 1).unwrap();
        region.write(700, &[]).unwrap();
    }
    for (number, region) in regions.iter().enumerate().step_by(2) {
        let mut found = [0; 700];
        region.read(0, &mut found).unwrap();
        assert!(found.iter().all(|byte| *byte == number as u8), "region {number}");
    }
    assert_eq!(alice.free_memory() + 9 * 1024, 1 << 20);
}

#[test]
fn memory_is_bounded_and_comes_back() {
    let [_alice, bob, _] = &cluster(|_| {});
    for _ in 0..5 {
        let region = bob.malloc(1 << 20, Spec::on("alice")).unwrap();
        region.write((1 << 20) - 3, b"end").unwrap();
        let error = bob.malloc(1, Spec::on("alice")).unwrap_err();
        assert!(matches!(error, RequestError::Refused { .. }), "{error}");
        region.free().unwrap();
    }
    // Half of a spread region fits: nothing of it stays.
    let _half = bob.malloc(600_000, Spec::on("alice")).unwrap();
    assert!(bob.malloc(1_500_000, Spec::spread(["bob", "alice"])).is_err());
    assert_eq!(bob.free_memory() + bob.dirty_memory(), 1 << 20);
    assert!(matches!(bob.malloc(0, Spec::here()), Err(RequestError::Length(0))));
    assert!(matches!(bob.malloc(u64::MAX, Spec::here()), Err(RequestError::Length(u64::MAX))));
    assert!(matches!(bob.malloc(1, Spec::on("dave")), Err(RequestError::NoNode(_))));
    for name in ["".to_owned(), "x".repeat(256)] {
        assert!(matches!(bob.malloc(1, Spec::here().named(&name)), Err(RequestError::Name(_))));
        assert!(matches!(bob.map(&name, Rights::READ), Err(RequestError::Name(_))));
    }
    assert!(bob.malloc(1, Spec::here().named("y".repeat(255))).is_ok());
}

#[test]
fn a_master_frees_from_another_node_and_one_without_the_right_does_not() {
    let [alice, bob, carol] = &cluster(|_| {});
    let rights = Rights::READ.with(Rights::MASTER);
    let spec = Spec::on("carol").named("x").grant("bob", rights).grant("carol", Rights::READ);
    let region = alice.malloc(100, spec).unwrap();
    let weak = carol.map("x", Rights::READ).unwrap();
    assert!(matches!(weak.free(), Err(RequestError::Access(AccessError::Denied { .. }))));
    let strong = bob.map("x", rights).unwrap();
    // A master grants what it has, and no more.
    assert!(matches!(strong.grant("carol", Rights::WRITE), Err(RequestError::Refused { .. })));
    strong.grant("carol", rights).unwrap();
    strong.free().unwrap();
    assert_access(region.read(0, &mut [0]), AccessError::Gone);
    assert_absent(carol.map("x", rights));
}

#[test]
fn atomics_of_all_nodes_and_threads_add_up() {
    let [alice, bob, carol] = &cluster(|_| {});
    let region = alice.malloc(64, Spec::on("bob").named("n").grant_anyone(Rights::ALL)).unwrap();
    std::thread::scope(|scope| {
        for tier in [alice, bob, carol, bob] {
            scope.spawn(move || {
                let view = tier.map("n", Rights::WRITE).unwrap();
                (0..2000).for_each(|_| assert!(view.fetch_add(16, 3).is_ok()));
            });
        }
    });
    assert_eq!(region.fetch_add(16, 0).unwrap(), 4 * 2000 * 3);
    assert_eq!(region.fetch_add(24, 0).unwrap(), 0);
}

#[test]
fn a_node_that_ends_takes_its_memory_with_it_and_a_new_one_is_used() {
    let names = NAMES;
    let tag = format!("{}-restart", std::process::id());
    let start = |name: &str| {
        let mut config = config(Scheme::Shm, &tag, &names, name);
        config.timeout = Duration::from_secs(2);
        Tier::within(&ShmFabric::new(ShmConfig::default()).unwrap(), config).unwrap()
    };
    let (alice, bob) = (start("alice"), start("bob"));
    let region = alice.malloc(100, Spec::on("bob")).unwrap();
    region.write(0, b"before").unwrap();
    drop(bob);
    wait_for(|| region.write(0, b"after").is_err());
    let bob = start("bob");
    wait_for(|| {
        let error = region.write(0, b"again").unwrap_err();
        matches!(error, dunlin_tier_node::OperationError::Access(AccessError::Gone))
    });
    let next = alice.malloc(100, Spec::on("bob")).unwrap();
    next.write(0, b"again").unwrap();
    assert_eq!(bob.free_memory(), (1 << 20) - 128);
}
