//! How an idle thread waits: a state machine for the completion axis of a plan.

use crate::plan::CompletionMode;
use dunlin_fabric::{Crowding, Nanos, WaitMode};

/// Polls between two reads of the clock while spinning.
const CLOCK_EVERY: u32 = 256;

/// Polls between two looks at the clock of an adaptive wait and at the threads that compete for the core. If
/// another thread computes, the thread sleeps then: before the domain would yield the core for a time slice.
const LOOK_AROUND: u32 = 32;
/// Polls without a result after which a thread sleeps if the others wait for messages too. The domain has yielded
/// the core some 2000 times by then: a thread that takes its turn among many finds work far earlier, and a turn
/// costs a tenth of a sleep, with its barrier on all processors and its wake-up.
const AMONG_WAITING: u32 = 4096;

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

    /// Returns whether enough polls found nothing, so that a clock read adds nothing to a call's time.
    pub(crate) fn has_looked_long(&self) -> bool {
        self.looks >= CLOCK_EVERY
    }

    /// Whether to read the clock: at the first poll, where the latency of any answer hides the cost, then
    /// every [`CLOCK_EVERY`] polls, and before every sleep.
    #[inline]
    pub(crate) fn clock_is_due(&self) -> bool {
        self.mode == CompletionMode::Event || self.spun || self.looks.is_multiple_of(CLOCK_EVERY)
    }

    /// Returns how to wait now, and the latest time to wait until. `crowding` says how threads compete
    /// for the core. Reads the clock only if the result depends on it.
    #[inline]
    pub(crate) fn next(
        &mut self,
        sleep: Sleep,
        crowding: impl Fn() -> Crowding,
        now: impl Fn() -> Nanos,
    ) -> (WaitMode, Nanos) {
        match self.mode {
            CompletionMode::Event => (sleep.mode, Nanos::MAX),
            // A thread that was woken without work goes back to sleep without spinning.
            CompletionMode::Busy | CompletionMode::Adaptive if self.spun => (sleep.mode, Nanos::MAX),
            CompletionMode::Busy => {
                self.looks = self.looks.wrapping_add(1);
                if sleep.gives_way && self.looks.is_multiple_of(LOOK_AROUND) {
                    self.spun = self.gives_way(crowding());
                }
                if self.spun {
                    return (sleep.mode, Nanos::MAX);
                }
                (WaitMode::Busy, Nanos::MAX)
            }
            CompletionMode::Adaptive => {
                if self.looks == 0 {
                    self.spin_until = now() + self.spin;
                }
                self.looks = self.looks.saturating_add(1);
                // Read the clock every 32 polls: a simulated wait ends at `until`, not after a number of
                // polls. A thread among others that wait does not spin: it yields the core.
                if self.looks.is_multiple_of(LOOK_AROUND) {
                    let crowding = crowding();
                    let alone = crowding == Crowding::Alone;
                    self.spun = if alone { now() >= self.spin_until } else { self.gives_way(crowding) };
                    if self.spun {
                        return (sleep.mode, Nanos::MAX);
                    }
                }
                (WaitMode::Busy, self.spin_until)
            }
        }
    }

    /// Returns whether the thread should sleep now because others need its core. Called every [`LOOK_AROUND`]
    /// polls.
    fn gives_way(&self, crowding: Crowding) -> bool {
        match crowding {
            Crowding::Alone => false,
            Crowding::Waiting => self.looks.is_multiple_of(AMONG_WAITING),
            Crowding::Computing => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLEEP: Sleep = Sleep { mode: WaitMode::Write, gives_way: true };

    /// Returns the number of polls until a waiter sleeps, at most `most`.
    fn polls_until_asleep(waiter: &mut Waiter, sleep: Sleep, crowding: Crowding, most: u32) -> Option<u32> {
        (1..=most).find(|poll| waiter.next(sleep, || crowding, || u64::from(*poll) * 10).0.sleeps())
    }

    #[test]
    fn a_busy_wait_sleeps_only_where_threads_compete_and_writes_wake() {
        let mut waiter = Waiter::new(CompletionMode::Busy, 20_000);
        assert_eq!(polls_until_asleep(&mut waiter, SLEEP, Crowding::Alone, 100_000), None);
        waiter.reset();
        assert_eq!(polls_until_asleep(&mut waiter, SLEEP, Crowding::Computing, 100_000), Some(LOOK_AROUND));
        assert_eq!(polls_until_asleep(&mut waiter, SLEEP, Crowding::Alone, 1), Some(1), "woken without work");
        waiter.reset();
        assert_eq!(polls_until_asleep(&mut waiter, SLEEP, Crowding::Waiting, 100_000), Some(AMONG_WAITING));
        waiter.reset();
        let never = Sleep { gives_way: false, ..SLEEP };
        assert_eq!(polls_until_asleep(&mut waiter, never, Crowding::Computing, 100_000), None);
    }

    #[test]
    fn an_adaptive_wait_spins_for_its_time_and_less_where_threads_compete() {
        let mut waiter = Waiter::new(CompletionMode::Adaptive, 20_000);
        assert_eq!(polls_until_asleep(&mut waiter, SLEEP, Crowding::Alone, 100_000), Some(2016));
        waiter.reset();
        assert_eq!(polls_until_asleep(&mut waiter, SLEEP, Crowding::Computing, 100_000), Some(LOOK_AROUND));
    }

    #[test]
    fn an_event_wait_never_polls_twice() {
        let mut waiter = Waiter::new(CompletionMode::Event, 20_000);
        assert_eq!(polls_until_asleep(&mut waiter, SLEEP, Crowding::Alone, 1), Some(1));
    }
}
