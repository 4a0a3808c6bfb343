//! Simulated machines and processes: their data.

use crate::settings::MachineSettings;
use crate::tasks::TaskId;
use dunlin_fabric::Nanos;
use std::collections::VecDeque;

#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) task: Option<TaskId>,
    /// The last task on this core: to resume it costs no context switch.
    pub(crate) last: Option<TaskId>,
    /// The time at which the core was assigned or became free.
    pub(crate) since: Nanos,
    /// The earliest queued event for the end of a quantum, or of a spinning task's patience; `MAX` for none.
    pub(crate) timed: Nanos,
}

/// A machine.
#[derive(Debug)]
pub(crate) struct Machine {
    /// Empty if the machine has one core per task.
    pub(crate) cores: Vec<Core>,
    pub(crate) queue: VecDeque<TaskId>,
    /// Cost factor of all work, in thousandths.
    pub(crate) slowness: u64,
    /// Nanoseconds by which this machine's clock is ahead of the run's time.
    pub(crate) offset: Nanos,
    /// Clock drift in parts per million.
    pub(crate) drift: u64,
    /// The time until which no message passes between this machine and the others.
    pub(crate) cut_until: Nanos,
    /// Time for which tasks of this machine slept, over all sleeps that have ended; with one core for each task.
    pub(crate) slept: Nanos,
    /// Time for which cores were assigned, over all assignments that have ended; with a limited number of cores.
    pub(crate) occupied: Nanos,
}

impl Machine {
    pub(crate) fn new(settings: &MachineSettings) -> Self {
        let core = |_| Core { task: None, last: None, since: 0, timed: Nanos::MAX };
        Machine {
            cores: (0..settings.cores.unwrap_or(0)).map(core).collect(),
            queue: VecDeque::new(),
            slowness: 1000,
            offset: settings.clock_offset,
            drift: settings.clock_drift,
            cut_until: 0,
            slept: 0,
            occupied: 0,
        }
    }

    /// Returns this machine's clock reading at the run's time `at`.
    #[inline]
    pub(crate) fn clock(&self, at: Nanos) -> Nanos {
        // Most machines have no drift, and every call reads the time.
        let drifted = if self.drift == 0 { 0 } else { at / 1_000_000 * self.drift };
        at + self.offset + drifted
    }

    /// Returns a time at which, or shortly after which, this machine's clock shows `shown`.
    pub(crate) fn time(&self, shown: Nanos) -> Nanos {
        if shown == Nanos::MAX || (self.offset == 0 && self.drift == 0) {
            return shown;
        }
        let at = shown.saturating_sub(self.offset);
        let at = at - at / (1_000_000 + self.drift) * self.drift;
        at + 1_000
    }
}

/// A process.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) machine: u32,
    pub(crate) alive: bool,
}

impl Process {
    pub(crate) fn on(machine: u32) -> Self {
        Process { machine, alive: true }
    }
}
