//! Regions that are freed when their leases run out.

use crate::cluster::{assert_absent, assert_access, in_virtual_time, on_shared_memory};
use dunlin_fabric::{Fabric, Host};
use dunlin_tier::RecordError;
use dunlin_tier::message::Refusal;
use dunlin_tier_node::{AccessError, Lmr, RequestError, Rights, Spec, Tier};
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);

fn wait<F: Fabric>(tier: &Tier<F>, time: Duration) {
    let host = tier.fabric().host();
    host.sleep(host.now() + time.as_nanos() as u64);
}

/// Waits until a region has no handle that works, and no name.
fn until_gone<F: Fabric>(tier: &Tier<F>, name: &str, view: &Lmr<F>) {
    while tier.map(name, Rights::READ).is_ok() || view.read(0, &mut [0; 8]).is_ok() {
        wait(tier, Duration::from_millis(1));
    }
    assert_absent(tier.map(name, Rights::READ));
    assert_access(view.read(0, &mut [0; 8]), AccessError::Gone);
}

#[track_caller]
fn assert_refused(result: Result<(), RequestError>, error: RecordError) {
    match result {
        Err(RequestError::Refused { source: Refusal::Record(found), .. }) => assert_eq!(found, error),
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn a_region_is_freed_when_its_lease_runs_out_and_not_before() {
    in_virtual_time(3, true, |[alice, bob, carol]| {
        let masters = Rights::READ.with(Rights::MASTER);
        let spec = Spec::spread(["bob", "carol"]).named("job").grant("bob", masters).leased(MINUTE);
        let region = alice.malloc(10_000, spec).unwrap();
        let view = bob.map("job", masters).unwrap();
        wait(bob, MINUTE * 9 / 10);
        view.read(0, &mut [0; 8]).unwrap();

        // A master of another node renews it: the lease counts from then on.
        view.lease(Some(2 * MINUTE)).unwrap();
        wait(bob, MINUTE * 19 / 10);
        view.read(0, &mut [0; 8]).unwrap();
        // A move changes nothing of it.
        region.move_to("alice").unwrap();
        let view = bob.map("job", Rights::READ).unwrap();
        wait(bob, MINUTE / 5);
        until_gone(bob, "job", &view);
        assert_access(region.write(0, b"x"), AccessError::Moved);

        // The name and the memory are of use again, and the next region has no lease.
        let next = carol.malloc(900_000, Spec::on("alice").named("job")).unwrap();
        wait(carol, 10 * MINUTE);
        next.read(0, &mut [0; 8]).unwrap();
        // A lease that comes later, and one that is taken away.
        next.lease(Some(MINUTE)).unwrap();
        next.lease(None).unwrap();
        wait(carol, 2 * MINUTE);
        next.lease(Some(Duration::ZERO)).unwrap();
        until_gone(carol, "job", &next);
    });
}

#[test]
fn leases_of_many_regions_end_in_their_order() {
    in_virtual_time(5, true, |[alice, ..]| {
        // More than end in one look, and later ones.
        let second = |number: u64| 1 + number / 100;
        for number in 0..350 {
            let lease = Duration::from_secs(60 * second(number));
            alice.malloc(64, Spec::here().named(format!("r/{number}")).leased(lease)).unwrap();
        }
        for minute in 1..5 {
            wait(alice, Duration::from_secs(31));
            let is_there = |number: &u64| alice.map(format!("r/{number}"), Rights::READ).is_ok();
            let left: Vec<u64> = (0..350).filter(is_there).collect();
            let expected: Vec<u64> = (0..350).filter(|number| second(*number) >= minute).collect();
            assert_eq!(left, expected, "minute {minute}");
            wait(alice, Duration::from_secs(29));
        }
    });
}

#[test]
fn leases_that_make_no_sense_are_refused() {
    on_shared_memory(|[alice, bob, _]| {
        let nameless = alice.malloc(64, Spec::here()).unwrap();
        assert_refused(nameless.lease(Some(MINUTE)), RecordError::NoName);
        let made = alice.malloc(64, Spec::here().leased(MINUTE)).map(drop);
        assert_refused(made, RecordError::NoName);
        let _region = alice.malloc(64, Spec::here().named("r").grant("bob", Rights::READ)).unwrap();
        let view = bob.map("r", Rights::READ).unwrap();
        let (needs, has) = (Rights::MASTER, Rights::READ);
        let denied = view.lease(None).unwrap_err();
        assert!(matches!(denied, RequestError::Access(error) if error == AccessError::Denied { needs, has }));
        // The longest one does not overflow.
        let forever = alice.malloc(64, Spec::here().named("s").leased(Duration::MAX)).unwrap();
        forever.read(0, &mut [0; 8]).unwrap();
        // Bytes that get their name later get their lease with it.
        let spec = Spec::here().named("t").leased(Duration::ZERO);
        assert!(!alice.publish(&nameless, spec).unwrap().is_copied());
        until_gone(alice, "t", &nameless);
    });
}
