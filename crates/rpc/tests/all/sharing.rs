//! Threads that share one connection, under each policy of sharing: on shared memory and in virtual time.

#![allow(missing_docs, clippy::disallowed_methods, clippy::disallowed_types)]

use crate::common::*;
use dunlin_fabric::{Address, Fabric, Host, Nanos, Scheme};
use dunlin_fabric_sim::{Prices, Settings, Sim};
use dunlin_rpc::messages::{MessageClient, MessageServer};
use dunlin_rpc::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Far more than all calls of a run take in virtual time, and less than the time of one.
const PROMPTLY: Duration = Duration::from_secs(1);

fn echo() -> Box<dyn Service> {
    Box::new(|request: &Request<'_>, reply: &mut Reply<'_>| {
        reply.write(request.payload)?;
        Ok(())
    })
}

fn serve<F: Fabric>(fabric: &F, address: &Address, workers: u16) -> Server<F> {
    let config = ServerConfig { workers, ..ServerConfig::default() };
    ServerBuilder::new(fabric)
        .config(config)
        .function(ECHO, FunctionMode::Worker)
        .serve(address, |_| echo())
        .unwrap()
}

fn shared(plan: Plan, sharing: Sharing) -> ClientConfig {
    // One queue pair, so that threads meet; `strands.rs` has several.
    ClientConfig { max_queue_pairs: 1, ..with_plan(Plan { sharing, ..plan }) }
}

/// Payloads of mixed lengths, some of them large.
fn payload(thread: u64, call: u64) -> Vec<u8> {
    let length = match call % 23 {
        7 => 9_000,
        11 => 700,
        other => other as usize * 3,
    };
    vec![(thread * 31 + call) as u8; length]
}

/// One thread's calls: `window` at a time, each of whose results has to be its own.
fn use_seat<F: Fabric>(client: &mut Client<F>, thread: u64, calls: u64, window: usize) {
    let mut open = std::collections::VecDeque::new();
    for call in 0..calls {
        if open.len() == window {
            let (id, sent): (CallId, Vec<u8>) = open.pop_front().unwrap();
            assert_eq!(*client.wait(id).unwrap(), *sent);
        }
        let sent = payload(thread, call);
        let worker = call as usize % client.workers();
        open.push_back((client.submit_waiting_on(worker, ECHO, &sent).unwrap(), sent));
    }
    for (id, sent) in open {
        assert_eq!(*client.wait(id).unwrap(), *sent);
    }
    assert_eq!(client.in_flight(), 0);
}

fn threads_on_shared_memory(plan: Plan, sharing: Sharing, workers: u16) {
    let (fabric, address) = (fabric(), unique("sharing"));
    let server = serve(&fabric, &address, workers);
    let first = Client::connect(&fabric, &address, shared(plan, sharing)).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let mut client = first.another().unwrap();
            scope.spawn(move || use_seat(&mut client, thread, 400, 1 + thread as usize * 3));
        }
    });
    drop(first);
    server.shutdown(Duration::from_secs(1));
}

#[test]
fn threads_get_their_own_results() {
    bounded(|| {
        for sharing in Sharing::shared() {
            for (name, plan) in plans(&fabric(), &MODES) {
                println!("{name} {sharing:?}");
                threads_on_shared_memory(plan, sharing, 1);
            }
            threads_on_shared_memory(any_plan(), sharing, 2);
        }
    });
}

/// In virtual time, with every plan, and with threads that lose their core while they lead. Nobody finds its result only
/// at its deadline.
#[test]
fn threads_get_their_own_results_in_virtual_time() {
    let capabilities = Settings::default().capabilities;
    for protocol in PROTOCOLS {
        for mode in MODES {
            let plan = protocol.plan(mode);
            if plan.check(&capabilities).is_err() {
                continue;
            }
            for sharing in Sharing::shared() {
                for seed in 0..3 {
                    println!("{} {mode} {sharing:?} {seed}", protocol.name);
                    in_virtual_time(plan, sharing, seed);
                }
            }
        }
    }
}

fn in_virtual_time(plan: Plan, sharing: Sharing, seed: u64) {
    threads_in_virtual_time(plan, sharing, seed, 5);
}

fn threads_in_virtual_time(plan: Plan, sharing: Sharing, seed: u64, threads: u64) {
    let answered = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&answered);
    let settings = Settings { preemption: 20, ..Settings::default() };
    Sim::run_with(settings, seed, move |fabric| {
        let address = Address::new(Scheme::Sim, "shared").unwrap();
        let server = serve(&fabric, &address, 2);
        let first = Client::connect(&fabric, &address, shared(plan, sharing)).unwrap();
        let begin = fabric.host().now();
        let tasks: Vec<_> = (0..threads)
            .map(|thread| {
                let (mut client, count) = (first.another().unwrap(), Arc::clone(&count));
                let body = move || {
                    use_seat(&mut client, thread, 40, 1 + thread as usize % 3);
                    count.fetch_add(1, Ordering::Relaxed);
                };
                fabric.host().spawn(&format!("thread-{thread}"), Box::new(body)).unwrap()
            })
            .collect();
        tasks.into_iter().for_each(dunlin_fabric::Task::join);
        let took = Duration::from_nanos(fabric.host().now() - begin);
        assert!(took < PROMPTLY, "{plan:?} {seed}: {took:?}");
        drop(first);
        server.shutdown(Duration::from_secs(1));
    })
    .unwrap();
    assert_eq!(answered.load(Ordering::Relaxed), threads);
}

/// A thread that is alone on a lane whose results are READ posts the next READ before it waits: after a READ that found
/// nothing, no arrival would end the wait.
#[test]
fn a_thread_alone_fetches_on() {
    for name in ["Pilaf", "FaRM"] {
        let plan = Protocol::by_name(name).unwrap().plan(CompletionMode::Busy);
        for sharing in Sharing::shared() {
            (0..8).for_each(|seed| threads_in_virtual_time(plan, sharing, seed, 1));
        }
    }
}

/// Each call ends at its own deadline, whatever the other threads do.
#[test]
fn a_deadline_ends_its_own_call_only() {
    for sharing in Sharing::shared() {
        for seed in 0..5 {
            Sim::run(seed, move |fabric| {
                let address = Address::new(Scheme::Sim, "slow").unwrap();
                let host = fabric.host().clone();
                let server = ServerBuilder::new(&fabric)
                    .function(ECHO, FunctionMode::Worker)
                    .serve(&address, move |_| {
                        let host = host.clone();
                        Box::new(move |request: &Request<'_>, reply: &mut Reply<'_>| {
                            host.sleep(host.now() + 1_000_000);
                            reply.write(request.payload)?;
                            Ok(())
                        })
                    })
                    .unwrap();
                let mut patient = Client::connect(&fabric, &address, shared(any_plan(), sharing)).unwrap();
                let mut hasty = patient.another().unwrap();
                let host = fabric.host().clone();
                let own = host.clone();
                let task = host.spawn(
                    "hasty",
                    Box::new(move || {
                        for _ in 0..5 {
                            let began = own.now();
                            let failed =
                                hasty.within(Duration::from_micros(100)).call(ECHO, b"now").map(drop);
                            let cause = failed.unwrap_err().cause();
                            assert_eq!(cause, Some(Cause::DeadlineExceeded));
                            assert!(own.now() - began < 1_000_000);
                        }
                    }),
                );
                for _ in 0..5 {
                    assert_eq!(*patient.call(ECHO, b"later").unwrap(), *b"later");
                }
                task.unwrap().join();
                drop(patient);
                server.shutdown(Duration::from_secs(1));
            })
            .unwrap();
        }
    }
}

/// A seat that is dropped with calls in flight harms nobody, and its place is given out again.
#[test]
fn seats_are_dropped_with_calls_in_flight() {
    bounded(|| {
        for sharing in Sharing::shared() {
            let (fabric, address) = (fabric(), unique("dropped"));
            let server = serve(&fabric, &address, 1);
            let mut first = Client::connect(&fabric, &address, shared(any_plan(), sharing)).unwrap();
            for round in 0..2_000u64 {
                let mut other = first.another().unwrap();
                for call in 0..round % 5 {
                    other.submit_on(0, ECHO, &payload(1, call)).unwrap();
                }
                drop(other);
                let sent = payload(2, round);
                assert_eq!(*first.call(ECHO, &sent).unwrap(), *sent);
            }
            drop(first);
            server.shutdown(Duration::from_secs(1));
        }
    });
}

/// The number of threads of a connection is bounded, and more are refused with a reason.
#[test]
fn more_seats_than_there_are_are_refused() {
    for sharing in Sharing::shared() {
        let (fabric, address) = (fabric(), unique("seats"));
        let server = serve(&fabric, &address, 1);
        let first = Client::connect(&fabric, &address, shared(any_plan(), sharing)).unwrap();
        let others: Vec<_> = (1..256).map(|_| first.another().unwrap()).collect();
        let refused = first.another().map(drop).unwrap_err();
        assert!(refused.to_string().contains("256"), "{refused}");
        drop(others);
        assert!(first.another().is_ok());
        drop(first);
        server.shutdown(Duration::from_secs(1));
    }
}

/// When the server ends, each thread's calls end with an error or wait, and when it comes back the threads go
/// on.
#[test]
fn threads_outlive_their_server() {
    bounded(|| {
        for sharing in Sharing::shared() {
            let (fabric, address) = (fabric(), unique("ended"));
            let server = serve(&fabric, &address, 1);
            let config = ClientConfig {
                wait_for_ready: Duration::from_secs(20),
                timeout: Duration::from_secs(30),
                ..shared(any_plan(), sharing)
            };
            let first = Client::connect(&fabric, &address, config).unwrap();
            let is_back = AtomicU64::new(0);
            std::thread::scope(|scope| {
                let threads: Vec<_> = (0..3)
                    .map(|thread| {
                        let (mut client, is_back) = (first.another().unwrap(), &is_back);
                        scope.spawn(move || {
                            let (mut call, mut since) = (0, 0);
                            while since < 500 {
                                call += 1;
                                let sent = payload(thread, call);
                                match client.call(ECHO, &sent) {
                                    Ok(result) => {
                                        assert_eq!(*result, *sent);
                                        since += is_back.load(Ordering::Relaxed);
                                    }
                                    Err(error) => assert!(error.cause().is_some(), "{error}"),
                                }
                            }
                        })
                    })
                    .collect();
                std::thread::sleep(Duration::from_millis(20));
                server.shutdown(Duration::ZERO);
                let server = serve(&fabric, &address, 1);
                is_back.store(1, Ordering::Relaxed);
                threads.into_iter().for_each(|thread| thread.join().unwrap());
                server.shutdown(Duration::from_secs(1));
            });
        }
    });
}

/// A worker that the server does not have is refused, also one whose number has more than 16 bits.
#[test]
fn there_is_no_such_worker() {
    for sharing in Sharing::shared() {
        let (fabric, address) = (fabric(), unique("no-worker"));
        let server = serve(&fabric, &address, 1);
        let mut client = Client::connect(&fabric, &address, shared(any_plan(), sharing)).unwrap();
        for worker in [1, 1 << 16, usize::MAX] {
            let refused = client.call_on(worker, ECHO, b"nobody").map(drop);
            assert_eq!(refused, Err(CallError::NotExecuted(Cause::NoSuchWorker)), "{sharing:?} {worker}");
        }
        assert_eq!(*client.call(ECHO, b"somebody").unwrap(), *b"somebody");
        drop(client);
        server.shutdown(Duration::from_secs(1));
    }
}

/// A call that was withdrawn before any thread took it is not sent, and one that ended late is not mixed up
/// with the next call of its ticket.
#[test]
fn late_answers_are_not_mixed_up() {
    for sharing in Sharing::shared() {
        for seed in 0..10 {
            Sim::run(seed, move |fabric| {
                let address = Address::new(Scheme::Sim, "late").unwrap();
                let server = serve(&fabric, &address, 1);
                let mut client = Client::connect(&fabric, &address, shared(any_plan(), sharing)).unwrap();
                for call in 0..200u64 {
                    let sent = payload(3, call);
                    let time: Nanos = if call % 2 == 0 { 1 + call * 97 % 30_000 } else { 10_000_000_000 };
                    match client.within(Duration::from_nanos(time)).call(ECHO, &sent) {
                        Ok(result) => assert_eq!(*result, *sent),
                        Err(error) => {
                            assert_eq!(error.cause(), Some(Cause::DeadlineExceeded));
                            assert_eq!(call % 2, 0);
                        }
                    }
                }
                drop(client);
                server.shutdown(Duration::from_secs(1));
            })
            .unwrap();
        }
    }
}

/// A thread that waits for room goes on when another thread has taken its result (seed 356 of the swarm).
#[test]
fn a_taken_result_makes_room_for_other_threads() {
    for sharing in Sharing::shared() {
        Sim::run(1, move |fabric| {
            let address = Address::new(Scheme::Sim, "room").unwrap();
            let server = serve(&fabric, &address, 1);
            let plan = any_plan().completion(CompletionMode::Event, CompletionMode::Event);
            let config = ClientConfig { window: 1, ..shared(plan, sharing) };
            let mut first = Client::connect(&fabric, &address, config).unwrap();
            let mut second = first.another().unwrap();
            let host = fabric.host().clone();
            let id = first.submit_on(0, ECHO, b"first").unwrap();
            let own = host.clone();
            let body = move || {
                let since = own.now();
                let answer = second.within(Duration::from_secs(10)).call(ECHO, b"second").map(drop);
                assert_eq!(answer, Ok(()), "{sharing:?}");
                assert!(own.now() - since < 20_000_000, "{sharing:?}: {} ns", own.now() - since);
            };
            let waits = host.spawn("second", Box::new(body)).unwrap();
            host.sleep(host.now() + 10_000_000);
            assert_eq!(first.wait(id).as_deref(), Ok(b"first".as_slice()));
            // No more progress by this thread.
            waits.join();
            drop(first);
            server.shutdown(Duration::from_secs(1));
        })
        .unwrap();
    }
}

/// A thread that waits for room goes on with the late answer of its call that was given up (seed 903 of the swarm).
#[test]
fn a_late_answer_makes_room() {
    for (sharing, seed) in Sharing::shared().flat_map(|sharing| (0..20).map(move |seed| (sharing, seed))) {
        Sim::run(seed, move |fabric| {
            let address = Address::new(Scheme::Sim, "late").unwrap();
            let server = serve(&fabric, &address, 1);
            let plan = any_plan().completion(CompletionMode::Event, CompletionMode::Event);
            let config = ClientConfig { window: 1, ..shared(plan, sharing) };
            let mut client = Client::connect(&fabric, &address, config).unwrap();
            let host = fabric.host().clone();
            for _ in 0..20 {
                let id = client.submit_on(0, ECHO, b"given up").unwrap();
                client.forget(id);
                let since = host.now();
                let answer = client.within(Duration::from_secs(10)).call(ECHO, b"next").map(drop);
                assert_eq!(answer, Ok(()), "{sharing:?}");
                assert!(host.now() - since < 1_000_000, "{sharing:?} {seed}: {} ns", host.now() - since);
            }
            drop(client);
            server.shutdown(Duration::from_secs(1));
        })
        .unwrap();
    }
}

/// A thread whose calls are not answered takes its own places only: the others never wait for one.
#[test]
fn calls_without_answers_leave_room_for_other_threads() {
    const NEVER: u16 = 9;
    for seed in 0..5 {
        Sim::run(seed, move |fabric| {
            let address = Address::new(Scheme::Sim, "places").unwrap();
            let server = ServerBuilder::new(&fabric)
                .function(ECHO, FunctionMode::Worker)
                .function(NEVER, FunctionMode::Pull)
                .serve(&address, |_| echo())
                .unwrap();
            let plan = any_plan().completion(CompletionMode::Event, CompletionMode::Event);
            let config =
                ClientConfig { window: 6, calls_per_thread: Some(2), ..shared(plan, Sharing::Combined) };
            let mut first = Client::connect(&fabric, &address, config.clone()).unwrap();
            let mut others = [first.another().unwrap(), first.another().unwrap()];
            let short = Duration::from_micros(50);
            for client in &mut others {
                for _ in 0..2 {
                    let over = client.within(short).call(NEVER, b"").map(drop).unwrap_err();
                    assert_eq!(over, CallError::MaybeExecuted(Cause::DeadlineExceeded));
                }
                let full = client.within(PROMPTLY).call(ECHO, b"").map(drop);
                assert_eq!(full, Err(CallError::NotExecuted(Cause::WindowFull)));
            }
            for _ in 0..20 {
                let since = fabric.host().now();
                assert_eq!(&first.within(PROMPTLY).call(ECHO, b"this").unwrap()[..], b"this");
                assert!(fabric.host().now() - since < 1_000_000);
            }
            // The answers come: nobody wants these calls any more.
            let puller = server.puller();
            assert!(puller.receive(fabric.host().now() + 1_000_000).is_none());
            for client in &mut others {
                assert_eq!(&client.within(PROMPTLY).call(ECHO, b"that").unwrap()[..], b"that");
            }
            drop((first, others));
            drop(puller);
            server.shutdown(Duration::from_secs(1));
            let config = ClientConfig { calls_per_thread: Some(7), ..config };
            assert!(matches!(config.check(), Err(ConnectError::Setting { what: "calls_per_thread", .. })));
        })
        .unwrap();
    }
}

/// Returns the number of times that a client reads the clock in calls whose answers are there when it looks. In virtual
/// time the price of reading the clock shows it: the rest of a call costs less than one such read.
fn clock_reads(sharing: Sharing, calls: u64) -> u64 {
    const PRICE: Nanos = 10_000;
    let total = Arc::new(AtomicU64::new(0));
    let spent = Arc::clone(&total);
    let prices = Prices { clock_read: PRICE * 1000, ..Prices::default() };
    let settings = Settings { prices, preemption: 0, ..Settings::default() };
    Sim::run_with(settings, 1, move |fabric| {
        let (address, host) = (Address::new(Scheme::Sim, "clock").unwrap(), fabric.host().clone());
        let server = serve(&fabric, &address, 1);
        let plan = Protocol::by_name("Server-reply").unwrap().plan(CompletionMode::Busy);
        let mut client = Client::connect(&fabric, &address, shared(plan, sharing)).unwrap();
        let reads_since = |begin| (host.glance() - begin) / PRICE;
        for _ in 0..calls {
            let begin = host.glance();
            let id = client.submit_on(0, ECHO, b"asked").unwrap();
            spent.fetch_add(reads_since(begin), Ordering::Relaxed);
            host.sleep(host.glance() + 100 * PRICE);
            let begin = host.glance();
            assert_eq!(*client.wait(id).unwrap(), *b"asked");
            spent.fetch_add(reads_since(begin), Ordering::Relaxed);
        }
        drop(client);
        server.shutdown(Duration::from_secs(1));
    })
    .unwrap();
    total.load(Ordering::Relaxed)
}

#[test]
fn a_combined_call_that_waits_for_nothing_reads_the_clock_no_more_often() {
    const CALLS: u64 = 3000;
    let [dedicated, combined] = [Sharing::Dedicated, Sharing::Combined].map(|s| clock_reads(s, CALLS));
    println!("{dedicated} and {combined} times in {CALLS} calls");
    // Once in 1024 calls a thread looks whether the threads have to be scheduled, and a further strand connected.
    assert!(combined <= dedicated + 2 * (CALLS / 1024), "{combined} and {dedicated}");
}

/// The threads of a queue pair lead by turns: none of them makes twice the calls of another.
#[test]
fn busy_threads_lead_by_turns() {
    const THREADS: usize = 6;
    for seed in 0..4 {
        let calls = Arc::new([const { AtomicU64::new(0) }; THREADS]);
        let made = Arc::clone(&calls);
        Sim::run_with(Settings { preemption: 20, ..Settings::default() }, seed, move |fabric| {
            let (address, host) = (Address::new(Scheme::Sim, "turns").unwrap(), fabric.host().clone());
            let server = serve(&fabric, &address, 1);
            let plan = Protocol::by_name("Server-reply").unwrap().plan(CompletionMode::Busy);
            let first = Client::connect(&fabric, &address, shared(plan, Sharing::Combined)).unwrap();
            let until = host.now() + 20_000_000;
            let tasks: Vec<_> = (0..THREADS)
                .map(|thread| {
                    let (mut client, own, made) = (first.another().unwrap(), host.clone(), Arc::clone(&made));
                    let body = move || {
                        while own.now() < until {
                            assert_eq!(*client.call(ECHO, b"turn").unwrap(), *b"turn");
                            made[thread].fetch_add(1, Ordering::Relaxed);
                        }
                    };
                    host.spawn(&format!("thread-{thread}"), Box::new(body)).unwrap()
                })
                .collect();
            tasks.into_iter().for_each(dunlin_fabric::Task::join);
            drop(first);
            server.shutdown(Duration::from_secs(1));
        })
        .unwrap();
        let calls = calls.each_ref().map(|calls| calls.load(Ordering::Relaxed));
        println!("{seed}: {calls:?}");
        let (least, most) = (calls.iter().min().unwrap(), calls.iter().max().unwrap());
        assert!(*least > 100 && *most <= 2 * least, "{calls:?}");
    }
}

/// Threads of one connection exchange messages: each gets the answers to its own, in the order in which it sent them.
#[test]
fn threads_exchange_messages() {
    const MESSAGES: u64 = 60;
    for (sharing, seed) in Sharing::shared().flat_map(|sharing| (0..3).map(move |seed| (sharing, seed))) {
        for name in ["Server-reply", "Direct-WriteIMM", "RF-RPC"] {
            let plan = Protocol::by_name(name).unwrap().plan(CompletionMode::Busy);
            let settings = Settings { preemption: 20, ..Settings::default() };
            Sim::run_with(settings, seed, move |fabric| {
                let (address, host) = (Address::new(Scheme::Sim, "messages").unwrap(), fabric.host().clone());
                let config = ServerConfig::default();
                let (server, mut threads) = MessageServer::listen(&fabric, &address, config).unwrap();
                let mut thread = threads.remove(0);
                let serve = move || {
                    while !thread.is_ended() {
                        let Some(client) = thread.next_client(Duration::MAX) else { continue };
                        let mut buffer = thread.malloc_buf(client, 16_000).unwrap();
                        while let Some(size) = thread.server_recv(client, &mut buffer).unwrap() {
                            buffer[0] ^= 0xff;
                            thread.server_send(client, &mut buffer, size).unwrap();
                        }
                    }
                };
                let serving = host.spawn("server", Box::new(serve)).unwrap();
                let first = MessageClient::connect(&fabric, &address, shared(plan, sharing)).unwrap();
                let tasks: Vec<_> = (0..4u64)
                    .map(|thread| {
                        let mut client = first.another().unwrap();
                        let body = move || {
                            let mut buffer = client.malloc_buf(0, 16_000).unwrap();
                            let mut open = std::collections::VecDeque::new();
                            for message in 0..MESSAGES + 3 {
                                if message < MESSAGES {
                                    let sent = [vec![message as u8], payload(thread, message)].concat();
                                    buffer[..sent.len()].copy_from_slice(&sent);
                                    client.client_send(0, &mut buffer, sent.len()).unwrap();
                                    open.push_back(sent);
                                }
                                if message >= 3 {
                                    let mut expected = open.pop_front().unwrap();
                                    expected[0] ^= 0xff;
                                    let size = client.client_recv(0, &mut buffer).unwrap();
                                    assert_eq!(buffer[..size], *expected);
                                }
                            }
                            assert_eq!(client.outstanding(0), 0);
                        };
                        host.spawn(&format!("thread-{thread}"), Box::new(body)).unwrap()
                    })
                    .collect();
                tasks.into_iter().for_each(dunlin_fabric::Task::join);
                drop(first);
                server.shutdown(Duration::from_secs(1));
                serving.join();
            })
            .unwrap();
        }
    }
}
