//! The shipped functions under a model checker, with each memory order that it can judge weakened once.

use super::memory::{Processor, Word, word};
use super::*;
use loom::sync::atomic as model;

word!(model::AtomicU64, u64);

/// A word of the model checker. loom remembers one access for each word, so a thread that loads a word and then
/// changes it hides the loads of other threads, and loom does not try the other order. Here each access first
/// changes a second word, without any order: loom tries all orders of these changes.
pub(crate) struct Counted<W> {
    word: W,
    accesses: model::AtomicU32,
}

pub(crate) type Half = Counted<model::AtomicU32>;

impl<W> Counted<W> {
    fn word(&self) -> &W {
        self.accesses.fetch_add(1, Ordering::Relaxed);
        &self.word
    }
}

macro_rules! counted {
    ($atomic:ty, $value:ty) => {
        impl Word<$value> for Counted<$atomic> {
            fn new(value: $value) -> Self {
                Counted { word: <$atomic>::new(value), accesses: model::AtomicU32::new(0) }
            }
            fn load(&self, order: Ordering) -> $value {
                self.word().load(order)
            }
            fn store(&self, value: $value, order: Ordering) {
                self.word().store(value, order);
            }
            fn swap(&self, value: $value, order: Ordering) -> $value {
                self.word().swap(value, order)
            }
            fn exchange(&self, expected: $value, value: $value, order: Ordering) -> Result<$value, $value> {
                self.word().compare_exchange(expected, value, order, Ordering::Relaxed)
            }
        }
    };
}

counted!(model::AtomicU32, u32);
counted!(model::AtomicU64, u64);

pub(crate) const PUSH: u8 = 1;
const TAKE: u8 = 2;
pub(super) const FINISH: u8 = 3;
pub(super) const RESULT: u8 = 4;
pub(super) const FREED: u8 = 5;
pub(super) const REUSE: u8 = 6;
pub(super) const GIVE: u8 = 7;
pub(super) const CLAIM: u8 = 8;
pub(super) const ENDED: u8 = 9;
pub(super) const REGISTER: u8 = 10;
pub(super) const REGISTERED: u8 = 11;
pub(super) const AFTER_WAIT: u8 = 12;
pub(super) const BEFORE_SCAN: u8 = 13;
pub(crate) const BEFORE_PARK: u8 = 14;
pub(crate) const BEFORE_PASS: u8 = 15;

/// The model checker's words, with one order weakened: none for 0.
pub(crate) struct Checked<const WEAK: u8>;

const fn unless(weak: bool, order: Ordering) -> Ordering {
    if weak { Ordering::Relaxed } else { order }
}

impl<const WEAK: u8> Memory for Checked<WEAK> {
    type Half = Half;
    type Whole = model::AtomicU64;
    type Bits = Counted<model::AtomicU64>;
    const PUSH: Ordering = unless(WEAK == PUSH, Processor::PUSH);
    const TAKE: Ordering = unless(WEAK == TAKE, Processor::TAKE);
    const FINISH: Ordering = unless(WEAK == FINISH, Processor::FINISH);
    const RESULT: Ordering = unless(WEAK == RESULT, Processor::RESULT);
    const FREE: Ordering = unless(WEAK == FREED, Processor::FREE);
    const REUSE: Ordering = unless(WEAK == REUSE, Processor::REUSE);
    const GIVE: Ordering = unless(WEAK == GIVE, Processor::GIVE);
    const CLAIM: Ordering = unless(WEAK == CLAIM, Processor::CLAIM);
    const ENDED: Ordering = unless(WEAK == ENDED, Processor::ENDED);
    const REGISTER: Ordering = unless(WEAK == REGISTER, Processor::REGISTER);
    const REGISTERED: Ordering = unless(WEAK == REGISTERED, Processor::REGISTERED);

    fn fence_after_wait() {
        if WEAK != AFTER_WAIT {
            model::fence(Ordering::SeqCst);
        }
    }
    fn fence_before_scan() {
        if WEAK != BEFORE_SCAN {
            model::fence(Ordering::SeqCst);
        }
    }
    fn fence_before_park() {
        if WEAK != BEFORE_PARK {
            model::fence(Ordering::SeqCst);
        }
    }
    fn fence_before_pass() {
        if WEAK != BEFORE_PASS {
            model::fence(Ordering::SeqCst);
        }
    }
}

pub(crate) fn table<const WEAK: u8>(seats: u16, window: u16) -> Arc<Tickets<Checked<WEAK>>> {
    Tickets::with_memory(Capacity { seats, window, lists: 1, longest: 100 })
}

/// Runs a model in all orders with at most `preemptions` pre-emptions; it returns whether all was right.
pub(crate) fn check(preemptions: usize, run: impl Fn() -> bool + Send + Sync + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.check(move || assert!(run()));
}

/// Returns whether some order makes the model return that something was wrong.
pub(crate) fn fails(preemptions: usize, run: impl Fn() -> bool + Send + Sync + 'static) -> bool {
    let wrong = Arc::new(AtomicBool::new(false));
    let seen = wrong.clone();
    let run = move || {
        let right = run();
        seen.fetch_or(!right, Ordering::Relaxed);
        right
    };
    let stopped = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| check(preemptions, run))).is_err();
    stopped && wrong.load(Ordering::Relaxed)
}

/// Two threads push a call each. The leader takes the list at any time. Returns whether each call that it
/// begins is whole, and each call is begun once.
fn calls_are_whole<const WEAK: u8>() -> bool {
    let tickets = table::<WEAK>(2, 1);
    let mut leader = tickets.leader(0).unwrap();
    let seats = [tickets.seat().unwrap(), tickets.seat().unwrap()];
    let pushers = seats.map(|mut seat| {
        loom::thread::spawn(move || {
            let id = seat.prepare(seat.number(), 9, &[seat.number() as u8 + 1; 8]).unwrap();
            seat.push(id, 0);
            (seat, id)
        })
    });
    let mut begun = Vec::new();
    let mut whole = true;
    let mut lead = |leader: &mut Leader<Checked<WEAK>>| {
        leader.collect();
        while let Some(id) = leader.begin(None) {
            let is_whole = leader.read(id, |entry| {
                (entry.function, entry.time, entry.payload) == (entry.thread, 9, &[entry.thread as u8 + 1; 8])
            });
            whole &= is_whole == Some(true);
            begun.push(id);
        }
    };
    lead(&mut leader);
    let owners = pushers.map(|pusher| pusher.join().unwrap());
    lead(&mut leader);
    whole && begun.len() == 2 && owners.iter().all(|(_, id)| begun.contains(id))
}

#[test]
fn the_leader_sees_whole_calls_and_each_once() {
    check(2, calls_are_whole::<0>);
    assert!(fails(2, calls_are_whole::<PUSH>));
    assert!(fails(2, calls_are_whole::<TAKE>));
}

/// A leader finishes a call while its owner looks. Returns whether the owner sees no result or the whole one.
fn results_are_whole<const WEAK: u8>() -> bool {
    let tickets = table::<WEAK>(1, 1);
    let (mut seat, mut leader) = (tickets.seat().unwrap(), tickets.leader(0).unwrap());
    let id = seat.prepare(0, 0, &[1; 16]).unwrap();
    seat.push(id, 0);
    leader.collect();
    leader.begin(None);
    let answering = loom::thread::spawn(move || {
        let delivery = leader.finish(id, Ok(&[2; 9]));
        (leader, delivery)
    });
    let is_whole =
        |seat: &mut Seat<_>| seat.take_result(id, |result| result.is_ok_and(|bytes| bytes == [2; 9]));
    let early = is_whole(&mut seat);
    let (_leader, delivery) = answering.join().unwrap();
    let late = is_whole(&mut seat);
    delivery == Delivery::Delivered && early.or(late) == Some(true) && (early.is_none() || late.is_none())
}

#[test]
fn the_owner_sees_whole_results() {
    check(3, results_are_whole::<0>);
    assert!(fails(3, results_are_whole::<FINISH>));
    assert!(fails(3, results_are_whole::<RESULT>));
}

/// An owner gives a call up while a leader begins and ends it, and then uses the ticket again. Returns whether
/// both agree on the call's fate, and whether the leader's work with the ticket is before its reuse.
fn withdrawal_and_leader_agree<const WEAK: u8>() -> bool {
    let tickets = table::<WEAK>(1, 1);
    let (mut seat, mut leader) = (tickets.seat().unwrap(), tickets.leader(0).unwrap());
    // Written by the leader before it touches the ticket: stands for all that it does with the ticket.
    let touched = loom::sync::Arc::new(model::AtomicU32::new(0));
    let id = seat.prepare(0, 0, &[1]).unwrap();
    seat.push(id, 0);
    let leading = {
        let touched = touched.clone();
        loom::thread::spawn(move || {
            touched.store(1, Ordering::Relaxed);
            leader.collect();
            let begun = leader.begin(None);
            let delivery = begun.map(|id| leader.finish(id, Ok(&[2])));
            (leader, begun, delivery)
        })
    };
    let withdrawal = seat.withdraw(id);
    let reused = seat.prepare(0, 0, &[3]);
    let in_order = reused.is_err() || touched.load(Ordering::Relaxed) == 1;
    let (_leader, begun, delivery) = leading.join().unwrap();
    let agree = match withdrawal {
        Withdrawal::NotExecuted => begun.is_none(),
        Withdrawal::MaybeExecuted => begun == Some(id) && delivery == Some(Delivery::Abandoned),
        Withdrawal::Done => {
            delivery == Some(Delivery::Delivered)
                && seat.take_result(id, |result| result == Ok(&[2])) == Some(true)
        }
        Withdrawal::Gone => false,
    };
    let is_free_once = reused.is_ok() || seat.prepare(0, 0, &[3]).is_ok();
    let is_free_twice = seat.prepare(0, 0, &[3]).is_ok();
    agree && in_order && is_free_once && !is_free_twice
}

#[test]
fn owner_and_leader_agree_on_a_call_that_is_given_up() {
    check(3, withdrawal_and_leader_agree::<0>);
    assert!(fails(3, withdrawal_and_leader_agree::<FREED>));
    assert!(fails(3, withdrawal_and_leader_agree::<REUSE>));
}

/// A leader ends a call twice, and, if `abandons`, a third time, while the owner uses the ticket for another
/// call. Returns whether the other call is as its owner left it.
fn late_results_change_nothing(abandons: bool) -> bool {
    let tickets = table::<0>(1, 1);
    let (mut seat, mut leader) = (tickets.seat().unwrap(), tickets.leader(0).unwrap());
    let id = seat.prepare(0, 0, &[1]).unwrap();
    seat.push(id, 0);
    leader.collect();
    leader.begin(None);
    let leading = loom::thread::spawn(move || {
        let first = leader.finish(id, Ok(&[2]));
        let second = leader.finish(id, Ok(&[3]));
        (leader, first, second)
    });
    let given_up = abandons.then(|| seat.withdraw(id));
    let taken = seat.take_result(id, |result| result == Ok(&[2]));
    let next = seat.prepare(0, 0, &[4]);
    if let Ok(next) = next {
        seat.push(next, 0);
    }
    let (mut leader, first, second) = leading.join().unwrap();
    let first_is_right = match given_up {
        Some(Withdrawal::MaybeExecuted) => first == Delivery::Abandoned && taken.is_none(),
        Some(Withdrawal::Done) => first == Delivery::Delivered && taken == Some(true),
        Some(_) => false,
        None => first == Delivery::Delivered && taken != Some(false),
    };
    leader.collect();
    let next_is_whole = next.is_err()
        || leader.begin(None).is_some_and(|begun| {
            next == Ok(begun) && leader.read(begun, |entry| entry.payload == [4]) == Some(true)
        });
    first_is_right && second == Delivery::Stale && next_is_whole
}

#[test]
fn a_late_result_does_not_reach_the_next_call_of_the_ticket() {
    check(2, || late_results_change_nothing(false));
    check(2, || late_results_change_nothing(true));
}

/// A thread pushes two calls and another thread one, while a leader takes the list twice. Returns whether the
/// two are begun in their order, and all three once.
fn order_is_kept() -> bool {
    let tickets = table::<0>(2, 2);
    let (mut first, mut second) = (tickets.seat().unwrap(), tickets.seat().unwrap());
    let mut leader = tickets.leader(0).unwrap();
    let pusher = loom::thread::spawn(move || {
        let ids = [first.prepare(0, 0, &[1]).unwrap(), first.prepare(0, 0, &[2]).unwrap()];
        ids.iter().for_each(|id| assert!(first.push(*id, 0)));
        (first, ids)
    });
    let other = loom::thread::spawn(move || {
        let id = second.prepare(0, 0, &[3]).unwrap();
        second.push(id, 0);
        (second, id)
    });
    leader.collect();
    let mut begun: Vec<_> = leader.begin(None).into_iter().collect();
    // One of the calls finds no room, once.
    if let Some(id) = begun.pop() {
        assert!(leader.put_back(id));
    }
    leader.collect();
    let (_first, ids) = pusher.join().unwrap();
    let (_second, id) = other.join().unwrap();
    leader.collect();
    begun.extend(std::iter::from_fn(|| leader.begin(None)));
    let at = |id| begun.iter().position(|begun| *begun == id);
    begun.len() == 3 && at(ids[0]) < at(ids[1]) && at(ids[0]).is_some() && at(id).is_some()
}

#[test]
fn calls_of_a_seat_keep_their_order() {
    check(2, order_is_kept);
}

/// A leader gives a call back while its owner looks, or gives the call up. Returns whether the owner finds the call
/// returned after all that the leader did with it, and the leader of another list then gets it whole; or whether the
/// call is withdrawn and its ticket is free.
fn returned_calls_are_whole<const WEAK: u8>(gives_up: bool) -> bool {
    let tickets =
        Tickets::<Checked<WEAK>>::with_memory(Capacity { seats: 1, window: 1, lists: 2, longest: 100 });
    let (mut seat, mut leader) = (tickets.seat().unwrap(), tickets.leader(0).unwrap());
    let touched = loom::sync::Arc::new(model::AtomicU32::new(0));
    let id = seat.prepare(7, 9, &[1; 8]).unwrap();
    seat.push(id, 0);
    let returning = {
        let touched = touched.clone();
        loom::thread::spawn(move || {
            touched.store(1, Ordering::Relaxed);
            let mut returned = 0;
            leader.return_waiting(|_| returned += 1);
            (leader, returned)
        })
    };
    if gives_up {
        let withdrawn = seat.withdraw(id) == Withdrawal::NotExecuted;
        let (_leader, returned) = returning.join().unwrap();
        return withdrawn && returned <= 1 && seat.prepare(0, 0, &[2]).is_ok();
    }
    let in_order = !seat.is_returned(id) || touched.load(Ordering::Relaxed) == 1;
    let (_leader, returned) = returning.join().unwrap();
    let moved = returned == 1 && seat.is_returned(id) && seat.push(id, 1) && !seat.push(id, 0);
    let mut other = tickets.leader(1).unwrap();
    other.collect();
    let is_whole = other.begin(None) == Some(id)
        && other.read(id, |entry| (entry.function, entry.time, entry.payload) == (7, 9, &[1; 8]))
            == Some(true);
    in_order && moved && is_whole
}

#[test]
fn a_returned_call_goes_to_another_leader_or_is_given_up() {
    check(3, || returned_calls_are_whole::<0>(false));
    check(3, || returned_calls_are_whole::<0>(true));
    assert!(fails(3, || returned_calls_are_whole::<FINISH>(false)));
    assert!(fails(3, || returned_calls_are_whole::<RESULT>(false)));
}
