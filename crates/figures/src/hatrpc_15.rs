//! HatRPC figures 15 and 16: its key-value store on LMDB under YCSB's workloads A and B, where half of the
//! GETs and PUTs cover ten keys; with hints for the service, hints per function, and the protocols of four
//! other systems.

use super::hatrpc::crowd;
use super::hatrpc_hints::Hinted;
use super::{Effort, Figure, MOST_FUNCTIONS, OfFunction, Outcomes, Paper, Point, Run, measured};
use dunlin_fabric::Nanos;
use dunlin_hints::PerfGoal;
use dunlin_scenario::load::Function;
use dunlin_scenario::random_values::{Sizes, Times};

pub(super) const UPDATES: Figure = Figure::predicted(
    ["hatrpc-15", "HatKV, YCSB A, 128 clients, by operation", "hatrpc", "operation"],
    NOTES,
    |effort| runs([25; MOST_FUNCTIONS].map(|share| share * 10), effort),
    updates,
);
pub(super) const READS: Figure = Figure::predicted(
    ["hatrpc-16", "HatKV, YCSB B, 128 clients, by operation", "hatrpc", "operation"],
    NOTES,
    |effort| runs([475, 25, 475, 25], effort),
    reads,
);

const NOTES: &str = "Operations: 1 GET, 2 PUT, 3 MULTIGET, 4 MULTIPUT; keys of 24 bytes, values of 1000, ten to a batch. 128 clients on \
    four hosts, a server thread for each, 28 cores. HatRPC-Service: perf_goal = throughput, concurrency = 128; HatRPC-Function: payload_size \
    beside; the others: the former with the protocol named, so that they wait for events where they can. The store, assumed before any \
    prediction: 2 us for a key read, 2.6 us for a write transaction and 5.6 us for a key in it, one writer at a time (twice what LMDB without \
    syncing took on an AMD EPYC of 2024 with a file in memory).";

const CLIENTS: u32 = 128;
const CLIENT_HOSTS: usize = 4;
const SERVICE: &str = "HatRPC-Service";
const FUNCTION: &str = "HatRPC-Function";
/// The other systems' names in the paper, and the names of their protocols.
const OTHERS: [(&str, &str); 4] =
    [("AR-gRPC", "AR-gRPC"), ("HERD", "HERD"), ("Pilaf", "Pilaf"), ("RFP", "Remote-fetch")];

/// Measured time in which each client writes about seven times in workload A, at 8 or 59 us of the single
/// writer per PUT.
const MEASURED: Nanos = 30_000_000;

const READ_KEY: Nanos = 2_000;
const WRITE: Nanos = 2_600;
const WRITE_KEY: Nanos = 5_600;

/// Bytes of request and result, and the store's time with shared access and with exclusive access.
const OPERATIONS: [([u32; 2], Nanos, Nanos); MOST_FUNCTIONS] = [
    ([24, 1000], READ_KEY, 0),
    ([1024, 4], 0, WRITE + WRITE_KEY),
    ([240, 10_000], 10 * READ_KEY, 0),
    ([10_240, 4], 0, WRITE + 10 * WRITE_KEY),
];

fn runs(weights: [u32; MOST_FUNCTIONS], effort: Effort) -> Vec<Run> {
    let ours = [(SERVICE, false, None), (FUNCTION, true, None)];
    let others = OTHERS.map(|(name, protocol)| (name, false, Some(protocol)));
    let run = |(name, sizes, protocol): (&'static str, bool, Option<&'static str>)| {
        let function = |(weight, (bytes, shared, alone)): (u32, ([u32; 2], Nanos, Nanos))| {
            let hints = Hinted {
                goal: PerfGoal::Throughput,
                clients: CLIENTS,
                bytes: sizes.then(|| bytes.map(u64::from)),
            };
            let plan = hints.plan(protocol)?;
            let [request, result] = bytes.map(Sizes::Fixed);
            let [service, exclusive] = [shared, alone].map(Times::Fixed);
            Some(Function { weight, service, exclusive, ..Function::new(plan, request, result) })
        };
        let functions: Option<Vec<Function>> = weights.into_iter().zip(OPERATIONS).map(function).collect();
        let mut load = crowd(CLIENTS, functions?, effort);
        load.client_hosts = CLIENT_HOSTS;
        // HERD's requests have one region for all clients.
        load.request_blocks = (protocol == Some("HERD")).then_some(64);
        load.extent = measured(effort, MEASURED);
        Some(Run::of(name, CLIENTS, load))
    };
    ours.into_iter().chain(others).filter_map(run).collect()
}

/// Returns one value of each operation of each run.
fn by_operation(outcomes: &Outcomes, unit: &'static str, value: fn(&OfFunction) -> f64) -> Vec<Point> {
    let mut points = Vec::new();
    for (run, outcome) in &outcomes.0 {
        for (x, function) in (1..).zip(&outcome.functions) {
            points.push(Point {
                series: format!("{}, {unit}", run.series),
                x,
                unit,
                predicted: value(function),
                said: None,
            });
        }
    }
    points
}

/// A system, and the paper's "up to" claims about it against each other system, over all operations.
struct Claim {
    who: &'static str,
    /// Largest ratio of its throughput to the other's.
    more: [f64; OTHERS.len()],
    /// Smallest ratio of its latency to the other's.
    less: [f64; OTHERS.len()],
}

fn claimed(outcomes: &Outcomes, source: &'static str, claims: [Claim; 2]) -> Vec<Point> {
    let mut points = by_operation(outcomes, "kops", |function| function.mops * 1e3);
    points.extend(by_operation(outcomes, "us", |function| function.mean_us));
    let find = |name: &str| {
        outcomes.0.iter().find(|(run, _)| run.series == name).map(|(_, outcome)| outcome.functions)
    };
    for Claim { who, more, less } in claims {
        for (place, (other, _)) in OTHERS.into_iter().enumerate() {
            let (Some(mine), Some(theirs)) = (find(who), find(other)) else { continue };
            let extreme = |value: fn(&OfFunction) -> f64, most: bool| {
                let ratios = (1..).zip(mine.iter().zip(&theirs)).map(|(x, (mine, theirs))| {
                    let ratio: f64 = value(mine) / value(theirs);
                    (x, ratio)
                });
                ratios.reduce(|one, next| if (next.1 > one.1) == most { next } else { one })
            };
            let mut say = |what: &str, found: Option<(u32, f64)>, paper: f64| {
                points.extend(found.map(|(x, predicted)| Point {
                    series: format!("{what} of {who} over {other}"),
                    x,
                    unit: "ratio",
                    predicted,
                    said: Some((Paper::Value(paper), source)),
                }));
            };
            say("most throughput", extreme(|function| function.mops, true), more[place]);
            say("least latency", extreme(|function| function.mean_us, false), less[place]);
        }
    }
    points
}

fn updates(outcomes: &Outcomes) -> Vec<Point> {
    let claims = [
        Claim { who: SERVICE, more: [1.19, 2.68, 2.21, 2.22], less: [0.642, 0.268, 0.470, 0.480] },
        Claim { who: FUNCTION, more: [1.68, 3.80, 2.29, 2.31], less: [0.497, 0.203, 0.419, 0.428] },
    ];
    claimed(outcomes, "5.4: workload A, up to", claims)
}

fn reads(outcomes: &Outcomes) -> Vec<Point> {
    let claims = [
        Claim { who: SERVICE, more: [3.80, 6.38, 2.28, 2.36], less: [0.247, 0.160, 0.371, 0.353] },
        Claim { who: FUNCTION, more: [4.42, 7.42, 2.79, 2.90], less: [0.226, 0.145, 0.337, 0.321] },
    ];
    claimed(outcomes, "5.4: workload B, up to", claims)
}
