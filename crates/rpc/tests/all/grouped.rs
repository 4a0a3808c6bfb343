//! Golden counts of a lane under leases that end: a request that is announced (WARMUP), one that is written into a zone
//! (PROCESS), and the switch between groups.

#![allow(missing_docs, clippy::disallowed_methods, clippy::disallowed_types)]

use crate::common::turns::{Turns, echo};
use crate::common::*;
use dunlin_fabric::interpose::{Count, CountSnapshot};
use dunlin_fabric::{Address, Fabric, Host, Scheme};
use dunlin_fabric_sim::{Settings, Sim};
use dunlin_rpc::*;
use std::sync::{Arc, Mutex};
use std::time::Duration;

fn leased() -> ClientConfig {
    leased_as("Server-reply", CompletionMode::Busy)
}

fn leased_as(protocol: &str, server: CompletionMode) -> ClientConfig {
    let plan = Protocol::by_name(protocol).unwrap().plan(CompletionMode::Busy);
    with_plan(plan.completion(CompletionMode::Busy, server).shared(Sharing::Dedicated, Lease::Slice))
}

/// The first call is announced: one word of 8 bytes, one READ by the server, one answer.
#[test]
fn an_announced_call_costs_a_word_and_a_read() {
    bounded(|| {
        let mut pair = Turns::new(leased(), |_| ());
        let before = pair.counts();
        pair.calls(1);
        pair.settle();
        let [client, server] = pair.counts();
        let (client, server) = (client - before[0], server - before[1]);
        assert_eq!((client.posted_write, client.bytes_posted, client.doorbells), (1, 8, 1));
        assert_eq!((server.posted_read, server.posted_write, server.doorbells), (1, 1, 2));
        assert_eq!((server.completed_read, server.bytes_posted), (1, 64 + 64));
    });
}

/// A word that wakes a server takes a RECV; one for a server that is busy does not.
#[test]
fn a_word_has_immediate_data_if_the_server_may_sleep() {
    bounded(|| {
        for (mode, (plain, with_immediate)) in
            [(CompletionMode::Event, (0, 1)), (CompletionMode::Busy, (1, 0))]
        {
            let mut pair = Turns::new(leased_as("Direct-WriteIMM", mode), |_| ());
            let before = pair.counts();
            pair.calls(1);
            pair.settle();
            let [client, server] = pair.counts();
            let (client, server) = (client - before[0], server - before[1]);
            assert_eq!((client.posted_write, client.posted_write_immediate), (plain, with_immediate));
            assert_eq!((client.bytes_posted, client.doorbells), (8, 1));
            assert_eq!((server.posted_read, server.posted_write_immediate, server.doorbells), (1, 1, 2));
            assert_eq!(
                (server.completed_receive_immediate, server.posted_receive),
                (with_immediate, with_immediate)
            );
        }
    });
}

/// Several calls that are announced together are READ together.
#[test]
fn announced_calls_are_read_together() {
    bounded(|| {
        let mut pair = Turns::new(leased(), |_| ());
        let before = pair.counts();
        let payloads: Vec<_> = (0..8).map(|number| pattern(32, number)).collect();
        let calls: Vec<_> =
            payloads.iter().map(|payload| pair.client.submit_on(0, ECHO, payload).unwrap()).collect();
        for (call, payload) in calls.into_iter().zip(&payloads) {
            assert_eq!(&pair.end(call).unwrap(), payload);
        }
        pair.settle();
        let [client, server] = pair.counts();
        let (client, server) = (client - before[0], server - before[1]);
        assert_eq!((client.posted_write, client.bytes_posted), (8, 8 * 8));
        assert_eq!((server.posted_read, server.posted_write, server.completed_read), (1, 8, 1));
    });
}

/// Under a lease a call costs the same as on a lane that keeps its ring.
#[test]
fn a_call_under_a_lease_costs_two_writes() {
    bounded(|| {
        for protocol in ["Server-reply", "Direct-WriteIMM"] {
            let plan = Protocol::by_name(protocol).unwrap().plan(CompletionMode::Busy);
            let leased = leased_as(protocol, CompletionMode::Busy);
            let [leased, kept] = [leased, with_plan(plan)].map(|config| {
                let mut pair = Turns::new(config, |_| ());
                pair.calls(256);
                pair.settle();
                let before = pair.counts();
                pair.calls(1024);
                pair.settle();
                let [client, server] = pair.counts();
                let count = |side: dunlin_fabric::interpose::CountSnapshot| {
                    let polls = ["polls", "empty_polls", "waits_busy", "waits_event"];
                    side.fields().filter(|(name, _)| !polls.contains(name)).collect::<Vec<_>>()
                };
                [count(client - before[0]), count(server - before[1])]
            });
            assert_eq!(leased, kept, "{protocol}");
        }
    });
}

/// A function whose calls nobody answers.
const KEPT: u16 = ECHO + 1;
/// A slice, in nanoseconds.
const SLICE: u64 = 100_000;

/// Two clients in groups of one, and their worker, which alternate on one task in virtual time.
struct TwoGroups {
    first: Client<Count<Sim>>,
    /// The client of the other group, which makes no calls.
    _second: Client<Count<Sim>>,
    worker: Worker<Count<Sim>>,
    /// Serves until it is dropped.
    _server: Server<Count<Sim>>,
    /// The first client's fabric and the server's.
    fabrics: [Count<Sim>; 2],
}

/// Connects a client while the worker runs.
fn connect(fabric: &Count<Sim>, address: &Address, worker: &mut Worker<Count<Sim>>) -> Client<Count<Sim>> {
    let connected = Arc::new(Mutex::new(None));
    let (put, of, to) = (Arc::clone(&connected), fabric.clone(), address.clone());
    let body = move || *put.lock().unwrap() = Some(Client::connect(&of, &to, leased()).unwrap());
    let task = fabric.host().spawn("connecting", Box::new(body)).unwrap();
    loop {
        worker.progress();
        fabric.host().sleep(fabric.host().now() + 1_000);
        if let Some(client) = connected.lock().unwrap().take() {
            task.join();
            return client;
        }
    }
}

impl TwoGroups {
    /// Runs a test with two clients. The first one has had a lease, and the slice of the second one has just begun.
    fn run(test: impl FnOnce(&mut TwoGroups) + Send + 'static) {
        let settings = Settings { preemption: 0, spurious: 0, ..Settings::default() };
        Sim::run_with(settings, 1, |sim| {
            let fabrics = [Count::new(sim.clone()), Count::new(sim.clone())];
            let group_slice = Some(Duration::from_nanos(SLICE));
            let config = ServerConfig { group_size: Some(1), group_slice, ..ServerConfig::default() };
            let (server, mut workers) = ServerBuilder::new(&fabrics[1])
                .config(config)
                .function(ECHO, FunctionMode::Worker)
                .function(KEPT, FunctionMode::Pull)
                .serve_with(&Address::new(Scheme::Sim, "groups").unwrap(), |_| Box::new(echo))
                .unwrap();
            let mut worker = workers.pop().unwrap();
            let first = connect(&fabrics[0], server.address(), &mut worker);
            let _second = connect(&Count::new(sim), server.address(), &mut worker);
            let mut groups = TwoGroups { first, _second, worker, _server: server, fabrics };
            // A client looks for the end of its lease while it has a call under way.
            groups.first.submit_on(0, KEPT, b"kept").unwrap();
            while !groups.call_and_switch() {}
            test(&mut groups);
        })
        .unwrap();
    }

    fn counts(&self) -> [CountSnapshot; 2] {
        [self.fabrics[0].counts(), self.fabrics[1].counts()]
    }

    /// Returns what `act` costs the client and the server.
    fn cost(&mut self, act: impl FnOnce(&mut Self)) -> [CountSnapshot; 2] {
        let [client, server] = self.counts();
        act(self);
        let [client_after, server_after] = self.counts();
        [client_after - client, server_after - server]
    }

    /// Lets a microsecond pass, and the worker polls.
    fn work(&mut self) {
        let host = self.fabrics[1].host();
        host.sleep(host.now() + 1_000);
        self.worker.progress();
    }

    /// As [`work`](TwoGroups::work), and the client polls. After many polls without an answer it reports its head.
    fn step(&mut self) {
        self.work();
        self.first.progress();
    }

    /// Makes a call.
    fn call(&mut self) {
        let call = self.first.submit_on(0, ECHO, b"a call").unwrap();
        self.until_over(call);
    }

    fn until_over(&mut self, call: CallId) {
        while !self.first.is_done(call) {
            self.step();
        }
        assert_eq!(*self.first.outcome(call).unwrap(), *b"a call");
        self.first.forget(call);
    }

    /// Makes a call, and polls until the server sends a message behind its answer: its lease has ended, and the slice of
    /// the other group has begun. Returns `false` if the call had no lease.
    fn call_and_switch(&mut self) -> bool {
        self.call();
        let answered = self.counts()[1].posted_write;
        for _ in 0..3 * SLICE / 1_000 {
            self.work();
            if self.counts()[1].posted_write > answered {
                (0..SLICE / 8_000).for_each(|_| self.step());
                return true;
            }
        }
        false
    }
}

/// A call for each slice: word, READ and answer; then one message that the lease ends, and the word that it was heard.
#[test]
fn a_switch_without_a_request_costs_a_message_and_a_word() {
    TwoGroups::run(|groups| {
        let [client, server] = groups.cost(|groups| (0..64).for_each(|_| assert!(groups.call_and_switch())));
        // The client reports its head after each quarter of its ring of answers.
        let writes = 2 * 64 + 2;
        assert_eq!(
            (client.posted_write, client.bytes_posted, client.doorbells),
            (writes, writes * 8, writes)
        );
        assert_eq!((server.posted_read, server.posted_write, server.doorbells), (64, 2 * 64, 3 * 64));
        assert_eq!(server.bytes_posted, 64 * (64 + 2 * 64));
    });
}

/// The answer of the last request in the zone tells the end of the lease: the switch costs the client's word only.
#[test]
fn a_switch_with_a_last_request_costs_a_word() {
    TwoGroups::run(|groups| {
        // A lease begins.
        groups.call();
        let [client, server] = groups.cost(|groups| {
            let call = groups.first.submit_on(0, ECHO, b"a call").unwrap();
            let host = groups.fabrics[1].host();
            host.sleep(host.now() + 2 * SLICE);
            groups.until_over(call);
            (0..SLICE / 8_000).for_each(|_| groups.step());
        });
        assert_eq!((client.posted_write, client.bytes_posted, client.doorbells), (2, 64 + 8, 2));
        assert_eq!((server.posted_read, server.posted_write, server.bytes_posted), (0, 1, 64));
    });
}
