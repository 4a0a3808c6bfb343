//! Errors of creating a partition and of a PUT.

use crate::{MAX_KEY_LENGTH, MAX_VALUE_LENGTH};

/// The reason why a [`Partition`](crate::Partition) could not be created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PartitionError {
    /// The limit does not hold the index and the smallest value memory.
    #[error("memory limit of {limit} bytes per partition is too small; give at least {minimum} bytes")]
    LimitTooSmall {
        /// The requested limit, in bytes.
        limit: usize,
        /// The smallest limit for these settings, in bytes.
        minimum: usize,
    },
    /// The limit exceeds the 64 GiB of value memory that one partition can address.
    #[error(
        "memory limit of {limit} bytes per partition is over the {maximum} that one can address; use more workers"
    )]
    LimitTooLarge {
        /// The requested limit, in bytes.
        limit: usize,
        /// The largest limit, in bytes.
        maximum: usize,
    },
    /// The partition's index is not below the number of partitions.
    #[error("partition {index} of {count} does not exist; number partitions from 0")]
    NoSuchPartition {
        /// The requested index.
        index: usize,
        /// The number of partitions.
        count: usize,
    },
    /// The operating system refused the memory.
    #[error(
        "the system refused {bytes} bytes; lower the memory limit or free memory (ulimit -v, cgroup limits)"
    )]
    AllocationFailed {
        /// Bytes of the refused allocation.
        bytes: usize,
    },
}

/// The reason why a PUT changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PutError {
    /// The key is empty.
    #[error("the key is empty; keys have 1 to {MAX_KEY_LENGTH} bytes")]
    KeyEmpty,
    /// The key is longer than [`MAX_KEY_LENGTH`].
    #[error(
        "the key has {length} bytes; keys have at most {MAX_KEY_LENGTH}: store a hash of it, or shorten it"
    )]
    KeyTooLarge {
        /// Its length in bytes.
        length: usize,
    },
    /// The value is longer than [`MAX_VALUE_LENGTH`].
    #[error(
        "the value has {length} bytes; values have at most {MAX_VALUE_LENGTH}: split it over several keys"
    )]
    ValueTooLarge {
        /// Its length in bytes.
        length: usize,
    },
    /// The item is larger than the whole value memory of the partition, so no eviction could make room for
    /// it.
    #[error(
        "the item needs {needed} bytes and the partition's whole value memory is {capacity}; \
         raise the memory limit or use fewer workers"
    )]
    OutOfMemory {
        /// Bytes of value memory that the item would occupy.
        needed: usize,
        /// Bytes of the partition's value memory.
        capacity: usize,
    },
}
