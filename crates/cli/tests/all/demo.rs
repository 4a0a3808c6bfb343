//! `dunlin demo`: a full run, and cleanup after every kind of end.

use dunlin_command_testing::{
    Folder, Running, await_none_with, await_two_with, debris, dunlin, processes_with, signal,
};

#[test]
fn the_quick_demo_measures_every_protocol() {
    let folder = Folder::new("demo");
    let json = folder.file("demo.json");
    let ended = dunlin(["demo", "--quick", "--json", &json]).well();
    let document: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&json).expect("written")).expect("JSON");
    let rows = document["rows"].as_array().expect("rows");
    for name in ["Server-reply", "Remote-fetch", "Direct-WriteIMM", "Eager-SendRecv", "Read-RNDV"] {
        let row = rows.iter().find(|row| row["protocol"] == name).expect(name);
        for field in ["clients", "throughput_ops", "p50_ns", "p99_ns", "p999_ns", "server_cpu_ns_per_op"] {
            assert!(row[field].as_f64().is_some_and(|value| value > 0.0), "{name} {field}: {row}");
        }
    }
    assert!(rows.iter().any(|row| row["clients"].as_u64() > Some(1)));
    assert!(ended.text().contains("Try next"), "{}", ended.text());
    let shared = "All 120 additions to one word and 120 answers are right; 6 blocks";
    assert!(ended.text().contains(shared), "{}", ended.text());
}

/// Starts a demo that would run for minutes, and waits until its clients run.
fn long_demo() -> (Running, String) {
    let demo = Running::start(["demo", "--seconds", "100"]);
    let name = format!("dunlin-demo-{}", demo.id());
    demo.line_with("records");
    await_two_with(&name);
    (demo, name)
}

#[test]
fn ctrl_c_leaves_nothing_behind() {
    let before = debris();
    for (name, code) in [("INT", 130), ("TERM", 143)] {
        let (demo, children) = long_demo();
        demo.signal(name);
        let ended = demo.end();
        assert_eq!(ended.code(), Some(code), "{}", ended.errors);
        // The clients end before the demo does.
        assert_eq!(processes_with(&children), [0u32; 0]);
    }
    let left: Vec<_> = debris().into_iter().filter(|path| !before.contains(path)).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn killed_outright_it_takes_its_processes_along() {
    let (demo, children) = long_demo();
    demo.signal("KILL");
    assert_eq!(demo.end().code(), None);
    await_none_with(&children);
}

#[test]
fn a_server_that_dies_ends_the_demo() {
    let (demo, children) = long_demo();
    let server = processes_with(&children)
        .into_iter()
        .find(|process| {
            std::fs::read(format!("/proc/{process}/cmdline"))
                .is_ok_and(|line| String::from_utf8_lossy(&line).contains("serve"))
        })
        .expect("a server");
    signal(server, "KILL");
    demo.end().failed(1, &["error:", "the server"]);
    assert_eq!(processes_with(&children), [0u32; 0]);
}

#[test]
fn the_scene_of_the_tuner_is_the_same_everywhere() {
    let text = dunlin(["demo", "--quick"]).well().text();
    let scene = text.split("Protocol RF-RPC").nth(1).expect("the scene");
    let modes: Vec<bool> = scene
        .lines()
        .filter(|line| line.contains(" B ") && (line.contains("fetched") || line.contains("written back")))
        .map(|line| line.contains("written back"))
        .collect();
    assert_eq!(modes, [false, true, false, false, false], "{scene}");
    assert!(scene.contains("N = 5") && scene.contains("of the model of rf-rpc"), "{scene}");
}
