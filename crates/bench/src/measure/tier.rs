//! `bench tier`: operations on the memory tier: by a process that attaches to the node of its host, by one that has a node
//! itself, and on memory that is mapped; beside a call of the engine and copies of the same processes.

use std::cell::RefCell;
use std::hint::black_box;
use std::rc::Rc;
use std::time::{Duration, Instant};

use dunlin_fabric::{Address, AddressError, Scheme, WithSources};
use dunlin_fabric_shm::ShmFabric;
use dunlin_rpc::{ClientConfig, CompletionMode, Protocol};
use dunlin_tier_client::{AttachConfig, Direct};
use dunlin_tier_node::{AnyLmr, Lmr, Peer, ProcessConfig, ProcessServer, Rights, Spec, Tier, TierConfig};

use super::peer::{Drive, ECHO, ServiceKind};
use super::session::Session;
use super::tier_bare::Bare;
use super::{Findings, MeasureError, progress_bar};
use dunlin_report::statistics::{median, ratio};
use dunlin_report::{Row, rounded};

/// The parameters of the measurement.
#[derive(Clone, Debug, Default)]
pub struct TierOptions {
    /// Rounds in which each operation has a slice. Default: 31.
    pub rounds: Option<usize>,
    /// Only operations whose row has this text, and those with which they are compared. Default: all.
    pub only: Option<String>,
}

const ROUNDS: usize = 31;
/// The time of one operation in a round.
const SLICE: Duration = Duration::from_millis(3);
/// The nodes: the first two in the peer process, the last one in that of the threads that use it.
const NODES: [&str; 4] = ["one", "two", "own", "large"];
/// The memory of a node, and of the last one.
const MEMORY: u64 = 64 << 20;
const LARGE: u64 = 1280 << 20;
/// The longest region that is made and freed.
const LONGEST_REGION: u64 = 1 << 30;
/// The length of a region, and of the longest operation.
const LONGEST: usize = 1 << 20;
/// The lengths of operations.
const LENGTHS: [usize; 3] = [64, 4096, LONGEST];
/// Operations of a list, and calls in flight beside it.
const LISTED: usize = 64;
/// Accesses of mapped memory between two looks at the clock.
const ACCESSES: u64 = 1000;
/// Attachments that run lists at the same time, and the lists of each in one run.
const ATTACHED: usize = 4;
const LISTS: usize = 16;
/// The longest wait for zeroed memory.
const CLEANED: Duration = Duration::from_secs(30);

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
    is_wanted: bool,
    /// Returns the part of its time that does not count.
    run: Box<dyn FnMut() -> Result<Duration, String> + 'a>,
    /// Nanoseconds of an operation, by round.
    found: Vec<f64>,
}

impl Entrant<'_> {
    /// Returns the nanoseconds of an operation in a slice, without the first run: the others have used the caches.
    fn slice(&mut self) -> Result<f64, MeasureError> {
        let mut run = || {
            (self.run)().map_err(|reason| {
                MeasureError::BadArgument(format!("{}, {}: {reason}", self.way, self.operation))
            })
        };
        run()?;
        let (begin, mut runs, mut apart) = (Instant::now(), 0, Duration::ZERO);
        while begin.elapsed() < SLICE {
            apart += run()?;
            runs += 1;
        }
        let time = begin.elapsed().saturating_sub(apart);
        Ok(time.as_nanos() as f64 / (runs * self.times) as f64)
    }
}

/// All operations, in the order in which they are measured.
#[derive(Default)]
struct Entrants<'a>(Vec<Entrant<'a>>);

impl<'a> Entrants<'a> {
    /// Adds an operation; returns its place.
    fn add<E: std::error::Error>(
        &mut self,
        name: (&'static str, &'static str, usize),
        over: (Option<usize>, u64),
        mut run: impl FnMut() -> Result<(), E> + 'a,
    ) -> usize {
        self.add_timed(name, over, move || run().map(|()| Duration::ZERO).map_err(text))
    }

    /// As [`add`](Entrants::add), with runs that return the part of their time that does not count.
    fn add_timed(
        &mut self,
        (way, operation, bytes): (&'static str, &'static str, usize),
        (over, times): (Option<usize>, u64),
        run: impl FnMut() -> Result<Duration, String> + 'a,
    ) -> usize {
        let (run, is_wanted, found) = (Box::new(run), true, Vec::new());
        self.0.push(Entrant { way, operation, bytes, over, times, is_wanted, run, found });
        self.0.len() - 1
    }

    /// Adds reads and writes of a region of another node; `over` are the places of those with which they are compared, by
    /// length and kind, and then of the one for atomics.
    fn add_region<L: AnyLmr>(&mut self, way: &'static str, region: &'a L, over: [usize; 7]) {
        for (place, bytes) in LENGTHS.into_iter().enumerate() {
            let (from, mut into) = (vec![7; bytes], vec![0; bytes]);
            let over = [over[2 * place], over[2 * place + 1]].map(|over| (Some(over), 1));
            self.add((way, "write", bytes), over[0], move || region.write(0, &from));
            self.add((way, "read", bytes), over[1], move || region.read(0, &mut into));
        }
        self.add((way, "fetch_add", 8), (Some(over[6]), 1), move || region.fetch_add(0, 1).map(|_| ()));
    }

    /// Leaves the operations whose row has this text, and those with which they are compared.
    fn select(&mut self, only: &str) -> Result<(), MeasureError> {
        let has = |one: &Entrant<'_>| format!("{} {} {} B", one.way, one.operation, one.bytes).contains(only);
        let chosen: Vec<usize> = (0..self.0.len()).filter(|place| has(&self.0[*place])).collect();
        if chosen.is_empty() {
            return Err(MeasureError::BadArgument(format!(
                "no operation has {only:?} in its row: without --only all of them are measured"
            )));
        }
        for place in chosen {
            self.0[place].is_wanted = true;
            if let Some(over) = self.0[place].over {
                self.0[over].is_wanted = true;
            }
        }
        Ok(())
    }

    /// Measures all operations in each round. Those on more memory than the caches have come after all rounds of the
    /// others, which would find their own memory gone from the caches.
    fn measure(&mut self, rounds: usize) -> Result<(), MeasureError> {
        let count = self.0.iter().filter(|entrant| entrant.is_wanted).count();
        let progress = progress_bar(rounds * count);
        for is_large in [false, true] {
            let is_due = |one: &&mut Entrant<'_>| one.is_wanted && (one.bytes > LONGEST) == is_large;
            for _ in 0..rounds {
                for entrant in self.0.iter_mut().filter(is_due) {
                    let row = format!("{}: {} {} B", entrant.way, entrant.operation, entrant.bytes);
                    progress.set_message(row);
                    let found = entrant.slice()?;
                    entrant.found.push(found);
                    progress.inc(1);
                }
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
                let more = entrant.found.iter().zip(&base.found).map(|(own, base)| own - base);
                row.set("more_ns", median(more).map(rounded));
            }
            row
        };
        self.0.iter().filter(|entrant| entrant.is_wanted).map(row).collect()
    }
}

/// Measures operations on the memory tier, each for a slice in each round; the ratio of a row, and its difference, are the
/// medians over the rounds. Two nodes and a service of the engine are in the peer process, two nodes are in this one. Blocks
/// for some seconds.
///
/// # Errors
/// Any failure.
pub fn tier(session: &mut Session, options: &TierOptions) -> Result<Findings, MeasureError> {
    let rounds = options.rounds.unwrap_or(ROUNDS);
    if rounds == 0 {
        return Err(MeasureError::BadArgument("0 rounds measure nothing: take at least 1".to_owned()));
    }
    let served = session.serve(ServiceKind::Nodes, Drive::Thread)?;
    let rows = session
        .while_serving(&served, |fabric, attach| measure(fabric, attach, rounds, options.only.as_deref()))?;
    Ok(Findings { rows, notes: Vec::new() })
}

fn text(error: impl std::error::Error) -> String {
    WithSources(&error).to_string()
}

fn measure(
    fabric: &ShmFabric,
    attach: &Address,
    rounds: usize,
    only: Option<&str>,
) -> Result<Vec<Row>, MeasureError> {
    let tiers = Tiers::new(fabric, attach).map_err(MeasureError::BadArgument)?;
    let mut all = Entrants::default();
    let bases = add_bases(&mut all, fabric, attach)?;
    add_operations(&mut all, &tiers, &bases).map_err(MeasureError::BadArgument)?;
    if let Some(only) = only {
        all.0.iter_mut().for_each(|entrant| entrant.is_wanted = false);
        all.select(only)?;
    }
    all.measure(rounds)?;
    Ok(all.rows())
}

/// The users of the nodes.
struct Tiers {
    /// Processes that attach, as far as their node can tell.
    attached: Vec<dunlin_tier_client::Tier<ShmFabric>>,
    through: Vec<dunlin_tier_client::Lmr<ShmFabric>>,
    own_node: dunlin_tier_client::Lmr<ShmFabric>,
    near: dunlin_tier_client::Lmr<ShmFabric>,
    within: Lmr<ShmFabric>,
    large: Tier<ShmFabric>,
    /// The free memory of that node before any use.
    room: u64,
    own: Tier<ShmFabric>,
}

impl Tiers {
    fn new(fabric: &ShmFabric, attach: &Address) -> Result<Tiers, String> {
        let attached = (0..ATTACHED)
            .map(|_| dunlin_tier_client::Tier::attach_with(fabric, AttachConfig::new(attach.clone())))
            .collect::<Result<Vec<_>, _>>()
            .map_err(text)?;
        let own = Tier::within(fabric, settings(attach, NODES[2]).map_err(text)?).map_err(text)?;
        let settings = settings(attach, NODES[3]).map_err(text)?;
        let large = Tier::within(fabric, TierConfig { memory: LARGE, ..settings }).map_err(text)?;
        let length = LONGEST as u64;
        let regions = |spec: fn() -> Spec| {
            let of = |tier: &dunlin_tier_client::Tier<ShmFabric>| tier.malloc(length, spec());
            attached.iter().map(of).collect::<Result<Vec<_>, _>>().map_err(text)
        };
        let through = regions(|| Spec::on(NODES[1]))?;
        let within = own.malloc(length, Spec::on(NODES[1])).map_err(text)?;
        drop(own.malloc(4096, Spec::on(NODES[1]).named(MAPPED)).map_err(text)?);
        let own_node = attached[0].malloc(length, Spec::here().direct()).map_err(text)?;
        let near = attached[0].malloc(length, Spec::here()).map_err(text)?;
        let room = large.free_memory();
        Ok(Tiers { attached, through, own_node, near, within, large, room, own })
    }
}

/// The places of the operations with which others are compared.
struct Bases {
    call: usize,
    many: usize,
    /// By length.
    copies: [usize; 3],
    /// WRITE and READ by length.
    bare: [usize; 6],
}

/// Adds calls of the engine, copies, and requests of the fabric.
fn add_bases(all: &mut Entrants<'_>, fabric: &ShmFabric, attach: &Address) -> Result<Bases, MeasureError> {
    let address = engine_of(attach).map_err(|error| MeasureError::BadArgument(text(error)))?;
    let plan = Protocol::by_name("Server-reply").map(|row| row.plan(CompletionMode::Busy));
    let config = ClientConfig { plan, window: LISTED as u16, ..ClientConfig::default() };
    let mut client = Session::connect_to(fabric, &address, &config)?;
    let mut many = Session::connect_to(fabric, &address, &config)?;
    let mut usual = Session::connect_to(fabric, &address, &ClientConfig::default())?;
    let call =
        all.add(("the engine", "call", 32), (None, 1), move || client.call_on(0, ECHO, &[7; 32]).map(|_| ()));
    all.add(("the engine", "call by the default plan", 32), (Some(call), 1), move || {
        usual.call_on(0, ECHO, &[7; 32]).map(|_| ())
    });
    let many = all.add(("the engine", "64 calls in flight", 32), (None, LISTED as u64), move || {
        for _ in 0..LISTED {
            many.push_on(0, ECHO, &[7; 32])?;
        }
        while let Some(id) = many.wait_any() {
            many.outcome(id)?;
            many.forget(id);
        }
        Ok::<(), dunlin_rpc::CallError>(())
    });
    let copies = LENGTHS.map(|bytes| {
        let (from, mut into) = (vec![7; bytes], vec![9; bytes]);
        let times = accesses(bytes);
        all.add(("own memory", "copy", bytes), (None, times), move || {
            for _ in 0..times {
                into.copy_from_slice(black_box(&from));
                black_box(&mut into);
            }
            Ok::<(), std::fmt::Error>(())
        })
    });
    let address = Address::new(Scheme::Shm, &format!("{}-bare", attach.name()));
    let address = address.map_err(|error| MeasureError::BadArgument(text(error)))?;
    let bare = Bare::new(fabric, &address, LONGEST as u64).map_err(MeasureError::BadArgument)?;
    let bare = Rc::new(RefCell::new(bare));
    let mut places = [0; 6];
    for (place, bytes) in LENGTHS.into_iter().enumerate() {
        let (writer, reader) = (Rc::clone(&bare), Rc::clone(&bare));
        let (from, mut into) = (vec![7; bytes], vec![0; bytes]);
        places[2 * place] =
            all.add_timed(("the fabric", "write", bytes), (Some(copies[place]), 1), move || {
                writer.borrow_mut().write(&from).map(|()| Duration::ZERO)
            });
        places[2 * place + 1] =
            all.add_timed(("the fabric", "read", bytes), (Some(copies[place]), 1), move || {
                reader.borrow_mut().read(&mut into).map(|()| Duration::ZERO)
            });
    }
    Ok(Bases { call, many, copies, bare: places })
}

/// Returns the copies between two looks at the clock.
fn accesses(bytes: usize) -> u64 {
    if bytes == LONGEST { 1 } else { ACCESSES }
}

/// Adds the operations of the tier.
fn add_operations<'a>(all: &mut Entrants<'a>, tiers: &'a Tiers, bases: &Bases) -> Result<(), String> {
    let Bases { call, many, copies, bare } = *bases;
    let mapped: &Rc<Direct> = &Rc::new(tiers.own_node.direct().map_err(text)?);
    for (bytes, copy) in LENGTHS.into_iter().zip(copies) {
        let (from, mut into) = (vec![7; bytes], vec![0; bytes]);
        let (over, times) = (Some(copy), accesses(bytes));
        let (writer, reader) = (Rc::clone(mapped), Rc::clone(mapped));
        all.add(("mapped", "write", bytes), (over, times), move || {
            (0..times).try_for_each(|_| writer.copy_in(0, &from))
        });
        all.add(("mapped", "read", bytes), (over, times), move || {
            (0..times).try_for_each(|_| reader.copy_out(0, &mut into))
        });
    }
    let words = Rc::clone(mapped);
    all.add(("mapped", "load", 8), (None, ACCESSES), move || {
        (0..ACCESSES).try_for_each(|at| words.load(at % 512 * 8).map(|word| _ = black_box(word)))
    });
    let [.., copy] = copies;
    let [small_write, small_read, page_write, page_read, write, read] = bare;
    all.add_region("through the node", &tiers.through[0], [call, call, call, call, write, read, call]);
    let region = &tiers.through[0];
    for (bytes, over) in [(64, [call, call]), (4096, [call, call]), (LONGEST, [write, read])] {
        let way = "through the node, in a buffer";
        let buffer = || tiers.attached[0].buffer(bytes).map_err(text);
        let (mut from, mut into) = (buffer()?, buffer()?);
        all.add((way, "write", bytes), (Some(over[0]), 1), move || region.write_from(0, &mut from, ..));
        all.add((way, "read", bytes), (Some(over[1]), 1), move || region.read_into(0, &mut into, ..));
    }
    all.add_region(
        "through the node, its own bytes",
        &tiers.near,
        [call, call, call, call, copy, copy, call],
    );
    let by_fabric = [small_write, small_read, page_write, page_read, write, read, call];
    all.add_region("in one process", &tiers.within, by_fabric);
    let (region, mut places) = (&tiers.through[0], [[0; 64]; LISTED]);
    all.add(("through the node", LIST, 64), (Some(many), LISTED as u64), move || list(region, &mut places));
    let times = (ATTACHED * LISTS * LISTED) as u64;
    all.add_timed(("through the node, four processes", LIST, 64), (Some(many), times), move || {
        std::thread::scope(|scope| {
            let run = |region| {
                let mut places = [[0; 64]; LISTED];
                (0..LISTS).try_for_each(|_| list(region, &mut places)).map_err(text)
            };
            let users: Vec<_> = tiers.through.iter().map(|region| scope.spawn(move || run(region))).collect();
            let ended = |_| "a thread panicked".to_owned();
            users.into_iter().try_for_each(|user| user.join().map_err(ended)?)
        })?;
        Ok(Duration::ZERO)
    });
    all.add(("through the node", "malloc and free", 4096), (None, 1), || {
        tiers.attached[0].malloc(4096, Spec::here()).and_then(|region| region.free())
    });
    for length in [4096, LONGEST_REGION] {
        for (operation, counts_malloc) in [("malloc", true), ("free", false)] {
            all.add_timed(("in one process", operation, length as usize), (None, 1), move || {
                let begin = Instant::now();
                let region = tiers.large.malloc(length, Spec::here()).map_err(text)?;
                let made = begin.elapsed();
                region.free().map_err(text)?;
                let freed = begin.elapsed();
                // Nothing else is measured while the node zeroes much memory.
                if length == LONGEST_REGION {
                    clean(tiers)?;
                }
                Ok(begin.elapsed() - if counts_malloc { made } else { freed - made })
            });
        }
    }
    all.add(("in one process", "map and unmap by name", 4096), (Some(call), 1), || {
        tiers.own.map(MAPPED, Rights::READ).map(drop)
    });
    Ok(())
}

const LIST: &str = "list of 64 reads";
/// The name of a region that is mapped again and again.
const MAPPED: &str = "bench/mapped";

/// Waits until all free memory of the large node is zeroed.
fn clean(tiers: &Tiers) -> Result<(), String> {
    let wait = Instant::now();
    while tiers.large.free_memory() < tiers.room {
        if wait.elapsed() > CLEANED {
            return Err("the node does not zero its memory".to_owned());
        }
        std::hint::spin_loop();
    }
    Ok(())
}

fn list(
    region: &dunlin_tier_client::Lmr<ShmFabric>,
    places: &mut [[u8; 64]; LISTED],
) -> Result<(), dunlin_tier_client::ListError> {
    let mut list = dunlin_tier_client::Operations::new();
    for (at, place) in places.iter_mut().enumerate() {
        list = list.read(region, 4096 * at as u64, place);
    }
    list.run().map(|_| ())
}
