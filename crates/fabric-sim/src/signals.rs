//! The signals of a run.

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
