//! Memory allocation, and hints to the processor and the system about its use.

use crate::error::PartitionError;

/// Allocates zeroed memory that the system maps lazily; returns an error, not an abort, if the system
/// refuses.
pub(crate) fn zeroed<T: Default + Clone>(length: usize) -> Result<Vec<T>, PartitionError> {
    let mut probe = Vec::<T>::new();
    probe
        .try_reserve_exact(length)
        .map_err(|_| PartitionError::AllocationFailed { bytes: length.saturating_mul(size_of::<T>()) })?;
    drop(probe);
    // `vec!` of a zero asks for zeroed memory; filling the probe would touch every page.
    Ok(vec![T::default(); length])
}

/// Asks for transparent huge pages for the whole huge pages within `memory`. With them, random access over
/// more memory than the TLB covers with small pages costs about half. This is a hint: on systems without huge
/// pages nothing changes.
#[cfg(target_os = "linux")]
pub(crate) fn advise_huge_pages<T>(memory: &mut [T]) {
    use rustix::mm::{Advice, madvise};

    const HUGE_PAGE_BYTES: usize = 2 << 20;
    let bytes = size_of_val(memory);
    let start = memory.as_mut_ptr().cast::<u8>();
    let skipped = start.addr().next_multiple_of(HUGE_PAGE_BYTES) - start.addr();
    let length = bytes.saturating_sub(skipped) / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
    if length == 0 {
        return;
    }
    // SAFETY: the range lies within `memory`, which is borrowed mutably, and this advice changes no contents:
    // it only sets the page size of later mappings.
    let advised = unsafe { madvise(start.add(skipped).cast(), length, Advice::LinuxHugepage) };
    // A refusal leaves small pages, which are correct but slower; `dunlin doctor` reports whether huge pages
    // are available.
    let _ = advised;
}

/// Does nothing: this system has no such hint.
#[cfg(not(target_os = "linux"))]
pub(crate) fn advise_huge_pages<T>(_memory: &mut [T]) {}

/// Prefetches the cache line at the beginning of `target`, without waiting for it.
#[inline(always)]
pub(crate) fn prefetch<T: ?Sized>(target: &T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch has no visible effect and cannot fault, whatever address it gets.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(target).cast()) }
    }
    // Elsewhere the processor's own prefetching of independent loads must suffice.
    #[cfg(not(target_arch = "x86_64"))]
    let _ = target;
}
