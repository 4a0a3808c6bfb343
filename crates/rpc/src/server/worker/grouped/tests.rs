//! Clients under leases: in virtual time, and on shared memory.

use super::*;
use crate::client::config::ClientConfig;
use crate::error::{CallError, Cause};
use crate::plan::{Plan, Protocol, Sharing};
use crate::server::turns::GroupCounters;
use crate::server::{ServerBuilder, ServerConfig};
use crate::service::{FunctionMode, Reply, Request, Service};
use crate::share::Client;
use crate::{CompletionMode, plan};
use dunlin_fabric::{Address, Scheme, Task};
use dunlin_fabric_shm::{ShmConfig, ShmFabric};
use dunlin_fabric_sim::{Settings, Sim};
use dunlin_wire::Status;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Echoes, and counts its executions.
pub(super) const ECHO: u16 = 1;

pub(super) fn plan(mode: CompletionMode) -> Plan {
    plan_of("Server-reply", mode)
}

fn plan_of(protocol: &str, mode: CompletionMode) -> Plan {
    Protocol::by_name(protocol).unwrap().plan(mode).shared(Sharing::Dedicated, plan::Lease::Slice)
}

/// A load: clients that keep `window` calls in flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    pub(super) clients: u64,
    pub(super) calls: u64,
    pub(super) window: usize,
    pub(super) workers: u16,
    pub(super) group: u16,
    /// `None` for the automatic one.
    pub(super) slice: Option<Duration>,
    pub(super) mode: CompletionMode,
    pub(super) protocol: &'static str,
    /// The threads of each client, which share its lanes by this policy.
    pub(super) threads: u64,
    pub(super) sharing: Sharing,
}

pub(super) const LOAD: Load = Load {
    clients: 4,
    calls: 60,
    window: 3,
    workers: 1,
    group: 1,
    slice: Some(Duration::from_micros(20)),
    mode: CompletionMode::Busy,
    protocol: "Server-reply",
    threads: 1,
    sharing: Sharing::Dedicated,
};

/// Nothing takes so long, on a machine that many others use either.
const HANG: Duration = Duration::from_secs(60);

fn payload(client: u64, call: u64) -> Vec<u8> {
    let length = match call % 17 {
        5 => 3_000,
        11 => 700,
        other => other as usize * 5,
    };
    vec![(client * 31 + call) as u8; length]
}

fn use_client<F: Fabric>(fabric: &F, address: &Address, load: Load, number: u64) {
    let plan = plan_of(load.protocol, load.mode).shared(load.sharing, plan::Lease::Slice);
    let config = ClientConfig { timeout: HANG, connect_timeout: HANG, ..ClientConfig::with_plan(plan) };
    let client = Client::connect(fabric, address, config).unwrap();
    let others: Vec<_> = (1..load.threads)
        .map(|thread| {
            let (client, host) = (client.another().unwrap(), fabric.host());
            let body = move || use_seat(client, load, number + thread * load.clients);
            host.spawn(&format!("thread-{thread} of {number}"), Box::new(body)).unwrap()
        })
        .collect();
    use_seat(client, load, number);
    others.into_iter().for_each(Task::join);
}

fn use_seat<F: Fabric>(mut client: Client<F>, load: Load, number: u64) {
    let mut open: VecDeque<(_, Vec<u8>)> = VecDeque::new();
    for call in 0..load.calls {
        if open.len() == load.window {
            let (id, sent) = open.pop_front().unwrap();
            assert_eq!(*client.wait(id).unwrap(), *sent, "client {number}, before call {call}");
        }
        let sent = payload(number, call);
        let id = loop {
            match client.submit_on(call as usize % client.workers(), ECHO, &sent) {
                Ok(id) => break id,
                Err(CallError::NotExecuted(Cause::WindowFull)) => {
                    let (id, sent) = open.pop_front().unwrap();
                    assert_eq!(*client.wait(id).unwrap(), *sent);
                }
                Err(error) => panic!("{error}"),
            }
        };
        open.push_back((id, sent));
    }
    for (id, sent) in open {
        assert_eq!(*client.wait(id).unwrap(), *sent);
    }
}

/// The counts of each worker.
pub(super) type Counted = Arc<Mutex<Vec<GroupCounters>>>;

/// Starts a server whose workers keep their counts after each step.
pub(super) fn serve<F: Fabric>(
    fabric: &F,
    address: &Address,
    load: Load,
) -> (crate::Server<F>, Vec<Task>, Counted) {
    let (server, workers, counted, _) = serve_counted(fabric, address, load);
    (server, workers, counted)
}

pub(super) fn serve_counted<F: Fabric>(
    fabric: &F,
    address: &Address,
    load: Load,
) -> (crate::Server<F>, Vec<Task>, Counted, Arc<AtomicU64>) {
    let executed = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&executed);
    let echo = move |request: &Request<'_>, reply: &mut Reply<'_>| -> Result<(), Status> {
        count.fetch_add(1, Ordering::Relaxed);
        Ok(reply.write(request.payload)?)
    };
    let (server, workers) = ServerBuilder::new(fabric)
        .config(ServerConfig {
            workers: load.workers,
            group_size: Some(load.group),
            group_slice: load.slice,
            spin: Duration::from_micros(2),
            ..ServerConfig::default()
        })
        .function(ECHO, FunctionMode::Worker)
        .serve_with(address, |_| Box::new(echo.clone()) as Box<dyn Service>)
        .unwrap();
    let counted = Arc::new(Mutex::new(vec![GroupCounters::default(); workers.len()]));
    let workers = workers.into_iter().enumerate().map(|(number, mut worker)| {
        let put = Arc::clone(&counted);
        let body = move || {
            while !worker.is_ended() {
                worker.step_until(Nanos::MAX);
                if let Some(groups) = &worker.groups {
                    put.lock().unwrap()[number] = groups.counts;
                }
            }
            let zones = worker.groups.iter().flat_map(|groups| &groups.pools).map(|pool| pool.zones.in_use());
            assert_eq!(zones.sum::<usize>(), 0, "every zone came back");
        };
        fabric.host().spawn(&format!("worker-{number}"), Box::new(body)).unwrap()
    });
    let workers = workers.collect();
    (server, workers, counted, executed)
}

/// Runs a load. Returns the sums of the workers' counters.
fn run<F: Fabric>(fabric: &F, address: &Address, load: Load) -> GroupCounters {
    let (server, workers, counted, executed) = serve_counted(fabric, address, load);
    let tasks: Vec<_> = (0..load.clients)
        .map(|number| {
            let (fabric, address) = (fabric.clone(), address.clone());
            let host = fabric.host().clone();
            let body = move || use_client(&fabric, &address, load, number);
            host.spawn(&format!("client-{number}"), Box::new(body)).unwrap()
        })
        .collect();
    tasks.into_iter().for_each(Task::join);
    server.shutdown(HANG);
    workers.into_iter().for_each(Task::join);
    assert_eq!(executed.load(Ordering::Relaxed), load.clients * load.threads * load.calls, "{load:?}");
    counted.lock().unwrap().iter().fold(GroupCounters::default(), |sum, counts| sum.plus(*counts))
}

fn in_virtual_time(settings: Settings, seed: u64, load: Load) -> GroupCounters {
    let counts = Arc::new(Mutex::new(GroupCounters::default()));
    let put = Arc::clone(&counts);
    Sim::run_with(settings, seed, move |fabric| {
        let address = Address::new(Scheme::Sim, "grouped").unwrap();
        *put.lock().unwrap() = run(&fabric, &address, load);
    })
    .unwrap();
    *counts.lock().unwrap()
}

#[test]
fn with_one_group_nothing_ever_switches() {
    for clients in [1, 3] {
        let counts = in_virtual_time(Settings::default(), 1, Load { clients, group: 40, ..LOAD });
        assert_eq!((counts.leases, counts.switches, counts.told_alone), (clients, 0, 0), "{counts:?}");
        assert!(counts.reads >= clients && counts.reads < 4 * clients, "{counts:?}");
    }
}

#[test]
fn groups_take_turns() {
    for seed in 0..8 {
        for group in 1..4 {
            for slice in [2, 5, 20, 100] {
                let load = Load {
                    clients: 9,
                    group,
                    slice: Some(Duration::from_micros(slice)),
                    window: 1 + seed as usize % 5,
                    ..LOAD
                };
                let counts = in_virtual_time(Settings::default(), seed, load);
                // In long slices a client may be through in its first one.
                let (switches, leases) = if slice < 100 { (4, 10) } else { (1, 9) };
                assert!(counts.switches >= switches && counts.leases >= leases, "{load:?}: {counts:?}");
            }
        }
    }
}

/// A slice that nobody has set begins with the paper's, since the fabric has no rates by connections.
#[test]
fn an_automatic_slice_serves_all_groups() {
    let counts = in_virtual_time(Settings::default(), 2, Load { slice: None, calls: 2_000, ..LOAD });
    assert!(counts.switches > 16 && counts.early > 0 && counts.later > counts.early, "{counts:?}");
}

/// The lanes of clients take turns whose threads share them.
#[test]
fn threads_share_lanes_that_take_turns() {
    for (seed, sharing) in Sharing::shared().enumerate() {
        for (workers, slack) in [(1, 0), (2, 300)] {
            let load = Load { threads: 4, sharing, workers, ..LOAD };
            let counts = in_virtual_time(Settings { slack, ..Settings::default() }, seed as u64, load);
            assert!(counts.switches > 10, "{sharing:?}: {counts:?}");
        }
    }
}

/// All workers of a server follow one schedule.
#[test]
fn workers_take_turns_together() {
    for seed in 0..10 {
        let load = Load { workers: 3, clients: 7, group: 1 + seed as u16 % 3, ..LOAD };
        let counts = in_virtual_time(Settings { preemption: 30, ..Settings::default() }, seed, load);
        assert!(counts.switches > 9 && counts.leases > 7, "{load:?}: {counts:?}");
    }
}

#[test]
fn threads_that_lose_their_core_lose_no_request() {
    for seed in 0..20 {
        let settings = Settings { preemption: 20, spurious: 10, slack: 0, ..Settings::default() };
        in_virtual_time(settings, seed, Load { clients: 5, group: 2, ..LOAD });
    }
}

#[test]
fn more_clients_than_zones_are_served() {
    let counts = in_virtual_time(Settings::default(), 3, Load { clients: 60, calls: 20, ..LOAD });
    assert!(counts.switches > 20, "{counts:?}");
}

#[test]
fn groups_take_turns_on_shared_memory() {
    let cases = [(CompletionMode::Adaptive, 50), (CompletionMode::Event, 200)];
    for ((mode, slice), protocol) in cases.into_iter().flat_map(|c| ["Server-reply", WOKEN].map(|p| (c, p))) {
        let fabric = ShmFabric::new(ShmConfig::default()).unwrap();
        let slice = Some(Duration::from_micros(slice));
        // Clients that are short of processors may follow each other, so that there is one group at any time.
        let taken = (0..8).any(|doubled| {
            let name = format!("grouped-{}-{mode}-{protocol}-{doubled}", fabric.host().process_id());
            let address = Address::new(Scheme::Shm, &name).unwrap();
            let calls = 500 << doubled;
            let counts =
                run(&fabric, &address, Load { calls, mode, protocol, slice, group: 2, clients: 5, ..LOAD });
            assert!(counts.leases >= 5, "{counts:?}");
            counts.switches > 0
        });
        assert!(taken, "clients of two groups called for long, and no turn ended");
    }
}

/// The protocol whose requests wake a server by immediate data.
const WOKEN: &str = "Direct-WriteIMM";

/// Workers that sleep until immediate data comes, on a fabric whose WRITEs wake nobody, serve groups by turns.
#[test]
fn workers_that_sleep_take_turns() {
    for seed in 0..8 {
        for mode in [CompletionMode::Event, CompletionMode::Adaptive, CompletionMode::Busy] {
            let settings = Settings { preemption: 20 * (seed % 2), ..Settings::default() };
            assert!(!settings.capabilities.write_wakes);
            let slice = Some(Duration::from_micros([5, 20, 100][seed as usize % 3]));
            let (workers, group) = (1 + seed as u16 % 2, 1 + seed as u16 % 3);
            let load = Load { clients: 7, group, slice, mode, protocol: WOKEN, workers, ..LOAD };
            let counts = in_virtual_time(settings, seed, load);
            assert!(counts.switches > 0 && counts.leases >= 7, "{load:?}: {counts:?}");
        }
    }
}

/// A word wakes a worker that sleeps, so that a call by itself is answered long before any other wake-up.
#[test]
fn a_word_wakes_the_worker() {
    Sim::run_with(Settings::default(), 7, |fabric| {
        let address = Address::new(Scheme::Sim, "asleep").unwrap();
        let (server, workers, counted) = serve(&fabric, &address, LOAD);
        let config = ClientConfig {
            timeout: Duration::from_millis(1),
            ..ClientConfig::with_plan(plan_of(WOKEN, CompletionMode::Event))
        };
        let [mut client, mut other] =
            [0, 1].map(|_| Client::connect(&fabric, &address, config.clone()).unwrap());
        let host = fabric.host().clone();
        for call in 0..20u64 {
            for client in [&mut client, &mut other] {
                assert_eq!(*client.call(ECHO, &call.to_le_bytes()).unwrap(), call.to_le_bytes());
            }
            host.sleep(host.now() + 5_000_000);
        }
        drop((client, other));
        server.shutdown(Duration::from_secs(1));
        workers.into_iter().for_each(Task::join);
        assert!(counted.lock().unwrap()[0].reads >= 20);
    })
    .unwrap();
}

/// Clients that end in each of the four states leave nothing behind.
#[test]
fn a_client_may_end_in_every_state() {
    Sim::run_with(Settings::default(), 4, |fabric| {
        let address = Address::new(Scheme::Sim, "ends").unwrap();
        let (server, workers, counted) = serve(&fabric, &address, LOAD);
        let host = fabric.host().clone();
        let connect = || {
            Client::connect(&fabric, &address, ClientConfig::with_plan(plan(CompletionMode::Busy))).unwrap()
        };
        for round in 0..20 {
            let mut stays = connect();
            // CONNECT.
            drop(connect());
            // WARMUP.
            let mut client = connect();
            client.submit_on(0, ECHO, b"announced").unwrap();
            drop(client);
            // PROCESS, with and without calls under way.
            let mut client = connect();
            client.call(ECHO, b"leased").unwrap();
            if round % 2 == 0 {
                client.submit_on(0, ECHO, b"written").unwrap();
            }
            drop(client);
            // IDLE: the lease has ended, whether or not the client has heard of it.
            let mut client = connect();
            client.call(ECHO, b"leased").unwrap();
            stays.call(ECHO, b"another group").unwrap();
            host.sleep(host.now() + 1000 * round * 10);
            drop(client);
            assert_eq!(*stays.call(ECHO, &[round as u8; 900]).unwrap(), [round as u8; 900]);
        }
        server.shutdown(Duration::from_secs(1));
        workers.into_iter().for_each(Task::join);
        assert!(counted.lock().unwrap()[0].leases >= 60);
    })
    .unwrap();
}

/// The memory of a client under leases beside its queue pair, registered lines included: it grows with the window only,
/// by 3 bytes a call. The pool does not grow with clients.
#[test]
fn a_client_under_leases_takes_little_memory() {
    Sim::run_with(Settings::default(), 6, |fabric| {
        let address = Address::new(Scheme::Sim, "small").unwrap();
        let (server, workers, _) = serve(&fabric, &address, LOAD);
        let bytes = |window, clients: &mut Vec<Client<Sim>>| {
            let before = server.lane_bytes();
            let config = ClientConfig { window, ..ClientConfig::with_plan(plan(CompletionMode::Busy)) };
            let mut client = Client::connect(&fabric, &address, config).unwrap();
            client.call(ECHO, &[7; 40]).unwrap();
            clients.push(client);
            server.lane_bytes() - before
        };
        let mut clients = Vec::new();
        let (least, usual) = (bytes(1, &mut clients), bytes(64, &mut clients));
        assert_eq!(usual - least, 63 * 3);
        assert!(usual <= 800, "{usual} bytes with a window of 64");
        for _ in 0..20 {
            let before = fabric.registered();
            assert_eq!(bytes(64, &mut clients), usual, "each client costs the same");
            // The client's region for answers, and its ring of requests.
            assert_eq!(fabric.registered() - before, 2, "the server registers nothing for a client");
        }
        drop(clients);
        server.shutdown(Duration::from_secs(1));
        workers.into_iter().for_each(Task::join);
    })
    .unwrap();
}

/// A lease that begins with a call outside the worker is told at once: the client does not wait for that call's answer.
#[test]
fn a_lease_is_told_before_a_pooled_call_ends() {
    const POOLED: u16 = 2;
    Sim::run_with(Settings::default(), 5, |fabric| {
        let address = Address::new(Scheme::Sim, "pooled").unwrap();
        let (host, pool_host) = (fabric.host().clone(), fabric.host().clone());
        let server = ServerBuilder::new(&fabric)
            .function(ECHO, FunctionMode::Worker)
            .function(POOLED, FunctionMode::Pool)
            .pool(move |request: &Request<'_>, reply: &mut Reply<'_>| {
                pool_host.sleep(pool_host.now() + 50_000_000);
                Ok(reply.write(request.payload)?)
            })
            .serve(&address, |_| {
                Box::new(|request: &Request<'_>, reply: &mut Reply<'_>| Ok(reply.write(request.payload)?))
            })
            .unwrap();
        let config = ClientConfig::with_plan(plan(CompletionMode::Busy));
        let mut client = Client::connect(&fabric, &address, config).unwrap();
        let pooled = client.submit_on(0, POOLED, b"later").unwrap();
        host.sleep(host.now() + 1_000_000);
        assert_eq!(*client.call_on(0, ECHO, b"now").unwrap(), *b"now");
        assert!(!client.is_done(pooled), "it lasts for longer");
        assert_eq!(*client.wait(pooled).unwrap(), *b"later");
        drop(client);
        server.shutdown(Duration::from_secs(1));
    })
    .unwrap();
}

/// The time of a call begins when it arrives, and not when the worker fell asleep.
#[test]
fn a_call_that_wakes_the_worker_is_in_time() {
    let mut settings = Settings::default();
    settings.capabilities.write_wakes = true;
    Sim::run_with(settings, 7, |fabric| {
        let address = Address::new(Scheme::Sim, "asleep").unwrap();
        let (server, workers, _) = serve(&fabric, &address, LOAD);
        let config = ClientConfig {
            timeout: Duration::from_millis(1),
            ..ClientConfig::with_plan(plan(CompletionMode::Event))
        };
        let mut client = Client::connect(&fabric, &address, config).unwrap();
        let host = fabric.host().clone();
        for call in 0..20u64 {
            assert_eq!(*client.call(ECHO, &call.to_le_bytes()).unwrap(), call.to_le_bytes());
            host.sleep(host.now() + 5_000_000);
        }
        drop(client);
        server.shutdown(Duration::from_secs(1));
        workers.into_iter().for_each(Task::join);
    })
    .unwrap();
}

/// Clients that make no calls for long lose their zones to those that do, and connect again.
#[test]
fn silent_clients_give_way_when_zones_are_short() {
    Sim::run_with(Settings::default(), 4, |fabric| {
        let address = Address::new(Scheme::Sim, "silent").unwrap();
        let (server, workers, _) = serve(&fabric, &address, LOAD);
        let host = fabric.host().clone();
        let connect = || {
            Client::connect(&fabric, &address, ClientConfig::with_plan(plan(CompletionMode::Busy))).unwrap()
        };
        // A group of one client has three zones.
        let mut silent: Vec<_> = (0..3).map(|_| connect()).collect();
        silent.iter_mut().for_each(|client| drop(client.call(ECHO, b"leased").unwrap()));
        let mut busy: Vec<_> = (0..2).map(|_| connect()).collect();
        for call in 0..300u32 {
            for client in &mut busy {
                assert_eq!(*client.call(ECHO, &call.to_le_bytes()).unwrap(), call.to_le_bytes());
            }
            host.sleep(host.now() + 10_000_000);
        }
        assert!(server.connections() < 5, "a silent client was given up");
        server.shutdown(Duration::from_secs(1));
        workers.into_iter().for_each(Task::join);
    })
    .unwrap();
}

/// A client whose lanes take no turns has room in the NIC, so the groups of the others become smaller while it is there.
#[test]
fn groups_make_room_for_lanes_that_take_no_turns() {
    Sim::run_with(Settings::default(), 8, |fabric| {
        let address = Address::new(Scheme::Sim, "room").unwrap();
        let (server, workers, counted) = serve(&fabric, &address, Load { group: 4, ..LOAD });
        let connect = |plan| Client::connect(&fabric, &address, ClientConfig::with_plan(plan)).unwrap();
        let lasting = Protocol::by_name("Server-reply").unwrap().plan(CompletionMode::Busy);
        let mut clients: Vec<_> = (0..6).map(|_| connect(plan(CompletionMode::Busy))).collect();
        let calls = |clients: &mut Vec<Client<Sim>>| {
            let before = counted.lock().unwrap()[0].switches;
            for call in 0..40u64 {
                for client in &mut *clients {
                    assert_eq!(*client.call(ECHO, &call.to_le_bytes()).unwrap(), call.to_le_bytes());
                }
            }
            counted.lock().unwrap()[0].switches - before
        };
        assert_eq!(calls(&mut clients), 0, "six clients are one group");
        let mut others = vec![connect(lasting), connect(lasting)];
        calls(&mut others);
        assert!(calls(&mut clients) > 0, "six clients are three groups of two");
        drop(others);
        let host = fabric.host();
        host.sleep(host.now() + 1_000_000);
        calls(&mut clients);
        assert_eq!(calls(&mut clients), 0, "one group is enough again");
        drop(clients);
        server.shutdown(Duration::from_secs(1));
        workers.into_iter().for_each(Task::join);
    })
    .unwrap();
}
