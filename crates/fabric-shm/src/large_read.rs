//! By which way a large READ is copied: in one string move, or in two halves by turns.
//!
//! Which of them is quicker is a matter of the processor, of where the peer's core lies, and of the size: on a Xeon two halves take
//! 47 us for 1 MiB that lies in another core's cache and a string move 56, at 64 KiB 6.3 and 5.3. So a queue pair tries both now
//! and then, on READs that are to be done anyway, and goes on with the one that was quicker.

use dunlin_fabric::copy;
use std::time::Instant;

/// From how many bytes on there is a choice: a trial's clock and a bad way for a few READs are nothing beside such copies.
const LARGE_FROM: usize = 32 << 10;
/// Sizes that are judged apart: from [`LARGE_FROM`] on, each twice as long as the one before, and all above.
const CLASSES: usize = 7;
/// Reads of a size from one trial to the next.
const ROUND: u8 = 128;
/// By which way the first ones of them go. Senders fill two buffers by turns, so each way gets either.
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
    judges: [Judge; CLASSES],
}

impl LargeReads {
    /// Copies all of `into` from `source`, as [`copy::from_peer`] does.
    ///
    /// # Safety
    /// `source` must be readable for as many bytes, in memory that is not `into`'s.
    #[inline]
    pub(crate) unsafe fn copy(&mut self, source: *const u8, into: &mut [u8]) {
        let (start, length) = (into.as_mut_ptr(), into.len());
        if length < LARGE_FROM {
            // SAFETY: by the caller's word, and `into` is exclusively borrowed.
            return unsafe { copy::from_peer(source, start, length) };
        }
        let judge = &mut self.judges[class(length)];
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

/// Of a length that is large.
fn class(length: usize) -> usize {
    ((length / LARGE_FROM).ilog2() as usize).min(CLASSES - 1)
}

/// Finds the way for one size.
#[derive(Clone, Copy, Debug, Default)]
struct Judge {
    /// READs since the last trial began.
    turn: u8,
    chosen: Way,
    /// What 64 KiB took at least in this trial by each way, ns; 0 where there was none.
    least: [u64; 2],
}

impl Judge {
    fn is_trying(&self) -> bool {
        usize::from(self.turn) < TRIAL.len()
    }

    fn way(&self) -> Way {
        TRIAL.get(usize::from(self.turn)).copied().unwrap_or(self.chosen)
    }

    /// A READ was copied by [`Judge::way`] and took so many nanoseconds, if a trial is under way. The quickest of a few is
    /// compared, since whatever else a machine does only makes them slower.
    fn read(&mut self, length: usize, took: u64) {
        if self.is_trying() {
            let took = (took.saturating_mul(1 << 16) / length as u64).max(1);
            let least = &mut self.least[self.way() as usize];
            *least = if *least == 0 { took } else { took.min(*least) };
        }
        self.turn = (self.turn + 1) % ROUND;
        if usize::from(self.turn) == TRIAL.len() {
            let [whole, halves] = std::mem::take(&mut self.least);
            // What is alike stays with the one instruction.
            self.chosen = if halves < whole - whole / 32 { Way::Halves } else { Way::Whole };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// READs `count` payloads where the ways take so many nanoseconds, with a delay of a millisecond at each of `delayed`; answers
    /// how many went in halves.
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
        // The machine has changed: after one more trial it is the other one.
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
            // SAFETY: both have that length and are apart.
            unsafe { reads.copy(source.as_ptr(), &mut into) };
            assert!(into == source, "{length} bytes");
        }
        assert_eq!(reads.judges[0].turn, 20);
    }
}
