//! The shipped tickets, list and lead under random schedules, with more threads and calls than loom can try in all
//! orders (`tickets/model_checks.rs`, `lead/tests.rs`). shuttle explores sequentially consistent orders only, so no
//! planted mistake weakens a memory order.
//!
//! Threads make calls, give some up, and lead whenever they wait. A thread that waits is parked; a thread that parks
//! for ever is a deadlock, which shuttle reports.

use super::lead::{Exclusive, Lead, Led, Look, Next, Watch};
use super::tickets::memory::{Memory, Word};
use super::tickets::{Capacity, Delivery, Leader, Seat, TicketId, Tickets, Withdrawal};
use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use shuttle::{Config, FailurePersistence, MaxSteps, Runner, rand::Rng};
use std::collections::BTreeSet;
use std::ops::{Deref, DerefMut};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard};

/// The mistakes that are planted, one at a time.
const NONE: u8 = 0;
/// A compare-and-swap that is a load and a store: both sides of a ticket may win.
const TORN_EXCHANGE: u8 = 1;
/// A swap that is a load and a store: a push in between is lost.
const TORN_SWAP: u8 = 2;
/// A leader that gives the lead back looks at nothing.
const NO_LOOK: u8 = 3;
/// A leader that has led often enough hands over, and wakes nobody.
const NO_WAKE: u8 = 4;
/// A thread that ends its wait does not go on for the thread that may have chosen it.
const NO_PASS: u8 = 5;
/// A leader ends the calls that it has begun twice.
const ENDS_TWICE: u8 = 6;

/// A word of shuttle, whose accesses are points of its schedules.
struct Point<A, const PLANTED: u8>(A);

macro_rules! point {
    ($atomic:ty, $value:ty) => {
        impl<const PLANTED: u8> Word<$value> for Point<$atomic, PLANTED> {
            fn new(value: $value) -> Self {
                Point(<$atomic>::new(value))
            }
            fn load(&self, _: Ordering) -> $value {
                self.0.load(Ordering::SeqCst)
            }
            fn store(&self, value: $value, _: Ordering) {
                self.0.store(value, Ordering::SeqCst);
            }
            fn swap(&self, value: $value, _: Ordering) -> $value {
                if PLANTED == TORN_SWAP {
                    let before = self.0.load(Ordering::SeqCst);
                    self.0.store(value, Ordering::SeqCst);
                    return before;
                }
                self.0.swap(value, Ordering::SeqCst)
            }
            fn exchange(&self, expected: $value, value: $value, _: Ordering) -> Result<$value, $value> {
                if PLANTED == TORN_EXCHANGE {
                    let now = self.0.load(Ordering::SeqCst);
                    if now != expected {
                        return Err(now);
                    }
                    self.0.store(value, Ordering::SeqCst);
                    return Ok(now);
                }
                self.0.compare_exchange(expected, value, Ordering::SeqCst, Ordering::SeqCst)
            }
        }
    };
}

point!(AtomicU32, u32);
point!(AtomicU64, u64);

/// shuttle's words.
struct Points<const PLANTED: u8>;

impl<const PLANTED: u8> Memory for Points<PLANTED> {
    type Half = Point<AtomicU32, PLANTED>;
    type Whole = Point<AtomicU64, PLANTED>;
    type Bits = Point<AtomicU64, PLANTED>;

    fn fence_after_wait() {}
    fn fence_before_scan() {}
    fn fence_before_park() {}
    fn fence_before_pass() {}
}

/// A lock of shuttle that is only tried.
struct Lock<T> {
    is_taken: AtomicBool,
    /// Never contended: the word comes first.
    value: Mutex<T>,
}

struct Guard<'a, T> {
    is_taken: &'a AtomicBool,
    held: Option<MutexGuard<'a, T>>,
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        self.held.as_ref().unwrap()
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.held.as_mut().unwrap()
    }
}

impl<T> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        self.held = None;
        self.is_taken.store(false, Ordering::SeqCst);
    }
}

impl<T> Exclusive for Lock<T> {
    type Value = T;
    type Guard<'a>
        = Guard<'a, T>
    where
        Self: 'a;

    fn new(value: T) -> Self {
        Lock { is_taken: AtomicBool::new(false), value: Mutex::new(value) }
    }

    fn try_lock(&self) -> Option<Guard<'_, T>> {
        let (taken, order) = (&self.is_taken, Ordering::SeqCst);
        taken.compare_exchange(false, true, order, order).ok()?;
        Some(Guard { is_taken: taken, held: self.value.try_lock().ok() })
    }

    fn fence_before_retry() {}
    fn fence_before_look() {}
}

/// The threads, by seat: which of them wait, and how each is woken.
struct Threads {
    waiting: AtomicU32,
    handles: Mutex<Vec<Option<shuttle::thread::Thread>>>,
}

impl Threads {
    fn unpark(&self, seat: usize) {
        let handle = self.handles.lock().unwrap()[seat].clone();
        if let Some(handle) = handle {
            handle.unpark();
        }
    }
}

/// A leader that answers each call with its payload, one round after it has begun the call.
struct Echo<const PLANTED: u8> {
    leader: Leader<Points<PLANTED>>,
    threads: Arc<Threads>,
    begun: Vec<TicketId>,
    /// The calls that were begun, by their payload.
    executed: BTreeSet<[u8; 2]>,
}

impl<const PLANTED: u8> Led for Echo<PLANTED> {
    fn has_backlog(&self) -> bool {
        self.leader.waiting() > 0 || !self.begun.is_empty()
    }
}

impl<const PLANTED: u8> Echo<PLANTED> {
    fn round(&mut self) {
        for id in std::mem::take(&mut self.begun) {
            let result = self.leader.read(id, |entry| entry.payload.to_vec()).expect("a begun call");
            match self.leader.finish(id, Ok(&result)) {
                Delivery::Delivered => self.threads.unpark(usize::from(self.leader.tickets().thread(id))),
                Delivery::Abandoned => {}
                Delivery::Stale => panic!("a begun call is another one's"),
            }
            if PLANTED == ENDS_TWICE {
                self.begun.push(id);
            }
        }
        self.leader.collect();
        while self.begun.len() < 3
            && let Some(id) = self.leader.begin(None)
        {
            let name = self.leader.read(id, |entry| *entry.payload.first_chunk().unwrap()).unwrap();
            assert!(self.executed.insert(name), "a call is begun twice");
            self.begun.push(id);
        }
    }
}

struct Outside<const PLANTED: u8> {
    tickets: Arc<Tickets<Points<PLANTED>>>,
    threads: Arc<Threads>,
}

impl<const PLANTED: u8> Watch for Outside<PLANTED> {
    fn look(&self) -> Look {
        if PLANTED == NO_LOOK || self.tickets.is_empty(0) { Look::Nothing } else { Look::Calls }
    }

    fn wake(&self) {
        let waiting = self.threads.waiting.load(Ordering::SeqCst);
        if PLANTED != NO_WAKE && waiting != 0 {
            self.threads.unpark(waiting.trailing_zeros() as usize);
        }
    }
}

type Shared<const PLANTED: u8> = Lead<Echo<PLANTED>, Outside<PLANTED>, Lock<Echo<PLANTED>>>;

/// Leads if nobody does, until there is nothing to do or the lead is handed over.
fn serve<const PLANTED: u8>(lead: &Shared<PLANTED>) {
    let Some(mut leading) = lead.try_lead() else { return };
    loop {
        leading.round();
        match leading.give_back() {
            Next::Done => return,
            Next::Wake => return lead.watch().wake(),
            Next::Again(again) => leading = again,
        }
    }
}

/// Makes some calls, and gives some of them up. Returns the fate of each.
fn make_calls<const PLANTED: u8>(
    lead: &Shared<PLANTED>,
    seat: &mut Seat<Points<PLANTED>>,
    (calls, hands_over): (u8, bool),
) -> Vec<([u8; 2], Withdrawal)> {
    let threads = &lead.watch().threads;
    let own = usize::from(seat.number());
    let bit = 1u32 << own;
    threads.handles.lock().unwrap()[own] = Some(shuttle::thread::current());
    let mut fates = Vec::new();
    for number in 0..calls {
        let name = [own as u8, number];
        // A ticket that was given up is free once a leader has passed over it.
        let id = loop {
            match seat.prepare(1, 0, &name) {
                Ok(id) => break id,
                Err(_) => {
                    serve(lead);
                    shuttle::thread::yield_now();
                }
            }
        };
        assert!(seat.push(id, 0));
        if shuttle::rand::thread_rng().gen_range(0..4u8) == 0 {
            let withdrawal = seat.withdraw(id);
            if withdrawal != Withdrawal::Done {
                fates.push((name, withdrawal));
                continue;
            }
        }
        threads.waiting.fetch_or(bit, Ordering::SeqCst);
        loop {
            serve(lead);
            if let Some(is_own) = seat.take_result(id, |result| result.is_ok_and(|bytes| bytes == name)) {
                assert!(is_own, "the result of another call");
                break;
            }
            shuttle::thread::park();
        }
        threads.waiting.fetch_and(!bit, Ordering::SeqCst);
        // The thread may have been chosen to lead, and its wake-up is gone.
        if hands_over && PLANTED != NO_PASS {
            serve(lead);
        }
        fates.push((name, Withdrawal::Done));
    }
    fates
}

/// Some threads make some calls each, of which a seat can have `window` at a time.
fn play<const PLANTED: u8>(threads: u16, calls: u8, window: u16, repetitions: u32) {
    let tickets =
        Tickets::<Points<PLANTED>>::with_memory(Capacity { seats: threads, window, lists: 1, longest: 100 });
    let (waiting, handles) = (AtomicU32::new(0), Mutex::new(vec![None; usize::from(threads)]));
    let all = Arc::new(Threads { waiting, handles });
    let leader = tickets.leader(0).unwrap();
    let echo = Echo { leader, threads: Arc::clone(&all), begun: Vec::new(), executed: BTreeSet::new() };
    let watch = Outside { tickets: Arc::clone(&tickets), threads: all };
    let lead: Arc<Shared<PLANTED>> = Arc::new(Lead::with_lock(echo, watch, repetitions));
    let threads: Vec<_> = (0..threads)
        .map(|_| {
            let (lead, mut seat) = (Arc::clone(&lead), tickets.seat().unwrap());
            shuttle::thread::spawn(move || (make_calls(&lead, &mut seat, (calls, repetitions < NEVER)), seat))
        })
        .collect();
    let ended: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    let mut leading = lead.try_lead().expect("nobody leads any more");
    leading.round();
    leading.round();
    for (name, withdrawal) in ended.iter().flat_map(|(fates, _)| fates) {
        let is_executed = leading.executed.contains(name);
        match withdrawal {
            Withdrawal::NotExecuted => assert!(!is_executed, "a call that was not executed was begun"),
            Withdrawal::MaybeExecuted | Withdrawal::Done => assert!(is_executed, "a call was not begun"),
            Withdrawal::Gone => panic!("a call is lost"),
        }
    }
    // Each ticket is free, once.
    for (_, mut seat) in ended {
        assert!((0..window).all(|_| seat.prepare(0, 0, &[]).is_ok()), "a ticket is lost");
        assert!(seat.prepare(0, 0, &[]).is_err(), "a ticket is free twice");
    }
}

fn run(scheduler: impl Scheduler + 'static, test: impl Fn() + Send + Sync + 'static) {
    let mut config = Config::new();
    // The seed repeats a failure.
    config.failure_persistence = FailurePersistence::None;
    // A run has some thousands; a ticket that never comes back would have a thread look for it for ever.
    config.max_steps = MaxSteps::FailAfter(100_000);
    Runner::new(scheduler, config).run(test);
}

const SEED: u64 = 0x5eed;
/// So many repetitions that no leader hands over.
const NEVER: u32 = 1_000;

/// Returns whether some schedule shows that something is wrong.
fn finds<const PLANTED: u8>(threads: u16, calls: u8, repetitions: u32) -> bool {
    let test = move || play::<PLANTED>(threads, calls, 2, repetitions);
    let mut schedules = (0..4).map(|round| RandomScheduler::new_from_seed(SEED + round, 500));
    schedules.any(|scheduler| catch_unwind(AssertUnwindSafe(|| run(scheduler, test))).is_err())
}

#[test]
fn calls_of_many_threads_are_begun_once_and_nobody_waits_for_ever() {
    for (threads, calls, window, repetitions) in [(4, 4, 2, 2), (5, 3, 1, 0), (6, 3, 2, 1), (4, 4, 2, NEVER)]
    {
        let test = move || play::<NONE>(threads, calls, window, repetitions);
        run(RandomScheduler::new_from_seed(SEED, 400), test);
        run(PctScheduler::new_from_seed(SEED, 3, 400), test);
    }
}

#[test]
fn random_schedules_find_the_planted_mistakes() {
    assert!(!finds::<NONE>(4, 3, 0) && !finds::<NONE>(4, 3, NEVER));
    assert!(finds::<TORN_EXCHANGE>(4, 3, 0));
    assert!(finds::<TORN_SWAP>(4, 3, 0));
    assert!(finds::<NO_LOOK>(4, 3, NEVER));
    assert!(finds::<NO_WAKE>(4, 3, 0));
    assert!(finds::<NO_PASS>(4, 3, 0));
    assert!(finds::<ENDS_TWICE>(4, 3, 0));
}
