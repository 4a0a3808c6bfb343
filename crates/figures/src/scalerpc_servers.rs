//! ScaleRPC section 4.2: clients that call several servers in every step, with one schedule of the servers or without.

use super::drawing::Drawing;
use super::scalerpc::{BYTES, HOSTS, System};
use super::{Effort, Figure, Outcome, Outcomes, Point, Run};
use dunlin_fabric::Nanos;
use dunlin_scenario::synchronised::{Steps, Synchronised};

pub(super) const FIGURE: Figure = Figure::predicted(
    ["scalerpc-servers", "Steps that call three servers, by the number of groups", "scalerpc", "groups"],
    "The paper has no numbers of the synchronisation alone. Three servers with a thread each, whose clocks are a second apart and drift by 0, 200 and 100 millionths; groups of 10 clients, \
     slices of 100 us, 32 bytes each way. A step is a call to each server, posted together. The servers ask the time server every 100 ms, and have done so for four seconds. Switches: the \
     time from the first to the last server that begins a slice, by the simulator's time.",
    runs,
    points,
)
.drawn(drawings);

/// Clients of a group.
const GROUP: u32 = 10;
/// Slices and measured time of a full run, in nanoseconds.
const SLICE: Nanos = 100_000;
const MEASURED: Nanos = 40_000_000;
const COMMON: &str = "one schedule";
const OWN: &str = "a schedule of each server";

impl From<(Steps, Nanos)> for Outcome {
    fn from((steps, measured): (Steps, Nanos)) -> Outcome {
        let us = |percent| steps.apart_at(percent) as f64 / 1e3;
        Outcome {
            mops: steps.steps as f64 * 1e3 / measured.max(1) as f64,
            mean_us: steps.time as f64 / 1e3 / steps.steps.max(1) as f64,
            quantiles_us: [us(15), us(50), us(99)],
            ..Outcome::default()
        }
    }
}

fn runs(effort: Effort) -> Vec<Run> {
    let (groups, measured): (&[u32], Nanos) = match effort {
        Effort::Full => (&[1, 2, 4, 8], MEASURED),
        Effort::Quick => (&[4], MEASURED / 8),
    };
    let run = |groups: &u32| {
        [(COMMON, true), (OWN, false)].map(|(series, is_common)| {
            let load = Synchronised {
                profile: "scalerpc".to_owned(),
                clocks: vec![(0, 0), (1_000_000_000, 200), (2_000_000_000, 100)],
                workers: 1,
                client_hosts: HOSTS,
                clients: (groups * GROUP) as usize,
                group: GROUP as u16,
                slice: SLICE,
                bytes: BYTES as usize,
                is_common,
                plan: System::ScaleRpc.plan(),
                warm_up: measured / 4,
                measured,
            };
            Run::synchronised(series, *groups, load)
        })
    };
    groups.iter().flat_map(run).collect()
}

fn mops(outcome: &Outcome) -> f64 {
    outcome.mops
}

fn points(outcomes: &Outcomes) -> Vec<Point> {
    let mut points = outcomes.as_they_are("mops", mops);
    points.extend(outcomes.ratios("one schedule over one of each", COMMON, OWN, mops));
    for x in outcomes.xs().into_iter().filter(|groups| *groups > 1) {
        for (title, value) in [
            ("switches apart, median", (|outcome| outcome.quantiles_us[1]) as fn(&Outcome) -> f64),
            ("switches apart, 99% of slices", |outcome| outcome.quantiles_us[2]),
        ] {
            if let Some(predicted) = outcomes.get(COMMON, x, value) {
                points.push(Point { series: title.to_owned(), x, unit: "us", predicted, said: None });
            }
        }
    }
    points
}

fn drawings(outcomes: &Outcomes) -> Vec<Drawing> {
    let groups = |groups: u32| format!("{groups} groups");
    let name = "Steps that call three servers";
    vec![outcomes.bars(name, "million steps a second", groups, mops)]
}
