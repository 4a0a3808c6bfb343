//! The number of empty busy waits after which a back-end on a real machine yields the processor. Pure.

/// Empty busy waits before the first yield: about 50 to 100 us, much longer than a peer on a core of its own
/// takes.
const BEFORE: u32 = 4096;
/// Empty busy waits between later yields.
const BETWEEN: u32 = 256;

/// Counts empty busy waits, so that two sides that share a core do not spin for whole time slices.
#[derive(Debug, Default)]
pub struct Idle(u32);

impl Idle {
    /// Restarts the count, after a poll that found work.
    #[inline]
    pub fn reset(&mut self) {
        self.0 = 0;
    }

    /// Counts one more empty wait; returns whether the thread should yield the processor now.
    #[inline]
    pub fn is_long(&mut self) -> bool {
        self.0 += 1;
        if self.0 < BEFORE {
            return false;
        }
        self.0 = BEFORE - BETWEEN;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_long_wait_yields_and_then_now_and_then() {
        let mut idle = Idle::default();
        let next_yield = |idle: &mut Idle| (1..=2 * BEFORE).find(|_| idle.is_long());
        assert_eq!(next_yield(&mut idle), Some(BEFORE));
        assert_eq!(next_yield(&mut idle), Some(BETWEEN));
        assert_eq!(next_yield(&mut idle), Some(BETWEEN));
        idle.reset();
        assert_eq!(next_yield(&mut idle), Some(BEFORE));
    }
}
