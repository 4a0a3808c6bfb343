//! Switching between the coroutines of a run.
//!
//! A coroutine finds its scheduler through a thread-local, so the handles that engine code holds remain `Send
//! + Sync` data without a pointer into any stack.

use crate::stacks::{Canary, SlabStack, Stacks};
use corosensei::stack::Stack;
use corosensei::{Coroutine, CoroutineResult, Yielder};
use std::cell::Cell;
use std::ptr;

thread_local! {
    /// The yielder of the coroutine that runs on this thread now; null outside of coroutines.
    static CURRENT: Cell<*const Yielder<(), ()>> = const { Cell::new(ptr::null()) };
}

/// The stack and coroutine of a simulated thread. Fits one cache line.
#[repr(align(64))]
pub(crate) struct Strand {
    coroutine: Coroutine<(), (), (), SlabStack>,
    canary: Option<Canary>,
}

impl Strand {
    /// Creates a strand that will run `body`; also returns the address where its stack ends.
    pub(crate) fn new(stacks: &Stacks, body: Box<dyn FnOnce() + Send>) -> std::io::Result<(Self, usize)> {
        let stack = stacks.take()?;
        let (end, canary) = (stack.base().get(), stack.canary());
        let coroutine = Coroutine::with_stack(stack, move |yielder, ()| {
            CURRENT.set(yielder);
            body();
        });
        Ok((Strand { coroutine, canary }, end))
    }

    /// Runs the strand until it suspends or ends; returns whether it ended.
    pub(crate) fn resume(&mut self) -> bool {
        let outer = CURRENT.get();
        let result = self.coroutine.resume(());
        CURRENT.set(outer);
        matches!(result, CoroutineResult::Return(()))
    }

    /// Returns whether the strand has started.
    pub(crate) fn has_begun(&self) -> bool {
        self.coroutine.started()
    }

    /// Returns whether no stack overrun is detected.
    #[inline]
    pub(crate) fn is_sound(&self) -> bool {
        // SAFETY: the coroutine owns the stack, and is not running, since a strand runs only during `resume`,
        // which borrows it mutably.
        self.canary.is_none_or(|canary| unsafe { canary.lives() })
    }
}

/// Returns whether the caller runs in a coroutine that can be suspended.
pub(crate) fn inside() -> bool {
    !CURRENT.get().is_null()
}

/// Calls `what` on the stack that resumed the current coroutine. With many coroutines each of their stacks is
/// cold when reused, while the outer stack stays in the caches. Must be called inside a coroutine; `what`
/// must not suspend it.
pub(crate) fn on_outer_stack<R>(what: impl FnOnce() -> R + Send) -> R {
    // An attempt to suspend meanwhile finds that it is not inside a coroutine.
    let current = CURRENT.replace(ptr::null());
    assert!(!current.is_null(), "there is no outer stack outside of coroutines");
    // SAFETY: as in `suspend`, the pointer refers to the yielder at the base of the current stack. The outer
    // stack is that of `resume`, which waits for this coroutine to suspend or to end, and `what` returns
    // before that.
    let result = unsafe { (*current).on_parent_stack(what) };
    CURRENT.set(current);
    result
}

/// Suspends the current coroutine. Panics outside of one.
pub(crate) fn suspend() {
    let current = CURRENT.get();
    assert!(!current.is_null(), "a blocking call of the simulated host was made outside of Sim::run");
    // SAFETY: a non-null pointer was set by a strand's own body or just below, on this thread, and refers to
    // the yielder at the base of the current stack (`resume` restores the outer one when a strand suspends or
    // ends). The yielder lives until that body returns, and so longer than this call.
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
            // The thread's own stack is below its earlier frames, and far from the coroutine's.
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
