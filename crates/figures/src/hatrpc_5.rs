//! HatRPC figure 5: throughput of its protocols by the number of clients, small and large messages.

use super::hatrpc::{DIRECT, Polling, RFP, crowd, names, protocols, series};
use super::{Effort, Figure, Outcomes, Paper, Point, Run, say};
use dunlin_scenario::load::Function;
use dunlin_scenario::random_values::Sizes;

pub(super) const SMALL: Figure = Figure::predicted(
    ["hatrpc-5-512", "Throughput of calls of 512 bytes by the number of clients", "hatrpc", "clients"],
    NOTES,
    |effort| runs(512, effort),
    small,
);
pub(super) const LARGE: Figure = Figure::predicted(
    ["hatrpc-5-128k", "Throughput of calls of 128 KiB by the number of clients", "hatrpc", "clients"],
    NOTES,
    |effort| runs(128 << 10, effort),
    large,
);

const NOTES: &str = "Clients on nine hosts, a server thread for each, 28 cores on every host; clients and server threads that \
    are more than cores take turns in quanta. Calls count until each thread that spins has had a core for a quantum, the link has moved twenty \
    messages of each client, and 6 ms have gone by. No NUMA. Over 4 KiB those that write into a ring, and those that fetch, go by read rendezvous, and \
    Eager-SendRecv in messages of 4 KiB.";

/// Client counts: under-subscribed (HatRPC 5.3), fully subscribed, over-subscribed.
const UNDER: u32 = 16;
const FULL: u32 = 28;
const OVER: [u32; 4] = [64, 128, 256, 512];

fn runs(bytes: u32, effort: Effort) -> Vec<Run> {
    let clients: &[u32] = match effort {
        Effort::Full => &[1, 2, 4, 8, 16, 28, 64, 128, 256, 512],
        Effort::Quick => &[16, 28, 64],
    };
    let mut runs = Vec::new();
    for (name, polling, plan) in protocols() {
        for number in clients {
            let function = Function::new(plan, Sizes::Fixed(bytes), Sizes::Fixed(bytes));
            let load = crowd(*number, vec![function], effort);
            runs.push(Run::of(series(name, polling), *number, load));
        }
    }
    runs
}

fn kops(outcome: &super::Outcome) -> f64 {
    outcome.mops * 1e3
}

/// Adds the ratio of a series to the best of the other series given.
fn over_best(outcomes: &Outcomes, points: &mut Vec<Point>, title: &str, of: &str, others: &[String]) {
    for x in outcomes.xs() {
        let best = others
            .iter()
            .filter(|name| *name != of)
            .filter_map(|name| outcomes.get(name, x, kops))
            .reduce(f64::max);
        if let (Some(mine), Some(best)) = (outcomes.get(of, x, kops), best) {
            points.push(Point {
                series: title.to_owned(),
                x,
                unit: "ratio",
                predicted: mine / best,
                said: None,
            });
        }
    }
}

/// Adds the claim about both sizes: busy polling performs badly with more clients than cores.
fn both_sizes(outcomes: &Outcomes) -> Vec<Point> {
    let mut points = outcomes.as_they_are("kops", kops);
    for name in names(Polling::Busy) {
        let busy = series(name, Polling::Busy);
        let title = format!("{busy}, over that of {FULL} clients");
        let Some(full) = outcomes.get(&busy, FULL, kops) else { continue };
        for x in OVER {
            let Some(value) = outcomes.get(&busy, x, kops) else { continue };
            let predicted = value / full;
            points.push(Point { series: title.clone(), x, unit: "ratio", predicted, said: None });
            // "Significant" has no number; interpreted as more than a tenth.
            let source = "3.2: significantly less with over-subscription";
            say(&mut points, &title, x, Paper::AtMost(0.9), source);
        }
    }
    for name in names(Polling::Event) {
        let title = format!("event over busy, {name}");
        let (event, busy) = (series(name, Polling::Event), series(name, Polling::Busy));
        points.extend(outcomes.ratios(&title, &event, &busy, kops));
        for x in OVER {
            say(
                &mut points,
                &title,
                x,
                Paper::AtLeast(1.0),
                "3.2: busy polling is not as scalable as event polling",
            );
        }
    }
    points
}

fn small(outcomes: &Outcomes) -> Vec<Point> {
    let mut points = both_sizes(outcomes);
    let direct = series(DIRECT, Polling::Event);
    let mine = |polling| names(polling).into_iter().map(move |name| series(name, polling));
    let all: Vec<String> = Polling::BOTH.into_iter().flat_map(mine).collect();
    let title = format!("{direct}, over the best of all others");
    over_best(outcomes, &mut points, &title, &direct, &all);
    for x in [UNDER, FULL].into_iter().chain(OVER) {
        let source = "3.2: the best with under-, full and over-subscription";
        say(&mut points, &title, x, Paper::AtLeast(1.0), source);
    }
    points
}

fn large(outcomes: &Outcomes) -> Vec<Point> {
    let mut points = both_sizes(outcomes);
    let event: Vec<String> = names(Polling::Event).iter().map(|name| series(name, Polling::Event)).collect();
    let (direct, rfp) = (series(DIRECT, Polling::Event), series(RFP, Polling::Event));
    let title = format!("{direct}, over the best other by events");
    over_best(outcomes, &mut points, &title, &direct, &event);
    say(&mut points, &title, UNDER, Paper::AtLeast(1.0), "3.2: by events the best with under-subscription");
    let title = format!("{rfp}, over the best other by events");
    over_best(outcomes, &mut points, &title, &rfp, &event);
    for x in OVER {
        say(&mut points, &title, x, Paper::AtLeast(1.0), "3.2: by events far ahead of the others otherwise");
    }
    points
}
