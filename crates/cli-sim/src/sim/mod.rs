//! `dunlin sim`: the simulator's commands, and the comparison of the NIC and cluster models with
//! measurements.

mod bench;
mod calibrate;
mod figure;
mod profiles;
mod report;
mod runs;
mod scene;
mod swarm;
mod sweep;

use clap::Subcommand;
use dunlin_command::output::{Failure, hash_of};
use dunlin_rnic_model::Profile;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

/// The simulator's commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Sim {
    List(figure::ListArguments),
    Profiles(profiles::ProfilesArguments),
    Figure(figure::FigureArguments),
    Report(report::ReportPageArguments),
    Sweep(sweep::SweepArguments),
    Calibrate(calibrate::CalibrateArguments),
    Swarm(swarm::SwarmArguments),
    Scene(scene::SceneArguments),
    Bench(bench::BenchArguments),
}

/// Restarts this program, as the same process, with its heap in huge pages where the system has them.
/// With thousands of simulated clients, address translation of small pages takes a fifth of the CPU time.
/// Only the allocator can request huge pages, and it reads its settings from the environment at
/// program start. Does nothing if the allocator is already configured or if the restart fails: the program
/// then works, only slower.
fn with_huge_pages() {
    const TUNABLES: &str = "GLIBC_TUNABLES";
    if std::env::var_os(TUNABLES).is_some() {
        return;
    }
    let mut arguments = std::env::args_os();
    let (Some(name), Ok(program)) = (arguments.next(), std::env::current_exe()) else { return };
    // Always map blocks of 128 KiB or more, such as buffers for large payloads, whatever was freed before.
    // Only their used pages then take memory, and they are returned after their run. `exec` returns only on
    // failure.
    let tuned = "glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold=131072";
    let _ = Command::new(program).arg0(name).args(arguments).env(TUNABLES, tuned).exec();
}

pub(crate) fn run(command: &Sim) -> Result<ExitCode, Failure> {
    let large = match command {
        // A swarm consists of many small runs.
        Sim::List(_) | Sim::Profiles(_) | Sim::Swarm(_) | Sim::Scene(_) => false,
        Sim::Bench(arguments) => arguments.is_large_row(),
        _ => true,
    };
    if large {
        with_huge_pages();
    }
    match command {
        Sim::List(arguments) => figure::list(arguments),
        Sim::Profiles(arguments) => profiles::run(arguments),
        Sim::Figure(arguments) => figure::run(arguments),
        Sim::Report(arguments) => report::run(arguments),
        Sim::Sweep(arguments) => sweep::run(arguments),
        Sim::Calibrate(arguments) => calibrate::run(arguments),
        Sim::Swarm(arguments) => swarm::run(arguments),
        Sim::Scene(arguments) => scene::run(arguments),
        Sim::Bench(arguments) => bench::run(arguments),
    }
}

/// Returns the built-in profile with this name, or the profile in this file.
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

/// Formats a profile's hash for people.
fn hash(profile: &Profile) -> String {
    hash_of(profile.hash())
}
