//! Which of two ways is quicker for a function, fetched or written back, by trying the other now and then.
//!
//! R and F go by what the server's NIC can carry. While that is not what calls wait for, the quicker way is the better one, and
//! nothing tells it but the calls themselves: a few of them are timed, then as many that go the other way. If those are quicker
//! it stays so. If not, the next trial comes after twice as many calls; one that goes badly is given up at once, so that
//! what trials cost falls towards nothing.

use dunlin_fabric::Nanos;

/// Calls that are timed of each way.
const TIMED: u32 = 16;
/// A trial in which calls take twice as long ends after so many.
const ENOUGH: u32 = 4;
/// Calls until a trial: at first, and at most.
const APART: std::ops::RangeInclusive<u32> = 64..=8192;
/// The other way has to be so much quicker.
const QUICKER: f64 = 0.97;
/// No call counts for more than so many of the mean before it.
const OUTLIER: f64 = 4.0;
/// If calls take so much longer, or so much less long, than before the last trial, the next comes soon.
const CHANGED: f64 = 1.5;

/// What calls that are sent now are to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Course {
    /// They are written back.
    pub(crate) written: bool,
    /// They are timed.
    pub(crate) timed: bool,
    /// They go that way to try it.
    pub(crate) trial: bool,
    /// How often the way has changed, of which the lowest bits.
    pub(crate) epoch: u8,
}

/// Timed calls.
#[derive(Clone, Copy, Debug, Default)]
struct Timed {
    calls: u32,
    sum: f64,
}

impl Timed {
    fn mean(self) -> f64 {
        self.sum / f64::from(self.calls.max(1))
    }

    fn add(&mut self, latency: Nanos) {
        let latency = latency as f64;
        let bound = if self.calls < ENOUGH { latency } else { OUTLIER * self.mean() };
        self.sum += latency.min(bound);
        self.calls += 1;
    }
}

/// Chooses the way of a function.
#[derive(Clone, Debug)]
pub(crate) struct WayTuner {
    /// The way that stands.
    written: bool,
    /// The other one is being tried.
    trial: bool,
    /// Calls until the next trial, and how many those were after the last.
    left: u32,
    apart: u32,
    standing: Timed,
    tried: Timed,
    /// What calls took before the last trial.
    before: f64,
    /// How often the way has changed.
    pub(crate) changes: u32,
}

impl WayTuner {
    /// Starts with fetching.
    pub(crate) fn new() -> Self {
        let apart = *APART.start();
        let none = Timed::default();
        WayTuner {
            written: false,
            trial: false,
            left: apart,
            apart,
            standing: none,
            tried: none,
            before: 0.0,
            changes: 0,
        }
    }

    /// What calls that are sent now are to do.
    pub(crate) fn course(&self) -> Course {
        Course {
            written: self.written != self.trial,
            timed: self.trial || self.left <= TIMED,
            trial: self.trial,
            epoch: self.changes as u8,
        }
    }

    /// So many calls were made, timed ones included.
    pub(crate) fn called(&mut self, calls: u32) {
        if self.trial {
            return;
        }
        self.left = self.left.saturating_sub(calls);
        if self.left == 0 && self.standing.calls >= TIMED {
            let (mean, before) = (self.standing.mean(), self.before);
            if before > 0.0 && (mean > CHANGED * before || before > CHANGED * mean) {
                self.apart = *APART.start();
            }
            self.before = mean;
            (self.trial, self.tried) = (true, Timed::default());
        }
    }

    /// A call that was to be timed was answered so long after it was sent; `written` says which way.
    pub(crate) fn timed(&mut self, written: bool, latency: Nanos) {
        if written == self.written {
            if !self.trial {
                self.standing.add(latency);
            }
            return;
        }
        if !self.trial {
            return;
        }
        self.tried.add(latency);
        let (tried, standing) = (self.tried, self.standing.mean());
        if tried.calls >= TIMED || (tried.calls >= ENOUGH && tried.mean() > 2.0 * standing) {
            self.end(tried.calls >= TIMED && tried.mean() < QUICKER * standing);
        }
    }

    /// Calls cannot go the way that is tried, or that stands: that of fetching.
    pub(crate) fn struck(&mut self) {
        if self.trial && self.written {
            self.end(false);
        }
    }

    fn end(&mut self, better: bool) {
        if better {
            self.written = !self.written;
            self.changes += 1;
            self.apart = *APART.start();
            self.before = self.tried.mean();
        } else {
            self.apart = (self.apart * 2).min(*APART.end());
        }
        (self.trial, self.left) = (false, self.apart);
        self.standing = Timed::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Plays calls that take so long fetched and written; how many went each way.
    fn play(tuner: &mut WayTuner, calls: u32, fetched: Nanos, written: Nanos) -> [u32; 2] {
        let mut went = [0, 0];
        for _ in 0..calls {
            let course = tuner.course();
            went[usize::from(course.written)] += 1;
            if course.timed {
                tuner.timed(course.written, if course.written { written } else { fetched });
            }
            tuner.called(1);
        }
        went
    }

    #[test]
    fn the_quicker_way_is_found_and_followed() {
        let mut tuner = WayTuner::new();
        play(&mut tuner, 200, 5000, 4000);
        assert!(tuner.course().written);
        assert_eq!(tuner.changes, 1);
        play(&mut tuner, 20_000, 5000, 4000);
        // The world turns: within a trial that comes soon, since calls take longer.
        play(&mut tuner, 20_000, 5000, 9000);
        assert_eq!((tuner.written, tuner.changes), (false, 2));
    }

    #[test]
    fn trials_that_go_badly_cost_next_to_nothing() {
        let mut tuner = WayTuner::new();
        let [_, written] = play(&mut tuner, 1000, 5000, 20_000);
        assert!(written <= 16, "{written}");
        let [_, written] = play(&mut tuner, 100_000, 5000, 20_000);
        assert!(written <= 80, "{written}");
    }

    #[test]
    fn of_equal_ways_the_one_that_stands_is_kept() {
        let mut tuner = WayTuner::new();
        play(&mut tuner, 100_000, 5000, 4900);
        assert_eq!(tuner.changes, 0);
    }

    proptest! {
        /// No latencies, not even those of a host whose clock jumps, keep it from going on and from finding the quicker way after.
        #[test]
        fn it_recovers_from_anything(
            steps in prop::collection::vec((any::<bool>(), any::<u64>(), 0u32..100, any::<bool>()), 0..1000), fetched in any::<bool>(),
        ) {
            let mut tuner = WayTuner::new();
            for (written, latency, calls, struck) in steps {
                tuner.timed(written, latency);
                tuner.called(calls);
                if struck {
                    tuner.struck();
                }
                prop_assert!(APART.contains(&tuner.apart) && tuner.left <= *APART.end());
            }
            let (fetch, write) = if fetched { (4000, 8000) } else { (8000, 4000) };
            play(&mut tuner, 3 * *APART.end(), fetch, write);
            prop_assert_eq!(tuner.written, !fetched);
        }
    }
}
