//! LITE figure 13: processor time of a call, and that of 1 000 calls a second (section 5.3).

use super::lite::PROFILE;
use super::scalerpc::System;
use super::{Drawing, Effort, Figure, Outcome, Outcomes, Paper, Point, Run};
use dunlin_fabric::Nanos;
use dunlin_scenario::load::{Extent, Function, Load, Network, Pace};
use dunlin_scenario::random_values::{Sizes, Times};
use dunlin_scenario::tier_calls::TierCalls;

pub(super) const FIGURE: Figure = Figure::predicted(
    ["lite-13", "Processor time of a call by the factor of the times between calls", PROFILE, "factor"],
    "Processor time of all threads on both sides: work and spinning; a wake-up counts from its event on, and threads that sleep use none. 8 threads at each end: the paper states no number, and \
     its run before this one has 8. Runs with 1 thread at each end stand beside them, for which nothing is stated. Each thread calls at due times, whose distances are those of Facebook's ETC pool times a factor, with requests of the sizes of its keys and results of those of its values; it sleeps until a call is due. 100 000 calls. \
     The tier: a node in each process, one thread of it for calls of other nodes; all its threads spin for 20 us before they sleep. HERD and FaSST by the engine: 8 server threads, which poll all the time, and clients, which poll while they wait for an answer. \
     'Similar' is read as within a quarter, 'light' as factors 4 and 8, 'heavy' as factor 1.",
    runs,
    points,
);

pub(super) const LIGHT: Figure = Figure::predicted(
    ["lite-13-light", "Processor time in a second by the number of calls in it", PROFILE, "calls_a_second"],
    "As lite-13, with 1 000 calls a second by 8 threads together, 8 bytes each way, at exponential distances. The paper states 4.3 s for LITE, 8.7 s for HERD and 8.8 s for FaSST, and no length of the run; \
     8 threads that poll for a second use 8 s.",
    light_runs,
    light_points,
)
.drawn(light_drawings);

const TIER: &str = "the tier, in one process";
/// Threads at each end of the further runs.
const ONE: u32 = 1;
const OTHERS: [System; 2] = [System::Herd, System::Fasst];
const THREADS: u32 = 8;
/// Threads of a node for calls of other nodes: LITE has one thread that polls for all.
const WORKERS: u16 = 1;
/// The mean time between the calls of a thread of figure 13 with factor 1, in nanoseconds.
const MEAN_GAP: f64 = 18_969.0;
/// Calls a second of all threads of the light run.
const RATE: u32 = 1_000;
/// Processor seconds of LITE, and of HERD and FaSST (section 5.3).
const STATED: f64 = 4.3;
const STATED_OTHERS: [f64; 2] = [8.7, 8.8];

/// The calls of all threads.
#[derive(Clone, Copy)]
struct Calls {
    request: Sizes,
    answer: Sizes,
    gaps: Times,
    /// The mean of the gaps, in nanoseconds.
    mean: f64,
    measured: u64,
    /// Threads at each end.
    threads: u32,
}

/// Returns the name of a system's series.
fn by(system: &str, threads: u32) -> String {
    match threads {
        THREADS => system.to_owned(),
        _ => format!("{system}, {threads} and {threads}"),
    }
}

impl Calls {
    fn of_tier(self) -> TierCalls {
        TierCalls {
            threads: self.threads as usize,
            receivers: self.threads as usize,
            workers: WORKERS,
            request: self.request,
            answer: self.answer,
            gaps: Some(self.gaps),
            warm_up: self.measured / 10,
            measured: self.measured,
            ..TierCalls::of(PROFILE)
        }
    }

    fn of(self, system: System) -> Load {
        let measured = (self.mean * self.measured as f64 / f64::from(self.threads)) as Nanos;
        Load {
            client_hosts: 1,
            workers: self.threads as u16,
            pace: Pace::Scheduled { gaps: self.gaps },
            extent: Extent::Time { warm_up: measured / 10, measured },
            functions: vec![Function::new(system.plan(), self.request, self.answer)],
            ..Load::bench(self.threads as usize, 1, Network::Modelled(PROFILE.to_owned()))
        }
    }

    fn runs(self, x: u32) -> Vec<Run> {
        let others = OTHERS.map(|system| Run::of(by(system.name(), self.threads), x, self.of(system)));
        let mut runs = vec![Run::calls(&by(TIER, self.threads), x, self.of_tier())];
        runs.extend(others);
        runs
    }
}

fn runs(effort: Effort) -> Vec<Run> {
    let (factors, measured): (&[u32], u64) = match effort {
        Effort::Full => (&[1, 2, 4, 8], 100_000),
        Effort::Quick => (&[1, 8], 1_000),
    };
    let calls = |threads: u32, factor: u32| Calls {
        request: Sizes::FacebookKeys,
        answer: Sizes::FacebookValues,
        gaps: Times::FacebookGaps(factor.into()),
        mean: MEAN_GAP * f64::from(factor),
        measured,
        threads,
    };
    let of = |threads| factors.iter().flat_map(move |&factor| calls(threads, factor).runs(factor));
    of(THREADS).chain(of(ONE)).collect()
}

fn light_runs(effort: Effort) -> Vec<Run> {
    let measured = match effort {
        Effort::Full => 5_000,
        Effort::Quick => 100,
    };
    let mean = 1e9 * f64::from(THREADS) / f64::from(RATE);
    let gaps = Times::Exponential(mean);
    Calls { request: Sizes::Fixed(8), answer: Sizes::Fixed(8), gaps, mean, measured, threads: THREADS }
        .runs(RATE)
}

fn processor_us(outcome: &Outcome) -> f64 {
    outcome.processor_us
}

fn points(outcomes: &Outcomes) -> Vec<Point> {
    let mut points = outcomes.as_they_are("us", processor_us);
    for (threads, system) in
        [THREADS, ONE].into_iter().flat_map(|threads| OTHERS.map(|system| (threads, system)))
    {
        let (over, under) = (by(TIER, threads), by(system.name(), threads));
        let ratios = outcomes.ratios(&format!("{over} over {under}"), &over, &under, processor_us);
        points.extend(ratios.into_iter().map(|point| {
            let said = (threads == THREADS).then(|| stated(system, point.x)).flatten();
            Point { said, ..point }
        }));
    }
    points
}

/// Returns the statement of the paper about the tier over another system.
fn stated(system: System, factor: u32) -> Option<(Paper, &'static str)> {
    match (system, factor) {
        (_, 4..) => {
            Some((Paper::AtMost(1.0), "5.3: less than both HERD and FaSST when the workload is light"))
        }
        (System::Herd, 1) => {
            Some((Paper::Between(0.75, 1.25), "5.3: similar to HERD when the workload is heavy"))
        }
        (_, 1) => Some((Paper::AtMost(1.0), "5.3: better than FaSST when the workload is heavy")),
        _ => None,
    }
}

/// Returns the processor seconds in a second.
fn seconds(outcome: &Outcome) -> f64 {
    outcome.processor_us * outcome.mops
}

fn light_drawings(outcomes: &Outcomes) -> Vec<Drawing> {
    let group = |calls| format!("{calls} calls a second");
    vec![outcomes.bars(LIGHT.title, "processor seconds in a second", group, seconds)]
}

fn light_points(outcomes: &Outcomes) -> Vec<Point> {
    let mut points = outcomes.as_they_are("s", seconds);
    for (system, stated) in OTHERS.into_iter().zip(STATED_OTHERS) {
        let series = format!("{TIER} over {}", system.name());
        let ratios = outcomes.ratios(&series, TIER, system.name(), seconds);
        let said = Some((Paper::AtMost(STATED / stated), "5.3: 4.3 s over 8.7 s (HERD) and 8.8 s (FaSST)"));
        points.extend(ratios.into_iter().map(|point| Point { said, ..point }));
    }
    points
}
