//! Completion queues: rings of ready completions, allocated once.

use crate::memory::ShmMemory;
use dunlin_fabric::{Completion, QueuePairId};
use std::collections::VecDeque;

/// A completion, and the send request whose slots it frees.
#[derive(Debug)]
pub(crate) struct Ready {
    /// The completion that the user gets.
    pub(crate) completion: Completion<ShmMemory>,
    /// The number of the completed send request; 0 for a RECV.
    pub(crate) sequence: u64,
}

/// One completion queue.
#[derive(Debug)]
pub(crate) struct CompletionQueue {
    ready: VecDeque<Ready>,
    depth: usize,
    /// Whether a completion in this queue ends a sleep.
    pub(crate) events: bool,
    /// Whether a completion was lost because the queue was full (verbs: IBV_EVENT_CQ_ERR).
    overflowed: bool,
    /// The slots of the queue pairs that feed the queue, each once.
    pub(crate) feeders: Vec<u16>,
    /// The index in `feeders` at which the next poll starts.
    pub(crate) first_feeder: usize,
    /// Whether RECVs complete in this queue.
    pub(crate) receives: bool,
    /// With hints: the number of queue pairs that the next poll drives without a hint.
    pub(crate) turns: usize,
    /// With hints: the next of those queue pairs.
    pub(crate) next_in_turn: usize,
}

impl CompletionQueue {
    pub(crate) fn new(depth: u32, events: bool) -> Self {
        let depth = depth as usize;
        CompletionQueue {
            ready: VecDeque::with_capacity(depth),
            depth,
            events,
            overflowed: false,
            feeders: Vec::new(),
            first_feeder: 0,
            receives: false,
            turns: 0,
            next_in_turn: 0,
        }
    }

    /// Returns the number of completions that still fit.
    #[inline]
    pub(crate) fn room(&self) -> usize {
        self.depth - self.ready.len()
    }

    /// Returns the number of ready completions.
    #[inline]
    pub(crate) fn ready(&self) -> usize {
        self.ready.len()
    }

    #[inline]
    pub(crate) fn has_overflowed(&self) -> bool {
        self.overflowed
    }

    /// Adds a completion. A full queue loses it and is broken from then on.
    #[inline]
    pub(crate) fn push(&mut self, ready: Ready) {
        if self.ready.len() < self.depth {
            self.ready.push_back(ready);
        } else {
            self.overflowed = true;
        }
    }

    /// Removes the oldest completion.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<Ready> {
        let ready = self.ready.pop_front();
        if self.ready.is_empty() {
            // The next completion then reuses this slot, which is in the cache.
            self.ready.clear();
        }
        ready
    }

    /// Removes the completions of a destroyed queue pair.
    pub(crate) fn forget(&mut self, queue_pair: QueuePairId, slot: u16) {
        self.feeders.retain(|s| *s != slot);
        self.first_feeder = 0;
        self.ready.retain(|r| r.completion.queue_pair != queue_pair);
    }
}
