//! A workload, parsed from a property file.

use std::fmt;
use std::str::FromStr;

use super::distribution::{Zipfian, fnv_hash};
use super::properties::{Property, parse_properties};
use crate::random::Random;
use dunlin_floor::fill_bytes;
use dunlin_hints::nearest;

/// Largest value that a store must accept; every record must fit.
const LARGEST_VALUE: u64 = 1 << 20;

/// YCSB properties without effect here, with the reason.
const WITHOUT_EFFECT: [(&str, &str); 24] = [
    ("readallfields", "a record is one value, always read whole"),
    ("readallfieldsbyname", "a record is one value, always read whole"),
    ("writeallfields", "a record is one value, always written whole"),
    ("fieldnameprefix", "fields have no names here"),
    ("table", "a store is one table"),
    ("dataintegrity", "values are always a function of record and version"),
    ("core_workload_insertion_retry_limit", "failed inserts are counted, not repeated"),
    ("core_workload_insertion_retry_interval", "failed inserts are counted, not repeated"),
    ("db", "the store is the address on the command line"),
    ("threadcount", "clients are set on the command line"),
    ("target", "the load is closed-loop"),
    ("maxexecutiontime", "the time is set on the command line"),
    ("dotransactions", "the command says whether to load or to run"),
    ("status.interval", "progress is shown on a terminal"),
    ("exporter", "results are written with --json"),
    ("exportfile", "results are written with --json"),
    ("measurementtype", "latencies are kept in HDR histograms"),
    ("measurement.interval", "latencies are kept in HDR histograms"),
    ("histogram.buckets", "latencies are kept in HDR histograms"),
    ("hdrhistogram.percentiles", "p50, p99 and p99.9 are always given"),
    ("hdrhistogram.fileoutput", "results are written with --json"),
    ("hdrhistogram.output.path", "results are written with --json"),
    ("timeseries.granularity", "latencies are kept in HDR histograms"),
    ("measurement.trackjvm", "there is no Java here"),
];

/// Properties with an effect.
const KNOWN: [&str; 26] = [
    "workload",
    "recordcount",
    "operationcount",
    "insertstart",
    "insertcount",
    "readproportion",
    "updateproportion",
    "insertproportion",
    "scanproportion",
    "readmodifywriteproportion",
    "requestdistribution",
    "fieldcount",
    "fieldlength",
    "minfieldlength",
    "fieldlengthdistribution",
    "zeropadding",
    "insertorder",
    "keyprefix",
    "minscanlength",
    "maxscanlength",
    "scanlengthdistribution",
    "hotspotdatafraction",
    "hotspotopnfraction",
    "exponential.percentile",
    "exponential.frac",
    "seed",
];

/// The distribution of requests over the records.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RequestDistribution {
    /// All records are equally likely.
    Uniform,
    /// A few records are requested often; they are spread over the key space.
    Zipfian,
    /// The newest records are requested most often.
    Latest,
    /// Records are requested in order, cyclically.
    Sequential,
    /// A share of the records gets a share of the requests.
    HotSpot {
        /// `hotspotdatafraction`.
        data_share: f64,
        /// `hotspotopnfraction`.
        request_share: f64,
    },
    /// The frequency decreases exponentially with the age of the record.
    Exponential {
        /// `exponential.percentile`.
        percentile: f64,
        /// `exponential.frac`: the share of the records that receives this percentile of the requests.
        share: f64,
    },
}

/// The mapping from record numbers to keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InsertOrder {
    /// The key is the hash of the number.
    Hashed,
    /// The key is the number.
    Ordered,
}

/// The length of a field, in bytes.
#[derive(Clone, Debug)]
pub enum FieldLength {
    /// Constant.
    Constant(u64),
    /// Uniform from the first to the second, both included.
    Uniform(u64, u64),
    /// Zipfian from the first up: short fields are the most frequent.
    Zipfian(u64, Box<Zipfian>),
}

/// Weights of the operations. They need not sum to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Proportions {
    /// GET.
    pub read: f64,
    /// PUT of an existing record.
    pub update: f64,
    /// PUT of a new record.
    pub insert: f64,
    /// MULTIGET of consecutive record numbers.
    pub scan: f64,
    /// GET, then PUT of the same record.
    pub read_modify_write: f64,
}

/// A workload: number and format of the records, and the operations on them.
#[derive(Clone, Debug)]
pub struct Workload {
    /// Records loaded before the run.
    pub record_count: u64,
    /// Operations of the run. 0 if the file does not specify them: the time limit then ends the run.
    pub operation_count: u64,
    /// Number of the first record.
    pub insert_start: u64,
    /// Weights of the operations.
    pub proportions: Proportions,
    /// Distribution of requests over the records.
    pub request_distribution: RequestDistribution,
    /// Number of fields in a record.
    pub field_count: u64,
    /// Length of each field.
    pub field_length: FieldLength,
    /// Minimum number of digits in a key.
    pub zero_padding: usize,
    /// Mapping from record numbers to keys.
    pub insert_order: InsertOrder,
    /// Prefix of all keys.
    pub key_prefix: String,
    /// Smallest and largest number of records of a scan.
    pub scan_length: (u64, u64),
    /// Whether short scans are more frequent.
    pub zipfian_scan_length: bool,
    /// Seed of the run. An extension: YCSB's runs cannot be repeated.
    pub seed: u64,
}

/// A notice about a valid workload, for the user.
#[derive(Clone, Debug, PartialEq)]
pub enum Notice {
    /// An unknown property. It was ignored.
    Unknown {
        /// Line of the file.
        line: usize,
        /// The property.
        key: String,
        /// The known property with the most similar name.
        nearest: Option<&'static str>,
    },
    /// A YCSB property without effect here.
    WithoutEffect {
        /// Line of the file.
        line: usize,
        /// The property.
        key: &'static str,
        /// The reason.
        reason: &'static str,
    },
    /// SCANs are executed as MULTIGETs.
    ScanAsMultiget {
        /// Line of the file.
        line: usize,
    },
    /// The proportions were scaled to sum to 1.
    Scaled {
        /// Their sum.
        sum: f64,
    },
}

impl fmt::Display for Notice {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown { line, key, nearest: Some(nearest) } => {
                write!(
                    formatter,
                    "line {line}: unknown property '{key}' was not used; did you mean '{nearest}'?"
                )
            }
            Self::Unknown { line, key, nearest: None } => {
                write!(formatter, "line {line}: unknown property '{key}' was not used")
            }
            Self::WithoutEffect { line, key, reason } => {
                write!(formatter, "line {line}: '{key}' has no effect: {reason}")
            }
            Self::ScanAsMultiget { line } => write!(
                formatter,
                "line {line}: a hash store has no order, so each SCAN is run as a MULTIGET of consecutive record numbers"
            ),
            Self::Scaled { sum } => {
                write!(formatter, "the proportions sum up to {sum}, and were scaled to 1")
            }
        }
    }
}

/// The reason why a workload file cannot be used.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum WorkloadError {
    /// The file is not a valid property file.
    #[error(transparent)]
    Syntax(#[from] super::PropertyError),
    /// A property has an invalid value.
    #[error("line {line}: {key}={value}: {reason}")]
    Value {
        /// Line of the file.
        line: usize,
        /// The property.
        key: String,
        /// The value.
        value: String,
        /// The expected value.
        reason: String,
    },
    /// The properties contradict each other.
    #[error("{0}")]
    Inconsistent(String),
}

impl Workload {
    /// Parses a property file. Missing properties get YCSB's defaults.
    ///
    /// # Errors
    /// The first invalid value, with its line and the expected value.
    pub fn parse(text: &str) -> Result<(Self, Vec<Notice>), WorkloadError> {
        let reader = Reader { properties: parse_properties(text)? };
        let mut notices = reader.notices();
        let workload = reader.workload()?;
        let all = workload.proportions;
        let sum = all.read + all.update + all.insert + all.scan + all.read_modify_write;
        if sum <= 0.0 {
            return Err(WorkloadError::Inconsistent("all proportions are 0: give one of readproportion, updateproportion, insertproportion, scanproportion, readmodifywriteproportion".to_owned()));
        }
        if (sum - 1.0).abs() > 1e-6 {
            notices.push(Notice::Scaled { sum });
        }
        if all.scan > 0.0 {
            let line = reader.find("scanproportion").map_or(1, |property| property.line);
            notices.push(Notice::ScanAsMultiget { line });
        }
        Ok((workload, notices))
    }

    /// Writes the key of a record to `key`, replacing its content: prefix, then the number or its hash,
    /// zero-padded decimal.
    pub fn write_key(&self, record: u64, key: &mut Vec<u8>) {
        let mut number = match self.insert_order {
            InsertOrder::Hashed => fnv_hash(record),
            InsertOrder::Ordered => record,
        };
        let mut digits = [b'0'; 20];
        let mut start = digits.len();
        while number > 0 {
            start -= 1;
            digits[start] = b'0' + (number % 10) as u8;
            number /= 10;
        }
        key.clear();
        key.extend_from_slice(self.key_prefix.as_bytes());
        let count = (digits.len() - start).max(1);
        key.resize(key.len() + self.zero_padding.saturating_sub(count), b'0');
        key.extend_from_slice(&digits[digits.len() - count..]);
    }

    /// Writes the value of a record to `value`, replacing its content. The bytes depend only on record and
    /// version (0 when loaded).
    pub fn write_value(&self, record: u64, version: u64, value: &mut Vec<u8>) {
        let seed = fnv_hash(record).wrapping_add(version.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let length = match &self.field_length {
            FieldLength::Constant(length) => length * self.field_count,
            FieldLength::Uniform(shortest, longest) => {
                let mut random = Random::new(seed);
                (0..self.field_count).map(|_| shortest + random.below(longest - shortest + 1)).sum()
            }
            FieldLength::Zipfian(shortest, zipfian) => {
                let mut random = Random::new(seed);
                (0..self.field_count).map(|_| shortest + zipfian.next(&mut random)).sum()
            }
        };
        value.resize(length as usize, 0);
        fill_bytes(value, seed);
    }

    /// Returns the length of the longest value of [`Workload::write_value`], bytes.
    #[must_use]
    pub fn longest_value(&self) -> u64 {
        self.field_count
            * match &self.field_length {
                FieldLength::Constant(length) | FieldLength::Uniform(_, length) => *length,
                FieldLength::Zipfian(shortest, zipfian) => shortest + zipfian.items() - 1,
            }
    }
}

struct Reader {
    properties: Vec<Property>,
}

impl Reader {
    fn find(&self, key: &str) -> Option<&Property> {
        self.properties.iter().rev().find(|property| property.key == key)
    }

    fn notices(&self) -> Vec<Notice> {
        let mut notices = Vec::new();
        for Property { key, line, .. } in &self.properties {
            if KNOWN.contains(&key.as_str()) {
                continue;
            }
            notices.push(match WITHOUT_EFFECT.iter().find(|(known, _)| known == key) {
                Some((key, reason)) => Notice::WithoutEffect { line: *line, key, reason },
                None => Notice::Unknown {
                    line: *line,
                    key: key.clone(),
                    nearest: nearest(key, KNOWN.into_iter().chain(WITHOUT_EFFECT.map(|(known, _)| known))),
                },
            });
        }
        notices
    }

    fn bad(&self, key: &str, reason: impl Into<String>) -> WorkloadError {
        let (line, value) =
            self.find(key).map_or((1, String::new()), |found| (found.line, found.value.clone()));
        WorkloadError::Value { line, key: key.to_owned(), value, reason: reason.into() }
    }

    fn number<T: FromStr + PartialOrd + fmt::Display>(
        &self,
        key: &str,
        default: T,
        least: T,
        most: T,
    ) -> Result<T, WorkloadError> {
        let Some(property) = self.find(key) else { return Ok(default) };
        match property.value.parse::<T>() {
            Ok(value) if value >= least && value <= most => Ok(value),
            Ok(_) => Err(self.bad(key, format!("must be from {least} to {most}"))),
            Err(_) => Err(self.bad(key, "is not a number of this kind")),
        }
    }

    fn choice<T: Clone>(
        &self,
        key: &str,
        default: T,
        choices: &[(&'static str, T)],
    ) -> Result<T, WorkloadError> {
        let Some(property) = self.find(key) else { return Ok(default) };
        if let Some((_, value)) = choices.iter().find(|(name, _)| property.value.eq_ignore_ascii_case(name)) {
            return Ok(value.clone());
        }
        let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
        let mut reason = format!("must be one of {}", names.join(", "));
        if let Some(nearest) = nearest(&property.value, names) {
            reason += &format!("; did you mean {nearest}?");
        }
        Err(self.bad(key, reason))
    }

    fn workload(&self) -> Result<Workload, WorkloadError> {
        if let Some(class) = self.find("workload")
            && !class.value.ends_with("CoreWorkload")
        {
            return Err(self.bad("workload", "only YCSB's CoreWorkload is known"));
        }
        let most = u64::MAX >> 1;
        let insert_start = self.number("insertstart", 0, 0, most / 2)?;
        let record_count = self.number("recordcount", 0, 0, most / 2)?;
        // As in YCSB: `insertcount` records if given, otherwise all records from `insertstart` on.
        let record_count =
            self.number("insertcount", record_count.saturating_sub(insert_start), 0, most / 2)?;
        let (shortest, longest) =
            (self.number("minscanlength", 1, 1, 10_000)?, self.number("maxscanlength", 1000, 1, 10_000)?);
        if shortest > longest {
            return Err(self.bad("minscanlength", format!("is more than maxscanlength, {longest}")));
        }
        let workload = Workload {
            record_count,
            operation_count: self.number("operationcount", 0, 0, most)?,
            insert_start,
            proportions: Proportions {
                read: self.number("readproportion", 0.95, 0.0, 1.0)?,
                update: self.number("updateproportion", 0.05, 0.0, 1.0)?,
                insert: self.number("insertproportion", 0.0, 0.0, 1.0)?,
                scan: self.number("scanproportion", 0.0, 0.0, 1.0)?,
                read_modify_write: self.number("readmodifywriteproportion", 0.0, 0.0, 1.0)?,
            },
            request_distribution: self.request_distribution()?,
            field_count: self.number("fieldcount", 10, 1, LARGEST_VALUE)?,
            field_length: self.field_length()?,
            zero_padding: self.number("zeropadding", 1, 0, 200)?,
            insert_order: self.choice(
                "insertorder",
                InsertOrder::Hashed,
                &[("hashed", InsertOrder::Hashed), ("ordered", InsertOrder::Ordered)],
            )?,
            key_prefix: self
                .find("keyprefix")
                .map_or_else(|| "user".to_owned(), |property| property.value.clone()),
            scan_length: (shortest, longest),
            zipfian_scan_length: self.choice(
                "scanlengthdistribution",
                false,
                &[("uniform", false), ("zipfian", true)],
            )?,
            seed: self.number("seed", 1, 0, u64::MAX)?,
        };
        if workload.record_count == 0 {
            return Err(match self.find("recordcount") {
                Some(_) => {
                    self.bad("recordcount", "leaves no record to load; it must be more than insertstart")
                }
                None => WorkloadError::Inconsistent(
                    "recordcount is missing: say how many records there are".to_owned(),
                ),
            });
        }
        if workload.longest_value() > LARGEST_VALUE {
            return Err(WorkloadError::Inconsistent(format!(
                "{} fields make a value of up to {} bytes, and the store takes {LARGEST_VALUE}; lower fieldcount or fieldlength",
                workload.field_count,
                workload.longest_value()
            )));
        }
        Ok(workload)
    }

    fn request_distribution(&self) -> Result<RequestDistribution, WorkloadError> {
        let hot_spot = RequestDistribution::HotSpot {
            data_share: self.number("hotspotdatafraction", 0.2, 0.0, 1.0)?,
            request_share: self.number("hotspotopnfraction", 0.8, 0.0, 1.0)?,
        };
        let exponential = RequestDistribution::Exponential {
            percentile: self.number("exponential.percentile", 95.0, 0.001, 99.999)?,
            share: self.number("exponential.frac", 0.857_142_857_1, 1e-9, 1.0)?,
        };
        self.choice(
            "requestdistribution",
            RequestDistribution::Uniform,
            &[
                ("uniform", RequestDistribution::Uniform),
                ("zipfian", RequestDistribution::Zipfian),
                ("latest", RequestDistribution::Latest),
                ("sequential", RequestDistribution::Sequential),
                ("hotspot", hot_spot),
                ("exponential", exponential),
            ],
        )
    }

    fn field_length(&self) -> Result<FieldLength, WorkloadError> {
        let longest: u64 = self.number("fieldlength", 100, 0, LARGEST_VALUE)?;
        let shortest: u64 = self.number("minfieldlength", 1, 0, LARGEST_VALUE)?;
        let kind =
            self.choice("fieldlengthdistribution", 0, &[("constant", 0), ("uniform", 1), ("zipfian", 2)])?;
        if kind != 0 && shortest > longest {
            return Err(self.bad("minfieldlength", format!("is more than fieldlength, {longest}")));
        }
        Ok(match kind {
            0 => FieldLength::Constant(longest),
            1 => FieldLength::Uniform(shortest, longest),
            _ => FieldLength::Zipfian(shortest, Box::new(Zipfian::new(longest - shortest + 1))),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> (Workload, Vec<Notice>) {
        Workload::parse(text).expect("valid")
    }

    #[test]
    fn defaults_are_ycsbs() {
        let (workload, notices) = parse("recordcount=1000");
        assert!(notices.is_empty());
        assert_eq!(workload.proportions.read, 0.95);
        assert_eq!(workload.proportions.update, 0.05);
        assert_eq!(workload.request_distribution, RequestDistribution::Uniform);
        assert_eq!(workload.longest_value(), 1000);
        assert_eq!(workload.scan_length, (1, 1000));
        let mut key = Vec::new();
        workload.write_key(5, &mut key);
        assert_eq!(key, format!("user{}", fnv_hash(5)).into_bytes());
    }

    #[test]
    fn keys_are_padded() {
        let (workload, _) = parse("recordcount=9\ninsertorder=ordered\nzeropadding=6\nkeyprefix=k");
        let mut key = Vec::new();
        for (record, expected) in [(0, "k000000"), (42, "k000042"), (1_234_567, "k1234567")] {
            workload.write_key(record, &mut key);
            assert_eq!(String::from_utf8_lossy(&key), expected);
        }
        let (plain, _) = parse("recordcount=9\ninsertorder=ordered");
        plain.write_key(0, &mut key);
        assert_eq!(key, b"user0");
        plain.write_key(u64::MAX, &mut key);
        assert_eq!(key, format!("user{}", u64::MAX).into_bytes());
    }

    #[test]
    fn values_depend_on_record_and_version() {
        let (workload, _) = parse("recordcount=9\nfieldcount=2\nfieldlength=20");
        let value = |record, version| {
            let mut value = Vec::new();
            workload.write_value(record, version, &mut value);
            value
        };
        assert_eq!(value(1, 0).len(), 40);
        assert_eq!(value(1, 0), value(1, 0));
        assert_ne!(value(1, 0), value(1, 1));
        assert_ne!(value(1, 0), value(2, 0));
    }

    #[test]
    fn field_lengths_vary_within_bounds() {
        for kind in ["uniform", "zipfian"] {
            let (workload, _) = parse(&format!(
                "recordcount=9\nfieldcount=1\nfieldlength=20\nminfieldlength=5\nfieldlengthdistribution={kind}"
            ));
            let mut lengths = std::collections::BTreeSet::new();
            for record in 0..2000 {
                let mut value = Vec::new();
                workload.write_value(record, 0, &mut value);
                lengths.insert(value.len());
            }
            assert_eq!((lengths.first(), lengths.last(), lengths.len()), (Some(&5), Some(&20), 16), "{kind}");
        }
    }

    #[test]
    fn notices_name_line_and_nearest() {
        let (_, notices) =
            parse("recordcount=9\nreadpropotion=1\ncolour=red\nthreadcount=4\nscanproportion=0.05");
        assert_eq!(
            notices[0],
            Notice::Unknown { line: 2, key: "readpropotion".into(), nearest: Some("readproportion") }
        );
        assert_eq!(notices[1], Notice::Unknown { line: 3, key: "colour".into(), nearest: None });
        assert!(matches!(notices[2], Notice::WithoutEffect { line: 4, key: "threadcount", .. }));
        assert!(matches!(notices[3], Notice::Scaled { .. }));
        assert_eq!(notices[4], Notice::ScanAsMultiget { line: 5 });
        assert!(notices[0].to_string().contains("did you mean 'readproportion'"));
    }

    #[test]
    fn bad_values_name_line_and_remedy() {
        let cases = [
            ("recordcount=many", 1, "number"),
            ("recordcount=-1", 1, "number"),
            ("recordcount=9\nreadproportion=1.5", 2, "from 0 to 1"),
            ("recordcount=9\nreadproportion=NaN", 2, "from 0 to 1"),
            ("recordcount=9\n\nrequestdistribution=zipfan", 3, "did you mean zipfian?"),
            ("recordcount=9\nworkload=site.ycsb.workloads.TimeSeriesWorkload", 2, "CoreWorkload"),
            ("recordcount=9\nmaxscanlength=5\nminscanlength=6", 3, "maxscanlength"),
            ("recordcount=9\nfieldlengthdistribution=histogram", 2, "constant, uniform, zipfian"),
            ("recordcount=0", 1, "no record"),
            ("recordcount=9\nrecordcount=x", 2, "number"),
        ];
        for (text, wanted, reason) in cases {
            match Workload::parse(text).expect_err(text) {
                WorkloadError::Value { line, reason: found, .. } => {
                    assert_eq!(line, wanted, "{text}");
                    assert!(found.contains(reason), "{text}: {found}");
                }
                other => panic!("{text}: {other}"),
            }
        }
        for text in [
            "readproportion=1",
            "recordcount=9\nreadproportion=0\nupdateproportion=0",
            "recordcount=9\nfieldcount=1000000",
        ] {
            assert!(matches!(Workload::parse(text), Err(WorkloadError::Inconsistent(_))), "{text}");
        }
    }

    proptest::proptest! {
        #[test]
        fn what_parses_can_be_run(
            lines in proptest::collection::vec(
                (0..KNOWN.len(), "[0-9]{1,19}|0\\.[0-9]{1,5}|1|uniform|zipfian|latest|sequential|hotspot|exponential|ordered"),
                0..12,
            ),
        ) {
            let mut text = String::from("recordcount=1000\n");
            for (key, value) in lines {
                text += &format!("{}={value}\n", KNOWN[key]);
            }
            if let Ok((workload, _)) = Workload::parse(&text) {
                let mut stream = crate::ycsb::OperationStream::new(&workload, crate::ycsb::Share { client: 1, clients: 2 });
                for _ in 0..50 {
                    stream.next_operation();
                    stream.acknowledge_inserts(1);
                }
                let (mut key, mut value) = (Vec::new(), Vec::new());
                workload.write_key(7, &mut key);
                workload.write_value(7, 1, &mut value);
                proptest::prop_assert!(value.len() as u64 <= workload.longest_value());
            }
        }
    }

    #[test]
    fn ycsbs_own_spelling_is_accepted() {
        let (workload, notices) = parse(
            "# Yahoo! Cloud System Benchmark\nrecordcount=1000\noperationcount=1000\nworkload=site.ycsb.workloads.CoreWorkload\n\nreadallfields=true\n\nreadproportion=0.5\nupdateproportion=0.5\nscanproportion=0\ninsertproportion=0\n\nrequestdistribution=zipfian\n",
        );
        assert_eq!(workload.operation_count, 1000);
        assert_eq!(workload.request_distribution, RequestDistribution::Zipfian);
        assert!(matches!(notices[..], [Notice::WithoutEffect { key: "readallfields", .. }]));
    }
}
