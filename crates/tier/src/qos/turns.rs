//! The order in which operations get paths.
//!
//! ```text
//!  enter ──> a path is free ────────────────────────────────────> granted ──> leave
//!    ├─────> near: few of the flow wait ──────────────────grant──────^
//!    └─────> asleep ──call──> near, on its way ──arrive──> near
//! ```
//!
//! A thread that sleeps needs microseconds to wake, about as long as an operation takes. So some waiters of each flow
//! are near: awake, or on their way. A path goes to one of those that are awake, and is not idle meanwhile.

use super::{Priority, RoundTrips};
use std::collections::VecDeque;

/// The weight of a principal counts this many times for operations of high priority. A factor and not strict order:
/// operations of low priority go on, with 1/17 of the bytes if both want all.
pub const HIGH_FACTOR: u32 = 16;
/// The bytes that a flow of weight 1 may have ahead of the others to use a path that would be idle otherwise: the cost
/// of an operation of 4 KiB.
pub const AHEAD: u64 = 8192;
/// The most that a flow of weight 1 may be ahead after a long operation, in bytes: it waits until the others have had
/// as much.
pub const MOST_AHEAD: u64 = 1 << 20;
/// Virtual time of a byte at weight 1: large, so that its division by a weight loses little.
const BYTE: u128 = 1 << 20;
/// Operations without others that are timed: the first ones, and then one in this many.
const FIRST_ALONE: u64 = 16;
const ONE_ALONE_IN: u64 = 1024;
/// Waiters that are near, for each path. A thread wakes in the time of two short operations, and one more waits while
/// it does: with two places, flows of short operations got 0.89 of their share beside long ones.
const NEAR: usize = 3;

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

#[derive(Clone, Copy, Debug)]
struct Waiter {
    number: u32,
    cost: u64,
    /// Awake, and not only called.
    is_awake: bool,
}

/// A flow with its waiters.
#[derive(Debug, Default)]
struct Queue {
    priority: Priority,
    /// The principal's weight, by the factor of the priority.
    weight: u32,
    /// The virtual time at which the next operation of the flow starts.
    start: u128,
    near: VecDeque<Waiter>,
    asleep: VecDeque<Waiter>,
}

impl Queue {
    fn is_empty(&self) -> bool {
        self.near.is_empty() && self.asleep.is_empty()
    }

    /// Returns the virtual time of a number of bytes.
    fn time(&self, bytes: u64) -> u128 {
        u128::from(bytes) * BYTE / u128::from(self.weight.max(1))
    }

    /// An operation starts at the virtual time `now`, or later if the flow is ahead.
    fn advance(&mut self, now: u128, cost: u64) {
        self.start = (self.start.max(now) + self.time(cost)).min(now + self.time(MOST_AHEAD));
    }
}

/// The outcome of [`Turns::enter`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// The operation has a path.
    Granted,
    /// It waits, and its thread stays awake.
    Near,
    /// It waits, and its thread sleeps until it is [called](Turns::call).
    Asleep,
}

/// The turns of operations at a number of paths: bytes by weight among flows, or order of arrival.
///
/// The order is that of start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996): the flow whose next operation
/// starts first in virtual time has the turn, and an operation takes its flow forward by its cost over the weight.
/// Deficit round robin has the same shares only for flows that always have waiters: a flow of few threads, which are
/// all under way at times, loses its turn then.
///
/// Every operation [enters](Turns::enter) and [leaves](Turns::leave). After each of the two, and after
/// [`arrive`](Turns::arrive) and [`forget`](Turns::forget), the owner asks [`grant`](Turns::grant) and
/// [`call`](Turns::call) until both have nothing more. Waiters are numbers that the owner chooses.
#[derive(Debug)]
pub struct Turns {
    by_weight: bool,
    paths: usize,
    free: usize,
    queues: Vec<Queue>,
    /// Queues with waiters.
    waiting_queues: Vec<usize>,
    /// The sum of their weights.
    weights: u64,
    /// By priority: operations that have a path, and that wait.
    active: [usize; 2],
    waiting: [usize; 2],
    /// Waiters that are not near.
    asleep: usize,
    /// Virtual time: the start of the last operation that was granted a path.
    now: u128,
    /// The most paths of low priority while there are operations of high priority.
    low_paths: usize,
    /// Round trips since they were longer than usual.
    calm: u32,
    trips: RoundTrips,
    /// Operations that were granted a path while no other one had any.
    alone: u64,
}

impl Turns {
    /// Makes the turns of `paths` free paths: by weight, or in order of arrival.
    pub fn new(paths: usize, by_weight: bool) -> Turns {
        Turns {
            by_weight,
            paths,
            free: paths,
            queues: Vec::new(),
            waiting_queues: Vec::new(),
            weights: 0,
            active: [0; 2],
            waiting: [0; 2],
            asleep: 0,
            now: 0,
            low_paths: paths,
            calm: 0,
            trips: RoundTrips::default(),
            alone: 0,
        }
    }

    /// An operation enters, with its [`cost`](super::cost). Unless it has a path at once, `waiter` waits. A path that
    /// is free is taken also if others are on their way to it: it would be idle until then. But a flow that is ahead
    /// of the others by more than [`AHEAD`] waits.
    pub fn enter(&mut self, flow: Flow, cost: u64, waiter: u32) -> Entry {
        if self.try_enter(flow, cost) {
            return Entry::Granted;
        }
        let (at, now) = (self.queue_of(flow), self.now);
        let priority = self.queues[at].priority;
        self.waiting[priority as usize] += 1;
        if self.queues[at].is_empty() {
            self.queues[at].start = self.queues[at].start.max(now);
            self.waiting_queues.push(at);
            self.weights += u64::from(self.queues[at].weight);
        }
        let is_awake = self.has_room(at) && self.queues[at].asleep.is_empty();
        let waiter = Waiter { number: waiter, cost, is_awake };
        if is_awake {
            self.queues[at].near.push_back(waiter);
            Entry::Near
        } else {
            self.queues[at].asleep.push_back(waiter);
            self.asleep += 1;
            Entry::Asleep
        }
    }

    /// As [`enter`](Turns::enter), for an operation that does not wait: returns whether it has a path. If not, it has not
    /// entered.
    pub fn try_enter(&mut self, flow: Flow, cost: u64) -> bool {
        let (at, now, has_waiters) = (self.queue_of(flow), self.now, self.has_waiters());
        let queue = &mut self.queues[at];
        let priority = queue.priority;
        let is_ahead = has_waiters && queue.start > now + queue.time(AHEAD);
        if self.free == 0 || is_ahead || self.is_held_back(priority) {
            return false;
        }
        self.free -= 1;
        self.active[priority as usize] += 1;
        if has_waiters {
            self.queues[at].advance(now, cost);
        }
        true
    }

    /// An operation that had a path ends.
    pub fn leave(&mut self, priority: Priority) {
        self.active[self.counted_as(priority) as usize] -= 1;
        self.free += 1;
    }

    /// A called waiter is awake.
    pub fn arrive(&mut self, flow: Flow, waiter: u32) {
        let at = self.queue_of(flow);
        if let Some(waiter) = self.queues[at].near.iter_mut().find(|one| one.number == waiter) {
            waiter.is_awake = true;
        }
    }

    /// Gives a free path to the waiter whose turn it is, of those that are awake. Returns the waiter.
    pub fn grant(&mut self) -> Option<u32> {
        if self.free == 0 {
            return None;
        }
        let may_go = |at: &usize| {
            let queue = &self.queues[*at];
            queue.near.iter().any(|one| one.is_awake) && !self.is_held_back(queue.priority)
        };
        // Of equal ones, high priority comes first.
        let first = |at: &usize| (self.queues[*at].start, Priority::High != self.queues[*at].priority);
        let at = self.waiting_queues.iter().copied().filter(may_go).min_by_key(first)?;
        let queue = &mut self.queues[at];
        let place = queue.near.iter().position(|one| one.is_awake)?;
        let Waiter { number, cost, .. } = queue.near.remove(place)?;
        self.now = self.now.max(queue.start);
        queue.advance(self.now, cost);
        let (priority, is_empty) = (queue.priority, queue.is_empty());
        self.free -= 1;
        self.waiting[priority as usize] -= 1;
        self.active[priority as usize] += 1;
        if is_empty {
            self.stop_waiting(at);
        }
        Some(number)
    }

    /// Returns the next waiter that has to wake up: it is near from now on.
    pub fn call(&mut self) -> Option<u32> {
        if self.asleep == 0 {
            return None;
        }
        let may_wake = |at: &usize| !self.queues[*at].asleep.is_empty() && self.has_room(*at);
        let first = |at: &usize| self.queues[*at].start;
        let at = self.waiting_queues.iter().copied().filter(may_wake).min_by_key(first)?;
        let queue = &mut self.queues[at];
        let waiter = queue.asleep.pop_front()?;
        queue.near.push_back(waiter);
        self.asleep -= 1;
        Some(waiter.number)
    }

    /// A waiter of a flow gives up. Returns `false` if a path was granted to it before.
    pub fn forget(&mut self, flow: Flow, waiter: u32) -> bool {
        let at = self.queue_of(flow);
        let queue = &mut self.queues[at];
        let (near, asleep) = (queue.near.len(), queue.asleep.len());
        queue.near.retain(|one| one.number != waiter);
        queue.asleep.retain(|one| one.number != waiter);
        let (near, asleep) = (near - queue.near.len(), asleep - queue.asleep.len());
        if near + asleep == 0 {
            return false;
        }
        let is_empty = queue.is_empty();
        self.asleep -= asleep;
        self.waiting[self.counted_as(flow.priority) as usize] -= 1;
        if is_empty {
            self.stop_waiting(at);
        }
        true
    }

    /// Returns whether the round trip of the operation that was granted a path last is of use: it is one of high
    /// priority, and there are others of low priority; or there are no others, so that it shows how short round trips
    /// can be. Most of the latter are not needed.
    pub fn wants_trip(&mut self, priority: Priority) -> bool {
        if !self.by_weight {
            return false;
        }
        let [low, high] = self.active;
        if low + high == 1 {
            self.alone += 1;
            return self.alone <= FIRST_ALONE || self.alone.is_multiple_of(ONE_ALONE_IN);
        }
        priority == Priority::High && low > 0
    }

    /// Notes that an operation of this priority and [`cost`](super::cost) took `time` nanoseconds, at the time `now`.
    /// While round trips of high priority [have risen](RoundTrips::have_risen), low priority loses a path with each of
    /// them, down to one. It gets one back with each [`HIGH_FACTOR`] that have not.
    pub fn note(&mut self, now: u64, priority: Priority, cost: u64, time: u64) {
        if priority == Priority::Low {
            self.trips.note_shortest(now, cost, time);
            return;
        }
        self.trips.note(now, cost, time);
        if self.trips.have_risen() {
            (self.low_paths, self.calm) = (self.low_paths.saturating_sub(1).max(1), 0);
        } else {
            self.calm = self.calm.wrapping_add(1);
            if self.calm.is_multiple_of(HIGH_FACTOR) {
                self.low_paths = (self.low_paths + 1).min(self.paths);
            }
        }
    }

    /// Returns whether operations wait.
    pub fn has_waiters(&self) -> bool {
        !self.waiting_queues.is_empty()
    }

    /// Low priority has fewer paths than there are and uses them, and there are operations of high priority.
    fn is_held_back(&self, priority: Priority) -> bool {
        let (low, high) = (Priority::Low as usize, Priority::High as usize);
        self.by_weight
            && priority == Priority::Low
            && self.active[low] >= self.low_paths
            && self.active[high] + self.waiting[high] > 0
    }

    /// Returns whether another waiter of a queue may be near: each queue with waiters has its share of the places, and
    /// one more, so that there is one at its turn.
    fn has_room(&self, at: usize) -> bool {
        let (queue, places) = (&self.queues[at], (NEAR * self.paths) as u64);
        let share = (places * u64::from(queue.weight)).div_ceil(self.weights.max(1));
        (queue.near.len() as u64) < places.min(share + 1)
    }

    /// A queue has no more waiters.
    fn stop_waiting(&mut self, at: usize) {
        self.waiting_queues.retain(|other| *other != at);
        self.weights -= u64::from(self.queues[at].weight);
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
        if queue.is_empty() {
            (queue.priority, queue.weight) = (priority, factor * u32::from(flow.weight.max(1)));
        }
        at
    }
}

#[cfg(test)]
mod tests;
