//! Clients that take as much as they can: others make progress, counted in calls.

use super::hostile::Raw;
use super::tests::{ECHO, LOAD, Load, plan, serve_counted};
use super::*;
use crate::CompletionMode;
use crate::client::config::ClientConfig;
use crate::server::{ServerBuilder, ServerConfig};
use crate::service::{FunctionMode, Reply, Request};
use crate::share::Client;
use dunlin_fabric::{Address, Scheme, Task};
use dunlin_fabric_sim::{Settings, Sim};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

fn address() -> Address {
    Address::new(Scheme::Sim, "starving").unwrap()
}

fn connect(fabric: &Sim) -> Client<Sim> {
    Client::connect(fabric, &address(), ClientConfig::with_plan(plan(CompletionMode::Busy))).unwrap()
}

/// A client that announces its requests again and again, and keeps its window full, has its slices and no more: two
/// clients with one call at a time have an answer in each cycle.
#[test]
fn announcing_without_end_starves_nobody() {
    Sim::run_with(Settings::default(), 8, |fabric| {
        let (server, workers, counted, executed) =
            serve_counted(&fabric, &address(), Load { group: 1, ..LOAD });
        let mut honest = [connect(&fabric), connect(&fabric)];
        let mut greedy = Raw::connect(&fabric, &address());
        let mut own = 0;
        for round in 0..200u64 {
            for client in &mut honest {
                let call = client.submit_on(0, ECHO, &round.to_le_bytes()).unwrap();
                while !client.is_done(call) {
                    greedy.announce();
                    client.progress();
                }
                assert_eq!(*client.wait(call).unwrap(), round.to_le_bytes());
                own += 1;
            }
        }
        let (all, switches) = (executed.load(Ordering::Relaxed), counted.lock().unwrap()[0].switches);
        assert!(all > 2 * own, "the greedy client is served as well: {all}");
        // Three groups are a cycle; each call waits for one cycle or so.
        assert!(switches < 8 * own, "{own} calls in {switches} slices");
        drop((honest, greedy));
        server.shutdown(Duration::from_secs(1));
        workers.into_iter().for_each(Task::join);
    })
    .unwrap();
}

/// Handlers that take longer than a slice, called without end by two of three clients: a slice ends late, but it ends, and
/// the third client has an answer after two budgets of messages for each of the others: one in the slice, and one in the
/// last look.
#[test]
fn handlers_that_fill_every_slice_starve_nobody() {
    const SLOW: u16 = 2;
    const WINDOW: usize = 4;
    /// Messages that a worker takes from a lane at a time (`server/dispatch.rs`).
    const BUDGET: u64 = 32;
    Sim::run_with(Settings::default(), 9, |fabric| {
        let slow = Arc::new(AtomicU64::new(0));
        let (count, handling) = (Arc::clone(&slow), fabric.host().clone());
        let group_slice = Some(Duration::from_micros(20));
        let server = ServerBuilder::new(&fabric)
            .config(ServerConfig { group_size: Some(1), group_slice, ..ServerConfig::default() })
            .function(ECHO, FunctionMode::Worker)
            .function(SLOW, FunctionMode::Worker)
            .serve(&address(), |_| {
                let (count, host) = (Arc::clone(&count), handling.clone());
                Box::new(move |request: &Request<'_>, reply: &mut Reply<'_>| {
                    if request.function == SLOW {
                        count.fetch_add(1, Ordering::Relaxed);
                        host.sleep(host.now() + 50_000);
                    }
                    Ok(reply.write(request.payload)?)
                })
            })
            .unwrap();
        let (host, over) = (fabric.host().clone(), Arc::new(AtomicU64::new(0)));
        let greedy: Vec<Task> = (0..2)
            .map(|number| {
                let (fabric, over) = (fabric.clone(), Arc::clone(&over));
                let body = move || {
                    let mut client = connect(&fabric);
                    let mut open = std::collections::VecDeque::new();
                    while over.load(Ordering::Relaxed) == 0 {
                        while open.len() < WINDOW {
                            open.push_back(client.submit_on(0, SLOW, b"long").unwrap());
                        }
                        let first = open.pop_front().unwrap();
                        client.wait(first).unwrap();
                    }
                    open.into_iter().for_each(|call| drop(client.wait(call).unwrap()));
                };
                host.spawn(&format!("greedy-{number}"), Box::new(body)).unwrap()
            })
            .collect();
        let mut client = connect(&fabric);
        host.sleep(host.now() + 2_000_000);
        let before = slow.load(Ordering::Relaxed);
        assert!(before > 4, "they are under way");
        const CALLS: u64 = 50;
        for call in 0..CALLS {
            assert_eq!(*client.call(ECHO, &call.to_le_bytes()).unwrap(), call.to_le_bytes());
        }
        let meanwhile = slow.load(Ordering::Relaxed) - before;
        assert!(meanwhile <= CALLS * 2 * 2 * BUDGET, "{meanwhile} long calls before {CALLS} short ones");
        over.store(1, Ordering::Relaxed);
        greedy.into_iter().for_each(Task::join);
        drop(client);
        server.shutdown(Duration::from_secs(1));
    })
    .unwrap();
}
