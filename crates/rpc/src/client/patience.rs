//! How long a call waits for a connection.

use super::within::Time;
use crate::error::Cause;
use dunlin_fabric::{Nanos, nanos};
use std::time::Duration;

/// The longest time that a call may wait for a connection, and the call's end without a connection by then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Patience {
    /// The end of the wait.
    pub(crate) until: Nanos,
    /// The cause with which the call then ends.
    pub(crate) cause: Cause,
}

impl Patience {
    /// Returns the patience of a call that begins at `now` and may take `time`, with the setting
    /// `wait_for_ready`; `None` if the call does not wait.
    pub(crate) fn new(wait_for_ready: Duration, time: Time, now: Nanos) -> Option<Patience> {
        if wait_for_ready.is_zero() {
            return None;
        }
        let ready = now.saturating_add(nanos(wait_for_ready));
        let deadline = time.ends(now);
        Some(match deadline < ready {
            true => Patience { until: deadline, cause: Cause::DeadlineExceeded },
            false => Patience { until: ready, cause: Cause::Disconnected },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_ends_with_the_shorter_of_the_two_times() {
        let ready = Duration::from_nanos(100);
        let time = |nanos| Time { nanos, is_own: false };
        let patience = |ready, nanos| Patience::new(ready, time(nanos), 1000);
        assert_eq!(patience(Duration::ZERO, 5), None);
        let short = patience(ready, 30).unwrap();
        assert_eq!((short.until, short.cause), (1030, Cause::DeadlineExceeded));
        let own = Patience::new(ready, Time { nanos: 30, is_own: true }, 1000);
        assert_eq!(own, Some(short));
        let left = |nanos, now| time(nanos).left(time(nanos).ends(1000), now);
        assert_eq!((left(30, 1010).nanos, left(30, 1010).is_over()), (20, false));
        assert!(left(30, 2000).is_over() && !left(0, 5000).is_over());
        let long = patience(ready, 100).unwrap();
        assert_eq!((long.until, long.cause), (1100, Cause::Disconnected));
        let without = patience(ready, 0).unwrap();
        assert_eq!((without.until, without.cause), (1100, Cause::Disconnected));
        assert_eq!(patience(Duration::MAX, 0).unwrap().until, Nanos::MAX);
    }
}
