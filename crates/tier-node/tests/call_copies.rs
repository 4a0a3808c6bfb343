//! Golden counts of the copies of a call's payloads (LITE section 5.1): from the caller's buffer into the memory that the
//! WRITE takes them from, and from the ring into the receiver's buffer; the same for the result. No payload is copied
//! into memory of the allocator, and each crosses the network once, over a queue pair of a path. Payloads of processes that
//! attach cross it in the same way, and are copied into memory of the allocator once at each node.

#![allow(missing_docs)]

use dunlin_fabric::interpose::{DomainHooks, Hooks, Interposed, LinkHooks};
use dunlin_fabric::{
    Address, Data, Fabric, Link, Operation, PostError, QueuePairId, Scheme, ThreadDomain, WorkRequest,
};
use dunlin_fabric_shm::{ShmConfig, ShmFabric};
use dunlin_rpc::{Client, ClientConfig};
use dunlin_tier::process::list::BufferPart;
use dunlin_tier::process::service::{Given, Handed, Outcome, Room, ServiceRequest};
use dunlin_tier::process::{ATTACH, BUFFER, Opened, ProcessRequest, SERVICE};
use dunlin_tier::{Name, Priority};
use dunlin_tier_node::{Peer, ProcessConfig, ProcessServer, RequestError, Tier, TierConfig};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

struct Counting;

/// One test at a time counts.
static TURN: Mutex<()> = Mutex::new(());

/// An allocation of at least this many bytes may be a copy of a payload.
const LONG: usize = 64 << 10;

static ALLOCATED: AtomicU64 = AtomicU64::new(0);
/// Bytes of posted requests, by their local side: copied into a buffer of the poster before, read into one, and others.
static WRITTEN: AtomicU64 = AtomicU64::new(0);
static READ: AtomicU64 = AtomicU64::new(0);
static OTHER: AtomicU64 = AtomicU64::new(0);
/// From or into memory of the application.
static IN_PLACE: AtomicU64 = AtomicU64::new(0);

fn count(layout: Layout) {
    if layout.size() >= LONG {
        ALLOCATED.fetch_add(layout.size() as u64, Ordering::Relaxed);
    }
}

// SAFETY: every call goes to the system allocator unchanged; only counters are added.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout);
        // SAFETY: the caller keeps the contract of `alloc`, which is the system allocator's too.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout);
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above; `pointer` came from the system allocator, with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[derive(Clone, Copy, Debug)]
struct Watch;

impl<F: Fabric> Hooks<F> for Watch {
    type Domain = Self;
    type Link = Self;

    fn domain_hooks(&self) -> Self {
        Watch
    }

    fn link_hooks(&self) -> Self {
        Watch
    }
}

impl<L: Link> LinkHooks<L> for Watch {}

impl<D: ThreadDomain> DomainHooks<D> for Watch {
    fn post(
        &mut self,
        inner: &mut D,
        queue_pair: QueuePairId,
        request: WorkRequest<'_, D::Memory>,
    ) -> Result<(), PostError> {
        let (counter, bytes) = match &request.operation {
            Operation::Write { data: Data::Buffer(buffer), .. } => (&WRITTEN, buffer.len()),
            Operation::Read { from, .. } => (&READ, from.length as usize),
            Operation::Write { data: Data::Inline(parts), .. } => {
                (&OTHER, parts.iter().map(|part| part.len()).sum())
            }
            Operation::Write { data: Data::Region(range), .. } | Operation::ReadInto { into: range, .. } => {
                (&IN_PLACE, range.length())
            }
            _ => (&OTHER, LONG),
        };
        counter.fetch_add(bytes as u64, Ordering::Relaxed);
        inner.post(queue_pair, request)
    }
}

const MEBI: usize = 1 << 20;
const CALLS: usize = 50;

fn start(tag: &str, name: &str) -> Tier<Interposed<ShmFabric, Watch>> {
    let peer = |name: &str| {
        let mut peer = Peer::named(Scheme::Shm, &format!("{tag}-{name}")).unwrap();
        peer.name = name.to_owned();
        peer
    };
    let config = TierConfig { paths: 2, ..TierConfig::new(["alice", "bob"].map(peer).to_vec(), name) };
    let fabric = Interposed::with_hooks(ShmFabric::new(ShmConfig::default()).unwrap(), Watch);
    Tier::within(&fabric, config).unwrap()
}

/// The counts of some calls: allocated in long pieces, staged for WRITEs, READ, in place, others.
fn counts(run: impl FnOnce()) -> [u64; 5] {
    let counters = [&ALLOCATED, &WRITTEN, &READ, &IN_PLACE, &OTHER];
    let before = counters.map(|counter| counter.load(Ordering::Relaxed));
    run();
    let now = counters.map(|counter| counter.load(Ordering::Relaxed));
    std::array::from_fn(|at| now[at] - before[at])
}

#[test]
fn a_payload_is_copied_once_at_each_end() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let tag = format!("copies-{}", std::process::id());
    let (alice, bob) = (start(&tag, "alice"), start(&tag, "bob"));
    let calls = bob.register("long", 1).unwrap();
    let server = std::thread::spawn(move || {
        let (mut buffer, result) = (vec![0; MEBI], vec![2; MEBI]);
        loop {
            let request = calls.receive(&mut buffer).unwrap();
            match (request.len(), buffer[0]) {
                (0, _) => return request.reply(&[]),
                (_, 0) => request.reply(&[]),
                (_, _) => request.reply(&result),
            }
        }
    });
    let (mut request, mut answer) = (vec![1; MEBI], vec![0; MEBI]);
    let mut call = |first: u8, length: usize, expected: usize| {
        request[0] = first;
        assert_eq!(alice.call("bob", "long", 1, &request[..length], &mut answer).unwrap(), expected);
    };
    // The first ones make the ring, and the memory of clients and servers.
    (0..5).for_each(|_| call(1, MEBI, MEBI));
    let bytes = (CALLS * MEBI) as u64;
    let small = |count: u64| count < bytes / 1000;
    let [allocated, written, read, in_place, other] = counts(|| (0..CALLS).for_each(|_| call(0, MEBI, 0)));
    assert_eq!((allocated, written, read, in_place), (0, bytes, 0, 0), "long requests");
    assert!(small(other), "{other} bytes in messages");
    let [allocated, written, read, in_place, other] = counts(|| (0..CALLS).for_each(|_| call(1, 8, MEBI)));
    assert_eq!((allocated, written, read, in_place), (0, 0, bytes, 0), "long results");
    assert!(small(other), "{other} bytes in messages");
    let [allocated, written, read, in_place, other] = counts(|| (0..CALLS).for_each(|_| call(1, MEBI, MEBI)));
    assert_eq!((allocated, written, read, in_place), (0, bytes, bytes, 0), "both");
    assert!(small(other), "{other} bytes in messages");
    // From and into buffers: the only copies are those of the receiver and of the server's result.
    let (mut from, mut into) = (alice.buffer(2 * MEBI).unwrap(), alice.buffer(MEBI).unwrap());
    from[7] = 1;
    let time = std::time::Duration::from_secs(5);
    let mut call = || {
        let to = ("bob", &b"long"[..], 1);
        let got = alice.call_in_place(time, to, (&mut from, 7..7 + MEBI), (&mut into, ..)).unwrap();
        assert_eq!((got, into[0], into[MEBI - 1]), (MEBI, 2, 2));
        into.fill(0);
    };
    call();
    let [allocated, written, read, in_place, other] = counts(|| (0..CALLS).for_each(|_| call()));
    assert_eq!((allocated, written, read, in_place), (0, 0, 0, 2 * bytes), "in place");
    assert!(small(other), "{other} bytes in messages");
    let outside = alice.call_in_place(time, ("bob", b"long", 1), (&mut from, ..), (&mut into, ..MEBI + 1));
    assert!(matches!(outside, Err(RequestError::Buffer(_))), "{outside:?}");
    let outside = bob.call_in_place(time, ("bob", b"long", 1), (&mut from, ..9), (&mut into, ..));
    assert!(matches!(outside, Err(RequestError::Buffer(_))), "{outside:?}");
    // Short ones travel in messages.
    from[7] = 0;
    let to = ("bob", &b"long"[..], 1);
    assert_eq!(alice.call_in_place(time, to, (&mut from, 7..8), (&mut into, ..0)).unwrap(), 0);
    assert_eq!(alice.call("bob", "long", 1, &[], &mut []).unwrap(), 0);
    server.join().unwrap();
}

/// A process that attaches, without the library: it makes no copies of its own.
struct Process {
    client: Client<ShmFabric>,
    bytes: Vec<u8>,
}

impl Process {
    fn attach(address: &Address) -> Process {
        let config = ClientConfig { service: SERVICE.to_owned(), ..ClientConfig::default() };
        let client =
            Client::connect(&ShmFabric::new(ShmConfig::default()).unwrap(), address, config).unwrap();
        let mut process = Process { client, bytes: Vec::new() };
        ProcessRequest::Attach { secret: None, priority: None }.encode_into(&mut process.bytes);
        process.client.call(ATTACH, &process.bytes).unwrap();
        process
    }

    fn ask<T>(&mut self, request: &ServiceRequest<'_>, take: impl FnOnce(&[u8]) -> T) -> T {
        request.encode_into(&mut self.bytes);
        let client = self.client.within(Duration::from_secs(60));
        take(&client.call(request.function(), &self.bytes).unwrap())
    }

    /// Makes a buffer of a megabyte.
    fn buffer(&mut self) -> BufferPart {
        ProcessRequest::Buffer { length: MEBI as u64 }.encode_into(&mut self.bytes);
        let opened = Opened::parse(&self.client.call(BUFFER, &self.bytes).unwrap()).unwrap();
        BufferPart { length: MEBI as u32, buffer: opened.handle, at: 0 }
    }

    fn register(&mut self) -> u64 {
        let register = ServiceRequest::Register { service: service(), function: 1 };
        self.ask(&register, |answer| u64::from_le_bytes(answer.try_into().unwrap()))
    }
}

fn service() -> Name {
    Name::new("long").unwrap()
}

fn invoke(bytes: Given<'_>, room: Room) -> ServiceRequest<'_> {
    let (node, is_one_way, priority) = ("bob", false, Priority::High);
    ServiceRequest::Invoke { node, service: service(), function: 1, is_one_way, priority, room, bytes }
}

type Node = (ProcessServer<ShmFabric>, Tier<Interposed<ShmFabric, Watch>>);

/// Two nodes, and a process at each.
fn processes(tag: &str) -> ([Node; 2], [Process; 2]) {
    let tag = format!("{tag}-copies-{}", std::process::id());
    let address = |name: &str| Address::new(Scheme::Shm, &format!("{tag}-{name}-attach")).unwrap();
    let nodes = ["alice", "bob"].map(|name| {
        let node = start(&tag, name);
        let fabric = ShmFabric::new(ShmConfig::default()).unwrap();
        (ProcessServer::serve(&fabric, &node, ProcessConfig::new(address(name))).unwrap(), node)
    });
    (nodes, ["alice", "bob"].map(|name| Process::attach(&address(name))))
}

/// Payloads in buffers of processes: none lies in memory of the allocator. The NIC sends from the caller's buffer and puts
/// into it, and one copy lies between the ring and the server's buffers, each way.
#[test]
fn a_payload_in_a_buffer_of_a_process_is_copied_once_at_the_serving_node() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let (nodes, [mut caller, mut server]) = processes("buffer");
    let (registration, room) = (server.register(), server.buffer());
    let result = server.buffer();
    let server = std::thread::spawn(move || {
        let received = |answer: &[u8]| {
            let Handed { number, length, request, .. } = Handed::parse(answer).unwrap();
            assert!(request.is_empty());
            (number, length)
        };
        let room = Room::In(room);
        let receive = ServiceRequest::Receive { registration, room, time: u64::MAX };
        let mut next = server.ask(&receive, received);
        loop {
            let (number, length) = next;
            let outcome = Outcome::Result;
            // The result is as long as the request is not.
            let bytes = Given::In(BufferPart { length: (MEBI as u32).saturating_sub(length), ..result });
            let next_room = (length > 0).then_some(room);
            let reply = ServiceRequest::Reply { registration, number, outcome, next: next_room, bytes };
            if length == 0 {
                return server.ask(&reply, |answer| assert!(answer.is_empty()));
            }
            next = server.ask(&reply, received);
        }
    });
    let (from, into) = (caller.buffer(), caller.buffer());
    let mut call = |length: usize| {
        let expected = (MEBI - length) as u32;
        let bytes = Given::In(BufferPart { length: length as u32, ..from });
        let answer = |answer: &[u8]| assert_eq!(answer, expected.to_le_bytes());
        caller.ask(&invoke(bytes, Room::In(into)), answer);
    };
    for _ in 0..5 {
        call(MEBI);
        call(8);
    }
    let bytes = (CALLS * MEBI) as u64;
    let small = |count: u64| count < bytes / 1000;
    let counted = counts(|| (0..CALLS).for_each(|_| call(MEBI)));
    let [allocated, written, read, in_place, other] = counted;
    assert_eq!((allocated, written, read, in_place), (0, 0, 0, bytes), "long requests");
    assert!(small(other), "{other} bytes in messages");
    let counted = counts(|| (0..CALLS).for_each(|_| call(8)));
    let [allocated, written, read, in_place, other] = counted;
    assert_eq!((allocated, written, read, in_place), (0, 0, 0, bytes - 8 * CALLS as u64), "long results");
    assert!(small(other), "{other} bytes in messages");
    call(0);
    server.join().unwrap();
    let used = nodes[0].1.ring("bob").unwrap();
    assert_eq!(used.in_messages, 0, "{used:?}");
}

#[test]
fn a_payload_of_a_process_is_allocated_once_at_each_node() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let (nodes, [mut caller, mut server]) = processes("process");
    let registration = server.register();
    let server = std::thread::spawn(move || {
        let (result, room) = (vec![2; MEBI], Room::Answer(MEBI as u32));
        let received = |answer: &[u8]| {
            let Handed { number, request, .. } = Handed::parse(answer).unwrap();
            (number, request.len(), request.first().copied().unwrap_or_default())
        };
        let receive = ServiceRequest::Receive { registration, room, time: u64::MAX };
        let mut next = server.ask(&receive, received);
        loop {
            let (number, length, first) = next;
            let (outcome, bytes) = (Outcome::Result, if first == 0 { &[][..] } else { &result });
            let bytes = Given::Here(bytes);
            let next_room = (length > 0).then_some(room);
            let reply = ServiceRequest::Reply { registration, number, outcome, next: next_room, bytes };
            if length == 0 {
                return server.ask(&reply, |answer| assert!(answer.is_empty()));
            }
            next = server.ask(&reply, received);
        }
    });
    let mut request = vec![1; MEBI];
    let mut call = |first: u8, length: usize, expected: usize| {
        request[0] = first;
        let room = Room::Answer(if expected > 0 { MEBI as u32 } else { 0 });
        let invoke = invoke(Given::Here(&request[..length]), room);
        caller.ask(&invoke, |result| assert_eq!(result.len(), expected));
    };
    // The first ones make the ring, and the memory of clients and servers.
    (0..5).for_each(|_| call(1, MEBI, MEBI));
    let bytes = (CALLS * MEBI) as u64;
    let small = |count: u64| count < bytes / 1000;
    // A few bytes beside each payload are in the same piece of memory.
    let twice = |allocated: u64| small(allocated.abs_diff(2 * bytes));
    let [allocated, written, read, in_place, other] = counts(|| (0..CALLS).for_each(|_| call(0, MEBI, 0)));
    assert_eq!((written, read, in_place), (bytes, 0, 0), "long requests");
    assert!(twice(allocated) && small(other), "{allocated} bytes allocated, {other} in messages");
    let [allocated, written, read, in_place, other] = counts(|| (0..CALLS).for_each(|_| call(1, 8, MEBI)));
    assert_eq!((written, read, in_place), (0, bytes, 0), "long results");
    assert!(twice(allocated) && small(other), "{allocated} bytes allocated, {other} in messages");
    call(0, 0, 0);
    server.join().unwrap();
    let used = nodes[0].1.ring("bob").unwrap();
    assert_eq!(used.in_messages, 0, "{used:?}");
}
