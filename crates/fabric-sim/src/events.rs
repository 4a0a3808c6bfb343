//! The event queue, ordered by (time, number). Numbers follow the order of scheduling, so the order of events
//! is a pure function of the seed.

use crate::wheel::{SPAN, Wheel};
use dunlin_fabric::Nanos;

/// An event. Kept small to make heap moves cheap; larger data lives in slabs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// A task resumes.
    Run { task: u32 },
    /// A task's wait has ended.
    Wake { task: u32, stay: u64 },
    /// A task's timed wait may have expired.
    Timer { task: u32 },
    /// The task on a core may have used up its quantum.
    Quantum { machine: u32, core: u32 },
    /// A packet reaches its target.
    Arrive { packet: u32 },
    /// A queue pair processes its inbound packets again.
    Serve { queue_pair: u32 },
    /// A packet's bytes become visible.
    Land { packet: u32 },
    /// The initiator learns that a work request succeeded.
    Done { queue_pair: u32, serial: u64 },
    /// A plain acknowledgement reaches the initiator's NIC.
    Acknowledged { queue_pair: u32, serial: u64 },
    /// A less frequent event, stored in the network's slab of [`Rare`](crate::state::Rare) events.
    Rare { index: u32 },
}

/// An event as two words, so that loads have the width of the stores before them. A wider load would stall
/// until those stores have left the processor's store buffer.
#[derive(Clone, Copy, Debug)]
struct Code(u64, u64);

impl Code {
    #[inline(always)]
    fn of(event: Event) -> Self {
        let (kind, first, second) = match event {
            Event::Run { task } => (0, task, 0),
            Event::Wake { task, stay } => (1, task, stay),
            Event::Timer { task } => (2, task, 0),
            Event::Quantum { machine, core } => (3, machine, u64::from(core)),
            Event::Arrive { packet } => (4, packet, 0),
            Event::Serve { queue_pair } => (5, queue_pair, 0),
            Event::Land { packet } => (6, packet, 0),
            Event::Done { queue_pair, serial } => (7, queue_pair, serial),
            Event::Acknowledged { queue_pair, serial } => (8, queue_pair, serial),
            Event::Rare { index } => (9, index, 0),
        };
        Code(kind << 32 | u64::from(first), second)
    }

    /// Returns whether the event happens in the network rather than to a task.
    #[inline(always)]
    fn is_of_network(self) -> bool {
        self.0 >> 34 > 0
    }

    #[inline(always)]
    fn event(self) -> Event {
        let (first, second) = (self.0 as u32, self.1);
        match self.0 >> 32 {
            0 => Event::Run { task: first },
            1 => Event::Wake { task: first, stay: second },
            2 => Event::Timer { task: first },
            3 => Event::Quantum { machine: first, core: second as u32 },
            4 => Event::Arrive { packet: first },
            5 => Event::Serve { queue_pair: first },
            6 => Event::Land { packet: first },
            7 => Event::Done { queue_pair: first, serial: second },
            8 => Event::Acknowledged { queue_pair: first, serial: second },
            _ => Event::Rare { index: first },
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    key: Key,
    code: Code,
}

impl Entry {
    #[inline(always)]
    fn at(&self) -> Nanos {
        self.key.at()
    }
}

/// A four-ary heap: half as deep as a binary one, and the children of a node share cache lines.
#[derive(Debug, Default)]
struct Heap(Vec<Entry>);

impl Heap {
    #[inline(always)]
    fn first(&self) -> Option<&Entry> {
        self.0.first()
    }

    #[inline]
    fn push(&mut self, entry: Entry) {
        let heap = &mut self.0;
        let mut place = heap.len();
        heap.push(entry);
        while place > 0 {
            let parent = (place - 1) / 4;
            if entry.key >= heap[parent].key {
                break;
            }
            heap[place] = heap[parent];
            place = parent;
        }
        heap[place] = entry;
    }

    #[inline]
    fn pop(&mut self) -> Option<Entry> {
        let last = self.0.pop()?;
        let Some(first) = self.0.first().copied() else { return Some(last) };
        let heap = self.0.as_mut_slice();
        let mut place = 0;
        loop {
            let child = 4 * place + 1;
            let least = match heap.get(child..child + 4) {
                Some(four) => {
                    let left = usize::from(four[1].key < four[0].key);
                    let right = 2 + usize::from(four[3].key < four[2].key);
                    child + if four[right].key < four[left].key { right } else { left }
                }
                None if child < heap.len() => {
                    (child + 1..heap.len()).fold(child, |a, b| if heap[b].key < heap[a].key { b } else { a })
                }
                None => break,
            };
            if heap[least].key >= last.key {
                break;
            }
            heap[place] = heap[least];
            place = least;
        }
        heap[place] = last;
        Some(first)
    }
}

/// Popped events that may remain before `head`.
const GONE: usize = 64;

/// The next events, sorted.
#[derive(Debug, Default)]
struct Near {
    sorted: Vec<Entry>,
    /// Entries before this index have been popped.
    head: usize,
}

impl Near {
    #[inline(always)]
    fn first(&self) -> Option<&Entry> {
        self.sorted.get(self.head)
    }

    #[inline]
    fn push(&mut self, key: Key, code: Code) {
        // New events nearly always belong at or close to the end.
        match self.sorted.last() {
            Some(last) if last.key > key => self.insert(key, code),
            _ => self.sorted.push(Entry { key, code }),
        }
    }

    #[inline(never)]
    fn insert(&mut self, key: Key, code: Code) {
        let place = self.head + self.sorted[self.head..].partition_point(|entry| entry.key < key);
        self.sorted.insert(place, Entry { key, code });
    }

    #[inline]
    fn pop(&mut self) -> Option<Entry> {
        let entry = *self.sorted.get(self.head)?;
        self.head += 1;
        if self.head == self.sorted.len() {
            self.sorted.clear();
            self.head = 0;
        }
        Some(entry)
    }

    #[inline(always)]
    fn count(&self) -> usize {
        self.sorted.len() - self.head
    }

    /// Removes popped entries once [`GONE`] of them have accumulated.
    #[inline]
    fn forget_gone(&mut self) {
        if self.head >= GONE {
            self.sorted.drain(..self.head);
            self.head = 0;
        }
    }
}

/// The queue in three parts: the next events sorted, a wheel for the near future, and a heap for the rest
/// (mostly timers that never expire). An event leaves the wheel only when it is due, so the active part stays
/// in the first-level cache however many events exist.
#[derive(Debug, Default)]
pub(crate) struct Events {
    near: Near,
    /// Empty while `near` is empty.
    wheel: Wheel<Entry>,
    far: Heap,
    /// The wheel takes events from this time on; earlier ones go to `near`.
    near_end: u64,
    /// Number of events to keep sorted beyond the next one, if there are as many.
    in_order: usize,
    number: u64,
    /// Keys of the next event and of the first event in `far`, or [`NEVER`]. Most queries only compare the
    /// time of the next event and read nothing else.
    next: Key,
    next_far: Key,
}

/// Time, number and network flag from the highest to the lowest bits: one comparison without a branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key(u128);

/// Sorts after all events.
const NEVER: Key = Key(u128::MAX);

impl Default for Key {
    fn default() -> Self {
        NEVER
    }
}

impl Key {
    #[inline(always)]
    fn at(self) -> Nanos {
        (self.0 >> 64) as Nanos
    }

    #[inline(always)]
    fn is_of_network(self) -> bool {
        self.0 & 1 > 0
    }
}

impl Events {
    #[inline(always)]
    fn first(&self) -> Option<&Entry> {
        if self.next == self.next_far { self.far.first() } else { self.near.first() }
    }

    /// Recomputes the key of the next event.
    #[inline(always)]
    fn find_next(&mut self) {
        self.next = self.near.first().map_or(NEVER, |entry| entry.key).min(self.next_far);
    }

    /// Returns the next event and its time.
    #[inline(always)]
    pub(crate) fn peek(&self) -> Option<(Nanos, Event)> {
        self.first().map(|entry| (entry.at(), entry.code.event()))
    }

    /// Returns the time of the next event.
    #[inline(always)]
    pub(crate) fn next_at(&self) -> Option<Nanos> {
        (self.next != NEVER).then(|| self.next.at())
    }

    /// Returns the time of the next event; `Nanos::MAX` for an empty queue.
    #[inline(always)]
    pub(crate) fn next_time(&self) -> Nanos {
        self.next.at()
    }

    /// Returns whether the next event happens in the network. The queue must not be empty.
    #[inline(always)]
    pub(crate) fn next_is_of_network(&self) -> bool {
        self.next.is_of_network()
    }

    /// Sets the number of events that are kept sorted for [`ahead`](Events::ahead).
    pub(crate) fn keep_in_order(&mut self, events: usize) {
        self.in_order = events;
    }

    /// Returns the event `others` places behind the next one, as far as events are sorted already.
    #[inline(always)]
    pub(crate) fn ahead(&self, others: usize) -> Option<Event> {
        self.near.sorted.get(self.near.head + others).map(|entry| entry.code.event())
    }

    /// Adds an event.
    #[inline(always)]
    pub(crate) fn push(&mut self, at: Nanos, event: Event) {
        self.push_code(at, Code::of(event));
    }

    #[inline]
    fn push_code(&mut self, at: Nanos, code: Code) {
        // Steps of two: the lowest bit is the network flag.
        self.number += 2;
        // Passed as words; see [`Code`].
        let number = self.number | u64::from(code.is_of_network());
        let key = Key(u128::from(at) << 64 | u128::from(number));
        if at < self.near_end {
            self.near.push(key, code);
        } else if at - self.near_end >= SPAN {
            self.push_far(key, code);
        } else if self.near.first().is_none() {
            self.near_end = at + 1;
            self.wheel.pass(self.near_end, Entry::at);
            self.near.push(key, code);
        } else {
            // Belongs behind everything in `near`.
            return self.wheel.push(at, Entry { key, code });
        }
        self.next = self.next.min(key);
    }

    #[inline(never)]
    fn push_far(&mut self, key: Key, code: Code) {
        self.far.push(Entry { key, code });
        self.next_far = self.next_far.min(key);
    }

    /// Removes and returns the next event.
    #[inline(always)]
    pub(crate) fn pop(&mut self) -> Option<(Nanos, Event)> {
        if self.next == self.next_far {
            return self.pop_far();
        }
        let entry = self.near.pop()?;
        if self.near.count() <= self.in_order && !self.wheel.is_empty() {
            self.advance();
        }
        self.find_next();
        Some((entry.at(), entry.code.event()))
    }

    #[inline(never)]
    fn pop_far(&mut self) -> Option<(Nanos, Event)> {
        let entry = self.far.pop()?;
        self.next_far = self.far.first().map_or(NEVER, |entry| entry.key);
        self.find_next();
        if self.near.first().is_none() {
            // No event is due before this one, and none will be added before it.
            self.near_end = self.near_end.max(entry.at());
            self.wheel.pass(self.near_end, Entry::at);
        }
        Some((entry.at(), entry.code.event()))
    }

    /// Moves the next events from the wheel into `near` until enough are sorted.
    #[inline(never)]
    fn advance(&mut self) {
        self.near.forget_gone();
        while self.near.count() <= self.in_order
            && let Some(at) = self.wheel.pop_into(self.near_end, &mut self.near.sorted, Entry::at)
        {
            self.near_end = at + 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_in_the_order_of_time_and_then_of_scheduling() {
        let mut events = Events::default();
        let mut random = crate::random::Random::new(1, 1);
        let mut expected = Vec::new();
        let mut clock = 0;
        // Immediate, near, at the end of the wheel's range, and far beyond it.
        let spans = [1, 700, SPAN, 2 * SPAN, 1 << 40];
        for number in 0..20_000u32 {
            // The queue drains completely in every other phase.
            let fills = number % 4000 < 2000;
            events.keep_in_order(number as usize / 4000 * 3);
            if fills || number % 3 == 0 {
                let span = spans[random.below(spans.len() as u64) as usize];
                let at = clock + random.below(span);
                events.push(at, Event::Run { task: number });
                expected.push((at, number));
            }
            if !fills || number % 3 == 0 {
                let first = expected.iter().copied().enumerate().min_by_key(|(_, key)| *key);
                let next = first.map(|(place, (at, task))| {
                    expected.swap_remove(place);
                    clock = at;
                    (at, Event::Run { task })
                });
                assert_eq!(events.peek(), next);
                assert_eq!(events.next_at(), next.map(|(at, _)| at));
                assert_eq!(events.pop(), next);
            }
        }
        expected.sort_unstable();
        for (at, task) in expected {
            assert_eq!(events.peek(), Some((at, Event::Run { task })));
            assert_eq!(events.pop(), Some((at, Event::Run { task })));
        }
        assert_eq!(events.pop(), None);
    }
}
