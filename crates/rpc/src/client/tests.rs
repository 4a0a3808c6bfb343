//! The bytes that a client sends, as a server without the engine sees them.

#![allow(clippy::disallowed_methods, reason = "a test has threads of its own")]

use super::config::ClientConfig;
use super::core::Core;
use super::within::Time;
use crate::client::establish::{PreparedLane, greet, negotiate};
use crate::path::call_id::CallEnds;
use crate::path::{CONTROL_BYTES, MAX_MESSAGE};
use crate::plan::{CompletionMode, LargePayload, Protocol};
use dunlin_fabric::{
    Access, Address, Endpoint, Fabric, Host, Link, Listener, QueuePairConfig, Region, Scheme, ThreadDomain,
};
use dunlin_fabric_shm::{ShmConfig, ShmFabric};
use dunlin_wire::handshake::{Extensions, HelloReply, LaneReady, MAX_VERSION, OpenLane, Record, Secret};
use dunlin_wire::{Entry, Message, parse_line};
use std::sync::mpsc::{Receiver, channel};

const RING: u32 = 16 * 1024;
const SECOND: u64 = 1_000_000_000;

/// Accepts one client with one lane. When the client has sent its messages, returns function and thread of all
/// their calls.
fn serve(fabric: &ShmFabric, address: &Address, sent: &Receiver<()>) -> (OpenLane, Vec<(u16, u16)>) {
    let until = || fabric.host().now() + 60 * SECOND;
    let link = fabric.listen(address).unwrap().accept(until()).unwrap();
    let receive = || Record::decode(&link.receive(until()).unwrap()).unwrap();
    let send = |record: Record| link.send(&record.encode().unwrap()).unwrap();
    assert!(matches!(receive(), Record::Hello(_)));
    send(Record::HelloReply(HelloReply {
        version: MAX_VERSION,
        capabilities: 0,
        workers: 1,
        functions: 1,
        max_payload: 1 << 20,
        session: 1,
        extensions: Extensions::default(),
    }));
    let Record::OpenLane(open) = receive() else { panic!("no lane") };
    let mut domain = fabric.domain().unwrap();
    let queue = domain.create_completion_queue(64, false).unwrap();
    let queue_pair = domain.create_queue_pair(&QueuePairConfig::reliable(queue, queue)).unwrap();
    let length = CONTROL_BYTES as u64 + u64::from(RING);
    let region = Region::new(fabric.register(length, Access::WRITE).unwrap());
    let key = link.grant(region.memory(), Access::WRITE).unwrap();
    let endpoint = domain.endpoint(queue_pair, &link).unwrap().0;
    domain.connect(queue_pair, &link, &Endpoint(open.endpoint.clone())).unwrap();
    send(Record::LaneReady(LaneReady {
        lane: open.lane,
        worker: 0,
        window: open.window,
        max_batch_entries: u16::MAX,
        ring_bytes: RING,
        max_message_bytes: MAX_MESSAGE as u32,
        secret: Secret([1; 16]),
        endpoint,
        unreliable_endpoint: Vec::new(),
        datagram_endpoint: Vec::new(),
        place: 0,
        region_keys: vec![key.0, 0],
        extensions: Extensions::default(),
    }));
    sent.recv().unwrap();
    let (mut at, mut calls) = (CONTROL_BYTES, Vec::new());
    while region.load(at) != 0 {
        let first = parse_line(&region.line_out(at), MAX_MESSAGE).unwrap();
        let mut bytes = vec![0; first.total()];
        region.copy_out(at, &mut bytes);
        let message = Message::parse(&bytes, MAX_MESSAGE).unwrap();
        calls.extend(message.entries().map(|entry: Entry<'_>| (entry.function_or_status, entry.thread)));
        at += bytes.len();
    }
    (open, calls)
}

/// A call names the thread that makes it, and slot 0 without one, whether it leaves alone, in a batch, or with a
/// large payload that travels apart.
#[test]
fn a_call_names_its_thread() {
    for large in [LargePayload::Read, LargePayload::Eager, LargePayload::Pipelined] {
        let fabric = ShmFabric::new(ShmConfig::default()).unwrap();
        let name = format!("threads-{}-{:x}", std::process::id(), fabric.host().random());
        let address = Address::new(Scheme::Shm, &name).unwrap();
        let (tell, told) = channel();
        let serving = {
            let (fabric, address) = (fabric.clone(), address.clone());
            std::thread::spawn(move || serve(&fabric, &address, &told))
        };
        let plan = Protocol::by_name("Server-reply").unwrap().plan(CompletionMode::Busy).large(large, 100);
        let config = ClientConfig::with_plan(plan).resolved(&fabric);
        let tuners = config.tuners(&fabric);
        let mut core = Core::new(&fabric, config.mode()).unwrap();
        let until = fabric.host().now() + 60 * SECOND;
        let greeting = loop {
            // Until the server listens.
            match greet(&fabric, &address, &config, until) {
                Ok(greeting) => break greeting,
                Err(_) => fabric.host().sleep(fabric.host().now() + SECOND / 1000),
            }
        };
        let prepared = PreparedLane::new(&mut core, &greeting, &config, plan, 0, 0).unwrap();
        let ready = negotiate(&greeting, std::slice::from_ref(&prepared), until).unwrap();
        let lane = core.install(&greeting, &config, vec![prepared], &ready, &tuners).unwrap()[0];
        let time = Time { nanos: 0, is_own: false };
        let sent = core.with_lane(lane, |cx, lane| {
            let from = |function, thread| CallEnds { function, thread };
            lane.submit(cx, from(1, 7), b"short", 0)?;
            lane.submit(cx, 2, b"short", 0)?;
            lane.submit(cx, from(3, u16::MAX), &[1; 90], 0)?;
            for thread in [9, 256, 0] {
                lane.push(cx, from(4, thread), b"entry", time)?;
            }
            lane.push(cx, 5, b"entry", time)?;
            // A large payload leaves alone.
            lane.push(cx, from(6, 11), &[1; 3000], time)?;
            lane.submit(cx, from(7, 12), &[1; 100_000], 0)
        });
        assert!(sent.is_ok(), "{}", large.name());
        tell.send(()).unwrap();
        let (open, calls) = serving.join().unwrap();
        assert_eq!((open.sharing, open.lease), (plan.sharing as u8, plan.lease as u8));
        let expected = [(1, 7), (2, 0), (3, u16::MAX), (4, 9), (4, 256), (4, 0), (5, 0), (6, 11), (7, 12)];
        assert_eq!(calls, expected, "{}", large.name());
    }
}
