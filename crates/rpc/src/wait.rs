//! How an idle thread waits: a state machine for the completion axis of a plan.

use crate::plan::CompletionMode;
use dunlin_fabric::{Nanos, WaitMode};

/// Polls between two reads of the clock while spinning.
const CLOCK_EVERY: u32 = 256;

/// The waiting state of one thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiter {
    mode: CompletionMode,
    /// How long an adaptive wait spins before it sleeps, in nanoseconds.
    spin: Nanos,
    looks: u32,
    spin_until: Nanos,
    /// An adaptive wait has used up its spin time.
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

    /// Returns whether so many polls found nothing that a clock read adds nothing to a call's time.
    pub(crate) fn has_looked_long(&self) -> bool {
        self.looks >= CLOCK_EVERY
    }

    /// Whether to read the clock: at the first poll, where the latency of any answer hides the cost, then
    /// every [`CLOCK_EVERY`] polls, and before every sleep.
    #[inline]
    pub(crate) fn clock_is_due(&self) -> bool {
        self.mode == CompletionMode::Event || self.spun || self.looks.is_multiple_of(CLOCK_EVERY)
    }

    /// Returns how to wait now, and the latest time to wait until. Reads the clock only if the result depends
    /// on it.
    #[inline]
    pub(crate) fn next(&mut self, now: impl Fn() -> Nanos) -> (WaitMode, Nanos) {
        match self.mode {
            CompletionMode::Event => (WaitMode::Event, Nanos::MAX),
            CompletionMode::Busy => {
                self.looks = self.looks.wrapping_add(1);
                (WaitMode::Busy, Nanos::MAX)
            }
            // A thread that was woken without work goes back to sleep without spinning.
            CompletionMode::Adaptive if self.spun => (WaitMode::Event, Nanos::MAX),
            CompletionMode::Adaptive => {
                if self.looks == 0 {
                    self.spin_until = now() + self.spin;
                }
                self.looks = self.looks.saturating_add(1);
                // Read the clock every 32 polls: a simulated wait ends at `until`, not after a number of
                // polls.
                if self.looks.is_multiple_of(32) && now() >= self.spin_until {
                    self.spun = true;
                    return (WaitMode::Event, Nanos::MAX);
                }
                (WaitMode::Busy, self.spin_until)
            }
        }
    }
}
