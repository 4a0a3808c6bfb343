//! What runs that are measured for a while have in common: a cluster where nothing happens by chance, threads that get ready, a time
//! that counts, and the first error of any of them.

use dunlin_fabric::Nanos;
use dunlin_fabric_sim::{MachineSettings, ModelTiming, Prices, RunError, Settings, Sim, TimingSettings};
use dunlin_rnic_model::{Parameter, Profile, ProfileError};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use thiserror::Error;

/// A time that does not come.
pub(crate) const FOREVER: Nanos = Nanos::MAX;

/// Why a run did not come to its end.
#[derive(Debug, Error)]
pub enum CourseError {
    /// It describes nothing that could run.
    #[error("{what} cannot be {value}")]
    Nothing {
        /// What.
        what: &'static str,
        /// Its value.
        value: u64,
    },
    /// No such profile, or a bad one.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// The run did not end as it should.
    #[error(transparent)]
    Run(#[from] RunError),
    /// A client or the server could not go on.
    #[error("a simulated thread cannot go on: {0}")]
    Thread(String),
}

/// What a thread says that cannot go on.
pub(crate) fn thread(error: impl std::fmt::Display) -> CourseError {
    CourseError::Thread(error.to_string())
}

/// Refuses what is 0 of these.
pub(crate) fn not_zero<const N: usize>(numbers: [(&'static str, u64); N]) -> Result<(), CourseError> {
    match numbers.into_iter().find(|(_, value)| *value == 0) {
        Some((what, value)) => Err(CourseError::Nothing { what, value }),
        None => Ok(()),
    }
}

/// A cluster of so many hosts with room for so many threads, where nobody is preempted and no wait ends for no reason.
pub(crate) fn cluster(hosts: usize, threads: usize, limit: Nanos) -> Settings {
    let defaults = Settings::default();
    Settings {
        machines: vec![MachineSettings::default(); hosts],
        limit: defaults.start.saturating_add(limit),
        max_tasks: threads,
        // The end of all clients at once is told to all workers in one go: hundreds of milliseconds with 512 of each.
        run_ahead: 10_000_000_000,
        spurious: 0,
        preemption: 0,
        slack: 300,
        ..defaults
    }
}

/// Has all hosts cost what a profile says, each with so many NICs.
pub(crate) fn cost_as(settings: &mut Settings, profile: Profile, nics: u16) {
    let profile = Arc::new(profile);
    settings.prices = Prices::of(&profile);
    settings.capabilities.max_inline = profile.number(Parameter::InlineLimit) as u32;
    let machines = vec![(profile, nics); settings.machines.len()];
    settings.timing = TimingSettings::Model(ModelTiming { machines, switch_ns: None, control_ns: 5_000 });
}

/// How far a run has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Getting ready, and warm.
    Before,
    /// What is done now counts.
    Counting,
    /// Nothing new is begun.
    Over,
}

/// What all threads of a run share, and what they gather. One of them runs at a time, so nobody ever waits for the lock.
#[derive(Debug, Default)]
pub(crate) struct Course<T> {
    gathered: Mutex<T>,
    error: Mutex<Option<CourseError>>,
    ready: AtomicU64,
    phase: AtomicU64,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T: Default + Send + 'static> Course<T> {
    /// Runs `play` on a cluster; answers what was gathered, and a hash over all events.
    pub(crate) fn run(
        settings: Settings,
        seed: u64,
        play: impl FnOnce(&Sim, &Arc<Self>) -> Result<(), CourseError> + Send + 'static,
    ) -> Result<(T, u64), CourseError> {
        let course = Arc::new(Course::default());
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

impl<T> Course<T> {
    pub(crate) fn gathered(&self) -> MutexGuard<'_, T> {
        locked(&self.gathered)
    }

    /// Notes how a thread ended: with the first that fails all is over.
    pub(crate) fn ended(&self, result: Result<(), CourseError>) {
        if let Err(error) = result {
            locked(&self.error).get_or_insert(error);
            self.end();
        }
    }

    /// A thread is ready.
    pub(crate) fn is_ready(&self) {
        self.ready.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether nobody needs to be waited for any more: so many threads are ready, or all is over.
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

    /// From now on it counts, unless it is over.
    pub(crate) fn count(&self) {
        self.phase.fetch_max(Phase::Counting as u64, Ordering::Relaxed);
    }

    pub(crate) fn end(&self) {
        self.phase.store(Phase::Over as u64, Ordering::Relaxed);
    }
}
