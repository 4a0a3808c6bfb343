//! Every example runs to its end and prints the expected output.

use std::process::Command;

#[track_caller]
fn says(example: &str, words: &[&str]) {
    // Cargo has built this package's examples before its tests, in a neighbouring folder.
    let mut program = std::env::current_exe().unwrap();
    program.pop();
    program.pop();
    program.extend(["examples", example]);
    let output = Command::new(program).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    for word in words {
        assert!(text.contains(word), "'{word}' is missing in:\n{text}");
    }
}

#[test]
fn echo() {
    says("echo", &["10000 calls"]);
}

#[test]
fn hatkv() {
    says("hatkv", &["max_readers: 128, put: Together", "10 of 10 found"]);
}

#[test]
fn hints() {
    says(
        "hints",
        &[
            "get        Server-reply",
            "Missing b\"gull\"",
            "32 puts in batches: 33 pairs",
            "stock Thrift  = b\"dunlin\"",
            "heartbeats    = 1",
        ],
    );
}

#[test]
fn mail() {
    says("mail", &["30 letters, the first from charles", "no mailbox of nobody", "deliver"]);
}

#[test]
fn messages() {
    says("messages", &["20 + 22 = 42", "dunlin backwards: nilnud"]);
}

#[test]
fn statistics() {
    says(
        "statistics",
        &[
            "count: 10000, least: 0, most: 9999, mean: 4999.5, median: 4608, p99: 9216",
            "of 4 writers",
            "of nothing: Err(Exception(Missing(NoSuchKey",
        ],
    );
}
