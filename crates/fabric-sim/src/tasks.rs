//! Tasks (simulated threads): their state, and the identity of their waits.

use dunlin_fabric::{Nanos, Wake};

/// A task's number: its index in [`State::tasks`](crate::state::State::tasks).
pub(crate) type TaskId = u32;

/// The body of a task.
pub(crate) type Body = Box<dyn FnOnce() + Send>;

/// Identifies one wait of one task; stale once the task resumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Waiter {
    pub(crate) task: TaskId,
    pub(crate) stay: u64,
}

/// The reason of a wait, for deadlock reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    Arrivals {
        domain: u32,
        event: bool,
    },
    Signal(u64),
    Unpark {
        parker: u64,
        busy: bool,
    },
    End(TaskId),
    Sleep,
    Message {
        link: u32,
    },
    /// At a listener.
    Connection(u32),
    Answer,
}

impl Reason {
    /// Returns whether the task keeps its core and polls while it waits.
    pub(crate) fn spins(self) -> bool {
        matches!(self, Reason::Arrivals { event: false, .. } | Reason::Unpark { busy: true, .. })
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Stay {
    pub(crate) number: u64,
    pub(crate) reason: Reason,
    pub(crate) woken: bool,
    /// The task's clock at the start of the wait, which cannot end earlier.
    pub(crate) since: Nanos,
}

/// A task. A switch touches two cache lines of it.
#[repr(align(64))]
pub(crate) struct TaskState {
    pub(crate) process: u32,
    pub(crate) machine: u32,
    pub(crate) stay: Option<Stay>,
    pub(crate) outcome: Wake,
    /// When the wait expires, and with which result; `MAX` for never.
    pub(crate) timer: Nanos,
    pub(crate) timer_outcome: Wake,
    /// The earliest timer event of the task in the queue. Outdated events stay queued; the task checks again
    /// when one fires.
    pub(crate) timer_event: Nanos,
    pub(crate) ended: bool,
    /// The task's process was killed.
    pub(crate) doomed: bool,
    /// The task's core, on machines with a limited number.
    pub(crate) core: Option<u32>,
    /// The task is ready and waits for a core.
    pub(crate) ready: bool,
    /// The stack address at the last suspension, where the task continues.
    pub(crate) stack: usize,
    /// The end of the stack, where it starts, and the address of its [`Strand`](crate::switch::Strand); both
    /// for prefetching.
    pub(crate) stack_end: usize,
    pub(crate) strand: usize,
    pub(crate) rest: Box<TaskRest>,
}

/// The parts of a task that no switch touches.
pub(crate) struct TaskRest {
    pub(crate) name: String,
    /// When the task begins, and when it ended; `MAX` before.
    pub(crate) began: Nanos,
    pub(crate) ended_at: Nanos,
    pub(crate) joiners: Vec<Waiter>,
    pub(crate) panic: Option<String>,
}

impl TaskState {
    pub(crate) fn is_in_stay(&self) -> bool {
        self.stay.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_switch_touches_of_a_task_is_two_cache_lines() {
        assert_eq!(size_of::<TaskState>(), 2 * 64);
    }
}
