//! The hot path makes no system call, on the client's thread or on the worker's. A seccomp filter on the
//! thread ends the process at the first call that is not on a short list. If both sides sleep, each makes one
//! call to wake the other and one to sleep; the filter then counts these.

#![allow(missing_docs, clippy::disallowed_methods, clippy::disallowed_types)]

mod common;

use common::process::{Process, add_role, ready};
use common::*;
use dunlin_fabric_shm::{ShmConfig, ShmFabric};
use dunlin_rpc::*;
#[cfg(target_arch = "x86_64")]
use dunlin_system_calls::{Sleeps, UNEXPECTED, count_sleeps, sleeps};
use dunlin_system_calls::{end, forbid};
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Calls before the filter is installed.
const WARM_UP: u64 = 1000;
/// Calls with the filter.
const CALLS: u64 = 10_000;

/// The time for which adaptive sides spin: they stay awake, however late the peer's process runs.
const AWAKE: Duration = HANG;

/// The exit status of a process that survived the filter but got a wrong answer.
const WRONG_ANSWER: i32 = 3;

fn main() {
    add_role("filtered-client", filtered_client);
    add_role("filtered-server", filtered_server);
    add_role("offender", offender);
    run(&[(
        "system_calls",
        &[
            ("the_filter_kills", the_filter_kills),
            ("every_protocol_makes_no_system_call", every_protocol_makes_no_system_call),
            ("a_combined_client_makes_no_system_call", a_combined_client_makes_no_system_call),
            ("adaptive_sides_that_are_awake_make_no_system_call", awake_sides_make_no_system_call),
            #[cfg(target_arch = "x86_64")]
            ("a_side_that_sleeps_makes_two_system_calls_for_each_call", makes_two_system_calls),
        ],
    )]);
}

/// A fabric whose busy waits never sleep, however crowded the cores are: sleeping is off the hot path, as
/// yielding is, but a system call on it would look the same.
fn steadfast() -> ShmFabric {
    ShmFabric::new(ShmConfig { gives_way: false, ..ShmConfig::default() }).unwrap()
}

/// Starts the filter, for the time until [`end`].
fn watch(mode: CompletionMode) {
    match mode {
        #[cfg(target_arch = "x86_64")]
        CompletionMode::Event => count_sleeps().unwrap(),
        _ => forbid().unwrap(),
    }
}

#[cfg(target_arch = "x86_64")]
const TOO_MANY_WAKES: i32 = 11;
#[cfg(target_arch = "x86_64")]
const TOO_MANY_WAITS: i32 = 12;
#[cfg(target_arch = "x86_64")]
const NEVER_SLEPT: i32 = 13;
#[cfg(target_arch = "x86_64")]
const BARRIER: i32 = 14;

/// Returns the exit status after [`CALLS`] calls: 0 for about one wake and one wait for each. The tolerance of
/// a quarter covers long sleeps that were interrupted, and wakes by head reports.
#[cfg(target_arch = "x86_64")]
fn verdict_of(sleeps: Sleeps) -> i32 {
    match sleeps {
        Sleeps { barriers: 1.., .. } => BARRIER,
        Sleeps { waits: 0, .. } | Sleeps { wakes: 0, .. } => NEVER_SLEPT,
        Sleeps { wakes, .. } if wakes > CALLS + CALLS / 4 => TOO_MANY_WAKES,
        Sleeps { waits, .. } if waits > CALLS + CALLS / 4 => TOO_MANY_WAITS,
        Sleeps { .. } => 0,
    }
}

/// Explains the exit status of a process that sleeps.
#[cfg(target_arch = "x86_64")]
fn explain(status: ExitStatus) -> String {
    match status.code() {
        Some(TOO_MANY_WAKES) => "it has made more than one wake for a call".into(),
        Some(TOO_MANY_WAITS) => "it has made more than one wait for a call".into(),
        Some(BARRIER) => "it has made a barrier, which a sleep for events does not need".into(),
        Some(NEVER_SLEPT) => "it has never slept, or never woken the other side".into(),
        Some(UNEXPECTED) => "it has made a system call other than futex, whose number is above".into(),
        _ => status.to_string(),
    }
}

/// The exit status of a watched process without an error so far.
fn verdict(mode: CompletionMode) -> i32 {
    match mode {
        #[cfg(target_arch = "x86_64")]
        CompletionMode::Event => verdict_of(sleeps()),
        _ => 0,
    }
}

fn filtered_client(arguments: &str) {
    let [address, protocol, mode, sharing] = arguments.split(' ').collect::<Vec<_>>()[..] else {
        panic!("{arguments}")
    };
    let mode: CompletionMode = mode.parse().unwrap();
    let sharing = Sharing::ALL.into_iter().find(|known| known.name() == sharing).unwrap();
    let plan = Plan { sharing, ..Protocol::by_name(protocol).unwrap().plan(mode) };
    let config = ClientConfig { timeout: HANG / 4, spin: AWAKE, ..ClientConfig::with_plan(plan) };
    let mut client = Client::connect(&steadfast(), &address.parse().unwrap(), config).unwrap();
    let mut payload = pattern(32, 1);
    let mut call = |number: u64| {
        payload[..8].copy_from_slice(&number.to_le_bytes());
        client.call_on(0, ECHO, &payload).is_ok_and(|answer| *answer == *payload)
    };
    assert!((0..WARM_UP).all(&mut call));
    ready();
    watch(mode);
    let right = (WARM_UP..WARM_UP + CALLS).all(call);
    // One more call. Its answer does not matter: its execution shows the server that all others were
    // answered.
    if let Ok(last) = client.submit_on(0, ECHO, b"the last") {
        let looks = 0..20_000_000;
        let _ = looks.take_while(|_| client.progress() > 0 || !client.is_done(last)).count();
    }
    end(if right { verdict(mode) } else { WRONG_ANSWER })
}

fn filtered_server(arguments: &str) {
    let (address, mode) = arguments.split_once(' ').unwrap();
    let mode: CompletionMode = mode.parse().unwrap();
    let executed = Arc::new(AtomicU64::new(0));
    let echo = |_| -> Box<dyn Service> {
        let executed = Arc::clone(&executed);
        Box::new(move |request: &Request<'_>, reply: &mut Reply<'_>| {
            executed.fetch_add(1, Ordering::Relaxed);
            Ok(reply.write(request.payload)?)
        })
    };
    let (_server, mut workers) = ServerBuilder::new(&steadfast())
        .config(ServerConfig { spin: AWAKE, ..ServerConfig::default() })
        .function(ECHO, FunctionMode::Worker)
        .serve_with(&address.parse().unwrap(), echo)
        .unwrap();
    let mut worker = workers.pop().unwrap();
    static THE_CLIENT_IS_THROUGH: AtomicBool = AtomicBool::new(false);
    std::thread::spawn(|| {
        let mut nothing = Vec::new();
        let _ = std::io::stdin().read_to_end(&mut nothing);
        THE_CLIENT_IS_THROUGH.store(true, Ordering::Relaxed);
    });
    ready();
    while executed.load(Ordering::Relaxed) < WARM_UP {
        worker.step(HANG);
    }
    watch(mode);
    while executed.load(Ordering::Relaxed) < WARM_UP + CALLS + 1 {
        worker.step(Duration::MAX);
    }
    // Everything is answered. This process must stay until the client is done: a closing connection would
    // make system calls that are not part of a call.
    while !THE_CLIENT_IS_THROUGH.load(Ordering::Relaxed) {
        std::thread::yield_now();
    }
    end(verdict(mode))
}

/// Makes one system call with the filter installed.
fn offender(_: &str) {
    ready();
    forbid().unwrap();
    let _ = rustix::process::getpid();
    end(0)
}

/// Waits for a process to end.
fn ended(process: &mut Process) -> ExitStatus {
    let mut status = None;
    until("the process has ended", || {
        status = process.child.try_wait().unwrap();
        status.is_some()
    });
    status.unwrap()
}

fn the_filter_kills() {
    let status = ended(&mut Process::start("offender", ""));
    assert_eq!(status.signal(), Some(libc::SIGSYS), "{status}: the filter does not watch");
}

/// Makes calls between two watched processes. Returns the exit statuses of client and server.
fn watched(protocol: &str, mode: CompletionMode, sharing: Sharing) -> (ExitStatus, ExitStatus) {
    let address = unique("system-calls").to_string();
    let mut server = Process::start("filtered-server", &format!("{address} {mode}"));
    let mut client =
        Process::start("filtered-client", &format!("{address} {protocol} {mode} {}", sharing.name()));
    let client = ended(&mut client);
    drop(server.stdin.take());
    let server = ended(&mut server);
    println!("  {protocol}, {mode}, {sharing:?}: client {client}, server {server}");
    (client, server)
}

/// Busy calls by each protocol.
fn every_protocol_makes_no_system_call() {
    for protocol in PROTOCOLS {
        assert_no_system_call(protocol.name, CompletionMode::Busy, Sharing::Dedicated);
    }
}

/// The client's thread leads in each call: it takes the lead, sends, polls and gives the lead back.
fn a_combined_client_makes_no_system_call() {
    for name in ["Server-reply", "Direct-WriteIMM", "Eager-SendRecv", "Pilaf"] {
        assert_no_system_call(name, CompletionMode::Busy, Sharing::Combined);
    }
}

/// Hints select adaptive waiting: nobody rings a peer that has not gone to sleep.
fn awake_sides_make_no_system_call() {
    for name in ["Server-reply", "Direct-WriteIMM", "Eager-SendRecv"] {
        assert_no_system_call(name, CompletionMode::Adaptive, Sharing::Dedicated);
    }
}

fn assert_no_system_call(name: &str, mode: CompletionMode, sharing: Sharing) {
    let (client, server) = watched(name, mode, sharing);
    assert!(
        client.success() && server.success(),
        "{name}: the client ended with {client}, the server with {server}; SIGSYS is a system call on the way of a \
         call, and strace -f tells which"
    );
}

#[cfg(target_arch = "x86_64")]
fn makes_two_system_calls() {
    for name in ["Direct-WriteIMM", "Chained-Write-Send", "Eager-SendRecv"] {
        // A thread that is preempted for longer than the watchdog's tick finds the watchdog asleep at its
        // next sleep, and wakes it by one more system call. A cost of every call would show in every run.
        let mut failed = None;
        let passed = (0..5).any(|_| {
            let (client, server) = watched(name, CompletionMode::Event, Sharing::Dedicated);
            failed = [client, server].into_iter().find(|status| !status.success());
            failed.is_none()
        });
        assert!(passed, "{name}: {}", failed.map_or(String::new(), explain));
    }
}
