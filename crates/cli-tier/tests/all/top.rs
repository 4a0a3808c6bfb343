//! `dunlin node top` and `dunlin node status --json`, with a process that uses the node.

use crate::node::Node;
use dunlin_command_testing::{HANG, dunlin, dunlin_program};
use dunlin_tier_client::{Priority, Spec, Tier};
use serde_json::Value;
use std::io::{Read as _, Write as _};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Returns the cells of the line of this process.
fn own_line(text: &str) -> Option<Vec<String>> {
    let own = std::process::id().to_string();
    let cells = |line: &str| {
        line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).map(str::to_owned).collect()
    };
    text.lines().map(cells).find(|cells: &Vec<String>| cells.first() == Some(&own))
}

#[test]
fn one_frame_has_the_rates_and_queues_of_a_process_that_works() {
    let node = Node::start(&["--memory", "16MiB", "--name", "busy"]);
    let tier = Tier::attach(&node.attach.parse().expect("an address")).expect("attached");
    let region = tier.malloc(4096, Spec::default()).expect("memory");
    let _calls = tier.register("votes", 7).expect("registered");
    (0..3).for_each(|_| tier.send("", "votes", 7, b"for").expect("queued"));
    let ends = AtomicBool::new(false);
    let top = || dunlin(node.words(&["node", "top", "--once", "--interval", "100ms"])).well();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ends.load(Ordering::Relaxed) {
                region.write(0, &[7; 64]).expect("written");
            }
        });
        let begin = Instant::now();
        let line = loop {
            let text = top().text();
            assert!(text.contains("node busy: 16 MiB of memory") && text.contains("regions: 1"), "{text}");
            let line = own_line(&text).unwrap_or_else(|| panic!("{text}"));
            if line[3] != "0/s" {
                break line;
            }
            assert!(begin.elapsed() < HANG, "{text}");
        };
        ends.store(true, Ordering::Relaxed);
        assert!(line[3].ends_with("/s") && line[4].ends_with("B/s") && line[4] != "0 B/s", "{line:?}");
        // Queued: nobody receives.
        assert_eq!(line[7], "3", "{line:?}");
    });

    let status = dunlin(node.words(&["node", "status", "--json"])).well().text();
    let status: Value = serde_json::from_str(&status).expect("JSON");
    assert_eq!((&status["node"], &status["regions"]), (&Value::from("busy"), &Value::from(1)));
    let own = status["processes"].as_array().expect("a list").iter();
    let own = own.filter(|one| one["process"] == std::process::id()).collect::<Vec<_>>();
    let [own] = own[..] else { panic!("{status}") };
    let counted = |name: &str| own[name].as_u64().expect("a number");
    assert_eq!([counted("calls"), counted("queued"), counted("services"), counted("handles")], [3, 3, 1, 1]);
    assert_eq!(counted("bytes"), 64 * counted("operations"));
    assert!(counted("operations") > 0);
    let high = &status["priorities"]["high"];
    assert_eq!(high["operations"].as_u64(), Some(counted("operations")));
    assert_eq!(status["priorities"]["low"]["operations"].as_u64(), Some(0));
    let in_words = tier.status().expect("a status").priorities[Priority::High as usize];
    assert_eq!(Some(in_words.bytes), high["bytes"].as_u64());
    node.end();
}

#[test]
fn a_terminal_gets_frames_until_an_interrupt() {
    let node = Node::start(&["--memory", "4MiB"]);
    // A shell that waits for it would end by the signal.
    let top =
        format!("exec '{}' node top --interval 20ms --node {}", dunlin_program().display(), node.attach);
    // A terminal of its own: util-linux has script.
    let mut terminal = Command::new("script")
        .args(["--quiet", "--return", "--command", &top, "/dev/null"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("script of util-linux starts");
    let (mut input, mut out) =
        (terminal.stdin.take().expect("piped"), terminal.stdout.take().expect("piped"));
    let (mut text, mut part) = (String::new(), [0; 4096]);
    while text.matches("\x1b[H\x1b[2Jnode node: 4 MiB of memory").count() < 3 {
        let length = out.read(&mut part).expect("read");
        assert!(length > 0, "it ended: {text}");
        text.push_str(&String::from_utf8_lossy(&part[..length]));
    }
    input.write_all(b"\x03").expect("written");
    assert_eq!(terminal.wait().expect("it ends").code(), Some(0));
    // The node does not know the process any more.
    let begin = Instant::now();
    while dunlin(node.words(&["node", "status", "--json"])).well().text().matches("\"process\":").count() > 1
    {
        assert!(begin.elapsed() < HANG);
    }
    node.end();
}

#[test]
fn a_node_that_is_not_there_and_settings_without_a_meaning_are_told() {
    dunlin(["node", "top", "--node", "shm:of-no-node-at-all"])
        .failed(1, &["no node of this host", "dunlin node run"]);
    for wrong in [["--interval", "0"], ["--processes", "0"], ["--interval", "soon"]] {
        dunlin([&["node", "top"], &wrong[..]].concat()).failed(2, &[wrong[0]]);
    }
}

#[test]
fn a_command_says_its_priority_and_a_share_of_low_priority_is_not_raised() {
    let node = Node::start(&["--memory", "4MiB", "--share", "*=1"]);
    let low = |text: &str, priority: &str| {
        dunlin(node.words(&["tier", "put", text, "--text", text, "--priority", priority])).well();
        let status = dunlin(node.words(&["node", "status", "--json"])).well().text();
        let status: Value = serde_json::from_str(&status).expect("JSON");
        status["priorities"]["low"]["operations"].as_u64().expect("a number")
    };
    assert_eq!([low("one", "low"), low("two", "high")], [1, 1]);
    dunlin(node.words(&["tier", "get", "one", "--priority", "middle"])).failed(2, &["use high or low"]);
    node.end();
    let node = Node::start(&["--memory", "4MiB", "--share", "*=1,low"]);
    let words = node.words(&["tier", "put", "one", "--text", "one", "--priority", "high"]);
    dunlin(words).failed(1, &["may not have high priority"]);
    node.end();
}
