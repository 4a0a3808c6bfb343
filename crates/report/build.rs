//! Embeds the commit into optimized builds. A development build reports `development`: its figures are not
//! kept, and embedding the commit would rebuild every program after each commit.

use std::path::Path;
use std::process::Command;

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=DUNLIN_COMMIT");
    // Packagers who build outside a git checkout can set the commit in the environment.
    if std::env::var_os("DUNLIN_COMMIT").is_some() {
        return;
    }
    if std::env::var("OPT_LEVEL").is_ok_and(|level| level != "3") {
        println!("cargo::rustc-env=DUNLIN_COMMIT=development");
        return;
    }
    let Some(commit) = git(&["rev-parse", "--short=12", "HEAD"]) else { return };
    // Untracked files do not count. `--no-optional-locks` keeps git from refreshing the index, which this
    // script watches; otherwise every build would trigger the next one.
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
