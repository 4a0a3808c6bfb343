//! How long a call waits for a connection.

use crate::error::Cause;
use dunlin_fabric::Nanos;
use std::time::Duration;

/// The longest time that a call may wait for a connection, and the call's end if there is none by then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Patience {
    /// The end of the wait.
    pub(crate) until: Nanos,
    /// The cause with which the call then ends.
    pub(crate) cause: Cause,
    /// The call's deadline; `Nanos::MAX` without one.
    pub(crate) deadline: Nanos,
}

impl Patience {
    /// Returns the patience of a call that begins now, with the settings `wait_for_ready` and `timeout` (0
    /// for none); `None` if the call does not wait. Reads the clock only for a call that waits.
    pub(crate) fn new(
        wait_for_ready: Duration,
        timeout: Nanos,
        now: impl FnOnce() -> Nanos,
    ) -> Option<Patience> {
        if wait_for_ready.is_zero() {
            return None;
        }
        let now = now();
        let ready = now.saturating_add(nanos(wait_for_ready));
        let deadline = if timeout == 0 { Nanos::MAX } else { now.saturating_add(timeout) };
        Some(match deadline < ready {
            true => Patience { until: deadline, cause: Cause::DeadlineExceeded, deadline },
            false => Patience { until: ready, cause: Cause::Disconnected, deadline },
        })
    }

    /// Returns what is left of a call's `timeout` (0 for none), at least 1 ns.
    pub(crate) fn left(&self, timeout: Nanos, now: Nanos) -> Nanos {
        if timeout == 0 { 0 } else { self.deadline.saturating_sub(now).max(1) }
    }
}

/// Converts a duration to nanoseconds; the longest ones saturate.
pub(crate) fn nanos(duration: Duration) -> Nanos {
    Nanos::try_from(duration.as_nanos()).unwrap_or(Nanos::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_ends_with_the_shorter_of_the_two_times() {
        let ready = Duration::from_nanos(100);
        let patience = |ready, timeout| Patience::new(ready, timeout, || 1000);
        assert_eq!(patience(Duration::ZERO, 5), None);
        let short = patience(ready, 30).unwrap();
        assert_eq!((short.until, short.cause), (1030, Cause::DeadlineExceeded));
        assert_eq!((short.left(30, 1010), short.left(30, 2000)), (20, 1));
        let long = patience(ready, 100).unwrap();
        assert_eq!((long.until, long.cause, long.left(100, 1100)), (1100, Cause::Disconnected, 1));
        let without = patience(ready, 0).unwrap();
        assert_eq!((without.until, without.cause, without.left(0, 5000)), (1100, Cause::Disconnected, 0));
        assert_eq!(patience(Duration::MAX, 0).unwrap().until, Nanos::MAX);
    }
}
