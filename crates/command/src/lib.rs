//! Parts shared by the programs of the `dunlin` command: common options, results and errors with advice,
//! exit statuses, signals, progress, logging, child processes, the attachment to the node of this host, and the other
//! programs that `dunlin` runs.
//!
//! This crate contains code that at least two programs use. Commands and measurements belong elsewhere.
//!
//! Exit statuses of all programs: 0 success; 1 failure, with `error:` and `help:` on standard error; 2
//! wrong usage; 130 or 143 ended by SIGINT or SIGTERM.

pub mod arguments;
pub mod attach;
pub mod child;
pub mod describe;
pub mod interrupt;
pub mod logging;
pub mod output;
pub mod parallel;
pub mod program;
pub mod progress;

use dunlin::fabric::ShmFabric;
use output::Failure;

/// The first word of a hidden command, with which a program starts itself as a child process. Help and
/// completions omit such commands.
pub const INTERNAL: &str = "internal";

/// Opens the shared-memory fabric. An error includes advice.
pub fn shared_memory() -> Result<ShmFabric, Failure> {
    dunlin::fabric::shm().map_err(|error| {
        Failure::new(format!("cannot start the shared-memory fabric: {error}"))
            .help("dunlin doctor says what is missing")
    })
}
