//! The queue of everything that will happen, ordered by (time, number); numbers are given out in the order of
//! scheduling, so the order is a pure function of the seed.

use dunlin_fabric::Nanos;

/// What can happen. Small, so that the heap moves little; what is larger stands in slabs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// A task runs on.
    Run { task: u32 },
    /// A wait has ended.
    Wake { task: u32, stay: u64 },
    /// The time of a task's wait may be over.
    Timer { task: u32 },
    /// A task has had its core long enough, if it still has it.
    Quantum { machine: u32, core: u32 },
    /// A packet reaches its target.
    Arrive { packet: u32 },
    /// A target looks at its inbound packets again.
    Serve { queue_pair: u32 },
    /// A packet's bytes become visible.
    Land { packet: u32 },
    /// The successful end of a work request is known to its initiator.
    Done { queue_pair: u32, serial: u64 },
    /// The good answer to a request is at its initiator's NIC.
    Acknowledged { queue_pair: u32, serial: u64 },
    /// Something rarer, in the network's slab of such.
    Rare { index: u32 },
}

impl Event {
    /// Whether it happens in the network, and not to a task.
    pub(crate) fn is_network(self) -> bool {
        !matches!(self, Event::Run { .. } | Event::Wake { .. } | Event::Timer { .. } | Event::Quantum { .. })
    }
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// Time, and below it the number: one comparison without a branch.
    key: u128,
    event: Event,
}

impl Entry {
    #[inline(always)]
    fn at(&self) -> Nanos {
        (self.key >> 64) as Nanos
    }
}

/// A heap with four children a node: half as deep as a binary one, and a node's children share cache lines.
#[derive(Debug, Default)]
pub(crate) struct Events {
    heap: Vec<Entry>,
    number: u64,
}

impl Events {
    /// The time of the next event, and the event.
    #[inline(always)]
    pub(crate) fn peek(&self) -> Option<(Nanos, Event)> {
        self.heap.first().map(|entry| (entry.at(), entry.event))
    }

    /// Adds an event.
    #[inline]
    pub(crate) fn push(&mut self, at: Nanos, event: Event) {
        self.number += 1;
        let entry = Entry { key: u128::from(at) << 64 | u128::from(self.number), event };
        let mut place = self.heap.len();
        self.heap.push(entry);
        while place > 0 {
            let parent = (place - 1) / 4;
            if entry.key >= self.heap[parent].key {
                break;
            }
            self.heap[place] = self.heap[parent];
            place = parent;
        }
        self.heap[place] = entry;
    }

    /// Takes the next event.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<(Nanos, Event)> {
        let last = self.heap.pop()?;
        let Some(first) = self.heap.first().copied() else { return Some((last.at(), last.event)) };
        let heap = self.heap.as_mut_slice();
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
        Some((first.at(), first.event))
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
        for number in 0..5000u32 {
            let at = random.below(700);
            events.push(at, Event::Run { task: number });
            expected.push((at, number));
            if number % 3 == 0 {
                expected.sort_unstable();
                let (at, task) = expected.remove(0);
                assert_eq!(events.pop(), Some((at, Event::Run { task })));
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
