//! LITE figures 10, 11 and 14: calls through nodes, beside two WRITEs, HERD and FaSST.

use super::lite::{PROFILE, measured, native};
use super::scalerpc::System;
use super::{Effort, Figure, Outcome, Outcomes, Paper, Point, Run};
use dunlin_scenario::load::{Extent, Function, Load, Network, Pace};
use dunlin_scenario::random_values::{Sizes, Times};
use dunlin_scenario::tier_calls::TierCalls;

pub(super) const LATENCY: Figure = Figure::predicted(
    ["lite-10", "Time of a call of 8 bytes by the size of its result", PROFILE, "result_bytes"],
    "One call at a time, one thread at each end. The tier: a node in each process, two queue pairs between them; the server's node hands \
     the call to a thread that receives, which sleeps between calls. LITE: two WRITEs, with the times that LITE's paper states charged on top: \
     mapping and checks (0.3 us), LT_recvRPC (0.3 us), LT_replyRPC (0.2 us), for users also crossings (0.17 us). FaRM's rows are the sum of \
     two WRITEs, as in the paper. HERD and FaSST by the engine, with threads that poll. 'Slight' is read as up to a quarter.",
    latency_runs,
    latency,
);

pub(super) const THROUGHPUT: Figure = Figure::predicted(
    ["lite-11", "Rate of calls of 8 bytes by the size of their results", PROFILE, "result_bytes"],
    "As lite-10, with 1 and 16 threads at each end, one call of each in flight. With 16 the node has 2 threads for calls of other nodes, HERD and FaSST have 16.",
    throughput_runs,
    throughput,
);

pub(super) const NODES: Figure = Figure::predicted(
    ["lite-14-calls", "Rate of calls of each node by the number of nodes", PROFILE, "nodes"],
    "64 bytes to a service of every other node by turns, 8 bytes back; 8 threads of each node call, 8 receive, and a node has 2 threads for calls of other nodes and 4 queue pairs to each (K = 4). With 4 threads and 16 queue pairs the rate falls to 0.65 M/s with 10 nodes. 'Level' is read as within a tenth.",
    nodes_runs,
    nodes,
);

const TIER: &str = "the tier, in one process";
const WRITE: &str = "WRITE";
const WRITES: &str = "two WRITEs";
const KERNEL: &str = "LITE, kernel";
const USER: &str = "LITE, user";
const EACH: &str = "the tier, each node";

/// Times of LITE's stack for a call, in microseconds (section 5.3): mapping and checks, receive and reply; crossings.
const STACK: f64 = 0.3 + 0.3 + 0.2;
const CROSSINGS: f64 = 0.17;

/// The most threads of a node for calls of others. They share K = 4 queue pairs to each node (section 6.1: 1 to 4).
const WORKERS: u16 = 2;

/// Bytes of a request of figures 10 and 11.
const REQUEST: u32 = 8;

fn sizes(effort: Effort) -> &'static [u32] {
    match effort {
        Effort::Full => &[8, 64, 256, 512, 1024, 2048, 4096],
        Effort::Quick => &[8, 2048],
    }
}

/// Returns the load of another system.
fn other(system: System, (threads, bytes): (u32, u32), effort: Effort) -> Load {
    let measured = match effort {
        Effort::Full => 2_000_000,
        Effort::Quick => 300_000,
    };
    Load {
        client_hosts: 1,
        workers: threads as u16,
        pace: Pace::Posted { size: 1, think: Times::Fixed(0), spread: 0.0 },
        extent: Extent::Time { warm_up: 200_000, measured },
        functions: vec![Function::new(system.plan(), Sizes::Fixed(REQUEST), Sizes::Fixed(bytes))],
        ..Load::bench(threads as usize, 1, Network::Modelled(PROFILE.to_owned()))
    }
}

fn calls(threads: u32, answer: u32, effort: Effort) -> TierCalls {
    TierCalls {
        threads: threads as usize,
        receivers: threads as usize,
        workers: (threads as u16).min(WORKERS),
        request: Sizes::Fixed(REQUEST),
        answer: Sizes::Fixed(answer),
        warm_up: 100 * u64::from(threads),
        measured: measured(effort) / 4 * u64::from(threads),
        ..TierCalls::of(PROFILE)
    }
}

/// Returns the name of a series of several threads.
fn by(series: &str, threads: u32) -> String {
    format!("{series}, {threads} and {threads}")
}

fn latency_runs(effort: Effort) -> Vec<Run> {
    let mut runs = Vec::new();
    for &bytes in sizes(effort) {
        runs.push(Run::native(WRITE, bytes, native(bytes, effort)));
        runs.push(Run::calls(TIER, bytes, calls(1, bytes, effort)));
        for system in [System::Herd, System::Fasst] {
            runs.push(Run::of(system.name(), bytes, other(system, (1, bytes), effort)));
        }
    }
    runs
}

fn throughput_runs(effort: Effort) -> Vec<Run> {
    let mut runs = Vec::new();
    for &bytes in sizes(effort) {
        for threads in [1, 16] {
            runs.push(Run::calls(&by(TIER, threads), bytes, calls(threads, bytes, effort)));
            for system in [System::Herd, System::Fasst] {
                let load = other(system, (threads, bytes), effort);
                runs.push(Run::of(by(system.name(), threads), bytes, load));
            }
        }
    }
    runs
}

fn nodes_runs(effort: Effort) -> Vec<Run> {
    let counts: &[u32] = match effort {
        Effort::Full => &[2, 4, 6, 8, 10],
        Effort::Quick => &[2, 4],
    };
    let load = |count: u32| TierCalls {
        nodes: count as usize,
        active: count as usize,
        threads: 8,
        receivers: 8,
        workers: WORKERS,
        request: Sizes::Fixed(64),
        answer: Sizes::Fixed(8),
        warm_up: 4_000 * u64::from(count),
        measured: measured(effort) / 4 * u64::from(count),
        ..TierCalls::of(PROFILE)
    };
    counts.iter().map(|&count| Run::calls(EACH, count, load(count))).collect()
}

fn mean(outcome: &Outcome) -> f64 {
    outcome.mean_us
}

fn mops(outcome: &Outcome) -> f64 {
    outcome.mops
}

/// Returns the points that compare two series, with the paper's statement.
fn compared(
    points: &[Point],
    (over, under): (&str, &str),
    said: impl Fn(u32) -> Option<(Paper, &'static str)>,
) -> Vec<Point> {
    let of = |series: &str, x: u32| points.iter().find(|point| point.series == series && point.x == x);
    let ratio = |point: &Point| {
        let base = of(under, point.x)?;
        let (series, predicted) = (format!("{over} over {under}"), point.predicted / base.predicted);
        Some(Point { series, unit: "ratio", predicted, said: said(point.x), ..point.clone() })
    };
    points.iter().filter(|point| point.series == over).filter_map(ratio).collect()
}

fn latency(outcomes: &Outcomes) -> Vec<Point> {
    let mut points = outcomes.as_they_are("us", mean);
    let request = points.iter().find(|point| point.series == WRITE && point.x == REQUEST);
    let request = request.map_or(0.0, |point| point.predicted);
    let mut derived = Vec::new();
    for point in points.iter().filter(|point| point.series == WRITE) {
        let both = request + point.predicted;
        for (series, more) in [(WRITES, 0.0), (KERNEL, STACK), (USER, STACK + CROSSINGS)] {
            let said = (series == USER && point.x == 4096)
                .then_some((Paper::Between(6.95 * 0.85, 6.95 * 1.15), "5.3: 6.95 us, read as within 15%"));
            derived.push(Point { series: series.to_owned(), predicted: both + more, said, ..point.clone() });
        }
    }
    points.append(&mut derived);
    let slight = |_| Some((Paper::Between(1.0, 1.25), "5.3: only a slight overhead over two native WRITEs"));
    let user = compared(&points, (USER, WRITES), slight);
    let tier = compared(&points, (TIER, WRITES), slight);
    let herd = compared(&points, ("HERD", USER), |_| {
        Some((Paper::AtMost(1.0), "5.3: checking a region is slightly faster than LITE's polling"))
    });
    let fasst = compared(&points, ("FaSST", USER), |x| {
        (x >= 2048).then_some((Paper::AtLeast(1.0), "5.3: LITE has better latency when the RPC size is big"))
    });
    points.extend([user, tier, herd, fasst].into_iter().flatten());
    points
}

fn throughput(outcomes: &Outcomes) -> Vec<Point> {
    let mut points = outcomes.as_they_are("mops", mops);
    for threads in [1, 16] {
        let said = |_| Some((Paper::AtLeast(1.0), "5.3: better throughput than FaSST"));
        let ratios = compared(&points, (&by(TIER, threads), &by("FaSST", threads)), said);
        points.extend(ratios);
    }
    points
}

fn nodes(outcomes: &Outcomes) -> Vec<Point> {
    let mut points = outcomes.as_they_are("mops", mops);
    points.iter_mut().for_each(|point| point.predicted /= f64::from(point.x));
    let Some(two) = points.iter().find(|point| point.x == 2).map(|point| point.predicted) else {
        return points;
    };
    let level = points.iter().filter(|point| point.x > 2).map(|point| Point {
        series: format!("{EACH}, over that of two"),
        unit: "ratio",
        predicted: point.predicted / two,
        said: Some((Paper::Between(0.9, 1.1), "6.1: level with the number of nodes")),
        ..point.clone()
    });
    let level: Vec<Point> = level.collect();
    points.extend(level);
    points
}
