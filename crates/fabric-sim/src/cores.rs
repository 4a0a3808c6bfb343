//! The cores of simulated machines: cores with one shared run queue, and quanta.
//!
//! A task that computes or spins occupies a core; a sleeping task does not. Tasks without a core wait in a
//! queue. A task that has used up its quantum yields the core to the head of the queue: at its next
//! checkpoint if it computes, at once if it spins. A spinning task can be given less patience than a quantum
//! ([`Prices::spin_patience`](crate::Prices::spin_patience)). A machine without a number of cores has one core per task.

use crate::events::Event;
use crate::machine::{Core, Machine};
use crate::state::State;
use crate::tasks::TaskId;
use dunlin_fabric::Nanos;

impl State {
    /// Returns the task if it can run now; otherwise queues it for a core.
    pub(crate) fn on_a_core(&mut self, task: TaskId) -> Option<TaskId> {
        let now = self.now();
        let state = &self.tasks[task as usize];
        if state.core.is_some() || state.doomed {
            return Some(task);
        }
        let number = state.machine;
        let machine = &mut self.machines[number as usize];
        if machine.cores.is_empty() {
            return Some(task);
        }
        let free = |core: &Core| core.task.is_none() && core.since <= now;
        let last = machine.cores.iter().position(|core| free(core) && core.last == Some(task));
        match last.or_else(|| machine.cores.iter().position(free)) {
            Some(core) => {
                let switched = machine.cores[core].last != Some(task);
                let core_state = &mut machine.cores[core];
                (core_state.task, core_state.last, core_state.since) = (Some(task), Some(task), now);
                self.tasks[task as usize].core = Some(core as u32);
                if switched {
                    self.charge(self.settings.prices.context_switch * 1000);
                }
                Some(task)
            }
            None => {
                let state = &mut self.tasks[task as usize];
                if !std::mem::replace(&mut state.ready, true) && !machine.queue.contains(&task) {
                    machine.queue.push_back(task);
                }
                self.time_quanta(number);
                None
            }
        }
    }

    /// Schedules the end of the quanta on a machine, if a task waits for a core.
    fn time_quanta(&mut self, machine: u32) {
        if self.machines[machine as usize].queue.is_empty() {
            return;
        }
        for core in 0..self.machines[machine as usize].cores.len() as u32 {
            let state = &self.machines[machine as usize].cores[core as usize];
            let (timed, since) = (state.timed, state.since);
            let at = state.task.map_or(since, |task| self.end_of_turn(task, since)).max(self.now());
            if at < timed && (timed == Nanos::MAX || self.gives_way_early()) {
                self.machines[machine as usize].cores[core as usize].timed = at;
                self.put(at, Event::Quantum { machine, core });
            }
        }
    }

    /// Returns whether spinning tasks give way before the end of their quantum.
    fn gives_way_early(&self) -> bool {
        self.settings.prices.spin_patience < self.settings.prices.quantum
    }

    /// Returns the time until which a task may keep the core that it has had `since` then.
    fn end_of_turn(&self, task: TaskId, since: Nanos) -> Nanos {
        let quantum = since + self.settings.prices.quantum;
        match self.spins_since(task) {
            Some(begin) if self.gives_way_early() => {
                quantum.min(begin.max(since) + self.settings.prices.spin_patience)
            }
            _ => quantum,
        }
    }

    /// Handles the possible end of a core's quantum.
    pub(crate) fn quantum_is_over(&mut self, machine: u32, core: u32) {
        let now = self.now();
        let Machine { cores, queue, .. } = &mut self.machines[machine as usize];
        let state = &mut cores[core as usize];
        if state.timed <= now {
            state.timed = Nanos::MAX;
        }
        if queue.is_empty() {
            return;
        }
        let (task, since) = (state.task, state.since);
        match task {
            None => self.give_core(machine, core, now),
            Some(task) if self.end_of_turn(task, since) > now => self.time_quanta(machine),
            // A spinning task continues when it gets a core again. A computing task yields by itself.
            Some(task) if self.is_spinning(task) => {
                self.tasks[task as usize].core = None;
                self.machines[machine as usize].vacate(core, now);
                self.machines[machine as usize].queue.push_back(task);
                self.give_core(machine, core, now);
            }
            Some(_) => {}
        }
    }

    /// Assigns a core to the head of the queue, from time `at` on.
    fn give_core(&mut self, machine: u32, core: u32, at: Nanos) {
        let price = self.settings.prices.context_switch;
        let Machine { cores, queue, .. } = &mut self.machines[machine as usize];
        let state = &mut cores[core as usize];
        debug_assert!(state.task.is_none(), "the core is free");
        state.since = at;
        while let Some(next) = queue.pop_front() {
            let task = &mut self.tasks[next as usize];
            if task.ended || task.core.is_some() || (!task.ready && !task.is_in_stay()) {
                continue;
            }
            let switched = state.last != Some(next);
            (state.task, state.last) = (Some(next), Some(next));
            task.core = Some(core);
            if std::mem::take(&mut task.ready) {
                let start = at + if switched { price } else { 0 };
                self.put(start, Event::Run { task: next });
            }
            break;
        }
        self.time_quanta(machine);
    }

    /// Starts a wait of the running task: a sleeping task leaves its core, a spinning one keeps it.
    pub(crate) fn rest(&mut self, task: TaskId, spins: bool) {
        let number = self.tasks[task as usize].machine;
        if spins {
            return self.time_quanta(number);
        }
        let Some(core) = self.tasks[task as usize].core.take() else { return };
        let now = self.now();
        self.machines[number as usize].vacate(core, now);
        self.give_core(number, core, now);
    }

    /// Returns whether the running task has used up its quantum while others wait for a core.
    #[inline(always)]
    pub(crate) fn has_had_its_quantum(&self) -> bool {
        let Some(task) = self.running() else { return false };
        self.tasks[task as usize].core.is_some_and(|core| self.is_over_quantum(task, core))
    }

    #[inline(never)]
    fn is_over_quantum(&self, task: TaskId, core: u32) -> bool {
        let (now, quantum) = (self.now(), self.settings.prices.quantum);
        let machine = &self.machines[self.tasks[task as usize].machine as usize];
        !machine.queue.is_empty() && machine.cores[core as usize].since + quantum <= now
    }

    /// Moves the running task, still ready, to the end of the queue if it has used up its quantum. Returns
    /// whether it did.
    pub(crate) fn leave_core_to_another(&mut self, task: TaskId) -> bool {
        if !self.has_had_its_quantum() {
            return false;
        }
        let number = self.tasks[task as usize].machine;
        let Some(core) = self.tasks[task as usize].core.take() else { return false };
        self.tasks[task as usize].ready = true;
        let now = self.now();
        let machine = &mut self.machines[number as usize];
        machine.vacate(core, now);
        machine.queue.push_back(task);
        self.give_core(number, core, now);
        true
    }
}
