//! How an idle thread waits: a state machine for the completion axis of a plan.

use crate::plan::CompletionMode;
use dunlin_fabric::{Nanos, WaitMode};

/// Polls between two reads of the clock while spinning.
const CLOCK_EVERY: u32 = 256;

/// Polls without a result after which a thread on a crowded core sleeps. The domain has yielded the core
/// several times by then.
const CROWDED_LOOKS: u32 = 64;

/// How a thread sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sleep {
    /// The mode of an event wait: [`WaitMode::Write`] if some messages are found by polling memory.
    pub(crate) mode: WaitMode,
    /// Whether a busy wait may sleep when threads compete for the core.
    pub(crate) gives_way: bool,
}

/// The waiting state of one thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiter {
    mode: CompletionMode,
    /// How long an adaptive wait spins before it sleeps, in nanoseconds.
    spin: Nanos,
    looks: u32,
    spin_until: Nanos,
    /// The wait has used up its time to spin, or its core is crowded.
    spun: bool,
}

impl Waiter {
    pub(crate) const fn new(mode: CompletionMode, spin: Nanos) -> Self {
        Waiter { mode, spin, looks: 0, spin_until: 0, spun: false }
    }

    pub(crate) fn set_mode(&mut self, mode: CompletionMode) {
        if mode != self.mode {
            *self = Waiter::new(mode, self.spin);
        }
    }

    /// Restarts the wait after work was found.
    #[inline]
    pub(crate) fn reset(&mut self) {
        self.looks = 0;
        self.spun = false;
    }

    /// Whether to read the clock: at the first poll, where the latency of any answer hides the cost, then
    /// every [`CLOCK_EVERY`] polls, and before every sleep.
    #[inline]
    pub(crate) fn clock_is_due(&self) -> bool {
        self.mode == CompletionMode::Event || self.spun || self.looks.is_multiple_of(CLOCK_EVERY)
    }

    /// Returns how to wait now, and the latest time to wait until. `crowded` says whether threads compete for
    /// the core. Reads the clock only if the result depends on it.
    #[inline]
    pub(crate) fn next(
        &mut self,
        sleep: Sleep,
        crowded: impl Fn() -> bool,
        now: impl Fn() -> Nanos,
    ) -> (WaitMode, Nanos) {
        match self.mode {
            CompletionMode::Event => (sleep.mode, Nanos::MAX),
            // A thread that was woken without work goes back to sleep without spinning.
            CompletionMode::Busy | CompletionMode::Adaptive if self.spun => (sleep.mode, Nanos::MAX),
            CompletionMode::Busy => {
                self.looks = self.looks.wrapping_add(1);
                if sleep.gives_way && self.gives_way(crowded) {
                    return (sleep.mode, Nanos::MAX);
                }
                (WaitMode::Busy, Nanos::MAX)
            }
            CompletionMode::Adaptive => {
                if self.looks == 0 {
                    self.spin_until = now() + self.spin;
                }
                self.looks = self.looks.saturating_add(1);
                if self.gives_way(crowded) {
                    return (sleep.mode, Nanos::MAX);
                }
                // Read the clock every 32 polls: a simulated wait ends at `until`, not after a number of
                // polls.
                if self.looks.is_multiple_of(32) && now() >= self.spin_until {
                    self.spun = true;
                    return (sleep.mode, Nanos::MAX);
                }
                (WaitMode::Busy, self.spin_until)
            }
        }
    }

    /// Returns whether the thread should sleep now because others need its core.
    #[inline]
    fn gives_way(&mut self, crowded: impl Fn() -> bool) -> bool {
        self.spun = self.looks.is_multiple_of(CROWDED_LOOKS) && crowded();
        self.spun
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLEEP: Sleep = Sleep { mode: WaitMode::Write, gives_way: true };

    /// Returns the number of polls until a waiter sleeps, at most `most`.
    fn polls_until_asleep(waiter: &mut Waiter, sleep: Sleep, crowded: bool, most: u32) -> Option<u32> {
        (1..=most).find(|poll| waiter.next(sleep, || crowded, || u64::from(*poll) * 10).0.sleeps())
    }

    #[test]
    fn a_busy_wait_sleeps_only_where_threads_compete_and_writes_wake() {
        let mut waiter = Waiter::new(CompletionMode::Busy, 20_000);
        assert_eq!(polls_until_asleep(&mut waiter, SLEEP, false, 100_000), None);
        waiter.reset();
        assert_eq!(polls_until_asleep(&mut waiter, SLEEP, true, 100_000), Some(CROWDED_LOOKS));
        assert_eq!(polls_until_asleep(&mut waiter, SLEEP, false, 1), Some(1), "woken without work");
        waiter.reset();
        let never = Sleep { gives_way: false, ..SLEEP };
        assert_eq!(polls_until_asleep(&mut waiter, never, true, 100_000), None);
    }

    #[test]
    fn an_adaptive_wait_spins_for_its_time_and_less_where_threads_compete() {
        let mut waiter = Waiter::new(CompletionMode::Adaptive, 20_000);
        assert_eq!(polls_until_asleep(&mut waiter, SLEEP, false, 100_000), Some(2016));
        waiter.reset();
        assert_eq!(polls_until_asleep(&mut waiter, SLEEP, true, 100_000), Some(CROWDED_LOOKS));
    }

    #[test]
    fn an_event_wait_never_polls_twice() {
        let mut waiter = Waiter::new(CompletionMode::Event, 20_000);
        assert_eq!(polls_until_asleep(&mut waiter, SLEEP, false, 1), Some(1));
    }
}
