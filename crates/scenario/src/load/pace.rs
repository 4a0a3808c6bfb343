//! When clients make calls, and for how long.

use crate::random_values::Times;
use dunlin_fabric::Nanos;
use dunlin_rpc::{BatchRule, Batching};

/// When a client makes its next call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pace {
    /// A fixed number of calls in flight; each answer triggers the next call, after a think time.
    Closed {
        /// Calls in flight.
        window: u16,
        /// Time between an answer and the next call; used with a window of one only.
        think: Times,
    },
    /// Calls are made in groups, each in as few messages to one worker as possible; the last answer triggers the next.
    Batches {
        /// Calls per batch.
        size: u16,
    },
    /// As `Batches`, with the size that the engine tunes to a latency limit (RF-RPC section 4.2).
    TunedBatches {
        /// Latency limit, in nanoseconds.
        limit: Nanos,
        /// Share of calls that may exceed the limit.
        tolerance: f64,
        /// The rule by which the size follows the latency.
        rule: BatchRule,
    },
    /// A fixed number of calls in flight; each joins a batch that the engine flushes.
    Pushed {
        /// Calls in flight.
        window: u16,
        /// When batches are flushed.
        batching: Batching,
    },
    /// Separate calls, posted together; after the last answer and a think time, the next ones. The latency of each
    /// is that of its batch: from the first post to the last answer (ScaleRPC section 3.6.2).
    Posted {
        /// Calls per batch.
        size: u16,
        /// Time between the last answer and the next batch.
        think: Times,
        /// The think time of each client has this mean times a factor that is fixed for it: 1 plus a Gaussian number of
        /// this standard deviation, at least 0; 0 for equal clients.
        spread: f64,
    },
    /// One call at a time. Each is due a gap after the due time of the previous one, until which the thread sleeps; a call
    /// that is late begins with the answer to the previous one.
    Scheduled {
        /// Time between the due times of two calls.
        gaps: Times,
    },
    /// One call after each gap, regardless of calls in flight; latency counts from the due time of a call.
    Open {
        /// Time between calls.
        gaps: Times,
    },
}

/// How much of a load is played.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// This number of calls over all clients, in equal shares; all are measured.
    Calls(u64),
    /// Every client calls continuously; calls that end within `measured` after `warm_up` are measured. No
    /// client is idle while others finish their share.
    Time {
        /// Time from the start to the measurement, in nanoseconds.
        warm_up: Nanos,
        /// Measured time, in nanoseconds.
        measured: Nanos,
    },
}
