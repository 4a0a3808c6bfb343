//! FLOCK figure 10: the gain of coalescing, with 32 threads of each client.

use super::flock::{HOSTS, Threads, mops, ratios, three_ways};
use super::{Effort, Figure, Outcome, Outcomes, Paper, Point, Run};

pub(super) const FIGURE: Figure = Figure::predicted(
    ["flock-10", "Coalescing, 32 threads of a client", "flock", "calls_in_flight"],
    "As flock-6. Without coalescing each call is a message of its own, with the same leader and the same 256 queue pairs. The paper's processor cycles for \
     MMIO are compared as doorbells of the server for each answer.",
    runs,
    points,
);

const THREADS: u32 = 32;
const ON: &str = "coalescing";
const OFF: &str = "a message for each call";

fn runs(effort: Effort) -> Vec<Run> {
    let windows: &[u16] = match effort {
        Effort::Full => &[1, 4, 8],
        Effort::Quick => &[1, 8],
    };
    let mut runs = Vec::new();
    for window in windows {
        let on = Threads::flock(HOSTS * THREADS, *window).load(effort);
        let mut off = on.clone();
        off.most_together = 1;
        runs.push(Run::of(ON, u32::from(*window), on));
        runs.push(Run::of(OFF, u32::from(*window), off));
    }
    runs
}

fn points(outcomes: &Outcomes) -> Vec<Point> {
    let mut points = three_ways(outcomes);
    let title = format!("{ON} over {OFF}");
    points.extend(ratios(outcomes, &title, (ON, OFF), mops, |x| {
        Some((
            Paper::Value(if x == 1 { 1.4 } else { 1.7 }),
            "8.3.1: 1.4 times with 1 in flight, 1.7 with 4 and 8",
        ))
    }));
    let mut degree = outcomes.as_they_are("calls_a_message", |outcome| outcome.degree);
    degree.retain(|point| point.series == ON);
    for point in &mut degree {
        point.series = format!("{ON}, requests a message");
        let said = match point.x {
            1 => 1.56,
            4 => 1.7,
            _ => 2.0,
        };
        point.said = Some((
            Paper::Value(said),
            "8.3.1: 1.56 requests a message, about 1.7 and 2 with 4 and 8 in flight",
        ));
    }
    points.extend(degree);
    let rung: fn(&Outcome) -> f64 = |outcome| outcome.answers_rung_per_call;
    let title = format!("doorbells of the server, {ON} over {OFF}");
    points.extend(ratios(outcomes, &title, (ON, OFF), rung, |x| {
        (x == 1).then_some((Paper::Value(0.64), "8.3.1: 36% fewer processor cycles for MMIO"))
    }));
    points
}
