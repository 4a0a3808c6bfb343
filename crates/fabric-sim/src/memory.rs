//! Registered memory, and the simulated RNIC's access to it.
//!
//! `unsafe` stands here and in `switch`, `shared` and `stacks` only.

use dunlin_fabric::memory::HeapMemory;
use dunlin_fabric::{Access, Memory, copy};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The name of memory that its watcher has not named.
pub(crate) const NAMELESS: u32 = u32::MAX;
/// More than one domain looks at the memory.
const SEVERAL: u64 = u64::MAX;

/// Registered memory of a simulated fabric: knows who looks at it. What a message touches of it lies in one cache line.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct SimMemory {
    heap: HeapMemory,
    /// The one domain that looks at it and its name for it, as `(domain + 1) << 32 | name`; 0 for none, [`SEVERAL`].
    watcher: AtomicU64,
    /// Its number in the run.
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

    /// Its number in the run: what the model knows it by.
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

    /// The domain that looks at the memory, if it is one.
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

    /// Who looks at the memory.
    #[inline(always)]
    pub(crate) fn watchers(&self) -> Watchers {
        match self.watcher.load(Ordering::Relaxed) {
            0 => Watchers::Nobody,
            SEVERAL => self.several_watchers(),
            one => Watchers::One(Watcher(one)),
        }
    }
}

/// A line of private memory.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(crate) struct Line(pub(crate) [u8; 64]);

impl Default for Line {
    fn default() -> Self {
        Line([0; 64])
    }
}

impl Line {
    /// Copies a line that was just written in words, word by word: wider loads would wait until those stores have left the
    /// processor's queue.
    #[inline(always)]
    pub(crate) fn copy(&mut self, from: &[u8; 64]) {
        // SAFETY: the destination is a whole line, aligned by its type, and ours.
        unsafe { copy::line_to_peer(from, self.0.as_mut_ptr()) }
    }
}

/// A domain that looks at memory and its name for it, in one word: two that are put down and taken up together would have to wait
/// for the processor's queue of stores.
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

/// Who looks at some memory: domains, and their names for it.
pub(crate) enum Watchers {
    Nobody,
    One(Watcher),
    /// In the order in which they came.
    Several(Vec<(u32, u32)>),
}

impl Drop for SimMemory {
    fn drop(&mut self) {
        self.registered.fetch_sub(1, Ordering::Relaxed);
    }
}

// SAFETY: all is the heap memory's, which keeps the contract.
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

/// Granted memory as the RNIC sees it: copies in and out, no references. It stands outside of the program like
/// a device: the owner may hold a `&mut [u8]` of an arena's buffer while a peer READs it, so every access goes
/// through the copies that are opaque to the compiler.
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
        // SAFETY: in bounds, as just checked.
        unsafe { self.0.base().as_ptr().add(offset) }
    }

    /// Copies bytes in, the last 8 last.
    #[inline(always)]
    pub(crate) fn copy_in(&self, offset: usize, source: &[u8]) {
        let destination = self.at(offset, source.len());
        // SAFETY: in bounds by `at`. Only memory that was granted for WRITE comes here; no arena is made of
        // such, so there is no slice of it. A line has a shorter way, where it is aligned.
        unsafe {
            match source.try_into() {
                Ok(line) if destination.addr().is_multiple_of(align_of::<Line>()) => {
                    copy::line_to_peer(line, destination);
                }
                _ => copy::to_peer(source.as_ptr(), destination, source.len()),
            }
        }
    }

    /// Asks for the line at an offset, wherever that is. A hint.
    #[inline]
    pub(crate) fn prefetch(&self, offset: usize) {
        copy::prefetch_to_read(self.0.base().as_ptr().wrapping_add(offset));
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
