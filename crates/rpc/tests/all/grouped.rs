//! Golden counts of a lane under leases that end: a request that is announced, and one that is written into a zone.

#![allow(missing_docs, clippy::disallowed_methods, clippy::disallowed_types)]

use crate::common::turns::Turns;
use crate::common::*;
use dunlin_rpc::*;

fn leased() -> ClientConfig {
    let plan = Protocol::by_name("Server-reply").unwrap().plan(CompletionMode::Busy);
    with_plan(plan.shared(Sharing::Dedicated, Lease::Slice))
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
        let plan = Protocol::by_name("Server-reply").unwrap().plan(CompletionMode::Busy);
        let counts = [leased(), with_plan(plan)].map(|config| {
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
        let [leased, kept] = counts;
        assert_eq!(leased, kept);
    });
}
