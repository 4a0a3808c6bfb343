//! Processor time of machines: the time for which their tasks work or spin.

use crate::machine::Machine;
use crate::state::State;
use crate::tasks::{Stay, TaskId};
use dunlin_fabric::Nanos;

impl Machine {
    /// Takes a core from its task.
    pub(crate) fn vacate(&mut self, core: u32, now: Nanos) {
        let core = &mut self.cores[core as usize];
        if core.task.take().is_some() {
            self.occupied += now.saturating_sub(core.since);
        }
    }
}

impl State {
    /// Counts the sleep of a task that ends now. The time of a spinning task is processor time.
    #[inline]
    pub(crate) fn end_sleep(&mut self, task: TaskId, stay: Stay) {
        if !stay.reason.spins() {
            let slept = self.now().saturating_sub(stay.since);
            self.machines[self.tasks[task as usize].machine as usize].slept += slept;
        }
    }

    /// Counts the time until `at` as time for which the running task has no core.
    pub(crate) fn lose_core_until(&mut self, at: Nanos) {
        if let Some(task) = self.running() {
            let lost = at.saturating_sub(self.now());
            self.machines[self.tasks[task as usize].machine as usize].slept += lost;
        }
    }

    /// Returns the processor time of a machine until now.
    pub(crate) fn processor_time(&self, number: usize) -> Nanos {
        let (now, machine) = (self.now(), &self.machines[number]);
        if !machine.cores.is_empty() {
            let busy = machine.cores.iter().filter(|core| core.task.is_some());
            return machine.occupied + busy.map(|core| now.saturating_sub(core.since)).sum::<Nanos>();
        }
        let tasks = self.tasks.iter().filter(|task| task.machine as usize == number);
        let lived: Nanos =
            tasks.clone().map(|task| now.min(task.rest.ended_at).saturating_sub(task.rest.began)).sum();
        let sleeping = tasks.filter_map(|task| task.stay).filter(|stay| !stay.woken && !stay.reason.spins());
        let sleeping: Nanos = sleeping.map(|stay| now.saturating_sub(stay.since)).sum();
        lived.saturating_sub(machine.slept).saturating_sub(sleeping)
    }
}
