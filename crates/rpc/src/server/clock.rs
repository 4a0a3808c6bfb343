//! A worker's knowledge of the time, with few readings of the clock.
//!
//! A call has waited if a handler ran between its arrival and its own dispatch. The worker therefore reads
//! the clock after handlers and not before calls: after each handler that takes long, after several that
//! have proved short, and before a call with little time left. Between two readings it knows a lower bound of the
//! time, which is all that the check of a deadline needs. While nothing runs, that bound stays close to the time by
//! readings in idle polls.

use crate::service::NEVER;
use dunlin_fabric::{Host, Nanos};

/// The rounds of polls for which a message may have waited for a RECV.
const ROUNDS: usize = 8;
const _: () = assert!(ROUNDS.is_power_of_two(), "the numbers of rounds wrap");
/// The estimated time of handlers, in nanoseconds, after which the clock is read.
const READ_AFTER: u32 = 20_000;
/// The most handlers between two readings.
const MOST_UNREAD: u32 = 16;
/// The longest time of a short handler, in nanoseconds, with the time of the polls around it.
const SHORT: u32 = 10_000;
/// The time left, in nanoseconds, below which a call is checked by a reading that is newer than all handlers: a single
/// long run of a handler that is short as a rule would make it late.
const CLOSE: Nanos = 1_000_000;
/// The estimate for a handler that is not known to be short. It falls below [`READ_AFTER`] when the handler was
/// short 15 times in a row.
const UNKNOWN: u32 = 64 * READ_AFTER;

/// The clock of a worker.
#[derive(Debug)]
pub(crate) struct WorkerClock {
    /// The latest reading.
    last: Nanos,
    /// The estimated time of the handlers that have run since then, in nanoseconds.
    unread: u32,
    /// The number of these handlers, and the function of the last one.
    ran: u32,
    function: u16,
    /// Whether any call had a deadline. Without one the clock is not read.
    needed: bool,
    /// Messages may have been left where the last round looked, so the next one learns nothing about their
    /// arrival.
    crowded: bool,
    /// The readings known at the beginning of the last rounds of polls, by the number of the round.
    rounds: [Nanos; ROUNDS],
    /// The number of this round.
    round: usize,
    /// For each function the estimated time of its handler in nanoseconds.
    estimates: Box<[u32]>,
}

impl WorkerClock {
    /// Creates the clock of a worker that serves functions below `functions`.
    pub(crate) fn new(functions: usize) -> Self {
        WorkerClock {
            last: 0,
            unread: READ_AFTER,
            ran: 0,
            function: 0,
            needed: false,
            crowded: false,
            rounds: [0; ROUNDS],
            round: 0,
            estimates: vec![UNKNOWN; functions].into(),
        }
    }

    /// Returns the latest reading: a lower bound of the time.
    #[inline]
    pub(crate) fn last(&self) -> Nanos {
        self.last
    }

    /// Returns a lower bound of the arrival of messages that this round finds where the last one found none.
    ///
    /// A message that needs a RECV may have waited for it on the network: RECVs are posted again at the
    /// beginning of a round, and several messages may have to wait in turn.
    #[inline]
    pub(crate) fn before(&self, needs_receive: bool) -> Nanos {
        let earlier = if needs_receive { ROUNDS - 1 } else { 1 };
        self.rounds[self.round.wrapping_sub(earlier) % ROUNDS]
    }

    /// Begins a round of polls.
    #[inline]
    pub(crate) fn begin_round(&mut self) {
        if !std::mem::take(&mut self.crowded) {
            self.round = self.round.wrapping_add(1);
            self.rounds[self.round % ROUNDS] = self.last;
        }
    }

    /// Records that this round has not taken all completions that were there.
    pub(crate) fn is_crowded(&mut self) {
        self.crowded = true;
    }

    /// Records that a call has a deadline.
    #[inline]
    pub(crate) fn need(&mut self) {
        self.needed = true;
    }

    /// Returns whether calls have deadlines.
    #[inline]
    pub(crate) fn is_needed(&self) -> bool {
        self.needed
    }

    /// Records that a handler has run, or that its call was passed on.
    #[inline]
    pub(crate) fn ran(&mut self, function: u16) {
        let estimate = self.estimates.get(function as usize).copied().unwrap_or(UNKNOWN);
        self.unread = self.unread.saturating_add(estimate.max(READ_AFTER / MOST_UNREAD));
        self.ran += 1;
        self.function = function;
    }

    /// Records that time has passed which the clock does not know.
    #[inline]
    pub(crate) fn time_passed(&mut self) {
        self.unread = READ_AFTER;
        // The next reading measures no handler.
        self.ran = 0;
    }

    /// Reads the clock if it may have moved noticeably since the last reading.
    #[inline]
    pub(crate) fn catch_up(&mut self, host: &impl Host) {
        if self.unread >= READ_AFTER {
            self.read(host);
        }
    }

    /// Reads the clock.
    #[inline(never)]
    pub(crate) fn read(&mut self, host: &impl Host) {
        let now = host.now();
        if now < self.last {
            // The clock has jumped back: readings from before would make deadlines too late.
            self.rounds = self.rounds.map(|round| round.min(now));
        }
        let took = u32::try_from(now.saturating_sub(self.last)).unwrap_or(u32::MAX);
        if self.ran > 1 && took > 4 * READ_AFTER {
            // One of them took long, or several did: each is measured again.
            self.estimates.fill(UNKNOWN);
        } else if let Some(estimate) = self.estimates.get_mut(self.function as usize)
            && let Some(each) = took.checked_div(self.ran)
        {
            *estimate = match each {
                SHORT.. => UNKNOWN,
                _ if each >= *estimate => each,
                _ => *estimate - (*estimate - each) / 4,
            };
        }
        self.set(now);
    }

    #[inline]
    fn set(&mut self, now: Nanos) {
        (self.last, self.unread, self.ran) = (now, 0, 0);
    }

    /// Records that the worker has waited until `now`: what it finds next arrived just before.
    #[inline]
    pub(crate) fn woke(&mut self, now: Nanos) {
        self.set(now);
        self.rounds = [now; ROUNDS];
    }

    /// Returns whether a deadline has passed. Reads the clock if handlers have run for long, or if any has run and the
    /// deadline is close.
    #[inline(always)]
    pub(crate) fn is_past(&mut self, host: &impl Host, deadline: Nanos) -> bool {
        if deadline == NEVER {
            return false;
        }
        if self.ran > 0 && deadline < self.last.saturating_add(CLOSE) {
            self.read(host);
        }
        self.catch_up(host);
        deadline <= self.last
    }

    /// Reads the clock, and returns the time.
    pub(super) fn read_now(&mut self, host: &impl Host) -> Nanos {
        self.read(host);
        self.last
    }

    /// Begins to follow the clock closely, for the first call with a deadline. Returns the time.
    #[cold]
    pub(super) fn first_deadline(&mut self, host: &impl Host) -> Nanos {
        self.need();
        self.read_now(host)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dunlin_fabric::host::{RealParker, RealSignal};
    use dunlin_fabric::{Site, Task, Work};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    /// A host whose time the test sets; counts the readings.
    #[derive(Clone, Debug, Default)]
    struct Set(Arc<(AtomicU64, AtomicU64)>);

    impl Set {
        fn pass(&self, time: Nanos) {
            self.0.0.fetch_add(time, Relaxed);
        }

        fn readings(&self) -> u64 {
            self.0.1.load(Relaxed)
        }
    }

    impl Host for Set {
        type Signal = RealSignal;
        type Parker = RealParker;
        fn now(&self) -> Nanos {
            self.0.1.fetch_add(1, Relaxed);
            self.0.0.load(Relaxed)
        }
        fn charge(&self, _: Work, _: u32) {}
        fn checkpoint(&self, _: Site) {}
        fn random(&self) -> u64 {
            0
        }
        fn signal(&self) -> RealSignal {
            RealSignal::default()
        }
        fn parker(&self) -> RealParker {
            RealParker::default()
        }
        fn spawn(&self, _: &str, _: Box<dyn FnOnce() + Send>) -> std::io::Result<Task> {
            Err(std::io::Error::other("no threads"))
        }
        fn sleep(&self, _: Nanos) {}
    }

    /// Handlers of 100 ns, each of whose calls is found alone: one reading for 16 of them.
    #[test]
    fn short_handlers_are_timed_in_groups() {
        let (host, mut clock) = (Set::default(), WorkerClock::new(2));
        let one = |clock: &mut WorkerClock| {
            assert!(!clock.is_past(&host, 1_000_000_000));
            host.pass(100);
            clock.ran(1);
            clock.catch_up(&host);
        };
        (0..64).for_each(|_| one(&mut clock));
        let before = host.readings();
        (0..1600).for_each(|_| one(&mut clock));
        assert_eq!(host.readings() - before, 100);
    }

    /// A call behind a long handler is refused, whether the handler's function was short before or not known.
    #[test]
    fn no_call_begins_late_behind_a_long_handler() {
        let (host, mut clock) = (Set::default(), WorkerClock::new(2));
        host.pass(1000);
        clock.read(&host);
        let deadline = clock.last() + 5_000_000;
        assert!(!clock.is_past(&host, deadline));
        host.pass(50_000_000);
        clock.ran(1);
        assert!(clock.is_past(&host, deadline) && !clock.is_past(&host, NEVER));
        // At most a group of short handlers runs before one that took long by way of exception is noticed.
        for _ in 0..200 {
            host.pass(100);
            clock.ran(1);
            clock.catch_up(&host);
        }
        let deadline = clock.last() + 5_000_000;
        host.pass(50_000_000);
        clock.ran(1);
        let late = (0..100)
            .take_while(|_| {
                let begins = !clock.is_past(&host, deadline);
                clock.ran(1);
                begins
            })
            .count();
        assert!(late < MOST_UNREAD as usize, "{late}");
        host.pass(50_000_000);
        let deadline = clock.last() + 5_000_000;
        clock.ran(1);
        assert!(clock.is_past(&host, deadline), "its function is measured again");
    }

    /// A call with little time left never begins late, however short handlers were before.
    #[test]
    fn no_call_with_little_time_begins_late() {
        let (host, mut clock) = (Set::default(), WorkerClock::new(2));
        for _ in 0..200 {
            host.pass(100);
            clock.ran(1);
            clock.catch_up(&host);
        }
        let deadline = clock.last() + CLOSE / 2;
        host.pass(CLOSE);
        clock.ran(1);
        assert!(clock.is_past(&host, deadline));
    }

    /// The clock jumps by an hour in either direction, at each place in the rounds of polls. From the next reading on
    /// calls behind a long handler are refused, and short handlers are soon timed in groups again.
    #[test]
    fn a_clock_that_jumps_makes_no_call_late_and_is_soon_read_as_rarely_as_before() {
        const HOUR: Nanos = 3_600_000_000_000;
        let (host, mut clock) = (Set::default(), WorkerClock::new(2));
        host.pass(10 * HOUR);
        let short = |clock: &mut WorkerClock, calls| {
            for _ in 0..calls {
                clock.begin_round();
                assert!(!clock.is_past(&host, NEVER - 1));
                host.pass(100);
                clock.ran(1);
                clock.catch_up(&host);
            }
        };
        for (jump, rounds) in [-1, 1].into_iter().flat_map(|jump| (0..2 * ROUNDS).map(move |at| (jump, at))) {
            short(&mut clock, 200);
            host.0.0.fetch_add(HOUR.wrapping_mul(jump as u64), Relaxed);
            clock.ran(1);
            clock.read(&host);
            short(&mut clock, rounds);
            for needs_receive in [false, true] {
                let deadline = clock.before(needs_receive).saturating_add(5_000_000);
                host.pass(50_000_000);
                clock.time_passed();
                assert!(clock.is_past(&host, deadline), "{jump} h, {rounds} rounds later");
            }
            short(&mut clock, 400);
            let before = host.readings();
            short(&mut clock, 1600);
            assert_eq!(host.readings() - before, 100, "{jump} h");
        }
    }

    #[test]
    fn what_a_round_finds_arrived_after_the_round_before() {
        let (host, mut clock) = (Set::default(), WorkerClock::new(0));
        for time in 1..10 {
            host.pass(1000);
            clock.begin_round();
            assert_eq!(clock.before(false), 1000 * u64::saturating_sub(time, 2));
            assert_eq!(clock.before(true), 1000 * u64::saturating_sub(time, ROUNDS as u64));
            clock.read(&host);
        }
        clock.is_crowded();
        clock.begin_round();
        assert_eq!(clock.before(false), 7000, "what was left there arrived before");
        clock.begin_round();
        assert_eq!(clock.before(false), 8000);
        clock.woke(20_000);
        clock.begin_round();
        assert_eq!([clock.before(false), clock.before(true)], [20_000; 2]);
    }
}
