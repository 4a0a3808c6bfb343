//! `dunlin apps` without an application.

use dunlin_command_testing::{Running, dunlin};

#[test]
fn all_applications_are_shown_with_their_results() {
    let running = Running::start(["apps", "--quick"]);
    let process = running.id();
    let text = running.end().well().text();
    for shown in [
        "$ dunlin apps log append orders --together 'debit alice 5' 'credit bob 5'",
        "0 debit alice 5\n0 credit bob 5\n",
        "commits per second",
        "$ dunlin apps mapreduce wordcount",
        "the same bytes as those of the threads of one process",
        "$ dunlin apps graph pagerank --rmat 10",
        "the same bytes as those over regions",
        "$ dunlin apps memory count",
        "us per page",
    ] {
        assert!(text.contains(shown), "'{shown}' is missing in:\n{text}");
    }
    let folder = std::env::temp_dir().join(format!("dunlin-apps-{process}"));
    assert!(!folder.exists(), "the data is removed");
    dunlin(["apps", "--quick", "memory", "count"]).failed(2, &["--quick"]);
}

/// Between commands, and within each of them.
#[test]
fn a_signal_ends_the_demonstration_wherever_it_arrives() {
    for word in ["=== A global log", "bench", "=== MapReduce"] {
        let running = Running::start(["apps", "--quick"]);
        running.line_with(word);
        running.signal("INT");
        assert_eq!(running.end().code(), Some(130), "at {word}");
    }
}
