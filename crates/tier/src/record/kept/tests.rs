use super::*;
use crate::RecordError;
use crate::cut::Layout;
use crate::ledger::Entries;
use crate::name::Name;
use crate::place::Piece;
use crate::rights::{Grantee, Principal, Rights};
use proptest::prelude::*;

const ME: NodeId = NodeId(4);

#[derive(Default)]
struct Kept(BTreeMap<Vec<u8>, Vec<u8>>);

impl Entries for Kept {
    fn put(&mut self, key: &[u8], value: &[u8]) {
        self.0.insert(key.to_vec(), value.to_vec());
    }
    fn remove(&mut self, key: &[u8]) {
        self.0.remove(key);
    }
}

fn recovered(kept: &Kept) -> Result<Directory, Malformed> {
    let mut next = Directory::new(ME, 9);
    kept.0.iter().try_for_each(|(key, value)| next.recover(&key[1..], value))?;
    Ok(next)
}

fn layout(node: u16) -> Layout {
    Layout::new(vec![Piece { node: NodeId(node), extent: 0, length: 64, offset: 0 }]).unwrap()
}

fn alice() -> Principal {
    Principal::new("alice").unwrap()
}

fn made(directory: &mut Directory, name: Option<&str>) -> LmrId {
    let id = directory.reserve().unwrap();
    let name = name.map(|name| Name::new(name).unwrap());
    directory.create(id, name, layout(1), alice(), ME);
    directory.named(id);
    id
}

fn watched() -> Directory {
    let mut directory = Directory::new(ME, 9);
    directory.watch();
    directory
}

proptest! {
    /// After any changes, the next life has the records that were reported, and answers as the first one.
    #[test]
    fn the_next_life_has_the_same_records(steps in prop::collection::vec((0u8..10, 0usize..6), 0..40)) {
        let (mut directory, mut kept, mut ids) = (watched(), Kept::default(), Vec::new());
        for (step, at) in steps {
            let id: Option<LmrId> = ids.get(at).copied();
            match (step, id) {
                (0, _) => ids.push(made(&mut directory, Some(&format!("name/{at}")))),
                (1, _) => ids.push(made(&mut directory, None)),
                (2, Some(id)) => drop(directory.map(id, &alice(), Rights::READ, NodeId(at as u16))),
                (3, Some(id)) => drop(directory.unmap(id, NodeId(at as u16))),
                (4, Some(id)) => drop(directory.grant(id, &alice(), Grantee::Anyone, Rights::READ)),
                (5, Some(id)) => drop(directory.begin_free(id, None)),
                (6, Some(id)) => directory.forget(id),
                (7, Some(id)) => drop(directory.charge(id, &alice(), 100, u64::MAX)),
                (9, Some(id)) => drop(directory.lease(id, &alice(), Some(at as u64), 70)),
                (8, Some(id)) if directory.begin_move(id, Some(&alice())).is_ok() => {
                    let to = made(&mut directory, None);
                    directory.finish_move(id, to).unwrap();
                }
                _ => {}
            }
            directory.report(&mut kept);
        }
        let mut next = recovered(&kept).unwrap();
        prop_assert_eq!(next.slots.len(), directory.slots.len());
        prop_assert_eq!(next.charged(&alice()), directory.charged(&alice()));
        for (here, there) in directory.slots.iter().zip(&next.slots) {
            prop_assert_eq!(encode(here), encode(there));
        }
        let free = |directory: &Directory| {
            let mut free = directory.free.clone();
            free.sort_unstable();
            free
        };
        prop_assert_eq!(free(&next), free(&directory));
        // The next life counts each lease from its first moment, with its whole length.
        next.begin_leases(7);
        prop_assert_eq!(next.next_lease_end(), directory.next_lease_end().map(|end| end - 70 + 7));
        prop_assert!(next.overdue(u64::MAX).eq(directory.overdue(u64::MAX)));
        let left = next.end_recovery([]);
        let ended = left.frees.into_iter().map(|ending| ending.id);
        ended.chain(left.left).for_each(|id| next.forget(id));
    }

    /// Any bytes are a record or a refusal.
    #[test]
    fn any_bytes_are_read_without_a_panic(
        noise in prop::collection::vec(any::<u8>(), 0..100), flips in prop::collection::vec((any::<prop::sample::Index>(), 0u8..8), 1..20),
    ) {
        let (mut directory, mut kept) = (watched(), Kept::default());
        made(&mut directory, Some("a"));
        directory.report(&mut kept);
        let (key, value) = kept.0.pop_first().unwrap();
        let _ = Directory::new(ME, 9).recover(&key[1..], &noise);
        for (place, bit) in flips {
            let mut value = value.clone();
            let at = place.index(value.len());
            value[at] ^= 1 << bit;
            let mut next = Directory::new(ME, 9);
            if next.recover(&key[1..], &value).is_ok() {
                let left = next.end_recovery([]);
                let ended = left.frees.into_iter().map(|ending| ending.id);
        ended.chain(left.left).for_each(|id| next.forget(id));
            }
        }
    }
}

#[test]
fn work_that_was_under_way_is_found() {
    let (mut directory, mut kept) = (watched(), Kept::default());
    // One that lives on, with a handle here and one elsewhere.
    let lives = made(&mut directory, Some("lives"));
    directory.map(lives, &alice(), Rights::READ, NodeId(7)).unwrap();
    // A free that had begun; a region that nobody has; one whose name its home has not given; an id by itself.
    let freed = made(&mut directory, Some("freed"));
    directory.begin_free(freed, None).unwrap();
    let unused = made(&mut directory, None);
    let claims = directory.reserve().unwrap();
    directory.create(claims, Some(Name::new("claims").unwrap()), layout(1), alice(), ME);
    let reserved = directory.reserve().unwrap();
    // A move that had ended, and one that had not.
    let moved = made(&mut directory, Some("moved"));
    directory.begin_move(moved, Some(&alice())).unwrap();
    let to = made(&mut directory, None);
    directory.finish_move(moved, to).unwrap();
    let moving = made(&mut directory, Some("moving"));
    directory.begin_move(moving, Some(&alice())).unwrap();
    let target = directory.reserve().unwrap();
    directory.create(target, None, layout(2), alice(), ME);
    // The node that copies has mapped it.
    directory.set_target(target);
    directory.map(target, &alice(), Rights::WRITE, NodeId(7)).unwrap();
    directory.report(&mut kept);

    let mut next = recovered(&kept).unwrap();
    let left = next.end_recovery([lives, to]);
    let frees: Vec<LmrId> = left.frees.iter().map(|ending| ending.id).collect();
    assert_eq!(frees, [freed, unused, claims, target]);
    assert_eq!(left.left, [reserved, moved]);
    for id in [lives, moved, to, moving] {
        next.map(id, &alice(), Rights::READ, NodeId(3)).unwrap();
    }
    for Ending { id, memory, .. } in left.frees {
        assert_eq!((memory, next.begin_free(id, None)), (id, Err(RecordError::NoSuch)), "it has begun");
        next.forget(id);
    }
    left.left.iter().for_each(|id| next.forget_left(*id));
    assert!(!next.exists(reserved) && next.exists(moved));
    // This node's handles count once each, whatever the earlier life had counted.
    assert!(!next.unmap(lives, ME));
    assert!(!next.live(lives).unwrap().mappers.contains_key(&ME));
}

#[test]
fn slots_out_of_order_are_refused_and_ids_of_no_region_are_left() {
    let (mut directory, mut kept) = (watched(), Kept::default());
    for _ in 0..300 {
        made(&mut directory, None);
    }
    directory.report(&mut kept);
    assert_eq!(recovered(&kept).unwrap().len(), 300, "the order of keys is that of slots");
    kept.0.pop_first();
    assert!(recovered(&kept).is_err());
    let slot = Slot {
        generation: 1,
        record: None,
        reserved: true,
        alias: Some(LmrId { node: NodeId(1), slot: 5, generation: 3 }),
        charged: None,
        is_copy: false,
    };
    let mut next = Directory::new(ME, 9);
    next.recover(&0u32.to_be_bytes(), &encode(&slot)).unwrap();
    let id = LmrId { node: ME, slot: 0, generation: 1 };
    assert_eq!(next.end_recovery([]), Recovered { left: vec![id], ..Recovered::default() });
}
