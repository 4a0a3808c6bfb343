//! LITE figure 16: threads of high and of low priority at one node.

use super::drawing::lines;
use super::lite::PROFILE;
use super::{Drawing, Effort, Figure, Outcome, Outcomes, Paper, Point, Run};
use dunlin_fabric::Nanos;
use dunlin_scenario::priorities::{Bytes, Ended, PERIODS, Period, Priorities, Requests};
use dunlin_tier_node::Policy;

pub(super) const FIGURE: Figure = Figure::predicted(
    ["lite-16", "Rate of 20 threads of low and 20 of high priority by the period of the run", PROFILE, "period"],
    "All times and numbers of requests of the paper are divided by 50. 20 threads of low priority have 600 000 requests each (5 WRITE \
     4 KB, 5 WRITE 8 KB, 10 READ 4 KB: the caption lists 5 that READ 4 KB twice). After 2 s 20 threads of high priority have 200 000 each \
     (10 WRITE, 10 READ 4 KB); 8 of them, 4 of each kind, pause for 2 s and have 100 000 more. All are of one node and use the memory \
     of another, over 4 paths. Period 0 is the whole run until the last request of high priority; 1 low alone; 2 both; 3 the pause; 4 \
     both, with the 8 threads. HW-Sep: 3 paths of high priority, 1 of low. 'Half' is read as 0.4 to 0.6, 'close' as within a tenth, \
     'superior' as more than a tenth above no QoS. Beside the paper's load: all requests WRITEs of 4 KB; 2 threads of high priority; \
     a path for each thread.",
    runs,
    points,
)
.drawn(drawings);

const NONE: &str = "no QoS";
const SEPARATE: &str = "HW-Sep";
const PACED: &str = "SW-Pri";
const SHARES: &str = "shares";
const POLICIES: [(&str, Policy); 4] = [
    (NONE, Policy::Arrival),
    (SEPARATE, Policy::Reserved { low: 1 }),
    (PACED, Policy::Paced),
    (SHARES, Policy::Shares),
];
/// Periods with operations of high priority: the whole run, and both.
const WITH_HIGH: [u32; 3] = [0, 2, 4];

/// Rates of high and of low priority, in GB/s.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OfPriorities {
    /// Of the whole run, and of its periods.
    pub periods: Vec<[f64; 2]>,
    /// Of each stretch of time.
    pub timeline: Vec<[f64; 2]>,
    /// Length of a stretch, in milliseconds.
    pub stretch_ms: f64,
}

impl OfPriorities {
    pub(super) fn of(ended: &Ended, stretch: Nanos) -> OfPriorities {
        let rates =
            |bytes: Bytes, time: Nanos| [bytes.high, bytes.low].map(|of| of as f64 / time.max(1) as f64);
        let periods = [ended.whole].into_iter().chain(ended.periods);
        OfPriorities {
            periods: periods.map(|Period { bytes, time }| rates(bytes, time)).collect(),
            timeline: ended.timeline.iter().map(|bytes| rates(*bytes, stretch)).collect(),
            stretch_ms: stretch as f64 / 1e6,
        }
    }
}

/// Returns the factor by which times and requests are divided.
fn scale(effort: Effort) -> u64 {
    match effort {
        Effort::Full => 50,
        Effort::Quick => 500,
    }
}

/// Loads beside the paper's one, which show where policies differ.
const VARIANTS: [(&str, &[&str]); 3] =
    [(ONE_KIND, &[NONE, SHARES]), (FEW_HIGH, &[NONE, PACED, SHARES]), (MANY_PATHS, &[NONE, PACED, SHARES])];
/// All requests are WRITEs of 4 KB, so the bytes of a path do not depend on its user.
const ONE_KIND: &str = "4 KB WRITE";
/// Two threads of high priority, which cannot use all paths.
const FEW_HIGH: &str = "2 high";
/// A path for each thread, so none waits at the node, and the NIC is what they share.
const MANY_PATHS: &str = "K = 40";

fn of_variant(variant: &str, load: Priorities) -> Priorities {
    let mut load = load;
    match variant {
        ONE_KIND => {
            for requests in load.low.iter_mut().chain(&mut load.high) {
                *requests = Requests { reads: false, bytes: 4096 };
            }
        }
        FEW_HIGH => {
            load.high = vec![load.high[0], load.high[load.high.len() - 1]];
            load.again = 1;
        }
        _ => load.paths = (load.low.len() + load.high.len()) as u16,
    }
    load
}

fn runs(effort: Effort) -> Vec<Run> {
    let load = |policy| Priorities::of(PROFILE, policy, scale(effort));
    let mut runs: Vec<Run> =
        POLICIES.into_iter().map(|(series, policy)| Run::priorities(series, load(policy))).collect();
    for (variant, policies) in VARIANTS {
        for (series, policy) in POLICIES.into_iter().filter(|(series, _)| policies.contains(series)) {
            runs.push(Run::priorities(&format!("{series}, {variant}"), of_variant(variant, load(policy))));
        }
    }
    runs
}

fn points(outcomes: &Outcomes) -> Vec<Point> {
    let of = |series: &str| {
        outcomes.0.iter().find(|(run, _)| run.series == series).map(|(_, out)| &out.priorities)
    };
    let rate = |series: &str, period: u32, value: fn(&[f64; 2]) -> f64| {
        of(series).and_then(|out| out.periods.get(period as usize)).map(value)
    };
    let all: fn(&[f64; 2]) -> f64 = |[high, low]| high + low;
    let high: fn(&[f64; 2]) -> f64 = |[high, _]| *high;
    let mut points = Vec::new();
    for (series, _) in POLICIES {
        for x in 0..=PERIODS as u32 {
            let mut rates = vec![("all", all)];
            if WITH_HIGH.contains(&x) {
                rates.push(("high", high));
            }
            for (name, value) in rates {
                let Some(predicted) = rate(series, x, value) else { continue };
                let series = format!("{series}, {name}");
                points.push(Point { series, x, unit: "gbyte_s", predicted, said: None });
            }
        }
    }
    let mut ratio = |title: &str, x: u32, over: Option<f64>, under: Option<f64>, said| {
        if let (Some(over), Some(under)) = (over, under) {
            let series = title.to_owned();
            points.push(Point { series, x, unit: "ratio", predicted: over / under, said });
        }
    };
    let said = Some((Paper::Between(0.4, 0.6), "6.2: without QoS, half of the total bandwidth"));
    ratio("no QoS, high over all", 2, rate(NONE, 2, high), rate(NONE, 2, all), said);
    for x in 0..=PERIODS as u32 {
        let (none, separate, paced) = (rate(NONE, x, all), rate(SEPARATE, x, all), rate(PACED, x, all));
        let said = Some((Paper::AtLeast(0.9), "6.2: close to the no QoS results"));
        ratio("SW-Pri, all over no QoS", x, paced, none, said);
        let said = (x == 0 || x == 1 || x == 3)
            .then_some((Paper::AtMost(1.0), "6.2: HW-Sep has the worst aggregated performance"));
        let least = none.zip(paced).map(|(none, paced)| none.min(paced));
        ratio("HW-Sep, all over the least other", x, separate, least, said);
        ratio("shares, all over no QoS", x, rate(SHARES, x, all), none, None);
    }
    for x in [2, 4] {
        let paced = rate(PACED, x, high);
        let said = Some((Paper::AtLeast(1.1), "6.2: superior performance of high-priority jobs"));
        ratio("SW-Pri, high over no QoS", x, paced, rate(NONE, x, high), said);
        let said = Some((Paper::AtMost(1.0), "6.2: HW-Sep's QoS is worse than SW-Pri"));
        ratio("HW-Sep, high over SW-Pri", x, rate(SEPARATE, x, high), paced, said);
        ratio("shares, high over SW-Pri", x, rate(SHARES, x, high), paced, None);
    }
    for (variant, policies) in VARIANTS {
        let of = |policy: &str, value: fn(&[f64; 2]) -> f64| rate(&format!("{policy}, {variant}"), 2, value);
        for policy in policies.iter().filter(|policy| **policy != NONE) {
            ratio(&format!("{policy}, {variant}, all over no QoS"), 2, of(policy, all), of(NONE, all), None);
            ratio(
                &format!("{policy}, {variant}, high over no QoS"),
                2,
                of(policy, high),
                of(NONE, high),
                None,
            );
        }
    }
    points
}

fn drawings(outcomes: &Outcomes) -> Vec<Drawing> {
    let line = |value: fn(&[f64; 2]) -> f64| {
        move |(run, outcome): &(Run, Outcome)| {
            let OfPriorities { timeline, stretch_ms, .. } = &outcome.priorities;
            let at = |(at, rates): (usize, &[f64; 2])| ((at as f64 + 0.5) * stretch_ms, value(rates));
            (run.series.clone(), timeline.iter().enumerate().map(at).collect())
        }
    };
    let drawing = |title: &str, value: fn(&[f64; 2]) -> f64| {
        let paper =
            outcomes.0.iter().filter(|(run, _)| POLICIES.iter().any(|(policy, _)| run.series == *policy));
        lines(title, "GB/s", "time (ms)", paper.map(line(value)).collect())
    };
    vec![
        drawing("All threads", |[high, low]| high + low),
        drawing("Threads of high priority", |[high, _]| *high),
    ]
}
