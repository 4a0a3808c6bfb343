//! HatRPC figures 13 and 14: two functions of one service, one with the goal of latency and one of
//! throughput, chosen at random for each call.

use super::hatrpc::{DIRECT, RFP, crowd};
use super::hatrpc_hints::{Best, Hinted, UNDER, UpTo, each, series};
use super::{Effort, Figure, Outcome, Outcomes, Paper, Point, Run};
use dunlin_fabric::Nanos;
use dunlin_hints::PerfGoal;
use dunlin_scenario::load::Function;
use dunlin_scenario::random_values::{Sizes, Times};

pub(super) const SMALL: Figure = Figure::predicted(
    ["hatrpc-13", "Mixed functions with hints of their own, 512 bytes, by clients", "hatrpc", "clients"],
    NOTES,
    |effort| runs(512, effort),
    small,
);
pub(super) const LARGE: Figure = Figure::predicted(
    ["hatrpc-14", "Mixed functions with hints of their own, 128 KiB, by clients", "hatrpc", "clients"],
    NOTES,
    |effort| runs(128 << 10, effort),
    large,
);

const NOTES: &str = "Each call is of either function by even chance; latency is of the one with that goal, throughput of the other. The \
    handler's checksum takes a cycle of 2.6 GHz for each byte of the request (assumed). The other protocols are the same hints with the protocol \
    named for both functions. Sides poll busily where the paper's table has it. Clients on nine hosts, a server thread for each, 28 cores on every host. Calls count for as \
    long as in hatrpc-5, and until each thread that spins has had a core twice.";

fn runs(bytes: u32, effort: Effort) -> Vec<Run> {
    let clients: &[u32] = match effort {
        Effort::Full => &[1, 2, 4, 8, 16, 28, 64, 128],
        Effort::Quick => &[16, 64],
    };
    let checksum = Times::Fixed((f64::from(bytes) / 2.6) as Nanos);
    let mut runs = Vec::new();
    for (name, protocol) in series() {
        for number in clients {
            let function = |goal| {
                let hints = Hinted { goal, clients: *number, bytes: Some([u64::from(bytes); 2]) };
                let plan = hints.plan(protocol)?;
                let function = Function::new(plan, Sizes::Fixed(bytes), Sizes::Fixed(bytes));
                Some(Function { service: checksum, ..function })
            };
            let goals = [PerfGoal::Latency, PerfGoal::Throughput];
            let Some(both) = goals.into_iter().map(function).collect() else { continue };
            runs.push(Run::of(name, *number, crowd(*number, both, effort)));
        }
    }
    runs
}

fn latency(outcome: &Outcome) -> f64 {
    outcome.functions[0].mean_us
}

fn throughput(outcome: &Outcome) -> f64 {
    outcome.functions[1].mops * 1e3
}

/// Returns latency and throughput of every run.
fn both(outcomes: &Outcomes) -> Vec<Point> {
    let named = |what: &str, mut points: Vec<Point>| {
        points.iter_mut().for_each(|point| point.series = format!("{}, {what}", point.series));
        points
    };
    let mut points = named("latency", outcomes.as_they_are("us", latency));
    points.extend(named("throughput", outcomes.as_they_are("kops", throughput)));
    points
}

const LATENCY: UpTo = UpTo { what: "latency", best: Best::Least, value: latency };
const THROUGHPUT: UpTo = UpTo { what: "throughput", best: Best::Most, value: throughput };

fn small(outcomes: &Outcomes) -> Vec<Point> {
    let mut points = both(outcomes);
    points.extend(LATENCY.over(outcomes, "Hybrid-EagerRNDV", |_| true, 0.88, "5.3: up to 12% less"));
    points.extend(LATENCY.over(outcomes, "Direct-Write-Send", |_| true, 0.82, "5.3: up to 18% less"));
    points.extend(LATENCY.over(outcomes, RFP, |_| true, 0.91, "5.3: up to 9% less"));
    points.extend(THROUGHPUT.over(outcomes, "Hybrid-EagerRNDV", |_| true, 1.11, "5.3: up to 11% more"));
    points.extend(THROUGHPUT.over(outcomes, "Direct-Write-Send", |_| true, 1.10, "5.3: up to 10% more"));
    points.extend(THROUGHPUT.over(outcomes, RFP, |_| true, 1.08, "5.3: up to 8% more"));
    points
}

fn large(outcomes: &Outcomes) -> Vec<Point> {
    let mut points = both(outcomes);
    points.extend(LATENCY.over(outcomes, "Hybrid-EagerRNDV", |_| true, 0.88, "5.3: up to 12% less"));
    points.extend(LATENCY.over(outcomes, "Direct-Write-Send", |_| true, 0.94, "5.3: 6% less"));
    points.extend(LATENCY.over(outcomes, RFP, |_| true, 0.93, "5.3: 7% less"));
    points.extend(THROUGHPUT.over(outcomes, "Hybrid-EagerRNDV", |_| true, 1.25, "5.3: up to 25% more"));
    points.extend(THROUGHPUT.over(outcomes, "Direct-Write-Send", |_| true, 1.14, "5.3: up to 14% more"));
    let source = "5.3: up to 11% more with at most 16 clients";
    points.extend(THROUGHPUT.over(outcomes, RFP, |x| x <= UNDER, 1.11, source));
    let said = Some((Paper::Between(1.0, 1.07), "5.3: up to 7% more with more than 16 clients"));
    points.extend(each(outcomes, "throughput", DIRECT, throughput, |x| x > UNDER, said));
    points
}
