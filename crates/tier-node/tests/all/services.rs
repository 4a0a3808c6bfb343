//! Calls through nodes (LITE section 5.1), on shared memory and in virtual time.

use crate::cluster::{in_virtual_time, on_shared_memory, spawn, start, tag};
use dunlin_fabric::{Fabric, Host, Scheme, Task};
use dunlin_fabric_shm::{ShmConfig, ShmFabric};
use dunlin_rpc::{ApplicationCode, CallError, Cause, Status};
use dunlin_tier_node::{Calls, ReceiveError, RequestError, Spec, Tier};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const LONG: Duration = Duration::from_secs(10);
const STOP: &[u8] = b"stop";

#[track_caller]
fn call_error<T: std::fmt::Debug>(outcome: Result<T, RequestError>) -> CallError {
    match outcome {
        Err(RequestError::Call { source, .. }) => source,
        other => panic!("no failed call: {other:?}"),
    }
}

/// Answers each request with its bytes reversed, until one is `STOP`; returns how many there were.
fn reverse<F: Fabric>(calls: &Calls<F>) -> u64 {
    let (mut buffer, mut count) = ([0; 10_000], 0);
    let mut request = calls.receive(&mut buffer).unwrap();
    loop {
        let length = request.len();
        let mut answer = buffer[..length].to_vec();
        answer.reverse();
        if &buffer[..length] == STOP {
            request.reply(&answer);
            return count;
        }
        count += 1;
        request = request.reply_and_receive(&answer, &mut buffer).unwrap();
    }
}

/// Threads of all nodes call a service of bob, from near and far, with short and long requests.
fn everybody_calls<F: Fabric>(tiers: &[Tier<F>; 3], threads: u64, rounds: u64) {
    let calls = tiers[1].register("reverse", 3).unwrap();
    let server = {
        let sums = Arc::new(Mutex::new(0));
        let own = Arc::clone(&sums);
        (spawn(&tiers[1], move || *own.lock().unwrap() = reverse(&calls)), sums)
    };
    let mut tasks = Vec::new();
    for (node, tier) in (0..).zip(tiers) {
        for thread in 0..threads {
            let own = tier.clone();
            tasks.push(spawn(tier, move || {
                let mut answer = [0; 10_000];
                for round in 0..rounds {
                    let length = if round % 5 == 4 { 9000 } else { 8 + round as usize % 50 };
                    let mut request = vec![0; length];
                    request[..8].copy_from_slice(&(node << 32 | thread << 16 | round).to_le_bytes());
                    let got = own.call("bob", "reverse", 3, &request, &mut answer).unwrap();
                    request.reverse();
                    assert_eq!(&answer[..got], &request[..]);
                }
            }));
        }
    }
    tasks.into_iter().for_each(dunlin_fabric::Task::join);
    assert_eq!(tiers[0].call("bob", "reverse", 3, STOP, &mut [0; 8]).unwrap(), 4);
    server.0.join();
    assert_eq!(*server.1.lock().unwrap(), 3 * threads * rounds);
    let error = call_error(tiers[0].call("bob", "reverse", 3, STOP, &mut [0; 8]));
    assert_eq!(error, CallError::NotExecuted(Cause::Refused(Status::UnknownFunction)));
}

#[test]
fn threads_of_all_nodes_call_a_service_on_shared_memory() {
    on_shared_memory(|tiers| everybody_calls(tiers, 3, 100));
}

#[test]
fn threads_of_all_nodes_call_a_service_in_virtual_time() {
    for seed in 0..8 {
        in_virtual_time(seed, true, |tiers| everybody_calls(tiers, 3, 15));
    }
}

/// Refusals and errors, one by one.
fn mistakes<F: Fabric>([alice, bob, _]: &[Tier<F>; 3]) {
    let nobody = CallError::NotExecuted(Cause::Refused(Status::UnknownFunction));
    assert_eq!(call_error(alice.call("bob", "sums", 1, b"", &mut [])), nobody);
    let calls = bob.register("sums", 1).unwrap();
    assert_eq!(call_error(alice.call("bob", "sums", 2, b"", &mut [])), nobody, "another function");
    assert_eq!(call_error(alice.call("alice", "sums", 1, b"", &mut [])), nobody, "another node");
    assert!(matches!(alice.call("dave", "sums", 1, b"", &mut []), Err(RequestError::NoNode(_))));
    assert!(matches!(alice.call("bob", "", 1, b"", &mut []), Err(RequestError::Name(_))));
    let long = vec![0; (4 << 20) + 1];
    assert!(matches!(alice.call("bob", "sums", 1, &long, &mut []), Err(RequestError::Limit { .. })));
    assert!(matches!(bob.register("sums", 1), Err(RequestError::Registered { .. })));
    assert!(alice.register("sums", 1).is_ok(), "each node has its own");
    assert!(matches!(calls.receive_within(&mut [], Duration::ZERO), Err(ReceiveError::NoCall)));

    let call = |request: &'static [u8], room: usize| {
        let (own, outcome) = (alice.clone(), Arc::new(Mutex::new(None)));
        let of_thread = Arc::clone(&outcome);
        let task = spawn(alice, move || {
            let mut answer = vec![0; room];
            let called = own.call("bob", "sums", 1, request, &mut answer);
            *of_thread.lock().unwrap() = Some(called.map(|length| answer[..length].to_vec()));
        });
        (task, move || outcome.lock().unwrap().take().unwrap())
    };
    // A request that is too long for the buffer stays the next one.
    let (task, outcome) = call(b"four", 10);
    let mut buffer = [0; 10];
    assert!(matches!(calls.receive_within(&mut buffer[..3], LONG), Err(ReceiveError::TooLong { length: 4 })));
    let request = calls.receive(&mut buffer).unwrap();
    assert_eq!((request.len(), &buffer[..4]), (4, &b"four"[..]));
    assert_eq!(request.caller().unwrap().as_str(), "alice");
    assert!(request.time_left().is_some_and(|left| left > Duration::from_secs(1)));
    request.reply(b"answer");
    task.join();
    assert_eq!(outcome().unwrap(), b"answer");
    // An answer that is too long for the caller's buffer.
    let (task, outcome) = call(b"", 2);
    calls.receive(&mut buffer).unwrap().reply(b"answer");
    task.join();
    let error = outcome().unwrap_err();
    assert!(matches!(error, RequestError::AnswerTooLong { length: 6, room: 2 }));
    assert!(error.may_have_executed());
    // An error of the service, a refusal, and a request that is dropped.
    let (task, outcome) = call(b"", 2);
    calls.receive(&mut buffer).unwrap().fail(ApplicationCode::new(7).unwrap(), b"no");
    task.join();
    assert_eq!(call_error(outcome()), CallError::Application { code: 7, payload: b"no".to_vec() });
    let (task, outcome) = call(b"", 2);
    calls.receive(&mut buffer).unwrap().refuse(Status::Unauthorised);
    task.join();
    assert_eq!(call_error(outcome()), CallError::NotExecuted(Cause::Refused(Status::Unauthorised)));
    let (task, outcome) = call(b"", 2);
    drop(calls.receive(&mut buffer).unwrap());
    task.join();
    assert_eq!(call_error(outcome()), CallError::MaybeExecuted(Cause::Dropped));
    // The registration ends: a call that was taken may have been executed, one that waits was not.
    let (first, taken) = call(b"", 2);
    let request = calls.receive(&mut buffer).unwrap();
    let (second, waits) = call(b"x", 2);
    assert!(request.time_left().is_some());
    assert!(matches!(calls.receive_within(&mut [], LONG), Err(ReceiveError::TooLong { length: 1 })));
    drop(request);
    drop(calls);
    first.join();
    second.join();
    assert_eq!(call_error(taken()), CallError::MaybeExecuted(Cause::Dropped));
    assert_eq!(call_error(waits()), CallError::NotExecuted(Cause::Refused(Status::Draining)));
}

#[test]
fn mistakes_are_told_on_shared_memory() {
    on_shared_memory(mistakes);
}

#[test]
fn mistakes_are_told_in_virtual_time() {
    in_virtual_time(1, true, mistakes);
}

#[test]
fn a_call_whose_time_is_over_is_not_begun_and_one_without_answer_ends() {
    in_virtual_time(1, true, |[alice, bob, _]| {
        let calls = bob.register("slow", 1).unwrap();
        let time = Duration::from_millis(2);
        let late = call_error(alice.call_within(time, ("bob", b"slow", 1), b"a", &mut []));
        assert_eq!(late, CallError::MaybeExecuted(Cause::DeadlineExceeded));
        // It waits at bob still; its time is over, there some microseconds later, so nobody gets it.
        let host = bob.fabric().host();
        host.sleep(host.now() + 1_000_000);
        assert!(matches!(calls.receive_within(&mut [0; 4], Duration::ZERO), Err(ReceiveError::NoCall)));
        let own = alice.clone();
        let task = spawn(alice, move || {
            let late = call_error(own.call_within(time, ("bob", b"slow", 1), b"b", &mut []));
            assert_eq!(late, CallError::MaybeExecuted(Cause::DeadlineExceeded));
        });
        let mut buffer = [0; 4];
        let request = calls.receive(&mut buffer).unwrap();
        task.join();
        host.sleep(host.now() + 1_000_000);
        assert_eq!(request.time_left(), Some(Duration::ZERO));
        request.reply(b"nobody hears this");
    });
}

#[test]
fn a_server_that_does_not_receive_holds_up_nobody_else() {
    in_virtual_time(1, true, |[alice, bob, carol]| {
        let _idle = bob.register("idle", 1).unwrap();
        let calls = bob.register("reverse", 1).unwrap();
        let server = spawn(bob, move || {
            reverse(&calls);
        });
        // One-way calls do not expire: 1024 of them wait, and further calls are refused.
        for _ in 0..1024 {
            alice.send("bob", "idle", 1, b"x").unwrap();
        }
        let refused = call_error(carol.call("bob", "idle", 1, b"x", &mut []));
        assert_eq!(refused, CallError::NotExecuted(Cause::Refused(Status::Overloaded)));
        assert_eq!(carol.call("bob", "reverse", 1, b"ab", &mut [0; 2]).unwrap(), 2);
        carol.call("bob", "reverse", 1, STOP, &mut [0; 4]).unwrap();
        server.join();
    });
}

/// The messages of a node's threads share connections. All places that calls and waits may have are taken, by calls that
/// last and by those that were given up.
#[test]
fn calls_and_waits_that_last_hold_up_no_request() {
    const CALLERS: usize = 64;
    in_virtual_time(3, true, |[alice, bob, _]| {
        let idle = bob.register("idle", 1).unwrap();
        let names = (0..).map(|number| format!("lock-{number}"));
        let at_bob = |name: &String| alice.lock_home(name).unwrap() == "bob";
        let mut names: Vec<String> = names.filter(at_bob).take(CALLERS + 1).collect();
        let free = names.pop().unwrap();
        let held: Vec<_> = names.iter().map(|name| bob.lock(name).unwrap()).collect();
        let waits = names.into_iter().map(|name| {
            let own = alice.clone();
            spawn(alice, move || drop(own.lock_within(&name, LONG).unwrap()))
        });
        let waits: Vec<_> = waits.collect();
        let calls = (0..CALLERS).map(|_| {
            let own = alice.clone();
            spawn(alice, move || {
                let call = |time| call_error(own.call_within(time, ("bob", b"idle", 1), b"", &mut []));
                let short = call(Duration::from_millis(20));
                assert_eq!(short, CallError::MaybeExecuted(Cause::DeadlineExceeded));
                // Nobody has taken them when the function ends.
                let refused = Cause::Refused(Status::Draining);
                let long = call(LONG);
                assert!([Cause::WindowFull, refused].map(CallError::NotExecuted).contains(&long), "{long:?}");
            })
        });
        let calls: Vec<_> = calls.collect();
        let host = alice.fabric().host();
        host.sleep(host.now() + 60_000_000);
        let since = host.now();
        for _ in 0..100 {
            drop(alice.malloc(64, Spec::on("bob")).unwrap());
        }
        drop(alice.try_lock(&free).unwrap().unwrap());
        assert!(host.now() - since < 100_000_000, "{} ns", host.now() - since);
        drop(held);
        waits.into_iter().for_each(Task::join);
        drop(idle);
        calls.into_iter().for_each(Task::join);
        // All places are free again.
        let calls = bob.register("reverse", 1).unwrap();
        let server = spawn(bob, move || {
            reverse(&calls);
        });
        let callers = (0..CALLERS as u8).map(|number| {
            let own = alice.clone();
            spawn(alice, move || {
                let mut answer = [0; 2];
                assert_eq!(own.call("bob", "reverse", 1, &[1, number], &mut answer).unwrap(), 2);
                assert_eq!(answer, [number, 1]);
            })
        });
        let callers: Vec<_> = callers.collect();
        callers.into_iter().for_each(Task::join);
        alice.call("bob", "reverse", 1, STOP, &mut [0; 4]).unwrap();
        server.join();
    });
}

#[test]
fn a_thousand_functions_are_served_and_withdrawn() {
    in_virtual_time(2, true, |[alice, bob, _]| {
        let calls: Vec<_> = (0..1000).map(|function| bob.register("many", function).unwrap()).collect();
        for function in [0, 1, 500, 999] {
            let own = alice.clone();
            let task = spawn(alice, move || {
                let mut answer = [0; 2];
                assert_eq!(own.call("bob", "many", function, b"", &mut answer).unwrap(), 2);
                assert_eq!(u16::from_le_bytes(answer), function);
            });
            let request = calls[usize::from(function)].receive(&mut []).unwrap();
            request.reply(&function.to_le_bytes());
            task.join();
        }
        drop(calls);
        let nobody = CallError::NotExecuted(Cause::Refused(Status::UnknownFunction));
        assert_eq!(call_error(alice.call("bob", "many", 500, b"", &mut [])), nobody);
        let _again = bob.register("many", 500).unwrap();
    });
}

/// Sends, and calls to many nodes at once.
fn one_way_and_many<F: Fabric>(tiers: &[Tier<F>; 3]) {
    let [alice, bob, carol] = tiers;
    let counted = Arc::new(Mutex::new(BTreeMap::new()));
    let mut servers = Vec::new();
    for tier in [bob, carol] {
        let (calls, counted) = (tier.register("votes", 7).unwrap(), Arc::clone(&counted));
        let name = tier.name().to_owned();
        servers.push(spawn(tier, move || {
            let mut buffer = [0; 16];
            loop {
                let request = calls.receive(&mut buffer).unwrap();
                let vote = buffer[..request.len()].to_vec();
                request.reply(name.as_bytes());
                if vote == STOP {
                    return;
                }
                *counted.lock().unwrap().entry((name.clone(), vote)).or_insert(0) += 1;
            }
        }));
    }
    assert_eq!(alice.servers("votes").unwrap(), ["bob", "carol"]);
    assert_eq!(carol.servers("votes").unwrap(), ["carol", "bob"]);
    assert_eq!(alice.servers("vote").unwrap(), [""; 0]);
    for _ in 0..10 {
        alice.send("carol", "votes", 7, b"yes").unwrap();
    }
    for _ in 0..5 {
        let answers = bob.multicast(&["alice", "bob", "carol"], "votes", 7, b"no").unwrap();
        let [none, first, second] = &answers[..] else { panic!("{answers:?}") };
        assert!(matches!(
            none,
            Err(RequestError::Call {
                source: CallError::NotExecuted(Cause::Refused(Status::UnknownFunction)),
                ..
            })
        ));
        assert_eq!((first.as_deref().unwrap(), second.as_deref().unwrap()), (&b"bob"[..], &b"carol"[..]));
    }
    for answer in alice.multicast(&["bob", "carol"], "votes", 7, STOP).unwrap() {
        answer.unwrap();
    }
    servers.into_iter().for_each(dunlin_fabric::Task::join);
    let counted = counted.lock().unwrap();
    let of = |name: &str, vote: &[u8]| counted.get(&(name.to_owned(), vote.to_vec())).copied();
    assert_eq!((of("bob", b"no"), of("carol", b"no"), of("carol", b"yes")), (Some(5), Some(5), Some(10)));
}

#[test]
fn one_way_calls_and_calls_to_many_nodes_work_on_shared_memory() {
    on_shared_memory(one_way_and_many);
}

#[test]
fn one_way_calls_and_calls_to_many_nodes_work_in_virtual_time() {
    for seed in 0..4 {
        in_virtual_time(seed, true, one_way_and_many);
    }
}

/// A node ends with calls taken and waiting; its next life serves again.
#[test]
fn a_node_ends_with_calls_under_way_and_comes_back() {
    let tag = tag();
    let fabric = || ShmFabric::new(ShmConfig::default()).unwrap();
    let alice = start(&fabric(), Scheme::Shm, &tag, "alice");
    let bob = start(&fabric(), Scheme::Shm, &tag, "bob");
    let calls = bob.register("reverse", 1).unwrap();
    let own = alice.clone();
    let task = spawn(&alice, move || {
        let error = call_error(own.call("bob", "reverse", 1, b"ab", &mut [0; 2]));
        assert_ne!(error.was_executed(), Some(false), "{error}");
    });
    let mut buffer = [0; 16];
    // Never answered.
    let _taken = Box::leak(Box::new(calls.receive(&mut buffer).unwrap()));
    drop(calls);
    drop(bob);
    task.join();
    let error = alice.call_within(Duration::from_secs(1), ("bob", b"reverse", 1), b"ab", &mut [0; 2]);
    assert!(!error.unwrap_err().may_have_executed());
    let bob = start(&fabric(), Scheme::Shm, &tag, "bob");
    let calls = bob.register("reverse", 1).unwrap();
    let server = spawn(&bob, move || {
        reverse(&calls);
    });
    // The client connects with back-off.
    let until = std::time::Instant::now() + LONG;
    while let Err(error) = alice.call("bob", "reverse", 1, b"ab", &mut [0; 2]) {
        assert!(!error.may_have_executed() && std::time::Instant::now() < until, "{error}");
        std::thread::sleep(Duration::from_millis(1));
    }
    alice.call("bob", "reverse", 1, STOP, &mut [0; 4]).unwrap();
    server.join();
}
