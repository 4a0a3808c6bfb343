//! `dunlin kv bench` against real servers, some of which die.

use dunlin_command_testing::{Ended, Folder, Running, Server, debris, dunlin};

fn bench<'a>(address: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let mut arguments = vec!["kv", "bench", address, "--seconds", "0.1", "-P", "recordcount=2000"];
    arguments.extend(more);
    arguments
}

#[test]
fn rows_say_what_was_measured() {
    let server = Server::start(&["--workers", "2", "--memory", "64MiB"]);
    let folder = Folder::new("bench");
    let (json, plot) = (folder.file("out.json"), folder.file("out.svg"));
    for more in [
        &["--workload", "a"][..],
        &["--clients", "2", "--window", "8", "--protocol", "eager-sendrecv", "--completion", "event"],
        &["--workload", "d", "--batch", "8", "--window", "32"],
        &["--clients", "3", "--sharing", "combined"],
        &["--clients", "3", "--sharing", "locked", "--protocol", "server-reply", "--window", "4"],
        &["--workload", "f", "--batch", "4"],
        &["--workload", "e", "-P", "maxscanlength=10"],
    ] {
        let mut arguments = bench(&server.address, more);
        arguments.extend(["--json", &json, "--plot", &plot]);
        let ended = dunlin(arguments).well();
        let document: serde_json::Value =
            serde_json::from_slice(&std::fs::read(&json).expect("written")).expect("JSON");
        let rows = document["rows"].as_array().expect("rows");
        let all = &rows[0];
        assert_eq!((&document["name"], &all["operation"]), (&"kv bench".into(), &"all".into()));
        for field in ["throughput_ops", "p50_ns", "p99_ns", "p999_ns", "max_ns", "samples"] {
            assert!(all[field].as_f64().is_some_and(|value| value > 0.0), "{more:?} {field}: {all}");
        }
        assert_eq!(all["not_found"], 0, "{more:?}");
        let kinds: u64 = rows[1..].iter().filter_map(|row| row["samples"].as_u64()).sum();
        assert_eq!(Some(kinds), all["samples"].as_u64(), "{more:?}");
        assert!(ended.text().contains("throughput"), "{}", ended.text());
        assert!(std::fs::read_to_string(&plot).expect("written").starts_with("<svg"));
    }
}

#[test]
fn clients_find_out_how_many_operations_go_together() {
    let server = Server::start(&["--workers", "2", "--memory", "64MiB"]);
    let folder = Folder::new("within");
    let json = folder.file("out.json");
    for protocol in ["RF-RPC", "server-reply"] {
        let more =
            ["--window", "64", "--within", "5ms", "--clients", "2", "--protocol", protocol, "--json", &json];
        let said = dunlin(bench(&server.address, &more)).well().text();
        assert!(said.contains("as many together as keep 5ms"), "{said}");
        // One row per client, with its batch size.
        let chosen = said.split("chosen by the clients").nth(1).expect("what was chosen");
        assert!(chosen.contains("operations together") || chosen.contains("operations_together"), "{chosen}");
        assert_eq!(chosen.contains("READs"), protocol == "RF-RPC", "{chosen}");
        let document: serde_json::Value =
            serde_json::from_slice(&std::fs::read(&json).expect("written")).expect("JSON");
        assert_eq!(document["rows"][0]["within_ns"], 5_000_000);
        assert_eq!(document["rows"][0]["not_found"], 0);
    }
    // Updates as read-modify-writes: the write of each is batched too.
    dunlin(bench(&server.address, &["--workload", "f", "--within", "1ms", "--tolerance", "0"])).well();
    let said = dunlin(bench(&server.address, &[])).well().text();
    assert!(!said.contains("chosen by"), "{said}");
    dunlin(bench(&server.address, &["--within", "1ms", "--batch", "4"])).failed(2, &["cannot be used with"]);
    dunlin(bench(&server.address, &["--within", "1ms", "--tolerance", "NaN"])).failed(2, &["from 0 to 1"]);
    dunlin(bench(&server.address, &["--tolerance", "0.1"])).failed(2, &["--within"]);
}

#[test]
fn every_protocol_carries_the_workload() {
    let server = Server::start(&[]);
    dunlin(bench(&server.address, &[])).well();
    let table: serde_json::Value =
        serde_json::from_slice(&dunlin(["protocols", "--json"]).well().out).expect("JSON");
    let rows = table.as_array().expect("an array");
    assert!(rows.len() >= 5);
    for row in rows {
        let name = row["name"].as_str().expect("a name");
        let modes = row["server_modes"].as_str().expect("modes");
        for mode in modes
            .split(", ")
            .filter(|mode| row["client_modes"].as_str().is_some_and(|all| all.contains(mode)))
        {
            let ended =
                dunlin(bench(&server.address, &["--no-load", "--protocol", name, "--completion", mode]))
                    .well();
            assert!(ended.text().contains(&format!("{name}, {mode}")), "{}", ended.text());
        }
    }
    dunlin(bench(&server.address, &["--protocol", "remote-fetch", "--completion", "event"]))
        .failed(1, &["cannot wait by event", "help: dunlin protocols"]);
}

#[test]
fn odd_workloads_are_reported() {
    let server = Server::start(&[]);
    let folder = Folder::new("workload");
    let file = folder.write("w.properties", "recordcount=100\nreadproportoin=1\n");
    let arguments = ["kv", "bench", &server.address, "--seconds", "0.1", "--workload", &file];
    let ended = dunlin(arguments).well();
    assert!(ended.errors.contains("line 2: unknown property 'readproportoin'"), "{}", ended.errors);
    assert!(ended.errors.contains("did you mean 'readproportion'"), "{}", ended.errors);
    dunlin(bench(&server.address, &["--workload", "zebra"])).failed(1, &["zebra", "b-small"]);
    dunlin(bench(&server.address, &["-P", "fieldlength=-3"])).failed(1, &["fieldlength"]);
    dunlin(bench(&server.address, &["-P", "nonsense"])).failed(1, &["NAME=VALUE"]);
    dunlin(bench(&server.address, &["-P", "fieldcount=100", "-P", "fieldlength=20000"]))
        .failed(1, &["lower fieldcount"]);
    dunlin(bench(&server.address, &["--json", "/no/such/folder/x.json"])).failed(1, &["folder"]);
    dunlin(bench("shm:nobody-at-all", &[])).failed(1, &["nobody listens", "kv serve"]);
}

#[test]
fn a_store_that_is_too_small_is_said_to_be() {
    let server = Server::start(&["--memory", "1MiB"]);
    let ended = dunlin(bench(&server.address, &["-P", "recordcount=50000"])).well();
    assert!(ended.errors.contains("more --memory"), "{}", ended.errors);
}

/// Starts a bench and waits until it has stored its records and measures.
fn measuring(server: &Server, options: &[&str]) -> Running {
    let mut arguments = vec!["kv", "bench", &server.address, "--seconds", "300"];
    arguments.extend(["-P", "recordcount=1000", "-P", "insertorder=ordered"]);
    arguments.extend(options);
    let mut client = Running::start(arguments);
    // It measures once it updates stored records.
    let value = || {
        let ended = dunlin(["kv", "get", &server.address, "user000000000999"]);
        (ended.code() == Some(0)).then(|| ended.text())
    };
    let mut first = None;
    while first.is_none() || first == value() {
        first = first.or_else(value);
        assert!(client.is_running());
    }
    client
}

/// Sends a signal to the server of a measuring bench.
fn with_dying_server(options: &[&str], signal: &str) -> Ended {
    let server = Server::start(&[]);
    let client = measuring(&server, options);
    dunlin_command_testing::signal(server.id(), signal);
    client.end()
}

#[test]
fn a_killed_server_ends_the_bench_with_the_fate_of_its_calls() {
    let before = debris();
    for options in [
        &[][..],
        &["--protocol", "server-reply", "--clients", "2"],
        &["--protocol", "eager-sendrecv", "--batch", "8"],
        &["--protocol", "remote-fetch"],
    ] {
        let ended = with_dying_server(options, "KILL");
        ended.failed(1, &["error:", "executed", "help: is the server still running?"]);
    }
    let left: Vec<_> = debris().into_iter().filter(|path| !before.contains(path)).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_server_that_shuts_down_ends_the_bench() {
    with_dying_server(&[], "TERM").failed(1, &["error:"]);
}

#[test]
fn an_interrupted_bench_still_shows_its_table() {
    let server = Server::start(&[]);
    let client = measuring(&server, &[]);
    client.signal("INT");
    let ended = client.end();
    assert_eq!(ended.code(), Some(130), "{}", ended.errors);
    assert!(ended.text().contains("throughput"), "{}", ended.text());
}
