//! `dunlin sim`: the simulator's commands.

mod bench;
mod swarm;

use crate::output::Failure;
use clap::Subcommand;
use std::process::ExitCode;

/// What the simulator can be asked.
#[derive(Debug, Subcommand)]
pub(crate) enum Sim {
    Swarm(swarm::SwarmArguments),
    Bench(bench::BenchArguments),
}

pub(crate) fn run(command: &Sim) -> Result<ExitCode, Failure> {
    match command {
        Sim::Swarm(arguments) => swarm::run(arguments),
        Sim::Bench(arguments) => bench::run(arguments),
    }
}
