//! MapReduce from the command line: alone, and in several processes on one node, some of which are killed.

use dunlin_command_testing::{Ended, Folder, Running, dunlin, dunlin_program, unique};
use std::collections::BTreeMap;
use std::process::Command;
use std::time::{Duration, Instant};

/// No step takes so long: it hangs.
const HANG: Duration = Duration::from_secs(60);

fn mapreduce(words: &[&str]) -> Ended {
    dunlin([&["apps", "mapreduce"], words].concat())
}

/// Writes a text of words with known counts; returns the path, and the file that wordcount makes of it.
pub(crate) fn text(folder: &Folder, lines: u64) -> (String, String) {
    let path = folder.file("text.txt");
    let (mut text, mut counts) = (String::new(), BTreeMap::new());
    for line in 0..lines {
        for word in [format!("w{}", line % 97), format!("v{}", line % 1009), "The".to_owned()] {
            text.push_str(&word);
            text.push(' ');
            *counts.entry(word.to_lowercase()).or_insert(0u64) += 1;
        }
        text.push('\n');
    }
    std::fs::write(&path, text).expect("written");
    (path, counts.iter().map(|(word, count)| format!("{word} {count}\n")).collect())
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).expect("written")
}

#[test]
fn programs_run_alone() {
    let folder = Folder::new("mapreduce");
    let (path, expected) = text(&folder, 20_000);
    let out = folder.file("out.txt");
    for shape in
        [&["--plain", "--threads", "2"][..], &["--nodes", "2", "--threads", "3", "--partitions", "5"]]
    {
        let words =
            [&["wordcount", "--split", "64KiB", "--output", &out, "--top", "2", &path], shape].concat();
        let ended = mapreduce(&words).well();
        assert_eq!(read(&out), expected);
        assert_eq!(ended.text().lines().count(), 4, "{}", ended.text());
        assert!(ended.text().lines().nth(2).is_some_and(|line| line.starts_with("the")), "{}", ended.text());
        assert!(ended.errors.contains("1107 keys"), "{}", ended.errors);
    }
    let other = folder.file("other.txt");
    std::fs::write(&other, "first\nthe w7 here\n").expect("written");
    let found = mapreduce(&["grep", "w7 h", &other, &path]).well();
    assert_eq!(found.text(), format!("{other}:6: the w7 here\n"));
    mapreduce(&["index", "--output", &out, &other, &path]).well();
    assert!(read(&out).contains(&format!("w7 {other} {path}\n")), "{}", read(&out));
    assert!(read(&out).starts_with(&format!("first {other}\nhere {other}\nthe {other} {path}\n")));
    // An empty file has no words.
    std::fs::write(&other, "").expect("written");
    assert_eq!(mapreduce(&["grep", "x", &other]).well().text(), "");
    // Bytes that are no UTF-8 are parts of words.
    std::fs::write(&other, b"caf\xe9 \xff Caf\xe9\n").expect("written");
    mapreduce(&["wordcount", "--nodes", "2", "--output", &out, &other]).well();
    assert_eq!(std::fs::read(&out).expect("written"), b"caf\xe9 2\n\xff 1\n");
}

/// The kernel refuses memory beyond the limit, which is less than the file has.
#[test]
fn a_file_larger_than_memory_is_streamed() {
    const LINES: usize = 160_000;
    let folder = Folder::new("mapreduce");
    let line = |number| format!("word{}{:1000}\n", number % 4, "");
    let path = folder.write("large.txt", (0..LINES).map(line).collect::<String>());
    let out = folder.file("out.txt");
    for (kib, shape) in
        [(32 << 10, &["--plain"][..]), (120 << 10, &["--nodes", "1", "--node-memory", "8MiB"])]
    {
        let limited = |split| {
            let program = dunlin_program();
            let mut command = Command::new("sh");
            command.args(["-c", &format!("ulimit -d {kib}; exec \"$0\" \"$@\"")]).arg(program);
            command.args(["apps", "mapreduce", "wordcount", &path, "--threads", "1", "--memory", "1MiB"]);
            command.args(["--split", split, "--output", &out]).args(shape);
            command.output().expect("it starts")
        };
        let ended = limited("64KiB");
        assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
        assert_eq!(read(&out), (0..4).map(|word| format!("word{word} {}\n", LINES / 4)).collect::<String>());
        // It is a limit: a split of the whole file fails.
        assert!(!limited("200MiB").status.success(), "{kib} KiB are enough for the file");
    }
}

#[test]
fn killed_workers_have_their_tasks_done_again() {
    let folder = Folder::new("mapreduce");
    let (path, expected) = text(&folder, 200_000);
    let out = folder.file("out.txt");
    let attach = unique("mapreduce");
    let node = Running::start(["node", "run", "--attach", &attach, "--for", "100"]);
    assert_eq!(node.line(), format!("listening on {attach}"));
    let job = |more: &[&'static str]| {
        let words = [
            "apps",
            "mapreduce",
            "wordcount",
            &path,
            "--split",
            "64KiB",
            "--job",
            "count",
            "--node",
            &attach,
        ];
        [&words[..], more].concat().iter().map(|word| (*word).to_owned()).collect::<Vec<String>>()
    };
    let worker = ["--work", "--threads", "2"];
    let workers: Vec<Running> = (0..3).map(|_| Running::start(job(&worker))).collect();
    let mut words = job(&["--threads", "1"]);
    words.extend(["--output".to_owned(), out.clone()]);
    let master = Running::start(words);
    // One is killed at once, another one when the job has begun.
    let mut workers = workers.into_iter();
    let kill = |worker: Option<Running>| {
        let worker = worker.expect("three workers");
        worker.signal("KILL");
        worker.end();
    };
    kill(workers.next());
    let begin = Instant::now();
    while !String::from_utf8_lossy(&dunlin(["tier", "ls", "--node", &attach]).well().out).contains("count/") {
        assert!(begin.elapsed() < HANG, "no region of the job");
        if std::fs::exists(&out).expect("it can be looked up") {
            break;
        }
    }
    kill(workers.next());
    master.end().well();
    assert_eq!(read(&out), expected, "each word counts once");
    // The last worker ends with the job, or came after its end.
    let last = workers.next().expect("three workers");
    last.signal("INT");
    last.end();
    assert!(!dunlin(["tier", "ls", "--node", &attach]).well().text().contains("count/"), "regions are freed");
    node.signal("KILL");
    node.end();
}

/// A worker of the master's own process is given up as any other: others do its tasks again, and the job ends well.
#[test]
fn a_master_that_was_stopped_for_longer_than_a_lease_ends_well() {
    let folder = Folder::new("mapreduce");
    let (path, expected) = text(&folder, 200_000);
    let out = folder.file("out.txt");
    let attach = unique("mapreduce");
    let node = Running::start(["node", "run", "--attach", &attach, "--for", "100"]);
    assert_eq!(node.line(), format!("listening on {attach}"));
    let base =
        ["apps", "mapreduce", "wordcount", &path, "--split", "64KiB", "--job", "count", "--node", &attach];
    let worker = Running::start([&base[..], &["--work", "--threads", "1"]].concat());
    let mut master = Running::start([&base[..], &["--threads", "1", "--output", &out]].concat());
    let begin = Instant::now();
    while !dunlin(["tier", "ls", "--node", &attach]).well().text().contains("count/") && master.is_running() {
        assert!(begin.elapsed() < HANG, "no region of the job");
    }
    if master.is_running() {
        master.signal("STOP");
        // The lease of a worker is 2 s.
        std::thread::sleep(Duration::from_millis(2500));
        master.signal("CONT");
    }
    master.end().well();
    assert_eq!(read(&out), expected);
    worker.signal("INT");
    worker.end();
    node.signal("KILL");
    node.end();
}

/// Waits until a number of processes is attached to a node.
fn await_processes(node: &str, count: usize) {
    let begin = Instant::now();
    while dunlin(["node", "status", "--node", node]).well().text().matches("user-").count() != count {
        assert!(begin.elapsed() < HANG, "not {count} processes");
    }
}

#[test]
fn errors_say_what_to_do() {
    let folder = Folder::new("mapreduce");
    let (path, _) = text(&folder, 2000);
    mapreduce(&["wordcount"]).failed(2, &["FILES"]);
    mapreduce(&["wordcount", &folder.file("absent")]).failed(1, &["absent", "No such file"]);
    mapreduce(&["wordcount", &path, "--work"]).failed(2, &["--job"]);
    mapreduce(&["wordcount", &path, "--split", "1KiB"]).failed(1, &["65536"]);
    mapreduce(&["wordcount", &path, "--node-memory", "64KiB", "--partitions", "4096"])
        .failed(1, &["refuses a region", "--node-memory"]);
    let none = unique("none");
    mapreduce(&["wordcount", &path, "--job", "x", "--node", &none]).failed(1, &["dunlin node run"]);
    let attach = unique("mapreduce");
    let node = Running::start(["node", "run", "--attach", &attach, "--for", "100"]);
    assert_eq!(node.line(), format!("listening on {attach}"));
    let late = ["wordcount", &path, "--job", "x", "--work", "--wait", "200ms", "--node", &attach];
    mapreduce(&late).failed(1, &["no master", "without --work"]);
    // A signal ends a worker that waits for its master.
    let words = ["apps", "mapreduce", "wordcount", &path, "--job", "x", "--work", "--node", &attach];
    // The command that asks is attached itself, so it sees one process, and two when the worker is attached.
    await_processes(&attach, 1);
    let waiting = Running::start(words);
    await_processes(&attach, 2);
    waiting.signal("INT");
    assert_eq!(waiting.end().code(), Some(130));
    node.signal("KILL");
    node.end();
}
