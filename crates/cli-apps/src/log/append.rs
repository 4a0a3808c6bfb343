//! `dunlin apps log append`: commits entries from arguments or standard input.

use super::failure;
use crate::attach::AttachArguments;
use clap::Args;
use dunlin_app_log::{LogError, Writer};
use dunlin_command::interrupt::Interrupt;
use dunlin_command::output::{self, Failure};
use dunlin_command::{arguments, progress};
use dunlin_tier_client::Tier;
use std::io::{BufRead as _, IsTerminal as _};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

const AFTER_HELP: &str = "\
Each entry is a transaction; --together makes one of all entries, --together=N of N each.
Without entries, each line of standard input is one. The command ends when the last transaction
is committed, and prints the position of each with --positions.

Examples:
  dunlin apps log append orders hello
  dunlin apps log append orders --together 'debit alice 5' 'credit bob 5'
  tail -f service.log | dunlin apps log append orders --together=100";

/// The interval at which a waiting command checks for a signal.
const SIGNALS_EVERY: Duration = Duration::from_millis(50);
/// The interval at which a writer without input states that it has nothing under way.
const KEEP_ALIVE_EVERY: Duration = Duration::from_secs(1);

/// Append entries to a log.
#[derive(Args, Debug)]
#[command(after_help = AFTER_HELP)]
pub(super) struct AppendArguments {
    /// Name of the log
    name: String,
    /// Entries [default: the lines of standard input]
    entries: Vec<String>,
    /// Commit all entries as one transaction, or N entries each
    #[arg(long, value_name = "N", default_value_t = 1, default_missing_value = "4294967295", num_args = 0..=1)]
    #[arg(require_equals = true, value_parser = clap::value_parser!(u32).range(1..))]
    together: u32,
    /// Print the position of each transaction
    #[arg(long)]
    positions: bool,
    /// Time to wait for room before giving up
    #[arg(long, default_value = "10s", value_parser = arguments::duration, value_name = "TIME")]
    wait: Duration,
    #[command(flatten)]
    attach: AttachArguments,
}

/// Reads lines on a thread of its own, so that a signal ends a command whose input does not come.
fn lines() -> Receiver<std::io::Result<Vec<u8>>> {
    let (sender, receiver) = sync_channel(64);
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().split(b'\n') {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    receiver
}

/// A writer that counts.
struct Appending<'a> {
    arguments: &'a AppendArguments,
    interrupt: &'a Interrupt,
    writer: Writer<Tier>,
    buffered: u32,
    committed: u64,
}

impl Appending<'_> {
    fn failed(&self, error: LogError) -> Failure {
        let committed = self.committed;
        let failure = failure(&self.arguments.name, error);
        if committed == 0 { failure } else { failure.context(format!("after {committed} transactions")) }
    }

    /// Buffers an entry, and commits if there are enough.
    fn entry(&mut self, entry: &[u8]) -> Result<(), Failure> {
        self.writer.append(entry).map_err(|error| self.failed(error))?;
        self.buffered += 1;
        if self.buffered >= self.arguments.together { self.commit() } else { Ok(()) }
    }

    fn commit(&mut self) -> Result<(), Failure> {
        if self.buffered == 0 {
            return Ok(());
        }
        let begin = Instant::now();
        let position = loop {
            self.interrupt.check()?;
            match self.writer.commit_within(SIGNALS_EVERY.min(self.arguments.wait)) {
                Ok(position) => break position,
                Err(LogError::Full { .. }) if begin.elapsed() < self.arguments.wait => {}
                Err(LogError::Full { .. }) => {
                    return Err(self.failed(LogError::Full { waited: self.arguments.wait }));
                }
                Err(error) => return Err(self.failed(error)),
            }
        };
        (self.buffered, self.committed) = (0, self.committed + 1);
        if self.arguments.positions { output::print_line(position) } else { Ok(()) }
    }
}

pub(super) fn run(arguments: &AppendArguments) -> Result<(), Failure> {
    let interrupt = Interrupt::install()?;
    let tier = arguments.attach.attach()?;
    let label = format!("{} process {}", tier.node(), std::process::id());
    let writer =
        Writer::open_as(&tier, &arguments.name, &label).map_err(|error| failure(&arguments.name, error))?;
    let mut appending = Appending { arguments, interrupt: &interrupt, writer, buffered: 0, committed: 0 };
    if !arguments.entries.is_empty() {
        let bar = progress::counting(arguments.entries.len() as u64, &arguments.name);
        for entry in &arguments.entries {
            appending.entry(entry.as_bytes())?;
            bar.inc(1);
        }
        bar.finish_and_clear();
        return appending.commit();
    }
    if std::io::stdin().is_terminal() {
        output::note("reading entries from the terminal, one a line; Ctrl-D ends");
    }
    let (lines, mut quiet) = (lines(), Instant::now());
    loop {
        interrupt.check()?;
        match lines.recv_timeout(SIGNALS_EVERY) {
            Ok(Ok(line)) => {
                appending.entry(&line)?;
                quiet = Instant::now();
            }
            Ok(Err(error)) => return Err(Failure::new(format!("cannot read standard input: {error}"))),
            Err(RecvTimeoutError::Timeout) if quiet.elapsed() >= KEEP_ALIVE_EVERY => {
                match appending.writer.keep_alive() {
                    Ok(()) | Err(LogError::Full { .. }) => quiet = Instant::now(),
                    Err(error) => return Err(appending.failed(error)),
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return appending.commit(),
        }
    }
}
