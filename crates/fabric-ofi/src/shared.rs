//! A shared receive queue: the RECVs of several connected endpoints.

use crate::handles::SharedReceives;
use crate::receives::Receives;
use dunlin_fabric::{RequestKind, request_name};
use std::sync::Arc;

/// A shared receive queue.
#[derive(Debug)]
pub(crate) struct Shared {
    // Closed before the memory that it may fill is dropped.
    pub(crate) handle: Arc<SharedReceives>,
    pub(crate) receives: Receives,
}

impl Shared {
    /// Gives RECVs to the provider, as far as it has room.
    pub(crate) fn drive(&mut self, number: u32) {
        let handle = &self.handle;
        let (_, handed) = self.receives.hand_over(|parts, place| {
            // SAFETY: buffer and place are exclusive, and held until the RECV has completed or the handle is
            // closed, which is dropped first.
            unsafe { handle.receive(parts, request_name(RequestKind::Shared, number, place)) }
        });
        if let Err(error) = handed {
            tracing::warn!(%error, "a shared receive queue takes no RECV");
        }
    }
}
