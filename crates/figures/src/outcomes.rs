//! The outcomes of a figure's runs, and points made of them.

use super::{Outcome, Paper, Point, Run};
use dunlin_fabric::Nanos;

/// The outcomes of a system's runs.
pub(super) struct Outcomes(pub(super) Vec<(Run, Outcome)>);

impl Outcomes {
    /// Returns a value of one run; `None` if it was not run.
    pub(super) fn get(&self, series: &str, x: u32, value: fn(&Outcome) -> f64) -> Option<f64> {
        let found = self.0.iter().find(|(run, _)| run.series == series && run.x == x)?;
        Some(value(&found.1))
    }

    /// Returns the ratio of two series wherever both were run.
    pub(super) fn ratios(
        &self,
        title: &str,
        over: &str,
        under: &str,
        value: fn(&Outcome) -> f64,
    ) -> Vec<Point> {
        let ratio = |x| {
            let predicted = self.get(over, x, value)? / self.get(under, x, value)?;
            Some(Point { series: title.to_owned(), x, unit: "ratio", predicted, said: None })
        };
        self.xs().into_iter().filter_map(ratio).collect()
    }

    /// Returns the position and height of a series' maximum.
    pub(super) fn peak(&self, series: &str, value: fn(&Outcome) -> f64) -> Option<(u32, f64)> {
        let mine = self.0.iter().filter(|(run, _)| run.series == series);
        mine.map(|(run, outcome)| (run.x, value(outcome))).max_by(|one, other| one.1.total_cmp(&other.1))
    }

    /// Returns the busiest part of the server's NIC in every run.
    pub(super) fn busiest_parts(&self) -> impl Iterator<Item = &'static str> {
        self.0.iter().map(|(_, outcome)| outcome.busiest.0)
    }

    /// Returns every run as a point without a statement of the paper.
    pub(super) fn as_they_are(&self, unit: &'static str, value: fn(&Outcome) -> f64) -> Vec<Point> {
        let point = |(run, outcome): &(Run, Outcome)| Point {
            series: run.series.clone(),
            x: run.x,
            unit,
            predicted: value(outcome),
            said: None,
        };
        self.0.iter().map(point).collect()
    }

    /// Returns the positions of the runs in ascending order, without duplicates.
    pub(super) fn xs(&self) -> Vec<u32> {
        let mut xs: Vec<u32> = self.0.iter().map(|(run, _)| run.x).collect();
        xs.sort_unstable();
        xs.dedup();
        xs
    }
}

/// Attaches a statement of the paper to a point, if it is present.
pub(super) fn say(points: &mut [Point], series: &str, x: u32, paper: Paper, source: &'static str) {
    if let Some(point) = points.iter_mut().find(|point| point.series == series && point.x == x) {
        point.said = Some((paper, source));
    }
}

/// Stretches of a timeline that are averaged into one rate.
const STRETCHES: usize = 10;
/// Fraction of the final rate that counts as settled.
const SETTLED: f64 = 0.95;

/// Returns the time from a step until the rate settled, in milliseconds: from then on it is at least 95% of
/// the rate in the last tenth of the time.
pub(super) fn settled(timeline: &[u64], stretch: Nanos, step: Nanos) -> f64 {
    let from = (step / stretch.max(1)) as usize;
    let after = timeline.get(from..).unwrap_or_default();
    let end = &after[after.len() - after.len() / 10..];
    let wanted = SETTLED * STRETCHES as f64 * end.iter().sum::<u64>() as f64 / end.len().max(1) as f64;
    let slow = after.windows(STRETCHES).rposition(|window| (window.iter().sum::<u64>() as f64) < wanted);
    // Counts to the end of the last slow stretch.
    let settled = slow.map_or(1, |last| last as u64 + 2) * stretch;
    settled as f64 / 1e6
}
