//! The value of choosing R and F by enumeration (RF-RPC section 3.2): a grid of process times, result sizes
//! and numbers of clients, each cell with the engine's choice, with every fixed R and F, and with plain
//! replies; and steps from one cell to another. Not a figure of the paper. The claims: the choice is as good
//! as the best fixed one, it never loses to replies, and it adapts soon after a change.

use super::rf_rpc::{THREADS, gets, once_found};
use super::{Effort, Figure, Outcome, Outcomes, Point, Run};
use dunlin_fabric::Nanos;
use dunlin_rpc::{FetchChoice, FirstRead, ResponseHalf};
use dunlin_scenario::load::{Extent, Load, Step};
use dunlin_scenario::random_values::Sizes;

pub(super) const FIGURE: Figure = Figure::predicted(
    [
        "rf-rpc-tuner",
        "R and F chosen by the engine, over the best fixed ones and over plain replies, 16 server threads",
        "rf-rpc",
        "process_time_us",
    ],
    "As rf-rpc-9, with a client's defaults (FetchChoice::Tuned, FirstRead::WhenExpected), measured once that has found its way. The best fixed R and F of each \
     cell are found by trying: R of 1 to 5 with F of 256, 512 and 768 bytes where the first READ is sent at once, and R 5 with each F where it is sent when the result is \
     expected. A step changes process time and results for all calls at once; settled is from when on no five milliseconds have a rate that is more than a twentieth below \
     that of the end.",
    runs,
    points,
);

/// R and F chosen by the engine.
const TUNED: &str = "tuned";
/// Results that are always written.
const REPLY: &str = "plain reply";

/// Result sizes in bytes: some fit the smallest F, some a larger one, some none.
const RESULTS: [u32; 4] = [32, 400, 700, 1500];
const QUICK_RESULTS: [u32; 2] = [32, 400];
const TIMES_US: [u32; 5] = [0, 3, 6, 10, 20];
const QUICK_TIMES_US: [u32; 2] = [0, 10];
const CLIENTS: [usize; 2] = [7, 35];
const QUICK_CLIENTS: [usize; 1] = [7];
const R: [u32; 5] = [1, 2, 3, 4, 5];
const F: [u32; 3] = [256, 512, 768];
/// R when the first READ is sent at the expected time of the result, where R makes little difference.
const R_EXPECTED: u32 = 5;
const QUICK_R: [u32; 2] = [1, 5];
const QUICK_F: [u32; 2] = [256, 512];

/// Clients, then (process time, result bytes) before and after.
type Change = (usize, [(u32, u32); 2]);
const STEPS: [Change; 9] = [
    (35, [(0, 32), (20, 32)]),
    (35, [(20, 32), (0, 32)]),
    (35, [(0, 1500), (10, 1500)]),
    (35, [(0, 400), (6, 32)]),
    (7, [(0, 32), (0, 400)]),
    (7, [(0, 400), (0, 32)]),
    (7, [(0, 32), (10, 700)]),
    (7, [(10, 700), (0, 32)]),
    (7, [(0, 400), (6, 32)]),
];
const QUICK_STEPS: [Change; 2] = [(7, [(0, 32), (10, 400)]), (7, [(10, 400), (0, 32)])];

/// The grid of an effort.
struct Grid {
    results: &'static [u32],
    times: &'static [u32],
    clients: &'static [usize],
    r: &'static [u32],
    f: &'static [u32],
    steps: &'static [Change],
    /// Warm-up and measured time of a cell, in nanoseconds.
    extent: (Nanos, Nanos),
    /// Time of a step since calls began, and from the step to the measurement, in nanoseconds.
    step: (Nanos, Nanos),
}

fn grid(effort: Effort) -> Grid {
    match effort {
        Effort::Full => Grid {
            results: &RESULTS,
            times: &TIMES_US,
            clients: &CLIENTS,
            r: &R,
            f: &F,
            steps: &STEPS,
            extent: (1_000_000, 4_000_000),
            step: (20_000_000, 100_000_000),
        },
        Effort::Quick => Grid {
            results: &QUICK_RESULTS,
            times: &QUICK_TIMES_US,
            clients: &QUICK_CLIENTS,
            r: &QUICK_R,
            f: &QUICK_F,
            steps: &QUICK_STEPS,
            extent: (500_000, 2_000_000),
            step: (20_000_000, 100_000_000),
        },
    }
}

/// Returns a load of `clients` clients with the given process time in microseconds and result size in bytes.
fn cell(half: ResponseHalf, clients: usize, (time, bytes): (u32, u32), effort: Effort) -> Load {
    let mut load = gets(half, THREADS, u64::from(time) * 1000, effort);
    load.clients = clients;
    load.client_hosts = clients.min(7);
    load.functions.iter_mut().for_each(|function| function.results = Sizes::Fixed(bytes));
    // Longer calls are fewer, so their statistics need more time.
    let (warm_up, measured) = grid(effort).extent;
    load.extent = Extent::Time { warm_up, measured: measured * (1 + u64::from(time) / 5) };
    (load.fetch_choice, load.first_read) = (FetchChoice::Tuned, FirstRead::WhenExpected);
    load
}

/// Returns the load of a cell that changes.
fn step((clients, [before, after]): Change, effort: Effort) -> Load {
    let half = ResponseHalf::FetchOrWrite;
    let mut load = cell(half, clients, before, effort);
    let (at, later) = grid(effort).step;
    let changed = cell(half, clients, after, effort);
    for (function, changed) in load.functions.iter_mut().zip(changed.functions) {
        function.steps = vec![Step { after: at, service: changed.service, results: changed.results }];
    }
    load.extent = Extent::Time { warm_up: at + later, measured: later / 10 };
    load.timeline = STRETCH;
    load
}

/// Width of the timeline's stretches in nanoseconds: a tenth of the window that a settled rate is averaged
/// over.
const STRETCH: Nanos = 500_000;

fn series(what: &str, bytes: u32, clients: usize) -> String {
    format!("{what}, {bytes} B, {clients} clients")
}

fn fixed(retries: u32, bytes: u32) -> String {
    format!("R {retries} F {bytes}")
}

fn expected(bytes: u32) -> String {
    format!("expected, F {bytes}")
}

fn stepped(what: &str, (clients, [(time, bytes), (_, then)]): Change) -> String {
    format!("{what}, {bytes} B to {then} B from {time} us, {clients} clients")
}

fn runs(effort: Effort) -> Vec<Run> {
    let grid = grid(effort);
    let mut runs = Vec::new();
    for clients in grid.clients {
        for bytes in grid.results {
            for time in grid.times {
                let load = |half| cell(half, *clients, (*time, *bytes), effort);
                let mut run =
                    |what: &str, load| runs.push(Run::of(series(what, *bytes, *clients), *time, load));
                let mut tuned = load(ResponseHalf::FetchOrWrite);
                tuned.extent = once_found(*time, effort);
                run(TUNED, tuned);
                run(REPLY, load(ResponseHalf::Write));
                for (retries, bytes) in grid.r.iter().flat_map(|r| grid.f.iter().map(move |f| (*r, *f))) {
                    let fetch_choice = FetchChoice::Fixed { retries, bytes };
                    let load = Load {
                        fetch_choice,
                        first_read: FirstRead::AtOnce,
                        ..load(ResponseHalf::FetchOrWrite)
                    };
                    run(&fixed(retries, bytes), load);
                }
                for bytes in grid.f.iter().copied() {
                    let fetch_choice = FetchChoice::Fixed { retries: R_EXPECTED, bytes };
                    let load = Load { fetch_choice, ..load(ResponseHalf::FetchOrWrite) };
                    run(&expected(bytes), load);
                }
            }
        }
    }
    for change in grid.steps {
        let run = Run::of(stepped(TUNED, *change), change.1[1].0, step(*change, effort));
        runs.push(run.settling(grid.step.0));
    }
    runs
}

fn mops(outcome: &Outcome) -> f64 {
    outcome.mops
}

fn points(outcomes: &Outcomes) -> Vec<Point> {
    let mut points = Vec::new();
    let mut point = |series: String, x, unit, predicted| {
        points.push(Point { series, x, unit, predicted, said: None });
    };
    for clients in CLIENTS {
        for bytes in RESULTS {
            for x in outcomes.xs() {
                let of = |what: &str| outcomes.get(&series(what, bytes, clients), x, mops);
                let (Some(tuned), Some(reply)) = (of(TUNED), of(REPLY)) else { continue };
                let tried = R.iter().flat_map(|r| F.iter().filter_map(|f| of(&fixed(*r, *f))));
                let expected = F.iter().filter_map(|bytes| of(&expected(*bytes)));
                let best = tried.chain(expected).fold(0.0, f64::max);
                point(series(TUNED, bytes, clients), x, "mops", tuned);
                point(series("tuned over the best fixed R and F", bytes, clients), x, "ratio", tuned / best);
                point(series("tuned over plain reply", bytes, clients), x, "ratio", tuned / reply);
            }
        }
    }
    for change in STEPS.into_iter().chain(QUICK_STEPS) {
        let (clients, [_, (x, bytes)]) = change;
        let name = |what| stepped(what, change);
        let of = |what, value| outcomes.get(&name(what), x, value);
        let Some(settled) = of(TUNED, |outcome| outcome.settled_ms) else { continue };
        point(name("settled"), x, "ms", settled);
        // Ratio to the result of a run without a step.
        for (what, over) in [(REPLY, "tuned over plain reply"), (TUNED, "tuned over tuned from the start")] {
            let always = outcomes.get(&series(what, bytes, clients), x, mops);
            if let (Some(tuned), Some(always)) = (of(TUNED, mops), always) {
                point(name(over), x, "ratio", tuned / always);
            }
        }
    }
    points
}
