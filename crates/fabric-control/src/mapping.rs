//! Pages of our own, for memory that is registered with a device.

use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::io;
use std::ptr::NonNull;

const HUGE_PAGE: usize = 2 << 20;

/// One private mapping of zeroed memory, unmapped when dropped.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    length: usize,
    mapped: usize,
}

// SAFETY: a mapping belongs to the process, and is only reached through `Region`, `Arena`, the NIC, and their rules.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Zeroed memory, in huge pages where there are any: the fewer pages, the fewer entries in the NIC's cache.
    pub fn new(length: usize) -> io::Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let map = |bytes, flags| {
            // SAFETY: a fresh mapping at an address of the kernel's choice.
            unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), bytes, protection, flags) }
        };
        let huge = length.next_multiple_of(HUGE_PAGE);
        let reserved = MapFlags::PRIVATE | MapFlags::HUGETLB | MapFlags::HUGE_2MB;
        let (base, mapped) = match (length >= HUGE_PAGE).then(|| map(huge, reserved)) {
            Some(Ok(base)) => (base, huge),
            _ => (map(length, MapFlags::PRIVATE)?, length),
        };
        let base = NonNull::new(base.cast::<u8>())
            .ok_or_else(|| io::Error::other("the kernel mapped memory at address zero"))?;
        let mapping = Mapping { base, length, mapped };
        if mapped >= HUGE_PAGE {
            mapping.advise(Advice::LinuxHugepage);
        }
        // After a fork the NIC would go on with the pages of whichever process writes first, on kernels before 5.12.
        mapping.advise(Advice::LinuxDontFork);
        Ok(mapping)
    }

    /// The first byte: aligned to a page.
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// The length asked for, in bytes.
    pub fn length(&self) -> usize {
        self.length
    }

    /// Gives the pages back to the system, where it takes them: the range stays, and holds zeros when it is next touched.
    pub fn empty(&self) {
        self.advise(Advice::LinuxDontNeed);
    }

    fn advise(&self, advice: Advice) {
        // SAFETY: the range is our own mapping, which is reached by pointers only. Where the kernel does not know an
        // advice, nothing is lost.
        let _ = unsafe { rustix::mm::madvise(self.base.as_ptr().cast(), self.mapped, advice) };
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this range; registrations of it keep the value alive, and nothing else borrows
        // from it longer than that.
        if let Err(error) = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.mapped) } {
            tracing::warn!(%error, "a mapping cannot be unmapped");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_are_zeroed_aligned_and_as_long_as_asked_for() {
        for length in [1, 100, 4096, HUGE_PAGE, HUGE_PAGE + 1] {
            let mapping = Mapping::new(length).unwrap();
            assert_eq!((mapping.length(), mapping.base().as_ptr() as usize % 4096), (length, 0));
            // SAFETY: mapped above, and nobody else knows it.
            let bytes = unsafe { std::slice::from_raw_parts(mapping.base().as_ptr(), length) };
            assert!(bytes.iter().all(|byte| *byte == 0));
        }
    }
}
