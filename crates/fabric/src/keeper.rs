//! Memory that outlives the process which registered it: another process keeps it, and gives it to the next life.

use crate::address::Address;
use crate::any_memory::AnyMemory;
use std::fmt::Debug;
use std::io;
use thiserror::Error;

/// The reason why a keeper of memory does not serve this process.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum KeeperError {
    /// No process listens at the address.
    #[error("no keeper listens at {0}: start one with `dunlin node keep`")]
    Nobody(Address),
    /// A keeper has an address on shared memory.
    #[error("{0} is not the address of a keeper: give one of shared memory, shm:NAME")]
    Scheme(Address),
    /// The keeper is of another version.
    #[error(
        "the keeper speaks version {theirs}, and this process version {ours}: run both from one release. To change the \
         release, end node and keeper; the regions end with them"
    )]
    Version {
        /// The version of this process.
        ours: u32,
        /// The version of the keeper.
        theirs: u32,
    },
    /// The keeper belongs to another user.
    #[error("the keeper at {address} does not serve user id {user}: run keeper and node as the same user")]
    User {
        /// The address of the keeper.
        address: Address,
        /// The user that was refused: that of this process, or that of the keeper.
        user: u32,
    },
    /// The keeper serves a process that lives.
    #[error(
        "the keeper at {0} serves another node, which lives: end that node, or give this one a keeper of its own"
    )]
    Busy(Address),
    /// The keeper holds as much as it can.
    #[error("the keeper holds {0} parts of memory already: give the node longer extents (--extent)")]
    Full(u32),
    /// The memory cannot be kept: no other process can be given it.
    #[error("this memory belongs to one process and cannot be kept")]
    Private,
    /// The peer is no keeper, or a message is malformed.
    #[error("{address} is no keeper, or it is damaged: {why}")]
    Protocol {
        /// The address.
        address: Address,
        /// The observation.
        why: &'static str,
    },
    /// Memory that was kept cannot be used.
    #[error("memory of the keeper cannot be used: {0}")]
    Memory(String),
    /// The keeper ended, does not answer, or a system call failed.
    #[error("the connection to the keeper at {address} failed")]
    System {
        /// The address.
        address: Address,
        /// The error of the system.
        source: io::Error,
    },
}

/// A process that keeps registered memory for this one. The memory outlives this process, and ends with the keeper.
/// Methods block for a few seconds at most.
pub trait MemoryKeeper: Debug + Send + Sync {
    /// Returns the memory that an earlier life has had kept, in the order in which it was.
    ///
    /// # Errors
    /// The keeper does not answer, or its memory is not what an earlier life registered.
    fn kept(&mut self) -> Result<Vec<AnyMemory>, KeeperError>;

    /// Has memory kept, after all that was before.
    ///
    /// # Errors
    /// The memory is private, the keeper is full or does not answer.
    fn keep(&mut self, memory: &AnyMemory) -> Result<(), KeeperError>;

    /// Returns whether the keeper has not ended. Does not block.
    fn is_alive(&self) -> bool;

    /// Has the keeper forget all memory.
    ///
    /// # Errors
    /// The keeper does not answer.
    fn forget(&mut self) -> Result<(), KeeperError>;
}
