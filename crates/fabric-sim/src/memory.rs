//! Registered memory, and the simulated RNIC's access to it.
//!
//! `unsafe` code is limited to this module, `switch`, `shared` and `stacks`.

use dunlin_fabric::memory::HeapMemory;
use dunlin_fabric::{Access, Memory, copy};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Name of watched memory whose watcher gave it none.
pub(crate) const NAMELESS: u32 = u32::MAX;
/// More than one domain watches the memory.
const SEVERAL: u64 = u64::MAX;

/// Registered memory of a simulated fabric; records its watchers. The fields that a message touches share one
/// cache line.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct SimMemory {
    heap: HeapMemory,
    /// The only watching domain and its name for the memory, as `(domain + 1) << 32 | name`; 0 for none, or
    /// [`SEVERAL`].
    watcher: AtomicU64,
    /// Number of the memory in the run.
    number: u32,
    registered: Arc<AtomicU64>,
    watchers: Mutex<Vec<(u32, u32)>>,
}

impl SimMemory {
    pub(crate) fn new(
        length: usize,
        access: Access,
        registered: &Arc<AtomicU64>,
        numbers: &AtomicU32,
    ) -> Option<Self> {
        let heap = HeapMemory::new(length, access)?;
        registered.fetch_add(1, Ordering::Relaxed);
        let (watcher, watchers) = (AtomicU64::new(0), Mutex::default());
        let number = numbers.fetch_add(1, Ordering::Relaxed);
        Some(SimMemory { heap, watcher, watchers, registered: Arc::clone(registered), number })
    }

    /// Returns the memory's number in the run, by which the hardware model identifies it.
    #[inline]
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    fn change_watchers(&self, change: impl FnOnce(&mut Vec<(u32, u32)>)) {
        let mut watchers = self.watchers.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut watchers);
        let watcher = match watchers.as_slice() {
            [] => 0,
            [(domain, name)] => u64::from(domain + 1) << 32 | u64::from(*name),
            _ => SEVERAL,
        };
        self.watcher.store(watcher, Ordering::Relaxed);
    }

    pub(crate) fn watch(&self, domain: u32, name: u32) {
        self.change_watchers(|watchers| watchers.push((domain, name)));
    }

    pub(crate) fn unwatch(&self, domain: u32) {
        self.change_watchers(|watchers| {
            if let Some(place) = watchers.iter().position(|(watcher, _)| *watcher == domain) {
                watchers.remove(place);
            }
        });
    }

    /// Returns the watching domain, if there is exactly one.
    #[inline]
    pub(crate) fn watcher(&self) -> Option<u32> {
        match self.watcher.load(Ordering::Relaxed) {
            0 | SEVERAL => None,
            one => Some(Watcher(one).domain()),
        }
    }

    #[cold]
    #[inline(never)]
    fn several_watchers(&self) -> Watchers {
        Watchers::Several(self.watchers.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }

    /// Returns the watchers of the memory.
    #[inline(always)]
    pub(crate) fn watchers(&self) -> Watchers {
        match self.watcher.load(Ordering::Relaxed) {
            0 => Watchers::Nobody,
            SEVERAL => self.several_watchers(),
            one => Watchers::One(Watcher(one)),
        }
    }
}

/// A 64-byte line of private memory.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(crate) struct Line(pub(crate) [u8; 64]);

impl Default for Line {
    fn default() -> Self {
        Line([0; 64])
    }
}

impl Line {
    /// Copies a line that was just written in words, word by word. Wider loads would stall until those stores
    /// have left the processor's store buffer.
    #[inline(always)]
    pub(crate) fn copy(&mut self, from: &[u8; 64]) {
        // SAFETY: the destination is a whole line, aligned by its type, and exclusively borrowed.
        unsafe { copy::line_to_peer(from, self.0.as_mut_ptr()) }
    }
}

/// A watching domain and its name for the memory, packed into one word. Two separate words, stored and loaded
/// together, would stall on the processor's store buffer.
#[derive(Clone, Copy)]
pub(crate) struct Watcher(u64);

impl Watcher {
    #[inline(always)]
    pub(crate) fn domain(self) -> u32 {
        (self.0 >> 32) as u32 - 1
    }

    #[inline(always)]
    pub(crate) fn name(self) -> u32 {
        self.0 as u32
    }
}

/// The watchers of a memory: domains, and their names for it.
pub(crate) enum Watchers {
    Nobody,
    One(Watcher),
    /// In the order of registration.
    Several(Vec<(u32, u32)>),
}

impl Drop for SimMemory {
    fn drop(&mut self) {
        self.registered.fetch_sub(1, Ordering::Relaxed);
    }
}

// SAFETY: all methods delegate to the heap memory, which upholds the contract.
unsafe impl Memory for SimMemory {
    fn base(&self) -> NonNull<u8> {
        self.heap.base()
    }
    fn length(&self) -> usize {
        self.heap.length()
    }
    fn access(&self) -> Access {
        self.heap.access()
    }
}

/// Granted memory as the RNIC sees it: copies in and out, never references. The RNIC acts like a device
/// outside the program. The owner may hold a `&mut [u8]` into an arena buffer while a peer READs it, so every
/// access uses the copies that are opaque to the compiler.
#[derive(Debug)]
pub(crate) struct Target(Arc<SimMemory>);

impl Target {
    pub(crate) fn new(memory: &Arc<SimMemory>) -> Self {
        Target(Arc::clone(memory))
    }

    #[inline]
    pub(crate) fn memory(&self) -> &SimMemory {
        &self.0
    }

    #[inline]
    pub(crate) fn length(&self) -> usize {
        self.0.length()
    }

    #[inline(always)]
    fn at(&self, offset: usize, length: usize) -> *mut u8 {
        assert!(offset <= self.length() && length <= self.length() - offset, "offset out of the memory");
        // SAFETY: the assertion above checks the bounds.
        unsafe { self.0.base().as_ptr().add(offset) }
    }

    /// Copies bytes in, the last 8 bytes last.
    #[inline(always)]
    pub(crate) fn copy_in(&self, offset: usize, source: &[u8]) {
        let destination = self.at(offset, source.len());
        // SAFETY: in bounds by `at`. Only memory granted for WRITE is written here, and no arena is built on
        // such memory, so no slice of it exists. The line copy is used only where the destination is aligned.
        unsafe {
            match source.try_into() {
                Ok(line) if destination.addr().is_multiple_of(align_of::<Line>()) => {
                    copy::line_to_peer(line, destination);
                }
                _ => copy::to_peer(source.as_ptr(), destination, source.len()),
            }
        }
    }

    /// Prefetches the line at an offset, which need not be in bounds. A hint only.
    #[inline]
    pub(crate) fn prefetch(&self, offset: usize) {
        copy::prefetch_to_read(self.0.base().as_ptr().wrapping_add(offset));
    }

    /// Copies bytes out.
    pub(crate) fn copy_out(&self, offset: usize, destination: &mut [u8]) {
        let source = self.at(offset, destination.len());
        // SAFETY: in bounds by `at`; the destination is exclusively borrowed.
        unsafe { copy::from_peer(source, destination.as_mut_ptr(), destination.len()) }
    }

    /// Replaces an aligned 8-byte word; returns the old value.
    pub(crate) fn change(&self, offset: usize, new: impl FnOnce(u64) -> u64) -> u64 {
        assert!(offset.is_multiple_of(8), "atomics are aligned");
        // SAFETY: in bounds by `at`, and aligned because the base is and `offset` is a multiple of 8. Only
        // memory granted for atomics is passed here, and this crate accesses such words only atomically.
        let word = unsafe { AtomicU64::from_ptr(self.at(offset, 8).cast()) };
        let old = u64::from_le(word.load(Ordering::Acquire));
        word.store(new(old).to_le(), Ordering::Release);
        old
    }
}
