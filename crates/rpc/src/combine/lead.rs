//! The lead of a queue pair: the right to send and to poll for all threads that share it (FLOCK section 4.2,
//! leader and followers).
//!
//! The lead is a lock that no thread blocks on. A thread with a call pushes its ticket (`tickets.rs`) and
//! tries to take the lead. If another thread leads, that thread has taken the ticket or will look for it: a
//! leader that gives the lead back looks at the list once more. So a leader can be descheduled, or wait
//! through the host, and delays only the calls that it has to send.
//!
//! # Why no ticket is lost
//!
//! The pusher pushes, executes a sequentially consistent fence, and tries to lock. The leader unlocks,
//! executes such a fence, and looks. The fences have one order. If the pusher's comes first, the leader sees
//! the ticket. If the leader's comes first, the pusher sees the unlocked lead, or a later leader, for which the
//! same holds. An attempt that succeeds needs no fence; a pusher that runs alone executes none.
//!
//! A leader repeats its work a bounded number of times, then asks for another thread to be woken
//! ([`Next::Wake`]): the paper's leader hands over after a bounded number of followers as well.
//!
//! [`Waiters`] adds a form that waits for the lead through the host, for connecting and closing.

use super::tickets::memory::{Memory, Processor, Word};
use dunlin_fabric::{Fabric, Host, Nanos, Signal};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{Ordering, fence};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// A lock that is only tried, and the fences around it: the standard library's, or a model checker's.
pub(crate) trait Exclusive {
    /// The value behind the lock.
    type Value;
    /// Access to the value; unlocks when dropped.
    type Guard<'a>: DerefMut<Target = Self::Value>
    where
        Self: 'a;

    /// Creates a lock that is free.
    fn new(value: Self::Value) -> Self;
    /// Takes the lock unless it is taken.
    fn try_lock(&self) -> Option<Self::Guard<'_>>;
    /// Returns whether a thread has panicked with the lock since the last such question. Asked with the lock.
    fn was_left_by_panic(&self) -> bool {
        false
    }
    /// Executes the fence between a push and the second attempt to lock.
    fn fence_before_retry();
    /// Executes the fence between an unlock and the look at the list.
    fn fence_before_look();
}

impl<T> Exclusive for Mutex<T> {
    type Value = T;
    type Guard<'a>
        = MutexGuard<'a, T>
    where
        Self: 'a;

    fn new(value: T) -> Self {
        Mutex::new(value)
    }

    #[inline]
    fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match Mutex::try_lock(self) {
            Ok(held) => Some(held),
            // The next leader asks whether the last one has panicked.
            Err(TryLockError::Poisoned(poisoned)) => Some(PoisonError::into_inner(poisoned)),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    #[inline]
    fn was_left_by_panic(&self) -> bool {
        let is_poisoned = self.is_poisoned();
        if is_poisoned {
            self.clear_poison();
        }
        is_poisoned
    }

    #[inline]
    fn fence_before_retry() {
        fence(Ordering::SeqCst);
    }

    #[inline]
    fn fence_before_look() {
        fence(Ordering::SeqCst);
    }
}

/// The value that the lead gives access to.
pub(crate) trait Led {
    /// Returns whether calls wait that only the next leader can see: collected and not sent.
    fn has_backlog(&self) -> bool;
}

/// Work that threads without the lead leave for the thread that leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// There is no work.
    Nothing,
    /// Calls wait for any leader.
    Calls,
    /// A thread waits for the lead itself. It has to be woken, and the lead is left to it.
    Waiters,
}

/// The state outside the lock that a leader looks at after it has given the lead back.
pub(crate) trait Watch {
    /// Looks for work, with relaxed loads: the lead executes the fence.
    fn look(&self) -> Look;
    /// Wakes a thread that will try to take the lead, if one sleeps.
    fn wake(&self);
}

/// The lead: a value, and a watch on work that arrives for the thread that has the value.
#[derive(Debug)]
pub(crate) struct Lead<T, W, E = Mutex<T>>
where
    E: Exclusive<Value = T>,
{
    lock: E,
    watch: W,
    /// Consecutive repetitions of one thread.
    repetitions: u32,
}

impl<T: Led, W: Watch> Lead<T, W> {
    /// Creates a lead that is free. A thread that gives the lead back and finds work takes it again at most
    /// `repetitions` times in a row.
    pub(crate) fn new(value: T, watch: W, repetitions: u32) -> Self {
        Self::with_lock(value, watch, repetitions)
    }
}

impl<T: Led, W: Watch, E: Exclusive<Value = T>> Lead<T, W, E> {
    pub(super) fn with_lock(value: T, watch: W, repetitions: u32) -> Self {
        Lead { lock: E::new(value), watch, repetitions }
    }

    /// Takes the lead; `None` if another thread has it. That thread looks at the list, after it has given the
    /// lead back, for all calls that were pushed before this attempt. Never blocks.
    #[inline]
    pub(crate) fn try_lead(&self) -> Option<Leading<'_, T, W, E>> {
        let held = self.lock.try_lock().or_else(|| {
            E::fence_before_retry();
            self.lock.try_lock()
        })?;
        Some(Leading { lead: self, held: Some(held), repetitions: self.repetitions })
    }

    /// The watch.
    pub(crate) fn watch(&self) -> &W {
        &self.watch
    }

    /// Unlocks, then looks for work.
    fn unlock(&self, held: E::Guard<'_>) -> Look {
        // A leader that panicked may have left calls anywhere.
        let has_backlog = std::thread::panicking() || held.has_backlog();
        drop(held);
        E::fence_before_look();
        match self.watch.look() {
            Look::Nothing if has_backlog => Look::Calls,
            look => look,
        }
    }
}

/// The lead in the hands of a thread. Dropping it gives the lead back and wakes a thread if there is work,
/// also in a panic; [`give_back`](Leading::give_back) lets this thread go on instead.
pub(crate) struct Leading<'a, T: Led, W: Watch, E: Exclusive<Value = T> = Mutex<T>> {
    lead: &'a Lead<T, W, E>,
    /// `None` only within `give_back` and `drop`.
    held: Option<E::Guard<'a>>,
    repetitions: u32,
}

/// The next step of a thread that has given the lead back.
#[derive(Debug)]
pub(crate) enum Next<'a, T: Led, W: Watch, E: Exclusive<Value = T> = Mutex<T>> {
    /// None: there is no work, or another thread leads.
    Done,
    /// Work has arrived, and this thread has the lead again.
    Again(Leading<'a, T, W, E>),
    /// There is work, and the lead is free for another thread: the caller calls [`Watch::wake`].
    Wake,
}

impl<'a, T: Led, W: Watch, E: Exclusive<Value = T>> Leading<'a, T, W, E> {
    /// Returns whether an earlier leader has panicked, so that the value may be in any state. True once for each panic.
    #[inline]
    pub(crate) fn was_left_by_panic(&self) -> bool {
        self.lead.lock.was_left_by_panic()
    }

    /// Gives the lead back and looks for work that has arrived meanwhile. Never blocks.
    #[inline]
    pub(crate) fn give_back(mut self) -> Next<'a, T, W, E> {
        let (lead, repetitions) = (self.lead, self.repetitions);
        let Some(held) = self.held.take() else { return Next::Done };
        match lead.unlock(held) {
            Look::Nothing => Next::Done,
            Look::Calls if repetitions > 0 => match lead.lock.try_lock() {
                Some(held) => Next::Again(Leading { lead, held: Some(held), repetitions: repetitions - 1 }),
                None => Next::Done,
            },
            Look::Calls | Look::Waiters => Next::Wake,
        }
    }
}

impl<T: Led, W: Watch, E: Exclusive<Value = T>> Leading<'_, T, W, E> {
    /// Gives the lead back and looks for work, as [`give_back`](Leading::give_back), and leaves the next step to the
    /// caller: to lead again, or to call [`Watch::wake`]. For a thread that has something else to do first.
    #[inline]
    pub(crate) fn release(mut self) -> Look {
        self.held.take().map_or(Look::Nothing, |held| self.lead.unlock(held))
    }
}

impl<T: Led, W: Watch, E: Exclusive<Value = T>> Drop for Leading<'_, T, W, E> {
    fn drop(&mut self) {
        if let Some(held) = self.held.take()
            && self.lead.unlock(held) != Look::Nothing
        {
            self.lead.watch.wake();
        }
    }
}

impl<T: Led, W: Watch, E: Exclusive<Value = T>> Deref for Leading<'_, T, W, E> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        match &self.held {
            Some(held) => held,
            None => unreachable!("the lead is held as long as it can be used"),
        }
    }
}

impl<T: Led, W: Watch, E: Exclusive<Value = T>> DerefMut for Leading<'_, T, W, E> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        match &mut self.held {
            Some(held) => held,
            None => unreachable!("the lead is held as long as it can be used"),
        }
    }
}

impl<T: Led + fmt::Debug, W: Watch, E: Exclusive<Value = T>> fmt::Debug for Leading<'_, T, W, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Leading").field(&**self).finish()
    }
}

/// The signal of a fabric's host.
pub(crate) type SignalOf<F> = <<F as Fabric>::Host as Host>::Signal;

/// A watch that also knows the threads that wait for the lead through the host: in virtual time all tasks run
/// on one system thread, which must not block.
pub(crate) struct Waiters<S, W, M: Memory = Processor> {
    /// The number of threads that found the lead taken and wait for it.
    waiting: M::Half,
    freed: S,
    inner: W,
}

impl<S: Signal, W, M: Memory> Waiters<S, W, M> {
    /// Adds waiting threads to a watch. They wait for the signal.
    pub(crate) fn new(freed: S, inner: W) -> Self {
        Waiters { waiting: M::Half::new(0), freed, inner }
    }

    /// The watch inside.
    pub(crate) fn inner(&self) -> &W {
        &self.inner
    }

    /// Counts threads that wait.
    fn count(&self, more: i32) {
        let mut now = self.waiting.load(Ordering::Relaxed);
        while let Err(other) = self.waiting.exchange(now, now.wrapping_add_signed(more), Ordering::Relaxed) {
            now = other;
        }
    }
}

impl<S: Signal, W: Watch, M: Memory> Watch for Waiters<S, W, M> {
    #[inline]
    fn look(&self) -> Look {
        if self.waiting.load(Ordering::Relaxed) > 0 { Look::Waiters } else { self.inner.look() }
    }

    fn wake(&self) {
        if self.waiting.load(Ordering::Relaxed) > 0 {
            self.freed.raise();
        } else {
            self.inner.wake();
        }
    }
}

impl<S: Signal, W, M: Memory> fmt::Debug for Waiters<S, W, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Waiters")
            .field("waiting", &self.waiting.load(Ordering::Relaxed))
            .finish_non_exhaustive()
    }
}

impl<S: Signal, T: Led, W: Watch, M: Memory, E: Exclusive<Value = T>> Lead<T, Waiters<S, W, M>, E> {
    /// Takes the lead, and waits for it through the host if another thread has it.
    pub(crate) fn wait_to_lead(&self) -> Leading<'_, T, Waiters<S, W, M>, E> {
        loop {
            if let Some(leading) = self.wait_to_lead_until(Nanos::MAX) {
                return leading;
            }
        }
    }

    /// As [`wait_to_lead`](Lead::wait_to_lead), but waits until `until` at most.
    pub(crate) fn wait_to_lead_until(&self, until: Nanos) -> Option<Leading<'_, T, Waiters<S, W, M>, E>> {
        self.try_lead().or_else(|| self.wait_slowly(until))
    }

    #[cold]
    fn wait_slowly(&self, until: Nanos) -> Option<Leading<'_, T, Waiters<S, W, M>, E>> {
        self.watch.count(1);
        let mut in_time = true;
        let leading = loop {
            let seen = self.watch.freed.seen();
            // A failed attempt executes the fence after the increment, so the leader sees that a thread waits.
            let leading = self.try_lead();
            if leading.is_some() || !in_time {
                break leading;
            }
            in_time = self.watch.freed.wait(seen, until);
        };
        self.watch.count(-1);
        if leading.is_none() {
            // The leader may have left the lead to this thread.
            M::fence_before_pass();
            if self.watch.look() != Look::Nothing {
                self.watch.wake();
            }
        }
        leading
    }
}

#[cfg(test)]
pub(crate) mod tests;
