//! When the batches that [`push`](crate::Client::push_on) fills go out by themselves (RF-RPC section 4.1): when they have N calls or L
//! bytes, when they have stood open for T, and when nothing else is under way that could be waited for.

use crate::error::ConnectError;
use crate::path::call_id::split_call;
use crate::tune::batch::{Answered, BatchSize};
use dunlin_fabric::Nanos;
use std::collections::VecDeque;
use std::sync::Arc;

/// How many calls a batch has at most: RF-RPC's N.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum BatchCalls {
    /// So many.
    Fixed(u16),
    /// As many as the latency allows: from 1 to 128, found while calls are made (RF-RPC section 4.2). A limit that many calls in flight
    /// exceed by their number alone is kept by no size: then it is the size with which they are earliest.
    WithinLatency {
        /// From the first call of a batch until it is answered, in nanoseconds.
        limit: Nanos,
        /// The share of calls that may take longer, from 0 to 1.
        tolerance: f64,
    },
}

/// When batches go out by themselves. RF-RPC's threshold of pipelining (section 4.1) is [`ClientConfig::window`](crate::ClientConfig::window):
/// as many batches are under way as have so many calls together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Batching {
    /// N: calls of a batch, at least 1.
    pub calls: BatchCalls,
    /// L: bytes of a batch, at least 1. A call of more goes by itself.
    pub bytes: u32,
    /// T: how long a batch may stand open, in nanoseconds. It is looked at while the client makes progress, now and then.
    pub timeout: Nanos,
}

impl Default for Batching {
    /// RF-RPC's L and T (section 4.1), and as many calls as keep 95% of them within 20 us.
    fn default() -> Self {
        Batching {
            calls: BatchCalls::WithinLatency { limit: 20_000, tolerance: 0.05 },
            bytes: 2048,
            timeout: 5_000_000,
        }
    }
}

impl Batching {
    pub(crate) fn check(&self) -> Result<(), ConnectError> {
        let out = |what, must| Err(ConnectError::Setting { what, value: 0, must });
        match self.calls {
            BatchCalls::Fixed(0) => return out("batching.calls", "1 call or more"),
            BatchCalls::WithinLatency { tolerance, .. } if !(0.0..=1.0).contains(&tolerance) => {
                return Err(ConnectError::Share {
                    what: "the tolerance of batching.calls",
                    value: tolerance,
                });
            }
            BatchCalls::Fixed(_) | BatchCalls::WithinLatency { .. } => {}
        }
        if self.bytes == 0 {
            return out("batching.bytes", "1 byte or more");
        }
        Ok(())
    }

    /// What finds N for all lanes of a client; none if it is fixed.
    pub(crate) fn finds(&self) -> Option<Arc<BatchSize>> {
        match self.calls {
            BatchCalls::Fixed(_) => None,
            BatchCalls::WithinLatency { limit, tolerance } => {
                Some(Arc::new(BatchSize::new(limit, tolerance)))
            }
        }
    }
}

/// A batch that was sent and not answered.
#[derive(Clone, Copy, Debug)]
struct UnderWay {
    opened: Nanos,
    /// Calls that are not answered yet.
    left: u16,
    answered: Answered,
}

/// The batches of a lane.
#[derive(Debug)]
pub(crate) struct Batches {
    bytes: u32,
    timeout: Nanos,
    /// N while it is fixed.
    calls: u16,
    /// N while it is found, by all lanes of the client together.
    found: Option<Arc<BatchSize>>,
    /// Since when the open batch is, and its number.
    opened: Nanos,
    number: u64,
    /// Those before it, as far as their latency will be told.
    under_way: VecDeque<UnderWay>,
    /// By slot, the number of the batch of the call there, 0 if it has none.
    of: Box<[u64]>,
    /// Calls of a batch that were answered and not looked at yet: its number, and how many.
    part: (u64, u16),
}

impl Batches {
    /// `found` is where N is found for all lanes of a client, if it is.
    pub(crate) fn new(batching: &Batching, window: u16, found: Option<Arc<BatchSize>>) -> Self {
        let calls = match batching.calls {
            BatchCalls::Fixed(calls) => calls,
            BatchCalls::WithinLatency { .. } => 1,
        };
        Batches {
            bytes: batching.bytes,
            timeout: batching.timeout,
            calls,
            found,
            opened: 0,
            number: 1,
            under_way: VecDeque::with_capacity(window.into()),
            of: vec![0; window.into()].into(),
            part: (0, 0),
        }
    }

    /// N as it is now.
    #[inline]
    pub(crate) fn calls(&self) -> u16 {
        self.found.as_ref().map_or(self.calls, |found| found.get())
    }

    /// Whether a call of so many bytes goes by itself.
    #[inline]
    pub(crate) fn is_too_large(&self, bytes: usize) -> bool {
        bytes > self.bytes as usize
    }

    /// A batch is opened: its first call is about to be put into it. Latency counts from here.
    #[inline]
    pub(crate) fn opened(&mut self, now: Nanos) {
        self.opened = now;
    }

    /// A call was put into the open batch.
    #[inline]
    pub(crate) fn pushed(&mut self, call: u32) {
        if let Some(of) = self.of.get_mut(split_call(call).0) {
            *of = self.number;
        }
    }

    /// Whether a batch of so many calls and bytes goes out.
    #[inline]
    pub(crate) fn is_full(&self, calls: u16, bytes: u64) -> bool {
        calls >= self.calls() || bytes >= u64::from(self.bytes)
    }

    /// Whether the open batch has stood open for too long.
    pub(crate) fn is_late(&self, now: Nanos) -> bool {
        now >= self.due()
    }

    /// Until when the open batch may stand open.
    pub(crate) fn due(&self) -> Nanos {
        self.opened.saturating_add(self.timeout)
    }

    /// The open batch was sent.
    #[inline]
    pub(crate) fn sent(&mut self, calls: u16) {
        let Some(found) = &self.found else { return };
        // Behind one that is not answered others are kept that were, but no more than a window of them.
        if self.under_way.len() >= self.of.len()
            && let Some(oldest) = self.under_way.pop_front()
            && oldest.left > 0
        {
            found.lost(1);
        }
        found.sent();
        let answered = Answered { calls, ..Answered::default() };
        self.under_way.push_back(UnderWay { opened: self.opened, left: calls, answered });
        self.number += 1;
    }

    /// A call was answered. The clock is looked at only if the call before was of another batch.
    #[inline]
    pub(crate) fn answered(&mut self, call: u32, now: impl FnOnce() -> Nanos) {
        let Some(of) = self.of.get_mut(split_call(call).0) else { return };
        let number = std::mem::take(of);
        if number == 0 {
            return;
        }
        if number != self.part.0 {
            self.look(now);
            self.part.0 = number;
        }
        self.part.1 += 1;
    }

    /// What has arrived was taken: calls that it answered were answered now. The clock is looked at once for each batch, or part of one.
    #[inline]
    pub(crate) fn look(&mut self, now: impl FnOnce() -> Nanos) {
        let (number, calls) = std::mem::take(&mut self.part);
        let (Some(found), true) = (&self.found, calls > 0) else { return };
        let first = self.number - self.under_way.len() as u64;
        let Some(batch) = number.checked_sub(first).and_then(|at| self.under_way.get_mut(at as usize)) else {
            return;
        };
        let now = now();
        let latency = now.saturating_sub(batch.opened);
        batch.answered.taken = batch.answered.taken.saturating_add(latency.saturating_mul(calls.into()));
        batch.answered.late += if latency > found.limit() { calls } else { 0 };
        batch.left = batch.left.saturating_sub(calls);
        if batch.left == 0 {
            found.answered(batch.opened, now, batch.answered);
        }
        while self.under_way.front().is_some_and(|batch| batch.left == 0) {
            self.under_way.pop_front();
        }
    }
}

impl Drop for Batches {
    fn drop(&mut self) {
        if let Some(found) = &self.found {
            found.lost(self.under_way.iter().filter(|batch| batch.left > 0).count());
        }
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods)]
mod tests {
    use super::*;
    use crate::path::call_id::SLOT_BITS;

    const fn call(slot: u32, generation: u32) -> u32 {
        generation << SLOT_BITS | slot
    }

    /// A call that is never answered holds up nothing and takes no memory.
    #[test]
    fn one_batch_that_is_not_answered_costs_nothing() {
        let batching = Batching::default();
        let found = batching.finds().unwrap();
        let mut batches = Batches::new(&batching, 4, Some(Arc::clone(&found)));
        batches.opened(5);
        batches.pushed(call(0, 1));
        batches.sent(1);
        let capacity = batches.under_way.capacity();
        for round in 1..500u32 {
            batches.opened(10);
            [1, 2].into_iter().for_each(|slot| batches.pushed(call(slot, round)));
            batches.sent(2);
            batches.answered(call(1, round), || unreachable!("nothing came before"));
            batches.look(|| 20);
            assert!(batches.under_way.len() <= 4);
            batches.answered(call(2, round), || unreachable!("what came before was looked at"));
            batches.look(|| 30);
        }
        assert_eq!(batches.under_way.capacity(), capacity);
        assert!(found.get() > 1, "{}", found.get());
        // What comes at last is of no batch that is known.
        batches.answered(call(0, 1), || 40);
        batches.look(|| 40);
        batches.answered(call(0, 1), || 50);
    }

    /// Calls are late one by one: those that come in a later part of the answer.
    #[test]
    fn parts_of_a_batch_count_when_they_come() {
        let batching = Batching {
            calls: BatchCalls::WithinLatency { limit: 100, tolerance: 0.05 },
            ..Batching::default()
        };
        let mut batches = Batches::new(&batching, 8, batching.finds());
        batches.opened(1000);
        (0..4).for_each(|slot| batches.pushed(call(slot, 1)));
        batches.sent(4);
        (0..3).for_each(|slot| batches.answered(call(slot, 1), || 0));
        batches.look(|| 1050);
        let kept = batches.under_way[0];
        assert_eq!((kept.left, kept.answered.late, kept.answered.taken), (1, 0, 150));
        batches.answered(call(3, 1), || 0);
        batches.look(|| 1200);
        assert!(batches.under_way.is_empty());
    }
}
