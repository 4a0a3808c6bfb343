//! The choice, for each function of a client, whether results are fetched or written back (RF-RPC section
//! 3.2, "Discussion").
//!
//! A function starts with fetching. After two consecutive calls with R failed READs, its results are written
//! back. Once the server has reported, for enough consecutive calls, a time shorter than R READs, they are
//! fetched again. A server may take requests slowly although it serves each quickly, and then fetching fails
//! again at once. So each such return doubles the number of calls required before the next one, which bounds
//! the cost of trials.

/// Consecutive calls with R failed READs that end fetching.
const STRIKES: u8 = 2;
/// Consecutive short calls before results are fetched again: at first, and at most.
const PATIENCE: std::ops::RangeInclusive<u16> = 2..=4096;
/// Calls fetched without failure after which a return counts as successful.
const PROVEN: u16 = 256;
/// Number of functions with separate state; functions with equal remainders share one.
pub(crate) const FUNCTIONS: usize = 32;

#[derive(Clone, Copy, Debug)]
struct Function {
    replies: bool,
    strikes: u8,
    /// Consecutive short calls.
    quick: u16,
    patience: u16,
    /// Calls fetched without failure since the last return.
    steady: u16,
}

/// The modes of a client's functions.
#[derive(Clone, Debug)]
pub(crate) struct ModeSwitch {
    functions: [Function; FUNCTIONS],
    /// Mode changes: to writing back, and to fetching.
    to_reply: u64,
    to_fetch: u64,
}

impl ModeSwitch {
    pub(crate) fn new() -> Self {
        let start =
            Function { replies: false, strikes: 0, quick: 0, patience: *PATIENCE.start(), steady: PROVEN };
        ModeSwitch { functions: [start; FUNCTIONS], to_reply: 0, to_fetch: 0 }
    }

    #[inline]
    fn of(&mut self, function: u16) -> &mut Function {
        &mut self.functions[function as usize % FUNCTIONS]
    }

    /// Returns whether results of this function are written back.
    #[inline]
    pub(crate) fn replies(&self, function: u16) -> bool {
        self.functions[function as usize % FUNCTIONS].replies
    }

    /// Records that R READs have failed for a call; called once for each call. Returns whether the function
    /// changes to writing back now.
    pub(crate) fn strike(&mut self, function: u16) -> bool {
        let of = self.of(function);
        of.strikes = of.strikes.saturating_add(1);
        if of.replies || of.strikes < STRIKES {
            return false;
        }
        if of.steady < PROVEN {
            of.patience = of.patience.saturating_mul(2).min(*PATIENCE.end());
        }
        (of.replies, of.strikes, of.quick) = (true, 0, 0);
        self.to_reply += 1;
        true
    }

    /// Records a result that was fetched before R READs failed.
    #[inline]
    pub(crate) fn fetched(&mut self, function: u16) {
        let of = self.of(function);
        of.strikes = 0;
        if of.steady < PROVEN {
            of.steady += 1;
            if of.steady == PROVEN {
                of.patience = *PATIENCE.start();
            }
        }
    }

    /// Records a result that was written back; `quick` if the server took less time than R READs take.
    pub(crate) fn replied(&mut self, function: u16, quick: bool) {
        let of = self.of(function);
        if !of.replies {
            return;
        }
        of.quick = if quick { of.quick + 1 } else { 0 };
        if of.quick >= of.patience {
            *of = Function { replies: false, strikes: 0, quick: 0, steady: 0, ..*of };
            self.to_fetch += 1;
        }
    }

    /// Returns the number of changes to writing back, and to fetching.
    pub(crate) fn changes(&self) -> (u64, u64) {
        (self.to_reply, self.to_fetch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn two_calls_in_a_row_change_the_mode_and_one_does_not() {
        let mut modes = ModeSwitch::new();
        assert!(!modes.strike(3));
        modes.fetched(3);
        assert!(!modes.strike(3));
        assert!(!modes.replies(3));
        assert!(modes.strike(3));
        assert!(modes.replies(3));
        assert!(!modes.replies(4), "each function by itself");
        assert!(!modes.strike(3), "it has changed already");
        assert_eq!(modes.changes(), (1, 0));
    }

    #[test]
    fn quick_answers_bring_fetching_back() {
        let mut modes = ModeSwitch::new();
        modes.strike(0);
        modes.strike(0);
        modes.replied(0, true);
        modes.replied(0, false);
        modes.replied(0, true);
        assert!(modes.replies(0), "not twice in a row");
        modes.replied(0, true);
        assert!(!modes.replies(0));
        assert_eq!(modes.changes(), (1, 1));
    }

    #[test]
    fn who_returns_in_vain_waits_twice_as_long_each_time() {
        let mut modes = ModeSwitch::new();
        let mut waits = Vec::new();
        for _ in 0..16 {
            modes.strike(7);
            assert!(modes.strike(7));
            let mut answers = 0;
            while modes.replies(7) {
                modes.replied(7, true);
                answers += 1;
            }
            waits.push(answers);
        }
        assert_eq!(waits[..4], [2, 4, 8, 16]);
        assert_eq!(waits[15], 4096);
        // Success for a while resets the number.
        (0..PROVEN).for_each(|_| modes.fetched(7));
        modes.strike(7);
        modes.strike(7);
        modes.replied(7, true);
        modes.replied(7, true);
        assert!(!modes.replies(7));
    }

    proptest! {
        /// For any workload, a client whose fetches always fail fetches few calls: the cost of trials is
        /// bounded.
        #[test]
        fn trying_is_rare_where_it_fails(calls in 1000usize..40_000) {
            let mut modes = ModeSwitch::new();
            let mut tried = 0;
            for _ in 0..calls {
                if modes.replies(1) {
                    modes.replied(1, true);
                } else {
                    tried += 1;
                    modes.strike(1);
                }
            }
            prop_assert!(tried <= 26 + calls / 1000, "{tried} of {calls}");
        }
    }
}
