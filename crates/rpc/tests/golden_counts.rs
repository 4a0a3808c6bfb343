//! What a call costs at the fabric, for every protocol, against a table: work requests by operation, doorbells, RECVs,
//! completions by opcode. A change that makes a call cost more, or less, shows here before it shows as time.
//!
//! First client and worker take turns on one thread, so that the counts are exact, those of READs that look for a result
//! included: the worker has answered before the client looks. Then each has a thread of its own, and the few counts that
//! depend on who was faster may be larger.

#![allow(missing_docs, clippy::disallowed_methods, clippy::disallowed_types)]

mod common;

use common::turns::{self, Turns};
use common::*;
use dunlin_fabric::interpose::{Count, CountSnapshot};
use dunlin_rpc::*;
use std::collections::BTreeMap;

/// Calls of each protocol that are counted. A multiple of all that is done only now and then.
const CALLS: u64 = 1024;
/// Calls before them.
const WARM_UP: u64 = 256;

/// Counts by name.
type Row = [(&'static str, u64)];

/// Counts of [`CALLS`] calls of 32 bytes; what is not named here is zero.
struct Golden {
    protocol: &'static str,
    client: &'static Row,
    server: &'static Row,
}

/// What comes 16 times: one post in 64 is signaled, and where answers have a ring, the client reports every quarter of
/// it (64 lines) how far it is, by a WRITE of 8 bytes.
const GOLDEN: &[Golden] = &[
    Golden {
        protocol: "Server-reply",
        client: &[
            ("posted_write", 1024 + 16),
            ("posted_signaled", 16),
            ("posted_inline", 1024 + 16),
            ("doorbells", 1024 + 16),
            ("bytes_posted", 1024 * 64 + 16 * 8),
            ("completed_write", 16),
        ],
        server: &[
            ("posted_write", 1024),
            ("posted_signaled", 16),
            ("posted_inline", 1024),
            ("doorbells", 1024),
            ("bytes_posted", 1024 * 64),
            ("completed_write", 16),
        ],
    },
    // One READ of 256 bytes for each result, less at the ring's end, which comes four times; the server posts nothing.
    Golden { protocol: "Remote-fetch", client: FETCHING, server: &[] },
    Golden { protocol: "RF-RPC", client: FETCHING, server: &[] },
    // Metadata first: lines of 64 bytes; then the result, by its length.
    Golden { protocol: "Pilaf", client: &fetching_after(2), server: &[] },
    Golden { protocol: "FaRM", client: &fetching_after(1), server: &[] },
    Golden {
        protocol: "Direct-WriteIMM",
        client: &[
            ("posted_write", 16),
            ("posted_write_immediate", 1024),
            ("posted_signaled", 16),
            ("posted_inline", 1024 + 16),
            ("doorbells", 1024 + 16),
            ("posted_receive", 1024),
            ("bytes_posted", 1024 * 64 + 16 * 8),
            ("completed_write", 16),
            ("completed_receive_immediate", 1024),
        ],
        server: &[
            ("posted_write_immediate", 1024),
            ("posted_signaled", 16),
            ("posted_inline", 1024),
            ("doorbells", 1024),
            ("posted_receive", 1024),
            ("bytes_posted", 1024 * 64),
            ("completed_write", 16),
            ("completed_receive_immediate", 1024),
        ],
    },
    // Each message is two work requests, of which again one in 64 is signaled: with two doorbells, and with one.
    Golden {
        protocol: "Direct-Write-Send",
        client: &[
            ("posted_send", 1024),
            ("posted_write", 1024 + 16),
            ("posted_signaled", 32),
            ("posted_inline", 2 * 1024 + 16),
            ("doorbells", 2 * 1024 + 16),
            ("posted_receive", 1024),
            ("bytes_posted", 1024 * 64 + 16 * 8),
            ("completed_send", 32),
            ("completed_receive", 1024),
        ],
        server: &[
            ("posted_send", 1024),
            ("posted_write", 1024),
            ("posted_signaled", 32),
            ("posted_inline", 2 * 1024),
            ("doorbells", 2 * 1024),
            ("posted_receive", 1024),
            ("bytes_posted", 1024 * 64),
            ("completed_send", 32),
            ("completed_receive", 1024),
        ],
    },
    Golden {
        protocol: "Chained-Write-Send",
        client: &[
            ("posted_send", 1024),
            ("posted_write", 1024 + 16),
            ("posted_signaled", 32),
            ("posted_inline", 2 * 1024 + 16),
            ("doorbells", 1024 + 16),
            ("posted_receive", 1024),
            ("bytes_posted", 1024 * 64 + 16 * 8),
            ("completed_send", 32),
            ("completed_receive", 1024),
        ],
        server: &[
            ("posted_send", 1024),
            ("posted_write", 1024),
            ("posted_signaled", 32),
            ("posted_inline", 2 * 1024),
            ("doorbells", 1024),
            ("posted_receive", 1024),
            ("bytes_posted", 1024 * 64),
            ("completed_send", 32),
            ("completed_receive", 1024),
        ],
    },
    Golden { protocol: "Eager-SendRecv", client: SEND_AND_RECEIVE, server: SEND_AND_RECEIVE },
    Golden { protocol: "Hybrid-EagerRNDV", client: SEND_AND_RECEIVE, server: SEND_AND_RECEIVE },
    Golden { protocol: "AR-gRPC", client: SEND_AND_RECEIVE, server: SEND_AND_RECEIVE },
    // Three messages for each payload, of which who has it sends two, and a WRITE, which is always signaled.
    Golden { protocol: "Write-RNDV", client: WRITE_RENDEZVOUS, server: WRITE_RENDEZVOUS },
    // Each payload is READ by who gets it, and the client tells with a SEND of its own that it has the result.
    Golden {
        protocol: "Read-RNDV",
        client: &[
            ("posted_send", 2 * 1024),
            ("posted_read", 1024),
            ("posted_signaled", 1024 + 32),
            ("posted_inline", 2 * 1024),
            ("doorbells", 3 * 1024),
            ("posted_receive", 1024),
            ("bytes_posted", 1024 * (2 * 64 + 32)),
            ("bytes_received", 1024 * 64),
            ("completed_send", 32),
            ("completed_read", 1024),
            ("completed_receive", 1024),
        ],
        server: &[
            ("posted_send", 1024),
            ("posted_read", 1024),
            ("posted_signaled", 1024 + 16),
            ("posted_inline", 1024),
            ("doorbells", 2 * 1024),
            ("posted_receive", 2 * 1024),
            ("bytes_posted", 1024 * (64 + 32)),
            ("bytes_received", 2 * 1024 * 64),
            ("completed_send", 16),
            ("completed_read", 1024),
            ("completed_receive", 2 * 1024),
        ],
    },
    // Requests are WRITEs over the unreliable connection; as no answer is sure to come, the server reports every quarter of the
    // ring, over the reliable connection, where each post is signaled.
    Golden {
        protocol: "HERD",
        client: &[
            ("posted_write", 1024),
            ("posted_signaled", 16),
            ("posted_inline", 1024),
            ("doorbells", 1024),
            ("posted_receive", 1024),
            ("bytes_posted", 1024 * 64),
            ("bytes_received", 1024 * 64),
            ("completed_write", 16),
            ("completed_receive", 1024),
        ],
        server: &[
            ("posted_send", 1024),
            ("posted_write", 16),
            ("posted_signaled", 16 + 16),
            ("posted_inline", 1024 + 16),
            ("doorbells", 1024 + 16),
            ("bytes_posted", 1024 * 64 + 16 * 8),
            ("completed_send", 16),
            ("completed_write", 16),
        ],
    },
    // As by SEND, but that the server signals one post in 64 of all clients together.
    Golden {
        protocol: "FaSST",
        client: SEND_AND_RECEIVE,
        server: &[
            ("posted_send", 1024),
            ("posted_signaled", 16),
            ("posted_inline", 1024),
            ("doorbells", 1024),
            ("posted_receive", 1024),
            ("bytes_posted", 1024 * 64),
            ("bytes_received", 1024 * 64),
            ("completed_send", 16),
            ("completed_receive", 1024),
        ],
    },
];

/// What a client does that READs its result after so many READs of metadata.
const fn fetching_after(metadata: u64) -> [(&'static str, u64); 8] {
    let reads = 1024 * (1 + metadata);
    [
        ("posted_write", 1024 + 16),
        ("posted_read", reads),
        ("posted_signaled", reads + 16),
        ("posted_inline", 1024 + 16),
        ("doorbells", 1024 + reads + 16),
        ("bytes_posted", 1024 * 64 + reads * 64 + 16 * 8),
        ("completed_write", 16),
        ("completed_read", reads),
    ]
}

const WRITE_RENDEZVOUS: &Row = &[
    ("posted_send", 3 * 1024),
    ("posted_write", 1024),
    ("posted_signaled", 1024),
    ("posted_inline", 3 * 1024),
    ("doorbells", 4 * 1024),
    ("posted_receive", 3 * 1024),
    ("bytes_posted", 1024 * (3 * 64 + 32)),
    ("bytes_received", 1024 * 3 * 64),
    ("completed_write", 1024),
    ("completed_receive", 3 * 1024),
];

const SEND_AND_RECEIVE: &Row = &[
    ("posted_send", 1024),
    ("posted_signaled", 16),
    ("posted_inline", 1024),
    ("doorbells", 1024),
    ("posted_receive", 1024),
    ("bytes_posted", 1024 * 64),
    ("bytes_received", 1024 * 64),
    ("completed_send", 16),
    ("completed_receive", 1024),
];

/// How often who waits looks is no part of the protocol.
const NOT_COMPARED: [&str; 4] = ["polls", "empty_polls", "waits_busy", "waits_event"];

/// A line for each count that is not as in the table, or within what `may_exceed` it.
fn differences(counted: &CountSnapshot, golden: &Row, may_exceed: &Row) -> Vec<String> {
    let mut golden: BTreeMap<_, _> = golden.iter().copied().collect();
    let mut differences = Vec::new();
    for (name, count) in counted.fields().filter(|(name, _)| !NOT_COMPARED.contains(name)) {
        let least = golden.remove(name).unwrap_or(0);
        let more = may_exceed.iter().find(|(other, _)| *other == name).map_or(0, |(_, more)| *more);
        let most = least.saturating_add(more);
        if count < least || count > most {
            let expected = if more == 0 { format!("{least}") } else { format!("{least} to {most}") };
            differences.push(format!("{name:<28} {count:>6} instead of {expected}"));
        }
    }
    differences.extend(golden.keys().map(|name| format!("{name}: there is no such count")));
    differences
}

fn measure(plan: Plan) -> [CountSnapshot; 2] {
    let mut pair = Turns::new(with_plan(plan), |_| ());
    pair.calls(WARM_UP);
    pair.settle();
    let [client, server] = pair.counts();
    pair.calls(CALLS);
    pair.settle();
    let [client_after, server_after] = pair.counts();
    [client_after - client, server_after - server]
}

fn received(side: &CountSnapshot) -> u64 {
    side.completed_receive + side.completed_receive_immediate
}

/// RECVs that wait for a message.
fn receives_waiting(side: &CountSnapshot) -> u64 {
    side.posted_receive - received(side)
}

/// Since the start, all that completes has completed, and each message has been taken from its queue.
fn nothing_under_way(counts: &[CountSnapshot; 2]) -> bool {
    let sent = |side: &CountSnapshot| side.posted_send + side.posted_write_immediate;
    let completed = |side: &CountSnapshot| side.completions() - received(side);
    counts.iter().all(|side| side.posted_signaled == completed(side))
        && received(&counts[1]) == sent(&counts[0])
        && received(&counts[0]) == sent(&counts[1])
}

/// As [`measure`], with plain calls, and the worker on a thread of its own.
fn measure_apart(plan: Plan) -> [CountSnapshot; 2] {
    let fabrics = [Count::new(fabric()), Count::new(fabric())];
    let server = ServerBuilder::new(&fabrics[1])
        .function(ECHO, FunctionMode::Worker)
        .serve(&unique("golden"), |_| Box::new(turns::echo))
        .unwrap();
    let mut client = Client::connect(&fabrics[0], server.address(), with_plan(plan)).unwrap();
    let receives = [&fabrics[0], &fabrics[1]].map(|fabric| receives_waiting(&fabric.counts()));
    let mut calls = |count| {
        for number in 0..count {
            let payload = pattern(32, number);
            assert_eq!(*client.call_on(0, ECHO, &payload).unwrap(), *payload);
        }
        // Some of what a call costs comes after its answer; so does the count of the answer's own post, which the worker
        // has behind it once it has polled twice more.
        let answered = fabrics[1].counts().polls;
        let mut settled = [&fabrics[0], &fabrics[1]].map(Count::counts);
        until("nothing is under way", || {
            client.progress();
            settled = [&fabrics[0], &fabrics[1]].map(Count::counts);
            settled[1].polls >= answered + 2
                && nothing_under_way(&settled)
                && settled.each_ref().map(receives_waiting) == receives
        });
        settled
    };
    let [client, server] = calls(WARM_UP);
    let [client_after, server_after] = calls(CALLS);
    [client_after - client, server_after - server]
}

/// What client and server may do more often when the other one is slower than expected.
fn may_exceed(plan: &Plan) -> [&'static Row; 2] {
    let of_client: &Row = match plan.response {
        // Where a core is taken away for longer than a client waits, it asks again.
        ResponseHalf::Datagram => AGAIN,
        // A READ may come too early, as often as it likes; and after some time without a word from the server the
        // client reports how far it is, once for each answer at most.
        ResponseHalf::Fetch | ResponseHalf::FetchIndexed | ResponseHalf::FetchIndexedTwice => &[
            ("posted_read", u64::MAX),
            ("completed_read", u64::MAX),
            ("posted_write", CALLS),
            ("posted_inline", CALLS),
            ("completed_write", CALLS / 64 + 1),
            ("posted_signaled", u64::MAX),
            ("doorbells", u64::MAX),
            ("bytes_posted", u64::MAX),
        ],
        ResponseHalf::Write
        | ResponseHalf::WriteImm
        | ResponseHalf::WriteSend
        | ResponseHalf::WriteSendChained => &[
            ("posted_write", CALLS),
            ("posted_inline", CALLS),
            ("doorbells", CALLS),
            ("bytes_posted", CALLS * 8),
            // One request in so many is signaled, of whatever kind it is: those reports bring the turn of another sooner.
            ("posted_signaled", CALLS / 64 + 1),
            ("completed_write", CALLS / 64 + 1),
            ("completed_send", CALLS / 64 + 1),
        ],
        ResponseHalf::Send | ResponseHalf::FetchOrWrite | ResponseHalf::FetchOrWriteImm => &[],
    };
    [of_client, if plan.response == ResponseHalf::Datagram { AGAIN } else { &[] }]
}

const FETCHING: &Row = &[
    ("posted_write", 1024 + 16),
    ("posted_read", 1024),
    ("posted_signaled", 1024 + 16),
    ("posted_inline", 1024 + 16),
    ("doorbells", 2 * 1024 + 16),
    ("bytes_posted", 1024 * (64 + 256) - 4 * (64 + 128 + 192) + 16 * 8),
    ("completed_write", 16),
    ("completed_read", 1024),
];

const AGAIN: &Row = &[
    ("posted_send", CALLS / 8),
    ("posted_write", CALLS / 8),
    ("posted_signaled", CALLS / 8),
    ("posted_inline", CALLS / 8),
    ("doorbells", CALLS / 8),
    ("posted_receive", CALLS / 8),
    ("bytes_posted", CALLS / 8 * 64),
    ("bytes_received", CALLS / 8 * 64),
    ("completed_send", CALLS / 8),
    ("completed_write", CALLS / 8),
    ("completed_receive", CALLS / 8),
];

/// Compares protocols with the table.
fn compare(
    measure: fn(Plan) -> [CountSnapshot; 2],
    may_exceed: fn(&Plan) -> [&'static Row; 2],
    protocols: impl Iterator<Item = &'static Protocol>,
) {
    let mut wrong = String::new();
    for protocol in protocols {
        let (name, plan) = (protocol.name, protocol.plan(CompletionMode::Busy));
        let [client, server] = measure(plan);
        let Some(golden) = GOLDEN.iter().find(|golden| golden.protocol == name) else {
            wrong += &format!("{name} is not in the table\nclient\n{client}server\n{server}\n");
            continue;
        };
        let [more_of_client, more_of_server] = may_exceed(&plan);
        let of_client = differences(&client, golden.client, more_of_client);
        let of_server = differences(&server, golden.server, more_of_server);
        for (side, differences) in [("client", of_client), ("server", of_server)] {
            for difference in differences {
                wrong += &format!("{name}, {side}: {difference}\n");
            }
        }
    }
    assert!(wrong.is_empty(), "{CALLS} calls cost other than the table says:\n{wrong}");
}

#[test]
fn a_call_costs_what_the_table_says() {
    bounded(|| compare(measure, |_| [&[], &[]], PROTOCOLS.iter()));
}

#[test]
fn on_two_threads_it_costs_as_much() {
    // Whether a result is fetched or written back is the client's choice while it runs: see tests/hybrid.rs.
    let fixed = |protocol: &&Protocol| protocol.response != ResponseHalf::FetchOrWrite;
    bounded(move || compare(measure_apart, may_exceed, PROTOCOLS.iter().filter(fixed)));
}
