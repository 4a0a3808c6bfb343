//! The service end to end, and its data after kill -9.

use dunlin::thrift::{Bytes, ClientOptions, ServerOptions, serve_with};
use dunlin_hatkv::hatkv::{HAT_KV_SERVICE, HatKvClient, HatKvError, HatKvProcessor};
use dunlin_hatkv::{Durability, Handler, TunedProcessor, Tuning};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

fn record(number: u32) -> (Bytes, Bytes) {
    // As in HatRPC section 5.4: keys of 24 bytes, ten fields of 100.
    (format!("user{number:020}").into(), number.to_le_bytes().repeat(250).into())
}

fn batch(numbers: std::ops::Range<u32>) -> (Vec<Bytes>, Vec<Bytes>) {
    numbers.map(record).unzip()
}

fn client(address: &dunlin::Address) -> HatKvClient<dunlin::fabric::ShmFabric> {
    HatKvClient::connect_with(&dunlin::fabric::shm().unwrap(), address, ClientOptions::default()).unwrap()
}

#[test]
fn the_four_functions_and_their_exceptions() {
    let folder = tempfile::tempdir().unwrap();
    let address: dunlin::Address = format!("shm:hatkv-{}", std::process::id()).parse().unwrap();
    let handler = Handler::open(folder.path(), 256 * 1024, Durability::Durable).unwrap();
    assert_eq!(handler.store().options().max_readers, 128, "the hint concurrency");
    let fabric = dunlin::fabric::shm().unwrap();
    let _server = serve_with(&fabric, &address, HatKvProcessor(handler), ServerOptions::default()).unwrap();
    let mut client = client(&address);

    let (key, value) = record(1);
    client.put(&key, &value).unwrap();
    assert_eq!(client.get(&key).unwrap(), value);
    assert!(matches!(client.get(b"none"), Err(HatKvError::NotFound(_))));
    assert!(matches!(client.get(b""), Err(HatKvError::BadRequest(_))));
    assert!(matches!(client.put(&[0; 600], b""), Err(HatKvError::BadRequest(_))));

    let (mut keys, values) = batch(10..20);
    client.multiput(&keys, &values).unwrap();
    keys.push("none".into());
    let found = client.multiget(&keys).unwrap();
    assert_eq!(found.len(), 11);
    assert!(found[..10].iter().zip(&values).all(|(found, value)| found.value.as_ref() == Some(value)));
    assert_eq!(found[10].value, None);
    let uneven = client.multiput(&keys, &values);
    assert!(matches!(uneven, Err(HatKvError::BadRequest(_))), "{uneven:?}");
    let empty = client.multiget(&["".into()]);
    assert!(matches!(empty, Err(HatKvError::BadRequest(_))), "{empty:?}");

    let (keys, values) = batch(100..400);
    match client.multiput(&keys, &values) {
        Err(HatKvError::MapFull(full)) => assert_eq!(full.limit, 256 * 1024),
        other => panic!("{other:?}"),
    }
    assert!(client.multiget(&keys).unwrap().iter().all(|found| found.value.is_none()), "all or none");
    assert_eq!(client.get(&record(1).0).unwrap(), record(1).1);
}

/// With all reader slots in use, a read returns an error with their number; it succeeds once a slot is free.
#[test]
fn reads_beyond_the_slots_are_told() {
    let folder = tempfile::tempdir().unwrap();
    let address: dunlin::Address = format!("shm:hatkv-readers-{}", std::process::id()).parse().unwrap();
    let tuning = Tuning { max_readers: 1, ..Tuning::hinted(HAT_KV_SERVICE.functions) };
    let handler = Handler::open_with(folder.path(), 1 << 20, tuning).unwrap();
    let store = handler.clone();
    let fabric = dunlin::fabric::shm().unwrap();
    let _server = serve_with(&fabric, &address, HatKvProcessor(handler), ServerOptions::default()).unwrap();
    let mut client = client(&address);
    let (key, value) = record(1);
    client.put(&key, &value).unwrap();
    let (mut get, mut multiget) = (None, None);
    store
        .store()
        .read([&key[..]], |_| {
            get = Some(client.get(&key));
            multiget = Some(client.multiget(std::slice::from_ref(&key)));
        })
        .unwrap();
    match get {
        Some(Err(HatKvError::ReadersFull(full))) => assert_eq!(full.limit, 1),
        other => panic!("{other:?}"),
    }
    match multiget {
        Some(Err(HatKvError::ReadersFull(full))) => assert_eq!(full.limit, 1),
        other => panic!("{other:?}"),
    }
    assert_eq!(client.get(&key).unwrap(), value);
}

/// Concurrent writers that wait for the disk in the pool and for each other.
#[test]
fn many_write_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let address: dunlin::Address = format!("shm:hatkv-writers-{}", std::process::id()).parse().unwrap();
    let handler =
        Handler::open_with(folder.path(), 16 << 20, Tuning::hinted(HAT_KV_SERVICE.functions)).unwrap();
    let fabric = dunlin::fabric::shm().unwrap();
    let mut options = ServerOptions::default();
    options.engine.pool_threads = 4;
    let _server = serve_with(&fabric, &address, TunedProcessor::new(handler), options).unwrap();
    std::thread::scope(|scope| {
        for writer in 0..4 {
            let mut client = client(&address);
            scope.spawn(move || {
                for number in (writer * 100)..(writer * 100 + 20) {
                    let (key, value) = record(number);
                    client.put(&key, &value).unwrap();
                }
                let (keys, values) = batch(writer * 100 + 20..writer * 100 + 30);
                client.multiput(&keys, &values).unwrap();
                assert!(matches!(client.put(b"", b""), Err(HatKvError::BadRequest(_))));
            });
        }
    });
    let mut client = client(&address);
    for writer in 0..4 {
        let (keys, values) = batch(writer * 100..writer * 100 + 30);
        let found = client.multiget(&keys).unwrap();
        assert!(found.iter().zip(&values).all(|(found, value)| found.value.as_ref() == Some(value)));
    }
}

fn start(address: &str, folder: &Path, more: &[&str]) -> Child {
    start_saying(address, folder, more).0
}

/// Starts a server and returns it with its first line of output.
fn start_saying(address: &str, folder: &Path, more: &[&str]) -> (Child, String) {
    let mut server = Command::new(env!("CARGO_BIN_EXE_dunlin-hatkv"))
        .args(["--listen", address, "--data", &folder.to_string_lossy()])
        .args(more)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(server.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with("serving"), "{line}");
    (server, line)
}

/// The server on all transports: shared memory on this host, and stock Thrift on request.
#[test]
fn one_store_on_every_transport() {
    let folder = tempfile::tempdir().unwrap();
    let (mut server, line) = start_saying("auto:127.0.0.1:0", folder.path(), &[]);
    let address: dunlin::Address = line.split(' ').nth(1).unwrap().parse().unwrap();
    let fabrics = dunlin::Fabrics::default();
    let connect = |address| HatKvClient::connect_with(&fabrics, address, ClientOptions::default()).unwrap();
    let mut client = connect(&address);
    assert_eq!(client.transport().name, "shm");
    let (key, value) = record(7);
    client.put(&key, &value).unwrap();

    let stock = line.trim_end().rsplit_once("stock Thrift on ").unwrap().1;
    let mut client = connect(&format!("tcp:{stock}").parse().unwrap());
    assert_eq!((client.get(&key).unwrap(), client.transport().name), (value, "tcp"));
    assert!(Command::new("kill").args(["-TERM", &server.id().to_string()]).status().unwrap().success());
    assert!(server.wait().unwrap().success());
}

/// The examples in the help are valid commands, and contradictory options are refused.
#[test]
fn the_help_names_the_program() {
    let ended = |argument: &[&str]| {
        let mut program = Command::new(env!("CARGO_BIN_EXE_dunlin-hatkv"));
        program.args(argument).output().unwrap()
    };
    let help = String::from_utf8(ended(&["--help"]).stdout).unwrap();
    let examples = help.split("Examples:\n").nth(1).unwrap();
    assert!(examples.lines().all(|line| line.trim().starts_with("dunlin-hatkv --listen ")), "{examples}");
    let both = ended(&["--listen", "shm:x", "--data", "/nowhere", "--fast", "--durable"]);
    assert_eq!(both.status.code(), Some(2), "{both:?}");
}

/// Answered writes survive kill -9 in both modes. Of an unanswered batch, all writes or none survive.
#[test]
fn what_was_answered_survives_kill_9() {
    for more in [&[][..], &["--fast"]] {
        let folder = tempfile::tempdir().unwrap();
        let text = format!("shm:hatkv-kill-{}-{}", std::process::id(), more.len());
        let address: dunlin::Address = text.parse().unwrap();
        let mut server = start(&text, folder.path(), more);
        let mut client = self::client(&address);
        for number in 0..20 {
            let (keys, values) = batch(number * 10..number * 10 + 10);
            client.multiput(&keys, &values).unwrap();
        }
        let under_way = batch(1000..1200);
        let process = server.id().to_string();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                assert!(Command::new("kill").args(["-9", &process]).status().unwrap().success());
            });
            while client.multiput(&under_way.0, &under_way.1).is_ok() {}
        });
        server.wait().unwrap();
        drop(client);

        let mut server = start(&text, folder.path(), more);
        let mut client = self::client(&address);
        let (keys, values) = batch(0..200);
        let found = client.multiget(&keys).unwrap();
        assert!(found.iter().zip(&values).all(|(found, value)| found.value.as_ref() == Some(value)));
        let there =
            client.multiget(&under_way.0).unwrap().iter().filter(|found| found.value.is_some()).count();
        assert!(there == 0 || there == 200, "{there} of a batch of 200");
        assert!(Command::new("kill").args(["-TERM", &server.id().to_string()]).status().unwrap().success());
        assert!(server.wait().unwrap().success());
    }
}
