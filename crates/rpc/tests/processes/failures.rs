//! Process deaths, and the outcomes that peers observe.

#![allow(missing_docs, clippy::disallowed_methods, clippy::disallowed_types)]

use crate::common::process::{NEVER, Process, SLOW, ServerProcess, add_role, ready};
use crate::common::raw::{RawClient, call};
use crate::common::*;
use dunlin_rpc::*;
use dunlin_wire::{Header, Kind, LINE};
use std::time::Duration;

tests!(
    a_killed_server_ends_every_call,
    a_client_killed_within_a_message_harms_nobody,
    clients_killed_with_calls_in_flight_harm_nobody,
);

/// Adds the roles of this file.
pub(crate) fn add_roles() {
    add_role("half-writer", half_writer);
    add_role("caller", caller);
}

fn a_killed_server_ends_every_call() {
    let fabric = fabric();
    for (name, plan) in plans(&fabric, &MODES) {
        println!("  {name}");
        let mut server = ServerProcess::start("workers=2");
        // Without a timeout no deadline ends these calls.
        let config = ClientConfig { timeout: Duration::MAX, window: 16, ..ClientConfig::with_plan(plan) };
        let mut client = Client::connect(&fabric, &server.address, config).unwrap();
        let mut posted = Vec::new();
        for worker in 0..2 {
            for size in [10, 1000, 10_000] {
                posted.push(client.submit_on(worker, NEVER, &pattern(size, 1)).unwrap());
                posted.push(client.submit_on(worker, SLOW, &vec![255; size]).unwrap());
            }
        }
        // A call of a batch that is never sent.
        let unposted = client.push_on(0, ECHO, b"").unwrap();
        // An answer on this lane means that the earlier calls have arrived. A call on the first worker would
        // send the batch.
        let last = client.submit_on(1, ECHO, b"x").unwrap();
        assert_eq!(*client.wait_sent(last), *b"x", "{name}");
        server.kill();
        until("every call has ended", || {
            client.progress();
            posted.iter().all(|id| client.is_done(*id))
        });
        for id in posted {
            let outcome = client.outcome(id).map(<[u8]>::len);
            assert_eq!(outcome, Err(CallError::MaybeExecuted(Cause::ConnectionLost)), "{name}");
            client.forget(id);
        }
        let outcome = client.outcome(unposted).map(<[u8]>::len);
        assert_eq!(outcome, Err(CallError::NotExecuted(Cause::ConnectionLost)), "{name}");
        client.forget(unposted);
        let refused = client.call(ECHO, b"too late").unwrap_err();
        assert_eq!(refused, CallError::NotExecuted(Cause::Disconnected), "{name}");
    }
}

/// Waits for a call without sending open batches, which `Client::wait` would do.
trait WaitSent {
    fn wait_sent(&mut self, id: CallId) -> Vec<u8>;
}

impl<F: dunlin_fabric::Fabric> WaitSent for Client<F> {
    fn wait_sent(&mut self, id: CallId) -> Vec<u8> {
        until("the call is done", || {
            self.progress();
            self.is_done(id)
        });
        let result = self.outcome(id).unwrap().to_vec();
        self.forget(id);
        result
    }
}

/// Writes the first line of a long message and nothing after it.
fn half_writer(arguments: &str) {
    let (address, immediate) = arguments.split_once(' ').unwrap();
    let plan =
        if immediate == "true" { any_plan() } else { Plan::new(RequestHalf::Write, ResponseHalf::Write) };
    let mut raw = RawClient::connect(&fabric(), &address.parse().unwrap(), plan);
    raw.assert_goes_on(call(0, 1));
    let header = Header { code: ECHO, call: call(1, 1), ..Header::new(Kind::Request) };
    let bytes = raw.message(&header, &pattern(4000, 2));
    raw.put_told(raw.position, &bytes[..LINE]);
    raw.poll();
    ready();
    loop {
        std::thread::park();
    }
}

fn a_client_killed_within_a_message_harms_nobody() {
    let (fabric, server) = (fabric(), ServerProcess::start(""));
    let mut before = server.executed(&fabric);
    for immediate in [false, true] {
        for _ in 0..4 {
            let mut client = Process::start("half-writer", &format!("{} {immediate}", server.address));
            server.assert_serves(&fabric);
            client.kill();
            server.assert_serves(&fabric);
            let served = 2 * assert_serves_calls(&fabric);
            assert_eq!(server.executed(&fabric) - before, served + 1, "half a message is not executed");
            before = server.executed(&fabric);
        }
    }
}

/// Returns the number of calls that one `assert_serves` makes.
fn assert_serves_calls(fabric: &dunlin_fabric_shm::ShmFabric) -> u64 {
    4 * plans(fabric, &[CompletionMode::Busy, CompletionMode::Event]).len() as u64
}

/// Makes calls until it is killed, with two threads' clients by turns.
fn caller(arguments: &str) {
    let [address, protocol, sharing] = arguments.split(' ').collect::<Vec<_>>()[..] else {
        panic!("{arguments}")
    };
    let sharing = Sharing::ALL.into_iter().find(|known| known.name() == sharing).unwrap();
    let plan = Plan { sharing, ..Protocol::by_name(protocol).unwrap().plan(CompletionMode::Busy) };
    let (fabric, config) = (fabric(), ClientConfig { max_queue_pairs: 1, ..ClientConfig::with_plan(plan) });
    let first = Client::connect(&fabric, &address.parse().unwrap(), config).unwrap();
    let mut clients = [first.another().unwrap(), first];
    ready();
    for i in 0u64.. {
        let client = &mut clients[i as usize / 4 % 2];
        let function = [ECHO, SLOW, ECHO, NEVER][i as usize % 4];
        let payload = pattern([8, 300, 20_000][i as usize % 3], i);
        if client.submit_on(0, function, &payload).is_err() {
            client.progress();
            while let Some(id) = client.next_done() {
                client.forget(id);
            }
        }
    }
}

fn clients_killed_with_calls_in_flight_harm_nobody() {
    let (fabric, server) = (fabric(), ServerProcess::start("max_waiting=2000"));
    for (round, sharing) in [(0, Sharing::Dedicated), (1, Sharing::Combined), (2, Sharing::Combined)] {
        for protocol in PROTOCOLS {
            let arguments = format!("{} {} {}", server.address, protocol.name, sharing.name());
            let mut client = Process::start("caller", &arguments);
            std::thread::sleep(std::time::Duration::from_millis(5 + 7 * round));
            client.kill();
        }
        let mut client = server.client(&fabric, any_plan());
        for _ in 0..100 {
            assert_eq!(*client.call(ECHO, b"still here").unwrap(), *b"still here");
        }
    }
}
