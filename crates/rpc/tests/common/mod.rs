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
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, mpsc};
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

/// Runs the tests of files, as the `main` of a program without the usual harness: each in a process of its own, two at a
/// time, since most of them wait for their peer half of the time. Words on the command line choose among the names
/// (`file::test`); `--exact NAME` runs one test in this process.
pub fn run(files: &[(&str, &[Test])]) {
    process::play_role();
    let all: Vec<(String, fn())> = files
        .iter()
        .flat_map(|(file, tests)| tests.iter().map(move |(test, body)| (format!("{file}::{test}"), *body)))
        .collect();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [exact, one] = &arguments[..]
        && exact == "--exact"
    {
        let found = all.iter().find(|(name, _)| name == one).expect("a test of this program");
        return bounded(found.1);
    }
    let filters: Vec<&String> = arguments.iter().filter(|word| !word.starts_with('-')).collect();
    let chosen =
        |name: &str| filters.is_empty() || filters.iter().any(|filter| name.contains(filter.as_str()));
    let names: Vec<String> = all.into_iter().map(|(name, _)| name).filter(|name| chosen(name)).collect();
    let (next, failed) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(name) = names.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let program = std::env::current_exe().expect("this program has a path");
                    let ended = Command::new(program).args(["--exact", name]).output().expect("it starts");
                    let mut failed = failed.lock().unwrap();
                    print!("{}", String::from_utf8_lossy(&ended.stdout));
                    eprint!("{}", String::from_utf8_lossy(&ended.stderr));
                    println!("test {name} ... {}", if ended.status.success() { "ok" } else { "FAILED" });
                    if !ended.status.success() {
                        failed.push(name);
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap();
    println!("{} passed, {} failed", names.len() - failed.len(), failed.len());
    if !failed.is_empty() {
        eprintln!("failed: {failed:?}");
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
            let pieces = plan.large(LargePayload::Pipelined, plan.rendezvous_above);
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
