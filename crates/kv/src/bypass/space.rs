//! Memory for values: blocks of power-of-two lines, with a free list for each size. The block freed last is
//! reused first, so that a reader with an outdated entry soon finds other content there and must detect it.

/// Bytes of the smallest block.
pub(super) const LINE: usize = 64;
/// Number of block sizes: from one line to 2 MiB.
const ORDERS: usize = 16;

/// A block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Block {
    pub(super) offset: u64,
    order: u8,
}

/// The blocks of one memory.
#[derive(Debug)]
pub(super) struct Space {
    free: [Vec<u32>; ORDERS],
    /// The first line that was never allocated.
    next: u32,
    lines: u32,
}

impl Space {
    /// Creates a space of `bytes` bytes, all free.
    pub(super) fn new(bytes: u64) -> Self {
        let lines = u32::try_from(bytes / LINE as u64).unwrap_or(u32::MAX);
        Space { free: Default::default(), next: 0, lines }
    }

    /// Allocates a block of at least `bytes` bytes.
    pub(super) fn take(&mut self, bytes: usize) -> Option<Block> {
        let order = bytes.div_ceil(LINE).max(1).next_power_of_two().trailing_zeros() as usize;
        if order >= ORDERS {
            return None;
        }
        let block = |line: u32| Block { offset: u64::from(line) * LINE as u64, order: order as u8 };
        if let Some(line) = self.free[order].pop() {
            return Some(block(line));
        }
        if self.lines - self.next >= 1 << order {
            let line = self.next;
            self.next += 1 << order;
            return Some(block(line));
        }
        // Split a larger block into halves.
        let from = (order + 1..ORDERS).find(|larger| !self.free[*larger].is_empty())?;
        let line = self.free[from].pop()?;
        for half in order..from {
            self.free[half].push(line + (1 << half));
        }
        Some(block(line))
    }

    /// Frees a block.
    pub(super) fn give(&mut self, block: Block) {
        self.free[block.order as usize].push((block.offset / LINE as u64) as u32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn blocks_never_overlap(steps in prop::collection::vec((0usize..5000, any::<bool>()), 1..200), bytes in 0u64..100_000) {
            let mut space = Space::new(bytes);
            let mut held: Vec<(Block, u64)> = Vec::new();
            for (number, (length, keep)) in steps.into_iter().enumerate() {
                if let Some(block) = space.take(length) {
                    let end = block.offset + (LINE << block.order) as u64;
                    prop_assert!(end <= bytes && end - block.offset >= length as u64);
                    prop_assert!(held.iter().all(|(other, last)| end <= other.offset || *last <= block.offset));
                    held.push((block, end));
                }
                if !keep && !held.is_empty() {
                    space.give(held.swap_remove(number % held.len()).0);
                }
            }
        }
    }
}
