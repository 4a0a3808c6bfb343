//! Counts the system calls of a call over libfabric's provider `tcp` by `strace`, from between two marks in its log: what a call costs
//! beside looking in vain. No times. A message that arrives costs libfabric 1.17 a `write` and a `read` on its queue's descriptor;
//! what is sent costs its `sendmsg` (or `sendto`) alone.
//!
//! `ofi_counts` counts; `ofi_counts play` is what it has traced.

use dunlin_fabric::{Address, Scheme};
use dunlin_fabric_conformance::trace::{Counts, mark, traced};
use dunlin_fabric_ofi::{OfiConfig, OfiFabric};
use dunlin_rpc::{
    Client, ClientConfig, CompletionMode, FunctionMode, Protocol, Reply, Request, ServerBuilder,
};
use std::process::ExitCode;

/// Calls of each case that are counted, after as many that are not.
const ROUNDS: u64 = 256;
/// Messages that are no call or answer, and what is done about connections, in so many calls.
const OTHERS: u64 = ROUNDS / 8;
/// Protocol, bytes of a call and of its answer, messages each way, and how often at most one side's queue is marked: for a message that
/// arrives, and for one that is sent unless it is short enough to be copied (which mostly comes together, but not on a busy machine).
const CASES: [(&str, usize, u64, u64); 4] =
    [("AR-gRPC", 32, 1, 1), ("AR-gRPC", 64, 1, 2), ("AR-gRPC", 1024, 1, 2), ("Direct-WriteIMM", 32, 2, 2)];

fn case(protocol: &str, size: usize) -> String {
    format!("{protocol} {size}")
}

fn play() {
    let fabric = OfiFabric::new("tcp", OfiConfig::default()).unwrap();
    let address = Address::new(Scheme::Ofi, "tcp:127.0.0.1:0").unwrap();
    let serving = ServerBuilder::new(&fabric).function(1, FunctionMode::Worker).serve(&address, |_| {
        Box::new(|request: &Request<'_>, reply: &mut Reply<'_>| Ok(reply.write(request.payload)?))
    });
    let server = serving.unwrap();
    for (protocol, size, ..) in CASES {
        let plan = Protocol::by_name(protocol).unwrap().plan(CompletionMode::Busy);
        let config = ClientConfig { timeout: 60_000_000_000, ..ClientConfig::with_plan(plan) };
        let mut client = Client::connect(&fabric, server.address(), config).unwrap();
        let payload = vec![5; size];
        let mut round =
            || (0..ROUNDS).for_each(|_| assert_eq!(client.call_on(0, 1, &payload).unwrap().len(), size));
        round();
        mark(&case(protocol, size));
        round();
        mark("end");
    }
}

/// How often a case made these, by the client's thread, and by all.
fn times(counts: &Counts, case: &str, names: &[&str]) -> (u64, u64) {
    let of = |own: bool| {
        let key = |name: &&str| (case.to_owned(), own, (*name).to_owned());
        names.iter().filter_map(|name| counts.get(&key(name))).sum::<u64>()
    };
    (of(true), of(true) + of(false))
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments[..] {
        [] => {}
        [word] if word == "play" => {
            play();
            return ExitCode::SUCCESS;
        }
        _ => {
            eprintln!("ofi_counts [play]");
            return ExitCode::FAILURE;
        }
    }
    let counts = traced(&["play"]).unwrap();
    for (protocol, size, messages, marks) in CASES {
        let case = case(protocol, size);
        let [sends, wakes, resets] =
            [&["sendmsg", "sendto"][..], &["write"], &["read"]].map(|names| times(&counts, &case, names));
        println!(
            "{case:<24} {ROUNDS} calls, by the client and by all: sends {sends:?}, writes {wakes:?}, reads {resets:?}"
        );
        assert!(
            (ROUNDS * messages..=ROUNDS * messages + OTHERS).contains(&sends.0),
            "{case}: {sends:?} sends"
        );
        assert!(sends.1 <= 2 * ROUNDS * messages + OTHERS, "{case}: {sends:?} sends");
        for (what, times) in [("writes", wakes), ("reads", resets)] {
            assert!(times.0 <= ROUNDS * marks + OTHERS, "{case}: {times:?} {what}");
            assert!(times.1 <= 2 * ROUNDS * marks + OTHERS, "{case}: {times:?} {what}");
        }
    }
    ExitCode::SUCCESS
}
