//! A node, and commands that use a log on it.

use dunlin_command_testing::{Ended, Folder, HANG, Running, dunlin, dunlin_program, signal, unique};
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::Instant;

/// A node by itself that runs.
struct Node {
    running: Option<Running>,
    attach: String,
}

impl Node {
    fn start() -> Node {
        let attach = unique("apps");
        let running = Running::start(["node", "run", "--attach", &attach, "--for", "100"]);
        assert_eq!(running.line(), format!("listening on {attach}"));
        Node { running: Some(running), attach }
    }

    fn words<'a>(&'a self, words: &[&'a str]) -> Vec<&'a str> {
        [&["apps", "log"], words, &["--node", &self.attach]].concat()
    }

    fn log(&self, words: &[&str]) -> Ended {
        dunlin(self.words(words))
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(running) = self.running.take() {
            running.signal("KILL");
            running.end();
        }
    }
}

#[test]
fn entries_are_appended_followed_and_cleaned() {
    let node = Node::start();
    node.log(&["create", "orders", "--size", "64KiB", "--grant", "anyone=rw"]).well();
    let positions = node.log(&["append", "orders", "one", "two", "--positions"]).well().text();
    assert_eq!(positions, "0\n64\n");
    assert_eq!(
        node.log(&["append", "orders", "--together", "three", "four", "--positions"]).well().text(),
        "128\n"
    );
    let piped = Running::with_input(node.words(&["append", "orders", "--together=2"]), b"five\nsix\n\nseven");
    piped.end().well();
    let all = "one\ntwo\nthree\nfour\nfive\nsix\n\nseven\n";
    assert_eq!(node.log(&["tail", "orders"]).well().text(), all);
    let from = node.log(&["tail", "orders", "--from", "128", "--count", "1", "--positions"]).well().text();
    assert_eq!(from, "128 three\n128 four\n");
    assert_eq!(node.log(&["tail", "orders", "--from", "newest"]).well().text(), "");

    let status = node.log(&["status", "orders"]).well().text();
    assert!(status.contains("in use, positions 0 to 320") && status.contains("no cleaner"), "{status}");
    let follower = Running::start(node.words(&["tail", "orders", "--follow", "--from", "320"]));
    node.log(&["append", "orders", "followed"]).well();
    assert_eq!(follower.line(), "followed");
    follower.signal("INT");
    assert_eq!(follower.end().code(), Some(130));

    let cleaned = node.log(&["clean", "orders"]).well();
    assert!(cleaned.text().starts_with(all), "{}", cleaned.text());
    assert!(cleaned.errors.contains("given back"), "{}", cleaned.errors);
    let status = node.log(&["status", "orders"]).well().text();
    assert!(status.contains("0 B of 64 KiB in use"), "{status}");
    node.log(&["free", "orders"]).well();
    node.log(&["tail", "orders"]).failed(1, &["no log orders", "dunlin apps log create orders"]);
}

#[test]
fn errors_say_what_to_do() {
    let node = Node::start();
    node.log(&["append", "orders", "x"]).failed(1, &["no log orders", "dunlin apps log create orders"]);
    node.log(&["free", "orders"]).failed(1, &["no log orders"]);
    node.log(&["create", "orders", "--size", "4KiB", "--longest", "1KiB"]).well();
    node.log(&["create", "orders"]).failed(1, &["already", "dunlin apps log free orders"]);
    node.log(&["create", "large", "--size", "1GiB"]).failed(1, &["bytes left"]);
    node.log(&["create", "odd", "--size", "64B", "--longest", "1KiB"]).failed(1, &["the capacity is 64"]);
    node.log(&["create", "other", "--grant", "anyone=q"]).failed(2, &["alice=rw"]);
    node.log(&["append", "orders", &"x".repeat(1000)]).failed(1, &["longer than the 1024", "--longest"]);
    let full = vec!["append", "orders", "--wait", "0"];
    let long = "y".repeat(900);
    node.log(&[full, vec![&long; 5]].concat())
        .failed(1, &["after 4 transactions", "no room", "dunlin apps log clean orders"]);
    node.log(&["tail", "orders", "--from", "65"]).failed(1, &["no transaction begins at 65"]);
    node.log(&["tail", "orders", "--from", "somewhere"]).failed(2, &["oldest, newest"]);
    node.log(&["evict", "orders", "12"]).failed(1, &["no writer", "dunlin apps log status orders"]);
    node.log(&["evict", "orders", "xyz"]).failed(2, &["16 hexadecimal digits"]);
    dunlin(["apps", "log", "tail", "orders", "--node", &unique("none")]).failed(1, &["dunlin node run"]);
    // A region that is no log.
    dunlin(["tier", "put", "text", "--node", &node.attach, "--text", &"no log".repeat(99)]).well();
    node.log(&["tail", "text"]).failed(1, &["damaged", "dunlin apps log free text"]);
}

#[test]
fn a_full_log_is_cleaned_while_lines_are_appended() {
    let node = Node::start();
    node.log(&["create", "small", "--size", "4KiB", "--longest", "1KiB"]).well();
    let cleaner = Running::start(node.words(&["clean", "small", "--follow", "--for", "60s"]));
    let lines: Vec<String> = (0..2000).map(|line| format!("line {line} {}", "z".repeat(line % 90))).collect();
    Running::with_input(node.words(&["append", "small"]), lines.join("\n").as_bytes()).end().well();
    for line in &lines {
        assert_eq!(cleaner.line(), line.trim_end());
    }
    node.log(&["clean", "small"]).failed(1, &["cleans the log"]);
    cleaner.signal("INT");
    let ended = cleaner.end().well();
    assert!(ended.errors.contains("2000 transactions"), "{}", ended.errors);
}

/// A writer that is killed stays registered, and does not stop the log: it had nothing under way.
#[test]
fn a_killed_writer_is_listed_and_evicted() {
    let node = Node::start();
    node.log(&["create", "orders"]).well();
    let mut writer = Command::new(dunlin_program())
        .args(node.words(&["append", "orders"]))
        .stdin(Stdio::piped())
        .spawn()
        .expect("it starts");
    writer.stdin.as_mut().expect("piped").write_all(b"before\n").expect("written");
    let begin = Instant::now();
    while node.log(&["tail", "orders"]).well().text() != "before\n" {
        assert!(begin.elapsed() < HANG, "the line does not come");
    }
    signal(writer.id(), "KILL");
    writer.wait().expect("it ends");
    let status = node.log(&["status", "orders"]).well().text();
    let label = format!("process {}", writer.id());
    let row = status.lines().find(|line| line.contains(&label)).expect("its row");
    let id = row.split_whitespace().next().expect("a number").to_owned();
    node.log(&["append", "orders", "after"]).well();
    assert_eq!(node.log(&["clean", "orders"]).well().text(), "before\nafter\n");
    node.log(&["evict", "orders", &id]).well();
    assert!(!node.log(&["status", "orders"]).well().text().contains(&label));
}

#[test]
fn bench_prints_rates_beside_their_floor() {
    let node = Node::start();
    let folder = Folder::new("apps");
    let json = folder.file("rates.json");
    let words = ["bench", "trial", "--threads", "1", "--threads", "2", "--entry", "16", "--rounds", "2"];
    let ended = node.log(&[&words[..], &["--round", "10ms", "--json", &json]].concat()).well();
    let table = ended.text();
    for word in ["commits per second", "floor per second", "ratio", "16 B"] {
        assert!(table.contains(word), "{table}");
    }
    assert_eq!(table.lines().count(), 4, "{table}");
    assert!(std::fs::read_to_string(json).expect("written").contains("apps log bench"));
    node.log(&["status", "trial"]).failed(1, &["no log trial"]);
}
