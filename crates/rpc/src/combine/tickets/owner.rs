//! The steps of a ticket's owner, for seats and for pools. The caller owns the ticket: its seat has it, or it has
//! claimed it from a pool.

use super::memory::{Memory, Word};
use super::{
    ABANDONED, DONE, FREE, GENERATIONS, HELD, INLINE, READY, RESULT_INLINE, RESULT_IS_ERROR, RETURNED, TAKEN,
    Ticket, TicketId, Tickets, WITHDRAWN, Withdrawal, generation, head, phase, state,
};
use crate::error::CallError;
use std::sync::atomic::Ordering;

/// A result as it lies in a ticket.
pub(super) enum Outcome<'a> {
    /// In the ticket's first line.
    Inline(&'a [u8]),
    /// In the ticket's memory for long payloads.
    InBody(&'a mut Vec<u8>),
    /// The call failed.
    Failed(CallError),
}

/// The owner of a ticket after a withdrawal.
pub(super) enum Left {
    /// The ticket is free for the next call.
    Free,
    /// The leader frees it.
    ToLeader,
    /// Nothing was changed.
    AsItWas,
}

impl<M: Memory> Tickets<M> {
    /// Writes a call into a free ticket.
    #[inline]
    pub(super) fn fill(&self, index: u32, function: u16, time: u64, payload: &[u8]) -> Option<TicketId> {
        let ticket = self.ticket(index)?;
        let generation = next_generation(ticket);
        ticket.state.store(state(generation, HELD), Ordering::Relaxed);
        ticket.head.store(head(function, 0, payload.len() as u32), Ordering::Relaxed);
        ticket.time.store(time, Ordering::Relaxed);
        ticket.store(payload);
        Some(TicketId { index, generation })
    }

    /// Makes a free ticket that of a call which the thread that leads `list` sends itself.
    #[inline]
    pub(super) fn begin(&self, index: u32, list: u16) -> Option<TicketId> {
        let ticket = self.ticket(index)?;
        let generation = next_generation(ticket);
        ticket.head.store(head(0, list, 0), Ordering::Relaxed);
        ticket.state.store(state(generation, TAKEN), Ordering::Relaxed);
        Some(TicketId { index, generation })
    }

    /// Puts a prepared or returned call on a list; see [`Seat::push`](super::Seat::push).
    #[inline]
    pub(super) fn push(&self, id: TicketId, list: u16) -> bool {
        let Some(newest) = self.lists.get(usize::from(list)).map(|list| &list.newest) else {
            return false;
        };
        let Some(ticket) = self.make_ready(id, list) else { return false };
        let mut previous = newest.load(Ordering::Relaxed);
        loop {
            ticket.next.store(previous, Ordering::Relaxed);
            match newest.exchange(previous, id.index, M::PUSH) {
                Ok(_) => return true,
                Err(now) => previous = now,
            }
        }
    }

    #[inline]
    pub(super) fn make_ready(&self, id: TicketId, list: u16) -> Option<&Ticket<M>> {
        let ticket = self.ticket_in_use(id)?;
        if !matches!(phase(ticket.state.load(M::RESULT)), HELD | RETURNED) {
            return None;
        }
        let head = ticket.head.load(Ordering::Relaxed) & !0xffff_0000 | u64::from(list) << 16;
        ticket.head.store(head, Ordering::Relaxed);
        ticket.state.store(id.at(READY), Ordering::Relaxed);
        Some(ticket)
    }

    /// Returns whether a call was given back without being sent.
    #[inline]
    pub(super) fn is_returned(&self, id: TicketId) -> bool {
        self.ticket(id.index).is_some_and(|ticket| ticket.state.load(M::RESULT) == id.at(RETURNED))
    }

    /// Returns whether the owner has a call that is not pushed: prepared, or given back.
    #[inline]
    pub(super) fn is_owners(&self, id: TicketId) -> bool {
        self.ticket(id.index).is_some_and(|ticket| {
            let now = ticket.state.load(M::RESULT);
            now == id.at(RETURNED) || now == id.at(HELD)
        })
    }

    /// Returns whether a call waits to be begun.
    #[inline]
    pub(super) fn is_ready(&self, id: TicketId) -> bool {
        self.ticket(id.index).is_some_and(|ticket| ticket.state.load(Ordering::Relaxed) == id.at(READY))
    }

    /// Frees a ticket of [`begin`](Tickets::begin) whose call was not sent. The thread still leads.
    pub(super) fn undo(&self, id: TicketId) -> bool {
        let Some(ticket) = self.ticket(id.index) else { return false };
        let is_begun = ticket.state.load(Ordering::Relaxed) == id.at(TAKEN);
        if is_begun {
            ticket.state.store(id.at(FREE), Ordering::Relaxed);
        }
        is_begun
    }

    /// Gives a call up, unless its result is there.
    pub(super) fn withdraw(&self, id: TicketId) -> (Withdrawal, Left) {
        let Some(ticket) = self.ticket_in_use(id) else { return (Withdrawal::Gone, Left::AsItWas) };
        // Repeats only if the leader moves the ticket in between, which takes it out of the list or ends it.
        loop {
            let (next, certainty) = match phase(ticket.state.load(M::RESULT)) {
                HELD | RETURNED => {
                    ticket.state.store(id.at(FREE), Ordering::Relaxed);
                    return (Withdrawal::NotExecuted, Left::Free);
                }
                READY => ((READY, WITHDRAWN), Withdrawal::NotExecuted),
                TAKEN => ((TAKEN, ABANDONED), Withdrawal::MaybeExecuted),
                DONE => return (Withdrawal::Done, Left::AsItWas),
                _ => return (Withdrawal::Gone, Left::AsItWas),
            };
            if ticket.state.exchange(id.at(next.0), id.at(next.1), Ordering::Relaxed).is_ok() {
                return (certainty, Left::ToLeader);
            }
        }
    }

    /// Frees the ticket of a call that has ended, and then passes its result to `with`; `None` if there is no result
    /// yet. The caller keeps the ticket until it passes it on.
    #[inline]
    pub(super) fn take<R>(&self, id: TicketId, with: impl FnOnce(Outcome<'_>) -> R) -> Option<R> {
        let ticket = self.ticket(id.index)?;
        if ticket.state.load(M::RESULT) != id.at(DONE) {
            return None;
        }
        let head = ticket.head.load(Ordering::Relaxed);
        ticket.state.store(id.at(FREE), Ordering::Relaxed);
        Some(match head as u16 {
            RESULT_INLINE => {
                let length = ((head >> 32) as usize).min(INLINE);
                let bytes = ticket.load_words(length);
                with(Outcome::Inline(&bytes[..length]))
            }
            kind => {
                let mut body = ticket.body();
                let error = if kind == RESULT_IS_ERROR { body.error.take() } else { None };
                match error {
                    Some(error) => with(Outcome::Failed(*error)),
                    None => with(Outcome::InBody(&mut body.bytes)),
                }
            }
        })
    }
}

#[inline]
fn next_generation<M: Memory>(ticket: &Ticket<M>) -> u32 {
    generation(ticket.state.load(Ordering::Relaxed)).wrapping_add(1) & GENERATIONS
}
