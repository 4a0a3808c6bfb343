//! Calls per second of a server whose threads spin, by number of threads on four cores: the collapse of busy
//! waiting beyond one thread for each core, and the rule that avoids it. Not a figure of a paper.

use super::rf_rpc::gets;
use super::{Drawing, Effort, Figure, Outcome, Outcomes, Point, Run};
use dunlin_fabric::Nanos;
use dunlin_rpc::{CompletionMode, Plan, RequestHalf, ResponseHalf};
use dunlin_scenario::load::{Extent, Load, Pace};
use dunlin_scenario::random_values::Times;

pub(super) const FIGURE: Figure = Figure::predicted(
    [
        "spinning",
        "calls a second of a server with four cores, by number of its threads",
        "rf-rpc",
        "threads",
    ],
    "GETs of 32 bytes. Seven clients with 16 calls in flight, each connected to every thread of the server, which owns a part of the keys. Client \
     hosts have a core for each thread. 'Quantum' keeps a core until the end of its quantum of 3 ms, whether it has a request or not: busy waiting in a \
     program that never yields. 'Gives way' yields after 1 us without a request if another thread waits for the core, as the back-ends do where threads compete. 'Adaptive' \
     sleeps after 20 us; a completion wakes it.",
    runs,
    points,
)
.drawn(drawings);

const CORES: u32 = 4;
const THREADS: [u16; 8] = [1, 2, 4, 5, 6, 8, 12, 16];
const QUICK_THREADS: [u16; 3] = [2, 4, 8];
const CLIENTS: usize = 7;
const WINDOW: u16 = 16;
/// Time without a request after which a back-end yields a core for which threads compete.
const PATIENCE: Nanos = 1_000;

const QUANTUM: &str = "busy, quantum";
const GIVES_WAY: &str = "busy, gives way";
const ADAPTIVE: &str = "adaptive, events";

fn load(effort: Effort, threads: u16, patience: Option<Nanos>, mode: CompletionMode) -> Load {
    let mut load = gets(ResponseHalf::Write, threads, 0, effort);
    (load.clients, load.client_hosts) = (CLIENTS, CLIENTS);
    load.pace = Pace::Closed { window: WINDOW, think: Times::Fixed(0) };
    (load.server_cores, load.spin_patience) = (Some(CORES), patience);
    // Several quanta, whatever the rule.
    load.extent = match effort {
        Effort::Full => Extent::Time { warm_up: 10_000_000, measured: 60_000_000 },
        Effort::Quick => Extent::Time { warm_up: 5_000_000, measured: 30_000_000 },
    };
    if mode != CompletionMode::Busy {
        for function in &mut load.functions {
            function.plan = Plan::new(RequestHalf::WriteImm, ResponseHalf::WriteImm)
                .completion(CompletionMode::Busy, mode);
        }
    }
    load
}

fn runs(effort: Effort) -> Vec<Run> {
    let threads: &[u16] = match effort {
        Effort::Full => &THREADS,
        Effort::Quick => &QUICK_THREADS,
    };
    let mut runs = Vec::new();
    for threads in threads {
        for (series, patience, mode) in [
            (QUANTUM, None, CompletionMode::Busy),
            (GIVES_WAY, Some(PATIENCE), CompletionMode::Busy),
            (ADAPTIVE, Some(PATIENCE), CompletionMode::Adaptive),
        ] {
            runs.push(Run::of(series, u32::from(*threads), load(effort, *threads, patience, mode)));
        }
    }
    runs
}

fn mops(outcome: &Outcome) -> f64 {
    outcome.mops
}

fn drawings(outcomes: &Outcomes) -> Vec<Drawing> {
    let group = |threads| format!("{threads} threads");
    vec![outcomes.bars(FIGURE.title, "million calls a second", group, mops)]
}

fn points(outcomes: &Outcomes) -> Vec<Point> {
    let mut points = outcomes.as_they_are("mops", mops);
    for x in outcomes.xs() {
        let of = |series| outcomes.get(series, x, mops);
        let (Some(before), Some(after)) = (of(QUANTUM), of(GIVES_WAY)) else { continue };
        let series = format!("{GIVES_WAY} over {QUANTUM}");
        points.push(Point { series, x, unit: "ratio", predicted: after / before, said: None });
    }
    points
}
