//! Functions of one service that run by their own plans over one connection do not wait for each other
//! (HatRPC section 1: optimization isolation). Waiting is counted in calls, or in virtual time, which is
//! exact.

#![allow(missing_docs, clippy::disallowed_methods, clippy::disallowed_types)]

use crate::common::{bounded, fabric, pattern, unique};
use dunlin_fabric::{Address, Fabric, Host, Nanos, Scheme};
use dunlin_fabric_shm::ShmFabric;
use dunlin_fabric_sim::{Settings, Sim};
use dunlin_rpc::*;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Echoes payloads of any size.
const BULK: u16 = 3;
/// Answers with the number of bulk calls executed so far.
const LATENCY: u16 = 5;

fn by_name(name: &str) -> Plan {
    Protocol::by_name(name).unwrap().plan(CompletionMode::Busy)
}

/// Settings with bulk calls by `bulk` and all others by Server-reply, or with all calls by `bulk`.
fn config(bulk: Plan, apart: bool) -> ClientConfig {
    let (plan, functions) = if apart {
        (by_name("Server-reply"), BTreeMap::from([(BULK, bulk)]))
    } else {
        (bulk, BTreeMap::new())
    };
    ClientConfig { functions, window: 256, ring_bytes: 64 * 1024, ..ClientConfig::with_plan(plan) }
}

fn service(executed: Arc<AtomicU64>) -> Box<dyn Service> {
    Box::new(move |request: &Request<'_>, reply: &mut Reply<'_>| {
        if request.function == BULK {
            executed.fetch_add(1, Ordering::Relaxed);
            return Ok(reply.write(request.payload)?);
        }
        Ok(reply.write(&executed.load(Ordering::Relaxed).to_le_bytes())?)
    })
}

/// A client of one worker that the test runs itself, so that the order of events is the same in each run.
struct ByHand {
    client: Client<ShmFabric>,
    worker: Worker<ShmFabric>,
    _server: Server<ShmFabric>,
}

fn by_hand(config: ClientConfig) -> ByHand {
    let fabric = fabric();
    let executed = Arc::new(AtomicU64::new(0));
    let (server, mut workers) = ServerBuilder::new(&fabric)
        .function(BULK, FunctionMode::Worker)
        .function(LATENCY, FunctionMode::Worker)
        .serve_with(&unique("isolation"), |_| service(Arc::clone(&executed)))
        .unwrap();
    let mut worker = workers.pop().unwrap();
    let client = std::thread::scope(|scope| {
        let connecting = scope.spawn(|| Client::connect(&fabric, server.address(), config).unwrap());
        while !connecting.is_finished() {
            worker.progress();
            std::thread::yield_now();
        }
        connecting.join().unwrap()
    });
    ByHand { client, worker, _server: server }
}

/// Returns how many bulk calls that were submitted before a latency call were also executed before it.
fn served_before(config: ClientConfig, bulk_calls: usize) -> u64 {
    let ByHand { mut client, mut worker, _server } = by_hand(config);
    let payload = pattern(200, 1);
    let bulk: Vec<_> = (0..bulk_calls).map(|_| client.submit_on(0, BULK, &payload).unwrap()).collect();
    let latency = client.submit_on(0, LATENCY, &[]).unwrap();
    let mut answer = None;
    for _ in 0..10_000 {
        worker.progress();
        client.progress();
        if client.is_done(latency) && answer.is_none() {
            answer = Some(u64::from_le_bytes(client.outcome(latency).unwrap().try_into().unwrap()));
        }
    }
    for id in bulk {
        assert_eq!(client.outcome(id).unwrap(), payload);
    }
    answer.expect("an answer")
}

#[test]
fn a_call_does_not_wait_behind_the_messages_of_another_plan() {
    bounded(|| {
        const BULK_CALLS: usize = 200;
        for name in ["Direct-WriteIMM", "Eager-SendRecv", "Chained-Write-Send", "Remote-fetch"] {
            let together = served_before(config(by_name(name), false), BULK_CALLS);
            assert_eq!(together, BULK_CALLS as u64, "{name}: in one lane it is the last");
            // The worker serves its lanes round-robin, 32 messages of a lane at a time.
            let apart = served_before(config(by_name(name), true), BULK_CALLS);
            assert!(apart <= 32, "{name}: {apart} of {BULK_CALLS} bulk calls were served before it");
        }
    });
}

/// Returns the 99th percentile of a latency call's time, in virtual time, while bulk calls of 64 KiB are
/// always in flight.
fn p99(config: ClientConfig, bulk_calls: usize) -> Nanos {
    const CALLS: usize = 300;
    let times = Arc::new(Mutex::new(Vec::new()));
    let told = Arc::clone(&times);
    let settings = Settings { spurious: 0, preemption: 0, ..Settings::default() };
    Sim::run_with(settings, 11, move |fabric| {
        let address = Address::new(Scheme::Sim, "isolation").unwrap();
        let executed = Arc::new(AtomicU64::new(0));
        let server = ServerBuilder::new(&fabric)
            .function(BULK, FunctionMode::Worker)
            .function(LATENCY, FunctionMode::Worker)
            .serve(&address, |_| service(Arc::clone(&executed)))
            .unwrap();
        let mut client = Client::connect(&fabric, &address, config.clone()).unwrap();
        let host = fabric.host();
        let mut window: Vec<(CallId, Vec<u8>)> = Vec::new();
        let mut completed = 0;
        for call in 0..CALLS as u64 {
            while window.len() < bulk_calls {
                let payload = pattern(65_536, call + window.len() as u64);
                match client.submit_on(0, BULK, &payload) {
                    Ok(id) => window.push((id, payload)),
                    Err(CallError::NotExecuted(Cause::WindowFull)) => drop(client.progress()),
                    Err(error) => panic!("{error}"),
                }
            }
            let began = host.now();
            let answer = client.call_on(0, LATENCY, &[]).unwrap();
            assert_eq!(answer.len(), 8);
            drop(answer);
            told.lock().unwrap().push(host.now() - began);
            window.retain(|(id, payload)| {
                let done = client.is_done(*id);
                if done {
                    assert!(client.outcome(*id).unwrap() == payload.as_slice());
                    client.forget(*id);
                    completed += 1;
                }
                !done
            });
        }
        for (id, payload) in window {
            assert!(*client.wait(id).unwrap() == *payload);
            completed += 1;
        }
        assert!(completed >= bulk_calls, "{completed}");
        drop(client);
        server.shutdown(Duration::from_secs(1));
    })
    .unwrap();
    let mut times = times.lock().unwrap().clone();
    times.sort_unstable();
    times[CALLS * 99 / 100]
}

#[test]
fn bulk_at_full_speed_leaves_the_latency_of_others_alone() {
    bounded(|| {
        for name in ["Eager-SendRecv", "Write-RNDV", "Direct-WriteIMM"] {
            let alone = p99(config(by_name(name), true), 0);
            let apart = p99(config(by_name(name), true), 8);
            let together = p99(config(by_name(name), false), 8);
            println!("{name}: p99 {alone} ns alone, {apart} apart, {together} together");
            // One thread on each side does the work of both, so a latency call meets some of the bulk work.
            // It waits for no bulk message.
            assert!(alone < apart && apart * 5 <= together * 4, "{name}: {alone} {apart} {together}");
        }
    });
}
