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

/// Counts that may differ from the golden ones, by name.
type Row = [(&'static str, u64)];

/// The golden counts of the client and of the server.
type Golden = [Vec<(String, u64)>; 2];

/// Returns the golden counts of all cases: the comments of the files of mechanisms hold them.
fn golden() -> BTreeMap<String, Golden> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/path/half");
    let mut all = BTreeMap::<String, Golden>::new();
    for file in std::fs::read_dir(folder).expect("the files of the mechanisms") {
        let path = file.expect("a file").path();
        if path.extension().is_none_or(|extension| extension != "rs") {
            continue;
        }
        let text = std::fs::read_to_string(&path).expect("a source");
        for line in golden_lines(&text) {
            let (case, counts) = line.split_once(": ").unwrap_or_else(|| panic!("{path:?}: {line}"));
            let (case, side) = case.rsplit_once(", ").unwrap_or_else(|| panic!("{path:?}: {line}"));
            let side = ["client", "server"].iter().position(|name| *name == side).expect("a side");
            let place = &mut all.entry(case.to_owned()).or_default()[side];
            assert!(place.is_empty(), "{path:?} has {case} twice");
            *place = parsed(counts);
        }
    }
    all
}

/// Returns the lines of the block behind "Golden counts" in the first comment, with continued ones joined.
fn golden_lines(text: &str) -> Vec<String> {
    let comment = text.lines().map_while(|line| line.strip_prefix("//!"));
    let block = comment.skip_while(|line| *line != " # Golden counts").skip_while(|line| *line != " ```text");
    let mut lines = Vec::<String>::new();
    for line in block.skip(1).take_while(|line| *line != " ```") {
        match (line.strip_prefix("   "), lines.last_mut()) {
            (Some(rest), Some(last)) => *last = format!("{last} {rest}"),
            _ => lines.push(line.trim().to_owned()),
        }
    }
    lines
}

/// The number of polls and waits is not part of the protocol.
const NOT_COMPARED: [&str; 4] = ["polls", "empty_polls", "waits_busy", "waits_event"];

/// Returns a line for each count that differs from the table by more than `may_exceed` allows.
fn differences(
    counted: &CountSnapshot,
    golden: &[(String, u64)],
    may_exceed: &Row,
    may_lack: &Row,
) -> Vec<String> {
    let mut golden: BTreeMap<&str, u64> = golden.iter().map(|(name, count)| (&**name, *count)).collect();
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
    measure_together(plan, size, 1)
}

/// Counts as [`measure`] does, while the client posts several calls together.
fn measure_together(plan: Plan, size: usize, together: u64) -> [CountSnapshot; 2] {
    let mut pair = Turns::new(with_plan(plan), |_| ());
    let mut calls = |count: u64| {
        for batch in 0..count / together {
            let numbers = batch * together..(batch + 1) * together;
            let submit = |client: &mut Client<_>| -> Vec<_> {
                numbers.clone().map(|n| client.submit_on(0, ECHO, &pattern(size, n)).unwrap()).collect()
            };
            let calls = match together {
                1 => submit(&mut pair.client),
                _ => pair.client.post_together(submit),
            };
            for (call, number) in calls.into_iter().zip(numbers.clone()) {
                assert_eq!(pair.end(call).unwrap(), pattern(size, number), "call {number}");
            }
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
    let of_client: &Row = match plan.response.name() {
        // A client that waits too long, because the server was preempted, sends its request again.
        "datagram" => AGAIN,
        // A READ may come too early any number of times. After a silence of the server the client reports its
        // head, at most once for each answer.
        "fetch" | "fetch_indexed" | "fetch_indexed_twice" => &[
            ("posted_read", u64::MAX),
            ("completed_read", u64::MAX),
            ("posted_write", CALLS),
            ("posted_inline", CALLS),
            ("completed_write", CALLS / 64 + 1),
            ("posted_signaled", u64::MAX),
            ("doorbells", u64::MAX),
            ("bytes_posted", u64::MAX),
        ],
        "write" | "write_imm" | "write_send" | "write_send_chained" => &[
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
        _ => &[],
    };
    match (plan.is_lossy(), plan.request.name()) {
        (true, "datagram") => [of_client, AGAIN, &[]],
        (true, _) => [of_client, AGAIN, LATER],
        (false, _) => [of_client, &[], &[]],
    }
}

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
    let (golden, mut wrong) = (golden(), String::new());
    for protocol in protocols {
        let (name, plan) = (protocol.name, protocol.plan(CompletionMode::Busy));
        let [client, server] = measure(plan);
        let Some([of_client, of_server]) = golden.get(name) else {
            wrong += &format!("{name} is not in the table\nclient\n{client}server\n{server}\n");
            continue;
        };
        let [more_of_client, more_of_server, fewer_of_server] = may_differ(&plan);
        let of_client = differences(&client, of_client, more_of_client, &[]);
        let of_server = differences(&server, of_server, more_of_server, fewer_of_server);
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
    /// Calls that leave together.
    together: u64,
}

/// Returns every protocol with a payload that is large for all of them, two protocols with sleeping sides, one with
/// payloads in pieces, and the lossy ones with separate calls that leave together, as the papers post them.
fn others() -> impl Iterator<Item = Case> {
    let large = PROTOCOLS.iter().map(|protocol| {
        let plan = protocol.plan(CompletionMode::Busy);
        Case { name: format!("{}, 8 KiB", protocol.name), plan, size: 8192, together: 1 }
    });
    let asleep = ["Direct-WriteIMM", "Eager-SendRecv"].into_iter().map(|name| {
        let plan = Protocol::by_name(name).unwrap().plan(CompletionMode::Event);
        Case { name: format!("{name}, asleep"), plan, size: 32, together: 1 }
    });
    let pieces =
        Plan::new(RequestHalf::Write, ResponseHalf::Write).large(LargePayload::Pipelined, SMALL_LIMIT);
    let pieces =
        Case { name: "Server-reply, 64 KiB in pieces".to_owned(), plan: pieces, size: 65_536, together: 1 };
    let lossy = PROTOCOLS.iter().filter(|protocol| protocol.plan(CompletionMode::Busy).is_lossy());
    let together = lossy.map(|protocol| {
        let plan = protocol.plan(CompletionMode::Busy);
        Case { name: format!("{}, 8 together", protocol.name), plan, size: 32, together: 8 }
    });
    large.chain(asleep).chain([pieces]).chain(together)
}

#[test]
fn large_payloads_pieces_and_sleepers_cost_what_the_table_says() {
    bounded(|| {
        let (golden, mut wrong) = (golden(), String::new());
        for case in others() {
            let counts = measure_together(case.plan, case.size, case.together);
            let Some([client, server]) = golden.get(&case.name) else {
                wrong += &format!(
                    "{} is not in the table\nclient\n{}server\n{}\n",
                    case.name, counts[0], counts[1]
                );
                continue;
            };
            for (side, counted, golden) in [("client", &counts[0], client), ("server", &counts[1], server)] {
                for difference in differences(counted, golden, &[], &[]) {
                    wrong += &format!("{}, {side}: {difference}\n", case.name);
                }
            }
        }
        assert!(wrong.is_empty(), "{CALLS} calls cost other than the table says:\n{wrong}");
    });
}

/// Parses `name count, name count`, or `nothing`.
fn parsed(row: &str) -> Vec<(String, u64)> {
    let words = row.split(", ").filter(|entry| *entry != "nothing");
    let words = words.map(|entry| entry.split_once(' ').expect("a name and a count"));
    words.map(|(name, count)| (name.to_owned(), count.parse().expect("a count"))).collect()
}

#[test]
fn on_two_threads_it_costs_as_much() {
    // The choice between fetching and writing back depends on timing: see tests/processes/hybrid.rs.
    let fixed = |protocol: &&Protocol| protocol.response != ResponseHalf::FetchOrWrite;
    bounded(move || compare(measure_apart, may_differ, PROTOCOLS.iter().filter(fixed)));
}
