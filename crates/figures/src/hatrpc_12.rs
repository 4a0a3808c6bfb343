//! HatRPC figure 12: throughput by the number of clients, a service with the goal of throughput, small and
//! large payloads.

use super::hatrpc::{DIRECT, RFP, crowd};
use super::hatrpc_hints::{Best, Hinted, UNDER, UpTo, each, series};
use super::{Effort, Figure, Outcome, Outcomes, Paper, Point, Run};
use dunlin_hints::PerfGoal;
use dunlin_scenario::load::Function;
use dunlin_scenario::random_values::Sizes;

pub(super) const SMALL: Figure = Figure::predicted(
    ["hatrpc-12-512", "Throughput with service hints, 512 bytes, by clients", "hatrpc", "clients"],
    NOTES,
    |effort| runs(512, effort),
    small,
);
pub(super) const LARGE: Figure = Figure::predicted(
    ["hatrpc-12-128k", "Throughput with service hints, 128 KiB, by clients", "hatrpc", "clients"],
    NOTES,
    |effort| runs(128 << 10, effort),
    large,
);

const NOTES: &str = "The service is hinted perf_goal = throughput, payload_size and concurrency, and polling = busy where the paper's table has it; the other protocols are the same hints with \
    the protocol named, so all wait in the same way at one place. Clients on nine hosts, a server thread for each, 28 cores on every host. No \
    NUMA. Calls count for as long as in hatrpc-5. The cost of Thrift's encoding is not in it.";

fn runs(bytes: u32, effort: Effort) -> Vec<Run> {
    let clients: &[u32] = match effort {
        Effort::Full => &[1, 2, 4, 8, 16, 28, 64, 128, 256, 512],
        Effort::Quick => &[16, 64],
    };
    let mut runs = Vec::new();
    for (name, protocol) in series() {
        for number in clients {
            let bytes_both = Some([u64::from(bytes); 2]);
            let hints = Hinted { goal: PerfGoal::Throughput, clients: *number, bytes: bytes_both };
            let Some(plan) = hints.plan(protocol) else { continue };
            let function = Function::new(plan, Sizes::Fixed(bytes), Sizes::Fixed(bytes));
            runs.push(Run::of(name, *number, crowd(*number, vec![function], effort)));
        }
    }
    runs
}

fn kops(outcome: &Outcome) -> f64 {
    outcome.mops * 1e3
}

const THROUGHPUT: UpTo = UpTo { what: "throughput", best: Best::Most, value: kops };

fn small(outcomes: &Outcomes) -> Vec<Point> {
    let mut points = outcomes.as_they_are("kops", kops);
    points.extend(THROUGHPUT.over(outcomes, "Hybrid-EagerRNDV", |_| true, 1.14, "5.2: up to 14% more"));
    points.extend(THROUGHPUT.over(outcomes, "Direct-Write-Send", |_| true, 1.20, "5.2: up to 20% more"));
    points.extend(THROUGHPUT.over(outcomes, RFP, |_| true, 1.12, "5.2: up to 12% more"));
    points
}

fn large(outcomes: &Outcomes) -> Vec<Point> {
    let mut points = outcomes.as_they_are("kops", kops);
    points.extend(THROUGHPUT.over(outcomes, "Hybrid-EagerRNDV", |_| true, 1.56, "5.2: up to 56% more"));
    points.extend(THROUGHPUT.over(outcomes, "Direct-Write-Send", |_| true, 1.21, "5.2: up to 21% more"));
    let source = "5.2: up to 15% more with at most 16 clients";
    points.extend(THROUGHPUT.over(outcomes, RFP, |x| x <= UNDER, 1.15, source));
    let said = (Paper::Between(1.07, 1.09), "5.2: RFP is 7% to 9% ahead with more than 16 clients");
    points.extend(each(outcomes, "throughput", DIRECT, kops, |x| x > UNDER, Some(said)));
    points
}
