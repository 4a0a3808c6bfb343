//! RF-RPC figure 10: the gain of inline payloads and of unsignaled requests, separately and together.

use super::drawing::Drawing;
use super::rf_rpc::{THREADS, gets};
use super::rf_rpc_13::in_batches;
use super::rf_rpc_verbs::Clients;
use super::{Effort, Figure, Outcomes, Paper, Point, Run, say};
use dunlin_rnic_model::Opcode;
use dunlin_rpc::ResponseHalf;
use dunlin_scenario::load::Posting;

pub(super) const FIGURE: Figure = Figure::predicted(
    ["rf-rpc-10", "Throughput with requests inline and unsignaled, 35 clients", "rf-rpc", "optimizations"],
    "Optimizations: 0 none, 1 inline, 2 unsignaled, 3 both. Whose requests are signaled waits for each one's completion; RDMA-Write \
     has one in 16 of the others signaled (the paper: one of several), RF-RPC one in 64, as the engine does. RDMA-Write is clients who \
     write 32 bytes to the server, one request after the other; RF-RPC is GETs of 32 bytes with 16 server threads, RF-RPC-batch such in batches of \
     16, to which inline is not applied, as in the paper.",
    runs,
    points,
)
.drawn(drawings);

const CLIENTS: u32 = 35;
const WRITE: &str = "RDMA-Write";
const RF_RPC: &str = "RF-RPC";
const BATCH: &str = "RF-RPC-batch";
const BATCH_CALLS: u32 = 16;
/// Bit set of optimisations: neither, one, or both.
const BOTH: u32 = 3;
const INLINE: u32 = 1;
const UNSIGNALED: u32 = 2;

fn runs(effort: Effort) -> Vec<Run> {
    let mut runs = Vec::new();
    for x in 0..=BOTH {
        let (inline, signaled) = (x & INLINE != 0, x & UNSIGNALED == 0);
        let clients = Clients { number: CLIENTS, opcode: Opcode::Write, inline, signaled, effort };
        runs.push(Run::clients(WRITE, x, clients));
        let mut load = gets(ResponseHalf::FetchOrWrite, THREADS, 0, effort);
        load.inline = inline;
        load.posting = if signaled { Posting::Signaled } else { Posting::Engine };
        runs.push(Run::of(RF_RPC, x, load.clone()));
        if !inline {
            runs.push(Run::of(BATCH, x, in_batches(load, BATCH_CALLS, effort)));
        }
    }
    runs
}

fn drawings(outcomes: &Outcomes) -> Vec<Drawing> {
    let group = |x: u32| ["none", "inline", "unsignaled", "both"][x.min(BOTH) as usize].to_owned();
    vec![outcomes.bars(FIGURE.title, "million operations a second", group, |outcome| outcome.mops)]
}

fn points(outcomes: &Outcomes) -> Vec<Point> {
    let mut points = outcomes.as_they_are("mops", |outcome| outcome.mops);
    for system in [WRITE, RF_RPC] {
        let mops = |x| outcomes.get(system, x, |outcome| outcome.mops);
        let (Some(none), Some(inline), Some(unsignaled), Some(both)) =
            (mops(0), mops(INLINE), mops(UNSIGNALED), mops(BOTH))
        else {
            continue;
        };
        let mut ratio = |title: &str, predicted, said| {
            let series = format!("{system}, {title}");
            points.push(Point { series: series.clone(), x: BOTH, unit: "ratio", predicted, said: None });
            let (paper, source) = said;
            say(&mut points, &series, BOTH, paper, source);
        };
        ratio("both over none", both / none, (Paper::Value(1.3), "5.4: nearly 30% more"));
        let source = "5.4: unsignaled brings more than inline";
        ratio("unsignaled over inline", unsignaled / inline, (Paper::AtLeast(1.0), source));
    }
    let batch = |x| outcomes.get(BATCH, x, |outcome| outcome.mops);
    if let (Some(none), Some(unsignaled)) = (batch(0), batch(UNSIGNALED)) {
        let (series, predicted) = (format!("{BATCH}, unsignaled over none"), unsignaled / none);
        points.push(Point { series, x: UNSIGNALED, unit: "ratio", predicted, said: None });
    }
    points
}
