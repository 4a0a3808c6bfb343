//! RF-RPC figure 16: batches on RoCE, by their size.

use super::drawing::Drawing;
use super::rf_rpc::gets;
use super::rf_rpc_13::{
    AUTO, BOTH, FETCH, LATENCY, both_values, by_latency, in_batches, limits, mean, mops, within,
};
use super::{Effort, Figure, Outcomes, Paper, Point, Run, say};
use dunlin_rpc::ResponseHalf;
use dunlin_scenario::load::{Load, Network};

pub(super) const FIGURE: Figure = Figure::predicted(
    [
        "rf-rpc-16",
        "Throughput and latency of batches of GETs on RoCE, 8 server threads, 16 clients",
        "rf-rpc-roce",
        "batch_size",
    ],
    "Two client hosts with eight clients each; else as rf-rpc-13. InfiniBand is that cluster's: 35 clients, 16 server threads. The \
     paper's text compares the two clusters in words only.",
    runs,
    points,
)
.drawn(drawings);

/// The series of the InfiniBand cluster at the same sizes.
const INFINIBAND: &str = "RF-RPC-batch on InfiniBand";

/// Returns a load of GETs on the RoCE cluster.
fn roce(half: ResponseHalf, effort: Effort) -> Load {
    Load {
        network: Network::Modelled("rf-rpc-roce".to_owned()),
        clients: 16,
        client_hosts: 2,
        ..gets(half, 8, 0, effort)
    }
}

fn drawings(outcomes: &Outcomes) -> Vec<Drawing> {
    vec![by_latency(outcomes, "Throughput of batches of GETs by their latency, RoCE")]
}

fn runs(effort: Effort) -> Vec<Run> {
    let sizes: &[u32] = match effort {
        Effort::Full => &[1, 2, 8, 24, 48, 96],
        Effort::Quick => &[2, 8],
    };
    let mut runs = Vec::new();
    for size in sizes {
        for (name, half) in BOTH {
            runs.push(Run::of(name, *size, in_batches(roce(half, effort), *size, effort)));
        }
        let infiniband = gets(BOTH[0].1, super::rf_rpc::THREADS, 0, effort);
        runs.push(Run::of(INFINIBAND, *size, in_batches(infiniband, *size, effort)));
    }
    for limit in limits(effort) {
        runs.push(Run::of(AUTO, *limit, within(roce(BOTH[0].1, effort), *limit, effort)));
    }
    runs
}

fn points(outcomes: &Outcomes) -> Vec<Point> {
    let mut points = both_values(outcomes);
    let over = [
        ("RF-RPC-batch, RoCE over InfiniBand", mops as fn(&_) -> _, "5.8: the throughput is not as high"),
        (
            "RF-RPC-batch, latency, RoCE over InfiniBand",
            mean,
            "5.8: latency is a little lower, with fewer clients",
        ),
    ];
    for (title, value, source) in over {
        points.extend(outcomes.ratios(title, FETCH, INFINIBAND, value));
        for x in outcomes.xs() {
            say(&mut points, title, x, Paper::AtMost(1.0), source);
        }
    }
    // With small batches throughput grows fast for little more latency; with large ones it stays ("within a
    // tenth") and latency grows fast.
    let grows = |low, high, value| Some(outcomes.get(FETCH, high, value)? / outcomes.get(FETCH, low, value)?);
    for (low, high, mops_said, latency_said) in [
        (2, 8, Paper::AtLeast(2.0), Paper::AtMost(2.0)),
        (48, 96, Paper::Between(0.9, 1.1), Paper::AtLeast(1.5)),
    ] {
        let title = |what| format!("{FETCH}, {what} over that of {low}");
        for (what, value, paper) in
            [("throughput", mops as fn(&_) -> _, mops_said), (LATENCY, mean, latency_said)]
        {
            if let Some(predicted) = grows(low, high, value) {
                let said = Some((
                    paper,
                    "5.8: throughput grows fast at first and then stops; latency the other way",
                ));
                points.push(Point { series: title(what), x: high, unit: "ratio", predicted, said });
            }
        }
    }
    points
}
