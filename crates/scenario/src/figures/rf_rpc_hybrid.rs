//! What the choice between fetching and writing back is worth, and what it costs: calls of several lengths and sizes, chosen for by the
//! engine, always fetched, and always written back. No figure of the paper's; it says that the first is as good as the better of both.

use super::rf_rpc::{THREADS, gets};
use super::{Effort, Figure, Outcomes, Point, Run};
use crate::random_values::Sizes;
use dunlin_rpc::ResponseHalf;

pub(super) const FIGURE: Figure = Figure::predicted(
    [
        "rf-rpc-hybrid",
        "Throughput of calls that are fetched or written back, 16 server threads, 35 clients",
        "rf-rpc",
        "process_time_us",
    ],
    "As rf-rpc-9, with results of 32 and of 600 bytes. What the tuner chooses from are the rates of the model's \
     own NIC.",
    runs,
    points,
);

const CHOSEN: &str = "chosen";
const FETCHED: &str = "always fetched";
const WRITTEN: &str = "always written back";
const RESULTS: [u32; 2] = [32, 600];

fn series(what: &str, bytes: u32) -> String {
    format!("{what}, {bytes} B")
}

fn runs(effort: Effort) -> Vec<Run> {
    let times: &[u32] = match effort {
        Effort::Full => &[0, 3, 6, 9, 15],
        Effort::Quick => &[0, 15],
    };
    let halves = [
        (FETCHED, ResponseHalf::Fetch),
        (WRITTEN, ResponseHalf::Write),
        // Drawn above the others, which it follows.
        (CHOSEN, ResponseHalf::FetchOrWrite),
    ];
    let mut runs = Vec::new();
    for bytes in RESULTS {
        for time in times {
            for (what, half) in halves {
                let mut load = gets(half, THREADS, u64::from(*time) * 1000, effort);
                load.functions.iter_mut().for_each(|function| function.results = Sizes::Fixed(bytes));
                runs.push(Run::of(series(what, bytes), *time, load));
            }
        }
    }
    runs
}

fn points(outcomes: &Outcomes) -> Vec<Point> {
    let mut points = outcomes.as_they_are("mops", |outcome| outcome.mops);
    for bytes in RESULTS {
        for x in outcomes.xs() {
            let of = |what| outcomes.get(&series(what, bytes), x, |outcome| outcome.mops);
            let (Some(chosen), Some(fetched), Some(written)) = (of(CHOSEN), of(FETCHED), of(WRITTEN)) else {
                continue;
            };
            for (over, mops) in [("the better of both", fetched.max(written)), (WRITTEN, written)] {
                let series = format!("chosen over {over}, {bytes} B");
                points.push(Point { series, x, unit: "ratio", predicted: chosen / mops, said: None });
            }
        }
    }
    points
}
