//! Ranges of regions: the local side of requests in memory that peers may write.

use crate::copy;
use crate::error::RangeError;
use crate::memory::{Memory, Region};

/// A range of a [`Region`], in bounds, as the local side of a work request: the source of a SEND or WRITE
/// ([`Data::Region`](crate::Data::Region)), or the destination of a READ
/// ([`Operation::ReadInto`](crate::Operation::ReadInto)). It keeps the registration alive. Clones name the same bytes.
///
/// Unlike a [`Buffer`](crate::Buffer) it gives no exclusive use of the bytes: peers, other threads and other requests
/// may read and write them while the request is in flight. Each byte that arrives is then either an old or a new one,
/// in any mixture; the same holds for a source and a destination that overlap. It is never undefined behaviour, since
/// the bytes are copied by a device or by [`copy`].
///
/// The region has to be of the queue pair's fabric: posting gives [`PostError::ForeignRegion`](crate::PostError) where
/// a device needs its own registration. Where processors copy, all regions of the same type are good.
///
/// No method blocks; all may be called from any thread.
#[derive(Debug)]
pub struct RegionRange<M: Memory> {
    region: Region<M>,
    offset: usize,
    length: usize,
}

impl<M: Memory> Clone for RegionRange<M> {
    fn clone(&self) -> Self {
        RegionRange { region: self.region.clone(), offset: self.offset, length: self.length }
    }
}

impl<M: Memory> Region<M> {
    /// Returns a range of the region as the local side of work requests; `offset` and `length` are in bytes and may come
    /// from a peer. May be called from any thread. The first range of memory that peers can write blocks where a NIC
    /// registers memory for local use on its own, for as long as a registration does
    /// ([`Memory::prepare_local`]); all others return at once.
    ///
    /// # Errors
    /// The range leaves the region, or the memory cannot be registered for local use.
    #[inline]
    pub fn range(&self, offset: u64, length: u64) -> Result<RegionRange<M>, RangeError> {
        let region = self.length() as u64;
        if offset > region || length > region - offset {
            return Err(RangeError::Outside { offset, length, region });
        }
        self.memory().prepare_local()?;
        Ok(RegionRange { region: self.clone(), offset: offset as usize, length: length as usize })
    }

    /// Copies the bytes of a range into the region at `offset`, the last 8 bytes last. Both may be changed meanwhile, and
    /// may overlap: each byte that arrives is an old or a new one. Panics if the offset is out of bounds.
    #[inline]
    pub fn copy_in_range(&self, offset: usize, source: &RegionRange<M>) {
        let destination = self.at(offset, source.length);
        // SAFETY: `at` checks the bounds of the destination, and the range lies in its region.
        unsafe { copy::to_peer(source.start(), destination, source.length) }
    }

    /// Copies the bytes of the region at `offset` into a range. Both may be changed meanwhile, and may overlap: each byte
    /// that arrives is an old or a new one. Panics if the offset is out of bounds.
    #[inline]
    pub fn copy_out_range(&self, offset: usize, destination: &RegionRange<M>) {
        let source = self.at(offset, destination.length);
        // SAFETY: `at` checks the bounds of the source, and the range lies in its region.
        unsafe { copy::from_peer(source, destination.start(), destination.length) }
    }
}

impl<M: Memory> RegionRange<M> {
    /// Returns the region.
    #[inline]
    pub fn region(&self) -> &Region<M> {
        &self.region
    }

    /// Returns the offset in the region, in bytes.
    #[inline]
    pub fn offset(&self) -> u64 {
        self.offset as u64
    }

    /// Returns the length in bytes.
    #[inline]
    pub fn length(&self) -> usize {
        self.length
    }

    /// Returns `length` bytes of the range from `from` on; `None` if they leave it.
    #[inline]
    pub fn part(&self, from: usize, length: usize) -> Option<RegionRange<M>> {
        let exists = from <= self.length && length <= self.length - from;
        exists.then(|| RegionRange { region: self.region.clone(), offset: self.offset + from, length })
    }

    /// Returns the address of the first byte, for back-ends. It is valid for reads and writes of
    /// [`length`](RegionRange::length) bytes while the range exists. Peers may change the bytes at any time, so no
    /// reference to them may be made: only a device or [`copy`] may access them.
    #[inline]
    pub fn start(&self) -> *mut u8 {
        // SAFETY: in bounds of the region, as checked when the range was made.
        unsafe { self.region.memory().base().as_ptr().add(self.offset) }
    }

    /// Copies bytes of the range from `from` on into private memory; returns their number: less than
    /// `destination.len()` at the range's end.
    #[inline]
    pub fn copy_out(&self, from: usize, destination: &mut [u8]) -> usize {
        let count = self.length.saturating_sub(from).min(destination.len());
        if count > 0 {
            // SAFETY: `count` bytes from `from` on lie in the range, and the destination is exclusively borrowed.
            unsafe { copy::from_peer(self.start().add(from), destination.as_mut_ptr(), count) };
        }
        count
    }

    /// Copies bytes into the range from its start on, the last 8 bytes last; returns their number: less than
    /// `source.len()` if the range is shorter.
    #[inline]
    pub fn copy_in(&self, source: &[u8]) -> usize {
        let count = self.length.min(source.len());
        // SAFETY: `count` bytes lie in the range. A region is never borrowed as a slice.
        unsafe { copy::to_peer(source.as_ptr(), self.start(), count) };
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{Access, HeapMemory};
    use proptest::prelude::*;

    fn region(length: usize) -> Region<HeapMemory> {
        Region::new(HeapMemory::new(length, Access::WRITE).unwrap())
    }

    #[test]
    fn a_range_keeps_the_registration() {
        let region = region(64);
        let memory = std::sync::Arc::downgrade(region.memory());
        region.copy_in(8, b"abcdefgh");
        let range = region.range(9, 3).unwrap();
        let clone = range.clone();
        drop((region, range));
        let mut bytes = [0; 5];
        assert_eq!((clone.copy_out(0, &mut bytes), &bytes), (3, b"bcd\0\0"));
        assert_eq!((clone.copy_out(2, &mut bytes), &bytes), (1, b"dcd\0\0"));
        assert_eq!(clone.copy_out(3, &mut bytes), 0);
        assert_eq!(clone.copy_out(usize::MAX, &mut bytes), 0);
        drop(clone);
        assert!(memory.upgrade().is_none());
    }

    #[test]
    fn copies_stay_in_the_range() {
        let region = region(64);
        let range = region.range(10, 20).unwrap();
        assert_eq!(range.copy_in(&[7; 64]), 20);
        let mut all = [0; 64];
        region.copy_out(0, &mut all);
        assert!(all.iter().enumerate().all(|(at, byte)| (*byte == 7) == (10..30).contains(&at)));
        assert_eq!(region.range(64, 0).unwrap().copy_in(&[7; 64]), 0);
    }

    #[test]
    fn parts_lie_in_their_range() {
        let region = region(64);
        region.copy_in(20, b"abcdef");
        let range = region.range(20, 6).unwrap();
        let mut found = [0; 2];
        range.part(2, 2).unwrap().copy_out(0, &mut found);
        assert_eq!(&found, b"cd");
        assert_eq!(range.part(2, 4).unwrap().part(4, 0).unwrap().offset(), 26);
        for (from, length) in [(0, 7), (7, 0), (6, 1), (usize::MAX, 2), (1, usize::MAX)] {
            assert!(range.part(from, length).is_none(), "{from} {length}");
        }
    }

    #[test]
    fn ranges_are_copied_between_regions() {
        for length in [0, 1, 7, 8, 9, 63, 64, 100, 2000] {
            let (from, to) = (region(4096), region(4096));
            let bytes: Vec<u8> = (0..length).map(|at| at as u8 | 1).collect();
            from.copy_in(33, &bytes);
            to.copy_in_range(70, &from.range(33, length as u64).unwrap());
            let back = from.range(2050, length as u64).unwrap();
            to.copy_out_range(70, &back);
            for (region, at) in [(&to, 70), (&from, 2050)] {
                let mut found = vec![9; length + 2];
                region.copy_out(at - 1, &mut found);
                assert_eq!((found[0], found[length + 1], &found[1..=length]), (0, 0, &bytes[..]));
            }
        }
        let (from, to) = (region(64), region(64));
        let range = from.range(0, 8).unwrap();
        let copy = std::panic::AssertUnwindSafe(|| to.copy_in_range(57, &range));
        assert!(std::panic::catch_unwind(copy).is_err());
    }

    proptest! {
        /// A range exists exactly if it lies in the region, whatever the numbers are.
        #[test]
        fn ranges_lie_in_the_region(
            offset in prop_oneof![0..200u64, any::<u64>(), (0..200u64).prop_map(|n| u64::MAX - n)],
            length in prop_oneof![0..200u64, any::<u64>(), (0..200u64).prop_map(|n| u64::MAX - n)],
        ) {
            let fits = u128::from(offset) + u128::from(length) <= 100;
            match region(100).range(offset, length) {
                Ok(range) => {
                    prop_assert!(fits);
                    prop_assert_eq!((range.offset(), range.length() as u64), (offset, length));
                }
                Err(RangeError::Outside { offset: o, length: l, region: 100 }) => {
                    prop_assert!(!fits && (o, l) == (offset, length));
                }
                Err(other) => prop_assert!(false, "{other}"),
            }
        }
    }
}
