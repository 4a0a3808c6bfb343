//! ScaleRPC where the paper has no figure: clients of one group, the latency of a few groups, and clients whose lanes take
//! no turns beside those of many groups.

use super::scalerpc::{BYTES, HOSTS, System, common_notes, mops};
use super::{Effort, Figure, Outcome, Outcomes, Paper, Point, Run};
use dunlin_fabric::Nanos;
use dunlin_rpc::Lease;
use dunlin_scenario::load::{Function, Grouping, Load};
use dunlin_scenario::random_values::Sizes;

pub(super) const FIGURE: Figure = Figure::predicted(
    ["scalerpc-light", "Groups beside dedicated lanes, and short slices", "scalerpc", "clients"],
    common_notes!(
        "Not in the paper. Batch 1. Up to 60 clients are one group, which never switches; dedicated: the same clients with lanes that last. Short: slices of 50 us. \
         Fitting: two groups fit into the 72 contexts of the NIC. Latency: ten clients with lanes that last, alone and beside 400 clients by turns."
    ),
    runs,
    points,
);

const GROUPED: &str = "grouped";
const DEDICATED: &str = "dedicated";
const SHORT: &str = "grouped, short";
const FITTING: &str = "fitting";
const FITTING_SHORT: &str = "fitting, short";
const FITTING_SHORTEST: &str = "fitting, 30 us";
const ALONE: &str = "latency, alone";
const BESIDE: &str = "latency, beside";
const BESIDE_FITTING: &str = "latency, beside fitting";
/// The short slices, in nanoseconds.
const SHORT_SLICE: Nanos = 50_000;
const SHORTEST_SLICE: Nanos = 30_000;
/// Clients of a group of which two fit into the 72 contexts of the NIC: 120 clients are four of them.
const FITTING_SIZE: u16 = 30;
/// The clients of three groups.
const THREE_GROUPS: u32 = 120;
/// Clients whose lanes last, and those by turns beside them: one of 41 threads calls the function for latency.
const QUICK: u32 = 10;
const MANY: u32 = 400;

fn runs(effort: Effort) -> Vec<Run> {
    let paper = Grouping::PAPER;
    let of = |series: &str, clients: u32, groups: Grouping| {
        let load = System::ScaleRpc.load((clients, HOSTS), 1, effort);
        Run::of(series, clients, Load { groups, ..load })
    };
    let fitting = |slice| Grouping { size: FITTING_SIZE, slice, ..paper };
    let lasting = |clients: u32| {
        let load = System::ScaleRpc.load((clients, HOSTS), 1, effort);
        let plan = System::ScaleRpc.plan();
        let plan = plan.shared(plan.sharing, Lease::Forever);
        let quick = Function::new(plan, Sizes::Fixed(BYTES), Sizes::Fixed(BYTES));
        Load { functions: vec![quick], ..load }
    };
    let one_group: &[u32] = match effort {
        Effort::Full => &[10, 20, 40, 60],
        Effort::Quick => &[20],
    };
    let pairs = one_group.iter().flat_map(|x| [of(GROUPED, *x, paper), Run::of(DEDICATED, *x, lasting(*x))]);
    let mut runs: Vec<_> = pairs.collect();
    for (series, groups) in [
        (GROUPED, paper),
        (SHORT, Grouping { slice: SHORT_SLICE, ..paper }),
        (FITTING, fitting(paper.slice)),
        (FITTING_SHORT, fitting(SHORT_SLICE)),
        (FITTING_SHORTEST, fitting(SHORTEST_SLICE)),
    ] {
        runs.push(of(series, THREE_GROUPS, groups));
    }
    let alone = lasting(QUICK);
    let quick = Function { weight: QUICK, ..alone.functions[0].clone() };
    let load = System::ScaleRpc.load((MANY + QUICK, HOSTS), 1, effort);
    let turns = Function { weight: MANY, ..load.functions[0].clone() };
    let beside = Load { functions: vec![quick, turns], function_of_thread: true, ..load };
    let beside_fitting = Load { groups: fitting(paper.slice), ..beside.clone() };
    runs.extend([
        Run::of(ALONE, MANY, alone),
        Run::of(BESIDE, MANY, beside),
        Run::of(BESIDE_FITTING, MANY, beside_fitting),
    ]);
    runs
}

fn p99(outcome: &Outcome) -> f64 {
    outcome.quantiles_us[2]
}

/// The p99 of the function for latency.
fn quick(outcome: &Outcome) -> f64 {
    outcome.functions[0].p99_us
}

/// The ratios of two series at `x`: its name, the value, and the aim.
type Ratio<'a> = (&'a str, fn(&Outcome) -> f64, (Paper, &'static str));

fn points(outcomes: &Outcomes) -> Vec<Point> {
    let mut points = outcomes.as_they_are("mops", mops);
    points.extend(outcomes.as_they_are("us p99", p99));
    let mut ratios = |x: u32, (over, under): (&str, &str), values: &[Ratio<'_>]| {
        for (name, value, said) in values {
            let of = |series| outcomes.get(series, x, *value);
            if let (Some(over_value), Some(under_value)) = (of(over), of(under)) {
                let (series, predicted) = (format!("{name}, {over} over {under}"), over_value / under_value);
                points.push(Point { series, x, unit: "ratio", predicted, said: Some(*said) });
            }
        }
    };
    let same = "an aim: within 3% with one group";
    for x in [10, 20, 40, 60] {
        ratios(
            x,
            (GROUPED, DEDICATED),
            &[
                ("rate", mops, (Paper::AtLeast(0.97), same)),
                ("p50", |outcome| outcome.quantiles_us[1], (Paper::AtMost(1.03), same)),
                ("p99", p99, (Paper::AtMost(1.03), same)),
            ],
        );
    }
    for series in [SHORT, FITTING, FITTING_SHORT, FITTING_SHORTEST] {
        ratios(
            THREE_GROUPS,
            (series, GROUPED),
            &[
                ("rate", mops, (Paper::AtLeast(0.95), "an aim: 95% of the calls")),
                ("p99", p99, (Paper::AtMost(0.5), "an aim: half of the p99")),
            ],
        );
    }
    let twice = (Paper::AtMost(2.0), "an aim: at most twice the p99 alone");
    for series in [BESIDE, BESIDE_FITTING] {
        ratios(MANY, (series, ALONE), &[("p99", quick, twice)]);
    }
    points
}
