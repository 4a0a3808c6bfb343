//! Good files become documents.
#![allow(missing_docs, reason = "a test")]

use dunlin_idl::hints::{CompletionMode, Hints, Key, Level, PerfGoal, Side, Transport};
use dunlin_idl::{Document, Function, Type, load};

fn data(name: &str) -> String {
    format!("{}/tests/data/{name}", env!("CARGO_MANIFEST_DIR"))
}

fn good(name: &str) -> Document {
    match load(data(name), &[]) {
        Ok(document) => document,
        Err(diagnostics) => panic!("{name}:\n{diagnostics}"),
    }
}

fn function<'a>(document: &'a Document, service: &str, name: &str) -> &'a Function {
    let service = document.services.iter().find(|it| it.name == service).expect("the service");
    service.all_functions().find(|it| it.name == name).expect("the function")
}

#[test]
fn a_function_counts_more_than_its_service_and_each_key_by_itself() {
    let document = good("kv.thrift");
    let get = function(&document, "KV", "get");
    let both = Hints::NONE.perf_goal(PerfGoal::Latency).concurrency(64).payload_size(1024);
    assert_eq!(get.hints.server, both);
    assert_eq!(get.hints.client, both.polling(CompletionMode::Busy));
    assert_eq!(get.result, Type::Binary);
    assert_eq!(get.arguments[0].ty, Type::Binary);
    let place = |side, key| {
        let place = get.hints.place(side, key).expect("a place");
        assert!(place.file.ends_with("kv.thrift"));
        (place.line, place.column)
    };
    assert_eq!(place(Side::Client, Key::PerfGoal), (3, 37));
    assert_eq!(place(Side::Client, Key::Polling), (3, 86));
    assert_eq!(place(Side::Server, Key::Concurrency), (2, 33));
    let multiget = function(&document, "KV", "multiget");
    assert_eq!(
        multiget.hints.client,
        Hints::NONE.perf_goal(PerfGoal::Throughput).concurrency(64).payload_size(10 << 10)
    );
    assert_eq!(multiget.arguments[0].ty, Type::List(Box::new(Type::Binary)));
    let heartbeat = function(&document, "KV", "heartbeat");
    assert!(heartbeat.oneway && heartbeat.hints.oneway);
    assert_eq!(heartbeat.hints.client.transport, Some(Transport::Tcp));
    assert_eq!(
        heartbeat.hints.origin(Side::Client, Key::Transport).map(|it| it.level),
        Some(Level::Function)
    );
    assert!(document.warnings.is_empty(), "{}", document.warnings);
}

#[test]
fn the_papers_services_are_taken() {
    for name in ["echo.thrift", "mail.thrift", "hatkv.thrift"] {
        let document = good(name);
        assert_eq!(document.services.len(), 1, "{name}");
        assert!(document.warnings.is_empty(), "{name}: {}", document.warnings);
        for service in &document.services {
            for function in service.all_functions() {
                assert!(!function.hints.origins.is_empty(), "{name}: {}", function.name);
            }
        }
    }
}
