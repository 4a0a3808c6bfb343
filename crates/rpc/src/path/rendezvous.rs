//! Read rendezvous: a large payload stays in the sender's registered memory; a descriptor of 24 bytes travels in
//! its place, and the receiver READs the payload into private memory of its own. One copy, and safe against a
//! hostile peer, which can neither write to us nor change what we have copied.
//!
//! [`Pool`] hands out the buffers for both ends: of granted memory to send from, of local memory to READ into.
//! It grows by whole arenas when it has to, up to a limit, and keeps what it has, so that a steady load maps
//! nothing. Mailboxes do not grow for large payloads.

use dunlin_fabric::{Access, Arena, Buffer, Fabric, Link, RegionKey};
use dunlin_wire::Descriptor;

/// The smallest arena that a pool maps.
const FIRST_ARENA: u64 = 1 << 20;

#[derive(Debug)]
struct Part<F: Fabric> {
    arena: Arena<F::Memory>,
    key: Option<RegionKey>,
    length: u64,
}

/// Buffers for large payloads.
#[derive(Debug)]
pub(crate) struct Pool<F: Fabric> {
    parts: Vec<Part<F>>,
    /// Whom the memory is granted to; `None` for memory that is only READ into.
    link: Option<F::Link>,
    mapped: u64,
    limit: u64,
}

/// There is no memory for a large payload now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exhausted;

impl<F: Fabric> Pool<F> {
    /// A pool that maps at most `limit` bytes. With a link its buffers can be READ by the peer there.
    pub(crate) fn new(link: Option<F::Link>, limit: u64) -> Self {
        Pool { parts: Vec::new(), link, mapped: 0, limit }
    }

    /// A buffer of `length` bytes. Maps memory if the arenas there are have none free: a system call, but only
    /// until the pool has seen its load.
    pub(crate) fn reserve(&mut self, fabric: &F, length: usize) -> Result<Buffer<F::Memory>, Exhausted> {
        for part in &self.parts {
            if part.length >= length as u64
                && let Ok(buffer) = part.arena.reserve(length)
            {
                return Ok(buffer);
            }
        }
        let wanted = (length as u64).next_power_of_two().max(FIRST_ARENA).max(self.mapped);
        let room = self.limit.saturating_sub(self.mapped);
        let wanted =
            if wanted <= room { wanted } else { (length as u64).next_power_of_two().max(FIRST_ARENA) };
        if wanted > room {
            return Err(Exhausted);
        }
        let access = if self.link.is_some() { Access::READ } else { Access::LOCAL };
        let arena = fabric
            .register(wanted, access)
            .ok()
            .and_then(|memory| Arena::new(memory).ok())
            .ok_or(Exhausted)?;
        let key = match &self.link {
            Some(link) => Some(link.grant(arena.memory(), Access::READ).map_err(|_| Exhausted)?),
            None => None,
        };
        let buffer = arena.reserve(length).map_err(|_| Exhausted)?;
        self.mapped += wanted;
        self.parts.push(Part { arena, key, length: wanted });
        Ok(buffer)
    }

    /// What names a buffer of this pool to the peer; `None` for one of another pool.
    pub(crate) fn descriptor(&self, buffer: &Buffer<F::Memory>) -> Option<Descriptor> {
        let part = self.parts.iter().find(|p| std::sync::Arc::ptr_eq(p.arena.memory(), buffer.memory()))?;
        Some(Descriptor { key: part.key?.0, offset: buffer.offset(), length: buffer.len() as u64 })
    }
}
