//! The size and the slice of groups that nobody has set (ScaleRPC sections 2.2 and 3.2). Both follow from the device's
//! rates by connections. The server's counters adjust the slice.
//!
//! | value | the paper | here |
//! |---|---|---|
//! | size of a group | 40, "optimal [...] in our hardware" (section 3.6.4) | half of the most connections that keep the best rate: the next group warms up while one is served |
//! | slice | 100 us, "both high throughput and low latency" | 20 times what a switch costs: a fetch of each context of a group; 100 us at least |
//! | adjustment | by priorities alone | the slice also follows the time that is lost at the beginning of slices |
//!
//! Without rates by connections the paper's values hold.

use dunlin_fabric::{ConnectionRow, Nanos, Rates};
use std::time::Duration;

/// The default size and slice of the groups of a server whose clients have the lease `slice`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupDefaults {
    /// The number of clients of a group, 1 to 80.
    pub size: u16,
    /// The time for which a group is served, 100 us to 1 ms.
    pub slice: Duration,
}

/// The largest group.
pub(crate) const MAX_GROUP: u16 = 80;
/// A number of connections keeps the device's speed if its rate is at least this part of the best one.
const KEPT: f64 = 0.95;
/// A slice is this number of times the time that a switch loses, so that a twentieth is lost.
const WORTH: u32 = 20;
/// The longest slice that rates give: 1 ms, since clients of other groups wait for it.
const LONGEST: Duration = Duration::from_millis(1);

impl GroupDefaults {
    /// The paper's values (section 3.6.1): 40 clients, 100 us.
    pub const PAPER: GroupDefaults = GroupDefaults { size: 40, slice: Duration::from_micros(100) };

    /// Returns the defaults of a device with these rates, [`PAPER`](Self::PAPER) if its rates by connections are not known.
    ///
    /// The size is half of the largest number of connections whose rate is at least 0.95 of the best one, 1 to 80. A miss
    /// takes the time by which a WRITE takes longer with the most connections than at the best rate, and a switch one miss
    /// for each client of a group. The slice is 20 times that, in whole microseconds, from 100 us to 1 ms.
    pub fn of(rates: Option<&Rates>) -> Self {
        let rows = rates.map_or(&[][..], Rates::connections);
        let Some(last) = rows.last() else { return Self::PAPER };
        let best = rows.iter().fold(0.0, |best: f64, row| best.max(row.writes));
        let keeps = |row: &&ConnectionRow| row.writes >= KEPT * best;
        let kept = rows.iter().rev().find(keeps).map_or(1, |row| row.connections);
        let size = (kept / 2).clamp(1, MAX_GROUP.into()) as u16;
        let miss = if keeps(&last) { 0.0 } else { 1e9 / last.writes - 1e9 / best };
        let loss = Duration::from_nanos((miss * f64::from(size)) as u64);
        let slice = loss.saturating_mul(WORTH).clamp(Self::PAPER.slice, LONGEST);
        GroupDefaults { size, slice: Duration::from_micros(slice.as_micros() as u64) }
    }
}

/// The part of a slice in which the loss of a switch shows: the last looks at the zones of the group before, and the
/// fetches of contexts for the first answers.
pub(crate) const EARLY: Nanos = 8;
/// The most by which counts lengthen the default slice.
const MOST_TIMES: Nanos = 8;
/// Requests that have to be counted before the slice changes, and slices.
const ENOUGH_REQUESTS: u64 = 4096;
const ENOUGH_SLICES: u64 = 16;

/// The requests of a server's slices: [`GroupCounters::early`](crate::GroupCounters::early) and
/// [`later`](crate::GroupCounters::later).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SliceCounts {
    /// Slices, counted by each worker.
    pub(crate) slices: u64,
    /// Requests of the first eighth of slices.
    pub(crate) early: u64,
    /// Requests of the rest.
    pub(crate) later: u64,
}

impl SliceCounts {
    /// Returns whether there are enough counts for a choice.
    pub(crate) fn are_enough(&self) -> bool {
        self.slices >= ENOUGH_SLICES && self.early.saturating_add(self.later) >= ENOUGH_REQUESTS
    }

    /// Returns the time that is lost at the beginning of a slice of this length: the part of the first eighth in which
    /// requests are missing, compared with the rest of the slice.
    fn lost(&self, slice: Nanos) -> Nanos {
        let expected = self.later / (EARLY - 1);
        let missing = u128::from(expected.saturating_sub(self.early));
        (u128::from(slice / EARLY) * missing / u128::from(expected.max(1))) as Nanos
    }
}

/// Returns the next slice after one of `slice` nanoseconds: 20 times the time that a switch loses, from the default slice
/// to 8 times of it, and a quarter away from `slice` at most.
pub(crate) fn adjusted(default: Nanos, slice: Nanos, counts: &SliceCounts) -> Nanos {
    let wanted = counts.lost(slice).saturating_mul(WORTH.into());
    let wanted = wanted.clamp(default, default.saturating_mul(MOST_TIMES));
    let step = (slice / 4).max(1);
    wanted.clamp(slice.saturating_sub(step), slice.saturating_add(step)).max(default)
}

#[cfg(test)]
mod tests {
    use super::*;
    use dunlin_fabric::RatesSource;
    use proptest::prelude::*;

    fn of(rows: &[(u32, f64)]) -> GroupDefaults {
        let row =
            |(connections, writes): &(u32, f64)| ConnectionRow { connections: *connections, writes: *writes };
        let rates = Rates::rf_rpc().with_connections(rows.iter().map(row).collect()).unwrap();
        GroupDefaults::of(Some(&rates))
    }

    #[test]
    fn without_rates_by_connections_the_papers_values_hold() {
        assert_eq!(GroupDefaults::of(None), GroupDefaults::PAPER);
        assert_eq!(GroupDefaults::of(Some(&Rates::rf_rpc())), GroupDefaults::PAPER);
        assert_eq!(Rates::shared_memory().source(), &RatesSource::Typical);
        assert_eq!(GroupDefaults::of(Some(&Rates::shared_memory())), GroupDefaults::PAPER);
    }

    #[test]
    fn the_group_is_half_of_the_connections_that_keep_the_rate() {
        // The contexts of 64 connections fit. A miss takes 500 - 50 ns, a switch 32 of them, the slice 20 switches.
        let fits_64 = of(&[(8, 19e6), (32, 20e6), (64, 19.1e6), (128, 4e6), (256, 2e6)]);
        assert_eq!(fits_64, GroupDefaults { size: 32, slice: Duration::from_micros(288) });
        // The largest number counts, although a smaller one is below the limit.
        assert_eq!(of(&[(8, 10e6), (16, 20e6), (48, 20e6), (64, 18.9e6)]).size, 24);
        // Nothing falls: the largest group, and nothing to lose.
        assert_eq!(
            of(&[(8, 9e6), (512, 9e6)]),
            GroupDefaults { size: 80, slice: GroupDefaults::PAPER.slice }
        );
        // Everything falls at once.
        assert_eq!(of(&[(1, 9e6), (2, 1e6)]), GroupDefaults { size: 1, slice: GroupDefaults::PAPER.slice });
        // A miss of 10 us.
        assert_eq!(of(&[(64, 20e6), (128, 0.1e6)]), GroupDefaults { size: 32, slice: LONGEST });
    }

    #[test]
    fn the_slice_follows_the_lost_time() {
        let counts = |early, later| SliceCounts { slices: 16, early, later };
        // As many requests at the beginning as later: nothing is lost.
        assert_eq!(adjusted(100_000, 100_000, &counts(1_000, 7_000)), 100_000);
        assert_eq!(adjusted(100_000, 400_000, &counts(1_000, 7_000)), 300_000, "a quarter at a time");
        assert_eq!(adjusted(100_000, 110_000, &counts(1_000, 7_000)), 100_000);
        // All of the first eighth is lost: 12.5 us, of which 20 are 250 us.
        assert_eq!(adjusted(100_000, 100_000, &counts(0, 7_000)), 125_000);
        // Lost time that does not grow with the slice is balanced where it is a twentieth.
        let mut slice = 100_000;
        for _ in 0..50 {
            let (lost, rate) = (10_000, 10);
            let [early, all] = [slice / 8 - lost.min(slice / 8), slice - lost].map(|time| time * rate);
            slice = adjusted(100_000, slice, &counts(early, all - early));
        }
        assert!((195_000..=205_000).contains(&slice), "{slice}");
        // Requests that have waited for the slice come at its beginning.
        assert_eq!(adjusted(100_000, 100_000, &counts(7_000, 0)), 100_000);
        assert!(!counts(2_000, 2_000).are_enough() && counts(2_000, 2_096).are_enough());
        assert!(!SliceCounts { slices: 15, ..counts(2_000, 9_000) }.are_enough());
    }

    proptest! {
        #[test]
        fn defaults_are_legal_whatever_the_rates(
            rates in prop::collection::vec(1e-3f64..1e11, 2..12),
            first in 1u32..1000,
        ) {
            let rows: Vec<_> = rates.iter().zip(0u32..).map(|(rate, at)| (first << at.min(9), *rate)).collect();
            prop_assume!(rows.windows(2).all(|pair| pair[0].0 < pair[1].0));
            let defaults = of(&rows);
            prop_assert!((1..=80).contains(&defaults.size));
            prop_assert!((GroupDefaults::PAPER.slice..=LONGEST).contains(&defaults.slice));
        }

        #[test]
        fn slices_stay_in_bounds(default in 1u64..1_000_000, times in 1u64..8, early: u64, later: u64) {
            let slice = adjusted(default, default * times, &SliceCounts { slices: 16, early, later });
            prop_assert!((default..=8 * default).contains(&slice));
        }
    }
}
