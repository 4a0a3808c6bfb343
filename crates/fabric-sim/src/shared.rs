//! The state of a run as its handles share it, and the entry points of tasks.
//!
//! One operating-system thread executes a run. The handles are `Send + Sync` because engine code requires it;
//! they hold the state in a cell that opens only on that thread and only during the run.

use crate::events::Event;
use crate::settings::Prices;
use crate::state::State;
use crate::switch;
use crate::tasks::Waiter;
use dunlin_fabric::{Nanos, Wake};
use std::cell::{Cell, UnsafeCell};
use std::ops::{Deref, DerefMut};
use std::ptr;

thread_local! {
    /// The run that this thread executes.
    static RUN: Cell<*const Shared> = const { Cell::new(ptr::null()) };
}

/// The panic payload that unwinds a task whose process was killed or whose run is over.
pub(crate) struct Killed;

/// The state of a run.
pub(crate) struct Shared {
    state: UnsafeCell<State>,
    open: Cell<bool>,
}

// SAFETY: `state` and `open` are accessed only by the thread whose `RUN` points to this very value
// (`try_lock`). That is the one thread that created it (`Entered`), so nothing is shared in fact. Everything
// in the state is `Send`.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Shared")
    }
}

/// Keeps this thread in the run while it lives.
pub(crate) struct Entered(*const Shared);

impl Drop for Entered {
    fn drop(&mut self) {
        RUN.set(self.0);
    }
}

/// Exclusive access to the state.
pub(crate) struct Guard<'a>(&'a Shared);

impl Drop for Guard<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.0.open.set(false);
    }
}

impl Deref for Guard<'_> {
    type Target = State;
    #[inline(always)]
    fn deref(&self) -> &State {
        // SAFETY: `open` admits one guard at a time, on the one thread that may create any.
        unsafe { &*self.0.state.get() }
    }
}

impl DerefMut for Guard<'_> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut State {
        // SAFETY: as above.
        unsafe { &mut *self.0.state.get() }
    }
}

impl Shared {
    pub(crate) fn new(state: State) -> Self {
        Shared { state: UnsafeCell::new(state), open: Cell::new(false) }
    }

    /// Enters this thread into the run; called once per run, by its creator.
    pub(crate) fn enter_run(&self) -> Entered {
        Entered(RUN.replace(self))
    }

    /// Returns the state as it is, unless the caller is not in this run or no longer is. For destructors.
    #[inline]
    pub(crate) fn try_lock(&self) -> Option<Guard<'_>> {
        if !ptr::eq(RUN.get(), self) {
            return None;
        }
        assert!(!self.open.replace(true), "the state of a run was entered twice");
        Some(Guard(self))
    }

    /// Returns the state as it is. For calls that must not switch, and reads that need no order.
    #[inline]
    pub(crate) fn lock(&self) -> Guard<'_> {
        self.try_lock().expect("a handle of a simulated fabric was used outside of its Sim::run")
    }

    /// Charges `price` picoseconds for a call that does not block, and that must not switch because its
    /// caller may hold a lock. The task runs ahead on its own clock and observes the events until then at its
    /// next [`enter`](Shared::enter).
    #[inline(always)]
    pub(crate) fn pass_on<'a>(&'a self, mut state: Guard<'a>, price: u64) -> Guard<'a> {
        state.charge(price);
        if state.is_hogging() { self.hog(state) } else { state }
    }

    #[cold]
    #[inline(never)]
    fn hog<'a>(&'a self, mut state: Guard<'a>) -> Guard<'a> {
        if !switch::inside() {
            return state;
        }
        if state.over() {
            return self.end_if_over(state);
        }
        state.hogged = true;
        drop(state);
        // Never resumed: the run is aborted.
        switch::suspend();
        self.end_if_over(self.lock())
    }

    /// [`pass_on`](Shared::pass_on) at a price from the list.
    #[inline]
    pub(crate) fn pass_at(&self, price: impl Fn(&Prices) -> u64) -> Guard<'_> {
        let state = self.lock();
        let price = price(&state.settings.prices);
        self.pass_on(state, price)
    }

    /// [`pass_on`](Shared::pass_on) at the price of a system call.
    pub(crate) fn system_call(&self) -> Guard<'_> {
        self.pass_at(|prices| prices.system_call * 1000)
    }

    /// [`enter`](Shared::enter) at the price of a system call.
    pub(crate) fn blocking_call(&self) -> Guard<'_> {
        self.enter_at(|prices| prices.system_call * 1000)
    }

    /// Unwinds the calling task if its process was killed or the run is over, unless it is unwinding already.
    #[inline(always)]
    fn end_if_over<'a>(&'a self, state: Guard<'a>) -> Guard<'a> {
        if state.over() { self.end(state) } else { state }
    }

    #[cold]
    #[inline(never)]
    fn end<'a>(&'a self, state: Guard<'a>) -> Guard<'a> {
        if switch::inside() && !std::thread::panicking() {
            drop(state);
            std::panic::resume_unwind(Box::new(Killed));
        }
        state
    }

    /// Returns the state at the running task's time, for a call that may block. Charges `price` picoseconds;
    /// all events until then have happened. May switch tasks.
    #[inline(always)]
    pub(crate) fn enter(&self, price: u64) -> Guard<'_> {
        let mut state = self.lock();
        state.charge(price);
        self.enter_on(state)
    }

    #[inline(always)]
    fn enter_on<'a>(&'a self, mut state: Guard<'a>) -> Guard<'a> {
        if !switch::inside() {
            return state;
        }
        match state.has_the_time_to_itself() {
            true => state.settle_at_clock(),
            false => state = self.let_happen(state),
        }
        state
    }

    /// [`enter`](Shared::enter) at a price from the list.
    #[inline(always)]
    pub(crate) fn enter_at(&self, price: impl Fn(&Prices) -> u64) -> Guard<'_> {
        let mut state = self.lock();
        let price = price(&state.settings.prices);
        state.charge(price);
        self.enter_on(state)
    }

    /// Executes everything that is due before the running task continues.
    #[inline(never)]
    fn let_happen<'a>(&'a self, mut state: Guard<'a>) -> Guard<'a> {
        if state.over() {
            return self.end_if_over(state);
        }
        let clock = state.now();
        loop {
            let at = state.events.next_time();
            if at > clock {
                break;
            }
            // Network events can run here without a switch. In a large run the outer stack is used, since it
            // stays in the caches.
            if state.events.next_is_of_network() {
                match state.is_large() {
                    true => switch::on_outer_stack(|| state.happen_until(clock)),
                    false => state.happen_until(clock),
                }
                continue;
            }
            if at + state.settings.slack > clock && clock - state.clock_of_events() <= state.settings.slack {
                break;
            }
            // Events scheduled earlier for this instant go first. Events scheduled later for it do not, or
            // two tasks of one instant would yield to each other for ever.
            return self.give_way(state, clock);
        }
        if clock > state.settings.limit || state.has_had_its_quantum() {
            return self.give_way(state, clock);
        }
        state.settle();
        state
    }

    /// Yields to other tasks until `at`.
    pub(crate) fn give_way<'a>(&'a self, mut state: Guard<'a>, at: Nanos) -> Guard<'a> {
        let Some(task) = state.running().filter(|_| !state.over()) else { return state };
        if !state.leave_core_to_another(task) {
            state.put(at, Event::Run { task });
        }
        let here = 0u8;
        state.suspended_at(task, (&raw const here).addr());
        drop(state);
        switch::suspend();
        self.end_if_over(self.lock())
    }

    /// Parks the running task in its [`State::stay`] until it is woken or `until` is reached. The wait may
    /// end spuriously if `spurious` is set, which the caller must handle.
    #[inline(never)]
    pub(crate) fn park<'a>(
        &'a self,
        state: Guard<'a>,
        waiter: Waiter,
        until: Nanos,
        spurious: bool,
    ) -> (Guard<'a>, Wake) {
        self.park_here(state, waiter, until, spurious)
    }

    /// [`park`](Shared::park), inlined into the caller: after a switch the processor's return predictor
    /// expects the call sites of another task.
    #[inline(always)]
    pub(crate) fn park_here<'a>(
        &'a self,
        mut state: Guard<'a>,
        waiter: Waiter,
        until: Nanos,
        spurious: bool,
    ) -> (Guard<'a>, Wake) {
        if state.over() {
            return (self.end_if_over(state), Wake::TimedOut);
        }
        state.begin_stay(waiter, until, spurious);
        let here = 0u8;
        state.suspended_at(waiter.task, (&raw const here).addr());
        drop(state);
        switch::suspend();
        let state = self.end_if_over(self.lock());
        let outcome = state.outcome(waiter);
        (state, outcome)
    }
}
