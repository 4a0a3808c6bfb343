//! Processes that share a node of the memory tier: the rate of many small ones beside that of a single one, and the wait of
//! short operations behind the long ones of another process. LITE's paper has no such figures; the values are aims.

use super::lite::{PROFILE, measured, native, tier};
use super::{Effort, Figure, Outcome, Outcomes, Paper, Point, Run};
use dunlin_scenario::native::NativeWrites;
use dunlin_scenario::tier::{Process, TierLoad};

pub(super) const SHARED: Figure = Figure::predicted(
    [
        "lite-processes",
        "Rate of WRITEs of 64 bytes of a node whose 128 threads are in 16 processes or in one, by the number of nodes",
        PROFILE,
        "nodes",
    ],
    "Section 6.1: processes share the queue pairs of their node. Each thread writes to a random place of the memory that its process \
     has on a random other node, and waits for the completion. All processes attach to the node of their machine, which has K = 4 \
     paths. The memory of a node on another one is 64 KiB. Native: a queue pair for each thread, peer and direction.",
    shared_runs,
    shared_points,
);

pub(super) const STEPS: Figure = Figure::predicted(
    [
        "lite-steps",
        "Time of a WRITE of 64 bytes beside long WRITEs of another process of the node, by the threads of the latter",
        PROFILE,
        "threads",
    ],
    "Both processes attach to one node with K = 4 paths, and write to the other node. One thread writes 64 bytes at a time; the other \
     process writes 1 MiB at a time, by 0 to 4 threads, as many as a process may have in the pool. The wait is the longest time of a WRITE of 64 bytes without its mean time \
     alone; the aim is the time of one native WRITE of 64 KiB.",
    steps_runs,
    steps_points,
);

/// Nodes of the largest cluster.
const MOST: u32 = 100;
/// Threads of a node.
const THREADS: usize = 128;
/// Processes of a node.
const PROCESSES: usize = 16;
/// Bytes that a node has on another one.
const MEMORY: u64 = 64 << 10;
/// Paths of a node.
const PATHS: u16 = 4;
const ONE: &str = "one process of 128 threads";
const MANY: &str = "16 processes of 8 threads";
const NATIVE: &str = "2 x N x T queue pairs";

fn shared_runs(effort: Effort) -> Vec<Run> {
    let nodes: &[u32] = match effort {
        Effort::Full => &[2, 4, 10, MOST],
        Effort::Quick => &[2, 4],
    };
    let mut runs = Vec::new();
    for &nodes in nodes {
        // Enough for each thread to have its connection.
        let warm_up = measured(effort) * u64::from(nodes);
        let measured = warm_up / 2;
        // Two and a half million queue pairs, which have fallen far below with ten nodes.
        let native_load = (nodes < MOST).then(|| NativeWrites {
            hosts: nodes as usize,
            active: nodes as usize,
            threads: THREADS,
            region_bytes: MEMORY,
            warm_up,
            measured,
            ..native(64, effort)
        });
        runs.extend(native_load.map(|load| Run::native(NATIVE, nodes, load)));
        for (series, processes) in [(ONE, 1), (MANY, PROCESSES)] {
            let load = TierLoad {
                nodes: nodes as usize,
                active: nodes as usize,
                process: Process::Attached,
                processes,
                threads: THREADS / processes,
                region_bytes: MEMORY / processes as u64,
                paths: PATHS,
                warm_up,
                measured,
                ..tier(64, effort)
            };
            runs.push(Run::tier(series, nodes, load));
        }
    }
    runs
}

fn shared_points(outcomes: &Outcomes) -> Vec<Point> {
    // A run counts all nodes.
    let mut points = outcomes.as_they_are("mops", |outcome| outcome.mops);
    points.iter_mut().for_each(|point| point.predicted /= f64::from(point.x));
    let value: fn(&Outcome) -> f64 = |outcome| outcome.mops;
    let mut ratios = outcomes.ratios(&format!("{MANY} over {ONE}"), MANY, ONE, value);
    ratios.iter_mut().for_each(|point| {
        point.said = Some((Paper::AtLeast(0.95), "an aim: processes keep the rate of one"));
    });
    let rate = |series: &str, x: u32| {
        points.iter().find(|point| point.series == series && point.x == x).map(|point| point.predicted)
    };
    let Some(fewest) = outcomes.xs().into_iter().min() else { return points };
    for series in [ONE, MANY, NATIVE] {
        for x in outcomes.xs().into_iter().filter(|x| *x > fewest) {
            if let (Some(over), Some(under)) = (rate(series, x), rate(series, fewest)) {
                let said =
                    (series == NATIVE).then_some((Paper::AtMost(0.9), "2.4: falls with the queue pairs"));
                let series = format!("{series}, over that of {fewest} nodes");
                ratios.push(Point { series, x, unit: "ratio", predicted: over / under, said });
            }
        }
    }
    points.append(&mut ratios);
    points
}

/// With requests to the NIC of the tier's default length, and of at most 64 KiB.
const SHORT: [(&str, u32); 2] = [("64 B", 0), ("64 B, steps of 64 KiB", 64 << 10)];
const STEP: &str = "native WRITE of 64 KiB";

fn steps_runs(effort: Effort) -> Vec<Run> {
    let threads: &[u32] = match effort {
        Effort::Full => &[0, 1, 4],
        Effort::Quick => &[0, 4],
    };
    let mut runs = vec![Run::native(STEP, 0, native(64 << 10, effort))];
    for &threads in threads {
        for (series, step) in SHORT {
            let load = TierLoad {
                process: Process::Attached,
                paths: PATHS,
                beside: (threads as usize, 1 << 20),
                measured: measured(effort) / 20,
                step,
                ..tier(64, effort)
            };
            runs.push(Run::tier(series, threads, load));
        }
    }
    runs
}

fn steps_points(outcomes: &Outcomes) -> Vec<Point> {
    let mean: fn(&Outcome) -> f64 = |outcome| outcome.mean_us;
    let mut points = outcomes.as_they_are("us", mean);
    let Some(step) = outcomes.get(STEP, 0, mean) else { return points };
    for (series, _) in SHORT {
        let Some(alone) = outcomes.get(series, 0, mean) else { continue };
        for x in outcomes.xs().into_iter().filter(|x| *x > 0) {
            let Some(longest) = outcomes.get(series, x, |outcome| outcome.max_us) else { continue };
            let mut add = |what: &str, unit, predicted, said| {
                points.push(Point { series: format!("{series}, {what}"), x, unit, predicted, said });
            };
            add("the longest", "us", longest, None);
            let said = Some((Paper::AtMost(1.0), "an aim: short operations wait for one step of 64 KiB"));
            add("wait over one step", "ratio", (longest - alone) / step, said);
        }
    }
    points
}
