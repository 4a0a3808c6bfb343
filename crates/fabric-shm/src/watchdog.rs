//! Bounds the sleeps of domains whose doorbells were tampered with, without a kernel timer for each sleep: the
//! control thread ticks while any domain sleeps, and rouses those that have slept through a whole tick. When all have
//! been roused in vain for a while, it ticks slowly, until one of them is rung and sleeps anew.

use crate::doorbell::Attention;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Between two ticks, in nanoseconds: a sleep lasts two of them at most.
pub(crate) const TICK: u64 = 10_000_000;
/// The same while all sleep patiently.
pub(crate) const SLOW_TICK: u64 = 100_000_000;

/// Nobody has slept lately: no ticks.
const RESTING: u32 = 0;
/// Ticks come.
const WATCHING: u32 = 1;
/// Slow ticks come.
const DROWSY: u32 = 2;
/// There will be no tick any more.
const ENDED: u32 = 3;

#[derive(Debug)]
struct Watched {
    attention: Weak<Attention>,
    /// What its count of sleeps was at the last tick.
    seen: u64,
}

/// What sleeping domains and the control thread share.
#[derive(Debug)]
pub(crate) struct Watchdog {
    state: AtomicU32,
    /// Ends the control thread's wait.
    wake: OwnedFd,
    watched: Mutex<Vec<Watched>>,
}

impl Watchdog {
    pub(crate) fn new() -> io::Result<Arc<Self>> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Arc::new(Watchdog { state: AtomicU32::new(RESTING), wake, watched: Mutex::default() }))
    }

    /// Readable after [`call`](Watchdog::call).
    pub(crate) fn descriptor(&self) -> &OwnedFd {
        &self.wake
    }

    /// Ends the control thread's wait; whether that could be done.
    pub(crate) fn call(&self) -> bool {
        let called = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
        if let Err(error) = &called {
            tracing::warn!(%error, "the control thread cannot be woken");
        }
        called.is_ok()
    }

    /// The control thread has heard.
    pub(crate) fn heard(&self) {
        // Nothing to read: it was heard before.
        let _ = rustix::io::read(&self.wake, &mut [0; 8]);
    }

    fn watched(&self) -> MutexGuard<'_, Vec<Watched>> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks after a domain for as long as there is one.
    pub(crate) fn add(&self, attention: &Arc<Attention>) {
        self.watched().push(Watched { attention: Arc::downgrade(attention), seen: attention.sleeps() });
    }

    /// A domain that has counted its sleep is about to begin it; whether it will be roused in time, for which slow
    /// ticks are good enough if it is `patient`. Makes a system call only if nobody has slept for a tick, or all have
    /// slept for long.
    #[inline]
    pub(crate) fn guard(&self, patient: bool) -> bool {
        let state = self.state.load(Ordering::SeqCst);
        state == WATCHING || (patient && state == DROWSY) || self.start()
    }

    #[cold]
    fn start(&self) -> bool {
        for from in [RESTING, DROWSY] {
            if self.state.compare_exchange(from, WATCHING, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
                return self.call();
            }
        }
        self.state.load(Ordering::SeqCst) == WATCHING
    }

    /// The nanoseconds between ticks, if any are wanted.
    pub(crate) fn period(&self) -> Option<u64> {
        match self.state.load(Ordering::SeqCst) {
            WATCHING => Some(TICK),
            DROWSY => Some(SLOW_TICK),
            _ => None,
        }
    }

    /// Rouses who has slept since the last tick; the control thread's, every [`period`](Watchdog::period).
    pub(crate) fn tick(&self) {
        let mut watched = self.watched();
        let (mut slept, mut patient) = (false, true);
        watched.retain_mut(|watched| {
            let Some(attention) = watched.attention.upgrade() else { return false };
            let sleeps = attention.sleeps();
            if sleeps == watched.seen && attention.is_asleep() {
                attention.rouse();
            }
            if sleeps != watched.seen || attention.is_asleep() {
                slept = true;
                patient &= attention.is_patient();
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
        // Whoever counted a sleep before that store took the ticks for granted; whoever did after calls again.
        let late = |w: &Watched| {
            w.attention
                .upgrade()
                .is_some_and(|a| a.sleeps() != w.seen && !(state == DROWSY && a.is_patient()))
        };
        if watched.iter().any(late) {
            self.state.store(WATCHING, Ordering::SeqCst);
        }
    }

    /// The control thread ends: sleeps look after themselves from now on.
    pub(crate) fn end(&self) {
        self.state.store(ENDED, Ordering::SeqCst);
        self.watched().iter().filter_map(|w| w.attention.upgrade()).for_each(|a| a.rouse());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_end_when_nobody_sleeps_and_come_back() {
        let watchdog = Watchdog::new().unwrap();
        let attention = Attention::new(&watchdog).unwrap();
        assert!(watchdog.period().is_none());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                attention.arm();
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
        attention.arm();
        assert!(!attention.sleep(u64::MAX), "without ticks it wakes by itself");
    }

    /// Sleeps until somebody ends it.
    fn sleep(attention: &Attention) -> bool {
        attention.arm();
        attention.sleep(u64::MAX)
    }

    #[test]
    fn ticks_slow_down_for_who_is_roused_in_vain_and_not_for_who_is_rung() {
        let watchdog = Watchdog::new().unwrap();
        let attention = Attention::new(&watchdog).unwrap();
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
