//! Errors of loading, and of a job.

use dunlin_tier_node::{LockError, OperationError, RequestError};
use thiserror::Error;

/// The reason why no edges were loaded.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LoadError {
    /// Reading failed.
    #[error("the edges cannot be read")]
    Read(#[from] std::io::Error),
    /// A word in the place of a number.
    #[error("line {line}: '{word}' is no vertex: write two numbers a line, and # before comments")]
    Word {
        /// The line.
        line: u64,
        /// The word.
        word: String,
    },
    /// A number that no vertex has.
    #[error(
        "line {line}: '{word}' is no vertex: there are {vertices}, from 0; give their number if there are more"
    )]
    Range {
        /// The line.
        line: u64,
        /// The number.
        word: String,
        /// The number of vertices.
        vertices: u32,
    },
    /// A line with one number.
    #[error("line {line}: an edge is two numbers, and the second one is missing")]
    Missing {
        /// The line.
        line: u64,
    },
    /// A line with a third word.
    #[error("line {line}: '{word}' follows the two numbers of an edge: edges have no further fields")]
    Surplus {
        /// The line.
        line: u64,
        /// The third word.
        word: String,
    },
    /// A line that is too long.
    #[error("line {line} has more than {longest} bytes: is the file binary?")]
    LongLine {
        /// The line.
        line: u64,
        /// The longest line.
        longest: usize,
    },
    /// An edge names a vertex that is not there.
    #[error("edge {edge} names a vertex that is not among the {vertices}")]
    Edge {
        /// The number of the edge, from 0.
        edge: u64,
        /// The number of vertices.
        vertices: u32,
    },
    /// Binary pairs end within one.
    #[error("{bytes} bytes are left after {edges} edges: pairs have 8 bytes; is the file text?")]
    Truncated {
        /// The whole edges.
        edges: u64,
        /// The bytes after them.
        bytes: usize,
    },
    /// The scale of a generated graph is too large.
    #[error("a graph of scale {scale} is too large: at most {largest}")]
    Scale {
        /// The scale.
        scale: u32,
        /// The largest one.
        largest: u32,
    },
    /// There is no memory for the edges of a generated graph.
    #[error("there is no memory for {edges} edges of 8 bytes: generate a smaller graph")]
    Memory {
        /// The number of edges.
        edges: u64,
    },
    /// The generation of a graph was stopped.
    #[error("the generation of the graph was stopped")]
    Stopped,
}

/// The reason why a job ended without a result.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum GraphError {
    /// A setting is out of range.
    #[error("{what} is {value}, but must be {must}")]
    Setting {
        /// The name of the setting.
        what: &'static str,
        /// Its value.
        value: u64,
        /// The permitted values.
        must: &'static str,
    },
    /// The shared memory failed.
    #[error("{what} of the shared memory failed")]
    Shared {
        /// The step that failed.
        what: &'static str,
        /// The reason.
        source: dunlin_app_memory::MemoryError,
    },
    /// A thread would have too many edges.
    #[error("a thread has {edges} edges, and at most 2^32 - 1: use more threads or members")]
    TooManyEdges {
        /// The number of edges.
        edges: u64,
    },
    /// A region of the job exists already.
    #[error("the region {region} exists: another job has this name, or one ended without freeing it")]
    Exists {
        /// The region.
        region: String,
    },
    /// A region of another member does not exist, or this principal has no right to it.
    #[error("there is no region {region}: all members need the same graph, program and job description")]
    Missing {
        /// The region.
        region: String,
    },
    /// Another member has another graph, program or description of the job.
    #[error("the member that made {region} has another graph, program or job description")]
    Disagree {
        /// The region.
        region: String,
    },
    /// A region does not hold data that a member writes.
    #[error("the region {region} is damaged: {what}; find the program that writes to it")]
    Damaged {
        /// The region.
        region: String,
        /// The finding.
        what: String,
    },
    /// Members did not meet: one has died, or did not come in time.
    #[error("the members did not meet at the barrier {barrier}")]
    Barrier {
        /// The name of the barrier.
        barrier: String,
        /// The reason.
        source: Box<LockError>,
    },
    /// The lock of a region was not taken or given back.
    #[error("the lock of the region {region} failed")]
    Lock {
        /// The region.
        region: String,
        /// The reason.
        source: Box<LockError>,
    },
    /// A read or write failed.
    #[error("an operation on the region {region} failed")]
    Operation {
        /// The region.
        region: String,
        /// The tier's error.
        source: Box<OperationError>,
    },
    /// A request to the tier failed.
    #[error("the tier refuses the region {region}, or cannot be reached")]
    Request {
        /// The region.
        region: String,
        /// The tier's error.
        source: Box<RequestError>,
    },
    /// A thread could not be started.
    #[error("cannot start a thread")]
    Thread(#[from] std::io::Error),
    /// A thread ended without a result: the program panicked.
    #[error("a thread of the program has panicked")]
    Panicked,
    /// The job was stopped, as [`Watch::is_stopped`](crate::Watch::is_stopped) demanded.
    #[error("the job was stopped")]
    Stopped,
}
