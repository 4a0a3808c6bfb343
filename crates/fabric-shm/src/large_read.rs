//! The copy method for large READs: one string move, or two halves alternately.
//!
//! The faster method depends on the processor, the location of the peer's core and the size. Each queue pair
//! therefore times both from time to time, on READs that the user has posted anyway, and uses the faster one.

use dunlin_fabric::copy;
use std::time::Instant;

/// The length, in bytes, from which there is a choice: timing and a few slow copies cost little relative to
/// such READs.
const LARGE_FROM: usize = 32 << 10;
/// The number of size classes, judged separately: from [`LARGE_FROM`] on, each twice as long as the one
/// before; the last has no upper limit.
const CLASSES: usize = 7;
/// The number of READs of a size class from one trial to the next.
const ROUND: u8 = 128;
/// The methods of the first READs of a round. Senders alternate between two buffers, so each method gets
/// both.
const TRIAL: [Way; 8] = {
    use Way::{Halves as H, Whole as W};
    [W, H, H, W, W, H, H, W]
};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Way {
    #[default]
    Whole,
    Halves,
}

/// The choice for one queue pair.
#[derive(Debug, Default)]
pub(crate) struct LargeReads {
    /// By size class, from the first large READ on.
    judges: Option<Box<[Judge; CLASSES]>>,
}

impl LargeReads {
    /// Copies `length` bytes from `source` to `start`, as [`copy::from_peer`] does.
    ///
    /// # Safety
    /// As for [`copy::from_peer`].
    #[inline]
    pub(crate) unsafe fn copy(&mut self, source: *const u8, start: *mut u8, length: usize) {
        if length < LARGE_FROM {
            // SAFETY: by the caller's contract.
            return unsafe { copy::from_peer(source, start, length) };
        }
        let judge = &mut self.judges.get_or_insert_default()[class(length)];
        let began = judge.is_trying().then(Instant::now);
        match judge.way() {
            // SAFETY: as above.
            Way::Whole => unsafe { copy::from_peer(source, start, length) },
            // SAFETY: as above.
            Way::Halves => unsafe { copy::from_peer_in_halves(source, start, length) },
        }
        let took = began.map_or(0, |began| u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX));
        judge.read(length, took);
    }
}

/// Returns the size class of a large READ.
fn class(length: usize) -> usize {
    ((length / LARGE_FROM).ilog2() as usize).min(CLASSES - 1)
}

/// Chooses the method for one size class.
#[derive(Clone, Copy, Debug, Default)]
struct Judge {
    /// The number of READs since the last trial began.
    turn: u8,
    chosen: Way,
    /// The minimum time for 64 KiB by each method in this trial, in ns; 0 if not measured.
    least: [u64; 2],
}

impl Judge {
    fn is_trying(&self) -> bool {
        usize::from(self.turn) < TRIAL.len()
    }

    fn way(&self) -> Way {
        TRIAL.get(usize::from(self.turn)).copied().unwrap_or(self.chosen)
    }

    /// Records a READ that was copied by [`Judge::way`]; `took` is its time in nanoseconds during a trial.
    /// The minimum of a few is compared, since other load on the machine only makes a copy slower.
    fn read(&mut self, length: usize, took: u64) {
        if self.is_trying() {
            let took = (took.saturating_mul(1 << 16) / length as u64).max(1);
            let least = &mut self.least[self.way() as usize];
            *least = if *least == 0 { took } else { took.min(*least) };
        }
        self.turn = (self.turn + 1) % ROUND;
        if usize::from(self.turn) == TRIAL.len() {
            let [whole, halves] = std::mem::take(&mut self.least);
            // If both are about equal, the string move is used.
            self.chosen = if halves < whole - whole / 32 { Way::Halves } else { Way::Whole };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs `count` READs with the given time of each method in nanoseconds, plus a delay of one millisecond
    /// at each index in `delayed`; returns the number of READs copied in halves.
    fn run(judge: &mut Judge, count: usize, [whole, halves]: [u64; 2], delayed: &[usize]) -> usize {
        let mut in_halves = 0;
        for turn in 0..count {
            let way = judge.way();
            in_halves += usize::from(way == Way::Halves);
            let took = if way == Way::Halves { halves } else { whole };
            judge.read(1 << 20, took + if delayed.contains(&turn) { 1_000_000 } else { 0 });
        }
        in_halves
    }

    #[test]
    fn the_quicker_way_is_taken_but_for_trials() {
        let round = usize::from(ROUND);
        let mut judge = Judge::default();
        assert_eq!(run(&mut judge, round, [56_000, 47_000], &[]), round - 4);
        // The speeds have changed: after one more trial the other method is chosen.
        assert_eq!(run(&mut judge, round, [40_000, 47_000], &[]), 4);
        assert_eq!(run(&mut judge, 10 * round, [40_000, 47_000], &[]), 40);
        assert_eq!(run(&mut judge, round, [47_000, 47_000], &[]), 4, "alike: the one instruction");
        assert_eq!(run(&mut judge, round, [0, 0], &[]), 4, "a clock that stands still");
    }

    #[test]
    fn delays_by_others_do_not_decide() {
        let round = usize::from(ROUND);
        let mut judge = Judge::default();
        assert_eq!(run(&mut judge, round, [56_000, 47_000], &[1, 2, 5]), round - 4);
        assert_eq!(run(&mut judge, round, [47_000, 56_000], &[0, 3, 4]), 4);
    }

    #[test]
    fn sizes_have_their_own_judges() {
        let found: Vec<_> =
            [32, 63, 64, 128, 1024, 2048, 1 << 20].map(|kibibytes: usize| class(kibibytes << 10)).to_vec();
        assert_eq!(found, [0, 0, 1, 2, 5, 6, 6]);
    }

    #[test]
    fn every_byte_arrives_by_either_way() {
        let mut reads = LargeReads::default();
        for (turn, length) in
            [100, LARGE_FROM - 1].into_iter().chain((0..20).map(|n| LARGE_FROM + n)).enumerate()
        {
            let source: Vec<u8> = (0..length).map(|at| (at * 31 + at / 251 + turn) as u8).collect();
            let mut into = vec![0; length];
            // SAFETY: both have that length and do not overlap.
            unsafe { reads.copy(source.as_ptr(), into.as_mut_ptr(), length) };
            assert!(into == source, "{length} bytes");
        }
        assert_eq!(reads.judges.unwrap()[0].turn, 20);
    }
}
