//! Latency histograms, medians over slices, ratios.

use hdrhistogram::Histogram;

/// Highest recorded latency, ns: 1 000 s. Higher values are clamped to it.
const HIGHEST_NS: u64 = 1_000_000_000_000;

/// Latencies in nanoseconds, with three significant digits, in an HDR histogram.
///
/// Recording allocates only when a value is the largest so far.
#[derive(Clone, Debug)]
pub struct Latency {
    histogram: Histogram<u64>,
}

impl Latency {
    /// Creates an empty histogram.
    #[must_use]
    pub fn new() -> Self {
        let mut histogram = Histogram::new_with_bounds(1, 4_096, 3).expect("constant bounds are valid");
        histogram.auto(true);
        Self { histogram }
    }

    /// Records one latency in ns, rounded and clamped to the range from 1 ns to 1 000 s.
    pub fn record_ns(&mut self, nanoseconds: f64) {
        // A float-to-integer cast saturates. NaN becomes 0, and then 1.
        self.record((nanoseconds + 0.5) as u64);
    }

    /// Records one latency in whole nanoseconds, clamped to the same range.
    pub fn record(&mut self, nanoseconds: u64) {
        self.histogram
            .record(nanoseconds.clamp(1, HIGHEST_NS))
            .expect("an auto-resizing histogram takes every value up to 1 000 s");
    }

    /// Adds all samples of `other`.
    pub fn merge(&mut self, other: &Self) {
        self.histogram.add(&other.histogram).expect("an auto-resizing histogram takes another one's values");
    }

    /// Records `count` latencies of the same value in ns, clamped to the same range. For histograms from
    /// another process.
    pub fn record_many(&mut self, nanoseconds: u64, count: u64) {
        self.histogram
            .record_n(nanoseconds.clamp(1, HIGHEST_NS), count)
            .expect("an auto-resizing histogram takes every value up to 1 000 s");
    }

    /// Iterates over the recorded values in ns, at the histogram's resolution, with their counts.
    pub fn recorded(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.histogram.iter_recorded().map(|step| (step.value_iterated_to(), step.count_at_value()))
    }

    /// Returns the number of samples.
    #[must_use]
    pub fn samples(&self) -> u64 {
        self.histogram.len()
    }

    /// Returns the median in ns. Like all statistics here, 0 without samples.
    #[must_use]
    pub fn p50_ns(&self) -> f64 {
        self.quantile_ns(0.5)
    }

    /// Returns the 99th percentile in ns.
    #[must_use]
    pub fn p99_ns(&self) -> f64 {
        self.quantile_ns(0.99)
    }

    /// Returns the 99.9th percentile in ns.
    #[must_use]
    pub fn p999_ns(&self) -> f64 {
        self.quantile_ns(0.999)
    }

    /// Returns the mean of the middle half of the samples in ns. It is as robust against tails as the
    /// median, and finer than the resolution of the clock, which may be 10 ns.
    #[must_use]
    pub fn middle_mean_ns(&self) -> f64 {
        let samples = self.samples() as f64;
        let (from, to) = (samples / 4.0, samples * 3.0 / 4.0);
        let (mut before, mut sum) = (0.0, 0.0);
        for (value, count) in self.recorded() {
            let after = before + count as f64;
            let inside = after.min(to) - before.max(from);
            if inside > 0.0 {
                sum += inside * value as f64;
            }
            before = after;
        }
        if to > from { sum / (to - from) } else { 0.0 }
    }

    /// Returns the largest sample in ns.
    #[must_use]
    pub fn max_ns(&self) -> f64 {
        self.histogram.max() as f64
    }

    /// Returns the mean in ns.
    #[must_use]
    pub fn mean_ns(&self) -> f64 {
        self.histogram.mean()
    }

    /// Returns the value in ns below which a fraction `quantile` (0 to 1) of the samples lies.
    #[must_use]
    pub fn quantile_ns(&self, quantile: f64) -> f64 {
        if self.histogram.is_empty() {
            return 0.0;
        }
        self.histogram.value_at_quantile(quantile).min(self.histogram.max()) as f64
    }
}

impl Default for Latency {
    fn default() -> Self {
        Self::new()
    }
}

/// Returns the median, or `None` without values. With an even count, the mean of the middle two. NaNs sort
/// last.
#[must_use]
pub fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        length if length % 2 == 1 => Some(values[middle]),
        _ => Some((values[middle - 1] + values[middle]) / 2.0),
    }
}

/// Returns the `quantile` (0 to 1) of `sorted` values by the nearest-rank method, or `None` without values.
#[must_use]
pub fn quantile(sorted: &[f64], quantile: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    sorted.get((last as f64 * quantile).round() as usize).copied()
}

/// Returns `value / base`, or `None` if `base` is 0 or either number is not finite.
#[must_use]
pub fn ratio(value: f64, base: f64) -> Option<f64> {
    let ratio = value / base;
    ratio.is_finite().then_some(ratio)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_histogram_travels_as_values_and_counts() {
        let (mut one, mut two) = (Latency::new(), Latency::new());
        (1..=10_000u64).for_each(|value| one.record(value * value));
        one.recorded().for_each(|(value, count)| two.record_many(value, count));
        for quantile in [0.0, 0.5, 0.99, 0.999, 1.0] {
            let (before, after) = (one.quantile_ns(quantile), two.quantile_ns(quantile));
            assert!((before - after).abs() <= before * 1e-3, "{quantile}: {before} {after}");
        }
        assert_eq!(one.samples(), two.samples());
    }

    #[test]
    fn quantiles_of_a_known_series() {
        let mut latency = Latency::new();
        (1..=1000).for_each(|value| latency.record(value));
        assert_eq!(latency.samples(), 1000);
        assert_eq!(latency.p50_ns(), 500.0);
        assert_eq!(latency.p99_ns(), 990.0);
        assert_eq!(latency.p999_ns(), 999.0);
        assert_eq!(latency.max_ns(), 1000.0);
        assert!((latency.mean_ns() - 500.5).abs() < 1e-9);
    }

    #[test]
    fn the_middle_half_is_what_counts() {
        let mut latency = Latency::new();
        assert_eq!(latency.middle_mean_ns(), 0.0);
        [(10, 25), (20, 30), (30, 20), (1_000_000, 25)]
            .into_iter()
            .for_each(|(value, count)| latency.record_many(value, count));
        assert!((latency.middle_mean_ns() - (30.0 * 20.0 + 20.0 * 30.0) / 50.0).abs() < 1e-9);
        assert_eq!(quantile(&[1.0, 2.0, 3.0, 4.0, 5.0], 0.25), Some(2.0));
        assert_eq!((quantile(&[], 0.5), quantile(&[7.0], 0.75)), (None, Some(7.0)));
    }

    #[test]
    fn three_digits_hold_at_any_size() {
        for value in [1u64, 119, 20_600, 1_234_567, 9_876_543_210] {
            let mut latency = Latency::new();
            latency.record(value);
            let error = (latency.p50_ns() - value as f64).abs() / value as f64;
            assert!(error < 0.001, "{value}: {error}");
        }
    }

    #[test]
    fn odd_values_are_bounded() {
        let mut latency = Latency::new();
        for value in [0.0, -5.0, f64::NAN, f64::INFINITY] {
            latency.record_ns(value);
        }
        assert_eq!(latency.samples(), 4);
        assert_eq!(latency.quantile_ns(0.0), 1.0);
        assert!(latency.max_ns() >= HIGHEST_NS as f64 * 0.999);
    }

    #[test]
    fn empty_is_zero() {
        let latency = Latency::new();
        assert_eq!((latency.p50_ns(), latency.max_ns(), latency.samples()), (0.0, 0.0, 0));
    }

    #[test]
    fn merging_is_recording_both() {
        let (mut one, mut two, mut both) = (Latency::new(), Latency::new(), Latency::new());
        for value in 1..500u64 {
            one.record(value);
            two.record(value * 1000);
            both.record(value);
            both.record(value * 1000);
        }
        one.merge(&two);
        assert_eq!(one.samples(), both.samples());
        for quantile in [0.1, 0.5, 0.9, 0.99, 1.0] {
            assert_eq!(one.quantile_ns(quantile), both.quantile_ns(quantile));
        }
    }

    #[test]
    fn medians_and_ratios() {
        assert_eq!(median([]), None);
        assert_eq!(median([3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median([4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(ratio(3.0, 2.0), Some(1.5));
        assert_eq!(ratio(3.0, 0.0), None);
        assert_eq!(ratio(f64::NAN, 2.0), None);
    }
}
