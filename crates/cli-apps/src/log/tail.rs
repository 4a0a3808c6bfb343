//! `dunlin apps log tail`: prints the entries of a log without changing it.

use super::failure;
use crate::attach::AttachArguments;
use clap::Args;
use dunlin_app_log::{LogError, Start, Tail, Transaction};
use dunlin_command::interrupt::Interrupt;
use dunlin_command::output::{self, Failure};
use std::time::Duration;

const AFTER_HELP: &str = "\
Prints each entry on a line, and ends at the end of the log unless --follow is given.
Transactions that a cleaner took out can be read as long as nothing was written over them.

Examples:
  dunlin apps log tail orders
  dunlin apps log tail orders --follow --from newest
  dunlin apps log tail orders --from 4096 --positions --count 10";

/// The time of one wait, after which the command checks for a signal.
const SIGNALS_EVERY: Duration = Duration::from_millis(50);

/// Print the entries of a log.
#[derive(Args, Debug)]
#[command(after_help = AFTER_HELP)]
pub(super) struct TailArguments {
    /// Name of the log
    name: String,
    /// Wait for further transactions
    #[arg(long, short)]
    follow: bool,
    /// Where to begin: oldest, newest, or a position
    #[arg(long, default_value = "oldest", value_parser = start, value_name = "POSITION")]
    from: Start,
    /// End after this number of transactions
    #[arg(long, value_name = "N")]
    count: Option<u64>,
    /// Print the position of the transaction before each entry
    #[arg(long)]
    positions: bool,
    #[command(flatten)]
    attach: AttachArguments,
}

/// Parses the position at which to begin.
fn start(text: &str) -> Result<Start, String> {
    match text {
        "oldest" => Ok(Start::Oldest),
        "newest" => Ok(Start::Newest),
        _ => text
            .parse()
            .map(Start::At)
            .map_err(|_| format!("'{text}' is neither oldest, newest nor a position")),
    }
}

/// Returns the entries of a transaction as lines.
pub(super) fn lines(transaction: &Transaction<'_>, positions: bool) -> Vec<u8> {
    let mut text = Vec::new();
    for entry in transaction.entries() {
        if positions {
            text.extend_from_slice(format!("{} ", transaction.position()).as_bytes());
        }
        text.extend_from_slice(entry);
        text.push(b'\n');
    }
    text
}

pub(super) fn run(arguments: &TailArguments) -> Result<(), Failure> {
    let interrupt = Interrupt::install()?;
    let tier = arguments.attach.attach()?;
    let failed = |error| failure(&arguments.name, error);
    let mut tail = Tail::open(&tier, &arguments.name, arguments.from).map_err(failed)?;
    let mut left = arguments.count.unwrap_or(u64::MAX);
    while left > 0 {
        interrupt.check()?;
        let time = if arguments.follow { SIGNALS_EVERY } else { Duration::ZERO };
        match tail.read_within(time) {
            Ok(Some(transaction)) => {
                output::print(lines(&transaction, arguments.positions))?;
                left -= 1;
            }
            Ok(None) if arguments.follow => {}
            Ok(None) => return Ok(()),
            Err(LogError::Behind { resume }) => {
                output::note(format_args!(
                    "warning: transactions from {} to {resume} were cleaned and written over",
                    tail.position()
                ));
                tail.seek(Start::At(resume)).map_err(failed)?;
            }
            Err(error) => return Err(failed(error)),
        }
    }
    Ok(())
}
