//! The threads of a queue pair that wait: the one that leads, the sentinel, and those that are parked.
//!
//! A thread that waits takes the lead with each look, if it is free. If nothing has arrived, one thread at a
//! time, the *sentinel*, waits for the domain, without the lead; the others are parked. Whoever delivers a
//! result wakes its owner. Three rules keep a thread from being parked for ever:
//!
//! * A thread that parks first says so, then looks once more whether the lead or the sentinel's place is free.
//! * A thread that gives the lead back, or leaves the sentinel's place, then unparks a parked thread if there
//!   is no sentinel.
//! * A thread that found the lead taken asks for progress before it parks. Whoever gives the lead back, also
//!   after a submission only, makes that progress: it may be needed to READ a result.
//!
//! Each rule has a sequentially consistent fence between its two steps. The fences have one order, so of two threads
//! one sees what the other has said.

use super::lead::Look;
use super::tickets::memory::{Memory, Processor, Word, clear, set};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The sentinel sleeps, and does not spin.
const ASLEEP: u32 = 1 << 31;
const NOBODY: u32 = 0;

/// The way in which the sentinel waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rest {
    Asleep,
    Spinning,
}

/// The waiting threads of a queue pair, by seat: at most 64 times `WORDS`.
pub(crate) struct Waiting<const WORDS: usize, M: Memory = Processor> {
    /// 1 while a thread has the lead.
    leading: M::Half,
    /// 1 if a thread that parks asks for progress.
    wanted: M::Half,
    /// The number of the thread that waits for the domain, plus one, and [`ASLEEP`].
    sentinel: M::Half,
    /// The threads that are parked, or about to park.
    parked: [M::Bits; WORDS],
    /// Where the search for a parked thread begins, so that each is found in time.
    next_parked: AtomicUsize,
}

impl<const WORDS: usize, M: Memory> Waiting<WORDS, M> {
    pub(crate) fn new() -> Self {
        Waiting {
            leading: M::Half::new(0),
            wanted: M::Half::new(0),
            sentinel: M::Half::new(NOBODY),
            parked: std::array::from_fn(|_| M::Bits::new(0)),
            next_parked: AtomicUsize::new(0),
        }
    }

    /// Says whether a thread has the lead. Called with the lead.
    #[inline]
    pub(crate) fn set_leading(&self, leading: bool) {
        self.leading.store(leading.into(), Ordering::Relaxed);
    }

    /// Says that the thread that leads makes the progress that others have asked for.
    #[inline]
    pub(crate) fn makes_progress(&self) {
        self.wanted.store(0, Ordering::Relaxed);
    }

    /// Returns the work that is left to a thread that has given the lead back, besides calls.
    #[inline]
    pub(crate) fn look(&self) -> Look {
        if self.wanted.load(Ordering::Relaxed) != 0 {
            return Look::Calls;
        }
        if self.needs_sentinel() { Look::Waiters } else { Look::Nothing }
    }

    /// Returns whether a parked thread has to take the sentinel's place.
    #[inline]
    fn needs_sentinel(&self) -> bool {
        self.parked.iter().any(|word| word.load(Ordering::Relaxed) != 0)
            && self.sentinel.load(Ordering::Relaxed) == NOBODY
    }

    /// Chooses a parked thread to be unparked.
    #[cold]
    pub(crate) fn choose(&self) -> Option<usize> {
        let (first, seats) = (self.next_parked.load(Ordering::Relaxed), 64 * WORDS);
        let is_parked = |seat: &usize| self.parked[seat / 64].load(Ordering::Relaxed) & 1 << (seat % 64) != 0;
        let seat = (first..first + seats).map(|seat| seat % seats).find(is_parked)?;
        self.next_parked.store(seat + 1, Ordering::Relaxed);
        Some(seat)
    }

    /// Takes the sentinel's place, or keeps it; `false` if another thread has it.
    pub(crate) fn watch(&self, seat: u16, sleeps: bool) -> bool {
        let own = u32::from(seat) + 1;
        let word = own | if sleeps { ASLEEP } else { 0 };
        let now = self.sentinel.load(Ordering::Relaxed);
        if now & !ASLEEP == own {
            if now != word {
                self.sentinel.store(word, Ordering::SeqCst);
            }
            return true;
        }
        now == NOBODY && self.sentinel.exchange(NOBODY, word, Ordering::SeqCst).is_ok()
    }

    /// Leaves the sentinel's place, if the thread has it. At the end of its wait the thread then calls
    /// [`pass_on`](Waiting::pass_on).
    pub(crate) fn stop_watching(&self, seat: u16) {
        if self.sentinel.load(Ordering::Relaxed) & !ASLEEP == u32::from(seat) + 1 {
            self.sentinel.store(NOBODY, Ordering::SeqCst);
        }
    }

    /// Returns how a thread rests, if it is the sentinel.
    #[inline]
    pub(crate) fn rest_of(&self, seat: u16) -> Option<Rest> {
        let sentinel = self.sentinel.load(Ordering::SeqCst);
        let rest = if sentinel & ASLEEP != 0 { Rest::Asleep } else { Rest::Spinning };
        (sentinel & !ASLEEP == u32::from(seat) + 1).then_some(rest)
    }

    /// Says that a thread is about to park, which `has_led` since it last found nothing. Returns false if it
    /// must look again first, since no other thread would wake it or make progress for it.
    pub(crate) fn may_park(&self, seat: u16, has_led: bool) -> bool {
        let (word, bit) = self.place(seat);
        set(word, bit, Ordering::SeqCst);
        if !has_led {
            self.wanted.store(1, Ordering::Relaxed);
        }
        M::fence_before_park();
        if self.leading.load(Ordering::Relaxed) != 0
            || has_led && self.sentinel.load(Ordering::SeqCst) != NOBODY
        {
            return true;
        }
        clear(word, bit, Ordering::Relaxed);
        false
    }

    /// Says that a thread is no longer parked. When it ends its wait it calls [`pass_on`](Waiting::pass_on), since
    /// it may have been chosen to go on.
    pub(crate) fn unparked(&self, seat: u16) {
        let (word, bit) = self.place(seat);
        clear(word, bit, Ordering::Relaxed);
    }

    /// Returns whether a thread is parked, or about to park.
    pub(crate) fn is_parked(&self, seat: u16) -> bool {
        let (word, bit) = self.place(seat);
        word.load(Ordering::SeqCst) & bit != 0
    }

    /// Returns the thread to be unparked by one that ends its wait: to take the sentinel's place, if nobody has it.
    #[inline]
    pub(crate) fn pass_on(&self) -> Option<usize> {
        M::fence_before_pass();
        if self.needs_sentinel() { self.choose() } else { None }
    }

    fn place(&self, seat: u16) -> (&M::Bits, u64) {
        (&self.parked[usize::from(seat) / 64], 1 << (seat % 64))
    }
}

impl<const WORDS: usize, M: Memory> std::fmt::Debug for Waiting<WORDS, M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Waiting")
            .field("sentinel", &self.sentinel.load(Ordering::Relaxed))
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod model_checks;
