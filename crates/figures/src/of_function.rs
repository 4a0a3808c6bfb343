//! The results of the single functions of a load.

use dunlin_scenario::load::LoadOutcome;

/// Most functions of a load that are reported separately.
pub(super) const MOST_FUNCTIONS: usize = 4;

/// The result of one function's calls.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct OfFunction {
    /// Calls per second, in millions.
    pub mops: f64,
    /// Mean latency, in microseconds.
    pub mean_us: f64,
    /// Latency quantile at 99%, in microseconds.
    pub p99_us: f64,
}

impl OfFunction {
    /// Returns the results of the first functions of a load.
    pub(super) fn all(outcome: &LoadOutcome) -> [OfFunction; MOST_FUNCTIONS] {
        std::array::from_fn(|place| {
            outcome.functions.get(place).map_or_else(OfFunction::default, |function| OfFunction {
                mops: outcome.rate(function) / 1e6,
                mean_us: function.mean_ns / 1e3,
                p99_us: function.p99_ns as f64 / 1e3,
            })
        })
    }
}
