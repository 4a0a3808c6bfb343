//! Registered memory, and a handle to memory that a peer may access.
//!
//! Memory that a peer can write is never a `&[u8]`: a [`Region`] only copies, loads and stores. Memory that
//! peers can at most read is an [`Arena`](crate::Arena) of buffers.

use crate::any_memory::AnyMemory;
use crate::copy;
use crate::error::RegisterError;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The access that a peer has to granted memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access(u8);

impl Access {
    /// No remote access: memory for this side's own READs, RECVs and sends.
    pub const LOCAL: Access = Access(0);
    /// READ.
    pub const READ: Access = Access(1);
    /// WRITE.
    pub const WRITE: Access = Access(2);
    /// FETCH_ADD and CMP_SWAP.
    pub const ATOMIC: Access = Access(4);

    /// Returns the union of both.
    pub const fn with(self, other: Access) -> Access {
        Access(self.0 | other.0)
    }

    /// Returns whether `self` permits everything in `other`.
    pub const fn contains(self, other: Access) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns whether a peer can change the memory.
    pub const fn changes(self) -> bool {
        self.0 & (Access::WRITE.0 | Access::ATOMIC.0) != 0
    }

    /// Returns the access as bits: 1 READ, 2 WRITE, 4 ATOMIC.
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// Parses the bits of [`bits`](Access::bits); returns `None` for unknown bits.
    pub const fn from_bits(bits: u8) -> Option<Access> {
        if bits & !7 == 0 { Some(Access(bits)) } else { None }
    }
}

/// Memory registered with a fabric.
///
/// # Safety
/// `base` must be 64-byte aligned and valid for reads and writes of `length` bytes until the value is
/// dropped. Only the value's owner and, within `access`, granted peers may touch that memory.
pub unsafe trait Memory: Send + Sync + std::fmt::Debug + 'static {
    /// Returns the address of the first byte.
    fn base(&self) -> NonNull<u8>;
    /// Returns the length in bytes.
    fn length(&self) -> usize;
    /// Returns the access that the memory was registered for.
    fn access(&self) -> Access;
    /// Makes the memory usable as the local side of this side's requests, before the first
    /// [`RegionRange`](crate::RegionRange) of it is made. May be called from any thread. The first call may block as a
    /// registration does; later ones return at once.
    ///
    /// # Errors
    /// Those of a registration, on back-ends that make one.
    #[inline]
    fn prepare_local(&self) -> Result<(), RegisterError> {
        Ok(())
    }
    /// Returns the memory of another fabric that [`Fabric::adopt`](crate::Fabric::adopt) was given.
    fn adopted(&self) -> Option<&AnyMemory> {
        None
    }
}

/// A handle to registered memory that a peer may read and write concurrently. Clones name the same memory.
///
/// No method blocks; all may be called from any thread. Methods panic if an offset is out of bounds, so an
/// offset that came from a peer must be checked first.
#[derive(Debug)]
pub struct Region<M: Memory>(Arc<M>);

impl<M: Memory> Clone for Region<M> {
    fn clone(&self) -> Self {
        Region(Arc::clone(&self.0))
    }
}

impl<M: Memory> From<Arc<M>> for Region<M> {
    fn from(memory: Arc<M>) -> Self {
        Region(memory)
    }
}

impl<M: Memory> Region<M> {
    /// Wraps registered memory.
    pub fn new(memory: M) -> Self {
        Region(Arc::new(memory))
    }

    /// Returns the memory, for granting it.
    pub fn memory(&self) -> &Arc<M> {
        &self.0
    }

    /// Returns the length in bytes.
    #[inline]
    pub fn length(&self) -> usize {
        self.0.length()
    }

    #[inline]
    pub(crate) fn at(&self, offset: usize, length: usize) -> *mut u8 {
        assert!(offset <= self.length() && length <= self.length() - offset, "offset out of the region");
        // SAFETY: the assertion above keeps the offset in bounds.
        unsafe { self.0.base().as_ptr().add(offset) }
    }

    #[inline]
    fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8), "a word of a region is 8-byte aligned");
        // SAFETY: in bounds and aligned. This process accesses such words only with atomics, and a peer's
        // racing access is outside Rust's memory model.
        unsafe { AtomicU64::from_ptr(self.at(offset, 8).cast()) }
    }

    /// Loads 8 aligned bytes with acquire order: bytes that a peer wrote before them can be copied out
    /// afterwards.
    #[inline]
    pub fn load(&self, offset: usize) -> u64 {
        u64::from_le(self.word(offset).load(Ordering::Acquire))
    }

    /// Stores 8 aligned bytes with release order.
    #[inline]
    pub fn store(&self, offset: usize, value: u64) {
        self.word(offset).store(value.to_le(), Ordering::Release);
    }

    /// Adds to 8 aligned bytes, and returns their old value. Atomic with requests of peers where the fabric's are atomic with
    /// processors ([`Atomics::Processors`](crate::Atomics::Processors)).
    #[inline]
    pub fn fetch_add(&self, offset: usize, add: u64) -> u64 {
        self.word(offset).fetch_add(add, Ordering::AcqRel)
    }

    /// Replaces 8 aligned bytes if they are `expected`, and returns their old value. Atomic as
    /// [`fetch_add`](Region::fetch_add).
    #[inline]
    pub fn compare_swap(&self, offset: usize, expected: u64, swap: u64) -> u64 {
        let swapped = self.word(offset).compare_exchange(expected, swap, Ordering::AcqRel, Ordering::Acquire);
        swapped.unwrap_or_else(|old| old)
    }

    /// Copies bytes from the region into private memory.
    #[inline]
    pub fn copy_out(&self, offset: usize, destination: &mut [u8]) {
        let source = self.at(offset, destination.len());
        // SAFETY: the source is in bounds, and the destination is exclusively borrowed.
        unsafe { copy::from_peer(source, destination.as_mut_ptr(), destination.len()) }
    }

    /// Prefetches the line at `offset`. A hint: not bounds-checked, since it accesses nothing.
    #[inline]
    pub fn prefetch(&self, offset: usize) {
        copy::prefetch_to_read(self.at(0, 0).wrapping_add(offset));
    }

    /// Prefetches the value that holds the memory's address, which every other method reads first. A hint.
    #[inline]
    pub fn prefetch_handle(&self) {
        copy::prefetch_to_read(Arc::as_ptr(&self.0).cast());
    }

    /// Returns the line at `offset`, a multiple of 64, so that several accesses check its bounds once.
    #[inline(always)]
    pub fn line(&self, offset: usize) -> RegionLine<'_> {
        assert!(offset.is_multiple_of(LINE), "a line of a region is 64-byte aligned");
        RegionLine { at: self.at(offset, LINE), of: PhantomData }
    }

    /// Copies one 64-byte line out of the region; `offset` is a multiple of 64.
    #[inline]
    pub fn line_out(&self, offset: usize) -> [u8; 64] {
        // SAFETY: `at` checks the bounds.
        unsafe { copy::line_from_peer(self.at(offset, 64)) }
    }

    /// Copies bytes into the region, the last 8 bytes last.
    #[inline]
    pub fn copy_in(&self, offset: usize, source: &[u8]) {
        let destination = self.at(offset, source.len());
        // SAFETY: `at` checks the bounds. A region is never borrowed as a slice, so the two do not overlap.
        unsafe { copy::to_peer(source.as_ptr(), destination, source.len()) }
    }
}

/// A 64-byte line of a [`Region`], in bounds.
#[derive(Clone, Copy, Debug)]
pub struct RegionLine<'a> {
    at: *const u8,
    of: PhantomData<&'a u8>,
}

impl RegionLine<'_> {
    /// Loads the word at `OFFSET` of the line, as [`Region::load`].
    #[inline(always)]
    pub fn load<const OFFSET: usize>(self) -> u64 {
        const { assert!(OFFSET.is_multiple_of(8) && OFFSET < LINE) };
        // SAFETY: in bounds by construction, and aligned; as in `Region::word`.
        let word = unsafe { AtomicU64::from_ptr(self.at.add(OFFSET).cast_mut().cast()) };
        u64::from_le(word.load(Ordering::Acquire))
    }

    /// Copies the line into private memory.
    #[inline(always)]
    pub fn copy_out(self, destination: &mut [u8; LINE]) {
        // SAFETY: the source is in bounds by construction, and the destination is exclusively borrowed.
        unsafe { copy::from_peer(self.at, destination.as_mut_ptr(), LINE) }
    }
}

/// Private memory of this process, aligned to a cache line: registered memory for tests and the simulator,
/// where nothing is shared with another process.
#[derive(Debug)]
pub struct HeapMemory {
    /// The first line boundary within the allocation, which is one line longer than requested.
    base: NonNull<u8>,
    allocation: NonNull<u8>,
    layout: std::alloc::Layout,
    access: Access,
}

/// Alignment of the memory, in bytes.
const LINE: usize = 64;

impl HeapMemory {
    /// Allocates zeroed memory whose pages are touched lazily. Returns `None` if the allocation fails or the
    /// length is zero.
    pub fn new(length: usize, access: Access) -> Option<Self> {
        // Allocators zero by touching every page if asked for more than their own alignment, so alignment is
        // done here.
        let longer = length.checked_add(LINE).filter(|_| length > 0)?;
        let layout = std::alloc::Layout::from_size_align(longer, 16).ok()?;
        // SAFETY: the layout is not empty.
        let allocation = NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) })?;
        let skip = allocation.as_ptr().align_offset(LINE);
        // SAFETY: the offset is at most 63 bytes, and the allocation is 64 bytes longer than the part in use.
        let base = unsafe { allocation.add(skip.min(LINE - 1)) };
        Some(HeapMemory { base, allocation, layout, access })
    }
}

impl Drop for HeapMemory {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout, and freed only here.
        unsafe { std::alloc::dealloc(self.allocation.as_ptr(), self.layout) }
    }
}

// SAFETY: the value owns the memory, and only `Region`, `Arena` and the fabrics access it.
unsafe impl Send for HeapMemory {}
// SAFETY: as above; shared access is by atomics and racing copies only.
unsafe impl Sync for HeapMemory {}
// SAFETY: aligned to 64 bytes, and valid until the drop.
unsafe impl Memory for HeapMemory {
    fn base(&self) -> NonNull<u8> {
        self.base
    }
    fn length(&self) -> usize {
        self.layout.size() - LINE
    }
    fn access(&self) -> Access {
        self.access
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_in_comes_out() {
        let region = Region::new(HeapMemory::new(256, Access::WRITE).unwrap());
        region.copy_in(10, b"hello");
        let mut out = [0; 5];
        region.copy_out(10, &mut out);
        assert_eq!(&out, b"hello");
        region.store(64, 0x1122_3344_5566_7788);
        assert_eq!(region.load(64), 0x1122_3344_5566_7788);
        assert_eq!(region.line_out(64)[..8], 0x1122_3344_5566_7788u64.to_le_bytes());
    }

    #[test]
    fn out_of_bounds_is_refused() {
        let region = Region::new(HeapMemory::new(128, Access::WRITE).unwrap());
        for offset in [121usize, 128, usize::MAX - 3] {
            let region = region.clone();
            assert!(std::panic::catch_unwind(move || region.copy_in(offset, &[1; 8])).is_err(), "{offset}");
        }
    }
}
