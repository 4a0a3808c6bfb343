//! The main loop of a run: events, tasks and the final clean-up.

use crate::report::{RunError, RunReport};
use crate::shared::{Killed, Shared};
use crate::slab::Places;
use crate::stacks::Stacks;
use crate::switch::Strand;
use crate::tasks::{Body, TaskId};
use std::any::Any;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex, PoisonError};

/// Most resumptions of a task that must end; its code may catch the unwinding panic.
const LAST_WORDS: usize = 10_000;

type Panic = Box<dyn Any + Send>;

enum Stop {
    Error(RunError),
    Panic(Panic),
}

struct Strands {
    /// By task.
    all: Places<Strand>,
    stacks: Stacks,
    root_panic: Arc<Mutex<Option<Panic>>>,
}

/// Runs `root` and all tasks that it spawns to the end.
pub(crate) fn run(shared: &Arc<Shared>, root: Body) -> Result<RunReport, RunError> {
    let entered = shared.enter_run();
    let (stack, tasks) = {
        let mut state = shared.lock();
        state.spawn("root", 0, root);
        (state.settings.stack, state.settings.max_tasks)
    };
    let no_stack = |error: std::io::Error| RunError::Stack { bytes: stack, reason: error.to_string() };
    let mut strands = Strands {
        all: Places::default(),
        stacks: Stacks::new(stack, tasks).map_err(no_stack)?,
        root_panic: Arc::new(Mutex::new(None)),
    };
    let result = drive(shared, &mut strands, stack);
    finish(shared, strands, matches!(result, Err(Stop::Error(RunError::Overrun { .. }))));
    let result = match result {
        Ok(()) => {
            let state = shared.lock();
            let mut panics =
                state.tasks.iter().filter_map(|t| Some((t.rest.name.clone(), t.rest.panic.clone()?)));
            match panics.next() {
                Some((task, message)) => Err(Stop::Error(RunError::Panicked { task, message })),
                None => {
                    Ok(RunReport { end: state.now(), events: state.handled(), trace_hash: state.trace() })
                }
            }
        }
        Err(error) => Err(error),
    };
    drop(entered);
    match result {
        Ok(report) => Ok(report),
        Err(Stop::Error(error)) => Err(error),
        Err(Stop::Panic(payload)) => resume_unwind(payload),
    }
}

/// Unwinds the remaining tasks. Destructors may use the handles, which no longer block. After a stack overrun
/// no task can run safely, so all stacks are leaked.
fn finish(shared: &Arc<Shared>, mut strands: Strands, overran: bool) {
    {
        let mut state = shared.lock();
        state.stopping = true;
        state.end_run();
    }
    if overran {
        let _ = ManuallyDrop::new(strands);
        return;
    }
    for task in 0..strands.all.count() {
        let Some(strand) = strands.all.get_mut(task) else { continue };
        // A task that has not started needs no unwinding.
        let ended = !strand.has_begun() || (0..LAST_WORDS).any(|_| strand.resume());
        debug_assert!(ended, "a task does not end");
        if ended {
            strands.all.remove(task);
        }
    }
    drop(strands);
    let mut state = shared.lock();
    let bodies = std::mem::take(&mut state.started);
    let network = std::mem::take(&mut state.network);
    drop(state);
    drop((bodies, network));
}

fn drive(shared: &Arc<Shared>, strands: &mut Strands, stack: usize) -> Result<(), Stop> {
    let mut state = shared.lock();
    loop {
        if state.live == 0 {
            return Ok(());
        }
        let Some(task) = state.next_task() else {
            let waits = state.describe_waits();
            return Err(Stop::Error(if state.is_past_limit() {
                RunError::TimeLimit { limit: state.settings.limit, waits }
            } else {
                RunError::Deadlock { at: state.now(), waits }
            }));
        };
        let has_started = !state.started.is_empty();
        drop(state);
        if has_started {
            begin_started(shared, strands, stack)?;
        }
        let resume = |strand: &mut Strand| (strand.resume(), strand.is_sound());
        let (ended, sound) = strands.all.get_mut(task).map_or((false, true), resume);
        state = shared.lock();
        if !sound {
            let task = state.tasks[task as usize].rest.name.clone();
            return Err(Stop::Error(RunError::Overrun { task, bytes: stack }));
        }
        if state.hogged {
            let (task, limit) = (state.tasks[task as usize].rest.name.clone(), state.settings.run_ahead);
            return Err(Stop::Error(RunError::Hogged { task, limit }));
        }
        if ended {
            strands.all.remove(task);
            // The task's last work also takes time.
            state.end_task(task);
            if task == 0
                && let Some(payload) =
                    strands.root_panic.lock().unwrap_or_else(PoisonError::into_inner).take()
            {
                return Err(Stop::Panic(payload));
            }
        }
    }
}

/// Assigns stacks to newly spawned tasks.
#[cold]
#[inline(never)]
fn begin_started(shared: &Arc<Shared>, strands: &mut Strands, stack: usize) -> Result<(), Stop> {
    let started = std::mem::take(&mut shared.lock().started);
    for (task, body) in started {
        let wrapped = guarded(shared, task, body, Arc::clone(&strands.root_panic));
        let (strand, end) = Strand::new(&strands.stacks, wrapped)
            .map_err(|error| Stop::Error(RunError::Stack { bytes: stack, reason: error.to_string() }))?;
        let place = strands.all.push(strand);
        debug_assert_eq!(place, task, "tasks start in the order of their numbers");
        let address = strands.all.place(place).map_or(0, |place| place.addr());
        shared.lock().has_stack(task, end, address);
    }
    Ok(())
}

/// Catches a task's panic: the root's panic ends the run, any other is reported at the end of the run.
fn guarded(shared: &Arc<Shared>, task: TaskId, body: Body, root_panic: Arc<Mutex<Option<Panic>>>) -> Body {
    let shared = Arc::clone(shared);
    Box::new(move || {
        let Err(payload) = catch_unwind(AssertUnwindSafe(body)) else { return };
        if payload.is::<Killed>() {
            return;
        }
        let mut state = shared.lock();
        if state.over() {
            return;
        }
        if task == 0 {
            *root_panic.lock().unwrap_or_else(PoisonError::into_inner) = Some(payload);
        } else {
            let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
            let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
            state.tasks[task as usize].rest.panic = Some(text.unwrap_or_else(|| "no message".to_owned()));
        }
    })
}
