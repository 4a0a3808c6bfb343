//! ScaleRPC figure 12: the priority scheduler where clients have different think times.

use super::drawing::Drawing;
use super::flock::ratios;
use super::scalerpc::{HOSTS, System, common_notes, mops};
use super::{Effort, Figure, Outcomes, Paper, Point, Run};
use dunlin_fabric::Nanos;
use dunlin_scenario::load::{Grouping, Load, Pace};
use dunlin_scenario::random_values::Times;

pub(super) const FIGURE: Figure = Figure::predicted(
    ["scalerpc-12", "Dynamic and static groups by the spread of think times", "scalerpc", "sigma_percent"],
    common_notes!(
        "Batch 1 and 120 clients (neither stated). A client's think time is constant: 10 us (not stated) times a Gaussian number of mean 1, at least 0; sigma is relative to that mean."
    ),
    runs,
    points,
)
.drawn(drawings);

const CLIENTS: u32 = 120;
/// Mean think time in nanoseconds.
const THINK: Nanos = 10_000;
const DYNAMIC: &str = "Dynamic";
const STATIC: &str = "Static";

fn runs(effort: Effort) -> Vec<Run> {
    let run = |sigma: u32| {
        [(DYNAMIC, true), (STATIC, false)].map(|(series, by_priority)| {
            let spread = f64::from(sigma) / 100.0;
            let pace = Pace::Posted { size: 1, think: Times::Fixed(THINK), spread };
            let groups = Grouping { by_priority, ..Grouping::PAPER };
            let load = System::ScaleRpc.load((CLIENTS, HOSTS), 1, effort);
            Run::of(series, sigma, Load { pace, groups, ..load })
        })
    };
    [80, 100].into_iter().flat_map(run).collect()
}

fn points(outcomes: &Outcomes) -> Vec<Point> {
    let mut points = outcomes.as_they_are("mops", mops);
    points.extend(ratios(outcomes, "Dynamic over Static", (DYNAMIC, STATIC), mops, |x| match x {
        80 => Some((Paper::Value(1.09), "3.6.5: 9% more with a sigma of 0.8")),
        _ => Some((Paper::Value(1.10), "3.6.5: 10% more with a sigma of 1")),
    }));
    points
}

fn drawings(outcomes: &Outcomes) -> Vec<Drawing> {
    let sigma = |percent: u32| format!("sigma {}", f64::from(percent) / 100.0);
    vec![outcomes.bars("Dynamic and static groups", "million calls a second", sigma, mops)]
}
