//! The program of `dunlin bench`: options, progress and documents. The measurements are in the library
//! `dunlin_bench`.

mod bench;

use clap::{ArgAction, CommandFactory as _, Parser, Subcommand};
use dunlin_command::output::{self, Failure};
use dunlin_command::{INTERNAL, child, describe, logging};
use std::process::ExitCode;

/// Measure this machine and this build against the machine's physical limits
#[derive(Debug, Parser)]
#[command(name = "dunlin-bench", bin_name = "dunlin bench", version, max_term_width = 110)]
struct Arguments {
    /// Log more to standard error: once connection events, twice everything
    #[arg(short, long, global = true, action = ArgAction::Count)]
    verbose: u8,
    #[command(subcommand)]
    command: bench::Bench,
}

/// The commands of this program's child processes.
#[derive(Debug, Parser)]
struct InternalArguments {
    #[command(subcommand)]
    command: InternalCommand,
}

#[derive(Debug, Subcommand)]
enum InternalCommand {
    FetchTablePeer(bench::fetch_table::PeerArguments),
}

fn main() -> ExitCode {
    // A measurement starts this program again as its peer, which must do nothing but serve.
    if let Some(code) = bench::serve_as_peer() {
        return code;
    }
    output::exit_code(run())
}

fn run() -> Result<ExitCode, Failure> {
    child::follow_parent()?;
    if let Some(code) = describe::answer_if_asked(Arguments::command())? {
        return Ok(code);
    }
    if std::env::args_os().nth(1).is_some_and(|first| first == INTERNAL) {
        let InternalCommand::FetchTablePeer(arguments) =
            InternalArguments::parse_from(std::env::args_os().skip(1)).command;
        logging::start(0);
        return bench::fetch_table::run_peer(&arguments);
    }
    let arguments = Arguments::parse();
    logging::start(arguments.verbose);
    bench::run(arguments.command).map(|()| ExitCode::SUCCESS)
}
