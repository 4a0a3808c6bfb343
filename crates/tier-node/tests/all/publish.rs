//! Bytes that exist get a name: in place where they lie in an arena, else as a copy, which is said.

use crate::cluster::{assert_absent, in_virtual_time, on_shared_memory};
use dunlin_fabric::{Fabric, Host};
use dunlin_tier::RecordError;
use dunlin_tier::message::Refusal;
use dunlin_tier_node::{AccessError, Lmr, PublishError, Published, RequestError, Rights, Spec, Tier};

#[track_caller]
fn assert_refused<F: Fabric>(published: Result<Published<Lmr<F>>, PublishError>, refusal: RecordError) {
    match published {
        Err(PublishError::Request(RequestError::Refused { source, .. })) => {
            assert_eq!(source, Refusal::Record(refusal));
        }
        other => panic!("not refused: {other:?}"),
    }
}

fn bytes_of<F: Fabric>(region: &Lmr<F>) -> Vec<u8> {
    let mut bytes = vec![0; region.len() as usize];
    region.read(0, &mut bytes).unwrap();
    bytes
}

fn bytes_are_published<F: Fabric>([alice, bob, carol]: &[Tier<F>; 3]) {
    let bytes: Vec<u8> = (0..50_000u32).map(|at| (at * 3) as u8).collect();
    let free = bob.free_memory();

    // A buffer in an arena, the own one or that of another node, and one of two nodes.
    for (number, stores) in [&[][..], &["bob"], &["carol", "bob"]].into_iter().enumerate() {
        let name = format!("p/{number}");
        let buffer = alice.malloc(bytes.len() as u64, Spec::spread(stores.iter().copied())).unwrap();
        buffer.write(0, &bytes).unwrap();
        let spec = Spec::spread(stores.iter().copied()).named(&name).grant("carol", Rights::READ);
        let published = alice.publish(&buffer, spec).unwrap();
        assert!(matches!(published, Published::InPlace) && !published.is_copied());
        let view = carol.map(&name, Rights::READ).unwrap();
        assert_absent(bob.map(&name, Rights::READ));
        // The handle is the region's still, and the bytes are the same ones.
        buffer.write(7, b"seen by all").unwrap();
        // The node that stores the bytes may see them later than the writer knows that they are there.
        let mut found = [0; 11];
        let host = alice.fabric().host();
        for _ in 0..1000 {
            view.read(7, &mut found).unwrap();
            if found == *b"seen by all" {
                break;
            }
            host.sleep(host.now() + 10_000);
        }
        assert_eq!((&found, bytes_of(&view)[18]), (b"seen by all", bytes[18]));
        assert_refused(alice.publish(&buffer, Spec::here().named("other")), RecordError::Named);
        drop((view, buffer));
        // With its name, it lives without handles.
        carol.map(&name, Rights::READ).unwrap();
        alice.map(&name, Rights::ALL).unwrap().free().unwrap();
    }

    // The spec says another node, or the bytes are of the process: a copy.
    let buffer = alice.malloc(bytes.len() as u64, Spec::on("bob")).unwrap();
    buffer.write(0, &bytes).unwrap();
    let spec = Spec::spread(["carol", "bob"]).named("c/1").grant("bob", Rights::READ);
    let Published::Copied(copy) = alice.publish(&buffer, spec).unwrap() else { panic!("not copied") };
    let Published::Copied(other) =
        alice.publish(&bytes[..], Spec::on("carol").named("c/2").grant("bob", Rights::READ)).unwrap()
    else {
        panic!("not copied")
    };
    buffer.memset(0, buffer.len(), 9).unwrap();
    assert_eq!(bytes_of(&bob.map("c/1", Rights::READ).unwrap()), bytes);
    assert_eq!(bytes_of(&bob.map("c/2", Rights::READ).unwrap()), bytes);

    // A name that is taken, a grant that is refused, no name, no bytes: the region is as before.
    assert_refused(alice.publish(&buffer, Spec::here().named("c/1")), RecordError::Taken);
    assert_refused(alice.publish(&bytes[..], Spec::here().named("c/1")), RecordError::Taken);
    let many = (0..64).fold(Spec::here().named("m"), |spec, at| spec.grant(&format!("p{at}"), Rights::READ));
    let too_many = alice.publish(&buffer, many).unwrap_err();
    assert!(too_many.to_string().contains("refuses") && !too_many.may_have_executed(), "{too_many:?}");
    assert!(matches!(alice.publish(&buffer, Spec::here()), Err(PublishError::NoName)));
    let unknown = alice.publish(&buffer, Spec::on("dave").named("d"));
    assert!(matches!(unknown, Err(PublishError::Request(RequestError::NoNode(node))) if node == "dave"));
    let empty = alice.publish(&[][..], Spec::here().named("d"));
    assert!(matches!(empty, Err(PublishError::Request(RequestError::Length(0)))));
    // A region of another node of this process.
    let foreign = bob.publish(&buffer, Spec::here().named("d"));
    assert!(matches!(foreign, Err(PublishError::Request(RequestError::Access(AccessError::NoHandle)))));
    for name in ["m", "d"] {
        assert_absent(alice.map(name, Rights::READ));
    }
    assert!(matches!(alice.publish(&buffer, Spec::here().named("d")).unwrap(), Published::InPlace));

    for region in [copy, other, buffer] {
        region.free().unwrap();
    }
    // Failed publications left nothing behind.
    let more = bob.malloc(free, Spec::here()).unwrap();
    assert_eq!(more.len(), free);
}

#[test]
fn bytes_are_published_on_shared_memory() {
    on_shared_memory(bytes_are_published);
}

#[test]
fn bytes_are_published_in_virtual_time() {
    for (seed, atomics) in [(1, true), (2, false)] {
        in_virtual_time(seed, atomics, bytes_are_published);
    }
}
