//! Registered memory, and the handle to memory that a peer may touch.
//!
//! Memory that a peer can write is never a `&[u8]`: a [`Region`] only copies, loads and stores. Memory that
//! peers can at most read is an [`Arena`](crate::Arena) of buffers.

use crate::copy;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What a peer may do with memory that it was granted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access(u8);

impl Access {
    /// Nothing: memory for our own READs, RECVs and sends.
    pub const LOCAL: Access = Access(0);
    /// READ.
    pub const READ: Access = Access(1);
    /// WRITE.
    pub const WRITE: Access = Access(2);
    /// FETCH_ADD and CMP_SWAP.
    pub const ATOMIC: Access = Access(4);

    /// Both.
    pub const fn with(self, other: Access) -> Access {
        Access(self.0 | other.0)
    }

    /// Whether everything in `other` is allowed.
    pub const fn contains(self, other: Access) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether a peer can change the memory.
    pub const fn changes(self) -> bool {
        self.0 & (Access::WRITE.0 | Access::ATOMIC.0) != 0
    }

    /// As bits: 1 READ, 2 WRITE, 4 ATOMIC.
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// From bits; unknown ones are refused.
    pub const fn from_bits(bits: u8) -> Option<Access> {
        if bits & !7 == 0 { Some(Access(bits)) } else { None }
    }
}

/// Memory registered with a fabric.
///
/// # Safety
/// `base` must be 64-byte aligned and valid for reads and writes of `length` bytes until the value is dropped,
/// and nothing but the value's owner and, within `access`, granted peers may touch it.
pub unsafe trait Memory: Send + Sync + std::fmt::Debug + 'static {
    /// The first byte.
    fn base(&self) -> NonNull<u8>;
    /// The length in bytes.
    fn length(&self) -> usize;
    /// What it was registered for.
    fn access(&self) -> Access;
}

/// A handle to registered memory that a peer may read and write while we look. Clones name the same memory.
///
/// No method blocks; all may be called from any thread. Offsets are the caller's own and must be in bounds: a
/// method panics otherwise, so an offset that a peer wrote has to be checked before.
#[derive(Debug)]
pub struct Region<M: Memory>(Arc<M>);

impl<M: Memory> Clone for Region<M> {
    fn clone(&self) -> Self {
        Region(Arc::clone(&self.0))
    }
}

impl<M: Memory> Region<M> {
    /// Takes memory as a region.
    pub fn new(memory: M) -> Self {
        Region(Arc::new(memory))
    }

    /// The memory, for granting it.
    pub fn memory(&self) -> &Arc<M> {
        &self.0
    }

    /// The length in bytes.
    #[inline]
    pub fn length(&self) -> usize {
        self.0.length()
    }

    #[inline]
    fn at(&self, offset: usize, length: usize) -> *mut u8 {
        assert!(offset <= self.length() && length <= self.length() - offset, "offset out of the region");
        // SAFETY: in bounds, as just checked.
        unsafe { self.0.base().as_ptr().add(offset) }
    }

    #[inline]
    fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8), "a word of a region is 8-byte aligned");
        // SAFETY: in bounds and aligned; all access of ours to such words is atomic, and a peer's racing access
        // is outside of Rust's view.
        unsafe { AtomicU64::from_ptr(self.at(offset, 8).cast()) }
    }

    /// Loads 8 aligned bytes with acquire order: what a peer wrote before them can be copied out after.
    #[inline]
    pub fn load(&self, offset: usize) -> u64 {
        u64::from_le(self.word(offset).load(Ordering::Acquire))
    }

    /// Stores 8 aligned bytes with release order.
    #[inline]
    pub fn store(&self, offset: usize, value: u64) {
        self.word(offset).store(value.to_le(), Ordering::Release);
    }

    /// Copies bytes out into private memory.
    #[inline]
    pub fn copy_out(&self, offset: usize, destination: &mut [u8]) {
        let source = self.at(offset, destination.len());
        // SAFETY: the source is in bounds, the destination is exclusively ours.
        unsafe { copy::from_peer(source, destination.as_mut_ptr(), destination.len()) }
    }

    /// Asks for the line at `offset`, which will be read soon. A hint, without a check: it touches nothing.
    #[inline]
    pub fn prefetch(&self, offset: usize) {
        copy::prefetch_to_read(self.at(0, 0).wrapping_add(offset));
    }

    /// Asks for what every other method looks at first: where the memory is. A hint.
    #[inline]
    pub fn prefetch_handle(&self) {
        copy::prefetch_to_read(Arc::as_ptr(&self.0).cast());
    }

    /// Copies one line out; `offset` is a multiple of 64.
    #[inline]
    pub fn line_out(&self, offset: usize) -> [u8; 64] {
        // SAFETY: in bounds by `at`.
        unsafe { copy::line_from_peer(self.at(offset, 64)) }
    }

    /// Copies bytes in, the last 8 last.
    #[inline]
    pub fn copy_in(&self, offset: usize, source: &[u8]) {
        let destination = self.at(offset, source.len());
        // SAFETY: in bounds by `at`; a region is never borrowed as a slice, so the two are apart.
        unsafe { copy::to_peer(source.as_ptr(), destination, source.len()) }
    }
}

/// Plain memory of this process, aligned to a line: registered memory where nothing has to be shared (tests,
/// the simulator).
#[derive(Debug)]
pub struct HeapMemory {
    /// The first line within the allocation, which is a line longer than asked for.
    base: NonNull<u8>,
    allocation: NonNull<u8>,
    layout: std::alloc::Layout,
    access: Access,
}

/// Bytes to which memory is aligned.
const LINE: usize = 64;

impl HeapMemory {
    /// Zeroed memory, its pages touched lazily; `None` if there is none or the length is zero.
    pub fn new(length: usize, access: Access) -> Option<Self> {
        // Allocators zero by touching if more than their own alignment is asked for, so the line is ours to find.
        let longer = length.checked_add(LINE).filter(|_| length > 0)?;
        let layout = std::alloc::Layout::from_size_align(longer, 16).ok()?;
        // SAFETY: the layout is not empty.
        let allocation = NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) })?;
        let skip = allocation.as_ptr().align_offset(LINE);
        // SAFETY: at most a line less one byte, and the allocation is a line longer than what is used of it.
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

// SAFETY: the memory is owned by the value and is only reached through `Region`, `Arena` and the fabrics.
unsafe impl Send for HeapMemory {}
// SAFETY: as above; shared access is by atomics and racing copies only.
unsafe impl Sync for HeapMemory {}
// SAFETY: aligned to 64, valid until the drop.
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
