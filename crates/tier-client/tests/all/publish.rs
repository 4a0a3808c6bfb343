//! Bytes of processes get a name.

use crate::common::{attach, bytes_of, config, serve, tag, wait};
use dunlin_tier::RecordError;
use dunlin_tier::message::Refusal;
use dunlin_tier_client::{AccessError, Lmr, PublishError, Published, RequestError, Rights, Spec};

#[track_caller]
fn assert_refused(published: Result<Published<Lmr>, PublishError>, refusal: RecordError) {
    let Err(PublishError::Request(RequestError::Refused { source, .. })) = published else {
        panic!("not refused: {published:?}");
    };
    assert_eq!(source, Refusal::Record(refusal));
}

#[test]
fn processes_publish_regions_in_place_and_bytes_by_a_copy() {
    let tag = tag("publish");
    let nodes = ["one", "two"].map(|name| serve(config(&tag, &["one", "two"], name), &tag, |_| {}));
    let (app, other) = (attach(&nodes[0].address), attach(&nodes[1].address));
    // Longer than one request of a copy.
    let bytes: Vec<u8> = (0..300_001u32).map(|at| (at * 7) as u8).collect();
    for (number, store) in ["one", "two"].into_iter().enumerate() {
        let name = format!("p/{number}");
        let buffer = app.malloc(bytes.len() as u64, Spec::on(store)).unwrap();
        buffer.write(0, &bytes).unwrap();
        let published = app.publish(&buffer, Spec::here().named(&name)).unwrap();
        assert!(matches!(published, Published::InPlace));
        let view = other.map(&name, Rights::READ).unwrap();
        wait("the bytes", || (bytes_of(&view).unwrap() == bytes).then_some(()));
        buffer.fetch_add(0, 1).unwrap();
        wait("the same bytes", || (bytes_of(&view).unwrap()[0] == bytes[0] + 1).then_some(()));
        assert_refused(app.publish(&buffer, Spec::here().named("other")), RecordError::Named);
        // The region is named, so it outlives its last handle; the spec of another node asks for a copy.
        drop(buffer);
        drop(view);
        other.map(&name, Rights::ALL).unwrap().free().unwrap();
    }

    let buffer = app.malloc(bytes.len() as u64, Spec::on("one")).unwrap();
    buffer.write(0, &bytes).unwrap();
    let Published::Copied(copy) = app.publish(&buffer, Spec::on("two").named("c/1")).unwrap() else {
        panic!("not copied");
    };
    let own = app.publish(&bytes[..], Spec::on("two").named("c/2")).unwrap();
    assert!(own.is_copied());
    buffer.memset(0, buffer.len(), 1).unwrap();
    for name in ["c/1", "c/2"] {
        let view = other.map(name, Rights::READ).unwrap();
        wait("the copy", || (bytes_of(&view).unwrap() == bytes).then_some(()));
    }
    assert_refused(app.publish(&buffer, Spec::here().named("c/1")), RecordError::Taken);
    assert!(matches!(app.publish(&buffer, Spec::here()), Err(PublishError::NoName)));
    let foreign = attach(&nodes[0].address).publish(&buffer, Spec::here().named("d"));
    assert!(matches!(foreign, Err(PublishError::Request(RequestError::Access(AccessError::NoHandle)))));
    copy.free().unwrap();
    // The name is free, and the region that could not get it has it now.
    assert!(matches!(app.publish(&buffer, Spec::here().named("c/1")).unwrap(), Published::InPlace));
}
