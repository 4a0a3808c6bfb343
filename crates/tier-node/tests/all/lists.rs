//! Lists of operations, operations with a time of their own, and words that are written after bytes.

use crate::cluster::{NAMES, assert_access, config};
use dunlin_fabric::{Atomics, Capabilities, Fabric, Host, Scheme, Signal};
use dunlin_fabric_shm::{ShmConfig, ShmFabric};
use dunlin_fabric_sim::{MachineSettings, Settings, Sim};
use dunlin_tier_node::{
    AccessError, Buffer, BufferError, Done, ListError, Lmr, OperationError, Operations, Rights, Spec, Tier,
    TierConfig,
};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Pieces of 4096 bytes, requests of 1000.
fn small(scheme: Scheme, tag: &str, name: &str) -> TierConfig {
    let mut config = config(scheme, tag, &NAMES, name);
    (config.piece, config.step, config.timeout) = (4096, 1000, Duration::from_secs(5));
    config
}

fn on_shared_memory() -> [Tier<ShmFabric>; 3] {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let tag = format!("lists-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    NAMES.map(|name| {
        Tier::within(&ShmFabric::new(ShmConfig::default()).unwrap(), small(Scheme::Shm, &tag, name)).unwrap()
    })
}

/// Runs `body` with three nodes on machines of their own.
fn in_virtual_time(
    seed: u64,
    change: impl Fn(&mut Capabilities),
    body: impl FnOnce(&Sim, [Tier<Sim>; 3]) + Send + 'static,
) {
    let mut settings = Settings { machines: vec![MachineSettings::default(); 3], ..Settings::default() };
    change(&mut settings.capabilities);
    Sim::run_with(settings, seed, move |sim| {
        let tiers = [0, 1, 2]
            .map(|at| Tier::within(&sim.process_on(at), small(Scheme::Sim, "l", NAMES[at])).unwrap());
        body(&sim, tiers);
    })
    .unwrap();
}

/// The length of a drawn operation at most; each has a place of its own, so that a list has one outcome only.
const PLACE: usize = 1504;
/// Places of operations in a region. As many behind them are sources of copies.
const PLACES: usize = 32;

/// A drawn operation.
#[derive(Clone, Copy, Debug)]
struct Drawn {
    region: usize,
    place: usize,
    kind: usize,
    length: usize,
    value: u64,
}

fn drawn() -> impl Strategy<Value = Vec<Drawn>> {
    let one = (0usize..2, 0usize..PLACES, 0usize..8, 0usize..PLACE, 0u64..4)
        .prop_map(|(region, place, kind, length, value)| Drawn { region, place, kind, length, value });
    prop::collection::vec(one, 0..64).prop_map(|mut list| {
        let mut used = std::collections::BTreeSet::new();
        list.retain(|one| used.insert((one.region, one.place)));
        // Those with buffers are added together.
        list.sort_by_key(|one| one.kind.max(5));
        list
    })
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

/// Runs a list, and does the same to the models. One buffer is written from, the other one read into.
fn run_drawn<F: Fabric>(
    regions: [&Lmr<F>; 2],
    models: &mut [Vec<u8>; 2],
    [full, empty]: &mut [Buffer<F>; 2],
    list: &[Drawn],
) {
    full.iter_mut().enumerate().for_each(|(at, byte)| *byte = (at * 7) as u8);
    empty.fill(0xaa);
    let range = |at: usize, one: &Drawn| at * PLACE..at * PLACE + one.length;
    let in_place = |kind: usize| {
        let these = list.iter().enumerate().filter(move |(_, one)| one.kind == kind);
        these.map(move |(at, one)| (regions[one.region], (one.place * PLACE) as u64, range(at, one)))
    };
    let source = |one: &Drawn| (PLACES + (one.place + one.value as usize) % PLACES) * PLACE;
    let bytes: Vec<Vec<u8>> = list.iter().map(|one| vec![one.value as u8 + 1; one.length]).collect();
    let mut found: Vec<Vec<u8>> = list.iter().map(|one| vec![0xaa; one.length]).collect();
    let mut operations = Operations::new();
    for ((one, bytes), found) in list.iter().zip(&bytes).zip(&mut found) {
        let (region, offset) = (regions[one.region], (one.place * PLACE) as u64);
        operations = match one.kind {
            0 => operations.read(region, offset, found),
            1 => operations.write(region, offset, bytes),
            2 => operations.fetch_add(region, offset, one.value),
            3 => operations.compare_swap(region, offset, one.value, 9),
            4 => operations.memset(region, offset, one.length as u64, one.value as u8 + 5),
            5 => {
                let from = regions[1 - one.region].at(source(one) as u64);
                operations.memcpy(region.at(offset), from, one.length as u64)
            }
            _ => break,
        };
    }
    operations = operations.write_from_each(full, in_place(6)).read_into_each(empty, in_place(7));
    let outcomes = operations.run().unwrap();
    assert_eq!(outcomes.len(), list.len());
    for (place, (one, outcome)) in list.iter().zip(outcomes).enumerate() {
        let (bytes, found, range) = (&bytes[place], &found[place], range(place, one));
        let at = one.place * PLACE;
        let copied = models[1 - one.region][source(one)..][..one.length].to_vec();
        let model = &mut models[one.region];
        let old = word(model, at);
        let mut now = |bytes: &[u8]| {
            model[at..at + one.length].copy_from_slice(bytes);
            None
        };
        let new = match one.kind {
            0 => {
                assert_eq!(*found, model[at..at + one.length], "{one:?}");
                None
            }
            1 => now(bytes),
            2 => Some(old.wrapping_add(one.value)),
            3 => Some(if old == one.value { 9 } else { old }),
            4 => now(&vec![one.value as u8 + 5; one.length]),
            5 => now(&copied),
            6 => now(&full[range]),
            _ => {
                assert_eq!(empty[range], model[at..at + one.length], "{one:?}");
                None
            }
        };
        if let Some(new) = new {
            models[one.region][at..at + 8].copy_from_slice(&new.to_le_bytes());
        }
        assert_eq!(outcome.unwrap().old(), new.map(|_| old), "{one:?}");
    }
}

/// Lists over regions of all three nodes, against a model. The reader of a write must not be the processor that stores the
/// bytes, which may see a WRITE later: `pause` waits for that.
fn lists_do_what_memory_does<F: Fabric>(tiers: &[Tier<F>; 3], cases: u32, pause: &dyn Fn()) {
    let length = 2 * PLACES * PLACE;
    let spread = tiers[0].malloc(length as u64, Spec::spread(["carol", "alice", "bob"])).unwrap();
    let whole = tiers[0].malloc(length as u64, Spec::on("bob")).unwrap();
    let source: Vec<u8> = (0..length).map(|at| (at * 13 / 5) as u8).collect();
    for region in [&spread, &whole] {
        region.write(0, &source).unwrap();
    }
    pause();
    let models = std::cell::RefCell::new([source.clone(), source]);
    let buffers = [0; 2].map(|_| tiers[0].buffer(2 * PLACES * PLACE).unwrap());
    let buffers = std::cell::RefCell::new(buffers);
    let settings = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
    let mut runner = TestRunner::new_with_rng(
        settings,
        prop::test_runner::TestRng::deterministic_rng(prop::test_runner::RngAlgorithm::ChaCha),
    );
    runner
        .run(&drawn(), |list| {
            let (models, buffers) = (&mut models.borrow_mut(), &mut buffers.borrow_mut());
            run_drawn([&spread, &whole], models, buffers, &list);
            pause();
            Ok(())
        })
        .unwrap();
    for (region, model) in [&spread, &whole].into_iter().zip(models.borrow().iter()) {
        let mut found = vec![0; length];
        region.read(0, &mut found).unwrap();
        assert_eq!(found, *model);
    }
}

#[test]
fn lists_on_shared_memory() {
    lists_do_what_memory_does(&on_shared_memory(), 300, &|| {});
}

#[test]
fn lists_in_virtual_time() {
    for (seed, atomics) in [(1, true), (2, true), (3, false)] {
        in_virtual_time(
            seed,
            move |has| has.atomics = Atomics::of_device(atomics),
            |sim, tiers| {
                let host = sim.host();
                lists_do_what_memory_does(&tiers, 40, &|| host.sleep(host.now() + 20_000));
            },
        );
    }
}

#[track_caller]
fn refused_at(result: Result<dunlin_tier_node::Outcomes, ListError>, at: usize) -> OperationError {
    match result {
        Err(ListError::Refused { place, source }) if place == at => source,
        other => panic!("not refused at {at}: {other:?}"),
    }
}

#[test]
fn one_refused_operation_refuses_the_list() {
    let [alice, bob, _] = &on_shared_memory();
    let spec = Spec::spread(["bob", "alice"]).named("x").grant("bob", Rights::READ);
    let region = alice.malloc(20_000, spec).unwrap();
    let weak = bob.map("x", Rights::READ).unwrap();
    let other = bob.malloc(100, Spec::here()).unwrap();
    let (mut byte, bytes) = ([0], [7; 20_000]);
    let denied = AccessError::Denied { needs: Rights::WRITE, has: Rights::READ };
    let list = Operations::new().write(&other, 0, b"x").read(&weak, 0, &mut byte).fetch_add(&weak, 0, 1);
    assert_access::<()>(Err(refused_at(list.run(), 2)), denied);
    for offset in [19_999, 20_001, u64::MAX, u64::MAX - 1] {
        let list = Operations::new().write(&region, 0, &bytes).write(&region, offset, b"xy");
        let error = AccessError::OutOfBounds { offset, length: 2, size: 20_000 };
        assert_access::<()>(Err(refused_at(list.run(), 1)), error);
    }
    let list = Operations::new().write(&region, 0, &bytes).compare_swap(&region, 12, 0, 1);
    assert_access::<()>(Err(refused_at(list.run(), 1)), AccessError::Misaligned(12));
    let foreign = Operations::new().write(&region, 0, &bytes).write(&other, 0, b"x").run();
    assert!(matches!(foreign, Err(ListError::OtherTier { place: 1 })), "{foreign:?}");
    let foreign = Operations::new().memset(&region, 0, 9, 1).memcpy(other.at(0), region.at(0), 9).run();
    assert!(matches!(foreign, Err(ListError::OtherTier { place: 1 })), "{foreign:?}");
    // Commands, and both ends of a copy.
    let outside = |offset| AccessError::OutOfBounds { offset, length: 9, size: 20_000 };
    let list = Operations::new().write(&region, 0, &bytes).memset(&region, 19_992, 9, 1);
    assert_access::<()>(Err(refused_at(list.run(), 1)), outside(19_992));
    let list = Operations::new().memset(&region, 0, 9, 1).memcpy(region.at(19_992), region.at(0), 9);
    assert_access::<()>(Err(refused_at(list.run(), 1)), outside(19_992));
    let list = Operations::new().memset(&region, 0, 9, 1).memcpy(region.at(0), region.at(u64::MAX), 9);
    assert_access::<()>(Err(refused_at(list.run(), 1)), outside(u64::MAX));
    let list = Operations::new().write(&other, 0, b"x").memset(&weak, 0, 1, 1);
    assert_access::<()>(Err(refused_at(list.run(), 1)), denied);
    let list = Operations::new().write(&other, 0, b"x").memcpy(weak.at(0), other.at(0), 1);
    assert_access::<()>(Err(refused_at(list.run(), 1)), denied);
    // Buffers.
    let (mut theirs, mut own) = (bob.buffer(100).unwrap(), alice.buffer(100).unwrap());
    own.fill(3);
    let list = Operations::new().write_from(&region, 0, &mut own, ..).read_into(&region, 0, &mut theirs, ..);
    assert!(matches!(refused_at(list.run(), 1), OperationError::Buffer(BufferError::OtherTier)));
    for range in [0..101, 101..101, std::ops::Range { start: 5, end: 4 }] {
        let parts = [(&region, 0, 0..9), (&region, 0, range)];
        let list = Operations::new().write_from_each(&mut own, parts);
        let outside = refused_at(list.run(), 1);
        assert!(
            matches!(outside, OperationError::Buffer(BufferError::Outside { size: 100, .. })),
            "{outside}"
        );
    }
    let list =
        Operations::new().write_from(&region, 0, &mut own, ..).read_into(&region, 19_901, &mut theirs, ..);
    assert!(matches!(refused_at(list.run(), 1), OperationError::Buffer(BufferError::OtherTier)));
    let list = Operations::new().write_from(&region, 19_901, &mut own, ..);
    let (offset, length, size) = (19_901, 100, 20_000);
    assert_access::<()>(Err(refused_at(list.run(), 0)), AccessError::OutOfBounds { offset, length, size });
    assert_eq!(own[..], [3; 100], "the buffer is as before");
    // Nothing was written.
    let mut found = vec![1; 20_000];
    region.read(0, &mut found).unwrap();
    assert!(found.iter().all(|byte| *byte == 0));

    let many = |count| (0..count).fold(Operations::new(), |list, _| list.fetch_add(&region, 8, 1));
    assert!(matches!(many(1025).run(), Err(ListError::TooMany { count: 1025 })));
    let sums = many(1024).run().unwrap();
    let mut olds: Vec<u64> = sums.into_iter().map(|sum| sum.unwrap().old().unwrap()).collect();
    olds.sort_unstable();
    assert!(olds.into_iter().eq(0..1024), "each addition happened once");
    let long = vec![0; 1 << 20];
    let list = (0..65).fold(Operations::new(), |list, _| list.write(&region, 0, &long));
    assert!(matches!(list.run(), Err(ListError::TooLong { bytes }) if bytes == 65 << 20));
    let list = Operations::new().memset(&region, 0, 64 << 20, 1).memcpy(region.at(0), region.at(0), 1);
    assert!(matches!(list.run(), Err(ListError::TooLong { bytes }) if bytes == (64 << 20) + 1));
    let list = Operations::new().memset(&region, 0, u64::MAX, 1).memset(&region, 0, u64::MAX, 1);
    assert!(matches!(list.run(), Err(ListError::TooLong { bytes: u64::MAX })));
    assert_eq!(Operations::<ShmFabric>::new().run().unwrap().len(), 0);

    // Operations on a region that is freed are refused.
    let second = alice.malloc(100, Spec::on("bob")).unwrap();
    region.free().unwrap();
    let mut bytes = [0; 8];
    let list = Operations::new().write(&other, 0, b"x").read(&weak, 0, &mut bytes);
    assert_access::<()>(Err(refused_at(list.run(), 1)), AccessError::Gone);
    assert_eq!(Operations::new().write(&second, 0, b"x").run().unwrap()[0].as_ref().unwrap(), &Done::Moved);
}

/// The time of an operation ends while it is under way, before it begins, and never.
#[test]
fn the_time_of_an_operation_is_its_own() {
    for seed in 0..4 {
        in_virtual_time(
            seed,
            |_| {},
            |_, tiers| {
                let region = tiers[0].malloc(30_000, Spec::spread(["bob", "carol"])).unwrap();
                let none = region.within(Duration::ZERO);
                let (mut bytes, from) = (vec![0; 9000], vec![8; 9000]);
                let not_begun = |result: Result<(), OperationError>| {
                    let error = result.unwrap_err();
                    assert!(error.is_deadline() && !error.may_have_executed(), "{error:?}");
                    assert!(error.to_string().contains("was not executed"), "{error}");
                };
                not_begun(none.write(0, &from));
                not_begun(none.read(0, &mut bytes));
                not_begun(none.fetch_add(0, 1).map(drop));
                not_begun(none.compare_swap(0, 0, 1).map(drop));
                not_begun(none.memset(0, 30_000, 1));
                not_begun(tiers[0].memcpy_within(Duration::ZERO, region.at(200), region.at(0), 100));
                not_begun(none.write_notify(0, &from, 16_000, 1));
                let list =
                    Operations::new().write(&region, 0, &from).within(Duration::ZERO).run().unwrap_err();
                assert!(list.is_deadline(), "{list:?}");
                region.read(0, &mut bytes).unwrap();
                assert!(bytes.iter().all(|byte| *byte == 0), "nothing was executed");

                // The path is connected: the operation is posted, and its time is over.
                region.write(0, &from).unwrap();
                let error = region.within(Duration::from_nanos(1)).write(0, &from).unwrap_err();
                assert!(error.is_deadline() && error.may_have_executed(), "{error:?}");
                assert!(error.to_string().contains("may have been executed"), "{error}");
                region.write(0, &from).unwrap();
                let outcomes = Operations::new()
                    .write(&region, 0, &from)
                    .fetch_add(&region, 16_000, 1)
                    .memset(&region, 0, 100, 9)
                    .memcpy(region.at(200), region.at(0), 100)
                    .within(Duration::from_nanos(1))
                    .run();
                let ended = |outcome: &Result<Done, OperationError>| {
                    outcome.as_ref().is_err_and(OperationError::is_deadline)
                };
                let outcomes = outcomes.unwrap();
                assert!(outcomes.iter().all(ended));
                // Commands begin after the others.
                assert!(outcomes[2..].iter().all(|outcome| match outcome {
                    Err(error) => !error.may_have_executed(),
                    Ok(_) => false,
                }));
                // A failed operation leaves nothing behind.
                for time in [Duration::MAX, Duration::from_secs(3)] {
                    let view = region.within(time);
                    view.memset(0, 30_000, 3).unwrap();
                    view.fetch_add(20_000, 5).unwrap();
                    tiers[0].memcpy_within(time, region.at(20_008), region.at(0), 8000).unwrap();
                    view.read(0, &mut bytes).unwrap();
                    view.write_notify(0, &from, 16_000, 1).unwrap();
                }
                let list = Operations::new().read(&region, 0, &mut bytes).within(Duration::MAX);
                list.run().unwrap().into_iter().for_each(|outcome| assert_eq!(outcome.unwrap(), Done::Moved));
                assert_eq!(bytes, from);
            },
        );
    }
}

/// A node is killed while lists run that use it and another one.
#[test]
fn a_node_that_dies_during_lists_fails_its_own_operations() {
    let mut kinds = [0; 3];
    for seed in 0..24 {
        let settings = Settings { machines: vec![MachineSettings::default(); 3], ..Settings::default() };
        let counted = std::sync::Arc::new(std::sync::Mutex::new([0; 3]));
        let count = std::sync::Arc::clone(&counted);
        Sim::run_with(settings, seed, move |sim| {
            let processes = [0, 1, 2].map(|machine| sim.process_on(machine));
            let quick = |name: &str| TierConfig {
                timeout: Duration::from_millis(50),
                ..small(Scheme::Sim, "d", name)
            };
            let alice = Tier::within(&processes[0], quick("alice")).unwrap();
            let _bob = Tier::within(&processes[1], quick("bob")).unwrap();
            let (third, ready) = (processes[2].clone(), sim.host().signal());
            let (started, forever) = (ready.clone(), sim.host().signal());
            let _killed = processes[2].host().spawn(
                "carol",
                Box::new(move || {
                    let _carol = Tier::within(&third, quick("carol")).unwrap();
                    started.raise();
                    forever.wait(0, u64::MAX);
                }),
            );
            ready.wait(0, u64::MAX);
            let near = alice.malloc(64_000, Spec::on("bob")).unwrap();
            let far = alice.malloc(64_000, Spec::on("carol")).unwrap();
            // Its first half is bob's.
            let both = alice.malloc(8192, Spec::spread(["bob", "carol"])).unwrap();
            let host = processes[0].host().clone();
            let victim = processes[2].clone();
            let clock = sim.host().clone();
            let _killer = sim.host().spawn(
                "killer",
                Box::new(move || {
                    clock.sleep(clock.now() + 100_000 + seed * 17_000);
                    victim.kill();
                }),
            );
            let (mut last, mut failures) = (0, 0);
            for round in 1..=200u8 {
                let bytes = [round; 3000];
                let outcomes = (0..8u64)
                    .fold(Operations::new(), |list, at| {
                        list.write(&near, at * 3000, &bytes).write(&far, at * 3000, &bytes)
                    })
                    .write(&both, 4000, &bytes[..200])
                    .memset(&far, 60_000, 8, round)
                    .memset(&near, 60_000, 8, round)
                    .memcpy(near.at(61_000), far.at(60_000), 8)
                    .run();
                let outcomes = match outcomes {
                    Ok(outcomes) => outcomes,
                    // The connection to the next life of the path showed that the node has ended.
                    Err(ListError::Refused { source: OperationError::Access(AccessError::Gone), .. }) => {
                        break;
                    }
                    Err(other) => panic!("round {round}: {other:?}"),
                };
                failures += u32::from(outcomes.iter().any(Result::is_err));
                for (place, outcome) in outcomes[..16].iter().enumerate() {
                    let waits = matches!(outcome, Err(error) if error.is_deadline());
                    assert!(place % 2 == 1 || outcome.is_ok() || waits, "{place}: {outcome:?}");
                }
                let mut count = count.lock().unwrap();
                let mut found = [0; 96];
                both.read(4000, &mut found).unwrap();
                match &outcomes[16] {
                    Ok(_) => {
                        count[0] += 1;
                        assert_eq!(found, [round; 96]);
                    }
                    Err(error) if error.may_have_executed() => {
                        count[1] += 1;
                        assert!([last, round].contains(&found[0]));
                    }
                    // The half of the node that lives is as before.
                    Err(error) => {
                        count[2] += 1;
                        assert_eq!(found, [last; 96], "{error:?}");
                    }
                }
                // A command at the node that lives, also after one at the dead node.
                if outcomes[18].is_ok() {
                    let mut found = [0; 8];
                    near.read(60_000, &mut found).unwrap();
                    assert_eq!(found, [round; 8]);
                }
                for at in (0..16).step_by(2).filter(|at| outcomes[*at].is_ok()) {
                    let mut found = [0; 3000];
                    near.read(at as u64 / 2 * 3000, &mut found).unwrap();
                    assert_eq!(found, bytes);
                }
                last = found[0];
                // In the second list without the node, there is no connection to it.
                if failures == 2 {
                    break;
                }
                host.checkpoint(dunlin_fabric::Site::BeforePost);
            }
        })
        .unwrap();
        let counted = counted.lock().unwrap();
        kinds.iter_mut().zip(*counted).for_each(|(sum, count)| *sum += count);
    }
    assert!(kinds.iter().all(|count| *count > 0), "done, uncertain, not executed: {kinds:?}");
}

/// Readers of all nodes see the word after the bytes, wherever both lie.
#[test]
fn a_word_is_seen_after_the_bytes_before_it() {
    for (seed, in_order, acknowledged) in
        [(1, true, true), (2, true, true), (3, false, true), (4, false, true), (5, false, false)]
    {
        let change = move |has: &mut Capabilities| {
            (has.in_order_write, has.acknowledged) = (in_order, acknowledged);
        };
        in_virtual_time(seed, change, |_, tiers| {
            let spec = Spec::spread(["alice", "bob", "carol"]).named("n").grant_anyone(Rights::READ);
            let region = tiers[0].malloc(5 * 4096, spec).unwrap();
            static OVER: AtomicBool = AtomicBool::new(false);
            OVER.store(false, Ordering::Relaxed);
            // The pieces 1 and 4 are bob's. Bytes on one node and on two, and the word on one of them or on the third.
            let places = [(4096, 3000, 8184), (6000, 4000, 4096), (4096, 4096, 12_280), (5000, 2000, 0)];
            for (offset, length, word_offset) in places {
                let watch = |tier: &Tier<Sim>| {
                    let tier = tier.clone();
                    let body = move || {
                        let view = tier.map("n", Rights::READ).unwrap();
                        let (mut word, mut bytes) = ([0; 8], vec![0; length]);
                        while !OVER.load(Ordering::Relaxed) {
                            view.read(word_offset, &mut word).unwrap();
                            view.read(offset, &mut bytes).unwrap();
                            let seen = u64::from_le_bytes(word);
                            let oldest = bytes.iter().min().copied().unwrap_or_default();
                            assert!(u64::from(oldest) >= seen, "{oldest} after {seen}");
                            tier.fabric().host().checkpoint(dunlin_fabric::Site::BeforePost);
                        }
                    };
                    tiers[0].fabric().host().spawn("watch", Box::new(body)).unwrap()
                };
                let tasks: Vec<_> = tiers.iter().map(watch).collect();
                for round in 1..=40u8 {
                    region.write_notify(offset, &vec![round; length], word_offset, round.into()).unwrap();
                }
                OVER.store(true, Ordering::Relaxed);
                tasks.into_iter().for_each(dunlin_fabric::Task::join);
                OVER.store(false, Ordering::Relaxed);
                region.memset(0, 5 * 4096, 0).unwrap();
            }
        });
    }
}

#[test]
fn a_word_and_its_bytes_are_checked_before_either_is_written() {
    let [alice, bob, _] = &on_shared_memory();
    let spec = Spec::spread(["bob", "alice"]).named("x").grant("bob", Rights::READ);
    let region = alice.malloc(10_000, spec).unwrap();
    let weak = bob.map("x", Rights::READ).unwrap();
    let denied = AccessError::Denied { needs: Rights::WRITE, has: Rights::READ };
    assert_access(weak.write_notify(0, b"bytes", 8, 1), denied);
    for offset in [9_993, 10_000, u64::MAX - 7, u64::MAX] {
        let error = AccessError::OutOfBounds { offset, length: 8, size: 10_000 };
        assert_access(region.write_notify(0, b"bytes", offset, 1), error);
    }
    assert_access(region.write_notify(0, b"bytes", 4, 1), AccessError::Misaligned(4));
    let error = AccessError::OutOfBounds { offset: 9_999, length: 5, size: 10_000 };
    assert_access(region.write_notify(9_999, b"bytes", 8, 1), error);
    let mut found = vec![1; 10_000];
    region.read(0, &mut found).unwrap();
    assert!(found.iter().all(|byte| *byte == 0));
    region.write_notify(100, b"bytes", 9_984, 77).unwrap();
    region.write_notify(0, &[], 8, 78).unwrap();
    region.read(0, &mut found).unwrap();
    assert_eq!((&found[100..105], word(&found, 9_984), word(&found, 8)), (&b"bytes"[..], 77, 78));
}
