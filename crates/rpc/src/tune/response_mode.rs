//! The answer path of each function, chosen by a server that measures its call rate on each path.
//!
//! R and F by enumeration (equation 2) maximize the rate that the server's NIC can sustain. That is the right
//! measure only while the NIC is the bottleneck. Otherwise the faster path is better, and it depends on
//! processors, connections and queues, so no table knows it. A client that times its own calls cannot find it
//! either: the faster path for one client may not be faster if all use it, and clients share the rate of
//! WRITEs.
//!
//! So the server runs trials for all clients of a function at once: for a period its answers ask for another
//! path, and the path stays if the call rate was higher than in the periods before and between. Clients with
//! [`FetchChoice::Tuned`](crate::FetchChoice) follow.
//!
//! The cost of trials is bounded. A bad trial ends after a quarter of its first period, each failed trial
//! doubles the time to the next up to the end of [`APART`], and trials lose at most one part in [`SHARE`] of
//! the time, even if the workload varies. A small gain is measured for longer, and a gain below [`BETTER`]
//! changes nothing; a path that was left waits longer each time, so that noise does not cause oscillation. If
//! the rate changes by more than [`MOVED`], the workload has changed, and trials start again soon. Only one
//! function is tried at a time.

use super::mode::FUNCTIONS;
use dunlin_fabric::Nanos;

/// A period has this many calls and at least the shortest time, but at most the longest.
const CALLS: u64 = 1024;
const SHORTEST: Nanos = 400_000;
const LONGEST: Nanos = 8_000_000;
/// Gap before a period, in which earlier requests are answered: this many calls and this time, but at most
/// the longest gap.
const GAP_CALLS: u64 = 128;
const GAP: Nanos = 100_000;
const LONGEST_GAP: Nanos = 2_000_000;
/// If two polls are further apart than this, the server was idle or not scheduled, and the period starts
/// over. Polls are 50 us apart if calls are frequent enough for a measurement.
const IDLE: Nanos = 400_000;
/// A period with fewer calls is not evaluated.
const ENOUGH: u64 = 512;
/// After [`SHORT_TRIAL`] periods a path wins with this gain, and loses without any gain; after [`LONG_TRIAL`]
/// periods it wins with the smaller gain.
const SURELY_BETTER: f64 = 1.06;
const BETTER: f64 = 1.012;
const SHORT_TRIAL: u8 = 3;
const LONG_TRIAL: u8 = 7;
/// A trial ends early if its first period has less than this part of the calls, or the first quarter of the
/// period less than the smaller part.
const BAD: f64 = 0.93;
const VERY_BAD: f64 = 0.85;
/// If the rate of two consecutive periods differs by more than this part, the workload has changed.
const MOVED: f64 = 0.1;
/// Periods before the first trial, in which the clients make their own choices.
const FIRST: u8 = 3;
/// Periods between trials of a path: after its first failure or after it was left, and at most.
const APART: std::ops::RangeInclusive<u8> = 16..=128;
/// Trials may lose one part in `SHARE` of the time, and at most `SAVED` periods of unused budget.
const SHARE: f64 = 128.0;
const SAVED: f64 = 4.0;
/// A function with less than this part of the calls is not tried: its effect could not be measured.
const LEAST_PART: u64 = 16;

const MODES: usize = ResponseMode::ALL.len();

/// The answer path that a server asks its clients to use for a function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum ResponseMode {
    /// Each client's own choice: fetched, or written back after R failed READs.
    #[default]
    ClientChoice = 0,
    /// Written back.
    WriteBack = 1,
    /// Fetched, with an F that holds the whole result.
    FetchWhole = 2,
    /// Fetched, with many more READs than R if necessary.
    FetchMoreRetries = 3,
}

dunlin_numbered::numbered!(ResponseMode: u8 { ClientChoice, WriteBack, FetchWhole, FetchMoreRetries });

impl ResponseMode {
    /// Returns the number on the wire.
    #[inline]
    pub(crate) const fn number(self) -> u8 {
        self as u8
    }

    /// Decodes a number from a server; unknown numbers mean [`ResponseMode::ClientChoice`].
    #[inline]
    pub(crate) const fn of(number: u8) -> ResponseMode {
        match ResponseMode::from_wire(number) {
            Some(mode) => mode,
            None => ResponseMode::ClientChoice,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Function {
    /// The current path.
    mode: ResponseMode,
    /// By path: periods until its next trial, and the interval set after the last one.
    left: [u8; MODES],
    apart: [u8; MODES],
    /// Calls at the end of the last period.
    calls: u64,
}

/// A trial of a path: the periods alternate between the tried path and the current one.
#[derive(Clone, Copy, Debug)]
struct Trial {
    function: usize,
    mode: ResponseMode,
    /// Finished periods.
    over: u8,
    /// Sums of the rates over the periods of each path; `standing` includes the period before the trial.
    standing: f64,
    tried: f64,
}

impl Trial {
    fn is_on(&self) -> bool {
        self.over.is_multiple_of(2)
    }
}

/// Chooses the answer paths of all functions of a server.
#[derive(Clone, Debug)]
pub(crate) struct ResponseModeTuner {
    functions: [Function; FUNCTIONS],
    trial: Option<Trial>,
    /// The function from which the next trial is searched.
    next: usize,
    /// Calls per nanosecond on the current paths; 0 if unknown.
    rate: f64,
    /// Time that trials may still lose, in nanoseconds; no trial starts while it is negative. `None` before
    /// the first period.
    account: Option<f64>,
    /// Consecutive periods whose rate differs by more than [`MOVED`].
    strange: u8,
    /// Start of the period or of the gap before it, and the calls until then.
    since: Nanos,
    from: u64,
    counting: bool,
    /// Time of the last poll.
    looked: Nanos,
    /// Changes of a current path so far.
    pub(crate) changes: u32,
}

impl ResponseModeTuner {
    /// Creates a tuner that leaves the choice to the clients.
    pub(crate) fn new() -> Self {
        let function =
            Function { mode: ResponseMode::ClientChoice, left: [FIRST; MODES], apart: [0; MODES], calls: 0 };
        ResponseModeTuner {
            functions: [function; FUNCTIONS],
            trial: None,
            next: 0,
            rate: 0.0,
            account: None,
            strange: 0,
            since: 0,
            from: 0,
            counting: false,
            looked: 0,
            changes: 0,
        }
    }

    /// Returns the path that clients are asked for now.
    pub(crate) fn mode(&self, function: usize) -> ResponseMode {
        match &self.trial {
            Some(trial) if trial.function == function && trial.is_on() => trial.mode,
            _ => self.functions[function % FUNCTIONS].mode,
        }
    }

    /// Takes the calls of each function so far. Returns whether the requested paths may have changed.
    pub(crate) fn look(&mut self, now: Nanos, calls: &[u64; FUNCTIONS]) -> bool {
        let all = calls.iter().fold(0, |all: u64, of| all.wrapping_add(*of));
        if now.saturating_sub(std::mem::replace(&mut self.looked, now)) > IDLE {
            self.begin(now, all);
            return false;
        }
        let (time, made) = (now.saturating_sub(self.since), all.wrapping_sub(self.from));
        if !self.counting {
            if (made >= GAP_CALLS && time >= GAP) || time >= LONGEST_GAP {
                (self.since, self.from, self.counting) = (now, all, true);
            }
            return false;
        }
        let rate = made as f64 / time.max(1) as f64;
        if (made < CALLS || time < SHORTEST) && time < LONGEST {
            let quarter = CALLS as f64 / 4.0;
            if let Some(trial) = &self.trial
                && trial.over == 0
                && time >= SHORTEST / 4
                && trial.standing * time as f64 >= quarter
                && rate < VERY_BAD * trial.standing
            {
                self.charge(time as f64, rate);
                self.end(false);
                self.begin(now, all);
                return true;
            }
            return false;
        }
        self.begin(now, all);
        self.charge(time as f64, rate);
        let rate = (made >= ENOUGH).then_some(rate);
        match self.trial {
            Some(trial) => self.tried(trial, rate),
            None => self.stood(rate, made, calls),
        }
        self.functions.iter_mut().zip(calls).for_each(|(function, calls)| function.calls = *calls);
        true
    }

    /// Charges the time that a period lost to the trials' budget, or adds to the budget.
    fn charge(&mut self, time: f64, rate: f64) {
        let account = self.account.unwrap_or(SAVED * time);
        self.account = Some(match &self.trial {
            Some(trial) if trial.is_on() => {
                let standing = trial.standing / f64::from(trial.over / 2 + 1);
                account - time * (1.0 - rate / standing).max(0.0)
            }
            _ => (account + time / SHARE).min(SAVED * time),
        });
    }

    fn begin(&mut self, now: Nanos, all: u64) {
        (self.since, self.from, self.counting) = (now, all, false);
    }

    /// Evaluates a period on the current paths.
    fn stood(&mut self, rate: Option<f64>, made: u64, calls: &[u64; FUNCTIONS]) {
        let Some(rate) = rate else {
            (self.rate, self.strange) = (0.0, 0);
            return;
        };
        if self.rate > 0.0 && (rate - self.rate).abs() > MOVED * self.rate {
            self.strange += 1;
            if self.strange < 2 {
                return;
            }
            self.rate = rate;
            for function in &mut self.functions {
                (function.left, function.apart) = ([FIRST; MODES], [0; MODES]);
            }
        } else {
            self.rate = if self.rate > 0.0 { self.rate + (rate - self.rate) / 4.0 } else { rate };
        }
        self.strange = 0;
        for left in self.functions.iter_mut().flat_map(|function| &mut function.left) {
            *left = left.saturating_sub(1);
        }
        if self.account.is_some_and(|account| account < 0.0) {
            return;
        }
        let turns = (0..FUNCTIONS).map(|place| (self.next + place) % FUNCTIONS);
        let due = turns.filter(|place| {
            let of = calls[*place].wrapping_sub(self.functions[*place].calls);
            of.saturating_mul(LEAST_PART) >= made
        });
        for function in due {
            let Function { mode: standing, left, .. } = self.functions[function];
            let mode = ResponseMode::ALL
                .into_iter()
                .find(|mode| *mode != standing && left[usize::from(mode.number())] == 0);
            if let Some(mode) = mode {
                self.trial = Some(Trial { function, mode, over: 0, standing: rate, tried: 0.0 });
                self.next = function + 1;
                return;
            }
        }
    }

    /// Evaluates a period of a trial.
    fn tried(&mut self, mut trial: Trial, rate: Option<f64>) {
        let Some(rate) = rate else { return self.end(false) };
        match trial.is_on() {
            true => trial.tried += rate,
            false => trial.standing += rate,
        }
        trial.over += 1;
        self.trial = Some(trial);
        let better = trial.tried / trial.standing;
        match trial.over {
            1 if better < BAD => self.end(false),
            SHORT_TRIAL if better < 1.0 => self.end(false),
            SHORT_TRIAL if better >= SURELY_BETTER => self.end(true),
            LONG_TRIAL.. => self.end(better >= BETTER),
            _ => {}
        }
    }

    fn end(&mut self, better: bool) {
        let Some(trial) = self.trial.take() else { return };
        let function = &mut self.functions[trial.function % FUNCTIONS];
        let worse = if better { std::mem::replace(&mut function.mode, trial.mode) } else { trial.mode };
        let worse = usize::from(worse.number());
        let apart = &mut function.apart[worse];
        *apart = apart.saturating_mul(2).clamp(*APART.start(), *APART.end());
        function.left[worse] = *apart;
        if better {
            self.rate = 2.0 * trial.tried / f64::from(trial.over + 1);
            self.changes = self.changes.saturating_add(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Plays `ms` milliseconds of calls of function 3; `rates` gives the calls per millisecond on each path.
    /// Returns the mean calls per millisecond.
    fn play(
        tuner: &mut ResponseModeTuner,
        time: &mut Nanos,
        calls: &mut [u64; FUNCTIONS],
        ms: u64,
        rates: [u64; MODES],
    ) -> f64 {
        let (before, end, mut part) = (calls[3], *time + ms * 1_000_000, 0);
        while *time < end {
            *time += 50_000;
            part += rates[usize::from(tuner.mode(3).number())] * 50_000;
            calls[3] += part / 1_000_000;
            part %= 1_000_000;
            tuner.look(*time, calls);
        }
        (calls[3] - before) as f64 / ms as f64
    }

    fn start() -> (ResponseModeTuner, Nanos, [u64; FUNCTIONS]) {
        (ResponseModeTuner::new(), 1_000_000, [0; FUNCTIONS])
    }

    #[test]
    fn the_best_way_is_found_and_followed() {
        let (mut tuner, mut time, mut calls) = start();
        for (rates, best) in [
            ([1000, 1500, 900, 800], ResponseMode::WriteBack),
            ([2000, 1500, 1000, 1950], ResponseMode::ClientChoice),
            ([1000, 1500, 1800, 900], ResponseMode::FetchWhole),
            ([300, 250, 200, 200], ResponseMode::ClientChoice),
            ([900, 850, 800, 1100], ResponseMode::FetchMoreRetries),
            ([6000, 1800, 6030, 4000], ResponseMode::ClientChoice),
        ] {
            play(&mut tuner, &mut time, &mut calls, 90, rates);
            assert_eq!(tuner.functions[3].mode, best, "{rates:?}");
        }
        assert!(tuner.changes <= 8, "{}", tuner.changes);
    }

    /// The worst case of RF-RPC's cluster: with results written back, the rate falls to a third.
    #[test]
    fn trials_cost_next_to_nothing() {
        let (mut tuner, mut time, mut calls) = start();
        play(&mut tuner, &mut time, &mut calls, 20, [6500, 1900, 3000, 4000]);
        let rate = play(&mut tuner, &mut time, &mut calls, 1000, [6500, 1900, 3000, 4000]);
        assert!(rate > 0.985 * 6500.0, "{rate}");
        assert_eq!((tuner.functions[3].mode, tuner.changes), (ResponseMode::ClientChoice, 0));
    }

    #[test]
    fn of_equal_ways_the_one_that_stands_is_kept() {
        let (mut tuner, mut time, mut calls) = start();
        play(&mut tuner, &mut time, &mut calls, 3000, [1000, 1010, 1010, 1010]);
        assert_eq!(tuner.changes, 0);
    }

    /// Too few calls allow no measurement, so that nothing is tried.
    #[test]
    fn few_calls_are_left_alone() {
        let (mut tuner, mut time, mut calls) = start();
        play(&mut tuner, &mut time, &mut calls, 3000, [20, 60, 60, 60]);
        assert_eq!((tuner.trial.is_none(), tuner.changes), (true, 0));
    }

    /// Where the rate varies all the time, as on a machine shared with other processes, trials are always due
    /// and still cost little.
    #[test]
    fn restless_workloads_pay_no_more() {
        let (mut tuner, mut time, mut calls) = start();
        let mut made = [0.0; 2];
        for round in 0..2000 {
            let rates = [[4000, 2000, 2000, 2000], [3000, 1500, 1500, 1500]][round % 2];
            made[0] += play(&mut tuner, &mut time, &mut calls, 3, rates);
            made[1] += rates[0] as f64;
        }
        assert!(made[0] > 0.985 * made[1], "{} of {}", made[0], made[1]);
        assert_eq!(tuner.changes, 0);
    }

    /// Clients make calls for 2 ms and then none for 30 ms, as clients in rotation do.
    #[test]
    fn pauses_are_nobodys_fault() {
        for (rates, best) in [
            ([1000, 1500, 900, 800], ResponseMode::WriteBack),
            ([2000, 1800, 1500, 1900], ResponseMode::ClientChoice),
        ] {
            let (mut tuner, mut time, mut calls) = start();
            for _ in 0..200 {
                play(&mut tuner, &mut time, &mut calls, 2, rates);
                time += 30_000_000;
            }
            assert_eq!(tuner.functions[3].mode, best, "{rates:?}");
        }
    }

    #[test]
    fn what_is_on_the_wire_may_be_anything() {
        for number in 0..=255u8 {
            assert!(
                ResponseMode::of(number).number() == number
                    || ResponseMode::of(number) == ResponseMode::ClientChoice
            );
        }
    }

    proptest! {
        /// Rates with random differences between periods, as in closed loops, cause no oscillation.
        #[test]
        fn chance_does_not_make_it_flap(seed in any::<u64>(), rate in 300u64..6000) {
            let (mut tuner, mut time, mut calls) = start();
            let mut random = seed | 1;
            for _ in 0..2000 {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                // Up to a twentieth more or less.
                let now = rate * (950 + (random >> 33) % 100) / 1000;
                play(&mut tuner, &mut time, &mut calls, 1, [now; MODES]);
            }
            prop_assert!(tuner.changes <= 20, "{}", tuner.changes);
        }

        /// After clocks that jump and counters that wrap, it still finds the best path.
        #[test]
        fn it_recovers_from_anything(
            looks in prop::collection::vec((any::<u64>(), any::<u64>(), 0usize..FUNCTIONS), 0..300), best in 0..MODES,
        ) {
            let (mut tuner, mut time, mut calls) = start();
            for (now, count, function) in looks {
                calls[function] = count;
                tuner.look(now >> 1, &calls);
                time = time.max(now >> 1);
            }
            time = time.min(u64::MAX / 2);
            calls[3] = 0;
            let mut rates = [800; MODES];
            rates[best] = 1000;
            play(&mut tuner, &mut time, &mut calls, 1000, rates);
            prop_assert_eq!(usize::from(tuner.functions[3].mode.number()), best);
        }
    }
}
