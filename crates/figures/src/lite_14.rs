//! LITE figure 14, one-sided part: WRITEs of all nodes to all others, by the number of nodes.

use super::lite::{PROFILE, measured, native, tier, warm_up};
use super::{Effort, Figure, Outcomes, Paper, Point, Run};
use dunlin_scenario::native::NativeWrites;
use dunlin_scenario::tier::TierLoad;

pub(super) const FIGURE: Figure = Figure::predicted(
    [
        "lite-14",
        "Rate of WRITEs of 64 bytes of a node, 8 threads each, by the number of nodes",
        PROFILE,
        "nodes",
    ],
    "Each thread writes to a random place of the 1 MiB that its node has on a random other node, and waits for the completion. The \
     tier: K paths of a node, each used by one thread at a time, so the others wait. Native: 2 x N x T queue pairs, a pair for each \
     thread, peer and direction. 'Scales well' is read as a rate of a node within a tenth of that with two nodes.",
    runs,
    points,
);

const THREADS: u32 = 8;
const NATIVE: &str = "2 x N x T queue pairs";
/// Values of K; the last is a path for each thread.
const PATHS: [u16; 5] = [1, 2, 3, 4, 8];

fn series(paths: u16) -> String {
    format!("the tier, K = {paths}")
}

fn runs(effort: Effort) -> Vec<Run> {
    let nodes: &[u32] = match effort {
        Effort::Full => &[2, 3, 4, 5, 6, 7, 8, 9, 10],
        Effort::Quick => &[2, 4],
    };
    let mut runs = Vec::new();
    for &nodes in nodes {
        let (warm_up, measured) =
            (warm_up(1, effort) * u64::from(nodes), measured(effort) * u64::from(nodes));
        let load = NativeWrites {
            hosts: nodes as usize,
            active: nodes as usize,
            threads: THREADS as usize,
            warm_up,
            measured,
            ..native(64, effort)
        };
        runs.push(Run::native(NATIVE, nodes, load));
        for paths in PATHS {
            let load = TierLoad {
                nodes: nodes as usize,
                active: nodes as usize,
                threads: THREADS as usize,
                paths,
                warm_up,
                measured,
                ..tier(64, effort)
            };
            runs.push(Run::tier(&series(paths), nodes, load));
        }
    }
    runs
}

fn points(outcomes: &Outcomes) -> Vec<Point> {
    // A run counts all nodes.
    let mut points = outcomes.as_they_are("mops", |outcome| outcome.mops);
    points.iter_mut().for_each(|point| point.predicted /= f64::from(point.x));
    let rate = |series: &str, x: u32| {
        points.iter().find(|point| point.series == series && point.x == x).map(|point| point.predicted)
    };
    let mut ratios = Vec::new();
    for series in PATHS.map(series).into_iter().chain([NATIVE.to_owned()]) {
        let Some(two) = rate(&series, 2) else { continue };
        for x in outcomes.xs().into_iter().filter(|x| *x > 2) {
            let Some(rate) = rate(&series, x) else { continue };
            let said = (series != NATIVE)
                .then_some((Paper::Between(0.9, 1.1), "6.1: scales well with the number of nodes"));
            let series = format!("{series}, over that of two nodes");
            ratios.push(Point { series, x, unit: "ratio", predicted: rate / two, said });
        }
    }
    points.append(&mut ratios);
    points
}
