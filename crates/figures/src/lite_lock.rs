//! LITE section 7.2: taking a free lock, and handing a lock over.

use super::lite::PROFILE;
use super::{Effort, Figure, Outcomes, Paper, Point, Run};
use dunlin_scenario::tier::{Act, TierLoad};

pub(super) const FIGURE: Figure = Figure::predicted(
    ["lite-lock", "Time to take a free lock, and from grant to grant of a contended one", PROFILE, "threads"],
    "The owner of the lock is a node of its own and takes no lock. Free: one thread takes a lock of another node and gives it back; the time is that of \
     taking. Contended: all threads take and give back one lock, which protects nothing, all the time; the time is the run's by grants. 'Scales well with \
     the number of contending threads and nodes' is read as no growth of that time by more than a tenth from the fewest threads on.",
    runs,
    points,
);

const FREE: &str = "a free lock";
const NODES: &str = "from grant to grant, a node for each thread up to 8";
const WITHIN: &str = "from grant to grant, threads of one node";
/// Nodes whose threads contend.
const MOST_NODES: u32 = 8;

fn runs(effort: Effort) -> Vec<Run> {
    let (crowds, within): (&[u32], &[u32]) = match effort {
        Effort::Full => (&[2, 4, 8, 16, 40, 80], &[2, 4, 8]),
        Effort::Quick => (&[2, 8], &[4]),
    };
    let load = |act, active: u32, threads: u32| TierLoad {
        act,
        nodes: active as usize + 1,
        active: active as usize,
        threads: threads as usize,
        paths: 4,
        warm_up: 200,
        measured: 2_000,
        ..TierLoad::of(PROFILE)
    };
    let mut runs = vec![Run::tier(FREE, 1, load(Act::Lock, 1, 1))];
    for &threads in crowds {
        let active = threads.min(MOST_NODES);
        runs.push(Run::tier(NODES, threads, load(Act::Contend, active, threads / active)));
    }
    runs.extend(within.iter().map(|&threads| Run::tier(WITHIN, threads, load(Act::Contend, 1, threads))));
    runs
}

fn points(outcomes: &Outcomes) -> Vec<Point> {
    let mut points = outcomes.as_they_are("us", |outcome| outcome.mean_us);
    points.retain(|point| point.series == FREE);
    for point in &mut points {
        point.said = Some((Paper::Value(2.2), "7.2: 2.2 us when no contention"));
    }
    let mut grants = outcomes.as_they_are("us", |outcome| 1.0 / outcome.mops);
    grants.retain(|point| point.series != FREE);
    let first = grants.iter().find(|point| point.series == NODES).map(|point| (point.x, point.predicted));
    for point in grants.iter().filter(|point| point.series == NODES) {
        let Some((x, first)) = first.filter(|(x, _)| point.x > *x) else { continue };
        points.push(Point {
            series: format!("{NODES}, over that of {x} threads"),
            unit: "ratio",
            predicted: point.predicted / first,
            said: Some((Paper::AtMost(1.1), "7.2: scales well with contending threads and nodes")),
            ..point.clone()
        });
    }
    points.extend(grants);
    points
}
