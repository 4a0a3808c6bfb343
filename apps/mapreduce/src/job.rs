//! The description of a job, its result, and its observer.

use crate::error::MapReduceError;
use crate::input::Input;
use crate::piece::MAX_PARTITIONS;
use crate::program::Program;
use crate::schedule::Phase;
use dunlin_tier::Name;
use std::time::Duration;
use xxhash_rust::xxh3::xxh3_64;

/// A job. The master and all workers give the same name and the same number of partitions.
#[derive(Clone, Debug)]
pub struct Job {
    /// The name of the job: of the master's service, and the first part of the names of its regions.
    pub name: String,
    /// Partitions of the keys, each of which one worker reduces. Default: 4. At most 4096.
    pub partitions: u32,
    /// The memory in which a worker combines results before it makes a region of them, in bytes, about. Default: 64 MiB.
    pub memory: usize,
    /// The time after which the tasks of a silent worker are given to others. Workers report four times as often.
    /// Default: 2 s.
    pub lease: Duration,
    /// The longest time to wait for a master, or for the first worker, or after the last one has gone. Default: 30 s.
    pub patience: Duration,
}

impl Job {
    /// Returns a job with default settings.
    pub fn new(name: impl Into<String>) -> Job {
        Job {
            name: name.into(),
            partitions: 4,
            memory: 64 << 20,
            lease: Duration::from_secs(2),
            patience: Duration::from_secs(30),
        }
    }

    pub(crate) fn check(&self) -> Result<(), MapReduceError> {
        let fault = if self.partitions == 0 || self.partitions > MAX_PARTITIONS {
            format!("it has {} partitions: set 1 to {MAX_PARTITIONS}", self.partitions)
        } else if self.lease < Duration::from_millis(40) {
            "its lease is shorter than 40 ms".to_owned()
        } else if Name::new(format!("{}/4294967295-4294967295", self.name)).is_err() {
            "its name is too long".to_owned()
        } else if self.name.is_empty() {
            "it has no name".to_owned()
        } else {
            return Ok(());
        };
        Err(MapReduceError::Settings(fault))
    }

    /// Returns a number that processes with the same program, input and settings have in common.
    pub(crate) fn agreement(&self, program: &impl Program, input: &impl Input) -> u64 {
        let text = format!("{}\0{}\0{}\0{}", self.name, self.partitions, program.name(), input.fingerprint());
        xxh3_64(text.as_bytes())
    }
}

/// The state of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The phase. A job goes back to an earlier one if results are lost with a node.
    pub phase: Phase,
    /// Tasks that are done, of all phases.
    pub done: u32,
    /// All tasks.
    pub tasks: u32,
}

/// The observer of a job. Its methods are called by threads of the job.
pub trait Watch: Send + Sync + 'static {
    /// The master says how far the job is: after changes, and at intervals.
    fn progress(&self, _progress: Progress) {}

    /// A worker has done a task of a phase, which read this number of bytes.
    fn worked(&self, _phase: Phase, _bytes: u64) {}

    /// Returns whether the job has to end early.
    fn is_stopped(&self) -> bool {
        false
    }
}

/// Observes nothing.
impl Watch for () {}

/// The result of a job.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outcome {
    /// The number of keys.
    pub keys: u64,
    /// The bytes of keys and values.
    pub bytes: u64,
    /// The time from the first worker until all splits were mapped.
    pub mapping: Duration,
    /// The time of reducing.
    pub reducing: Duration,
    /// The time of merging.
    pub merging: Duration,
}
