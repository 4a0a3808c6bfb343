//! Call counts of a server's workers, and the answer path that the server asks clients for (`tune/response_mode.rs`).
//!
//! All hot-path state is atomic. A worker increments its own count for each call and loads a byte for each
//! answer. A worker that reads the clock anyway runs the tuner when it is due, unless another worker runs it.
//! Nothing blocks and nothing allocates.

use super::mode::FUNCTIONS;
use super::response_mode::ResponseModeTuner;
use dunlin_fabric::Nanos;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Time between two runs of the tuner, in nanoseconds.
const LOOKS_APART: Nanos = 50_000;

/// Calls that a worker has taken, by function.
#[derive(Debug)]
#[repr(align(64))]
struct Calls([AtomicU64; FUNCTIONS]);

/// The answer paths of a server's functions. Functions with equal ids modulo 32 share one.
#[derive(Debug)]
pub(crate) struct ResponseModes {
    workers: Box<[Calls]>,
    asked: [AtomicU8; FUNCTIONS],
    next_look: AtomicU64,
    tuner: Mutex<ResponseModeTuner>,
}

impl ResponseModes {
    pub(crate) fn new(workers: u16) -> Self {
        let none = |_| Calls([const { AtomicU64::new(0) }; FUNCTIONS]);
        ResponseModes {
            workers: (0..workers.max(1)).map(none).collect(),
            asked: [const { AtomicU8::new(0) }; FUNCTIONS],
            next_look: AtomicU64::new(0),
            tuner: Mutex::new(ResponseModeTuner::new()),
        }
    }

    /// Counts a call that a worker has taken whose result can take either path. Only that worker's thread
    /// calls it for `worker`.
    #[inline]
    pub(crate) fn taken(&self, worker: u16, function: u16) {
        if let Some(calls) = self.workers.get(worker as usize) {
            let count = &calls.0[function as usize % FUNCTIONS];
            count.store(count.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        }
    }

    /// Returns the path that an answer asks for, as a [`ResponseMode`](crate::tune::response_mode::ResponseMode)'s number.
    #[inline]
    pub(crate) fn asked(&self, function: u16) -> u8 {
        self.asked[function as usize % FUNCTIONS].load(Ordering::Relaxed)
    }

    /// Runs the tuner if it is due at `now`.
    #[inline]
    pub(crate) fn look(&self, now: Nanos) {
        if now >= self.next_look.load(Ordering::Relaxed) {
            self.look_closely(now);
        }
    }

    #[cold]
    fn look_closely(&self, now: Nanos) {
        let Ok(mut tuner) = self.tuner.try_lock() else { return };
        self.next_look.store(now.saturating_add(LOOKS_APART), Ordering::Relaxed);
        let mut calls = [0u64; FUNCTIONS];
        for worker in &self.workers {
            for (sum, count) in calls.iter_mut().zip(&worker.0) {
                *sum = sum.wrapping_add(count.load(Ordering::Relaxed));
            }
        }
        if tuner.look(now, &calls) {
            for (function, asked) in self.asked.iter().enumerate() {
                asked.store(tuner.mode(function).number(), Ordering::Relaxed);
            }
        }
    }
}
