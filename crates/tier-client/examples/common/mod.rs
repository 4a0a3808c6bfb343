//! The common parts of the measurements.

use std::error::Error;
use std::process::Child;
use std::time::Instant;

/// Operations of a measurement.
pub(crate) const ROUNDS: usize = 5000;

/// Prints the median of an operation, in microseconds.
pub(crate) fn time<E: Error + 'static>(what: &str, mut run: impl FnMut() -> Result<(), E>) -> Result<(), E> {
    let mut times = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        let begin = Instant::now();
        run()?;
        times.push(begin.elapsed());
    }
    times.sort();
    let (median, late) = (times[ROUNDS / 2], times[ROUNDS * 99 / 100]);
    println!("{what:<52} {:>9.2} us  p99 {:>9.2} us", median.as_secs_f64() * 1e6, late.as_secs_f64() * 1e6);
    Ok(())
}

/// A child that ends with this value.
pub(crate) struct Ended(pub(crate) Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
