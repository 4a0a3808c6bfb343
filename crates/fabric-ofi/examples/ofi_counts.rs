//! Counts the system calls of a call over libfabric's provider `tcp` with `strace`, between two marks in its
//! log: the cost of a call without empty polls. Measures no times. An arriving message costs libfabric 1.17 a
//! `write` and a `read` on its queue's descriptor; an outgoing message costs only its `sendmsg` (or
//! `sendto`).
//!
//! `ofi_counts` counts; `ofi_counts play` is the traced program.

use dunlin_fabric::{Address, Scheme};
use dunlin_fabric_conformance::trace::{Counts, mark, traced};
use dunlin_fabric_ofi::{OfiConfig, OfiFabric};
use dunlin_rpc::{
    Client, ClientConfig, CompletionMode, FunctionMode, Protocol, Reply, Request, ServerBuilder,
};
use std::process::ExitCode;
use std::time::Duration;

/// The number of counted calls of each case, after as many uncounted ones.
const ROUNDS: u64 = 256;
/// How often each case is counted. The run with the fewest messages counts: a client that hears nothing for a
/// while, as on a machine that is busy elsewhere, reports to the server how far it has read.
const RUNS: u64 = 5;
/// The number of messages that are neither calls nor answers, and of operations on connections, during these
/// calls.
const OTHERS: u64 = ROUNDS / 8;
/// Protocol, bytes of a call and of its answer, messages in each direction, and the maximum number of marks
/// of one side's queue: one for an arriving message, and one for an outgoing message unless it is short
/// enough to be copied. The two mostly coincide, but not on a busy machine.
const CASES: [(&str, usize, u64, u64); 4] =
    [("AR-gRPC", 32, 1, 1), ("AR-gRPC", 64, 1, 2), ("AR-gRPC", 1024, 1, 2), ("Direct-WriteIMM", 32, 2, 2)];

fn case(protocol: &str, size: usize, run: u64) -> String {
    format!("{protocol} {size} {run}")
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
        let config = ClientConfig { timeout: Duration::from_secs(60), ..ClientConfig::with_plan(plan) };
        let mut client = Client::connect(&fabric, server.address(), config).unwrap();
        let payload = vec![5; size];
        let mut round =
            || (0..ROUNDS).for_each(|_| assert_eq!(client.call_on(0, 1, &payload).unwrap().len(), size));
        round();
        for run in 0..RUNS {
            mark(&case(protocol, size, run));
            round();
            mark("end");
        }
    }
}

/// Returns how often a case made these calls, in the client's thread and in all threads.
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
        let runs = (0..RUNS).map(|run| {
            let case = case(protocol, size, run);
            [&["sendmsg", "sendto"][..], &["write"], &["read"]].map(|names| times(&counts, &case, names))
        });
        let [sends, wakes, resets] = runs.min_by_key(|[sends, ..]| sends.1).unwrap();
        let case = format!("{protocol} {size}");
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
