//! The delay, for each function, from a request to the first READ for its result.
//!
//! A READ that is too early is wasted, and the next one is sent only after it has returned; a READ that is
//! too late delays the call. RF-RPC fetches at once and repeatedly (section 3.2). Here the first READ is
//! timed to meet the result. The server's reported time gives the initial delay; then each READ adjusts it:
//! three steps later after a failed READ, one step earlier after a successful one.
//!
//! Where the time of results varies, this alone would wait for the late ones. So one call in eight is READ
//! earlier, and no call waits longer than one READ beyond the time at which hardly any of these early READs
//! succeeds. A server's report can only delay its own client, by at most `MOST_READS` READs, and only until
//! successful READs reduce the delay.

/// The longest delay of a first READ, in READ times: calls that take longer are few.
const MOST_READS: f64 = 64.0;
/// A step is this part of a READ's time, or of the delay if that gives more.
const STEP: u32 = 64;
const STEP_OF_WAIT: u32 = 128;
/// Steps by which an early READ moves the least delay: `MET` shorter if it succeeds, so that few do; `FAR`
/// longer if the READ after it failed too.
const MET: u32 = 48;
const FAR: u32 = 8;
/// Delays below this part of a READ's time count as none.
const NONE_BELOW: u32 = 16;

/// One call in this many has its first READ sent after the least delay: only these calls show that results
/// arrive much earlier.
pub(crate) const EARLY: u32 = 8;

/// The time at which the first READ for a result is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FirstRead {
    /// At the expected arrival of the result, learned from earlier calls.
    #[default]
    WhenExpected,
    /// Immediately after the request, as in RF-RPC.
    AtOnce,
}

/// The expected arrival of a function's results.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wait {
    /// Nanoseconds after the request at which three of four results are there.
    pub(crate) nanos: u32,
    /// Nanoseconds after the request at which hardly any result is there.
    pub(crate) least: u32,
    /// The server's reported time in nanoseconds, at its last change by more than a READ's time; 0 if there
    /// is no report.
    pub(crate) process: u32,
    /// Nanoseconds by which the last result was later than expected, if more than a READ's time.
    pub(crate) late: u32,
}

/// Parameters of the delays.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiting {
    /// A READ's time, and the longest delay, in nanoseconds.
    read: u32,
    most: u32,
}

impl Waiting {
    /// Creates the parameters for READs of `read` nanoseconds.
    pub(crate) fn new(read: f64) -> Self {
        let nanos = |value: f64| value.clamp(1.0, 1e9) as u32;
        Waiting { read: nanos(read), most: nanos(MOST_READS * read) }
    }

    /// Returns the delay of the first READ, in nanoseconds.
    #[inline]
    pub(crate) fn of(self, nanos: u32, least: u32) -> u32 {
        let wait = nanos.min(least.saturating_add(self.read));
        if wait < self.read / NONE_BELOW { 0 } else { wait }
    }

    /// Takes the server's reported time for a call; `fetched` if its result was fetched rather than written
    /// back.
    pub(crate) fn timed(self, mut wait: Wait, process: u32, fetched: bool) -> Wait {
        let process = process.max(1);
        if wait.process > 0 && process.abs_diff(wait.process) <= self.read {
            return wait;
        }
        let before = std::mem::replace(&mut wait.process, process);
        for of in [&mut wait.nanos, &mut wait.least] {
            if before == 0 {
                *of = process.min(self.most);
            } else if process < before {
                *of = of.saturating_sub(before - process);
            } else if !fetched {
                // Where results are fetched, failed READs show an increase sooner.
                *of = of.saturating_add(process - before).min(self.most);
            }
        }
        wait
    }

    /// Takes a fetched result after `missed` failed READs; `early` if the first READ was sent after the least
    /// delay.
    #[inline]
    pub(crate) fn found(self, mut wait: Wait, missed: u32, early: bool) -> Wait {
        let of = if early { wait.least } else { wait.nanos };
        let step = (self.read / STEP).max(of / STEP_OF_WAIT).max(1);
        if early {
            wait.least = match missed {
                0 => wait.least.saturating_sub(MET * step),
                1 => wait.least.saturating_add(step).min(self.most),
                _ => wait.least.saturating_add(FAR * step).min(self.most),
            };
            return wait;
        }
        wait.nanos = match missed {
            0 => wait.nanos.saturating_sub(step),
            _ => wait.nanos.saturating_add(3 * step).min(self.most),
        };
        // One late call may be an exception; of two the smaller lateness counts.
        let late = missed.saturating_sub(1).saturating_mul(self.read);
        let before = std::mem::replace(&mut wait.late, late);
        if before > 0 && late > 0 {
            wait.nanos = wait.nanos.saturating_add(before.min(late)).min(self.most);
            wait.late = 0;
        }
        wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const READ: u32 = 1400;

    fn waiting() -> Waiting {
        Waiting::new(f64::from(READ))
    }

    /// Plays calls whose results are there after `ready` nanoseconds; returns the failed READs, and the total
    /// lateness of READs.
    fn play(wait: &mut Wait, calls: u32, ready: impl Fn(u32) -> u32) -> (u32, u64) {
        let (mut missed, mut late) = (0, 0);
        for call in 0..calls {
            let early = call % EARLY == 0;
            let first = if early { wait.least } else { waiting().of(wait.nanos, wait.least) };
            let ready = ready(call);
            let reads = ready.saturating_sub(first).div_ceil(READ);
            missed += reads;
            late += u64::from(first + reads * READ - ready);
            *wait = waiting().found(*wait, reads, early);
        }
        (missed, late)
    }

    #[test]
    fn what_the_server_says_is_where_it_begins() {
        let mut wait = waiting().timed(Wait::default(), 5000, true);
        assert_eq!(wait.nanos, 5000);
        let (missed, late) = play(&mut wait, 1000, |_| 5_300);
        assert!(missed < 400 && late < 1000 * 500, "{missed} in vain, {late} ns late");
        // Small changes of the report have no effect: READs correct the delay.
        let before = wait.nanos;
        for process in [4000, 6000, 4500, 3700] {
            wait = waiting().timed(wait, process, true);
        }
        assert_eq!(wait.nanos, before);
    }

    #[test]
    fn steps_are_followed_both_ways() {
        let mut wait = Wait::default();
        play(&mut wait, 100, |_| 200);
        let (missed, _) = play(&mut wait, 20, |_| 30_000);
        assert!(wait.nanos > 25_000 && missed < 440, "{wait:?} after {missed}");
        play(&mut wait, 800, |_| 200);
        assert!(wait.nanos < 500, "{wait:?}");
        // A report of the server changes the delay sooner.
        wait = waiting().timed(wait, 30_000, false);
        wait = waiting().timed(wait, 60_000, false);
        assert!(wait.nanos >= 30_000);
        wait = waiting().timed(wait, 200, true);
        assert!(wait.nanos < 1000, "{wait:?}");
    }

    /// Results arrive at random times up to 20 us: the delay does not wait for the latest.
    #[test]
    fn where_results_vary_the_earliest_count() {
        let mut wait = Wait::default();
        let varying = |call: u32| call.wrapping_mul(2_654_435_761) >> 16 & 0x3FFF | 1000;
        play(&mut wait, 4000, varying);
        let (_, late) = play(&mut wait, 1000, varying);
        assert!(late < 1000 * 1500, "{wait:?}, {late} ns late");
    }

    #[test]
    fn one_exception_moves_little() {
        let mut wait = Wait::default();
        play(&mut wait, 1000, |_| 2_000);
        let before = wait.nanos;
        play(&mut wait, 1, |_| 1_000_000);
        assert!(wait.nanos - before < 100);
    }

    proptest! {
        /// No server can delay its client beyond the bound, and successful READs remove the delay.
        #[test]
        fn lies_are_bounded(
            said in prop::collection::vec((any::<u32>(), any::<bool>(), any::<u32>()), 0..300), read in any::<f64>(),
        ) {
            let waiting = Waiting::new(read);
            let most = (MOST_READS * read).clamp(1.0, 1e9) as u32;
            let mut wait = Wait::default();
            for (process, fetched, missed) in said {
                wait = waiting.timed(wait, process, fetched);
                prop_assert!(wait.nanos <= most);
                wait = waiting.found(wait, missed, process % 2 == 0);
                prop_assert!(wait.nanos <= most && wait.least <= most);
            }
            (0..4000).for_each(|_| wait = waiting.found(wait, 0, false));
            prop_assert_eq!(waiting.of(wait.nanos, wait.least), 0);
        }
    }
}
