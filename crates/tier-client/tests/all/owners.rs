//! Names that belong to one principal.

use crate::common::{HANG, config, fabric, serve, tag};
use crate::tokens::{ALICE, BOB, attach_by, known};
use dunlin_fabric::{Address, Scheme};
use dunlin_rpc::{Client, ClientConfig, ConnectError};
use dunlin_tier::RecordError;
use dunlin_tier::message::Refusal;
use dunlin_tier_client::{
    AnyLmr, AnyServices, EachCall, LockError, PublishError, RequestError, Rights, Spec, gateway_address,
};
use std::fmt::Debug;
use std::time::Duration;

#[track_caller]
fn other_owner<T: Debug>(result: Result<T, RequestError>) {
    assert!(matches!(result, Err(RequestError::OtherOwner(_))), "{result:?}");
}

#[track_caller]
fn no_lock<T>(result: Result<T, LockError>) {
    match result {
        Err(LockError::Request(error)) => other_owner::<()>(Err(error)),
        Err(error) => panic!("{error:?}"),
        Ok(_) => panic!("it got the lock"),
    }
}

/// Tries everything that needs a name of another principal: each time the same refusal, whether the name is in use or not.
fn is_shut_out<T: AnyServices>(tier: &T, name: &str) {
    let bytes = name.as_bytes();
    other_owner(tier.malloc(64, Spec::here().named(name)).map(drop));
    let mapped = tier.map(bytes, Rights::READ).map(drop);
    let no_such = Refusal::Record(RecordError::NoSuch);
    assert!(matches!(mapped, Err(RequestError::Refused { source, .. }) if source == no_such), "{mapped:?}");
    no_lock(tier.lock(bytes));
    no_lock(tier.lock_within(bytes, Duration::from_secs(1)));
    no_lock(tier.try_lock(bytes));
    no_lock(tier.barrier(bytes, 1));
    no_lock(tier.barrier_within(bytes, 1, Duration::from_secs(1)));
    other_owner(tier.register(bytes, 1).map(drop));
    let to = ("one", bytes, 1);
    other_owner(tier.call_within(HANG, to, b"x", &mut [0; 8]));
    let call = EachCall { node: "one", service: bytes, function: 1, request: b"x" };
    match tier.call_each(HANG, &[call]) {
        // A node refuses the whole list, and the library of processes has an error for each call.
        Ok(each) => each.into_iter().for_each(other_owner),
        refused => other_owner(refused),
    }
    other_owner(tier.send(to, b"x"));
    other_owner(tier.servers(bytes));
}

fn names_have_owners<T: AnyServices>(alice: &T, bob: &T) {
    let region = alice.malloc(64, Spec::here().named("~alice/used")).unwrap();
    let calls = alice.register(b"~alice/used", 1).unwrap();
    let guard = alice.lock(b"~alice/used").unwrap();
    is_shut_out(bob, "~alice/used");
    is_shut_out(bob, "~alice/free");
    is_shut_out(alice, "~bob/free");
    is_shut_out(alice, "~/free");
    drop(guard);
    alice.barrier(b"~alice/used", 1).unwrap();
    assert_eq!(alice.servers(b"~alice/used").unwrap(), ["one"]);
    drop(calls);
    // Grants name others.
    region.grant_anyone(Rights::READ).unwrap();
    bob.map(b"~alice/used", Rights::READ).unwrap().read(0, &mut [0; 64]).unwrap();
    is_shut_out_of_all_but_the_region(bob);
    // Names of all: the first one has them, and others hear so.
    let common = bob.malloc(64, Spec::here().named("common")).unwrap();
    let taken = alice.malloc(64, Spec::here().named("common")).map(drop);
    let is_taken = Refusal::Record(RecordError::Taken);
    assert!(matches!(taken, Err(RequestError::Refused { source, .. }) if source == is_taken), "{taken:?}");
    let held = bob.lock(b"common").unwrap();
    assert!(alice.try_lock(b"common").unwrap().is_none());
    drop(held);
    let registered = bob.register(b"common", 1).unwrap();
    let again = alice.register(b"common", 1).map(drop);
    assert!(matches!(again, Err(RequestError::Registered { .. })), "{again:?}");
    drop(registered);
    common.free().unwrap();
    region.free().unwrap();
}

fn is_shut_out_of_all_but_the_region<T: AnyServices>(bob: &T) {
    other_owner(bob.malloc(64, Spec::here().named("~alice/used")).map(drop));
    no_lock(bob.try_lock(b"~alice/used"));
}

fn not_published<L: Debug>(result: Result<L, PublishError>) {
    match result {
        Err(PublishError::Request(error)) => other_owner::<()>(Err(error)),
        other => panic!("{other:?}"),
    }
}

#[test]
fn names_with_a_tilde_have_owners() {
    let tag = tag("owners");
    let node = serve(config(&tag, &["one"], "one"), &tag, known);
    let [alice, bob] = [ALICE, BOB].map(|token| attach_by(&node, token.as_bytes()).unwrap());
    names_have_owners(&alice, &bob);
    let [its_alice, its_bob] = ["alice", "bob"].map(|name| node.node.acting_for(name).unwrap());
    names_have_owners(&its_alice, &its_bob);

    let spec = || Spec::here().named("~alice/published");
    not_published(bob.publish(&b"bytes"[..], spec()));
    not_published(bob.publish(&bob.malloc(64, Spec::here()).unwrap(), spec()));
    not_published(its_bob.publish(&b"bytes"[..], spec()));
    let _published = alice.publish(&b"bytes"[..], spec()).unwrap();

    let address = Address::new(Scheme::Shm, &format!("{tag}-server")).unwrap();
    other_owner(bob.announce("~alice/service", &address));
    let _announced = alice.announce("~alice/service", &address).unwrap();
    let gateway = gateway_address(&node.address).unwrap();
    let client = |token: &str| {
        let token = token.as_bytes().to_vec();
        let settings =
            ClientConfig { service: "~alice/service".to_owned(), token, ..ClientConfig::default() };
        Client::connect(&fabric(), &gateway, settings)
    };
    for stranger in ["", BOB] {
        assert!(matches!(client(stranger), Err(ConnectError::Unauthorised(_))));
    }
    client(ALICE).unwrap();
}
