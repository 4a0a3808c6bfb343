//! Registered buffers of this process, which peers can at most read.
//!
//! A buffer is a lease. Posting moves it into the queue pair and the completion returns it, so safe code can
//! neither free nor change memory that a NIC may still access. Dropping a buffer returns it to the arena. The
//! allocator is a buddy system over tables that are allocated once: `reserve` and drop allocate nothing, take
//! a short lock, and round lengths up to a power of two. The last blocks that came back are not joined at once.

use crate::memory::Memory;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};
use thiserror::Error;

/// The reason why a buffer or an arena is not available.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ArenaError {
    /// All blocks of that size are in use.
    #[error(
        "no {wanted} contiguous bytes are free in an arena of {length}: wait for calls to end, or make the arena larger"
    )]
    Exhausted {
        /// The length requested, in bytes.
        wanted: usize,
        /// The arena's length, in bytes.
        length: usize,
    },
    /// Memory that peers can change cannot hold buffers.
    #[error("memory that a peer can write cannot be an arena of buffers; use it as a region")]
    PeerWritable,
}

/// Links are units plus one, and orders of free blocks are orders plus one, so fresh tables are all zeros.
/// The pages of an arena's tables are thus touched only when the arena's memory is.
const NONE: u32 = 0;
/// A unit that does not start a free block.
const NOT_FREE: u8 = 0;

/// Free blocks by order, as doubly linked lists in tables with one entry for each unit.
#[derive(Debug)]
struct Buddy {
    heads: Vec<u32>,
    next: Vec<u32>,
    previous: Vec<u32>,
    order_of_free: Vec<u8>,
}

impl Buddy {
    fn new(units: u32) -> Self {
        let orders = (u32::BITS - units.leading_zeros()) as usize;
        let table = || vec![NONE; units as usize];
        let mut buddy = Buddy {
            heads: vec![NONE; orders],
            next: table(),
            previous: table(),
            order_of_free: vec![NOT_FREE; units as usize],
        };
        // A block starts at a multiple of its size, so a length that is not a power of two is split with its
        // largest blocks first.
        let mut at = 0;
        for order in (0..orders as u8).rev() {
            if units - at >= 1 << order {
                buddy.insert(at, order);
                at += 1 << order;
            }
        }
        buddy
    }

    fn insert(&mut self, unit: u32, order: u8) {
        let head = self.heads[order as usize];
        self.next[unit as usize] = head;
        self.previous[unit as usize] = NONE;
        if head != NONE {
            self.previous[head as usize - 1] = unit + 1;
        }
        self.heads[order as usize] = unit + 1;
        self.order_of_free[unit as usize] = order + 1;
    }

    fn remove(&mut self, unit: u32, order: u8) {
        let (next, previous) = (self.next[unit as usize], self.previous[unit as usize]);
        if previous == NONE {
            self.heads[order as usize] = next;
        } else {
            self.next[previous as usize - 1] = next;
        }
        if next != NONE {
            self.previous[next as usize - 1] = previous;
        }
        self.order_of_free[unit as usize] = NOT_FREE;
    }

    fn take(&mut self, order: u8) -> Option<u32> {
        let from = (order..self.heads.len() as u8).find(|o| self.heads[*o as usize] != NONE)?;
        let unit = self.heads[from as usize] - 1;
        self.remove(unit, from);
        for split in (order..from).rev() {
            self.insert(unit + (1 << split), split);
        }
        Some(unit)
    }

    fn give(&mut self, mut unit: u32, mut order: u8) {
        while (order as usize) + 1 < self.heads.len() {
            let buddy = unit ^ (1 << order);
            if self.order_of_free.get(buddy as usize) != Some(&(order + 1)) {
                break;
            }
            self.remove(buddy, order);
            unit &= !(1 << order);
            order += 1;
        }
        self.insert(unit, order);
    }
}

/// The blocks that came back last, which are not joined with their neighbours as long as no other block has to be given
/// out: the next buffer of that size takes one of them, where splitting and joining takes a step for each order.
const SPARES: usize = 8;

/// The free blocks.
#[derive(Debug)]
struct Free {
    buddy: Buddy,
    /// Units and orders, the last one last.
    spares: [(u32, u8); SPARES],
    count: usize,
}

impl Free {
    fn new(units: u32) -> Free {
        Free { buddy: Buddy::new(units), spares: [(0, 0); SPARES], count: 0 }
    }

    fn take(&mut self, order: u8) -> Option<u32> {
        if let Some(place) = self.spares[..self.count].iter().rposition(|(_, spare)| *spare == order) {
            let (unit, _) = self.spares[place];
            self.spares.copy_within(place + 1..self.count, place);
            self.count -= 1;
            return Some(unit);
        }
        self.buddy.take(order).or_else(|| {
            self.join();
            self.buddy.take(order)
        })
    }

    fn join(&mut self) {
        self.spares[..self.count].iter().for_each(|(unit, order)| self.buddy.give(*unit, *order));
        self.count = 0;
    }

    fn give(&mut self, unit: u32, order: u8) {
        if self.count == SPARES {
            let (unit, order) = self.spares[0];
            self.buddy.give(unit, order);
            self.spares.copy_within(1.., 0);
            self.count -= 1;
        }
        self.spares[self.count] = (unit, order);
        self.count += 1;
    }
}

#[derive(Debug)]
struct Inner<M: Memory> {
    free: Mutex<Free>,
    memory: Arc<M>,
    unit: usize,
}

/// An arena of registered buffers. Clones name the same arena; all methods may be called from any thread.
#[derive(Debug)]
pub struct Arena<M: Memory>(Arc<Inner<M>>);

impl<M: Memory> Clone for Arena<M> {
    fn clone(&self) -> Self {
        Arena(Arc::clone(&self.0))
    }
}

impl<M: Memory> Arena<M> {
    /// Makes an arena from memory that peers cannot write. The smallest buffer is 64 bytes, or 1/65536 of the
    /// memory if that is more.
    pub fn new(memory: M) -> Result<Self, ArenaError> {
        let unit = (memory.length() / 65536).next_power_of_two().max(64);
        Arena::of_units(memory, unit)
    }

    /// Makes an arena whose smallest buffer is `unit` bytes, a power of two. Larger units make smaller
    /// tables.
    pub fn with_unit(memory: M, unit: usize) -> Result<Self, ArenaError> {
        debug_assert!(unit.is_power_of_two(), "units are halved and joined");
        Arena::of_units(memory, unit.next_power_of_two().max(64))
    }

    /// Makes an arena that consists of one buffer, which covers all the memory whatever its length.
    pub fn single(memory: M) -> Result<Self, ArenaError> {
        let unit = memory.length();
        Arena::of_units(memory, unit)
    }

    fn of_units(memory: M, unit: usize) -> Result<Self, ArenaError> {
        if memory.access().changes() {
            return Err(ArenaError::PeerWritable);
        }
        let units = u32::try_from(memory.length() / unit.max(1)).unwrap_or(u32::MAX);
        if units == 0 {
            return Err(ArenaError::Exhausted { wanted: unit, length: memory.length() });
        }
        Ok(Arena(Arc::new(Inner { free: Mutex::new(Free::new(units)), memory: Arc::new(memory), unit })))
    }

    /// Returns the memory, for granting it.
    pub fn memory(&self) -> &Arc<M> {
        &self.0.memory
    }

    /// Reserves a buffer of `length` bytes. Its contents are those of its last use.
    pub fn reserve(&self, length: usize) -> Result<Buffer<M>, ArenaError> {
        let exhausted = ArenaError::Exhausted { wanted: length, length: self.0.memory.length() };
        let units = length.div_ceil(self.0.unit).max(1).next_power_of_two();
        let order = units.trailing_zeros() as u8;
        let unit = self.0.free.lock().unwrap_or_else(PoisonError::into_inner).take(order).ok_or(exhausted)?;
        Ok(Buffer { arena: Arc::clone(&self.0), unit, order, begin: 0, length })
    }

    /// Returns whether no buffer of the arena is in use. The answer stays true as long as no other handle of
    /// the arena exists.
    pub fn is_unused(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }

    /// Returns whether two handles name the same arena.
    pub fn same(&self, other: &Arena<M>) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// An exclusively owned block of registered memory. Dereferences to a slice of its current length.
#[derive(Debug)]
pub struct Buffer<M: Memory> {
    arena: Arc<Inner<M>>,
    unit: u32,
    order: u8,
    /// Start of the window, in bytes from the start of the block.
    begin: u32,
    length: usize,
}

impl<M: Memory> Buffer<M> {
    /// Returns the offset in the arena's memory. Together with the arena's key it names the buffer to a peer.
    pub fn offset(&self) -> u64 {
        self.unit as u64 * self.arena.unit as u64 + u64::from(self.begin)
    }

    /// Returns the largest length that the buffer can have from the start of its window.
    pub fn capacity(&self) -> usize {
        (self.arena.unit << self.order) - self.begin as usize
    }

    /// Restricts the buffer to `length` bytes from `begin` of its block, so that an operation concerns only
    /// that part. Returns `false`, without a change, if the block is smaller.
    pub fn set_window(&mut self, begin: usize, length: usize) -> bool {
        let whole = self.arena.unit << self.order;
        let (Ok(start), Some(end)) = (u32::try_from(begin), begin.checked_add(length)) else { return false };
        let fits = end <= whole;
        if fits {
            (self.begin, self.length) = (start, length);
        }
        fits
    }

    /// Sets the length. Returns `false`, without a change, if it exceeds the capacity.
    pub fn set_length(&mut self, length: usize) -> bool {
        let fits = length <= self.capacity();
        if fits {
            self.length = length;
        }
        fits
    }

    /// Returns the memory that contains the buffer.
    pub fn memory(&self) -> &Arc<M> {
        &self.arena.memory
    }

    fn start(&self) -> *mut u8 {
        // SAFETY: the allocator issued a block inside the memory, and the window lies in the block.
        unsafe {
            self.arena.memory.base().as_ptr().add(self.unit as usize * self.arena.unit + self.begin as usize)
        }
    }
}

impl<M: Memory> Deref for Buffer<M> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the block is in bounds, initialised (registered memory is zeroed), shared with no other
        // buffer, and not writable by peers (`Arena::new` refuses such memory).
        unsafe { std::slice::from_raw_parts(self.start(), self.length) }
    }
}

impl<M: Memory> DerefMut for Buffer<M> {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `self` is borrowed exclusively. A granted peer may read concurrently,
        // from outside this program; it sees torn bytes at worst and has to expect them.
        unsafe { std::slice::from_raw_parts_mut(self.start(), self.length) }
    }
}

impl<M: Memory> Drop for Buffer<M> {
    fn drop(&mut self) {
        self.arena.free.lock().unwrap_or_else(PoisonError::into_inner).give(self.unit, self.order);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{Access, HeapMemory};
    use proptest::prelude::*;

    fn arena(length: usize) -> Arena<HeapMemory> {
        Arena::new(HeapMemory::new(length, Access::READ).unwrap()).unwrap()
    }

    #[test]
    fn peers_may_not_write_buffers() {
        let memory = HeapMemory::new(4096, Access::WRITE).unwrap();
        assert_eq!(Arena::new(memory).unwrap_err(), ArenaError::PeerWritable);
    }

    #[test]
    fn all_of_it_can_be_had_and_comes_back() {
        let arena = arena(1 << 20);
        for _ in 0..3 {
            let whole = arena.reserve(1 << 20).unwrap();
            assert_eq!(whole.len(), 1 << 20);
            assert!(arena.reserve(1).is_err());
            drop(whole);
            let parts: Vec<_> = (0..16).map(|_| arena.reserve(1 << 16).unwrap()).collect();
            assert!(arena.reserve(1).is_err());
            drop(parts);
        }
    }

    #[test]
    fn a_single_buffer_is_all_of_it() {
        let arena = Arena::single(HeapMemory::new(5000, Access::READ).unwrap()).unwrap();
        assert!(arena.is_unused());
        let mut whole = arena.reserve(3000).unwrap();
        assert!(!arena.is_unused());
        assert!(arena.reserve(1).is_err());
        assert!(whole.set_length(5000) && !whole.set_length(5001));
        whole.fill(7);
        drop(whole);
        assert!(arena.is_unused());
        assert!(arena.reserve(5001).is_err());
    }

    #[test]
    fn a_window_is_a_part_and_gives_the_whole_back() {
        let arena = arena(1 << 16);
        let mut buffer = arena.reserve(1 << 16).unwrap();
        buffer.fill(1);
        assert!(
            buffer.set_window(1000, 24)
                && !buffer.set_window(65_000, 537)
                && !buffer.set_window(usize::MAX, 2)
        );
        assert_eq!((buffer.offset(), buffer.len(), buffer.capacity()), (1000, 24, 64_536));
        assert!(buffer.set_length(64_536) && !buffer.set_length(64_537) && buffer.set_length(24));
        buffer.fill(2);
        assert!(buffer.set_window(0, 1 << 16));
        assert_eq!(buffer.iter().filter(|byte| **byte == 2).count(), 24);
        assert_eq!([buffer[999], buffer[1000], buffer[1023], buffer[1024]], [1, 2, 2, 1]);
        buffer.set_window(4096, 1);
        drop(buffer);
        assert!(arena.reserve(1 << 16).is_ok());
    }

    proptest! {
        #[test]
        fn buffers_never_overlap(lengths in prop::collection::vec((0usize..9000, any::<bool>()), 1..200), total in 64usize..200_000) {
            let arena = arena(total);
            let mut held: Vec<(Buffer<HeapMemory>, u8)> = Vec::new();
            for (number, (length, keep)) in lengths.into_iter().enumerate() {
                if let Ok(mut buffer) = arena.reserve(length) {
                    buffer.fill(number as u8);
                    held.push((buffer, number as u8));
                }
                if !keep && !held.is_empty() {
                    held.swap_remove(number % held.len());
                }
                for (buffer, mark) in &held {
                    prop_assert!(buffer.iter().all(|b| b == mark));
                }
            }
            held.clear();
            let mut free = arena.0.free.lock().unwrap();
            free.join();
            let largest = free.buddy.heads.iter().rposition(|h| *h != NONE).unwrap();
            prop_assert_eq!(largest + 1, free.buddy.heads.len(), "everything is whole again");
        }
    }
}
