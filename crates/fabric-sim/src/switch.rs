//! Switching between the coroutines of a run.
//!
//! A coroutine finds the way back to its scheduler through a thread-local, so that the handles which engine
//! code holds stay `Send + Sync` data without a pointer into any stack.

use crate::stacks::{Canary, SlabStack, Stacks};
use corosensei::stack::Stack;
use corosensei::{Coroutine, CoroutineResult, Yielder};
use std::cell::Cell;
use std::ptr;

thread_local! {
    /// The yielder of the coroutine that runs on this thread now; null outside of coroutines.
    static CURRENT: Cell<*const Yielder<(), ()>> = const { Cell::new(ptr::null()) };
}

/// A simulated thread's stack and what it still has to do. One cache line.
#[repr(align(64))]
pub(crate) struct Strand {
    coroutine: Coroutine<(), (), (), SlabStack>,
    canary: Option<Canary>,
}

impl Strand {
    /// A strand that will run `body`, and the address where its stack ends.
    pub(crate) fn new(stacks: &Stacks, body: Box<dyn FnOnce() + Send>) -> std::io::Result<(Self, usize)> {
        let stack = stacks.take()?;
        let (end, canary) = (stack.base().get(), stack.canary());
        let coroutine = Coroutine::with_stack(stack, move |yielder, ()| {
            CURRENT.set(yielder);
            body();
        });
        Ok((Strand { coroutine, canary }, end))
    }

    /// Runs it until it suspends or ends; says whether it ended.
    pub(crate) fn resume(&mut self) -> bool {
        let outer = CURRENT.get();
        let result = self.coroutine.resume(());
        CURRENT.set(outer);
        matches!(result, CoroutineResult::Return(()))
    }

    /// Whether it has run at all.
    pub(crate) fn has_begun(&self) -> bool {
        self.coroutine.started()
    }

    /// Whether it has kept to its stack, as far as it can be told.
    #[inline]
    pub(crate) fn is_sound(&self) -> bool {
        // SAFETY: the coroutine holds the stack, and is not running: we hold it.
        self.canary.is_none_or(|canary| unsafe { canary.lives() })
    }
}

/// Whether the caller runs in a coroutine that can be suspended.
pub(crate) fn inside() -> bool {
    !CURRENT.get().is_null()
}

/// Does something on the stack of who has resumed the coroutine that runs on this thread: of many coroutines' stacks each has
/// left the caches when it is used again, that one has not. Must be called inside of one; what is done must not suspend it.
pub(crate) fn on_outer_stack<R>(what: impl FnOnce() -> R + Send) -> R {
    // Who tries to suspend meanwhile is told that it is not inside.
    let current = CURRENT.replace(ptr::null());
    assert!(!current.is_null(), "there is no outer stack outside of coroutines");
    // SAFETY: as in `suspend`, the pointer names the yielder at the base of the stack that we run on. The outer stack is that of
    // `resume`, which waits for this coroutine to suspend or to end, and what runs there returns before that.
    let result = unsafe { (*current).on_parent_stack(what) };
    CURRENT.set(current);
    result
}

/// Suspends the coroutine that runs on this thread. Must be called inside of one.
pub(crate) fn suspend() {
    let current = CURRENT.get();
    assert!(!current.is_null(), "a blocking call of the simulated host was made outside of Sim::run");
    // SAFETY: a non-null pointer was set by a strand's own body or just below, on this thread, and names the
    // yielder at the base of the stack that we run on (`resume` puts the outer one back when a strand suspends
    // or ends), which lives until that body returns, and so longer than this call.
    unsafe { (*current).suspend(()) };
    CURRENT.set(current);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_strand_is_a_cache_line_also_where_there_may_be_none() {
        assert_eq!((size_of::<Strand>(), size_of::<Option<Strand>>()), (64, 64));
    }

    #[test]
    fn the_outer_stack_is_another_one_and_nothing_suspends_there() {
        let stacks = Stacks::new(64 * 1024, 1).expect("address space");
        let here = 0u8;
        let outer = (&raw const here).addr();
        let body = Box::new(move || {
            let inner = 0u8;
            let inner = (&raw const inner).addr();
            let there = on_outer_stack(|| {
                assert!(!inside());
                let there = 0u8;
                (&raw const there).addr()
            });
            assert!(inside());
            // The thread's own stack lies below what was on it before, and far from the coroutine's.
            assert!(there < outer && there.abs_diff(outer) < 64 * 1024);
            assert!(inner.abs_diff(there) > 64 * 1024);
            suspend();
        });
        let (mut strand, end) = Strand::new(&stacks, body).expect("a stack");
        assert_eq!(end % 64, 0);
        assert!(!strand.resume());
        assert!(strand.resume());
    }
}
