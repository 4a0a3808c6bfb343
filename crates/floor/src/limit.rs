//! `bench limit`: measures every floor in one pinned process pair.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use super::alternate::{Selection, select};
use super::{Floor, FloorError, FloorPair, Placement, RING_WINDOW, Slice};
use dunlin_report::statistics::{Latency, median};
use dunlin_report::{Row, rounded};

/// The duration of the measurement.
#[derive(Clone, Copy, Debug)]
pub struct LimitOptions {
    /// Length of one slice; payloads of 1 MiB get four times as much. Slices longer than the kernel's time
    /// slice (about 3 ms) are rarely free of preemption on a busy machine.
    pub slice: Duration,
    /// Number of slices per floor.
    pub slices: usize,
}

impl Default for LimitOptions {
    /// Takes about four seconds in all.
    fn default() -> Self {
        Self { slice: Duration::from_millis(2), slices: 100 }
    }
}

/// The floors, and whether both sides share the client's core.
const FLOORS: [(Floor, bool); 11] = [
    (Floor::CacheLine, false),
    (Floor::Inline32, false),
    (Floor::Payload(4_096), false),
    (Floor::Payload(65_536), false),
    (Floor::Payload(1 << 20), false),
    (Floor::Ring { window: RING_WINDOW }, false),
    (Floor::Futex, false),
    (Floor::Futex, true),
    (Floor::Memcpy(4_096), false),
    (Floor::Memcpy(65_536), false),
    (Floor::Memcpy(1 << 20), false),
];

/// Measures every floor. Every row has `name` and `placement`. Round trips have `size_bytes`, `p50_ns` (the
/// median over slices of their medians) and the other latency fields; the ring has `throughput_ops` and
/// `window`; copies have `bytes_per_s`; futex rows have `cores`: `two cores`, or `one core` where both
/// sides share the client's. A floor seen in both placements has a row for each, the more frequent
/// placement first. Slices are selected by the rules of [`compare`](super::compare); `preempted` means that
/// the machine was too busy to find slices without preemption.
///
/// Blocks for the whole measurement. Draws a progress bar if standard error is a terminal.
///
/// # Errors
/// The first error of any slice.
pub fn limit(pair: &mut FloorPair, options: LimitOptions) -> Result<Vec<Row>, FloorError> {
    let progress = ProgressBar::new((FLOORS.len() * options.slices) as u64);
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {percent:>3}%  {msg}") {
        progress.set_style(style);
    }
    // Every round measures all floors, so that each floor samples the machine's state at several times.
    let mut slices: Vec<Vec<(Placement, Slice)>> = vec![Vec::new(); FLOORS.len()];
    for _ in 0..options.slices {
        for ((floor, same_core), found) in FLOORS.iter().zip(&mut slices) {
            progress.set_message(floor.name());
            found.push(bracketed(pair, *floor, *same_core, slice_length(*floor, options.slice))?);
            progress.inc(1);
        }
    }
    progress.finish_and_clear();
    Ok(FLOORS
        .iter()
        .zip(&slices)
        .flat_map(|((floor, same_core), found)| rows(*floor, *same_core, found))
        .collect())
}

fn slice_length(floor: Floor, slice: Duration) -> Duration {
    match floor {
        Floor::Payload(size) if size >= 1 << 20 => slice * 4,
        _ => slice,
    }
}

fn bracketed(
    pair: &mut FloorPair,
    floor: Floor,
    same_core: bool,
    length: Duration,
) -> Result<(Placement, Slice), FloorError> {
    let cores = pair.cores();
    let before = pair.placement_probe()?;
    if same_core {
        pair.set_server_core(cores.client);
    }
    let slice = pair.slice(floor, length)?;
    pair.set_server_core(cores.server);
    let after = pair.placement_probe()?;
    Ok((if before == after { before } else { Placement::Unclear }, slice))
}

fn rows(floor: Floor, same_core: bool, slices: &[(Placement, Slice)]) -> Vec<Row> {
    // On one core the two sides preempt each other by design.
    let preemptions = |slice: &Slice| if same_core { 0 } else { slice.preemptions };
    select(slices.iter().map(|(placement, slice)| (*placement, preemptions(slice), slice)))
        .into_iter()
        .filter_map(|selection| row(floor, same_core, &selection))
        .collect()
}

fn row(floor: Floor, same_core: bool, selection: &Selection<'_, Slice>) -> Option<Row> {
    let Selection { placement, chosen: slices, preempted } = selection;
    let middle = |value: &dyn Fn(&Slice) -> f64| median(slices.iter().map(|slice| value(slice))).map(rounded);
    let mut row = Row::new().with("name", floor.name()).with("placement", placement.as_str());
    let size = match floor {
        Floor::CacheLine => 8,
        Floor::Futex => 4,
        Floor::Inline32 | Floor::Ring { .. } => 32,
        Floor::Payload(size) | Floor::Memcpy(size) => size,
    };
    row.set("size_bytes", size);
    match floor {
        Floor::Ring { window } => {
            row.set("window", window).set("throughput_ops", middle(&Slice::operations_per_second)?.round());
        }
        Floor::Memcpy(size) => {
            row.set("bytes_per_s", (middle(&Slice::operations_per_second)? * f64::from(size)).round());
        }
        Floor::CacheLine | Floor::Inline32 | Floor::Payload(_) | Floor::Futex => {
            let mut latency = Latency::new();
            slices.iter().for_each(|slice| latency.merge(&slice.latency));
            if floor == Floor::Futex {
                row.set("cores", if same_core { "one core" } else { "two cores" });
            }
            row.set_latency(&latency).set("p50_ns", middle(&Slice::p50_ns)?);
        }
    }
    row.set("slices", slices.len()).set("preempted", *preempted);
    Some(row)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slice(p50: u64, operations: u64) -> Slice {
        let mut latency = Latency::new();
        latency.record(p50);
        Slice {
            latency,
            operations,
            elapsed_ns: 1e9,
            peer_cpu_ns: 0,
            total_operations: operations,
            preemptions: 0,
        }
    }

    #[test]
    fn each_placement_has_its_row_and_the_commoner_comes_first() {
        let found = [
            (Placement::Near, slice(100, 10)),
            (Placement::Far, slice(400, 10)),
            (Placement::Unclear, slice(9, 10)),
            (Placement::Far, slice(420, 10)),
            (Placement::Far, slice(410, 10)),
        ];
        let rows = rows(Floor::Inline32, false, &found);
        assert_eq!(rows.len(), 2);
        assert_eq!(rows[0].get("name"), Some(&"round_trip_32".into()));
        assert_eq!(rows[0].get("placement"), Some(&"far".into()));
        assert_eq!(rows[0].number("p50_ns"), Some(410.0));
        assert_eq!(rows[0].number("samples"), Some(3.0));
        assert_eq!(rows[1].number("p50_ns"), Some(100.0));
    }

    #[test]
    fn copies_count_bytes_and_the_ring_counts_requests() {
        let copies = rows(Floor::Memcpy(4096), false, &[(Placement::Unclear, slice(1, 1000))]);
        assert_eq!(copies[0].number("bytes_per_s"), Some(4_096_000.0));
        assert_eq!(copies[0].get("placement"), Some(&"unclear".into()));
        let ring = rows(Floor::Ring { window: 64 }, false, &[(Placement::Near, slice(1, 1000))]);
        assert_eq!(ring[0].number("throughput_ops"), Some(1000.0));
    }
}
