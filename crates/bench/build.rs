//! Tells the crate which commit it is built from, and generates the benchmarks' services.

use std::path::Path;
use std::process::Command;

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    for service in ["idl/atb.thrift", "idl/typed.thrift"] {
        dunlin_idl_build::compile(service).unwrap();
    }
    println!("cargo::rerun-if-env-changed=DUNLIN_COMMIT");
    // A packager who builds outside a checkout may give the commit.
    if std::env::var_os("DUNLIN_COMMIT").is_some() {
        return;
    }
    let Some(commit) = git(&["rev-parse", "--short=12", "HEAD"]) else { return };
    // Builds happen between commits: say so. Untracked files do not count; and git must not refresh the index that we
    // watch, or every build would be followed by another.
    let changed = git(&["--no-optional-locks", "status", "--porcelain", "--untracked-files=no"])
        .is_some_and(|list| !list.is_empty());
    println!("cargo::rustc-env=DUNLIN_COMMIT={commit}{}", if changed { "+changes" } else { "" });
    // The log of HEAD grows with every commit, checkout and reset, in a worktree too.
    for name in ["HEAD", "logs/HEAD", "index"] {
        if let Some(path) = git(&["rev-parse", "--git-path", name])
            && Path::new(&path).exists()
        {
            println!("cargo::rerun-if-changed={path}");
        }
    }
}
