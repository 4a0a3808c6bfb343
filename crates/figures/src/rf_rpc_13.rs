//! RF-RPC figures 13 to 15: batches of calls, by their size.

use super::drawing::{Drawing, Shape, lines};
use super::rf_rpc::{THREADS, gets};
use super::rf_rpc_11::{KEYS, SKEW};
use super::{Effort, Figure, Outcome, Outcomes, Paper, Point, Run, measured, say};
use dunlin_fabric::Nanos;
use dunlin_rpc::{BatchRule, ResponseHalf};
use dunlin_scenario::load::{Extent, Load, Pace};

pub(super) const UNIFORM: Figure = Figure::predicted(
    [
        "rf-rpc-13",
        "Throughput (figure 13) and latency (figure 14) of batches of GETs, 16 server threads, 35 clients",
        "rf-rpc",
        "batch_size",
    ],
    NOTES,
    uniform_runs,
    uniform_points,
)
.drawn(uniform_drawings);
pub(super) const SKEWED: Figure = Figure::predicted(
    [
        "rf-rpc-15",
        "Throughput of batches of GETs whose keys are skewed (Zipf .99), 16 server threads, 35 clients",
        "rf-rpc",
        "batch_size",
    ],
    NOTES,
    skewed_runs,
    skewed_points,
)
.drawn(skewed_drawings);

const NOTES: &str = "A client has one batch under way, to one server thread: the paper's throughput times its latency is 33 \
    batches of 4, and 24 of 24. A batch of 1 is a plain call. A call's latency is from when it is put into the batch to when its result is at hand. A fetch \
    takes 256 bytes, and what is longer a second fetch. RF-RPC-auto-batch finds the size of its batches by itself, by \
    equation 3, so that 95% of the calls are within a limit, which is its place on the axis, in us; it is measured after 20 ms, in which it has found them. With skewed keys a batch goes to the owner of a key that \
    is drawn for it.";

pub(super) const FETCH: &str = "RF-RPC-batch";
pub(super) const REPLY: &str = "server-reply-batch";
pub(super) const BOTH: [(&str, ResponseHalf); 2] =
    [(FETCH, ResponseHalf::FetchOrWrite), (REPLY, ResponseHalf::Write)];
/// The series whose batch size follows from a latency limit, by that limit in us.
pub(super) const AUTO: &str = "RF-RPC-auto-batch, by limit";
/// Largest share of calls later than the limit (5.6).
const TOLERANCE: f64 = 0.05;
/// Limits, in us.
const LIMITS_US: [u32; 5] = [8, 12, 16, 24, 48];
/// Suffix of the series with latencies instead of throughput.
pub(super) const LATENCY: &str = "latency";
/// The mean latency in us at which the paper compares both systems (5.6).
const COMPARED_US: f64 = 12.63;

/// Returns the load in batches of a fixed size.
pub(super) fn in_batches(mut load: Load, size: u32, effort: Effort) -> Load {
    if size > 1 {
        load.pace = Pace::Batches { size: size as u16 };
    }
    load.extent = measured(effort, 1_000_000);
    load
}

/// Returns the load in batches of a tuned size, measured after the size has been found.
pub(super) fn within(mut load: Load, limit_us: u32, effort: Effort) -> Load {
    let (limit, rule) = (Nanos::from(limit_us) * 1_000, BatchRule::default());
    load.pace = Pace::TunedBatches { limit, tolerance: TOLERANCE, rule };
    load.extent = match effort {
        Effort::Full => Extent::Time { warm_up: 20_000_000, measured: 5_000_000 },
        Effort::Quick => Extent::Time { warm_up: 3_000_000, measured: 200_000 },
    };
    load
}

pub(super) fn limits(effort: Effort) -> &'static [u32] {
    match effort {
        Effort::Full => &LIMITS_US,
        Effort::Quick => &LIMITS_US[1..2],
    }
}

/// Adds the paper's claims on tuned batches: they keep their limit, and do not exceed the throughput of fixed
/// batches with the same mean latency.
fn tuned_points(outcomes: &Outcomes, points: &mut Vec<Point>, auto: &str, by_hand: &str) {
    for limit in outcomes.xs() {
        let Some(p95) = outcomes.get(auto, limit, |outcome| outcome.p95_us) else { continue };
        let said = Some((Paper::AtMost(1.0), "5.6: at most 5% of the calls are later than the limit"));
        let (series, predicted) =
            (format!("{auto}, 95% of the calls over the limit"), p95 / f64::from(limit));
        points.push(Point { series, x: limit, unit: "ratio", predicted, said });
        let Some(rate) = outcomes.get(auto, limit, mops) else { continue };
        if let Some(most) = at_latency(outcomes, by_hand, f64::from(limit), mean) {
            let said = Some((Paper::AtMost(1.0), "5.6: lower than RF-RPC-batch of that average latency"));
            let (series, predicted) = (format!("{auto}, over {by_hand} of that latency"), rate / most);
            points.push(Point { series, x: limit, unit: "ratio", predicted, said });
        }
        if let Some(most) = at_latency(outcomes, by_hand, f64::from(limit), |outcome| outcome.p95_us) {
            let said = Some((Paper::AtLeast(0.95), "5.6: approximates the best possible throughput"));
            let (series, predicted) = (format!("{auto}, over {by_hand} with 95% within that"), rate / most);
            points.push(Point { series, x: limit, unit: "ratio", predicted, said });
        }
    }
}

fn uniform_runs(effort: Effort) -> Vec<Run> {
    let sizes: &[u32] = match effort {
        Effort::Full => &[1, 2, 4, 8, 16, 24, 32, 48, 64, 96],
        Effort::Quick => &[1, 4, 24],
    };
    let run =
        |(name, half), size| Run::of(name, size, in_batches(gets(half, THREADS, 0, effort), size, effort));
    let tuned = |limit: &u32| {
        let load = gets(ResponseHalf::FetchOrWrite, THREADS, 0, effort);
        Run::of(AUTO, *limit, within(load, *limit, effort))
    };
    let runs = sizes.iter().flat_map(|size| BOTH.map(|system| run(system, *size)));
    runs.chain(limits(effort).iter().map(tuned)).collect()
}

/// Returns the throughput of every run, and its latency as a separate series.
pub(super) fn both_values(outcomes: &Outcomes) -> Vec<Point> {
    let mut points = outcomes.as_they_are("mops", mops);
    let mut latencies = outcomes.as_they_are("us", mean);
    latencies.iter_mut().for_each(|point| point.series = format!("{}, {LATENCY}", point.series));
    points.extend(latencies);
    points
}

pub(super) fn mops(outcome: &Outcome) -> f64 {
    outcome.mops
}

pub(super) fn mean(outcome: &Outcome) -> f64 {
    outcome.mean_us
}

/// Returns the throughput of a system at a latency (the mean or another), interpolated between its points.
/// Uses the smallest batch if that is slower already, and the largest if even that is faster.
fn at_latency(outcomes: &Outcomes, series: &str, latency: f64, of_calls: fn(&Outcome) -> f64) -> Option<f64> {
    let of = |x| Some((outcomes.get(series, x, of_calls)?, outcomes.get(series, x, mops)?));
    let mut before: Option<(f64, f64)> = None;
    for (us, rate) in outcomes.xs().into_iter().filter_map(of) {
        if us >= latency {
            return Some(match before {
                Some((low, slow)) => slow + (rate - slow) * (latency - low) / (us - low),
                None => rate,
            });
        }
        before = Some((us, rate));
    }
    before.map(|(_, rate)| rate)
}

fn uniform_points(outcomes: &Outcomes) -> Vec<Point> {
    let mut points = both_values(outcomes);
    let mut ratio = |series: &str, x, predicted, paper, source| {
        let said = Some((paper, source));
        points.push(Point { series: series.to_owned(), x, unit: "ratio", predicted, said });
    };
    let plain = outcomes.get(FETCH, 1, mops);
    if let (Some(plain), Some(four)) = (plain, outcomes.get(FETCH, 4, mops)) {
        ratio("RF-RPC-batch over RF-RPC", 4, four / plain, Paper::Value(3.9), "5.6: 3.9 times with 4");
    }
    if let (Some(plain), Some((at, peak))) = (plain, outcomes.peak(FETCH, mops)) {
        let source = "5.6: 11.3 times at the peak";
        ratio("peak of RF-RPC-batch over RF-RPC", at, peak / plain, Paper::Value(11.3), source);
    }
    if let (Some(plain), Some(four)) = (outcomes.get(FETCH, 1, mean), outcomes.get(FETCH, 4, mean)) {
        let source = "5.6: 8% more latency with 4";
        ratio("latency of RF-RPC-batch over RF-RPC", 4, four / plain, Paper::Value(1.08), source);
    }
    for x in outcomes.xs().into_iter().filter(|x| *x > 1) {
        if let (Some(fetch), Some(reply)) = (outcomes.get(FETCH, x, mean), outcomes.get(REPLY, x, mean)) {
            let title = "latency of server-reply-batch over RF-RPC-batch";
            ratio(title, x, reply / fetch, Paper::Between(1.18, 2.0), "5.6: about 18% to 100% higher");
        }
    }
    if let Some((at, _)) = outcomes.peak(FETCH, mops) {
        say(&mut points, FETCH, at, Paper::Value(62.7), "5.6: 62.7 MOPS at the peak");
    }
    let latency = format!("{FETCH}, {LATENCY}");
    say(&mut points, &latency, 4, Paper::Value(6.17), "5.6: 6.17 us with 4");
    say(&mut points, &latency, 24, Paper::Value(12.63), "5.6: 12.63 us with 24");
    if outcomes.peak(FETCH, mops).is_none_or(|(at, _)| at != 24) {
        say(&mut points, FETCH, 24, Paper::Value(45.8), "5.6: 45.80 MOPS with 24");
    }
    if let Some(predicted) = at_latency(outcomes, REPLY, COMPARED_US, mean) {
        let said = Some((Paper::Value(21.67), "5.6: 21.67 MOPS if 12.63 us are required"));
        let series = "server-reply-batch at 12.63 us".to_owned();
        points.push(Point { series, x: 24, unit: "mops", predicted, said });
    }
    tuned_points(outcomes, &mut points, AUTO, FETCH);
    points
}

/// Draws throughput by latency as the paper does: by mean latency for fixed batch sizes, by the limit for
/// tuned ones.
pub(super) fn by_latency(outcomes: &Outcomes, title: &str) -> Drawing {
    let mut series = Vec::new();
    for (name, _) in BOTH {
        series.push((name.to_owned(), outcomes.line(name, |_, outcome| outcome.mean_us, mops)));
    }
    series.push((AUTO.to_owned(), outcomes.line(AUTO, |run, _| f64::from(run.x), mops)));
    let mut drawing = lines(title, "million operations a second", "latency, microseconds", series);
    if let (Some(us), Some(rate)) = (outcomes.get(FETCH, 1, mean), outcomes.get(FETCH, 1, mops))
        && let Shape::Lines { series, .. } = &mut drawing.shape
    {
        series.push(("RF-RPC".to_owned(), vec![(us, rate)]));
    }
    drawing
}

fn uniform_drawings(outcomes: &Outcomes) -> Vec<Drawing> {
    let size = |run: &Run, _: &Outcome| f64::from(run.x);
    let latencies = BOTH.map(|(name, _)| (name.to_owned(), outcomes.line(name, size, mean))).to_vec();
    vec![
        by_latency(outcomes, "Throughput of batches of GETs by their latency"),
        lines("Latency of batches of GETs by their size", "microseconds", "calls of a batch", latencies),
    ]
}

fn skewed_drawings(outcomes: &Outcomes) -> Vec<Drawing> {
    vec![by_latency(outcomes, "Throughput of batches of GETs by their latency, keys skewed (Zipf .99)")]
}

const SPREAD: &str = "uniform keys";

fn skewed_runs(effort: Effort) -> Vec<Run> {
    let sizes: &[u32] = match effort {
        Effort::Full => &[1, 4, 8, 16, 24, 48, 64, 96],
        Effort::Quick => &[4],
    };
    let mut runs = Vec::new();
    for size in sizes {
        for (name, half) in BOTH {
            let load = in_batches(gets(half, THREADS, 0, effort), *size, effort);
            runs.push(Run::of(format!("{name}, {SPREAD}"), *size, load.clone()));
            runs.push(Run::of(name, *size, Load { key_skew: Some((KEYS, SKEW)), ..load }));
        }
    }
    for limit in limits(effort) {
        let load = gets(ResponseHalf::FetchOrWrite, THREADS, 0, effort);
        let load = Load { key_skew: Some((KEYS, SKEW)), ..load };
        runs.push(Run::of(AUTO, *limit, within(load, *limit, effort)));
    }
    runs
}

fn skewed_points(outcomes: &Outcomes) -> Vec<Point> {
    let mut points = outcomes.as_they_are("mops", mops);
    for (name, _) in BOTH {
        let title = format!("{name}, skewed over uniform keys");
        points.extend(outcomes.ratios(&title, name, &format!("{name}, {SPREAD}"), mops));
        for x in outcomes.xs() {
            // "Not much" is interpreted as within a tenth.
            let source = "5.6: skew does not change the results much";
            say(&mut points, &title, x, Paper::Between(0.9, 1.1), source);
        }
    }
    tuned_points(outcomes, &mut points, AUTO, FETCH);
    points
}
