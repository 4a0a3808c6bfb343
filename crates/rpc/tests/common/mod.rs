//! What the tests of the engine share: a runner with a bound on every test, a server in a process of its own, and a
//! raw client that says the handshake by hand and can write anything.

#![allow(
    dead_code,
    unreachable_pub,
    missing_docs,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "each test file uses its own part; tests are no engine code, they have threads and clocks of their own"
)]

pub mod process;
pub mod raw;
pub mod turns;

use dunlin_fabric::{Address, Host, RealHost, Scheme};
use dunlin_fabric_shm::{ShmConfig, ShmFabric};
use dunlin_rpc::*;
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// No test needs nearly so long: whoever does, hangs.
pub const HANG: Duration = Duration::from_secs(240);

/// Echoes its request.
pub const ECHO: u16 = 1;

/// Runs a test with the bound [`HANG`]; a hang is a failure with a name.
pub fn bounded(test: impl FnOnce() + Send + 'static) {
    let (tell, told) = mpsc::channel();
    let runner = std::thread::spawn(move || {
        test();
        let _ = tell.send(());
    });
    match told.recv_timeout(HANG) {
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("the test hangs"),
        _ => {
            if let Err(panic) = runner.join() {
                std::panic::resume_unwind(panic);
            }
        }
    }
}

/// The `main` of a test file without the usual harness: its tests by name, one after the other.
pub fn run(tests: &[(&str, fn())]) {
    process::play_role();
    let filters: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    let mut failed = Vec::new();
    for (name, test) in tests {
        if !filters.is_empty() && !filters.iter().any(|f| name.contains(f.as_str())) {
            continue;
        }
        let test = *test;
        let ended = std::panic::catch_unwind(|| bounded(test));
        println!("test {name} ... {}", if ended.is_ok() { "ok" } else { "FAILED" });
        if ended.is_err() {
            failed.push(*name);
        }
    }
    if !failed.is_empty() {
        eprintln!("failed: {}", failed.join(", "));
        std::process::exit(1);
    }
}

/// Lists test functions with their names.
#[macro_export]
macro_rules! tests {
    ($($name:ident),* $(,)?) => {
        fn main() {
            common::run(&[$((stringify!($name), $name as fn())),*]);
        }
    };
}

pub fn fabric() -> ShmFabric {
    ShmFabric::new(ShmConfig::default()).unwrap()
}

/// An address that nobody else has.
pub fn unique(what: &str) -> Address {
    let name = format!("rpc-{what}-{}-{:x}", std::process::id(), RealHost.random() as u32);
    Address::new(Scheme::Shm, &name).unwrap()
}

/// A time on the host's clock.
pub fn after(time: Duration) -> u64 {
    RealHost.now() + time.as_nanos() as u64
}

/// Waits until something is so, at most [`HANG`] / 2.
pub fn until(what: &str, mut so: impl FnMut() -> bool) {
    let end = Instant::now() + HANG / 2;
    while !so() {
        assert!(Instant::now() < end, "it never came to be that {what}");
        std::thread::yield_now();
    }
}

/// Protocols that also carry large payloads in pieces, which none has by itself: one that polls memory, and one that sleeps.
const IN_PIECES: [&str; 2] = ["Server-reply", "Direct-WriteIMM"];

/// The plans of all protocols, with the modes that are legal for them.
pub fn plans(fabric: &impl dunlin_fabric::Fabric, modes: &[CompletionMode]) -> Vec<(String, Plan)> {
    let mut plans = Vec::new();
    for protocol in PROTOCOLS {
        for mode in modes {
            let plan = protocol.plan(*mode);
            if plan.check(fabric.capabilities()).is_ok() {
                plans.push((format!("{} {mode}", protocol.name), plan));
            }
            let pieces = plan.large(LargePayload::Pieces, plan.rendezvous_above);
            if IN_PIECES.contains(&protocol.name) && pieces.check(fabric.capabilities()).is_ok() {
                plans.push((format!("{} {mode} in pieces", protocol.name), pieces));
            }
        }
    }
    plans
}

/// Busy, event and adaptive.
pub const MODES: [CompletionMode; 3] =
    [CompletionMode::Busy, CompletionMode::Event, CompletionMode::Adaptive];

/// The plan for tests to which the protocol does not matter: yields the core to others.
pub fn any_plan() -> Plan {
    Plan::new(RequestHalf::WriteImm, ResponseHalf::WriteImm)
        .completion(CompletionMode::Event, CompletionMode::Event)
}

/// The settings of a client with this plan. By the rates of RF-RPC's cluster, by which results are fetched: on shared memory they would all be
/// written back.
pub fn with_plan(plan: Plan) -> ClientConfig {
    ClientConfig {
        fetch_table: Some(std::sync::Arc::new(tune::table::FetchTable::rf_rpc())),
        ..ClientConfig::with_plan(plan)
    }
}

/// Bytes that say what they are.
pub fn pattern(length: usize, seed: u64) -> Vec<u8> {
    (0..length).map(|i| (i as u64 * 7 + seed * 13 + (i as u64 >> 8)) as u8).collect()
}
