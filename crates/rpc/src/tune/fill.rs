//! How a sender fills buffers that the peer has READ. Plain stores have to wait for the peer's core to give each line up, unless
//! it has dropped them meanwhile; that takes 2 ns a line or 30, as the cores lie and as many other bytes went by. Stores past the
//! caches wait for nobody, but what was stored so has to be READ from memory. So who fills measures: it goes past the caches
//! where plain stores take several times as long, and has many buffers filled by turns where they take longer and that helps: not
//! where many lanes do that anyway, and more memory would be less in the caches.

use dunlin_fabric::Nanos;

/// Finds out for a lane how its large payloads are filled.
#[derive(Debug)]
pub(crate) struct FillTuner {
    streams: bool,
    /// What a line takes past the caches, in sixteenths of a nanosecond.
    streamed: u32,
    /// Fills past the caches to find that out.
    samples: u8,
    /// Plain fills in a row that took several times as long.
    slow: u8,
    /// Fills until plain stores are tried again.
    left: u32,
    /// How many these are the next time.
    patience: u32,
    /// Plain fills until they are judged, and the shortest of the last of them.
    until: usize,
    shortest: u32,
    /// The shortest before there were many buffers; none if there are few.
    before: Option<u32>,
}

/// How many buffers there had better be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Turns {
    /// As there are.
    #[default]
    AsBefore,
    Many,
    Few,
}

/// What a line takes past the caches before that was measured.
const STREAMED: u32 = 3 * 16;
/// Plain fills that are judged together: others may have had the core during some of them.
const WINDOW: usize = 8;
/// So many slow ones in a row are enough.
const SLOW: u8 = 3;
const SHORTEST_PATIENCE: u32 = 32;
const LONGEST_PATIENCE: u32 = 1024;

impl Default for FillTuner {
    fn default() -> Self {
        FillTuner {
            streams: false,
            streamed: STREAMED,
            samples: 2,
            slow: 0,
            left: 0,
            patience: SHORTEST_PATIENCE,
            until: WINDOW,
            shortest: u32::MAX,
            before: None,
        }
    }
}

impl FillTuner {
    /// Whether the next payload goes past the caches.
    pub(crate) fn begin(&mut self) -> bool {
        if self.streams {
            let streams = self.left > 0;
            self.left = self.left.saturating_sub(1);
            return streams;
        }
        self.until == 0
    }

    /// A buffer that the peer has READ was filled so.
    pub(crate) fn end(&mut self, streamed: bool, bytes: usize, took: Nanos) -> Turns {
        let line = u32::try_from(took.saturating_mul(64 * 16) / bytes.max(1) as u64).unwrap_or(u32::MAX);
        if streamed {
            // A delay by others is no property of it.
            let longest = self.streamed.saturating_add(self.streamed / 8);
            self.streamed = line.min(longest).max(self.streamed / 2).max(1);
            self.samples = self.samples.saturating_sub(1);
        } else if line / 7 * 2 > self.streamed {
            self.slow += 1;
            if self.slow < SLOW {
                return Turns::AsBefore;
            }
            self.patience =
                if self.streams { (2 * self.patience).min(LONGEST_PATIENCE) } else { SHORTEST_PATIENCE };
            (self.streams, self.slow, self.left) = (true, 0, self.patience);
            return if self.before.take().is_some() { Turns::Few } else { Turns::AsBefore };
        } else {
            (self.streams, self.slow) = (false, 0);
            self.until = self.until.saturating_sub(1);
            if self.until < WINDOW {
                self.shortest = self.shortest.min(line);
            }
        }
        if self.streams || self.until > 0 || self.samples > 0 {
            return Turns::AsBefore;
        }
        self.judge()
    }

    /// Whether many buffers may help, or have helped.
    fn judge(&mut self) -> Turns {
        let shortest = std::mem::replace(&mut self.shortest, u32::MAX);
        (self.samples, self.until) = (1, LONGEST_PATIENCE as usize);
        match self.before {
            None if shortest > self.streamed + self.streamed / 2 => {
                // Those of before go round first.
                (self.before, self.until) = (Some(shortest), 4 * WINDOW);
                Turns::Many
            }
            Some(before) if shortest > before - before / 8 => {
                self.before = None;
                Turns::Few
            }
            _ => Turns::AsBefore,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: usize = 64 * 2048;

    /// Fills so often where a line takes `plain` with few buffers and with many, or `streamed` nanoseconds; answers how many of the
    /// last hundred went past the caches, and whether there are many buffers in the end.
    fn run(tuner: &mut FillTuner, fills: usize, plain: [u64; 2], streamed: u64) -> (usize, bool) {
        let (mut many, mut late) = (tuner.before.is_some(), 0);
        for fill in 0..fills {
            let streams = tuner.begin();
            let line = if streams { streamed } else { plain[usize::from(many)] };
            match tuner.end(streams, BYTES, line * 2048) {
                Turns::AsBefore => {}
                turns => many = turns == Turns::Many,
            }
            late += usize::from(streams && fill + 100 >= fills);
        }
        (late, many)
    }

    #[test]
    fn what_is_far_slower_goes_past_the_caches() {
        let (late, many) = run(&mut FillTuner::default(), 900, [30, 20], 3);
        assert!(late >= 95 && !many, "{late} {many}");
        // Not if going past the caches is slow, too.
        let (late, many) = run(&mut FillTuner::default(), 900, [30, 30], 29);
        assert!(late <= 5 && !many, "{late} {many}");
    }

    #[test]
    fn there_are_many_buffers_where_that_helps() {
        for (plain, helps) in [([6, 2], true), ([6, 6], false), ([3, 1], false), ([6, 5], true)] {
            let (late, many) = run(&mut FillTuner::default(), 900, plain, 3);
            assert!(late <= 5 && many == helps, "{plain:?} {late} {many}");
        }
    }

    /// Cores may come to lie otherwise.
    #[test]
    fn what_was_chosen_is_tried_again() {
        let mut tuner = FillTuner::default();
        for _ in 0..3 {
            assert!(run(&mut tuner, 3000, [30, 20], 3).0 >= 90);
            assert_eq!(run(&mut tuner, 3000, [6, 2], 3), (0, true));
        }
    }

    /// As in virtual time, where filling takes none, and where it takes for ever.
    #[test]
    fn any_time_is_borne() {
        assert!(!run(&mut FillTuner::default(), 3000, [0, 0], 0).1);
        let mut tuner = FillTuner::default();
        for (fill, took) in [0, Nanos::MAX, 1, 0].into_iter().cycle().take(5000).enumerate() {
            let streams = tuner.begin();
            tuner.end(streams, fill % 3, took);
        }
    }
}
