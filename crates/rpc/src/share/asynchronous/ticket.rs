//! The tickets of a hub, with the hub's part of each.

use super::route::To;
use super::strands::NO_CLONE;
use crate::combine::tickets::{Pool, PrepareError, TicketId};
use crate::error::{CallError, Cause};
use dunlin_fabric::{Buffer, Fabric};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// The part of a ticket that the engine needs. It belongs to whoever owns the ticket.
pub(super) struct Extra<F: Fabric> {
    pub(super) to: To,
    /// The call's id while it is sent, for the leader.
    pub(super) call: AtomicU64,
    /// The clone whose call it is while it is under way, for the leader.
    pub(super) clone: AtomicU32,
    /// The thread that has ended the call, on a host that says so.
    pub(super) ended_by: AtomicU32,
    has_large: AtomicBool,
    /// A large result, which passes to the caller with its memory. Never contended.
    large: Mutex<Option<Buffer<F::Memory>>>,
}

impl<F: Fabric> Default for Extra<F> {
    fn default() -> Self {
        Extra {
            to: To::default(),
            call: AtomicU64::new(0),
            clone: AtomicU32::new(NO_CLONE),
            ended_by: AtomicU32::new(u32::MAX),
            has_large: AtomicBool::new(false),
            large: Mutex::new(None),
        }
    }
}

impl<F: Fabric> Extra<F> {
    pub(super) fn set_large(&self, buffer: Option<Buffer<F::Memory>>) -> Option<Buffer<F::Memory>> {
        self.has_large.store(buffer.is_some(), Ordering::Relaxed);
        std::mem::replace(&mut *self.large.lock().unwrap_or_else(PoisonError::into_inner), buffer)
    }

    /// Returns the clone whose call was under way.
    pub(super) fn take_clone(&self) -> u32 {
        let clone = self.clone.load(Ordering::Relaxed);
        self.clone.store(NO_CLONE, Ordering::Relaxed);
        clone
    }

    /// Returns whether another thread has ended the call.
    pub(super) fn is_delivered_by_other(&self, thread: Option<u32>) -> bool {
        thread.is_some_and(|thread| self.ended_by.load(Ordering::Relaxed) != thread)
    }

    /// Takes the large result of a call that has ended, if it has one.
    pub(super) fn take_large(&self) -> Option<Buffer<F::Memory>> {
        if self.has_large.load(Ordering::Relaxed) { self.set_large(None) } else { None }
    }
}

/// The tickets of a hub.
pub(super) type Tickets<F> = Pool<Extra<F>>;

/// Writes a call into a ticket.
pub(super) fn prepare<F: Fabric>(
    tickets: &Tickets<F>,
    to: &To,
    function: u16,
    payload: &[u8],
) -> Result<TicketId, CallError> {
    tickets.prepare(function, payload, |extra| extra.to.copy(to)).map_err(|error| {
        CallError::NotExecuted(match error {
            PrepareError::Full => Cause::WindowFull,
            PrepareError::TooLong { length, limit } => {
                Cause::TooLarge { length: length as u64, limit: limit.into() }
            }
        })
    })
}
