//! The state of a run, as its handles share it, and the doors through which tasks enter it.
//!
//! One thread of the operating system runs a run: the handles are `Send + Sync` because engine code asks for that, and
//! hold the state in a cell that opens only on that thread and only while the run lasts.

use crate::events::Event;
use crate::scheduler::{State, Waiter};
use crate::settings::Prices;
use crate::switch;
use dunlin_fabric::{Nanos, Wake};
use std::cell::{Cell, UnsafeCell};
use std::ops::{Deref, DerefMut};
use std::ptr;

thread_local! {
    /// The run that this thread is in.
    static RUN: Cell<*const Shared> = const { Cell::new(ptr::null()) };
}

/// Thrown through a task whose process was killed or whose run is over.
pub(crate) struct Killed;

/// The state of a run.
pub(crate) struct Shared {
    state: UnsafeCell<State>,
    open: Cell<bool>,
}

// SAFETY: `state` and `open` are touched only by the thread whose `RUN` names this very value (`try_lock`), which is the
// one thread that made it (`Entered`), so there is no sharing in fact. All that is in the state is `Send`.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Shared")
    }
}

/// While it lives, this thread is in the run.
pub(crate) struct Entered(*const Shared);

impl Drop for Entered {
    fn drop(&mut self) {
        RUN.set(self.0);
    }
}

/// The open state.
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
        // SAFETY: `open` admits one guard at a time, on the one thread that may make any.
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

    /// Puts this thread into the run: once for each run, by who made it.
    pub(crate) fn enter_run(&self) -> Entered {
        Entered(RUN.replace(self))
    }

    /// The state as it is, unless the caller is not in this run (any more). For drops.
    #[inline]
    pub(crate) fn try_lock(&self) -> Option<Guard<'_>> {
        if !ptr::eq(RUN.get(), self) {
            return None;
        }
        assert!(!self.open.replace(true), "the state of a run was entered twice");
        Some(Guard(self))
    }

    /// The state as it is. For what must not switch, and looks that need no order.
    #[inline]
    pub(crate) fn lock(&self) -> Guard<'_> {
        self.try_lock().expect("a handle of a simulated fabric was used outside of its Sim::run")
    }

    /// For what does not block, which may be called with a lock held and so must not switch: charges `price`
    /// picoseconds. The task runs ahead on a clock of its own; what happens until then it sees after its next
    /// [`enter`](Shared::enter).
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
        // For good: the run is given up.
        switch::suspend();
        self.end_if_over(self.lock())
    }

    /// [`pass_on`](Shared::pass_on), at a price of the list.
    #[inline]
    pub(crate) fn pass_at(&self, price: impl Fn(&Prices) -> u64) -> Guard<'_> {
        let state = self.lock();
        let price = price(&state.settings.prices);
        self.pass_on(state, price)
    }

    /// [`pass_on`](Shared::pass_on), at the price of a system call.
    pub(crate) fn system_call(&self) -> Guard<'_> {
        self.pass_at(|prices| prices.system_call * 1000)
    }

    /// [`enter`](Shared::enter), at the price of a system call.
    pub(crate) fn blocking_call(&self) -> Guard<'_> {
        self.enter_at(|prices| prices.system_call * 1000)
    }

    /// Ends the calling task if its process was killed or the run is over, unless it is ending already.
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

    /// For what may block: the state at the running task's time. Charges `price` picoseconds, and everything that
    /// happens until then has happened. May switch tasks.
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

    /// [`enter`](Shared::enter), at a price of the list.
    #[inline(always)]
    pub(crate) fn enter_at(&self, price: impl Fn(&Prices) -> u64) -> Guard<'_> {
        let mut state = self.lock();
        let price = price(&state.settings.prices);
        state.charge(price);
        self.enter_on(state)
    }

    /// Lets everything happen that is due before the running task goes on.
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
            // What happens in the network happens here as well as anywhere; as long as little else is in the caches, on a stack that is.
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
            // What was scheduled for this very instant before goes first; what is scheduled for it later does
            // not, else two tasks of one instant would give way to each other for ever.
            return self.give_way(state, clock);
        }
        if clock > state.settings.limit || state.has_had_its_quantum() {
            return self.give_way(state, clock);
        }
        state.settle();
        state
    }

    /// Lets the others run until `at`.
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

    /// Parks the running task in its [`State::stay`] until it is woken, or until then. A stay may end for no
    /// reason now and then if `spurious` says that the caller has to cope with it.
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

    /// [`park`](Shared::park), in the function that calls it: of each return after a switch the processor expects that it goes to where
    /// another task was called from.
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
