//! Beyond RF-RPC: two in-bound operations per call limit Jakiro to half of the NIC's rate. Threads of a
//! client machine that share one connection, with their calls combined into messages, need fewer than two per
//! call.

use super::rf_rpc::{STORE, gets};
use super::{Effort, Figure, Outcomes, Paper, Point, Run, measured};
use dunlin_rpc::{BatchCalls, Batching, CompletionMode, Lease, Plan, RequestHalf, ResponseHalf, Sharing};
use dunlin_scenario::load::{Extent, Load, Pace};
use dunlin_scenario::random_values::Times;
use dunlin_scenario::shared::Shared;

pub(super) const FIGURE: Figure = Figure::predicted(
    [
        "rf-rpc-shared",
        "GETs of 35 threads on seven machines, by a connection each or by one a machine, 8 server threads",
        "rf-rpc",
        "calls_in_flight",
    ],
    "No figure of the paper's. Each thread has so many GETs in flight. One handle a machine: its five threads have seats of one combined client, whose leader \
     posts the calls that wait (at most 64 in a message), or holds them back until the messages in flight to that server thread are answered. Shared: the five threads of a machine have one connection, in which each call is a \
     message, or goes together with those that were made while others were under way to the same server thread (at most 64). The cap is half of the in-bound \
     READs that the NIC serves (11.26 MOPS, figure 1). A thread looks at its oldest call every 200 ns. Threads meet without slack, and \
     pay for the lines that another core wrote last.",
    runs,
    points,
);

const OWN: &str = "a connection each";
const HANDLE: &str = "one handle a machine";
const HANDLE_TOGETHER: &str = "one handle a machine, calls together";
const SHARED: &str = "shared";
const TOGETHER: &str = "shared, calls together";
const WORKERS: u16 = 8;
/// Half of figure 1's in-bound rate.
const CAP: f64 = 11.26 / 2.0;

fn shared(window: u32, together: u16, effort: Effort) -> Shared {
    let (warm_up, measured) = match measured(effort, 2_000_000) {
        Extent::Time { warm_up, measured } => (warm_up, measured),
        Extent::Calls(_) => (0, 1),
    };
    Shared {
        profile: "rf-rpc".to_owned(),
        client_hosts: 7,
        threads_per_host: 5,
        window: window as usize,
        workers: WORKERS,
        plan: Plan::new(RequestHalf::Write, ResponseHalf::FetchOrWrite)
            .completion(CompletionMode::Busy, CompletionMode::Busy),
        together,
        lines: STORE,
        bytes: [16, 32],
        warm_up,
        measured,
        limit: 10_000_000_000,
    }
}

/// Returns the load of machines whose threads share a combined client.
fn handles(pace: Pace, effort: Effort) -> Load {
    let load = gets(ResponseHalf::FetchOrWrite, WORKERS, 0, effort);
    let mut load =
        Load { pace, extent: measured(effort, 2_000_000), handles: Some(load.client_hosts), ..load };
    for function in &mut load.functions {
        function.plan = function.plan.shared(Sharing::Combined, Lease::Forever);
    }
    load
}

fn runs(effort: Effort) -> Vec<Run> {
    let windows: &[u32] = match effort {
        Effort::Full => &[1, 2, 4, 8, 16],
        Effort::Quick => &[1, 8],
    };
    let mut runs = Vec::new();
    for window in windows {
        let think = Times::Fixed(0);
        let closed = Pace::Closed { window: *window as u16, think };
        let batching = Batching { calls: BatchCalls::Fixed(64), ..Batching::default() };
        let pushed = Pace::Pushed { window: *window as u16, batching };
        let load = gets(ResponseHalf::FetchOrWrite, WORKERS, 0, effort);
        runs.push(Run::of(OWN, *window, Load { pace: closed, extent: measured(effort, 2_000_000), ..load }));
        runs.push(Run::of(HANDLE, *window, handles(closed, effort)));
        runs.push(Run::of(HANDLE_TOGETHER, *window, handles(pushed, effort)));
        runs.push(Run::shared(SHARED, *window, shared(*window, 1, effort)));
        runs.push(Run::shared(TOGETHER, *window, shared(*window, 64, effort)));
    }
    runs
}

fn points(outcomes: &Outcomes) -> Vec<Point> {
    let mut points = outcomes.as_they_are("mops", |outcome| outcome.mops);
    let mut latencies = outcomes.as_they_are("us", |outcome| outcome.mean_us);
    latencies.iter_mut().for_each(|point| point.series = format!("{}, latency", point.series));
    points.extend(latencies);
    for series in [OWN, HANDLE, HANDLE_TOGETHER, SHARED, TOGETHER] {
        let Some((x, peak)) = outcomes.peak(series, |outcome| outcome.mops) else { continue };
        let (series, predicted) = (format!("peak of {series} over the cap"), peak / CAP);
        let said = [HANDLE, TOGETHER].iter().any(|own| series.contains(own)).then_some((
            Paper::AtLeast(1.0),
            "5.2: the peak of calls by themselves is half of the in-bound rate",
        ));
        points.push(Point { series, x, unit: "ratio", predicted, said });
    }
    points
}
