//! The command room: the parts that the programs of the `dunlin` command share. Options that several commands have, results
//! and errors with advice, exit statuses, signals, progress, logging, child processes, and the programs beside `dunlin`.
//!
//! Code that at least two programs use comes in. Commands and measurements never do.
//!
//! Exit statuses of all programs: 0 done; 1 failed, with `error:` and `help:` on standard error; 2 wrong usage; 130 or 143
//! ended by SIGINT or SIGTERM.

pub mod arguments;
pub mod child;
pub mod describe;
pub mod interrupt;
pub mod logging;
pub mod output;
pub mod parallel;
pub mod program;
pub mod progress;

use dunlin::DefaultFabric;
use output::Failure;

/// The word before the commands by which a program starts itself again as a child process. Neither help nor completions show them.
pub const INTERNAL: &str = "internal";

/// Opens the fabric on shared memory, or fails with advice.
pub fn shared_memory() -> Result<DefaultFabric, Failure> {
    dunlin::fabric().map_err(|error| {
        Failure::new(format!("cannot start the shared-memory fabric: {error}"))
            .help("dunlin doctor says what is missing")
    })
}
