//! A device's rates of one-sided operations: by size, which RF-RPC measures once for each kind of NIC
//! (section 3.2, figure 1), and by the number of connections (ScaleRPC figure 1(b)).
//!
//! A fabric knows its [`DeviceIdentity`] and the [`RatesBook`] that holds measurements. It measures nothing
//! and reads no file itself.

use std::fmt;
use std::sync::{Arc, OnceLock};
use thiserror::Error;

/// A device's rates for transfers of one size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RateRow {
    /// The size of a transfer, in bytes.
    pub bytes: u32,
    /// READs per second that a host can serve (in-bound).
    pub reads: f64,
    /// WRITEs per second that a host can issue (out-bound).
    pub writes: f64,
    /// The latency of one READ on an idle device, in nanoseconds.
    pub read_nanos: f64,
}

/// A device's rate of small WRITEs with this number of connections: ScaleRPC's figure 1(b).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ConnectionRow {
    /// The number of connections of the host, over which its WRITEs are spread.
    pub connections: u32,
    /// WRITEs of [`CONNECTION_BYTES`] bytes per second that the host can issue (out-bound).
    pub writes: f64,
}

/// The size of the WRITEs of a [`ConnectionRow`], in bytes: ScaleRPC's.
pub const CONNECTION_BYTES: u32 = 32;

/// The origin of rates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RatesSource {
    /// RF-RPC's cluster, from the paper.
    BuiltIn,
    /// Typical values for copies between two cores of a machine.
    Typical,
    /// Supplied by the application.
    Given,
    /// Measured on this device.
    Measured {
        /// The device, in words.
        device: String,
        /// The time of the measurement, in seconds since 1970.
        unix_time_s: u64,
    },
    /// The model of a simulated cluster.
    Modelled {
        /// The cluster's profile.
        profile: String,
    },
}

impl fmt::Display for RatesSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RatesSource::BuiltIn => f.write_str("built in (RF-RPC's figure 1)"),
            RatesSource::Typical => f.write_str("built in (typical of shared memory)"),
            RatesSource::Given => f.write_str("given by the application"),
            RatesSource::Measured { device, unix_time_s } => {
                write!(f, "measured on {} for {device}", day(*unix_time_s))
            }
            RatesSource::Modelled { profile } => write!(f, "of the model of {profile}"),
        }
    }
}

/// The reason why rows are not valid rates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum BadRates {
    /// Too few or too many rows.
    #[error("a table of rates has 2 to {MAX_ROWS} rows, not {0}")]
    Rows(usize),
    /// The sizes do not grow, or are out of range.
    #[error("row {0}: sizes have to grow from row to row, from 1 byte to 1 MiB")]
    Size(usize),
    /// A rate or duration is out of range.
    #[error("row {0}: rates and durations have to be positive numbers below 10^12")]
    Number(usize),
    /// A single row by connections, or too many.
    #[error("rates by connections have 2 to {MAX_ROWS} rows, or none, not {0}")]
    ConnectionRows(usize),
    /// The numbers of connections do not grow, or are out of range.
    #[error("row {0} by connections: connections have to grow from row to row, from 1 to {MAX_CONNECTIONS}")]
    Connections(usize),
    /// A rate by connections is out of range.
    #[error("row {0} by connections: rates have to be positive numbers below 10^12")]
    ConnectionRate(usize),
}

/// The maximum number of rows.
pub const MAX_ROWS: usize = 64;
/// The maximum number of connections of a row.
pub const MAX_CONNECTIONS: u32 = 1 << 20;

/// Rates by size, checked: 2 to [`MAX_ROWS`] rows with growing sizes and positive numbers. Rates by connections are
/// absent unless somebody has measured them.
#[derive(Clone, Debug, PartialEq)]
pub struct Rates {
    rows: Vec<RateRow>,
    connections: Vec<ConnectionRow>,
    source: RatesSource,
}

/// Returns whether a number can be a rate or a duration. NaN cannot.
fn is_possible(value: f64) -> bool {
    value > 0.0 && value < 1e12
}

impl Rates {
    /// Checks rows, which must be in order of size.
    pub fn new(rows: Vec<RateRow>, source: RatesSource) -> Result<Self, BadRates> {
        if !(2..=MAX_ROWS).contains(&rows.len()) {
            return Err(BadRates::Rows(rows.len()));
        }
        let mut before = 0;
        for (index, row) in rows.iter().enumerate() {
            if row.bytes <= before || row.bytes > 1 << 20 {
                return Err(BadRates::Size(index));
            }
            before = row.bytes;
            if ![row.reads, row.writes, row.read_nanos].into_iter().all(is_possible) {
                return Err(BadRates::Number(index));
            }
        }
        Ok(Rates { rows, connections: Vec::new(), source })
    }

    /// Adds rates by connections, in the order of their numbers; none if nobody has measured them.
    ///
    /// # Errors
    /// [`BadRates::ConnectionRows`], [`BadRates::Connections`] or [`BadRates::ConnectionRate`] for rows that are out of
    /// order or out of range.
    pub fn with_connections(mut self, connections: Vec<ConnectionRow>) -> Result<Self, BadRates> {
        if connections.len() == 1 || connections.len() > MAX_ROWS {
            return Err(BadRates::ConnectionRows(connections.len()));
        }
        let mut before = 0;
        for (index, row) in connections.iter().enumerate() {
            if row.connections <= before || row.connections > MAX_CONNECTIONS {
                return Err(BadRates::Connections(index));
            }
            before = row.connections;
            if !is_possible(row.writes) {
                return Err(BadRates::ConnectionRate(index));
            }
        }
        self.connections = connections;
        Ok(self)
    }

    /// Returns the rates of RF-RPC's cluster (ConnectX-3, 40 Gb/s): 11.26 million READs and 2.11 million
    /// WRITEs a second, flat to 256 bytes, equal beyond 2 KiB (figure 1). A READ takes 1.4 us, so five failed
    /// READs take the 7 us of section 3.2.
    pub fn rf_rpc() -> Self {
        let row = |bytes, reads, writes| RateRow { bytes, reads, writes, read_nanos: 1400.0 };
        let rows = vec![
            row(32, 11.26e6, 2.11e6),
            row(256, 11.26e6, 2.11e6),
            row(1024, 4.2e6, 2.11e6),
            row(2048, 2.1e6, 2.1e6),
            row(4096, 1.05e6, 1.05e6),
            row(8192, 0.53e6, 0.53e6),
        ];
        Rates { rows, connections: Vec::new(), source: RatesSource::BuiltIn }
    }

    /// Returns typical rates of shared memory, measured by `dunlin bench fetch-table` (`docs/results/machine-d.md`).
    /// Processors differ by a factor of two, but on all of them READs and WRITEs are symmetric, since the
    /// initiator's processor copies in both cases.
    pub fn shared_memory() -> Self {
        let row = |bytes, reads, writes, read_nanos| RateRow { bytes, reads, writes, read_nanos };
        let rows = vec![
            row(32, 6.61e6, 10.7e6, 176.0),
            row(128, 6.52e6, 9.9e6, 179.0),
            row(512, 6.04e6, 9.1e6, 191.0),
            row(1024, 5.16e6, 7.9e6, 206.0),
            row(2048, 4.42e6, 6.22e6, 230.0),
            row(4096, 3.09e6, 4.54e6, 286.0),
            row(8192, 1.8e6, 2.44e6, 434.0),
        ];
        Rates { rows, connections: Vec::new(), source: RatesSource::Typical }
    }

    /// Returns the rows, by size.
    pub fn rows(&self) -> &[RateRow] {
        &self.rows
    }

    /// Returns the rates by connections, in the order of their numbers; empty if nobody has measured them.
    pub fn connections(&self) -> &[ConnectionRow] {
        &self.connections
    }

    /// Returns the origin of the rates.
    pub fn source(&self) -> &RatesSource {
        &self.source
    }

    /// Returns a value for any size: interpolated linearly between two rows, and constant beyond the first
    /// and last.
    pub fn at(&self, bytes: u32, value: impl Fn(&RateRow) -> f64) -> f64 {
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

/// The identity of a device as far as rates depend on it. Devices with equal identities share measurements.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceIdentity {
    /// The fabric's name, as in [`Capabilities::name`](crate::Capabilities::name).
    pub fabric: String,
    /// Properties that distinguish the device, each as a name and a value.
    pub properties: Vec<(String, String)>,
}

impl DeviceIdentity {
    /// Makes the identity of a device of which only the fabric is known.
    pub fn of(fabric: &str) -> Self {
        DeviceIdentity { fabric: fabric.to_owned(), properties: Vec::new() }
    }

    /// Adds a distinguishing property.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl fmt::Display) -> Self {
        self.properties.push((name.to_owned(), value.to_string()));
        self
    }
}

impl fmt::Display for DeviceIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.fabric)?;
        for (place, (name, value)) in self.properties.iter().enumerate() {
            write!(f, "{}{name} {value}", if place == 0 { ": " } else { ", " })?;
        }
        Ok(())
    }
}

/// A store of measured rates. May read files; called from any thread.
pub trait RatesBook: fmt::Debug + Send + Sync {
    /// Returns the rates of a device, or `None` if they were never measured.
    fn rates_of(&self, device: &DeviceIdentity) -> Option<Rates>;
}

/// A fabric's rates: looked up at the first request, then kept. Clones of a fabric share one value.
#[derive(Debug, Default)]
pub struct KnownRates {
    book: OnceLock<Arc<dyn RatesBook>>,
    found: OnceLock<Option<Arc<Rates>>>,
}

impl KnownRates {
    /// Sets the source of measurements. Only the first call counts; a later one returns `false`.
    pub fn set_book(&self, book: Arc<dyn RatesBook>) -> bool {
        self.book.set(book).is_ok()
    }

    /// Returns the rates. Without a book the result is `None`, which can change once a book is set.
    pub fn get(&self, device: impl FnOnce() -> DeviceIdentity) -> Option<Arc<Rates>> {
        let book = self.book.get()?;
        self.found.get_or_init(|| book.rates_of(&device()).map(Arc::new)).clone()
    }
}

/// Formats seconds since 1970 as a UTC date such as 2026-11-22 (Howard Hinnant's `civil_from_days`).
pub fn day(unix_time_s: u64) -> String {
    let days = (unix_time_s / 86_400) as i64 + 719_468;
    let (era, day_of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    format!("{year}-{month:02}-{day:02}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    const ROW: RateRow = RateRow { bytes: 64, reads: 1e6, writes: 1e6, read_nanos: 1e3 };

    fn rates(rows: Vec<RateRow>) -> Result<Rates, BadRates> {
        Rates::new(rows, RatesSource::Given)
    }

    #[test]
    fn nonsense_is_refused_with_its_row() {
        assert_eq!(rates(vec![]), Err(BadRates::Rows(0)));
        assert_eq!(rates(vec![ROW]), Err(BadRates::Rows(1)));
        assert_eq!(rates(vec![ROW; 65]), Err(BadRates::Rows(65)));
        assert_eq!(rates(vec![ROW, ROW]), Err(BadRates::Size(1)));
        assert_eq!(rates(vec![RateRow { bytes: 0, ..ROW }, ROW]), Err(BadRates::Size(0)));
        assert_eq!(rates(vec![ROW, RateRow { bytes: (1 << 20) + 1, ..ROW }]), Err(BadRates::Size(1)));
        for bad in [0.0, -1.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e300] {
            for second in [
                RateRow { bytes: 128, reads: bad, ..ROW },
                RateRow { bytes: 128, writes: bad, ..ROW },
                RateRow { bytes: 128, read_nanos: bad, ..ROW },
            ] {
                assert_eq!(rates(vec![ROW, second]), Err(BadRates::Number(1)), "{bad}");
            }
        }
    }

    #[test]
    fn nonsense_by_connections_is_refused_with_its_row() {
        let row = |connections, writes| ConnectionRow { connections, writes };
        let with = |rows: Vec<ConnectionRow>| Rates::rf_rpc().with_connections(rows);
        let good = vec![row(8, 20e6), row(64, 19e6), row(MAX_CONNECTIONS, 2e6)];
        assert_eq!(with(good.clone()).unwrap().connections(), good);
        assert_eq!(with(Vec::new()), Ok(Rates::rf_rpc()), "nobody has measured");
        assert_eq!(with(vec![row(8, 1e6)]), Err(BadRates::ConnectionRows(1)));
        assert_eq!(with(vec![row(8, 1e6); 65]), Err(BadRates::ConnectionRows(65)));
        assert_eq!(with(vec![row(0, 1e6), row(8, 1e6)]), Err(BadRates::Connections(0)));
        assert_eq!(with(vec![row(8, 1e6), row(8, 1e6)]), Err(BadRates::Connections(1)));
        assert_eq!(with(vec![row(8, 1e6), row(MAX_CONNECTIONS + 1, 1e6)]), Err(BadRates::Connections(1)));
        for bad in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e300] {
            assert_eq!(with(vec![row(8, 1e6), row(16, bad)]), Err(BadRates::ConnectionRate(1)), "{bad}");
        }
    }

    #[test]
    fn between_rows_lie_the_lines_between_them() {
        for built_in in [Rates::rf_rpc(), Rates::shared_memory()] {
            assert_eq!(rates(built_in.rows().to_vec()).unwrap().rows(), built_in.rows());
        }
        let built_in = Rates::rf_rpc();
        let reads = |bytes| built_in.at(bytes, |row| row.reads);
        assert_eq!((reads(1), reads(1 << 20)), (11.26e6, 0.53e6));
        assert!((reads(640) - (11.26e6 + 4.2e6) / 2.0).abs() < 1.0);
    }

    #[derive(Debug, Default)]
    struct Counting(AtomicU32);

    impl RatesBook for Counting {
        fn rates_of(&self, device: &DeviceIdentity) -> Option<Rates> {
            self.0.fetch_add(1, Ordering::Relaxed);
            (device.fabric == "known").then(Rates::rf_rpc)
        }
    }

    #[test]
    fn rates_are_looked_up_once_and_when_they_are_asked_for() {
        for (fabric, there) in [("known", true), ("unknown", false)] {
            let (known, book) = (KnownRates::default(), Arc::new(Counting::default()));
            assert_eq!(known.get(|| panic!("nobody to ask")), None);
            assert!(known.set_book(Arc::clone(&book) as _));
            assert!(!known.set_book(Arc::new(Counting::default())), "the first counts");
            assert_eq!(book.0.load(Ordering::Relaxed), 0);
            for _ in 0..3 {
                assert_eq!(known.get(|| DeviceIdentity::of(fabric)).is_some(), there);
            }
            assert_eq!(book.0.load(Ordering::Relaxed), 1);
        }
    }

    #[test]
    fn words() {
        let device = DeviceIdentity::of("rdma").with("device", "mlx5_0").with("port", 1);
        assert_eq!(device.to_string(), "rdma: device mlx5_0, port 1");
        let measured = RatesSource::Measured { device: device.to_string(), unix_time_s: 1_795_305_600 };
        assert_eq!(measured.to_string(), "measured on 2026-11-22 for rdma: device mlx5_0, port 1");
        assert_eq!(day(0), "1970-01-01");
        assert_eq!(day(951_782_400), "2000-02-29");
    }
}
