//! The waker of a task that waits for its ticket: stored by the task, taken by the thread that has ended the call.
//!
//! The thread ends the call, then takes the waker. The task stores its waker, then looks whether the call has ended.
//! Both change one word, whose changes have one order. If the thread comes first, its change releases the end of the
//! call to the task's. If the task comes first, the thread finds the waker. While the task is storing, the thread
//! leaves a mark, which the task finds at its end.

use super::memory::{Memory, Word};
use std::sync::atomic::Ordering;
use std::sync::{Mutex, TryLockError};
use std::task::Waker;

const EMPTY: u32 = 0;
const FULL: u32 = 1;
/// The task is storing its waker.
const STORING: u32 = 2;
/// As above, and the call has ended meanwhile.
const STORING_ENDED: u32 = 3;
/// A thread is taking the waker.
const TAKING: u32 = 4;

/// The place of one waker.
pub(super) struct WakerCell<M: Memory> {
    state: M::Half,
    /// Never contended: the state says who has it.
    waker: Mutex<Option<Waker>>,
}

impl<M: Memory> WakerCell<M> {
    pub(super) fn new() -> Self {
        WakerCell { state: M::Half::new(EMPTY), waker: Mutex::new(None) }
    }

    fn with<R>(&self, with: impl FnOnce(&mut Option<Waker>) -> R) -> Option<R> {
        match self.waker.try_lock() {
            Ok(mut waker) => Some(with(&mut waker)),
            Err(TryLockError::Poisoned(poisoned)) => Some(with(&mut poisoned.into_inner())),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Stores a task's waker, unless it is there already. Returns false if the waker is not kept, because a call has
    /// ended meanwhile: the task has to look at once. One task at a time.
    pub(super) fn store(&self, waker: &Waker) -> bool {
        loop {
            match self.state.load(M::REGISTER) {
                now @ (EMPTY | FULL) => {
                    if self.state.exchange(now, STORING, Ordering::Relaxed).is_ok() {
                        break;
                    }
                }
                // The thread that has ended the call is taking the waker of an earlier look.
                _ => return false,
            }
        }
        // The replaced waker is dropped without a claim to the cell: it may drop a task.
        let replaced = self.with(|place| match place {
            Some(kept) if kept.will_wake(waker) => None,
            place => place.replace(waker.clone()),
        });
        let is_kept = self.state.exchange(STORING, FULL, M::REGISTERED).is_ok();
        let unused = if is_kept { None } else { self.with(Option::take) };
        if !is_kept {
            self.state.swap(EMPTY, M::REGISTERED);
        }
        drop((replaced, unused));
        is_kept
    }

    /// Takes the waker, after the call has ended or its task has given it up.
    pub(super) fn take(&self) -> Option<Waker> {
        loop {
            let now = self.state.load(Ordering::Relaxed);
            let next = match now {
                FULL => TAKING,
                STORING => STORING_ENDED,
                // The change that changes nothing releases the end of the call.
                same => same,
            };
            if self.state.exchange(now, next, M::ENDED).is_ok() {
                if next != TAKING || now != FULL {
                    return None;
                }
                let waker = self.with(Option::take).flatten();
                self.state.swap(EMPTY, M::ENDED);
                return waker;
            }
        }
    }

    /// Drops the waker of a call that is over, if there is one. Without one it changes nothing.
    pub(super) fn clear(&self) {
        if self.state.load(Ordering::Relaxed) != EMPTY {
            drop(self.take());
        }
    }

    /// Returns whether a task waits.
    pub(super) fn is_full(&self) -> bool {
        self.state.load(M::REGISTER) == FULL
    }
}
