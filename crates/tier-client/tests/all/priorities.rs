//! Priorities of processes, of their handles and of their calls (LITE section 6.2), from the request to the counters of
//! the node.

use crate::common::{HANG, Serving, attach, config, fabric, serve, tag};
use crate::hostile::{Raw, problem, send};
use crate::turns::{NODES, in_virtual_time, node, spawn};
use dunlin_fabric::{Address, Fabric as _, Host as _};
use dunlin_rpc::{CallError, Cause, Client, ClientConfig, Status};
use dunlin_tier::Name;
use dunlin_tier::process::list::{ListedChange, ListedOperation};
use dunlin_tier::process::service::{Given, INVOKE_REFUSED, Room, ServiceRequest};
use dunlin_tier::process::{ATTACH, Problem, ProcessRequest, READ_HERE, STATUS, gateway_name};
use dunlin_tier_client::{
    AttachConfig, AttachError, ListError, OperationError, Operations, Priority, ReceiveError, RequestError,
    Spec, Tier,
};
use dunlin_tier_node::{Limit, Policy, QosError, Share};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const BOTH: [Priority; 2] = [Priority::Low, Priority::High];

/// Operations and calls of low and of high priority that the node has begun.
fn begun(node: &Serving) -> [[u64; 2]; 2] {
    BOTH.map(|priority| {
        let counted = node.node.operations(priority);
        [counted.operations, counted.calls]
    })
}

fn attach_as(node: &Serving, priority: Priority) -> Result<Tier, AttachError> {
    let settings =
        AttachConfig { priority: Some(priority), timeout: HANG, ..AttachConfig::new(node.address.clone()) };
    Tier::attach_with(&fabric(), settings)
}

/// On bytes of the own node, of the other node, and by the pool.
#[test]
fn a_call_goes_before_its_handle_and_the_handle_before_its_process() {
    let tag = tag("priorities");
    let nodes = NODES.map(|name| serve(config(&tag, &NODES, name), &tag, |_| {}));
    let app = attach_as(&nodes[0], Priority::Low).unwrap();
    assert_eq!(app.priority(), Priority::Low);
    let mut expected = [0, 0];
    let mut counts = |priority: Priority, more: u64| {
        expected[priority as usize] += more;
        assert_eq!(begun(&nodes[0]).map(|[operations, _]| operations), expected, "{priority:?}");
    };
    for store in NODES {
        let mut region = app.malloc(1 << 20, Spec::on(store)).unwrap();
        let long = vec![1; 100_000];
        // The process.
        region.write(0, &[1; 8]).unwrap();
        counts(Priority::Low, 1);
        region.fetch_add(8, 1).unwrap();
        region.write_notify(16, &[1; 8], 32, 1).unwrap();
        counts(Priority::Low, 2);
        // A call.
        region.with_priority(Priority::High).unwrap().read(0, &mut [0; 8]).unwrap();
        region.with_priority(Priority::High).unwrap().compare_swap(8, 1, 2).unwrap();
        region.within(HANG).with_priority(Priority::High).unwrap().write_notify(16, &[1; 8], 32, 1).unwrap();
        counts(Priority::High, 3);
        let list = || Operations::new().write(&region, 0, &[2; 8]).fetch_add(&region, 8, 1);
        list().run().unwrap();
        counts(Priority::Low, 2);
        list().with_priority(Priority::High).run().unwrap();
        counts(Priority::High, 2);
        // Too long for the worker.
        region.with_priority(Priority::High).unwrap().write(0, &long).unwrap();
        counts(Priority::High, if store == "one" { 2 } else { 1 });
        // The handle.
        region.set_priority(Priority::High).unwrap();
        assert_eq!(region.priority(), Priority::High);
        region.write(0, &[1; 8]).unwrap();
        region.fetch_add(8, 1).unwrap();
        counts(Priority::High, 2);
        region.with_priority(Priority::Low).unwrap().write(0, &[1; 8]).unwrap();
        counts(Priority::Low, 1);
        // A list runs with the least priority of its handles.
        let other = app.malloc(4096, Spec::on(store)).unwrap();
        Operations::new().write(&region, 0, &[1; 8]).write(&other, 0, &[1; 8]).run().unwrap();
        counts(Priority::Low, 2);
        let other = app.with_priority(Priority::High).unwrap().malloc(4096, Spec::on(store)).unwrap();
        Operations::new().write(&region, 0, &[1; 8]).write(&other, 0, &[1; 8]).run().unwrap();
        counts(Priority::High, 2);
    }
    let status = app.status().unwrap();
    assert_eq!(status.priorities.map(|one| one.operations), expected);
    assert_eq!(status.processes.iter().map(|one| one.priority).collect::<Vec<_>>(), [Priority::Low]);
    let other = attach(&nodes[0].address);
    assert_eq!(other.priority(), Priority::High);
    let shown = other.status().unwrap().processes.into_iter().map(|one| (one.number, one.priority));
    let mut shown: Vec<_> = shown.collect();
    shown.sort_unstable_by_key(|(number, _)| *number);
    assert_eq!(shown, [(1, Priority::Low), (2, Priority::High)]);
}

/// Makes a call until it is executed; returns the number of attempts. A connection of the node may take longer than it waits
/// on a machine that has much to do.
fn call_until_done(mut call: impl FnMut() -> Result<usize, RequestError>) -> u64 {
    let begin = std::time::Instant::now();
    for attempts in 1.. {
        match call() {
            Ok(length) => {
                assert_eq!(length, 1);
                return attempts;
            }
            Err(error) => assert!(!error.may_have_executed() && begin.elapsed() < HANG, "{error:?}"),
        }
    }
    0
}

#[test]
fn calls_to_services_have_the_priority_of_their_process_or_their_own() {
    let tag = tag("priorities-calls");
    for policy in [Policy::Arrival, Policy::Shares, Policy::Reserved { low: 1 }] {
        let mut settings = config(&tag, &["one"], "one");
        settings.qos.policy = policy;
        let node = serve(settings, &tag, |_| {});
        let server = attach(&node.address);
        let calls = server.register("double", 1).unwrap();
        // It ends with the node.
        let served = std::thread::spawn(move || {
            let mut buffer = [0; 8];
            while let Ok(request) = calls.receive(&mut buffer) {
                let _ = request.reply(&[2 * buffer[0]]);
            }
        });
        let mut expected = [0, 0];
        let mut called = |priority: Priority, attempts: u64| {
            expected[priority as usize] += attempts;
            assert_eq!(begun(&node).map(|[_, calls]| calls), expected, "{policy:?}, {priority:?}");
        };
        let call = |tier: &Tier, number: u8| {
            let mut answer = [0; 1];
            let attempts = call_until_done(|| tier.call("", "double", 1, &[number], &mut answer));
            assert_eq!(answer, [2 * number]);
            attempts
        };
        let low = attach_as(&node, Priority::Low).unwrap();
        called(Priority::Low, call(&low, 1));
        called(Priority::Low, call(&low, 2));
        called(Priority::High, call(&low.with_priority(Priority::High).unwrap(), 3));
        called(Priority::High, call(&server, 4));
        called(Priority::Low, call(&server.with_priority(Priority::Low).unwrap(), 5));
        // A thread of the node itself.
        let (mut answer, own) = ([0; 1], node.node.with_priority(Priority::Low).unwrap());
        called(Priority::Low, call_until_done(|| own.call("one", "double", 1, &[6], &mut answer)));
        assert_eq!(answer, [12]);
        drop((low, server, own));
        drop(node);
        served.join().unwrap();
    }
}

/// The share of the user permits low priority only: a process cannot raise it by any way.
#[test]
fn a_share_of_low_priority_is_not_raised() {
    let tag = tag("priorities-share");
    let mut settings = config(&tag, &["one"], "one");
    settings.qos.everyone = Share { priority: Priority::Low, ..Share::default() };
    let node = serve(settings, &tag, |_| {});
    let app = attach(&node.address);
    let refused = QosError::Priority { principal: app.principal().to_owned() };
    match attach_as(&node, Priority::High) {
        Err(AttachError::Refused(RequestError::Qos(error))) => assert_eq!(error, refused),
        other => panic!("{other:?}"),
    }
    assert_eq!(app.priority(), Priority::Low);
    let mut region = app.malloc(4096, Spec::here()).unwrap();
    assert_eq!(region.set_priority(Priority::High), Err(refused.clone()));
    assert_eq!(region.with_priority(Priority::High).err(), Some(refused.clone()));
    assert_eq!(app.with_priority(Priority::High).err(), Some(refused.clone()));
    let list = Operations::new().write(&region, 0, b"bytes").with_priority(Priority::High).run();
    assert!(
        matches!(&list, Err(ListError::NotBegun(OperationError::Qos(error))) if *error == refused),
        "{list:?}"
    );
    region.write(0, &[1; 8]).unwrap();
    assert_eq!(begun(&node).map(|[operations, _]| operations), [1, 0]);

    // Without the library: the node checks each request.
    let mut raw = Raw::attach(&node);
    let opened = raw.malloc(4096, "one");
    let (priority, handle, offset) = (Priority::High, opened.handle, 0);
    let listed = ListedOperation { handle, offset, change: ListedChange::Add(1) };
    let expected = Problem::Priority(app.principal().to_owned());
    for request in [
        ProcessRequest::Read { priority, handle, offset, length: 8 },
        ProcessRequest::Read { priority, handle, offset, length: 4096 },
        ProcessRequest::Write { priority, handle, offset, bytes: b"raised" },
        ProcessRequest::WriteNotify { priority, handle, offset, word_offset: 8, value: 1, bytes: b"raised" },
        ProcessRequest::FetchAdd { priority, handle, offset, add: 1 },
        ProcessRequest::CompareSwap { priority, handle, offset, expected: 0, swap: 1 },
    ] {
        assert_eq!(problem(raw.ask(&request)), expected, "{request:?}");
    }
    let here = ProcessRequest::Read { priority, handle, offset, length: 8 };
    assert_eq!(problem(send(&mut raw.client, READ_HERE, &here)), expected);
    assert_eq!(problem(raw.ask(&ProcessRequest::Run { priority, operations: vec![listed] })), expected);
    let service = Name::new("nobody").unwrap();
    let invoke = ServiceRequest::Invoke {
        node: "",
        service,
        function: 1,
        is_one_way: false,
        priority,
        room: Room::Answer(0),
        bytes: Given::Here(b""),
    };
    let mut payload = Vec::new();
    invoke.encode_into(&mut payload);
    match raw.client.call(invoke.function(), &payload).map(|_| ()) {
        Err(CallError::Application { code: INVOKE_REFUSED, payload }) => {
            assert_eq!(Problem::parse(&payload), Ok(expected.clone()));
        }
        other => panic!("{other:?}"),
    }
    let mut stranger = Raw::connect(&node);
    let attach = ProcessRequest::Attach { secret: None, priority: Some(priority) };
    assert_eq!(problem(send(&mut stranger, ATTACH, &attach)), expected);
    // It is no process: nothing of it is known.
    assert_eq!(problem(send(&mut stranger, STATUS, &ProcessRequest::Status)), Problem::NotAttached);
    // Neither priority.
    for wrong in [2, 255] {
        let mut bytes = Vec::new();
        ProcessRequest::FetchAdd { priority: Priority::Low, handle, offset, add: 1 }.encode_into(&mut bytes);
        bytes[0] = wrong;
        let answer = raw.client.call(dunlin_tier::process::FETCH_ADD, &bytes).map(|answer| answer.to_vec());
        assert_eq!(problem(answer), Problem::Malformed);
        invoke.encode_into(&mut payload);
        payload[3] = wrong;
        match raw.client.call(invoke.function(), &payload).map(|_| ()) {
            Err(CallError::Application { payload, .. }) => {
                assert_eq!(Problem::parse(&payload), Ok(Problem::Malformed));
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(begun(&node), [[1, 0], [0, 0]], "nothing of it began");
}

/// Two processes want more than the paths carry: high priority is ahead under every rule but order of arrival.
#[test]
fn a_process_of_high_priority_is_ahead_of_one_of_low_priority() {
    let policies = [Policy::Arrival, Policy::Reserved { low: 1 }, Policy::Paced, Policy::Shares];
    for policy in policies {
        in_virtual_time(5, true, move |sim, fabrics| {
            let change = |config: &mut dunlin_tier_node::TierConfig| {
                config.qos.policy = policy;
                config.paths = 3;
            };
            let nodes = [0, 1].map(|at| node(&fabrics[at], NODES[at], change));
            let done: Arc<[AtomicU64; 2]> = Arc::default();
            let until = sim.host().now() + 8_000_000;
            let mut tasks = Vec::new();
            for priority in BOTH {
                let fabric = sim.process_on(0);
                let settings =
                    AttachConfig { priority: Some(priority), ..AttachConfig::new(nodes[0].address.clone()) };
                let app = Tier::attach_with(&fabric, settings).unwrap();
                let region = Arc::new(app.malloc(1 << 16, Spec::on("two")).unwrap());
                region.write(0, &[1; 8]).unwrap();
                for _ in 0..8 {
                    let (region, done, host) = (Arc::clone(&region), Arc::clone(&done), sim.host().clone());
                    tasks.push(spawn(&sim, move || {
                        while host.now() < until {
                            region.write(0, &[1; 60_000]).unwrap();
                            done[priority as usize].fetch_add(1, Ordering::Relaxed);
                        }
                    }));
                }
            }
            tasks.into_iter().for_each(dunlin_fabric::Task::join);
            let [low, high] = [0, 1].map(|at| done[at].load(Ordering::Relaxed));
            println!("{policy:?}: {low} of low, {high} of high priority");
            assert!(low > 0 && high > 0, "{policy:?}: {low} {high}");
            match policy {
                Policy::Arrival => assert!(4 * low > 3 * high, "{low} {high}"),
                Policy::Reserved { .. } => assert!(2 * high > 3 * low, "{low} {high}"),
                // With all threads of the pool for low priority, it would be about twice.
                _ => assert!(high > 4 * low, "{policy:?}: {low} {high}"),
            }
        });
    }
}

/// The limit of a principal counts operations and calls of its processes alike, and refuses both by types.
#[test]
fn a_limit_refuses_calls_and_operations_of_processes() {
    let tag = tag("priorities-limit");
    let mut settings = config(&tag, &["one"], "one");
    // One byte a second: each operation brings the principal into debt for longer than the test.
    settings.qos.everyone.limit = Limit { bytes: 1, ..Limit::NONE };
    let node = serve(settings, &tag, |_| {});
    let server = attach(&node.address);
    let calls = server.register("double", 1).unwrap();
    let app = attach(&node.address);
    let own = app.malloc(8192, Spec::here()).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| calls.receive(&mut [0; 1000]).unwrap().reply(b"ok").unwrap());
        let attempts = call_until_done(|| app.call("one", "double", 1, &[1; 1000], &mut [0; 2]).map(|_| 1));
        assert_eq!(attempts, 1, "the first call brings the principal into debt");
    });
    let error = app.call("one", "double", 1, &[1; 1000], &mut [0; 2]).unwrap_err();
    match &error {
        RequestError::OverLimit { principal, what: "bytes", limit: 1, retry_after } => {
            assert!(principal == app.principal() && *retry_after > HANG, "{error:?}");
        }
        other => panic!("{other:?}"),
    }
    assert!(!error.may_have_executed());
    let error = own.write(0, &[1; 5000]).unwrap_err();
    assert!(matches!(error, OperationError::Limit { what: "bytes", limit: 1, .. }), "{error:?}");
    // A client of the engine knows the statuses of the engine.
    let address = Address::new(node.address.scheme(), &gateway_name(node.address.name())).unwrap();
    let plain = ClientConfig { service: "double".to_owned(), ..ClientConfig::default() };
    let mut plain = Client::connect(&fabric(), &address, plain).unwrap();
    let refused = plain.call(1, &[1; 1000]).map(drop).unwrap_err();
    assert_eq!(refused, CallError::NotExecuted(Cause::Refused(Status::Overloaded)));
    assert!(matches!(calls.try_receive(&mut [0; 1000]), Err(ReceiveError::NoCall)), "nobody was called");
}

/// Calls of low priority of a process pause at the node, whose worker waits for none of them. The server receives for a time,
/// and loses no call at its end.
#[test]
fn calls_of_processes_pause_in_virtual_time() {
    in_virtual_time(3, true, |sim, fabrics| {
        let change = |config: &mut dunlin_tier_node::TierConfig| config.qos.policy = Policy::Paced;
        let nodes = [0, 1].map(|at| node(&fabrics[at], NODES[at], change));
        let attach = |priority| {
            let settings =
                AttachConfig { priority: Some(priority), ..AttachConfig::new(nodes[0].address.clone()) };
            Tier::attach_with(&sim.process_on(0), settings).unwrap()
        };
        let server = attach(Priority::High);
        let calls = Arc::new(server.register("echo", 1).unwrap());
        let (begin, time) = (sim.host().now(), 4_000_000);
        let late = calls.receive_within(&mut [0; 8], Duration::from_millis(2)).map(drop);
        assert!(matches!(late, Err(ReceiveError::NoCall)), "{late:?}");
        let waited = sim.host().now() - begin;
        assert!((2_000_000..2_200_000).contains(&waited), "{waited}");
        let is_over = Arc::new(AtomicU64::new(0));
        let done: Arc<[AtomicU64; 2]> = Arc::default();
        let executed = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
        let mut servers = Vec::new();
        for _ in 0..6 {
            let (calls, is_over, executed) =
                (Arc::clone(&calls), Arc::clone(&is_over), Arc::clone(&executed));
            servers.push(spawn(&sim, move || {
                while is_over.load(Ordering::Relaxed) == 0 {
                    // So short that many receivers give up in the instant in which a call comes.
                    match calls.receive_within(&mut [0; 8], Duration::from_micros(20)) {
                        Ok(request) => {
                            executed[0].fetch_add(1, Ordering::Relaxed);
                            request.reply(b"done").unwrap();
                        }
                        Err(ReceiveError::NoCall) => _ = executed[1].fetch_add(1, Ordering::Relaxed),
                        Err(error) => panic!("{error}"),
                    }
                }
            }));
        }
        let until = sim.host().now() + time;
        let mut callers = Vec::new();
        for thread in 0..9 {
            let priority = if thread < 6 { Priority::High } else { Priority::Low };
            let (app, done, host) = (attach(priority), Arc::clone(&done), sim.host().clone());
            callers.push(spawn(&sim, move || {
                while host.now() < until {
                    assert_eq!(app.call("one", "echo", 1, b"x", &mut [0; 4]).unwrap(), 4);
                    done[priority as usize].fetch_add(1, Ordering::Relaxed);
                }
            }));
        }
        callers.into_iter().for_each(dunlin_fabric::Task::join);
        is_over.store(1, Ordering::Relaxed);
        servers.into_iter().for_each(dunlin_fabric::Task::join);
        let [low, high] = [0, 1].map(|at: usize| done[at].load(Ordering::Relaxed));
        let [taken, nothing] = [0, 1].map(|at: usize| executed[at].load(Ordering::Relaxed));
        println!("{low} of low, {high} of high priority, {nothing} receivers gave up");
        assert_eq!(taken, low + high, "a call that was handed out is received");
        assert!(
            low > 3 && low <= 3 * (2 + time / 112_000) && high > 3 * low && nothing > 0,
            "{low} {high} {nothing}"
        );
    });
}
