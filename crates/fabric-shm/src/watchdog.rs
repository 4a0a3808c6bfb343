//! Bounds the sleeps of domains whose doorbells were tampered with, without a kernel timer for each sleep.
//! The control thread ticks while any domain sleeps, and wakes those that have slept through a whole tick.
//! When all sleepers have had several spurious wake-ups in a row, it ticks slowly, until one of them is rung
//! and sleeps again.

use dunlin_fabric::{Host, Nanos, RealHost};
use dunlin_fabric_control::{Chores, Reactor, Waker};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// The time between two ticks, in nanoseconds. A sleep lasts at most two ticks.
pub(crate) const TICK: u64 = 10_000_000;
/// The time between two slow ticks, while all sleepers are patient.
pub(crate) const SLOW_TICK: u64 = 100_000_000;

/// No domain has slept lately: no ticks.
const RESTING: u32 = 0;
/// Ticks at [`TICK`].
const WATCHING: u32 = 1;
/// Ticks at [`SLOW_TICK`].
const DROWSY: u32 = 2;
/// The control thread has ended: no more ticks.
const ENDED: u32 = 3;

/// The watchdog's interface to a domain that sleeps.
pub(crate) trait Sleeper: Send + Sync + std::fmt::Debug {
    /// Returns a value that changes whenever a sleep begins or ends.
    fn sleeps(&self) -> u64;
    /// Returns whether the owner sleeps.
    fn is_asleep(&self) -> bool;
    /// Returns whether the owner's sleep, if it sleeps, may be a long one.
    fn is_patient(&self) -> bool;
    /// Ends a sleep, whatever value a peer has given to the word.
    fn rouse(&self);
}

#[derive(Debug)]
struct Watched {
    sleeper: Weak<dyn Sleeper>,
    /// Its count of sleeps at the last tick.
    seen: u64,
}

/// State shared by sleeping domains and the control thread.
#[derive(Debug)]
pub(crate) struct Watchdog {
    state: AtomicU32,
    /// Ends the control thread's wait.
    waker: Arc<Waker>,
    /// The time of the next tick, or `u64::MAX`. Only the control thread changes it.
    next_tick: AtomicU64,
    watched: Mutex<Vec<Watched>>,
}

impl Watchdog {
    /// Makes the watchdog of the control thread that `waker` wakes.
    pub(crate) fn new(waker: Arc<Waker>) -> Arc<Self> {
        let next_tick = AtomicU64::new(u64::MAX);
        Arc::new(Watchdog { state: AtomicU32::new(RESTING), waker, next_tick, watched: Mutex::default() })
    }

    fn watched(&self) -> MutexGuard<'_, Vec<Watched>> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Watches a domain for as long as it exists.
    pub(crate) fn add<S: Sleeper + 'static>(&self, sleeper: &Arc<S>) {
        let seen = sleeper.sleeps();
        let sleeper: Weak<S> = Arc::downgrade(sleeper);
        self.watched().push(Watched { sleeper, seen });
    }

    /// Called before a sleep, by a domain that has counted it. Returns whether the watchdog will end the
    /// sleep in time; slow ticks suffice if it is `patient`. Makes a system call only if no domain has slept
    /// for a tick, or ticks are slow.
    #[inline]
    pub(crate) fn guard(&self, patient: bool) -> bool {
        let state = self.state.load(Ordering::SeqCst);
        state == WATCHING || (patient && state == DROWSY) || self.start()
    }

    #[cold]
    fn start(&self) -> bool {
        for from in [RESTING, DROWSY] {
            if self.state.compare_exchange(from, WATCHING, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
                return self.waker.wake();
            }
        }
        self.state.load(Ordering::SeqCst) == WATCHING
    }

    /// Returns the time between ticks in nanoseconds, or `None` if no ticks are needed.
    fn period(&self) -> Option<u64> {
        match self.state.load(Ordering::SeqCst) {
            WATCHING => Some(TICK),
            DROWSY => Some(SLOW_TICK),
            _ => None,
        }
    }

    /// Wakes domains that have slept since the last tick. The control thread calls it every
    /// [`period`](Watchdog::period).
    fn tick(&self) {
        let mut watched = self.watched();
        let (mut slept, mut patient) = (false, true);
        watched.retain_mut(|watched| {
            let Some(sleeper) = watched.sleeper.upgrade() else { return false };
            let sleeps = sleeper.sleeps();
            if sleeps == watched.seen && sleeper.is_asleep() {
                sleeper.rouse();
            }
            if sleeps != watched.seen || sleeper.is_asleep() {
                slept = true;
                patient &= sleeper.is_patient();
            }
            watched.seen = sleeps;
            true
        });
        if !slept {
            self.slow_down(RESTING, &watched);
        } else if patient {
            self.slow_down(DROWSY, &watched);
        }
    }

    fn slow_down(&self, state: u32, watched: &[Watched]) {
        self.state.store(state, Ordering::SeqCst);
        // A domain that counted a sleep before that store relied on the old ticks; one that did so after it
        // calls again.
        let late = |w: &Watched| {
            w.sleeper.upgrade().is_some_and(|a| a.sleeps() != w.seen && !(state == DROWSY && a.is_patient()))
        };
        if watched.iter().any(late) {
            self.state.store(WATCHING, Ordering::SeqCst);
        }
    }
}

impl Chores for Watchdog {
    fn due(&self) -> Option<Nanos> {
        let next = self
            .period()
            .map(|period| self.next_tick.load(Ordering::Relaxed).min(RealHost.now().saturating_add(period)));
        self.next_tick.store(next.unwrap_or(u64::MAX), Ordering::Relaxed);
        next
    }

    fn work(&self, _reactor: &Reactor) {
        self.next_tick.store(u64::MAX, Ordering::Relaxed);
        self.tick();
    }

    /// From now on each sleep has its own timer.
    fn end(&self) {
        self.state.store(ENDED, Ordering::SeqCst);
        self.watched().iter().filter_map(|w| w.sleeper.upgrade()).for_each(|a| a.rouse());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doorbell::DomainWaiter;
    use dunlin_fabric::WaitMode;

    #[test]
    fn ticks_end_when_nobody_sleeps_and_come_back() {
        let watchdog = Watchdog::new(Waker::new().unwrap());
        let attention = DomainWaiter::new(&watchdog).unwrap();
        assert!(watchdog.period().is_none());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                attention.arm(WaitMode::Event);
                assert!(!attention.sleep(u64::MAX), "nobody has rung");
            });
            while !attention.is_asleep() || watchdog.period().is_none() {
                std::thread::yield_now();
            }
            watchdog.tick();
            assert!(attention.is_asleep(), "it has only just fallen asleep");
            watchdog.tick();
        });
        watchdog.tick();
        assert!(watchdog.period().is_some(), "the sleep has ended since the tick before");
        watchdog.tick();
        assert!(watchdog.period().is_none(), "nobody has slept since the tick before");
        assert!(watchdog.guard(false) && watchdog.period().is_some());
        watchdog.end();
        assert!(!watchdog.guard(false));
        attention.arm(WaitMode::Event);
        assert!(!attention.sleep(u64::MAX), "without ticks it wakes by itself");
    }

    /// Sleeps until a ring or the watchdog.
    fn sleep(attention: &DomainWaiter) -> bool {
        attention.arm(WaitMode::Event);
        attention.sleep(u64::MAX)
    }

    #[test]
    fn ticks_slow_down_for_who_is_roused_in_vain_and_not_for_who_is_rung() {
        let watchdog = Watchdog::new(Waker::new().unwrap());
        let attention = DomainWaiter::new(&watchdog).unwrap();
        let through_one = |ring: bool| {
            std::thread::scope(|scope| {
                let sleeper = scope.spawn(|| sleep(&attention));
                while !attention.is_asleep() {
                    std::thread::yield_now();
                }
                if ring {
                    attention.wake();
                }
                while !sleeper.is_finished() {
                    watchdog.tick();
                    std::thread::yield_now();
                }
                assert_eq!(sleeper.join().unwrap(), ring);
                assert!(!ring || attention.take_woken());
            });
        };
        let mut sleeps = 0;
        while watchdog.period() != Some(SLOW_TICK) {
            sleeps += 1;
            assert!(sleeps < 100, "it never slows down");
            through_one(false);
            watchdog.guard(true);
        }
        assert!(sleeps > 2, "after {sleeps} sleeps already");
        through_one(true);
        std::thread::scope(|scope| {
            scope.spawn(|| sleep(&attention));
            while watchdog.period() != Some(TICK) {
                std::thread::yield_now();
            }
            attention.wake();
        });
    }
}
