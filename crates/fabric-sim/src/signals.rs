//! The signals and parkers of a run.

use crate::tasks::Waiter;
use std::collections::BTreeMap;

/// The signals of a run by number; numbers are not reused.
#[derive(Default)]
pub(crate) struct Signals {
    pub(crate) next: u64,
    pub(crate) all: BTreeMap<u64, SignalState>,
}

#[derive(Default)]
pub(crate) struct SignalState {
    pub(crate) count: u64,
    pub(crate) waiters: Vec<Waiter>,
}

/// The parkers of a run by number; numbers are not reused.
#[derive(Default)]
pub(crate) struct Parkers {
    pub(crate) next: u64,
    pub(crate) all: BTreeMap<u64, ParkState>,
}

#[derive(Default)]
pub(crate) struct ParkState {
    pub(crate) notified: bool,
    /// The parked task, and whether it is busy.
    pub(crate) parked: Option<(Waiter, bool)>,
}
