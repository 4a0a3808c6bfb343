//! The allocator of a node's arena. Memory is given out zeroed: a block that is released becomes dirty, and only
//! the caller's report that it was zeroed makes it free again.

use crate::ledger::Changes;
use crate::place::{LmrId, NodeId};
use crate::rights::Principal;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;
use thiserror::Error;

mod kept;

/// The smallest block, in bytes: a cache line, so that two regions never share one.
pub const UNIT: u64 = 64;

/// The most bytes that a caller zeroes at a time: a thread may wait for that. In tests, short blocks have parts, too.
const CLEANED_AT_ONCE: u64 = if cfg!(test) { 4096 } else { 4 << 20 };

/// The reason why memory cannot be given out or taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SpaceError {
    /// No free block is large enough.
    #[error("no {wanted} contiguous bytes are free: free regions, or give the node more memory")]
    Full {
        /// The length requested, in bytes.
        wanted: u64,
        /// Released bytes that are not zeroed yet: zero them and try again.
        dirty: u64,
    },
    /// The length is zero.
    #[error("a block has at least 1 byte")]
    Empty,
}

/// A block of an extent. Its length is a power of two times [`UNIT`], and its offset a multiple of its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Block {
    /// The extent.
    pub extent: u16,
    /// The offset in the extent, in bytes.
    pub offset: u64,
    /// The length in bytes, at least the length requested.
    pub length: u64,
}

/// The free blocks of an extent by order, as sets: memory grows with the number of free blocks and not with the
/// extent.
#[derive(Clone, Debug, Default)]
struct Buddy {
    /// For each order, the numbers of the free blocks' first units.
    free: Vec<BTreeSet<u64>>,
}

impl Buddy {
    fn new(units: u64) -> Buddy {
        let orders = (u64::BITS - units.leading_zeros()) as usize;
        let mut buddy = Buddy { free: vec![BTreeSet::new(); orders] };
        let mut at = 0;
        for order in (0..orders).rev() {
            if units - at >= 1 << order {
                buddy.free[order].insert(at);
                at += 1 << order;
            }
        }
        buddy
    }

    /// Returns the order of the smallest free block that has this order at least.
    fn smallest(&self, order: usize) -> Option<usize> {
        (order..self.free.len()).find(|order| !self.free[*order].is_empty())
    }

    fn take(&mut self, order: usize) -> Option<u64> {
        let from = self.smallest(order)?;
        let unit = self.free[from].pop_first()?;
        for split in (order..from).rev() {
            self.free[split].insert(unit + (1 << split));
        }
        Some(unit)
    }

    fn give(&mut self, mut unit: u64, mut order: usize) {
        while order + 1 < self.free.len() && self.free[order].remove(&(unit ^ 1 << order)) {
            unit &= !(1 << order);
            order += 1;
        }
        self.free[order].insert(unit);
    }
}

/// An extent.
#[derive(Clone, Debug)]
struct Extent {
    buddy: Buddy,
    bytes: u64,
    /// The bytes that are free and zeroed.
    free: u64,
    /// The only user of the extent. Without one, all users share it.
    tenant: Option<Principal>,
    /// Processes of the tenant that were given the extent.
    holders: u32,
}

impl Extent {
    fn is_free(&self) -> bool {
        self.free == self.bytes && self.holders == 0
    }
}

/// The memory of a node: extents, each a buddy allocator.
#[derive(Clone, Debug, Default)]
pub struct Space {
    extents: Vec<Extent>,
    /// Blocks in use: the order by owner, extent and offset.
    used: BTreeMap<(LmrId, u16, u64), u8>,
    /// All blocks that are not free, by extent and offset: their order, and the owner, or none if they are dirty.
    blocks: BTreeMap<(u16, u64), (u8, Option<LmrId>)>,
    dirty: VecDeque<Block>,
    dirty_bytes: u64,
    free_bytes: u64,
    /// Blocks that [`next_dirty`](Space::next_dirty) has given out to be zeroed.
    cleaning: BTreeSet<Block>,
    /// Blocks, and extents, whose entries in a ledger may be older.
    changes: Changes<(u16, u64)>,
    tenants: Changes<u16>,
}

impl Space {
    /// Makes an allocator without memory.
    pub fn new() -> Space {
        Space::default()
    }

    /// Adds an extent of zeroed memory; returns its number, or `None` if there are 65 536 already. Bytes beyond a
    /// multiple of [`UNIT`] stay unused.
    pub fn add_extent(&mut self, bytes: u64) -> Option<u16> {
        let number = u16::try_from(self.extents.len()).ok()?;
        let (buddy, bytes) = (Buddy::new(bytes / UNIT), bytes / UNIT * UNIT);
        self.extents.push(Extent { buddy, bytes, free: bytes, tenant: None, holders: 0 });
        self.free_bytes += bytes;
        Some(number)
    }

    /// Returns the bytes that are free and zeroed.
    pub fn free_bytes(&self) -> u64 {
        self.free_bytes
    }

    /// Returns the bytes that were released and are not zeroed yet.
    pub fn dirty_bytes(&self) -> u64 {
        self.dirty_bytes
    }

    /// Gives `owner` a zeroed block of at least `length` bytes, out of the smallest free block of all extents that users
    /// share.
    pub fn allocate(&mut self, owner: LmrId, length: u64) -> Result<Block, SpaceError> {
        self.allocate_in(None, owner, length)
    }

    /// As [`allocate`](Space::allocate), out of an extent of which all bytes belong to `tenant`. Without room in those
    /// that it has, it gets one that is free; the last one that users share stays theirs.
    pub fn allocate_for(
        &mut self,
        tenant: &Principal,
        owner: LmrId,
        length: u64,
    ) -> Result<Block, SpaceError> {
        self.allocate_in(Some(tenant), owner, length)
    }

    fn allocate_in(
        &mut self,
        tenant: Option<&Principal>,
        owner: LmrId,
        length: u64,
    ) -> Result<Block, SpaceError> {
        if length == 0 {
            return Err(SpaceError::Empty);
        }
        let full = SpaceError::Full { wanted: length, dirty: self.dirty_bytes };
        let units = length.div_ceil(UNIT).checked_next_power_of_two().ok_or(full)?;
        let order = units.trailing_zeros() as usize;
        let smallest = |extents: &[Extent], may: &dyn Fn(&Extent) -> bool| {
            let extents = extents.iter().zip(0u16..).filter(|(extent, _)| may(extent));
            let fits = extents.filter_map(|(extent, number)| Some((extent.buddy.smallest(order)?, number)));
            Some(fits.min()?.1)
        };
        let shared = self.extents.iter().filter(|extent| extent.tenant.is_none()).count();
        let number = smallest(&self.extents, &|extent| extent.tenant.as_ref() == tenant).or_else(|| {
            let may = tenant.is_some() && shared > 1;
            smallest(&self.extents, &|extent| may && extent.tenant.is_none() && extent.is_free())
        });
        let extent = number.ok_or(full)?;
        let found = &mut self.extents[usize::from(extent)];
        let unit = found.buddy.take(order).ok_or(full)?;
        let block = Block { extent, offset: unit * UNIT, length: units * UNIT };
        found.tenant = tenant.cloned();
        found.free -= block.length;
        self.used.insert((owner, extent, block.offset), order as u8);
        self.blocks.insert((extent, block.offset), (order as u8, Some(owner)));
        self.changes.note((extent, block.offset));
        self.tenants.note(extent);
        self.free_bytes -= block.length;
        Ok(block)
    }

    /// Takes back all blocks of `owner`, and returns their bytes. The blocks are dirty until they are zeroed. A
    /// repetition finds no blocks and has no effect, so a request that may have been executed can be sent again.
    pub fn release(&mut self, owner: LmrId) -> u64 {
        let mut released = 0;
        let range = (owner, 0, 0)..=(owner, u16::MAX, u64::MAX);
        while let Some((&(_, extent, offset), &order)) = self.used.range(range.clone()).next() {
            self.used.remove(&(owner, extent, offset));
            self.blocks.insert((extent, offset), (order, None));
            let block = Block { extent, offset, length: UNIT << order };
            released += block.length;
            self.changes.note((extent, offset));
            self.dirty.push_back(block);
        }
        self.dirty_bytes += released;
        released
    }

    /// Returns the bytes of blocks of regions for which `is_lent` holds.
    pub fn lent(&self, is_lent: impl Fn(LmrId) -> bool) -> u64 {
        let others = self.used.iter().filter(|((owner, ..), _)| is_lent(*owner));
        others.map(|(_, order)| UNIT << order).sum()
    }

    /// Returns regions for which `is_lent` holds, each with the bytes of its blocks, in the order of their ids: at most
    /// `most`, after the id `after`.
    pub fn lent_regions(
        &self,
        is_lent: impl Fn(LmrId) -> bool,
        after: Option<LmrId>,
        most: usize,
    ) -> Vec<(LmrId, u64)> {
        let mut found: Vec<(LmrId, u64)> = Vec::new();
        let start = after.map_or(Bound::Unbounded, |after| Bound::Excluded((after, u16::MAX, u64::MAX)));
        for ((owner, ..), order) in self.used.range((start, Bound::Unbounded)) {
            let length = UNIT << order;
            if let Some((_, bytes)) = found.last_mut().filter(|(last, _)| last == owner) {
                *bytes += length;
            } else if is_lent(*owner) {
                if found.len() == most {
                    break;
                }
                found.push((*owner, length));
            }
        }
        found
    }

    /// Returns whether a region whose id is of `node` has a block.
    pub fn lends_to(&self, node: NodeId) -> bool {
        let first = LmrId { node, slot: 0, generation: 0 };
        self.used.range((first, 0, 0)..).next().is_some_and(|((owner, ..), _)| owner.node == node)
    }

    /// Returns whether `owner` has a block.
    pub fn has(&self, owner: LmrId) -> bool {
        self.used.range((owner, 0, 0)..=(owner, u16::MAX, u64::MAX)).next().is_some()
    }

    /// Returns whether `length` bytes at a place lie in one block of `owner`.
    pub fn owns(&self, owner: LmrId, extent: u16, offset: u64, length: u64) -> bool {
        let before = self.used.range((owner, extent, 0)..=(owner, extent, offset)).next_back();
        before.is_some_and(|(&(_, _, start), &order)| {
            let within = offset - start;
            let block = UNIT << order;
            within <= block && length <= block - within
        })
    }

    /// Returns a dirty block to be zeroed by the caller, the oldest first, or a part of at most 4 MiB.
    /// No other caller gets it.
    pub fn next_dirty(&mut self) -> Option<Block> {
        let mut block = self.dirty.pop_front()?;
        while block.length > CLEANED_AT_ONCE {
            block.length /= 2;
            let rest = Block { offset: block.offset + block.length, ..block };
            let order = (block.length / UNIT).trailing_zeros() as u8;
            for part in [block, rest] {
                self.blocks.insert((part.extent, part.offset), (order, None));
                self.changes.note((part.extent, part.offset));
            }
            self.dirty.push_front(rest);
        }
        self.cleaning.insert(block);
        Some(block)
    }

    /// Reports that a block from [`next_dirty`](Space::next_dirty) was zeroed: it is free. Returns `false`, without
    /// a change, for any other block.
    pub fn cleaned(&mut self, block: Block) -> bool {
        if !self.cleaning.remove(&block) {
            return false;
        }
        self.blocks.remove(&(block.extent, block.offset));
        self.changes.note((block.extent, block.offset));
        self.dirty_bytes -= block.length;
        self.free_bytes += block.length;
        if let Some(extent) = self.extents.get_mut(usize::from(block.extent)) {
            extent.buddy.give(block.offset / UNIT, (block.length / UNIT).trailing_zeros() as usize);
            extent.free += block.length;
        }
        self.end_tenancy(block.extent);
        true
    }

    /// An extent without blocks and without holders is free for all.
    fn end_tenancy(&mut self, extent: u16) {
        let number = extent;
        if let Some(extent) = self.extents.get_mut(usize::from(extent)).filter(|extent| extent.is_free()) {
            extent.tenant = None;
            self.tenants.note(number);
        }
    }

    /// Returns the only user of an extent, if it has one.
    pub fn tenant(&self, extent: u16) -> Option<&Principal> {
        self.extents.get(usize::from(extent))?.tenant.as_ref()
    }

    /// Returns the number of extents.
    pub fn extents(&self) -> u16 {
        // No more are added.
        self.extents.len() as u16
    }

    /// Returns the number of extents whose only user is one of these.
    pub fn extents_of(&self, is_one: impl Fn(&Principal) -> bool) -> u16 {
        self.extents.iter().filter(|extent| extent.tenant.as_ref().is_some_and(&is_one)).count() as u16
    }

    /// A process of the tenant is given an extent: it stays the tenant's until the process has ended.
    pub fn hold(&mut self, extent: u16) {
        if let Some(extent) = self.extents.get_mut(usize::from(extent)) {
            extent.holders += 1;
        }
    }

    /// A process that was given an extent has ended.
    pub fn let_go(&mut self, extent: u16) {
        if let Some(extent) = self.extents.get_mut(usize::from(extent)) {
            extent.holders = extent.holders.saturating_sub(1);
        }
        self.end_tenancy(extent);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::NodeId;

    use proptest::prelude::*;

    fn owner(slot: u32) -> LmrId {
        LmrId { node: NodeId(0), slot, generation: 1 }
    }

    /// Ids of other nodes than this one.
    fn not(node: u16) -> impl Fn(LmrId) -> bool {
        move |id| id.node != NodeId(node)
    }

    #[test]
    fn released_memory_is_not_given_out_before_it_is_zeroed() {
        let mut space = Space::new();
        space.add_extent(4096);
        let block = space.allocate(owner(1), 4096).unwrap();
        assert_eq!((space.lent(not(0)), space.lent(not(1))), (0, 4096));
        assert_eq!(space.release(owner(1)), 4096);
        let full = SpaceError::Full { wanted: 1, dirty: 4096 };
        assert_eq!(space.allocate(owner(2), 1), Err(full));
        assert_eq!(space.next_dirty(), Some(block));
        assert_eq!(space.next_dirty(), None);
        assert_eq!(space.allocate(owner(2), 1), Err(full), "it is being zeroed");
        assert!(!space.cleaned(Block { length: 64, ..block }));
        assert!(space.cleaned(block) && !space.cleaned(block));
        assert_eq!(space.allocate(owner(2), 4096), Ok(block));
    }

    #[test]
    fn a_long_block_is_zeroed_in_parts() {
        let mut space = Space::new();
        space.add_extent(4 * CLEANED_AT_ONCE);
        let whole = space.allocate(owner(1), 4 * CLEANED_AT_ONCE).unwrap();
        space.release(owner(1));
        let parts: Vec<Block> = std::iter::from_fn(|| space.next_dirty()).collect();
        let offsets: Vec<u64> = parts.iter().map(|part| part.offset).collect();
        assert_eq!(offsets, [0, 1, 2, 3].map(|at| at * CLEANED_AT_ONCE));
        for part in &parts[1..] {
            assert!(part.length == CLEANED_AT_ONCE && space.cleaned(*part));
        }
        assert_eq!(space.dirty_bytes(), CLEANED_AT_ONCE);
        assert_eq!(space.allocate(owner(2), 2 * CLEANED_AT_ONCE).unwrap().offset, 2 * CLEANED_AT_ONCE);
        space.release(owner(2));
        assert!(space.cleaned(parts[0]));
        while let Some(part) = space.next_dirty() {
            assert!(space.cleaned(part));
        }
        assert_eq!(space.allocate(owner(3), whole.length), Ok(whole));
    }

    #[test]
    fn a_release_concerns_one_owner_and_has_one_effect() {
        let mut space = Space::new();
        space.add_extent(4096);
        for slot in [1, 2, 1, 3] {
            assert_eq!(space.allocate(owner(slot), 100).unwrap().length, 128);
        }
        assert!(space.owns(owner(2), 0, 128, 128) && space.owns(owner(2), 0, 200, 56));
        assert!(!space.owns(owner(2), 0, 200, 57) && !space.owns(owner(2), 0, 127, 1));
        assert!(!space.owns(owner(2), 1, 128, 1) && !space.owns(owner(2), 0, 128, u64::MAX));
        assert_eq!(space.release(owner(1)), 256);
        assert_eq!(space.release(owner(1)), 0);
        assert!(!space.owns(owner(1), 0, 0, 1) && space.owns(owner(2), 0, 128, 1));
        assert_eq!(space.release(LmrId { generation: 2, ..owner(2) }), 0);
        assert_eq!((space.dirty_bytes(), space.free_bytes()), (256, 4096 - 512));
    }

    #[test]
    fn regions_of_other_nodes_are_listed_in_parts() {
        let mut space = Space::new();
        space.add_extent(4096);
        space.add_extent(4096);
        let other = |node: u16, slot| LmrId { node: NodeId(node), ..owner(slot) };
        for id in [owner(1), other(2, 5), other(1, 9), other(2, 5), other(1, 4), owner(7)] {
            space.allocate(id, 100).unwrap();
        }
        let all = [(other(1, 4), 128), (other(1, 9), 128), (other(2, 5), 256)];
        assert_eq!(space.lent_regions(not(0), None, 9), all);
        assert_eq!([0, 1, 2, 3].map(|node| space.lends_to(NodeId(node))), [true, true, true, false]);
        assert_eq!(space.lent_regions(not(0), None, 2), all[..2]);
        assert_eq!(space.lent_regions(not(0), Some(other(1, 9)), 2), all[2..]);
        assert_eq!(space.lent_regions(not(0), Some(other(2, 5)), 2), []);
        assert_eq!(space.lent_regions(not(1), None, 9), [(owner(1), 128), (owner(7), 128), all[2]]);
    }

    #[test]
    fn the_smallest_block_of_all_extents_is_taken() {
        let mut space = Space::new();
        space.add_extent(4096);
        space.add_extent(1024);
        let place = |block: Block| (block.extent, block.offset);
        assert_eq!(place(space.allocate(owner(1), 1024).unwrap()), (1, 0));
        assert_eq!(place(space.allocate(owner(2), 1024).unwrap()), (0, 0));
        assert_eq!(space.release(owner(1)), 1024);
        let block = space.next_dirty().unwrap();
        assert!(space.cleaned(block));
        assert_eq!(place(space.allocate(owner(3), 2048).unwrap()), (0, 2048));
        assert_eq!(
            place(space.allocate(owner(4), 64).unwrap()),
            (0, 1024),
            "the first of two of the same size"
        );
    }

    #[test]
    fn an_extent_that_a_process_was_given_goes_to_no_other_user() {
        let [alice, bob] = ["alice", "bob"].map(|name| Principal::new(name).unwrap());
        let mut space = Space::new();
        assert_eq!([(); 3].map(|()| space.add_extent(1024)), [Some(0), Some(1), Some(2)]);
        let all_is_zeroed = |space: &mut Space| {
            while let Some(block) = space.next_dirty() {
                assert!(space.cleaned(block));
            }
        };
        let full = Err(SpaceError::Full { wanted: 1024, dirty: 0 });
        let block = space.allocate_for(&alice, owner(1), 512).unwrap();
        assert_eq!(space.tenant(block.extent), Some(&alice));
        assert_eq!(
            space.allocate_for(&alice, owner(2), 512).unwrap().extent,
            block.extent,
            "she has it already"
        );
        let bobs = space.allocate_for(&bob, owner(3), 64).unwrap().extent;
        assert_ne!(bobs, block.extent);
        assert_eq!(space.allocate_for(&bob, owner(4), 1024), full, "the last one is shared");
        let shared = space.allocate(owner(5), 1024).unwrap().extent;
        assert!(shared != bobs && shared != block.extent && space.tenant(shared).is_none());
        assert_eq!(space.allocate(owner(6), 64), Err(SpaceError::Full { wanted: 64, dirty: 0 }));
        space.hold(block.extent);
        (1..=2).for_each(|slot| assert_eq!(space.release(owner(slot)), 512));
        all_is_zeroed(&mut space);
        assert_eq!(space.tenant(block.extent), Some(&alice), "her process lives");
        assert_eq!(space.allocate_for(&bob, owner(7), 1024), full);
        assert_eq!(space.allocate_for(&alice, owner(8), 64).unwrap().extent, block.extent);
        space.let_go(block.extent);
        assert_eq!(space.tenant(block.extent), Some(&alice), "she has a block");
        space.release(owner(8));
        assert_eq!(space.tenant(block.extent), Some(&alice), "it is not zeroed");
        all_is_zeroed(&mut space);
        assert_eq!(space.tenant(block.extent), None);
        assert_eq!(space.allocate(owner(9), 1024).unwrap().extent, block.extent);
    }

    #[test]
    fn impossible_lengths_are_refused() {
        let mut space = Space::new();
        assert_eq!(space.allocate(owner(1), 1), Err(SpaceError::Full { wanted: 1, dirty: 0 }));
        space.add_extent(100);
        assert_eq!(space.free_bytes(), 64);
        assert_eq!(space.allocate(owner(1), 0), Err(SpaceError::Empty));
        assert!(matches!(space.allocate(owner(1), u64::MAX), Err(SpaceError::Full { .. })));
        assert!(space.allocate(owner(1), 64).is_ok());
    }

    proptest! {
        /// Blocks never overlap, lie in their extents, and all memory is whole again at the end.
        #[test]
        fn blocks_never_overlap(
            extents in prop::collection::vec(64u64..40_000, 1..4),
            steps in prop::collection::vec((1u64..9000, any::<bool>(), any::<prop::sample::Index>()), 1..150),
        ) {
            let mut space = Space::new();
            for bytes in &extents {
                space.add_extent(*bytes);
            }
            let total = space.free_bytes();
            let mut held: Vec<(u32, Block)> = Vec::new();
            let users = [None, Principal::new("alice").ok(), Principal::new("bob").ok()];
            // The users of the blocks in each extent.
            let user = |number: u32| users[number as usize % 3].as_ref();
            for (number, (length, keep, which)) in (0u32..).zip(steps) {
                if let Ok(block) = space.allocate_in(user(number), owner(number), length) {
                    prop_assert_eq!(space.tenant(block.extent), user(number));
                    for (other, _) in held.iter().filter(|(_, other)| other.extent == block.extent) {
                        prop_assert_eq!(user(*other), user(number), "an extent has one user");
                    }
                    prop_assert!(block.length >= length && block.length < (2 * length).max(128));
                    prop_assert!(block.offset + block.length <= extents[usize::from(block.extent)]);
                    for (_, other) in held.iter().filter(|(_, other)| other.extent == block.extent) {
                        let apart = block.offset + block.length <= other.offset || other.offset + other.length <= block.offset;
                        prop_assert!(apart, "{block:?} {other:?}");
                    }
                    held.push((number, block));
                }
                if !keep && !held.is_empty() {
                    let (number, block) = held.swap_remove(which.index(held.len()));
                    prop_assert_eq!(space.release(owner(number)), block.length);
                }
                if keep && let Some(block) = space.next_dirty() {
                    prop_assert!(space.cleaned(block));
                }
                let used: u64 = held.iter().map(|(_, block)| block.length).sum();
                prop_assert_eq!(space.free_bytes() + space.dirty_bytes() + used, total);
            }
            for (number, _) in held {
                space.release(owner(number));
            }
            while let Some(block) = space.next_dirty() {
                space.cleaned(block);
            }
            prop_assert_eq!(space.free_bytes(), total);
            for (extent, bytes) in space.extents.iter().zip(&extents) {
                let fresh = Buddy::new(bytes / UNIT);
                prop_assert_eq!(&extent.buddy.free, &fresh.free, "everything is whole again");
                prop_assert_eq!(&extent.tenant, &None);
            }
        }
    }
}
