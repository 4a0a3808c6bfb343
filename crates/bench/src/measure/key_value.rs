//! `bench kv`: GETs of random keys per second, with one client process and one worker.

use std::time::Duration;

use dunlin_fabric::nanos;
use dunlin_fabric_shm::ShmFabric;
use dunlin_kv::KvClient;
use dunlin_kv::client::refused;
use dunlin_kv::protocol::{Function, MultiGetRequest, MultiGetResponse, Status};
use dunlin_rpc::{BatchCalls, Batching, CallId, Client, ClientConfig, CompletionMode, Protocol};

use super::contest::{Contestant, contest};
use super::flow::full;
use super::peer::{Drive, ServiceKind};
use super::session::Session;
use super::{Findings, MeasureError, progress_bar, protocols};
use dunlin_floor::{Floor, FloorError, FloorPair, RING_WINDOW, Slice, compare};
use dunlin_report::Row;
use dunlin_report::statistics::ratio;
use dunlin_workload::random::Random;

/// Key size in bytes, as in the paper's workload.
pub(super) const KEY: usize = 16;
/// Value size in bytes, as in the paper's workload.
pub(super) const VALUE: usize = 32;
/// Memory per item: key, value, header, its share of a half-full index, and slack.
const BYTES_PER_ITEM: usize = 192;
const SLICE: Duration = Duration::from_millis(2);
/// The second latency limit, next to the default. With 256 keys in flight at millions of GETs per second,
/// each GET waits 50 to 100 us for any batch size, so no batch size could keep a lower limit.
const WITHIN: BatchCalls = BatchCalls::WithinLatency { limit: Duration::from_micros(150), tolerance: 0.05 };
/// The protocol whose response mode the engine chooses at run time; measured in addition to the selected
/// protocol.
const CHOOSING: &str = "RF-RPC";
/// Maximum number of keys of a MULTIGET in this measurement.
const MOST_KEYS: usize = 64;

/// The parameters of the measurement.
#[derive(Clone, Debug)]
pub struct KeyValueOptions {
    /// Number of items in the store.
    pub records: usize,
    /// GETs in flight with one key per message.
    pub window: usize,
    /// GETs per message in the batched rows, and keys per MULTIGET.
    pub batches: Vec<usize>,
    /// GETs in flight in the batched rows.
    pub batched_window: usize,
    /// The protocol's name.
    pub protocol: String,
    /// Alternations per row; `None` for 150.
    pub rounds: Option<usize>,
}

impl Default for KeyValueOptions {
    fn default() -> Self {
        Self {
            records: 100_000,
            window: 64,
            batches: vec![16, 32],
            batched_window: 256,
            protocol: "Server-reply".to_owned(),
            rounds: None,
        }
    }
}

impl KeyValueOptions {
    fn check(&self) -> Result<(), MeasureError> {
        let wrong = |text: String| Err(MeasureError::BadArgument(text));
        if self.records == 0 || self.records > 100_000_000 {
            return wrong(format!("1 to 100 million records are possible, not {}", self.records));
        }
        for window in [self.window, self.batched_window] {
            if window == 0 || window > 256 {
                return wrong(format!("a window is of 1 to 256 calls, not {window}"));
            }
        }
        match self.batches.iter().find(|batch| **batch < 2 || **batch > MOST_KEYS.min(self.batched_window)) {
            Some(batch) => {
                wrong(format!("a batch is of 2 to {} keys, not {batch}", MOST_KEYS.min(self.batched_window)))
            }
            None => Ok(()),
        }
    }
}

/// The mapping of keys to calls and messages.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Manner {
    /// One call per message.
    Single,
    /// The given number of calls per message.
    Batched(usize),
    /// One key per call, and as many calls per message as the latency limit allows (RF-RPC section 4.2).
    Tuned(Batching),
    /// The given number of keys in one call.
    MultiGet(usize),
}

/// Measures GETs of uniformly chosen 16-byte keys with 32-byte values, nearly all present. GETs are sent
/// with one key per message, in batches of fixed size, in batches that the engine sizes by the default and
/// by another latency limit, and as MULTIGETs; RF-RPC is measured in the same run with the cases that leave
/// choices to the engine. Rows have `operation`, `protocol`, `records`, `keys_per_message` (the final value
/// if the engine chooses it), `within_ns` (the latency limit, or 0), `window` (keys in flight),
/// `throughput_ops` (keys) and `hit_share`. Every value is checked. Then each system that RF-RPC compares
/// makes one GET at a time, with `system` and `reads_per_get`. Blocks for some seconds.
///
/// # Errors
/// Any failure.
pub fn key_value(session: &mut Session, options: &KeyValueOptions) -> Result<Findings, MeasureError> {
    options.check()?;
    let named = |name: &str| protocols(&session.fabric, &[name.to_owned()], CompletionMode::Busy);
    let (protocol, choosing) = (named(&options.protocol)?[0], named(CHOOSING)?[0]);
    let tuned = [Batching::default(), Batching { calls: WITHIN, ..Batching::default() }].map(Manner::Tuned);
    let mut manners = vec![(protocol, Manner::Single)];
    manners.extend(options.batches.iter().map(|batch| (protocol, Manner::Batched(*batch))));
    manners.extend(tuned.map(|manner| (protocol, manner)));
    manners.extend(options.batches.iter().map(|batch| (protocol, Manner::MultiGet(*batch))));
    if protocol != choosing {
        manners.push((choosing, Manner::Single));
        manners.extend(tuned.map(|manner| (choosing, manner)));
    }
    // One store for all contestants, because of its memory.
    let served = session.serve(memory_for(options.records), Drive::Busy)?;
    let config = |protocol: &Protocol, window: usize| ClientConfig {
        window: window as u16,
        ring_bytes: 64 * 1024,
        ..ClientConfig::with_plan(protocol.plan(CompletionMode::Busy))
    };
    let loading = progress_bar(options.records);
    loading.set_message("loading");
    session.while_serving(&served, |fabric, address| {
        let mut client = KvClient::connect(fabric, address, config(protocol, 256))
            .map_err(|source| MeasureError::Connect { protocol: protocol.name.to_owned(), source })?;
        load(&mut client, options.records, |done| loading.set_position(done))
    })?;
    loading.finish_and_clear();
    let mut readers = Vec::with_capacity(manners.len());
    for (protocol, manner) in manners {
        let window = if manner == Manner::Single { options.window } else { options.batched_window };
        let batching = match manner {
            Manner::Tuned(batching) => Some(batching),
            Manner::Single | Manner::Batched(_) | Manner::MultiGet(_) => None,
        };
        let client = session.connect(&served, &ClientConfig { batching, ..config(protocol, window) })?;
        readers.push(Reader::new(client, (protocol, manner), window, options.records));
    }
    let rounds = options.rounds.unwrap_or(150);
    let progress = progress_bar(rounds * readers.len());
    let mut contestants: Vec<Contestant<'_>> = readers
        .iter_mut()
        .map(|reader| Contestant {
            name: format!("{} {:?}", reader.protocol.name, reader.manner),
            floor: Floor::Ring { window: RING_WINDOW },
            floor_duration: SLICE,
            slice: Box::new(move |pair| reader.slice(pair, served.index)),
            found: Vec::new(),
        })
        .collect();
    contest(&mut session.pair, &mut contestants, rounds, &progress)?;
    progress.finish_and_clear();
    let found: Vec<_> = contestants.into_iter().map(|one| one.found).collect();
    let mut findings = Findings::default();
    for (reader, found) in readers.iter().zip(&found) {
        if reader.wrong > 0 {
            return Err(MeasureError::WrongData(format!(
                "{} of {} keys",
                reader.protocol.name, reader.wrong
            )));
        }
        let (operation, keys) = match reader.manner {
            Manner::Single => ("GET", 1),
            Manner::Batched(keys) => ("GET", keys),
            Manner::Tuned(_) => {
                ("GET", reader.client.batch_calls().first().map_or(0, |size| usize::from(*size)))
            }
            Manner::MultiGet(keys) => ("MULTIGET", keys),
        };
        for comparison in compare(found) {
            let mut row = Row::new()
                .with("operation", operation)
                .with("protocol", reader.protocol.name)
                .with("records", options.records)
                .with("key_bytes", KEY)
                .with("value_bytes", VALUE)
                .with("keys_per_message", keys)
                .with("within_ns", reader.limit())
                .with("window", reader.window)
                .with("throughput_ops", comparison.subject_throughput_ops.round())
                .with("hit_share", ratio((reader.done - reader.missed) as f64, reader.done as f64));
            comparison.set_common(&mut row);
            findings.rows.push(row);
        }
    }
    let others = super::systems::systems(session, options.records, rounds)?;
    findings.rows.extend(others.rows);
    Ok(findings)
}

/// Returns a store with space for `records` records.
pub(super) fn memory_for(records: usize) -> ServiceKind {
    ServiceKind::KeyValue {
        memory_bytes: (64 << 20) + records * BYTES_PER_ITEM,
        // Twice the space: few buckets overflow, so few items are evicted before a GET asks for them.
        records: 2 * records,
    }
}

/// Returns the key of record `number`, mixed so that consecutive keys are not similar.
#[inline]
pub(super) fn key_of(number: u64) -> [u8; KEY] {
    let mixed = (number ^ number >> 31).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (u128::from(mixed) << 64 | u128::from(number)).to_le_bytes()
}

/// Returns the value of record `number`.
#[inline]
pub(super) fn value_of(number: u64) -> [u8; VALUE] {
    let mut value = [0; VALUE];
    super::flow::stamp(&mut value, number);
    value
}

pub(super) fn load(
    client: &mut KvClient<ShmFabric>,
    records: usize,
    progress: impl Fn(u64),
) -> Result<(), MeasureError> {
    let failed = |error: dunlin_kv::KvError| match error {
        dunlin_kv::KvError::Call(error) => MeasureError::Call(error),
        other => MeasureError::BadArgument(format!(
            "the store refused a PUT: {}",
            dunlin_fabric::WithSources(&other)
        )),
    };
    let mut next = 0;
    let mut done = 0;
    while done < records as u64 {
        while next < records as u64 {
            match client.push_put(&key_of(next), &value_of(next)) {
                Ok(_) => next += 1,
                Err(dunlin_kv::KvError::Call(error)) => {
                    full(error).map_err(MeasureError::BadArgument)?;
                    break;
                }
                Err(other) => return Err(failed(other)),
            }
        }
        // The next iteration sends whatever does not fit now.
        if let Err(error) = client.rpc().flush() {
            full(error).map_err(MeasureError::BadArgument)?;
        }
        client.rpc().progress();
        while let Some(id) = client.rpc().next_done() {
            client.rpc().outcome(id)?;
            client.rpc().forget(id);
            done += 1;
        }
        progress(done);
    }
    Ok(())
}

/// Returns the number of keys per call.
const fn keys_of(manner: Manner) -> usize {
    match manner {
        Manner::MultiGet(keys) => keys,
        Manner::Single | Manner::Batched(_) | Manner::Tuned(_) => 1,
    }
}

/// A client under load.
struct Reader {
    client: Client<ShmFabric>,
    protocol: &'static Protocol,
    manner: Manner,
    /// Keys in flight.
    window: usize,
    records: u64,
    random: Random,
    /// Requested keys by call slot, with a fixed number of keys per slot.
    expected: Vec<u64>,
    /// Mask of the slot number.
    mask: usize,
    sent: u64,
    done: u64,
    wrong: u64,
    missed: u64,
    request: Vec<u8>,
}

impl Reader {
    fn new(
        client: Client<ShmFabric>,
        (protocol, manner): (&'static Protocol, Manner),
        window: usize,
        records: usize,
    ) -> Self {
        let slots = window.next_power_of_two();
        Self {
            client,
            protocol,
            manner,
            window,
            records: records as u64,
            random: Random::new(7),
            expected: vec![0; slots * keys_of(manner)],
            mask: slots - 1,
            sent: 0,
            done: 0,
            wrong: 0,
            missed: 0,
            request: Vec::with_capacity(MOST_KEYS * (KEY + 8)),
        }
    }

    fn slice(&mut self, pair: &mut FloorPair, subject: u8) -> Result<Slice, FloorError> {
        let (slice, _) = pair.subject_slice(subject, &[], |pair| {
            let slice = pair.count_subject(SLICE, || self.turn())?;
            while self.done < self.sent {
                if let Err(error) = self.client.flush() {
                    full(error).map_err(FloorError::Subject)?;
                }
                self.collect().map_err(FloorError::Subject)?;
            }
            Ok(slice)
        })?;
        Ok(slice)
    }

    /// Returns the latency limit of the batches in nanoseconds, or 0 for a fixed size.
    fn limit(&self) -> u64 {
        match self.manner {
            Manner::Tuned(Batching { calls: BatchCalls::WithinLatency { limit, .. }, .. }) => nanos(limit),
            _ => 0,
        }
    }

    /// Records the keys of a submitted call.
    #[inline]
    fn asked(&mut self, id: CallId, numbers: &[u64]) {
        let place = (id.index() & self.mask) * numbers.len();
        self.expected[place..place + numbers.len()].copy_from_slice(numbers);
        self.sent += numbers.len() as u64;
    }

    #[inline]
    fn turn(&mut self) -> Result<u64, String> {
        match self.manner {
            Manner::Single => {
                while self.room() >= 1 {
                    let number = self.random.below(self.records);
                    match self.client.submit_on(0, Function::Get.id(), &key_of(number)) {
                        Ok(id) => self.asked(id, &[number]),
                        Err(error) => {
                            full(error)?;
                            break;
                        }
                    }
                }
            }
            Manner::Batched(keys) => while self.room() >= keys && self.push_batch(keys)? {},
            Manner::Tuned(_) => while self.room() >= 1 && self.push()? {},
            Manner::MultiGet(keys) => while self.room() >= keys && self.submit_multiget(keys)? {},
        }
        self.collect()
    }

    #[inline]
    fn room(&self) -> usize {
        self.window - (self.sent - self.done) as usize
    }

    /// Adds a GET to the open batch. Returns `false` if it does not fit.
    #[inline]
    fn push(&mut self) -> Result<bool, String> {
        let number = self.random.below(self.records);
        match self.client.push_on(0, Function::Get.id(), &key_of(number)) {
            Ok(id) => {
                self.asked(id, &[number]);
                Ok(true)
            }
            Err(error) => full(error).map(|()| false),
        }
    }

    #[inline]
    fn push_batch(&mut self, keys: usize) -> Result<bool, String> {
        for _ in 0..keys {
            if !self.push()? {
                return Ok(false);
            }
        }
        match self.client.flush() {
            Ok(()) => Ok(true),
            Err(error) => full(error).map(|()| false),
        }
    }

    #[inline]
    fn submit_multiget(&mut self, keys: usize) -> Result<bool, String> {
        let (mut numbers, mut drawn) = ([0; MOST_KEYS], [[0; KEY]; MOST_KEYS]);
        for (number, key) in numbers.iter_mut().zip(&mut drawn[..keys]) {
            *number = self.random.below(self.records);
            *key = key_of(*number);
        }
        let mut slices: [&[u8]; MOST_KEYS] = [&[]; MOST_KEYS];
        slices.iter_mut().zip(&drawn).for_each(|(slice, key)| *slice = key);
        let slices = &slices[..keys];
        self.request.resize(MultiGetRequest::encoded_length(slices), 0);
        let length = MultiGetRequest::encode(slices, &mut self.request).map_err(|error| error.to_string())?;
        match self.client.submit_on(0, Function::MultiGet.id(), &self.request[..length]) {
            Ok(id) => {
                self.asked(id, &numbers[..keys]);
                Ok(true)
            }
            Err(error) => full(error).map(|()| false),
        }
    }

    #[inline]
    fn collect(&mut self) -> Result<u64, String> {
        self.client.progress();
        let before = self.done;
        while let Some(id) = self.client.next_done() {
            self.take(id)?;
        }
        Ok(self.done - before)
    }

    /// Processes one completed call; calls complete in any order.
    #[inline]
    fn take(&mut self, id: CallId) -> Result<(), String> {
        let keys = keys_of(self.manner);
        let place = (id.index() & self.mask) * keys;
        let mut expected = self.expected[place..place + keys].iter();
        let (mut done, mut wrong, mut missed) = (self.done, 0, 0);
        let mut check = |value: Option<&[u8]>| {
            let number = expected.next();
            match value {
                Some(value) => {
                    wrong += u64::from(number.is_none_or(|number| value != &value_of(*number)[..]));
                }
                None => missed += 1,
            }
            done += 1;
        };
        match (self.manner, self.client.outcome(id)) {
            (Manner::MultiGet(keys), Ok(answer)) => {
                MultiGetResponse::parse(answer, keys).map_err(|error| error.to_string())?.for_each(check);
            }
            (Manner::Single | Manner::Batched(_) | Manner::Tuned(_), Ok(answer)) => check(Some(answer)),
            (_, Err(error)) if refused(&error) == Some(Status::NotFound) => check(None),
            (_, Err(error)) => return Err(error.to_string()),
        }
        self.done = done;
        self.wrong += wrong;
        self.missed += missed;
        self.client.forget(id);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn keys_differ_and_values_tell_their_record() {
        let keys: BTreeSet<_> = (0..10_000).map(key_of).collect();
        assert_eq!(keys.len(), 10_000);
        assert_eq!(super::super::flow::difference(&value_of(5), VALUE, 5), 0);
        assert_ne!(value_of(5), value_of(6));
    }

    #[test]
    fn options_out_of_range_are_refused() {
        assert!(KeyValueOptions::default().check().is_ok());
        for wrong in [
            KeyValueOptions { records: 0, ..Default::default() },
            KeyValueOptions { window: 300, ..Default::default() },
            KeyValueOptions { batches: vec![65], ..Default::default() },
        ] {
            assert!(matches!(wrong.check(), Err(MeasureError::BadArgument(_))), "{wrong:?}");
        }
    }
}
