//! The loop that runs a run: events, tasks, and what comes of them at the end.

use crate::report::{RunError, RunReport};
use crate::scheduler::{Body, TaskId};
use crate::shared::{Killed, Shared};
use crate::slab::Places;
use crate::stacks::Stacks;
use crate::switch::Strand;
use std::any::Any;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex, PoisonError};

/// How often a task that is to end may go on all the same (its handlers catch what is thrown through it).
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

/// Runs `root` and everything it spawns to the end.
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

/// Ends what still stands on the stacks. Drops run by it may use the handles, but no longer block. If a task has written into
/// another's stack nothing that stands on any of them can be run: they stay as they are, for good.
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
        // One that has not begun need not.
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
            // What it did last takes its time too.
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

/// Gives stacks to the tasks that were made.
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

/// Catches a task's panic: the root's ends the run, another's is reported at its end.
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
