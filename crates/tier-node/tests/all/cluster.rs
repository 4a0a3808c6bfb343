//! Common parts: clusters of nodes, and what every fabric must do.

use dunlin_fabric::{Atomics, Fabric, Host, Scheme, Task};
use dunlin_fabric_shm::{ShmConfig, ShmFabric};
use dunlin_fabric_sim::{MachineSettings, Settings, Sim};
use dunlin_tier::RecordError;
use dunlin_tier::message::Refusal;
use dunlin_tier_node::{
    AccessError, Lmr, OperationError, Peer, RequestError, Rights, Spec, Tier, TierConfig,
};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Settings of the node `node` among `names`, whose addresses carry `tag`. The principal is the node's name.
pub(crate) fn config(scheme: Scheme, tag: &str, names: &[&str], node: &str) -> TierConfig {
    let peer = |name: &&str| {
        let mut peer = Peer::named(scheme, &format!("{tag}-{name}")).unwrap();
        peer.name = (*name).to_owned();
        peer
    };
    let mut config = TierConfig::new(names.iter().map(peer).collect(), node);
    config.principal = node.to_owned();
    config.memory = 1 << 20;
    config.timeout = Duration::from_secs(10);
    config
}

pub(crate) const NAMES: [&str; 3] = ["alice", "bob", "carol"];
pub(crate) fn start<F: Fabric>(fabric: &F, scheme: Scheme, tag: &str, name: &str) -> Tier<F> {
    Tier::within(fabric, TierConfig { paths: 4, ..config(scheme, tag, &NAMES, name) }).unwrap()
}

pub(crate) fn tag() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("locks-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Runs `body` with three nodes on shared memory.
pub(crate) fn on_shared_memory(body: impl FnOnce(&[Tier<ShmFabric>; 3])) {
    let tag = tag();
    body(&NAMES.map(|name| start(&ShmFabric::new(ShmConfig::default()).unwrap(), Scheme::Shm, &tag, name)));
}

/// Runs `body` with three nodes on machines of their own in virtual time.
pub(crate) fn in_virtual_time(seed: u64, atomics: bool, body: impl FnOnce(&[Tier<Sim>; 3]) + Send + 'static) {
    let mut settings =
        Settings { machines: vec![MachineSettings::default(); 3], preemption: 20, ..Settings::default() };
    settings.capabilities.atomics = Atomics::of_device(atomics);
    Sim::run_with(settings, seed, move |sim| {
        let tiers = [0, 1, 2].map(|at| start(&sim.process_on(at), Scheme::Sim, "l", NAMES[at]));
        body(&tiers);
    })
    .unwrap();
}

pub(crate) fn spawn<F: Fabric>(tier: &Tier<F>, body: impl FnOnce() + Send + 'static) -> Task {
    tier.fabric().host().spawn("caller", Box::new(body)).unwrap()
}

#[track_caller]
pub(crate) fn assert_absent<F: Fabric>(result: Result<Lmr<F>, RequestError>) -> String {
    match result {
        Err(RequestError::Refused { source: source @ Refusal::Record(RecordError::NoSuch), .. }) => {
            source.to_string()
        }
        other => panic!("not absent: {other:?}"),
    }
}

#[track_caller]
pub(crate) fn assert_access<T: std::fmt::Debug>(result: Result<T, OperationError>, error: AccessError) {
    match result {
        Err(OperationError::Access(found)) if found == error => {}
        other => panic!("not {error:?}: {other:?}"),
    }
}

/// Reads until the bytes are as expected: the storing node's processor may see a WRITE later than its completion.
#[track_caller]
fn sees<F: Fabric>(view: &Lmr<F>, offset: usize, expected: &[u8], pause: &dyn Fn()) {
    let mut found = vec![0xaa; expected.len()];
    for _ in 0..1000 {
        view.read(offset as u64, &mut found).unwrap();
        if found == expected {
            return;
        }
        pause();
    }
    panic!("other bytes at {offset}");
}

/// Three nodes: alice makes a region on bob's node, bob and carol use it.
pub(crate) fn regions_are_shared<F: Fabric>([alice, bob, carol]: [&Tier<F>; 3], pause: &dyn Fn()) {
    let spec = Spec::on("bob").named("graph/7").grant("bob", Rights::READ);
    let part = alice.malloc(100_000, spec).unwrap();
    assert_eq!((part.len(), part.rights()), (100_000, Ok(Rights::ALL)));
    let bytes: Vec<u8> = (0..100_000u32).map(|at| (at * 7) as u8).collect();
    part.write(0, &bytes).unwrap();

    // Bob's handle reads and nothing else; each mapping is a handle of its own.
    let view = bob.map("graph/7", Rights::READ).unwrap();
    sees(&view, 0, &bytes, pause);
    let denied = AccessError::Denied { needs: Rights::WRITE, has: Rights::READ };
    assert_access(view.write(0, b"x"), denied);
    assert_access(view.fetch_add(0, 1), denied);
    assert_access(view.memset(0, 8, 1), denied);
    let (offset, length, size) = (99_999, 2, 100_000);
    assert_access(view.read(99_999, &mut [0; 2]), AccessError::OutOfBounds { offset, length, size });
    assert!(matches!(
        bob.map("graph/7", Rights::WRITE),
        Err(RequestError::Refused { source: Refusal::Record(RecordError::Denied { .. }), .. })
    ));
    assert!(matches!(view.grant("carol", Rights::READ), Err(RequestError::Access(_))));

    // For carol, a region without a right and an absent one are the same.
    let hidden = assert_absent(carol.map("graph/7", Rights::READ));
    assert_eq!(hidden, assert_absent(carol.map("graph/8", Rights::READ)));
    part.grant("carol", Rights::READ.with(Rights::WRITE)).unwrap();
    let third = carol.map("graph/7", Rights::READ.with(Rights::WRITE)).unwrap();
    third.write(50_000, b"from carol").unwrap();
    sees(&view, 50_000, b"from carol", pause);
    sees(&part, 50_000, b"from carol", &|| panic!("a READ of another node sees a completed WRITE"));

    // Atomics of all three nodes on one word.
    assert_eq!(part.compare_swap(8, u64::from_le_bytes(bytes[8..16].try_into().unwrap()), 40).unwrap(), {
        u64::from_le_bytes(bytes[8..16].try_into().unwrap())
    });
    assert_eq!(third.fetch_add(8, 2).unwrap(), 40);
    assert_eq!(third.compare_swap(8, 40, 7).unwrap(), 42, "the word was not 40");
    assert_access(third.fetch_add(12, 1), AccessError::Misaligned(12));
    let mut word = [0; 8];
    part.read(8, &mut word).unwrap();
    assert_eq!(u64::from_le_bytes(word), 42);

    part.memset(10, 70_000, 9).unwrap();
    let (mut found, mut ten) = (vec![0; 100_000], [0; 10]);
    view.read(0, &mut found).unwrap();
    assert_eq!((found[9], found[10], found[70_009]), (word_at(&bytes, 9), 9, 9));
    assert_eq!(found[70_010..], bytes[70_010..]);

    // A name is taken until its region is freed.
    assert!(matches!(
        carol.malloc(10, Spec::here().named("graph/7")),
        Err(RequestError::Refused { source: Refusal::Record(RecordError::Taken), .. })
    ));
    part.free().unwrap();
    assert_access(view.read(0, &mut ten), AccessError::Gone);
    assert_access(third.write(0, &ten), AccessError::Gone);
    assert_absent(bob.map("graph/7", Rights::READ));
    let next = carol.malloc(100_000, Spec::on("bob").named("graph/7")).unwrap();
    next.read(0, &mut found).unwrap();
    assert!(found.iter().all(|byte| *byte == 0), "a new region is zeroed");
    next.unmap().unwrap();
    assert!(carol.map("graph/7", Rights::ALL).is_ok(), "a region with a name outlives its handles");
}

/// The word at 8 was changed to 42 by the atomics.
fn word_at(bytes: &[u8], at: usize) -> u8 {
    if (8..16).contains(&at) { 42u64.to_le_bytes()[at - 8] } else { bytes[at] }
}

/// Reads and writes at many offsets of a region that is spread over nodes, against a model.
pub(crate) fn spread_regions_do_what_memory_does<F: Fabric>(
    [alice, bob, carol]: [&Tier<F>; 3],
    rounds: u32,
    pause: &dyn Fn(),
) {
    let length = 50_001;
    let spec = Spec::spread(["carol", "alice", "bob"]).named("spread").grant_anyone(Rights::READ);
    let region = alice.malloc(length as u64, spec).unwrap();
    let views = [bob.map("spread", Rights::READ).unwrap(), carol.map("spread", Rights::READ).unwrap()];
    let mut model = vec![0; length];
    let mut draw = 12345u64;
    let mut below = |limit: usize| {
        draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (draw >> 33) as usize % limit
    };
    for round in 0..rounds {
        let offset = below(length);
        let count = below([2, 100, 9000, length][round as usize % 4]).min(length - offset);
        let bytes: Vec<u8> = (0..count).map(|at| (at as u32 * 31 + round) as u8).collect();
        region.write(offset as u64, &bytes).unwrap();
        model[offset..offset + count].copy_from_slice(&bytes);
        let (offset, view) = (below(length), &views[round as usize % 2]);
        let count = below(9000).min(length - offset);
        sees(view, offset, &model[offset..offset + count], pause);
    }
    for view in views {
        sees(&view, 0, &model, pause);
    }
    region.free().unwrap();
}

/// Copies between regions on different nodes and within one, against a model.
pub(crate) fn copies_are_those_of_memory<F: Fabric>(
    [alice, bob, carol]: [&Tier<F>; 3],
    rounds: usize,
    pause: &dyn Fn(),
) {
    let length = 200_000;
    let spread = alice.malloc(length as u64, Spec::spread(["carol", "bob"])).unwrap();
    let spec = Spec::on("bob").named("target").grant("carol", Rights::READ);
    let whole = alice.malloc(length as u64, spec).unwrap();
    let mut models: Vec<Vec<u8>> = vec![(0..length).map(|at| (at * 13) as u8).collect(), vec![7; length]];
    spread.write(0, &models[0]).unwrap();
    whole.memset(0, length as u64, 7).unwrap();
    let regions = [&spread, &whole];
    for (offset, target, count) in [
        (0, 0, 200_000),
        (1, 70_001, 100_000),
        (70_001, 3, 100_000),
        (5, 5, 1000),
        (4000, 4100, 9000),
        (4100, 4000, 9000),
        (199_999, 0, 1),
        (77, 78, 0),
    ]
    .into_iter()
    .take(rounds)
    {
        for (from, to) in [(0, 1), (1, 0), (0, 0), (1, 1)] {
            // The nodes that store the source read it with their processors.
            pause();
            let (source, place) = (regions[from].at(offset as u64), regions[to].at(target as u64));
            let result = alice.memcpy(place, source, count as u64);
            result.unwrap_or_else(|error| panic!("{offset} to {target}, {count} bytes: {error:?}"));
            if from == to {
                models[from].copy_within(offset..offset + count, target);
            } else {
                let bytes = models[from][offset..offset + count].to_vec();
                models[to][target..target + count].copy_from_slice(&bytes);
            }
            sees(regions[to], 0, &models[to], pause);
        }
    }
    let (offset, length, size) = (199_999, 2, 200_000);
    let out = AccessError::OutOfBounds { offset, length, size };
    assert_access(alice.memcpy(whole.at(199_999), spread.at(0), 2), out);
    assert_access(alice.memcpy(whole.at(0), spread.at(199_999), 2), out);
    assert_access(
        alice.memcpy(whole.at(u64::MAX - 3), spread.at(0), 8),
        AccessError::OutOfBounds { offset: u64::MAX - 3, length: 8, size },
    );
    let own = carol.malloc(100, Spec::here()).unwrap();
    let view = carol.map("target", Rights::READ).unwrap();
    let denied = AccessError::Denied { needs: Rights::WRITE, has: Rights::READ };
    assert_access(carol.memcpy(view.at(0), own.at(0), 100), denied);
    // A handle of another node is none of this one's.
    assert_access(carol.memcpy(whole.at(0), own.at(0), 100), AccessError::NoHandle);
    assert_access(carol.memcpy(own.at(0), whole.at(0), 100), AccessError::NoHandle);
    carol.memcpy(own.at(0), view.at(0), 100).unwrap();
    sees(&own, 0, &models[1][..100], pause);
    sees(&whole, 0, &models[1], pause);
    drop((spread, whole));
    let _ = bob;
}
