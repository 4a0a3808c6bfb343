//! Why a partition could not be made, or a PUT not be done.

use crate::{MAX_KEY_LENGTH, MAX_VALUE_LENGTH};

/// Why a [`Partition`](crate::Partition) could not be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PartitionError {
    /// The limit does not hold the index and the smallest value memory.
    #[error("memory limit of {limit} bytes per partition is too small; give at least {minimum} bytes")]
    LimitTooSmall {
        /// The limit asked for, in bytes.
        limit: usize,
        /// The smallest one that would do with these settings, in bytes.
        minimum: usize,
    },
    /// One partition addresses at most 64 GiB of value memory.
    #[error(
        "memory limit of {limit} bytes per partition is over the {maximum} that one can address; use more workers"
    )]
    LimitTooLarge {
        /// The limit asked for, in bytes.
        limit: usize,
        /// The largest limit, in bytes.
        maximum: usize,
    },
    /// The owner's index is not below the number of partitions.
    #[error("partition {index} of {count} does not exist; number partitions from 0")]
    NoSuchPartition {
        /// The index asked for.
        index: usize,
        /// The number of partitions.
        count: usize,
    },
    /// The operating system refused the memory.
    #[error(
        "the system refused {bytes} bytes; lower the memory limit or free memory (ulimit -v, cgroup limits)"
    )]
    AllocationFailed {
        /// Bytes asked for in the refused allocation.
        bytes: usize,
    },
}

/// Why a PUT changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PutError {
    /// Keys have at least one byte.
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
    /// The item is larger than the whole value memory of the partition, so no eviction could make room for it.
    #[error(
        "the item needs {needed} bytes and the partition's whole value memory is {capacity}; \
         raise the memory limit or use fewer workers"
    )]
    OutOfMemory {
        /// Bytes of value memory that the item would occupy.
        needed: usize,
        /// Bytes of value memory there are.
        capacity: usize,
    },
}
