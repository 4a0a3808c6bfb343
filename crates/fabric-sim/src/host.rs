//! The simulated host: time, threads, signals and randomness, all virtual.

use crate::scheduler::{Reason, Shared, Waiter};
use dunlin_fabric::{Host, Nanos, Signal, Site, Task, Work};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A simulated machine: `spawn` makes a task of the run, and time passes by [`Host::charge`] and waiting only.
#[derive(Clone, Debug)]
pub struct SimHost {
    pub(crate) shared: Arc<Shared>,
}

/// The price of a unit of work in picoseconds. Round numbers, not measured: here time only has to pass.
const fn price(work: Work) -> u64 {
    match work {
        Work::CopyBytes => 60,
        Work::PollMiss | Work::ParseEntry | Work::BuildEntry => 5_000,
        Work::PollHit | Work::ParseMessage | Work::BuildMessage => 10_000,
        Work::PostWork | Work::PollCompletion | Work::Dispatch => 20_000,
        Work::Doorbell => 30_000,
    }
}

/// What a look at the clock costs.
const CLOCK_READ: Nanos = 20;
/// What a look at a signal costs.
const SIGNAL_LOOK: Nanos = 10;
/// What it costs to raise one, or to start a task.
const SYSTEM_CALL: Nanos = 300;
/// The longest pre-emption at a checkpoint.
const PREEMPTION: Nanos = 3_000;

impl Host for SimHost {
    type Signal = SimSignal;

    fn now(&self) -> Nanos {
        self.shared.pass(CLOCK_READ).now()
    }

    fn charge(&self, work: Work, count: u32) {
        self.shared.pass(0).charge(price(work) * u64::from(count));
    }

    fn checkpoint(&self, _site: Site) {
        let mut state = self.shared.enter(0);
        let one_in = state.settings.preemption;
        if one_in != 0 && state.chance.one_in(one_in) {
            let at = state.now() + state.chance.below(PREEMPTION);
            drop(self.shared.give_way(state, at));
        }
    }

    fn random(&self) -> u64 {
        self.shared.lock().host_random.next()
    }

    fn signal(&self) -> SimSignal {
        let mut state = self.shared.lock();
        let id = state.signals.next;
        state.signals.next += 1;
        state.signals.all.insert(id, SignalState::default());
        SimSignal(Arc::new(SignalHandle { shared: Arc::clone(&self.shared), id }))
    }

    fn spawn(&self, name: &str, body: Box<dyn FnOnce() + Send>) -> std::io::Result<Task> {
        let mut state = self.shared.pass(SYSTEM_CALL);
        if state.stopping() {
            return Err(std::io::Error::other("the run is over"));
        }
        let task = state.spawn(name, body);
        let shared = Arc::clone(&self.shared);
        Ok(Task::new(move || {
            let mut state = shared.enter(SYSTEM_CALL);
            while !state.has_ended(task) && !state.stopping() {
                let waiter = state.stay(Reason::End(task));
                state.add_joiner(task, waiter);
                state = shared.park(state, waiter, Nanos::MAX, false).0;
            }
        }))
    }

    fn sleep(&self, until: Nanos) {
        let mut state = self.shared.enter(SYSTEM_CALL);
        if state.now() < until && !state.stopping() {
            let waiter = state.stay(Reason::Sleep);
            drop(self.shared.park(state, waiter, until, false));
        }
    }
}

/// The signals of a run by number; numbers are not used again.
#[derive(Default)]
pub(crate) struct Signals {
    next: u64,
    all: BTreeMap<u64, SignalState>,
}

#[derive(Default)]
struct SignalState {
    count: u64,
    waiters: Vec<Waiter>,
}

impl crate::scheduler::State {
    /// Raises a signal; nothing if no handle to it is left.
    pub(crate) fn raise(&mut self, signal: u64) {
        let Some(state) = self.signals.all.get_mut(&signal) else { return };
        state.count += 1;
        let mut waiters = std::mem::take(&mut state.waiters);
        self.wake_all(&mut waiters);
    }
}

/// A count that tasks of one run raise and wait for.
#[derive(Clone, Debug)]
pub struct SimSignal(Arc<SignalHandle>);

#[derive(Debug)]
struct SignalHandle {
    shared: Arc<Shared>,
    id: u64,
}

impl Drop for SignalHandle {
    fn drop(&mut self) {
        self.shared.lock().signals.all.remove(&self.id);
    }
}

impl SimSignal {
    pub(crate) fn id(&self) -> u64 {
        self.0.id
    }

    fn count(&self, state: &crate::scheduler::State) -> u64 {
        state.signals.all.get(&self.0.id).map_or(0, |s| s.count)
    }
}

impl Signal for SimSignal {
    fn raise(&self) {
        self.0.shared.pass(SYSTEM_CALL).raise(self.0.id);
    }

    fn seen(&self) -> u64 {
        self.count(&self.0.shared.pass(SIGNAL_LOOK))
    }

    fn wait(&self, seen: u64, until: Nanos) -> bool {
        let mut state = self.0.shared.enter(SIGNAL_LOOK);
        loop {
            if self.count(&state) != seen {
                return true;
            }
            if state.now() >= until || state.stopping() {
                return false;
            }
            let waiter = state.stay(Reason::Signal(self.0.id));
            if let Some(signal) = state.signals.all.get_mut(&self.0.id) {
                signal.waiters.push(waiter);
            }
            state = self.0.shared.park(state, waiter, until, false).0;
            if let Some(signal) = state.signals.all.get_mut(&self.0.id) {
                signal.waiters.retain(|other| *other != waiter);
            }
        }
    }
}
