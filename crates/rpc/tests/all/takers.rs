//! An application takes calls on the worker, and answers them as other calls ended.

#![allow(missing_docs, clippy::disallowed_methods, clippy::disallowed_types)]

use crate::common::*;
use dunlin_fabric::PeerIdentity;
use dunlin_fabric_shm::ShmFabric;
use dunlin_rpc::*;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Passes calls on to another thread, or panics.
struct Passing(Mutex<Sender<Incoming<ShmFabric>>>);

impl Taker<ShmFabric> for Passing {
    fn take(&self, call: Incoming<ShmFabric>) {
        assert_ne!(call.payload, b"panic", "asked for");
        self.0.lock().unwrap().send(call).unwrap();
    }
}

#[test]
fn a_call_ends_as_another_one_that_is_relayed() {
    let (fabric, (taken, calls)) = (fabric(), channel());
    let taker = Arc::new(Passing(Mutex::new(taken)));
    let server = ServerBuilder::new(&fabric)
        .function(1, FunctionMode::Worker)
        .taken_by(2, Arc::clone(&taker) as _)
        .others_taken_by(taker)
        .serve(&unique("takers"), |_| {
            Box::new(|_: &Request<'_>, reply: &mut Reply<'_>| Ok(reply.write(b"the worker")?))
        })
        .unwrap();
    let mut client = Client::connect(&fabric, server.address(), ClientConfig::default()).unwrap();
    assert_eq!(&client.call(1, b"").unwrap()[..], b"the worker", "declared functions stay");
    use CallError::{Executed, MaybeExecuted, NotExecuted};
    let application = |code| CallError::Application { code, payload: b"why".to_vec() };
    let refused = |status| NotExecuted(Cause::Refused(status));
    let cases = [
        (Ok(b"a result".to_vec()), Ok(b"a result".to_vec())),
        (Ok(vec![7; 100_000]), Ok(vec![7; 100_000])),
        (Err(application(9)), Err(application(9))),
        (Err(Executed(Cause::HandlerPanicked)), Err(Executed(Cause::HandlerPanicked))),
        (Err(Executed(Cause::ResultTooLarge)), Err(Executed(Cause::ResultTooLarge))),
        (Err(Executed(Cause::ConnectionLost)), Err(Executed(Cause::HandlerPanicked))),
        (Err(Executed(Cause::DeadlineExceeded)), Err(Executed(Cause::DeadlineExceeded))),
        (Err(MaybeExecuted(Cause::ConnectionLost)), Err(MaybeExecuted(Cause::Dropped))),
        (Err(MaybeExecuted(Cause::DeadlineExceeded)), Err(MaybeExecuted(Cause::DeadlineExceeded))),
        (Err(NotExecuted(Cause::DeadlineExceeded)), Err(NotExecuted(Cause::DeadlineExceeded))),
        (Err(NotExecuted(Cause::Disconnected)), Err(refused(Status::Unreachable))),
        (Err(NotExecuted(Cause::Draining)), Err(refused(Status::Draining))),
        (Err(NotExecuted(Cause::WindowFull)), Err(refused(Status::Overloaded))),
        (Err(refused(Status::UnknownFunction)), Err(refused(Status::UnknownFunction))),
        (Err(refused(Status::TooLarge)), Err(refused(Status::Malformed))),
    ];
    for (function, (relayed, expected)) in (2..).zip(cases) {
        std::thread::scope(|scope| {
            let calling = scope.spawn(|| client.call(function, b"request").map(|answer| answer.to_vec()));
            let call = calls.recv_timeout(Duration::from_secs(60)).unwrap();
            assert_eq!((call.function, &call.payload[..]), (function, &b"request"[..]));
            call.relay(relayed.clone());
            assert_eq!(calling.join().unwrap(), expected, "{relayed:?}");
        });
    }
    // A taker that panics drops the call, and the worker goes on.
    assert_eq!(client.call(2, b"panic").unwrap_err(), MaybeExecuted(Cause::Dropped));
    assert_eq!(&client.call(1, b"").unwrap()[..], b"the worker");
}

#[test]
fn a_client_tells_servers_apart_by_their_process() {
    let fabric = fabric();
    let server = ServerBuilder::new(&fabric)
        .function(1, FunctionMode::Worker)
        .serve(&unique("whose"), |_| Box::new(|_: &Request<'_>, _: &mut Reply<'_>| Ok(())))
        .unwrap();
    let own =
        PeerIdentity { process: Some(std::process::id()), user: Some(rustix::process::geteuid().as_raw()) };
    let connect = |server_process| {
        let config = ClientConfig { server: Some(server_process), ..ClientConfig::default() };
        Client::connect(&fabric, server.address(), config)
    };
    connect(own.clone()).unwrap().call(1, b"").map(drop).unwrap();
    let other = PeerIdentity { process: Some(1), ..own.clone() };
    let error = connect(other.clone()).unwrap_err();
    let is_other =
        matches!(&error, ConnectError::OtherProcess { expected, peer } if *expected == other && *peer == own);
    assert!(is_other, "{error:?}");
}
