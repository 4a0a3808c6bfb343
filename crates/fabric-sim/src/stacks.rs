//! The stacks of all tasks of a run, in one mapping: separate mappings would reach the system's limit near 32
//! 000.
//!
//! Pages are touched lazily. The first stacks have a guard page below them, which costs two mappings each.
//! The stacks beyond [`GUARDED`] instead hold a canary in their lowest words, which is checked whenever the
//! task has run, before anything else does.
//!
//! `unsafe` code is limited to this module, `switch`, `shared` and `memory`.

use corosensei::stack::{Stack, StackPointer};
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap_anonymous, mprotect, munmap};
use std::cell::RefCell;
use std::io;
use std::ptr::NonNull;
use std::rc::Rc;

/// Number of stacks with a guard page.
const GUARDED: usize = 8_000;
const PAGE: usize = 4096;
/// Number of cache lines of a page over which the starts of the stacks are spread. Stacks a power of two
/// apart would otherwise compete for the same few cache sets.
const COLOURS: usize = 61;
const LINE: usize = 64;
const CANARY: u64 = 0x6b6e_6f77_6e20_6761;

/// The mapping and its free stacks.
#[derive(Debug)]
struct Slab {
    base: usize,
    stack: usize,
    stacks: usize,
    used: usize,
    free: Vec<usize>,
}

impl Drop for Slab {
    fn drop(&mut self) {
        // SAFETY: mapped in `Stacks::new` with this length; every stack in use holds the slab, so none is
        // left.
        let unmapped = unsafe { munmap(self.base as *mut _, self.stack * self.stacks) };
        debug_assert!(unmapped.is_ok(), "the stacks' mapping is ours: {unmapped:?}");
    }
}

/// The pool of stacks. Belongs to one thread.
#[derive(Clone, Debug)]
pub(crate) struct Stacks(Rc<RefCell<Slab>>);

impl Stacks {
    /// Reserves address space for `stacks` stacks of at least `stack` bytes each.
    pub(crate) fn new(stack: usize, stacks: usize) -> io::Result<Self> {
        let stack = stack.next_multiple_of(PAGE).max(4 * PAGE) + PAGE;
        let stacks = stacks.max(1);
        let length =
            stack.checked_mul(stacks).ok_or_else(|| io::Error::other("more stacks than addresses"))?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: creates a new private mapping at an address that the system chooses.
        let base = unsafe {
            mmap_anonymous(std::ptr::null_mut(), length, access, MapFlags::PRIVATE | MapFlags::NORESERVE)?
        };
        // A huge page would hold many stacks, of each of which little is used.
        // SAFETY: the range is the mapping just created, and the advice changes no contents. Systems without
        // huge pages return an error, which is harmless.
        let _ = unsafe { madvise(base, length, Advice::LinuxNoHugepage) };
        Ok(Stacks(Rc::new(RefCell::new(Slab {
            base: base as usize,
            stack,
            stacks,
            used: 0,
            free: Vec::new(),
        }))))
    }

    /// Takes a stack; dropping it returns it.
    pub(crate) fn take(&self) -> io::Result<SlabStack> {
        let mut slab = self.0.borrow_mut();
        let fresh = slab.free.is_empty();
        let index = match slab.free.pop() {
            Some(index) => index,
            None if slab.used < slab.stacks => {
                slab.used += 1;
                slab.used - 1
            }
            None => {
                return Err(io::Error::other(format!(
                    "all {} stacks are in use; raise Settings::max_tasks",
                    slab.stacks
                )));
            }
        };
        let low = slab.base + index * slab.stack;
        let guarded = index < GUARDED;
        if guarded && fresh {
            // SAFETY: the page is the lowest of a stack that is not in use.
            unsafe { mprotect(low as *mut _, PAGE, MprotectFlags::empty())? };
        }
        let high = low + slab.stack - index % COLOURS * LINE;
        let stack = SlabStack { slab: Rc::clone(&self.0), index: index as u32, guarded, low, high };
        if let Some(canary) = stack.canary() {
            // SAFETY: the stack has just been taken, so nothing runs on it.
            unsafe { canary.hatch() };
        }
        Ok(stack)
    }
}

/// One stack.
#[derive(Debug)]
pub(crate) struct SlabStack {
    slab: Rc<RefCell<Slab>>,
    index: u32,
    guarded: bool,
    low: usize,
    high: usize,
}

/// The lowest words of a stack without a guard page.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Canary(NonNull<[u64; 8]>);

impl SlabStack {
    /// Returns the canary that detects an overrun; `None` if a guard page does.
    pub(crate) fn canary(&self) -> Option<Canary> {
        NonNull::new(self.low as *mut [u64; 8]).filter(|_| !self.guarded).map(Canary)
    }
}

impl Canary {
    /// # Safety
    /// The stack must be mapped, and the task on it suspended, ended or not started.
    unsafe fn hatch(self) {
        // SAFETY: mapped and aligned, and no task within its stack's bounds uses these words.
        unsafe { self.0.write([CANARY; 8]) };
    }

    /// Returns whether the canary is intact, so that no overrun is detected.
    ///
    /// # Safety
    /// The stack must be mapped, and the task on it suspended, ended or not started.
    #[inline]
    pub(crate) unsafe fn lives(self) -> bool {
        // SAFETY: mapped and aligned, and no task writes to it now.
        let words = unsafe { self.0.read() };
        words == [CANARY; 8]
    }
}

impl Drop for SlabStack {
    fn drop(&mut self) {
        self.slab.borrow_mut().free.push(self.index as usize);
    }
}

// SAFETY: the range is mapped and exclusively owned until the drop. Overruns fault in the guard page. On
// stacks without one, the canary reveals them before anything else runs; then no task runs on any of these
// stacks again.
unsafe impl Stack for SlabStack {
    fn base(&self) -> StackPointer {
        StackPointer::new(self.high).expect("a mapping does not end at zero")
    }

    fn limit(&self) -> StackPointer {
        StackPointer::new(self.low).expect("a mapping does not begin at zero")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stacks_come_from_one_mapping_and_go_back() {
        let stacks = Stacks::new(64 * 1024, 3).expect("address space");
        let taken: Vec<_> = (0..3).map(|_| stacks.take().expect("room")).collect();
        for pair in taken.windows(2) {
            assert_eq!(pair[1].limit().get() - pair[0].limit().get(), 64 * 1024 + PAGE);
            assert!(pair[0].base().get() - pair[0].limit().get() > 64 * 1024);
            assert_ne!(pair[0].base().get() % PAGE, pair[1].base().get() % PAGE);
        }
        assert!(stacks.take().expect_err("there is no fourth").to_string().contains("max_tasks"));
        let limit = taken[1].limit();
        drop(taken);
        let again: Vec<_> = (0..3).map(|_| stacks.take().expect("room")).collect();
        assert!(again.iter().any(|stack| stack.limit() == limit));
    }

    #[test]
    fn forty_thousand_stacks_can_be_had() {
        let stacks = Stacks::new(64 * 1024, 40_000).expect("address space");
        let taken: Vec<_> = (0..40_000).map(|_| stacks.take().expect("room")).collect();
        // SAFETY: the stacks are taken, and no task has started on one.
        let lives = |canary: Canary| unsafe { canary.lives() };
        let canaries: Vec<_> = taken.iter().filter_map(SlabStack::canary).collect();
        assert_eq!(canaries.len(), 40_000 - GUARDED);
        assert!(canaries.iter().copied().all(lives));
        let last = canaries.last().expect("32 000");
        // SAFETY: as above.
        unsafe { last.0.write([0; 8]) };
        assert!(!lives(*last));
    }
}
