//! Child processes that a command starts from its own binary. They never outlive it: the command ends them
//! when it is done, and the kernel ends them when it dies.

use crate::interrupt::Interrupt;
use crate::output::{self, Failure};
use rustix::process::{Pid, Signal, getppid, kill_process, set_parent_process_death_signal};
use std::ffi::OsStr;
use std::fmt::Display;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Environment variable with the process id of the parent.
const PARENT: &str = "DUNLIN_PARENT_PROCESS";
/// Time limit for a process to start.
pub const START_TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit for a process to end after a request.
const END_TIMEOUT: Duration = Duration::from_secs(4);
/// Time between the break of a process's connections and its end, at most.
const DEATH_TIME: Duration = Duration::from_millis(500);
/// Interval at which a wait checks for signals.
const LOOK: Duration = Duration::from_millis(20);

/// Makes the kernel end this process, started by [`ChildProcess::start`], together with its parent.
pub fn follow_parent() -> Result<(), Failure> {
    let Some(parent) = std::env::var(PARENT).ok().and_then(|parent| parent.parse::<i32>().ok()) else {
        return Ok(());
    };
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(|error| {
        Failure::new(format!("cannot tie this process to the one that started it: {error}"))
    })?;
    // The parent may have died before the request.
    if getppid().map(|pid| pid.as_raw_nonzero().get()) == Some(parent) {
        Ok(())
    } else {
        Err(Failure::new("the process that started this one has ended"))
    }
}

/// Prints a server's ready line, on which its parent waits.
pub fn say_ready(address: &impl Display) -> Result<(), Failure> {
    output::print_line(format_args!("listening on {address}"))
}

/// A child process. Dropping it ends it.
#[derive(Debug)]
pub struct ChildProcess {
    name: String,
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    /// Lines from its standard error.
    errors: Receiver<String>,
}

impl ChildProcess {
    /// Starts this binary with other arguments. Must be called from the main thread, because the kernel
    /// ties the child's life to the calling thread.
    pub fn start<S: AsRef<OsStr>>(
        name: &str,
        arguments: impl IntoIterator<Item = S>,
    ) -> Result<Self, Failure> {
        let mut command = Command::new("/proc/self/exe");
        command.arg0("dunlin").args(arguments);
        Self::spawn(name, command)
    }

    /// Starts another program of the command. Otherwise as [`start`](ChildProcess::start).
    pub fn start_program<S: AsRef<OsStr>>(
        name: &str,
        program: &Path,
        arguments: impl IntoIterator<Item = S>,
    ) -> Result<Self, Failure> {
        let mut command = Command::new(program);
        command.args(arguments);
        Self::spawn(name, command)
    }

    fn spawn(name: &str, mut command: Command) -> Result<Self, Failure> {
        let failed = |error: std::io::Error| {
            Failure::new(format!("cannot start the process of {name}: {error}"))
                .help("is the limit of processes (ulimit -u) reached, or the binary gone?")
        };
        let mut child = command
            .env(PARENT, std::process::id().to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // A separate process group: Ctrl-C at the terminal only reaches this process, which ends its
            // children in order.
            .process_group(0)
            .spawn()
            .map_err(failed)?;
        let stdin = child.stdin.take();
        let lines = match child.stdout.take() {
            Some(stdout) => lines_of(stdout),
            None => channel().1,
        };
        let errors = match child.stderr.take() {
            Some(stderr) => lines_of(stderr),
            None => channel().1,
        };
        Ok(ChildProcess { name: name.to_owned(), child, stdin, lines, errors })
    }

    /// Returns the process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Writes a line to its standard input.
    pub fn say(&mut self, line: &str) -> Result<(), Failure> {
        let said = match &mut self.stdin {
            Some(stdin) => stdin.write_all(line.as_bytes()).and_then(|()| stdin.write_all(b"\n")),
            None => return Ok(()),
        };
        said.map_err(|_| self.ended())
    }

    /// Returns the next line of its standard output. Waits at most `time`, and not after a signal.
    pub fn line(&mut self, interrupt: &Interrupt, time: Duration) -> Result<String, Failure> {
        let end = Instant::now() + time;
        loop {
            interrupt.check()?;
            match self.lines.recv_timeout(LOOK) {
                Ok(line) => return Ok(line),
                Err(RecvTimeoutError::Disconnected) => return Err(self.ended()),
                Err(RecvTimeoutError::Timeout) if Instant::now() >= end => {
                    return Err(Failure::new(format!(
                        "the process of {} has said nothing for {} s",
                        self.name,
                        time.as_secs()
                    ))
                    .help("is this machine overloaded?"));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// Prints the lines of its standard output until it ends, or until a signal arrives.
    ///
    /// # Errors
    /// It has ended without success.
    pub fn relay(&mut self, interrupt: &Interrupt) -> Result<(), Failure> {
        loop {
            interrupt.check()?;
            match self.lines.recv_timeout(LOOK) {
                Ok(line) => output::print_line(line)?,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    return match self.wait(END_TIMEOUT) {
                        Some(status) if status.success() => Ok(()),
                        _ => Err(self.ended()),
                    };
                }
            }
        }
    }

    /// Returns an error if the process has ended.
    pub fn check(&mut self) -> Result<(), Failure> {
        match self.child.try_wait() {
            Ok(None) => Ok(()),
            _ => Err(self.ended()),
        }
    }

    /// Returns how this process ended, if it has, and `failure` of a process that depends on it otherwise.
    /// Waits a moment, since a connection breaks shortly before its process has ended.
    pub fn ended_or(&mut self, failure: Failure) -> Failure {
        if self.wait(DEATH_TIME).is_some() { self.ended() } else { failure }
    }

    /// Returns an error that says how the process ended, with its own last error if it printed one.
    fn ended(&mut self) -> Failure {
        let status = self.wait(Duration::from_secs(1));
        let status = status.map_or("it closed its output".to_owned(), |status| status.to_string());
        let said: Vec<String> = std::iter::from_fn(|| self.errors.recv_timeout(LOOK).ok()).collect();
        let failure = Failure::new(format!("the process of {} ended too early ({status})", self.name));
        let find = |start: &str| said.iter().find_map(|line| line.strip_prefix(start));
        match (find("error: "), find("help: ")) {
            (None, _) if said.is_empty() => failure,
            (None, _) => failure.help(format!("its last words: {}", said.join(" / "))),
            (Some(error), help) => {
                let failure = Failure::new(format!("{}: {error}", self.name));
                help.map_or(Failure::new(format!("{}: {error}", self.name)), |help| failure.help(help))
            }
        }
    }

    fn wait(&mut self, time: Duration) -> Option<ExitStatus> {
        let end = Instant::now() + time;
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => return Some(status),
                Ok(None) if Instant::now() < end => std::thread::sleep(Duration::from_millis(5)),
                _ => return None,
            }
        }
    }

    /// Asks the process to end, waits, and kills it if it does not end.
    pub fn end(&mut self) {
        self.stdin = None;
        if let Ok(None) = self.child.try_wait() {
            if let Some(pid) = Pid::from_raw(self.child.id() as i32) {
                // Ignore the error: the process may have just ended.
                let _ = kill_process(pid, Signal::TERM);
            }
            if self.wait(END_TIMEOUT).is_none() {
                let _ = self.child.kill();
            }
        }
        // The process is dead or dying, so this wait is short.
        let _ = self.child.wait();
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        self.end();
    }
}

/// Starts a thread that reads lines until the stream is closed.
fn lines_of(stream: impl std::io::Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            // Keep reading after the receiver is gone, so that the writer never blocks on a full pipe.
            let _ = sender.send(line);
        }
    });
    receiver
}
