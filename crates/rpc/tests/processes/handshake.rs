//! Failures before the first call: each one gives an error that says what to do, and the server keeps
//! serving.

#![allow(missing_docs, clippy::disallowed_methods, clippy::disallowed_types)]

use crate::common::process::{Process, ServerProcess, add_role, ready};
use crate::common::raw::{Half, RawClient, dial, greet, hello, receive, send};
use crate::common::*;
use dunlin_fabric::interpose::{Fault, FaultPlan, When};
use dunlin_fabric::{DialError, Fabric, Link, ListenError, Listener};
use dunlin_rpc::*;
use dunlin_wire::handshake::{
    Extension, Extensions, FRAME_HEADER_BYTES, Hello, HelloReply, Record, RefusalCode, Refused, SKIPPABLE,
    Token,
};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

tests!(
    two_servers_on_one_name,
    nobody_listens,
    versions_that_do_not_meet,
    a_server_of_another_version,
    a_server_before_extensions_names_its_version,
    extensions_that_a_server_does_not_know,
    every_sharing_policy_is_served,
    a_server_knows_its_clients_by_name,
    garbage_instead_of_a_hello,
    a_silent_peer_is_sent_away,
    a_silent_server_is_left,
    the_wrong_token,
    the_wrong_service,
    a_server_of_an_older_build_without_a_name,
    too_many_connections,
    impossible_lanes_are_refused,
    another_user_is_not_let_in,
    memory_that_cannot_be_had,
);

/// Adds the roles of this file.
pub(crate) fn add_roles() {
    add_role("stranger", stranger);
}

fn two_servers_on_one_name() {
    let (fabric, server) = (fabric(), ServerProcess::start(""));
    let executed = Arc::new(AtomicU64::new(0));
    let second = process::test_server(&fabric, &executed)
        .serve(&server.address, |_| process::test_service(Arc::clone(&executed)))
        .unwrap_err();
    assert!(matches!(second, ServeError::Listen(ListenError::InUse { .. })), "{second}");
    assert!(second.to_string().contains("stop it or choose another name"), "{second}");
    server.assert_serves(&fabric);
}

fn nobody_listens() {
    let error = Client::connect(&fabric(), &unique("nobody"), ClientConfig::default()).unwrap_err();
    assert!(matches!(error, ConnectError::Dial(DialError::NobodyListens { .. })), "{error}");
}

fn refusal(link: &impl Link) -> Refused {
    let message = link.receive(after(HANG / 2)).unwrap();
    match Record::decode(&message).unwrap() {
        Record::Refused(refused) => refused,
        other => panic!("{other:?} instead of a refusal"),
    }
}

fn versions_that_do_not_meet() {
    let (fabric, server) = (fabric(), ServerProcess::start(""));
    let link = dial(&fabric, &server.address);
    send(&link, &Record::Hello(Hello { min_version: 7, max_version: 9, ..hello() }));
    let refused = refusal(&link);
    assert_eq!(refused.code, RefusalCode::VERSION);
    assert!(refused.text.contains("7 to 9") && refused.text.contains("4 to 4"), "{}", refused.text);
    until("the server closed the connection", || !link.is_alive());
    server.assert_serves(&fabric);
}

/// A hand-written server that sends `answer` to the first hello.
fn by_hand(
    answer: impl Fn(&dunlin_fabric_shm::ShmLink) + Send + 'static,
) -> (Address, std::thread::JoinHandle<()>) {
    let (fabric, address) = (fabric(), unique("by-hand"));
    let listener = fabric.listen(&address).unwrap();
    let thread = std::thread::spawn(move || {
        let link = listener.accept(after(HANG / 2)).unwrap();
        assert!(matches!(receive(&link), Some(Record::Hello(_))));
        answer(&link);
        // Keep the link open until the client has closed it.
        until("the client went", || !link.is_alive());
    });
    (address, thread)
}

use dunlin_fabric::Address;

fn connect_error(address: &Address, config: ClientConfig) -> ConnectError {
    Client::connect(&fabric(), address, config).unwrap_err()
}

fn a_server_of_another_version() {
    let reply = HelloReply {
        version: 9,
        capabilities: 0,
        workers: 1,
        functions: 1,
        max_payload: 1,
        session: 1,
        extensions: Extensions::default(),
    };
    let (address, thread) = by_hand(move |link| send(link, &Record::HelloReply(reply.clone())));
    let error = connect_error(&address, ClientConfig::default());
    assert!(
        matches!(error, ConnectError::Version { ours_low: 4, ours_high: 4, theirs_low: 9, theirs_high: 9 }),
        "{error}"
    );
    assert!(error.to_string().contains("9 to 9, this client 4 to 4: update one of them"), "{error}");
    thread.join().unwrap();

    // A server without a common version says so. Its text must be made printable.
    let refused = Refused { code: RefusalCode::VERSION, text: "speaks 9 \u{1b}[31m".to_owned() };
    let (address, thread) = by_hand(move |link| send(link, &Record::Refused(refused.clone())));
    let error = connect_error(&address, ClientConfig::default());
    assert!(error.to_string().contains("speaks 9 \u{fffd}[31m"), "{error}");
    thread.join().unwrap();

    for nonsense in [&b""[..], b"HTTP/1.1 200 OK", &[0xff; 300]] {
        let (address, thread) = by_hand(move |link| link.send(nonsense).unwrap());
        let error = connect_error(&address, ClientConfig::default());
        assert!(matches!(error, ConnectError::Handshake(_)), "{error}");
        thread.join().unwrap();
    }
}

/// A server of version 3 knows no extensions: it refuses the bytes of the first hello. It says its version when it
/// is greeted again without them.
fn a_server_before_extensions_names_its_version() {
    let (fabric, address) = (fabric(), unique("older"));
    let listener = fabric.listen(&address).unwrap();
    let thread = std::thread::spawn(move || {
        let answers = [
            (
                RefusalCode::MALFORMED,
                "12 bytes follow the record's last field: the peer speaks another version",
            ),
            (
                RefusalCode::VERSION,
                "the peer speaks versions 4 to 4, this build 3 to 3: upgrade the older one",
            ),
        ];
        for (code, text) in answers {
            let link = listener.accept(after(HANG / 2)).unwrap();
            let Some(Record::Hello(hello)) = receive(&link) else { panic!("no hello") };
            assert_eq!(hello.extensions.0.is_empty(), code == RefusalCode::VERSION);
            assert_eq!((hello.min_version, hello.max_version), (4, 4));
            send(&link, &Record::Refused(Refused { code, text: text.to_owned() }));
            until("the client went", || !link.is_alive());
        }
    });
    let error = connect_error(&address, ClientConfig::default());
    assert!(error.to_string().contains("this build 3 to 3: upgrade the older one"), "{error}");
    thread.join().unwrap();
}

/// Appends an empty extension to a record without extensions.
fn with_extension(record: &Record, number: u16) -> Vec<u8> {
    let mut bytes = record.encode().unwrap();
    bytes.extend(number.to_le_bytes());
    bytes.extend([0, 0]);
    let length = (bytes.len() - FRAME_HEADER_BYTES) as u32;
    bytes[8..12].copy_from_slice(&length.to_le_bytes());
    bytes
}

fn extensions_that_a_server_does_not_know() {
    let (fabric, server) = (fabric(), ServerProcess::start(""));
    // In a hello: one that may be skipped is, another one ends the connection.
    let link = dial(&fabric, &server.address);
    link.send(&with_extension(&Record::Hello(hello()), SKIPPABLE | 77)).unwrap();
    assert!(matches!(receive(&link), Some(Record::HelloReply(_))));
    let link = dial(&fabric, &server.address);
    link.send(&with_extension(&Record::Hello(hello()), 77)).unwrap();
    let refused = refusal(&link);
    assert_eq!(refused.code, RefusalCode::UNKNOWN_EXTENSION);
    assert!(refused.text.contains("extension 0x004d of Hello"), "{}", refused.text);

    // In a request for a lane: the lane is refused, and the connection goes on.
    let half = Half::new(&fabric, &server.address, any_plan());
    half.link.send(&with_extension(&Record::OpenLane(half.open.clone()), 77)).unwrap();
    match receive(&half.link) {
        Some(Record::LaneRefused(refused)) => {
            assert_eq!((refused.lane, refused.code), (half.open.lane, RefusalCode::UNKNOWN_EXTENSION));
            assert!(refused.text.contains("extension 0x004d of OpenLane"), "{}", refused.text);
        }
        other => panic!("{other:?}"),
    }
    half.link.send(&with_extension(&Record::OpenLane(half.open.clone()), SKIPPABLE | 77)).unwrap();
    assert!(matches!(receive(&half.link), Some(Record::LaneReady(_))));

    // Others are no records at all.
    let two = [Extension::Client(1), Extension::Program("two".into())];
    let record = Record::Hello(Hello { extensions: two.into(), ..hello() });
    let doubled = with_extension(&record, Extension::Client(1).number());
    let half = Half::new(&fabric, &server.address, any_plan());
    let misplaced = with_extension(&Record::OpenLane(half.open.clone()), Extension::Client(1).number());
    half.link.send(&misplaced).unwrap();
    assert_eq!(refusal(&half.link).code, RefusalCode::MALFORMED);
    let link = dial(&fabric, &server.address);
    link.send(&doubled).unwrap();
    assert_eq!(refusal(&link).code, RefusalCode::MALFORMED);
    server.assert_serves(&fabric);
}

fn every_sharing_policy_is_served() {
    let (fabric, server) = (fabric(), ServerProcess::start(""));
    for sharing in Sharing::ALL {
        let half = Half::new(&fabric, &server.address, any_plan().shared(sharing, Lease::Forever));
        assert_eq!(half.open.sharing, sharing as u8);
        assert!(half.ask().is_ok(), "{}", sharing.name());
        let plan = any_plan().shared(sharing, Lease::Forever);
        assert_eq!(*server.client(&fabric, plan).call(ECHO, b"shared").unwrap(), *b"shared");
    }
    let by_send = by_name("Eager-SendRecv").plan(CompletionMode::Busy);
    let slice = ClientConfig::with_plan(by_send.shared(Sharing::Dedicated, Lease::Slice));
    let error = connect_error(&server.address, slice);
    assert!(
        matches!(error, ConnectError::Plan(PlanError::LeaseWithout { lease: Lease::Slice, .. })),
        "{error}"
    );
    server.assert_serves(&fabric);
}

fn a_server_knows_its_clients_by_name() {
    let fabric = fabric();
    let executed = Arc::new(AtomicU64::new(0));
    let server = process::test_server(&fabric, &executed)
        .serve(&unique("names"), |_| process::test_service(Arc::clone(&executed)))
        .unwrap();
    let named =
        |program: &str| ClientConfig { program: program.to_owned(), ..ClientConfig::with_plan(any_plan()) };
    let connect = |config| Client::connect(&fabric, server.address(), config).unwrap();
    let first = connect(named("first"));
    let again = first.another().unwrap();
    let other = connect(named("é".repeat(40).as_str()));
    let nameless = connect(named(""));
    let connections = server.clients();
    let of = |session: u64| connections.iter().find(|client| client.session == session).unwrap();
    let [one, two, three, four] =
        [first.session(), again.session(), other.session(), nameless.session()].map(of);
    // Connections of one client have one identity.
    assert!(one.client.is_some() && one.client == two.client);
    assert!(three.client != one.client && four.client != one.client && four.client != three.client);
    assert_eq!([&*one.program, &*two.program, &*four.program], ["first", "first", ""]);
    // A name that is too long is cut at a character.
    assert_eq!(three.program, "é".repeat(32));
    assert!(connections.iter().all(|client| client.lanes == 1 && client.process == std::process::id()));
    drop((first, again, nameless));
    until("three connections ended", || server.clients().len() == 1);
    // A client that does not name itself is served too.
    let (_link, reply) = greet(&fabric, server.address());
    let clients = server.clients();
    let raw = clients.iter().find(|client| client.session == reply.session).unwrap();
    assert_eq!((raw.client, &*raw.program, raw.lanes), (None, "", 0));
    drop(other);
}

fn garbage_instead_of_a_hello() {
    let (fabric, server) = (fabric(), ServerProcess::start(""));
    let late = Record::Hello(hello()).encode().unwrap();
    for bytes in
        [&b""[..], b"GET / HTTP/1.1", &[0; 4096], &late[..late.len() - 1], &Record::Drain.encode().unwrap()]
    {
        let link = dial(&fabric, &server.address);
        link.send(bytes).unwrap();
        let refused = refusal(&link);
        assert_eq!(refused.code, RefusalCode::MALFORMED, "{}", refused.text);
        assert!(!refused.text.is_empty());
        until("the server closed the connection", || !link.is_alive());
    }
    // A second hello, and records that only a server may send.
    for record in
        [Record::Hello(hello()), Record::Refused(Refused { code: RefusalCode(77), text: String::new() })]
    {
        let (link, _) = greet(&fabric, &server.address);
        send(&link, &record);
        assert_eq!(refusal(&link).code, RefusalCode::MALFORMED);
    }
    server.assert_serves(&fabric);
}

fn a_silent_peer_is_sent_away() {
    let (fabric, server) = (fabric(), ServerProcess::start("hello_timeout=300000000"));
    let silent: Vec<_> = (0..5).map(|_| dial(&fabric, &server.address)).collect();
    server.assert_serves(&fabric);
    for link in silent {
        let refused = refusal(&link);
        assert!(refused.text.contains("no hello came in time"), "{}", refused.text);
        until("the server closed the connection", || !link.is_alive());
    }
    server.assert_serves(&fabric);
}

fn a_silent_server_is_left() {
    let (address, thread) = by_hand(|_| {});
    let config = ClientConfig { connect_timeout: Duration::from_millis(100), ..ClientConfig::default() };
    let error = connect_error(&address, config);
    assert!(matches!(error, ConnectError::Link(dunlin_fabric::LinkError::TimedOut)), "{error}");
    thread.join().unwrap();
}

fn the_wrong_token() {
    let (fabric, server) = (fabric(), ServerProcess::start("token=sesame"));
    let with = |token: &[u8]| ClientConfig { token: token.to_vec(), ..ClientConfig::with_plan(any_plan()) };
    for wrong in [&b""[..], b"sesam", b"sesamE", b"sesame "] {
        let error = connect_error(&server.address, with(wrong));
        assert!(error.to_string().contains("the token is not the right one"), "{error}");
        let link = dial(&fabric, &server.address);
        send(&link, &Record::Hello(Hello { token: Token(wrong.to_vec()), ..hello() }));
        assert_eq!(refusal(&link).code, RefusalCode::UNAUTHORISED);
    }
    let mut client = Client::connect(&fabric, &server.address, with(b"sesame")).unwrap();
    assert_eq!(*client.call(ECHO, b"in").unwrap(), *b"in");
}

fn the_wrong_service() {
    let (fabric, server) = (fabric(), ServerProcess::start("service=books"));
    let with =
        |service: &str| ClientConfig { service: service.to_owned(), ..ClientConfig::with_plan(any_plan()) };
    let error = connect_error(&server.address, with("bo\noks"));
    assert!(matches!(error, ConnectError::OtherService(_)), "{error:?}");
    assert!(error.to_string().contains("this server serves 'books', not 'bo"), "{error}");
    assert!(!error.to_string().contains('\n'), "{error}");
    // A long name, which escaping makes longer still, does not keep the refusal from being sent.
    let error = connect_error(&server.address, with(&"\u{10ffff}".repeat(60)));
    assert!(error.to_string().contains("this server serves 'books', not "), "{error}");
    for right in ["", "books"] {
        let mut client = Client::connect(&fabric, &server.address, with(right)).unwrap();
        assert_eq!(*client.call(ECHO, b"in").unwrap(), *b"in");
    }
}

/// Servers of older builds without a name refuse every name. A client then states none.
fn a_server_of_an_older_build_without_a_name() {
    let (fabric, address) = (fabric(), unique("nameless"));
    let listener = fabric.listen(&address).unwrap();
    let thread = std::thread::spawn(move || {
        let refusals = [
            ("books", RefusalCode::UNKNOWN_SERVICE, "there is no service 'books' here, but ''"),
            ("", RefusalCode::UNAUTHORISED, "asked without a name"),
        ];
        for (name, code, text) in refusals {
            let link = listener.accept(after(HANG / 2)).unwrap();
            let Some(Record::Hello(hello)) = receive(&link) else { panic!("no hello") };
            assert_eq!(hello.service, name);
            send(&link, &Record::Refused(Refused { code, text: text.to_owned() }));
            until("the client went", || !link.is_alive());
        }
    });
    let config = ClientConfig { service: "books".to_owned(), ..ClientConfig::default() };
    let error = connect_error(&address, config);
    assert!(error.to_string().contains("asked without a name"), "{error}");
    thread.join().unwrap();
}

fn too_many_connections() {
    let (fabric, server) = (fabric(), ServerProcess::start("max_connections=3"));
    let mut clients: Vec<_> = (0..3).map(|_| server.client(&fabric, any_plan())).collect();
    let error = connect_error(&server.address, ClientConfig::with_plan(any_plan()));
    assert!(error.to_string().contains("as many connections as it takes"), "{error}");
    for client in &mut clients {
        assert_eq!(*client.call(ECHO, b"in").unwrap(), *b"in");
    }
    // A closed connection makes room.
    clients.pop();
    until("there is room again", || {
        Client::connect(&fabric, &server.address, ClientConfig::with_plan(any_plan())).is_ok()
    });
}

fn impossible_lanes_are_refused() {
    let (fabric, server) = (fabric(), ServerProcess::start(""));
    let plan = Plan::new(RequestHalf::Write, ResponseHalf::Write);
    type Change = fn(&mut dunlin_wire::handshake::OpenLane);
    let changes: [(Change, RefusalCode); 18] = [
        (|open| open.request_half = 0, RefusalCode::ILLEGAL_PLAN),
        (|open| open.request_half = 200, RefusalCode::ILLEGAL_PLAN),
        (|open| open.response_half = 9, RefusalCode::ILLEGAL_PLAN),
        (|open| open.client_completion = 9, RefusalCode::ILLEGAL_PLAN),
        (|open| open.server_completion = 9, RefusalCode::ILLEGAL_PLAN),
        (|open| (open.response_half, open.client_completion) = (4, 2), RefusalCode::ILLEGAL_PLAN),
        (|open| open.sharing = 0, RefusalCode::SHARING),
        (|open| open.sharing = 4, RefusalCode::SHARING),
        (|open| open.lease = 0, RefusalCode::SHARING),
        (|open| open.lease = 3, RefusalCode::SHARING),
        (|open| open.lease = Lease::Slice as u8, RefusalCode::MALFORMED),
        (|open| open.rendezvous_above = u32::MAX, RefusalCode::ILLEGAL_PLAN),
        (|open| open.ring_bytes = 0, RefusalCode::ILLEGAL_PLAN),
        (|open| open.ring_bytes = 1 << 30, RefusalCode::ILLEGAL_PLAN),
        (|open| open.window = 0, RefusalCode::ILLEGAL_PLAN),
        (|open| open.worker = 99, RefusalCode::TOO_MANY),
        (|open| open.region_keys = vec![], RefusalCode::MALFORMED),
        (|open| open.endpoint = vec![1; 1000], RefusalCode::TOO_MANY),
    ];
    for (number, (change, code)) in changes.into_iter().enumerate() {
        let mut half = Half::new(&fabric, &server.address, plan);
        change(&mut half.open);
        let refused = half.ask().unwrap_err();
        assert_eq!(refused.code, code, "{number}: {}", refused.text);
        assert!(!refused.text.is_empty());
    }
    // A ring that the client did not grant is detected when the server first WRITEs an answer into it.
    let mut half = Half::new(&fabric, &server.address, plan);
    half.open.region_keys = vec![u64::MAX];
    assert!(half.ask().is_ok());
    // The lanes of a connection are limited, however often it asks for more.
    let mut half = Half::new(&fabric, &server.address, plan);
    let mut refused = None;
    for lane in 0..40 {
        half.open.lane = lane;
        refused = refused.or(half.ask().err());
    }
    assert!(refused.unwrap().text.contains("may not have so many lanes"));
    let mut raw = RawClient::connect(&fabric, &server.address, plan);
    raw.assert_goes_on(raw::call(0, 1));
    server.assert_serves(&fabric);
}

/// The role of another user who tries to connect and prints the result.
fn stranger(address: &str) {
    use rustix::thread::set_thread_res_uid;
    let other = rustix::fs::Uid::from_raw(65_534);
    // Changes the user of this thread only, as all raw calls do; the fabric's thread starts later and
    // inherits it.
    set_thread_res_uid(other, other, other).unwrap();
    ready();
    let config =
        ClientConfig { connect_timeout: Duration::from_secs(10), ..ClientConfig::with_plan(any_plan()) };
    match Client::connect(&fabric(), &address.parse().unwrap(), config) {
        Ok(_) => println!("let in"),
        Err(ConnectError::Dial(error @ DialError::Permission { .. })) => println!("permission: {error}"),
        Err(error) => println!("other: {error}"),
    }
}

fn another_user_is_not_let_in() {
    let (fabric, server) = (fabric(), ServerProcess::start(""));
    if !rustix::process::geteuid().is_root() {
        // Without root the user cannot be changed, so there is nothing to test.
        server.assert_serves(&fabric);
        return;
    }
    let said = Process::start("stranger", &server.address.to_string()).rest();
    assert!(said.contains("permission:") && said.contains("user id 65534"), "{said}");
    server.assert_serves(&fabric);
}

fn by_name(name: &str) -> &'static Protocol {
    Protocol::by_name(name).unwrap()
}

fn memory_that_cannot_be_had() {
    // On the server: each registration fails once, in order; then connecting succeeds.
    let executed = Arc::new(AtomicU64::new(0));
    let mut refused = 0;
    for plan in [
        any_plan(),
        Plan::new(RequestHalf::Send, ResponseHalf::Fetch),
        by_name("Read-RNDV").plan(CompletionMode::Event),
    ] {
        for nth in 1..6 {
            let faulty =
                Fault::new(fabric(), FaultPlan { register_failure: When::Nth(nth), ..FaultPlan::default() });
            let server = process::test_server(&faulty, &executed)
                .serve(&unique("faulty"), |_| process::test_service(Arc::clone(&executed)))
                .unwrap();
            let good = fabric();
            let before = refused;
            for _ in 0..2 {
                let config = ClientConfig::with_plan(plan);
                match Client::connect(&good, server.address(), config) {
                    Err(error) => {
                        assert!(matches!(error, ConnectError::Refused(_)), "{error}");
                        assert!(error.to_string().contains("free memory"), "{error}");
                        refused += 1;
                    }
                    Ok(mut client) => {
                        for size in [10, 100_000, 100_000, 100_000] {
                            match client.call(ECHO, &vec![1; size]) {
                                Ok(response) => assert_eq!(response.len(), size),
                                Err(CallError::NotExecuted(Cause::Refused(Status::Overloaded)))
                                | Err(CallError::Executed(Cause::ResultTooLarge)) => refused += 1,
                                Err(error) => panic!("{error}"),
                            }
                        }
                    }
                }
            }
            assert!(refused <= before + 1, "one failure, one refusal");
            server.shutdown(Duration::from_secs(10));
        }
    }
    assert!(refused > 6, "{refused}");

    // On the client.
    let server = ServerProcess::start("");
    let mut failed = 0;
    for plan in [
        any_plan(),
        by_name("Remote-fetch").plan(CompletionMode::Busy),
        by_name("Read-RNDV").plan(CompletionMode::Event),
    ] {
        for nth in 1..8 {
            let faulty =
                Fault::new(fabric(), FaultPlan { register_failure: When::Nth(nth), ..FaultPlan::default() });
            let before = failed;
            let mut client = match Client::connect(&faulty, &server.address, ClientConfig::with_plan(plan)) {
                Ok(client) => client,
                Err(error) => {
                    assert!(error.to_string().contains("memory"), "{error}");
                    failed += 1;
                    Client::connect(&faulty, &server.address, ClientConfig::with_plan(plan)).unwrap()
                }
            };
            for size in [10, 100_000, 100_000, 100_000] {
                match client.call(ECHO, &vec![1; size]) {
                    Ok(response) => assert_eq!(response.len(), size),
                    Err(error) => {
                        assert_eq!(error.cause(), Some(Cause::OutOfMemory));
                        failed += 1;
                    }
                }
            }
            assert!(failed <= before + 1, "one failure, one error");
        }
    }
    assert!(failed > 6, "{failed}");
}
