//! Long payloads of calls, which go through the rings of pairs of nodes (LITE section 5.1).

use crate::cluster::{NAMES, config, spawn, tag};
use dunlin_fabric::{Fabric, Host, Scheme, Signal};
use dunlin_fabric_shm::{ShmConfig, ShmFabric};
use dunlin_fabric_sim::{MachineSettings, Settings, Sim};
use dunlin_rpc::{CallError, Cause};
use dunlin_tier_node::{Calls, ReceiveError, RequestError, RingUse, Tier, TierConfig};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const MEBI: usize = 1 << 20;
/// The memory of a node: an eighth of it is for the rings of all nodes there.
const MEMORY: u64 = 32 << 20;

fn start<F: Fabric>(fabric: &F, scheme: Scheme, tag: &str, name: &str) -> Tier<F> {
    let config = TierConfig { paths: 2, memory: MEMORY, ..config(scheme, tag, &NAMES, name) };
    Tier::within(fabric, config).unwrap()
}

fn on_shared_memory(body: impl FnOnce(&[Tier<ShmFabric>; 3])) {
    let tag = tag();
    body(&NAMES.map(|name| start(&ShmFabric::new(ShmConfig::default()).unwrap(), Scheme::Shm, &tag, name)));
}

fn settings() -> Settings {
    Settings { machines: vec![MachineSettings::default(); 3], preemption: 20, ..Settings::default() }
}

fn in_virtual_time(seed: u64, settings: Settings, body: impl FnOnce(&[Tier<Sim>; 3]) + Send + 'static) {
    Sim::run_with(settings, seed, move |sim| {
        body(&[0, 1, 2].map(|at| start(&sim.process_on(at), Scheme::Sim, "r", NAMES[at])));
    })
    .unwrap();
}

/// Bytes that tell their seed and their length: one of another payload among them is noticed.
fn payload(seed: u64, length: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..length as u64).map(|at| (at * 31 + (at >> 8) + seed * 7) as u8).collect();
    bytes.iter_mut().zip(seed.to_le_bytes()).for_each(|(byte, of_seed)| *byte = of_seed);
    bytes
}

#[track_caller]
fn assert_whole(bytes: &[u8]) -> u64 {
    let seed = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    assert!(bytes == payload(seed, bytes.len()), "a payload of {} bytes is not that of {seed}", bytes.len());
    seed
}

/// Answers requests with payloads as long as their first bytes say, until one is empty.
fn answer<F: Fabric>(calls: &Calls<F>) {
    let mut buffer = vec![0; 5 * MEBI];
    loop {
        let request = calls.receive(&mut buffer).unwrap();
        if request.is_empty() {
            return request.reply(&[]);
        }
        let seed = assert_whole(&buffer[..request.len()]);
        request.reply(&payload(seed + 1, (seed >> 32) as usize));
    }
}

/// Calls with a request and a result of these lengths.
fn call<F: Fabric>(tier: &Tier<F>, number: u32, lengths: (usize, usize), answer: &mut [u8]) {
    let seed = (lengths.1 as u64) << 32 | u64::from(number);
    let got = tier.call("bob", "long", 1, &payload(seed, lengths.0), answer).unwrap();
    assert_eq!(got, lengths.1);
    assert_eq!(assert_whole(&answer[..got]), seed + 1);
}

fn payloads_of_all_lengths<F: Fabric>([alice, bob, _]: &[Tier<F>; 3]) {
    let calls = bob.register("long", 1).unwrap();
    let server = spawn(bob, move || answer(&calls));
    let mut buffer = vec![0; MEBI];
    let used = || alice.ring("bob").unwrap();
    for (number, length) in [8, 64, 4000, 4096].into_iter().enumerate() {
        call(alice, number as u32, (length, 8), &mut buffer);
    }
    assert_eq!(used(), RingUse::default(), "short payloads travel in messages");
    call(alice, 4, (4097, 8), &mut buffer);
    let one = RingUse { length: MEBI as u64, payloads: 1, bytes: 4097, in_messages: 0 };
    assert_eq!(used(), one, "one line more than a message has");
    // Room for a long result is taken after the first one.
    call(alice, 5, (8, 9000), &mut buffer);
    assert_eq!(used(), one);
    call(alice, 6, (8, 9000), &mut buffer);
    assert_eq!(used(), RingUse { payloads: 2, bytes: 4097 + 9000, ..one });
    for (request, result) in
        [(300_001, 4096), (4097, 4097), (MEBI, 8), (8, MEBI), (MEBI, MEBI), (77_777, 5000)]
    {
        call(alice, 7, (request, result), &mut buffer);
    }
    let all = one.bytes + 9000 + 300_001 + 2 * 4097 + 4 * MEBI as u64 + 77_777 + 5000;
    assert_eq!((used().payloads, used().bytes), (2 + 9, all));
    // The longest part is of 4 MiB, of which bob has an eighth of its memory. Whatever has no room travels in its message.
    let mut long = vec![0; 4 * MEBI];
    for length in [2 * MEBI, 4 * MEBI] {
        call(alice, 8, (length, length), &mut long);
    }
    assert!(used().length <= MEMORY / 8, "{:?}", used());
    // A node calls itself in the same way.
    call(bob, 9, (50_000, 8), &mut buffer);
    assert_eq!(bob.ring("bob").unwrap().payloads, u64::from(bob.ring("bob").unwrap().length > 0));
    // A result that is longer than the caller's buffer.
    let request = payload((20_000 << 32) | 1, 9000);
    let error = alice.call("bob", "long", 1, &request, &mut [0; 10_000]).unwrap_err();
    assert!(matches!(error, RequestError::AnswerTooLong { length: 20_000, room: 10_000 }), "{error}");
    // From and into registered buffers, at any place there.
    let (mut from, mut into) = (alice.buffer(100_000).unwrap(), alice.buffer(100_000).unwrap());
    for (request, result) in [(8, 8), (4096, 4097), (70_000, 64), (64, 70_000), (99_000, 99_000)] {
        let before = used();
        let seed = (result as u64) << 32 | 4;
        from[13..13 + request].copy_from_slice(&payload(seed, request));
        let (from, place) = ((&mut from, 13..13 + request), (&mut into, 5..));
        let got = alice.call_in_place(Duration::from_secs(5), ("bob", b"long", 1), from, place).unwrap();
        assert_eq!((got, assert_whole(&into[5..5 + got])), (result, seed + 1));
        let long = [request, result].into_iter().filter(|length| *length > 4096).count() as u64;
        assert_eq!(used().payloads - before.payloads, long, "{request} and {result} bytes");
    }
    // One-way calls, and several at once.
    alice.send("bob", "long", 1, &payload(3, 70_000)).unwrap();
    let before = used().payloads;
    let request = payload((6000 << 32) | 5, 30_000);
    for outcome in alice.multicast(&["bob", "bob", "bob"], "long", 1, &request).unwrap() {
        assert_eq!(assert_whole(&outcome.unwrap()), ((6000 << 32) | 5) + 1);
    }
    // The results are long, too.
    assert_eq!(used().payloads, before + 6);
    // As long as the last long results were, ranges for several at once would not fit.
    let short = payload((6000 << 32) | 7, 20);
    for _ in 0..60 {
        alice.call("bob", "long", 1, &short, &mut [0; 6000]).unwrap();
    }
    let before = used().payloads;
    for outcome in alice.multicast(&["bob", "bob"], "long", 1, &short).unwrap() {
        assert_eq!(assert_whole(&outcome.unwrap()), ((6000 << 32) | 7) + 1);
    }
    assert_eq!(used().payloads, before + 2);
    assert_eq!(alice.call("bob", "long", 1, &[], &mut []).unwrap(), 0);
    server.join();
}

#[test]
fn payloads_of_all_lengths_on_shared_memory() {
    on_shared_memory(payloads_of_all_lengths);
}

#[test]
fn payloads_of_all_lengths_in_virtual_time() {
    in_virtual_time(1, settings(), payloads_of_all_lengths);
    let mut unordered = settings();
    unordered.capabilities.in_order_write = false;
    in_virtual_time(2, unordered, payloads_of_all_lengths);
}

/// Callers of two nodes share the memory of their rings; each payload arrives whole, whatever range it had.
fn many_callers<F: Fabric>(tiers: &[Tier<F>; 3], threads: u32, rounds: u32) {
    let calls = Arc::new(tiers[1].register("long", 1).unwrap());
    let servers: Vec<_> = (0..3)
        .map(|_| {
            let calls = Arc::clone(&calls);
            spawn(&tiers[1], move || answer(&calls))
        })
        .collect();
    let mut callers = Vec::new();
    for tier in [&tiers[0], &tiers[2]] {
        for thread in 0..threads {
            let own = tier.clone();
            callers.push(spawn(tier, move || {
                let mut buffer = vec![0; 200_000];
                for round in 0..rounds {
                    let number = thread * 1000 + round;
                    let lengths = [(6000, 8), (150_000, 5000), (8, 190_000), (90_000, 90_000)];
                    call(&own, number, lengths[(number % 4) as usize], &mut buffer);
                }
            }));
        }
    }
    callers.into_iter().for_each(dunlin_fabric::Task::join);
    for tier in [&tiers[0], &tiers[2]] {
        assert!(tier.ring("bob").unwrap().payloads > 0, "{}", tier.name());
    }
    servers.iter().for_each(|_| assert_eq!(tiers[0].call("bob", "long", 1, &[], &mut []).unwrap(), 0));
    servers.into_iter().for_each(dunlin_fabric::Task::join);
}

#[test]
fn many_callers_on_shared_memory() {
    on_shared_memory(|tiers| many_callers(tiers, 4, 40));
}

#[test]
fn many_callers_in_virtual_time() {
    for seed in 0..4 {
        in_virtual_time(seed, settings(), |tiers| many_callers(tiers, 3, 8));
    }
}

/// Calls end at their deadlines while their server has them or has not: their ranges are given up, the memory comes back,
/// and no other call's payload is torn.
#[test]
fn ranges_of_late_calls_are_given_up() {
    for seed in 0..6 {
        in_virtual_time(seed, settings(), move |[alice, bob, _]| {
            let calls = Arc::new(bob.register("long", 1).unwrap());
            let host = bob.fabric().host();
            let (late, is_over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
            let server = {
                let (calls, is_over, bob) = (Arc::clone(&calls), Arc::clone(&is_over), bob.clone());
                spawn(&bob.clone(), move || {
                    let host = bob.fabric().host();
                    let mut buffer = vec![0; MEBI];
                    while !is_over.load(Ordering::Relaxed) {
                        let request = match calls.receive_within(&mut buffer, Duration::from_millis(1)) {
                            Ok(request) => request,
                            Err(ReceiveError::NoCall) => continue,
                            Err(error) => panic!("{error}"),
                        };
                        let seed = assert_whole(&buffer[..request.len()]);
                        if seed.is_multiple_of(3) {
                            host.sleep(host.now() + 900_000);
                        }
                        request.reply(&payload(seed + 1, (seed >> 32) as usize));
                    }
                })
            };
            // The ring is there before calls have short times.
            let number = (20 << 32) | 1;
            alice.call("bob", "long", 1, &payload(number, 9000), &mut [0; 20]).unwrap();
            let callers: Vec<_> = (0..3u64)
                .map(|thread| {
                    let (own, late) = (alice.clone(), Arc::clone(&late));
                    spawn(alice, move || {
                        let mut answer = vec![0; 60_000];
                        for round in 0..25 {
                            let number = (50_000 << 32) | (thread * 100 + round);
                            let time = Duration::from_micros(150 + (round * 137 + seed * 11) % 1500);
                            let request = payload(number, 20_000 + 3000 * thread as usize);
                            match own.call_within(time, ("bob", b"long", 1), &request, &mut answer) {
                                Ok(length) => assert_eq!(assert_whole(&answer[..length]), number + 1),
                                Err(error) => {
                                    late.fetch_add(u64::from(error.may_have_executed()), Ordering::Relaxed);
                                }
                            }
                        }
                    })
                })
                .collect();
            callers.into_iter().for_each(dunlin_fabric::Task::join);
            is_over.store(true, Ordering::Relaxed);
            server.join();
            let (late, used) = (late.load(Ordering::Relaxed), alice.ring("bob").unwrap());
            assert!(late > 0 && used.payloads > 10, "{late} late calls, {used:?}");
            // Parts that were given up are free again. All of bob's memory but that of the ring is there.
            let kept = alice.ring("bob").unwrap().length;
            let until = host.now() + 2_000_000_000;
            while bob.lent_memory() != kept {
                assert!(host.now() < until, "{} bytes of {kept}", bob.lent_memory());
                host.sleep(host.now() + 10_000_000);
            }
        });
    }
}

/// A function whose process does not receive fills the ring: calls of other functions go on.
#[test]
fn a_full_ring_holds_up_nobody() {
    in_virtual_time(3, settings(), |[alice, bob, _]| {
        let idle = bob.register("idle", 1).unwrap();
        let calls = bob.register("long", 1).unwrap();
        let server = spawn(bob, move || answer(&calls));
        let waiting: Vec<_> = (0..20)
            .map(|_| {
                let (own, host) = (alice.clone(), alice.fabric().host());
                // One after the other: a call that finds the ring growing does not wait for it.
                host.sleep(host.now() + 1_000_000);
                spawn(alice, move || {
                    let time = Duration::from_millis(50);
                    let error = own.call_within(time, ("bob", b"idle", 1), &payload(1, 300_000), &mut []);
                    let Err(RequestError::Call { source, .. }) = error else { panic!("{error:?}") };
                    assert_eq!(source, CallError::MaybeExecuted(Cause::DeadlineExceeded));
                })
            })
            .collect();
        let host = alice.fabric().host();
        host.sleep(host.now() + 5_000_000);
        let used = alice.ring("bob").unwrap();
        assert!(used.payloads >= 10 && used.length == MEMORY / 8, "{used:?}");
        for number in 0..10 {
            call(alice, number, (9000, 9000), &mut [0; 9000]);
        }
        waiting.into_iter().for_each(dunlin_fabric::Task::join);
        call(alice, 10, (9000, 9000), &mut [0; 9000]);
        drop(idle);
        alice.call("bob", "long", 1, &[], &mut []).unwrap();
        server.join();
    });
}

/// The calling node is killed at any time. Whatever the server receives is whole.
#[test]
fn a_killed_caller_tears_no_payload() {
    for seed in 0..10 {
        Sim::run_with(settings(), seed, move |sim| {
            let processes = [0, 1, 2].map(|machine| sim.process_on(machine));
            let bob = start(&processes[1], Scheme::Sim, "r", "bob");
            let carol = start(&processes[2], Scheme::Sim, "r", "carol");
            let calls = bob.register("long", 1).unwrap();
            let server = spawn(&bob, move || answer(&calls));
            let (victim, ready) = (processes[0].clone(), sim.host().signal());
            let calling = ready.clone();
            let _killed = processes[0].host().spawn(
                "alice",
                Box::new(move || {
                    let alice = start(&victim, Scheme::Sim, "r", "alice");
                    let mut buffer = vec![0; 50_000];
                    call(&alice, 0, (9000, 8), &mut buffer);
                    calling.raise();
                    for number in 1.. {
                        let seed = (40_000 << 32) | number;
                        if alice.call("bob", "long", 1, &payload(seed, 40_000), &mut buffer).is_err() {
                            return;
                        }
                    }
                }),
            );
            ready.wait(0, u64::MAX);
            let host = sim.host();
            host.sleep(host.now() + 1000 * (1 + seed * 29));
            processes[0].kill();
            for number in 0..20 {
                call(&carol, number, (30_000, 30_000), &mut vec![0; 40_000]);
            }
            assert_eq!(carol.call("bob", "long", 1, &[], &mut []).unwrap(), 0);
            server.join();
        })
        .unwrap();
    }
}

/// The serving node ends under calls and comes back: the ring is made again.
#[test]
fn a_ring_is_made_again_at_the_next_life_of_a_node() {
    let tag = tag();
    let fabric = || ShmFabric::new(ShmConfig::default()).unwrap();
    let alice = start(&fabric(), Scheme::Shm, &tag, "alice");
    let mut buffer = vec![0; 20_000];
    for life in 0..3 {
        let bob = start(&fabric(), Scheme::Shm, &tag, "bob");
        let calls = bob.register("long", 1).unwrap();
        let server = spawn(&bob, move || answer(&calls));
        let until = std::time::Instant::now() + Duration::from_secs(10);
        let request = payload(9000 << 32, 9000);
        // The client connects with back-off.
        while let Err(error) = alice.call("bob", "long", 1, &request, &mut buffer) {
            assert!(!error.may_have_executed() && std::time::Instant::now() < until, "{error}");
            std::thread::sleep(Duration::from_millis(1));
        }
        for number in 0..3 {
            call(&alice, number, (9000, 9000), &mut buffer);
        }
        let before = alice.ring("bob").unwrap().payloads;
        call(&alice, 3, (9000, 9000), &mut buffer);
        assert_eq!(alice.ring("bob").unwrap().payloads, before + 2, "in life {life}");
        alice.call("bob", "long", 1, &[], &mut []).unwrap();
        server.join();
    }
}

/// The memory of a ring is free when the calling node has ended.
#[test]
fn a_node_that_ends_gives_its_rings_back() {
    let tag = tag();
    let fabric = || ShmFabric::new(ShmConfig::default()).unwrap();
    let bob = start(&fabric(), Scheme::Shm, &tag, "bob");
    let calls = bob.register("long", 1).unwrap();
    let server = spawn(&bob, move || answer(&calls));
    let alice = start(&fabric(), Scheme::Shm, &tag, "alice");
    call(&alice, 1, (9000, 8), &mut [0; 8]);
    alice.call("bob", "long", 1, &[], &mut []).unwrap();
    server.join();
    assert_eq!(bob.lent_memory(), MEBI as u64);
    drop(alice);
    let until = std::time::Instant::now() + Duration::from_secs(10);
    while bob.lent_memory() > 0 {
        assert!(std::time::Instant::now() < until, "{} bytes", bob.lent_memory());
        std::thread::sleep(Duration::from_millis(1));
    }
}
