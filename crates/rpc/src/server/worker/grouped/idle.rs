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
/// A pause of a client between two calls.
const PAUSE: Nanos = SLICE / 16;

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

/// Calls each client in turn; every call waits until the slice of the other one ends.
fn in_turn(clients: &mut [Client<Sim>], rounds: u64) {
    for round in 0..rounds {
        for client in &mut *clients {
            assert_eq!(*client.call(ECHO, &round.to_le_bytes()).unwrap(), round.to_le_bytes());
        }
    }
}

/// Clients that call in turn wait for an idle time that becomes shorter, and not for the slice, except in one of sixteen.
#[test]
fn a_group_without_calls_gives_its_time_away() {
    const ROUNDS: u64 = 40;
    for (workers, mode) in
        [(1, CompletionMode::Busy), (2, CompletionMode::Busy), (2, CompletionMode::Adaptive)]
    {
        let mut settings = Settings::default();
        settings.capabilities.write_wakes = true;
        Sim::run_with(settings, 11, move |fabric| {
            let server = serve(&fabric, workers);
            let mut clients = [connect(&fabric, mode), connect(&fabric, mode)];
            let began = fabric.host().now();
            in_turn(&mut clients, ROUNDS);
            let slices = (fabric.host().now() - began) / SLICE;
            // Three quarters of a slice at first, and in one of sixteen; the others add up to three slices.
            assert!(slices <= 2 * ROUNDS / 8, "{workers}, {mode}: {slices}");
            drop(clients);
            server.shutdown(Duration::from_secs(1));
        })
        .unwrap();
    }
}

/// After slices that waited for nothing, pauses are seen again, and slices wait for them.
#[test]
fn slices_wait_again_when_pauses_become_longer() {
    Sim::run_with(Settings::default(), 13, |fabric| {
        let server = serve(&fabric, 1);
        let mut clients = [connect(&fabric, CompletionMode::Busy), connect(&fabric, CompletionMode::Busy)];
        in_turn(&mut clients, 30);
        let [mut first, mut other] = clients;
        let host = fabric.host().clone();
        let mut most = 0;
        for _ in 0..40 {
            let waiting = other.submit_on(0, ECHO, b"other").unwrap();
            let mut calls = 0;
            while !other.is_done(waiting) {
                first.call_on(0, ECHO, b"first").unwrap();
                host.sleep(host.now() + PAUSE);
                other.progress();
                calls += 1;
            }
            other.wait(waiting).unwrap();
            most = most.max(calls);
        }
        assert!(most >= 14, "{most} calls in a slice");
        drop((first, other));
        server.shutdown(Duration::from_secs(1));
    })
    .unwrap();
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
    let calls = calls_before_another(1, 0, PAUSE);
    assert!((14..=18).contains(&calls), "{calls}");
}

/// A worker that executes a long request counts as one with requests, whatever other workers see.
#[test]
fn a_long_handler_ends_no_slice_of_its_group() {
    let calls = calls_before_another(2, SLICE / 4, 0);
    assert!((3..=6).contains(&calls), "{calls}");
}
