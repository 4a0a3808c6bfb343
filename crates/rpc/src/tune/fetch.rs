//! R and F by enumeration (RF-RPC section 3.2, equations 1 and 2).
//!
//! Of each sampled call are known how long the server took (P) and how long its answer is (S). For each candidate of R in
//! [1, N] and F in [L, H] the table of rates tells how many such calls a second the server's NIC could carry: fetched, the rate
//! of READs of F bytes, divided by the READs that it takes until the result is there (and one more if F does not hold it), or
//! written back, the rate of WRITEs of S bytes, if that would be more READs than R allows. Two things differ from the paper's
//! equation, which leaves P out and adds up the rates of the calls: with P the choice holds for functions of any length, and what
//! all samples take together (the sum of the reciprocals) is what a mix of them really needs. And R can be 0: where a WRITE is no dearer than
//! even one READ, as on shared memory, results are written back without a READ for trial.

use super::table::FetchTable;

/// Candidates of F are so many bytes apart: a line.
pub(crate) const STEP: u32 = 64;
/// At most so many candidates of F; then they are further apart.
const CANDIDATES: u32 = 16;
/// Another F has to be so much better: who stands on the edge between two stays.
const BETTER: f64 = 1.03;
/// R is never larger, whatever a table says.
pub(crate) const MOST_RETRIES: usize = 16;

/// A sampled call.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Sample {
    /// How long the server took, in nanoseconds.
    pub(crate) process: u32,
    /// Bytes of the answer with its header.
    pub(crate) bytes: u32,
}

/// R and F.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Choice {
    /// R: READs that may fail for a call, 1 to 16; 0 if results are better written back at once.
    pub(crate) retries: u32,
    /// F: bytes that a READ brings, whole lines.
    pub(crate) bytes: u32,
    /// How long R READs take, in nanoseconds: a server that is quicker is fetched from.
    pub(crate) patience: u32,
}

impl Choice {
    /// These, as far as they can be.
    pub(crate) fn new(table: &FetchTable, retries: u32, bytes: u32) -> Self {
        let (retries, bytes) = (retries.clamp(1, MOST_RETRIES as u32), lines(bytes.clamp(1, 1 << 20)));
        let patience = (f64::from(retries) * table.read_nanos(bytes)) as u32;
        Choice { retries, bytes, patience }
    }

    /// What a client starts with: R = N and F = L, or 0 and L.
    pub(crate) fn start(table: &FetchTable) -> Self {
        let low = table.low();
        match table.reads(low) > table.writes(low) {
            true => Choice::new(table, table.reads_at_most(), low),
            false => Choice::written(low),
        }
    }

    /// Nothing is fetched, until other samples say otherwise.
    fn written(bytes: u32) -> Self {
        Choice { retries: 0, bytes, patience: 0 }
    }
}

/// R and F for calls like these; what is chosen now, unless others are better by enough to matter.
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
            // Of equal ones the largest R: a call that takes longer than others did is no reason to change.
            if time < best.0 || (time == best.0 && bytes == best.2 && retries > best.1) {
                best = (time, retries, bytes);
            }
        }
    }
    let (time, retries, bytes) = best;
    let better = time * BETTER < standing || (bytes == now.bytes && time <= standing && now.retries > 0);
    match (better, retries) {
        (false, _) => now,
        // Of a READ that is not sent no F is better than another.
        (true, 0) => Choice::written(now.bytes),
        (true, _) => Choice::new(table, retries, bytes),
    }
}

/// How long the server's NIC is busy with all samples where READs bring so many bytes, in seconds: for each R.
fn times(table: &FetchTable, samples: &[Sample], written: &[f64], bytes: u32) -> [f64; MOST_RETRIES + 1] {
    let read = table.read_nanos(bytes);
    let served = table.reads(bytes);
    // By the READs that fail: what the samples take if they are fetched, and how much less (or more) if they are written back.
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
    // With R all those are fetched for which fewer fail.
    for time in &mut times {
        all += *time;
        *time = all;
    }
    times
}

/// The most samples that are looked at together.
pub(crate) const MAX_SAMPLES: usize = 32;

/// Whole lines of at least so many bytes, as a READ takes them.
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

    /// R and F after such calls, from what was chosen before.
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
        // With 1 KiB one READ of all is no better than half of the rate of READs of 256 bytes.
        let beyond = after(&table, longer, 300, 1024);
        assert_eq!(beyond.bytes, 256);
        // Beyond H it makes no difference that would be worth it.
        assert_eq!(after(&table, beyond, 300, 3000).bytes, 256);
        // And back.
        assert_eq!(after(&table, longer, 300, 100).bytes, 256);
    }

    #[test]
    fn a_mix_is_weighed_by_the_time_that_it_takes() {
        let (table, start) = start();
        // Three of four fit: two READs for the fourth are better than slower ones for all.
        let mut samples = alike(300, 64);
        samples.iter_mut().step_by(4).for_each(|sample| sample.bytes = 700);
        assert_eq!(choose(&table, &samples, start).bytes, 256);
    }

    #[test]
    fn r_falls_where_writing_back_is_better_than_so_many_reads() {
        let (table, start) = start();
        // Three READs are served in less than the time of one WRITE, and so are five.
        assert_eq!(after(&table, start, 4_000, 64).retries, 5);
        assert_eq!(after(&table, start, 6_000, 64).retries, 5);
        // Not so six, if the result takes one more.
        let fewer = after(&table, start, 6_000, 600);
        assert_eq!((fewer.retries, fewer.bytes), (4, 256));
        assert_eq!(after(&table, fewer, 1_000, 64).retries, 5);
    }

    /// Where who READs has the work, a WRITE is the better way, from the first call on; and fetching is, as soon as it pays.
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

    /// Equation 2 as it stands in the head of this file, sample by sample.
    fn plainly(table: &FetchTable, samples: &[Sample], retries: u32, bytes: u32) -> f64 {
        let of = |sample: &Sample| {
            let failed = (f64::from(sample.process) / table.read_nanos(bytes)) as u32;
            // With R = 0 all are written back.
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
        /// Within 5% of the best of all candidates, for any workload.
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

        /// A server may say of its time what it likes, and answer with any number of bytes.
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
