//! The program of `dunlin sim`: the simulator's options, progress and documents. Simulations are in the
//! library `dunlin_scenario`.

mod sim;

use clap::{ArgAction, CommandFactory as _, Parser};
use dunlin_command::output::{self, Failure};
use dunlin_command::{child, describe, logging};
use std::process::ExitCode;

/// Run the engine and raw verbs in virtual time: papers' figures, sweeps, fault-injection swarms
#[derive(Debug, Parser)]
#[command(name = "dunlin-sim", bin_name = "dunlin sim", version, max_term_width = 110)]
struct Arguments {
    /// Log to standard error: once connection events, twice everything
    #[arg(short, long, global = true, action = ArgAction::Count)]
    verbose: u8,
    #[command(subcommand)]
    command: sim::Sim,
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
    // Without -v log nothing: in a swarm the engine's warnings are about injected faults.
    if arguments.verbose > 0 {
        logging::start(arguments.verbose);
    }
    sim::run(&arguments.command)
}
