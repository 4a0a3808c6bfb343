//! `dunlin bench fetch-table`: stores its table, clients use it, and an interrupted run leaves nothing
//! behind.

use dunlin_command_testing::{Ended, Folder, Running, await_none_with, await_two_with, dunlin, unique};

const QUICK: [&str; 7] =
    ["bench", "fetch-table", "--rounds", "1", "--sizes", "32,256,1KiB,4KiB", "--peers=2"];

/// Runs a command with a separate cache folder.
fn run(cache: &Folder, arguments: &[&str]) -> Ended {
    Running::with_variables(&[("XDG_CACHE_HOME", cache.0.to_str().expect("UTF-8"))], arguments).end()
}

/// Returns the stored tables.
fn kept(cache: &Folder) -> Vec<std::path::PathBuf> {
    let folder = cache.0.join("dunlin").join("fetch-tables");
    let entries =
        std::fs::read_dir(folder).map(|entries| entries.flatten().map(|entry| entry.path()).collect());
    entries.unwrap_or_default()
}

fn ping(cache: &Folder) -> Ended {
    run(cache, &["ping", "--protocol", "RF-RPC", "--count", "5"]).well()
}

#[test]
fn a_measured_table_is_kept_and_clients_go_by_it() {
    let cache = Folder::new("cache");
    let (json, plot) = (cache.file("table.json"), cache.file("table.svg"));
    assert!(ping(&cache).text().contains("rates built in"));
    assert!(run(&cache, &["bench", "fetch-table", "--show"]).well().text().contains("nothing was measured"));

    let measured = run(&cache, &[&QUICK[..], &["--json", &json, "--plot", &plot]].concat()).well();
    let [table] = &kept(&cache)[..] else { panic!("{:?}", kept(&cache)) };
    assert!(measured.text().contains(table.to_str().expect("UTF-8")), "{}", measured.text());
    let document: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&json).expect("written")).expect("JSON");
    let rows = document["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 4);
    for field in ["size_bytes", "reads_ops", "writes_ops", "read_ns"] {
        assert!(rows.iter().all(|row| row[field].as_f64().is_some_and(|value| value > 0.0)), "{field}");
    }
    // Shared memory has no cache of connections, so the paper's groups remain.
    assert_eq!(document["parameters"]["group_size"], 40);
    assert_eq!(document["parameters"]["group_slice_ns"], 100_000);
    let n = document["parameters"]["n"].as_u64().expect("N");
    assert!((1..=16).contains(&n));
    assert!(std::fs::read_to_string(&plot).expect("written").contains("READs served"));

    let text = ping(&cache).text();
    assert!(text.contains(&format!("of at most {n},")) && text.contains("rates measured on 20"), "{text}");
    assert!(text.contains("for shm: processor"), "{text}");
    let shown = run(&cache, &["bench", "fetch-table", "--show"]).well().text();
    assert!(shown.contains(table.to_str().expect("UTF-8")) && shown.contains("4 KiB"), "{shown}");
}

#[test]
fn a_table_that_cannot_be_used_is_a_warning_and_clients_go_without() {
    let cache = Folder::new("broken");
    run(&cache, &QUICK).well();
    let [table] = &kept(&cache)[..] else { panic!("{:?}", kept(&cache)) };
    std::fs::write(table, b"{\"version\": 1, \"rows\": [").expect("written");
    let ended = ping(&cache);
    assert!(ended.text().contains("rates built in"), "{}", ended.text());
    for word in ["WARN", table.to_str().expect("UTF-8"), "remove it", "fetch-table"] {
        assert!(ended.errors.contains(word), "{word}: {}", ended.errors);
    }
    run(&cache, &["bench", "fetch-table", "--show"]).failed(1, &["holds no table"]);
    // A new measurement replaces the damaged table.
    run(&cache, &QUICK).well();
    assert!(ping(&cache).text().contains("rates measured on"));
}

#[test]
fn ctrl_c_ends_it_and_keeps_nothing() {
    let cache = Folder::new("interrupted");
    let variables = [("XDG_CACHE_HOME", cache.0.to_str().expect("UTF-8"))];
    let address = unique("fetch-table");
    let running =
        Running::with_variables(&variables, ["bench", "fetch-table", &address, "--rounds", "10000000"]);
    await_two_with(&address);
    running.signal("INT");
    assert_eq!(running.end().code(), Some(130));
    await_none_with(&address);
    assert!(kept(&cache).is_empty());
}

#[test]
fn peers_may_be_started_elsewhere() {
    let cache = Folder::new("elsewhere");
    let address = unique("elsewhere");
    let variables = [("XDG_CACHE_HOME", cache.0.to_str().expect("UTF-8"))];
    let arguments =
        ["bench", "fetch-table", &address, "--elsewhere", "--peers", "2", "--rounds", "1", "--no-keep"];
    let host = Running::with_variables(&variables, arguments);
    let begin = std::time::Instant::now();
    let join = |variables| loop {
        assert!(begin.elapsed() < dunlin_command_testing::HANG);
        // The host may not listen yet.
        let ended = Running::with_variables(variables, ["bench", "fetch-table", "--join", &address]).end();
        if ended.code() == Some(0) {
            return;
        }
        assert!(ended.errors.contains("--elsewhere"), "{}", ended.errors);
    };
    std::thread::scope(|scope| {
        scope.spawn(|| join(&[]));
        scope.spawn(|| join(&[]));
    });
    assert!(host.end().well().text().contains("L "));
    assert!(kept(&cache).is_empty());
}

#[test]
fn a_simulated_cluster_has_a_table_of_its_own() {
    let of = |profile: &str| dunlin(["bench", "fetch-table", "--profile", profile]).well().text();
    let paper = of("rf-rpc");
    assert!(paper.contains("N 5;") && paper.contains("of the model of rf-rpc"), "{paper}");
    assert_ne!(paper, of("rf-rpc-connectx4"));
    for (text, groups) in [(paper, "by these rates"), (of("scalerpc"), "by these rates")] {
        assert!(text.contains("connections") && text.contains(groups), "{text}");
    }
    dunlin(["bench", "fetch-table", "--profile", "rf-rpd"]).failed(1, &["rf-rpc"]);
}

#[test]
fn what_cannot_be_measured_is_refused() {
    for (arguments, word) in [
        (&["--sizes", "64"][..], "at least two"),
        (&["--sizes", "64,32"], "growing"),
        (&["--connections", "8"], "at least two"),
        (&["--connections", "8,5000"], "4096"),
        (&["--peers", "0"], "peers"),
        (&["--window", "1000"], "window"),
        (&["--join"], "--elsewhere"),
        (&["auto:localhost:1"], "one fabric"),
    ] {
        let arguments = [&["bench", "fetch-table"][..], arguments].concat();
        dunlin(arguments).failed(1, &[word]);
    }
}
