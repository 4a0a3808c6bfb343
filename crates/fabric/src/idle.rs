//! How long a busy wait of a back-end on a real machine keeps the processor to itself. Pure.

/// Busy waits in vain before the first yield: some 50 to 100 us, far more than a peer with a core of its own takes.
const BEFORE: u32 = 4096;
/// Busy waits between two yields from then on.
const BETWEEN: u32 = 256;

/// Counts busy waits that nothing ended, so that two sides that share a core do not spin through their time slices.
#[derive(Debug, Default)]
pub struct Idle(u32);

impl Idle {
    /// Something was done: the next wait is the first again.
    #[inline]
    pub fn reset(&mut self) {
        self.0 = 0;
    }

    /// One more wait; whether others should have the processor now.
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
