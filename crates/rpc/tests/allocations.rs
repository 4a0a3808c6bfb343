//! The hot path allocates nothing, on the client and on the server: both run in this process and share its
//! counter.

#![allow(missing_docs, clippy::disallowed_methods, clippy::disallowed_types)]

mod common;

use common::*;
use dunlin_fabric_shm::ShmFabric;
use dunlin_rpc::messages::{MessageBuffer, MessageClient, MessageServer};
use dunlin_rpc::*;
use std::alloc::{GlobalAlloc, Layout, System};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

struct Counting;

/// Calls of the allocator by all threads of this process.
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call goes to the system allocator unchanged; only a counter is added.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`, which is the system allocator's too.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above; `pointer` came from the system allocator, with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const CALLS: usize = 2_000;

fn main() {
    common::run(&[(
        "allocations",
        &[
            ("an_allocation_is_counted", an_allocation_is_counted as fn()),
            ("busy_calls_allocate_nothing", busy_calls_allocate_nothing),
            ("sleeping_calls_allocate_nothing", sleeping_calls_allocate_nothing),
            ("asynchronous_calls_allocate_nothing", asynchronous_calls_allocate_nothing),
            ("calls_on_a_shared_connection_allocate_nothing", calls_on_a_shared_connection_allocate_nothing),
            ("messages_allocate_nothing", messages_allocate_nothing),
        ],
    )]);
}

fn counted(what: impl FnOnce()) -> u64 {
    let before = ALLOCATIONS.load(Ordering::SeqCst);
    what();
    ALLOCATIONS.load(Ordering::SeqCst) - before
}

/// Returns the fewest allocations of up to three runs; one run without any is enough. A lane without room,
/// because its peer was preempted, copies the messages that arrive meanwhile and so may allocate.
fn least(mut calls: impl FnMut()) -> u64 {
    let mut least = u64::MAX;
    for _ in 0..3 {
        least = least.min(counted(&mut calls));
        if least == 0 {
            break;
        }
    }
    least
}

fn an_allocation_is_counted() {
    assert!(counted(|| drop(std::hint::black_box(vec![1u8; 100]))) > 0);
}

fn server(fabric: &ShmFabric) -> Server<ShmFabric> {
    let service = |_| -> Box<dyn Service> {
        Box::new(|request: &Request<'_>, reply: &mut Reply<'_>| Ok(reply.write(request.payload)?))
    };
    ServerBuilder::new(fabric)
        .config(ServerConfig { spin: Duration::from_micros(2), ..ServerConfig::default() })
        .function(ECHO, FunctionMode::Worker)
        .serve(&unique("allocations"), service)
        .unwrap()
}

fn one_by_one(client: &mut Client<ShmFabric>, payload: &[u8], calls: usize) {
    for _ in 0..calls {
        assert_eq!(client.call_on(0, ECHO, payload).unwrap().len(), payload.len());
    }
}

fn batched(client: &mut Client<ShmFabric>, payload: &[u8], calls: usize) {
    for _ in 0..calls / 20 {
        for _ in 0..20 {
            client.push_on(0, ECHO, payload).unwrap();
        }
        while let Some(id) = client.wait_any() {
            assert_eq!(client.outcome(id).unwrap().len(), payload.len());
            client.forget(id);
        }
    }
}

type Calls = fn(&mut Client<ShmFabric>, &[u8], usize);

fn busy_calls_allocate_nothing() {
    calls_allocate_nothing(&[CompletionMode::Busy], 65_536);
}

fn sleeping_calls_allocate_nothing() {
    calls_allocate_nothing(&[CompletionMode::Event], 200);
}

/// Runs large payloads only up to `largest` bytes: in sleeping modes they cost many thread hand-overs.
fn calls_allocate_nothing(modes: &[CompletionMode], largest: usize) {
    let fabric = fabric();
    let server = server(&fabric);
    let cases: [(&str, usize, Calls); 5] = [
        ("32 bytes", 32, one_by_one),
        ("32 bytes in batches", 32, batched),
        ("200 bytes in batches", 200, batched),
        ("4 KiB", 4096, one_by_one),
        ("64 KiB", 65_536, one_by_one),
    ];
    let mut wrong = Vec::new();
    for (name, plan) in plans(&fabric, modes) {
        let config = ClientConfig { spin: Duration::from_micros(2), ..with_plan(plan) };
        let mut client = Client::connect(&fabric, server.address(), config).unwrap();
        for (what, size, calls) in cases.iter().filter(|case| case.1 <= largest) {
            let payload = pattern(*size, 1);
            calls(&mut client, &payload, 500);
            let allocations = least(|| calls(&mut client, &payload, CALLS));
            println!("  {name}, {what}: {allocations}");
            if allocations > 0 {
                wrong.push(format!("{name}, {what}: {allocations}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{CALLS} calls allocated: {wrong:#?}");
}

fn calls_on_a_shared_connection_allocate_nothing() {
    let fabric = fabric();
    let server = server(&fabric);
    for sharing in Sharing::shared() {
        for mode in [CompletionMode::Busy, CompletionMode::Event] {
            let plan = Plan { sharing, ..any_plan().completion(mode, mode) };
            let first = Client::connect(&fabric, server.address(), with_plan(plan)).unwrap();
            let mut client = first.another().unwrap();
            for size in [32, 200, 4096] {
                let payload = pattern(size, 1);
                one_by_one(&mut client, &payload, 500);
                let allocations = least(|| one_by_one(&mut client, &payload, CALLS));
                assert_eq!(allocations, 0, "{sharing:?}, {mode}, {size} bytes");
            }
        }
    }
}

struct Unpark(std::thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<T>(future: impl Future<Output = T>, waker: &Waker) -> T {
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(waker)) {
            Poll::Ready(value) => return value,
            Poll::Pending => std::thread::park(),
        }
    }
}

fn asynchronous_calls_allocate_nothing() {
    let fabric = fabric();
    let server = server(&fabric);
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut wrong = Vec::new();
    for (name, plan) in plans(&fabric, &[CompletionMode::Busy, CompletionMode::Event]) {
        let hub = AsyncHub::new(&fabric).unwrap();
        let config = ClientConfig { spin: Duration::from_micros(2), ..with_plan(plan) };
        let client = AsyncClient::connect(&hub, server.address(), config).unwrap();
        for size in [32, 4096] {
            let payload = pattern(size, 1);
            let calls = |count| {
                for _ in 0..count {
                    let response = block_on(client.call_on(0, ECHO, &payload), &waker);
                    assert_eq!(response.unwrap().len(), size);
                }
            };
            calls(500);
            let allocations = least(|| calls(CALLS));
            println!("  {name}, {size} bytes: {allocations}");
            if allocations > 0 {
                wrong.push(format!("{name}, {size} bytes: {allocations}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{CALLS} asynchronous calls allocated: {wrong:#?}");
}

/// RF-RPC's table 2: messages one at a time, and a whole window of them.
fn messages_allocate_nothing() {
    let fabric = fabric();
    let config = ServerConfig { spin: Duration::from_micros(2), ..ServerConfig::default() };
    let (server, mut threads) = MessageServer::listen(&fabric, &unique("messages"), config).unwrap();
    let mut thread = threads.remove(0);
    let serving = std::thread::spawn(move || {
        let mut buffer = None;
        while !thread.is_ended() {
            let Some(client) = thread.next_client(Duration::MAX) else { continue };
            let buffer = buffer.get_or_insert_with(|| thread.malloc_buf(client, 4096).unwrap());
            while let Ok(Some(size)) = thread.server_recv(client, buffer) {
                thread.server_send(client, buffer, size).unwrap();
            }
        }
    });
    let mut wrong = Vec::new();
    for name in ["Direct-WriteIMM", "Server-reply", "RF-RPC"] {
        let plan = Protocol::by_name(name).unwrap().plan(CompletionMode::Busy);
        // The rings hold everything in flight: a message without room would be copied.
        let config =
            ClientConfig { spin: Duration::from_micros(2), ring_bytes: 64 * 1024, ..with_plan(plan) };
        let mut client = MessageClient::connect(&fabric, server.address(), config).unwrap();
        let mut buffer = client.malloc_buf(0, 4096).unwrap();
        for size in [32, 4096] {
            let mut rounds = |count: usize| send_and_receive(&mut client, &mut buffer, size, count);
            rounds(500);
            let allocations = least(|| rounds(CALLS / 4));
            println!("  {name}, {size} bytes: {allocations}");
            if allocations > 0 {
                wrong.push(format!("{name}, {size} bytes: {allocations}"));
            }
        }
    }
    server.shutdown(Duration::from_secs(1));
    serving.join().unwrap();
    assert!(wrong.is_empty(), "messages allocated: {wrong:#?}");
}

/// One message at a time, then four at a time.
fn send_and_receive(
    client: &mut MessageClient<ShmFabric>,
    buffer: &mut MessageBuffer<ShmFabric>,
    size: usize,
    count: usize,
) {
    for together in [1, 4] {
        for _ in 0..count / 2 {
            for _ in 0..together {
                client.client_send(0, buffer, size).unwrap();
            }
            for _ in 0..together {
                assert_eq!(client.client_recv(0, buffer).unwrap(), size);
            }
        }
    }
}
