//! An idle connection costs no polls, on either side.

#![allow(missing_docs, clippy::disallowed_methods, clippy::disallowed_types)]

use crate::common::*;
use dunlin_fabric::interpose::Count;
use dunlin_rpc::*;
use std::time::Duration;

/// The time without calls. A spinning thread waits a million times in it.
const IDLE: Duration = Duration::from_millis(300);
/// The most waits of a thread that sleeps in that time: one for each tick of the watchdog, and some spare.
const FEW: u64 = 100;

/// Returns the waits of a server and of an asynchronous and a blocking client, while none of them has work.
fn idle_waits(plan: Plan, workers: u16) -> [u64; 2] {
    let fabrics = [Count::new(fabric()), Count::new(fabric())];
    let echo = |request: &Request<'_>, reply: &mut Reply<'_>| Ok(reply.write(request.payload)?);
    let server = ServerBuilder::new(&fabrics[1])
        .config(ServerConfig { workers, ..ServerConfig::default() })
        .function(ECHO, FunctionMode::Worker)
        .serve(&unique("idle"), |_| Box::new(echo))
        .unwrap();
    let mut client = Client::connect(&fabrics[0], server.address(), with_plan(plan)).unwrap();
    let mut calls = || {
        for number in 0..100u64 {
            let worker = number as usize % usize::from(workers);
            assert_eq!(*client.call_on(worker, ECHO, &number.to_le_bytes()).unwrap(), number.to_le_bytes());
        }
    };
    let waits = || {
        [&fabrics[0], &fabrics[1]].map(|fabric| {
            let counts = fabric.counts();
            counts.waits_busy + counts.waits_event
        })
    };
    calls();
    // Adaptive waits have spun for 20 us by then.
    std::thread::sleep(Duration::from_millis(50));
    let before = waits();
    std::thread::sleep(IDLE);
    let after = waits();
    calls();
    [after[0] - before[0], after[1] - before[1]]
}

#[test]
fn workers_that_poll_memory_sleep_while_nobody_calls() {
    let plan = Protocol::by_name("Server-reply").unwrap().plan(CompletionMode::Adaptive);
    let [client, server] = idle_waits(plan, 1);
    assert!(client == 0 && server < FEW, "the client waited {client} times, the server {server}");
}

/// There are more workers than cores, so a busy plan is executed adaptively.
#[test]
fn busy_workers_sleep_where_they_outnumber_the_cores() {
    let cores = std::thread::available_parallelism().unwrap().get() as u16;
    let plan = Protocol::by_name("Server-reply").unwrap().plan(CompletionMode::Busy);
    let [client, server] = idle_waits(plan, cores + 1);
    let most = FEW * u64::from(cores + 1);
    assert!(client == 0 && server < most, "the client waited {client} times, the server {server}");
}
