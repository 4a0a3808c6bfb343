//! Slices whose group makes no calls, in virtual time: they end early, and others do not.

use super::tests::{ECHO, plan};
use super::*;
use crate::CompletionMode;
use crate::client::config::ClientConfig;
use crate::server::{Server, ServerBuilder, ServerConfig};
use crate::service::{FunctionMode, Reply, Request};
use crate::share::Client;
use dunlin_fabric::{Address, Scheme};
use dunlin_fabric_sim::{Settings, Sim};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Takes as long as its payload says, in nanoseconds.
const SLOW: u16 = 2;
const SLICE: Nanos = 4_000_000;
/// The time without a request that ends a slice.
const IDLE: Nanos = SLICE / 8;

fn address() -> Address {
    Address::new(Scheme::Sim, "idle").unwrap()
}

/// Starts a server whose groups have one client.
fn serve(fabric: &Sim, workers: u16) -> Server<Sim> {
    let handling = fabric.host().clone();
    let group_slice = Some(Duration::from_nanos(SLICE));
    ServerBuilder::new(fabric)
        .config(ServerConfig { workers, group_size: Some(1), group_slice, ..ServerConfig::default() })
        .function(ECHO, FunctionMode::Worker)
        .function(SLOW, FunctionMode::Worker)
        .serve(&address(), |_| {
            let host = handling.clone();
            Box::new(move |request: &Request<'_>, reply: &mut Reply<'_>| {
                if request.function == SLOW {
                    host.sleep(host.now() + Nanos::from_le_bytes(request.payload.try_into().unwrap()));
                }
                Ok(reply.write(request.payload)?)
            })
        })
        .unwrap()
}

fn connect(fabric: &Sim, mode: CompletionMode) -> Client<Sim> {
    Client::connect(fabric, &address(), ClientConfig::with_plan(plan(mode))).unwrap()
}

/// Clients that call in turn wait for the idle time and not for the slice.
#[test]
fn a_group_without_calls_gives_its_time_away() {
    const ROUNDS: u64 = 20;
    for (workers, mode) in
        [(1, CompletionMode::Busy), (2, CompletionMode::Busy), (2, CompletionMode::Adaptive)]
    {
        let mut settings = Settings::default();
        settings.capabilities.write_wakes = true;
        Sim::run_with(settings, 11, move |fabric| {
            let server = serve(&fabric, workers);
            let mut clients = [connect(&fabric, mode), connect(&fabric, mode)];
            let began = fabric.host().now();
            for round in 0..ROUNDS {
                for client in &mut clients {
                    assert_eq!(*client.call(ECHO, &round.to_le_bytes()).unwrap(), round.to_le_bytes());
                }
            }
            let took = fabric.host().now() - began;
            // A worker that sleeps looks again after the idle time.
            let waits = if mode == CompletionMode::Busy { 1 } else { 2 };
            assert!(took < 2 * ROUNDS * (waits * IDLE + IDLE / 5) + SLICE, "{workers}, {mode}: {took} ns");
            drop(clients);
            server.shutdown(Duration::from_secs(1));
        })
        .unwrap();
    }
}

/// Returns how many calls of `busy` nanoseconds, each after a pause, one client makes on the first worker until the only
/// call of another client on the last worker is answered.
fn calls_before_another(workers: u16, busy: Nanos, pause: Nanos) -> u64 {
    let counted = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&counted);
    Sim::run_with(Settings::default(), 12, move |fabric| {
        let server = serve(&fabric, workers);
        let [mut first, mut other] = [0, 1].map(|_| connect(&fabric, CompletionMode::Busy));
        // The first slice of two groups may be any part of one.
        other.call_on(0, ECHO, b"other").unwrap();
        first.call_on(0, ECHO, b"first").unwrap();
        let ends = Arc::new(AtomicBool::new(false));
        let (is_over, host) = (Arc::clone(&ends), fabric.host().clone());
        let calls = move || {
            while !is_over.load(Ordering::Relaxed) {
                first.call_on(0, SLOW, &busy.to_le_bytes()).unwrap();
                host.sleep(host.now() + pause);
                count.fetch_add(1, Ordering::Relaxed);
            }
        };
        let task = fabric.host().spawn("first", Box::new(calls)).unwrap();
        other.call_on(usize::from(workers) - 1, ECHO, b"other").unwrap();
        ends.store(true, Ordering::Relaxed);
        task.join();
        server.shutdown(Duration::from_secs(1));
    })
    .unwrap();
    counted.load(Ordering::Relaxed)
}

/// Pauses shorter than the idle time end no slice.
#[test]
fn a_group_with_calls_keeps_its_slice() {
    let pause = IDLE * 3 / 5;
    let calls = calls_before_another(1, 0, pause);
    assert!((SLICE / pause - 2..=SLICE / pause + 2).contains(&calls), "{calls}");
}

/// A worker that executes a long request counts as one with requests, whatever other workers see.
#[test]
fn a_long_handler_ends_no_slice_of_its_group() {
    let busy = 2 * IDLE;
    let calls = calls_before_another(2, busy, 0);
    assert!((SLICE / busy - 1..=SLICE / busy + 2).contains(&calls), "{calls}");
}
