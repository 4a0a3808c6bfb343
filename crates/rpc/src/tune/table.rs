//! The rates of a fabric by size, and the bounds N, L and H of R and F that follow from them (RF-RPC section
//! 3.2, figure 1).

use dunlin_fabric::{BadRates, Fabric, RateRow, Rates, RatesSource};
use std::sync::Arc;

/// Rates of a fabric by size, with the bounds of R and F that follow from them.
///
/// `dunlin bench fetch-table` measures such a table.
#[derive(Clone, Debug, PartialEq)]
pub struct FetchTable {
    rates: Arc<Rates>,
    low: u32,
    high: u32,
    reads_at_most: u32,
}

/// A size is in the flat range if its rate is at least this part of the best rate (section 3.2: the range up
/// to L).
const FLAT: f64 = 0.9;
/// A size is bound by bandwidth if it moves at least this part of the most bytes a second (the range beyond
/// H).
const SATURATED: f64 = 0.9;
/// Fetching must be better by more than this factor to be worth the client's time (section 3.2: "within
/// 10%").
const WORTH: f64 = 1.1;
/// The largest R for any table: failed READs cost the client's processor time.
const MOST_READS: f64 = 16.0;

impl FetchTable {
    /// Creates a table from rows in the order of sizes. Fails if the rows are not valid [`Rates`].
    pub fn new(rows: Vec<RateRow>) -> Result<Self, BadRates> {
        Ok(Self::of(Arc::new(Rates::new(rows, RatesSource::Given)?)))
    }

    /// Creates the table of these rates.
    pub fn of(rates: Arc<Rates>) -> Self {
        let rows = rates.rows();
        let best = rows.iter().fold(0.0, |best: f64, row| best.max(row.reads));
        let low =
            rows.iter().rev().find(|row| row.reads >= FLAT * best).map_or(rows[0].bytes, |row| row.bytes);
        let moved = |row: &RateRow| row.reads * f64::from(row.bytes);
        let most = rows.iter().map(moved).fold(0.0, f64::max);
        let high = rows.iter().find(|row| moved(row) >= SATURATED * most).map_or(low, |row| row.bytes);
        let mut table = FetchTable { rates, low, high: high.max(low), reads_at_most: 1 };
        let ratio = table.reads(low) / table.writes(low);
        table.reads_at_most = (ratio / WORTH).ceil().clamp(1.0, MOST_READS) as u32;
        table
    }

    /// Returns the table of RF-RPC's cluster ([`Rates::rf_rpc`]), the default if none was given or measured.
    pub fn rf_rpc() -> Self {
        Self::of(Arc::new(Rates::rf_rpc()))
    }

    /// Returns the table for a client: the given one, else that of the fabric's device, else the built-in
    /// one.
    pub(crate) fn chosen<F: Fabric>(given: Option<&Arc<FetchTable>>, fabric: &F) -> Arc<FetchTable> {
        let known = || fabric.rates().map_or_else(FetchTable::rf_rpc, FetchTable::of);
        given.cloned().unwrap_or_else(|| Arc::new(known()))
    }

    /// Returns the rows, in the order of sizes.
    pub fn rows(&self) -> &[RateRow] {
        self.rates.rows()
    }

    /// Returns the rates.
    pub fn rates(&self) -> &Arc<Rates> {
        &self.rates
    }

    /// Returns the source of the rates.
    pub fn source(&self) -> &RatesSource {
        self.rates.source()
    }

    /// Returns L in bytes: up to this size a larger READ costs nothing.
    pub fn low(&self) -> u32 {
        self.low
    }

    /// Returns H in bytes: from this size on bandwidth bounds READs.
    pub fn high(&self) -> u32 {
        self.high
    }

    /// Returns N: with this many READs for a result, fetching is at most a tenth better than the server's
    /// WRITEs. After this many failed READs writing back is the better choice.
    pub fn reads_at_most(&self) -> u32 {
        self.reads_at_most
    }

    /// Returns whether fetching never pays: for no size the fabric does more READs than WRITEs a second. This
    /// is true of shared memory, where both are copies by a processor.
    pub fn rules_out_fetching(&self) -> bool {
        self.rates.rows().iter().all(|row| row.reads <= row.writes)
    }

    /// Returns the READs of `bytes` bytes a second.
    pub fn reads(&self, bytes: u32) -> f64 {
        self.rates.at(bytes, |row| row.reads)
    }

    /// Returns the WRITEs of `bytes` bytes a second.
    pub fn writes(&self, bytes: u32) -> f64 {
        self.rates.at(bytes, |row| row.writes)
    }

    /// Returns the time of a READ of `bytes` bytes, in nanoseconds.
    pub fn read_nanos(&self, bytes: u32) -> f64 {
        self.rates.at(bytes, |row| row.read_nanos)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn bounds_of_the_papers_cluster_follow_from_its_curve() {
        let built_in = FetchTable::rf_rpc();
        // Section 3.2: N = 5, L = 256, H = 1024.
        assert_eq!((built_in.reads_at_most(), built_in.low(), built_in.high()), (5, 256, 1024));
        assert_eq!(built_in.source(), &RatesSource::BuiltIn);
        let given = FetchTable::new(built_in.rows().to_vec()).unwrap();
        assert_eq!((given.reads_at_most(), given.low(), given.high()), (5, 256, 1024));
        assert_eq!(given.source(), &RatesSource::Given);
        assert_eq!(FetchTable::new(Vec::new()), Err(BadRates::Rows(0)));
    }

    #[test]
    fn fetching_is_ruled_out_where_no_read_is_cheaper() {
        let row = |bytes, reads, writes| RateRow { bytes, reads, writes, read_nanos: 200.0 };
        let rules_out = |rows: &[RateRow]| FetchTable::new(rows.to_vec()).unwrap().rules_out_fetching();
        assert!(FetchTable::of(Arc::new(Rates::shared_memory())).rules_out_fetching());
        assert!(!FetchTable::rf_rpc().rules_out_fetching());
        assert!(rules_out(&[row(64, 6e6, 10e6), row(1024, 5e6, 5e6)]));
        assert!(!rules_out(&[row(64, 6e6, 10e6), row(1024, 5e6, 4.9e6)]));
    }

    #[test]
    fn bounds_are_those_of_the_rates_and_not_of_the_paper() {
        let row = |bytes, reads, writes| RateRow { bytes, reads, writes, read_nanos: 900.0 };
        let table = FetchTable::new(vec![
            row(64, 30e6, 10e6),
            row(512, 29e6, 10e6),
            row(1024, 20e6, 10e6),
            row(4096, 6e6, 6e6),
        ])
        .unwrap();
        assert_eq!((table.reads_at_most(), table.low(), table.high()), (3, 512, 4096));
    }

    proptest! {
        #[test]
        fn bounds_are_in_order_whatever_the_rates(
            rates in prop::collection::vec((1.0f64..1e11, 1.0f64..1e11, 1.0f64..1e11), 2..12),
            at in any::<u32>(),
        ) {
            let rows = rates.iter().enumerate().map(|(index, (reads, writes, read_nanos))| RateRow {
                bytes: 32 << index, reads: *reads, writes: *writes, read_nanos: *read_nanos,
            });
            let table = FetchTable::new(rows.collect()).unwrap();
            prop_assert!(table.low() <= table.high());
            prop_assert!((1..=16).contains(&table.reads_at_most()));
            let (least, most) = rates.iter().fold((f64::MAX, 0.0f64), |(l, m), r| (l.min(r.0), m.max(r.0)));
            let read = table.reads(at);
            prop_assert!(read >= least * 0.999_999 && read <= most * 1.000_001);
        }
    }
}
