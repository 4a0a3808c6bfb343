//! A clock that is cheap enough to be read once per call.
//!
//! On x86-64 with a constant time-stamp counter, a reading is one `rdtsc` (about 10 ns in a virtual
//! machine, without a system call), scaled by a 20 ms calibration against `CLOCK_MONOTONIC`. Elsewhere it
//! is `clock_gettime(CLOCK_MONOTONIC)`, about 25 ns. `rdtsc` is not serialising: a reading may shift by a
//! few surrounding instructions, which is below the resolution of the floors. The bare C floors read the
//! counter the same way.

use rustix::time::{ClockId, clock_gettime};

/// A clock that reads ticks and converts tick differences to nanoseconds. Cheap to copy; usable from any
/// thread.
#[derive(Clone, Copy, Debug)]
pub struct TickClock {
    counter: bool,
    nanoseconds_per_tick: f64,
}

impl TickClock {
    /// Selects the source and calibrates it. Blocks for about 20 ms if the time-stamp counter is used.
    #[must_use]
    pub fn new() -> Self {
        if !has_constant_counter() {
            return Self { counter: false, nanoseconds_per_tick: 1.0 };
        }
        let (first_time, first_ticks) = (monotonic_ns(), counter());
        while monotonic_ns() - first_time < 20_000_000 {}
        let (last_time, last_ticks) = (monotonic_ns(), counter());
        let ticks = last_ticks.wrapping_sub(first_ticks).max(1);
        Self { counter: true, nanoseconds_per_tick: (last_time - first_time) as f64 / ticks as f64 }
    }

    /// Returns the name of the source, for reports.
    #[must_use]
    pub fn source(&self) -> &'static str {
        if self.counter { "time-stamp counter" } else { "CLOCK_MONOTONIC" }
    }

    /// Returns the current reading, in ticks.
    #[inline(always)]
    #[must_use]
    pub fn ticks(&self) -> u64 {
        if self.counter { counter() } else { monotonic_ns() }
    }

    /// Converts a difference of two readings to nanoseconds.
    #[inline]
    #[must_use]
    pub fn to_ns(&self, ticks: u64) -> f64 {
        ticks as f64 * self.nanoseconds_per_tick
    }

    /// Converts nanoseconds to ticks.
    #[inline]
    #[must_use]
    pub fn from_ns(&self, nanoseconds: f64) -> u64 {
        (nanoseconds / self.nanoseconds_per_tick) as u64
    }
}

impl Default for TickClock {
    fn default() -> Self {
        Self::new()
    }
}

fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Returns the CPU time that this process has used so far, in ns.
pub fn process_cpu_ns() -> u64 {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn counter() -> u64 {
    // SAFETY: every x86-64 processor has `rdtsc`, and Linux allows it in user space unless the process itself
    // has disabled it.
    unsafe { core::arch::x86_64::_rdtsc() }
}

#[cfg(not(target_arch = "x86_64"))]
fn counter() -> u64 {
    monotonic_ns()
}

fn has_constant_counter() -> bool {
    cfg!(target_arch = "x86_64")
        && std::fs::read_to_string("/proc/cpuinfo").is_ok_and(|text| {
            text.lines()
                .find(|line| line.starts_with("flags"))
                .is_some_and(|line| line.split_whitespace().any(|flag| flag == "constant_tsc"))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_grow_and_convert_back() {
        let clock = TickClock::new();
        let first = clock.ticks();
        let before = monotonic_ns();
        while monotonic_ns() - before < 1_000_000 {}
        assert!(clock.ticks() > first);
        let ticks = clock.from_ns(1e6);
        assert!((clock.to_ns(ticks) - 1e6).abs() < 10.0);
    }
}
