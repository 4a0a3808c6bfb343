//! The program of `dunlin node` and `dunlin tier`: the node of the memory tier on this host, and its regions.

mod auto;
mod copy;
mod drain;
mod etcd;
mod get;
mod keep;
mod list;
mod node;
mod put;
mod qos;
mod regions;
mod scene;
mod status;
mod top;

use clap::{ArgAction, CommandFactory as _, Parser, Subcommand};
use dunlin_command::output::{self, Failure};
use dunlin_command::{child, describe, logging};
use std::process::ExitCode;

/// Run the node of this host, and use its regions
#[derive(Debug, Parser)]
#[command(name = "dunlin-tier", bin_name = "dunlin", version, max_term_width = 110)]
struct Arguments {
    /// Log more on standard error: once events of connections, twice everything
    #[arg(short, long, global = true, action = ArgAction::Count)]
    verbose: u8,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Node(node::NodeArguments),
    Tier(regions::TierArguments),
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
        Command::Node(arguments) => node::run(&arguments),
        Command::Tier(arguments) => regions::run(&arguments),
    }
}
