use super::*;
use crate::combine::tickets::model_checks::{Checked, Half, check, fails, table};
use crate::combine::tickets::{Capacity, Delivery, Leader, TicketId, Tickets, Withdrawal};
use dunlin_fabric_sim::Sim;
use loom::sync::atomic as model;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

/// A lock of the model checker. `RETRY` and `LOOK` say whether the fences are executed.
pub(crate) struct ModelLock<T, const RETRY: bool, const LOOK: bool> {
    word: Half,
    /// Never contended: the word comes first.
    value: Mutex<T>,
}

pub(crate) struct ModelGuard<'a, T> {
    word: &'a Half,
    held: Option<MutexGuard<'a, T>>,
}

impl<T> Deref for ModelGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        self.held.as_ref().unwrap()
    }
}

impl<T> DerefMut for ModelGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.held.as_mut().unwrap()
    }
}

impl<T> Drop for ModelGuard<'_, T> {
    fn drop(&mut self) {
        self.held = None;
        self.word.store(0, Ordering::Release);
    }
}

impl<T, const RETRY: bool, const LOOK: bool> Exclusive for ModelLock<T, RETRY, LOOK> {
    type Value = T;
    type Guard<'a>
        = ModelGuard<'a, T>
    where
        Self: 'a;

    fn new(value: T) -> Self {
        ModelLock { word: Half::new(0), value: Mutex::new(value) }
    }

    fn try_lock(&self) -> Option<ModelGuard<'_, T>> {
        // A compare-and-swap that fails is a relaxed load, which may be stale. The model's is never stale.
        if self.word.load(Ordering::Relaxed) != 0 {
            return None;
        }
        self.word.exchange(0, 1, Ordering::Acquire).ok()?;
        Some(ModelGuard { word: &self.word, held: self.value.try_lock().ok() })
    }

    fn fence_before_retry() {
        if RETRY {
            model::fence(Ordering::SeqCst);
        }
    }

    fn fence_before_look() {
        if LOOK {
            model::fence(Ordering::SeqCst);
        }
    }
}

type Words = Checked<0>;

/// A leader that counts the calls that it begins.
struct Counting {
    leader: Leader<Words>,
    begun: u32,
}

impl Led for Counting {
    fn has_backlog(&self) -> bool {
        self.leader.waiting() > 0
    }
}

struct ListWatch(Arc<Tickets<Words>>);

impl Watch for ListWatch {
    fn look(&self) -> Look {
        if self.0.is_empty(0) { Look::Nothing } else { Look::Calls }
    }
    fn wake(&self) {}
}

/// Some threads push a call each and try to lead; a leader begins at most one call at a time. Returns the
/// number of calls that are begun, and whether a thread was asked to wake another.
fn push_and_lead<const RETRY: bool, const LOOK: bool>(threads: u16, repetitions: u32) -> (u32, bool) {
    let tickets = table::<0>(threads, 1);
    let counting = Counting { leader: tickets.leader(0).unwrap(), begun: 0 };
    let lock =
        Lead::<_, _, ModelLock<_, RETRY, LOOK>>::with_lock(counting, ListWatch(tickets.clone()), repetitions);
    let lead = loom::sync::Arc::new(lock);
    let run = |mut seat: crate::combine::tickets::Seat<Words>,
               lead: &Lead<Counting, ListWatch, ModelLock<Counting, RETRY, LOOK>>| {
        let id = seat.prepare(0, 0, &[1]).unwrap();
        seat.push(id, 0);
        let mut leading = match lead.try_lead() {
            Some(leading) => leading,
            None => return (seat, false),
        };
        loop {
            leading.leader.collect();
            leading.begun += u32::from(leading.leader.begin(None).is_some());
            match leading.give_back() {
                Next::Done => return (seat, false),
                Next::Wake => return (seat, true),
                Next::Again(again) => leading = again,
            }
        }
    };
    let own = tickets.seat().unwrap();
    let others: Vec<_> = (1..threads)
        .map(|_| {
            let (seat, lead) = (tickets.seat().unwrap(), lead.clone());
            loom::thread::spawn(move || run(seat, &lead))
        })
        .collect();
    let (_own, mut wakes) = run(own, &lead);
    let mut seats = Vec::new();
    for other in others {
        let (seat, wake) = other.join().unwrap();
        seats.push(seat);
        wakes |= wake;
    }
    let begun = lead.try_lead().map(|leading| leading.begun);
    (begun.unwrap_or(0), wakes)
}

#[test]
fn every_call_is_begun_or_a_thread_is_woken() {
    check(2, || push_and_lead::<true, true>(2, 2) == (2, false));
    // With too few repetitions a leader may have to pass the work on, and says so.
    check(2, || matches!(push_and_lead::<true, true>(2, 0), (2, _) | (_, true)));
    check(1, || matches!(push_and_lead::<true, true>(3, 0), (3, _) | (_, true)));
}

#[test]
fn the_model_finds_the_purpose_of_each_fence() {
    assert!(fails(2, || push_and_lead::<false, true>(2, 2).0 == 2));
    assert!(fails(2, || push_and_lead::<true, false>(2, 2).0 == 2));
}

/// Work that is a number; calls that arrive are counted outside the lock.
#[derive(Debug, Default)]
struct Numbers {
    backlog: u32,
}

impl Led for Numbers {
    fn has_backlog(&self) -> bool {
        self.backlog > 0
    }
}

#[derive(Debug, Default)]
struct Arrivals {
    waiting: AtomicU32,
    wakes: AtomicU32,
}

impl Watch for Arrivals {
    fn look(&self) -> Look {
        if self.waiting.load(Ordering::Relaxed) > 0 { Look::Calls } else { Look::Nothing }
    }
    fn wake(&self) {
        self.wakes.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn the_lead_is_given_back_in_every_case() {
    let lead = Lead::new(Numbers::default(), Arrivals::default(), 1);
    let wakes = || lead.watch().wakes.load(Ordering::Relaxed);
    let leading = lead.try_lead().unwrap();
    assert!(lead.try_lead().is_none());
    assert!(matches!(leading.give_back(), Next::Done));
    drop(lead.try_lead().unwrap());
    assert_eq!(wakes(), 0, "there is no work");

    // Work on the list, and work behind the lock: once more, then another thread's.
    for (waiting, backlog) in [(1, 0), (0, 1)] {
        lead.watch().waiting.store(waiting, Ordering::Relaxed);
        let mut leading = lead.try_lead().unwrap();
        leading.backlog = backlog;
        let Next::Again(leading) = leading.give_back() else { panic!("there is work") };
        assert!(matches!(leading.give_back(), Next::Wake));
    }
    assert_eq!(wakes(), 0, "a caller of give_back wakes by itself");
    drop(lead.try_lead().unwrap());
    assert_eq!(wakes(), 1);

    // A leader that panics gives the lead back, and another thread goes on with the value.
    lead.try_lead().unwrap().backlog = 0;
    let before = wakes();
    let panics = || {
        let _leading = lead.try_lead().unwrap();
        panic!("the leader's");
    };
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(panics)).is_err());
    assert_eq!(wakes(), before + 1);
    assert!(matches!(lead.try_lead().unwrap().give_back(), Next::Done));
}

#[derive(Debug)]
struct Nothing;

impl Watch for Nothing {
    fn look(&self) -> Look {
        Look::Nothing
    }
    fn wake(&self) {}
}

/// The thread with the lead sleeps while other tasks wait, all on one system thread.
#[test]
fn in_virtual_time_a_leader_may_wait() {
    for seed in 0..20 {
        Sim::run(seed, |fabric| {
            let host = fabric.host().clone();
            let lead = Arc::new(Lead::new(
                Numbers::default(),
                Waiters::<_, _, Processor>::new(host.signal(), Nothing),
                1,
            ));
            let tasks: Vec<_> = (0..5)
                .map(|number| {
                    let (lead, own) = (Arc::clone(&lead), host.clone());
                    let body = move || {
                        for _ in 0..20 {
                            let mut value = lead.wait_to_lead();
                            let before = value.backlog;
                            own.sleep(own.now() + own.random() % 1000);
                            value.backlog = before + 1;
                            match value.give_back() {
                                Next::Wake => lead.watch().wake(),
                                Next::Again(value) => drop(value),
                                Next::Done => {}
                            }
                            own.sleep(own.now() + own.random() % 1000);
                        }
                    };
                    host.spawn(&format!("user-{number}"), Box::new(body)).unwrap()
                })
                .collect();
            tasks.into_iter().for_each(dunlin_fabric::Task::join);
            assert_eq!(lead.wait_to_lead().backlog, 100);
        })
        .unwrap();
    }
}

/// A leader that answers each call with its payload, one round after it has begun the call.
struct Echo {
    leader: Leader,
    begun: Vec<TicketId>,
    /// The calls that were begun, by their first eight bytes.
    executed: BTreeSet<[u8; 8]>,
}

impl Led for Echo {
    fn has_backlog(&self) -> bool {
        self.leader.waiting() > 0
    }
}

impl Echo {
    fn round(&mut self) {
        for id in self.begun.drain(..) {
            let result = self.leader.read(id, |entry| entry.payload.to_vec()).unwrap();
            assert_ne!(self.leader.finish(id, Ok(&result)), Delivery::Stale);
        }
        self.leader.collect();
        while self.begun.len() < 3
            && let Some(id) = self.leader.begin(None)
        {
            let name = self.leader.read(id, |entry| *entry.payload.first_chunk().unwrap()).unwrap();
            assert!(self.executed.insert(name), "begun twice");
            self.begun.push(id);
        }
    }
}

struct EchoWatch(Arc<Tickets>);

impl Watch for EchoWatch {
    fn look(&self) -> Look {
        if self.0.is_empty(0) { Look::Nothing } else { Look::Calls }
    }
    fn wake(&self) {}
}

/// Threads of the system make calls of all lengths, give some up, and lead whenever they wait.
#[test]
#[allow(clippy::disallowed_methods)]
fn each_thread_gets_its_own_results() {
    const CALLS: u32 = 3000;
    let tickets = Tickets::new(Capacity { seats: 4, window: 3, lists: 1, longest: 100 });
    let leader = tickets.leader(0).unwrap();
    let echo = Echo { leader, begun: Vec::new(), executed: BTreeSet::new() };
    let lead = Lead::new(echo, EchoWatch(tickets.clone()), 2);
    let lead_if_free = || {
        let Some(mut leading) = lead.try_lead() else { return std::thread::yield_now() };
        leading.round();
        while let Next::Again(mut again) = leading.give_back() {
            again.round();
            leading = again;
        }
    };
    let one_thread = |thread: u32| {
        let mut seat = tickets.seat().unwrap();
        let mut fates = Vec::new();
        for first in (0..CALLS).step_by(3) {
            let calls: Vec<_> = (first..first + 3)
                .map(|number| {
                    let mut payload = [thread.to_le_bytes(), number.to_le_bytes()].concat();
                    payload.resize(8 + number as usize % 90, number as u8);
                    // Tickets that were given up are free only when the leader has passed over them.
                    let id = loop {
                        match seat.prepare(1, 0, &payload) {
                            Ok(id) => break id,
                            Err(_) => lead_if_free(),
                        }
                    };
                    assert!(seat.push(id, 0));
                    (id, payload)
                })
                .collect();
            lead_if_free();
            for (id, payload) in calls {
                let name: [u8; 8] = *payload.first_chunk().unwrap();
                let withdrawal = if name[4].is_multiple_of(7) { seat.withdraw(id) } else { Withdrawal::Done };
                if withdrawal == Withdrawal::Done {
                    let is_own = loop {
                        match seat.take_result(id, |result| result.unwrap() == payload) {
                            Some(is_own) => break is_own,
                            None => lead_if_free(),
                        }
                    };
                    assert!(is_own);
                }
                fates.push((name, withdrawal));
            }
        }
        fates
    };
    let fates: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|thread| scope.spawn(move || one_thread(thread))).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(fates.len(), 4 * CALLS as usize);
    let executed = &lead.try_lead().unwrap().executed;
    for (name, withdrawal) in fates {
        match withdrawal {
            Withdrawal::NotExecuted => assert!(!executed.contains(&name)),
            Withdrawal::MaybeExecuted => {}
            Withdrawal::Done => assert!(executed.contains(&name)),
            Withdrawal::Gone => panic!("a call is lost"),
        }
    }
}
