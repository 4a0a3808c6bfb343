//! Latencies of calls, recorded as they end.

use super::FunctionOutcome;
use dunlin_fabric::Nanos;
use std::sync::atomic::{AtomicU64, Ordering};

/// Percentages of the latency curve.
const PERCENTS: [f64; 22] = [
    1.0, 5.0, 10.0, 15.0, 20.0, 25.0, 30.0, 35.0, 40.0, 45.0, 50.0, 55.0, 60.0, 65.0, 70.0, 75.0, 80.0, 85.0,
    90.0, 95.0, 99.0, 99.9,
];

/// A histogram of latencies with 16 buckets per power of two.
///
/// One task runs at a time, so plain loads and stores of the shared counters lose nothing. A locked
/// instruction per call would serialise its cache misses.
pub(crate) struct Latencies {
    buckets: Vec<AtomicU64>,
    sum: AtomicU64,
    max: AtomicU64,
}

impl Latencies {
    pub(crate) fn new() -> Self {
        Latencies {
            buckets: (0..64 * 16).map(|_| AtomicU64::new(0)).collect(),
            sum: AtomicU64::new(0),
            max: AtomicU64::new(0),
        }
    }

    fn bucket(value: Nanos) -> usize {
        let power = 63 - (value | 16).leading_zeros() as usize;
        power * 16 + ((value >> (power - 4)) & 15) as usize
    }

    pub(crate) fn record(&self, value: Nanos) {
        let bucket = &self.buckets[Latencies::bucket(value)];
        bucket.store(bucket.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        self.sum.store(self.sum.load(Ordering::Relaxed) + value, Ordering::Relaxed);
        if value > self.max() {
            self.max.store(value, Ordering::Relaxed);
        }
    }

    fn max(&self) -> Nanos {
        self.max.load(Ordering::Relaxed)
    }

    /// Returns the number of recorded latencies.
    fn count(&self) -> u64 {
        self.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed)).sum()
    }

    fn quantile(&self, share: f64) -> Nanos {
        // Interpolates as if the latencies of a bucket were evenly spaced.
        let mut left = (self.count() as f64 * share) as u64;
        for (bucket, count) in self.buckets.iter().enumerate() {
            let count = count.load(Ordering::Relaxed);
            if count > left {
                let (power, step) = (bucket / 16, bucket % 16);
                let (start, width) =
                    ((16 + step as u64) << power.saturating_sub(4), 1 << power.saturating_sub(4));
                return (start + (width * left + width / 2) / count).min(self.max());
            }
            left -= count;
        }
        self.max()
    }

    /// Returns the latency curve: percent of calls and latency.
    pub(super) fn percentiles(&self) -> Vec<(f64, Nanos)> {
        PERCENTS.into_iter().map(|percent| (percent, self.quantile(percent / 100.0))).collect()
    }

    /// Adds the latencies of another histogram.
    pub(super) fn add(&self, other: &Latencies) {
        let add = |to: &AtomicU64, from: &AtomicU64| {
            to.store(to.load(Ordering::Relaxed) + from.load(Ordering::Relaxed), Ordering::Relaxed);
        };
        self.buckets.iter().zip(&other.buckets).for_each(|(to, from)| add(to, from));
        add(&self.sum, &other.sum);
        self.max.store(self.max().max(other.max()), Ordering::Relaxed);
    }

    /// Returns the summary.
    pub(crate) fn outcome(&self) -> FunctionOutcome {
        let calls = self.count();
        FunctionOutcome {
            calls,
            mean_ns: self.sum.load(Ordering::Relaxed) as f64 / calls.max(1) as f64,
            p15_ns: self.quantile(0.15),
            p50_ns: self.quantile(0.5),
            p95_ns: self.quantile(0.95),
            p99_ns: self.quantile(0.99),
            max_ns: self.max(),
        }
    }
}
