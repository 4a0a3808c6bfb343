//! RF-RPC figure 8: latency of calls at peak throughput.

use super::drawing::{Drawing, lines};
use super::rf_rpc::{FETCH, FETCH_WAITS, REPLY, REPLY_WAITS, SYSTEMS, THREADS};
use super::{Effort, Figure, Outcome, Outcomes, Paper, Point, Run, say};
use dunlin_rpc::ResponseHalf;
use dunlin_scenario::load::Posting;

pub(super) const FIGURE: Figure = Figure::predicted(
    ["rf-rpc-8", "Latency of GETs of 32 bytes, 35 clients", "rf-rpc", "server_threads"],
    "At peak throughput: Jakiro with 16 server threads, ServerReply with the 6 after which the paper's falls. Every client is \
     connected to every server thread. PUTs (5% in the paper) are taken as GETs. A latency is from the call to its result. \
     'That waits': as in rf-rpc-7. RDMA-Memcached is not modelled.",
    runs,
    points,
)
.drawn(drawings);

/// Server threads at which ServerReply is fastest (RF-RPC 5.3.1: with more it falls).
const REPLY_THREADS: u16 = 6;

const REQUESTS: &str = "work requests of a client a call";

fn runs(effort: Effort) -> Vec<Run> {
    SYSTEMS
        .into_iter()
        .map(|system| {
            let threads = if system.response == ResponseHalf::FetchOrWrite { THREADS } else { REPLY_THREADS };
            let mut load = system.gets(threads, effort);
            if load.posting == Posting::Engine {
                load.posting = Posting::Counted;
            }
            Run::of(system.name, threads.into(), load)
        })
        .collect()
}

/// Draws the figure itself: the cumulative distribution of latencies.
fn drawings(outcomes: &Outcomes) -> Vec<Drawing> {
    let turned = |(percent, us): &(f64, f64)| (*us, *percent);
    let series = outcomes.0.iter().map(|(run, outcome)| {
        let name = format!("{}, {} threads", run.series, run.x);
        (name, outcome.percentiles_us.iter().map(turned).collect())
    });
    vec![lines(FIGURE.title, "percent of calls at most", "latency, microseconds", series.collect())]
}

/// Name of a series, its unit, and its value in a run.
type Value = (&'static str, &'static str, fn(&Outcome) -> f64);

fn points(outcomes: &Outcomes) -> Vec<Point> {
    let mut points = Vec::new();
    let values: [Value; 5] = [
        ("mean", "us", |outcome| outcome.mean_us),
        ("15% of calls", "us", |outcome| outcome.quantiles_us[0]),
        ("50% of calls", "us", |outcome| outcome.quantiles_us[1]),
        ("99% of calls", "us", |outcome| outcome.quantiles_us[2]),
        (REQUESTS, "requests", |outcome| outcome.posted_per_call),
    ];
    for (what, unit, value) in values {
        let mut mine = outcomes.as_they_are(unit, value);
        mine.iter_mut().for_each(|point| point.series = format!("{}, {what}", point.series));
        points.extend(mine);
    }
    let threads = u32::from(THREADS);
    let of = |points: &[Point], series: &str| {
        points.iter().find(|point| point.series == series).map(|point| point.predicted)
    };
    let relations = [
        ("mean", Paper::Value(2.08), "5.3.2: 108% more"),
        ("15% of calls", Paper::AtMost(1.0), "5.3.2: ServerReply has the lower 15-percentile latency"),
        ("50% of calls", Paper::AtLeast(1.0), "5.3.2: higher at 50 and 99 percent"),
        ("99% of calls", Paper::AtLeast(1.0), "5.3.2: higher at 50 and 99 percent"),
    ];
    for (fetching, replying) in [(FETCH, REPLY), (FETCH_WAITS, REPLY_WAITS)] {
        for (what, paper, source) in relations {
            let (fetch, reply) = (format!("{fetching}, {what}"), format!("{replying}, {what}"));
            if let (Some(fetch), Some(reply)) = (of(&points, &fetch), of(&points, &reply)) {
                let (series, predicted) = (format!("{replying} over {fetching}, {what}"), reply / fetch);
                points.push(Point {
                    series,
                    x: threads,
                    unit: "ratio",
                    predicted,
                    said: Some((paper, source)),
                });
            }
        }
        let said = [
            (fetching, threads, "mean", Paper::Value(5.78), "5.3.2: 5.78 us"),
            (replying, REPLY_THREADS.into(), "mean", Paper::Value(12.06), "5.3.2: 12.06 us"),
            (fetching, threads, "99% of calls", Paper::AtMost(7.0), "5.3.2: about 99% below 7 us"),
            (fetching, threads, REQUESTS, Paper::Value(2.005), "5.2: 2.005 round trips a call"),
        ];
        for (system, x, what, paper, source) in said {
            say(&mut points, &format!("{system}, {what}"), x, paper, source);
        }
    }
    points
}
