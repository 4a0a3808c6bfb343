//! Request rings of many lanes in one region (`ServerConfig::request_pool`), in virtual time and on shared memory.

#![allow(missing_docs, clippy::disallowed_methods, clippy::disallowed_types)]

use dunlin_fabric::{Address, Fabric, Host, Scheme};
use dunlin_fabric_shm::{ShmConfig, ShmFabric};
use dunlin_fabric_sim::{Settings, Sim};
use dunlin_rpc::*;
use std::collections::VecDeque;
use std::time::Duration;

const ECHO: u16 = 1;
const RINGS: u16 = 4;

fn serve<F: Fabric>(fabric: &F, address: &Address, block: u32) -> Server<F> {
    let config = ServerConfig {
        request_pool: Some(RequestPool { rings: RINGS, block }),
        max_ring_bytes: 32 << 10,
        ..ServerConfig::default()
    };
    ServerBuilder::new(fabric)
        .function(ECHO, FunctionMode::Worker)
        .config(config)
        .serve(address, |_| {
            Box::new(|request: &Request<'_>, reply: &mut Reply<'_>| Ok(reply.write(request.payload)?))
        })
        .unwrap()
}

fn connect<F: Fabric>(fabric: &F, address: &Address, plan: Plan) -> Result<Client<F>, ConnectError> {
    let config = ClientConfig { window: 16, ring_bytes: 32 << 10, ..ClientConfig::with_plan(plan) };
    Client::connect(fabric, address, config)
}

/// Returns a payload that only this call has.
fn payload(client: usize, round: usize, call: usize) -> Vec<u8> {
    let length = [1, 32, 40, 100, 3_900, 4_096, 20_000][(client + 3 * round + call) % 7];
    (0..length).map(|at| (at * 7 + client * 31 + round * 5 + call) as u8).collect()
}

/// Calls of all clients at once, as many as a ring has blocks for, and longer than a block.
fn calls<F: Fabric>(clients: &mut [Client<F>]) {
    for round in 0..12 {
        let mut under_way = VecDeque::new();
        for call in 0..16 {
            for number in 0..clients.len() {
                let id = loop {
                    match clients[number].submit_on(0, ECHO, &payload(number, round, call)) {
                        Ok(id) => break id,
                        // Calls of this client take the whole ring.
                        Err(CallError::NotExecuted(Cause::WindowFull)) => end(clients, &mut under_way, round),
                        Err(error) => panic!("{error}"),
                    }
                };
                under_way.push_back((number, call, id));
            }
        }
        while !under_way.is_empty() {
            end(clients, &mut under_way, round);
        }
    }
}

/// Waits for the oldest call.
fn end<F: Fabric>(clients: &mut [Client<F>], under_way: &mut VecDeque<(usize, usize, CallId)>, round: usize) {
    let (number, call, id) = under_way.pop_front().unwrap();
    assert_eq!(*clients[number].wait(id).unwrap(), *payload(number, round, call), "{number} {round}");
}

/// Protocols whose requests lie in a ring, and how both sides wait.
fn plans() -> impl Iterator<Item = Plan> {
    let is_written = |plan: &Plan| plan.request.name().starts_with("write");
    let lossy = PROTOCOLS.iter().map(|row| row.plan(CompletionMode::Busy)).filter(|plan| plan.is_lossy());
    let others = [("Server-reply", CompletionMode::Busy), ("Direct-WriteIMM", CompletionMode::Event)];
    let others = others.into_iter().filter_map(|(name, mode)| Some(Protocol::by_name(name)?.plan(mode)));
    others.chain(lossy).filter(is_written)
}

#[test]
fn lanes_have_rings_in_one_region_until_they_close() {
    for (seed, block) in [64, 1024, 4096].into_iter().enumerate() {
        Sim::run_with(Settings::default(), seed as u64, move |fabric| {
            let address = Address::new(Scheme::Sim, "pool").unwrap();
            let server = serve(&fabric, &address, block);
            let host = fabric.host().clone();
            for plan in plans() {
                let mut clients: Vec<_> =
                    (0..RINGS).map(|_| connect(&fabric, &address, plan).unwrap()).collect();
                calls(&mut clients);
                let refused = connect(&fabric, &address, plan).err().unwrap();
                assert!(refused.to_string().contains("all rings"), "{refused}");
                calls(&mut clients);
                // The ring of a client that is gone is given to another one.
                drop(clients.remove(1));
                let again = loop {
                    match connect(&fabric, &address, plan) {
                        Ok(client) => break client,
                        Err(_) => host.sleep(host.now() + 10_000),
                    }
                };
                clients.push(again);
                calls(&mut clients);
                drop(clients);
                while server.lane_bytes() > 0 {
                    host.sleep(host.now() + 10_000);
                }
            }
            server.shutdown(Duration::from_secs(1));
        })
        .unwrap();
    }
}

/// A lane under leases has a zone of another pool, and one whose requests are sent has no ring: neither takes a place.
#[test]
fn other_lanes_take_no_ring() {
    Sim::run_with(Settings::default(), 9, |fabric| {
        let address = Address::new(Scheme::Sim, "others").unwrap();
        let server = serve(&fabric, &address, 4096);
        let written = Plan::new(RequestHalf::Write, ResponseHalf::Write)
            .completion(CompletionMode::Busy, CompletionMode::Busy);
        let sent = Plan::new(RequestHalf::Send, ResponseHalf::Send)
            .completion(CompletionMode::Busy, CompletionMode::Busy);
        let leased = written.shared(Sharing::Dedicated, Lease::Slice);
        let others = [leased, sent, leased, sent];
        let mut clients: Vec<_> = others
            .into_iter()
            .chain([written; RINGS as usize])
            .map(|plan| connect(&fabric, &address, plan).unwrap())
            .collect();
        calls(&mut clients);
        assert!(connect(&fabric, &address, written).is_err());
        drop(clients);
        server.shutdown(Duration::from_secs(1));
    })
    .unwrap();
}

#[test]
fn lanes_on_shared_memory_have_rings_in_one_region() {
    let fabric = ShmFabric::new(ShmConfig::default()).unwrap();
    let address = Address::new(Scheme::Shm, &format!("pool-{}", std::process::id())).unwrap();
    let server = serve(&fabric, &address, 4096);
    for plan in plans().take(2) {
        let mut clients: Vec<_> = (0..2).map(|_| connect(&fabric, &address, plan).unwrap()).collect();
        calls(&mut clients);
    }
    server.shutdown(Duration::from_secs(5));
}

#[test]
fn impossible_pools_are_refused() {
    let fabric = ShmFabric::new(ShmConfig::default()).unwrap();
    let address = Address::new(Scheme::Shm, &format!("no-pool-{}", std::process::id())).unwrap();
    for (pool, name) in [
        (RequestPool { rings: 0, block: 64 }, "rings"),
        (RequestPool { rings: 1, block: 32 }, "block"),
        (RequestPool { rings: 1, block: 96 }, "block"),
        (RequestPool { rings: 1, block: 8192 }, "block"),
    ] {
        let config = ServerConfig { request_pool: Some(pool), ..ServerConfig::default() };
        let service = |_| -> Box<dyn Service> { Box::new(|_: &Request<'_>, _: &mut Reply<'_>| Ok(())) };
        let refused = ServerBuilder::new(&fabric).config(config).serve(&address, service).err().unwrap();
        assert!(refused.to_string().contains(name), "{refused}");
    }
}

/// A worker polls lanes without messages by turns. In the simulator its busy wait ends with the next arrival, so a
/// message in a lane that had no turn would wait for another client's.
#[test]
fn a_lane_that_was_idle_for_long_is_served_without_another_arrival() {
    const CLIENTS: u16 = 40;
    let settings = Settings { limit: 10_000_000_000, ..Settings::default() };
    let run = Sim::run_with(settings, 0, move |fabric| {
        let address = Address::new(Scheme::Sim, "pool").unwrap();
        let pool = RequestPool { rings: CLIENTS, block: 64 };
        let config =
            ServerConfig { request_pool: Some(pool), max_ring_bytes: 32 << 10, ..ServerConfig::default() };
        let server = ServerBuilder::new(&fabric)
            .function(ECHO, FunctionMode::Worker)
            .config(config)
            .serve(&address, |_| {
                Box::new(|request: &Request<'_>, reply: &mut Reply<'_>| Ok(reply.write(request.payload)?))
            })
            .unwrap();
        let plan = Protocol::by_name("Server-reply").unwrap().plan(CompletionMode::Busy);
        let mut clients: Vec<_> = (0..CLIENTS).map(|_| connect(&fabric, &address, plan).unwrap()).collect();
        for _ in 0..1000 {
            clients[0].call(ECHO, b"busy").unwrap();
        }
        for client in &mut clients {
            assert_eq!(*client.call(ECHO, b"idle").unwrap(), *b"idle");
        }
        server.shutdown(Duration::from_secs(1));
    });
    run.unwrap();
}
