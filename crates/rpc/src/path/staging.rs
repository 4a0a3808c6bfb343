//! Registered memory for messages that are over the fabric's inline limit.

use super::{MAX_MESSAGE, TxError};
use dunlin_fabric::{Access, Arena, Buffer, Fabric};

/// As many of the longest messages as may well be on their way.
pub(crate) const AT_ONCE: u32 = 64;
/// Bytes of it.
const BYTES: usize = AT_ONCE as usize * MAX_MESSAGE;
/// The smallest piece: what keeps the arena's tables small. There are twice as many as a send queue has places.
const PIECE: usize = 1024;

/// Where such messages are copied to be sent from. Made with the first of them, since most connections never send one
/// and registered memory is dear: pinned, and known to the NIC.
#[derive(Debug)]
pub(crate) struct Staging<F: Fabric>(Option<Arena<F::Memory>>);

impl<F: Fabric> Staging<F> {
    pub(crate) const fn new() -> Self {
        Staging(None)
    }

    /// A buffer of `length` bytes. No memory at all breaks the lane, no buffer just now is waited for.
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
        tracing::warn!(target: "dunlin", %error, bytes = BYTES, "no memory to send a long message from: the lane is closed");
        TxError::Broken
    })?;
    // Memory of our own that no peer may write is what an arena is made of.
    Arena::with_unit(memory, PIECE).map_err(|_| TxError::Broken)
}
