//! ScaleRPC with many threads, which the paper has not: 100 client hosts, whose threads have connections that take turns,
//! share one connection of their host (FLOCK section 4), or both.

use super::scalerpc::{BYTES, System, common_notes, mops};
use super::{Effort, Figure, Outcomes, Paper, Point, Run};
use dunlin_fabric::Nanos;
use dunlin_rpc::{Lease, Sharing};
use dunlin_scenario::load::{Extent, Function, Grouping, Load};
use dunlin_scenario::random_values::Sizes;

pub(super) const FIGURE: Figure = Figure::predicted(
    [
        "scalerpc-many",
        "Up to 10 000 threads of 100 clients, grouped, combined, and both",
        "scalerpc",
        "threads",
    ],
    common_notes!(
        "Not in the paper. 100 client hosts, one call in flight of each thread. Grouped: a connection for each thread, by turns. Combined: one connection for each host, which its threads share, with credits. Both: one \
         connection for each host, by turns. Long: grouped, with slices of 500 us."
    ),
    runs,
    points,
);

const HOSTS: u32 = 100;
const GROUPED: &str = "grouped";
const COMBINED: &str = "combined";
const BOTH: &str = "grouped and combined";
const LONG: &str = "grouped, long";
/// The long slices, in nanoseconds: a switch costs up to 18 us, which are less than a twentieth of them.
const LONG_SLICE: Nanos = 500_000;
/// The threads of one group, which never switches.
const ONE_GROUP: u32 = 40;

/// The policies: how threads share, how long leases last, whether a host has one connection, and the slices.
const SERIES: [(&str, Sharing, Lease, bool, Nanos); 4] = [
    (GROUPED, Sharing::Dedicated, Lease::Slice, false, Grouping::PAPER.slice),
    (COMBINED, Sharing::Combined, Lease::Forever, true, Grouping::PAPER.slice),
    (BOTH, Sharing::Combined, Lease::Slice, true, Grouping::PAPER.slice),
    (LONG, Sharing::Dedicated, Lease::Slice, false, LONG_SLICE),
];

fn runs(effort: Effort) -> Vec<Run> {
    let threads: &[u32] = match effort {
        Effort::Full => &[ONE_GROUP, 100, 400, 2000, 10_000],
        Effort::Quick => &[400],
    };
    let run = |threads: u32| {
        SERIES.map(|(series, sharing, lease, is_one, slice)| {
            let load = System::ScaleRpc.load((threads, HOSTS as usize), 1, effort);
            let groups = Grouping { slice, ..load.groups };
            // The time in which each group has a slice.
            let turns = slice * Nanos::from(threads) / Nanos::from(groups.size);
            let extent = match load.extent {
                // All groups have their turns before the measurement and during it.
                Extent::Time { warm_up, measured } => {
                    Extent::Time { warm_up: warm_up.max(2 * turns), measured: measured.max(turns) }
                }
                calls => calls,
            };
            let plan = System::ScaleRpc.plan().shared(sharing, lease);
            let handles = is_one.then_some(threads.min(HOSTS) as usize);
            let functions = vec![Function::new(plan, Sizes::Fixed(BYTES), Sizes::Fixed(BYTES))];
            Run::of(series, threads, Load { functions, handles, extent, groups, ..load })
        })
    };
    threads.iter().flat_map(|threads| run(*threads)).collect()
}

fn points(outcomes: &Outcomes) -> Vec<Point> {
    let mut points = outcomes.as_they_are("mops", mops);
    for x in outcomes.xs() {
        let of = |series| outcomes.get(series, x, mops);
        if let (Some(long), Some(peak)) = (of(LONG), outcomes.get(LONG, ONE_GROUP, mops)) {
            let said = (x == 10_000).then_some((Paper::AtLeast(0.95), "an aim: within 5% of the peak at 40"));
            let series = format!("{LONG}, over {ONE_GROUP} threads");
            points.push(Point { series, x, unit: "ratio", predicted: long / peak, said });
        }
        let (Some(both), Some(grouped), Some(combined)) = (of(BOTH), of(GROUPED), of(COMBINED)) else {
            continue;
        };
        let said = (x == 10_000).then_some((Paper::AtLeast(0.95), "an aim: within 5% of the best of either"));
        let series = format!("{BOTH} over the better of either");
        points.push(Point { series, x, unit: "ratio", predicted: both / grouped.max(combined), said });
    }
    points
}
