//! Completion queues: a ring of ready completions, made once.

use crate::memory::ShmMemory;
use dunlin_fabric::{Completion, QueuePairId};
use std::collections::VecDeque;

/// A completion, and which send it frees the queue up to.
#[derive(Debug)]
pub(crate) struct Ready {
    /// What the user gets.
    pub(crate) completion: Completion<ShmMemory>,
    /// The number of the send that it completes; 0 for a RECV.
    pub(crate) sequence: u64,
}

/// One completion queue.
#[derive(Debug)]
pub(crate) struct CompletionQueue {
    ready: VecDeque<Ready>,
    depth: usize,
    /// Whether completions here end a sleep.
    pub(crate) events: bool,
    /// A completion was lost because the queue was full: verbs' IBV_EVENT_CQ_ERR.
    overflowed: bool,
    /// The slots of the queue pairs that feed it, each once.
    pub(crate) feeders: Vec<u16>,
    /// Whose turn it is to be first, as a place in `feeders`.
    pub(crate) first_feeder: usize,
    /// RECVs complete here.
    pub(crate) receives: bool,
    /// With hints: how many queue pairs the next poll looks at without having been told to.
    pub(crate) turns: usize,
    /// With hints: the next of them.
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

    /// How many more completions fit.
    #[inline]
    pub(crate) fn room(&self) -> usize {
        self.depth - self.ready.len()
    }

    /// How many completions wait.
    #[inline]
    pub(crate) fn ready(&self) -> usize {
        self.ready.len()
    }

    /// Whether a completion was lost.
    #[inline]
    pub(crate) fn has_overflowed(&self) -> bool {
        self.overflowed
    }

    /// Adds one; a full queue loses it and is broken from then on.
    #[inline]
    pub(crate) fn push(&mut self, ready: Ready) {
        if self.ready.len() < self.depth {
            self.ready.push_back(ready);
        } else {
            self.overflowed = true;
        }
    }

    /// The oldest.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<Ready> {
        let ready = self.ready.pop_front();
        if self.ready.is_empty() {
            // The next one goes where this one was, which is in the cache.
            self.ready.clear();
        }
        ready
    }

    /// Forgets what a destroyed queue pair left.
    pub(crate) fn forget(&mut self, queue_pair: QueuePairId, slot: u16) {
        self.feeders.retain(|s| *s != slot);
        self.first_feeder = 0;
        self.ready.retain(|r| r.completion.queue_pair != queue_pair);
    }
}
