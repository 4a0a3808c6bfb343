//! The simulated RNIC's access to registered memory.
//!
//! `unsafe` stands here and in `switch` only.

use dunlin_fabric::memory::HeapMemory;
use dunlin_fabric::{Memory, copy};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Granted memory as the RNIC sees it: copies in and out, no references. It stands outside of the program like
/// a device: the owner may hold a `&mut [u8]` of an arena's buffer while a peer READs it, so every access goes
/// through the copies that are opaque to the compiler.
#[derive(Clone, Debug)]
pub(crate) struct Target(Arc<HeapMemory>);

impl Target {
    pub(crate) fn new(memory: &Arc<HeapMemory>) -> Self {
        Target(Arc::clone(memory))
    }

    pub(crate) fn length(&self) -> usize {
        self.0.length()
    }

    /// The address of the first byte, to look things up by; its order means nothing.
    pub(crate) fn address(&self) -> usize {
        self.0.base().as_ptr() as usize
    }

    fn at(&self, offset: usize, length: usize) -> *mut u8 {
        assert!(offset <= self.length() && length <= self.length() - offset, "offset out of the memory");
        // SAFETY: in bounds, as just checked.
        unsafe { self.0.base().as_ptr().add(offset) }
    }

    /// Copies bytes in, the last 8 last.
    pub(crate) fn copy_in(&self, offset: usize, source: &[u8]) {
        let destination = self.at(offset, source.len());
        // SAFETY: in bounds by `at`. Only memory that was granted for WRITE comes here; no arena is made of
        // such, so there is no slice of it.
        unsafe { copy::to_peer(source.as_ptr(), destination, source.len()) }
    }

    /// Copies bytes out.
    pub(crate) fn copy_out(&self, offset: usize, destination: &mut [u8]) {
        let source = self.at(offset, destination.len());
        // SAFETY: in bounds by `at`; the destination is exclusively ours.
        unsafe { copy::from_peer(source, destination.as_mut_ptr(), destination.len()) }
    }

    /// Replaces 8 aligned bytes; gives the old ones.
    pub(crate) fn change(&self, offset: usize, new: impl FnOnce(u64) -> u64) -> u64 {
        assert!(offset.is_multiple_of(8), "atomics are aligned");
        // SAFETY: in bounds by `at`, aligned as the base is. Only memory that was granted for atomics comes
        // here, and all access of ours to such words is atomic.
        let word = unsafe { AtomicU64::from_ptr(self.at(offset, 8).cast()) };
        let old = u64::from_le(word.load(Ordering::Acquire));
        word.store(new(old).to_le(), Ordering::Release);
        old
    }
}
