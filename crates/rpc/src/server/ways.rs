//! What the workers of a server count together, and what their answers ask clients for (`tune/way.rs`): atomics only. A worker adds to
//! a count of its own for each call and loads a byte for each answer; who has looked at the clock anyway looks whether something is
//! to be changed, unless another is at it. Nobody waits and nothing is allocated.

use crate::tune::mode::FUNCTIONS;
use crate::tune::way::WayTuner;
use dunlin_fabric::Nanos;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Between two looks.
const LOOKS_APART: Nanos = 50_000;

/// Calls of each function that a worker has taken.
#[derive(Debug)]
#[repr(align(64))]
struct Calls([AtomicU64; FUNCTIONS]);

/// The ways of a server's functions. Those with equal remainders by 32 are one.
#[derive(Debug)]
pub(crate) struct Ways {
    workers: Box<[Calls]>,
    asked: [AtomicU8; FUNCTIONS],
    next_look: AtomicU64,
    tuner: Mutex<WayTuner>,
}

impl Ways {
    pub(crate) fn new(workers: u16) -> Self {
        let none = |_| Calls([const { AtomicU64::new(0) }; FUNCTIONS]);
        Ways {
            workers: (0..workers.max(1)).map(none).collect(),
            asked: [const { AtomicU8::new(0) }; FUNCTIONS],
            next_look: AtomicU64::new(0),
            tuner: Mutex::new(WayTuner::new()),
        }
    }

    /// A worker has taken a call whose result can go either way. Only that worker says so.
    #[inline]
    pub(crate) fn taken(&self, worker: u16, function: u16) {
        if let Some(calls) = self.workers.get(worker as usize) {
            let count = &calls.0[function as usize % FUNCTIONS];
            count.store(count.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        }
    }

    /// What an answer asks for, as a [`Way`](crate::tune::way::Way)'s number.
    #[inline]
    pub(crate) fn asked(&self, function: u16) -> u8 {
        self.asked[function as usize % FUNCTIONS].load(Ordering::Relaxed)
    }

    /// It is so late.
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
                asked.store(tuner.way(function).number(), Ordering::Relaxed);
            }
        }
    }
}
