//! FLOCK figure 12: node scalability, by the number of client processes.

use super::flock::{Threads, beyond, chosen, erpc, granted, median, mops, p99, ratios, three_ways};
use super::{Effort, Figure, Outcomes, Paper, Point, Run};
use dunlin_rpc::Sharing;

pub(super) const FIGURE: Figure = Figure::predicted(
    ["flock-12", "FLOCK by client processes, 8 calls in flight", "flock", "client_processes"],
    "23 client hosts with up to 16 processes, one server with 32 threads, 64 bytes each way. A process has a handle with one queue pair (shared by \
     combining where it has two threads), or a dedicated connection for each of its threads. A process is threads of its host here, and the minimum of one queue \
     pair for each client passes 256. eRPC: as many sessions as processes (the paper takes its numbers from figure 6 by the number of senders).",
    runs,
    points,
);

const IN_FLIGHT: u16 = 8;
const ONE: &str = "1 thread, 1 queue pair";
const ALONE: &str = "1 thread, dedicated";
const APART: &str = "2 threads, 2 queue pairs";
const SHARED: &str = "2 threads, 1 queue pair";
const ERPC: &str = "eRPC";
/// Client processes at which the first series saturates.
const SATURATED: u32 = 46;
const MOST: u32 = 368;

fn runs(effort: Effort) -> Vec<Run> {
    let clients: &[u32] = match effort {
        Effort::Full => &[23, 46, 92, 184, MOST],
        Effort::Quick => &[SATURATED, MOST],
    };
    let combined = |number, queue_pairs| {
        Threads { number, queue_pairs, sharing: Sharing::Combined, in_flight: IN_FLIGHT }.load(effort)
    };
    let mut runs = Vec::new();
    for clients in clients {
        runs.push(Run::of(ONE, *clients, combined(*clients, *clients)));
        runs.push(Run::of(ALONE, *clients, Threads::dedicated(*clients, IN_FLIGHT).load(effort)));
        runs.push(Run::of(APART, *clients, Threads::dedicated(2 * clients, IN_FLIGHT).load(effort)));
        runs.push(Run::of(SHARED, *clients, combined(2 * clients, *clients)));
        runs.push(Run::erpc(ERPC, *clients, erpc(*clients, IN_FLIGHT, effort)));
    }
    runs
}

fn points(outcomes: &Outcomes) -> Vec<Point> {
    let mut points = three_ways(outcomes);
    let title = format!("{ONE}, over {SATURATED} processes");
    points.extend(beyond(outcomes, &title, (ONE, SATURATED), mops, |_| {
        Some((Paper::AtMost(1.1), "8.4: throughput saturates at 46 clients"))
    }));
    // Not in the paper: the price of a shared connection that nobody shares.
    points.extend(ratios(outcomes, &format!("{ONE}, over {ALONE}"), (ONE, ALONE), mops, |_| None));
    let over = ratios(outcomes, &format!("{ONE}, over {ERPC}"), (ONE, ERPC), mops, |_| None);
    points.extend(chosen(
        &over,
        &format!("smallest {ONE}, over {ERPC}"),
        |one, other| other.predicted.total_cmp(&one.predicted),
        (Paper::AtLeast(1.74), "8.4: at least 74% higher than eRPC"),
    ));
    points.extend(over);
    points.extend(ratios(outcomes, &format!("median, {ONE}, over {ERPC}"), (ONE, ERPC), median, |x| {
        (x == MOST).then_some((Paper::Value(0.49), "8.4: 51% lower at 368 clients"))
    }));
    points.extend(ratios(outcomes, &format!("99% of calls, {ONE}, over {ERPC}"), (ONE, ERPC), p99, |x| {
        (x == MOST).then_some((Paper::Value(0.75), "8.4: 25% lower at 368 clients"))
    }));
    let from =
        |x: u32, paper| (x >= SATURATED).then_some((paper, "8.4: 10% to 30% between 46 and 368 clients"));
    points.extend(ratios(outcomes, &format!("{SHARED}, over {APART}"), (SHARED, APART), mops, |x| {
        from(x, Paper::Between(1.1, 1.3))
    }));
    points.extend(ratios(
        outcomes,
        &format!("99% of calls, {SHARED}, over {APART}"),
        (SHARED, APART),
        p99,
        |x| from(x, Paper::Between(0.7, 0.9)),
    ));
    points.extend(granted(outcomes));
    points
}
