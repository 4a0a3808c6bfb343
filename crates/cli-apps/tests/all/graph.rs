//! Vertex programs from the command line: alone, and in several processes on one node.

use dunlin_command_testing::{Ended, Folder, HANG, Patience, Running, dunlin, unique};

fn graph(words: &[&str]) -> Ended {
    dunlin([&["apps", "graph"], words].concat())
}

/// Two components: a path from 0 to 3 with a loop, and a pair; 6 is alone.
const TEXT: &str = "# a small graph\n0 1\n1 2\n2 3\n2 2\n\n4 5\n";

fn written(folder: &Folder, name: &str, bytes: &[u8]) -> String {
    let path = folder.file(name);
    std::fs::write(&path, bytes).expect("written");
    path
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).expect("written")
}

#[test]
fn programs_run_alone() {
    let folder = Folder::new("graph");
    let text = written(&folder, "small.txt", TEXT.as_bytes());
    let out = folder.file("out.txt");
    let shape = ["--threads", "2", "--nodes", "2", "--output", &out, &text];
    graph(&[&["components", "--vertices", "7"], &shape[..]].concat()).well();
    assert_eq!(read(&out), "0 0\n1 0\n2 0\n3 0\n4 4\n5 4\n6 6\n");
    let ended = graph(&[&["paths", "--from", "1"], &shape[..]].concat()).well();
    assert_eq!(read(&out), "0 unreachable\n1 0\n2 1\n3 2\n4 unreachable\n5 unreachable\n");
    assert!(ended.text().contains("distance"), "{}", ended.text());
    assert!(ended.errors.contains("6 vertices, 5 edges; 3 steps"), "{}", ended.errors);

    let ended = graph(&[&["pagerank", "--rounds", "40"], &shape[..]].concat()).well();
    let rounds = read(&out);
    let ranks: Vec<f64> =
        rounds.lines().map(|line| line.split(' ').nth(1).expect("a rank").parse().expect("a rank")).collect();
    assert_eq!(ranks.len(), 6);
    // 0 has no edge to it; 1 has that of 0; 2 that of 1 and half of its own.
    let first = 0.15 + 0.85 * 0.15;
    let second = (0.15 + 0.85 * first) / (1.0 - 0.425);
    for (vertex, expected) in [(0, 0.15), (1, first), (2, second), (3, 0.15 + 0.425 * second)] {
        assert!((ranks[vertex] - expected).abs() < 1e-9, "{vertex}: {}", ranks[vertex]);
    }
    assert!(
        ended.text().lines().nth(2).is_some_and(|line| line.trim().starts_with("2 ")),
        "{}",
        ended.text()
    );

    let pairs: Vec<u8> = [0u32, 1, 1, 2, 2, 3, 2, 2, 4, 5].iter().flat_map(|one| one.to_le_bytes()).collect();
    let binary = written(&folder, "small.pairs", &pairs);
    graph(&["pagerank", "--rounds", "40", "--binary", &binary, "--output", &out, "--threads", "3"]).well();
    assert_eq!(read(&out), rounds, "the same bits, whatever the partition");
    let empty = written(&folder, "empty.txt", b"# no edges\n");
    graph(&["components", "--vertices", "2", "--nodes", "2", "--output", &out, &empty]).well();
    assert_eq!(read(&out), "0 0\n1 1\n");
    assert!(graph(&["pagerank", &empty]).well().errors.contains("0 vertices, 0 edges"));
    let generated = graph(&["pagerank", "--rmat", "8", "--each", "4", "--threads", "2"]).well();
    assert_eq!(generated.text().lines().count(), 12, "{}", generated.text());
    assert!(generated.errors.contains("million edges a second"), "{}", generated.errors);
}

#[test]
fn processes_on_one_node_run_a_job_together() {
    let folder = Folder::new("graph");
    let text = written(&folder, "small.txt", TEXT.as_bytes());
    let [alone, together] = ["alone.txt", "together.txt"].map(|name| folder.file(name));
    graph(&["pagerank", &text, "--output", &alone, "--threads", "1"]).well();
    let attach = unique("graph");
    let node = Running::start(["node", "run", "--attach", &attach, "--for", "100"]);
    assert_eq!(node.line(), format!("listening on {attach}"));
    let member = |number: &'static str| {
        let words =
            ["pagerank", &text, "--threads", "2", "--members", "3", "--job", "web", "--node", &attach];
        [&["apps", "graph"], &words[..], &["--member", number]].concat()
    };
    let others = ["1", "2"].map(|number| Running::start(member(number)));
    let ended = dunlin([&member("0")[..], &["--output", &together]].concat()).well();
    assert!(ended.text().contains("rank"), "{}", ended.text());
    for other in others {
        assert_eq!(other.end().well().text(), "", "the first one shows the result");
    }
    assert_eq!(read(&together), read(&alone), "the same bits");
    // The regions are freed.
    assert!(!dunlin(["tier", "ls", "--node", &attach]).well().text().contains("web/"));
    dunlin([&member("0")[..], &["--wait", "200ms"]].concat()).failed(1, &["web/start", "start all members"]);
    node.signal("KILL");
    node.end();
}

/// On shared memory: copies in one process, and pages that come by faults in three.
#[test]
fn shared_memory_has_the_same_results() {
    let folder = Folder::new("graph");
    let [regions, copies, mapped] = ["regions.txt", "copies.txt", "mapped.txt"].map(|name| folder.file(name));
    let program = ["pagerank", "--rmat", "11", "--each", "4", "--threads", "2"];
    graph(&[&program[..], &["--output", &regions]].concat()).well();
    graph(&[&program[..], &["--output", &copies, "--nodes", "2", "--shared-memory"]].concat()).well();
    assert!(read(&copies) == read(&regions), "the same bits");
    let attach = unique("graph");
    let node = Running::start(["node", "run", "--attach", &attach, "--for", "100"]);
    assert_eq!(node.line(), format!("listening on {attach}"));
    let member = |number: &'static str| {
        let words = ["--shared-memory", "--mapped", "--members", "3", "--job", "web", "--node", &attach];
        [&["apps", "graph"], &program[..], &words[..], &["--member", number]].concat()
    };
    let others = ["1", "2"].map(|number| Running::start(member(number)));
    dunlin([&member("0")[..], &["--output", &mapped]].concat()).well();
    others.into_iter().for_each(|other| drop(other.end().well()));
    assert!(read(&mapped) == read(&regions), "the same bits");
    // The pages are freed.
    assert!(!dunlin(["tier", "ls", "--node", &attach]).well().text().contains("web/"));
    dunlin([&member("0")[..], &["--wait", "200ms"]].concat()).failed(1, &["the opening", "--wait"]);
    graph(&[&program[..], &["--nodes", "2", "--shared-memory", "--mapped"]].concat())
        .failed(1, &["--members"]);
    graph(&[&program[..], &["--mapped"]].concat()).failed(2, &["--shared-memory"]);
    node.signal("KILL");
    node.end();
}

/// A member that waits at a barrier or acquires pages of the dead one hears of it.
#[test]
fn survivors_on_shared_memory_say_that_a_member_has_ended() {
    let attach = unique("graph");
    let node = Running::start(["node", "run", "--attach", &attach, "--for", "100"]);
    assert_eq!(node.line(), format!("listening on {attach}"));
    let member = |number| {
        let program = ["apps", "graph", "pagerank", "--rmat", "11", "--rounds", "1000000", "--shared-memory"];
        let place =
            ["--members", "2", "--job", "web", "--wait", "20s", "--node", &attach, "--member", number];
        Running::start([&program[..], &place].concat())
    };
    let [survivor, victim] = ["0", "1"].map(member);
    let mut patience = Patience::new(HANG);
    while dunlin(["tier", "ls", "--node", &attach]).well().text().matches("web/pages/").count() < 2 {
        assert!(patience.look(), "no pages of both members");
    }
    victim.signal("KILL");
    assert_eq!(victim.end().code(), None);
    survivor.end().failed(1, &["shared memory failed", "with another --job"]);
    node.signal("KILL");
    node.end();
}

#[test]
fn errors_say_what_to_do() {
    let folder = Folder::new("graph");
    let bad = written(&folder, "bad.txt", b"0 1\n2 x\n");
    graph(&["pagerank", &bad]).failed(1, &["bad.txt", "line 2: 'x'"]);
    let short = written(&folder, "short.txt", b"0 1\n\n7\n");
    graph(&["components", &short]).failed(1, &["line 3", "second one is missing"]);
    graph(&["components", &short, "--binary"]).failed(1, &["7 bytes are left", "is the file text"]);
    let good = written(&folder, "good.txt", TEXT.as_bytes());
    graph(&["pagerank", &good, "--vertices", "3"]).failed(1, &["line 4: '3'"]);
    graph(&["paths", &good, "--from", "6"]).failed(1, &["no vertex 6"]);
    graph(&["pagerank"]).failed(2, &["FILES"]);
    graph(&["pagerank", &good, "--members", "2"]).failed(2, &["--member"]);
    graph(&["pagerank", &good, "--tolerance=-1"]).failed(2, &["tolerance"]);
    graph(&["pagerank", &folder.file("absent.txt")]).failed(1, &["cannot read"]);
    graph(&["pagerank", "--rmat", "28", "--each", "4294967295"])
        .failed(1, &["no memory for", "smaller graph"]);
    let words = ["--members", "1", "--member", "0", "--job", "x", "--node", &unique("none")];
    graph(&[&["pagerank", &good], &words[..]].concat()).failed(1, &["dunlin node run"]);
}

#[test]
fn a_signal_ends_a_job_that_waits_for_others() {
    let folder = Folder::new("graph");
    let text = written(&folder, "small.txt", TEXT.as_bytes());
    let attach = unique("graph");
    let node = Running::start(["node", "run", "--attach", &attach, "--for", "100"]);
    assert_eq!(node.line(), format!("listening on {attach}"));
    let words =
        ["apps", "graph", "paths", &text, "--members", "2", "--member", "1", "--job", "j", "--node", &attach];
    let waiting = Running::start(words);
    // The member is at work: its region has a name.
    let mut patience = Patience::new(HANG);
    while !String::from_utf8_lossy(&dunlin(["tier", "ls", "--node", &attach]).well().out).contains("j/") {
        assert!(patience.look(), "no region of the job");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    waiting.signal("INT");
    assert_eq!(waiting.end().code(), Some(130));
    node.signal("KILL");
    node.end();
}
