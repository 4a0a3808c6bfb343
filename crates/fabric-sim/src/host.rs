//! The simulated host: virtual time, threads, signals and randomness.

use crate::parker::SimParker;
use crate::shared::{Guard, Shared};
use crate::signals::SignalState;
use crate::state::State;
use crate::tasks::Reason;
use dunlin_fabric::{Host, Nanos, Signal, Site, Task, Work};
use std::sync::Arc;

/// One process on a simulated machine. `spawn` creates a task; time passes only by [`Host::charge`] and by
/// waiting.
#[derive(Clone, Debug)]
pub struct SimHost {
    pub(crate) shared: Arc<Shared>,
    pub(crate) process: u32,
}

/// Longest random pre-emption at a checkpoint, in nanoseconds.
const PREEMPTION: Nanos = 3_000;

impl State {
    /// Returns the present clock reading of a process's machine.
    pub(crate) fn clock_of(&self, process: u32) -> Nanos {
        let machine = self.processes[process as usize].machine;
        self.machines[machine as usize].clock(self.now())
    }

    /// Scales a price by the slowness of a process's machine.
    #[cold]
    #[inline(never)]
    fn slowly(&self, process: u32, price: u64) -> u64 {
        price * self.machines[self.processes[process as usize].machine as usize].slowness / 1000
    }

    /// Returns the run's time at which the clock of a process's machine will show `shown`.
    #[inline]
    pub(crate) fn time_of(&self, process: u32, shown: Nanos) -> Nanos {
        if shown == Nanos::MAX {
            return shown;
        }
        let machine = self.processes[process as usize].machine;
        self.machines[machine as usize].time(shown)
    }

    /// [`time_of`](State::time_of) for the running task.
    pub(crate) fn time_here(&self, shown: Nanos) -> Nanos {
        match self.running() {
            Some(task) => self.time_of(self.tasks[task as usize].process, shown),
            None => shown,
        }
    }
}

impl SimHost {
    /// Performs application work for `time` nanoseconds of processor time. All events due by then have
    /// happened when it returns, so the task's next posts are in order with those of other tasks. May switch
    /// tasks: do not call with a lock held.
    pub fn work(&self, time: Nanos) {
        let state = self.shared.lock();
        let slowness = state.machines[state.processes[self.process as usize].machine as usize].slowness;
        drop(state);
        drop(self.shared.enter(time * slowness));
    }

    /// Takes the core from the running task: because the run says so here, or at random for a pre-emption or a stall.
    #[cold]
    #[inline(never)]
    fn lose_core<'a>(&'a self, mut state: Guard<'a>, site: Site) {
        if let Some((_, _, time)) = state.stall_next.take_if(|next| (next.0, next.1) == (self.process, site))
        {
            let at = state.now() + time;
            state.lose_core_until(at);
            state = self.shared.give_way(state, at);
        }
        let (preemption, stall, stall_by) =
            (state.settings.preemption, state.settings.faults.stall, state.settings.faults.stall_by);
        if preemption != 0 && state.chance.one_in(preemption) {
            let at = state.now() + state.chance.below(PREEMPTION);
            state.lose_core_until(at);
            state = self.shared.give_way(state, at);
        }
        if state.breaks(stall) {
            let at = state.now() + state.chance.below(stall_by + 1);
            state.lose_core_until(at);
            drop(self.shared.give_way(state, at));
        }
    }
}

impl Host for SimHost {
    type Signal = SimSignal;
    type Parker = SimParker;

    fn now(&self) -> Nanos {
        self.shared.pass_at(|prices| prices.clock_read).clock_of(self.process)
    }

    fn glance(&self) -> Nanos {
        self.shared.lock().clock_of(self.process)
    }

    #[inline]
    fn charge(&self, work: Work, count: u32) {
        let mut state = self.shared.lock();
        let price = state.settings.prices.work[work as usize] * u64::from(count);
        let price = if state.has_slow_machines { state.slowly(self.process, price) } else { price };
        state.charge(price);
    }

    fn thread(&self) -> Option<u32> {
        self.shared.lock().running()
    }

    fn checkpoint(&self, site: Site) {
        let state = self.shared.enter(0);
        if state.settings.preemption != 0 || state.settings.faults.stall != 0 || state.stall_next.is_some() {
            self.lose_core(state, site);
        }
    }

    fn random(&self) -> u64 {
        self.shared.lock().host_random.next()
    }

    fn process_id(&self) -> u32 {
        self.process + 1
    }

    fn signal(&self) -> SimSignal {
        let mut state = self.shared.lock();
        let id = state.signals.next;
        state.signals.next += 1;
        state.signals.all.insert(id, SignalState::default());
        SimSignal(Arc::new(SignalHandle { shared: Arc::clone(&self.shared), id }))
    }

    fn parker(&self) -> SimParker {
        SimParker::new(&self.shared)
    }

    fn spawn(&self, name: &str, body: Box<dyn FnOnce() + Send>) -> std::io::Result<Task> {
        let mut state = self.shared.system_call();
        if state.over() || !state.processes[self.process as usize].alive {
            drop(state);
            return Err(std::io::Error::other("the process or the run is over"));
        }
        let task = state.spawn(name, self.process, body);
        let shared = Arc::clone(&self.shared);
        Ok(Task::new(move || {
            let mut state = shared.blocking_call();
            while !state.has_ended(task) && !state.over() {
                let waiter = state.stay(Reason::End(task));
                state.add_joiner(task, waiter);
                state = shared.park(state, waiter, Nanos::MAX, false).0;
            }
        }))
    }

    fn sleep(&self, until: Nanos) {
        let mut state = self.shared.blocking_call();
        let until = state.time_of(self.process, until);
        if state.now() < until && !state.over() {
            let waiter = state.stay(Reason::Sleep);
            drop(self.shared.park(state, waiter, until, false));
        }
    }
}

impl State {
    /// Raises a signal; does nothing if no handle to it exists.
    pub(crate) fn raise(&mut self, signal: u64) {
        let Some(state) = self.signals.all.get_mut(&signal) else { return };
        state.count += 1;
        let mut waiters = std::mem::take(&mut state.waiters);
        self.wake_all(&mut waiters);
    }
}

/// A counter that tasks of one run raise and wait for.
#[derive(Clone, Debug)]
pub struct SimSignal(Arc<SignalHandle>);

#[derive(Debug)]
struct SignalHandle {
    shared: Arc<Shared>,
    id: u64,
}

impl Drop for SignalHandle {
    fn drop(&mut self) {
        if let Some(mut state) = self.shared.try_lock() {
            state.signals.all.remove(&self.id);
        }
    }
}

impl SimSignal {
    pub(crate) fn id(&self) -> u64 {
        self.0.id
    }

    fn count(&self, state: &State) -> u64 {
        state.signals.all.get(&self.0.id).map_or(0, |s| s.count)
    }
}

impl Signal for SimSignal {
    fn raise(&self) {
        self.0.shared.pass_at(|prices| 300 * prices.system_call).raise(self.0.id);
    }

    fn seen(&self) -> u64 {
        self.count(&self.0.shared.pass_at(|prices| 2 * prices.look))
    }

    fn wait(&self, seen: u64, until: Nanos) -> bool {
        let mut state = self.0.shared.enter(10_000);
        let until = state.time_here(until);
        loop {
            if self.count(&state) != seen {
                return true;
            }
            if state.now() >= until || state.over() {
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
