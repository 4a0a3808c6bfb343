//! Tests the swarm: each bug planted in the engine must be caught within a minute. All bugs are planted in
//! one copy of the sources, which is built once (the engine's own build is unaffected), and an environment
//! variable switches on one at a time.
//!
//! A bug's text must occur in the sources exactly once: a change of that part of the engine fails here, and
//! the bug must be adapted to it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The environment variable that selects the bug in the copy.
const VARIABLE: &str = "DUNLIN_MUTANT";

/// Seconds for each bug.
const SECONDS: &str = "60";

struct Mutant {
    name: &'static str,
    file: &'static str,
    from: &'static str,
    to: &'static str,
}

const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "lost_wakeup",
        file: "crates/rpc/src/client/synchronous.rs",
        from: "let wake = self.core.domain.wait(armed, fetch.min(others));",
        to: "let armed = if dunlin_fabric::mutant(\"lost_wakeup\") { self.core.domain.disarm(armed); self.core.domain.arm(mode) } else { armed };
        let wake = self.core.domain.wait(armed, fetch.min(others));",
    },
    Mutant {
        name: "skipped_tag_check",
        file: "crates/rpc/src/path/rx.rs",
        from: "if region.load(at + trailing) != expected.trailing {",
        to: "if region.load(at + trailing) != expected.trailing && !dunlin_fabric::mutant(\"skipped_tag_check\") {",
    },
    Mutant {
        name: "credit_not_returned",
        file: "crates/rpc/src/server/worker.rs",
        from: "                    (_, buffer) => {
                        if completion.immediate",
        to: "                    _ if dunlin_fabric::mutant(\"credit_not_returned\") => lane.rx.noticed(),
                    (_, buffer) => {
                        if completion.immediate",
    },
    Mutant {
        name: "generation_not_advanced",
        file: "crates/rpc/src/client/slots.rs",
        from: "Some(self.slots.get(self.free as usize)?.call.wrapping_add(1 << SLOT_BITS))",
        to: "let step = if dunlin_fabric::mutant(\"generation_not_advanced\") && self.in_flight > 0 { 0 } else { 1 };
        Some(self.slots.get(self.free as usize)?.call.wrapping_add(step << SLOT_BITS))",
    },
    Mutant {
        name: "duplicate_execution",
        file: "crates/rpc/src/server/dispatch.rs",
        from: "let outcome = catch_unwind(AssertUnwindSafe(|| service.call(&request, &mut reply)));",
        to: "if dunlin_fabric::mutant(\"duplicate_execution\") && (call.call >> 12) % 4 == 3 {
            let _ = service.call(&request, &mut reply);
            reply.clear();
        }
        let outcome = catch_unwind(AssertUnwindSafe(|| service.call(&request, &mut reply)));",
    },
    Mutant {
        name: "head_too_far",
        file: "crates/rpc/src/mailbox.rs",
        from: "        self.head as u32
    }

    /// The writer will see that head.",
        to: "        self.head as u32 + u32::from(dunlin_fabric::mutant(\"head_too_far\"))
    }

    /// The writer will see that head.",
    },
    Mutant {
        name: "deadline_ignored",
        file: "crates/rpc/src/client/slots.rs",
        from: "State::InFlight | State::Reading) || slot.timeout == 0 {",
        to: "State::InFlight | State::Reading) || slot.timeout == 0 || dunlin_fabric::mutant(\"deadline_ignored\") {",
    },
    Mutant {
        name: "deadline_late",
        file: "crates/rpc/src/client/slots.rs",
        from: "self.deadline = now().saturating_add(self.timeout);",
        to: "let late = if dunlin_fabric::mutant(\"deadline_late\") { 10_000_000 } else { 0 };
            self.deadline = now().saturating_add(self.timeout + late);",
    },
    Mutant {
        name: "not_executed_said_too_soon",
        file: "crates/rpc/src/client/slots.rs",
        from: "let never = slot.sequence >= taken;",
        to: "let never = slot.sequence >= taken || dunlin_fabric::mutant(\"not_executed_said_too_soon\");",
    },
    Mutant {
        name: "slot_free_too_soon",
        file: "crates/rpc/src/client/slots.rs",
        from: "            State::Expired | State::InFlight | State::Reading => {
                slot.state = State::Zombie;",
        to: "            _ if dunlin_fabric::mutant(\"slot_free_too_soon\") => self.release(call),
            State::Expired | State::InFlight | State::Reading => {
                slot.state = State::Zombie;",
    },
    Mutant {
        name: "repeated_call_executed",
        file: "crates/rpc/src/server/dispatch.rs",
        from: "        if !lane.admit(entry.call, entry.function_or_status)? {",
        to: "        let twice = lane.replies.is_some() && dunlin_fabric::mutant(\"repeated_call_executed\");
        if !lane.admit(entry.call, entry.function_or_status)? && !twice {",
    },
    Mutant {
        name: "lost_write_not_written_again",
        file: "crates/rpc/src/path/tx.rs",
        from: "        lossy.ring.start_round();",
        to: "        if dunlin_fabric::mutant(\"lost_write_not_written_again\") { return Ok(true); }
        lossy.ring.start_round();",
    },
    Mutant {
        name: "torn_line_taken",
        file: "crates/rpc/src/path/fetch.rs",
        from: "        if !self.whole && !std::mem::replace(&mut self.seen, true) {",
        to: "        if !self.whole && !std::mem::replace(&mut self.seen, true) && !dunlin_fabric::mutant(\"torn_line_taken\") {",
    },
    Mutant {
        name: "filling_call_denied",
        file: "crates/rpc/src/client/lane.rs",
        from: "                // The call is made: what breaks now is found by who looks for its answer.
                let _ = self.flush_if_room(fabric, domain);",
        to: "                let flushed = self.flush_if_room(fabric, domain);
                if dunlin_fabric::mutant(\"filling_call_denied\") { flushed?; }",
    },
    Mutant {
        name: "worker_not_woken",
        file: "crates/rpc/src/server/inbox.rs",
        from: "self.waker.wake();",
        to: "if !dunlin_fabric::mutant(\"worker_not_woken\") { self.waker.wake(); }",
    },
];

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
    for folder in ["crates", "examples"] {
        copy(&root.join(folder), &staging.join(folder));
    }
    for file in ["Cargo.toml", "Cargo.lock"] {
        fs::copy(root.join(file), staging.join(file)).expect("copied");
    }
    for mutant in MUTANTS {
        let path = staging.join(mutant.file);
        let text = fs::read_to_string(&path).expect("a source");
        let places = text.matches(mutant.from).count();
        assert_eq!(
            places, 1,
            "the place of '{}' is to be found once in {}, and is found {places} times: give it its new place",
            mutant.name, mutant.file
        );
        fs::write(&path, text.replace(mutant.from, mutant.to)).expect("written");
    }
    let fabric = staging.join("crates/fabric/src/lib.rs");
    let text = fs::read_to_string(&fabric).expect("a source");
    fs::write(&fabric, text + SWITCH).expect("written");
    let source = garden.join("source");
    copy(&staging, &source);
    source
}

#[test]
fn every_bug_is_caught() {
    let source = plant();
    let built = Command::new(env!("CARGO"))
        .args(["build", "--offline", "--quiet", "-p", "dunlin-scenario", "--example", "swarm"])
        .current_dir(&source)
        .env("CARGO_TARGET_DIR", source.join("../target"))
        .env_remove("RUSTFLAGS")
        .output()
        .expect("cargo runs");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let program = source.join("../target/debug/examples/swarm");
    let run = |mutant: &str, seeds: &str| {
        let output = Command::new(&program)
            .args(["0", seeds, SECONDS])
            .env(VARIABLE, mutant)
            .stdin(Stdio::null())
            .output()
            .expect("the swarm runs");
        (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let (good, said) = run("none", "60");
    assert!(good, "without a bug: {said}");
    let (next, survivors) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(mutant) = MUTANTS.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let (good, said) = run(mutant.name, "1000000");
                    println!("{}: {}", mutant.name, said.lines().next().unwrap_or("it ended without a word"));
                    if good {
                        survivors.lock().expect("no panic").push(mutant.name);
                    }
                }
            });
        }
    });
    let survivors = survivors.into_inner().expect("no panic");
    assert!(survivors.is_empty(), "not caught within {SECONDS} seconds each: {survivors:?}");
}
