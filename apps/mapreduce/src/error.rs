//! Errors of a job.

use crate::message::Piece;
use dunlin_tier_node::{OperationError, ReceiveError, RequestError};
use thiserror::Error;

/// The reason why a job, or a worker of it, ended early.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum MapReduceError {
    /// A setting makes no sense.
    #[error("the job cannot be run: {0}")]
    Settings(String),
    /// The input cannot be read.
    #[error("the input {source_name} cannot be read")]
    Input {
        /// The name of the file, or of the other source.
        source_name: String,
        /// The reason.
        source: std::io::Error,
    },
    /// A job of that name runs on this node already.
    #[error("a job called {job} runs already: choose another name")]
    Exists {
        /// The name of the job.
        job: String,
    },
    /// No node has a master of the job.
    #[error("no master of the job {job} was found in time: start it, with the same name")]
    NoMaster {
        /// The name of the job.
        job: String,
    },
    /// The master has another program, input, or other settings than this worker.
    #[error("the master of the job {job} has another program, input or other settings")]
    Disagree {
        /// The name of the job.
        job: String,
    },
    /// The master acts for another principal than this worker, and hears only its own.
    #[error(
        "the master of the job {job} acts for another principal: run master and workers as the same user"
    )]
    Stranger {
        /// The name of the job.
        job: String,
    },
    /// The master takes no more workers.
    #[error("the job has too many workers")]
    TooManyWorkers,
    /// The master gave this worker up, because it was silent for longer than [`Job::lease`](crate::Job::lease).
    #[error("the master gave this worker up: it was silent for too long; raise the lease")]
    GivenUp,
    /// The master cannot be reached any more: its process or node has ended.
    #[error("the master of the job cannot be reached")]
    Master(#[source] Box<RequestError>),
    /// The master's node gives it no calls any more.
    #[error("the node of the master gives it no calls")]
    Receive(#[source] Box<ReceiveError>),
    /// No worker was there for longer than [`Job::patience`](crate::Job::patience).
    #[error("the job has no workers: start some, with the same name")]
    NoWorkers,
    /// A task failed, at this worker or at another one; the text says which and why.
    #[error("{0}")]
    Task(String),
    /// A key with its value, or a combined value, is longer than 16 MiB.
    #[error("a key with its value is longer than 16 MiB")]
    TooLong,
    /// A region is of another job, or somebody wrote over it.
    #[error("the region of the piece {piece} is damaged: {what}")]
    Damaged {
        /// The piece.
        piece: Piece,
        /// The finding.
        what: String,
    },
    /// A region of the tier cannot be made.
    #[error("the tier refuses a region of {length} bytes, or cannot be reached")]
    Create {
        /// The length of the region in bytes.
        length: u64,
        /// The tier's error.
        source: Box<RequestError>,
    },
    /// A region of the tier cannot be mapped: its node has ended, or it was freed.
    #[error("the tier does not map the piece {piece}")]
    Map {
        /// The piece.
        piece: Piece,
        /// The tier's error.
        source: Box<RequestError>,
    },
    /// A piece cannot be read.
    #[error("the piece {piece} cannot be read")]
    Read {
        /// The piece.
        piece: Piece,
        /// The tier's error.
        source: Box<OperationError>,
    },
    /// A new region cannot be written.
    #[error("a new region cannot be written")]
    Write(#[source] Box<OperationError>),
    /// A thread could not be started.
    #[error("cannot start a thread")]
    Thread(#[source] std::io::Error),
    /// The job was stopped, as [`Watch::is_stopped`](crate::Watch::is_stopped) demanded.
    #[error("the job was stopped")]
    Stopped,
}

impl MapReduceError {
    pub(crate) fn damaged(piece: Piece, what: &str) -> MapReduceError {
        MapReduceError::Damaged { piece, what: what.to_owned() }
    }

    /// Returns the piece that cannot be read, so that its contents have to be made again.
    pub(crate) fn loss(&self) -> Option<Piece> {
        match self {
            MapReduceError::Map { piece, .. } | MapReduceError::Read { piece, .. } => Some(*piece),
            _ => None,
        }
    }
}
