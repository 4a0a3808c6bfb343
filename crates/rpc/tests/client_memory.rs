//! The memory that a server takes for each client whose lease ends, as the allocator counts it: lane, session, and entries
//! of all maps (ScaleRPC section 3.3). The memory of the fabric for a connection, its queue pair and its grants is taken
//! off: a server without the engine, in the same process, has the same number of them.

#![allow(missing_docs, clippy::disallowed_methods, clippy::disallowed_types)]

mod common;

use common::process::{Process, add_role, ready};
use common::*;
use dunlin_fabric::interpose::{DomainHooks, Hooks, Interposed, LinkHooks};
use dunlin_fabric::{
    Access, Address, Arena, CompletionStatus, CreateError, Data, Endpoint, Fabric, Link, Listener, Operation,
    QueuePairConfig, QueuePairId, Region, RegionKey, RemoteSlice, ThreadDomain, WorkId, WorkRequest,
};
use dunlin_fabric_shm::{ShmDomain, ShmFabric, ShmLink, ShmMemory};
use dunlin_rpc::plan::{Lease, Protocol, Sharing};
use dunlin_rpc::*;
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, Ordering};

/// Answers with the live bytes of the process, the number of lost clients, and the depths of the last queue pair.
const COUNTS: u16 = 2;
/// The bytes of one client of both servers that the other one has registered.
const REGION: u64 = 16 * 1024 + 64;
/// The clients that are there before the counts begin.
const FEW: usize = 256;
/// The further clients, and how many of them connect between two counts: tables grow at some of them.
const MORE: usize = 1000;
const STEP: usize = 125;
/// The most bytes of a client with a window of 64 (ScaleRPC section 3.3).
const MOST: i64 = 1024;

struct Counting;

/// Bytes of live blocks, as the usual allocator of Linux has them: eight bytes before each, in steps of 16.
static LIVE: AtomicI64 = AtomicI64::new(0);

fn chunk(layout: Layout) -> i64 {
    (layout.size() + 8).next_multiple_of(16).max(32) as i64
}

// SAFETY: every call goes to the system allocator unchanged; only a counter changes.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(chunk(layout), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`, which is the system allocator's too.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(chunk(layout), Ordering::Relaxed);
        // SAFETY: as above; `pointer` came from the system allocator, with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn main() {
    add_role("counted", serve_both);
    common::run(&[(
        "client_memory",
        &[("all_memory_of_a_client_is_counted", all_memory_of_a_client_is_counted as fn())],
    )]);
}

/// The depths of a queue pair.
type Depths = [u32; 3];

/// The number of clients that lost their connections.
static LOST: AtomicI64 = AtomicI64::new(0);
/// The depths of the engine's last queue pair.
static DEPTHS: Mutex<Depths> = Mutex::new([0; 3]);

/// Notes the depths of queue pairs.
#[derive(Clone, Debug)]
struct Noting;

impl Hooks<ShmFabric> for Noting {
    type Domain = Noting;
    type Link = Noting;
    fn domain_hooks(&self) -> Noting {
        Noting
    }
    fn link_hooks(&self) -> Noting {
        Noting
    }
}

impl LinkHooks<ShmLink> for Noting {}

impl DomainHooks<ShmDomain> for Noting {
    fn create_queue_pair(
        &mut self,
        inner: &mut ShmDomain,
        config: &QueuePairConfig,
    ) -> Result<QueuePairId, CreateError> {
        *DEPTHS.lock().unwrap() = [config.max_send, config.max_receive, config.inbound_bytes];
        inner.create_queue_pair(config)
    }

    fn destroy_queue_pair(
        &mut self,
        inner: &mut ShmDomain,
        queue_pair: QueuePairId,
    ) -> Result<(), CreateError> {
        LOST.fetch_add(1, Ordering::SeqCst);
        inner.destroy_queue_pair(queue_pair)
    }
}

/// Plays both servers, at the addresses of its arguments.
fn serve_both(arguments: &str) {
    let (engine, plain) = arguments.split_once(' ').unwrap();
    let service = |request: &Request<'_>, reply: &mut Reply<'_>| {
        if request.function != COUNTS {
            return Ok(reply.write(request.payload)?);
        }
        let depths = DEPTHS.lock().unwrap().map(u32::to_le_bytes);
        let counts = [&LIVE, &LOST].map(|count| count.load(Ordering::SeqCst).to_le_bytes());
        reply.write(&[counts.as_flattened(), depths.as_flattened()].concat())?;
        Ok(())
    };
    let _server = ServerBuilder::new(&Interposed::with_hooks(fabric(), Noting))
        .config(ServerConfig { max_connections: 2 * (FEW + MORE) as u32, ..ServerConfig::default() })
        .function(ECHO, FunctionMode::Worker)
        .function(COUNTS, FunctionMode::Worker)
        .serve(&engine.parse().unwrap(), move |_| Box::new(service))
        .unwrap();
    let plain = plain.parse().unwrap();
    serve_without_engine(&plain);
}

/// Accepts connections, each with a queue pair: makes the requests and the grants that the engine makes.
fn serve_without_engine(address: &Address) {
    let fabric = fabric();
    let listener = fabric.listen(address).unwrap();
    let mut domain = fabric.domain().unwrap();
    let queue = domain.create_completion_queue(4096, false).unwrap();
    let [pool, line] = [(); 2].map(|()| Region::new(fabric.register(1 << 20, Access::WRITE).unwrap()));
    let arena = Arena::new(fabric.register(1 << 20, Access::LOCAL).unwrap()).unwrap();
    let mut links = Vec::with_capacity(2 * (FEW + MORE));
    let mut completions = Vec::new();
    ready();
    loop {
        let link = listener.accept(after(HANG)).unwrap();
        let hello = link.receive(after(HANG)).unwrap();
        let words: Vec<u32> =
            hello.as_chunks().0.iter().take(7).map(|word| u32::from_le_bytes(*word)).collect();
        let depths = [words[4], words[5], words[6]];
        let key = |at: usize| RegionKey(u64::from(words[at]) | u64::from(words[at + 1]) << 32);
        let (answers, staged) = (key(0), key(2));
        let queue_pair = domain.create_queue_pair(&config(queue, depths)).unwrap();
        link.grant(line.memory(), Access::WRITE).unwrap();
        link.grant(pool.memory(), Access::WRITE).unwrap();
        let endpoint = domain.endpoint(queue_pair, &link).unwrap();
        domain.connect(queue_pair, &link, &Endpoint(hello[28..].to_vec())).unwrap();
        link.send(&endpoint.0).unwrap();
        let from = RemoteSlice { key: staged, offset: 64, length: 64 };
        let read = Operation::Read { from, into: arena.reserve(64).unwrap() };
        let data = Data::Inline(&[&[7; 64]]);
        let write = Operation::Write { data, key: answers, offset: 64, immediate: None };
        for operation in [write, read] {
            domain.post(queue_pair, WorkRequest { id: WorkId(1), operation, signaled: true }).unwrap();
        }
        while completions.len() < 2 {
            domain.poll(queue, &mut completions, 8);
        }
        assert!(completions.iter().all(|one| one.status == CompletionStatus::Success), "{completions:?}");
        completions.clear();
        links.push((link, queue_pair));
    }
}

fn config(queue: dunlin_fabric::CompletionQueueId, [send, receive, inbound]: Depths) -> QueuePairConfig {
    QueuePairConfig {
        max_send: send,
        max_receive: receive,
        inbound_bytes: inbound,
        ..QueuePairConfig::reliable(queue, queue)
    }
}

/// A client of the server without the engine.
struct Plain {
    _domain: ShmDomain,
    _link: ShmLink,
    _regions: [Region<ShmMemory>; 2],
}

fn connect_without_engine(fabric: &ShmFabric, address: &Address, depths: Depths) -> Plain {
    let link = fabric.dial(address, after(HANG)).unwrap();
    let mut domain = fabric.domain().unwrap();
    let queue = domain.create_completion_queue(64, false).unwrap();
    let queue_pair = domain.create_queue_pair(&config(queue, [64, 64, 4096])).unwrap();
    let regions = [Access::WRITE, Access::READ]
        .map(|access| (Region::new(fabric.register(REGION, access).unwrap()), access));
    let keys = regions.each_ref().map(|(region, access)| link.grant(region.memory(), *access).unwrap().0);
    let keys = keys.map(u64::to_le_bytes);
    let endpoint = domain.endpoint(queue_pair, &link).unwrap();
    let depths = depths.map(u32::to_le_bytes);
    link.send(&[keys.as_flattened(), depths.as_flattened(), &endpoint.0].concat()).unwrap();
    let remote = link.receive(after(HANG)).unwrap();
    domain.connect(queue_pair, &link, &Endpoint(remote)).unwrap();
    let regions = regions.map(|(region, _)| region);
    until("the server has written", || {
        let mut byte = [0];
        regions[0].copy_out(64, &mut byte);
        byte == [7]
    });
    Plain { _domain: domain, _link: link, _regions: regions }
}

fn all_memory_of_a_client_is_counted() {
    let (engine, plain) = (unique("counted"), unique("plain"));
    let _server = Process::start("counted", &format!("{engine} {plain}"));
    let fabric = fabric();
    let plan = Protocol::by_name("Server-reply").unwrap().plan(CompletionMode::Busy);
    let connect = |plan| {
        let program = "a program with a long name".to_owned();
        let config = ClientConfig { window: 64, program, ..ClientConfig::with_plan(plan) };
        let mut client = Client::connect(&fabric, &engine, config).unwrap();
        client.call(ECHO, &[7; 40]).unwrap();
        client
    };
    let mut asks = connect(plan);
    let plan = plan.shared(Sharing::Dedicated, Lease::Slice);
    let mut counts = || {
        let answer = asks.call(COUNTS, &[]).unwrap();
        let [live, lost] = [0, 8].map(|at| i64::from_le_bytes(*answer[at..].first_chunk().unwrap()));
        assert_eq!(lost, 0, "clients have lost their connections");
        let words = answer[16..].as_chunks().0;
        (live, [0, 1, 2].map(|at| u32::from_le_bytes(words[at])))
    };
    // The bytes of further clients, by their number.
    let mut grows = |more: &mut dyn FnMut(Depths)| {
        let mut by = |count: usize| {
            let (_, depths) = counts();
            (0..count).for_each(|_| more(depths));
            counts().0
        };
        // The one that asks is there already.
        let few = by(FEW - 1);
        [(); MORE / STEP].map(|()| by(STEP) - few)
    };
    let mut clients: Vec<Client<ShmFabric>> = Vec::new();
    let engine = grows(&mut |_| {
        clients.push(connect(plan));
        // A client that looks at no answer for long hears of no end of its lease, and may lose its connection. Without a
        // call it looks once in 64 times.
        if clients.len().is_multiple_of(16) {
            clients.iter_mut().for_each(|client| {
                (0..64).for_each(|_| {
                    client.progress();
                });
            });
        }
    });
    let mut clients = Vec::new();
    let without = grows(&mut |depths| clients.push(connect_without_engine(&fabric, &plain, depths)));
    for (step, (engine, without)) in (1..).zip(engine.into_iter().zip(without)) {
        let further = step * STEP as i64;
        // The lines of clients are registered memory, which the allocator does not count.
        let taken = (engine - without) / further + 64;
        println!("{taken} bytes for each of {further} clients, beside {} of the fabric", without / further);
        // Few clients may find room in tables, or pay for the room of others.
        let is_all = further == MORE as i64;
        assert!(!is_all || (1..=MOST).contains(&taken), "{taken} bytes of a client");
    }
}
