//! Files of memory at addresses that follow each other, so that a NIC registers them as one.

use rustix::fs::MemfdFlags;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use std::io;

pub(crate) const HUGE_PAGE: usize = 2 << 20;
/// The lengths of reserved huge pages, the longest first. Memory has pages of a length that divides its own: a file of
/// huge pages is no shorter than a page, and a peer checks the length.
pub(crate) const HUGE_PAGES: [(usize, MemfdFlags); 2] =
    [(1 << 30, MemfdFlags::HUGE_1GB), (HUGE_PAGE, MemfdFlags::HUGE_2MB)];

/// Another thread may map something at an address between the choice and its use; then others are chosen.
const TRIES: usize = 16;

/// Returns the huge pages that memory of this length may have, the longest first.
fn huge_pages_of(length: u64) -> impl Iterator<Item = (u64, MemfdFlags)> {
    let pages = HUGE_PAGES.into_iter().map(|(page, flags)| (page as u64, flags));
    pages.filter(move |(page, _)| length.is_multiple_of(*page))
}

/// Makes memory of this length with the longest pages of which there are enough: `make` fails for those of which there
/// are not. The last attempt is without reserved pages.
pub(crate) fn with_longest_pages<T>(
    length: u64,
    mut make: impl FnMut(Option<MemfdFlags>) -> io::Result<T>,
) -> io::Result<T> {
    for (_, flags) in huge_pages_of(length) {
        if let Ok(made) = make(Some(flags)) {
            return Ok(made);
        }
    }
    make(None)
}

/// Returns the distance from which on memory of this length begins: the length of the pages that it may have.
fn alignment(length: u64) -> u64 {
    huge_pages_of(length).next().map_or(4096, |(page, _)| page)
}

/// Chooses addresses for parts of these lengths: each at a multiple of the pages that it may have, and right behind the
/// last one where that allows it. The addresses are free now.
fn choose(lengths: &[u64]) -> io::Result<Vec<usize>> {
    let mut offsets = Vec::with_capacity(lengths.len());
    let mut end = 0u64;
    for length in lengths {
        let offset = end.checked_next_multiple_of(alignment(*length)).ok_or(Errno::NOMEM)?;
        offsets.push(offset);
        end = offset.checked_add(*length).ok_or(Errno::NOMEM)?;
    }
    let widest = lengths.iter().copied().map(alignment).max().unwrap_or(4096);
    let bytes = end.checked_add(widest).and_then(|bytes| usize::try_from(bytes).ok()).ok_or(Errno::NOMEM)?;
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a new mapping at an address that the kernel chooses, without access, unmapped before anybody knows it.
    let base = unsafe {
        let base = rustix::mm::mmap_anonymous(std::ptr::null_mut(), bytes, ProtFlags::empty(), flags)?;
        rustix::mm::munmap(base, bytes)?;
        base.addr()
    };
    let base = base.next_multiple_of(widest as usize);
    Ok(offsets.into_iter().map(|offset| base + offset as usize).collect())
}

/// Makes parts of memory of these lengths in order. `make` gets the number and the address of each.
///
/// # Errors
/// Those of `make`, and `AGAIN` if other threads have mapped something there again and again.
pub(crate) fn at_adjacent<T>(
    lengths: &[u64],
    make: impl Fn(usize, usize) -> io::Result<T>,
) -> io::Result<Vec<T>> {
    for _ in 0..TRIES {
        let made: io::Result<Vec<T>> =
            choose(lengths)?.into_iter().enumerate().map(|(at, address)| make(at, address)).collect();
        match made {
            Err(error) if error.raw_os_error() == Some(Errno::EXIST.raw_os_error()) => {}
            other => return other,
        }
    }
    Err(Errno::AGAIN.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ShmConfig, ShmFabric};
    use dunlin_fabric::{Access, AnyMemory, Fabric as _, Memory as _, Region, RegisterError};
    use std::cell::Cell;
    use std::sync::Arc;

    const BOTH: Access = Access::READ.with(Access::WRITE);

    /// Pages are tried from the longest that divides the length, and the first that can be had count.
    #[test]
    fn memory_gets_the_longest_pages_of_which_there_are_enough() {
        let (giant, huge) = (Some(MemfdFlags::HUGE_1GB), Some(MemfdFlags::HUGE_2MB));
        let orders = [
            (1 << 30, &[giant, huge, None][..]),
            (5 << 30, &[giant, huge, None]),
            ((1 << 30) + (2 << 20), &[huge, None]),
            (4 << 20, &[huge, None]),
            ((4 << 20) + 4096, &[None]),
        ];
        for (length, order) in orders {
            for first in 0..order.len() {
                let mut tried = Vec::new();
                let made = with_longest_pages(length, |pages| {
                    tried.push(pages);
                    if tried.len() > first { Ok(pages) } else { Err(Errno::NOMEM.into()) }
                });
                assert_eq!((made.unwrap(), &tried[..]), (order[first], &order[..=first]), "{length}");
            }
            let failed = with_longest_pages::<()>(length, |_| Err(Errno::NOMEM.into()));
            assert_eq!(failed.unwrap_err().raw_os_error(), Some(Errno::NOMEM.raw_os_error()));
        }
        assert_eq!([1 << 30, 4 << 20, 4096].map(alignment), [1 << 30, 2 << 20, 4096]);
    }

    #[test]
    fn parts_follow_each_other_and_are_files_of_their_own() {
        let fabric = ShmFabric::new(ShmConfig::default()).unwrap();
        for lengths in
            [&[4 << 20, 4 << 20, 4 << 20, 12_289][..], &[4096; 40], &[1 << 30, 1 << 30, 4096], &[5000]]
        {
            let parts = fabric.register_adjacent(lengths, BOTH).unwrap();
            assert!(parts.iter().map(|part| part.length() as u64).eq(lengths.iter().copied()));
            assert!(parts.iter().all(|part| part.descriptor().unwrap().is_some()));
            let parts: Vec<_> = parts.into_iter().map(|part| AnyMemory::new(Arc::new(part))).collect();
            let whole = Region::new(AnyMemory::joined(&parts).expect("they follow each other"));
            let mut end = 0;
            for part in parts {
                Region::new(part.clone()).store(0, end as u64 + 1);
                assert_eq!(whole.load(end), end as u64 + 1);
                end += part.length();
            }
        }
    }

    #[test]
    fn wrong_lengths_are_refused() {
        let fabric = ShmFabric::new(ShmConfig::default()).unwrap();
        for lengths in [&[4096, 0][..], &[4096, u64::MAX]] {
            let refused = fabric.register_adjacent(lengths, BOTH);
            assert!(matches!(refused, Err(RegisterError::Length { .. })), "{lengths:?}");
        }
        let refused = fabric.register_adjacent(&[1 << 40; 300], BOTH);
        assert!(matches!(refused, Err(RegisterError::OutOfMemory { .. })), "more than all addresses");
        assert_eq!(fabric.register_adjacent(&[], BOTH).unwrap().len(), 0);
        assert_eq!(fabric.register_adjacent(&[64, 64], Access::LOCAL).unwrap().len(), 2);
    }

    #[test]
    fn places_that_others_take_are_chosen_again() {
        let tries = Cell::new(0);
        let make = |at: usize, address: usize| {
            tries.set(tries.get() + 1);
            if tries.get() < 3 { Err(Errno::EXIST.into()) } else { Ok((at, address)) }
        };
        let made = at_adjacent(&[4096, 4096], make).unwrap();
        assert_eq!((made[1], tries.get()), ((1, made[0].1 + 4096), 4));
        let refused = at_adjacent(&[4096], |_, _| -> io::Result<()> { Err(Errno::EXIST.into()) });
        assert_eq!(refused.unwrap_err().raw_os_error(), Some(Errno::AGAIN.raw_os_error()));
    }
}
