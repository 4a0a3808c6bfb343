//! `bench tier`: operations on the memory tier: by a process that attaches to the node of its host, by one that has a node
//! itself, and on memory that is mapped; beside a call of the engine and copies of the same processes.

use std::hint::black_box;
use std::time::{Duration, Instant};

use dunlin_fabric::{Address, AddressError, Scheme, WithSources};
use dunlin_fabric_shm::ShmFabric;
use dunlin_rpc::{ClientConfig, CompletionMode, Protocol};
use dunlin_tier_client::{AttachConfig, Direct};
use dunlin_tier_node::{AnyLmr, Lmr, Peer, ProcessConfig, ProcessServer, Spec, Tier, TierConfig};

use super::peer::{Drive, ECHO, ServiceKind};
use super::session::Session;
use super::{Findings, MeasureError, progress_bar};
use dunlin_report::statistics::{median, ratio};
use dunlin_report::{Row, rounded};

/// The parameters of the measurement.
#[derive(Clone, Copy, Debug, Default)]
pub struct TierOptions {
    /// Rounds in which each operation has a slice. Default: 31.
    pub rounds: Option<usize>,
}

const ROUNDS: usize = 31;
/// The time of one operation in a round.
const SLICE: Duration = Duration::from_millis(3);
/// The nodes: the first two in the peer process, the last one in that of the threads that use it.
const NODES: [&str; 3] = ["one", "two", "own"];
/// The memory of a node.
const MEMORY: u64 = 64 << 20;
/// The length of a region, and of the longest operation.
const LONGEST: usize = 1 << 20;
/// Operations of a list, and calls in flight beside it.
const LISTED: usize = 64;
/// Accesses of mapped memory between two looks at the clock.
const ACCESSES: u64 = 1000;

/// Returns the settings of one of the nodes of a measurement whose processes attach at `attach`.
pub(super) fn settings_of(
    attach: &Address,
    nodes: &[String],
    node: &str,
) -> Result<TierConfig, AddressError> {
    let peer =
        |name: &String| Peer::at(name, Address::new(Scheme::Shm, &format!("{}-{name}", attach.name()))?);
    let peers = nodes.iter().map(peer).collect::<Result<_, _>>()?;
    Ok(TierConfig { memory: MEMORY, principal: "bench".to_owned(), ..TierConfig::new(peers, node) })
}

/// Returns the address of the engine's service beside the nodes.
fn engine_of(attach: &Address) -> Result<Address, AddressError> {
    Address::new(Scheme::Shm, &format!("{}-engine", attach.name()))
}

fn settings(attach: &Address, node: &str) -> Result<TierConfig, AddressError> {
    settings_of(attach, &NODES.map(str::to_owned), node)
}

/// The nodes of the peer process, and its service for processes, which ends before them.
pub(super) struct Nodes {
    _processes: ProcessServer<ShmFabric>,
    _nodes: Vec<Tier<ShmFabric>>,
}

impl Nodes {
    /// Starts two nodes; returns them with the address for a service of the engine beside them.
    pub(super) fn start(fabric: &ShmFabric, attach: &Address) -> Result<(Nodes, Address), String> {
        let text = |error: &dyn std::error::Error| WithSources(error).to_string();
        let node = |name: &&str| {
            let settings = settings(attach, name).map_err(|error| text(&error))?;
            Tier::within(fabric, settings).map_err(|error| text(&error))
        };
        let nodes = NODES[..2].iter().map(node).collect::<Result<Vec<_>, String>>()?;
        let processes = ProcessServer::serve(fabric, &nodes[0], ProcessConfig::new(attach.clone()))
            .map_err(|error| text(&error))?;
        let engine = engine_of(attach).map_err(|error| text(&error))?;
        Ok((Nodes { _processes: processes, _nodes: nodes }, engine))
    }
}

/// An operation under measurement.
struct Entrant<'a> {
    way: &'static str,
    operation: &'static str,
    bytes: usize,
    /// The place of the entrant that it is compared with.
    over: Option<usize>,
    /// Operations of one run.
    times: u64,
    run: Box<dyn FnMut() -> Result<(), String> + 'a>,
    /// Nanoseconds of an operation, by round.
    found: Vec<f64>,
}

/// All operations, in the order in which they are measured.
#[derive(Default)]
struct Entrants<'a>(Vec<Entrant<'a>>);

impl<'a> Entrants<'a> {
    /// Adds an operation; returns its place.
    fn add<E: std::error::Error>(
        &mut self,
        (way, operation, bytes): (&'static str, &'static str, usize),
        (over, times): (Option<usize>, u64),
        mut run: impl FnMut() -> Result<(), E> + 'a,
    ) -> usize {
        let run = Box::new(move || run().map_err(|error| WithSources(&error).to_string()));
        self.0.push(Entrant { way, operation, bytes, over, times, run, found: Vec::new() });
        self.0.len() - 1
    }

    /// Adds reads and writes of a region of another node.
    fn add_region<L: AnyLmr>(&mut self, way: &'static str, region: &'a L, [call, copy]: [usize; 2]) {
        for (bytes, over) in [(64, call), (4096, call), (LONGEST, copy)] {
            let (from, mut into) = (vec![7; bytes], vec![0; bytes]);
            self.add((way, "write", bytes), (Some(over), 1), move || region.write(0, &from));
            self.add((way, "read", bytes), (Some(over), 1), move || region.read(0, &mut into));
        }
        self.add((way, "fetch_add", 8), (Some(call), 1), move || region.fetch_add(0, 1).map(|_| ()));
    }

    fn measure(&mut self, rounds: usize) -> Result<(), MeasureError> {
        let progress = progress_bar(rounds * self.0.len());
        for _ in 0..rounds {
            for entrant in &mut self.0 {
                progress.set_message(format!("{}: {} {} B", entrant.way, entrant.operation, entrant.bytes));
                let (begin, mut runs) = (Instant::now(), 0);
                while begin.elapsed() < SLICE {
                    (entrant.run)().map_err(|reason| {
                        let what = format!("{}, {}: {reason}", entrant.way, entrant.operation);
                        MeasureError::BadArgument(what)
                    })?;
                    runs += 1;
                }
                entrant.found.push(begin.elapsed().as_nanos() as f64 / (runs * entrant.times) as f64);
                progress.inc(1);
            }
        }
        progress.finish_and_clear();
        Ok(())
    }

    fn rows(&self) -> Vec<Row> {
        let row = |entrant: &Entrant<'_>| {
            let mut row = Row::new()
                .with("way", entrant.way)
                .with("operation", entrant.operation)
                .with("size_bytes", entrant.bytes)
                .with("median_ns", median(entrant.found.iter().copied()).map(rounded));
            if let Some(base) = entrant.over.and_then(|over| self.0.get(over)) {
                let ratios =
                    entrant.found.iter().zip(&base.found).filter_map(|(own, base)| ratio(*own, *base));
                row.set("over", format!("{}, {} {} B", base.way, base.operation, base.bytes));
                row.set("ratio", median(ratios).map(rounded));
            }
            row
        };
        self.0.iter().map(row).collect()
    }
}

/// Measures operations on the memory tier, each for a slice in each round; the ratio of a row is the median over the rounds.
/// Two nodes and a service of the engine are in the peer process, a third node is in this one. Blocks for some seconds.
///
/// # Errors
/// Any failure.
pub fn tier(session: &mut Session, options: &TierOptions) -> Result<Findings, MeasureError> {
    let rounds = options.rounds.unwrap_or(ROUNDS);
    if rounds == 0 {
        return Err(MeasureError::BadArgument("0 rounds measure nothing: take at least 1".to_owned()));
    }
    let served = session.serve(ServiceKind::Nodes, Drive::Thread)?;
    let rows = session.while_serving(&served, |fabric, attach| measure(fabric, attach, rounds))?;
    Ok(Findings { rows, notes: Vec::new() })
}

fn measure(fabric: &ShmFabric, attach: &Address, rounds: usize) -> Result<Vec<Row>, MeasureError> {
    let failed = |error: &dyn std::error::Error| MeasureError::BadArgument(WithSources(error).to_string());
    let address = engine_of(attach).map_err(|error| failed(&error))?;
    let plan = Protocol::by_name("Server-reply").map(|row| row.plan(CompletionMode::Busy));
    let config = ClientConfig { plan, window: LISTED as u16, ..ClientConfig::default() };
    let mut client = Session::connect_to(fabric, &address, &config)?;
    let mut many = Session::connect_to(fabric, &address, &config)?;
    let mut usual = Session::connect_to(fabric, &address, &ClientConfig::default())?;
    let attached = dunlin_tier_client::Tier::attach_with(fabric, AttachConfig::new(attach.clone()))
        .map_err(|error| failed(&error))?;
    let own = Tier::within(fabric, settings(attach, NODES[2]).map_err(|error| failed(&error))?)
        .map_err(|error| failed(&error))?;
    let length = LONGEST as u64;
    let through = attached.malloc(length, Spec::on(NODES[1])).map_err(|error| failed(&error))?;
    let within: Lmr<ShmFabric> = own.malloc(length, Spec::on(NODES[1])).map_err(|error| failed(&error))?;
    let own_node = attached.malloc(length, Spec::here().direct()).map_err(|error| failed(&error))?;
    let near = attached.malloc(length, Spec::here()).map_err(|error| failed(&error))?;
    let mapped: Direct = own_node.direct().map_err(|error| failed(&error))?;

    let mut all = Entrants::default();
    let call =
        all.add(("the engine", "call", 32), (None, 1), move || client.call_on(0, ECHO, &[7; 32]).map(|_| ()));
    all.add(("the engine", "call by the default plan", 32), (Some(call), 1), move || {
        usual.call_on(0, ECHO, &[7; 32]).map(|_| ())
    });
    let calls = all.add(("the engine", "64 calls in flight", 32), (None, LISTED as u64), move || {
        for _ in 0..LISTED {
            many.push_on(0, ECHO, &[7; 32])?;
        }
        while let Some(id) = many.wait_any() {
            many.outcome(id)?;
            many.forget(id);
        }
        Ok::<(), dunlin_rpc::CallError>(())
    });
    let mut copy = 0;
    for bytes in [64, 4096, LONGEST] {
        let (from, mut into) = (vec![7; bytes], vec![9; bytes]);
        let times = if bytes == LONGEST { 1 } else { ACCESSES };
        copy = all.add(("own memory", "copy", bytes), (None, times), move || {
            for _ in 0..times {
                into.copy_from_slice(black_box(&from));
                black_box(&mut into);
            }
            Ok::<(), std::fmt::Error>(())
        });
        let (from, mut into) = (vec![7; bytes], vec![0; bytes]);
        let mapped = &mapped;
        all.add(("mapped", "write", bytes), (Some(copy), times), move || {
            (0..times).try_for_each(|_| mapped.copy_in(0, &from))
        });
        all.add(("mapped", "read", bytes), (Some(copy), times), move || {
            (0..times).try_for_each(|_| mapped.copy_out(0, &mut into))
        });
    }
    let words = &mapped;
    all.add(("mapped", "load", 8), (None, ACCESSES), move || {
        (0..ACCESSES).try_for_each(|at| words.load(at % 512 * 8).map(|word| _ = black_box(word)))
    });
    all.add_region("through the node", &through, [call, copy]);
    all.add_region("through the node, its own bytes", &near, [call, copy]);
    all.add_region("in one process", &within, [call, copy]);
    let (region, mut places) = (&through, [[0; 64]; LISTED]);
    all.add(("through the node", "list of 64 reads", 64), (Some(calls), LISTED as u64), move || {
        let mut list = dunlin_tier_client::Operations::new();
        for (at, place) in places.iter_mut().enumerate() {
            list = list.read(region, 4096 * at as u64, place);
        }
        list.run().map(|_| ())
    });
    all.add(("through the node", "malloc and free", 4096), (None, 1), || {
        attached.malloc(4096, Spec::here()).and_then(|region| region.free())
    });
    all.measure(rounds)?;
    Ok(all.rows())
}
