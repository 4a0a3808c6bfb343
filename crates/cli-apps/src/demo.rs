//! `dunlin apps` without an application: shows each of them by commands that a user can repeat, in half a minute.

use crate::{Arguments, Command};
use clap::Parser as _;
use dunlin::Address;
use dunlin::fabric::{Scheme, ShmFabric};
use dunlin_command::interrupt::Interrupt;
use dunlin_command::output::{self, Failure};
use dunlin_command::shared_memory;
use dunlin_tier_node::{Peer, ProcessConfig, ProcessServer, Tier, TierConfig};
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Different words of the text.
const WORDS: f64 = 50_000.0;

/// The sizes of the data.
struct Sizes {
    /// Bytes of the text, at least.
    text: u64,
    /// The graph has `2^scale` vertices.
    scale: &'static str,
    /// Rounds of the bench of the log.
    rounds: &'static str,
    /// Increments of a member.
    increments: &'static str,
}

const FULL: Sizes = Sizes { text: 32 << 20, scale: "18", rounds: "5", increments: "5000" };
const QUICK: Sizes = Sizes { text: 1 << 18, scale: "10", rounds: "2", increments: "50" };

/// A folder that is removed in the end.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Result<Folder, Failure> {
        let path = std::env::temp_dir().join(format!("dunlin-apps-{}", std::process::id()));
        let failed = |error| Failure::new(format!("cannot make {}: {error}", path.display()));
        std::fs::create_dir(&path).map_err(failed)?;
        Ok(Folder(path))
    }

    fn file(&self, name: &str) -> String {
        self.0.join(name).to_string_lossy().into_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Writes words by chance: the Nth is about N times rarer than the first.
fn write_text(path: &str, bytes: u64, interrupt: &Interrupt) -> std::io::Result<()> {
    let mut file = BufWriter::new(std::fs::File::create(path)?);
    let (mut state, mut written) = (1u64, 0);
    while written < bytes && interrupt.received().is_none() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let chance = (state >> 11) as f64 / (1u64 << 53) as f64;
        let end = if state >> 33 & 15 == 0 { '\n' } else { ' ' };
        let word = format!("word{}{end}", WORDS.powf(chance) as u32);
        file.write_all(word.as_bytes())?;
        written += word.len() as u64;
    }
    file.flush()
}

/// A node of this process, to which commands attach.
struct Node {
    attach: Address,
    // Ends before the node.
    _processes: ProcessServer<ShmFabric>,
    _node: Tier<ShmFabric>,
}

fn node() -> Result<Node, Failure> {
    let name = format!("apps-{}", std::process::id());
    let peer = Peer::named(Scheme::Shm, &name).map_err(Failure::new)?;
    let attach = Address::new(Scheme::Shm, &format!("{name}-attach")).map_err(Failure::new)?;
    let fabric = shared_memory()?;
    let config = TierConfig { memory: 128 << 20, ..TierConfig::new(vec![peer.clone()], &peer.name) };
    let node = Tier::within(&fabric, config).map_err(Failure::new)?;
    let processes = ProcessServer::serve(&fabric, &node, ProcessConfig::new(attach.clone()));
    Ok(Node { attach, _processes: processes.map_err(Failure::new)?, _node: node })
}

fn title(text: &str) -> Result<(), Failure> {
    output::print(format!("\n=== {text}\n"))
}

/// Prints a command, and runs it in this process. Handlers of signals stay after the first command that has some, so a
/// signal that no command sees ends the demonstration here.
fn run_command(words: &[&str], interrupt: &Interrupt) -> Result<(), Failure> {
    interrupt.check()?;
    let shown: Vec<String> = words.iter().map(|word| quoted(word)).collect();
    output::print(format!("\n$ dunlin apps {}\n", shown.join(" ")))?;
    let arguments = Arguments::try_parse_from([&["dunlin", "apps"], words].concat()).map_err(Failure::new)?;
    let Command::Apps(arguments) = arguments.command;
    arguments.application.map_or(Ok(()), |application| application.run().map(drop))?;
    interrupt.check()
}

fn quoted(word: &str) -> String {
    if word.contains(' ') { format!("'{word}'") } else { word.to_owned() }
}

/// Checks that two commands have written the same bytes.
fn check_same(what: &str, one: &str, other: &str) -> Result<(), Failure> {
    let read = |path: &str| {
        let failed = |error| Failure::new(format!("cannot read {path}: {error}"));
        std::fs::read(Path::new(path)).map_err(failed)
    };
    match read(one)? == read(other)? {
        true => output::print(format!("The results are the same bytes as those {what}.\n")),
        false => Err(Failure::new(format!("the results differ from those {what}"))),
    }
}

pub(crate) fn run(is_quick: bool) -> Result<ExitCode, Failure> {
    let sizes = if is_quick { QUICK } else { FULL };
    let interrupt = &Interrupt::install()?;
    let folder = Folder::new()?;
    log(&sizes, interrupt)?;
    map_reduce(&sizes, &folder, interrupt)?;
    graph(&sizes, &folder, interrupt)?;
    memory(&sizes, interrupt)?;
    output::print("\nMore: dunlin apps --help, docs/guide/applications.md\n")?;
    Ok(ExitCode::SUCCESS)
}

fn log(sizes: &Sizes, interrupt: &Interrupt) -> Result<(), Failure> {
    title("A global log: transactions of all nodes in one order (LITE, section 8.1)")?;
    let node = node()?;
    let attach = node.attach.to_string();
    let run = |words: &[&str]| run_command(&[&["log"], words, &["--node", &attach]].concat(), interrupt);
    run(&["create", "orders", "--size", "1MiB"])?;
    run(&["append", "orders", "--together", "debit alice 5", "credit bob 5"])?;
    run(&["append", "orders", "debit bob 2", "credit carol 2"])?;
    run(&["tail", "orders", "--positions"])?;
    let threads = ["--threads", "1", "--threads", "2", "--entry", "16", "--entry", "1KiB"];
    run(&[&["bench", "trial", "--rounds", sizes.rounds], &threads[..]].concat())
}

fn map_reduce(sizes: &Sizes, folder: &Folder, interrupt: &Interrupt) -> Result<(), Failure> {
    title("MapReduce: workers read what others have mapped from the memory tier (section 8.2)")?;
    let [text, plain, out] = ["words.txt", "plain.txt", "counts.txt"].map(|name| folder.file(name));
    write_text(&text, sizes.text, interrupt)
        .map_err(|error| Failure::new(format!("cannot write {text}: {error}")))?;
    let count = ["mapreduce", "wordcount", &text, "--threads", "2"];
    run_command(&[&count[..], &["--top", "5", "--output", &out, "--nodes", "2"]].concat(), interrupt)?;
    run_command(&[&count[..], &["--top", "1", "--output", &plain, "--plain"]].concat(), interrupt)?;
    check_same("of the threads of one process", &out, &plain)
}

fn graph(sizes: &Sizes, folder: &Folder, interrupt: &Interrupt) -> Result<(), Failure> {
    title("A graph engine: vertex programs over regions, and over shared memory (section 8.3)")?;
    let [regions, pages] = ["regions.txt", "pages.txt"].map(|name| folder.file(name));
    let rank = ["graph", "pagerank", "--rmat", sizes.scale, "--threads", "1", "--nodes", "2", "--output"];
    run_command(&[&rank[..], &[&regions]].concat(), interrupt)?;
    run_command(&[&rank[..], &[&pages, "--shared-memory"]].concat(), interrupt)?;
    check_same("over regions", &regions, &pages)
}

fn memory(sizes: &Sizes, interrupt: &Interrupt) -> Result<(), Failure> {
    title("Shared memory: the same pages at several processes (section 8.4)")?;
    run_command(&["memory", "count", "--members", "2", "--rounds", sizes.increments], interrupt)?;
    run_command(&["memory", "bench", "--rounds", "5"], interrupt)
}
