//! SW-Pri (section 6.2): the three policies by which a sender slows operations of low priority down.

use super::{Priority, RoundTrips, cost};

/// The operations of high priority under way from which their load is high. The paper has no number; LITE's sources
/// have this one.
pub const HIGH_LOAD: u32 = 2;
/// The pause of an operation of low priority while the load of high priority is high, in nanoseconds. LITE's sources
/// draw 96 to 128 us; this is the mean.
pub const HEAVY_PAUSE: u64 = 112_000;
/// The pause while round trips of high priority have got longer, in nanoseconds: the mean of LITE's 64 to 128 us.
pub const SLOW_PAUSE: u64 = 96_000;

/// The pauses of operations of low priority:
///
/// 1. [`HEAVY_PAUSE`] while at least [`HIGH_LOAD`] operations of high priority are under way at this node;
/// 2. none while no operation of high priority is under way, or while it is a single one;
/// 3. but [`SLOW_PAUSE`] if one is, and round trips of high priority [have risen](RoundTrips::have_risen).
#[derive(Clone, Debug, Default)]
pub struct Pacing {
    high: u32,
    trips: RoundTrips,
}

impl Pacing {
    /// An operation begins. Returns its pause in nanoseconds.
    pub fn begin(&mut self, priority: Priority) -> u64 {
        match priority {
            Priority::High => {
                self.high += 1;
                0
            }
            Priority::Low if self.high >= HIGH_LOAD => HEAVY_PAUSE,
            Priority::Low if self.high > 0 && self.trips.have_risen() => SLOW_PAUSE,
            Priority::Low => 0,
        }
    }

    /// An operation that began has ended, whether it succeeded or not.
    pub fn end(&mut self, priority: Priority) {
        if priority == Priority::High {
            self.high = self.high.saturating_sub(1);
        }
    }

    /// Notes that an operation of high priority on `bytes` bytes took `time` nanoseconds from its first work request to
    /// its last completion, at the time `now`.
    pub fn note(&mut self, now: u64, bytes: u64, time: u64) {
        self.trips.note(now, cost(bytes), time);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_three_policies() {
        let mut pacing = Pacing::default();
        assert_eq!(pacing.begin(Priority::Low), 0);
        assert_eq!(pacing.begin(Priority::High), 0);
        assert_eq!(pacing.begin(Priority::Low), 0);
        assert_eq!(pacing.begin(Priority::High), 0);
        assert_eq!(pacing.begin(Priority::Low), HEAVY_PAUSE);
        pacing.end(Priority::Low);
        pacing.end(Priority::High);
        assert_eq!(pacing.begin(Priority::Low), 0);
        pacing.note(1, 4096, 3000);
        (0..40).for_each(|at| pacing.note(2 + at, 4096, 9000));
        assert_eq!(pacing.begin(Priority::Low), SLOW_PAUSE);
        pacing.end(Priority::High);
        assert_eq!(pacing.begin(Priority::Low), 0);
    }
}
