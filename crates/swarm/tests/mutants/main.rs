//! Tests the swarm: each bug planted in the engine must be caught within a minute, or by a test if the swarm meets it too
//! rarely. All bugs are planted in one copy of the sources, which is built once (the engine's own build is unaffected), and
//! an environment variable switches on one at a time.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

mod list;

use list::{MUTANTS, Mutant};

/// The environment variable that selects the bug in the copy.
const VARIABLE: &str = "DUNLIN_MUTANT";

/// Optimised, and with the checks of a debug build: many times as many seeds in the same time.
const BUILD: &str = "build --offline --quiet --profile checked -p dunlin-swarm --example swarm";

/// Seconds for each bug.
const SECONDS: &str = "60";

/// Returns whether a bug is on; exists in the copy only.
const SWITCH: &str = "
/// Whether a bug is switched on.
pub fn mutant(name: &str) -> bool {
    static ON: std::sync::OnceLock<String> = std::sync::OnceLock::new();
    ON.get_or_init(|| std::env::var(\"DUNLIN_MUTANT\").unwrap_or_default()) == name
}
";

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a folder");
    for entry in fs::read_dir(from).expect("a folder") {
        let entry = entry.expect("an entry");
        let (path, target) = (entry.path(), to.join(entry.file_name()));
        if path.is_dir() {
            copy(&path, &target);
            continue;
        }
        let new = fs::read(&path).expect("a file");
        // Unchanged files are not rewritten, which avoids rebuilds.
        if fs::read(&target).ok().as_deref() != Some(&new[..]) {
            fs::write(&target, new).expect("written");
        }
    }
}

/// Copies the sources with all bugs planted; returns the folder.
fn plant() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the workspace");
    let garden = Path::new(env!("CARGO_TARGET_TMPDIR")).join("mutants");
    let staging = garden.join("staging");
    if staging.exists() {
        fs::remove_dir_all(&staging).expect("the last staging goes");
    }
    // The whole workspace, or cargo would miss members.
    for folder in ["apps", "crates", "examples"] {
        copy(&root.join(folder), &staging.join(folder));
    }
    for file in ["Cargo.toml", "Cargo.lock"] {
        fs::copy(root.join(file), staging.join(file)).expect("copied");
    }
    for mutant in MUTANTS {
        let path = staging.join(mutant.file);
        fs::write(&path, mutant.planted(&staging)).expect("written");
    }
    // The state machines of the memory tier know no fabric.
    for source in ["crates/fabric/src/lib.rs", "crates/tier/src/lib.rs"] {
        let source = staging.join(source);
        let text = fs::read_to_string(&source).expect("a source");
        fs::write(&source, text + SWITCH).expect("written");
    }
    let source = garden.join("source");
    copy(&staging, &source);
    source
}

/// Bugs that only runs under a directory show.
const OF_VIEWS: [&str; 1] = ["last_node_first"];

/// Bugs that the swarm meets once in hundreds of seeds or less, each with the package, the program and the test that catch
/// it.
const BY_TEST: [(&str, &str, &str, &str); 3] = [
    (
        "stores_not_asked",
        "dunlin-tier-node",
        "--test=all",
        "orphans::a_node_that_comes_back_asks_for_its_memory",
    ),
    (
        "new_keeper_asks_nobody",
        "dunlin-tier",
        "--lib",
        "record::tests::a_new_keeper_maps_nothing_until_the_others_say_that_it_is_one",
    ),
    (
        "torn_line_taken",
        "dunlin-rpc",
        "--test=all",
        "virtual_time::results_are_fetched_once_more_where_lines_are_not_read_whole",
    ),
];

/// Returns the parts of the swarm that can show a bug, by the crate that it is in.
fn parts(mutant: &Mutant) -> &'static [&'static str] {
    match mutant.file.split('/').nth(1) {
        Some("rpc") => &["engine"],
        _ if OF_VIEWS.contains(&mutant.name) => &["views"],
        Some("tier" | "tier-node") => &["tier", "views"],
        _ => &[],
    }
}

/// Returns whether a test of the copy passes with a bug switched on.
fn passes(source: &Path, mutant: &str, (package, program, test): (&str, &str, &str)) -> bool {
    let output = Command::new(env!("CARGO"))
        .args(["test", "--offline", "--quiet", "-p", package, program, "--", "--exact", test])
        .current_dir(source)
        .env("CARGO_TARGET_DIR", source.join("../target"))
        .env(VARIABLE, mutant)
        .env_remove("RUSTFLAGS")
        .output()
        .expect("cargo runs");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        said.contains("running 1 test"),
        "{test} does not run: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    output.status.success()
}

#[test]
fn every_bug_is_caught() {
    let source = plant();
    let built = Command::new(env!("CARGO"))
        .args(BUILD.split(' '))
        .current_dir(&source)
        .env("CARGO_TARGET_DIR", source.join("../target"))
        .env_remove("RUSTFLAGS")
        .output()
        .expect("cargo runs");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let program = source.join("../target/checked/examples/swarm");
    let run = |mutant: &str, seeds: &str, parts: &[&str]| {
        let output = Command::new(&program)
            .args(["0", seeds, SECONDS])
            .args(parts)
            .env(VARIABLE, mutant)
            .stdin(Stdio::null())
            .output()
            .expect("the swarm runs");
        (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let (good, said) = run("none", "60", &[]);
    assert!(good, "without a bug: {said}");
    let mut mutants: Vec<_> = MUTANTS.iter().collect();
    mutants.dedup_by_key(|mutant| mutant.name);
    let all = mutants.len();
    mutants.retain(|mutant| BY_TEST.iter().all(|(name, ..)| *name != mutant.name));
    assert_eq!(mutants.len() + BY_TEST.len(), all, "a bug that a test catches is in the list");
    let (next, survivors) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(mutant) = mutants.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let name = mutant.name;
                    let (good, said) = run(name, "1000000", parts(mutant));
                    println!("{name}: {}", said.lines().next().unwrap_or("it ended without a word"));
                    if good {
                        survivors.lock().expect("no panic").push(name);
                    }
                }
            });
        }
    });
    let mut survivors = survivors.into_inner().expect("no panic");
    for (name, package, program, test) in BY_TEST {
        let by = (package, program, test);
        assert!(passes(&source, "none", by), "without a bug: {test}");
        let caught = !passes(&source, name, by);
        println!("{name}: {test} {}", if caught { "fails" } else { "passes" });
        if !caught {
            survivors.push(name);
        }
    }
    assert!(survivors.is_empty(), "not caught within {SECONDS} seconds each: {survivors:?}");
}
