//! A command's output: results on standard output, errors with advice on standard error, exit statuses, and
//! documents.

use crate::interrupt;
use clap::Args;
use dunlin::errors::{ConnectError, PlanError, ServeError, TableError, Unavailable, WithSources};
use dunlin::{CallError, Cause};
use dunlin_kv::{KvError, PartitionError};
use dunlin_report::{Chart, Document};
use dunlin_workload::kv_driver::DriveError;
use std::error::Error;
use std::fmt::Display;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The reason why a command ends without success, and the user's next step.
#[derive(Debug)]
pub enum Failure {
    /// An error, printed as `error:` and `help:`; exit status 1.
    Error {
        /// The reason.
        message: String,
        /// The advice.
        help: Option<String>,
    },
    /// A negative result, which is not an error: prints nothing more; exit status 1.
    Negative,
    /// Ended by a signal; exit status 128 plus the signal's number.
    Interrupted(i32),
    /// The reader of standard output is gone, which is a normal end.
    BrokenPipe,
}

impl Failure {
    /// Creates an error without advice, for messages that need none. The message of an error includes its
    /// sources.
    pub fn new<'a>(error: impl Into<Box<dyn Error + 'a>>) -> Self {
        Failure::Error { message: WithSources(&*error.into()).to_string(), help: None }
    }

    /// Sets the advice.
    pub fn help(self, help: impl Display) -> Self {
        match self {
            Failure::Error { message, .. } => Failure::Error { message, help: Some(help.to_string()) },
            other => other,
        }
    }

    /// Prefixes the message with `what:`.
    pub fn context(self, what: impl Display) -> Self {
        match self {
            Failure::Error { message, help } => {
                Failure::Error { message: format!("{what}: {message}"), help }
            }
            other => other,
        }
    }
}

/// Prints the outcome of a command and returns its exit status.
pub fn exit_code(outcome: Result<ExitCode, Failure>) -> ExitCode {
    match outcome {
        Ok(code) => code,
        Err(Failure::BrokenPipe) => ExitCode::SUCCESS,
        Err(Failure::Negative) => ExitCode::FAILURE,
        Err(Failure::Interrupted(signal)) => ExitCode::from(interrupt::exit_status(signal)),
        Err(Failure::Error { message, help }) => {
            // Ignore the error: standard error may be closed too.
            let _ = writeln!(io::stderr(), "error: {message}");
            if let Some(help) = help {
                let _ = writeln!(io::stderr(), "help: {help}");
            }
            ExitCode::FAILURE
        }
    }
}

/// Writes to standard output.
pub fn print(text: impl AsRef<[u8]>) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_ref()).and_then(|()| out.flush()).map_err(|error| match error.kind() {
        io::ErrorKind::BrokenPipe => Failure::BrokenPipe,
        _ => Failure::new(format!("cannot write to standard output: {error}")),
    })
}

/// Writes a line to standard output.
pub fn print_line(line: impl Display) -> Result<(), Failure> {
    print(format!("{line}\n"))
}

/// Writes a line to standard error. Ignores a closed standard error.
pub fn note(line: impl Display) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// Checks that a file can be written, before a long measurement whose result it will hold.
pub fn check_writable(path: &Path) -> Result<(), Failure> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    if path.is_dir() || !folder.is_dir() {
        return Err(Failure::new(format!("cannot write {}", path.display()))
            .help("give a file in a folder that exists"));
    }
    Ok(())
}

/// Formats a profile's hash for people.
#[must_use]
pub fn hash_of(hash: u64) -> String {
    format!("{hash:016x}")
}

/// Rounds a figure of the model to three digits after the point, which exceeds the model's precision.
#[must_use]
pub fn rounded(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

/// Additional outputs of results.
#[derive(Args, Clone, Debug, Default)]
pub struct ReportArguments {
    /// Also write the results to this file, as one JSON document
    #[arg(long, value_name = "PATH")]
    pub json: Option<PathBuf>,
    /// Also draw the results to this SVG file
    #[arg(long, value_name = "PATH.svg")]
    pub plot: Option<PathBuf>,
}

impl ReportArguments {
    /// Checks that the files can be written, before the measurement starts.
    pub fn check(&self) -> Result<(), Failure> {
        [&self.json, &self.plot].into_iter().flatten().try_for_each(|path| check_writable(path))
    }

    /// Writes the requested files; the drawing shows `charts`.
    pub fn write_with(&self, document: &Document, charts: &[Chart]) -> Result<(), Failure> {
        if let Some(path) = &self.json {
            document.write_json(path).map_err(Failure::new)?;
        }
        if let Some(path) = &self.plot {
            document.write_charts(path, charts).map_err(Failure::new)?;
        }
        Ok(())
    }

    /// Writes the requested files.
    pub fn write(&self, document: &Document) -> Result<(), Failure> {
        if let Some(path) = &self.json {
            document.write_json(path).map_err(Failure::new)?;
        }
        if let Some(path) = &self.plot {
            document.write_plot(path).map_err(Failure::new)?;
        }
        Ok(())
    }
}

const NO_SERVER: &str = "start one with: dunlin kv serve --listen ";

impl From<ConnectError> for Failure {
    fn from(error: ConnectError) -> Self {
        let advice = match &error {
            ConnectError::Dial(dunlin::errors::DialError::NobodyListens { address }) => {
                Some(format!("{NO_SERVER}{address}"))
            }
            ConnectError::Dial(dunlin::errors::DialError::Permission { .. }) => {
                Some("run both as the same user, or start the server with --allow-anyone".to_owned())
            }
            ConnectError::OtherService(_) => Some(
                "give the address of a server of that kind, or call this one with its own client".to_owned(),
            ),
            ConnectError::Plan(_) => Some("dunlin protocols lists what goes together".to_owned()),
            ConnectError::Setting { what: "window", .. } => Some("choose a smaller --window".to_owned()),
            _ => None,
        };
        Failure::Error { message: WithSources(&error).to_string(), help: advice }
    }
}

impl From<TableError> for Failure {
    fn from(error: TableError) -> Self {
        Failure::new(error)
    }
}

impl From<Unavailable> for Failure {
    fn from(error: Unavailable) -> Self {
        Failure::new(error).help("dunlin doctor says what this machine has and what is missing")
    }
}

impl From<PlanError> for Failure {
    fn from(error: PlanError) -> Self {
        Failure::new(error).help("dunlin protocols lists what goes together")
    }
}

impl From<ServeError> for Failure {
    fn from(error: ServeError) -> Self {
        let advice = match &error {
            ServeError::Listen(dunlin::errors::ListenError::InUse { .. }) => {
                Some("give --listen another name, or stop the server that has this one")
            }
            _ => None,
        };
        Failure::Error { message: WithSources(&error).to_string(), help: advice.map(str::to_owned) }
    }
}

impl From<PartitionError> for Failure {
    fn from(error: PartitionError) -> Self {
        let help = match error {
            PartitionError::LimitTooSmall { .. } => "raise --memory, or lower --workers or --expected-items",
            PartitionError::LimitTooLarge { .. } => "raise --workers, or lower --memory",
            _ => "lower --memory",
        };
        Failure::new(error).help(help)
    }
}

impl From<CallError> for Failure {
    fn from(error: CallError) -> Self {
        let help = match error.cause() {
            Some(Cause::Disconnected | Cause::ConnectionLost) => "is the server still running?",
            Some(Cause::Draining) => "the server goes away; start it again, or ask another one",
            Some(Cause::Refused(dunlin::Status::UnknownFunction)) => {
                "this server does not offer that function; dunlin kv serve offers all that dunlin asks for"
            }
            Some(Cause::DeadlineExceeded | Cause::Unanswered) => {
                "is the server stopped, or its machine overloaded?"
            }
            _ => return Failure::new(error),
        };
        Failure::new(error).help(help)
    }
}

impl From<KvError> for Failure {
    fn from(error: KvError) -> Self {
        match error {
            KvError::Call(error) => error.into(),
            other => Failure::new(other),
        }
    }
}

impl From<DriveError> for Failure {
    fn from(error: DriveError) -> Self {
        let calls = |count: u64| if count == 1 { "1 call".to_owned() } else { format!("{count} calls") };
        let fate = match (error.maybe_executed, error.not_executed) {
            (0, 0) => String::new(),
            (0, not) => format!("; {} not executed", calls(not)),
            (maybe, 0) => format!("; {} may have been executed", calls(maybe)),
            (maybe, not) => format!("; {} may have been executed, {not} not", calls(maybe)),
        };
        match Failure::from(error.cause) {
            Failure::Error { message, help } => {
                // Drop the first call's own prefix, since the counts cover all calls.
                let message = message
                    .trim_start_matches("maybe executed: ")
                    .trim_start_matches("executed, and the result is lost: ")
                    .trim_start_matches("not executed: ")
                    .to_owned();
                Failure::Error { message: message + &fate, help }
            }
            other => other,
        }
    }
}
