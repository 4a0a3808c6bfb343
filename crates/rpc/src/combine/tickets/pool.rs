//! A pool of tickets for the calls of tasks. A seat belongs to a thread; a task may be polled by any thread, so here
//! each call claims a ticket of its own, by one compare-and-swap, and keeps it until its result is taken.
//!
//! Tickets lie in slabs of 64. A word of bits for each slab says which are free, another one which were given up and
//! are still the leader's to free. The thread that clears a bit has the ticket. A slab is allocated when all before it
//! are in use, and kept.

use super::memory::{Memory, Processor, Word, clear, set};
use super::owner::{Left, Outcome};
use super::waker::WakerCell;
use super::{
    ABANDONED, Capacity, FREE, INLINE, KEPT, Leader, PrepareError, TAKEN, Ticket, TicketId, Tickets,
    Withdrawal, generation, phase,
};
use crate::error::CallError;
use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::task::Waker;

/// The tickets of a slab.
const SLAB: u16 = 64;
/// The tickets whose memory [`Bytes`] may keep while the caller reads it. Beyond them a long result leaves its
/// ticket at once, with the memory.
const LENT: u32 = 1024;
/// The list of all calls.
const LIST: u16 = 0;

/// The part of a ticket that only calls of tasks have.
struct Cell<X, M: Memory> {
    waker: WakerCell<M>,
    /// The time at which the task has to be woken, if its waker is there.
    until: M::Whole,
    extra: X,
}

type Cells<X, M> = Box<[Cell<X, M>]>;

/// The tickets of all calls of a hub, on one list. `X` is what the hub keeps with each.
pub(crate) struct Pool<X, M: Memory = Processor> {
    tickets: Arc<Tickets<M>>,
    cells: Box<[OnceLock<Cells<X, M>>]>,
    free: Box<[M::Bits]>,
    given_up: Box<[M::Bits]>,
}

/// A small result. Memory that it has from its ticket goes back there by [`Pool::put_back`].
#[derive(Debug)]
pub(crate) struct Bytes {
    line: [u8; INLINE],
    length: u8,
    long: Vec<u8>,
    /// The ticket that waits for its memory.
    lent_by: Option<u32>,
}

impl Bytes {
    /// No bytes.
    pub(crate) const EMPTY: Bytes = Bytes { line: [0; INLINE], length: 0, long: Vec::new(), lent_by: None };

    /// Returns whether the memory goes back to its ticket.
    pub(crate) fn is_lent(&self) -> bool {
        self.lent_by.is_some()
    }

    /// The bytes.
    #[inline]
    pub(crate) fn get(&self) -> &[u8] {
        if self.long.is_empty() { &self.line[..usize::from(self.length)] } else { &self.long }
    }
}

impl<X: Default> Pool<X> {
    /// Creates a pool of at most `slabs` times 64 tickets.
    pub(crate) fn new(slabs: u16) -> Self {
        Self::with_memory(slabs, SLAB)
    }
}

impl<X: Default, M: Memory> Pool<X, M> {
    /// Creates a pool of at most `slabs` times `window` tickets, which is 64 at most.
    fn with_memory(slabs: u16, window: u16) -> Self {
        let window = window.min(SLAB);
        let tickets = Tickets::with_memory(Capacity { seats: slabs, window, lists: 1, longest: u32::MAX });
        let words = || (0..tickets.slabs.len()).map(|_| M::Bits::new(0)).collect();
        Pool {
            cells: (0..tickets.slabs.len()).map(|_| OnceLock::new()).collect(),
            free: words(),
            given_up: words(),
            tickets,
        }
    }

    /// Claims a ticket that is free; `None` if all are in use. Allocates if a slab is used for the first time.
    #[inline]
    fn claim(&self) -> Option<u32> {
        (0..self.free.len()).find_map(|slab| {
            if self.cells[slab].get().is_none() {
                self.open(slab);
            }
            let slot = self.claim_free(slab).or_else(|| self.claim_given_up(slab))?;
            Some((slab as u32) << self.tickets.shift | slot)
        })
    }

    #[cold]
    fn open(&self, slab: usize) {
        let tickets = &self.tickets;
        if tickets.open(slab).is_none() {
            return;
        }
        self.cells[slab].get_or_init(|| {
            // Nobody claims a ticket before, since no bit is set.
            set(&self.free[slab], all_of(tickets.window), M::GIVE);
            let cell = |_| Cell { waker: WakerCell::new(), until: M::Whole::new(0), extra: X::default() };
            (0..tickets.window).map(cell).collect()
        });
    }

    /// The longest sequence of steps is one for each thread that claims a ticket of the slab meanwhile.
    #[inline]
    fn claim_free(&self, slab: usize) -> Option<u32> {
        let word = &self.free[slab];
        let mut bits = word.load(Ordering::Relaxed);
        while bits != 0 {
            match word.exchange(bits, bits & (bits - 1), M::CLAIM) {
                Ok(_) => return Some(bits.trailing_zeros()),
                Err(now) => bits = now,
            }
        }
        None
    }

    /// Claims a ticket that was given up, and that the leader has freed since.
    #[cold]
    fn claim_given_up(&self, slab: usize) -> Option<u32> {
        let word = &self.given_up[slab];
        let mut left = word.load(Ordering::Relaxed);
        while left != 0 {
            let slot = left.trailing_zeros();
            left &= left - 1;
            let ticket = self.tickets.ticket((slab as u32) << self.tickets.shift | slot)?;
            if phase(ticket.state.load(Ordering::Relaxed)) == FREE && clear(word, 1 << slot, M::CLAIM) {
                // The ticket may have been claimed and given up since the first look.
                if phase(ticket.state.load(M::REUSE)) == FREE {
                    return Some(slot);
                }
                set(word, 1 << slot, M::GIVE);
            }
        }
        None
    }
}

impl<X, M: Memory> Pool<X, M> {
    /// Gives out the leader's queue, once.
    pub(crate) fn leader(&self) -> Option<Leader<M>> {
        self.tickets.leader(LIST)
    }

    /// Returns whether no call waits for a leader to see it.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.tickets.is_empty(LIST)
    }

    /// Gives a ticket to whoever claims it next.
    #[inline]
    fn release(&self, index: u32) {
        let (slab, slot) = self.split(index);
        if let Some(word) = self.free.get(slab) {
            set(word, 1 << slot, M::GIVE);
        }
    }

    #[inline]
    fn split(&self, index: u32) -> (usize, u32) {
        ((index >> self.tickets.shift) as usize, index & ((1 << self.tickets.shift) - 1))
    }

    #[inline]
    fn cell(&self, index: u32) -> Option<&Cell<X, M>> {
        let (slab, slot) = self.split(index);
        self.cells.get(slab)?.get()?.get(slot as usize)
    }

    /// Returns the hub's part of a ticket.
    #[inline]
    pub(crate) fn extra(&self, id: TicketId) -> Option<&X> {
        Some(&self.cell(id.index)?.extra)
    }

    /// Puts a prepared or returned call on the list. The caller then tries to take the lead.
    #[inline]
    pub(crate) fn push(&self, id: TicketId) -> bool {
        self.tickets.push(id, LIST)
    }

    /// As [`push`](Pool::push), by the thread that leads, into its queue.
    #[inline]
    pub(crate) fn push_to_own(&self, id: TicketId, leader: &mut Leader<M>) -> bool {
        Arc::ptr_eq(&self.tickets, &leader.tickets) && leader.push(id)
    }

    /// Returns whether the leader has given the call back without sending it, or nobody has pushed it.
    #[inline]
    pub(crate) fn is_returned(&self, id: TicketId) -> bool {
        self.tickets.is_owners(id)
    }

    /// Returns whether the call waits for room or for the leader, and was not sent.
    #[inline]
    pub(crate) fn is_waiting(&self, id: TicketId) -> bool {
        self.tickets.is_ready(id)
    }

    /// Stores the waker of the call's task, which is woken when the call has ended or was given back, and at `until` at
    /// the latest. Returns false if that is so already: the task has to look at once.
    pub(crate) fn wait(&self, id: TicketId, waker: &Waker, until: u64) -> bool {
        let Some(cell) = self.cell(id.index) else { return false };
        cell.until.store(until, Ordering::Relaxed);
        let is_kept = cell.waker.store(waker);
        M::fence_after_wait();
        is_kept
    }

    /// Takes the waker of a call that the thread that leads has ended or given back. It may be that of the ticket's
    /// next call, which is then woken once too often.
    #[inline]
    pub(crate) fn take_waker(&self, id: TicketId) -> Option<Waker> {
        self.cell(id.index)?.waker.take()
    }

    /// Passes the wakers of tasks that have to be woken by `now` to `overdue`. Returns the time of the next one, and
    /// whether any task waits.
    ///
    /// A thread that is about to sleep first says until when. A task first waits ([`wait`](Pool::wait)), and then looks
    /// until when the thread sleeps. Both execute a sequentially consistent fence in between, so the thread finds the
    /// task, or the task knows that it has to wake the thread.
    pub(crate) fn overdue(&self, now: u64, mut overdue: impl FnMut(Waker)) -> (u64, bool) {
        M::fence_before_scan();
        let (mut next, mut any) = (u64::MAX, false);
        for (slab, cells) in self.cells.iter().enumerate() {
            let Some(cells) = cells.get() else { break };
            let unused =
                self.free[slab].load(Ordering::Relaxed) | self.given_up[slab].load(Ordering::Relaxed);
            let mut used = !unused & all_of(self.tickets.window);
            while used != 0 {
                let cell = &cells[used.trailing_zeros() as usize];
                used &= used - 1;
                if !cell.waker.is_full() {
                    continue;
                }
                any = true;
                match cell.until.load(Ordering::Relaxed) {
                    until if until <= now => cell.waker.take().into_iter().for_each(&mut overdue),
                    until => next = next.min(until),
                }
            }
        }
        (next, any)
    }

    /// Takes the result of a call that has ended, and releases its ticket; `None` if there is no result yet. `extra`
    /// sees what the hub keeps with the ticket before that.
    #[inline]
    pub(crate) fn take<R>(
        &self,
        id: TicketId,
        extra: impl FnOnce(&X) -> R,
    ) -> Option<(Result<Bytes, CallError>, Option<R>)> {
        let result = self.tickets.take(id, |outcome| match outcome {
            Outcome::Inline(bytes) => {
                let mut result = Bytes { length: bytes.len() as u8, ..Bytes::EMPTY };
                result.line[..bytes.len()].copy_from_slice(bytes);
                Ok(result)
            }
            Outcome::InBody(body) => {
                let lent_by = (id.index < LENT).then_some(id.index);
                Ok(Bytes { long: std::mem::take(body), lent_by, ..Bytes::EMPTY })
            }
            Outcome::Failed(error) => Err(error),
        })?;
        let cell = self.cell(id.index);
        let extra = cell.map(|cell| extra(&cell.extra));
        if let Some(cell) = cell {
            cell.waker.clear();
        }
        if result.as_ref().map_or(true, |bytes| bytes.lent_by.is_none()) {
            self.release(id.index);
        }
        Some((result, extra))
    }

    /// Gives the memory of a result back to its ticket, and releases that.
    pub(crate) fn put_back(&self, bytes: &mut Bytes) {
        let Some(index) = bytes.lent_by.take() else { return };
        if bytes.long.capacity() <= KEPT
            && let Some(ticket) = self.tickets.ticket(index)
        {
            ticket.body().bytes = std::mem::take(&mut bytes.long);
        }
        self.release(index);
    }

    /// Gives a call up, unless its result is there. `Left` says who has the ticket.
    pub(crate) fn withdraw(&self, id: TicketId) -> Withdrawal {
        let (withdrawal, left) = self.tickets.withdraw(id);
        if let Left::AsItWas = left {
            return withdrawal;
        }
        if let Some(cell) = self.cell(id.index) {
            cell.waker.clear();
        }
        match left {
            Left::Free => self.release(id.index),
            Left::ToLeader | Left::AsItWas => {
                let (slab, slot) = self.split(id.index);
                if let Some(word) = self.given_up.get(slab) {
                    set(word, 1 << slot, M::GIVE);
                }
            }
        }
        withdrawal
    }
}

impl<X: Default, M: Memory> Pool<X, M> {
    /// Writes a call into a ticket. Allocates only for a payload longer than all before it in that ticket. Nobody has
    /// seen the ticket before it is pushed, so `extra` is stored without any order.
    ///
    /// # Errors
    /// All tickets are in use, or the payload is too long.
    #[inline]
    pub(crate) fn prepare(
        &self,
        function: u16,
        payload: &[u8],
        extra: impl FnOnce(&X),
    ) -> Result<TicketId, PrepareError> {
        let limit = self.tickets.longest;
        if payload.len() > limit as usize {
            return Err(PrepareError::TooLong { length: payload.len(), limit });
        }
        let index = self.claim().ok_or(PrepareError::Full)?;
        if let Some(cell) = self.cell(index) {
            extra(&cell.extra);
        }
        self.tickets.fill(index, function, 0, payload).ok_or(PrepareError::Full)
    }

    /// Takes a ticket for a call that the thread that leads sends itself; `None` if all are in use.
    #[inline]
    pub(crate) fn begin(&self) -> Option<TicketId> {
        self.tickets.begin(self.claim()?, LIST)
    }

    /// Returns the calls that the thread that leads has taken and not ended. Only that thread asks.
    #[cold]
    pub(crate) fn taken(&self) -> Vec<TicketId> {
        let slabs = self.tickets.slabs.iter().map_while(|slab| slab.get());
        let taken = |(slab, slot, ticket): (usize, usize, &Ticket<M>)| {
            let state = ticket.state.load(Ordering::Relaxed);
            let index = (slab as u32) << self.tickets.shift | slot as u32;
            matches!(phase(state), TAKEN | ABANDONED)
                .then_some(TicketId { index, generation: generation(state) })
        };
        let slots = slabs.enumerate().flat_map(|(slab, tickets)| {
            tickets.iter().enumerate().map(move |(slot, ticket)| (slab, slot, ticket))
        });
        slots.filter_map(taken).collect()
    }

    /// Releases a ticket of [`begin`](Pool::begin) whose call was not sent. The thread still leads.
    pub(crate) fn undo(&self, id: TicketId) {
        if self.tickets.undo(id) {
            self.release(id.index);
        }
    }
}

const fn all_of(window: u16) -> u64 {
    u64::MAX >> (64 - window as u32)
}

impl<X, M: Memory> fmt::Debug for Pool<X, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("tickets", &self.tickets).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod model_checks;
#[cfg(test)]
mod tests;
