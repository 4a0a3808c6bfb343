//! Processes of this test, at nodes of this test.

use crate::common::{attach, bytes_of, config, serve, tag, wait};
use dunlin_tier::message::Refusal;
use dunlin_tier::{GrantError, RecordError};
use dunlin_tier_client::{AccessError, Lmr, OperationError, RequestError, Rights, Spec, Tier};
use std::collections::BTreeMap;

#[track_caller]
fn assert_access<T: std::fmt::Debug>(result: Result<T, OperationError>, error: AccessError) {
    assert!(matches!(&result, Err(OperationError::Access(found)) if *found == error), "{result:?}");
}

#[track_caller]
fn assert_refused<T: std::fmt::Debug>(result: Result<T, RequestError>, refusal: RecordError) {
    let Err(RequestError::Refused { source, .. }) = result else { panic!("not refused: {result:?}") };
    assert_eq!(source, Refusal::Record(refusal));
}

fn drawn(length: usize, seed: u32) -> Vec<u8> {
    (0..length as u32).map(|at| (at.wrapping_mul(31).wrapping_add(seed) >> 3) as u8).collect()
}

#[test]
fn processes_of_two_nodes_share_regions() {
    let tag = tag("share");
    let nodes: Vec<_> =
        ["one", "two"].map(|name| serve(config(&tag, &["one", "two"], name), &tag, |_| {})).into();
    let apps: Vec<Tier> = [0, 0, 1, 1].map(|node: usize| attach(&nodes[node].address)).into();
    let user = format!("user-{}", rustix::process::geteuid().as_raw());
    assert_eq!((apps[2].node(), apps[2].principal()), ("two", user.as_str()));

    // Longer than one request, on the own node, on the other and on both.
    let length = 700_001;
    for stores in [&["one"][..], &["two"], &["two", "one"]] {
        let region = apps[0].malloc(length, Spec::spread(stores.iter().copied()).named("app/data")).unwrap();
        let mut model = drawn(length as usize, 7);
        region.write(0, &model).unwrap();
        let views: Vec<Lmr> = apps.iter().map(|app| app.map("app/data", Rights::ALL).unwrap()).collect();
        for (at, view) in views.iter().enumerate() {
            let sees = || (bytes_of(view).unwrap() == model).then_some(());
            wait("the bytes of the last writer", sees);
            let part = drawn(70_000, at as u32);
            view.write(100_000 + at as u64, &part).unwrap();
            model[100_000 + at..170_000 + at].copy_from_slice(&part);
        }
        // Atomics of all processes on one word.
        views[0].write(8, &40u64.to_le_bytes()).unwrap();
        for (at, view) in views.iter().enumerate() {
            assert_eq!(view.fetch_add(8, 1).unwrap(), 40 + at as u64);
        }
        assert_eq!(views[3].compare_swap(8, 44, 7).unwrap(), 44);
        assert_eq!(views[2].compare_swap(8, 44, 9).unwrap(), 7);
        views[1].memset(0, length, 5).unwrap();
        wait("the bytes of memset", || {
            bytes_of(&views[2]).unwrap().iter().all(|byte| *byte == 5).then_some(())
        });
        region.free().unwrap();
        for view in &views {
            assert_access(view.read(0, &mut [0; 8]), AccessError::Gone);
        }
        assert_refused(apps[3].map("app/data", Rights::READ), RecordError::NoSuch);
    }
    let named = apps[1].malloc(100, Spec::here().named("app/listed")).unwrap();
    drop(named);
    let listing = apps[2].list("one", 0).unwrap();
    assert_eq!(listing.regions.len(), 1);
    assert_eq!(
        (listing.regions[0].length, listing.regions[0].rights, listing.next),
        (100, Rights::ALL, None)
    );
    assert_eq!(apps[2].list("", 0).unwrap().regions, []);
    assert!(matches!(apps[2].list("three", 0), Err(RequestError::NoNode(name)) if name == "three"));
}

#[test]
fn long_copies_are_those_of_memory_also_between_two_handles_of_one_region() {
    let tag = tag("copy");
    let mut settings = config(&tag, &["one"], "one");
    settings.memory = 64 << 20;
    let node = serve(settings, &tag, |_| {});
    let app = attach(&node.address);
    let length = 10 << 20;
    let region = app.malloc(length, Spec::here().named("long")).unwrap();
    let again = app.map("long", Rights::ALL).unwrap();
    let mut model = drawn(length as usize, 3);
    region.write(0, &model).unwrap();
    for (offset, target, count) in [(0usize, 1 << 20, 9 << 20), (1 << 20, 5, 9 << 20), (7, 7, 100)] {
        app.memcpy(again.at(target as u64), region.at(offset as u64), count as u64).unwrap();
        model.copy_within(offset..offset + count, target);
        assert!(bytes_of(&again).unwrap() == model, "{offset} to {target}");
    }
    let size = length;
    let (offset, copied) = (u64::MAX - 3, 8);
    assert_access(
        app.memcpy(again.at(offset), region.at(0), 8),
        AccessError::OutOfBounds { offset, length: copied, size },
    );
    // A handle of another process is none of this one's.
    let other = attach(&node.address);
    let own = other.malloc(100, Spec::here()).unwrap();
    assert_access(other.memcpy(own.at(0), region.at(0), 8), AccessError::NoHandle);
    assert_access(other.memcpy(region.at(0), own.at(0), 8), AccessError::NoHandle);
    assert!(bytes_of(&region).unwrap() == model);
}

#[test]
fn the_kernel_says_who_a_process_is_and_rights_are_those_of_its_principal() {
    let tag = tag("users");
    let user = rustix::process::geteuid().as_raw();
    let named = |name: &str| BTreeMap::from([(user, name.to_owned())]);
    let one = serve(config(&tag, &["one", "two"], "one"), &tag, |settings| settings.users = named("alice"));
    let two = serve(config(&tag, &["one", "two"], "two"), &tag, |settings| settings.users = named("bob"));
    let (alice, bob) = (attach(&one.address), attach(&two.address));
    assert_eq!((alice.principal(), bob.principal()), ("alice", "bob"));
    let region = alice.malloc(4096, Spec::on("two").named("hers")).unwrap();
    assert_refused(bob.map("hers", Rights::READ), RecordError::NoSuch);
    assert_eq!(bob.list("one", 0).unwrap().regions, []);
    region.grant("bob", Rights::READ).unwrap();
    let (wanted, has) = (Rights::WRITE, Rights::READ);
    assert_refused(bob.map("hers", Rights::WRITE), RecordError::Denied { wanted, has });
    let view = bob.map("hers", Rights::READ).unwrap();
    let (needs, has) = (Rights::WRITE, Rights::READ);
    assert_access(view.write(0, b"x"), AccessError::Denied { needs, has });
    assert_access(view.fetch_add(0, 1), AccessError::Denied { needs, has });
    assert!(matches!(view.grant("bob", Rights::READ), Err(RequestError::Access(AccessError::Denied { .. }))));
    assert!(matches!(view.free(), Err(RequestError::Access(AccessError::Denied { .. }))));
    assert_eq!(bytes_of(&region).unwrap(), [0; 4096]);
}

#[test]
fn a_right_that_is_revoked_ends_the_handles_of_processes() {
    let tag = tag("revoke");
    let user = rustix::process::geteuid().as_raw();
    let named = |name: &str| BTreeMap::from([(user, name.to_owned())]);
    let one = serve(config(&tag, &["one", "two"], "one"), &tag, |settings| settings.users = named("alice"));
    let two = serve(config(&tag, &["one", "two"], "two"), &tag, |settings| settings.users = named("bob"));
    let (alice, bob) = (attach(&one.address), attach(&two.address));
    let both = Rights::READ.with(Rights::WRITE);
    for store in ["one", "two"] {
        let region = alice.malloc(600_000, Spec::on(store).named(store).grant("bob", both)).unwrap();
        let (view, reader) = (bob.map(store, both).unwrap(), bob.map(store, Rights::READ).unwrap());
        assert!(matches!(
            view.revoke("alice", Rights::ALL),
            Err(RequestError::Access(AccessError::Denied { .. }))
        ));
        let begun = std::sync::atomic::AtomicU64::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let error = loop {
                    let number = begun.fetch_add(1, std::sync::atomic::Ordering::AcqRel) + 1;
                    if let Err(error) = view.write(0, &number.to_le_bytes().repeat(100)) {
                        break error;
                    }
                };
                assert_access::<()>(Err(error), AccessError::Revoked);
            });
            wait("some writes", || (begun.load(std::sync::atomic::Ordering::Acquire) > 20).then_some(()));
            assert_eq!(region.revoke("bob", Rights::WRITE).unwrap(), Rights::READ);
            let found = bytes_of(&region).unwrap();
            for _ in 0..50 {
                assert!(bytes_of(&region).unwrap() == found, "a write landed after the revocation");
            }
        });
        assert_access(view.read(0, &mut [0; 8]), AccessError::Revoked);
        assert_access(view.write(0, &[0; 600_000]), AccessError::Revoked);
        assert_access(bob.memcpy(view.at(8), view.at(0), 8), AccessError::Revoked);
        reader.read(0, &mut [0; 8]).unwrap();
        let (wanted, has) = (both, Rights::READ);
        assert_refused(bob.map(store, both), RecordError::Denied { wanted, has });
        assert_eq!(region.revoke_anyone(Rights::ALL).unwrap(), Rights::NONE);
        assert_refused(region.revoke("alice", Rights::MASTER), RecordError::from(GrantError::LastMaster));
        region.free().unwrap();
    }
}

#[test]
fn handles_requests_and_bytes_of_a_process_are_bounded() {
    let tag = tag("limits");
    let mut settings = config(&tag, &["one"], "one");
    settings.quota = 1 << 20;
    let node = serve(settings, &tag, |settings| settings.limits.handles = 3);
    let (app, other) = (attach(&node.address), attach(&node.address));
    // All attachments of a process id have the limit together.
    let mut regions: Vec<Lmr> = (0..2).map(|_| app.malloc(1000, Spec::here()).unwrap()).collect();
    regions.push(other.malloc(1000, Spec::here()).unwrap());
    for one in [&app, &other] {
        let full = one.malloc(1000, Spec::here().named("one too many"));
        assert!(matches!(full, Err(RequestError::Limit { limit: 3, .. })), "{full:?}");
    }
    regions.clear();
    assert_refused(other.map("one too many", Rights::READ), RecordError::NoSuch);
    let most = (1 << 20) - 1000;
    let large = wait("the quota of regions that have ended", || app.malloc(most, Spec::here()).ok());
    let _small =
        wait("the quota of the last of them", || other.malloc(1000, Spec::here().named("stays")).ok());
    assert_refused(other.malloc(1, Spec::here()), RecordError::Quota { has: (1 << 20) + 1, quota: 1 << 20 });
    large.unmap().unwrap();
    wait("the quota of the large region", || other.malloc(most, Spec::here()).ok());
}

#[test]
fn many_threads_of_a_process_take_turns() {
    let tag = tag("threads");
    let nodes: Vec<_> =
        ["one", "two"].map(|name| serve(config(&tag, &["one", "two"], name), &tag, |_| {})).into();
    let app = attach(&nodes[0].address);
    let region = app.malloc(4096, Spec::on("two")).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| (0..50).for_each(|_| assert!(region.fetch_add(0, 1).unwrap() < 400)));
        }
    });
    assert_eq!(region.fetch_add(0, 0).unwrap(), 400);
    // All connections belong to one process.
    let status = app.status().unwrap();
    assert_eq!((status.node.as_str(), status.processes.len()), ("one", 1));
    let process = &status.processes[0];
    assert_eq!((process.process, process.handles), (std::process::id(), 1));
    assert!((1..=4).contains(&process.connections), "{process:?}");
    assert_eq!((status.memory, status.nodes), (8 << 20, vec!["one".to_owned(), "two".to_owned()]));
    assert!(status.answered > 400);
}

#[test]
fn a_node_that_restarts_tells_its_processes() {
    let tag = tag("restart");
    let node = serve(config(&tag, &["one"], "one"), &tag, |_| {});
    let app = attach(&node.address);
    let region = app.malloc(4096, Spec::here().named("lost")).unwrap();
    drop(node);
    let error = region.write(0, b"x").unwrap_err();
    assert!(
        matches!(&error, OperationError::Request(one) if matches!(**one, RequestError::Call { .. })),
        "{error:?}"
    );
    let node = serve(config(&tag, &["one"], "one"), &tag, |_| {});
    let detached = wait("the next node", || match region.read(0, &mut [0; 1]) {
        Err(OperationError::Request(error)) if matches!(*error, RequestError::Detached) => Some(error),
        Err(OperationError::Request(error)) if matches!(*error, RequestError::Call { .. }) => None,
        other => panic!("{other:?}"),
    });
    assert!(!detached.may_have_executed());
    assert!(matches!(app.malloc(1, Spec::here()), Err(RequestError::Detached)));
    let again = attach(&node.address);
    assert_refused(again.map("lost", Rights::READ), RecordError::NoSuch);
}
