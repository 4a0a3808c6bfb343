//! What HatRPC's hints come to on its cluster: the plans are those that the selection gives an application, and every
//! other protocol is the same hints with that protocol named.

use super::hatrpc::{CORES, DIRECT, RFP};
use super::{Outcome, Outcomes, Paper, Point};
use dunlin_hints::{Environment, FunctionHints, Hints, PerfGoal, select};
use dunlin_rpc::Plan;

/// The series of the hints alone.
pub(super) const HINTED: &str = "HatRPC";
/// The protocols that HatRPC figures 11 to 14 compare with.
pub(super) const OTHERS: [&str; 4] = ["Hybrid-EagerRNDV", "Direct-Write-Send", DIRECT, RFP];

/// Up to so many clients are under-subscription (HatRPC 5.2).
pub(super) const UNDER: u32 = 16;

/// A function's hints: the goal, clients, and bytes of requests and results.
#[derive(Clone, Copy)]
pub(super) struct Hinted {
    pub(super) goal: PerfGoal,
    pub(super) clients: u32,
    pub(super) bytes: Option<[u64; 2]>,
}

impl Hinted {
    /// The plan that is selected, of all protocols or with one of them named; `None` if there is no such protocol.
    pub(super) fn plan(self, protocol: Option<&'static str>) -> Option<Plan> {
        let side = |bytes: Option<u64>| Hints {
            payload_size: bytes,
            protocol,
            ..Hints::NONE.perf_goal(self.goal).concurrency(self.clients)
        };
        let [client, server] = self.bytes.map_or([None; 2], |bytes| bytes.map(Some));
        let hints = FunctionHints::new("function").client(side(client)).server(side(server));
        let environment = Environment {
            node_cores: UNDER,
            nodes: 2,
            ..Environment::new(&dunlin_fabric::Capabilities::EVERYTHING, CORES)
        };
        select(&hints, &environment).ok()?.plan
    }
}

/// All series: the hints, then them with each protocol named.
pub(super) fn series() -> impl Iterator<Item = (&'static str, Option<&'static str>)> {
    std::iter::once((HINTED, None)).chain(OTHERS.into_iter().map(|name| (name, Some(name))))
}

/// The hints over another series at the places that are asked for, with what the paper says of each.
pub(super) fn each(
    outcomes: &Outcomes,
    what: &str,
    other: &str,
    value: fn(&Outcome) -> f64,
    places: impl Fn(u32) -> bool,
    said: Option<(Paper, &'static str)>,
) -> Vec<Point> {
    let title = format!("{what}, {HINTED} over {other}");
    let mut points = outcomes.ratios(&title, HINTED, other, value);
    points.retain(|point| places(point.x));
    points.iter_mut().for_each(|point| point.said = said);
    points
}

/// Which end of a range "up to" is about: of latencies the least is the best, of throughputs the most.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Best {
    Least,
    Most,
}

/// A value of which a paper says how much better it gets "up to".
#[derive(Clone, Copy)]
pub(super) struct UpTo {
    /// What it is called.
    pub(super) what: &'static str,
    pub(super) best: Best,
    pub(super) value: fn(&Outcome) -> f64,
}

impl UpTo {
    /// The best that the hints reach over another series, of the places that are asked for.
    pub(super) fn over(
        &self,
        outcomes: &Outcomes,
        other: &str,
        places: impl Fn(u32) -> bool,
        said: f64,
        source: &'static str,
    ) -> Option<Point> {
        let UpTo { what, best, value } = *self;
        let ratios = each(outcomes, what, other, value, places, None);
        let found = ratios.into_iter().reduce(|one, next| {
            if (next.predicted < one.predicted) == (best == Best::Least) { next } else { one }
        })?;
        let word = if best == Best::Least { "least" } else { "most" };
        Some(Point {
            series: format!("{what}, the {word} of {HINTED} over {other}"),
            said: Some((Paper::Value(said), source)),
            ..found
        })
    }
}
