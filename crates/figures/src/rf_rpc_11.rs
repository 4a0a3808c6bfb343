//! RF-RPC figures 11 and 12: a server thread per core for several clients each, or one per client.

use super::drawing::{Drawing, lines};
use super::rf_rpc::{SYSTEMS, System};
use super::{Effort, Figure, Outcome, Outcomes, Paper, Point, Run, measured, say};
use dunlin_scenario::load::{Connections, Load};

pub(super) const FIGURE: Figure = Figure::predicted(
    [
        "rf-rpc-11",
        "Throughput of 42 clients with 14 server threads (figure 11) and with one for each client (figure 12)",
        "rf-rpc",
        "server_threads",
    ],
    "The server has 14 cores for its threads (the paper: one per core; its machine has 16) and runs 42 threads in quanta. \
     Uniform: each client calls its own thread, over its one connection. With keys: every client is connected to every one of 14 threads \
     and calls the one that owns the key (128 million keys, uniform or Zipf .99), since a thread owns its keys alone; how the paper's skewed \
     keys reached threads with 3 connections each is not said. With 42 threads of 14 cores most such calls wait for a thread's quantum. GETs of 32 bytes; the 5% PUTs are taken as GETs. 'That waits': as in rf-rpc-7.",
    runs,
    points,
)
.drawn(drawings);

const CLIENTS: usize = 42;
/// One thread per core with three connections, or one thread per client.
const FEW: u32 = 14;
const MANY: u32 = 42;
/// Seven client hosts (RF-RPC 5.1) with six threads.
const CLIENT_HOSTS: usize = 7;
/// The store's keys, and their skew (RF-RPC 5.1).
pub(super) const KEYS: u64 = 128_000_000;
pub(super) const SKEW: f64 = 0.99;

const UNIFORM: &str = "uniform";
const WAITS: &str = "uniform, that waits";
const SPREAD: &str = "uniform keys";
const SKEWED: &str = "Zipf .99 keys";

fn load(system: System, threads: u32, effort: Effort) -> Load {
    let mut load = system.gets(threads as u16, effort);
    load.clients = CLIENTS;
    load.client_hosts = CLIENT_HOSTS;
    load.connections = Connections::One;
    load.server_cores = Some(FEW);
    // With quanta of 3 ms, each of three threads on a core has run once before the measurement, and runs
    // twice during it.
    load.extent = measured(effort, if threads > FEW { 18_000_000 } else { 3_000_000 });
    load
}

fn runs(effort: Effort) -> Vec<Run> {
    let [fetch, _, waits, _] = SYSTEMS;
    let mut runs = Vec::new();
    for threads in [FEW, MANY] {
        runs.push(Run::of(UNIFORM, threads, load(fetch, threads, effort)));
        runs.push(Run::of(WAITS, threads, load(waits, threads, effort)));
    }
    for (name, key_skew) in [(SPREAD, None), (SKEWED, Some((KEYS, SKEW)))] {
        for threads in [FEW, MANY] {
            let load =
                Load { connections: Connections::EachWorker, key_skew, ..load(fetch, threads, effort) };
            runs.push(Run::of(name, threads, load));
        }
    }
    runs
}

/// Draws both figures: the throughput of each thread, busiest first, since only its share identifies a
/// thread.
fn drawings(outcomes: &Outcomes) -> Vec<Drawing> {
    let of = |threads: u32| {
        let mine = outcomes.0.iter().filter(|(run, _)| run.x == threads);
        let series = mine.map(|(run, outcome)| {
            let mut each = outcome.thread_mops.clone();
            each.sort_by(|one, other| other.total_cmp(one));
            (run.series.clone(), (1..).map(f64::from).zip(each).collect())
        });
        let title = format!("Throughput of each of {threads} server threads, 42 clients");
        lines(title, "million operations a second", "server thread, the busiest first", series.collect())
    };
    vec![of(FEW), of(MANY)]
}

/// Returns the throughput of the busiest thread relative to that of the idlest.
fn apart(outcome: &Outcome) -> f64 {
    let busiest = outcome.thread_mops.iter().copied().fold(0.0, f64::max);
    busiest / outcome.thread_mops.iter().copied().fold(f64::INFINITY, f64::min).max(1e-6)
}

fn points(outcomes: &Outcomes) -> Vec<Point> {
    let mut points = outcomes.as_they_are("mops", |outcome| outcome.mops);
    let mops = |series, threads| outcomes.get(series, threads, |outcome| outcome.mops);
    for series in [UNIFORM, WAITS] {
        say(&mut points, series, FEW, Paper::Value(4.73), "5.5: 4.73 MOPS");
    }
    let mut ratio = |series: &str, over: Option<f64>, under: Option<f64>, paper, source| {
        if let (Some(over), Some(under)) = (over, under) {
            let (series, predicted, said) = (series.to_owned(), over / under, Some((paper, source)));
            points.push(Point { series, x: FEW, unit: "ratio", predicted, said });
        }
    };
    for (title, series) in [("14 threads over 42", UNIFORM), ("14 threads over 42, that waits", WAITS)] {
        let (few, many) = (mops(series, FEW), mops(series, MANY));
        ratio(title, few, many, Paper::Value(1.51), "5.5: 1.51 times");
    }
    // "Equal" is interpreted as within a tenth.
    let source = "5.5: the sum of all threads is equal to that with uniform keys";
    let (skewed, spread) = (mops(SKEWED, FEW), mops(SPREAD, FEW));
    ratio("Zipf .99 over uniform keys", skewed, spread, Paper::Between(0.9, 1.1), source);
    // "Obvious" is interpreted as by a tenth.
    let source = "5.5: with skewed keys threads differ obviously";
    let differ = [(SPREAD, None), (SKEWED, Some((Paper::AtLeast(1.1), source)))];
    for (name, said) in differ {
        if let Some(predicted) = outcomes.get(name, FEW, apart) {
            let series = format!("busiest over idlest thread, {name}");
            points.push(Point { series, x: FEW, unit: "ratio", predicted, said });
        }
    }
    points
}
