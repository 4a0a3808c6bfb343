//! Ends in every state: clients that die, whole groups, the server, and a server that lies about leases, heads and epochs.

use super::tests::{ECHO, LOAD, Load, plan, serve, serve_counted};
use super::*;
use crate::client::config::ClientConfig;
use crate::error::{CallError, Cause};
use crate::server::{ServerBuilder, ServerConfig};
use crate::service::{FunctionMode, Reply, Request};
use crate::share::Client;
use crate::{CompletionMode, Server};
use dunlin_fabric::{Address, Scheme, Task};
use dunlin_fabric_sim::{Settings, Sim};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

fn address() -> Address {
    Address::new(Scheme::Sim, "ends").unwrap()
}

fn config() -> ClientConfig {
    ClientConfig {
        timeout: Duration::from_millis(500),
        ..ClientConfig::with_plan(plan(CompletionMode::Busy))
    }
}

fn connect(fabric: &Sim) -> Client<Sim> {
    Client::connect(fabric, &address(), config()).unwrap()
}

/// Waits until the server has `count` connections.
fn until_connections(fabric: &Sim, server: &Server<Sim>, count: usize) {
    let host = fabric.host();
    for _ in 0..10_000 {
        if server.connections() == count {
            return;
        }
        host.sleep(host.now() + 100_000);
    }
    panic!("{} connections are left, not {count}", server.connections());
}

/// Runs a client in a process of its own until the process is killed. Returns the process when the client is ready.
fn in_process(fabric: &Sim, body: impl FnOnce(&Sim) -> Client<Sim> + Send + 'static) -> Sim {
    let process = fabric.process_on(0);
    let ready = Arc::new(AtomicU64::new(0));
    let (sim, is_ready) = (process.clone(), Arc::clone(&ready));
    let task = move || {
        let _client = body(&sim);
        is_ready.store(1, Ordering::Relaxed);
        loop {
            sim.host().sleep(sim.host().now() + 1_000_000_000);
        }
    };
    drop(process.host().spawn("dies", Box::new(task)).unwrap());
    let host = fabric.host();
    while ready.load(Ordering::Relaxed) == 0 {
        host.sleep(host.now() + 1_000);
    }
    process
}

/// The process of a client is killed in CONNECT, WARMUP, PROCESS and IDLE. Each zone comes back (the workers check that
/// when they end), and the calls of others are answered.
#[test]
fn a_client_may_be_killed_in_every_state() {
    Sim::run_with(Settings::default(), 4, |fabric| {
        let (server, workers, counted) = serve(&fabric, &address(), LOAD);
        let host = fabric.host().clone();
        let mut stays = connect(&fabric);
        for round in 0..12u64 {
            let in_connect = in_process(&fabric, connect);
            in_connect.kill();
            let in_warmup = in_process(&fabric, |fabric| {
                let mut client = connect(fabric);
                client.submit_on(0, ECHO, b"announced").unwrap();
                client
            });
            in_warmup.kill();
            let in_process_state = in_process(&fabric, |fabric| {
                let mut client = connect(fabric);
                client.call(ECHO, b"leased").unwrap();
                client.submit_on(0, ECHO, b"written").unwrap();
                client
            });
            in_process_state.kill();
            let in_idle = in_process(&fabric, |fabric| {
                let mut client = connect(fabric);
                client.call(ECHO, b"leased").unwrap();
                client
            });
            // Another group is served, so the lease ends. The client makes no call, so it says no word.
            stays.call(ECHO, b"another group").unwrap();
            host.sleep(host.now() + 10_000 * round);
            in_idle.kill();
            assert_eq!(*stays.call(ECHO, &[round as u8; 900]).unwrap(), [round as u8; 900]);
        }
        until_connections(&fabric, &server, 1);
        assert!(counted.lock().unwrap()[0].leases >= 36);
        drop(stays);
        server.shutdown(Duration::from_secs(1));
        workers.into_iter().for_each(Task::join);
    })
    .unwrap();
}

/// All clients of two of three groups die at once, in whatever state they are. The third group goes on.
#[test]
fn all_of_a_group_may_die() {
    for seed in 0..6u64 {
        Sim::run_with(Settings::default(), seed, move |fabric| {
            let (server, workers, counted) = serve(&fabric, &address(), Load { group: 2, ..LOAD });
            let host = fabric.host().clone();
            let calling = |process: Sim| {
                let (sim, done) = (process.clone(), Arc::new(AtomicU64::new(0)));
                let count = Arc::clone(&done);
                let body = move || {
                    let mut client = connect(&sim);
                    loop {
                        client.call(ECHO, b"a call").unwrap();
                        count.fetch_add(1, Ordering::Relaxed);
                    }
                };
                drop(process.host().spawn("calls", Box::new(body)).unwrap());
                while done.load(Ordering::Relaxed) == 0 {
                    host.sleep(host.now() + 1_000);
                }
                (process, done)
            };
            let clients: Vec<_> = (0..6).map(|_| calling(fabric.process_on(0))).collect();
            host.sleep(host.now() + 300_000 + 17_000 * seed);
            assert!(counted.lock().unwrap()[0].switches > 6, "the groups take turns");
            // Clients are grouped as they connected.
            clients[..4].iter().for_each(|(process, _)| process.kill());
            let before: Vec<u64> = clients.iter().map(|(_, done)| done.load(Ordering::Relaxed)).collect();
            until_connections(&fabric, &server, 2);
            host.sleep(host.now() + 1_000_000);
            for ((_, done), before) in clients.iter().zip(before).skip(4) {
                assert!(done.load(Ordering::Relaxed) > before + 20, "those that live go on");
            }
            clients[4..].iter().for_each(|(process, _)| process.kill());
            until_connections(&fabric, &server, 0);
            server.shutdown(Duration::from_secs(1));
            workers.into_iter().for_each(Task::join);
        })
        .unwrap();
    }
}

/// The server's process dies while clients of other groups are in WARMUP: each call ends with an answer or with a lost
/// connection, long before its deadline.
#[test]
fn calls_in_warmup_end_when_the_server_dies() {
    for seed in 0..8u64 {
        Sim::run_with(Settings::default(), seed, move |fabric| {
            let process = fabric.process_on(0);
            let load = Load { slice: Some(Duration::from_millis(5)), ..LOAD };
            let (server, workers, counted) = serve(&process, &address(), load);
            let host = fabric.host().clone();
            let mut clients: Vec<Client<Sim>> = (0..5).map(|_| connect(&fabric)).collect();
            // The first one keeps the slice.
            clients[0].call(ECHO, b"leased").unwrap();
            let began = host.now();
            let mut calls = Vec::new();
            for client in &mut clients {
                let three = (0..3u64).map(|call| client.submit_on(0, ECHO, &call.to_le_bytes()).unwrap());
                calls.push(three.collect::<Vec<_>>());
            }
            host.sleep(host.now() + 1_000 * seed);
            process.kill();
            drop((workers, counted));
            let mut lost = 0;
            for (client, calls) in clients.iter_mut().zip(calls) {
                for call in calls {
                    match client.wait(call) {
                        Ok(_) => {}
                        Err(CallError::NotExecuted(cause) | CallError::MaybeExecuted(cause)) => {
                            assert!(
                                matches!(cause, Cause::ConnectionLost | Cause::Disconnected),
                                "{cause:?}"
                            );
                            lost += 1;
                        }
                        Err(error) => panic!("{error}"),
                    }
                }
            }
            assert!(lost >= 6, "{lost} calls were lost: groups of one client are served for 5 ms");
            assert!(host.now() - began < 400_000_000, "nothing waits for its deadline");
            // The handles of a dead process have no effect.
            drop(server);
        })
        .unwrap();
    }
}

/// A lie of a server: the message in the place of an answer, from the lane's epoch and head.
#[derive(Clone, Copy)]
struct ServerLie {
    name: &'static str,
    header: fn(u32, u32) -> Header,
}

fn marked(mark: Mark, head: u32) -> Header {
    Header { flags: mark.flags(), head, epoch: mark.epoch, credits: mark.zone, ..Header::new(Kind::Credit) }
}

/// The client to which a lie is told: it has a lease, its call waits for one, or it makes no call.
#[derive(Clone, Copy, Debug, PartialEq)]
enum ToldIn {
    Process,
    Warmup,
    Idle,
}

/// The first one is told to a client that has a lease: others believe in the lease.
const LIES: [ServerLie; 7] = [
    ServerLie { name: "a second lease", header: |epoch, head| marked(Mark::new(epoch + 1, 0, false), head) },
    ServerLie {
        name: "an epoch is skipped",
        header: |epoch, head| marked(Mark::new(epoch + 2, 0, false), head),
    },
    ServerLie {
        name: "an epoch of the past",
        header: |epoch, head| marked(Mark::new(epoch.wrapping_sub(1), 0, false), head),
    },
    ServerLie {
        name: "the end of another lease",
        header: |epoch, head| marked(Mark::new(epoch + 1, 0, true), head),
    },
    ServerLie {
        name: "a mark that is not set",
        header: |epoch, head| Header { epoch: epoch as u8 + 1, ..marked(Mark::default(), head) },
    },
    ServerLie {
        name: "a head beyond all requests",
        header: |epoch, head| marked(Mark::new(epoch, 0, false), head + 1000),
    },
    ServerLie {
        name: "a zone outside the pool",
        header: |epoch, head| marked(Mark::new(epoch + 1, 255, false), head),
    },
];

impl Worker<Sim> {
    /// Tells all clients that have leases, or all others, this lie.
    fn lie(&mut self, lie: ServerLie, told_in: ToldIn) -> usize {
        let mut told = 0;
        let is_leased = told_in == ToldIn::Process;
        for lane in self.lanes.iter_mut().flatten().filter(|lane| lane.is_leased() == is_leased) {
            let Some(leased) = &lane.leased else { continue };
            let epoch = leased.member.epoch();
            let mut cx = Cx::of(&self.fabric, &mut self.domain);
            if is_leased && lie.name == "a zone outside the pool" {
                // The lease has to end before another one can begin.
                let end = marked(Mark::new(epoch, 0, true), lane.rx.head());
                lane.tx.single(&mut cx, &end, &[]).unwrap();
            }
            lane.tx.single(&mut cx, &(lie.header)(epoch, lane.rx.head()), &[]).unwrap();
            told += 1;
        }
        told
    }
}

/// The client refuses each lie in each state: a call in flight ends with a typed error, and no call has the answer of
/// another. The next connection is served.
#[test]
fn a_client_refuses_leases_heads_and_epochs_that_a_server_forges() {
    for told_in in [ToldIn::Process, ToldIn::Warmup, ToldIn::Idle] {
        let first = usize::from(told_in != ToldIn::Process);
        for lie in &LIES[first..] {
            is_refused(*lie, told_in);
        }
    }
}

fn is_refused(lie: ServerLie, told_in: ToldIn) {
    Sim::run_with(Settings::default(), 3, move |fabric| {
        let name = format!("{} in {told_in:?}", lie.name);
        let due = Arc::new(AtomicU64::new(0));
        let config_of_server = ServerConfig {
            spin: Duration::from_micros(2),
            group_size: Some(1),
            group_slice: Some(Duration::from_millis(5)),
            ..ServerConfig::default()
        };
        let (server, workers) = ServerBuilder::new(&fabric)
            .config(config_of_server)
            .function(ECHO, FunctionMode::Worker)
            .serve_with(&address(), |_| {
                Box::new(|request: &Request<'_>, reply: &mut Reply<'_>| Ok(reply.write(request.payload)?))
            })
            .unwrap();
        let workers: Vec<Task> = workers
            .into_iter()
            .map(|mut worker| {
                let due = Arc::clone(&due);
                let host = fabric.host().clone();
                let body = move || {
                    while !worker.is_ended() {
                        worker.step_until(host.now() + 10_000);
                        if due.load(Ordering::Relaxed) > 0 && worker.lie(lie, told_in) > 0 {
                            due.store(0, Ordering::Relaxed);
                        }
                    }
                };
                fabric.host().spawn("worker", Box::new(body)).unwrap()
            })
            .collect();
        let host = fabric.host().clone();
        let mut client = connect(&fabric);
        // Either this client gets the lease, or another one.
        let mut other = (told_in != ToldIn::Process).then(|| connect(&fabric));
        other.as_mut().unwrap_or(&mut client).call(ECHO, b"leased").unwrap();
        let waits =
            (told_in == ToldIn::Warmup).then(|| client.submit_on(0, ECHO, &0u64.to_le_bytes()).unwrap());
        due.store(1, Ordering::Relaxed);
        if told_in == ToldIn::Idle {
            host.sleep(host.now() + 100_000);
        }
        let mut refused = None;
        for call in 0..1_000u64 {
            let outcome = match waits.filter(|_| call == 0) {
                Some(id) => client.wait(id),
                None => client.call(ECHO, &call.to_le_bytes()),
            };
            match outcome {
                Ok(answer) => assert_eq!(*answer, call.to_le_bytes(), "{name}"),
                Err(error) => {
                    refused = Some(error);
                    break;
                }
            }
        }
        let refused = refused.unwrap_or_else(|| panic!("{name}: the client believes it"));
        let typed = [Cause::ProtocolViolation, Cause::ConnectionLost, Cause::Disconnected];
        assert!(refused.cause().is_some_and(|cause| typed.contains(&cause)), "{name}: {refused}");
        assert_eq!(due.load(Ordering::Relaxed), 0, "{name}");
        let came_back = (0..1_000).any(|_| {
            host.sleep(host.now() + 1_000_000);
            client.call(ECHO, b"again").is_ok_and(|answer| *answer == *b"again")
        });
        assert!(came_back, "{name}");
        drop((client, other));
        server.shutdown(Duration::from_secs(1));
        workers.into_iter().for_each(Task::join);
    })
    .unwrap();
}

/// Clients that connect and leave by thousands, in order and by a crash: the calls of one that stays are answered, and the
/// server has as many regions, queue pairs and bytes of lanes as before.
#[test]
fn thousands_of_clients_leave_nothing_behind() {
    const BATCHES: u64 = 250;
    const EACH: u64 = 10;
    Sim::run_with(Settings { limit: u64::MAX / 4, ..Settings::default() }, 5, |fabric| {
        let (server, workers, _, executed) = serve_counted(&fabric, &address(), LOAD);
        let mut stays = connect(&fabric);
        let batch = |number: u64, stays: &mut Client<Sim>| {
            let dying = fabric.process_on(0);
            let mut clients: Vec<Client<Sim>> = (0..EACH)
                .map(|client| {
                    let sim = if client % 2 == 0 { &fabric } else { &dying };
                    connect(sim)
                })
                .collect();
            for (at, client) in clients.iter_mut().enumerate() {
                if !(at as u64 + number).is_multiple_of(3) {
                    client.submit_on(0, ECHO, b"a call").unwrap();
                }
            }
            for call in 0..4u64 {
                assert_eq!(*stays.call(ECHO, &call.to_le_bytes()).unwrap(), call.to_le_bytes());
            }
            // Half of them are closed, half disappear.
            dying.kill();
            drop(clients);
            until_connections(&fabric, &server, 1);
        };
        // Pools and tables are made with the first clients.
        batch(0, &mut stays);
        let state = || (fabric.registered(), fabric.queue_pairs(), server.lane_bytes());
        let before = state();
        for number in 1..=BATCHES {
            batch(number, &mut stays);
        }
        assert_eq!(state(), before, "{} clients came and left", BATCHES * EACH);
        assert!(executed.load(Ordering::Relaxed) >= 4 * BATCHES);
        drop(stays);
        server.shutdown(Duration::from_secs(1));
        workers.into_iter().for_each(Task::join);
    })
    .unwrap();
}
