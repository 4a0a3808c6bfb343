//! HatRPC figure 4: latency of its protocols by message size, one client.

use super::hatrpc::{DIRECT, Polling, RFP, load, names, protocols, series};
use super::{Effort, Figure, Outcomes, Paper, Point, Run, say};
use dunlin_scenario::load::Extent;

pub(super) const FIGURE: Figure = Figure::predicted(
    [
        "hatrpc-4",
        "Latency of calls by message size, one client and one server thread",
        "hatrpc",
        "size_bytes",
    ],
    "Requests and results are of one size. Over 4 KiB those that write into a ring, and those that fetch, go by read rendezvous, \
     since the engine's rings do not grow with payloads, and Eager-SendRecv goes in messages of 4 KiB.",
    runs,
    points,
);

/// Largest small payload, in bytes (HatRPC 4.3).
const SMALL: u32 = 4096;

fn runs(effort: Effort) -> Vec<Run> {
    let (sizes, calls): (&[u32], u64) = match effort {
        Effort::Full => (&[4, 16, 64, 256, 512, 1024, 2048, 4096, 16_384, 65_536, 131_072, 524_288], 400),
        Effort::Quick => (&[64, 512, 131_072], 40),
    };
    let mut runs = Vec::new();
    for (name, polling, plan) in protocols() {
        for bytes in sizes {
            let mut load = load(1, plan, *bytes);
            load.workers = 1;
            load.extent = Extent::Calls(calls);
            load.limit = 10_000_000_000;
            runs.push(Run::of(series(name, polling), *bytes, load));
        }
    }
    runs
}

fn points(outcomes: &Outcomes) -> Vec<Point> {
    let mean = |outcome: &super::Outcome| outcome.mean_us;
    let mut points = outcomes.as_they_are("us", mean);
    for name in names(Polling::Event) {
        let (event, busy) = (series(name, Polling::Event), series(name, Polling::Busy));
        let title = format!("event over busy, {name}");
        points.extend(outcomes.ratios(&title, &event, &busy, mean));
        for x in outcomes.xs() {
            say(
                &mut points,
                &title,
                x,
                Paper::AtLeast(1.0),
                "3.2: with busy polling lower than with event polling",
            );
        }
    }
    let direct = series(DIRECT, Polling::Busy);
    let others: Vec<String> = names(Polling::Busy)
        .iter()
        .filter(|name| **name != DIRECT)
        .map(|name| series(name, Polling::Busy))
        .collect();
    for x in outcomes.xs() {
        let best = others.iter().filter_map(|name| outcomes.get(name, x, mean)).reduce(f64::min);
        if let (Some(direct), Some(best)) = (outcomes.get(&direct, x, mean), best) {
            let title = format!("{DIRECT} over the best other, busy");
            points.push(Point {
                series: title.clone(),
                x,
                unit: "ratio",
                predicted: direct / best,
                said: None,
            });
            if x <= SMALL {
                say(&mut points, &title, x, Paper::AtMost(1.0), "3.2: the best for small messages");
            }
        }
    }
    let title = format!("{RFP} over {DIRECT}, busy");
    points.extend(outcomes.ratios(&title, &series(RFP, Polling::Busy), &direct, mean));
    points
}
