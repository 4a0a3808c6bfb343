//! Limits of waiting for machines that stand still or are overloaded: a virtual machine is stopped for a minute now and
//! then, and its clock goes on; and where processes get a hundredth of a core, nothing ends within a minute.

use std::time::{Duration, Instant};

/// The most that one look counts, whenever the one before it was: a waiter that looks more rarely gets too little of a
/// core, as the others do.
const LONGEST: Duration = Duration::from_millis(25);

/// A limit of waiting that runs while the waiter looks: a stop of the machine does not use it up.
pub struct Patience {
    left: Duration,
    last: Instant,
}

impl Patience {
    pub fn new(time: Duration) -> Patience {
        Patience { left: time, last: Instant::now() }
    }

    /// Returns whether time is left. Waiters look at least every 20 ms.
    pub fn look(&mut self) -> bool {
        self.look_at(Instant::now())
    }

    fn look_at(&mut self, now: Instant) -> bool {
        let passed = now.saturating_duration_since(self.last).min(LONGEST);
        (self.last, self.left) = (now, self.left.saturating_sub(passed));
        !self.left.is_zero()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stop_of_the_machine_uses_up_one_look() {
        let mut patience = Patience::new(Duration::from_secs(1));
        let stopped = patience.last + Duration::from_secs(3600);
        assert!(patience.look_at(stopped));
        assert_eq!(patience.left, Duration::from_millis(975));
        for look in 1..39 {
            assert!(patience.look_at(stopped + look * Duration::from_millis(25)), "{look}");
        }
        assert!(!patience.look_at(stopped + Duration::from_millis(975)));
    }
}
