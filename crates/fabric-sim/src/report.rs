//! The result of a run.

use crate::settings::SettingsError;
use dunlin_fabric::Nanos;
use thiserror::Error;

/// The report of a run that came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunReport {
    /// Virtual time at which the last task ended, in nanoseconds.
    pub end: Nanos,
    /// Number of events handled, task switches included.
    pub events: u64,
    /// A hash over all events, their times and payloads: equal for equal seeds and programs.
    pub trace_hash: u64,
}

/// The reason why a run did not come to its end. A panic of the root is no `RunError`: it resumes in the
/// caller.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum RunError {
    /// Every task waits, and no pending event can wake one.
    #[error("deadlock at {at} ns: nothing is under way, and {}", waits.join("; "))]
    Deadlock {
        /// The virtual time, in nanoseconds.
        at: Nanos,
        /// One text per task that has not ended, with the reason of its wait.
        waits: Vec<String>,
    },
    /// Virtual time reached the limit.
    #[error("the run did not end within {limit} ns: {}; is somebody polling for ever?", waits.join("; "))]
    TimeLimit {
        /// The limit from the settings, in nanoseconds.
        limit: Nanos,
        /// One text per task that has not ended.
        waits: Vec<String>,
    },
    /// A spawned task panicked; all others came to their end.
    #[error("task '{task}' panicked: {message}")]
    Panicked {
        /// The name of the first such task.
        task: String,
        /// The panic message.
        message: String,
    },
    /// A task ran too long without yielding; no event that it polls for can happen meanwhile.
    #[error(
        "task '{task}' ran {limit} ns ahead of everything else: wait, sleep or pass a checkpoint in each round of a loop"
    )]
    Hogged {
        /// The name of the task.
        task: String,
        /// The limit from the settings, in nanoseconds.
        limit: Nanos,
    },
    /// A task overran its stack; the overwritten memory is unknown.
    #[error("task '{task}' needs more than {bytes} bytes of stack: raise Settings::stack")]
    Overrun {
        /// The name of the task.
        task: String,
        /// The size of a stack, in bytes.
        bytes: usize,
    },
    /// The settings cannot run.
    #[error("impossible settings")]
    Settings(#[from] SettingsError),
    /// A stack for a task could not be mapped.
    #[error("no stack of {bytes} bytes for a task: {reason}; spawn fewer tasks or set a smaller stack")]
    Stack {
        /// Bytes requested.
        bytes: usize,
        /// The system's error.
        reason: String,
    },
}
