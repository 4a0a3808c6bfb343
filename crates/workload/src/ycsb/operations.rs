//! The stream of operations that one client issues.

use super::distribution::{Exponential, HotSpot, ScrambledZipfian, SkewedLatest, Zipfian, fnv_hash};
use super::specification::{RequestDistribution, Workload};
use crate::random::Random;

/// One operation on numbered records. [`Workload::write_key`] and [`Workload::write_value`] give keys and
/// values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// GET.
    Read {
        /// The record.
        record: u64,
    },
    /// PUT of an existing record.
    Update {
        /// The record.
        record: u64,
        /// The value's version.
        version: u64,
    },
    /// PUT of a new record, version 0. Call [`OperationStream::acknowledge_inserts`] when it is complete.
    Insert {
        /// The record.
        record: u64,
    },
    /// YCSB's SCAN: a MULTIGET of `count` consecutive record numbers.
    Scan {
        /// The first record.
        first: u64,
        /// The number of records.
        count: u64,
    },
    /// GET, then PUT of the same record.
    ReadModifyWrite {
        /// The record.
        record: u64,
        /// The new value's version.
        version: u64,
    },
}

/// The position of one client among several. Each client inserts disjoint record numbers, so they need not
/// communicate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Index of this client, below `clients`.
    pub client: u64,
    /// Number of clients in the run.
    pub clients: u64,
}

impl Share {
    /// A single client.
    pub const WHOLE: Self = Self { client: 0, clients: 1 };
}

enum Chooser {
    Uniform,
    Zipfian(Box<ScrambledZipfian>),
    Latest(Box<SkewedLatest>),
    Sequential(u64),
    HotSpot(HotSpot),
    Exponential(Exponential),
}

/// An endless stream of operations, a pure function of workload, share and seed. It only names records that
/// were loaded, or that it inserted and that were acknowledged. `zipfian` and `hotspot` choose among the
/// loaded records only: YCSB's zipfian includes expected inserts, which are unknown for a run limited by
/// time.
pub struct OperationStream {
    random: Random,
    chooser: Chooser,
    /// Cumulative thresholds of read, update, insert and scan; the rest is read-modify-write.
    thresholds: [f64; 4],
    insert_start: u64,
    record_count: u64,
    share: Share,
    issued_inserts: u64,
    acknowledged_inserts: u64,
    scan_length: (u64, u64),
    scan_lengths: Option<Box<Zipfian>>,
    next_version: u64,
}

impl OperationStream {
    /// Creates the stream of one client. A client number not below `clients` is taken modulo `clients`.
    #[must_use]
    pub fn new(workload: &Workload, share: Share) -> Self {
        let clients = share.clients.max(1);
        let share = Share { client: share.client % clients, clients };
        let records = workload.record_count;
        let chooser = match workload.request_distribution {
            RequestDistribution::Uniform => Chooser::Uniform,
            RequestDistribution::Zipfian => Chooser::Zipfian(Box::new(ScrambledZipfian::new(records))),
            RequestDistribution::Latest => Chooser::Latest(Box::new(SkewedLatest::new(records))),
            // Clients start at different records, so that they do not all request the same record at the
            // same time.
            RequestDistribution::Sequential => Chooser::Sequential(
                (u128::from(records) * u128::from(share.client) / u128::from(clients)) as u64,
            ),
            RequestDistribution::HotSpot { data_share, request_share } => {
                Chooser::HotSpot(HotSpot::new(records, data_share, request_share))
            }
            RequestDistribution::Exponential { percentile, share } => {
                Chooser::Exponential(Exponential::new(percentile, records as f64 * share))
            }
        };
        let all = workload.proportions;
        let sum = all.read + all.update + all.insert + all.scan + all.read_modify_write;
        let mut bound = 0.0;
        let thresholds = [all.read, all.update, all.insert, all.scan].map(|weight| {
            bound += weight / sum;
            bound
        });
        let (shortest, longest) = workload.scan_length;
        Self {
            random: Random::new(workload.seed ^ fnv_hash(share.client)),
            chooser,
            // Without a read-modify-write weight, rounding must not leave a gap below 1.
            thresholds: if all.read_modify_write > 0.0 { thresholds } else { close(thresholds) },
            insert_start: workload.insert_start,
            record_count: records,
            share,
            issued_inserts: 0,
            acknowledged_inserts: 0,
            scan_length: workload.scan_length,
            scan_lengths: workload
                .zipfian_scan_length
                .then(|| Box::new(Zipfian::new(longest - shortest + 1))),
            next_version: 1 + share.client,
        }
    }

    /// Marks the next `count` inserts, in the order of issue, as complete: later operations may name their
    /// records. `count` is capped at the number of inserts issued.
    pub fn acknowledge_inserts(&mut self, count: u64) {
        self.acknowledged_inserts = self.acknowledged_inserts.saturating_add(count).min(self.issued_inserts);
    }

    /// Returns the next operation. Never blocks and never allocates.
    #[inline]
    pub fn next_operation(&mut self) -> Operation {
        let draw = self.random.unit();
        let [read, update, insert, scan] = self.thresholds;
        if draw < read {
            Operation::Read { record: self.choose() }
        } else if draw < update {
            Operation::Update { record: self.choose(), version: self.version() }
        } else if draw < insert {
            let record = self.own_insert(self.issued_inserts);
            self.issued_inserts += 1;
            Operation::Insert { record }
        } else if draw < scan {
            self.scan()
        } else {
            Operation::ReadModifyWrite { record: self.choose(), version: self.version() }
        }
    }

    fn scan(&mut self) -> Operation {
        let (shortest, longest) = self.scan_length;
        let count = shortest
            + match &self.scan_lengths {
                Some(lengths) => lengths.next(&mut self.random),
                None => self.random.below(longest - shortest + 1),
            };
        let first = self.choose();
        // Only loaded records are consecutive for every client. Scans are cut at their end, as in YCSB.
        let end = self.insert_start + self.record_count;
        Operation::Scan { first, count: if first < end { count.min(end - first) } else { 1 } }
    }

    fn version(&mut self) -> u64 {
        let version = self.next_version;
        self.next_version = version.wrapping_add(self.share.clients);
        version
    }

    fn own_insert(&self, index: u64) -> u64 {
        self.insert_start + self.record_count + index * self.share.clients + self.share.client
    }

    fn choose(&mut self) -> u64 {
        let there = self.record_count + self.acknowledged_inserts;
        let random = &mut self.random;
        let index = match &mut self.chooser {
            Chooser::Uniform => random.below(there),
            Chooser::Zipfian(zipfian) => zipfian.next(random),
            Chooser::Latest(latest) => latest.next(there, random),
            Chooser::Sequential(next) => {
                let index = *next % there;
                *next = index + 1;
                index
            }
            Chooser::HotSpot(hot_spot) => hot_spot.next(random),
            Chooser::Exponential(exponential) => exponential.next(there, random),
        };
        match index.checked_sub(self.record_count) {
            None => self.insert_start + index,
            Some(own) => self.own_insert(own),
        }
    }
}

/// Raises the last threshold with a nonempty range to 1.
fn close(mut thresholds: [f64; 4]) -> [f64; 4] {
    let last = thresholds[3];
    thresholds.iter_mut().filter(|bound| **bound >= last).for_each(|bound| *bound = 1.0);
    thresholds
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::ycsb::shipped;

    fn workload(text: &str) -> Workload {
        Workload::parse(text).expect("valid").0
    }

    fn named(name: &str) -> Workload {
        workload(shipped(name).expect("shipped"))
    }

    #[test]
    fn proportions_are_kept() {
        let workload = workload(
            "recordcount=1000\nreadproportion=0.4\nupdateproportion=0.3\ninsertproportion=0.1\nscanproportion=0.15\nreadmodifywriteproportion=0.05\nmaxscanlength=10",
        );
        let mut stream = OperationStream::new(&workload, Share::WHOLE);
        let mut counts = [0u32; 5];
        for _ in 0..100_000 {
            counts[match stream.next_operation() {
                Operation::Read { .. } => 0,
                Operation::Update { .. } => 1,
                Operation::Insert { .. } => 2,
                Operation::Scan { first, count } => {
                    assert!((1..=10).contains(&count) && first + count <= 1000);
                    3
                }
                Operation::ReadModifyWrite { .. } => 4,
            }] += 1;
        }
        for (count, share) in counts.iter().zip([0.4, 0.3, 0.1, 0.15, 0.05]) {
            assert!((f64::from(*count) / 1e5 - share).abs() < 0.006, "{counts:?}");
        }
    }

    #[test]
    fn an_operation_of_weight_0_never_comes() {
        let workload = named("b");
        let mut stream = OperationStream::new(&workload, Share::WHOLE);
        assert!(
            (0..200_000).all(|_| matches!(
                stream.next_operation(),
                Operation::Read { .. } | Operation::Update { .. }
            ))
        );
        assert_eq!(close([0.5, 0.95, 0.95, 0.95]), [0.5, 1.0, 1.0, 1.0]);
    }

    #[test]
    fn same_seed_same_stream_and_other_client_other_stream() {
        let workload = named("a");
        let take = |client| -> Vec<Operation> {
            let mut stream = OperationStream::new(&workload, Share { client, clients: 2 });
            (0..1000).map(|_| stream.next_operation()).collect()
        };
        assert_eq!(take(0), take(0));
        assert_ne!(take(0), take(1));
    }

    #[test]
    fn only_known_records_are_asked_for() {
        for (name, distribution) in
            [("d", ""), ("d", "requestdistribution=uniform"), ("d", "requestdistribution=exponential")]
        {
            let text = format!(
                "{}\nrecordcount=100\ninsertproportion=0.3\n{distribution}",
                shipped(name).expect("shipped")
            );
            let workload = workload(&text);
            let mut stream = OperationStream::new(&workload, Share { client: 1, clients: 3 });
            let mut known: HashSet<u64> = (0..100).collect();
            let mut asked_for_own = false;
            for _ in 0..20_000 {
                match stream.next_operation() {
                    Operation::Insert { record } => {
                        assert_eq!((record - 100) % 3, 1);
                        assert!(known.insert(record), "a record is inserted once");
                        stream.acknowledge_inserts(1);
                    }
                    Operation::Read { record } => {
                        assert!(known.contains(&record), "{record}");
                        asked_for_own |= record >= 100;
                    }
                    other => panic!("{other:?}"),
                }
            }
            assert!(asked_for_own);
        }
    }

    #[test]
    fn unacknowledged_inserts_are_not_asked_for() {
        let workload = workload(
            "recordcount=10\nreadproportion=0.5\nupdateproportion=0\ninsertproportion=0.5\nrequestdistribution=latest",
        );
        let mut stream = OperationStream::new(&workload, Share::WHOLE);
        for _ in 0..1000 {
            if let Operation::Read { record } = stream.next_operation() {
                assert!(record < 10);
            }
        }
        stream.acknowledge_inserts(u64::MAX);
        assert!(
            (0..100).any(|_| matches!(stream.next_operation(), Operation::Read { record } if record >= 10))
        );
    }

    #[test]
    fn sequential_goes_round() {
        let workload = workload(
            "recordcount=4\ninsertstart=2\ninsertcount=4\nreadproportion=1\nupdateproportion=0\nrequestdistribution=sequential",
        );
        let mut stream = OperationStream::new(&workload, Share::WHOLE);
        let records: Vec<u64> = (0..6)
            .map(|_| match stream.next_operation() {
                Operation::Read { record } => record,
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(records, [2, 3, 4, 5, 2, 3]);
    }

    #[test]
    fn versions_of_different_clients_differ() {
        let workload = workload("recordcount=4\nreadproportion=0\nupdateproportion=1");
        let mut versions = HashSet::new();
        for client in 0..3 {
            let mut stream = OperationStream::new(&workload, Share { client, clients: 3 });
            for _ in 0..100 {
                match stream.next_operation() {
                    Operation::Update { version, .. } => assert!(version > 0 && versions.insert(version)),
                    other => panic!("{other:?}"),
                }
            }
        }
    }
}
