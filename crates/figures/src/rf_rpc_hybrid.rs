//! The value and cost of the choice between fetching and writing back: calls of several lengths and sizes,
//! with the engine's choice, always fetched, and always written back. Not a figure of the paper. The claim:
//! the choice is as good as the better of both.

use super::drawing::{Drawing, lines};
use super::rf_rpc::{THREADS, gets, once_found};
use super::{Effort, Figure, Outcome, Outcomes, Point, Run};
use dunlin_rpc::{ClientConfig, ResponseHalf};
use dunlin_scenario::load::Load;
use dunlin_scenario::random_values::Sizes;

pub(super) const FIGURE: Figure = Figure::predicted(
    [
        "rf-rpc-hybrid",
        "Throughput of calls that are fetched or written back, 16 server threads, 35 clients",
        "rf-rpc",
        "process_time_us",
    ],
    "As rf-rpc-9, with results of 32 and of 600 bytes. 'Chosen': by the enumeration and fetched at once, as in the paper; 'by default': as clients \
     do if nothing is said, measured when they have found their way, after 25 to 100 ms. The tuner chooses by the rates of the model's \
     own NIC.",
    runs,
    points,
)
.drawn(drawings);

const CHOSEN: &str = "chosen";
/// A client's default: also chooses by the clock, and fetches when the result is expected.
const DEFAULT: &str = "by default";
const FETCHED: &str = "always fetched";
const WRITTEN: &str = "always written back";
const RESULTS: [u32; 2] = [32, 600];

/// Draws each result size separately, since the curves coincide for long handlers.
fn drawings(outcomes: &Outcomes) -> Vec<Drawing> {
    let of = |bytes: u32| {
        let line = |what: &str| {
            let along = |run: &Run, _: &Outcome| f64::from(run.x);
            (what.to_owned(), outcomes.line(&series(what, bytes), along, |outcome| outcome.mops))
        };
        let series = [FETCHED, WRITTEN, CHOSEN, DEFAULT].map(line).to_vec();
        let title =
            format!("Throughput of calls with results of {bytes} bytes, 16 server threads, 35 clients");
        lines(title, "million operations a second", "process time, microseconds", series)
    };
    RESULTS.map(of).to_vec()
}

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
        // Drawn on top of the others, which it follows.
        (CHOSEN, ResponseHalf::FetchOrWrite),
    ];
    let mut runs = Vec::new();
    for bytes in RESULTS {
        for time in times {
            for (what, half) in halves {
                let mut load = gets(half, THREADS, u64::from(*time) * 1000, effort);
                load.functions.iter_mut().for_each(|function| function.results = Sizes::Fixed(bytes));
                if half == ResponseHalf::FetchOrWrite {
                    let defaults = ClientConfig::default();
                    let (fetch_choice, first_read) = (defaults.fetch_choice, defaults.first_read);
                    let extent = once_found(*time, effort);
                    let load = Load { fetch_choice, first_read, extent, ..load.clone() };
                    runs.push(Run::of(series(DEFAULT, bytes), *time, load));
                }
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
            let default = outcomes.get(&series(DEFAULT, bytes), x, |outcome| outcome.mops);
            if let Some(mops) = default {
                let (series, predicted) =
                    (format!("{DEFAULT} over the better of both, {bytes} B"), mops / fetched.max(written));
                points.push(Point { series, x, unit: "ratio", predicted, said: None });
            }
            for (over, mops) in [("the better of both", fetched.max(written)), (WRITTEN, written)] {
                let series = format!("chosen over {over}, {bytes} B");
                points.push(Point { series, x, unit: "ratio", predicted: chosen / mops, said: None });
            }
        }
    }
    points
}
