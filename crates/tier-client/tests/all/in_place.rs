//! Calls whose payloads lie in buffers of processes (LITE section 5.1).

use crate::common::{Child, HANG, Serving, attach, attach_address, bytes_of, config, serve, tag, wait};
use crate::hostile::Raw;
use crate::rings::{assert_whole, payload};
use crate::services::problem;
use dunlin_rpc::{CallError, Cause};
use dunlin_tier::call::MAX_CALL;
use dunlin_tier::process::list::BufferPart;
use dunlin_tier::process::service::{Given, Handed, Outcome, Room, ServiceRequest};
use dunlin_tier::process::{NoDirect, Opened, Problem, ProcessRequest};
use dunlin_tier::{Name, Priority};
use dunlin_tier_client::{
    AccessError, Buffer, BufferError, Calls, ReceiveError, RequestError, Rights, Spec, Tier,
};
use std::ops::Range;
use std::thread::{JoinHandle, spawn};
use std::time::{Duration, Instant};

const MEBI: usize = 1 << 20;
/// The variable that tells a child its nodes.
const CALLER: &str = "TIER_TEST_IN_PLACE_CALLER";
const RECEIVER: &str = "TIER_TEST_IN_PLACE_RECEIVER";

/// Two nodes with pieces of 64 KiB: longer buffers have several parts.
fn nodes(what: &str) -> (String, [Serving; 2]) {
    let tag = tag(what);
    let nodes = ["one", "two"].map(|name| {
        let mut settings = config(&tag, &["one", "two"], name);
        (settings.memory, settings.piece, settings.extent) = (64 << 20, 64 << 10, Some(4 << 20));
        serve(settings, &tag, |_| {})
    });
    (tag, nodes)
}

/// Checks a part of a buffer; returns the seed of its bytes.
#[track_caller]
fn whole(buffer: &Buffer, range: Range<usize>) -> u64 {
    let mut bytes = vec![0; range.len()];
    buffer.copy_out(range.start, &mut bytes).unwrap();
    assert_whole(&bytes)
}

fn contents(buffer: &Buffer) -> Vec<u8> {
    let mut bytes = vec![0; buffer.len()];
    buffer.copy_out(0, &mut bytes).unwrap();
    bytes
}

/// A request whose result has `result` bytes.
fn seed_of(number: u32, result: usize) -> u64 {
    (result as u64) << 32 | u64::from(number)
}

/// Answers requests with payloads as long as their first bytes say, until one is empty. Both lie in buffers.
fn answer(tier: &Tier, calls: &Calls) {
    let (mut requests, mut results) =
        (tier.buffer(MAX_CALL as usize + 3).unwrap(), tier.buffer(MAX_CALL as usize + 5).unwrap());
    let mut received = calls.receive_into(&mut requests, 3..).unwrap();
    while !received.is_empty() {
        let seed = whole(&requests, 3..3 + received.len());
        let length = (seed >> 32) as usize;
        results.copy_in(5, &payload(seed + 1, length)).unwrap();
        let from = (&mut results, 5..5 + length);
        received = received.reply_from_and_receive_into(from, (&mut requests, 3..)).unwrap();
    }
    received.reply_from(&mut results, ..0).unwrap();
}

fn serving(node: &Serving, service: &str) -> JoinHandle<()> {
    let tier = attach(&node.address);
    let calls = tier.register(service, 1).unwrap();
    spawn(move || answer(&tier, &calls))
}

/// A process with two buffers.
struct Caller {
    tier: Tier,
    from: Buffer,
    into: Buffer,
}

impl Caller {
    fn new(tier: Tier, length: usize) -> Caller {
        let (from, into) = (tier.buffer(length).unwrap(), tier.buffer(length).unwrap());
        Caller { tier, from, into }
    }

    fn try_call(
        &mut self,
        (time, to): (Duration, (&str, &[u8], u16)),
        number: u32,
        (length, result): (usize, usize),
    ) -> Result<(), RequestError> {
        let (from, into) = (1..1 + length, 2..);
        self.from.copy_in(1, &payload(seed_of(number, result), length)).unwrap();
        let got = self.tier.call_in_place(time, to, (&mut self.from, from), (&mut self.into, into))?;
        assert_eq!(got, result);
        assert_eq!(whole(&self.into, 2..2 + got), seed_of(number + 1, result));
        Ok(())
    }

    #[track_caller]
    fn call(&mut self, number: u32, lengths: (usize, usize)) {
        self.try_call((HANG, ("two", b"in-place", 1)), number, lengths).unwrap();
    }

    fn stop(&self, server: JoinHandle<()>) {
        assert_eq!(self.tier.call("two", "in-place", 1, &[], &mut []).unwrap(), 0);
        server.join().unwrap();
    }
}

#[test]
fn payloads_of_all_lengths() {
    let (_, nodes) = nodes("in-place-lengths");
    let server = serving(&nodes[1], "in-place");
    let mut caller = Caller::new(attach(&nodes[0].address), MAX_CALL as usize + 2);
    let used = || nodes[0].node.ring("two").unwrap();
    for (number, length) in [8, 64, 4096].into_iter().enumerate() {
        caller.call(number as u32, (length, length));
    }
    assert_eq!(used(), Default::default(), "short payloads travel in messages");
    let lengths = [4097, 5000, 64 << 10, (64 << 10) + 1, 200_000, MEBI, MAX_CALL as usize];
    for (number, length) in lengths.into_iter().enumerate() {
        caller.call(number as u32, (length, 8));
    }
    assert_eq!((used().payloads, used().in_messages), (lengths.len() as u64, 0));
    for (number, length) in lengths.into_iter().enumerate() {
        caller.call(number as u32, (8, length));
        caller.call(number as u32, (length, length));
    }
    assert_eq!(used().in_messages, 0);
    // A server with memory of its own, and a caller with such.
    let tier = attach(&nodes[1].address);
    let calls = tier.register("own-memory", 1).unwrap();
    let other = spawn(move || {
        let mut bytes = vec![0; MEBI];
        let mut results = tier.buffer(MEBI).unwrap();
        loop {
            let request = calls.receive(&mut bytes).unwrap();
            let seed = u64::from_le_bytes(bytes[..8].try_into().unwrap());
            assert!(bytes[..request.len()] == payload(seed, request.len()));
            let result = payload(seed + 1, (seed >> 32) as usize);
            if request.len() == 8 {
                return request.reply(&result).unwrap();
            }
            results.copy_in(0, &result).unwrap();
            request.reply_from(&mut results, ..result.len()).unwrap();
        }
    });
    for lengths in [(9, 9), (MEBI, 300_000), (70_000, MEBI), (8, 100_000)] {
        caller.try_call((HANG, ("two", b"own-memory", 1)), 7, lengths).unwrap();
    }
    other.join().unwrap();
    let (tier, mut result) = (attach(&nodes[0].address), vec![0; MEBI]);
    for (length, room) in [(80_000, 90_000), (16, MEBI)] {
        let request = payload(seed_of(3, room), length);
        assert_eq!(tier.call("two", "in-place", 1, &request, &mut result).unwrap(), room);
        assert!(result[..room] == payload(seed_of(4, room), room));
    }
    // The own node is called in the same way.
    let own = serving(&nodes[0], "own");
    for lengths in [(20, 20), (50_000, 60_000), (MEBI, MEBI)] {
        caller.try_call((HANG, ("one", b"own", 1)), 5, lengths).unwrap();
    }
    assert_eq!(tier.call("one", "own", 1, &[], &mut []).unwrap(), 0);
    own.join().unwrap();
    caller.stop(server);
}

#[test]
fn payloads_and_buffers_that_do_not_fit_are_refused() {
    let (_, nodes) = nodes("in-place-refused");
    let server = serving(&nodes[1], "in-place");
    let mut caller = Caller::new(attach(&nodes[0].address), 100_000);
    let other = attach(&nodes[0].address);
    let mut theirs = other.buffer(100_000).unwrap();
    let to = ("two", &b"in-place"[..], 1);
    let Caller { tier, from, into } = &mut caller;
    from.copy_in(0, &payload(seed_of(1, 50_000), 70_000)).unwrap();
    into.copy_in(0, &[7; 100_000]).unwrap();
    // Twice: the result comes in its message, and then in the ring.
    for (room, length) in [(10, 70_000), (8192, 70_000), (49_999, 70_000), (49_999, 70_000)] {
        let error = tier.call_in_place(HANG, to, (from, ..length), (into, ..room)).unwrap_err();
        match error {
            RequestError::AnswerTooLong { length: 50_000, room: of } => assert_eq!(of, room),
            other => panic!("{other:?}"),
        }
        assert_eq!(contents(into), [7; 100_000], "nothing of the result is there");
    }
    for range in [0..100_001, 100_001..100_001, usize::MAX - 1..usize::MAX] {
        for error in [
            tier.call_in_place(HANG, to, (from, range.clone()), (into, ..)),
            tier.call_in_place(HANG, to, (from, ..8), (into, range.clone())),
        ] {
            assert!(matches!(error, Err(RequestError::Buffer(BufferError::Outside { .. }))), "{error:?}");
        }
    }
    for error in [
        tier.call_in_place(HANG, to, (&mut theirs, ..8), (into, ..)),
        tier.call_in_place(HANG, to, (from, ..8), (&mut theirs, ..)),
    ] {
        assert!(matches!(error, Err(RequestError::Buffer(BufferError::OtherTier))), "{error:?}");
    }
    let error = tier.call_in_place(HANG, ("none", b"in-place", 1), (from, ..9), (into, ..)).unwrap_err();
    assert!(matches!(error, RequestError::NoNode(_)), "{error:?}");
    let error = tier.call_in_place(HANG, ("two", b"nobody", 1), (from, ..70_000), (into, ..)).unwrap_err();
    assert!(!error.may_have_executed(), "{error}");
    let mut long = tier.buffer(MAX_CALL as usize + 1).unwrap();
    let error = tier.call_in_place(HANG, to, (&mut long, ..), (into, ..)).unwrap_err();
    assert!(matches!(error, RequestError::Limit { .. }), "{error:?}");
    drop(long);
    // A receiver with less room leaves the request to the next one.
    let calls = other.register("short", 1).unwrap();
    let mut asked = Caller::new(attach(&nodes[1].address), 50_000);
    let asking = spawn(move || {
        asked.try_call((HANG, ("one", b"short", 1)), 3, (40_000, 16)).unwrap();
        let lost = asked.try_call((HANG, ("one", b"short", 1)), 4, (40_000, 16)).unwrap_err();
        assert!(lost.may_have_executed(), "{lost}");
        asked
    });
    match calls.receive_into(&mut theirs, ..39_999) {
        Err(ReceiveError::TooLong { length: 40_000 }) => {}
        other => panic!("{other:?}"),
    }
    for range in [0..100_001, 100_001..100_001] {
        match calls.receive_into(&mut theirs, range) {
            Err(ReceiveError::Node(RequestError::Buffer(BufferError::Outside { .. }))) => {}
            other => panic!("{other:?}"),
        }
    }
    let request = calls.receive_into(&mut theirs, ..).unwrap();
    let seed = whole(&theirs, 0..request.len());
    theirs.copy_in(0, &payload(seed + 1, 16)).unwrap();
    request.reply_from(&mut theirs, ..16).unwrap();
    // Without an answer in the buffer, the caller does not wait for one.
    let request = calls.receive_into(&mut theirs, ..).unwrap();
    let error = request.reply_from(&mut theirs, ..100_001).unwrap_err();
    assert!(matches!(error, RequestError::Buffer(_)), "{error:?}");
    match calls.receive_into(&mut caller.into, ..) {
        Err(ReceiveError::Node(RequestError::Buffer(BufferError::OtherTier))) => {}
        other => panic!("{other:?}"),
    }
    drop(asking.join().unwrap());
    match calls.receive_into_within(&mut theirs, .., Duration::from_millis(5)) {
        Err(ReceiveError::NoCall) => {}
        other => panic!("{other:?}"),
    }
    caller.call(1, (90_000, 90_000));
    caller.stop(server);
}

/// Calls whose time is over at any place. The buffers do not change afterwards, whatever the nodes go on with, and no byte
/// that the process stores afterwards is sent.
#[test]
fn deadlines_in_the_middle_of_a_call() {
    let (_, nodes) = nodes("in-place-late");
    let server = serving(&nodes[1], "in-place");
    let length = 300_000;
    let mut caller = Caller::new(attach(&nodes[0].address), length + 2);
    caller.call(1, (length, length));
    caller.call(1, (length, length));
    let begun = Instant::now();
    caller.call(2, (length, length));
    let whole_time = begun.elapsed();
    let (mut late, mut done) = (0, 0);
    for round in 0..100u32 {
        let time = whole_time * (round + 5) / 100;
        match caller.try_call((time, ("two", b"in-place", 1)), round, (length, length)) {
            Ok(()) => done += 1,
            Err(error) => {
                // A result that could not be read in time was one: no retry of its caller is safe.
                let was_executed = matches!(&error, RequestError::Call { source, .. } if source.was_executed() == Some(true));
                assert!(error.is_deadline() || was_executed, "{error:?}");
                late += 1;
            }
        }
        // The server checks each byte of a request.
        let fresh = vec![round as u8; length + 2];
        for buffer in [&mut caller.from, &mut caller.into] {
            buffer.copy_in(0, &fresh).unwrap();
        }
        std::thread::sleep(Duration::from_micros(u64::from(round % 7) * 300));
        for buffer in [&caller.from, &caller.into] {
            assert!(contents(buffer) == fresh, "round {round}");
        }
    }
    assert!(late > 0, "{done} in time");
    caller.call(2, (length, length));
    caller.stop(server);
    drop(caller);
    wait("the memory", || {
        let ring = nodes[1].node.ring("one").unwrap().length;
        (nodes[0].node.lent_memory() == ring).then_some(())
    });
}

/// A process is killed with calls under way. Each payload that the server receives is whole, and all memory comes back.
#[test]
fn a_killed_caller_tears_no_payload() {
    if std::env::var(CALLER).is_ok() {
        return;
    }
    let (tag, nodes) = nodes("in-place-caller");
    let server = serving(&nodes[1], "in-place");
    let mut caller = Caller::new(attach(&nodes[0].address), 50_000);
    let used = || nodes[0].node.ring("two").unwrap();
    let before = nodes[0].node.free_memory();
    for round in 0..8u64 {
        let payloads = used().payloads;
        let mut child = Child::start("in_place::calls_for_ever", &[(CALLER, &tag)]);
        wait("calls of the child", || (used().payloads > payloads + 4).then_some(()));
        std::thread::sleep(Duration::from_micros(300 * round));
        child.kill();
        caller.call(1, (30_000, 30_000));
    }
    caller.stop(server);
    wait("the buffers", || (nodes[0].node.free_memory() == before).then_some(()));
    wait("the ring", || (nodes[1].node.lent_memory() == used().length).then_some(()));
}

/// The child of the test above.
#[test]
fn calls_for_ever() {
    let Ok(tag) = std::env::var(CALLER) else { return };
    let mut caller = Caller::new(attach(&attach_address(&tag, "one")), MEBI + 20);
    for number in 0.. {
        if caller.try_call((HANG, ("two", b"in-place", 1)), number, (MEBI + 5, MEBI + 9)).is_err() {
            return;
        }
    }
}

/// A process is killed that serves. Its calls end, with their certainty, and its memory comes back.
#[test]
fn a_killed_receiver_leaves_no_call_and_no_memory() {
    if std::env::var(RECEIVER).is_ok() {
        return;
    }
    let (tag, nodes) = nodes("in-place-receiver");
    let app = attach(&nodes[0].address);
    let before = nodes[1].node.free_memory();
    for round in 0..5u64 {
        let mut child = Child::start("in_place::serves_for_ever", &[(RECEIVER, &tag)]);
        let hello = payload(seed_of(1, 9), 9);
        wait("the child", || app.call("two", "killed", 1, &hello, &mut [0; 9]).ok());
        let callers: Vec<_> = (0..2)
            .map(|thread| {
                let mut own = Caller::new(app.clone(), 300_000);
                spawn(move || {
                    for number in 0.. {
                        let lengths = (100_000 * thread + 5000, 200_000);
                        match own.try_call((HANG, ("two", b"killed", 1)), number, lengths) {
                            Ok(()) => {}
                            Err(RequestError::Call { source, .. }) => {
                                return assert_ne!(source.was_executed(), Some(true), "{source}");
                            }
                            Err(error) => panic!("{error}"),
                        }
                    }
                })
            })
            .collect();
        std::thread::sleep(Duration::from_millis(20 + 3 * round));
        child.kill();
        callers.into_iter().for_each(|caller| caller.join().unwrap());
    }
    let ring = || nodes[0].node.ring("two").unwrap().length;
    wait("the memory", || (nodes[1].node.free_memory() + ring() == before).then_some(()));
}

/// The child of the test above.
#[test]
fn serves_for_ever() {
    let Ok(tag) = std::env::var(RECEIVER) else { return };
    let tier = attach(&attach_address(&tag, "two"));
    let calls = tier.register("killed", 1).unwrap();
    answer(&tier, &calls);
}

#[test]
fn hostile_places_are_refused() {
    let (_, nodes) = nodes("in-place-hostile");
    let victim = attach(&nodes[0].address);
    let canary = victim.malloc(4096, Spec::here()).unwrap();
    canary.write(0, &[7; 4096]).unwrap();
    let mut theirs = victim.buffer(4096).unwrap();
    theirs.copy_in(0, &[8; 4096]).unwrap();
    let (mut raw, mut other) = (Raw::attach(&nodes[0]), Raw::attach(&nodes[0]));
    let opened = |answer: Vec<u8>| Opened::parse(&answer).unwrap().handle;
    let own = opened(raw.ask(&ProcessRequest::Buffer { length: 20_000 }).unwrap());
    let foreign = opened(other.ask(&ProcessRequest::Buffer { length: 20_000 }).unwrap());
    let (near, far) = (raw.malloc(20_000, "one").handle, raw.malloc(20_000, "two").handle);
    let service = || Name::new("hostile").unwrap();
    let send = |raw: &mut Raw, request: &ServiceRequest<'_>| {
        let mut bytes = Vec::new();
        request.encode_into(&mut bytes);
        let client = raw.client.within(Duration::from_secs(10));
        client.call(request.function(), &bytes).map(|answer| answer.to_vec())
    };
    let register = ServiceRequest::Register { service: service(), function: 1 };
    let registration = u64::from_le_bytes(send(&mut raw, &register).unwrap().try_into().unwrap());
    let part = |buffer, at, length| BufferPart { length, buffer, at };
    let out = |offset, length| Problem::Access(AccessError::OutOfBounds { offset, length, size: 20_000 });
    let mut wrong: Vec<(BufferPart, Problem)> = [foreign, 0, 1, u64::MAX, own ^ 64, own ^ 1 << 63]
        .map(|handle| (part(handle, 0, 8), Problem::Access(AccessError::NoHandle)))
        .into();
    wrong.extend([near, far].map(|handle| (part(handle, 0, 8), Problem::NotDirect(NoDirect::Shared))));
    wrong.extend([19_993, 20_001, u64::MAX - 7, u64::MAX].map(|at| (part(own, at, 8), out(at, 8))));
    let long = Problem::TooLong { length: u64::from(MAX_CALL) + 1, limit: MAX_CALL };
    wrong.push((part(own, 0, MAX_CALL + 1), long));
    let (good, priority) = (part(own, 0, 5000), Priority::High);
    let invoke = |bytes, room| ServiceRequest::Invoke {
        node: "one",
        service: service(),
        function: 1,
        is_one_way: false,
        priority,
        room,
        bytes,
    };
    for (place, found) in &wrong {
        for (bytes, room) in [(*place, good), (good, *place), (*place, *place)] {
            let call = invoke(Given::In(bytes), Room::In(room));
            assert_eq!(problem(send(&mut raw, &call)), *found, "{place:?}");
        }
        let receive = ServiceRequest::Receive { registration, room: Room::In(*place), time: u64::MAX };
        assert_eq!(problem(send(&mut raw, &receive)), *found, "{place:?}");
        let reply = |next, bytes| ServiceRequest::Reply {
            registration,
            number: 5,
            outcome: Outcome::Result,
            next,
            bytes: Given::In(bytes),
        };
        assert_eq!(problem(send(&mut raw, &reply(None, *place))), *found, "{place:?}");
        assert_eq!(problem(send(&mut raw, &reply(Some(Room::In(*place)), good))), *found, "{place:?}");
    }
    // A result at a wrong place ends the call of its caller at once.
    let (place, found) = wrong[0].clone();
    let app = attach(&nodes[1].address);
    let calling = spawn(move || app.call_within(HANG, ("one", b"hostile", 1), &[1; 9], &mut []));
    let room = Room::Answer(64);
    let received = send(&mut raw, &ServiceRequest::Receive { registration, room, time: u64::MAX }).unwrap();
    let number = Handed::parse(&received).unwrap().number;
    let (outcome, bytes) = (Outcome::Result, Given::In(place));
    let reply = ServiceRequest::Reply { registration, number, outcome, next: None, bytes };
    assert_eq!(problem(send(&mut raw, &reply)), found);
    match calling.join().unwrap() {
        Err(RequestError::Call { source, .. }) => {
            assert_eq!(source, CallError::MaybeExecuted(Cause::Dropped), "{source}");
        }
        other => panic!("{other:?}"),
    }
    // Request and result in the same bytes: some mixture of both, and nobody else's.
    let echo = spawn(move || {
        let mut bytes = vec![0; 64];
        let receive = ServiceRequest::Receive { registration, room: Room::In(good), time: u64::MAX };
        let received = send(&mut raw, &receive).unwrap();
        let Handed { number, length, .. } = Handed::parse(&received).unwrap();
        let bytes_of_it = Given::In(part(own, 0, length));
        ServiceRequest::Reply { registration, number, outcome, next: None, bytes: bytes_of_it }
            .encode_into(&mut bytes);
        raw.client.call(dunlin_tier::process::service::REPLY, &bytes).unwrap();
        raw
    });
    let own_place = part(foreign, 0, 9000);
    let mut bytes = Vec::new();
    let call = invoke(Given::In(part(foreign, 0, 5000)), Room::In(own_place));
    call.encode_into(&mut bytes);
    let answer = other.client.within(Duration::from_secs(10)).call(call.function(), &bytes).unwrap().to_vec();
    assert_eq!(answer, 5000u32.to_le_bytes());
    drop(echo.join().unwrap());
    assert_eq!(bytes_of(&canary).unwrap(), [7; 4096]);
    assert_eq!(contents(&theirs), [8; 4096]);
}

/// Processes of a node with several workers: each connection leads to all of them.
#[test]
fn several_workers_serve_the_processes_of_a_node() {
    let tag = tag("in-place-workers");
    let nodes = ["one", "two"].map(|name| {
        let mut settings = config(&tag, &["one", "two"], name);
        settings.memory = 64 << 20;
        serve(settings, &tag, |processes| processes.workers = 3)
    });
    let server = serving(&nodes[1], "in-place");
    let app = attach(&nodes[0].address);
    let word = app.malloc(8, Spec::on("two").named("word")).unwrap();
    let callers: Vec<_> = (0..5)
        .map(|_| {
            let mut own = Caller::new(attach(&nodes[0].address), 70_000);
            spawn(move || {
                let word = own.tier.map("word", Rights::WRITE).unwrap();
                for number in 0..40 {
                    let long = number as usize % 3 * 30_000;
                    own.call(number, (8 + long, 69_000 - long));
                    word.fetch_add(0, 1).unwrap();
                }
                drop(word);
                own
            })
        })
        .collect();
    let callers: Vec<Caller> = callers.into_iter().map(|caller| caller.join().unwrap()).collect();
    assert_eq!(bytes_of(&word).unwrap(), 200u64.to_le_bytes());
    callers[0].stop(server);
    // All that the processes had comes back, whichever worker served them.
    drop((callers, word));
    wait("the end of the processes", || (app.status().unwrap().processes.len() == 1).then_some(()));
}
