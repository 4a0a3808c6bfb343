//! The hand-over between tasks and the thread that leads, under a model checker, with each memory order and fence
//! weakened once.

use super::super::model_checks::{
    AFTER_WAIT, BEFORE_SCAN, CLAIM, Checked, ENDED, FINISH, FREED, GIVE, REGISTER, REGISTERED, RESULT, REUSE,
    check, fails,
};
use super::*;
use crate::combine::tickets::Delivery;
use loom::sync::atomic as model;
use std::sync::atomic::AtomicBool;
use std::task::Wake;

type Checks<const WEAK: u8> = loom::sync::Arc<Pool<(), Checked<WEAK>>>;

fn pool<const WEAK: u8>(window: u16) -> Checks<WEAK> {
    loom::sync::Arc::new(Pool::with_memory(1, window))
}

#[derive(Default)]
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

fn is_result<M: Memory>(pool: &Pool<(), M>, id: TicketId) -> Option<bool> {
    pool.take(id, |()| ()).map(|(result, _)| result.is_ok_and(|bytes| bytes.get() == [2; 9]))
}

/// A leader ends a call while its task stores its waker and looks. Returns whether the task sees the whole result, or
/// is woken and then does.
fn the_task_is_woken<const WEAK: u8>() -> bool {
    let pool = pool::<WEAK>(1);
    let mut leader = pool.leader().unwrap();
    let id = pool.prepare(0, &[1], |()| ()).unwrap();
    pool.push(id);
    leader.collect();
    leader.begin(None);
    let leading = {
        let pool = pool.clone();
        loom::thread::spawn(move || {
            let delivery = leader.finish(id, Ok(&[2; 9]));
            pool.take_waker(id).into_iter().for_each(Waker::wake);
            (leader, delivery)
        })
    };
    let flag = Arc::new(Flag::default());
    let waker = Waker::from(flag.clone());
    // Two polls: the thread may take the waker of the first during the second.
    let is_kept = pool.wait(id, &waker, u64::MAX) && pool.wait(id, &waker, u64::MAX);
    drop(waker);
    let early = is_result(&pool, id);
    let (_leader, delivery) = leading.join().unwrap();
    let is_woken = flag.0.load(Ordering::SeqCst);
    let is_right = match early {
        Some(is_whole) => is_whole,
        None => is_kept && is_woken && is_result(&pool, id) == Some(true),
    };
    // The ticket keeps no waker.
    is_right && delivery == Delivery::Delivered && Arc::strong_count(&flag) == 1
}

#[test]
fn no_wake_up_is_lost() {
    check(3, the_task_is_woken::<0>);
    assert!(fails(3, the_task_is_woken::<FINISH>));
    assert!(fails(3, the_task_is_woken::<RESULT>));
    // The fence of the wait acquires what the changes of the word release; `a_task_is_woken_by_the_clock` judges the
    // orders of the task's own accesses.
    assert!(fails(3, the_task_is_woken::<ENDED>));
}

/// A task takes its result while another one looks for a ticket. Returns whether the other one gets the ticket after
/// all that the first did with it.
fn a_ticket_passes_on<const WEAK: u8>() -> bool {
    let pool = pool::<WEAK>(1);
    let mut leader = pool.leader().unwrap();
    let id = pool.prepare(0, &[1], |()| ()).unwrap();
    pool.push(id);
    leader.collect();
    leader.begin(None);
    leader.finish(id, Ok(&[2; 9]));
    let touched = loom::sync::Arc::new(model::AtomicU32::new(0));
    let taking = {
        let (pool, touched) = (pool.clone(), touched.clone());
        loom::thread::spawn(move || {
            touched.store(1, Ordering::Relaxed);
            is_result(&pool, id)
        })
    };
    let other = pool.prepare(0, &[3], |()| ());
    let in_order = other.is_err() || touched.load(Ordering::Relaxed) == 1;
    let taken = taking.join().unwrap();
    in_order && taken == Some(true) && (other.is_ok() || pool.prepare(0, &[3], |()| ()).is_ok())
}

#[test]
fn a_ticket_belongs_to_one_call() {
    check(3, a_ticket_passes_on::<0>);
    assert!(fails(3, a_ticket_passes_on::<GIVE>));
    assert!(fails(3, a_ticket_passes_on::<CLAIM>));
}

/// A task drops its call while a leader begins and ends it, and then looks for a ticket. Returns whether both agree on
/// the call's fate, the leader's work with the ticket is before its reuse, and the waker is gone.
fn a_dropped_call_leaves_its_ticket<const WEAK: u8>() -> bool {
    let pool = pool::<WEAK>(1);
    let mut leader = pool.leader().unwrap();
    let touched = loom::sync::Arc::new(model::AtomicU32::new(0));
    let id = pool.prepare(0, &[1], |()| ()).unwrap();
    let flag = Arc::new(Flag::default());
    pool.push(id);
    let waits = pool.wait(id, &Waker::from(flag.clone()), 5);
    let leading = {
        let (pool, touched) = (pool.clone(), touched.clone());
        loom::thread::spawn(move || {
            touched.store(1, Ordering::Relaxed);
            leader.collect();
            let begun = leader.begin(None);
            let delivery = begun.map(|id| leader.finish(id, Ok(&[2; 9])));
            if delivery == Some(Delivery::Delivered) {
                pool.take_waker(id).into_iter().for_each(Waker::wake);
            }
            (leader, begun, delivery)
        })
    };
    let withdrawal = pool.withdraw(id);
    let other = match withdrawal {
        Withdrawal::Done => Err(PrepareError::Full),
        _ => pool.prepare(0, &[3], |()| ()),
    };
    let in_order = other.is_err() || touched.load(Ordering::Relaxed) == 1;
    let (_leader, begun, delivery) = leading.join().unwrap();
    let agree = match withdrawal {
        Withdrawal::NotExecuted => begun.is_none(),
        Withdrawal::MaybeExecuted => begun == Some(id) && delivery == Some(Delivery::Abandoned),
        Withdrawal::Done => delivery == Some(Delivery::Delivered) && is_result(&pool, id) == Some(true),
        Withdrawal::Gone => false,
    };
    let is_free_once = other.is_ok() || pool.prepare(0, &[3], |()| ()).is_ok();
    let is_free_twice = pool.prepare(0, &[3], |()| ()).is_ok();
    waits && agree && in_order && is_free_once && !is_free_twice && Arc::strong_count(&flag) == 1
}

#[test]
fn a_call_may_be_dropped_at_any_time() {
    check(3, a_dropped_call_leaves_its_ticket::<0>);
    assert!(fails(3, a_dropped_call_leaves_its_ticket::<FREED>));
    assert!(fails(3, a_dropped_call_leaves_its_ticket::<REUSE>));
}

/// Two tasks look for a ticket; one is free, and one was given up. Returns whether they get one each.
fn two_tasks_get_different_tickets() -> bool {
    let pool = pool::<0>(2);
    let mut leader = pool.leader().unwrap();
    let (first, second) = (pool.prepare(0, &[1], |()| ()).unwrap(), pool.prepare(0, &[1], |()| ()).unwrap());
    pool.push(first);
    pool.withdraw(first);
    pool.withdraw(second);
    leader.collect();
    leader.begin(None);
    let claiming = {
        let pool = pool.clone();
        loom::thread::spawn(move || pool.prepare(0, &[2], |()| ()).ok())
    };
    let own = pool.prepare(0, &[3], |()| ()).ok();
    let other = claiming.join().unwrap();
    // A task that finds the other one between two steps may find nothing.
    let are_different = own.is_none() || own != other;
    are_different && (own.is_some() || other.is_some()) && (own.is_none() || own.unwrap() != first)
}

#[test]
fn no_ticket_has_two_owners() {
    check(2, two_tasks_get_different_tickets);
}

/// A thread is about to sleep, while a task begins to wait for a time. Returns whether the thread finds the task, or the
/// task finds that the thread sleeps.
fn the_clock_is_watched<const WEAK: u8>() -> bool {
    let pool = pool::<WEAK>(1);
    let id = pool.prepare(0, &[1], |()| ()).unwrap();
    let sleeps = loom::sync::Arc::new(model::AtomicU32::new(0));
    let watching = {
        let (pool, sleeps) = (pool.clone(), sleeps.clone());
        loom::thread::spawn(move || {
            sleeps.store(1, Ordering::Relaxed);
            let mut found = 0;
            let (next, any) = pool.overdue(3, |_| found += 1);
            (any && next == 5, found)
        })
    };
    let flag = Arc::new(Flag::default());
    let waits = pool.wait(id, &Waker::from(flag.clone()), 5);
    let sees = sleeps.load(Ordering::Relaxed) == 1;
    let (is_found, overdue) = watching.join().unwrap();
    waits && overdue == 0 && (sees || is_found) && pool.overdue(5, drop).1 && Arc::strong_count(&flag) == 1
}

#[test]
fn a_task_is_woken_by_the_clock() {
    check(3, the_clock_is_watched::<0>);
    assert!(fails(3, the_clock_is_watched::<REGISTER>));
    assert!(fails(3, the_clock_is_watched::<REGISTERED>));
    assert!(fails(3, the_clock_is_watched::<AFTER_WAIT>));
    assert!(fails(3, the_clock_is_watched::<BEFORE_SCAN>));
}
