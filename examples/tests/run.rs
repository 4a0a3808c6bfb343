//! Every example runs to its end and prints the expected output.

use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Command, Stdio};

#[path = "run/node.rs"]
mod node;

/// Cargo builds the examples of a package before its tests, in a folder of the same parent.
fn program(example: &str) -> PathBuf {
    let mut program = std::env::current_exe().unwrap();
    program.pop();
    program.pop();
    program.extend(["examples", example]);
    program
}

#[track_caller]
fn says(example: &str, words: &[&str]) {
    let output = Command::new(program(example)).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    for word in words {
        assert!(text.contains(word), "'{word}' is missing in:\n{text}");
    }
}

#[test]
fn attached() {
    says("attached", &["hello after 1000 increments", "READ+WRITE+MASTER on node"]);
}

#[test]
fn calls() {
    says(
        "calls",
        &[
            "ON A WORKER",
            "IN THE POOL",
            "later: pulled",
            "error 7 of the service: not today",
            "not executed: no such function in the service",
            "8000 bytes of 1000 calls",
        ],
    );
}

#[test]
fn costs() {
    says("costs", &["of a core; the bound of 1% of a core ", "ns; the bound of 5 ns "]);
}

#[test]
fn deadlines() {
    says(
        "deadlines",
        &[
            "with a minute: 59 s left",
            "with 5 ms behind 50 ms of work: maybe executed: the deadline passed",
            "with no time: not executed: the deadline passed",
            "as the options say: 9 s left",
            "2 of 4 calls were executed",
        ],
    );
}

#[test]
fn echo() {
    says("echo", &["10000 calls"]);
}

#[test]
fn failures() {
    says(
        "failures",
        &[
            "not executed: no connection to the server",
            "NotExecuted",
            "IN TIME",
            "AGAIN",
            "function 1: Direct-WriteIMM over shm; client adaptive; server adaptive; ",
        ],
    );
}

#[test]
fn threads() {
    says("threads", &["332833500", "2331833500", "6330833500", "12329833500"]);
}

#[test]
fn first_call() {
    says("first_call", &["hello world"]);
}

/// The service of docs/guide/first-service.md: a server in a process of its own, a client, and Ctrl-C.
#[test]
fn greeter() {
    let address = format!("shm:test-greeter-{}", std::process::id());
    let mut server =
        Command::new(program("greeter")).args(["serve", &address]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(server.stdout.take().unwrap());
    let mut line = String::new();
    lines.read_line(&mut line).unwrap();
    assert!(line.starts_with(&format!("serving {address}")), "{line}");
    let called = Command::new(program("greeter")).args(["call", &address, "Ada", "Grace"]).output().unwrap();
    let interrupted = Command::new("kill").args(["-INT", &server.id().to_string()]).status().unwrap();
    assert!(interrupted.success());
    let mut rest = String::new();
    lines.read_to_string(&mut rest).unwrap();
    assert!(server.wait().unwrap().success() && rest.contains("ended after 4 greetings"), "{rest}");
    let text = String::from_utf8_lossy(&called.stdout);
    assert!(called.status.success(), "{text}{}", String::from_utf8_lossy(&called.stderr));
    for word in ["hello, Ada", "2 greetings in one call", "refused: give a name", "4 greetings in all"] {
        assert!(text.contains(word), "'{word}' is missing in:\n{text}");
    }
}

#[test]
fn hatkv() {
    says("hatkv", &["max_readers: 128, put: Together", "10 of 10 found"]);
}

#[test]
fn hello() {
    says("hello", &["hello, world, over shm"]);
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
fn services() {
    says(
        "services",
        &[
            "served by the second node",
            "1 + 2 + ... + 100 = 186 modulo 256",
            "the result has 1 bytes, and the buffer 0; executed: true",
            "the server says bye",
            "afterwards: executed: false",
        ],
    );
}

#[test]
fn statistics() {
    says(
        "statistics",
        &[
            "count: 10000, least: 0, most: 9999, mean: 4999.5, median: 4608, p99: 9216",
            "of 4 writers",
            "of nothing: Err(NoSuchKey(NoSuchKey",
        ],
    );
}

#[test]
fn tasks() {
    says("tasks", &["hello, world", "runs in tasks, at most 100 at a time"]);
}

#[test]
fn threads_today() {
    says(
        "threads_today",
        &["a blocking client each: ", "clones of one asynchronous client: ", " calls a second"],
    );
}

#[test]
fn locks() {
    says("locks", &["3 nodes have counted to 300", "the last holder gave it back"]);
}

#[test]
fn tier() {
    says("tier", &["worker reads: hello from the main process", "changed 40 to 42", "the region was freed"]);
}
