//! A shared memory from the command line: alone, and in several processes on one node, one of which is killed.

use dunlin_command_testing::{Ended, Running, dunlin, unique};
use std::time::{Duration, Instant};

/// No step takes so long: it hangs.
const HANG: Duration = Duration::from_secs(60);

fn memory(words: &[&str]) -> Ended {
    dunlin([&["apps", "memory"], words].concat())
}

/// Returns the counters of the table.
fn counters(text: &str) -> Vec<u64> {
    let last = |line: &str| line.split_whitespace().last().and_then(|word| word.parse().ok());
    text.lines().filter_map(last).collect()
}

#[test]
fn members_of_one_process_count_alone() {
    for more in [&[][..], &["--marked", "--whole"]] {
        let words = [&["count", "--members", "3", "--counters", "5", "--rounds", "50"], more].concat();
        let ended = memory(&words).well();
        assert_eq!(counters(&ended.text()), [30; 5], "{}", ended.text());
        assert!(ended.errors.contains("150 increments by 3 members"), "{}", ended.errors);
    }
}

#[test]
fn a_killed_process_does_not_stop_the_others() {
    let attach = unique("memory");
    let node = Running::start(["node", "run", "--attach", &attach, "--for", "100"]);
    assert_eq!(node.line(), format!("listening on {attach}"));
    let member = |number: &'static str, rounds: &'static str| {
        let words = ["apps", "memory", "count", "--memory", "shared", "--members", "3", "--member", number];
        Running::start([&words[..], &["--counters", "1", "--rounds", rounds, "--node", &attach]].concat())
    };
    let killed = member("2", "1000000000");
    let others = [member("1", "600"), member("0", "600")];
    // It is killed when counting has begun: all three are there. The counter is the first page behind a header and a page
    // of words.
    let get = ["tier", "get", "shared/pages/0", "--offset", "8KiB", "--length", "8", "--node", &attach];
    let begin = Instant::now();
    while dunlin(get).out.iter().all(|byte| *byte == 0) {
        assert!(begin.elapsed() < HANG, "the members do not begin");
    }
    killed.signal("KILL");
    killed.end();
    let [second, first] = others.map(|one| one.end().well());
    let sum: u64 = counters(&first.text()).iter().sum();
    assert!(sum >= 1200, "{}", first.text());
    assert_eq!(second.text(), "");
    // The pages of the survivors are freed.
    let left = dunlin(["tier", "ls", "--node", &attach]).well();
    assert!(
        !left.text().contains("shared/pages/0") && !left.text().contains("shared/pages/1"),
        "{}",
        left.text()
    );
    node.signal("KILL");
    node.end();
}

#[test]
fn times_are_printed_for_each_operation() {
    let ended = memory(&["bench", "--rounds", "2", "--members", "3", "--marked"]).well();
    for name in ["read", "floor of a read", "read, there", "prefetch", "acquire", "release"] {
        assert!(ended.text().contains(name), "{}", ended.text());
    }
}

#[test]
fn errors_say_what_to_do() {
    memory(&["count", "--member", "0"]).failed(2, &["--memory"]);
    let attach = unique("memory");
    let node = Running::start(["node", "run", "--attach", &attach, "--for", "100"]);
    assert_eq!(node.line(), format!("listening on {attach}"));
    let base = ["count", "--memory", "m", "--members", "2", "--node", &attach, "--wait", "200ms"];
    memory(&[&base[..], &["--member", "2"]].concat()).failed(1, &["numbered from 0"]);
    memory(&[&base[..], &["--member", "1"]].concat()).failed(1, &["start all members"]);
    let none = unique("none");
    memory(&["count", "--memory", "m", "--member", "0", "--node", &none]).failed(1, &["dunlin node run"]);
    node.signal("KILL");
    node.end();
}
