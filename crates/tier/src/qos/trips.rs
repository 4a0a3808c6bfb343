//! The round trips of operations, and whether they get longer.

/// Round trips have got longer if the recent ones take this many times the shortest ones. LITE's sources compare with a
/// fixed time of 32 us, ten times an operation of 4 KiB; a factor fits every network.
pub const RISEN: u64 = 2;
/// The time for which the shortest round trip is remembered at least, in nanoseconds: networks change seldom, and a
/// node that is busy for seconds does not learn the shortest one again.
pub const WINDOW: u64 = 10_000_000_000;
/// Recent round trips are an average in which the last one counts 1/8, as in TCP (RFC 6298).
const SMOOTHING: u64 = 8;

/// Round trips relative to the cost of their operations, so that long and short operations compare.
#[derive(Clone, Copy, Debug, Default)]
pub struct RoundTrips {
    /// Picoseconds for a byte of the cost.
    recent: u64,
    /// The shortest of the present and of the last window; 0 for none.
    shortest: [u64; 2],
    since: u64,
}

impl RoundTrips {
    /// Notes that an operation of this [`cost`](super::cost) took `time` nanoseconds, at the time `now`.
    pub fn note(&mut self, now: u64, cost: u64, time: u64) {
        let price = self.note_shortest(now, cost, time);
        self.recent = match self.recent {
            0 => price,
            recent => (recent - recent / SMOOTHING).saturating_add(price / SMOOTHING),
        };
    }

    /// As [`note`](RoundTrips::note), for an operation that is not one of those that are watched: it counts if it is
    /// the shortest.
    pub fn note_shortest(&mut self, now: u64, cost: u64, time: u64) -> u64 {
        let price = (u128::from(time) * 1000 / u128::from(cost.max(1))).max(1);
        let price = u64::try_from(price).unwrap_or(u64::MAX);
        let idle = now.saturating_sub(self.since);
        if idle >= WINDOW {
            self.shortest = if idle >= 2 * WINDOW { [0, 0] } else { [0, self.shortest[0]] };
            self.since = now;
        }
        if self.shortest[0] == 0 || price < self.shortest[0] {
            self.shortest[0] = price;
        }
        price
    }

    /// Returns whether recent round trips are longer than usual.
    pub fn have_risen(&self) -> bool {
        let shortest = self.shortest.into_iter().filter(|price| *price > 0).min();
        shortest.is_some_and(|shortest| self.recent > shortest.saturating_mul(RISEN))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longer_round_trips_are_noticed_and_become_usual() {
        let mut trips = RoundTrips::default();
        assert!(!trips.have_risen());
        (0..10).for_each(|at| trips.note(at, 8192, 4000));
        // Twice the cost in twice the time is no rise.
        (0..100).for_each(|at| trips.note(at, 16_384, 8000));
        assert!(!trips.have_risen());
        trips.note(100, 8192, 12_000);
        assert!(!trips.have_risen());
        (0..40).for_each(|at| trips.note(100 + at, 8192, 12_000));
        assert!(trips.have_risen());
        // One operation that runs alone makes the difference, too.
        let mut other = RoundTrips::default();
        (0..10).for_each(|at| other.note(at, 8192, 12_000));
        assert!(!other.have_risen());
        other.note_shortest(10, 8192, 4000);
        assert!(other.have_risen());
        for at in 0..30 {
            trips.note(WINDOW * at / 10, 8192, 12_000);
        }
        assert!(!trips.have_risen());
    }
}
