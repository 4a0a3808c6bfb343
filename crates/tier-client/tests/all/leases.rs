//! Regions of processes that are freed when their leases run out.

use crate::common::{attach, config, serve, tag, wait};
use dunlin_tier::RecordError;
use dunlin_tier::message::Refusal;
use dunlin_tier_client::{RequestError, Rights, Spec};
use std::time::Duration;

const LONG: Duration = Duration::from_secs(3600);

#[test]
fn a_region_is_freed_with_its_lease_unless_it_is_renewed() {
    let tag = tag("leases");
    let nodes = ["one", "two"].map(|name| serve(config(&tag, &["one", "two"], name), &tag, |_| {}));
    let (app, other) = (attach(&nodes[0].address), attach(&nodes[1].address));
    let is_there = |name: &str| other.map(name, Rights::READ).is_ok();
    let short = app.malloc(64, Spec::on("two").named("short").leased(Duration::from_millis(50))).unwrap();
    let long = app.malloc(64, Spec::on("two").named("long").leased(LONG)).unwrap();
    let published = app.malloc(64, Spec::here()).unwrap();
    let spec = Spec::here().named("published").leased(LONG);
    assert!(!app.publish(&published, spec).unwrap().is_copied());
    wait("the end of the lease", || (!is_there("short")).then_some(()));
    // Handles end after the name.
    wait("the end of the handle", || short.write(0, b"x").err());
    assert!(is_there("long") && is_there("published"));

    // A master at the other node ends the others at once.
    for name in ["long", "published"] {
        other.map(name, Rights::MASTER).unwrap().lease(Some(Duration::ZERO)).unwrap();
        wait("the end of the lease", || (!is_there(name)).then_some(()));
    }
    wait("the end of the handle", || long.write(0, b"x").err());

    let kept = app.malloc(64, Spec::here().named("kept").leased(Duration::from_secs(5))).unwrap();
    kept.lease(None).unwrap();
    let nameless = app.malloc(64, Spec::here()).unwrap();
    for refused in [nameless.lease(Some(LONG)), app.malloc(64, Spec::here().leased(LONG)).map(drop)] {
        let Err(RequestError::Refused { source, .. }) = refused else { panic!("not refused: {refused:?}") };
        assert_eq!(source, Refusal::Record(RecordError::NoName));
    }
    let view = other.map("kept", Rights::READ).unwrap();
    assert!(matches!(view.lease(None), Err(RequestError::Access(_))));
}

/// The region goes when the process lets go, which it is asked for, and not before.
#[test]
fn a_region_that_a_process_maps_directly_is_freed_when_it_lets_go() {
    let tag = tag("leases-direct");
    let node = serve(config(&tag, &["one"], "one"), &tag, |_| {});
    let (app, other) = (attach(&node.address), attach(&node.address));
    let region = app.malloc(4096, Spec::here().named("direct").direct()).unwrap();
    let view = other.map("direct", Rights::READ.with(Rights::WRITE)).unwrap();
    let direct = view.direct().unwrap();
    region.lease(Some(Duration::ZERO)).unwrap();
    wait("the node to ask", || direct.is_wanted_back().then_some(()));
    direct.store(0, 7).unwrap();
    region.read(0, &mut [0; 8]).unwrap();
    drop(direct);
    wait("the free", || app.map("direct", Rights::READ).is_err().then_some(()));
    wait("the end of the handle", || region.read(0, &mut [0; 8]).err());
}
