//! Long payloads of calls of attached processes, which go through the ring of their node at the serving node (LITE
//! section 5.1).

use crate::common::{Child, HANG, Serving, attach, attach_address, config, fabric, serve, tag, wait};
use crate::turns::{NODES, app, node, spawn as spawn_on};
use dunlin_fabric::{Address, Fabric, Host, Scheme, Task};
use dunlin_fabric_sim::{MachineSettings, Settings, Sim};
use dunlin_rpc::{CallError, Cause, Client, ClientConfig};
use dunlin_tier::call::SERVICE_CALL;
use dunlin_tier::message::{Reply, Request, SLOW_CALL};
use dunlin_tier::process::gateway_name;
use dunlin_tier::{CallAnswer, CallHead, LmrId, Name, NodeId, Principal, RingPlace};
use dunlin_tier_client::{Calls, EachCall, ReceiveError, RequestError, Tier};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{JoinHandle, spawn};
use std::time::Duration;

const MEBI: usize = 1 << 20;
/// The memory of a node: an eighth of it is for the rings of all nodes there.
const MEMORY: u64 = 64 << 20;
/// The variable that tells a child its nodes.
const CALLER: &str = "TIER_TEST_RING_CALLER";
const RECEIVER: &str = "TIER_TEST_RING_RECEIVER";

fn nodes(what: &str, memory: u64) -> (String, [Serving; 2]) {
    let tag = tag(what);
    let names = ["one", "two"];
    let nodes = names.map(|name| {
        let mut settings = config(&tag, &names, name);
        settings.memory = memory;
        serve(settings, &tag, |_| {})
    });
    (tag, nodes)
}

/// Bytes that tell their seed and their length.
pub(crate) fn payload(seed: u64, length: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..length as u64).map(|at| (at * 31 + (at >> 8) + seed * 7) as u8).collect();
    bytes.iter_mut().zip(seed.to_le_bytes()).for_each(|(byte, of_seed)| *byte = of_seed);
    bytes
}

#[track_caller]
pub(crate) fn assert_whole(bytes: &[u8]) -> u64 {
    let seed = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    assert!(bytes == payload(seed, bytes.len()), "a payload of {} bytes is not that of {seed}", bytes.len());
    seed
}

/// A request whose result has `result` bytes.
fn request(number: u32, length: usize, result: usize) -> Vec<u8> {
    payload((result as u64) << 32 | u64::from(number), length)
}

/// Answers requests with payloads as long as their first bytes say, until one is empty.
fn answer<P: Fabric>(calls: &Calls<P>) {
    let mut buffer = vec![0; 5 * MEBI];
    let mut received = calls.receive(&mut buffer).unwrap();
    while !received.is_empty() {
        let seed = assert_whole(&buffer[..received.len()]);
        received =
            received.reply_and_receive(&payload(seed + 1, (seed >> 32) as usize), &mut buffer).unwrap();
    }
    received.reply(&[]).unwrap();
}

fn serving(node: &Serving, service: &str) -> JoinHandle<()> {
    let calls = attach(&node.address).register(service, 1).unwrap();
    spawn(move || answer(&calls))
}

fn call(tier: &Tier, number: u32, (length, result): (usize, usize), room: &mut [u8]) {
    let request = request(number, length, result);
    let got = tier.call("two", "long", 1, &request, room).unwrap();
    assert_eq!(got, result);
    assert_eq!(assert_whole(&room[..got]), (result as u64) << 32 | u64::from(number + 1));
}

fn stop(tier: &Tier, server: JoinHandle<()>) {
    assert_eq!(tier.call("two", "long", 1, &[], &mut []).unwrap(), 0);
    server.join().unwrap();
}

#[test]
fn payloads_of_all_lengths() {
    let (_, nodes) = nodes("ring-lengths", MEMORY);
    let server = serving(&nodes[1], "long");
    let app = attach(&nodes[0].address);
    let used = || nodes[0].node.ring("two").unwrap();
    let mut room = vec![0; MEBI];
    for (number, length) in [8, 64, 4000, 4096].into_iter().enumerate() {
        call(&app, number as u32, (length, 8), &mut room);
    }
    assert_eq!(used(), Default::default(), "short payloads travel in messages");
    call(&app, 4, (4097, 8), &mut room);
    assert_eq!((used().payloads, used().bytes), (1, 4097), "one line more than a message has");
    // Room for a long result is taken after the first one.
    call(&app, 5, (8, 9000), &mut room);
    assert_eq!(used().payloads, 1);
    call(&app, 6, (8, 9000), &mut room);
    assert_eq!((used().payloads, used().bytes), (2, 4097 + 9000));
    // A caller with a short buffer takes no range for its result.
    call(&app, 7, (8, 100), &mut [0; 100]);
    let before = used();
    let lengths =
        [(300_001, 4096), (4097, 4097), (MEBI, 8), (8, MEBI), (8, MEBI), (MEBI, MEBI), (77_777, 5000)];
    for lengths in lengths {
        call(&app, 8, lengths, &mut room);
    }
    // Beside the short ones: the first result of a megabyte is longer than those before.
    assert_eq!((used().payloads - before.payloads, used().in_messages), (9, 0));
    let mut longest = vec![0; 4 * MEBI];
    for length in [2 * MEBI, 4 * MEBI, 4 * MEBI] {
        call(&app, 9, (length, length), &mut longest);
    }
    // Results that are longer than the caller's room, and errors of a service, leave no range behind.
    for _ in 0..3 {
        let error = app.call("two", "long", 1, &request(1, 9000, 20_000), &mut [0; 10_000]).unwrap_err();
        assert!(matches!(error, RequestError::AnswerTooLong { length: 20_000, room: 10_000 }), "{error}");
        let error = app.call("two", "nobody", 1, &request(1, 9000, 20_000), &mut room).unwrap_err();
        assert!(!error.may_have_executed(), "{error}");
    }
    // One-way calls, and several at once.
    let before = used().payloads;
    app.send("two", "long", 1, &request(3, 70_000, 8)).unwrap();
    assert_eq!(used().payloads, before + 1);
    let long = request(5, 30_000, 6000);
    let each = EachCall { node: "two", service: b"long", function: 1, request: &long };
    for result in app.call_each(HANG, &[each; 5]).unwrap() {
        assert_eq!(assert_whole(&result.unwrap()) as u32, 6);
    }
    assert_eq!(used().payloads, before + 1 + 10);
    // The engine's own clients, through the gateway.
    let address = Address::new(Scheme::Shm, &gateway_name(nodes[0].address.name())).unwrap();
    let settings = ClientConfig { service: "long".to_owned(), timeout: HANG, ..ClientConfig::default() };
    let mut client = Client::connect(&fabric(), &address, settings).unwrap();
    let before = used().payloads;
    for length in [20, 9000, 300_000] {
        let result = client.call(1, &request(7, length, 50_000)).unwrap();
        assert_eq!((result.len(), assert_whole(&result) as u32), (50_000, 8));
    }
    assert_eq!(used().payloads, before + 2 + 3);
    // A call to the own node goes the same way.
    let own = serving(&nodes[0], "own");
    let got = app.call("one", "own", 1, &request(1, 50_000, 60_000), &mut room).unwrap();
    assert_eq!((got, assert_whole(&room[..got]) as u32), (60_000, 2));
    assert_eq!(nodes[0].node.ring("one").unwrap().payloads, 1);
    app.call("one", "own", 1, &[], &mut []).unwrap();
    own.join().unwrap();
    stop(&app, server);
}

#[test]
fn processes_of_a_node_share_its_ring() {
    let (_, nodes) = nodes("ring-share", MEMORY);
    let service = attach(&nodes[1].address);
    let calls = Arc::new(service.register("long", 1).unwrap());
    let servers: Vec<_> = (0..3)
        .map(|_| {
            let calls = Arc::clone(&calls);
            spawn(move || answer(&calls))
        })
        .collect();
    let callers: Vec<_> = (0..6u32)
        .map(|thread| {
            let own = attach(&nodes[0].address);
            spawn(move || {
                let mut room = vec![0; 200_000];
                for round in 0..30 {
                    let lengths = [(6000, 8), (150_000, 5000), (8, 190_000), (90_000, 90_000), (20, 20)];
                    call(&own, thread * 1000 + round, lengths[(round % 5) as usize], &mut room);
                }
            })
        })
        .collect();
    callers.into_iter().for_each(|caller| caller.join().unwrap());
    let used = nodes[0].node.ring("two").unwrap();
    assert!(used.payloads >= 6 * 30 * 3 / 5, "{used:?}");
    let app = attach(&nodes[0].address);
    servers.iter().for_each(|_| assert_eq!(app.call("two", "long", 1, &[], &mut []).unwrap(), 0));
    servers.into_iter().for_each(|server| server.join().unwrap());
}

/// A function whose process does not receive fills the ring: other calls travel in messages, and are counted.
#[test]
fn a_full_ring_holds_up_nobody() {
    // The ring has one part, of 1 MiB.
    let (_, nodes) = nodes("ring-full", 8 << 20);
    let server = serving(&nodes[1], "long");
    let _idle = attach(&nodes[1].address).register("idle", 1).unwrap();
    let app = attach(&nodes[0].address);
    let used = || nodes[0].node.ring("two").unwrap();
    call(&app, 1, (9000, 9000), &mut [0; 9000]);
    let waiting: Vec<_> = (0..4)
        .map(|number| {
            let own = app.clone();
            spawn(move || {
                let time = Duration::from_secs(2);
                let late = own.call_within(time, ("two", b"idle", 1), &request(number, 300_000, 8), &mut []);
                let Err(RequestError::Call { source, .. }) = late else { panic!("{late:?}") };
                assert_eq!(source, CallError::MaybeExecuted(Cause::DeadlineExceeded));
            })
        })
        .collect();
    wait("the requests", || (used().payloads >= 4 && used().in_messages == 1).then_some(()));
    for number in 0..5 {
        call(&app, number, (200_000, 9000), &mut [0; 9000]);
    }
    assert_eq!((used().in_messages, used().length), (6, MEBI as u64), "{:?}", used());
    waiting.into_iter().for_each(|caller| caller.join().unwrap());
    // Calls that may go on have given the part up: the next ones make another.
    wait("another part", || {
        let before = used().payloads;
        call(&app, 10, (200_000, 9000), &mut [0; 9000]);
        (used().payloads > before).then_some(())
    });
    stop(&app, server);
}

/// A process is killed with calls under way. Each payload that the server receives is whole, and all memory comes back.
#[test]
fn a_killed_caller_tears_no_payload() {
    if std::env::var(CALLER).is_ok() {
        return;
    }
    let (tag, nodes) = nodes("ring-caller", MEMORY);
    let server = serving(&nodes[1], "long");
    let app = attach(&nodes[0].address);
    let used = || nodes[0].node.ring("two").unwrap();
    for round in 0..8u64 {
        let before = used().payloads;
        let mut child = Child::start("rings::calls_for_ever", &[(CALLER, &tag)]);
        wait("calls of the child", || (used().payloads > before + 4).then_some(()));
        std::thread::sleep(Duration::from_micros(300 * round));
        child.kill();
        call(&app, 1, (30_000, 30_000), &mut vec![0; 40_000]);
    }
    stop(&app, server);
    wait("the memory", || (nodes[1].node.lent_memory() == used().length).then_some(()));
}

/// The child of the test above.
#[test]
fn calls_for_ever() {
    let Ok(tag) = std::env::var(CALLER) else { return };
    let app = attach(&attach_address(&tag, "one"));
    let mut room = vec![0; 2 * MEBI];
    for number in 0.. {
        let request = request(number, MEBI + 5, MEBI + 9);
        if app.call("two", "long", 1, &request, &mut room).is_err() {
            return;
        }
    }
}

/// A process is killed that serves. Its calls end, with their certainty, and the memory of their payloads comes back.
#[test]
fn a_killed_receiver_leaves_no_call_and_no_memory() {
    if std::env::var(RECEIVER).is_ok() {
        return;
    }
    let (tag, nodes) = nodes("ring-receiver", MEMORY);
    let server = serving(&nodes[1], "long");
    let app = attach(&nodes[0].address);
    for round in 0..6u64 {
        let mut child = Child::start("rings::serves_for_ever", &[(RECEIVER, &tag)]);
        let is_there = || app.call("two", "killed", 1, &request(1, 9, 9), &mut [0; 9]).ok();
        wait("the child", is_there);
        let callers: Vec<_> = (0..3)
            .map(|thread| {
                let own = app.clone();
                spawn(move || {
                    let mut room = vec![0; 300_000];
                    for number in 0.. {
                        let request = request(number, 100_000 * thread + 5000, 200_000);
                        let called = own.call_within(HANG, ("two", b"killed", 1), &request, &mut room);
                        match called {
                            Ok(got) => assert_eq!(assert_whole(&room[..got]) as u32, number + 1),
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
        call(&app, 1, (30_000, 30_000), &mut vec![0; 40_000]);
    }
    stop(&app, server);
    let used = || nodes[0].node.ring("two").unwrap();
    wait("the memory", || (nodes[1].node.lent_memory() == used().length).then_some(()));
}

/// The child of the test above.
#[test]
fn serves_for_ever() {
    let Ok(tag) = std::env::var(RECEIVER) else { return };
    let calls = attach(&attach_address(&tag, "two")).register("killed", 1).unwrap();
    answer(&calls);
}

/// The serving node ends under calls and comes back: the ring is made again.
#[test]
fn a_ring_is_made_again_at_the_next_life_of_a_node() {
    let tag = tag("ring-lives");
    let names = ["one", "two"];
    let settings = |name| dunlin_tier_node::TierConfig { memory: MEMORY, ..config(&tag, &names, name) };
    let one = serve(settings("one"), &tag, |_| {});
    let app = attach(&one.address);
    let mut room = vec![0; 50_000];
    for life in 0..3 {
        let two = serve(settings("two"), &tag, |_| {});
        let server = serving(&two, "long");
        // The client connects with back-off.
        let first = request(1, 30_000, 40_000);
        wait("the node", || match app.call("two", "long", 1, &first, &mut room) {
            Ok(length) => {
                assert_eq!(assert_whole(&room[..length]) as u32, 2);
                Some(())
            }
            Err(error) => {
                assert!(!error.may_have_executed(), "{error}");
                None
            }
        });
        for number in 0..3 {
            call(&app, number, (30_000, 40_000), &mut room);
        }
        let before = one.node.ring("two").unwrap().payloads;
        call(&app, 3, (30_000, 40_000), &mut room);
        assert_eq!(one.node.ring("two").unwrap().payloads, before + 2, "in life {life}");
        stop(&app, server);
    }
}

/// A peer names memory that it does not have: the process that serves gets no byte of it, and no result goes there.
#[test]
fn hostile_places_of_payloads_are_refused() {
    let tag = tag("ring-hostile");
    let mut settings = config(&tag, &["one", "two"], "two");
    settings.memory = MEMORY;
    let calls = settings.nodes[1].calls.clone();
    let node = serve(settings, &tag, |_| {});
    let app = attach(&node.address);
    let region = app.malloc(1000, dunlin_tier_client::Spec::here()).unwrap();
    region.write(0, &[7; 1000]).unwrap();
    let served = app.register("echo", 1).unwrap();
    let server = spawn(move || {
        let mut buffer = vec![0; 8192];
        loop {
            let received = served.receive(&mut buffer).unwrap();
            let bytes = buffer[..received.len()].to_vec();
            received.reply(&bytes).unwrap();
            if bytes.is_empty() {
                return;
            }
        }
    });
    let mut client = Client::connect(&fabric(), &calls, ClientConfig::default()).unwrap();
    let owner = LmrId { node: NodeId(0), slot: 5, generation: 9 };
    let part = Request::Ring { owner, length: 1 << 20, least: 1 << 20 }.encode();
    let Ok(Reply::Allocated(layout)) = Reply::parse(&client.call(SLOW_CALL, &part).unwrap()) else {
        panic!("a part of a ring");
    };
    let piece = layout.pieces()[0];
    let (extent, offset) = (piece.extent, piece.offset);
    let right = RingPlace { owner, extent, offset, request: Some(5000), room: 5000 };
    let head = |ring| {
        let (service, caller) = (Name::new("echo").unwrap(), Principal::new("x").unwrap());
        CallHead { service, function: 1, caller, is_one_way: false, ring }
    };
    for wrong in [
        RingPlace { owner: LmrId { slot: 6, ..owner }, ..right },
        RingPlace { owner: LmrId { generation: 8, ..owner }, ..right },
        RingPlace { extent: 77, ..right },
        RingPlace { offset: offset + (1 << 20) - 4999, ..right },
        RingPlace { offset: u64::MAX, ..right },
        RingPlace { offset: u64::MAX - 4999, ..right },
        RingPlace { request: Some(4 << 20), ..right },
    ] {
        let error = client.call(SERVICE_CALL, &head(Some(wrong)).encode(&[])).map(drop).unwrap_err();
        assert_eq!(error.was_executed(), Some(false), "{wrong:?}: {error}");
        if wrong.request == right.request {
            let place = RingPlace { request: None, ..wrong };
            let result = client.call(SERVICE_CALL, &head(Some(place)).encode(&[3; 5000])).unwrap();
            assert_eq!(CallAnswer::parse(&result), Ok(CallAnswer::Here(&[3; 5000])), "{place:?}");
        }
    }
    let result = client.call(SERVICE_CALL, &head(Some(right)).encode(&[])).unwrap();
    assert_eq!(CallAnswer::parse(&result), Ok(CallAnswer::InRing(5000)), "zeroes, as they lie in the ring");
    drop(result);
    // A result that is longer than the room there comes in its message.
    let little = RingPlace { room: 4500, ..right };
    let result = client.call(SERVICE_CALL, &head(Some(little)).encode(&[])).unwrap();
    assert_eq!(CallAnswer::parse(&result), Ok(CallAnswer::Here(&[0; 5000])));
    drop(result);
    assert_eq!(&*client.call(SERVICE_CALL, &head(None).encode(&[])).unwrap(), b"");
    server.join().unwrap();
    let mut found = [0; 1000];
    region.read(0, &mut found).unwrap();
    assert!(found.iter().all(|byte| *byte == 7));
}

/// Calls end at their deadlines, wherever they are, and a process is killed with calls under way. Each payload is whole,
/// and the memory of all ranges comes back.
#[test]
fn late_calls_and_killed_callers_in_virtual_time() {
    for seed in 0..6 {
        let machines = vec![MachineSettings::default(); 2];
        Sim::run_with(Settings { machines, preemption: 20, ..Settings::default() }, seed, move |sim| {
            late_calls_and_a_killed_caller(&sim, seed);
        })
        .unwrap();
    }
}

fn late_calls_and_a_killed_caller(sim: &Sim, seed: u64) {
    let fabrics = [0, 1].map(|machine| sim.process_on(machine));
    let nodes = [0, 1].map(|at| node(&fabrics[at], NODES[at], |config| config.memory = 32 << 20));
    let is_over = Arc::new(AtomicBool::new(false));
    let serving = sim.process_on(1);
    let calls = app(&serving, &nodes[1]).register("long", 1).unwrap();
    let server = {
        let (is_over, fabric) = (Arc::clone(&is_over), serving.clone());
        spawn_on(&serving, move || {
            let mut buffer = vec![0; MEBI];
            while !is_over.load(Ordering::Relaxed) {
                let received = match calls.receive_within(&mut buffer, Duration::from_millis(1)) {
                    Ok(received) => received,
                    Err(ReceiveError::NoCall) => continue,
                    Err(error) => panic!("{error}"),
                };
                let seed = assert_whole(&buffer[..received.len()]);
                if seed.is_multiple_of(3) {
                    fabric.host().sleep(fabric.host().now() + 900_000);
                }
                received.reply(&payload(seed + 1, (seed >> 32) as usize)).unwrap();
            }
        })
    };
    let calling = sim.process_on(0);
    let own = app(&calling, &nodes[0]);
    // The ring is there before calls have short times.
    for number in [1, 4] {
        own.call("two", "long", 1, &request(number, 9000, 50_000), &mut [0; 60_000]).unwrap();
    }
    let victim = sim.process_on(0);
    let killed = app(&victim, &nodes[0]);
    let _killed = spawn_on(&victim, move || {
        let mut room = vec![0; 100_000];
        for number in 0.. {
            if killed.call("two", "long", 1, &request(number, 80_000, 90_000), &mut room).is_err() {
                return;
            }
        }
    });
    let late = Arc::new(AtomicU64::new(0));
    let callers: Vec<Task> = (0..3u32)
        .map(|thread| {
            let (own, late) = (own.clone(), Arc::clone(&late));
            spawn_on(&calling, move || {
                let mut room = vec![0; 60_000];
                for round in 0..25 {
                    let number = thread * 100 + round;
                    let time = Duration::from_micros(100 + (u64::from(round) * 137 + seed * 11) % 1500);
                    let long = request(number, 20_000 + 3000 * thread as usize, 50_000);
                    match own.call_within(time, ("two", b"long", 1), &long, &mut room) {
                        Ok(got) => assert_eq!(assert_whole(&room[..got]) as u32, number + 1),
                        Err(error) => {
                            late.fetch_add(u64::from(error.may_have_executed()), Ordering::Relaxed);
                        }
                    }
                }
            })
        })
        .collect();
    let host = sim.host();
    host.sleep(host.now() + 500_000 + seed * 137_000);
    victim.kill();
    callers.into_iter().for_each(Task::join);
    // Late calls give ranges up, so some requests travelled in messages. A call with all of its time finds its way.
    let got = own.call("two", "long", 1, &request(1, 9000, 40_000), &mut [0; 60_000]).unwrap();
    assert_eq!(got, 40_000);
    is_over.store(true, Ordering::Relaxed);
    server.join();
    let used = || nodes[0].tier.ring("two").unwrap();
    assert!(late.load(Ordering::Relaxed) > 0 && used().payloads > 4, "{late:?} late calls, {:?}", used());
    let until = host.now() + 2_000_000_000;
    while nodes[1].tier.lent_memory() != used().length {
        assert!(host.now() < until, "{} bytes of {:?}", nodes[1].tier.lent_memory(), used());
        host.sleep(host.now() + 10_000_000);
    }
}
