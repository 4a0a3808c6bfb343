//! The rule by which a busy wait on a real machine gives its core to other threads.
//!
//! A thread with a core of its own yields rarely: a yield without another runnable thread returns at once. A
//! yield that returns late shows that another thread has run, so threads compete for this core. A thread that
//! can be woken then sleeps after few polls, which also makes the scheduler run it soon after a wake-up. A
//! thread that cannot be woken yields after few polls if the others wait for messages too. If another thread
//! has computed for a whole time slice, a yield costs that much, so the thread yields as rarely as possible.

use crate::{Crowding, Host, Nanos, RealHost};
use std::sync::OnceLock;

/// The number of empty busy waits before the first yield, and between later ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Patience {
    before: u32,
    between: u32,
}

/// A core of its own: about 5 us, much longer than a peer on a core of its own takes, and much less than an
/// adaptive wait spins: such a wait would else never learn that its peer waits for its core.
const ALONE: Patience = Patience { before: 128, between: 128 };
/// The others wait for messages too: the peer most likely waits for this core, and cannot answer earlier.
const AMONG_WAITING: Patience = Patience { before: 16, between: 2 };
/// Another thread computes.
const AMONG_COMPUTING: Patience = Patience { before: 4096, between: 256 };

/// A yield of this time, in nanoseconds, has run a thread that computes: most of a scheduler's time slice. Ten
/// threads that wait for messages, and answer some at each turn, return the core after a tenth of it.
const COMPUTED: Nanos = 2_000_000;
/// Bounds of the number of sleeps for which a late yield counts. It doubles each time that the next trial is
/// late too, because a trial can cost a time slice.
const LEAST_WEIGHT: u32 = 4;
const MOST_WEIGHT: u32 = 4096;

/// Counts empty busy waits, and yields the core.
#[derive(Debug)]
pub struct Idle {
    empty: u32,
    patience: Patience,
    /// Above 0: other threads compete for the core, for this number of sleeps to come.
    crowded_for: u32,
    /// The number for the next late yield.
    weight: u32,
    /// A yield that took at most this many nanoseconds has run no other thread.
    at_once: Nanos,
}

/// Returns the longest duration of a yield that runs no other thread: two system calls, and some spare.
fn at_once() -> Nanos {
    static AT_ONCE: OnceLock<Nanos> = OnceLock::new();
    *AT_ONCE.get_or_init(|| {
        let shortest = (0..16).map(|_| {
            let begin = RealHost.now();
            // Always a system call, and does nothing.
            let _ = rustix::process::getpid();
            RealHost.now() - begin
        });
        2 * shortest.min().unwrap_or(0) + 300
    })
}

impl Default for Idle {
    fn default() -> Self {
        Idle::with(at_once())
    }
}

impl Idle {
    fn with(at_once: Nanos) -> Self {
        Idle { empty: 0, patience: ALONE, crowded_for: 0, weight: LEAST_WEIGHT, at_once }
    }

    /// Creates a rule that never takes other threads into account.
    pub fn steadfast() -> Self {
        Idle::with(Nanos::MAX)
    }

    /// Returns whether the rule takes other threads into account.
    pub fn gives_way(&self) -> bool {
        self.at_once != Nanos::MAX
    }

    /// Restarts the count, after a poll that found work.
    #[inline]
    pub fn reset(&mut self) {
        self.empty = 0;
    }

    /// Counts one more empty busy wait, and yields the core if that is due.
    #[inline]
    pub fn wait(&mut self) {
        if self.is_long() {
            self.yield_core();
        }
    }

    /// Returns how other threads compete for this thread's core.
    #[inline]
    pub fn crowding(&self) -> Crowding {
        match (self.is_crowded(), self.patience == AMONG_COMPUTING) {
            (false, _) => Crowding::Alone,
            (true, false) => Crowding::Waiting,
            (true, true) => Crowding::Computing,
        }
    }

    fn is_crowded(&self) -> bool {
        self.crowded_for > 0
    }

    /// Counts a sleep, after which a long wait may try again whether the core is free.
    #[inline]
    pub fn slept(&mut self) {
        if self.crowded_for > 0 {
            self.crowded_for -= 1;
            self.settle(self.patience);
        }
    }

    #[inline]
    fn is_long(&mut self) -> bool {
        self.empty += 1;
        if self.empty < self.patience.before {
            return false;
        }
        self.empty = self.patience.before - self.patience.between;
        true
    }

    #[cold]
    fn yield_core(&mut self) {
        let begin = RealHost.now();
        rustix::thread::sched_yield();
        self.yielded(RealHost.now() - begin);
    }

    /// Learns from the duration of a yield.
    fn yielded(&mut self, took: Nanos) {
        if took <= self.at_once {
            if self.crowded_for == 0 {
                self.weight = (self.weight / 2).max(LEAST_WEIGHT);
            }
            self.crowded_for /= 2;
            return self.settle(self.patience);
        }
        if self.crowded_for == 0 {
            self.weight = (self.weight * 2).min(MOST_WEIGHT);
        }
        self.crowded_for = self.weight;
        self.settle(if took >= COMPUTED { AMONG_COMPUTING } else { AMONG_WAITING });
    }

    /// Sets the patience among other threads, or [`ALONE`] without them.
    fn settle(&mut self, among: Patience) {
        let patience = if self.is_crowded() { among } else { ALONE };
        if patience != self.patience {
            self.patience = patience;
            self.empty = patience.before - patience.between;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUICK: Nanos = 1_000;

    fn next_yield(idle: &mut Idle) -> Option<u32> {
        (1..=2 * ALONE.before).find(|_| idle.is_long())
    }

    #[test]
    fn a_thread_with_a_core_of_its_own_yields_after_many_empty_waits() {
        let mut idle = Idle::with(QUICK);
        assert_eq!(next_yield(&mut idle), Some(ALONE.before));
        for _ in 0..10 {
            idle.yielded(400);
            assert_eq!(next_yield(&mut idle), Some(ALONE.between));
        }
        assert!(!idle.is_crowded());
        idle.reset();
        assert_eq!(next_yield(&mut idle), Some(ALONE.before));
    }

    #[test]
    fn a_late_yield_makes_the_next_ones_frequent_until_some_return_at_once() {
        let mut idle = Idle::with(QUICK);
        idle.yielded(400);
        idle.yielded(3_000);
        assert_eq!(idle.crowding(), Crowding::Waiting);
        assert_eq!(next_yield(&mut idle), Some(AMONG_WAITING.between));
        idle.reset();
        assert_eq!(next_yield(&mut idle), Some(AMONG_WAITING.before));
        let quick = (1..100).find(|_| {
            idle.yielded(400);
            !idle.is_crowded()
        });
        assert!(quick <= Some(8), "{quick:?}");
        assert_eq!(next_yield(&mut idle), Some(ALONE.between));
    }

    #[test]
    fn yields_to_threads_that_compute_are_rare() {
        let mut idle = Idle::with(QUICK);
        idle.yielded(3_000_000);
        assert_eq!(idle.crowding(), Crowding::Computing);
        idle.reset();
        assert_eq!((1..5000).find(|_| idle.is_long()), Some(AMONG_COMPUTING.before));
    }

    /// Sleeps while the core is crowded until the next trial; returns their number.
    fn sleeps(idle: &mut Idle) -> u32 {
        (1..)
            .find(|_| {
                idle.slept();
                !idle.is_crowded()
            })
            .unwrap()
    }

    #[test]
    fn trials_become_rare_while_they_fail_and_frequent_again_when_they_succeed() {
        let mut idle = Idle::with(QUICK);
        let mut before = 0;
        for _ in 0..20 {
            idle.yielded(50_000);
            let sleeps = sleeps(&mut idle);
            assert!(sleeps > before || sleeps == MOST_WEIGHT, "{sleeps} after {before}");
            before = sleeps;
        }
        assert_eq!(before, MOST_WEIGHT);
        (0..20).for_each(|_| idle.yielded(QUICK));
        idle.yielded(50_000);
        assert_eq!(sleeps(&mut idle), 2 * LEAST_WEIGHT);
    }

    #[test]
    fn a_steadfast_thread_sees_no_others() {
        let mut idle = Idle::steadfast();
        (0..100).for_each(|_| idle.yielded(50_000_000));
        assert!(!idle.is_crowded());
    }
}
