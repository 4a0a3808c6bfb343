//! A thread that loses its core while it leads the others of its connection, in virtual time.

#![allow(missing_docs, clippy::disallowed_methods, clippy::disallowed_types)]

use crate::common::*;
use dunlin_fabric::{Address, Fabric, Host, Nanos, Scheme, Site, Task};
use dunlin_fabric_sim::{Settings, Sim};
use dunlin_rpc::*;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A quantum of another thread.
const QUANTUM: Nanos = 3_000_000;
const THREADS: u64 = 6;
const WARM: Nanos = 2_000_000;
const END: Nanos = 10_000_000;
/// Time of processor work that a thread may have to do at its deadline.
const MARGIN: Nanos = 2_000;

/// The calls of a thread.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    calls: u64,
    /// The longest time of a call that was answered.
    longest: Nanos,
    /// Calls that ended at their deadline.
    expired: u64,
    /// The longest time from a call's deadline to its end.
    late: Nanos,
}

/// A function that nobody answers.
const UNANSWERED: u16 = 2;

/// Threads on one queue pair call for some milliseconds, each call within `timeout`. If `loses`, the next thread
/// that leads after a while loses its core for a quantum. Returns the calls of each thread.
fn play(seed: u64, mode: CompletionMode, (function, timeout): (u16, Nanos), loses: bool) -> Vec<Seen> {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let all = Arc::clone(&seen);
    Sim::run_with(Settings { preemption: 0, ..Settings::default() }, seed, move |fabric| {
        let address = Address::new(Scheme::Sim, "lost").unwrap();
        let server = ServerBuilder::new(&fabric)
            .function(ECHO, FunctionMode::Worker)
            .function(UNANSWERED, FunctionMode::Pull)
            .serve(&address, |_| {
                Box::new(|request: &Request<'_>, reply: &mut Reply<'_>| Ok(reply.write(request.payload)?))
            })
            .unwrap();
        let plan = Plan::new(RequestHalf::WriteImm, ResponseHalf::WriteImm)
            .completion(mode, CompletionMode::Busy)
            .shared(Sharing::Combined, Lease::Forever);
        let timeout = Duration::from_nanos(timeout);
        let config = ClientConfig { max_queue_pairs: 1, timeout, ..with_plan(plan) };
        let first = Client::connect(&fabric, &address, config).unwrap();
        let (host, begin) = (fabric.host().clone(), fabric.host().now());
        let tasks: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (mut client, own, all) = (first.another().unwrap(), host.clone(), Arc::clone(&all));
                let body = move || {
                    let mut seen = Seen::default();
                    while own.now() < begin + END {
                        let since = own.now();
                        let outcome = client.call(function, &thread.to_le_bytes()).map(|result| result.len());
                        let took = own.now() - since;
                        seen.calls += 1;
                        match outcome {
                            Ok(8) => seen.longest = seen.longest.max(took),
                            Ok(length) => panic!("{length} bytes"),
                            Err(error) => {
                                assert_eq!(error.cause(), Some(Cause::DeadlineExceeded), "{error}");
                                seen.expired += 1;
                                seen.late = seen.late.max(took.saturating_sub(timeout.as_nanos() as Nanos));
                            }
                        }
                    }
                    all.lock().unwrap().push(seen);
                };
                host.spawn("caller", Box::new(body)).unwrap()
            })
            .collect();
        host.sleep(begin + WARM);
        if loses {
            fabric.stall_next(Site::Leading, QUANTUM);
        }
        tasks.into_iter().for_each(Task::join);
        drop(first);
        server.shutdown(Duration::from_secs(1));
    })
    .unwrap();
    let seen = seen.lock().unwrap();
    assert_eq!(seen.len(), THREADS as usize);
    seen.clone()
}

const MODES: [CompletionMode; 2] = [CompletionMode::Busy, CompletionMode::Adaptive];

/// The others wait for the leader's core, and no longer.
#[test]
fn a_leader_that_loses_its_core_delays_the_others_by_that() {
    const PATIENT: (u16, Nanos) = (ECHO, 1_000_000_000);
    for (seed, mode) in (0..8).flat_map(|seed| MODES.map(|mode| (seed, mode))) {
        let before = play(seed, mode, PATIENT, false);
        let after = play(seed, mode, PATIENT, true);
        let longest = |seen: &[Seen]| seen.iter().map(|seen| seen.longest).max().unwrap();
        assert!(after.iter().all(|seen| seen.expired == 0));
        println!("{seed} {mode:?}: {} ns, then {} ns", longest(&before), longest(&after));
        assert!(longest(&before) < QUANTUM / 10, "{before:?}");
        assert!(longest(&after) >= QUANTUM, "nobody has lost a core: {after:?}");
        assert!(longest(&after) <= QUANTUM + 2 * longest(&before), "{after:?}");
    }
}

/// The others' calls end at their deadlines, no later after these than where the server never answers and each thread
/// has its core.
#[test]
fn a_leader_that_loses_its_core_makes_no_deadline_late() {
    const TIMEOUT: Nanos = 300_000;
    for (seed, mode) in (0..8).flat_map(|seed| MODES.map(|mode| (seed, mode))) {
        let silent = play(seed, mode, (UNANSWERED, TIMEOUT), false);
        let usual = silent.iter().map(|seen| seen.late).max().unwrap();
        let before = play(seed, mode, (ECHO, TIMEOUT), false);
        assert!(before.iter().all(|seen| seen.expired == 0), "{before:?}");
        let mut after = play(seed, mode, (ECHO, TIMEOUT), true);
        // The leader itself is not there to see its deadline, or its answer.
        let gone = |seen: &Seen| seen.late.max(seen.longest);
        after.sort_unstable_by_key(gone);
        let (leader, others) = after.split_last().unwrap();
        let late = others.iter().map(|seen| seen.late).max().unwrap();
        println!("{seed} {mode:?}: {late} ns late, and {usual} ns without a leader that is gone");
        assert!(gone(leader) >= QUANTUM - TIMEOUT, "nobody has lost a core: {after:?}");
        assert!(others.iter().all(|seen| seen.expired > 0), "{after:?}");
        assert!(late <= usual + MARGIN, "{usual} ns, {after:?}");
    }
}
