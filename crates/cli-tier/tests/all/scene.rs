//! `dunlin tier scene`: the part of the demo with processes that share nodes.

use dunlin_command_testing::{HANG, Running, await_none_with, debris, dunlin, processes_with};
use std::time::Instant;

#[test]
fn the_scene_checks_its_results_and_says_the_queue_pairs() {
    let text = dunlin(["tier", "scene", "--processes", "2", "--operations", "20"]).well().text();
    assert!(text.contains("All 80 additions to one word and 80 answers are right"), "{text}");
    assert!(text.contains("4 blocks of 4096 bytes were checked"), "{text}");
    for node in ["one", "two"] {
        let line = text.lines().find(|line| line.starts_with(node)).unwrap_or_else(|| panic!("{text}"));
        let cells: Vec<u64> =
            line.split_whitespace().skip(1).map(|cell| cell.parse().expect("a number")).collect();
        let [processes, requests, calls, queue_pairs, connections] = cells[..] else { panic!("{line}") };
        assert_eq!((processes, calls), (2, 40), "{line}");
        // Each adds 20 times, writes a block and reads one; parts that turned out to be elsewhere are asked for again.
        assert!(requests >= 44, "{line}");
        // Eight paths to the other node at most, by the processors, however many processes there are.
        assert!((1..=8).contains(&queue_pairs) && connections >= 1, "{line}");
    }
    dunlin(["tier", "scene", "--processes", "0"]).failed(2, &["--processes"]);
}

/// The scene, and everybody that it started.
fn long_scene() -> (Running, String) {
    let mut scene = Running::start(["tier", "scene", "--operations", "4000000000"]);
    let name = format!("dunlin-scene-{}", scene.id());
    let begin = Instant::now();
    // The directory, two nodes and six processes.
    while processes_with(&name).len() < 9 {
        if !scene.is_running() {
            panic!("it ended: {}", scene.end().errors);
        }
        assert!(begin.elapsed() < HANG, "{:?}", processes_with(&name));
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    (scene, name)
}

#[test]
fn a_scene_that_is_interrupted_or_killed_leaves_nothing_behind() {
    let before = debris();
    for (name, code) in [("INT", Some(130)), ("TERM", Some(143)), ("KILL", None)] {
        let (scene, children) = long_scene();
        scene.signal(name);
        let ended = scene.end();
        assert_eq!(ended.code(), code, "{}", ended.errors);
        await_none_with(&children);
    }
    let left: Vec<_> = debris().into_iter().filter(|path| !before.contains(path)).collect();
    assert!(left.is_empty(), "{left:?}");
}
