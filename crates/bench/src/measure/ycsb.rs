//! `bench ycsb` (HatRPC section 5.4, figures 15 and 16): HatKV under YCSB's workloads A and B, half of
//! whose operations are batches. Plans from hints compete with emulations of other systems' protocols, on
//! one store.

use dunlin_fabric::WithSources;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use dunlin::thrift::{Bytes, Pending};
use dunlin_fabric_shm::ShmFabric;
use dunlin_hatkv::hatkv::{
    HatKvClient, HatKvError, HatKvGetArguments, HatKvGetOutcome, HatKvMultigetArguments,
    HatKvMultigetOutcome, HatKvMultiputArguments, HatKvMultiputOutcome, HatKvPutArguments, HatKvPutOutcome,
};

use super::atb::crowd::{self, Caller};
use super::atb::hints::{Contestant, rewritten};
use super::atb::turns::{
    Compared, Entrant, Length, Metric, Rivals, Sample, Verdict, rows, set_latency, set_server_cpu,
    set_throughput, take_turns,
};
use super::atb::{RENEWED_AFTER, Servers, Singles, Stop, all_stay, client_options, named, surroundings};
use super::peer::ServiceKind;
use super::session::{Served, Session};
use super::{Findings, MeasureError, progress_bar};
use dunlin_report::Row;
use dunlin_workload::random::Random;
use dunlin_workload::ycsb::{Operation, OperationStream, Share, Workload, shipped};

/// The systems that HatRPC compares itself with, by their names in the protocol table.
const RIVALS: [&str; 4] = ["AR-gRPC", "HERD", "Pilaf", "Remote-fetch"];
/// Records in a MULTIGET or MULTIPUT.
const BATCH: usize = 10;
/// Digits of a key. With YCSB's four-letter prefix, keys have 24 bytes.
const KEY_DIGITS: usize = 20;
/// Size of a key, bytes.
const KEY_BYTES: usize = 24;
/// Size of a value, bytes: ten fields of 100 bytes.
const VALUE_BYTES: usize = 1000;
/// Time limit per workload.
const LONGEST: Duration = Duration::from_secs(90);
/// Operations, in the order of their kind numbers.
const OPERATIONS: [&str; 4] = ["get", "put", "multiget", "multiput"];
const GET: usize = 0;
const PUT: usize = 1;
const MULTIGET: usize = 2;
const MULTIPUT: usize = 3;

/// One of the paper's workloads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum YcsbWorkload {
    /// A quarter each of GET, PUT, MULTIGET and MULTIPUT.
    A,
    /// 47.5% each of GET and MULTIGET, 2.5% each of PUT and MULTIPUT.
    B,
}

impl YcsbWorkload {
    const fn name(self) -> &'static str {
        match self {
            Self::A => "a",
            Self::B => "b",
        }
    }
}

impl FromStr for YcsbWorkload {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.to_ascii_lowercase().as_str() {
            "a" => Ok(Self::A),
            "b" => Ok(Self::B),
            _ => Err(format!("'{text}' is not one of the paper's workloads, a and b")),
        }
    }
}

/// The parameters of the measurement.
#[derive(Clone, Debug)]
pub struct YcsbOptions {
    /// The workloads.
    pub workloads: Vec<YcsbWorkload>,
    /// Number of clients, each with one operation in flight.
    pub clients: usize,
    /// Number of records in the store.
    pub records: usize,
    /// The protocols that compete with the hints. Without names, the paper's protocols.
    pub singles: Singles,
    /// Slices per contestant.
    pub rounds: usize,
    /// Length of a slice.
    pub slice: Duration,
    /// Ends the measurement early.
    pub stop: Stop,
}

/// Measures the workloads. Contestants are `function hints`, `service hints` and each protocol. Rows have
/// `workload`, `clients`, `operation` (`all`, or a single one), `protocol`, `plan`, `throughput_ops` and
/// the latency fields; for throughput and latency also the best single protocol and the ratio to it.
///
/// # Errors
/// Any failure; protocols that the fabric cannot run are reported in notes instead.
pub fn ycsb(session: &mut Session, options: &YcsbOptions) -> Result<Findings, MeasureError> {
    super::atb::check_clients(&[options.clients])?;
    if !(BATCH..=10_000_000).contains(&options.records) {
        let records = options.records;
        return Err(MeasureError::BadArgument(format!("{records} records are not {BATCH} to 10 million")));
    }
    let mut findings = Findings::default();
    let singles = rivals(&options.singles);
    let fabric = session.fabric.clone();
    let around = surroundings(&fabric, session, options.clients);
    let contestants = contestants(options, &singles, around, &mut findings.notes)?;
    let keys = Arc::new(keys(options.records)?);
    let service = ServiceKind::HatKv { map_bytes: options.records * 8192 + (64 << 20) };
    let mut servers = Servers::default();
    let mut loaded = false;
    let progress = progress_bar(options.workloads.len() * options.rounds * contestants.len());
    let mut verdict = [Verdict::default()];
    for workload in &options.workloads {
        if options.stop.load(Ordering::Relaxed) {
            break;
        }
        let text = shipped(workload.name()).unwrap_or_default();
        let mut stream = parse(text)?;
        stream.record_count = options.records as u64;
        let stream = Arc::new(stream);
        let stay = all_stay(contestants.len() * options.clients, BATCH * VALUE_BYTES, BATCH * VALUE_BYTES);
        let mut entrants = Vec::new();
        for contestant in &contestants {
            let served = servers.of(session, &contestant.name, service)?;
            if !loaded {
                load(session, &served, contestant, &keys)?;
                loaded = true;
            }
            let (keys, stream) = (Arc::clone(&keys), Arc::clone(&stream));
            let mut callers: Vec<Box<dyn Caller>> = Vec::new();
            let mut taken = 0;
            let plan = contestant.plan();
            let contesting = contestant.clone();
            let (clients, slice) = (options.clients, options.slice);
            let take = move |session: &mut Session| -> Result<Sample, MeasureError> {
                if taken % RENEWED_AFTER == 0 || callers.is_empty() {
                    session.disconnect(&served, std::mem::take(&mut callers))?;
                    for (number, client) in
                        connect(session, &served, &contesting, clients)?.into_iter().enumerate()
                    {
                        let share = Share { client: number as u64, clients: clients as u64 };
                        callers.push(Box::new(Client::new(client, &keys, &stream, share)));
                    }
                }
                taken += 1;
                let sample = crowd::slice(session, &served, &mut callers, OPERATIONS.len(), slice)?;
                if !stay {
                    session.disconnect(&served, std::mem::take(&mut callers))?;
                }
                Ok(sample)
            };
            entrants.push(Entrant::new(contestant.name.clone(), contestant.single, plan, Box::new(take)));
        }
        let length = Length { rounds: options.rounds, longest: LONGEST };
        take_turns(session, &mut entrants, length, &options.stop, &progress)
            .map_err(|error| named(error, &progress.message()))?;
        let head = Row::new().with("workload", workload.name()).with("clients", options.clients);
        findings.rows.extend(rows(
            &mut entrants,
            &head.clone().with("operation", "all"),
            &[Compared { metric: Metric::Throughput(None), prefix: "", rivals: Rivals::All }],
            &|row, samples| {
                set_throughput(row, "throughput_ops", samples, None);
                set_server_cpu(row, samples);
            },
            &mut verdict,
        ));
        for (kind, operation) in OPERATIONS.into_iter().enumerate() {
            findings.rows.extend(rows(
                &mut entrants,
                &head.clone().with("operation", operation),
                &[
                    Compared { metric: Metric::Throughput(Some(kind)), prefix: "", rivals: Rivals::All },
                    Compared { metric: Metric::Latency(kind), prefix: "latency_", rivals: Rivals::All },
                ],
                &|row, samples| {
                    set_throughput(row, "throughput_ops", samples, Some(kind));
                    set_latency(row, samples, kind);
                },
                &mut [Verdict::default(), Verdict::default()],
            ));
        }
    }
    progress.finish_and_clear();
    findings.notes.extend(verdict[0].words("operations per second, both kinds of hints"));
    Ok(findings)
}

/// Returns the competing protocols: those named, or the paper's.
fn rivals(singles: &Singles) -> Singles {
    if !singles.protocols.is_empty() {
        return singles.clone();
    }
    Singles { protocols: RIVALS.map(str::to_owned).into(), pollings: singles.pollings.clone() }
}

fn contestants(
    options: &YcsbOptions,
    singles: &Singles,
    around: super::atb::hints::Surroundings<'_>,
    notes: &mut Vec<String>,
) -> Result<Vec<Contestant>, MeasureError> {
    let service =
        |more: &str| format!("hint: perf_goal = throughput, concurrency = {}{more};", options.clients);
    let none = OPERATIONS.map(|function| (function, String::new()));
    let of_service = |more: &str| rewritten(dunlin_hatkv::IDL, &service(more), &none);
    let of_functions = rewritten(dunlin_hatkv::IDL, &service(""), &[])?;
    let mut all = vec![
        Contestant::hinted("function hints", &of_functions, around)?,
        Contestant::hinted("service hints", &of_service("")?, around)?,
    ];
    all.extend(singles.contestants(around, notes, of_service)?);
    Ok(all)
}

fn parse(text: &str) -> Result<Workload, MeasureError> {
    let parsed = Workload::parse(text).map_err(|error| MeasureError::BadArgument(error.to_string()))?;
    Ok(parsed.0)
}

/// Creates the keys of all records.
fn keys(records: usize) -> Result<Vec<Bytes>, MeasureError> {
    let workload = parse(&format!("{}\nzeropadding={KEY_DIGITS}\n", shipped("a").unwrap_or_default()))?;
    let mut key = Vec::with_capacity(KEY_BYTES);
    Ok((0..records as u64)
        .map(|record| {
            workload.write_key(record, &mut key);
            Bytes::copy_from_slice(&key)
        })
        .collect())
}

fn failed(protocol: &str, reason: impl ToString) -> MeasureError {
    MeasureError::TypedCall { protocol: protocol.to_owned(), reason: reason.to_string() }
}

fn connect(
    session: &mut Session,
    served: &Served,
    contestant: &Contestant,
    clients: usize,
) -> Result<Vec<HatKvClient<ShmFabric>>, MeasureError> {
    let options = client_options(contestant, session.allowed.count(), clients as u32);
    session.while_serving(served, |fabric, address| {
        let connect = |_| HatKvClient::connect_with(fabric, address, options.clone());
        (0..clients)
            .map(connect)
            .collect::<Result<_, _>>()
            .map_err(|source| MeasureError::ConnectTyped { protocol: contestant.name.clone(), source })
    })
}

/// Stores every record.
fn load(
    session: &mut Session,
    served: &Served,
    contestant: &Contestant,
    keys: &[Bytes],
) -> Result<(), MeasureError> {
    let Some(mut client) = connect(session, served, contestant, 1)?.pop() else { return Ok(()) };
    session.while_serving(served, |_, _| {
        for (batch, keys) in keys.chunks(BATCH).enumerate() {
            let first = batch * BATCH;
            let values: Vec<Bytes> =
                (first..first + keys.len()).map(|record| value(record as u64, 0)).collect();
            client.multiput(keys, &values).map_err(|error| failed(&contestant.name, error))?;
        }
        Ok(())
    })
}

/// Creates a value that carries its record and version at both ends, so that a wrong or torn value is
/// detected.
fn value(record: u64, version: u64) -> Bytes {
    let mut value = vec![0x5a; VALUE_BYTES];
    value[..8].copy_from_slice(&record.to_le_bytes());
    value[8..16].copy_from_slice(&version.to_le_bytes());
    value[VALUE_BYTES - 8..].copy_from_slice(&seal(record, version).to_le_bytes());
    value.into()
}

fn seal(record: u64, version: u64) -> u64 {
    record.rotate_left(32) ^ version
}

fn is_value_of(bytes: &[u8], record: u64) -> bool {
    let word = |at: usize| bytes[at..].first_chunk::<8>().map_or(0, |word| u64::from_le_bytes(*word));
    bytes.len() == VALUE_BYTES && word(0) == record && word(VALUE_BYTES - 8) == seal(record, word(8))
}

/// A client of the workload.
struct Client {
    client: HatKvClient<ShmFabric>,
    keys: Arc<Vec<Bytes>>,
    stream: OperationStream,
    random: Random,
    under_way: Option<UnderWay>,
}

impl Client {
    fn new(
        client: HatKvClient<ShmFabric>,
        keys: &Arc<Vec<Bytes>>,
        workload: &Workload,
        share: Share,
    ) -> Self {
        Self {
            client,
            keys: Arc::clone(keys),
            stream: OperationStream::new(workload, share),
            random: Random::new(share.client),
            under_way: None,
        }
    }

    /// Returns the next operation: whether it writes, its record, and its version.
    fn next(&mut self) -> (bool, u64, u64) {
        match self.stream.next_operation() {
            Operation::Update { record, version } | Operation::ReadModifyWrite { record, version } => {
                (true, record, version)
            }
            Operation::Read { record } | Operation::Insert { record } => (false, record, 0),
            Operation::Scan { first, .. } => (false, first, 0),
        }
    }

    /// Returns the records of a batch: the operation's, and those of the following operations, with the
    /// same distribution.
    fn batch(&mut self, first: u64) -> [u64; BATCH] {
        let mut records = [first; BATCH];
        records[1..].iter_mut().for_each(|record| *record = self.next().1);
        records
    }

    fn keys(&self, records: &[u64]) -> Vec<Bytes> {
        records.iter().map(|record| self.keys[*record as usize].clone()).collect()
    }
}

const WRONG: &str = "a value was missing or another record's: this is a bug";

/// An operation in flight, with the records that it reads.
enum UnderWay {
    Get(Pending<HatKvGetOutcome, HatKvError>, u64),
    Put(Pending<HatKvPutOutcome, HatKvError>),
    Multiget(Pending<HatKvMultigetOutcome, HatKvError>, [u64; BATCH]),
    Multiput(Pending<HatKvMultiputOutcome, HatKvError>),
}

impl Caller for Client {
    fn start(&mut self) -> Result<(), String> {
        let (writes, record, version) = self.next();
        let batched = self.random.below(2) == 1;
        let records = if batched { self.batch(record) } else { [record; BATCH] };
        let keys = if batched { self.keys(&records) } else { Vec::new() };
        let key = self.keys[record as usize].clone();
        let client = self.client.inner();
        let under_way = match (writes, batched) {
            (false, false) => client
                .start::<_, HatKvGetOutcome, HatKvError>(GET, &HatKvGetArguments { key: &key })
                .map_err(|error| WithSources(&error).to_string())
                .map(|call| UnderWay::Get(call, record)),
            (true, false) => client
                .start::<_, HatKvPutOutcome, HatKvError>(
                    PUT,
                    &HatKvPutArguments { key: &key, value: &value(record, version) },
                )
                .map_err(|error| WithSources(&error).to_string())
                .map(UnderWay::Put),
            (false, true) => client
                .start::<_, HatKvMultigetOutcome, HatKvError>(
                    MULTIGET,
                    &HatKvMultigetArguments { keys: &keys },
                )
                .map_err(|error| WithSources(&error).to_string())
                .map(|call| UnderWay::Multiget(call, records)),
            (true, true) => {
                let values: Vec<Bytes> = records.iter().map(|record| value(*record, version)).collect();
                let arguments = HatKvMultiputArguments { keys: &keys, values: &values };
                client
                    .start::<_, HatKvMultiputOutcome, HatKvError>(MULTIPUT, &arguments)
                    .map_err(|error| WithSources(&error).to_string())
                    .map(UnderWay::Multiput)
            }
        };
        self.under_way = Some(under_way?);
        Ok(())
    }

    fn finish(&mut self) -> Result<usize, String> {
        match self.under_way.take().ok_or("no operation is under way")? {
            UnderWay::Get(call, record) => {
                let found = self.client.wait(call).map_err(|error| WithSources(&error).to_string())?;
                is_value_of(&found, record).then_some(GET).ok_or_else(|| WRONG.to_owned())
            }
            UnderWay::Put(call) => {
                self.client.wait(call).map_err(|error| WithSources(&error).to_string())?;
                Ok(PUT)
            }
            UnderWay::Multiget(call, records) => {
                let found = self.client.wait(call).map_err(|error| WithSources(&error).to_string())?;
                let right = found.len() == BATCH
                    && found.iter().zip(records).all(|(found, record)| {
                        found.value.as_ref().is_some_and(|value| is_value_of(value, record))
                    });
                right.then_some(MULTIGET).ok_or_else(|| WRONG.to_owned())
            }
            UnderWay::Multiput(call) => {
                self.client.wait(call).map_err(|error| WithSources(&error).to_string())?;
                Ok(MULTIPUT)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_have_the_numbers_of_the_idl() {
        for (number, name) in OPERATIONS.into_iter().enumerate() {
            assert_eq!(dunlin_hatkv::hatkv::HAT_KV_SERVICE.function(name), Some(number));
        }
    }

    #[test]
    fn keys_and_values_have_the_papers_sizes() {
        let keys = keys(1000).expect("a workload");
        assert!(keys.iter().all(|key| key.len() == KEY_BYTES && key.starts_with(b"user")));
        let value = value(7, 3);
        assert_eq!(value.len(), VALUE_BYTES);
        assert!(is_value_of(&value, 7));
        assert!(!is_value_of(&value, 8));
        assert!(!is_value_of(&value[1..], 7));
        let mut torn = value.to_vec();
        torn[8] ^= 1;
        assert!(!is_value_of(&torn, 7));
    }

    #[test]
    fn the_rivals_are_protocols_and_named_ones_are_kept() {
        for name in rivals(&Singles::default()).protocols {
            assert!(dunlin_rpc::Protocol::by_name(&name).is_some(), "{name}");
        }
        let named = Singles { protocols: vec!["FaRM".to_owned()], ..Singles::default() };
        assert_eq!(rivals(&named).protocols, named.protocols);
    }
}
