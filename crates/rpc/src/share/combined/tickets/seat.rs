//! The owner's side of the tickets: prepare, push, withdraw, take the result.

#[cfg(test)]
use super::Progress;
use super::memory::{Memory, Processor, Word};
use super::{
    ABANDONED, DONE, FREE, GENERATIONS, HELD, INLINE, KEPT, Leader, NONE, PrepareError, READY, RESULT_INLINE,
    RESULT_IS_ERROR, RETURNED, TAKEN, Ticket, TicketId, Tickets, WITHDRAWN, Withdrawal, generation, head,
    phase, state,
};
use crate::error::CallError;
use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

/// A thread's place at a table: its tickets. One thread at a time uses it.
///
/// Dropping a seat withdraws its calls and abandons those that are taken.
pub(crate) struct Seat<M: Memory = Processor> {
    pub(super) tickets: Arc<Tickets<M>>,
    pub(super) number: u16,
    /// Free tickets, the one used last at the end.
    pub(super) free: Vec<u16>,
    /// Tickets that the leader has still to free.
    pub(super) given_up: Vec<u16>,
}

impl<M: Memory> Seat<M> {
    /// The seat's number: the thread number of its calls.
    pub(crate) fn number(&self) -> u16 {
        self.number
    }

    /// The number of calls that were prepared and neither taken as results nor given up.
    pub(crate) fn in_use(&self) -> usize {
        usize::from(self.tickets.window) - self.free.len() - self.given_up.len()
    }

    /// Writes a call into a free ticket: acquires it and copies the payload. `time` is the time that is left
    /// for the call, in nanoseconds. Allocates only for a payload longer than all before it in that ticket.
    #[inline]
    pub(crate) fn prepare(
        &mut self,
        function: u16,
        time: u64,
        payload: &[u8],
    ) -> Result<TicketId, PrepareError> {
        let limit = self.tickets.longest;
        if payload.len() > limit as usize {
            return Err(PrepareError::TooLong { length: payload.len(), limit });
        }
        if self.free.is_empty() {
            self.sweep();
        }
        let slot = self.free.pop().ok_or(PrepareError::Full)?;
        let index = u32::from(self.number) << self.tickets.shift | u32::from(slot);
        let ticket = self.tickets.ticket(index).ok_or(PrepareError::Full)?;
        let generation = generation(ticket.state.load(Ordering::Relaxed)).wrapping_add(1) & GENERATIONS;
        ticket.state.store(state(generation, HELD), Ordering::Relaxed);
        ticket.head.store(head(function, 0, payload.len() as u32), Ordering::Relaxed);
        ticket.time.store(time, Ordering::Relaxed);
        ticket.store(payload);
        Ok(TicketId { index, generation })
    }

    /// Takes a free ticket for a call that the thread sends itself, as the one that leads: the call is begun on the
    /// leader's list. `None` if there is no free ticket.
    #[inline]
    pub(crate) fn begin(&mut self, leader: &Leader<M>) -> Option<TicketId> {
        if self.free.is_empty() {
            self.sweep();
        }
        let slot = self.free.pop()?;
        let index = u32::from(self.number) << self.tickets.shift | u32::from(slot);
        let ticket = self.tickets.ticket(index)?;
        let generation = generation(ticket.state.load(Ordering::Relaxed)).wrapping_add(1) & GENERATIONS;
        ticket.head.store(head(0, leader.list, 0), Ordering::Relaxed);
        ticket.state.store(state(generation, TAKEN), Ordering::Relaxed);
        Some(TicketId { index, generation })
    }

    /// Frees a ticket of [`begin`](Seat::begin) whose call was not sent. The thread still leads.
    pub(crate) fn undo(&mut self, id: TicketId) {
        if let Some(ticket) = self.tickets.ticket_of(self.number, id)
            && ticket.state.load(Ordering::Relaxed) == id.at(TAKEN)
        {
            ticket.state.store(id.at(FREE), Ordering::Relaxed);
            self.free.push(self.tickets.slot(id));
        }
    }

    /// Collects tickets that the leader has freed since.
    #[cold]
    fn sweep(&mut self) {
        let (tickets, number, free) = (&self.tickets, self.number, &mut self.free);
        self.given_up.retain(|slot| {
            let index = u32::from(number) << tickets.shift | u32::from(*slot);
            let is_free =
                tickets.ticket(index).is_some_and(|ticket| phase(ticket.state.load(M::REUSE)) == FREE);
            if is_free {
                free.push(*slot);
            }
            !is_free
        });
    }

    /// Puts a prepared or returned call on a list, where its leader finds it. Returns whether it did: not if the
    /// call is on a list already or there is no such list.
    ///
    /// The caller then tries to take the lead (`lead.rs`). If it finds the lead taken, the thread that leads
    /// looks at the list after it has given the lead back.
    #[inline]
    pub(crate) fn push(&mut self, id: TicketId, list: u16) -> bool {
        let Some(newest) = self.tickets.lists.get(usize::from(list)).map(|list| &list.newest) else {
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

    /// Puts a prepared call into the queue of the leader, behind all calls that were pushed before. The thread
    /// that leads does so with a call of its own seat; it costs no access to the list if that is empty.
    #[inline]
    pub(crate) fn push_to_own(&mut self, id: TicketId, leader: &mut Leader<M>) -> bool {
        if !Arc::ptr_eq(&self.tickets, &leader.tickets) {
            return false;
        }
        leader.collect();
        let Some(ticket) = self.make_ready(id, leader.list) else { return false };
        ticket.next.store(NONE, Ordering::Relaxed);
        leader.append(id.index, id.index, 1);
        true
    }

    #[inline]
    fn make_ready(&self, id: TicketId, list: u16) -> Option<&Ticket<M>> {
        let ticket = self.tickets.ticket_of(self.number, id)?;
        if !matches!(phase(ticket.state.load(M::RESULT)), HELD | RETURNED) {
            return None;
        }
        let head = ticket.head.load(Ordering::Relaxed) & !0xffff_0000 | u64::from(list) << 16;
        ticket.head.store(head, Ordering::Relaxed);
        ticket.state.store(id.at(READY), Ordering::Relaxed);
        Some(ticket)
    }

    #[cfg(test)]
    /// Returns how far a call has come.
    #[inline]
    pub(crate) fn progress(&self, id: TicketId) -> Progress {
        let Some(ticket) = self.tickets.ticket_of(self.number, id) else { return Progress::Gone };
        match phase(ticket.state.load(Ordering::Relaxed)) {
            HELD | RETURNED => Progress::Held,
            READY => Progress::Ready,
            TAKEN => Progress::Taken,
            DONE => Progress::Done,
            _ => Progress::Gone,
        }
    }

    /// Returns whether the leader of the call's list has given the call back without sending it.
    #[inline]
    pub(crate) fn is_returned(&self, id: TicketId) -> bool {
        let ticket = self.tickets.ticket_of(self.number, id);
        ticket.is_some_and(|ticket| ticket.state.load(M::RESULT) == id.at(RETURNED))
    }

    /// Gives a call up, unless its result is there.
    pub(crate) fn withdraw(&mut self, id: TicketId) -> Withdrawal {
        let slot = self.tickets.slot(id);
        let Some(ticket) = self.tickets.ticket_of(self.number, id) else { return Withdrawal::Gone };
        // Repeats only if the leader moves the ticket in between, which takes it out of the list or ends it.
        loop {
            let (next, certainty) = match phase(ticket.state.load(M::RESULT)) {
                HELD | RETURNED => {
                    ticket.state.store(id.at(FREE), Ordering::Relaxed);
                    self.free.push(slot);
                    return Withdrawal::NotExecuted;
                }
                READY => ((READY, WITHDRAWN), Withdrawal::NotExecuted),
                TAKEN => ((TAKEN, ABANDONED), Withdrawal::MaybeExecuted),
                DONE => return Withdrawal::Done,
                _ => return Withdrawal::Gone,
            };
            if ticket.state.exchange(id.at(next.0), id.at(next.1), Ordering::Relaxed).is_ok() {
                self.given_up.push(slot);
                return certainty;
            }
        }
    }

    /// Passes a call's result to `with` and releases the ticket; `None` if there is no result yet. The result
    /// is borrowed from the ticket.
    #[inline]
    pub(crate) fn take_result<R>(
        &mut self,
        id: TicketId,
        with: impl FnOnce(Result<&[u8], CallError>) -> R,
    ) -> Option<R> {
        let ticket = self.tickets.ticket_of(self.number, id)?;
        if ticket.state.load(M::RESULT) != id.at(DONE) {
            return None;
        }
        let head = ticket.head.load(Ordering::Relaxed);
        // Released first, so that a panic in `with` costs no ticket. No other thread takes it meanwhile.
        ticket.state.store(id.at(FREE), Ordering::Relaxed);
        self.free.push(self.tickets.slot(id));
        Some(match head as u16 {
            RESULT_INLINE => {
                let length = ((head >> 32) as usize).min(INLINE);
                let bytes = ticket.load_words(length);
                with(Ok(&bytes[..length]))
            }
            kind => {
                let mut body = ticket.body();
                let error = if kind == RESULT_IS_ERROR { body.error.take() } else { None };
                let result = match error {
                    Some(error) => with(Err(*error)),
                    None => with(Ok(&body.bytes)),
                };
                if body.bytes.capacity() > KEPT {
                    body.bytes = Vec::new();
                }
                result
            }
        })
    }
}

impl<M: Memory> Drop for Seat<M> {
    fn drop(&mut self) {
        for slot in 0..self.tickets.window {
            let index = u32::from(self.number) << self.tickets.shift | u32::from(slot);
            let Some(ticket) = self.tickets.ticket(index) else { continue };
            // Repeats only if the leader moves the ticket in between, as in `withdraw`.
            loop {
                let now = ticket.state.load(M::RESULT);
                let next = match phase(now) {
                    HELD | DONE | RETURNED => FREE,
                    READY => WITHDRAWN,
                    TAKEN => ABANDONED,
                    _ => break,
                };
                if ticket.state.exchange(now, state(generation(now), next), Ordering::Relaxed).is_ok() {
                    break;
                }
            }
        }
        self.tickets.vacant.lock().unwrap_or_else(PoisonError::into_inner).left.push(self.number);
    }
}

impl<M: Memory> fmt::Debug for Seat<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Seat")
            .field("number", &self.number)
            .field("in_use", &self.in_use())
            .finish_non_exhaustive()
    }
}
