//! Runs the `dunlin` command in real processes for the integration tests of its programs. Every wait is bounded.
#![allow(missing_docs, reason = "helpers of tests, named for their effect")]

mod patience;

pub use patience::Patience;

use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Nothing that these tests run takes so long, however slow the machine: it hangs.
pub const HANG: Duration = Duration::from_secs(60);

/// The packages of the command's programs.
const PACKAGES: [&str; 6] = [
    "dunlin-cli",
    "dunlin-cli-bench",
    "dunlin-cli-sim",
    "dunlin-cli-idl",
    "dunlin-cli-tier",
    "dunlin-cli-apps",
];

/// The folder of the programs of the running build: of a test, which runs in `target/PROFILE/deps`, or of a program beside them.
fn programs_folder() -> PathBuf {
    let own = std::env::current_exe().expect("a path");
    let folder = own.parent().expect("a folder");
    let above = folder.parent().filter(|_| folder.ends_with("deps"));
    above.unwrap_or(folder).to_owned()
}

/// Says that all programs are built: set by `./test`, which builds the workspace first.
const BUILT: &str = "DUNLIN_TEST_PROGRAMS_ARE_BUILT";

/// The path of a program of the command. The first call builds all of them, unless the environment says that they are built: Cargo
/// itself builds only those of the package under test.
pub fn program(name: &str) -> PathBuf {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| {
        let folder = programs_folder();
        if std::env::var_os(BUILT).is_none() {
            build(&folder);
        }
        folder
    });
    folder.join(name)
}

/// The path of `dunlin`.
pub fn dunlin_program() -> PathBuf {
    program("dunlin")
}

fn build(folder: &Path) {
    let profile = match folder.file_name().and_then(OsStr::to_str) {
        Some("debug") | None => "dev",
        Some(other) => other,
    };
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .args(["build", "--quiet", "--locked", "--bins", "--profile", profile, "--target-dir"])
        .arg(folder.parent().expect("the target folder"))
        .args(PACKAGES.map(|package| format!("--package={package}")))
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .status();
    assert!(status.expect("cargo runs").success(), "cannot build the programs");
}

/// A name that no other test uses.
pub fn unique(what: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("shm:test-{what}-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// A folder of this test's own, removed in the end.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new(what: &str) -> Self {
        let name = unique(what).replace(':', "-");
        let path = programs_folder().join("..").join("tmp").join(name);
        std::fs::create_dir_all(&path).expect("a folder");
        Folder(path)
    }

    pub fn file(&self, name: &str) -> String {
        self.0.join(name).to_str().expect("UTF-8").to_owned()
    }

    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> String {
        let path = self.file(name);
        std::fs::write(&path, content).expect("written");
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// How a command ended.
#[derive(Debug)]
pub struct Ended {
    pub status: ExitStatus,
    pub out: Vec<u8>,
    pub errors: String,
}

impl Ended {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.out).into_owned()
    }

    pub fn code(&self) -> Option<i32> {
        self.status.code()
    }

    /// Panics unless it ended well.
    #[track_caller]
    pub fn well(self) -> Self {
        assert_eq!(self.code(), Some(0), "{}\n{}", self.text(), self.errors);
        self
    }

    /// Panics unless it failed with this status and these words in its error.
    #[track_caller]
    pub fn failed(self, code: i32, words: &[&str]) -> Self {
        assert_eq!(self.code(), Some(code), "{}\n{}", self.text(), self.errors);
        for word in words {
            assert!(self.errors.contains(word), "'{word}' is missing in:\n{}", self.errors);
        }
        assert!(!self.errors.contains("panicked"), "{}", self.errors);
        self
    }
}

/// A command that runs.
pub struct Running {
    child: Child,
    out: JoinHandle<Vec<u8>>,
    errors: JoinHandle<String>,
    lines: Receiver<String>,
}

impl Running {
    pub fn start<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Self {
        Self::with_input(arguments, b"")
    }

    pub fn with_input<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>, input: &[u8]) -> Self {
        Self::with(&[], arguments, input)
    }

    /// With these variables in its environment.
    pub fn with_variables<S: AsRef<OsStr>>(
        variables: &[(&str, &str)],
        arguments: impl IntoIterator<Item = S>,
    ) -> Self {
        Self::with(variables, arguments, b"")
    }

    fn with<S: AsRef<OsStr>>(
        variables: &[(&str, &str)],
        arguments: impl IntoIterator<Item = S>,
        input: &[u8],
    ) -> Self {
        let mut child = Command::new(dunlin_program())
            .args(arguments)
            .envs(variables.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary starts");
        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let input = input.to_vec();
        std::thread::spawn(move || stdin.expect("piped").write_all(&input));
        let (sender, lines) = channel();
        let out = std::thread::spawn(move || {
            let (mut reader, mut all) = (BufReader::new(stdout.expect("piped")), Vec::new());
            loop {
                let start = all.len();
                match reader.read_until(b'\n', &mut all) {
                    Ok(length) if length > 0 => {
                        let _ = sender.send(String::from_utf8_lossy(&all[start..]).trim_end().to_owned());
                    }
                    _ => return all,
                }
            }
        });
        let errors = std::thread::spawn(move || {
            let mut text = Vec::new();
            let _ = stderr.expect("piped").read_to_end(&mut text);
            String::from_utf8_lossy(&text).into_owned()
        });
        Running { child, out, errors, lines }
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The next line of its output.
    #[track_caller]
    pub fn line(&self) -> String {
        let mut patience = Patience::new(HANG);
        loop {
            match self.lines.recv_timeout(Duration::from_millis(20)) {
                Ok(line) => return line,
                Err(RecvTimeoutError::Timeout) if patience.look() => {}
                Err(error) => panic!("a line of output: {error}"),
            }
        }
    }

    /// Waits for a line that holds a word.
    #[track_caller]
    pub fn line_with(&self, word: &str) -> String {
        loop {
            let line = self.line();
            if line.contains(word) {
                return line;
            }
        }
    }

    pub fn signal(&self, name: &str) {
        signal(self.id(), name);
    }

    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Waits for its end.
    #[track_caller]
    pub fn end(self) -> Ended {
        self.end_within(HANG)
    }

    #[track_caller]
    pub fn end_within(mut self, time: Duration) -> Ended {
        let mut patience = Patience::new(time);
        let status = loop {
            match self.child.try_wait().expect("a child") {
                Some(status) => break status,
                None if patience.look() => std::thread::sleep(Duration::from_millis(5)),
                None => {
                    let _ = self.child.kill();
                    let _ = self.child.wait();
                    panic!("it hangs:\n{}", self.errors.join().expect("a reader"));
                }
            }
        };
        Ended {
            status,
            out: self.out.join().expect("a reader"),
            errors: self.errors.join().expect("a reader"),
        }
    }
}

/// Runs a command to its end.
#[track_caller]
pub fn dunlin<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Ended {
    Running::start(arguments).end()
}

pub fn signal(process: u32, name: &str) {
    let sent = Command::new("kill").args([&format!("-{name}"), &process.to_string()]).status();
    assert!(sent.expect("kill runs").success(), "kill -{name} {process}");
}

/// A key-value server that answers; ended with the test.
pub struct Server {
    pub running: Option<Running>,
    pub address: String,
}

impl Server {
    pub fn start(more: &[&str]) -> Self {
        let address = unique("server");
        let mut arguments = vec!["kv", "serve", "--listen", &address];
        arguments.extend(more);
        let running = Running::start(arguments);
        assert_eq!(running.line(), format!("listening on {address}"));
        Server { running: Some(running), address }
    }

    pub fn id(&self) -> u32 {
        self.running.as_ref().expect("running").id()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(mut running) = self.running.take() {
            let _ = running.child.kill();
            let _ = running.child.wait();
        }
    }
}

/// Processes whose command line holds a word, besides this one.
pub fn processes_with(word: &str) -> Vec<u32> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").expect("/proc").flatten() {
        let Ok(process) = entry.file_name().to_string_lossy().parse::<u32>() else { continue };
        let Ok(line) = std::fs::read(entry.path().join("cmdline")) else { continue };
        if process != std::process::id() && String::from_utf8_lossy(&line).contains(word) {
            found.push(process);
        }
    }
    found
}

/// Waits until as many processes as are wanted have a command line that holds a word.
#[track_caller]
fn await_processes(word: &str, wanted: impl Fn(usize) -> bool) {
    let mut patience = Patience::new(HANG);
    while !wanted(processes_with(word).len()) {
        assert!(patience.look(), "running: {:?}", processes_with(word));
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Waits until no process is left whose command line holds a word.
#[track_caller]
pub fn await_none_with(word: &str) {
    await_processes(word, |count| count == 0);
}

/// Waits until two processes run whose command line holds a word.
#[track_caller]
pub fn await_two_with(word: &str) {
    await_processes(word, |count| count >= 2);
}

/// The files in /dev/shm and /tmp under our name, without those of other stages of the tests, which run beside this one.
pub fn debris() -> Vec<PathBuf> {
    ["/dev/shm", "/tmp"]
        .iter()
        .filter_map(|folder| std::fs::read_dir(folder).ok())
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| {
            let path = path.to_string_lossy();
            let others = ["report-", "dunlin-guest.", "dunlin-suite."];
            path.contains("dunlin-") && !others.iter().any(|other| path.contains(other))
        })
        .collect()
}
