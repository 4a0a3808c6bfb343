//! Messages as bytes, and any bytes as messages.

use super::*;
use crate::holders::Holder;
use crate::place::Piece;
use crate::record::{Listed, MAX_KEEPERS};
use proptest::prelude::*;

fn id() -> impl Strategy<Value = LmrId> {
    (any::<u16>(), any::<u32>(), any::<u64>()).prop_map(|(node, slot, generation)| LmrId {
        node: NodeId(node),
        slot,
        generation,
    })
}

fn name() -> impl Strategy<Value = Name> {
    prop::collection::vec(any::<u8>(), 1..=255).prop_map(|bytes| Name::new(bytes).unwrap())
}

fn principal() -> impl Strategy<Value = Principal> {
    "[a-z]{1,64}".prop_map(|text| Principal::new(&text).unwrap())
}

fn rights() -> impl Strategy<Value = Rights> {
    (0u8..8).prop_map(|bits| Rights::from_bits(bits).unwrap())
}

fn grants() -> impl Strategy<Value = Grants> {
    (principal(), prop::collection::vec((principal(), rights()), 0..5)).prop_map(|(creator, others)| {
        let mut grants = Grants::of_creator(creator.clone());
        for (other, rights) in others {
            grants.grant(&creator, Grantee::Principal(other), rights).unwrap();
        }
        grants
    })
}

fn listed() -> impl Strategy<Value = Listed> {
    (name(), any::<u64>(), rights()).prop_map(|(name, length, rights)| Listed { name, length, rights })
}

fn epoch() -> impl Strategy<Value = Epoch> {
    any::<[u64; 2]>().prop_map(|[number, directory]| Epoch { number, directory })
}

fn keepers() -> impl Strategy<Value = Keepers> {
    prop::collection::vec(any::<u16>().prop_map(NodeId), 1..=MAX_KEEPERS).prop_map(|nodes| {
        let mut keepers = Keepers::new(nodes[0]);
        nodes.iter().for_each(|node| {
            keepers.add(*node);
        });
        keepers
    })
}

fn layout() -> impl Strategy<Value = Layout> {
    (1usize..20, 1u32..5000, any::<u16>(), any::<Option<u64>>()).prop_map(|(count, length, node, memory)| {
        let piece = Piece { node: NodeId(node), extent: 1, length, offset: 77 };
        let layout = Layout::new(vec![piece; count]).unwrap();
        layout.in_memories(memory.map(|memory| (NodeId(node), memory)))
    })
}

fn request() -> impl Strategy<Value = Request> {
    let node = any::<u16>().prop_map(NodeId).boxed();
    let to = prop_oneof![Just(Grantee::Anyone), principal().prop_map(Grantee::Principal)];
    let place = (id(), any::<u16>(), any::<u64>()).boxed();
    let copied = (place.clone(), id());
    prop_oneof![
        (name(), id(), any::<bool>()).prop_map(|(name, id, is_fixed)| {
            let epoch =
                if is_fixed { Epoch::default() } else { Epoch { number: id.generation | 1, directory: 5 } };
            Request::Claim { name, id, epoch }
        }),
        name().prop_map(|name| Request::Lookup { name }),
        (name(), id()).prop_map(|(name, id)| Request::Forget { name, id }),
        id().prop_map(|id| Request::Exists { id }),
        (epoch(), id()).prop_map(|(epoch, owner)| Request::Stores { epoch, owner }),
        (epoch(), any::<[bool; 2]>(), prop::collection::vec(id(), 0..4))
            .prop_map(|(epoch, [by_handle, stops], ids)| Request::Known { epoch, by_handle, stops, ids }),
        id().prop_map(|id| Request::LetGo { id }),
        (id(), any::<u64>(), any::<u32>()).prop_map(|(owner, length, piece)| Request::Allocate {
            owner,
            length,
            piece
        }),
        (id(), any::<u64>(), any::<u64>()).prop_map(|(owner, length, least)| Request::Ring {
            owner,
            length,
            least
        }),
        id().prop_map(|owner| Request::Release { owner }),
        (id(), rights(), node.clone(), principal())
            .prop_map(|(id, wanted, mapper, principal)| Request::Map { id, wanted, mapper, principal }),
        (id(), node.clone()).prop_map(|(id, mapper)| Request::Unmap { id, mapper }),
        (id(), rights(), principal(), to, any::<bool>()).prop_map(|(id, rights, by, to, grants)| {
            match grants {
                true => Request::Grant { id, rights, by, to },
                false => Request::Revoke { id, rights, by, from: to },
            }
        }),
        (epoch(), id(), grants()).prop_map(|(epoch, id, grants)| Request::Restrict { epoch, id, grants }),
        (id(), node.clone()).prop_map(|(id, node)| Request::AddKeeper { id, node }),
        (id(), any::<u64>(), epoch(), node.clone(), prop::collection::vec(any::<u8>(), 0..50)).prop_map(
            |(id, version, epoch, from, record)| {
                let is_new = record.len() % 2 == 0;
                Request::Keep { id, version, epoch, from, is_new, record }
            }
        ),
        (epoch(), id(), any::<bool>()).prop_map(|(epoch, id, ends)| match ends {
            true => Request::Unkeep { id },
            false => Request::Record { epoch, id },
        }),
        (id(), principal(), any::<Option<u64>>()).prop_map(|(id, by, length)| Request::Lease {
            id,
            by,
            length
        }),
        (id(), principal()).prop_map(|(id, by)| Request::Free { id, by }),
        (epoch(), id(), any::<bool>()).prop_map(|(epoch, id, moves)| Request::Stop { epoch, id, moves }),
        (id(), principal(), node.clone()).prop_map(|(id, by, to)| Request::Move { id, by, to }),
        (id(), node.clone(), node.clone()).prop_map(|(id, from, to)| Request::MoveAway { id, from, to }),
        (principal(), any::<u32>()).prop_map(|(principal, from)| Request::List { principal, from }),
        name().prop_map(|service| Request::Serves { service }),
        (node.clone(), any::<[u64; 2]>(), prop::collection::vec((name(), id()), 0..4), any::<bool>())
            .prop_map(|(node, [number, directory], names, is_last)| {
                let epoch = Epoch { number, directory };
                Request::Rehome { node, epoch, names, is_last }
            }),
        (id(), node).prop_map(|(id, mapper)| Request::Fence { id, mapper }),
        (place.clone(), any::<u64>()).prop_map(|((owner, extent, offset), add)| Request::FetchAdd {
            owner,
            extent,
            offset,
            add
        }),
        (place.clone(), any::<u64>(), any::<u64>()).prop_map(|((owner, extent, offset), expected, swap)| {
            Request::CompareSwap { owner, extent, offset, expected, swap }
        }),
        (place, any::<u32>(), any::<u8>()).prop_map(|((owner, extent, offset), length, value)| {
            Request::Set { owner, extent, offset, length, value }
        }),
        (copied, any::<u32>(), any::<u64>(), any::<bool>(), principal()).prop_map(
            |(((owner, extent, offset), to), length, target, backwards, principal)| {
                let priority = if length % 2 == 0 { Priority::Low } else { Priority::High };
                Request::Copy { owner, extent, offset, length, to, target, backwards, principal, priority }
            }
        ),
    ]
}

fn reply() -> impl Strategy<Value = Reply> {
    prop_oneof![
        Just(Reply::Done),
        any::<bool>().prop_map(Reply::Flag),
        (id(), keepers()).prop_map(|(id, keepers)| Reply::Found(id, keepers)),
        prop::collection::vec(any::<u16>().prop_map(NodeId), 0..5).prop_map(Reply::Kept),
        prop::collection::vec(id(), 0..5).prop_map(Reply::Known),
        (any::<u64>(), prop::collection::vec(id(), 0..5))
            .prop_map(|(life, ids)| Reply::KnownIn { life, ids }),
        prop::collection::vec(any::<u8>(), 0..50).prop_map(Reply::Record),
        any::<u64>().prop_map(Reply::Old),
        layout().prop_map(Reply::Allocated),
        (rights(), layout(), id()).prop_map(|(rights, layout, id)| Reply::Mapped(Mapping {
            rights,
            layout,
            id
        })),
        (prop::collection::vec(listed(), 0..5), any::<Option<u32>>())
            .prop_map(|(regions, next)| Reply::Listed(Listing { regions, next })),
        rights().prop_map(Reply::Left),
        refusal().prop_map(Reply::Refused),
    ]
}

fn holders(all: Vec<(u16, u32)>) -> Holders {
    all.into_iter().map(|(node, process)| Holder { node: NodeId(node), process }).collect()
}

fn refusal() -> impl Strategy<Value = Refusal> {
    prop_oneof![
        Just(RecordError::NoSuch.into()),
        (rights(), rights()).prop_map(|(wanted, has)| RecordError::Denied { wanted, has }.into()),
        Just(RecordError::from(GrantError::NotMaster).into()),
        (rights(), rights())
            .prop_map(|(has, grants)| RecordError::from(GrantError::Exceeds { has, grants }).into()),
        Just(RecordError::from(GrantError::TooMany).into()),
        Just(RecordError::from(GrantError::LastMaster).into()),
        Just(RecordError::Taken.into()),
        Just(RecordError::Full.into()),
        Just(RecordError::Named.into()),
        Just(RecordError::Moving.into()),
        Just(RecordError::NoName.into()),
        Just(Refusal::NotCopied),
        prop::collection::vec(any::<(u16, u32)>(), 0..6).prop_map(|all| Refusal::InUse(holders(all))),
        any::<u64>().prop_map(|wanted| Refusal::OutOfMemory { wanted }),
        Just(Refusal::NoPlace),
        Just(Refusal::Malformed),
        Just(Refusal::Target),
        any::<u64>().prop_map(|epoch| Refusal::Rehoming { epoch }),
        any::<[u64; 2]>().prop_map(|[has, quota]| RecordError::Quota { has, quota }.into()),
        any::<u16>().prop_map(|node| Refusal::Waits(NodeId(node))),
        any::<u16>().prop_map(|node| Refusal::Drains(NodeId(node))),
        any::<u16>().prop_map(|node| Refusal::Elsewhere(NodeId(node))),
        any::<u16>().prop_map(|node| Refusal::Untold(NodeId(node))),
        Just(RecordError::Unsettled.into()),
    ]
}

proptest! {
    #[test]
    fn requests_and_replies_come_back_whole(request in request(), reply in reply()) {
        prop_assert_eq!(Request::parse(&request.encode()), Ok(request));
        prop_assert_eq!(Reply::parse(&reply.encode()), Ok(reply));
    }

    /// Shortened, lengthened and random messages are refused or understood, and never cause a panic.
    #[test]
    fn any_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..300), request in request(), reply in reply(), cut in any::<prop::sample::Index>()) {
        let _ = (Request::parse(&bytes), Reply::parse(&bytes));
        for (good, is_request) in [(request.encode(), true), (reply.encode(), false)] {
            let mut short = good.clone();
            short.truncate(cut.index(good.len()));
            let long = [&good[..], &[1]].concat();
            if is_request {
                prop_assert!(Request::parse(&short).is_err() && Request::parse(&long).is_err());
            } else {
                prop_assert!(Reply::parse(&short).is_err() && Reply::parse(&long).is_err());
            }
            let mut changed = good;
            let at = cut.index(changed.len());
            changed[at] ^= bytes.first().copied().unwrap_or(1);
            let _ = (Request::parse(&changed), Reply::parse(&changed));
        }
    }
}

#[test]
fn a_count_of_pieces_without_pieces_allocates_nothing() {
    let mut bytes = vec![4];
    bytes.extend_from_slice(&u32::MAX.to_le_bytes());
    assert_eq!(Reply::parse(&bytes), Err(Malformed));
}
