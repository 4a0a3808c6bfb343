//! Services of processes: between nodes, with mistakes, and with processes that vanish or lie.

use crate::common::{HANG, Serving, attach, config, fabric, serve, tag, wait};
use dunlin_fabric::{Address, Scheme};
use dunlin_rpc::{
    ApplicationCode, CallError, Cause, Client, ClientConfig, FunctionMode, ServerBuilder, Status,
};
use dunlin_tier::process::service::{
    Given, INVOKE, INVOKE_REFUSED, Outcome, RECEIVE, REGISTER, REPLY, Room, ServiceRequest, WITHDRAW,
};
use dunlin_tier::process::{ATTACH, Problem, ProcessRequest, REFUSED, SERVICE, gateway_name};
use dunlin_tier::{Name, Priority, Slots};
use dunlin_tier_client::{Calls, EachCall, ReceiveError, RequestError};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{sleep, spawn};
use std::time::Duration;

const STOP: &[u8] = b"stop";

fn nodes(what: &str, names: &[&str]) -> Vec<Serving> {
    let tag = tag(what);
    names.iter().map(|name| serve(config(&tag, names, name), &tag, |_| {})).collect()
}

#[track_caller]
fn call_error<T: std::fmt::Debug>(outcome: Result<T, RequestError>) -> CallError {
    match outcome {
        Err(RequestError::Call { source, .. }) => source,
        other => panic!("no failed call: {other:?}"),
    }
}

/// Answers each request with its bytes reversed, until one is `STOP`; returns how many there were.
fn reverse(calls: &Calls) -> u64 {
    let (mut buffer, mut count) = (vec![0; 1 << 20], 0);
    let mut request = calls.receive(&mut buffer).unwrap();
    loop {
        let mut answer = buffer[..request.len()].to_vec();
        answer.reverse();
        if &buffer[..request.len()] == STOP {
            request.reply(&answer).unwrap();
            return count;
        }
        count += 1;
        request = request.reply_and_receive(&answer, &mut buffer).unwrap();
    }
}

/// Calls that are made at the same time: each with a request of its own, a failure in its place, and more than fit at once.
#[test]
fn several_calls_at_a_time_get_the_answers_of_their_own() {
    let nodes = nodes("each", &["one", "two"]);
    let servers: Vec<_> = nodes
        .iter()
        .map(|node| {
            let calls = attach(&node.address).register("reverse", 3).unwrap();
            spawn(move || reverse(&calls))
        })
        .collect();
    let app = attach(&nodes[0].address);
    let requests: Vec<String> = (0..600).map(|number| format!("request {number}")).collect();
    for _ in 0..2 {
        let calls: Vec<EachCall<'_>> = requests
            .iter()
            .enumerate()
            .map(|(at, request)| EachCall {
                node: ["one", "two", "two"][at % 3],
                service: [&b"reverse"[..], b"reverse", b"nobody"][at % 3],
                function: 3,
                request: request.as_bytes(),
            })
            .collect();
        let answers = app.call_each(HANG, &calls).unwrap();
        assert_eq!(answers.len(), calls.len());
        for (at, (call, answer)) in calls.iter().zip(answers).enumerate() {
            if at % 3 == 2 {
                let error = call_error(answer);
                assert_eq!(error.was_executed(), Some(false), "{error:?}");
            } else {
                let mut expected = call.request.to_vec();
                expected.reverse();
                assert_eq!(answer.unwrap(), expected);
            }
        }
    }
    assert_eq!(app.call_each(HANG, &[]).unwrap().len(), 0);
    let absent = EachCall { node: "three", service: b"reverse", function: 3, request: b"" };
    let answers = app.call_each(HANG, &[absent]);
    assert!(matches!(answers.as_deref(), Ok([Err(RequestError::NoNode(_))])), "{answers:?}");
    let bad = app.call_each(HANG, &[EachCall { service: b"", ..absent }]);
    assert!(matches!(bad, Err(RequestError::Name(_))), "{bad:?}");
    for (node, server) in ["one", "two"].into_iter().zip(servers) {
        app.call(node, "reverse", 3, STOP, &mut [0; 8]).unwrap();
        assert_eq!(server.join().unwrap(), 400);
    }
}

#[test]
fn processes_of_two_nodes_call_a_service_of_one() {
    let nodes = nodes("calls", &["one", "two"]);
    let server = attach(&nodes[1].address);
    let calls = server.register("reverse", 3).unwrap();
    let node_calls = nodes[0].node.clone();
    let count = spawn(move || reverse(&calls));
    let threads: Vec<_> = [0, 0, 1, 1]
        .map(|node: usize| {
            let own = attach(&nodes[node].address);
            spawn(move || {
                let mut answer = vec![0; 1 << 20];
                for round in 0..150usize {
                    // Small ones, some over a message, and one of a megabyte.
                    let length = match round {
                        149 => 1 << 20,
                        _ if round % 5 == 4 => 20_000,
                        _ => round,
                    };
                    let mut request: Vec<u8> = (0..length).map(|at| (at + round) as u8).collect();
                    let got = own.call("two", "reverse", 3, &request, &mut answer).unwrap();
                    request.reverse();
                    assert!(answer[..got] == request[..], "round {round}");
                }
            })
        })
        .into_iter()
        .collect();
    // A program that has its node in its own process calls the same service.
    let mut answer = [0; 3];
    assert_eq!(node_calls.call("two", "reverse", 3, b"abc", &mut answer).unwrap(), 3);
    assert_eq!(&answer, b"cba");
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let caller = attach(&nodes[0].address);
    assert_eq!(caller.servers("reverse").unwrap(), ["two"]);
    caller.call("two", "reverse", 3, STOP, &mut [0; 4]).unwrap();
    assert_eq!(count.join().unwrap(), 601);
    assert_eq!(caller.servers("reverse").unwrap(), [""; 0]);
}

#[test]
fn mistakes_are_told() {
    let nodes = nodes("mistakes", &["one", "two"]);
    let (near, far) = (attach(&nodes[0].address), attach(&nodes[1].address));
    let nobody = CallError::NotExecuted(Cause::Refused(Status::UnknownFunction));
    assert_eq!(call_error(far.call("one", "sums", 1, b"", &mut [])), nobody);
    let calls = near.register("sums", 1).unwrap();
    assert!(matches!(near.register("sums", 1), Err(RequestError::Registered { .. })));
    assert_eq!(call_error(near.call("", "sums", 2, b"", &mut [])), nobody, "an empty name is the own node");
    assert!(
        matches!(near.call("three", "sums", 1, b"", &mut []), Err(RequestError::NoNode(name)) if name == "three")
    );
    let long = vec![0; (4 << 20) + 1];
    assert!(matches!(near.call("one", "sums", 1, &long, &mut []), Err(RequestError::Limit { .. })));
    let mut buffer = [0; 16];
    assert!(matches!(calls.try_receive(&mut buffer), Err(ReceiveError::NoCall)));

    let call = |request: &'static [u8], room: usize| {
        let own = far.clone();
        spawn(move || {
            let mut answer = vec![0; room];
            let length = own.call("one", "sums", 1, request, &mut answer)?;
            Ok(answer[..length].to_vec())
        })
    };
    let waiting = call(b"four", 10);
    let too_long = wait("the call", || match calls.try_receive(&mut buffer[..3]) {
        Err(ReceiveError::NoCall) => None,
        other => Some(other.map(|request| request.len())),
    });
    assert!(matches!(too_long, Err(ReceiveError::TooLong { length: 4 })), "{too_long:?}");
    let request = calls.receive(&mut buffer).unwrap();
    assert_eq!(request.caller(), far.principal());
    assert!(request.time_left().is_some_and(|left| left > Duration::from_secs(1) && left <= HANG));
    assert_eq!((request.len(), &buffer[..4]), (4, &b"four"[..]));
    request.reply(b"answer").unwrap();
    assert_eq!(waiting.join().unwrap().unwrap(), b"answer");
    let waiting = call(b"", 2);
    calls.receive(&mut buffer).unwrap().reply(b"answer").unwrap();
    let error = waiting.join().unwrap().unwrap_err();
    assert!(matches!(error, RequestError::AnswerTooLong { length: 6, room: 2 }) && error.may_have_executed());
    let waiting = call(b"", 2);
    calls.receive(&mut buffer).unwrap().fail(ApplicationCode::new(7).unwrap(), b"no").unwrap();
    let failed = CallError::Application { code: 7, payload: b"no".to_vec() };
    assert_eq!(call_error(waiting.join().unwrap()), failed);
    let waiting = call(b"", 2);
    // The code by which a node speaks is not for services.
    calls.receive(&mut buffer).unwrap().fail(ApplicationCode::new(INVOKE_REFUSED).unwrap(), b"\x0e").unwrap();
    assert_eq!(call_error(waiting.join().unwrap()), CallError::Executed(Cause::HandlerPanicked));
    let waiting = call(b"", 2);
    calls.receive(&mut buffer).unwrap().refuse(Status::Unauthorised).unwrap();
    let refused = CallError::NotExecuted(Cause::Refused(Status::Unauthorised));
    assert_eq!(call_error(waiting.join().unwrap()), refused);
    let waiting = call(b"", 2);
    drop(calls.receive(&mut buffer).unwrap());
    assert_eq!(call_error(waiting.join().unwrap()), CallError::MaybeExecuted(Cause::Dropped));
    // The node does not send a result that is too long for a message; the call ends with an error.
    let waiting = call(b"", 2);
    let refused = calls.receive(&mut buffer).unwrap().reply(&long);
    assert!(matches!(refused, Err(RequestError::Limit { what: "bytes in one answer", .. })), "{refused:?}");
    assert_eq!(call_error(waiting.join().unwrap()), CallError::MaybeExecuted(Cause::Dropped));
    // A deadline that passes while nobody receives.
    let late = far.call_within(Duration::from_millis(20), ("one", b"sums", 1), b"late", &mut []);
    assert_eq!(call_error(late), CallError::MaybeExecuted(Cause::DeadlineExceeded));
    // The node's clock ends it, some time after the caller's.
    wait("the end of the late call", || match calls.try_receive(&mut []) {
        Err(ReceiveError::TooLong { length: 4 }) => None,
        Err(ReceiveError::NoCall) => Some(()),
        other => panic!("{other:?}"),
    });
    // One-way calls, in their order.
    for number in 0..10 {
        far.send("one", "sums", 1, &[number]).unwrap();
    }
    for number in 0..10 {
        let request = calls.receive(&mut buffer).unwrap();
        assert_eq!((buffer[0], request.time_left()), (number, None));
        request.reply(b"nobody hears this").unwrap();
    }
    // The registration ends with a call taken and one waiting.
    let taken = call(b"", 2);
    let request = calls.receive(&mut buffer).unwrap();
    let waiting = call(b"x", 2);
    assert!(matches!(calls.receive(&mut []), Err(ReceiveError::TooLong { length: 1 })));
    drop(request);
    assert_eq!(call_error(taken.join().unwrap()), CallError::MaybeExecuted(Cause::Dropped));
    drop(calls);
    let draining = CallError::NotExecuted(Cause::Refused(Status::Draining));
    assert_eq!(call_error(waiting.join().unwrap()), draining);
    assert_eq!(call_error(far.call("one", "sums", 1, b"", &mut [])), nobody);
    let many: Vec<_> = (0..64).map(|function| near.register("many", function).unwrap()).collect();
    assert!(matches!(near.register("many", 64), Err(RequestError::Limit { limit: 64, .. })));
    drop(many);
    near.register("many", 64).unwrap();
}

/// A client without the library.
struct Raw(Client<dunlin_fabric_shm::ShmFabric>);

impl Raw {
    fn attach(node: &Serving) -> Raw {
        let config = ClientConfig { service: SERVICE.to_owned(), ..ClientConfig::default() };
        let mut raw = Raw(Client::connect(&fabric(), &node.address, config).unwrap());
        let mut bytes = Vec::new();
        ProcessRequest::Attach { secret: None, priority: None }.encode_into(&mut bytes);
        raw.0.call(ATTACH, &bytes).unwrap();
        raw
    }

    fn ask(&mut self, request: &ServiceRequest<'_>) -> Result<Vec<u8>, CallError> {
        let mut bytes = Vec::new();
        request.encode_into(&mut bytes);
        self.0.call(request.function(), &bytes).map(|answer| answer.to_vec())
    }
}

#[track_caller]
pub(crate) fn problem(answer: Result<Vec<u8>, CallError>) -> Problem {
    match answer {
        Err(CallError::Application { code: REFUSED | INVOKE_REFUSED, payload }) => {
            Problem::parse(&payload).unwrap()
        }
        other => panic!("not refused: {other:?}"),
    }
}

/// Forged numbers, answers twice and for others, any bytes: the other process's calls are right.
#[test]
fn a_process_that_lies_reaches_no_call_of_another() {
    let nodes = nodes("liar", &["one"]);
    let honest = attach(&nodes[0].address);
    let calls = honest.register("reverse", 1).unwrap();
    let server = spawn(move || reverse(&calls));
    let mut liar = Raw::attach(&nodes[0]);
    let service = Name::new("liar").unwrap();
    let answer = liar.ask(&ServiceRequest::Register { service: service.clone(), function: 1 }).unwrap();
    let own = u64::from_le_bytes(answer.try_into().unwrap());
    let reply = |registration, number, next| ServiceRequest::Reply {
        registration,
        number,
        outcome: Outcome::Result,
        next,
        bytes: Given::Here(b"forged"),
    };
    let mut numbers: Vec<u64> = vec![0, 1, u64::MAX, own ^ 1, own ^ 1 << 32, own.wrapping_add(1)];
    // The numbers that a table begins with.
    numbers.extend((0..50).map(|seed| Slots::new(4, seed).insert(()).unwrap()));
    for number in numbers {
        if number != own {
            let receive =
                ServiceRequest::Receive { registration: number, room: Room::Answer(64), time: u64::MAX };
            assert_eq!(problem(liar.ask(&receive)), Problem::NotRegistered);
            assert_eq!(problem(liar.ask(&reply(number, 1, None))), Problem::NotRegistered);
            let withdraw = ServiceRequest::Withdraw { registration: number };
            assert_eq!(problem(liar.ask(&withdraw)), Problem::NotRegistered);
        }
        // An answer to nobody's call goes nowhere.
        assert_eq!(liar.ask(&reply(own, number, None)).unwrap(), b"");
        let mut answer = [0; 3];
        honest.call("one", "reverse", 1, b"abc", &mut answer).unwrap();
        assert_eq!(&answer, b"cba");
    }
    let mut seed = 1u64;
    for round in 0..3000u64 {
        let mut drawn = Vec::new();
        for _ in 0..round % 40 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            drawn.push((seed >> 33) as u8);
        }
        // Requests that can wait for ever are not among them.
        let function = [REGISTER, WITHDRAW, REPLY, INVOKE][round as usize % 4];
        let waits = function == REPLY && drawn.get(19) == Some(&1);
        if !waits {
            let _ = liar.0.within(Duration::from_secs(5)).call(function, &drawn);
        }
    }
    let mut answer = [0; 3];
    honest.call("one", "reverse", 1, b"abc", &mut answer).unwrap();
    assert_eq!(&answer, b"cba");
    honest.call("one", "reverse", 1, STOP, &mut [0; 4]).unwrap();
    assert_eq!(server.join().unwrap(), 57);
    let unattached = ClientConfig { service: SERVICE.to_owned(), ..ClientConfig::default() };
    let mut stranger = Raw(Client::connect(&fabric(), &nodes[0].address, unattached).unwrap());
    for request in [
        ServiceRequest::Register { service: service.clone(), function: 9 },
        ServiceRequest::Receive { registration: own, room: Room::Answer(64), time: u64::MAX },
        ServiceRequest::Invoke {
            node: "one",
            service,
            function: 1,
            is_one_way: false,
            priority: Priority::High,
            room: Room::Answer(0),
            bytes: Given::Here(b""),
        },
    ] {
        assert_eq!(problem(stranger.ask(&request)), Problem::NotAttached);
    }
}

/// A receiver whose connection ends gets no call: it goes to another.
#[test]
fn a_receiver_that_vanishes_takes_no_call_with_it() {
    let nodes = nodes("vanish", &["one"]);
    let caller = attach(&nodes[0].address);
    for _ in 0..20 {
        let mut server = Raw::attach(&nodes[0]);
        let register = ServiceRequest::Register { service: Name::new("v").unwrap(), function: 1 };
        let answer = server.ask(&register).unwrap();
        let registration = u64::from_le_bytes(answer.try_into().unwrap());
        let mut bytes = Vec::new();
        ServiceRequest::Receive { registration, room: Room::Answer(64), time: u64::MAX }
            .encode_into(&mut bytes);
        server.0.submit_on(0, RECEIVE, &bytes).unwrap();
        drop(server);
        // Its process has ended with the connection: the function is nobody's, or its calls are refused.
        wait("the end of the registration", || {
            let own = Duration::from_millis(200);
            let error = call_error(caller.call_within(own, ("one", b"v", 1), b"x", &mut []));
            (error == CallError::NotExecuted(Cause::Refused(Status::UnknownFunction))).then_some(())
        });
    }
}

/// The answer to a caller that has gone goes nowhere, and harms nobody else.
#[test]
fn a_caller_vanishes_while_its_result_is_written() {
    let nodes = nodes("gone", &["one", "two"]);
    let (server, caller) = (attach(&nodes[0].address), attach(&nodes[1].address));
    let calls = server.register("g", 1).unwrap();
    let (mut buffer, result) = ([0; 64], vec![7; 1 << 20]);
    for round in 0..20 {
        let mut gone = Raw::attach(&nodes[1]);
        let service = Name::new("g").unwrap();
        let (node, priority) = ("one", dunlin_tier::Priority::High);
        let mut bytes = Vec::new();
        ServiceRequest::Invoke {
            node,
            service,
            function: 1,
            is_one_way: false,
            priority,
            room: Room::Answer(64),
            bytes: Given::Here(b"gone"),
        }
        .encode_into(&mut bytes);
        gone.0.submit_on(0, INVOKE, &bytes).unwrap();
        // A connection between the nodes may take longer than it waits.
        let request = wait("the call", || match calls.receive_within(&mut buffer, Duration::from_secs(1)) {
            Ok(request) => Some(request),
            Err(ReceiveError::NoCall) => {
                gone.0.submit_on(0, INVOKE, &bytes).unwrap();
                None
            }
            Err(error) => panic!("{error}"),
        });
        if round % 2 == 0 {
            drop(gone);
            request.reply(&result).unwrap();
        } else {
            std::thread::scope(|scope| {
                scope.spawn(|| drop(gone));
                request.reply(&result).unwrap();
            });
        }
        let mut answer = vec![0; 1 << 20];
        std::thread::scope(|scope| {
            scope.spawn(|| {
                loop {
                    let request = calls.receive(&mut [0; 64]).unwrap();
                    let is_last = request.len() == 1;
                    request.reply(&result).unwrap();
                    if is_last {
                        return;
                    }
                }
            });
            assert_eq!(caller.call("one", "g", 1, b"x", &mut answer).unwrap(), 1 << 20);
        });
        assert!(answer == result);
    }
}

#[test]
fn a_process_has_a_bounded_number_of_calls_under_way() {
    let tag = tag("bounded");
    let node = serve(config(&tag, &["one"], "one"), &tag, |settings| settings.limits.calls = 2);
    let (server, caller) = (attach(&node.address), attach(&node.address));
    let calls = server.register("s", 1).unwrap();
    let refused = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| match caller.call("one", "s", 1, b"x", &mut [0; 1]) {
                Ok(_) => {}
                Err(RequestError::Call { source, .. }) => {
                    assert_eq!(source, CallError::NotExecuted(Cause::Refused(Status::Overloaded)));
                    refused.fetch_add(1, Ordering::Relaxed);
                }
                Err(error) => panic!("{error:?}"),
            });
        }
        wait("the refusals", || (refused.load(Ordering::Relaxed) == 4).then_some(()));
        for _ in 0..2 {
            calls.receive(&mut [0; 1]).unwrap().reply(b"y").unwrap();
        }
    });
}

/// Plain clients and servers of the engine, with the node between them.
fn engine_server(name: &str) -> dunlin_rpc::Server<dunlin_fabric_shm::ShmFabric> {
    let address = Address::new(Scheme::Shm, name).unwrap();
    ServerBuilder::new(&fabric())
        .function(5, FunctionMode::Worker)
        .function(6, FunctionMode::Pool)
        .pool(|request: &dunlin_rpc::Request<'_>, reply: &mut dunlin_rpc::Reply<'_>| {
            reply.write(&[request.payload, request.payload].concat())?;
            Ok(())
        })
        .serve(&address, |_| {
            Box::new(|request: &dunlin_rpc::Request<'_>, reply: &mut dunlin_rpc::Reply<'_>| {
                match request.payload {
                    b"panic" => panic!("asked for"),
                    b"error" => Err(Status::Application(ApplicationCode::new(9).unwrap())),
                    bytes => Ok(reply.write(&bytes.iter().rev().copied().collect::<Vec<_>>())?),
                }
            })
        })
        .unwrap()
}

fn gateway(node: &Serving) -> Address {
    Address::new(Scheme::Shm, &gateway_name(node.address.name())).unwrap()
}

fn client_of(node: &Serving, service: &str) -> Client<dunlin_fabric_shm::ShmFabric> {
    let config = ClientConfig { service: service.to_owned(), timeout: HANG, ..ClientConfig::default() };
    Client::connect(&fabric(), &gateway(node), config).unwrap()
}

#[test]
fn clients_and_servers_of_the_engine_meet_through_the_nodes() {
    let nodes = nodes("engine", &["one", "two"]);
    let server = engine_server(&format!("tier-test-{}-engine", tag("engine")));
    let process = attach(&nodes[1].address);
    let announced = process.announce("reverse", server.address()).unwrap();
    announced.check(HANG).unwrap();
    assert!(matches!(process.announce("reverse", server.address()), Err(RequestError::Registered { .. })));
    assert!(matches!(process.register("reverse", 1), Err(RequestError::Registered { .. })));
    for (node, service) in [(0, "reverse"), (1, "reverse"), (0, "reverse@two")] {
        let mut client = client_of(&nodes[node], service);
        for length in [0usize, 3, 100, 5000, 300_000] {
            let request: Vec<u8> = (0..length).map(|at| at as u8).collect();
            let mut expected = request.clone();
            expected.reverse();
            assert!(client.call(5, &request).unwrap()[..] == expected[..], "{service}, {length} bytes");
        }
        assert_eq!(&client.call(6, b"ab").unwrap()[..], b"abab");
        let code = CallError::Application { code: 9, payload: vec![] };
        assert_eq!(client.call(5, b"error").unwrap_err(), code);
        let panicked = CallError::Executed(Cause::HandlerPanicked);
        assert_eq!(client.call(5, b"panic").unwrap_err(), panicked);
        let unknown = CallError::NotExecuted(Cause::Refused(Status::UnknownFunction));
        assert_eq!(client.call(7, b"").unwrap_err(), unknown);
        // Many in flight.
        let ids: Vec<_> =
            (0..50u8).map(|at| (client.submit_waiting_on(0, 5, &[at, 0]).unwrap(), at)).collect();
        let mut open = ids.len();
        while open > 0 {
            open -= client.collect(|id, answer| {
                let at = ids.iter().find(|(one, _)| *one == id).unwrap().1;
                assert_eq!(answer.unwrap(), [0, at]);
            });
        }
    }
    // Table 1's calls reach the same server.
    let mut answer = [0; 2];
    attach(&nodes[0].address).call("two", "reverse", 5, b"ab", &mut answer).unwrap();
    assert_eq!(&answer, b"ba");
    let unreachable = CallError::NotExecuted(Cause::Refused(Status::Unreachable));
    assert_eq!(client_of(&nodes[0], "nobody's").call(5, b"").unwrap_err(), unreachable);
    let mut client = client_of(&nodes[0], "reverse");
    assert_eq!(&client.call(5, b"ab").unwrap()[..], b"ba");
    drop(announced);
    let unknown = CallError::NotExecuted(Cause::Refused(Status::UnknownFunction));
    assert_eq!(client.call(5, b"ab").unwrap_err(), unknown, "the route was known");
    assert_eq!(client.call(5, b"ab").unwrap_err(), unreachable, "and looked for again");
    let config = ClientConfig { service: "x@three".to_owned(), ..ClientConfig::default() };
    let error = Client::connect(&fabric(), &gateway(&nodes[0]), config).unwrap_err();
    assert!(error.to_string().contains("no three"), "{error}");
}

/// A process cannot lead the node to a server of another process.
#[test]
fn a_server_of_another_process_is_not_taken_for_the_own_one() {
    let nodes = nodes("other", &["one"]);
    let name = format!("tier-test-{}-other", tag("other"));
    let mut child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["services::serves_elsewhere", "--exact", "--nocapture", "--test-threads=1"])
        .env("TIER_TEST_ELSEWHERE", &name)
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let address = Address::new(Scheme::Shm, &name).unwrap();
    wait("the server", || Client::connect(&fabric(), &address, ClientConfig::default()).ok());
    let process = attach(&nodes[0].address);
    let _announced = process.announce("stolen", &address).unwrap();
    let mut client = client_of(&nodes[0], "stolen");
    let error = client.call(5, b"ab").unwrap_err();
    assert_eq!(error.was_executed(), Some(false), "{error}");
    child.kill().unwrap();
    child.wait().unwrap();
}

/// The child of the test above.
#[test]
fn serves_elsewhere() {
    if let Ok(name) = std::env::var("TIER_TEST_ELSEWHERE") {
        let _server = engine_server(&name);
        sleep(Duration::from_secs(600));
    }
}
