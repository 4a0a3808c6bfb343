//! Processes of several hosts that all call each other: through the nodes of their hosts, and over a connection for each pair.
//! LITE's paper has no such figure; section 6.1 counts the queue pairs of both ways.

use super::drawing::Drawing;
use super::lite::{PROFILE, measured};
use super::{Effort, Figure, Outcome, Outcomes, Paper, Point, Run};
use dunlin_scenario::processes::{ProcessCalls, Way};

pub(super) const FIGURE: Figure = Figure::predicted(
    [
        "lite-hosts",
        "Rate of calls of a host whose processes call those of nine others, by processes of a host",
        PROFILE,
        "processes",
    ],
    "Section 6.1: K queue pairs for each pair of nodes, or one for each pair of processes. Ten hosts; each process has one thread that \
     calls every process of the other hosts by turns, one call of 64 bytes at a time with 8 bytes back, and one that answers. Through the \
     node: processes attach to the node of their host, which has one or four threads for them. Pairs: a connection of the engine from each process to each other one.",
    runs,
    points,
)
.drawn(drawings);

const HOSTS: usize = 10;
const NODE: &str = "through the node";
const WORKERS: &str = "through the node, four workers";
const PAIRS: &str = "a connection for each pair of processes";

fn runs(effort: Effort) -> Vec<Run> {
    let counts: &[u32] = match effort {
        Effort::Full => &[1, 2, 4, 8, 16, 32],
        Effort::Quick => &[1, 4],
    };
    let load = |count: u32, way, workers| {
        let callers = HOSTS as u64 * u64::from(count);
        ProcessCalls {
            hosts: HOSTS,
            workers,
            processes: count as usize,
            // Each process connects to each other one in its first round.
            warm_up: callers * (20 + (HOSTS as u64 - 1) * u64::from(count)),
            measured: callers * measured(effort) / 50,
            ..ProcessCalls::of(PROFILE, way)
        }
    };
    let both = |&count: &u32| {
        [(NODE, Way::Nodes, 1), (WORKERS, Way::Nodes, 4), (PAIRS, Way::Pairs, 1)]
            .map(|(series, way, workers)| Run::processes(series, count, load(count, way, workers)))
    };
    counts.iter().flat_map(both).collect()
}

fn of_host(outcome: &Outcome) -> f64 {
    outcome.mops / HOSTS as f64
}

fn points(outcomes: &Outcomes) -> Vec<Point> {
    let mut points = outcomes.as_they_are("mops", of_host);
    let most = outcomes.xs().into_iter().max();
    for series in [NODE, WORKERS] {
        let mut ratios = outcomes.ratios(&format!("{series}, over pairs"), series, PAIRS, of_host);
        for point in ratios.iter_mut().filter(|point| Some(point.x) == most) {
            point.said = Some((Paper::AtLeast(1.5), "an aim: with 64 processes of 100 hosts"));
        }
        points.append(&mut ratios);
    }
    points.extend(outcomes.as_they_are("us", |outcome| outcome.mean_us));
    points
}

fn drawings(outcomes: &Outcomes) -> Vec<Drawing> {
    let name = |count: u32| format!("{count}");
    vec![outcomes.bars("Calls of a host by its processes", "million calls a second", name, of_host)]
}
