//! What every command has: help, completions; and the small ones.

mod support;

use std::io::Read as _;
use std::process::{Command, Stdio};
use support::{Folder, dunlin};

#[test]
fn every_command_has_help_with_examples() {
    for command in [
        &[][..],
        &["demo"],
        &["ping"],
        &["kv"],
        &["kv", "serve"],
        &["kv", "get"],
        &["kv", "put"],
        &["kv", "delete"],
        &["kv", "load"],
        &["kv", "bench"],
        &["kv", "stats"],
        &["sim", "list"],
        &["sim", "figure"],
        &["sim", "sweep"],
        &["sim", "calibrate"],
        &["protocols"],
        &["explain"],
        &["doctor"],
        &["completions"],
    ] {
        let mut arguments = command.to_vec();
        arguments.push("--help");
        let text = dunlin(&arguments).well().text();
        assert!(text.contains("Example") || text.contains("Start here"), "{command:?}:\n{text}");
    }
    dunlin(["kv", "sevre"]).failed(2, &["serve"]);
    assert!(dunlin(["--version"]).well().text().starts_with("dunlin "));
}

#[test]
fn shells_get_their_completions() {
    for shell in ["bash", "zsh", "fish"] {
        let script = dunlin(["completions", shell]).well().text();
        assert!(script.contains("idle-connections") && !script.contains("demo-client"), "{shell}");
    }
}

#[test]
fn protocols_are_listed_with_what_is_legal() {
    let text = dunlin(["protocols"]).well().text();
    let line = text.lines().find(|line| line.starts_with("Remote-fetch")).expect("a line");
    assert!(line.contains("fetch") && !line.contains("adaptive"), "{line}");
    let line = text.lines().find(|line| line.starts_with("Direct-WriteIMM")).expect("a line");
    assert_eq!(line.matches("busy, event, adaptive").count(), 2, "{line}");
}

#[test]
fn the_doctor_finds_a_machine_that_runs_these_tests_fit() {
    let folder = Folder::new("doctor");
    let json = folder.file("doctor.json");
    let text = dunlin(["doctor", "--json", &json]).well().text();
    assert!(text.contains("shared memory") && text.contains("RDMA devices"), "{text}");
    let findings: serde_json::Value =
        serde_json::from_slice(&std::fs::read(json).expect("written")).expect("JSON");
    for finding in findings.as_array().expect("an array") {
        assert_ne!(finding["mark"], "fail", "{finding}");
        assert_eq!(finding["advice"].is_null(), finding["mark"] == "ok", "{finding}");
    }
    dunlin(["doctor", "--json", "/no/such/folder/x"]).failed(1, &["folder"]);
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_dunlin"))
        .args(["completions", "zsh"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    drop(child.stdout.take());
    let status = child.wait().expect("it ends");
    let mut errors = String::new();
    child.stderr.take().expect("piped").read_to_string(&mut errors).expect("text");
    assert!(status.success() && errors.is_empty(), "{status}: {errors}");
}
