//! Lists of operations of processes, and operations with a time of their own.

use crate::common::{Serving, attach, bytes_of, config, serve, tag, wait};
use dunlin_tier_client::{
    AccessError, AnyLists, AnyLmr, AnyOperation, BufferError, Done, ListError, Lmr, OperationError,
    Operations, Outcomes, Position, RequestError, Rights, Spec, Tier,
};
use std::time::Duration;

fn two_nodes(tag: &str) -> [Serving; 2] {
    ["one", "two"].map(|name| {
        let mut settings = config(tag, &["one", "two"], name);
        (settings.memory, settings.piece) = (16 << 20, 65_536);
        serve(settings, tag, |_| {})
    })
}

#[track_caller]
fn refused_at(result: Result<Outcomes, ListError>, at: usize, error: AccessError) {
    match result {
        Err(ListError::Refused { place, source: OperationError::Access(found) })
            if (place, found) == (at, error) => {}
        other => panic!("not refused at {at}: {other:?}"),
    }
}

/// Lists of short and of long operations, as one request and as several, against a model.
#[test]
fn lists_of_processes_do_what_memory_does() {
    let tag = tag("lists");
    let nodes = two_nodes(&tag);
    let app = attach(&nodes[0].address);
    for stores in [&["one"][..], &["two"], &["two", "one"]] {
        let region = app.malloc(2 << 20, Spec::spread(stores.iter().copied())).unwrap();
        let own = app.malloc(4096, Spec::here()).unwrap();
        let mut model = vec![0; 2 << 20];
        let mut draw = 77u64;
        let mut below = |limit: usize| {
            draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (draw >> 33) as usize % limit
        };
        for round in 0..30u64 {
            let count = [1, 16, 32][round as usize % 3];
            let most = [60, 3000, 62_000][below(3)];
            let lengths: Vec<usize> = (0..count).map(|_| below(most)).collect();
            let bytes: Vec<Vec<u8>> = lengths.iter().map(|length| vec![round as u8 + 1; *length]).collect();
            let mut found: Vec<Vec<u8>> = lengths.iter().map(|length| vec![0xaa; *length]).collect();
            let (offset, is_read) =
                (|at: usize| at * 65_008, |at: usize| (at as u64 + round).is_multiple_of(2));
            let mut list = Operations::new();
            for (at, (bytes, found)) in bytes.iter().zip(&mut found).enumerate() {
                list = match is_read(at) {
                    true => list.read(&region, offset(at) as u64, found),
                    false => list.write(&region, offset(at) as u64, bytes),
                };
            }
            let outcomes = list.fetch_add(&own, 8, 2).compare_swap(&own, 16, round, round + 1).run().unwrap();
            let [moved @ .., sum, swap] = &outcomes[..] else { panic!("{outcomes:?}") };
            assert_eq!(
                (sum.as_ref().unwrap(), swap.as_ref().unwrap()),
                (&Done::Old(2 * round), &Done::Old(round))
            );
            assert!(moved.iter().all(|outcome| matches!(outcome, Ok(Done::Moved))), "{moved:?}");
            for (at, (bytes, found)) in bytes.iter().zip(&found).enumerate() {
                let place = &mut model[offset(at)..offset(at) + bytes.len()];
                match is_read(at) {
                    true => assert_eq!(found, place, "round {round}, operation {at}"),
                    false => place.copy_from_slice(bytes),
                }
            }
            // The other node may see the bytes a little later.
            wait("the bytes of the list", || (bytes_of(&region).unwrap() == model).then_some(()));
        }
        // One operation that is longer than a request.
        let long = vec![99; 700_000];
        let mut found = vec![0; 700_000];
        Operations::new().write(&region, 1, &long).read(&region, 1_000_000, &mut found).run().unwrap();
        assert_eq!(found, model[1_000_000..1_700_000]);
        wait("the long write", || (bytes_of(&region).unwrap()[1..=700_000] == long).then_some(()));
    }
}

/// Lists that set, copy, and use buffers in place, short and long, against a model.
#[test]
fn lists_of_processes_set_copy_and_move_in_place() {
    let tag = tag("lists-in-place");
    let nodes = ["one", "two"].map(|name| {
        let mut settings = config(&tag, &["one", "two"], name);
        // Buffers and regions have several parts.
        (settings.memory, settings.extent, settings.piece) = (96 << 20, Some(16 << 20), 65_536);
        serve(settings, &tag, |_| {})
    });
    let app = attach(&nodes[0].address);
    const LENGTH: usize = 12 << 20;
    let [mut full, mut empty] = [0; 2].map(|_| app.buffer(5 << 20).unwrap());
    let fresh: Vec<u8> = (0..full.len()).map(|at| (at * 31 / 7) as u8).collect();
    full.copy_in(0, &fresh).unwrap();
    for stores in [&["one"][..], &["two"], &["two", "one"]] {
        let region = app.malloc(LENGTH as u64, Spec::spread(stores.iter().copied())).unwrap();
        let source: Vec<u8> = (0..LENGTH).map(|at| (at * 3 / 2) as u8).collect();
        region.write(0, &source).unwrap();
        wait("the source", || (bytes_of(&region).unwrap() == source).then_some(()));
        for most in [1000usize, 100_000, 5 << 20] {
            let mut model = bytes_of(&region).unwrap();
            let pool = nodes[0].processes.counts().pool;
            let outcomes = Operations::new()
                .memset(&region, 5, most as u64, 9)
                // Overlapping ranges, whose target lies behind the source.
                .memcpy(region.at(7 << 20), region.at((7 << 20) - 33), most as u64)
                .write_from_each(
                    &mut full,
                    [(&region, 6 << 20, 3..500), (&region, (6 << 20) + 600, 70_000..130_001)],
                )
                .read_into(&region, 6_500_000, &mut empty, ..most.min(800_000))
                .fetch_add(&region, 6_400_000, 1)
                .run()
                .unwrap();
            let requests = nodes[0].processes.counts().pool - pool;
            assert_eq!(requests == 1, most < 1_000_000, "{requests} requests with {most} bytes");
            let old = model[6_400_000..6_400_008].try_into().map(u64::from_le_bytes).unwrap();
            for (place, outcome) in outcomes.into_iter().enumerate() {
                let expected = if place == 5 { Done::Old(old) } else { Done::Moved };
                assert_eq!(outcome.unwrap(), expected, "{place}");
            }
            let mut read = vec![0; most.min(800_000)];
            empty.copy_out(0, &mut read).unwrap();
            model[6_400_000..6_400_008].copy_from_slice(&(old + 1).to_le_bytes());
            assert!(read == model[6_500_000..][..read.len()]);
            model[6 << 20..][..497].copy_from_slice(&fresh[3..500]);
            model[(6 << 20) + 600..][..60_001].copy_from_slice(&fresh[70_000..130_001]);
            model[5..5 + most].fill(9);
            model.copy_within((7 << 20) - 33..(7 << 20) - 33 + most, 7 << 20);
            wait("the bytes of the list", || (bytes_of(&region).unwrap() == model).then_some(()));
        }
    }
}

#[test]
fn lists_are_checked_as_a_whole() {
    let tag = tag("checked");
    let nodes = two_nodes(&tag);
    let (app, other) = (attach(&nodes[0].address), attach(&nodes[0].address));
    let region = app.malloc(600_000, Spec::on("two").named("x")).unwrap();
    let weak = app.map("x", Rights::READ).unwrap();
    let long = vec![1; 300_000];
    let denied = AccessError::Denied { needs: Rights::WRITE, has: Rights::READ };
    // The third operation would be in another request than the first.
    let list = Operations::new().write(&region, 0, &long).write(&region, 300_000, &long);
    refused_at(list.fetch_add(&weak, 0, 1).run(), 2, denied);
    let (offset, length, size) = (u64::MAX - 1, 300_000, 600_000);
    let list = Operations::new().write(&region, 0, &long).write(&region, offset, &long);
    refused_at(list.run(), 1, AccessError::OutOfBounds { offset, length, size });
    let list = Operations::new().write(&region, 0, &long).fetch_add(&region, 9, 1);
    refused_at(list.run(), 1, AccessError::Misaligned(9));
    let list = Operations::new().write(&region, 0, &long).memset(&weak, 0, 1, 1);
    refused_at(list.run(), 1, denied);
    let list = Operations::new().memset(&region, 0, 9, 1).memcpy(weak.at(0), region.at(0), 1);
    refused_at(list.run(), 1, denied);
    let list = Operations::new().memset(&region, 0, 9, 1).memcpy(region.at(u64::MAX), region.at(0), 1);
    refused_at(list.run(), 1, AccessError::OutOfBounds { offset: u64::MAX, length: 1, size });
    let mut buffer = app.buffer(100).unwrap();
    let list = Operations::new().memset(&region, 0, 9, 1).write_from(&weak, 0, &mut buffer, ..);
    refused_at(list.run(), 1, denied);
    let list = Operations::new().memset(&region, 0, 9, 1).read_into(&weak, 599_901, &mut buffer, ..);
    refused_at(list.run(), 1, AccessError::OutOfBounds { offset: 599_901, length: 100, size });
    let list = Operations::new().memset(&region, 0, 9, 1).read_into(&weak, 0, &mut buffer, 100..102).run();
    let outside = BufferError::Outside { start: 100, end: 102, size: 100 };
    assert!(
        matches!(&list, Err(ListError::Refused { place: 1, source: OperationError::Buffer(error) })
            if error.to_string() == outside.to_string()),
        "{list:?}"
    );
    let theirs = other.map("x", Rights::ALL).unwrap();
    let list = Operations::new().memset(&region, 0, 9, 1).memcpy(theirs.at(0), region.at(0), 1).run();
    assert!(matches!(list, Err(ListError::OtherTier { place: 1 })), "{list:?}");
    let mut foreign = other.buffer(100).unwrap();
    let list = Operations::new().memset(&region, 0, 9, 1).read_into(&region, 0, &mut foreign, ..).run();
    assert!(
        matches!(
            &list,
            Err(ListError::Refused { place: 1, source: OperationError::Buffer(BufferError::OtherTier) })
        ),
        "{list:?}"
    );
    let list = Operations::new().write(&region, 0, &long).write(&theirs, 0, b"x").run();
    assert!(matches!(list, Err(ListError::OtherTier { place: 1 })), "{list:?}");
    let many = |count| (0..count).fold(Operations::new(), |list, _| list.fetch_add(&region, 8, 1));
    assert!(matches!(many(1025).run(), Err(ListError::TooMany { count: 1025 })));
    let list = (0..224).fold(Operations::new(), |list, _| list.write(&region, 0, &long));
    assert!(matches!(list.run(), Err(ListError::TooLong { bytes: 67_200_000 })));
    assert!(bytes_of(&region).unwrap().iter().all(|byte| *byte == 0), "nothing was executed");
    let sums = many(1024).run().unwrap();
    let mut olds: Vec<u64> = sums.into_iter().map(|sum| sum.unwrap().old().unwrap()).collect();
    olds.sort_unstable();
    assert!(olds.into_iter().eq(0..1024));

    // A region that another process frees: known to the node only.
    let own = app.malloc(600_000, Spec::here()).unwrap();
    theirs.free().unwrap();
    let list = Operations::new().write(&own, 0, b"x").write(&region, 0, b"x").write(&own, 8, b"x");
    refused_at(list.run(), 1, AccessError::Gone);
    assert!(bytes_of(&own).unwrap().iter().all(|byte| *byte == 0));
    // In the second request, after the first was executed: the others go on.
    let list = Operations::new().write(&own, 0, &long).write(&region, 8, b"x").write(&own, 300_000, &long);
    let outcomes = list.run().unwrap();
    assert!(matches!(outcomes[1], Err(OperationError::Access(AccessError::Gone))), "{outcomes:?}");
    assert!(outcomes[0].is_ok() && outcomes[2].is_ok(), "{outcomes:?}");
    assert!(bytes_of(&own).unwrap().iter().all(|byte| *byte == 1));
}

fn not_begun(result: Result<(), OperationError>) {
    let error = result.unwrap_err();
    assert!(error.is_deadline() && !error.may_have_executed(), "{error:?}");
    assert!(error.to_string().contains("was not executed"), "{error}");
}

fn every_operation(
    app: &Tier,
    region: &Lmr,
    time: Duration,
    mut check: impl FnMut(Result<(), OperationError>),
) {
    let (view, mut bytes) = (region.within(time), vec![0; 300_000]);
    check(view.write(0, &[5; 300_000]));
    check(view.read(0, &mut bytes));
    check(view.fetch_add(0, 1).map(drop));
    check(view.compare_swap(8, 0, 1).map(drop));
    check(view.memset(0, 300_000, 6));
    check(app.memcpy_within(time, region.at(200), region.at(0), 100));
    check(view.write_notify(0, &bytes, 300_000, 7));
}

#[test]
fn the_time_of_an_operation_is_its_own() {
    let tag = tag("time");
    let [one, two] = two_nodes(&tag);
    let app = attach(&one.address);
    for store in ["one", "two"] {
        let region = app.malloc(600_000, Spec::on(store)).unwrap();
        every_operation(&app, &region, Duration::ZERO, not_begun);
        let list = Operations::new().write(&region, 0, b"x").within(Duration::ZERO).run().unwrap_err();
        assert!(list.is_deadline(), "{list:?}");
        assert!(bytes_of(&region).unwrap().iter().all(|byte| *byte == 0));
        for time in [Duration::MAX, Duration::from_secs(100)] {
            every_operation(&app, &region, time, |done| done.unwrap());
            Operations::new().write(&region, 0, b"x").within(time).run().unwrap()[0].as_ref().unwrap();
        }
        // Shorter than any answer takes; whichever way it ends, the error says so.
        for nanos in [1, 1000, 20_000] {
            every_operation(&app, &region, Duration::from_nanos(nanos), |done| {
                if let Err(error) = done {
                    assert!(error.is_deadline(), "{error:?}");
                }
            });
        }
        wait("an answer", || region.write(0, b"goes on").ok());
    }
    // All requests of an operation have one deadline: each of these takes less, and all of them more.
    let long = app.malloc(8 << 20, Spec::on("one")).unwrap();
    let error = long.within(Duration::from_micros(800)).write(0, &vec![7; 8 << 20]).unwrap_err();
    assert!(error.is_deadline(), "{error:?}");
    let mut first = [0; 8];
    long.read(0, &mut first).unwrap();
    assert!(first == [0; 8] || error.may_have_executed(), "{error:?}");
    drop(long);
    let far = app.malloc(600_000, Spec::on("two")).unwrap();
    let near = app.malloc(600_000, Spec::on("one")).unwrap();
    Operations::new().write(&far, 0, b"x").write(&near, 0, b"x").run().unwrap();
    drop(two);
    // The operations of the node that ended fail, and the others are done.
    let outcomes = wait("the end of the node", || {
        let list = Operations::new().write(&near, 0, b"near").write(&far, 0, b"far").fetch_add(&near, 8, 1);
        let outcomes = list.within(Duration::from_secs(3)).run().ok()?;
        outcomes[1].is_err().then_some(outcomes)
    });
    assert!(outcomes[0].is_ok() && outcomes[2].is_ok(), "{outcomes:?}");
    wait("the bytes", || bytes_of(&near).unwrap().starts_with(b"near").then_some(()));
}

#[test]
fn a_word_follows_its_bytes() {
    let tag = tag("notify");
    let nodes = two_nodes(&tag);
    let app = attach(&nodes[0].address);
    for store in ["one", "two"] {
        let region = app.malloc(5 << 20, Spec::on(store).named("n")).unwrap();
        let other = attach(&nodes[1].address);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let view = other.map("n", Rights::READ).unwrap();
                let (mut word, mut bytes) = ([0; 8], vec![0; 5000]);
                while word != 200u64.to_le_bytes() {
                    view.read(2 << 20, &mut word).unwrap();
                    view.read(100_000, &mut bytes).unwrap();
                    let oldest = bytes.iter().min().copied().unwrap_or_default();
                    assert!(u64::from(oldest) >= u64::from_le_bytes(word));
                }
            });
            for round in 1..=200u8 {
                region.write_notify(100_000, &[round; 5000], 2 << 20, round.into()).unwrap();
            }
        });
        region.write_notify(0, &vec![3; 4 << 20], 4 << 20, 9).unwrap();
        wait("the bytes", || {
            bytes_of(&region).unwrap()[..4 << 20].iter().all(|byte| *byte == 3).then_some(())
        });
        let error = region.write_notify(0, &vec![3; (4 << 20) + 1], 5 << 19, 9).unwrap_err();
        let OperationError::Request(error) = error else { panic!("{error:?}") };
        assert!(matches!(*error, RequestError::Limit { limit: 4_194_304, .. }), "{error:?}");
        let (length, size) = (8, 5 << 20);
        for offset in [(5 << 20) - 7, u64::MAX - 7] {
            let error = region.write_notify(0, b"x", offset, 9).unwrap_err();
            let expected = AccessError::OutOfBounds { offset, length, size };
            assert!(matches!(error, OperationError::Access(found) if found == expected), "{error:?}");
        }
        let error = region.write_notify(0, b"x", 12, 9).unwrap_err();
        assert!(matches!(error, OperationError::Access(AccessError::Misaligned(12))), "{error:?}");
        region.free().unwrap();
    }
}

/// The same list for a program that does not care where its node is.
fn any_list<T: AnyLists>(tier: &T) {
    let region = tier.malloc(4096, Spec::here()).unwrap();
    let (mut old, mut new) = ([1; 8], [1; 8]);
    let at = |offset| Position { lmr: &region, offset };
    let list = vec![
        AnyOperation::Write { lmr: &region, offset: 8, from: b"8 bytes." },
        AnyOperation::CompareSwap { lmr: &region, offset: 16, expected: 0, swap: 7 },
        AnyOperation::CompareSwap { lmr: &region, offset: 24, expected: 1, swap: 7 },
        AnyOperation::Read { lmr: &region, offset: 32, into: &mut old },
        AnyOperation::Memset { lmr: &region, offset: 1000, length: 100, value: 4 },
        AnyOperation::Memcpy { to: at(1200), from: at(1050), length: 100 },
    ];
    let outcomes = tier.run_list(list).unwrap().into_iter().map(Result::unwrap).collect::<Vec<_>>();
    assert_eq!(outcomes, [Done::Moved, Done::Old(0), Done::Old(0), Done::Moved, Done::Moved, Done::Moved]);
    assert_eq!(old, [0; 8]);
    let mut copied = [1; 100];
    region.read(1200, &mut copied).unwrap();
    assert_eq!((&copied[..50], &copied[50..]), (&[4; 50][..], &[0; 50][..]));
    region.read(8, &mut new).unwrap();
    assert_eq!(&new, b"8 bytes.");
    region.read(16, &mut new).unwrap();
    assert_eq!(u64::from_le_bytes(new), 7);
    let outside = vec![AnyOperation::Read { lmr: &region, offset: 4090, into: &mut new }];
    assert!(matches!(tier.run_list(outside), Err(ListError::Refused { place: 0, .. })));
}

#[test]
fn lists_are_the_same_wherever_the_node_is() {
    let tag = tag("any-lists");
    let nodes = two_nodes(&tag);
    any_list(&nodes[0].node);
    any_list(&attach(&nodes[0].address));
}
