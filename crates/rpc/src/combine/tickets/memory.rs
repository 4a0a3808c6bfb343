//! The atomic words of the tickets and of waiting threads, and the memory orders between their users: the processor's, or a model
//! checker's.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// An atomic word with values of type `V`.
pub(crate) trait Word<V>: Send + Sync {
    /// Creates a word.
    fn new(value: V) -> Self;
    /// Loads the value.
    fn load(&self, order: Ordering) -> V;
    /// Stores a value.
    fn store(&self, value: V, order: Ordering);
    /// Stores a value and returns the previous one.
    fn swap(&self, value: V, order: Ordering) -> V;
    /// Stores `value` if the current value is `expected`. A failure returns the current value, loaded with
    /// relaxed ordering.
    fn exchange(&self, expected: V, value: V, order: Ordering) -> Result<V, V>;
}

/// The words and the orders that the tickets are made of.
///
/// Only the orders that guarantee something are named here. All other accesses are relaxed: they concern
/// words that one thread owns at a time, and the orders below hand the ownership over.
pub(crate) trait Memory: 'static {
    /// A word of 32 bits.
    type Half: Word<u32>;
    /// A word of 64 bits.
    type Whole: Word<u64>;
    /// A word of bits that many threads change.
    type Bits: Word<u64>;

    /// Push: makes the ticket's contents visible to the leader that takes the list.
    const PUSH: Ordering = Ordering::Release;
    /// Taking the list: the counterpart of [`PUSH`](Memory::PUSH). A push is a read-modify-write, so it
    /// continues the release sequences of all pushes before it, and one load acquires them all.
    const TAKE: Ordering = Ordering::Acquire;
    /// End of a call: makes the result visible to the owner.
    const FINISH: Ordering = Ordering::Release;
    /// The owner's load of a ticket's state: the counterpart of [`FINISH`](Memory::FINISH).
    const RESULT: Ordering = Ordering::Acquire;
    /// The leader's last access to a ticket whose owner gave the call up.
    const FREE: Ordering = Ordering::Release;
    /// The owner's load before it uses such a ticket again: the counterpart of [`FREE`](Memory::FREE).
    const REUSE: Ordering = Ordering::Acquire;
    /// The owner's last access to a ticket of a pool.
    const GIVE: Ordering = Ordering::Release;
    /// The next owner's first access: the counterpart of [`GIVE`](Memory::GIVE).
    const CLAIM: Ordering = Ordering::Acquire;
    /// The change of a waker's cell after a call has ended: releases the end to the task that stores its waker.
    const ENDED: Ordering = Ordering::AcqRel;
    /// A load of the cell: the counterpart of [`ENDED`](Memory::ENDED), if the waker is being taken, and of
    /// [`REGISTERED`](Memory::REGISTERED).
    const REGISTER: Ordering = Ordering::Acquire;
    /// The task's last change: the counterpart of [`ENDED`](Memory::ENDED), if that came before or in between. Releases
    /// the time at which the task has to be woken.
    const REGISTERED: Ordering = Ordering::AcqRel;

    /// The fence between a task's wait and its look whether the thread sleeps that watches the clock.
    #[inline]
    fn fence_after_wait() {
        fence(Ordering::SeqCst);
    }
    /// The fence of that thread between its word that it sleeps and its look at the tasks.
    #[inline]
    fn fence_before_scan() {
        fence(Ordering::SeqCst);
    }
    /// The fence of a thread between its word that it parks and its look whether another one goes on.
    #[inline]
    fn fence_before_park() {
        fence(Ordering::SeqCst);
    }
    /// The fence of a thread between the end of its wait and its look at those that wait.
    #[inline]
    fn fence_before_pass() {
        fence(Ordering::SeqCst);
    }
}

/// Sets bits.
#[inline]
pub(crate) fn set<W: Word<u64>>(word: &W, bits: u64, order: Ordering) {
    let mut now = word.load(Ordering::Relaxed);
    while let Err(other) = word.exchange(now, now | bits, order) {
        now = other;
    }
}

/// Clears a bit, and returns whether it was set.
#[inline]
pub(crate) fn clear<W: Word<u64>>(word: &W, bit: u64, order: Ordering) -> bool {
    let mut now = word.load(Ordering::Relaxed);
    while now & bit != 0 {
        match word.exchange(now, now & !bit, order) {
            Ok(_) => return true,
            Err(other) => now = other,
        }
    }
    false
}

/// The processor's atomics.
#[derive(Debug)]
pub(crate) enum Processor {}

impl Memory for Processor {
    type Half = AtomicU32;
    type Whole = AtomicU64;
    type Bits = AtomicU64;
}

macro_rules! word {
    ($atomic:ty, $value:ty) => {
        impl Word<$value> for $atomic {
            #[inline]
            fn new(value: $value) -> Self {
                <$atomic>::new(value)
            }
            #[inline]
            fn load(&self, order: Ordering) -> $value {
                <$atomic>::load(self, order)
            }
            #[inline]
            fn store(&self, value: $value, order: Ordering) {
                <$atomic>::store(self, value, order);
            }
            #[inline]
            fn swap(&self, value: $value, order: Ordering) -> $value {
                <$atomic>::swap(self, value, order)
            }
            #[inline]
            fn exchange(&self, expected: $value, value: $value, order: Ordering) -> Result<$value, $value> {
                self.compare_exchange(expected, value, order, Ordering::Relaxed)
            }
        }
    };
}

word!(AtomicU32, u32);
word!(AtomicU64, u64);

#[cfg(test)]
pub(crate) use word;
