//! The shipped token of a parker under a model checker, with each memory order weakened once.

use super::*;
use loom::sync::Arc;
use loom::sync::Mutex;
use loom::sync::atomic as model;
use std::panic::{AssertUnwindSafe, catch_unwind};

const SLEEP: u8 = 1;
const NOTIFY: u8 = 2;
const TAKE: u8 = 3;

/// A word of the model checker, with one order weakened: none for 0.
struct Checked<const WEAK: u8>(model::AtomicU32);

const fn unless(weak: bool, order: Ordering) -> Ordering {
    if weak { Ordering::Relaxed } else { order }
}

impl<const WEAK: u8> Word for Checked<WEAK> {
    const SLEEP: Ordering = unless(WEAK == SLEEP, AtomicU32::SLEEP);
    const NOTIFY: Ordering = unless(WEAK == NOTIFY, AtomicU32::NOTIFY);
    const TAKE: Ordering = unless(WEAK == TAKE, AtomicU32::TAKE);

    fn load(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }
    fn swap(&self, value: u32, order: Ordering) -> u32 {
        self.0.swap(value, order)
    }
    fn exchange(&self, expected: u32, value: u32, order: Ordering) -> bool {
        self.0.compare_exchange(expected, value, order, Ordering::Relaxed).is_ok()
    }
}

/// A thread parks, asleep or busy, until another one unparks it. loom stops if it sleeps for ever, and if it does not
/// see what the other one has done before.
fn park<const WEAK: u8>(sleeps: bool) {
    let token = Arc::new(Token(Checked::<WEAK>(model::AtomicU32::new(EMPTY))));
    let (sleeper, work) = (Arc::new(Mutex::new(None)), Arc::new(model::AtomicU32::new(0)));
    // Stands for the sleeper's name: loom shows no thread an old value behind a mutex.
    let is_named = Arc::new(model::AtomicU32::new(0));
    let unparks = {
        let (token, sleeper, work) = (token.clone(), sleeper.clone(), work.clone());
        let is_named = is_named.clone();
        loom::thread::spawn(move || {
            work.store(1, Ordering::Relaxed);
            if token.notify() {
                assert_eq!(is_named.load(Ordering::Relaxed), 1, "a thread that sleeps has said its name");
                let sleeper: &Option<loom::thread::Thread> = &sleeper.lock().unwrap();
                sleeper.as_ref().unwrap().unpark();
            }
        })
    };
    let is_unparked = if sleeps {
        *sleeper.lock().unwrap() = Some(loom::thread::current());
        is_named.store(1, Ordering::Relaxed);
        if token.sleep() {
            while token.is_asleep() {
                loom::thread::park();
            }
        }
        let is_unparked = token.take();
        assert!(is_unparked, "only an unpark ends the sleep");
        is_unparked
    } else {
        token.is_notified() && token.take()
    };
    assert!(!is_unparked || work.load(Ordering::Relaxed) == 1);
    unparks.join().unwrap();
    assert!(is_unparked != token.take(), "an unpark counts once, and is not lost");
}

fn fails(run: impl Fn() + Send + Sync + 'static) -> bool {
    catch_unwind(AssertUnwindSafe(|| loom::model(run))).is_err()
}

#[test]
fn an_unpark_ends_a_sleep_and_hands_over_what_was_done() {
    loom::model(|| park::<0>(true));
    assert!(fails(|| park::<SLEEP>(true)));
    assert!(fails(|| park::<NOTIFY>(true)));
    assert!(fails(|| park::<TAKE>(true)));
}

#[test]
fn a_busy_wait_sees_what_was_done() {
    loom::model(|| park::<0>(false));
    assert!(fails(|| park::<NOTIFY>(false)));
    assert!(fails(|| park::<TAKE>(false)));
}
