//! Asking the system for memory, and telling the processor and the system how it will be used.

use crate::error::PartitionError;

/// Zeroed memory that the system maps lazily, or a typed error instead of an abort when it is refused.
pub(crate) fn zeroed<T: Default + Clone>(length: usize) -> Result<Vec<T>, PartitionError> {
    let mut probe = Vec::<T>::new();
    probe
        .try_reserve_exact(length)
        .map_err(|_| PartitionError::AllocationFailed { bytes: length.saturating_mul(size_of::<T>()) })?;
    drop(probe);
    // `vec!` of a zero asks for zeroed memory; filling the probe would touch every page.
    Ok(vec![T::default(); length])
}

/// Asks for transparent huge pages under `memory`, as far as it spans whole ones. Random access over more memory than the
/// TLB covers with small pages costs about half with them. Only advice: where the system has none (or the kernel was
/// built without), nothing changes.
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
    // SAFETY: the range lies within `memory`, which is borrowed mutably, and this advice changes no contents: it only
    // says which page size to map from now on.
    let advised = unsafe { madvise(start.add(skipped).cast(), length, Advice::LinuxHugepage) };
    // A refusal means small pages, which are right too, only slower; `dunlin doctor` reports whether there are huge ones.
    let _ = advised;
}

/// No such advice here.
#[cfg(not(target_os = "linux"))]
pub(crate) fn advise_huge_pages<T>(_memory: &mut [T]) {}

/// Starts to load the cache line at the beginning of `target`, without waiting for it.
#[inline(always)]
pub(crate) fn prefetch<T: ?Sized>(target: &T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch reads and writes nothing that the program can see, wherever it points.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(target).cast()) }
    }
    // Elsewhere the processor's own look-ahead over the independent loads has to do.
    #[cfg(not(target_arch = "x86_64"))]
    let _ = target;
}
