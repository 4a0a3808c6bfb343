//! How a thread that found nothing waits: the completion axis of a plan, as a small state machine.

use crate::plan::CompletionMode;
use dunlin_fabric::{Nanos, WaitMode};

/// Looks between two looks at the clock while spinning.
const CLOCK_EVERY: u32 = 256;

/// The state of one thread's waiting.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiter {
    mode: CompletionMode,
    /// How long an adaptive wait spins before it sleeps.
    spin: Nanos,
    looks: u32,
    spin_until: Nanos,
    /// The spinning of an adaptive wait is over.
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

    /// Something was found: the next wait starts anew.
    #[inline]
    pub(crate) fn reset(&mut self) {
        self.looks = 0;
        self.spun = false;
    }

    /// Whether it is time to look at the clock: with the first look, whose cost hides in the time that any answer
    /// takes, and then now and then; before every sleep.
    #[inline]
    pub(crate) fn clock_is_due(&self) -> bool {
        self.mode == CompletionMode::Event || self.spun || self.looks.is_multiple_of(CLOCK_EVERY)
    }

    /// How to wait now, and until when at most. The clock is looked at only where it counts.
    #[inline]
    pub(crate) fn next(&mut self, now: impl Fn() -> Nanos) -> (WaitMode, Nanos) {
        match self.mode {
            CompletionMode::Event => (WaitMode::Event, Nanos::MAX),
            CompletionMode::Busy => {
                self.looks = self.looks.wrapping_add(1);
                (WaitMode::Busy, Nanos::MAX)
            }
            // Who sleeps and is woken for nothing goes on sleeping.
            CompletionMode::Adaptive if self.spun => (WaitMode::Event, Nanos::MAX),
            CompletionMode::Adaptive => {
                if self.looks == 0 {
                    self.spin_until = now() + self.spin;
                }
                self.looks = self.looks.saturating_add(1);
                // Every few looks: a simulated wait ends at `until` and not after so many looks.
                if self.looks.is_multiple_of(32) && now() >= self.spin_until {
                    self.spun = true;
                    return (WaitMode::Event, Nanos::MAX);
                }
                (WaitMode::Busy, self.spin_until)
            }
        }
    }
}
