//! `dunlin kv`: serve, get, put, delete, load and stats, each as a separate process.

use dunlin_command_testing::{Folder, Running, Server, dunlin, unique};

#[test]
fn what_is_put_is_got_byte_for_byte_until_deleted() {
    let server = Server::start(&["--workers", "2", "--memory", "16MiB"]);
    let address = server.address.as_str();
    dunlin(["kv", "put", address, "greeting", "hello"]).well();
    assert_eq!(dunlin(["kv", "get", address, "greeting"]).well().out, b"hello");
    dunlin(["kv", "put", address, "empty", ""]).well();
    assert_eq!(dunlin(["kv", "get", address, "empty"]).well().out, b"");

    // Arbitrary bytes, more than one message holds.
    let value: Vec<u8> = (0..1u32 << 20).map(|index| (index * 31 % 256) as u8).collect();
    Running::with_input(["kv", "put", address, "large", "-"], &value).end().well();
    assert!(dunlin(["kv", "get", address, "large"]).well().out == value);
    for protocol in ["server-reply", "remote-fetch", "eager-sendrecv", "read-rndv"] {
        let got = dunlin(["kv", "get", address, "large", "--protocol", protocol]).well();
        assert!(got.out == value, "{protocol}");
    }

    dunlin(["kv", "delete", address, "greeting"]).well();
    dunlin(["kv", "get", address, "greeting"]).failed(1, &["error:", "'greeting' is not stored"]);
    dunlin(["kv", "delete", address, "greeting"]).failed(1, &["'greeting' is not stored"]);

    let stats = dunlin(["kv", "stats", address]).well().text();
    assert!(stats.lines().any(|line| line.starts_with("all")) && stats.contains("item"), "{stats}");
}

/// Serves one store on every available fabric. Local clients choose shared memory and report it. (RDMA
/// needs a guest.)
#[test]
fn a_store_on_whichever_fabric_both_sides_have() {
    let server = Running::start([
        "kv",
        "serve",
        "--listen",
        "auto:127.0.0.1:0",
        "--workers",
        "2",
        "--without",
        "rdma",
    ]);
    let line = server.line();
    let address = line.strip_prefix("listening on ").expect("an address");
    assert!(address.starts_with("auto:127.0.0.1:") && !address.ends_with(":0"), "{address}");
    let put = dunlin(["kv", "put", address, "greeting", "hello"]).well();
    let chosen = format!("{address} is shm:auto-127.0.0.1:");
    assert!(
        put.errors.contains(&chosen) && put.errors.contains("the server is on this host"),
        "{}",
        put.errors
    );
    // Standard output contains only the value.
    assert_eq!(dunlin(["kv", "get", address, "greeting"]).well().out, b"hello");
    let bench = dunlin(["kv", "bench", address, "--seconds", "0.2", "-P", "recordcount=500"]).well();
    assert!(bench.text().contains("throughput"), "{}", bench.text());
    assert!(dunlin(["kv", "stats", address]).well().text().contains("501"));
    assert_eq!(dunlin(["ping", address, "-n", "10"]).well().text().matches("10 answered").count(), 1);
    // The error gives the reason for each transport that cannot be used.
    dunlin(["kv", "get", address, "greeting", "--without", "shm", "--without", "ofi"]).failed(
        1,
        &[
            "not shm: it is disabled by the settings",
            "not rdma: the server is not on it",
            "typed services go by TCP too",
        ],
    );
    server.signal("TERM");
    let ended = server.end().well();
    assert!(ended.errors.contains("serving on shm:auto-127.0.0.1:"), "{}", ended.errors);
    assert!(ended.errors.contains("not rdma: it is disabled by the settings"), "{}", ended.errors);
}

#[test]
fn what_cannot_be_stored_is_refused_with_a_reason() {
    let server = Server::start(&["--memory", "4MiB"]);
    let address = server.address.as_str();
    dunlin(["kv", "put", address, &"k".repeat(251), "x"]).failed(1, &["251"]);
    dunlin(["kv", "put", address, "", "x"]).failed(1, &["1 to 250"]);
    let too_large = vec![0; (1 << 20) + 1];
    Running::with_input(["kv", "put", address, "key", "-"], &too_large)
        .end()
        .failed(1, &["1 MiB", "help: split"]);
    dunlin(["kv", "get", address, "key"]).failed(1, &["not stored"]);
}

#[test]
fn an_interrupted_server_ends_well_and_its_name_is_free_again() {
    for signal in ["INT", "TERM"] {
        let mut server = Server::start(&[]);
        let running = server.running.take().expect("running");
        dunlin(["kv", "put", &server.address, "key", "value"]).well();
        dunlin(["kv", "serve", "--listen", &server.address])
            .failed(1, &["in use", "help: give --listen another name"]);
        running.signal(signal);
        running.end().well();
        dunlin(["kv", "get", &server.address, "key"]).failed(
            1,
            &[
                "nobody listens",
                &format!("help: start one with: dunlin kv serve --listen {}", server.address),
            ],
        );
        dunlin(["kv", "serve", "--listen", &server.address, "--for", "10ms"]).well();
    }
}

#[test]
fn wrong_options_are_refused_with_advice() {
    let address = unique("options");
    for (options, words) in [
        (&["--memory", "12potatoes"][..], &["unit", "64KiB"][..]),
        (&["--memory", "1k"], &["too small", "help: raise --memory"]),
        (&["--workers", "0"], &["workers"]),
        (&["--workers", "5000"], &["workers"]),
        (&["--for", "soon"], &["not a"]),
    ] {
        let mut arguments = vec!["kv", "serve", "--listen", &address];
        arguments.extend(options);
        let ended = dunlin(arguments);
        let code = ended.code().expect("a status");
        assert!(code == 1 || code == 2, "{options:?}: {code}");
        ended.failed(code, words);
    }
    dunlin(["kv", "serve", "--listen", "store"]).failed(2, &["shm:store"]);
    dunlin(["kv", "serve", "--listen", "udp:store"]).failed(2, &["shm:NAME"]);
    // Stock Thrift only carries typed services, and the store is not one.
    dunlin(["kv", "serve", "--listen", "tcp:127.0.0.1:0"]).failed(1, &["TCP is no fabric"]);
    dunlin(["kv", "get", "shm:has space", "key"]).failed(2, &["printable"]);
}

#[test]
fn loading_goes_on_after_bad_lines_and_names_them() {
    let server = Server::start(&["--workers", "2", "--memory", "16MiB"]);
    let address = server.address.as_str();
    let folder = Folder::new("load");
    let mut text = String::new();
    for number in 1..=2000 {
        match number {
            17 => text.push_str("no tab here\n"),
            500 => text.push_str(&format!("{}\tvalue\n", "k".repeat(300))),
            1999 => text.push_str("\tno key\n"),
            _ => text.push_str(&format!("key{number}\tvalue {number}\n")),
        }
    }
    let file = folder.write("records.tsv", &text);
    let ended = dunlin(["kv", "load", address, &file]);
    assert!(ended.text().starts_with("1997 records stored from 2000 lines"), "{}", ended.text());
    ended.failed(
        1,
        &["line 17: there is no tab", "line 500: the key has 300", "line 1999: the key is empty", "3 lines"],
    );
    for number in [1, 16, 18, 501, 1998, 2000] {
        let got = dunlin(["kv", "get", address, &format!("key{number}")]).well();
        assert_eq!(got.text(), format!("value {number}"));
    }
    dunlin(["kv", "load", address, &file, "--lenient"]).well();

    let lines = b"{\"key\":\"json\",\"value\":\"1\"}\n{\"key\":\"json\",\"valeu\":\"1\"}\n{\"key_base64\":\"/w==\",\"value\":\"2\"}\n";
    let ended = Running::with_input(["kv", "load", address, "-"], lines).end();
    ended.failed(1, &["line 2", "valeu"]);
    assert_eq!(dunlin(["kv", "get", address, "json"]).well().out, b"1");

    dunlin(["kv", "load", address, &folder.file("missing")]).failed(1, &["cannot read", "missing"]);
    dunlin(["kv", "load", address, folder.0.to_str().expect("UTF-8")]).failed(1, &["is a folder"]);
}

#[test]
fn a_value_too_large_for_the_server_is_named_by_its_line() {
    let server = Server::start(&["--memory", "1MiB"]);
    let folder = Folder::new("refused");
    let file = folder.write("records.tsv", format!("a\t1\nb\t{}\nc\t3\n", "x".repeat(1 << 20)));
    dunlin(["kv", "load", &server.address, &file]).failed(1, &["line 2", "memory", "1 lines"]);
    assert_eq!(dunlin(["kv", "get", &server.address, "c"]).well().out, b"3");
}
