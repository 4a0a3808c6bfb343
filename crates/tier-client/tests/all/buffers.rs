//! Buffers of processes that the node reads and writes in place.

use crate::common::{Child, Serving, attach, bytes_of, config, fabric, serve, tag, wait};
use crate::direct::dial;
use crate::hostile::{Raw, problem};
use dunlin_fabric::{Fabric as _, Host as _, Link as _};
use dunlin_tier::Name;
use dunlin_tier::message::Refusal;
use dunlin_tier::process::{MAX_CHANGED, NoDirect, Opened, Problem, ProcessRequest};
use dunlin_tier_client::{
    AccessError, Buffer, BufferError, OperationError, Priority, RequestError, Rights, Spec, Tier,
};
use dunlin_tier_node::{ProcessConfig, ProcessLimits};
use std::time::Duration;

const ROLE: &str = "TIER_TEST_BUFFER";
const LENGTH: usize = 150_001;

/// Two nodes with 8 extents each. Pieces of 16 KiB and requests of 3000 bytes: buffers and regions have several.
fn two_nodes(what: &str, change: impl Fn(&mut ProcessConfig)) -> [Serving; 2] {
    let tag = tag(what);
    ["one", "two"].map(|name| {
        let mut settings = config(&tag, &["one", "two"], name);
        (settings.piece, settings.step, settings.extent) = (16 << 10, 3000, Some(1 << 20));
        serve(settings, &tag, &change)
    })
}

fn contents(buffer: &Buffer) -> Vec<u8> {
    let mut bytes = vec![0; buffer.len()];
    buffer.copy_out(0, &mut bytes).unwrap();
    bytes
}

/// Fills a buffer.
fn fill(buffer: &mut Buffer, byte: u8) {
    buffer.copy_in(0, &vec![byte; buffer.len()]).unwrap();
}

/// Waits until all memory of a node is free, and zeroed.
#[track_caller]
fn is_empty(node: &Serving) {
    wait("the memory", || (node.node.free_memory() == node.node.memory()).then_some(()));
}

#[test]
fn buffers_do_what_memory_does() {
    let nodes = two_nodes("buffers", |_| {});
    let tier = attach(&nodes[0].address);
    let mut draw = 77u64;
    let mut below = |limit: usize| {
        draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (draw >> 33) as usize % limit
    };
    for spec in [Spec::here(), Spec::on("two"), Spec::spread(["two", "one"])] {
        let region = tier.malloc(LENGTH as u64, spec).unwrap();
        let mut buffer = tier.buffer(LENGTH + 99).unwrap();
        assert_eq!(contents(&buffer), vec![0; LENGTH + 99]);
        let (mut model, mut bytes) = (vec![0; LENGTH], vec![0; LENGTH + 99]);
        for round in 0..120 {
            let offset = below(LENGTH);
            let count = below([2, 100, 20_000, LENGTH + 1][round % 4]).min(LENGTH - offset);
            let start = below(bytes.len() - count + 1);
            let range = start..start + count;
            if round % 2 == 0 {
                let fresh: Vec<u8> = (0..count).map(|at| (at * 31 + round) as u8).collect();
                buffer.copy_in(start, &fresh).unwrap();
                bytes[range.clone()].copy_from_slice(&fresh);
                region.write_from(offset as u64, &mut buffer, range).unwrap();
                model[offset..offset + count].copy_from_slice(&fresh);
            } else {
                region.read_into(offset as u64, &mut buffer, range.clone()).unwrap();
                bytes[range].copy_from_slice(&model[offset..offset + count]);
            }
            assert!(contents(&buffer) == bytes, "round {round}");
        }
        assert!(bytes_of(&region).unwrap() == model);
        buffer.store(8, 41).unwrap();
        region.write_from(0, &mut buffer, 8..16).unwrap();
        assert_eq!((region.fetch_add(0, 1).unwrap(), buffer.load(8)), (41, Ok(41)));
    }
    drop(tier);
    nodes.iter().for_each(is_empty);
}

/// More bytes than one request moves.
#[test]
fn long_ranges_are_several_requests() {
    let tag = tag("buffers-long");
    let settings = |node: &str| {
        let mut settings = config(&tag, &["one", "two"], node);
        (settings.memory, settings.extent) = (64 << 20, Some(16 << 20));
        settings
    };
    let nodes = ["one", "two"].map(|name| serve(settings(name), &tag, |_| {}));
    let tier = attach(&nodes[0].address);
    let length = 2 * MAX_CHANGED as usize + 5;
    let region = tier.malloc(length as u64, Spec::on("two")).unwrap();
    let mut buffer = tier.buffer(length).unwrap();
    let bytes: Vec<u8> = (0..length).map(|at| (at * 7 / 3) as u8).collect();
    buffer.copy_in(0, &bytes).unwrap();
    let before = nodes[0].processes.counts();
    region.write_from(0, &mut buffer, ..).unwrap();
    let after = nodes[0].processes.counts();
    assert_eq!(after.pool - before.pool, 2);
    assert_eq!(
        after.at_once + after.later - before.at_once - before.later,
        1,
        "the worker has the last bytes"
    );
    assert!(bytes_of(&region).unwrap() == bytes);
    fill(&mut buffer, 0);
    region.read_into(0, &mut buffer, ..).unwrap();
    assert!(contents(&buffer) == bytes);
}

#[test]
fn ranges_rights_and_buffers_that_do_not_fit_are_refused() {
    let nodes = two_nodes("buffers-refused", |_| {});
    let (tier, other) = (attach(&nodes[0].address), attach(&nodes[0].address));
    let region = tier.malloc(1000, Spec::on("two").named("refused")).unwrap();
    let weak = other.map("refused", Rights::READ).unwrap();
    let mut buffer = tier.buffer(2000).unwrap();
    fill(&mut buffer, 7);
    for (start, end) in [(0, 2001), (2001, 2001), (2000, 2001), (5, 4), (1, usize::MAX), (usize::MAX, 0)] {
        let refused =
            [region.read_into(0, &mut buffer, start..end), region.write_from(0, &mut buffer, start..end)];
        for refused in refused {
            match refused {
                Err(OperationError::Buffer(BufferError::Outside { start: s, end: e, size: 2000 })) => {
                    assert_eq!((s, e), (start, end));
                }
                other => panic!("{start} to {end}: {other:?}"),
            }
        }
    }
    let access = |refused: Result<(), OperationError>| match refused {
        Err(OperationError::Access(error)) => error,
        other => panic!("{other:?}"),
    };
    let out = |offset, length| AccessError::OutOfBounds { offset, length, size: 1000 };
    assert_eq!(access(region.read_into(0, &mut buffer, ..1001)), out(0, 1001));
    assert_eq!(access(region.write_from(u64::MAX, &mut buffer, ..2)), out(u64::MAX, 2));
    assert_eq!(access(region.write_from(1001, &mut buffer, ..0)), out(1001, 0));
    region.write_from(1000, &mut buffer, ..0).unwrap();
    let mut theirs = other.buffer(8).unwrap();
    let denied = AccessError::Denied { needs: Rights::WRITE, has: Rights::READ };
    assert_eq!(access(weak.write_from(0, &mut theirs, ..)), denied);
    weak.read_into(0, &mut theirs, ..).unwrap();
    let foreign = region.read_into(0, &mut theirs, ..);
    assert!(matches!(foreign, Err(OperationError::Buffer(BufferError::OtherTier))), "{foreign:?}");
    let size = 2000;
    for (offset, length) in [(1999, 2), (2001, 1), (u64::MAX, 1)] {
        let (at, error) = (offset as usize, AccessError::OutOfBounds { offset, length, size });
        assert_eq!(buffer.copy_in(at, &[0; 2][..length as usize]), Err(error));
        assert_eq!(buffer.copy_out(at, &mut [0; 2][..length as usize]), Err(error));
    }
    assert_eq!(buffer.load(4), Err(AccessError::Misaligned(4)));
    assert!(buffer.store(2000, 1).is_err());
    assert_eq!(contents(&buffer), [7; 2000]);
}

#[test]
fn number_and_bytes_of_buffers_are_bounded() {
    let limits = ProcessLimits { buffers: 3, buffer_bytes: 100_000, ..ProcessLimits::default() };
    let [node, _two] = two_nodes("buffers-limits", |config| config.limits = limits);
    let (tier, again) = (attach(&node.address), attach(&node.address));
    let refused = |tier: &Tier, length: usize| match tier.buffer(length) {
        Err(RequestError::Limit { limit, .. }) => limit,
        other => panic!("{length} bytes: {other:?}"),
    };
    assert_eq!(refused(&tier, 100_001), 100_000);
    let large = tier.buffer(100_000).unwrap();
    // Both attachments are one process for the kernel.
    assert_eq!(refused(&again, 1), 100_000);
    drop(large);
    let three = [(); 3].map(|()| again.buffer(10).unwrap());
    assert_eq!(refused(&tier, 10), 3);
    drop(three);
    assert!(matches!(tier.buffer(0), Err(RequestError::Length(0))));
    // A refused buffer takes nothing of the share.
    drop(tier.buffer(100_000).unwrap());
    drop((tier, again));
    is_empty(&node);
    // More than an extent that the node gives away, and a node that has only the one of all users.
    let tag = tag("buffers-one");
    let mut settings = config(&tag, &["one"], "one");
    settings.extent = Some(8 << 20);
    let node = serve(settings, &tag, |_| {});
    match attach(&node.address).buffer(10) {
        Err(RequestError::Refused { source: Refusal::OutOfMemory { .. }, .. }) => {}
        other => panic!("{other:?}"),
    }
}

/// Each attachment takes an extent, and the limits of a process do not see those that have ended.
#[test]
fn processes_of_one_user_do_not_take_all_extents() {
    let [node, _two] = two_nodes("buffers-extents", |_| {});
    let mut held = Vec::new();
    let refused = loop {
        let tier = attach(&node.address);
        match tier.buffer(1) {
            Ok(buffer) => held.push((tier, buffer)),
            Err(error) => break error,
        }
        assert!(held.len() < 8, "the node has no extent left");
    };
    assert!(matches!(refused, RequestError::Limit { limit: 4, .. }), "{refused:?}");
    assert_eq!(held.len(), 4);
    // There is room in the extent of a process that has one, and in those of all users.
    let [.., (tier, _)] = &held[..] else { unreachable!("four") };
    drop(tier.buffer(100_000).unwrap());
    drop(tier.malloc(2 << 20, Spec::here()).unwrap());
    drop(held);
    is_empty(&node);
}

/// Operations whose time is over at any place. Each byte of the buffer is an old or a new one, and does not change when
/// the node goes on; no byte that the process stores afterwards is written.
#[test]
fn deadlines_in_the_middle_of_an_operation() {
    let nodes = two_nodes("buffers-late", |_| {});
    let tier = attach(&nodes[0].address);
    let region = tier.malloc(LENGTH as u64, Spec::on("two")).unwrap();
    let mut buffer = tier.buffer(LENGTH).unwrap();
    let (mut late, mut done) = (0, 0);
    for round in 0..150u64 {
        region.write(0, &[9; LENGTH]).unwrap();
        fill(&mut buffer, 1);
        let quick = region.within(Duration::from_micros(1 + round * 7));
        let read = quick.read_into(0, &mut buffer, ..);
        let seen = contents(&buffer);
        assert!(seen.iter().all(|byte| [1, 9].contains(byte)), "round {round}");
        match read {
            Ok(()) => assert!(seen.iter().all(|byte| *byte == 9)),
            Err(error) => assert!(error.is_deadline(), "{error}"),
        }
        fill(&mut buffer, 2);
        let written = quick.write_from(0, &mut buffer, ..);
        fill(&mut buffer, 3);
        *if written.is_ok() { &mut done } else { &mut late } += 1;
        wait("the end of the operation", || {
            let found = bytes_of(&region).unwrap();
            assert!(found.iter().all(|byte| [2, 9].contains(byte)), "bytes of a later time");
            let node = nodes[0].node.operations(Priority::High);
            (node.under_way == 0 && node.waiting == 0).then_some(())
        });
        assert_eq!(contents(&buffer), [3; LENGTH], "round {round}");
    }
    assert!(late > 0, "{done} in time");
    region.write_from(0, &mut buffer, ..).unwrap();
    assert_eq!(bytes_of(&region).unwrap(), [3; LENGTH]);
    drop((region, buffer, tier));
    nodes.iter().for_each(is_empty);
}

/// A buffer whose node ends under an operation is as before, or empty if the node may still have used it. It is refused
/// with typed errors.
#[test]
fn a_node_that_ends_leaves_no_buffer_of_unknown_bytes() {
    for round in 0..6 {
        let [one, _two] = two_nodes(&format!("buffers-end-{round}"), |_| {});
        let config = dunlin_tier_client::AttachConfig {
            timeout: Duration::from_secs(2),
            ..dunlin_tier_client::AttachConfig::new(one.address.clone())
        };
        let tier = Tier::attach_with(&fabric(), config).unwrap();
        let region = tier.malloc(LENGTH as u64, Spec::on("two")).unwrap();
        let mut buffer = tier.buffer(LENGTH).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                std::thread::sleep(Duration::from_millis(round * 3));
                drop(one);
            });
            let failed = loop {
                if let Err(error) = region.read_into(0, &mut buffer, ..) {
                    break error;
                }
            };
            assert!(matches!(failed, OperationError::Request(_)) || failed.is_deadline(), "{failed:?}");
        });
        assert!([0, LENGTH].contains(&buffer.len()));
        if buffer.is_empty() {
            let none = |length| AccessError::OutOfBounds { offset: 0, length, size: 0 };
            assert_eq!(buffer.copy_in(0, b"x"), Err(none(1)));
            assert_eq!(buffer.load(0), Err(none(8)));
            let refused = region.write_from(0, &mut buffer, ..1);
            let outside = BufferError::Outside { start: 0, end: 1, size: 0 };
            match refused {
                Err(OperationError::Buffer(error)) => assert_eq!(error.to_string(), outside.to_string()),
                other => panic!("{other:?}"),
            }
        } else {
            fill(&mut buffer, 5);
            assert_eq!(contents(&buffer), [5; LENGTH]);
        }
        assert!(region.write_from(0, &mut buffer, ..).is_err() || buffer.is_empty());
    }
}

/// The part of the process that is killed.
#[test]
fn user() {
    let Ok(address) = std::env::var(ROLE) else { return };
    let tier = attach(&address.parse().unwrap());
    let region = tier.map("killed", Rights::READ.with(Rights::WRITE)).unwrap();
    let mut buffer = tier.buffer(LENGTH).unwrap();
    fill(&mut buffer, 0xff);
    loop {
        region.write_from(0, &mut buffer, ..).unwrap();
        region.read_into(0, &mut buffer, ..).unwrap();
    }
}

#[test]
fn the_memory_of_a_process_that_is_killed_is_zeroed_and_free() {
    let nodes = two_nodes("buffers-killed", |_| {});
    let tier = attach(&nodes[0].address);
    for _ in 0..5 {
        let spec = Spec::on("two").named("killed");
        let region = tier.malloc(LENGTH as u64, spec).unwrap();
        let mut child = Child::start("buffers::user", &[(ROLE, &nodes[0].address.to_string())]);
        wait("writes of the process", || {
            bytes_of(&region).unwrap().iter().all(|byte| *byte == 0xff).then_some(())
        });
        assert!(nodes[0].node.free_memory() < nodes[0].node.memory());
        child.kill();
        is_empty(&nodes[0]);
        // The extents of the process are for others again, and zeroed.
        wait("extents", || {
            let all = tier.malloc(7 << 20, Spec::here()).ok()?;
            assert!(bytes_of(&all).unwrap().iter().all(|byte| *byte == 0));
            all.free().ok()
        });
        region.free().unwrap();
    }
}

#[test]
fn hostile_places_are_refused() {
    let nodes = two_nodes("buffers-hostile", |_| {});
    let victim = attach(&nodes[0].address);
    let canary = victim.malloc(4096, Spec::here()).unwrap();
    canary.write(0, &[7; 4096]).unwrap();
    let mut theirs = victim.buffer(4096).unwrap();
    fill(&mut theirs, 8);
    let (mut raw, mut other) = (Raw::attach(&nodes[0]), Raw::attach(&nodes[0]));
    let opened = |answer: Vec<u8>| Opened::parse(&answer).unwrap().handle;
    let buffer = opened(raw.ask(&ProcessRequest::Buffer { length: 20_000 }).unwrap());
    let foreign = opened(other.ask(&ProcessRequest::Buffer { length: 20_000 }).unwrap());
    let (near, far) = (raw.malloc(20_000, "one").handle, raw.malloc(20_000, "two").handle);
    let priority = Priority::High;
    for region in [near, far] {
        let both = |handle, offset, length, buffer, at| {
            [
                ProcessRequest::ReadInto { priority, handle, offset, length, buffer, at },
                ProcessRequest::WriteFrom { priority, handle, offset, length, buffer, at },
            ]
        };
        let mut ask =
            |requests: [ProcessRequest<'static>; 2]| requests.map(|request| problem(raw.ask(&request)));
        for handle in [foreign, 0, 1, u64::MAX, buffer ^ 64, buffer + (1 << 32), buffer ^ (1 << 63)] {
            for requests in [both(region, 0, 8, handle, 0), both(handle, 0, 8, buffer, 0)] {
                for found in ask(requests) {
                    assert_eq!(found, Problem::Access(AccessError::NoHandle));
                }
            }
        }
        // Regions that are no buffers, of the own node and of another one.
        for handle in [near, far] {
            for found in ask(both(region, 0, 8, handle, 0)) {
                assert_eq!(found, Problem::NotDirect(NoDirect::Shared));
            }
        }
        let out = |offset, length| Problem::Access(AccessError::OutOfBounds { offset, length, size: 20_000 });
        for offset in [19_993, 20_001, 1 << 32, u64::MAX - 7, u64::MAX, 1 << 63] {
            for requests in [both(region, offset, 8, buffer, 0), both(region, 0, 8, buffer, offset)] {
                assert_eq!(ask(requests), [out(offset, 8), out(offset, 8)]);
            }
        }
        let long = Problem::TooLong { length: u64::from(MAX_CHANGED) + 1, limit: MAX_CHANGED };
        assert_eq!(ask(both(region, 0, MAX_CHANGED + 1, buffer, 0)), [long.clone(), long]);
        for request in both(region, 20_000, 0, buffer, 20_000) {
            raw.ask(&request).unwrap();
        }
        for request in both(region, 1, 19_999, buffer, 0) {
            raw.ask(&request).unwrap();
        }
    }
    // The bytes of the buffer are those of the region itself.
    for request in [
        ProcessRequest::ReadInto { priority, handle: buffer, offset: 5, length: 9000, buffer, at: 0 },
        ProcessRequest::WriteFrom { priority, handle: buffer, offset: 0, length: 20_000, buffer, at: 0 },
    ] {
        raw.ask(&request).unwrap();
    }
    for (length, found) in [
        (0, Problem::Length(0)),
        ((256 << 20) + 1, Problem::BufferBytes(256 << 20)),
        (u64::MAX, Problem::BufferBytes(256 << 20)),
    ] {
        assert_eq!(problem(raw.ask(&ProcessRequest::Buffer { length })), found);
    }
    // With a name, another process of the same user maps it, and is not given its memory.
    let name = Name::new("hostile/buffer").unwrap();
    let (nodes_of, grants) = (Vec::new(), Vec::new());
    raw.ask(&ProcessRequest::Publish {
        handle: buffer,
        nodes: nodes_of,
        name: name.clone(),
        grants,
        lease: None,
    })
    .unwrap();
    let fabric = fabric();
    let line = dial(&fabric, &nodes[0]);
    line.send(&other.secret()).unwrap();
    assert_eq!(line.receive(fabric.host().now() + 10_000_000_000).unwrap(), []);
    let handle = opened(other.ask(&ProcessRequest::Map { name, rights: Rights::READ }).unwrap());
    let refused = problem(other.ask(&ProcessRequest::Direct { handle }));
    assert_eq!(refused, Problem::NotDirect(NoDirect::Shared));
    other.ask(&ProcessRequest::Direct { handle: foreign }).unwrap();
    assert_eq!(bytes_of(&canary).unwrap(), [7; 4096]);
    assert_eq!(contents(&theirs), [8; 4096]);
}

/// Threads of a process, each with a buffer of its own.
#[test]
fn buffers_of_several_threads() {
    let nodes = two_nodes("buffers-threads", |_| {});
    let tier = attach(&nodes[0].address);
    let region = tier.malloc(4 * 50_000, Spec::spread(["two", "one"])).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4u8 {
            let (tier, region) = (&tier, &region);
            scope.spawn(move || {
                let (mut buffer, at) = (tier.buffer(50_000).unwrap(), u64::from(thread) * 50_000);
                for round in 0..40u8 {
                    fill(&mut buffer, thread * 40 + round + 1);
                    region.write_from(at, &mut buffer, ..).unwrap();
                    fill(&mut buffer, 0);
                    region.read_into(at, &mut buffer, ..).unwrap();
                    assert_eq!(contents(&buffer), [thread * 40 + round + 1; 50_000]);
                }
            });
        }
    });
}
