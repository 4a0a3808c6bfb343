//! Tickets: the calls that threads hand to the leader of a queue pair, as a lock-free list (FLOCK section
//! 4.2, the thread combining queue).
//!
//! A thread that makes calls takes a [`Seat`] with a fixed number of tickets. It writes a call into a ticket
//! and pushes the ticket on the list of a queue pair. The thread that leads the queue pair owns the list's
//! [`Leader`]. It takes all pushed tickets at once, in order of arrival, sends their calls, and writes the
//! results into the tickets.
//!
//! The paper's queue is an MCS queue: a thread enters by a swap, links itself behind its predecessor, and
//! copies its payload while the leader waits for it. A thread that loses its core in between holds up all
//! others. Here a ticket is complete before the compare-and-swap that makes it visible, so the leader waits
//! for no thread. Tickets are named by index; the list needs no pointers.
//!
//! # States
//!
//! | state | who owns the ticket | next states |
//! |---|---|---|
//! | free | the seat | held |
//! | held | the seat; filled, not pushed | ready, free |
//! | ready | the list | taken or returned by the leader, withdrawn by the seat |
//! | taken | the leader; the call may be sent | done or ready by the leader, abandoned by the seat |
//! | returned | the seat; the leader did not send it and will not | ready, free |
//! | done | the seat; the result is in the ticket | free |
//! | withdrawn | the list; the call is not sent | free by the leader |
//! | abandoned | the leader; the result is dropped | free by the leader |
//!
//! Each transition out of ready and taken is a compare-and-swap, so exactly one side wins. The state has the
//! ticket's generation, which changes at each use: a late access by an old [`TicketId`] finds another
//! generation and has no effect.
//!
//! # Orders
//!
//! * A push releases, taking the list acquires: the leader sees whole calls.
//! * `finish` releases, the owner's look acquires: the owner sees whole results.
//! * The leader frees a ticket with release, the owner takes it again with acquire: nothing that the leader
//!   did with the ticket comes after its reuse.
//! * A pusher pushes, then tries to take the lead; a leader gives the lead back, then looks at the list. With
//!   a sequentially consistent fence between the two steps on both sides, the pusher finds the lead free or
//!   the leader finds the ticket ([`Tickets::is_empty`], `lead.rs`).
//!
//! Calls of one seat on one list are begun in the order in which they were pushed.

mod leader;
pub(crate) mod memory;
mod owner;
mod pool;
mod seat;
mod waker;

pub(crate) use self::leader::{Leader, Side};
pub(crate) use self::pool::{Bytes, Pool};
pub(crate) use self::seat::Seat;

use self::memory::{Memory, Processor, Word};
use super::vacant::Vacant;
use crate::error::CallError;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use thiserror::Error;

/// The longest payload that lies in the ticket itself, in bytes.
pub(crate) const INLINE: usize = WORDS * 8;
const WORDS: usize = 5;

/// The largest capacity that a ticket keeps for the next long payload, in bytes.
const KEPT: usize = 64 << 10;

/// The end of a list.
const NONE: u32 = u32::MAX;

/// The number of bits of a state's phase; the generation has the others.
const PHASE_BITS: u32 = 3;
const GENERATIONS: u32 = u32::MAX >> PHASE_BITS;

const FREE: u32 = 0;
const HELD: u32 = 1;
const READY: u32 = 2;
const TAKEN: u32 = 3;
const DONE: u32 = 4;
const WITHDRAWN: u32 = 5;
const ABANDONED: u32 = 6;
const RETURNED: u32 = 7;

const fn state(generation: u32, phase: u32) -> u32 {
    generation << PHASE_BITS | phase
}

const fn phase(state: u32) -> u32 {
    state & ((1 << PHASE_BITS) - 1)
}

const fn generation(state: u32) -> u32 {
    state >> PHASE_BITS
}

/// Where a result is. Stands in the place of a request's function number.
const RESULT_INLINE: u16 = 0;
const RESULT_IN_BODY: u16 = 1;
const RESULT_IS_ERROR: u16 = 2;

/// The head of a request or result: function number or place of the result, list, length.
const fn head(function: u16, list: u16, length: u32) -> u64 {
    function as u64 | (list as u64) << 16 | (length as u64) << 32
}

/// A use of a ticket: its index and the generation of the use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct TicketId {
    index: u32,
    generation: u32,
}

impl TicketId {
    /// Returns the id as a number, for the tables of the thread that leads.
    pub(crate) const fn bits(self) -> u64 {
        self.index as u64 | (self.generation as u64) << 32
    }

    /// Returns the id with this number. Any number is safe: an id that names no use of a ticket is refused.
    pub(crate) const fn from_bits(bits: u64) -> Self {
        TicketId { index: bits as u32, generation: (bits >> 32) as u32 }
    }

    const fn at(self, phase: u32) -> u32 {
        state(self.generation, phase)
    }
}

/// The size of a table of tickets. Values beyond the limits are clipped.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Capacity {
    /// Threads that can have a seat: 1 to 4096. A seat without a thread costs 16 bytes or so.
    pub(crate) seats: u16,
    /// Tickets of a seat: 1 to 1024, of 128 bytes each.
    pub(crate) window: u16,
    /// Lists, one for each queue pair: 1 to 1024.
    pub(crate) lists: u16,
    /// The longest payload of a request, in bytes.
    pub(crate) longest: u32,
}

/// The reason why a seat has no ticket for a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(crate) enum PrepareError {
    /// All tickets of the seat are in use, or given up and not yet free: the next leader frees these.
    #[error("all tickets of the seat are in use")]
    Full,
    /// The payload is longer than [`Capacity::longest`].
    #[error("the payload of {length} bytes is over the limit of {limit}")]
    TooLong {
        /// The payload's length in bytes.
        length: usize,
        /// The limit in bytes.
        limit: u32,
    },
}

#[cfg(test)]
/// The owner's view of its call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// Prepared and not pushed.
    Held,
    /// On the list; the call was not sent.
    Ready,
    /// The leader sends it or has sent it.
    Taken,
    /// The result is there.
    Done,
    /// The id names no call of this seat: it was taken, withdrawn or released.
    Gone,
}

/// The fate of a call after a withdrawal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Withdrawal {
    /// The call was not sent and will not be.
    NotExecuted,
    /// The call may have been sent. Its result is dropped.
    MaybeExecuted,
    /// Too late: the result is there, and the owner still has to take it.
    Done,
    /// The id names no call of this seat.
    Gone,
}

/// The fate of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Delivery {
    /// The owner has it, and may wait to be woken.
    Delivered,
    /// The owner had given the call up. The ticket is free.
    Abandoned,
    /// The id names no taken ticket of this list. Nothing was changed.
    Stale,
}

/// A call as the leader sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry<'a> {
    /// Function number.
    pub(crate) function: u16,
    /// The seat's number: the paper's thread id.
    pub(crate) thread: u16,
    /// The time that the owner gave, in nanoseconds from the push.
    pub(crate) time: u64,
    /// The request.
    pub(crate) payload: &'a [u8],
}

/// Long payloads, and errors.
#[derive(Debug, Default)]
struct Body {
    bytes: Vec<u8>,
    error: Option<Box<CallError>>,
}

/// One ticket: a line for all calls of up to [`INLINE`] bytes, and a line for the others.
#[repr(C, align(128))]
struct Ticket<M: Memory> {
    state: M::Half,
    /// The ticket that was pushed before, or, in the leader's queue, the one that comes after.
    next: M::Half,
    head: M::Whole,
    time: M::Whole,
    words: [M::Whole; WORDS],
    /// Never contended: whoever owns the ticket by its state is alone.
    body: Mutex<Body>,
}

const _: () = assert!(size_of::<Ticket<Processor>>() == 128);

impl<M: Memory> Ticket<M> {
    fn new() -> Self {
        Ticket {
            state: M::Half::new(state(0, FREE)),
            next: M::Half::new(NONE),
            head: M::Whole::new(0),
            time: M::Whole::new(0),
            words: std::array::from_fn(|_| M::Whole::new(0)),
            body: Mutex::new(Body::default()),
        }
    }

    fn body(&self) -> MutexGuard<'_, Body> {
        self.body.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    fn store_words(&self, bytes: &[u8]) {
        for (word, chunk) in self.words.iter().zip(bytes.chunks(8)) {
            let mut raw = [0; 8];
            raw[..chunk.len()].copy_from_slice(chunk);
            word.store(u64::from_le_bytes(raw), Ordering::Relaxed);
        }
    }

    #[inline]
    fn load_words(&self, length: usize) -> [u8; INLINE] {
        let mut bytes = [0; INLINE];
        for (word, chunk) in self.words.iter().zip(bytes.chunks_exact_mut(8)).take(length.div_ceil(8)) {
            chunk.copy_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
        }
        bytes
    }

    /// Stores bytes where bytes of that length go, and returns whether they lie in the ticket itself.
    #[inline]
    fn store(&self, bytes: &[u8]) -> bool {
        if bytes.len() <= INLINE {
            self.store_words(bytes);
            return true;
        }
        let mut body = self.body();
        body.bytes.clear();
        body.bytes.extend_from_slice(bytes);
        false
    }
}

/// The list of one queue pair: the index of the ticket that was pushed last.
#[repr(align(128))]
struct List<M: Memory> {
    newest: M::Half,
    has_leader: AtomicBool,
}

/// The tickets of one seat.
type Slab<M> = Box<[Ticket<M>]>;

/// A table of tickets and the lists of ready ones. Threads that share queue pairs share a table.
///
/// A seat's tickets are allocated when the seat is first taken, and kept.
pub(crate) struct Tickets<M: Memory = Processor> {
    slabs: Box<[OnceLock<Slab<M>>]>,
    lists: Box<[List<M>]>,
    vacant: Vacant,
    window: u16,
    /// An index is a seat's number, shifted left by this number of bits, and a number within the seat.
    shift: u32,
    longest: u32,
}

impl Tickets<Processor> {
    /// Creates a table.
    pub(crate) fn new(capacity: Capacity) -> Arc<Self> {
        Self::with_memory(capacity)
    }
}

impl<M: Memory> Tickets<M> {
    pub(super) fn with_memory(capacity: Capacity) -> Arc<Self> {
        let window = capacity.window.clamp(1, 1024);
        let list = |_| List { newest: M::Half::new(NONE), has_leader: AtomicBool::new(false) };
        let slabs: Box<[_]> = (0..capacity.seats.clamp(1, 4096)).map(|_| OnceLock::new()).collect();
        Arc::new(Tickets {
            lists: (0..capacity.lists.clamp(1, 1024)).map(list).collect(),
            vacant: Vacant::new(slabs.len() as u16),
            slabs,
            window,
            shift: window.next_power_of_two().trailing_zeros(),
            longest: capacity.longest,
        })
    }

    /// Gives the calling thread a seat; `None` if all are taken. Allocates.
    pub(crate) fn seat(self: &Arc<Self>) -> Option<Seat<M>> {
        let number = self.vacant.take()?;
        let slab = self.open(usize::from(number))?;
        let window = usize::from(self.window);
        let (mut free, mut given_up) = (Vec::with_capacity(window), Vec::with_capacity(window));
        for (slot, ticket) in (0..self.window).zip(slab.iter()).rev() {
            match phase(ticket.state.load(M::REUSE)) {
                FREE => free.push(slot),
                _ => given_up.push(slot),
            }
        }
        Some(Seat { tickets: Arc::clone(self), number, free, given_up })
    }

    /// The tickets of a seat, which are allocated at first; `None` if there is no such seat.
    fn open(&self, seat: usize) -> Option<&[Ticket<M>]> {
        Some(self.slabs.get(seat)?.get_or_init(|| (0..self.window).map(|_| Ticket::new()).collect()))
    }

    /// Gives out the queue of a list's leader, once until that is dropped; `None` otherwise, and if there is
    /// no such list.
    pub(crate) fn leader(self: &Arc<Self>, list: u16) -> Option<Leader<M>> {
        if self.lists.get(usize::from(list))?.has_leader.swap(true, Ordering::AcqRel) {
            return None;
        }
        Some(Leader::new(Arc::clone(self), list))
    }

    /// Returns whether no pushed ticket is on the list. Tickets that a [`Leader`] has collected do not count.
    ///
    /// A leader calls it after it has given the lead back and executed a sequentially consistent fence. If it
    /// misses a ticket then, the ticket's pusher finds the lead free, provided that the pusher executes such
    /// a fence between its push and its attempt.
    #[inline]
    pub(crate) fn is_empty(&self, list: u16) -> bool {
        self.lists.get(usize::from(list)).is_none_or(|list| list.newest.load(Ordering::Relaxed) == NONE)
    }

    /// Returns the number of the seat that made a call.
    #[inline]
    pub(crate) fn thread(&self, id: TicketId) -> u16 {
        (id.index >> self.shift) as u16
    }

    /// Returns the seat and the ticket's number there.
    #[inline]
    pub(crate) fn slot_of(&self, id: TicketId) -> (u16, u16) {
        (self.thread(id), self.slot(id))
    }

    #[inline]
    fn slot(&self, id: TicketId) -> u16 {
        (id.index & ((1 << self.shift) - 1)) as u16
    }

    /// The ticket with this id, unless the id is of another use.
    #[inline]
    fn ticket_in_use(&self, id: TicketId) -> Option<&Ticket<M>> {
        let ticket = self.ticket(id.index)?;
        (generation(ticket.state.load(Ordering::Relaxed)) == id.generation).then_some(ticket)
    }

    #[inline]
    fn ticket(&self, index: u32) -> Option<&Ticket<M>> {
        let slab = self.slabs.get((index >> self.shift) as usize)?.get()?;
        slab.get((index & ((1 << self.shift) - 1)) as usize)
    }
}

impl<M: Memory> fmt::Debug for Tickets<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tickets")
            .field("seats", &self.slabs.len())
            .field("window", &self.window)
            .field("lists", &self.lists.len())
            .field("longest", &self.longest)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
pub(crate) mod model_checks;
#[cfg(test)]
mod tests;
