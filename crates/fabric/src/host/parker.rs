//! A thread's wait for another thread of its process.

use super::Nanos;
use crate::idle::Idle;
use crate::{Crowding, Host, RealHost, WaitMode};
use std::fmt::Debug;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Thread;
use std::time::Duration;

/// One thread's wait for other threads: it parks until one of them unparks it. An unpark before the park ends
/// the park at once; several count as one.
///
/// A [`Signal`](super::Signal) is for control paths and any number of waiters. A parker costs its owner and
/// the waking thread one access to one cache line each, and a system call only if the owner sleeps.
pub trait Parker: Send + Debug + 'static {
    /// The type that ends the wait.
    type Unparker: Unparker;

    /// Returns the handle with which other threads end the wait.
    fn unparker(&self) -> Self::Unparker;
    /// Waits until this thread is unparked or until the time `until`; returns whether it was unparked. Never
    /// misses an unpark, and may return without one.
    ///
    /// A busy park lasts an instant on a real host, which gives the core away by the rule of [`Idle`]. In a
    /// simulator it lasts until the unpark. In the other modes the thread sleeps.
    fn park(&mut self, mode: WaitMode, until: Nanos) -> bool;
    /// Returns how other threads compete for this thread's core, as far as recent busy parks have shown.
    fn crowding(&self) -> Crowding {
        Crowding::Alone
    }
    /// Returns whether a busy park blocks until the unpark, so that someone must be there to unpark.
    fn blocks_when_busy(&self) -> bool;
}

/// Ends the wait of a [`Parker`]. All methods may be called from any thread, and never block.
pub trait Unparker: Clone + Send + Sync + Debug + 'static {
    /// Unparks the parker's owner.
    fn unpark(&self);
}

/// Waits until the parker is unparked, or until `until`; returns whether it was unparked. Polls for at most `spin`
/// nanoseconds, while no other thread wants the core, and then sleeps. Blocks.
pub fn park_adaptive<H: Host>(host: &H, parker: &mut H::Parker, spin: Nanos, until: Nanos) -> bool {
    let spin = host.now().saturating_add(spin).min(until);
    while parker.crowding() == Crowding::Alone {
        if parker.park(WaitMode::Busy, spin) {
            return true;
        }
        if host.now() >= spin {
            break;
        }
    }
    parker.park(WaitMode::Event, until)
}

const EMPTY: u32 = 0;
const NOTIFIED: u32 = 1;
const ASLEEP: u32 = 2;

/// An atomic word: the processor's, or a model checker's.
trait Word {
    /// A sleep: releases the sleeper's name.
    const SLEEP: Ordering = Ordering::Release;
    /// An unpark: acquires the sleeper's name, and releases what the owner waits for.
    const NOTIFY: Ordering = Ordering::AcqRel;
    /// The end of a wait: the counterpart of [`NOTIFY`](Word::NOTIFY).
    const TAKE: Ordering = Ordering::Acquire;

    fn load(&self) -> u32;
    fn swap(&self, value: u32, order: Ordering) -> u32;
    fn exchange(&self, expected: u32, value: u32, order: Ordering) -> bool;
}

impl Word for AtomicU32 {
    #[inline]
    fn load(&self) -> u32 {
        AtomicU32::load(self, Ordering::Relaxed)
    }
    #[inline]
    fn swap(&self, value: u32, order: Ordering) -> u32 {
        AtomicU32::swap(self, value, order)
    }
    #[inline]
    fn exchange(&self, expected: u32, value: u32, order: Ordering) -> bool {
        self.compare_exchange(expected, value, order, Ordering::Relaxed).is_ok()
    }
}

/// Whether a parker's owner sleeps, and whether it was unparked.
#[derive(Debug, Default)]
struct Token<W>(W);

impl<W: Word> Token<W> {
    /// Notes an unpark. Returns whether the owner sleeps and has to be woken.
    #[inline]
    fn notify(&self) -> bool {
        self.0.swap(NOTIFIED, W::NOTIFY) == ASLEEP
    }

    /// Says that the owner sleeps, whose name is known. Returns false if it was unparked.
    fn sleep(&self) -> bool {
        self.0.exchange(EMPTY, ASLEEP, W::SLEEP)
    }

    fn is_asleep(&self) -> bool {
        self.0.load() == ASLEEP
    }

    #[inline]
    fn is_notified(&self) -> bool {
        self.0.load() == NOTIFIED
    }

    /// Ends the owner's wait. Returns whether it was unparked.
    #[inline]
    fn take(&self) -> bool {
        self.0.swap(EMPTY, W::TAKE) == NOTIFIED
    }
}

#[derive(Debug, Default)]
#[repr(align(64))]
struct Place {
    token: Token<AtomicU32>,
    sleeper: Mutex<Option<Thread>>,
}

impl Place {
    fn sleeper(&self) -> std::sync::MutexGuard<'_, Option<Thread>> {
        self.sleeper.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The parker of a thread of [`RealHost`].
#[derive(Debug, Default)]
pub struct RealParker {
    place: Arc<Place>,
    idle: Idle,
}

/// Ends the wait of a [`RealParker`].
#[derive(Clone, Debug)]
pub struct RealUnparker(Arc<Place>);

impl RealParker {
    #[cold]
    fn sleep(&mut self, until: Nanos) -> bool {
        let token = &self.place.token;
        // Before the state says so, because the waking thread looks for the name then.
        *self.place.sleeper() = Some(std::thread::current());
        if token.sleep() {
            while token.is_asleep() {
                let left = until.saturating_sub(RealHost.now());
                if left == 0 {
                    break;
                }
                std::thread::park_timeout(Duration::from_nanos(left));
            }
            self.idle.slept();
        }
        self.place.token.take()
    }
}

impl Parker for RealParker {
    type Unparker = RealUnparker;

    fn unparker(&self) -> RealUnparker {
        RealUnparker(Arc::clone(&self.place))
    }

    #[inline]
    fn park(&mut self, mode: WaitMode, until: Nanos) -> bool {
        if mode.sleeps() {
            return self.sleep(until);
        }
        if self.place.token.is_notified() {
            self.place.token.take();
            self.idle.reset();
            return true;
        }
        std::hint::spin_loop();
        self.idle.wait();
        false
    }

    fn crowding(&self) -> Crowding {
        self.idle.crowding()
    }

    fn blocks_when_busy(&self) -> bool {
        false
    }
}

impl Unparker for RealUnparker {
    #[inline]
    fn unpark(&self) {
        if self.0.token.notify()
            && let Some(thread) = &*self.0.sleeper()
        {
            thread.unpark();
        }
    }
}

#[cfg(test)]
mod model_checks;
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unpark_before_the_park_is_not_lost_and_counts_once() {
        for mode in [WaitMode::Busy, WaitMode::Event] {
            let mut parker = RealHost.parker();
            let unparker = parker.unparker();
            unparker.unpark();
            unparker.unpark();
            assert!(parker.park(mode, Nanos::MAX));
            assert!(!parker.park(mode, RealHost.now() + 1_000_000));
        }
    }

    /// Two threads unpark each other by turns, busy and asleep mixed.
    #[test]
    fn two_threads_unpark_each_other() {
        const ROUNDS: u32 = 20_000;
        let (mut first, mut second) = (RealHost.parker(), RealHost.parker());
        let (to_first, to_second) = (first.unparker(), second.unparker());
        let mode = |round: u32| if round.is_multiple_of(3) { WaitMode::Event } else { WaitMode::Busy };
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    while !second.park(mode(round), Nanos::MAX) {}
                    to_first.unpark();
                }
            });
            for round in 0..ROUNDS {
                to_second.unpark();
                while !first.park(mode(round + 1), Nanos::MAX) {}
            }
        });
    }
}
