//! Help and completions of every command, and the small commands.

use dunlin_command_testing::{Folder, dunlin, dunlin_program};
use std::io::Read as _;
use std::process::{Command, Stdio};

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
        &["node"],
        &["node", "run"],
        &["node", "directory"],
        &["node", "leave"],
        &["node", "status"],
        &["node", "ls"],
        &["tier"],
        &["tier", "put"],
        &["tier", "get"],
        &["tier", "ls"],
        &["tier", "free"],
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
        assert!(script.contains("idle-connections") && script.contains("token-file"), "{shell}");
        assert!(!script.contains("demo-client"), "{shell}");
    }
}

#[test]
fn protocols_are_listed_with_what_is_legal() {
    let text = dunlin(["protocols"]).well().text();
    let line = text.lines().find(|line| line.starts_with("Remote-fetch")).expect("a line");
    assert!(line.contains("fetch"), "{line}");
    assert_eq!(line.matches("adaptive").count(), 1, "a client that fetches cannot sleep: {line}");
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
    let mut child = Command::new(dunlin_program())
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

/// Copies the command to an otherwise empty folder and sets this `PATH`.
fn copied(folder: &Folder, path: &str) -> Command {
    let copy = folder.0.join("dunlin");
    if !copy.exists() {
        // By another process: a thread of this one that forks meanwhile would inherit the file open for writing,
        // and the copy could not be executed until that child has gone.
        let copied = Command::new("cp").arg(dunlin_program()).arg(&copy).status().expect("cp runs");
        assert!(copied.success());
    }
    let mut command = Command::new(copy);
    command.env("PATH", path);
    command
}

#[test]
fn a_command_whose_program_is_missing_says_how_to_build_it() {
    let folder = Folder::new("alone");
    for (command, package) in [
        ("bench", "dunlin-cli-bench"),
        ("sim", "dunlin-cli-sim"),
        ("explain", "dunlin-cli-idl"),
        ("gen", "dunlin-cli-idl"),
        ("node", "dunlin-cli-tier"),
        ("tier", "dunlin-cli-tier"),
        ("apps", "dunlin-cli-apps"),
    ] {
        for words in [&[command][..], &[command, "--help"], &["-v", command, "list"]] {
            let output = copied(&folder, "").args(words).output().expect("it runs");
            let errors = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(1), "{words:?}: {errors}");
            assert!(errors.contains(&format!("cargo build --release -p {package}")), "{words:?}: {errors}");
        }
    }
    // A misspelt name gets the nearest one suggested, also of a program that is missing.
    for (nearly, name) in [("simm", "'sim'"), ("explian", "'explain'"), ("bnch", "'bench'")] {
        let output = copied(&folder, "").arg(nearly).output().expect("it runs");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2));
        assert!(errors.contains(name), "{errors}");
    }
    let script = copied(&folder, "").args(["completions", "bash"]).output().expect("it runs");
    assert!(script.status.success() && String::from_utf8_lossy(&script.stdout).contains("idle-connections"));
}

#[test]
fn a_program_on_the_path_is_run_with_all_words() {
    use std::os::unix::fs::PermissionsExt as _;
    let (folder, elsewhere) = (Folder::new("beside"), Folder::new("elsewhere"));
    let file = elsewhere.write("dunlin-idl", "#!/bin/sh\necho \"ran: $*\"\nexit 7\n");
    std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o755)).expect("set");
    let path = elsewhere.0.to_str().expect("UTF-8");
    let output = copied(&folder, path).args(["-vv", "explain", "x.thrift", "--help", "--", "-q"]).output();
    let output = output.expect("it runs");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "ran: -vv explain x.thrift --help -- -q\n");
    assert_eq!(output.status.code(), Some(7));
}
