//! Runs contestants alternately, slice by slice in one process pair, and evaluates the results: one row
//! each, with the ratio to the best single protocol of the same rounds.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use indicatif::ProgressBar;

use crate::measure::{MeasureError, Session};
use dunlin_floor::{Placement, Slice, select};
use dunlin_report::statistics::{Latency, median, quantile, ratio};
use dunlin_report::{Row, rounded};

/// The operations of one kind in a slice.
#[derive(Clone, Debug, Default)]
pub(in crate::measure) struct Kind {
    pub(in crate::measure) latency: Latency,
    pub(in crate::measure) operations: u64,
}

/// The result of a slice.
#[derive(Clone, Debug, Default)]
pub(in crate::measure) struct Sample {
    /// The results by kind of operation.
    pub(in crate::measure) kinds: Vec<Kind>,
    pub(in crate::measure) elapsed_ns: f64,
    pub(in crate::measure) peer_cpu_ns: u64,
    /// All operations, warm-up included: the divisor of `peer_cpu_ns`.
    pub(in crate::measure) total_operations: u64,
    pub(in crate::measure) preemptions: u64,
}

impl From<Slice> for Sample {
    fn from(slice: Slice) -> Self {
        Sample {
            kinds: vec![Kind { latency: slice.latency, operations: slice.operations }],
            elapsed_ns: slice.elapsed_ns,
            peer_cpu_ns: slice.peer_cpu_ns,
            total_operations: slice.total_operations,
            preemptions: slice.preemptions,
        }
    }
}

/// Runs one slice.
type Take<'a> = Box<dyn FnMut(&mut Session) -> Result<Sample, MeasureError> + 'a>;

/// A contestant and its slices.
pub(in crate::measure) struct Entrant<'a> {
    pub(in crate::measure) name: String,
    pub(in crate::measure) single: bool,
    pub(in crate::measure) plan: String,
    pub(in crate::measure) take: Take<'a>,
    /// The latency limit, if this contestant has one.
    limit: Option<LatencyLimit>,
    /// Initial position; [`take_turns`] reorders the entrants.
    position: usize,
    taken: Vec<Taken>,
}

impl<'a> Entrant<'a> {
    pub(in crate::measure) fn new(name: String, single: bool, plan: String, take: Take<'a>) -> Self {
        Self { name, single, plan, take, limit: None, position: 0, taken: Vec::new() }
    }

    pub(in crate::measure) fn within(self, limit: Option<LatencyLimit>) -> Self {
        Self { limit, ..self }
    }
}

/// A limit on the latency of operations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::measure) struct LatencyLimit {
    pub(in crate::measure) nanoseconds: u64,
    /// The fraction of operations that may exceed the limit.
    pub(in crate::measure) tolerance: f64,
}

impl LatencyLimit {
    /// Returns whether the first kind's operations kept the limit over all given slices.
    fn is_kept(self, taken: &[&Taken]) -> bool {
        self.latest_ns(taken) <= self.nanoseconds as f64
    }

    /// Returns the latency in nanoseconds that only the tolerated fraction of the first kind's operations
    /// exceeded.
    fn latest_ns(self, taken: &[&Taken]) -> f64 {
        merged(taken.iter().map(|taken| &taken.sample), 0).quantile_ns(1.0 - self.tolerance)
    }
}

struct Taken {
    round: usize,
    placement: Placement,
    sample: Sample,
}

/// The length of a contest.
#[derive(Clone, Copy, Debug)]
pub(in crate::measure) struct Length {
    pub(in crate::measure) rounds: usize,
    /// No round starts after this time. On a busy machine a slice takes many times longer.
    pub(in crate::measure) longest: Duration,
}

/// Runs the rounds. In each round every entrant has one slice between two placement probes, in a different
/// order each round. Ends early when `stop` is set.
pub(in crate::measure) fn take_turns(
    session: &mut Session,
    entrants: &mut [Entrant<'_>],
    length: Length,
    stop: &AtomicBool,
    progress: &ProgressBar,
) -> Result<(), MeasureError> {
    entrants.iter_mut().enumerate().for_each(|(position, entrant)| entrant.position = position);
    let start = Instant::now();
    let mut before = session.pair.placement_probe()?;
    for round in 0..length.rounds {
        if round > 0 && start.elapsed() > length.longest {
            break;
        }
        if round > 0 && !entrants.is_empty() {
            // Also reverse the order: an entrant that follows a similar one finds warm caches and trained
            // branch predictors.
            entrants.rotate_left(1);
            entrants.reverse();
        }
        for entrant in &mut *entrants {
            if stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            progress.set_message(entrant.name.clone());
            let sample = (entrant.take)(session)?;
            let after = session.pair.placement_probe()?;
            let placement = if before == after { after } else { Placement::Unclear };
            entrant.taken.push(Taken { round, placement, sample });
            before = after;
            progress.inc(1);
        }
    }
    Ok(())
}

/// The compared metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::measure) enum Metric {
    /// The mean latency of the middle half of a kind's operations; lower is better.
    Latency(usize),
    /// Operations per second, of one kind or of all; higher is better.
    Throughput(Option<usize>),
}

impl Metric {
    fn of(self, sample: &Sample) -> f64 {
        match self {
            Self::Latency(kind) => sample.kinds.get(kind).map_or(0.0, |kind| kind.latency.middle_mean_ns()),
            Self::Throughput(kind) => {
                let of = |(index, one): (usize, &Kind)| match kind {
                    Some(wanted) if wanted != index => 0,
                    _ => one.operations,
                };
                let operations: u64 = sample.kinds.iter().enumerate().map(of).sum();
                ratio(operations as f64 * 1e9, sample.elapsed_ns).unwrap_or(0.0)
            }
        }
    }

    /// Converts a ratio so that values over 1 are worse.
    fn behind(self, ratio: f64) -> f64 {
        match self {
            Self::Latency(_) => ratio,
            Self::Throughput(_) => 1.0 / ratio,
        }
    }
}

/// The comparison by one metric: its field names in a row, and the rivals.
#[derive(Clone, Copy, Debug)]
pub(in crate::measure) struct Compared {
    pub(in crate::measure) metric: Metric,
    /// Prefix of the fields `ratio`, `ratio_p25`, `ratio_p75` and `best`: empty, or `latency_`.
    pub(in crate::measure) prefix: &'static str,
    pub(in crate::measure) rivals: Rivals,
}

/// The rivals among which the best is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::measure) enum Rivals {
    /// All single protocols.
    All,
    /// The single protocol of this name.
    Named(&'static str),
    /// The single protocols that keep the entrant's latency limit. An entrant without a limit is not
    /// compared.
    KeepLimit,
}

impl Rivals {
    fn has(self, entrant: &Entrant<'_>, rival: &Entrant<'_>, theirs: &[&Taken]) -> bool {
        rival.single
            && match self {
                Rivals::All => true,
                Rivals::Named(name) => rival.name == name,
                Rivals::KeepLimit => entrant.limit.is_some_and(|limit| limit.is_kept(theirs)),
            }
    }
}

/// Counts the points at which entrants other than single protocols are as good as the best rival.
#[derive(Clone, Debug)]
pub(in crate::measure) struct Verdict {
    /// Tolerance in percent.
    percent: u32,
    rival: &'static str,
    points: usize,
    within: usize,
    worst: Option<(f64, String)>,
}

impl Default for Verdict {
    fn default() -> Self {
        Verdict::new(3, "the best single protocol")
    }
}

impl Verdict {
    pub(in crate::measure) fn new(percent: u32, rival: &'static str) -> Self {
        Verdict { percent, rival, points: 0, within: 0, worst: None }
    }

    fn add(&mut self, behind: f64, point: &str) {
        self.points += 1;
        self.within += usize::from(behind <= 1.0 + f64::from(self.percent) / 100.0);
        if self.worst.as_ref().is_none_or(|(worst, _)| behind > *worst) {
            self.worst = Some((behind, point.to_owned()));
        }
    }

    /// Formats the verdict for a note; `None` if nothing was compared.
    pub(in crate::measure) fn words(&self, what: &str) -> Option<String> {
        let (worst, point) = self.worst.as_ref()?;
        let side = if *worst > 1.0 { "behind" } else { "ahead" };
        Some(format!(
            "{what}: within {}% of {} at {} of {} points; the worst is {:.1}% {side} at {point}",
            self.percent,
            self.rival,
            self.within,
            self.points,
            (worst - 1.0).abs() * 100.0
        ))
    }
}

/// Sets the row's fields for a selected set of slices, apart from the ratios.
pub(in crate::measure) type Describe<'d> = dyn Fn(&mut Row, &[&Sample]) + 'd;

/// Returns a row for each entrant and observed placement. It has `head`, the entrant's name and plan, the
/// fields that `describe` sets, `placement`, `slices` and `preempted`. For each metric it has the best
/// single protocol, and the ratio to the protocol that was best in the other half of the rounds: the median
/// over rounds, with quartiles. For an entrant with a latency limit it also has `limit_ns`, `latest_ns`
/// (only the tolerated fraction was slower) and their ratio `of_limit`. The results of entrants other than
/// single protocols are added to `verdicts`, one per metric.
pub(in crate::measure) fn rows(
    entrants: &mut [Entrant<'_>],
    head: &Row,
    metrics: &[Compared],
    describe: &Describe<'_>,
    verdicts: &mut [Verdict],
) -> Vec<Row> {
    // Restore the initial order, which `take_turns` has changed.
    entrants.sort_by_key(|entrant| (entrant.single, entrant.position));
    let mut chosen: Vec<(usize, Placement, bool, Vec<&Taken>)> = Vec::new();
    for (index, entrant) in entrants.iter().enumerate() {
        let found = entrant.taken.iter().map(|taken| (taken.placement, taken.sample.preemptions, taken));
        for selection in select(found) {
            chosen.push((index, selection.placement, selection.preempted, selection.chosen));
        }
    }
    let mut rows = Vec::new();
    for (index, placement, preempted, taken) in &chosen {
        let entrant = &entrants[*index];
        let mut row = head.clone();
        row.set("protocol", entrant.name.as_str()).set("plan", entrant.plan.as_str());
        let samples: Vec<&Sample> = taken.iter().map(|taken| &taken.sample).collect();
        describe(&mut row, &samples);
        if let Some(limit) = entrant.limit {
            let latest = limit.latest_ns(taken);
            row.set("limit_ns", limit.nanoseconds)
                .set("latest_ns", rounded(latest))
                .set("of_limit", rounded(latest / limit.nanoseconds as f64));
        }
        for (compared, verdict) in metrics.iter().zip(&mut *verdicts) {
            let rivals: Vec<(usize, &[&Taken])> = chosen
                .iter()
                .filter(|(rival, at, _, theirs)| {
                    at == placement && compared.rivals.has(entrant, &entrants[*rival], theirs)
                })
                .map(|(rival, _, _, taken)| (*rival, &taken[..]))
                .collect();
            let metric = compared.metric;
            let Some((rival, theirs)) = best(metric, &rivals, |_| true) else { continue };
            let ratios = ratios(metric, taken, &rivals);
            let found = median(ratios.iter().copied())
                .or_else(|| ratio(merit(metric, taken, |_| true)?, merit(metric, theirs, |_| true)?));
            let prefix = compared.prefix;
            row.set(&format!("{prefix}best"), entrants[rival].name.as_str())
                .set(&format!("{prefix}ratio"), found.map(rounded))
                .set(&format!("{prefix}ratio_p25"), quantile(&ratios, 0.25).map(rounded))
                .set(&format!("{prefix}ratio_p75"), quantile(&ratios, 0.75).map(rounded));
            if let (false, Some(found)) = (entrant.single, found) {
                let point = format!("{}, {placement} (best: {})", label(head), entrants[rival].name);
                verdict.add(compared.metric.behind(found), &point);
            }
        }
        row.set("placement", placement.as_str()).set("slices", taken.len()).set("preempted", *preempted);
        rows.push(row);
    }
    rows
}

/// Returns the median of a metric over the slices of the `wanted` rounds.
fn merit(metric: Metric, taken: &[&Taken], wanted: impl Fn(usize) -> bool) -> Option<f64> {
    let slices = taken.iter().filter(|taken| wanted(taken.round));
    median(slices.map(|taken| metric.of(&taken.sample))).filter(|value| *value > 0.0)
}

/// Returns the best rival of the `wanted` rounds.
fn best<'t>(
    metric: Metric,
    rivals: &[(usize, &'t [&'t Taken])],
    wanted: impl Fn(usize) -> bool + Copy,
) -> Option<(usize, &'t [&'t Taken])> {
    rivals
        .iter()
        .filter_map(|(rival, taken)| Some((metric.behind(merit(metric, taken, wanted)?), (*rival, *taken))))
        .min_by(|one, other| one.0.total_cmp(&other.0))
        .map(|(_, best)| best)
}

/// Returns, for each round, the value divided by that of the best rival. The rival is chosen by the other
/// half of the rounds (even or odd). Of a dozen equal rivals one always leads by chance in the rounds that
/// select it, but not in the others.
fn ratios(metric: Metric, one: &[&Taken], rivals: &[(usize, &[&Taken])]) -> Vec<f64> {
    let mut found = Vec::new();
    for half in 0..2 {
        let chosen = best(metric, rivals, |round| round % 2 != half);
        let Some((_, other)) = chosen.or_else(|| best(metric, rivals, |_| true)) else { continue };
        let of_round = |round: usize| other.iter().find(|taken| taken.round == round);
        found.extend(
            one.iter()
                .filter(|taken| taken.round % 2 == half)
                .filter_map(|taken| {
                    ratio(metric.of(&taken.sample), metric.of(&of_round(taken.round)?.sample))
                })
                .filter(|ratio| *ratio > 0.0),
        );
    }
    found.sort_by(f64::total_cmp);
    found
}

fn label(head: &Row) -> String {
    let fields = head.fields().map(|(name, value)| format!("{} {}", name.replace('_', " "), value));
    fields.collect::<Vec<_>>().join(", ").replace('"', "")
}

/// Merges a kind's latencies of several slices.
fn merged<'s>(samples: impl Iterator<Item = &'s Sample>, kind: usize) -> Latency {
    let mut all = Latency::new();
    samples.filter_map(|sample| sample.kinds.get(kind)).for_each(|one| all.merge(&one.latency));
    all
}

/// Sets the percentiles of a kind's latency over all slices. The median is the median of the slices'
/// medians.
pub(in crate::measure) fn set_latency(row: &mut Row, samples: &[&Sample], kind: usize) {
    row.set_latency(&merged(samples.iter().copied(), kind));
    let medians = samples.iter().filter_map(|sample| Some(sample.kinds.get(kind)?.latency.p50_ns()));
    if let Some(p50) = median(medians) {
        row.set("p50_ns", rounded(p50));
    }
}

/// Sets operations per second (of a kind, or of all): the median over slices.
pub(in crate::measure) fn set_throughput(
    row: &mut Row,
    name: &str,
    samples: &[&Sample],
    kind: Option<usize>,
) {
    let rate = median(samples.iter().map(|sample| Metric::Throughput(kind).of(sample)));
    row.set(name, rate.map(f64::round));
}

/// Sets the server process's CPU time per operation, in nanoseconds.
pub(in crate::measure) fn set_server_cpu(row: &mut Row, samples: &[&Sample]) {
    let cost: u64 = samples.iter().map(|sample| sample.peer_cpu_ns).sum();
    let operations: u64 = samples.iter().map(|sample| sample.total_operations).sum();
    row.set("server_cpu_ns_per_op", ratio(cost as f64, operations as f64).map(rounded));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(round: usize, p50: u64, operations: u64) -> Taken {
        let mut latency = Latency::new();
        latency.record(p50);
        let sample = Sample {
            kinds: vec![Kind { latency, operations }],
            elapsed_ns: 1e9,
            total_operations: operations,
            peer_cpu_ns: 10,
            preemptions: 0,
        };
        Taken { round, placement: Placement::Far, sample }
    }

    fn entrant(name: &str, single: bool, p50s: &[u64]) -> Entrant<'static> {
        let take = Box::new(|_: &mut Session| Ok(Sample::default()));
        let mut entrant = Entrant::new(name.to_owned(), single, "plan".to_owned(), take);
        entrant.taken =
            p50s.iter().enumerate().map(|(round, p50)| taken(round, *p50, 1_000_000 / p50)).collect();
        entrant
    }

    #[test]
    fn a_verdict_says_ahead_or_behind() {
        let mut verdict = Verdict::default();
        assert_eq!(verdict.words("p50"), None);
        verdict.add(0.625, "4 B");
        let said =
            "p50: within 3% of the best single protocol at 1 of 1 points; the worst is 37.5% ahead at 4 B";
        assert_eq!(verdict.words("p50").as_deref(), Some(said));
        verdict.add(1.12, "8 B");
        let said =
            "p50: within 3% of the best single protocol at 1 of 2 points; the worst is 12.0% behind at 8 B";
        assert_eq!(verdict.words("p50").as_deref(), Some(said));
    }

    #[test]
    fn ratios_are_to_the_best_single_protocol_of_the_same_rounds() {
        let mut entrants = [
            entrant("slow", true, &[300, 300, 300]),
            entrant("best", true, &[100, 200, 100]),
            entrant("hinted", false, &[110, 220, 110]),
        ];
        let metrics = [
            Compared { metric: Metric::Latency(0), prefix: "latency_", rivals: Rivals::All },
            Compared { metric: Metric::Throughput(None), prefix: "", rivals: Rivals::All },
        ];
        let mut verdicts = [Verdict::default(), Verdict::default()];
        let head = Row::new().with("size_bytes", 4);
        let describe = |row: &mut Row, samples: &[&Sample]| {
            set_latency(row, samples, 0);
            set_throughput(row, "throughput_ops", samples, None);
            set_server_cpu(row, samples);
        };
        let rows = rows(&mut entrants, &head, &metrics, &describe, &mut verdicts);
        assert_eq!(rows.len(), 3);
        assert_eq!(rows[0].get("protocol"), Some(&"hinted".into()));
        assert_eq!(rows[0].get("latency_best"), Some(&"best".into()));
        assert_eq!(rows[0].number("latency_ratio"), Some(1.1));
        assert_eq!(rows[0].number("p50_ns"), Some(110.0));
        let rate = rows[0].number("ratio").expect("a ratio");
        assert!((rate - 1.0 / 1.1).abs() < 1e-3, "{rate}");
        let best = rows.iter().find(|row| row.get("protocol") == Some(&"best".into())).expect("there");
        assert_eq!((best.number("ratio"), best.number("ratio_p25")), (Some(1.0), Some(1.0)));
        let words = verdicts[0].words("latency").expect("compared");
        assert!(words.contains("at 0 of 1 points") && words.contains("10.0% behind"), "{words}");
        assert!(words.contains("size bytes 4, far (best: best)"), "{words}");
    }

    #[test]
    fn who_has_a_limit_is_compared_with_those_that_keep_it() {
        let limited = |nanoseconds| {
            let limit = LatencyLimit { nanoseconds, tolerance: 0.4 };
            entrant("found", false, &[100, 100, 100]).within(Some(limit))
        };
        let fixed = || [entrant("quick", true, &[90, 90, 200]), entrant("slow", true, &[400, 60, 400])];
        let compared = Compared { metric: Metric::Throughput(None), prefix: "", rivals: Rivals::KeepLimit };
        let of = |limit| {
            let [quick, slow] = fixed();
            let mut entrants = [limited(limit), quick, slow];
            rows(&mut entrants, &Row::new(), &[compared], &|_, _| {}, &mut [Verdict::default()])
        };
        // Two of three protocols are within 95 ns. 'slow' is not, although it was the best once.
        let rows = of(95);
        assert_eq!(rows[0].get("best"), Some(&"quick".into()));
        assert_eq!((rows[0].number("latest_ns"), rows[0].number("limit_ns")), (Some(100.0), Some(95.0)));
        assert!(rows[0].number("of_limit").is_some_and(|late| (late - 100.0 / 95.0).abs() < 1e-3));
        assert!(rows[1..].iter().all(|row| row.get("best").is_none() && row.get("limit_ns").is_none()));
        // No protocol keeps that limit.
        assert_eq!((of(50)[0].get("best"), of(50)[0].get("ratio")), (None, None));
    }

    #[test]
    fn who_is_ahead_by_chance_is_not_compared_with_by_that() {
        // Two entrants that differ only by chance: each leads in the rounds of one half.
        let mut entrants = [
            entrant("one", true, &[80, 120, 80, 120]),
            entrant("other", true, &[120, 81, 120, 81]),
            entrant("hinted", false, &[100, 100, 100, 100]),
        ];
        let metrics = [Compared { metric: Metric::Latency(0), prefix: "", rivals: Rivals::All }];
        let rows = rows(&mut entrants, &Row::new(), &metrics, &|_, _| {}, &mut [Verdict::default()]);
        let ratio = rows[0].number("ratio").expect("a ratio");
        assert!((ratio - 100.0 / 120.0).abs() < 1e-3, "{ratio}");
    }
}
