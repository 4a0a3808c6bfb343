//! When a client asks for a further queue pair.

use dunlin_fabric::Nanos;

/// The time after which a client that was granted no further queue pair asks again: after the first refusal, and at most.
/// The paper gives none. A refused attempt costs a thread a round trip on the control connection.
const ASK_AGAIN: (Nanos, Nanos) = (100_000_000, 10_000_000_000);

/// The attempts to open a further queue pair, one at a time.
#[derive(Debug)]
pub(crate) struct Growth {
    is_opening: bool,
    /// No other queue pair is asked for until then.
    not_before: Nanos,
    /// The time from a refusal to the next question.
    patience: Nanos,
}

impl Growth {
    pub(crate) const fn new() -> Self {
        Growth { is_opening: false, not_before: 0, patience: ASK_AGAIN.0 }
    }

    /// Returns whether an attempt may begin: `wanted` queue pairs are more than the `active` ones, no attempt is under way,
    /// and the last refusal was long enough ago.
    pub(crate) fn is_due(&self, active: usize, wanted: u16, now: Nanos) -> bool {
        active < usize::from(wanted) && self.is_free(now)
    }

    const fn is_free(&self, now: Nanos) -> bool {
        !self.is_opening && now >= self.not_before
    }

    /// Begins an attempt.
    pub(crate) const fn begin(&mut self) {
        self.is_opening = true;
    }

    /// Ends an attempt with a new queue pair.
    pub(crate) const fn granted(&mut self) {
        (self.is_opening, self.patience) = (false, ASK_AGAIN.0);
    }

    /// Ends an attempt without one. Each refusal in a row doubles the time to the next attempt.
    pub(crate) fn refused(&mut self, now: Nanos) {
        self.is_opening = false;
        self.not_before = now.saturating_add(self.patience);
        self.patience = (2 * self.patience).min(ASK_AGAIN.1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_double_the_time_until_a_queue_pair_is_granted() {
        let mut growth = Growth::new();
        assert!(growth.is_free(0));
        growth.begin();
        assert!(!growth.is_free(Nanos::MAX));
        for (refused, next) in [(0, ASK_AGAIN.0), (1_000_000_000, 1_000_000_000 + 2 * ASK_AGAIN.0)] {
            growth.refused(refused);
            assert!(!growth.is_free(next - 1) && growth.is_free(next));
        }
        (0..20).for_each(|_| growth.refused(0));
        assert!(!growth.is_free(ASK_AGAIN.1 - 1) && growth.is_free(ASK_AGAIN.1));
        growth.granted();
        growth.refused(0);
        assert!(!growth.is_free(ASK_AGAIN.0 - 1) && growth.is_free(ASK_AGAIN.0));
    }
}
