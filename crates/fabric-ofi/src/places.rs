//! Memory divided into places of equal length, for headers, inline data and credits.

use crate::header::HEADER;
use dunlin_fabric_control::Mapping;
use std::io;

/// Places of equal length that the provider reads or writes. Accessed by pointers only.
#[derive(Debug)]
pub(crate) struct Places {
    mapping: Mapping,
    length: usize,
    mask: u32,
}

impl Places {
    /// Makes places for `count` consecutive numbers.
    pub(crate) fn new(count: u32, length: usize) -> io::Result<Self> {
        let count = count.max(1).next_power_of_two();
        let length = length.next_multiple_of(8);
        Ok(Places { mapping: Mapping::new(count as usize * length)?, length, mask: count - 1 })
    }

    /// Returns the place of a number.
    #[inline]
    pub(crate) fn at(&self, number: u32) -> *mut u8 {
        let place = (number & self.mask) as usize * self.length;
        // SAFETY: within the mapping, which has one place for each number under the mask.
        unsafe { self.mapping.base().as_ptr().add(place) }
    }

    /// Copies bytes into a place.
    ///
    /// # Safety
    /// No posted operation may use the place, and the bytes must fit after `offset`.
    #[inline]
    pub(crate) unsafe fn put(&self, number: u32, offset: usize, bytes: &[u8]) {
        debug_assert!(offset + bytes.len() <= self.length);
        // SAFETY: the caller's contract.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.at(number).add(offset), bytes.len()) }
    }

    /// Returns the header in a place.
    ///
    /// # Safety
    /// The operation posted with this place must have completed.
    #[inline]
    pub(crate) unsafe fn header(&self, number: u32) -> [u8; HEADER] {
        // SAFETY: each place is at least as long as a header, and nothing writes to it now.
        unsafe { self.at(number).cast::<[u8; HEADER]>().read_unaligned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_apart_and_come_again() {
        let places = Places::new(3, 20).unwrap();
        let at: Vec<usize> = (0..5).map(|number| places.at(number) as usize).collect();
        assert_eq!(at[4], at[0]);
        assert!(at.windows(2).take(3).all(|two| two[1] - two[0] == 24));
        assert_eq!(places.at(u32::MAX) as usize, at[3]);
    }
}
