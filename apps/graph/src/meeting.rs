//! The meeting of the threads of a member.

use dunlin_fabric::{Host, Nanos, Signal};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A place where the threads of a member meet. The last one that arrives acts for all. After a failure nobody waits.
pub(crate) struct Meeting<H: Host, E> {
    threads: u16,
    state: Mutex<State<E>>,
    changed: H::Signal,
}

struct State<E> {
    arrived: u16,
    round: u64,
    has_failed: bool,
    failure: Option<E>,
}

/// A thread of the member has failed; its error is the member's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ended;

impl<H: Host, E> Meeting<H, E> {
    pub(crate) fn new(host: &H, threads: u16) -> Self {
        let state = State { arrived: 0, round: 0, has_failed: false, failure: None };
        Meeting { threads, state: Mutex::new(state), changed: host.signal() }
    }

    fn state(&self) -> MutexGuard<'_, State<E>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until all threads are here; the last one acts before they go on.
    pub(crate) fn meet(&self, act: impl FnOnce() -> Result<(), E>) -> Result<(), Ended> {
        let round = {
            let mut state = self.state();
            if state.has_failed {
                return Err(Ended);
            }
            state.arrived += 1;
            (state.arrived < self.threads).then_some(state.round)
        };
        let Some(round) = round else {
            if let Err(error) = act() {
                self.fail(Some(error));
                return Err(Ended);
            }
            let mut state = self.state();
            (state.arrived, state.round) = (0, state.round + 1);
            drop(state);
            self.changed.raise();
            return Ok(());
        };
        loop {
            let seen = self.changed.seen();
            {
                let state = self.state();
                if state.has_failed {
                    return Err(Ended);
                }
                if state.round != round {
                    return Ok(());
                }
            }
            self.changed.wait(seen, Nanos::MAX);
        }
    }

    /// Ends the meeting for all threads; the first error counts.
    pub(crate) fn fail(&self, error: Option<E>) {
        let mut state = self.state();
        state.has_failed = true;
        if state.failure.is_none() {
            state.failure = error;
        }
        drop(state);
        self.changed.raise();
    }

    /// Returns how the meeting ended: `None` without a failure, else the error, if a thread gave one.
    pub(crate) fn take_failure(&self) -> Option<Option<E>> {
        let mut state = self.state();
        state.has_failed.then(|| state.failure.take())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dunlin_fabric::RealHost;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn one_thread_acts_and_none_goes_ahead() {
        let meeting = Meeting::<_, ()>::new(&RealHost, 3);
        let acted = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for round in 1..200 {
                        let act = || {
                            acted.fetch_add(1, Ordering::SeqCst);
                            Ok(())
                        };
                        meeting.meet(act).unwrap();
                        assert_eq!(acted.load(Ordering::SeqCst), round);
                        meeting.meet(|| Ok(())).unwrap();
                    }
                });
            }
        });
        assert_eq!(meeting.take_failure(), None);
    }

    #[test]
    fn a_failure_ends_it_for_all() {
        let meeting = Meeting::<_, &str>::new(&RealHost, 2);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| meeting.meet(|| Ok(())));
            meeting.fail(Some("first"));
            meeting.fail(Some("second"));
            assert_eq!(waiting.join().unwrap(), Err(Ended));
        });
        assert_eq!(meeting.meet(|| panic!("nobody acts")), Err(Ended));
        assert_eq!(meeting.take_failure(), Some(Some("first")));
    }
}
