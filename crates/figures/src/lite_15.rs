//! LITE figure 15: the log and the graph engine with high priority, beside a stream of low priority.

use super::drawing::Drawing;
use super::lite::PROFILE;
use super::{Effort, Figure, Outcomes, Paper, Point, Run};
use dunlin_scenario::graph::GraphLoad;
use dunlin_scenario::log::LogLoad;
use dunlin_scenario::stream::Stream;
use dunlin_tier_node::Policy;

pub(super) const FIGURE: Figure = Figure::predicted(
    [
        "lite-15",
        "Performance of applications of high priority beside a stream of low priority",
        PROFILE,
        "nodes",
    ],
    "Four nodes of an application with four threads each, over K = 4 paths: commits of one entry of 16 bytes to the log of the first node (millions a second), and \
     PageRank as in lite-graph (milliseconds). The stream: four further threads of each of these nodes, which write 4 KB to the other three and to a fifth node by \
     turns, and wait for each WRITE; the paper says 'constantly writing data to four nodes', and states no number of threads. HW-Sep: 3 paths of high priority, 1 of \
     low. Ratios are of performance: rates of commits, and reciprocals of times. The curves are not in the text.",
    runs,
    points,
)
.drawn(drawings);

const NODES: u32 = 4;
const THREADS: usize = 4;
const ALONE: &str = "no b/g traffic";
const NONE: &str = "no QoS";
const SEPARATE: &str = "HW-Sep";
const PACED: &str = "SW-Pri";
const SHARES: &str = "shares";
/// The policy, and the threads of the stream at each node.
const SERIES: [(&str, Policy, usize); 5] = [
    (ALONE, Policy::Arrival, 0),
    (NONE, Policy::Arrival, THREADS),
    (SEPARATE, Policy::Reserved { low: 1 }, THREADS),
    (PACED, Policy::Paced, THREADS),
    (SHARES, Policy::Shares, THREADS),
];
const LOG: &str = "log";
const GRAPH: &str = "graph";

fn runs(effort: Effort) -> Vec<Run> {
    let (measured, scale) = match effort {
        Effort::Full => (20_000, 17),
        Effort::Quick => (2_000, 11),
    };
    let run = |(series, policy, threads)| {
        let beside = Some(Stream { policy, threads });
        let log = LogLoad {
            nodes: NODES as usize,
            threads: THREADS,
            beside,
            warm_up: measured / 4,
            measured,
            ..LogLoad::of(PROFILE)
        };
        let graph =
            GraphLoad { nodes: NODES as usize, threads: THREADS, scale, beside, ..GraphLoad::of(PROFILE) };
        [
            Run::log(&format!("{LOG}, {series}"), NODES, log),
            Run::graph(&format!("{GRAPH}, {series}"), NODES, graph),
        ]
    };
    SERIES.into_iter().flat_map(run).collect()
}

fn points(outcomes: &Outcomes) -> Vec<Point> {
    let of = |application: &str, series: &str| {
        let name = format!("{application}, {series}");
        let found = outcomes.0.iter().find(|(run, _)| run.series == name);
        // A rate, or the reciprocal of a time.
        found.map(|(_, outcome)| if application == LOG { outcome.mops } else { 1.0 / outcome.value })
    };
    let mut points = Vec::new();
    for (application, unit) in [(LOG, "mops"), (GRAPH, "ms")] {
        for (series, ..) in SERIES {
            let Some(value) = of(application, series) else { continue };
            let predicted = if application == LOG { value } else { 1.0 / value };
            points.push(Point {
                series: format!("{application}, {series}"),
                x: NODES,
                unit,
                predicted,
                said: None,
            });
        }
    }
    let over =
        |application: &str, one: &str, other: &str| Some(of(application, one)? / of(application, other)?);
    let mut ratio = |series: String, value: Option<f64>, said: Option<(Paper, &'static str)>| {
        if let Some(predicted) = value {
            points.push(Point { series, x: NODES, unit: "ratio", predicted, said });
        }
    };
    let better =
        (Paper::AtLeast(1.0), "6.2: SW-Pri achieves better QoS than HW-Sep with real applications as well");
    for application in [LOG, GRAPH] {
        for series in [ALONE, SEPARATE, PACED, SHARES] {
            ratio(format!("{application}, {series} over no QoS"), over(application, series, NONE), None);
        }
        ratio(format!("{application}, SW-Pri over HW-Sep"), over(application, PACED, SEPARATE), Some(better));
    }
    let less = (Paper::AtLeast(1.0), "6.2: LITE-Graph is less affected by QoS than LITE-Log");
    for series in [SEPARATE, PACED] {
        let affected = |application| over(application, series, NONE);
        let value = affected(LOG).zip(affected(GRAPH)).map(|(log, graph)| log / graph);
        ratio(format!("{series} over no QoS, log over graph"), value, Some(less));
    }
    points
}

fn drawings(outcomes: &Outcomes) -> Vec<Drawing> {
    let of = |application: &str| {
        let runs = outcomes.0.iter().filter(|(run, _)| run.series.starts_with(application));
        Outcomes(runs.cloned().collect())
    };
    let group = |nodes| format!("{nodes} nodes");
    vec![
        of(LOG).bars("Commits to the log", "millions a second", group, |outcome| outcome.mops),
        of(GRAPH).bars("PageRank", "milliseconds", group, |outcome| outcome.value),
    ]
}
