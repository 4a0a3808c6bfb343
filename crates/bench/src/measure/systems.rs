//! The systems that RF-RPC compares, on one machine. Each makes one GET at a time of the same records: by
//! RPC with the protocols of Jakiro, ServerReply and HERD, or by READs of the tables of Pilaf and FaRM,
//! without the server's CPU.

use std::sync::Arc;
use std::time::Duration;

use dunlin_fabric::Address;
use dunlin_fabric_shm::ShmFabric;
use dunlin_kv::KvClient;
use dunlin_kv::bypass::{BypassClient, Kind};
use dunlin_kv::client::refused;
use dunlin_kv::protocol::{Function, Status};
use dunlin_rpc::tune::table::FetchTable;
use dunlin_rpc::{Client, ClientConfig, CompletionMode, FetchChoice, Plan, Protocol};

use super::contest::{Contestant, contest};
use super::key_value::{KEY, VALUE, key_of, load, memory_for, value_of};
use super::peer::{Drive, ServiceKind, reads_address};
use super::session::{Served, Session};
use super::{Findings, MeasureError, progress_bar};
use dunlin_floor::{Floor, FloorError, FloorPair, RING_WINDOW, Slice, compare};
use dunlin_report::Row;
use dunlin_report::statistics::ratio;
use dunlin_workload::random::Random;

const SLICE: Duration = Duration::from_millis(2);
/// The systems that use RPC: name, protocol, and whether to use the rates of RF-RPC's cluster. With those,
/// results are fetched; with the rates of shared memory, they are written back.
const CALLING: [(&str, &str, bool); 4] = [
    ("Jakiro", "RF-RPC", false),
    ("Jakiro, fetched", "RF-RPC", true),
    ("ServerReply", "Server-reply", false),
    ("HERD-style", "HERD", false),
];

/// The client that makes GETs.
enum Getter {
    Calls { client: Box<Client<ShmFabric>>, protocol: &'static str, reads_before: u64 },
    Reads { client: Box<BypassClient<ShmFabric>> },
}

/// One system under load.
struct System {
    name: &'static str,
    getter: Getter,
    served: Served,
    random: Random,
    records: u64,
    value: Vec<u8>,
    gets: u64,
    missed: u64,
    wrong: u64,
}

impl System {
    fn new(name: &'static str, getter: Getter, served: Served, records: usize) -> Self {
        System {
            name,
            getter,
            served,
            random: Random::new(7),
            records: records as u64,
            value: Vec::with_capacity(VALUE),
            gets: 0,
            missed: 0,
            wrong: 0,
        }
    }

    fn slice(&mut self, pair: &mut FloorPair) -> Result<Slice, FloorError> {
        let index = self.served.index;
        let (slice, _) = pair.subject_slice(index, &[], |pair| pair.count_subject(SLICE, || self.get()))?;
        Ok(slice)
    }

    /// Makes one GET.
    #[inline]
    fn get(&mut self) -> Result<u64, String> {
        let number = self.random.below(self.records);
        let key = key_of(number);
        let found = match &mut self.getter {
            Getter::Calls { client, .. } => match client.call_on(0, Function::Get.id(), &key) {
                Ok(value) => {
                    self.wrong += u64::from(*value != value_of(number));
                    true
                }
                Err(error) if refused(&error) == Some(Status::NotFound) => false,
                Err(error) => return Err(error.to_string()),
            },
            Getter::Reads { client } => {
                let found = client.get(&key, &mut self.value).map_err(|error| error.to_string())?;
                self.wrong += u64::from(found && self.value != value_of(number));
                found
            }
        };
        self.gets += 1;
        self.missed += u64::from(!found);
        Ok(1)
    }

    /// Returns the average number of READs per GET so far.
    fn reads_per_get(&mut self) -> Option<f64> {
        match &mut self.getter {
            Getter::Calls { client, reads_before, .. } => {
                ratio((reads_of(client) - *reads_before) as f64, self.gets as f64)
            }
            Getter::Reads { client } => Some(client.counts().reads_per_get()),
        }
    }
}

/// Returns the number of READs with which a client has fetched results.
fn reads_of(client: &mut Client<ShmFabric>) -> u64 {
    client.tuning().iter().map(|tuning| tuning.reads.0).sum()
}

/// Measures each system with `records` records. Rows have `operation` `GET`, `system`, `protocol`, `window`
/// 1, `reads_per_get`, `throughput_ops` and `hit_share`. Every value is checked. Blocks for some seconds.
pub(super) fn systems(
    session: &mut Session,
    records: usize,
    rounds: usize,
) -> Result<Findings, MeasureError> {
    let mut all = Vec::new();
    for (name, protocol, fetched) in CALLING {
        let Some(plan) = Protocol::by_name(protocol).map(|row| row.plan(CompletionMode::Busy)) else {
            continue;
        };
        let served = session.serve(memory_for(records), Drive::Busy)?;
        session.while_serving(&served, |fabric, address| fill(fabric, address, records))?;
        let mut config = ClientConfig::with_plan(plan);
        if fetched {
            config.fetch_table = Some(Arc::new(FetchTable::rf_rpc()));
            config.fetch_choice = FetchChoice::Enumerated;
        }
        let mut client = Box::new(session.connect(&served, &config)?);
        let reads_before = reads_of(&mut client);
        all.push(System::new(name, Getter::Calls { client, protocol, reads_before }, served, records));
    }
    for kind in Kind::ALL {
        let served = session.serve(ServiceKind::Tables { farm: kind == Kind::Farm, records }, Drive::Busy)?;
        let client = session.while_serving(&served, |fabric, address| {
            fill(fabric, address, records)?;
            let wrong = |error: &dyn std::fmt::Display| MeasureError::BadArgument(error.to_string());
            let reads = reads_address(address).map_err(|error| wrong(&error))?;
            let config = ClientConfig::with_plan(Plan::default());
            BypassClient::connect(fabric, [address, &reads], config).map_err(|error| wrong(&error))
        })?;
        all.push(System::new(kind.name(), Getter::Reads { client: Box::new(client) }, served, records));
    }
    let progress = progress_bar(rounds * all.len());
    let mut contestants: Vec<Contestant<'_>> = all
        .iter_mut()
        .map(|system| Contestant {
            name: system.name.to_owned(),
            floor: Floor::Ring { window: RING_WINDOW },
            floor_duration: SLICE,
            slice: Box::new(move |pair| system.slice(pair)),
            found: Vec::new(),
        })
        .collect();
    contest(&mut session.pair, &mut contestants, rounds, &progress)?;
    progress.finish_and_clear();
    let found: Vec<_> = contestants.into_iter().map(|one| one.found).collect();
    let mut findings = Findings::default();
    for (system, found) in all.iter_mut().zip(&found) {
        if system.wrong > 0 {
            return Err(MeasureError::WrongData(format!("{} of {} keys", system.name, system.wrong)));
        }
        let protocol = match &system.getter {
            Getter::Calls { protocol, .. } => protocol,
            Getter::Reads { .. } => "READs",
        };
        let reads_per_get = system.reads_per_get();
        for comparison in compare(found) {
            let mut row = Row::new()
                .with("operation", "GET")
                .with("system", system.name)
                .with("protocol", protocol)
                .with("records", records)
                .with("key_bytes", KEY)
                .with("value_bytes", VALUE)
                .with("keys_per_message", 1)
                .with("window", 1)
                .with("reads_per_get", reads_per_get)
                .with("throughput_ops", comparison.subject_throughput_ops.round())
                .with("hit_share", ratio((system.gets - system.missed) as f64, system.gets as f64));
            comparison.set_common(&mut row);
            findings.rows.push(row);
        }
    }
    Ok(findings)
}

fn fill(fabric: &ShmFabric, address: &Address, records: usize) -> Result<(), MeasureError> {
    let config =
        ClientConfig { window: 256, ring_bytes: 64 * 1024, ..ClientConfig::with_plan(Plan::default()) };
    let mut client = KvClient::connect(fabric, address, config)
        .map_err(|source| MeasureError::Connect { protocol: "a store".to_owned(), source })?;
    load(&mut client, records, |_| {})
}
