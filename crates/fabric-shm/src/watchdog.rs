//! Bounds the sleeps of domains whose doorbells were tampered with, without a kernel timer for each sleep: the
//! control thread ticks while any domain sleeps, and rouses those that have slept through a whole tick.

use crate::doorbell::Attention;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Between two ticks, in nanoseconds: a sleep lasts two of them at most.
pub(crate) const TICK: u64 = 10_000_000;

/// Nobody has slept lately: no ticks.
const RESTING: u32 = 0;
/// Ticks come.
const WATCHING: u32 = 1;
/// There will be no tick any more.
const ENDED: u32 = 2;

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

    /// A domain that has counted its sleep is about to begin it; whether it will be roused in time. Makes a system
    /// call only if nobody has slept for a tick.
    #[inline]
    pub(crate) fn guard(&self) -> bool {
        self.state.load(Ordering::SeqCst) == WATCHING || self.start()
    }

    #[cold]
    fn start(&self) -> bool {
        match self.state.compare_exchange(RESTING, WATCHING, Ordering::SeqCst, Ordering::SeqCst) {
            Ok(_) => self.call(),
            Err(state) => state == WATCHING,
        }
    }

    /// Whether ticks are wanted.
    pub(crate) fn is_watching(&self) -> bool {
        self.state.load(Ordering::SeqCst) == WATCHING
    }

    /// Rouses who has slept since the last tick; the control thread's, every [`TICK`].
    pub(crate) fn tick(&self) {
        let mut watched = self.watched();
        let mut slept = false;
        watched.retain_mut(|watched| {
            let Some(attention) = watched.attention.upgrade() else { return false };
            let sleeps = attention.sleeps();
            if sleeps == watched.seen && attention.is_asleep() {
                attention.rouse();
            }
            slept |= sleeps != watched.seen || attention.is_asleep();
            watched.seen = sleeps;
            true
        });
        if !slept {
            self.rest(&watched);
        }
    }

    fn rest(&self, watched: &[Watched]) {
        self.state.store(RESTING, Ordering::SeqCst);
        // Whoever counted a sleep before that store took the ticks for granted; whoever did after calls again.
        let late = |w: &Watched| w.attention.upgrade().is_some_and(|a| a.sleeps() != w.seen);
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
        assert!(!watchdog.is_watching());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                attention.arm();
                assert!(!attention.sleep(u64::MAX), "nobody has rung");
            });
            while !attention.is_asleep() || !watchdog.is_watching() {
                std::thread::yield_now();
            }
            watchdog.tick();
            assert!(attention.is_asleep(), "it has only just fallen asleep");
            watchdog.tick();
        });
        watchdog.tick();
        assert!(watchdog.is_watching(), "the sleep has ended since the tick before");
        watchdog.tick();
        assert!(!watchdog.is_watching(), "nobody has slept since the tick before");
        assert!(watchdog.guard() && watchdog.is_watching());
        watchdog.end();
        assert!(!watchdog.guard());
        attention.arm();
        assert!(!attention.sleep(u64::MAX), "without ticks it wakes by itself");
    }
}
