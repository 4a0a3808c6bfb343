//! `dunlin sim`: the simulator's commands, and the model of NICs and clusters beside what was measured.

mod bench;
mod calibrate;
mod figure;
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

/// What can be simulated.
#[derive(Debug, Subcommand)]
pub(crate) enum Sim {
    List(figure::ListArguments),
    Figure(figure::FigureArguments),
    Report(report::ReportPageArguments),
    Sweep(sweep::SweepArguments),
    Calibrate(calibrate::CalibrateArguments),
    Swarm(swarm::SwarmArguments),
    Scene(scene::SceneArguments),
    Bench(bench::BenchArguments),
}

/// Has this program's memory stand in huge pages where the system has such: simulated clients by the thousand touch so many pages
/// that the processor spends a fifth of its time on finding them. Only the allocator can ask for them, and is told so by the
/// environment alone, before a program begins: so this one begins again, as the same process. Who has set the allocator up
/// already is left alone, and so is who cannot begin again: that is as right, and slower.
fn with_huge_pages() {
    const TUNABLES: &str = "GLIBC_TUNABLES";
    if std::env::var_os(TUNABLES).is_some() {
        return;
    }
    let mut arguments = std::env::args_os();
    let (Some(name), Ok(program)) = (arguments.next(), std::env::current_exe()) else { return };
    // Memory of 128 KiB or more, as buffers for large payloads, is to be mapped whatever was freed before: then only the pages
    // of it that are used are there, and they are gone with their run. Answers only if that cannot be done.
    let tuned = "glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold=131072";
    let _ = Command::new(program).arg0(name).args(arguments).env(TUNABLES, tuned).exec();
}

pub(crate) fn run(command: &Sim) -> Result<ExitCode, Failure> {
    let large = match command {
        // A swarm is many small runs.
        Sim::List(_) | Sim::Swarm(_) | Sim::Scene(_) => false,
        Sim::Bench(arguments) => arguments.is_large_row(),
        _ => true,
    };
    if large {
        with_huge_pages();
    }
    match command {
        Sim::List(arguments) => figure::list(arguments),
        Sim::Figure(arguments) => figure::run(arguments),
        Sim::Report(arguments) => report::run(arguments),
        Sim::Sweep(arguments) => sweep::run(arguments),
        Sim::Calibrate(arguments) => calibrate::run(arguments),
        Sim::Swarm(arguments) => swarm::run(arguments),
        Sim::Scene(arguments) => scene::run(arguments),
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
