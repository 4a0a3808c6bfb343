//! The owner's side of the tickets: prepare, push, withdraw, take the result.

#[cfg(test)]
use super::Progress;
use super::memory::{Memory, Processor, Word};
use super::owner::{Left, Outcome};
use super::{
    ABANDONED, DONE, FREE, HELD, KEPT, Leader, PrepareError, READY, RETURNED, TAKEN, TicketId, Tickets,
    WITHDRAWN, Withdrawal, generation, phase, state,
};
use crate::error::CallError;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

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
        let index = self.free().ok_or(PrepareError::Full)?;
        self.tickets.fill(index, function, time, payload).ok_or(PrepareError::Full)
    }

    /// Takes a free ticket for a call that the thread sends itself, as the one that leads: the call is begun on the
    /// leader's list. `None` if there is no free ticket.
    #[inline]
    pub(crate) fn begin(&mut self, leader: &Leader<M>) -> Option<TicketId> {
        let index = self.free()?;
        self.tickets.begin(index, leader.list)
    }

    /// The index of a ticket that was free.
    #[inline]
    fn free(&mut self) -> Option<u32> {
        if self.free.is_empty() {
            self.sweep();
        }
        Some(u32::from(self.number) << self.tickets.shift | u32::from(self.free.pop()?))
    }

    /// Frees a ticket of [`begin`](Seat::begin) whose call was not sent. The thread still leads.
    pub(crate) fn undo(&mut self, id: TicketId) {
        if self.is_own(id) && self.tickets.undo(id) {
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
        self.is_own(id) && self.tickets.push(id, list)
    }

    /// Puts a prepared call into the queue of the leader, behind all calls that were pushed before. The thread
    /// that leads does so with a call of its own seat; it costs no access to the list if that is empty.
    #[inline]
    pub(crate) fn push_to_own(&mut self, id: TicketId, leader: &mut Leader<M>) -> bool {
        self.is_own(id) && Arc::ptr_eq(&self.tickets, &leader.tickets) && leader.push(id)
    }

    /// Returns the seat and the number there of a ticket.
    pub(crate) fn slot_of(&self, id: TicketId) -> (u16, u16) {
        self.tickets.slot_of(id)
    }

    #[inline]
    fn is_own(&self, id: TicketId) -> bool {
        id.index >> self.tickets.shift == u32::from(self.number)
    }

    #[cfg(test)]
    /// Returns how far a call has come.
    #[inline]
    pub(crate) fn progress(&self, id: TicketId) -> Progress {
        let ticket = self.tickets.ticket_in_use(id).filter(|_| self.is_own(id));
        let Some(ticket) = ticket else { return Progress::Gone };
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
        self.is_own(id) && self.tickets.is_returned(id)
    }

    /// Gives a call up, unless its result is there.
    pub(crate) fn withdraw(&mut self, id: TicketId) -> Withdrawal {
        if !self.is_own(id) {
            return Withdrawal::Gone;
        }
        let (withdrawal, left) = self.tickets.withdraw(id);
        let slot = self.tickets.slot(id);
        match left {
            Left::Free => self.free.push(slot),
            Left::ToLeader => self.given_up.push(slot),
            Left::AsItWas => {}
        }
        withdrawal
    }

    /// Passes a call's result to `with` and releases the ticket; `None` if there is no result yet. The result
    /// is borrowed from the ticket.
    #[inline]
    pub(crate) fn take_result<R>(
        &mut self,
        id: TicketId,
        with: impl FnOnce(Result<&[u8], CallError>) -> R,
    ) -> Option<R> {
        if !self.is_own(id) {
            return None;
        }
        let Seat { tickets, free, .. } = self;
        let slot = tickets.slot(id);
        // The ticket is free before `with` runs, so that a panic costs no ticket. No other thread takes it meanwhile.
        tickets.take(id, |outcome| {
            free.push(slot);
            match outcome {
                Outcome::Inline(bytes) => with(Ok(bytes)),
                Outcome::Failed(error) => with(Err(error)),
                Outcome::InBody(body) => {
                    let result = with(Ok(body));
                    if body.capacity() > KEPT {
                        *body = Vec::new();
                    }
                    result
                }
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
        self.tickets.vacant.give_back(self.number);
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
