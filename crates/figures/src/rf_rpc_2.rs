//! RF-RPC figure 2: server-bypass by the number of READs per request.

use super::rf_rpc_verbs::Clients;
use super::{Effort, Figure, Outcomes, Paper, Point, Run, say};
use dunlin_rnic_model::Opcode;

pub(super) const FIGURE: Figure = Figure::predicted(
    [
        "rf-rpc-2",
        "Throughput of server-bypass by the READs that a request takes one after the other",
        "rf-rpc",
        "reads_per_10_requests",
    ],
    "READs of 32 bytes, one at a time, and nothing but READs. How far the paper's axis goes its text does not say; below 1 MOPS is \
     asked of 16 READs. Pilaf's 3.2 READs are compared with 28 clients, who reach the peak from which the paper computes them.",
    runs,
    points,
);

/// Clients of this figure (RF-RPC 2.3, footnote 2).
const CLIENTS: u32 = 21;
/// Clients that reach the peak (RF-RPC 2.2: four threads on each of seven machines).
const PEAK_CLIENTS: u32 = 28;
const BYPASS: &str = "server-bypass, 21 clients";
const PEAK: &str = "server-bypass, 28 clients";
/// READs of ten requests.
const READS: [u32; 10] = [10, 20, 30, 32, 40, 50, 60, 80, 120, 160];

fn runs(effort: Effort) -> Vec<Run> {
    let run = |name, number| {
        let clients = Clients { number, opcode: Opcode::Read, inline: false, signaled: true, effort };
        Run::clients(name, number, clients)
    };
    vec![run(BYPASS, CLIENTS), run(PEAK, PEAK_CLIENTS)]
}

fn points(outcomes: &Outcomes) -> Vec<Point> {
    let mut points = Vec::new();
    for (series, clients) in [(BYPASS, CLIENTS), (PEAK, PEAK_CLIENTS)] {
        let Some(rate) = outcomes.get(series, clients, |outcome| outcome.mops) else { continue };
        points.extend(READS.iter().map(|reads| Point {
            series: series.to_owned(),
            x: *reads,
            unit: "mops",
            // A request's READs are sequential and share the NICs with nothing else.
            predicted: rate * 10.0 / f64::from(*reads),
            said: None,
        }));
    }
    say(&mut points, PEAK, 32, Paper::Value(3.5), "5.2: 3.5 MOPS at most with Pilaf's 3.2 READs a GET");
    say(&mut points, BYPASS, 160, Paper::AtMost(1.0), "2.3: below 1 MOPS with an increasing number of READs");
    points
}
