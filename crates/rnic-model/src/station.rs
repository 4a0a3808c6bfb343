//! A stage on a message's path, which serves one message at a time.

/// Picoseconds: NIC operations take a few nanoseconds, so nanoseconds would round too coarsely.
pub(crate) type Picos = u64;

/// Picoseconds per nanosecond.
pub(crate) const PICOS: u64 = 1000;

/// A stage, represented by the time at which it is next free.
///
/// A message requests all stages on its path in one call of the model, at the time of the call, and is ready
/// when the last of them has served it; the latencies between stages are added afterwards. A stage is
/// therefore never reserved for the future: a long wait at one stage does not block the next, and the service
/// times of stages overlap as in a loaded pipeline.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Station {
    free: Picos,
    /// The time for which it has served messages.
    busy: Picos,
}

impl Station {
    /// Serves one message for `time`; returns when it is done.
    pub(crate) fn take(&mut self, now: Picos, time: Picos) -> Picos {
        self.free = self.free.max(now) + time;
        self.busy += time;
        self.free
    }

    /// Returns the time for which it has served messages.
    pub(crate) fn busy(&self) -> Picos {
        self.busy
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
        assert_eq!(station.busy(), 30);
    }
}
