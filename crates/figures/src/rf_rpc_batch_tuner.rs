//! The value of tuned batch sizes (RF-RPC section 4.2, equation 3): a grid of process times, results, clients
//! and limits, each cell with the size that the engine finds and with every fixed one, and steps from one
//! cell to another. Not a figure of the paper. The claims: the found size performs as well as the best fixed
//! one within the limit, and a limit that no size keeps does not lead to batches of one.

use super::rf_rpc::{THREADS, gets};
use super::{Effort, Figure, Outcome, Outcomes, Point, Run};
use dunlin_fabric::Nanos;
use dunlin_rpc::{BatchCalls, BatchRule, Batching, ResponseHalf};
use dunlin_scenario::load::{Connections, Extent, Load, Pace, Step};
use dunlin_scenario::random_values::Sizes;
use std::time::Duration;

pub(super) const FIGURE: Figure = Figure::predicted(
    [
        "rf-rpc-batch-tuner",
        "Sizes of batches found by the engine, over the best fixed ones that keep the limit, 16 server threads",
        "rf-rpc",
        "limit_us",
    ],
    "As rf-rpc-13: a client has one batch under way, to one server thread. A fixed size keeps a limit if 95% of its calls are answered within it; \
     where none does, the best is the one whose calls are earliest. A step changes the process time or the results of all calls at once; \
     settled as in rf-rpc-tuner. 'In flight': each client keeps so many calls to one server thread in flight, each of which goes into a batch \
     that goes out by itself. 'By equation 3': the size by the paper's rule, measured after 100 ms, since it changes by one call at a time.",
    runs,
    points,
);

const TUNED: &str = "tuned";
const BY_EQUATION: &str = "by equation 3";
/// The engine's rule and the paper's, with the names of their series.
const RULES: [(&str, BatchRule); 2] = [(TUNED, BatchRule::Balanced), (BY_EQUATION, BatchRule::Steps)];
/// Fixed sizes; from 4 on each is at most a quarter larger than the one before.
const SIZES: [u16; 24] =
    [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128];
const QUICK_SIZES: [u16; 9] = [1, 2, 4, 7, 14, 28, 40, 64, 128];
const LIMITS_US: [u32; 3] = [12, 24, 60];
const QUICK_LIMITS_US: [u32; 2] = [12, 60];
/// Share of calls that may exceed the limit.
const TOLERANCE: f64 = 0.05;

/// The kind of calls, and their clients.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Cell {
    /// Process time of a call besides the store's, in nanoseconds.
    process: u32,
    /// Bytes of a result.
    result: u32,
    clients: usize,
    /// Calls in flight per client, in batches flushed by the engine; `None` for one batch at a time.
    in_flight: Option<u16>,
}

impl Cell {
    const fn new(process: u32, result: u32, clients: usize) -> Cell {
        Cell { process, result, clients, in_flight: None }
    }

    fn series(self, what: &str) -> String {
        let Cell { process, result, clients, in_flight } = self;
        let flying = in_flight.map_or_else(String::new, |calls| format!(", {calls} in flight"));
        format!("{what}, {process} ns, {result} B, {clients} clients{flying}")
    }

    /// Returns the load of this cell, without its batching.
    fn load(self, effort: Effort) -> Load {
        let mut load = gets(ResponseHalf::FetchOrWrite, THREADS, self.process.into(), effort);
        (load.clients, load.client_hosts) = (self.clients, self.clients.min(7));
        for function in &mut load.functions {
            function.results = Sizes::Fixed(self.result);
        }
        load
    }

    fn fixed(self, effort: Effort, size: u16) -> Load {
        let mut load = self.load(effort);
        load.pace = Pace::Batches { size };
        load.extent = match effort {
            Effort::Full => Extent::Time { warm_up: 5_000_000, measured: 10_000_000 },
            Effort::Quick => Extent::Time { warm_up: 500_000, measured: 2_000_000 },
        };
        self.flying(load, BatchCalls::Fixed(size), BatchRule::default())
    }

    fn tuned(self, effort: Effort, limit_us: u32, rule: BatchRule) -> Load {
        let limit = Nanos::from(limit_us) * 1000;
        let mut load = self.load(effort);
        load.pace = Pace::TunedBatches { limit, tolerance: TOLERANCE, rule };
        let slow = self.in_flight.is_some() || (rule == BatchRule::Steps && effort == Effort::Full);
        let warm_up = if slow { FOUND_IN_FLIGHT } else { FOUND };
        let measured = match effort {
            Effort::Full => 20_000_000,
            Effort::Quick => 6_000_000,
        };
        load.extent = Extent::Time { warm_up, measured };
        let calls = BatchCalls::WithinLatency { limit: Duration::from_nanos(limit), tolerance: TOLERANCE };
        self.flying(load, calls, rule)
    }

    fn flying(self, mut load: Load, calls: BatchCalls, rule: BatchRule) -> Load {
        if let Some(window) = self.in_flight {
            load.connections = Connections::One;
            load.pace = Pace::Pushed {
                window,
                batching: Batching { calls, rule, bytes: 8192, ..Batching::default() },
            };
        }
        load
    }
}

/// Warm-up after which a size has been found, in nanoseconds.
const FOUND: Nanos = 20_000_000;

const PROCESS: [u32; 3] = [0, 500, 2000];
/// The same for batches flushed by the engine: many are in flight, and a round trip takes as long as all of
/// them.
const FOUND_IN_FLIGHT: Nanos = 100_000_000;

const RESULTS: [u32; 2] = [32, 256];
const CLIENTS: [usize; 2] = [7, 35];
const QUICK_CELLS: [Cell; 3] = [Cell::new(0, 32, 35), Cell::new(0, 256, 35), Cell::new(2000, 256, 7)];
const IN_FLIGHT: Cell = Cell { in_flight: Some(128), ..Cell::new(0, 32, 35) };
/// Limits of that cell, in microseconds.
const LIMITS_IN_FLIGHT_US: [u32; 2] = [60, 200];
/// Steps: the cells before and after, and the limit in microseconds.
const STEPS: [(Cell, Cell, u32); 4] = [
    (Cell::new(0, 32, 35), Cell::new(2000, 32, 35), 60),
    (Cell::new(2000, 32, 35), Cell::new(0, 32, 35), 60),
    (Cell::new(0, 32, 35), Cell::new(0, 256, 35), 24),
    (Cell::new(0, 256, 35), Cell::new(0, 32, 35), 24),
];

fn cells(effort: Effort) -> Vec<Cell> {
    match effort {
        Effort::Quick => QUICK_CELLS.to_vec(),
        Effort::Full => {
            let of =
                |process| RESULTS.map(|result| CLIENTS.map(|clients| Cell::new(process, result, clients)));
            PROCESS.into_iter().flat_map(of).flatten().chain([IN_FLIGHT]).collect()
        }
    }
}

fn step_name(what: &str, (before, after, _): (Cell, Cell, u32)) -> String {
    let Cell { process, result, .. } = before;
    format!("{what}, {process} ns and {result} B to {} ns and {} B", after.process, after.result)
}

fn step(effort: Effort, (before, after, limit): (Cell, Cell, u32), rule: BatchRule) -> Load {
    let mut load = before.tuned(effort, limit, rule);
    let changed = after.load(effort);
    for (function, changed) in load.functions.iter_mut().zip(changed.functions) {
        function.steps = vec![Step { after: FOUND, service: changed.service, results: changed.results }];
    }
    load.extent = Extent::Time { warm_up: 3 * FOUND, measured: FOUND };
    load.timeline = 100_000;
    load
}

fn runs(effort: Effort) -> Vec<Run> {
    let (sizes, limits, steps): (&[u16], &[u32], &[_]) = match effort {
        Effort::Full => (&SIZES, &LIMITS_US, &STEPS),
        Effort::Quick => (&QUICK_SIZES, &QUICK_LIMITS_US, &STEPS[..1]),
    };
    let mut runs = Vec::new();
    for cell in cells(effort) {
        let limits = if cell.in_flight.is_some() { &LIMITS_IN_FLIGHT_US } else { limits };
        for limit in limits {
            for (name, rule) in RULES {
                runs.push(Run::of(cell.series(name), *limit, cell.tuned(effort, *limit, rule)));
            }
        }
        for size in sizes {
            runs.push(Run::of(cell.series(&size.to_string()), 0, cell.fixed(effort, *size)));
        }
    }
    for change in steps {
        for (name, rule) in RULES {
            let load = step(effort, *change, rule);
            runs.push(Run::of(step_name(name, *change), change.2, load).settling(FOUND));
        }
    }
    runs
}

fn mops(outcome: &Outcome) -> f64 {
    outcome.mops
}

fn p95(outcome: &Outcome) -> f64 {
    outcome.p95_us
}

/// Returns the rate of a cell's best fixed size; if no size keeps the limit, also its 95% latency quantile.
fn best(outcomes: &Outcomes, cell: Cell, limit: u32) -> Option<(f64, Option<f64>)> {
    let of = |size: u16| {
        let name = cell.series(&size.to_string());
        Some((outcomes.get(&name, 0, mops)?, outcomes.get(&name, 0, p95)?))
    };
    let fixed: Vec<(f64, f64)> = SIZES.into_iter().filter_map(of).collect();
    let kept = fixed.iter().filter(|one| one.1 <= f64::from(limit));
    if let Some(best) = kept.max_by(|one, other| one.0.total_cmp(&other.0)) {
        return Some((best.0, None));
    }
    let earliest = fixed.iter().min_by(|one, other| one.1.total_cmp(&other.1))?;
    Some((earliest.0, Some(earliest.1)))
}

/// Returns the name of the series of late calls by a rule.
fn late_name(rule: &str, over: &str) -> String {
    let by = if rule == TUNED { String::new() } else { format!("{rule}, ") };
    format!("{by}95% of calls over {over}")
}

fn points(outcomes: &Outcomes) -> Vec<Point> {
    let mut points = Vec::new();
    let mut point = |series: String, x, unit, predicted| {
        points.push(Point { series, x, unit, predicted, said: None });
    };
    let limits: Vec<u32> = outcomes.xs().into_iter().filter(|limit| *limit > 0).collect();
    for cell in cells(Effort::Full) {
        for (limit, name) in limits.iter().flat_map(|limit| RULES.map(|(name, _)| (*limit, name))) {
            let of = |value| outcomes.get(&cell.series(name), limit, value);
            let (Some(tuned), Some(late)) = (of(mops), of(p95)) else { continue };
            let Some((rate, least)) = best(outcomes, cell, limit) else { continue };
            point(cell.series(name), limit, "mops", tuned);
            let named = |what: &str| cell.series(&format!("{name} {what}"));
            match least {
                None => {
                    point(named("over the best fixed size"), limit, "ratio", tuned / rate);
                    point(
                        cell.series(&late_name(name, "the limit")),
                        limit,
                        "ratio",
                        late / f64::from(limit),
                    );
                }
                Some(least) => {
                    point(named("over the earliest fixed size"), limit, "ratio", tuned / rate);
                    point(
                        cell.series(&late_name(name, "those of the earliest size")),
                        limit,
                        "ratio",
                        late / least,
                    );
                }
            }
        }
    }
    for (change, name) in STEPS.iter().flat_map(|change| RULES.map(|(name, _)| (*change, name))) {
        let of = |value| outcomes.get(&step_name(name, change), change.2, value);
        let (Some(settled), Some(rate)) = (of(|outcome| outcome.settled_ms), of(mops)) else { continue };
        let what = if name == TUNED { "settled" } else { "by equation 3, settled" };
        point(step_name(what, change), change.2, "ms", settled);
        if let Some((best, None)) = best(outcomes, change.1, change.2) {
            point(
                step_name(&format!("{name} over the best fixed size after the step"), change),
                change.2,
                "ratio",
                rate / best,
            );
        }
    }
    points
}
