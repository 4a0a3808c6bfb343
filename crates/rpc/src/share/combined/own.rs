//! Registered memory of the threads, from which their larger requests leave (FLOCK section 4.1).
//!
//! A thread copies such a request once, into a message of its own, before it pushes its ticket. The leader adds the
//! header and the tags, and posts the message with those of the other threads under one doorbell. Smaller requests
//! are copied twice: into the ticket by the thread, into the message of all by the leader.

use crate::client::memory::is_memory;
use crate::path::tx::OwnPayload;
use crate::plan::SMALL_LIMIT;
use crate::share::strand::Entry;
use dunlin_fabric::{Access, Arena, Buffer, Fabric, Host, WithSources, Work};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// The function number of a ticket whose payload lies in its thread's memory. It names no operation on memory.
pub(super) const OWN_MEMORY: u16 = u16::MAX;

/// The registered memory of a thread, in bytes, and its unit. Requests that find none free are copied as shorter ones.
const BYTES: u64 = 128 << 10;
const UNIT: usize = 512;

/// The ticket of a payload: its seat, and its number there.
pub(super) type Slot = (u16, u16);

type Payloads<F> = Box<[Mutex<Option<Buffer<<F as Fabric>::Memory>>>]>;

/// The payloads of tickets, by seat and ticket. A payload belongs to whoever owns its ticket by its state; the locks are
/// therefore never contended.
#[derive(Debug)]
pub(super) struct OwnMemory<F: Fabric> {
    seats: Box<[OnceLock<Payloads<F>>]>,
    window: u16,
    from: u32,
}

/// A thread's registered memory, which is registered with its first such request.
#[derive(Debug)]
pub(super) struct Arenas<F: Fabric> {
    arena: Option<Arena<F::Memory>>,
    is_refused: bool,
}

impl<F: Fabric> Default for Arenas<F> {
    fn default() -> Self {
        Arenas { arena: None, is_refused: false }
    }
}

/// Encodes what the ticket of such a payload says: its function and its length.
pub(super) fn describe(function: u16, length: usize) -> [u8; 6] {
    let ([a, b], [c, d, e, f]) = (function.to_le_bytes(), (length as u32).to_le_bytes());
    [a, b, c, d, e, f]
}

/// Decodes [`describe`].
pub(super) fn described(payload: &[u8]) -> (u16, usize) {
    match *payload {
        [a, b, c, d, e, f] => (u16::from_le_bytes([a, b]), u32::from_le_bytes([c, d, e, f]) as usize),
        _ => (u16::MAX, 0),
    }
}

impl<F: Fabric> OwnMemory<F> {
    pub(super) fn new(seats: u16, window: u16, from: u32) -> Self {
        OwnMemory { seats: (0..seats).map(|_| OnceLock::new()).collect(), window, from }
    }

    /// Copies a payload into memory of its thread; `None` if it is to be copied into the message of all.
    #[inline]
    pub(super) fn fill(
        &self,
        fabric: &F,
        memory: &mut Arenas<F>,
        entry: &Entry<'_>,
    ) -> Option<Buffer<F::Memory>> {
        let length = entry.payload.len();
        if length < self.from as usize || length > SMALL_LIMIT as usize || is_memory(entry.function) {
            return None;
        }
        self.fill_buffer(fabric, memory, entry.payload)
    }

    #[inline(never)]
    fn fill_buffer(&self, fabric: &F, memory: &mut Arenas<F>, payload: &[u8]) -> Option<Buffer<F::Memory>> {
        if fabric.capabilities().initiator_copies || memory.is_refused {
            return None;
        }
        let bytes = OwnPayload::<F::Memory>::message_bytes(payload.len())?;
        let arena = match &mut memory.arena {
            Some(arena) => arena,
            none => {
                let Some(arena) = make(fabric) else {
                    memory.is_refused = true;
                    return None;
                };
                none.insert(arena)
            }
        };
        let mut buffer = arena.reserve(bytes).ok()?;
        fabric.host().charge(Work::CopyBytes, payload.len() as u32);
        OwnPayload::fill(&mut buffer, payload);
        Some(buffer)
    }

    fn payload(&self, (seat, ticket): Slot) -> Option<MutexGuard<'_, Option<Buffer<F::Memory>>>> {
        let payload = self.seats.get(usize::from(seat))?.get()?.get(usize::from(ticket))?;
        Some(payload.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Keeps the payload of a ticket that is not pushed yet.
    pub(super) fn keep(&self, slot: Slot, buffer: Buffer<F::Memory>) {
        if let Some(seat) = self.seats.get(usize::from(slot.0)) {
            seat.get_or_init(|| (0..self.window.max(1)).map(|_| Mutex::new(None)).collect());
        }
        if let Some(mut payload) = self.payload(slot) {
            *payload = Some(buffer);
        }
    }

    /// Takes the payload of a ticket that was begun. There is none if its thread has left meanwhile.
    pub(super) fn take(&self, slot: Slot, length: usize) -> OwnPayload<F::Memory> {
        let buffer = self.payload(slot).and_then(|mut payload| payload.take());
        OwnPayload { buffer, length }
    }

    /// Puts the payload of a ticket back, which was not sent.
    pub(super) fn put_back(&self, slot: Slot, own: Option<OwnPayload<F::Memory>>) {
        if let Some(OwnPayload { buffer: Some(buffer), .. }) = own {
            self.keep(slot, buffer);
        }
    }

    /// Releases the payload of a ticket that was withdrawn.
    pub(super) fn release(&self, slot: Slot) {
        drop(self.payload(slot).and_then(|mut payload| payload.take()));
    }

    /// Releases the payloads of a seat whose thread has left.
    pub(super) fn leave(&self, seat: u16) {
        (0..self.window).for_each(|ticket| self.release((seat, ticket)));
    }
}

#[cold]
fn make<F: Fabric>(fabric: &F) -> Option<Arena<F::Memory>> {
    let memory = fabric.register(BYTES, Access::LOCAL);
    let memory = memory.inspect_err(|error| {
        tracing::warn!(target: "dunlin::client", error = %WithSources(error), bytes = BYTES, "a thread has no registered memory for its larger requests: they are copied once more");
    });
    Arena::with_unit(memory.ok()?, UNIT).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_description_comes_out_as_it_went_in(function in 0..4096u16, length in 0..=SMALL_LIMIT) {
            let description = describe(function, length as usize);
            prop_assert_eq!(described(&description), (function, length as usize));
        }

        #[test]
        fn any_bytes_are_safe(payload in prop::collection::vec(any::<u8>(), 0..20)) {
            let _ = described(&payload);
        }
    }
}
