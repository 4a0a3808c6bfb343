//! Reads, writes and atomics on another node's region allocate nothing after the first ones, of the node's threads and of
//! attached processes.

#![allow(missing_docs)]

use dunlin_fabric::Scheme;
use dunlin_fabric_shm::{ShmConfig, ShmFabric};
use dunlin_rpc::{Client, ClientConfig};
use dunlin_tier::process::{
    ATTACH, COMPARE_SWAP, FETCH_ADD, MALLOC, Opened, ProcessRequest, READ, SERVICE, WRITE, WRITE_NOTIFY,
};
use dunlin_tier_node::{Buffer, Lmr, Peer, Priority, ProcessConfig, ProcessServer, Spec, Tier, TierConfig};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicIsize, AtomicUsize, Ordering};

struct Counting;

thread_local! {
    // A counter per thread, so that the nodes' other threads do not count.
    static CALLS: Cell<usize> = const { Cell::new(0) };
}

/// Of all threads.
static ALL: AtomicUsize = AtomicUsize::new(0);
/// The bytes that all threads hold.
static HELD: AtomicIsize = AtomicIsize::new(0);

// SAFETY: every call goes to the system allocator unchanged; only counters are added.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        CALLS.set(CALLS.get() + 1);
        ALL.fetch_add(1, Ordering::Relaxed);
        HELD.fetch_add(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`, which is the system allocator's too.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: as above; `pointer` came from the system allocator, with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn operations(region: &Lmr<ShmFabric>, rounds: u64) {
    let mut bytes = [7; 5000];
    for round in 0..rounds {
        let offset = round * 4093 % 100_000;
        region.write(offset, &bytes[..64]).unwrap();
        region.write(offset, &bytes).unwrap();
        region.read(offset, &mut bytes).unwrap();
        region.fetch_add(offset & !7, 1).unwrap();
    }
}

fn operations_in_place(region: &Lmr<ShmFabric>, buffer: &mut Buffer<ShmFabric>, rounds: u64) {
    for round in 0..rounds {
        let offset = round * 4093 % 100_000;
        for length in [64, 5000] {
            region.write_from(offset, buffer, 7..7 + length).unwrap();
            region.read_into(offset, buffer, 7..7 + length).unwrap();
        }
    }
}

/// Makes each operation that a node's worker runs for a process, with answers of a word at most and of many bytes.
fn requests(client: &mut Client<ShmFabric>, handle: u64, rounds: u64, payload: &mut Vec<u8>) {
    let bytes = [7; 3000];
    for round in 0..rounds {
        let offset = round * 4088 % 90_000;
        let requests = [
            (WRITE, ProcessRequest::Write { priority: Priority::High, handle, offset, bytes: &bytes[..64] }),
            (WRITE, ProcessRequest::Write { priority: Priority::High, handle, offset, bytes: &bytes }),
            (READ, ProcessRequest::Read { priority: Priority::High, handle, offset, length: 2000 }),
            (FETCH_ADD, ProcessRequest::FetchAdd { priority: Priority::High, handle, offset, add: 1 }),
            (
                COMPARE_SWAP,
                ProcessRequest::CompareSwap {
                    priority: Priority::High,
                    handle,
                    offset,
                    expected: 1,
                    swap: 2,
                },
            ),
            (
                WRITE_NOTIFY,
                // Within one piece of the region, as larger ones would be.
                ProcessRequest::WriteNotify {
                    priority: Priority::High,
                    handle,
                    offset: 0,
                    word_offset: 8,
                    value: 1,
                    bytes: &bytes,
                },
            ),
        ];
        for (function, request) in requests {
            request.encode_into(payload);
            client.call(function, payload).map(drop).unwrap();
        }
    }
}

/// The node allocates nothing, and neither does the engine on its way.
fn processes_allocate_nothing(here: &Tier<ShmFabric>, store: &str) {
    let fabric = ShmFabric::new(ShmConfig::default()).unwrap();
    let name = format!("alloc-{}-attach", std::process::id());
    let address = dunlin_fabric::Address::new(Scheme::Shm, &name).unwrap();
    let processes = ProcessServer::serve(&fabric, here, ProcessConfig::new(address.clone())).unwrap();
    let config = ClientConfig { service: SERVICE.to_owned(), ..ClientConfig::default() };
    let mut client = Client::connect(&fabric, &address, config).unwrap();
    let mut payload = Vec::new();
    ProcessRequest::Attach { secret: None, priority: None }.encode_into(&mut payload);
    client.call(ATTACH, &payload).map(drop).unwrap();
    let nodes = vec![store.to_owned()];
    let (name, grants) = (None, Vec::new());
    ProcessRequest::Malloc { length: 200_000, nodes, name, grants, lease: None, is_direct: false }
        .encode_into(&mut payload);
    let handle = Opened::parse(&client.call(MALLOC, &payload).unwrap()).unwrap().handle;
    requests(&mut client, handle, 50, &mut payload);
    let (before, counts) = (ALL.load(Ordering::Relaxed), processes.counts());
    requests(&mut client, handle, 2000, &mut payload);
    let allocations = ALL.load(Ordering::Relaxed) - before;
    assert_eq!(processes.counts().pool, counts.pool);
    // Threads that have nothing to do with the operations may wake and allocate.
    assert!(allocations < 200, "{allocations} allocations of 12 000 operations");
}

/// Returns the bytes that a node holds for a named region of `pieces` pieces without handles: record, name and
/// blocks.
fn record_bytes(node: &Tier<ShmFabric>, pieces: u64) -> f64 {
    const REGIONS: usize = 2000;
    let make = |number: usize| {
        let name = format!("application/{pieces}/{number:05}");
        drop(node.malloc(4096 * pieces, Spec::here().named(name)).unwrap());
    };
    // Tables that double have room for all of them.
    (0..48).for_each(|number| make(10_000 + number));
    let before = HELD.load(Ordering::Relaxed);
    (0..REGIONS).for_each(make);
    (HELD.load(Ordering::Relaxed) - before) as f64 / REGIONS as f64
}

fn records_are_small() {
    let peer = Peer::named(Scheme::Shm, &format!("records-{}", std::process::id())).unwrap();
    let config =
        TierConfig { memory: 512 << 20, piece: 4096, ..TierConfig::new(vec![peer.clone()], &peer.name) };
    let node = Tier::within(&ShmFabric::new(ShmConfig::default()).unwrap(), config).unwrap();
    let [one, many] = [1, 17].map(|pieces| record_bytes(&node, pieces));
    let of_piece = (many - one) / 16.0;
    assert!(one < 850.0 && of_piece < 16.0, "{one} bytes for a region, {of_piece} for a further piece");
}

#[test]
fn operations_allocate_nothing() {
    records_are_small();
    let peer =
        |name: &str| Peer::named(Scheme::Shm, &format!("alloc-{}-{name}", std::process::id())).unwrap();
    let nodes = vec![peer("a"), peer("b")];
    let start = |at: usize| {
        let mut config = TierConfig::new(nodes.clone(), &nodes[at].name);
        config.memory = 1 << 20;
        config.piece = 4096;
        Tier::within(&ShmFabric::new(ShmConfig::default()).unwrap(), config).unwrap()
    };
    let (here, _there) = (start(0), start(1));
    let (remote, local) = (
        here.malloc(200_000, Spec::on(&nodes[1].name)).unwrap(),
        here.malloc(200_000, Spec::here()).unwrap(),
    );
    for region in [&remote, &local] {
        operations(region, 100);
        let before = CALLS.get();
        operations(region, 2500);
        assert_eq!(CALLS.get() - before, 0, "allocations of 10 000 operations");
        let mut buffer = here.buffer(6000).unwrap();
        operations_in_place(region, &mut buffer, 100);
        let before = CALLS.get();
        operations_in_place(region, &mut buffer, 2500);
        assert_eq!(CALLS.get() - before, 0, "allocations of 10 000 operations with a buffer");
    }
    processes_allocate_nothing(&here, &nodes[1].name);
    let before = CALLS.get();
    drop(Box::new(CALLS.get()));
    assert_eq!(CALLS.get() - before, 1, "the counter counts");
}
