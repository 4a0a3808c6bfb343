//! The error of binding threads to NUMA nodes.

use dunlin_fabric::BindError;
use thiserror::Error;

/// The hint `numa` cannot be followed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum NumaError {
    /// The threads cannot be bound to the node that a function asks for.
    #[error("{function}: {error}")]
    Bind {
        /// The function.
        function: String,
        /// The reason.
        error: BindError,
    },
    /// The hints of two functions name different nodes, but the same threads serve both.
    #[error(
        "{first} and {second} are hinted to different NUMA nodes, but the same threads work for both: give the service one \
         numa, or serve them apart"
    )]
    Differ {
        /// The first function.
        first: String,
        /// The second function.
        second: String,
    },
}
