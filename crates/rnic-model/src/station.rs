//! A stage of the way of a message: something that serves one after the other.

/// Picoseconds: what NICs do takes a few nanoseconds, so nanoseconds would round too much away.
pub(crate) type Picos = u64;

/// Picoseconds of a nanosecond.
pub(crate) const PICOS: u64 = 1000;

/// A stage, as the time at which it is next free.
///
/// A message asks all stages that it passes in one call of the model at the time of the call, and is ready when the
/// last of them has served it; the latencies between stages are added afterwards. So a stage is never reserved for the
/// future: a message that waits long at one stage keeps nobody waiting at the next, and the time that stages need in
/// turn overlaps, as it does in a pipeline under load.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Station {
    free: Picos,
}

impl Station {
    /// Serves one message for so long; says when it is done.
    pub(crate) fn take(&mut self, now: Picos, time: Picos) -> Picos {
        self.free = self.free.max(now) + time;
        self.free
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_after_the_other_and_no_time_saved_up() {
        let mut station = Station::default();
        assert_eq!(station.take(100, 10), 110);
        assert_eq!(station.take(100, 10), 120);
        assert_eq!(station.take(500, 10), 510);
    }
}
