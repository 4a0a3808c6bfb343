//! The material of which a mechanism makes the ends of a lane.

use super::TxHalf;
use crate::path::beside::Beside;
use crate::path::local_ring::LocalRing;
use crate::path::{Cx, MAX_MESSAGE};
use dunlin_fabric::{
    ArenaError, CreateError, Endpoint, Fabric, QueuePairId, Region, RegionKey, RegisterError, Transport,
};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use thiserror::Error;

/// The material of which halves make the ends of a lane, alike for client and server.
pub(crate) struct Ends<'a, F: Fabric> {
    pub(crate) cx: Cx<'a, F>,
    pub(crate) link: &'a F::Link,
    /// The number of the lane at this side.
    pub(crate) lane: u16,
    /// The most calls in flight.
    pub(crate) window: u16,
    /// The queue pair of the reliable connection.
    pub(crate) queue_pair: QueuePairId,
    /// Those for other transports.
    pub(crate) beside: Beside<BesideEnd<'a>>,
    /// The most requests in the send queue of `queue_pair`.
    pub(crate) max_send: u32,
    /// The ring of the messages to be sent, in the peer's memory, and its offset there.
    pub(crate) to: (RegionKey, u64),
    /// Bytes of that ring, or of the local one that the peer READs.
    pub(crate) ring_bytes: u32,
    /// The local memory that the peer READs.
    pub(crate) published: Option<Region<F::Memory>>,
    /// The ring that the server READs, and its grant, on a client's lane under leases.
    pub(crate) staged: Option<(Region<F::Memory>, RegionKey)>,
    /// The region of the peer's control line, and the line's offset there.
    pub(crate) control: (RegionKey, usize),
    /// The second region that the peer granted: its published ring, or its pool.
    pub(crate) second: RegionKey,
    /// The local ring of the messages to be received.
    pub(crate) from: Option<LocalRing<F>>,
}

/// A queue pair beside the reliable connection, and where the peer takes what it carries.
#[derive(Clone)]
pub(crate) struct BesideEnd<'a> {
    pub(crate) queue_pair: QueuePairId,
    /// Requests since the last signaled one, of all lanes that share the queue pair.
    pub(crate) unsignaled: Arc<AtomicU32>,
    pub(crate) max_send: u32,
    /// The peer's endpoint.
    pub(crate) peer: &'a Endpoint,
    /// The number of the lane at the peer.
    pub(crate) place: u16,
    /// The most messages in its RECVs that wait to be processed.
    pub(crate) waiting: usize,
}

impl<'a, F: Fabric> Ends<'a, F> {
    /// Returns the queue pair for messages by `transport`, which is not the reliable connection.
    pub(super) fn beside(&self, transport: Transport) -> Result<&BesideEnd<'a>, MakeError> {
        self.beside.of(transport).ok_or(MakeError::Missing("there is no queue pair for this transport"))
    }

    /// The receiving end of a ring in local memory.
    pub(super) fn local_ring(&mut self) -> Result<LocalRing<F>, MakeError> {
        self.from.take().ok_or(MakeError::Missing("there is no ring to receive in"))
    }

    /// A sending end on the reliable connection.
    pub(super) fn on_connection(&self, half: TxHalf<F>) -> Made<F> {
        Made { half, queue_pair: self.queue_pair, max_send: self.max_send, max_message: MAX_MESSAGE }
    }
}

/// A sending end that was made.
pub(crate) struct Made<F: Fabric> {
    pub(crate) half: TxHalf<F>,
    /// The queue pair for messages.
    pub(crate) queue_pair: QueuePairId,
    /// The most requests in its send queue.
    pub(crate) max_send: u32,
    /// Bytes of the longest message.
    pub(crate) max_message: usize,
}

/// The reason why an end of a lane cannot be made.
#[derive(Debug, Error)]
pub(crate) enum MakeError {
    #[error(transparent)]
    Create(#[from] CreateError),
    #[error(transparent)]
    Register(#[from] RegisterError),
    #[error(transparent)]
    Arena(#[from] ArenaError),
    /// The peer or the plan left out what the half needs.
    #[error("{0}")]
    Missing(&'static str),
}
