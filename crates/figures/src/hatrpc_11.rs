//! HatRPC figure 11: latency by payload size, one client, a service with the goal of latency.

use super::hatrpc::{DIRECT, RFP, load};
use super::hatrpc_hints::{Best, Hinted, UpTo, each, series};
use super::{Effort, Figure, Outcome, Outcomes, Paper, Point, Run};
use dunlin_hints::PerfGoal;
use dunlin_scenario::load::Extent;

pub(super) const FIGURE: Figure = Figure::predicted(
    [
        "hatrpc-11",
        "Latency with service hints by payload size, one client and one server thread",
        "hatrpc",
        "size_bytes",
    ],
    "The service is hinted perf_goal = latency, concurrency = 1, and polling = busy as in the paper's table; the other protocols are the same hints with the protocol named, so \
     all poll busily. Requests and results are of one size. The cost of Thrift's encoding is not in it: it is the same for all.",
    runs,
    points,
);

/// Largest small payload, in bytes (HatRPC 4.3).
const SMALL: u32 = 4096;

fn runs(effort: Effort) -> Vec<Run> {
    let (sizes, calls): (&[u32], u64) = match effort {
        Effort::Full => (&[4, 16, 64, 256, 512, 1024, 2048, 4096, 16_384, 65_536, 131_072, 524_288], 400),
        Effort::Quick => (&[64, 512, 131_072], 40),
    };
    let mut runs = Vec::new();
    for (name, protocol) in series() {
        for bytes in sizes {
            let hints = Hinted { goal: PerfGoal::Latency, clients: 1, bytes: Some([u64::from(*bytes); 2]) };
            let Some(plan) = hints.plan(protocol) else { continue };
            let mut load = load(1, plan, *bytes);
            load.workers = 1;
            load.extent = Extent::Calls(calls);
            load.limit = 10_000_000_000;
            runs.push(Run::of(name, *bytes, load));
        }
    }
    runs
}

fn points(outcomes: &Outcomes) -> Vec<Point> {
    let mean = |outcome: &Outcome| outcome.mean_us;
    let mut points = outcomes.as_they_are("us", mean);
    let (small, large) = (|x| x <= SMALL, |x| x > SMALL);
    let mut every = |what: &str, other: &str, places: fn(u32) -> bool, low, high, source| {
        let said = Some((Paper::Between(low, high), source));
        points.extend(each(outcomes, what, other, mean, places, said));
    };
    every("small", "Hybrid-EagerRNDV", small, 0.46, 0.63, "5.2: 37% to 54% less for small payloads");
    every("small", RFP, small, 0.75, 0.82, "5.2: 18% to 25% less for small payloads");
    every("small", DIRECT, small, 0.97, 1.03, "5.2: within 3% of Direct-WriteIMM");
    every("large", "Hybrid-EagerRNDV", large, 0.49, 0.80, "5.2: 20% to 51% less for large payloads");
    every("large", DIRECT, large, 0.97, 1.03, "5.2: a negligible gap to Direct-WriteIMM, read as 3%");
    let best = |what, other, places: fn(u32) -> bool, value, source| {
        UpTo { what, best: Best::Least, value: mean }.over(outcomes, other, places, value, source)
    };
    points.extend(best("small", "Direct-Write-Send", small, 0.79, "5.2: up to 21% less for small payloads"));
    points.extend(best("large", "Direct-Write-Send", large, 0.62, "5.2: up to 38% less for large payloads"));
    points.extend(best("large", RFP, large, 0.45, "5.2: up to 55% less for large payloads"));
    points
}
