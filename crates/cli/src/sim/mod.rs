//! `dunlin sim`: the simulator's commands, and the model of NICs and clusters beside what was measured.

mod bench;
mod calibrate;
mod figure;
mod report;
pub(crate) mod runs;
mod swarm;
mod sweep;

use crate::output::Failure;
use clap::Subcommand;
use dunlin_rnic_model::Profile;
use std::process::ExitCode;

/// What can be simulated.
#[derive(Debug, Subcommand)]
pub(crate) enum Sim {
    List(figure::ListArguments),
    Figure(figure::FigureArguments),
    Report(report::ReportPageArguments),
    Sweep(sweep::SweepArguments),
    Calibrate(calibrate::CalibrateArguments),
    Swarm(swarm::SwarmArguments),
    Bench(bench::BenchArguments),
}

pub(crate) fn run(command: &Sim) -> Result<ExitCode, Failure> {
    match command {
        Sim::List(arguments) => figure::list(arguments),
        Sim::Figure(arguments) => figure::run(arguments),
        Sim::Report(arguments) => report::run(arguments),
        Sim::Sweep(arguments) => sweep::run(arguments),
        Sim::Calibrate(arguments) => calibrate::run(arguments),
        Sim::Swarm(arguments) => swarm::run(arguments),
        Sim::Bench(arguments) => bench::run(arguments),
    }
}

/// The built-in profile of that name, or the one in that file.
fn profile(name: &str) -> Result<Profile, Failure> {
    if !name.ends_with(".toml") {
        return Profile::built_in(name)
            .map_err(|error| Failure::new(error).help("a file of your own must end in .toml"));
    }
    let text = std::fs::read_to_string(name).map_err(|error| {
        Failure::new(format!("cannot read {name}: {error}")).help("give a file that exists")
    })?;
    Profile::parse(name, &text).map_err(Failure::new)
}

/// A profile's hash as people compare it.
fn hash(profile: &Profile) -> String {
    hash_of(profile.hash())
}

/// The same, of the number.
pub(crate) fn hash_of(hash: u64) -> String {
    format!("{hash:016x}")
}

/// Two digits after the point are more than the model knows.
pub(crate) fn rounded(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}
