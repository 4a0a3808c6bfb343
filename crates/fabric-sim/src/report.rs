//! What a run tells at its end.

use crate::settings::SettingsError;
use dunlin_fabric::Nanos;
use thiserror::Error;

/// A run that came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunReport {
    /// The virtual time at which the last task ended, in nanoseconds.
    pub end: Nanos,
    /// How many events were handled, switches of tasks included.
    pub events: u64,
    /// A hash over all events, their times and what they carried: equal for equal seeds and programs.
    pub trace_hash: u64,
}

/// Why a run did not come to its end. A panic of the root is no `RunError`: it goes on in the caller.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum RunError {
    /// Every task waits, and nothing is under way that could wake one.
    #[error("deadlock at {at} ns: nothing is under way, and {}", waits.join("; "))]
    Deadlock {
        /// The virtual time.
        at: Nanos,
        /// One text per task that has not ended: who waits for what.
        waits: Vec<String>,
    },
    /// Virtual time ran out.
    #[error("the run did not end within {limit} ns: {}; is somebody polling for ever?", waits.join("; "))]
    TimeLimit {
        /// The limit of the settings.
        limit: Nanos,
        /// One text per task that has not ended.
        waits: Vec<String>,
    },
    /// A spawned task panicked; all others came to their end.
    #[error("task '{task}' panicked: {message}")]
    Panicked {
        /// The first such task.
        task: String,
        /// What it said.
        message: String,
    },
    /// A task worked on and on without giving way; nothing that it polls for can happen meanwhile.
    #[error(
        "task '{task}' ran {limit} ns ahead of everything else: wait, sleep or pass a checkpoint in each round of a loop"
    )]
    Hogged {
        /// Its name.
        task: String,
        /// The limit of the settings.
        limit: Nanos,
    },
    /// A task went beyond its stack; what it overwrote is not known.
    #[error("task '{task}' needs more than {bytes} bytes of stack: raise Settings::stack")]
    Overrun {
        /// Its name.
        task: String,
        /// The size of a stack.
        bytes: usize,
    },
    /// The settings describe nothing that could run.
    #[error("impossible settings: {0}")]
    Settings(#[from] SettingsError),
    /// No stack for a task.
    #[error("no stack of {bytes} bytes for a task: {reason}; spawn fewer tasks or set a smaller stack")]
    Stack {
        /// Bytes asked for.
        bytes: usize,
        /// The system's word.
        reason: String,
    },
}
