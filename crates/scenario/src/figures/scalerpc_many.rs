//! ScaleRPC with many threads, which the paper has not: 100 client hosts, whose threads have connections that take turns,
//! share one connection of their host (FLOCK section 4), or both.

use super::scalerpc::{BYTES, System, common_notes, mops};
use super::{Effort, Figure, Outcomes, Paper, Point, Run};
use crate::load::{Extent, Function, Load};
use crate::random_values::Sizes;
use dunlin_fabric::Nanos;
use dunlin_rpc::{Lease, Sharing};

pub(super) const FIGURE: Figure = Figure::predicted(
    [
        "scalerpc-many",
        "Up to 10 000 threads of 100 clients, grouped, combined, and both",
        "scalerpc",
        "threads",
    ],
    common_notes!(
        "Not in the paper. 100 client hosts, one call in flight of each thread. Grouped: a connection for each thread, by turns. Combined: one connection for each host, which its threads share, with credits. Both: one \
         connection for each host, by turns."
    ),
    runs,
    points,
);

const HOSTS: u32 = 100;
const GROUPED: &str = "grouped";
const COMBINED: &str = "combined";
const BOTH: &str = "grouped and combined";
/// The time in which each group of 40 threads has a slice, in nanoseconds by thread.
const TURN: Nanos = 100_000 / 40;

/// The policies: how threads share, how long leases last, and whether a host has one connection.
const SERIES: [(&str, Sharing, Lease, bool); 3] = [
    (GROUPED, Sharing::Dedicated, Lease::Slice, false),
    (COMBINED, Sharing::Combined, Lease::Forever, true),
    (BOTH, Sharing::Combined, Lease::Slice, true),
];

fn runs(effort: Effort) -> Vec<Run> {
    let threads: &[u32] = match effort {
        Effort::Full => &[100, 400, 2000, 10_000],
        Effort::Quick => &[400],
    };
    let run = |threads: u32| {
        SERIES.map(|(series, sharing, lease, is_one)| {
            let load = System::ScaleRpc.load((threads, HOSTS as usize), 1, effort);
            let turns = TURN * Nanos::from(threads);
            let extent = match load.extent {
                // All groups have their turns before the measurement and during it.
                Extent::Time { warm_up, measured } => {
                    Extent::Time { warm_up: warm_up.max(2 * turns), measured: measured.max(2 * turns) }
                }
                calls => calls,
            };
            let plan = System::ScaleRpc.plan().shared(sharing, lease);
            let handles = is_one.then_some(threads.min(HOSTS) as usize);
            let functions = vec![Function::new(plan, Sizes::Fixed(BYTES), Sizes::Fixed(BYTES))];
            Run::of(series, threads, Load { functions, handles, extent, ..load })
        })
    };
    threads.iter().flat_map(|threads| run(*threads)).collect()
}

fn points(outcomes: &Outcomes) -> Vec<Point> {
    let mut points = outcomes.as_they_are("mops", mops);
    for x in outcomes.xs() {
        let of = |series| outcomes.get(series, x, mops);
        let (Some(both), Some(grouped), Some(combined)) = (of(BOTH), of(GROUPED), of(COMBINED)) else {
            continue;
        };
        let said = (x == 10_000).then_some((Paper::AtLeast(0.95), "an aim: within 5% of the best of either"));
        let series = format!("{BOTH} over the better of either");
        points.push(Point { series, x, unit: "ratio", predicted: both / grouped.max(combined), said });
    }
    points
}
