//! The peer's side: servers in the pinned peer process, each a separate subject.

use dunlin_fabric::WithSources;
use std::any::Any;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dunlin::thrift::{Adapter, Processor};
use dunlin_fabric::{Address, AddressError};
use dunlin_fabric_shm::{ShmConfig, ShmFabric};
use dunlin_hatkv::Durability;
use dunlin_hatkv::hatkv::HatKvProcessor;
use dunlin_kv::KvService;
use dunlin_kv::bypass::{BypassConfig, BypassServer, Kind};
use dunlin_rpc::tune::grouping::GroupDefaults;
use dunlin_rpc::{FunctionMode, Reply, Request, Server, ServerBuilder, ServerConfig, Service, Worker};
use serde::{Deserialize, Serialize};

use super::atb::Handler;
use super::key_value::{KEY, VALUE};
use super::process::{ProcessCost, raise_file_limit};
use super::tier::Nodes;
use super::typed;
use crate::atb::AtbProcessor;
use dunlin_floor::{Subject, answer_seed, fill_bytes, sum_bytes};

/// Returns the request's bytes.
pub(super) const ECHO: u16 = 1;
/// Sums the request and returns the same number of bytes, filled from that sum, as the payload floors do.
pub(super) const REFILL: u16 = 2;
/// Works and responds as the request specifies ([`Work`]).
pub(super) const WORK: u16 = 3;

/// The request of [`WORK`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Work {
    /// Processing time of the handler, in nanoseconds.
    pub(super) process_ns: u32,
    /// Size of the response, bytes.
    pub(super) answer: u32,
    /// The value of each byte of the response.
    pub(super) stamp: u8,
}

impl Work {
    pub(super) const BYTES: usize = 9;

    pub(super) fn encode(self) -> [u8; Self::BYTES] {
        let mut bytes = [self.stamp; Self::BYTES];
        bytes[..4].copy_from_slice(&self.process_ns.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.answer.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let [a, b, c, d, e, f, g, h, stamp] = *bytes.first_chunk::<{ Self::BYTES }>()?;
        let (process_ns, answer) = (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h]));
        Some(Work { process_ns, answer, stamp })
    }

    fn run(self, reply: &mut Reply<'_>) -> Result<(), dunlin_rpc::Status> {
        if self.process_ns > 0 {
            let (begin, long) = (Instant::now(), Duration::from_nanos(self.process_ns.into()));
            while begin.elapsed() < long {
                std::hint::spin_loop();
            }
        }
        reply.reserve(self.answer as usize)?.fill(self.stamp);
        Ok(())
    }
}

/// Number of a busy worker's progress calls between two checks for the end of the slice.
const LOOKS_AT_ONCE: usize = 16;
/// Interval at which the main thread checks for the end of a slice while a server runs on its own threads.
/// Long, because these checks count as the server's CPU time.
const LOOK_UP: Duration = Duration::from_millis(200);

/// An in-memory store has nothing to sync to disk.
const SYNC_EVERY: Duration = Duration::from_secs(3600);

/// The configuration of a subject, sent to the peer as JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Setup {
    pub(super) address: String,
    pub(super) service: ServiceKind,
    pub(super) drive: Drive,
}

/// The service of a server.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) enum ServiceKind {
    /// [`ECHO`], [`REFILL`] and [`WORK`].
    Bytes,
    /// The typed service.
    Typed,
    /// The store.
    KeyValue { memory_bytes: usize, records: usize },
    /// Tables that clients READ, with the layout of FaRM or Pilaf.
    Tables { farm: bool, records: usize },
    /// The Thrift benchmarks' service.
    Atb,
    /// [`ECHO`], and two nodes of the memory tier, each on threads of its own.
    Nodes,
    /// HatKV. All servers of a process share one store.
    HatKv { map_bytes: usize },
}

/// The thread that runs the worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Drive {
    /// The pinned main thread, busy-waiting.
    Busy,
    /// The pinned main thread, which waits in the completion mode of the clients' plans.
    Waiting,
    /// A separate thread, as in a real server. The slice's report is the [`ProcessCost`].
    Thread,
}

/// The servers of the peer process. A server starts with the first slice of its number, and stays until it
/// is replaced.
#[derive(Default)]
pub struct RpcSubject {
    fabric: Option<ShmFabric>,
    hat_kv: Option<dunlin_hatkv::Handler>,
    hosted: Vec<Option<Hosted>>,
}

struct Hosted {
    drive: Drive,
    /// The worker, if this thread runs it; `None` if it runs on its own thread.
    worker: Option<Worker<ShmFabric>>,
    before: ProcessCost,
    /// The server; dropped after the worker.
    _server: Box<dyn Any + Send>,
}

impl RpcSubject {
    /// Creates a subject without servers.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn start(&mut self, setup: &Setup) -> Result<Hosted, String> {
        let fabric = match &self.fabric {
            Some(fabric) => fabric.clone(),
            None => {
                raise_file_limit();
                let fabric = ShmFabric::new(ShmConfig::default()).map_err(|error| error.to_string())?;
                self.fabric.insert(fabric).clone()
            }
        };
        let address: Address =
            setup.address.parse().map_err(|error: dunlin_fabric::AddressError| error.to_string())?;
        if let ServiceKind::Tables { farm, records } = setup.service {
            return start_tables(&fabric, &address, setup.drive, (farm, records));
        }
        let (nodes, address) = match setup.service {
            ServiceKind::Nodes => {
                let (nodes, engine) = Nodes::start(&fabric, &address)?;
                (Some(nodes), engine)
            }
            _ => (None, address),
        };
        // The figures state ScaleRPC's groups.
        let GroupDefaults { size, slice } = GroupDefaults::PAPER;
        let config =
            ServerConfig { group_size: Some(size), group_slice: Some(slice), ..ServerConfig::default() };
        let builder = ServerBuilder::new(&fabric).config(config);
        let (builder, service): (_, Box<dyn Service>) = match setup.service {
            ServiceKind::Bytes => {
                let all = [ECHO, REFILL, WORK];
                let builder =
                    all.into_iter().fold(builder, |builder, one| builder.function(one, FunctionMode::Worker));
                (builder, Box::new(bytes_service))
            }
            ServiceKind::Typed => adapted(typed::processor(), builder),
            ServiceKind::KeyValue { memory_bytes, records } => {
                let service =
                    KvService::new(memory_bytes, Some(records), 0, 1).map_err(|error| error.to_string())?;
                (KvService::declare(builder), Box::new(service))
            }
            ServiceKind::Tables { .. } | ServiceKind::Nodes => {
                (builder.function(ECHO, FunctionMode::Worker), Box::new(bytes_service))
            }
            ServiceKind::Atb => adapted(AtbProcessor(Handler::new()), builder),
            ServiceKind::HatKv { map_bytes } => {
                let handler = match &self.hat_kv {
                    Some(handler) => handler.clone(),
                    None => self.hat_kv.insert(open_hat_kv(map_bytes)?).clone(),
                };
                adapted(HatKvProcessor(handler), builder)
            }
        };
        let mut service = Some(service);
        // There is one worker, so the service is requested once.
        let mut service = move |_| service.take().unwrap_or_else(|| Box::new(bytes_service));
        let (server, worker): (Server<ShmFabric>, _) = if setup.drive == Drive::Thread {
            (builder.serve(&address, &mut service).map_err(|error| WithSources(&error).to_string())?, None)
        } else {
            let (server, mut workers) = builder
                .serve_with(&address, &mut service)
                .map_err(|error| WithSources(&error).to_string())?;
            (server, workers.pop())
        };
        let server = Box::new((server, nodes));
        Ok(Hosted { drive: setup.drive, worker, before: ProcessCost::default(), _server: server })
    }
}

/// Returns the address at which clients READ the tables of the store whose engine is at `engine`.
pub(super) fn reads_address(engine: &Address) -> Result<Address, AddressError> {
    format!("{engine}-reads").parse()
}

/// Starts tables that clients READ, with a separate worker that serves PUTs.
fn start_tables(
    fabric: &ShmFabric,
    address: &Address,
    drive: Drive,
    (farm, records): (bool, usize),
) -> Result<Hosted, String> {
    let kind = if farm { Kind::Farm } else { Kind::Pilaf };
    let tables = BypassConfig::for_items(kind, records as u64, KEY + VALUE);
    let reads = reads_address(address).map_err(|error| error.to_string())?;
    let (server, mut workers) =
        BypassServer::serve_with(fabric, [address, &reads], tables, ServerConfig::default())
            .map_err(|error| error.to_string())?;
    let worker = workers.pop();
    Ok(Hosted { drive, worker, before: ProcessCost::default(), _server: Box::new(server) })
}

/// Adapts a typed service and declares its functions.
fn adapted<P: Processor>(
    processor: P,
    builder: ServerBuilder<ShmFabric>,
) -> (ServerBuilder<ShmFabric>, Box<dyn Service>) {
    let adapter = Adapter::new(Arc::new(processor), None);
    (adapter.declare(builder), Box::new(adapter))
}

/// Opens a store in memory (HatRPC section 5.4 uses tmpfs). Its folder is removed as soon as it is open, so
/// that nothing remains however this process ends.
fn open_hat_kv(map_bytes: usize) -> Result<dunlin_hatkv::Handler, String> {
    let in_memory = Path::new("/dev/shm");
    let folder = if in_memory.is_dir() { tempfile::tempdir_in(in_memory) } else { tempfile::tempdir() };
    let folder = folder.map_err(|error| format!("no folder for the store: {error}"))?;
    let durability = Durability::Fast { sync_every: SYNC_EVERY };
    dunlin_hatkv::Handler::open(folder.path(), map_bytes, durability).map_err(|error| error.to_string())
}

fn bytes_service(request: &Request<'_>, reply: &mut Reply<'_>) -> Result<(), dunlin_rpc::Status> {
    match request.function {
        ECHO => reply.write(request.payload)?,
        WORK => Work::decode(request.payload).ok_or(dunlin_rpc::Status::Malformed)?.run(reply)?,
        _ => {
            let sum = sum_bytes(request.payload);
            fill_bytes(reply.reserve(request.payload.len())?, answer_seed(sum));
        }
    }
    Ok(())
}

impl Subject for RpcSubject {
    fn begin(&mut self, index: u8, parameters: &[u8]) -> Result<(), String> {
        let at = usize::from(index);
        if self.hosted.len() <= at {
            self.hosted.resize_with(at + 1, || None);
        }
        // Only the start of a server has parameters. It replaces the previous server of this number.
        if self.hosted[at].is_none() || !parameters.is_empty() {
            self.hosted[at] = None;
            let setup: Setup = serde_json::from_slice(parameters)
                .map_err(|error| format!("the parameters of subject {index}: {error}"))?;
            self.hosted[at] = Some(self.start(&setup)?);
        }
        if let Some(hosted) = &mut self.hosted[at]
            && hosted.drive == Drive::Thread
        {
            hosted.before =
                ProcessCost::of_this_process().map_err(|error| WithSources(&error).to_string())?;
        }
        Ok(())
    }

    #[inline]
    fn serve_once(&mut self, index: u8) {
        let Some(Some(hosted)) = self.hosted.get_mut(usize::from(index)) else { return };
        match (&mut hosted.worker, hosted.drive) {
            (Some(worker), Drive::Busy) => {
                for _ in 0..LOOKS_AT_ONCE {
                    worker.progress();
                }
            }
            (Some(worker), _) => {
                // As a worker does on its own thread. The fabric ends each sleep after about 10 ms, and
                // then the phase is checked.
                worker.step(Duration::MAX);
            }
            (None, _) => std::thread::sleep(LOOK_UP),
        }
    }

    fn end(&mut self, index: u8) -> Result<Vec<u8>, String> {
        let Some(Some(hosted)) = self.hosted.get(usize::from(index)) else { return Ok(Vec::new()) };
        if hosted.drive != Drive::Thread {
            return Ok(Vec::new());
        }
        let now = ProcessCost::of_this_process().map_err(|error| WithSources(&error).to_string())?;
        serde_json::to_vec(&now.since(hosted.before)).map_err(|error| error.to_string())
    }
}
