//! Counts allocations and system calls (by `strace`, between two marks in its log) of work requests and of
//! whole calls of the engine. Measures no times: this runs in an emulated guest on Soft-RoCE, whose library
//! rings the doorbell by a system call, a `write` to the device's file, once for each list of work requests.
//!
//! `rdma_counts` counts everything; `rdma_counts loop CASE` only runs one case, for a profiler.

use dunlin_fabric::*;
use dunlin_fabric_conformance::trace::{mark, traced};
use dunlin_fabric_rdma::{RdmaConfig, RdmaDomain, RdmaFabric, RdmaLink, RdmaMemory};
use dunlin_rpc::{
    Client, ClientConfig, CompletionMode, FunctionMode, Protocol, Reply, Request, ServerBuilder, Service,
};
use std::alloc::{GlobalAlloc, Layout, System};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call goes to the system allocator unchanged; only a counter is incremented.
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

/// The number of counted rounds of each case, after as many uncounted ones.
const ROUNDS: u64 = 512;
/// One in this number of requests is signaled.
const SIGNALED: u64 = 16;

/// Two connected queue pairs of two domains in one thread.
struct Ends {
    domain: RdmaDomain,
    queue: CompletionQueueId,
    queue_pair: QueuePairId,
    key: RegionKey,
    polled: Vec<Completion<RdmaMemory>>,
    number: u64,
    _far: (RdmaDomain, RdmaLink, RdmaLink, Region<RdmaMemory>),
}

impl Ends {
    fn new(fabric: &RdmaFabric) -> Self {
        let far_future = RealHost.now() + 60_000_000_000;
        let listener = fabric.listen(&Address::new(Scheme::Rdma, "127.0.0.1:0").unwrap()).unwrap();
        let far_link = fabric.dial(&listener.address(), far_future).unwrap();
        let link = listener.accept(far_future).unwrap();
        let make = |link: &RdmaLink| {
            let mut domain = fabric.domain().unwrap();
            let queue = domain.create_completion_queue(512, false).unwrap();
            let pair = domain.create_queue_pair(&QueuePairConfig::reliable(queue, queue)).unwrap();
            let endpoint = domain.endpoint(pair, link).unwrap();
            (domain, queue, pair, endpoint)
        };
        let (mut domain, queue, queue_pair, endpoint) = make(&link);
        let (mut far, _, far_pair, far_endpoint) = make(&far_link);
        domain.connect(queue_pair, &link, &far_endpoint).unwrap();
        far.connect(far_pair, &far_link, &endpoint).unwrap();
        let region = Region::new(fabric.register(1 << 16, Access::WRITE).unwrap());
        let key = far_link.grant(region.memory(), Access::WRITE).unwrap();
        far_link.send(b"granted").unwrap();
        link.receive(far_future).unwrap();
        let far = (far, far_link, link, region);
        Ends { domain, queue, queue_pair, key, polled: Vec::with_capacity(64), number: 0, _far: far }
    }

    fn request(&mut self, data: &'static [&'static [u8]]) -> WorkRequest<'static, RdmaMemory> {
        self.number += 1;
        let signaled = self.number.is_multiple_of(SIGNALED);
        let operation =
            Operation::Write { data: Data::Inline(data), key: self.key, offset: 0, immediate: None };
        WorkRequest { id: WorkId(self.number), operation, signaled }
    }

    /// Polls until the send queue has room.
    fn settle(&mut self, room: u32) {
        while self.domain.send_room(self.queue_pair) < room {
            self.domain.poll(self.queue, &mut self.polled, 64);
            self.polled.clear();
        }
    }
}

const LINE: &[&[u8]] = &[&[7; 32]];

/// Posts one inline WRITE of 32 bytes; one in 16 is signaled.
#[inline(never)]
fn one_write(ends: &mut Ends) {
    ends.settle(1);
    let request = ends.request(LINE);
    ends.domain.post(ends.queue_pair, request).unwrap();
}

/// Posts three WRITEs as a linked list.
#[inline(never)]
fn three_writes(ends: &mut Ends) {
    ends.settle(3);
    let mut requests = [(); 3].map(|()| Some(ends.request(LINE)));
    ends.domain.post_list(ends.queue_pair, &mut requests).unwrap();
}

/// Polls an empty completion queue.
#[inline(never)]
fn look(ends: &mut Ends) {
    ends.domain.poll(ends.queue, &mut ends.polled, 64);
    ends.polled.clear();
}

type Round = fn(&mut Ends);
const CASES: &[(&str, Round)] = &[("one_write", one_write), ("three_writes", three_writes), ("look", look)];

fn counted(name: &str, mut round: impl FnMut()) {
    (0..ROUNDS).for_each(|_| round());
    mark(name);
    let before = ALLOCATIONS.load(Ordering::SeqCst);
    (0..ROUNDS).for_each(|_| round());
    let allocations = ALLOCATIONS.load(Ordering::SeqCst) - before;
    mark("end");
    println!("{name:<40} {ROUNDS} rounds: {allocations} allocations");
    assert_eq!(allocations, 0, "{name}");
}

fn play() {
    let fabric = RdmaFabric::new(RdmaConfig::default()).unwrap();
    for (name, round) in CASES {
        let mut ends = Ends::new(&fabric);
        counted(name, || round(&mut ends));
    }
    let service = |_| -> Box<dyn Service> {
        Box::new(|request: &Request<'_>, reply: &mut Reply<'_>| Ok(reply.write(request.payload)?))
    };
    let address = Address::new(Scheme::Rdma, "127.0.0.1:0").unwrap();
    let server =
        ServerBuilder::new(&fabric).function(1, FunctionMode::Worker).serve(&address, service).unwrap();
    for name in ["server-reply", "direct-writeimm", "eager-sendrecv", "remote-fetch"] {
        let plan = Protocol::by_name(name).unwrap().plan(CompletionMode::Busy);
        let config = ClientConfig { timeout: Duration::from_secs(60), ..ClientConfig::with_plan(plan) };
        let mut client = Client::connect(&fabric, server.address(), config).unwrap();
        counted(&format!("call_{name}"), || {
            assert_eq!(client.call_on(0, 1, &[5; 32]).unwrap().len(), 32);
        });
    }
}

/// Runs again under strace, and counts the calls between the marks in its log, by case, thread and name.
fn system_calls() {
    let counts = traced(&["play"]).unwrap();
    for ((name, own, what), count) in &counts {
        let who = if *own { "this thread" } else { "others" };
        println!("{name:<40} {ROUNDS} rounds: {count} x {what} by {who}");
    }
    let writes = |case: &str| counts.get(&(case.into(), true, "write".into())).copied().unwrap_or(0);
    // The doorbell of Soft-RoCE's library: exactly one for each list, whatever its length.
    for case in ["one_write", "three_writes"] {
        assert_eq!(writes(case), ROUNDS, "{case}");
    }
    for ((name, own, what), count) in &counts {
        let doorbell = what == "write" || what == "sched_yield";
        assert!(name.starts_with("call_") || !own || doorbell, "{name}: {count} x {what}");
    }
    assert_eq!(writes("look"), 0);
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments[..] {
        [] => {
            play();
            system_calls();
        }
        [word] if word == "play" => play(),
        [word, case] if word == "loop" => {
            let fabric = RdmaFabric::new(RdmaConfig::default()).unwrap();
            let mut ends = Ends::new(&fabric);
            let (_, round) = CASES.iter().find(|(name, _)| name == case).expect("a case");
            (0..ROUNDS).for_each(|_| round(&mut ends));
        }
        _ => {
            eprintln!("rdma_counts [play | loop CASE]");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
