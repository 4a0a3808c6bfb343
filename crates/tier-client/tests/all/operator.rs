//! Requests of the user who runs a node.

use crate::common::{Serving, attach, bytes_of, config, serve, tag, wait};
use dunlin_tier::RecordError;
use dunlin_tier_client::{AccessError, OperationError, Refusal, RequestError, Rights, Spec};

fn two_nodes(what: &str, is_operator: bool) -> [Serving; 2] {
    let (tag, user) = (tag(what), rustix::process::geteuid().as_raw());
    ["one", "two"].map(|name| {
        serve(config(&tag, &["one", "two"], name), &tag, |settings| {
            settings.operators = if is_operator { vec![user] } else { vec![user + 1] };
        })
    })
}

#[track_caller]
fn assert_refused<T: std::fmt::Debug>(result: Result<T, RequestError>, refusal: RecordError) {
    match result {
        Err(RequestError::Refused { source: Refusal::Record(found), .. }) => assert_eq!(found, refusal),
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn only_operators_have_a_node_leave_free_and_drain() {
    let [one, two] = two_nodes("operators", false);
    let app = attach(&one.address);
    let region = app.malloc(1000, Spec::here().named("own")).unwrap();
    let lent = two.node.malloc(1000, Spec::on("one").named("lent").grant_anyone(Rights::READ)).unwrap();
    let not = |error: RequestError| assert!(matches!(error, RequestError::NotOperator), "{error:?}");
    not(app.leave(true).unwrap_err());
    not(app.free_named("own").unwrap_err());
    not(app.lent(None).unwrap_err());
    region.write(0, b"it is there").unwrap();
    lent.write(0, b"it is there").unwrap();
    assert!(!one.processes.is_to_leave());
}

#[test]
fn an_operator_frees_regions_of_others_that_were_made_at_its_node() {
    let [one, two] = two_nodes("operator-free", true);
    let app = attach(&one.address);
    let stranger = one.node.acting_for("stranger").unwrap();
    let region = stranger.malloc(1000, Spec::on("two").named("hers")).unwrap();
    assert_refused(app.map("hers", Rights::READ), RecordError::NoSuch);
    let other = attach(&two.address).free_named("hers").unwrap_err();
    assert!(matches!(&other, RequestError::MadeAt { node } if node == "one"), "{other:?}");
    region.write(0, b"it is there").unwrap();
    app.free_named("hers").unwrap();
    let gone = region.write(0, b"x").unwrap_err();
    assert!(matches!(gone, OperationError::Access(AccessError::Gone)), "{gone:?}");
    assert_refused(app.free_named("hers"), RecordError::NoSuch);
    assert!(matches!(app.free_named(""), Err(RequestError::Name(_))));

    // One that is mapped directly stays, and as it is.
    let held = stranger.malloc(1000, Spec::here().named("held")).unwrap();
    let direct = held.direct().unwrap();
    let in_use = app.free_named("held").unwrap_err();
    assert!(matches!(in_use, RequestError::Refused { source: Refusal::InUse(_), .. }), "{in_use:?}");
    held.write(0, b"it is there").unwrap();
    drop(direct);
    app.free_named("held").unwrap();
}

#[test]
fn regions_of_other_nodes_move_away_once() {
    let [one, two] = two_nodes("operator-drain", true);
    let (app, other) = (attach(&one.address), attach(&two.address));
    let bytes: Vec<u8> = (0..20_000u32).map(|at| (at * 7) as u8).collect();
    let region = other.malloc(20_000, Spec::on("one").named("lent")).unwrap();
    region.write(0, &bytes).unwrap();
    let unnamed = other.malloc(1000, Spec::on("one")).unwrap();
    let own = app.malloc(1000, Spec::here().named("own")).unwrap();
    let lent = app.lent(None).unwrap();
    let found: Vec<_> = lent.regions.iter().map(|region| (&*region.node, region.bytes)).collect();
    assert_eq!(found, [("two", 32_768), ("two", 1024)]);
    assert!(!lent.more);
    let [large, small] = &lent.regions[..] else { panic!("{lent:?}") };
    assert_eq!(app.lent(Some(large)).unwrap().regions, std::slice::from_ref(small));
    assert!(matches!(app.move_away(large, "three"), Err(RequestError::NoNode(node)) if node == "three"));
    assert!(matches!(app.move_away(large, &"x".repeat(256)), Err(RequestError::NoNode(_))));
    assert_refused(app.move_away(small, "two"), RecordError::NoName);
    unnamed.write(0, b"it is there").unwrap();

    app.move_away(large, "two").unwrap();
    let moved = region.write(0, b"x").unwrap_err();
    assert!(matches!(moved, OperationError::Access(AccessError::Moved)), "{moved:?}");
    let view = other.map("lent", Rights::READ).unwrap();
    // It is elsewhere already: whatever the second request says, the region stays there.
    for to in ["one", "two"] {
        app.move_away(large, to).unwrap();
    }
    assert!(bytes_of(&view).unwrap() == bytes);
    wait("the memory", || (app.lent(None).unwrap().regions == std::slice::from_ref(small)).then_some(()));
    own.write(0, b"it is there").unwrap();
    // Its region is gone, and so is the id.
    view.unmap().unwrap();
    other.map("lent", Rights::MASTER).unwrap().free().unwrap();
    assert_refused(app.move_away(large, "two"), RecordError::NoSuch);
}
