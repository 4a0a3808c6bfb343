//! The server of tables that clients READ, and its client.

use super::connection::{
    Area, ConnectError, Control, MAX_NEIGHBOURHOOD, MAX_PARTITIONS, Offered, OneSided, ReadError, Reads,
};
use super::cuckoo::Cuckoo;
use super::hopscotch::Hopscotch;
use super::{HEADER_BYTES, Kind, Shape, Table, TableError, farm, pilaf};
use crate::client::{KvClient, KvError};
use crate::hash::partition_of;
use crate::partition::{MAX_KEY_LENGTH, PutOutcome};
use crate::protocol::{Function, PutRequest, Status as KvStatus, encode_put_response, parse_key};
use dunlin_fabric::{
    Access, Address, CreateError, Fabric, Host, ListenError, Region, RegisterError, Signal, Task,
    ThreadDomain, nanos,
};
use dunlin_rpc::{
    ApplicationCode, ClientConfig, FunctionMode, Reply, Request, ServeError, Server, ServerBuilder,
    ServerConfig, Service, Status, Worker,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use thiserror::Error;

/// Settings of a server of tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BypassConfig {
    /// The data structure.
    pub kind: Kind,
    /// Places in all partitions together: the number of items divided by the intended load factor. It stays
    /// below nine tenths for Pilaf; for FaRM, a small neighbourhood lowers it.
    pub places: u64,
    /// Bytes for keys and values (Pilaf) or for values that do not fit their slots (FaRM), in all partitions
    /// together.
    pub data_bytes: u64,
    /// FaRM: slots of a neighbourhood, all of which a GET READs; 2 to 64.
    pub neighbourhood: u32,
    /// The most clients at the same time.
    pub max_connections: usize,
}

impl BypassConfig {
    /// Returns settings for `items` items of up to `item_bytes` (key and value). Pilaf's table is three
    /// quarters full, as in RF-RPC section 2.3; FaRM's is half full, with neighbourhoods of 8 slots.
    #[must_use]
    pub fn for_items(kind: Kind, items: u64, item_bytes: usize) -> Self {
        let places = match kind {
            Kind::Pilaf => items * 4 / 3 + 1,
            Kind::Farm => items * 2 + 1,
        };
        // Blocks are rounded up to powers of two, and an eighth more are needed while values are replaced.
        let block = (item_bytes + item_bytes / 7 + 8).next_power_of_two().max(64) as u64;
        let data_bytes = block * (items + items / 8) + (4 << 20);
        BypassConfig { kind, places, data_bytes, neighbourhood: 8, max_connections: 10_000 }
    }
}

/// The reason why a server could not be started.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BypassServeError {
    /// A setting is out of range.
    #[error("{what} is {value}, but must be {must}")]
    Setting {
        /// The name of the setting.
        what: &'static str,
        /// Its value.
        value: u64,
        /// The permitted values.
        must: &'static str,
    },
    /// The engine's server, for PUTs, failed to start.
    #[error(transparent)]
    Engine(#[from] ServeError),
    /// The address for clients that READ cannot be used.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// Memory could not be registered.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// Queues could not be created.
    #[error(transparent)]
    Create(#[from] CreateError),
    /// A thread could not be started.
    #[error("cannot start a thread")]
    Thread(#[from] std::io::Error),
}

/// The service of one worker's table, for PUT, DELETE and GET by RPC.
struct TableService {
    table: Box<dyn Table>,
    index: usize,
    count: usize,
    value: Vec<u8>,
}

impl TableService {
    fn answer(&mut self, request: &Request<'_>, reply: &mut Reply<'_>) -> Result<(), KvStatus> {
        let owned = |key: &[u8]| match partition_of(key, self.count) == self.index {
            true => Ok(()),
            false => Err(KvStatus::WrongPartition),
        };
        let key = || parse_key(request.payload).map_err(|_| KvStatus::Malformed);
        match Function::from_id(request.function) {
            Some(Function::Put) => {
                let put = PutRequest::parse(request.payload).map_err(|_| KvStatus::Malformed)?;
                owned(put.key)?;
                let replaced = self.table.put(put.key, put.value).map_err(|error| match error {
                    TableError::Key { .. } => KvStatus::KeyLength,
                    TableError::Value { .. } => KvStatus::ValueTooLarge,
                    TableError::Full | TableError::OutOfMemory { .. } => KvStatus::OutOfMemory,
                })?;
                let answer = encode_put_response(PutOutcome { replaced, ..PutOutcome::default() });
                reply.write(&answer).map_err(|_| KvStatus::ResponseTooLarge)
            }
            Some(Function::Delete) => {
                owned(key()?)?;
                if self.table.delete(key()?) { Ok(()) } else { Err(KvStatus::NotFound) }
            }
            Some(Function::Get) => {
                owned(key()?)?;
                if !self.table.get(key()?, &mut self.value) {
                    return Err(KvStatus::NotFound);
                }
                reply.write(&self.value).map_err(|_| KvStatus::ResponseTooLarge)
            }
            _ => Err(KvStatus::UnknownFunction),
        }
    }
}

impl Service for TableService {
    fn call(&mut self, request: &Request<'_>, reply: &mut Reply<'_>) -> Result<(), Status> {
        self.answer(request, reply).map_err(|status| {
            reply.clear();
            ApplicationCode::new(status.code()).map_or(Status::Malformed, Status::Application)
        })
    }
}

/// A running server of tables. Dropping it ends it.
#[derive(Debug)]
pub struct BypassServer<F: Fabric> {
    engine: Option<Server<F>>,
    control: Option<Task>,
    over: Arc<AtomicBool>,
    signal: <F::Host as Host>::Signal,
    address: Address,
}

/// A partition's table, its shape, and the memory of index and data.
type Made<M> = (Box<dyn Table>, Shape, [Arc<M>; 2]);

impl<F: Fabric> BypassServer<F> {
    /// Starts a server with its workers' threads. `puts` is the address of its engine, `reads` the address
    /// for clients that READ.
    pub fn serve(
        fabric: &F,
        [puts, reads]: [&Address; 2],
        config: BypassConfig,
        engine: ServerConfig,
    ) -> Result<Self, BypassServeError> {
        let (mut server, workers) = Self::serve_with(fabric, [puts, reads], config, engine)?;
        let mut threads = Vec::new();
        for worker in workers {
            threads.push(fabric.host().spawn("bypass-worker", Box::new(move || worker.run()))?);
        }
        // Workers end with the engine, so a thread that joins the control task joins them, too.
        let control = server.control.take();
        server.control = Some(Task::new(move || {
            control.into_iter().chain(threads).for_each(Task::join);
        }));
        Ok(server)
    }

    /// Starts a server whose workers the caller runs; otherwise like [`serve`](BypassServer::serve).
    pub fn serve_with(
        fabric: &F,
        [puts, reads]: [&Address; 2],
        config: BypassConfig,
        engine: ServerConfig,
    ) -> Result<(Self, Vec<Worker<F>>), BypassServeError> {
        let count = usize::from(engine.workers);
        let out = |what, value, must| Err(BypassServeError::Setting { what, value, must });
        if count == 0 || count > MAX_PARTITIONS {
            return out("workers", count as u64, "1 to 256");
        }
        if config.kind == Kind::Farm && !(2..=MAX_NEIGHBOURHOOD).contains(&config.neighbourhood) {
            return out("neighbourhood", config.neighbourhood.into(), "2 to 64 slots");
        }
        let places = config.places / count as u64 + 1;
        if places > u64::from(u32::MAX) {
            return out("places", config.places, "less than 4 billion for each worker");
        }
        let made = (0..count)
            .map(|_| make(fabric, config, places, config.data_bytes / count as u64 + 1))
            .collect::<Result<Vec<_>, _>>()?;
        let (mut tables, mut partitions) = (Vec::new(), Vec::new());
        for (table, shape, memory) in made {
            tables.push(Some(table));
            partitions.push((shape, memory));
        }
        let builder = [Function::Get, Function::Put, Function::Delete]
            .into_iter()
            .fold(ServerBuilder::new(fabric).config(engine), |builder, function| {
                builder.function(function.id(), FunctionMode::Worker)
            });
        let (engine, workers) = builder.serve_with(puts, |worker| {
            let index = usize::from(worker);
            match tables.get_mut(index).and_then(Option::take) {
                Some(table) => Box::new(TableService { table, index, count, value: Vec::new() }),
                None => Box::new(|_: &Request<'_>, _: &mut Reply<'_>| Err(Status::UnknownFunction)),
            }
        })?;
        let listener = fabric.listen(reads)?;
        let (signal, over) = (fabric.host().signal(), Arc::new(AtomicBool::new(false)));
        let mut domain = fabric.domain()?;
        let completions = domain.create_completion_queue(64, false)?;
        let control = Control {
            fabric: fabric.clone(),
            listener,
            partitions,
            signal: signal.clone(),
            over: Arc::clone(&over),
            max_connections: config.max_connections,
        };
        let body = Box::new(move || control.run(domain, completions));
        let control = fabric.host().spawn("bypass-control", body)?;
        let server = BypassServer {
            engine: Some(engine),
            control: Some(control),
            over,
            signal,
            address: reads.clone(),
        };
        Ok((server, workers))
    }

    /// Returns the address for clients that READ.
    pub fn reads_address(&self) -> &Address {
        &self.address
    }

    /// Ends the server; received PUTs are answered within `timeout`. Blocks.
    pub fn shutdown(mut self, timeout: Duration) {
        if let Some(engine) = self.engine.take() {
            engine.shutdown(timeout);
        }
    }
}

impl<F: Fabric> Drop for BypassServer<F> {
    fn drop(&mut self) {
        drop(self.engine.take());
        self.over.store(true, Ordering::Release);
        self.signal.raise();
        if let Some(control) = self.control.take() {
            control.join();
        }
    }
}

fn make<F: Fabric>(
    fabric: &F,
    config: BypassConfig,
    places: u64,
    data_bytes: u64,
) -> Result<Made<F::Memory>, BypassServeError> {
    let index_bytes = match config.kind {
        Kind::Pilaf => Cuckoo::<F::Memory>::index_bytes(places),
        Kind::Farm => Hopscotch::<F::Memory>::index_bytes(places, config.neighbourhood),
    };
    let index = Region::new(fabric.register(index_bytes, Access::READ)?);
    let data = Region::new(fabric.register(data_bytes.max(64), Access::READ)?);
    let memory = [Arc::clone(index.memory()), Arc::clone(data.memory())];
    Ok(match config.kind {
        Kind::Pilaf => {
            let table = Cuckoo::new(index, data);
            let shape = table.shape();
            (Box::new(table), shape, memory)
        }
        Kind::Farm => {
            let table = Hopscotch::new(index, data, config.neighbourhood);
            let shape = table.shape();
            (Box::new(table), shape, memory)
        }
    })
}

/// The result of searching a key's places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Got {
    Found,
    Nothing,
}

/// The reason why a GET has no outcome.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum GetError {
    /// A READ failed, or concurrent writes tore the read bytes for too long.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The read bytes are consistent but invalid: the server is broken or hostile.
    #[error("the server's table is not what it should be: {0}")]
    Malformed(&'static str),
    /// The key's length is out of bounds; nothing was read.
    #[error("keys have 1 to {MAX_KEY_LENGTH} bytes; this one has {0}")]
    KeyLength(usize),
}

/// The cost of GETs so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadCounts {
    /// GETs with an outcome.
    pub gets: u64,
    /// READs of these GETs.
    pub reads: u64,
    /// Repeated READs because of concurrent writes.
    pub retries: u64,
    /// GETs that found no item; these search twice.
    pub misses: u64,
}

impl ReadCounts {
    /// Returns the mean number of READs of a GET.
    #[must_use]
    pub fn reads_per_get(&self) -> f64 {
        self.reads as f64 / self.gets.max(1) as f64
    }
}

/// Searches a key until it is found, or was certainly absent at one moment: in none of its places, while no
/// item moved.
pub(super) fn get(
    reads: &mut impl Reads,
    shape: &Shape,
    key: &[u8],
    value: &mut Vec<u8>,
    scratch: &mut farm::Scratch,
    attempts: &mut u32,
) -> Result<bool, GetError> {
    let mut look = |reads: &mut _, attempts: &mut u32| match shape.kind {
        Kind::Pilaf => pilaf::look(reads, shape, key, value, attempts),
        Kind::Farm => farm::look(reads, shape, key, (value, scratch), attempts),
    };
    if look(reads, attempts)? == Got::Found {
        return Ok(true);
    }
    loop {
        let before = moves(reads)?;
        if look(reads, attempts)? == Got::Found {
            return Ok(true);
        }
        if before.is_multiple_of(2) && moves(reads)? == before {
            return Ok(false);
        }
        reads.pause(attempts)?;
    }
}

/// Returns the count of moves in front of a table.
fn moves(reads: &mut impl Reads) -> Result<u64, GetError> {
    const { assert!(HEADER_BYTES >= 8) };
    let mut word = [0; 8];
    reads.read(Area::Index, 0, &mut word)?;
    Ok(u64::from_le_bytes(word))
}

/// A client for one thread: it GETs by READs, and sends changes to the server by RPC. Once a READ has failed,
/// all GETs fail; create a new client then.
#[derive(Debug)]
pub struct BypassClient<F: Fabric> {
    engine: KvClient<F>,
    reads: OneSided<F>,
    tables: Vec<Offered>,
    scratch: farm::Scratch,
    counts: ReadCounts,
}

impl<F: Fabric> BypassClient<F> {
    /// Connects to a server: to its engine for PUTs, with these settings, and for READs. Blocks for at most
    /// the configured time.
    pub fn connect(
        fabric: &F,
        [puts, reads]: [&Address; 2],
        config: ClientConfig,
    ) -> Result<Self, ConnectError> {
        let until = fabric.host().now().saturating_add(nanos(config.connect_timeout));
        let (one_sided, tables) = OneSided::connect(fabric, reads, config.call_nanos(), until)?;
        let engine = KvClient::connect(fabric, puts, config)?;
        Ok(BypassClient {
            engine,
            reads: one_sided,
            tables,
            scratch: farm::Scratch::default(),
            counts: ReadCounts::default(),
        })
    }

    /// Copies the value of a key, by READs alone; returns `false` if the key is absent. Blocks for at most
    /// the time limit of a call.
    pub fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool, GetError> {
        if key.is_empty() || key.len() > MAX_KEY_LENGTH {
            return Err(GetError::KeyLength(key.len()));
        }
        let table = self.tables[partition_of(key, self.tables.len())];
        let (before, mut attempts) = (self.reads.posted(), 0);
        let mut reads = self.reads.of(&table);
        let found = get(&mut reads, &table.shape, key, value, &mut self.scratch, &mut attempts)?;
        self.counts.gets += 1;
        self.counts.reads += self.reads.posted() - before;
        self.counts.retries += u64::from(attempts);
        self.counts.misses += u64::from(!found);
        Ok(found)
    }

    /// Stores a value, by RPC.
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Result<PutOutcome, KvError> {
        self.engine.put(key, value)
    }

    /// Deletes a key, by RPC; returns whether it was there.
    pub fn delete(&mut self, key: &[u8]) -> Result<bool, KvError> {
        self.engine.delete(key)
    }

    /// Returns the client for operations by RPC.
    pub fn engine(&mut self) -> &mut KvClient<F> {
        &mut self.engine
    }

    /// Returns the cost of GETs so far.
    pub fn counts(&self) -> ReadCounts {
        self.counts
    }
}

/// Allocates memory for tests of tables without a server.
#[cfg(test)]
pub(super) fn heap(bytes: u64) -> Region<dunlin_fabric::memory::HeapMemory> {
    match dunlin_fabric::memory::HeapMemory::new(bytes as usize, Access::READ) {
        Some(memory) => Region::new(memory),
        None => panic!("no memory"),
    }
}

/// Creates a table in memory, without a fabric.
#[cfg(test)]
pub(super) fn table_of<M: dunlin_fabric::Memory>(
    kind: Kind,
    index: Region<M>,
    data: Region<M>,
    neighbourhood: u32,
) -> (Box<dyn Table>, Shape) {
    match kind {
        Kind::Pilaf => {
            let table = Cuckoo::new(index, data);
            let shape = table.shape();
            (Box::new(table), shape)
        }
        Kind::Farm => {
            let table = Hopscotch::new(index, data, neighbourhood);
            let shape = table.shape();
            (Box::new(table), shape)
        }
    }
}
