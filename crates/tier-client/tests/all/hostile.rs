//! Requests that no library sends: forged handles, ranges that overflow, any bytes. No byte of another process changes.

use crate::common::{Serving, attach, attach_address, bytes_of, config, count, fabric, serve, tag, wait};
use dunlin_fabric::Link as _;
use dunlin_fabric_shm::ShmFabric;
use dunlin_rpc::{CallError, Cause, Client, ClientConfig};
use dunlin_tier::process::list::{BufferPart, ListedChange, ListedOperation, MAX_LISTED, Outcomes};
use dunlin_tier::process::lock::{BARRIER, LOCK, LOCK_HOME, LockingRequest};
use dunlin_tier::process::service::{
    Given, INVOKE, INVOKE_REFUSED, NOTHING, Outcome, RECEIVE, REGISTER_SERVER, REPLY, Room, SERVERS,
    ServiceRequest,
};
use dunlin_tier::process::{
    ATTACH, Attached, ELSEWHERE, FREE, MAX_HERE, MAX_MOVED, NoDirect, Opened, Problem, ProcessRequest, READ,
    READ_HERE, REFUSED, RUN, SERVICE, Secret, UNMAP, WRITE_HERE,
};
use dunlin_tier::{AccessError, Name, Priority, Rights};
use dunlin_tier_client::{Lmr, Spec, Tier};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use std::cell::RefCell;
use std::time::Duration;

/// A client without the library.
pub(crate) struct Raw {
    pub(crate) client: Client<ShmFabric>,
    attached: Attached,
}

pub(crate) type Answer = Result<Vec<u8>, CallError>;

impl Raw {
    pub(crate) fn connect(node: &Serving) -> Client<ShmFabric> {
        let config = ClientConfig { service: SERVICE.to_owned(), ..ClientConfig::default() };
        Client::connect(&fabric(), &node.address, config).unwrap()
    }

    pub(crate) fn attach(node: &Serving) -> Raw {
        Raw::join(Self::connect(node))
    }

    fn join(mut client: Client<ShmFabric>) -> Raw {
        let bytes =
            send(&mut client, ATTACH, &ProcessRequest::Attach { secret: None, priority: None }).unwrap();
        Raw { client, attached: Attached::parse(&bytes).unwrap() }
    }

    pub(crate) fn ask(&mut self, request: &ProcessRequest<'_>) -> Answer {
        send(&mut self.client, request.function(), request)
    }

    pub(crate) fn secret(&self) -> dunlin_tier::process::Secret {
        self.attached.secret
    }

    pub(crate) fn malloc(&mut self, length: u64, node: &str) -> Opened {
        let (nodes, name, grants) = (vec![node.to_owned()], None, Vec::new());
        let answer = self
            .ask(&ProcessRequest::Malloc { length, nodes, name, grants, lease: None, is_direct: false })
            .unwrap();
        Opened::parse(&answer).unwrap()
    }
}

pub(crate) fn send(client: &mut Client<ShmFabric>, function: u16, request: &ProcessRequest<'_>) -> Answer {
    let mut bytes = Vec::new();
    request.encode_into(&mut bytes);
    client.call(function, &bytes).map(|answer| answer.to_vec())
}

#[track_caller]
pub(crate) fn problem(answer: Answer) -> Problem {
    match answer {
        Err(CallError::Application { code: REFUSED, payload }) => Problem::parse(&payload).unwrap(),
        other => panic!("not refused: {other:?}"),
    }
}

fn name(name: &str) -> Name {
    Name::new(name).unwrap()
}

/// Every request that names a handle.
fn with_handle(handle: u64, own: u64) -> Vec<ProcessRequest<'static>> {
    let (offset, length, to) = (0, 8, dunlin_tier::Grantee::Anyone);
    vec![
        ProcessRequest::Read { priority: Priority::High, handle, offset, length },
        ProcessRequest::Write { priority: Priority::High, handle, offset, bytes: b"overwritten" },
        ProcessRequest::WriteNotify {
            priority: Priority::High,
            handle,
            offset,
            word_offset: 0,
            value: 1,
            bytes: b"overwritten",
        },
        ProcessRequest::FetchAdd { priority: Priority::High, handle, offset, add: 1 },
        ProcessRequest::CompareSwap { priority: Priority::High, handle, offset, expected: 0, swap: 1 },
        ProcessRequest::Set { handle, offset, length, value: 1 },
        ProcessRequest::Copy { handle, offset, length, to: own, target: 0 },
        ProcessRequest::Copy { handle: own, offset, length, to: handle, target: 0 },
        ProcessRequest::ReadInto { priority: Priority::High, handle, offset, length, buffer: own, at: 0 },
        ProcessRequest::WriteFrom {
            priority: Priority::High,
            handle: own,
            offset,
            length,
            buffer: handle,
            at: 0,
        },
        ProcessRequest::Grant { handle, to: to.clone(), rights: Rights::READ },
        ProcessRequest::Revoke { handle, from: to, rights: Rights::READ },
        ProcessRequest::Publish { handle, nodes: vec![], name: name("hostile"), grants: vec![], lease: None },
        ProcessRequest::Lease { handle, length: Some(0) },
        ProcessRequest::Move { handle, node: "two".to_owned() },
        ProcessRequest::Free { handle },
        ProcessRequest::Unmap { handle },
    ]
}

/// Regions of another process, and their bytes.
struct Canaries(Vec<(Lmr, Vec<u8>)>);

impl Canaries {
    fn new(victim: &Tier, nodes: &[&str]) -> Canaries {
        let canary = |(at, node): (usize, &&str)| {
            let region = victim.malloc(3000, Spec::on(node)).unwrap();
            let bytes: Vec<u8> = (0..3000).map(|byte| (byte * 7 + at) as u8).collect();
            region.write(0, &bytes).unwrap();
            (region, bytes)
        };
        Canaries(nodes.iter().enumerate().map(canary).collect())
    }

    #[track_caller]
    fn check(&self) {
        for (region, bytes) in &self.0 {
            wait("the canary", || (bytes_of(region).unwrap() == *bytes).then_some(()));
        }
    }
}

fn two_nodes(tag: &str) -> [Serving; 2] {
    ["one", "two"].map(|name| serve(config(tag, &["one", "two"], name), tag, |_| {}))
}

#[test]
fn handles_of_others_forged_ones_and_stale_ones_are_refused() {
    let tag = tag("forged");
    let nodes = two_nodes(&tag);
    let victim = attach(&nodes[0].address);
    let canaries = Canaries::new(&victim, &["one", "two", "one"]);
    let (mut other, mut raw) = (Raw::attach(&nodes[0]), Raw::attach(&nodes[0]));
    let theirs = other.malloc(4096, "one").handle;
    let (own, stale) = (raw.malloc(4096, "one").handle, raw.malloc(4096, "one").handle);
    raw.ask(&ProcessRequest::Unmap { handle: stale }).unwrap();
    for handle in [theirs, stale, 0, 1, u64::MAX, own ^ 1, own + (1 << 32), own ^ (1 << 63)] {
        for request in with_handle(handle, own) {
            assert_eq!(problem(raw.ask(&request)), Problem::Access(AccessError::NoHandle), "{request:?}");
            if let ProcessRequest::Read { .. } | ProcessRequest::Write { .. } = request {
                let here = if request.function() == READ { READ_HERE } else { WRITE_HERE };
                let answer = send(&mut raw.client, here, &request);
                assert_eq!(problem(answer), Problem::Access(AccessError::NoHandle));
            }
        }
    }
    other
        .ask(&ProcessRequest::Read { priority: Priority::High, handle: theirs, offset: 0, length: 8 })
        .unwrap();
    canaries.check();
}

#[test]
fn ranges_that_overflow_and_requests_that_are_too_long_are_refused() {
    let tag = tag("bounds");
    let nodes = two_nodes(&tag);
    let victim = attach(&nodes[0].address);
    let canaries = Canaries::new(&victim, &["one", "two"]);
    let mut raw = Raw::attach(&nodes[0]);
    for node in ["one", "two"] {
        let handle = raw.malloc(4096, node).handle;
        for offset in [4089, 4097, 1 << 32, u64::MAX - 7, u64::MAX - 8, u64::MAX, 1 << 63] {
            for request in with_handle(handle, handle).into_iter().take(6) {
                let request = match request {
                    ProcessRequest::Read { length, .. } => {
                        ProcessRequest::Read { priority: Priority::High, handle, offset, length }
                    }
                    ProcessRequest::Write { bytes, .. } => {
                        ProcessRequest::Write { priority: Priority::High, handle, offset, bytes }
                    }
                    ProcessRequest::WriteNotify { word_offset, value, bytes, .. } => {
                        ProcessRequest::WriteNotify {
                            priority: Priority::High,
                            handle,
                            offset,
                            word_offset,
                            value,
                            bytes,
                        }
                    }
                    ProcessRequest::FetchAdd { add, .. } => {
                        ProcessRequest::FetchAdd { priority: Priority::High, handle, offset, add }
                    }
                    ProcessRequest::CompareSwap { .. } => ProcessRequest::CompareSwap {
                        priority: Priority::High,
                        handle,
                        offset,
                        expected: 0,
                        swap: 1,
                    },
                    _ => ProcessRequest::Set { handle, offset, length: 8, value: 1 },
                };
                let found = problem(raw.ask(&request));
                assert!(
                    matches!(found, Problem::Access(AccessError::OutOfBounds { offset: at, .. }) if at == offset),
                    "{request:?}: {found:?}"
                );
            }
            let copy = ProcessRequest::Copy { handle, offset: 0, length: 8, to: handle, target: offset };
            assert!(matches!(problem(raw.ask(&copy)), Problem::Access(AccessError::OutOfBounds { .. })));
        }
        assert_eq!(
            problem(raw.ask(&ProcessRequest::FetchAdd {
                priority: Priority::High,
                handle,
                offset: 4,
                add: 1
            })),
            Problem::Access(AccessError::Misaligned(4))
        );
        let length = MAX_MOVED + 1;
        let long =
            problem(raw.ask(&ProcessRequest::Read { priority: Priority::High, handle, offset: 0, length }));
        assert_eq!(long, Problem::TooLong { length: length.into(), limit: MAX_MOVED });
        let read = ProcessRequest::Read { priority: Priority::High, handle, offset: 0, length: MAX_HERE + 1 };
        let long = problem(send(&mut raw.client, READ_HERE, &read));
        assert!(matches!(long, Problem::TooLong { limit: MAX_HERE, .. }));
    }
    // Bytes of the other node are not reached by the function that does not wait.
    let handle = raw.malloc(4096, "two").handle;
    let answer = send(
        &mut raw.client,
        READ_HERE,
        &ProcessRequest::Read { priority: Priority::High, handle, offset: 0, length: 8 },
    );
    assert!(matches!(answer, Err(CallError::Application { code: ELSEWHERE, .. })), "{answer:?}");
    for length in [0, u64::MAX, 1 << 50] {
        let request = ProcessRequest::Malloc {
            lease: None,
            length,
            nodes: Vec::new(),
            name: None,
            grants: Vec::new(),
            is_direct: false,
        };
        assert_eq!(problem(raw.ask(&request)), Problem::Length(length));
    }
    canaries.check();
}

/// One operation of a list is forged, and everything else is right.
#[test]
fn lists_with_one_bad_operation_are_refused_as_a_whole() {
    let tag = tag("listed");
    let nodes = two_nodes(&tag);
    let victim = attach(&nodes[0].address);
    let canaries = Canaries::new(&victim, &["one", "two", "one"]);
    let (mut other, mut raw) = (Raw::attach(&nodes[0]), Raw::attach(&nodes[0]));
    let theirs = other.malloc(4096, "one").handle;
    let named = victim.malloc(4096, Spec::on("two").named("weak").grant_anyone(Rights::READ)).unwrap();
    let map = ProcessRequest::Map { name: name("weak"), rights: Rights::READ };
    let weak = Opened::parse(&raw.ask(&map).unwrap()).unwrap().handle;
    let buffer = Opened::parse(&raw.ask(&ProcessRequest::Buffer { length: 4096 }).unwrap()).unwrap().handle;
    let part = |length, at| BufferPart { length, buffer, at };
    for node in ["one", "two"] {
        let own = raw.malloc(4096, node).handle;
        let good =
            |at: u64| ListedOperation { handle: own, offset: 8 * at, change: ListedChange::Write(&[9; 8]) };
        let at = |handle, offset, change| ListedOperation { handle, offset, change };
        let denied = AccessError::Denied { needs: Rights::WRITE, has: Rights::READ };
        let out = |offset, length| AccessError::OutOfBounds { offset, length, size: 4096 };
        let mut bad = vec![
            (at(weak, 0, ListedChange::Write(b"x")), denied),
            (at(weak, 0, ListedChange::Add(1)), denied),
            (at(own, 4, ListedChange::Add(1)), AccessError::Misaligned(4)),
            (at(own, 4096, ListedChange::Swap { expected: 0, swap: 1 }), out(4096, 8)),
            (at(own, u64::MAX - 7, ListedChange::Swap { expected: 0, swap: 1 }), out(u64::MAX - 7, 8)),
            (at(own, u64::MAX, ListedChange::Read(2)), out(u64::MAX, 2)),
            (at(own, 1, ListedChange::Read(4096)), out(1, 4096)),
            (at(own, 4095, ListedChange::Write(b"xy")), out(4095, 2)),
            (at(weak, 0, ListedChange::Set { length: 1, value: 9 }), denied),
            (at(own, 4095, ListedChange::Set { length: 2, value: 9 }), out(4095, 2)),
            (at(own, 0, ListedChange::Copy { length: 1, to: weak, target: 0 }), denied),
            (at(own, 4095, ListedChange::Copy { length: 2, to: own, target: 0 }), out(4095, 2)),
            (at(own, 0, ListedChange::Copy { length: 2, to: own, target: 4095 }), out(4095, 2)),
            (at(own, 0, ListedChange::Copy { length: 2, to: own, target: u64::MAX }), out(u64::MAX, 2)),
            (at(weak, 0, ListedChange::WriteFrom(part(1, 0))), denied),
            (at(own, 4095, ListedChange::WriteFrom(part(2, 0))), out(4095, 2)),
            (at(own, u64::MAX, ListedChange::ReadInto(part(0, 0))), out(u64::MAX, 0)),
            (at(own, 0, ListedChange::ReadInto(part(2, 4095))), out(4095, 2)),
            (at(own, 0, ListedChange::WriteFrom(part(1, u64::MAX))), out(u64::MAX, 1)),
        ];
        for handle in [theirs, 0, u64::MAX, own ^ 64, own + (1 << 32), own ^ (1 << 63)] {
            bad.push((at(handle, 0, ListedChange::Read(8)), AccessError::NoHandle));
            bad.push((at(handle, 0, ListedChange::Write(b"overwritten")), AccessError::NoHandle));
            bad.push((at(handle, 0, ListedChange::Set { length: 8, value: 9 }), AccessError::NoHandle));
            let copy = ListedChange::Copy { length: 8, to: handle, target: 0 };
            bad.push((at(own, 0, copy), AccessError::NoHandle));
            let part = BufferPart { length: 8, buffer: handle, at: 0 };
            bad.push((at(own, 0, ListedChange::ReadInto(part)), AccessError::NoHandle));
            bad.push((at(own, 0, ListedChange::WriteFrom(part)), AccessError::NoHandle));
        }
        // A region is no buffer: other processes have handles of it.
        let part = BufferPart { length: 8, buffer: own, at: 0 };
        for change in [ListedChange::ReadInto(part), ListedChange::WriteFrom(part)] {
            let operations = vec![good(0), at(own, 0, change)];
            let found = problem(raw.ask(&ProcessRequest::Run { priority: Priority::High, operations }));
            let problem = Box::new(Problem::NotDirect(NoDirect::Shared));
            assert_eq!(found, Problem::InList { place: 1, problem }, "{change:?}");
        }
        for (bad, error) in bad {
            for place in [0, 1, 30] {
                let mut operations: Vec<_> = (0..30).map(good).collect();
                operations.insert(place, bad);
                let found = problem(raw.ask(&ProcessRequest::Run { priority: Priority::High, operations }));
                let problem = Box::new(Problem::Access(error));
                assert_eq!(found, Problem::InList { place: place as u16, problem }, "{bad:?}");
            }
        }
        // More operations than a list has, and more bytes than a request moves.
        let add = at(own, 8, ListedChange::Add(1));
        let many = ProcessRequest::Run { priority: Priority::High, operations: vec![add; MAX_LISTED + 1] };
        assert_eq!(problem(raw.ask(&many)), Problem::Malformed);
        for length in [MAX_MOVED + 1, u32::MAX] {
            let long = ProcessRequest::Run {
                priority: Priority::High,
                operations: vec![at(own, 0, ListedChange::Read(length))],
            };
            assert_eq!(problem(raw.ask(&long)), Problem::Malformed);
        }
        let read = ProcessRequest::Read { priority: Priority::High, handle: own, offset: 0, length: 4096 };
        assert_eq!(raw.ask(&read).unwrap(), [0; 4096], "nothing of the refused lists was executed");
        let operations = vec![add; MAX_LISTED];
        let answer = raw
            .ask(&ProcessRequest::Run { priority: Priority::High, operations: operations.clone() })
            .unwrap();
        let outcomes = Outcomes::parse(&answer, &operations).unwrap().outcomes;
        let mut olds: Vec<u64> = outcomes.into_iter().map(|old| old.unwrap().unwrap()).collect();
        olds.sort_unstable();
        assert!(olds.into_iter().eq(0..MAX_LISTED as u64));
        assert_eq!(
            raw.ask(&ProcessRequest::Run { priority: Priority::High, operations: Vec::new() }).unwrap(),
            []
        );
    }
    drop(named);
    canaries.check();
}

#[test]
fn connections_are_of_use_only_after_they_are_attached_and_only_with_their_own_secret() {
    let tag = tag("secret");
    let node = serve(config(&tag, &["one"], "one"), &tag, |settings| settings.limits.connections = 3);
    let mut raw = Raw::attach(&node);
    let handle = raw.malloc(4096, "one").handle;
    let mut client = Raw::connect(&node);
    let read = ProcessRequest::Read { priority: Priority::High, handle, offset: 0, length: 8 };
    assert_eq!(problem(send(&mut client, READ, &read)), Problem::NotAttached);
    assert_eq!(problem(send(&mut client, READ_HERE, &read)), Problem::NotAttached);
    assert_eq!(problem(send(&mut client, FREE, &ProcessRequest::Free { handle })), Problem::NotAttached);
    let mut secret = raw.attached.secret;
    secret[3] ^= 1;
    let guess = ProcessRequest::Attach { secret: Some(secret), priority: None };
    assert_eq!(problem(send(&mut client, ATTACH, &guess)), Problem::NotAttached);
    let join = ProcessRequest::Attach { secret: Some(raw.attached.secret), priority: None };
    send(&mut client, ATTACH, &join).unwrap();
    assert_eq!(problem(send(&mut client, ATTACH, &join)), Problem::Malformed, "attached already");
    assert_eq!(send(&mut client, READ, &read).unwrap(), [0; 8]);
    // The handles live as long as any connection of the process.
    drop(raw);
    assert_eq!(send(&mut client, READ, &read).unwrap(), [0; 8]);
    // The node counts the connections of a process id.
    let more: Vec<_> = (0..2)
        .map(|_| {
            wait("room", || {
                let config = ClientConfig { service: SERVICE.to_owned(), ..ClientConfig::default() };
                Client::connect(&fabric(), &attach_address(&tag, "one"), config).ok()
            })
        })
        .collect();
    let config = ClientConfig { service: SERVICE.to_owned(), ..ClientConfig::default() };
    let refused = Client::connect(&fabric(), &node.address, config).unwrap_err();
    assert!(refused.to_string().contains("has 3 connections"), "{refused}");
    drop(more);
}

/// A request with bytes changed, cut or added, or any bytes.
fn payload() -> impl Strategy<Value = (u16, Vec<u8>)> {
    let numbers = prop_oneof![Just(0u64), Just(u64::MAX), any::<u64>(), 0u64..9000];
    // All functions but the first, and one that there is not.
    let functions = READ..=LOCK_HOME + 1;
    let valid = (functions, prop::collection::vec(numbers, 0..6)).prop_map(|(function, numbers)| {
        (function, numbers.iter().flat_map(|number| number.to_le_bytes()).collect())
    });
    let noise = (0..=LOCK_HOME + 1, prop::collection::vec(any::<u8>(), 0..200));
    // Lists of operations whose fields are any numbers.
    let list = prop::collection::vec((0u8..8, any::<u64>(), 0u64..9000, 0u32..300), 0..5).prop_map(|list| {
        let operation = |(kind, handle, offset, number): (u8, u64, u64, u32)| {
            let change = match kind {
                0 => ListedChange::Read(number),
                1 => ListedChange::Write(&[0xee; 300][..number as usize]),
                2 => ListedChange::Add(number.into()),
                3 => ListedChange::Swap { expected: 0, swap: number.into() },
                4 => ListedChange::Set { length: number, value: 0xee },
                5 => ListedChange::Copy { length: number, to: handle ^ u64::from(number), target: offset },
                kind => {
                    let part = BufferPart { length: number, buffer: handle ^ offset, at: offset };
                    if kind == 6 { ListedChange::ReadInto(part) } else { ListedChange::WriteFrom(part) }
                }
            };
            ListedOperation { handle, offset, change }
        };
        let mut bytes = Vec::new();
        let operations = list.into_iter().map(operation).collect();
        ProcessRequest::Run { priority: Priority::High, operations }.encode_into(&mut bytes);
        (RUN, bytes)
    });
    prop_oneof![4 => valid, 4 => noise, 2 => list, 3 => of_services(), 3 => of_locks(), 3 => of_regions()]
}

/// The name of a lock that another process holds.
const HELD_LOCK: &str = "held";

fn names() -> impl Strategy<Value = Name> {
    prop::sample::select(vec![name("a"), name("b"), name(HELD_LOCK)])
}

/// Well-formed requests about services with any numbers. Few of them wait: each wait lasts until its deadline.
fn of_services() -> impl Strategy<Value = (u16, Vec<u8>)> {
    let numbers = prop_oneof![4 => 0u64..4, 1 => any::<u64>()];
    let draws = (0u8..7, names(), numbers, any::<[u16; 2]>(), prop::bool::weighted(0.02));
    draws.prop_map(|(kind, service, registration, [first, second], waits)| {
        let outcome = match first % 4 {
            0 => Outcome::Result,
            1 => Outcome::Failed(second),
            2 => Outcome::Refused(second),
            _ => Outcome::Dropped,
        };
        // Buffers are the handles of few other requests.
        let part = BufferPart { length: second.into(), buffer: registration, at: first.into() };
        let room = if first % 5 == 0 { Room::In(part) } else { Room::Answer(second.into()) };
        let bytes = if first % 7 == 0 { Given::In(part) } else { Given::Here(b"bytes") };
        let (number, function) = (first.into(), first % 4);
        let request = match kind {
            0 => ServiceRequest::Register { service, function },
            1 => ServiceRequest::Withdraw { registration },
            2 => {
                let short = u64::from(first % 2) * u64::from(second);
                let time = if waits { u64::MAX } else { short };
                ServiceRequest::Receive { registration, room, time }
            }
            3 => {
                let next = waits.then_some(room);
                ServiceRequest::Reply { registration, number, outcome, next, bytes }
            }
            4 if waits => {
                let (node, priority) = (["one", "two", "three"][usize::from(first % 3)], Priority::Low);
                let is_one_way = second % 2 == 0;
                ServiceRequest::Invoke { node, service, function, is_one_way, priority, room, bytes }
            }
            5 if waits => ServiceRequest::RegisterServer { service, address: "shm:nobody" },
            6 if waits => ServiceRequest::Servers { service },
            _ => ServiceRequest::Ping,
        };
        let mut bytes = Vec::new();
        request.encode_into(&mut bytes);
        (request.function(), bytes)
    })
}

/// Well-formed requests about locks with any numbers.
fn of_locks() -> impl Strategy<Value = (u16, Vec<u8>)> {
    let draws = (0u8..5, names(), any::<u64>(), 0u16..4, prop::bool::weighted(0.02));
    draws.prop_map(|(kind, name, number, members, waits)| {
        let request = match kind {
            0 => LockingRequest::Lock { ticket: number, name, waits },
            1 => LockingRequest::Unlock { guard: number % 16 },
            2 if waits => LockingRequest::Barrier { ticket: number, name, members },
            3 => LockingRequest::GiveUp { ticket: number, name },
            _ => LockingRequest::Home { name },
        };
        let mut bytes = Vec::new();
        request.encode_into(&mut bytes);
        (request.function(), bytes)
    })
}

/// Well-formed requests about regions and buffers with any handles.
fn of_regions() -> impl Strategy<Value = (u16, Vec<u8>)> {
    let numbers = prop_oneof![Just(0u64), 0u64..9000, any::<u64>()];
    (0u8..8, names(), any::<u64>(), numbers, any::<u16>()).prop_map(|(kind, name, handle, number, small)| {
        let (offset, length, buffer, at) = (number, small.into(), handle ^ number, number / 2);
        let priority = Priority::Low;
        let request = match kind {
            0 => ProcessRequest::Lease { handle, length: (small % 2 == 0).then_some(number) },
            1 => ProcessRequest::ReadInto { priority, handle, offset, length, buffer, at },
            2 => ProcessRequest::WriteFrom { priority, handle, offset, length, buffer, at },
            3 => ProcessRequest::Buffer { length: number },
            4 => ProcessRequest::LetGo { number },
            5 => ProcessRequest::Publish { handle, nodes: vec![], name, grants: vec![], lease: Some(number) },
            6 => ProcessRequest::Map { name, rights: Rights::READ },
            _ => ProcessRequest::Direct { handle },
        };
        let mut bytes = Vec::new();
        request.encode_into(&mut bytes);
        (request.function(), bytes)
    })
}

/// Returns another connection of a process.
fn joined(node: &Serving, secret: Secret) -> Client<ShmFabric> {
    let mut client = wait("a connection", || {
        let config = ClientConfig { service: SERVICE.to_owned(), ..ClientConfig::default() };
        Client::connect(&fabric(), &node.address, config).ok()
    });
    let join = ProcessRequest::Attach { secret: Some(secret), priority: None };
    send(&mut client, ATTACH, &join).unwrap();
    client
}

/// Returns whether a request may wait for others until its time is over.
fn may_wait(function: u16) -> bool {
    matches!(function, RECEIVE | REPLY | INVOKE | REGISTER_SERVER | SERVERS | LOCK | BARRIER)
}

/// `DUNLIN_TIER_REQUESTS` is the number of requests.
#[test]
fn any_bytes_as_requests_change_nothing_of_others() {
    let tag = tag("fuzz");
    let nodes = two_nodes(&tag);
    let victim = attach(&nodes[0].address);
    let canaries = Canaries::new(&victim, &["one", "two", "one"]);
    let guard = victim.lock(HELD_LOCK).unwrap();
    let mut raw = Raw::attach(&nodes[0]);
    // With a connection over which it gets memory, direct mappings may be made.
    let memory = fabric();
    let line = crate::direct::dial(&memory, &nodes[0]);
    line.send(&raw.attached.secret).unwrap();
    let handles = RefCell::new(["one", "two"].map(|node| (raw.malloc(4096, node).handle, node)));
    let secret = raw.attached.secret;
    // Another connection of the same process, for requests that may wait.
    let waiting = RefCell::new(joined(&nodes[0], secret));
    let raw = RefCell::new(raw);
    let cases = ProptestConfig {
        cases: count("DUNLIN_TIER_REQUESTS", 3000),
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    let outcome = TestRunner::new(cases).run(
        &(payload(), any::<prop::sample::Index>()),
        |((function, bytes), index)| {
            // Half of the requests begin with a handle that is live.
            let mut bytes = bytes;
            let at = if function == RUN { 3.min(bytes.len()) } else { 0 };
            if let (Some(place), true) = (bytes[at..].first_chunk_mut::<8>(), index.index(2) == 0) {
                *place = handles.borrow()[index.index(4) / 2].0.to_le_bytes();
            }
            // Frees and unmaps of the fuzzer's own regions are right, and leave stale handles behind.
            let mut raw = raw.borrow_mut();
            let answer = match may_wait(function) {
                true => {
                    let mut waiting = waiting.borrow_mut();
                    let answer = waiting.within(Duration::from_millis(2)).call(function, &bytes);
                    let answer = answer.map(|answer| answer.to_vec());
                    if answer.as_ref().is_err_and(CallError::is_deadline) {
                        // The node may keep such a call, and with it a place of the window.
                        *waiting = joined(&nodes[0], secret);
                    }
                    answer
                }
                false => raw.client.call(function, &bytes).map(|answer| answer.to_vec()),
            };
            match answer {
                Ok(answer) => {
                    let is_held = matches!(
                        LockingRequest::parse(function, &bytes),
                        Ok(LockingRequest::Lock { name, .. }) if name.as_bytes() == HELD_LOCK.as_bytes()
                    );
                    prop_assert!(!is_held || answer.is_empty(), "a lock that another process holds");
                    // Half of the requests need handles that are live.
                    for (handle, node) in handles.borrow_mut().iter_mut() {
                        if matches!(function, FREE | UNMAP) && bytes.starts_with(&handle.to_le_bytes()) {
                            *handle = raw.malloc(4096, node).handle;
                        }
                    }
                }
                Err(CallError::Application { code: REFUSED, payload }) => {
                    drop(Problem::parse(&payload).unwrap())
                }
                Err(CallError::Application { code: ELSEWHERE, payload }) => prop_assert!(payload.is_empty()),
                Err(CallError::Application { code: NOTHING, payload }) => prop_assert!(payload.is_empty()),
                Err(CallError::Application { code: INVOKE_REFUSED, payload }) => {
                    drop(Problem::parse(&payload).unwrap())
                }
                // The fuzzer answers its own calls.
                Err(CallError::Application { .. }) => prop_assert_eq!(function, INVOKE),
                Err(CallError::NotExecuted(Cause::Refused(_))) => {}
                Err(error) if may_wait(function) && error.is_deadline() => {}
                Err(other) => prop_assert!(false, "{other:?}"),
            }
            Ok(())
        },
    );
    outcome.unwrap();
    canaries.check();
    guard.unlock().unwrap();
    let status = victim.status().unwrap();
    assert!(status.refused > 100, "{status:?}");
    assert_eq!(status.processes.len(), 2);
}

/// One process that attaches a thousand times, and keeps all that it gets, has as many connections as the limit says. Its
/// ends leave nothing.
#[test]
fn a_process_that_attaches_a_thousand_times_is_bounded_and_leaves_nothing() {
    const LIMIT: usize = 16;
    let tag = tag("thousand");
    let node = serve(config(&tag, &["one"], "one"), &tag, |settings| {
        settings.limits.connections = LIMIT as u16;
    });
    let victim = attach(&node.address);
    let canaries = Canaries::new(&victim, &["one", "one"]);
    let used = || {
        let status = victim.status().unwrap();
        (status.memory - status.free, status.processes.len())
    };
    let before = used();
    let connect = || {
        let config = ClientConfig { service: SERVICE.to_owned(), ..ClientConfig::default() };
        Client::connect(&fabric(), &node.address, config)
    };
    let mut kept = Vec::new();
    for _ in 0..1000 {
        match connect() {
            Ok(client) => {
                let mut raw = Raw::join(client);
                raw.malloc(4096, "one");
                kept.push(raw);
            }
            Err(error) => assert!(error.to_string().contains("has 16 connections"), "{error}"),
        }
    }
    // The victim is of the same process.
    assert!((1..LIMIT).contains(&kept.len()), "{}", kept.len());
    drop(kept);
    wait("what it had", || (used() == before).then_some(()));
    for _ in 0..1000 {
        Raw::join(wait("a connection", || connect().ok())).malloc(4096, "one");
    }
    wait("what it had, one after the other", || (used() == before).then_some(()));
    canaries.check();
}

/// A process that asks and never looks at its answers stops itself only.
#[test]
fn a_process_that_never_takes_its_answers_delays_nobody() {
    let tag = tag("deaf");
    let nodes = two_nodes(&tag);
    let victim = attach(&nodes[0].address);
    let canaries = Canaries::new(&victim, &["one", "two"]);
    let mut deaf = Vec::new();
    for (node, length) in [("one", 8), ("two", 8), ("one", 4000), ("two", 4000)] {
        let mut raw = Raw::attach(&nodes[0]);
        let handle = raw.malloc(4096, node).handle;
        let read = ProcessRequest::Read { priority: Priority::High, handle, offset: 0, length };
        let mut bytes = Vec::new();
        read.encode_into(&mut bytes);
        let mut asked = 0;
        while raw.client.submit_on(0, READ, &bytes).is_ok() {
            asked += 1;
            assert!(asked < 10_000, "a window is bounded");
        }
        deaf.push(raw);
        for (region, bytes) in &canaries.0 {
            for _ in 0..200 {
                assert_eq!(bytes_of(region).unwrap(), *bytes);
            }
        }
    }
    assert_eq!(victim.status().unwrap().processes.len(), 5);
    drop(deaf);
    wait("their end", || (victim.status().unwrap().processes.len() == 1).then_some(()));
    canaries.check();
}
