//! The leader's side of the tickets: collect, begin, finish.

use super::memory::{Memory, Processor, Word};
use super::{
    ABANDONED, DONE, Delivery, Entry, FREE, INLINE, NONE, READY, RESULT_IN_BODY, RESULT_INLINE,
    RESULT_IS_ERROR, RETURNED, TAKEN, Ticket, TicketId, Tickets, WITHDRAWN, generation, head, phase,
};
use crate::error::{CallError, Cause};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Tickets in order, linked through them.
#[derive(Clone, Copy, Debug)]
struct Queue {
    first: u32,
    last: u32,
}

impl Queue {
    const EMPTY: Queue = Queue { first: NONE, last: NONE };

    #[inline]
    fn is_empty(self) -> bool {
        self.first == NONE
    }

    /// Puts linked tickets behind those in the queue.
    #[inline]
    fn append<M: Memory>(&mut self, tickets: &Tickets<M>, first: u32, last: u32) {
        match tickets.ticket(self.last) {
            Some(ticket) => ticket.next.store(first, Ordering::Relaxed),
            None => self.first = first,
        }
        self.last = last;
    }

    #[inline]
    fn push_front<M: Memory>(&mut self, ticket: &Ticket<M>, index: u32) {
        ticket.next.store(self.first, Ordering::Relaxed);
        if self.is_empty() {
            self.last = index;
        }
        self.first = index;
    }

    #[inline]
    fn pop<M: Memory>(&mut self, tickets: &Tickets<M>) -> Option<u32> {
        let index = self.first;
        self.first = tickets.ticket(index)?.next.load(Ordering::Relaxed);
        if self.is_empty() {
            self.last = NONE;
        }
        Some(index)
    }
}

/// The end of a queue at which a call is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// Before the calls that are held for the worker: it was the first of them.
    Front,
    /// Behind them.
    Back,
}

/// The queues of a list's leader: the tickets that were collected and not begun, in order of arrival. Lies behind
/// the lock of the lead, so one thread at a time uses it.
///
/// Calls to a worker whose lane has no room are held in a queue of that worker, so that calls to the others pass.
///
/// Dropping it fails the calls that wait as not executed. Calls that were begun stay taken; a later leader of
/// the same list can finish them.
pub(crate) struct Leader<M: Memory = Processor> {
    pub(super) tickets: Arc<Tickets<M>>,
    pub(super) list: u16,
    queue: Queue,
    /// By worker, up to the last one whose lane was full.
    held: Vec<Queue>,
    waiting: u32,
}

impl<M: Memory> Leader<M> {
    pub(super) fn new(tickets: Arc<Tickets<M>>, list: u16) -> Self {
        Leader { tickets, list, queue: Queue::EMPTY, held: Vec::new(), waiting: 0 }
    }

    /// The table of the tickets.
    pub(crate) fn tickets(&self) -> &Arc<Tickets<M>> {
        &self.tickets
    }

    /// The number of tickets that were collected and not begun, including held and withdrawn ones.
    pub(crate) fn waiting(&self) -> u32 {
        self.waiting
    }

    /// Takes all tickets off the list and puts them behind those in the queue, in order of arrival. Returns
    /// their number. Takes time in proportion to it; a list holds each ticket of the table at most once.
    #[inline]
    pub(crate) fn collect(&mut self) -> u32 {
        let Some(list) = self.tickets.lists.get(usize::from(self.list)) else { return 0 };
        if list.newest.load(Ordering::Relaxed) == NONE {
            return 0;
        }
        let newest = list.newest.swap(NONE, M::TAKE);
        let (mut index, mut oldest, mut count) = (newest, NONE, 0);
        while let Some(ticket) = self.tickets.ticket(index) {
            let before = ticket.next.load(Ordering::Relaxed);
            ticket.next.store(oldest, Ordering::Relaxed);
            (oldest, index) = (index, before);
            count += 1;
        }
        self.append(oldest, newest, count);
        count
    }

    /// Puts a prepared or returned call into the queue, behind all calls that were pushed before. Returns whether it
    /// did: not if the call waits already.
    #[inline]
    pub(super) fn push(&mut self, id: TicketId) -> bool {
        self.collect();
        let Some(ticket) = self.tickets.make_ready(id, self.list) else { return false };
        ticket.next.store(NONE, Ordering::Relaxed);
        self.append(id.index, id.index, 1);
        true
    }

    #[inline]
    fn append(&mut self, first: u32, last: u32, count: u32) {
        self.queue.append(&self.tickets, first, last);
        self.waiting += count;
    }

    #[inline]
    fn pop(&mut self, queue: Option<usize>) -> Option<u32> {
        let queue = match queue {
            Some(worker) => self.held.get_mut(worker)?,
            None => &mut self.queue,
        };
        let index = queue.pop(&self.tickets)?;
        self.waiting -= 1;
        Some(index)
    }

    /// Begins the next call of one of the [`queues`](Leader::queues), `None` the one of calls that are not held: its
    /// owner cannot withdraw it any more. Passes over withdrawn tickets and frees them. Returns nothing if the queue
    /// is empty; see [`collect`](Leader::collect).
    ///
    /// The caller begins a call before it puts any of it into a message, so that no owner learns that its
    /// call was not executed while the call is being sent.
    #[inline]
    pub(crate) fn begin(&mut self, queue: Option<usize>) -> Option<TicketId> {
        while let Some(index) = self.pop(queue) {
            let Some(ticket) = self.tickets.ticket(index) else { continue };
            let generation = generation(ticket.state.load(Ordering::Relaxed));
            let id = TicketId { index, generation };
            match ticket.state.exchange(id.at(READY), id.at(TAKEN), Ordering::Relaxed) {
                Ok(_) => return Some(id),
                // A ticket on the list is ready or withdrawn.
                Err(now) if now == id.at(WITHDRAWN) => ticket.state.store(id.at(FREE), M::FREE),
                Err(_) => {}
            }
        }
        None
    }

    /// Returns whether calls are held for a worker.
    #[inline]
    pub(crate) fn holds(&self, worker: usize) -> bool {
        self.held.get(worker).is_some_and(|queue| !queue.is_empty())
    }

    /// Returns whether any call that is held for a worker is such a one; a withdrawn one counts. Takes time in proportion
    /// to their number.
    pub(crate) fn any_held(&self, worker: usize, mut is_such: impl FnMut(TicketId) -> bool) -> bool {
        let mut index = self.held.get(worker).map_or(NONE, |queue| queue.first);
        while let Some(ticket) = self.tickets.ticket(index) {
            let generation = generation(ticket.state.load(Ordering::Relaxed));
            if is_such(TicketId { index, generation }) {
                return true;
            }
            index = ticket.next.load(Ordering::Relaxed);
        }
        false
    }

    /// Returns whether a call to a worker would be the next one: none waits that no worker holds, and none that this
    /// one does.
    #[inline]
    pub(crate) fn is_next(&self, worker: usize) -> bool {
        self.queue.is_empty() && !self.holds(worker)
    }

    /// The ticket with this id if it was begun on this list and not finished.
    #[inline]
    fn begun(&self, id: TicketId) -> Option<(&Ticket<M>, u32)> {
        let ticket = self.tickets.ticket_in_use(id)?;
        let phase = phase(ticket.state.load(Ordering::Relaxed));
        let list = (ticket.head.load(Ordering::Relaxed) >> 16) as u16;
        (matches!(phase, TAKEN | ABANDONED) && list == self.list).then_some((ticket, phase))
    }

    /// Returns whether the owner of a begun call waits for it.
    pub(crate) fn is_wanted(&self, id: TicketId) -> bool {
        self.begun(id).is_some_and(|(_, phase)| phase == TAKEN)
    }

    /// Passes a begun call to `with`; `None` if the id names none. A call can be read until it is finished or
    /// put back, even if its owner has given it up.
    #[inline]
    pub(crate) fn read<R>(&self, id: TicketId, with: impl FnOnce(Entry<'_>) -> R) -> Option<R> {
        let (ticket, _) = self.begun(id)?;
        let head = ticket.head.load(Ordering::Relaxed);
        let (function, length) = (head as u16, (head >> 32) as usize);
        let (thread, time) = (self.tickets.thread(id), ticket.time.load(Ordering::Relaxed));
        Some(if length <= INLINE {
            let bytes = ticket.load_words(length);
            with(Entry { function, thread, time, payload: &bytes[..length] })
        } else {
            with(Entry { function, thread, time, payload: &ticket.body().bytes })
        })
    }

    /// Makes a begun call ready again, nothing of which was sent. Returns whether it waits; not if its owner has given
    /// it up, or the id names no begun call.
    fn unbegin(&self, id: TicketId) -> Option<&Ticket<M>> {
        let (ticket, _) = self.begun(id)?;
        if ticket.state.exchange(id.at(TAKEN), id.at(READY), Ordering::Relaxed).is_err() {
            ticket.state.store(id.at(FREE), M::FREE);
            return None;
        }
        Some(ticket)
    }

    /// Gives a begun call, of which nothing was sent, back to its owner. The owner may push it again.
    /// Returns false if the owner has given the call up, or if the id names no begun call.
    pub(crate) fn return_begun(&mut self, id: TicketId) -> bool {
        let Some((ticket, _)) = self.begun(id) else { return false };
        let is_returned = ticket.state.exchange(id.at(TAKEN), id.at(RETURNED), M::FINISH).is_ok();
        if !is_returned {
            ticket.state.store(id.at(FREE), M::FREE);
        }
        is_returned
    }

    /// Puts a begun call back at the front of the queue. Nothing of the call may have been sent. Of several calls the
    /// one begun last is put back first. Returns whether the call waits again; not if its owner has given it up, or
    /// the id names no begun call.
    pub(crate) fn put_back(&mut self, id: TicketId) -> bool {
        let mut queue = self.queue;
        let Some(ticket) = self.unbegin(id) else { return false };
        queue.push_front(ticket, id.index);
        self.queue = queue;
        self.waiting += 1;
        true
    }

    /// Holds a begun call until its worker has room. Nothing of the call may have been sent. Returns whether the call
    /// waits again, as [`put_back`](Leader::put_back). Allocates the queues of the
    /// workers, once.
    #[cold]
    pub(crate) fn hold(&mut self, id: TicketId, worker: usize, side: Side) -> bool {
        if self.held.len() <= worker {
            self.held.resize(worker + 1, Queue::EMPTY);
        }
        let mut queue = self.held[worker];
        let Some(ticket) = self.unbegin(id) else { return false };
        match side {
            Side::Front => queue.push_front(ticket, id.index),
            Side::Back => {
                ticket.next.store(NONE, Ordering::Relaxed);
                queue.append(&self.tickets, id.index, id.index);
            }
        }
        self.held[worker] = queue;
        self.waiting += 1;
        true
    }

    /// Ends a begun call with its result, which is copied into the ticket. Allocates only for a result longer
    /// than all before it in that ticket, and for errors.
    #[inline]
    pub(crate) fn finish(&mut self, id: TicketId, result: Result<&[u8], CallError>) -> Delivery {
        let Some((ticket, phase)) = self.begun(id) else { return Delivery::Stale };
        if phase == TAKEN {
            let head = match result {
                Ok(bytes) if ticket.store(bytes) => head(RESULT_INLINE, self.list, bytes.len() as u32),
                Ok(_) => head(RESULT_IN_BODY, self.list, 0),
                Err(error) => {
                    ticket.body().error = Some(Box::new(error));
                    head(RESULT_IS_ERROR, self.list, 0)
                }
            };
            ticket.head.store(head, Ordering::Relaxed);
            if ticket.state.exchange(id.at(TAKEN), id.at(DONE), M::FINISH).is_ok() {
                return Delivery::Delivered;
            }
        }
        ticket.state.store(id.at(FREE), M::FREE);
        Delivery::Abandoned
    }

    /// The queues: those of workers, by number, then the one of all calls that are not held. A thread's calls to a
    /// worker that are held came before those that are not.
    pub(crate) fn queues(&self) -> impl Iterator<Item = Option<usize>> + use<M> {
        (0..self.held.len()).map(Some).chain([None])
    }

    /// Gives the calls that wait, in the queues and on the list, back to their owners, who push them again on
    /// another list. `returned` gets each. A call that is [`put_back`](Leader::put_back) first waits, too.
    pub(crate) fn return_waiting(&mut self, mut returned: impl FnMut(TicketId)) {
        self.collect();
        for queue in self.queues() {
            while let Some(index) = self.pop(queue) {
                let Some(ticket) = self.tickets.ticket(index) else { continue };
                let generation = generation(ticket.state.load(Ordering::Relaxed));
                let id = TicketId { index, generation };
                match ticket.state.exchange(id.at(READY), id.at(RETURNED), M::FINISH) {
                    Ok(_) => returned(id),
                    Err(now) if now == id.at(WITHDRAWN) => ticket.state.store(id.at(FREE), M::FREE),
                    Err(_) => {}
                }
            }
        }
    }

    /// Ends all calls that wait, in the queues and on the list, as not executed. `ended` gets each that was
    /// delivered.
    pub(crate) fn fail_waiting(&mut self, cause: Cause, mut ended: impl FnMut(TicketId)) {
        self.collect();
        for queue in self.queues() {
            while let Some(id) = self.begin(queue) {
                if self.finish(id, Err(CallError::NotExecuted(cause))) == Delivery::Delivered {
                    ended(id);
                }
            }
        }
    }
}

impl<M: Memory> Drop for Leader<M> {
    fn drop(&mut self) {
        self.fail_waiting(Cause::Closed, |_| {});
        if let Some(list) = self.tickets.lists.get(usize::from(self.list)) {
            list.has_leader.store(false, Ordering::Release);
        }
    }
}

impl<M: Memory> fmt::Debug for Leader<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leader")
            .field("list", &self.list)
            .field("waiting", &self.waiting)
            .finish_non_exhaustive()
    }
}
