//! The value of sending the first READ for a result at its expected time, instead of at once and repeatedly
//! (RF-RPC section 3.2), compared with replies for which the client spins, spins for a limited time, or
//! sleeps: READs per call, latency and throughput. Not a figure of the paper.

use super::rf_rpc::{THREADS, gets};
use super::{Effort, Figure, Outcome, Outcomes, Point, Run};
use dunlin_fabric::Nanos;
use dunlin_rpc::{CompletionMode, FetchChoice, FirstRead, ResponseHalf};
use dunlin_scenario::load::{Extent, Load, Posting};
use dunlin_scenario::random_values::Times;

pub(super) const FIGURE: Figure = Figure::predicted(
    [
        "rf-rpc-wait",
        "READs and latency of calls whose first READ is sent at once, or when the result is expected, and of replies, 16 server threads",
        "rf-rpc",
        "process_time_us",
    ],
    "As rf-rpc-9, with 7 and 35 clients and results of 32 bytes. 'At once' fetches over and over, as in the paper. Both ways of fetching have F 256 and R \
     16, so that all results are fetched; beside them 'expected, R 5', which has results written back beyond. 'Exponential' has process times that are \
     exponentially distributed, 'bimodal' ones of which one in ten is ten times as long as the others, both with the same mean. Replies are written with immediate \
     data; adaptive waiting spins for 20 us before it sleeps. A call has one WRITE; the other work requests of a client are its READs, and its words that \
     results shall be written back.",
    runs,
    points,
);

/// How clients obtain their results.
#[derive(Clone, Copy)]
struct Way {
    name: &'static str,
    response: ResponseHalf,
    completion: CompletionMode,
    first_read: FirstRead,
    retries: u32,
}

const fn fetched(name: &'static str, first_read: FirstRead, retries: u32) -> Way {
    Way {
        name,
        response: ResponseHalf::FetchOrWriteImm,
        completion: CompletionMode::Busy,
        first_read,
        retries,
    }
}

const fn written(name: &'static str, completion: CompletionMode) -> Way {
    Way { name, response: ResponseHalf::WriteImm, completion, first_read: FirstRead::AtOnce, retries: 5 }
}

const AT_ONCE: &str = "at once";
const EXPECTED: &str = "when expected";
const WAYS: [Way; 7] = [
    fetched(AT_ONCE, FirstRead::AtOnce, 16),
    fetched(EXPECTED, FirstRead::WhenExpected, 16),
    fetched("at once, R 5", FirstRead::AtOnce, 5),
    fetched("when expected, R 5", FirstRead::WhenExpected, 5),
    written("replies, busy", CompletionMode::Busy),
    written("replies, adaptive", CompletionMode::Adaptive),
    written("replies, events", CompletionMode::Event),
];
const QUICK_WAYS: usize = 2;
const TIMES_US: [u32; 6] = [0, 1, 3, 5, 10, 30];
const QUICK_TIMES_US: [u32; 2] = [0, 3];
const CLIENTS: [usize; 2] = [7, 35];
const KINDS: [&str; 3] = ["fixed", "exponential", "bimodal"];

fn series(way: &str, kind: &str, clients: usize) -> String {
    format!("{way}, {kind}, {clients} clients")
}

/// Returns process times of a kind with a given mean.
fn times(kind: &str, mean: Nanos) -> Times {
    match kind {
        "exponential" => Times::Exponential(mean as f64),
        // Nine values of a and one of 10 a have the mean 1.9 a.
        "bimodal" => Times::Bimodal(mean * 10 / 19, mean * 100 / 19, 10),
        _ => Times::Fixed(mean),
    }
}

fn load(effort: Effort, way: Way, kind: &str, time: u32, clients: usize) -> Load {
    let mut load = gets(way.response, THREADS, u64::from(time) * 1000, effort);
    (load.clients, load.client_hosts, load.posting) = (clients, clients.min(7), Posting::Counted);
    load.fetch_choice = FetchChoice::Fixed { retries: way.retries, bytes: 256 };
    load.first_read = way.first_read;
    load.extent = match effort {
        Effort::Full => Extent::Time { warm_up: 4_000_000, measured: 4_000_000 },
        Effort::Quick => Extent::Time { warm_up: 2_000_000, measured: 4_000_000 },
    };
    for function in &mut load.functions {
        function.plan = function.plan.completion(way.completion, CompletionMode::Busy);
        if let Times::Fixed(nanos) = function.service {
            function.service = times(kind, nanos);
        }
    }
    load
}

fn runs(effort: Effort) -> Vec<Run> {
    let (times, ways): (&[u32], &[Way]) = match effort {
        Effort::Full => (&TIMES_US, &WAYS),
        Effort::Quick => (&QUICK_TIMES_US, &WAYS[..QUICK_WAYS]),
    };
    let mut runs = Vec::new();
    for clients in CLIENTS {
        for kind in KINDS {
            for time in times {
                for way in ways {
                    let load = load(effort, *way, kind, *time, clients);
                    runs.push(Run::of(series(way.name, kind, clients), *time, load));
                }
            }
        }
    }
    runs
}

/// Name of a series, its unit, and its value in a run.
type Value = (&'static str, &'static str, fn(&Outcome) -> f64);

const READS: &str = "READs a call";
const VALUES: [Value; 4] = [
    (READS, "reads", |outcome| outcome.posted_per_call - 1.0),
    ("median", "us", |outcome| outcome.quantiles_us[1]),
    ("99% of calls", "us", |outcome| outcome.quantiles_us[2]),
    ("throughput", "mops", |outcome| outcome.mops),
];

fn points(outcomes: &Outcomes) -> Vec<Point> {
    let mut points = Vec::new();
    let mut point = |series: String, x, unit, predicted: f64| {
        points.push(Point { series, x, unit, predicted, said: None });
    };
    for clients in CLIENTS {
        for kind in KINDS {
            for x in outcomes.xs() {
                for (what, unit, value) in VALUES {
                    let of = |way| outcomes.get(&series(way, kind, clients), x, value);
                    for way in WAYS {
                        // Replies need no READs.
                        if way.response == ResponseHalf::WriteImm && what == READS {
                            continue;
                        }
                        let Some(value) = of(way.name) else { continue };
                        point(
                            format!("{what}, {}", series(way.name, kind, clients)),
                            x,
                            unit,
                            value.max(0.001),
                        );
                    }
                    let (Some(at_once), Some(expected)) = (of(AT_ONCE), of(EXPECTED)) else { continue };
                    let name = format!("{EXPECTED} over {AT_ONCE}, {what}, {kind}, {clients} clients");
                    point(name, x, "ratio", (expected / at_once).max(0.001));
                }
            }
        }
    }
    points
}
