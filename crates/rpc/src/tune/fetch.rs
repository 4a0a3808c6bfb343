//! R and F by enumeration (RF-RPC section 3.2, equations 1 and 2).
//!
//! Each sampled call has the server's time (P) and the length of its answer (S). For each candidate of R in
//! [1, N] and F in [L, H], the rate table gives the number of such calls per second that the server's NIC can
//! sustain. A fetched call counts the rate of READs of F bytes, divided by the READs until the result is
//! there (plus one if F does not hold it). A call that would take more READs than R allows counts the rate of
//! WRITEs of S bytes.
//!
//! Two things differ from the paper's equation, which ignores P and sums the rates of the calls. With P the
//! choice holds for functions of any duration, and the summed time of all samples (the sum of the
//! reciprocals) is the actual cost of a mix. Also, R can be 0: where a WRITE costs no more than a single
//! READ, as on shared memory, results are written back without any READ.

use super::table::FetchTable;

/// Distance between candidates of F, in bytes: a line.
pub(crate) const STEP: u32 = 64;
/// Most candidates of F; if L and H are far apart, the distance grows.
const CANDIDATES: u32 = 16;
/// Another F must be better by this factor, so that the choice does not oscillate between two.
const BETTER: f64 = 1.03;
/// The largest R, for any table.
pub(crate) const MOST_RETRIES: usize = 16;

/// A sampled call.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Sample {
    /// The server's time, in nanoseconds.
    pub(crate) process: u32,
    /// Bytes of the answer with its header.
    pub(crate) bytes: u32,
}

/// R and F.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Choice {
    /// R: failed READs that a call tolerates, 1 to 16; 0 if results are better written back at once.
    pub(crate) retries: u32,
    /// F: bytes of a READ, whole lines.
    pub(crate) bytes: u32,
    /// Time of R READs in nanoseconds: results of servers that are faster are fetched.
    pub(crate) patience: u32,
}

impl Choice {
    /// Creates a choice with R and F clamped to their ranges.
    pub(crate) fn new(table: &FetchTable, retries: u32, bytes: u32) -> Self {
        let (retries, bytes) = (retries.clamp(1, MOST_RETRIES as u32), lines(bytes.clamp(1, 1 << 20)));
        let patience = (f64::from(retries) * table.read_nanos(bytes)) as u32;
        Choice { retries, bytes, patience }
    }

    /// Returns a client's initial choice: R = N and F = L, or R = 0 and F = L where READs are not cheaper.
    pub(crate) fn start(table: &FetchTable) -> Self {
        let low = table.low();
        match table.reads(low) > table.writes(low) {
            true => Choice::new(table, table.reads_at_most(), low),
            false => Choice::written(low),
        }
    }

    /// Returns the choice with R = 0: nothing is fetched until later samples change it.
    fn written(bytes: u32) -> Self {
        Choice { retries: 0, bytes, patience: 0 }
    }
}

/// Chooses R and F for calls like the samples; keeps `now` unless another choice is sufficiently better.
pub(crate) fn choose(table: &FetchTable, samples: &[Sample], now: Choice) -> Choice {
    let (low, high) = (lines(table.low()), lines(table.high()));
    let step = STEP.max(lines((high - low) / CANDIDATES));
    let written = samples.iter().map(|sample| 1.0 / table.writes(sample.bytes));
    let mut costs = [0.0; MAX_SAMPLES];
    costs.iter_mut().zip(written).for_each(|(cost, written)| *cost = written);
    let taken = |bytes| times(table, samples, &costs, bytes);
    let of = |times: &[f64; MOST_RETRIES + 1], retries: u32| times[(retries as usize).min(MOST_RETRIES)];
    let standing = of(&taken(now.bytes), now.retries);
    let mut best = (standing, now.retries, now.bytes);
    for bytes in (low..=high).step_by(step as usize) {
        let times = taken(bytes);
        for retries in 0..=table.reads_at_most() {
            let time = of(&times, retries);
            // Among equal candidates take the largest R, so that a call longer than the samples is no reason
            // to change.
            if time < best.0 || (time == best.0 && bytes == best.2 && retries > best.1) {
                best = (time, retries, bytes);
            }
        }
    }
    let (time, retries, bytes) = best;
    let better = time * BETTER < standing || (bytes == now.bytes && time <= standing && now.retries > 0);
    match (better, retries) {
        (false, _) => now,
        // With R = 0 no F is better than another.
        (true, 0) => Choice::written(now.bytes),
        (true, _) => Choice::new(table, retries, bytes),
    }
}

/// Returns, for each R, the seconds for which all samples occupy the server's NIC if READs have `bytes`
/// bytes.
fn times(table: &FetchTable, samples: &[Sample], written: &[f64], bytes: u32) -> [f64; MOST_RETRIES + 1] {
    let read = table.read_nanos(bytes);
    let served = table.reads(bytes);
    // By failed READs: the time of the samples if they are fetched, less their time if they are written back.
    let mut times = [0.0; MOST_RETRIES + 1];
    let mut all = 0.0;
    for (sample, written) in samples.iter().zip(written) {
        all += written;
        let failed = (f64::from(sample.process) / read) as usize;
        if failed < MOST_RETRIES {
            let reads = failed as u32 + 1 + u32::from(sample.bytes > bytes);
            times[failed + 1] += f64::from(reads) / served - written;
        }
    }
    // With a given R, the calls with fewer failed READs are fetched.
    for time in &mut times {
        all += *time;
        *time = all;
    }
    times
}

/// The most samples for a choice.
pub(crate) const MAX_SAMPLES: usize = 32;

/// Rounds `bytes` up to whole lines.
const fn lines(bytes: u32) -> u32 {
    bytes.next_multiple_of(STEP)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn start() -> (FetchTable, Choice) {
        let table = FetchTable::rf_rpc();
        let start = Choice::start(&table);
        (table, start)
    }

    fn alike(process: u32, bytes: u32) -> Vec<Sample> {
        vec![Sample { process, bytes }; MAX_SAMPLES]
    }

    /// Returns R and F after such calls, starting from `now`.
    fn after(table: &FetchTable, now: Choice, process: u32, bytes: u32) -> Choice {
        choose(table, &alike(process, bytes), now)
    }

    #[test]
    fn short_results_keep_the_start() {
        let (table, start) = start();
        assert_eq!(start, Choice { retries: 5, bytes: 256, patience: 7000 });
        assert_eq!(after(&table, start, 300, 64), start);
    }

    #[test]
    fn results_beyond_f_raise_it_as_far_as_one_read_is_better_than_two() {
        let (table, start) = start();
        let longer = after(&table, start, 300, 500);
        assert_eq!(longer.bytes, 512);
        // At 1 KiB, one READ of the whole result has no more than half of the rate of READs of 256 bytes.
        let beyond = after(&table, longer, 300, 1024);
        assert_eq!(beyond.bytes, 256);
        // Beyond H no F is sufficiently better.
        assert_eq!(after(&table, beyond, 300, 3000).bytes, 256);
        // Shorter results lower F again.
        assert_eq!(after(&table, longer, 300, 100).bytes, 256);
    }

    #[test]
    fn a_mix_is_weighed_by_the_time_that_it_takes() {
        let (table, start) = start();
        // Three of four results fit: two READs for the fourth are better than slower READs for all.
        let mut samples = alike(300, 64);
        samples.iter_mut().step_by(4).for_each(|sample| sample.bytes = 700);
        assert_eq!(choose(&table, &samples, start).bytes, 256);
    }

    #[test]
    fn r_falls_where_writing_back_is_better_than_so_many_reads() {
        let (table, start) = start();
        // Three READs take the server less time than one WRITE, and so do five.
        assert_eq!(after(&table, start, 4_000, 64).retries, 5);
        assert_eq!(after(&table, start, 6_000, 64).retries, 5);
        // Six READs do not, if the result takes one more.
        let fewer = after(&table, start, 6_000, 600);
        assert_eq!((fewer.retries, fewer.bytes), (4, 256));
        assert_eq!(after(&table, fewer, 1_000, 64).retries, 5);
    }

    /// Where the reader does the work of a READ, results are written back from the first call on; fetching
    /// starts as soon as it pays.
    #[test]
    fn where_nothing_is_asymmetric_results_are_written_back_at_once() {
        let shared = FetchTable::of(std::sync::Arc::new(dunlin_fabric::Rates::shared_memory()));
        let start = Choice::start(&shared);
        assert_eq!((start.retries, start.patience), (0, 0));
        for (process, bytes) in [(0, 64), (200, 64), (5_000, 64), (0, 4096), (300, 2000)] {
            assert_eq!(after(&shared, start, process, bytes), start, "{process} ns, {bytes} bytes");
        }
        let (table, _) = self::start();
        let before = Choice { retries: 0, bytes: 512, patience: 0 };
        assert_eq!(after(&table, before, 300, 64), Choice::start(&table));
    }

    /// Equation 2 as in the documentation of this module, sample by sample.
    fn plainly(table: &FetchTable, samples: &[Sample], retries: u32, bytes: u32) -> f64 {
        let of = |sample: &Sample| {
            let failed = (f64::from(sample.process) / table.read_nanos(bytes)) as u32;
            // With R = 0 all results are written back.
            if failed >= retries {
                return 1.0 / table.writes(sample.bytes);
            }
            f64::from(failed + 1 + u32::from(sample.bytes > bytes)) / table.reads(bytes)
        };
        samples.iter().map(of).sum()
    }

    fn samples() -> impl Strategy<Value = Vec<Sample>> {
        let sample = (0u32..20_000, 64u32..8192).prop_map(|(process, bytes)| Sample { process, bytes });
        prop::collection::vec(sample, 1..=MAX_SAMPLES)
    }

    proptest! {
        /// The choice is within 5% of the best candidate, for any workload.
        #[test]
        fn the_choice_is_near_the_best(samples in samples()) {
            let (table, start) = start();
            let chosen = choose(&table, &samples, start);
            let time = |retries, bytes| plainly(&table, &samples, retries, bytes);
            let best = (4..=16u32).flat_map(|f| (0..=5).map(move |r| (r, 64 * f)))
                .map(|(r, f)| time(r, f)).fold(f64::MAX, f64::min);
            let chosen = time(chosen.retries, chosen.bytes);
            prop_assert!(chosen <= best * 1.05, "{chosen} against {best}");
        }

        #[test]
        fn all_retries_at_once_are_each_by_itself(samples in samples(), line in 1u32..32) {
            let (table, bytes) = (FetchTable::rf_rpc(), 64 * line);
            let written: Vec<f64> = samples.iter().map(|sample| 1.0 / table.writes(sample.bytes)).collect();
            let all = times(&table, &samples, &written, bytes);
            for retries in 1..=16u32 {
                let (one, other) = (all[retries as usize], plainly(&table, &samples, retries, bytes));
                prop_assert!((one - other).abs() <= other * 1e-9, "{retries}: {one} and {other}");
            }
        }

        /// A server may report any time, and answer with any number of bytes.
        #[test]
        fn nonsense_is_borne(
            samples in prop::collection::vec((any::<u32>(), any::<u32>()), 0..=MAX_SAMPLES),
            retries in any::<u32>(), bytes in any::<u32>(),
        ) {
            let (table, _) = start();
            let samples: Vec<_> = samples.into_iter().map(|(process, bytes)| Sample { process, bytes }).collect();
            let fixed = Choice::new(&table, retries, bytes);
            prop_assert!((1..=16).contains(&fixed.retries) && (64..=1 << 20).contains(&fixed.bytes));
            let chosen = choose(&table, &samples, Choice::start(&table));
            prop_assert!((0..=5).contains(&chosen.retries));
            prop_assert!((256..=1024).contains(&chosen.bytes) && chosen.bytes.is_multiple_of(64));
            prop_assert_eq!(chosen.patience > 0, chosen.retries > 0);
        }
    }
}
