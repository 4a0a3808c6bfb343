//! The errors of a log.

use dunlin_tier_node::{OperationError, RequestError};
use std::time::Duration;
use thiserror::Error;

/// The reason why an operation on a log failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LogError {
    /// There is no such log, or this principal has no right to it.
    #[error(
        "there is no log {name}, or this principal has no right to it: create it, or ask its creator for a grant"
    )]
    NoSuch {
        /// The name.
        name: String,
    },
    /// The name is in use.
    #[error("there is a region of the log {name} already: destroy the log, or choose another name")]
    Exists {
        /// The name.
        name: String,
    },
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
    /// The creator has not finished.
    #[error("the log {name} is being created: try again, or destroy it if its creator has ended")]
    NotReady {
        /// The name.
        name: String,
    },
    /// The metadata makes no sense: the region is no log, or somebody wrote to it.
    #[error(
        "the metadata of the log is damaged: {what}. Destroy the log, or find the program that writes to its regions"
    )]
    Damaged {
        /// The finding.
        what: String,
    },
    /// A region does not have the length that the metadata implies.
    #[error("the region {region} has {found} bytes, and the metadata of the log implies {expected}")]
    WrongSize {
        /// The name of the region.
        region: String,
        /// Its length in bytes.
        found: u64,
        /// The implied length in bytes.
        expected: u64,
    },
    /// The transaction would be longer than the log permits. It is unchanged.
    #[error("a transaction of {length} bytes is longer than the {longest} bytes that the log permits")]
    TooLong {
        /// The length with this entry, in bytes.
        length: u64,
        /// The longest transaction, in bytes.
        longest: u64,
    },
    /// A commit without entries.
    #[error("the transaction has no entry: append one before the commit")]
    Empty,
    /// There was no room in time. Nothing was committed, and the entries are still buffered.
    #[error("the log had no room for {waited:?}: is a cleaner running?")]
    Full {
        /// The time of the wait.
        waited: Duration,
    },
    /// The table of writers is full.
    #[error("the log has {writers} writers already: close some, or evict those that have ended")]
    TooManyWriters {
        /// The number of writers.
        writers: u32,
    },
    /// Somebody declared this writer ended.
    #[error("this writer was evicted from the log; nothing was committed: open another one")]
    Evicted,
    /// An earlier WRITE of this writer failed and may still be under way.
    #[error("an earlier commit of this writer failed: open another writer")]
    Broken,
    /// The WRITE of a commit failed. The transaction may have been committed; this writer takes no further one.
    #[error("the commit at {position} may or may not have happened")]
    Uncertain {
        /// The position of the transaction.
        position: u64,
        /// The tier's error.
        source: OperationError,
    },
    /// Another cleaner has the log.
    #[error("cleaner {owner:#010x} cleans the log: stop it first, or wait until its lease has ended")]
    Cleaning {
        /// The number of the other cleaner.
        owner: u32,
    },
    /// Another cleaner has taken over. Transactions that were handed on since the last success may be handed on again.
    #[error("another cleaner has taken over: this one took longer than its lease")]
    LostLease,
    /// The reader's position was cleaned and written over.
    #[error("the reader fell behind, and transactions before {resume} are gone: seek to that position")]
    Behind {
        /// The oldest position that the log still has.
        resume: u64,
    },
    /// No transaction begins at the position.
    #[error("no transaction begins at {position}: positions are multiples of 64, up to the tail at {tail}")]
    BadPosition {
        /// The position.
        position: u64,
        /// The end of the log.
        tail: u64,
    },
    /// There is no such writer.
    #[error("the log has no writer {id:016x}")]
    NoWriter {
        /// The number of the writer.
        id: u64,
    },
    /// A request to the tier failed.
    #[error("the tier refuses or cannot be reached")]
    Request(#[from] RequestError),
    /// An operation on a region failed.
    #[error("an operation on the log's memory failed")]
    Operation(#[from] OperationError),
}

impl LogError {
    /// Returns whether a commit that ended with this error may have happened.
    #[must_use]
    pub fn may_have_committed(&self) -> bool {
        matches!(self, LogError::Uncertain { .. })
    }
}
