//! ScaleRPC figure 11: throughput by the length of the slice, and by the size of two groups.

use super::scalerpc::{HOSTS, System, common_notes, mops};
use super::{Effort, Figure, Outcomes, Paper, Point, Run, say};
use dunlin_scenario::load::{Grouping, Load};

pub(super) const SLICES: Figure = Figure::predicted(
    ["scalerpc-11a", "Throughput of 80 clients by the slice", "scalerpc", "slice_us"],
    common_notes!("Batch 1."),
    slice_runs,
    slice_points,
);

pub(super) const GROUPS: Figure = Figure::predicted(
    ["scalerpc-11b", "Throughput of two groups by their size", "scalerpc", "clients_of_a_group"],
    common_notes!(
        "Batch 8: the paper does not state it, and it cannot be 1, since ten calls every 1.75 us would each be shorter than two WRITEs. 'Slightly' is read as by at most a fifth."
    ),
    group_runs,
    group_points,
);

fn slice_runs(effort: Effort) -> Vec<Run> {
    let slices: &[u32] = match effort {
        Effort::Full => &[30, 50, 100, 150, 200, 250],
        Effort::Quick => &[30, 250],
    };
    let run = |slice: &u32| {
        let groups = Grouping { slice: u64::from(*slice) * 1_000, ..Grouping::PAPER };
        let load = Load { groups, ..System::ScaleRpc.load((80, HOSTS), 1, effort) };
        Run::of(System::ScaleRpc.name(), *slice, load)
    };
    slices.iter().map(run).collect()
}

fn slice_points(outcomes: &Outcomes) -> Vec<Point> {
    let mut points = outcomes.as_they_are("mops", mops);
    for (x, value, source) in
        [(30, 7.6, "3.6.4: 7.6 Mops with 30 us"), (250, 8.9, "3.6.4: 8.9 Mops with 250 us")]
    {
        say(&mut points, System::ScaleRpc.name(), x, Paper::Value(value), source);
    }
    let rate = |x| outcomes.get(System::ScaleRpc.name(), x, mops);
    if let (Some(short), Some(long)) = (rate(30), rate(250)) {
        let said = Some((Paper::Value(8.9 / 7.6), "3.6.4: from 7.6 to 8.9 Mops"));
        let series = "slices of 250 us over 30 us".to_owned();
        points.push(Point { series, x: 250, unit: "ratio", predicted: long / short, said });
    }
    points
}

fn group_runs(effort: Effort) -> Vec<Run> {
    let sizes: &[u32] = match effort {
        Effort::Full => &[10, 20, 30, 40, 50, 60, 70],
        Effort::Quick => &[10, 40, 70],
    };
    let run = |size: &u32| {
        let groups = Grouping { size: *size as u16, ..Grouping::PAPER };
        let load = Load { groups, ..System::ScaleRpc.load((2 * size, HOSTS), 8, effort) };
        Run::of(System::ScaleRpc.name(), *size, load)
    };
    sizes.iter().map(run).collect()
}

fn group_points(outcomes: &Outcomes) -> Vec<Point> {
    let mut points = outcomes.as_they_are("mops", mops);
    let name = System::ScaleRpc.name();
    say(&mut points, name, 10, Paper::Value(5.7), "3.6.4: 5.7 million a second with groups of 10");
    let Some((_, most)) = outcomes.peak(name, mops) else { return points };
    for (x, paper, said) in [
        (40, Paper::AtLeast(0.98), "3.6.4: groups of 40 are the best"),
        (70, Paper::Between(0.8, 0.99), "3.6.4: a slight drop with groups of 70"),
    ] {
        let Some(rate) = outcomes.get(name, x, mops) else { continue };
        let (series, predicted) = ("over the best group".to_owned(), rate / most);
        points.push(Point { series, x, unit: "ratio", predicted, said: Some((paper, said)) });
    }
    points
}
