//! The kinds of operations on a region, and the reasons why the accessing node refuses one.

use crate::rights::Rights;
use thiserror::Error;

/// The kind of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Copies bytes out of a region.
    Read,
    /// Copies bytes into a region.
    Write,
    /// Changes one aligned word of 8 bytes and returns its old value.
    Atomic,
}

impl Kind {
    /// Returns the rights that the operation needs.
    pub const fn needs(self) -> Rights {
        match self {
            Kind::Read => Rights::READ,
            Kind::Write | Kind::Atomic => Rights::WRITE,
        }
    }
}

/// The reason why an operation is refused. Nothing was posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum AccessError {
    /// The handle was never given out in this process, or was unmapped.
    #[error("this process has no such handle: map the region again")]
    NoHandle,
    /// The region was freed, or the node that stores it ended or was fenced.
    #[error("the region was freed, or its memory is gone: map its name again")]
    Gone,
    /// The region has moved to another node, or is about to.
    #[error("the region moves to another node: map its name again")]
    Moved,
    /// A right of the handle was revoked.
    #[error("a right of this handle was revoked: map the name again with the rights that are left")]
    Revoked,
    /// The handle lacks a right.
    #[error(
        "the operation needs {needs}, and the handle has {has}: ask a master for the right, and map again"
    )]
    Denied {
        /// The rights needed.
        needs: Rights,
        /// The handle's rights.
        has: Rights,
    },
    /// The range is not inside the region.
    #[error("{length} bytes at {offset} are out of bounds: the region has {size} bytes")]
    OutOfBounds {
        /// The offset given, in bytes.
        offset: u64,
        /// The length given, in bytes.
        length: u64,
        /// The region's length in bytes.
        size: u64,
    },
    /// The offset of an atomic is not a multiple of 8.
    #[error("the word at offset {0} is not aligned: atomics need a multiple of 8")]
    Misaligned(u64),
    /// The handle has as many operations in flight as it can count.
    #[error("the handle has too many operations in flight: wait for some to end")]
    TooManyOperations,
}
