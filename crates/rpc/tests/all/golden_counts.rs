//! Golden counts of a call's cost at the fabric, for every protocol: work requests by operation, doorbells,
//! RECVs, completions by opcode. A change of a call's cost shows here before it shows as time.
//!
//! In the first test client and worker alternate on one thread. The worker has answered before the client
//! polls, so all counts are exact, including those of READs that poll for a result. In the second each has
//! its own thread, and the few counts that depend on which side is faster may be larger.

#![allow(missing_docs, clippy::disallowed_methods, clippy::disallowed_types)]

use crate::common::turns::{self, Turns};
use crate::common::*;
use dunlin_fabric::interpose::{Count, CountSnapshot};
use dunlin_rpc::*;
use std::collections::BTreeMap;

/// Calls of each protocol that are counted; a multiple of every period of periodic work.
const CALLS: u64 = 1024;
/// Calls before the counted ones.
const WARM_UP: u64 = 256;

/// Counts by name.
type Row = [(&'static str, u64)];

/// The counts of [`CALLS`] calls of 32 bytes. Counts that are not listed are zero.
struct Golden {
    protocol: &'static str,
    client: &'static Row,
    server: &'static Row,
}

/// Counts of 16: one post in 64 is signaled. Where answers have a ring, the client reports its head after
/// every quarter of it (64 lines), by a WRITE of 8 bytes.
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
    // One READ of 256 bytes for each result, less at the ring's end, which is reached four times; the server
    // posts nothing.
    Golden { protocol: "Remote-fetch", client: FETCHING, server: &[] },
    Golden { protocol: "RF-RPC", client: FETCHING, server: &[] },
    // First the metadata, in lines of 64 bytes; then the result, with its exact length.
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
    // Each message is two work requests, of which one in 64 is signaled: with two doorbells, and with one.
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
    // Three messages for each payload, two of them from its sender, and a WRITE, which is always signaled.
    Golden { protocol: "Write-RNDV", client: WRITE_RENDEZVOUS, server: WRITE_RENDEZVOUS },
    // The receiver READs each payload. The client reports with a SEND of its own that it has the result.
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
    // Requests are WRITEs over the unreliable connection. An answer may be lost, so the server reports its
    // head every quarter of the ring over the reliable connection, where each post is signaled.
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
    // As with SENDs, except that the server signals one post in 64 of all its clients together.
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

/// Returns the counts of a client that READs each result after `metadata` READs of metadata.
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

/// Counts of [`CALLS`] calls of other sizes and modes, on one thread: the cases with equal counts, the
/// client's counts and the server's.
const OTHERS: &[(&[&str], &str, &str)] = &[
    // A message announces each payload, and the receiver READs it. The client reports with one more message
    // that it has the result.
    (
        &["Server-reply, 8 KiB"],
        "posted_write 2064, posted_read 1024, posted_signaled 1056, posted_inline 2064, doorbells 3088, \
         bytes_posted 8519808, completed_write 32, completed_read 1024",
        "posted_write 1024, posted_read 1024, posted_signaled 1040, posted_inline 1024, doorbells 2048, \
         bytes_posted 8454144, completed_write 16, completed_read 1024",
    ),
    // The client fetches the result's announcement first, then the result.
    (
        &["Remote-fetch, 8 KiB", "RF-RPC, 8 KiB"],
        "posted_write 2064, posted_read 2048, posted_signaled 2080, posted_inline 2064, doorbells 4112, \
         bytes_posted 8780416, completed_write 32, completed_read 2048",
        "posted_read 1024, posted_signaled 1024, doorbells 1024, bytes_posted 8388608, completed_read 1024",
    ),
    (
        &["Direct-WriteIMM, 8 KiB"],
        "posted_write 16, posted_write_immediate 2048, posted_read 1024, posted_signaled 1056, \
         posted_inline 2064, doorbells 3088, posted_receive 1024, bytes_posted 8519808, completed_write 32, \
         completed_read 1024, completed_receive_immediate 1024",
        "posted_write_immediate 1024, posted_read 1024, posted_signaled 1040, posted_inline 1024, \
         doorbells 2048, posted_receive 2048, bytes_posted 8454144, completed_write 16, completed_read 1024, \
         completed_receive_immediate 2048",
    ),
    (
        &["Direct-Write-Send, 8 KiB"],
        "posted_send 2048, posted_write 2064, posted_read 1024, posted_signaled 1088, posted_inline 4112, \
         doorbells 5136, posted_receive 1024, bytes_posted 8519808, completed_send 64, completed_read 1024, \
         completed_receive 1024",
        "posted_send 1024, posted_write 1024, posted_read 1024, posted_signaled 1056, posted_inline 2048, \
         doorbells 3072, posted_receive 2048, bytes_posted 8454144, completed_send 32, completed_read 1024, \
         completed_receive 2048",
    ),
    (
        &["Chained-Write-Send, 8 KiB"],
        "posted_send 2048, posted_write 2064, posted_read 1024, posted_signaled 1088, posted_inline 4112, \
         doorbells 3088, posted_receive 1024, bytes_posted 8519808, completed_send 64, completed_read 1024, \
         completed_receive 1024",
        "posted_send 1024, posted_write 1024, posted_read 1024, posted_signaled 1056, posted_inline 2048, \
         doorbells 2048, posted_receive 2048, bytes_posted 8454144, completed_send 32, completed_read 1024, \
         completed_receive 2048",
    ),
    // Three fragments, each in a slot of 4 KiB, and all of them copied.
    (
        &["Eager-SendRecv, 8 KiB"],
        "posted_send 3072, posted_signaled 48, posted_inline 1024, doorbells 3072, posted_receive 3072, \
         bytes_posted 8716288, bytes_received 8716288, completed_send 48, completed_receive 3072",
        "posted_send 3072, posted_signaled 48, posted_inline 1024, doorbells 3072, posted_receive 3072, \
         bytes_posted 8716288, bytes_received 8716288, completed_send 48, completed_receive 3072",
    ),
    // As for 32 bytes, except for the number of bytes. Hybrid-EagerRNDV was eager there.
    (
        &["Write-RNDV, 8 KiB", "Hybrid-EagerRNDV, 8 KiB"],
        "posted_send 3072, posted_write 1024, posted_signaled 1024, posted_inline 3072, doorbells 4096, \
         posted_receive 3072, bytes_posted 8585216, bytes_received 196608, completed_write 1024, \
         completed_receive 3072",
        "posted_send 3072, posted_write 1024, posted_signaled 1024, posted_inline 3072, doorbells 4096, \
         posted_receive 3072, bytes_posted 8585216, bytes_received 196608, completed_write 1024, \
         completed_receive 3072",
    ),
    // As for 32 bytes. AR-gRPC was eager there, and FaSST used datagrams.
    (
        &["Read-RNDV, 8 KiB", "AR-gRPC, 8 KiB", "FaSST, 8 KiB"],
        "posted_send 2048, posted_read 1024, posted_signaled 1056, posted_inline 2048, doorbells 3072, \
         posted_receive 1024, bytes_posted 8519680, bytes_received 65536, completed_send 32, \
         completed_read 1024, completed_receive 1024",
        "posted_send 1024, posted_read 1024, posted_signaled 1040, posted_inline 1024, doorbells 2048, \
         posted_receive 2048, bytes_posted 8454144, bytes_received 131072, completed_send 16, \
         completed_read 1024, completed_receive 2048",
    ),
    (
        &["Pilaf, 8 KiB"],
        "posted_write 2064, posted_read 4096, posted_signaled 4128, posted_inline 2064, doorbells 6160, \
         bytes_posted 8716416, completed_write 32, completed_read 4096",
        "posted_read 1024, posted_signaled 1024, doorbells 1024, bytes_posted 8388608, completed_read 1024",
    ),
    (
        &["FaRM, 8 KiB"],
        "posted_write 2064, posted_read 3072, posted_signaled 3104, posted_inline 2064, doorbells 5136, \
         bytes_posted 8650880, completed_write 32, completed_read 3072",
        "posted_read 1024, posted_signaled 1024, doorbells 1024, bytes_posted 8388608, completed_read 1024",
    ),
    (
        &["HERD, 8 KiB"],
        "posted_write 2048, posted_read 1024, posted_signaled 1056, posted_inline 2048, doorbells 3072, \
         posted_receive 1024, bytes_posted 8519680, bytes_received 65536, completed_write 32, \
         completed_read 1024, completed_receive 1024",
        "posted_send 1024, posted_write 32, posted_read 1024, posted_signaled 1072, posted_inline 1056, \
         doorbells 2080, bytes_posted 8454400, completed_send 16, completed_write 32, completed_read 1024",
    ),
    // A sleeping server is woken by immediate data, so the client's head reports are WRITEs with immediate
    // data.
    (
        &["Direct-WriteIMM, asleep"],
        "posted_write_immediate 1040, posted_signaled 16, posted_inline 1040, doorbells 1040, \
         posted_receive 1024, bytes_posted 65664, completed_write 16, completed_receive_immediate 1024",
        "posted_write_immediate 1024, posted_signaled 16, posted_inline 1024, doorbells 1024, \
         posted_receive 1040, bytes_posted 65536, completed_write 16, completed_receive_immediate 1040",
    ),
    (
        &["Eager-SendRecv, asleep"],
        "posted_send 1024, posted_signaled 16, posted_inline 1024, doorbells 1024, posted_receive 1024, \
         bytes_posted 65536, bytes_received 65536, completed_send 16, completed_receive 1024",
        "posted_send 1024, posted_signaled 16, posted_inline 1024, doorbells 1024, posted_receive 1024, \
         bytes_posted 65536, bytes_received 65536, completed_send 16, completed_receive 1024",
    ),
    // Two pieces in each direction: one more message, and one more READ.
    (
        &["Server-reply, 64 KiB in pieces"],
        "posted_write 3104, posted_read 2048, posted_signaled 2096, posted_inline 3104, doorbells 5152, \
         bytes_posted 67305728, completed_write 48, completed_read 2048",
        "posted_write 2048, posted_read 2048, posted_signaled 2080, posted_inline 2048, doorbells 4096, \
         bytes_posted 67239936, completed_write 32, completed_read 2048",
    ),
];

/// The number of polls and waits is not part of the protocol.
const NOT_COMPARED: [&str; 4] = ["polls", "empty_polls", "waits_busy", "waits_event"];

/// Returns a line for each count that differs from the table by more than `may_exceed` allows.
fn differences(counted: &CountSnapshot, golden: &Row, may_exceed: &Row, may_lack: &Row) -> Vec<String> {
    let mut golden: BTreeMap<_, _> = golden.iter().copied().collect();
    let mut differences = Vec::new();
    for (name, count) in counted.fields().filter(|(name, _)| !NOT_COMPARED.contains(name)) {
        let usual = golden.remove(name).unwrap_or(0);
        let of = |row: &Row| row.iter().find(|(other, _)| *other == name).map_or(0, |(_, count)| *count);
        let (least, most) = (usual.saturating_sub(of(may_lack)), usual.saturating_add(of(may_exceed)));
        if count < least || count > most {
            let expected = if least == most { format!("{least}") } else { format!("{least} to {most}") };
            differences.push(format!("{name:<28} {count:>6} instead of {expected}"));
        }
    }
    differences.extend(golden.keys().map(|name| format!("{name}: there is no such count")));
    differences
}

/// Returns both sides' counts of [`CALLS`] calls of `size` bytes.
fn measure(plan: Plan, size: usize) -> [CountSnapshot; 2] {
    let mut pair = Turns::new(with_plan(plan), |_| ());
    let mut calls = |count| {
        for number in 0..count {
            let payload = pattern(size, number);
            let call = pair.client.submit_on(0, ECHO, &payload).unwrap();
            assert_eq!(pair.end(call).unwrap(), payload, "call {number}");
        }
        pair.settle();
        pair.counts()
    };
    let [client, server] = calls(WARM_UP);
    let [client_after, server_after] = calls(CALLS);
    [client_after - client, server_after - server]
}

fn received(side: &CountSnapshot) -> u64 {
    side.completed_receive + side.completed_receive_immediate
}

/// Returns the number of RECVs that wait for a message.
fn receives_waiting(side: &CountSnapshot) -> u64 {
    side.posted_receive - received(side)
}

/// Returns whether all expected completions have occurred since the start, and each message was taken from
/// its queue.
fn nothing_under_way(counts: &[CountSnapshot; 2]) -> bool {
    let sent = |side: &CountSnapshot| side.posted_send + side.posted_write_immediate;
    let completed = |side: &CountSnapshot| side.completions() - received(side);
    counts.iter().all(|side| side.posted_signaled == completed(side))
        && received(&counts[1]) == sent(&counts[0])
        && received(&counts[0]) == sent(&counts[1])
}

/// As [`measure`], with plain calls and the worker on its own thread.
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
        // A part of a call's cost follows its answer, and so does the count of the answer's own post. The
        // worker has made that post once it has polled twice more.
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

/// The counts that may differ when the other side is slower than expected: larger ones of the client and of the server,
/// and smaller ones of the server.
fn may_differ(plan: &Plan) -> [&'static Row; 3] {
    let of_client: &Row = match plan.response {
        // A client that waits too long, because the server was preempted, sends its request again.
        ResponseHalf::Datagram => AGAIN,
        // A READ may come too early any number of times. After a silence of the server the client reports its
        // head, at most once for each answer.
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
            // One request in 64 is signaled, of whatever kind: extra head reports bring the next signaled one
            // forward.
            ("posted_signaled", CALLS / 64 + 1),
            ("completed_write", CALLS / 64 + 1),
            ("completed_send", CALLS / 64 + 1),
        ],
        ResponseHalf::Send | ResponseHalf::FetchOrWrite | ResponseHalf::FetchOrWriteImm => &[],
    };
    match (plan.response, plan.request) {
        (ResponseHalf::Datagram, RequestHalf::WriteUnreliable) => [of_client, AGAIN, LATER],
        (ResponseHalf::Datagram, _) => [of_client, AGAIN, &[]],
        _ => [of_client, &[], &[]],
    }
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

/// The server reports its head when at least a quarter of the ring was consumed. A request that was sent again, and is
/// taken together with the first one, makes a report later, and so reports rarer.
const LATER: &Row = &[
    ("posted_write", 8),
    ("posted_signaled", 8),
    ("posted_inline", 8),
    ("doorbells", 8),
    ("bytes_posted", 8 * 8),
    ("completed_write", 8),
];

/// Compares protocols with the table.
fn compare(
    measure: fn(Plan) -> [CountSnapshot; 2],
    may_differ: fn(&Plan) -> [&'static Row; 3],
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
        let [more_of_client, more_of_server, fewer_of_server] = may_differ(&plan);
        let of_client = differences(&client, golden.client, more_of_client, &[]);
        let of_server = differences(&server, golden.server, more_of_server, fewer_of_server);
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
    bounded(|| compare(|plan| measure(plan, 32), |_| [&[], &[], &[]], PROTOCOLS.iter()));
}

/// A plan that is measured with payloads of this size.
struct Case {
    name: String,
    plan: Plan,
    size: usize,
}

/// Returns every protocol with a payload that is large for all of them, two protocols with sleeping sides,
/// and one with payloads in pieces.
fn others() -> impl Iterator<Item = Case> {
    let large = PROTOCOLS.iter().map(|protocol| {
        let plan = protocol.plan(CompletionMode::Busy);
        Case { name: format!("{}, 8 KiB", protocol.name), plan, size: 8192 }
    });
    let asleep = ["Direct-WriteIMM", "Eager-SendRecv"].into_iter().map(|name| {
        let plan = Protocol::by_name(name).unwrap().plan(CompletionMode::Event);
        Case { name: format!("{name}, asleep"), plan, size: 32 }
    });
    let pieces = Plan::new(RequestHalf::Write, ResponseHalf::Write).large(LargePayload::Pieces, SMALL_LIMIT);
    let pieces = Case { name: "Server-reply, 64 KiB in pieces".to_owned(), plan: pieces, size: 65_536 };
    large.chain(asleep).chain([pieces])
}

#[test]
fn large_payloads_pieces_and_sleepers_cost_what_the_table_says() {
    bounded(|| {
        let mut wrong = String::new();
        for case in others() {
            let counts = measure(case.plan, case.size);
            let Some((_, client, server)) = OTHERS.iter().find(|row| row.0.contains(&&*case.name)) else {
                wrong += &format!(
                    "{} is not in the table\nclient\n{}server\n{}\n",
                    case.name, counts[0], counts[1]
                );
                continue;
            };
            for (side, counted, golden) in [("client", &counts[0], client), ("server", &counts[1], server)] {
                for difference in differences(counted, &parsed(golden), &[], &[]) {
                    wrong += &format!("{}, {side}: {difference}\n", case.name);
                }
            }
        }
        assert!(wrong.is_empty(), "{CALLS} calls cost other than the table says:\n{wrong}");
    });
}

/// Parses `name count, name count`.
fn parsed(row: &'static str) -> Vec<(&'static str, u64)> {
    let words = row.split(", ").map(|entry| entry.trim().split_once(' ').expect("a name and a count"));
    words.map(|(name, count)| (name, count.parse().expect("a count"))).collect()
}

#[test]
fn on_two_threads_it_costs_as_much() {
    // The choice between fetching and writing back depends on timing: see tests/hybrid.rs.
    let fixed = |protocol: &&Protocol| protocol.response != ResponseHalf::FetchOrWrite;
    bounded(move || compare(measure_apart, may_differ, PROTOCOLS.iter().filter(fixed)));
}
