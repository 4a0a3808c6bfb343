//! When the first READ for a result goes out: for each function, how long after the request.
//!
//! A READ that comes too early is a READ for nothing, and the next is only sent when it is back; one that comes too late makes the
//! call later. RF-RPC fetches at once and then over and over (section 3.2); here the first READ is sent so that it meets the result.
//! What the server says of its time is where that begins, and whether READs met is what moves it: later by three steps after one in
//! vain, earlier by one after one that met. Where results come at any time that alone would wait for the late ones, so one call of
//! eight is READ earlier, and nobody waits for more than a READ beyond the time at which hardly any of those has met. What a server says
//! can only make its own client wait, for no longer than `MOST_READS` READs, and only until READs that meet bring it down again.

/// No first READ waits for longer than so many READs take: calls that take longer are few, whatever they cost.
const MOST_READS: f64 = 64.0;
/// A step is this part of what a READ takes, or of the wait if that is more.
const STEP: u32 = 64;
const STEP_OF_WAIT: u32 = 128;
/// A READ after the least of waits makes that shorter by so many steps if it meets, so that few do, and longer by so many if the next did not
/// meet either.
const MET: u32 = 48;
const FAR: u32 = 8;
/// Waits below this part of what a READ takes are none.
const NONE_BELOW: u32 = 16;

/// One call of so many has its first READ sent after the least of waits: only that tells of results that are there much earlier.
pub(crate) const EARLY: u32 = 8;

/// When the first READ for a result is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FirstRead {
    /// When the result is likely to be there, as the calls before have shown.
    #[default]
    WhenExpected,
    /// With the request, as in RF-RPC.
    AtOnce,
}

/// When the results of a function are to be expected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wait {
    /// So long after the request three of four results are there, in nanoseconds.
    pub(crate) nanos: u32,
    /// So long after the request hardly any is, in nanoseconds.
    pub(crate) least: u32,
    /// What the server said to take, in nanoseconds, before that changed by more than a READ; 0 if it never did.
    pub(crate) process: u32,
    /// By how much the last result was later than expected, in nanoseconds, if by more than a READ.
    pub(crate) late: u32,
}

/// What waits go by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiting {
    /// What a READ takes, and the longest wait, in nanoseconds.
    read: u32,
    most: u32,
}

impl Waiting {
    /// `read` nanoseconds are what a READ takes.
    pub(crate) fn new(read: f64) -> Self {
        let nanos = |value: f64| value.clamp(1.0, 1e9) as u32;
        Waiting { read: nanos(read), most: nanos(MOST_READS * read) }
    }

    /// How long after a request its result is looked for, in nanoseconds.
    #[inline]
    pub(crate) fn of(self, nanos: u32, least: u32) -> u32 {
        let wait = nanos.min(least.saturating_add(self.read));
        if wait < self.read / NONE_BELOW { 0 } else { wait }
    }

    /// The server says that it has taken so long for a call whose result was fetched, or written back.
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
                // Where results are fetched, READs in vain tell it sooner.
                *of = of.saturating_add(process - before).min(self.most);
            }
        }
        wait
    }

    /// A result was fetched, after so many READs in vain; `early` if the first of them was sent after the least of waits.
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
        // One late call may be an exception; of two the less late one is believed.
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

    /// Plays calls whose results are there after `ready` nanoseconds; the READs in vain, and by how much results are found late.
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
        // What changes by little is left to READs.
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
        // Sooner if the server says so.
        wait = waiting().timed(wait, 30_000, false);
        wait = waiting().timed(wait, 60_000, false);
        assert!(wait.nanos >= 30_000);
        wait = waiting().timed(wait, 200, true);
        assert!(wait.nanos < 1000, "{wait:?}");
    }

    /// Results that come at any time up to 20 us: nobody waits for the latest.
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
        /// No server makes its client wait beyond the bound, and what it says is forgotten where READs meet.
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
