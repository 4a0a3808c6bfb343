//! Valid files become documents.
#![allow(missing_docs, reason = "a test")]

use dunlin_idl::hints::{CompletionMode, Hints, Key, Level, PerfGoal, Priority, Side, Transport};
use dunlin_idl::{
    DefinitionKind, Document, Function, Memory, Options, Requiredness, Type, Value, load, load_with,
};
use std::collections::HashMap;

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

#[test]
fn everything_that_thrift_has_is_taken() {
    let document = good("everything.thrift");
    let names: Vec<&str> = document.files.iter().map(|file| file.name.as_str()).collect();
    assert_eq!(names, ["everything", "base", "deep", "dotted.name"]);
    let file = &document.files[0];
    assert_eq!(file.blanked_text.len(), file.text.len());
    assert_eq!(file.namespaces[0].name, "everything.of.it");
    assert_eq!(file.namespaces[2].name, "of.struct.enum");
    assert_eq!(file.namespaces[3].scope, "py.twisted");
    let definition = |name: &str| file.definitions.iter().find(|it| it.name == name).expect(name);
    assert_eq!(definition("Id").documentation, "A number of an item.");
    let DefinitionKind::Enum(values) = &definition("Status").kind else { panic!("an enum") };
    let values: Vec<_> =
        values.iter().map(|it| (it.name.as_str(), it.number, it.documentation.as_str())).collect();
    assert_eq!(values, [("OK", 0, ""), ("SLOW", 1, ""), ("FAILED", 16, "Not at all."), ("AGAIN", 17, "")]);
    assert_eq!(definition("Status").documentation, "How it went.\nIn two lines.");
    let DefinitionKind::Struct(fields) = &definition("Everything").kind else { panic!("a struct") };
    let ids: Vec<i16> = fields.iter().map(|field| field.id).collect();
    assert_eq!(ids, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, -1, 17, 18]);
    for field in fields {
        let line = file.text.lines().nth(field.place.line as usize - 1).expect("the line");
        assert!(line[field.place.column as usize - 1..].starts_with(&field.name), "{field:?}");
    }
    assert_eq!(fields[0].documentation, "the comment of a");
    assert_eq!(
        (fields[0].requiredness, fields[1].requiredness),
        (Requiredness::Required, Requiredness::Optional)
    );
    assert!(fields[1].default.is_some() && fields[0].default.is_none());
    let Type::Named(item) = fields[13].ty else { panic!("a name") };
    assert_eq!(
        (document.definition(item).name.as_str(), document.file(item.file).name.as_str()),
        ("Item", "base")
    );
    let Type::Named(thing) = fields[14].ty else { panic!("a name") };
    assert_eq!(document.file(thing.file).name, "dotted.name");
    assert_eq!(fields[9].ty, Type::Uuid);
    let DefinitionKind::Exception(_) = &definition("Failure").kind else { panic!("an exception") };
    let calls = document.services.iter().find(|service| service.name == "Calls").expect("the service");
    let own: Vec<&str> = calls.functions.iter().map(|function| function.name.as_str()).collect();
    assert_eq!(own, ["nothing", "forget", "add", "all", "typed", "quiet", "commented"]);
    assert_eq!(calls.documentation, "Functions.");
    let add = &calls.functions[2];
    assert_eq!((add.arguments.len(), add.throws.len(), add.result.clone()), (2, 2, Type::I64));
    assert_eq!(calls.functions[4].documentation, "A type with annotations of its own.");
    assert!(calls.functions[1].oneway);
    assert!(document.warnings.is_empty(), "{}", document.warnings);
}

#[test]
fn values_are_told_with_their_places() {
    let document = good("everything.thrift");
    let file = &document.files[0];
    let mut written = HashMap::new();
    for definition in &file.definitions {
        match &definition.kind {
            DefinitionKind::Constant(_, literal) => {
                written.insert(definition.name.as_str(), literal);
            }
            DefinitionKind::Struct(fields) if definition.name == "Everything" => {
                written.extend(fields.iter().filter_map(|it| Some((it.name.as_str(), it.default.as_ref()?))));
            }
            _ => {}
        }
    }
    let calls = document.services.iter().find(|service| service.name == "Calls").expect("the service");
    let right = &calls.functions[2].arguments[1];
    written.insert("right", right.default.as_ref().expect("a default"));
    let text = |text: &str| Value::Text(text.to_owned());
    let cases = [
        ("MAX", "0x10", Value::Int(16)),
        ("LEAST", "-9223372036854775808", Value::Int(i64::MIN)),
        ("TINY", "-1.5e-3", Value::Double("-1.5e-3".to_owned())),
        ("YES", "true", Value::Bool(true)),
        ("ESCAPED", r#""with \"double\" quotes""#, text("with \"double\" quotes")),
        ("LIST", r#"[ "a", 'b'; "c" ]"#, Value::List(["a", "b", "c"].map(text).into())),
        ("q", "{}", Value::Map(Vec::new())),
        ("r", "5", Value::Int(5)),
        ("right", "1", Value::Int(1)),
    ];
    for (name, slice, value) in cases {
        let literal = written[name];
        assert_eq!((&file.text[literal.span.clone()], &literal.value), (slice, &value), "{name}");
    }
    let Value::Constant(max) = written["e"].value else { panic!("a constant") };
    assert_eq!(
        (document.definition(max).name.as_str(), &file.text[written["e"].span.clone()]),
        ("MAX", "MAX")
    );
    for (name, file_name, value_name, slice) in
        [("l", "everything", "OK", "Status.OK"), ("RED", "base", "RED", "base.Color.RED")]
    {
        let Value::EnumValue { of, name: value } = &written[name].value else { panic!("a value of an enum") };
        assert_eq!((document.file(of.file).name.as_str(), value.as_str()), (file_name, value_name));
        assert_eq!(&file.text[written[name].span.clone()], slice);
    }
}

#[test]
fn hints_are_inherited_across_files() {
    let document = good("everything.thrift");
    let calls = document.own_services().find(|service| service.name == "Calls").expect("the service");
    let all: Vec<&str> = calls.all_functions().map(|function| function.name.as_str()).collect();
    assert_eq!(all[..3], ["root", "ping", "nothing"]);
    let declared: Vec<&str> =
        calls.inherited.iter().map(|it| document.service(it.declared_in).name.as_str()).collect();
    assert_eq!(declared, ["Root", "Ping"]);
    // Of Root's service hints, those that Ping does not override.
    let shared = Hints::NONE.perf_goal(PerfGoal::Latency).concurrency(8).priority(Priority::Low);
    let nothing = &calls.functions[0];
    assert_eq!(nothing.hints.server, shared);
    assert_eq!(nothing.hints.client, shared.polling(CompletionMode::Busy));
    let level = |key| nothing.hints.origin(Side::Client, key).map(|origin| origin.level);
    assert_eq!(level(Key::PerfGoal), Some(Level::Extended(1)));
    assert_eq!(level(Key::Priority), Some(Level::Extended(2)));
    assert!(
        nothing
            .hints
            .place(Side::Client, Key::Priority)
            .expect("a place")
            .file
            .ends_with("shared/deep.thrift")
    );
    let root = &calls.inherited[0];
    assert_eq!(root.hints.server, shared.polling(CompletionMode::Event));
    let ping = &calls.inherited[1];
    assert_eq!(ping.hints.server, shared.payload_size(64));
    // In the declaring service, the same functions are unaffected by services that extend it.
    let root = function(&document, "Root", "root");
    assert_eq!(root.hints.client, Hints::NONE.perf_goal(PerfGoal::Throughput).priority(Priority::Low));
}

#[test]
fn a_level_counts_more_than_a_side() {
    let text = "service S {\n c_hint: polling = event;\n void f() [hint: polling = busy;]\n void g() (s_hint.polling = \"busy\") }";
    let document =
        load_with("a.thrift", &Options::default(), &Memory::new().with("a.thrift", text)).expect("good");
    let [f, g] = &document.services[0].functions[..] else { panic!("two functions") };
    let (busy, event) = (Some(CompletionMode::Busy), Some(CompletionMode::Event));
    assert_eq!((f.hints.client.polling, f.hints.server.polling), (busy, busy));
    assert_eq!((g.hints.client.polling, g.hints.server.polling), (event, busy));
}

#[test]
fn the_words_of_hatrpcs_own_files_are_known() {
    let document = good("hatrpc.thrift");
    let get = function(&document, "ycsb", "GET");
    let put = function(&document, "ycsb", "PUT");
    let hints = Hints::NONE.polling(CompletionMode::Event).protocol("Direct-WriteIMM");
    assert_eq!((get.hints.client, get.hints.server), (hints, hints));
    let hints = Hints::NONE.polling(CompletionMode::Busy).protocol("Eager-SendRecv");
    assert_eq!((put.hints.client, put.hints.server), (hints, hints));
}

/// Only hints are blanked: the rest is plain Thrift with unchanged offsets.
#[test]
fn hints_are_blanked_and_nothing_else() {
    let document = good("echo.thrift");
    let file = &document.files[0];
    assert!(!file.blanked_text.contains("hint:") && !file.blanked_text.contains("perf_goal"));
    for (before, after) in file.text.bytes().zip(file.blanked_text.bytes()) {
        assert!(before == after || (after == b' ' && before != b'\n'));
    }
    let again = Memory::new().with("a.thrift", file.blanked_text.as_str());
    let document = load_with("a.thrift", &Options::default(), &again).expect("plain Thrift");
    let ping = &document.services[0].functions[0];
    assert_eq!((ping.hints.client, ping.name.as_str(), ping.place.line), (Hints::NONE, "ping", 10));
}

#[test]
fn byte_order_marks_and_foreign_line_ends_do_not_matter() {
    let text = "\u{feff}service S {\r\n  hint: polling = busy;\r\n  void f()\r\n}\r\n";
    let document =
        load_with("a.thrift", &Options::default(), &Memory::new().with("a.thrift", text)).expect("good");
    assert_eq!(document.services[0].functions[0].hints.client.polling, Some(CompletionMode::Busy));
    assert!(document.files[0].blanked_text.starts_with("   service"));
}
