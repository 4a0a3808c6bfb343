//! The common parts of FLOCK's figures 6 to 12: the cluster of section 8.1, its clients, and the baseline eRPC.

use super::{Effort, Outcome, Outcomes, Paper, Point, measured};
use dunlin_rpc::{CompletionMode, CreditRenewal, Lease, Plan, RequestHalf, ResponseHalf, Sharing};
use dunlin_scenario::erpc::{Erpc, SESSION_CREDITS};
use dunlin_scenario::load::{Extent, Function, Load, Network, Pace, Posting};
use dunlin_scenario::random_values::{Sizes, Times};

/// Client hosts, and threads of the server.
pub(super) const HOSTS: u32 = 23;
const WORKERS: u16 = 32;
/// Queue pairs that the server keeps active.
pub(super) const MAX_ACTIVE: u32 = 256;
/// Hardware threads of a host: the EPYC 7452 has two for each of its 32 cores.
const HARDWARE_THREADS: u32 = 64;
/// Bytes of a request and of its answer (section 8.2).
const BYTES: u32 = 64;
/// Measured time of a full run, in nanoseconds.
const MEASURED: u64 = 2_000_000;

/// The threads of all client hosts.
#[derive(Clone, Copy)]
pub(super) struct Threads {
    /// Threads of all hosts together.
    pub(super) number: u32,
    /// Queue pairs of all of them together.
    pub(super) queue_pairs: u32,
    pub(super) sharing: Sharing,
    /// Calls in flight of each thread.
    pub(super) in_flight: u16,
}

impl Threads {
    /// Returns the threads of FLOCK: at most [`MAX_ACTIVE`] queue pairs.
    pub(super) fn flock(number: u32, in_flight: u16) -> Self {
        Threads { number, queue_pairs: number.min(MAX_ACTIVE), sharing: Sharing::Combined, in_flight }
    }

    /// Returns threads with a queue pair each.
    pub(super) fn dedicated(number: u32, in_flight: u16) -> Self {
        Threads { number, queue_pairs: number, sharing: Sharing::Dedicated, in_flight }
    }

    /// Returns the load of these threads on the server.
    pub(super) fn load(self, effort: Effort) -> Load {
        let plan = Plan::new(RequestHalf::Write, ResponseHalf::Write)
            .completion(CompletionMode::Busy, CompletionMode::Busy)
            .shared(self.sharing, Lease::Forever);
        Load {
            client_hosts: HOSTS as usize,
            client_cores: Some(HARDWARE_THREADS),
            workers: WORKERS,
            handles: Some(self.queue_pairs as usize),
            pace: Pace::Closed { window: self.in_flight, think: Times::Fixed(0) },
            extent: measured(effort, MEASURED),
            functions: vec![Function::new(plan, Sizes::Fixed(BYTES), Sizes::Fixed(BYTES))],
            posting: Posting::Counted,
            // Section 7.
            credit_renewal: CreditRenewal::WriteImmediate,
            ..Load::bench(self.number as usize, 1, Network::Modelled("flock".to_owned()))
        }
    }
}

/// Returns a load of one combined handle a host, every tenth thread of which has requests of `large` bytes, with 8 calls
/// in flight of each. Threads look whether a scheduling is due once in 1024 calls, so two have ended before the measurement.
pub(super) fn mixed(threads_of_a_client: u32, large: u32, effort: Effort) -> Load {
    let number = HOSTS * threads_of_a_client;
    let load = Threads { number, queue_pairs: HOSTS, sharing: Sharing::Combined, in_flight: 8 }.load(effort);
    let small = Function { weight: 9, ..load.functions[0].clone() };
    let large = Function { weight: 1, ..Function::new(small.plan, Sizes::Fixed(large), Sizes::Fixed(BYTES)) };
    let warm_up = match effort {
        Effort::Full => 40_000_000,
        // None has begun.
        Effort::Quick => 4_000_000,
    };
    let extent = match load.extent {
        Extent::Time { measured, .. } => Extent::Time { warm_up, measured },
        calls => calls,
    };
    Load { functions: vec![small, large], function_of_thread: true, extent, ..load }
}

/// Returns eRPC's load with this number of client threads.
pub(super) fn erpc(clients: u32, in_flight: u16, effort: Effort) -> Erpc {
    let (warm_up, measured) = match measured(effort, MEASURED) {
        Extent::Time { warm_up, measured } => (warm_up, measured),
        Extent::Calls(_) => (0, 1),
    };
    Erpc {
        profile: "flock".to_owned(),
        client_hosts: HOSTS as usize,
        client_cores: Some(HARDWARE_THREADS),
        clients: clients as usize,
        in_flight: usize::from(in_flight),
        credits: SESSION_CREDITS,
        threads: usize::from(WORKERS),
        bytes: BYTES,
        loss: 0,
        warm_up,
        measured,
        limit: 10_000_000_000,
    }
}

/// A value of an outcome.
pub(super) type Value = fn(&Outcome) -> f64;

pub(super) fn mops(outcome: &Outcome) -> f64 {
    outcome.mops
}

/// The median latency in microseconds.
pub(super) fn median(outcome: &Outcome) -> f64 {
    outcome.quantiles_us[1]
}

/// The latency of 99% of calls in microseconds.
pub(super) fn p99(outcome: &Outcome) -> f64 {
    outcome.quantiles_us[2]
}

/// Returns the points of all runs, by throughput, median and 99% latency.
pub(super) fn three_ways(outcomes: &Outcomes) -> Vec<Point> {
    let mut points = outcomes.as_they_are("mops", mops);
    let quantiles: [(&str, Value); 2] = [("median", median), ("99% of calls", p99)];
    for (name, value) in quantiles {
        let mut latencies = outcomes.as_they_are("us", value);
        latencies.iter_mut().for_each(|point| point.series = format!("{}, {name}", point.series));
        points.extend(latencies);
    }
    points
}

/// Returns the queue pairs that the server granted a client, and its utilisation U in an interval (5.1), on average, of
/// the runs whose queue pairs have credits. A measurement in which the server has not divided its queue pairs tells no U.
pub(super) fn granted(outcomes: &Outcomes) -> Vec<Point> {
    let queue_pairs: Value = |outcome| outcome.granted.queue_pairs;
    let utilisation: Value = |outcome| outcome.granted.utilisation;
    let all = [("granted queue pairs of a client", queue_pairs), ("mean U of a client", utilisation)];
    let points = all.into_iter().flat_map(|(name, value)| {
        let mut points = outcomes.as_they_are("count", value);
        points.retain(|point| point.predicted > 0.0);
        points.iter_mut().for_each(|point| point.series = format!("{}, {name}", point.series));
        points
    });
    points.collect()
}

/// Returns the busiest part of the server's NIC in each run, in percent of the time.
pub(super) fn busiest(outcomes: &Outcomes) -> Vec<Point> {
    let mut points = outcomes.as_they_are("percent", |outcome| outcome.busiest.1 * 100.0);
    for (point, part) in points.iter_mut().zip(outcomes.busiest_parts()) {
        point.series = format!("{}, busiest part of the server's NIC: {part}", point.series);
    }
    points
}

/// A statement of the paper's text about points of a series.
pub(super) type Said = (Paper, &'static str);

/// Returns ratios of two series, each with the statement that holds at its position.
pub(super) fn ratios(
    outcomes: &Outcomes,
    title: &str,
    (over, under): (&str, &str),
    value: Value,
    said: impl Fn(u32) -> Option<Said>,
) -> Vec<Point> {
    let mut points = outcomes.ratios(title, over, under, value);
    points.iter_mut().for_each(|point| point.said = said(point.x));
    points
}

/// Returns the ratios of a series to its own value at `from`, at later positions.
pub(super) fn beyond(
    outcomes: &Outcomes,
    title: &str,
    (series, from): (&str, u32),
    value: Value,
    said: impl Fn(u32) -> Option<Said>,
) -> Vec<Point> {
    let Some(base) = outcomes.get(series, from, value) else { return Vec::new() };
    let point = |x: u32| {
        let predicted = outcomes.get(series, x, value)? / base;
        Some(Point { series: title.to_owned(), x, unit: "ratio", predicted, said: said(x) })
    };
    outcomes.xs().into_iter().filter(|x| *x > from).filter_map(point).collect()
}

/// Returns the point that `which` chooses from others, as a series of its own.
pub(super) fn chosen(
    points: &[Point],
    title: &str,
    which: impl Fn(&&Point, &&Point) -> std::cmp::Ordering,
    said: Said,
) -> Option<Point> {
    let point = points.iter().max_by(which)?;
    Some(Point { series: title.to_owned(), said: Some(said), ..point.clone() })
}
