//! When the batches that [`push`](crate::Client::push_on) fills go out by themselves (RF-RPC section 4.1): when they have N calls or L
//! bytes, when they have stood open for T, and when nothing else is under way that could be waited for.

use crate::tune::batch::BatchTuner;
use dunlin_fabric::Nanos;
use std::collections::VecDeque;

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

/// When batches go out by themselves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Batching {
    /// N: calls of a batch.
    pub calls: BatchCalls,
    /// L: bytes of a batch. A call of more goes by itself.
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

/// A batch that was sent and not answered.
#[derive(Clone, Copy, Debug)]
struct UnderWay {
    /// Its first call.
    call: u32,
    opened: Nanos,
    calls: u16,
}

/// The batches of a lane.
#[derive(Debug)]
pub(crate) struct Batches {
    bytes: u32,
    timeout: Nanos,
    /// N while it is fixed.
    calls: u16,
    tuner: Option<BatchTuner>,
    /// The open batch: its first call, and since when.
    first: u32,
    opened: Nanos,
    /// Those whose latency will be told to the tuner; never more than calls of the window.
    under_way: VecDeque<UnderWay>,
}

impl Batches {
    pub(crate) fn new(batching: &Batching, window: u16) -> Self {
        let (calls, tuner) = match batching.calls {
            BatchCalls::Fixed(calls) => (calls.max(1), None),
            BatchCalls::WithinLatency { limit, tolerance } => (1, Some(BatchTuner::new(limit, tolerance))),
        };
        Batches {
            bytes: batching.bytes,
            timeout: batching.timeout,
            calls,
            tuner,
            first: 0,
            opened: 0,
            under_way: VecDeque::with_capacity(window.into()),
        }
    }

    /// N as it is now.
    #[inline]
    pub(crate) fn calls(&self) -> u16 {
        self.tuner.as_ref().map_or(self.calls, BatchTuner::size)
    }

    /// Whether a call of so many bytes goes by itself.
    #[inline]
    pub(crate) fn is_too_large(&self, bytes: usize) -> bool {
        bytes > self.bytes as usize
    }

    /// A batch was opened with this call.
    #[inline]
    pub(crate) fn open(&mut self, call: u32, now: Nanos) {
        (self.first, self.opened) = (call, now);
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
        if self.tuner.is_some() && self.under_way.len() < self.under_way.capacity() {
            self.under_way.push_back(UnderWay { call: self.first, opened: self.opened, calls });
        }
    }

    /// A call was answered. The clock is looked at once for each batch.
    #[inline]
    pub(crate) fn answered(&mut self, call: u32, now: impl FnOnce() -> Nanos) {
        let Some(tuner) = &mut self.tuner else { return };
        let Some(at) = self.under_way.iter().position(|batch| batch.call == call) else { return };
        if let Some(batch) = self.under_way.remove(at) {
            tuner.answered(batch.opened, now(), batch.calls);
        }
    }
}
