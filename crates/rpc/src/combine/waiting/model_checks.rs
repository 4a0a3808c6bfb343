//! The shipped hand-over between threads that wait, under a model checker, with each fence left out once.
//!
//! A parker is a word: a thread that parks for good leaves it empty, which the checks find. Nothing blocks.

use super::super::lead::tests::ModelLock;
use super::super::lead::{Lead, Leading, Led, Look, Next, Waiters, Watch};
use super::super::tickets::model_checks::{BEFORE_PARK, BEFORE_PASS, Checked, Half, check, fails};
use super::*;
use dunlin_fabric::{Nanos, Signal};
use std::fmt;

/// The work of a leader: whether it made the progress that others asked for.
#[derive(Debug, Default)]
struct Progress(u32);

impl Led for Progress {
    fn has_backlog(&self) -> bool {
        false
    }
}

/// Waiting threads with their parkers.
struct Gate<const WEAK: u8> {
    waiting: Waiting<1, Checked<WEAK>>,
    notified: [Half; 2],
}

impl<const WEAK: u8> Gate<WEAK> {
    fn new() -> Self {
        Gate { waiting: Waiting::new(), notified: std::array::from_fn(|_| Half::new(0)) }
    }

    fn unpark(&self, seat: Option<usize>) {
        if let Some(seat) = seat {
            self.notified[seat].store(1, Ordering::Release);
        }
    }

    /// Whether a thread that parked for good was unparked. Asked when all threads have ended.
    fn is_notified(&self, seat: u16) -> bool {
        self.notified[usize::from(seat)].load(Ordering::Acquire) == 1
    }
}

impl<const WEAK: u8> Watch for Gate<WEAK> {
    fn look(&self) -> Look {
        self.waiting.look()
    }
    fn wake(&self) {
        self.unpark(self.waiting.choose());
    }
}

type Lock<const LOOK: bool> = ModelLock<Progress, true, LOOK>;
type Handle<const WEAK: u8, const LOOK: bool> = Lead<Progress, Gate<WEAK>, Lock<LOOK>>;

fn handle<const WEAK: u8, const LOOK: bool>() -> loom::sync::Arc<Handle<WEAK, LOOK>> {
    loom::sync::Arc::new(Lead::with_lock(Progress::default(), Gate::new(), 2))
}

/// Gives the lead back as the guard of a strand does.
fn give_back<const WEAK: u8, const LOOK: bool>(
    mut leading: Leading<'_, Progress, Gate<WEAK>, Lock<LOOK>>,
    gate: &Gate<WEAK>,
) {
    loop {
        gate.waiting.set_leading(false);
        match leading.give_back() {
            Next::Done => return,
            Next::Wake => return gate.wake(),
            Next::Again(again) => {
                leading = again;
                gate.waiting.set_leading(true);
                gate.waiting.makes_progress();
                leading.0 += 1;
            }
        }
    }
}

/// Looks for the lead as a thread does that waits. Returns whether it parks, for good.
fn wait<const WEAK: u8, const LOOK: bool>(handle: &Handle<WEAK, LOOK>, seat: u16) -> bool {
    for _ in 0..2 {
        match handle.try_lead() {
            Some(leading) => {
                handle.watch().waiting.set_leading(true);
                give_back(leading, handle.watch());
                return false;
            }
            None if handle.watch().waiting.may_park(seat, false) => return true,
            // It looks again.
            None => {}
        }
    }
    false
}

/// Threads find the lead taken, and park, while the leader gives it back. Returns whether one of those that are parked is
/// woken, and their progress was made.
fn a_parked_thread_is_woken<const WEAK: u8, const LOOK: bool>(waiters: u16) -> bool {
    let handle = handle::<WEAK, LOOK>();
    let leading = handle.try_lead();
    handle.watch().waiting.set_leading(true);
    let threads: Vec<_> = (0..waiters)
        .map(|seat| {
            let handle = handle.clone();
            loom::thread::spawn(move || wait(&handle, seat))
        })
        .collect();
    if let Some(leading) = leading {
        give_back(leading, handle.watch());
    }
    let parked: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    let mut parked = (0..waiters).filter(|seat| parked[usize::from(*seat)]).peekable();
    let is_one = parked.peek().is_some();
    let is_woken = parked.any(|seat| handle.watch().is_notified(seat));
    let has_progress = handle.try_lead().is_some_and(|leading| leading.0 > 0);
    !is_one || is_woken && has_progress
}

#[test]
fn a_leader_that_gives_the_lead_back_wakes_a_thread_that_parks() {
    check(3, || a_parked_thread_is_woken::<0, true>(1));
    assert!(fails(3, || a_parked_thread_is_woken::<BEFORE_PARK, true>(1)));
    assert!(fails(3, || a_parked_thread_is_woken::<0, false>(1)));
}

/// One wake-up is enough for two threads: the one that gets it takes the sentinel's place or leads.
#[test]
fn of_two_threads_that_park_one_is_woken() {
    check(1, || a_parked_thread_is_woken::<0, true>(2));
    assert!(fails(1, || a_parked_thread_is_woken::<0, false>(2)));
}

/// The sentinel ends its wait while another thread parks because there is a sentinel. Returns whether the other one is
/// woken.
fn the_place_is_passed_on<const WEAK: u8>() -> bool {
    let gate = loom::sync::Arc::new(Gate::<WEAK>::new());
    assert!(gate.waiting.watch(0, true) && !gate.waiting.watch(1, true));
    let other = {
        let gate = gate.clone();
        loom::thread::spawn(move || gate.waiting.may_park(1, true))
    };
    gate.waiting.stop_watching(0);
    gate.unpark(gate.waiting.pass_on());
    let parks = other.join().unwrap();
    !parks || gate.is_notified(1)
}

#[test]
fn a_sentinel_that_leaves_wakes_a_thread_that_parks() {
    check(3, the_place_is_passed_on::<0>);
    assert!(fails(3, the_place_is_passed_on::<BEFORE_PARK>));
    assert!(fails(3, the_place_is_passed_on::<BEFORE_PASS>));
}

/// Two threads are parked. The deadline of one passes while the leader may have chosen it. Returns whether the other one
/// is woken.
fn a_late_thread_passes_on(passes: bool) -> bool {
    let handle = handle::<0, true>();
    let waiting = &handle.watch().waiting;
    let leading = handle.try_lead();
    waiting.set_leading(true);
    assert!(waiting.may_park(0, true) && waiting.may_park(1, true));
    let late = {
        let handle = handle.clone();
        loom::thread::spawn(move || {
            let gate = handle.watch();
            gate.waiting.unparked(0);
            gate.waiting.stop_watching(0);
            if passes {
                gate.unpark(gate.waiting.pass_on());
            }
        })
    };
    if let Some(leading) = leading {
        give_back(leading, handle.watch());
    }
    late.join().unwrap();
    handle.watch().is_notified(1)
}

#[test]
fn a_thread_whose_deadline_passes_while_it_is_woken_wakes_the_other() {
    check(3, || a_late_thread_passes_on(true));
    assert!(fails(3, || a_late_thread_passes_on(false)));
}

/// A signal of the model checker. A wait with a deadline ends at once, and one without a deadline ends when all other
/// threads are done at the latest.
#[derive(Clone)]
struct Bell(loom::sync::Arc<(loom::sync::Mutex<Rung>, loom::sync::Condvar)>);

#[derive(Default)]
struct Rung {
    count: u64,
    /// The threads that could raise the signal are done.
    is_over: bool,
    /// A thread waited for a wake-up that did not come.
    is_late: bool,
}

impl Bell {
    fn new() -> Self {
        Bell(loom::sync::Arc::new((loom::sync::Mutex::new(Rung::default()), loom::sync::Condvar::new())))
    }

    /// Says that nobody will raise the signal any more.
    fn end(&self) {
        self.0.0.lock().unwrap().is_over = true;
        self.0.1.notify_all();
    }

    fn is_late(&self) -> bool {
        self.0.0.lock().unwrap().is_late
    }
}

impl fmt::Debug for Bell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Bell")
    }
}

impl Signal for Bell {
    fn raise(&self) {
        self.0.0.lock().unwrap().count += 1;
        self.0.1.notify_all();
    }
    fn seen(&self) -> u64 {
        self.0.0.lock().unwrap().count
    }
    fn wait(&self, seen: u64, until: Nanos) -> bool {
        let mut rung = self.0.0.lock().unwrap();
        while rung.count == seen && until == Nanos::MAX && !rung.is_over {
            rung = self.0.1.wait(rung).unwrap();
        }
        rung.is_late |= rung.count == seen && until == Nanos::MAX;
        rung.count != seen || until == Nanos::MAX
    }
}

/// A list with at most one call, and whether a thread was asked to wake one that leads.
struct List {
    calls: Half,
    wakes: Half,
}

impl Watch for List {
    fn look(&self) -> Look {
        if self.calls.load(Ordering::Relaxed) > 0 { Look::Calls } else { Look::Nothing }
    }
    fn wake(&self) {
        self.wakes.store(1, Ordering::Relaxed);
    }
}

type Waited<const WEAK: u8, const RETRY: bool, const LOOK: bool> =
    Lead<Progress, Waiters<Bell, List, Checked<WEAK>>, ModelLock<Progress, RETRY, LOOK>>;

fn waited<const WEAK: u8, const RETRY: bool, const LOOK: bool>() -> loom::sync::Arc<Waited<WEAK, RETRY, LOOK>>
{
    let list = List { calls: Half::new(0), wakes: Half::new(0) };
    loom::sync::Arc::new(Lead::with_lock(Progress::default(), Waiters::new(Bell::new(), list), 0))
}

/// A thread stops to wait for the lead, which the leader may have left to it, while a third one leaves a call. Returns
/// whether a thread has to look for the call, or has found it.
fn a_call_is_left_to_nobody<const WEAK: u8>() -> bool {
    let lead = waited::<WEAK, true, true>();
    let leading = lead.try_lead();
    let late = {
        let lead = lead.clone();
        loom::thread::spawn(move || lead.wait_to_lead_until(0).map(drop))
    };
    let caller = {
        let lead = lead.clone();
        loom::thread::spawn(move || {
            lead.watch().inner().calls.store(1, Ordering::Relaxed);
            lead.try_lead().is_some()
        })
    };
    if let Some(leading) = leading
        && matches!(leading.give_back(), Next::Wake)
    {
        lead.watch().wake();
    }
    let found = late.join().unwrap().is_some() | caller.join().unwrap();
    found || lead.watch().inner().wakes.load(Ordering::Relaxed) == 1
}

#[test]
fn a_thread_that_stops_to_wait_for_the_lead_looks_for_calls() {
    check(2, a_call_is_left_to_nobody::<0>);
    assert!(fails(2, a_call_is_left_to_nobody::<BEFORE_PASS>));
}

/// A thread waits for the lead without a deadline while another one gives it back. Returns whether it gets the lead
/// without a look that nobody asked for.
fn a_thread_gets_the_lead<const RETRY: bool, const LOOK: bool>() -> bool {
    let bell = Bell::new();
    let list = List { calls: Half::new(0), wakes: Half::new(0) };
    let waiters = Waiters::<_, _, Checked<0>>::new(bell.clone(), list);
    let lead = Lead::<_, _, ModelLock<Progress, RETRY, LOOK>>::with_lock(Progress::default(), waiters, 0);
    let lead = loom::sync::Arc::new(lead);
    let leading = lead.try_lead();
    let waiter = {
        let lead = lead.clone();
        loom::thread::spawn(move || lead.wait_to_lead().0 += 1)
    };
    if let Some(leading) = leading
        && matches!(leading.give_back(), Next::Wake)
    {
        lead.watch().wake();
    }
    bell.end();
    waiter.join().unwrap();
    !bell.is_late()
}

#[test]
fn a_thread_that_waits_for_the_lead_gets_it() {
    check(3, a_thread_gets_the_lead::<true, true>);
    assert!(fails(3, a_thread_gets_the_lead::<false, true>));
    assert!(fails(3, a_thread_gets_the_lead::<true, false>));
}
