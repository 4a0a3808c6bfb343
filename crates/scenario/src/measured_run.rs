//! The common parts of timed runs: a cluster without randomness, threads that get ready, a measured period,
//! and the first error of any thread.

use dunlin_fabric::{Fabric, Host, Nanos, Signal, Task};
use dunlin_fabric_sim::{MachineSettings, ModelTiming, Prices, RunError, Settings, Sim, TimingSettings};
use dunlin_rnic_model::{Parameter, Profile, ProfileError};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use thiserror::Error;

/// A deadline that never expires.
pub(crate) const FOREVER: Nanos = Nanos::MAX;

/// The reason why a run did not come to its end.
#[derive(Debug, Error)]
pub enum CourseError {
    /// The load is impossible.
    #[error("{what} cannot be {value}")]
    Nothing {
        /// Name of the quantity.
        what: &'static str,
        /// Its value.
        value: u64,
    },
    /// The profile is unknown or invalid.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// The simulation failed.
    #[error(transparent)]
    Run(#[from] RunError),
    /// A client or the server failed.
    #[error("a simulated thread cannot go on: {0}")]
    Thread(String),
}

/// Wraps the error of a thread that cannot continue.
pub(crate) fn thread(error: impl std::fmt::Display) -> CourseError {
    CourseError::Thread(error.to_string())
}

/// Starts a task that waits for `start` and tells the course how it ends.
pub(crate) fn spawn_at<T: Send + 'static>(
    sim: &Sim,
    start: &<<Sim as Fabric>::Host as Host>::Signal,
    course: &Arc<MeasuredRun<T>>,
    body: impl FnOnce() -> Result<(), CourseError> + Send + 'static,
) -> Result<Task, CourseError> {
    let (course, start) = (Arc::clone(course), start.clone());
    let body = move || {
        start.wait(0, FOREVER);
        course.ended(body());
    };
    sim.host().spawn("writing", Box::new(body)).map_err(thread)
}

/// Rejects quantities that are 0.
pub(crate) fn not_zero<const N: usize>(numbers: [(&'static str, u64); N]) -> Result<(), CourseError> {
    match numbers.into_iter().find(|(_, value)| *value == 0) {
        Some((what, value)) => Err(CourseError::Nothing { what, value }),
        None => Ok(()),
    }
}

/// Returns a cluster of `hosts` hosts with room for `threads` threads, without pre-emption or spurious
/// wake-ups.
pub fn cluster(hosts: usize, threads: usize, limit: Nanos) -> Settings {
    let defaults = Settings::default();
    Settings {
        machines: vec![MachineSettings::default(); hosts],
        limit: defaults.start.saturating_add(limit),
        max_tasks: threads,
        // When all clients end at once, all workers are notified in one step, which takes hundreds of
        // milliseconds with 512 of each.
        run_ahead: 10_000_000_000,
        spurious: 0,
        preemption: 0,
        slack: 300,
        ..defaults
    }
}

/// Sets the costs of all hosts from a profile, each with `nics` NICs.
pub(crate) fn cost_as(settings: &mut Settings, profile: Profile, nics: u16) {
    let profile = Arc::new(profile);
    settings.prices = Prices::of(&profile);
    settings.capabilities.max_inline = profile.number(Parameter::InlineLimit) as u32;
    let machines = vec![(profile, nics); settings.machines.len()];
    settings.timing = TimingSettings::Model(ModelTiming { machines, switch_ns: None, control_ns: 5_000 });
}

/// The phase of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Setting up and warming up.
    Before,
    /// Operations are measured.
    Counting,
    /// No new operation starts.
    Over,
}

/// The state that all threads of a run share, and their results. One thread runs at a time, so the lock is
/// never contended.
#[derive(Debug, Default)]
pub(crate) struct MeasuredRun<T> {
    gathered: Mutex<T>,
    error: Mutex<Option<CourseError>>,
    ready: AtomicU64,
    phase: AtomicU64,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T: Default + Send + 'static> MeasuredRun<T> {
    /// Runs `play` on a cluster; returns the gathered results and a hash over all events.
    pub(crate) fn run(
        settings: Settings,
        seed: u64,
        play: impl FnOnce(&Sim, &Arc<Self>) -> Result<(), CourseError> + Send + 'static,
    ) -> Result<(T, u64), CourseError> {
        let course = Arc::new(MeasuredRun::default());
        let played = Arc::clone(&course);
        let report = Sim::run_with(settings, seed, move |sim| {
            let result = play(&sim, &played);
            played.ended(result);
        })?;
        match locked(&course.error).take() {
            Some(error) => Err(error),
            None => Ok((std::mem::take(&mut *course.gathered()), report.trace_hash)),
        }
    }
}

impl<T> MeasuredRun<T> {
    pub(crate) fn gathered(&self) -> MutexGuard<'_, T> {
        locked(&self.gathered)
    }

    /// Records how a thread ended; the first failure ends the run.
    pub(crate) fn ended(&self, result: Result<(), CourseError>) {
        if let Err(error) = result {
            locked(&self.error).get_or_insert(error);
            self.end();
        }
    }

    /// Marks one thread as ready.
    pub(crate) fn is_ready(&self) {
        self.ready.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns whether `threads` threads are ready, or the run is over.
    pub(crate) fn may_begin(&self, threads: usize) -> bool {
        self.ready.load(Ordering::Relaxed) >= threads as u64 || self.phase() == Phase::Over
    }

    pub(crate) fn phase(&self) -> Phase {
        match self.phase.load(Ordering::Relaxed) {
            0 => Phase::Before,
            1 => Phase::Counting,
            _ => Phase::Over,
        }
    }

    /// Starts the measurement, unless the run is over.
    pub(crate) fn count(&self) {
        self.phase.fetch_max(Phase::Counting as u64, Ordering::Relaxed);
    }

    pub(crate) fn end(&self) {
        self.phase.store(Phase::Over as u64, Ordering::Relaxed);
    }
}

/// Operations that all threads of a run count together.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counted {
    count: u64,
    began: Nanos,
    ended: Nanos,
    processor_before: Nanos,
    /// Measured operations.
    pub operations: u64,
    /// Sum of the times of the measured operations, in nanoseconds.
    pub latencies: Nanos,
    /// The longest time of a measured operation, in nanoseconds.
    pub longest: Nanos,
    /// Processor time of all machines during the measurement, in nanoseconds; 0 if it is not counted.
    pub processor: Nanos,
}

impl Counted {
    /// Returns the measured operations per second, in millions.
    #[must_use]
    pub fn mops(&self) -> f64 {
        self.operations as f64 * 1e3 / self.ended.saturating_sub(self.began).max(1) as f64
    }

    /// Returns the mean time of an operation in its thread, in microseconds.
    #[must_use]
    pub fn mean_us(&self) -> f64 {
        self.latencies as f64 / 1e3 / self.operations.max(1) as f64
    }
}

/// [`record_with`] without processor time.
pub(crate) fn record(course: &MeasuredRun<Counted>, counts: (u64, u64), since: Nanos, now: Nanos) -> bool {
    record_with(course, counts, (since, now), || 0)
}

/// Counts an operation from `since` to `now`: after `warm_up` operations it is measured, and with the last measured one
/// the run is over. Returns whether it is. `processor` returns the processor time of all machines until now.
pub(crate) fn record_with(
    course: &MeasuredRun<Counted>,
    (warm_up, measured): (u64, u64),
    (since, now): (Nanos, Nanos),
    processor: impl Fn() -> Nanos,
) -> bool {
    let mut counted = course.gathered();
    counted.count += 1;
    if counted.count == 1 {
        counted.began = since;
    }
    if counted.count > warm_up && counted.operations < measured {
        counted.operations += 1;
        counted.latencies += now - since;
        counted.longest = counted.longest.max(now - since);
        counted.ended = now;
    }
    if counted.count <= warm_up {
        counted.began = now;
    }
    if counted.count == warm_up {
        counted.processor_before = processor();
    }
    let over = counted.operations >= measured;
    if over && counted.count == warm_up + measured {
        counted.processor = processor().saturating_sub(counted.processor_before);
    }
    drop(counted);
    if over {
        course.end();
    }
    over
}
