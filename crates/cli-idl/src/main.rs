//! The program of `dunlin explain` and `dunlin gen`: plans and code from Thrift files with hints.

mod explain;
mod generate;

use clap::{ArgAction, CommandFactory as _, Parser, Subcommand};
use dunlin_command::output::{self, Failure};
use dunlin_command::{child, describe, logging};
use std::process::ExitCode;

/// Explain the plans of a Thrift file with hints, and generate Rust from it
#[derive(Debug, Parser)]
#[command(name = "dunlin-idl", bin_name = "dunlin", version, max_term_width = 110)]
struct Arguments {
    /// Log more on standard error: once events of connections, twice everything
    #[arg(short, long, global = true, action = ArgAction::Count)]
    verbose: u8,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Explain(explain::ExplainArguments),
    #[command(name = "gen")]
    Generate(generate::GenerateArguments),
}

fn main() -> ExitCode {
    output::exit_code(run())
}

fn run() -> Result<ExitCode, Failure> {
    child::follow_parent()?;
    if let Some(code) = describe::answer_if_asked(Arguments::command())? {
        return Ok(code);
    }
    let arguments = Arguments::parse();
    logging::start(arguments.verbose);
    match arguments.command {
        Command::Explain(arguments) => explain::run(&arguments),
        Command::Generate(arguments) => generate::run(&arguments),
    }
}
