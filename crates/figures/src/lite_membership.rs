//! LITE section 3.3: membership. The time until the nodes of a cluster know that one of them has died.

use super::lite::PROFILE;
use super::{Effort, Figure, Outcome, Outcomes, Point, Run};
use dunlin_scenario::membership::{Death, MembershipLoad, MembershipTimes};
use std::time::Duration;

pub(super) const FIGURE: Figure = Figure::predicted(
    [
        "lite-membership",
        "Time from the death of one node of ten until all others know it",
        PROFILE,
        "lease in ms",
    ],
    "The paper has no numbers on failures. Ten nodes with a machine each report themselves to a directory, on another machine, five times a lease. One of them \
     is killed, or is not heard of any more while its memory is still there. A thread of each other node writes to that node's memory every 0.2 ms; then it maps a \
     name that the node kept. Each value is the longest one of the nine nodes, and of deaths at several parts of the time between two reports.",
    runs,
    points,
);

const DEATHS: [(&str, Death); 2] = [("killed", Death::Killed), ("silent", Death::Silent)];

/// The phases are the times until all nodes have the view, all callers the error, and the names homes, in milliseconds.
/// The value is the time of the longest operation, in microseconds.
impl From<MembershipTimes> for Outcome {
    fn from(times: MembershipTimes) -> Outcome {
        let ms = |time: u64| time as f64 / 1e6;
        let phases_ms = [times.view, times.status, times.name].map(ms);
        Outcome { value: times.operation as f64 / 1e3, phases_ms, ..Outcome::default() }
    }
}

fn runs(effort: Effort) -> Vec<Run> {
    let (leases, phases): (&[u32], &[u32]) = match effort {
        Effort::Full => (&[200, 500, 1000, 2000], &[0, 3, 6, 9]),
        Effort::Quick => (&[200], &[4]),
    };
    let mut runs = Vec::new();
    for &lease in leases {
        for (name, death) in DEATHS {
            for &phase in phases {
                let (lease_time, beat) =
                    (Duration::from_millis(lease.into()), Duration::from_millis(u64::from(lease) / 5));
                let load =
                    MembershipLoad { death, lease: lease_time, beat, phase, ..MembershipLoad::of(PROFILE) };
                runs.push(Run::membership(&format!("{name}, at {phase}/10 of a beat"), lease, load));
            }
        }
    }
    runs
}

/// Returns the longest value of the runs of a death with a lease, over all parts of a beat.
fn longest(outcomes: &Outcomes, series: &str, x: u32, value: impl Fn(&Outcome) -> f64) -> f64 {
    let of_it = outcomes.0.iter().filter(|(run, _)| run.series.starts_with(series) && run.x == x);
    of_it.map(|(_, outcome)| value(outcome)).fold(0.0, f64::max)
}

fn points(outcomes: &Outcomes) -> Vec<Point> {
    let mut points = Vec::new();
    for x in outcomes.xs() {
        for (name, _) in DEATHS {
            let mut point = |what: &str, unit, predicted| {
                let series = format!("{name}: {what}");
                points.push(Point { series, x, unit, predicted, said: None });
            };
            point("all have the view", "ms", longest(outcomes, name, x, |outcome| outcome.phases_ms[0]));
            point(
                "all callers have the error",
                "ms",
                longest(outcomes, name, x, |outcome| outcome.phases_ms[1]),
            );
            point("names have homes", "ms", longest(outcomes, name, x, |outcome| outcome.phases_ms[2]));
            point("longest operation", "us", longest(outcomes, name, x, |outcome| outcome.value));
        }
    }
    points
}
