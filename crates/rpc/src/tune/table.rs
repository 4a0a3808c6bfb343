//! The rates of a fabric by size: what RF-RPC measures once for each kind of NIC (section 3.2, figure 1).

use thiserror::Error;

/// What a fabric does with transfers of one size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FetchRow {
    /// Bytes of a transfer.
    pub bytes: u32,
    /// READs a second that a host can serve (in-bound).
    pub reads: f64,
    /// WRITEs a second that a host can make (out-bound).
    pub writes: f64,
    /// How long one READ takes when nothing else is under way, in nanoseconds.
    pub read_nanos: f64,
}

/// Rates of a fabric by size, and the bounds of R and F that follow from them.
///
/// `dunlin bench fetch-table` measures one.
#[derive(Clone, Debug, PartialEq)]
pub struct FetchTable {
    rows: Vec<FetchRow>,
    low: u32,
    high: u32,
    reads_at_most: u32,
}

/// Why rows are no table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum BadTable {
    /// Too few or too many.
    #[error("a table of rates has 2 to {MAX_ROWS} rows, not {0}")]
    Rows(usize),
    /// Sizes that do not grow, or are no transfer.
    #[error("row {0}: sizes have to grow from row to row, from 1 byte to 1 MiB")]
    Size(usize),
    /// A rate or duration that cannot be.
    #[error("row {0}: rates and durations have to be positive numbers below 10^12")]
    Number(usize),
}

/// The most rows of a table.
pub const MAX_ROWS: usize = 64;

/// A size still counts as flat if its rate is that near to the best (section 3.2: the range up to L).
const FLAT: f64 = 0.9;
/// A size counts as bound by bandwidth if it moves that share of the most bytes a second (the range beyond H).
const SATURATED: f64 = 0.9;
/// R is never larger, whatever the table says: a READ too many costs the client's processor.
const MOST_READS: f64 = 16.0;

impl FetchTable {
    /// A table of these rows, by size.
    pub fn new(rows: Vec<FetchRow>) -> Result<Self, BadTable> {
        if !(2..=MAX_ROWS).contains(&rows.len()) {
            return Err(BadTable::Rows(rows.len()));
        }
        let mut before = 0;
        for (index, row) in rows.iter().enumerate() {
            if row.bytes <= before || row.bytes > 1 << 20 {
                return Err(BadTable::Size(index));
            }
            before = row.bytes;
            let possible = |value: f64| value > 0.0 && value < 1e12;
            if ![row.reads, row.writes, row.read_nanos].into_iter().all(possible) {
                return Err(BadTable::Number(index));
            }
        }
        let best = rows.iter().fold(0.0, |best: f64, row| best.max(row.reads));
        let low =
            rows.iter().rev().find(|row| row.reads >= FLAT * best).map_or(rows[0].bytes, |row| row.bytes);
        let moved = |row: &FetchRow| row.reads * f64::from(row.bytes);
        let most = rows.iter().map(moved).fold(0.0, f64::max);
        let high = rows.iter().find(|row| moved(row) >= SATURATED * most).map_or(low, |row| row.bytes);
        let mut table = FetchTable { rows, low, high: high.max(low), reads_at_most: 1 };
        let ratio = table.reads(low) / table.writes(low);
        table.reads_at_most = ratio.clamp(1.0, MOST_READS) as u32;
        Ok(table)
    }

    /// The rates of RF-RPC's cluster (ConnectX-3, 40 Gb/s): 11.26 and 2.11 million a second, flat to 256 bytes, equal beyond 2 KiB
    /// (figure 1); a READ takes 1.4 us, so that five that fail take the 7 us of section 3.2. What is used if nothing was measured.
    pub fn rf_rpc() -> Self {
        let row = |bytes, reads, writes| FetchRow { bytes, reads, writes, read_nanos: 1400.0 };
        let rows = vec![
            row(32, 11.26e6, 2.11e6),
            row(256, 11.26e6, 2.11e6),
            row(1024, 4.2e6, 2.11e6),
            row(2048, 2.1e6, 2.1e6),
            row(4096, 1.05e6, 1.05e6),
            row(8192, 0.53e6, 0.53e6),
        ];
        FetchTable { rows, low: 256, high: 1024, reads_at_most: 5 }
    }

    /// The rows, by size.
    pub fn rows(&self) -> &[FetchRow] {
        &self.rows
    }

    /// L: up to here a larger READ costs nothing, in bytes.
    pub fn low(&self) -> u32 {
        self.low
    }

    /// H: from here on bandwidth is what bounds READs, in bytes.
    pub fn high(&self) -> u32 {
        self.high
    }

    /// N: so many READs are served in the time that one WRITE of the server's takes, which is how often a client may READ in vain
    /// until the server's writing back is the cheaper way.
    pub fn reads_at_most(&self) -> u32 {
        self.reads_at_most
    }

    /// READs a second of so many bytes.
    pub fn reads(&self, bytes: u32) -> f64 {
        self.at(bytes, |row| row.reads)
    }

    /// WRITEs a second of so many bytes.
    pub fn writes(&self, bytes: u32) -> f64 {
        self.at(bytes, |row| row.writes)
    }

    /// How long a READ of so many bytes takes, in nanoseconds.
    pub fn read_nanos(&self, bytes: u32) -> f64 {
        self.at(bytes, |row| row.read_nanos)
    }

    /// A value between two rows, on the line between them; beyond the ends, that of the end.
    fn at(&self, bytes: u32, value: impl Fn(&FetchRow) -> f64) -> f64 {
        let after = self.rows.partition_point(|row| row.bytes < bytes);
        match (after.checked_sub(1).and_then(|before| self.rows.get(before)), self.rows.get(after)) {
            (Some(before), Some(after)) => {
                let share = f64::from(bytes - before.bytes) / f64::from(after.bytes - before.bytes);
                value(before) + share * (value(after) - value(before))
            }
            (Some(end), None) | (None, Some(end)) => value(end),
            (None, None) => 0.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn bounds_of_the_papers_cluster_follow_from_its_curve() {
        let built_in = FetchTable::rf_rpc();
        let found = FetchTable::new(built_in.rows().to_vec()).unwrap();
        assert_eq!(found, built_in);
        // Section 3.2: N = 5, L = 256, H = 1024.
        assert_eq!((found.reads_at_most(), found.low(), found.high()), (5, 256, 1024));
        assert_eq!(found.reads(1), 11.26e6);
        assert_eq!(found.reads(1 << 20), 0.53e6);
        assert!((found.reads(640) - (11.26e6 + 4.2e6) / 2.0).abs() < 1.0);
    }

    #[test]
    fn nonsense_is_refused_with_its_row() {
        let row = FetchRow { bytes: 64, reads: 1e6, writes: 1e6, read_nanos: 1e3 };
        assert_eq!(FetchTable::new(vec![row]), Err(BadTable::Rows(1)));
        assert_eq!(FetchTable::new(vec![row, row]), Err(BadTable::Size(1)));
        assert_eq!(FetchTable::new(vec![FetchRow { bytes: 0, ..row }, row]), Err(BadTable::Size(0)));
        for bad in [0.0, -1.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e300] {
            for second in [
                FetchRow { bytes: 128, reads: bad, ..row },
                FetchRow { bytes: 128, writes: bad, ..row },
                FetchRow { bytes: 128, read_nanos: bad, ..row },
            ] {
                assert_eq!(FetchTable::new(vec![row, second]), Err(BadTable::Number(1)), "{bad}");
            }
        }
    }

    proptest! {
        #[test]
        fn bounds_are_in_order_whatever_the_rates(
            rates in prop::collection::vec((1.0f64..1e11, 1.0f64..1e11, 1.0f64..1e11), 2..12),
            at in any::<u32>(),
        ) {
            let rows = rates.iter().enumerate().map(|(index, (reads, writes, read_nanos))| FetchRow {
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
