//! R and F by enumeration (RF-RPC section 3.2, equations 1 and 2).
//!
//! Of each sampled call are known how long the server took (P) and how long its answer is (S). For each candidate of R in
//! [1, N] and F in [L, H] the table of rates tells how many such calls a second the server's NIC could carry: fetched, the rate
//! of READs of F bytes, divided by the READs that it takes until the result is there (and one more if F does not hold it), or
//! written back, the rate of WRITEs of S bytes, if that would be more READs than R allows. Two things differ from the paper's
//! equation, which leaves P out and adds up the rates of the calls: with P the choice holds for functions of any length, and what
//! all samples take together (the sum of the reciprocals) is what a mix of them really needs.

use super::table::FetchTable;
use std::sync::Arc;

/// Calls after which R and F are chosen anew.
const SAMPLES: usize = 64;
/// Candidates of F are so many bytes apart: a line.
const STEP: u32 = 64;
/// At most so many candidates of F; then they are further apart.
const CANDIDATES: u32 = 16;
/// Another F has to be so much better: who stands on the edge between two stays.
const BETTER: f64 = 1.03;

/// A sampled call.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Sample {
    /// How long the server took, in nanoseconds.
    process: u32,
    /// Bytes of the answer with its header.
    bytes: u32,
}

/// Chooses R and F.
#[derive(Clone, Debug)]
pub(crate) struct FetchTuner {
    table: Arc<FetchTable>,
    samples: [Sample; SAMPLES],
    count: usize,
    /// R: READs that may fail for a call.
    retries: u32,
    /// F: bytes that a READ brings.
    bytes: u32,
    /// R READs of F bytes take so long, in nanoseconds.
    patience: u32,
    /// How often R or F has changed.
    changes: u64,
}

impl FetchTuner {
    /// Starts with R = N and F = L.
    pub(crate) fn new(table: Arc<FetchTable>) -> Self {
        let (retries, bytes) = (table.reads_at_most(), lines(table.low()));
        let samples = [Sample { process: 0, bytes: 0 }; SAMPLES];
        let mut tuner = FetchTuner { table, samples, count: 0, retries, bytes, patience: 0, changes: 0 };
        tuner.patience = tuner.time_of_retries();
        tuner
    }

    /// R.
    #[inline]
    pub(crate) fn retries(&self) -> u32 {
        self.retries
    }

    /// F, whole lines.
    #[inline]
    pub(crate) fn bytes(&self) -> u32 {
        self.bytes
    }

    /// How long R READs take, in nanoseconds: a server that is quicker is fetched from.
    #[inline]
    pub(crate) fn patience(&self) -> u32 {
        self.patience
    }

    pub(crate) fn table(&self) -> &FetchTable {
        &self.table
    }

    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    fn time_of_retries(&self) -> u32 {
        (f64::from(self.retries) * self.table.read_nanos(self.bytes)) as u32
    }

    /// Takes a sample: how long the server took, in nanoseconds, and how long its answer is. Says whether R or F has changed.
    pub(crate) fn sample(&mut self, process: u32, bytes: u32) -> bool {
        self.samples[self.count] = Sample { process, bytes };
        self.count += 1;
        if self.count < SAMPLES {
            return false;
        }
        self.count = 0;
        self.choose()
    }

    fn choose(&mut self) -> bool {
        let (low, high) = (lines(self.table.low()), lines(self.table.high()));
        let step = STEP.max(lines((high - low) / CANDIDATES));
        let now = self.time(self.retries, self.bytes);
        let mut best = (now, self.retries, self.bytes);
        for bytes in (low..=high).step_by(step as usize) {
            for retries in 1..=self.table.reads_at_most() {
                let time = self.time(retries, bytes);
                // Of equal ones the largest R: a call that takes longer than others did is no reason to change.
                if time < best.0 || (time == best.0 && bytes == best.2 && retries > best.1) {
                    best = (time, retries, bytes);
                }
            }
        }
        let (time, retries, bytes) = best;
        let other = (retries, bytes) != (self.retries, self.bytes);
        let better = time * BETTER < now || (bytes == self.bytes && time <= now);
        if !other || !better {
            return false;
        }
        (self.retries, self.bytes) = (retries, bytes);
        self.patience = self.time_of_retries();
        self.changes += 1;
        true
    }

    /// How long the server's NIC is busy with all samples, in seconds.
    fn time(&self, retries: u32, bytes: u32) -> f64 {
        let read = self.table.read_nanos(bytes);
        let served = self.table.reads(bytes);
        let of = |sample: &Sample| {
            let failed = (f64::from(sample.process) / read) as u32;
            if failed >= retries {
                return 1.0 / self.table.writes(sample.bytes);
            }
            f64::from(failed + 1 + u32::from(sample.bytes > bytes)) / served
        };
        self.samples.iter().map(of).sum()
    }
}

/// Whole lines of at least so many bytes, as a READ takes them.
const fn lines(bytes: u32) -> u32 {
    bytes.next_multiple_of(STEP)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn tuner() -> FetchTuner {
        FetchTuner::new(Arc::new(FetchTable::rf_rpc()))
    }

    fn feed(tuner: &mut FetchTuner, process: u32, bytes: u32) {
        for _ in 0..2 * SAMPLES {
            tuner.sample(process, bytes);
        }
    }

    #[test]
    fn short_results_keep_the_start() {
        let mut tuner = tuner();
        assert_eq!((tuner.retries(), tuner.bytes(), tuner.patience()), (5, 256, 7000));
        feed(&mut tuner, 300, 64);
        assert_eq!((tuner.retries(), tuner.bytes()), (5, 256));
        assert_eq!(tuner.changes(), 0);
    }

    #[test]
    fn results_beyond_f_raise_it_as_far_as_one_read_is_better_than_two() {
        let mut tuner = tuner();
        feed(&mut tuner, 300, 500);
        assert_eq!(tuner.bytes(), 512);
        // With 1 KiB one READ of all is no better than half of the rate of READs of 256 bytes.
        feed(&mut tuner, 300, 1024);
        assert_eq!(tuner.bytes(), 256);
        // Beyond H it makes no difference that would be worth it.
        feed(&mut tuner, 300, 3000);
        assert_eq!(tuner.bytes(), 256);
        // And back.
        feed(&mut tuner, 300, 500);
        feed(&mut tuner, 300, 100);
        assert_eq!(tuner.bytes(), 256);
    }

    #[test]
    fn a_mix_is_weighed_by_the_time_that_it_takes() {
        let mut tuner = tuner();
        // Three of four fit: two READs for the fourth are better than slower ones for all.
        for index in 0..4 * SAMPLES {
            tuner.sample(300, if index % 4 == 0 { 700 } else { 64 });
        }
        assert_eq!(tuner.bytes(), 256);
    }

    #[test]
    fn r_falls_where_writing_back_is_better_than_so_many_reads() {
        let mut tuner = tuner();
        // Three READs are served in less than the time of one WRITE, and so are five.
        feed(&mut tuner, 4_000, 64);
        assert_eq!(tuner.retries(), 5);
        feed(&mut tuner, 6_000, 64);
        assert_eq!(tuner.retries(), 5);
        // Not so six, if the result takes one more.
        feed(&mut tuner, 6_000, 600);
        assert_eq!((tuner.retries(), tuner.bytes()), (4, 256));
        feed(&mut tuner, 1_000, 64);
        assert_eq!(tuner.retries(), 5);
    }

    proptest! {
        /// Within 5% of the best of all candidates, for any workload, after two rounds of samples; and always within bounds.
        #[test]
        fn the_choice_is_near_the_best(process in 0u32..20_000, bytes in 64u32..8192, other in 64u32..8192) {
            let mut tuner = tuner();
            for index in 0..2 * SAMPLES {
                tuner.sample(process, if index % 2 == 0 { bytes } else { other });
            }
            let chosen = tuner.time(tuner.retries(), tuner.bytes());
            let best = (4..=16u32).flat_map(|f| (1..=5).map(move |r| (r, 64 * f)))
                .map(|(r, f)| tuner.time(r, f)).fold(f64::MAX, f64::min);
            prop_assert!(chosen <= best * 1.05, "{chosen} against {best}");
        }

        #[test]
        fn nonsense_is_borne(samples in prop::collection::vec((any::<u32>(), any::<u32>()), 0..500)) {
            let mut tuner = tuner();
            for (process, bytes) in samples {
                tuner.sample(process, bytes);
                prop_assert!((1..=5).contains(&tuner.retries()));
                prop_assert!((256..=1024).contains(&tuner.bytes()) && tuner.bytes().is_multiple_of(64));
            }
        }
    }
}
