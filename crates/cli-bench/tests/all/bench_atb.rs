//! `dunlin bench atb`, `ycsb` and the tuners as commands: documents, wrong options, signals. The
//! measurements have tests in their own crate.

use std::path::Path;
use std::time::{Duration, Instant};

use dunlin_command_testing::{Folder, Running, dunlin};

/// Returns whether there are two cores, which a measurement needs.
fn has_two_cores() -> bool {
    std::thread::available_parallelism().is_ok_and(|cores| cores.get() > 1)
}

fn rows(path: &str) -> Vec<serde_json::Value> {
    let document: serde_json::Value =
        serde_json::from_slice(&std::fs::read(path).expect("written")).expect("JSON");
    document["rows"].as_array().expect("rows").clone()
}

#[test]
fn documents_and_drawings_are_written() {
    if !has_two_cores() {
        return;
    }
    let folder = Folder::new("atb");
    let (json, plot) = (folder.file("out.json"), folder.file("out.svg"));
    for command in [
        &["atb", "latency", "--size", "32,8KiB", "--response", "64"][..],
        &["atb", "throughput", "--size", "64", "--clients", "1,6", "--polling", "hinted,event"],
        &["atb", "mix", "--size", "64", "--clients", "2", "--latency-share", "0.9"],
        &["ycsb", "--workload", "b", "--clients", "6", "--records", "100"],
    ] {
        let more = ["--quick", "--protocol", "AR-gRPC", "--json", &json, "--plot", &plot];
        let ended = dunlin(["bench"].into_iter().chain(command.iter().copied()).chain(more)).well();
        assert!(ended.text().contains("AR-gRPC") && ended.text().contains("hint"), "{}", ended.text());
        let rows = rows(&json);
        assert!(rows.iter().any(|row| row["protocol"] == "AR-gRPC"), "{command:?}");
        assert!(rows.iter().all(|row| row["plan"].is_string() && row["placement"].is_string()), "{rows:?}");
        assert!(std::fs::read_to_string(&plot).expect("written").starts_with("<svg"));
    }
}

#[test]
fn tuners_are_compared_with_what_is_fixed() {
    if !has_two_cores() {
        return;
    }
    let folder = Folder::new("tuner");
    let json = folder.file("out.json");
    let common = ["--process", "0us,1us", "--result", "64", "--clients", "2", "--quick", "--json", &json];
    dunlin(["bench", "fetch-tuner"].into_iter().chain(common)).well();
    let of =
        |rows: Vec<serde_json::Value>, name: &str| rows.iter().filter(|row| row["protocol"] == name).count();
    assert!(of(rows(&json), "tuned") >= 2);
    let limits = ["--limit", "7us,1.5ms", "--tolerance", "0.01"];
    dunlin(["bench", "batch-tuner"].into_iter().chain(common).chain(limits)).well();
    assert!(of(rows(&json), "within 7us") >= 2 && of(rows(&json), "within 1500us") >= 2);
}

#[test]
fn options_that_cannot_be_are_refused() {
    if !has_two_cores() {
        return;
    }
    dunlin(["bench", "atb", "latency", "--protocol", "pigeon"]).failed(1, &["pigeon", "Server-reply"]);
    dunlin(["bench", "atb", "latency", "--size", "1GiB"]).failed(1, &["1073741824 bytes"]);
    dunlin(["bench", "atb", "throughput", "--clients", "5000"]).failed(1, &["5000 clients"]);
    dunlin(["bench", "atb", "mix", "--latency-share", "2"]).failed(1, &["share"]);
    dunlin(["bench", "fetch-tuner", "--result", "5000"]).failed(1, &["5000 bytes"]);
    dunlin(["bench", "batch-tuner", "--tolerance", "1"]).failed(1, &["share"]);
    dunlin(["bench", "batch-tuner", "--clients", "500"]).failed(1, &["500"]);
    dunlin(["bench", "ycsb", "--workload", "q"]).failed(2, &["a and b"]);
    dunlin(["bench", "ycsb", "--json", "/no/such/folder/x.json"]).failed(1, &["folder"]);
}

#[test]
fn an_interrupted_run_shows_what_there_is_and_leaves_nothing() {
    if !has_two_cores() {
        return;
    }
    let stores = || -> Vec<_> {
        let folder = std::fs::read_dir(Path::new("/dev/shm")).into_iter().flatten().flatten();
        folder.map(|entry| entry.path()).filter(|path| path.join("data.mdb").exists()).collect()
    };
    let before = stores();
    for command in [&["atb", "latency", "--size", "64"][..], &["ycsb", "--clients", "2", "--records", "100"]]
    {
        let more = ["--rounds", "100000", "--slice", "1ms", "--protocol", "Remote-fetch"];
        // The results before the signal are printed. The time until the first result depends on the
        // machine.
        let told = [3, 10, 40, 120].into_iter().any(|seconds| {
            let mut running =
                Running::start(["bench"].into_iter().chain(command.iter().copied()).chain(more));
            let until = Instant::now() + Duration::from_secs(seconds);
            while running.is_running() && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(50));
            }
            running.signal("INT");
            let ended = running.end();
            assert_eq!(ended.code(), Some(130), "{}", ended.errors);
            ended.text().contains("Remote-fetch")
        });
        assert!(told, "{command:?} tells nothing of what it measured");
    }
    let left: Vec<_> = stores().into_iter().filter(|path| !before.contains(path)).collect();
    assert!(left.is_empty(), "{left:?}");
}
