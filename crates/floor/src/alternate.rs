//! Alternates slices of floor and subject, each between two placement probes.

use std::time::Duration;

use super::{Floor, FloorError, FloorPair, Placement, Slice};
use dunlin_report::statistics::{Latency, median, ratio};
use dunlin_report::{Row, rounded};

/// A slice of the floor, the slice of the subject that followed it, and the placement during both.
#[derive(Clone, Debug)]
pub struct Alternation {
    /// The common result of the three probes (before, between, after), or [`Placement::Unclear`] if they
    /// differ.
    pub placement: Placement,
    /// The floor's slice.
    pub floor: Slice,
    /// The subject's slice.
    pub subject: Slice,
}

impl Alternation {
    /// Returns the subject's median latency divided by the floor's, or `None` if either has no samples.
    #[must_use]
    pub fn latency_ratio(&self) -> Option<f64> {
        ratio(self.subject.p50_ns(), self.floor.p50_ns()).filter(|ratio| *ratio > 0.0)
    }

    /// Returns the subject's operations per second divided by the floor's.
    #[must_use]
    pub fn throughput_ratio(&self) -> Option<f64> {
        ratio(self.subject.operations_per_second(), self.floor.operations_per_second())
    }
}

/// Runs `rounds` rounds of: probe, floor slice, probe, subject slice, probe. `subject` must run one whole
/// slice of the subject in the given pair. `progress` is called with the number of completed rounds.
///
/// # Errors
/// The first error of any slice.
pub fn alternate(
    pair: &mut FloorPair,
    floor: Floor,
    floor_duration: Duration,
    rounds: usize,
    subject: impl FnMut(&mut FloorPair) -> Result<Slice, FloorError>,
    progress: impl FnMut(usize),
) -> Result<Vec<Alternation>, FloorError> {
    take_turns(pair, rounds, |pair| pair.slice(floor, floor_duration), subject, progress)
}

/// Runs [`alternate`] with another subject in place of the floor.
///
/// # Errors
/// The first error of any slice.
pub fn take_turns(
    pair: &mut FloorPair,
    rounds: usize,
    mut floor: impl FnMut(&mut FloorPair) -> Result<Slice, FloorError>,
    mut subject: impl FnMut(&mut FloorPair) -> Result<Slice, FloorError>,
    mut progress: impl FnMut(usize),
) -> Result<Vec<Alternation>, FloorError> {
    let mut found = Vec::with_capacity(rounds);
    let mut before = pair.placement_probe()?;
    for round in 0..rounds {
        let floor = floor(pair)?;
        let between = pair.placement_probe()?;
        let subject = subject(pair)?;
        let after = pair.placement_probe()?;
        let placement = if before == between && between == after { before } else { Placement::Unclear };
        found.push(Alternation { placement, floor, subject });
        before = after;
        progress(round + 1);
    }
    Ok(found)
}

/// The summary of all alternations of one placement.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// The placement.
    pub placement: Placement,
    /// Number of alternations in the summary.
    pub alternations: usize,
    /// Whether the kernel preempted a side during some of them: the machine is too busy for reliable
    /// figures.
    pub preempted: bool,
    /// All latency samples of the subject.
    pub subject_latency: Latency,
    /// Median over slices of the floor's median latency, ns; 0 for throughput floors.
    pub floor_p50_ns: f64,
    /// Median over slices of the subject's median latency, ns; 0 for throughput subjects.
    pub subject_p50_ns: f64,
    /// Median over slices of the floor's operations per second.
    pub floor_throughput_ops: f64,
    /// Median over slices of the subject's operations per second.
    pub subject_throughput_ops: f64,
    /// Median over alternations of subject latency over floor latency.
    pub latency_ratio: Option<f64>,
    /// Median over alternations of subject latency minus floor latency, ns.
    pub latency_difference_ns: f64,
    /// Median over alternations of subject throughput over floor throughput.
    pub throughput_ratio: Option<f64>,
    /// CPU time of the server per operation of the subject, ns.
    pub server_cpu_ns_per_op: f64,
}

/// Summarizes alternations by placement, the most frequent placement first. Alternations whose probes
/// disagreed are dropped, unless there are no others: then one comparison has [`Placement::Unclear`]. A
/// placement with less than a tenth of the alternations is dropped too, as a probe error.
///
/// For each placement, only alternations without preemption are used if they are at least a quarter.
/// Otherwise the quarter with the fewest preemptions is used, and [`Comparison::preempted`] is set.
#[must_use]
pub fn compare(alternations: &[Alternation]) -> Vec<Comparison> {
    let found =
        alternations.iter().map(|one| (one.placement, one.floor.preemptions + one.subject.preemptions, one));
    select(found).into_iter().filter_map(condense).collect()
}

/// The measurements of one placement that are used.
pub struct Selection<'a, T> {
    /// The placement.
    pub placement: Placement,
    /// The selected measurements.
    pub chosen: Vec<&'a T>,
    /// Whether some of the selected measurements were preempted.
    pub preempted: bool,
}

impl Comparison {
    /// Sets the latency fields of a report row: the subject's percentiles, `floor_p50_ns`, `ratio`, and the
    /// fields of [`Comparison::set_common`]. `p50_ns` is the median over slices, like the floor's.
    pub fn set_latency(&self, row: &mut Row) {
        row.set_latency(&self.subject_latency)
            .set("p50_ns", rounded(self.subject_p50_ns))
            .set("floor_p50_ns", rounded(self.floor_p50_ns))
            .set("ratio", self.latency_ratio.map(rounded));
        self.set_common(row);
    }

    /// Sets the throughput fields of a report row: `throughput_ops`, `floor_throughput_ops`, `ratio`, and
    /// the fields of [`Comparison::set_common`].
    pub fn set_throughput(&self, row: &mut Row) {
        row.set("throughput_ops", self.subject_throughput_ops.round())
            .set("floor_throughput_ops", self.floor_throughput_ops.round())
            .set("ratio", self.throughput_ratio.map(rounded));
        self.set_common(row);
    }

    /// Sets `server_cpu_ns_per_op`, `placement`, `alternations` and `preempted`.
    pub fn set_common(&self, row: &mut Row) {
        row.set("server_cpu_ns_per_op", rounded(self.server_cpu_ns_per_op))
            .set("placement", self.placement.as_str())
            .set("alternations", self.alternations)
            .set("preempted", self.preempted);
    }
}

/// Selects measurements by the rules of [`compare`]. Each item has its placement and its number of
/// preemptions.
pub fn select<'a, T>(found: impl Iterator<Item = (Placement, u64, &'a T)>) -> Vec<Selection<'a, T>> {
    let mut by_placement: Vec<(Placement, Vec<(u64, &T)>)> =
        [Placement::Near, Placement::Far, Placement::Unclear].map(|placement| (placement, Vec::new())).into();
    for (placement, preemptions, one) in found {
        if let Some((_, group)) = by_placement.iter_mut().find(|(known, _)| *known == placement) {
            group.push((preemptions, one));
        }
    }
    let known: usize = by_placement
        .iter()
        .filter(|(placement, _)| *placement != Placement::Unclear)
        .map(|(_, group)| group.len())
        .sum();
    by_placement.retain(|(placement, group)| {
        !group.is_empty()
            && if known > 0 { *placement != Placement::Unclear && group.len() * 10 >= known } else { true }
    });
    by_placement.sort_by_key(|(_, group)| std::cmp::Reverse(group.len()));
    by_placement
        .into_iter()
        .map(|(placement, mut group)| {
            let whole: Vec<&T> =
                group.iter().filter(|(preemptions, _)| *preemptions == 0).map(|(_, one)| *one).collect();
            let preempted = whole.len() * 4 < group.len();
            let chosen = if preempted {
                group.sort_by_key(|(preemptions, _)| *preemptions);
                group.iter().take(group.len().div_ceil(4)).map(|(_, one)| *one).collect()
            } else {
                whole
            };
            Selection { placement, chosen, preempted }
        })
        .collect()
}

fn condense(selection: Selection<'_, Alternation>) -> Option<Comparison> {
    let Selection { placement, chosen, preempted } = selection;
    let middle = |value: &dyn Fn(&Alternation) -> f64| median(chosen.iter().map(|one| value(one)));
    let mut subject_latency = Latency::new();
    chosen.iter().for_each(|one| subject_latency.merge(&one.subject.latency));
    let operations: u64 = chosen.iter().map(|one| one.subject.total_operations).sum();
    let server_cpu: u64 = chosen.iter().map(|one| one.subject.peer_cpu_ns).sum();
    Some(Comparison {
        placement,
        alternations: chosen.len(),
        preempted,
        floor_p50_ns: middle(&|one| one.floor.p50_ns())?,
        subject_p50_ns: middle(&|one| one.subject.p50_ns())?,
        floor_throughput_ops: middle(&|one| one.floor.operations_per_second())?,
        subject_throughput_ops: middle(&|one| one.subject.operations_per_second())?,
        latency_ratio: median(chosen.iter().filter_map(|one| one.latency_ratio())),
        latency_difference_ns: middle(&|one| one.subject.p50_ns() - one.floor.p50_ns())?,
        throughput_ratio: median(chosen.iter().filter_map(|one| one.throughput_ratio())),
        server_cpu_ns_per_op: ratio(server_cpu as f64, operations as f64).unwrap_or(0.0),
        subject_latency,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slice(p50: u64, operations: u64) -> Slice {
        let mut latency = Latency::new();
        latency.record(p50);
        Slice { latency, operations, elapsed_ns: 1e9, peer_cpu_ns: 500, total_operations: 10, preemptions: 0 }
    }

    fn alternation(placement: Placement, floor: u64, subject: u64) -> Alternation {
        Alternation { placement, floor: slice(floor, 1000), subject: slice(subject, 400) }
    }

    #[test]
    fn placements_are_kept_apart_and_disagreement_is_dropped() {
        let all = [
            alternation(Placement::Near, 100, 150),
            alternation(Placement::Far, 400, 500),
            alternation(Placement::Unclear, 1, 1000),
            alternation(Placement::Far, 400, 480),
            alternation(Placement::Far, 400, 520),
        ];
        let found = compare(&all);
        assert_eq!(found.len(), 2);
        assert_eq!((found[0].placement, found[0].alternations), (Placement::Far, 3));
        assert_eq!(found[0].latency_ratio, Some(1.25));
        assert_eq!(found[0].latency_difference_ns, 100.0);
        assert_eq!(found[0].floor_p50_ns, 400.0);
        assert_eq!(found[0].subject_latency.samples(), 3);
        assert_eq!(found[0].throughput_ratio, Some(0.4));
        assert_eq!(found[0].server_cpu_ns_per_op, 50.0);
        assert_eq!(found[1].latency_ratio, Some(1.5));
        let mut row = Row::new();
        found[0].set_latency(&mut row);
        assert_eq!(
            (row.number("p50_ns"), row.number("floor_p50_ns"), row.number("ratio")),
            (Some(500.0), Some(400.0), Some(1.25))
        );
        assert_eq!(row.get("placement"), Some(&"far".into()));
        let mut row = Row::new();
        found[0].set_throughput(&mut row);
        assert_eq!(
            (row.number("throughput_ops"), row.number("floor_throughput_ops")),
            (Some(400.0), Some(1000.0))
        );
    }

    #[test]
    fn preempted_ones_and_stray_placements_are_dropped() {
        let preempted = |mut one: Alternation| {
            one.subject.preemptions = 1;
            one
        };
        let mut all: Vec<Alternation> =
            (0..6).map(|_| preempted(alternation(Placement::Far, 400, 9999))).collect();
        all.extend((0..2).map(|_| alternation(Placement::Far, 400, 500)));
        let found = compare(&all);
        assert_eq!(
            (found[0].alternations, found[0].preempted, found[0].latency_ratio),
            (2, false, Some(1.25))
        );
        all.extend((0..3).map(|_| preempted(alternation(Placement::Far, 400, 9999))));
        let found = compare(&all);
        assert_eq!(
            (found[0].alternations, found[0].preempted, found[0].latency_ratio),
            (3, true, Some(1.25))
        );
        all.push(alternation(Placement::Near, 100, 100));
        assert_eq!(compare(&all).len(), 1, "one near among eleven far is an error of the probe");
    }

    #[test]
    fn nothing_but_disagreement_is_said_to_be_unclear() {
        let found = compare(&[alternation(Placement::Unclear, 100, 200)]);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].placement, Placement::Unclear);
        assert!(compare(&[]).is_empty());
    }
}
