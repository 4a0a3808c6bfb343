//! Shared by the engine's tests: a runner with a time limit for each test, a server in its own process, and a
//! raw client that performs the handshake itself and can write arbitrary bytes.

#![allow(
    dead_code,
    unused_macros,
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

/// The time limit of a test, far above the need of any.
pub const HANG: Duration = Duration::from_secs(240);

/// Echoes its request.
pub const ECHO: u16 = 1;

/// Runs a test with the limit [`HANG`]: a hang fails under the test's name.
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

/// A test by its name.
pub type Test = (&'static str, fn());

/// Runs the tests of files, one after the other, as the `main` of a program without the usual harness. Words on the command line
/// choose among the names (`file::test`).
pub fn run(files: &[(&str, &[Test])]) {
    process::play_role();
    let filters: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    let (mut passed, mut failed) = (0, Vec::new());
    for (file, (test, body)) in
        files.iter().flat_map(|(file, tests)| tests.iter().map(move |test| (file, test)))
    {
        let name = format!("{file}::{test}");
        if !filters.is_empty() && !filters.iter().any(|filter| name.contains(filter.as_str())) {
            continue;
        }
        let body = *body;
        let ended = std::panic::catch_unwind(|| bounded(body));
        println!("test {name} ... {}", if ended.is_ok() { "ok" } else { "FAILED" });
        match ended {
            Ok(()) => passed += 1,
            Err(_) => failed.push(name),
        }
    }
    println!("{passed} passed, {} failed", failed.len());
    if !failed.is_empty() {
        eprintln!("failed: {}", failed.join(", "));
        std::process::exit(1);
    }
}

/// Lists the test functions of a file with their names.
macro_rules! tests {
    ($($name:ident),* $(,)?) => {
        pub(crate) const TESTS: &[crate::common::Test] = &[$((stringify!($name), $name as fn())),*];
    };
}

pub fn fabric() -> ShmFabric {
    ShmFabric::new(ShmConfig::default()).unwrap()
}

/// Returns an address that no other test uses.
pub fn unique(what: &str) -> Address {
    let name = format!("rpc-{what}-{}-{:x}", std::process::id(), RealHost.random() as u32);
    Address::new(Scheme::Shm, &name).unwrap()
}

/// Returns the time on the host's clock after this delay.
pub fn after(time: Duration) -> u64 {
    RealHost.now() + time.as_nanos() as u64
}

/// Waits until a condition holds, for at most [`HANG`] / 2.
pub fn until(what: &str, mut so: impl FnMut() -> bool) {
    let end = Instant::now() + HANG / 2;
    while !so() {
        assert!(Instant::now() < end, "it never came to be that {what}");
        std::thread::yield_now();
    }
}

/// Protocols that are also tested with payloads in pieces, which no row of the table has: one polls memory,
/// the other can sleep.
const IN_PIECES: [&str; 2] = ["Server-reply", "Direct-WriteIMM"];

/// Returns the plans of all protocols in those of the modes that are legal for them.
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

/// The plan of tests that do not depend on the protocol. It sleeps, and so leaves the core to others.
pub fn any_plan() -> Plan {
    Plan::new(RequestHalf::WriteImm, ResponseHalf::WriteImm)
        .completion(CompletionMode::Event, CompletionMode::Event)
}

/// Returns client settings with this plan and the rates of RF-RPC's cluster. With shared memory's rates every
/// result would be written back instead of fetched.
pub fn with_plan(plan: Plan) -> ClientConfig {
    ClientConfig {
        fetch_table: Some(std::sync::Arc::new(tune::table::FetchTable::rf_rpc())),
        ..ClientConfig::with_plan(plan)
    }
}

/// Returns bytes that depend on position and seed.
pub fn pattern(length: usize, seed: u64) -> Vec<u8> {
    (0..length).map(|i| (i as u64 * 7 + seed * 13 + (i as u64 >> 8)) as u8).collect()
}
