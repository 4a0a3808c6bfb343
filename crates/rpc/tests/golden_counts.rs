//! What a call costs at the fabric, for every protocol, against a table: work requests by operation, doorbells, RECVs,
//! completions by opcode. A change that makes a call cost more, or less, shows here before it shows as time.
//!
//! Client and worker take turns on one thread, so that the counts are exact, those of READs that look for a result
//! included: the worker has answered before the client looks.

#![allow(missing_docs, clippy::disallowed_methods, clippy::disallowed_types)]

mod common;

use common::*;
use dunlin_fabric::interpose::{Count, CountSnapshot};
use dunlin_fabric_shm::ShmFabric;
use dunlin_rpc::*;
use std::collections::BTreeMap;
use std::time::Instant;

type Counted = Count<ShmFabric>;

/// Calls of each protocol that are counted. A multiple of all that is done only now and then.
const CALLS: u64 = 1024;
/// Calls before them.
const WARM_UP: u64 = 256;

/// Counts of [`CALLS`] calls of 32 bytes; what is not named here is zero.
struct Golden {
    protocol: &'static str,
    client: &'static [(&'static str, u64)],
    server: &'static [(&'static str, u64)],
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
    Golden {
        protocol: "Remote-fetch",
        client: &[
            ("posted_write", 1024 + 16),
            ("posted_read", 1024),
            ("posted_signaled", 1024 + 16),
            ("posted_inline", 1024 + 16),
            ("doorbells", 2 * 1024 + 16),
            ("bytes_posted", 1024 * (64 + 256) - 4 * (64 + 128 + 192) + 16 * 8),
            ("completed_write", 16),
            ("completed_read", 1024),
        ],
        server: &[],
    },
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
    Golden { protocol: "Eager-SendRecv", client: SEND_AND_RECEIVE, server: SEND_AND_RECEIVE },
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
];

const SEND_AND_RECEIVE: &[(&str, u64)] = &[
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

struct Pair {
    client: Client<Counted>,
    worker: Worker<Counted>,
    /// Client's and server's.
    fabrics: [Counted; 2],
    /// Serves as long as it is there.
    _server: Server<Counted>,
}

impl Pair {
    fn new(plan: Plan) -> Pair {
        let fabrics = [Count::new(fabric()), Count::new(fabric())];
        let echo = |_| -> Box<dyn Service> {
            Box::new(|request: &Request<'_>, reply: &mut Reply<'_>| Ok(reply.write(request.payload)?))
        };
        let (server, mut workers) = ServerBuilder::new(&fabrics[1])
            .function(ECHO, FunctionMode::Worker)
            .serve_with(&unique("golden"), echo)
            .unwrap();
        let mut worker = workers.pop().unwrap();
        let client = std::thread::scope(|scope| {
            let connecting = scope.spawn(|| {
                Client::connect(&fabrics[0], server.address(), ClientConfig::with_plan(plan)).unwrap()
            });
            while !connecting.is_finished() {
                worker.progress();
                std::thread::yield_now();
            }
            connecting.join().unwrap()
        });
        Pair { client, worker, fabrics, _server: server }
    }

    fn calls(&mut self, count: u64) {
        for number in 0..count {
            let payload = pattern(32, number);
            let call = self.client.submit_on(0, ECHO, &payload).unwrap();
            let end = Instant::now() + HANG / 4;
            while !self.client.is_done(call) {
                assert!(Instant::now() < end, "call {number} is not answered");
                self.worker.progress();
                self.client.progress();
            }
            assert_eq!(self.client.outcome(call).unwrap(), payload);
            self.client.forget(call);
        }
    }

    /// Both sides look until they have seen everything that is due to them, whatever is looked at only now and then.
    fn settle(&mut self) {
        for _ in 0..256 {
            self.worker.progress();
            self.client.progress();
        }
    }

    fn counts(&self) -> [CountSnapshot; 2] {
        [self.fabrics[0].counts(), self.fabrics[1].counts()]
    }
}

/// A line for each count that is not as in the table.
fn differences(counted: &CountSnapshot, golden: &[(&'static str, u64)]) -> Vec<String> {
    let mut golden: BTreeMap<_, _> = golden.iter().copied().collect();
    let mut differences = Vec::new();
    for (name, count) in counted.fields().filter(|(name, _)| !NOT_COMPARED.contains(name)) {
        let expected = golden.remove(name).unwrap_or(0);
        if count != expected {
            differences.push(format!("{name:<28} {count:>6} instead of {expected:>6}"));
        }
    }
    differences.extend(golden.keys().map(|name| format!("{name}: there is no such count")));
    differences
}

fn measure(plan: Plan) -> [CountSnapshot; 2] {
    let mut pair = Pair::new(plan);
    pair.calls(WARM_UP);
    pair.settle();
    let [client, server] = pair.counts();
    pair.calls(CALLS);
    pair.settle();
    let [client_after, server_after] = pair.counts();
    [client_after - client, server_after - server]
}

#[test]
fn a_call_costs_what_the_table_says() {
    bounded(|| {
        let mut wrong = String::new();
        for protocol in PROTOCOLS {
            let name = protocol.name;
            let [client, server] = measure(protocol.plan(CompletionMode::Busy));
            let Some(golden) = GOLDEN.iter().find(|golden| golden.protocol == name) else {
                wrong += &format!("{name} is not in the table\nclient\n{client}server\n{server}\n");
                continue;
            };
            for (side, counted, golden) in
                [("client", client, golden.client), ("server", server, golden.server)]
            {
                for difference in differences(&counted, golden) {
                    wrong += &format!("{name}, {side}: {difference}\n");
                }
            }
        }
        assert!(wrong.is_empty(), "{CALLS} calls cost other than the table says:\n{wrong}");
    });
}
