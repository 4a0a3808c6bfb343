//! The other programs of the command. Commands that few users need and that take long to build are separate
//! programs, like the subcommands of git and cargo.

use crate::output::Failure;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A program that `dunlin` runs for some of its commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Program {
    /// Name of the executable file.
    pub name: &'static str,
    /// Name of the package that builds it.
    pub package: &'static str,
}

/// Measurements: `dunlin bench`.
pub const BENCH: Program = Program { name: "dunlin-bench", package: "dunlin-cli-bench" };
/// The simulator: `dunlin sim`.
pub const SIM: Program = Program { name: "dunlin-sim", package: "dunlin-cli-sim" };
/// The IDL compiler: `dunlin explain` and `dunlin gen`.
pub const IDL: Program = Program { name: "dunlin-idl", package: "dunlin-cli-idl" };

/// The memory tier: `dunlin node` and `dunlin tier`.
pub const TIER: Program = Program { name: "dunlin-tier", package: "dunlin-cli-tier" };
/// Applications on the memory tier: `dunlin apps`.
pub const APPS: Program = Program { name: "dunlin-apps", package: "dunlin-cli-apps" };

impl Program {
    /// Returns the executable in the folder of the running program, or the first of that name on `PATH`.
    #[must_use]
    pub fn find(self) -> Option<PathBuf> {
        let own = std::env::current_exe().ok();
        let beside = own.as_deref().and_then(Path::parent).map(Path::to_path_buf);
        let path = std::env::var_os("PATH").unwrap_or_default();
        self.find_in(beside.into_iter().chain(std::env::split_paths(&path)))
    }

    fn find_in(self, folders: impl Iterator<Item = PathBuf>) -> Option<PathBuf> {
        folders.map(|folder| folder.join(self.name)).find(|file| is_program(file))
    }

    /// Replaces this process by the program, with `words` as arguments. Returns only on failure.
    pub fn exec<S: AsRef<OsStr>>(self, words: impl IntoIterator<Item = S>) -> Failure {
        let Some(file) = self.find().or_else(|| self.build_with_cargo()) else { return self.missing() };
        let words: Vec<OsString> = words.into_iter().map(|word| word.as_ref().to_owned()).collect();
        let error = Command::new(&file).args(words).exec();
        self.cannot_start(&file, &error)
    }

    /// Builds the program in the folder of `dunlin`, if `cargo run` started this process: then it belongs to the command
    /// as its user sees it. Cargo shows the progress; Ctrl-C ends it with this process.
    fn build_with_cargo(self) -> Option<PathBuf> {
        let own = std::env::current_exe().ok()?;
        self.build_beside(&own, &std::env::var_os("CARGO")?, &std::env::var_os("CARGO_MANIFEST_DIR")?)
    }

    fn build_beside(self, own: &Path, cargo: &OsStr, manifest: &OsStr) -> Option<PathBuf> {
        let folder = own.parent()?;
        let target = folder.parent().filter(|target| target.join("CACHEDIR.TAG").is_file())?;
        let profile = match folder.file_name()?.to_str()? {
            "debug" => "dev",
            other => other,
        };
        eprintln!("building {}, a program of its own, once", self.name);
        let mut build = Command::new(cargo);
        build.args(["build", "--profile", profile, "--package", self.package, "--target-dir"]).arg(target);
        let built = build.current_dir(manifest).status().ok()?.success();
        built.then(|| folder.join(self.name)).filter(|file| is_program(file))
    }

    /// Returns the error for a program that is neither in the folder of `dunlin` nor on `PATH`.
    #[must_use]
    pub fn missing(self) -> Failure {
        Failure::new(format!(
            "this command is a program of its own, {}, which is neither beside dunlin nor on PATH",
            self.name
        ))
        .help(format!("build it with: cargo build --release -p {}", self.package))
    }

    fn cannot_start(self, file: &Path, error: &io::Error) -> Failure {
        Failure::new(format!("cannot start {}: {error}", file.display()))
            .help(format!("build it again with: cargo build --release -p {}", self.package))
    }
}

fn is_program(file: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    file.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn the_first_folder_with_an_executable_file_wins() {
        let root = std::env::temp_dir().join(format!("dunlin-program-{}", std::process::id()));
        let folders = ["empty", "data", "first", "second"].map(|name| root.join(name));
        for folder in &folders {
            std::fs::create_dir_all(folder).expect("a folder");
        }
        for (folder, mode) in [(1, 0o644), (2, 0o755), (3, 0o755)] {
            let file = folders[folder].join(SIM.name);
            std::fs::write(&file, "").expect("written");
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).expect("set");
        }
        let found = SIM.find_in(folders.iter().cloned());
        assert_eq!(found, Some(folders[2].join(SIM.name)));
        assert_eq!(BENCH.find_in(folders.iter().cloned()), None);
        std::fs::remove_dir_all(root).expect("removed");
    }

    /// A script stands for cargo: it makes the file that it was asked for.
    #[test]
    fn under_cargo_run_a_program_is_built_where_dunlin_lies() {
        let root = std::env::temp_dir().join(format!("dunlin-builds-{}", std::process::id()));
        let folder = root.join("target/release");
        std::fs::create_dir_all(&folder).expect("a folder");
        let cargo = root.join("cargo");
        let script = format!(
            "#!/bin/sh\necho \"$@\" > words\nprintf '' > target/release/{0}\nchmod 755 target/release/{0}\n",
            SIM.name
        );
        std::fs::write(&cargo, script).expect("written");
        std::fs::set_permissions(&cargo, std::fs::Permissions::from_mode(0o755)).expect("set");
        let build = || SIM.build_beside(&folder.join("dunlin"), cargo.as_os_str(), root.as_os_str());
        assert_eq!(build(), None, "no target folder of cargo");
        assert!(!root.join("words").exists());
        std::fs::write(root.join("target/CACHEDIR.TAG"), "").expect("written");
        assert_eq!(build(), Some(folder.join(SIM.name)));
        let words = std::fs::read_to_string(root.join("words")).expect("the words");
        let target = root.join("target");
        let expected =
            format!("build --profile release --package {} --target-dir {}", SIM.package, target.display());
        assert_eq!(words.trim(), expected);
        std::fs::remove_dir_all(root).expect("removed");
    }
}
