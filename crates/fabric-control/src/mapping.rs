//! Page mappings of this process, for memory that is registered with a device.

use dunlin_fabric::{AnyMemory, Memory as _};
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::io;
use std::ptr::NonNull;

const HUGE_PAGE: usize = 2 << 20;

/// Memory for a device: one private mapping of zeroed memory, which is unmapped when dropped, or memory that another
/// fabric of this process made.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    length: usize,
    mapped: usize,
    adopted: Option<AnyMemory>,
}

// SAFETY: a mapping belongs to the process. Only `Region`, `Arena` and the NIC access it, under their own
// rules.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps zeroed memory, in huge pages if available: fewer pages need fewer entries in the NIC's cache.
    pub fn new(length: usize) -> io::Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let map = |bytes, flags| {
            // SAFETY: a new mapping at an address that the kernel chooses.
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
        let mapping = Mapping { base, length, mapped, adopted: None };
        if mapped >= HUGE_PAGE {
            mapping.advise(Advice::LinuxHugepage);
        }
        // On kernels before 5.12, the NIC would keep the pages of whichever process writes first after a
        // fork.
        mapping.advise(Advice::LinuxDontFork);
        Ok(mapping)
    }

    /// Takes memory that another fabric made, and keeps it.
    pub fn adopt(memory: AnyMemory) -> Self {
        let (base, length) = (memory.base(), memory.length());
        Mapping { base, length, mapped: length, adopted: Some(memory) }
    }

    /// Returns the memory that another fabric made, if this is it.
    pub fn adopted(&self) -> Option<&AnyMemory> {
        self.adopted.as_ref()
    }

    /// Returns the address of the first byte. Of an own mapping it is aligned to a page, of other memory to a line.
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Returns the requested length, in bytes.
    pub fn length(&self) -> usize {
        self.length
    }

    /// Returns the pages to the system, if it accepts them. The range stays mapped and reads as zeros at the
    /// next access. Memory of another fabric stays as it is.
    pub fn empty(&self) {
        if self.adopted.is_some() {
            return;
        }
        self.advise(Advice::LinuxDontNeed);
    }

    /// Gives the range pages, by all cores. A device that pins the range gives it pages by one core otherwise. Blocks
    /// meanwhile: about a second for some GiB. Kernels before 5.14 ignore it.
    pub fn populate(&self) {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let part = self.mapped.div_ceil(cores).next_multiple_of(HUGE_PAGE);
        std::thread::scope(|scope| {
            for start in (0..self.mapped).step_by(part) {
                let length = part.min(self.mapped - start);
                scope.spawn(move || {
                    // SAFETY: within this value's memory, which is accessed through pointers only. The advice changes
                    // no contents; an error leaves the pages to the first access.
                    let _ = unsafe {
                        let start = self.base.as_ptr().add(start).cast();
                        rustix::mm::madvise(start, length, Advice::LinuxPopulateWrite)
                    };
                });
            }
        });
    }

    fn advise(&self, advice: Advice) {
        // SAFETY: the range is this value's own mapping, which is accessed through pointers only. An advice
        // that the kernel does not know has no effect.
        let _ = unsafe { rustix::mm::madvise(self.base.as_ptr().cast(), self.mapped, advice) };
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.adopted.is_some() {
            return;
        }
        // SAFETY: mapped in `new` with this range. Registrations of the mapping keep the value alive, and
        // nothing borrows from it for longer.
        if let Err(error) = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.mapped) } {
            tracing::warn!(%error, "a mapping cannot be unmapped");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the bytes of this process that have pages.
    fn resident() -> usize {
        let text = std::fs::read_to_string("/proc/self/statm").unwrap();
        text.split_ascii_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 4096
    }

    #[test]
    fn a_populated_mapping_has_all_pages() {
        let length = (64 << 20) + 4096;
        let mapping = Mapping::new(length).unwrap();
        let before = resident();
        mapping.populate();
        // Reserved huge pages are not counted as resident.
        let reserved = mapping.mapped != length;
        assert!(reserved || resident() >= before + length / 2, "{before} {}", resident());
        // SAFETY: mapped above, and no other code has the address.
        let bytes = unsafe { std::slice::from_raw_parts(mapping.base().as_ptr(), length) };
        assert!(bytes.iter().all(|byte| *byte == 0));
    }

    #[test]
    fn mappings_are_zeroed_aligned_and_as_long_as_asked_for() {
        for length in [1, 100, 4096, HUGE_PAGE, HUGE_PAGE + 1] {
            let mapping = Mapping::new(length).unwrap();
            assert_eq!((mapping.length(), mapping.base().as_ptr() as usize % 4096), (length, 0));
            // SAFETY: mapped above, and no other code has the address.
            let bytes = unsafe { std::slice::from_raw_parts(mapping.base().as_ptr(), length) };
            assert!(bytes.iter().all(|byte| *byte == 0));
        }
    }
}
