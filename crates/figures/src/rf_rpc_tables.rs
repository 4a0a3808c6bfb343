//! RF-RPC tables 3 and 4: a faster NIC, and RoCE.

use super::drawing::Drawing;
use super::rf_rpc::{FETCH, FETCH_WAITS, REPLY, REPLY_WAITS, SYSTEMS};
use super::rf_rpc_13::{LATENCY, both_values, in_batches, mops};
use super::{Effort, Figure, Outcomes, Paper, Point, Run, measured, say};
use dunlin_scenario::load::{Connections, Load, Network};

pub(super) const THREE: Figure = Figure::predicted(
    [
        "rf-rpc-table-3",
        "Throughput and latency with ConnectX-3 and ConnectX-4, 4 server threads, 16 clients",
        "rf-rpc-connectx4",
        "batch_size",
    ],
    "Four client hosts with four clients each on both clusters; on the one with ConnectX-3 the server uses four of its cores. The profile \
     of ConnectX-4 is fitted to nothing. Every client is connected to every server thread; batches as in rf-rpc-13, 1 being none. \
     'That waits': as in rf-rpc-7.",
    three_runs,
    three_points,
)
.drawn(three_drawings);
pub(super) const FOUR: Figure = Figure::predicted(
    [
        "rf-rpc-table-4",
        "Throughput on RoCE and on InfiniBand, a server thread for each client",
        "rf-rpc-roce",
        "pairs",
    ],
    "The paper has one server thread to one client thread. One such pair, a call at a time, cannot reach its 1.85 MOPS: \
     that would be 0.54 us a call, less than a round trip. So its numbers stand beside eight pairs (the server's cores; assumed), and what it says of both networks beside \
     one pair, too. InfiniBand is the same three hosts with the other link. 'That waits': as in rf-rpc-7.",
    four_runs,
    four_points,
)
.drawn(four_drawings);

fn three_drawings(outcomes: &Outcomes) -> Vec<Drawing> {
    let group = |size| if size == 1 { "no batch".to_owned() } else { format!("batches of {size}") };
    vec![outcomes.bars(THREE.title, "million operations a second", group, mops)]
}

fn four_drawings(outcomes: &Outcomes) -> Vec<Drawing> {
    let group = |pairs| if pairs == 1 { "one pair".to_owned() } else { format!("{pairs} pairs") };
    vec![outcomes.bars(FOUR.title, "million operations a second", group, mops)]
}

const CONNECTX_3: &str = "ConnectX-3";
const CONNECTX_4: &str = "ConnectX-4";

fn three_runs(effort: Effort) -> Vec<Run> {
    let mut runs = Vec::new();
    for (nic, profile) in [(CONNECTX_3, "rf-rpc"), (CONNECTX_4, "rf-rpc-connectx4")] {
        for system in SYSTEMS {
            for size in [1, 16] {
                let load = Load {
                    network: Network::Modelled(profile.to_owned()),
                    clients: 16,
                    client_hosts: 4,
                    server_cores: Some(4),
                    ..system.gets(4, effort)
                };
                runs.push(Run::of(format!("{}, {nic}", system.name), size, in_batches(load, size, effort)));
            }
        }
    }
    runs
}

fn three_points(outcomes: &Outcomes) -> Vec<Point> {
    let mut points = both_values(outcomes);
    for (fetching, replying) in [(FETCH, REPLY), (FETCH_WAITS, REPLY_WAITS)] {
        let said = [
            (replying, CONNECTX_3, [1.66, 10.1]),
            (fetching, CONNECTX_3, [3.05, 12.3]),
            (replying, CONNECTX_4, [2.26, 16.7]),
            (fetching, CONNECTX_4, [4.48, 22.6]),
        ];
        for (name, nic, [plain, batched]) in said {
            let series = format!("{name}, {nic}");
            say(&mut points, &series, 1, Paper::Value(plain), "table 3");
            say(&mut points, &series, 16, Paper::Value(batched), "table 3");
        }
        for (name, nic, us) in
            [(fetching, CONNECTX_3, 5.06), (fetching, CONNECTX_4, 3.60), (replying, CONNECTX_4, 6.77)]
        {
            let series = format!("{name}, {nic}, {LATENCY}");
            say(&mut points, &series, 1, Paper::Value(us), "5.7: average latencies");
        }
        let of = |name: &str, nic: &str| format!("{name}, {nic}");
        let ratios = [
            (
                format!("{fetching}, ConnectX-4 over ConnectX-3"),
                of(fetching, CONNECTX_4),
                of(fetching, CONNECTX_3),
                [1.47, 1.84],
            ),
            (
                format!("{fetching} over {replying}, ConnectX-4"),
                of(fetching, CONNECTX_4),
                of(replying, CONNECTX_4),
                [1.98, 1.35],
            ),
            (
                format!("{fetching} over {replying}, ConnectX-3"),
                of(fetching, CONNECTX_3),
                of(replying, CONNECTX_3),
                [1.84, 1.22],
            ),
        ];
        for (title, over, under, [plain, batched]) in ratios {
            points.extend(outcomes.ratios(&title, &over, &under, mops));
            say(&mut points, &title, 1, Paper::Value(plain), "table 3, 5.7");
            say(&mut points, &title, 16, Paper::Value(batched), "table 3, 5.7");
        }
    }
    points
}

const ROCE: &str = "RoCE";
const INFINIBAND: &str = "InfiniBand";
/// Number of pairs to which the table's numbers refer.
const PAIRS: u32 = 8;

fn four_runs(effort: Effort) -> Vec<Run> {
    let mut runs = Vec::new();
    for (link, profile) in [(ROCE, "rf-rpc-roce"), (INFINIBAND, "rf-rpc")] {
        for system in SYSTEMS {
            for pairs in [1, PAIRS] {
                let load = Load {
                    network: Network::Modelled(profile.to_owned()),
                    clients: pairs as usize,
                    client_hosts: if pairs == 1 { 1 } else { 2 },
                    connections: Connections::One,
                    extent: measured(effort, 1_000_000),
                    ..system.gets(pairs as u16, effort)
                };
                runs.push(Run::of(format!("{}, {link}", system.name), pairs, load));
            }
        }
    }
    runs
}

fn four_points(outcomes: &Outcomes) -> Vec<Point> {
    let mut points = both_values(outcomes);
    for (fetching, replying) in [(FETCH, REPLY), (FETCH_WAITS, REPLY_WAITS)] {
        let of = |name: &str, link: &str| format!("{name}, {link}");
        let said = [
            (replying, ROCE, 1.21),
            (fetching, ROCE, 1.72),
            (replying, INFINIBAND, 1.30),
            (fetching, INFINIBAND, 1.85),
        ];
        for (name, link, value) in said {
            say(&mut points, &of(name, link), PAIRS, Paper::Value(value), "table 4");
        }
        for (name, value) in [(fetching, 1.72 / 1.85), (replying, 1.21 / 1.30)] {
            let title = format!("{name}, RoCE over InfiniBand");
            points.extend(outcomes.ratios(&title, &of(name, ROCE), &of(name, INFINIBAND), mops));
            for pairs in [1, PAIRS] {
                say(&mut points, &title, pairs, Paper::Value(value), "table 4");
            }
        }
        for (link, value) in [(ROCE, 1.72 / 1.21), (INFINIBAND, 1.85 / 1.30)] {
            let title = format!("{fetching} over {replying}, {link}");
            points.extend(outcomes.ratios(&title, &of(fetching, link), &of(replying, link), mops));
            for pairs in [1, PAIRS] {
                say(&mut points, &title, pairs, Paper::Value(value), "table 4");
            }
        }
    }
    points
}
