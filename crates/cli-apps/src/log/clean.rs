//! `dunlin apps log clean`: takes transactions out of a log and prints them.

use super::failure;
use super::tail::lines;
use clap::Args;
use dunlin_app_log::{Cleaner, Hole};
use dunlin_command::arguments;
use dunlin_command::attach::AttachArguments;
use dunlin_command::interrupt::Interrupt;
use dunlin_command::output::{self, Failure};
use dunlin_report::Unit;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

const AFTER_HELP: &str = "\
Prints each entry on a line, in order, and gives its room back. Ends when the log is empty,
unless --follow is given. A log has one cleaner at a time; another one takes over when it has
ended. If this command is killed, the entries of the last moment may be printed again by the
next cleaner.

Examples:
  dunlin apps log clean orders
  dunlin apps log clean orders --follow >> archive.txt
  dunlin apps log clean orders --discard --for 1m";

/// The pause when there is nothing to clean.
const PAUSE: Duration = Duration::from_millis(2);

/// Take transactions out of a log, and print their entries.
#[derive(Args, Debug)]
#[command(after_help = AFTER_HELP)]
pub(super) struct CleanArguments {
    /// Name of the log
    name: String,
    /// Go on when the log is empty
    #[arg(long, short)]
    follow: bool,
    /// Print nothing
    #[arg(long)]
    discard: bool,
    /// Print the position of the transaction before each entry
    #[arg(long, conflicts_with = "discard")]
    positions: bool,
    /// End after this time
    #[arg(long = "for", value_name = "TIME", value_parser = arguments::positive_duration)]
    duration: Option<Duration>,
    #[command(flatten)]
    attach: AttachArguments,
}

/// Reports a hole that was not reported before.
fn report(name: &str, hole: Hole, reported: &mut Option<Hole>) {
    if reported.as_ref() == Some(&hole) {
        return;
    }
    output::note(format_args!(
        "warning: {} at {} were reserved and not written; the cleaner waits",
        Unit::Bytes.format((hole.end - hole.position) as f64),
        hole.position
    ));
    for writer in &hole.writers {
        output::note(format_args!(
            "if {} has ended: dunlin apps log evict {name} {:016x}",
            writer.label, writer.id
        ));
    }
    *reported = Some(hole);
}

pub(super) fn run(arguments: &CleanArguments) -> Result<(), Failure> {
    let interrupt = Interrupt::install()?;
    let tier = arguments.attach.attach()?;
    let failed = |error| failure(&arguments.name, error);
    let mut cleaner = Cleaner::open(&tier, &arguments.name).map_err(failed)?;
    let (begin, mut reported, mut count, mut bytes) = (Instant::now(), None, 0, 0);
    let ended = loop {
        if let Some(signal) = interrupt.received() {
            break if arguments.follow { Ok(()) } else { Err(Failure::Interrupted(signal)) };
        }
        let mut printed = Ok(());
        let cleaned = cleaner
            .clean(|transaction| {
                if interrupt.received().is_some() {
                    return ControlFlow::Break(());
                }
                if !arguments.discard {
                    printed = output::print(lines(transaction, arguments.positions));
                }
                if printed.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            })
            .map_err(failed)?;
        count += cleaned.transactions;
        bytes += cleaned.bytes;
        printed?;
        if let Some(writer) = cleaned.ended {
            output::note(format_args!("{} has ended; the hole that it left is closed", writer.label));
        }
        if let Some(hole) = cleaned.hole {
            report(&arguments.name, hole, &mut reported);
            if !arguments.follow {
                break Err(Failure::new("a transaction is missing, and its writer may still write it")
                    .help("evict the writer if its process has ended, or give --follow to wait for it"));
            }
        }
        let is_over = arguments.duration.is_some_and(|time| begin.elapsed() >= time);
        if is_over || (cleaned.left == 0 && !arguments.follow) {
            break Ok(());
        }
        if cleaned.bytes == 0 {
            interrupt.wait(Some(PAUSE));
        }
    };
    output::note(format_args!("{count} transactions, {} given back", Unit::Bytes.format(bytes as f64)));
    ended
}
