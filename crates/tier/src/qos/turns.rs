//! The order in which operations get paths.
//!
//! ```text
//!  enter ──> a path is free ─────────────────────────────────────────> granted ──> leave
//!    └─────> queue of its flow ──call──> on deck ──arrive─────────────────^
//!             (asleep)   by weight       (awake)   in order, as paths come free
//! ```
//!
//! A thread that sleeps needs microseconds to wake, longer than an operation takes. So threads are called before a path
//! is free: as many are on deck as there are paths. A path goes from hand to hand without a pause, and the order is
//! decided when a thread is called.

use super::{Priority, RoundTrips};
use std::collections::VecDeque;

/// The weight of a principal counts this many times for operations of high priority. A factor and not strict order:
/// operations of low priority go on, with 1/17 of the bytes if both want all.
pub const HIGH_FACTOR: u32 = 16;
/// The cost that a flow of weight 1 may have in one turn, in bytes: an operation of 4 KiB. Longer operations are paid
/// for in later turns.
pub const QUANTUM: u64 = 8192;
/// The most that a flow pays for later, in bytes.
const MOST_DEBT: i64 = 1 << 20;

/// A flow of operations: those of one principal with one priority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// The number of the principal. Numbers are small, because there is a table by number.
    pub principal: u32,
    /// The priority.
    pub priority: Priority,
    /// The weight of the principal.
    pub weight: u16,
}

#[derive(Debug, Default)]
struct Queue {
    priority: Priority,
    /// The bytes of a turn.
    quantum: i64,
    /// The bytes left of this turn; negative for a debt.
    deficit: i64,
    /// Debts of earlier rounds of waiting are forgotten.
    round: u64,
    is_in_ring: bool,
    /// The turn has begun, and its bytes were added.
    has_turn: bool,
    /// Waiters, with the cost of each.
    waiters: VecDeque<(u32, i64)>,
}

#[derive(Clone, Copy, Debug)]
struct OnDeck {
    waiter: u32,
    priority: Priority,
    is_here: bool,
}

/// The turns of operations at a number of paths: deficit round robin over bytes among flows (Shreedhar and Varghese,
/// SIGCOMM 1995), or order of arrival.
///
/// Every operation [enters](Turns::enter) and [leaves](Turns::leave). After each of the two, and after
/// [`arrive`](Turns::arrive) and [`forget`](Turns::forget), the owner [calls](Turns::call) waiters until there is none to
/// call. Waiters are numbers that the owner chooses.
#[derive(Debug)]
pub struct Turns {
    by_weight: bool,
    paths: usize,
    free: usize,
    queues: Vec<Queue>,
    /// Queues with waiters; the first one has the turn.
    ring: VecDeque<usize>,
    deck: VecDeque<OnDeck>,
    /// By priority: operations that have a path, that are on deck, and that wait in queues.
    active: [usize; 2],
    on_deck: [usize; 2],
    waiting: [usize; 2],
    /// The most paths of low priority while there are operations of high priority.
    low_paths: usize,
    trips: RoundTrips,
    /// Counts the times at which nobody waited.
    round: u64,
}

impl Turns {
    /// Makes the turns of `paths` free paths: by weight, or in order of arrival.
    pub fn new(paths: usize, by_weight: bool) -> Turns {
        Turns {
            by_weight,
            paths,
            free: paths,
            queues: Vec::new(),
            ring: VecDeque::new(),
            deck: VecDeque::with_capacity(paths),
            active: [0; 2],
            on_deck: [0; 2],
            waiting: [0; 2],
            low_paths: paths,
            trips: RoundTrips::default(),
            round: 0,
        }
    }

    /// An operation enters, with its [`cost`](super::cost). Returns whether it gets a path at once; otherwise `waiter`
    /// waits. A path that is free is taken also if others are on their way to it: it would be idle until then. The flow
    /// pays for that in its next turns, and may not owe more than one of them.
    pub fn enter(&mut self, flow: Flow, cost: u64, waiter: u32) -> bool {
        let (at, cost) = (self.queue_of(flow), i64::try_from(cost).unwrap_or(i64::MAX));
        let &Queue { priority, deficit, quantum, .. } = &self.queues[at];
        let has_waiters = self.has_waiters();
        if self.free > 0 && !self.is_held_back(priority) && (!has_waiters || deficit > -quantum) {
            self.free -= 1;
            self.active[priority as usize] += 1;
            if has_waiters {
                self.queues[at].deficit = deficit.saturating_sub(cost).max(-MOST_DEBT);
            }
            return true;
        }
        self.waiting[priority as usize] += 1;
        let queue = &mut self.queues[at];
        queue.waiters.push_back((waiter, cost));
        if !std::mem::replace(&mut queue.is_in_ring, true) {
            self.ring.push_back(at);
        }
        false
    }

    /// An operation ends, and its path is free. Returns the waiter to which the path goes: it has the path from now on.
    pub fn leave(&mut self, priority: Priority) -> Option<u32> {
        self.active[self.counted_as(priority) as usize] -= 1;
        let Some(first) = self.deck.iter().position(|one| one.is_here) else {
            self.free += 1;
            return None;
        };
        self.grant(first)
    }

    /// A called waiter is awake. Returns whether it gets a path at once; otherwise it stays on deck, and a later
    /// [`leave`](Turns::leave) names it.
    pub fn arrive(&mut self, waiter: u32) -> bool {
        let Some(at) = self.deck.iter().position(|one| one.waiter == waiter) else { return false };
        self.deck[at].is_here = true;
        if self.free == 0 {
            return false;
        }
        self.free -= 1;
        self.grant(at).is_some()
    }

    fn grant(&mut self, at: usize) -> Option<u32> {
        let OnDeck { waiter, priority, .. } = self.deck.remove(at)?;
        self.on_deck[priority as usize] -= 1;
        self.active[priority as usize] += 1;
        self.note_round();
        Some(waiter)
    }

    /// Returns the next waiter that has to be awake, and puts it on deck.
    pub fn call(&mut self) -> Option<u32> {
        if self.deck.len() >= self.paths {
            return None;
        }
        loop {
            // Queues that are held back keep their places.
            let place = self.ring.iter().position(|at| !self.is_held_back(self.queues[*at].priority))?;
            let at = self.ring[place];
            let queue = &mut self.queues[at];
            if !std::mem::replace(&mut queue.has_turn, true) {
                queue.deficit += queue.quantum;
            }
            let next = if queue.deficit > 0 { queue.waiters.pop_front() } else { None };
            if let Some((_, cost)) = next {
                queue.deficit = queue.deficit.saturating_sub(cost).max(-MOST_DEBT);
            }
            let (is_empty, is_over) = (queue.waiters.is_empty(), queue.deficit <= 0);
            if is_empty {
                // An unused turn is not kept: a flow that wants little now gets no more later.
                queue.deficit = queue.deficit.min(0);
                queue.is_in_ring = false;
            }
            if is_empty || is_over {
                queue.has_turn = false;
                self.ring.remove(place);
            }
            if is_over && !is_empty {
                self.ring.push_back(at);
            }
            let Some((waiter, _)) = next else { continue };
            let priority = self.queues[at].priority;
            self.waiting[priority as usize] -= 1;
            self.on_deck[priority as usize] += 1;
            self.deck.push_back(OnDeck { waiter, priority, is_here: false });
            return Some(waiter);
        }
    }

    /// A waiter of a flow gives up. Returns `false` if a path was granted to it before.
    pub fn forget(&mut self, flow: Flow, waiter: u32) -> bool {
        if let Some(at) = self.deck.iter().position(|one| one.waiter == waiter) {
            self.deck.remove(at);
            self.on_deck[self.counted_as(flow.priority) as usize] -= 1;
            self.note_round();
            return true;
        }
        let at = self.queue_of(flow);
        let waiters = &mut self.queues[at].waiters;
        let Some(place) = waiters.iter().position(|(other, _)| *other == waiter) else { return false };
        waiters.remove(place);
        let is_empty = waiters.is_empty();
        self.waiting[self.counted_as(flow.priority) as usize] -= 1;
        if is_empty {
            (self.queues[at].is_in_ring, self.queues[at].has_turn) = (false, false);
            self.queues[at].deficit = self.queues[at].deficit.min(0);
            self.ring.retain(|other| *other != at);
        }
        self.note_round();
        true
    }

    /// Returns whether the round trip of an operation of this priority is of use: it is one of high priority, and there
    /// are others of low priority.
    pub fn wants_trip(&self, priority: Priority) -> bool {
        let low = Priority::Low as usize;
        self.by_weight && priority == Priority::High && self.active[low] + self.on_deck[low] > 0
    }

    /// Notes that an operation of high priority with this [`cost`](super::cost) took `time` nanoseconds, at the time
    /// `now`. While round trips [have risen](RoundTrips::have_risen), low priority loses a path with each of them, down to
    /// one, and gets it back afterwards.
    pub fn note(&mut self, now: u64, cost: u64, time: u64) {
        self.trips.note(now, cost, time);
        self.low_paths = match self.trips.have_risen() {
            true => self.low_paths.saturating_sub(1).max(1),
            false => (self.low_paths + 1).min(self.paths),
        };
    }

    /// Returns whether operations wait.
    pub fn has_waiters(&self) -> bool {
        !self.ring.is_empty() || !self.deck.is_empty()
    }

    /// Low priority has fewer paths than there are and uses them, and there are operations of high priority.
    fn is_held_back(&self, priority: Priority) -> bool {
        let (low, high) = (Priority::Low as usize, Priority::High as usize);
        self.by_weight
            && priority == Priority::Low
            && self.low_paths < self.paths
            && self.active[low] + self.on_deck[low] >= self.low_paths
            && self.active[high] + self.on_deck[high] + self.waiting[high] > 0
    }

    fn note_round(&mut self) {
        if !self.has_waiters() {
            self.round += 1;
        }
    }

    /// In order of arrival there is one queue, and one priority.
    fn counted_as(&self, priority: Priority) -> Priority {
        if self.by_weight { priority } else { Priority::High }
    }

    fn queue_of(&mut self, flow: Flow) -> usize {
        let at = if self.by_weight { 2 * flow.principal as usize + flow.priority as usize } else { 0 };
        if self.queues.len() <= at {
            self.queues.resize_with(at + 1, Queue::default);
        }
        let priority = self.counted_as(flow.priority);
        let queue = &mut self.queues[at];
        let factor = if priority == Priority::High { HIGH_FACTOR } else { 1 };
        queue.priority = priority;
        queue.quantum = i64::from(factor * u32::from(flow.weight.max(1))) * QUANTUM as i64;
        if std::mem::replace(&mut queue.round, self.round) != self.round {
            queue.deficit = 0;
        }
        at
    }
}

#[cfg(test)]
mod tests;
