//! What it is worth to send the first READ for a result when that is likely to be there, instead of at once and then over and over
//! (RF-RPC section 3.2): READs of a call, and its latency. No figure of the paper's.

use super::rf_rpc::{THREADS, gets};
use super::{Effort, Figure, Outcome, Outcomes, Point, Run};
use crate::load::{Extent, Load, Posting};
use crate::random_values::Times;
use dunlin_rpc::{FetchChoice, FirstRead, ResponseHalf};

pub(super) const FIGURE: Figure = Figure::predicted(
    [
        "rf-rpc-wait",
        "READs and latency of calls whose first READ is sent at once, or when the result is expected, 16 server threads",
        "rf-rpc",
        "process_time_us",
    ],
    "As rf-rpc-9, with 7 and 35 clients, results of 32 bytes, R 5 and F 256, so that nothing but the time of the first READ differs. 'Varying' has process times \
     that are exponentially distributed, with the same mean. A call has one WRITE; the other work requests of a client are its READs, and its words that results shall be \
     written back.",
    runs,
    points,
);

const AT_ONCE: &str = "at once";
const EXPECTED: &str = "when expected";
const WAYS: [(&str, FirstRead); 2] = [(AT_ONCE, FirstRead::AtOnce), (EXPECTED, FirstRead::WhenExpected)];
const TIMES_US: [u32; 6] = [0, 1, 2, 3, 5, 10];
const QUICK_TIMES_US: [u32; 2] = [0, 3];
const CLIENTS: [usize; 2] = [7, 35];
const KINDS: [&str; 2] = ["steady", "varying"];

fn series(way: &str, kind: &str, clients: usize) -> String {
    format!("{way}, {kind}, {clients} clients")
}

fn runs(effort: Effort) -> Vec<Run> {
    let (times, kinds): (&[u32], &[&str]) = match effort {
        Effort::Full => (&TIMES_US, &KINDS),
        Effort::Quick => (&QUICK_TIMES_US, &KINDS[..1]),
    };
    let mut runs = Vec::new();
    for clients in CLIENTS {
        for kind in kinds {
            for time in times {
                for (way, first_read) in WAYS {
                    let gets = gets(ResponseHalf::FetchOrWrite, THREADS, u64::from(*time) * 1000, effort);
                    let mut load = Load {
                        clients,
                        client_hosts: clients.min(7),
                        posting: Posting::Counted,
                        fetch_choice: FetchChoice::Fixed { retries: 5, bytes: 256 },
                        first_read,
                        extent: match effort {
                            Effort::Full => Extent::Time { warm_up: 4_000_000, measured: 4_000_000 },
                            Effort::Quick => Extent::Time { warm_up: 2_000_000, measured: 1_000_000 },
                        },
                        ..gets
                    };
                    for function in &mut load.functions {
                        if let (Times::Fixed(nanos), "varying") = (function.service, *kind) {
                            function.service = Times::Exponential(nanos as f64);
                        }
                    }
                    runs.push(Run::of(series(way, kind, clients), *time, load));
                }
            }
        }
    }
    runs
}

/// What a series is called, its unit, and what it is of a run.
type Value = (&'static str, &'static str, fn(&Outcome) -> f64);

const VALUES: [Value; 4] = [
    ("READs a call", "reads", |outcome| outcome.posted_per_call - 1.0),
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
                    let (Some(at_once), Some(expected)) = (of(AT_ONCE), of(EXPECTED)) else { continue };
                    for (way, value) in [(AT_ONCE, at_once), (EXPECTED, expected)] {
                        point(format!("{what}, {}", series(way, kind, clients)), x, unit, value.max(0.001));
                    }
                    let name = format!("{EXPECTED} over {AT_ONCE}, {what}, {kind}, {clients} clients");
                    point(name, x, "ratio", (expected / at_once).max(0.001));
                }
            }
        }
    }
    points
}
