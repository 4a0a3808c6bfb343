//! `dunlin ping`: to a temporary server, to a key-value server, and with idle connections.

use dunlin_command_testing::{Folder, Running, Server, await_none_with, dunlin};

#[test]
fn it_brings_its_own_server_and_takes_it_away() {
    let ping = Running::start(["ping", "--count", "200", "--size", "100"]);
    let server = format!("dunlin-ping-{}", ping.id());
    let ended = ping.end().well();
    let text = ended.text();
    assert!(text.contains("100 bytes") && text.contains("200 calls, 200 answered, 0 failed"), "{text}");
    for word in ["min", "p50", "p99", "max"] {
        assert!(text.contains(word), "{text}");
    }
    await_none_with(&server);
}

#[test]
fn a_store_answers_pings_of_every_size_under_every_protocol() {
    let server = Server::start(&[]);
    let folder = Folder::new("ping");
    let json = folder.file("ping.json");
    for protocol in ["server-reply", "remote-fetch", "direct-writeimm", "eager-sendrecv", "read-rndv"] {
        for size in ["0", "32", "4096", "1MiB"] {
            let arguments = ["ping", &server.address, "-p", protocol, "-s", size, "-n", "5", "--json", &json];
            let ended = dunlin(arguments).well();
            assert!(ended.text().contains("5 answered"), "{}", ended.text());
        }
    }
    let document: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&json).expect("written")).expect("JSON");
    assert_eq!(
        (&document["rows"][0]["samples"], &document["rows"][0]["size_bytes"]),
        (&5.into(), &1048576.into())
    );
    dunlin(["ping", &server.address, "--size", "65MiB"]).failed(1, &["64 MiB"]);
}

#[test]
fn lines_for_each_call_on_request() {
    let ended = dunlin(["ping", "--count", "3", "--interval", "1ms"]).well();
    assert_eq!(ended.text().lines().filter(|line| line.starts_with("call ")).count(), 3);
}

#[test]
fn an_interrupted_ping_sums_up() {
    let ping = Running::start(["ping", "--count", "1000", "--interval", "1h"]);
    ping.line_with("call 1:");
    ping.signal("INT");
    let ended = ping.end();
    assert_eq!(ended.code(), Some(130));
    assert!(ended.text().contains("1 call, 1 answered"), "{}", ended.text());
}

#[test]
fn quiet_connections_are_held_and_still_answer() {
    let server = Server::start(&[]);
    let ping = Running::start(["ping", &server.address, "--idle-connections", "50", "--seconds", "1.5"]);
    assert!(ping.line().starts_with("holding 50 quiet connections"));
    dunlin(["kv", "put", &server.address, "key", "value"]).well();
    let ended = ping.end().well();
    assert!(ended.text().contains("all 50 still answer"), "{}", ended.text());
}

/// A server of another service says what it serves.
#[test]
fn a_server_of_another_service_is_named() {
    use dunlin::{FunctionMode, Reply, Request, ServerBuilder, ServerConfig, Service};
    let config = ServerConfig { service: "Bank".to_owned(), ..ServerConfig::default() };
    let builder = ServerBuilder::new().config(config);
    let other = |request: &Request<'_>, reply: &mut Reply<'_>| Ok(reply.write(request.payload)?);
    let address: dunlin::Address = format!("shm:bank-{}", std::process::id()).parse().expect("an address");
    let server = builder
        .function(0, FunctionMode::Worker)
        .serve(&address, |_| Box::new(other) as Box<dyn Service>)
        .expect("serves");
    let address = server.address().to_string();
    dunlin(["ping", &address]).failed(1, &["this server serves 'Bank', not 'echo'"]);
    dunlin(["kv", "get", &address, "key"]).failed(1, &["this server serves 'Bank', not 'key-value store'"]);
    let store = Server::start(&[]);
    dunlin(["ping", &store.address, "-n", "3"]).well();
}

/// The ports of a typed service are asked for its name, and for the address to use.
#[test]
fn a_typed_service_is_named_at_its_thrift_port() {
    use dunlin::thrift::{Context, Failure, Never, ServerOptions, serve_with};
    use dunlin_generated::sharing::{Counted, CountedProcessor};
    struct Handler;
    impl Counted for Handler {
        fn next(&self, _: &Context, number: i32) -> Result<i32, Failure<Never>> {
            Ok(number + 1)
        }
        fn busy_next(&self, _: &Context, number: i32) -> Result<i32, Failure<Never>> {
            Ok(number + 1)
        }
    }
    let serve = |address: &str| {
        let (fabrics, processor) = (dunlin::Fabrics::global(), CountedProcessor(Handler));
        serve_with(fabrics, address, processor, ServerOptions::default()).expect("serves")
    };
    let (tcp, auto) = (serve("tcp:127.0.0.1:0"), serve("auto:127.0.0.1:0"));
    let thrift = format!("tcp:{}", auto.tcp_address().expect("stock Thrift"));
    for address in [tcp.address().to_string(), thrift] {
        let told = format!("use {address} with a typed client; it serves 'Counted'");
        dunlin(["ping", &address]).failed(1, &[&told]);
        dunlin(["kv", "get", &address, "key"]).failed(1, &[&told]);
    }
    // The port of the announcement, and a port on which nobody listens.
    let port = format!("tcp:{}", auto.address().name());
    dunlin(["ping", &port]).failed(1, &[&format!("use {}", auto.address())]);
    let gone = tcp.address().to_string();
    drop(tcp);
    dunlin(["ping", &gone]).failed(1, &["nothing answers there"]);
}

#[test]
fn nobody_there_is_said_to_be_so() {
    dunlin(["ping", "shm:nobody-there"]).failed(1, &["nobody listens", "kv serve"]);
    dunlin(["ping", "nowhere"]).failed(2, &["shm:nowhere"]);
    dunlin(["ping", "--protocol", "pigeon"]).failed(2, &["Server-reply"]);
    dunlin(["ping", "--protocol", "remote-fetch", "--completion", "event"])
        .failed(1, &["cannot wait by event"]);
}
