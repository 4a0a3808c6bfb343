//! The surroundings of a worker: requests to the master, and memory that other workers read.

use crate::error::MapReduceError;
use crate::message::{Answer, Piece, Request};
use dunlin_fabric::Host;
use dunlin_tier_node::OperationError;

/// A region of bytes.
pub(crate) trait Bytes {
    fn len(&self) -> u64;
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), OperationError>;
    fn write(&self, offset: u64, from: &[u8]) -> Result<(), OperationError>;
}

/// The surroundings of a job's threads: the memory tier ([`OverTier`](crate::over_tier::OverTier)), or one process
/// ([`InProcess`](crate::alone::InProcess)).
pub(crate) trait Cluster: Clone + Send + Sync + 'static {
    type Host: Host;
    type Bytes: Bytes;

    fn host(&self) -> &Self::Host;
    /// Asks the master.
    fn ask(&self, request: &Request) -> Result<Answer, MapReduceError>;
    /// Makes the region of a piece, near this worker.
    fn create(&self, piece: Piece, length: u64) -> Result<Self::Bytes, MapReduceError>;
    /// Opens a piece of any worker.
    fn open(&self, piece: Piece) -> Result<Self::Bytes, MapReduceError>;
    /// Frees a piece, if there is one.
    fn free(&self, piece: Piece);
}
