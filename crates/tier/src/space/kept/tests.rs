use super::*;
use crate::place::{LmrId, NodeId};
use crate::rights::Principal;
use proptest::prelude::*;
use std::collections::BTreeMap;

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

fn extents(lengths: &[u64]) -> Space {
    let mut space = Space::new();
    for length in lengths {
        space.add_extent(*length);
    }
    space
}

fn recovered(lengths: &[u64], kept: &Kept) -> Result<Space, Malformed> {
    let mut next = extents(lengths);
    kept.0.iter().try_for_each(|(key, value)| next.recover(key[0], &key[1..], value))?;
    next.end_recovery();
    Ok(next)
}

fn owner(slot: u32) -> LmrId {
    LmrId { node: NodeId(0), slot, generation: 1 }
}

proptest! {
    /// After any changes, the next life has the same blocks: in use, dirty and free.
    #[test]
    fn the_next_life_has_the_same_blocks(
        lengths in prop::collection::vec(64u64..9000, 1..4),
        steps in prop::collection::vec((0u8..5, 0u32..8, 1u64..3000), 0..60),
    ) {
        let (mut space, mut kept) = (extents(&lengths), Kept::default());
        space.watch();
        let alice = Principal::new("alice").unwrap();
        for (step, slot, length) in steps {
            match step {
                0 => drop(space.allocate(owner(slot), length)),
                1 => drop(space.allocate_for(&alice, owner(slot), length)),
                2 => drop(space.release(owner(slot))),
                3 => drop(space.next_dirty()),
                _ => {
                    if let Some(block) = space.cleaning.first().copied() {
                        assert!(space.cleaned(block));
                    }
                }
            }
            space.report(&mut kept);
        }
        let mut next = recovered(&lengths, &kept).unwrap();
        prop_assert_eq!((next.free_bytes(), next.dirty_bytes()), (space.free_bytes(), space.dirty_bytes()));
        prop_assert_eq!((&next.used, &next.blocks), (&space.used, &space.blocks));
        for (here, there) in space.extents.iter().zip(&next.extents) {
            prop_assert_eq!((&here.tenant, here.free), (&there.tenant, there.free));
            prop_assert_eq!(&here.buddy.free, &there.buddy.free);
        }
        // All of it comes back.
        for slot in 0..8 {
            next.release(owner(slot));
        }
        while let Some(block) = next.next_dirty() {
            prop_assert!(next.cleaned(block));
        }
        prop_assert_eq!(next.free_bytes(), extents(&lengths).free_bytes());
    }

    /// Blocks that overlap, lie outside, or are not aligned are refused.
    #[test]
    fn any_blocks_are_read_without_a_panic_and_never_overlap(
        blocks in prop::collection::vec((0u16..3, 0u64..5000, 0u8..70, 0u8..3), 0..20), noise in prop::collection::vec(any::<u8>(), 0..20),
    ) {
        let mut space = extents(&[4096, 1000]);
        let all = space.free_bytes();
        let _ = space.recover(Space::TABLES[0], &noise, &noise);
        let _ = space.recover(Space::TABLES[1], &noise, &noise);
        for (extent, offset, order, kind) in blocks {
            let key = Writer(Vec::new()).u16(extent).u64(offset / 8 * 8).bytes();
            let value = Writer::new(kind).u8(order).id(owner(1)).bytes();
            if space.recover(Space::TABLES[0], &key, if kind == DIRTY { &value[..2] } else { &value }).is_err() {
                return Ok(());
            }
            let mut taken = 0;
            let mut end = (0, 0);
            for ((extent, offset), (order, _)) in &space.blocks {
                prop_assert!((*extent, *offset) >= end);
                end = (*extent, offset + (UNIT << order));
                taken += UNIT << order;
            }
            prop_assert_eq!(space.free_bytes() + taken, all);
        }
    }
}
