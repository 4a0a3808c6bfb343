//! Lanes that come and go on one connection, on shared memory and in virtual time.

use super::*;
use crate::client::config::ClientConfig;
use crate::client::core::CallId;
use crate::client::establish::{Greeting, PreparedLane, greet, negotiate_beside};
use crate::client::lane::SubmitError;
use crate::error::CallError;
use crate::plan::{PROTOCOLS, Plan, Protocol};
use crate::server::{Server, ServerBuilder};
use crate::service::{FunctionMode, Reply, Request};
use crate::tune::Tuners;
use crate::{CompletionMode, ServerConfig};
use dunlin_fabric::{Address, Host, Nanos, Scheme};
use dunlin_fabric_shm::{ShmConfig, ShmFabric};
use dunlin_fabric_sim::{Settings, Sim};
use dunlin_wire::Status;
use dunlin_wire::handshake::LaneReady;
use std::time::Duration;

/// The longest wait for the other side. A machine with other work may stop both threads for seconds.
const HANG: Duration = Duration::from_secs(60);

/// Echoes on the worker.
const ECHO: u16 = 1;
/// Echoes in the pool after as many microseconds as its first byte says.
const POOL: u16 = 2;

fn serve<F: Fabric>(fabric: &F, address: &Address) -> Server<F> {
    let host = fabric.host().clone();
    let echo = |request: &Request<'_>, reply: &mut Reply<'_>| -> Result<(), Status> {
        Ok(reply.write(request.payload)?)
    };
    ServerBuilder::new(fabric)
        .config(ServerConfig {
            spin: Duration::from_micros(2),
            hello_timeout: HANG,
            ..ServerConfig::default()
        })
        .function(ECHO, FunctionMode::Worker)
        .function(POOL, FunctionMode::Pool)
        .pool(move |request: &Request<'_>, reply: &mut Reply<'_>| {
            host.sleep(host.now() + 1000 * u64::from(request.payload[0]));
            Ok(reply.write(request.payload)?)
        })
        .serve(address, move |_| Box::new(echo))
        .unwrap()
}

/// A connection and its core, whose lanes a test opens and closes.
struct Connection<F: Fabric> {
    core: Core<F>,
    greeting: Greeting<F>,
    config: ClientConfig,
    tuners: Tuners,
    number: u16,
}

impl<F: Fabric> Connection<F> {
    fn new(fabric: &F, address: &Address, plan: Plan) -> Self {
        let config = ClientConfig::with_plan(plan).resolved(fabric);
        let tuners = config.tuners(fabric);
        let core = Core::new(fabric, config.mode()).unwrap();
        let greeting =
            greet(fabric, address, &config, fabric.host().now() + HANG.as_nanos() as Nanos).unwrap();
        Connection { core, greeting, config, tuners, number: 0 }
    }

    /// Opens a lane with a number that no lane had before. Returns its index and the server's answer.
    fn open(&mut self) -> (u16, LaneReady) {
        let Connection { core, greeting, config, tuners, number } = self;
        *number += 1;
        let plan = config.plan.unwrap().written_back_if(tuners.rules_out_fetching());
        let prepared = PreparedLane::new(core, greeting, config, plan, *number, 0).unwrap();
        let until = core.fabric.host().now() + HANG.as_nanos() as Nanos;
        let mut others = Vec::new();
        let ready = negotiate_beside(greeting, std::slice::from_ref(&prepared), until, &mut others).unwrap();
        let indices = match core.lane(0).map(|first| first.connection) {
            None => core.install(greeting, config, vec![prepared], &ready, tuners).unwrap(),
            Some(connection) => {
                others.iter().for_each(|record| core.on_record(connection, record));
                let of = (&*greeting, &*config);
                core.install_on(connection, of, vec![prepared], &ready, tuners).unwrap()
            }
        };
        (indices[0], ready[0].clone())
    }

    /// Makes progress, and leaves the processor to the server.
    fn step(&mut self) {
        self.core.progress();
        let host = self.core.fabric.host();
        host.sleep(host.now() + 1000);
    }

    fn submit(&mut self, lane: u16, function: u16, payload: &[u8]) -> CallId {
        loop {
            let submitted = self.core.with_lane(lane, |cx, lane| lane.submit(cx, function, payload, 0));
            match submitted {
                Ok(id) => return id,
                Err(SubmitError::Full) => self.step(),
                Err(_) => panic!("the lane takes no call"),
            }
        }
    }

    fn finish(&mut self, id: CallId, expected: &[u8]) {
        while !self.core.is_done(id) {
            self.step();
        }
        assert_eq!(self.core.outcome(id).unwrap(), expected);
        self.core.forget(id);
    }

    /// Waits until all lanes that are being closed are gone.
    fn wait_closed(&mut self) {
        while self.core.advance_closing() > 0 {
            self.step();
        }
    }
}

/// Opens, uses and closes a lane `rounds` times, beside a lane that stays.
fn rounds<F: Fabric>(fabric: &F, address: &Address, plan: Plan, rounds: u16) {
    let server = serve(fabric, address);
    let mut connection = Connection::new(fabric, address, plan);
    let (stays, _) = connection.open();
    for round in 0..rounds {
        let (index, ready) = connection.open();
        // Both sides use the same places again.
        assert_eq!((index, ready.place), (1, 1), "{round}");
        let payload = round.to_le_bytes();
        let id = connection.submit(index, ECHO, &payload);
        connection.finish(id, &payload);
        if round % 64 == 0 {
            // Large payloads have further memory and grants.
            let large = vec![round as u8; 20_000];
            let id = connection.submit(index, ECHO, &large);
            connection.finish(id, &large);
            let id = connection.submit(stays, ECHO, &payload);
            connection.finish(id, &payload);
        }
        connection.core.close_lane(index);
        assert!(!connection.core.is_usable(index));
        connection.wait_closed();
        assert!(connection.core.lane(index).is_none() && connection.core.is_usable(stays));
    }
    let clients = server.clients();
    assert_eq!((clients.len(), clients[0].lanes), (1, 1));
    connection.core.close();
    server.shutdown(Duration::from_secs(1));
}

fn by_name(name: &str, mode: CompletionMode) -> Plan {
    Protocol::by_name(name).unwrap().plan(mode)
}

fn unique(what: &str) -> (ShmFabric, Address) {
    let fabric = ShmFabric::new(ShmConfig { greeting_patience: HANG, ..ShmConfig::default() }).unwrap();
    let name = format!("closing-{what}-{}-{:x}", std::process::id(), fabric.host().random());
    (fabric, Address::new(Scheme::Shm, &name).unwrap())
}

fn simulate(body: impl FnOnce(&Sim, &Address) + Send + 'static) {
    Sim::run_with(Settings::default(), 5, move |fabric| {
        body(&fabric, &Address::new(Scheme::Sim, "closing").unwrap());
    })
    .unwrap();
}

/// Opens a lane while another one is being closed: the records about both arrive on one connection.
fn overlapping<F: Fabric>(fabric: &F, address: &Address, plan: Plan) {
    let server = serve(fabric, address);
    let mut connection = Connection::new(fabric, address, plan);
    connection.open();
    let (mut closing, mut most) = (Vec::new(), 0);
    for round in 0..200_u16 {
        let (index, _) = connection.open();
        let id = connection.submit(index, ECHO, &round.to_le_bytes());
        connection.finish(id, &round.to_le_bytes());
        connection.core.close_lane(index);
        closing.push(index);
        closing.retain(|index| connection.core.lane(*index).is_some());
        most = most.max(closing.len());
        // The server has room for sixteen.
        while closing.len() > 8 {
            connection.step();
            connection.core.advance_closing();
            closing.retain(|index| connection.core.lane(*index).is_some());
        }
    }
    assert!(most > 0);
    connection.wait_closed();
    assert_eq!(server.clients()[0].lanes, 1);
    connection.core.close();
    server.shutdown(Duration::from_secs(1));
}

#[test]
fn lanes_open_while_others_close() {
    let (fabric, address) = unique("overlapping");
    overlapping(&fabric, &address, by_name("Server-reply", CompletionMode::Busy));
    let named = ["Server-reply", "Eager-SendRecv"].map(|name| by_name(name, CompletionMode::Busy));
    let lossy = PROTOCOLS.iter().map(|row| row.plan(CompletionMode::Busy)).filter(|plan| plan.is_lossy());
    for plan in named.into_iter().chain(lossy) {
        simulate(move |fabric, address| overlapping(fabric, address, plan));
    }
}

#[test]
fn thousands_of_lanes_come_and_go_on_shared_memory() {
    let (fabric, address) = unique("rounds");
    rounds(&fabric, &address, by_name("Direct-WriteIMM", CompletionMode::Event), 3000);
}

#[test]
fn thousands_of_lanes_come_and_go_in_virtual_time() {
    simulate(|fabric, address| {
        rounds(fabric, address, by_name("Direct-WriteIMM", CompletionMode::Event), 3000);
    });
}

#[test]
fn lanes_of_every_protocol_come_and_go() {
    for protocol in PROTOCOLS {
        let plan = protocol.plan(CompletionMode::Busy);
        println!("{}", protocol.name);
        if plan.check(&Settings::default().capabilities).is_ok() {
            simulate(move |fabric, address| rounds(fabric, address, plan, 70));
        }
    }
}

/// A lane with calls in flight takes no more, and ends when the last of them has ended and its result was
/// collected.
#[test]
fn a_lane_with_calls_in_flight_ends_after_them() {
    simulate(|fabric, address| {
        let server = serve(fabric, address);
        let mut connection = Connection::new(fabric, address, by_name("Server-reply", CompletionMode::Busy));
        let (stays, _) = connection.open();
        let (closed, _) = connection.open();
        let slow = connection.submit(closed, POOL, &[200]);
        let fast = connection.submit(closed, ECHO, b"fast");
        connection.core.close_lane(closed);
        // A second time has no effect.
        connection.core.close_lane(closed);
        assert!(!connection.core.is_usable(closed));
        let refused = connection.core.with_lane(closed, |cx, lane| lane.submit(cx, ECHO, b"late", 0));
        let SubmitError::Call(refused) = refused.unwrap_err() else { panic!("another error") };
        assert_eq!(refused, CallError::NotExecuted(Cause::Closed));
        connection.finish(fast, b"fast");
        for _ in 0..10 {
            connection.step();
            assert_eq!(connection.core.advance_closing(), 1);
        }
        while !connection.core.is_done(slow) {
            connection.step();
        }
        // The result is still there after both ends are gone.
        for _ in 0..30_000 {
            connection.step();
        }
        assert_eq!(server.clients()[0].lanes, 1);
        assert_eq!(connection.core.advance_closing(), 1);
        assert_eq!(connection.core.outcome(slow).unwrap(), [200]);
        connection.core.forget(slow);
        assert_eq!(connection.core.advance_closing(), 0);
        assert!(connection.core.lane(closed).is_none());
        let id = connection.submit(stays, ECHO, b"on");
        connection.finish(id, b"on");
        connection.core.close();
        server.shutdown(Duration::from_secs(1));
    });
}

/// A lane whose connection ends while it is being closed is removed, and its calls have an outcome.
#[test]
fn a_lane_whose_connection_ends_while_it_is_closed_is_removed() {
    let (fabric, address) = unique("ends");
    let server = serve(&fabric, &address);
    let plan = by_name("Direct-WriteIMM", CompletionMode::Event);
    let mut connection = Connection::new(&fabric, &address, plan);
    let (index, _) = connection.open();
    let id = connection.submit(index, POOL, &[255]);
    connection.core.close_lane(index);
    connection.greeting.link.close();
    while !connection.core.is_done(id) {
        connection.step();
    }
    let outcome = connection.core.outcome(id);
    assert!(matches!(outcome, Ok([255]) | Err(CallError::MaybeExecuted(Cause::Closed))), "{outcome:?}");
    connection.core.forget(id);
    connection.wait_closed();
    assert!(connection.core.lane(index).is_none());
    server.shutdown(Duration::from_secs(1));
}

/// A lane that another one has replaced, as after a broken queue pair of the same connection, ends with its last call.
/// Its server counts it until then.
#[test]
fn a_replaced_lane_ends_with_its_last_call() {
    Sim::run(3, |fabric| {
        let address = Address::new(Scheme::Sim, "replaced").unwrap();
        let server = serve(&fabric, &address);
        let mut connection =
            Connection::new(&fabric, &address, by_name("Direct-WriteIMM", CompletionMode::Event));
        let (lane, _) = connection.open();
        let call = connection.submit(lane, POOL, &[200; 10]);
        connection.core.retire(lane);
        assert!(connection.core.lane(lane).is_some_and(|lane| lane.broken.is_none()));
        connection.finish(call, &[200; 10]);
        let is_closed = (0..1000).any(|_| {
            connection.step();
            connection.core.is_spent(lane)
        });
        assert!(is_closed, "nobody uses it, and it stands");
        server.shutdown(Duration::from_secs(1));
    })
    .unwrap();
}
