//! Registered memory for messages that exceed the fabric's inline limit.

use super::{MAX_MESSAGE, TxError};
use dunlin_fabric::WithSources;
use dunlin_fabric::{Access, Arena, Buffer, Fabric};

/// The number of messages of the greatest length that may be in flight at once.
pub(crate) const AT_ONCE: u32 = 64;
/// Bytes of the staging memory.
const BYTES: usize = AT_ONCE as usize * MAX_MESSAGE;
/// The smallest allocation. It keeps the arena's tables small, and there are twice as many as a send queue
/// has places.
const PIECE: usize = 1024;

/// The memory from which such messages are sent. It is registered with the first of them: most connections
/// never send one, and registered memory is pinned and takes space in the NIC.
#[derive(Debug)]
pub(crate) struct Staging<F: Fabric>(Option<Arena<F::Memory>>);

impl<F: Fabric> Staging<F> {
    pub(crate) const fn new() -> Self {
        Staging(None)
    }

    /// Reserves a buffer of `length` bytes. Returns `TxError::Broken`, which closes the lane, if memory
    /// cannot be registered, and `TxError::Full` if no buffer is free now.
    pub(crate) fn reserve(&mut self, fabric: &F, length: usize) -> Result<Buffer<F::Memory>, TxError> {
        let arena = match &mut self.0 {
            Some(arena) => arena,
            none => none.insert(make(fabric)?),
        };
        arena.reserve(length).map_err(|_| TxError::Full)
    }
}

#[cold]
fn make<F: Fabric>(fabric: &F) -> Result<Arena<F::Memory>, TxError> {
    let memory = fabric.register(BYTES as u64, Access::LOCAL).map_err(|error| {
        tracing::warn!(target: "dunlin", error = %WithSources(&error), bytes = BYTES, "no memory to send a long message from: the lane is closed");
        TxError::Broken
    })?;
    // An arena requires memory that no peer may write.
    Arena::with_unit(memory, PIECE).map_err(|_| TxError::Broken)
}
