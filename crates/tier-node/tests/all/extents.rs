//! Memory of several extents, and its pages.

use crate::cluster::{NAMES, config, copies_are_those_of_memory, spread_regions_do_what_memory_does};
use dunlin_fabric::{Atomics, Scheme};
use dunlin_fabric_shm::{ShmConfig, ShmFabric};
use dunlin_fabric_sim::{MachineSettings, Settings, Sim};
use dunlin_tier_node::{JoinError, Progress, Spec, Tier, TierConfig};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const MIB: u64 = 1 << 20;

fn tag(what: &str) -> String {
    format!("extents-{what}-{}", std::process::id())
}

/// Starts a node by itself.
fn alone(what: &str, change: impl FnOnce(&mut TierConfig)) -> Result<Tier<ShmFabric>, JoinError> {
    let mut config = config(Scheme::Shm, &tag(what), &["alone"], "alone");
    change(&mut config);
    Tier::within(&ShmFabric::new(ShmConfig::default()).unwrap(), config)
}

/// Regions whose pieces are in all extents of three nodes.
#[test]
fn regions_of_many_extents_do_what_memory_does() {
    let tag = tag("spread");
    let tiers = NAMES.map(|name| {
        let mut config = config(Scheme::Shm, &tag, &NAMES, name);
        (config.piece, config.step, config.extent) = (4096, 1000, Some(8192));
        Tier::within(&ShmFabric::new(ShmConfig::default()).unwrap(), config).unwrap()
    });
    let [alice, bob, carol] = &tiers;
    assert_eq!(alice.extents(), 128);
    let free = bob.free_memory();
    // Everything but two blocks: what follows uses the last extents, too.
    let full = bob.malloc(free - 400 * 1024, Spec::on("bob")).unwrap();
    spread_regions_do_what_memory_does([alice, bob, carol], 100, &std::thread::yield_now);
    copies_are_those_of_memory([alice, bob, carol], 4, &std::thread::yield_now);
    drop(full);
}

#[test]
fn regions_of_many_extents_do_what_memory_does_in_virtual_time() {
    for atomics in [true, false] {
        let mut settings = Settings { machines: vec![MachineSettings::default(); 3], ..Settings::default() };
        settings.capabilities.atomics = Atomics::of_device(atomics);
        Sim::run_with(settings, 1, |sim| {
            let tiers = [0, 1, 2].map(|at| {
                let mut config = config(Scheme::Sim, "e", &NAMES, NAMES[at]);
                (config.piece, config.step, config.extent) = (4096, 1000, Some(65536));
                Tier::within(&sim.process_on(at), config).unwrap()
            });
            let [alice, bob, carol] = &tiers;
            assert_eq!(alice.extents(), 16);
            spread_regions_do_what_memory_does([alice, bob, carol], 50, &|| {});
        })
        .unwrap();
    }
}

/// The whole memory can be one region, whatever its extents, and memory comes back whole.
#[test]
fn one_region_fills_all_extents() {
    let tier = alone("whole", |config| config.memory = 22 * MIB).unwrap();
    assert_eq!((tier.extents(), tier.memory()), (6, 22 * MIB), "4 MiB, as a piece; the last has 2");
    for _ in 0..2 {
        let region = tier.malloc(22 * MIB, Spec::here()).unwrap();
        let mut last = [1];
        region.read(22 * MIB - 1, &mut last).unwrap();
        assert_eq!((last, tier.free_memory()), ([0], 0));
        region.write(20 * MIB - 4, &[7; 8]).unwrap();
        region.free().unwrap();
    }
}

#[test]
fn extents_that_cannot_be_are_refused() {
    for (extent, memory) in [(3 * MIB, 8 * MIB), (MIB, 8 * MIB), (0, 8 * MIB), (4 * MIB, 1025 * MIB)] {
        match alone("refused", |config| (config.extent, config.memory) = (Some(extent), memory)) {
            Err(JoinError::Setting { what: "extent", value, .. }) => assert_eq!(value, extent),
            other => panic!("{extent} of {memory}: {other:?}"),
        }
    }
}

#[test]
fn all_memory_gets_pages_before_the_node_runs() {
    let last = Arc::new(AtomicU64::new(0));
    let heard = Arc::clone(&last);
    let tier = alone("prefault", |config| {
        (config.memory, config.prefault) = (40 * MIB, true);
        config.progress = Some(Progress::new(move |done, all| {
            assert!(done <= all && all == 40 * MIB);
            heard.fetch_max(done, Ordering::Relaxed);
        }));
    })
    .unwrap();
    assert_eq!(last.load(Ordering::Relaxed), 40 * MIB);
    assert_eq!(tier.pages().unwrap().total(), 40 * MIB);
    assert_eq!(tier.free_memory(), 40 * MIB);
}

#[test]
fn memory_that_the_machine_does_not_have_is_refused_before_it_is_touched() {
    let result = alone("huge", |config| (config.memory, config.prefault) = (1 << 45, true));
    match result {
        Err(JoinError::Memory { wanted, available }) => assert!(wanted > available),
        other => panic!("{other:?}"),
    }
}
