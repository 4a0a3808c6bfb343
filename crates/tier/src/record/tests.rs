//! Tests of the records.

use super::*;
use crate::place::Piece;
use crate::rights::MAX_GRANTS;
use std::collections::BTreeSet;

const ME: NodeId = NodeId(4);

pub(super) fn principal(name: &str) -> Principal {
    Principal::new(name).unwrap()
}

pub(super) fn layout() -> Layout {
    Layout::new(vec![Piece { node: NodeId(1), extent: 0, length: 64, offset: 0 }]).unwrap()
}

fn made(directory: &mut Directory, name: Option<&str>) -> LmrId {
    let id = directory.reserve().unwrap();
    let name = name.map(|name| Name::new(name).unwrap());
    directory.create(id, name, layout(), principal("alice"), ME);
    id
}

#[test]
fn a_region_without_a_right_looks_absent() {
    let mut directory = Directory::new(ME, 9);
    let id = made(&mut directory, Some("a/b"));
    let (alice, bob) = (principal("alice"), principal("bob"));
    let absent = LmrId { slot: 7, ..id };
    for wanted in [Rights::NONE, Rights::READ, Rights::ALL] {
        let refused = directory.map(id, &bob, wanted, NodeId(2));
        assert_eq!(refused, directory.map(absent, &bob, wanted, NodeId(2)));
        assert_eq!(refused, Err(RecordError::NoSuch));
    }
    let to_bob = Grantee::Principal(bob.clone());
    assert_eq!(directory.grant(id, &bob, to_bob.clone(), Rights::READ), Err(RecordError::NoSuch));
    assert!(matches!(directory.begin_free(id, Some(&bob)), Err(RecordError::NoSuch)));
    directory.grant(id, &alice, to_bob, Rights::READ).unwrap();
    let denied = RecordError::Denied { wanted: Rights::WRITE, has: Rights::READ };
    assert_eq!(directory.map(id, &bob, Rights::WRITE, NodeId(2)), Err(denied));
    let mapping = directory.map(id, &bob, Rights::READ, NodeId(2)).unwrap();
    assert_eq!((mapping.rights, mapping.layout), (Rights::READ, layout()));
    let denied = RecordError::Denied { wanted: Rights::MASTER, has: Rights::READ };
    assert_eq!(directory.begin_free(id, Some(&bob)).unwrap_err(), denied);
}

#[test]
fn a_region_that_is_freed_looks_absent_at_once_and_its_id_is_not_used_again() {
    let mut directory = Directory::new(ME, 9);
    let id = made(&mut directory, Some("a/b"));
    let alice = principal("alice");
    directory.map(id, &alice, Rights::READ, NodeId(2)).unwrap();
    let Ending { machine: retirement, name, .. } = directory.begin_free(id, Some(&alice)).unwrap();
    assert_eq!(name, Some(Name::new("a/b").unwrap()));
    assert_eq!(retirement.mappers().collect::<Vec<_>>(), [NodeId(2), ME]);
    assert_eq!(directory.map(id, &alice, Rights::READ, NodeId(2)), Err(RecordError::NoSuch));
    assert!(matches!(directory.begin_free(id, Some(&alice)), Err(RecordError::NoSuch)));
    assert!(directory.exists(id));
    directory.forget(id);
    directory.forget(id);
    assert!(!directory.exists(id) && directory.is_empty());
    let next = made(&mut directory, None);
    assert_eq!((next.slot, next.generation), (id.slot, id.generation + 1));
    assert_eq!(directory.map(id, &alice, Rights::READ, NodeId(2)), Err(RecordError::NoSuch));
    assert_eq!(directory.len(), 1);
}

#[test]
fn names_that_their_homes_have_given_are_told_in_parts() {
    let mut directory = Directory::new(ME, 9);
    let count = NAMES_AT_ONCE as u32 + 3;
    let ids: Vec<LmrId> =
        (0..count).map(|number| made(&mut directory, Some(&format!("n/{number}")))).collect();
    made(&mut directory, None);
    assert_eq!(directory.names(0, |_| true), (Vec::new(), None), "no home has given them");
    ids.iter().for_each(|id| directory.named(*id));
    directory.begin_free(ids[1], None).unwrap();
    let (mut told, next) = directory.names(0, |name| name.as_bytes() != b"n/2");
    assert_eq!((told.len(), next), (NAMES_AT_ONCE, Some(count - 1)));
    let (rest, next) = directory.names(count - 1, |_| true);
    assert_eq!(next, None);
    told.extend(rest);
    let expected = ids.iter().filter(|id| ![1, 2].contains(&id.slot)).copied();
    assert_eq!(told.iter().map(|(_, id)| *id).collect::<Vec<_>>(), expected.collect::<Vec<_>>());
}

/// Another node has a region without a name mapped only while it copies, and may not report the end of it.
#[test]
fn a_region_without_a_name_ends_with_the_last_handle_of_its_own_node() {
    let mut directory = Directory::new(ME, 9);
    let (id, alice) = (made(&mut directory, None), principal("alice"));
    directory.map(id, &alice, Rights::READ, ME).unwrap();
    for _ in 0..2 {
        directory.map(id, &alice, Rights::READ, NodeId(2)).unwrap();
    }
    assert!(!directory.unmap(id, NodeId(2)) && !directory.unmap(id, ME));
    assert!(!directory.unmap(id, NodeId(3)), "a node that never mapped it");
    assert!(directory.unmap(id, ME), "the count of node 2 may be too high");
    let ending = directory.begin_free(id, None).unwrap();
    assert_eq!(ending.machine.mappers().collect::<Vec<_>>(), [NodeId(2)], "it is stopped, or fenced");
    assert!(!directory.unmap(id, NodeId(2)), "it ends once");
    let named = made(&mut directory, Some("x"));
    assert!(!directory.unmap(named, ME));
}

#[test]
fn a_move_changes_the_places_in_one_step_and_every_id_names_the_region() {
    let mut directory = Directory::new(ME, 9);
    let (alice, bob) = (principal("alice"), principal("bob"));
    let unnamed = made(&mut directory, None);
    assert!(matches!(directory.begin_move(unnamed, Some(&alice)), Err(RecordError::NoName)));
    let id = made(&mut directory, Some("a"));
    assert!(matches!(directory.begin_move(id, Some(&bob)), Err(RecordError::NoSuch)));
    directory.grant(id, &alice, Grantee::Principal(bob.clone()), Rights::READ).unwrap();
    assert!(matches!(directory.begin_move(id, Some(&bob)), Err(RecordError::Denied { .. })));
    let before = directory.map(id, &bob, Rights::READ, NodeId(2)).unwrap();
    assert_eq!(before.id, id);

    let leaving = directory.begin_move(id, Some(&alice)).unwrap();
    assert_eq!((leaving.memory, &leaving.layout), (id, &layout()));
    assert_eq!(leaving.machine.mappers().collect::<Vec<_>>(), [NodeId(2), ME]);
    assert_eq!(directory.map(id, &bob, Rights::READ, NodeId(2)), Err(RecordError::Moving));
    assert!(matches!(directory.begin_free(id, Some(&alice)), Err(RecordError::Moving)));
    assert!(matches!(directory.begin_move(id, Some(&alice)), Err(RecordError::Moving)));
    directory.abandon_move(id);
    assert_eq!(directory.map(id, &bob, Rights::READ, NodeId(2)), Ok(before));

    let mut last = id;
    for node in 5..8 {
        directory.begin_move(last, Some(&alice)).unwrap();
        let to = directory.reserve().unwrap();
        let piece = Piece { node: NodeId(node), extent: 0, length: 64, offset: 0 };
        let places = Layout::new(vec![piece]).unwrap();
        directory.create(to, None, places.clone(), alice.clone(), ME);
        directory.finish_move(last, to).unwrap();
        for number in [id, to] {
            let after = directory.map(number, &bob, Rights::READ, NodeId(3)).unwrap();
            assert_eq!((after.id, after.layout), (to, places.clone()));
        }
        directory.forget_memory(last);
        assert_eq!(directory.exists(last), last == id, "the first id stays");
        last = to;
    }
    assert!(!directory.unmap(last, NodeId(3)) && !directory.unmap(id, NodeId(3)));
    let ending = directory.begin_free(last, Some(&alice)).unwrap();
    assert_eq!((ending.id, ending.memory, ending.machine.waits_for().len()), (id, last, 3));
    directory.forget(ending.id);
    assert!(!directory.exists(id) && !directory.exists(last));
    directory.forget(unnamed);
    assert!(directory.is_empty());
}

/// A thread begins to move a region by the id that its handle has. The move before forgets that id meanwhile, since its
/// memory is free again.
#[test]
fn a_move_ends_though_the_id_by_which_it_began_is_forgotten() {
    let mut directory = Directory::new(ME, 9);
    let alice = principal("alice");
    let id = made(&mut directory, Some("a"));
    let move_by = |directory: &mut Directory, id| {
        let leaving = directory.begin_move(id, Some(&alice)).unwrap();
        let to = directory.reserve().unwrap();
        directory.create(to, None, layout(), alice.clone(), ME);
        (leaving, to)
    };
    let (first, handle) = move_by(&mut directory, id);
    directory.finish_move(first.id, handle).unwrap();
    let (second, to) = move_by(&mut directory, handle);
    directory.finish_move(second.id, to).unwrap();
    // The memory that the second move leaves is free only after the third one has begun.
    let (third, to) = move_by(&mut directory, handle);
    directory.forget_memory(second.memory);
    assert!(!directory.exists(handle));
    directory.finish_move(third.id, to).unwrap();
    assert_eq!(directory.map(id, &alice, Rights::READ, NodeId(2)).unwrap().id, to);
    let (fourth, _) = move_by(&mut directory, to);
    directory.forget_memory(third.memory);
    directory.abandon_move(fourth.id);
    assert!(directory.map(id, &alice, Rights::READ, NodeId(2)).is_ok());
}

/// A node that was taken for dead moves a region, and the node that follows it gives the move up.
#[test]
fn the_memory_of_a_move_that_was_given_up_elsewhere_ends_with_the_region() {
    let (mut first, mut other, id) = shared();
    let alice = principal("alice");
    assert_eq!(other.agree(id, &first.record_for(id).unwrap(), 0), Ok(true));
    assert!(!other.agreed(id));
    first.begin_move(id, Some(&alice)).unwrap();
    let to = first.reserve().unwrap();
    first.create(to, None, layout(), alice, NodeId(1));
    assert!(first.finish_move(id, to).unwrap());
    assert_eq!(other.lose(&BTreeSet::from([NodeId(1)]), 0), [id]);
    // It is a keeper again when it has come back.
    let mut record = other.clone();
    let (_, version) = record.version(id).unwrap();
    record.settle(id, version);
    assert!(record.add_keeper(id, NodeId(1)).unwrap());
    first.doubt();
    first.adopt(id, &record.record_for(id).unwrap(), 0).unwrap();
    assert!(first.exists(to), "a later version may have it still");
    first.forget_gone(to);
    assert!(first.exists(to));
    first.forget(id);
    assert!(!first.exists(to) && !first.exists(id));
    let used = first.used();
    first.forget_gone(to);
    assert_eq!(first.used(), used - 1);
    // The id of another region stays.
    let next = made(&mut first, Some("b"));
    first.forget_gone(next);
    first.forget_gone(to);
    assert!(first.exists(next));
}

/// The memory that a region has left is released late. Its id names nothing once the region is gone, whoever has the
/// region's slot then.
#[test]
fn an_old_id_does_not_name_the_next_region_of_the_slot() {
    let mut directory = Directory::new(ME, 9);
    let alice = principal("alice");
    let id = made(&mut directory, Some("a"));
    let mut places = Vec::new();
    for _ in 0..2 {
        directory.begin_move(id, Some(&alice)).unwrap();
        let to = directory.reserve().unwrap();
        directory.create(to, None, layout(), alice.clone(), ME);
        directory.finish_move(id, to).unwrap();
        places.push(to);
    }
    // No node has released the memory of the first move yet.
    let old = places[0];
    assert!(directory.exists(old) && directory.map(old, &alice, Rights::READ, NodeId(2)).is_ok());
    let ending = directory.begin_free(id, Some(&alice)).unwrap();
    directory.forget(ending.id);
    let next = loop {
        let next = made(&mut directory, Some("b"));
        if next.slot == id.slot {
            break next;
        }
    };
    assert_eq!(directory.map(old, &alice, Rights::READ, NodeId(2)), Err(RecordError::NoSuch));
    assert!(!directory.unmap(old, ME) && directory.begin_free(old, None).is_err());
    assert!(directory.map(next, &alice, Rights::READ, NodeId(2)).is_ok());
    directory.forget_memory(old);
    assert!(!directory.exists(old) && directory.exists(next));
}

#[test]
fn a_region_gets_a_name_once_and_only_from_a_master() {
    let mut directory = Directory::new(ME, 9);
    let (alice, bob) = (principal("alice"), principal("bob"));
    let id = made(&mut directory, None);
    let name = Name::new("a/b").unwrap();
    let to_bob = [(Grantee::Principal(bob.clone()), Rights::READ)];
    let publish = |directory: &mut Directory, by, stores: &[NodeId], grants: &[_]| {
        directory.publish(id, by, stores, &name, grants)
    };
    assert_eq!(publish(&mut directory, &bob, &[], &[]), Err(RecordError::NoSuch));
    directory.grant(id, &alice, to_bob[0].0.clone(), Rights::READ).unwrap();
    let denied = RecordError::Denied { wanted: Rights::MASTER, has: Rights::READ };
    assert_eq!(publish(&mut directory, &bob, &[], &[]), Err(denied));
    let grants = |directory: &mut Directory| directory.live(id).unwrap().grants.clone();
    let before = grants(&mut directory);
    // The bytes are elsewhere, or the grants are too many: nothing changes.
    let nodes = layout().nodes();
    let other = [NodeId(77), nodes[0]];
    for stores in [&other[..1], &other] {
        assert_eq!(publish(&mut directory, &alice, stores, &to_bob), Ok(None));
    }
    let grantee = |number| Grantee::Principal(principal(&format!("p{number}")));
    let many: Vec<_> = (0..MAX_GRANTS).map(|number| (grantee(number), Rights::READ)).collect();
    let too_many = RecordError::Grant(GrantError::TooMany);
    assert_eq!(publish(&mut directory, &alice, &nodes, &many), Err(too_many));
    assert_eq!((grants(&mut directory), directory.first_names(9).1), (before.clone(), 0));

    let all = [(Grantee::Anyone, Rights::WRITE)];
    assert_eq!(publish(&mut directory, &alice, &nodes, &all), Ok(Some(before.clone())));
    assert_eq!(publish(&mut directory, &alice, &[], &[]), Err(RecordError::Named));
    assert_eq!(directory.first_names(9), (vec![name.clone()], 1));
    directory.map(id, &bob, Rights::WRITE, NodeId(2)).unwrap();
    directory.unpublish(id, before.clone());
    assert_eq!((grants(&mut directory), directory.first_names(9).1), (before, 0));
    directory.begin_free(id, None).unwrap();
    assert_eq!(publish(&mut directory, &alice, &[], &[]), Err(RecordError::NoSuch));
}

#[test]
fn a_quota_counts_until_the_region_is_forgotten() {
    let mut directory = Directory::new(ME, 9);
    let (alice, bob) = (principal("alice"), principal("bob"));
    let (first, second) = (directory.reserve().unwrap(), directory.reserve().unwrap());
    directory.charge(first, &alice, 60, 100).unwrap();
    let over = RecordError::Quota { has: 101, quota: 100 };
    assert_eq!(directory.charge(second, &alice, 41, 100), Err(over));
    let most = RecordError::Quota { has: u64::MAX, quota: 100 };
    assert_eq!(directory.charge(second, &alice, u64::MAX, 100), Err(most));
    directory.charge(second, &bob, 100, 100).unwrap();
    directory.forget(first);
    directory.forget(first);
    assert_eq!((directory.charged(&alice), directory.charged(&bob)), (0, 100));
    assert_eq!(directory.charge(first, &alice, 1, 100), Err(RecordError::NoSuch), "the id is forgotten");
}

#[test]
fn a_list_has_what_the_principal_may_use_in_parts() {
    let mut directory = Directory::new(ME, 9);
    for number in 0..300 {
        made(&mut directory, Some(&format!("a/{number}")));
    }
    made(&mut directory, None);
    let (mut from, mut found) = (Some(0), Vec::new());
    while let Some(at) = from {
        let part = directory.list(&principal("alice"), at);
        assert!(part.regions.len() <= LISTED_AT_ONCE);
        found.extend(part.regions);
        from = part.next;
    }
    assert_eq!(found.len(), 300);
    assert!(found.iter().all(|listed| listed.rights == Rights::ALL && listed.length == 64));
    assert_eq!(directory.list(&principal("bob"), 0), Listing::default());
    assert_eq!(directory.list(&principal("alice"), u32::MAX), Listing::default());
}

#[test]
fn a_revocation_begins_with_the_mappers_and_the_grants_that_are_left() {
    let mut directory = Directory::new(ME, 9);
    let id = made(&mut directory, Some("a"));
    let (alice, bob, carol) = (principal("alice"), principal("bob"), principal("carol"));
    let to = |principal: &Principal| Grantee::Principal(principal.clone());
    directory.grant(id, &alice, to(&bob), Rights::READ.with(Rights::WRITE)).unwrap();
    directory.map(id, &bob, Rights::WRITE, NodeId(8)).unwrap();
    let from = to(&bob);
    let refused = |directory: &mut Directory, by| directory.begin_revoke(id, by, &from, Rights::WRITE);
    assert!(matches!(refused(&mut directory, &carol), Err(RecordError::NoSuch)));
    assert!(matches!(refused(&mut directory, &bob), Err(RecordError::Denied { .. })));
    let last = directory.begin_revoke(id, &alice, &to(&alice), Rights::MASTER);
    assert!(matches!(last, Err(RecordError::Grant(GrantError::LastMaster))));

    let revoking = directory.begin_revoke(id, &alice, &from, Rights::WRITE).unwrap();
    assert_eq!((revoking.memory, revoking.left), (id, Rights::READ));
    assert!(revoking.machine.mappers().eq([ME, NodeId(8)]) && !revoking.machine.is_harmless());
    assert_eq!(revoking.grants.of(&bob), Rights::READ);
    let (wanted, has) = (Rights::WRITE, Rights::READ);
    assert!(matches!(
        directory.map(id, &bob, wanted, NodeId(8)),
        Err(RecordError::Denied { wanted: asked, has: left }) if (asked, left) == (wanted, has)
    ));
}

#[test]
fn leases_run_out_in_their_order_and_end_with_their_regions() {
    let mut directory = Directory::new(ME, 9);
    let (alice, bob) = (principal("alice"), principal("bob"));
    let [first, second, third] = ["a", "b", "c"].map(|name| made(&mut directory, Some(name)));
    let overdue = |directory: &Directory, now| directory.overdue(now).collect::<Vec<_>>();
    assert_eq!(directory.next_lease_end(), None);
    for (id, length) in [(first, 30), (second, 20), (third, u64::MAX)] {
        directory.lease(id, &alice, Some(length), 100).unwrap();
    }
    assert_eq!((directory.next_lease_end(), overdue(&directory, 119)), (Some(120), vec![]));
    assert_eq!(overdue(&directory, 130), [second, first]);
    // A renewal begins now, and one is as good as another.
    directory.lease(second, &alice, Some(20), 125).unwrap();
    assert_eq!(overdue(&directory, 144), [first]);
    directory.lease(first, &alice, None, 130).unwrap();
    assert_eq!((overdue(&directory, 145), directory.next_lease_end()), (vec![second], Some(145)));
    // It is overdue until the free begins, which a move delays.
    directory.begin_move(second, None).unwrap();
    assert_eq!(directory.begin_free(second, None).unwrap_err(), RecordError::Moving);
    assert_eq!(overdue(&directory, 150), [second]);
    directory.abandon_move(second);
    directory.begin_free(second, None).unwrap();
    assert_eq!(overdue(&directory, u64::MAX - 1), []);
    directory.forget(second);
    directory.forget(third);
    assert_eq!(directory.next_lease_end(), None);
    // Masters alone, of regions with a name.
    assert_eq!(directory.lease(first, &bob, Some(1), 0), Err(RecordError::NoSuch));
    directory.grant(first, &alice, Grantee::Principal(bob.clone()), Rights::READ).unwrap();
    let denied = RecordError::Denied { wanted: Rights::MASTER, has: Rights::READ };
    assert_eq!(directory.lease(first, &bob, Some(1), 0), Err(denied));
    let nameless = made(&mut directory, None);
    assert_eq!(directory.lease(nameless, &alice, Some(1), 0), Err(RecordError::NoName));
    assert_eq!(directory.lease(second, &alice, Some(1), 0), Err(RecordError::NoSuch));
    // A name that no home has given takes its lease with it.
    let name = Name::new("late").unwrap();
    let before = directory.publish(nameless, &alice, &[], &name, &[]).unwrap().unwrap();
    directory.lease(nameless, &alice, Some(1), 0).unwrap();
    directory.unpublish(nameless, before);
    assert_eq!(directory.next_lease_end(), None);
}

/// A record that another node keeps, too, by its own directory.
fn shared() -> (Directory, Directory, LmrId) {
    let [mut first, mut other] = [1, 2].map(|node| Directory::new(NodeId(node), 9));
    let id = made(&mut first, Some("r"));
    first.named(id);
    assert!(first.add_keeper(id, NodeId(2)).unwrap());
    other.adopt(id, &first.record_for(id).unwrap(), 0).unwrap();
    (first, other, id)
}

#[test]
fn a_new_keeper_maps_nothing_until_the_others_say_that_it_is_one() {
    let (first, mut other, id) = shared();
    let map = |other: &mut Directory| other.map(id, &principal("alice"), Rights::READ, NodeId(3));
    assert_eq!(other.standing(id), Some(Standing::New));
    assert_eq!(map(&mut other), Err(RecordError::Unsettled));
    // The message that told it may be late, and so may a later version, or the death of the first keeper.
    other.adopt(id, &first.record_for(id).unwrap(), 0).unwrap();
    assert_eq!(other.lose(&BTreeSet::from([NodeId(1)]), 0), []);
    other.doubt();
    assert_eq!(other.standing(id), Some(Standing::New));
    assert_eq!(other.agree(id, &first.record_for(id).unwrap(), 0), Ok(true));
    assert!(!other.agreed(id));
    assert!(map(&mut other).is_ok());
    assert_eq!(other.mappers(id), [NodeId(3)]);
}

/// The answer of another keeper may be older than the end of the region.
#[test]
fn an_answer_about_a_forgotten_record_makes_none() {
    let (first, mut other, id) = shared();
    let answer = first.record_for(id).unwrap();
    other.forget(id);
    assert_eq!(other.agree(id, &answer, 0), Ok(false));
    assert_eq!(other.keepers(id), None);
}

/// A node may have mapped a region at several keepers, and closes any of its handles.
#[test]
fn a_node_stays_listed_where_others_keep_the_record() {
    let (mut first, _, id) = shared();
    first.map(id, &principal("alice"), Rights::READ, NodeId(3)).unwrap();
    first.unmap(id, NodeId(3));
    assert!(first.mappers(id).contains(&NodeId(3)));
}
