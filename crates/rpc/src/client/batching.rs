//! When batches filled by [`push`](crate::Client::push_on) are sent without a flush (RF-RPC section 4.1): at
//! N calls or L bytes, after T has passed, or when no other call of the lane is in flight.

use crate::error::ConnectError;
use crate::path::call_id::split_call;
use crate::tune::batch::{Answered, BatchRule, BatchSize};
use dunlin_fabric::{Nanos, nanos};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// N of RF-RPC: the most calls of a batch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum BatchCalls {
    /// A fixed number of calls.
    Fixed(u16),
    /// The number of calls, from 1 to 128, that keeps the latency limit; tuned at run time (RF-RPC section
    /// 4.2). If no size keeps the limit, because too many calls are in flight, the size with the lowest
    /// latency is used.
    WithinLatency {
        /// The limit from the first call of a batch to its answer. [`Batching::default`] has 20 µs.
        limit: Duration,
        /// The share of calls that may exceed the limit, from 0 to 1. [`Batching::default`] has 0.05.
        tolerance: f64,
    },
}

/// When batches are sent without a flush. RF-RPC's pipelining threshold (section 4.1) is
/// [`ClientConfig::window`](crate::ClientConfig::window): it bounds the calls of all batches in flight
/// together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Batching {
    /// N: the most calls of a batch, at least 1. Default: as many as keep 95% of the calls within 20 µs.
    pub calls: BatchCalls,
    /// The rule by which N follows the latency, if it is tuned. Default: [`BatchRule::default`].
    pub rule: BatchRule,
    /// L: the most bytes of a batch, at least 1. A larger call is sent as a message of its own. Default:
    /// 2048.
    pub bytes: u32,
    /// T: the longest time that a batch stays open. Checked only periodically, while the client makes
    /// progress. Default: 5 ms.
    pub timeout: Duration,
}

impl Default for Batching {
    /// RF-RPC's L and T (section 4.1), and the number of calls that keeps 95% of them within 20 us.
    fn default() -> Self {
        Batching {
            calls: BatchCalls::WithinLatency { limit: Duration::from_micros(20), tolerance: 0.05 },
            rule: BatchRule::default(),
            bytes: 2048,
            timeout: Duration::from_millis(5),
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

    /// Creates the tuner of N for all lanes of a client; `None` if N is fixed.
    pub(crate) fn finds(&self) -> Option<Arc<BatchSize>> {
        match self.calls {
            BatchCalls::Fixed(_) => None,
            BatchCalls::WithinLatency { limit, tolerance } => {
                Some(Arc::new(BatchSize::new(nanos(limit), tolerance, self.rule)))
            }
        }
    }
}

/// A batch in flight.
#[derive(Clone, Copy, Debug)]
struct UnderWay {
    opened: Nanos,
    /// Calls without an answer so far.
    left: u16,
    answered: Answered,
}

/// The batching state of a lane.
#[derive(Debug)]
pub(crate) struct Batches {
    bytes: u32,
    timeout: Nanos,
    /// N if it is fixed.
    calls: u16,
    /// The tuner of N, shared by all lanes of the client.
    found: Option<Arc<BatchSize>>,
    /// When the open batch was opened, and its number.
    opened: Nanos,
    number: u64,
    /// The batches before it whose latency is still to be reported, in order.
    under_way: VecDeque<UnderWay>,
    /// For each slot, the batch number of its call; 0 for none.
    of: Box<[u64]>,
    /// A batch number and the number of its calls that were answered since the last sample.
    part: (u64, u16),
}

impl Batches {
    /// `found` is the shared tuner of N, if N is tuned.
    pub(crate) fn new(batching: &Batching, window: u16, found: Option<Arc<BatchSize>>) -> Self {
        let calls = match batching.calls {
            BatchCalls::Fixed(calls) => calls,
            BatchCalls::WithinLatency { .. } => 1,
        };
        Batches {
            bytes: batching.bytes,
            timeout: nanos(batching.timeout),
            calls,
            found,
            opened: 0,
            number: 1,
            under_way: VecDeque::with_capacity(window.into()),
            of: vec![0; window.into()].into(),
            part: (0, 0),
        }
    }

    /// Returns the current N.
    #[inline]
    pub(crate) fn calls(&self) -> u16 {
        self.found.as_ref().map_or(self.calls, |found| found.get())
    }

    /// Returns whether a call of this size is sent as a message of its own.
    #[inline]
    pub(crate) fn is_too_large(&self, bytes: usize) -> bool {
        bytes > self.bytes as usize
    }

    /// Records that a batch is opened for its first call. Its latency counts from here.
    #[inline]
    pub(crate) fn opened(&mut self, now: Nanos) {
        self.opened = now;
    }

    /// Records that a call was added to the open batch.
    #[inline]
    pub(crate) fn pushed(&mut self, call: u32) {
        if let Some(of) = self.of.get_mut(split_call(call).0) {
            *of = self.number;
        }
    }

    /// Returns whether a batch of this many calls and bytes is due to be sent.
    #[inline]
    pub(crate) fn is_full(&self, calls: u16, bytes: u64) -> bool {
        calls >= self.calls() || bytes >= u64::from(self.bytes)
    }

    /// Returns whether the open batch has exceeded T.
    pub(crate) fn is_late(&self, now: Nanos) -> bool {
        now >= self.due()
    }

    /// Returns the time at which the open batch exceeds T.
    pub(crate) fn due(&self) -> Nanos {
        self.opened.saturating_add(self.timeout)
    }

    /// Records that the open batch was sent.
    #[inline]
    pub(crate) fn sent(&mut self, calls: u16) {
        let Some(found) = &self.found else { return };
        // Answered batches stay queued behind one without an answer. At most a window of batches is kept.
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

    /// Records the answer of a call. Reads the clock only if the previous answer belonged to another batch.
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

    /// Takes the latency sample of the calls answered since the last one. Reads the clock once for each
    /// batch, or part of a batch.
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

    /// A call that is never answered delays no other batch and uses no memory.
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
        // The late answer belongs to a batch that is no longer known.
        batches.answered(call(0, 1), || 40);
        batches.look(|| 40);
        batches.answered(call(0, 1), || 50);
    }

    /// Lateness counts for each call: the calls of a later part of the answer can be late alone.
    #[test]
    fn parts_of_a_batch_count_when_they_come() {
        let batching = Batching {
            calls: BatchCalls::WithinLatency { limit: Duration::from_nanos(100), tolerance: 0.05 },
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
