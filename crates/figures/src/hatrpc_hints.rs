//! HatRPC's hints on its cluster: the plans are those that the selection gives an application that asks for
//! busy waiting where HatRPC's table has it. The other protocols use the same hints with the protocol named.

use super::hatrpc::{CORES, DIRECT, RFP};
use super::{Outcome, Outcomes, Paper, Point};
use dunlin_hints::{CompletionMode, Environment, FunctionHints, Hints, PerfGoal, SMALL, Sharing, select};
use dunlin_rpc::Plan;

/// The series of the hints alone.
pub(super) const HINTED: &str = "HatRPC";
/// The protocols compared in HatRPC figures 11 to 14.
pub(super) const OTHERS: [&str; 4] = ["Hybrid-EagerRNDV", "Direct-Write-Send", DIRECT, RFP];

/// Most clients under under-subscription (HatRPC 5.2).
pub(super) const UNDER: u32 = 16;

/// A function's hints: goal, number of clients, and bytes of requests and results.
#[derive(Clone, Copy)]
pub(super) struct Hinted {
    pub(super) goal: PerfGoal,
    pub(super) clients: u32,
    pub(super) bytes: Option<[u64; 2]>,
}

impl Hinted {
    /// Returns the selected plan, among all protocols or with one named; `None` if the protocol does not
    /// exist.
    pub(super) fn plan(self, protocol: Option<&'static str>) -> Option<Plan> {
        let polling = self.is_busy_in_the_paper().then_some(CompletionMode::Busy);
        let side = |bytes: Option<u64>| Hints {
            payload_size: bytes,
            polling,
            protocol,
            // HatRPC has a connection for each client.
            ..Hints::NONE.perf_goal(self.goal).concurrency(self.clients).sharing(Sharing::Dedicated)
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

    /// Returns whether HatRPC's table lets both sides poll busily. Dunlin's selection does so only if it is
    /// asked, so that the figures ask for it.
    fn is_busy_in_the_paper(self) -> bool {
        let large = self.bytes.is_some_and(|bytes| bytes.into_iter().any(|bytes| bytes > SMALL));
        match self.goal {
            PerfGoal::Latency => self.clients <= CORES,
            PerfGoal::Throughput => large && self.clients <= UNDER,
            PerfGoal::ResUtil => false,
        }
    }
}

/// Returns all series: the hints alone, then with each protocol named.
pub(super) fn series() -> impl Iterator<Item = (&'static str, Option<&'static str>)> {
    std::iter::once((HINTED, None)).chain(OTHERS.into_iter().map(|name| (name, Some(name))))
}

/// Returns the ratio of the hints to another series at the selected places, with the paper's claim for each.
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

/// The end of a range that "up to" refers to: the least latency, the most throughput.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Best {
    Least,
    Most,
}

/// A value with an "up to" claim in the paper.
#[derive(Clone, Copy)]
pub(super) struct UpTo {
    /// Name of the value.
    pub(super) what: &'static str,
    pub(super) best: Best,
    pub(super) value: fn(&Outcome) -> f64,
}

impl UpTo {
    /// Returns the best ratio of the hints to another series over the selected places.
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
