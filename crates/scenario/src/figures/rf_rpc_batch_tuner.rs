//! What finding the size of batches is worth (RF-RPC section 4.2, equation 3): a grid of limits, process times and calls in flight, each
//! cell with the size that the engine finds and with every fixed one, and steps from one process time to another. No figure of the paper's; it says that
//! the found size is as good as the best fixed one that keeps the limit, and that a limit that none keeps does not end in batches of one.

use super::rf_rpc::{THREADS, gets};
use super::{Effort, Figure, Outcome, Outcomes, Point, Run};
use crate::load::{Connections, Extent, Load, Pace, Step};
use dunlin_fabric::Nanos;
use dunlin_rpc::{BatchCalls, Batching, ResponseHalf};

pub(super) const FIGURE: Figure = Figure::predicted(
    [
        "rf-rpc-batch-tuner",
        "Sizes of batches found by the engine, over the best fixed ones that keep the limit, 16 server threads, 35 clients",
        "rf-rpc",
        "limit_us",
    ],
    "Each client keeps so many calls to one server thread in flight, each of which goes into a batch that goes out by itself. A fixed \
     size of 1, 2, 4, 8, 16, 32, 64 or 128 keeps a limit if 95% of its calls are answered within it; where none does, the best is the one whose calls are \
     earliest. A step changes the process time of all calls at once; settled as in rf-rpc-tuner.",
    runs,
    points,
);

const TUNED: &str = "tuned";
const SIZES: [u16; 8] = [1, 2, 4, 8, 16, 32, 64, 128];
const QUICK_SIZES: [u16; 4] = [1, 8, 32, 128];
const LIMITS_US: [u32; 4] = [5, 20, 60, 200];
const QUICK_LIMITS_US: [u32; 2] = [5, 60];
/// Process time of a call, in nanoseconds, and calls in flight.
const CELLS: [(u32, u16); 6] = [(0, 32), (0, 128), (500, 32), (500, 128), (2000, 32), (2000, 128)];
const QUICK_CELLS: [(u32, u16); 2] = [(0, 128), (500, 32)];
/// Process times before and after, with the limit in microseconds.
const STEPS: [(u32, u32, u32); 3] = [(0, 500, 60), (500, 0, 60), (0, 2000, 200)];
/// Calls in flight of those.
const STEP_WINDOW: u16 = 64;

fn load(effort: Effort, (time, window): (u32, u16), calls: BatchCalls) -> Load {
    let mut load = gets(ResponseHalf::FetchOrWrite, THREADS, time.into(), effort);
    load.connections = Connections::One;
    load.pace = Pace::Pushed { window, batching: Batching { calls, bytes: 8192, ..Batching::default() } };
    // A size takes some 20 rounds of 32 batches to be found.
    load.extent = match (effort, calls) {
        (_, BatchCalls::Fixed(_)) => Extent::Time { warm_up: 500_000, measured: 500_000 },
        (Effort::Quick, _) => Extent::Time { warm_up: 20_000_000, measured: 2_000_000 },
        (Effort::Full, _) => Extent::Time { warm_up: 60_000_000, measured: 10_000_000 },
    };
    load
}

fn within(limit_us: u32) -> BatchCalls {
    BatchCalls::WithinLatency { limit: u64::from(limit_us) * 1000, tolerance: 0.05 }
}

fn series(what: &str, (time, window): (u32, u16)) -> String {
    format!("{what}, {time} ns, {window} in flight")
}

fn stepped(what: &str, (before, after, _): (u32, u32, u32)) -> String {
    format!("{what}, {before} to {after} ns")
}

fn step(effort: Effort, (before, after, limit): (u32, u32, u32)) -> (Load, Nanos) {
    let mut load = load(effort, (before, STEP_WINDOW), within(limit));
    let changed = self::load(effort, (after, STEP_WINDOW), within(limit));
    let at = match effort {
        Effort::Quick => 20_000_000,
        Effort::Full => 60_000_000,
    };
    for (function, changed) in load.functions.iter_mut().zip(changed.functions) {
        function.steps = vec![Step { after: at, service: changed.service, results: changed.results }];
    }
    load.extent = Extent::Time { warm_up: 2 * at, measured: at / 5 };
    load.timeline = 100_000;
    (load, at)
}

fn runs(effort: Effort) -> Vec<Run> {
    let (cells, sizes, limits, steps): (&[_], &[u16], &[u32], &[_]) = match effort {
        Effort::Full => (&CELLS, &SIZES, &LIMITS_US, &STEPS),
        Effort::Quick => (&QUICK_CELLS, &QUICK_SIZES, &QUICK_LIMITS_US, &STEPS[..1]),
    };
    let mut runs = Vec::new();
    for cell in cells {
        for limit in limits {
            runs.push(Run::of(series(TUNED, *cell), *limit, load(effort, *cell, within(*limit))));
        }
        for size in sizes {
            let load = load(effort, *cell, BatchCalls::Fixed(*size));
            runs.push(Run::of(series(&size.to_string(), *cell), 0, load));
        }
    }
    for change in steps {
        let (load, at) = step(effort, *change);
        runs.push(Run::of(stepped(TUNED, *change), change.2, load).settling(at));
    }
    runs
}

fn mops(outcome: &Outcome) -> f64 {
    outcome.mops
}

fn p95(outcome: &Outcome) -> f64 {
    outcome.p95_us
}

fn points(outcomes: &Outcomes) -> Vec<Point> {
    let mut points = Vec::new();
    let mut point = |series: String, x, unit, predicted| {
        points.push(Point { series, x, unit, predicted, said: None });
    };
    for cell in CELLS {
        let fixed = SIZES.into_iter().filter_map(|size| {
            let name = series(&size.to_string(), cell);
            Some((size, outcomes.get(&name, 0, mops)?, outcomes.get(&name, 0, p95)?))
        });
        let fixed: Vec<(u16, f64, f64)> = fixed.collect();
        for limit in outcomes.xs().into_iter().filter(|limit| *limit > 0) {
            let of = |value| outcomes.get(&series(TUNED, cell), limit, value);
            let (Some(tuned), Some(late)) = (of(mops), of(p95)) else { continue };
            let kept = fixed.iter().filter(|one| one.2 <= f64::from(limit));
            let best = kept.max_by(|one, other| one.1.total_cmp(&other.1));
            point(series(TUNED, cell), limit, "mops", tuned);
            match best {
                Some((_, rate, _)) => {
                    point(series("tuned over the best fixed size", cell), limit, "ratio", tuned / rate);
                    let ratio = late / f64::from(limit);
                    point(series("95% of calls over the limit", cell), limit, "ratio", ratio);
                }
                None => {
                    let earliest = fixed.iter().min_by(|one, other| one.2.total_cmp(&other.2));
                    let Some((_, rate, least)) = earliest else { continue };
                    point(
                        series("tuned over the best fixed size, no limit kept", cell),
                        limit,
                        "ratio",
                        tuned / rate,
                    );
                    point(
                        series("95% of calls over those of the earliest size", cell),
                        limit,
                        "ratio",
                        late / least,
                    );
                }
            }
        }
    }
    for change in STEPS {
        let of = |value| outcomes.get(&stepped(TUNED, change), change.2, value);
        let (Some(settled), Some(rate)) = (of(|outcome| outcome.settled_ms), of(mops)) else { continue };
        point(stepped("settled", change), change.2, "ms", settled);
        point(stepped(TUNED, change), change.2, "mops", rate);
    }
    points
}
