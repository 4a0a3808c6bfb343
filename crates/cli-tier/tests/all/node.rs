//! Nodes, and commands that use them.

use dunlin_command_testing::{Folder, Running, await_none_with, debris, dunlin, unique};
use std::io::Write as _;
use std::time::{Duration, Instant};

/// A node by itself that runs.
pub(crate) struct Node {
    running: Option<Running>,
    pub(crate) attach: String,
}

impl Node {
    pub(crate) fn start(more: &[&str]) -> Node {
        let attach = unique("node");
        let mut words = vec!["node", "run", "--attach", &attach, "--for", "100"];
        words.extend(more);
        let running = Running::start(words);
        assert_eq!(running.line(), format!("listening on {attach}"));
        Node { running: Some(running), attach }
    }

    /// Returns the next line of its output.
    fn line(&self) -> String {
        self.running.as_ref().expect("running").line()
    }

    /// Returns the status once it has this text; fails after a minute.
    fn status_with(&self, text: &str) -> String {
        let begin = Instant::now();
        loop {
            let status = dunlin(self.words(&["node", "status"])).well().text();
            if status.contains(text) {
                return status;
            }
            assert!(begin.elapsed() < Duration::from_secs(60), "no {text}: {status}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub(crate) fn words<'a>(&'a self, words: &[&'a str]) -> Vec<&'a str> {
        [words, &["--node", &self.attach]].concat()
    }

    /// Ends it as Ctrl-C does.
    pub(crate) fn end(mut self) {
        let running = self.running.take().expect("running");
        running.signal("INT");
        let ended = running.end().well();
        assert!(ended.errors.contains("ending: "), "{}", ended.errors);
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
fn a_region_is_put_listed_read_and_freed() {
    let node = Node::start(&["--memory", "16MiB", "--name", "alone"]);
    let run = |words: &[&str]| dunlin(node.words(words));
    run(&["tier", "put", "app/text", "--text", "hello"]).well();
    assert_eq!(run(&["tier", "get", "app/text"]).well().out, b"hello");
    let folder = Folder::new("tier");
    let bytes: Vec<u8> = (0..3_000_001u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let (from, to) = (folder.write("from", &bytes), folder.file("to"));
    run(&["tier", "put", "app/file", &from, "--grant", "anyone=r"]).well();
    run(&["tier", "get", "app/file", &to]).well();
    assert!(std::fs::read(&to).expect("written") == bytes);
    assert_eq!(
        run(&["tier", "get", "app/file", "--offset", "1MiB", "--length", "5"]).well().out,
        bytes[1 << 20..][..5]
    );
    let words = node.words(&["tier", "put", "app/pipe", "-", "--size", "10"]);
    let ended = Running::with_input(words, b"from here").end().well();
    assert!(ended.errors.contains("the last 1 bytes of the region are zero"), "{}", ended.errors);
    assert_eq!(run(&["tier", "get", "app/pipe"]).well().out, b"from here\0");

    let listed = run(&["tier", "ls"]).well().text();
    for word in ["app/text", "app/file", "app/pipe", "READ+WRITE+MASTER", "alone"] {
        assert!(listed.contains(word), "{listed}");
    }
    let listed = run(&["node", "ls", "app/text"]).well().text();
    assert!(listed.contains("app/text") && !listed.contains("app/file"), "{listed}");
    let status = run(&["node", "status"]).well().text();
    assert!(status.contains("node alone: 16 MiB of memory") && status.contains("user-"), "{status}");
    assert!(status.contains("pages: ") && status.contains("; extents: 4; registrations: 4"), "{status}");

    run(&["tier", "put", "app/text", "--text", "again"])
        .failed(1, &["the name is taken", "dunlin tier free app/text"]);
    run(&["tier", "put", "app/large", "-", "--size", "1GiB"]).failed(1, &["bytes left"]);
    run(&["tier", "put", "app/text2", "--text", ""]).failed(1, &["the input is empty"]);
    let words = node.words(&["tier", "put", "app/short", "-", "--size", "3"]);
    Running::with_input(words, b"too long").end().failed(1, &["longer than the region's 3 bytes"]);
    run(&["tier", "get", "app/short"]).failed(1, &["no such region"]);
    run(&["tier", "ls", "app/short"]).failed(1, &[]);
    run(&["tier", "get", "app/text", "--offset", "3", "--length", "3"])
        .failed(1, &["not within the region's 5"]);
    run(&["tier", "get", "app/missing", &to]).failed(1, &["no such region"]);
    run(&["tier", "free", "app/text"]).well();
    run(&["tier", "get", "app/text"]).failed(1, &["no such region"]);
    // A lease that is taken away, and one that runs out.
    run(&["tier", "put", "app/leased", "--text", "x", "--lease", "1h"]).well();
    run(&["tier", "lease", "app/leased", "none"]).well();
    run(&["tier", "cp", "app/leased", "app/copy", "--lease", "1h"]).well();
    run(&["tier", "lease", "app/copy", "0"]).well();
    let begin = Instant::now();
    while run(&["tier", "ls"]).well().text().contains("app/copy") {
        assert!(begin.elapsed() < Duration::from_secs(60), "the lease does not run out");
    }
    assert_eq!(run(&["tier", "get", "app/leased"]).well().out, b"x");
    run(&["tier", "lease", "app/leased", "soon"]).failed(2, &["'soon' is not a unit of time"]);
    run(&["tier", "lease", "app/missing", "1h"]).failed(1, &["no such region"]);

    let attach = node.attach.clone();
    node.end();
    await_none_with(&attach);
    dunlin(["tier", "ls", "--node", &attach]).failed(1, &["no node of this host", "dunlin node run"]);
    let name = attach.trim_start_matches("shm:");
    assert!(debris().iter().all(|path| !path.to_string_lossy().contains(name)));
}

#[test]
fn a_region_is_written_and_read_where_it_lies() {
    let node = Node::start(&["--memory", "16MiB"]);
    let run = |words: &[&str]| dunlin(node.words(words));
    let folder = Folder::new("direct");
    let bytes: Vec<u8> = (0..3_000_001u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let (from, to) = (folder.write("from", &bytes), folder.file("to"));
    run(&["tier", "put", "app/direct", &from, "--direct"]).well();
    run(&["tier", "get", "app/direct", &to, "--direct"]).well();
    assert!(std::fs::read(&to).expect("written") == bytes);
    assert_eq!(
        run(&["tier", "get", "app/direct", "--offset", "1MiB", "--length", "5"]).well().out,
        bytes[1 << 20..][..5]
    );
    run(&["tier", "put", "app/usual", "--text", "x"]).well();
    run(&["tier", "get", "app/usual", "--direct"]).failed(1, &["Spec::direct"]);
    run(&["tier", "put", "app/large", "-", "--size", "16MiB", "--direct"]).failed(1, &["bytes left"]);
    run(&["tier", "free", "app/direct"]).well();
}

#[test]
fn status_says_how_many_queue_pairs_there_are_and_why() {
    let status = |node: &Node| {
        let text = dunlin(node.words(&["node", "status"])).well().text();
        (text, dunlin(node.words(&["node", "status", "--json"])).well().text())
    };
    let (text, json) = status(&Node::start(&["--memory", "1MiB"]));
    let why = "the thread of an operation copies by itself, and this process may use ";
    assert!(text.contains("queue pairs to each other node: ") && text.contains(why), "{text}");
    assert!(json.contains(&format!("\"paths_reason\":\"{why}")), "{json}");
    let (text, json) = status(&Node::start(&["--memory", "1MiB", "--paths", "3"]));
    assert!(
        text.contains("queue pairs to each other node: 3, since the settings of the node say so;"),
        "{text}"
    );
    assert!(json.contains("\"paths\":3,\"paths_reason\":\"the settings of the node say so\""), "{json}");
}

#[test]
fn the_memory_of_a_node_is_refused_if_the_machine_does_not_have_it() {
    let run = |more: &[&str]| {
        let attach = unique("node");
        dunlin([&["node", "run", "--attach", &attach, "--for", "1ms"], more].concat())
    };
    run(&["--memory", "16TiB"]).failed(1, &["this machine has", "--lazy"]);
    run(&["--memory", "8MiB", "--extent", "3MiB"]).failed(1, &["extent is 3145728", "power of two"]);
    run(&["--memory", "64GiB", "--lazy", "--extent", "1GiB"]).well();
}

/// Returns a port of this host behind which there is room, and which nobody has used before.
fn free_port() -> u16 {
    let any = || std::net::TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    loop {
        let port = any().expect("a port").port();
        if port < 65_000 {
            return port;
        }
    }
}

#[test]
fn nodes_at_auto_addresses_agree_on_a_fabric() {
    let folder = Folder::new("auto");
    let (one, two) = (free_port(), free_port());
    let list = format!("one auto:127.0.0.1:{one}\ntwo auto:127.0.0.1:{two}\n");
    let peers = folder.write("nodes.txt", list);
    let first = Node::start(&["--peers", &peers, "--listen", &format!("auto:0.0.0.0:{one}")]);
    let second = Node::start(&["--peers", &peers, "--name", "two"]);
    for (node, name, why) in [
        (&first, "one", "all of the list are on this host".to_owned()),
        (&second, "two", format!("auto:127.0.0.1:{one} is on it")),
    ] {
        assert!(node.line().starts_with(&format!("node {name}, one of 2, ")));
        let port = if name == "one" { one } else { two };
        assert_eq!(node.line(), format!("fabric: shm:auto-127.0.0.1:{port}: {why}"));
    }
    dunlin(first.words(&["tier", "put", "shared", "--text", "on the other", "--on", "two"])).well();
    assert_eq!(dunlin(second.words(&["tier", "get", "shared"])).well().out, b"on the other");
    second.end();

    let attach = unique("node");
    let run = |more: &[&str]| dunlin([&["node", "run", "--attach", &attach], more].concat());
    // The first one is on shared memory, whatever the second one prefers.
    run(&["--peers", &peers, "--name", "two", "--without", "shm"]).failed(
        1,
        &[
            &format!("auto:127.0.0.1:{one} is on shm, which this process cannot use"),
            "disabled",
            "--without shm",
        ],
    );
    run(&["--peers", &peers, "--name", "one"]).failed(1, &["cannot listen at", "running there already"]);
    run(&["--peers", &peers, "--name", "two", "--listen", "auto:127.0.0.1:9"]).failed(1, &["another port"]);
    run(&["--peers", &peers, "--name", "two", "--listen", "shm:two"]).failed(1, &["different fabrics"]);
    run(&["--peers", &peers, "--listen", "auto:0.0.0.0:9"]).failed(1, &["--name one of: one, two"]);
    run(&["--listen", "auto:127.0.0.1:0"]).failed(1, &["a port from 1 to 65532"]);
    let mixed = folder.write("mixed.txt", "one auto:h:7100\ntwo rdma:i:7100\n");
    run(&["--peers", &mixed, "--name", "one"]).failed(1, &["line 2", "for all of them, or for none"]);
    let none = ["--without", "shm", "--without", "rdma", "--without", "ofi"];
    let listen = format!("auto:127.0.0.1:{two}");
    run(&[&["--listen", &listen], &none[..]].concat())
        .failed(1, &["no fabric for the list: not shm: it is disabled", "not rdma: ", "not ofi: "]);
    run(&["--etcd", "http://127.0.0.1:1", "--name", "one", "--listen", &listen]).failed(1, &[]);
}

#[test]
fn a_node_at_an_auto_address_takes_the_fabric_of_the_directory() {
    let directory = unique("directory");
    let running = Running::start(["node", "directory", &directory, "--for", "100"]);
    assert_eq!(running.line(), format!("listening on {directory}"));
    let port = free_port();
    let listen = format!("auto:127.0.0.1:{port}");
    let node = Node::start(&["--directory", &directory, "--name", "one", "--listen", &listen]);
    assert!(node.line().starts_with("node one, one of 1, "));
    assert_eq!(node.line(), format!("fabric: shm:auto-127.0.0.1:{port}: the directory is on it"));
    node.status_with("1 of 1 nodes are alive");
    node.end();
    running.signal("KILL");
    running.end();
}

#[test]
fn nodes_of_a_list_share_regions_and_one_ends_without_the_other() {
    let folder = Folder::new("peers");
    let (one, two) = (unique("one"), unique("two"));
    let peers = folder.write("nodes.txt", format!("# two nodes\n one {one}\ntwo {two}  # here, too\n"));
    let first = Node::start(&["--peers", &peers, "--name", "one"]);
    let second = Node::start(&["--peers", &peers, "--listen", &two]);
    dunlin(first.words(&["tier", "put", "shared", "--text", "on the other", "--on", "two"])).well();
    assert_eq!(dunlin(second.words(&["tier", "get", "shared"])).well().out, b"on the other");
    let listed = dunlin(second.words(&["tier", "ls"])).well().text();
    assert!(listed.contains("shared") && listed.contains("one"), "{listed}");
    assert!(!dunlin(second.words(&["node", "ls"])).well().text().contains("shared"), "it was made at one");
    let status = dunlin(first.words(&["node", "status"])).well().text();
    assert!(status.contains("nodes: one, two"), "{status}");
    dunlin(first.words(&["tier", "put", "spread", "--text", "x", "--on", "three"])).failed(1, &["no three"]);

    // A region moves there and back; where it is does not show in the list.
    dunlin(second.words(&["node", "move", "shared", "three"])).failed(1, &["no three"]);
    dunlin(second.words(&["node", "move", "missing", "one"])).failed(1, &["no such region"]);
    for to in ["one", "two", "one", "two"] {
        dunlin(second.words(&["node", "move", "shared", to])).well();
        assert_eq!(dunlin(first.words(&["tier", "get", "shared"])).well().out, b"on the other");
    }

    // A copy to another node has the bytes, and is a region of its own.
    dunlin(second.words(&["tier", "cp", "shared", "copy", "--on", "one", "--grant", "anyone=r"])).well();
    dunlin(second.words(&["tier", "cp", "shared", "copy"])).failed(1, &["a region copy already"]);
    dunlin(second.words(&["tier", "cp", "missing", "other"])).failed(1, &["no such region"]);
    dunlin(second.words(&["tier", "cp", "shared", "other", "--on", "three"])).failed(1, &["no three"]);
    dunlin(second.words(&["tier", "cp", "shared", "other", "--grant", "bob"])).failed(2, &["alice=rw"]);
    dunlin(first.words(&["tier", "get", "other"])).failed(1, &["no such region"]);
    assert_eq!(dunlin(first.words(&["tier", "get", "copy"])).well().out, b"on the other");
    let folder = Folder::new("cp");
    let bytes: Vec<u8> = (0..9_000_001u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let (from, to) = (folder.write("from", &bytes), folder.file("to"));
    dunlin(first.words(&["tier", "put", "long", &from, "--on", "two"])).well();
    let copied =
        dunlin(first.words(&["tier", "cp", "long", "long/copy", "--on", "one", "--on", "two"])).well();
    assert!(copied.errors.contains("long/copy: 8.58 MiB copied in "), "{}", copied.errors);
    dunlin(second.words(&["tier", "get", "long/copy", &to])).well();
    assert!(std::fs::read(&to).expect("written") == bytes);

    second.end();
    let ended = dunlin(first.words(&["tier", "get", "shared"]));
    assert_eq!(ended.code(), Some(1), "{}", ended.errors);
    first.end();
}

/// A file that only its owner may read.
fn secret(folder: &Folder, name: &str, content: &str) -> String {
    use std::os::unix::fs::PermissionsExt as _;
    let path = folder.write(name, content);
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("own file");
    path
}

#[test]
fn only_nodes_with_the_token_join() {
    let folder = Folder::new("token");
    let (right, wrong) = (secret(&folder, "right", "of the list\n"), secret(&folder, "wrong", "a guess\n"));
    // The same token, whatever white space is around it.
    let same = secret(&folder, "same", "  of the list");
    let names = ["one", "two", "three", "four"];
    let lines: String = names.iter().map(|name| format!("{name} {}\n", unique(name))).collect();
    let peers = folder.write("nodes.txt", lines);
    let start = |name: &str, token: &[&str]| {
        Node::start(&[&["--peers", &peers, "--name", name, "--memory", "4MiB"], token].concat())
    };
    let one = start("one", &["--token-file", &right]);
    let _two = start("two", &["--token-file", &same]);
    let three = start("three", &["--token-file", &wrong]);
    let four = start("four", &[]);
    let put = |node: &Node, name: &str, on: &str| {
        dunlin(node.words(&["tier", "put", name, "--text", "shared", "--on", on]))
    };
    put(&one, "a", "two").well();
    for stranger in [&three, &four] {
        for on in ["one", "two"] {
            put(stranger, "b", on).failed(1, &["token"]);
        }
    }
    put(&one, "c", "three").failed(1, &["token"]);
    // A node without a token accepts no token.
    put(&one, "d", "four").failed(1, &["token"]);
    assert_eq!(dunlin(one.words(&["tier", "get", "a"])).well().out, b"shared");
}

#[test]
fn a_token_of_the_file_of_principals_names_the_principal_of_a_command() {
    let folder = Folder::new("principals");
    let (hers, wrong) = ("the-secret-token-of-alice", "the-secret-token-of-nobody");
    let principals = secret(&folder, "principals", &format!("# of this host\n{hers} alice\n"));
    let (hers, wrong) = (secret(&folder, "hers", hers), secret(&folder, "wrong", wrong));
    let node = Node::start(&["--principals", &principals, "--memory", "4MiB"]);
    let run = |words: &[&str], token: &[&str]| dunlin([&node.words(words)[..], token].concat());
    let alice = ["--token-file", &hers];
    run(&["tier", "put", "app/hers", "--text", "hello"], &alice).well();
    assert_eq!(run(&["tier", "get", "app/hers"], &alice).well().out, b"hello");
    assert!(run(&["node", "ls"], &alice).well().text().contains("app/hers"));
    assert!(run(&["node", "status"], &alice).well().text().contains("alice"));
    // Not the user's.
    run(&["tier", "get", "app/hers"], &[]).failed(1, &["no such region"]);
    assert!(!run(&["node", "ls"], &[]).well().text().contains("app/hers"));
    // By the variable, which the option goes before.
    let by_variable = |file: &str, more: &[&str]| {
        let words = [&node.words(&["tier", "get", "app/hers"])[..], more].concat();
        Running::with_variables(&[("DUNLIN_NODE_TOKEN_FILE", file)], words).end()
    };
    assert_eq!(by_variable(&hers, &[]).well().out, b"hello");
    assert_eq!(by_variable(&wrong, &alice).well().out, b"hello");
    for (file, words) in [(&wrong, "--principals"), (&folder.file("missing"), "missing")] {
        by_variable(file, &[]).failed(1, &[words]);
        run(&["tier", "get", "app/hers"], &["--token-file", file]).failed(1, &[words]);
    }
    let attach = unique("principals");
    let refused = |text: &str, words: &[&str]| {
        let file = secret(&folder, "refused", text);
        dunlin(["node", "run", "--attach", &attach, "--principals", &file, "--for", "100"]).failed(1, words);
    };
    refused("short alice", &["refused", "token 1 has 5 bytes"]);
    refused("the-secret-token-of-alice", &["line 1 is not TOKEN NAME"]);
    let one = "the-secret-token-of-alice";
    refused(&format!("{one} alice\n{one} bob"), &["token 2 names another principal"]);
}

#[test]
fn a_file_of_a_token_is_one_that_nobody_else_may_read() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = Folder::new("token-file");
    let (empty, open) = (secret(&folder, "empty", " \n"), secret(&folder, "open", "known"));
    let missing = folder.file("missing");
    let listen = unique("tokens");
    let node = ["node", "run", "--attach", &listen, "--for", "100"];
    for (command, option) in [
        (&node[..], "--token-file"),
        (&node, "--principals"),
        (&["node", "directory", &listen, "--for", "100"], "--token-file"),
        (&["tier", "ls", "--node", &listen], "--token-file"),
    ] {
        let run = |file: &str| dunlin([command, &[option, file]].concat());
        run(&missing).failed(1, &["cannot read", "missing"]);
        run(&empty).failed(1, &["is empty"]);
        for mode in [0o640, 0o604, 0o620, 0o644] {
            std::fs::set_permissions(&open, std::fs::Permissions::from_mode(mode)).expect("own file");
            run(&open).failed(1, &["other users may read", "chmod 600"]);
        }
    }
}

#[test]
fn a_list_that_is_wrong_is_told_by_line_and_a_node_by_its_name() {
    let folder = Folder::new("wrong");
    let bad = folder.write("bad.txt", "a shm:a\nb\n");
    dunlin(["node", "run", "--peers", &bad]).failed(1, &["bad.txt: line 2: write NAME ADDRESS"]);
    let good = folder.write("good.txt", "a shm:a\nb shm:b\n");
    dunlin(["node", "run", "--peers", &good]).failed(1, &["not in the list", "give --name one of: a, b"]);
    dunlin(["node", "run", "--peers", &good, "--name", "c"]).failed(1, &["give --name one of: a, b"]);
    dunlin(["node", "run", "--peers", "missing.txt"]).failed(1, &["cannot read missing.txt"]);
    dunlin(["node", "run", "--user", "alice"]).failed(2, &["1000=alice"]);
    dunlin(["tier", "put", "x", "--grant", "bob=q"]).failed(2, &["alice=rw"]);
    let node = Node::start(&[]);
    dunlin(["node", "run", "--attach", &node.attach]).failed(1, &["give --attach another name"]);
}

#[test]
fn an_interrupted_put_leaves_no_region() {
    let node = Node::start(&["--memory", "64MiB"]);
    let mut command = std::process::Command::new(dunlin_command_testing::dunlin_program())
        .args(node.words(&["tier", "put", "slow", "-", "--size", "32MiB"]))
        .stdin(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null())
        .spawn()
        .expect("it starts");
    // The pipe stays open: the command waits for the rest.
    let mut input = command.stdin.take().expect("piped");
    input.write_all(&vec![7; 3_000_000]).expect("written");
    let begin = Instant::now();
    while !dunlin(node.words(&["tier", "ls"])).text().contains("slow") {
        assert!(begin.elapsed() < dunlin_command_testing::HANG, "it does not begin");
    }
    dunlin_command_testing::signal(command.id(), "INT");
    assert_eq!(command.wait().expect("it ends").code(), Some(130));
    drop(input);
    dunlin(node.words(&["tier", "ls", "slow"])).failed(1, &[]);
    node.end();
}

/// A directory that runs.
struct Directory(Option<Running>);

impl Directory {
    fn start(address: &str) -> Directory {
        let running = Running::start(["node", "directory", address, "--lease", "3s", "--for", "100"]);
        assert_eq!(running.line(), format!("listening on {address}"));
        Directory(Some(running))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        if let Some(running) = self.0.take() {
            running.signal("KILL");
            running.end();
        }
    }
}

#[test]
fn nodes_of_a_directory_show_their_view_and_leave() {
    let (address, one, two) = (unique("directory"), unique("one"), unique("two"));
    let _directory = Directory::start(&address);
    let start = |name: &str, listen: &str| {
        Node::start(&["--directory", &address, "--name", name, "--listen", listen, "--memory", "4MiB"])
    };
    let first = start("one", &one);
    let second = start("two", &two);
    let third = unique("two");
    dunlin(["node", "run", "--directory", &address, "--name", "two", "--listen", &third, "--attach", &third])
        .failed(1, &["there is a node two already", "give this one another name"]);
    let status = dunlin(second.words(&["node", "status"])).well().text();
    for word in ["2 of 2 nodes are alive", "one", "alive", one.as_str(), two.as_str()] {
        assert!(status.contains(word), "{word} is not in: {status}");
    }
    dunlin(first.words(&["tier", "put", "kept", "--text", "on the other", "--on", "two"])).well();
    dunlin(second.words(&["tier", "put", "own", "--text", "here"])).well();
    let stays = dunlin(second.words(&["node", "leave"]));
    assert_eq!(stays.code(), Some(1));
    assert_eq!(stays.out, b"own\n");
    assert!(stays.errors.contains("two stays: 1 regions"), "{}", stays.errors);
    dunlin(second.words(&["tier", "free", "own"])).well();
    assert_eq!(
        dunlin(second.words(&["node", "leave"])).code(),
        Some(1),
        "a region of the other node is there"
    );
    dunlin(second.words(&["node", "leave", "--force"])).well();
    let mut second = second;
    let ended = second.running.take().expect("running").end().well();
    assert!(ended.errors.contains("leaving the cluster"), "{}", ended.errors);
    let status = first.status_with("1 of 2 nodes are alive");
    assert!(status.contains("left"), "{status}");
    dunlin(first.words(&["tier", "get", "kept"])).failed(1, &["two is dead, or has left, in view"]);
    dunlin(first.words(&["node", "leave", "--force"])).well();
}

#[test]
fn a_node_is_drained_and_leaves_without_a_loss() {
    let (address, names) = (unique("directory"), ["one", "two", "three"]);
    let _directory = Directory::start(&address);
    let [one, two, three] = names.map(|name| {
        let listen = unique(name);
        Node::start(&["--directory", &address, "--name", name, "--listen", &listen, "--memory", "4MiB"])
    });
    one.status_with("3 of 3 nodes are alive");
    let text = |number: usize| format!("the bytes of region {number}");
    for number in 0..7 {
        let (name, text) = (format!("lent/{number}"), text(number));
        let maker = if number % 2 == 0 { &one } else { &three };
        dunlin(maker.words(&["tier", "put", &name, "--text", &text, "--on", "two"])).well();
    }
    dunlin(two.words(&["tier", "put", "own", "--text", "made here"])).well();
    dunlin(two.words(&["node", "drain", "--to", "two"])).failed(1, &["whose memory is to be emptied"]);
    dunlin(two.words(&["node", "drain", "--to", "four"])).failed(1, &["no four"]);
    let drained = dunlin(two.words(&["node", "drain"])).well();
    let done = "1 records handed over; 8 regions moved away";
    assert!(drained.errors.contains(done), "{}", drained.errors);
    let again = dunlin(two.words(&["node", "drain"])).well();
    assert!(again.errors.contains("0 records handed over; 0 regions moved away"), "{}", again.errors);
    dunlin(two.words(&["tier", "put", "late", "--text", "made after it"])).well();
    let stays = dunlin(two.words(&["node", "leave"]));
    assert_eq!((stays.code(), &stays.out[..]), (Some(1), &b"late\n"[..]));

    // Any region that was made there is the operator's to free, and no other.
    dunlin(two.words(&["node", "free", "lent/0"])).failed(1, &["was made at one"]);
    dunlin(two.words(&["node", "free", "missing"])).failed(1, &["no such region"]);
    dunlin(two.words(&["node", "free", "late"])).well();
    dunlin(two.words(&["node", "leave"])).well();
    let mut two = two;
    two.running.take().expect("running").end().well();
    for number in 0..7 {
        let name = format!("lent/{number}");
        assert_eq!(dunlin(one.words(&["tier", "get", &name])).well().out, text(number).as_bytes());
    }
    assert_eq!(dunlin(one.words(&["tier", "get", "own"])).well().out, b"made here");
    // Without another node there is nowhere to move to, and nothing has to.
    let nothing = dunlin(three.words(&["node", "drain"])).well();
    assert!(nothing.errors.contains(" regions moved away"), "{}", nothing.errors);
}

/// Ctrl-C ends a drain between two regions: those before it have moved, the others are as they were, and a second drain
/// goes on.
#[test]
fn an_interrupted_drain_leaves_every_region_whole() {
    const REGIONS: usize = 300;
    let folder = Folder::new("interrupted");
    let (one, two) = (unique("one"), unique("two"));
    let peers = folder.write("nodes.txt", format!("one {one}\ntwo {two}\n"));
    let [first, second] = ["one", "two"].map(|name| Node::start(&["--peers", &peers, "--name", name]));
    let [maker, operator] = [&first, &second].map(|node| {
        dunlin_tier_client::Tier::attach(&node.attach.parse().expect("an address")).expect("a node")
    });
    let bytes = |number: usize| vec![number as u8; 3000 + number];
    let spec = |number: usize| dunlin_tier_client::Spec::on("two").named(format!("lent/{number}"));
    let regions: Vec<_> = (0..REGIONS)
        .map(|number| {
            let region = maker.malloc(bytes(number).len() as u64, spec(number)).expect("memory");
            region.write(0, &bytes(number)).expect("written");
            region
        })
        .collect();
    let lent = || {
        let (mut all, mut more) = (Vec::new(), true);
        while more {
            let lent = operator.lent(all.last()).expect("an answer");
            more = lent.more;
            all.extend(lent.regions);
        }
        all.len()
    };
    let is_whole = || {
        for (number, region) in regions.iter().enumerate() {
            let mut found = vec![0; bytes(number).len()];
            if region.read(0, &mut found).is_err() {
                // It has moved.
                let again = maker.map(format!("lent/{number}"), dunlin_tier_client::Rights::READ);
                again.expect("its name").read(0, &mut found).expect("read");
            }
            assert!(found == bytes(number), "region {number}");
        }
    };
    assert_eq!(lent(), REGIONS);
    let drain = Running::start(second.words(&["node", "drain"]));
    let begin = Instant::now();
    while lent() == REGIONS {
        assert!(begin.elapsed() < Duration::from_secs(60), "no region moves");
    }
    drain.signal("INT");
    let ended = drain.end();
    assert_eq!(ended.code(), Some(130), "{}", ended.errors);
    let moved = ended.errors.split_once(" regions moved away, ").expect("how many").0;
    let moved: usize =
        moved.rsplit(|c: char| !c.is_ascii_digit()).next().and_then(|n| n.parse().ok()).expect("a number");
    assert!((1..REGIONS).contains(&moved), "{moved}");
    assert!(ended.errors.contains("the other regions stay as they were; run the command again"));
    // The memory that the last ones have left is released soon.
    while lent() > REGIONS - moved {
        assert!(begin.elapsed() < Duration::from_secs(60), "{} and not {}", lent(), REGIONS - moved);
    }
    assert_eq!(lent(), REGIONS - moved);
    is_whole();
    let again = dunlin(second.words(&["node", "drain"])).well();
    let rest = format!("{} regions moved away", REGIONS - moved);
    assert!(again.errors.contains(&rest), "{rest} is not in: {}", again.errors);
    assert_eq!(lent(), 0);
    is_whole();
}

#[test]
fn a_drain_without_room_elsewhere_leaves_regions_where_they_are() {
    let folder = Folder::new("full");
    let (one, two) = (unique("one"), unique("two"));
    let peers = folder.write("nodes.txt", format!("one {one}\ntwo {two}\n"));
    let first = Node::start(&["--peers", &peers, "--name", "one", "--memory", "2MiB"]);
    let second = Node::start(&["--peers", &peers, "--name", "two", "--memory", "16MiB"]);
    dunlin(first.words(&["tier", "put", "large", "-", "--size", "8MiB", "--on", "two"])).well();
    dunlin(first.words(&["tier", "put", "small", "--text", "moves", "--on", "two"])).well();
    let drained = dunlin(second.words(&["node", "drain"]));
    assert_eq!(drained.code(), Some(1), "{}", drained.errors);
    for words in
        ["a region of one, 8 MiB here, stays", "bytes left", "1 regions moved away", "1 regions of other"]
    {
        assert!(drained.errors.contains(words), "{words} is not in: {}", drained.errors);
    }
    assert_eq!(dunlin(second.words(&["tier", "get", "small"])).well().out, b"moves");
    dunlin(first.words(&["tier", "get", "large", "--length", "9"])).well();
    second.end();
    assert_eq!(dunlin(first.words(&["tier", "get", "small"])).well().out, b"moves");
}

#[test]
fn settings_of_a_directory_that_make_no_sense_are_refused() {
    dunlin(["node", "directory", "shm:x", "--lease", "10ms"]).failed(2, &["write 300ms or more"]);
    dunlin(["node", "run", "--directory", "shm:x"]).failed(2, &["--name", "--listen"]);
    let absent = unique("absent");
    let words = ["node", "run", "--directory", &absent, "--name", "a", "--listen", "shm:a-of-no-directory"];
    dunlin(words).failed(1, &["no connection to the directory", "dunlin node directory"]);
}

#[test]
fn an_etcd_that_is_not_built_in_or_makes_no_sense_is_refused() {
    let words =
        ["node", "run", "--etcd", "http://127.0.0.1:1", "--name", "a", "--listen", "shm:a-of-no-etcd"];
    dunlin(words).failed(1, &["this build has no etcd", "--features etcd", "protobuf-compiler"]);
    dunlin(["node", "run", "--etcd", "http://127.0.0.1:1"]).failed(2, &["--name", "--listen"]);
    let with = |option, value| dunlin([&words[..], &[option, value]].concat());
    with("--lease", "1500ms").failed(2, &["in seconds"]);
    with("--cluster", "a/b").failed(2, &["without a slash"]);
    with("--directory", "shm:x").failed(2, &["cannot be used with"]);
}

#[test]
fn regions_outlive_a_node_with_a_keeper() {
    let address = unique("keeper");
    let keeper = Running::start(["node", "keep", &address, "--for", "100"]);
    assert_eq!(keeper.line(), format!("listening on {address}"));
    let attach = unique("node");
    let start = || {
        let words =
            ["node", "run", "--attach", &attach, "--for", "100", "--memory", "16MiB", "--keeper", &address];
        let running = Running::start(words);
        assert_eq!(running.line(), format!("listening on {attach}"));
        Node { running: Some(running), attach: attach.clone() }
    };
    let node = start();
    dunlin(node.words(&["tier", "put", "kept/text", "--text", "hello"])).well();
    let status = dunlin(node.words(&["node", "status"])).well().text();
    assert!(status.contains("keeper: has the memory"), "{status}");
    let second = ["node", "run", "--attach", &unique("node"), "--memory", "16MiB", "--keeper", &address];
    dunlin(second).failed(1, &["serves another node, which lives"]);
    // Killed, then ended in an orderly way: the next life has the region each time.
    drop(node);
    let node = start();
    assert_eq!(dunlin(node.words(&["tier", "get", "kept/text"])).well().out, b"hello");
    node.end();
    dunlin(["node", "run", "--memory", "32MiB", "--attach", &attach, "--keeper", &address])
        .failed(1, &["the memory of the keeper is", "start the node as before"]);
    let node = start();
    assert_eq!(dunlin(node.words(&["tier", "get", "kept/text"])).well().out, b"hello");
    // A node that leaves has its regions forgotten.
    dunlin(node.words(&["node", "leave", "--force"])).well();
    let Node { running, .. } = &mut { node };
    running.take().expect("running").end().well();
    let node = start();
    dunlin(node.words(&["tier", "get", "kept/text"])).failed(1, &["no such region"]);
    keeper.signal("INT");
    let ended = keeper.end().well();
    assert!(
        ended.errors.contains("the node has ended") && ended.errors.contains("ending: "),
        "{}",
        ended.errors
    );
    let Node { running, .. } = &mut { node };
    let running = running.take().expect("running");
    running.signal("INT");
    let ended = running.end().well();
    assert!(ended.errors.contains("regions in the memory of this node end with it"), "{}", ended.errors);
    let words = ["node", "run", "--attach", &unique("node"), "--keeper", &address];
    dunlin(words).failed(1, &["no keeper listens", "dunlin node keep"]);
}
