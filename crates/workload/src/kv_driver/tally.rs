//! The results of a driver's run.

use dunlin_report::statistics::Latency;

/// The operations of YCSB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OperationKind {
    /// GET.
    Read,
    /// PUT of an existing record.
    Update,
    /// PUT of a new record.
    Insert,
    /// MULTIGETs of consecutive records.
    Scan,
    /// GET, then PUT.
    ReadModifyWrite,
}

impl OperationKind {
    /// All kinds.
    pub const ALL: [Self; 5] = [Self::Read, Self::Update, Self::Insert, Self::Scan, Self::ReadModifyWrite];

    /// Returns the name used in reports and in YCSB's property names.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Update => "update",
            Self::Insert => "insert",
            Self::Scan => "scan",
            Self::ReadModifyWrite => "readmodifywrite",
        }
    }
}

/// Completed operations by kind, and the elapsed time.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    latencies: [Latency; 5],
    /// GETs that found no value.
    pub not_found: u64,
    /// Elapsed time, nanoseconds. For merged tallies of concurrent drivers, the longest.
    pub elapsed_ns: f64,
}

impl Tally {
    /// Counts one operation and its latency, ns.
    #[inline]
    pub fn record(&mut self, kind: OperationKind, latency_ns: f64) {
        self.latencies[kind as usize].record_ns(latency_ns);
    }

    /// Returns the latencies of one kind.
    #[must_use]
    pub fn latency(&self, kind: OperationKind) -> &Latency {
        &self.latencies[kind as usize]
    }

    /// Returns the latencies of one kind for modification: for results from another process.
    pub fn latency_mut(&mut self, kind: OperationKind) -> &mut Latency {
        &mut self.latencies[kind as usize]
    }

    /// Returns the latencies of all operations together.
    #[must_use]
    pub fn all(&self) -> Latency {
        let mut all = Latency::new();
        self.latencies.iter().for_each(|latency| all.merge(latency));
        all
    }

    /// Returns the number of completed operations.
    #[must_use]
    pub fn operations(&self) -> u64 {
        self.latencies.iter().map(Latency::samples).sum()
    }

    /// Returns the operations per second; 0 before any time has passed.
    #[must_use]
    pub fn throughput_ops(&self) -> f64 {
        if self.elapsed_ns > 0.0 { self.operations() as f64 * 1e9 / self.elapsed_ns } else { 0.0 }
    }

    /// Adds the tally of a driver that ran concurrently.
    pub fn merge(&mut self, other: &Self) {
        self.latencies.iter_mut().zip(&other.latencies).for_each(|(mine, theirs)| mine.merge(theirs));
        self.not_found += other.not_found;
        self.elapsed_ns = self.elapsed_ns.max(other.elapsed_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn side_by_side_adds_operations_but_not_time() {
        let (mut one, mut two) = (Tally::default(), Tally::default());
        one.record(OperationKind::Read, 100.0);
        one.elapsed_ns = 5e8;
        two.record(OperationKind::Read, 300.0);
        two.record(OperationKind::Insert, 900.0);
        two.elapsed_ns = 1e9;
        two.not_found = 1;
        one.merge(&two);
        assert_eq!((one.operations(), one.not_found, one.throughput_ops()), (3, 1, 3.0));
        assert_eq!(one.latency(OperationKind::Insert).samples(), 1);
        assert_eq!(one.all().max_ns(), 900.0);
        assert_eq!(Tally::default().throughput_ops(), 0.0);
    }
}
