//! Roles: the test binary, started again as another process. The binary has a main function of its own, which calls
//! [`run`].

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};

const ROLE: &str = "WATCHED_ROLE";
const ARGUMENTS: &str = "WATCHED_ARGUMENTS";

/// The body of a role. It ends with the process or returns.
pub type Role = fn(&str);

/// Plays a role of this binary and ends the process, if it was started for one.
fn play(roles: &[(&str, Role)]) {
    let Ok(name) = std::env::var(ROLE) else { return };
    let arguments = std::env::var(ARGUMENTS).unwrap_or_default();
    let role = roles.iter().find(|role| role.0 == name);
    role.unwrap_or_else(|| panic!("{name} is no role of this binary")).1(&arguments);
    std::process::exit(0);
}

/// The main function of a test binary: plays its role, or runs the tests whose names contain the first argument that is no
/// option. `--list` names them.
///
/// # Panics
/// A test fails, or the binary has no such role.
pub fn run(roles: &[(&str, Role)], tests: &[(&str, fn())]) {
    play(roles);
    let wanted = std::env::args().skip(1).find(|word| !word.starts_with('-')).unwrap_or_default();
    let lists = std::env::args().any(|word| word == "--list");
    for (name, test) in tests.iter().filter(|(name, _)| name.contains(&wanted)) {
        if lists {
            println!("{name}: test");
        } else {
            test();
            println!("test {name} ... ok");
        }
    }
}

/// Tells the test that the role is ready.
///
/// # Errors
/// The test has ended.
pub fn ready() -> io::Result<()> {
    println!("ready");
    io::stdout().flush()
}

/// A process that plays a role; killed when dropped. Its standard input ends with [`Process::release`].
#[derive(Debug)]
pub struct Process {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Process {
    /// Starts a process.
    ///
    /// # Errors
    /// The system cannot start it.
    pub fn start(role: &str, arguments: &str) -> io::Result<Process> {
        let mut child = Command::new(std::env::current_exe()?)
            .env(ROLE, role)
            .env(ARGUMENTS, arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let piped = || io::Error::other("a standard stream is missing");
        let output = BufReader::new(child.stdout.take().ok_or_else(piped)?);
        let input = child.stdin.take();
        Ok(Process { child, input, output })
    }

    /// Returns its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits for a line of its output, which is [`ready`]'s first; without its end. Empty after the last one.
    ///
    /// # Errors
    /// The output cannot be read.
    pub fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        Ok(line.trim_end().to_owned())
    }

    /// Ends its standard input.
    pub fn release(&mut self) {
        self.input = None;
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// The system does not say how it ended.
    pub fn wait(&mut self) -> io::Result<ExitStatus> {
        self.child.wait()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
